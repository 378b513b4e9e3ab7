#pragma once

#include "sim/base/result.h"
#include "sim/run/record/record_header.h"
#include "sim/run/record/run_record.h"

#include <map>
#include <string>
#include <vector>

namespace cpscope {

/// Events as a record stores them: F64 tensor "events" [event, 7] of pass (0 forward, 1 backward),
/// kind (0 transfer, 1 reorder, 2 compute, 3 merge, 4 finish), item index, rank, step, start_ns,
/// end_ns. Whole numbers up to 2^53 (104 days of nanoseconds) are exact.
Tensor pack_events(const std::vector<ItemEvent>& events);

/// True if a record whose metadata names this clock holds its events in this tensor.
bool holds_events(const Tensor& tensor, const std::string& clock);

/// Errors (bad_input): a number that is not valid in an event.
Result<std::vector<ItemEvent>> unpack_events(const Tensor& tensor);

/// Metadata of the budgets: "budgets" is a JSON object of rel_l2, "budgets_l2" one of l2, by
/// tensor. Null is infinite. Nothing if there are no budgets.
std::map<std::string, std::string> print_budgets(const std::vector<TensorBudget>& budgets);

/// Errors (bad_input): not flat JSON objects with the same tensors.
Result<std::vector<TensorBudget>> parse_budgets(const std::map<std::string, std::string>& metadata);

}  // namespace cpscope
