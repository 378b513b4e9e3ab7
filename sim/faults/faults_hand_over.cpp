#include "sim/faults/catalogue_parts.h"
#include "sim/plan/layout.h"
#include "sim/plan/token_run.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Moves rows: row `token` of the result is row from[token] of the tensor.
void take_rows(const std::vector<int64_t>& from, Tensor& tensor) {
  if (tensor.values.empty()) return;
  const std::vector<double> given = tensor.values;
  const int64_t width = tensor.shape[1] * tensor.shape[2];
  for (int64_t token = 0; token < tensor.shape[0]; ++token)
    std::copy_n(given.data() + from[token] * width, width, tensor.values.data() + token * width);
}

/// Hands over every row of q, k, v and d_out from another place; self attention.
std::function<void(RunInputs&)> hand_over_from(std::vector<int64_t> from) {
  return [from = std::move(from)](RunInputs& inputs) {
    for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.d_out})
      take_rows(from, *tensor);
  };
}

/// The first rank that holds a row which came from elsewhere.
std::optional<FaultSite> first_changed_rank(const Plan& plan, const std::vector<int64_t>& from) {
  for (size_t rank = 0; rank < plan.q_lists.size(); ++rank) {
    for (const int64_t token : expand(plan.list(plan.q_lists[rank]))) {
      if (from[token] != token)
        return FaultSite{.is_load = true,
                         .kind = StageKind::transfer,
                         .rank = RankId{static_cast<int32_t>(rank)}};
    }
  }
  return std::nullopt;
}

std::optional<PlantedFault> plant_rows_from(const Plan& healthy, std::vector<int64_t> from,
                                            std::string what) {
  const auto site = first_changed_rank(healthy, from);
  if (!site) return std::nullopt;
  return PlantedFault{
      .site = *site, .what = std::move(what), .inputs = hand_over_from(std::move(from))};
}

/// Rank r was handed the r-th part of the packed buffer, and works on it as if it were its own part
/// of the layout.
std::optional<PlantedFault> plant_written_contiguous(const Plan& healthy) {
  std::vector<int64_t> from(static_cast<size_t>(healthy.layout.slots.tokens));
  int64_t next = 0;
  for (const RunListId list : healthy.q_lists) {
    for (const int64_t token : expand(healthy.list(list))) from[token] = next++;
  }
  return plant_rows_from(healthy, std::move(from),
                         "each rank was handed its part of a contiguous layout and takes it for "
                         "its part of this one");
}

}  // namespace

std::vector<Fault> hand_over_faults() {
  return {
      {.name = "layout_written_one_way_read_another",
       .field_class = "1",
       .place = FaultPlace::inputs,
       .detector = Detector::keys,
       .source = "THUDM/slime#1871",
       .wild = "One library dealt tokens contiguously, the next took them for zigzag. Shapes fit, "
               "the loss was a bit high, log-probabilities did not line up.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.parallel = "cp_size = 4\nlayout = \"contiguous\""}),
                              "the layout is the contiguous one"},
       .plant = plant_written_contiguous},
  };
}

}  // namespace cpscope
