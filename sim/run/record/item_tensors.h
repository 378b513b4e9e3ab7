#pragma once

#include "sim/plan/plan.h"
#include "sim/run/executor.h"
#include "sim/run/tensor.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cpscope {

/// The item and array that a tensor of a record holds.
struct ItemTensorName {
  ItemId item;
  RankId rank{};
  StepId step{};
  std::string array;  // out | lse | dq | dk | dv
};

/// "forward.compute.12.rank3.step1.out".
std::string print_item_name(const ItemTensorName& name);

/// The parsed name; nothing for a tensor that is not an item's.
std::optional<ItemTensorName> parse_item_name(std::string_view text);

/// An item's array as a record stores it: [row of the item's buffer, head of the buffer, element].
Tensor make_item_tensor(const ItemResult& result, Dtype dtype);

/// The token and head of a place in an item's array.
struct ItemPlace {
  int64_t token = -1;  // packed padded id; -1 if the buffer's rows name no tokens
  int32_t head = 0;    // query head of out, lse, dq, KV head of dk, dv
};

/// Finds the token and head of an element; nothing if the plan has no such item, row or head.
std::optional<ItemPlace> place_in_item(const Plan& plan, const ItemTensorName& name, int64_t row,
                                       int64_t buffer_head);

/// Number and memory of the results of all items of a plan.
struct ItemResultsSize {
  int64_t arrays = 0;
  int64_t bytes = 0;  // in memory: 8 bytes per value, plus the other fields of a tensor
};
ItemResultsSize measure_item_results(const Plan& plan);

/// This limit keeps the header of a record well below the 100 MB that readers of the format accept.
inline constexpr int64_t kMaxItemArrays = 400'000;

}  // namespace cpscope
