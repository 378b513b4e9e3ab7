#include "gui/model/layout/layout_view.h"

#include "gui/model/describe.h"
#include "sim/plan/planner/planner.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/gui/model/plan_truth.h"
#include "tests/gui/model/random_plans.h"
#include "tests/gui/model/view_check.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::Box;
using gui::HitRegion;
using gui::PlanIndex;
using gui::View;

constexpr gui::Size kLargeLayout{4000, 1600};

std::vector<Side> drawn_sides(const PlanIndex& index) {
  if (index.plan().layout.same_kv) return {Side::q};
  return {Side::q, Side::kv};
}

std::string side_name(Side side) { return side == Side::q ? "q" : "kv"; }

/// The numbers in a text; gaps between thousands are removed.
std::vector<int64_t> numbers_in(const std::string& text) {
  std::vector<int64_t> numbers;
  bool is_open = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] >= '0' && text[i] <= '9') {
      if (!is_open) numbers.push_back(0);
      numbers.back() = numbers.back() * 10 + (text[i] - '0');
      is_open = true;
    } else {
      is_open =
          text[i] == ' ' && is_open && i + 3 < text.size() &&
          std::all_of(&text[i + 1], &text[i + 4], [](char c) { return c >= '0' && c <= '9'; });
    }
  }
  return numbers;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  return lines;
}

/// The content of a chunk's tooltip: "rank 3, local rows [64, 96)".
struct Told {
  int64_t rank = -1, first_row = -1, end_row = -1;
};

Told told_of(const HitRegion& hit) {
  for (const std::string& line : lines_of(hit.tooltip)) {
    if (!line.starts_with("rank ") || line.find("local rows") == std::string::npos) continue;
    const std::vector<int64_t> n = numbers_in(line);
    if (n.size() == 3) return {n[0], n[1], n[2]};
  }
  ADD_FAILURE() << "no rank and rows in: " << hit.tooltip;
  return {};
}

TEST(LayoutView, ShowsEveryTokenOnceInThePackedOrderWithItsOwner) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeLayout);
    const View view = draw_layout(asked.input);
    expect_sound(view);
    for (const Side side : drawn_sides(index)) {
      const auto tokens = local_tokens(index, side);
      std::vector<int> shown(static_cast<size_t>(index.tokens(side)), 0);
      for (const HitRegion& hit : view.hits) {
        if (!hit.name.starts_with("chunk/" + side_name(side) + "/")) continue;
        const auto& range = std::get<gui::TokenRange>(hit.target);
        const Told told = told_of(hit);
        ASSERT_EQ(range.side, side);
        ASSERT_EQ(told.end_row - told.first_row, range.end - range.begin);
        for (int64_t token = range.begin; token < range.end; ++token) {
          ++shown[static_cast<size_t>(token)];
          const auto& rows = tokens[static_cast<size_t>(told.rank)];
          ASSERT_EQ(rows.at(static_cast<size_t>(told.first_row + token - range.begin)), token)
              << hit.name;
        }
      }
      for (size_t token = 0; token < shown.size(); ++token)
        ASSERT_EQ(shown[token], 1) << side_name(side) << " token " << token;
    }
  });
}

// A rank of a tensor-parallel group owns heads of all queries: no chunk has one rank.
TEST(LayoutView, ShowsQueriesWhoseHeadsRanksOwnAsEveryRanks) {
  const gui::SharedPlan index = plan_shipped("decode_heads");
  Asked asked(*index, kLargeLayout);
  const View view = draw_layout(asked.input);
  expect_sound(view);
  std::set<int64_t> shown;
  for (const HitRegion& hit : view.hits) {
    EXPECT_FALSE(hit.name.starts_with("chunk/q/") || hit.name.starts_with("comb/q/")) << hit.name;
    if (!hit.name.starts_with("heads/q/")) continue;
    EXPECT_NE(hit.tooltip.find("every rank has all of them, rank 0 their heads [0, 16), rank 7 "
                               "their heads [112, 128)"),
              std::string::npos)
        << hit.tooltip;
    const auto& range = std::get<gui::TokenRange>(hit.target);
    for (int64_t token = range.begin; token < range.end; ++token)
      EXPECT_TRUE(shown.insert(token).second) << token;
  }
  EXPECT_EQ(std::ssize(shown), index->tokens(Side::q));
  EXPECT_EQ(index->owner(Side::q, 5).rank, -1);
  EXPECT_EQ(index->owner_of_head(Side::q, 5, 17), 1);
  EXPECT_EQ(index->owner_of_head(Side::q, 5, 127), 7);
  EXPECT_EQ(index->owner_of_head(Side::kv, 8, 0), 1) << "keys are in stripes of 8";
  EXPECT_NE(
      describe_target(gui::TokenRange{Side::q, 0, 4}, *index).find("every rank, each its own"),
      std::string::npos);
}

