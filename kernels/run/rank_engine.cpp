#include "kernels/run/rank_engine.h"

#include "kernels/attention/attention_decode.h"
#include "kernels/attention/row_offsets.h"
#include "kernels/device/scalar_types.h"
#include "kernels/run/item_shape.h"
#include "sim/run/dtype.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// The sums of every list of slices: [first slice, number of slices].
std::map<std::array<int64_t, 2>, SliceSums> sum_all_slices(const Plan& plan) {
  std::map<std::array<int64_t, 2>, SliceSums> sums;
  for (const Pass* pass : {&plan.forward, &plan.backward}) {
    for (const ComputeItem& item : pass->computes) {
      const auto [entry, is_new] =
          sums.try_emplace({item.first_slice, item.num_slices}, SliceSums{});
      if (is_new) entry->second = sum_slices(plan.slices_of(item));
    }
  }
  return sums;
}

constexpr int64_t kCounterBytes = 4 * sizeof(int32_t);
/// Bytes of a compute item's counters: with turns, one counter of turns for every query head.
int64_t counter_bytes(int32_t num_heads, int32_t num_counters) {
  return kCounterBytes + int64_t{num_heads} * num_counters * int64_t{sizeof(int32_t)};
}

/// Heads that each rank's backward computes in a step, over all pieces of an item.
std::map<std::pair<int32_t, int32_t>, HeadRange> find_heads_of_steps(const Plan& plan) {
  std::map<std::pair<int32_t, int32_t>, HeadRange> heads;
  for (const ComputeItem& item : plan.backward.computes) {
    const std::pair place{to_index(item.rank), to_index(item.step)};
    HeadRange& all = heads.try_emplace(place, item.heads).first->second;
    all = {std::min(all.begin, item.heads.begin), std::max(all.end, item.heads.end)};
  }
  return heads;
}

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

}  // namespace

RankEngine::RankEngine(const LoweredPlan& lowered, IdVector<RankId, bool> is_here,
                       int32_t compute_capability, const EngineOptions& options)
    : lowered_(lowered),
      plan_(lowered.plan),
      attention_(plan_.scenario.attention),
      options_(options),
      compute_capability_(compute_capability),
      slice_sums_(sum_all_slices(plan_)),
      heads_of_steps_(find_heads_of_steps(plan_)),
      arrays_(lowered, std::move(is_here)),
      tiles_(plan_),
      terms_(plan_, arrays_),
      fp8_(plan_, arrays_),
      expanded_(plan_, arrays_) {
  for (const RankId rank : plan_.home.ids()) {
    const bool here = arrays_.is_here(rank);
    max_logits_.push_back(here ? arrays_.reserve(fmt::format("rank {} max_logit", to_index(rank)),
                                                 attention_.heads * int64_t{sizeof(float)})
                               : -1);
  }
  sink_ = arrays_.reserve("sink", attention_.heads * int64_t{sizeof(float)});
  begun_ = arrays_.reserve("begun", int64_t{sizeof(int32_t)});
  d_sink_ = arrays_.reserve("d_sink", attention_.heads * int64_t{sizeof(double)});
  plan_arrivals();
  const auto start = std::chrono::steady_clock::now();
  for (const ComputeItem& item : plan_.forward.computes) plan_forward(item);
  for (const ComputeItem& item : plan_.backward.computes) plan_backward(item);
  list_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                  std::max<double>(1.0, static_cast<double>(arrays_.num_here()));
  fp8_.reserve_codes();
  plan_statistics();
  plan_counters();
  plan_part_sums();
  plan_key_part_sums();
  if (keeps_partials()) plan_kept_partials();
  plan_kept_inputs();
}

bool RankEngine::keeps_partials() const { return is_merged_in_dtype(plan_.scenario.numerics); }

void RankEngine::plan_forward(const ComputeItem& item) {
  if (item.num_slices == 0 || !arrays_.is_here(item.rank)) return;
  const AttentionShape shape = shape_of(item);
  const TileShape tile = forward_tile_shape(forward_generation(shape), shape);
  tiles_.plan(item, TileOwner::queries, tile,
              most_heads_of(item, Direction::forward, TileOwner::queries, tile.heads));
  const CodeForm codes = code_form(forward_generation(shape), shape);
  fp8_.plan_codes(item, codes);
  // Decode steps multiply the same values in 16 bits.
  has_short_sums_ |= codes == CodeForm::turned_values;
}

