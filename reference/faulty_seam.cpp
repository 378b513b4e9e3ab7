#include "reference/faulty_seam.h"

#include "reference/online_softmax.h"
#include "sim/plan/band.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace cpscope::reference {
namespace {

/// FNV-1a over the bytes of some values.
template <class T>
uint64_t mix(uint64_t hash, const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, values + i, sizeof(T));
    hash = (hash ^ bits) * 0x100000001b3ull;
  }
  return hash;
}

}  // namespace

template <class T>
FaultySeam<T>::FaultySeam(const WalkParts<T>& parts, const Setup& setup)
    : parts_(parts), walk_(*setup.walk) {}

template <class T>
bool FaultySeam<T>::makes(Mistake mistake, RankId rank, StepId step) const {
  return makes(mistake) && walk_.fault->happens_at(rank, step);
}

template <class T>
bool FaultySeam<T>::makes(Mistake mistake) const {
  return walk_.fault && walk_.fault->mistake() == mistake;
}

template <class T>
void FaultySeam<T>::after_load() {
  for (const HomeBuffers& home : parts_.plan.home)
    fresh_out_[home.out] = parts_.memory.at(home.out);
  if (makes(Mistake::local_positions) || makes(Mistake::second_half_follows_on) ||
      makes(Mistake::positions_of_all_ranks))
    rotate_by_wrong_positions();
  if (makes(Mistake::heads_in_stage_order)) load_heads_of_stages();
  if (!parts_.plan.scenario.numerics.fp8) record_load();
}

template <class T>
void FaultySeam<T>::record_load() {
  record_frame(Direction::forward, -1, StepId{0}, StageKind::transfer);
}

template <class T>
void FaultySeam<T>::change_rules(QuantisedRules& rules) {
  if (makes(Mistake::fp8_receivers_scale))
    rules.ranks_with_one_scale = parts_.plan.scenario.parallel.a2a_size;
  if (makes(Mistake::fp8_weights_unscaled)) rules.weights = rules.weights_back = 1;
  rules.sums_rounded_weights = makes(Mistake::fp8_rounded_weights_summed);
  rules.reads_values_with_key_scales = makes(Mistake::fp8_key_scales_of_values);
  rules.blocks_cross_documents = makes(Mistake::fp8_blocks_cross_documents);
  if (makes(Mistake::fp8_gradients_in_e4m3)) {
    rules.gradients = Fp8Type::e4m3;
    rules.d_logits = scale_for(rules.gradients, static_cast<float>(parts_.inputs.fp8.d_logits));
  }
}

template <class T>
void FaultySeam<T>::after_quantising(const QuantisedRules& rules) {
  descales_ = rules.descales;
  record_load();
}

template <class T>
void FaultySeam<T>::before_stage(const Pass& pass, const Stage& stage, Direction direction) {
  if (stage.kind != StageKind::compute) return;
  before_.clear();
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    const ComputeItem& item = pass.computes[i];
    if (direction == Direction::backward) {
      if (makes(Mistake::own_lse_in_backward, item.rank, item.step)) exchange_lse(item);
    } else {
      before_.push_back(parts_.memory.at(item.out));
    }
  }
}

template <class T>
void FaultySeam<T>::after_stage(const Pass& pass, const Stage& stage, Direction direction) {
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    if (stage.kind == StageKind::compute) {
      const ComputeItem& item = pass.computes[i];
      if (direction == Direction::backward) {
        if (makes(Mistake::own_lse_in_backward, item.rank, item.step)) exchange_lse(item);
        continue;
      }
      if (item.num_slices == 0) continue;
      restore_untouched(item, before_[static_cast<size_t>(i - stage.begin)]);
      spoil_partial(item);
    } else if (stage.kind == StageKind::finish) {
      spoil_finished(pass.finishes[i]);
    }
  }
  const auto index = static_cast<int64_t>(&stage - pass.stages.data());
  record_work(pass, stage, direction);
  record_frame(direction, index, stage.step, stage.kind);
}

template <class T>
int32_t FaultySeam<T>::kv_head_of(int32_t head) const {
  if (makes(Mistake::kv_head_modulo)) return head % attention().kv_heads;
  return head / (attention().heads / attention().kv_heads);
}

template <class T>
LatentSum<T> FaultySeam<T>::latent_sum(const ComputeItem& item) const {
  LatentSum<T> sum;
  if (makes(Mistake::latent_dv_lost, item.rank, item.step)) sum.times = T(0);
  if (makes(Mistake::latent_dv_misplaced, item.rank, item.step))
    sum.first = attention().head_dim_qk - attention().latent_dim;
  return sum;
}

template <class T>
int32_t FaultySeam<T>::weights_head_of(const ComputeItem& item, int32_t head) const {
  const bool is_local = makes(Mistake::latent_weights_by_local_head, item.rank, item.step);
  return is_local ? head - item.heads.begin : head;
}

template <class T>
void FaultySeam<T>::after_run(Answer& answer) {
  if (makes(Mistake::heads_in_stage_order)) return_heads_of_stages(answer);
  if (!makes(Mistake::sink_gradient_summed)) return;
  for (double& value : answer.d_sink) value *= parts_.plan.layout.cp_size;
}

