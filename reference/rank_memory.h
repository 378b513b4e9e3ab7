#pragma once

#include "reference/aligned_vector.h"
#include "sim/base/id_vector.h"
#include "sim/base/parallel.h"
#include "sim/plan/plan.h"

#include <cstdint>

namespace cpscope::reference {

/// Memory of one buffer. q, d_out, dq: `first` [rows, heads, head_dim]. kv, dkv: `first` K [rows,
/// heads, head_dim_qk], `second` V [rows, heads, head_dim_v], empty if V is a part of K. out:
/// `first` o [rows, heads, head_dim_v], `second` lse [rows, heads]. stats: `first` delta, `second`
/// lse, both [rows, heads].
template <class T>
struct BufferMemory {
  AlignedVector<T> first, second;
};

/// Elements of a head in the two arrays of a buffer; 0 if there is no second array.
struct LaneCounts {
  int32_t first = 0;
  int32_t second = 0;
};

LaneCounts lane_counts(BufferKind kind, const Attention& attention);

/// All ranks' memories, separate by construction: a BufferId belongs to one rank.
template <class T>
class RankMemory {
 public:
  explicit RankMemory(const Plan& plan) : plan_(plan), buffers_(plan.buffers.size()) {}

  /// Allocates every buffer, filled with `value`.
  void allocate(T value, int threads) {
    for_each_id(
        buffers_.ids(),
        [&](BufferId id) {
          const BufferSpec& spec = plan_.buffer(id);
          const LaneCounts lanes = lane_counts(spec.kind, plan_.scenario.attention);
          const size_t cells = static_cast<size_t>(spec.rows * spec.heads.size());
          buffers_[id].first.assign(cells * static_cast<size_t>(lanes.first), value);
          buffers_[id].second.assign(cells * static_cast<size_t>(lanes.second), value);
        },
        threads);
  }

  BufferMemory<T>& at(BufferId id) { return buffers_[id]; }
  const BufferMemory<T>& at(BufferId id) const { return buffers_[id]; }

 private:
  const Plan& plan_;
  IdVector<BufferId, BufferMemory<T>> buffers_;
};

/// Bytes of all buffers with elements of `element` bytes.
int64_t memory_bytes(const Plan& plan, int64_t element);

}  // namespace cpscope::reference
