#include "gui/model/axis.h"
#include "gui/model/numbers/error_heat.h"
#include "gui/model/numbers/error_parts.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kTokenRuler = 46;  // width of the token numbers
constexpr float kOwners = 30;      // width of the ranks next to the tokens
constexpr float kGutter = 14;      // width of the "!" of rows over budget
constexpr float kCaptions = 15;    // height of the captions of rulers
constexpr float kHeads = 15;       // height of the head numbers
constexpr float kHeatLegend = 50;
constexpr size_t kMostLit = 300;

struct HeatBoxes {
  Box ruler, owners, cells, gutter, heads, captions, legend;
};

HeatBoxes place_boxes(const Box& box) {
  const float top = box.y0 + kCaptions + kHeads, bottom = std::max(top + 1, box.y1 - kHeatLegend);
  const float left = box.x0 + kTokenRuler + kOwners, right = std::max(left + 1, box.x1 - kGutter);
  return {{box.x0, top, box.x0 + kTokenRuler, bottom},
          {box.x0 + kTokenRuler, top, left - 2, bottom},
          {left, top, right, bottom},
          {right, top, box.x1, bottom},
          {left, top - kHeads, right, top},
          {box.x0, box.y0, box.x1, box.y0 + kCaptions},
          {left, bottom + 8, right, box.y1}};
}

void add_head_numbers(const ShownErrors& shown, const Axis& heads, const HeatBoxes& boxes,
                      View& view) {
  const float wide =
      shown.input.text_width(print_count(shown.field.heads - 1), kSmallText, Face::mono) + 8;
  int64_t step = 1;
  for (const int64_t next : {2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000})
    if (static_cast<double>(step) * heads.pixels_per_unit() < wide) step = next;
  const auto lo = std::max<int64_t>(0, static_cast<int64_t>(std::floor(heads.lo())));
  const auto hi = std::min<int64_t>(shown.field.heads, static_cast<int64_t>(std::ceil(heads.hi())));
  for (int64_t head = (lo + step - 1) / step * step; head < hi; head += step) {
    const float x = heads.pixel_of(static_cast<double>(head) + 0.5);
    if (x < boxes.heads.x0 + 3 || x > boxes.heads.x1 - 3) continue;
    view.drawing.add(Label{{x, boxes.heads.center().y},
                           Anchor::center_middle,
                           shown.input.theme->of(Role::faint_text),
                           kSmallText,
                           Face::mono,
                           print_count(head)});
  }
}

/// Consecutive tokens of one rank, in pixels; rank -1: several ranks or none.
struct OwnerBand {
  float y0 = 0, y1 = 0;
  int32_t rank = -1;
};

std::vector<OwnerBand> fold_owners(const ShownErrors& shown, const Axis& tokens, const Box& box) {
  const PlanIndex& plan = *shown.input.plan;
  const auto total = static_cast<int64_t>(tokens.total());
  std::vector<OwnerBand> bands;
  const float lo = std::max(box.y0, tokens.pixel_of(0)),
              hi = std::min(box.y1, tokens.pixel_of(tokens.total()));
  const float step = std::max(1.0F, static_cast<float>(std::min(tokens.pixels_per_unit(), 64.0)));
  for (float y = lo; y < hi - 0.01F;) {
    // Below one pixel per token, advance by a pixel; otherwise to the end of the token.
    const auto token =
        std::clamp<int64_t>(static_cast<int64_t>(tokens.value_at(y + 0.01F)), 0, total - 1);
    const auto last = std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(tokens.value_at(std::min(hi, y + 1)))) - 1, token,
        total - 1);
    const float next = step > 1 ? std::min(hi, tokens.pixel_of(static_cast<double>(token + 1)))
                                : std::min(hi, y + 1);
    const int32_t rank = plan.owner(shown.side, token).rank;
    const bool is_mixed = step <= 1 && plan.owner(shown.side, last).rank != rank;
    const int32_t owner = is_mixed ? -1 : rank;
    if (!bands.empty() && bands.back().rank == owner)
      bands.back().y1 = next;
    else
      bands.push_back({y, next, owner});
    y = std::max(next, y + 0.5F);
  }
  return bands;
}

void add_heat_owners(const ShownErrors& shown, const Axis& tokens, const Box& box, View& view) {
  const Theme& theme = *shown.input.theme;
  const int32_t num_ranks = shown.input.plan->num_ranks();
  for (const OwnerBand& band : fold_owners(shown, tokens, box)) {
    const Color color =
        band.rank < 0 ? theme.of(Role::raised) : theme.of_rank(band.rank, num_ranks);
    const Box place{box.x0, band.y0, box.x1, band.y1};
    view.drawing.add(FilledBox{place, color});
    if (band.y1 - band.y0 < 12) continue;
    const std::string text = band.rank >= 0 ? fmt::format("{}", band.rank)
                             : shown.input.plan->are_heads_owned(shown.side) ? "all"
                                                                             : "mix";
    view.drawing.add(Label{place.center(), Anchor::center_middle, theme.text_on(color), kSmallText,
                           Face::mono, text});
    if (band.rank >= 0 && band.y1 - band.y0 > 14)
      view.drawing.add(Line{{place.x0, place.y1}, {place.x1, place.y1}, theme.of(Role::panel), 1});
  }
}

