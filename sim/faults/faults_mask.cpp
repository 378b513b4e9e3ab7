#include "sim/faults/catalogue_parts.h"
#include "sim/faults/plan_edits.h"
#include "sim/plan/band.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/token_run.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

namespace cpscope {

std::optional<PlantedFault> plant_slices(const Plan& healthy, std::string what,
                                         const EditSlices& edit) {
  Plan plan = healthy;
  std::optional<FaultSite> site;
  for (size_t i = 0; i < healthy.forward.computes.size(); ++i) {
    const ComputeItem& item = healthy.forward.computes[i];
    if (item.num_slices == 0) continue;
    const auto given = healthy.slices_of(item);
    std::vector<BandSlice> slices(given.begin(), given.end());
    edit(item, slices);
    if (std::equal(slices.begin(), slices.end(), given.begin(), given.end())) continue;
    replace_slices(plan, static_cast<int64_t>(i), slices);
    if (!site)
      site = forward_site(StageKind::compute, item.rank, item.step, static_cast<int64_t>(i));
  }
  if (!site) return std::nullopt;
  return PlantedFault{.site = *site, .what = std::move(what), .plan = std::move(plan)};
}

namespace {

/// True if every rank owns two of 2P chunks of each sequence, of queries as of keys.
bool has_chunks_of_all_ranks(const Plan& plan) {
  const BatchSlots& slots = plan.layout.slots;
  return plan.layout.kind == LayoutKind::dual_chunk && plan.layout.rounds.empty() &&
         std::all_of(slots.sequences.begin(), slots.sequences.end(), [](const SequenceSlot& slot) {
           return slot.q_slot == slot.kv_slot && slot.q_valid == slot.kv_valid;
         });
}
/// The same, if every rank gathers all keys in packed order.
bool gathers_chunks(const Plan& plan) {
  return has_chunks_of_all_ranks(plan) && plan.scenario.parallel.comm_type == CommType::all_gather;
}

/// [local row] True if the row is among the first floor(length / 2P) of its chunk.
std::vector<bool> rows_after_floor(const Plan& plan, RunListId list) {
  std::vector<bool> kept;
  const int64_t chunks = int64_t{2} * plan.layout.cp_size;
  for (const int64_t token : expand(plan.list(list))) {
    bool is_kept = false;
    for (const SequenceSlot& slot : plan.layout.slots.sequences) {
      if (token < slot.q_begin || token >= slot.q_begin + slot.q_slot) continue;
      is_kept = (token - slot.q_begin) % (slot.q_slot / chunks) < slot.q_valid / chunks;
    }
    kept.push_back(is_kept);
  }
  return kept;
}

/// Intervals of rows [begin, end) that are kept.
std::vector<std::pair<int64_t, int64_t>> kept_runs(const std::vector<bool>& kept) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (size_t row = 0; row < kept.size(); ++row) {
    if (!kept[row]) continue;
    if (runs.empty() || runs.back().second != static_cast<int64_t>(row))
      runs.emplace_back(row, row);
    runs.back().second = static_cast<int64_t>(row) + 1;
  }
  return runs;
}

BandSlice to_slice(const Band& band) {
  return {static_cast<int32_t>(band.q0), static_cast<int32_t>(band.q1),
          static_cast<int32_t>(band.k0), static_cast<int32_t>(band.k1),
          static_cast<int32_t>(band.lo), static_cast<int32_t>(band.hi)};
}

/// The cells of the slices whose rows are both kept; the slices themselves if those are all.
std::vector<BandSlice> cut_to_kept(const std::vector<BandSlice>& slices,
                                   const std::vector<bool>& q_kept,
                                   const std::vector<bool>& kv_kept) {
  const auto q = kept_runs(q_kept), kv = kept_runs(kv_kept);
  std::vector<BandSlice> cut;
  for (const BandSlice& slice : slices) {
    for (const auto& [q_begin, q_end] : q) {
      for (const auto& [k_begin, k_end] : kv) {
        const Band part = clip(slice, q_begin, q_end, k_begin, k_end);
        if (count_pairs(part) > 0) cut.push_back(to_slice(part));
      }
    }
  }
  const auto pairs = [](const std::vector<BandSlice>& all) {
    int64_t sum = 0;
    for (const BandSlice& slice : all) sum += count_pairs(slice);
    return sum;
  };
  return pairs(cut) != pairs(slices) ? cut : slices;
}

/// Lengths of every chunk rounded down, as cu_seqlens / P and / 2P do.
std::optional<PlantedFault> plant_floor_division(const Plan& healthy) {
  if (!has_chunks_of_all_ranks(healthy)) return std::nullopt;
  return plant_slices(healthy,
                      "every chunk of a sequence is taken to hold floor(length / 2P) tokens",
                      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
                        slices = cut_to_kept(slices, rows_after_floor(healthy, item.q_tokens),
                                             rows_after_floor(healthy, item.kv_tokens));
                      });
}

