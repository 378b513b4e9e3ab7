// The probes alone: no findings on the walker, and findings where an answer is one key, one query
// or one head off.

#include "sim/run/probe/probe.h"

#include "reference/mask_predicate.h"
#include "reference/plan_walker.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/walker_cases.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// The walker, with its answers modified.
class SpoiltWalker : public Executor {
 public:
  explicit SpoiltWalker(std::function<void(const Plan&, Answer&)> spoil)
      : spoil_(std::move(spoil)), walker_(reference::make_plan_walker()) {}
  std::string name() const override { return "spoilt"; }
  int64_t memory_bytes(const CheckedPlan& plan) const override {
    return walker_->memory_bytes(plan);
  }
  Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                        const RunOptions& options) override {
    Result<RunOutput> output = walker_->run(plan, inputs, options);
    if (output) spoil_(plan.plan(), output.value().answer);
    return output;
  }

 private:
  std::function<void(const Plan&, Answer&)> spoil_;
  std::unique_ptr<Executor> walker_;
};

ProbeReport probe_with(const Scenario& scenario,
                       const std::function<void(const Plan&, Answer&)>& spoil) {
  SpoiltWalker walker(spoil);
  return run_probes(scenario, walker, reference::mask_witness(), {}).value();
}

Scenario turned_case(CommType comm, Dtype dtype) {
  Scenario scenario = walker_case({37, 0, 21}, 4);
  scenario.parallel.comm_type = comm;
  scenario.numerics.dtype = dtype;
  scenario.attention.rope_theta = 10000;
  return scenario;
}

/// The probes with findings.
std::vector<std::string> loud(const ProbeReport& report) {
  std::vector<std::string> names;
  for (const ProbeTally& tally : report.tallies) {
    if (tally.wrong > 0) names.push_back(tally.probe);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(Probes, AreSilentOverEveryCommunicationTypeAndDtype) {
  for (const CommType comm : kCommTypes) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp64}) {
      Scenario scenario = turned_case(comm, dtype);
      scenario.attention.softcap = 20;
      scenario.attention.softmax_type = SoftmaxType::learnable;
      const ProbeReport report = probe_with(scenario, [](const Plan&, Answer&) {});
      EXPECT_TRUE(report.passed())
          << to_name(comm) << " " << to_name(dtype) << ": " << report.first->text;
      EXPECT_EQ(report.tallies.size(), 8u);
      for (const ProbeTally& tally : report.tallies) EXPECT_GT(tally.rows, 0) << tally.probe;
    }
  }
}

TEST(Probes, AreSilentOverRandomScenarios) {
  // CPSCOPE_PROBES=20000 runs more of them.
  const char* wish = std::getenv("CPSCOPE_PROBES");
  const uint64_t count = wish != nullptr ? std::strtoull(wish, nullptr, 10) : 60;
  RandomSpace space;
  space.any_dtype = true;
  const auto walker = reference::make_plan_walker();
  int64_t probed = 0;
  std::map<std::string, int64_t> rows;
  for (uint64_t seed = 0; seed < count; ++seed) {
    const Scenario scenario = random_scenario(seed, space);
    const auto report = run_probes(scenario, *walker, reference::mask_witness(), {});
    if (!report) continue;
    ++probed;
    for (const ProbeTally& tally : report.value().tallies) {
      rows[tally.probe] += tally.rows;
      EXPECT_EQ(tally.wrong, 0) << "seed " << seed << ": " << tally.first->text << "\n"
                                << print_scenario(scenario);
    }
  }
  EXPECT_GT(probed * 10, static_cast<int64_t>(count) * 8);
  for (const auto& [probe, asked] : rows) EXPECT_GT(asked, 0) << probe;
}

/// The walker, without a backward.
class ForwardWalker : public Executor {
 public:
  std::string name() const override { return "forward"; }
  int64_t memory_bytes(const CheckedPlan&) const override { return 0; }
  Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                        const RunOptions& options) override {
    if (plan.plan().scenario.numerics.backward)
      return make_error(ErrorKind::unavailable, "no backward here");
    return reference::make_plan_walker()->run(plan, inputs, options);
  }
};

