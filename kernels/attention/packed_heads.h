#pragma once

#include "kernels/attention/attention_launch.h"

#include <algorithm>
#include <cstdint>

/// Tiles of query rows that hold several query heads of a KV head (TileShape::heads).
namespace cpscope::kernels {

/// The largest number of query heads up to `most` that divides a KV head's query heads and those of
/// the item; 0 if most is 0.
inline int32_t packed_heads(const AttentionShape& shape, int32_t most) {
  for (int32_t heads = std::min(shape.group, most); heads > 0; --heads) {
    if (shape.group % heads == 0 && shape.first_head % heads == 0 && shape.num_heads % heads == 0)
      return heads;
  }
  return 0;
}

/// Bytes of the launch's `parts`, of rows with so many sums in fp32; 0 if no tile is cut.
inline int64_t part_bytes(const AttentionShape& shape, const TileList& list, int32_t sums) {
  const int64_t rows = int64_t{list.num_part_slots} * (shape.num_heads / list.shape.heads) *
                       (list.shape.owned_rows * list.shape.heads);
  return rows * sums * int64_t{sizeof(float)};
}

/// Parts of a tile's keys that a team of threads has to add up before there are more teams
/// (key_part_sums.h).
inline constexpr int32_t kPartsOfTeam = 8;

}  // namespace cpscope::kernels
