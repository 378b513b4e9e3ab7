#pragma once

#include "sim/base/ids.h"
#include "sim/run/walk_trace.h"

#include <functional>
#include <memory>
#include <optional>

namespace cpscope {

/// A wrong computation that the watched walker does on purpose. Each is a mistake of a real
/// executor; sim/faults names its source.
enum class Mistake {
  local_positions,         // rotary embedding by row of the rank's buffer
  second_half_follows_on,  // rotary embedding: the second chunk continues after the first one
  positions_of_all_ranks,  // rotary embedding: cp_sizes' groups rotate as if all ranks shared them
  heads_transposed,        // a rank's queries land [head, row] where [row, head] is read
  first_kv_head_for_all,   // every rank gets KV head 0
  kv_head_modulo,          // query head h reads KV head h mod kv_heads
  heads_in_stage_order,    // stage s of rank r takes query head s*P + r, whose KV head it lacks
  rows_not_cleared,        // rows of out that no tile writes keep the old memory
  lse_not_cleared,         // the same for lse
  cleared_by_product,      // rows that see nothing are cleared by out * 0
  lse_transposed,          // lse is written [row, head] and read [head, row]
  own_lse_in_backward,     // backward softmax with the lse of the tile instead of the row's
  all_zero,                // the kernel writes zeros
  one_row_off,             // one row of out is 5 % too large
  empty_merged_as_number,  // log-sum-exp of (-inf, -inf) is NaN
  empty_merged_as_zero,    // lse of rows that saw nothing is taken for 0
  merged_by_plain_exp,     // sums of exp(lse), which overflow
  merged_by_lse_base_2,    // exp of logarithms to base 2
  out_summed_in_16_bits,   // running out rounded to bf16 after every merge
  dq_summed_in_16_bits,    // running dq rounded to bf16 after every merge
  dkv_wire_in_16_bits,     // dk, dv partials travel in bf16
  sink_left_out,           // the sink is never added
  sink_in_every_partial,   // the sink is added in every partial result
  value_lanes_shifted,     // v padded to head_dim_qk, and out cut at the wrong end
  latent_dv_lost,          // the gradient of a v that is a part of k is not added to k's
  latent_dv_misplaced,     // it is added to the last elements of k's gradient
  latent_weights_by_local_head,  // a rank's heads expand latent rows with weights from head 0 on
  sink_gradient_summed,          // d_sink, complete on every rank, is summed over the ranks
  alibi_by_tile_row,             // ALiBi: distances between rows of a tile
  alibi_across_documents,        // ALiBi: distances in the packed buffer
  terms_by_local_head,           // slopes, bias and dropout number the heads of a rank from 0
  bias_by_tile_column,           // the bias is read by the row of the received keys
  dropout_by_tile_column,        // every tile draws as if its keys were the first ones
  dropout_redrawn,               // backward draws others than forward
  dropout_scaled_twice,          // kept weights are scaled in the kernel and by its caller
  dropout_before_softmax,        // the row sum counts only kept weights
  fp8_receivers_scale,  // groups agree on scales of their own, and the receiver applies its own
  fp8_key_scales_of_values,    // mxfp8: v is multiplied with the descales of k
  fp8_scale_for_descale,       // received k and v are multiplied with the scale
  fp8_weights_unscaled,        // P is cast without a scale
  fp8_rounded_weights_summed,  // the row sum is that of P after its cast
  fp8_blocks_cross_documents,  // mxfp8: blocks of 32 rows of the buffer, whatever they hold
  fp8_gradients_in_e4m3        // dS and d_out are cast to E4M3, with its scales, in place of E5M2
};

/// Where an executor makes the mistake: everywhere, or on one rank in one step of one pass.
struct MistakeSite {
  std::optional<RankId> rank;
  std::optional<StepId> step;
};

/// One planted mistake. Only the planters of the fault gallery (sim/faults) and the search for
/// causes make them.
class ExecutorFault {
 public:
  Mistake mistake() const { return mistake_; }
  bool happens_at(RankId rank, StepId step) const {
    return (!site_.rank || *site_.rank == rank) && (!site_.step || *site_.step == step);
  }

 private:
  friend ExecutorFault plant_mistake(Mistake mistake, MistakeSite site);
  ExecutorFault(Mistake mistake, MistakeSite site) : mistake_(mistake), site_(site) {}

  Mistake mistake_;
  MistakeSite site_;
};

inline ExecutorFault plant_mistake(Mistake mistake, MistakeSite site) {
  return ExecutorFault(mistake, site);
}

/// Settings of the watched walker.
struct WatchedWalk {
  std::optional<ExecutorFault> fault = std::nullopt;  // nothing: it follows the plan
  WalkTrace* trace = nullptr;                         // filled if not null
};

/// Makes the CPU walker with a trace and, for the fault gallery and the search for causes, with a
/// mistake.
using WatchedWalker = std::function<std::unique_ptr<Executor>(const WatchedWalk&)>;

}  // namespace cpscope
