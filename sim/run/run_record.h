#pragma once

#include "sim/base/result.h"
#include "sim/run/executor.h"
#include "sim/run/tensor.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// How far a tensor may be from the exact answer, as the judge of its run has found.
struct TensorBudget {
  std::string name;
  double rel_l2 = 0.0;  // over the exact tensor's length; infinite where that is 0
  double l2 = 0.0;      // |seen - exact|2 that is allowed
};

/// A tensor of whole numbers, as frameworks store sequence boundaries and token lists.
struct IntegerTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<int64_t> values;
};

/// A tensor whose values were not read.
struct SkippedTensor {
  std::string name;
  std::string type_name;  // as the format calls it: "BOOL", "F8_E4M3"
};

/// What came out of one run, always in packed padded token order, never rank order (contract,
/// section 4). q, dq: [tokens, heads, head_dim_qk]; k, dk: [kv_tokens, kv_heads, head_dim_qk]; v,
/// dv: [kv_tokens, kv_heads, head_dim_v]; out, d_out: [tokens, heads, head_dim_v]; lse: [tokens,
/// heads]; max_logit, sink, d_sink: [heads]. With --items every array that a compute or finish item
/// has written follows, [row of its buffer, head of its buffer, lane], named as
/// sim/run/item_tensors.h says.
struct RunRecord {
  std::string scenario_text;
  std::string plan_hash;  // 16 hex digits
  std::string executor;
  std::string machine;
  std::string version;
  std::string clock = "none";         // none | simulated | measured
  std::vector<TensorBudget> budgets;  // of the tensors that were judged
  std::vector<ItemEvent> events;      // by start; empty without a clock
  std::vector<Tensor> tensors;        // in the contract's order, then `items` in plan order

  // Only of a file read with takes_other_types, and never written.
  std::map<std::string, std::string> metadata;  // all of it
  std::vector<IntegerTensor> integers;
  std::vector<SkippedTensor> skipped;

  const Tensor* find(const std::string& name) const;
};

/// Writes one .safetensors file: to a temporary name beside it, then renamed, so that no
/// half-written file is left.
Result<std::string> write_record(const RunRecord& record, const std::string& path);

/// What a reader takes beside records that cpscope wrote.
struct RecordReading {
  bool takes_other_types = false;  // also whole numbers; what else the format has is skipped
};

/// Reads any .safetensors file with F64, F32, BF16, F16 tensors. Errors name the tensor and the
/// byte range; nothing is allocated that the file's size does not back.
Result<RunRecord> read_record(const std::string& path, const RecordReading& reading = {});

}  // namespace cpscope