/// Rows that no tile has written keep their old content.
template <class T>
void FaultySeam<T>::restore_untouched(const ComputeItem& item, const BufferMemory<T>& before) {
  if (!makes(Mistake::lse_not_cleared, item.rank, item.step)) return;
  BufferMemory<T>& partial = parts_.memory.at(item.out);
  for (size_t i = 0; i < partial.second.size(); ++i) {
    if (partial.second[i] == kNothing<T>) partial.second[i] = before.second[i];
  }
}

template <class T>
void FaultySeam<T>::spoil_partial(const ComputeItem& item) {
  BufferMemory<T>& partial = parts_.memory.at(item.out);
  const BufferSpec& spec = parts_.plan.buffer(item.out);
  tile_lse_[{item.rank, item.kv_tokens}] = partial.second;
  if (makes(Mistake::all_zero, item.rank, item.step))
    std::fill(partial.first.begin(), partial.first.end(), T(0));
  if (makes(Mistake::lse_transposed, item.rank, item.step)) {
    const AlignedVector<T> written = partial.second;
    const int64_t heads = spec.heads.size();
    for (int64_t row = 0; row < spec.rows; ++row) {
      for (int64_t head = 0; head < heads; ++head)
        partial.second[row * heads + head] = written[head * spec.rows + row];
    }
  }
  if (makes(Mistake::sink_in_every_partial, item.rank, item.step)) {
    const int64_t lanes = attention().head_dim_v;
    for (int64_t i = 0; i < cells(spec); ++i) {
      if (partial.second[i] == kNothing<T>) continue;
      const auto head = spec.heads.begin + static_cast<int32_t>(i % spec.heads.size());
      const T whole = log_sum_exp(partial.second[i], parts_.merger.sink_of(head));
      const T weight = std::exp(partial.second[i] - whole);
      for (int64_t lane = 0; lane < lanes; ++lane) partial.first[i * lanes + lane] *= weight;
      partial.second[i] = whole;
    }
  }
}

/// Exchanges the lse of the whole row and the lse of the forward tile; a second call undoes it.
template <class T>
void FaultySeam<T>::exchange_lse(const ComputeItem& item) {
  const auto found = tile_lse_.find({item.rank, item.kv_tokens});
  if (found != tile_lse_.end() && item.num_slices > 0)
    std::swap(parts_.memory.at(item.out).second, found->second);
}

template <class T>
bool FaultySeam<T>::replaces(const MergeItem& item) {
  const BufferKind kind = parts_.plan.buffer(item.into).kind;
  const auto round_after = [&](AlignedVector<T>& sum) {
    parts_.merger.merge(item);
    round_rows(Dtype::bf16, std::span<T>(sum));
    return true;
  };
  if (kind == BufferKind::out && makes(Mistake::out_summed_in_16_bits, item.rank, item.step))
    return round_after(parts_.memory.at(item.into).first);
  if (kind == BufferKind::dq && makes(Mistake::dq_summed_in_16_bits, item.rank, item.step))
    return round_after(parts_.memory.at(item.into).first);
  const bool is_wrong = makes(Mistake::empty_merged_as_number, item.rank, item.step) ||
                        makes(Mistake::empty_merged_as_zero, item.rank, item.step) ||
                        makes(Mistake::merged_by_plain_exp, item.rank, item.step) ||
                        makes(Mistake::merged_by_lse_base_2, item.rank, item.step);
  if (kind != BufferKind::out || item.order == 0 || item.partial == kNoBuffer || !is_wrong)
    return false;
  merge_out_wrongly(item);
  return true;
}

/// Without the sink, or with one that was added before, only the rounding is left.
template <class T>
bool FaultySeam<T>::replaces(const FinishItem& item) {
  const bool has_no_sink = makes(Mistake::sink_left_out, item.rank, item.step) ||
                           makes(Mistake::sink_in_every_partial, item.rank, item.step);
  if (parts_.plan.buffer(item.buffer).kind != BufferKind::out || !has_no_sink) return false;
  round_rows(parts_.plan.scenario.numerics.dtype,
             std::span<T>(parts_.memory.at(item.buffer).first));
  return true;
}

