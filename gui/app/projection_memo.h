#pragma once

#include "gui/app/document/background.h"
#include "gui/model/plan_index.h"
#include "gui/model/view.h"

#include <memory>

namespace cpscope::gui {

using SharedProjection = std::shared_ptr<const Projection>;

/// Keeps the projection of a target while plan and target stay the same.
class ProjectionMemo {
 public:
  /// The projection of the target in the plan; empty when the plan is null or does not have the
  /// target. With in_background, the projection of a large plan comes later and is empty until
  /// then.
  const SharedProjection& find(const SharedPlan& plan, const Target& target, bool in_background);
  /// True while a projection is being computed.
  bool is_waiting() const { return task_.is_running(); }

 private:
  SharedPlan plan_;
  Target target_;
  SharedProjection found_ = std::make_shared<const Projection>();
  Task<SharedProjection> task_;
};

}  // namespace cpscope::gui
