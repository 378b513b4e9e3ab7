#pragma once

#include "reference/rank_memory.h"
#include "sim/base/id_vector.h"
#include "sim/run/fp8.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <vector>

namespace cpscope::reference {

/// What the walker quantises under dtype fp8, and with which scales. The last members are for the
/// fault gallery: a walk that follows the plan leaves them as they are.
struct QuantisedRules {
  bool is_on = false;
  bool is_mx = false;  // q, k, v and d_out are quantised by the item that computes with them
  Fp8Type gradients = Fp8Type::e5m2;
  float weights = 448.0f;       // scale of P before its cast to E4M3: forward,
  float weights_back = 448.0f;  // backward
  float d_logits = 1.0f;        // scale of dS; mxfp8: blocks
  float out = 0.0f, dq = 0.0f, dk = 0.0f, dv = 0.0f;  // scales of an item's results; 0: no cast
  float amax_qkv = 0.0f, amax_d_out = 0.0f;           // of the step before; 0: of the tensors
  std::vector<int32_t> q_sequences, kv_sequences;     // mxfp8: [token] -1 for padding

  int32_t ranks_with_one_scale = 0;  // 0: all; else groups of consecutive ranks agree
  IdVector<RankId, float> descales;  // [rank] of its q, k and v
  bool sums_rounded_weights = false;
  bool reads_values_with_key_scales = false;
  bool blocks_cross_documents = false;
};

QuantisedRules make_quantised_rules(const Plan& plan, const RunInputs& inputs);

/// One scale a tensor: agrees on the largest absolute values of all ranks' valid rows and quantises
/// the home rows of q, k, v and d_out, which have been rotated.
void quantise_home_rows(const Plan& plan, QuantisedRules& rules, RankMemory<float>& memory);

/// mxfp8: [row] the number of its block of up to 32 rows in a list of tokens; -1 for padding. A
/// block holds rows of one sequence that follow one another.
std::vector<int32_t> blocks_of_rows(const Plan& plan, RunListId tokens, Side side,
                                    const QuantisedRules& rules);

}  // namespace cpscope::reference