void RankEngine::plan_backward(const ComputeItem& item) {
  if (item.num_slices == 0 || !arrays_.is_here(item.rank)) return;
  const AttentionShape shape = shape_of(item);
  const Generation generation = backward_generation(shape);
  fp8_.plan_codes(item, gradient_code_form(generation, shape));
  if (!is_backward_fused(generation, shape))
    tiles_.plan(item, TileOwner::queries, query_gradient_tile_shape(generation, shape),
                most_heads_of(item, Direction::backward, TileOwner::queries, 1));
  const TileShape key_tile = key_gradient_tile_shape(generation, shape);
  // Sums must be the same for any number of pieces of heads.
  std::optional<HeadRange> heads_in_parts;
  if (generation == Generation::sm90)
    heads_in_parts = heads_of_steps_.at({to_index(item.rank), to_index(item.step)});
  tiles_.plan(item, TileOwner::keys, key_tile,
              most_heads_of(item, Direction::backward, TileOwner::keys, 1), heads_in_parts);
  if (arrays_.element(item.dq, false) != Dtype::fp32 && !dq_sums_.contains(to_index(item.dq))) {
    const int64_t count =
        arrays_.array_bytes(item.dq, false) / element_bytes(plan_.scenario.numerics.dtype);
    dq_sums_[to_index(item.dq)] = arrays_.reserve(
        fmt::format("rank {} dq sums", to_index(item.rank)), count * int64_t{sizeof(float)});
  }
  Statistics& statistics = statistics_[to_index(item.out)];
  statistics.most_rows = std::max(statistics.most_rows, shape.q_rows);
  statistics.has_offsets |= takes_offsets(generation, shape);
}

/// Moved rows of several items are in one buffer, one after the other.
void RankEngine::plan_statistics() {
  for (auto& [out, statistics] : statistics_) {
    const BufferSpec& spec = plan_.buffer(BufferId{out});
    const int32_t heads = spec.heads.size(), rank = to_index(spec.rank);
    const int64_t bytes = int64_t{heads} * statistics.most_rows * int64_t{sizeof(float)};
    statistics.made_rows.assign(static_cast<size_t>(heads), -1);
    statistics.log2_lse = arrays_.reserve(fmt::format("rank {} log2 lse", rank), bytes);
    statistics.delta = arrays_.reserve(fmt::format("rank {} delta", rank), bytes);
    if (!statistics.has_offsets) continue;
    statistics.offsets =
        arrays_.reserve(fmt::format("rank {} offsets", rank),
                        heads * offsets_of_head(statistics.most_rows) * int64_t{sizeof(Bf16)});
  }
}

/// Reserves the arrays for sums of parts. Items that write the same rows of a buffer run one after
/// another; other heads have separate places.
void RankEngine::plan_part_sums() {
  for (const ComputeItem& item : plan_.backward.computes) {
    if (item.num_slices == 0 || !arrays_.is_here(item.rank)) continue;
    const int32_t parts = key_list_of(item).group_parts;
    int32_t& most = part_sums_[to_index(item.dkv)].most_parts;
    most = std::max(most, parts);
  }
  std::erase_if(part_sums_, [](const auto& entry) { return entry.second.most_parts == 1; });
  for (auto& [buffer, sums] : part_sums_) {
    for (const bool second : {false, true}) {
      if (second && attention_.has_v_in_k()) continue;
      const BufferShape shape = arrays_.shape(BufferId{buffer}, second);
      sums.arrays[second ? 1 : 0] = arrays_.reserve(
          fmt::format("part sums of buffer {}", buffer),
          shape.rows * shape.heads * shape.pitch * sums.most_parts * int64_t{sizeof(float)});
    }
  }
}

/// Reserves the memory of parts of keys. Items that write the same rows of a buffer run one after
/// another.
void RankEngine::plan_key_part_sums() {
  for (const ComputeItem& item : plan_.forward.computes) {
    if (item.num_slices == 0 || !arrays_.is_here(item.rank)) continue;
    const TileList& list = query_list_of(item);
    if (list.cut_tiles.empty()) continue;
    int64_t& most = key_part_sums_[to_index(item.out)].most_bytes;
    most = std::max(most, forward_part_bytes(shape_of(item), list));
  }
  for (auto& [buffer, sums] : key_part_sums_)
    sums.array = arrays_.reserve(fmt::format("parts of buffer {}", buffer), sums.most_bytes);
}

