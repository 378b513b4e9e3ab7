#include "gui/model/project.h"

#include "sim/base/id_vector.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/visit_items.h"
#include "sim/scenario/random_scenario.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::PlanIndex;
using gui::Projection;

using Ids = std::set<int64_t>;

/// What one item touches, found by executing the plan with token ids in place of numbers.
struct Touched {
  ItemId item;
  int32_t step = 0;            // index in PlanIndex::steps
  std::vector<int32_t> ranks;  // the rank that works, or the sender and the receiver
  Ids rows[2];                 // [q, kv] rows of its buffers
  Ids read[2];                 // computes: rows with a visible pair; otherwise all rows
  std::set<std::pair<int64_t, int64_t>> pairs;  // computes: visible (query, key) pairs
  HeadRange heads;
  BufferKind kind{};  // kind of the buffer written
};

bool is_key_side(BufferKind kind) { return kind == BufferKind::kv || kind == BufferKind::dkv; }

/// Executes a pass on buffers of token ids.
class TokenWalk {
 public:
  explicit TokenWalk(const PlanIndex& index) : plan_(index.plan()) {
    for (const BufferSpec& buffer : plan_.buffers)
      contents_.push_back(buffer.tokens == kNoTokens ? std::vector<int64_t>(buffer.rows, -1)
                                                     : expand(plan_.list(buffer.tokens)));
    for (size_t s = 0; s < index.steps().size(); ++s) {
      for (int32_t g = index.steps()[s].first_stage; g < index.steps()[s].end_stage; ++g)
        walk(index.stages()[g], static_cast<int32_t>(s));
    }
  }
  std::vector<Touched> all;

 private:
  std::vector<int64_t> rows_of(RunListId rows, BufferId buffer) const {
    if (rows != kAllRows) return expand(plan_.list(rows));
    std::vector<int64_t> all_rows(contents_[buffer].size());
    for (size_t i = 0; i < all_rows.size(); ++i) all_rows[i] = static_cast<int64_t>(i);
    return all_rows;
  }
  void take(Touched& t, BufferKind kind, const std::vector<int64_t>& ids) {
    const int side = is_key_side(kind) ? 1 : 0;
    for (const int64_t id : ids) {
      if (id < 0) continue;
      t.rows[side].insert(id);
      t.read[side].insert(id);
    }
  }
  void touch(Touched& t, const ComputeItem& item) {
    const std::vector<int64_t> q = contents_[item.q];
    std::vector<int64_t> k = contents_[item.kv];
    k.resize(static_cast<size_t>(plan_.rows(item.kv_tokens)));
    t.ranks = {to_index(item.rank)};
    t.rows[0].insert(q.begin(), q.end());
    t.rows[1].insert(k.begin(), k.end());
    t.heads = item.heads;
    for (const BandSlice& slice : plan_.slices_of(item)) {
      for (int64_t i = slice.q0; i < slice.q1; ++i) {
        for (int64_t j = slice.k0; j < slice.k1; ++j) {
          const int64_t d = (j - slice.k0) - (i - slice.q0);
          if (d < slice.lo || d > slice.hi) continue;
          t.read[0].insert(q[i]);
          t.read[1].insert(k[j]);
          t.pairs.emplace(q[i], k[j]);
        }
      }
    }
    kv_now_[item.rank] = k;
  }
  void touch(Touched& t, const TransferItem& item) {
    const BufferKind kind = plan_.buffer(item.from).kind;
    t.ranks = {to_index(item.src), to_index(item.dst)};
    t.heads = item.heads;
    t.kind = kind;
    std::vector<int64_t> from = rows_of(item.from_rows, item.from);
    const std::vector<int64_t> to = rows_of(item.to_rows, item.to);
    from.resize(std::min(from.size(), to.size()));
    std::vector<int64_t> ids;
    for (const int64_t row : from) ids.push_back(contents_[item.from][row]);
    if (item.tokens != kNoTokens) ids.resize(static_cast<size_t>(plan_.rows(item.tokens)));
    take(t, kind, ids);
    landed_.push_back({item.to, to, ids});
  }
  void touch(Touched& t, const MergeItem& item) {
    // A gradient that travels round the ring begins with the rows that its first rank computes
    // with.
    if (plan_.buffer(item.into).tokens == kNoTokens) contents_[item.into] = kv_now_[item.rank];
    touch_buffer(t, item.into);
  }
  void touch(Touched& t, const ReorderItem& item) { touch_buffer(t, item.to); }
  void touch(Touched& t, const FinishItem& item) { touch_buffer(t, item.buffer); }
  void touch_buffer(Touched& t, BufferId id) {
    const BufferSpec& buffer = plan_.buffer(id);
    t.ranks = {to_index(buffer.rank)};
    t.heads = buffer.heads;
    t.kind = buffer.kind;
    take(t, buffer.kind, contents_[id]);
  }
  void walk(const gui::StageRef& stage, int32_t step) {
    landed_.clear();
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      Touched t;
      t.item = {stage.direction, stage.kind, i};
      t.step = step;
      visit_item(plan_, t.item, [&](const auto& item) { touch(t, item); });
      all.push_back(t);
    }
    // All sends of a stage read their source before any destination is written.
    for (const auto& [to, rows, ids] : landed_) {
      auto& contents = contents_[to];
      for (size_t r = 0; r < ids.size() && r < rows.size(); ++r) contents[rows[r]] = ids[r];
      if (plan_.buffer(to).tokens == kNoTokens) contents.resize(ids.size());
      if (plan_.buffer(to).tokens == kNoTokens) contents.resize(plan_.buffer(to).rows, -1);
    }
  }

  struct Landed {
    BufferId to;
    std::vector<int64_t> rows, ids;
  };
  const Plan& plan_;
  IdVector<BufferId, std::vector<int64_t>> contents_;  // [buffer][row] token id
  std::map<RankId, std::vector<int64_t>> kv_now_;
  std::vector<Landed> landed_;
};

