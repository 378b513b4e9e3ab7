#include "gui/model/ways/comparison_chart.h"

#include "gui/model/axis.h"
#include "gui/model/ways/ratio_axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kChartMargin = 18;
constexpr float kLeft = 78;
constexpr float kTop = 78;
constexpr float kChartLegend = 200;
constexpr float kFoot = 108;
// Margins of a chart next to other panels in a window.
constexpr float kBareLeft = 62, kBareTop = 22, kBareRight = 14, kBareFoot = 42, kLegendLine = 18;
constexpr float kReach = 7;  // half the width of a point's mouse region
constexpr float kChartText = 12;
constexpr float kRadius = 5;

constexpr std::array<CommType, 5> kCommTypes = {CommType::p2p, CommType::a2a, CommType::all_gather,
                                                CommType::a2a_p2p, CommType::group_cast};

/// The types in the legend: those that every comparison has, and others of its candidates.
std::vector<CommType> types_of(const Candidates& comparison) {
  std::vector<CommType> types(kCommTypes.begin(), kCommTypes.end());
  for (const Candidate& candidate : comparison.candidates) {
    if (std::find(types.begin(), types.end(), candidate.parallel.comm_type) == types.end())
      types.push_back(candidate.parallel.comm_type);
  }
  return types;
}

/// The colour blended with the background; unlike a transparent colour, it stays the same when
/// several overlap.
Color veil(Color color, Color background) {
  const auto mix = [](uint8_t a, uint8_t b) {
    return static_cast<uint8_t>((a * 35 + b * 65) / 100);
  };
  return {mix(color.r, background.r), mix(color.g, background.g), mix(color.b, background.b)};
}

Polygon ring_of(Point at, float radius, int corners, double turn, Color color) {
  Polygon polygon{{}, color};
  for (int i = 0; i < corners; ++i) {
    const double angle = turn + 2 * 3.14159265358979 * i / corners;
    polygon.points.push_back({at.x + radius * static_cast<float>(std::cos(angle)),
                              at.y + radius * static_cast<float>(std::sin(angle))});
  }
  return polygon;
}

/// One shape per communication type, so that colours alone need not be distinguished.
Polygon symbol_of(CommType type, Point at, float radius, Color color) {
  constexpr double kUp = -3.14159265358979 / 2;
  switch (type) {
    case CommType::p2p:
      return ring_of(at, radius * 1.2F, 4, kUp / 2, color);
    case CommType::a2a:
      return ring_of(at, radius, 16, kUp, color);
    case CommType::all_gather:
      return ring_of(at, radius * 1.3F, 3, kUp, color);
    case CommType::a2a_p2p:
      return ring_of(at, radius * 1.3F, 4, kUp, color);
    case CommType::group_cast:
      return ring_of(at, radius * 1.3F, 3, -kUp, color);
    case CommType::pass_q:
      return ring_of(at, radius * 1.2F, 5, kUp, color);
    case CommType::token_ring:
      return ring_of(at, radius * 1.2F, 5, -kUp, color);
    case CommType::helper_ring:
      return ring_of(at, radius * 1.2F, 6, kUp, color);
    case CommType::mesh:
      return ring_of(at, radius * 1.2F, 6, 0, color);
    case CommType::gather_q:
      return ring_of(at, radius * 1.3F, 3, 0, color);
    case CommType::double_ring:
    case CommType::a2a_double_ring:
      return ring_of(at, radius * 1.2F, 7, kUp, color);
    case CommType::custom:
      return ring_of(at, radius * 1.2F, 8, kUp, color);
  }
  return ring_of(at, radius, 16, kUp, color);
}

Role role_of(CommType type) {
  switch (type) {
    case CommType::p2p:
    case CommType::double_ring:
      return Role::transfer;
    case CommType::a2a:
      return Role::compute;
    case CommType::all_gather:
      return Role::key;
    case CommType::a2a_p2p:
    case CommType::a2a_double_ring:
      return Role::accent;
    case CommType::group_cast:
      return Role::query;
    case CommType::pass_q:
    case CommType::token_ring:
    case CommType::helper_ring:
    case CommType::mesh:
    case CommType::gather_q:
    case CommType::custom:
      return Role::merge;
  }
  return Role::text;
}

