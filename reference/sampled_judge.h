#pragma once

#include "sim/run/judge.h"

namespace cpscope::reference {

/// The sampled oracle over inputs that are held in memory; has the signature SampledJudge.
Result<Answer> judge_rows(const Scenario& scenario, const RunInputs& inputs,
                          const std::vector<int64_t>& query_tokens,
                          const std::vector<int64_t>& key_tokens, const RunControl& control);

}  // namespace cpscope::reference
