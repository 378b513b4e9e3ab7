#include "sim/scenario/foreign_keys.h"
#include "sim/scenario/scenario_parts.h"

#include <algorithm>
#include <optional>
#include <span>

#include <fmt/format.h>

namespace cpscope {
namespace {

template <class Keys>
bool contains(const Keys& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

/// "it belongs into [batch]" for a key of another table.
std::string find_home(std::string_view key) {
  struct Home {
    std::string_view table;
    std::span<const std::string_view> keys;
  };
  const std::array<Home, 8> homes = {{{"attention", kAttentionKeys},
                                      {"batch", kBatchKeys},
                                      {"parallel", kParallelKeys},
                                      {"numerics", kNumericsKeys},
                                      {"fp8", kFp8Keys},
                                      {"batch.generator", kGeneratorKeys},
                                      {"attention.mask", kMaskKeys},
                                      {"", kTopKeys}}};
  for (const Home& home : homes) {
    if (!contains(home.keys, key)) continue;
    return home.table.empty() ? "it belongs above the first table"
                              : fmt::format("it belongs in [{}]", home.table);
  }
  return "";
}

void check_table(const TableReader& table) {
  for (const TomlMember& member : table.members()) {
    if (table.is_known(member.key)) continue;
    const std::string home = find_home(member.key);
    // `causal` is a key of a mask, and of other frameworks.
    const bool is_at_home = !home.empty() && !contains(kMaskKeys, member.key);
    if (const auto hint = explain_foreign_key(member.key, member.value, table.name());
        !is_at_home && hint) {
      table.complain_unknown(member, *hint);
      continue;
    }
    table.complain_unknown(member, home);
  }
}

/// Collects "KEY does not apply to ... and is unused" for keys that were given.
class UnusedKeys {
 public:
  void note(const TableReader& table, std::string_view key, bool is_used,
            const std::string& chosen) {
    if (is_used || !table.has(key)) return;
    sentences.push_back(
        fmt::format("{} does not apply to {} and is unused", table.full_name(key), chosen));
  }

  std::vector<std::string> sentences;
};

void list_unused_generator_keys(const TableReader& table, const Generator& generator,
                                UnusedKeys& unused) {
  const std::string& name = generator.name;
  const bool is_pareto = name == "lognormal+pareto";
  const bool is_lognormal = name == "lognormal" || is_pareto;
  const bool is_random = name != "equal" && name != "csv";
  const std::string chosen = "generator " + name;
  for (const std::string_view key : {"mu", "sigma"}) unused.note(table, key, is_lognormal, chosen);
  for (const std::string_view key : {"alpha", "tail_from", "tail_share"}) {
    unused.note(table, key, is_pareto, chosen);
  }
  unused.note(table, "min", is_random, chosen);
  unused.note(table, "max", name != "csv" && generator.count == 0, chosen);
  unused.note(table, "count", name == "equal", chosen);
  unused.note(table, "seed", is_random, chosen);
  unused.note(table, "file", name == "csv", chosen);
}

void list_unused_rotation_keys(const ScenarioTables& tables, const Scenario& scenario,
                               UnusedKeys& unused) {
  const bool has_rope = scenario.attention.rope_theta > 0,
             has_file = tables.batch.has("positions_file");
  unused.note(tables.attention, "rope_q_position", has_rope && !has_file,
              has_rope ? "positions of a file" : "rope_theta 0");
  unused.note(tables.batch, "positions_file", has_rope, "rope_theta 0");
  unused.note(tables.batch, "slot_multiple", !has_given_slots(tables.batch),
              "slots that are given");
}

void list_unused_mask_keys(const TableReader& table, const MaskGenerator& mask,
                           UnusedKeys& unused) {
  const std::string& name = mask.name;
  const std::string chosen = name.empty() ? "a mask from a file" : "mask " + name;
  const bool is_tree = name == "prefix_tree", is_global = name == "global_tokens",
             is_top_k = name == "top_k", is_block_top_k = name == "block_top_k";
  unused.note(table, "block", name == "block_causal" || name == "block_diffusion" || is_block_top_k,
              chosen);
  for (const std::string_view key : {"parents", "lengths"})
    unused.note(table, key, is_tree, chosen);
  unused.note(table, "groups", name == "image_groups", chosen);
  for (const std::string_view key : {"count", "window"})
    unused.note(table, key, is_global || is_top_k, chosen);
  unused.note(table, "causal", is_global, chosen);
  unused.note(table, "keys", is_top_k, chosen);
  unused.note(table, "blocks", is_block_top_k, chosen);
  unused.note(table, "seed", is_top_k || is_block_top_k, chosen);
  unused.note(table, "sequence", is_tree || name.empty(), chosen);
}

void list_unused_parallel_keys(const TableReader& table, const Parallel& parallel,
                               UnusedKeys& unused) {
  const std::string comm_type = fmt::format("cp_comm_type {}", to_name(parallel.comm_type));
  const std::string layout = fmt::format("layout {}", to_name(parallel.layout));
  const bool is_group_cast = parallel.comm_type == CommType::group_cast;
  unused.note(table, "a2a_size", has_head_groups(parallel.comm_type), comm_type);
  unused.note(table, "dispatch", is_group_cast, comm_type);
  unused.note(table, "backward_kv", is_group_cast || parallel.comm_type == CommType::all_gather,
              comm_type);
  unused.note(table, "partial_wire", sends_partials(parallel.comm_type), comm_type);
  unused.note(table, "mesh_q", parallel.comm_type == CommType::mesh, comm_type);
  unused.note(table, "ring_window", has_windows(parallel.comm_type), comm_type);
  unused.note(table, "ring_backward", has_ring_backward(parallel.comm_type), comm_type);
  unused.note(table, "combine", parallel.comm_type == CommType::gather_q, comm_type);
  unused.note(table, "q_owner", parallel.comm_type == CommType::gather_q, comm_type);
  unused.note(table, "heads_per_stage", has_head_stages(parallel.comm_type), comm_type);
  unused.note(table, "dispatch_chunk",
              parallel.layout == LayoutKind::lpt || parallel.layout == LayoutKind::lpt_local,
              layout);
  unused.note(table, "stripe", parallel.layout == LayoutKind::striped, layout);
  unused.note(table, "indices_file", parallel.layout == LayoutKind::indices, layout);
}

}  // namespace

void check_unknown_keys(const ScenarioTables& tables) {
  for (const TableReader* table :
       {&tables.top, &tables.attention, &tables.mask, &tables.batch, &tables.generator,
        &tables.parallel, &tables.numerics, &tables.fp8}) {
    check_table(*table);
  }
}

std::vector<std::string> list_unused_keys(const ScenarioTables& tables, const Scenario& scenario) {
  UnusedKeys unused;
  const Attention& attention = scenario.attention;
  const Batch& batch = scenario.batch;
  for (const std::string_view key : {"slices", "mask"}) {
    unused.note(tables.attention, key, attention.mask_type == MaskType::slices,
                fmt::format("attn_mask_type {}", to_name(attention.mask_type)));
  }
  if (attention.generator) list_unused_mask_keys(tables.mask, *attention.generator, unused);

  // With thd, slots follow the lengths; seqlen sets slots only if no lengths are given.
  const bool has_lengths = tables.batch.has("lengths") || tables.batch.has("generator");
  const bool uses_seqlen = batch.qkv_format != QkvFormat::thd || !has_lengths;
  for (const std::string_view key : {"seqlen", "kv_seqlen"}) {
    unused.note(tables.batch, key, uses_seqlen, "qkv_format thd with lengths");
  }
  if (uses_seqlen && has_lengths && tables.batch.has("kv_seqlen") &&
      !tables.batch.has("kv_lengths")) {
    unused.sentences.push_back(
        "batch.kv_seqlen without kv_lengths pads KV that has the lengths of the queries");
  }
  if (batch.generator) list_unused_generator_keys(tables.generator, *batch.generator, unused);

  list_unused_rotation_keys(tables, scenario, unused);
  list_unused_parallel_keys(tables.parallel, scenario.parallel, unused);

  const Numerics& numerics = scenario.numerics;
  const CommType comm_type = scenario.parallel.comm_type;
  // A double ring always ends with a hop home.
  const bool has_choice = comm_type == CommType::p2p || comm_type == CommType::a2a_p2p;
  const bool moves_queries = comm_type == CommType::p2p && sends_queries_backward(scenario);
  const std::string comm_name = fmt::format("cp_comm_type {}", to_name(comm_type));
  unused.note(tables.numerics, "dkv_hops", has_choice && !moves_queries,
              moves_queries ? "ring_backward q" : comm_name);
  if (!numerics.backward) {
    unused.note(tables.numerics, "dkv_hops", !has_choice, "backward = false");
    unused.note(tables.parallel, "ring_backward", !has_ring_backward(comm_type),
                "backward = false");
    unused.note(tables.numerics, "dkv_wire", false, "backward = false");
  }
  if (numerics.dtype == Dtype::fp64) {
    unused.note(tables.numerics, "dkv_wire", !numerics.backward, "dtype fp64");
    unused.note(tables.numerics, "accumulate", false, "dtype fp64");
  }
  unused.note(tables.attention, "dropout_mode", attention.dropout > 0, "dropout 0");
  for (const std::string_view key : kFp8Keys) {
    unused.note(tables.fp8, key, numerics.fp8.has_value(),
                fmt::format("dtype {}", to_name(numerics.dtype)));
  }
  for (const std::string_view key : {"format", "kv_wire"}) {
    unused.note(tables.fp8, key, !numerics.fp8 || numerics.fp8->recipe != Fp8Recipe::mxfp8,
                "recipe mxfp8");
  }
  return unused.sentences;
}

}  // namespace cpscope
