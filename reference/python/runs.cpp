// Runs, records, their differences, the fault gallery and predicted times of the module
// cpscope._core.

#include "reference/dense_oracle.h"
#include "reference/faulty_walker.h"
#include "reference/mask_predicate.h"
#include "reference/plan_walker.h"
#include "reference/python/arrays.h"
#include "reference/python/boxes.h"
#include "sim/clock/crossover.h"
#include "sim/clock/search.h"
#include "sim/documents/comparison_text.h"
#include "sim/documents/diff_text.h"
#include "sim/documents/fault_text.h"
#include "sim/documents/forecast_text.h"
#include "sim/documents/forecast_ways_text.h"
#include "sim/documents/timeline_text.h"
#include "sim/documents/verdict_text.h"
#include "sim/faults/plan_mistakes.h"
#include "sim/findings/run_document.h"
#include "sim/findings/study.h"
#include "sim/run/grade/case.h"
#include "sim/run/probe/probe.h"
#include "sim/scenario/key_place.h"

#include <memory>
#include <sstream>
#include <tuple>
#include <utility>

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace cpscope::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

using Documents = std::pair<std::string, std::string>;  // JSON, and the text for people

/// A record in memory; `path` names it in errors and anchors file names of its scenario.
struct RecordBox {
  RunRecord record;
  std::string path;
};

Toolbox make_toolbox() {
  Toolbox toolbox;
  toolbox.executors.push_back(reference::make_plan_walker());
  for (const char* name : {"cuda", "cuda-portable", "nccl"})
    toolbox.missing_executors.emplace_back(
        name, "the Python package holds no kernels of GPUs; the program may hold them");
  toolbox.open_plugin = [](const std::string&) -> Result<std::unique_ptr<Executor>> {
    return make_error(ErrorKind::unavailable, "the Python package opens no plugins",
                      "the program does");
  };
  toolbox.oracle = reference::dense_oracle();
  toolbox.watched_walker = reference::make_watched_walker;
  toolbox.plan_mistakes = visit_plan_mistakes;
  return toolbox;
}

/// The document and text of `run`, and its record.
std::tuple<std::string, std::string, RecordBox> run(
    ScenarioBox box, const std::string& executor, bool poison, int64_t sample,
    const std::vector<std::pair<std::string, double>>& budgets, bool keeps_items,
    const PlanBox* plan) {
  if (plan != nullptr) {
    box.loaded.scenario = plan->checked.plan().scenario;
    box.loaded.plan = std::make_shared<const CheckedPlan>(plan->checked);
  }
  CaseOptions options{.executor = executor,
                      .poison = poison,
                      .sample_rows = sample,
                      .measures_items = true,
                      .keeps_items = keeps_items};
  for (const auto& [tensor, rel_l2] : budgets) options.budgets.push_back({tensor, rel_l2});
  Interruptible interruptible;
  options.is_cancelled = interruptible.control().is_cancelled;
  auto ran = [&]() -> Result<std::tuple<std::string, std::string, RecordBox>> {
    const nb::gil_scoped_release release;
    Toolbox toolbox = make_toolbox();
    CaseOutcome outcome = run_case(toolbox, box.loaded, options);
    if (outcome.grade.tensors.empty())
      return outcome.error.value_or(make_error(ErrorKind::unavailable, outcome.reason));
    const RunSeconds seconds{outcome.plan_seconds, outcome.run_seconds, outcome.judge_seconds};
    RecordBox record{make_record(outcome, box.loaded.text), box.loaded.path};
    CaseFindings findings = make_findings(box.loaded.path, box.loaded.text, std::move(outcome));
    study_failure(toolbox, box.loaded, options, findings);
    std::ostringstream text;
    write_run_text(findings, seconds, text);
    return std::tuple(print_json(run_json(findings, seconds)), text.str(), std::move(record));
  }();
  interruptible.rethrow();
  return take(std::move(ran), kScenario);
}

/// The document and text of `probe` on an executor of the package.
Documents probe_executor(const ScenarioBox& box, const std::string& name) {
  Interruptible interruptible;
  auto probed = [&]() -> Result<Documents> {
    const nb::gil_scoped_release release;
    Toolbox toolbox = make_toolbox();
    const Result<Executor*> executor = find_executor(toolbox, name);
    if (!executor) return executor.error();
    const PlanVariant plan_for = variants_of(box.loaded);
    const Result<CheckedPlan> plan = plan_for(probe_scenario(box.scenario()));
    if (!plan) return locate_keys(plan.error(), box.loaded.text, box.loaded.path);
    if (const auto error = probe_obstacle(plan.value(), *executor.value())) return *error;
    const Result<ProbeReport> report =
        run_probes(box.scenario(), plan_for, *executor.value(), toolbox.oracle.witness, {});
    if (!report) return report.error();
    std::ostringstream text;
    write_probe_text(report.value(), name, text);
    return Documents(print_json(probe_json(report.value(), name)), text.str());
  }();
  interruptible.rethrow();
  return take(std::move(probed), kScenario);
}

