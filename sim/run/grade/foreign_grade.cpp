#include "sim/run/grade/foreign_grade.h"

#include "sim/base/bit_cast.h"
#include "sim/run/dtype.h"
#include "sim/run/fp8_history.h"
#include "sim/run/grade/cause_search.h"
#include "sim/run/grade/sample.h"
#include "sim/run/grade/share_search.h"
#include "sim/run/kept_weights.h"
#include "sim/run/record/foreign_parts.h"
#include "sim/run/run_inputs.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

Error bad_value(const Tensor& given, Dtype dtype, int64_t token, int64_t head, double value) {
  const std::string place =
      token < 0 ? fmt::format("head {}", head) : fmt::format("token {}, head {}", token, head);
  if (!std::isfinite(value))
    return make_error(
        ErrorKind::bad_input,
        fmt::format("input {} of the record is not finite at {}: {}", given.name, place, value),
        "only padding rows may hold anything");
  return make_error(ErrorKind::bad_input,
                    fmt::format("input {} of the record holds a value that {} cannot: {:.9g} at {}",
                                given.name, to_name(dtype), value, place),
                    "store what the kernel has read, or set the scenario's dtype");
}

/// Finds the token of a row of an input by the row's values.
class RowFinder {
 public:
  RowFinder(const Tensor& input, const std::vector<bool>& valid)
      : input_(input), width_(input.shape[1] * input.shape[2]) {
    for (int64_t token = 0; token < input.shape[0]; ++token) {
      if (valid[token]) tokens_.emplace(hash(row(input, token)), token);
    }
  }

  /// The token with this row; -1 if no token has it.
  int64_t find(const Tensor& given, int64_t at) const {
    const auto found = tokens_.find(hash(row(given, at)));
    if (found == tokens_.end()) return -1;
    return std::equal(row(given, at), row(given, at) + width_, row(input_, found->second))
               ? found->second
               : -1;
  }

 private:
  const double* row(const Tensor& tensor, int64_t token) const {
    return tensor.values.data() + token * width_;
  }
  /// FNV-1a over the bits of the row.
  uint64_t hash(const double* values) const {
    uint64_t sum = 0xcbf29ce484222325;
    for (int64_t i = 0; i < width_; ++i)
      sum = (sum ^ bit_cast<uint64_t>(values[i])) * 0x100000001b3;
    return sum;
  }

  const Tensor& input_;
  const int64_t width_;
  std::unordered_map<uint64_t, int64_t> tokens_;
};

/// True if all rows are right in the row order that was not used for reading.
bool fits_other_order(const Tensor& given, const Tensor& input, const std::vector<bool>& valid,
                      const std::vector<int64_t>& ids, RowOrder order) {
  const int64_t width = input.shape[1] * input.shape[2];
  for (int64_t row = 0; row < input.shape[0]; ++row) {
    const int64_t from = order == RowOrder::packed ? row : ids[row],
                  to = order == RowOrder::packed ? ids[row] : row;
    if (valid[to] &&
        !std::equal(given.values.begin() + from * width, given.values.begin() + (from + 1) * width,
                    input.values.begin() + to * width))
      return false;
  }
  return true;
}

/// An input that holds the scenario's rows in other places was read in the wrong order; then the
/// other tensors of the record are in the wrong order too.
std::optional<Error> refuse_moved_rows(const ForeignRecord& record, const Tensor& given,
                                       const Tensor& input, const std::vector<bool>& valid,
                                       std::span<const std::vector<TokenRun>> runs) {
  // Rows of a few values can be the same by chance.
  constexpr int64_t kNarrowest = 8;
  if (input.shape[1] * input.shape[2] < kNarrowest || given.values == input.values)
    return std::nullopt;
  const RowFinder finder(input, valid);
  int64_t moved = 0, first = -1, first_holds = -1, others = 0;
  for (int64_t token = 0; token < input.shape[0]; ++token) {
    if (!valid[token]) continue;
    const int64_t holds = finder.find(given, token);
    if (holds == token) continue;
    if (holds < 0) {
      ++others;
    } else if (moved++ == 0) {
      first = token;
      first_holds = holds;
    }
  }
  if (moved == 0 || moved < others) return std::nullopt;
  const bool other_fits = fits_other_order(given, input, valid, rank_order_ids(runs), record.order);
  const RowOrder other = record.order == RowOrder::packed ? RowOrder::rank : RowOrder::packed;
  return make_error(
      ErrorKind::bad_input,
      fmt::format("input {} of the record holds the scenario's rows in other places: {} rows, "
                  "first token {} where token {} belongs",
                  given.name, moved, first_holds, first),
      other_fits ? fmt::format("all rows match in {0} order: use --order {0}", to_name(other))
                 : "is it this scenario's layout? An imported order goes with --order-file");
}

