#include "sim/run/grade/sample.h"

#include "sim/base/id_vector.h"
#include "sim/run/grade/row_scan.h"
#include "sim/run/grade/share_search.h"
#include "sim/run/run_inputs.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A run of a rank's list; messages carry such chunks.
struct RankRun {
  RankId rank{};
  std::vector<int64_t> tokens;  // valid ones
};

/// Every run of every rank that holds a valid token.
std::vector<RankRun> runs_of_ranks(const Plan& plan, Side side) {
  const std::vector<bool> valid = valid_ids(plan.layout.slots, side);
  std::vector<RankRun> runs;
  for (const RankId rank : plan.lists(side).ids()) {
    for (const TokenRun& run : plan.list(plan.lists(side)[rank])) {
      RankRun found{rank, {}};
      for (int64_t token = run.begin; token < run.end; token += run.stride) {
        if (valid[static_cast<size_t>(token)]) found.tokens.push_back(token);
      }
      if (!found.tokens.empty()) runs.push_back(std::move(found));
    }
  }
  return runs;
}

/// First and last valid tokens of at most `count` / 2 sequences, spread over the batch.
void choose_ends(const BatchSlots& slots, Side side, int64_t count, std::vector<int64_t>& chosen) {
  const auto sequences = std::ssize(slots.sequences);
  const int64_t step = std::max<int64_t>(1, sequences / std::max<int64_t>(1, count / 2));
  for (int64_t s = 0; s < sequences; s += step) {
    const SlotSide slot = slots.sequences[static_cast<size_t>(s)].side(side);
    if (slot.valid == 0) continue;
    chosen.push_back(slot.valid_begin());
    chosen.push_back(slot.valid_end() - 1);
  }
}

/// `count` tokens, distributed evenly over the runs of all ranks; one for every rank that has none
/// of them, and up to a quarter as many from the ends of sequences. All, if there are no more.
std::vector<int64_t> choose_tokens(const Plan& plan, Side side, int64_t count) {
  std::vector<int64_t> chosen;
  if (count >= plan.layout.slots.tokens_of(side)) {
    for (const RankRun& run : runs_of_ranks(plan, side))
      chosen.insert(chosen.end(), run.tokens.begin(), run.tokens.end());
    return chosen;
  }
  choose_ends(plan.layout.slots, side, count / 4, chosen);
  const std::vector<RankRun> all = runs_of_ranks(plan, side);
  const auto runs = std::ssize(all);
  IdVector<RankId, bool> has_one(plan.lists(side).size());
  const auto choose_of = [&](const RankRun& run, int64_t n) {
    // The golden ratio spreads tokens without a fixed offset to the borders of chunks.
    constexpr double kGolden = 0.6180339887498949;
    const double place = std::fmod(static_cast<double>(n + 1) * kGolden, 1.0);
    chosen.push_back(run.tokens[static_cast<size_t>(place * std::ssize(run.tokens))]);
    has_one[run.rank] = true;
  };
  for (int64_t n = 0; n < count && runs > 0; ++n)
    choose_of(all[static_cast<size_t>(n * runs / count)], n);
  for (const RankRun& run : all)
    if (!has_one[run.rank]) choose_of(run, to_index(run.rank));
  return chosen;
}

void sort_unique(std::vector<int64_t>& tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
}

/// Adds the findings in all rows to the grade of a tensor's judged rows.
void add_scan(const RowScan& scan, TensorGrade& tensor) {
  tensor.nan = scan.nan;
  tensor.infinite = scan.infinite;
  tensor.not_empty = scan.not_empty;
  tensor.rows = scan.rows;
  if (scan.nan + scan.infinite + scan.not_empty == 0) return;
  tensor.passed = false;
  if (!scan.first) return;
  tensor.worst = *scan.first;
}

double length_of(const Tensor& tensor) {
  double sum = 0;
  for (const double value : tensor.values) sum += std::isfinite(value) ? value * value : 0.0;
  return std::sqrt(sum);
}

constexpr const char* kFollowsOutAndLse = "it needs the answer's own out and lse";

