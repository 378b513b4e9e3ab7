#include "sim/scenario/foreign_values.h"

#include "sim/scenario/complaints.h"
#include "sim/scenario/scenario_names.h"

#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A value of one of our keys, as another framework writes it: in lower case, with "_" for "-".
struct ForeignValue {
  std::string_view key, theirs, ours;
  std::string_view note = "";
};

constexpr std::string_view kZigzagNote =
    "it cuts every sequence; \"dual_chunk_packed\" cuts the whole packed buffer in the same way";
constexpr std::string_view kDocumentsNote = "every entry of lengths is a document";

constexpr std::string_view kFp8Note = "its recipe and format are keys of [fp8]";

constexpr auto kForeignValues = std::to_array<ForeignValue>({
    {"cp_comm_type", "ring", "p2p"},
    {"cp_comm_type", "ring_attention", "p2p"},
    {"cp_comm_type", "ring_attn", "p2p"},
    {"cp_comm_type", "pass_kv", "p2p"},
    {"cp_comm_type", "send_recv", "p2p"},
    {"cp_comm_type", "ulysses", "a2a"},
    {"cp_comm_type", "deepspeed_ulysses", "a2a"},
    {"cp_comm_type", "all_to_all", "a2a"},
    {"cp_comm_type", "alltoall", "a2a"},
    {"cp_comm_type", "allgather", "all_gather"},
    {"cp_comm_type", "ag", "all_gather"},
    {"cp_comm_type", "llama3", "all_gather"},
    {"cp_comm_type", "usp", "a2a+p2p"},
    {"cp_comm_type", "a2a_p2p", "a2a+p2p"},
    {"cp_comm_type", "p2p+a2a", "a2a+p2p"},
    {"cp_comm_type", "hierarchical", "a2a+p2p"},
    {"cp_comm_type", "ulysses+ring", "a2a+p2p"},
    {"cp_comm_type", "ring+ulysses", "a2a+p2p"},
    {"cp_comm_type", "magi", "group_cast"},
    {"cp_comm_type", "groupcast", "group_cast"},
    {"cp_comm_type", "tree", "gather_q"},
    {"cp_comm_type", "helix", "gather_q", "with q_owner = \"heads_replicated\""},
    {"cp_comm_type", "passq", "pass_q"},
    {"cp_comm_type", "tokenring", "token_ring"},
    {"cp_comm_type", "distflashattn", "helper_ring"},
    {"cp_comm_type", "lightseq", "helper_ring"},
    {"cp_comm_type", "mesh_attention", "mesh"},
    {"cp_comm_type", "loongtrain", "double_ring"},
    {"cp_comm_type", "doublering", "double_ring"},
    {"cp_comm_type", "2d_attention", "a2a+double_ring"},
    {"cp_comm_type", "a2a_double_ring", "a2a+double_ring"},
    {"cp_comm_type", "dcp", "gather_q", "with q_owner = \"heads\""},
    {"layout", "zigzag", "dual_chunk", kZigzagNote},
    {"layout", "zig_zag", "dual_chunk", kZigzagNote},
    {"layout", "dualchunk", "dual_chunk"},
    {"layout", "dual_chunk_swap", "dual_chunk"},
    {"layout", "dualchunkswap", "dual_chunk"},
    {"layout", "head_tail", "dual_chunk_packed"},
    {"layout", "headtail", "dual_chunk_packed"},
    {"layout", "ring", "contiguous"},
    {"layout", "sequential", "contiguous"},
    {"layout", "basic", "contiguous"},
    {"layout", "naive", "contiguous"},
    {"layout", "vanilla", "contiguous"},
    {"layout", "llama3", "contiguous"},
    {"layout", "stripe", "striped"},
    {"layout", "strip", "striped"},
    {"layout", "round_robin", "striped"},
    {"layout", "interleaved", "striped"},
    {"layout", "magi", "lpt"},
    {"attn_mask_type", "full", "no_mask"},
    {"attn_mask_type", "none", "no_mask"},
    {"attn_mask_type", "dense", "no_mask"},
    {"attn_mask_type", "bidirectional", "no_mask"},
    {"attn_mask_type", "non_causal", "no_mask"},
    {"attn_mask_type", "noncausal", "no_mask"},
    {"attn_mask_type", "top_left", "causal"},
    {"attn_mask_type", "upper_left", "causal"},
    {"attn_mask_type", "causal_top_left", "causal"},
    {"attn_mask_type", "causal_upper_left", "causal"},
    {"attn_mask_type", "bottom_right", "causal_bottom_right"},
    {"attn_mask_type", "lower_right", "causal_bottom_right"},
    {"attn_mask_type", "causal_lower_right", "causal_bottom_right"},
    {"attn_mask_type", "bottom_right_causal", "causal_bottom_right"},
    {"attn_mask_type", "padding,causal", "padding_causal"},
    {"attn_mask_type", "causal,padding", "padding_causal"},
    {"attn_mask_type", "causal_padding", "padding_causal"},
    {"attn_mask_type", "padding_bottom_right", "padding_causal_bottom_right"},
    {"attn_mask_type", "document", "padding_causal", kDocumentsNote},
    {"attn_mask_type", "varlen", "padding_causal", kDocumentsNote},
    {"attn_mask_type", "block_causal", "padding_causal", kDocumentsNote},
    {"attn_mask_type", "sliding_window", "causal", "the window is window_size = [left, 0]"},
    {"attn_mask_type", "local", "causal", "the window is window_size = [left, 0]"},
    {"attn_mask_type", "swa", "causal", "the window is window_size = [left, 0]"},
    {"attn_mask_type", "chunked", "causal", "the chunks are chunk_size"},
    {"attn_mask_type", "arbitrary", "slices"},
    {"attn_mask_type", "custom", "slices"},
    {"attn_mask_type", "flex", "slices"},
    {"dtype", "float8", "fp8", kFp8Note},
    {"dtype", "e4m3", "fp8", kFp8Note},
    {"dtype", "fp8_e4m3", "fp8", kFp8Note},
    {"dtype", "float8_e4m3fn", "fp8", kFp8Note},
    {"dtype", "mxfp8", "fp8", "and recipe = \"mxfp8\" in [fp8]"},
    {"recipe", "delayedscaling", "delayed"},
    {"recipe", "float8currentscaling", "current"},
    {"recipe", "tensorwise", "current"},
    {"recipe", "mxfp8blockscaling", "mxfp8"},
    {"softmax_type", "softmax1", "off_by_one"},
    {"softmax_type", "softmax_one", "off_by_one"},
    {"softmax_type", "sink", "learnable"},
    {"softmax_type", "sinks", "learnable"},
    {"softmax_type", "softmax", "vanilla"},
    {"softmax_type", "none", "vanilla"},
    {"qkv_format", "packed", "thd"},
    {"qkv_format", "varlen", "thd"},
    {"qkv_format", "tnd", "thd"},
    {"qkv_format", "t3hd", "thd"},
    {"qkv_format", "th3d", "thd"},
    {"qkv_format", "thd_thd_thd", "thd"},
    {"qkv_format", "bsh", "bshd"},
    {"qkv_format", "bsnd", "bshd"},
    {"qkv_format", "blhd", "bshd"},
    {"qkv_format", "bs3hd", "bshd"},
    {"qkv_format", "bsh3d", "bshd"},
    {"qkv_format", "bshd_bshd_bshd", "bshd"},
    {"qkv_format", "bhsd", "bshd", "grade takes tensors of bhsd with --format bhsd"},
    {"qkv_format", "bnsd", "bshd", "grade takes tensors of bhsd with --format bhsd"},
    {"qkv_format", "sbh", "sbhd"},
    {"qkv_format", "sb3hd", "sbhd"},
    {"qkv_format", "sbh3d", "sbhd"},
    {"qkv_format", "sbhd_sbhd_sbhd", "sbhd"},
});