/// Replaces `input` by the record's values and counts those of valid tokens that differ. Padding is
/// replaced too: no answer depends on it, and a mistake that reads it has read the record's.
std::optional<Error> take_input(Tensor& given, const std::vector<bool>& valid, Dtype dtype,
                                Tensor& input, InputNote& note) {
  const int64_t heads = input.shape[1], lanes = input.shape[2];
  for (int64_t row = 0; row < input.shape[0] * heads; ++row) {
    const int64_t token = row / heads, head = row % heads;
    if (!valid[token]) continue;
    for (int64_t i = row * lanes; i < (row + 1) * lanes; ++i) {
      const double value = given.values[i];
      ++note.values;
      if (value == input.values[i]) continue;
      if (!std::isfinite(value) || round_to(dtype, value) != value)
        return bad_value(given, dtype, token, head, value);
      if (note.different++ == 0) note.token = token, note.head = head;
    }
  }
  input.values = std::move(given.values);
  return std::nullopt;
}

std::optional<Error> take_sink(const Tensor& given, Dtype dtype, std::vector<double>& sink,
                               InputNote& note) {
  for (size_t head = 0; head < sink.size(); ++head) {
    const double value = given.values[head];
    ++note.values;
    if (value == sink[head]) continue;
    if (!std::isfinite(value) || round_to(dtype, value) != value)
      return bad_value(given, dtype, -1, static_cast<int64_t>(head), value);
    if (note.different++ == 0) note.head = static_cast<int64_t>(head);
    sink[head] = value;
  }
  return std::nullopt;
}

/// Takes the cells that a sequence has; the others may hold anything.
std::optional<Error> take_bias(const Tensor& given, const Scenario& scenario, Tensor& bias,
                               InputNote& note) {
  const Batch& batch = scenario.batch;
  const Dtype dtype = scenario.numerics.dtype;
  const bool is_shared = bias.shape[0] == 1;
  for (size_t cell = 0; cell < bias.values.size(); ++cell) {
    const auto index = static_cast<int64_t>(cell);
    const int64_t key = index % bias.shape[3], row = index / bias.shape[3],
                  query = row % bias.shape[2], plane = row / bias.shape[2];
    const auto sequence = static_cast<size_t>(plane / bias.shape[1]);
    if (!is_shared && (query >= batch.lengths[sequence] || key >= batch.kv_lengths[sequence]))
      continue;
    const double value = given.values[cell];
    ++note.values;
    if (value == bias.values[cell]) continue;
    if (!std::isfinite(value) || round_to(dtype, value) != value)
      return bad_value(given, dtype, -1, plane % bias.shape[1], value);
    if (note.different++ == 0) note.head = plane % bias.shape[1];
    bias.values[cell] = value;
  }
  return std::nullopt;
}

std::optional<Error> take_weights(const Tensor& given, Tensor& weights, InputNote& note) {
  const int64_t of_head = weights.shape[1] * weights.shape[2];
  for (int64_t i = 0; i < weights.size(); ++i) {
    const double value = given.values[static_cast<size_t>(i)];
    ++note.values;
    if (value == weights.values[static_cast<size_t>(i)]) continue;
    if (!std::isfinite(value) || round_to(weights.dtype, value) != value)
      return bad_value(given, weights.dtype, -1, i / of_head, value);
    if (note.different++ == 0) note.head = i / of_head;
    weights.values[static_cast<size_t>(i)] = value;
  }
  return std::nullopt;
}

