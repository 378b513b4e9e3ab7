#pragma once

#include "sim/clock/candidates.h"
#include "sim/clock/clock.h"
#include "sim/plan/plan.h"

#include <string>

namespace cpscope {

/// The name of a way to split and move a batch.
std::string name_way(const Parallel& way);

/// Time of both passes by kind, mean over the ranks.
MeanTimes mean_times(const Timeline& timeline);

/// Fraction of query rows that are padding.
double padding_share_of(const Plan& plan);

}  // namespace cpscope
