#include "kernels/rank_engine.h"

#include "kernels/scalar_types.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// Visible pairs of every list of slices: [first slice, number of slices].
std::map<std::array<int64_t, 2>, int64_t> count_pairs(const Plan& plan) {
  std::map<std::array<int64_t, 2>, int64_t> pairs;
  for (const Pass* pass : {&plan.forward, &plan.backward}) {
    for (const ComputeItem& item : pass->computes) {
      const auto [entry, is_new] = pairs.try_emplace({item.first_slice, item.num_slices}, 0);
      if (!is_new) continue;
      for (const BandSlice& slice : plan.slices_of(item))
        entry->second += cpscope::count_pairs(slice);
    }
  }
  return pairs;
}

constexpr int64_t kCounterBytes = 4 * sizeof(int32_t);
/// With a counter of turns for every query head; a launch without turns has none.
int64_t counter_bytes(int32_t num_heads, int32_t num_counters) {
  return kCounterBytes + int64_t{num_heads} * num_counters * int64_t{sizeof(int32_t)};
}

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

/// Number of an item of a pass.
template <class Item>
size_t index_of(const Item& item, const std::vector<Item>& items) {
  return static_cast<size_t>(&item - items.data());
}

bool is_merged_in_dtype(const Numerics& numerics) {
  return numerics.accumulate == Accumulate::dtype && element_bytes(numerics.dtype) == 2;
}

}  // namespace

EngineOptions make_engine_options(const CheckedPlan& checked, const RunOptions& options,
                                  std::optional<Generation> generation) {
  const bool keeps_items = options.observer || !checked.admitted_because().empty();
  return {options.poison, generation, options.threads, keeps_items};
}

std::optional<std::string> RankEngine::why_not(const Plan& plan) {
  const Attention& attention = plan.scenario.attention;
  if (plan.scenario.numerics.dtype == Dtype::fp64)
    return "the GPU kernels compute in fp32 and hold bf16, fp16 or fp32, not fp64";
  for (const int32_t dim : {attention.head_dim_qk, attention.head_dim_v}) {
    if (dim > kMaxHeadDim)
      return fmt::format("the GPU kernels hold head dimensions up to {}: {}", kMaxHeadDim, dim);
  }
  return std::nullopt;
}

RankEngine::RankEngine(const Plan& plan, std::vector<bool> is_here, int32_t compute_capability,
                       const EngineOptions& options)
    : plan_(plan),
      attention_(plan.scenario.attention),
      options_(options),
      compute_capability_(compute_capability),
      pairs_(count_pairs(plan)),
      forward_shortcuts_(shortcuts_of(plan.forward)),
      backward_shortcuts_(shortcuts_of(plan.backward)),
      arrays_(plan, std::move(is_here), find_narrow_results()),
      tiles_(plan) {
  for (size_t r = 0; r < plan.home.size(); ++r) {
    const bool here = arrays_.is_here(RankId{static_cast<int32_t>(r)});
    max_logits_.push_back(here ? arrays_.reserve(fmt::format("rank {} max_logit", r),
                                                 attention_.heads * int64_t{sizeof(float)})
                               : -1);
  }
  sink_ = arrays_.reserve("sink", attention_.heads * int64_t{sizeof(float)});
  d_sink_ = arrays_.reserve("d_sink", attention_.heads * int64_t{sizeof(double)});
  const auto start = std::chrono::steady_clock::now();
  for (const ComputeItem& item : plan.forward.computes) plan_forward(item);
  for (const ComputeItem& item : plan.backward.computes) plan_backward(item);
  list_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                  std::max<double>(1.0, static_cast<double>(arrays_.num_here()));
  plan_counters();
  if (keeps_partials()) plan_kept_partials();
}

bool RankEngine::keeps_partials() const { return is_merged_in_dtype(plan_.scenario.numerics); }

MergeShortcuts RankEngine::shortcuts_of(const Pass& pass) const {
  const bool is_as_planned = options_.keeps_items || keeps_partials();
  return is_as_planned ? no_shortcuts(plan_, pass) : find_shortcuts(plan_, pass);
}

