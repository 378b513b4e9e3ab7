#pragma once

#include "gui/model/plan_index.h"
#include "gui/model/target.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace cpscope::gui {

// The words for what an item does: captions, inspector, tooltips, search and views take them from
// here, so that they say the same.

/// The rows of a buffer or of a transfer: "queries", "keys and values", "dK and dV".
std::string_view name_rows(BufferKind kind);
std::string_view name_rows(Payload payload);
/// "head 3" or "KV heads [4, 8)".
std::string name_heads(HeadRange heads, Side side);
/// "forward step 3"; `step` is an index in PlanIndex::steps.
std::string name_step(const PlanIndex& plan, int32_t step);
/// "stage 2 of 4": the place of a stage in its step.
std::string name_stage(const PlanIndex& plan, int32_t stage);

/// The rows of a buffer by its purpose: "own rows in local order".
std::string_view describe_role(BufferRole role);
/// "merged by": what the items of a kind did to rows that a later item reads.
std::string_view made_by(StageKind kind);
/// "taken by": what the items of a kind do with rows that an earlier item wrote.
std::string_view used_by(StageKind kind);

/// The amount of an item's work: "kv 16 KiB", "8 320 pairs", "idle: no key is visible". Empty for
/// kinds whose work is named by their rows alone.
std::string describe_amount(const Plan& plan, const ItemId& item);
/// "the sink enters each row's softmax, once, and sums are rounded to bf16".
std::string describe_finish(const Plan& plan, const FinishItem& item);
/// "kv 48 KiB, dkv 96 KiB"; empty if nothing is sent.
std::string describe_payloads(const std::array<int64_t, kPayloads>& bytes);  // [Payload]

}  // namespace cpscope::gui
