#pragma once

#include "sim/faults/fault.h"
#include "sim/run/executor.h"
#include "sim/run/executor_fault.h"

#include <memory>
#include <optional>

namespace cpscope {

/// An executor with an internal fault that a caller with a proved plan cannot see. Without a fault
/// it is the clean twin, which runs the same code.
class FaultyExecutor : public Executor {
 public:
  /// `fault` null: the clean twin.
  FaultyExecutor(const Fault* fault, WatchedWalker make_walker)
      : fault_(fault), make_walker_(std::move(make_walker)) {}

  std::string name() const override { return "cpu, watched"; }
  int64_t memory_bytes(const CheckedPlan& plan) const override;
  Result<RunOutput> run(const CheckedPlan& checked, const RunInputs& inputs,
                        const RunOptions& options) override;

  /// Data of the last run: what was done, what was planted, the plan that was really run and the
  /// messages that every rank posted.
  const WalkTrace& trace() const { return trace_; }
  const std::optional<PlantedFault>& planted() const { return planted_; }
  const std::optional<CheckedPlan>& carried_out() const { return carried_out_; }
  const RankPosts& posts() const { return posts_; }

 private:
  const Fault* fault_;
  WatchedWalker make_walker_;
  WalkTrace trace_;
  std::optional<PlantedFault> planted_;
  std::optional<CheckedPlan> carried_out_;
  RankPosts posts_;
};

}  // namespace cpscope
