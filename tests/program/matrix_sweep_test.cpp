#include "reference/dense_oracle.h"
#include "reference/mask_predicate.h"
#include "reference/plan_walker.h"
#include "sim/app/matrix/matrix_table.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

std::string describe_all(const std::vector<CellResult>& results) {
  std::string text;
  for (const CellResult& result : results)
    text += describe(result.cell) + ": " + result.reason + ": " + result.fault + "\n";
  return text;
}

TEST(SupportMatrix, PassesEveryCellOfTheFastPartThatNoRuleRefuses) {
  Toolbox toolbox;
  toolbox.executors.push_back(reference::make_plan_walker());
  toolbox.oracle = reference::dense_oracle();
  const std::vector<MatrixCell> cells = fast_matrix();
  const std::vector<CellResult> results =
      run_matrix(*toolbox.executors.front(), toolbox, cells, 0, {});
  const MatrixReport report = summarise_matrix(results);
  EXPECT_EQ(report.total.all(), static_cast<int64_t>(cells.size()));
  EXPECT_TRUE(report.failures.empty()) << describe_all(report.failures);
  // a2a cannot split 3 heads over 4 ranks; five ways know keys that every rank holds; sizes that do
  // not fit are refused whoever communicates. Two kinds of owners of heads refuse two layouts
  // that give rows of queries to ranks, and fewer heads than ranks.
  const auto comms = static_cast<int64_t>(comm_recipes().size());
  EXPECT_EQ(report.total.refused, 1 + (comms - 5) + comms + 2 * (2 + 1)) << describe_all(results);
  for (const auto& [kind, faults] : report.faults) EXPECT_EQ(faults.caught, faults.planted) << kind;
  EXPECT_EQ(report.faults.size(), fault_kinds().size() + 1) << "a kind of fault was never planted";
}

}  // namespace
}  // namespace cpscope
