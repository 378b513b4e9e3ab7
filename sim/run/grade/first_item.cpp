#include "sim/run/grade/first_item.h"

#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The item and its name; its place is not known yet.
std::optional<FirstItem> find_unplaced(const RunRecord& a, const RunRecord& b,
                                       const std::vector<TensorDiff>& diffs, const DiffRule& rule) {
  if (!holds_items(a) || !holds_items(b)) return std::nullopt;
  const TensorDiff* diff = find_first_item(diffs, rule);
  if (diff == nullptr) return std::nullopt;
  return FirstItem{*diff, *parse_item_name(diff->name), std::nullopt};
}

void place_item(FirstItem& first, const Plan& plan) {
  if (first.diff.shape_mismatch.empty())
    first.place = place_in_item(plan, first.name, first.diff.worst_row, first.diff.worst_head);
}

}  // namespace

bool holds_items(const RunRecord& record) {
  return std::any_of(record.tensors.begin(), record.tensors.end(),
                     [](const Tensor& tensor) { return parse_item_name(tensor.name).has_value(); });
}

std::optional<Plan> plan_again(const RunRecord& record, const std::string& path) {
  const Result<LoadedScenario> loaded = parse_scenario(record.scenario_text, path);
  if (!loaded) return std::nullopt;
  Result<Plan> plan = make_plan(loaded.value().scenario);
  if (!plan || to_hex(plan.value().hash) != record.plan_hash) return std::nullopt;
  return std::move(plan).value();
}

std::optional<FirstItem> find_first_item(const RunRecord& a, const RunRecord& b,
                                         const std::vector<TensorDiff>& diffs, const DiffRule& rule,
                                         const std::string& path) {
  std::optional<FirstItem> first = find_unplaced(a, b, diffs, rule);
  if (!first) return first;
  if (const std::optional<Plan> plan = plan_again(a, path)) place_item(*first, *plan);
  return first;
}

std::optional<FirstItem> find_first_item(const RunRecord& a, const RunRecord& b,
                                         const std::vector<TensorDiff>& diffs, const DiffRule& rule,
                                         const Plan* plan) {
  std::optional<FirstItem> first = find_unplaced(a, b, diffs, rule);
  if (first && plan != nullptr) place_item(*first, *plan);
  return first;
}

std::string describe_earned(const TensorDiff& diff, const DiffRule& rule) {
  if (!rule.is_earned) return "";
  if (!diff.earned) return "; tensors without a budget are equal bit by bit";
  if (diff.earned->row_excess > 1)
    return fmt::format("; the error of the row is {:.3g} times the earned tolerance",
                       diff.earned->row_excess);
  return fmt::format("; {:.3g} apart, {} {:.3g}", diff.l2,
                     is_within(diff, rule) ? "within the earned tolerance" : "over the earned",
                     diff.earned->allowed_l2);
}

std::string describe_first_item(const FirstItem& first, const DiffRule& rule) {
  const ItemTensorName& name = first.name;
  const TensorDiff& diff = first.diff;
  std::string text = fmt::format(
      "first diverging item: {} {} {}, rank {}, step {}, {}: ", to_name(name.item.direction),
      to_name(name.item.kind), name.item.index, to_index(name.rank), to_index(name.step),
      name.array);
  if (!diff.shape_mismatch.empty()) return text + diff.shape_mismatch;
  text += fmt::format("row {}", diff.worst_row);
  if (first.place && first.place->token >= 0)
    text += fmt::format(" (token {})", first.place->token);
  text += first.place ? fmt::format(", head {}", first.place->head)
                      : fmt::format(", head {} of the buffer", diff.worst_head);
  return text + fmt::format(", element {}: {:.9g} vs {:.9g}; rel_l2 {:.3g}{}", diff.worst_lane,
                            diff.left, diff.right, diff.rel_l2, describe_earned(diff, rule));
}

}  // namespace cpscope
