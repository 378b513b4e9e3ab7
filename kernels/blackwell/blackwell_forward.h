#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

#include <string>

namespace cpscope::kernels {

/// Empty, or why the Blackwell forward has no kernel for the shape.
std::string why_not_blackwell_forward(const AttentionShape& shape);

TileShape blackwell_forward_tile_shape(const AttentionShape& shape);
void launch_blackwell_forward(const ForwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
