// Inputs, oracle, grade and probes of the module cpscope._core.

#include "reference/dense_oracle.h"
#include "reference/mask_predicate.h"
#include "reference/python/arrays.h"
#include "reference/python/boxes.h"
#include "sim/base/machine_memory.h"
#include "sim/documents/verdict_text.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/grade/case.h"
#include "sim/run/grade/foreign_grade.h"
#include "sim/run/grade/wrong_row_table.h"
#include "sim/run/kept_weights.h"
#include "sim/run/probe/probe.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <sstream>
#include <tuple>

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace cpscope::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

using Word = std::optional<std::string>;
using Budgets = std::vector<std::pair<std::string, double>>;
using Names = std::vector<std::pair<std::string, std::string>>;

/// The arrays as records of the contract's names, which read the arrays only when they are used:
/// doubles are four times as large as bf16. An array that was read is let go, so that one which the
/// caller no longer holds is freed. May run without the GIL.
std::vector<NamedRecord> to_records(std::vector<ArrayRecord>& arrays) {
  std::vector<NamedRecord> records;
  for (ArrayRecord& one : arrays) {
    NamedRecord named{one.path, {}, one.absent};
    for (const NamedArray& array : one.arrays) named.record.tensors.push_back(describe(array));
    named.load = [&one](const Tensor& tensor) {
      std::vector<double> values;
      for (NamedArray& array : one.arrays) {
        if (array.name != tensor.name) continue;
        values = read_values(array);
        const nb::gil_scoped_acquire gil;
        array.array = {};
        break;
      }
      return values;
    };
    records.push_back(std::move(named));
  }
  return records;
}

nb::object tensor_to_numpy(Tensor tensor) {
  return to_numpy(std::move(tensor.values), tensor.shape);
}

nb::object to_numpy_by_head(std::vector<double> values) {
  const auto size = static_cast<int64_t>(values.size());
  return to_numpy(std::move(values), {size});
}

nb::dict inputs_dict(RunInputs inputs) {
  nb::dict all;
  for (Tensor* tensor :
       {&inputs.q, &inputs.k, &inputs.v, &inputs.d_out, &inputs.w_k, &inputs.w_v}) {
    if (tensor->name.empty()) continue;
    const std::string name = tensor->name;
    all[name.c_str()] = tensor_to_numpy(std::move(*tensor));
  }
  if (!inputs.sink.empty()) all["sink"] = to_numpy_by_head(std::move(inputs.sink));
  if (!inputs.bias.values.empty()) all["bias"] = tensor_to_numpy(std::move(inputs.bias));
  return all;
}

/// Why there is no memory for this many arrays of the inputs' size, and `more` bytes; nothing if
/// there is.
std::optional<Error> lack_of_memory(const Plan& plan, int64_t sides, int64_t more = 0) {
  const int64_t needed = sides * run_inputs_bytes(plan.scenario, plan.layout.slots) + more;
  const int64_t available = machine_memory_bytes() / 10 * 9;
  if (needed <= available) return std::nullopt;
  return make_error(ErrorKind::unavailable,
                    fmt::format("this needs {} GiB, this machine has {} GiB", needed >> 30,
                                machine_memory_bytes() >> 30),
                    "use fewer tokens or heads");
}

nb::dict make_inputs(const ScenarioBox& box, bool poison) {
  auto made = [&]() -> Result<RunInputs> {
    const nb::gil_scoped_release release;
    const Result<LayoutBox> layout = lay_out(box);
    if (!layout) return layout.error();
    if (auto error = lack_of_memory(layout.value().plan, 1)) return *error;
    return make_run_inputs(box.scenario(), layout.value().plan.layout.slots, poison);
  }();
  return inputs_dict(take(std::move(made), kScenario));
}

Error lacks(const std::string& name, const std::string& hint) {
  return make_error(ErrorKind::bad_input, fmt::format("the oracle needs \"{}\"", name), hint);
}

