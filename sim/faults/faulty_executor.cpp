#include "sim/faults/faulty_executor.h"

#include <utility>

#include <fmt/format.h>

namespace cpscope {

std::string describe(const FaultSite& site) {
  if (site.is_load) return fmt::format("input rows of rank {}", to_index(site.rank));
  return fmt::format("{} step {}, rank {}, {} {}", to_name(site.item.direction),
                     to_index(site.step), to_index(site.rank), to_name(site.item.kind),
                     site.item.index);
}

int64_t FaultyExecutor::memory_bytes(const CheckedPlan& plan) const {
  return make_walker_({})->memory_bytes(plan);
}

Result<RunOutput> FaultyExecutor::run(const CheckedPlan& checked, const RunInputs& inputs,
                                      const RunOptions& options) {
  planted_ = fault_ != nullptr ? fault_->plant(checked.plan()) : std::nullopt;
  carried_out_ = planted_ && planted_->plan
                     ? admit_faulty_plan(std::move(*planted_->plan), planted_->what)
                     : checked;
  posts_ = make_posts(carried_out_->plan());
  if (planted_ && planted_->posts) planted_->posts(posts_);
  WatchedWalk setup{.fault = planted_ ? planted_->mistake : std::nullopt, .trace = &trace_};
  const std::unique_ptr<Executor> walker = make_walker_(setup);
  if (!planted_ || !planted_->inputs) return walker->run(*carried_out_, inputs, options);
  RunInputs altered = inputs;
  planted_->inputs(altered);
  return walker->run(*carried_out_, altered, options);
}

}  // namespace cpscope
