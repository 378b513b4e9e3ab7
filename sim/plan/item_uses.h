#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <limits>
#include <vector>

/// The buffers that the items of a plan read and write.
namespace cpscope {

// Every buffer that an item names: kNoBuffer where it lacks one.

inline std::array<BufferId, 2> buffers_of(const TransferItem& item) { return {item.from, item.to}; }
inline std::array<BufferId, 2> buffers_of(const ReorderItem& item) { return {item.from, item.to}; }
inline std::array<BufferId, 6> buffers_of(const ComputeItem& item) {
  return {item.q, item.kv, item.out, item.d_out, item.dq, item.dkv};
}
inline std::array<BufferId, 2> buffers_of(const MergeItem& item) {
  return {item.partial, item.into};
}
inline std::array<BufferId, 1> buffers_of(const FinishItem& item) { return {item.buffer}; }
inline std::array<BufferId, 8> buffers_of(const HomeBuffers& home) {
  return {home.q, home.kv, home.out, home.d_out, home.dq, home.dkv, home.stats, home.replica};
}

/// Calls visit(id) for every buffer that an item, or a rank's home, has.
template <class Item, class Visit>
void visit_buffers(const Item& item, Visit&& visit) {
  for (const BufferId id : buffers_of(item)) {
    if (id != kNoBuffer) visit(id);
  }
}

/// Calls visit(id) for every buffer whose content an item needs: its inputs, and what a merge or a
/// finish changes in place. An idle compute needs none.
template <class Visit>
void visit_reads(const TransferItem& item, Visit&& visit) {
  visit(item.from);
}
template <class Visit>
void visit_reads(const ReorderItem& item, Visit&& visit) {
  visit(item.from);
}
template <class Visit>
void visit_reads(const ComputeItem& item, Visit&& visit) {
  if (item.num_slices == 0) return;
  visit(item.q);
  visit(item.kv);
  if (item.d_out == kNoBuffer) return;
  visit(item.out);
  visit(item.d_out);
}
template <class Visit>
void visit_reads(const MergeItem& item, Visit&& visit) {
  if (item.partial != kNoBuffer) visit(item.partial);
  if (item.order > 0) visit(item.into);
}
template <class Visit>
void visit_reads(const FinishItem& item, Visit&& visit) {
  visit(item.buffer);
}

/// Calls visit(id) for every buffer that an item writes. An idle compute writes none.
template <class Visit>
void visit_writes(const TransferItem& item, Visit&& visit) {
  visit(item.to);
}
template <class Visit>
void visit_writes(const ReorderItem& item, Visit&& visit) {
  visit(item.to);
}
template <class Visit>
void visit_writes(const ComputeItem& item, Visit&& visit) {
  if (item.num_slices == 0) return;
  if (item.d_out == kNoBuffer) return visit(item.out);
  visit(item.dq);
  visit(item.dkv);
}
template <class Visit>
void visit_writes(const MergeItem& item, Visit&& visit) {
  visit(item.into);
}
template <class Visit>
void visit_writes(const FinishItem& item, Visit&& visit) {
  visit(item.buffer);
}

/// Some heads of a buffer, numbered in the whole attention; all heads of the buffer if none are
/// named.
struct BufferPart {
  BufferId buffer = kNoBuffer;
  HeadRange heads{0, std::numeric_limits<int32_t>::max()};

  BufferPart(BufferId id) : buffer(id) {}  // NOLINT: a whole buffer converts to a part
  BufferPart(BufferId id, HeadRange part) : buffer(id), heads(part) {}
};

/// The parts of buffers that an item only reads, and those that it writes.
struct BufferUse {
  std::vector<BufferPart> reads, writes;
};

/// The parts that an item of each kind touches. An idle compute touches none.
BufferUse uses_of(const Plan& plan, const ComputeItem& item);
BufferUse uses_of(const Plan& plan, const TransferItem& item);
BufferUse uses_of(const Plan& plan, const ReorderItem& item);
BufferUse uses_of(const Plan& plan, const MergeItem& item);
BufferUse uses_of(const Plan& plan, const FinishItem& item);

}  // namespace cpscope
