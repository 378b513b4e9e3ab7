#include "kernels/dispatch/attention_dispatch.h"

#include "kernels/attention/attention_decode.h"
#include "kernels/attention/attention_forward.h"
#include "kernels/attention/attention_fp32.h"
#include "kernels/attention/attention_fp8.h"
#include "kernels/attention/attention_terms.h"
#include "kernels/attention/key_gradient.h"
#include "kernels/attention/part_sums.h"
#include "kernels/attention/query_gradient.h"
#include "kernels/attention/row_statistics.h"
#include "kernels/blackwell/blackwell_forward.h"
#include "kernels/device/scalar_types.h"
#include "kernels/hopper/hopper_backward.h"
#include "kernels/hopper/hopper_forward.h"
#include "kernels/hopper/hopper_fp8_forward.h"
#include "kernels/hopper/hopper_fp8_gradients.h"
#include "kernels/hopper/hopper_latent_forward.h"
#include "kernels/hopper/hopper_latent_gradients.h"
#include "sim/base/check.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// True if products are made in fp32: of fp32 inputs, of 8 bits, and wherever bias, ALiBi or
/// dropout apply, or V is a part of K.
bool is_fp32(const AttentionShape& shape) {
  return shape.dtype == Dtype::fp32 || shape.has_terms || shape.is_fp8 || shape.is_latent;
}

/// True for the kernels of attention_terms.cu, which have an instance for latent rows.
bool takes_terms_kernel(const AttentionShape& shape) { return shape.has_terms || shape.is_latent; }

/// Empty, or why no kernel of any generation supports the shape.
std::string why_not_at_all(const AttentionShape& shape) {
  const int32_t largest_dim = std::max(shape.head_dim_qk, shape.head_dim_v);
  const int32_t most = shape.is_latent ? kMaxLatentDim : kMaxHeadDim;
  if (largest_dim > most)
    return fmt::format("the kernels support head_dim up to {}, this one has {}", most, largest_dim);
  if (shape.dtype == Dtype::fp64) return "the kernels take bf16, fp16 and fp32, not fp64";
  return "";
}

/// Empty, or why only the portable kernels take the shape's terms.
std::string why_portable_terms(Generation generation, const AttentionShape& shape) {
  if (!shape.has_terms) return "";
  if (!shape.has_alibi_alone) return "bias and dropout are in the portable kernels alone";
  if (generation != Generation::sm90) return "ALiBi is in the portable kernels and those of Hopper";
  const char* with = shape.softcap != 0.0f ? "a softcap"
                     : shape.is_fp8        ? "FP8"
                     : shape.is_latent     ? "latent rows"
                                           : nullptr;
  return with == nullptr ? "" : fmt::format("ALiBi with {} is in the portable kernels alone", with);
}

/// Checks that a kernel reports its begin if another stream waits for that.
void check_begun(const DeviceTiles& tiles, bool says_so) {
  CPSCOPE_CHECK(tiles.begun.flag == nullptr || (says_so && tiles.num_work > 0),
                "no kernel says that it has begun", says_so, tiles.num_work);
}

}  // namespace

TileShape forward_tile_shape(Generation generation, const AttentionShape& shape) {
  if (is_decode(shape)) return decode_tile(shape);
  if (generation == Generation::sm90) {
    if (shape.is_latent) return hopper_latent_forward_tile_shape(shape);
    return shape.is_fp8 ? hopper_fp8_forward_tile_shape(shape) : hopper_forward_tile_shape(shape);
  }
  if (generation == Generation::sm100) return blackwell_forward_tile_shape(shape);
  return is_fp32(shape) ? fp32_tile(shape) : portable_forward_tile(shape);
}

bool is_backward_fused(Generation generation, const AttentionShape& shape) {
  return generation == Generation::sm90 && !shape.is_latent && is_hopper_backward_fused(shape);
}

CodeForm code_form(Generation generation, const AttentionShape& shape) {
  if (!shape.is_fp8) return CodeForm::none;
  if (is_decode(shape)) return CodeForm::rows;
  const bool is_turned =
      generation == Generation::sm90 && !shape.is_latent && takes_hopper_fp8_codes(shape);
  return is_turned ? CodeForm::turned_values : CodeForm::none;
}

CodeForm gradient_code_form(Generation generation, const AttentionShape& shape) {
  const bool takes_codes = shape.is_fp8 && !shape.is_latent && generation == Generation::sm90 &&
                           takes_hopper_fp8_gradient_codes(shape);
  return takes_codes ? CodeForm::all_rows : CodeForm::none;
}

bool leaves_gradient_casts(Generation generation, const AttentionShape& shape) {
  return generation == Generation::sm90 && shape.is_fp8;
}

bool takes_offsets(Generation generation, const AttentionShape& shape) {
  return is_backward_fused(generation, shape) &&
         takes_hopper_offsets(logit_form(shape), shape.head_dim_qk);
}

TileShape query_gradient_tile_shape(Generation generation, const AttentionShape& shape) {
  if (generation == Generation::sm90) {
    return shape.is_latent ? hopper_latent_gradient_tile_shape()
                           : hopper_wide_query_gradient_tile_shape(shape);
  }
  return is_fp32(shape) ? fp32_tile(shape) : portable_query_gradient_tile(shape);
}

