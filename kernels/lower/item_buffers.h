#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <cstddef>
#include <span>

namespace cpscope::kernels {

// The buffers that an item names (kNoBuffer for those it lacks), and their rows.

inline std::array<BufferId, 2> buffers_of(const TransferItem& item) { return {item.from, item.to}; }
inline std::array<BufferId, 2> buffers_of(const ReorderItem& item) { return {item.from, item.to}; }
inline std::array<BufferId, 6> buffers_of(const ComputeItem& item) {
  return {item.q, item.kv, item.out, item.d_out, item.dq, item.dkv};
}
inline std::array<BufferId, 2> buffers_of(const MergeItem& item) {
  return {item.partial, item.into};
}
inline std::array<BufferId, 1> buffers_of(const FinishItem& item) { return {item.buffer}; }
inline std::array<BufferId, 6> buffers_of(const HomeBuffers& home) {
  return {home.q, home.kv, home.out, home.d_out, home.dq, home.dkv};
}

/// Index of a buffer in an array of all buffers of a plan.
inline size_t place_of(BufferId id) { return static_cast<size_t>(to_index(id)); }

/// Rows of a list, or all of them as one run, which is stored in `all`.
inline std::span<const TokenRun> runs_of_rows(const Plan& plan, RunListId list,
                                              const TokenRun& all) {
  return list == kAllRows ? std::span(&all, 1) : plan.list(list);
}

template <class Item, class Visit>
void visit_buffers(const Item& item, Visit visit) {
  for (const BufferId id : buffers_of(item)) {
    if (id != kNoBuffer) visit(id);
  }
}

/// Calls visit(id) for the buffers of an item of a pass.
template <class Visit>
void visit_buffers(const Pass& pass, StageKind kind, size_t item, Visit visit) {
  switch (kind) {
    case StageKind::transfer:
      return visit_buffers(pass.transfers[item], visit);
    case StageKind::reorder:
      return visit_buffers(pass.reorders[item], visit);
    case StageKind::compute:
      return visit_buffers(pass.computes[item], visit);
    case StageKind::merge:
      return visit_buffers(pass.merges[item], visit);
    case StageKind::finish:
      return visit_buffers(pass.finishes[item], visit);
  }
}

}  // namespace cpscope::kernels