TEST(LayoutView, ShowsEveryLocalRowOnceWithItsToken) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeLayout);
    const View view = draw_layout(asked.input);
    for (const Side side : drawn_sides(index)) {
      const auto tokens = local_tokens(index, side);
      std::set<std::pair<int64_t, int64_t>> shown;  // (rank, row)
      for (const HitRegion& hit : view.hits) {
        if (!hit.name.starts_with("local/" + side_name(side) + "/")) continue;
        const Told told = told_of(hit);
        const std::vector<int64_t> ids = numbers_in(lines_of(hit.tooltip).front());
        // "query tokens [4, 8)" or "query tokens 4, 7, .. 22: every 3th"
        const bool is_strided = hit.tooltip.find("every") != std::string::npos;
        const int64_t stride = is_strided ? ids.at(3) : 1;
        for (int64_t row = told.first_row; row < told.end_row; ++row) {
          ASSERT_TRUE(shown.emplace(told.rank, row).second) << "row shown twice, " << hit.name;
          ASSERT_EQ(tokens[static_cast<size_t>(told.rank)][static_cast<size_t>(row)],
                    ids[0] + (row - told.first_row) * stride)
              << hit.name << ": " << hit.tooltip;
        }
      }
      ASSERT_EQ(shown.size(), static_cast<size_t>(index.tokens(side)));
    }
  });
}

/// Pixels per token of the packed order, from the sequences' and the tail's boxes.
struct PackedScale {
  double begin = 1e9, end = -1e9;
};

PackedScale packed_scale(const View& view, Side side) {
  PackedScale scale;
  for (const HitRegion& hit : view.hits) {
    if (!hit.name.starts_with("chunk/" + side_name(side) + "/")) continue;
    scale.begin = std::min<double>(scale.begin, hit.box.x0);
    scale.end = std::max<double>(scale.end, hit.box.x1);
  }
  return scale;
}

TEST(LayoutView, DrawsChunksToScale) {
  for_plans_of_seeds(40, [](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeLayout);
    const View view = draw_layout(asked.input);
    for (const Side side : drawn_sides(index)) {
      const PackedScale scale = packed_scale(view, side);
      const double per_token = (scale.end - scale.begin) / static_cast<double>(index.tokens(side));
      for (const HitRegion& hit : view.hits) {
        if (!hit.name.starts_with("chunk/" + side_name(side) + "/")) continue;
        const auto& range = std::get<gui::TokenRange>(hit.target);
        ASSERT_NEAR(hit.box.x0, scale.begin + per_token * static_cast<double>(range.begin), 0.1);
        ASSERT_NEAR(hit.box.x1, scale.begin + per_token * static_cast<double>(range.end), 0.1);
      }
    }
  });
}

TEST(LayoutView, RibbonsJoinTheSameTokensAboveAndBelow) {
  size_t followed = 0;
  for_plans_of_seeds(60, [&followed](const PlanIndex& index, uint64_t) {
    if (!index.plan().layout.same_kv) return;
    Asked asked(index, kLargeLayout);
    asked.input.focus_rank = index.num_ranks() - 1;
    const View view = draw_layout(asked.input);
    const auto tokens = local_tokens(index, Side::q);
    const PackedScale scale = packed_scale(view, Side::q);
    const double per_token = (scale.end - scale.begin) / static_cast<double>(index.tokens(Side::q));
    std::map<int64_t, int> ends;  // token to the number of ribbons that carry it
    for (const gui::Mark& mark : view.drawing.marks) {
      const auto* ribbon = std::get_if<gui::Ribbon>(&mark);
      if (ribbon == nullptr) continue;
      // The local boxes at whose top edge the ribbon ends; ribbons of a reorder end elsewhere.
      for (const HitRegion& hit : view.hits) {
        if (!hit.name.starts_with("local/q/") || std::abs(hit.box.y0 - ribbon->bottom) > 0.01F)
          continue;
        if (ribbon->bottom_x0 < hit.box.x0 - 0.1F || ribbon->bottom_x1 > hit.box.x1 + 0.1F)
          continue;
        const Told told = told_of(hit);
        const double per_row = hit.box.width() / static_cast<double>(told.end_row - told.first_row);
        const auto count = std::llround((ribbon->top_x1 - ribbon->top_x0) / per_token);
        const auto first = std::llround((ribbon->top_x0 - scale.begin) / per_token);
        const auto row = told.first_row + std::llround((ribbon->bottom_x0 - hit.box.x0) / per_row);
        ASSERT_EQ(std::llround((ribbon->bottom_x1 - ribbon->bottom_x0) / per_row), count);
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(tokens[static_cast<size_t>(told.rank)].at(static_cast<size_t>(row + i)),
                    first + i);
          ++ends[first + i];
        }
      }
    }
    for (int64_t token = 0; token < index.tokens(Side::q); ++token)
      ASSERT_EQ(ends[token], 1) << "token " << token;
    followed += ends.size();
  });
  EXPECT_GT(followed, 500U);
}

