#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/scalar_types.h"

namespace cpscope::kernels {

/// Parameters that a 16-bit gradient kernel is compiled for.
template <class Element, int kLanesQk, int kLanesV, bool kHasCap>
struct GradientInstance {
  using T = Element;
  static constexpr int kQk = kLanesQk;  // largest head_dim_qk of the instance
  static constexpr int kV = kLanesV;
  static constexpr bool kIsCapped = kHasCap;
};

template <class T, bool kIsCapped, class Visit>
auto with_gradient_lanes(const AttentionShape& shape, const Visit& visit) {
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  if (qk <= 64 && v <= 64) return visit(GradientInstance<T, 64, 64, kIsCapped>{});
  if (qk <= 128 && v <= 128) return visit(GradientInstance<T, 128, 128, kIsCapped>{});
  if (qk <= 192 && v <= 128) return visit(GradientInstance<T, 192, 128, kIsCapped>{});
  return visit(GradientInstance<T, 256, 256, kIsCapped>{});
}

/// Calls visit(GradientInstance) for the instance that fits the shape.
template <class Visit>
auto with_gradient_instance(const AttentionShape& shape, const Visit& visit) {
  const bool is_capped = shape.softcap != 0.0f;
  if (shape.dtype == Dtype::fp16) {
    return is_capped ? with_gradient_lanes<Fp16, true>(shape, visit)
                     : with_gradient_lanes<Fp16, false>(shape, visit);
  }
  return is_capped ? with_gradient_lanes<Bf16, true>(shape, visit)
                   : with_gradient_lanes<Bf16, false>(shape, visit);
}

}  // namespace cpscope::kernels
