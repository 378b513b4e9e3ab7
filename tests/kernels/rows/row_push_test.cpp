// Rows that a kernel writes to other devices: here to the same one, compared byte for byte.
#include "kernels/rows/row_push.h"

#include "kernels/device/device_memory.h"
#include "tests/kernels/device/stream_test.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::ByteRows;
using kernels::ListedRows;
using kernels::RowPush;

class RowPushKernel : public StreamTest {
 protected:
  template <class T>
  std::vector<T> read(const kernels::DeviceMemory& memory, size_t count) {
    std::vector<T> values(count);
    kernels::copy_to_host(values.data(), memory.data(), static_cast<int64_t>(count * sizeof(T)),
                          stream_);
    kernels::wait_for_stream(stream_);
    return values;
  }
};

/// Rows of random sizes: their source, and a place in the target that no other rows use.
ByteRows draw_byte_rows(std::mt19937& random, int64_t& from_bytes, int64_t& to_bytes) {
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

/// Random copies in pieces: the first piece may have none.
struct DrawnPush {
  explicit DrawnPush(uint32_t seed) {
    std::mt19937 random(seed);
    num_pieces = static_cast<int32_t>(random() % RowPush::kMostPieces) + 1;
    const auto num_copies = static_cast<int32_t>(random() % RowPush::kMostCopies) + 1;
    for (int32_t c = 0; c < num_copies; ++c) {
      rows.push_back(draw_byte_rows(random, from_bytes, to_bytes));
      pieces.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(num_pieces)));
    }
    std::sort(pieces.begin(), pieces.end());
    source.resize(static_cast<size_t>(from_bytes + 16));
    for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
  }

  /// The target afterwards.
  std::vector<uint8_t> expected(uint8_t untouched) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(to_bytes + 16), untouched);
    for (const ByteRows& copy : rows) {
      for (int64_t row = 0; row < copy.num_blocks * copy.num_rows; ++row) {
        const int64_t block = row / copy.num_rows, in_block = row % copy.num_rows;
        const int64_t from = reinterpret_cast<intptr_t>(copy.from) +
                             (block * copy.from_block_rows + in_block) * copy.from_pitch;
        const int64_t to = reinterpret_cast<intptr_t>(copy.to) +
                           (block * copy.to_block_rows + in_block) * copy.to_pitch;
        std::copy_n(source.begin() + from, copy.row_bytes, bytes.begin() + to);
      }
    }
    return bytes;
  }

  /// The push on a device; own flags [piece], except for the third, then `num_flags` of each piece.
  RowPush push(uint8_t* from, uint8_t* to, int32_t* flags, int32_t num_flags) const {
    RowPush push;
    const auto end = [&] {
      int32_t* const first = flags + RowPush::kMostPieces + push.num_pieces * num_flags;
      for (int32_t f = 0; f < num_flags; ++f) EXPECT_TRUE(add_flag(push, first + f));
      end_piece(push);
    };
    for (size_t c = 0; c < rows.size(); ++c) {
      while (push.num_pieces < pieces[c]) end();
      ByteRows copy = rows[c];
      copy.from = from + reinterpret_cast<intptr_t>(copy.from);
      copy.to = to + reinterpret_cast<intptr_t>(copy.to);
      EXPECT_TRUE(add_rows(push, copy)) << "copy " << c;
    }
    while (push.num_pieces < num_pieces) end();
    for (int32_t piece = 0; piece < num_pieces; ++piece) {
      if (piece != 2) push.own_flags[piece] = flags + piece;
    }
    return push;
  }

  int32_t num_pieces = 1;
  int64_t from_bytes = 0, to_bytes = 0;
  std::vector<ByteRows> rows;
  std::vector<int32_t> pieces;  // [copy]
  std::vector<uint8_t> source;
};

