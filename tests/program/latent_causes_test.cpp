// Wrong answers of latent attention, whose rows hold keys and values in one.
#include "reference/dense_oracle.h"
#include "reference/latent_rows.h"
#include "reference/rotate_row.h"
#include "sim/run/dtype.h"
#include "sim/run/grade/case.h"
#include "sim/run/grade/foreign_grade.h"
#include "sim/run/record/foreign_record.h"
#include "tests/program/judged_causes.h"
#include "tests/program/walker_toolbox.h"

#include <limits>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr int64_t kLatent = 8, kHeadDim = 12;

std::string latent_text(const std::string& dtype, const std::string& comm = "p2p") {
  return fmt::format(
      "schema = 1\n[attention]\nheads = 4\nkv_heads = 1\nhead_dim_qk = {}\nlatent_dim = {}\n"
      "rope_theta = 100.0\nattn_mask_type = \"causal\"\n[batch]\nlengths = [61, 30, 97]\n"
      "[parallel]\ncp_size = 4\ncp_comm_type = \"{}\"\n[numerics]\ndtype = \"{}\"\n",
      kHeadDim, kLatent, comm, dtype);
}

/// The exact answer in the dtype.
Answer rounded(const Plan& plan, Answer answer) {
  for (Tensor* tensor : {&answer.out, &answer.dq, &answer.dk})
    round_values(plan.scenario.numerics.dtype, std::span<double>(tensor->values));
  return answer;
}

/// The same attention with v as a tensor of its own; `rotates_all`: of rows that are rotated whole.
/// Gradients are those of rotated rows.
Answer expanded_answer(const Plan& plan, const RunInputs& inputs, bool rotates_all) {
  Scenario scenario = plan.scenario;
  scenario.attention.latent_dim = 0;
  scenario.attention.rope_theta = 0;
  RunInputs own = inputs;
  // The oracle rotates all elements of such keys, so the rows are rotated here.
  const auto turn = [&](Tensor& tensor) {
    const int64_t first = rotates_all ? 0 : kLatent;
    for (const SequenceSlot& slot : inputs.slots.sequences) {
      for (int64_t i = 0; i < slot.q_valid * tensor.shape[1]; ++i)
        reference::rotate_row(
            100.0, i / tensor.shape[1], static_cast<int32_t>(kHeadDim - first), 1.0,
            tensor.values.data() + (slot.q_valid_begin() * tensor.shape[1] + i) * kHeadDim + first);
    }
  };
  turn(own.q);
  turn(own.k);
  own.v = {"v", {own.k.shape[0], 1, kLatent}, own.k.dtype, {}};
  for (int64_t row = 0; row < own.k.shape[0]; ++row)
    own.v.values.insert(own.v.values.end(), own.k.values.begin() + row * kHeadDim,
                        own.k.values.begin() + row * kHeadDim + kLatent);
  return reference::exact_answer(scenario, own);
}

Answer add_dv(const Plan& plan, const RunInputs& inputs, double times, int64_t at) {
  Answer answer = reference::exact_answer(plan.scenario, inputs);
  const Tensor dv = expanded_answer(plan, inputs, false).dv;
  for (size_t i = 0; i < dv.values.size(); ++i) {
    double* row = answer.dk.values.data() + i / kLatent * kHeadDim;
    row[i % kLatent] -= dv.values[i];
    row[at + static_cast<int64_t>(i % kLatent)] += times * dv.values[i];
  }
  return rounded(plan, std::move(answer));
}

