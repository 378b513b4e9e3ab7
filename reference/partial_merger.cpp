#include "reference/partial_merger.h"

#include "reference/online_softmax.h"
#include "reference/round_rows.h"
#include "reference/row_moves.h"
#include "sim/base/check.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>

namespace cpscope::reference {
namespace {

int64_t cells(const BufferSpec& spec) { return spec.rows * spec.heads.size(); }

}  // namespace

template <class T>
PartialMerger<T>::PartialMerger(const Plan& plan, std::span<const double> sink,
                                RankMemory<T>& memory)
    : plan_(plan), sink_(sink), memory_(memory) {
  const Numerics& numerics = plan.scenario.numerics;
  keeps_partials_ = numerics.accumulate == Accumulate::dtype && element_bytes(numerics.dtype) == 2;
  if (keeps_partials_) kept_.resize(plan.buffers.size());
}

template <class T>
T PartialMerger<T>::sink_of(int32_t head) const {
  return sink_.empty() ? T(0) : static_cast<T>(sink_[static_cast<size_t>(head)]);
}

template <class T>
void PartialMerger<T>::merge(const MergeItem& item) {
  const BufferSpec& spec = plan_.buffer(item.into);
  if (has_lse_alone(plan_, item)) return merge_lse(item);
  if (spec.kind == BufferKind::out) return merge_out(item);
  merge_sum(item, &BufferMemory<T>::first);
  merge_sum(item, &BufferMemory<T>::second);
}

template <class T>
void PartialMerger<T>::merge_sum(const MergeItem& item, AlignedVector<T> BufferMemory<T>::*array) {
  AlignedVector<T>& into = memory_.at(item.into).*array;
  if (item.partial == kNoBuffer) {
    std::fill(into.begin(), into.end(), T(0));
    return;
  }
  CPSCOPE_CHECK(item.into_rows == kAllRows, "gradients are merged row by row", to_index(item.into),
                to_index(item.into_rows));
  if (!has_all_heads(plan_, item)) return merge_sum_of_heads(item, array);
  const AlignedVector<T>& partial = memory_.at(item.partial).*array;
  // A ring slot may be larger than its present number of rows.
  const size_t count = std::min(into.size(), partial.size());
  add_to_sum(std::span(into).first(count), std::span(partial).first(count), item.order == 0);
}

/// Adds a partial of some of the accumulator's heads.
template <class T>
void PartialMerger<T>::merge_sum_of_heads(const MergeItem& item,
                                          AlignedVector<T> BufferMemory<T>::*array) {
  const BufferSpec &from = plan_.buffer(item.partial), &to = plan_.buffer(item.into);
  AlignedVector<T>& into = memory_.at(item.into).*array;
  const AlignedVector<T>& partial = memory_.at(item.partial).*array;
  if (partial.empty()) return;
  if (item.order == 0) std::fill(into.begin(), into.end(), T(0));
  const size_t width = partial.size() / static_cast<size_t>(cells(from));  // of one head
  const size_t row = width * to.heads.size(), part = width * from.heads.size();
  const size_t begin = width * static_cast<size_t>(from.heads.begin - to.heads.begin);
  for (int64_t r = 0; r < std::min(from.rows, to.rows); ++r)
    add_to_sum(std::span(into).subspan(r * row + begin, part),
               std::span(partial).subspan(r * part, part), item.order == 0);
}

template <class T>
void PartialMerger<T>::add_to_sum(std::span<T> into, std::span<const T> partial,
                                  bool is_first) const {
  const Numerics& numerics = plan_.scenario.numerics;
  if (keeps_partials_) {
    for (size_t i = 0; i < into.size(); ++i) {
      const T addend = round_to(numerics.dtype, partial[i]);
      into[i] = round_sum(numerics, is_first ? addend : into[i] + addend);
    }
  } else if (is_first) {
    std::copy(partial.begin(), partial.end(), into.begin());
  } else {
    for (size_t i = 0; i < into.size(); ++i) into[i] += partial[i];
  }
}

/// The cells (row, head) of the accumulator that a partial has, in the partial's order.
template <class T>
std::vector<int64_t> PartialMerger<T>::cells_of(const MergeItem& item) const {
  const BufferSpec& spec = plan_.buffer(item.into);
  const BufferSpec& partial = plan_.buffer(item.partial);
  const HeadRange part = partial.heads;
  std::vector<int64_t> found;
  const auto add_row = [&](int64_t row) {
    for (int64_t head = part.begin; head < part.end; ++head)
      found.push_back(row * spec.heads.size() + head - spec.heads.begin);
  };
  if (item.into_rows == kAllRows) {
    // A shared buffer may be larger than the rows that it holds now, or smaller.
    for (int64_t row = 0; row < std::min(spec.rows, partial.rows); ++row) add_row(row);
    return found;
  }
  for (const TokenRun& run : plan_.list(item.into_rows)) {
    for (int64_t row = run.begin; row < run.end; row += run.stride) add_row(row);
  }
  return found;
}

template <class T>
void PartialMerger<T>::merge_out(const MergeItem& item) {
  BufferMemory<T>& into = memory_.at(item.into);
  if (item.order == 0) {
    std::fill(into.first.begin(), into.first.end(), T(0));
    std::fill(into.second.begin(), into.second.end(), kNothing<T>);
    if (keeps_partials_) kept_[item.into].clear();
  }
  if (item.partial == kNoBuffer) return;
  const BufferMemory<T>& partial = memory_.at(item.partial);
  const std::vector<int64_t> targets = cells_of(item);
  if (keeps_partials_) {
    for (size_t i = 0; i < targets.size(); ++i) {
      T& lse = into.second[targets[i]];
      lse = log_sum_exp(lse, partial.second[i]);
    }
    kept_[item.into].push_back({partial, targets});
    return;
  }
  const int64_t lanes = plan_.scenario.attention.head_dim_v;
  for (size_t i = 0; i < targets.size(); ++i) {
    T& lse = into.second[targets[i]];
    const T whole = log_sum_exp(lse, partial.second[i]);
    const T old_weight = weight_of(lse, whole), new_weight = weight_of(partial.second[i], whole);
    T* value = into.first.data() + targets[i] * lanes;
    const T* addend = partial.first.data() + static_cast<int64_t>(i) * lanes;
    for (int64_t lane = 0; lane < lanes; ++lane)
      value[lane] = value[lane] * old_weight + addend[lane] * new_weight;
    lse = whole;
  }
}

/// Scales o to the lse of both. Kept partials are scaled when they are sent.
template <class T>
void PartialMerger<T>::merge_lse(const MergeItem& item) {
  BufferMemory<T>& into = memory_.at(item.into);
  const AlignedVector<T>& other = memory_.at(item.partial).second;
  const std::vector<int64_t> targets = cells_of(item);
  const int64_t lanes = plan_.scenario.attention.head_dim_v;
  for (size_t i = 0; i < targets.size(); ++i) {
    T& lse = into.second[targets[i]];
    const T whole = log_sum_exp(lse, other[i]);
    const T weight = weight_of(lse, whole);
    T* value = into.first.data() + targets[i] * lanes;
    for (int64_t lane = 0; !keeps_partials_ && lane < lanes; ++lane) value[lane] *= weight;
    lse = whole;
  }
}

/// TransformerEngine's second phase. thd rounds each addend first; bshd and sbhd do not.
template <class T>
void PartialMerger<T>::sum_kept_partials(BufferId id) {
  BufferMemory<T>& into = memory_.at(id);
  const Dtype dtype = plan_.scenario.numerics.dtype;
  const int64_t lanes = plan_.scenario.attention.head_dim_v;
  const bool rounds_twice = plan_.scenario.batch.qkv_format == QkvFormat::thd;
  for (const auto& [partial, targets] : kept_[id]) {
    for (size_t i = 0; i < targets.size(); ++i) {
      const T weight = weight_of(partial.second[i], into.second[targets[i]]);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        T addend = partial.first[static_cast<int64_t>(i) * lanes + lane] * weight;
        if (rounds_twice) addend = round_to(dtype, addend);
        T& value = into.first[targets[i] * lanes + lane];
        value = round_to(dtype, value + addend);
      }
    }
  }
}

