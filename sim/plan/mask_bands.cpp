#include "sim/plan/mask_bands.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Limits on (key position - query position) that hold for a whole sequence.
struct DiagonalLimits {
  int64_t lo = kNoLow;
  int64_t hi = kNoHigh;
};

DiagonalLimits diagonal_limits(const Attention& attention, const SequenceSlot& sequence) {
  DiagonalLimits limits;
  const int64_t surplus = sequence.kv_valid - sequence.q_valid;
  switch (attention.mask_type) {
    case MaskType::causal:
    case MaskType::padding_causal:
      limits.hi = 0;
      break;
    case MaskType::causal_bottom_right:
    case MaskType::padding_causal_bottom_right:
      limits.hi = surplus;
      break;
    case MaskType::no_mask:
    case MaskType::padding:
    case MaskType::slices:
      break;
  }
  if (attention.window_left >= 0) limits.lo = std::max(limits.lo, surplus - attention.window_left);
  if (attention.window_right >= 0)
    limits.hi = std::min(limits.hi, surplus + attention.window_right);
  return limits;
}

/// Adds the band cut by the diagonal limits and, if chunked, into one band per chunk.
void add_cut_band(const Band& band, const DiagonalLimits& limits, int64_t chunk_size,
                  std::vector<Band>& bands) {
  Band whole = band;
  const int64_t origin = band.k0 - band.q0;
  whole.lo = std::max(band.lo, limits.lo - origin);
  whole.hi = std::min(band.hi, limits.hi - origin);
  whole = tighten(whole);
  if (whole.q1 == 0) return;
  if (chunk_size == 0) {
    bands.push_back(whole);
    return;
  }
  const int64_t first = std::max(whole.q0, whole.k0) / chunk_size;
  const int64_t last = (std::min(whole.q1, whole.k1) - 1) / chunk_size;
  for (int64_t chunk = first; chunk <= last; ++chunk) {
    const int64_t begin = chunk * chunk_size, end = begin + chunk_size;
    const Band piece = clip(whole, begin, end, begin, end);
    if (piece.q1 > 0) bands.push_back(piece);
  }
}

/// A slice over valid token ids, as a band over the same ids.
Band band_of_slice(const MaskSlice& slice) {
  Band band{slice.q0, slice.q1, slice.k0, slice.k1, kNoLow, kNoHigh};
  const int64_t surplus = (slice.k1 - slice.k0) - (slice.q1 - slice.q0);
  // causal is aligned to the bottom right corner, inv_causal to the top left (MagiAttention,
  // AttnMaskType).
  if (slice.type == SliceType::causal || slice.type == SliceType::bi_causal) band.hi = surplus;
  if (slice.type == SliceType::inv_causal || slice.type == SliceType::bi_causal) band.lo = 0;
  return band;
}

struct ValidOffsets {
  std::vector<int64_t> q, kv;  // [sequences + 1] first valid token id of each sequence
};

ValidOffsets valid_offsets(std::span<const SequenceSlot> sequences) {
  ValidOffsets offsets;
  offsets.q.assign(1, 0);
  offsets.kv.assign(1, 0);
  for (const SequenceSlot& sequence : sequences) {
    offsets.q.push_back(offsets.q.back() + sequence.q_valid);
    offsets.kv.push_back(offsets.kv.back() + sequence.kv_valid);
  }
  return offsets;
}

/// Calls visit(sequence, band over positions) for every sequence that a slice touches with both its
/// rows and its columns.
template <class Visit>
void split_by_sequence(const MaskSlice& slice, const ValidOffsets& offsets, Visit visit) {
  const Band band = band_of_slice(slice);
  const auto upper = std::upper_bound(offsets.q.begin(), offsets.q.end(), slice.q0);
  int64_t sequence = std::max<int64_t>(0, (upper - offsets.q.begin()) - 1);
  const int64_t count = static_cast<int64_t>(offsets.q.size()) - 1;
  for (; sequence < count && offsets.q[sequence] < slice.q1; ++sequence) {
    const Band part = clip(band, offsets.q[sequence], offsets.q[sequence + 1], offsets.kv[sequence],
                           offsets.kv[sequence + 1]);
    if (part.q1 == 0) continue;
    visit(sequence,
          Band{part.q0 - offsets.q[sequence], part.q1 - offsets.q[sequence],
               part.k0 - offsets.kv[sequence], part.k1 - offsets.kv[sequence], part.lo, part.hi});
  }
}

