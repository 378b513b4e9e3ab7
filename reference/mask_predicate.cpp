#include "reference/mask_predicate.h"

#include "reference/pair_terms.h"
#include "sim/base/check.h"
#include "sim/base/parallel.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cpscope::reference {
namespace {

/// The mask without its slices.
SequenceMask rules_of(const SequenceMask& mask) {
  return {mask.type,
          mask.num_queries,
          mask.num_keys,
          mask.window_left,
          mask.window_right,
          mask.chunk_size,
          {},
          mask.first_query,
          mask.first_key};
}

bool slice_shows(const MaskSlice& slice, int64_t query_id, int64_t key_id) {
  const bool is_inside =
      slice.q0 <= query_id && query_id < slice.q1 && slice.k0 <= key_id && key_id < slice.k1;
  if (!is_inside) return false;
  // Bottom-right: the last query sees the last key. Top-left: the first query sees the first key.
  const bool is_below_bottom_right = slice.q1 - query_id <= slice.k1 - key_id;
  const bool is_above_top_left = query_id - slice.q0 <= key_id - slice.k0;
  switch (slice.type) {
    case SliceType::full:
      return true;
    case SliceType::causal:
      return is_below_bottom_right;
    case SliceType::inv_causal:
      return is_above_top_left;
    case SliceType::bi_causal:
      return is_below_bottom_right && is_above_top_left;
  }
  return false;
}

/// `slices`: those of the mask that may hold query i.
bool type_shows(const SequenceMask& mask, std::span<const MaskSlice> slices, int64_t i, int64_t j) {
  switch (mask.type) {
    case MaskType::no_mask:
    case MaskType::padding:
      return true;
    case MaskType::causal:
    case MaskType::padding_causal:
      return j <= i;
    case MaskType::causal_bottom_right:
    case MaskType::padding_causal_bottom_right:
      return j <= i + mask.num_keys - mask.num_queries;
    case MaskType::slices:
      for (const MaskSlice& slice : slices) {
        if (slice_shows(slice, mask.first_query + i, mask.first_key + j)) return true;
      }
      return false;
  }
  return false;
}

bool window_shows(const SequenceMask& mask, int64_t i, int64_t j) {
  // Compared as a distance, so that a window of any size cannot overflow.
  const int64_t keys_left_of_diagonal = i + mask.num_keys - mask.num_queries - j;
  if (mask.window_left >= 0 && keys_left_of_diagonal > mask.window_left) return false;
  return mask.window_right < 0 || -keys_left_of_diagonal <= mask.window_right;
}

bool chunk_shows(const SequenceMask& mask, int64_t i, int64_t j) {
  return mask.chunk_size <= 0 || i / mask.chunk_size == j / mask.chunk_size;
}

bool pair_is_visible(const SequenceMask& mask, std::span<const MaskSlice> slices, int64_t i,
                     int64_t j) {
  const bool is_inside = i >= 0 && i < mask.num_queries && j >= 0 && j < mask.num_keys;
  return is_inside && type_shows(mask, slices, i, j) && window_shows(mask, i, j) &&
         chunk_shows(mask, i, j);
}

/// A mask for questions about single pairs: its slices are sorted by their first query, so that a
/// question looks at few of them.
class SortedMask {
 public:
  explicit SortedMask(SequenceMask mask) : mask_(std::move(mask)) {
    std::sort(mask_.slices.begin(), mask_.slices.end(),
              [](const MaskSlice& a, const MaskSlice& b) { return a.q0 < b.q0; });
    for (const MaskSlice& slice : mask_.slices)
      ends_.push_back(ends_.empty() ? slice.q1 : std::max(ends_.back(), slice.q1));
  }

  bool shows(int64_t i, int64_t j) const {
    const int64_t query = mask_.first_query + i;
    const auto from = std::upper_bound(ends_.begin(), ends_.end(), query) - ends_.begin();
    const auto to =
        std::partition_point(mask_.slices.begin(), mask_.slices.end(),
                             [&](const MaskSlice& slice) { return slice.q0 <= query; }) -
        mask_.slices.begin();
    const std::span<const MaskSlice> all = mask_.slices;
    return pair_is_visible(
        mask_,
        all.subspan(static_cast<size_t>(from), static_cast<size_t>(std::max(from, to) - from)), i,
        j);
  }