/// The caller's q, k, v (and d_out, sink) as the inputs of a run; forward only without d_out.
Result<RunInputs> take_inputs(const ForeignRecord& record, const BatchSlots& slots,
                              Scenario& scenario) {
  RunInputs inputs;
  inputs.slots = slots;
  const auto find = [&](const char* name, Tensor& into) {
    const Tensor* given = record.find(name);
    if (given != nullptr) into = *given;
    return given != nullptr;
  };
  const bool is_latent = scenario.attention.latent_dim > 0;
  for (const auto& [name, into] : {std::pair("q", &inputs.q), {"k", &inputs.k}, {"v", &inputs.v}}) {
    const bool is_part = is_latent && into == &inputs.v;
    if (is_part && record.find(name) != nullptr)
      return make_error(ErrorKind::bad_input, "\"v\" is given, and with latent_dim a part of \"k\"",
                        "leave v out");
    if (!is_part && !find(name, *into))
      return lacks(name,
                   is_latent ? "give q and k, or neither" : "give q, k and v, or none of them");
  }
  scenario.numerics.backward = find("d_out", inputs.d_out);
  if (scenario.attention.softmax_type == SoftmaxType::learnable) {
    const Tensor* sink = record.find("sink");
    if (sink == nullptr) return lacks("sink", "softmax_type is learnable: [heads]");
    inputs.sink = sink->values;
  }
  for (const auto& [name, into] : {std::pair("w_k", &inputs.w_k), {"w_v", &inputs.w_v}})
    if (scenario.attention.expands_rows() && !find(name, *into))
      return lacks(name,
                   "latent rows are expanded by w_k [heads, latent_nope_dim, latent_dim] and "
                   "w_v [heads, head_dim_v, latent_dim]");
  if (scenario.attention.bias != BiasShape::none) {
    const Tensor* bias = record.find("bias");
    if (bias == nullptr) return lacks("bias", "[sequences or 1, heads or 1, queries, keys]");
    inputs.bias = *bias;
  }
  return inputs;
}

nb::dict answer_dict(Answer answer, bool has_backward) {
  nb::dict all;
  all["out"] = tensor_to_numpy(std::move(answer.out));
  all["lse"] = tensor_to_numpy(std::move(answer.lse));
  all["max_logit"] = to_numpy_by_head(std::move(answer.max_logit));
  if (!has_backward) return all;
  all["dq"] = tensor_to_numpy(std::move(answer.dq));
  all["dk"] = tensor_to_numpy(std::move(answer.dk));
  if (!answer.dv.shape.empty()) all["dv"] = tensor_to_numpy(std::move(answer.dv));
  if (!answer.d_sink.empty()) all["d_sink"] = to_numpy_by_head(std::move(answer.d_sink));
  if (!answer.dbias.values.empty()) all["dbias"] = tensor_to_numpy(std::move(answer.dbias));
  return all;
}

nb::dict ask_oracle(const ScenarioBox& box, const nb::list& records, const Word& order,
                    const Word& format) {
  std::vector<ArrayRecord> arrays = look_at_arrays(records);
  const ForeignChoices choices = choices_of(order, format, {});
  Scenario scenario = box.scenario();
  Interruptible interruptible;
  auto answer = [&]() -> Result<Answer> {
    const nb::gil_scoped_release release;
    const Result<LayoutBox> layout = lay_out(box);
    if (!layout) return layout.error();
    const Plan& plan = layout.value().plan;
    // Memory for inputs, answer and the caller's tensors.
    const int64_t of_heads = head_gradients_bytes(plan.scenario, plan.layout.slots);
    if (auto error = lack_of_memory(plan, 4, of_heads)) return *error;
    KeptWeights kept;
    if (draws_by_item(scenario.attention)) {
      const Result<CheckedPlan> checked = plan_scenario(box.loaded);
      if (!checked) return checked.error();
      kept = draw_by_item(checked.value().plan());
    }
    if (arrays.empty()) {
      RunInputs made = make_run_inputs(scenario, plan.layout.slots, false);
      made.kept = std::move(kept);
      return reference::judge_exactly(scenario, made, interruptible.control());
    }
    const Result<ForeignRecord> record = read_foreign(to_records(arrays), plan, choices);
    if (!record) return record.error();
    Result<RunInputs> inputs = take_inputs(record.value(), plan.layout.slots, scenario);
    if (!inputs) return inputs.error();
    inputs.value().kept = std::move(kept);
    return reference::judge_exactly(scenario, inputs.value(), interruptible.control());
  }();
  interruptible.rethrow();
  return answer_dict(take(std::move(answer), kInput), scenario.numerics.backward);
}

