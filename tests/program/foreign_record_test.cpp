#include "sim/run/grade/case.h"
#include "sim/run/grade/foreign_grade.h"
#include "sim/run/record/run_record.h"
#include "tests/program/walker_toolbox.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// The grade of a record of TransformerEngine (tests/records/README.md).
ForeignGrade grade_of_record(const std::string& name) {
  const Result<LoadedScenario> loaded = parse_scenario(
      "schema = 1\n[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 64\n"
      "attn_mask_type = \"padding_causal\"\n[batch]\nlengths = [251, 37, 509, 3]\n"
      "slots = [252, 40, 512, 4]\n[parallel]\ncp_size = 2\n",
      "te.toml");
  const CheckedPlan plan = plan_scenario(loaded.value()).value();
  Result<RunRecord> record = read_record(std::string(CPSCOPE_RECORDS) + "/" + name + ".safetensors",
                                         {.takes_other_types = true});
  EXPECT_TRUE(record.ok()) << to_text(record.error());
  Result<ForeignRecord> foreign =
      read_foreign({{name, std::move(record).value()}}, plan.plan(), {});
  EXPECT_TRUE(foreign.ok()) << to_text(foreign.error());
  return grade_foreign(make_walker_toolbox(), plan.plan(), foreign.value(), {}).value();
}

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

}  // namespace
}  // namespace cpscope::tests
