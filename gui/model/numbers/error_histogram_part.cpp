#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/numbers/error_parts.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr int32_t kBins = ErrorHistogram::kDecades * ErrorHistogram::kBinsPerDecade;

/// Decades [first, end) of the x axis: those with rows, and the one of the budget.
struct Decades {
  int32_t first = 0, end = 1;
};

Decades choose_decades(const ShownErrors& shown) {
  Decades decades{static_cast<int32_t>(std::floor(shown.scale.lo())),
                  static_cast<int32_t>(std::ceil(shown.scale.hi()))};
  const ErrorHistogram& histogram = shown.field.histogram;
  for (int32_t bin = 0; bin < kBins; ++bin) {
    if (histogram.bins[static_cast<size_t>(bin)] == 0) continue;
    const int32_t decade = ErrorHistogram::kFirstDecade + bin / ErrorHistogram::kBinsPerDecade;
    decades.first = std::min(decades.first, decade);
    decades.end = std::max(decades.end, decade + 1);
  }
  const double mark = shown.field.has_row_budgets() ? 1.0 : shown.field.budget;
  if (mark > 0 && std::isfinite(mark)) {
    const auto decade = static_cast<int32_t>(std::floor(std::log10(mark) + 1e-9));
    decades.first = std::max(std::min(decades.first, decade), ErrorHistogram::kFirstDecade);
    // The budget's line is inside the axis, not at its end.
    decades.end = std::min(std::max(decades.end, decade + 1),
                           ErrorHistogram::kFirstDecade + ErrorHistogram::kDecades);
  }
  return decades;
}

/// Bars on a logarithmic scale of rows: a single row is visible next to millions.
class HistogramBars {
 public:
  HistogramBars(const ShownErrors& shown, Box box, int64_t most, View& view)
      : shown_(shown), box_(box), most_(most), view_(view) {}

  float height_of(int64_t count) const {
    if (count == 0) return 0;
    const double share = std::log10(1.0 + static_cast<double>(count)) /
                         std::log10(1.0 + static_cast<double>(std::max<int64_t>(1, most_)));
    return std::max(3.0F, static_cast<float>(share) * box_.height());
  }

  void add(float x0, float x1, int64_t count, Color color, bool is_over, std::string name,
           std::string tooltip) {
    if (count == 0) return;
    const Theme& theme = *shown_.input.theme;
    const Box bar{x0, box_.y1 - height_of(count), x1, box_.y1};
    view_.drawing.add(FilledBox{bar, color, is_over ? Hatch::cross : Hatch::none,
                                theme.text_on(color).with_alpha(110)});
    view_.drawing.add(OutlinedBox{bar, theme.of(Role::grid), 1});
    view_.hits.push_back(
        {{x0, box_.y0, x1, box_.y1}, Nothing{}, std::move(name), std::move(tooltip)});
  }

 private:
  const ShownErrors& shown_;
  Box box_;
  int64_t most_;
  View& view_;
};

int64_t most_rows(const ErrorHistogram& histogram) {
  return std::max({*std::max_element(histogram.bins.begin(), histogram.bins.end()), histogram.exact,
                   histogram.broken, int64_t{1}});
}

void add_counts(const ShownErrors& shown, const Box& plot, int64_t most, View& view) {
  const Theme& theme = *shown.input.theme;
  float last = 1e9F;
  for (int64_t count = 1; count <= most; count *= 10) {
    const double share =
        std::log10(1.0 + static_cast<double>(count)) / std::log10(1.0 + static_cast<double>(most));
    const float y = plot.y1 - static_cast<float>(share) * plot.height();
    if (last - y < 13 && last < 1e8F) continue;
    last = y;
    view.drawing.add(Line{{plot.x0, y}, {plot.x1, y}, theme.of(Role::grid).with_alpha(90), 1});
    view.drawing.add(Label{{plot.x0 - 4, y},
                           Anchor::right_middle,
                           theme.of(Role::faint_text),
                           kSmallText,
                           Face::mono,
                           print_short_count(count)});
  }
}

void add_budget_line(const ShownErrors& shown, const Box& plot, float x, View& view) {
  const Theme& theme = *shown.input.theme;
  const Color color = theme.of(Role::error);
  view.drawing.add(Line{{x, plot.y0 - 3}, {x, plot.y1}, color, 2, true});
  const std::string text = shown.field.has_row_budgets() ? "budget" : "budget of the tensor";
  const float width = shown.input.text_width(text, kSmallText, Face::strong);
  const bool is_left = x + 4 + width > plot.x1;
  view.drawing.add(Label{{is_left ? x - 4 : x + 4, plot.y0 - 5},
                         is_left ? Anchor::right_middle : Anchor::left_middle,
                         color,
                         kSmallText,
                         Face::strong,
                         text});
}

}  // namespace

