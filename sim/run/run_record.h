#pragma once

#include "sim/base/result.h"
#include "sim/run/tensor.h"

#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// What came out of one run, always in packed padded token order, never rank order (contract,
/// section 4). q, dq: [tokens, heads, head_dim_qk]; k, dk: [kv_tokens, kv_heads, head_dim_qk]; v,
/// dv: [kv_tokens, kv_heads, head_dim_v]; out, d_out: [tokens, heads, head_dim_v]; lse: [tokens,
/// heads]; max_logit, sink, d_sink: [heads].
struct RunRecord {
  std::string scenario_text;
  std::string plan_hash;  // 16 hex digits
  std::string executor;
  std::string machine;
  std::string version;
  std::string clock = "none";   // none | simulated | measured
  std::vector<Tensor> tensors;  // in the contract's order

  const Tensor* find(const std::string& name) const;
};

/// Writes one .safetensors file: to a temporary name beside it, then renamed, so that no
/// half-written file is left.
Result<std::string> write_record(const RunRecord& record, const std::string& path);

/// Reads any .safetensors file with F64, F32, BF16, F16 tensors. Errors name the tensor and the
/// byte range; nothing is allocated that the file's size does not back.
Result<RunRecord> read_record(const std::string& path);

}  // namespace cpscope