/// Hopper's forward can write the dtype.
std::vector<bool> RankEngine::find_narrow_results() const {
  std::vector<bool> is_narrow = forward_shortcuts_.is_written_once;
  const bool has_narrow = element_bytes(plan_.scenario.numerics.dtype) == 2;
  for (size_t i = 0; i < plan_.forward.computes.size(); ++i) {
    const ComputeItem& item = plan_.forward.computes[i];
    if (item.num_slices > 0 && has_narrow && forward_generation(shape_of(item)) == Generation::sm90)
      continue;
    is_narrow[static_cast<size_t>(to_index(forward_shortcuts_.written[i][0]))] = false;
  }
  return is_narrow;
}

void RankEngine::plan_forward(const ComputeItem& item) {
  if (item.num_slices == 0 || !arrays_.is_here(item.rank)) return;
  const AttentionShape shape = shape_of(item);
  tiles_.plan(item, TileOwner::queries, forward_tile_shape(forward_generation(shape), shape));
}

void RankEngine::plan_backward(const ComputeItem& item) {
  if (item.num_slices == 0 || !arrays_.is_here(item.rank)) return;
  const AttentionShape shape = shape_of(item);
  const Generation generation = backward_generation(shape);
  if (!is_backward_fused(generation, shape))
    tiles_.plan(item, TileOwner::queries, query_gradient_tile_shape(generation, shape));
  tiles_.plan(item, TileOwner::keys, key_gradient_tile_shape(generation, shape));
  Statistics& statistics = statistics_[to_index(item.out)];
  if (statistics.delta >= 0) return;
  const int64_t bytes = int64_t{shape.num_heads} * shape.q_rows * int64_t{sizeof(float)};
  const int32_t rank = to_index(item.rank);
  statistics.log2_lse = arrays_.reserve(fmt::format("rank {} log2 lse", rank), bytes);
  statistics.delta = arrays_.reserve(fmt::format("rank {} delta", rank), bytes);
}

void RankEngine::plan_counters() {
  std::vector<int64_t> bytes(plan_.home.size(), kCounterBytes);
  for (const ComputeItem& item : plan_.backward.computes) {
    if (item.num_slices == 0 || !arrays_.is_here(item.rank)) continue;
    const AttentionShape shape = shape_of(item);
    const TileShape tile = key_gradient_tile_shape(backward_generation(shape), shape);
    int64_t& most = bytes[static_cast<size_t>(to_index(item.rank))];
    most = std::max(
        most, counter_bytes(shape.num_heads, tiles_.num_counters(item, TileOwner::keys, tile)));
  }
  for (size_t r = 0; r < bytes.size(); ++r) {
    const bool here = arrays_.is_here(RankId{static_cast<int32_t>(r)});
    counters_.push_back(here ? arrays_.reserve(fmt::format("rank {} counters", r), bytes[r]) : -1);
  }
}

void RankEngine::plan_kept_partials() {
  for (const MergeItem& item : plan_.forward.merges) {
    if (item.partial == kNoBuffer || !arrays_.holds(item.into)) continue;
    if (plan_.buffer(item.into).kind != BufferKind::out) continue;
    kept_[to_index(item.into)].arrays.push_back(
        {arrays_.reserve("kept partial", arrays_.array_bytes(item.into, false)),
         arrays_.reserve("kept partial lse", arrays_.array_bytes(item.into, true))});
  }
}

void RankEngine::allocate(Stream stream) {
  // 0xff.. is a NaN in every type; 0x46.. is a number near 12700 that would show.
  arrays_.allocate(options_.poison ? 0xff : 0x46, stream);
  tiles_.upload(stream);
  const std::vector<float> nothing(static_cast<size_t>(attention_.heads), kNoLogit);
  for (const int32_t array : max_logits_) {
    if (array >= 0)
      copy_to_device(arrays_.at(array), nothing.data(), attention_.heads * int64_t{sizeof(float)},
                     stream);
  }
  const DeviceMemory zeros(kMaxHeadDim * int64_t{sizeof(float)});
  fill_bytes(zeros.data(), 0, kMaxHeadDim * int64_t{sizeof(float)}, stream);
  clear_padded_lanes(zeros.data(), stream);
  // The vector and the zeros above are read before they go.
  wait_for_stream(stream);
}

