#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

#include <string>

namespace cpscope::kernels {

/// Empty, or why the Hopper forward has no kernel of dtype fp8 for the shape.
std::string why_not_hopper_fp8_forward(const AttentionShape& shape);

/// True if the kernel reads codes of one byte (launch.fp8's q_codes, k_codes, v_codes), whose sums
/// keep 14 bits; else it reads quantised rows of bf16.
bool takes_hopper_fp8_codes(const AttentionShape& shape);

TileShape hopper_fp8_forward_tile_shape(const AttentionShape& shape);

void launch_hopper_fp8_forward(const ForwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
