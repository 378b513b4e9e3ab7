#include "reference/dense_oracle.h"
#include "reference/plan_walker.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/fp8.h"
#include "sim/run/fp8_history.h"
#include "sim/run/grade/grade.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Scenario fp8_scenario(const std::string& parallel, const std::string& fp8,
                      const std::string& attention = "heads = 4\nkv_heads = 2\nhead_dim = 64") {
  const std::string text = fmt::format(
      "schema = 1\n[attention]\n{}\n[batch]\nlengths = [93, 37, 154]\nslots = [96, 37, "
      "160]\n[parallel]\n{}\n[numerics]\ndtype = \"fp8\"\n[fp8]\n{}\n",
      attention, parallel, fp8);
  Result<LoadedScenario> loaded = parse_scenario(text, "fp8.toml");
  EXPECT_TRUE(loaded.ok()) << to_text(loaded.error());
  return loaded.value().scenario;
}

struct Fp8Run {
  CheckedPlan plan;
  RunInputs inputs;
  Answer answer;
  Verdict verdict;
  Grade grade;
};

Fp8Run run_fp8(const Scenario& scenario) {
  CheckedPlan plan = check_plan(make_plan(scenario).value()).value();
  RunInputs inputs = make_run_inputs(plan.plan(), true);
  Answer answer = reference::make_plan_walker()
                      ->run(plan, inputs, {.poison = true, .threads = 1})
                      .value()
                      .answer;
  Verdict verdict = reference::judge(scenario, inputs, count_hops(plan.plan()), {}).value();
  Grade grade = grade_answer(plan.plan(), inputs, answer, verdict);
  return {std::move(plan), std::move(inputs), std::move(answer), std::move(verdict),
          std::move(grade)};
}

constexpr const char* kRecipes[] = {"recipe = \"current\"", "recipe = \"delayed\"",
                                    "recipe = \"mxfp8\"",
                                    "recipe = \"current\"\nformat = \"e4m3\""};

TEST(Fp8Attention, IsWithinTheBudgetInEverySchedule) {
  for (const char* comm :
       {"p2p", "a2a", "all_gather", "a2a+p2p", "group_cast", "pass_q", "double_ring", "gather_q"}) {
    for (const char* recipe : kRecipes) {
      const Fp8Run run =
          run_fp8(fp8_scenario(fmt::format("cp_size = 4\ncp_comm_type = \"{}\"", comm), recipe));
      EXPECT_TRUE(run.grade.passed)
          << comm << ", " << recipe << ": " << describe_first_failure(run.grade);
      for (const TensorGrade& tensor : run.grade.tensors) {
        // Errors of 8 bits, not of 16, and no budget that zeros would pass.
        if (tensor.name == "lse" || tensor.name == "max_logit") continue;
        EXPECT_GT(tensor.rel_l2, 0.01) << comm << ", " << recipe << ", " << tensor.name;
        EXPECT_LT(tensor.budget, 0.5) << comm << ", " << recipe << ", " << tensor.name;
      }
    }
  }
}

TEST(Fp8Attention, IsWithinTheBudgetWithBiasAlibiDropoutAndLatentRows) {
  const std::string heads = "heads = 4\nkv_heads = 2\nhead_dim = 64\n",
                    latent = "heads = 4\nkv_heads = 1\nhead_dim_qk = 64\nlatent_dim = 48\n";
  for (const std::string& attention :
       {heads + "alibi = true", heads + "bias = \"bhss\"", heads + "dropout = 0.3",
        heads + "dropout = 0.3\ndropout_mode = \"framework\"", latent,
        latent + "rope_theta = 100.0\nalibi = true\nbias = \"1hss\"\ndropout = 0.5"}) {
    for (const char* comm : {"p2p", "a2a+p2p", "gather_q"}) {
      for (const char* recipe : kRecipes) {
        const Fp8Run run = run_fp8(fp8_scenario(
            fmt::format("cp_size = 4\ncp_comm_type = \"{}\"", comm), recipe, attention));
        const std::string name = fmt::format("{}, {}, {}", attention, comm, recipe);
        EXPECT_TRUE(run.grade.passed) << name << ": " << describe_first_failure(run.grade);
        for (const TensorGrade& tensor : run.grade.tensors) {
          if (tensor.name == "lse" || tensor.name == "max_logit") continue;
          EXPECT_GT(tensor.rel_l2, 0.01) << name << ", " << tensor.name;
          EXPECT_LT(tensor.budget, 0.6) << name << ", " << tensor.name;
        }
      }
    }
  }
}

