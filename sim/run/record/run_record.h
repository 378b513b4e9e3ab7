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

/// Allowed distance of a tensor from the exact answer, from the grade of its run.
struct TensorBudget {
  std::string name;
  double rel_l2 = 0.0;  // relative to the exact tensor's length; infinite if that is 0
  double l2 = 0.0;      // allowed |seen - exact|2
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
  std::string type_name;  // in the format's words: "BOOL", "F8_E4M3"
};

/// The results of one run, always in packed padded token order, never rank order (contract, section
/// 4). q, dq: [tokens, heads, head_dim_qk]; k, dk: [kv_tokens, kv_heads, head_dim_qk, or
/// latent_dim + head_dim_qk - latent_nope_dim of latent rows that are expanded]; v, dv: [kv_tokens,
/// kv_heads, head_dim_v]; out, d_out: [tokens, heads, head_dim_v]; lse: [tokens, heads]; max_logit,
/// sink, d_sink: [heads]; bias, dbias: [sequences or 1, heads or 1, longest queries, longest keys];
/// w_k, w_v (latent_nope_dim): [heads, latent_nope_dim or head_dim_v, latent_dim]. No v and dv if k
/// stands for both (latent_dim). With --items the arrays
/// that the compute and finish items wrote follow, [row of its buffer, head of its buffer,
/// element], named by sim/run/record/item_tensors.h.
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

  // Only filled for a file read with takes_other_types, and never written.
  std::map<std::string, std::string> metadata;  // all of it
  std::vector<IntegerTensor> integers;
  std::vector<SkippedTensor> skipped;

  const Tensor* find(const std::string& name) const;
};

/// Writes one .safetensors file: first under a temporary name in the same folder, then renamed, so
/// that no half-written file is left.
Result<std::string> write_record(const RunRecord& record, const std::string& path);

/// What a reader accepts in addition to records that cpscope wrote.
struct RecordReading {
  bool takes_other_types = false;  // also whole numbers; other types of the format are skipped
};

/// Reads any .safetensors file with F64, F32, BF16, F16 tensors. Errors name the tensor and the
/// byte range. Never allocates more than the file's size justifies.
Result<RunRecord> read_record(const std::string& path, const RecordReading& reading = {});

}  // namespace cpscope
