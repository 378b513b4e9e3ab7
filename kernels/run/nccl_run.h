#pragma once

#include "kernels/device/device_workers.h"
#include "kernels/run/nccl_group.h"
#include "kernels/run/rank_device.h"

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cpscope::kernels {

/// One run of one plan by the devices of this process. All calls are collective: all processes make
/// the same calls. Failures are thrown as NcclGroup throws them.
class NcclRun {
 public:
  struct Ways {
    Wire wire = Wire::nccl;  // copies: all devices belong to this process and reach each other
    std::optional<Generation> generation;
    std::optional<int32_t> most_pieces;
    std::vector<std::string> without;  // passes of lowering
  };

  /// `run`: counts the runs of the group.
  NcclRun(const CheckedPlan& checked, const RunOptions& options, NcclGroup& nccl, const Ways& ways,
          int64_t run);

  /// Makes and fills the devices' memory. Returns the reason why some process cannot, the same on
  /// all; empty if all can.
  std::string prepare(const RunInputs& inputs);
  /// Runs both passes; returns this process's part of the results. An error reports that some
  /// process cancelled the run, the same on all; the group can then start the next run as after an
  /// answer.
  Result<RunOutput> carry_out();
  /// Collects the complete results on process 0.
  void gather(RunOutput& output);
  /// Describes an overwritten guard byte; empty if all are intact. The same on all processes.
  std::string find_broken_guard();

 private:
  std::vector<double> run_pass(Direction direction);
  /// Wall time of each repeat.
  std::vector<double> run_repeats(Direction direction, int32_t repeats, bool measures_items);
  void run_stages(Direction direction);
  /// Enqueues everything up to the first computes of a pass whose inputs arrive in pieces.
  void begin_in_pieces(Direction direction);
  template <class Work>
  void each_device(Work work);
  template <class Work>
  void by_threads(Work work);
  std::vector<bool> find_swaps(Direction direction) const;
  bool may_swap(const Stage& transfers, const Stage& computes, Direction direction) const;
  void run_by_devices(const Stage& stage);
  void run_transfers(int64_t begin, int64_t end);
  void observe(const Stage& stage);
  /// True if some process wants to stop; the same on all.
  bool agree_to_cancel();
  void wait_until_open(size_t most_steps);
  void publish(Activity activity, int32_t step = 0);
  /// The first process's error, if any has one; the same on all.
  std::string agree(const std::string& complaint);
  /// dtype fp8: quantises the ranks' rows with the scales of all.
  void quantise();
  void barrier();
  std::vector<RankId> ranks_of(int32_t first, int32_t end) const;

  const CheckedPlan& checked_;
  const RunOptions& options_;
  NcclGroup& nccl_;
  const Wire wire_;
  const std::optional<Generation> generation_;
  const LoweredPlan lowered_;
  const Plan& plan_;
  const int64_t run_;
  RunWatch watch_;
  int64_t num_enqueued_ = 0;       // items, over all repeats
  bool can_be_cancelled_ = false;  // some process may request it
  bool is_cancelled_ = false;
  ByDirection<std::vector<bool>> swaps_;  // [stage] the next stage is enqueued first;
                                          // copies
  WorkPoint published_;
  std::deque<RankDevice> devices_;          // of the plan's ranks
  std::unique_ptr<DeviceWorkers> workers_;  // where devices are copied to
  ByDirection<bool> is_loaded_;             // a pass in pieces has run, so its kernels are
                                            // loaded
  std::deque<StepId> open_steps_;  // enqueued, not yet known to be done on all devices of this
                                   // process
};

}  // namespace cpscope::kernels