TEST(LayoutView, DrawsPaddingAsPaddingAndNothingElse) {
  int64_t padded = 0;
  for_plans_of_seeds(60, [&padded](const PlanIndex& index, uint64_t) {
    Asked asked(index, kLargeLayout);
    const View view = draw_layout(asked.input);
    for (const Side side : drawn_sides(index)) {
      const PackedScale scale = packed_scale(view, side);
      const double per_token = (scale.end - scale.begin) / static_cast<double>(index.tokens(side));
      // The dots must be inside the row of owners.
      Box row{};
      for (const HitRegion& hit : view.hits)
        if (hit.name.starts_with("chunk/" + side_name(side) + "/")) row = hit.box;
      std::vector<int> dotted(static_cast<size_t>(index.tokens(side)), 0);
      for (const gui::Mark& mark : view.drawing.marks) {
        const auto* box = std::get_if<gui::FilledBox>(&mark);
        if (box == nullptr || box->hatch != gui::Hatch::dots) continue;
        if (box->box.y1 != row.y1 || box->box.x0 < scale.begin - 0.1 ||
            box->box.x1 > scale.end + 0.1)
          continue;
        EXPECT_EQ(box->color, asked.input.theme->of(gui::Role::padding));
        const auto first = std::llround((box->box.x0 - scale.begin) / per_token);
        const auto last = std::llround((box->box.x1 - scale.begin) / per_token);
        for (int64_t token = first; token < last; ++token) ++dotted.at(static_cast<size_t>(token));
      }
      for (int64_t token = 0; token < index.tokens(side); ++token) {
        ASSERT_EQ(dotted[static_cast<size_t>(token)] > 0, !index.is_valid(side, token))
            << side_name(side) << " token " << token;
        padded += dotted[static_cast<size_t>(token)];
      }
    }
  });
  EXPECT_GT(padded, 100);
}

/// Chunks of the packed order: they end where the owner changes, a sequence ends, or the layout
/// cuts.
int64_t count_chunks(const PlanIndex& index) {
  const Layout& layout = index.plan().layout;
  const int64_t tokens = index.tokens(Side::q);
  std::set<int64_t> cuts;
  for (const SequenceSlot& slot : layout.slots.sequences) {
    cuts.insert(slot.q_begin);
    cuts.insert(slot.q_begin + slot.q_slot);
    if (layout.kind == LayoutKind::dual_chunk)
      for (int64_t n = 0; n < 2 * layout.cp_size; ++n)
        cuts.insert(slot.q_begin + slot.q_slot / (2 * layout.cp_size) * n);
  }
  if (layout.kind == LayoutKind::lpt)
    for (int64_t at = 0; at < tokens; at += index.plan().scenario.parallel.dispatch_chunk)
      cuts.insert(at);
  if (layout.kind == LayoutKind::dual_chunk_packed)
    for (int64_t n = 0; n < 2 * layout.cp_size; ++n) cuts.insert(tokens / (2 * layout.cp_size) * n);
  for (const auto& runs : layout.q_runs)
    for (const TokenRun& run : runs) cuts.insert(run.begin);
  cuts.erase(tokens);
  return static_cast<int64_t>(cuts.size());
}

