#include "sim/scenario/foreign_keys.h"

#include "sim/scenario/foreign_values.h"
#include "sim/scenario/position_ids.h"
#include "sim/scenario/scenario_parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

using Numbers = std::vector<int64_t>;

constexpr size_t kShownEntries = 8;

std::string show_list(const Numbers& numbers) {
  const size_t shown = std::min(numbers.size(), kShownEntries);
  const std::string text =
      fmt::format("{}", fmt::join(numbers.begin(), numbers.begin() + shown, ", "));
  return fmt::format("[{}{}]", text, shown < numbers.size() ? ", ..." : "");
}

/// As TOML; cut where it is long, empty where there is no short form.
std::string show_toml(const TomlValue& value) {
  switch (value.kind()) {
    case TomlKind::boolean:
    case TomlKind::integer:
    case TomlKind::text:
      return show_value_of(value);
    case TomlKind::floating: {
      const std::string digits = fmt::format("{}", value.floating());
      return digits.find_first_of(".en") == std::string::npos ? digits + ".0" : digits;
    }
    case TomlKind::array:
      break;
    default:
      return "";
  }
  std::string text = "[";
  for (int64_t i = 0; i < value.size(); ++i) {
    if (i > 0) text += ", ";
    if (static_cast<size_t>(i) == kShownEntries) return text + "...]";
    const std::string item = show_toml(value.item(i));
    if (item.empty()) return "";
    text += item;
  }
  return text + "]";
}

// ---- translations of the values of keys --------------------------------------------------------

/// "ours = value" for their value; empty if it has no translation, and the key alone is named.
using Translate = std::string (*)(std::string_view ours, const TomlValue& value);

std::string assign(std::string_view ours, std::string_view value) {
  return fmt::format("{} = {}", ours, value);
}

std::string assign_text(std::string_view ours, std::string_view value) {
  return fmt::format("{} = \"{}\"", ours, value);
}

std::string keep_integer(std::string_view ours, const TomlValue& value) {
  return value.kind() == TomlKind::integer ? assign(ours, show_toml(value)) : "";
}

std::string keep_number(std::string_view ours, const TomlValue& value) {
  const bool is_number = value.kind() == TomlKind::integer || value.kind() == TomlKind::floating;
  return is_number ? assign(ours, show_toml(value)) : "";
}

std::string keep_flag(std::string_view ours, const TomlValue& value) {
  return value.kind() == TomlKind::boolean ? assign(ours, show_toml(value)) : "";
}

std::string invert_flag(std::string_view ours, const TomlValue& value) {
  if (value.kind() != TomlKind::boolean) return "";
  return assign(ours, value.boolean() ? "false" : "true");
}

std::string keep_text(std::string_view ours, const TomlValue& value) {
  if (value.kind() != TomlKind::text) return "";
  const OwnValue own = find_own_value(ours, value.text());
  return own.ours.empty() ? "" : assign_text(ours, own.ours);
}

std::string keep_array(std::string_view ours, const TomlValue& value) {
  return value.kind() == TomlKind::array ? assign(ours, show_toml(value)) : "";
}

/// A choice for true and one for false; empty: it has no translation.
std::string choose(std::string_view ours, const TomlValue& value, std::string_view if_true,
                   std::string_view if_false) {
  if (value.kind() != TomlKind::boolean) return "";
  const std::string_view chosen = value.boolean() ? if_true : if_false;
  return chosen.empty() ? "" : assign_text(ours, chosen);
}

std::string causal_flag(std::string_view ours, const TomlValue& value) {
  return choose(ours, value, "causal", "no_mask");
}

std::string zigzag_flag(std::string_view ours, const TomlValue& value) {
  return choose(ours, value, "dual_chunk", "contiguous");
}

std::string striped_flag(std::string_view ours, const TomlValue& value) {
  return choose(ours, value, "striped", "contiguous");
}

std::string left_flag(std::string_view ours, const TomlValue& value) {
  return choose(ours, value, "left", "right");
}

std::string sink_flag(std::string_view ours, const TomlValue& value) {
  return choose(ours, value, "learnable", "vanilla");
}

std::string bf16_flag(std::string_view ours, const TomlValue& value) {
  return choose(ours, value, "bf16", "");
}

/// A type of bias: ALiBi is a key of its own.
std::string bias_type(std::string_view, const TomlValue& value) {
  return value.kind() == TomlKind::text && value.text() == "alibi" ? "alibi = true" : "";
}