TEST_F(RowPushKernel, CopiesRowsAndNothingElseAndThenSetsItsFlags) {
  constexpr uint8_t kUntouched = 0x5a;
  constexpr size_t kFlags = RowPush::kMostPieces + RowPush::kMostFlags;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    const DrawnPush drawn(seed);
    const std::vector<uint8_t> expected = drawn.expected(kUntouched);
    const kernels::DeviceMemory from = kernels::to_device(drawn.source, stream_);
    const kernels::DeviceMemory to =
        kernels::to_device(std::vector<uint8_t>(expected.size(), kUntouched), stream_);
    const kernels::DeviceMemory flags =
        kernels::to_device(std::vector<int32_t>(kFlags, -1), stream_);
    const kernels::DeviceMemory done =
        kernels::to_device(std::vector<int32_t>(RowPush::kMostPieces, 0), stream_);
    const auto num_flags = static_cast<int32_t>(seed % 8);
    RowPush push = drawn.push(from.as<uint8_t>(), to.as<uint8_t>(), flags.as<int32_t>(), num_flags);
    push.num_done = done.as<int32_t>();
    for (const int32_t value : {7, 8}) {  // the count of finished CTAs is restored
      push.value = value;
      kernels::launch_row_push(push, stream_);
      const auto set = read<int32_t>(flags, kFlags);
      for (int32_t f = 0; f < static_cast<int32_t>(kFlags); ++f) {
        const bool is_set = f < RowPush::kMostPieces
                                ? f != 2 && f < drawn.num_pieces
                                : f < RowPush::kMostPieces + drawn.num_pieces * num_flags;
        EXPECT_EQ(set[static_cast<size_t>(f)], is_set ? value : -1)
            << "seed " << seed << ", flag " << f;
      }
      EXPECT_EQ(read<int32_t>(done, RowPush::kMostPieces),
                std::vector<int32_t>(RowPush::kMostPieces, 0));
    }
    const auto got = read<uint8_t>(to, expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(got[i], expected[i]) << "seed " << seed << ", byte " << i;
  }
}

TEST_F(RowPushKernel, CopiesRowsInAnyOrder) {
  constexpr int32_t kRows = 300, kFrom = 400, kTo = 500, kBytes = 48, kPitch = 80;
  std::mt19937 random(5);
  const auto shuffled = [&](int32_t count) {
    std::vector<int32_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), random);
    rows.resize(kRows);
    return rows;
  };
  const std::vector<int32_t> from_rows = shuffled(kFrom), to_rows = shuffled(kTo);
  std::vector<uint8_t> source(size_t{kFrom} * kPitch);
  for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
  const kernels::DeviceMemory from = kernels::to_device(source, stream_),
                              from_list = kernels::to_device(from_rows, stream_),
                              to_list = kernels::to_device(to_rows, stream_);
  for (const bool lists_from : {false, true}) {
    for (const bool lists_to : {false, true}) {
      const kernels::DeviceMemory to =
          kernels::to_device(std::vector<uint8_t>(size_t{kTo} * kBytes, 0x5a), stream_);
      const kernels::DeviceMemory done =
          kernels::to_device(std::vector<int32_t>(RowPush::kMostPieces, 0), stream_);
      RowPush push;
      push.num_done = done.as<int32_t>();
      ASSERT_TRUE(add_rows(
          push,
          ListedRows{from.data(), kPitch, lists_from ? from_list.as<int32_t>() : nullptr, to.data(),
                     kBytes, lists_to ? to_list.as<int32_t>() : nullptr, kBytes, kRows}));
      end_piece(push);
      kernels::launch_row_push(push, stream_);
      std::vector<uint8_t> expected(size_t{kTo} * kBytes, 0x5a);
      for (int32_t i = 0; i < kRows; ++i) {
        const auto at = static_cast<size_t>(i);
        std::copy_n(source.begin() + (lists_from ? from_rows[at] : i) * kPitch, kBytes,
                    expected.begin() + (lists_to ? to_rows[at] : i) * kBytes);
      }
      EXPECT_EQ(read<uint8_t>(to, expected.size()), expected)
          << "listed from " << lists_from << ", to " << lists_to;
    }
  }
}

