#pragma once

#include "sim/run/judge.h"

namespace cpscope::reference {

/// Computes rows of attention with a mistake in it, in the form of AlteredJudge (sim/run/judge.h).
/// One key or query after the other, in double; shares the rotation with the dense oracle and
/// nothing else. Answers do not depend on the thread count.
Result<AlteredRows> judge_altered(const RunInputs& inputs, const AlteredAttention& altered,
                                  const AlteredRequest& request, const RunControl& control);

}  // namespace cpscope::reference
