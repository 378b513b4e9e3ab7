#include "gui/model/balance/rank_chart.h"

#include "gui/model/light.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kRankChartTitle = 20;
constexpr float kValues = 54;  // width of the figures left of the bars
constexpr float kRanks = 32;   // height of the ruler below them
constexpr float kLeastRankBar = 2;
constexpr int64_t kMostColumns = 1500;

/// Ranks [first, end) that share one column of the chart.
struct RankColumn {
  float x0 = 0, x1 = 0;
  int64_t first = 0, end = 0;
};

std::vector<RankColumn> fold_ranks(const Axis& ranks) {
  const auto total = static_cast<int64_t>(ranks.total());
  const auto lo = std::clamp<int64_t>(static_cast<int64_t>(std::floor(ranks.lo())), 0, total),
             hi = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(ranks.hi())), 0, total);
  std::vector<RankColumn> columns;
  if (lo >= hi) return columns;
  // Each column has at least its minimum width, and there are no more columns than marks are
  // allowed.
  const double least = std::max(kLeastRankBar * ranks.units_per_pixel(),
                                static_cast<double>(hi - lo) / kMostColumns);
  const auto fold = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(least - 1e-9)));
  for (int64_t first = lo / fold * fold; first < hi; first += fold) {
    const int64_t end = std::min(first + fold, total);
    columns.push_back({ranks.pixel_of(static_cast<double>(first)),
                       ranks.pixel_of(static_cast<double>(end)), first, end});
  }
  return columns;
}

double value_step(double most, bool is_binary, float height) {
  const double least = std::max(most / std::max(1.0F, height / 34), 1.0);
  if (is_binary) return std::exp2(std::ceil(std::log2(least) - 1e-9));
  const double decade = std::pow(10.0, std::floor(std::log10(least) + 1e-9));
  for (const double factor : {1.0, 2.0, 5.0})
    if (decade * factor >= least * 0.999) return decade * factor;
  return decade * 10;
}

/// The chart inside its axes.
class RankBars {
 public:
  RankBars(const ViewInput& input, const RankChart& chart, const Box& plot, View& view)
      : input_(input),
        chart_(chart),
        plot_(plot),
        view_(view),
        ranks_(static_cast<double>(chart.forward.size()), input.camera.x, plot.x0, plot.x1) {
    for (size_t r = 0; r < chart.forward.size(); ++r) {
      const double value = total_of(static_cast<int64_t>(r));
      most_ = std::max(most_, value);
      mean_ += value / static_cast<double>(chart.forward.size());
    }
  }

  bool is_empty() const { return most_ <= 0; }

  void draw() {
    add_values();
    const Color color = input_.theme->of(chart_.role);
    const Color ink = input_.theme->text_on(color).with_alpha(90);
    view_.drawing.add(PushClip{{plot_.x0, plot_.y0 - 6, plot_.x1, plot_.y1 + 1}});
    for (const RankColumn& column : fold_ranks(ranks_)) {
      is_folded_ = is_folded_ || column.end - column.first > 1;
      add_column(column, color, ink);
    }
    view_.drawing.add(PopClip{});
    add_mean();
    view_.drawing.add(
        Line{{plot_.x0, plot_.y1}, {plot_.x1, plot_.y1}, input_.theme->of(Role::grid), 1});
    add_groups();
    add_ranks();
    view_.grids.push_back({plot_, ranks_.lo(), ranks_.hi(), value_at(plot_.y0), 0});
    view_.scale = print_scale(ranks_.units_per_pixel(), "rank");
  }

 private:
  double total_of(int64_t rank) const {
    return static_cast<double>(chart_.forward[static_cast<size_t>(rank)]) +
           static_cast<double>(chart_.backward[static_cast<size_t>(rank)]);
  }
  /// Leaves some space above the longest bar.
  double top() const { return most_ * 1.04; }
  float y_of(double value) const {
    return plot_.y1 - static_cast<float>(value / top()) * plot_.height();
  }
  double value_at(float y) const { return (plot_.y1 - y) / plot_.height() * top(); }

  void add_part(const RankColumn& column, double from, double to, Color color, Hatch hatch,
                Color ink) {
    if (to <= from) return;
    const float gap = column.x1 - column.x0 >= 6 ? 1.5F : 0;
    view_.drawing.add(
        FilledBox{{column.x0 + gap, y_of(to), column.x1 - gap, y_of(from)}, color, hatch, ink});
  }

