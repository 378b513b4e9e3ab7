#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace cpscope {

/// Up to four buffers; kNoBuffer where there are fewer.
using ItemBuffers = std::array<BufferId, 4>;

/// What an item reads.
inline ItemBuffers buffers_read(const Pass& pass, StageKind kind, int64_t index) {
  const auto i = static_cast<size_t>(index);
  switch (kind) {
    case StageKind::transfer:
      return {pass.transfers[i].from, kNoBuffer, kNoBuffer, kNoBuffer};
    case StageKind::reorder:
      return {pass.reorders[i].from, kNoBuffer, kNoBuffer, kNoBuffer};
    case StageKind::compute: {
      const ComputeItem& item = pass.computes[i];
      const bool is_backward = item.d_out != kNoBuffer;
      return {item.q, item.kv, is_backward ? item.out : kNoBuffer, item.d_out};
    }
    case StageKind::merge:
      return {pass.merges[i].partial, pass.merges[i].into, kNoBuffer, kNoBuffer};
    case StageKind::finish:
      return {pass.finishes[i].buffer, kNoBuffer, kNoBuffer, kNoBuffer};
  }
  return {kNoBuffer, kNoBuffer, kNoBuffer, kNoBuffer};
}

/// What an item writes.
inline ItemBuffers buffers_written(const Pass& pass, StageKind kind, int64_t index) {
  const auto i = static_cast<size_t>(index);
  switch (kind) {
    case StageKind::transfer:
      return {pass.transfers[i].to, kNoBuffer, kNoBuffer, kNoBuffer};
    case StageKind::reorder:
      return {pass.reorders[i].to, kNoBuffer, kNoBuffer, kNoBuffer};
    case StageKind::compute: {
      const ComputeItem& item = pass.computes[i];
      if (item.d_out == kNoBuffer) return {item.out, kNoBuffer, kNoBuffer, kNoBuffer};
      return {item.dq, item.dkv, kNoBuffer, kNoBuffer};
    }
    case StageKind::merge:
      return {pass.merges[i].into, kNoBuffer, kNoBuffer, kNoBuffer};
    case StageKind::finish:
      return {pass.finishes[i].buffer, kNoBuffer, kNoBuffer, kNoBuffer};
  }
  return {kNoBuffer, kNoBuffer, kNoBuffer, kNoBuffer};
}

}  // namespace cpscope
