// Schedules that a caller writes, for the module cpscope._core. cpscope.Schedule has checked ranks,
// rows and heads.

#include "reference/python/arrays.h"
#include "reference/python/boxes.h"
#include "sim/plan/check/pair_fault.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/planner/schedule_draft.h"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace cpscope::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

using Integers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// (is of keys, owner, (begin, end, stride) of each run of rows or None, first head, end of heads,
/// numbers of the blocks that it joins)
using GivenBlock = std::tuple<bool, int32_t, std::optional<std::vector<std::array<int64_t, 3>>>,
                              int32_t, int32_t, std::vector<int32_t>>;

/// One line of a schedule: kColumns numbers.
struct Operation {
  int64_t step, part, a, b, c, first_head, end_head;
};
constexpr size_t kColumns = 7;

Operation operation(const Integers& numbers, size_t index) {
  const int64_t* from = numbers.data() + index * kColumns;
  return {from[0], from[1], from[2], from[3], from[4], from[5], from[6]};
}

/// The steps of one pass, and which operation each send and compute is.
struct GivenSteps {
  std::vector<DraftStep> steps;
  std::vector<std::array<std::vector<int64_t>, 3>> operations;  // [step][part][index]

  GivenSteps(const Integers& numbers, int64_t num_steps)
      : steps(static_cast<size_t>(num_steps)), operations(static_cast<size_t>(num_steps)) {
    for (size_t i = 0; i < numbers.size() / kColumns; ++i) {
      const Operation op = operation(numbers, i);
      DraftStep& step = steps.at(static_cast<size_t>(op.step));
      const auto part = static_cast<DraftPart>(op.part);
      operations[static_cast<size_t>(op.step)]
          .at(static_cast<size_t>(op.part))
          .push_back(static_cast<int64_t>(i));
      const auto rank = [](int64_t number) { return RankId{static_cast<int32_t>(number)}; };
      const auto block = [](int64_t number) { return BlockId{static_cast<int32_t>(number)}; };
      if (part == DraftPart::compute) {
        step.computes.push_back(
            {rank(op.a),
             block(op.b),
             block(op.c),
             {static_cast<int32_t>(op.first_head), static_cast<int32_t>(op.end_head)}});
      } else {
        (part == DraftPart::before ? step.before : step.during)
            .push_back({rank(op.a), rank(op.b), block(op.c)});
      }
    }
  }

  int64_t operation_of(const DraftPlace& place) const {
    return operations[place.step][static_cast<size_t>(place.part)][place.index];
  }
};

/// What is wrong with a schedule, for cpscope.ScheduleError.
struct Wrong {
  std::string what, hint;
  bool is_backward = false;  // the operations are those of the backward's own steps
  std::vector<int64_t>
      operations;  // of a pair that is computed twice: the first one, the other one
  std::optional<PairFault> pairs;
};

nb::dict to_dict(const OwnedPositions& positions) {
  nb::dict all;
  all["rank"] = to_index(positions.owner);
  all["begin"] = positions.begin;
  all["end"] = positions.end;
  all["stride"] = positions.stride;
  return all;
}

nb::dict to_dict(const Wrong& wrong) {
  nb::dict all;
  all["what"] = wrong.what;
  all["hint"] = wrong.hint;
  all["is_backward"] = wrong.is_backward;
  all["operations"] = wrong.operations;
  if (!wrong.pairs) return all;
  all["sequence"] = wrong.pairs->sequence;
  all["queries"] = to_dict(wrong.pairs->queries);
  all["keys"] = to_dict(wrong.pairs->keys);
  all["heads"] = std::pair(wrong.pairs->heads.begin, wrong.pairs->heads.end);
  return all;
}

/// Names the pairs that are missing or doubled; nothing if all are computed once.
std::optional<Wrong> find_wrong_pairs(const Plan& plan, const DraftTrace& trace,
                                      const std::array<const GivenSteps*, 2>& steps) {
  for (const Direction direction : kDirections) {
    const bool is_backward = direction == Direction::backward;
    if (is_backward && !plan.scenario.numerics.backward) continue;
    const auto fault = find_pair_fault(plan, direction);
    if (!fault) continue;
    Wrong wrong;
    wrong.is_backward = is_backward;
    wrong.pairs = fault;
    const auto& computes = is_backward ? trace.backward_computes : trace.forward_computes;
    for (const int64_t item : {fault->first, fault->second}) {
      if (item >= 0)
        wrong.operations.push_back(
            steps[is_backward]->operation_of(computes[static_cast<size_t>(item)]));
    }
    return wrong;
  }
  return std::nullopt;
}