void add_cross(Drawing& drawing, const Theme& theme, Point at) {
  const Color cross = theme.of(Role::error);
  drawing.add(Line{{at.x - 5, at.y - 5}, {at.x + 5, at.y + 5}, cross, 1.5F});
  drawing.add(Line{{at.x - 5, at.y + 5}, {at.x + 5, at.y - 5}, cross, 1.5F});
}

constexpr const char* kFrontWords = "Pareto front";
constexpr const char* kBeatenWords = "dominated (not on the front)";
constexpr const char* kCrossedWords = "too large, or much padding";

/// The unit of bytes, the same as in the list of ways next to the chart.
struct ByteUnit {
  double bytes = 1;
  const char* name = "B";
};

/// The largest unit that is at most the geometric middle of the range.
ByteUnit unit_between(double least, double most) {
  const double middle = std::sqrt(least * most);
  for (const ByteUnit unit : {ByteUnit{1024.0 * 1024 * 1024, "GiB"}, ByteUnit{1024.0 * 1024, "MiB"},
                              ByteUnit{1024.0, "KiB"}})
    if (middle >= unit.bytes) return unit;
  return {};
}

/// Draws all parts of the chart.
class Chart {
 public:
  explicit Chart(const ComparisonChart& chart)
      : chart_(chart),
        theme_(*chart.theme),
        back_(theme_.of(chart.is_bare ? Role::panel : Role::background)),
        plot_(plot_of(chart)),
        unit_(unit_between(least(bytes_of), most(bytes_of))),
        x_(least(bytes_of) / unit_.bytes, most(bytes_of) / unit_.bytes, plot_.x0, plot_.x1),
        y_(least(us_of), most(us_of), plot_.y1, plot_.y0) {}