  void add_column(const RankColumn& column, Color color, Color ink) {
    int64_t most = column.first, least = column.first;
    for (int64_t rank = column.first; rank < column.end; ++rank) {
      if (total_of(rank) > total_of(most)) most = rank;
      if (total_of(rank) < total_of(least)) least = rank;
    }
    const auto forward = static_cast<double>(chart_.forward[static_cast<size_t>(least)]);
    const bool is_hatched = column.end - column.first == 1;
    add_part(column, 0, forward, color, is_hatched ? chart_.hatch : Hatch::none, ink);
    // Backward is paler and dotted; the part that only some of the merged ranks have is palest.
    add_part(column, forward, total_of(least), color.with_alpha(150),
             is_hatched ? Hatch::dots : Hatch::none, ink);
    add_part(column, total_of(least), total_of(most), color.with_alpha(70), Hatch::none, ink);
    const Light light = light_of_rank(input_, static_cast<int32_t>(most));
    const Box whole{column.x0, std::min(y_of(total_of(most)), plot_.y1 - 3), column.x1, plot_.y1};
    if (light != Light::none && column.end - column.first == 1) {
      const Role role = light == Light::hovered    ? Role::hovered
                        : light == Light::selected ? Role::selected
                                                   : Role::related;
      view_.drawing.add(
          OutlinedBox{whole, input_.theme->of(role), light == Light::selected ? 2.0F : 1.0F});
    }
    std::string tip =
        fmt::format("rank {}: {} {} forward", most,
                    print_count(chart_.forward[static_cast<size_t>(most)]), chart_.unit);
    if (chart_.backward[static_cast<size_t>(most)] > 0)
      tip += fmt::format(", {} backward", print_count(chart_.backward[static_cast<size_t>(most)]));
    tip += fmt::format("; {:.4f} of the mean", mean_ > 0 ? total_of(most) / mean_ : 0.0);
    if (column.end - column.first > 1)
      tip = fmt::format("ranks {} to {}, the most at {}", column.first, column.end - 1, tip);
    const Box target{std::max(column.x0, plot_.x0), plot_.y0, std::min(column.x1, plot_.x1),
                     plot_.y1};
    if (target.x1 > target.x0)
      view_.hits.push_back({target, RankTarget{static_cast<int32_t>(most)},
                            fmt::format("{}/{}", chart_.hit, most), std::move(tip)});
  }

  void add_values() {
    const Theme& theme = *input_.theme;
    const double step = value_step(top(), chart_.is_binary, plot_.height());
    for (double value = 0; value <= top() && value < 100 * step; value += step) {
      const float y = y_of(value);
      if (value > 0)
        view_.drawing.add(
            Line{{plot_.x0, y}, {plot_.x1, y}, theme.of(Role::grid).with_alpha(90), 1});
      if (y < plot_.y0 + 2 && value > 0) continue;
      view_.drawing.add(Label{{plot_.x0 - 5, y},
                              Anchor::right_middle,
                              theme.of(Role::faint_text),
                              kSmallText,
                              Face::mono,
                              chart_.print(value)});
    }
  }

  void add_mean() {
    const Theme& theme = *input_.theme;
    const float y = y_of(mean_);
    const float width = input_.text_width(chart_.mean_name, kSmallText, Face::strong) + 8;
    const Box tag{plot_.x1 - width, y - 15, plot_.x1, y - 1};
    view_.drawing.add(Line{{plot_.x0, y}, {plot_.x1, y}, theme.of(Role::text), 1.5F, true});
    view_.drawing.add(FilledBox{tag, theme.of(Role::panel).with_alpha(215), Hatch::none, {}, 2});
    view_.drawing.add(Label{tag.center(), Anchor::center_middle, theme.of(Role::text), kSmallText,
                            Face::strong, chart_.mean_name});
  }

  /// Adds a line under the bars of each group, with a gap to the next one.
  void add_groups() {
    const Color color = input_.theme->of(Role::transfer);
    view_.drawing.add(PushClip{{plot_.x0, plot_.y1, plot_.x1, plot_.y1 + 4}});
    for (const auto& [first, end] : chart_.groups) {
      const float x0 = ranks_.pixel_of(static_cast<double>(first)),
                  x1 = ranks_.pixel_of(static_cast<double>(end));
      if (x1 <= plot_.x0 || x0 >= plot_.x1 || x1 - x0 < 3) continue;
      const float gap = std::min(3.0F, (x1 - x0) * 0.15F);
      view_.drawing.add(FilledBox{{x0 + gap, plot_.y1 + 1, x1 - gap, plot_.y1 + 4}, color});
    }
    view_.drawing.add(PopClip{});
  }

