#pragma once

#include "sim/clock/candidates.h"
#include "sim/clock/clock.h"
#include "sim/plan/plan.h"

#include <string>

namespace cpscope {

/// Relative difference of predicted times below which the model cannot tell two ways apart.
inline constexpr double kSameTime = 0.02;
/// Work of the busiest rank over the mean up to which ranks have equal work.
inline constexpr double kEvenWork = 1.005;

/// The name of a way to split and move a batch.
std::string name_way(const Parallel& way);

/// Time of both passes by kind, mean over the ranks.
MeanTimes mean_times(const Timeline& timeline);

/// The kind of time that the slower of two has most of, compared with the faster one: "0.12 ms more
/// exposed transfers"; empty if it has more of none. `is_uneven`: its ranks have unequal work.
std::string explain_slower(const MeanTimes& slow, const MeanTimes& fast, bool is_uneven);

/// True if it pads more than this fraction of its query rows, and its rows are so many that the
/// other layers of a model take longer for it.
bool pads_too_much(const Candidate& candidate, double most_padding);

/// Fraction of query rows that are padding.
double padding_share_of(const Plan& plan);

}  // namespace cpscope