  CandidateView draw() {
    if (!chart_.is_bare) add_heading();
    add_scales();
    // Points that are not on the front are drawn first, so that they hide nothing.
    const std::vector<Candidate>& candidates = chart_.comparison->candidates;
    for (const bool is_front : {false, true}) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        if (candidates[i].refusal.empty() && candidates[i].is_pareto == is_front)
          add_point(static_cast<int64_t>(i));
      }
    }
    name_points();
    if (chart_.is_bare) {
      add_legend_lines();
    } else {
      add_legend();
      add_recommendation();
    }
    made_.view.drawing = std::move(drawing_);
    return std::move(made_);
  }

 private:
  static Box plot_of(const ComparisonChart& chart) {
    const Size size = chart.size;
    if (!chart.is_bare)
      return {kLeft, kTop, std::max(kLeft + 40, size.width - kChartLegend),
              std::max(kTop + 40, size.height - kFoot)};
    const auto lines = static_cast<float>(cut_legend(chart).size());
    return {kBareLeft, kBareTop, std::max(kBareLeft + 40, size.width - kBareRight),
            std::max(kBareTop + 40, size.height - kBareFoot - kLegendLine * lines)};
  }

  /// One entry of a legend: a type's shape, or the meaning of a look.
  struct Entry {
    CommType type = CommType::a2a;
    bool is_type = false, is_faint = false, is_crossed = false;
    std::string text;
    float x = 0;
  };

  /// The legend, broken into lines as wide as the chart.
  static std::vector<std::vector<Entry>> cut_legend(const ComparisonChart& chart) {
    std::vector<Entry> entries;
    for (const CommType type : types_of(*chart.comparison))
      entries.push_back({type, true, false, false, std::string(to_name(type)), 0});
    entries.push_back({CommType::a2a, false, false, false, kFrontWords, 0});
    entries.push_back({CommType::a2a, false, true, false, kBeatenWords, 0});
    entries.push_back({CommType::a2a, false, true, true, kCrossedWords, 0});
    std::vector<std::vector<Entry>> lines(1);
    float x = kChartMargin;
    for (Entry& entry : entries) {
      const float width = 12 + chart.text_width(entry.text, kChartText, Face::body) + 16;
      if (!lines.back().empty() && x + width > chart.size.width) {
        lines.emplace_back();
        x = kChartMargin;
      }
      entry.x = x;
      x += width;
      lines.back().push_back(std::move(entry));
    }
    return lines;
  }

  static double bytes_of(const Candidate& candidate) {
    return static_cast<double>(candidate.bytes_sent);
  }
  static double us_of(const Candidate& candidate) { return candidate.total_us(); }

  template <class Figure>
  double least(const Figure& figure) const {
    double value = 0;
    for (const Candidate& candidate : chart_.comparison->candidates) {
      const double one = candidate.refusal.empty() ? figure(candidate) : 0.0;
      if (one > 0) value = value > 0 ? std::min(value, one) : one;
    }
    return value;
  }
  template <class Figure>
  double most(const Figure& figure) const {
    double value = 0;
    for (const Candidate& candidate : chart_.comparison->candidates)
      value = candidate.refusal.empty() ? std::max(value, figure(candidate)) : value;
    return value;
  }

  Point place_of(const Candidate& candidate) const {
    return {x_.pixel_of(bytes_of(candidate) / unit_.bytes), y_.pixel_of(us_of(candidate))};
  }

  void add_label(Point at, Anchor anchor, Role role, Face face, float size, std::string text) {
    drawing_.add(Label{at, anchor, theme_.of(role), size, face, std::move(text)});
  }

  void add_heading() {
    const Candidates& comparison = *chart_.comparison;
    const float room = chart_.size.width - 2 * kChartMargin;
    const std::string title =
        chart_.title.empty() ? "Ways to split one batch" : "Ways to split: " + chart_.title;
    add_label({kChartMargin, 14}, Anchor::left_top, Role::text, Face::strong, 16,
              fit_text(chart_.text_width, title, 16, Face::strong, room));
    add_label(
        {kChartMargin, 36}, Anchor::left_top, Role::faint_text, Face::body, kChartText,
        fit_text(chart_.text_width,
                 fmt::format("{} ways on {}, stack {}: predicted, not measured",
                             comparison.candidates.size(), comparison.cluster, comparison.stack),
                 kChartText, Face::body, room));
  }

  /// Adds numbers with the distance that they need. Points without sent bytes are at the edge.
  void add_bytes_scale() {
    float free_from = 0;
    const auto add_number = [&](float x, const std::string& text) {
      const float half = chart_.text_width(text, 11, Face::mono) / 2;
      if (x - half < free_from || x + half > chart_.size.width) return;
      free_from = x + half + 8;
      add_label({x, plot_.y1 + 4}, Anchor::center_top, Role::faint_text, Face::mono, 11, text);
    };
    const std::vector<Candidate>& all = chart_.comparison->candidates;
    if (std::any_of(all.begin(), all.end(), [](const Candidate& candidate) {
          return candidate.refusal.empty() && candidate.bytes_sent == 0;
        }))
      add_number(plot_.x0, "0");
    if (most(bytes_of) <= 0) return;
    for (const double value : x_.ticks()) {
      const float x = x_.pixel_of(value);
      drawing_.add(Line{{x, plot_.y0}, {x, plot_.y1}, theme_.of(Role::grid)});
      add_number(x, fmt::format("{:g} {}", value, unit_.name));
    }
  }

  void add_scales() {
    drawing_.add(OutlinedBox{plot_, theme_.of(Role::border), 1});
    add_bytes_scale();
    float free_below = plot_.y1 + 12;
    for (const double us : y_.ticks()) {
      const float y = y_.pixel_of(us);
      drawing_.add(Line{{plot_.x0, y}, {plot_.x1, y}, theme_.of(Role::grid)});
      if (y > free_below - 12) continue;
      free_below = y;
      add_label({plot_.x0 - 6, y}, Anchor::right_middle, Role::faint_text, Face::mono, 11,
                print_duration(us * 1e3));
    }
    add_label({plot_.center().x, plot_.y1 + 20}, Anchor::center_top, Role::text, Face::body,
              kChartText, "sent by the busiest rank, forward and backward");
    add_label({plot_.x0, plot_.y0 - 4}, Anchor::left_bottom, Role::text, Face::body, kChartText,
              "time, forward and backward");
  }

  void add_point(int64_t index) {
    const Candidate& candidate = chart_.comparison->candidates[static_cast<size_t>(index)];
    const Point at = place_of(candidate);
    add_candidate_sign(drawing_, theme_, back_, candidate, at);
    made_.candidates.push_back(index);
    made_.view.hits.push_back({{at.x - kReach, at.y - kReach, at.x + kReach, at.y + kReach},
                               Target{},
                               "way/" + candidate.name,
                               describe_candidate(*chart_.comparison, index)});
  }

  void name_point(const Candidate& candidate, const std::string& text, Role role) {
    const Point at = place_of(candidate);
    const float width = chart_.text_width(text, kChartText, Face::strong);
    // To the right if there is room, otherwise to the left; shifted up or down if that place is
    // taken.
    for (const float dy : {0.0F, -16.0F, 16.0F, -32.0F, 32.0F}) {
      for (const bool is_right : {true, false}) {
        const float x0 = is_right ? at.x + 10 : at.x - 10 - width;
        const Box box{x0, at.y + dy - 8, x0 + width, at.y + dy + 8};
        const bool is_inside = box.x0 >= plot_.x0 + 2 && box.x1 <= plot_.x1 - 2 &&
                               box.y0 >= plot_.y0 && box.y1 <= plot_.y1;
        const bool is_taken = std::any_of(names_.begin(), names_.end(), [&](const Box& other) {
          return box.x0 < other.x1 && other.x0 < box.x1 && box.y0 < other.y1 && other.y0 < box.y1;
        });
        if (!is_inside || is_taken) continue;
        names_.push_back(box);
        drawing_.add(FilledBox{box, back_.with_alpha(200)});
        add_label({is_right ? box.x0 : box.x1, at.y + dy},
                  is_right ? Anchor::left_middle : Anchor::right_middle, role, Face::strong,
                  kChartText, text);
        return;
      }
    }
  }

  /// Adds names: the best, the scenario's own, the fastest of each communication type, and the lit
  /// one.
  void name_points() {
    const Candidates& comparison = *chart_.comparison;
    const auto frame = [&](const Candidate& candidate, Role role) {
      const Point at = place_of(candidate);
      drawing_.add(OutlinedBox{{at.x - 9, at.y - 9, at.x + 9, at.y + 9}, theme_.of(role), 2});
    };
    std::vector<CommType> named;
    const auto name = [&](int64_t index, const std::string& what, Role role) {
      if (index < 0) return;
      const Candidate& candidate = comparison.candidates[static_cast<size_t>(index)];
      if (!candidate.refusal.empty()) return;
      frame(candidate, role);
      name_point(candidate, what + candidate.name, Role::text);
      named.push_back(candidate.parallel.comm_type);
    };
    name(comparison.best,
         comparison.best == comparison.own ? "best and own: " : "best: ", Role::selected);
    if (comparison.own != comparison.best) name(comparison.own, "own: ", Role::accent);
    bool is_lit_named = chart_.lit == comparison.best || chart_.lit == comparison.own;
    for (size_t i = 0; i < comparison.candidates.size(); ++i) {
      const Candidate& candidate = comparison.candidates[i];
      if (!candidate.refusal.empty() ||
          std::find(named.begin(), named.end(), candidate.parallel.comm_type) != named.end())
        continue;
      named.push_back(candidate.parallel.comm_type);
      is_lit_named |= chart_.lit == static_cast<int64_t>(i);
      name_point(candidate, candidate.name, Role::faint_text);
    }
    if (chart_.lit < 0) return;
    // The hovered point is named last and never moves another name.
    const Candidate& lit = comparison.candidates[static_cast<size_t>(chart_.lit)];
    if (!lit.refusal.empty()) return;
    frame(lit, Role::hovered);
    if (!is_lit_named) name_point(lit, lit.name, Role::text);
  }

  void add_legend() {
    const float x = plot_.x1 + 22;
    float y = plot_.y0 + 10;
    for (const CommType type : types_of(*chart_.comparison)) {
      drawing_.add(symbol_of(type, {x, y}, kRadius, theme_.of(role_of(type))));
      add_label({x + 14, y}, Anchor::left_middle, Role::text, Face::body, kChartText,
                std::string(to_name(type)));
      y += 20;
    }
    y += 8;
    const Color color = theme_.of(Role::text);
    const auto line = [&](Color fill, bool is_crossed, const char* text) {
      drawing_.add(symbol_of(CommType::a2a, {x, y}, kRadius, fill));
      if (is_crossed) add_cross(drawing_, theme_, {x, y});
      add_label({x + 14, y}, Anchor::left_middle, Role::faint_text, Face::body, kChartText, text);
      y += 20;
    };
    line(color, false, kFrontWords);
    line(veil(color, back_), false, kBeatenWords);
    line(veil(color, back_), true, kCrossedWords);
    const auto refused =
        std::count_if(chart_.comparison->candidates.begin(), chart_.comparison->candidates.end(),
                      [](const Candidate& candidate) { return !candidate.refusal.empty(); });
    if (refused > 0)
      add_label({x - 6, y + 4}, Anchor::left_middle, Role::faint_text, Face::body, kChartText,
                fmt::format("{} more are refused", refused));
  }

  /// Adds the legend below a bare chart.
  void add_legend_lines() {
    float y = plot_.y1 + kBareFoot + kLegendLine / 2;
    for (const std::vector<Entry>& line : cut_legend(chart_)) {
      for (const Entry& entry : line) {
        const Color full = theme_.of(entry.is_type ? role_of(entry.type) : Role::text);
        const Color color = entry.is_faint ? veil(full, back_) : full;
        drawing_.add(symbol_of(entry.type, {entry.x, y}, kRadius, color));
        if (entry.is_crossed) add_cross(drawing_, theme_, {entry.x, y});
        add_label({entry.x + 12, y}, Anchor::left_middle,
                  entry.is_type ? Role::text : Role::faint_text, Face::body, kChartText,
                  entry.text);
      }
      y += kLegendLine;
    }
  }

  /// Adds the recommendation, wrapped at blanks.
  void add_recommendation() {
    constexpr float kLeading = 17;
    const float room = chart_.size.width - 2 * kChartMargin;
    float y = plot_.y1 + 46;
    std::string line;
    const auto flush = [&] {
      if (y + kLeading <= chart_.size.height)
        add_label({kChartMargin, y}, Anchor::left_top, Role::text, Face::body, 13, line);
      y += kLeading;
      line.clear();
    };
    const std::string text = recommend(*chart_.comparison) + " ";
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = find_line_break(text, begin);
      const std::string word = text.substr(begin, end - begin);
      const std::string longer = line.empty() ? word : line + " " + word;
      if (!line.empty() && chart_.text_width(longer, 13, Face::body) > room) {
        flush();
        line = word;
      } else {
        line = longer;
      }
      begin = end + 1;
    }
    if (!line.empty()) flush();
  }

  const ComparisonChart& chart_;
  const Theme& theme_;
  const Color back_;  // background of the chart
  const Box plot_;
  const ByteUnit unit_;  // unit of x_
  const RatioAxis x_, y_;
  std::vector<Box> names_;
  Drawing drawing_;
  CandidateView made_;
};

}  // namespace

