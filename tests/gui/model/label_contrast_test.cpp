// Every text of every view is readable on what is painted below it.
#include "gui/app/document/make_view.h"
#include "gui/model/legend.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/gui/model/view_probe.h"
#include "tests/support/color_difference.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::Color;
using gui::ViewKind;

/// The middle of a label's text, with letters of the fixed width of view_probe.h.
gui::Point middle_of(const gui::Label& label) {
  const float width = 0.6F * label.size * static_cast<float>(label.text.size());
  const auto anchor = static_cast<int>(label.anchor);
  const float right = static_cast<float>(anchor % 3), down = static_cast<float>(anchor / 3);
  return {label.at.x + width * (0.5F - right / 2), label.at.y + label.size * (0.5F - down / 2)};
}

Color over(Color top, Color below) {
  return gui::mix(below, top.with_alpha(255), static_cast<float>(top.a) / 255);
}

/// Paints what lies below a point and compares each label with it.
void expect_readable(const gui::View& view, const gui::Theme& theme, const std::string& what) {
  const auto& marks = view.drawing.marks;
  for (size_t n = 0; n < marks.size(); ++n) {
    const auto* label = std::get_if<gui::Label>(&marks[n]);
    if (label == nullptr || label->text.empty()) continue;
    const gui::Point at = middle_of(*label);
    Color below = theme.of(gui::Role::panel);
    bool is_picture = false;  // a label over a heat map has a plate, or is none of ours to judge
    for (size_t m = 0; m < n; ++m) {
      if (const auto* box = std::get_if<gui::FilledBox>(&marks[m]); box && box->box.contains(at)) {
        below = over(box->color, below);
        is_picture = is_picture && box->color.a < 255;
      } else if (const auto* cells = std::get_if<gui::Pixels>(&marks[m]);
                 cells && cells->box.contains(at)) {
        is_picture = true;
      }
    }
    if (is_picture) continue;
    EXPECT_GE(contrast_of(over(label->color, below), below), 4.5)
        << what << ": \"" << label->text << "\"";
  }
}

TEST(Labels, AreReadableInEveryThemeAndAtEveryMoment) {
  for (const char* name : {"zigzag", "thd_padding_p2p", "thd_padding_a2a"}) {
    const gui::SharedPlan plan = plan_shipped(name);
    const gui::Projection nothing;
    for (const gui::ThemeName theme : gui::kThemeNames) {
      for (const ViewKind kind : gui::kViewKinds) {
        for (const gui::Size size : {gui::Size{480, 300}, gui::Size{1100, 700}}) {
          for (size_t step = 0; step < plan->steps().size(); step += 3) {
            gui::ViewInput input = probe_input(*plan, nothing, size);
            input.theme = &gui::theme_of(theme);
            input.moment = plan->moment_of_step(static_cast<int32_t>(step));
            expect_readable(make_view(kind, input), *input.theme,
                            std::string(name) + ", " + std::string(to_name(theme)) + ", " +
                                std::string(to_name(kind)));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
