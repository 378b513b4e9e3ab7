#include "gui/app/caption.h"

#include <fmt/format.h>

namespace cpscope::gui {

Spans make_caption(const PlanIndex& plan, Moment moment, int32_t focus_rank) {
  const int32_t number = plan.step_of_stage(moment.first_stage);
  const StepRef& step = plan.steps()[static_cast<size_t>(number)];
  const int32_t steps = plan.pass(step.is_backward).num_steps;
  return {{fmt::format("Step {} of {}, {}.", step.step + 1, steps,
                       step.is_backward ? "backward" : "forward"),
           StepTarget{number}, true},
          {" ", {}, false},
          {fmt::format("Rank {}", focus_rank), RankTarget{focus_rank}, false},
          {" works.", {}, false}};
}

std::string to_text(const Spans& spans) {
  std::string text;
  for (const Span& span : spans) text += span.text;
  return text;
}

}  // namespace cpscope::gui
