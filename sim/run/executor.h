#pragma once

#include "sim/base/result.h"
#include "sim/plan/plan_check.h"
#include "sim/run/judge.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// Which item of a plan: number `index` of its kind in one direction.
struct ItemId {
  bool is_backward = false;
  StageKind kind = StageKind::compute;
  int64_t index = 0;
};

/// One array that an item has just written, [row, head, lane].
struct ItemResult {
  ItemId item;
  RankId rank{};
  StepId step{};
  const char* array = "";  // out | lse | dq | dk | dv
  std::vector<int64_t> shape;
  std::vector<double> values;  // floats held exactly, doubles where everything is fp64
};

/// Sees the results of every compute and finish item, in plan order. May be empty.
using Observer = std::function<void(const ItemResult&)>;

/// When an item was carried out, from the start of the run.
struct ItemEvent {
  ItemId item;
  RankId rank{};
  StepId step{};
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

struct RunOptions {
  bool poison = false;  // every output and receive buffer starts as NaN (padding of the inputs is
                        // poisoned by the caller)
  int threads = 0;      // 0 = all cores; results do not depend on it
  Observer observer = {};       // item results in plan order; the run is then slower
  bool measures_items = false;  // executors with a clock of their own fill RunOutput::events
  int32_t repeats = 1;      // each pass is carried out so often, for timing; the result is the same
                            // each time
  RunControl control = {};  // counts items; a cancelled run is an error
};

/// What an executor gives back, in packed padded token order.
struct RunOutput {
  Answer answer;
  int64_t tile_flops = 0;     // arithmetic of the tiles that were worked on, masked cells included
  double tile_seconds = 0.0;  // time in them, summed over threads
  double list_seconds = 0.0;  // host time for a rank's lists of tiles, once a layout; 0 on the CPU
  std::vector<ItemEvent> events;  // [item] of one repeat, by start; empty without a clock
  std::vector<double> forward_seconds, backward_seconds;  // [repeat] wall time of a pass alone
  bool is_whole = true;  // false: the answer is in another process, which judges it
  std::string kernels;   // which generation of kernels worked; empty on the CPU
  /// [compute item of each direction] its kernels with their tiles, "" where it idles; empty on the
  /// CPU.
  std::array<std::vector<std::string>, 2> item_kernels;
};

/// The GPUs that an executor spreads ranks over, all of one kind.
struct DeviceReport {
  std::string name;    // "NVIDIA H200"
  std::string driver;  // its version; empty where the machine does not say
  int32_t multiprocessors = 0;
  double memory_gib = 0;
  int32_t count = 1;  // 1: one GPU plays all ranks
};

/// Something that can carry out a checked plan. The only base class of the house.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string name() const = 0;
  /// Why this machine has no such executor (kind unavailable, one sentence); nothing when it has.
  /// Asked only when somebody wants to use it, because waking a device takes a while.
  virtual std::optional<Error> absence() const { return std::nullopt; }
  /// Does it take scenarios of this dtype?
  virtual bool can_hold(Dtype /*dtype*/) const { return true; }
  /// May it keep and merge partial results in the scenario's dtype, whatever `accumulate` says? Of
  /// somebody else's code nobody knows.
  virtual bool may_merge_in_dtype() const { return false; }
  /// What it works on. Errors: unavailable (no device and no clock of its own, or devices that one
  /// process does not drive alone), in one sentence.
  virtual Result<DeviceReport> describe_devices() const {
    return make_error(ErrorKind::unavailable, "executor " + name() + " has no device to measure",
                      "use --executor cuda or nccl");
  }
  /// Host memory that the plan needs on this executor beside its inputs and answer, known before
  /// anything is allocated. What a device lacks, `run` says with both figures.
  virtual int64_t memory_bytes(const CheckedPlan& plan) const = 0;
  /// Errors: unavailable (feature, memory, cancelled), in one sentence. No exception leaves.
  virtual Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                                const RunOptions& options) = 0;
};

}  // namespace cpscope
