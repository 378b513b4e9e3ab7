#include "kernels/run/fp8_store.h"

#include "kernels/device/scalar_types.h"
#include "sim/base/check.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// [token] the sequence of a valid token, -1 for padding.
std::vector<int32_t> sequences_of(const BatchSlots& slots, Side side) {
  std::vector<int32_t> sequences(static_cast<size_t>(slots.tokens_of(side)), -1);
  for (size_t sequence = 0; sequence < slots.sequences.size(); ++sequence) {
    const SlotSide ids = slots.sequences[sequence].side(side);
    for (int64_t i = 0; i < ids.valid; ++i)
      sequences[static_cast<size_t>(ids.valid_begin() + i)] = static_cast<int32_t>(sequence);
  }
  return sequences;
}

/// Calls visit(sequence) for every row of a list.
template <class Visit>
void for_each_sequence(const Plan& plan, RunListId tokens, Side side, Visit visit) {
  const std::vector<int32_t> sequences = sequences_of(plan.layout.slots, side);
  for (const TokenRun& run : plan.list(tokens)) {
    for (int64_t token = run.begin; token < run.end; token += run.stride)
      visit(sequences[static_cast<size_t>(token)]);
  }
}

float scale_of(Fp8Type type, double amax) { return scale_for(type, static_cast<float>(amax)); }

}  // namespace

void cast_gradients(const BackwardLaunch& launch, Stream stream) {
  const AttentionShape& shape = launch.shape;
  const Fp8Numbers& fp8 = *launch.fp8;
  const bool holds_fp32 = launch.dkv_element == Dtype::fp32 && launch.narrow_dq.data == nullptr &&
                          launch.wire.uses == nullptr;
  CPSCOPE_CHECK(fp8.dq == 0.0f || (holds_fp32 && !launch.merges_dq),
                "results are cast in fp32 and before they are merged", fp8.dq, launch.merges_dq);
  const auto cast = [&](const DeviceRows& rows, int64_t num_rows, int32_t heads, int32_t lanes,
                        float scale) {
    if (scale != 0.0f)
      launch_result_cast({rows, num_rows, heads, lanes, fp8.gradients, scale}, stream);
  };
  cast(launch.dq, shape.q_rows, shape.num_heads, shape.head_dim_qk, fp8.dq);
  cast(launch.dk, shape.kv_rows, shape.num_kv_heads, shape.head_dim_qk, fp8.dk);
  if (!shape.is_latent)
    cast(launch.dv, shape.kv_rows, shape.num_kv_heads, shape.head_dim_v, fp8.dv);
}

Fp8Store::Fp8Store(const Plan& plan, RankArrays& arrays)
    : plan_(plan),
      recipe_(plan.scenario.numerics.fp8),
      arrays_(arrays),
      has_values_(!plan.scenario.attention.has_v_in_k()) {
  if (!is_on()) return;
  numbers_.is_mx = recipe_->recipe == Fp8Recipe::mxfp8;
  if (numbers_.is_mx || recipe_->format == Fp8Format::e4m3) numbers_.gradients = Fp8Type::e4m3;
  if (!numbers_.is_mx) return;
  for (const Direction direction : kDirections) {
    for (const ComputeItem& item : plan.pass(direction).computes) {
      if (item.num_slices == 0 || !arrays_.is_here(item.rank)) continue;
      plan_blocks(item.kv_tokens, Side::kv);
      if (direction == Direction::backward) plan_blocks(item.q_tokens, Side::q);
    }
  }
  operands_.resize(plan.home.size());
  for (const RankId rank : plan.home.ids()) {
    if (arrays_.is_here(rank)) plan_operands(rank);
  }
}