/// Kernels take rows with their padded lanes, which no wire carries.
void RankEngine::clear_padded_lanes(void* zeros, Stream stream) {
  for (size_t b = 0; b < plan_.buffers.size(); ++b) {
    const BufferId id{static_cast<int32_t>(b)};
    const BufferSpec& spec = plan_.buffers[b];
    for (const bool second : {false, true}) {
      const ArrayLanes lanes = array_lanes(spec.kind, second, attention_);
      if (!arrays_.holds(id) || lanes.pitch == lanes.lanes) continue;
      RowCopy copy;
      copy.to = arrays_.block(id, second, spec.heads.begin);
      copy.to.data =
          static_cast<uint8_t*>(copy.to.data) + lanes.lanes * element_size(copy.to.element);
      copy.from = {zeros, copy.to.element, 0, 0, nullptr};
      copy.num_rows = spec.rows;
      copy.heads = spec.heads.size();
      copy.lanes = lanes.pitch - lanes.lanes;
      launch_row_copy(copy, stream);
    }
  }
}

AttentionShape RankEngine::shape_of(const ComputeItem& item) const {
  const HeadRange kv_heads = kv_heads_of(attention_, item.heads);
  AttentionShape shape;
  shape.dtype = plan_.scenario.numerics.dtype;
  shape.q_rows = static_cast<int32_t>(plan_.rows(item.q_tokens));
  shape.kv_rows = static_cast<int32_t>(plan_.rows(item.kv_tokens));
  shape.num_heads = item.heads.size();
  shape.num_kv_heads = kv_heads.size();
  shape.first_head = item.heads.begin;
  shape.first_kv_head = kv_heads.begin;
  shape.group = attention_.heads / attention_.kv_heads;
  shape.head_dim_qk = attention_.head_dim_qk;
  shape.head_dim_v = attention_.head_dim_v;
  shape.scale = static_cast<float>(attention_.effective_scale());
  shape.softcap = static_cast<float>(attention_.softcap);
  shape.keys_per_row = pairs_.at({item.first_slice, item.num_slices}) / std::max(1, shape.q_rows);
  return shape;
}

Generation RankEngine::newest_generation() const {
  return options_.generation.value_or(compute_capability_ == 90 ? Generation::sm90
                                                                : Generation::portable);
}

Generation RankEngine::forward_generation(const AttentionShape& shape) const {
  const Generation newest = newest_generation();
  return why_not_forward(newest, shape).empty() ? newest : Generation::portable;
}

Generation RankEngine::backward_generation(const AttentionShape& shape) const {
  const Generation newest = newest_generation();
  return why_not_backward(newest, shape).empty() ? newest : Generation::portable;
}

void RankEngine::begin_pass() {
  for (auto& [out, statistics] : statistics_) statistics.is_made = false;
  for (auto& [into, kept] : kept_) kept.count = 0;
}

/// What both directions need: shape, q, k, v, out and lse of the item's heads.
template <class Launch>
void RankEngine::place_rows(const ComputeItem& item, Launch& launch) const {
  const int32_t head = item.heads.begin;
  launch.shape = shape_of(item);
  launch.q = arrays_.rows(item.q, false, head);
  launch.k = arrays_.rows(item.kv, false, launch.shape.first_kv_head);
  launch.v = arrays_.rows(item.kv, true, launch.shape.first_kv_head);
  launch.out = arrays_.rows(item.out, false, head);
  launch.out_element = arrays_.element(item.out, false);
  const RowBlock lse = arrays_.block(item.out, true, head);
  launch.lse = static_cast<float*>(lse.data);
  launch.lse_row_stride = lse.row_stride;
}

void RankEngine::compute_forward(const ComputeItem& planned, Stream stream) {
  if (planned.num_slices == 0) return;
  ComputeItem item = planned;
  item.out = forward_shortcuts_.written[index_of(planned, plan_.forward.computes)][0];
  const int32_t head = item.heads.begin;
  ForwardLaunch launch;
  place_rows(item, launch);
  launch.max_logit = arrays_.at<float>(max_logits_[to_index(item.rank)]) + head;
  const Generation generation = forward_generation(launch.shape);
  launch.query_tiles =
      tiles_.find(item, TileOwner::queries, forward_tile_shape(generation, launch.shape));
  launch.counter = arrays_.at<int32_t>(counters_[to_index(item.rank)]);
  fill_bytes(launch.counter, 0, kCounterBytes, stream);
  launch_forward(generation, launch, stream);
  // Partials that are merged in the dtype are 16-bit numbers from the start.
  if (keeps_partials())
    launch_rounding(arrays_.first<float>(item.out),
                    arrays_.array_bytes(item.out, false) / int64_t{sizeof(float)},
                    launch.shape.dtype, stream);
}

