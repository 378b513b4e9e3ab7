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
  if (has_head_stages(parallel.comm_type) && parallel.heads_per_stage > 0)
    return refuse("has no stages of heads", "use heads_per_stage = 0",
                  {"parallel.heads_per_stage"});
  if (has_rounds(parallel))
    return refuse("is called for one group of ranks at a time: a call has no cp_sizes",
                  "use the sequences of one group, with the group's cp_size",
                  {"parallel.cp_sizes"});
  if (parallel.kv_replicated > 0)
    return refuse("has no keys that every rank holds", "use kv_replicated = 0",
                  {"parallel.kv_replicated"});
  if (attention.softmax_type != SoftmaxType::vanilla && parallel.comm_type != CommType::a2a)
    return refuse(fmt::format("has sinks only with a2a: {}", to_name(parallel.comm_type)),
                  "use a2a", {"attention.softmax_type"});
  return std::nullopt;
}

/// The first sequence of a packed batch with padding that FlashAttention has to skip. Padding at
/// the end of a buffer in order lies behind all rows; dual chunks place it between them.
std::optional<size_t> find_padding_between(const Plan& plan) {
  const std::vector<SequenceSlot>& slots = plan.layout.slots.sequences;
  const bool is_in_order = plan.scenario.parallel.layout == LayoutKind::contiguous;
  std::optional<size_t> padded;
  for (size_t s = 0; s < slots.size(); ++s) {
    if (padded && slots[s].q_valid > 0) return padded;
    const bool is_padded =
        slots[s].q_valid != slots[s].q_slot || slots[s].kv_valid != slots[s].kv_slot;
    if (!padded && is_padded) padded = s;
  }
  return is_in_order ? std::nullopt : padded;
}

bool has_padding(const BatchSlots& slots) {
  int64_t valid = 0;
  for (const SequenceSlot& slot : slots.sequences) valid += slot.q_valid;
  return valid != slots.tokens;
}

/// cu_seqlens are prefix sums of lengths, and a slot begins with its first valid token.
std::optional<Error> refuse_padding_in_front(const Plan& plan) {
  const std::vector<SequenceSlot>& slots = plan.layout.slots.sequences;
  for (size_t s = 0; s < slots.size(); ++s) {
    if (slots[s].q_front == 0 && slots[s].kv_front == 0) continue;
    return refuse(
        fmt::format("has no padding before the tokens of a sequence, as pad_side = \"left\" puts "
                    "it: sequence {} has {} queries and {} keys of it",
                    s, slots[s].q_front, slots[s].kv_front),
        "use pad_side = \"right\"", {"batch.pad_side"});
  }
  return std::nullopt;
}

/// Tokens in order: load_balancing_strategy = NO_LOAD_BALANCE. Source: context_parallel.py,
/// attn_forward_func_with_cp asserts each of these.
std::optional<Error> refuse_contiguous(const Scenario& scenario) {
  const Attention& attention = scenario.attention;
  const auto refuse_layout = [](std::string_view needs, std::string_view found, std::string key) {
    return refuse(
        fmt::format("supports layout contiguous (NO_LOAD_BALANCE) only {}: {}", needs, found),
        "use layout dual_chunk", {"parallel.layout", std::move(key)});
  };
  if (scenario.batch.qkv_format != QkvFormat::thd)
    return refuse_layout("in thd", to_name(scenario.batch.qkv_format), "batch.qkv_format");
  if (scenario.parallel.comm_type != CommType::all_gather)
    return refuse_layout("with all_gather", to_name(scenario.parallel.comm_type),
                         "parallel.cp_comm_type");
  if (!is_te_causal(attention.mask_type))
    return refuse_layout("with a causal mask", to_name(attention.mask_type),
                         "attention.attn_mask_type");
  if (attention.window_left >= 0)
    return refuse_layout("without a window", fmt::to_string(attention.window_left),
                         "attention.window_size");
  return std::nullopt;
}

/// Source: utils.py, get_attention_backend, "Filter: Attention bias": under context parallelism
/// only cuDNN's post_scale_bias with p2p, not in thd.
std::optional<Error> refuse_bias(const Scenario& scenario) {
  const Attention& attention = scenario.attention;
  if (attention.alibi)
    return refuse("has no ALiBi under context parallelism", "leave it out", {"attention.alibi"});
  if (attention.bias == BiasShape::none) return std::nullopt;
  if (scenario.parallel.comm_type != CommType::p2p)
    return refuse(fmt::format("has a bias only with p2p: {}", to_name(scenario.parallel.comm_type)),
                  "use p2p, or leave the bias out", {"attention.bias", "parallel.cp_comm_type"});
  if (scenario.batch.qkv_format == QkvFormat::thd)
    return refuse("has no bias in thd", "use bshd or sbhd, or leave the bias out",
                  {"attention.bias", "batch.qkv_format"});
  return std::nullopt;
}

