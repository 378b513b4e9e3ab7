#pragma once

#include "tests/kernels/attention/attention_reference.h"

#include <cstdint>
#include <vector>

namespace cpscope::tests {

/// Parameters of the cases that random_case() makes.
struct CaseSpace {
  std::vector<Dtype> dtypes = {Dtype::bf16, Dtype::fp16};
  std::vector<std::pair<int32_t, int32_t>> dims = {{64, 64}};  // qk, v
  int32_t most_rows = 200;
  double share_softcap = 0.25;
  double share_alibi = 0.0;  // instead of a cap
};

/// A compute item with random bands (several ranges in a row, rows and keys without a partner),
/// grouped heads and sizes that tiles do not divide.
AttentionCase random_case(uint64_t seed, const CaseSpace& space);

/// Adds ALiBi to the case, instead of a cap.
void add_alibi(AttentionCase& item);

/// Every query sees every key, or all keys up to its own row.
AttentionCase full_case(Dtype dtype, int32_t rows, int32_t head_dim_qk, int32_t head_dim_v);
AttentionCase causal_case(Dtype dtype, int32_t rows, int32_t head_dim_qk, int32_t head_dim_v);

/// A batch of requests, each with its own keys.
struct Requests {
  Dtype dtype = Dtype::bf16;
  int32_t rows = 1;              // of a request: the next token, and drafts
  std::vector<int32_t> lengths;  // keys that the last row of a request sees
  int32_t gap = 3;               // keys between requests that nobody sees
  int32_t kv_heads = 1, group = 4;
  int32_t head_dim_qk = 128, head_dim_v = 128;
};

/// Row i of a request sees all keys but the last `rows - 1 - i`.
AttentionCase decode_case(const Requests& requests);

/// The same case without keys from `end` on, and without keys before `end`.
AttentionCase keys_before(const AttentionCase& item, int32_t end);
AttentionCase keys_from(const AttentionCase& item, int32_t begin);

/// Every query sees every other key, each through a separate range, as an imported order makes
/// them: a row has rows/2 streamed tiles.
AttentionCase scattered_case(Dtype dtype, int32_t rows, int32_t head_dim);

}  // namespace cpscope::tests
