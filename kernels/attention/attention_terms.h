#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// Attention with bias, ALiBi or dropout (launch.terms, read if the shape has_terms), or of latent
/// rows, inputs of any dtype. Every product is an fp32 fused multiply-add. head_dims up to 256. Of
/// latent attention up to kMaxLatentDim: V is the first head_dim_v elements of K, whose rows are a
/// launch's v too, and dk is the gradient of both; dv is not written. Tiles: fp32_tile().
void launch_terms_forward(const ForwardLaunch& launch, Stream stream);
/// Also adds to the gradient of the bias.
void launch_terms_query_gradient(const BackwardLaunch& launch, Stream stream);
void launch_terms_key_gradient(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
