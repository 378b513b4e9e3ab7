#pragma once

#include "sim/scenario/scenario.h"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace cpscope::tests {

inline constexpr std::array kCommTypes{CommType::p2p, CommType::a2a, CommType::all_gather,
                                       CommType::a2a_p2p, CommType::group_cast};
inline constexpr std::array kLayouts{
    LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
    LayoutKind::striped,    LayoutKind::lpt,        LayoutKind::lpt_local};

/// Causal self attention in fp64: 4 heads on 2 KV heads, head_dim 8, p2p, dual_chunk.
inline Scenario walker_case(std::vector<int64_t> lengths, int32_t cp_size) {
  Scenario scenario;
  scenario.attention.heads = 4;
  scenario.attention.kv_heads = 2;
  scenario.attention.head_dim_qk = 8;
  scenario.attention.head_dim_v = 8;
  scenario.batch.lengths = lengths;
  scenario.batch.kv_lengths = lengths;
  scenario.batch.slots = lengths;
  scenario.batch.kv_slots = std::move(lengths);
  scenario.parallel.cp_size = cp_size;
  scenario.parallel.dispatch_chunk = 4;
  scenario.numerics.dtype = Dtype::fp64;
  return scenario;
}

/// Like walker_case, with keys of other lengths.
inline Scenario cross_case(std::vector<int64_t> lengths, std::vector<int64_t> kv_lengths,
                           int32_t cp_size) {
  Scenario scenario = walker_case(std::move(lengths), cp_size);
  scenario.batch.kv_lengths = kv_lengths;
  scenario.batch.kv_slots = std::move(kv_lengths);
  scenario.batch.self_attention = false;
  return scenario;
}

}  // namespace cpscope::tests