TEST(LayoutView, FoldsNarrowChunksAndKeepsTheirNumber) {
  int64_t folded = 0;
  RandomSpace space;
  space.max_length = 2000;
  for_plans_of_seeds(
      60,
      [&folded](const PlanIndex& index, uint64_t) {
        const LayoutKind kind = index.plan().layout.kind;
        if (kind == LayoutKind::striped || kind == LayoutKind::indices) return;
        Asked asked(index, {260, 300});
        const View view = draw_layout(asked.input);
        int64_t chunks = 0;
        for (const HitRegion& hit : view.hits) {
          if (hit.name.starts_with("chunk/q/")) {
            ++chunks;
          } else if (hit.name.starts_with("band/q/")) {
            const int64_t here = numbers_in(hit.tooltip).front();
            EXPECT_GT(here, 1);
            chunks += here;
            folded += here;
          }
        }
        ASSERT_EQ(chunks, count_chunks(index));
      },
      space);
  EXPECT_GT(folded, 100);
}

TEST(LayoutView, StaysSoundForAnyCameraAndSize) {
  std::mt19937_64 random(11);
  RandomSpace space;
  space.max_length = 3000;
  for_plans_of_seeds(
      40,
      [&random](const PlanIndex& index, uint64_t) {
        for (int n = 0; n < 40; ++n) {
          Asked asked(index, random_size(random));
          asked.input.camera = random_camera(random);
          asked.input.focus_rank =
              static_cast<int32_t>(random() % static_cast<uint64_t>(index.num_ranks()));
          asked.input.progress = static_cast<double>(random() % 5) / 4;
          const auto stages = static_cast<int32_t>(index.stages().size());
          asked.input.moment = index.moment_of_stage(static_cast<int32_t>(random() % stages));
          asked.hovered.q = {{Side::q, 3, 9}};
          asked.hovered.ranks = {0};
          expect_sound(draw_layout(asked.input));
          if (testing::Test::HasFailure()) return;
        }
      },
      space);
}

TEST(LayoutView, ShowsAMillionTokensOnAThousandRanks) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/million_tokens.toml");
  ASSERT_TRUE(index.has_value());
  Asked asked(*index, {1920, 1080});
  const View whole = draw_layout(asked.input);
  expect_sound(whole);
  int64_t chunks = 0;
  for (const HitRegion& hit : whole.hits)
    if (hit.name.starts_with("band/q/")) chunks += numbers_in(hit.tooltip).front();
  EXPECT_EQ(chunks, 2048);
  std::mt19937_64 random(3);
  const auto start = std::chrono::steady_clock::now();
  constexpr int kFrames = 200;
  for (int n = 0; n < kFrames; ++n) {
    asked.input.camera = random_camera(random);
    asked.input.focus_rank = static_cast<int32_t>(random() % 1024);
    expect_sound(draw_layout(asked.input));
    if (testing::Test::HasFailure()) return;
  }
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  for (const gui::Camera& camera : zoom_grid(11)) {
    asked.input.camera = camera;
    expect_sound(draw_layout(asked.input));
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%.2f ms a picture\n", spent.count() / kFrames);
}

TEST(LayoutView, ShowsACombUntilStripesAreWideEnough) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/striped.toml");
  ASSERT_TRUE(index.has_value());
  const auto count = [](const View& view, const std::string& prefix) {
    return std::count_if(view.hits.begin(), view.hits.end(),
                         [&](const HitRegion& hit) { return hit.name.starts_with(prefix); });
  };
  Asked far(*index, {600, 300});
  const View comb = draw_layout(far.input);
  EXPECT_EQ(count(comb, "comb/q/"), 1);
  EXPECT_EQ(count(comb, "chunk/q/"), 0);
  far.input.camera.x = {0.5, 0.75};
  const View teeth = draw_layout(far.input);
  EXPECT_EQ(count(teeth, "comb/q/"), 0);
  EXPECT_EQ(count(teeth, "chunk/q/"), 64);
}

