#pragma once

#include "sim/plan/batch_slots.h"
#include "sim/plan/item_event.h"

#include <array>
#include <cstdint>
#include <variant>

namespace cpscope::gui {

/// All kinds of items, in the order of StageKind.
inline constexpr std::array kStageKinds = {StageKind::transfer, StageKind::reorder,
                                           StageKind::compute, StageKind::merge, StageKind::finish};

struct Nothing {
  friend bool operator==(const Nothing&, const Nothing&) = default;
};

/// Packed padded token ids [begin, end).
struct TokenRange {
  Side side = Side::q;
  int64_t begin = 0, end = 0;
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

/// Query ids x key ids.
struct PairRange {
  int64_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
  friend bool operator==(const PairRange&, const PairRange&) = default;
};

struct RankTarget {
  int32_t rank = 0;
  friend bool operator==(const RankTarget&, const RankTarget&) = default;
};

/// All transfers from one rank to another.
struct LinkTarget {
  int32_t src = 0, dst = 0;
  friend bool operator==(const LinkTarget&, const LinkTarget&) = default;
};

/// A step of the schedule: index in PlanIndex::steps.
struct StepTarget {
  int32_t step = 0;
  friend bool operator==(const StepTarget&, const StepTarget&) = default;
};

/// One row of a result: tensor out | lse | dq | dk | dv, packed padded token, head.
struct RowTarget {
  int32_t tensor = 0;  // index in kErrorTensors (gui/model/error_field.h)
  int64_t token = 0;
  int32_t head = 0;
  friend bool operator==(const RowTarget&, const RowTarget&) = default;
};

/// An object that the user can select or hover over: ids that stay valid when seeking, when
/// switching between runs, and when replanning if they still exist.
using Target = std::variant<Nothing, TokenRange, PairRange, RankTarget, LinkTarget, ItemId,
                            StepTarget, RowTarget>;

}  // namespace cpscope::gui