/// MaskBands::row_ends; empty where the bands of a sequence do not ascend.
std::vector<int64_t> find_row_ends(const MaskBands& mask) {
  std::vector<int64_t> ends;
  ends.reserve(mask.bands.size());
  for (size_t s = 0; s + 1 < mask.first.size(); ++s) {
    int64_t q0 = 0, end = 0;
    for (const Band& band : mask.of_sequence(static_cast<int64_t>(s))) {
      if (band.q0 < q0) return {};
      q0 = band.q0;
      end = std::max(end, band.q1);
      ends.push_back(end);
    }
  }
  return ends;
}

MaskBands compile_slices(const Attention& attention, std::span<const SequenceSlot> sequences) {
  const ValidOffsets offsets = valid_offsets(sequences);
  std::vector<std::pair<int64_t, Band>> found;
  for (const MaskSlice& slice : attention.slices) {
    split_by_sequence(slice, offsets, [&](int64_t sequence, const Band& band) {
      std::vector<Band> pieces;
      add_cut_band(band, diagonal_limits(attention, sequences[sequence]), attention.chunk_size,
                   pieces);
      for (const Band& piece : pieces) found.emplace_back(sequence, piece);
    });
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  MaskBands mask;
  mask.sorted_rows = false;
  mask.first.assign(sequences.size() + 1, 0);
  for (const auto& [sequence, band] : found) {
    mask.bands.push_back(band);
    ++mask.first[sequence + 1];
  }
  for (size_t s = 0; s < sequences.size(); ++s) mask.first[s + 1] += mask.first[s];
  mask.row_ends = find_row_ends(mask);
  return mask;
}

}  // namespace

std::span<const Band> MaskBands::near_rows(int64_t sequence, int64_t begin, int64_t end) const {
  const std::span<const Band> all = of_sequence(sequence);
  if (all.size() < 4 || (!sorted_rows && row_ends.empty())) return all;
  auto from = all.begin();
  if (sorted_rows) {
    from = std::partition_point(all.begin(), all.end(),
                                [&](const Band& band) { return band.q1 <= begin; });
  } else {
    // An earlier band than the last one may be what reaches these rows.
    const auto ends = row_ends.begin() + first[sequence];
    from += std::partition_point(ends, ends + std::ssize(all),
                                 [&](int64_t row_end) { return row_end <= begin; }) -
            ends;
  }
  const auto to =
      std::partition_point(from, all.end(), [&](const Band& band) { return band.q0 < end; });
  return all.subspan(static_cast<size_t>(from - all.begin()), static_cast<size_t>(to - from));
}

int64_t count_mask_bands(const Attention& attention, std::span<const SequenceSlot> sequences) {
  int64_t pieces_per_sequence_sum = 0;
  for (const SequenceSlot& sequence : sequences) {
    const int64_t shorter = std::min(sequence.q_valid, sequence.kv_valid);
    pieces_per_sequence_sum += attention.chunk_size > 0 ? shorter / attention.chunk_size + 1 : 1;
  }
  if (attention.mask_type != MaskType::slices) return pieces_per_sequence_sum;
  const int64_t slices = static_cast<int64_t>(attention.slices.size());
  // Each slice can intersect every sequence and every chunk of its rows; the sum over slices is
  // bounded by their rows.
  int64_t total = 0;
  for (const MaskSlice& slice : attention.slices) {
    const int64_t rows = slice.q1 - slice.q0;
    total += attention.chunk_size > 0
                 ? std::min(rows, pieces_per_sequence_sum) + 1
                 : std::min<int64_t>(rows, static_cast<int64_t>(sequences.size())) + 1;
  }
  return total + slices;
}

Error too_many_mask_bands(const Attention& attention, int64_t bands) {
  return make_refusal(fmt::format("the mask has too many bands: {}", bands),
                      "use a larger chunk_size or fewer slices",
                      {attention.chunk_size > 0 ? "attention.chunk_size"
                       : attention.generator    ? "attention.mask"
                                                : "attention.slices",
                       "batch.lengths"});
}

MaskBands compile_mask(const Attention& attention, std::span<const SequenceSlot> sequences) {
  if (attention.mask_type == MaskType::slices) return compile_slices(attention, sequences);
  MaskBands mask;
  mask.first.reserve(sequences.size() + 1);
  mask.first.push_back(0);
  for (const SequenceSlot& sequence : sequences) {
    if (sequence.q_valid > 0 && sequence.kv_valid > 0) {
      const Band whole{0, sequence.q_valid, 0, sequence.kv_valid, kNoLow, kNoHigh};
      add_cut_band(whole, diagonal_limits(attention, sequence), attention.chunk_size, mask.bands);
    }
    mask.first.push_back(static_cast<int64_t>(mask.bands.size()));
  }
  return mask;
}

}  // namespace cpscope
