#pragma once

#include "sim/plan/plan.h"

#include <limits>
#include <vector>

/// What the items of a plan read and write.
namespace cpscope {

/// Some heads of a buffer, numbered in the whole attention; all that it has where none are named.
struct BufferPart {
  BufferId buffer = kNoBuffer;
  HeadRange heads{0, std::numeric_limits<int32_t>::max()};

  BufferPart(BufferId id) : buffer(id) {}  // NOLINT: a buffer is a part of itself
  BufferPart(BufferId id, HeadRange part) : buffer(id), heads(part) {}
};

/// What an item reads and what it writes.
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
