#pragma once

#include "sim/plan/item_event.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// A predicted time and the measured one.
struct TimePair {
  double predicted_us = 0, measured_us = 0;

  /// (predicted - measured) / measured in percent; NaN without a measured time.
  double error_percent() const;
};

/// Items of one kind, of a whole pass or of one step, that are both predicted and measured.
struct ItemError {
  StageKind kind{};
  StepId step{-1};  // -1: of all steps
  int64_t items = 0;
  TimePair sum;  // of their durations
  /// Mean over the items of |predicted - measured| / measured, in percent; items that took no
  /// measurable time are left out.
  double mean_absolute_percent = 0;
};

struct PassError {
  TimePair total;                // from the first begin of an item to the last end of one
  std::vector<ItemError> kinds;  // by StageKind; kinds without items are left out
  std::vector<ItemError> steps;  // computes and transfers, by step, then StageKind
  int64_t only_predicted = 0;    // items that only one side has
  int64_t only_measured = 0;
};

struct MeasuredError {
  PassError forward, backward;
};

/// Compares predicted and measured times item by item. The events must be of items that the plan
/// has (sim/run/record/record_match.h); if an item has several events, the first counts.
MeasuredError compare_with_measured(const Plan& plan, std::span<const ItemEvent> predicted,
                                    std::span<const ItemEvent> measured);

}  // namespace cpscope