TEST_F(RowPushKernel, LetsAStreamWaitForItsFlags) {
  const DrawnPush drawn(1);
  ASSERT_GT(drawn.num_pieces, 3);
  const std::vector<uint8_t> expected = drawn.expected(0);
  const kernels::DeviceMemory from = kernels::to_device(drawn.source, stream_);
  const kernels::DeviceMemory to =
      kernels::to_device(std::vector<uint8_t>(expected.size(), 0), stream_);
  const kernels::DeviceMemory counts =
      kernels::to_device(std::vector<int32_t>(3 * RowPush::kMostPieces, 0), stream_);
  RowPush push = drawn.push(from.as<uint8_t>(), to.as<uint8_t>(), counts.as<int32_t>(), 1);
  push.num_done = counts.as<int32_t>() + 2 * RowPush::kMostPieces;
  push.value = 3;
  const kernels::Stream later = kernels::make_stream(kernels::Urgency::usual);
  kernels::wait_for_stream(stream_);
  kernels::launch_row_push(push, stream_);
  kernels::wait_for_flag(later, push.flags[0], 3);
  kernels::wait_for_flag(later, push.own_flags[drawn.num_pieces - 1], 3);
  std::vector<uint8_t> got(expected.size());
  kernels::copy_to_host(got.data(), to.data(), static_cast<int64_t>(got.size()), later);
  kernels::wait_for_stream(later);
  EXPECT_EQ(got, expected);
  kernels::wait_for_stream(stream_);
  kernels::destroy_stream(later);
}

TEST(RowPushRows, MustBeGroupsOf16Bytes) {
  ByteRows rows;
  rows.row_bytes = rows.from_pitch = rows.to_pitch = 256;
  rows.num_rows = 3;
  const auto is_taken = [](const ByteRows& copy) {
    RowPush push;
    const bool taken = add_rows(push, copy);
    EXPECT_EQ(push.ends[0], taken ? 1 : 0);
    return taken;
  };
  EXPECT_TRUE(is_taken(rows));
  for (int64_t ByteRows::*part :
       {&ByteRows::row_bytes, &ByteRows::from_pitch, &ByteRows::to_pitch}) {
    ByteRows odd = rows;
    odd.*part += 8;
    EXPECT_FALSE(is_taken(odd));
  }
  ByteRows odd = rows;
  odd.to = reinterpret_cast<void*>(intptr_t{8});
  EXPECT_FALSE(is_taken(odd));
  odd = rows;
  odd.from = reinterpret_cast<const void*>(intptr_t{8});
  EXPECT_FALSE(is_taken(odd));
}

TEST(RowPushRows, AreAsManyAsThereIsRoomForAndCountedIn32Bits) {
  ByteRows rows;
  rows.row_bytes = rows.from_pitch = rows.to_pitch = 256;
  rows.num_rows = 3;
  RowPush push;
  for (int32_t c = 0; c < RowPush::kMostCopies; ++c) {
    if (c % 30 == 29) end_piece(push);
    ASSERT_TRUE(add_rows(push, rows));
  }
  EXPECT_FALSE(add_rows(push, rows));
  push = {};
  rows.num_rows = int64_t{60} << 20;
  EXPECT_TRUE(add_rows(push, rows));
  EXPECT_FALSE(add_rows(push, rows)) << "16 groups a row, 2^27 rows of one piece";
  end_piece(push);
  EXPECT_TRUE(add_rows(push, rows)) << "a piece is counted by itself";
  rows.num_rows = 3;
  rows.num_blocks = 2;
  rows.from_block_rows = rows.to_block_rows = int64_t{1} << 30;
  EXPECT_FALSE(add_rows(push, rows));
}

}  // namespace
}  // namespace cpscope::tests
