#include "reference/plain_fp8.h"

#include "reference/head_group.h"
#include "reference/sequence_part.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

namespace cpscope::reference {
namespace {

/// One head of one tensor in one sequence, rotated if the tensor is, in fp32 holding bf16 values.
struct HeadRows {
  int64_t rows = 0, lanes = 0;
  std::vector<float> values;  // [row, lane]
};

/// A tensor with what is needed to rotate it.
struct TensorRows {
  const Scenario& scenario;
  const RunInputs& inputs;
  const Tensor& tensor;
  Side side = Side::q;
  std::vector<RotaryTable> turns;  // [sequence]; empty if the tensor is not rotated

  HeadRows read(size_t sequence, int64_t head) const {
    const SlotSide ids = inputs.slots.sequences[sequence].side(side);
    HeadRows read{ids.valid, tensor.shape[2], {}};
    read.values.reserve(static_cast<size_t>(read.rows * read.lanes));
    std::vector<double> row(static_cast<size_t>(read.lanes));
    for (int64_t i = 0; i < read.rows; ++i) {
      const double* source = place(ids.valid_begin() + i, head);
      std::copy_n(source, read.lanes, row.begin());
      if (!turns.empty()) rotate_row(turns[sequence], i, +1, row.data());
      for (const double value : row)
        read.values.push_back(static_cast<float>(round_to(scenario.numerics.dtype, value)));
    }
    return read;
  }

  void write(size_t sequence, int64_t head, const HeadRows& rows, Tensor& target) const {
    const SlotSide ids = inputs.slots.sequences[sequence].side(side);
    std::vector<double> row(static_cast<size_t>(rows.lanes));
    for (int64_t i = 0; i < rows.rows; ++i) {
      std::copy_n(rows.values.begin() + i * rows.lanes, rows.lanes, row.begin());
      if (!turns.empty()) rotate_row(turns[sequence], i, -1, row.data());
      const auto at =
          static_cast<size_t>(place(ids.valid_begin() + i, head) - tensor.values.data());
      std::copy(row.begin(), row.end(), target.values.begin() + static_cast<int64_t>(at));
    }
  }

  template <class Visit>
  void for_each_head(Visit visit) const {
    if (tensor.values.empty()) return;
    for (size_t sequence = 0; sequence < inputs.slots.sequences.size(); ++sequence) {
      for (int64_t head = 0; head < tensor.shape[1]; ++head) visit(sequence, head);
    }
  }

  float amax() const {
    float most = 0;
    for_each_head([&](size_t sequence, int64_t head) {
      for (const float value : read(sequence, head).values) most = std::max(most, std::abs(value));
    });
    return most;
  }

  /// The tensor after change(rows) of every head.
  template <class Change>
  Tensor changed(Change change) const {
    Tensor target = tensor;
    for_each_head([&](size_t sequence, int64_t head) {
      HeadRows rows = read(sequence, head);
      change(rows);
      write(sequence, head, rows, target);
    });
    return target;
  }

 private:
  const double* place(int64_t token, int64_t head) const {
    return tensor.values.data() + (token * tensor.shape[1] + head) * tensor.shape[2];
  }
};

TensorRows rows_of_tensor(const Scenario& scenario, const RunInputs& inputs, const Tensor& tensor,
                          Side side, bool is_rotated) {
  TensorRows rows{scenario, inputs, tensor, side, {}};
  if (!is_rotated || scenario.attention.rope_theta == 0.0) return rows;
  for (const SequenceMask& mask : sequence_masks(scenario)) {
    std::vector<int64_t> positions(
        static_cast<size_t>(side == Side::q ? mask.num_queries : mask.num_keys));
    std::iota(positions.begin(), positions.end(), int64_t{0});
    rows.turns.push_back(turns_of(scenario, mask, side, positions));
  }
  return rows;
}

/// Quantises one block of values `stride` apart.
void quantise_one_block(float* first, int64_t stride, int64_t count) {
  float amax = 0;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::abs(first[i * stride]));
  const float descale = block_descale(amax);
  for (int64_t i = 0; i < count; ++i)
    first[i * stride] = quantise_in_block(first[i * stride], descale);
}

/// The first elements of every row of k, which latent attention takes for v.
Tensor latent_values(const Tensor& k, int64_t lanes) {
  Tensor v = make_filled_tensor("v", {k.shape[0], k.shape[1], lanes}, k.dtype, 0.0);
  for (int64_t row = 0; row < k.shape[0] * k.shape[1]; ++row)
    std::copy_n(k.values.begin() + row * k.shape[2], lanes, v.values.begin() + row * lanes);
  return v;
}

}  // namespace

