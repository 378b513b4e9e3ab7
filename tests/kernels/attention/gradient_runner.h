#pragma once

#include "tests/kernels/attention/gradient_reference.h"

#include <functional>
#include <string>
#include <vector>

namespace cpscope::kernels {

/// The two launches under test and the tiles that they want.
struct GradientKernels {
  TileShape (*query_tile)(const AttentionShape&) = nullptr;
  TileShape (*key_tile)(const AttentionShape&) = nullptr;
  std::function<void(const BackwardLaunch&, Stream)> query_gradient, key_gradient;
  bool walks_by_tile = false;  // as TileList::walks_by_tile, whatever the list says
  int32_t most_parts = 1;      // of a group (TileList::group_parts): as many as divide both
};

/// Those of sm_90a. Where key_gradient makes all gradients, query_gradient does nothing.
GradientKernels hopper_gradient_kernels(bool walks_by_tile = false, int32_t most_parts = 1);

/// What a launch of the fused kernel writes: fp32, the dtype, or dk and dv as wire_use says.
enum class Written { fp32, dtype, mixed };
/// What Written::mixed makes of a row of dk and dv, as WireRows::uses.
inline uint8_t wire_use(int64_t row) { return static_cast<uint8_t>((row / 24 + row % 3 / 2) % 4); }

struct KernelGradients {
  std::vector<float> dq, dk, dv;        // [row, head, lane]
  std::vector<float> wire_dk, wire_dv;  // of Written::mixed
  std::string stray_write;  // first byte written outside the rows; empty when there is none
};

/// Runs both kernels. Rows that have no partner hold NaN, as does what lies between rows; the
/// outputs hold NaN before. dq_before, [row, head, lane]: what stands in dq and is added to.
KernelGradients run_gradients(const GradientKernels& kernels, const GradientProblem& problem,
                              const ExactGradients& exact, Written written = Written::fp32,
                              const std::vector<double>& dq_before = {});

/// Names the element that is farthest outside its budget; empty when all are inside.
std::string find_excess(const char* what, const ExactGradient& exact, const std::vector<float>& got,
                        int32_t num_heads, int32_t head_dim);

}  // namespace cpscope::kernels