TEST(Probes, DoNotAskAnExecutorWithoutABackwardForGradients) {
  ForwardWalker walker;
  const auto report =
      run_probes(turned_case(CommType::p2p, Dtype::bf16), walker, reference::mask_witness(), {});
  ASSERT_TRUE(static_cast<bool>(report)) << to_text(report.error());
  EXPECT_TRUE(report.value().passed());
  for (const ProbeTally& tally : report.value().tallies) {
    const bool is_gradient = tally.probe.starts_with("d");
    EXPECT_EQ(tally.rows == 0, is_gradient) << tally.probe;
    EXPECT_EQ(tally.why_not.find("no backward here") != std::string::npos, is_gradient);
  }
}

TEST(Probes, AskNothingOfCodesThatTheDtypeDoesNotHold) {
  Scenario scenario = turned_case(CommType::p2p, Dtype::fp16);
  scenario.attention.softmax_scale = 1e-12;
  const ProbeReport report = probe_with(scenario, [](const Plan&, Answer&) {});
  EXPECT_TRUE(report.passed()) << report.first->text;
  for (const ProbeTally& tally : report.tallies) {
    const bool is_coded =
        tally.probe == "query" || tally.probe == "position" || tally.probe.starts_with("d");
    EXPECT_EQ(tally.rows == 0, is_coded) << tally.probe;
  }
}

TEST(Probes, SeeACountThatIsOneOff) {
  const ProbeReport report =
      probe_with(turned_case(CommType::p2p, Dtype::bf16), [](const Plan&, Answer& answer) {
        double& lse = answer.lse.values[30 * 4 + 1];
        lse = std::log(std::exp(lse) + 1);
      });
  EXPECT_EQ(loud(report), (Names{"count"}));
  EXPECT_EQ(report.first_of("count")->token, 30);
  EXPECT_EQ(report.first_of("count")->head, 1);
  EXPECT_EQ(report.wrong_count_rows, 1);
}

TEST(Probes, SeeOneKeyTakenForAnotherWhateverTheDistance) {
  // In a row that sees two keys, half its weight goes to another one. 8 and 64 are powers of the
  // number of elements.
  for (const int64_t distance : {1, 8, 64}) {
    Scenario scenario = walker_case({128}, 4);
    scenario.attention.mask_type = MaskType::no_mask;
    scenario.attention.window_left = 1;
    scenario.attention.window_right = 0;
    const auto shifted = [&](const Plan&, Answer& answer) {
      const auto row = [&](int64_t token) { return answer.out.values.begin() + token * 4 * 8; };
      std::copy_n(row(127 - distance), 8, row(127));
    };
    const ProbeReport report = probe_with(scenario, shifted);
    ASSERT_TRUE(report.first_of("keys").has_value()) << "distance " << distance;
    EXPECT_EQ(report.first_of("keys")->token, 127);
  }
}

// Six partial results are rounded to bf16, and their sum after each: more than half a key of 83.
TEST(Probes, CountTheKeysOfResultsThatAreAddedIn16Bits) {
  for (const WireFormat wire : {WireFormat::dtype, WireFormat::fp32}) {
    Scenario scenario = walker_case({83}, 6);
    scenario.batch.slots = scenario.batch.kv_slots = {133};
    scenario.parallel.comm_type = CommType::gather_q;
    scenario.parallel.combine = Combine::reduce_scatter;
    scenario.parallel.partial_wire = wire;
    scenario.numerics.dtype = Dtype::bf16;
    scenario.numerics.backward = false;
    const ProbeReport report = probe_with(scenario, [](const Plan&, Answer&) {});
    EXPECT_EQ(loud(report), Names{});
  }
}

