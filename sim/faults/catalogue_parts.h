#pragma once

// Private to sim/faults: what the parts of the catalogue share.

#include "sim/faults/fault.h"

#include <string>
#include <vector>

namespace cpscope {

/// The four tables of a small scenario; what is left empty keeps the contract's defaults. Four
/// query heads on two kv heads, eight lanes, fp32, unless said otherwise.
struct SmallScenario {
  std::string attention = "";  // besides heads, kv_heads and head_dim
  std::string batch = "lengths = [61, 30, 97]";
  std::string parallel = "cp_size = 4";
  std::string numerics = "dtype = \"fp32\"";
  std::string heads = "heads = 4\nkv_heads = 2\nhead_dim = 8";
};
std::string scenario_text(const SmallScenario& parts);

/// The faults of each kind, in catalogue order.
std::vector<Fault> movement_faults();   // plans: what travels where
std::vector<Fault> backward_faults();   // plans: gradients
std::vector<Fault> length_faults();     // lengths and settings that an executor is given
std::vector<Fault> mask_faults();       // plans: what is visible
std::vector<Fault> hand_over_faults();  // inputs: rows, orders, positions
std::vector<Fault> executor_faults();   // walker: a wrong computation
std::vector<Fault> message_faults();    // posts: who waits for whom

/// Shorthand of planters.
FaultSite forward_site(StageKind kind, RankId rank, StepId step, int64_t item);
FaultSite backward_site(StageKind kind, RankId rank, StepId step, int64_t item);

}  // namespace cpscope