/// Plants the named faults, or all.
Documents plant_faults(const std::vector<std::string>& names) {
  auto planted = [&]() -> Result<Documents> {
    const nb::gil_scoped_release release;
    const Result<std::vector<Fault>> faults = choose_faults(names);
    if (!faults) return faults.error();
    const GalleryReport gallery = run_gallery(faults.value(), make_toolbox(), {});
    std::ostringstream text;
    write_gallery_text(gallery, text);
    return Documents(print_json(gallery_json(gallery)), text.str());
  }();
  return take(std::move(planted), kInput);
}

// Records.

nb::tuple tensor_of(const RecordBox& box, const std::string& name) {
  const Tensor* tensor = box.record.find(name);
  if (tensor == nullptr) throw nb::key_error(name.c_str());
  return nb::make_tuple(to_numpy(tensor->values, tensor->shape),
                        std::string(to_name(tensor->dtype)));
}

std::vector<std::string> names_in(const RecordBox& box) {
  std::vector<std::string> names;
  for (const Tensor& tensor : box.record.tensors) names.push_back(tensor.name);
  return names;
}

nb::dict integers_in(const RecordBox& box) {
  nb::dict all;
  for (const IntegerTensor& tensor : box.record.integers)
    all[tensor.name.c_str()] = nb::make_tuple(to_numpy(tensor.values), tensor.shape);
  return all;
}

nb::dict budgets_in(const RecordBox& box) {
  nb::dict all;
  for (const TensorBudget& budget : box.record.budgets) all[budget.name.c_str()] = budget.rel_l2;
  return all;
}

/// (pass, kind, item, rank, step, start_ns, end_ns) of each event.
nb::list events_in(const RecordBox& box) {
  nb::list all;
  for (const ItemEvent& event : box.record.events)
    all.append(nb::make_tuple(std::string(to_name(event.item.direction)),
                              std::string(to_name(event.item.kind)), event.item.index,
                              to_index(event.rank), to_index(event.step), event.start_ns,
                              event.end_ns));
  return all;
}

RecordBox load_record(const std::string& path) {
  auto record = [&] {
    const nb::gil_scoped_release release;
    return read_record(path, {.takes_other_types = true});
  }();
  return {take(std::move(record), kInput), path};
}

/// A record of the arrays [(path, [(name, array), ...])] of one rank or of no rank.
RecordBox make_record_of(const nb::list& arrays, const std::string& scenario_text,
                         const std::string& plan_hash, const std::string& executor) {
  RecordBox box;
  for (const ArrayRecord& one : look_at_arrays(arrays)) {
    box.path = one.path;
    for (const NamedArray& array : one.arrays) {
      box.record.tensors.push_back(describe(array));
      box.record.tensors.back().values = read_values(array);
    }
  }
  box.record.scenario_text = scenario_text;
  box.record.plan_hash = plan_hash;
  box.record.executor = executor;
  return box;
}

void save_record(const RecordBox& box, const std::string& path) {
  auto written = [&] {
    const nb::gil_scoped_release release;
    return write_record(box.record, path);
  }();
  take(std::move(written), kInput);
}

/// The document and text of `diff`.
Documents diff(const RecordBox& a, const RecordBox& b, bool is_earned, double tolerance) {
  auto found = [&]() -> Result<Documents> {
    const nb::gil_scoped_release release;
    const Result<RecordComparison> compared =
        compare_records(a.record, b.record, {is_earned, tolerance}, {a.path, b.path});
    if (!compared) return compared.error();
    std::ostringstream text;
    write_diff_text(compared.value(), text);
    return Documents(print_json(diff_json(compared.value())), text.str());
  }();
  return take(std::move(found), kInput);
}

// Predicted times.

