#include "sim/app/matrix/matrix_telling.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Marks the rows and columns of a compute item's buffers that a band makes meet.
void mark_band(const Band& band, const std::vector<int64_t>& q_tokens,
               const std::vector<int64_t>& kv_tokens, std::vector<bool>& seen,
               std::vector<bool>& sees) {
  // Columns of one row are an interval, so starts and ends can be counted up.
  std::vector<int32_t> change(kv_tokens.size() + 1, 0);
  for (int64_t row = band.q0; row < band.q1; ++row) {
    const ColumnRange columns = columns_of_row(band, row);
    if (columns.begin >= columns.end) continue;
    sees[q_tokens[row]] = true;
    ++change[columns.begin];
    --change[columns.end];
  }
  int32_t open = 0;
  for (size_t column = 0; column < kv_tokens.size(); ++column) {
    open += change[column];
    if (open > 0) seen[kv_tokens[column]] = true;
  }
}

/// Looks for full and partial tiles in one compute item.
void look_at_tiles(const Plan& plan, const ComputeItem& item, Telling& telling) {
  const int64_t rows = plan.rows(item.q_tokens), columns = plan.rows(item.kv_tokens);
  for (int64_t q = 0; q < rows; q += kTellingTile) {
    for (int64_t k = 0; k < columns; k += kTellingTile) {
      const int64_t q_end = std::min(q + kTellingTile, rows),
                    k_end = std::min(k + kTellingTile, columns);
      int64_t pairs = 0;
      for (const BandSlice& band : plan.slices_of(item))
        pairs += count_pairs_in_tile(band, q, q_end, k, k_end);
      const int64_t cells = (q_end - q) * (k_end - k);
      // What is left of a buffer's edge is no full tile of a kernel.
      telling.has_full_tile |= pairs == kTellingTile * kTellingTile;
      telling.has_partial_tile |= pairs > 0 && pairs < cells;
    }
    if (telling.has_full_tile && telling.has_partial_tile) return;
  }
}

/// The first valid query that the rank computes and whose mask row holds a key of another rank, or
/// -1.
int64_t query_with_remote_key(const Plan& plan, const Visibility& visibility,
                              const std::set<int64_t>& queries, RankId rank,
                              const MaskWitness& witness) {
  const BatchSlots& slots = plan.layout.slots;
  const VisibleKeysOfSequence visible_keys = witness.visible_keys(plan.scenario);
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SequenceSlot& slot = slots.sequences[s];
    const auto rows = visible_keys(static_cast<int64_t>(s));
    for (int64_t i = 0; i < slot.q_valid; ++i) {
      const int64_t query = slot.q_valid_begin() + i;
      if (!queries.contains(query)) continue;
      for (const KeyInterval& keys : rows[i]) {
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          if (visibility.kv_owner[slot.kv_valid_begin() + j] != rank) return query;
        }
      }
    }
  }
  return -1;
}

/// Why a rank sees no key of another rank; asks the witness, not the plan.
void explain_no_remote_key(const Plan& plan, const Visibility& visibility, RankId rank,
                           const MaskWitness& witness, Telling& telling) {
  std::set<int64_t> queries;
  for (const ComputeItem& item : plan.forward.computes) {
    if (item.rank != rank) continue;
    for (const int64_t token : expand(plan.list(item.q_tokens))) {
      if (sequence_of_token(plan.layout.slots, token, Side::q) >= 0) queries.insert(token);
    }
  }
  const int64_t query = query_with_remote_key(plan, visibility, queries, rank, witness);
  if (query >= 0) {
    telling.contradiction = fmt::format(
        "rank {} computes with no key of another rank, but the mask shows query token {} one",
        to_index(rank), query);
  } else if (queries.empty()) {
    telling.notes.push_back(fmt::format("rank {} holds no valid query", to_index(rank)));
  } else {
    telling.notes.push_back(
        fmt::format("rank {} sees no remote key: the mask shows its queries only keys that it owns",
                    to_index(rank)));
  }
}