Ids ids_of(const std::vector<gui::TokenRange>& ranges) {
  Ids ids;
  for (const gui::TokenRange& range : ranges) {
    for (int64_t id = range.begin; id < range.end; ++id) ids.insert(id);
  }
  return ids;
}

bool has_id_within(const Ids& ids, int64_t begin, int64_t end) {
  const auto it = ids.lower_bound(begin);
  return it != ids.end() && *it < end;
}

/// Adds items, links and steps of the items that `hits` accepts to those of a projection.
template <class Hits>
void expect_items(const Projection& p, const std::vector<Touched>& all, Hits hits) {
  std::set<std::tuple<Direction, StageKind, int64_t>> items, seen;
  std::set<std::pair<int32_t, int32_t>> links;
  std::set<int32_t> steps;
  for (const Touched& t : all) {
    if (!hits(t)) continue;
    items.emplace(t.item.direction, t.item.kind, t.item.index);
    steps.insert(t.step);
    if (t.ranks.size() == 2 && t.ranks[0] != t.ranks[1]) links.emplace(t.ranks[0], t.ranks[1]);
  }
  for (const ItemId& item : p.items) seen.emplace(item.direction, item.kind, item.index);
  EXPECT_FALSE(p.has_more_items);
  EXPECT_EQ(seen.size(), p.items.size());
  EXPECT_EQ(seen, items);
  EXPECT_EQ((std::set<std::pair<int32_t, int32_t>>(p.links.begin(), p.links.end())), links);
  EXPECT_EQ((std::set<int32_t>(p.steps.begin(), p.steps.end())), steps);
  EXPECT_TRUE(std::is_sorted(p.links.begin(), p.links.end()));
  EXPECT_TRUE(std::is_sorted(p.steps.begin(), p.steps.end()));
}

/// Calls `look` with plans of random scenarios, what their items touch, and a random source.
template <class Look>
void for_walked_plans(Look look) {
  int planned = 0;
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    RandomSpace space;
    space.max_length = 24;
    const auto plan = plan_unless_refused(random_scenario(seed, space));
    if (!plan) continue;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PlanIndex index(*plan);
    std::mt19937_64 random(seed);
    look(index, TokenWalk(index).all, random);
    ++planned;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(planned, 40);
}

gui::TokenRange draw_range(const PlanIndex& index, Side side, std::mt19937_64& random) {
  const int64_t tokens = index.tokens(side);
  const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens));
  const auto most = static_cast<uint64_t>(std::min<int64_t>(tokens - begin, 12));
  return {side, begin, begin + 1 + static_cast<int64_t>(random() % most)};
}

