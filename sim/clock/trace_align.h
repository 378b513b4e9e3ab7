#pragma once

#include <cstdint>
#include <vector>

namespace cpscope {

/// A message or collective of a trace, in order of start.
struct AlignedSpan {
  int64_t bytes = -1;  // -1: unknown
  int64_t start_ns = 0, end_ns = 0;
  uint32_t kind = 0;  // one bit
};

/// What a plan's rank sends in one stage, in order of the plan.
struct AlignedStage {
  int64_t bytes = 0;                       // above 0
  int64_t earliest_ns = 0, latest_ns = 0;  // its spans lie between
  uint32_t kinds = 0;                      // bits of the kinds that can carry it out
};

/// Spans [first, end) of a stage. Nothing was found: first = end. `is_unknown`: several places are
/// possible.
struct AlignedPlace {
  int64_t first = 0, end = 0;
  bool is_unknown = false;

  bool is_found() const { return end > first; }
};

/// Cells of the largest table that align_stages makes, spans times stages; 4 bytes each.
inline constexpr int64_t kMostAlignedCells = int64_t{1} << 24;

/// Finds for each stage the spans that carried it out: spans in a row whose bytes sum to the
/// stage's, or to those of two stages in a row; or one span of unknown bytes. Spans and stages keep
/// their orders, and as many stages as possible are found. A stage is unknown where the first such
/// alignment and the last one differ. O(spans * stages).
std::vector<AlignedPlace> align_stages(const std::vector<AlignedSpan>& spans,
                                       const std::vector<AlignedStage>& stages);

}  // namespace cpscope
