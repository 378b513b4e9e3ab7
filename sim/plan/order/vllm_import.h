#pragma once

#include "sim/plan/order/order_import.h"

namespace cpscope {

/// The lists of a step of vLLM under decode context parallelism, as import_order documents them.
/// `lengths` are the new tokens of each request, all of one if it is not known. What does not agree
/// is a difference that names request and position: keys that no interleave explains, slots that
/// are not where the block table puts them, slots and blocks that are used twice, local lengths.
/// Errors (bad_input): what is missing or cannot be read, and keys that no rank or several ranks
/// have. Source: vLLM, vllm/v1/worker/block_table.py (_compute_slot_mapping_kernel), commit
/// 01edfd09: position p of a request is in block p / (B*N) of its table, and there, with o = p %
/// (B*N), on rank o / I % N in slot o / (N*I) * I + o % I of the block, B = block_size, N ranks, I
/// interleave.
Result<OrderImport> import_vllm(const ImportRequest& request, int64_t ranks,
                                std::optional<std::vector<int64_t>> lengths);

}  // namespace cpscope
