#include "gui/model/neighbours.h"

#include "tests/gui/model/random_plans.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::ItemTarget;
using gui::PlanIndex;

struct Less {
  bool operator()(const ItemTarget& a, const ItemTarget& b) const {
    return std::tuple(a.is_backward, a.kind, a.index) < std::tuple(b.is_backward, b.kind, b.index);
  }
};
using Items = std::set<ItemTarget, Less>;

/// Executes a plan on buffers whose rows hold the names of the items that wrote them.
class NameWalk {
 public:
  explicit NameWalk(const PlanIndex& index) : plan_(index.plan()) {
    for (const BufferSpec& buffer : plan_.buffers)
      rows_.emplace_back(static_cast<size_t>(std::max<int64_t>(1, buffer.rows)));
    for (const gui::StageRef& stage : index.stages()) {
      for (int64_t i = stage.begin; i < stage.end; ++i)
        carry_out(index.pass(stage.is_backward), {stage.is_backward, stage.kind, i});
    }
  }
  struct Read {
    ItemTarget reader;
    BufferId buffer;
    Items writers;
  };
  std::vector<Read> reads;

 private:
  std::vector<int64_t> ids_of(RunListId rows, BufferId buffer) const {
    if (rows != kAllRows) return expand(plan_.list(rows));
    std::vector<int64_t> ids(rows_[to_index(buffer)].size());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
    return ids;
  }
  void read(const ItemTarget& item, BufferId buffer, RunListId rows = kAllRows) {
    Items writers;
    for (const int64_t row : ids_of(rows, buffer))
      writers.insert(rows_[to_index(buffer)][row].begin(), rows_[to_index(buffer)][row].end());
    reads.push_back({item, buffer, writers});
  }
  void write(const ItemTarget& item, BufferId buffer, RunListId rows = kAllRows,
             bool adds = false) {
    for (const int64_t row : ids_of(rows, buffer)) {
      if (!adds) rows_[to_index(buffer)][row].clear();
      rows_[to_index(buffer)][row].insert(item);
    }
  }
  void carry_out(const Pass& pass, const ItemTarget& item) {
    const auto i = static_cast<size_t>(item.index);
    if (item.kind == StageKind::transfer) {
      const TransferItem& t = pass.transfers[i];
      read(item, t.from, t.from_rows);
      write(item, t.to, t.to_rows, t.landing == Landing::add);
    } else if (item.kind == StageKind::reorder) {
      read(item, pass.reorders[i].from);
      write(item, pass.reorders[i].to);
    } else if (item.kind == StageKind::compute) {
      const ComputeItem& c = pass.computes[i];
      if (c.num_slices == 0) return;
      read(item, c.q);
      read(item, c.kv);
      if (item.is_backward) {
        read(item, c.out);
        read(item, c.d_out);
        write(item, c.dq);
        write(item, c.dkv);
      } else {
        write(item, c.out);
      }
    } else if (item.kind == StageKind::merge) {
      const MergeItem& m = pass.merges[i];
      if (m.partial != kNoBuffer) read(item, m.partial);
      if (m.order > 0) read(item, m.into);
      write(item, m.into);
    } else {
      read(item, pass.finishes[i].buffer);
      write(item, pass.finishes[i].buffer);
    }
  }

  const Plan& plan_;
  std::vector<std::vector<Items>> rows_;  // [buffer][row]
};

Items set_of(const gui::Neighbours& neighbours) {
  return {neighbours.items.begin(), neighbours.items.end()};
}

constexpr size_t kAll = 100'000;

TEST(Neighbours, WritersAreWhoMadeTheRowsThatAreRead) {
  for_plans_of_seeds(120, [](const PlanIndex& index, uint64_t) {
    const NameWalk walk(index);
    for (const NameWalk::Read& read : walk.reads) {
      const gui::Neighbours found = find_writers(index, read.reader, read.buffer, kAll);
      EXPECT_EQ(set_of(found), read.writers)
          << to_name(read.reader.kind) << ' ' << read.reader.index;
      EXPECT_EQ(found.items.size(), read.writers.size());
      const auto buffers = buffers_read(index.plan(), read.reader);
      EXPECT_EQ(std::count(buffers.begin(), buffers.end(), read.buffer), 1);
      if (testing::Test::HasFailure()) return;
    }
  });
}

TEST(Neighbours, ReadersAreTheOtherEndOfWriters) {
  for_plans_of_seeds(120, [](const PlanIndex& index, uint64_t) {
    const NameWalk walk(index);
    std::map<BufferId, std::map<ItemTarget, Items, Less>> readers;
    for (const NameWalk::Read& read : walk.reads) {
      for (const ItemTarget& writer : read.writers)
        readers[read.buffer][writer].insert(read.reader);
    }
    for (const gui::StageRef& stage : index.stages()) {
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        const ItemTarget item{stage.is_backward, stage.kind, i};
        for (const BufferId buffer : buffers_written(index.plan(), item)) {
          const gui::Neighbours found = find_readers(index, item, buffer, kAll);
          EXPECT_EQ(set_of(found), readers[buffer][item]) << to_name(item.kind) << ' ' << i;
          EXPECT_EQ(found.items.size(), readers[buffer][item].size());
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  });
}

TEST(Neighbours, StopAtAsManyAsWereAskedFor) {
  const PlanIndex index(*plan_unless_refused(walker_case({256}, 8)));
  // Backward computes of all steps read the finished output.
  const ItemTarget finish{false, StageKind::finish, 3};
  const BufferId out = index.plan().home[3].out;
  const gui::Neighbours all = find_readers(index, finish, out, kAll);
  EXPECT_FALSE(all.has_more);
  ASSERT_GT(all.items.size(), 4u);
  const gui::Neighbours some = find_readers(index, finish, out, 4);
  EXPECT_TRUE(some.has_more);
  EXPECT_EQ(some.items, std::vector(all.items.begin(), all.items.begin() + 4));
  const gui::Neighbours exact = find_readers(index, finish, out, all.items.size());
  EXPECT_FALSE(exact.has_more);
}

}  // namespace
}  // namespace cpscope::tests