/// [local row] True if a rank that splits its own rows like a sequence would keep this one: chunks
/// r and 2P-1-r of 2P. Empty if the list is no rank's.
std::vector<bool> rows_sharded_again(const Plan& plan, Side side, RunListId list) {
  const int64_t chunks = int64_t{2} * plan.layout.cp_size, rows = plan.rows(list);
  std::vector<bool> kept;
  for (const RankId rank : plan.lists(side).ids()) {
    if (plan.lists(side)[rank] != list || rows % chunks != 0) continue;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t chunk = row / (rows / chunks);
      kept.push_back(chunk == to_index(rank) || chunk == chunks - 1 - to_index(rank));
    }
    break;
  }
  return kept;
}

/// Each rank splits what already is its share, and works with its share of that.
std::optional<PlantedFault> plant_sharded_twice(const Plan& healthy) {
  return plant_slices(
      healthy, "each rank keeps only its share of the rows that are its share",
      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
        const std::vector<bool> q = rows_sharded_again(healthy, Side::q, item.q_tokens),
                                kv = rows_sharded_again(healthy, Side::kv, item.kv_tokens);
        if (!q.empty() && !kv.empty()) slices = cut_to_kept(slices, q, kv);
      });
}

/// Chunk of a local query row, for plans with one rank per sequence part: one rank's buffer holds
/// two chunks of every sequence.
struct ChunkPlace {
  const SequenceSlot* slot = nullptr;
  int64_t chunk = 0;
  int64_t chunk_tokens = 0;
};
ChunkPlace chunk_of(const Plan& plan, RunListId q_list, int64_t row) {
  const int64_t token = slice_rows(plan.list(q_list), row, row + 1).front().begin;
  for (const SequenceSlot& slot : plan.layout.slots.sequences) {
    if (token < slot.q_begin || token >= slot.q_begin + slot.q_slot) continue;
    const int64_t size = slot.q_slot / (int64_t{2} * plan.layout.cp_size);
    return {&slot, (token - slot.q_begin) / size, size};
  }
  return {};
}

/// The slices, cut at the border of two chunks of queries; a rank whose two chunks are neighbours
/// has slices over both.
std::vector<BandSlice> cut_at_chunks(const Plan& plan, const ComputeItem& item,
                                     const std::vector<BandSlice>& slices) {
  std::vector<BandSlice> cut;
  for (const BandSlice& slice : slices) {
    int64_t begin = slice.q0;
    for (int64_t row = slice.q0; row < slice.q1; ++row) {
      const bool ends = row + 1 == slice.q1 || chunk_of(plan, item.q_tokens, row).chunk !=
                                                   chunk_of(plan, item.q_tokens, row + 1).chunk;
      if (!ends) continue;
      cut.push_back(to_slice(clip(slice, begin, row + 1, slice.k0, slice.k1)));
      begin = row + 1;
    }
  }
  return cut;
}

/// Moves a slice's diagonals by `by` keys and cuts it to key rows [k_begin, k_end).
BandSlice shift_slice(const BandSlice& slice, int64_t by, int64_t k_begin, int64_t k_end) {
  Band band = slice;
  band.lo += slice.k0 - k_begin + by;
  band.hi += slice.k0 - k_begin + by;
  band.k0 = k_begin;
  band.k1 = k_end;
  return to_slice(tighten(band));
}

/// TransformerEngine's tile of a query chunk: keys [B, E) of the sequence; its window is computed
/// for the bottom-right corner and applied at the top-left one.
std::optional<PlantedFault> plant_window_at_top_left(const Plan& healthy) {
  const int64_t left = healthy.scenario.attention.window_left,
                right = healthy.scenario.attention.window_right;
  if (left < 0 || right < 0 || !gathers_chunks(healthy)) return std::nullopt;
  return plant_slices(
      healthy, "the adjusted window is anchored at the top left of each chunk's keys",
      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
        slices = cut_at_chunks(healthy, item, slices);
        for (BandSlice& slice : slices) {
          const ChunkPlace place = chunk_of(healthy, item.q_tokens, slice.q0);
          const int64_t end = (place.chunk + 1) * place.chunk_tokens;
          const int64_t last = std::min(place.slot->kv_valid, end + right);
          const int64_t first = std::max<int64_t>(0, end - place.chunk_tokens - left);
          slice = shift_slice(slice, first - (last - place.chunk_tokens),
                              place.slot->kv_begin + first, place.slot->kv_begin + last);
        }
      });
}

