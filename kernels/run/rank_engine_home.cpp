// The begin and end of an engine's run: inputs to home buffers, results from them.
#include "kernels/device/scalar_types.h"
#include "kernels/run/rank_engine.h"
#include "sim/base/parallel.h"
#include "sim/plan/kept_inputs.h"
#include "sim/plan/rotary_positions.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace cpscope::kernels {
namespace {

/// Expands the ids of a run list.
std::vector<int32_t> ids_of(std::span<const TokenRun> runs) {
  std::vector<int32_t> ids;
  for (const TokenRun& run : runs) {
    for (int64_t id = run.begin; id < run.end; id += run.stride)
      ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

/// [row] The rotary position of each token.
std::vector<int32_t> positions_of(const std::vector<int64_t>& positions,
                                  const std::vector<int32_t>& tokens) {
  std::vector<int32_t> rows;
  for (const int32_t token : tokens)
    rows.push_back(static_cast<int32_t>(positions[static_cast<size_t>(token)]));
  return rows;
}

/// The bytes of an element, low bytes first.
uint32_t encode_value(Dtype element, double value) {
  const auto narrow = static_cast<float>(value);
  if (element == Dtype::bf16) return to_bf16_bits(narrow);
  if (element == Dtype::fp16) return to_fp16_bits(narrow);
  return std::bit_cast<uint32_t>(narrow);
}

Tensor make_tensor(const char* name, std::vector<int64_t> shape) {
  Tensor tensor{name, std::move(shape), Dtype::fp32, {}};
  // Rows that no rank computes stay NaN, so the comparison finds them.
  tensor.values.assign(static_cast<size_t>(tensor.size()),
                       std::numeric_limits<double>::quiet_NaN());
  return tensor;
}

/// Results of several engines are collected in one tensor.
Tensor& tensor_of(Tensor& tensor, const char* name, std::vector<int64_t> shape) {
  if (tensor.values.empty()) tensor = make_tensor(name, std::move(shape));
  return tensor;
}

}  // namespace

/// The heads of the buffer; nothing of a v that is a part of k.
void RankEngine::load_rows(const Tensor& tensor, RunListId tokens, BufferId buffer, bool second,
                           Stream stream) {
  if (second && !arrays_.has_second(buffer)) return;
  const std::vector<int32_t> ids = ids_of(plan_.list(tokens));
  const BufferShape shape = arrays_.shape(buffer, second);
  const int32_t first_head = plan_.buffer(buffer).heads.begin;
  const Dtype element = plan_.scenario.numerics.dtype;
  const int64_t size = element_size(element), row_bytes = int64_t{shape.heads} * shape.pitch * size;
  std::vector<uint8_t> packed(ids.size() * static_cast<size_t>(row_bytes), 0);
  for_each_index(
      static_cast<int64_t>(ids.size()),
      [&](int64_t i) {
        for (int32_t head = 0; head < shape.heads; ++head) {
          const double* source =
              tensor.values.data() +
              (int64_t{ids[i]} * tensor.shape[1] + first_head + head) * shape.lanes;
          uint8_t* target = packed.data() + i * row_bytes + head * shape.pitch * size;
          for (int32_t lane = 0; lane < shape.lanes; ++lane) {
            const uint32_t bits = encode_value(element, source[lane]);
            std::copy_n(reinterpret_cast<const uint8_t*>(&bits), size, target + lane * size);
          }
        }
      },
      options_.threads);
  auto* to = second ? arrays_.second<void>(buffer) : arrays_.first<void>(buffer);
  copy_to_device(to, packed.data(), static_cast<int64_t>(packed.size()), stream);
  wait_for_stream(stream);
}

void RankEngine::rotate_home(RankId rank, double direction, Stream stream) {
  const HomeBuffers& home = plan_.home[rank];
  const bool is_input = direction > 0;
  rotate_rows(is_input ? home.q : home.dq, plan_.q_lists[rank], Side::q, direction, stream);
  rotate_rows(is_input ? home.kv : home.dkv, plan_.kv_lists[rank], Side::kv, direction, stream);
  if (is_input && home.replica != kNoBuffer)
    rotate_rows(home.replica, plan_.buffer(home.replica).tokens, Side::kv, direction, stream);
}

void RankEngine::rotate_rows(BufferId buffer, RunListId tokens, Side side, double direction,
                             Stream stream) {
  std::vector<int64_t>& known = rotary_positions_[static_cast<size_t>(side)];
  if (known.empty()) known = rotary_positions(plan_.scenario, plan_.layout.slots, side);
  const DeviceMemory positions = to_device(positions_of(known, ids_of(plan_.list(tokens))), stream);
  RowRotation rotation;
  rotation.shape = arrays_.shape(buffer, false);
  rotation.shape.rows = plan_.rows(tokens);
  rotation.data = arrays_.first<void>(buffer);
  rotation.element = arrays_.element(buffer, false);
  rotation.round_to = plan_.scenario.numerics.dtype;
  rotation.first_lane =
      side == Side::q ? attention_.first_rotated_of_q() : attention_.first_rotated_of_k();
  rotation.positions = positions.as<int32_t>();
  rotation.theta = attention_.rope_theta;
  rotation.direction = direction;
  launch_row_rotation(rotation, stream);
  wait_for_stream(stream);
}

void RankEngine::load(const RunInputs& inputs, Stream stream) {
  std::vector<float> sink(static_cast<size_t>(attention_.heads), 0.0f);
  std::copy(inputs.sink.begin(), inputs.sink.end(), sink.begin());
  copy_to_device(arrays_.at(sink_), sink.data(), attention_.heads * int64_t{sizeof(float)}, stream);
  fill_bytes(arrays_.at(d_sink_), 0, attention_.heads * int64_t{sizeof(double)}, stream);
  terms_.load(inputs, stream);
  fp8_.load(inputs, stream);
  expanded_.load(inputs, stream);
  for (const RankId rank : plan_.home.ids()) {
    if (!arrays_.is_here(rank)) continue;
    const HomeBuffers& home = plan_.home[rank];
    load_rows(inputs.q, plan_.q_lists[rank], home.q, false, stream);
    load_rows(inputs.k, plan_.kv_lists[rank], home.kv, false, stream);
    load_rows(inputs.v, plan_.kv_lists[rank], home.kv, true, stream);
    if (home.replica != kNoBuffer) {
      const RunListId shared = plan_.buffer(home.replica).tokens;
      load_rows(inputs.k, shared, home.replica, false, stream);
      load_rows(inputs.v, shared, home.replica, true, stream);
    }
    if (home.d_out != kNoBuffer)
      load_rows(inputs.d_out, plan_.q_lists[rank], home.d_out, false, stream);
    if (attention_.rope_theta > 0) rotate_home(rank, +1.0, stream);
  }
  wait_for_stream(stream);
}

BufferUse RankEngine::sent_statistics_use(const Plan& plan, RankId rank) {
  const HomeBuffers& home = plan.home[rank];
  if (home.stats == kNoBuffer) return {};
  return {{home.out, home.d_out}, {home.stats}};
}

void RankEngine::make_sent_statistics(RankId rank, Stream stream) {
  const HomeBuffers& home = plan_.home[rank];
  if (home.stats == kNoBuffer) return;
  RowDeltas deltas;
  deltas.shape = arrays_.shape(home.out, false);
  deltas.out = arrays_.first<void>(home.out);
  deltas.out_element = arrays_.element(home.out, false);
  deltas.lse = arrays_.second<float>(home.out);
  deltas.d_out = arrays_.first<void>(home.d_out);
  deltas.d_out_element = arrays_.element(home.d_out, false);
  deltas.d_out_descale = fp8_.d_out_descale();
  deltas.delta = arrays_.first<float>(home.stats);
  deltas.copied_lse = arrays_.second<float>(home.stats);
  launch_row_deltas(deltas, stream);
}

std::vector<float> RankEngine::read(BufferId id, bool second, Stream stream) const {
  const BufferShape shape = arrays_.shape(id, second);
  const Dtype element = arrays_.element(id, second);
  const int64_t size = element_size(element);
  std::vector<uint8_t> bytes(static_cast<size_t>(arrays_.array_bytes(id, second)));
  copy_to_host(bytes.data(), second ? arrays_.second<void>(id) : arrays_.first<void>(id),
               static_cast<int64_t>(bytes.size()), stream);
  wait_for_stream(stream);
  std::vector<float> values(static_cast<size_t>(shape.rows * shape.heads * shape.lanes));
  for_each_index(
      shape.rows * shape.heads,
      [&](int64_t unit) {
        for (int32_t lane = 0; lane < shape.lanes; ++lane) {
          uint32_t bits = 0;
          std::copy_n(bytes.data() + (unit * shape.pitch + lane) * size, size,
                      reinterpret_cast<uint8_t*>(&bits));
          values[unit * shape.lanes + lane] =
              element == Dtype::bf16   ? from_bf16_bits(static_cast<uint16_t>(bits))
              : element == Dtype::fp16 ? from_fp16_bits(static_cast<uint16_t>(bits))
                                       : std::bit_cast<float>(bits);
        }
      },
      options_.threads);
  return values;
}

void RankEngine::collect_rows(BufferId buffer, bool second, RunListId tokens, Tensor& tensor,
                              Stream stream) {
  const BufferSpec& spec = plan_.buffer(buffer);
  const int64_t lanes = array_lanes(spec.kind, second, attention_).lanes;
  const int64_t all_heads = tensor.shape[1];
  const std::vector<float> values = read(buffer, second, stream);
  const std::vector<int32_t> ids = ids_of(plan_.list(tokens));
  for (size_t i = 0; i < ids.size(); ++i) {
    std::copy_n(values.data() + static_cast<int64_t>(i) * spec.heads.size() * lanes,
                spec.heads.size() * lanes,
                tensor.values.data() + (ids[i] * all_heads + spec.heads.begin) * lanes);
  }
}

void RankEngine::collect_forward(Answer& answer, Stream stream) {
  const int64_t tokens = plan_.layout.slots.tokens;
  Tensor& out = tensor_of(answer.out, "out", {tokens, attention_.heads, attention_.head_dim_v});
  Tensor& lse = tensor_of(answer.lse, "lse", {tokens, attention_.heads});
  for (const RankId rank : plan_.home.ids()) {
    if (arrays_.holds(plan_.home[rank].out))
      collect_rows(plan_.home[rank].out, false, plan_.q_lists[rank], out, stream);
  }
  // lse is not sent: it is read where it was computed.
  for (const BufferId made : lowered_.answers) {
    if (arrays_.holds(made)) collect_rows(made, true, plan_.buffer(made).tokens, lse, stream);
  }
  answer.has_short_sums |= has_short_sums_;
  answer.max_logit.resize(static_cast<size_t>(attention_.heads),
                          -std::numeric_limits<double>::infinity());
  std::vector<float> seen(static_cast<size_t>(attention_.heads));
  for (const int32_t array : max_logits_) {
    if (array < 0) continue;
    copy_to_host(seen.data(), arrays_.at(array), attention_.heads * int64_t{sizeof(float)}, stream);
    wait_for_stream(stream);
    for (size_t h = 0; h < seen.size(); ++h)
      answer.max_logit[h] = std::max(answer.max_logit[h], static_cast<double>(seen[h]));
  }
}

void RankEngine::collect_backward(Answer& answer, Stream stream) {
  const int64_t tokens = plan_.layout.slots.tokens, kv_tokens = plan_.layout.slots.kv_tokens;
  const int64_t dim_qk = attention_.head_dim_qk, dim_v = attention_.head_dim_v;
  Tensor& dq = tensor_of(answer.dq, "dq", {tokens, attention_.heads, dim_qk});
  Tensor& dk = tensor_of(answer.dk, "dk", {kv_tokens, attention_.kv_heads, attention_.key_dim()});
  for (const RankId rank : plan_.home.ids()) {
    const HomeBuffers& home = plan_.home[rank];
    if (!arrays_.holds(home.dq)) continue;
    if (attention_.rope_theta > 0) rotate_home(rank, -1.0, stream);
    collect_rows(home.dq, false, plan_.q_lists[rank], dq, stream);
    collect_rows(home.dkv, false, plan_.kv_lists[rank], dk, stream);
    if (attention_.latent_dim > 0) continue;  // dk is the gradient of v too
    Tensor& dv = tensor_of(answer.dv, "dv", {kv_tokens, attention_.kv_heads, dim_v});
    collect_rows(home.dkv, true, plan_.kv_lists[rank], dv, stream);
  }
  if (attention_.softmax_type == SoftmaxType::learnable) collect_sink_gradient(answer, stream);
  terms_.collect(answer, stream);
}

void RankEngine::add_sink_gradient(BufferId out, BufferId d_out, Stream stream) {
  SinkGradient gradient;
  gradient.shape = arrays_.shape(out, false);
  gradient.out = arrays_.out_rows(out);
  gradient.first_head = plan_.buffer(out).heads.begin;
  const RowBlock rows = arrays_.block(d_out, false, gradient.first_head);
  gradient.d_out = rows.data;
  gradient.element = rows.element;
  gradient.d_out_row_stride = rows.row_stride;
  gradient.d_out_descale = fp8_.d_out_descale();
  gradient.sink = arrays_.at<float>(sink_);
  gradient.d_sink = arrays_.at<double>(d_sink_);
  launch_sink_gradient(gradient, stream);
}

void RankEngine::collect_sink_gradient(Answer& answer, Stream stream) {
  // Each row counts once: on its owner where queries move, else on the rank that computed it.
  for (const HomeBuffers& home : plan_.home) {
    if (arrays_.holds(home.stats)) add_sink_gradient(home.out, home.d_out, stream);
  }
  IdVector<BufferId, bool> is_counted(plan_.buffers.size(), false);
  for (const ComputeItem& item : plan_.backward.computes) {
    if (!arrays_.is_here(item.rank) || is_counted[item.out] ||
        plan_.home[item.rank].stats != kNoBuffer)
      continue;
    is_counted[item.out] = true;
    add_sink_gradient(item.out, item.d_out, stream);
  }
  std::vector<double> d_sink(static_cast<size_t>(attention_.heads));
  copy_to_host(d_sink.data(), arrays_.at(d_sink_), attention_.heads * int64_t{sizeof(double)},
               stream);
  wait_for_stream(stream);
  answer.d_sink.resize(d_sink.size(), 0.0);
  for (size_t h = 0; h < d_sink.size(); ++h) answer.d_sink[h] += d_sink[h];
}

void RankEngine::plan_kept_inputs() {
  if (!options_.repeats) return;
  for (const BufferId id : find_kept_inputs(plan_)) {
    for (const bool is_second : {false, true}) {
      if (!arrays_.holds(id) || (is_second && !arrays_.has_second(id))) continue;
      kept_inputs_.push_back(
          {id, is_second, arrays_.reserve("kept input", arrays_.array_bytes(id, is_second))});
    }
  }
}

void RankEngine::move_kept_inputs(bool keeps, Stream stream) {
  for (const KeptArray& kept : kept_inputs_) {
    void* const used = kept.is_second ? arrays_.second(kept.buffer) : arrays_.first(kept.buffer);
    void* const copy = arrays_.at(kept.copy);
    copy_on_device(keeps ? copy : used, keeps ? used : copy,
                   arrays_.array_bytes(kept.buffer, kept.is_second), stream);
  }
}

}  // namespace cpscope::kernels
