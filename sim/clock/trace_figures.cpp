#include "sim/clock/trace_figures.h"

#include <algorithm>
#include <limits>
#include <map>

namespace cpscope {
namespace {

/// In microseconds from `origin_ns`, cut to what lies before `end_ns`.
void add_stretch(std::vector<BusyTime>& list, TimeStretch time, int64_t origin_ns, int64_t end_ns) {
  time.start_ns = std::max(time.start_ns, origin_ns);
  time.end_ns = std::min(time.end_ns, end_ns);
  if (time.end_ns <= time.start_ns) return;
  const double begin = static_cast<double>(time.start_ns - origin_ns) * 1e-3;
  list.push_back({begin, static_cast<double>(time.end_ns - origin_ns) * 1e-3, begin});
}

}  // namespace

PassFigures figures_of(const PassWork& work) {
  PassFigures figures;
  int64_t origin = std::numeric_limits<int64_t>::max(), end = 0;
  for (const auto* list : {&work.attention, &work.transfers}) {
    for (const StepStretch& stretch : *list) {
      if (stretch.step < 0) continue;
      origin = std::min(origin, stretch.time.start_ns);
      end = std::max(end, stretch.time.end_ns);
    }
  }
  if (origin >= end) return figures;
  std::vector<BusyTime> attention, transfers, busy;
  std::map<int32_t, std::vector<BusyTime>> attention_of, transfers_of;
  for (const StepStretch& stretch : work.attention) {
    add_stretch(attention, stretch.time, origin, end);
    if (stretch.step >= 0) add_stretch(attention_of[stretch.step], stretch.time, origin, end);
  }
  for (const StepStretch& stretch : work.transfers) {
    add_stretch(transfers, stretch.time, origin, end);
    if (stretch.step >= 0) add_stretch(transfers_of[stretch.step], stretch.time, origin, end);
  }
  for (const TimeStretch& stretch : work.other) add_stretch(busy, stretch, origin, end);
  attention = joined(std::move(attention));
  transfers = joined(std::move(transfers));
  figures.total_us = static_cast<double>(end - origin) * 1e-3;
  figures.attention_us = length_of(attention);
  figures.transfer_us = length_of(transfers);
  figures.exposed_us = uncovered_us(transfers, attention);
  std::vector<BusyTime> named = attention;  // attention and transfers
  named.insert(named.end(), transfers.begin(), transfers.end());
  named = joined(std::move(named));
  figures.other_us = uncovered_us(joined(std::move(busy)), named);
  figures.idle_us = std::max(
      0.0, figures.total_us - figures.attention_us - figures.exposed_us - figures.other_us);

  std::map<int32_t, StepFigures> steps;
  double before = 0;  // end of the attention of the steps before
  for (auto& [step, list] : attention_of) {
    const std::vector<BusyTime> own = joined(std::move(list));
    StepFigures& of_step = steps[step];
    if (own.empty()) continue;  // it took no time
    of_step.attention_us = length_of(own);
    of_step.gap_us = std::max(0.0, own.front().begin - before);
    before = std::max(before, own.back().end);
  }
  for (auto& [step, list] : transfers_of) {
    const std::vector<BusyTime> own = joined(std::move(list));
    StepFigures& of_step = steps[step];
    of_step.transfer_us = length_of(own);
    of_step.exposed_us = uncovered_us(own, attention);
  }
  for (auto& [step, of_step] : steps) {
    of_step.step = StepId{step};
    figures.steps.push_back(of_step);
  }
  return figures;
}

}  // namespace cpscope
