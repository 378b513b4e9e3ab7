#pragma once

#include "sim/app/predict/calibrate.h"

#include <string>
#include <string_view>

namespace cpscope {

/// Kernels of a stack from rates that somebody published or measured elsewhere.
struct FittedKernels {
  std::vector<KernelCost> kernels;
  std::vector<NamedFit> fits;
};

/// The file's samples, each a [[samples]] table: head_dim (or head_dim_qk, head_dim_v), bits (16; 8
/// is fp8), heads, seqlen and batch (1) or lengths, mask ("causal" or "full"), window (left keys,
/// off), direction ("forward" or "backward"), tflops: 2 (dim_qk + dim_v) forward and 2 (3 dim_qk +
/// 2 dim_v) backward for each visible pair, or each pair of half the square with flops =
/// "half_square". The top level says multiprocessors; its key `note` is for people and goes unread.
/// Errors: bad_input, each at its place; kernels that lack samples, by name.
Result<FittedKernels> fit_samples(std::string_view text, const std::string& path);

}  // namespace cpscope