TEST(Probes, SeeARowOfAnotherQueryHead) {
  const ProbeReport report =
      probe_with(turned_case(CommType::a2a, Dtype::bf16), [](const Plan&, Answer& answer) {
        // Heads 0 and 1 read one KV head, so neither keys nor KV heads distinguish them.
        for (int64_t token = 0; token < answer.out.shape[0]; ++token)
          std::copy_n(answer.out.values.begin() + (token * 4 + 1) * 8, 8,
                      answer.out.values.begin() + token * 4 * 8);
      });
  EXPECT_EQ(loud(report), (Names{"query"}));
}

TEST(Probes, SeeOneKeyOrQueryInAGradientAndForgiveATenthOfOne) {
  for (const double amount : {0.1, 1.0}) {
    const ProbeReport report =
        probe_with(turned_case(CommType::p2p, Dtype::bf16), [&](const Plan& plan, Answer& answer) {
          if (answer.dq.values.empty()) return;
          const double scale = plan.scenario.attention.effective_scale();
          answer.dq.values[(9 * 4 + 2) * 8 + 3] += amount * scale;
          answer.dk.values[(11 * 2 + 1) * 8 + 5] += amount * scale;
          answer.dv.values[(14 * 2 + 0) * 8 + 7] += amount;
        });
    EXPECT_EQ(loud(report), amount < 1 ? Names{} : (Names{"dq", "dk", "dv"}));
    if (amount < 1) continue;
    EXPECT_EQ(report.first_of("dq")->token, 9);
    EXPECT_EQ(report.first_of("dq")->head, 2);
    EXPECT_EQ(report.first_of("dk")->token, 11);
    EXPECT_EQ(report.first_of("dk")->head, 1);
    EXPECT_EQ(report.first_of("dv")->token, 14);
    EXPECT_EQ(report.first_of("dv")->head, 0);
    EXPECT_FALSE(report.passed());
  }
}

TEST(Probes, AskNothingOfPositionsWithoutRotaryEmbeddingNorOfGradientsWithoutBackward) {
  Scenario scenario = walker_case({24}, 2);
  scenario.numerics.backward = false;
  const ProbeReport report = probe_with(scenario, [](const Plan&, Answer&) {});
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.tallies.size(), 4u) << "count, keys, head and query";
}

TEST(Probe, CountsTheKeptWeightsOfDropoutExactly) {
  for (const DropoutMode mode : {DropoutMode::split_invariant, DropoutMode::framework}) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp32}) {
      Scenario scenario = walker_case({37, 0, 150}, 4);
      scenario.numerics.dtype = dtype;
      scenario.numerics.backward = false;
      scenario.attention.dropout = 0.3;
      scenario.attention.dropout_mode = mode;
      const ProbeReport right = probe_with(scenario, [](const Plan&, Answer&) {});
      EXPECT_TRUE(right.passed()) << right.first.value().text;
      EXPECT_TRUE(right.left_out.empty()) << right.left_out.front();
      const auto kept = std::find_if(right.tallies.begin(), right.tallies.end(),
                                     [](const ProbeTally& tally) { return tally.probe == "kept"; });
      ASSERT_NE(kept, right.tallies.end());
      EXPECT_EQ(kept->rows, right.rows);
    }
  }
}

TEST(Probe, FindsOneWeightThatWasKeptAndShouldNotBe) {
  Scenario scenario = walker_case({37, 0, 150}, 4);
  scenario.numerics.backward = false;
  scenario.attention.dropout = 0.3;
  const ProbeReport report = probe_with(scenario, [](const Plan& plan, Answer& answer) {
    if (plan.scenario.attention.dropout == 0) return;
    // Row 100 of the last sequence sees 101 keys: one of them more, or one less.
    const int64_t token = plan.layout.slots.sequences[2].q_valid_begin() + 100,
                  row = token * plan.scenario.attention.heads * plan.scenario.attention.head_dim_v;
    answer.out.values[static_cast<size_t>(row)] += 1.0 / (0.7 * 101);
  });
  EXPECT_EQ(loud(report), std::vector<std::string>{"kept"});
  ASSERT_TRUE(report.first_of("kept"));
  EXPECT_EQ(report.first_of("kept")->head, 0);
}

}  // namespace
}  // namespace cpscope::tests
