#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/target.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::gui {

/// A piece of a sentence. With a target it can be hovered and clicked.
struct Span {
  std::string text;
  Target target;
  bool is_strong = false;

  friend bool operator==(const Span&, const Span&) = default;
};
using Spans = std::vector<Span>;

/// Says in sentences what happens at a moment and why; every number comes from the plan. Describes
/// the focus rank where ranks differ.
Spans make_caption(const PlanIndex& plan, Moment moment, int32_t focus_rank);

/// Keeps the last caption while its inputs do not change.
class CaptionMemo {
 public:
  const Spans& find(const SharedPlan& plan, Moment moment, int32_t focus_rank);

 private:
  SharedPlan plan_;
  Moment moment_;
  int32_t focus_rank_ = -1;
  Spans caption_;
};

/// The text without its targets.
std::string to_text(const Spans& spans);

}  // namespace cpscope::gui
