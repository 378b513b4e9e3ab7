// Operations of an engine on results: reorders, merges and roundings.
#include "kernels/device/scalar_types.h"
#include "kernels/run/rank_engine.h"
#include "sim/run/dtype.h"

#include <algorithm>

namespace cpscope::kernels {

void RankEngine::run(const ReorderItem& item, Stream stream) {
  for (const bool second : {false, true}) {
    if (second && !arrays_.has_second(item.to)) continue;
    const BufferSpec& spec = plan_.buffer(item.to);
    const BufferShape shape = arrays_.shape(item.to, second);
    RowCopy copy;
    copy.from = arrays_.block(item.from, second, spec.heads.begin);
    copy.from.rows = arrays_.row_list(item.order);
    copy.to = arrays_.block(item.to, second, spec.heads.begin);
    copy.num_rows = spec.rows;
    copy.heads = shape.heads;
    copy.lanes = shape.pitch;
    launch_row_copy(copy, stream);
  }
}

void RankEngine::run(const MergeItem& item, Stream stream) {
  const bool is_out = plan_.buffer(item.into).kind == BufferKind::out;
  const Direction direction = is_out ? Direction::forward : Direction::backward;
  const bool rounds =
      lowered_.notes[direction].merges[index_of(item, plan_.pass(direction).merges)].rounds;
  if (is_out) return merge_out(item, rounds, stream);
  merge_sums(item, false, rounds, stream);
  if (arrays_.has_second(item.into)) merge_sums(item, true, rounds, stream);
}

void RankEngine::merge_sums(const MergeItem& item, bool second, bool rounds, Stream stream) {
  const Dtype dtype = plan_.scenario.numerics.dtype;
  void* into = second ? arrays_.second(item.into) : arrays_.first(item.into);
  const int64_t bytes = arrays_.array_bytes(item.into, second);
  if (item.partial == kNoBuffer) {
    fill_bytes(into, 0, bytes, stream);
    return;
  }
  SumMerge merge;
  merge.into = into;
  merge.into_element = arrays_.element(item.into, second);
  merge.partial = second ? arrays_.second<float>(item.partial) : arrays_.first<float>(item.partial);
  // A ring slot may be larger than the rows that it holds now.
  merge.count = std::min(bytes / element_size(merge.into_element),
                         arrays_.array_bytes(item.partial, second) / int64_t{sizeof(float)});
  merge.starts = item.order == 0;
  if (keeps_partials()) merge.value_dtype = merge.sum_dtype = dtype;
  if (rounds) merge.sum_dtype = dtype;
  launch_sum_merge(merge, stream);
}

void RankEngine::merge_out(const MergeItem& item, bool rounds, Stream stream) {
  const BufferShape shape = arrays_.shape(item.into, false);
  const OutRows into = arrays_.out_rows(item.into);
  if (item.partial == kNoBuffer) {
    launch_empty_out(shape, into, stream);
    return;
  }
  const OutRows partial = arrays_.out_rows(item.partial);
  if (!keeps_partials()) {
    launch_out_merge({shape, partial, into, item.order == 0,
                      rounds ? plan_.scenario.numerics.dtype : Dtype::fp32},
                     stream);
    return;
  }
  KeptPartials& kept = kept_.at(to_index(item.into));
  if (item.order == 0) {
    launch_empty_out(shape, into, stream);
    kept.count = 0;
  }
  launch_lse_join(shape, partial, into, stream);
  const auto& [o, lse] = kept.arrays.at(kept.count++);
  copy_on_device(arrays_.at(o), partial.o, arrays_.array_bytes(item.into, false), stream);
  copy_on_device(arrays_.at(lse), partial.lse, arrays_.array_bytes(item.into, true), stream);
}

/// TransformerEngine's second phase. thd rounds each addend first; bshd and sbhd do not.
void RankEngine::sum_kept_partials(BufferId into, Stream stream) {
  const auto kept = kept_.find(to_index(into));
  if (kept == kept_.end()) return;
  WeightedAdd add;
  add.shape = arrays_.shape(into, false);
  add.into = arrays_.out_rows(into);
  add.dtype = plan_.scenario.numerics.dtype;
  add.rounds_addend = plan_.scenario.batch.qkv_format == QkvFormat::thd;
  for (size_t i = 0; i < kept->second.count; ++i) {
    const auto& [o, lse] = kept->second.arrays[i];
    add.partial = {arrays_.at<float>(o), arrays_.at<float>(lse)};
    launch_weighted_add(add, stream);
  }
}

void RankEngine::run(const FinishItem& item, Stream stream) {
  const BufferSpec& spec = plan_.buffer(item.buffer);
  const Dtype dtype = plan_.scenario.numerics.dtype;
  const bool is_out = spec.kind == BufferKind::out;
  if (is_out) {
    // Kept partials still have to be weighted; their final lse will include the sink, so the values
    // are not rounded again for it.
    if (attention_.softmax_type != SoftmaxType::vanilla)
      launch_sink_join({arrays_.shape(item.buffer, false), arrays_.out_rows(item.buffer),
                        arrays_.at<float>(sink_), spec.heads.begin},
                       stream);
    if (keeps_partials()) sum_kept_partials(item.buffer, stream);
  }
  for (const bool second : {false, true}) {
    if (second && spec.kind != BufferKind::dkv) continue;
    if (arrays_.element(item.buffer, second) == dtype) continue;  // already written in the dtype
    launch_rounding(second ? arrays_.second<float>(item.buffer) : arrays_.first<float>(item.buffer),
                    arrays_.array_bytes(item.buffer, second) / int64_t{sizeof(float)}, dtype,
                    stream);
  }
}

}  // namespace cpscope::kernels
