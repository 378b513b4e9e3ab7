#include "sim/plan/local_keys.h"

#include "sim/plan/mask_bands.h"
#include "sim/plan/piece_table.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Sizes that let every sequence of keys begin on rank 0. Those of keys alone where queries have
/// slots of their own: slot_multiple would pad the few queries of a decoder as much as its keys.
std::string name_aligned_slots(const Batch& batch, int64_t multiple) {
  if (batch.self_attention)
    return fmt::format("slot_multiple = {}, or slots that are multiples of it", multiple);
  constexpr size_t kMostNamed = 16;
  if (batch.kv_slots.size() > kMostNamed)
    return fmt::format("kv_slots that are multiples of {}", multiple);
  std::vector<int64_t> slots;
  for (const int64_t slot : batch.kv_slots)
    slots.push_back((slot + multiple - 1) / multiple * multiple);
  return fmt::format("kv_slots = [{}]", fmt::join(slots, ", "));
}

}  // namespace

Result<std::vector<LocalKeys>> count_local_keys(const Scenario& scenario, const Layout& layout) {
  const std::vector<SequenceSlot>& sequences = layout.slots.sequences;
  const auto ranks = static_cast<size_t>(layout.cp_size);
  int64_t queries = 0;
  for (const SequenceSlot& slot : sequences) queries += slot.q_valid;
  if (queries * layout.cp_size > kMaxLocalKeys) {
    return make_refusal(
        fmt::format("local lengths of {} queries on {} ranks are more than the limit of {}",
                    queries, layout.cp_size, kMaxLocalKeys),
        "use fewer queries: a decoder has one a request, or one a draft", {"batch.lengths"});
  }
  std::vector<LocalKeys> counts;
  std::vector<int64_t> first(sequences.size());  // [sequence] of counts
  for (size_t s = 0; s < sequences.size(); ++s) {
    first[s] = std::ssize(counts);
    for (int64_t i = 0; i < sequences[s].q_valid; ++i)
      counts.push_back({static_cast<int64_t>(s), i, std::vector<int64_t>(ranks, 0)});
  }
  // All queries in packed order: the row of a query is its token id.
  const TokenRun all{0, layout.slots.tokens, 1};
  const PieceTable q = make_pieces({&all, 1}, layout.slots, Side::q);
  const MaskBands mask = compile_mask(scenario.attention, sequences);
  for (const RankId rank : layout.kv_runs.ids()) {
    const PieceTable keys = make_pieces(layout.kv_runs[rank], layout.slots, Side::kv);
    std::vector<BandSlice> bands;
    intersect(q, keys, mask, bands);
    for (const BandSlice& band : bands) {
      // Bands are joined only within a sequence.
      const auto after = std::partition_point(
          sequences.begin(), sequences.end(),
          [&](const SequenceSlot& slot) { return slot.q_begin + slot.q_slot <= band.q0; });
      const auto s = static_cast<size_t>(after - sequences.begin());
      for (int64_t row = band.q0; row < band.q1; ++row) {
        const int64_t query = row - sequences[s].q_valid_begin();
        counts[static_cast<size_t>(first[s] + query)].keys[static_cast<size_t>(to_index(rank))] +=
            count_pairs_in_rows(band, row, row + 1);
      }
    }
  }
  return counts;
}

Result<std::vector<AppendedKey>> grow_cache(const Scenario& scenario, const Layout& layout,
                                            int64_t steps) {
  const Parallel& parallel = scenario.parallel;
  if (layout.kind != LayoutKind::striped) {
    return make_refusal(fmt::format("a cache that grows requires layout striped, so that no key "
                                    "moves to another rank: layout {}",
                                    to_name(layout.kind)),
                        "use layout = \"striped\" with stripe tokens of a block",
                        {"parallel.layout"});
  }
  if (has_rounds(parallel)) {
    return make_refusal("a cache that grows requires that all ranks share every sequence: cp_sizes",
                        "leave cp_sizes out", {"parallel.cp_sizes"});
  }
  if (scenario.batch.pad_side == PadSide::left) {
    return make_refusal("a cache that grows requires padding behind its keys: pad_side left",
                        "use pad_side = \"right\"", {"batch.pad_side"});
  }
  const int64_t ranks = layout.cp_size, stripe = parallel.stripe;
  const std::vector<SequenceSlot>& sequences = layout.slots.sequences;
  for (size_t s = 0; s < sequences.size(); ++s) {
    // A row of bshd or sbhd is split for itself, and one rank has all keys.
    if (ranks > 1 && scenario.batch.qkv_format == QkvFormat::thd &&
        sequences[s].kv_begin % (ranks * stripe) != 0) {
      return make_refusal(
          fmt::format("keys of sequence {} begin at token {}, within a round of {} stripes of {}",
                      s, sequences[s].kv_begin, ranks, stripe),
          fmt::format("use {}, so that the keys of every sequence begin on rank 0",
                      name_aligned_slots(scenario.batch, ranks * stripe)),
          {scenario.batch.self_attention ? "batch.slots" : "batch.kv_slots", "batch.slot_multiple",
           "parallel.stripe"});
    }
  }
  if (steps * std::ssize(sequences) * ranks > kMaxLocalKeys) {
    return make_refusal(fmt::format("{} steps of {} sequences on {} ranks are more counts than the "
                                    "limit of {}",
                                    steps, sequences.size(), ranks, kMaxLocalKeys),
                        "use fewer steps", {"batch.lengths"});
  }
  std::vector<std::vector<int64_t>> keys(sequences.size(),
                                         std::vector<int64_t>(static_cast<size_t>(ranks), 0));
  const auto rank_of = [&](int64_t position) {
    return static_cast<size_t>(position / stripe % ranks);
  };
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t begin = 0; begin < sequences[s].kv_valid; begin += stripe)
      keys[s][rank_of(begin)] += std::min(stripe, sequences[s].kv_valid - begin);
  }
  std::vector<AppendedKey> appended;
  for (int64_t step = 1; step <= steps; ++step) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int64_t position = sequences[s].kv_valid + step - 1;
      int64_t& count = keys[s][rank_of(position)];
      AppendedKey key{step,     static_cast<int64_t>(s),
                      position, static_cast<int32_t>(rank_of(position)),
                      count++,  {}};
      key.keys = keys[s];
      appended.push_back(std::move(key));
    }
  }
  return appended;
}

}  // namespace cpscope