struct GradeWords {
  std::string document, text;
  WrongRowTable wrong;
};

/// The columns of the table as numpy arrays.
nb::dict columns_of(WrongRowTable table) {
  nb::dict columns;
  columns["names"] = nb::cast(table.names);
  columns["tensor"] = to_numpy(std::move(table.tensor));
  columns["rank"] = to_numpy(std::move(table.rank));
  columns["token"] = to_numpy(std::move(table.token));
  columns["sequence"] = to_numpy(std::move(table.sequence));
  columns["position"] = to_numpy(std::move(table.position));
  columns["head"] = to_numpy(std::move(table.head));
  columns["error"] = to_numpy_by_head(std::move(table.error));
  columns["budget"] = to_numpy_by_head(std::move(table.budget));
  return columns;
}

Result<GradeWords> grade_records(const ScenarioBox& box, std::vector<ArrayRecord>& arrays,
                                 const ForeignChoices& choices,
                                 const ForeignGradeOptions& options) {
  const Result<CheckedPlan> checked = plan_scenario(box.loaded);
  if (!checked) return checked.error();
  if (const auto error = grade_obstacle(checked.value())) return *error;
  const Plan& plan = checked.value().plan();
  Result<ForeignRecord> record = read_foreign(to_records(arrays), plan, choices);
  if (!record) return record.error();
  Toolbox toolbox;
  toolbox.oracle = reference::dense_oracle();
  const Result<ForeignGrade> graded = grade_foreign(toolbox, plan, record.value(), options);
  if (!graded) return graded.error();
  std::ostringstream text;
  write_foreign_grade(record.value(), graded.value(), plan, text);
  return GradeWords{foreign_json(record.value(), graded.value(), plan).dump(), text.str(),
                    list_wrong_rows(plan, graded.value())};
}

/// Tells a Python function the share of the work that is done, ten times a second at most. What the
/// function raises stops the work.
class ProgressCall {
 public:
  explicit ProgressCall(nb::object function) : function_(std::move(function)) {}

  void add_to(RunControl& control) {
    if (function_.is_none()) return;
    control.share = [this](double share) { tell(share); };
    control.is_cancelled = [this, before = control.is_cancelled] {
      return has_failed_.load() || before();
    };
  }
  /// Throws what the function has raised. Needs the GIL.
  void rethrow() {
    if (error_) throw nb::python_error(*error_);
  }

 private:
  /// Never called from two threads at once.
  void tell(double share) {
    const auto now = std::chrono::steady_clock::now();
    constexpr auto kPause = std::chrono::milliseconds(100);
    if (has_failed_ || (share < 1 && now - last_told_ < kPause)) return;
    last_told_ = now;
    const nb::gil_scoped_acquire gil;
    try {
      function_(share);
    } catch (nb::python_error& error) {
      error_.emplace(error);
      has_failed_ = true;
    }
  }

  nb::object function_;
  std::chrono::steady_clock::time_point last_told_{};
  std::atomic<bool> has_failed_ = false;
  std::optional<nb::python_error> error_;
};

