#pragma once

#include "sim/run/fp8.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope::reference {

/// What the plain run quantises under dtype fp8, and with which scales. It knows no ranks: scales
/// are those of the whole batch, and blocks along tokens lie in a sequence from its first token on.
/// q and k are quantised after RoPE; the tensors here are rotated back, in double.
struct PlainFp8 {
  /// Quantised. q and k enter the logits, v enters out, d_out enters dP. With mxfp8 blocks of q, k
  /// and d_out run along a row, those of v along tokens; there is a v then even if k stands for it.
  RunInputs inputs;
  /// mxfp8: quantised the other way round. q, k and d_out enter dk, dq and dv, v enters dP. Empty
  /// with one scale a tensor.
  RunInputs turned;
  const RunInputs* given = nullptr;  // as they are
  bool is_mx = false;
  Fp8Type gradients = Fp8Type::e5m2;
  float weights = 448.0f;       // P is multiplied by this and cast to E4M3: forward,
  float weights_back = 448.0f;  // backward
  float d_logits = 1.0f;        // dS, without softmax_scale; mxfp8: blocks
  // recipe delayed: of the results of a piece; 0: these are not cast
  float out = 0.0f, dq = 0.0f, dk = 0.0f, dv = 0.0f;

  const RunInputs& second() const { return is_mx ? turned : inputs; }
  /// delta = rowsum(out * d_out) has the d_out that enters dP, with mxfp8 the one that is given.
  const Tensor& d_out_of_delta() const { return is_mx ? given->d_out : inputs.d_out; }
};

PlainFp8 make_plain_fp8(const Scenario& scenario, const RunInputs& inputs);

/// Values of a matrix whose rows, or columns, are cut in blocks of 32 with a scale of their own.
enum class BlocksAlong { rows, columns };

/// In place, row-major. E4M3.
void quantise_blocks(BlocksAlong along, int64_t num_rows, int64_t num_columns, float* values);
/// In place: what is read back after value * scale has been cast.
void quantise_all(Fp8Type type, float scale, int64_t count, float* values);

}  // namespace cpscope::reference