TEST(Fp8Attention, EnlargesAKeptWeightAfterItsCast) {
  // A query with one key has the weight 1, the largest that the cast can hold: out is v, twice if
  // it is kept, and else 0.
  const Fp8Run run = run_fp8(
      fp8_scenario("cp_size = 2", "recipe = \"current\"",
                   "heads = 4\nkv_heads = 2\nhead_dim = 64\ndropout = 0.5\nwindow_size = [0, 0]"));
  EXPECT_TRUE(run.grade.passed) << describe_first_failure(run.grade);
  int kept = 0, dropped = 0;
  for (const SequenceSlot& slot : run.inputs.slots.sequences) {
    for (int64_t token = slot.q_begin; token < slot.q_begin + slot.q_valid; ++token) {
      for (int64_t head = 0; head < 4; ++head) {
        const double* out = run.answer.out.values.data() + (token * 4 + head) * 64;
        const double* v = run.inputs.v.values.data() + (token * 2 + head / 2) * 64;
        const bool is_kept = std::any_of(out, out + 64, [](double value) { return value != 0; });
        ++(is_kept ? kept : dropped);
        for (int64_t lane = 0; is_kept && lane < 64; ++lane)
          ASSERT_NEAR(out[lane], 2 * v[lane], 2 * 0.07 * std::abs(v[lane]) + 1e-2) << token;
      }
    }
  }
  EXPECT_GT(kept, 400);
  EXPECT_GT(dropped, 400);
}

TEST(Fp8Attention, AllowsForWeightsTooSmallForTheCastWhereDropoutLeavesOutTheLargest) {
  // Found by fuzz --dtype fp8 --seed 1, draw 1382: one row is a single number made of a few kept
  // weights, of which other schedules cast some to 0.
  for (const char* comm : {"p2p", "a2a", "all_gather", "a2a+p2p"}) {
    for (int seed = 0; seed < 4; ++seed) {
      Scenario scenario = fp8_scenario(
          fmt::format("cp_size = 2\ncp_comm_type = \"{}\"", comm), "recipe = \"delayed\"",
          "heads = 6\nkv_heads = 2\nhead_dim_qk = 2\nhead_dim_v = 1\nalibi = true\ndropout = 0.9");
      scenario.numerics.seed = static_cast<uint64_t>(seed);
      const Fp8Run run = run_fp8(scenario);
      EXPECT_TRUE(run.grade.passed) << comm << ", " << seed << describe_first_failure(run.grade);
    }
  }
}

TEST(Fp8Attention, PartsTheErrorOfTheFormatFromThatOfTheImplementation) {
  const Fp8Run run = run_fp8(fp8_scenario("cp_size = 4", "recipe = \"current\""));
  for (const TensorGrade& tensor : run.grade.tensors) {
    if (tensor.name == "max_logit") continue;
    ASSERT_TRUE(tensor.parted) << tensor.name;
    if (tensor.name == "lse") {
      // It follows from the quantised q and k in fp32, and is judged so.
      EXPECT_TRUE(tensor.parted->is_judged);
      EXPECT_GT(tensor.parted->format, 1e-3);
      EXPECT_LT(tensor.parted->implementation, 1e-6);
      EXPECT_LT(tensor.budget, 1e-4);
      continue;
    }
    // Both errors are independent: their squares add up to that of the whole.
    EXPECT_NEAR(std::hypot(tensor.parted->format, tensor.parted->implementation), tensor.rel_l2,
                0.3 * tensor.rel_l2)
        << tensor.name;
  }
}

