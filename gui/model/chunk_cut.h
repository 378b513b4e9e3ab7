#pragma once

#include "gui/model/plan_index.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cpscope::gui {

/// The places where a layout cuts inside its runs although the owner stays: every `length` ids from
/// `origin`. Length 0: nowhere.
struct ChunkGrid {
  int64_t origin = 0, length = 0;
};
/// The cuts in the slot [begin, end) of a sequence, or after all slots if begin == end. Only dual
/// chunks differ from slot to slot.
ChunkGrid chunk_grid(const PlanIndex& index, Side side, int64_t begin, int64_t end);

/// Borders of the chunks that touch ids [begin, end), ascending: where the owner or the sequence
/// changes, and where the layout cuts (dual chunks, dispatch chunks) although both stay. The first
/// and last border may be outside of the range. If runs are strided, every token is a chunk. Empty
/// when there would be more than `most` chunks.
std::vector<int64_t> cut_chunks(const PlanIndex& index, Side side, int64_t begin, int64_t end,
                                size_t most);

/// True if a rank owns every n-th token.
bool has_strides(const PlanIndex& index, Side side);

}  // namespace cpscope::gui
