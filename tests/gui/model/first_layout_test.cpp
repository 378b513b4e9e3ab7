#include "gui/model/layout/first_layout.h"

#include "gui/app/document/document.h"
#include "sim/scenario/scenario_file.h"
#include "tests/gui/model/random_plans.h"
#include "tests/gui/model/view_check.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::Color;
using gui::Pixels;
using gui::View;

std::vector<Pixels> pixels_of(const View& view) {
  std::vector<Pixels> found;
  for (const gui::Mark& mark : view.drawing.marks)
    if (const auto* pixels = std::get_if<Pixels>(&mark)) found.push_back(*pixels);
  return found;
}

gui::ViewInput sized_input(gui::Size size) {
  gui::ViewInput input;
  input.size = size;
  input.theme = &gui::theme_of(gui::ThemeName::dark);
  input.text_width = even_width;
  return input;
}

TEST(FirstLayout, ColoursEveryTokenByItsOwner) {
  int64_t tokens_seen = 0;
  for_plans_of_seeds(60, [&](const gui::PlanIndex& index, uint64_t) {
    const Layout& layout = index.plan().layout;
    const int64_t tokens = layout.slots.tokens;
    const gui::ViewInput input = sized_input({900, 600});
    const std::vector<Pixels> pixels = pixels_of(draw_first_layout(layout, input));
    ASSERT_EQ(pixels.size(), 2u);
    const Pixels &strip = pixels[0], &matrix = pixels[1];
    // Few enough tokens that each has its own column, and each rank its own row.
    if (tokens > 500) return;
    ASSERT_EQ(strip.width, tokens);
    ASSERT_EQ(matrix.height, index.num_ranks());
    const Color empty = input.theme->of(gui::Role::mask_empty);
    for (int64_t id = 0; id < tokens; ++id, ++tokens_seen) {
      const int32_t owner = index.owner(Side::q, id).rank;
      EXPECT_EQ(strip.colors[static_cast<size_t>(id)],
                owner < 0 ? input.theme->of(gui::Role::padding)
                          : input.theme->of_rank(owner, index.num_ranks()));
      for (int32_t rank = 0; rank < index.num_ranks(); ++rank)
        ASSERT_EQ(matrix.colors[static_cast<size_t>(rank * tokens + id)] != empty, rank == owner)
            << "token " << id << ", rank " << rank;
    }
  });
  EXPECT_GT(tokens_seen, 1000);
}

TEST(FirstLayout, IsSoundAtEverySize) {
  std::mt19937_64 random(7);
  for_plans_of_seeds(40, [&](const gui::PlanIndex& index, uint64_t) {
    const gui::Size size = random_size(random);
    SCOPED_TRACE(testing::Message() << size.width << " x " << size.height);
    expect_sound(draw_first_layout(index.plan().layout, sized_input(size)));
  });
}

TEST(FirstLayout, IsThereLongBeforeTheFirstPlanAndGoesWithIt) {
  gui::Document document;
  ASSERT_FALSE(
      document.load_text("schema = 1\n[attention]\nheads = 2\nhead_dim = 64\n[batch]\n"
                         "lengths = [9216]\n[parallel]\ncp_size = 256\n",
                         ""));
  bool has_layout = false;
  while (document.is_planning()) {
    document.poll();
    if (document.first_layout() == nullptr) continue;
    has_layout = true;
    EXPECT_EQ(document.plan(), nullptr);
    EXPECT_EQ(document.first_layout()->q_runs.size(), 256u);
  }
  EXPECT_TRUE(has_layout);
  EXPECT_EQ(document.first_layout(), nullptr);
  // After an edit, the picture of the old plan stays instead.
  Scenario next = document.scenario();
  next.parallel.cp_size = 224;
  document.edit(next, "parallel.cp_size");
  EXPECT_TRUE(document.is_planning());
  while (document.is_planning()) {
    document.poll();
    EXPECT_EQ(document.first_layout(), nullptr);
  }
  EXPECT_EQ(document.plan()->num_ranks(), 224);
}

}  // namespace
}  // namespace cpscope::tests
