#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"
#include "sim/plan/visit_items.h"

#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// dtype fp8 with a recipe.
std::string fp8_of(const std::string& recipe, int seed = 3) {
  return fmt::format("dtype = \"fp8\"\nseed = {}\n[fp8]\nrecipe = \"{}\"", seed, recipe);
}

constexpr const char* kFp8Heads = "heads = 2\nkv_heads = 1\nhead_dim = 64";

/// A mistake whose first effect is in the first compute that has work.
std::optional<PlantedFault> plant_in_first_compute(const Plan& healthy, Mistake mistake,
                                                   std::string what) {
  const auto& items = healthy.forward.computes;
  const auto index = find_item(items, [](const ComputeItem& item) { return item.num_slices > 0; });
  if (!index || !healthy.scenario.numerics.fp8) return std::nullopt;
  const ComputeItem& item = items[static_cast<size_t>(*index)];
  return PlantedFault{.site = forward_site(StageKind::compute, item.rank, item.step, *index),
                      .what = std::move(what),
                      .mistake = plant_mistake(mistake, {})};
}

/// A mistake in what is quantised before the first step; rank 0 is the first that differs.
FaultSite load_site() { return {.item = {}, .rank = RankId{0}, .step = {}, .is_load = true}; }

std::optional<PlantedFault> plant_receivers_scale(const Plan& healthy) {
  const Parallel& parallel = healthy.scenario.parallel;
  const bool has_one_scale =
      !has_head_groups(parallel.comm_type) || parallel.a2a_size == parallel.cp_size;
  if (has_one_scale || !healthy.scenario.numerics.fp8) return std::nullopt;
  return PlantedFault{.site = load_site(),
                      .what =
                          "the groups that exchange heads agree on a scale each, and the ring "
                          "multiplies with the receiver's",
                      .mistake = plant_mistake(Mistake::fp8_receivers_scale, {})};
}

std::optional<PlantedFault> plant_key_scales(const Plan& healthy) {
  return plant_in_first_compute(healthy, Mistake::fp8_key_scales_of_values,
                                "blocks of v are multiplied with the descales of blocks of k");
}

std::optional<PlantedFault> plant_scale_for_descale(const Plan& healthy) {
  const auto& items = healthy.forward.transfers;
  const auto index = find_item(items, [](const TransferItem& item) {
    return item.payload == Payload::kv && item.link != LinkClass::self && item.dst == RankId{0};
  });
  if (!index || !healthy.scenario.numerics.fp8) return std::nullopt;
  const TransferItem& item = items[static_cast<size_t>(*index)];
  return PlantedFault{.site = forward_site(StageKind::transfer, item.dst, item.step, *index),
                      .what = "received K and V are multiplied with the scale",
                      .mistake = plant_mistake(Mistake::fp8_scale_for_descale, {})};
}

std::optional<PlantedFault> plant_stale_scale(const Plan& healthy) {
  if (!healthy.scenario.numerics.fp8) return std::nullopt;
  return PlantedFault{.site = load_site(),
                      .what =
                          "the amax of q, k and v is that of a step with values a quarter as "
                          "large",
                      .inputs = [](RunInputs& inputs) { inputs.fp8.qkv /= 4; }};
}

std::optional<PlantedFault> plant_unscaled_weights(const Plan& healthy) {
  return plant_in_first_compute(healthy, Mistake::fp8_weights_unscaled,
                                "P is cast without its scale of 448");
}

std::optional<PlantedFault> plant_rounded_sum(const Plan& healthy) {
  return plant_in_first_compute(healthy, Mistake::fp8_rounded_weights_summed,
                                "the row sum is that of P after its cast");
}

std::optional<PlantedFault> plant_padding_in_amax(const Plan& healthy) {
  const auto& items = healthy.forward.computes;
  const auto index = find_item(items, [](const ComputeItem& item) { return item.num_slices > 0; });
  if (!index || !healthy.scenario.numerics.fp8) return std::nullopt;
  const ComputeItem& item = items[static_cast<size_t>(*index)];
  return PlantedFault{.site = forward_site(StageKind::compute, item.rank, item.step, *index),
                      .what =
                          "the amax of out was taken over rows of padding, which hold whatever "
                          "memory held",
                      .inputs = [](RunInputs& inputs) { inputs.fp8.out = 1e5; }};
}

std::optional<PlantedFault> plant_crossing_blocks(const Plan& healthy) {
  return plant_in_first_compute(healthy, Mistake::fp8_blocks_cross_documents,
                                "blocks of 32 rows reach over the end of a document into padding");
}

std::optional<PlantedFault> plant_gradients_in_e4m3(const Plan& healthy) {
  const std::optional<Fp8>& fp8 = healthy.scenario.numerics.fp8;
  if (!fp8 || fp8->format == Fp8Format::e4m3) return std::nullopt;
  return PlantedFault{.site = load_site(),
                      .what = "d_out and dS are cast to E4M3 in place of E5M2",
                      .mistake = plant_mistake(Mistake::fp8_gradients_in_e4m3, {})};
}

}  // namespace