 private:
  SequenceMask mask_;
  std::vector<int64_t> ends_;  // [slice] the largest q1 up to it
};

/// The same mask with only the slices that hold one of the queries, or keys, [begin, end): all
/// other slices show them nothing.
SequenceMask narrow_to(Side side, const SequenceMask& mask, int64_t begin, int64_t end) {
  SequenceMask narrowed = rules_of(mask);
  for (const MaskSlice& slice : mask.slices) {
    const bool holds =
        side == Side::q ? mask.first_query + end > slice.q0 && mask.first_query + begin < slice.q1
                        : mask.first_key + end > slice.k0 && mask.first_key + begin < slice.k1;
    if (holds) narrowed.slices.push_back(slice);
  }
  return narrowed;
}

/// The runs of keys (indices into `keys`) that a query sees.
std::vector<KeyRun> ask_about_keys(const SequenceMask& mask, int64_t i,
                                   const std::vector<int64_t>& keys) {
  std::vector<KeyRun> runs;
  bool was_visible = false;
  for (size_t index = 0; index < keys.size(); ++index) {
    const bool visible = is_visible(mask, i, keys[index]);
    const auto at = static_cast<int64_t>(index);
    if (visible && !was_visible) runs.push_back({at, at});
    if (visible) runs.back().end = at + 1;
    was_visible = visible;
  }
  return runs;
}

std::vector<int64_t> count_to(int64_t end) {
  std::vector<int64_t> numbers(static_cast<size_t>(end));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

/// The mask of a sequence without its slices and its first ids.
SequenceMask rules_of_sequence(const Scenario& scenario, size_t sequence) {
  SequenceMask mask;
  mask.type = scenario.attention.mask_type;
  mask.num_queries = scenario.batch.lengths[sequence];
  mask.num_keys = scenario.batch.kv_lengths[sequence];
  mask.window_left = scenario.attention.window_left;
  mask.window_right = scenario.attention.window_right;
  mask.chunk_size = scenario.attention.chunk_size;
  return mask;
}

/// Gives each sequence the slices that intersect its queries. Slice ids count valid tokens through
/// the batch, queries and keys separately.
void assign_slices(const std::vector<MaskSlice>& slices, std::vector<SequenceMask>& masks) {
  for (const MaskSlice& slice : slices) {
    auto mask = std::partition_point(masks.begin(), masks.end(), [&](const SequenceMask& m) {
      return m.first_query + m.num_queries <= slice.q0;
    });
    for (; mask != masks.end() && mask->first_query < slice.q1; ++mask)
      mask->slices.push_back(slice);
  }
}

/// Tests every valid row of every sequence, in parallel over blocks of rows.
LiveRows find_live_rows(const Scenario& scenario, const BatchSlots& slots) {
  // Two threads must not write bits of one word, so these are bytes.
  std::vector<char> queries(static_cast<size_t>(slots.tokens), 0),
      keys(static_cast<size_t>(slots.kv_tokens), 0);
  const std::vector<SequenceMask> masks = sequence_masks(scenario);
  constexpr int64_t kRowsPerTask = 256;
  for (size_t s = 0; s < masks.size(); ++s) {
    const SequenceMask& mask = masks[s];
    const SequenceSlot& slot = slots.sequences[s];
    const int64_t rows = std::max(slot.q_valid, slot.kv_valid);
    for_each_index((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
      const int64_t begin = task * kRowsPerTask, end = std::min(rows, begin + kRowsPerTask);
      const SequenceMask of_queries = narrow_to(Side::q, mask, begin, end);
      const SequenceMask of_keys = narrow_to(Side::kv, mask, begin, end);
      for (int64_t row = begin; row < end; ++row) {
        if (row < slot.q_valid)
          queries[static_cast<size_t>(slot.q_valid_begin() + row)] =
              sees_a_key(of_queries, row) ? 1 : 0;
        if (row < slot.kv_valid)
          keys[static_cast<size_t>(slot.kv_valid_begin() + row)] = is_seen(of_keys, row) ? 1 : 0;
      }
    });
  }
  return {{queries.begin(), queries.end()}, {keys.begin(), keys.end()}};
}

}  // namespace

std::vector<SequenceMask> sequence_masks(const Scenario& scenario) {
  const Batch& batch = scenario.batch;
  CPSCOPE_CHECK(batch.kv_lengths.size() == batch.lengths.size(),
                "queries and keys disagree about the number of sequences", batch.kv_lengths.size(),
                batch.lengths.size());
  std::vector<SequenceMask> masks;
  masks.reserve(batch.lengths.size());
  for (size_t s = 0; s < batch.lengths.size(); ++s) masks.push_back(rules_of_sequence(scenario, s));
  for (size_t s = 1; s < masks.size(); ++s) {
    masks[s].first_query = masks[s - 1].first_query + masks[s - 1].num_queries;
    masks[s].first_key = masks[s - 1].first_key + masks[s - 1].num_keys;
  }
  if (scenario.attention.mask_type == MaskType::slices)
    assign_slices(scenario.attention.slices, masks);
  return masks;
}

SequenceMask sequence_mask(const Scenario& scenario, int64_t sequence) {
  const auto index = static_cast<size_t>(sequence);
  CPSCOPE_CHECK(sequence >= 0 && index < scenario.batch.lengths.size(),
                "the batch has no such sequence", sequence, scenario.batch.lengths.size());
  return std::move(sequence_masks(scenario)[index]);
}

bool is_visible(const SequenceMask& mask, int64_t i, int64_t j) {
  return pair_is_visible(mask, mask.slices, i, j);
}

bool is_visible(const Scenario& scenario, int64_t sequence, int64_t i, int64_t j) {
  return is_visible(sequence_mask(scenario, sequence), i, j);
}

MaskWitness mask_witness() {
  MaskWitness witness;
  witness.visible_keys = [](const Scenario& scenario) -> VisibleKeysOfSequence {
    return [masks = sequence_masks(scenario)](int64_t sequence) {
      const VisibleKeys keys = find_visible_keys(masks[static_cast<size_t>(sequence)]);
      std::vector<std::vector<KeyInterval>> rows(keys.row_begin.size() - 1);
      for (size_t i = 0; i < rows.size(); ++i) {
        for (const KeyRun& run : keys.of_row(static_cast<int64_t>(i))) {
          rows[i].push_back({run.begin, run.end});
        }
      }
      return rows;
    };
  };
  witness.is_visible = [](const Scenario& scenario) -> IsVisible {
    std::vector<SortedMask> masks;
    for (SequenceMask& mask : sequence_masks(scenario)) masks.emplace_back(std::move(mask));
    return [masks = std::move(masks)](int64_t sequence, int64_t i, int64_t j) {
      return masks[static_cast<size_t>(sequence)].shows(i, j);
    };
  };
  witness.live_rows = find_live_rows;
  witness.terms = [](const Scenario& scenario, const RunInputs& inputs) -> PairTermsOf {
    const PairTerms terms(scenario, inputs);
    if (!terms.adds() && !terms.drops()) return {};
    return [terms](int64_t sequence, int32_t head, int64_t i, int64_t j) {
      return PairTerm{.added = terms.added(sequence, head, i, j),
                      .factor = terms.factor(sequence, head, i, j)};
    };
  };
  return witness;
}

VisibleKeys find_visible_keys(const SequenceMask& mask, const std::vector<int64_t>& queries,
                              const std::vector<int64_t>& keys) {
  constexpr int64_t kRowsPerTask = 64;
  std::vector<std::vector<KeyRun>> rows(queries.size());
  const auto num_rows = static_cast<int64_t>(queries.size());
  const int64_t num_tasks = (num_rows + kRowsPerTask - 1) / kRowsPerTask;
  for_each_index(num_tasks, [&](int64_t task) {
    const int64_t begin = task * kRowsPerTask, end = std::min(num_rows, begin + kRowsPerTask);
    const SequenceMask near = narrow_to(Side::q, mask, queries[static_cast<size_t>(begin)],
                                        queries[static_cast<size_t>(end - 1)] + 1);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t i = queries[static_cast<size_t>(row)];
      rows[static_cast<size_t>(row)] = ask_about_keys(narrow_to(Side::q, near, i, i + 1), i, keys);
    }
  });