template <class T>
void PartialMerger<T>::settle(BufferId id) {
  if (!keeps_partials_ || kept_[id].empty()) return;
  sum_kept_partials(id);
  kept_[id].clear();
}

template <class T>
void PartialMerger<T>::finish(const FinishItem& item) {
  const BufferSpec& spec = plan_.buffer(item.buffer);
  BufferMemory<T>& memory = memory_.at(item.buffer);
  if (spec.kind == BufferKind::out) {
    // Kept partials are weighted later: with an lse that includes the sink, values are not rounded
    // once more because of the sink.
    if (plan_.scenario.attention.softmax_type != SoftmaxType::vanilla) add_sink(spec, memory);
    if (keeps_partials_) sum_kept_partials(item.buffer);
  }
  const Dtype dtype = plan_.scenario.numerics.dtype;
  round_rows(dtype, std::span<T>(memory.first));
  if (spec.kind == BufferKind::dkv) round_rows(dtype, std::span<T>(memory.second));
}

/// The sink is one more key without a value. It is added here, once; rows that see no key stay
/// empty.
template <class T>
void PartialMerger<T>::add_sink(const BufferSpec& spec, BufferMemory<T>& memory) const {
  const int64_t lanes = plan_.scenario.attention.head_dim_v;
  for (int64_t i = 0; i < cells(spec); ++i) {
    if (memory.second[i] == kNothing<T>) continue;
    const int32_t head = spec.heads.begin + static_cast<int32_t>(i % spec.heads.size());
    const T whole = log_sum_exp(memory.second[i], sink_of(head));
    const T weight = std::exp(memory.second[i] - whole);
    for (int64_t lane = 0; lane < lanes; ++lane) memory.first[i * lanes + lane] *= weight;
    memory.second[i] = whole;
  }
}

template class PartialMerger<float>;
template class PartialMerger<double>;

}  // namespace cpscope::reference
