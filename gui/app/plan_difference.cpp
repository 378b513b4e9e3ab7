#include "gui/app/plan_difference.h"

#include "gui/app/run_difference.h"
#include "sim/run/grade/record_diff.h"
#include "sim/run/record/record_match.h"
#include "sim/scenario/scenario_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

struct SidedTensor {
  std::string_view name;
  Side side{};
};

constexpr std::array<SidedTensor, 9> kRowTensors = {{{"q", Side::q},
                                                     {"k", Side::kv},
                                                     {"v", Side::kv},
                                                     {"d_out", Side::q},
                                                     {"out", Side::q},
                                                     {"lse", Side::q},
                                                     {"dq", Side::q},
                                                     {"dk", Side::kv},
                                                     {"dv", Side::kv}}};
constexpr size_t kInputs = 4;  // the first of them are inputs

Error different(std::string what) {
  return make_error(ErrorKind::bad_input, "The two plans do not answer the same question: " + what,
                    "change only how the batch is split between the two runs");
}

/// Values of one token of a tensor.
size_t row_size(const Tensor& tensor) {
  return tensor.shape.empty() || tensor.shape[0] == 0
             ? 0
             : tensor.values.size() / static_cast<size_t>(tensor.shape[0]);
}

/// The tensor with the valid rows of `tensor` in the places of `own`.
Tensor align_tensor(const Tensor& tensor, const Plan& from, const Tensor& own, const Plan& to,
                    Side side) {
  Tensor aligned = own;
  const size_t row = row_size(own);
  for (size_t s = 0; s < to.layout.slots.sequences.size(); ++s) {
    const SlotSide there = from.layout.slots.sequences[s].side(side);
    const SlotSide here = to.layout.slots.sequences[s].side(side);
    const auto begin = tensor.values.begin() + static_cast<int64_t>(row) * there.valid_begin();
    std::copy(begin, begin + static_cast<int64_t>(row) * there.valid,
              aligned.values.begin() + static_cast<int64_t>(row) * here.valid_begin());
  }
  return aligned;
}

/// True if the tensors have the same elements for a token, and one row for each of its plan's.
bool is_alignable(const Tensor& tensor, const Plan& from, const Tensor& own, const Plan& to,
                  Side side) {
  return !tensor.shape.empty() && tensor.shape.size() == own.shape.size() &&
         std::equal(tensor.shape.begin() + 1, tensor.shape.end(), own.shape.begin() + 1) &&
         tensor.shape[0] == from.layout.slots.tokens_of(side) &&
         own.shape[0] == to.layout.slots.tokens_of(side);
}

/// Squares of the lengths of a difference and of its reference, in some rows.
struct Squares {
  double difference = 0, expected = 0;
};

/// The share of the tolerance that some rows use. Rows of which all are zero must not differ.
double share_of(const Squares& squares, double budget) {
  if (squares.difference == 0) return 0;
  const double allowed = budget * std::sqrt(squares.expected);
  return allowed > 0 ? std::sqrt(squares.difference) / allowed
                     : std::numeric_limits<double>::infinity();
}

DistanceBars to_bars(std::string noun, std::string title, bool are_shown_ranks,
                     const std::vector<Squares>& squares, double budget) {
  DistanceBars bars{std::move(noun), std::move(title), are_shown_ranks, {}};
  for (const Squares& part : squares) bars.shares.push_back(share_of(part, budget));
  return bars;
}

/// The distance of one tensor by rank of either plan, and by head.
std::vector<DistanceBars> split_distance(const Tensor& seen, const Tensor& expected, double budget,
                                         Side side, const PlannedRun& own,
                                         const PlannedRun& other) {
  const Plan &to = own.plan->plan(), &from = other.plan->plan();
  const auto heads = static_cast<size_t>(seen.shape[1]);
  const size_t row = row_size(seen), elements = heads == 0 ? 0 : row / heads;
  std::vector<Squares> by_own(static_cast<size_t>(own.plan->num_ranks()));
  std::vector<Squares> by_other(static_cast<size_t>(other.plan->num_ranks()));
  std::vector<Squares> by_head(heads);
  for (size_t s = 0; s < to.layout.slots.sequences.size(); ++s) {
    const SlotSide here = to.layout.slots.sequences[s].side(side);
    const SlotSide there = from.layout.slots.sequences[s].side(side);
    for (int64_t i = 0; i < here.valid; ++i) {
      const int64_t token = here.valid_begin() + i;
      Squares& of_own = by_own[static_cast<size_t>(own.plan->owner(side, token).rank)];
      Squares& of_other =
          by_other[static_cast<size_t>(other.plan->owner(side, there.valid_begin() + i).rank)];
      for (size_t head = 0; head < heads; ++head) {
        for (size_t element = 0; element < elements; ++element) {
          const size_t at = static_cast<size_t>(token) * row + head * elements + element;
          const double value = expected.values[at];
          // Equal infinities (lse of rows that see no key) are no difference.
          const double gap = seen.values[at] == value ? 0.0 : seen.values[at] - value;
          const double size = std::isfinite(value) ? value * value : 0.0;
          for (Squares* part : {&of_own, &of_other, &by_head[head]}) {
            part->difference += gap * gap;
            part->expected += size;
          }
        }
      }
    }
  }
  const std::string heads_of = side == Side::q ? "head" : "KV head";
  return {to_bars("rank", describe_split(to.scenario), true, by_own, budget),
          to_bars("rank", describe_split(from.scenario), false, by_other, budget),
          to_bars(heads_of, "both plans", false, by_head, budget)};
}

