#include "sim/clock/measured.h"

#include "sim/clock/event_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace cpscope {
namespace {

/// Sums of an ItemError while items are added.
struct Tally {
  int64_t items = 0, timed = 0;
  TimePair sum;
  double relative = 0;

  void add(double predicted_us, double measured_us) {
    ++items;
    sum.predicted_us += predicted_us;
    sum.measured_us += measured_us;
    if (measured_us <= 0) return;
    ++timed;
    relative += std::abs(predicted_us - measured_us) / measured_us;
  }
  ItemError finish(StageKind kind, StepId step) const {
    const double mean = timed == 0 ? std::numeric_limits<double>::quiet_NaN()
                                   : 100 * relative / static_cast<double>(timed);
    return {kind, step, items, sum, mean};
  }
};

/// Microseconds from the first begin to the last end of a pass; 0 without events.
double span_us(std::span<const ItemEvent> events, Direction direction) {
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (const ItemEvent& event : events) {
    if (event.item.direction != direction) continue;
    first = std::min(first, event.start_ns);
    last = std::max(last, event.end_ns);
  }
  return first > last ? 0 : static_cast<double>(last - first) * 1e-3;
}

double duration_us(const ItemEvent& event) {
  return static_cast<double>(event.end_ns - event.start_ns) * 1e-3;
}

PassError compare_pass(const Plan& plan, Direction direction, std::span<const ItemEvent> predicted,
                       std::span<const ItemEvent> measured) {
  PassError error;
  error.total = {span_us(predicted, direction), span_us(measured, direction)};
  const EventTable seen(plan, direction, measured);
  std::array<Tally, 5> kinds;
  std::map<std::pair<int32_t, StageKind>, Tally> steps;
  int64_t matched = 0;
  for (const ItemEvent& event : predicted) {
    const ItemId& item = event.item;
    if (item.direction != direction) continue;
    const int64_t other = seen.find(item.kind, item.index);
    if (other == EventTable::kNone) {
      ++error.only_predicted;
      continue;
    }
    ++matched;
    const double predicted_us = duration_us(event);
    const double measured_us = duration_us(measured[static_cast<size_t>(other)]);
    kinds[static_cast<size_t>(item.kind)].add(predicted_us, measured_us);
    if (item.kind == StageKind::compute || item.kind == StageKind::transfer)
      steps[{to_index(event.step), item.kind}].add(predicted_us, measured_us);
  }
  const auto of_pass = std::count_if(measured.begin(), measured.end(), [&](const ItemEvent& event) {
    return event.item.direction == direction;
  });
  error.only_measured = std::max<int64_t>(0, of_pass - matched);
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    if (kinds[kind].items > 0)
      error.kinds.push_back(kinds[kind].finish(static_cast<StageKind>(kind), StepId{-1}));
  }
  for (const auto& [key, tally] : steps)
    error.steps.push_back(tally.finish(key.second, StepId{key.first}));
  return error;
}

}  // namespace

double TimePair::error_percent() const {
  return measured_us > 0 ? 100 * (predicted_us - measured_us) / measured_us
                         : std::numeric_limits<double>::quiet_NaN();
}

MeasuredError compare_with_measured(const Plan& plan, std::span<const ItemEvent> predicted,
                                    std::span<const ItemEvent> measured) {
  return {compare_pass(plan, Direction::forward, predicted, measured),
          compare_pass(plan, Direction::backward, predicted, measured)};
}

}  // namespace cpscope