/// Gradients that were judged with a wrong out and lse count as not judged.
void distrust_gradients_of_keys(Grade& grade) {
  const bool is_distrusted =
      std::any_of(grade.tensors.begin(), grade.tensors.end(), [](const TensorGrade& tensor) {
        return (tensor.name == "out" || tensor.name == "lse") && tensor.has_failed();
      });
  for (TensorGrade& tensor : grade.tensors) {
    if (!is_distrusted || (tensor.name != "dk" && tensor.name != "dv" && tensor.name != "d_sink"))
      continue;
    tensor.judged = tensor.passed = false;
    tensor.judged_rows = 0;
    tensor.why_not = "it is computed from the answer's own out and lse, which are wrong";
  }
}

/// A tensor of which no row was compared.
TensorGrade leave_out(const char* name, int64_t rows, const char* why) {
  TensorGrade tensor;
  tensor.name = name;
  tensor.judged = tensor.passed = false;
  tensor.why_not = why;
  tensor.rows = rows;
  return tensor;
}

}  // namespace

JudgedRows choose_rows(const Plan& plan, int64_t count) {
  JudgedRows rows{choose_tokens(plan, Side::q, count), choose_tokens(plan, Side::kv, count)};
  sort_unique(rows.query_tokens);
  sort_unique(rows.key_tokens);
  if (!plan.scenario.numerics.backward) rows.key_tokens.clear();
  return rows;
}

Result<SampledGrade> grade_sample(const Toolbox& toolbox, const Plan& plan, const RunInputs& inputs,
                                  const Answer& seen, const SampleOptions& options) {
  const bool has_backward = plan.scenario.numerics.backward;
  SampledGrade sampled;
  sampled.rows = choose_rows(plan, options.rows);
  const std::vector<RowScan> scans = scan_rows(
      plan, inputs, seen, toolbox.oracle.witness.live_rows(plan.scenario, plan.layout.slots));
  for (const RowScan& scan : scans) {
    std::vector<int64_t>& tokens =
        scan.side == Side::q ? sampled.rows.query_tokens : sampled.rows.key_tokens;
    tokens.insert(tokens.end(), scan.suspects.begin(), scan.suspects.end());
  }
  sort_unique(sampled.rows.query_tokens);
  sort_unique(sampled.rows.key_tokens);
  const bool judges_keys = has_backward && !seen.out.values.empty() && !seen.lse.values.empty();
  if (!judges_keys) sampled.rows.key_tokens.clear();

  Result<Verdict> verdict = toolbox.oracle.judge_rows(plan.scenario, inputs, seen, sampled.rows,
                                                      count_hops(plan), options.control);
  if (!verdict) return verdict.error();
  sampled.grade = grade_judged_rows(
      plan, inputs, seen, verdict.value(), sampled.rows,
      {.keeps_row_budgets = true, .leaves_out_absent = true, .budgets = options.budgets});
  Grade& grade = sampled.grade;
  for (const RowScan& scan : scans) {
    TensorGrade* tensor = grade.find(scan.name);
    if (tensor == nullptr) {
      grade.tensors.push_back(leave_out(scan.name, scan.rows, kFollowsOutAndLse));
      grade.blind.push_back(fmt::format("{} was not judged", scan.name));
      tensor = &grade.tensors.back();
    }
    tensor->budget_l2 = tensor->budget * length_of(*scan.tensor);
    add_scan(scan, *tensor);
  }
  const auto add_by_head = [&](const char* name, const std::vector<double>& values,
                               const char* why) {
    if (values.empty() || grade.find(name) != nullptr) return;
    TensorGrade tensor = leave_out(name, std::ssize(values), why);
    tensor.nan =
        std::count_if(values.begin(), values.end(), [](double value) { return std::isnan(value); });
    grade.tensors.push_back(std::move(tensor));
  };
  add_by_head("max_logit", seen.max_logit, "it needs every row");
  add_by_head("d_sink", seen.d_sink, kFollowsOutAndLse);
  add_by_head("dbias", seen.dbias.values, "it needs every row");
  distrust_gradients_of_keys(grade);
  grade.conclude();
  if (auto error = search_shares(toolbox, plan, inputs, seen,
                                 {.exact = verdict.value().exact,
                                  .given = seen,
                                  .rows = &sampled.rows,
                                  .control = options.control},
                                 grade))
    return *error;
  sampled.exact = std::move(verdict.value().exact);
  return sampled;
}

}  // namespace cpscope