/// Adds bars next to the owners for tokens that the selection and the hovered target touch.
void add_lit_tokens(const ShownErrors& shown, const Axis& tokens, const Box& box, View& view) {
  const auto add = [&](const Projection& projection, Role role, float x) {
    float last = -1e9F;
    size_t count = 0;
    for (const TokenRange& range : projection.tokens(shown.side)) {
      const float y0 = std::max(box.y0, tokens.pixel_of(static_cast<double>(range.begin))),
                  y1 = std::min(box.y1, tokens.pixel_of(static_cast<double>(range.end)));
      if (y1 <= y0 || y1 <= last + 1 || ++count > kMostLit) continue;
      last = std::max(y1, y0 + 2);
      view.drawing.add(FilledBox{{x, y0, x + 3, last}, shown.input.theme->of(role)});
    }
  };
  add(*shown.input.selected, Role::selected, box.x1 - 3);
  add(*shown.input.hovered, Role::hovered, box.x1 - 7);
}

Box at_least(Box box, float pixels) {
  const Point center = box.center();
  const float x = std::max(box.width(), pixels) / 2, y = std::max(box.height(), pixels) / 2;
  return {center.x - x, center.y - y, center.x + x, center.y + y};
}

void add_flags(const ShownErrors& shown, const ErrorHeat& heat, View& view) {
  const Theme& theme = *shown.input.theme;
  const Color color = theme.of(Role::error);
  for (const FlaggedCell& flag : heat.flags) {
    const Box box = at_least(flag.box, 5);
    view.drawing.add(FilledBox{box, color,
                               box.width() >= 8 && box.height() >= 8 ? Hatch::cross : Hatch::none,
                               theme.text_on(color).with_alpha(110)});
  }
}

/// Adds "!" next to the rows of pixels with such cells.
void add_gutter(const ShownErrors& shown, const ErrorHeat& heat, const Box& gutter, View& view) {
  const Color color = shown.input.theme->of(Role::error);
  float last = -1e9F;
  for (const float height : heat.flagged_heights) {
    if (height < last + 12) continue;
    last = height;
    view.drawing.add(Label{{gutter.x0 + 4, keep_between(height, gutter.y0 + 6, gutter.y1 - 6)},
                           Anchor::left_middle,
                           color,
                           13,
                           Face::strong,
                           "!"});
  }
}

void add_selected_cell(const ShownErrors& shown, const Axis& heads, const Axis& tokens,
                       View& view) {
  const auto* row = std::get_if<RowTarget>(&shown.input.selection);
  if (row == nullptr || row->tensor != shown.tensor) return;
  const Box cell{heads.pixel_of(row->head), tokens.pixel_of(static_cast<double>(row->token)),
                 heads.pixel_of(row->head + 1),
                 tokens.pixel_of(static_cast<double>(row->token + 1))};
  view.drawing.add(OutlinedBox{at_least(cell, 9), shown.input.theme->of(Role::selected), 2});
}

/// Adds a swatch of the legend and its meaning; returns where the next one may begin.
float add_swatch(const ShownErrors& shown, View& view, float x, float y, float end, Color color,
                 Hatch hatch, const std::string& text) {
  const Theme& theme = *shown.input.theme;
  const float width = shown.input.text_width(text, kSmallText, Face::body);
  if (x + 16 + width > end) return x;
  view.drawing.add(
      FilledBox{{x, y, x + 11, y + 11}, color, hatch, theme.text_on(color).with_alpha(110)});
  view.drawing.add(OutlinedBox{{x, y, x + 11, y + 11}, theme.of(Role::grid), 1});
  view.drawing.add(Label{{x + 15, y + 5.5F},
                         Anchor::left_middle,
                         theme.of(Role::faint_text),
                         kSmallText,
                         Face::body,
                         text});
  return x + 15 + width + 12;
}

