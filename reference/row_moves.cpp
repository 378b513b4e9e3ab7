#include "reference/row_moves.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <span>

namespace cpscope::reference {

LaneCounts lane_counts(BufferKind kind, const Attention& attention) {
  switch (kind) {
    case BufferKind::q:
    case BufferKind::dq:
      return {attention.head_dim_qk, 0};
    case BufferKind::d_out:
      return {attention.head_dim_v, 0};
    case BufferKind::kv:
    case BufferKind::dkv:
      return {attention.key_dim(), attention.own_head_dim_v()};
    case BufferKind::out:
      return {attention.head_dim_v, 1};
    case BufferKind::stats:
      return {1, 1};
  }
  return {};
}

int64_t memory_bytes(const Plan& plan, int64_t element) {
  int64_t total = 0;
  for (const BufferSpec& spec : plan.buffers) {
    const LaneCounts lanes = lane_counts(spec.kind, plan.scenario.attention);
    total += spec.rows * spec.heads.size() * (lanes.first + lanes.second) * element;
  }
  return total;
}

namespace {

/// Calls visit(index in the list, row) for every row of a row list; for rows 0 .. all_rows-1 when
/// the list is kAllRows.
template <class Visit>
void for_each_row(const Plan& plan, RunListId list, int64_t all_rows, Visit visit) {
  if (list == kAllRows) {
    for (int64_t row = 0; row < all_rows; ++row) visit(row, row);
    return;
  }
  int64_t index = 0;
  for (const TokenRun& run : plan.list(list)) {
    for (int64_t row = run.begin; row < run.end; row += run.stride) visit(index++, row);
  }
}

/// True if the wire rounds sums to the dtype. Rows that stay on the rank are not rounded; finished
/// rows are in the dtype already.
bool rounds_sums(const TransferItem& item) {
  const bool is_sum = item.payload == Payload::dkv || item.payload == Payload::dq ||
                      item.payload == Payload::partial || item.landing == Landing::add;
  return is_sum && item.link != LinkClass::self && !item.wire_fp32;
}

template <class T>
void move_lanes(const Numerics& numerics, const TransferItem& item, bool rounds, const T* from,
                T* to, int64_t lanes) {
  if (!rounds && item.landing == Landing::replace) {
    std::copy_n(from, lanes, to);
    return;
  }
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const T value = rounds ? round_to(numerics.dtype, from[lane]) : from[lane];
    if (item.landing == Landing::replace) {
      to[lane] = value;
    } else if (item.payload == Payload::out && !item.wire_fp32) {
      // A reduce-scatter adds in the format of the wire.
      to[lane] = round_to(numerics.dtype, to[lane] + value);
    } else {
      to[lane] = round_sum(numerics, to[lane] + value);
    }
  }
}

/// One array of a transfer's buffers, with `width` elements per head.
template <class T>
void move_array(const Plan& plan, const TransferItem& item, std::span<const int64_t> targets,
                bool rounds, const AlignedVector<T>& source, AlignedVector<T>& target,
                int64_t width) {
  if (width == 0) return;
  const BufferSpec &from = plan.buffer(item.from), &to = plan.buffer(item.to);
  // The item's heads are contiguous in a row of either buffer.
  const int64_t lanes = item.heads.size() * width;
  const int64_t from_row = from.heads.size() * width, to_row = to.heads.size() * width;
  const T* first_from = source.data() + (item.heads.begin - from.heads.begin) * width;
  T* first_to = target.data() + (item.heads.begin - to.heads.begin) * width;
  for_each_row(plan, item.from_rows, static_cast<int64_t>(targets.size()),
               [&](int64_t index, int64_t row) {
                 move_lanes(plan.scenario.numerics, item, rounds, first_from + row * from_row,
                            first_to + targets[index] * to_row, lanes);
               });
}

}  // namespace

template <class T>
T round_sum(const Numerics& numerics, T value) {
  return numerics.accumulate == Accumulate::dtype ? round_to(numerics.dtype, value) : value;
}

