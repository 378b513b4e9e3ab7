// The module cpscope._core: scenarios, layouts, plans and imported orders. The public package is
// reference/python/cpscope; it calls this module with arrays and words that it has checked.

#include "reference/python/arrays.h"
#include "reference/python/boxes.h"
#include "sim/base/version.h"
#include "sim/documents/key_text.h"
#include "sim/documents/te_text.h"
#include "sim/documents/verdict_text.h"
#include "sim/plan/check/plan_text.h"
#include "sim/plan/document/load_plan.h"
#include "sim/plan/document/plan_document.h"
#include "sim/plan/local_keys.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/visit_items.h"
#include "sim/run/grade/case.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/foreign_keys.h"
#include "sim/scenario/key_place.h"
#include "sim/scenario/order_file.h"
#include "sim/scenario/scenario_names.h"
#include "sim/scenario/scenario_parts.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <type_traits>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace cpscope::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

/// Runs `work` without the GIL.
template <class Work>
auto unlocked(Work work) {
  const nb::gil_scoped_release release;
  return work();
}

nb::dict known_keys() {
  nb::dict keys;
  const auto add = [&](const char* table, const auto& names) {
    for (const std::string_view name : names) keys[nb::str(name.data(), name.size())] = table;
  };
  add("", kTopKeys);
  add("attention", kAttentionKeys);
  add("batch", kBatchKeys);
  add("parallel", kParallelKeys);
  add("numerics", kNumericsKeys);
  add("fp8", kFp8Keys);
  return keys;
}

/// What to write for a key of another framework; nothing for any other key. `value` is TOML, or
/// empty if it has no short form.
std::optional<std::string> explain_key(const std::string& key, const std::string& value) {
  const Result<TomlDocument> document = TomlDocument::parse("value = " + value, "<value>");
  const TomlValue read = document ? document.value().root().member("value") : TomlValue();
  return explain_foreign_key(key, read, std::nullopt);
}

/// What makes the mask slices, by the keys of the contract: name and what it needs, or file.
nb::object mask_of(const Attention& attention) {
  if (!attention.generator) return nb::none();
  const MaskGenerator& mask = *attention.generator;
  nb::dict keys;
  if (!mask.file.empty()) keys["file"] = mask.file;
  if (!mask.name.empty()) keys["name"] = mask.name;
  if (mask.block > 0) keys["block"] = mask.block;
  if (mask.name == "prefix_tree") {
    keys["parents"] = mask.parents;
    keys["lengths"] = mask.lengths;
  }
  if (mask.name == "image_groups") {
    nb::list groups;
    for (const TokenGroup& group : mask.groups)
      groups.append(nb::make_tuple(group.begin, group.end));
    keys["groups"] = groups;
  }
  const bool is_top_k = mask.name == "top_k", is_block_top_k = mask.name == "block_top_k";
  if (is_top_k) keys["keys"] = mask.keys;
  if (is_block_top_k) keys["blocks"] = mask.blocks;
  if (is_top_k || is_block_top_k) keys["seed"] = mask.seed;
  if (mask.name == "global_tokens") keys["causal"] = mask.causal;
  if (mask.name == "global_tokens" || is_top_k) {
    keys["count"] = mask.count;
    keys["window"] = nb::make_tuple(mask.window_left, mask.window_right);
  }
  if (mask.sequence >= 0) keys["sequence"] = mask.sequence;
  return keys;
}

