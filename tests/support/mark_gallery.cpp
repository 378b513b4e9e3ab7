#include "tests/support/mark_gallery.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

namespace cpscope::gui {
namespace {

struct Gallery {
  const Theme& theme;
  Drawing drawing;

  Color of(Role role) const { return theme.of(role); }
  void name(float x, float y, const std::string& text) {
    drawing.add(Label{{x, y}, Anchor::left_top, of(Role::faint_text), 12, Face::body, text});
  }
};

void add_boxes(Gallery& g) {
  g.name(16, 40, "Filled boxes and hatches");
  const std::pair<Role, Hatch> boxes[] = {{Role::compute, Hatch::none},
                                          {Role::transfer, Hatch::diagonal},
                                          {Role::error, Hatch::cross},
                                          {Role::padding, Hatch::dots}};
  float x = 16;
  for (const auto& [role, hatch] : boxes) {
    const Color ink = g.theme.text_on(g.of(role)).with_alpha(150);
    g.drawing.add(FilledBox{{x, 58, x + 70, 98}, g.of(role), hatch, ink, 0});
    g.drawing.add(FilledBox{{x, 106, x + 70, 136}, g.of(role), hatch, ink, 8});
    x += 78;
  }
  g.drawing.add(FilledBox{{16.2F, 142, 16.4F, 160}, g.of(Role::compute)});
  for (int32_t i = 0; i < 60; ++i) {
    const float left = 20 + static_cast<float>(i) * 4.3F;
    g.drawing.add(FilledBox{{left, 142, left + 2.15F, 160}, g.of(Role::merge)});
  }
}

void add_outlines(Gallery& g) {
  g.name(350, 40, "Outlines: 1, 2, dashed, round");
  float x = 350;
  for (int32_t i = 0; i < 5; ++i) {
    g.drawing.add(OutlinedBox{{x, 58, x + 66, 98},
                              g.of(i == 3 ? Role::related : Role::selected),
                              i == 0 ? 1.F : 2.F,
                              i == 2 || i == 3,
                              i == 4 ? 8.F : 0.F});
    x += 78;
  }
  g.drawing.add(OutlinedBox{{350, 106, 600, 136}, g.of(Role::wait), 1, true, 0});
  g.drawing.add(Label{{475, 121},
                      Anchor::center_middle,
                      g.of(Role::text),
                      13,
                      Face::body,
                      "waits 1.25 ms for rank 7"});
}

void add_lines(Gallery& g) {
  g.name(16, 172, "Lines, dashes, arrows");
  const Color ink = g.of(Role::text);
  for (int32_t i = 0; i < 9; ++i) {
    const float angle = static_cast<float>(i) * 0.3926991F;
    const Point middle{66, 250};
    g.drawing.add(Line{{middle.x + 12 * std::cos(angle), middle.y - 12 * std::sin(angle)},
                       {middle.x + 48 * std::cos(angle), middle.y - 48 * std::sin(angle)},
                       g.of(Role::accent),
                       1.F + static_cast<float>(i % 3),
                       false,
                       true});
  }
  g.drawing.add(Line{{130, 200}, {230, 200}, ink, 1});
  g.drawing.add(Line{{130, 210}, {230, 210}, ink, 2, true});
  g.drawing.add(Line{{130, 220}, {230, 240}, ink, 1});
  g.drawing.add(Line{{130, 235}, {230, 255}, ink, 1.5F, true});
  g.drawing.add(Line{{130, 270}, {230, 270}, ink, 1, false, true});
  g.drawing.add(Line{{130, 285}, {230, 285}, ink, 1, true, true});
  g.drawing.add(Line{{140, 292}, {140, 298}, ink, 1, false, true});
  g.drawing.add(Polygon{{{250, 200}, {290, 210}, {280, 250}, {245, 240}}, g.of(Role::query)});
  g.drawing.add(Polygon{{{250, 290}, {290, 290}, {270, 260}}, g.of(Role::key)});
}

void add_ribbons(Gallery& g) {
  g.name(310, 172, "Ribbons");
  const float tops[] = {310, 360, 410, 480, 481};
  const float ends[] = {430, 310, 480, 360, 540};
  const float widths[] = {46, 46, 40, 1, 30};
  for (int32_t i = 0; i < 5; ++i) {
    g.drawing.add(Ribbon{tops[i], tops[i] + widths[i], 192, ends[i], ends[i] + widths[i], 298,
                         g.theme.of_rank(i, 5).with_alpha(190)});
  }
}

void add_pixels(Gallery& g) {
  g.name(600, 172, "Cells");
  Pixels few{{600, 192, 660, 252}, 7, 7, {}};
  Pixels many{{670, 192, 734, 256}, 64, 64, {}};
  for (int32_t i = 0; i < 49; ++i) few.colors.push_back(g.theme.of_quantity(i / 48.0));
  for (int32_t y = 0; y < 64; ++y) {
    for (int32_t x = 0; x < 64; ++x) {
      const double share = (x - y) / 64.0;
      many.colors.push_back(x > 56 && y < 8 ? Color{0, 0, 0, 0} : g.theme.of_signed(share));
    }
  }
  g.drawing.add(std::move(few));
  g.drawing.add(std::move(many));
  g.name(600, 262, "Clips");
  g.drawing.add(PushClip{{600, 280, 734, 300}});
  g.drawing.add(PushClip{{620, 270, 700, 310}});
  g.drawing.add(FilledBox{{590, 270, 760, 320},
                          g.of(Role::mask_partial),
                          Hatch::diagonal,
                          g.theme.text_on(g.of(Role::mask_partial)).with_alpha(120),
                          0});
  g.drawing.add(PopClip{});
  g.drawing.add(Line{{590, 290}, {760, 290}, g.of(Role::text), 2});
  g.drawing.add(PopClip{});
}

void add_labels(Gallery& g) {
  g.name(16, 312, "Labels by anchor");
  for (int32_t i = 0; i < 9; ++i) {
    const Point at{60.F + static_cast<float>(i % 3) * 74, 344.F + static_cast<float>(i / 3) * 30};
    g.drawing.add(Line{{at.x - 30, at.y}, {at.x + 30, at.y}, g.of(Role::grid)});
    g.drawing.add(Line{{at.x, at.y - 10}, {at.x, at.y + 10}, g.of(Role::grid)});
    g.drawing.add(Label{at, static_cast<Anchor>(i), g.of(Role::text), 13, Face::body, "Hg 42"});
  }
  const std::pair<Face, float> faces[] = {{Face::body, 11},   {Face::body, 13},   {Face::body, 15},
                                          {Face::strong, 13}, {Face::strong, 18}, {Face::mono, 11},
                                          {Face::mono, 13}};
  float y = 330;
  for (const auto& [face, size] : faces) {
    g.drawing.add(Label{{310, y},
                        Anchor::left_top,
                        g.of(Role::text),
                        size,
                        face,
                        "Rank 2 sends 131072 tokens, 512 MiB"});
    y += size + 5;
  }
}

void add_roles(Gallery& g) {
  constexpr std::array<const char*, kRoleCount> kNames = {
      "background", "panel",     "raised",       "border",     "grid",    "text",
      "faint_text", "accent",    "compute",      "transfer",   "merge",   "wait",
      "error",      "mask_full", "mask_partial", "mask_empty", "padding", "query",
      "key",        "selected",  "hovered",      "related"};
  for (size_t i = 0; i < kRoleCount; ++i) {
    const auto column = static_cast<float>(i % 8), row = static_cast<float>(i / 8);
    const Box box{16 + column * 91, 460 + row * 24, 102 + column * 91, 480 + row * 24};
    const Color color = g.theme.colors[i];
    g.drawing.add(FilledBox{box, color, Hatch::none, {}, 3});
    g.drawing.add(Label{box.center(), Anchor::center_middle, g.theme.text_on(color), 12, Face::body,
                        kNames[i]});
  }
  for (int32_t i = 0; i < 64; ++i) {
    const float x = 16 + static_cast<float>(i) * 11.3F;
    const Box box{x, 536, x + 11.3F, 544};
    g.drawing.add(FilledBox{box, g.theme.of_quantity(i / 63.0)});
    g.drawing.add(FilledBox{{box.x0, 546, box.x1, 554}, g.theme.of_signed(i / 31.5 - 1)});
  }
}

Drawing draw_all_marks(const Theme& theme) {
  Gallery g{theme, {}};
  g.drawing.add(FilledBox{{8, 8, 752, 30}, theme.of(Role::raised), Hatch::none, {}, 4});
  g.drawing.add(Label{{16, 19},
                      Anchor::left_middle,
                      theme.of(Role::text),
                      15,
                      Face::strong,
                      "Every mark there is"});
  g.drawing.add(Label{{744, 19},
                      Anchor::right_middle,
                      theme.of(Role::faint_text),
                      13,
                      Face::mono,
                      "1 px = 552 tokens"});
  add_boxes(g);
  add_outlines(g);
  add_lines(g);
  add_ribbons(g);
  add_pixels(g);
  add_labels(g);
  add_roles(g);
  return std::move(g.drawing);
}

}  // namespace
}  // namespace cpscope::gui

namespace cpscope::tests {

gui::Drawing draw_mark_gallery(const gui::Theme& theme) { return gui::draw_all_marks(theme); }

}  // namespace cpscope::tests