/// The scenario's inputs, replaced by the record's inputs if it holds some. One at a time: an input
/// of a long batch is large.
Result<RunInputs> find_inputs(const Plan& plan, ForeignRecord& record, ForeignGrade& graded) {
  const BatchSlots& slots = plan.layout.slots;
  const Dtype dtype = plan.scenario.numerics.dtype;
  RunInputs inputs;
  inputs.slots = slots;
  if (plan.scenario.attention.softmax_type == SoftmaxType::learnable)
    inputs.sink = sink_logits(plan.scenario.numerics, plan.scenario.attention.heads);
  for (const auto& [which, input] : {std::pair{InputTensor::q, &inputs.q},
                                     {InputTensor::k, &inputs.k},
                                     {InputTensor::v, &inputs.v},
                                     {InputTensor::d_out, &inputs.d_out}}) {
    if (which == InputTensor::d_out && !plan.scenario.numerics.backward) continue;
    *input = make_run_input(plan.scenario, slots, which, false);
    if (input->shape.empty()) continue;
    Tensor* given = record.find(input->name);
    if (given == nullptr) continue;
    InputNote note{.name = input->name};
    const Side side = which == InputTensor::k || which == InputTensor::v ? Side::kv : Side::q;
    const std::vector<bool> valid = valid_ids(slots, side);
    if (auto error = refuse_moved_rows(record, *given, *input, valid,
                                       partition_of(plan.layout, side).values()))
      return *error;
    if (auto error = take_input(*given, valid, dtype, *input, note)) return *error;
    graded.inputs.push_back(note);
  }
  const Tensor* sink = record.find("sink");
  if (!inputs.sink.empty() && sink != nullptr) {
    InputNote note{.name = "sink"};
    if (auto error =
            take_sink(*sink, dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32, inputs.sink, note))
      return *error;
    graded.inputs.push_back(note);
  }
  if (plan.scenario.attention.bias != BiasShape::none) {
    inputs.bias = make_bias(plan.scenario, false);
    if (const Tensor* bias = record.find("bias")) {
      InputNote note{.name = "bias"};
      if (auto error = take_bias(*bias, plan.scenario, inputs.bias, note)) return *error;
      graded.inputs.push_back(note);
    }
  }
  for (const auto& [which, weights] :
       {std::pair{InputTensor::w_k, &inputs.w_k}, {InputTensor::w_v, &inputs.w_v}}) {
    if (!plan.scenario.attention.expands_rows()) break;
    *weights = make_row_weights(plan.scenario, which);
    const Tensor* given = record.find(weights->name);
    if (given == nullptr) continue;
    InputNote note{.name = weights->name};
    if (auto error = take_weights(*given, *weights, note)) return *error;
    graded.inputs.push_back(note);
  }
  inputs.fp8 = history_of_record(plan.scenario, inputs);
  inputs.kept = draw_by_item(plan);
  graded.uses_own_inputs = std::any_of(graded.inputs.begin(), graded.inputs.end(),
                                       [](const InputNote& note) { return note.different > 0; });
  return inputs;
}

/// One answer by its name, wherever an Answer keeps it.
template <class OnRows, class OnHeads>
void for_each_answer(OnRows on_rows, OnHeads on_heads) {
  on_rows("out", &Answer::out);
  on_rows("lse", &Answer::lse);
  on_heads("max_logit", &Answer::max_logit);
  on_rows("dq", &Answer::dq);
  on_rows("dk", &Answer::dk);
  on_rows("dv", &Answer::dv);
  on_heads("d_sink", &Answer::d_sink);
  on_rows("dbias", &Answer::dbias);
}