void RankEngine::compute_backward(const ComputeItem& planned, Stream stream) {
  if (planned.num_slices == 0) return;
  ComputeItem item = planned;
  const auto& written = backward_shortcuts_.written[index_of(planned, plan_.backward.computes)];
  item.dq = written[0];
  item.dkv = written[1];
  const int32_t head = item.heads.begin;
  BackwardLaunch launch;
  place_rows(item, launch);
  launch.d_out = arrays_.rows(item.d_out, false, head);
  Statistics& statistics = statistics_.at(to_index(item.out));
  launch.log2_lse = arrays_.at<float>(statistics.log2_lse);
  launch.delta = arrays_.at<float>(statistics.delta);
  launch.dq = arrays_.rows(item.dq, false, head);
  launch.dk = arrays_.rows(item.dkv, false, launch.shape.first_kv_head);
  launch.dv = arrays_.rows(item.dkv, true, launch.shape.first_kv_head);
  const Generation generation = backward_generation(launch.shape);
  const bool is_fused = is_backward_fused(generation, launch.shape);
  if (!is_fused)
    launch.query_tiles =
        tiles_.find(item, TileOwner::queries, query_gradient_tile_shape(generation, launch.shape));
  launch.key_tiles =
      tiles_.find(item, TileOwner::keys, key_gradient_tile_shape(generation, launch.shape));
  launch.counters = arrays_.at<int32_t>(counters_[to_index(item.rank)]);
  launch.turns_taken = launch.counters + kCounterBytes / int64_t{sizeof(int32_t)};
  fill_bytes(launch.counters, 0,
             counter_bytes(launch.shape.num_heads, launch.key_tiles.num_counters), stream);
  // out and d_out of a row stay the same over all steps.
  if (!statistics.is_made) launch_row_statistics(launch, stream);
  statistics.is_made = true;
  if (!is_fused) launch_query_gradient(generation, launch, stream);
  launch_key_gradient(generation, launch, stream);
}

