#pragma once

#include "sim/base/result.h"
#include "sim/base/run_control.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/direction.h"
#include "sim/plan/item_event.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// One array that an item has just written, [row, head, element].
struct ItemResult {
  ItemId item;
  RankId rank{};
  StepId step{};
  const char* array = "";  // out | lse | dq | dk | dv
  std::vector<int64_t> shape;
  std::vector<double> values;  // float values held exactly; fp64 runs keep doubles
};

/// Receives the results of every compute and finish item, in plan order. May be empty.
using Observer = std::function<void(const ItemResult&)>;

struct RunOptions {
  bool poison = false;  // every output and receive buffer starts as NaN (padding of the inputs is
                        // poisoned by the caller)
  int threads = 0;      // 0 = all cores; results do not depend on it
  Observer observer = {};       // item results in plan order; the run is then slower
  bool measures_items = false;  // executors with a clock of their own fill RunOutput::events
  int32_t repeats = 1;          // times that each pass runs, for timing; the result is the same
                                // each time
  RunControl control = {};      // counts items; a cancelled run is an error
};

/// The result of an executor, in packed padded token order.
struct RunOutput {
  Answer answer;
  int64_t tile_flops = 0;     // arithmetic of the tiles computed, masked cells included
  double tile_seconds = 0.0;  // time in them, summed over threads
  double list_seconds = 0.0;  // host time for the tile lists of the ranks, once per layout; CPU: 0
  std::vector<ItemEvent> events;  // [item] of one repeat, by start; empty without a clock
  std::vector<double> forward_seconds, backward_seconds;  // [repeat] wall time of a pass alone
  bool is_whole = true;  // false: the answer is in another process, which grades it
  std::string kernels;   // the generation of kernels that ran; empty on the CPU
  /// [compute item] Its kernels with their tiles, "" if it idles; empty on the CPU.
  ByDirection<std::vector<std::string>> item_kernels;
};

/// The GPUs that an executor spreads ranks over, all of one kind.
struct DeviceReport {
  std::string name;    // "NVIDIA H200"
  std::string driver;  // its version; empty if unknown
  int32_t multiprocessors = 0;
  double memory_gib = 0;
  int32_t count = 1;  // 1: one GPU runs all ranks
  bool packs = true;  // rows of a message go through staging memory on both GPUs
};

/// Something that can run a checked plan. The only base class of the project.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string name() const = 0;
  /// Why this machine has no such executor (kind unavailable, one sentence); nothing when it has
  /// one. Called only when the executor is about to be used, because initialising a device takes a
  /// while.
  virtual std::optional<Error> absence() const { return std::nullopt; }
  /// True if it supports scenarios of this dtype.
  virtual bool can_hold(Dtype /*dtype*/) const { return true; }
  /// True if it may keep and merge partial results in the scenario's dtype, whatever `accumulate`
  /// says. This is unknown for code of other projects.
  virtual bool may_merge_in_dtype() const { return false; }
  /// The devices that it uses. Errors: unavailable (no device and no clock of its own, or devices
  /// that one process does not drive alone), in one sentence.
  virtual Result<DeviceReport> describe_devices() const {
    return make_error(ErrorKind::unavailable, "executor " + name() + " has no device to measure",
                      "use --executor cuda or nccl");
  }
  /// Host memory that the plan needs on this executor in addition to its inputs and answer, known
  /// before anything is allocated. If device memory is short, `run` reports it with both figures.
  virtual int64_t memory_bytes(const CheckedPlan& plan) const = 0;
  /// Errors: unavailable (feature, memory, cancelled), in one sentence. Throws no exception.
  virtual Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                                const RunOptions& options) = 0;
};

}  // namespace cpscope
