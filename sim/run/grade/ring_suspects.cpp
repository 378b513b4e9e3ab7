#include "sim/run/grade/suspects.h"

#include <functional>
#include <utility>

#include <fmt/format.h>

namespace cpscope {

/// Masks that are right for other ranks' keys than those that they are used for, or for none.
void SuspectMaker::add_masks_by_rank(const Take& take) const {
  if (is_causal(scenario_.attention.mask_type) || is_bottom_right(scenario_.attention.mask_type)) {
    Scenario open = scenario_;
    open.attention.mask_type = MaskType::no_mask;
    take(with_times(
        "causal_ignored", "queries see all keys of their own rank",
        [this, specified = by_mask(scenario_), open = by_mask(open)](int64_t query, int64_t key) {
          return queries_.rank[static_cast<size_t>(query)] == keys_.rank[static_cast<size_t>(key)]
                     ? open(query, key)
                     : specified(query, key);
        }));
  }
  const int32_t ranks = plan_.layout.cp_size;
  if (scenario_.parallel.comm_type != CommType::p2p) return;
  // With two ranks both neighbours are the same rank.
  if (ranks < 3) return;
  take(with_times("ranks_exchanged",
                  "ring step i uses rank r + i's keys with the mask of rank r - i's",
                  [this, ranks, specified = by_mask(scenario_)](int64_t query, int64_t key) {
                    const auto at = static_cast<size_t>(key);
                    const int32_t rank = queries_.rank[static_cast<size_t>(query)];
                    const auto& ids =
                        keys_.ids[static_cast<size_t>((2 * rank - keys_.rank[at] + ranks) % ranks)];
                    const auto local = static_cast<size_t>(keys_.local[at]);
                    return local < ids.size() ? specified(query, ids[local]) : 0.0;
                  }));
}

/// A causal ring over chunks r and 2 P - 1 - r masks its first step alone: later on, all queries
/// see the first half of an earlier rank's keys, and the second half of them all keys of a later
/// rank.
void SuspectMaker::add_ring_halves(const Take& take) const {
  const Attention& asked = scenario_.attention;
  if (scenario_.parallel.comm_type != CommType::p2p) return;
  const auto after_half = [](const TokenPlaces& places, int64_t id) {
    const auto at = static_cast<size_t>(id);
    return places.local_in_sequence[at] - places.rows_of_slot[at] / 2;
  };
  using IsEarlier = std::function<bool(int32_t own, int32_t other)>;
  Scenario open = scenario_;
  open.attention.mask_type = MaskType::no_mask;
  const auto add = [&](const char* name, const char* text, int64_t cut, const IsEarlier& earlier) {
    take(with_times(name, text,
                    [this, after_half, cut, earlier, specified = by_mask(scenario_),
                     open = by_mask(open)](int64_t query, int64_t key) {
                      const int32_t own = queries_.rank[static_cast<size_t>(query)],
                                    other = keys_.rank[static_cast<size_t>(key)];
                      if (own == other) return specified(query, key);
                      const bool is_computed = earlier(own, other)
                                                   ? after_half(keys_, key) < cut
                                                   : after_half(queries_, query) >= cut;
                      return is_computed ? open(query, key) : 0.0;
                    }));
  };
  const IsEarlier is_earlier = [](int32_t own, int32_t other) { return other < own; };
  if (asked.mask_type == MaskType::no_mask || asked.mask_type == MaskType::padding)
    add("causal_added", "ring steps skip the halves that a causal mask would hide", 0, is_earlier);
  const bool is_plain = asked.window_left < 0 && asked.window_right < 0 && asked.chunk_size == 0;
  if (kind_ != LayoutKind::dual_chunk || !is_causal(asked.mask_type) || !is_plain) return;
  add("mask_shifted", "ring step r of rank r, rank 0's keys, is taken for one of a later rank's", 0,
      [](int32_t own, int32_t other) { return other < own && other != 0; });
  add("mask_shifted", "ring step r + 1 of rank r is taken for one of an earlier rank's keys", 0,
      [last = plan_.layout.cp_size - 1](int32_t own, int32_t other) {
        return other < own || other == last;
      });
  add("mask_shifted", "ring steps cut the halves of a rank's rows one row early", -1, is_earlier);
  add("mask_shifted", "ring steps cut the halves of a rank's rows one row late", 1, is_earlier);
}

/// A loop over the chunks of keys that leaves one out.
void SuspectMaker::add_missing_chunks(const Take& take) const {
  constexpr int32_t kMostChunks = 16;
  const int32_t chunks = 2 * plan_.layout.cp_size;
  if (kind_ != LayoutKind::dual_chunk || chunks > kMostChunks) return;
  const auto chunk_of = [chunks](const TokenPlaces& places, int64_t id) {
    const auto at = static_cast<size_t>(id);
    const bool is_first = places.local_in_sequence[at] < places.rows_of_slot[at] / 2;
    return is_first ? places.rank[at] : chunks - 1 - places.rank[at];
  };
  for (int32_t missing = 0; missing < chunks; ++missing)
    take(with_times(
        "partial_missing",
        fmt::format("the part of chunk {} of the keys is missing in all other chunks", missing),
        [this, chunk_of, missing, specified = by_mask(scenario_)](int64_t query, int64_t key) {
          const bool is_missing =
              chunk_of(keys_, key) == missing && chunk_of(queries_, query) != missing;
          return is_missing ? 0.0 : specified(query, key);
        }));
}

void SuspectMaker::add_exchanged_lse(const Take& take) const {
  if (!scenario_.numerics.backward || plan_.layout.cp_size > kMostRanksApart) return;
  const auto add = [&](const char* text,
                       const std::function<bool(int32_t, int32_t)>& is_exchanged) {
    Suspect suspect = as_asked(Parts::of_ranks);
    suspect.name = "lse_exchanged";
    suspect.text = text;
    suspect.attention.lse_row = [this, is_exchanged, rows = ids_with_halves_exchanged(queries_)](
                                    int64_t query, int32_t key_rank) {
      const auto at = static_cast<size_t>(query);
      return is_exchanged(queries_.rank[at], key_rank) && rows[at] >= 0 ? rows[at] : query;
    };
    take(suspect);
  };
  add("the gradients of pairs with later ranks' keys use the lse of the other half of the rank's "
      "rows",
      [](int32_t own, int32_t other) { return other > own; });
  add("gradients use the lse of the other half of the rank's rows",
      [](int32_t, int32_t) { return true; });
}

}  // namespace cpscope
