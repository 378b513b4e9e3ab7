#pragma once

#include "kernels/run/executor_cuda.h"

#include <gtest/gtest.h>

/// Skips the test if there is no device.
#define CPSCOPE_NEEDS_DEVICE(executor)                                                \
  const std::unique_ptr<Executor> made = kernels::make_executor_cuda();               \
  if (made->absence()) GTEST_SKIP() << "requires gpu: " << to_text(*made->absence()); \
  Executor& executor = *made
