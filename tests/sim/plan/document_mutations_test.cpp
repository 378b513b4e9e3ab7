#include "tests/sim/plan/document_mutations.h"

#include "tests/sim/plan/faulty_plans.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(PlanDocumentMutations, AreRefusedUnlessTheyAreHarmless) {
  MutationCount all;
  for (const GoodPlan& good : plans_of_every_type()) {
    SCOPED_TRACE(good.name);
    const MutationCount count = refuse_mutations(good.plan, 23);
    all.documents += count.documents;
    all.refused += count.refused;
  }
  EXPECT_GT(all.documents, 300);
  EXPECT_GT(all.refused, all.documents * 8 / 10);
}

// A schedule without a closed form of bytes is refused by the other checks alone.
TEST(PlanDocumentMutations, OfCustomSchedulesAreRefusedToo) {
  MutationCount all;
  for (const GoodPlan& good : plans_of_every_type()) {
    SCOPED_TRACE(good.name);
    Plan plan = good.plan;
    plan.scenario.parallel.comm_type = CommType::custom;
    const MutationCount count = refuse_mutations(plan, 31);
    all.documents += count.documents;
    all.refused += count.refused;
  }
  EXPECT_GT(all.refused, all.documents * 8 / 10);
}

}  // namespace
}  // namespace cpscope::tests
