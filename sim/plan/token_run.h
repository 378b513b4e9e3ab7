#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// An arithmetic run of ids: begin, begin + stride, ... below end. stride >= 1.
/// Used for packed padded token ids and for rows of a local buffer.
struct TokenRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t stride = 1;

  constexpr int64_t count() const {
    if (end <= begin) return 0;
    // Nearly all runs have unit stride, and plans count runs by the ten million, so this avoids the
    // division.
    return stride == 1 ? end - begin : (end - begin + stride - 1) / stride;
  }
  constexpr int64_t at(int64_t index) const { return begin + index * stride; }
  constexpr int64_t last() const { return at(count() - 1); }
  friend constexpr bool operator==(const TokenRun&, const TokenRun&) = default;
};

int64_t count_ids(std::span<const TokenRun> runs);

/// Appends `run`, joined to the last run if the two form one arithmetic run. Empty runs are
/// dropped.
void append_run(std::vector<TokenRun>& runs, TokenRun run);

/// The shortest greedy run list that yields `ids` in this order.
std::vector<TokenRun> runs_of(std::span<const int64_t> ids);

/// The ids written out, in order.
std::vector<int64_t> expand(std::span<const TokenRun> runs);

/// The ids at rows [begin, end) of the list, as runs.
std::vector<TokenRun> slice_rows(std::span<const TokenRun> runs, int64_t begin, int64_t end);

/// True if two run lists give the same ids in the same order. O(runs), never expanded.
bool same_ids(std::span<const TokenRun> a, std::span<const TokenRun> b);

}  // namespace cpscope
