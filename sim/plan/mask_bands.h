#pragma once

#include "sim/base/result.h"
#include "sim/plan/band.h"
#include "sim/plan/batch_slots.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// The mask of a batch as bands over (query position, key position) of each sequence. Bands of one
/// sequence share no cell. Unless the mask is of type slices, the bands of one sequence are sorted
/// by rows and their row ranges do not overlap.
struct MaskBands {
  std::vector<Band> bands;     // by sequence
  std::vector<int64_t> first;  // [sequences + 1] offsets into bands
  bool sorted_rows = true;     // row ranges of one sequence are ascending and disjoint
  // Where row ranges ascend but may overlap: [band] the largest q1 of its sequence up to the band.
  std::vector<int64_t> row_ends;

  std::span<const Band> of_sequence(int64_t sequence) const {
    return std::span(bands).subspan(static_cast<size_t>(first[sequence]),
                                    static_cast<size_t>(first[sequence + 1] - first[sequence]));
  }

  /// The bands of a sequence that may intersect rows [begin, end).
  std::span<const Band> near_rows(int64_t sequence, int64_t begin, int64_t end) const;
};

/// Number of bands that compile_mask would make, without making them; saturates at 2^62.
int64_t count_mask_bands(const Attention& attention, std::span<const SequenceSlot> sequences);

/// The refusal of a mask with too many bands.
Error too_many_mask_bands(const Attention& attention, int64_t bands);

/// Turns mask type, window, chunk and slices, combined by AND, into bands.
MaskBands compile_mask(const Attention& attention, std::span<const SequenceSlot> sequences);

}  // namespace cpscope
