#pragma once

#include "kernels/device/device.h"
#include "kernels/device/device_rows.h"
#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope::kernels {

/// Sizes of latent rows and of the heads that are made of them.
struct LatentSizes {
  int32_t num_rows = 0;
  int32_t heads = 0;
  int32_t latent_dim = 0;
  int32_t made = 0;     // elements of a head of k that w_k makes
  int32_t rotated = 0;  // its other elements
  int32_t head_dim_v = 0;
};

/// Latent rows, and the keys and values of `heads` heads that are made of them (latent_nope_dim).
/// k = [w_k c, the elements behind c], v = w_v c of the first latent_dim elements c of a row. Rows
/// are in device memory, weights too: those of head 0 of the rows first.
struct RowExpansion {
  Dtype dtype = Dtype::bf16;  // of rows, weights, k and v
  DeviceRows rows;            // one head
  DeviceRows k, v;
  const void* w_k = nullptr;  // [head][made][padded_lanes(latent_dim)], zeros behind latent_dim
  const void* w_v = nullptr;  // [head][head_dim_v][likewise]
  LatentSizes sizes;
};

/// The type of a contraction's weights: bf16 where they are, else fp32.
constexpr Dtype contraction_weights(Dtype dtype) {
  return dtype == Dtype::bf16 ? Dtype::bf16 : Dtype::fp32;
}

/// The gradient of latent rows of those of heads: dc = sum over heads of w_k^T dk + w_v^T dv, and
/// behind it the sum of the other elements of dk. All rows in fp32, and the weights turned.
struct RowContraction {
  Dtype weights = Dtype::fp32;  // contraction_weights
  DeviceRows dk, dv;
  DeviceRows rows;            // one head; every row is written
  const void* w_k = nullptr;  // [head][latent_dim][padded_lanes(made)], zeros behind `made`
  const void* w_v = nullptr;  // [head][latent_dim][padded_lanes(head_dim_v)], likewise
  LatentSizes sizes;
};

/// Elements behind those of a head of k and v are not written. Errors are thrown as DeviceError.
void launch_row_expansion(const RowExpansion& expansion, Stream stream);
void launch_row_contraction(const RowContraction& contraction, Stream stream);

}  // namespace cpscope::kernels