  /// Adds numbers under the middle of their bars.
  void add_ranks() {
    const Theme& theme = *input_.theme;
    const auto total = static_cast<int64_t>(ranks_.total());
    const float wide = input_.text_width(print_count(total - 1), kSmallText, Face::mono) + 10;
    int64_t step = 1;
    for (const int64_t next : {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384})
      if (static_cast<double>(step) * ranks_.pixels_per_unit() < wide) step = next;
    const auto lo = std::max<int64_t>(0, static_cast<int64_t>(std::ceil(ranks_.lo() - 0.5)));
    for (int64_t rank = (lo + step - 1) / step * step; rank < total; rank += step) {
      const float x = ranks_.pixel_of(static_cast<double>(rank) + 0.5);
      if (x > plot_.x1) break;
      view_.drawing.add(Label{{x, plot_.y1 + (chart_.groups.empty() ? 3 : 6)},
                              Anchor::center_top,
                              theme.of(Role::faint_text),
                              kSmallText,
                              Face::mono,
                              print_count(rank)});
    }
    view_.drawing.add(Label{{plot_.x1, plot_.y1 + kRanks - 1},
                            Anchor::right_bottom,
                            theme.of(Role::faint_text),
                            kSmallText,
                            Face::body,
                            "rank"});
    float x = plot_.x0;
    const bool has_backward = std::any_of(chart_.backward.begin(), chart_.backward.end(),
                                          [](int64_t v) { return v > 0; });
    x = add_swatch(x, theme.of(chart_.role), chart_.hatch, "forward");
    if (has_backward)
      x = add_swatch(x, theme.of(chart_.role).with_alpha(150), Hatch::dots, "backward");
    if (is_folded_)
      x = add_swatch(x, theme.of(chart_.role).with_alpha(70), Hatch::none, "least to most");
    if (!chart_.groups.empty())
      add_swatch(x, theme.of(Role::transfer), Hatch::none, "line: ranks that work together now");
  }

  float add_swatch(float x, Color color, Hatch hatch, const std::string& text) {
    const Theme& theme = *input_.theme;
    const Box box{x, plot_.y1 + kRanks - 11, x + 10, plot_.y1 + kRanks - 1};
    const float width = input_.text_width(text, kSmallText, Face::body);
    if (box.x1 + 4 + width > plot_.x1 - 34) return x;
    view_.drawing.add(
        FilledBox{box, color, hatch, theme.text_on(theme.of(chart_.role)).with_alpha(90)});
    view_.drawing.add(OutlinedBox{box, theme.of(Role::grid), 1});
    view_.drawing.add(Label{{box.x1 + 4, box.center().y},
                            Anchor::left_middle,
                            theme.of(Role::faint_text),
                            kSmallText,
                            Face::body,
                            text});
    return box.x1 + 4 + width + 12;
  }

  const ViewInput& input_;
  const RankChart& chart_;
  const Box plot_;
  View& view_;
  const Axis ranks_;
  double most_ = 0, mean_ = 0;
  bool is_folded_ = false;
};

}  // namespace

std::string print_quantity(double value) {
  static constexpr const char* kUnits[] = {"", " k", " M", " G", " T", " P", " E"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  std::string text = fmt::format("{:.{}f}", value,
                                 std::abs(value) < 9.995   ? 2
                                 : std::abs(value) < 99.95 ? 1
                                                           : 0);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text + kUnits[unit];
}

void add_rank_chart(const ViewInput& input, const RankChart& chart, const Box& box, View& view) {
  const Theme& theme = *input.theme;
  view.drawing.add(Label{{box.x0, box.y0},
                         Anchor::left_top,
                         theme.of(Role::text),
                         12,
                         Face::strong,
                         fit_text(input.text_width, chart.title, 12, Face::strong, box.width())});
  const Box plot{box.x0 + kValues, box.y0 + kRankChartTitle + 8, box.x1, box.y1 - kRanks};
  if (plot.width() < 20 || plot.height() < 20) return;
  view.scaled.push_back(plot);
  RankBars bars(input, chart, plot, view);
  if (bars.is_empty()) {
    view.drawing.add(Label{{plot.center().x, plot.center().y},
                           Anchor::center_middle,
                           theme.of(Role::faint_text),
                           12,
                           Face::body,
                           fit_text(input.text_width, chart.empty, 12, Face::body, box.width())});
    return;
  }
  bars.draw();
}

}  // namespace cpscope::gui
