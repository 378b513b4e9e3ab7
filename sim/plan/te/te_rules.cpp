#include "sim/plan/te/te_rules.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

Error refuse(std::string what, std::string hint, std::vector<std::string> keys) {
  return make_refusal("TransformerEngine " + std::move(what), std::move(hint), std::move(keys));
}

std::optional<Error> refuse_mask(const Scenario& scenario) {
  const Attention& attention = scenario.attention;
  const MaskType type = attention.mask_type;
  if (type == MaskType::slices)
    return refuse("does not support mask slices under context parallelism", "use a causal mask",
                  {"attention.attn_mask_type"});
  if (type == MaskType::causal_bottom_right || type == MaskType::padding_causal_bottom_right)
    return refuse("refuses bottom-right masks under context parallelism", "use padding_causal",
                  {"attention.attn_mask_type"});
  if (attention.chunk_size > 0)
    return refuse(fmt::format("has no chunked attention (its pull request #1887 was closed): {}",
                              attention.chunk_size),
                  "leave chunk_size out", {"attention.chunk_size"});
  if (is_te_causal(type) && !scenario.batch.self_attention)
    return refuse("refuses causal masks over keys of other lengths", "use padding",
                  {"batch.kv_lengths", "batch.kv_slots"});
  const bool is_ring = scenario.parallel.comm_type == CommType::p2p ||
                       scenario.parallel.comm_type == CommType::a2a_p2p;
  const bool has_window =
      attention.window_left >= 0 || (attention.window_right >= 0 && !is_te_causal(type));
  if (has_window && is_ring)
    return refuse(fmt::format("does not support sliding window attention with cp_comm_type {}",
                              to_name(scenario.parallel.comm_type)),
                  "use all_gather or a2a", {"attention.window_size"});
  if (has_window && !scenario.batch.self_attention)
    return refuse("is not known to support windows over keys of other lengths",
                  "leave the window out", {"attention.window_size"});
  return std::nullopt;
}

std::optional<Error> refuse_heads(const Scenario& scenario) {
  const Attention& attention = scenario.attention;
  const Parallel& parallel = scenario.parallel;
  const int32_t group = parallel.comm_type == CommType::a2a       ? parallel.cp_size
                        : parallel.comm_type == CommType::a2a_p2p ? parallel.a2a_size
                                                                  : 1;
  if (attention.kv_heads % group != 0)
    return refuse(fmt::format("requires kv_heads % ranks == 0: {} KV heads, {} ranks",
                              attention.kv_heads, group),
                  "use that many KV heads, or fewer ranks", {"attention.kv_heads"});
  if (attention.softcap > 0)
    return refuse(fmt::format("has no softcap: {}", attention.softcap), "leave softcap out",
                  {"attention.softcap"});
  if (attention.softmax_type != SoftmaxType::vanilla && parallel.comm_type != CommType::a2a)
    return refuse(fmt::format("has sinks only with a2a: {}", to_name(parallel.comm_type)),
                  "use a2a", {"attention.softmax_type"});
  return std::nullopt;
}

}  // namespace

bool is_te_causal(MaskType type) {
  return type == MaskType::causal || type == MaskType::padding_causal;
}

std::optional<Error> refuse_as_te(const Plan& plan) {
  const Scenario& scenario = plan.scenario;
  if (scenario.parallel.layout != LayoutKind::dual_chunk)
    return refuse(
        fmt::format("supports only layout dual_chunk: {}", to_name(scenario.parallel.layout)),
        "use layout dual_chunk", {"parallel.layout"});
  if (scenario.parallel.comm_type == CommType::group_cast)
    return refuse("has no group_cast", "use p2p, a2a, all_gather or a2a+p2p",
                  {"parallel.cp_comm_type"});
  if (auto error = refuse_mask(scenario)) return error;
  if (auto error = refuse_heads(scenario)) return error;
  if (scenario.batch.qkv_format == QkvFormat::thd) return std::nullopt;
  for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
    const SequenceSlot& slot = plan.layout.slots.sequences[s];
    if (slot.q_valid != slot.q_slot || slot.kv_valid != slot.kv_slot)
      return refuse(
          fmt::format("does not support padding in {} under context parallelism: sequence {} has "
                      "{} of {} tokens",
                      to_name(scenario.batch.qkv_format), s, slot.q_valid, slot.q_slot),
          "use thd, or full sequences", {"batch.qkv_format", fmt::format("batch.lengths[{}]", s)});
  }
  return std::nullopt;
}

std::vector<std::string> te_notes(const Scenario& scenario) {
  std::vector<std::string> notes;
  const MaskType type = scenario.attention.mask_type;
  const bool is_named_padding = type == MaskType::padding || type == MaskType::padding_causal;
  const bool is_thd = scenario.batch.qkv_format == QkvFormat::thd;
  if (is_thd && !is_named_padding)
    notes.push_back(fmt::format("thd asks for a padding mask type: pass {} for {}",
                                is_te_causal(type) ? "padding_causal" : "padding", to_name(type)));
  if (is_thd)
    notes.emplace_back(
        "max_seqlen is the longest slot; where the caller gives none, it is rounded up to 64");
  if (scenario.parallel.comm_type == CommType::all_gather && scenario.attention.window_right > 0 &&
      !is_te_causal(type))
    notes.emplace_back(
        "FlashAttention's alignment is shown; the cuDNN back end is not told of the bottom-right "
        "diagonal and would align this window top-left");
  if (scenario.parallel.comm_type == CommType::all_gather && is_thd)
    notes.emplace_back(
        "FlashAttention 2 takes lengths for offsets here and reads wrong rows where slots are "
        "padded");
  if (scenario.numerics.dtype == Dtype::fp32 || scenario.numerics.dtype == Dtype::fp64)
    notes.push_back(fmt::format("its attention supports 16-bit and 8-bit types, not {}",
                                to_name(scenario.numerics.dtype)));
  if (scenario.parallel.cp_size == 1)
    notes.emplace_back(
        "with one rank there is no context parallelism: TransformerEngine makes one ordinary call");
  return notes;
}

}  // namespace cpscope
