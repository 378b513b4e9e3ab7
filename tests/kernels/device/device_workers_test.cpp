#include "kernels/device/device_workers.h"

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

TEST(DeviceWorkers, CallEveryIndexOnceEveryTime) {
  DeviceWorkers workers(5);
  std::array<std::atomic<int>, 5> calls{};
  for (int round = 1; round <= 1000; ++round) {
    workers.run([&](size_t index) { ++calls[index]; });
    for (const std::atomic<int>& count : calls) ASSERT_EQ(count, round);
  }
}

TEST(DeviceWorkers, WorkAtTheSameTime) {
  DeviceWorkers workers(3);
  std::atomic<int> here = 0;
  // No thread continues before all have arrived.
  workers.run([&](size_t) {
    ++here;
    while (here < 3) std::this_thread::yield();
  });
  EXPECT_EQ(here, 3);
}

TEST(DeviceWorkers, WakeAfterALongPause) {
  DeviceWorkers workers(2);
  std::atomic<int> calls = 0;
  workers.run([&](size_t) { ++calls; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  workers.run([&](size_t) { ++calls; });
  EXPECT_EQ(calls, 4);
}

TEST(DeviceWorkers, PassOnWhatWasThrownAndGoOn) {
  DeviceWorkers workers(3);
  std::atomic<int> calls = 0;
  const auto fail = [&](size_t index) {
    ++calls;
    if (index == 2) throw std::runtime_error("device 2");
  };
  try {
    workers.run(fail);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()), "device 2");
  }
  EXPECT_EQ(calls, 3);
  workers.run([&](size_t) { ++calls; });
  EXPECT_EQ(calls, 6);
}

}  // namespace
}  // namespace cpscope::kernels
