#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

#include <string>

namespace cpscope::kernels {

/// Empty, or why the Hopper backward has no kernel of dtype fp8 for the shape.
std::string why_not_hopper_fp8_backward(const AttentionShape& shape);

/// True if the kernel reads launch.fp8's codes (CodeForm::all_rows), else rows of their values.
bool takes_hopper_fp8_gradient_codes(const AttentionShape& shape);

/// dq, dk and dv of quantised rows, one scale a tensor (launch.fp8), of heads of up to 128
/// elements; wider ones are launch_hopper_wide_query_gradient's and
/// launch_hopper_wide_key_gradient's. Tiles are those of hopper_gradients_tile_shape(). Reads the
/// results of launch_row_statistics.
void launch_hopper_fp8_gradients(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
