#include "gui/model/light.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace cpscope::gui {
namespace {

bool holds_any(const std::vector<TokenRange>& ranges, int64_t begin, int64_t end) {
  const auto it = std::partition_point(ranges.begin(), ranges.end(),
                                       [&](const TokenRange& r) { return r.end <= begin; });
  return it != ranges.end() && it->begin < end;
}

template <class Value>
bool holds(const std::vector<Value>& sorted, const Value& value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

/// Items are ordered by stage, and in order inside a stage.
bool has_item(const Projection& projection, const PlanIndex& plan, const ItemId& item) {
  const std::pair wanted{plan.stage_of(item), item.index};
  const auto it = std::partition_point(
      projection.items.begin(), projection.items.end(), [&](const ItemId& other) {
        return std::pair{plan.stage_of(other), other.index} < wanted;
      });
  return it != projection.items.end() && *it == item;
}

template <class Touches>
Light strongest(const ViewInput& input, bool is_itself, Touches touches) {
  if (touches(*input.hovered)) return Light::hovered;
  if (is_itself) return Light::selected;
  return touches(*input.selected) ? Light::related : Light::none;
}

}  // namespace

Light light_of_tokens(const ViewInput& input, Side side, int64_t begin, int64_t end) {
  const auto touches = [&](const Projection& p) { return holds_any(p.tokens(side), begin, end); };
  const bool is_itself = (std::holds_alternative<TokenRange>(input.selection) ||
                          std::holds_alternative<PairRange>(input.selection) ||
                          std::holds_alternative<RowTarget>(input.selection)) &&
                         touches(*input.selected);
  return strongest(input, is_itself, touches);
}

Light light_of_rank(const ViewInput& input, int32_t rank) {
  return strongest(input, input.selection == Target{RankTarget{rank}},
                   [&](const Projection& p) { return holds(p.ranks, rank); });
}

Light light_of_link(const ViewInput& input, int32_t src, int32_t dst) {
  return strongest(input, input.selection == Target{LinkTarget{src, dst}},
                   [&](const Projection& p) {
                     return holds(p.links, {src, dst});
                   });
}

Light light_of_step(const ViewInput& input, int32_t step) {
  return strongest(input, input.selection == Target{StepTarget{step}},
                   [&](const Projection& p) { return holds(p.steps, step); });
}

Light light_of_item(const ViewInput& input, const ItemId& item) {
  return strongest(input, input.selection == Target{item},
                   [&](const Projection& p) { return has_item(p, *input.plan, item); });
}

}  // namespace cpscope::gui
