#pragma once

#include "gui/model/view.h"

#include <cmath>
#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

namespace cpscope::tests {

/// An input with a fixed font: every letter is 0.6 of the font size wide.
inline gui::ViewInput probe_input(const gui::PlanIndex& plan, const gui::Projection& nothing,
                                  gui::Size size) {
  gui::ViewInput input;
  input.plan = &plan;
  input.size = size;
  input.theme = &gui::theme_of(gui::ThemeName::dark);
  input.text_width = [](const std::string& text, float letter, gui::Face) {
    return 0.6F * letter * static_cast<float>(text.size());
  };
  input.selected = input.hovered = &nothing;
  return input;
}

inline const gui::HitRegion* find_hit(const gui::View& view, std::string_view name) {
  for (const gui::HitRegion& hit : view.hits)
    if (hit.name == name) return &hit;
  return nullptr;
}

inline bool has_text(const gui::View& view, std::string_view text) {
  for (const gui::Mark& mark : view.drawing.marks) {
    const auto* label = std::get_if<gui::Label>(&mark);
    if (label != nullptr && label->text.find(text) != std::string::npos) return true;
  }
  return false;
}

inline bool is_finite(const gui::Box& box) {
  return std::isfinite(box.x0) && std::isfinite(box.y0) && std::isfinite(box.x1) &&
         std::isfinite(box.y1);
}

inline bool is_finite(const gui::Mark& mark) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.box; }) {
          return is_finite(m.box);
        } else if constexpr (requires { m.at; }) {
          return std::isfinite(m.at.x) && std::isfinite(m.at.y);
        } else if constexpr (requires { m.from; }) {
          return is_finite(gui::Box{m.from.x, m.from.y, m.to.x, m.to.y});
        } else {
          return true;
        }
      },
      mark);
}

/// Checks a view: mark limit, finite coordinates, ASCII only, pictures with all their cells, closed
/// clips.
inline void expect_paintable(const gui::View& view) {
  EXPECT_LT(view.drawing.marks.size(), gui::kMostMarks);
  int clips = 0;
  for (const gui::Mark& mark : view.drawing.marks) {
    EXPECT_TRUE(is_finite(mark)) << "mark of kind " << mark.index();
    if (const auto* pixels = std::get_if<gui::Pixels>(&mark)) {
      EXPECT_EQ(static_cast<int64_t>(pixels->colors.size()),
                int64_t{pixels->width} * pixels->height);
    }
    if (const auto* label = std::get_if<gui::Label>(&mark)) {
      for (const char c : label->text) EXPECT_TRUE(c >= ' ' && c <= '~') << label->text;
    }
    clips += std::holds_alternative<gui::PushClip>(mark) ? 1 : 0;
    clips -= std::holds_alternative<gui::PopClip>(mark) ? 1 : 0;
    EXPECT_GE(clips, 0);
  }
  EXPECT_EQ(clips, 0);
  for (const gui::HitRegion& hit : view.hits) EXPECT_TRUE(is_finite(hit.box)) << hit.name;
}

}  // namespace cpscope::tests
