#include "sim/plan/layout.h"
#include "sim/plan/order/order_import.h"

#include <array>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

constexpr std::array<std::string_view, 7> kSources = {
    "te", "torch", "ring-flash-attention", "usp", "magi", "megatron", "vllm"};

int64_t sum_of(const std::vector<int64_t>& slots) {
  return std::reduce(slots.begin(), slots.end(), int64_t{0});
}

int64_t count_listed(const std::vector<std::vector<int64_t>>& ranks) {
  int64_t count = 0;
  for (const std::vector<int64_t>& list : ranks) count += std::ssize(list);
  return count;
}

}  // namespace

std::string_view to_name(OrderSource value) { return kSources[static_cast<size_t>(value)]; }

std::optional<OrderSource> find_order_source(std::string_view name) {
  for (size_t i = 0; i < kSources.size(); ++i) {
    if (kSources[i] == name) return static_cast<OrderSource>(i);
  }
  return std::nullopt;
}

int64_t OrderImport::tokens() const { return count_listed(ranks); }

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

Result<ImportedOrder> read_fitting_order(
    const Scenario& scenario, const OrderDemand& demand,
    const std::function<Result<ImportedOrder>(const OrderDemand&)>& read) {
  Result<ImportedOrder> order = read(demand);
  if (order) return order;
  const Batch& batch = scenario.batch;
  OrderDemand given = demand;
  given.tokens = sum_of(batch.slots);
  given.kv_tokens = sum_of(batch.kv_slots);
  given.places.slots = batch.slots;
  given.kv_places.slots = batch.kv_slots;
  Result<ImportedOrder> unpadded = read(given);
  return unpadded ? unpadded : order;
}

namespace {

/// An order of more ids than the slots hold, where padding has no place behind the last slot.
std::optional<Error> refuse_misfit(std::string_view side, int64_t listed,
                                   const std::vector<int64_t>& slots, const Batch& batch) {
  if (listed == sum_of(slots)) return std::nullopt;
  return make_bad_input(
      fmt::format("the {0}order has {1} ids for {0}slots of {2} tokens, and {3} has no padding "
                  "behind the last slot",
                  side, listed, sum_of(slots),
                  batch.pad_side == PadSide::left ? "pad_side left" : "a batch that is not thd"),
      "give slots that hold all ids, or leave the ids behind them out");
}

}  // namespace

std::optional<Error> use_order(ImportedOrder order, const std::string& path, Scenario& scenario) {
  const Result<Layout> layout = make_layout(scenario);
  if (!layout) return layout.error();
  const BatchSlots& slots = layout.value().slots;
  const int64_t listed = count_listed(order.ranks), kv_listed = count_listed(order.kv_ranks);
  Batch& batch = scenario.batch;
  // Else the order is over the slots as they were given.
  const bool has_padding = listed >= slots.tokens && kv_listed >= slots.kv_tokens;
  for (size_t s = 0; s < slots.sequences.size() && has_padding; ++s) {
    batch.slots[s] = slots.sequences[s].q_slot;
    batch.kv_slots[s] = slots.sequences[s].kv_slot;
  }
  // Rows behind the last sequence are padding of the batch, for which orders have no place of its
  // own.
  if (batch.qkv_format == QkvFormat::thd && batch.pad_side == PadSide::right) {
    batch.slots.back() += listed - sum_of(batch.slots);
    batch.kv_slots.back() += kv_listed - sum_of(batch.kv_slots);
  }
  if (auto error = refuse_misfit("", listed, batch.slots, batch)) return error;
  if (auto error = refuse_misfit("kv ", kv_listed, batch.kv_slots, batch)) return error;
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
