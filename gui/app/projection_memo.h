#pragma once

#include "gui/app/background.h"
#include "gui/model/plan_index.h"
#include "gui/model/view.h"

#include <memory>

namespace cpscope::gui {

using SharedProjection = std::shared_ptr<const Projection>;

/// Keeps what a target touches while plan and target stay the same.
class ProjectionMemo {
 public:
  /// What the target touches in the plan; nothing when the plan lacks it or is null. In the
  /// background, the projection of a large plan comes later: until then it is empty.
  const SharedProjection& find(const SharedPlan& plan, const Target& target, bool in_background);
  /// Is one on its way?
  bool is_waiting() const { return task_.is_running(); }

 private:
  SharedPlan plan_;
  Target target_;
  SharedProjection found_ = std::make_shared<const Projection>();
  Task<SharedProjection> task_;
};

}  // namespace cpscope::gui
