#include "sim/plan/token_run.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

using Ids = std::vector<int64_t>;

/// Id lists of every kind that layouts make: ascending, striped, backwards, with repeats of a step.
std::vector<Ids> id_lists() {
  std::vector<Ids> lists{{},        {7},          {1, 2, 3, 9, 10}, {0, 4, 8, 12},
                         {5, 4, 3}, {0, 2, 5, 7}, {3, 6, 9, 10},    {8, 0, 1, 2, 3, 20, 30, 40}};
  uint64_t state = 1;
  for (int list = 0; list < 200; ++list) {
    Ids ids(12);
    std::iota(ids.begin(), ids.end(), int64_t{0});
    for (size_t i = ids.size(); i > 1; --i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      if ((state >> 40) % 3 == 0) std::swap(ids[i - 1], ids[(state >> 33) % i]);
    }
    lists.push_back(ids);
  }
  return lists;
}

TEST(TokenRun, CountsTheIdsThatItYields) {
  EXPECT_EQ((TokenRun{3, 3, 1}.count()), 0);
  EXPECT_EQ((TokenRun{5, 3, 1}.count()), 0);
  EXPECT_EQ((TokenRun{3, 10, 3}.count()), 3);
  EXPECT_EQ((TokenRun{3, 10, 3}.last()), 9);
  EXPECT_EQ((TokenRun{3, 9, 3}.count()), 2);
}

TEST(TokenRun, ListsYieldTheIdsThatTheyWereMadeOf) {
  for (const Ids& ids : id_lists()) {
    const std::vector<TokenRun> runs = runs_of(ids);
    EXPECT_EQ(expand(runs), ids);
    EXPECT_EQ(count_ids(runs), static_cast<int64_t>(ids.size()));
  }
}

TEST(TokenRun, ListsAreOneRunWhereOneStepLeadsFromIdToId) {
  for (const int64_t stride : {1, 2, 7}) {
    for (const int64_t begin : {0, 3, 100}) {
      Ids ids;
      for (int64_t i = 0; i < 9; ++i) ids.push_back(begin + i * stride);
      const std::vector<TokenRun> runs = runs_of(ids);
      ASSERT_EQ(runs.size(), 1U) << "from " << begin << " by " << stride;
      EXPECT_EQ(runs.front().stride, stride);
    }
  }
  EXPECT_EQ(runs_of(Ids{4, 5, 6, 20, 30, 40, 50, 8, 9}).size(), 3U);
}

TEST(TokenRun, AppendsWithoutChangingWhatIsYielded) {
  for (const Ids& ids : id_lists()) {
    std::vector<TokenRun> one_by_one, joined;
    for (const int64_t id : ids) append_run(one_by_one, {id, id + 1, 1});
    for (const TokenRun& run : runs_of(ids)) append_run(joined, run);
    EXPECT_EQ(expand(one_by_one), ids);
    EXPECT_EQ(expand(joined), ids);
  }
}

TEST(TokenRun, JoinsTouchingRunsAndDropsEmptyOnes) {
  std::vector<TokenRun> runs;
  append_run(runs, {0, 4, 1});
  append_run(runs, {9, 9, 1});
  append_run(runs, {4, 6, 1});
  EXPECT_EQ(runs, (std::vector<TokenRun>{{0, 6, 1}}));
}

// Every end behind the last id and not behind the one after it is an end of the same run.
TEST(TokenRun, JoinsRunsOfOneStepWhereverTheyEnd) {
  for (const int64_t end : {9, 10, 11}) {
    std::vector<TokenRun> runs{{2, end, 3}};  // 2, 5, 8
    for (const int64_t begin : {9, 10, 11, 12, 13, 14}) {
      std::vector<TokenRun> joined = runs;
      append_run(joined, {begin, begin + 4, 3});
      EXPECT_EQ(joined.size(), begin == 11 ? 1U : 2U) << begin << " after an end of " << end;
      EXPECT_EQ(expand(joined), (Ids{2, 5, 8, begin, begin + 3}));
    }
    std::vector<TokenRun> two = runs;
    append_run(two, {11, 13, 2});
    append_run(two, {11, 14, 3});
    EXPECT_EQ(two, (std::vector<TokenRun>{{2, end, 3}, {11, 12, 1}, {11, 12, 1}}));
  }
}

TEST(TokenRun, SlicesRowsOfAList) {
  for (const Ids& ids : id_lists()) {
    const std::vector<TokenRun> runs = runs_of(ids);
    for (size_t begin = 0; begin <= ids.size(); ++begin) {
      for (size_t end = begin; end <= ids.size(); ++end) {
        const Ids expected(ids.begin() + static_cast<int64_t>(begin),
                           ids.begin() + static_cast<int64_t>(end));
        EXPECT_EQ(expand(slice_rows(runs, static_cast<int64_t>(begin), static_cast<int64_t>(end))),
                  expected);
      }
    }
  }
}

TEST(TokenRun, ComparesListsByIdsAndNotByRuns) {
  const std::vector<Ids> lists = id_lists();
  for (size_t i = 0; i < lists.size(); ++i) {
    std::vector<TokenRun> single;
    for (const int64_t id : lists[i]) single.push_back({id, id + 1, 1});
    EXPECT_TRUE(same_ids(runs_of(lists[i]), single));
    const Ids& other = lists[(i + 1) % lists.size()];
    EXPECT_EQ(same_ids(runs_of(lists[i]), runs_of(other)), lists[i] == other);
  }
}

}  // namespace
}  // namespace cpscope
