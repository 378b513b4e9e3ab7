#include "gui/model/ways/comparison_list.h"

#include "gui/model/axis.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kListText = 12;
constexpr float kSign = 12;  // middle of a candidate's symbol
constexpr float kName = 24, kNameWidth = 208, kTagWidth = 74, kFigure = 68, kBarGap = 10;
constexpr float kLeastNameWidth = 100;
constexpr float kLeastBarRoom = 110;
constexpr float kPartHeight = 10;
// Bars end at this multiple of the best; slower candidates show it only by their figure.
constexpr double kMostTimes = 2.0;

struct FigureColumn {
  const char* name;
  std::string (*print)(const Candidate&);
};

/// In the order in which they are kept when there is little room; the last is dropped first.
constexpr FigureColumn kColumns[] = {
    {"total", [](const Candidate& c) { return print_duration(c.total_us() * 1e3); }},
    {"sent", [](const Candidate& c) { return print_bytes(c.bytes_sent); }},
    {"memory", [](const Candidate& c) { return print_bytes(c.memory_bytes); }},
    {"exposed", [](const Candidate& c) { return print_duration(c.exposed_us * 1e3); }},
    {"padding", [](const Candidate& c) { return print_share(c.padding_share); }},
};

struct Part {
  const char* name;
  double (*us)(const MeanTimes&);
  Role role;
  Hatch hatch;
};

constexpr Part kParts[] = {
    {"compute", [](const MeanTimes& m) { return m.compute_us; }, Role::compute, Hatch::none},
    {"merges and moves", [](const MeanTimes& m) { return m.local_us; }, Role::merge, Hatch::dots},
    {"exposed transfers", [](const MeanTimes& m) { return m.exposed_us; }, Role::transfer,
     Hatch::diagonal},
    {"waiting", [](const MeanTimes& m) { return m.idle_us; }, Role::wait, Hatch::none},
};

/// Adds a share of the time; waiting is an outline, as in the timeline.
void add_part(Drawing& drawing, const Theme& theme, const Part& part, const Box& box) {
  if (box.width() <= 0) return;
  if (part.role == Role::wait)
    drawing.add(OutlinedBox{box, theme.of(part.role)});
  else
    drawing.add(FilledBox{box, theme.of(part.role), part.hatch, theme.of(Role::panel)});
}

/// The positions of all parts of a row.
class ListColumns {
 public:
  explicit ListColumns(const ComparisonList& list) {
    name_width = std::clamp(list.width - kName - kTagWidth - kFigure, kLeastNameWidth, kNameWidth);
    const float room = list.width - kName - kNameWidth - kTagWidth - kBarGap - kLeastBarRoom;
    const auto most = static_cast<size_t>(std::max(1.0F, room / kFigure));
    num_figures = std::min(std::size(kColumns), most);
    const float figures = kFigure * static_cast<float>(num_figures);
    bar_x0 = kName + name_width + kTagWidth;
    bar_x1 = std::max(bar_x0, list.width - figures - kBarGap);
    first_right = bar_x1 + kFigure;
  }
  bool has_bars() const { return bar_x1 - bar_x0 >= 20; }

  float name_width = 0;
  size_t num_figures = 0;
  float bar_x0 = 0, bar_x1 = 0;
  float first_right = 0;  // right edge of the first figure
};

class List {
 public:
  explicit List(const ComparisonList& list)
      : list_(list), comparison_(*list.comparison), theme_(*list.theme), columns_(list) {
    double most = 0, least = 0;
    for (const Candidate& candidate : comparison_.candidates) {
      if (!candidate.refusal.empty()) continue;
      most = std::max(most, candidate.total_us());
      if (least == 0 && candidate.can_be_best()) least = candidate.total_us();
    }
    most_us_ = least > 0 ? std::min(most, kMostTimes * least) : most;
  }

  Drawing draw_header() {
    constexpr float kNames = kListHeader - kListRow;  // y where the line of column names begins
    float x = kSign - 6;
    if (columns_.has_bars()) {
      for (const Part& part : kParts) {
        add_part(drawing_, theme_, part,
                 {x, (kListRow - kPartHeight) / 2, x + 16, (kListRow + kPartHeight) / 2});
        add_text(x + 20, 0, Anchor::left_middle, Role::text, Face::body, kSmallText, part.name);
        x += 20 + list_.text_width(part.name, kSmallText, Face::body) + 16;
      }
    }
    const auto add_name = [&](float at, Anchor anchor, const char* name) {
      add_text(at, kNames, anchor, Role::faint_text, Face::body, kSmallText, name);
    };
    add_name(kSign - 6, Anchor::left_middle, "way");
    if (columns_.bar_x1 - columns_.bar_x0 > 100)
      add_name(columns_.bar_x0, Anchor::left_middle, "mean over ranks");
    for (size_t i = 0; i < columns_.num_figures; ++i)
      add_name(right_of(i), Anchor::right_middle, kColumns[i].name);
    drawing_.add(Line{{0, kListHeader - 1}, {list_.width, kListHeader - 1}, theme_.of(Role::grid)});
    return std::move(drawing_);
  }

