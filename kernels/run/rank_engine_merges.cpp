// Operations of an engine on results: reorders, merges and roundings.
#include "kernels/device/scalar_types.h"
#include "kernels/run/rank_engine.h"
#include "sim/plan/visit_items.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <map>
#include <vector>

namespace cpscope::kernels {
namespace {

/// True if a transfer sends results that are merged from several, and are not finished.
bool sends_settled(const TransferItem& item) {
  return item.payload == Payload::partial ||
         (item.payload == Payload::out && item.landing == Landing::add);
}

}  // namespace

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
  const bool has_some_heads = item.partial != kNoBuffer && !has_all_heads(plan_, item);
  if (item.partial == kNoBuffer || (item.order == 0 && has_some_heads))
    fill_bytes(into, 0, bytes, stream);
  if (item.partial == kNoBuffer) return;
  SumMerge merge;
  merge.into = into;
  merge.into_element = arrays_.element(item.into, second);
  merge.partial = second ? arrays_.second<float>(item.partial) : arrays_.first<float>(item.partial);
  // A ring slot may be larger than the rows that it holds now.
  merge.count = std::min(bytes / element_size(merge.into_element),
                         arrays_.array_bytes(item.partial, second) / int64_t{sizeof(float)});
  merge.starts = item.order == 0 && !has_some_heads;
  if (has_some_heads) {
    const BufferSpec& partial = plan_.buffer(item.partial);
    const BufferShape shape = arrays_.shape(item.partial, second);
    merge.into = arrays_.block(item.into, second, partial.heads.begin).data;
    merge.row_lanes = int64_t{shape.heads} * shape.pitch;
    merge.into_lanes = int64_t{arrays_.shape(item.into, second).heads} * shape.pitch;
    merge.count = std::min(shape.rows, plan_.buffer(item.into).rows) * merge.row_lanes;
  }
  if (keeps_partials()) merge.value_dtype = merge.sum_dtype = dtype;
  if (rounds) merge.sum_dtype = dtype;
  launch_sum_merge(merge, stream);
}

/// Rows of the partial of a merge of `out`. Its buffer, or that of the accumulator, may be larger
/// than the rows that it holds now.
int64_t RankEngine::merged_rows(const MergeItem& item) const {
  if (item.into_rows != kAllRows) return plan_.rows(item.into_rows);
  return std::min(plan_.buffer(item.into).rows, plan_.buffer(item.partial).rows);
}

void RankEngine::plan_kept_partials() {
  std::map<int32_t, size_t> counts;  // [BufferId of the accumulator] kept since it began
  const auto keep = [&](const MergeItem& item) {
    if (!arrays_.holds(item.into)) return;
    size_t& count = counts[to_index(item.into)];
    if (item.order == 0) count = 0;
    if (item.partial == kNoBuffer || has_lse_alone(plan_, item)) return;
    std::vector<KeptPartials::Place>& places = kept_[to_index(item.into)].places;
    if (places.size() == count) places.emplace_back();
    KeptPartials::Place& place = places[count++];
    const BufferShape shape = arrays_.shape(item.partial, false);
    const int64_t cells = merged_rows(item) * shape.heads;
    place.most_bytes = std::max(place.most_bytes, cells * shape.pitch * int64_t{sizeof(float)});
    place.most_lse_bytes = std::max(place.most_lse_bytes, cells * int64_t{sizeof(float)});
  };
  for_each_item(plan_, Direction::forward,
                Overload{[&](const ItemId&, const MergeItem& item) { keep(item); },
                         [&](const ItemId&, const TransferItem& item) {
                           if (sends_settled(item)) counts[to_index(item.from)] = 0;
                         },
                         [](const ItemId&, const auto&) {}});
  for (auto& [into, kept] : kept_) {
    for (KeptPartials::Place& place : kept.places) {
      place.o = arrays_.reserve("kept partial", place.most_bytes);
      place.lse = arrays_.reserve("kept partial lse", place.most_lse_bytes);
    }
  }
}

void RankEngine::merge_out(const MergeItem& item, bool rounds, Stream stream) {
  const bool is_first = item.order == 0, has_all_rows = item.into_rows == kAllRows;
  const auto kept = kept_.find(to_index(item.into));
  if (is_first && kept != kept_.end()) kept->second.merged.clear();
  BufferShape shape = arrays_.shape(item.into, false);
  OutRows into = arrays_.out_rows(item.into);
  const bool is_whole = item.partial != kNoBuffer && has_all_rows && has_all_heads(plan_, item);
  const bool starts = is_first && is_whole && !keeps_partials();
  if (is_first && !starts) launch_empty_out(shape, into, stream);
  if (item.partial == kNoBuffer) return;
  shape.rows = merged_rows(item);
  into.rows = arrays_.row_list(item.into_rows);
  if (!has_all_heads(plan_, item)) {
    const HeadRange heads = plan_.buffer(item.partial).heads;
    into.row_heads = shape.heads;
    shape.heads = heads.size();
    into.o = static_cast<float*>(arrays_.block(item.into, false, heads.begin).data);
    into.lse = static_cast<float*>(arrays_.block(item.into, true, heads.begin).data);
  }
  OutRows partial = arrays_.out_rows(item.partial);
  if (has_lse_alone(plan_, item)) {
    partial.o = nullptr;  // that of a stats buffer is delta
    // Kept partials are scaled when they are sent.
    if (keeps_partials()) return launch_lse_join(shape, partial, into, stream);
  }
  if (!keeps_partials()) {
    launch_out_merge(
        {shape, partial, into, starts, rounds ? plan_.scenario.numerics.dtype : Dtype::fp32},
        stream);
    return;
  }
  launch_lse_join(shape, partial, into, stream);
  const KeptPartials::Place& place = kept->second.places.at(kept->second.merged.size());
  const OutRows copy{arrays_.at<float>(place.o), arrays_.at<float>(place.lse)};
  const int64_t cells = shape.rows * shape.heads;
  copy_on_device(copy.o, partial.o, cells * shape.pitch * int64_t{sizeof(float)}, stream);
  copy_on_device(copy.lse, partial.lse, cells * int64_t{sizeof(float)}, stream);
  kept->second.merged.push_back({.shape = shape, .partial = copy, .into = into});
}

/// TransformerEngine's second phase. thd rounds each addend first; bshd and sbhd do not.
void RankEngine::sum_kept_partials(BufferId into, Stream stream) {
  const auto kept = kept_.find(to_index(into));
  if (kept == kept_.end()) return;
  for (const OutMerge& merge : kept->second.merged) {
    launch_weighted_add({merge.shape, merge.partial, merge.into, plan_.scenario.numerics.dtype,
                         plan_.scenario.batch.qkv_format == QkvFormat::thd},
                        stream);
  }
  kept->second.merged.clear();
}

/// A sum that another rank will merge, or add, goes through the second phase when it is sent.
void RankEngine::settle(const TransferItem& item, Stream stream) {
  if (sends_settled(item)) sum_kept_partials(item.from, stream);
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
    if (second && (spec.kind != BufferKind::dkv || !arrays_.has_second(item.buffer))) continue;
    if (arrays_.element(item.buffer, second) == dtype) continue;  // already written in the dtype
    launch_rounding(second ? arrays_.second<float>(item.buffer) : arrays_.first<float>(item.buffer),
                    arrays_.array_bytes(item.buffer, second) / int64_t{sizeof(float)}, dtype,
                    stream);
  }
}

}  // namespace cpscope::kernels