/// Rows fp32 [kv row][local KV head, part] of dk, or of dv.
DeviceRows RankEngine::part_rows_of(const ComputeItem& item, bool second) const {
  const PartSums& sums = part_sums_.at(to_index(item.dkv));
  const BufferShape shape = arrays_.shape(item.dkv, second);
  const int64_t first_head =
      kv_heads_of(attention_, item.heads).begin - plan_.buffer(item.dkv).heads.begin;
  return {
      arrays_.at<float>(sums.arrays[second ? 1 : 0]) + first_head * sums.most_parts * shape.pitch,
      int64_t{shape.heads} * sums.most_parts * shape.pitch, shape.pitch};
}

/// Reserves the counters. Items may run at the same time, so each has its own. Kernels leave them
/// at zero.
void RankEngine::plan_counters() {
  IdVector<RankId, int64_t> bytes(plan_.home.size(), 0);
  for (const Direction direction : kDirections) {
    const Pass& pass = plan_.pass(direction);
    for (const ComputeItem& item : pass.computes) {
      int64_t& end = bytes[item.rank];
      counter_places_[direction].push_back(end);
      if (item.num_slices > 0 && arrays_.is_here(item.rank))
        end += counter_bytes_of(item, direction);
    }
  }
  for (const RankId rank : bytes.ids()) {
    const std::string name = fmt::format("rank {} counters", to_index(rank));
    const int32_t array = arrays_.is_here(rank) ? arrays_.reserve(name, bytes[rank]) : -1;
    counters_.push_back({array, bytes[rank]});
  }
}

const TileList& RankEngine::key_list_of(const ComputeItem& item) const {
  const AttentionShape shape = shape_of(item);
  return tiles_.list(item, TileOwner::keys,
                     key_gradient_tile_shape(backward_generation(shape), shape));
}

bool RankEngine::adds_parts(const ComputeItem& item) const {
  return item.num_slices > 0 && key_list_of(item).group_parts > 1;
}

int64_t RankEngine::counter_bytes_of(const ComputeItem& item, Direction direction) const {
  if (direction == Direction::forward) return kCounterBytes;
  return counter_bytes(item.heads.size(), key_list_of(item).num_counters);
}

int32_t* RankEngine::counters_of(const ComputeItem& item, Direction direction) const {
  const Pass& pass = plan_.pass(direction);
  const int64_t place = counter_places_[direction][index_of(item, pass.computes)];
  return arrays_.at<int32_t>(counters_[item.rank].array) + place / int64_t{sizeof(int32_t)};
}

const ComputeNote& RankEngine::note_of(const ComputeItem& item, Direction direction) const {
  return lowered_.notes[direction].computes[index_of(item, plan_.pass(direction).computes)];
}

void RankEngine::allocate(Stream stream) {
  // 0xff.. is a NaN in every type; 0x46.. is a number near 12700, so its use would be visible in
  // the results.
  arrays_.allocate(options_.poison ? 0xff : 0x46, stream);
  tiles_.upload(stream);
  for (const Counters& counters : counters_) {
    if (counters.array >= 0) fill_bytes(arrays_.at(counters.array), 0, counters.bytes, stream);
  }
  const std::vector<float> nothing(static_cast<size_t>(attention_.heads), kNoLogit);
  for (const int32_t array : max_logits_) {
    if (array >= 0)
      copy_to_device(arrays_.at(array), nothing.data(), attention_.heads * int64_t{sizeof(float)},
                     stream);
  }
  const DeviceMemory zeros(kMaxHeadDim * int64_t{sizeof(float)});
  fill_bytes(zeros.data(), 0, kMaxHeadDim * int64_t{sizeof(float)}, stream);
  clear_padded_lanes(zeros.data(), stream);
  // The vector and the zeros above must be read before they are freed.
  wait_for_stream(stream);
}