int64_t candidate_at(const CandidateView& view, Point at) {
  int64_t nearest = -1;
  float least = 0;
  for (size_t i = 0; i < view.view.hits.size(); ++i) {
    const Box& box = view.view.hits[i].box;
    if (!box.contains(at)) continue;
    const float dx = box.center().x - at.x, dy = box.center().y - at.y;
    // If several points are at one place, the topmost one is taken.
    if (nearest >= 0 && dx * dx + dy * dy > least) continue;
    least = dx * dx + dy * dy;
    nearest = view.candidates[i];
  }
  return nearest;
}

void add_candidate_sign(Drawing& drawing, const Theme& theme, Color background,
                        const Candidate& candidate, Point at) {
  const Color color = theme.of(role_of(candidate.parallel.comm_type));
  drawing.add(symbol_of(candidate.parallel.comm_type, at, kRadius,
                        candidate.is_pareto ? color : veil(color, background)));
  if (!candidate.fits || candidate.is_wasteful) add_cross(drawing, theme, at);
}

std::string describe_candidate(const Candidates& comparison, int64_t index) {
  const Candidate& candidate = comparison.candidates[static_cast<size_t>(index)];
  if (!candidate.refusal.empty())
    return fmt::format("{} is refused: {}", candidate.name, candidate.refusal);
  std::string text =
      fmt::format("{}: {}", candidate.name, print_duration(candidate.total_us() * 1e3));
  if (comparison.best < 0) return text;
  const Candidate& best = comparison.candidates[static_cast<size_t>(comparison.best)];
  const double more = 100 * (candidate.total_us() / best.total_us() - 1);
  if (index == comparison.best) return text + ", the best";
  if (std::abs(more) < 0.05) return text + ", as fast as the best";
  return text + fmt::format(", {:.{}f} % {} than the best", std::abs(more),
                            std::abs(more) < 10 ? 1 : 0, more < 0 ? "shorter" : "longer");
}

CandidateView view_comparison(const ComparisonChart& chart) { return Chart(chart).draw(); }

Drawing draw_comparison(const ComparisonChart& chart) {
  return view_comparison(chart).view.drawing;
}

}  // namespace cpscope::gui