/// The answers that the scenario requires.
std::vector<std::string> asked_answers(const Scenario& scenario) {
  std::vector<std::string> names{"out", "lse", "max_logit"};
  if (!scenario.numerics.backward) return names;
  names.insert(names.end(), {"dq", "dk"});
  if (scenario.attention.latent_dim == 0) names.emplace_back("dv");
  if (scenario.attention.softmax_type == SoftmaxType::learnable) names.emplace_back("d_sink");
  if (scenario.attention.bias != BiasShape::none) names.emplace_back("dbias");
  return names;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The record's answers, which it then no longer holds; missing ones are empty.
Answer take_answer(ForeignRecord& record) {
  Answer answer;
  for_each_answer(
      [&](std::string_view name, Tensor Answer::*member) {
        if (Tensor* given = record.find(name))
          answer.*member =
              Tensor{given->name, given->shape, given->dtype, std::move(given->values)};
      },
      [&](std::string_view name, std::vector<double> Answer::*member) {
        if (Tensor* given = record.find(name)) answer.*member = std::move(given->values);
      });
  return answer;
}

/// Sets padding rows to their correct values, whatever they held.
void clear_padding(const BatchSlots& slots, Answer& answer) {
  for (Tensor* tensor : {&answer.out, &answer.lse, &answer.dq, &answer.dk, &answer.dv}) {
    if (tensor->values.empty()) continue;
    const bool is_of_keys = tensor == &answer.dk || tensor == &answer.dv;
    const std::vector<bool> valid = valid_ids(slots, is_of_keys ? Side::kv : Side::q);
    const int64_t width = tensor->size() / std::max<int64_t>(1, tensor->shape[0]);
    for (int64_t token = 0; token < tensor->shape[0]; ++token) {
      if (valid[token]) continue;
      std::fill_n(tensor->values.begin() + token * width, width,
                  tensor == &answer.lse ? -std::numeric_limits<double>::infinity() : 0.0);
    }
  }
}

/// The rows of all heads of an input, or the first elements of each.
struct InputRows {
  const Tensor& input;
  int64_t row = input.size() / std::max<int64_t>(1, input.shape[0]);
  int64_t width = row;  // of it are looked at
};

/// True if all rows of an input are equal.
bool is_same_everywhere(const InputRows& rows_of, const std::vector<bool>& valid) {
  const auto& [input, row_size, width] = rows_of;
  const double* first = nullptr;
  int64_t rows = 0;
  for (int64_t token = 0; token < input.shape[0]; ++token) {
    if (!valid[static_cast<size_t>(token)]) continue;
    const double* row = input.values.data() + token * row_size;
    if (++rows == 1) first = row;
    if (!std::equal(row, row + width, first)) return false;
  }
  return rows > 1;
}

bool is_zero(const InputRows& rows_of, const std::vector<bool>& valid) {
  const auto& [input, row_size, width] = rows_of;
  for (int64_t token = 0; token < input.shape[0]; ++token) {
    const double* row = input.values.data() + token * row_size;
    if (valid[static_cast<size_t>(token)] &&
        !std::all_of(row, row + width, [](double value) { return value == 0.0; }))
      return false;
  }
  return true;
}

/// Lists what inputs do not test, so that a wrong answer passes too.
void find_blind_inputs(const Plan& plan, const RunInputs& inputs, std::vector<std::string>& blind) {
  const BatchSlots& slots = plan.layout.slots;
  const std::vector<bool> queries = valid_ids(slots, Side::q), keys = valid_ids(slots, Side::kv);
  const auto say = [&](const char* what) { blind.emplace_back(what); };
  InputRows values{values_of(inputs)};
  if (inputs.v.shape.empty()) values.width = plan.scenario.attention.latent_dim;
  if (is_zero(values, keys)) {
    say("v is zero, so out is zero for any mask: this proves nothing");
  } else if (is_same_everywhere(values, keys)) {
    say("v is the same in all tokens, and so is out whatever a query sees");
  }
  if (is_zero({inputs.q}, queries))
    say("q is zero, so that all visible keys weigh the same");
  else if (is_zero({inputs.k}, keys) || is_same_everywhere({inputs.k}, keys))
    say("k is the same in all tokens, so that all visible keys weigh the same");
  if (plan.scenario.numerics.backward && is_zero({inputs.d_out}, queries))
    say("d_out is zero, and so are dq, dk and dv whatever was computed");
}

/// True for a common name of an answer of the contract: softmax_lse, q_grad, d_query.
bool resembles(std::string name, std::string_view answer) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto has = [&](std::string_view word) { return name.find(word) != std::string::npos; };
  if (has(answer)) return true;
  if (answer == "lse") return has("logsumexp");
  if (answer.size() != 2 || answer.front() != 'd') return false;
  const char input = answer.back();
  const bool names_input = name.front() == input || name.back() == input ||
                           has(input == 'q' ? "query" : (input == 'k' ? "key" : "value"));
  return names_input && (has("grad") || name.front() == 'd');
}