std::vector<Fault> fp8_faults() {
  const std::string ring = "cp_size = 4", groups = "cp_size = 4\ncp_comm_type = \"a2a+p2p\"",
                    padded = "lengths = [61, 130, 97]\nslots = [64, 136, 104]";
  const auto text = [&](const std::string& recipe, const std::string& parallel,
                        const std::string& batch = "lengths = [61, 130, 97]",
                        const std::string& attention = "", const std::string& heads = kFp8Heads) {
    return scenario_text({.attention = attention,
                          .batch = batch,
                          .parallel = parallel,
                          .numerics = fp8_of(recipe),
                          .heads = heads});
  };
  const BlindScenario one_rank{text("delayed", "cp_size = 1"), "one rank owns every key"};
  const BlindScenario other_dtype{scenario_text({}), "nothing is cast to 8 bits"};
  return {
      {.name = "fp8_dkv_summed_where_computed",
       .field_class = "F1",
       .place = FaultPlace::plan,
       .detector = Detector::gradient,
       .source = "NVIDIA/TransformerEngine PR#2012",
       .wild =
           "On two H100, dk of the FP8 ring was 58 % and dv 51 % off (2.20.2), where all-to-all "
           "was right.",
       .scenario = text("delayed", ring),
       .blind = one_rank,
       .plant = plant_dkv_summed_at_home},
      {.name = "fp8_receivers_scale",
       .field_class = "F2",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine, context_parallel.py: amax over cp_group[0]",
       .wild = "In a2a+p2p the amax is reduced over the all-to-all group alone, and the ring "
               "carries raw bytes between groups. Read in the source, not run.",
       // The second group has 1.46 times the amax of the first.
       .scenario = scenario_text({.batch = "lengths = [16]",
                                  .parallel = groups,
                                  .numerics = fp8_of("current", 302),
                                  .heads = kFp8Heads}),
       .blind = BlindScenario{text("current", ring), "all ranks agree on one scale"},
       .plant = plant_receivers_scale},
      {.name = "fp8_key_scales_of_values",
       .field_class = "F3",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "arXiv:2407.08608, sec. 3.3: a scale each for q, k and v",
       .wild = "A kernel multiplies v with the descale of k; with equal scales nothing shows it.",
       .scenario = text("mxfp8", ring),
       .blind = other_dtype,
       .plant = plant_key_scales},
      {.name = "fp8_scale_for_descale",
       .field_class = "F4",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine, Float8Tensor: scale_inv and scale",
       .wild = "Bytes that arrived were multiplied with the scale in place of its reciprocal.",
       .scenario = text("current", ring),
       .blind = one_rank,
       .plant = plant_scale_for_descale},
      {.name = "fp8_stale_scale",
       .field_class = "F5",
       .place = FaultPlace::inputs,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine, DelayedScaling",
       .wild = "After an outlier the scale of the step before is too large, and the largest values "
               "become 448.",
       .scenario = text("delayed", ring),
       .blind = other_dtype,
       .plant = plant_stale_scale},
      {.name = "fp8_weights_unscaled",
       .field_class = "F6",
       .place = FaultPlace::executor,
       .detector = Detector::gradient,
       .source = "NVIDIA/cudnn-frontend, FP8 attention: scale_S",
       .wild = "P below 2^-6 is subnormal in E4M3: without a scale most of a long row is lost.",
       .scenario = text("current", ring, "lengths = [700]"),
       .blind = other_dtype,
       .plant = plant_unscaled_weights},
      {.name = "fp8_rounded_weights_summed",
       .field_class = "F7",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/cudnn-frontend, FP8 attention: row sum",
       .wild = "The row sum of the rounded P shifts lse and out by up to half a rounding.",
       .scenario = text("current", ring),
       .blind = other_dtype,
       .plant = plant_rounded_sum},
      {.name = "fp8_amax_over_padding",
       .field_class = "F8",
       .place = FaultPlace::inputs,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine PR#2596",
       .wild = "Rows of padding that no kernel writes entered the amax of out, and its scale left "
               "nothing of the real rows.",
       .scenario = text("delayed", ring, padded),
       .blind = BlindScenario{text("current", ring, padded), "out is not cast"},
       .plant = plant_padding_in_amax},
      {.name = "fp8_blocks_cross_documents",
       .field_class = "F9",
       .place = FaultPlace::executor,
       .detector = Detector::output,
       .source = "NVIDIA/TransformerEngine, MXFP8: no THD",
       .wild = "A block of 32 tokens reached into padding that held NaN, and all of it became NaN.",
       .scenario = text("mxfp8", ring, padded),
       .blind = BlindScenario{text("current", ring, padded), "a tensor has one scale"},
       .poison = true,
       .plant = plant_crossing_blocks},
      {.name = "fp8_gradients_in_e4m3",
       .field_class = "F10",
       .place = FaultPlace::executor,
       .detector = Detector::gradient,
       .source = "arXiv:2209.05433: E5M2 for gradients",
       .wild = "dS of long rows is smaller than E4M3's least value.",
       .scenario = text("current", "cp_size = 1", "lengths = [8]\nkv_lengths = [32768]",
                        "attn_mask_type = \"no_mask\"", "heads = 1\nhead_dim = 64"),
       .blind = other_dtype,
       .plant = plant_gradients_in_e4m3},
  };
}

}  // namespace cpscope