TEST(LayoutView, OutlinesWhatIsSelectedAndHovered) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/zigzag.toml");
  ASSERT_TRUE(index.has_value());
  Asked asked(*index, {960, 400});
  const gui::Theme& theme = *asked.input.theme;
  const auto outlines = [&](gui::Role role, float width) {
    const View view = draw_layout(asked.input);
    size_t found = 0;
    for (const gui::Mark& mark : view.drawing.marks) {
      const auto* box = std::get_if<gui::OutlinedBox>(&mark);
      if (box != nullptr && box->color == theme.of(role) && box->width == width) ++found;
    }
    return found;
  };
  const size_t idle = outlines(gui::Role::selected, 2);
  asked.input.selection = gui::TokenRange{Side::q, 32, 64};
  asked.selected.q = {{Side::q, 32, 64}};
  EXPECT_EQ(outlines(gui::Role::selected, 2), idle + 2) << "packed and local";
  asked.hovered.q = {{Side::q, 0, 32}};
  EXPECT_GE(outlines(gui::Role::hovered, 1), 2U);
}

TEST(LayoutView, OutlinesTheRowsAndJoinsTheRanksOfTheRound) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/hybrid_sizes.toml");
  ASSERT_TRUE(index.has_value());
  Asked asked(*index, {960, 700});
  const std::vector<CpRound>& rounds = index->plan().layout.rounds;
  ASSERT_EQ(rounds.size(), 2U);
  for (const auto& [step, round] : {std::pair(0, size_t{0}), std::pair(8, size_t{1})}) {
    asked.input.moment = index->moment_of_step(step);
    const View view = draw_layout(asked.input);
    EXPECT_NE(view.title.find(fmt::format(", round {} of 2", round + 1)), std::string::npos)
        << view.title;
    size_t brackets = 0;
    for (const gui::HitRegion& hit : view.hits) brackets += hit.name.starts_with("group/q/");
    EXPECT_EQ(brackets, rounds[round].groups.size());
    // Every rank works in both rounds; the rows that it computes now begin where those before end.
    size_t outlined = 0;
    for (const gui::Mark& mark : view.drawing.marks) {
      const auto* box = std::get_if<gui::OutlinedBox>(&mark);
      outlined += box != nullptr && box->color == asked.input.theme->of(gui::Role::transfer);
    }
    EXPECT_EQ(outlined, 8 + 1U) << "and in the legend";
  }
  asked.input.moment = index->moment_of_step(8);
  const View view = draw_layout(asked.input);
  const auto group = std::find_if(view.hits.begin(), view.hits.end(),
                                  [](const auto& hit) { return hit.name == "group/q/2"; });
  ASSERT_NE(group, view.hits.end());
  EXPECT_EQ(group->tooltip, "round 2 of 2: ranks 2 to 3 share sequence 8");
}

TEST(LayoutView, SaysWhatToDoWithoutAPlan) {
  const auto index = plan_file(CPSCOPE_SOURCE_DIR "/scenarios/zigzag.toml");
  ASSERT_TRUE(index.has_value());
  Asked asked(*index, {600, 300});
  asked.input.plan = nullptr;
  const View view = draw_layout(asked.input);
  ASSERT_EQ(view.drawing.marks.size(), 1U);
  EXPECT_NE(std::get<gui::Label>(view.drawing.marks[0]).text.find("Open a scenario"),
            std::string::npos);
}

TEST(LayoutView, ShowsPaddingHoweverLittleThereIs) {
  const gui::SharedPlan plan = plan_shipped("thd_padding_p2p");
  Asked asked(*plan, {430, 300});
  const View view = draw_layout(asked.input);
  size_t sequences = 0;
  for (const HitRegion& hit : view.hits) {
    if (!hit.name.starts_with("sequence/q/") || hit.box.width() < 40) continue;
    ++sequences;
    float widest = 0;
    for (const gui::Mark& mark : view.drawing.marks) {
      const auto* box = std::get_if<gui::FilledBox>(&mark);
      if (box != nullptr && box->hatch == gui::Hatch::dots && box->box.x0 >= hit.box.x0 - 1 &&
          box->box.x1 <= hit.box.x1 + 1 && hit.box.contains(box->box.center()))
        widest = std::max(widest, box->box.width());
    }
    EXPECT_GE(widest, 6) << hit.name;
  }
  EXPECT_GE(sequences, 2U);
  const auto has_count = [&](const std::string& text) {
    return std::any_of(view.drawing.marks.begin(), view.drawing.marks.end(),
                       [&](const gui::Mark& mark) {
                         const auto* label = std::get_if<gui::Label>(&mark);
                         return label != nullptr && label->text == text;
                       });
  };
  EXPECT_TRUE(has_count("+6") && has_count("+7")) << "the padding of sequences 0 and 2";
}

}  // namespace
}  // namespace cpscope::tests