/// Ignored tensors that may be the answers that the record lacks: the name of the contract, and
/// theirs, without the ranks of parts.
std::vector<TensorAlias> find_likely_names(const ForeignRecord& record,
                                           const std::vector<std::string>& missing) {
  std::vector<TensorAlias> likely;
  for (const std::string& name : missing) {
    std::string last;  // names are sorted, so parts of one follow each other
    for (const std::string& ignored : record.ignored) {
      const std::string other = base_name(ignored);
      if (other == last || !resembles(other, name)) continue;
      likely.push_back({name, other});
      last = other;
    }
  }
  return likely;
}

/// "--map out=attn_output --map lse=softmax_lse": the first likely name of each.
std::string suggest_names(const std::vector<TensorAlias>& likely) {
  std::string text;
  for (size_t i = 0; i < likely.size(); ++i) {
    if (i > 0 && likely[i].name == likely[i - 1].name) continue;
    text += fmt::format("{}--map {}={}", text.empty() ? "" : " ", likely[i].name, likely[i].theirs);
  }
  return text;
}

/// Lists what the record does not test.
void find_blind_record(const ForeignRecord& record, const ForeignGrade& graded,
                       std::vector<std::string>& blind) {
  const auto is_asked = [&](const std::string& name) {
    return contains(graded.missing, name) ||
           contains({"q", "k", "v", "d_out", "sink", "bias", "w_k", "w_v"}, name);
  };
  for (const std::string& name : record.absent)
    if (is_asked(name)) blind.push_back(fmt::format("{} was given without a tensor", name));
  for (const TensorAlias& likely : find_likely_names(record, graded.missing)) {
    blind.push_back(
        fmt::format("the record lacks {0} and holds {1}, which is read only when it is called {0}, "
                    "or with --map {0}={1}",
                    likely.name, likely.theirs));
  }
  for (const char* name : {"out", "lse", "dq", "dk", "dv"})
    if (record.find(name) != nullptr) return;
  blind.emplace_back("no per-token tensor is present: one number per head does not test the rows");
}

/// Notes that inputs may be in the record under other names: a right answer to them then fails.
void note_unread_inputs(const ForeignRecord& record, std::vector<std::string>& notes) {
  constexpr std::pair<std::string_view, std::string_view> kBegins[] = {
      {"q", "query"}, {"k", "key"}, {"v", "value"}, {"d_out", "dout"}, {"d_out", "grad_out"}};
  for (const auto& [name, begin] : kBegins) {
    if (record.find(name) != nullptr) continue;
    for (const std::string& ignored : record.ignored) {
      if (!ignored.starts_with(begin)) continue;
      notes.push_back(
          fmt::format("the record holds {1}, which is not read as {0}: its answers are judged "
                      "against the scenario's {0}, unless --map {0}={1} is given",
                      name, base_name(ignored)));
      break;
    }
  }
}

