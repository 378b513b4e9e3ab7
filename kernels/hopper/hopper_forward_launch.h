#pragma once

#include "kernels/device/launch.h"
#include "kernels/hopper/hopper_forward_kernel.h"
#include "kernels/hopper/hopper_forward_params.h"

#include <algorithm>

namespace cpscope::kernels {

/// As many CTAs as fit the device at once, or as there are items. `B`: a ForwardBudget.
template <class B>
void launch_attend(const device::ForwardParams& params, Stream stream) {
  constexpr auto kKernel = device::attend_on_hopper<B>;
  Grid grid(std::min(params.tiles.num_work, resident_ctas(kKernel, B::kThreads, B::kSharedBytes)));
  grid.per_sm = B::kCtasPerSm;
  launch_kernel(kKernel, grid, B::kThreads, B::kSharedBytes, stream, params);
}

}  // namespace cpscope::kernels
