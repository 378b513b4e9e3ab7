#include "gui/model/axis.h"
#include "gui/model/numbers/error_parts.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kBarsTitle = 15, kBarsRuler = 14;
constexpr float kNarrowestBar = 3;  // pixels; narrower bars share one, which shows the largest

/// Kernels split and merge the rows of a part in their own ways, so that it may use more than the
/// whole: as grades of ranks and heads, 1.25 times.
constexpr double kRoomOfParts = 1.25;

std::string print_part(double share) { return std::isfinite(share) ? print_share(share) : "all"; }

/// The scale of one chart: a bar for each rank or head, the tolerance as a line.
struct Chart {
  Box area;
  float width = 0;    // of a bar
  int64_t fold = 1;   // ranks or heads that share a bar
  int64_t cells = 0;  // bars
  double top = 1;     // share at the upper edge

  Box cell(int64_t number) const {
    const float x = area.x0 + width * static_cast<float>(number);
    return {x, area.y0, x + width, area.y1};
  }
};

Chart lay_out(const DistanceBars& bars, const Box& area) {
  const auto count = static_cast<int64_t>(bars.shares.size());
  const auto most = std::max<int64_t>(1, static_cast<int64_t>(area.width() / kNarrowestBar));
  Chart chart{.area = area};
  chart.fold = (count + most - 1) / most;
  chart.cells = (count + chart.fold - 1) / chart.fold;
  chart.width = std::min(48.0F, area.width() / static_cast<float>(chart.cells));
  const double largest = *std::max_element(bars.shares.begin(), bars.shares.end());
  chart.top = std::isfinite(largest) ? std::max(1.0, largest) : 1.0;
  return chart;
}

void add_part_bar(const ViewInput& input, const Chart& chart, const Box& cell, int64_t part,
                  double share, View& view) {
  const Theme& theme = *input.theme;
  const bool is_over = share > kRoomOfParts;
  const auto height = static_cast<float>(std::min(1.0, share / chart.top)) * cell.height();
  const Color color = theme.of(is_over ? Role::error : Role::compute);
  if (share > 0) {
    view.drawing.add(
        FilledBox{{cell.x0 + 1, cell.y1 - std::max(2.0F, height), cell.x1 - 1, cell.y1},
                  color,
                  is_over ? Hatch::cross : Hatch::none,
                  theme.text_on(color).with_alpha(110)});
  }
  const auto add_label = [&](const std::string& text, float y, Anchor anchor, Color ink) {
    if (input.text_width(text, kSmallText, Face::mono) + 4 <= cell.width())
      view.drawing.add(Label{{cell.center().x, y}, anchor, ink, kSmallText, Face::mono, text});
  };
  const bool is_inside = height > cell.height() - 14;
  add_label(print_part(share), cell.y1 - height + (is_inside ? 8.0F : -7.0F), Anchor::center_middle,
            is_inside ? theme.text_on(color) : theme.of(Role::text));
  add_label(print_count(part), cell.y1 + 2, Anchor::center_top, theme.of(Role::faint_text));
}

void add_chart(const ViewInput& input, const DistanceBars& bars, size_t number, const Box& box,
               View& view) {
  add_text(input, view, {box.x0, box.y0}, box.width(), bars.noun + "s of " + bars.title,
           Role::faint_text, kSmallText);
  if (bars.shares.empty()) return;
  const Chart chart = lay_out(bars, {box.x0, box.y0 + kBarsTitle, box.x1, box.y1 - kBarsRuler});
  const float right = chart.cell(chart.cells).x0;
  view.drawing.add(FilledBox{{chart.area.x0, chart.area.y0, right, chart.area.y1},
                             input.theme->of(Role::background)});
  for (int64_t cell = 0; cell < chart.cells; ++cell) {
    const auto first = bars.shares.begin() + cell * chart.fold;
    const auto end =
        bars.shares.end() - first > chart.fold ? first + chart.fold : bars.shares.end();
    const auto worst = std::max_element(first, end);
    const int64_t part = worst - bars.shares.begin();
    add_part_bar(input, chart, chart.cell(cell), part, *worst, view);
    const Target target =
        bars.are_shown_ranks ? Target(RankTarget{static_cast<int32_t>(part)}) : Target(Nothing{});
    view.hits.push_back(
        {chart.cell(cell), target, fmt::format("part/{}/{}", number, part),
         fmt::format("{} {} of {}: the difference is {} of what the budgets of both runs explain{}",
                     bars.noun, part, bars.title, print_part(*worst),
                     end - first > 1
                         ? fmt::format("; the largest of {} that share this bar", end - first)
                         : "")});
  }
  const float line = chart.area.y1 - chart.area.height() / static_cast<float>(chart.top);
  view.drawing.add(
      Line{{chart.area.x0, line}, {right, line}, input.theme->of(Role::text), 1, true});
}

}  // namespace

float add_distance_bars(const ShownErrors& shown, const Box& box, View& view) {
  constexpr float kHeight = 66, kBetween = 14, kLeast = 130;
  const std::vector<DistanceBars>& parts = shown.field.parts;
  if (parts.empty() || box.height() < 2 * kHeight) return 0;
  const auto fitting = std::clamp<size_t>(
      static_cast<size_t>((box.width() + kBetween) / (kLeast + kBetween)), 1, parts.size());
  const float width =
      (box.width() - kBetween * static_cast<float>(fitting - 1)) / static_cast<float>(fitting);
  for (size_t n = 0; n < fitting; ++n) {
    const float x = box.x0 + static_cast<float>(n) * (width + kBetween);
    add_chart(shown.input, parts[n], n, {x, box.y0, x + width, box.y0 + kHeight}, view);
  }
  return kHeight + 4;
}

}  // namespace cpscope::gui
