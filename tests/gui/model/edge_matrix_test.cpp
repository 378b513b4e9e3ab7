#include "gui/model/traffic/edge_matrix.h"

#include "tests/gui/model/plan_truth.h"
#include "tests/gui/model/random_plans.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::EdgeMatrix;
using gui::LinkBytes;
using gui::PlanIndex;

std::vector<LinkBytes> to_links(const std::map<std::pair<int32_t, int32_t>, int64_t>& sums) {
  std::vector<LinkBytes> links;
  for (const auto& [link, bytes] : sums) links.push_back({link.first, link.second, bytes});
  return links;
}

TEST(EdgeMatrix, AgreesWithTransfersAddedUpForAnyStages) {
  for_plans_of_seeds(120, [](const PlanIndex& index, uint64_t) {
    const EdgeMatrix matrix(index);
    const auto stages = static_cast<int32_t>(index.stages().size());
    const int32_t stride = std::max(1, stages / 12);
    for (int32_t first = 0; first <= stages; first += stride) {
      for (int32_t end = first; end <= stages; ++end) {
        const auto sums = add_up_links(index, first, end);
        ASSERT_EQ(matrix.of_stages(first, end), to_links(sums)) << first << ".." << end;
        int64_t total = 0;
        for (const auto& [link, bytes] : sums) total += bytes;
        ASSERT_EQ(matrix.total(first, end), total);
      }
    }
    ASSERT_EQ(matrix.until(stages), to_links(add_up_links(index, 0, stages)));
    ASSERT_EQ(matrix.num_links(), add_up_links(index, 0, stages).size());
  });
}

TEST(EdgeMatrix, SendsOverAllStepsWhatTheSummarySays) {
  for_plans_of_seeds(120, [](const PlanIndex& index, uint64_t) {
    const EdgeMatrix matrix(index);
    std::vector<int64_t> sent(static_cast<size_t>(index.num_ranks()), 0);
    for (size_t step = 0; step < index.steps().size(); ++step) {
      const gui::Moment moment = index.moment_of_step(static_cast<int32_t>(step));
      for (const LinkBytes& link : matrix.of_stages(moment.first_stage, moment.end_stage))
        sent[link.src] += link.bytes;
    }
    for (size_t rank = 0; rank < sent.size(); ++rank) {
      ASSERT_EQ(sent[rank],
                index.summary().forward_bytes[rank] + index.summary().backward_bytes[rank])
          << "rank " << rank;
    }
    const auto forward = static_cast<int32_t>(index.plan().forward.stages.size());
    ASSERT_EQ(matrix.payloads(0, forward)[static_cast<size_t>(Payload::kv)],
              index.summary().kv_bytes_moved);
  });
}

TEST(EdgeMatrix, KnowsTheLeastAndMostBytesOfAStep) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    const EdgeMatrix matrix(index);
    int64_t least = 0, most = 0, most_of_all = 0;
    for (size_t step = 0; step < index.steps().size(); ++step) {
      const gui::Moment moment = index.moment_of_step(static_cast<int32_t>(step));
      for (const auto& [link, bytes] : add_up_links(index, moment.first_stage, moment.end_stage)) {
        least = least == 0 ? bytes : std::min(least, bytes);
        most = std::max(most, bytes);
      }
    }
    for (const auto& [link, bytes] :
         add_up_links(index, 0, static_cast<int32_t>(index.stages().size())))
      most_of_all = std::max(most_of_all, bytes);
    EXPECT_EQ(matrix.least_of_step(), least);
    EXPECT_EQ(matrix.most_of_step(), most);
    EXPECT_EQ(matrix.most_of_all(), most_of_all);
  });
}

}  // namespace
}  // namespace cpscope::tests