TEST(Project, TokensTouchTheItemsThatReadOrMoveThem) {
  for_walked_plans([](const PlanIndex& index, const std::vector<Touched>& all, auto& random) {
    for (int i = 0; i < 6; ++i) {
      const Side side = i % 2 == 0 ? Side::q : Side::kv;
      if (index.tokens(side) == 0) continue;
      const gui::TokenRange range = draw_range(index, side, random);
      SCOPED_TRACE(testing::Message() << "tokens " << range.begin << ".." << range.end);
      const Projection p = project(range, index);
      const bool both = index.plan().layout.same_kv;
      const bool q = both || side == Side::q, kv = both || side == Side::kv;
      EXPECT_EQ(ids_of(p.q), q ? ids_of({range}) : Ids{});
      EXPECT_EQ(ids_of(p.kv), kv ? ids_of({range}) : Ids{});
      expect_items(p, all, [&](const Touched& t) {
        return (q && has_id_within(t.read[0], range.begin, range.end)) ||
               (kv && has_id_within(t.read[1], range.begin, range.end));
      });
      std::set<int32_t> owners;
      for (int64_t id = range.begin; id < range.end; ++id)
        owners.insert(index.owner(side, id).rank);
      EXPECT_EQ((std::set<int32_t>(p.ranks.begin(), p.ranks.end())), owners);
    }
  });
}

TEST(Project, PairsTouchTheComputesWithOneOfThem) {
  for_walked_plans([](const PlanIndex& index, const std::vector<Touched>& all, auto& random) {
    for (int i = 0; i < 4; ++i) {
      if (index.tokens(Side::q) == 0 || index.tokens(Side::kv) == 0) continue;
      const gui::TokenRange q = draw_range(index, Side::q, random);
      const gui::TokenRange k = draw_range(index, Side::kv, random);
      const Projection p = project(gui::PairRange{q.begin, q.end, k.begin, k.end}, index);
      std::set<int32_t> ranks;
      const auto hits = [&](const Touched& t) {
        const bool hit = std::any_of(t.pairs.begin(), t.pairs.end(), [&](const auto& pair) {
          return pair.first >= q.begin && pair.first < q.end && pair.second >= k.begin &&
                 pair.second < k.end;
        });
        if (hit) ranks.insert(t.ranks.begin(), t.ranks.end());
        return hit;
      };
      expect_items(p, all, hits);
      EXPECT_EQ((std::set<int32_t>(p.ranks.begin(), p.ranks.end())), ranks);
    }
  });
}

TEST(Project, RowsTouchWhatMakesThatTokenAndHead) {
  for_walked_plans([](const PlanIndex& index, const std::vector<Touched>& all, auto& random) {
    const Attention& attention = index.plan().scenario.attention;
    for (int32_t tensor = 0; tensor < 5; ++tensor) {
      const Side side = tensor >= 3 ? Side::kv : Side::q;
      if (index.tokens(side) == 0) continue;
      const int32_t heads = tensor >= 3 ? attention.kv_heads : attention.heads;
      const gui::RowTarget row{tensor, draw_range(index, side, random).begin,
                               static_cast<int32_t>(random() % static_cast<uint64_t>(heads))};
      const BufferKind made = tensor >= 3   ? BufferKind::dkv
                              : tensor == 2 ? BufferKind::dq
                                            : BufferKind::out;
      expect_items(project(row, index), all, [&](const Touched& t) {
        HeadRange range = t.heads;
        const bool is_compute = t.item.kind == StageKind::compute;
        if (is_compute && tensor >= 3) range = kv_heads_of(attention, range);
        return (t.item.direction == Direction::backward) == (tensor >= 2) &&
               t.read[side == Side::kv ? 1 : 0].count(row.token) > 0 &&
               (is_compute || t.kind == made) && row.head >= range.begin && row.head < range.end;
      });
    }
  });
}