void add_heat_legend(const ShownErrors& shown, const Box& box, float left, View& view) {
  const Theme& theme = *shown.input.theme;
  const ErrorScale& scale = shown.scale;
  const ErrorField& field = shown.field;
  Pixels ramp{{box.x0, box.y0, box.x1, box.y0 + 9}, 128, 1, {}};
  for (int32_t i = 0; i < 128; ++i) ramp.colors.push_back(theme.of_quantity(i / 127.0));
  view.drawing.add(std::move(ramp));
  float taken = -1e9F;
  for (const double share : round_shares(scale.lo(), scale.hi())) {
    const float x = box.x0 + box.width() * static_cast<float>(scale.place_of(share));
    const std::string text = print_tick(field, share);
    const float width = shown.input.text_width(text, kSmallText, Face::mono);
    const float at = keep_between(x, box.x0 + width / 2, box.x1 - width / 2);
    if (at - width / 2 < taken + 8) continue;
    taken = at + width / 2;
    view.drawing.add(Line{{x, box.y0 + 9}, {x, box.y0 + 12}, theme.of(Role::grid), 1});
    view.drawing.add(Label{{at, box.y0 + 12},
                           Anchor::center_top,
                           theme.of(Role::faint_text),
                           kSmallText,
                           Face::mono,
                           text});
  }
  // The colour scale, then the cells outside of the scale.
  const float y = box.y0 + 25;
  const std::string unit = field.has_row_budgets() ? "error / budget of the row"
                           : shown.steps           ? "error / typical row of all steps"
                                                   : "error / typical row";
  float x = left;
  const float unit_width = shown.input.text_width(unit, kSmallText, Face::body);
  view.drawing.add(
      Label{{x, y + 5.5F},
            Anchor::left_middle,
            theme.of(Role::text),
            kSmallText,
            Face::body,
            fit_text(shown.input.text_width, unit, kSmallText, Face::body, box.x1 - x)});
  x += unit_width + 12;
  const float end = box.x1 + kGutter;
  const bool has_numberless = field.histogram.broken > 0;
  if (field.rows_over > 0)
    x = add_swatch(shown, view, x, y, end, theme.of(Role::error), Hatch::cross,
                   has_numberless && !field.has_row_budgets() ? "NaN !"
                   : has_numberless                           ? "over, NaN !"
                                                              : "over !");
  if (field.histogram.exact > 0)
    x = add_swatch(shown, view, x, y, end, scale.exact_color(), Hatch::none, "none");
  if (field.histogram.left_out > 0)
    add_swatch(shown, view, x, y, end, scale.left_out_color(), Hatch::none,
               shown.steps ? "not written in this step" : "not judged");
}

}  // namespace

void add_error_heat(const ShownErrors& shown, const Box& box, View& view) {
  const ViewInput& input = shown.input;
  const HeatBoxes boxes = place_boxes(box);
  const Axis heads(shown.field.heads, input.camera.x, boxes.cells.x0, boxes.cells.x1);
  const Axis tokens(static_cast<double>(shown.field.tokens), input.camera.y, boxes.cells.y0,
                    boxes.cells.y1);
  const ErrorHeat heat = fold_errors(shown.field, shown.scale, heads, tokens);
  const auto caption = [&](float x, Anchor anchor, const std::string& text) {
    view.drawing.add(Label{{x, boxes.captions.center().y},
                           anchor,
                           input.theme->of(Role::text),
                           kSmallText,
                           Face::body,
                           text});
  };
  const std::string token = shown.side == Side::q ? "query" : "key";
  caption(boxes.ruler.x0, Anchor::left_middle, token);
  caption(boxes.owners.center().x, Anchor::center_middle, "rank");
  caption(boxes.cells.center().x, Anchor::center_middle,
          shown.side == Side::q ? "query heads" : "key heads");
  add_head_numbers(shown, heads, boxes, view);
  view.drawing.add(PushClip{boxes.ruler});
  add_ruler(view.drawing, input, tokens, boxes.ruler, {.is_vertical = true, .prefix = {}});
  view.drawing.add(PopClip{});
  view.drawing.add(PushClip{boxes.owners});
  add_heat_owners(shown, tokens, boxes.owners, view);
  add_lit_tokens(shown, tokens, boxes.owners, view);
  view.drawing.add(PopClip{});
  view.drawing.add(FilledBox{boxes.cells, shown.scale.left_out_color()});
  view.drawing.add(PushClip{boxes.cells});
  if (heat.pixels.width > 0) view.drawing.add(heat.pixels);
  view.drawing.add(PopClip{});
  view.drawing.add(OutlinedBox{boxes.cells, input.theme->of(Role::grid), 1});
  view.drawing.add(PushClip{boxes.cells.inset(-2)});
  add_flags(shown, heat, view);
  add_selected_cell(shown, heads, tokens, view);
  view.drawing.add(PopClip{});
  add_gutter(shown, heat, boxes.gutter, view);
  add_heat_legend(shown, boxes.legend, box.x0, view);
  view.grids.push_back({boxes.cells, heads.lo(), heads.hi(), tokens.lo(), tokens.hi()});
  view.scale = print_scale(tokens.units_per_pixel(), "token");
}

}  // namespace cpscope::gui
