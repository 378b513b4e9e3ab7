#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

#include <string>

namespace cpscope::kernels {

/// Empty, or why the Hopper forward has no kernel of dtype fp8 for the shape.
std::string why_not_hopper_fp8_forward(const AttentionShape& shape);

TileShape hopper_fp8_forward_tile_shape();

/// Reads the codes of launch.fp8; one scale a tensor.
void launch_hopper_fp8_forward(const ForwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