void RankEngine::reorder(const ReorderItem& item, Stream stream) {
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

void RankEngine::merge(const MergeItem& item, Stream stream) {
  const bool is_out = plan_.buffer(item.into).kind == BufferKind::out;
  const MergeShortcuts& shortcuts = is_out ? forward_shortcuts_ : backward_shortcuts_;
  const size_t i = index_of(item, is_out ? plan_.forward.merges : plan_.backward.merges);
  if (shortcuts.is_merged[i]) return;
  if (is_out) return merge_out(item, shortcuts.rounds[i], stream);
  merge_sums(item, false, shortcuts.rounds[i], stream);
  if (arrays_.has_second(item.into)) merge_sums(item, true, shortcuts.rounds[i], stream);
}

void RankEngine::merge_sums(const MergeItem& item, bool second, bool rounds, Stream stream) {
  const Dtype dtype = plan_.scenario.numerics.dtype;
  float* into = second ? arrays_.second<float>(item.into) : arrays_.first<float>(item.into);
  const int64_t bytes = arrays_.array_bytes(item.into, second);
  if (item.partial == kNoBuffer) {
    fill_bytes(into, 0, bytes, stream);
    return;
  }
  SumMerge merge;
  merge.into = into;
  merge.partial = second ? arrays_.second<float>(item.partial) : arrays_.first<float>(item.partial);
  // A ring slot may be larger than the rows that it holds now.
  merge.count = std::min(bytes, arrays_.array_bytes(item.partial, second)) / int64_t{sizeof(float)};
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

void RankEngine::finish(const FinishItem& item, Stream stream) {
  const BufferSpec& spec = plan_.buffer(item.buffer);
  const Dtype dtype = plan_.scenario.numerics.dtype;
  const bool is_out = spec.kind == BufferKind::out;
  const MergeShortcuts& shortcuts = is_out ? forward_shortcuts_ : backward_shortcuts_;
  if (shortcuts
          .is_finished[index_of(item, is_out ? plan_.forward.finishes : plan_.backward.finishes)])
    return;
  if (is_out) {
    // Kept partials are still to be weighted: with a whole that knows the sink, values are not
    // rounded once more for it.
    if (attention_.softmax_type != SoftmaxType::vanilla)
      launch_sink_join({arrays_.shape(item.buffer, false), arrays_.out_rows(item.buffer),
                        arrays_.at<float>(sink_), spec.heads.begin},
                       stream);
    if (keeps_partials()) sum_kept_partials(item.buffer, stream);
  }
  for (const bool second : {false, true}) {
    if (second && spec.kind != BufferKind::dkv) continue;
    if (arrays_.element(item.buffer, second) == dtype) continue;  // written so
    launch_rounding(second ? arrays_.second<float>(item.buffer) : arrays_.first<float>(item.buffer),
                    arrays_.array_bytes(item.buffer, second) / int64_t{sizeof(float)}, dtype,
                    stream);
  }
}

Dtype RankEngine::wire_element(const TransferItem& item) const {
  return item.wire_fp32 ? Dtype::fp32 : plan_.scenario.numerics.dtype;
}

/// The transfer's rows of one array, from the sender's buffer to the receiver's. Only the end that
/// is here has an address.
RowCopy RankEngine::copy_of(const TransferItem& item, bool second) const {
  const Numerics& numerics = plan_.scenario.numerics;
  const BufferSpec& from = plan_.buffer(item.from);
  const ArrayLanes lanes = array_lanes(from.kind, second, attention_);
  RowCopy copy;
  if (arrays_.holds(item.from)) {
    copy.from = arrays_.block(item.from, second, item.heads.begin);
    copy.from.rows = arrays_.row_list(item.from_rows);
  }
  if (arrays_.holds(item.to)) {
    copy.to = arrays_.block(item.to, second, item.heads.begin);
    copy.to.rows = arrays_.row_list(item.to_rows);
  }
  copy.num_rows = item.from_rows != kAllRows ? plan_.rows(item.from_rows)
                  : item.tokens != kNoTokens ? plan_.rows(item.tokens)
                                             : from.rows;
  copy.heads = item.heads.size();
  copy.lanes = lanes.pitch;
  copy.adds = item.landing == Landing::add;
  // What stays on the rank is not rounded by any wire.
  if (item.payload == Payload::dkv && item.link != LinkClass::self && !item.wire_fp32)
    copy.value_dtype = numerics.dtype;
  if (numerics.accumulate == Accumulate::dtype) copy.sum_dtype = numerics.dtype;
  return copy;
}

void RankEngine::move(const TransferItem& item, Stream stream) {
  for (const bool second : {false, true}) {
    if (!second || arrays_.has_second(item.from)) launch_row_copy(copy_of(item, second), stream);
  }
}

int64_t RankEngine::wire_bytes(const TransferItem& item) const {
  int64_t bytes = 0;
  for (const bool second : {false, true}) {
    const BufferKind kind = plan_.buffer(item.from).kind;
    // lse never travels: it is used where it was made.
    if (second && kind == BufferKind::out) continue;
    const RowCopy copy = copy_of(item, second);
    bytes += copy.num_rows * copy.heads * array_lanes(kind, second, attention_).lanes *
             element_size(wire_element(item));
  }
  return bytes;
}

void RankEngine::pack(const TransferItem& item, void* staging, Stream stream) {
  const BufferKind kind = plan_.buffer(item.from).kind;
  auto* wire = static_cast<uint8_t*>(staging);
  for (const bool second : {false, true}) {
    const int32_t lanes = array_lanes(kind, second, attention_).lanes;
    if (lanes == 0 || (second && kind == BufferKind::out)) continue;
    RowCopy copy = copy_of(item, second);
    copy.lanes = lanes;
    copy.to = {wire, wire_element(item), int64_t{copy.heads} * lanes, lanes, nullptr};
    copy.adds = false;
    launch_row_copy(copy, stream);
    wire += copy.num_rows * copy.heads * lanes * element_size(wire_element(item));
  }
}

void RankEngine::unpack(const TransferItem& item, const void* staging, Stream stream) {
  const BufferKind kind = plan_.buffer(item.to).kind;
  auto* wire = static_cast<uint8_t*>(const_cast<void*>(staging));
  for (const bool second : {false, true}) {
    const int32_t lanes = array_lanes(kind, second, attention_).lanes;
    if (lanes == 0 || (second && kind == BufferKind::out)) continue;
    RowCopy copy = copy_of(item, second);
    copy.lanes = lanes;
    copy.from = {wire, wire_element(item), int64_t{copy.heads} * lanes, lanes, nullptr};
    launch_row_copy(copy, stream);
    wire += copy.num_rows * copy.heads * lanes * element_size(wire_element(item));
  }
}

}  // namespace cpscope::kernels
