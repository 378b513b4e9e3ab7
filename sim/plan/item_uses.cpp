#include "sim/plan/item_uses.h"

namespace cpscope {

BufferUse uses_of(const Plan& plan, const ComputeItem& item) {
  if (item.num_slices == 0) return {};
  const HeadRange heads = item.heads;
  const HeadRange kv_heads = kv_heads_of(plan.scenario.attention, heads);
  if (item.d_out == kNoBuffer) return {{{item.q, heads}, {item.kv, kv_heads}}, {{item.out, heads}}};
  return {{{item.q, heads}, {item.kv, kv_heads}, {item.out, heads}, {item.d_out, heads}},
          {{item.dq, heads}, {item.dkv, kv_heads}}};
}

BufferUse uses_of(const Plan& /*plan*/, const TransferItem& item) {
  return {{{item.from, item.heads}}, {{item.to, item.heads}}};
}
BufferUse uses_of(const Plan& /*plan*/, const ReorderItem& item) {
  return {{item.from}, {item.to}};
}
BufferUse uses_of(const Plan& /*plan*/, const MergeItem& item) {
  return {{item.partial}, {item.into}};
}
BufferUse uses_of(const Plan& /*plan*/, const FinishItem& item) { return {{}, {item.buffer}}; }

}  // namespace cpscope
