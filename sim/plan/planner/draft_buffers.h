#pragma once

#include "sim/base/id_vector.h"
#include "sim/plan/planner/plan_builder.h"

#include <cstdint>

namespace cpscope {

/// A buffer that a pass needs for some of its stages. Several share one real buffer if their times
/// do not overlap.
struct BufferNeed {
  RankId rank{};
  BufferKind kind{};
  BufferRole role{};
  RunListId tokens{};
  HeadRange heads;
  bool is_joint = false;  // filled part by part, so its buffer never holds other tokens
  bool is_hop = false;    // a sum on its way: its buffer never names tokens
  BufferId real = kNoBuffer;
  int32_t first = -1, last = -1;  // stages
};

/// Gives every need of a pass that has no real buffer one. The buffers of the pass's items are
/// needs. Needs of one rank, kind, role and range of heads share one in turn.
void give_buffers(PlanBuilder& builder, const Pass& pass, Direction direction,
                  IdVector<BufferId, BufferNeed>& needs);

}  // namespace cpscope
