#pragma once

#include "kernels/device/device.h"

#include <gtest/gtest.h>

namespace cpscope::tests {

/// Tests of work that is enqueued on a stream of a device, or of the emulator.
class StreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto count = kernels::count_devices(); !count)
      GTEST_SKIP() << "requires gpu: " << to_text(count.error());
    stream_ = kernels::make_stream(kernels::Urgency::usual);
  }
  void TearDown() override {
    if (stream_ != nullptr) kernels::destroy_stream(stream_);
  }

  kernels::Stream stream_ = nullptr;
};

}  // namespace cpscope::tests