/// A block holds up to 32 rows of one sequence that follow one another.
void Fp8Store::plan_blocks(RunListId tokens, Side side) {
  const auto [entry, is_new] =
      blocks_.try_emplace(std::pair{to_index(tokens), static_cast<int32_t>(side)});
  if (!is_new) return;
  Blocks& blocks = entry->second;
  int32_t sequence_before = -1;
  for_each_sequence(plan_, tokens, side, [&](int32_t sequence) {
    const auto row = static_cast<int32_t>(blocks.numbers.size());
    const bool is_padding = sequence < 0;
    const bool is_full =
        !blocks.spans.empty() && blocks.spans.back().end - blocks.spans.back().begin == kMxBlock;
    if (!is_padding && (sequence != sequence_before || is_full)) blocks.spans.push_back({row, row});
    if (!is_padding) ++blocks.spans.back().end;
    blocks.numbers.push_back(is_padding ? -1 : static_cast<int32_t>(blocks.spans.size()) - 1);
    sequence_before = sequence;
  });
  list_bytes_ += static_cast<int64_t>(blocks.numbers.size() * sizeof(int32_t) +
                                      blocks.spans.size() * sizeof(RowSpan));
}

const Fp8Store::Blocks& Fp8Store::blocks_of(RunListId tokens, Side side) const {
  return blocks_.at({to_index(tokens), static_cast<int32_t>(side)});
}

/// Reserves as much as the rank's largest item needs.
void Fp8Store::plan_operands(RankId rank) {
  const Attention& attention = plan_.scenario.attention;
  const int64_t qk = padded_lanes(attention.head_dim_qk), v = padded_lanes(attention.head_dim_v);
  // Numbers of q and k, of d_out and v, of either direction.
  std::array<int64_t, 4> most{};
  for (const Direction direction : kDirections) {
    for (const ComputeItem& item : plan_.pass(direction).computes) {
      if (item.num_slices == 0 || item.rank != rank) continue;
      const int64_t queries = plan_.rows(item.q_tokens) * item.heads.size(),
                    keys = plan_.rows(item.kv_tokens) * kv_heads_of(attention, item.heads).size();
      const std::array<int64_t, 4> needed = {queries * qk, keys * qk, queries * v, keys * v};
      for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], needed[i]);
    }
  }
  const auto reserve = [&](const char* name, int64_t count) {
    return arrays_.reserve(fmt::format("rank {} quantised {}", to_index(rank), name),
                           count * int64_t{sizeof(Bf16)});
  };
  Operands& operands = operands_[rank];
  operands.q = reserve("q", most[0]);
  operands.k = reserve("k", most[1]);
  operands.v = reserve("v", most[3]);
  if (!plan_.scenario.numerics.backward) return;
  operands.d_out = reserve("d_out", most[2]);
  operands.turned_q = reserve("q along tokens", most[0]);
  operands.turned_k = reserve("k along tokens", most[1]);
  operands.turned_d_out = reserve("d_out along tokens", most[2]);
}

namespace {

/// Columns of V's codes: whole groups.
int32_t code_columns(int64_t kv_rows) {
  return static_cast<int32_t>((kv_rows + kCodeGroup - 1) / kCodeGroup * kCodeGroup);
}

}  // namespace

void Fp8Store::plan_codes(const ComputeItem& item, CodeForm form) {
  if (form == CodeForm::none) return;
  if (codes_.empty()) codes_.resize(plan_.home.size());
  const bool is_turned = form == CodeForm::turned_values;
  if (is_turned) plan_blocks(item.kv_tokens, Side::kv);
  const int64_t kv_heads = kv_heads_of(plan_.scenario.attention, item.heads).size(),
                kv_rows = plan_.rows(item.kv_tokens);
  const int64_t q_bytes = form == CodeForm::rows
                              ? 0
                              : plan_.rows(item.q_tokens) * item.heads.size() * int64_t{kCodeLanes};
  const int64_t d_out_bytes = form == CodeForm::all_rows ? q_bytes : 0;
  Codes& codes = codes_[item.rank];
  codes.q_bytes = std::max(codes.q_bytes, q_bytes);
  codes.d_out_bytes = std::max(codes.d_out_bytes, d_out_bytes);
  codes.k_bytes = std::max(codes.k_bytes, kv_rows * kv_heads * kCodeLanes);
  codes.v_bytes = std::max(codes.v_bytes,
                           (is_turned ? code_columns(kv_rows) : kv_rows) * kv_heads * kCodeLanes);
}