/// (document of `grade --json`, its text, the wrong rows) of tensors that other software computed.
std::tuple<std::string, std::string, nb::dict> grade(const ScenarioBox& box,
                                                     const nb::list& records, const Word& order,
                                                     const Word& format, const Word& lse_layout,
                                                     bool ignore_padding, int64_t sample,
                                                     const Budgets& budgets, const Names& names,
                                                     const nb::object& progress) {
  std::vector<ArrayRecord> arrays = look_at_arrays(records);
  ForeignChoices choices = choices_of(order, format, lse_layout);
  for (const auto& [name, theirs] : names) choices.aliases.push_back({name, theirs});
  std::vector<WidenedBudget> widened;
  for (const auto& [tensor, rel_l2] : budgets) widened.push_back({tensor, rel_l2});
  Interruptible interruptible;
  ProgressCall progress_call(progress);
  RunControl control = interruptible.control();
  progress_call.add_to(control);
  auto words = [&] {
    const nb::gil_scoped_release release;
    return grade_records(box, arrays, choices,
                         {.ignores_padding = ignore_padding,
                          .sample_rows = sample,
                          .keeps_exact = true,
                          .budgets = widened,
                          .control = control});
  }();
  interruptible.rethrow();
  progress_call.rethrow();
  GradeWords made = take(std::move(words), kInput);
  return {std::move(made.document), std::move(made.text), columns_of(std::move(made.wrong))};
}

/// Properties of the answers to the probes.
struct ProbeWords {
  Word order, format, lse_layout;
};

/// Passes the inputs of every probe to a Python function and takes its answer.
class PythonExecutor final : public Executor {
 public:
  PythonExecutor(nb::callable ask, ForeignChoices choices)
      : ask_(std::move(ask)), choices_(choices) {}

  std::string name() const override { return "python"; }
  bool may_merge_in_dtype() const override { return true; }
  int64_t memory_bytes(const CheckedPlan& /*plan*/) const override { return 0; }

  Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                        const RunOptions& /*options*/) override {
    std::vector<ArrayRecord> arrays;
    {
      const nb::gil_scoped_acquire gil;
      try {
        arrays = look_at_arrays(nb::cast<nb::list>(ask_(question(plan.plan(), inputs))));
      } catch (nb::python_error& error) {
        error_.emplace(error);
        return make_error(ErrorKind::failed, "the probed function has raised an exception");
      }
    }
    Result<RunOutput> output = read_answer(plan.plan(), arrays);
    const nb::gil_scoped_acquire gil;
    arrays.clear();
    if (!output) wrong_answer_ = output.error();
    return output;
  }

  /// Throws the exception of the function, or an error of its answer. Needs the GIL.
  void rethrow() {
    if (error_) throw nb::python_error(*error_);
    if (wrong_answer_) throw_error(*wrong_answer_, kInput);
  }
  const std::set<std::string>& missing() const { return missing_; }

 private:
  /// The tuple (probes, scenario, inputs).
  static nb::object question(const Plan& plan, const RunInputs& inputs) {
    const bool is_silent = std::all_of(inputs.q.values.begin(), inputs.q.values.end(),
                                       [](double value) { return value == 0.0; });
    const bool has_backward = plan.scenario.numerics.backward;
    const char* names = has_backward                             ? (is_silent ? "dq" : "dk dv")
                        : is_silent                              ? "count keys head"
                        : plan.scenario.attention.rope_theta > 0 ? "position"
                                                                 : "query";
    ScenarioBox box{{plan.scenario, print_scenario(plan.scenario), "<probe>", {}}};
    return nb::make_tuple(names, std::move(box), inputs_dict(inputs));
  }

  Result<RunOutput> read_answer(const Plan& plan, std::vector<ArrayRecord>& arrays) {
    if (arrays.empty()) return make_error(ErrorKind::bad_input, "the answer holds no tensor");
    const Result<ForeignRecord> record = read_foreign(to_records(arrays), plan, choices_);
    if (!record) return record.error();
    const Attention& attention = plan.scenario.attention;
    const BatchSlots& slots = plan.layout.slots;
    RunOutput output;
    Answer& answer = output.answer;
    const auto fill = [&](const char* name, std::vector<int64_t> shape, Tensor& into) {
      const Tensor* given = record.value().find(name);
      if (given != nullptr) {
        into = *given;
        return;
      }
      // A missing answer is not judged; it is filled so that the probes can run.
      missing_.insert(name);
      into = Tensor{name, std::move(shape), Dtype::fp64, {}};
      into.values.assign(static_cast<size_t>(into.size()), 0.0);
    };
    fill("lse", {slots.tokens, attention.heads}, answer.lse);
    if (record.value().find("out") == nullptr && !plan.scenario.numerics.backward)
      return make_error(ErrorKind::bad_input, "the answer has no \"out\"", "give out, lse");
    fill("out", {slots.tokens, attention.heads, attention.head_dim_v}, answer.out);
    if (!plan.scenario.numerics.backward) return output;
    fill("dq", {slots.tokens, attention.heads, attention.head_dim_qk}, answer.dq);
    fill("dk", {slots.kv_tokens, attention.kv_heads, attention.key_dim()}, answer.dk);
    if (attention.latent_dim == 0)
      fill("dv", {slots.kv_tokens, attention.kv_heads, attention.head_dim_v}, answer.dv);
    return output;
  }

  nb::callable ask_;
  ForeignChoices choices_;
  std::optional<nb::python_error> error_;
  std::optional<Error> wrong_answer_;
  std::set<std::string> missing_;  // answers that some run lacked
};