template <class T>
void FaultySeam<T>::merge_out_wrongly(const MergeItem& item) {
  const bool is_plain = makes(Mistake::merged_by_plain_exp),
             is_zero = makes(Mistake::empty_merged_as_zero),
             is_other_base = makes(Mistake::merged_by_lse_base_2);
  BufferMemory<T>& into = parts_.memory.at(item.into);
  const BufferMemory<T>& partial = parts_.memory.at(item.partial);
  const int64_t lanes = attention().head_dim_v;
  for (int64_t i = 0; i < cells(parts_.plan.buffer(item.into)); ++i) {
    const T a = into.second[i],
            b = is_zero && partial.second[i] == kNothing<T> ? T(0) : partial.second[i];
    T whole = 0, old_weight = 0, new_weight = 0;
    if (is_plain) {
      // Without subtracting a maximum, exp overflows if a row's logits are large.
      const T sum = std::exp(a) + std::exp(b);
      whole = std::log(sum);
      old_weight = sum == T(0) ? T(0) : std::exp(a) / sum;
      new_weight = sum == T(0) ? T(0) : std::exp(b) / sum;
    } else if (is_other_base) {
      // The lse are kept to base 2, weighed by exp as if they were natural, and returned as natural
      // ones.
      const T unit = std::log(T(2));
      whole = log_sum_exp(a / unit, b / unit) * unit;
      old_weight = weight_of(a / unit, whole / unit);
      new_weight = weight_of(b / unit, whole / unit);
    } else {
      // Right for finite values; -inf - -inf is NaN.
      whole = std::max(a, b) + std::log1p(std::exp(std::min(a, b) - std::max(a, b)));
      old_weight = std::exp(a - whole);
      new_weight = std::exp(b - whole);
    }
    for (int64_t lane = 0; lane < lanes; ++lane) {
      T& value = into.first[i * lanes + lane];
      value = value * old_weight + partial.first[i * lanes + lane] * new_weight;
    }
    into.second[i] = whole;
  }
}

template <class T>
void FaultySeam<T>::spoil_finished(const FinishItem& item) {
  const BufferSpec& spec = parts_.plan.buffer(item.buffer);
  if (spec.kind != BufferKind::out) return;
  BufferMemory<T>& memory = parts_.memory.at(item.buffer);
  const int64_t lanes = attention().head_dim_v;
  const bool is_garbage = makes(Mistake::rows_not_cleared, item.rank, item.step),
             is_product = makes(Mistake::cleared_by_product, item.rank, item.step);
  const auto fresh = fresh_out_.find(item.buffer);
  for (int64_t i = 0; (is_garbage || is_product) && fresh != fresh_out_.end() && i < cells(spec);
       ++i) {
    if (memory.second[i] != kNothing<T>) continue;
    for (int64_t lane = i * lanes; lane < (i + 1) * lanes; ++lane)
      memory.first[lane] = fresh->second.first[lane] * (is_product ? T(0) : T(1));
  }
  if (makes(Mistake::one_row_off, item.rank, item.step)) {
    const int64_t row = (spec.rows / 2) * spec.heads.size();
    for (int64_t lane = row * lanes; lane < (row + 1) * lanes; ++lane)
      memory.first[lane] *= T(1.05);
  }
  if (makes(Mistake::value_lanes_shifted, item.rank, item.step)) {
    const int64_t shift = attention().head_dim_qk - lanes;
    for (int64_t i = 0; i < cells(spec); ++i) {
      T* row = memory.first.data() + i * lanes;
      for (int64_t lane = 0; lane < lanes; ++lane)
        row[lane] = lane + shift < lanes ? row[lane + shift] : T(0);
    }
  }
}

template <class T>
void FaultySeam<T>::record_frame(Direction direction, int64_t index, StepId step, StageKind kind) {
  if (walk_.trace == nullptr) return;
  StateFrame frame{direction, index, step, kind, {}};
  for (const BufferId id : parts_.plan.buffers.ids()) frame.rows.push_back(fingerprint(id));
  walk_.trace->frames.push_back(std::move(frame));
}

template <class T>
std::vector<uint64_t> FaultySeam<T>::fingerprint(BufferId id) const {
  const BufferSpec& spec = parts_.plan.buffer(id);
  const BufferMemory<T>& memory = parts_.memory.at(id);
  const LaneCounts lanes = lane_counts(spec.kind, attention());
  const int64_t first = int64_t{spec.heads.size()} * lanes.first,
                second = int64_t{spec.heads.size()} * lanes.second;
  std::vector<uint64_t> rows(static_cast<size_t>(spec.rows));
  for (int64_t row = 0; row < spec.rows; ++row) {
    const uint64_t hash = mix(0xcbf29ce484222325ull, memory.first.data() + row * first, first);
    rows[row] = mix(hash, memory.second.data() + row * second, second);
  }
  return rows;
}

template <class T>
void FaultySeam<T>::record_work(const Pass& pass, const Stage& stage, Direction direction) {
  if (walk_.trace == nullptr) return;
  const Plan& plan = parts_.plan;
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    ItemWork work{.item = {direction, stage.kind, i}, .step = stage.step};
    if (stage.kind == StageKind::transfer) {
      const TransferItem& item = pass.transfers[i];
      work.rank = item.src;
      work.peer = item.dst;
      work.payload = item.payload;
      work.bytes = wire_bytes(plan, item);
    } else if (stage.kind == StageKind::compute) {
      const ComputeItem& item = pass.computes[i];
      work.rank = item.rank;
      for (const BandSlice& slice : plan.slices_of(item))
        work.pairs += count_pairs(slice) * item.heads.size();
    } else {
      continue;
    }
    walk_.trace->work.push_back(work);
  }
}

template class FaultySeam<float>;
template class FaultySeam<double>;

}  // namespace cpscope::reference
