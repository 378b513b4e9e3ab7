#pragma once

#include "gui/model/view.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {

/// Text width with letters of equal width, so that tests need no font.
inline float even_width(const std::string& text, float size, gui::Face face) {
  const float em = face == gui::Face::mono ? 0.6F : 0.53F;
  return static_cast<float>(text.size()) * size * em;
}

/// The input of a view with nothing selected, at the first step.
struct Asked {
  gui::Projection selected, hovered;
  gui::ViewMemo memo;
  gui::ViewInput input;

  explicit Asked(const gui::PlanIndex& plan, gui::Size size) {
    input.plan = &plan;
    input.size = size;
    input.theme = &gui::theme_of(gui::ThemeName::dark);
    input.text_width = even_width;
    input.selected = &selected;
    input.hovered = &hovered;
    input.memo = &memo;
    if (!plan.steps().empty()) input.moment = plan.moment_of_step(0);
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
};

inline void expect_finite(const gui::Box& box, const char* what) {
  for (const float v : {box.x0, box.y0, box.x1, box.y1})
    ASSERT_TRUE(std::isfinite(v) && std::abs(v) < 1e6F) << what << " at " << v;
}

/// Checks a view: mark limit, finite coordinates, clips in pairs, hit names unique and ASCII.
inline void expect_sound(const gui::View& view) {
  ASSERT_LE(view.drawing.marks.size(), gui::kMostMarks);
  int clips = 0;
  for (const gui::Mark& mark : view.drawing.marks) {
    if (const auto* m = std::get_if<gui::FilledBox>(&mark)) {
      expect_finite(m->box, "filled box");
    } else if (const auto* o = std::get_if<gui::OutlinedBox>(&mark)) {
      expect_finite(o->box, "outlined box");
    } else if (const auto* l = std::get_if<gui::Line>(&mark)) {
      expect_finite({l->from.x, l->from.y, l->to.x, l->to.y}, "line");
    } else if (const auto* p = std::get_if<gui::Polygon>(&mark)) {
      for (const gui::Point& at : p->points) expect_finite({at.x, at.y, at.x, at.y}, "polygon");
    } else if (const auto* r = std::get_if<gui::Ribbon>(&mark)) {
      expect_finite({r->top_x0, r->top, r->top_x1, r->bottom}, "ribbon");
      expect_finite({r->bottom_x0, r->top, r->bottom_x1, r->bottom}, "ribbon");
    } else if (const auto* t = std::get_if<gui::Label>(&mark)) {
      expect_finite({t->at.x, t->at.y, t->at.x, t->at.y}, "label");
      for (const char c : t->text) ASSERT_TRUE(c >= ' ' && c <= '~') << t->text;
    } else if (const auto* x = std::get_if<gui::Pixels>(&mark)) {
      expect_finite(x->box, "pixels");
      ASSERT_EQ(x->colors.size(), static_cast<size_t>(x->width) * static_cast<size_t>(x->height));
    } else if (const auto* c = std::get_if<gui::PushClip>(&mark)) {
      expect_finite(c->box, "clip");
      ++clips;
    } else {
      ASSERT_GE(--clips, 0) << "a clip ends that did not begin";
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  ASSERT_EQ(clips, 0);
  std::set<std::string> names;
  for (const gui::HitRegion& hit : view.hits) {
    expect_finite(hit.box, hit.name.c_str());
    ASSERT_TRUE(names.insert(hit.name).second) << "two regions are called " << hit.name;
  }
}

/// True if the labels, joined in order, contain the text. Wrapped lines follow each other.
inline bool has_words(const gui::View& view, const std::string& text) {
  std::string all;
  for (const gui::Mark& mark : view.drawing.marks) {
    if (const auto* label = std::get_if<gui::Label>(&mark)) all += label->text + " ";
  }
  return all.find(text) != std::string::npos;
}

/// Cameras from the whole picture to single tokens, sometimes invalid ones.
inline gui::Camera random_camera(std::mt19937_64& random) {
  const auto span = [&random] {
    const double width = std::exp2(std::uniform_real_distribution<double>(-24, 1)(random));
    const double lo = std::uniform_real_distribution<double>(-0.2, 1.1)(random);
    switch (random() % 8) {
      case 0:
        return gui::AxisSpan{};
      case 1:
        return gui::AxisSpan{std::nan(""), 1};
      case 2:
        return gui::AxisSpan{lo, lo};
      default:
        return gui::AxisSpan{lo, lo + width};
    }
  };
  return {span(), span()};
}

/// Every zoom of one axis with every zoom of the other; each zoom shows half of the one before.
inline std::vector<gui::Camera> zoom_grid(int halvings) {
  std::vector<gui::Camera> cameras;
  for (int x = 0; x < halvings; ++x)
    for (int y = 0; y < halvings; ++y)
      cameras.push_back({{0, std::exp2(-x)}, {0.5 - std::exp2(-y - 1), 0.5 + std::exp2(-y - 1)}});
  return cameras;
}

inline gui::Size random_size(std::mt19937_64& random) {
  std::uniform_real_distribution<float> width(1, 2000), height(1, 1200);
  return {width(random), height(random)};
}

}  // namespace cpscope::tests
