#pragma once

#include <cstdint>

namespace cpscope::kernels {

/// Place of a row among the valid tokens of its sequence; sequence -1: padding.
struct TermPlace {
  int32_t sequence = -1;
  int32_t position = 0;
};

/// A key row, and those after it up to `end`, have positions that rise by `step`.
struct PositionStretch {
  float step = 0.0f;
  int32_t end = 0;
};

/// ALiBi for the rows of one compute item; pointers are to device memory, nullptr: off. Positions
/// are those of keys in their sequence, whole numbers; a query has that of the key at distance 0.
/// After the last row there are kPositionPadding more, so that tiles may be read whole.
struct AlibiRows {
  static constexpr int32_t kPositionPadding = 256;
  static constexpr int64_t kMostTokens = int64_t{1} << 24;  // of a sequence: exact in fp32

  const float* slopes = nullptr;                   // [query head among all]
  const float* query_positions = nullptr;          // [q row]
  const float* key_positions = nullptr;            // [kv row]
  const PositionStretch* key_stretches = nullptr;  // [kv row]
};

/// Bias, ALiBi and dropout for the rows of one compute item; pointers are to device memory.
struct ScoreTermRows {
  AlibiRows alibi;
  // With bias or dropout.
  const TermPlace* q_places = nullptr;   // [q row]
  const TermPlace* kv_places = nullptr;  // [kv row]
  // Bias: [bias_sequences, bias_heads, bias_queries, bias_keys]; nullptr: off.
  const float* bias = nullptr;
  int32_t bias_sequences = 1, bias_heads = 1;
  int32_t bias_queries = 0, bias_keys = 0;
  // Cells of every head of every sequence: [sequence] its first one, then [head, query, key].
  const int64_t* first_cells = nullptr;
  const int32_t* lengths = nullptr;
  const int32_t* kv_lengths = nullptr;
  // Gradient of the bias, of these cells. Starts at 0; each is added to once in a pass.
  float* dbias = nullptr;
  // Dropout, as in sim/scenario/score_terms.h; threshold 0: off.
  uint64_t threshold = 0;
  uint32_t seed_low = 0, seed_high = 0;
  // dropout_mode "framework": which of these cells are kept (sim/run/kept_weights.h), instead of
  // draws; nullptr in other modes.
  const uint8_t* kept = nullptr;
  float kept_scale = 1.0f;
};

}  // namespace cpscope::kernels
