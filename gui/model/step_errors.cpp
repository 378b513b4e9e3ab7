#include "gui/model/step_errors.h"

#include "gui/model/row_pair.h"
#include "sim/run/record/item_tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// One array of one compute item on both sides, and its tokens and heads.
struct ItemPair {
  size_t tensor = 0;  // index in kErrorTensors
  int32_t step = 0;   // index in PlanIndex::steps
  const Tensor* seen = nullptr;
  const Tensor* expected = nullptr;
  RunListId tokens{};
  int32_t first_head = 0;
};

/// The shape of an item's array according to the plan.
struct ItemShape {
  RunListId tokens{};
  HeadRange heads;
  int64_t lanes = 1;
};

std::optional<ItemShape> shape_of(const Plan& plan, const ItemTensorName& name) {
  const Pass& pass = plan.pass(name.item.direction);
  if (static_cast<size_t>(name.item.index) >= pass.computes.size()) return std::nullopt;
  const ComputeItem& item = pass.computes[static_cast<size_t>(name.item.index)];
  const Attention& attention = plan.scenario.attention;
  const bool is_forward_array = name.array == "out" || name.array == "lse";
  const Direction direction = is_forward_array ? Direction::forward : Direction::backward;
  if (name.item.direction != direction || item.rank != name.rank || item.step != name.step)
    return std::nullopt;
  const bool is_of_keys = name.array == "dk" || name.array == "dv";
  const BufferId buffer = is_forward_array ? item.out : is_of_keys ? item.dkv : item.dq;
  if (buffer == kNoBuffer) return std::nullopt;
  const int64_t lanes = name.array == "lse"                         ? 1
                        : name.array == "out" || name.array == "dv" ? attention.head_dim_v
                        : name.array == "dk"                        ? attention.key_dim()
                                                                    : attention.head_dim_qk;
  return ItemShape{is_of_keys ? item.kv_tokens : item.q_tokens, plan.buffer(buffer).heads, lanes};
}

Error unfit(const std::string& what) {
  return make_error(ErrorKind::bad_input, what, "record the run again");
}

/// Collects all arrays of compute items, in plan order.
Result<std::vector<ItemPair>> pair_items(const RunRecord& seen, const RunRecord& expected,
                                         const PlanIndex& index) {
  const Plan& plan = index.plan();
  std::unordered_map<std::string_view, const Tensor*> others;
  for (const Tensor& tensor : expected.tensors) others.emplace(tensor.name, &tensor);
  std::vector<ItemPair> pairs;
  for (const Tensor& tensor : seen.tensors) {
    const std::optional<ItemTensorName> name = parse_item_name(tensor.name);
    if (!name || name->item.kind != StageKind::compute) continue;
    const std::optional<ItemShape> shape = shape_of(plan, *name);
    const int32_t step = number_of_step(index, name->item.direction, name->step);
    if (!shape || step < 0)
      return unfit("A run holds results of an item that its plan does not have: " + tensor.name);
    const auto other = others.find(tensor.name);
    if (other == others.end())
      return unfit("Only one of the two sides holds the results of an item: " + tensor.name);
    const std::vector<int64_t> wanted{plan.rows(shape->tokens), shape->heads.size(), shape->lanes};
    if (tensor.shape != wanted || other->second->shape != wanted)
      return unfit("The results of an item have another shape than the plan gives them: " +
                   tensor.name);
    const auto* array = std::find(kErrorTensors.begin(), kErrorTensors.end(), name->array);
    pairs.push_back({static_cast<size_t>(array - kErrorTensors.begin()), step, &tensor,
                     other->second, shape->tokens, shape->heads.begin});
  }
  if (pairs.empty()) return unfit("One of the two sides kept no results of its items");
  return pairs;
}

/// True for zeros, or -inf: the row sees no key.
bool is_empty(const double* row, int64_t lanes) {
  return std::all_of(row, row + lanes,
                     [](double value) { return value == 0 || (std::isinf(value) && value < 0); });
}

/// Calls `visit(token, head, pair)` for each row that is not empty on both sides.
template <class Visit>
void for_each_row(const ItemPair& item, const Plan& plan, Visit visit) {
  const int64_t heads = item.seen->shape[1], lanes = item.seen->shape[2];
  int64_t place = 0;
  for (const TokenRun& run : plan.list(item.tokens)) {
    for (int64_t i = 0; i < run.count(); ++i) {
      for (int64_t head = 0; head < heads; ++head, place += lanes) {
        const RowPair pair{item.seen->values.data() + place, item.expected->values.data() + place,
                           lanes};
        if (is_empty(pair.seen, lanes) && is_empty(pair.expected, lanes)) continue;
        visit(run.at(i), item.first_head + head, pair);
      }
    }
  }
}

/// Root mean square of |expected|2 over the rows of all items of one tensor.
double find_typical_row(const std::vector<ItemPair>& items, size_t tensor, const Plan& plan) {
  double sum = 0;
  int64_t rows = 0;
  for (const ItemPair& item : items) {
    if (item.tensor != tensor) continue;
    for_each_row(item, plan, [&](int64_t, int64_t, const RowPair& pair) {
      sum += row_square(pair);
      ++rows;
    });
  }
  return rows > 0 ? std::sqrt(sum / static_cast<double>(rows)) : 0.0;
}

