#pragma once

// Private to sim/faults: declarations shared by the parts of the catalogue.

#include "sim/faults/fault.h"
#include "sim/plan/visit_items.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope {

/// The four tables of a small scenario; empty ones keep the contract's defaults. Unless given: four
/// query heads, two KV heads, head_dim 8, fp32.
struct SmallScenario {
  std::string attention = "";  // in addition to heads, kv_heads and head_dim
  std::string batch = "lengths = [61, 30, 97]";
  std::string parallel = "cp_size = 4";
  std::string numerics = "dtype = \"fp32\"";
  std::string heads = "heads = 4\nkv_heads = 2\nhead_dim = 8";
};
std::string scenario_text(const SmallScenario& parts);

/// The faults of each kind, in catalogue order.
std::vector<Fault> movement_faults();   // plans: transfers
std::vector<Fault> backward_faults();   // plans: gradients
std::vector<Fault> length_faults();     // lengths and settings given to an executor
std::vector<Fault> mask_faults();       // plans: visible pairs
std::vector<Fault> hand_over_faults();  // inputs: rows, orders, positions
std::vector<Fault> executor_faults();   // walker: a wrong computation
std::vector<Fault> message_faults();    // message order and matching
std::vector<Fault> partial_faults();    // plans: results that other ranks merge
std::vector<Fault> term_faults();       // walker: bias, ALiBi, dropout
std::vector<Fault> fp8_faults();        // dtype fp8: scales and casts
std::vector<Fault> group_faults();      // groups of cp_sizes, and decoders

/// Shares of all blocks that a rank computed with are added on that rank and stay there.
std::optional<PlantedFault> plant_dkv_summed_at_home(const Plan& healthy);

/// Rewrites the slices of one forward item.
using EditSlices = std::function<void(const ComputeItem&, std::vector<BandSlice>&)>;
/// Every forward item with its slices rewritten; the site is the first one that changed.
std::optional<PlantedFault> plant_slices(const Plan& healthy, std::string what,
                                         const EditSlices& edit);

/// Gives a fault that could be planted to the search, which says whether it takes more. True as
/// well where the plan has no such place.
inline bool offer(std::optional<PlantedFault> planted, const TakePlanted& take) {
  return !planted || take(*std::move(planted));
}

/// Calls take(one, other) for each pair of ranks, the lower one first, until it returns false.
template <class Take>
void for_each_pair(int32_t ranks, Take take) {
  for (int32_t one = 0; one < ranks; ++one) {
    for (int32_t other = one + 1; other < ranks; ++other)
      if (!take(RankId{one}, RankId{other})) return;
  }
}

/// Short form for planters.
FaultSite forward_site(StageKind kind, RankId rank, StepId step, int64_t item);
FaultSite backward_site(StageKind kind, RankId rank, StepId step, int64_t item);

/// A mistake whose first effect is in the forward item of this index.
template <class Item>
std::optional<PlantedFault> plant_at(const std::vector<Item>& items, std::optional<int64_t> index,
                                     StageKind kind, Mistake mistake, std::string what,
                                     MistakeSite where = {}) {
  if (!index) return std::nullopt;
  const Item& item = items[static_cast<size_t>(*index)];
  return PlantedFault{.site = forward_site(kind, target_rank_of(item), item.step, *index),
                      .what = std::move(what),
                      .mistake = plant_mistake(mistake, where)};
}

}  // namespace cpscope