/// Where queries move, they come to keys that stay; so do heads that other ranks own.
bool meets_foreign_queries(const Plan& plan, RankId rank) {
  const IdVector<RankId, HeadRange>& owned = plan.layout.q_heads;
  return std::any_of(
      plan.forward.computes.begin(), plan.forward.computes.end(), [&](const ComputeItem& item) {
        const bool is_foreign = item.q_tokens != plan.q_lists[rank] ||
                                (owned.size() > 0 && item.heads != owned[rank]);
        return item.rank == rank && item.num_slices > 0 && is_foreign;
      });
}

int64_t count_padding(const BatchSlots& slots) {
  int64_t valid = 0;
  for (const SequenceSlot& slot : slots.sequences) valid += slot.q_valid + slot.kv_valid;
  return slots.tokens + slots.kv_tokens - valid;
}

}  // namespace

int64_t sequence_of_token(const BatchSlots& slots, int64_t token, Side side) {
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SlotSide slot = slots.sequences[s].side(side);
    if (slot.is_valid(token)) return static_cast<int64_t>(s);
  }
  return -1;
}

Visibility find_visibility(const Plan& plan) {
  const auto tokens = static_cast<size_t>(plan.layout.slots.tokens);
  const auto kv_tokens = static_cast<size_t>(plan.layout.slots.kv_tokens);
  Visibility visibility;
  visibility.seen_by_rank.assign(plan.home.size(), std::vector<bool>(kv_tokens, false));
  visibility.seen.assign(kv_tokens, false);
  visibility.sees.assign(tokens, false);
  visibility.kv_owner.assign(kv_tokens, RankId{-1});
  for (const RankId rank : plan.kv_lists.ids()) {
    for (const int64_t token : expand(plan.list(plan.kv_lists[rank])))
      visibility.kv_owner[token] = rank;
  }
  for (const ComputeItem& item : plan.forward.computes) {
    if (item.num_slices == 0) continue;
    const std::vector<int64_t> q = expand(plan.list(item.q_tokens)),
                               kv = expand(plan.list(item.kv_tokens));
    for (const BandSlice& band : plan.slices_of(item))
      mark_band(band, q, kv, visibility.seen_by_rank[item.rank], visibility.sees);
  }
  for (const std::vector<bool>& seen : visibility.seen_by_rank) {
    for (size_t token = 0; token < kv_tokens; ++token)
      visibility.seen[token] = visibility.seen[token] || seen[token];
  }
  return visibility;
}

Telling find_telling(const Plan& plan, const Visibility& visibility, const MaskWitness& witness) {
  Telling telling;
  telling.padding_rows = count_padding(plan.layout.slots);
  for (const ComputeItem& item : plan.forward.computes) {
    if (telling.has_full_tile && telling.has_partial_tile) break;
    look_at_tiles(plan, item, telling);
  }
  for (const RankId rank : visibility.seen_by_rank.ids()) {
    const std::vector<bool>& seen = visibility.seen_by_rank[rank];
    if (sends_partials(plan.scenario.parallel.comm_type) && meets_foreign_queries(plan, rank)) {
      ++telling.ranks_with_remote_keys;
      continue;
    }
    bool has_remote_key = false;
    for (size_t token = 0; token < seen.size() && !has_remote_key; ++token)
      has_remote_key = seen[token] && visibility.kv_owner[token] != rank;
    if (has_remote_key) {
      ++telling.ranks_with_remote_keys;
    } else if (sends_partials(plan.scenario.parallel.comm_type)) {
      // That every visible pair is computed somewhere is proved before.
      telling.notes.push_back(
          fmt::format("rank {} meets its own queries and keys alone: the mask leaves it no other "
                      "pair of chunks",
                      to_index(rank)));
    } else {
      explain_no_remote_key(plan, visibility, rank, witness, telling);
    }
  }
  return telling;
}

}  // namespace cpscope