TEST(Fp8Attention, HasOneScaleForEveryRankAndSchedule) {
  // The exact answer of the quantised inputs depends on the scale alone; lse shows it to fp32.
  const Fp8Run one = run_fp8(fp8_scenario("cp_size = 1", "recipe = \"current\""));
  for (const char* comm : {"p2p", "a2a", "all_gather", "a2a+p2p"}) {
    const Fp8Run run = run_fp8(fp8_scenario(
        fmt::format("cp_size = 4\ncp_comm_type = \"{}\"\nlayout = \"contiguous\"", comm),
        "recipe = \"current\""));
    const SequenceSlot &there = run.inputs.slots.sequences[1],
                       &here = one.inputs.slots.sequences[1];
    for (int64_t row = 0; row < here.q_valid * 4; ++row) {
      const double a = one.answer.lse.values[static_cast<size_t>(here.q_begin * 4 + row)],
                   b = run.answer.lse.values[static_cast<size_t>(there.q_begin * 4 + row)];
      ASSERT_NEAR(a, b, 1e-5) << comm << ", row " << row;
    }
  }
}

TEST(Fp8Attention, SendsOneByteWhereItQuantisesBeforeItSends) {
  const auto bytes = [](const std::string& comm, const std::string& fp8) {
    const Scenario scenario = fp8_scenario(comm, fp8);
    const PlanSummary summary = summarise(check_plan(make_plan(scenario).value()).value().plan());
    return std::pair(summary.forward_bytes[0], summary.forward_small_bytes[0]);
  };
  const std::string ring = "cp_size = 4";
  const int64_t rows = 296 / 4, row = 2 * (64 + 64);  // slots are 96, 40 and 160
  EXPECT_EQ(bytes(ring, "recipe = \"current\""), std::pair(3 * rows * row, int64_t{3 * 4}));
  EXPECT_EQ(bytes(ring, "recipe = \"delayed\""), std::pair(3 * rows * row, int64_t{3 * 4 * 3}));
  EXPECT_EQ(bytes(ring, "recipe = \"mxfp8\""), std::pair(3 * rows * row * 2, int64_t{0}));
  EXPECT_EQ(bytes(ring, "kv_wire = \"bf16\""), std::pair(3 * rows * row * 2, int64_t{3 * 4}));
  // Two ranks exchange heads in bf16 (queries, keys and values there, out back), then K and V of
  // one KV head go one hop in 8 bits.
  const int64_t exchanged = rows * (2 * 64 + 1 * 128 + 2 * 64) * 2, hop = 2 * rows * 128;
  EXPECT_EQ(bytes("cp_size = 4\ncp_comm_type = \"a2a+p2p\"", "").first, exchanged + hop);
}

TEST(Fp8Attention, QuantisesWithTheScalesThatItIsGiven) {
  // A scale of a step with smaller values clips: lse then differs from the oracle's.
  Fp8Run run = run_fp8(fp8_scenario("cp_size = 2", "recipe = \"delayed\""));
  EXPECT_TRUE(run.grade.passed) << describe_first_failure(run.grade);
  EXPECT_GT(run.inputs.fp8.qkv, 3.0);
  run.inputs.fp8.qkv /= 4;
  const Answer clipped =
      reference::make_plan_walker()->run(run.plan, run.inputs, {}).value().answer;
  EXPECT_FALSE(grade_answer(run.plan.plan(), run.inputs, clipped, run.verdict).passed);
  // Judged with the same scales it passes: oracle and walker clip alike.
  const Verdict own =
      reference::judge(run.plan.plan().scenario, run.inputs, count_hops(run.plan.plan()), {})
          .value();
  const Grade grade = grade_answer(run.plan.plan(), run.inputs, clipped, own);
  EXPECT_TRUE(grade.passed) << describe_first_failure(grade);
}

