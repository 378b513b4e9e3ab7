// Rows from several sources added up at once, bit for bit as one after another.
#include "kernels/rows/row_sum.h"

#include "kernels/device/device_memory.h"
#include "kernels/device/scalar_types.h"
#include "sim/run/dtype.h"
#include "tests/kernels/device/stream_test.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::RowSum;

constexpr uint16_t kUntouchedBits = 0x5a5a;

uint16_t to_bits(Dtype dtype, float value) {
  return dtype == Dtype::bf16 ? to_bf16_bits(value) : to_fp16_bits(value);
}

/// Rows of numbers in memory; heads are `gap` elements apart.
struct DrawnRows {
  Dtype element = Dtype::fp32;
  int32_t heads = 1, lanes = 8, gap = 0;
  std::vector<float> values;   // [row, head, element]
  std::vector<uint8_t> bytes;  // as stored

  int64_t head_stride() const { return lanes + gap; }
  int64_t row_stride() const { return heads * head_stride(); }
  int64_t place(int64_t row, int64_t head, int64_t lane) const {
    return row * row_stride() + head * head_stride() + lane;
  }
  float& at(int64_t row, int64_t head, int64_t lane) {
    return values[static_cast<size_t>((row * heads + head) * lanes + lane)];
  }

  DrawnRows(std::mt19937& random, int64_t rows, int32_t of_heads, int32_t of_lanes, Dtype of)
      : element(of), heads(of_heads), lanes(of_lanes), gap(8 * static_cast<int32_t>(random() % 2)) {
    const int64_t size = kernels::element_size(element);
    values.resize(static_cast<size_t>(rows * heads * lanes));
    bytes.assign(static_cast<size_t>(rows * row_stride() * size), 0xff);  // NaN between heads
    std::normal_distribution<float> normal;
    for (int64_t row = 0; row < rows; ++row) {
      for (int32_t head = 0; head < heads; ++head) {
        for (int32_t lane = 0; lane < lanes; ++lane) {
          // Some are -0, which zeros must not turn into 0.
          float value = random() % 16 == 0 ? -0.0f : normal(random);
          uint8_t* const to = bytes.data() + place(row, head, lane) * size;
          if (element == Dtype::fp32) {
            std::memcpy(to, &value, sizeof value);
          } else {
            const uint16_t bits = to_bits(element, value);
            value = element == Dtype::bf16 ? from_bf16_bits(bits) : from_fp16_bits(bits);
            std::memcpy(to, &bits, sizeof bits);
          }
          at(row, head, lane) = value;
        }
      }
    }
  }
};

class RowSumKernel : public StreamTest, public ::testing::WithParamInterface<int32_t> {};

TEST_P(RowSumKernel, GivesTheBitsOfAdditionsOneByOne) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  const Dtype dtype = random() % 2 == 0 ? Dtype::bf16 : Dtype::fp16;
  const auto num_rows = static_cast<int64_t>(random() % 300);
  const auto heads = static_cast<int32_t>(random() % 5) + 1;
  const auto lanes = 8 * (static_cast<int32_t>(random() % 17) + 1);
  const auto num_shares = GetParam() == 0 ? 0
                          : GetParam() == 1
                              ? RowSum::kMostShares
                              : static_cast<int32_t>(random() % RowSum::kMostShares) + 1;
  const int32_t gap = 8 * static_cast<int32_t>(random() % 2);

  RowSum sum;
  sum.num_shares = num_shares;
  sum.heads = heads;
  sum.lanes = lanes;
  sum.num_rows = num_rows;
  std::vector<kernels::DeviceMemory> memory;
  std::vector<float> wanted(static_cast<size_t>(num_rows * heads * lanes), 0.0f);
  std::vector<bool> has_sum(static_cast<size_t>(num_rows), false);
  for (int32_t s = 0; s < num_shares; ++s) {
    const int64_t rows_here = num_rows + 3;
    DrawnRows share(random, rows_here, heads, lanes, random() % 2 == 0 ? Dtype::fp32 : dtype);
    std::vector<int32_t> rows(static_cast<size_t>(num_rows), -1);
    for (int64_t row = 0; row < num_rows; ++row) {
      if (random() % 3 == 0) continue;
      const auto source = static_cast<int32_t>(random() % static_cast<uint32_t>(rows_here));
      rows[static_cast<size_t>(row)] = source;
      for (int32_t i = 0; i < heads * lanes; ++i) {
        float& total = wanted[static_cast<size_t>(row * heads * lanes + i)];
        const float value = share.at(source, i / lanes, i % lanes);
        total = has_sum[static_cast<size_t>(row)] ? total + value : value;
      }
      has_sum[static_cast<size_t>(row)] = true;
    }
    memory.push_back(kernels::to_device(rows, stream_));
    const auto* const places = memory.back().as<int32_t>();
    memory.push_back(kernels::to_device(share.bytes, stream_));
    sum.shares[s] = {memory.back().data(), share.element, share.row_stride(), share.head_stride(),
                     places};
    kernels::wait_for_stream(stream_);
  }
  const int64_t row_stride = heads * (lanes + gap);
  std::vector<uint16_t> found(static_cast<size_t>(num_rows * row_stride), kUntouchedBits);
  const kernels::DeviceMemory into = kernels::to_device(found, stream_);
  sum.into = {into.data(), dtype, row_stride, lanes + gap, nullptr};
  kernels::launch_row_sum(sum, stream_);
  if (!found.empty())
    kernels::copy_to_host(found.data(), into.data(), static_cast<int64_t>(found.size() * 2),
                          stream_);
  kernels::wait_for_stream(stream_);
  for (int64_t i = 0; i < num_rows * row_stride; ++i) {
    const int64_t row = i / row_stride, head = i % row_stride / (lanes + gap),
                  lane = i % (lanes + gap);
    const float value =
        lane < lanes ? wanted[static_cast<size_t>((row * heads + head) * lanes + lane)] : 0.0f;
    ASSERT_EQ(found[static_cast<size_t>(i)], lane < lanes ? to_bits(dtype, value) : kUntouchedBits)
        << "row " << row << ", head " << head << ", lane " << lane << " of " << lanes << ", "
        << num_shares << " shares";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RowSumKernel, ::testing::Range(0, 12));

}  // namespace
}  // namespace cpscope::tests
