#include "sim/plan/order/order_import.h"

#include <array>

namespace cpscope {
namespace {

constexpr std::array<std::string_view, 6> kSources = {"te",  "torch", "ring-flash-attention",
                                                      "usp", "magi",  "megatron"};

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

}  // namespace cpscope
