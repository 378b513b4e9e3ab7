#pragma once

#include "sim/base/result.h"
#include "sim/plan/batch_slots.h"
#include "sim/run/inputs.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace cpscope::reference {

/// Fills the row of one token (packed padded id: a query id for q and d_out, a key id for k and v)
/// and head. Called from several threads at once, for valid tokens only.
using ReadRow =
    std::function<void(InputTensor tensor, int64_t token, int32_t head, std::span<double> row)>;

/// Inputs that are too large to be held: rows are made when they are asked for.
struct SampledInputs {
  BatchSlots slots;
  ReadRow read_row;
  std::vector<double> sink;  // [heads] when softmax_type is learnable, else empty
};

/// Which rows of the answer are wanted, in the order in which they come back.
struct RowSample {
  std::vector<int64_t> query_tokens;  // packed padded query ids; padding gives an empty row
  std::vector<int64_t> key_tokens;    // packed padded key ids, for dk and dv
  int64_t max_queries = 4096;         // bound of all queries that have to be computed
};

/// The exact answer for a few rows of a batch of any size.
/// Shapes: out [query_tokens, heads, head_dim_v], lse [query_tokens, heads], dq [query_tokens,
/// heads, head_dim_qk], dk and dv [key_tokens, kv_heads, lanes]; max_logit and d_sink stay empty,
/// as they need every row. backward = false leaves dq, dk, dv empty.
/// Refused when the sampled keys are seen by more queries than max_queries allows, or when a token
/// is outside the batch; another error says that it was cancelled.
/// Memory: O(max_queries * heads * head_dim), and 256 keys a thread. Time: every key row that a
/// wanted query sees is read once a kv head.
/// Error: a few roundings per key more than the dense oracle (online softmax; dq as a difference of
/// two sums), about 1e-13 relative.
Result<Answer> sampled_rows(const Scenario& scenario, const SampledInputs& inputs,
                            const RowSample& sample, const RunControl& control = {});

}  // namespace cpscope::reference
