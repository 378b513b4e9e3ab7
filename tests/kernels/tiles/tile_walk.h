#pragma once

#include "kernels/tiles/tile_list.h"

#include <cstdint>
#include <random>
#include <vector>

/// Lists of tiles, visited as kernels visit them.
namespace cpscope::kernels {

struct Area {
  int64_t q_rows = 0, kv_rows = 0;
  std::vector<BandSlice> slices;
};

bool sees(const Area& area, int64_t q, int64_t k);

/// Bands of random kind that never contain a pair twice: each has its own block of rows or columns.
Area random_area(std::mt19937& random);

/// Visits the list as a kernel does; counts how often each pair is computed, and checks that no row
/// without a partner is read.
std::vector<int> walk(const Area& area, const TileList& list, TileOwner owner);

}  // namespace cpscope::kernels