/// Every value that the scenario has, defaults filled in, by the contract's names.
nb::dict settings_of(const ScenarioBox& box) {
  const Scenario& s = box.scenario();
  const auto name = [](auto value) { return std::string(to_name(value)); };
  nb::dict all;
  all["title"] = s.title;
  all["question"] = s.question;
  all["heads"] = s.attention.heads;
  all["kv_heads"] = s.attention.kv_heads;
  all["head_dim_qk"] = s.attention.head_dim_qk;
  all["head_dim_v"] = s.attention.head_dim_v;
  all["attn_mask_type"] = name(s.attention.mask_type);
  nb::list slices;
  for (const MaskSlice& slice : s.attention.slices)
    slices.append(nb::make_tuple(slice.q0, slice.q1, slice.k0, slice.k1, name(slice.type)));
  all["slices"] = slices;
  all["mask"] = mask_of(s.attention);
  all["window_size"] = nb::make_tuple(s.attention.window_left, s.attention.window_right);
  all["chunk_size"] = s.attention.chunk_size;
  all["softmax_scale"] = s.attention.effective_scale();
  all["softcap"] = s.attention.softcap;
  all["softmax_type"] = name(s.attention.softmax_type);
  all["rope_theta"] = s.attention.rope_theta;
  all["rope_q_position"] = name(s.attention.rope_q_position);
  all["alibi"] = s.attention.alibi;
  all["bias"] = name(s.attention.bias);
  all["dropout"] = s.attention.dropout;
  all["latent_dim"] = s.attention.latent_dim;
  all["latent_nope_dim"] = s.attention.latent_nope_dim;
  all["qkv_format"] = name(s.batch.qkv_format);
  all["lengths"] = s.batch.lengths;
  all["kv_lengths"] = s.batch.kv_lengths;
  all["slot_multiple"] = s.batch.slot_multiple;
  all["pad_side"] = name(s.batch.pad_side);
  all["cp_size"] = s.parallel.cp_size;
  all["cp_comm_type"] = name(s.parallel.comm_type);
  all["layout"] = name(s.parallel.layout);
  all["q_owner"] = name(s.parallel.q_owner);
  all["dtype"] = std::string(dtype_name(s.numerics));
  if (s.numerics.fp8) {
    all["recipe"] = name(s.numerics.fp8->recipe);
    all["format"] = name(s.numerics.fp8->format);
    all["kv_wire"] = name(s.numerics.fp8->kv_wire);
  }
  all["backward"] = s.numerics.backward;
  all["seed"] = s.numerics.seed;
  all["inputs"] = name(s.numerics.inputs);
  return all;
}

/// True if both ask for the same, however they are named and their lengths and masks were written.
bool is_same_question(const ScenarioBox& left, const ScenarioBox& right) {
  Scenario a = left.scenario(), b = right.scenario();
  for (Scenario* one : {&a, &b}) {
    one->title.clear();
    one->question.clear();
    one->attention.generator.reset();
    one->batch.generator.reset();
    one->batch.positions_file.clear();
    one->parallel.indices_file.clear();
    one->attention.softmax_scale = one->attention.effective_scale();
  }
  return a == b;
}

ScenarioBox with_order(const ScenarioBox& box, const std::string& order_text) {
  auto ordered = unlocked([&]() -> Result<ScenarioBox> {
    if (box.loaded.plan != nullptr)
      return make_bad_input("a plan document has an order of its own", "take its scenario alone",
                            box.loaded.path);
    ScenarioBox made = box;
    const Result<OrderDemand> demand = demand_of_order(box.scenario());
    if (!demand) return locate_keys(demand.error(), box.loaded.text, box.loaded.path);
    Result<ImportedOrder> order = read_fitting_order(
        box.scenario(), demand.value(),
        [&](const OrderDemand& fitting) { return parse_order(order_text, "order", fitting); });
    if (!order) return order.error();
    if (auto error = use_order(std::move(order).value(), "order.json", made.loaded.scenario))
      return *error;
    return made;
  });
  return take(std::move(ordered), kInput);
}

/// The same scenario with another communication type.
ScenarioBox with_comm_type(ScenarioBox box, const std::string& name) {
  std::string known;
  for (const CommType type : kCommTypes) {
    known += (known.empty() ? "" : ", ") + std::string(to_name(type));
    if (name != to_name(type)) continue;
    box.loaded.scenario.parallel.comm_type = type;
    box.loaded.plan = nullptr;
    return box;
  }
  throw_input_error("no communication type has this name: " + name, known);
}

/// The text of a plan document, proved; the same as a file of this name.
ScenarioBox parse_plan(const std::string& text, const std::string& path) {
  auto parsed = unlocked([&] { return prove_plan_document(text, path); });
  return {take(std::move(parsed), kScenario)};
}

