#pragma once

#include "kernels/device/device_rows.h"
#include "kernels/device/scalar_types.h"
#include "kernels/tiles/tile_list.h"
#include "sim/plan/decode_items.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <type_traits>

namespace cpscope::kernels {

struct Fp8Numbers;
struct ScoreTermRows;

/// Properties that all kernels of one compute item share. Local query head h reads local KV head
/// (first_head + h) / group - first_kv_head.
struct AttentionShape {
  Dtype dtype = Dtype::bf16;  // bf16 | fp16 | fp32
  int32_t q_rows = 0;
  int32_t kv_rows = 0;
  int32_t num_heads = 0;     // query heads of the item
  int32_t num_kv_heads = 0;  // KV heads that they read
  int32_t first_head = 0;    // number of local query head 0 among all query heads
  int32_t first_kv_head = 0;
  int32_t group = 1;  // query heads that share a KV head
  int32_t head_dim_qk = 0;
  int32_t head_dim_v = 0;
  float scale = 1.0f;            // multiplies q.k
  float softcap = 0.0f;          // 0 = off; else logit -> softcap * tanh(logit / softcap)
  bool has_terms = false;        // bias, ALiBi or dropout: the launch's `terms`
  bool has_alibi_alone = false;  // of these only ALiBi
  bool is_latent = false;        // v is the first head_dim_v elements of k
  bool is_mx = false;            // fp8 in blocks
  bool is_fp8 = false;           // dtype is that of the rows, bf16: the launch's `fp8`
  int64_t keys_per_row = 0;  // average number of keys that a query row sees, 0: unknown; selects
                             // tiles
  SliceSums slices;          // selects kernels
};

/// What comes between q.k times scale and the softmax in Hopper's kernels.
enum class LogitForm { plain, capped, alibi };

constexpr LogitForm logit_form(const AttentionShape& shape) {
  return shape.softcap != 0.0f   ? LogitForm::capped
         : shape.has_alibi_alone ? LogitForm::alibi
                                 : LogitForm::plain;
}

/// Calls visit with the form as a constant.
template <class Visit>
auto with_logit_form(const AttentionShape& shape, Visit visit) {
  switch (logit_form(shape)) {
    case LogitForm::capped:
      return visit(std::integral_constant<LogitForm, LogitForm::capped>{});
    case LogitForm::alibi:
      return visit(std::integral_constant<LogitForm, LogitForm::alibi>{});
    case LogitForm::plain:
      break;
  }
  return visit(std::integral_constant<LogitForm, LogitForm::plain>{});
}

/// A tile whose keys were cut into parts: its rows, the number of parts, and KeyPart::first_slot.
struct CutTile {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t count = 0;
  int32_t first_slot = 0;
};

/// A TileList in device memory.
struct DeviceTiles {
  const KeyRange* ranges = nullptr;  // [range_set][q row]
  const OwnedTile* tiles = nullptr;
  const TileRun* runs = nullptr;
  const WorkItem* work = nullptr;
  int32_t num_work = 0;
  // By blocks, as in TileList.
  const TurnRun* turns = nullptr;
  int32_t num_counters = 0;
  int32_t num_unopened = 0;
  const RowStretch* unopened = nullptr;
  int32_t num_unclosed = 0;
  const RowStretch* unclosed = nullptr;
  const uint32_t* gaps = nullptr;
  bool walks_by_tile = false;
  bool draws_late = false;
  int32_t group_parts = 1;
  const KeyPart* parts = nullptr;  // [tile], or nullptr: every tile has all keys
  const CutTile* cut_tiles = nullptr;
  int32_t num_cut_tiles = 0;
  int32_t most_parts = 1;  // of a tile
  int32_t most_cut_rows = 0;
  // Only the Hopper forward and the fused backward use these.
  Arrivals arrivals;
  Begun begun;
};

/// Forward of one compute item. out: normalised, fp32; those of Hopper and decode may also write
/// the dtype; lse: fp32 [row, head], natural log, at row * lse_row_stride + head. Every row of
/// every head is written: rows without a visible key get 0 and -inf. max_logit: fp32 [local head],
/// raised to the largest visible logit after scale and cap (the caller starts it at -inf). counter:
/// one int32, 0 at the start of the launch and at its end. parts: workspace, where tiles are cut
/// into parts of their keys (key_part_sums.h). merges (Hopper and decode, out in fp32): out and lse
/// hold the result for other keys before, and that for all keys afterwards. rounds: the merged
/// values are then rounded to the dtype.
struct ForwardLaunch {
  AttentionShape shape;
  DeviceRows q, k, v;
  DeviceRows out;
  Dtype out_element = Dtype::fp32;
  float* lse = nullptr;
  int64_t lse_row_stride = 0;
  float* max_logit = nullptr;
  DeviceTiles query_tiles;
  int32_t* counter = nullptr;
  float* parts = nullptr;
  bool merges = false;
  bool rounds = false;
  const ScoreTermRows* terms = nullptr;  // in host memory, read by the call
  const Fp8Numbers* fp8 = nullptr;       // likewise
};

/// Rows of dk and dv to be sent in the dtype. They have the strides of dk and dv.
struct WireRows {
  /// Uses of a row: it is read in fp32, or sent in the dtype.
  static constexpr uint8_t kStays = 1, kLeaves = 2;
  void *dk = nullptr, *dv = nullptr;
  const uint8_t* uses = nullptr;  // [kv row] one or both of these bits; nullptr: all stay
};

/// Backward of one compute item, in three launches: row statistics, dq by query tiles, dk and dv by
/// key tiles; or in two, where the last one makes all gradients. dq, dk, dv: fp32; the fused kernel
/// may also write the dtype. Every row of every head is written, sums have a fixed order: two runs
/// give the same bits. `out` and lse are those of all keys of the row, `out` in fp32 or the dtype.
/// log2_lse, delta: workspace, fp32
/// [local head][q row]: lse * log2(e), +inf for rows without a visible key, and rowsum(d_out *
/// out), 0 for such rows. offsets: the same numbers split into bf16 parts (row_offsets.h), for
/// kernels that read them in this form. merges_dq (fused, dq in fp32 only): dq holds that of other
/// keys, and this item's dq is added.
/// wire (fused, dk and dv in fp32): rows that are written in the dtype, instead of fp32 or in
/// addition. dk_parts, dv_parts: workspace, fp32 [kv row][local kv head, part], where key_tiles
/// have group_parts (Hopper only). With is_latent dk is the gradient of K and V; there is no dv.
/// has_own_device: no other backward runs on the device at the same time, so CTAs that wait for
/// each other (DeviceTiles::draws_late) need not start together.
struct BackwardLaunch {
  AttentionShape shape;
  bool has_own_device = false;
  DeviceRows q, k, v, d_out;
  float d_out_descale = 1.0f;  // multiplies the rows of d_out
  DeviceRows out;
  Dtype out_element = Dtype::fp32;
  const float* lse = nullptr;
  int64_t lse_row_stride = 0;
  const float* sent_delta = nullptr;  // of rows whose out is on another rank, at the places of lse
  float* log2_lse = nullptr;
  float* delta = nullptr;
  Bf16* offsets = nullptr;
  DeviceRows dq, dk, dv;
  DeviceRows dk_parts, dv_parts;
  Dtype dkv_element = Dtype::fp32;  // fused: or the dtype
  WireRows wire;
  DeviceRows narrow_dq;  // fused, if data is set: dq in the dtype; dq itself is then workspace
  bool merges_dq = false;
  DeviceTiles query_tiles;
  DeviceTiles key_tiles;
  int32_t* counters = nullptr;     // two int32, 0 at the start and at the end
  int32_t* turns_taken = nullptr;  // fused: int32 [local head][counter of key_tiles], 0 at start
  int64_t num_turns_taken = 0;     // number of turns_taken that launch_row_statistics clears
  const ScoreTermRows* terms = nullptr;  // in host memory, read by the calls
  const Fp8Numbers* fp8 = nullptr;       // likewise
};

}  // namespace cpscope::kernels