  CandidateView draw_rows() {
    float y = 0;
    int64_t refused = 0;
    for (const Candidate& candidate : comparison_.candidates) refused += !candidate.refusal.empty();
    bool has_heading = false;
    for (size_t i = 0; i < comparison_.candidates.size(); ++i) {
      const Candidate& candidate = comparison_.candidates[i];
      if (!candidate.refusal.empty() && !std::exchange(has_heading, true)) {
        add_text(kSign - 6, y, Anchor::left_middle, Role::text, Face::strong, kListText,
                 fmt::format("{} refused", refused));
        y += kListRow;
      }
      add_row(static_cast<int64_t>(i), y);
      y += kListRow;
    }
    made_.view.drawing = std::move(drawing_);
    return std::move(made_);
  }

 private:
  float right_of(size_t figure) const {
    return columns_.first_right + kFigure * static_cast<float>(figure) - 2;
  }

  void add_text(float x, float y, Anchor anchor, Role role, Face face, float size,
                std::string text) {
    drawing_.add(
        Label{{x, y + kListRow / 2}, anchor, theme_.of(role), size, face, std::move(text)});
  }

  std::string fit(const std::string& text, Face face, float room) const {
    return fit_text(list_.text_width, text, kListText, face, room);
  }

  std::string tag_of(int64_t index) const {
    const Candidate& candidate = comparison_.candidates[static_cast<size_t>(index)];
    if (index == comparison_.best) return candidate.is_own ? "best, own" : "best";
    if (candidate.is_own) return "own";
    if (!candidate.fits) return "too large";
    if (candidate.is_wasteful) return "pads much";
    return candidate.is_pareto ? "front" : "";
  }

  void add_row(int64_t index, float y) {
    const Candidate& candidate = comparison_.candidates[static_cast<size_t>(index)];
    const Box row{0, y, list_.width, y + kListRow};
    const bool is_named = index == comparison_.best || candidate.is_own;
    if (index == list_.lit) drawing_.add(FilledBox{row, theme_.of(Role::raised)});
    if (is_named)
      drawing_.add(OutlinedBox{
          row, theme_.of(index == comparison_.best ? Role::selected : Role::accent), 1});
    if (candidate.refusal.empty()) {
      add_figures(index, candidate, y);
    } else {
      add_text(kName, y, Anchor::left_middle, Role::faint_text, Face::body, kListText,
               fit(candidate.name, Face::body, columns_.name_width));
      add_text(kName + columns_.name_width + 6, y, Anchor::left_middle, Role::faint_text,
               Face::body, kListText,
               fit(candidate.refusal, Face::body, list_.width - kName - columns_.name_width - 10));
    }
    made_.candidates.push_back(index);
    made_.view.hits.push_back(
        {row, Target{}, "row/" + candidate.name, describe_candidate(comparison_, index)});
  }

  void add_figures(int64_t index, const Candidate& candidate, float y) {
    const bool is_named = index == comparison_.best || candidate.is_own;
    const Face face = is_named ? Face::strong : Face::body;
    add_candidate_sign(drawing_, theme_, theme_.of(Role::panel), candidate,
                       {kSign, y + kListRow / 2});
    add_text(kName, y, Anchor::left_middle, Role::text, face, kListText,
             fit(candidate.name, face, columns_.name_width));
    add_text(kName + columns_.name_width + 6, y, Anchor::left_middle, Role::faint_text, Face::body,
             kSmallText, tag_of(index));
    add_bar(candidate, y);
    for (size_t i = 0; i < columns_.num_figures; ++i)
      add_text(right_of(i), y, Anchor::right_middle, i == 0 ? Role::text : Role::faint_text,
               Face::mono, kSmallText, kColumns[i].print(candidate));
  }

  void add_bar(const Candidate& candidate, float y) {
    const float room = columns_.bar_x1 - columns_.bar_x0;
    if (!columns_.has_bars() || most_us_ <= 0) return;
    const float top = y + (kListRow - kPartHeight) / 2;
    double before = 0;
    for (const Part& part : kParts) {
      const double us = part.us(candidate.mean);
      const auto x_of = [&](double time) {
        return columns_.bar_x0 + room * static_cast<float>(std::min(1.0, time / most_us_));
      };
      add_part(drawing_, theme_, part, {x_of(before), top, x_of(before + us), top + kPartHeight});
      before += us;
    }
    if (candidate.total_us() <= most_us_ * 1.0001) return;
    // A bar that exceeds the scale has a break at its end.
    for (const float x : {columns_.bar_x1 - 9, columns_.bar_x1 - 5})
      drawing_.add(
          Line{{x - 2, top + kPartHeight + 2}, {x + 2, top - 2}, theme_.of(Role::panel), 2});
  }

  const ComparisonList& list_;
  const Candidates& comparison_;
  const Theme& theme_;
  const ListColumns columns_;
  double most_us_ = 0;  // time at the end of the bars
  Drawing drawing_;
  CandidateView made_;
};

}  // namespace

Drawing draw_list_header(const ComparisonList& list) { return List(list).draw_header(); }

CandidateView view_list(const ComparisonList& list) { return List(list).draw_rows(); }

float list_height(const Candidates& comparison) {
  const auto rows = static_cast<float>(comparison.candidates.size());
  const bool has_refused =
      std::any_of(comparison.candidates.begin(), comparison.candidates.end(),
                  [](const Candidate& candidate) { return !candidate.refusal.empty(); });
  return kListRow * (rows + (has_refused ? 1 : 0));
}

}  // namespace cpscope::gui
