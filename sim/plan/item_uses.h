#pragma once

#include "sim/plan/plan.h"

#include <limits>
#include <vector>

/// The buffers that the items of a plan read and write.
namespace cpscope {

/// Some heads of a buffer, numbered in the whole attention; all heads of the buffer if none are
/// named.
struct BufferPart {
  BufferId buffer = kNoBuffer;
  HeadRange heads{0, std::numeric_limits<int32_t>::max()};

  BufferPart(BufferId id) : buffer(id) {}  // NOLINT: a whole buffer converts to a part
  BufferPart(BufferId id, HeadRange part) : buffer(id), heads(part) {}
};

/// The buffers that an item reads, and those that it writes.
struct BufferUse {
  std::vector<BufferPart> reads, writes;
};

/// The buffers that an item of each kind touches. An idle compute touches none.
BufferUse uses_of(const Plan& plan, const ComputeItem& item, bool is_backward);
BufferUse uses_of(const TransferItem& item);
BufferUse uses_of(const ReorderItem& item);
BufferUse uses_of(const MergeItem& item);
BufferUse uses_of(const FinishItem& item);

}  // namespace cpscope