std::string fp8_flag(std::string_view ours, const TomlValue& value) {
  return choose(ours, value, "fp8", "");
}

std::string hybrid_flag(std::string_view ours, const TomlValue& value) {
  return choose(ours, value, "hybrid", "");
}

std::string fp16_flag(std::string_view ours, const TomlValue& value) {
  return choose(ours, value, "fp16", "");
}

/// Their window counts the token itself.
std::string window_with_itself(std::string_view ours, const TomlValue& value) {
  if (value.kind() != TomlKind::integer || value.integer() < 1) return "";
  return fmt::format("{} = [{}, 0]", ours, value.integer() - 1);
}

std::string inverse_root(std::string_view ours, const TomlValue& value) {
  const double number = value.kind() == TomlKind::integer    ? static_cast<double>(value.integer())
                        : value.kind() == TomlKind::floating ? value.floating()
                                                             : 0.0;
  return number > 0.0 ? fmt::format("{} = {}", ours, 1.0 / std::sqrt(number)) : "";
}

/// The integers of a list, or of the only list of a list.
std::optional<Numbers> read_numbers(TomlValue value) {
  if (value.size() == 1 && value.item(0).kind() == TomlKind::array) value = value.item(0);
  if (value.kind() != TomlKind::array) return std::nullopt;
  Numbers numbers;
  for (int64_t i = 0; i < value.size(); ++i) {
    if (value.item(i).kind() != TomlKind::integer) return std::nullopt;
    numbers.push_back(value.item(i).integer());
  }
  return numbers;
}

std::string lengths_between(std::string_view ours, const TomlValue& value) {
  const std::optional<Numbers> bounds = read_numbers(value);
  if (!bounds || bounds->size() < 2 || !std::is_sorted(bounds->begin(), bounds->end())) return "";
  Numbers lengths;
  for (size_t i = 0; i + 1 < bounds->size(); ++i)
    lengths.push_back((*bounds)[i + 1] - (*bounds)[i]);
  return assign(ours, show_list(lengths));
}

/// Lengths of the documents of position ids.
std::string lengths_of_positions(std::string_view ours, const TomlValue& value) {
  const std::optional<Numbers> positions = read_numbers(value);
  if (!positions || positions->empty()) return "";
  return assign(ours, show_list(split_positions(*positions)));
}

/// Lengths of the stretches of equal ids.
std::string lengths_of_segments(std::string_view ours, const TomlValue& value) {
  const std::optional<Numbers> ids = read_numbers(value);
  if (!ids || ids->empty()) return "";
  Numbers lengths;
  for (size_t i = 0; i < ids->size(); ++i) {
    if (i == 0 || (*ids)[i] != (*ids)[i - 1]) lengths.push_back(0);
    ++lengths.back();
  }
  return assign(ours, show_list(lengths));
}

std::string padded_length(std::string_view, const TomlValue& value) {
  if (value.kind() != TomlKind::integer) return "seqlen with batch_size, or lengths";
  return fmt::format("seqlen = {0} with batch_size, or lengths = [{0}]", value.integer());
}

std::string hierarchical_sizes(std::string_view, const TomlValue& value) {
  const std::optional<Numbers> sizes = read_numbers(value);
  if (!sizes || sizes->size() != 2) return "";
  constexpr int64_t kMost = 1 << 20;
  const int64_t a2a = (*sizes)[0], p2p = (*sizes)[1];
  if (a2a < 1 || p2p < 1 || a2a > kMost || p2p > kMost) return "";
  return fmt::format("a2a_size = {}, cp_size = {} and cp_comm_type = \"a2a+p2p\"", a2a, a2a * p2p);
}

std::string ulysses(std::string_view, const TomlValue& value) {
  if (value.kind() == TomlKind::boolean && value.boolean()) return "cp_comm_type = \"a2a\"";
  if (value.kind() != TomlKind::integer)
    return "cp_comm_type = \"a2a\", or \"a2a+p2p\" with a ring";
  return fmt::format(
      "cp_comm_type = \"a2a+p2p\" and a2a_size = {0}, or without a ring cp_comm_type = \"a2a\" and "
      "cp_size = {0}",
      value.integer());
}

std::string ring(std::string_view, const TomlValue& value) {
  if (value.kind() != TomlKind::integer) return "cp_comm_type = \"p2p\"";
  return fmt::format(
      "cp_comm_type = \"p2p\" and cp_size = {0}, or with Ulysses cp_comm_type = \"a2a+p2p\" and "
      "cp_size = a2a_size * {0}",
      value.integer());
}

