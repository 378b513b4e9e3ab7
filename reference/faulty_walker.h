#pragma once

#include "sim/run/executor_fault.h"

#include <memory>

namespace cpscope::reference {

/// The walker with a trace and, if one is planted, a mistake. Without a mistake its answers are
/// those of make_plan_walker bit by bit (tests/sim/faults/watched_walker_test.cpp). Only for the
/// fault gallery and the search for causes.
std::unique_ptr<Executor> make_watched_walker(const WatchedWalk& setup);

}  // namespace cpscope::reference
