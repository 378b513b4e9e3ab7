#pragma once

#include "kernels/attention/alibi.h"
#include "kernels/attention/score_term_rows.h"
#include "kernels/device/device_code.h"

#include <cstdint>

/// Bias, ALiBi and dropout of the cells of a tile, for the kernels that multiply in fp32.
namespace cpscope::kernels::device {

struct PhiloxState {
  uint32_t counter[4];
  uint32_t key[2];
};

__device__ __forceinline__ uint32_t high_product(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}

/// Word number `word` of Philox 4x32 with 10 rounds.
__device__ __forceinline__ uint32_t draw_word(PhiloxState state, int word) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t left = 0xD2511F53u * state.counter[0], right = 0xCD9E8D57u * state.counter[2];
    const uint32_t left_high = high_product(0xD2511F53u, state.counter[0]),
                   right_high = high_product(0xCD9E8D57u, state.counter[2]);
    state.counter[0] = right_high ^ state.counter[1] ^ state.key[0];
    state.counter[1] = right;
    state.counter[2] = left_high ^ state.counter[3] ^ state.key[1];
    state.counter[3] = left;
    state.key[0] += 0x9E3779B9u;
    state.key[1] += 0xBB67AE85u;
  }
  return word == 0   ? state.counter[0]
         : word == 1 ? state.counter[1]
         : word == 2 ? state.counter[2]
                     : state.counter[3];
}

/// The terms of visible cells: rows of both sides hold valid tokens of one sequence.
struct RowTerms {
  static constexpr bool kAny = true;
  const ScoreTermRows& rows;

  __device__ __forceinline__ bool adds() const {
    return rows.alibi.slopes != nullptr || rows.bias != nullptr;
  }
  __device__ __forceinline__ bool drops() const { return rows.threshold != 0; }
  __device__ __forceinline__ bool has_gradient() const { return rows.dbias != nullptr; }

  __device__ __forceinline__ float added(int32_t head, int32_t q_row, int32_t kv_row) const {
    float sum = 0.0f;
    if (rows.alibi.slopes != nullptr) {
      sum -= alibi_of(rows.alibi.slopes[head], rows.alibi.query_positions[q_row],
                      rows.alibi.key_positions[kv_row]);
    }
    if (rows.bias != nullptr) {
      const TermPlace query = rows.q_places[q_row];
      const int32_t key = rows.kv_places[kv_row].position;
      const int64_t plane =
          int64_t{query.sequence % rows.bias_sequences} * rows.bias_heads + head % rows.bias_heads;
      sum += rows.bias[(plane * rows.bias_queries + query.position) * rows.bias_keys + key];
    }
    return sum;
  }

  __device__ __forceinline__ float kept(int32_t head, int32_t q_row, int32_t kv_row) const {
    if (rows.threshold == 0) return 1.0f;
    const TermPlace query = rows.q_places[q_row];
    const int32_t key = rows.kv_places[kv_row].position;
    if (rows.kept != nullptr)
      return rows.kept[cell(head, query, key)] != 0 ? rows.kept_scale : 0.0f;
    const PhiloxState state{{static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query.position),
                             static_cast<uint32_t>(head), static_cast<uint32_t>(query.sequence)},
                            {rows.seed_low, rows.seed_high}};
    return draw_word(state, key % 4) < rows.threshold ? rows.kept_scale : 0.0f;
  }

  __device__ __forceinline__ void add_gradient(int32_t head, int32_t q_row, int32_t kv_row,
                                               float gradient) const {
    if (rows.dbias == nullptr) return;
    rows.dbias[cell(head, rows.q_places[q_row], rows.kv_places[kv_row].position)] += gradient;
  }

 private:
  __device__ __forceinline__ int64_t cell(int32_t head, TermPlace query, int32_t key) const {
    const int64_t row = int64_t{head} * rows.lengths[query.sequence] + query.position;
    return rows.first_cells[query.sequence] + row * rows.kv_lengths[query.sequence] + key;
  }
};

}  // namespace cpscope::kernels::device