  VisibleKeys visible;
  visible.row_begin.push_back(0);
  for (const std::vector<KeyRun>& runs : rows) {
    visible.runs.insert(visible.runs.end(), runs.begin(), runs.end());
    visible.row_begin.push_back(static_cast<int64_t>(visible.runs.size()));
  }
  return visible;
}

VisibleKeys find_visible_keys(const SequenceMask& mask) {
  return find_visible_keys(mask, count_to(mask.num_queries), count_to(mask.num_keys));
}

bool sees_a_key(const SequenceMask& mask, int64_t i) {
  const SequenceMask row = narrow_to(Side::q, mask, i, i + 1);
  const int64_t diagonal = i + mask.num_keys - mask.num_queries;
  std::vector<int64_t> likely{i, diagonal, 0, mask.num_keys - 1};
  for (const MaskSlice& slice : row.slices) {
    // In every row of a slice, one end of the visible keys lies on an edge of the slice, whatever
    // its type.
    for (const int64_t key : {slice.k0, slice.k1 - 1, slice.k0 + mask.first_query + i - slice.q0,
                              slice.k1 - slice.q1 + mask.first_query + i})
      likely.push_back(key - mask.first_key);
  }
  for (const int64_t j : likely) {
    if (is_visible(row, i, j)) return true;
  }
  for (int64_t j = 0; j < mask.num_keys; ++j) {
    if (is_visible(row, i, j)) return true;
  }
  return false;
}

bool is_seen(const SequenceMask& mask, int64_t j) {
  const SequenceMask column = narrow_to(Side::kv, mask, j, j + 1);
  for (const int64_t i :
       {j, j - mask.num_keys + mask.num_queries, mask.num_queries - 1, int64_t{0}}) {
    if (is_visible(column, i, j)) return true;
  }
  for (int64_t i = 0; i < mask.num_queries; ++i) {
    if (is_visible(column, i, j)) return true;
  }
  return false;
}

}  // namespace cpscope::reference
