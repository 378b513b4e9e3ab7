#pragma once

#include "kernels/tiles/tile_list.h"

#include <cstdint>
#include <vector>

/// In which order CTAs take the tiles of a list, whose walked tiles are counted.
namespace cpscope::kernels {

/// That work at the same time: one for each multiprocessor of an H100 or H200.
inline constexpr int64_t kHopperCtas = 132;

/// Fills list.work section by section: documents and heads whose walked rows the cache holds, the
/// longest tiles of each first. As many short tiles of the last sections as CTAs need to end
/// together come last.
/// Cost: O(tiles x heads x log), in time; O(tiles x heads) of host memory.
void deal_in_sections(const WorkHeads& heads, TileList& list);

/// Is every walked tile best taken for all heads at once (TileList::walks_by_tile)?
bool suits_walk_by_tile(const WorkHeads& heads, const TileList& list);

/// By blocks: fills list.work a few chains at a time, and says whether tiles are walked for all
/// heads at once (TileList::walks_by_tile). A chain is the tiles of a document and a head; its CTAs
/// come to the same rows one behind the other. Returns the tiles in the order in which every head
/// deals them.
std::vector<int32_t> deal_in_chains(const WorkHeads& heads,
                                    const std::vector<RowStretch>& long_documents, TileList& list);

}  // namespace cpscope::kernels