Documents timeline(const ScenarioBox& box, const std::string& cluster_name,
                   const std::string& folder, const std::string& stack, const PlanBox* given) {
  auto made = [&]() -> Result<Documents> {
    const nb::gil_scoped_release release;
    const Result<Cluster> cluster = load_cluster(cluster_name, folder);
    if (!cluster) return cluster.error();
    const Result<CheckedPlan> checked =
        given != nullptr ? Result<CheckedPlan>(given->checked) : plan_scenario(box.loaded);
    if (!checked) return checked.error();
    const Plan& plan = checked.value().plan();
    const Result<Timeline> times = predict(plan, cluster.value(), {stack, true});
    if (!times) return locate_keys(times.error(), box.loaded.text, box.loaded.path);
    const TimelineExport all{plan, cluster.value(), times.value()};
    std::ostringstream document, text;
    write_timeline_json(all, document);
    write_timeline_text(all, text);
    return Documents(document.str(), text.str());
  }();
  return take(std::move(made), kScenario);
}

std::optional<Error> refuse_plan_document(const ScenarioBox& box, const char* caller) {
  if (box.loaded.plan == nullptr) return std::nullopt;
  return make_bad_input(
      std::string(caller) + " plans the split by itself, and a plan document is one that is made",
      "take a scenario", box.loaded.path);
}

ComparisonBox compare(const ScenarioBox& box, const std::string& cluster_name,
                      const std::string& folder, const std::string& stack,
                      const std::vector<int64_t>& dispatch_chunks, int32_t reshards,
                      bool has_crossover, const std::optional<double>& memory_gib,
                      const std::optional<std::tuple<double, int64_t, uint64_t>>& search) {
  Interruptible interruptible;
  auto made = [&]() -> Result<ComparisonBox> {
    const nb::gil_scoped_release release;
    if (const auto error = refuse_plan_document(box, "compare")) return *error;
    Result<Cluster> cluster = load_cluster(cluster_name, folder);
    if (!cluster) return cluster.error();
    if (memory_gib) cluster.value().device.memory_gib = *memory_gib;
    SearchOptions options;
    options.candidates = {.stack = stack, .reshards = reshards, .control = interruptible.control()};
    if (!dispatch_chunks.empty()) options.candidates.dispatch_chunks = dispatch_chunks;
    if (search) std::tie(options.seconds, options.tries, options.seed) = *search;
    Result<Candidates> candidates =
        search ? search_candidates(box.scenario(), cluster.value(), options)
               : compare_candidates(box.scenario(), cluster.value(), options.candidates);
    if (!candidates) return locate_keys(candidates.error(), box.loaded.text, box.loaded.path);
    ComparisonBox compared{std::move(candidates).value(), box.scenario()};
    if (!has_crossover) return compared;
    Result<Crossover> crossover =
        find_crossover(box.scenario(), cluster.value(), options.candidates);
    if (!crossover) return locate_keys(crossover.error(), box.loaded.text, box.loaded.path);
    compared.crossover = std::move(crossover).value();
    return compared;
  }();
  interruptible.rethrow();
  return take(std::move(made), kScenario);
}

/// Forecasts on a cluster, with the GIL released; `make` has the scenario, the cluster and options.
template <class Make>
auto make_forecast(const ScenarioBox& box, const std::string& cluster_name,
                   const std::string& folder, ForecastOptions options, const Make& make) {
  using Found = decltype(make(box.scenario(), Cluster{}, options));
  Interruptible interruptible;
  options.control = interruptible.control();
  auto made = [&]() -> Found {
    const nb::gil_scoped_release release;
    if (const auto error = refuse_plan_document(box, "forecast")) return *error;
    const Result<Cluster> cluster = load_cluster(cluster_name, folder);
    if (!cluster) return cluster.error();
    Found found = make(box.scenario(), cluster.value(), options);
    if (!found) return locate_keys(found.error(), box.loaded.text, box.loaded.path);
    return found;
  }();
  interruptible.rethrow();
  return take(std::move(made), kScenario);
}

/// The document, the text and the table of `forecast`; of `forecast --ways` with `ways`, of its
/// `--published` with `published`.
std::tuple<std::string, std::string, std::string> forecast(
    const ScenarioBox& box, const std::string& cluster, const std::string& folder,
    const std::string& stack, int64_t windows, int64_t replicas, int64_t microbatches,
    const std::optional<uint64_t>& seed, bool ways, bool published) {
  const ForecastOptions options{.stack = stack,
                                .windows = windows,
                                .replicas = replicas,
                                .microbatches = microbatches,
                                .first_seed = seed};
  std::ostringstream text;
  if (!ways) {
    const Forecast found =
        make_forecast(box, cluster, folder, options,
                      [](const Scenario& scenario, const Cluster& on, const ForecastOptions& with) {
                        return forecast_windows(scenario, on, with);
                      });
    write_forecast_text(found, text);
    return {forecast_json(found), text.str(), forecast_csv(found)};
  }
  const WaysForecast found =
      make_forecast(box, cluster, folder, options,
                    [&](const Scenario& scenario, const Cluster& on, const ForecastOptions& with) {
                      return forecast_ways(scenario, on, with, published);
                    });
  write_ways_text(found, text);
  return {ways_json(found), text.str(), ways_markdown(found)};
}