std::string ulysses_ranks(std::string_view ours, const TomlValue& value) {
  const std::string size = keep_integer(ours, value);
  return size.empty() ? "" : size + " and cp_comm_type = \"a2a\"";
}

/// PyTorch rotates KV by all-gather or by all-to-all to the neighbour.
std::string rotation(std::string_view ours, const TomlValue& value) {
  if (value.kind() != TomlKind::text) return "";
  return assign_text(ours, normalise_word(value.text()).starts_with("all_to") ||
                                   normalise_word(value.text()).starts_with("allto")
                               ? "p2p"
                               : "all_gather");
}

// ---- keys --------------------------------------------------------------------------------------

/// A key of other frameworks. Where `ours` is empty the note says why there is no such key.
struct ForeignKey {
  std::string_view theirs, ours;
  Translate translate = nullptr;
  std::string_view note = "";
};

constexpr std::string_view kNoTensorParallelism =
    "there is no tensor parallelism here; heads and kv_heads are those of one of its ranks";
constexpr std::string_view kOneReplica =
    "there is no other parallelism here; a scenario is one layer of one context-parallel group";
constexpr std::string_view kDecodeRanks =
    "decode steps: cp_comm_type = \"gather_q\", q_owner = \"heads\"";
constexpr std::string_view kFp8Table = "its recipe and format are keys of [fp8]";
constexpr std::string_view kNoRank = "every rank is planned; cp_size is their number";
constexpr std::string_view kFromLengths = "it follows from lengths and slots; leave it out";
constexpr std::string_view kOwnMask = "a mask of any other shape is attn_mask_type = \"slices\"";
constexpr std::string_view kTokenMask =
    "one of tokens, 0 and 1, is lengths and pad_side: cpscope import --attention-mask; of any "
    "other "
    "shape attn_mask_type = \"slices\"";
constexpr std::string_view kAlwaysExact = "the softmax is always computed in fp32 or fp64";

