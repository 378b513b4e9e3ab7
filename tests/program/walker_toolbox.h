#pragma once

#include "reference/dense_oracle.h"
#include "reference/faulty_walker.h"
#include "reference/mask_predicate.h"
#include "reference/plan_walker.h"
#include "sim/faults/plan_mistakes.h"
#include "sim/run/toolbox.h"

namespace cpscope::tests {

/// The walker as the only executor, with both oracles and the witness of masks.
inline Toolbox make_walker_toolbox() {
  Toolbox toolbox;
  toolbox.executors.push_back(reference::make_plan_walker());
  toolbox.oracle = reference::dense_oracle();
  toolbox.watched_walker = reference::make_watched_walker;
  toolbox.plan_mistakes = visit_plan_mistakes;
  return toolbox;
}

}  // namespace cpscope::tests
