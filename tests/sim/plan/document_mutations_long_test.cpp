#include "tests/sim/plan/document_mutations.h"
#include "tests/sim/plan/faulty_plans.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(AllPlanDocumentMutations, AreRefusedUnlessTheyAreHarmless) {
  for (const bool is_custom : {false, true}) {
    MutationCount all;
    for (const GoodPlan& good : plans_of_every_type()) {
      SCOPED_TRACE(good.name);
      Plan plan = good.plan;
      if (is_custom) plan.scenario.parallel.comm_type = CommType::custom;
      const MutationCount count = refuse_mutations(plan, 1);
      all.documents += count.documents;
      all.refused += count.refused;
      all.harmless += count.harmless;
    }
    EXPECT_GT(all.refused, all.documents * 8 / 10);
    RecordProperty(is_custom ? "custom_documents" : "documents", std::to_string(all.documents));
    RecordProperty(is_custom ? "custom_harmless" : "harmless", std::to_string(all.harmless));
  }
}

}  // namespace
}  // namespace cpscope::tests
