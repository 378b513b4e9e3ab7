#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {

/// Is valid query i of a sequence to see valid key j of the same sequence?
using Predicate = std::function<bool(size_t sequence, int64_t i, int64_t j)>;

/// How many slices show each cell [query of the batch][key of the batch], by the words of the
/// contract: causal ends at the last key in the last row and one key earlier in each row before,
/// inv_causal begins at the first key in the first row and one key later in each row after.
inline std::vector<std::vector<int>> count_cells(const Batch& batch,
                                                 const std::vector<MaskSlice>& slices) {
  int64_t q = 0, k = 0;
  for (const int64_t length : batch.lengths) q += length;
  for (const int64_t length : batch.kv_lengths) k += length;
  std::vector<std::vector<int>> cells(static_cast<size_t>(q),
                                      std::vector<int>(static_cast<size_t>(k), 0));
  for (const MaskSlice& slice : slices) {
    for (int64_t i = slice.q0; i < slice.q1; ++i) {
      int64_t begin = slice.k0, end = slice.k1;
      if (slice.type == SliceType::causal || slice.type == SliceType::bi_causal)
        end -= slice.q1 - 1 - i;
      if (slice.type == SliceType::inv_causal || slice.type == SliceType::bi_causal)
        begin += i - slice.q0;
      for (int64_t j = begin; j < end; ++j)
        ++cells.at(static_cast<size_t>(i)).at(static_cast<size_t>(j));
    }
  }
  return cells;
}

/// Every visible pair is in one slice, and no slice shows another pair.
inline void expect_cells(const Batch& batch, const std::vector<MaskSlice>& slices,
                         const Predicate& sees, const std::string& where) {
  const std::vector<std::vector<int>> cells = count_cells(batch, slices);
  size_t q = 0, k_begin = 0;
  for (size_t s = 0; s < batch.lengths.size(); ++s) {
    for (int64_t i = 0; i < batch.lengths[s]; ++i, ++q) {
      for (size_t k = 0; k < cells[q].size(); ++k) {
        const auto j = static_cast<int64_t>(k) - static_cast<int64_t>(k_begin);
        const bool is_own = j >= 0 && j < batch.kv_lengths[s];
        ASSERT_EQ(cells[q][k], is_own && sees(s, i, j) ? 1 : 0)
            << where << ": sequence " << s << ", query " << i << ", key " << j;
      }
    }
    k_begin += static_cast<size_t>(batch.kv_lengths[s]);
  }
}

/// A batch of self attention, packed.
inline Batch packed_batch(const std::vector<int64_t>& lengths) {
  Batch batch;
  batch.lengths = batch.kv_lengths = batch.slots = batch.kv_slots = lengths;
  return batch;
}

}  // namespace cpscope
