#include "sim/plan/layout.h"
#include "sim/plan/order/order_import.h"

#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

constexpr std::array<std::string_view, 7> kSources = {
    "te", "torch", "ring-flash-attention", "usp", "magi", "megatron", "vllm"};

}  // namespace

std::string_view to_name(OrderSource value) { return kSources[static_cast<size_t>(value)]; }

std::optional<OrderSource> find_order_source(std::string_view name) {
  for (size_t i = 0; i < kSources.size(); ++i) {
    if (kSources[i] == name) return static_cast<OrderSource>(i);
  }
  return std::nullopt;
}

int64_t OrderImport::tokens() const {
  int64_t count = 0;
  for (const auto& list : ranks) count += static_cast<int64_t>(list.size());
  return count;
}

Result<OrderDemand> demand_of_order(const Scenario& scenario) {
  const Result<Layout> layout = make_layout(scenario);
  if (!layout) return layout.error();
  const BatchSlots& slots = layout.value().slots;
  OrderDemand demand{scenario.parallel.cp_size, slots.tokens, slots.kv_tokens,
                     scenario.batch.self_attention};
  for (const SequenceSlot& slot : slots.sequences) {
    demand.places.lengths.push_back(slot.q_valid);
    demand.places.slots.push_back(slot.q_slot);
    demand.kv_places.lengths.push_back(slot.kv_valid);
    demand.kv_places.slots.push_back(slot.kv_slot);
  }
  demand.places.is_padded_left = demand.kv_places.is_padded_left =
      scenario.batch.pad_side == PadSide::left;
  return demand;
}

std::optional<Error> use_order(ImportedOrder order, const std::string& path, Scenario& scenario) {
  const Result<Layout> layout = make_layout(scenario);
  if (!layout) return layout.error();
  const std::vector<SequenceSlot>& sequences = layout.value().slots.sequences;
  for (size_t s = 0; s < sequences.size(); ++s) {
    scenario.batch.slots[s] = sequences[s].q_slot;
    scenario.batch.kv_slots[s] = sequences[s].kv_slot;
  }
  scenario.parallel.layout = LayoutKind::indices;
  scenario.parallel.indices_file = path;
  scenario.parallel.imported = std::move(order);
  return std::nullopt;
}

std::string print_order_file(const OrderImport& order) {
  const auto print = [](const std::vector<std::vector<int64_t>>& lists) {
    std::string text = "[";
    for (size_t r = 0; r < lists.size(); ++r)
      text += fmt::format("{}[{}]", r == 0 ? "\n" : ",\n", fmt::join(lists[r], ","));
    return text + "]";
  };
  std::string text =
      fmt::format("{{\"cp_size\":{},\n\"ranks\":{}", order.cp_size, print(order.ranks));
  if (!order.kv_ranks.empty()) text += ",\n\"kv_ranks\":" + print(order.kv_ranks);
  return text + "}\n";
}

}  // namespace cpscope
