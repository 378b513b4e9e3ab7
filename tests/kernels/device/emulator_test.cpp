#include "kernels/device/device.h"
#include "kernels/device/hopper.h"
#include "kernels/device/launch.h"
#include "kernels/device/tensor_core.h"
#include "kernels/device/tensor_map.h"
#include "kernels/emulator/settings.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

// Small kernels that use the emulator's instructions one by one. The expected fragment layouts are
// written here a second time, from the manual.

namespace cpscope::kernels {
namespace {

using device::copy_async_16;
using device::copy_async_commit;
using device::copy_async_wait;

/// Runs body() in every thread of one CTA.
template <class Body>
void run_one_cta(int32_t threads, int32_t shared_bytes, Body body) {
  emulator::run_grid({1, 1, 1}, threads, shared_bytes, body);
}

/// The error that the launch threw, or nothing.
template <class Body>
std::string failure_of(int32_t threads, int32_t shared_bytes, Body body) {
  try {
    run_one_cta(threads, shared_bytes, body);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

class Emulator : public ::testing::Test {
 protected:
  void TearDown() override { emulator::settings() = {}; }
};

TEST_F(Emulator, RunsEveryThreadOfEveryCtaOnce) {
  std::vector<int> visits(3 * 2 * 64, 0);
  emulator::run_grid({3, 2, 1}, 64, 0, [&] {
    ++visits[static_cast<size_t>((blockIdx.y * gridDim.x + blockIdx.x) * 64 + threadIdx.x)];
  });
  EXPECT_EQ(visits, std::vector<int>(visits.size(), 1));
}

TEST_F(Emulator, BarrierSeparatesWritersFromReaders) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::settings().seed = seed;
    bool is_right = true;
    run_one_cta(128, 128 * 4, [&] {
      auto* shared = reinterpret_cast<int32_t*>(device::dynamic_shared());
      shared[threadIdx.x] = threadIdx.x;
      __syncthreads();
      if (shared[(threadIdx.x + 77) % 128] != (threadIdx.x + 77) % 128) is_right = false;
    });
    EXPECT_TRUE(is_right) << "seed " << seed;
  }
}

TEST_F(Emulator, OrderOfThreadsFollowsFromTheSeed) {
  const auto order_of = [](uint64_t seed) {
    emulator::settings().seed = seed;
    std::vector<int32_t> order;
    run_one_cta(64, 0, [&] { order.push_back(threadIdx.x); });
    return order;
  };
  EXPECT_EQ(order_of(5), order_of(5));
  EXPECT_NE(order_of(5), order_of(6));
}

TEST_F(Emulator, MissingThreadAtABarrierIsADeadlockWithItsPlace) {
  const std::string failure = failure_of(64, 0, [] {
    if (threadIdx.x != 3) __syncthreads();
  });
  EXPECT_NE(failure.find("deadlock"), std::string::npos) << failure;
  EXPECT_NE(failure.find("threads 3..3: done"), std::string::npos) << failure;
  EXPECT_NE(failure.find("threads 4..63: __syncthreads at emulator_test.cpp:"), std::string::npos)
      << failure;
}

TEST_F(Emulator, LanesThatPartInACollectiveAreTold) {
  const std::string failure = failure_of(32, 0, [] {
    if (threadIdx.x == 0) {
      device::any_in_warp(true);
    } else {
      device::shuffle_xor(1.0f, 1);
    }
  });
  EXPECT_NE(failure.find("threads that must stay together do not"), std::string::npos) << failure;
}

TEST_F(Emulator, SharedMemoryStartsAsNanAndIsWatched) {
  bool is_nan = true;
  run_one_cta(32, 256, [&] {
    if (!std::isnan(reinterpret_cast<float*>(device::dynamic_shared())[threadIdx.x]))
      is_nan = false;
  });
  EXPECT_TRUE(is_nan);
  EXPECT_NE(failure_of(32, 256, [] { device::dynamic_shared()[256] = 1; })
                .find("wrote outside its 256 bytes"),
            std::string::npos);
  const std::string outside = failure_of(32, 256, [] {
    uint32_t r[4];
    device::load_matrix_x4(r, device::shared_address(device::dynamic_shared()) + 16 * threadIdx.x);
  });
  EXPECT_NE(outside.find("outside the 256 bytes"), std::string::npos) << outside;
  const std::string skewed = failure_of(32, 4096, [] {
    uint32_t r[4];
    device::load_matrix_x4(r, device::shared_address(device::dynamic_shared()) + 8);
  });
  EXPECT_NE(skewed.find("is not on 16 bytes"), std::string::npos) << skewed;
}

TEST_F(Emulator, AsynchronousCopiesAreCertainOnlyAfterTheirWait) {
  auto* source = static_cast<float*>(allocate_bytes(8 * sizeof(float)));
  for (int i = 0; i < 8; ++i) source[i] = static_cast<float>(i);
  int early = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    emulator::settings().seed = seed;
    run_one_cta(1, 48, [&] {
      auto* shared = reinterpret_cast<float*>(device::dynamic_shared());
      const uint32_t address = device::shared_address(shared);
      copy_async_16(address, &source[0], true);
      copy_async_commit();
      copy_async_16(address + 16, &source[4], true);
      copy_async_16(address + 32, nullptr, false);
      copy_async_commit();
      copy_async_wait<1>();
      EXPECT_EQ(shared[0], 0.0f);
      EXPECT_EQ(shared[3], 3.0f);
      if (std::isnan(shared[4])) ++early;
      copy_async_wait<0>();
      EXPECT_EQ(shared[4], 4.0f);
      EXPECT_EQ(shared[7], 7.0f);
      EXPECT_EQ(shared[8], 0.0f);
    });
  }
  EXPECT_GT(early, 20);
  const std::string failure = failure_of(1, 16, [&] {
    copy_async_16(device::shared_address(device::dynamic_shared()), source + 8, true);
  });
  EXPECT_NE(failure.find("reads outside device memory"), std::string::npos) << failure;
  free_bytes(source);
}

TEST_F(Emulator, CopiesOfTheCopyUnitBeginOnSixteenBytes) {
  constexpr int32_t kLanes = 64;
  auto* source = static_cast<uint16_t*>(allocate_bytes(8 * kLanes * sizeof(uint16_t)));
  for (int i = 0; i < 8 * kLanes; ++i) source[i] = static_cast<uint16_t>(i);
  TensorMap map;
  make_row_map(map, {source, kLanes, kLanes}, Dtype::bf16, 1, kLanes, {8});
  const auto copy = [&](auto start) {
    return failure_of(1, 3072, [&] {
      const uint32_t barrier = device::shared_address(device::dynamic_shared());
      const uint32_t to = (barrier + 2047) / 1024 * 1024;
      device::mbarrier_init(barrier, 1);
      start(to, barrier);
      device::mbarrier_wait(barrier, 0);
      uint16_t landed = 0;
      std::memcpy(&landed, device::dynamic_shared() + (to - barrier), sizeof(landed));
      EXPECT_EQ(landed, 8);
    });
  };
  const auto bytes_from = [&](int first) {
    return copy([&, first](uint32_t to, uint32_t barrier) {
      device::mbarrier_arrive_expecting(barrier, 96);
      device::load_bytes(to, source + first, 96, barrier);
    });
  };
  const auto box_from = [&](int lane) {
    return copy([&, lane](uint32_t to, uint32_t barrier) {
      device::mbarrier_arrive_expecting(barrier, 1024);
      device::load_box(to, &map, barrier, lane, kMapRows - 8, 0, 8, kMapRows);
    });
  };
  EXPECT_EQ(bytes_from(8), "");
  EXPECT_EQ(box_from(8), "");
  EXPECT_NE(bytes_from(4).find("a copy not of whole 16 bytes"), std::string::npos);
  EXPECT_NE(box_from(4).find("a box does not begin on 16 bytes"), std::string::npos);
  free_bytes(source);
}

TEST_F(Emulator, SomeThreadWaitsForEveryPhaseOfABarrierBeforeTheNext) {
  const auto arrive_twice = [&](bool waits_between) {
    return failure_of(1, 64, [&] {
      const uint32_t barrier = device::shared_address(device::dynamic_shared());
      device::mbarrier_init(barrier, 1);
      device::mbarrier_arrive(barrier);
      if (waits_between) device::mbarrier_wait(barrier, 0);
      device::mbarrier_arrive(barrier);
    });
  };
  EXPECT_EQ(arrive_twice(true), "");
  const std::string failure = arrive_twice(false);
  EXPECT_NE(failure.find("no thread waited for the phase before"), std::string::npos) << failure;
}

TEST_F(Emulator, NamedBarriersOfAllThreadsAreAtOnePlace) {
  const auto meet = [&](int threads) {
    return failure_of(threads, 64, [&] {
      if (threadIdx.x < 32)
        device::named_barrier_sync(1, 64);
      else if (threadIdx.x < 64)
        device::named_barrier_sync(1, 64);
    });
  };
  EXPECT_EQ(meet(96), "");
  const std::string failure = meet(64);
  EXPECT_NE(failure.find("from different places"), std::string::npos) << failure;
}

TEST_F(Emulator, PlantedFaultsChangeWaitsAndZeroes) {
  emulator::settings().fault = emulator::Fault::skip_zero_fill;
  bool is_nan = false;
  run_one_cta(1, 16, [&] {
    auto* shared = reinterpret_cast<float*>(device::dynamic_shared());
    copy_async_16(device::shared_address(shared), nullptr, false);
    copy_async_commit();
    copy_async_wait<0>();
    is_nan = std::isnan(shared[0]);
  });
  EXPECT_TRUE(is_nan);
}

TEST_F(Emulator, MatrixLoadsGiveEveryLaneItsPair) {
  run_one_cta(32, 4 * 128, [] {
    auto* shared = reinterpret_cast<uint16_t*>(device::dynamic_shared());
    const int lane = threadIdx.x;
    // Matrix m, row r, column c holds 100 m + 10 r + c.
    for (int c = 0; c < 8; ++c)
      shared[lane * 8 + c] = static_cast<uint16_t>(100 * (lane / 8) + 10 * (lane % 8) + c);
    __syncwarp();
    const uint32_t address = device::shared_address(shared + lane * 8);
    uint32_t plain[4], transposed[4];
    device::load_matrix_x4(plain, address);
    device::load_matrix_x4_transposed(transposed, address);
    const uint32_t row = static_cast<uint32_t>(lane / 4), column = 2 * (lane % 4u);
    for (uint32_t m = 0; m < 4; ++m) {
      EXPECT_EQ(plain[m], (100 * m + 10 * row + column) | (100 * m + 10 * row + column + 1) << 16);
      EXPECT_EQ(transposed[m], (100 * m + 10 * column + row) | (100 * m + 10 * (column + 1) + row)
                                                                   << 16);
    }
  });
}

template <class T>
void check_product() {
  const auto a_at = [](int m, int k) { return static_cast<float>((3 * m + 5 * k) % 7 - 3); };
  const auto b_at = [](int k, int n) { return static_cast<float>((2 * k + 11 * n) % 5 - 2); };
  run_one_cta(32, 0, [&] {
    const int g = threadIdx.x / 4, c = 2 * (threadIdx.x % 4);
    const auto a_pair = [&](int m, int k) { return device::pack<T>(a_at(m, k), a_at(m, k + 1)); };
    const auto b_pair = [&](int k) { return device::pack<T>(b_at(k, g), b_at(k + 1, g)); };
    const uint32_t a[4] = {a_pair(g, c), a_pair(g + 8, c), a_pair(g, c + 8), a_pair(g + 8, c + 8)};
    float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    device::multiply_add<T>(d, a, b_pair(c), b_pair(c + 8));
    for (int i = 0; i < 4; ++i) {
      float sum = 1.0f;
      for (int k = 0; k < 16; ++k) sum += a_at(g + 8 * (i / 2), k) * b_at(k, c + i % 2);
      EXPECT_EQ(d[i], sum);
    }
  });
}

TEST_F(Emulator, MultiplyAddFollowsTheFragmentLayout) {
  check_product<Bf16>();
  check_product<Fp16>();
}

TEST_F(Emulator, AtomicMaxKeepsTheLargestAndNan) {
  float largest = -INFINITY;
  run_one_cta(64, 0, [&] { device::atomic_max(&largest, -1.0f - threadIdx.x); });
  EXPECT_EQ(largest, -1.0f);
  run_one_cta(64, 0, [&] { device::atomic_max(&largest, threadIdx.x == 5 ? NAN : 2.0f); });
  EXPECT_TRUE(std::isnan(largest));
}

TEST_F(Emulator, MemoryIsLentFullOfNanBetweenGuards) {
  ASSERT_EQ(count_devices().value(), 1);
  auto* memory = static_cast<float*>(allocate_bytes(40));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(std::isnan(memory[i]));
  EXPECT_NO_THROW(wait_for_stream(nullptr));
  EXPECT_THROW(copy_to_device(memory + 1, memory, 40, nullptr), DeviceError);
  memory[10] = 1.0f;
  EXPECT_THROW(wait_for_stream(nullptr), DeviceError);
  memory[10] = NAN;
  std::memset(memory + 10, 0xff, 4);
  free_bytes(memory);
  EXPECT_NO_THROW(wait_for_stream(nullptr));
}

}  // namespace
}  // namespace cpscope::kernels
