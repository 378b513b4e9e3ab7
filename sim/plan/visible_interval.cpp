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

std::vector<VisibleBlock> visible_blocks(const Plan& plan) {
  constexpr int64_t kRows = 1 << 16;
  const auto& sequences = plan.layout.slots.sequences;
  std::vector<VisibleBlock> blocks;
  const auto add = [&](VisibleBlock block) {
    const int64_t end = block.end;
    for (; block.begin < end; block.begin = block.end) {
      block.end = std::min(end, block.begin + kRows);
      blocks.push_back(block);
    }
  };
  std::vector<ValidBase> bases(1);  // [sequence + 1]
  for (const SequenceSlot& sequence : sequences)
    bases.push_back({bases.back().q + sequence.q_valid, bases.back().kv + sequence.kv_valid});
  if (plan.scenario.attention.mask_type != MaskType::slices) {
    for (size_t s = 0; s < sequences.size(); ++s)
      add({static_cast<int64_t>(s), 0, sequences[s].q_valid, nullptr, bases[s].q, bases[s].kv});
    return blocks;
  }
  for (const MaskSlice& slice : plan.scenario.attention.slices) {
    const auto after =
        std::upper_bound(bases.begin(), bases.end(), slice.q0,
                         [](int64_t q, const ValidBase& base) { return q < base.q; });
    for (auto s = static_cast<size_t>(std::max<int64_t>(0, after - bases.begin() - 1));
         s < sequences.size() && bases[s].q < slice.q1; ++s) {
      add({static_cast<int64_t>(s), std::max<int64_t>(0, slice.q0 - bases[s].q),
           std::min(slice.q1 - bases[s].q, sequences[s].q_valid), &slice, bases[s].q, bases[s].kv});
    }
  }
  return blocks;
}

ColumnRange visible_keys(const Plan& plan, const VisibleBlock& block, int64_t i) {
  const ColumnRange own =
      visible_interval(plan.scenario.attention, plan.layout.slots.sequences[block.sequence], i);
  if (block.slice == nullptr) return own;
  const ColumnRange allowed = slice_interval(*block.slice, block.q_base + i);
  return {std::max(own.begin, allowed.begin - block.kv_base),
          std::min(own.end, allowed.end - block.kv_base)};
}

std::vector<bool> find_seeing_queries(const Plan& plan) {
  std::vector<bool> sees(static_cast<size_t>(plan.layout.slots.tokens), false);
  for (const VisibleBlock& block : visible_blocks(plan)) {
    const int64_t first = plan.layout.slots.sequences[block.sequence].q_valid_begin();
    for (int64_t i = block.begin; i < block.end; ++i) {
      const ColumnRange keys = visible_keys(plan, block, i);
      if (keys.begin < keys.end) sees[static_cast<size_t>(first + i)] = true;
    }
  }
  return sees;
}

int64_t count_all_visible(const Plan& plan) {
  const std::vector<VisibleBlock> blocks = visible_blocks(plan);
  std::vector<int64_t> by_block(blocks.size(), 0);
  for_each_index(std::ssize(blocks), [&](int64_t b) {
    for (int64_t i = blocks[b].begin; i < blocks[b].end; ++i) {
      const ColumnRange seen = visible_keys(plan, blocks[b], i);
      by_block[b] += std::max<int64_t>(0, seen.end - seen.begin);
    }
  });
  return std::accumulate(by_block.begin(), by_block.end(), int64_t{0});
}

}  // namespace cpscope