/// The same tile with the window adjusted by the longest slot of the batch.
std::optional<PlantedFault> plant_window_of_longest(const Plan& healthy) {
  const int64_t right = healthy.scenario.attention.window_right;
  int64_t longest = 0;
  for (const SequenceSlot& slot : healthy.layout.slots.sequences)
    longest = std::max(longest, slot.q_slot);
  if (right < 0 || !gathers_chunks(healthy)) return std::nullopt;
  return plant_slices(
      healthy, "the window's adjustment is that of the longest slot",
      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
        const std::vector<BandSlice> given = slices;
        bool has_shifted = false;
        slices = cut_at_chunks(healthy, item, slices);
        for (BandSlice& slice : slices) {
          const auto [slot, chunk, size] = chunk_of(healthy, item.q_tokens, slice.q0);
          const int64_t queries = std::clamp<int64_t>(slot->q_valid - chunk * size, 0, size);
          const int64_t keys = std::min(slot->kv_valid, (chunk + 1) * size + right);
          const int64_t long_end = (chunk + 1) * (longest / (int64_t{2} * healthy.layout.cp_size));
          const int64_t granted = std::min(longest, long_end + right) - long_end;
          const int64_t by = keys - queries - chunk * size - granted;
          if (by == 0) continue;
          slice = shift_slice(slice, by, slot->kv_begin, slot->kv_begin + keys);
          has_shifted = true;
        }
        if (!has_shifted) slices = given;
      });
}

/// Keys of the gathered buffer are read where they would be without padding.
std::optional<PlantedFault> plant_unpadded_offsets(const Plan& healthy) {
  if (!gathers_chunks(healthy)) return std::nullopt;
  return plant_slices(healthy, "keys are read at cu_seqlens instead of cu_seqlens_padded",
                      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
                        for (BandSlice& slice : slices) {
                          const ChunkPlace place = chunk_of(healthy, item.q_tokens, slice.q0);
                          int64_t padding = 0;
                          for (const SequenceSlot& slot : healthy.layout.slots.sequences) {
                            if (&slot == place.slot) break;
                            padding += slot.kv_slot - slot.kv_valid;
                          }
                          slice.k0 -= static_cast<int32_t>(padding);
                          slice.k1 -= static_cast<int32_t>(padding);
                        }
                      });
}

/// True if the diagonal cuts this slice.
bool has_diagonal(const BandSlice& slice) { return slice.hi < slice.k1 - slice.k0 - 1; }

std::optional<PlantedFault> plant_missing_diagonal(const Plan& healthy) {
  return plant_slices(healthy, "rows of step 0 do not see themselves",
                      [](const ComputeItem& item, std::vector<BandSlice>& slices) {
                        if (to_index(item.step) != 0) return;
                        for (BandSlice& slice : slices) {
                          if (has_diagonal(slice)) --slice.hi;
                        }
                      });
}

std::optional<PlantedFault> plant_future_token(const Plan& healthy) {
  return plant_slices(healthy, "stripes of later ranks are seen one token too early",
                      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
                        if (to_index(item.step) <= to_index(item.rank)) return;
                        const int64_t rows = healthy.rows(item.q_tokens),
                                      keys = healthy.rows(item.kv_tokens);
                        for (BandSlice& slice : slices) {
                          Band wider = slice;
                          wider.q0 = 0;
                          wider.q1 = rows;
                          wider.k0 = 0;
                          wider.k1 = keys;
                          const int64_t diagonal = slice.hi + slice.k0 - slice.q0;
                          wider.lo = -rows;
                          wider.hi = diagonal + 1;
                          slice = to_slice(tighten(wider));
                        }
                      });
}

/// Complete chunks inside a half are emitted as one block.
std::optional<PlantedFault> plant_joined_chunks(const Plan& healthy) {
  const int64_t chunk = healthy.scenario.attention.chunk_size;
  const int64_t half = healthy.layout.slots.tokens / (int64_t{2} * healthy.layout.cp_size);
  if (chunk == 0 || half / chunk < 4 || !has_chunks_of_all_ranks(healthy)) return std::nullopt;
  return plant_slices(healthy, "the second and third chunk of each half are one block in step 0",
                      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
                        if (to_index(item.step) != 0) return;
                        for (int64_t base = 0; base < 2 * half; base += half) {
                          const auto q0 = static_cast<int32_t>(base + 2 * chunk),
                                     k0 = static_cast<int32_t>(base + chunk),
                                     size = static_cast<int32_t>(chunk);
                          slices.push_back({q0, q0 + size, k0, k0 + size, -size, size});
                        }
                      });
}

