#include "sim/plan/order/kv_interleave.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

namespace cpscope {
namespace {

bool is_explained(const OwnedKeys& keys, int64_t interleave, int64_t ranks) {
  if (rank_of_position(keys.begin, interleave, ranks) != keys.rank) return false;
  return ranks == 1 || (keys.end - 1) / interleave == keys.begin / interleave;
}

/// How many of the keys are on the rank that blocks of this size give them.
int64_t count_explained(const OwnedKeys& keys, int64_t interleave, int64_t ranks) {
  const auto count_below = [&](int64_t position) {
    return keys_on_rank(position, interleave, ranks, keys.rank);
  };
  return count_below(keys.end) - count_below(keys.begin);
}

/// The first size from which on all are the same: every key is in the first block.
int64_t first_without_effect(const std::vector<OwnedKeys>& keys) {
  int64_t most = 1;
  for (const OwnedKeys& some : keys) most = std::max(most, some.end);
  return most;
}

}  // namespace

int64_t keys_on_rank(int64_t length, int64_t interleave, int64_t ranks, int64_t rank) {
  const int64_t round = interleave * ranks, rest = length % round;
  return length / round * interleave + std::clamp<int64_t>(rest - rank * interleave, 0, interleave);
}

std::vector<InterleaveRange> find_interleaves(std::vector<OwnedKeys> keys, int64_t ranks,
                                              int64_t block_size) {
  const int64_t all_alike = first_without_effect(keys),
                most = block_size > 0 ? block_size : all_alike;
  // Keys at the end of long requests rule most sizes out, so these are tried first; requests of the
  // same positions say the same.
  std::sort(keys.begin(), keys.end(), std::greater<>());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::vector<InterleaveRange> found;
  for (int64_t size = 1; size <= most; ++size) {
    if (block_size > 0 && block_size % size != 0) continue;
    const bool explains_all = std::all_of(keys.begin(), keys.end(), [&](const OwnedKeys& some) {
      return is_explained(some, size, ranks);
    });
    if (!explains_all) continue;
    if (!found.empty() && found.back().last == size - 1) {
      found.back().last = size;
    } else {
      found.push_back({size, size});
    }
  }
  if (block_size == 0 && !found.empty() && found.back().last == all_alike) found.back().last = -1;
  return found;
}

int64_t guess_interleave(const std::vector<OwnedKeys>& keys, int64_t ranks, int64_t block_size) {
  const int64_t most = block_size > 0 ? block_size : first_without_effect(keys);
  std::set<int64_t> sizes;
  for (int64_t size = 1; size <= most; size *= 2) sizes.insert(size);
  std::map<int64_t, int64_t> lengths;
  for (const OwnedKeys& some : keys) ++lengths[some.end - some.begin];
  std::vector<std::pair<int64_t, int64_t>> frequent;
  for (const auto& [length, count] : lengths) frequent.emplace_back(-count, length);
  std::sort(frequent.begin(), frequent.end());
  constexpr size_t kTried = 16;
  for (size_t i = 0; i < std::min(kTried, frequent.size()); ++i) sizes.insert(frequent[i].second);
  int64_t best = 1, most_explained = -1;
  for (const int64_t size : sizes) {
    if (block_size > 0 && block_size % size != 0) continue;
    int64_t explained = 0;
    for (const OwnedKeys& some : keys) explained += count_explained(some, size, ranks);
    if (explained <= most_explained) continue;
    most_explained = explained;
    best = size;
  }
  return best;
}

std::string describe_interleaves(const std::vector<InterleaveRange>& ranges) {
  std::string text;
  constexpr size_t kShown = 16;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i == kShown) return text + fmt::format(" and {} more", ranges.size() - kShown);
    const auto [first, last] = ranges[i];
    text += i == 0 ? "" : ", ";
    text += last < 0        ? fmt::format("{} or more", first)
            : first == last ? fmt::to_string(first)
                            : fmt::format("{} to {}", first, last);
  }
  return text;
}

}  // namespace cpscope
