#pragma once

#include "kernels/tiles/tile_list.h"

#include <cstdint>
#include <vector>

/// The order in which CTAs take the tiles of a list whose streamed tiles are counted.
namespace cpscope::kernels {

/// CTAs that work at the same time: one for each multiprocessor of an H100 or H200.
inline constexpr int64_t kHopperCtas = 132;

/// Orders tiles by the number of tiles that they stream, the longest first; equal ones keep their
/// order.
void sort_by_length(std::vector<int32_t>& tiles, const TileList& list);

/// True if the streamed rows belong to several documents. long_documents: of find_long_documents.
inline bool has_documents(const std::vector<RowStretch>& long_documents) {
  return !long_documents.empty() && long_documents.back().begin > 0;
}

/// Fills list.work section by section: documents and heads whose streamed rows fit the cache, the
/// longest tiles of each first. So many short tiles of the last sections that CTAs end together are
/// held back to the end.
/// Cost: O(tiles x heads x log), in time; O(tiles x heads) of host memory.
void fill_in_sections(const WorkHeads& heads, TileList& list);

/// True if every streamed tile is best taken for all heads at once (TileList::walks_by_tile).
bool suits_walk_by_tile(const WorkHeads& heads, const TileList& list);

/// By blocks: fills list.work a few chains at a time, and sets whether tiles are streamed for all
/// heads at once (TileList::walks_by_tile). A chain is the tiles of a document and a head; its CTAs
/// reach the same rows one after another. Returns the order of tiles, which is the same for every
/// head.
std::vector<int32_t> fill_in_chains(const WorkHeads& heads,
                                    const std::vector<RowStretch>& long_documents, TileList& list);

}  // namespace cpscope::kernels