void quantise_blocks(BlocksAlong along, int64_t num_rows, int64_t num_columns, float* values) {
  const bool in_rows = along == BlocksAlong::rows;
  const int64_t lines = in_rows ? num_rows : num_columns, length = in_rows ? num_columns : num_rows;
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t begin = 0; begin < length; begin += kMxBlock) {
      const int64_t count = std::min(kMxBlock, length - begin);
      if (in_rows) {
        quantise_one_block(values + line * num_columns + begin, 1, count);
      } else {
        quantise_one_block(values + begin * num_columns + line, num_columns, count);
      }
    }
  }
}

void quantise_all(Fp8Type type, float scale, int64_t count, float* values) {
  const float descale = 1.0f / scale;
  for (int64_t i = 0; i < count; ++i) values[i] = quantise(type, values[i], scale, descale);
}

PlainFp8 make_plain_fp8(const Scenario& scenario, const RunInputs& inputs) {
  const Fp8& recipe = scenario.numerics.fp8.value();
  PlainFp8 plain;
  plain.given = &inputs;
  plain.is_mx = recipe.recipe == Fp8Recipe::mxfp8;
  // With one scale a tensor the values of latent attention are a part of the quantised k; blocks
  // of 32 run in another direction.
  const bool has_own_blocks = plain.is_mx && inputs.v.shape.empty();
  const Tensor own_values =
      has_own_blocks ? latent_values(inputs.k, scenario.attention.head_dim_v) : Tensor{};
  const TensorRows q = rows_of_tensor(scenario, inputs, inputs.q, Side::q, true),
                   k = rows_of_tensor(scenario, inputs, inputs.k, Side::kv, true),
                   v = rows_of_tensor(scenario, inputs, has_own_blocks ? own_values : inputs.v,
                                      Side::kv, false),
                   d_out = rows_of_tensor(scenario, inputs, inputs.d_out, Side::q, false);
  const auto fill = [&](RunInputs& target, auto change_qk, auto change_v, auto change_d_out) {
    target.slots = inputs.slots;
    target.sink = inputs.sink;
    target.q = q.changed(change_qk);
    target.k = k.changed(change_qk);
    target.v = v.changed(change_v);
    target.d_out = d_out.changed(change_d_out);
  };
  if (plain.is_mx) {
    plain.gradients = Fp8Type::e4m3;
    plain.weights = 16.0f;
    plain.weights_back = 256.0f;
    const auto along_row = [](HeadRows& rows) {
      quantise_blocks(BlocksAlong::rows, rows.rows, rows.lanes, rows.values.data());
    };
    const auto along_tokens = [](HeadRows& rows) {
      quantise_blocks(BlocksAlong::columns, rows.rows, rows.lanes, rows.values.data());
    };
    fill(plain.inputs, along_row, along_tokens, along_row);
    fill(plain.turned, along_tokens, along_row, along_tokens);
    return plain;
  }
  plain.gradients = recipe.format == Fp8Format::hybrid ? Fp8Type::e5m2 : Fp8Type::e4m3;
  const Fp8History& before = inputs.fp8;
  const float amax_qkv = before.qkv > 0 ? static_cast<float>(before.qkv)
                                        : std::max({q.amax(), k.amax(), v.amax()}),
              amax_d_out = before.d_out > 0 ? static_cast<float>(before.d_out) : d_out.amax();
  const auto cast = [](Fp8Type type, float scale) {
    return [=](HeadRows& rows) {
      quantise_all(type, scale, std::ssize(rows.values), rows.values.data());
    };
  };
  const auto cast_qkv = cast(Fp8Type::e4m3, scale_for(Fp8Type::e4m3, amax_qkv));
  fill(plain.inputs, cast_qkv, cast_qkv,
       cast(plain.gradients, scale_for(plain.gradients, amax_d_out)));
  const auto scale = [](Fp8Type type, double amax) {
    return scale_for(type, static_cast<float>(amax));
  };
  plain.d_logits =
      scale(plain.gradients, before.d_logits) * static_cast<float>(logit_scale(scenario.attention));
  if (recipe.recipe == Fp8Recipe::delayed) {
    plain.out = scale(Fp8Type::e4m3, before.out);
    plain.dq = scale(plain.gradients, before.dq);
    plain.dk = scale(plain.gradients, before.dk);
    plain.dv = scale(plain.gradients, before.dv);
  }
  return plain;
}

}  // namespace cpscope::reference
