#include "tests/sim/plan/dense_mask.h"

#include <algorithm>
#include <set>

namespace cpscope::tests {
namespace {

bool slice_shows(const MaskSlice& slice, int64_t q, int64_t k) {
  if (q < slice.q0 || q >= slice.q1 || k < slice.k0 || k >= slice.k1) return false;
  const bool bottom_right = k <= (slice.k1 - 1) - ((slice.q1 - 1) - q);
  const bool top_left = k >= slice.k0 + (q - slice.q0);
  switch (slice.type) {
    case SliceType::full:
      return true;
    case SliceType::causal:
      return bottom_right;
    case SliceType::inv_causal:
      return top_left;
    case SliceType::bi_causal:
      return bottom_right && top_left;
  }
  return false;
}

bool type_shows(const Scenario& scenario, int64_t sequence, int64_t i, int64_t j) {
  const Batch& batch = scenario.batch;
  switch (scenario.attention.mask_type) {
    case MaskType::no_mask:
    case MaskType::padding:
      return true;
    case MaskType::causal:
    case MaskType::padding_causal:
      return j <= i;
    case MaskType::causal_bottom_right:
    case MaskType::padding_causal_bottom_right:
      return j <= i + batch.kv_lengths[sequence] - batch.lengths[sequence];
    case MaskType::slices:
      break;
  }
  int64_t q = i, k = j;
  for (int64_t s = 0; s < sequence; ++s) {
    q += batch.lengths[s];
    k += batch.kv_lengths[s];
  }
  for (const MaskSlice& slice : scenario.attention.slices) {
    if (slice_shows(slice, q, k)) return true;
  }
  return false;
}

void paint_band(const BandSlice& band, const std::vector<int64_t>& q_tokens,
                const std::vector<int64_t>& k_tokens, HeadRange heads, DenseCount& dense) {
  for (int64_t q = band.q0; q < band.q1; ++q) {
    for (int64_t k = band.k0; k < band.k1; ++k) {
      const int64_t diagonal = (k - band.k0) - (q - band.q0);
      if (diagonal < band.lo || diagonal > band.hi) continue;
      for (int64_t head = heads.begin; head < heads.end; ++head)
        ++dense.at(q_tokens.at(static_cast<size_t>(q)), k_tokens.at(static_cast<size_t>(k)), head);
    }
  }
}

DenseCount empty_count(const Scenario& scenario, const BatchSlots& slots) {
  DenseCount dense{slots.tokens, slots.kv_tokens, scenario.attention.heads, {}};
  dense.count.assign(static_cast<size_t>(dense.tokens * dense.kv_tokens * dense.heads), 0);
  return dense;
}

}  // namespace

bool sees(const Scenario& scenario, int64_t sequence, int64_t i, int64_t j) {
  const Attention& attention = scenario.attention;
  const int64_t sq = scenario.batch.lengths[sequence], skv = scenario.batch.kv_lengths[sequence];
  if (!type_shows(scenario, sequence, i, j)) return false;
  if (attention.window_left != -1 && j < i + skv - sq - attention.window_left) return false;
  if (attention.window_right != -1 && j > i + skv - sq + attention.window_right) return false;
  return attention.chunk_size == 0 || i / attention.chunk_size == j / attention.chunk_size;
}

DenseCount count_visible_cells(const Scenario& scenario, const BatchSlots& slots) {
  DenseCount dense = empty_count(scenario, slots);
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SequenceSlot& slot = slots.sequences[s];
    for (int64_t i = 0; i < scenario.batch.lengths[s]; ++i) {
      for (int64_t j = 0; j < scenario.batch.kv_lengths[s]; ++j) {
        if (!sees(scenario, static_cast<int64_t>(s), i, j)) continue;
        for (int64_t head = 0; head < dense.heads; ++head)
          dense.at(slot.q_valid_begin() + i, slot.kv_valid_begin() + j, head) = 1;
      }
    }
  }
  return dense;
}

DenseCount paint_computes(const Plan& plan, const Pass& pass) {
  DenseCount dense = empty_count(plan.scenario, plan.layout.slots);
  for (const ComputeItem& item : pass.computes) {
    const std::vector<int64_t> q = expand(plan.list(item.q_tokens));
    const std::vector<int64_t> k = expand(plan.list(item.kv_tokens));
    for (const BandSlice& band : plan.slices_of(item)) paint_band(band, q, k, item.heads, dense);
  }
  return dense;
}

std::string first_difference(const Plan& plan, const Pass& pass, DenseCount& expected,
                             DenseCount& seen) {
  for (int64_t q = 0; q < expected.tokens; ++q) {
    for (int64_t k = 0; k < expected.kv_tokens; ++k) {
      for (int64_t head = 0; head < expected.heads; ++head) {
        if (expected.at(q, k, head) == seen.at(q, k, head)) continue;
        std::string text = "query token " + std::to_string(q) + ", key token " + std::to_string(k) +
                           ", head " + std::to_string(head) + ": " +
                           std::to_string(expected.at(q, k, head)) + " expected, " +
                           std::to_string(seen.at(q, k, head)) + " planned; computed by";
        for (const ComputeItem& item : pass.computes) {
          const std::vector<int64_t> rows = expand(plan.list(item.q_tokens));
          if (std::find(rows.begin(), rows.end(), q) == rows.end()) continue;
          text += " (rank " + std::to_string(to_index(item.rank)) + ", step " +
                  std::to_string(to_index(item.step)) + ")";
        }
        return text;
      }
    }
  }
  return "";
}

int64_t count_necessary_kv_bytes(const Plan& plan, DenseCount& visible) {
  std::vector<RankId> query_owner(static_cast<size_t>(visible.tokens), RankId{-1});
  for (const RankId rank : plan.q_lists.ids()) {
    for (const int64_t token : expand(plan.list(plan.q_lists[rank])))
      query_owner[static_cast<size_t>(token)] = rank;
  }
  std::set<int64_t> on_every_rank;
  for (const SequenceSlot& slot : plan.layout.slots.sequences) {
    for (int64_t i = 0; i < std::min(slot.kv_valid, plan.scenario.parallel.kv_replicated); ++i)
      on_every_rank.insert(slot.kv_valid_begin() + i);
  }
  int64_t rows = 0;
  for (const RankId rank : plan.kv_lists.ids()) {
    for (const int64_t key : expand(plan.list(plan.kv_lists[rank]))) {
      if (on_every_rank.contains(key)) continue;
      std::set<RankId> readers;
      for (int64_t q = 0; q < visible.tokens; ++q) {
        if (visible.at(q, key, 0) != 0) readers.insert(query_owner[static_cast<size_t>(q)]);
      }
      readers.erase(rank);
      rows += static_cast<int64_t>(readers.size());
    }
  }
  const Attention& attention = plan.scenario.attention;
  const int64_t own_v = attention.latent_dim > 0 ? 0 : attention.head_dim_v;
  // Latent rows that are expanded hold what is expanded, and the rotated elements.
  const int64_t row = attention.latent_nope_dim > 0
                          ? attention.latent_dim + attention.head_dim_qk - attention.latent_nope_dim
                          : attention.head_dim_qk;
  return rows * attention.kv_heads * (row + own_v) * element_bytes(plan.scenario.numerics.dtype);
}

}  // namespace cpscope::tests
