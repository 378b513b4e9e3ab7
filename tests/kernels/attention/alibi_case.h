#pragma once

#include "kernels/attention/score_term_rows.h"
#include "kernels/device/device_memory.h"
#include "kernels/run/term_store.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace cpscope::tests {

/// ALiBi of a compute item: positions of its rows as a layout and documents may leave them.
struct AlibiCase {
  std::vector<float> slopes;                            // [query head among all]
  std::vector<int32_t> query_positions, key_positions;  // [row]

  bool is_on() const { return !slopes.empty(); }

  /// What is added to the logit of a pair.
  double term(int32_t head, int32_t q, int32_t k) const {
    if (!is_on()) return 0.0;
    const auto at = [](int32_t i) { return static_cast<size_t>(i); };
    return -static_cast<double>(slopes[at(head)]) *
           std::abs(static_cast<double>(query_positions[at(q)]) - key_positions[at(k)]);
  }
};

/// Positions rise by 1, or another step, and jump at some rows in either direction, or at none.
inline AlibiCase draw_alibi(int32_t q_rows, int32_t kv_rows, int32_t heads_end, uint64_t seed) {
  std::mt19937_64 random(seed ^ 0xA11B1);
  const auto draw = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  AlibiCase alibi;
  for (int32_t head = 0; head < heads_end; ++head)
    alibi.slopes.push_back(static_cast<float>(draw(1, 64)) / 64.0f);
  const auto fill = [&](std::vector<int32_t>& positions, int32_t rows) {
    const int32_t step = std::array{1, 1, 3, -2}[draw(0, 3)];
    const int32_t rows_to_jump = std::array{30, 300, 1'000'000}[draw(0, 2)];
    for (int32_t row = 0, position = draw(0, 600); row < rows; ++row, position += step) {
      if (draw(0, rows_to_jump) == 0) position = draw(0, 600);
      positions.push_back(position);
    }
  };
  fill(alibi.query_positions, q_rows);
  fill(alibi.key_positions, kv_rows);
  return alibi;
}

/// An AlibiCase in device memory, as a launch takes it.
class AlibiOnDevice {
 public:
  AlibiOnDevice(const AlibiCase& alibi, kernels::Stream stream) {
    if (!alibi.is_on()) return;
    const auto padded = [](const std::vector<int32_t>& positions) {
      std::vector<float> numbers(positions.begin(), positions.end());
      numbers.resize(numbers.size() + kernels::AlibiRows::kPositionPadding, 1e9f);
      return numbers;
    };
    const std::vector<float> queries = padded(alibi.query_positions),
                             keys = padded(alibi.key_positions);
    const std::vector<kernels::PositionStretch> stretches =
        kernels::stretches_of({alibi.key_positions.begin(), alibi.key_positions.end()});
    slopes_ = kernels::to_device(alibi.slopes, stream);
    queries_ = kernels::to_device(queries, stream);
    keys_ = kernels::to_device(keys, stream);
    stretches_ = kernels::to_device(stretches, stream);
    kernels::wait_for_stream(stream);
    terms_.alibi = {slopes_.as<float>(), queries_.as<float>(), keys_.as<float>(),
                    stretches_.as<kernels::PositionStretch>()};
  }

  const kernels::ScoreTermRows* terms() const { return &terms_; }

 private:
  kernels::DeviceMemory slopes_, queries_, keys_, stretches_;
  kernels::ScoreTermRows terms_;
};

}  // namespace cpscope::tests