TEST(Fp8Attention, AllowsTheShortSumsOfTensorCoresWhereAnAnswerHasThem) {
  const Fp8Run run = run_fp8(fp8_scenario("cp_size = 2", "recipe = \"current\""));
  const auto passes = [&](double error, bool has_short_sums) {
    Answer answer = run.answer;
    answer.has_short_sums = has_short_sums;
    for (double& value : answer.lse.values) value -= error / 4;
    for (double& value : answer.max_logit) value -= error;
    return grade_answer(run.plan.plan(), run.inputs, answer, run.verdict).passed;
  };
  EXPECT_TRUE(passes(0, false));
  EXPECT_FALSE(passes(5e-4, false));
  EXPECT_TRUE(passes(5e-4, true));
  EXPECT_FALSE(passes(1e-2, true));
}

TEST(Fp8Attention, BoundsTheGradientsOfLogitsInItsHistory) {
  // dS of every pair from its definition, against the bound.
  Scenario scenario = fp8_scenario("cp_size = 1", "", "heads = 1\nhead_dim = 16");
  const CheckedPlan plan = check_plan(make_plan(scenario).value()).value();
  const RunInputs inputs = make_run_inputs(plan.plan(), false);
  const Fp8History history = history_of(scenario, inputs);
  const Answer exact = reference::exact_answer(scenario, inputs);
  const SequenceSlot& slot = inputs.slots.sequences[2];
  const auto dot = [](const Tensor& a, int64_t row, const Tensor& b, int64_t other) {
    double sum = 0;
    for (int64_t i = 0; i < 16; ++i)
      sum += a.values[static_cast<size_t>(row * 16 + i)] *
             b.values[static_cast<size_t>(other * 16 + i)];
    return sum;
  };
  double largest = 0, largest_dq = 0;
  for (int64_t i = 0; i < slot.q_valid; ++i) {
    const int64_t query = slot.q_begin + i;
    const double delta = dot(inputs.d_out, query, exact.out, query);
    for (int64_t j = 0; j <= i; ++j) {
      const int64_t key = slot.kv_begin + j;
      const double weight = std::exp(0.25 * dot(inputs.q, query, inputs.k, key) -
                                     exact.lse.values[static_cast<size_t>(query)]);
      const double slope = dot(inputs.d_out, query, inputs.v, key) - delta;
      largest = std::max(largest, std::abs(0.25 * weight * slope));
    }
  }
  for (const double value : exact.dq.values) largest_dq = std::max(largest_dq, std::abs(value));
  EXPECT_LE(largest, history.d_logits);
  EXPECT_GT(largest, history.d_logits / 50);
  EXPECT_LE(largest_dq, history.dq);
}

TEST(Fp8Attention, HasALongerHistoryWhereTensorsHaveFewValues) {
  // Three values of one step tell little of the next step's largest.
  int cut_off = 0;
  for (int seed = 1; seed <= 40; ++seed) {
    const Scenario scenario =
        parse_scenario(
            fmt::format(
                "schema = 1\n[attention]\nheads = 1\nhead_dim = 1\n[batch]\n"
                "lengths = [3]\n[parallel]\ncp_size = 1\n[numerics]\ndtype = \"fp8\"\nseed = {}\n"
                "[fp8]\nrecipe = \"delayed\"\n",
                seed),
            "few.toml")
            .value()
            .scenario;
    const RunInputs inputs = make_run_inputs(make_plan(scenario).value(), false);
    cut_off += history_of(scenario, inputs).out > inputs.fp8.out ? 1 : 0;
  }
  EXPECT_LE(cut_off, 4);
}

TEST(Fp8Attention, RaisesNoFalseAlarmInRandomScenarios) {
  int ran = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Scenario scenario = random_scenario(
        seed,
        {.any_dtype = true, .moves_queries = seed % 3 == 0, .has_fp8 = true, .has_rare = true});
    const Result<Plan> plan = make_plan(scenario);
    if (!plan) continue;
    const Fp8Run run = run_fp8(scenario);
    ++ran;
    EXPECT_NE(run.grade.judgement(), Judgement::fail) << describe_first_failure(run.grade) << "\n"
                                                      << print_scenario(scenario);
  }
  EXPECT_GT(ran, 40);
}

}  // namespace
}  // namespace cpscope::tests
