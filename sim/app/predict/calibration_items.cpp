#include "sim/app/predict/calibration_items.h"

#include "sim/app/predict/calibration_shapes.h"
#include "sim/clock/clock.h"
#include "sim/plan/visit_items.h"
#include "sim/run/grade/case.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

bool overlaps(const ItemEvent& a, const ItemEvent& b) {
  return a.start_ns < b.end_ns && b.start_ns < a.end_ns;
}

}  // namespace

Result<Run> carry_out(Executor& executor, const Scenario& scenario, int32_t repeats) {
  Result<CheckedPlan> plan = plan_scenario(scenario);
  if (!plan) return plan.error();
  Run run{std::make_shared<const CheckedPlan>(std::move(plan).value()), {}};
  const RunInputs inputs = make_filler_inputs(run.plan());
  Result<RunOutput> output =
      executor.run(*run.checked, inputs, {.measures_items = true, .repeats = std::max(1, repeats)});
  if (!output) return output.error();
  run.output = std::move(output).value();
  run.output.answer = {};
  if (run.output.events.empty())
    return make_error(
        ErrorKind::unavailable,
        fmt::format("executor {} has no clock: it did not say when items ran", executor.name()),
        "use --executor cuda or nccl");
  return run;
}

double duration_us(const ItemEvent& event) {
  return static_cast<double>(event.end_ns - event.start_ns) * 1e-3;
}

bool is_alone(const ItemEvent& event, const RunOutput& output, bool is_one_gpu) {
  return std::none_of(output.events.begin(), output.events.end(), [&](const ItemEvent& other) {
    return &other != &event && (is_one_gpu || other.rank == event.rank) && overlaps(event, other);
  });
}

std::optional<double> local_bytes(const Plan& plan, const ItemEvent& event, const Stack& stack) {
  const auto bytes_of = [&](BufferId id) {
    return static_cast<double>(buffer_bytes(plan.buffer(id), plan.scenario));
  };
  using Bytes = std::optional<double>;
  return visit_item(
      plan, event.item,
      Overload{[](const TransferItem&) -> Bytes { return std::nullopt; },
               [&](const ReorderItem& item) -> Bytes { return 2 * bytes_of(item.to); },
               [](const ComputeItem&) -> Bytes { return std::nullopt; },
               [&](const MergeItem& item) -> Bytes {
                 if (item.partial == kNoBuffer) return bytes_of(item.into);
                 const double passes =
                     item.order == 0 ? stack.first_merge_passes : stack.merge_passes;
                 return passes * std::min(bytes_of(item.into), bytes_of(item.partial));
               },
               [&](const FinishItem& item) -> Bytes { return 2 * bytes_of(item.buffer); }});
}

void add_wires(const Run& run, std::vector<WireSample>& samples) {
  struct Sent {
    double bytes = 0;
    int64_t messages = 0;
    // Messages of one stage may follow each other.
    int64_t begin_ns = std::numeric_limits<int64_t>::max();
    int64_t end_ns = std::numeric_limits<int64_t>::min();
  };
  std::map<std::pair<size_t, RankId>, Sent> all;  // [stage, sender]
  for (const ItemEvent& event : run.output.events) {
    if (event.item.kind != StageKind::transfer || event.item.direction != Direction::forward)
      continue;
    const TransferItem& item = run.plan().forward.transfers[static_cast<size_t>(event.item.index)];
    if (item.src == item.dst) continue;
    const auto& stages = run.plan().forward.stages;
    const auto stage = std::find_if(stages.begin(), stages.end(), [&](const Stage& s) {
      return s.kind == StageKind::transfer && s.begin <= event.item.index &&
             event.item.index < s.end;
    });
    Sent& sent = all[{static_cast<size_t>(stage - stages.begin()), item.src}];
    sent.bytes += static_cast<double>(item.bytes);
    ++sent.messages;
    sent.begin_ns = std::min(sent.begin_ns, event.start_ns);
    sent.end_ns = std::max(sent.end_ns, event.end_ns);
  }
  for (const auto& [key, sent] : all)
    samples.push_back({run.label(), sent.bytes, sent.messages,
                       static_cast<double>(sent.end_ns - sent.begin_ns) * 1e-3});
}

std::vector<BusyTime> transfers_of(const Run& run, RankId rank,
                                   const std::optional<RowCost>& packing) {
  std::vector<BusyTime> stretches;
  for (const ItemEvent& event : run.output.events) {
    if (event.item.kind != StageKind::transfer || event.item.direction != Direction::forward)
      continue;
    const TransferItem& item = run.plan().forward.transfers[static_cast<size_t>(event.item.index)];
    const double begin = static_cast<double>(event.start_ns) * 1e-3;
    const double end = static_cast<double>(event.end_ns) * 1e-3;
    if (item.src == rank) stretches.push_back({begin, end});
    if (item.dst != rank || !packing) continue;
    const double copied = 2 * static_cast<double>(item.bytes) / packing->copy_gb_s * 1e-3;
    stretches.push_back({end, end + packing->launch_us + copied});
  }
  return joined(std::move(stretches));
}

}  // namespace cpscope