void add_error_histogram(const ShownErrors& shown, const Box& box, View& view) {
  const Theme& theme = *shown.input.theme;
  const ErrorField& field = shown.field;
  const ErrorHistogram& histogram = field.histogram;
  add_text(shown.input, view, {box.x0, box.y0}, box.width(),
           fmt::format("{}, {} exact, {} over", count_text(histogram.compared(), "row"),
                       print_count(histogram.exact), print_count(field.rows_over)),
           Role::text, 12);
  const Decades decades = choose_decades(shown);
  constexpr float kCounts = 40, kSide = 36;
  const bool has_exact = histogram.exact > 0, has_broken = histogram.broken > 0;
  const Box plot{box.x0 + kCounts, box.y0 + 32, box.x1, box.y1 - 28};
  if (plot.height() < 12 || plot.width() < 80) return;
  const Box span{plot.x0 + (has_exact ? kSide : 0), plot.y0, plot.x1 - (has_broken ? kSide : 0),
                 plot.y1};
  const int64_t most = most_rows(histogram);
  add_counts(shown, plot, most, view);
  HistogramBars bars(shown, plot, most, view);
  const auto x_of = [&](double exponent) {
    return span.x0 + span.width() * static_cast<float>((exponent - decades.first) /
                                                       (decades.end - decades.first));
  };
  const auto under = [&](float x, const std::string& text, Role role, Face face) {
    view.drawing.add(
        Label{{x, plot.y1 + 3}, Anchor::center_top, theme.of(role), kSmallText, face, text});
  };
  if (has_exact) {
    bars.add(plot.x0 + 2, span.x0 - 6, histogram.exact, shown.scale.exact_color(), false,
             "bin/exact", count_text(histogram.exact, "row") + " without any error");
    under((plot.x0 + span.x0) / 2 - 2, "none", Role::faint_text, Face::body);
  }
  for (int32_t bin = 0; bin < kBins; ++bin) {
    const double lo = ErrorHistogram::begin_of(bin), hi = ErrorHistogram::begin_of(bin + 1);
    const bool is_over = field.is_over(lo * 1.0001);
    bars.add(x_of(std::log10(lo)) + 0.5F, x_of(std::log10(hi)) - 0.5F,
             histogram.bins[static_cast<size_t>(bin)],
             is_over ? theme.of(Role::error)
                     : shown.scale.color_of(static_cast<float>(std::sqrt(lo * hi))),
             is_over, fmt::format("bin/{}", bin),
             fmt::format("{} with {} to {} of the {}",
                         count_text(histogram.bins[static_cast<size_t>(bin)], "row"),
                         print_error_share(field, lo), print_error_share(field, hi),
                         field.has_row_budgets() ? "row's budget" : "typical row"));
  }
  if (has_broken) {
    bars.add(span.x1 + 6, plot.x1 - 2, histogram.broken, theme.of(Role::error), true, "bin/broken",
             count_text(histogram.broken, "row") + " with NaN or an infinite error");
    under((span.x1 + plot.x1) / 2 + 2, "NaN !", Role::error, Face::strong);
  }
  view.drawing.add(Line{{plot.x0, plot.y1}, {plot.x1, plot.y1}, theme.of(Role::grid), 1});
  float taken = has_exact ? span.x0 - 6 : -1e9F;
  for (int32_t d = decades.first; d <= decades.end; ++d) {
    const std::string text = print_tick(field, std::pow(10.0, d));
    const float width = shown.input.text_width(text, kSmallText, Face::mono), x = x_of(d);
    if (x - width / 2 < taken + 8 || x + width / 2 > (has_broken ? span.x1 : box.x1 + 4)) continue;
    taken = x + width / 2;
    under(x, text, Role::faint_text, Face::mono);
  }
  view.drawing.add(
      Label{{span.center().x, box.y1},
            Anchor::center_bottom,
            theme.of(Role::faint_text),
            kSmallText,
            Face::body,
            fit_text(shown.input.text_width,
                     field.has_row_budgets() ? "error / budget of the row" : "error / typical row",
                     kSmallText, Face::body, box.width())});
  const double mark = field.has_row_budgets() ? 1.0 : field.budget;
  if (mark > 0 && std::isfinite(mark)) add_budget_line(shown, plot, x_of(std::log10(mark)), view);
}

}  // namespace cpscope::gui
