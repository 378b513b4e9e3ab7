#include "sim/plan/order/slot_mapping.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace cpscope {
namespace {

Error reject(std::string what, std::string hint) {
  return make_error(ErrorKind::bad_input, std::move(what), std::move(hint));
}

/// Number of tokens at the front of the first request that are on one rank.
int64_t find_block(const std::vector<int64_t>& owners, int64_t length) {
  int64_t block = 1;
  while (block < length && owners[static_cast<size_t>(block)] == owners.front()) ++block;
  return block;
}

/// The first token that is not where blocks of this size would put it; nothing if there is none.
std::optional<std::string> find_stray(const std::vector<int64_t>& owners,
                                      const std::vector<int64_t>& lengths, int64_t block,
                                      int64_t ranks) {
  size_t token = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int64_t position = 0; position < lengths[s]; ++position, ++token) {
      const int64_t expected = position / block % ranks;
      if (owners[token] != expected)
        return fmt::format(
            "token {} of request {} is on rank {}; in blocks of {}, round robin, it would be on "
            "rank {}",
            position, s, owners[token], block, expected);
    }
  }
  return std::nullopt;
}

}  // namespace

Result<OrderImport> import_slot_mapping(const std::vector<std::vector<int64_t>>& slots,
                                        const std::vector<int64_t>& lengths) {
  const int64_t tokens = std::reduce(lengths.begin(), lengths.end(), int64_t{0});
  const auto ranks = static_cast<int64_t>(slots.size());
  OrderImport order;
  order.cp_size = static_cast<int32_t>(ranks);
  order.lengths = order.slots = lengths;
  std::vector<int64_t> owners(static_cast<size_t>(tokens), -1);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::vector<int64_t>& own = slots[static_cast<size_t>(rank)];
    if (std::ssize(own) != tokens)
      return reject(
          fmt::format("slot_mapping of rank {} has {} entries, the requests have {} tokens", rank,
                      own.size(), tokens),
          "give one entry for each token, -1 for those of other ranks");
    std::vector<int64_t> held;
    for (int64_t token = 0; token < tokens; ++token) {
      if (own[static_cast<size_t>(token)] < 0) continue;
      int64_t& owner = owners[static_cast<size_t>(token)];
      if (owner >= 0)
        return reject(
            fmt::format("token {} is in the caches of ranks {} and {}", token, owner, rank),
            "each token has one owner");
      owner = rank;
      held.push_back(token);
    }
    const auto slot_of = [&](int64_t token) { return own[static_cast<size_t>(token)]; };
    std::stable_sort(held.begin(), held.end(),
                     [&](int64_t a, int64_t b) { return slot_of(a) < slot_of(b); });
    const auto twice = std::adjacent_find(
        held.begin(), held.end(), [&](int64_t a, int64_t b) { return slot_of(a) == slot_of(b); });
    if (twice != held.end())
      return reject(fmt::format("rank {} stores tokens {} and {} in slot {}", rank, *twice,
                                twice[1], slot_of(*twice)),
                    "a slot holds one token");
    order.ranks.push_back(std::move(held));
  }
  const auto lost = std::find(owners.begin(), owners.end(), -1);
  if (lost != owners.end())
    return reject(fmt::format("token {} is in no cache", lost - owners.begin()),
                  "each token has one owner");
  if (tokens == 0) return order;
  const int64_t block = ranks == 1 ? lengths.front() : find_block(owners, lengths.front());
  if (auto stray = find_stray(owners, lengths, block, ranks)) {
    order.differences.push_back(std::move(*stray));
  } else if (ranks > 1) {
    order.notes.push_back(
        fmt::format("every request is split in blocks of {} tokens, round robin: layout striped "
                    "with stripe = {} and slot_multiple = {} owns the same tokens",
                    block, block, block * ranks));
  }
  return order;
}

}  // namespace cpscope
