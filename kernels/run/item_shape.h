#pragma once

// Private to the executors: the shapes for which kernels are chosen.

#include "kernels/dispatch/attention_dispatch.h"
#include "sim/plan/plan.h"

#include <cstdint>

namespace cpscope::kernels {

/// The newest kernels of a device.
Generation newest_generation(int32_t compute_capability);

/// The heads of keys that kernels see for these query heads, and the query heads of one of them.
/// Where latent rows are expanded, every query head has keys of its own.
HeadRange key_heads_of(const Attention& attention, HeadRange heads);
int32_t heads_per_key_head(const Attention& attention);

/// The shape of an item without the numbers that depend on its rows and slices.
AttentionShape shape_of_heads(const Plan& plan, const ComputeItem& item);

AttentionShape shape_of_item(const Plan& plan, const ComputeItem& item, const SliceSums& sums);

/// True if partial results are merged in 16 bits.
bool is_merged_in_dtype(const Numerics& numerics);

}  // namespace cpscope::kernels