/// Chunks are cut by rows of the ranks' buffers; the diagonal is right.
std::optional<PlantedFault> plant_local_chunks(const Plan& healthy) {
  Scenario open = healthy.scenario;
  const int64_t chunk = open.attention.chunk_size;
  open.attention.chunk_size = 0;
  Result<Plan> planned = make_plan(open);
  if (chunk == 0 || healthy.layout.cp_size == 1 || !planned) return std::nullopt;
  Plan plan = std::move(planned).value();
  std::optional<FaultSite> site;
  for (size_t i = 0; i < plan.forward.computes.size(); ++i) {
    const ComputeItem item = plan.forward.computes[i];
    std::vector<BandSlice> slices;
    for (const BandSlice& slice : plan.slices_of(item)) {
      for (int64_t row = 0; row < plan.rows(item.q_tokens); row += chunk)
        slices.push_back(to_slice(clip(slice, row, row + chunk, row, row + chunk)));
    }
    std::erase_if(slices, [](const BandSlice& slice) { return count_pairs(slice) == 0; });
    replace_slices(plan, static_cast<int64_t>(i), slices);
    const auto right = healthy.slices_of(healthy.forward.computes[i]);
    if (!site && !std::equal(slices.begin(), slices.end(), right.begin(), right.end()))
      site = forward_site(StageKind::compute, item.rank, item.step, static_cast<int64_t>(i));
  }
  if (!site) return std::nullopt;
  return PlantedFault{.site = *site,
                      .what = "chunks are cut by rows of the ranks' buffers instead of positions",
                      .plan = std::move(plan)};
}

/// The ring's shortcut for causal masks, used without a causal mask.
std::optional<PlantedFault> plant_causal_halves(const Plan& healthy) {
  const MaskType mask = healthy.scenario.attention.mask_type;
  if (mask != MaskType::no_mask && mask != MaskType::padding) return std::nullopt;
  const int64_t half = healthy.layout.slots.tokens / (int64_t{2} * healthy.layout.cp_size);
  return plant_slices(healthy, "steps skip the halves that a causal mask would hide",
                      [&](const ComputeItem& item, std::vector<BandSlice>& slices) {
                        if (to_index(item.step) == 0) return;
                        const bool is_upper = to_index(item.step) > to_index(item.rank);
                        for (BandSlice& slice : slices)
                          slice = to_slice(clip(slice, is_upper ? half : 0, slice.q1, 0,
                                                is_upper ? slice.k1 : half));
                      });
}

}  // namespace

