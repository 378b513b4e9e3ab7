#include "sim/scenario/scenario_file.h"
#include "sim/scenario/scenario_parts.h"
#include "sim/scenario/toml_document.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace cpscope {
namespace {

// Long lists are broken into lines of this many numbers, short enough for an editor.
constexpr size_t kNumbersPerLine = 16;
constexpr size_t kGroupsPerLine = 8;

/// The shortest digits that read back as the same double, always marked as a float.
std::string show_toml_number(double number) {
  std::string shown = fmt::format("{}", number);
  if (shown.find_first_of(".en") == std::string::npos) shown += ".0";
  return shown;
}

std::string show_toml_list(const std::vector<int64_t>& numbers) {
  std::string shown = "[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) shown += i % kNumbersPerLine == 0 ? ",\n  " : ", ";
    fmt::format_to(std::back_inserter(shown), "{}", numbers[i]);
  }
  return shown + "]";
}

/// Writes "key = value" lines; keys at their default are left out.
class TomlWriter {
 public:
  void table(std::string_view name) { text_ += fmt::format("\n[{}]\n", name); }
  void line(std::string_view key, std::string_view value) {
    text_ += fmt::format("{} = {}\n", key, value);
  }
  void text(std::string_view key, std::string_view value, std::string_view usual = "") {
    if (value != usual) line(key, print_toml_text(value));
  }
  void integer(std::string_view key, int64_t value, int64_t usual) {
    if (value != usual) line(key, fmt::format("{}", value));
  }
  void number(std::string_view key, double value, double usual) {
    if (value != usual) line(key, show_toml_number(value));
  }
  void boolean(std::string_view key, bool value, bool usual) {
    if (value != usual) line(key, value ? "true" : "false");
  }
  template <class Choice>
  void choice(std::string_view key, Choice value, Choice usual) {
    if (value != usual) line(key, print_toml_text(to_name(value)));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// The mask as an inline table: { name = "block_causal", block = 64 }.
std::string show_mask(const MaskGenerator& mask) {
  const MaskGenerator usual;
  std::string text = mask.file.empty() ? "{ name = " + print_toml_text(mask.name)
                                       : "{ file = " + print_toml_text(mask.file);
  const auto add = [&](std::string_view key, const std::string& value) {
    text += fmt::format(", {} = {}", key, value);
  };
  if (mask.block != usual.block) add("block", fmt::format("{}", mask.block));
  if (!mask.parents.empty()) add("parents", show_toml_list(mask.parents));
  if (!mask.lengths.empty()) add("lengths", show_toml_list(mask.lengths));
  if (mask.name == "image_groups") {
    std::string groups = "[";
    for (size_t i = 0; i < mask.groups.size(); ++i) {
      if (i > 0) groups += i % kGroupsPerLine == 0 ? ",\n  " : ", ";
      groups += fmt::format("[{}, {}]", mask.groups[i].begin, mask.groups[i].end);
    }
    add("groups", groups + "]");
  }
  if (mask.name == "global_tokens" || mask.count != usual.count)
    add("count", fmt::format("{}", mask.count));
  if (mask.causal != usual.causal) add("causal", "false");
  if (mask.window_left != -1 || mask.window_right != -1)
    add("window", show_toml_list({mask.window_left, mask.window_right}));
  if (mask.name == "top_k") add("keys", fmt::format("{}", mask.keys));
  if (mask.name == "block_top_k") add("blocks", fmt::format("{}", mask.blocks));
  if (mask.seed != usual.seed) add("seed", fmt::format("{}", mask.seed));
  if (mask.sequence != usual.sequence) add("sequence", fmt::format("{}", mask.sequence));
  return text + " }";
}

void print_attention(const Attention& attention, TomlWriter& writer) {
  const Attention usual;
  writer.table("attention");
  writer.integer("heads", attention.heads, usual.heads);
  writer.integer("kv_heads", attention.kv_heads, attention.heads);
  if (attention.head_dim_qk == attention.head_dim_v) {
    writer.integer("head_dim", attention.head_dim_qk, usual.head_dim_qk);
  } else {
    writer.integer("head_dim_qk", attention.head_dim_qk, usual.head_dim_qk);
    writer.integer("head_dim_v", attention.head_dim_v, usual.head_dim_v);
  }
  writer.choice("attn_mask_type", attention.mask_type, usual.mask_type);
  if (attention.mask_type == MaskType::slices && attention.generator) {
    writer.line("mask", show_mask(*attention.generator));
  } else if (attention.mask_type == MaskType::slices) {
    std::string list = "[";
    for (const MaskSlice& slice : attention.slices) {
      list += fmt::format("\n  [{}, {}, {}, {}, \"{}\"],", slice.q0, slice.q1, slice.k0, slice.k1,
                          to_name(slice.type));
    }
    writer.line("slices", list + (attention.slices.empty() ? "]" : "\n]"));
  }
  if (attention.window_left != -1 || attention.window_right != -1) {
    writer.line("window_size", show_toml_list({attention.window_left, attention.window_right}));
  }
  writer.integer("chunk_size", attention.chunk_size, usual.chunk_size);
  writer.number("softmax_scale", attention.softmax_scale, usual.softmax_scale);
  writer.number("softcap", attention.softcap, usual.softcap);
  writer.choice("softmax_type", attention.softmax_type, usual.softmax_type);
  writer.number("rope_theta", attention.rope_theta, usual.rope_theta);
  writer.choice("rope_q_position", attention.rope_q_position, usual.rope_q_position);
  writer.boolean("alibi", attention.alibi, usual.alibi);
  writer.choice("bias", attention.bias, usual.bias);
  writer.number("dropout", attention.dropout, usual.dropout);
  writer.choice("dropout_mode", attention.dropout_mode, usual.dropout_mode);
  writer.integer("latent_dim", attention.latent_dim, usual.latent_dim);
  writer.integer("latent_nope_dim", attention.latent_nope_dim, usual.latent_nope_dim);
}

void print_generator(const Generator& generator, TomlWriter& writer) {
  const Generator usual;
  writer.table("batch.generator");
  writer.text("name", generator.name);
  writer.integer("tokens", generator.tokens, usual.tokens);
  writer.number("mu", generator.mu, usual.mu);
  writer.number("sigma", generator.sigma, usual.sigma);
  writer.number("alpha", generator.alpha, usual.alpha);
  writer.integer("tail_from", generator.tail_from, usual.tail_from);
  writer.number("tail_share", generator.tail_share, usual.tail_share);
  writer.integer("min", generator.min, usual.min);
  writer.integer("max", generator.max, usual.max);
  writer.integer("count", generator.count, usual.count);
  writer.integer("seed", static_cast<int64_t>(generator.seed), static_cast<int64_t>(usual.seed));
  writer.text("file", generator.file);
}

bool are_equal(const std::vector<int64_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [&](int64_t number) { return number == numbers.front(); });
}

void print_batch(const Batch& batch, TomlWriter& writer) {
  const Batch usual;
  writer.table("batch");
  writer.choice("qkv_format", batch.qkv_format, usual.qkv_format);
  // batch_size and seqlen are enough if every sequence fills its slot.
  const bool is_uniform = batch.qkv_format != QkvFormat::thd && !batch.lengths.empty() &&
                          are_equal(batch.lengths) && batch.slots == batch.lengths &&
                          !batch.generator;
  if (is_uniform) {
    writer.line("batch_size", fmt::format("{}", batch.lengths.size()));
    writer.line("seqlen", fmt::format("{}", batch.lengths.front()));
  } else if (!batch.generator) {
    writer.line("lengths", show_toml_list(batch.lengths));
  }
  if (batch.kv_lengths != batch.lengths) {
    writer.line("kv_lengths", show_toml_list(batch.kv_lengths));
  }
  if (batch.slots != find_default_slots(batch, batch.lengths)) {
    writer.line("slots", show_toml_list(batch.slots));
  }
  const std::vector<int64_t> usual_kv_slots =
      batch.kv_lengths == batch.lengths ? batch.slots : find_default_slots(batch, batch.kv_lengths);
  if (batch.kv_slots != usual_kv_slots) {
    writer.line("kv_slots", show_toml_list(batch.kv_slots));
  }
  writer.integer("slot_multiple", batch.slot_multiple, usual.slot_multiple);
  writer.choice("pad_side", batch.pad_side, usual.pad_side);
  writer.boolean("pad_between_seqs", batch.pad_between_seqs, usual.pad_between_seqs);
  writer.text("positions_file", batch.positions_file);
  if (batch.generator) print_generator(*batch.generator, writer);
}

void print_parallel(const Parallel& parallel, TomlWriter& writer) {
  const Parallel usual;
  writer.table("parallel");
  writer.integer("cp_size", parallel.cp_size, usual.cp_size);
  writer.choice("cp_comm_type", parallel.comm_type, usual.comm_type);
  writer.choice("layout", parallel.layout, usual.layout);
  writer.integer("a2a_size", parallel.a2a_size, usual.a2a_size);
  writer.integer("dispatch_chunk", parallel.dispatch_chunk, usual.dispatch_chunk);
  writer.integer("stripe", parallel.stripe, usual.stripe);
  writer.text("indices_file", parallel.indices_file);
  writer.choice("dispatch", parallel.dispatch, usual.dispatch);
  writer.choice("backward_kv", parallel.backward_kv, usual.backward_kv);
  writer.choice("partial_wire", parallel.partial_wire, usual.partial_wire);
  writer.integer("mesh_q", parallel.mesh_q, usual.mesh_q);
  writer.integer("ring_window", parallel.ring_window, usual.ring_window);
  writer.choice("ring_backward", parallel.ring_backward, usual.ring_backward);
  writer.choice("combine", parallel.combine, usual.combine);
  writer.choice("q_owner", parallel.q_owner, usual.q_owner);
  writer.integer("heads_per_stage", parallel.heads_per_stage, usual.heads_per_stage);
  writer.integer("kv_replicated", parallel.kv_replicated, usual.kv_replicated);
  if (parallel.group_rule == GroupRule::given)
    writer.line("cp_sizes", show_toml_list(parallel.cp_sizes));
  else if (parallel.group_rule == GroupRule::fixed)
    writer.line("cp_sizes", std::to_string(parallel.cp_sizes.front()));
  else if (has_rounds(parallel))
    writer.text("cp_sizes", to_name(parallel.group_rule));
  writer.integer("max_tokens_per_rank", parallel.max_tokens_per_rank, usual.max_tokens_per_rank);
}

void print_numerics(const Numerics& numerics, TomlWriter& writer) {
  const Numerics usual;
  writer.table("numerics");
  if (numerics.fp8) writer.text("dtype", "fp8");
  writer.choice("dtype", numerics.dtype, usual.dtype);
  writer.boolean("backward", numerics.backward, usual.backward);
  writer.integer("seed", static_cast<int64_t>(numerics.seed), static_cast<int64_t>(usual.seed));
  writer.choice("dkv_wire", numerics.dkv_wire, usual.dkv_wire);
  writer.choice("dkv_hops", numerics.dkv_hops, usual.dkv_hops);
  writer.choice("accumulate", numerics.accumulate, usual.accumulate);
  writer.choice("inputs", numerics.inputs, usual.inputs);
  if (!numerics.fp8 || *numerics.fp8 == Fp8{}) return;
  const Fp8& fp8 = *numerics.fp8;
  writer.table("fp8");
  writer.choice("recipe", fp8.recipe, Fp8{}.recipe);
  writer.choice("format", fp8.format, Fp8{}.format);
  writer.choice("kv_wire", fp8.kv_wire, Fp8{}.kv_wire);
}

}  // namespace

std::string print_scenario(const Scenario& scenario) {
  TomlWriter writer;
  writer.line("schema", "1");
  writer.text("title", scenario.title);
  writer.text("question", scenario.question);
  print_attention(scenario.attention, writer);
  print_batch(scenario.batch, writer);
  print_parallel(scenario.parallel, writer);
  if (scenario.numerics != Numerics{}) print_numerics(scenario.numerics, writer);
  return writer.take();
}

}  // namespace cpscope
