#include "tests/kernels/attention/attention_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace cpscope::tests {
namespace {

int32_t draw(std::mt19937_64& random, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(random);
}

/// A rectangle; half of the time with diagonal borders.
BandSlice random_slice(int32_t q_rows, int32_t kv_rows, std::mt19937_64& random) {
  BandSlice slice;
  slice.q0 = draw(random, 0, q_rows - 1);
  slice.q1 = draw(random, slice.q0 + 1, q_rows);
  slice.k0 = draw(random, 0, kv_rows - 1);
  slice.k1 = draw(random, slice.k0 + 1, kv_rows);
  const int32_t reach = q_rows + kv_rows;
  slice.lo = draw(random, 0, 1) == 0 ? -reach : draw(random, -q_rows, kv_rows / 2);
  slice.hi = draw(random, 0, 1) == 0 ? reach : draw(random, std::max(slice.lo, -q_rows), kv_rows);
  return slice;
}

kernels::AttentionShape plain_shape(Dtype dtype, int32_t rows, int32_t head_dim_qk,
                                    int32_t head_dim_v) {
  kernels::AttentionShape shape;
  shape.dtype = dtype;
  shape.q_rows = shape.kv_rows = rows;
  shape.num_heads = shape.num_kv_heads = 1;
  shape.head_dim_qk = head_dim_qk;
  shape.head_dim_v = head_dim_v;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_qk));
  return shape;
}

}  // namespace

AttentionCase random_case(uint64_t seed, const CaseSpace& space) {
  std::mt19937_64 random(seed);
  const auto pick = [&](const auto& from) { return from[random() % from.size()]; };
  AttentionCase item;
  item.seed = seed;
  const auto [head_dim_qk, head_dim_v] = pick(space.dims);
  kernels::AttentionShape& shape = item.shape;
  shape = plain_shape(pick(space.dtypes), 1, head_dim_qk, head_dim_v);
  shape.q_rows = draw(random, 1, space.most_rows);
  shape.kv_rows = draw(random, 1, space.most_rows);
  shape.group = draw(random, 1, 3);
  shape.first_head = draw(random, 0, 4);
  shape.num_heads = draw(random, 1, 3);
  shape.first_kv_head = shape.first_head / shape.group;
  shape.num_kv_heads =
      (shape.first_head + shape.num_heads - 1) / shape.group - shape.first_kv_head + 1;
  if (std::uniform_real_distribution<double>(0, 1)(random) < space.share_softcap)
    shape.softcap = 1.5f;
  const int32_t num_slices = draw(random, 1, 4);
  for (int32_t i = 0; i < num_slices; ++i)
    item.slices.push_back(random_slice(shape.q_rows, shape.kv_rows, random));
  // Unknown, few or many: kernels select their tiles by it.
  shape.keys_per_row = pick(std::array<int64_t, 4>{0, 0, 50, 100'000});
  if (std::uniform_real_distribution<double>(0, 1)(random) < space.share_alibi) add_alibi(item);
  return item;
}

void add_alibi(AttentionCase& item) {
  kernels::AttentionShape& shape = item.shape;
  shape.has_terms = shape.has_alibi_alone = true;
  shape.softcap = 0.0f;
  item.alibi =
      draw_alibi(shape.q_rows, shape.kv_rows, shape.first_head + shape.num_heads, item.seed);
}

AttentionCase full_case(Dtype dtype, int32_t rows, int32_t head_dim_qk, int32_t head_dim_v) {
  return {plain_shape(dtype, rows, head_dim_qk, head_dim_v),
          {{0, rows, 0, rows, -rows, rows}},
          static_cast<uint64_t>(rows)};
}

AttentionCase causal_case(Dtype dtype, int32_t rows, int32_t head_dim_qk, int32_t head_dim_v) {
  return {plain_shape(dtype, rows, head_dim_qk, head_dim_v),
          {{0, rows, 0, rows, -rows, 0}},
          static_cast<uint64_t>(rows)};
}

AttentionCase keys_before(const AttentionCase& item, int32_t end) {
  AttentionCase part = item;
  part.slices.clear();
  for (BandSlice slice : item.slices) {
    slice.k1 = std::min(slice.k1, end);
    if (slice.k0 < slice.k1) part.slices.push_back(slice);
  }
  return part;
}

AttentionCase keys_from(const AttentionCase& item, int32_t begin) {
  AttentionCase part = item;
  part.slices.clear();
  for (BandSlice slice : item.slices) {
    // Bands are counted from the slice's first key.
    const int32_t cut = std::max(0, begin - slice.k0);
    slice.k0 += cut;
    slice.lo -= cut;
    slice.hi -= cut;
    if (slice.k0 < slice.k1) part.slices.push_back(slice);
  }
  return part;
}

AttentionCase scattered_case(Dtype dtype, int32_t rows, int32_t head_dim) {
  AttentionCase item{plain_shape(dtype, rows, head_dim, head_dim), {}, static_cast<uint64_t>(rows)};
  for (int32_t key = 0; key < rows; key += 2)
    item.slices.push_back({0, rows, key, key + 1, -rows, rows});
  return item;
}

AttentionCase decode_case(const Requests& requests) {
  AttentionCase item;
  kernels::AttentionShape& shape = item.shape;
  shape.dtype = requests.dtype;
  shape.group = requests.group;
  shape.num_kv_heads = requests.kv_heads;
  shape.num_heads = requests.kv_heads * requests.group;
  shape.head_dim_qk = requests.head_dim_qk;
  shape.head_dim_v = requests.head_dim_v;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(requests.head_dim_qk));
  for (const int32_t length : requests.lengths) {
    const int32_t q = shape.q_rows, k = shape.kv_rows;
    item.slices.push_back(
        {q, q + requests.rows, k, k + length, -1'000'000, length - requests.rows});
    shape.q_rows += requests.rows;
    shape.kv_rows += length + requests.gap;
  }
  shape.slices = sum_slices(item.slices);
  shape.keys_per_row = shape.slices.pairs / std::max(1, shape.q_rows);
  return item;
}

}  // namespace cpscope::tests