void Fp8Store::reserve_codes() {
  for (const RankId rank : codes_.ids()) {
    Codes& codes = codes_[rank];
    if (codes.k_bytes == 0) continue;
    const auto reserve = [&](const char* name, int64_t bytes) {
      return arrays_.reserve(fmt::format("rank {} codes of {}", to_index(rank), name), bytes);
    };
    if (codes.q_bytes > 0) codes.q = reserve("q", codes.q_bytes);
    codes.k = reserve("k", codes.k_bytes);
    codes.v = reserve("v", codes.v_bytes);
    if (codes.d_out_bytes > 0) codes.d_out = reserve("d_out", codes.d_out_bytes);
  }
}

void Fp8Store::encode(const ComputeItem& item, CodeForm form, Fp8Numbers& numbers, Stream stream) {
  const Attention& attention = plan_.scenario.attention;
  const HeadRange range = kv_heads_of(attention, item.heads);
  const int32_t heads = item.heads.size(), kv_heads = range.size();
  const int32_t qk = attention.head_dim_qk, v_lanes = attention.head_dim_v;
  const int64_t rows = plan_.rows(item.q_tokens), kv_rows = plan_.rows(item.kv_tokens);
  Codes& codes = codes_[item.rank];
  auto *const k = arrays_.at<uint8_t>(codes.k), *const v = arrays_.at<uint8_t>(codes.v);
  const auto codes_of = [](uint8_t* data, int32_t num_heads) {
    return DeviceRows{data, int64_t{num_heads} * kCodeLanes, kCodeLanes};
  };
  numbers.k_codes = codes_of(k, kv_heads);
  numbers.v_codes = codes_of(v, kv_heads);
  if (form == CodeForm::rows && codes.keys == Kept{item.kv, range}) return;
  launch_code_rows({numbers.k, k, kv_rows, kv_heads, qk}, stream);
  if (form == CodeForm::turned_values) {
    const int32_t columns = code_columns(kv_rows);
    numbers.v_codes = {v, columns, int64_t{columns} * kCodeLanes};
    const int32_t* const blocks =
        blocks_of(item.kv_tokens, Side::kv).numbers_on_device.as<int32_t>();
    launch_code_columns({numbers.v, v, blocks, kv_rows, kv_heads, v_lanes, columns}, stream);
  } else {
    launch_code_rows({numbers.v, v, kv_rows, kv_heads, v_lanes}, stream);
  }
  const HomeBuffers& home = plan_.home[item.rank];
  codes.keys = form == CodeForm::rows && item.kv == home.kv ? Kept{item.kv, range} : Kept{};
  if (form == CodeForm::rows) return;
  const bool is_backward = form == CodeForm::all_rows;
  auto* const q = arrays_.at<uint8_t>(codes.q);
  numbers.q_codes = codes_of(q, heads);
  auto* const d_out = is_backward ? arrays_.at<uint8_t>(codes.d_out) : nullptr;
  if (is_backward) numbers.d_out_codes = codes_of(d_out, heads);
  const Kept queries{item.q, item.heads};
  if (codes.queries == queries) return;
  launch_code_rows({numbers.q, q, rows, heads, qk}, stream);
  if (is_backward)
    launch_code_rows({numbers.d_out, d_out, rows, heads, v_lanes, numbers.gradients}, stream);
  const bool is_own = item.q == home.q && (!is_backward || item.d_out == home.d_out);
  codes.queries = is_own ? queries : Kept{};
}

void Fp8Store::begin_pass() {
  for (Codes& codes : codes_.values()) codes.queries = {};
}

void Fp8Store::load(const RunInputs& inputs, Stream stream) {
  history_ = inputs.fp8;
  for (auto& [key, blocks] : blocks_) {
    blocks.numbers_on_device = to_device(blocks.numbers, stream);
    blocks.spans_on_device = to_device(blocks.spans, stream);
  }
  wait_for_stream(stream);
}

