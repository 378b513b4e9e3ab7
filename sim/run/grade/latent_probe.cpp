#include "sim/run/grade/latent_probe.h"

#include <algorithm>
#include <utility>

namespace cpscope {
namespace {

/// Turns the first `count` elements of every head's rows: element i becomes number (i + h) % count
/// of head h, or the other way round.
void turn_heads(Tensor& tensor, int64_t count, bool back) {
  if (tensor.shape.size() != 3) return;
  const int64_t heads = tensor.shape[1], lanes = tensor.shape[2];
  for (int64_t row = 0; row < tensor.shape[0] * heads; ++row) {
    double* const first = tensor.values.data() + row * lanes;
    const int64_t by = row % heads % count;
    std::rotate(first, first + (back ? (count - by) % count : by), first + count);
  }
}

/// [heads, elements, latent_dim] Weights that select latent elements from `begin` on.
Tensor select_elements(const Attention& attention, const char* name, int64_t elements,
                       int64_t begin, Dtype dtype) {
  Tensor weights =
      make_filled_tensor(name, {attention.heads, elements, attention.latent_dim}, dtype, 0.0);
  for (int64_t row = 0; row < attention.heads * elements; ++row) {
    const int64_t head = row / elements, element = row % elements;
    weights.values[row * attention.latent_dim + begin + (element + head) % elements] = 1.0;
  }
  return weights;
}

/// One element list of a row: `count` elements of a coded tensor at `at` are those of a latent row
/// from `in_row` on.
struct Part {
  bool is_of_v = false;
  int64_t at = 0, in_row = 0, count = 0;
};

std::vector<Part> parts_of(const Attention& attention) {
  const int64_t made = attention.latent_nope_dim, dim_v = attention.head_dim_v;
  return {{false, 0, 0, made},
          {true, 0, made, dim_v},
          {false, made, attention.latent_dim, attention.head_dim_qk - made}};
}

}  // namespace

Attention probed_attention(const Attention& attention) {
  return attention.expands_rows() ? attention.with_expanded_rows(1) : attention;
}

Scenario with_room_for_codes(Scenario scenario) {
  Attention& attention = scenario.attention;
  if (attention.expands_rows())
    attention.latent_dim =
        std::max(attention.latent_dim, attention.latent_nope_dim + attention.head_dim_v);
  return scenario;
}

RunInputs pack_codes(const Attention& attention, RunInputs inputs) {
  if (!attention.expands_rows()) return inputs;
  const Dtype dtype = inputs.k.dtype;
  const int64_t made = attention.latent_nope_dim, dim_v = attention.head_dim_v;
  turn_heads(inputs.q, made, false);
  turn_heads(inputs.d_out, dim_v, false);
  Tensor rows = make_filled_tensor("k", {inputs.k.shape[0], 1, attention.key_dim()}, dtype, 0.0);
  for (const Part& part : parts_of(attention)) {
    const Tensor& from = part.is_of_v ? inputs.v : inputs.k;
    for (int64_t row = 0; row < rows.shape[0]; ++row)
      std::copy_n(from.values.data() + row * from.shape[2] + part.at, part.count,
                  rows.values.data() + row * rows.shape[2] + part.in_row);
  }
  inputs.k = std::move(rows);
  inputs.v = {};
  inputs.w_k = select_elements(attention, "w_k", made, 0, dtype);
  inputs.w_v = select_elements(attention, "w_v", dim_v, made, dtype);
  return inputs;
}

void unpack_codes(const Attention& attention, Answer& answer) {
  if (!attention.expands_rows()) return;
  turn_heads(answer.out, attention.head_dim_v, true);
  turn_heads(answer.dq, attention.latent_nope_dim, true);
  if (answer.dk.shape.size() != 3) return;
  const Tensor rows = std::exchange(answer.dk, {});
  answer.dk = make_filled_tensor("dk", {rows.shape[0], 1, attention.head_dim_qk}, rows.dtype, 0.0);
  answer.dv = make_filled_tensor("dv", {rows.shape[0], 1, attention.head_dim_v}, rows.dtype, 0.0);
  for (const Part& part : parts_of(attention)) {
    Tensor& to = part.is_of_v ? answer.dv : answer.dk;
    for (int64_t row = 0; row < rows.shape[0]; ++row)
      std::copy_n(rows.values.data() + row * rows.shape[2] + part.in_row, part.count,
                  to.values.data() + row * to.shape[2] + part.at);
  }
}

}  // namespace cpscope