constexpr auto kForeignKeys = std::to_array<ForeignKey>({
    // Heads.
    {"num_attention_heads", "heads", keep_integer},
    {"num_heads", "heads", keep_integer},
    {"num_q_heads", "heads", keep_integer},
    {"num_qo_heads", "heads", keep_integer},
    {"num_query_heads", "heads", keep_integer},
    {"n_heads", "heads", keep_integer},
    {"n_head", "heads", keep_integer},
    {"nheads", "heads", keep_integer},
    {"nhead", "heads", keep_integer},
    {"q_heads", "heads", keep_integer},
    {"num_query_groups", "kv_heads", keep_integer},
    {"num_key_value_heads", "kv_heads", keep_integer},
    {"num_kv_heads", "kv_heads", keep_integer},
    {"num_gqa_groups", "kv_heads", keep_integer},
    {"n_kv_heads", "kv_heads", keep_integer},
    {"nheads_k", "kv_heads", keep_integer},
    {"num_heads_k", "kv_heads", keep_integer},
    {"num_heads_kv", "kv_heads", keep_integer},
    {"enable_gqa", "kv_heads", nullptr, "query heads share KV heads where kv_heads is below heads"},
    {"kv_channels", "head_dim", keep_integer},
    {"head_size", "head_dim", keep_integer},
    {"headdim", "head_dim", keep_integer},
    {"dim_head", "head_dim", keep_integer},
    {"d_head", "head_dim", keep_integer},
    {"qk_head_dim", "head_dim_qk", nullptr, "with the rotated part added"},
    {"qk_pos_emb_head_dim", "head_dim_qk", nullptr, "with the other part added"},
    {"qk_nope_head_dim", "head_dim_qk", nullptr,
     "with qk_rope_head_dim added; alone it is latent_nope_dim, where latent rows are expanded"},
    {"qk_rope_head_dim", "head_dim_qk", nullptr, "with qk_nope_head_dim added"},
    {"v_head_dim", "head_dim_v", keep_integer},
    {"kv_lora_rank", "latent_dim", keep_integer},
    {"hidden_size", "", nullptr, "it is heads * head_dim here; leave it out"},
    // Masks.
    {"causal", "attn_mask_type", causal_flag},
    {"is_causal", "attn_mask_type", causal_flag},
    {"use_causal_mask", "attn_mask_type", causal_flag},
    {"causal_mask", "attn_mask_type", causal_flag},
    {"mask_type", "attn_mask_type", keep_text},
    {"attention_mask_type", "attn_mask_type", keep_text},
    {"mask", "attn_mask_type", keep_text, kOwnMask},
    {"attn_mask", "attn_mask_type", keep_text, kOwnMask},
    {"attention_mask", "attn_mask_type", keep_text, kTokenMask},
    {"block_mask", "attn_mask_type", keep_text, kOwnMask},
    {"mask_mod", "attn_mask_type", keep_text, kOwnMask},
    {"sliding_window", "window_size", window_with_itself, "their window counts the token itself"},
    {"window", "window_size", keep_array},
    {"attention_window", "window_size", keep_array},
    {"attn_window", "window_size", keep_array},
    {"window_size_left", "window_size", nullptr, "[left, right]"},
    {"window_size_right", "window_size", nullptr, "[left, right]"},
    {"attention_chunk_size", "chunk_size", keep_integer},
    {"attn_chunk_size", "chunk_size", keep_integer},
    {"chunk_attn_window_size", "chunk_size", keep_integer},
    // Logits.
    {"scale", "softmax_scale", keep_number},
    {"sm_scale", "softmax_scale", keep_number},
    {"attn_scale", "softmax_scale", keep_number},
    {"attention_scale", "softmax_scale", keep_number},
    {"scaling", "softmax_scale", keep_number},
    {"query_pre_attn_scalar", "softmax_scale", inverse_root},
    {"attn_logit_softcapping", "softcap", keep_number},
    {"attn_logits_soft_cap", "softcap", keep_number},
    {"logits_soft_cap", "softcap", keep_number},
    {"logit_softcapping", "softcap", keep_number},
    {"soft_cap", "softcap", keep_number},
    {"softmax_offset", "softmax_type", sink_flag, "\"learnable\" has one sink a head"},
    {"sink", "softmax_type", sink_flag, "\"learnable\" has one sink a head"},
    {"sinks", "softmax_type", sink_flag, "\"learnable\" has one sink a head"},
    {"attention_sink", "softmax_type", sink_flag, "\"learnable\" has one sink a head"},
    {"attention_softmax_in_fp32", "", nullptr, kAlwaysExact},
    {"softmax_in_fp32", "", nullptr, kAlwaysExact},
    {"rotary_base", "rope_theta", keep_number},
    {"rope_base", "rope_theta", keep_number},
    {"rope_freq_base", "rope_theta", keep_number},
    {"rotary_emb_base", "rope_theta", keep_number},
    {"rotary_percent", "", nullptr, "rope_theta rotates the whole head_dim; leave it out"},
    {"rope_scaling", "", nullptr, "positions are not scaled; leave it out"},
    {"position_embedding_type", "rope_theta", nullptr, "0 is off"},
    {"attn_bias", "bias", nullptr},
    {"attention_bias", "bias", nullptr},
    {"bias_type", "bias", bias_type},
    {"core_attention_bias", "bias", nullptr},
    {"attention_bias_type", "bias", bias_type},
    {"attn_bias_type", "bias", bias_type},
    {"core_attention_bias_type", "bias", bias_type},
    {"use_alibi", "alibi", keep_flag},
    {"use_alibi_mask", "alibi", keep_flag},
    {"alibi_slopes", "alibi", nullptr, "with the published slopes"},
    {"dropout_p", "dropout", keep_number},
    {"p_dropout", "dropout", keep_number},
    {"dropout_rate", "dropout", keep_number},
    {"attn_dropout", "dropout", keep_number},
    {"attention_dropout", "dropout", keep_number},
    // Batches.
    {"qkv_layout", "qkv_format", keep_text},
    {"input_layout", "qkv_format", keep_text},
    {"tensor_format", "qkv_format", keep_text},
    {"seqlens", "lengths", keep_array},
    {"context_lens", "kv_lengths", keep_array},
    {"seq_lens", "lengths", keep_array},
    {"doc_lens", "lengths", keep_array},
    {"document_lengths", "lengths", keep_array},
    {"sequence_lengths", "lengths", keep_array},
    {"cu_seqlens", "lengths", lengths_between},
    {"cu_seqlens_q", "lengths", lengths_between},
    {"cu_seqlens_k", "kv_lengths", lengths_between},
    {"cu_seqlens_kv", "kv_lengths", lengths_between},
    {"cu_seq_lens", "lengths", lengths_between},
    {"cu_seq_lens_q", "lengths", lengths_between},
    {"cu_seq_lens_k", "kv_lengths", lengths_between},
    {"cu_seqlens_padded", "slots", lengths_between},
    {"cu_seqlens_q_padded", "slots", lengths_between},
    {"cu_seqlens_kv_padded", "kv_slots", lengths_between},
    {"position_ids", "lengths", lengths_of_positions, "a document begins where they restart"},
    {"document_ids", "lengths", lengths_of_segments},
    {"segment_ids", "lengths", lengths_of_segments},
    {"seq_length", "seqlen", padded_length},
    {"seq_len", "seqlen", padded_length},
    {"sequence_length", "seqlen", padded_length},
    {"max_seqlen", "", nullptr, kFromLengths},
    {"max_seqlen_q", "", nullptr, kFromLengths},
    {"max_seqlen_k", "", nullptr, kFromLengths},
    {"max_seqlen_kv", "", nullptr, kFromLengths},
    {"total_tokens", "", nullptr, kFromLengths},
    {"max_position_embeddings", "", nullptr, "lengths may have any size; leave it out"},
    {"micro_batch_size", "batch_size", keep_integer},
    {"batch", "batch_size", keep_integer},
    {"bsz", "batch_size", keep_integer},
    {"global_batch_size", "", nullptr, "batch_size is that of one microbatch"},
    {"pad_to_multiple_of", "slot_multiple", keep_integer},
    {"padding_side", "pad_side", keep_text},
    {"left_pad", "pad_side", left_flag},
    {"left_padding", "pad_side", left_flag},
    // Ranks and communication.
    {"context_parallel_size", "cp_size", keep_integer},
    {"context_parallel_degree", "cp_size", keep_integer},
    {"cp_degree", "cp_size", keep_integer},
    {"cp_world_size", "cp_size", keep_integer},
    {"decode_context_parallel_size", "cp_size", keep_integer, kDecodeRanks},
    {"dcp_size", "cp_size", keep_integer, kDecodeRanks},
    {"kvp_size", "cp_size", keep_integer,
     "Helix: cp_comm_type = \"gather_q\", q_owner = \"heads_replicated\""},
    {"prefill_context_parallel_size", "cp_size", keep_integer},
    {"pcp_size", "cp_size", keep_integer},
    {"cp_kv_cache_interleave_size", "stripe", keep_integer, "of layout = \"striped\""},
    {"dcp_kv_cache_interleave_size", "stripe", keep_integer, "of layout = \"striped\""},
    {"cp", "cp_size", keep_integer},
    {"world_size", "cp_size", keep_integer},
    {"num_ranks", "cp_size", keep_integer},
    {"ranks", "cp_size", keep_integer},
    {"sp_size", "cp_size", keep_integer},
    {"sp_degree", "cp_size", keep_integer},
    {"sequence_parallel_size", "cp_size", keep_integer},
    {"sequence_parallel_degree", "cp_size", keep_integer},
    {"ulysses_sequence_parallel_size", "cp_size", ulysses_ranks},
    {"hierarchical_context_parallel_sizes", "a2a_size", hierarchical_sizes},
    {"ulysses_degree", "a2a_size", ulysses},
    {"ulysses_size", "a2a_size", ulysses},
    {"ulysses", "a2a_size", ulysses},
    {"ring_degree", "cp_size", ring},
    {"ring_size", "cp_size", ring},
    {"ring", "cp_size", ring},
    {"use_ulysses_low", "a2a_size", nullptr,
     "a rank is p2p_index * a2a_size + a2a_index, as use_ulysses_low = true; the other order is "
     "layout = \"indices\""},
    {"cp_comm", "cp_comm_type", keep_text},
    {"comm_type", "cp_comm_type", keep_text},
    {"context_parallel_method", "cp_comm_type", keep_text},
    {"rotate_method", "cp_comm_type", rotation},
    {"zigzag", "layout", zigzag_flag},
    {"use_zigzag", "layout", zigzag_flag},
    {"load_balance", "layout", zigzag_flag},
    {"context_parallel_load_balance", "layout", zigzag_flag},
    {"ring_impl_type", "layout", keep_text},
    {"load_balancer", "layout", keep_text},
    {"cp_layout", "layout", keep_text},
    {"use_striped", "layout", striped_flag},
    {"stripe_size", "stripe", keep_integer},
    {"hybrid_context_parallel", "cp_sizes", hybrid_flag},
    {"dynamic_context_parallel", "cp_sizes", hybrid_flag},
    {"max_seqlen_per_dp_cp_rank", "max_tokens_per_rank", keep_integer},
    {"max_token_len_per_gpu", "max_tokens_per_rank", keep_integer},
    {"heads_k_stride", "heads_per_stage", keep_integer},
    {"heads_k_stride", "", nullptr, "all KV heads are gathered at once; leave it out"},
    {"tp_size", "", nullptr, kNoTensorParallelism},
    {"tp", "", nullptr, kNoTensorParallelism},
    {"tensor_parallel", "", nullptr, kNoTensorParallelism},
    {"tensor_parallel_size", "", nullptr, kNoTensorParallelism},
    {"tensor_parallel_degree", "", nullptr, kNoTensorParallelism},
    {"tensor_model_parallel_size", "", nullptr, kNoTensorParallelism},
    {"sequence_parallel", "", nullptr, kNoTensorParallelism},
    {"dp_size", "", nullptr, kOneReplica},
    {"data_parallel_size", "", nullptr, kOneReplica},
    {"pp_size", "", nullptr, kOneReplica},
    {"pipeline_model_parallel_size", "", nullptr, kOneReplica},
    {"ep_size", "", nullptr, kOneReplica},
    {"expert_model_parallel_size", "", nullptr, kOneReplica},
    {"num_layers", "", nullptr, kOneReplica},
    {"block_size", "", nullptr,
     "there is no such setting: the tiles of a kernel change no result; chunk_size and "
     "dispatch_chunk are other things"},
    {"rank", "", nullptr, kNoRank},
    {"local_rank", "", nullptr, kNoRank},
    {"cp_rank", "", nullptr, kNoRank},
    {"cp_group", "", nullptr, kNoRank},
    {"process_group", "", nullptr, kNoRank},
    {"deterministic", "", nullptr, "the order of all sums is fixed; leave it out"},
    // Numbers.
    {"params_dtype", "dtype", keep_text},
    {"torch_dtype", "dtype", keep_text},
    {"data_type", "dtype", keep_text},
    {"precision", "dtype", keep_text},
    {"bf16", "dtype", bf16_flag},
    {"fp16", "dtype", fp16_flag},
    {"fp8_dpa", "dtype", fp8_flag, kFp8Table},
    {"fp8_mha", "dtype", fp8_flag, kFp8Table},
    {"fp8_attention", "dtype", fp8_flag, kFp8Table},
    {"float8", "dtype", fp8_flag, kFp8Table},
    {"fp8_recipe", "recipe", keep_text},
    {"fp8_format", "format", keep_text},
    {"fp8_output", "", nullptr, "answers are bf16, whatever the attention is computed in"},
    {"fp8_kv_wire", "kv_wire", keep_text},
    {"is_training", "backward", keep_flag},
    {"training", "backward", keep_flag},
    {"requires_grad", "backward", keep_flag},
    {"forward_only", "backward", invert_flag},
    {"random_seed", "seed", keep_integer},
    {"manual_seed", "seed", keep_integer},
});