ScheduleDraft draft_of(PlanBuilder& builder, const std::vector<GivenBlock>& blocks) {
  ScheduleDraft draft;
  for (const auto& [is_kv, owner, rows, first_head, end_head, joined] : blocks) {
    if (!joined.empty()) {
      std::vector<BlockId> parts;
      for (const int32_t part : joined) parts.push_back(BlockId{part});
      draft.add_block(join_blocks(builder, draft, parts));
      continue;
    }
    const Side side = is_kv ? Side::kv : Side::q;
    const RankId rank{owner};
    const HeadRange heads{first_head, end_head};
    if (!rows) {
      draft.add_block({side, rank, builder.plan().lists(side)[rank], kAllRows, heads});
      continue;
    }
    std::vector<TokenRun> runs;
    for (const auto& [begin, end, stride] : *rows) runs.push_back({begin, end, stride});
    draft.add_block(make_part_block(builder, side, rank, runs, heads));
  }
  return draft;
}

/// The plan of a schedule, proved; or what is wrong with the schedule.
std::pair<std::optional<PlanBox>, std::optional<nb::dict>> compile_schedule(
    const ScenarioBox& box, const std::vector<GivenBlock>& blocks, const Integers& operations,
    int64_t num_steps, const std::optional<Integers>& backward_operations,
    int64_t num_backward_steps, bool returns_at_end, bool gradients_with_keys, bool prunes) {
  const GivenSteps forward(operations, num_steps);
  std::optional<GivenSteps> backward;
  if (backward_operations) backward.emplace(*backward_operations, num_backward_steps);
  const std::array<const GivenSteps*, 2> steps{&forward, backward ? &*backward : &forward};
  std::optional<Wrong> wrong;
  DraftTrace trace;
  const auto fill = [&](PlanBuilder& builder) {
    ScheduleDraft draft = draft_of(builder, blocks);
    draft.returns = returns_at_end ? ReturnTime::end : ReturnTime::next_step;
    draft.gradients = gradients_with_keys ? GradientWay::with_keys : GradientWay::to_owner;
    draft.prunes = prunes;
    draft.steps = forward.steps;
    if (backward) draft.backward_steps = backward->steps;
    trace = {};
    std::optional<Error> error = compile_draft(builder, std::move(draft), &trace);
    if (error && error->kind == ErrorKind::bad_input) {
      const Complaint& complaint = error->complaints.front();
      wrong = Wrong{complaint.what, complaint.hint, false, {}, {}};
      if (trace.wrong) {
        wrong->is_backward = trace.wrong->direction == Direction::backward;
        wrong->operations = {steps[wrong->is_backward]->operation_of(*trace.wrong)};
      }
    }
    return error;
  };
  auto made = [&]() -> Result<CheckedPlan> {
    const nb::gil_scoped_release release;
    Result<Plan> plan = make_custom_plan(box.scenario(), fill);
    if (!plan) return plan.error();
    Result<CheckedPlan> checked = check_plan(std::move(plan).value());
    if (checked) return checked;
    // The plan of a failed proof is gone: it is made once more to name the pairs.
    plan = make_custom_plan(box.scenario(), fill);
    wrong = find_wrong_pairs(plan.value(), trace, steps);
    return checked;
  }();
  if (wrong) return {std::nullopt, to_dict(*wrong)};
  return {PlanBox{take(std::move(made), kScenario)}, std::nullopt};
}

}  // namespace

void bind_schedules(nb::module_& module) {
  module.def("compile_schedule", &compile_schedule, "scenario"_a, "blocks"_a, "operations"_a,
             "num_steps"_a, "backward_operations"_a.none(), "num_backward_steps"_a,
             "returns_at_end"_a, "gradients_with_keys"_a, "prunes"_a);
}

}  // namespace cpscope::python
