#include "sim/plan/scale_reductions.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {

std::vector<ScaleReduction> scale_reductions(const Scenario& scenario, Direction direction) {
  const std::optional<Fp8>& fp8 = scenario.numerics.fp8;
  const bool is_backward = direction == Direction::backward;
  if (!fp8 || fp8->recipe == Fp8Recipe::mxfp8 || scenario.parallel.cp_size == 1) return {};
  if (is_backward && !scenario.numerics.backward) return {};
  constexpr int64_t kBytesOfAmax = 4;
  const bool is_delayed = fp8->recipe == Fp8Recipe::delayed;
  std::vector<ScaleReduction> reductions;
  const auto add = [&](std::vector<std::string_view> tensors) {
    reductions.push_back({.direction = direction,
                          .tensors = std::move(tensors),
                          .is_for_next = is_delayed,
                          .bytes = kBytesOfAmax * (scenario.parallel.cp_size - 1)});
  };
  if (is_backward)
    add({"d_out"});
  else
    add({"q", "k", "v"});
  if (!is_delayed) return reductions;
  if (is_backward) {
    add({"dS"});
    add({"dq", "dk", "dv"});
  } else {
    add({"P"});
    add({"out"});
  }
  return reductions;
}

std::vector<ScaleReduction> scale_reductions(const Scenario& scenario) {
  std::vector<ScaleReduction> both = scale_reductions(scenario, Direction::forward);
  for (ScaleReduction& one : scale_reductions(scenario, Direction::backward))
    both.push_back(std::move(one));
  return both;
}

std::string describe(const ScaleReduction& reduction, const Scenario& scenario) {
  return fmt::format(
      "{}, {}: the largest of {} over {} ranks, {} bytes a rank", to_name(reduction.direction),
      reduction.is_for_next ? "after the last step" : "before step 0",
      fmt::join(reduction.tensors, ", "), scenario.parallel.cp_size, reduction.bytes);
}

}  // namespace cpscope