const PlantedMistake kMistakes[] = {
    {.name = "Lost",
     .cause = "dv_not_added",
     .plant = [](const Plan& plan,
                 const RunInputs& inputs) { return add_dv(plan, inputs, 0.0, 0); }},
    {.name = "Twice",
     .cause = "dv_added_twice",
     .plant = [](const Plan& plan,
                 const RunInputs& inputs) { return add_dv(plan, inputs, 2.0, 0); }},
    {.name = "Misplaced",
     .cause = "dv_misplaced",
     .plant =
         [](const Plan& plan, const RunInputs& inputs) {
           // The oracle adds rotated rows, of which these elements are a part.
           Answer answer = reference::exact_answer(plan.scenario, inputs);
           const Tensor dv = expanded_answer(plan, inputs, false).dv;
           Tensor moved = answer.dk;
           std::fill(moved.values.begin(), moved.values.end(), 0.0);
           for (size_t i = 0; i < dv.values.size(); ++i)
             moved.values[i / kLatent * kHeadDim + (kHeadDim - kLatent) + i % kLatent] =
                 dv.values[i];
           for (const SequenceSlot& slot : inputs.slots.sequences)
             for (int64_t i = 0; i < slot.kv_valid; ++i)
               reference::rotate_row(
                   100.0, i, static_cast<int32_t>(kHeadDim - kLatent), -1.0,
                   moved.values.data() + (slot.kv_valid_begin() + i) * kHeadDim + kLatent);
           for (size_t i = 0; i < dv.values.size(); ++i)
             answer.dk.values[i / kLatent * kHeadDim + i % kLatent] -= dv.values[i];
           for (size_t i = 0; i < moved.values.size(); ++i) answer.dk.values[i] += moved.values[i];
           return rounded(plan, std::move(answer));
         }},
    {.name = "Rotated",
     .cause = "v_rotated",
     .plant =
         [](const Plan& plan, const RunInputs& inputs) {
           Answer answer;
           answer.out = expanded_answer(plan, inputs, true).out;
           return rounded(plan, std::move(answer));
         }},
};

TEST(LatentCauses, AreNamed) {
  for (const PlantedMistake& mistake : kMistakes) {
    for (const char* dtype : {"bf16", "fp32"}) {
      const JudgedCauses judged = judge_planted(mistake, latent_text(dtype));
      EXPECT_FALSE(judged.grade.passed) << mistake.name << ' ' << dtype;
      EXPECT_EQ(judged.first_cause(), mistake.cause) << dtype << '\n' << judged.describe();
    }
  }
}

/// Rows that are expanded: the answer of a rank that takes the weights of other heads, and one
/// without the gradient of v.
std::string expanded_text(const std::string& dtype, const std::string& comm = "a2a") {
  return fmt::format(
      "schema = 1\n[attention]\nheads = 4\nkv_heads = 1\nhead_dim_qk = 12\nhead_dim_v = 6\n"
      "latent_dim = 16\nlatent_nope_dim = 8\nrope_theta = 100.0\n[batch]\nlengths = [61, 30, 97]\n"
      "[parallel]\ncp_size = 4\ncp_comm_type = \"{}\"\n[numerics]\ndtype = \"{}\"\n",
      comm, dtype);
}

const PlantedMistake kExpandedMistakes[] = {
    {.name = "NoGradientOfV",
     .cause = "dv_not_added",
     .plant =
         [](const Plan& plan, const RunInputs& inputs) {
           // v is linear in its weights: without them the rest of the gradient is that of k, if out
           // and the weights of the softmax stay.
           Answer answer = reference::exact_answer(plan.scenario, inputs);
           Scenario heads = plan.scenario;
           heads.attention = heads.attention.with_expanded_rows(heads.attention.heads);
           const Answer of_heads =
               reference::exact_answer(heads, reference::expand_rows(inputs));
           const std::vector<double> nothing(static_cast<size_t>(of_heads.dk.shape[2]), 0.0);
           for (int64_t row = 0; row < of_heads.dv.shape[0] * of_heads.dv.shape[1]; ++row) {
             std::vector<double> dv(of_heads.dv.values.begin() + row * of_heads.dv.shape[2],
                                    of_heads.dv.values.begin() + (row + 1) * of_heads.dv.shape[2]);
             for (double& value : dv) value = -value;
             reference::add_head_gradients(
                 inputs, static_cast<int32_t>(row % of_heads.dv.shape[1]), nothing.data(),
                 dv.data(),
                 answer.dk.values.data() + row / of_heads.dv.shape[1] * answer.dk.shape[2]);
           }
           return rounded(plan, std::move(answer));
         }},
    {.name = "WeightsOfLocalHeads",
     .cause = "weights_by_local_head",
     .plant =
         [](const Plan& plan, const RunInputs& inputs) {
           RunInputs first = inputs;  // each of the four ranks has one head
           for (Tensor* weights : {&first.w_k, &first.w_v}) {
             const int64_t of_head = weights->shape[1] * weights->shape[2];
             for (int64_t i = of_head; i < weights->size(); ++i)
               weights->values[i] = weights->values[i % of_head];
           }
           return rounded(plan, reference::exact_answer(plan.scenario, first));
         }},
};