/// Zeroes the padding elements: kernels read them with each row, and no wire transports them.
void RankEngine::clear_padded_lanes(void* zeros, Stream stream) {
  for (const BufferId id : plan_.buffers.ids()) {
    const BufferSpec& spec = plan_.buffer(id);
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
  return shape_of_item(plan_, item, slice_sums_.at({item.first_slice, item.num_slices}));
}

Generation RankEngine::forward_generation(const AttentionShape& shape) const {
  const Generation newest = options_.generation.value_or(newest_generation(compute_capability_));
  return why_not_forward(newest, shape).empty() ? newest : Generation::portable;
}

Generation RankEngine::backward_generation(const AttentionShape& shape) const {
  const Generation newest = options_.generation.value_or(newest_generation(compute_capability_));
  return why_not_backward(newest, shape).empty() ? newest : Generation::portable;
}

void RankEngine::begin_pass(int32_t pass) {
  pass_number_ = pass;
  fp8_.begin_pass();
  for (auto& [out, statistics] : statistics_)
    std::fill(statistics.made_rows.begin(), statistics.made_rows.end(), -1);
  for (auto& [into, kept] : kept_) kept.merged.clear();
}

/// Sets the fields that both directions need: shape, q, k, v, out and lse of the item's heads.
/// Makes k and v of latent rows that are expanded.
template <class Launch>
void RankEngine::place_rows(const ComputeItem& item, Launch& launch, Stream stream) const {
  const int32_t head = item.heads.begin;
  launch.shape = shape_of(item);
  launch.q = arrays_.rows(item.q, false, head);
  if (expanded_.is_on()) {
    std::tie(launch.k, launch.v) = expanded_.make(item, stream);
  } else {
    launch.k = arrays_.rows(item.kv, false, launch.shape.first_kv_head);
    launch.v =
        launch.shape.is_latent ? launch.k : arrays_.rows(item.kv, true, launch.shape.first_kv_head);
  }
  launch.out = arrays_.rows(item.out, false, head);
  launch.out_element = arrays_.element(item.out, false);
  const RowBlock lse = arrays_.block(item.out, true, head);
  launch.lse = static_cast<float*>(lse.data);
  launch.lse_row_stride = lse.row_stride;
}

void RankEngine::run(const ComputeItem& item, Stream stream, bool says_begun) {
  if (item.num_slices == 0) return;
  item.d_out == kNoBuffer ? compute_forward(item, stream, says_begun)
                          : compute_backward(item, stream, says_begun);
}

void RankEngine::compute_forward(const ComputeItem& item, Stream stream, bool says_begun) {
  const int32_t head = item.heads.begin;
  ForwardLaunch launch;
  place_rows(item, launch, stream);
  ScoreTermRows terms;
  if (terms_.is_on()) terms = terms_.of(item);
  launch.terms = &terms;
  launch.max_logit = arrays_.at<float>(max_logits_[item.rank]) + head;
  const Generation generation = forward_generation(launch.shape);
  Fp8Numbers fp8;
  if (fp8_.is_on()) {
    fp8 = fp8_.of(item, Direction::forward, code_form(generation, launch.shape), stream);
    if (clock_ != nullptr) clock_->end_casts(stream);
  }
  launch.fp8 = &fp8;
  const TileShape tile = forward_tile_shape(generation, launch.shape);
  launch.query_tiles = tiles_.find(item, TileOwner::queries, tile);
  launch.query_tiles.arrivals =
      arrivals_of(item, Direction::forward, TileOwner::queries, tile.heads);
  launch.counter = counters_of(item, Direction::forward);
  if (launch.query_tiles.num_cut_tiles > 0)
    launch.parts = arrays_.at<float>(key_part_sums_.at(to_index(item.out)).array);
  const OwnMerge& own = note_of(item, Direction::forward).own_merge;
  launch.merges = own.merges;
  launch.rounds = own.rounds;
  if (says_begun) launch.query_tiles.begun = {begun_flag(), pass_number_};
  launch_forward(generation, launch, stream);
  // Partials that are merged in the dtype are stored as 16-bit numbers.
  if (keeps_partials())
    launch_rounding(arrays_.first<float>(item.out),
                    arrays_.array_bytes(item.out, false) / int64_t{sizeof(float)},
                    launch.shape.dtype, stream);
}

void RankEngine::compute_backward(const ComputeItem& item, Stream stream, bool says_begun) {
  const int32_t head = item.heads.begin;
  BackwardLaunch launch;
  launch.has_own_device = options_.has_own_device;
  place_rows(item, launch, stream);
  ScoreTermRows terms;
  if (terms_.is_on()) terms = terms_.of(item);
  launch.terms = &terms;
  Fp8Numbers fp8;
  const Generation generation = backward_generation(launch.shape);
  if (fp8_.is_on()) {
    fp8 = fp8_.of(item, Direction::backward, gradient_code_form(generation, launch.shape), stream);
    if (clock_ != nullptr) clock_->end_casts(stream);
  }
  launch.fp8 = &fp8;
  launch.d_out = arrays_.rows(item.d_out, false, head);
  launch.d_out_descale = fp8_.d_out_descale();
  const bool is_moved = plan_.buffer(item.out).kind == BufferKind::stats;
  if (is_moved) {
    launch.out = {};
    launch.sent_delta = static_cast<const float*>(arrays_.block(item.out, false, head).data);
  }
  Statistics& statistics = statistics_.at(to_index(item.out));
  const int32_t own_head = head - plan_.buffer(item.out).heads.begin;
  const int64_t place = int64_t{own_head} * launch.shape.q_rows;
  launch.log2_lse = arrays_.at<float>(statistics.log2_lse) + place;
  launch.delta = arrays_.at<float>(statistics.delta) + place;
  if (statistics.offsets >= 0) {
    launch.offsets =
        arrays_.at<Bf16>(statistics.offsets) + own_head * offsets_of_head(launch.shape.q_rows);
  }
  launch.dq = arrays_.rows(item.dq, false, head);
  launch.merges_dq = note_of(item, Direction::backward).own_merge.merges;
  if (const auto sums = dq_sums_.find(to_index(item.dq)); sums != dq_sums_.end()) {
    launch.narrow_dq = launch.dq;
    const int32_t dq_head = head - plan_.buffer(item.dq).heads.begin;
    launch.dq.data = arrays_.at<float>(sums->second) + dq_head * launch.dq.head_stride;
  }
  if (expanded_.is_on()) {
    std::tie(launch.dk, launch.dv) = expanded_.gradients(item);
  } else {
    launch.dk = arrays_.rows(item.dkv, false, launch.shape.first_kv_head);
    if (!launch.shape.is_latent)
      launch.dv = arrays_.rows(item.dkv, true, launch.shape.first_kv_head);
  }
  launch.dkv_element = arrays_.element(item.dkv, false);
  if (lowered_.buffers[item.dkv].has_wire_copy) {
    const int32_t kv_head = launch.shape.first_kv_head;
    launch.wire = {arrays_.wire_block(item.dkv, false, kv_head).data,
                   arrays_.wire_block(item.dkv, true, kv_head).data, arrays_.row_uses(item.dkv)};
  }
  const bool is_fused = is_backward_fused(generation, launch.shape);
  if (!is_fused)
    launch.query_tiles =
        tiles_.find(item, TileOwner::queries, query_gradient_tile_shape(generation, launch.shape));
  launch.key_tiles =
      tiles_.find(item, TileOwner::keys, key_gradient_tile_shape(generation, launch.shape));
  launch.key_tiles.arrivals = arrivals_of(item, Direction::backward, TileOwner::keys, 1);
  if (const int32_t parts = launch.key_tiles.group_parts; parts > 1) {
    for (int32_t& end : launch.key_tiles.arrivals.ends) end *= parts;
    launch.dk_parts = part_rows_of(item, false);
    if (!launch.shape.is_latent) launch.dv_parts = part_rows_of(item, true);
  }
  launch.counters = counters_of(item, Direction::backward);
  launch.turns_taken = launch.counters + kCounterBytes / int64_t{sizeof(int32_t)};
  launch.num_turns_taken =
      is_fused ? int64_t{launch.shape.num_heads} * launch.key_tiles.num_counters : 0;
  // out and d_out of an own row stay the same over all steps.
  const auto made = statistics.made_rows.begin() + own_head;
  if (is_moved || *made != launch.shape.q_rows) {
    launch_row_statistics(launch, stream);
  } else if (launch.num_turns_taken > 0) {
    fill_bytes(launch.turns_taken, 0, launch.num_turns_taken * int64_t{sizeof(int32_t)}, stream);
  }
  std::fill_n(made, launch.shape.num_heads, launch.shape.q_rows);
  if (!is_fused) launch_query_gradient(generation, launch, stream);
  if (says_begun) launch.key_tiles.begun = {begun_flag(), pass_number_};
  launch_key_gradient(generation, launch, stream);
  if (leaves_gradient_casts(generation, launch.shape)) cast_gradients(launch, stream);
  if (expanded_.is_on()) expanded_.contract(item, stream);
}

}  // namespace cpscope::kernels
