#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// Consecutive tokens of a request whose keys are on one rank.
struct OwnedKeys {
  int64_t begin = 0, end = 0;  // positions in the request
  int64_t rank = 0;
  friend auto operator<=>(const OwnedKeys&, const OwnedKeys&) = default;
};

/// Interleave sizes from first to last; the last one is -1 where any larger one is possible.
struct InterleaveRange {
  int64_t first = 1, last = 1;
  friend bool operator==(const InterleaveRange&, const InterleaveRange&) = default;
};

/// The rank that holds the key of a position: blocks of `interleave` positions, round robin.
/// Source: vLLM's slot mapping under decode context parallelism (cp_kv_cache_interleave_size).
constexpr int64_t rank_of_position(int64_t position, int64_t interleave, int64_t ranks) {
  return position / interleave % ranks;
}

/// Keys of positions 0 to length - 1 on a rank (vLLM, get_dcp_local_seq_lens).
int64_t keys_on_rank(int64_t length, int64_t interleave, int64_t ranks, int64_t rank);

/// All interleaves, ascending, under which every key is on its rank; empty if there is none. With a
/// block_size above 0 they divide it, as vLLM requires. The keys of a batch need not be sorted.
std::vector<InterleaveRange> find_interleaves(std::vector<OwnedKeys> keys, int64_t ranks,
                                              int64_t block_size);

/// The interleave under which the most keys are on their ranks, of those that lengths of `keys` and
/// powers of two suggest: what the others are compared with if none explains all.
int64_t guess_interleave(const std::vector<OwnedKeys>& keys, int64_t ranks, int64_t block_size);

/// "1", "2 to 4, 8 or more".
std::string describe_interleaves(const std::vector<InterleaveRange>& ranges);

}  // namespace cpscope
