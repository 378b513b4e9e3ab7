#pragma once

#include "sim/plan/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Part of the mask that a tile covers, with TransformerEngine's names. all: no causal mask, or no
/// ring. chunk: one of the two query chunks of all_gather, in layout contiguous the rank's only
/// one.
enum class TeSection { diagonal, lower_triangle, upper_triangle, all, chunk };

/// The chunks, of a rank's two, that a tile reads.
enum class TeHalf { both, first, second };

std::string_view to_name(TeSection value);
std::string_view to_name(TeHalf value);

/// Valid lengths of one tile, as prefix sums over the sequences, and the pairs that they give.
struct TeLengths {
  std::vector<int64_t> cu_seqlens_q, cu_seqlens_kv;  // [sequence + 1]
  int64_t pairs = 0;                                 // (query, key) cells, of one head
};

/// One attention call that TransformerEngine would make on one rank.
struct TeTile {
  int32_t rank = 0;
  int32_t step = 0;     // TransformerEngine's own; all_gather has two in dual_chunk, the plan one
  int32_t kv_rank = 0;  // owner of the KV; a2a+p2p: its place on the ring; -1: all ranks
  TeSection section = TeSection::all;
  TeHalf q_half = TeHalf::both;
  TeHalf kv_half = TeHalf::both;
  std::string attn_mask_type = {};
  int64_t window_left = -1, window_right = -1;
  bool is_bottom_right = false;  // alignment of causal masks and windows
  int64_t max_seqlen_q = 0, max_seqlen_kv = 0;
  int64_t kv_begin = 0, kv_end = 0;  // all_gather of bshd, sbhd: keys given to the tile
  // Memory offsets. thd: prefix sums of slots in the tensors of the tile (a half that was cut out,
  // or the whole local buffer); empty for bshd and sbhd.
  std::vector<int64_t> cu_seqlens_q_padded = {}, cu_seqlens_kv_padded = {};
  TeLengths lengths = {};  // with pad_between_seqs = True, exact
  std::optional<TeLengths> floored =
      {};  // ring, thd: with pad_between_seqs = False, divided by 2P or P
  std::string floored_difference =
      {};  // cells that the divided lengths compute wrongly; empty: none
  std::string shortcut_difference = {};  // cells where the tile itself differs from the mask
};

/// A plan as TransformerEngine would run it.
struct TeView {
  std::vector<int64_t> cu_seqlens_q, cu_seqlens_kv;                // valid, global
  std::vector<int64_t> cu_seqlens_q_padded, cu_seqlens_kv_padded;  // slots, global
  int64_t max_seqlen_q = 0, max_seqlen_kv = 0;                     // global
  std::vector<std::string> notes;
  std::vector<TeTile> tiles;  // by rank, then step
};

/// The arguments that TransformerEngine's context-parallel attention passes to its kernels for this
/// plan, forward. Semantics: TransformerEngine 2.20.2, context_parallel.py (sections and halves;
/// get_cu_seqlens_on_cp_rank for exact lengths, cu_seqlens // N without pad_between_seqs;
/// get_kv_seq_info_after_all_gather: a window adjusted by the longest slot;
/// get_no_load_balance_thd_causal_metadata: layout contiguous). What TransformerEngine lacks or
/// forbids is refused with an error that names it: other layouts than dual_chunk and contiguous;
/// contiguous other than all_gather of thd with a causal mask and no window; group_cast, slices,
/// chunks, bottom-right masks, windows on a ring, padded bshd and sbhd, causal masks over unequal
/// lengths, sinks outside a2a, softcap where FlashAttention 2 cannot run, KV heads that do not
/// divide.
Result<TeView> view_as_te(const Plan& plan);

}  // namespace cpscope