const SidedTensor* find_row_tensor(std::string_view name) {
  const auto* found = std::find_if(kRowTensors.begin(), kRowTensors.end(),
                                   [&](const SidedTensor& tensor) { return tensor.name == name; });
  return found == kRowTensors.end() ? nullptr : found;
}

std::optional<Error> check_inputs(const RunRecord& own, const RunRecord& aligned) {
  for (size_t n = 0; n < kInputs; ++n) {
    const std::string name(kRowTensors[n].name);
    const Tensor *left = own.find(name), *right = aligned.find(name);
    if (left == nullptr || right == nullptr) continue;
    const bool is_same = std::equal(
        left->values.begin(), left->values.end(), right->values.begin(), right->values.end(),
        [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); });
    if (!is_same) return different("the runs were given another " + name);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> refuse_difference(const Plan& own, const Plan& other) {
  const auto &mine = own.layout.slots.sequences, &theirs = other.layout.slots.sequences;
  if (mine.size() != theirs.size())
    return different(fmt::format("{} sequences and {}", mine.size(), theirs.size()));
  for (size_t s = 0; s < mine.size(); ++s) {
    if (mine[s].q_valid != theirs[s].q_valid || mine[s].kv_valid != theirs[s].kv_valid)
      return different(
          fmt::format("sequence {} has {} tokens and {}", s, mine[s].q_valid, theirs[s].q_valid));
  }
  const Scenario &left = own.scenario, &right = other.scenario;
  if (left.attention != right.attention) return different("their attention is not the same");
  if (left.batch.q_positions != right.batch.q_positions ||
      left.batch.kv_positions != right.batch.kv_positions)
    return different("their tokens have other positions");
  if (left.numerics.seed != right.numerics.seed)
    return different(
        fmt::format("their seeds are {} and {}", left.numerics.seed, right.numerics.seed));
  if (left.numerics.inputs != right.numerics.inputs)
    return different(fmt::format("their inputs are {} and {}", to_name(left.numerics.inputs),
                                 to_name(right.numerics.inputs)));
  return std::nullopt;
}

std::string describe_split(const Scenario& scenario) {
  return fmt::format("{}, {}", to_name(scenario.parallel.comm_type),
                     to_name(scenario.parallel.layout));
}

RunRecord align_record(const RunRecord& record, const Plan& from, const RunRecord& own,
                       const Plan& to) {
  RunRecord aligned;
  aligned.budgets = record.budgets;
  for (const SidedTensor& wanted : kRowTensors) {
    const std::string name(wanted.name);
    const Tensor *there = record.find(name), *here = own.find(name);
    if (there == nullptr || here == nullptr) continue;
    if (!is_alignable(*there, from, *here, to, wanted.side)) continue;
    aligned.tensors.push_back(align_tensor(*there, from, *here, to, wanted.side));
  }
  return aligned;
}

Result<SharedRun> compare_across_plans(const PlannedRun& own, const PlannedRun& other) {
  if (!own.run->record || !other.run->record)
    return make_error(ErrorKind::unavailable, "One of the two runs kept no answer to compare",
                      "run it again");
  const Plan &to = own.plan->plan(), &from = other.plan->plan();
  if (auto error = refuse_difference(to, from)) return *std::move(error);
  for (const PlannedRun* one : {&own, &other}) {
    if (auto error = check_record(*one->run->record, one->plan->plan(), one->run->name))
      return *std::move(error);
  }
  const RunRecord aligned = align_record(*other.run->record, from, *own.run->record, to);
  if (auto error = check_inputs(*own.run->record, aligned)) return *std::move(error);
  RunRecord mine;  // only what both have, without items
  mine.budgets = own.run->record->budgets;
  for (const Tensor& tensor : aligned.tensors)
    mine.tensors.push_back(*own.run->record->find(tensor.name));
  auto view = std::make_shared<RunView>();
  view->name = fmt::format("{} ({})", own.run->name, describe_split(to.scenario));
  view->against = fmt::format("{} ({})", other.run->name, describe_split(from.scenario));
  view->record = own.run->record;
  const bool is_same = add_differences(mine, aligned, diff_runs(mine, aligned), *view);
  view->verdict = is_same
                      ? "The runs of both plans agree within the earned tolerances of both."
                      : "The runs of the two plans are further apart than their budgets explain.";
  view->passed = is_same;
  view->without_steps = "Steps of different plans do not correspond. Press E for the answer.";
  for (ErrorField& field : view->errors)
    field.parts = split_distance(*mine.find(field.name), *aligned.find(field.name), field.budget,
                                 find_row_tensor(field.name)->side, own, other);
  return SharedRun(std::move(view));
}

}  // namespace cpscope::gui
