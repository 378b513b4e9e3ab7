#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// Attention of dtype fp8 (launch.fp8) on any device. Products of quantised values are fp32 fused
/// multiply-adds. Also with bias, ALiBi or dropout (launch.terms), and for latent attention, where
/// dk is the gradient of K and V. head_dims up to 256, latent ones up to kMaxLatentDim. Tiles are
/// those of fp32_tile().
void launch_fp8_forward(const ForwardLaunch& launch, Stream stream);
void launch_fp8_query_gradient(const BackwardLaunch& launch, Stream stream);
void launch_fp8_key_gradient(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
