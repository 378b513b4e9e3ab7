#include "sim/plan/scaled_partials.h"

#include <algorithm>

namespace cpscope {

bool adds_scaled_partials(const Plan& plan) {
  const auto is_of_scaled = [](const TransferItem& item) {
    return item.payload == Payload::lse ||
           (item.payload == Payload::out && item.landing == Landing::add);
  };
  return std::any_of(plan.forward.transfers.begin(), plan.forward.transfers.end(), is_of_scaled);
}

}  // namespace cpscope