/// Measures one tensor of one step.
ErrorField measure_step(const std::vector<const ItemPair*>& items, const PlanIndex& index,
                        double typical_row) {
  const Plan& plan = index.plan();
  const size_t tensor = items.front()->tensor;
  const bool is_of_keys = tensor >= 3;
  const Attention& attention = plan.scenario.attention;
  ErrorField field;
  field.name = std::string(kErrorTensors[tensor]);
  field.tokens = index.tokens(is_of_keys ? Side::kv : Side::q);
  field.heads = is_of_keys ? attention.kv_heads : attention.heads;
  field.typical_row = typical_row;
  field.row_errors.assign(static_cast<size_t>(field.tokens * field.heads), MaxPyramid::kNothing);
  std::vector<RowPair> pairs(field.row_errors.size());
  double error_sum = 0, expected_sum = 0;
  for (const ItemPair* item : items) {
    for_each_row(*item, plan, [&](int64_t token, int64_t head, const RowPair& pair) {
      const double error = row_error(pair);
      const auto row = static_cast<size_t>(token * field.heads + head);
      error_sum += error * error;
      expected_sum += row_square(pair);
      field.nan += std::count_if(pair.seen, pair.seen + pair.lanes,
                                 [](double value) { return std::isnan(value); });
      const float before = field.row_errors[row];
      if (before >= 0 && static_cast<float>(error) <= before) return;
      if (std::isnan(before)) return;
      field.row_errors[row] = static_cast<float>(error);
      pairs[row] = pair;
    });
  }
  field.rel_l2 = error_ratio(std::sqrt(error_sum), std::sqrt(expected_sum));
  if (std::isnan(field.rel_l2)) field.rel_l2 = std::numeric_limits<double>::infinity();
  weigh_rows(field, [&](int64_t row) { return pairs[static_cast<size_t>(row)]; });
  field.passed = field.rows_over == 0;
  return field;
}

/// Limits the rows of all heat maps together; a step has one for each tensor that it writes.
std::optional<Error> check_size(
    const std::array<std::vector<std::vector<const ItemPair*>>, kErrorTensors.size()>& items_of,
    const PlanIndex& plan) {
  int64_t rows = 0;
  for (size_t tensor = 0; tensor < items_of.size(); ++tensor) {
    const Attention& attention = plan.plan().scenario.attention;
    const int64_t rows_of_step = tensor >= 3 ? plan.tokens(Side::kv) * attention.kv_heads
                                             : plan.tokens(Side::q) * attention.heads;
    for (const auto& items : items_of[tensor]) rows += items.empty() ? 0 : rows_of_step;
  }
  if (rows <= kMostStepRows) return std::nullopt;
  return make_error(ErrorKind::unavailable,
                    fmt::format("The steps have {} rows together, the window compares {} at most",
                                rows, kMostStepRows),
                    "use fewer tokens, heads or ranks");
}

void add_up(ErrorHistogram& sum, const ErrorHistogram& part) {
  for (size_t bin = 0; bin < sum.bins.size(); ++bin) sum.bins[bin] += part.bins[bin];
  sum.exact += part.exact;
  sum.broken += part.broken;
  sum.left_out += part.left_out;
}

}  // namespace

const ErrorField* StepErrors::find(int32_t tensor, int32_t step) const {
  if (tensor < 0 || tensor >= static_cast<int32_t>(fields.size())) return nullptr;
  const auto& steps = fields[static_cast<size_t>(tensor)];
  if (step < 0 || step >= static_cast<int32_t>(steps.size())) return nullptr;
  const ErrorField& field = steps[static_cast<size_t>(step)];
  return field.tokens > 0 ? &field : nullptr;
}

int32_t number_of_step(const PlanIndex& plan, Direction direction, StepId step) {
  const auto steps = plan.steps();
  const std::pair wanted{direction, to_index(step)};
  const auto it = std::partition_point(steps.begin(), steps.end(), [&](const StepRef& ref) {
    return std::pair{ref.direction, ref.step} < wanted;
  });
  if (it == steps.end() || std::pair{it->direction, it->step} != wanted) return -1;
  return static_cast<int32_t>(it - steps.begin());
}

Result<StepErrors> measure_steps(const RunRecord& seen, const RunRecord& expected,
                                 const PlanIndex& plan, std::string against) {
  const Result<std::vector<ItemPair>> paired = pair_items(seen, expected, plan);
  if (!paired) return paired.error();
  const std::vector<ItemPair>& items = paired.value();
  const size_t num_steps = plan.steps().size();
  using ItemsOfStep = std::vector<std::vector<const ItemPair*>>;  // [step]
  std::array<ItemsOfStep, kErrorTensors.size()> items_of;
  for (auto& steps : items_of) steps.resize(num_steps);
  for (const ItemPair& item : items)
    items_of[item.tensor][static_cast<size_t>(item.step)].push_back(&item);
  if (auto error = check_size(items_of, plan)) return *std::move(error);
  StepErrors errors;
  errors.against = std::move(against);
  for (size_t tensor = 0; tensor < kErrorTensors.size(); ++tensor) {
    errors.fields[tensor].resize(num_steps);
    const double typical_row = find_typical_row(items, tensor, plan.plan());
    for (size_t step = 0; step < num_steps; ++step) {
      const auto& of_step = items_of[tensor][step];
      if (of_step.empty()) continue;
      ErrorField& field = errors.fields[tensor][step];
      field = measure_step(of_step, plan, typical_row);
      add_up(errors.histograms[tensor], field.histogram);
    }
  }
  return errors;
}

}  // namespace cpscope::gui
