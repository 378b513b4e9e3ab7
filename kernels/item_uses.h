#pragma once

#include "kernels/buffer_hazards.h"

namespace cpscope::kernels {

/// The buffers that an item of each kind touches. An idle compute touches none.
BufferUse uses_of(const Plan& plan, const ComputeItem& item, bool is_backward);
BufferUse uses_of(const TransferItem& item);
BufferUse uses_of(const ReorderItem& item);
BufferUse uses_of(const MergeItem& item);
BufferUse uses_of(const FinishItem& item);

}  // namespace cpscope::kernels
