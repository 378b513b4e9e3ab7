#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/target.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cpscope::gui {

// The same wording for every text that names a target: tooltips, history, search, inspector.
// Tokens, ranks, heads and items count from 0, steps of a pass from 1 ("Step 3 of 7").

/// A short name for use inside a sentence: "tokens [128, 256) of queries", "forward compute 12",
/// "rank 3", "link 1 -> 2", "out[token 17, head 2]", "step 3 of 7, forward". Works for any target,
/// also one that the plan does not have; the plan may be null.
std::string name_target(const Target& target, const PlanIndex* plan);

/// One line with figures for a tooltip: "Forward compute 12: rank 3, step 2 of 8, 16 640 pairs".
/// Requires a target that the plan has. Fast enough for every frame: O(log n), plus at most 100 000
/// runs for a token range.
std::string describe_target(const Target& target, const PlanIndex& plan);

/// Makes the first letter a capital, unless the text begins with the name of a tensor.
std::string capitalise(std::string text);

/// Prints "forward.compute.12", the name of an item in records, and parses it.
std::string print_item(const ItemId& item);
std::optional<ItemId> parse_item(std::string_view text);

/// "1 token", "64 tokens", "131 072 queries", "8 finishes". `noun` is the singular.
std::string count_text(int64_t count, std::string_view noun);
/// "4.26 MFLOP".
std::string print_flops(double flops);
/// "50.4 % of 16 384".
std::string share_text(int64_t part, int64_t whole);

/// The round of cp_sizes to which a step belongs by what it computes; -1 if there is none.
int32_t round_of_step(const PlanIndex& index, const StepRef& step);

/// The round of cp_sizes whose step the moment is; null without rounds.
const CpRound* round_at(const PlanIndex& index, Moment moment);
/// "round 2 of 2, groups of ranks: 0 to 1, 2 to 3, 4, 5"; at most 12 groups are named.
std::string name_round(const Layout& layout, const CpRound& round);
/// "round 2 of 2: ranks 0 to 3 share sequences 1, 4"; at most 8 sequences are named.
std::string describe_group(const Layout& layout, const CpRound& round, const CpGroup& group);
/// "Mask: ..., round 2 of 2" at a moment of a plan with rounds; else the title as it is.
std::string with_round(const std::string& title, const PlanIndex& index, Moment moment);

/// The ranks, stage and step of an item.
struct ItemFacts {
  int32_t rank = 0;         // the rank that works; transfers: the sender
  int32_t other_rank = -1;  // transfers: the receiver
  int32_t stage = 0;        // index in PlanIndex::stages
  int32_t step = 0;         // index in PlanIndex::steps
  HeadRange heads;
};
/// Requires an item that the plan has.
ItemFacts facts_of(const PlanIndex& plan, const ItemId& item);
/// The heads that an item works on. Requires an item that the plan has.
HeadRange heads_of(const PlanIndex& plan, const ItemId& item);

/// Bytes that transfers of one payload send.
struct WireBytes {
  Payload payload{};
  int64_t copies = 1;  // transfers of `rows` each
  int64_t rows = 0;
  int32_t heads = 0;
  int64_t element = 0;  // bytes
  int64_t bytes = 0;    // all together
};
/// "3 x 724 tokens x 1 head x head_dim 32 x 2 tensors x 2 bytes = 135.8 KiB".
std::string bytes_formula(const Plan& plan, const WireBytes& wire);

/// Floating-point operations of an item's visible pairs: two for each multiply-add. Forward q k^T
/// and p v; backward q k^T again, dO v^T, dq, dk and dv (FlashAttention-2's count).
double flops_of(const PlanIndex& plan, Direction direction, int64_t pairs);
/// The formula with its numbers: "4 x 16 640 pairs x head_dim 64".
std::string flops_formula(const PlanIndex& plan, Direction direction, int64_t pairs);
/// "4 x 16 640 pairs x head_dim 64 = 4.26 MFLOP".
std::string flops_equation(const PlanIndex& plan, Direction direction, int64_t pairs);

}  // namespace cpscope::gui
