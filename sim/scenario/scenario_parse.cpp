#include "sim/scenario/complaints.h"
#include "sim/scenario/order_file.h"
#include "sim/scenario/positions_file.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/scenario_names.h"
#include "sim/scenario/scenario_parts.h"
#include "sim/scenario/score_terms.h"
#include "sim/scenario/table_reader.h"
#include "sim/scenario/text_file.h"
#include "sim/scenario/toml_document.h"
#include "sim/scenario/toml_guard.h"

#include <limits>
#include <numeric>
#include <optional>
#include <span>

#include <fmt/format.h>

namespace cpscope {
namespace {

void read_top(const TableReader& table, Scenario& scenario) {
  table.require("schema", "begin the file with: schema = 1");
  table.integer("schema", 1, 1);
  take_value(table.text("title"), scenario.title);
  take_value(table.text("question"), scenario.question);
  for (const std::string_view name : {"attention", "batch", "parallel"}) {
    if (!table.has(name)) {
      table.complaints().add({}, fmt::format("a required table is missing: [{}]", name),
                             fmt::format("add a line [{}] and its keys below it", name));
    }
  }
}

/// Reads the communication type; custom in a plan document alone.
std::optional<CommType> read_comm_type(const TableReader& table, std::string_view key,
                                       ScenarioOrigin origin) {
  const TomlValue value = table.find(key);
  if (value.kind() != TomlKind::text || value.text() != to_name(CommType::custom))
    return table.choice<CommType>(key, kCommTypes);
  if (origin == ScenarioOrigin::plan_document) return CommType::custom;
  table.complain(
      key, "is a schedule of its own, which a scenario does not hold: " + show_text(value.text()),
      "write its steps as a plan document (as `cpscope plan FILE --json --full` prints "
      "one), or with cpscope.Schedule in Python");
  return std::nullopt;
}

/// Reads cp_sizes: the ranks of each sequence, of every sequence, or the rule that chooses them.
void read_cp_sizes(const TableReader& table, Parallel& parallel) {
  take_value(table.integer("max_tokens_per_rank", 1, kMaxTokens), parallel.max_tokens_per_rank);
  const TomlValue value = table.find("cp_sizes");
  if (value.kind() == TomlKind::text) {
    take_value(table.choice<GroupRule>("cp_sizes", kGroupRules), parallel.group_rule);
    table.require("max_tokens_per_rank", "give the tokens that a rank may hold");
  } else if (value.kind() == TomlKind::integer) {
    const auto size = table.integer("cp_sizes", 1, std::max(1, parallel.cp_size));
    if (!size) return;
    parallel.group_rule = GroupRule::fixed;
    parallel.cp_sizes = {*size};
  } else if (value.kind() != TomlKind::none) {
    const auto sizes = table.integers("cp_sizes", 1, std::max(1, parallel.cp_size), kMaxSequences);
    if (!sizes || sizes->empty()) return;
    parallel.group_rule = GroupRule::given;
    parallel.cp_sizes = *sizes;
  }
}

/// Complains if there is not one size for each sequence.
void check_cp_sizes(const TableReader& table, const Batch& batch, const Parallel& parallel) {
  if (parallel.group_rule != GroupRule::given || batch.lengths.empty() ||
      parallel.cp_sizes.size() == batch.lengths.size())
    return;
  table.complain("cp_sizes",
                 fmt::format("must have one entry for each sequence: {} entries, {} sequences",
                             parallel.cp_sizes.size(), batch.lengths.size()),
                 "give the number of ranks that share each sequence");
}

void read_parallel(const TableReader& table, ScenarioOrigin origin, Parallel& parallel) {
  const std::string_view comm_key = "cp_comm_type";
  if (table.is_table()) table.require("cp_size", "give the number of ranks");
  const auto cp_size = table.integer("cp_size", 1, kMaxRanks);
  take_value(cp_size, parallel.cp_size);
  take_value(read_comm_type(table, comm_key, origin), parallel.comm_type);
  take_value(table.choice<LayoutKind>("layout", kLayoutKinds), parallel.layout);
  const auto a2a_size = table.integer("a2a_size", 1, kMaxRanks);
  take_value(a2a_size, parallel.a2a_size);
  take_value(table.integer("dispatch_chunk", 1, kMaxTokens), parallel.dispatch_chunk);
  take_value(table.integer("stripe", 1, kMaxTokens), parallel.stripe);
  take_value(table.text("indices_file"), parallel.indices_file);
  take_value(table.choice<Dispatch>("dispatch", kDispatches), parallel.dispatch);
  take_value(table.choice<BackwardKv>("backward_kv", kBackwardKvs), parallel.backward_kv);
  take_value(table.choice<WireFormat>("partial_wire", kWireFormats), parallel.partial_wire);
  const auto mesh_q = table.integer("mesh_q", 1, kMaxRanks);
  take_value(mesh_q, parallel.mesh_q);
  const auto ring_window = table.integer("ring_window", 1, kMaxRanks);
  take_value(ring_window, parallel.ring_window);
  take_value(table.choice<RingBackward>("ring_backward", kRingBackwards), parallel.ring_backward);
  take_value(table.choice<Combine>("combine", kCombines), parallel.combine);
  take_value(table.choice<QOwner>("q_owner", kQOwners), parallel.q_owner);
  take_value(table.integer("heads_per_stage", 0, kMaxHeads), parallel.heads_per_stage);
  take_value(table.integer("kv_replicated", 0, kMaxTokens), parallel.kv_replicated);
  read_cp_sizes(table, parallel);

  const auto require_divisor = [&](bool applies, std::string_view key, bool was_read, int32_t value,
                                   std::string_view of, int32_t divided, std::string_view meaning) {
    const bool is_known = cp_size && (was_read || !table.has(key));
    if (!applies || !is_known || divided % value == 0) return true;
    table.complain(table.has(key) ? key : comm_key,
                   fmt::format("needs {0} that divides {1}: {2} does not divide {3}",
                               key == "a2a_size" ? "an a2a_size" : fmt::format("a {}", key), of,
                               value, divided),
                   std::string(meaning));
    return false;
  };
  const CommType type = parallel.comm_type;
  const bool has_groups =
      require_divisor(has_head_groups(type), "a2a_size", a2a_size.has_value(), parallel.a2a_size,
                      "cp_size", parallel.cp_size, "a rank is p2p_index * a2a_size + a2a_index");
  require_divisor(type == CommType::mesh, "mesh_q", mesh_q.has_value(), parallel.mesh_q, "cp_size",
                  parallel.cp_size,
                  "a tile has mesh_q query chunks and cp_size / mesh_q key chunks");
  require_divisor(type == CommType::double_ring, "ring_window", ring_window.has_value(),
                  parallel.ring_window, "cp_size", parallel.cp_size,
                  "a window is a host of ring_window consecutive ranks");
  if (has_groups && (a2a_size || !table.has("a2a_size")))
    require_divisor(type == CommType::a2a_double_ring, "ring_window", ring_window.has_value(),
                    parallel.ring_window, "cp_size / a2a_size",
                    parallel.cp_size / parallel.a2a_size,
                    "a window is a host of ring_window consecutive groups of a2a_size ranks");
  if (parallel.layout == LayoutKind::indices) {
    table.require("indices_file", "name the JSON file with the token order");
  }
}

/// The values of numerics.dtype.
enum class DtypeChoice { bf16, fp16, fp32, fp64, fp8 };
constexpr std::array kDtypeChoices = {DtypeChoice::bf16, DtypeChoice::fp16, DtypeChoice::fp32,
                                      DtypeChoice::fp64, DtypeChoice::fp8};

std::string_view to_name(DtypeChoice value) {
  if (value == DtypeChoice::fp8) return "fp8";
  return to_name(kDtypes[static_cast<size_t>(value)]);
}

void read_dtype(const TableReader& table, Numerics& numerics) {
  const auto choice = table.choice<DtypeChoice>("dtype", kDtypeChoices);
  if (!choice) return;
  if (*choice == DtypeChoice::fp8) {
    numerics.fp8.emplace();
  } else {
    numerics.dtype = kDtypes[static_cast<size_t>(*choice)];
  }
}

void read_numerics(const TableReader& table, Numerics& numerics) {
  read_dtype(table, numerics);
  take_value(table.boolean("backward"), numerics.backward);
  take_value(table.integer("seed", 0, std::numeric_limits<int64_t>::max()), numerics.seed);
  take_value(table.choice<WireFormat>("dkv_wire", kWireFormats), numerics.dkv_wire);
  take_value(table.choice<DkvHops>("dkv_hops", kDkvHops), numerics.dkv_hops);
  take_value(table.choice<Accumulate>("accumulate", kAccumulates), numerics.accumulate);
  take_value(table.choice<InputKind>("inputs", kInputKinds), numerics.inputs);
}

void read_fp8(const TableReader& table, Numerics& numerics) {
  Fp8 fp8;
  take_value(table.choice<Fp8Recipe>("recipe", kFp8Recipes), fp8.recipe);
  take_value(table.choice<Fp8Format>("format", kFp8Formats), fp8.format);
  take_value(table.choice<Fp8KvWire>("kv_wire", kFp8KvWires), fp8.kv_wire);
  if (fp8.recipe == Fp8Recipe::mxfp8) fp8.kv_wire = Fp8KvWire::bf16;
  if (numerics.fp8) numerics.fp8 = fp8;
}

void read_window(const TableReader& table, Attention& attention) {
  const auto window = table.integers("window_size", -1, kMaxTokens, 2);
  if (!window) return;
  if (window->size() != 2) {
    table.complain("window_size",
                   fmt::format("must have 2 entries, left and right: {}", window->size()),
                   "write [-1, -1] for an unbounded window");
    return;
  }
  attention.window_left = (*window)[0];
  attention.window_right = (*window)[1];
}

/// Reads head_dim for both, or head_dim_qk and head_dim_v.
void read_head_dims(const TableReader& table, Attention& attention) {
  const auto both = table.integer("head_dim", 1, kMaxHeadDim);
  const auto qk = table.integer("head_dim_qk", 1, kMaxHeadDim);
  const auto v = table.integer("head_dim_v", 1, kMaxHeadDim);
  const bool has_qk = table.has("head_dim_qk"), has_v = table.has("head_dim_v");
  if (table.has("head_dim") && (has_qk || has_v)) {
    table.complain(
        "head_dim",
        "is given next to head_dim_qk or head_dim_v: " + show_value_of(table.find("head_dim")),
        "give head_dim alone, or head_dim_qk and head_dim_v");
    return;
  }
  if (has_qk || has_v) {
    table.require("head_dim_qk", "head_dim_qk is required with head_dim_v");
    if (!table.has("latent_dim") || table.has("latent_nope_dim"))
      table.require("head_dim_v", "head_dim_v is required with head_dim_qk");
  } else if (table.is_table()) {
    table.require("head_dim", "give head_dim, or head_dim_qk and head_dim_v");
  }
  take_value(both ? both : qk, attention.head_dim_qk);
  take_value(both ? both : v, attention.head_dim_v);
}

/// Reads latent_nope_dim, the expanded form.
void read_expanded_form(const TableReader& table, Attention& attention) {
  const auto made = table.integer("latent_nope_dim", 0, kMaxHeadDim);
  if (!made || *made == 0) return;
  attention.latent_nope_dim = static_cast<int32_t>(*made);
  if (attention.latent_dim == 0) {
    table.complain("latent_nope_dim", "is given without latent_dim",
                   "latent_dim is the number of elements that the others are made of");
  }
  if (*made > attention.head_dim_qk) {
    table.complain("latent_nope_dim",
                   fmt::format("is larger than head_dim_qk: {} > {}", *made, attention.head_dim_qk),
                   "a head of k has these elements and the rotated ones");
  }
  if (attention.key_dim() > kMaxHeadDim) {
    table.complain("latent_nope_dim",
                   fmt::format("makes a row of k of {} elements, at most {} are possible",
                               attention.key_dim(), kMaxHeadDim),
                   "a row has latent_dim + head_dim_qk - latent_nope_dim elements");
  }
}

/// Reads latent_dim; in the absorbed form it is also the default of head_dim_v.
void read_latent(const TableReader& table, Attention& attention) {
  const auto latent = table.integer("latent_dim", 0, kMaxHeadDim);
  if (latent) attention.latent_dim = static_cast<int32_t>(*latent);
  read_expanded_form(table, attention);
  if (!latent || *latent == 0) return;
  if (!table.has("head_dim") && !table.has("head_dim_v") && !attention.expands_rows())
    attention.head_dim_v = attention.latent_dim;
  if (attention.kv_heads != 1) {
    table.complain(table.has("kv_heads") ? "kv_heads" : "latent_dim",
                   fmt::format("latent attention has one KV head: {}", attention.kv_heads),
                   "write kv_heads = 1: all query heads read the same latent rows");
  }
  if (attention.expands_rows()) return;
  if (attention.head_dim_v != *latent) {
    table.complain("latent_dim",
                   fmt::format("must be head_dim_v: {} is not {}", *latent, attention.head_dim_v),
                   "v is the first latent_dim elements of k");
  }
  if (attention.head_dim_qk < *latent) {
    table.complain(
        "latent_dim",
        fmt::format("is larger than head_dim_qk: {} > {}", *latent, attention.head_dim_qk),
        "the latent elements are a part of k");
  }
}

/// Reads what is added to logits and what drops weights.
void read_score_terms(const TableReader& table, Attention& attention) {
  take_value(table.boolean("alibi"), attention.alibi);
  take_value(table.choice<BiasShape>("bias", kBiasShapes), attention.bias);
  take_value(table.choice<DropoutMode>("dropout_mode", kDropoutModes), attention.dropout_mode);
  const auto dropout = table.number("dropout");
  if (!dropout) return;
  if (*dropout >= 1.0) {
    table.complain("dropout", fmt::format("is the share of dropped weights: {:g}", *dropout),
                   "at least 0 and below 1");
    return;
  }
  attention.dropout = *dropout;
}

/// Fills the token order if its file fits the batch.
void read_order(const TableReader& table, const std::string& base_dir, const Batch& batch,
                Parallel& parallel) {
  OrderDemand demand;
  demand.cp_size = parallel.cp_size;
  demand.tokens = std::reduce(batch.slots.begin(), batch.slots.end(), int64_t{0});
  demand.kv_tokens = std::reduce(batch.kv_slots.begin(), batch.kv_slots.end(), int64_t{0});
  demand.self_attention = batch.self_attention;
  const bool is_left = batch.pad_side == PadSide::left;
  demand.places = {batch.lengths, batch.slots, is_left};
  demand.kv_places = {batch.kv_lengths, batch.kv_slots, is_left};
  Result<ImportedOrder> order = load_order(join_path(base_dir, parallel.indices_file), demand);
  if (!order) {
    table.complaints().add_all(order.error(), table.place("indices_file"));
    return;
  }
  parallel.imported = std::move(order).value();
}

/// Fills the rotary positions if their file fits the batch.
void read_positions(const TableReader& table, const std::string& base_dir, Batch& batch) {
  const auto sum = [](const std::vector<int64_t>& lengths) {
    return std::reduce(lengths.begin(), lengths.end(), int64_t{0});
  };
  Result<RotaryPositions> positions = load_positions(join_path(base_dir, batch.positions_file),
                                                     sum(batch.lengths), sum(batch.kv_lengths));
  if (!positions) {
    table.complaints().add_all(positions.error(), table.place("positions_file"));
    return;
  }
  batch.q_positions = std::move(positions.value().q);
  batch.kv_positions = std::move(positions.value().kv);
}

/// Rejects what the format can say and nothing computes yet.
void refuse_unfinished(const ScenarioTables& tables, const Scenario& scenario) {
  const auto refuse = [](bool is_given, const TableReader& table, std::string_view key,
                         std::string_view name) {
    if (is_given)
      table.complaints().refuse(table.place(key), fmt::format("{} is not supported", name),
                                "leave it out");
  };
  refuse(scenario.numerics.fp8 && scenario.attention.expands_rows(), tables.attention,
         "latent_nope_dim", "Expanding latent rows with dtype fp8");
}

ScenarioTables open_tables(const TomlValue& root, Complaints& complaints, ScenarioOrigin origin,
                           std::vector<ReadKey>* log) {
  const auto open = [&](std::string_view name, std::span<const std::string_view> keys) {
    return TableReader(root.member(name), std::string(name), keys, complaints, log);
  };
  const TomlValue batch = root.member("batch");
  const TomlValue generator =
      batch.kind() == TomlKind::table ? batch.member("generator") : TomlValue();
  const TomlValue attention = root.member("attention");
  const TomlValue mask =
      attention.kind() == TomlKind::table ? attention.member("mask") : TomlValue();
  return {TableReader(root, "", kTopKeys, complaints, log),
          open("attention", kAttentionKeys),
          TableReader(mask, "attention.mask", kMaskKeys, complaints, log),
          open("batch", kBatchKeys),
          TableReader(generator, "batch.generator", kGeneratorKeys, complaints, log),
          open("parallel", kParallelKeys),
          open("numerics", kNumericsKeys),
          open("fp8", kFp8Keys),
          origin};
}

}  // namespace

void read_attention(const TableReader& table, Attention& attention) {
  if (table.is_table()) table.require("heads", "give the number of query heads");
  const auto heads = table.integer("heads", 1, kMaxHeads);
  const auto kv_heads = table.integer("kv_heads", 1, kMaxHeads);
  take_value(heads, attention.heads);
  take_value(table.has("kv_heads") ? kv_heads : heads, attention.kv_heads);
  if (heads && kv_heads && *heads % *kv_heads != 0) {
    table.complain("kv_heads",
                   fmt::format("must divide heads: {} does not divide {}", *kv_heads, *heads),
                   "each KV head serves the same number of query heads");
  }
  read_head_dims(table, attention);
  take_value(table.choice<MaskType>("attn_mask_type", kMaskTypes), attention.mask_type);
  read_window(table, attention);
  take_value(table.integer("chunk_size", 0, kMaxTokens), attention.chunk_size);
  take_value(table.number("softmax_scale"), attention.softmax_scale);
  take_value(table.number("softcap"), attention.softcap);
  take_value(table.choice<SoftmaxType>("softmax_type", kSoftmaxTypes), attention.softmax_type);
  take_value(table.number("rope_theta"), attention.rope_theta);
  take_value(table.choice<RopeQPosition>("rope_q_position", kRopeQPositions),
             attention.rope_q_position);
  read_score_terms(table, attention);
  read_latent(table, attention);
  // Outside these bounds fp32 logits overflow or vanish, whatever the executor.
  constexpr double kLargest = 1e30, kSmallest = 1e-30;
  for (const auto& [key, value] :
       {std::pair{"softmax_scale", attention.softmax_scale},
        std::pair{"softcap", attention.softcap}, std::pair{"rope_theta", attention.rope_theta}}) {
    if (value == 0.0 || (value >= kSmallest && value <= kLargest)) continue;
    table.complain(key, fmt::format("is out of the range of fp32 logits: {:g}", value),
                   "0, or between 1e-30 and 1e30");
  }
  const int32_t rotated = attention.head_dim_qk - attention.first_rotated_of_q();
  if (attention.rope_theta > 0.0 && (rotated % 2 != 0 || rotated == 0)) {
    table.complain(
        "rope_theta",
        attention.latent_dim == 0
            ? fmt::format("needs an even head_dim_qk: {}", attention.head_dim_qk)
            : fmt::format("needs an even number of elements behind {}, at least 2: {}",
                          attention.expands_rows() ? "latent_nope_dim" : "latent_dim", rotated),
        "rotary embedding rotates pairs of elements");
  }
  if (attention.mask_type == MaskType::slices && !table.has("mask")) {
    table.require("slices", "write slices = [] if nothing is to be visible, or give a mask");
  }
}

namespace {

Result<LoadedScenario> parse_logged(std::string_view text, const std::string& path,
                                    ScenarioOrigin origin, std::vector<ReadKey>* log) {
  Result<TomlDocument> document = TomlDocument::parse(text, path);
  if (!document) return document.error();

  Complaints complaints(path);
  const std::string base_dir = find_folder(path);
  const ScenarioTables tables = open_tables(document.value().root(), complaints, origin, log);
  Scenario scenario;
  check_unknown_keys(tables);
  read_top(tables.top, scenario);
  read_attention(tables.attention, scenario.attention);
  read_parallel(tables.parallel, origin, scenario.parallel);
  read_numerics(tables.numerics, scenario.numerics);
  read_fp8(tables.fp8, scenario.numerics);
  refuse_unfinished(tables, scenario);
  read_batch(tables, base_dir, scenario.batch);
  check_cp_sizes(tables.parallel, scenario.batch, scenario.parallel);

  if (const auto reason = terms_too_large(scenario.attention, scenario.batch))
    complaints.refuse(tables.attention.place(
                          scenario.attention.bias != BiasShape::none ? "bias" : "dropout_mode"),
                      *reason, "use fewer tokens or heads");

  // Slices and orders are checked against the batch, so they need one; their form is checked
  // anyway.
  const bool has_batch = !scenario.batch.lengths.empty();
  const bool uses_slices = scenario.attention.mask_type == MaskType::slices;
  const Batch* const batch = has_batch && uses_slices ? &scenario.batch : nullptr;
  read_slices(tables, batch, scenario.attention);
  read_mask(tables, base_dir, batch, scenario.attention);
  const bool reads_files = !tables.is_plan_document();
  const bool uses_order = reads_files && scenario.parallel.layout == LayoutKind::indices;
  if (has_batch && uses_order && scenario.parallel.cp_size > 0 &&
      !scenario.parallel.indices_file.empty()) {
    read_order(tables.parallel, base_dir, scenario.batch, scenario.parallel);
  }

  if (has_batch && reads_files && !scenario.batch.positions_file.empty())
    read_positions(tables.batch, base_dir, scenario.batch);

  if (complaints.count() > 0) return complaints.to_error();
  std::vector<std::string> warnings = list_unused_keys(tables, scenario);
  return LoadedScenario{std::move(scenario), std::string(text), path, std::move(warnings), nullptr};
}

}  // namespace

Result<LoadedScenario> parse_scenario(std::string_view text, const std::string& path,
                                      ScenarioOrigin origin) {
  return parse_logged(text, path, origin, nullptr);
}

void log_keys(std::string_view text, std::vector<ReadKey>& log) {
  static_cast<void>(parse_logged(text, "<keys>", ScenarioOrigin::file, &log));
}

Result<LoadedScenario> load_scenario(const std::string& path) {
  const Result<std::string> text = read_text_file(path, kMaxTomlBytes);
  if (!text) return text.error();
  return parse_scenario(text.value(), path);
}

}  // namespace cpscope
