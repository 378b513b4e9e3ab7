#include "sim/plan/check_rows.h"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Id by id: the ids whose weights do not cancel.
std::map<int64_t, uint64_t> sum_by_id(const std::vector<WeightedRun>& runs) {
  std::map<int64_t, uint64_t> sums;
  for (const WeightedRun& weighted : runs) {
    for (int64_t i = 0; i < weighted.run.count(); ++i) sums[weighted.run.at(i)] += weighted.weight;
  }
  std::erase_if(sums, [](const auto& entry) { return entry.second == 0; });
  return sums;
}

/// Runs that cancel, cut at other places on the two sides; `stride` is that of some of them.
std::vector<WeightedRun> balanced_runs(std::mt19937& random, int64_t lowest, int64_t ids,
                                       int64_t pairs, int64_t stride) {
  std::vector<WeightedRun> runs;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t step = random() % 2 == 0 ? 1 : stride;
    const int64_t begin = lowest + static_cast<int64_t>(random() % static_cast<uint64_t>(ids));
    const int64_t count = 1 + static_cast<int64_t>(random() % 9);
    const int64_t cut = static_cast<int64_t>(random()) % count;
    const uint64_t weight = random();
    runs.push_back({{begin, begin + (count - 1) * step + 1, step}, weight});
    if (cut > 0) runs.push_back({{begin, begin + (cut - 1) * step + 1, step}, 0 - weight});
    runs.push_back({{begin + cut * step, begin + (count - 1) * step + 1, step}, 0 - weight});
  }
  return runs;
}

TEST(CheckRows, FindTheIdWhoseWeightsDoNotCancel) {
  std::mt19937 random(7);
  int64_t crowded = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t ids = 1 + random() % 60, pairs = 1 + random() % 60, stride = 1 + random() % 4;
    const int64_t lowest = static_cast<int64_t>(random() % 100);
    std::vector<WeightedRun> runs = balanced_runs(random, lowest, ids, pairs, stride);
    crowded += lowest + ids < pairs ? 1 : 0;
    ASSERT_TRUE(sum_by_id(runs).empty());
    ASSERT_EQ(first_unbalanced(runs), -1) << "trial " << trial;
    runs[random() % runs.size()].weight += 1;
    const int64_t found = first_unbalanced(runs);
    // With a common stride ids are visited class by class, so any of them may come first.
    ASSERT_TRUE(sum_by_id(runs).contains(found)) << "trial " << trial << ", id " << found;
  }
  EXPECT_GT(crowded, 100) << "sums in place are looked at too";
}

}  // namespace
}  // namespace cpscope::tests