std::vector<uint8_t> Fp8Store::valid_rows(RunListId tokens, Side side) const {
  std::vector<uint8_t> is_valid;
  for_each_sequence(plan_, tokens, side,
                    [&](int32_t sequence) { is_valid.push_back(sequence < 0 ? 0 : 1); });
  return is_valid;
}

void Fp8Store::raise_amax(BufferId buffer, bool second, const std::vector<uint8_t>& is_valid,
                          const DeviceMemory& valid_on_device, float* amax, Stream stream) const {
  const BufferShape shape = arrays_.shape(buffer, second);
  launch_row_amax({arrays_.block(buffer, second, plan_.buffer(buffer).heads.begin),
                   valid_on_device.as<uint8_t>(), static_cast<int64_t>(is_valid.size()),
                   shape.heads, shape.lanes, amax},
                  stream);
}

Fp8Amax Fp8Store::find_amax(Stream stream) const {
  std::array<float, 2> found{};  // of q, k and v; of d_out
  const DeviceMemory memory(int64_t{sizeof found});
  copy_to_device(memory.data(), found.data(), sizeof found, stream);
  auto* const amax = memory.as<float>();
  for (const RankId rank : plan_.home.ids()) {
    if (!arrays_.is_here(rank)) continue;
    const HomeBuffers& home = plan_.home[rank];
    const std::vector<uint8_t> queries = valid_rows(plan_.q_lists[rank], Side::q),
                               keys = valid_rows(plan_.kv_lists[rank], Side::kv);
    const DeviceMemory queries_there = to_device(queries, stream),
                       keys_there = to_device(keys, stream);
    raise_amax(home.q, false, queries, queries_there, amax, stream);
    raise_amax(home.kv, false, keys, keys_there, amax, stream);
    if (has_values_) raise_amax(home.kv, true, keys, keys_there, amax, stream);
    if (home.d_out != kNoBuffer)
      raise_amax(home.d_out, false, queries, queries_there, amax + 1, stream);
    wait_for_stream(stream);  // before the rank's lists are freed
  }
  copy_to_host(found.data(), memory.data(), sizeof found, stream);
  wait_for_stream(stream);
  return {found[0], found[1]};
}

void Fp8Store::scale_rows(BufferId buffer, bool second, Fp8Type type, float scale,
                          Stream stream) const {
  void* const data = second ? arrays_.second(buffer) : arrays_.first(buffer);
  launch_row_scaling(
      {data, arrays_.array_bytes(buffer, second) / int64_t{sizeof(Bf16)}, type, scale}, stream);
}

void Fp8Store::quantise(const Fp8Amax& amax, Stream stream) {
  if (!is_on() || numbers_.is_mx) return;
  const float scale = scale_of(Fp8Type::e4m3, history_.qkv > 0 ? history_.qkv : amax.qkv),
              d_out_scale =
                  scale_of(numbers_.gradients, history_.d_out > 0 ? history_.d_out : amax.d_out);
  numbers_.descale = 1.0f / scale;
  numbers_.d_out_descale = 1.0f / d_out_scale;
  numbers_.d_logits = scale_of(numbers_.gradients, history_.d_logits);
  if (recipe_->recipe == Fp8Recipe::delayed) {
    numbers_.out = scale_of(Fp8Type::e4m3, history_.out);
    numbers_.dq = scale_of(numbers_.gradients, history_.dq);
    numbers_.dk = scale_of(numbers_.gradients, history_.dk);
    numbers_.dv = scale_of(numbers_.gradients, history_.dv);
  }
  for (Codes& codes : codes_.values()) codes.keys = codes.queries = {};
  for (const RankId rank : plan_.home.ids()) {
    if (!arrays_.is_here(rank)) continue;
    const HomeBuffers& home = plan_.home[rank];
    scale_rows(home.q, false, Fp8Type::e4m3, scale, stream);
    for (const BufferId id : {home.kv, home.replica}) {
      if (id == kNoBuffer) continue;
      scale_rows(id, false, Fp8Type::e4m3, scale, stream);
      if (has_values_) scale_rows(id, true, Fp8Type::e4m3, scale, stream);
    }
    if (home.d_out != kNoBuffer)
      scale_rows(home.d_out, false, numbers_.gradients, d_out_scale, stream);
  }
  wait_for_stream(stream);
}