PlanBox make_checked_plan(const ScenarioBox& box) {
  return {take(unlocked([&] { return plan_scenario(box.loaded); }), kScenario)};
}

/// Token ids of one rank's local buffer.
IntegerList token_ids(const LayoutBox& box, int32_t rank, bool is_kv) {
  return to_numpy(expand(box.plan.layout.runs(is_kv ? Side::kv : Side::q).at(RankId{rank})));
}

/// The sequence and the position in it for every row of a rank's local buffer; -1 for padding.
std::pair<IntegerList, IntegerList> token_places(const LayoutBox& box, int32_t rank, bool is_kv) {
  const Layout& layout = box.plan.layout;
  const Side side = is_kv ? Side::kv : Side::q;
  const auto& sequences = layout.slots.sequences;
  std::vector<int64_t> sequence = expand(layout.runs(side).at(RankId{rank}));
  std::vector<int64_t> position(sequence.size(), -1);
  for (size_t row = 0; row < sequence.size(); ++row) {
    const int64_t token = sequence[row];
    // An empty slot begins at the same id as the next one; the last slot that begins there is used.
    const auto after = std::upper_bound(
        sequences.begin(), sequences.end(), token,
        [&](int64_t id, const SequenceSlot& slot) { return id < slot.side(side).begin; });
    sequence[row] = -1;
    if (after == sequences.begin()) continue;
    const SlotSide slot = (after - 1)->side(side);
    if (!slot.is_valid(token)) continue;
    sequence[row] = (after - sequences.begin()) - 1;
    position[row] = token - slot.valid_begin();
  }
  return {to_numpy(std::move(sequence)), to_numpy(std::move(position))};
}

using Columns = std::map<std::string, std::vector<int64_t>>;

nb::dict columns_dict(Columns columns) {
  nb::dict all;
  for (auto& [name, values] : columns) all[name.c_str()] = to_numpy(std::move(values));
  return all;
}

/// Columns: sequence, query of each valid query, and for every rank in turn keys that it sees.
nb::dict local_keys(const LayoutBox& box) {
  const std::vector<LocalKeys> counts = take(
      unlocked([&] { return count_local_keys(box.plan.scenario, box.plan.layout); }), kScenario);
  Columns columns{{"sequence", {}}, {"query", {}}};
  std::vector<int64_t>& keys = columns["keys"];
  for (const LocalKeys& one : counts) {
    columns["sequence"].push_back(one.sequence);
    columns["query"].push_back(one.query);
    keys.insert(keys.end(), one.keys.begin(), one.keys.end());
  }
  return columns_dict(std::move(columns));
}

/// Columns: step, sequence, position, rank, row of each token that is appended, and for every rank
/// in turn keys of the sequence after it.
nb::dict decode_steps(const LayoutBox& box, int64_t steps) {
  const std::vector<AppendedKey> appended = take(
      unlocked([&] { return grow_cache(box.plan.scenario, box.plan.layout, steps); }), kScenario);
  Columns columns{{"step", {}}, {"sequence", {}}, {"position", {}}, {"rank", {}}, {"row", {}}};
  std::vector<int64_t>& keys = columns["keys"];
  for (const AppendedKey& one : appended) {
    columns["step"].push_back(one.step);
    columns["sequence"].push_back(one.sequence);
    columns["position"].push_back(one.position);
    columns["rank"].push_back(one.rank);
    columns["row"].push_back(one.row);
    keys.insert(keys.end(), one.keys.begin(), one.keys.end());
  }
  return columns_dict(std::move(columns));
}

std::string plan_document(const PlanBox& box, bool is_summary) {
  return unlocked([&] {
    const PlanSummary summary = summarise(box.checked.plan());
    if (is_summary) return summary_json(box.checked, summary).dump();
    std::ostringstream out;
    write_plan_json(box.checked, summary, out);
    return out.str();
  });
}

/// The plan document that `cpscope check` proves.
std::string whole_plan(const PlanBox& box) {
  return unlocked([&] {
    std::ostringstream out;
    write_plan_document(box.checked.plan(), out);
    return out.str();
  });
}