TEST(ExpandedCauses, AreNamed) {
  for (const PlantedMistake& mistake : kExpandedMistakes) {
    for (const char* dtype : {"bf16", "fp32"}) {
      const JudgedCauses judged = judge_planted(mistake, expanded_text(dtype));
      EXPECT_FALSE(judged.grade.passed) << mistake.name << ' ' << dtype;
      EXPECT_EQ(judged.first_cause(), mistake.cause) << dtype << '\n' << judged.describe();
    }
  }
}

TEST(LatentRun, IsRecordedAndGradedWithoutVAndItsGradient) {
  Toolbox toolbox = make_walker_toolbox();
  for (const char* comm : {"p2p", "a2a", "group_cast", "mesh", "expanded"}) {
    const std::string text = std::string_view(comm) == "expanded" ? expanded_text("bf16", "p2p")
                                                                  : latent_text("bf16", comm);
    const Result<LoadedScenario> loaded = parse_scenario(text, "latent.toml");
    ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
    CaseOutcome outcome = run_case(toolbox, loaded.value(), {});
    ASSERT_EQ(outcome.status, CaseStatus::pass) << comm << ": " << outcome.reason;
    const Plan& plan = outcome.plan->plan();
    std::vector<NamedRecord> records{{"latent.safetensors", make_record(outcome, text)}};
    EXPECT_EQ(records.front().record.find("v"), nullptr);
    EXPECT_EQ(records.front().record.find("dv"), nullptr);
    Result<ForeignRecord> record = read_foreign(std::move(records), plan, {});
    ASSERT_TRUE(record.ok()) << to_text(record.error());
    Result<ForeignGrade> graded = grade_foreign(toolbox, plan, record.value(), {});
    ASSERT_TRUE(graded.ok()) << to_text(graded.error());
    EXPECT_TRUE(graded.value().grade.passed) << describe_first_failure(graded.value().grade);
    EXPECT_TRUE(graded.value().missing.empty());
    EXPECT_EQ(graded.value().grade.find("dv"), nullptr);
    for (const InputNote& note : graded.value().inputs) EXPECT_EQ(note.different, 0) << note.name;
  }
}

// The numbers of others: weights are taken where they are of the dtype, and named where not.
TEST(LatentRun, TakesTheWeightsOfARecordUnlessTheyAreNotOfTheDtype) {
  Toolbox toolbox = make_walker_toolbox();
  const std::string text = expanded_text("bf16", "p2p");
  const Result<LoadedScenario> loaded = parse_scenario(text, "latent.toml");
  ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
  const CaseOutcome outcome = run_case(toolbox, loaded.value(), {});
  ASSERT_EQ(outcome.status, CaseStatus::pass) << outcome.reason;
  const Plan& plan = outcome.plan->plan();
  const auto grade_with = [&](double weight) {
    CaseOutcome changed = outcome;
    changed.inputs.w_k.values[3] = weight;
    std::vector<NamedRecord> records{{"latent.safetensors", make_record(changed, text)}};
    Result<ForeignRecord> record = read_foreign(std::move(records), plan, {});
    EXPECT_TRUE(record.ok()) << to_text(record.error());
    return grade_foreign(toolbox, plan, record.value(), {});
  };
  const Result<ForeignGrade> other = grade_with(8.0);
  ASSERT_TRUE(other.ok()) << to_text(other.error());
  EXPECT_TRUE(other.value().uses_own_inputs);
  EXPECT_FALSE(other.value().grade.passed) << "the answers are those of other weights";
  const Result<ForeignGrade> bad = grade_with(std::numeric_limits<double>::quiet_NaN());
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(to_text(bad.error()).find("w_k"), std::string::npos) << to_text(bad.error());
}

}  // namespace
}  // namespace cpscope::tests