Fp8Numbers Fp8Store::of(const ComputeItem& item, Direction direction, CodeForm codes,
                        Stream stream) {
  Fp8Numbers numbers = numbers_;
  if (numbers.is_mx) {
    cast_operands(item, direction, numbers, stream);
    return numbers;
  }
  const int32_t head = item.heads.begin,
                kv_head = kv_heads_of(plan_.scenario.attention, item.heads).begin;
  numbers.q = numbers.turned_q = arrays_.rows(item.q, false, head);
  numbers.k = numbers.turned_k = arrays_.rows(item.kv, false, kv_head);
  numbers.v = has_values_ ? arrays_.rows(item.kv, true, kv_head) : numbers.k;
  if (direction == Direction::backward)
    numbers.d_out = numbers.turned_d_out = arrays_.rows(item.d_out, false, head);
  if (codes != CodeForm::none) encode(item, codes, numbers, stream);
  return numbers;
}

/// Quantises rows of some heads into an array; along tokens if there are blocks. With second the
/// rows are those of v, also where they are a part of k.
DeviceRows Fp8Store::cast(BufferId buffer, bool second, HeadRange heads, int64_t rows,
                          const Blocks* blocks, int32_t array, Stream stream) const {
  const bool is_part = second && !has_values_;
  const BufferShape shape = arrays_.shape(buffer, second && !is_part);
  const int32_t lanes = is_part ? plan_.scenario.attention.head_dim_v : shape.lanes,
                pitch = is_part ? padded_lanes(lanes) : shape.pitch;
  BlockCast cast;
  cast.from = arrays_.rows(buffer, second && !is_part, heads.begin);
  cast.to = {arrays_.at(array), int64_t{heads.size()} * pitch, pitch};
  cast.num_rows = rows;
  cast.heads = heads.size();
  cast.lanes = lanes;
  if (blocks != nullptr) {
    cast.blocks = blocks->spans_on_device.as<RowSpan>();
    cast.num_blocks = static_cast<int32_t>(blocks->spans.size());
  }
  launch_block_cast(cast, stream);
  return cast.to;
}

/// In the forward blocks of q and k run along a row, those of v along tokens; the backward takes
/// v along a row, and q, k and d_out both ways.
void Fp8Store::cast_operands(const ComputeItem& item, Direction direction, Fp8Numbers& numbers,
                             Stream stream) const {
  const HeadRange heads = item.heads, kv_heads = kv_heads_of(plan_.scenario.attention, heads);
  const int64_t rows = plan_.rows(item.q_tokens), kv_rows = plan_.rows(item.kv_tokens);
  const Operands& operands = operands_[item.rank];
  const bool is_backward = direction == Direction::backward;
  const Blocks& of_keys = blocks_of(item.kv_tokens, Side::kv);
  numbers.weights = is_backward ? 256.0f : 16.0f;
  numbers.kv_blocks = of_keys.on_device();
  numbers.q = cast(item.q, false, heads, rows, nullptr, operands.q, stream);
  numbers.k = cast(item.kv, false, kv_heads, kv_rows, nullptr, operands.k, stream);
  numbers.v =
      cast(item.kv, true, kv_heads, kv_rows, is_backward ? nullptr : &of_keys, operands.v, stream);
  if (!is_backward) return;
  const Blocks& of_queries = blocks_of(item.q_tokens, Side::q);
  numbers.q_blocks = of_queries.on_device();
  numbers.d_out = cast(item.d_out, false, heads, rows, nullptr, operands.d_out, stream);
  numbers.turned_q = cast(item.q, false, heads, rows, &of_queries, operands.turned_q, stream);
  numbers.turned_k = cast(item.kv, false, kv_heads, kv_rows, &of_keys, operands.turned_k, stream);
  numbers.turned_d_out =
      cast(item.d_out, false, heads, rows, &of_queries, operands.turned_d_out, stream);
}

}  // namespace cpscope::kernels
