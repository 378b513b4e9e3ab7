#pragma once

#include "sim/plan/order/order_import.h"

namespace cpscope {

/// The order of tokens in the caches of ranks: [rank][token] slot of the token in the rank's cache,
/// -1 where another rank has it; `lengths` of the packed requests. Says in which blocks tokens are
/// split, or where they are not. Errors: tokens that no rank or several ranks have, slots that are
/// used twice, lists of other lengths.
Result<OrderImport> import_slot_mapping(const std::vector<std::vector<int64_t>>& slots,
                                        const std::vector<int64_t>& lengths);

}  // namespace cpscope