/// Source: utils.py, get_attention_backend, "Filter: softcap": cuDNN has none, FlashAttention 4 is
/// not given it and 3 not under context parallelism; FlashAttention 2 is, from 2.6.0 on.
std::optional<Error> refuse_softcap(const Plan& plan) {
  const Scenario& scenario = plan.scenario;
  if (scenario.attention.softcap <= 0) return std::nullopt;
  if (scenario.attention.softmax_type != SoftmaxType::vanilla)
    return refuse("has sinks only in the fused back end and softcap only in FlashAttention 2",
                  "leave one of them out", {"attention.softcap", "attention.softmax_type"});
  if (scenario.batch.qkv_format != QkvFormat::thd) return std::nullopt;
  const std::string only = "has softcap only in FlashAttention 2, which ";
  if (const std::optional<size_t> s = find_padding_between(plan)) {
    const SequenceSlot& slot = plan.layout.slots.sequences[*s];
    return refuse(only + fmt::format("takes no padding between sequences: sequence {} has {} of "
                                     "{} tokens",
                                     *s, slot.q_valid, slot.q_slot),
                  "use full slots, or leave softcap out",
                  {"attention.softcap", fmt::format("batch.lengths[{}]", *s)});
  }
  // AttnFuncWithCPAndKVAllGather gives it the lengths of one chunk a sequence as offsets.
  if (scenario.parallel.comm_type == CommType::all_gather &&
      scenario.parallel.layout == LayoutKind::dual_chunk)
    return refuse(only + "reads wrong rows with all_gather of thd in layout dual_chunk",
                  "use p2p or a2a, or leave softcap out",
                  {"attention.softcap", "parallel.cp_comm_type"});
  return std::nullopt;
}

/// Source: context_parallel.py, attn_forward_func_with_cp and
/// validate_no_load_balance_thd_metadata.
void add_contiguous_notes(const Plan& plan, std::vector<std::string>& notes) {
  const BatchSlots& slots = plan.layout.slots;
  notes.emplace_back(
      "layout contiguous is load_balancing_strategy = NO_LOAD_BALANCE (experimental): q and kv "
      "share their cu_seqlens tensors; neither FP8 nor CUDA graphs");
  const SequenceSlot& last = slots.sequences.back();
  const int64_t tail = slots.tokens - last.q_begin - last.q_slot;
  if (tail > 0)
    notes.push_back(fmt::format(
        "cu_seqlens_padded ends with the buffer: the last slot has the {} tokens that make it a "
        "multiple of {}",
        tail, plan.layout.cp_size));
  if (find_padding_between(plan))
    notes.emplace_back(
        "only the fused back end takes padding between sequences in this layout; FlashAttention "
        "is refused");
  else if (has_padding(slots))
    notes.emplace_back(
        "FlashAttention takes padding at the end of the buffer only with pad_between_seqs = False");
}

}  // namespace

bool is_te_causal(MaskType type) {
  return type == MaskType::causal || type == MaskType::padding_causal;
}

std::optional<Error> refuse_as_te(const Plan& plan) {
  const Scenario& scenario = plan.scenario;
  const LayoutKind layout = scenario.parallel.layout;
  if (layout != LayoutKind::dual_chunk && layout != LayoutKind::contiguous)
    return refuse(
        fmt::format("supports only layouts dual_chunk and contiguous: {}", to_name(layout)),
        "use layout dual_chunk", {"parallel.layout"});
  const CommType comm = scenario.parallel.comm_type;
  if (comm == CommType::group_cast || has_windows(comm) || sends_partials(comm))
    return refuse(fmt::format("has no {}", to_name(comm)), "use p2p, a2a, all_gather or a2a+p2p",
                  {"parallel.cp_comm_type"});
  if (sends_queries_backward(scenario))
    return refuse("has no ring in which queries travel in the backward", "use ring_backward kv",
                  {"parallel.ring_backward"});
  if (auto error = refuse_mask(scenario)) return error;
  if (layout == LayoutKind::contiguous) {
    if (auto error = refuse_contiguous(scenario)) return error;
  }
  if (auto error = refuse_heads(scenario)) return error;
  if (auto error = refuse_padding_in_front(plan)) return error;
  if (auto error = refuse_softcap(plan)) return error;
  if (auto error = refuse_bias(scenario)) return error;
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

std::vector<std::string> te_notes(const Plan& plan) {
  const Scenario& scenario = plan.scenario;
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
  const bool is_contiguous = scenario.parallel.layout == LayoutKind::contiguous;
  if (scenario.parallel.comm_type == CommType::all_gather && is_thd && !is_contiguous)
    notes.emplace_back(
        "FlashAttention 2 reads wrong rows here, full slots included: it takes lengths for "
        "offsets, and no check refuses it");
  if (is_contiguous) add_contiguous_notes(plan, notes);
  if (scenario.attention.dropout > 0)
    notes.emplace_back(
        "every step draws its dropped weights anew, from a generator of the rank: its results "
        "depend on the schedule and agree with no other run");
  if (scenario.attention.softcap > 0)
    notes.emplace_back("softcap runs in FlashAttention 2 (from 2.6.0 on) and no other back end");
  if (scenario.numerics.dtype == Dtype::fp32 || scenario.numerics.dtype == Dtype::fp64)
    notes.push_back(fmt::format("its attention supports 16-bit and 8-bit types, not {}",
                                to_name(scenario.numerics.dtype)));
  if (scenario.parallel.cp_size == 1)
    notes.emplace_back(
        "with one rank there is no context parallelism: TransformerEngine makes one ordinary call");
  return notes;
}

}  // namespace cpscope