template <class T>
void move_rows(const Plan& plan, const TransferItem& item, RankMemory<T>& memory) {
  const BufferSpec& from = plan.buffer(item.from);
  const LaneCounts lanes = lane_counts(from.kind, plan.scenario.attention);
  const int64_t rows = plan.rows_of(item);
  std::vector<int64_t> targets(static_cast<size_t>(rows));
  for_each_row(plan, item.to_rows, rows, [&](int64_t index, int64_t row) { targets[index] = row; });
  const bool rounds = rounds_sums(item);
  if (item.payload == Payload::lse)
    return move_array(plan, item, targets, false, memory.at(item.from).second,
                      memory.at(item.to).second, 1);
  if (item.payload == Payload::out && item.landing == Landing::add) {
    move_array(plan, item, targets, rounds, memory.at(item.from).first, memory.at(item.to).first,
               lanes.first);
    // Every rank has the same lse: the owner of the rows takes its own.
    TransferItem own = item;
    own.landing = Landing::replace;
    if (item.src == item.dst)
      move_array(plan, own, targets, false, memory.at(item.from).second, memory.at(item.to).second,
                 lanes.second);
    return;
  }
  move_array(plan, item, targets, rounds, memory.at(item.from).first, memory.at(item.to).first,
             lanes.first);
  // The lse beside o is never rounded.
  move_array(plan, item, targets, rounds && from.kind != BufferKind::out,
             memory.at(item.from).second, memory.at(item.to).second, lanes.second);
}

template <class T>
void gather_rows(const Plan& plan, const ReorderItem& item, RankMemory<T>& memory) {
  const BufferSpec& to = plan.buffer(item.to);
  const LaneCounts lanes = lane_counts(to.kind, plan.scenario.attention);
  const auto gather = [&](const AlignedVector<T>& from, AlignedVector<T>& target, int64_t width) {
    if (width == 0) return;
    for_each_row(plan, item.order, to.rows, [&](int64_t index, int64_t row) {
      std::copy_n(from.data() + row * width, width, target.data() + index * width);
    });
  };
  gather(memory.at(item.from).first, memory.at(item.to).first,
         int64_t{to.heads.size()} * lanes.first);
  gather(memory.at(item.from).second, memory.at(item.to).second,
         int64_t{to.heads.size()} * lanes.second);
}

template <class T>
void scatter_to_tokens(const Plan& plan, BufferId id, RunListId tokens, bool second,
                       int32_t all_heads, const RankMemory<T>& memory, Tensor& tensor) {
  const BufferSpec& spec = plan.buffer(id);
  const LaneCounts counts = lane_counts(spec.kind, plan.scenario.attention);
  const int32_t lanes = second ? counts.second : counts.first;
  const AlignedVector<T>& data = second ? memory.at(id).second : memory.at(id).first;
  for_each_row(plan, tokens, 0, [&](int64_t row, int64_t token) {
    for (int32_t head = spec.heads.begin; head < spec.heads.end; ++head) {
      const T* source = data.data() + (row * spec.heads.size() + head - spec.heads.begin) * lanes;
      double* target = tensor.values.data() + (token * all_heads + head) * lanes;
      for (int32_t lane = 0; lane < lanes; ++lane) target[lane] = static_cast<double>(source[lane]);
    }
  });
}

template float round_sum(const Numerics&, float);
template double round_sum(const Numerics&, double);
template void move_rows(const Plan&, const TransferItem&, RankMemory<float>&);
template void move_rows(const Plan&, const TransferItem&, RankMemory<double>&);
template void gather_rows(const Plan&, const ReorderItem&, RankMemory<float>&);
template void gather_rows(const Plan&, const ReorderItem&, RankMemory<double>&);
template void scatter_to_tokens(const Plan&, BufferId, RunListId, bool, int32_t,
                                const RankMemory<float>&, Tensor&);
template void scatter_to_tokens(const Plan&, BufferId, RunListId, bool, int32_t,
                                const RankMemory<double>&, Tensor&);

}  // namespace cpscope::reference
