#include "reference/home_rows.h"

#include "reference/rotate_row.h"
#include "reference/row_moves.h"
#include "sim/base/parallel.h"
#include "sim/plan/rotary_positions.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>

namespace cpscope::reference {
namespace {

int32_t row_lanes(const Attention& attention, Side side) {
  return side == Side::q ? attention.head_dim_qk : attention.key_dim();
}

/// Rotates all heads of one row of q or k by its position and rounds them to the dtype.
template <class Value>
void rotate_token(const Plan& plan, Side side, int64_t position, double direction, int64_t heads,
                  Value* row) {
  const Attention& attention = plan.scenario.attention;
  const int32_t lanes = row_lanes(attention, side),
                first = side == Side::q ? attention.first_rotated_of_q()
                                        : attention.first_rotated_of_k(),
                rotated = lanes - first;
  for (int64_t head = 0; head < heads; ++head) {
    Value* lane = row + head * lanes + first;
    // Rotating an empty row would change the sign of some zeros.
    if (std::all_of(lane, lane + rotated, [](Value value) { return value == Value(0); })) continue;
    rotate_row(attention.rope_theta, position, rotated, direction, lane);
  }
  round_values(plan.scenario.numerics.dtype,
               std::span<Value>(row, static_cast<size_t>(heads * lanes)));
}

/// Copies some heads of a rank's rows of a packed tensor; nothing of a v that is a part of k.
template <class T>
void load_rows(const Plan& plan, const Tensor& tensor, RunListId tokens, HeadRange heads,
               AlignedVector<T>& rows) {
  if (tensor.shape.empty()) return;
  const int64_t lanes = tensor.shape[2], width = heads.size() * lanes;
  T* target = rows.data();
  for (const TokenRun& run : plan.list(tokens)) {
    for (int64_t token = run.begin; token < run.end; token += run.stride, target += width) {
      const double* source = tensor.values.data() + (token * tensor.shape[1] + heads.begin) * lanes;
      std::transform(source, source + width, target,
                     [](double value) { return static_cast<T>(value); });
    }
  }
}

template <class T>
void rotate_home_rows(const Plan& plan, Side side, RunListId tokens,
                      const std::vector<int64_t>& positions, int64_t heads,
                      AlignedVector<T>& rows) {
  T* row = rows.data();
  for (const TokenRun& run : plan.list(tokens)) {
    for (int64_t token = run.begin; token < run.end; token += run.stride) {
      rotate_token(plan, side, positions[static_cast<size_t>(token)], +1.0, heads, row);
      row += heads * row_lanes(plan.scenario.attention, side);
    }
  }
}

template <class T>
Tensor make_unwritten_tensor(std::string name, std::vector<int64_t> shape) {
  Tensor tensor{std::move(name), std::move(shape), sizeof(T) == 8 ? Dtype::fp64 : Dtype::fp32, {}};
  tensor.values.assign(static_cast<size_t>(tensor.size()),
                       std::numeric_limits<double>::quiet_NaN());
  return tensor;
}

void rotate_back(const Plan& plan, Side side, int threads, Tensor& tensor) {
  const int64_t heads = tensor.shape[1];
  const std::vector<int64_t> positions = rotary_positions(plan.scenario, plan.layout.slots, side);
  for_each_index(
      tensor.shape[0],
      [&](int64_t token) {
        rotate_token(plan, side, positions[static_cast<size_t>(token)], -1.0, heads,
                     tensor.values.data() + token * heads * tensor.shape[2]);
      },
      threads);
}

}  // namespace

template <class T>
void load_inputs(const Plan& plan, const RunInputs& inputs, int threads, RankMemory<T>& memory) {
  const Attention& attention = plan.scenario.attention;
  const BatchSlots& slots = plan.layout.slots;
  const bool has_rope = attention.rope_theta > 0;
  const std::vector<int64_t> none,
      query_positions = has_rope ? rotary_positions(plan.scenario, slots, Side::q) : none,
      key_positions = has_rope ? rotary_positions(plan.scenario, slots, Side::kv) : none;
  for_each_id(
      plan.home.ids(),
      [&](RankId rank) {
        const HomeBuffers& home = plan.home[rank];
        const RunListId queries = plan.q_lists[rank], keys = plan.kv_lists[rank];
        const HeadRange heads = plan.buffer(home.q).heads, kv_heads{0, attention.kv_heads};
        load_rows(plan, inputs.q, queries, heads, memory.at(home.q).first);
        load_rows(plan, inputs.k, keys, kv_heads, memory.at(home.kv).first);
        load_rows(plan, inputs.v, keys, kv_heads, memory.at(home.kv).second);
        if (home.replica != kNoBuffer) {
          const RunListId shared = plan.buffer(home.replica).tokens;
          load_rows(plan, inputs.k, shared, kv_heads, memory.at(home.replica).first);
          load_rows(plan, inputs.v, shared, kv_heads, memory.at(home.replica).second);
          if (has_rope)
            rotate_home_rows(plan, Side::kv, shared, key_positions, attention.kv_heads,
                             memory.at(home.replica).first);
        }
        if (has_rope) {
          rotate_home_rows(plan, Side::q, queries, query_positions, heads.size(),
                           memory.at(home.q).first);
          rotate_home_rows(plan, Side::kv, keys, key_positions, attention.kv_heads,
                           memory.at(home.kv).first);
        }
        if (home.d_out != kNoBuffer)
          load_rows(plan, inputs.d_out, queries, heads, memory.at(home.d_out).first);
      },
      threads);
}

template <class T>
void collect_forward(const Plan& plan, const RankMemory<T>& memory, int threads, Answer& answer) {
  const Attention& attention = plan.scenario.attention;
  const int64_t tokens = plan.layout.slots.tokens;
  answer.out = make_unwritten_tensor<T>("out", {tokens, attention.heads, attention.head_dim_v});
  answer.lse = make_unwritten_tensor<T>("lse", {tokens, attention.heads});
  for_each_id(
      plan.home.ids(),
      [&](RankId rank) {
        scatter_to_tokens(plan, plan.home[rank].out, plan.q_lists[rank], false, attention.heads,
                          memory, answer.out);
      },
      threads);
  for (const FinishItem& item : plan.forward.finishes) {
    const BufferSpec& spec = plan.buffer(item.buffer);
    if (spec.kind != BufferKind::out) continue;
    scatter_to_tokens(plan, item.buffer, spec.tokens, true, attention.heads, memory, answer.lse);
  }
}

template <class T>
void collect_backward(const Plan& plan, const RankMemory<T>& memory, int threads, Answer& answer) {
  const Attention& attention = plan.scenario.attention;
  const int64_t tokens = plan.layout.slots.tokens, kv_tokens = plan.layout.slots.kv_tokens;
  answer.dq = make_unwritten_tensor<T>("dq", {tokens, attention.heads, attention.head_dim_qk});
  answer.dk = make_unwritten_tensor<T>("dk", {kv_tokens, attention.kv_heads, attention.key_dim()});
  const bool has_dv = attention.latent_dim == 0;
  if (has_dv)
    answer.dv =
        make_unwritten_tensor<T>("dv", {kv_tokens, attention.kv_heads, attention.head_dim_v});
  for_each_id(
      plan.home.ids(),
      [&](RankId rank) {
        const HomeBuffers& home = plan.home[rank];
        const RunListId queries = plan.q_lists[rank], keys = plan.kv_lists[rank];
        scatter_to_tokens(plan, home.dq, queries, false, attention.heads, memory, answer.dq);
        scatter_to_tokens(plan, home.dkv, keys, false, attention.kv_heads, memory, answer.dk);
        if (has_dv)
          scatter_to_tokens(plan, home.dkv, keys, true, attention.kv_heads, memory, answer.dv);
      },
      threads);
  if (attention.rope_theta > 0) {
    rotate_back(plan, Side::q, threads, answer.dq);
    rotate_back(plan, Side::kv, threads, answer.dk);
  }
}

template void load_inputs(const Plan&, const RunInputs&, int, RankMemory<float>&);
template void load_inputs(const Plan&, const RunInputs&, int, RankMemory<double>&);
template void collect_forward(const Plan&, const RankMemory<float>&, int, Answer&);
template void collect_forward(const Plan&, const RankMemory<double>&, int, Answer&);
template void collect_backward(const Plan&, const RankMemory<float>&, int, Answer&);
template void collect_backward(const Plan&, const RankMemory<double>&, int, Answer&);

}  // namespace cpscope::reference
