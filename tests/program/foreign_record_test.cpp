#include "sim/run/grade/case.h"
#include "sim/run/grade/foreign_grade.h"
#include "sim/run/record/run_record.h"
#include "tests/program/walker_toolbox.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// The grade of a record (tests/records/README.md) under a scenario.
ForeignGrade grade_under(const std::string& name, const std::string& scenario) {
  const Result<LoadedScenario> loaded = parse_scenario(scenario, "te.toml");
  const CheckedPlan plan = plan_scenario(loaded.value()).value();
  Result<RunRecord> record = read_record(std::string(CPSCOPE_RECORDS) + "/" + name + ".safetensors",
                                         {.takes_other_types = true});
  EXPECT_TRUE(record.ok()) << to_text(record.error());
  Result<ForeignRecord> foreign =
      read_foreign({{name, std::move(record).value()}}, plan.plan(), {});
  EXPECT_TRUE(foreign.ok()) << to_text(foreign.error());
  return grade_foreign(make_walker_toolbox(), plan.plan(), foreign.value(), {}).value();
}

ForeignGrade grade_of_record(const std::string& name) {
  return grade_under(name,
                     "schema = 1\n[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 64\n"
                     "attn_mask_type = \"padding_causal\"\n[batch]\nlengths = [251, 37, 509, 3]\n"
                     "slots = [252, 40, 512, 4]\n[parallel]\ncp_size = 2\n");
}

/// One head of 1024 tokens in bshd, causal, on two ranks. A ring also for the all-to-all, which has
/// no head for the second rank: that changes no exact answer.
ForeignGrade grade_of_fp8(const std::string& name, const std::string& numerics) {
  return grade_under(name,
                     "schema = 1\n[attention]\nheads = 1\nhead_dim = 128\n[batch]\n"
                     "qkv_format = \"bshd\"\nbatch_size = 1\nseqlen = 1024\n[parallel]\n"
                     "cp_size = 2\n[numerics]\n" +
                         numerics);
}

constexpr const char* kDelayed = "dtype = \"fp8\"\n[fp8]\nrecipe = \"delayed\"\n";

TEST(ForeignRecord, PassesTransformerEnginesRingCalledAsDocumented) {
  const ForeignGrade graded = grade_of_record("te_right");
  EXPECT_TRUE(graded.grade.passed) << describe_first_failure(graded.grade);
  EXPECT_EQ(graded.grade.tensors.size(), 2u);
  EXPECT_TRUE(graded.grade.causes.empty());
}

TEST(ForeignRecord, NamesTheDocumentsThatTransformerEngineWasNotToldOf) {
  const ForeignGrade graded = grade_of_record("te_wrong_documents");
  EXPECT_EQ(graded.grade.judgement(), Judgement::fail);
  ASSERT_EQ(graded.grade.causes.size(), 1u);
  const Cause& cause = graded.grade.causes.front();
  EXPECT_EQ(cause.name, "documents_ignored") << describe(cause);
  EXPECT_EQ(cause.explained, 1.0);
  EXPECT_GT(cause.rows, 2900);
}

TEST(ForeignRecord, PassesTransformerEnginesFp8AllToAll) {
  const ForeignGrade graded = grade_of_fp8("te_fp8_delayed_a2a", kDelayed);
  EXPECT_TRUE(graded.grade.passed) << describe_first_failure(graded.grade);
  EXPECT_EQ(graded.grade.tensors.size(), 4u);
  for (const TensorGrade& tensor : graded.grade.tensors) {
    ASSERT_TRUE(tensor.parted) << tensor.name;
    // The budget is not so wide that a wrong tensor passes.
    EXPECT_LT(tensor.budget, 0.3) << tensor.name;
  }
  // As bf16 nothing passes.
  const ForeignGrade as_bf16 = grade_of_fp8("te_fp8_delayed_a2a", "");
  for (const TensorGrade& tensor : as_bf16.grade.tensors)
    EXPECT_FALSE(tensor.passed) << tensor.name;
}

TEST(ForeignRecord, NamesTheGradientsThatTransformerEnginesFp8RingKeeps) {
  const ForeignGrade graded = grade_of_fp8("te_fp8_delayed_p2p", kDelayed);
  EXPECT_EQ(graded.grade.judgement(), Judgement::fail);
  for (const TensorGrade& tensor : graded.grade.tensors) {
    const bool is_of_keys = tensor.name == "dk" || tensor.name == "dv";
    EXPECT_EQ(tensor.passed, !is_of_keys) << tensor.name << ": " << describe_failure(tensor);
  }
  ASSERT_EQ(graded.grade.causes.size(), 1u) << describe_first_failure(graded.grade);
  const Cause& cause = graded.grade.causes.front();
  EXPECT_EQ(cause.name, "partial_missing") << describe(cause);
  EXPECT_EQ(cause.tensors, (std::vector<std::string>{"dk", "dv"}));
}

}  // namespace
}  // namespace cpscope::tests