/// The scenario split as the best candidate says, as TOML text, and the order of tokens [rank]
/// that a search has found for it: (text, ranks, kv_ranks), both empty if it has a layout. The text
/// then has layout "contiguous". None without a best candidate.
nb::object best_way(const ComparisonBox& box) {
  if (box.candidates.best < 0) return nb::none();
  const Candidate& best = box.candidates.candidates[static_cast<size_t>(box.candidates.best)];
  Scenario scenario = take_way(box.scenario, best, "");
  ImportedOrder order;
  if (scenario.parallel.layout == LayoutKind::indices) {
    order = std::move(scenario.parallel.imported);
    scenario.parallel.imported = {};
    scenario.parallel.indices_file.clear();
    scenario.parallel.layout = LayoutKind::contiguous;
  }
  const auto lists = [](const std::vector<std::vector<int64_t>>& ranks) {
    nb::list all;
    for (const std::vector<int64_t>& ids : ranks) all.append(to_numpy(ids));
    return all;
  };
  return nb::make_tuple(print_scenario(scenario), lists(order.ranks), lists(order.kv_ranks));
}

}  // namespace

void bind_runs(nb::module_& module) {
  nb::class_<RecordBox>(module, "Record")
      .def("names", &names_in)
      .def("tensor", &tensor_of, "name"_a)
      .def("integers", &integers_in)
      .def("budgets", &budgets_in)
      .def("events", &events_in)
      .def("save", &save_record, "path"_a)
      .def_prop_ro("path", [](const RecordBox& box) { return box.path; })
      .def_prop_ro("metadata", [](const RecordBox& box) { return box.record.metadata; })
      .def_prop_ro("scenario_text", [](const RecordBox& box) { return box.record.scenario_text; })
      .def_prop_ro("plan_hash", [](const RecordBox& box) { return box.record.plan_hash; })
      .def_prop_ro("executor", [](const RecordBox& box) { return box.record.executor; })
      .def_prop_ro("machine", [](const RecordBox& box) { return box.record.machine; })
      .def_prop_ro("version", [](const RecordBox& box) { return box.record.version; })
      .def_prop_ro("clock", [](const RecordBox& box) { return box.record.clock; })
      .def_prop_ro("skipped", [](const RecordBox& box) {
        std::map<std::string, std::string> types;
        for (const SkippedTensor& tensor : box.record.skipped)
          types[tensor.name] = tensor.type_name;
        return types;
      });
  nb::class_<ComparisonBox>(module, "Comparison")
      .def("document",
           [](const ComparisonBox& box) {
             return comparison_json(box.candidates, box.crossover ? &*box.crossover : nullptr);
           })
      .def("best_way", &best_way)
      .def("csv", [](const ComparisonBox& box) { return comparison_csv(box.candidates); })
      .def(
          "text",
          [](const ComparisonBox& box, bool full) {
            std::ostringstream out;
            write_comparison_text(box.candidates, full, out);
            if (box.crossover) write_crossover_text(*box.crossover, out);
            return out.str();
          },
          "full"_a);
  module.def("run", &run, "scenario"_a, "executor"_a, "poison"_a, "sample"_a, "budgets"_a,
             "items"_a, "plan"_a.none());
  module.def("probe_executor", &probe_executor, "scenario"_a, "executor"_a);
  module.def("faults", &plant_faults, "names"_a);
  module.def("fault_list", [] { return print_json(catalogue_json()); });
  module.def("read_record", &load_record, "path"_a);
  module.def("make_record", &make_record_of, "arrays"_a, "scenario_text"_a, "plan_hash"_a,
             "executor"_a);
  module.def("diff", &diff, "a"_a, "b"_a, "earned"_a, "tolerance"_a);
  module.def("timeline", &timeline, "scenario"_a, "cluster"_a, "folder"_a, "stack"_a,
             "plan"_a.none());
  module.def("compare", &compare, "scenario"_a, "cluster"_a, "folder"_a, "stack"_a,
             "dispatch_chunks"_a, "reshards"_a, "crossover"_a, "memory_gib"_a.none(),
             "search"_a.none());
  module.def("forecast", &forecast, "scenario"_a, "cluster"_a, "folder"_a, "stack"_a, "windows"_a,
             "replicas"_a, "microbatches"_a, "seed"_a.none(), "ways"_a, "published"_a);
}

}  // namespace cpscope::python
