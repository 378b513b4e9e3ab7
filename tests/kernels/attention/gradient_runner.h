#pragma once

#include "tests/kernels/attention/gradient_reference.h"

#include <functional>
#include <string>
#include <vector>

namespace cpscope::kernels {

/// The two launches under test and the tile shapes that they require.
struct GradientKernels {
  TileShape (*query_tile)(const AttentionShape&) = nullptr;
  TileShape (*key_tile)(const AttentionShape&) = nullptr;
  std::function<void(const BackwardLaunch&, Stream)> query_gradient, key_gradient;
  bool walks_by_tile = false;  // as TileList::walks_by_tile; overrides the list
  int32_t most_parts = 1;      // of a group (TileList::group_parts): the largest number up to it
                               // that divides the group
};

/// The kernels for sm_90a. If key_gradient makes all gradients, query_gradient does nothing.
GradientKernels hopper_gradient_kernels(bool walks_by_tile = false, int32_t most_parts = 1);

/// Outputs of a launch of the fused kernel: fp32, the dtype, or dk and dv as wire_use selects.
enum class Written { fp32, dtype, mixed };
/// Uses of a row of dk and dv under Written::mixed, as WireRows::uses.
inline uint8_t wire_use(int64_t row) { return static_cast<uint8_t>((row / 24 + row % 3 / 2) % 4); }

struct KernelGradients {
  std::vector<float> dq, dk, dv;        // [row, head, element]
  std::vector<float> wire_dk, wire_dv;  // of Written::mixed
  std::string stray_write;  // first byte written outside the rows; empty if there is none
};

/// Runs both kernels. Rows without a partner and gaps between rows hold NaN; the outputs hold NaN
/// before. dq_before, [row, head, element]: the previous dq, to which the kernel adds.
KernelGradients run_gradients(const GradientKernels& kernels, const GradientProblem& problem,
                              const ExactGradients& exact, Written written = Written::fp32,
                              const std::vector<double>& dq_before = {});

/// Describes the element that exceeds its budget most; empty if all are within.
std::string find_excess(const char* what, const ExactGradient& exact, const std::vector<float>& got,
                        int32_t num_heads, int32_t head_dim);

}  // namespace cpscope::kernels
