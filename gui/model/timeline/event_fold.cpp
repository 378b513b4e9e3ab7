#include "gui/model/timeline/event_fold.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace cpscope::gui {

void BusyTimes::add(int64_t start_ns, int64_t end_ns, int64_t event) {
  if (end_ns <= start_ns) return;
  if (!starts_.empty() && start_ns < ends_.back()) {
    ends_.back() = std::max(ends_.back(), end_ns);
    ++counts_.back();
    return;
  }
  before_.push_back(total());
  starts_.push_back(start_ns);
  ends_.push_back(end_ns);
  events_.push_back(event);
  counts_.push_back(1);
}

size_t BusyTimes::count_within(int64_t from, int64_t to) const {
  const auto first = std::lower_bound(ends_.begin(), ends_.end(), from) - ends_.begin();
  const auto end = std::upper_bound(starts_.begin(), starts_.end(), to) - starts_.begin();
  return static_cast<size_t>(std::max<std::ptrdiff_t>(0, end - first));
}

double BusyTimes::covered_before(double t) const {
  const auto it = std::partition_point(starts_.begin(), starts_.end(), [t](int64_t start) {
    return static_cast<double>(start) < t;
  });
  if (it == starts_.begin()) return 0;
  const auto i = static_cast<size_t>(it - starts_.begin()) - 1;
  return static_cast<double>(before_[i]) + std::min(t, static_cast<double>(ends_[i])) -
         static_cast<double>(starts_[i]);
}

void BusyTimes::cover_columns(double from, double width, std::span<float> columns) const {
  auto i = static_cast<size_t>(
      std::partition_point(ends_.begin(), ends_.end(),
                           [from](int64_t end) { return static_cast<double>(end) <= from; }) -
      ends_.begin());
  for (size_t c = 0; c < columns.size(); ++c) {
    const double lo = from + width * static_cast<double>(c), hi = lo + width;
    double covered = 0;
    for (; i < starts_.size() && static_cast<double>(starts_[i]) < hi; ++i) {
      covered += std::min(hi, static_cast<double>(ends_[i])) -
                 std::max(lo, static_cast<double>(starts_[i]));
      // An interval that continues also belongs to the next column.
      if (static_cast<double>(ends_[i]) > hi) break;
    }
    columns[c] += static_cast<float>(covered);
  }
}

BusyTimes subtract(const BusyTimes& times, const BusyTimes& hidden) {
  BusyTimes left;
  size_t h = 0;
  for (size_t i = 0; i < times.count(); ++i) {
    int64_t from = times.start(i);
    while (h < hidden.count() && hidden.end(h) <= from) ++h;
    for (size_t k = h; k < hidden.count() && hidden.start(k) < times.end(i); ++k) {
      left.add(from, hidden.start(k), times.first_event(i));
      from = std::max(from, hidden.end(k));
    }
    left.add(from, times.end(i), times.first_event(i));
  }
  return left;
}

double EventFold::computed(size_t first_rank, size_t end_rank, double from, double to) const {
  const auto before = [&](double t) {
    const double at = std::clamp(t / std::max(1e-9, bin_ns()), 0.0, static_cast<double>(kBins));
    const auto bin = std::min(static_cast<size_t>(at), static_cast<size_t>(kBins) - 1);
    const double share = at - static_cast<double>(bin);
    const auto sum_at = [&](size_t rank) {
      const size_t i = rank * (kBins + 1) + bin;
      return compute_area[i] + (compute_area[i + 1] - compute_area[i]) * share;
    };
    return sum_at(end_rank) - sum_at(first_rank);
  };
  return before(to) - before(from);
}

EventFold fold_events(std::span<const ItemEvent> events, const PlanIndex& plan, int64_t least_ns) {
  const int32_t num_ranks = plan.num_ranks();
  const size_t num_stages = plan.stages().size();
  EventFold fold;
  fold.last_ns = least_ns;
  fold.ranks.resize(static_cast<size_t>(num_ranks));
  fold.stage_start.assign(num_stages, std::numeric_limits<int64_t>::max());
  fold.stage_end.assign(num_stages, std::numeric_limits<int64_t>::min());
  for (size_t i = 0; i < events.size(); ++i) {
    const ItemEvent& event = events[i];
    const int32_t rank = to_index(event.rank);
    if (rank < 0 || rank >= num_ranks) continue;
    const EventLane lane = event.item.kind == StageKind::compute    ? EventLane::compute
                           : event.item.kind == StageKind::transfer ? EventLane::transfer
                                                                    : EventLane::other;
    fold.ranks[static_cast<size_t>(rank)].lanes[static_cast<size_t>(lane)].add(
        event.start_ns, event.end_ns, static_cast<int64_t>(i));
    fold.last_ns = std::max(fold.last_ns, event.end_ns);
    const int32_t stage = plan.stage_of(event.item);
    if (stage < 0) continue;
    auto& start = fold.stage_start[static_cast<size_t>(stage)];
    auto& end = fold.stage_end[static_cast<size_t>(stage)];
    start = std::min(start, event.start_ns);
    end = std::max(end, event.end_ns);
  }
  for (RankEvents& rank : fold.ranks)
    rank.exposed = subtract(rank.lanes[static_cast<size_t>(EventLane::transfer)],
                            rank.lanes[static_cast<size_t>(EventLane::compute)]);
  const size_t width = EventFold::kBins + 1;
  fold.compute_area.assign((fold.ranks.size() + 1) * width, 0);
  std::vector<float> bins(EventFold::kBins);
  for (size_t rank = 0; rank < fold.ranks.size(); ++rank) {
    std::fill(bins.begin(), bins.end(), 0.0F);
    fold.ranks[rank].lanes[0].cover_columns(0, fold.bin_ns(), bins);
    double sum = 0;
    for (size_t bin = 0; bin < bins.size(); ++bin) {
      sum += static_cast<double>(bins[bin]);
      fold.compute_area[(rank + 1) * width + bin + 1] =
          fold.compute_area[rank * width + bin + 1] + sum;
    }
  }
  return fold;
}

}  // namespace cpscope::gui
