#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// The input tensor of a value.
enum class InputTensor : uint32_t { q, k, v, d_out, sink, bias, w_k, w_v, direction };

/// A prime, so that positions of one direction lie in all chunks and stripes.
inline constexpr int64_t kInputDirections = 61;

/// Sequence and position of one token: sequence -1 is the layout's tail. `position` counts the
/// valid tokens of a sequence from 0, and padding from the begin of its slot, or of the tail.
struct TokenPlace {
  int64_t sequence = -1;
  int64_t position = 0;
  bool is_valid = false;
};

/// N(0,1), rounded to the scenario's dtype: a function of (seed, tensor, sequence, position, head,
/// lane) alone, so that two layouts of one batch hold the same numbers; `lane` is the element of
/// the head. Padding uses another random stream than valid tokens. Source: Box-Muller on two
/// uniforms of a counter-based generator (SplitMix64 finaliser, Steele et al. 2014, OOPSLA).
///
/// InputKind::peaked adds a second N(0,1) to valid q and k, a function of (seed, sequence, position
/// modulo kInputDirections, lane): a query's logit for keys of its own direction is larger by about
/// sqrt(head_dim), so that these few hold the weight of its row.
double input_value(const Numerics& numerics, InputTensor tensor, const TokenPlace& place,
                   int32_t head, int32_t lane);

/// One row of `lanes` values, the same as input_value for lane = 0..lanes-1.
void fill_input_row(const Numerics& numerics, InputTensor tensor, const TokenPlace& place,
                    int32_t head, double* row, int32_t lanes);

/// The learnable sink logits, [heads], N(0,1) in fp32 (fp64 when dtype is fp64).
std::vector<double> sink_logits(const Numerics& numerics, int32_t heads);

}  // namespace cpscope