/// Names of number types, for every key that takes one.
constexpr auto kNumberTypes = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"bfloat16", "bf16"},
    {"float16", "fp16"},
    {"half", "fp16"},
    {"f16", "fp16"},
    {"float32", "fp32"},
    {"float", "fp32"},
    {"single", "fp32"},
    {"f32", "fp32"},
    {"float64", "fp64"},
    {"double", "fp64"},
    {"f64", "fp64"},
});

template <class Choices>
std::vector<std::string_view> name_all(const Choices& values) {
  std::vector<std::string_view> names;
  for (const auto value : values) names.push_back(to_name(value));
  return names;
}

/// The choices of those of our keys that other frameworks call otherwise.
std::vector<std::string_view> list_choices(std::string_view key) {
  if (key == "attn_mask_type") return name_all(kMaskTypes);
  if (key == "softmax_type") return name_all(kSoftmaxTypes);
  if (key == "qkv_format") return name_all(kQkvFormats);
  if (key == "pad_side") return name_all(kPadSides);
  if (key == "cp_comm_type") return name_all(kCommTypes);
  if (key == "layout") return name_all(kLayoutKinds);
  if (key == "dtype") {
    std::vector<std::string_view> names = name_all(kDtypes);
    names.push_back("fp8");
    return names;
  }
  if (key == "recipe") return name_all(kFp8Recipes);
  if (key == "format") return name_all(kFp8Formats);
  if (key == "kv_wire") return name_all(kFp8KvWires);
  return {};
}

}  // namespace

std::string normalise_word(std::string_view text) {
  for (const std::string_view prefix : {"torch.", "jnp.", "np.", "numpy.", "jax.numpy."}) {
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  }
  std::string plain(text);
  for (char& letter : plain) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    if (letter == '-' || letter == ' ') letter = '_';
  }
  return plain;
}

OwnValue find_own_value(std::string_view key, std::string_view value,
                        std::span<const std::string_view> choices) {
  const std::string plain = normalise_word(value);
  OwnValue own;
  for (const ForeignValue& foreign : kForeignValues) {
    if (foreign.key == key && foreign.theirs == plain) own = {foreign.ours, foreign.note};
  }
  if (key == "dtype" || key == "accumulate" || key.ends_with("_wire")) {
    for (const auto& [theirs, ours] : kNumberTypes) {
      if (theirs == plain) own.ours = ours;
    }
  }
  for (const std::string_view choice : choices) {
    if (choice == own.ours) return own;
  }
  for (const std::string_view choice : choices) {
    if (choice == plain) return {choice, ""};
  }
  return {};
}

OwnValue find_own_value(std::string_view key, std::string_view value) {
  return find_own_value(key, value, list_choices(key));
}

std::optional<std::string> explain_foreign_value(std::string_view key, std::string_view value,
                                                 std::span<const std::string_view> choices) {
  const OwnValue own = find_own_value(key, value, choices);
  if (own.ours.empty()) return std::nullopt;
  std::string text = fmt::format("{0} = {1}: use {0} = \"{2}\"", key, show_text(value), own.ours);
  if (!own.note.empty()) text += fmt::format(" ({})", own.note);
  return text;
}

}  // namespace cpscope
