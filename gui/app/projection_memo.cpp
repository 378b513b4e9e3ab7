#include "gui/app/projection_memo.h"

#include "gui/app/app_state.h"
#include "gui/model/project.h"

namespace cpscope::gui {

const SharedProjection& ProjectionMemo::find(const SharedPlan& plan, const Target& target,
                                             bool in_background) {
  if (plan != plan_ || target != target_) {
    plan_ = plan;
    target_ = target;
    task_.cancel();
    const bool is_empty =
        plan == nullptr || std::holds_alternative<Nothing>(target) || !is_present(*plan, target);
    if (is_empty) {
      found_ = std::make_shared<const Projection>();
    } else if (in_background && plan->is_large()) {
      found_ = std::make_shared<const Projection>();
      task_.start([plan, target](TaskControl&) {
        return std::make_shared<const Projection>(project(target, *plan));
      });
    } else {
      found_ = std::make_shared<const Projection>(project(target, *plan));
    }
  }
  if (const auto result = task_.take()) found_ = *result;
  return found_;
}

}  // namespace cpscope::gui
