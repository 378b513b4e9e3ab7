// Rows of dtype fp8 on a device or the emulator: bit for bit what sim/run/fp8.h says, over all
// codes and all bf16 numbers.
#include "kernels/rows/fp8_rows.h"

#include "kernels/device/device_memory.h"
#include "sim/run/dtype.h"
#include "sim/run/fp8.h"
#include "tests/kernels/device/stream_test.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::DeviceMemory;

class Fp8Rows : public StreamTest {
 protected:
  template <class T>
  std::vector<T> fetch(const DeviceMemory& memory, size_t count) const {
    std::vector<T> values(count);
    kernels::copy_to_host(values.data(), memory.data(), static_cast<int64_t>(count * sizeof(T)),
                          stream_);
    kernels::wait_for_stream(stream_);
    return values;
  }
};

std::vector<uint16_t> all_bf16() {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  return bits;
}

bool is_same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

TEST_F(Fp8Rows, RoundsEveryNumberAsDefined) {
  const std::vector<uint16_t> numbers = all_bf16();
  for (const Fp8Type type : {Fp8Type::e4m3, Fp8Type::e5m2}) {
    for (const float scale : {1.0f, 3.7f, 0x1p-12f, 448.0f / 1.3f, 1e30f}) {
      const DeviceMemory memory = kernels::to_device(numbers, stream_);
      kernels::launch_row_scaling({memory.data(), 65536, type, scale}, stream_);
      const auto found = fetch<uint16_t>(memory, numbers.size());
      for (size_t i = 0; i < numbers.size(); ++i) {
        const float value = from_bf16_bits(numbers[i]), wanted = round_to(type, value * scale);
        ASSERT_TRUE(is_same(from_bf16_bits(found[i]), wanted))
            << value << " * " << scale << " is " << from_bf16_bits(found[i]) << ", not " << wanted;
      }
    }
  }
}

/// The value of a code from the format's definition.
float value_of(Fp8Type type, uint32_t code) {
  const int mantissa_bits = type == Fp8Type::e4m3 ? 3 : 2, bias = type == Fp8Type::e4m3 ? 7 : 15;
  const auto exponent = static_cast<int>((code & 0x7f) >> mantissa_bits);
  const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const double fraction = mantissa / static_cast<double>(1 << mantissa_bits);
  double value =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias);
  if (type == Fp8Type::e4m3 && (code & 0x7f) == 0x7f) value = std::nan("");
  if (type == Fp8Type::e5m2 && exponent == 31)
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  return static_cast<float>((code & 0x80) != 0 ? -value : value);
}

TEST_F(Fp8Rows, TurnsEveryCodeIntoItsValueAndBack) {
  for (const Fp8Type type : {Fp8Type::e4m3, Fp8Type::e5m2}) {
    // In groups of eight, and one by one with gaps between heads.
    for (const int32_t lanes : {64, 61}) {
      const int32_t heads = 2, rows = 256, pitch = 64;
      std::vector<uint8_t> codes(static_cast<size_t>(rows * heads * lanes));
      for (size_t i = 0; i < codes.size(); ++i)
        codes[i] = static_cast<uint8_t>(i * 7 % 251 + i / 251);
      std::vector<int32_t> order(static_cast<size_t>(rows));
      for (int32_t i = 0; i < rows; ++i) order[static_cast<size_t>(i)] = (i * 37 + 5) % rows;
      const DeviceMemory wire = kernels::to_device(codes, stream_),
                         places = kernels::to_device(order, stream_),
                         held = kernels::to_device(
                             std::vector<uint16_t>(static_cast<size_t>(rows * heads * pitch),
                                                   0x5a5a),
                             stream_),
                         back =
                             kernels::to_device(std::vector<uint8_t>(codes.size(), 0x55), stream_);
      const kernels::RowBlock numbers{held.data(), Dtype::bf16, heads * pitch, pitch,
                                      places.as<int32_t>()};
      kernels::CodeCopy copy;
      copy.type = type;
      copy.copy.from = {wire.data(), Dtype::bf16, heads * lanes, lanes, nullptr};
      copy.copy.to = numbers;
      copy.copy.num_rows = rows;
      copy.copy.heads = heads;
      copy.copy.lanes = lanes;
      kernels::launch_code_copy(copy, stream_);
      copy.encodes = true;
      copy.copy.from = numbers;
      copy.copy.to = {back.data(), Dtype::bf16, heads * lanes, lanes, nullptr};
      kernels::launch_code_copy(copy, stream_);
      const auto values = fetch<uint16_t>(held, static_cast<size_t>(rows * heads * pitch));
      const auto again = fetch<uint8_t>(back, codes.size());
      for (size_t i = 0; i < codes.size(); ++i) {
        const auto unit = static_cast<int32_t>(i) / lanes, lane = static_cast<int32_t>(i) % lanes;
        const int32_t row = order[static_cast<size_t>(unit / heads)];
        const float value = from_bf16_bits(
            values[static_cast<size_t>((row * heads + unit % heads) * pitch + lane)]);
        const float wanted = value_of(type, codes[i]);
        ASSERT_TRUE(is_same(value, wanted)) << int{codes[i]} << " is " << value;
        if (std::isinf(wanted)) continue;  // casts saturate, so it never arises
        ASSERT_TRUE(is_same(value_of(type, again[i]), wanted)) << int{codes[i]};
        if (!std::isnan(wanted)) {
          ASSERT_EQ(again[i], codes[i]);
        }
      }
      if (lanes < pitch) {
        EXPECT_EQ(values[61], 0x5a5a) << "wrote past the head";
      }
    }
  }
}