std::vector<Fault> mask_faults() {
  const std::string gather_two = "cp_size = 2\ncp_comm_type = \"all_gather\"";
  const std::string striped = "cp_size = 4\nlayout = \"striped\"";
  const std::string window = "attn_mask_type = \"no_mask\"\nwindow_size = [5, 5]";
  return {
      {.name = "lengths_divided_and_rounded_down",
       .field_class = "10, D7",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "NVIDIA/TransformerEngine#3331",
       .wild = "cu_seqlens // P with padding at the end: real keys were dropped, real rows were "
               "zero, and results changed from run to run.",
       .scenario = scenario_text({}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64, 32, 96]"}),
                              "all lengths divide by 2P"},
       .plant = plant_floor_division,
       .cause = "lengths_rounded_down"},
      {.name = "sequence_sharded_twice",
       .field_class = "49",
       .place = FaultPlace::inputs,
       .detector = Detector::count,
       .source = "axolotl-ai-cloud/axolotl PR#3498",
       .wild = "Two libraries each gave every rank its share: 1 / P^2 of the tokens were left. The "
               "training loss was above the evaluation loss.",
       .scenario = scenario_text({.batch = "lengths = [64]"}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64]", .parallel = "cp_size = 1"}),
                              "one rank's share is everything"},
       .plant = plant_sharded_twice,
       .cause = "sharded_twice"},
      {.name = "window_anchored_at_the_wrong_corner",
       .field_class = "D4",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "NVIDIA/TransformerEngine@d0067d0d",
       .wild = "All-gather with a two-sided window hands the fused kernel keys whose window is "
               "meant bottom-right.",
       .scenario =
           scenario_text({.attention = window, .batch = "lengths = [64]", .parallel = gather_two}),
       .blind = std::nullopt,
       .plant = plant_window_at_top_left,
       .cause = "window_at_wrong_corner"},
      {.name = "window_of_the_longest_slot",
       .field_class = "D3",
       .place = FaultPlace::plan,
       .detector = Detector::keys,
       .source = "NVIDIA/TransformerEngine PR#2829",
       .wild = "All-gather in thd adjusts a right window once, for the longest slot; shorter and "
               "partly filled slots see shifted keys near their ends.",
       .scenario = scenario_text({.attention = window,
                                  .batch = "lengths = [64, 33]\nslots = [64, 40]",
                                  .parallel = gather_two}),
       .blind = BlindScenario{scenario_text({.attention = window,
                                             .batch = "lengths = [64, 64]",
                                             .parallel = gather_two}),
                              "all slots are full and equally long"},
       .plant = plant_window_of_longest,
       .cause = "window_of_longest_slot"},
      {.name = "keys_read_at_unpadded_offsets",
       .field_class = "D5",
       .place = FaultPlace::plan,
       .detector = Detector::keys,
       .source = "NVIDIA/TransformerEngine@d0067d0d",
       .wild = "FlashAttention 2 under all-gather and thd has no way to say where slots begin, and "
               "reads rows of the wrong sequence.",
       .scenario = scenario_text({.parallel = gather_two}),
       .blind =
           BlindScenario{scenario_text({.batch = "lengths = [64, 32, 96]", .parallel = gather_two}),
                         "there is no padding"},
       .plant = plant_unpadded_offsets,
       .cause = "keys_at_unpadded_offsets"},
      {.name = "diagonal_missing",
       .field_class = "18",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "arXiv:2311.09431",
       .wild = "Striped steps alternate between < and <=; with < on the own stripe no token sees "
               "itself.",
       .scenario = scenario_text({.batch = "lengths = [64]", .parallel = striped}),
       .blind = BlindScenario{scenario_text({.attention = "attn_mask_type = \"no_mask\"",
                                             .batch = "lengths = [64]",
                                             .parallel = striped}),
                              "without a causal mask there is no diagonal"},
       .plant = plant_missing_diagonal},
      {.name = "future_token_visible",
       .field_class = "18",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "arXiv:2311.09431",
       .wild = "The other way round, <= on stripes of later ranks shows each row one future token.",
       .scenario = scenario_text({.batch = "lengths = [64]", .parallel = striped}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64]", .parallel = "cp_size = 1"}),
                              "one rank has no stripes of others"},
       .plant = plant_future_token},
      {.name = "chunks_inside_a_half_joined",
       .field_class = "D6",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "NVIDIA/TransformerEngine PR#1887",
       .wild = "The chunked diagonal emitted all complete chunks inside a half as one block; the "
               "PR's own test had too few of them to show it.",
       .scenario = scenario_text(
           {.attention = "chunk_size = 4", .batch = "lengths = [64]", .parallel = "cp_size = 2"}),
       .blind = BlindScenario{scenario_text({.attention = "chunk_size = 16",
                                             .batch = "lengths = [64]",
                                             .parallel = "cp_size = 2"}),
                              "a half holds no two complete inner chunks"},
       .plant = plant_joined_chunks,
       .cause = "chunks_joined"},
      {.name = "chunks_cut_by_local_place",
       .field_class = "46",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "AI-Hypercomputer/maxtext PR#4364",
       .wild = "Under a balanced split, the masks of chunks and windows compared places in the "
               "reordered sequence instead of positions.",
       .scenario = scenario_text(
           {.attention = "chunk_size = 8", .batch = "lengths = [64]", .parallel = "cp_size = 2"}),
       .blind = BlindScenario{scenario_text({.attention = "chunk_size = 8",
                                             .batch = "lengths = [64]",
                                             .parallel = "cp_size = 1"}),
                              "on one rank places are positions"},
       .plant = plant_local_chunks},
      {.name = "causal_halves_without_a_causal_mask",
       .field_class = "32",
       .place = FaultPlace::plan,
       .detector = Detector::count,
       .source = "pytorch/pytorch#141429",
       .wild = "Load balancing for causal masks was used without one: half of the remote keys were "
               "never looked at, or the backward read out of bounds.",
       .scenario =
           scenario_text({.attention = "attn_mask_type = \"no_mask\"", .batch = "lengths = [64]"}),
       .blind = BlindScenario{scenario_text({.batch = "lengths = [64]"}),
                              "under a causal mask the halves are hidden anyway"},
       .plant = plant_causal_halves},
  };
}

}  // namespace cpscope
