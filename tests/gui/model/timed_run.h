#pragma once

#include "gui/model/view.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <random>

namespace cpscope::tests {

/// Events of an invented clock: every item takes some time, and some ranks' transfers are exposed.
inline gui::RunView make_run(const gui::PlanIndex& index, std::mt19937_64& random) {
  gui::RunView run;
  run.name = "A: test";
  int64_t now = 0;
  for (const gui::StageRef& stage : index.stages()) {
    int64_t end = now;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ItemId id{stage.direction, stage.kind, i};
      const RankId rank = visit_item(index.plan(), id,
                                     Overload{[](const TransferItem& item) { return item.dst; },
                                              [](const auto& item) { return item.rank; }});
      const auto start = now + static_cast<int64_t>(random() % 50);
      const auto stop = start + static_cast<int64_t>(random() % 400);
      run.events.push_back({id, rank, StepId{stage.step}, start, stop});
      end = std::max(end, stop);
    }
    // Half of the stages overlap the next one.
    now = random() % 2 == 0 ? end : (now + end) / 2;
  }
  std::stable_sort(run.events.begin(), run.events.end(),
                   [](const ItemEvent& a, const ItemEvent& b) { return a.start_ns < b.start_ns; });
  return run;
}

}  // namespace cpscope::tests
