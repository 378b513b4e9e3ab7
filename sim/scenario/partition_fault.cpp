#include "sim/scenario/partition_fault.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

using IdsByRank = std::vector<std::vector<int64_t>>;

constexpr size_t kShownFaults = 5;
// Of ids outside and of repeated ids, so that lost ones are always shown too.
constexpr size_t kShownOfAKind = 2;

bool is_partition(const IdsByRank& ranks, int64_t tokens) {
  int64_t count = 0;
  for (const std::vector<int64_t>& ids : ranks) count += static_cast<int64_t>(ids.size());
  if (count != tokens) return false;
  std::vector<bool> is_owned(static_cast<size_t>(tokens), false);
  for (const std::vector<int64_t>& ids : ranks) {
    for (const int64_t id : ids) {
      if (id < 0 || id >= tokens || is_owned[static_cast<size_t>(id)]) return false;
      is_owned[static_cast<size_t>(id)] = true;
    }
  }
  return true;
}

/// "token 4 appears twice: on rank 1 row 2 and on rank 1 row 3".
std::string describe_repeated(const IdsByRank& ranks, int64_t id, int64_t times,
                              const BatchPlaces& places) {
  std::vector<std::string> rows;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t row = 0; row < ranks[rank].size() && rows.size() < 2; ++row) {
      if (ranks[rank][row] == id) rows.push_back(fmt::format("on rank {} row {}", rank, row));
    }
  }
  const std::string often = times == 2 ? "twice:" : fmt::format("{} times, first", times);
  return fmt::format("{} appears {} {}", places.describe(id), often, fmt::join(rows, " and "));
}

}  // namespace

std::string BatchPlaces::describe(int64_t id) const {
  int64_t begin = 0;
  for (size_t s = 0; s < slots.size(); ++s) {
    if (id - begin < slots[s]) {
      const int64_t position = id - begin - (is_padded_left ? slots[s] - lengths[s] : 0);
      return position >= 0 && position < lengths[s]
                 ? fmt::format("token {} (sequence {}, position {})", id, s, position)
                 : fmt::format("token {} (padding of sequence {})", id, s);
    }
    begin += slots[s];
  }
  return slots.empty() ? fmt::format("token {}", id)
                       : fmt::format("token {} (padding behind the last sequence)", id);
}

std::optional<std::string> describe_partition_fault(const IdsByRank& ranks, int64_t tokens,
                                                    const BatchPlaces& places) {
  if (is_partition(ranks, tokens)) return std::nullopt;
  std::vector<std::string> shown;
  std::vector<int64_t> sorted;  // ids inside
  int64_t outside = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t row = 0; row < ranks[rank].size(); ++row) {
      const int64_t id = ranks[rank][row];
      if (id >= 0 && id < tokens) {
        sorted.push_back(id);
      } else if (++outside <= static_cast<int64_t>(kShownOfAKind)) {
        shown.push_back(fmt::format("rank {} row {} holds {}, which is outside", rank, row, id));
      }
    }
  }
  std::sort(sorted.begin(), sorted.end());

  int64_t repeated = 0, distinct = 0;
  std::vector<int64_t> lost;  // the first ones
  int64_t expected = 0;
  const auto lose_up_to = [&](int64_t end) {
    for (; expected < end && lost.size() < kShownFaults; ++expected) lost.push_back(expected);
  };
  for (size_t i = 0, next = 0; i < sorted.size(); i = next) {
    while (next < sorted.size() && sorted[next] == sorted[i]) ++next;
    ++distinct;
    const auto times = static_cast<int64_t>(next - i);
    if (times > 1 && ++repeated <= static_cast<int64_t>(kShownOfAKind))
      shown.push_back(describe_repeated(ranks, sorted[i], times, places));
    lose_up_to(sorted[i]);
    expected = sorted[i] + 1;
  }
  lose_up_to(tokens);
  for (size_t i = 0; i < lost.size() && shown.size() < kShownFaults; ++i)
    shown.push_back(places.describe(lost[i]) + " is lost");

  const std::string text = fmt::format("{}", fmt::join(shown, "; "));
  const int64_t count = outside + repeated + (tokens - distinct);
  const int64_t hidden = count - static_cast<int64_t>(shown.size());
  return hidden > 0 ? fmt::format("{}; and {} more", text, hidden) : text;
}

}  // namespace cpscope
