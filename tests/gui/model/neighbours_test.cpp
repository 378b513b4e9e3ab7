#include "gui/model/neighbours.h"

#include "sim/base/id_vector.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"
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

using gui::PlanIndex;

struct Less {
  bool operator()(const ItemId& a, const ItemId& b) const {
    return std::tuple(a.direction, a.kind, a.index) < std::tuple(b.direction, b.kind, b.index);
  }
};
using Items = std::set<ItemId, Less>;

/// Executes a plan on buffers whose rows hold the names of the items that wrote them.
class NameWalk {
 public:
  explicit NameWalk(const PlanIndex& index) : plan_(index.plan()) {
    for (const BufferSpec& buffer : plan_.buffers)
      rows_.push_back(std::vector<Items>(static_cast<size_t>(std::max<int64_t>(1, buffer.rows))));
    for (const Direction direction : kDirections) {
      for_each_item(plan_, direction,
                    [&](const ItemId& id, const auto& item) { carry_out(id, item); });
    }
  }
  struct Read {
    ItemId reader;
    BufferId buffer;
    Items writers;
  };
  std::vector<Read> reads;

 private:
  std::vector<int64_t> ids_of(RunListId rows, BufferId buffer) const {
    if (rows != kAllRows) return expand(plan_.list(rows));
    std::vector<int64_t> ids(rows_[buffer].size());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
    return ids;
  }
  void read(const ItemId& item, BufferId buffer, RunListId rows = kAllRows) {
    Items writers;
    for (const int64_t row : ids_of(rows, buffer))
      writers.insert(rows_[buffer][row].begin(), rows_[buffer][row].end());
    reads.push_back({item, buffer, writers});
  }
  void write(const ItemId& item, BufferId buffer, RunListId rows = kAllRows, bool adds = false) {
    for (const int64_t row : ids_of(rows, buffer)) {
      if (!adds) rows_[buffer][row].clear();
      rows_[buffer][row].insert(item);
    }
  }
  void carry_out(const ItemId& id, const TransferItem& item) {
    read(id, item.from, item.from_rows);
    write(id, item.to, item.to_rows, item.landing == Landing::add);
  }
  void carry_out(const ItemId& id, const ReorderItem& item) {
    read(id, item.from);
    write(id, item.to);
  }
  void carry_out(const ItemId& id, const ComputeItem& item) {
    if (item.num_slices == 0) return;
    read(id, item.q);
    read(id, item.kv);
    if (id.direction == Direction::backward) {
      read(id, item.out);
      read(id, item.d_out);
      write(id, item.dq);
      write(id, item.dkv);
    } else {
      write(id, item.out);
    }
  }
  void carry_out(const ItemId& id, const MergeItem& item) {
    if (item.partial != kNoBuffer) read(id, item.partial);
    if (item.order > 0) read(id, item.into);
    write(id, item.into);
  }
  void carry_out(const ItemId& id, const FinishItem& item) {
    read(id, item.buffer);
    write(id, item.buffer);
  }

  const Plan& plan_;
  IdVector<BufferId, std::vector<Items>> rows_;  // [buffer][row]
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
      int times = 0;
      visit_item(index.plan(), read.reader, [&](const auto& item) {
        visit_reads(item, [&](BufferId buffer) { times += buffer == read.buffer ? 1 : 0; });
      });
      EXPECT_EQ(times, 1);
      if (testing::Test::HasFailure()) return;
    }
  });
}

TEST(Neighbours, ReadersAreTheOtherEndOfWriters) {
  for_plans_of_seeds(120, [](const PlanIndex& index, uint64_t) {
    const NameWalk walk(index);
    std::map<BufferId, std::map<ItemId, Items, Less>> readers;
    for (const NameWalk::Read& read : walk.reads) {
      for (const ItemId& writer : read.writers) readers[read.buffer][writer].insert(read.reader);
    }
    for (const Direction direction : kDirections) {
      for_each_item(index.plan(), direction, [&](const ItemId& id, const auto& item) {
        visit_writes(item, [&](BufferId buffer) {
          if (testing::Test::HasFailure()) return;
          const gui::Neighbours found = find_readers(index, id, buffer, kAll);
          EXPECT_EQ(set_of(found), readers[buffer][id]) << to_name(id.kind) << ' ' << id.index;
          EXPECT_EQ(found.items.size(), readers[buffer][id].size());
        });
      });
    }
  });
}

TEST(Neighbours, StopAtAsManyAsWereAskedFor) {
  const PlanIndex index(*plan_unless_refused(walker_case({256}, 8)));
  // Backward computes of all steps read the finished output.
  const ItemId finish{Direction::forward, StageKind::finish, 3};
  const BufferId out = index.plan().home[RankId{3}].out;
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