std::optional<Error> grade_sample_of(const Toolbox& toolbox, const Plan& plan,
                                     ForeignRecord& record, const RunInputs& inputs,
                                     const ForeignGradeOptions& options, ForeignGrade& graded) {
  Answer answer = take_answer(record);
  if (options.ignores_padding) clear_padding(plan.layout.slots, answer);
  Result<SampledGrade> sampled = grade_sample(
      toolbox, plan, inputs, answer,
      {.rows = options.sample_rows, .budgets = options.budgets, .control = options.control});
  if (!sampled) return sampled.error();
  graded.grade = std::move(sampled.value().grade);
  if (auto error = find_causes(toolbox, plan, inputs,
                               {.seen = answer,
                                .exact = sampled.value().exact,
                                .rows = &sampled.value().rows,
                                .control = options.control},
                               graded.grade))
    return error;
  graded.judged = std::move(sampled.value().rows);
  if (options.keeps_exact) {
    graded.seen = std::move(answer);
    graded.exact = std::move(sampled.value().exact);
  }
  return std::nullopt;
}

std::optional<Error> grade_whole(const Toolbox& toolbox, const Plan& plan, ForeignRecord& record,
                                 const RunInputs& inputs, const ForeignGradeOptions& options,
                                 ForeignGrade& graded) {
  Result<Verdict> verdict =
      toolbox.oracle.judge(plan.scenario, inputs, count_hops(plan), options.control);
  if (!verdict) return verdict.error();
  Answer answer = take_answer(record);
  if (options.ignores_padding) clear_padding(plan.layout.slots, answer);
  graded.grade = grade_answer(plan, inputs, answer, verdict.value(),
                              {.keeps_row_budgets = true,
                               .leaves_out_absent = true,
                               .budgets = options.budgets,
                               .has_unknown_scales = true});
  const Answer& exact = verdict.value().exact;
  if (auto error =
          search_shares(toolbox, plan, inputs, answer,
                        {.exact = exact, .given = exact, .control = options.control}, graded.grade))
    return error;
  if (auto error = find_causes(
          toolbox, plan, inputs,
          {.seen = answer, .exact = exact, .budgets = options.budgets, .control = options.control},
          graded.grade))
    return error;
  if (!options.keeps_exact) {
    for (TensorGrade& tensor : graded.grade.tensors) tensor.row_budgets.clear();
    return std::nullopt;
  }
  graded.seen = std::move(answer);
  graded.exact = std::move(verdict.value().exact);
  return std::nullopt;
}

}  // namespace

Result<ForeignGrade> grade_foreign(const Toolbox& toolbox, const Plan& plan, ForeignRecord& record,
                                   const ForeignGradeOptions& options) {
  ForeignGrade graded;
  const std::vector<std::string> asked = asked_answers(plan.scenario);
  for (const std::string& name : asked) {
    if (record.find(name) == nullptr) graded.missing.push_back(name);
  }
  const auto note_unasked = [&](std::string_view name, auto) {
    if (record.find(name) != nullptr && !contains(asked, name)) graded.unasked.emplace_back(name);
  };
  for_each_answer(note_unasked, note_unasked);
  if (plan.scenario.attention.latent_dim > 0) note_unasked("v", 0);
  if (graded.missing.size() == asked.size()) {
    const std::string names = suggest_names(find_likely_names(record, asked));
    return make_error(ErrorKind::bad_input, "the record holds no answer that could be graded",
                      names.empty() ? fmt::format("name the tensors {}, or --map NAME=THEIRS",
                                                  fmt::join(asked, ", "))
                                    : "did you mean " + names + "?");
  }
  const Result<RunInputs> inputs = find_inputs(plan, record, graded);
  if (!inputs) return inputs.error();
  const auto error = options.sample_rows > 0
                         ? grade_sample_of(toolbox, plan, record, inputs.value(), options, graded)
                         : grade_whole(toolbox, plan, record, inputs.value(), options, graded);
  if (error) return *error;
  find_blind_inputs(plan, inputs.value(), graded.grade.blind);
  find_blind_record(record, graded, graded.grade.blind);
  graded.grade.conclude();
  if (!graded.grade.passed) note_unread_inputs(record, graded.grade.common);
  for (const Cause& cause : graded.grade.causes) graded.hints.push_back(describe(cause));
  for (const std::string& common : graded.grade.common) graded.hints.push_back(common);
  return graded;
}

}  // namespace cpscope