/// Removes the findings about answers that were not given.
void forget_missing(std::set<std::string> missing, bool is_latent, ProbeReport& report) {
  // The gradient of a v that is a part of k is probed in dk.
  if (is_latent && missing.contains("dk")) missing.insert("dv");
  for (ProbeTally& tally : report.tallies) {
    const std::string tensor = tally.probe == "count" ? "lse" : tally.probe;
    if (!missing.contains(tensor)) continue;
    tally = {tally.probe, 0, 0, std::nullopt, "the answer has no " + tensor};
    if (tensor == "lse") report.wrong_count_rows = 0;
    if (report.first && report.first->probe == tally.probe) report.first.reset();
  }
  for (const ProbeTally& tally : report.tallies) {
    if (!report.first && tally.first) report.first = tally.first;
  }
}

/// (document of `probe --json`, its text) of a function that computes attention.
std::pair<std::string, std::string> probe(const ScenarioBox& box, const nb::callable& ask,
                                          const Word& order, const Word& format,
                                          const Word& lse_layout) {
  PythonExecutor executor(ask, choices_of(order, format, lse_layout));
  auto probed = [&]() -> Result<ProbeReport> {
    const nb::gil_scoped_release release;
    const PlanVariant plan_for = variants_of(box.loaded);
    const Result<CheckedPlan> plan = plan_for(probe_scenario(box.scenario()));
    if (!plan) return plan.error();
    if (const auto error = probe_obstacle(plan.value(), executor)) return *error;
    return run_probes(box.scenario(), plan_for, executor, reference::mask_witness(), {});
  }();
  executor.rethrow();
  ProbeReport report = take(std::move(probed), kScenario);
  forget_missing(executor.missing(), box.scenario().attention.latent_dim > 0, report);
  std::ostringstream text;
  write_probe_text(report, executor.name(), text);
  return {probe_json(report, executor.name()).dump(), text.str()};
}

}  // namespace

void bind_judge(nb::module_& module) {
  module.def("inputs", &make_inputs, "scenario"_a, "poison"_a);
  module.def("oracle", &ask_oracle, "scenario"_a, "records"_a, "order"_a.none(), "format"_a.none());
  module.def("grade", &grade, "scenario"_a, "records"_a, "order"_a.none(), "format"_a.none(),
             "lse_layout"_a.none(), "ignore_padding"_a, "sample"_a, "budgets"_a, "names"_a,
             "progress"_a.none());
  module.def("probe", &probe, "scenario"_a, "ask"_a, "order"_a.none(), "format"_a.none(),
             "lse_layout"_a.none());
}

}  // namespace cpscope::python
