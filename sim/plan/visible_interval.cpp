#include "sim/plan/visible_interval.h"

#include "sim/base/parallel.h"

#include <algorithm>
#include <numeric>

namespace cpscope {
namespace {

/// Key ids (valid tokens through the batch) that valid query id i sees in one slice: [begin, end).
ColumnRange slice_interval(const MaskSlice& slice, int64_t i) {
  if (i < slice.q0 || i >= slice.q1) return {};
  ColumnRange seen{slice.k0, slice.k1};
  if (slice.type == SliceType::causal || slice.type == SliceType::bi_causal)
    seen.end = slice.k1 - (slice.q1 - 1 - i);
  if (slice.type == SliceType::inv_causal || slice.type == SliceType::bi_causal)
    seen.begin = slice.k0 + (i - slice.q0);
  return seen;
}

struct ValidBase {
  int64_t q = 0, kv = 0;
};

/// Number of valid tokens before a sequence.
ValidBase valid_base(const Plan& plan, int64_t sequence) {
  ValidBase base;
  for (int64_t s = 0; s < sequence; ++s) {
    base.q += plan.layout.slots.sequences[s].q_valid;
    base.kv += plan.layout.slots.sequences[s].kv_valid;
  }
  return base;
}

int64_t overlap(ColumnRange a, ColumnRange b) {
  return std::max<int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

int64_t count_through_slices(const Plan& plan) {
  int64_t total = 0;
  ValidBase base;
  for (const SequenceSlot& sequence : plan.layout.slots.sequences) {
    for (const MaskSlice& slice : plan.scenario.attention.slices) {
      const int64_t from = std::max(slice.q0, base.q),
                    to = std::min(slice.q1, base.q + sequence.q_valid);
      for (int64_t i = from; i < to; ++i) {
        const ColumnRange own = visible_interval(plan.scenario.attention, sequence, i - base.q);
        total += overlap(slice_interval(slice, i), {own.begin + base.kv, own.end + base.kv});
      }
    }
    base.q += sequence.q_valid;
    base.kv += sequence.kv_valid;
  }
  return total;
}

}  // namespace

ColumnRange visible_interval(const Attention& attention, const SequenceSlot& sequence, int64_t i) {
  ColumnRange seen{0, sequence.kv_valid};
  const int64_t aligned =
      i + sequence.kv_valid - sequence.q_valid;  // the key at the bottom-right diagonal
  const bool top_left =
      attention.mask_type == MaskType::causal || attention.mask_type == MaskType::padding_causal;
  const bool bottom_right = attention.mask_type == MaskType::causal_bottom_right ||
                            attention.mask_type == MaskType::padding_causal_bottom_right;
  if (top_left) seen.end = std::min(seen.end, i + 1);
  if (bottom_right) seen.end = std::min(seen.end, aligned + 1);
  if (attention.window_left != -1)
    seen.begin = std::max(seen.begin, aligned - attention.window_left);
  if (attention.window_right != -1)
    seen.end = std::min(seen.end, aligned + attention.window_right + 1);
  if (attention.chunk_size != 0) {
    const int64_t chunk_begin = i - i % attention.chunk_size;
    seen.begin = std::max(seen.begin, chunk_begin);
    seen.end = std::min(seen.end, chunk_begin + attention.chunk_size);
  }
  return seen;
}

bool is_inside(const Plan& plan, int64_t sequence, int64_t i, int64_t j, int64_t slice) {
  const ColumnRange seen =
      visible_interval(plan.scenario.attention, plan.layout.slots.sequences[sequence], i);
  if (j < seen.begin || j >= seen.end) return false;
  if (plan.scenario.attention.mask_type != MaskType::slices) return true;
  if (slice < 0) return false;
  const ValidBase base = valid_base(plan, sequence);
  const ColumnRange allowed = slice_interval(plan.scenario.attention.slices[slice], base.q + i);
  return base.kv + j >= allowed.begin && base.kv + j < allowed.end;
}

int64_t find_slice(const Plan& plan, int64_t sequence, int64_t i, int64_t j) {
  const ValidBase base = valid_base(plan, sequence);
  const auto& slices = plan.scenario.attention.slices;
  for (size_t s = 0; s < slices.size(); ++s) {
    const ColumnRange allowed = slice_interval(slices[s], base.q + i);
    if (base.kv + j >= allowed.begin && base.kv + j < allowed.end) return static_cast<int64_t>(s);
  }
  return -1;
}

int64_t count_visible(const Plan& plan, int64_t sequence, int64_t i) {
  const ColumnRange own =
      visible_interval(plan.scenario.attention, plan.layout.slots.sequences[sequence], i);
  if (plan.scenario.attention.mask_type != MaskType::slices)
    return std::max<int64_t>(0, own.end - own.begin);
  const ValidBase base = valid_base(plan, sequence);
  int64_t total = 0;
  for (const MaskSlice& slice : plan.scenario.attention.slices) {
    total += overlap(slice_interval(slice, base.q + i), {own.begin + base.kv, own.end + base.kv});
  }
  return total;
}

int64_t count_all_visible(const Plan& plan) {
  if (plan.scenario.attention.mask_type == MaskType::slices) return count_through_slices(plan);
  const auto& sequences = plan.layout.slots.sequences;
  std::vector<int64_t> by_sequence(sequences.size(), 0);
  for_each_index(static_cast<int64_t>(sequences.size()), [&](int64_t s) {
    for (int64_t i = 0; i < sequences[s].q_valid; ++i) {
      const ColumnRange seen = visible_interval(plan.scenario.attention, sequences[s], i);
      by_sequence[s] += std::max<int64_t>(0, seen.end - seen.begin);
    }
  });
  return std::accumulate(by_sequence.begin(), by_sequence.end(), int64_t{0});
}

}  // namespace cpscope
