#pragma once

#include "sim/clock/clock.h"
#include "sim/run/executor.h"
#include "sim/scenario/portable_random.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {

/// A small GPU times four, so that a few tiles fill it.
inline Cluster known_machine() {
  Cluster cluster;
  cluster.name = "known";
  cluster.title = "four small GPUs";
  cluster.gpus_per_node = 4;
  cluster.device = {"NVIDIA Imaginary", "none", 6, 12.5, 1500, {}};
  const LinkCurve ring{{{32768, 12}, {131072, 14}, {524288, 20}, {2097152, 40}, {8388608, 120}}};
  const LinkCurve many{{{98304, 21}, {393216, 24}, {1572864, 33}, {6291456, 60}, {25165824, 165}}};
  cluster.inside = {"wires", "none", ring, many};
  Stack stack;
  stack.name = "cpscope";
  stack.title = "known";
  stack.source = "none";
  const TileCost forward{.launch_us = 5.5, .owned_us = 4.1, .whole_us = 1.6, .masked_us = 3.1};
  const TileCost backward{.tile_rows = 64,
                          .tile_keys = 128,
                          .launch_us = 17,
                          .owned_us = 13.5,
                          .whole_us = 5.4,
                          .masked_us = 9.4};
  const TileCost narrow{.launch_us = 6.5, .owned_us = 5.1, .whole_us = 1.1, .masked_us = 2.2};
  stack.kernels = {{64, 64, 16, forward, backward},       {64, 64, 8, narrow, backward},
                   {128, 128, 16, forward, backward},     {128, 128, 8, narrow, backward},
                   {128, 128, 32, forward, backward},     {192, 128, 16, backward, forward},
                   {256, 256, 16, backward, forward},     {256, 256, 8, narrow, backward},
                   {576, 512, 16, backward, narrow, true}};
  stack.item_us = 30;
  stack.message_us = 50;
  stack.pass_us = 25;
  stack.row_launch_us = 3.5;
  stack.transfer_multiprocessors = 2;
  cluster.stacks = {stack};
  return cluster;
}

/// Answers with what the clock predicts, give or take.
class PredictedExecutor : public Executor {
 public:
  PredictedExecutor(std::string name, Cluster cluster, int32_t gpus, double noise = 0)
      : name_(std::move(name)), cluster_(std::move(cluster)), gpus_(gpus), noise_(noise) {}

  std::string name() const override { return name_; }
  int64_t memory_bytes(const CheckedPlan& /*plan*/) const override { return 0; }
  bool can_hold(Dtype dtype) const override { return dtype != missing; }
  Result<DeviceReport> describe_devices() const override {
    return DeviceReport{cluster_.device.name,       "1.2.3", cluster_.device.multiprocessors,
                        cluster_.device.memory_gib, gpus_,   cluster_.stacks[0].packs};
  }
  Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                        const RunOptions& options) override {
    EXPECT_EQ(inputs.q.size(), static_cast<int64_t>(inputs.q.values.size()));
    EXPECT_EQ(inputs.q.shape[0], plan.plan().layout.slots.tokens);
    EXPECT_TRUE(options.measures_items);
    const Result<Timeline> timeline = predict(plan.plan(), cluster_);
    if (!timeline) return timeline.error();
    RunOutput output;
    output.list_seconds = 0.0025;
    if (has_clock) output.events = timeline.value().events;
    for (ItemEvent& event : output.events) {
      const double factor = 1 + noise_ * (2 * draw_unit(3, 0, num_drawn_++) - 1);
      const auto ns = static_cast<double>(event.end_ns - event.start_ns) * factor;
      event.end_ns = event.start_ns + (stands_still ? 0 : std::llround(ns));
    }
    if (sends_in_turn) send_in_turn(plan.plan(), output.events);
    for (int32_t i = 0; i < options.repeats; ++i) {
      output.forward_seconds.push_back(timeline.value().forward.total_us * 1e-6);
      if (plan.plan().scenario.numerics.backward)
        output.backward_seconds.push_back(timeline.value().backward.total_us * 1e-6);
    }
    return output;
  }

  Dtype missing = Dtype::fp64;
  bool has_clock = true, stands_still = false, sends_in_turn = false;

 private:
  /// The messages of one rank in one stage follow each other, and end when they did together.
  static void send_in_turn(const Plan& plan, std::vector<ItemEvent>& events) {
    std::map<std::pair<int64_t, RankId>, std::vector<ItemEvent*>> stages;
    for (ItemEvent& event : events) {
      if (event.item.kind != StageKind::transfer || event.item.direction != Direction::forward)
        continue;
      const TransferItem& item = plan.forward.transfers[static_cast<size_t>(event.item.index)];
      if (item.src == item.dst) continue;
      const auto stage =
          std::find_if(plan.forward.stages.begin(), plan.forward.stages.end(), [&](const Stage& s) {
            return s.kind == StageKind::transfer && s.begin <= event.item.index &&
                   event.item.index < s.end;
          });
      stages[{stage - plan.forward.stages.begin(), event.rank}].push_back(&event);
    }
    for (const auto& [key, sent] : stages) {
      const auto count = static_cast<int64_t>(sent.size());
      const int64_t begin = sent.front()->start_ns, each = (sent.front()->end_ns - begin) / count;
      for (int64_t i = 0; i < count; ++i) {
        sent[i]->start_ns = begin + i * each;
        sent[i]->end_ns = begin + (i + 1) * each;
      }
    }
  }

  std::string name_;
  Cluster cluster_;
  int32_t gpus_;
  double noise_;
  uint64_t num_drawn_ = 0;
};

}  // namespace cpscope::tests
