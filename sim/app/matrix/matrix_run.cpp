#include "sim/app/matrix/matrix_run.h"

#include "sim/base/parallel.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/grade/grade.h"
#include "sim/run/run_inputs.h"

#include <mutex>

#include <fmt/format.h>

namespace cpscope {
namespace {

CellResult stop(CellResult result, CellStatus status, std::string reason) {
  result.status = status;
  result.reason = std::move(reason);
  return result;
}

CellResult stop(CellResult result, const Error& error) {
  const bool is_refused = error.kind == ErrorKind::refused || error.kind == ErrorKind::unavailable;
  return stop(std::move(result), is_refused ? CellStatus::refused : CellStatus::fail,
              error.complaints.front().what);
}

/// A mask that hides nothing cuts no tile; only padding and the ends of sequences do.
bool hides_nothing(const Attention& attention) {
  const bool is_full =
      attention.mask_type == MaskType::no_mask || attention.mask_type == MaskType::padding;
  return is_full && attention.window_left < 0 && attention.window_right < 0 &&
         attention.chunk_size == 0;
}

/// Why a pass of this plan would prove too little; empty when it tells enough. What is missing for
/// a good reason becomes a note.
std::string weigh(const Plan& plan, const Telling& telling, CellResult& result) {
  if (!telling.has_full_tile) return fmt::format("no tile of {0} x {0} rows is full", kTellingTile);
  if (!telling.has_partial_tile) {
    if (!hides_nothing(plan.scenario.attention) || telling.padding_rows > 0)
      return "no tile is partly visible";
    result.notes.push_back("no partial tile: this mask hides nothing and the sizes fit");
  }
  if (plan.scenario.batch.pad_between_seqs && telling.padding_rows == 0)
    return "padding is requested and the batch has none";
  if (telling.ranks_with_remote_keys == 0) return "no rank sees a key of another rank";
  result.notes.insert(result.notes.end(), telling.notes.begin(), telling.notes.end());
  return "";
}

/// The kind of fault that fits the cell: its feature forgotten where that can be, else one after
/// the other by index, going on where a plan has no place for it.
std::optional<CellFault> choose_fault(const Plan& plan, const Visibility& visibility,
                                      const FeatureRecipe* feature, int64_t index) {
  if (feature != nullptr && feature->switch_off != nullptr)
    return plant_fault(plan, visibility, FaultKind::feature, index, feature->switch_off);
  const auto kinds = fault_kinds();
  const auto count = static_cast<int64_t>(kinds.size());
  const int64_t round = index / count;
  for (int64_t next = 0; next < count; ++next) {
    // Each round starts one kind later, lest a kind always meets the same format and padding.
    const FaultKind kind = kinds[static_cast<size_t>((index + round + next) % count)];
    auto fault = plant_fault(plan, visibility, kind, round, nullptr);
    if (fault) return fault;
  }
  return std::nullopt;
}

std::string first_broken_check(const CheckedPlan& plan) {
  for (const CheckResult& check : plan.checks()) {
    if (!check.ok) return check.name;
  }
  return "";
}

/// Runs the broken plan against the healthy verdict. Buffers hold numbers, not NaN: a fault must
/// show by what it computes.
void try_cell_fault(Executor& executor, CellFault fault, const RunInputs& inputs,
                    const Verdict& verdict, CellResult& result) {
  result.has_fault = true;
  result.fault_kind = fault.kind;
  result.fault = fault.what;
  const CheckedPlan faulty = admit_faulty_plan(std::move(fault.plan), fault.what);
  result.plan_check = first_broken_check(faulty);
  const Result<RunOutput> output = executor.run(faulty, inputs, {.threads = 1});
  if (!output) {
    result.fault += ": not executed: " + output.error().complaints.front().what;
    return;
  }
  result.is_caught = !grade_answer(faulty.plan(), inputs, output.value().answer, verdict).passed;
}

}  // namespace

std::string_view to_name(CellStatus value) {
  constexpr std::string_view kNames[] = {"pass", "refused", "blind", "fail"};
  return kNames[static_cast<size_t>(value)];
}

CellResult run_cell(Executor& executor, const Toolbox& toolbox, const MatrixCell& cell,
                    const Scenario& of_cell, int64_t index) {
  CellResult result;
  result.cell = cell;
  Scenario scenario = of_cell;
  // A device that holds no fp64 is judged as closely as it can be.
  if (!executor.can_hold(scenario.numerics.dtype)) scenario.numerics.dtype = Dtype::fp32;
  Result<Plan> planned = make_plan(scenario);
  if (!planned) return stop(std::move(result), planned.error());
  const Result<CheckedPlan> checked = check_plan(std::move(planned).value());
  if (!checked) return stop(std::move(result), checked.error());
  const Plan& plan = checked.value().plan();
  const RunInputs inputs = make_run_inputs(plan, true);
  const Result<RunOutput> output =
      executor.run(checked.value(), inputs, {.poison = true, .threads = 1});
  if (!output) return stop(std::move(result), output.error());
  const Verdict verdict = toolbox.oracle.judge(scenario, inputs, count_hops(plan), {}).value();
  const Grade grade = grade_answer(plan, inputs, output.value().answer, verdict);
  if (!grade.passed)
    return stop(std::move(result), CellStatus::fail, describe_first_failure(grade));

  const Visibility visibility = find_visibility(plan);
  const Telling telling = find_telling(plan, visibility, toolbox.oracle.witness);
  if (!telling.contradiction.empty())
    return stop(std::move(result), CellStatus::fail, telling.contradiction);
  std::string blindness = weigh(plan, telling, result);
  if (!blindness.empty()) return stop(std::move(result), CellStatus::blind, std::move(blindness));
  auto fault = choose_fault(plan, visibility, cell.feature, index);
  if (!fault) return stop(std::move(result), CellStatus::blind, "no fault could be planted");
  // A padding key that becomes visible must show by its value, not by the NaN that only a test puts
  // there.
  const bool needs_clean_padding = fault->kind == FaultKind::padding;
  try_cell_fault(executor, *std::move(fault),
                 needs_clean_padding ? make_run_inputs(plan, false) : inputs,
                 verdict, result);
  if (!result.is_caught)
    return stop(std::move(result), CellStatus::blind, "a planted fault went unseen");
  return stop(std::move(result), CellStatus::pass, "");
}

std::vector<CellResult> run_matrix(Executor& executor, const Toolbox& toolbox,
                                   std::span<const MatrixCell> cells, int threads,
                                   const Progress& progress) {
  std::vector<CellResult> results(cells.size());
  std::mutex progress_mutex;
  int64_t done = 0;
  const auto count = static_cast<int64_t>(cells.size());
  for_each_index(
      count,
      [&](int64_t index) {
        const MatrixCell& cell = cells[static_cast<size_t>(index)];
        results[static_cast<size_t>(index)] =
            run_cell(executor, toolbox, cell, make_cell_scenario(cell), index);
        const std::lock_guard lock(progress_mutex);
        ++done;
        if (progress) progress(done, count);
      },
      threads);
  return results;
}

}  // namespace cpscope
