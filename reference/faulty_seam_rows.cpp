#include "reference/faulty_seam.h"
#include "reference/rotate_row.h"
#include "reference/row_moves.h"
#include "sim/plan/token_run.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

namespace cpscope::reference {
namespace {

/// The number of a token's slot, and the token's position from the slot's first valid one.
struct SlotPlace {
  int64_t slot = -1;
  int64_t position = 0;
};

SlotPlace place_of(const BatchSlots& slots, int64_t token, Side side) {
  SlotPlace place{-1, token};
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SlotSide slot = slots.sequences[s].side(side);
    if (token >= slot.begin) place = {static_cast<int64_t>(s), token - slot.valid_begin()};
  }
  return place;
}

/// The rows of its buffer that a transfer writes.
std::vector<int64_t> rows_of_landing(const Plan& plan, const TransferItem& item) {
  if (item.to_rows != kAllRows) return expand(plan.list(item.to_rows));
  std::vector<int64_t> rows(static_cast<size_t>(plan.rows_of(item)));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

}  // namespace

template <class T>
void FaultySeam<T>::rotate_by_wrong_positions() {
  const Plan& plan = parts_.plan;
  for (const RankId rank : plan.home.ids()) {
    const HomeBuffers& home = plan.home[rank];
    if (!walk_.fault->happens_at(rank, StepId{0})) continue;
    rotate_side(parts_.inputs.q, rank, Side::q, parts_.memory.at(home.q).first);
    rotate_side(parts_.inputs.k, rank, Side::kv, parts_.memory.at(home.kv).first);
  }
}

template <class T>
int64_t FaultySeam<T>::wrong_position(RankId rank, int64_t rows, int64_t local,
                                      int64_t first) const {
  if (makes(Mistake::local_positions)) return local;
  if (makes(Mistake::second_half_follows_on)) return first + local;
  // Chunks r and 2P-1-r of a sequence that all P ranks would share.
  const int64_t chunk = rows / 2, place = to_index(rank);
  return local < chunk ? place * chunk + local
                       : (2 * parts_.plan.layout.cp_size - 1 - place) * chunk + local - chunk;
}

/// Loads one side of a rank again, rotated by wrong positions.
template <class T>
void FaultySeam<T>::rotate_side(const Tensor& tensor, RankId rank, Side side,
                                AlignedVector<T>& rows) {
  const Plan& plan = parts_.plan;
  const int64_t heads = tensor.shape[1], lanes = tensor.shape[2];
  const std::vector<int64_t> tokens = expand(plan.list(plan.lists(side)[rank]));
  std::map<int64_t, int64_t> rows_of_slot;
  for (const int64_t token : tokens) ++rows_of_slot[place_of(plan.layout.slots, token, side).slot];
  int64_t open_slot = -2, local = 0, first = 0, index = 0;
  for (const int64_t token : tokens) {
    const SlotPlace place = place_of(plan.layout.slots, token, side);
    if (place.slot != open_slot) {
      open_slot = place.slot;
      local = 0;
      first = place.position;
    }
    T* row = rows.data() + index * heads * lanes;
    const double* source = tensor.values.data() + token * heads * lanes;
    std::transform(source, source + heads * lanes, row,
                   [](double value) { return static_cast<T>(value); });
    const int32_t first_lane =
        side == Side::q ? attention().first_rotated_of_q() : attention().first_rotated_of_k();
    const int64_t position = wrong_position(rank, rows_of_slot[place.slot], local, first);
    for (int64_t head = 0; head < heads; ++head)
      rotate_row(attention().rope_theta, position, static_cast<int32_t>(lanes) - first_lane, +1.0,
                 row + head * lanes + first_lane);
    round_values(plan.scenario.numerics.dtype,
                 std::span<T>(row, static_cast<size_t>(heads * lanes)));
    ++local;
    ++index;
  }
}

template <class T>
bool FaultySeam<T>::replaces(const TransferItem& item) {
  if (item.payload == Payload::q && makes(Mistake::heads_transposed, item.dst, item.step)) {
    move_rows(parts_.plan, item, parts_.memory);
    transpose_landed_heads(item);
    return true;
  }
  if (item.payload == Payload::kv && makes(Mistake::first_kv_head_for_all, item.dst, item.step)) {
    move_first_kv_head(item);
    return true;
  }
  if (item.payload == Payload::dkv && item.link != LinkClass::self &&
      makes(Mistake::dkv_wire_in_16_bits, item.src, item.step)) {
    move_rows(parts_.plan, item, parts_.memory);
    BufferMemory<T>& landed = parts_.memory.at(item.to);
    round_rows(Dtype::bf16, std::span<T>(landed.first));
    round_rows(Dtype::bf16, std::span<T>(landed.second));
    return true;
  }
  if (item.payload == Payload::kv && item.link != LinkClass::self && !descales_.empty()) {
    const T sent = descales_[item.src], own = descales_[item.dst];
    T factor = 1;
    if (makes(Mistake::fp8_receivers_scale, item.dst, item.step)) factor = own / sent;
    // Rows that are sent on have been multiplied where they came from.
    const bool is_first_hop = parts_.plan.buffer(item.from).role == BufferRole::home;
    if (is_first_hop && makes(Mistake::fp8_scale_for_descale, item.dst, item.step))
      factor = 1 / (own * own);
    if (factor == T(1)) return false;
    move_rows(parts_.plan, item, parts_.memory);
    multiply_landed(item, factor);
    return true;
  }
  return false;
}

/// What has landed was stored in 8 bits and is multiplied with another number than its descale.
template <class T>
void FaultySeam<T>::multiply_landed(const TransferItem& item, T factor) {
  const BufferSpec& spec = parts_.plan.buffer(item.to);
  const LaneCounts lanes = lane_counts(spec.kind, attention());
  BufferMemory<T>& memory = parts_.memory.at(item.to);
  const std::vector<int64_t> rows = rows_of_landing(parts_.plan, item);
  const auto multiply = [&](AlignedVector<T>& values, int64_t width) {
    const int64_t first = (item.heads.begin - spec.heads.begin) * width,
                  count = item.heads.size() * width;
    for (const int64_t row : rows) {
      T* place = values.data() + row * spec.heads.size() * width + first;
      for (int64_t lane = 0; lane < count; ++lane) place[lane] *= factor;
    }
  };
  multiply(memory.first, lanes.first);
  multiply(memory.second, lanes.second);
}

/// The received block holds [row, head]; it is read as if it held [head, row].
template <class T>
void FaultySeam<T>::transpose_landed_heads(const TransferItem& item) {
  const BufferSpec& spec = parts_.plan.buffer(item.to);
  const int64_t lanes = lane_counts(spec.kind, attention()).first, heads = spec.heads.size();
  const std::vector<int64_t> rows = rows_of_landing(parts_.plan, item);
  AlignedVector<T>& memory = parts_.memory.at(item.to).first;
  const AlignedVector<T> landed = memory;
  const auto count = static_cast<int64_t>(rows.size());
  for (int64_t cell = 0; cell < count * heads; ++cell) {
    const int64_t read = (cell % count) * heads + cell / count;
    const int64_t from = rows[cell / heads] * heads + cell % heads;
    const int64_t to = rows[read / heads] * heads + read % heads;
    std::copy_n(landed.data() + from * lanes, lanes, memory.data() + to * lanes);
  }
}

/// The sender takes head 0 of K and V for every head that it sends.
template <class T>
void FaultySeam<T>::move_first_kv_head(const TransferItem& item) {
  const BufferSpec& spec = parts_.plan.buffer(item.from);
  BufferMemory<T>& source = parts_.memory.at(item.from);
  const BufferMemory<T> kept = source;
  const LaneCounts lanes = lane_counts(spec.kind, attention());
  const auto repeat = [&](AlignedVector<T>& rows, int64_t width) {
    for (int64_t row = 0; row < spec.rows; ++row) {
      T* head = rows.data() + row * spec.heads.size() * width;
      for (int64_t h = 1; h < spec.heads.size(); ++h) std::copy_n(head, width, head + h * width);
    }
  };
  repeat(source.first, lanes.first);
  repeat(source.second, lanes.second);
  move_rows(parts_.plan, item, parts_.memory);
  source = kept;
}

/// The query head in whose place head h is computed: stage s of rank r takes head s * P + r.
template <class T>
int32_t FaultySeam<T>::place_in_stages(int32_t head) const {
  const int32_t ranks = parts_.plan.layout.cp_size;
  return head % ranks * (attention().heads / ranks) + head / ranks;
}

template <class T>
void FaultySeam<T>::load_heads_of_stages() {
  for (const HomeBuffers& home : parts_.plan.home) {
    for (const BufferId id : {home.q, home.d_out}) {
      if (id == kNoBuffer) continue;
      const BufferSpec& spec = parts_.plan.buffer(id);
      const int64_t lanes = lane_counts(spec.kind, attention()).first, heads = spec.heads.size();
      AlignedVector<T>& rows = parts_.memory.at(id).first;
      const AlignedVector<T> given = rows;
      for (int64_t row = 0; row < spec.rows; ++row) {
        for (int32_t head = 0; head < heads; ++head)
          std::copy_n(given.data() + (row * heads + head) * lanes, lanes,
                      rows.data() + (row * heads + place_in_stages(head)) * lanes);
      }
    }
  }
}

template <class T>
void FaultySeam<T>::return_heads_of_stages(Answer& answer) const {
  const auto take = [&](std::vector<double>& values, int64_t rows, int64_t lanes) {
    const std::vector<double> computed = values;
    const int32_t heads = attention().heads;
    for (int64_t row = 0; row < rows; ++row) {
      for (int32_t head = 0; head < heads; ++head)
        std::copy_n(computed.data() + (row * heads + place_in_stages(head)) * lanes, lanes,
                    values.data() + (row * heads + head) * lanes);
    }
  };
  const int64_t tokens = answer.lse.shape[0];
  take(answer.out.values, tokens, attention().head_dim_v);
  take(answer.lse.values, tokens, 1);
  take(answer.max_logit, 1, 1);
  if (!answer.dq.values.empty()) take(answer.dq.values, tokens, attention().head_dim_qk);
  if (!answer.d_sink.empty()) take(answer.d_sink, 1, 1);
}

template void FaultySeam<float>::load_heads_of_stages();
template void FaultySeam<double>::load_heads_of_stages();
template void FaultySeam<float>::return_heads_of_stages(Answer&) const;
template void FaultySeam<double>::return_heads_of_stages(Answer&) const;
template void FaultySeam<float>::rotate_by_wrong_positions();
template void FaultySeam<double>::rotate_by_wrong_positions();
template bool FaultySeam<float>::replaces(const TransferItem&);
template bool FaultySeam<double>::replaces(const TransferItem&);

}  // namespace cpscope::reference