TileShape key_gradient_tile_shape(Generation generation, const AttentionShape& shape) {
  if (is_backward_fused(generation, shape)) return hopper_gradients_tile_shape(shape);
  if (generation == Generation::sm90) {
    return shape.is_latent ? hopper_latent_gradient_tile_shape()
                           : hopper_wide_key_gradient_tile_shape();
  }
  return is_fp32(shape) ? fp32_tile(shape) : portable_key_gradient_tile(shape);
}

int64_t forward_part_bytes(const AttentionShape& shape, const TileList& list) {
  if (list.cut_tiles.empty()) return 0;
  return shape.is_latent ? hopper_latent_part_bytes(shape, list) : decode_part_bytes(shape, list);
}

std::string why_not_forward(Generation generation, const AttentionShape& shape) {
  if (std::string reason = why_not_at_all(shape); !reason.empty()) return reason;
  if (generation == Generation::portable) return "";
  if (std::string reason = why_portable_terms(generation, shape); !reason.empty()) return reason;
  if (generation == Generation::sm100)
    return is_decode(shape) ? "" : why_not_blackwell_forward(shape);
  if (shape.is_latent) return why_not_hopper_latent_forward(shape);
  if (is_decode(shape)) return "";
  return shape.is_fp8 ? why_not_hopper_fp8_forward(shape) : why_not_hopper_forward(shape);
}

std::string why_not_backward(Generation generation, const AttentionShape& shape) {
  if (std::string reason = why_not_at_all(shape); !reason.empty()) return reason;
  if (generation == Generation::portable) return "";
  if (generation == Generation::sm100) return "no backward is written for Blackwell";
  if (std::string reason = why_portable_terms(generation, shape); !reason.empty()) return reason;
  if (shape.is_latent) return why_not_hopper_latent_backward(shape);
  return shape.is_fp8 ? why_not_hopper_fp8_backward(shape) : why_not_hopper_backward(shape);
}

void launch_forward(Generation generation, const ForwardLaunch& launch, Stream stream) {
  const bool holds_fp32 = launch.out_element == Dtype::fp32;
  const bool is_for_decode = is_decode(launch.shape);
  const bool does_more = is_for_decode || generation == Generation::sm90;
  CPSCOPE_CHECK(!launch.merges || (does_more && holds_fp32),
                "only the forwards of Hopper and of decode merge, and in fp32", launch.merges,
                holds_fp32);
  check_begun(launch.query_tiles, does_more);
  if (is_for_decode) return launch_decode_forward(launch, stream);
  if (generation == Generation::sm90) {
    if (launch.shape.is_latent) return launch_hopper_latent_forward(launch, stream);
    return launch.shape.is_fp8 ? launch_hopper_fp8_forward(launch, stream)
                               : launch_hopper_forward(launch, stream);
  }
  if (generation == Generation::sm100) return launch_blackwell_forward(launch, stream);
  if (launch.shape.is_fp8) return launch_fp8_forward(launch, stream);
  if (takes_terms_kernel(launch.shape)) return launch_terms_forward(launch, stream);
  if (is_fp32(launch.shape)) return launch_fp32_forward(launch, stream);
  launch_portable_forward(launch, stream);
}

void launch_row_statistics(const BackwardLaunch& launch, Stream stream) {
  launch_portable_row_statistics(launch, stream);
}

void launch_query_gradient(Generation generation, const BackwardLaunch& launch, Stream stream) {
  if (generation == Generation::sm90) {
    return launch.shape.is_latent ? launch_hopper_latent_query_gradient(launch, stream)
                                  : launch_hopper_wide_query_gradient(launch, stream);
  }
  if (launch.shape.is_fp8) return launch_fp8_query_gradient(launch, stream);
  if (takes_terms_kernel(launch.shape)) return launch_terms_query_gradient(launch, stream);
  if (is_fp32(launch.shape)) return launch_fp32_query_gradient(launch, stream);
  launch_portable_query_gradient(launch, stream);
}

void launch_key_gradient(Generation generation, const BackwardLaunch& launch, Stream stream) {
  const bool holds_fp32 = launch.narrow_dq.data == nullptr;
  CPSCOPE_CHECK(!launch.merges_dq || (is_backward_fused(generation, launch.shape) && holds_fp32),
                "only the fused backward merges dq, and in fp32", launch.merges_dq, holds_fp32);
  check_begun(launch.key_tiles, is_backward_fused(generation, launch.shape));
  if (generation == Generation::sm90) {
    if (launch.shape.is_latent) {
      launch_hopper_latent_key_gradient(launch, stream);
    } else if (!is_backward_fused(generation, launch.shape)) {
      launch_hopper_wide_key_gradient(launch, stream);
    } else if (launch.shape.is_fp8) {
      launch_hopper_fp8_gradients(launch, stream);
    } else {
      launch_hopper_gradients(launch, stream);
    }
    if (launch.key_tiles.group_parts > 1) launch_part_sums(launch, stream);
    return;
  }
  CPSCOPE_CHECK(launch.key_tiles.group_parts == 1, "only Hopper's kernels take groups in parts",
                launch.key_tiles.group_parts, launch.shape.group);
  if (launch.shape.is_fp8) return launch_fp8_key_gradient(launch, stream);
  if (takes_terms_kernel(launch.shape)) return launch_terms_key_gradient(launch, stream);
  if (is_fp32(launch.shape)) return launch_fp32_key_gradient(launch, stream);
  launch_portable_key_gradient(launch, stream);
}

}  // namespace cpscope::kernels
