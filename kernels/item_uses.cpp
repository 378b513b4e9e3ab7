#include "kernels/item_uses.h"

namespace cpscope::kernels {

BufferUse uses_of(const ComputeItem& item, bool is_backward) {
  if (item.num_slices == 0) return {};
  if (!is_backward) return {{item.q, item.kv}, {item.out}};
  return {{item.q, item.kv, item.out, item.d_out}, {item.dq, item.dkv}};
}

BufferUse uses_of(const TransferItem& item) { return {{item.from}, {item.to}}; }
BufferUse uses_of(const ReorderItem& item) { return {{item.from}, {item.to}}; }
BufferUse uses_of(const MergeItem& item) { return {{item.partial}, {item.into}}; }
BufferUse uses_of(const FinishItem& item) { return {{}, {item.buffer}}; }

}  // namespace cpscope::kernels