/// The items of the plan in the order of its stages, a list of numbers for each column: pass (0
/// forward, 1 backward), kind (StageKind), item, step, rank (a transfer's sender), to, bytes,
/// pairs.
nb::dict plan_items(const PlanBox& box) {
  Columns columns;
  const auto add = [&](const ItemId& id, StepId step, RankId rank, int64_t to, int64_t bytes,
                       int64_t pairs) {
    columns["pass"].push_back(id.direction == Direction::backward ? 1 : 0);
    columns["kind"].push_back(static_cast<int64_t>(id.kind));
    columns["item"].push_back(id.index);
    columns["step"].push_back(to_index(step));
    columns["rank"].push_back(to_index(rank));
    columns["to"].push_back(to);
    columns["bytes"].push_back(bytes);
    columns["pairs"].push_back(pairs);
  };
  const Plan& plan = box.checked.plan();
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    if (direction == Direction::backward && !plan.scenario.numerics.backward) continue;
    for_each_item(plan, direction, [&](const ItemId& id, const auto& item) {
      using Item = std::decay_t<decltype(item)>;
      if constexpr (std::is_same_v<Item, TransferItem>) {
        add(id, item.step, item.src, to_index(item.dst), item.bytes, 0);
      } else if constexpr (std::is_same_v<Item, ComputeItem>) {
        add(id, item.step, item.rank, -1, 0, item.visible_pairs);
      } else {
        add(id, item.step, item.rank, -1, 0, 0);
      }
    });
  }
  return columns_dict(std::move(columns));
}

/// The plan as TransformerEngine would run it: as a document, or as lines for people.
std::string te_document(const PlanBox& box, bool as_text) {
  const Result<TeView> view = view_as_te(box.checked.plan());
  if (!view) throw_error(view.error(), kScenario);
  std::ostringstream out;
  if (as_text) {
    write_te_text(view.value(), box.checked.plan(), out);
  } else {
    out << te_json(view.value(), box.checked.plan()).dump();
  }
  return out.str();
}

using IntegerArray = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<int64_t> to_vector(const IntegerArray& array) {
  return {array.data(), array.data() + array.size()};
}

/// The order file's text and the document of `import --json`.
std::pair<std::string, std::string> import_order_lists(
    const std::string& source, const std::string& layout, int64_t cp_size, int64_t ulysses_degree,
    int64_t tokens, const std::optional<IntegerArray>& cu_seqlens,
    const std::vector<std::pair<std::string, std::vector<IntegerArray>>>& given) {
  ImportRequest request{.source = *find_order_source(source),
                        .layout = layout,
                        .cp_size = cp_size,
                        .ulysses_degree = ulysses_degree,
                        .tokens = tokens};
  if (cu_seqlens) request.cu_seqlens = to_vector(*cu_seqlens);
  for (const auto& [name, lists] : given) {
    NamedLists named{name, {}};
    for (const IntegerArray& list : lists) named.lists.push_back(to_vector(list));
    request.given.push_back(std::move(named));
  }
  auto made = unlocked([&]() -> Result<std::pair<std::string, std::string>> {
    const Result<OrderImport> order = import_order(request);
    if (!order) return order.error();
    return std::pair(print_order_file(order.value()),
                     order_json(order.value(), request.source).dump());
  });
  return take(std::move(made), kInput);
}

}  // namespace

Result<LayoutBox> lay_out(const ScenarioBox& box) {
  if (box.loaded.plan != nullptr) {
    LayoutBox made;
    made.plan.scenario = box.scenario();
    made.plan.layout = box.loaded.plan->plan().layout;
    return made;
  }
  if (auto error = refuse_by_rule(box.scenario()))
    return locate_keys(*error, box.loaded.text, box.loaded.path);
  Result<Layout> layout = make_layout(box.scenario());
  if (!layout) return locate_keys(layout.error(), box.loaded.text, box.loaded.path);
  LayoutBox made;
  made.plan.scenario = box.scenario();
  made.plan.layout = std::move(layout).value();
  return made;
}