/// The table of one of our keys; nothing if this version has no such key.
std::optional<std::string_view> find_table(std::string_view key) {
  const auto has = [key](const auto& keys) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  if (has(kAttentionKeys)) return "attention";
  if (has(kBatchKeys)) return "batch";
  if (has(kParallelKeys)) return "parallel";
  if (has(kNumericsKeys)) return "numerics";
  if (has(kFp8Keys)) return "fp8";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> explain_foreign_key(std::string_view key, const TomlValue& value,
                                               std::optional<std::string_view> here) {
  for (const ForeignKey& foreign : kForeignKeys) {
    if (foreign.theirs != key) continue;
    const std::string shown = show_toml(value);
    const std::string theirs = shown.empty() ? std::string(key) : assign(key, shown);
    if (foreign.ours.empty()) return fmt::format("{}: {}", theirs, foreign.note);
    const std::optional<std::string_view> table = find_table(foreign.ours);
    if (!table) continue;
    std::string own = foreign.translate == nullptr ? "" : foreign.translate(foreign.ours, value);
    if (own.empty()) own = foreign.ours;
    std::string text = fmt::format("{}: use {}", theirs, own);
    if (here && *here != *table) text += fmt::format(" in [{}]", *table);
    if (!foreign.note.empty()) text += fmt::format(" ({})", foreign.note);
    return text;
  }
  return std::nullopt;
}

std::string_view find_own_key(std::string_view foreign) {
  for (const ForeignKey& each : kForeignKeys) {
    if (each.theirs == foreign && find_table(each.ours)) return each.ours;
  }
  return "";
}

}  // namespace cpscope
