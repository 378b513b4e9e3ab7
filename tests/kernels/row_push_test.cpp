// Rows that a kernel writes to other devices: here to the same one, byte for byte.
#include "kernels/row_push.h"

#include "kernels/device_memory.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::ByteRows;
using kernels::RowPush;

class RowPushKernel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto count = kernels::count_devices(); !count)
      GTEST_SKIP() << "requires gpu: " << to_text(count.error());
    stream_ = kernels::make_stream(kernels::Urgency::usual);
  }
  void TearDown() override {
    if (stream_ != nullptr) kernels::destroy_stream(stream_);
  }

  template <class T>
  std::vector<T> read(const kernels::DeviceMemory& memory, size_t count) {
    std::vector<T> values(count);
    kernels::copy_to_host(values.data(), memory.data(), static_cast<int64_t>(count * sizeof(T)),
                          stream_);
    kernels::wait_for_stream(stream_);
    return values;
  }

  kernels::Stream stream_ = nullptr;
};

/// Rows of random sizes: where they come from, and where in the target nothing else goes.
ByteRows draw_rows(std::mt19937& random, int64_t& from_bytes, int64_t& to_bytes) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  ByteRows rows;
  rows.row_bytes = 16 * draw(1, 20);
  rows.num_rows = draw(1, 70);
  rows.num_blocks = draw(1, 3);
  rows.from_pitch = rows.row_bytes + 16 * draw(0, 5);
  rows.to_pitch = rows.row_bytes + 16 * draw(0, 5);
  rows.from_block_rows = rows.num_rows + draw(0, 4);
  rows.to_block_rows = rows.num_rows + draw(0, 4);
  rows.from = reinterpret_cast<const void*>(from_bytes);
  rows.to = reinterpret_cast<void*>(to_bytes);
  from_bytes += rows.num_blocks * rows.from_block_rows * rows.from_pitch;
  to_bytes += rows.num_blocks * rows.to_block_rows * rows.to_pitch;
  return rows;
}

TEST_F(RowPushKernel, CopiesRowsAndNothingElseAndThenSetsItsFlags) {
  constexpr uint8_t kUntouched = 0x5a;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    std::mt19937 random(seed);
    RowPush push;
    int64_t from_bytes = 0, to_bytes = 0;
    push.num_copies = static_cast<int32_t>(random() % RowPush::kMostCopies) + (seed > 1 ? 1 : 0);
    for (int32_t c = 0; c < push.num_copies; ++c)
      push.copies[c] = draw_rows(random, from_bytes, to_bytes);
    std::vector<uint8_t> source(static_cast<size_t>(from_bytes + 16));
    for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
    std::vector<uint8_t> expected(static_cast<size_t>(to_bytes + 16), kUntouched);
    for (int32_t c = 0; c < push.num_copies; ++c) {
      const ByteRows& rows = push.copies[c];
      for (int64_t row = 0; row < rows.num_blocks * rows.num_rows; ++row) {
        const int64_t block = row / rows.num_rows, in_block = row % rows.num_rows;
        const int64_t from = reinterpret_cast<intptr_t>(rows.from) +
                             (block * rows.from_block_rows + in_block) * rows.from_pitch;
        const int64_t to = reinterpret_cast<intptr_t>(rows.to) +
                           (block * rows.to_block_rows + in_block) * rows.to_pitch;
        std::copy_n(source.begin() + from, rows.row_bytes, expected.begin() + to);
      }
    }
    const kernels::DeviceMemory from = kernels::to_device(source, stream_);
    const kernels::DeviceMemory to =
        kernels::to_device(std::vector<uint8_t>(expected.size(), kUntouched), stream_);
    for (int32_t c = 0; c < push.num_copies; ++c) {
      ByteRows& rows = push.copies[c];
      rows.from = from.as<uint8_t>() + reinterpret_cast<intptr_t>(rows.from);
      rows.to = to.as<uint8_t>() + reinterpret_cast<intptr_t>(rows.to);
      ASSERT_TRUE(kernels::can_push(rows));
    }
    const kernels::DeviceMemory flags = kernels::to_device(std::vector<int32_t>(8, -1), stream_);
    const kernels::DeviceMemory done = kernels::to_device(std::vector<int32_t>{0}, stream_);
    push.num_done = done.as<int32_t>();
    push.num_flags = static_cast<int32_t>(seed % 8);
    for (int32_t f = 0; f < push.num_flags; ++f) push.flags[f] = flags.as<int32_t>() + f;
    for (const int32_t value : {7, 8}) {  // what counts its CTAs is as it was before
      push.value = value;
      kernels::launch_row_push(push, stream_);
      const auto set = read<int32_t>(flags, 8);
      for (int32_t f = 0; f < 8; ++f)
        EXPECT_EQ(set[static_cast<size_t>(f)], f < push.num_flags ? value : -1)
            << "seed " << seed << ", flag " << f;
      EXPECT_EQ(read<int32_t>(done, 1)[0], 0);
    }
    const auto got = read<uint8_t>(to, expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(got[i], expected[i]) << "seed " << seed << ", byte " << i;
  }
}

TEST(RowPushRows, MustBeGroupsOf16Bytes) {
  ByteRows rows;
  rows.row_bytes = rows.from_pitch = rows.to_pitch = 256;
  rows.num_rows = 3;
  EXPECT_TRUE(kernels::can_push(rows));
  for (int64_t ByteRows::*part :
       {&ByteRows::row_bytes, &ByteRows::from_pitch, &ByteRows::to_pitch}) {
    ByteRows odd = rows;
    odd.*part += 8;
    EXPECT_FALSE(kernels::can_push(odd));
  }
  ByteRows odd = rows;
  odd.to = reinterpret_cast<void*>(intptr_t{8});
  EXPECT_FALSE(kernels::can_push(odd));
  odd = rows;
  odd.from = reinterpret_cast<const void*>(intptr_t{8});
  EXPECT_FALSE(kernels::can_push(odd));
}

}  // namespace
}  // namespace cpscope::tests