TEST(Project, ARankTouchesItsTokensAndItems) {
  for_walked_plans([](const PlanIndex& index, const std::vector<Touched>& all, auto&) {
    for (int32_t rank = 0; rank < index.num_ranks(); ++rank) {
      const Projection p = project(gui::RankTarget{rank}, index);
      expect_items(p, all, [&](const Touched& t) {
        return std::find(t.ranks.begin(), t.ranks.end(), rank) != t.ranks.end();
      });
      const auto q = expand(index.plan().layout.q_runs[RankId{rank}]);
      const auto kv = expand(index.plan().layout.kv_runs[RankId{rank}]);
      EXPECT_EQ(ids_of(p.q), Ids(q.begin(), q.end()));
      EXPECT_EQ(ids_of(p.kv), Ids(kv.begin(), kv.end()));
      EXPECT_EQ(p.ranks, std::vector<int32_t>{rank});
    }
  });
}

TEST(Project, ALinkTouchesWhatTravelsOverIt) {
  for_walked_plans([](const PlanIndex& index, const std::vector<Touched>& all, auto&) {
    for (int32_t src = 0; src < index.num_ranks(); ++src) {
      for (int32_t dst = 0; dst < index.num_ranks(); ++dst) {
        Ids q, kv;
        const auto hits = [&](const Touched& t) {
          if (t.ranks != std::vector<int32_t>{src, dst}) return false;
          q.insert(t.rows[0].begin(), t.rows[0].end());
          kv.insert(t.rows[1].begin(), t.rows[1].end());
          return true;
        };
        const Projection p = project(gui::LinkTarget{src, dst}, index);
        expect_items(p, all, hits);
        EXPECT_EQ(ids_of(p.q), q);
        EXPECT_EQ(ids_of(p.kv), kv);
      }
    }
  });
}

TEST(Project, AnItemTouchesItsRowsRanksAndStep) {
  for_walked_plans([](const PlanIndex& index, const std::vector<Touched>& all, auto& random) {
    for (int i = 0; i < 20; ++i) {
      const Touched& t = all[random() % all.size()];
      const Projection p = project(t.item, index);
      EXPECT_EQ(p.items, std::vector<ItemId>{t.item});
      EXPECT_EQ(p.steps, std::vector<int32_t>{t.step});
      EXPECT_EQ(ids_of(p.q), t.rows[0]);
      EXPECT_EQ(ids_of(p.kv), t.rows[1]);
      EXPECT_EQ((std::set<int32_t>(p.ranks.begin(), p.ranks.end())),
                (std::set<int32_t>(t.ranks.begin(), t.ranks.end())));
    }
  });
}

TEST(Project, AStepTouchesItsItemsAndWhoWorks) {
  for_walked_plans([](const PlanIndex& index, const std::vector<Touched>& all, auto&) {
    for (int32_t step = 0; step < static_cast<int32_t>(index.steps().size()); ++step) {
      std::set<int32_t> ranks;
      const Projection p = project(gui::StepTarget{step}, index);
      expect_items(p, all, [&](const Touched& t) {
        const bool idles = t.item.kind == StageKind::compute && t.pairs.empty();
        if (t.step != step || idles) return false;
        ranks.insert(t.ranks.begin(), t.ranks.end());
        return true;
      });
      EXPECT_EQ((std::set<int32_t>(p.ranks.begin(), p.ranks.end())), ranks);
    }
  });
}

TEST(Project, KeepsTheFirstItemsAndSaysThatThereAreMore) {
  const PlanIndex index(*plan_unless_refused(walker_case({256}, 64)));
  const Projection p = project(gui::TokenRange{Side::q, 0, 256}, index);
  EXPECT_TRUE(p.has_more_items);
  EXPECT_EQ(p.items.size(), Projection::kMostItems);
  EXPECT_EQ(p.steps.size(), index.steps().size());
  EXPECT_EQ(p.ranks.size(), 64u);
  EXPECT_EQ(p.links.size(), 128u);  // forward round the ring, and back
  // For one token, the result must not depend on when the list was full.
  const Projection one = project(gui::TokenRange{Side::q, 17, 18}, index);
  std::set<std::pair<int32_t, int32_t>> links;
  for (const Touched& t : TokenWalk(index).all) {
    if (t.ranks.size() == 2 && t.read[1].count(17) > 0) links.emplace(t.ranks[0], t.ranks[1]);
  }
  EXPECT_EQ((std::set<std::pair<int32_t, int32_t>>(one.links.begin(), one.links.end())), links);
}

}  // namespace
}  // namespace cpscope::tests
