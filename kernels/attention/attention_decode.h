#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

/// Forward of compute items whose query rows see many keys that few other rows see, as in a decode
/// step: inputs of 16 bits, or codes of 8, any tensor core since sm_80. Its time is that of reading
/// K and V once.
namespace cpscope::kernels {

/// True if this kernel is the one for the shape, in every generation: few rows, and many keys. It
/// does not wait for inputs in pieces.
bool is_decode(const AttentionShape& shape);

/// fp8: K and V are rows of codes (Fp8Numbers::k_codes, v_codes as CodeRows); q is fp8.q.
bool takes_decode_codes(const AttentionShape& shape);

/// A stationary tile holds all query rows of a request for several query heads of a KV head, and
/// tile lists cut its keys into parts (TileShape::cuts_keys).
TileShape decode_tile(const AttentionShape& shape);

/// Bytes of the launch's `parts`, for this list of query tiles; 0 if no tile is cut.
int64_t decode_part_bytes(const AttentionShape& shape, const TileList& list);

void launch_decode_forward(const ForwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
