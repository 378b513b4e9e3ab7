#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

std::optional<PlantedFault> plant_stale_kv(const Plan& healthy) {
  Plan plan = healthy;
  std::optional<FaultSite> first;
  for (size_t i = 0; i < plan.backward.computes.size(); ++i) {
    ComputeItem& item = plan.backward.computes[i];
    const BufferId home = plan.home[to_index(item.rank)].kv;
    if (item.kv == home || plan.buffer(home).rows < plan.rows(item.kv_tokens)) continue;
    item.kv = home;
    if (item.num_slices > 0 && !first)
      first = backward_site(StageKind::compute, item.rank, item.step, static_cast<int64_t>(i));
  }
  if (!first) return std::nullopt;
  return PlantedFault{.site = *first,
                      .what = "every backward step works on the rank's own K and V",
                      .plan = std::move(plan)};
}

}  // namespace

std::vector<Fault> backward_faults() {
  return {
      {.name = "stale_kv_in_backward",
       .field_class = "5",
       .place = FaultPlace::plan,
       .detector = Detector::gradient,
       .source = "huggingface/diffusers#14265",
       .wild = "The ring's backward read the K and V of step 0 in every step. Outputs were right, "
               "gradients silently wrong, through a release.",
       .scenario = scenario_text({}),
       .blind =
           BlindScenario{scenario_text({.parallel = "cp_size = 1"}), "one rank has no other step"},
       .plant = plant_stale_kv},
  };
}

}  // namespace cpscope