ForeignChoices choices_of(const std::optional<std::string>& order,
                          const std::optional<std::string>& format,
                          const std::optional<std::string>& lse_layout) {
  ForeignChoices choices;
  const auto choose = [](const std::optional<std::string>& word, auto find, const char* what,
                         const char* words, auto& choice) {
    if (!word) return;
    choice = find(*word);
    if (!choice) throw_input_error(std::string("no ") + what + " has this name: " + *word, words);
  };
  choose(order, find_row_order, "order", "packed or rank", choices.order);
  choose(format, find_row_format, "format", "thd, bshd, sbhd or bhsd", choices.format);
  choose(lse_layout, find_lse_layout, "lse_layout", "tokens_heads or heads_tokens",
         choices.lse_layout);
  return choices;
}

void bind_scenario(nb::module_& module) {
  nb::class_<ScenarioBox>(module, "Scenario")
      .def_prop_ro("text", [](const ScenarioBox& box) { return box.loaded.text; })
      .def_prop_ro("path", [](const ScenarioBox& box) { return box.loaded.path; })
      .def_prop_ro("is_document", [](const ScenarioBox& box) { return box.loaded.plan != nullptr; })
      .def_prop_ro("warnings", [](const ScenarioBox& box) { return box.loaded.warnings; })
      .def_prop_ro("settings", &settings_of)
      .def("same_as", &is_same_question, "other"_a)
      .def("to_toml", [](const ScenarioBox& box) { return print_scenario(box.scenario()); })
      .def("with_order", &with_order, "order_text"_a)
      .def("with_comm_type", &with_comm_type, "name"_a)
      .def("layout",
           [](const ScenarioBox& box) {
             return take(unlocked([&] { return lay_out(box); }), kScenario);
           })
      .def("plan", &make_checked_plan);
  nb::class_<LayoutBox>(module, "Layout")
      .def(
          "document",
          [](const LayoutBox& box, bool full) {
            return unlocked([&] { return layout_json(box.plan, full).dump(); });
          },
          "full"_a)
      .def("ids", &token_ids, "rank"_a, "is_kv"_a)
      .def("places", &token_places, "rank"_a, "is_kv"_a)
      .def("local_keys", &local_keys)
      .def("decode_steps", &decode_steps, "steps"_a);
  nb::class_<PlanBox>(module, "Plan")
      .def_prop_ro("hash", [](const PlanBox& box) { return to_hex(box.checked.plan().hash); })
      .def("document", &plan_document, "is_summary"_a)
      .def("whole", &whole_plan)
      .def(
          "text",
          [](const PlanBox& box, int64_t lines) {
            return unlocked([&] {
              std::ostringstream out;
              write_plan_text(box.checked, lines, out);
              return out.str();
            });
          },
          "lines"_a)
      .def("items", &plan_items)
      .def("te", &te_document, "as_text"_a);
  module.def("known_keys", &known_keys);
  module.def("key_list", [] { return print_json(keys_json()); });
  module.def("key_page", [] {
    std::ostringstream out;
    write_keys_page(out);
    return out.str();
  });
  module.def("explain_key", &explain_key, "key"_a, "value"_a);
  module.def(
      "parse",
      [](const std::string& text, const std::string& path) {
        return ScenarioBox{take(unlocked([&] { return parse_scenario(text, path); }), kScenario)};
      },
      "text"_a, "path"_a);
  module.def(
      "load",
      [](const std::string& path) {
        return ScenarioBox{take(unlocked([&] { return load_scenario_or_plan(path); }), kScenario)};
      },
      "path"_a);
  module.def("parse_plan", &parse_plan, "text"_a, "path"_a);
  module.def("import_order", &import_order_lists, "source"_a, "layout"_a, "cp_size"_a,
             "ulysses_degree"_a, "tokens"_a, "cu_seqlens"_a.none(), "given"_a);
}

}  // namespace cpscope::python

NB_MODULE(_core, module) {
  module.attr("version") = cpscope::program_version();
  cpscope::python::bind_scenario(module);
  cpscope::python::bind_judge(module);
  cpscope::python::bind_runs(module);
  cpscope::python::bind_schedules(module);
  cpscope::python::bind_pictures(module);
}
