#pragma once

#include "sim/base/result.h"
#include "sim/plan/plan_check.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

struct RunOptions {
  bool poison = false;  // every output and receive buffer starts as NaN (padding of the inputs is
                        // poisoned by the caller)
  int threads = 0;      // 0 = all cores; results do not depend on it
  Progress progress;    // may be empty
};

/// What an executor gives back, in packed padded token order.
struct RunOutput {
  Answer answer;
  int64_t tile_flops = 0;     // arithmetic of the tiles that were worked on, masked cells included
  double tile_seconds = 0.0;  // time in them, summed over threads
};

/// Something that can carry out a checked plan. The only base class of the house.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string name() const = 0;
  /// Bytes that the plan needs on this executor, known before anything is allocated.
  virtual int64_t memory_bytes(const CheckedPlan& plan) const = 0;
  /// Errors: unavailable (feature or memory), in one sentence. No exception leaves.
  virtual Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                                const RunOptions& options) = 0;
};

}  // namespace cpscope
