#pragma once

#include "gui/model/plan_index.h"
#include "sim/plan/item_event.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::gui {

/// Ascending time intervals without overlap, and how much of any window they cover.
class BusyTimes {
 public:
  /// Adds an interval that does not begin before the last one began. Overlapping ones are joined;
  /// intervals that only touch stay separate. `event` is the first event of a new interval.
  void add(int64_t start_ns, int64_t end_ns, int64_t event);

  size_t count() const { return starts_.size(); }
  int64_t start(size_t i) const { return starts_[i]; }
  int64_t end(size_t i) const { return ends_[i]; }
  /// The first event of an interval, and the number of joined events.
  int64_t first_event(size_t i) const { return events_[i]; }
  int32_t num_events(size_t i) const { return counts_[i]; }
  int64_t total() const {
    return before_.empty() ? 0 : before_.back() + ends_.back() - starts_.back();
  }
  /// Number of intervals that touch [from, to].
  size_t count_within(int64_t from, int64_t to) const;
  /// Nanoseconds covered before t. O(log intervals).
  double covered_before(double t) const;
  double covered(double from, double to) const { return covered_before(to) - covered_before(from); }
  /// [column] nanoseconds covered in columns of equal width starting at `from`. O(intervals +
  /// columns).
  void cover_columns(double from, double width, std::span<float> columns) const;

 private:
  friend BusyTimes subtract(const BusyTimes& times, const BusyTimes& hidden);
  std::vector<int64_t> starts_, ends_, events_, before_;
  std::vector<int32_t> counts_;
};

/// The parts of `times` that `hidden` does not cover.
BusyTimes subtract(const BusyTimes& times, const BusyTimes& hidden);

/// The lanes of a rank in the timeline.
enum class EventLane : uint8_t { compute, transfer, other };

/// The events of one rank.
struct RankEvents {
  std::array<BusyTimes, 3> lanes;  // [EventLane]
  BusyTimes exposed;               // transfer time that overlaps no compute of the rank
};

/// Events of a run by rank and lane. Made once per run.
struct EventFold {
  std::vector<RankEvents> ranks;
  int64_t last_ns = 0;  // the end of the run
  // [stage of PlanIndex::stages] from the first start to the last end of its items on any rank;
  // start > end if none was timed.
  std::vector<int64_t> stage_start, stage_end;
  // Compute time of lower ranks in earlier bins, for heat maps: [rank + 1][kBins + 1].
  std::vector<double> compute_area;

  static constexpr int32_t kBins = 1024;
  double bin_ns() const { return static_cast<double>(last_ns) / kBins; }
  /// Nanoseconds that ranks [first, end) compute in a window. Exact at bins, otherwise
  /// interpolated.
  double computed(size_t first_rank, size_t end_rank, double from, double to) const;
};

/// Events of items that the plan does not have are in their rank's lane, but in no stage. The fold
/// ends at `least_ns` or at the last event, whichever is later.
EventFold fold_events(std::span<const ItemEvent> events, const PlanIndex& plan,
                      int64_t least_ns = 0);

}  // namespace cpscope::gui
