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

/// Calls visit(sequence, query position, number of keys that it sees through the slice) for every
/// query of every slice.
template <class Visit>
void for_each_slice_row(const Plan& plan, const Visit& visit) {
  const auto& sequences = plan.layout.slots.sequences;
  std::vector<ValidBase> bases;  // [sequence]
  ValidBase next;
  for (const SequenceSlot& sequence : sequences) {
    bases.push_back(next);
    next.q += sequence.q_valid;
    next.kv += sequence.kv_valid;
  }
  for (const MaskSlice& slice : plan.scenario.attention.slices) {
    const auto after =
        std::upper_bound(bases.begin(), bases.end(), slice.q0,
                         [](int64_t q, const ValidBase& base) { return q < base.q; });
    for (auto s = static_cast<size_t>(std::max<int64_t>(0, after - bases.begin() - 1));
         s < bases.size() && bases[s].q < slice.q1; ++s) {
      const int64_t to = std::min(slice.q1, bases[s].q + sequences[s].q_valid);
      for (int64_t i = std::max(slice.q0, bases[s].q); i < to; ++i) {
        const ColumnRange own =
            visible_interval(plan.scenario.attention, sequences[s], i - bases[s].q);
        visit(s, i - bases[s].q,
              overlap(slice_interval(slice, i), {own.begin + bases[s].kv, own.end + bases[s].kv}));
      }
    }
  }
}

/// Numbers in all buckets of so many rows, and the buckets.
int64_t count_entries(std::span<const MaskSlice> slices, int64_t rows, int64_t rows_per_bucket) {
  int64_t entries = rows / rows_per_bucket;
  for (const MaskSlice& slice : slices) {
    const int64_t begin = std::max<int64_t>(0, slice.q0), end = std::min(slice.q1, rows);
    if (begin < end) entries += (end - 1) / rows_per_bucket - begin / rows_per_bucket + 1;
  }
  return entries;
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

SliceRows::SliceRows(const Plan& plan) {
  int64_t rows = 0;
  for (const SequenceSlot& sequence : plan.layout.slots.sequences) {
    q_begin_.push_back(rows);
    rows += sequence.q_valid;
  }
  if (plan.scenario.attention.mask_type != MaskType::slices) return;
  const std::vector<MaskSlice>& slices = plan.scenario.attention.slices;
  // Slices of many rows would be listed in many buckets: larger ones keep the lists short.
  const int64_t most = int64_t{8} * std::ssize(slices) + 65'536;
  while (count_entries(slices, rows, rows_per_bucket_) > most) rows_per_bucket_ *= 2;
  const auto each_entry = [&](auto visit) {
    for (size_t n = 0; n < slices.size(); ++n) {
      const int64_t begin = std::max<int64_t>(0, slices[n].q0), end = std::min(slices[n].q1, rows);
      if (begin >= end) continue;
      const int64_t last = (end - 1) / rows_per_bucket_;
      for (int64_t bucket = begin / rows_per_bucket_; bucket <= last; ++bucket)
        visit(static_cast<size_t>(bucket), n);
    }
  };
  first_.assign(static_cast<size_t>(rows / rows_per_bucket_) + 2, 0);
  each_entry([&](size_t bucket, size_t) { ++first_[bucket + 1]; });
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  numbers_.resize(static_cast<size_t>(first_.back()));
  std::vector<int64_t> next = first_;
  each_entry([&](size_t bucket, size_t n) {
    numbers_[static_cast<size_t>(next[bucket]++)] = static_cast<int32_t>(n);
  });
}

std::span<const int32_t> SliceRows::near(int64_t sequence, int64_t i) const {
  const auto bucket = static_cast<size_t>((q_begin_[sequence] + i) / rows_per_bucket_);
  if (bucket + 1 >= first_.size()) return {};
  return std::span(numbers_).subspan(static_cast<size_t>(first_[bucket]),
                                     static_cast<size_t>(first_[bucket + 1] - first_[bucket]));
}

int64_t find_slice(const Plan& plan, const SliceRows& rows, int64_t sequence, int64_t i,
                   int64_t j) {
  const ValidBase base = valid_base(plan, sequence);
  for (const int32_t number : rows.near(sequence, i)) {
    const ColumnRange allowed = slice_interval(plan.scenario.attention.slices[number], base.q + i);
    if (base.kv + j >= allowed.begin && base.kv + j < allowed.end) return number;
  }
  return -1;
}

int64_t count_visible(const Plan& plan, const SliceRows& rows, int64_t sequence, int64_t i) {
  const ColumnRange own =
      visible_interval(plan.scenario.attention, plan.layout.slots.sequences[sequence], i);
  if (plan.scenario.attention.mask_type != MaskType::slices)
    return std::max<int64_t>(0, own.end - own.begin);
  const ValidBase base = valid_base(plan, sequence);
  int64_t total = 0;
  for (const int32_t number : rows.near(sequence, i)) {
    total += overlap(slice_interval(plan.scenario.attention.slices[number], base.q + i),
                     {own.begin + base.kv, own.end + base.kv});
  }
  return total;
}

std::vector<bool> find_seeing_queries(const Plan& plan) {
  const auto& sequences = plan.layout.slots.sequences;
  std::vector<bool> sees(static_cast<size_t>(plan.layout.slots.tokens), false);
  const auto note = [&](size_t s, int64_t i, int64_t keys) {
    if (keys > 0) sees[static_cast<size_t>(sequences[s].q_begin + i)] = true;
  };
  if (plan.scenario.attention.mask_type == MaskType::slices) {
    for_each_slice_row(plan, note);
    return sees;
  }
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t i = 0; i < sequences[s].q_valid; ++i) {
      const ColumnRange seen = visible_interval(plan.scenario.attention, sequences[s], i);
      note(s, i, seen.end - seen.begin);
    }
  }
  return sees;
}

int64_t count_all_visible(const Plan& plan) {
  if (plan.scenario.attention.mask_type == MaskType::slices) {
    int64_t total = 0;
    for_each_slice_row(plan, [&](size_t, int64_t, int64_t keys) { total += keys; });
    return total;
  }
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
