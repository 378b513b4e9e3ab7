#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The first merge of a second partial into an out.
std::optional<PlantedFault> plant_empty_merge(const Plan& healthy) {
  const auto index = find_item(healthy.forward.merges, [](const MergeItem& item) {
    return item.order > 0 && item.partial != kNoBuffer;
  });
  if (!index) return std::nullopt;
  const MergeItem& item = healthy.forward.merges[static_cast<size_t>(*index)];
  return PlantedFault{.site = forward_site(StageKind::merge, item.rank, item.step, *index),
                      .what = "lse of rows that saw nothing, -inf, are subtracted from one another",
                      .mistake = plant_mistake(Mistake::empty_merged_as_number, {})};
}

}  // namespace

std::vector<Fault> executor_faults() {
  return {
      {.name = "empty_rows_merge_to_nan",
       .field_class = "13, D8",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/Megatron-LM#1764",
       .wild = "A row that saw no key in two steps had lse -inf twice; their merge is NaN, and the "
               "loss was NaN on some ranks.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.attention = "attn_mask_type = \"no_mask\"",
                                             .batch = "lengths = [64]"}),
                              "every row sees keys in every step"},
       .plant = plant_empty_merge},
  };
}

}  // namespace cpscope