/// Quantises values `stride` apart, as one block.
void cast_block_here(std::vector<float>& values, size_t first, size_t stride, size_t count) {
  float amax = 0;
  bool has_nan = false;
  for (size_t i = 0; i < count; ++i) {
    amax = std::max(amax, std::abs(values[first + i * stride]));
    has_nan = has_nan || std::isnan(values[first + i * stride]);
  }
  for (size_t i = 0; i < count; ++i) {
    float& value = values[first + i * stride];
    value = has_nan ? std::nanf("") : quantise_in_block(value, block_descale(amax));
  }
}

TEST_F(Fp8Rows, CastsBlocksAlongRowsAndAlongTokens) {
  std::mt19937 random(5);
  for (const size_t lanes : {8u, 40u, 64u, 77u}) {
    const size_t heads = 3, rows = 100, pitch = (lanes + 7) / 8 * 8;
    std::normal_distribution<float> normal;
    std::vector<uint16_t> bits(rows * heads * pitch, 0);
    std::vector<float> given(bits.size(), 0.0f);
    for (size_t i = 0; i < bits.size(); ++i) {
      if (i % pitch >= lanes) continue;
      // Blocks of very different sizes, of zeros, and the least and greatest bf16 numbers.
      const float size = std::ldexp(1.0f, static_cast<int>(i / pitch * 13 % 250) - 125);
      bits[i] = to_bf16_bits(i / pitch % 11 == 3 ? 0.0f : normal(random) * size);
      given[i] = from_bf16_bits(bits[i]);
    }
    bits[5 * pitch] = 0x7fc0;
    given[5 * pitch] = std::nanf("");
    // Rows 40 to 43 are padding.
    const std::vector<kernels::RowSpan> blocks{{0, 32}, {32, 40}, {44, 45}, {45, 77}, {77, 100}};
    const DeviceMemory from = kernels::to_device(bits, stream_),
                       spans = kernels::to_device(blocks, stream_);
    for (const bool along_tokens : {false, true}) {
      std::vector<float> wanted = given;
      const DeviceMemory to =
          kernels::to_device(std::vector<uint16_t>(bits.size(), 0x5a5a), stream_);
      const auto stride = static_cast<int64_t>(heads * pitch);
      kernels::BlockCast cast;
      cast.from = {from.data(), stride, static_cast<int64_t>(pitch)};
      cast.to = {to.data(), stride, static_cast<int64_t>(pitch)};
      cast.num_rows = static_cast<int64_t>(rows);
      cast.heads = static_cast<int32_t>(heads);
      cast.lanes = static_cast<int32_t>(lanes);
      if (along_tokens) {
        cast.blocks = spans.as<kernels::RowSpan>();
        cast.num_blocks = static_cast<int32_t>(blocks.size());
        for (const kernels::RowSpan& block : blocks) {
          for (size_t column = 0; column < heads * pitch; ++column)
            cast_block_here(wanted, static_cast<size_t>(block.begin) * heads * pitch + column,
                            heads * pitch, static_cast<size_t>(block.end - block.begin));
        }
      } else {
        for (size_t unit = 0; unit < rows * heads; ++unit) {
          for (size_t lane = 0; lane < lanes; lane += 32)
            cast_block_here(wanted, unit * pitch + lane, 1, std::min<size_t>(32, lanes - lane));
        }
      }
      kernels::launch_block_cast(cast, stream_);
      const auto found = fetch<uint16_t>(to, bits.size());
      for (size_t i = 0; i < bits.size(); ++i) {
        const size_t row = i / (heads * pitch);
        if (along_tokens && row >= 40 && row < 44) {
          ASSERT_EQ(found[i], 0x5a5a) << "padding, row " << row;
        } else if (i % pitch < lanes || !std::isnan(wanted[i / pitch * pitch])) {
          ASSERT_TRUE(is_same(from_bf16_bits(found[i]), wanted[i]))
              << given[i] << " became " << from_bf16_bits(found[i]) << ", not " << wanted[i]
              << "; row " << row << ", lane " << i % pitch << " of " << lanes;
        }
      }
    }
  }
}

