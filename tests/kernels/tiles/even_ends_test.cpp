// Orders in which CTAs end together, by the model; kernels/notes/forward.md has what devices say.
#include "kernels/tiles/even_ends.h"

#include "kernels/tiles/free_ctas.h"
#include "kernels/tiles/work_order.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

constexpr TileShape kTall{.owned_rows = 192, .walked_rows = 80, .ctas_per_sm = 1};

TileList list_of_heads(int32_t rows, int32_t num_heads, bool is_causal, TileShape shape,
                       int32_t most_at_once = 0) {
  const BandSlice all{0, rows, 0, rows, -rows, is_causal ? 0 : rows};
  const WorkHeads heads{.num_heads = num_heads,
                        .heads_sharing = std::min(num_heads, 8),
                        .most_at_once = most_at_once};
  return make_tile_list({&all, 1}, rows, rows, heads, shape, TileOwner::queries);
}

/// The end of the last CTA over the mean end.
double loss_of(const TileList& list) {
  const int32_t num_ctas = kHopperCtas * std::max(1, list.shape.ctas_per_sm);
  FreeCtas ctas(num_ctas);
  double all = 0.0;
  for (const WorkItem& item : list.work) {
    const double time = item_time(list, item);
    ctas.take_until(ctas.begin() + time);
    all += time;
  }
  return ctas.last() / (all / num_ctas);
}

auto sorted_work(const TileList& list) {
  std::vector<std::tuple<int32_t, int32_t>> items;
  for (const WorkItem& item : list.work) items.emplace_back(item.tile, item.head);
  std::sort(items.begin(), items.end());
  return items;
}

TEST(EvenEnds, LetCtasEndTogether) {
  const struct {
    int32_t rows, heads;
    double before, after;  // at least, at most
  } cases[] = {{16384, 4, 1.11, 1.01},  {16384, 8, 1.025, 1.01}, {8192, 8, 1.10, 1.02},
               {4096, 16, 1.08, 1.03},  {32768, 4, 1.03, 1.01},  {16384, 16, 1.004, 1.002},
               {4096, 64, 1.008, 1.006}};
  for (const auto& one : cases) {
    TileShape unknown = kTall;
    unknown.ctas_per_sm = 0;
    const TileList longest_first = list_of_heads(one.rows, one.heads, true, unknown),
                   even = list_of_heads(one.rows, one.heads, true, kTall);
    const auto name = fmt::format("{} heads of {} tokens", one.heads, one.rows);
    EXPECT_GE(loss_of(longest_first), one.before) << name;
    EXPECT_LE(loss_of(even), one.after) << name;
    EXPECT_EQ(sorted_work(even), sorted_work(longest_first)) << name;
  }
}

/// How many items come first in either order.
int64_t same_items(const TileList& a, const TileList& b) {
  const auto ends = std::mismatch(
      a.work.begin(), a.work.end(), b.work.begin(), b.work.end(),
      [](const WorkItem& x, const WorkItem& y) { return x.tile == y.tile && x.head == y.head; });
  return ends.first - a.work.begin();
}

TEST(EvenEnds, KeepTheOrderOfAllButTheLastItems) {
  TileShape unknown = kTall;
  unknown.ctas_per_sm = 0;
  const TileList even = list_of_heads(16384, 32, true, kTall),
                 in_sections = list_of_heads(16384, 32, true, unknown);
  const auto items = static_cast<int64_t>(even.work.size());
  EXPECT_GE(same_items(even, in_sections), items - 3 * kHopperCtas);
  EXPECT_LT(same_items(even, in_sections), items);
}

TEST(EvenEnds, KeepTheOrderWhereItIsAboutAsGood) {
  const auto same_order = [&](int32_t rows, int32_t heads, bool is_causal, int32_t most_at_once,
                              TileShape shape = kTall) {
    const TileList a = list_of_heads(rows, heads, is_causal, shape, most_at_once);
    shape.ctas_per_sm = 0;
    const TileList b = list_of_heads(rows, heads, is_causal, shape, most_at_once);
    return same_items(a, b) == static_cast<int64_t>(a.work.size());
  };
  EXPECT_TRUE(same_order(16384, 4, false, 0)) << "items of one length: no order is better";
  EXPECT_TRUE(same_order(1024, 8, true, 0)) << "fewer items than CTAs";
  EXPECT_TRUE(same_order(16384, 4, true, 2)) << "heads that arrive later come later";
  EXPECT_FALSE(same_order(16384, 4, true, 0));
  const TileShape wide{.owned_rows = 128, .walked_rows = 128, .ctas_per_sm = 1};
  EXPECT_TRUE(same_order(1024, 256, true, 0, wide)) << "short items save less than 2 %";
  EXPECT_FALSE(same_order(4096, 64, true, 0, wide));
}

}  // namespace
}  // namespace cpscope::kernels