TEST_F(Fp8Rows, TurnsRowsIntoCodesForProducts) {
  const int32_t heads = 2, rows = 75, lanes = 40, columns = 80;
  std::mt19937 random(3);
  std::vector<uint16_t> bits(static_cast<size_t>(rows * heads * lanes));
  std::vector<float> values;
  for (uint16_t& at : bits) {
    values.push_back(value_of(Fp8Type::e4m3, static_cast<uint32_t>(random() % 127)));
    at = to_bf16_bits(values.back());
  }
  std::vector<int32_t> blocks(static_cast<size_t>(rows), 0);
  blocks[20] = blocks[21] = -1;
  const DeviceMemory from = kernels::to_device(bits, stream_),
                     numbers = kernels::to_device(blocks, stream_),
                     plain = kernels::to_device(
                         std::vector<uint8_t>(static_cast<size_t>(rows * heads * 128), 0x55),
                         stream_),
                     turned = kernels::to_device(
                         std::vector<uint8_t>(static_cast<size_t>(heads * 128 * columns), 0x55),
                         stream_);
  const kernels::DeviceRows view{from.data(), heads * lanes, lanes};
  kernels::launch_code_rows({view, plain.as<uint8_t>(), rows, heads, lanes}, stream_);
  kernels::launch_code_columns(
      {view, turned.as<uint8_t>(), numbers.as<int32_t>(), rows, heads, lanes, columns}, stream_);
  const auto in_rows = fetch<uint8_t>(plain, static_cast<size_t>(rows * heads * 128));
  const auto in_columns = fetch<uint8_t>(turned, static_cast<size_t>(heads * 128 * columns));
  for (int32_t column = 0; column < columns; ++column) {
    const int32_t place = column % 16,
                  row = column - place + place / 4 * 2 + place % 2 + place / 2 % 2 * 8;
    for (int32_t head = 0; head < heads; ++head) {
      for (int32_t lane = 0; lane < 128; ++lane) {
        const bool is_there = row < rows && lane < lanes;
        const float wanted =
            is_there ? values[static_cast<size_t>((row * heads + head) * lanes + lane)] : 0.0f;
        if (row < rows) {
          ASSERT_EQ(value_of(Fp8Type::e4m3,
                             in_rows[static_cast<size_t>((row * heads + head) * 128 + lane)]),
                    wanted);
        }
        const bool is_padding = row == 20 || row == 21;
        ASSERT_EQ(value_of(Fp8Type::e4m3,
                           in_columns[static_cast<size_t>((head * 128 + lane) * columns + column)]),
                  is_padding ? 0.0f : wanted)
            << "row " << row << ", lane " << lane;
      }
    }
  }
}

TEST_F(Fp8Rows, FindsTheLargestValueOfValidRowsAlone) {
  const int32_t heads = 3, lanes = 20, pitch = 24, rows = 300;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> bits(static_cast<size_t>(rows * heads * pitch), 0x7fc0);
  std::vector<uint8_t> is_valid(static_cast<size_t>(rows), 0);
  float wanted = 0;
  for (int32_t row = 0; row < rows; ++row) {
    is_valid[static_cast<size_t>(row)] = row % 7 == 2 ? 0 : 1;
    for (int32_t i = 0; i < heads * lanes; ++i) {
      const bool counts = row % 7 != 2;
      uint16_t& at = bits[static_cast<size_t>((row * heads + i / lanes) * pitch + i % lanes)];
      at = to_bf16_bits(normal(random) * (counts ? 1.0f : 100.0f));
      if (counts) wanted = std::max(wanted, std::abs(from_bf16_bits(at)));
    }
  }
  const DeviceMemory data = kernels::to_device(bits, stream_),
                     valid = kernels::to_device(is_valid, stream_),
                     amax = kernels::to_device(std::vector<float>{0.0f}, stream_);
  kernels::launch_row_amax({{data.data(), Dtype::bf16, heads * pitch, pitch, nullptr},
                            valid.as<uint8_t>(),
                            rows,
                            heads,
                            lanes,
                            amax.as<float>()},
                           stream_);
  EXPECT_EQ(fetch<float>(amax, 1)[0], wanted);
}

}  // namespace
}  // namespace cpscope::tests
