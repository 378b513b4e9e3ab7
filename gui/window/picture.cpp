#include "gui/window/picture.h"

#include "gui/app/caption/caption.h"
#include "gui/app/document/make_view.h"
#include "gui/app/prediction.h"
#include "gui/draw/place_drawing.h"
#include "gui/model/axis.h"
#include "gui/model/ways/comparison_chart.h"
#include "gui/window/text_block.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kMargin = 24;
constexpr float kCardGap = 14;     // between cards
constexpr float kCardHeader = 36;  // height of a view's title
constexpr float kCardInset = 12;
constexpr int32_t kCaptionLines = 6;  // of a caption; twice as many in tall pictures
constexpr float kTallPicture = 1200;
constexpr float kCaptionLeading = 20;
constexpr float kTrack = 22;  // height of the track of steps

/// A picture that is being composed.
struct Page {
  const PictureSource& source;
  const AppState& state;
  const PlanIndex& plan;
  const Theme& theme;
  Size size;
  Projections projections;
  bool has_timeline;
  Drawing drawing;

  void label(Point at, Anchor anchor, Role role, float letters, Face face, std::string text) {
    drawing.add(Label{at, anchor, theme.of(role), letters, face, std::move(text)});
  }
  float width_of(const std::string& text, float letters, Face face) const {
    return source.text_width(text, letters, face);
  }
};

/// The main properties of the scenario, in the terms of the field.
std::vector<std::string> list_facts(const PlanIndex& plan) {
  const Scenario& scenario = plan.plan().scenario;
  std::vector<std::string> facts;
  facts.push_back(fmt::format("{} tokens", print_short_count(plan.tokens(Side::q))));
  if (plan.tokens(Side::kv) != plan.tokens(Side::q))
    facts.push_back(fmt::format("{} key tokens", print_short_count(plan.tokens(Side::kv))));
  facts.push_back(fmt::format("{} ranks", print_count(plan.num_ranks())));
  facts.emplace_back(to_name(scenario.parallel.comm_type));
  facts.emplace_back(to_name(scenario.parallel.layout));
  facts.push_back(describe_mask(scenario.attention));
  facts.push_back(fmt::format("{} heads", scenario.attention.heads));
  if (scenario.attention.kv_heads != scenario.attention.heads)
    facts.push_back(fmt::format("{} KV heads", scenario.attention.kv_heads));
  facts.emplace_back(dtype_name(scenario.numerics));
  return facts;
}

/// Adds the properties as boxes, as many in a row as fit. Returns the height.
float add_facts(Page& page, Point at, float width) {
  constexpr float kHeight = 22, kPad = 8, kBetween = 6, kLetters = 11;
  float x = at.x, y = at.y;
  for (const std::string& fact : list_facts(page.plan)) {
    const float wide = page.width_of(fact, kLetters, Face::mono) + 2 * kPad;
    if (x > at.x && x + wide > at.x + width) {
      x = at.x;
      y += kHeight + kBetween;
    }
    page.drawing.add(FilledBox{
        .box = {x, y, x + wide, y + kHeight}, .color = page.theme.of(Role::raised), .rounding = 4});
    page.label({x + wide / 2, y + kHeight / 2}, Anchor::center_middle, Role::text, kLetters,
               Face::mono, fact);
    x += wide + kBetween;
  }
  return y + kHeight - at.y;
}

/// Adds title, question and properties. Returns their height.
float add_head(Page& page) {
  const Scenario& scenario = page.plan.plan().scenario;
  const float width = page.size.width - 2 * kMargin;
  float y = kMargin;
  const std::string title = scenario.title.empty() ? "Untitled scenario" : scenario.title;
  page.label({kMargin, y}, Anchor::left_top, Role::text, 24, Face::strong,
             fit_text(page.source.text_width, title, 24, Face::strong, width));
  y += 34;
  if (!scenario.question.empty()) {
    const int32_t lines = add_text_block(page.drawing,
                                         {.at = {kMargin, y},
                                          .width = width,
                                          .size = 14,
                                          .leading = 20,
                                          .most_lines = 2,
                                          .color = page.theme.of(Role::faint_text),
                                          .link_color = page.theme.of(Role::faint_text)},
                                         {{scenario.question, {}, false}}, page.source.text_width);
    y += 20 * static_cast<float>(lines) + 8;
  }
  return y + add_facts(page, {kMargin, y}, width) + kCardGap;
}

/// Adds the steps of one pass between x0 and x1: finished ones filled, the current one taller,
/// later ones empty. If there are too many to fit, adds a bar.
void add_pass_track(Page& page, Direction direction, int32_t now, float x0, float x1, float y) {
  constexpr float kHeight = 10, kLeastCell = 5, kTaller = 4;
  const Theme& theme = page.theme;
  const bool is_backward = direction == Direction::backward;
  const int32_t first = is_backward ? page.plan.pass(Direction::forward).num_steps : 0;
  const int32_t steps = page.plan.pass(direction).num_steps;
  const Color color = theme.of(is_backward ? Role::merge : Role::compute);
  const float cell = (x1 - x0) / static_cast<float>(steps);
  const float top = y - kHeight / 2, bottom = y + kHeight / 2;
  const auto place = [&](int32_t step) { return x0 + cell * static_cast<float>(step - first); };
  if (cell < kLeastCell) {
    page.drawing.add(OutlinedBox{.box = {x0, top, x1, bottom}, .color = color});
    const float done = place(std::clamp(now, first, first + steps));
    page.drawing.add(FilledBox{.box = {x0, top, done, bottom}, .color = color});
    if (now < first || now >= first + steps) return;
    page.drawing.add(FilledBox{.box = {done, top - kTaller, done + 4, bottom + kTaller},
                               .color = theme.of(Role::accent)});
    return;
  }
  for (int32_t step = first; step < first + steps; ++step) {
    const Box box{place(step), top, place(step + 1) - 2, bottom};
    if (step < now) page.drawing.add(FilledBox{.box = box, .color = color});
    if (step > now) page.drawing.add(OutlinedBox{.box = box, .color = color});
    if (step != now) continue;
    page.drawing.add(FilledBox{.box = {box.x0, top - kTaller, box.x1, bottom + kTaller},
                               .color = theme.of(Role::accent)});
  }
}

/// Shows where the moment is among all steps, forward ones and then backward ones.
void add_track(Page& page, Point at, float width) {
  constexpr float kName = 78, kBetween = 24, kWidestStep = 64;
  const int32_t now =
      page.plan.step_of_stage(moment_of(page.plan, page.state.playhead).first_stage);
  const auto steps = static_cast<float>(page.plan.steps().size());
  const bool has_backward = page.plan.pass(Direction::backward).num_steps > 0;
  const float room = width - (has_backward ? 2 * kName + kBetween : kName);
  const float cell = std::min(kWidestStep, room / steps);
  const float y = at.y + kTrack / 2;
  float x = at.x;
  for (const Direction direction : kDirections) {
    if (direction == Direction::backward && !has_backward) continue;
    page.label({x, y}, Anchor::left_middle, Role::faint_text, 13, Face::body,
               std::string(to_name(direction)));
    const float begin = x + kName - (direction == Direction::backward ? 0 : 16);
    const float end = begin + cell * static_cast<float>(page.plan.pass(direction).num_steps);
    add_pass_track(page, direction, now, begin, end, y);
    x = end + kBetween;
  }
}

/// The caption of the moment; if the picture has a timeline, also whose times it shows.
Spans caption_of(const Page& page) {
  Spans caption =
      make_caption(page.plan, moment_of(page.plan, page.state.playhead), page.state.focus_rank);
  const std::string times = page.has_timeline ? describe_prediction(page.state) : "";
  if (!times.empty()) caption.push_back({" " + times, {}, false});
  return caption;
}

/// The first sentences of a text.
Spans take_sentences(const Spans& spans, int32_t count) {
  Spans taken;
  for (const Span& span : spans) {
    for (size_t at = 0; at < span.text.size(); ++at) {
      const bool ends = span.text[at] == '.' &&
                        (at + 1 == span.text.size() ? span.is_strong : span.text[at + 1] == ' ');
      if (!ends || --count > 0) continue;
      taken.push_back({span.text.substr(0, at + 1), span.target, span.is_strong});
      return taken;
    }
    taken.push_back(span);
  }
  return taken;
}

/// As many whole sentences as fit into the lines of a block; at least one.
Spans fit_sentences(const Page& page, TextBlock block, const Spans& caption) {
  const int32_t lines = block.most_lines;
  block.most_lines = lines + 1;
  Spans fitting = take_sentences(caption, 1);
  for (int32_t count = 2;; ++count) {
    Spans more = take_sentences(caption, count);
    Drawing measured;
    if (more == fitting || add_text_block(measured, block, more, page.source.text_width) > lines)
      return fitting;
    fitting = std::move(more);
  }
}

/// Adds steps, caption and imprint, upwards from the lower edge. Returns their upper end.
float add_foot(Page& page) {
  const float width = page.size.width - 2 * kMargin;
  Spans caption = caption_of(page);
  const int32_t fixed = page.source.caption_lines;
  TextBlock block{.at = {kMargin, 0},
                  .width = width,
                  .size = 14,
                  .leading = kCaptionLeading,
                  .most_lines = fixed > 0                         ? fixed
                                : page.size.height < kTallPicture ? kCaptionLines
                                                                  : 2 * kCaptionLines,
                  .color = page.theme.of(Role::text),
                  .link_color = page.theme.of(Role::accent)};
  if (fixed > 0) caption = fit_sentences(page, block, caption);
  Drawing measured;
  const int32_t lines =
      fixed > 0 ? fixed : add_text_block(measured, block, caption, page.source.text_width);
  constexpr float kImprint = 14;
  const float top = page.size.height - kMargin - kImprint - 8 -
                    static_cast<float>(lines) * kCaptionLeading - 6 - kTrack;
  add_track(page, {kMargin, top}, width);
  block.at.y = top + kTrack + 6;
  add_text_block(page.drawing, block, caption, page.source.text_width);
  page.label({kMargin, page.size.height - kMargin}, Anchor::left_bottom, Role::faint_text, 11,
             Face::mono,
             fit_text(page.source.text_width, page.source.imprint, 11, Face::mono, width));
  return top - kCardGap;
}

/// A sentence in the middle of an empty view.
Drawing say(const Page& page, const std::string& sentence, Size size) {
  const float width = std::min(420.F, size.width);
  Drawing drawing;
  add_text_block(drawing,
                 {.at = {(size.width - width) / 2, size.height / 2 - 30},
                  .width = width,
                  .size = 13,
                  .color = page.theme.of(Role::faint_text),
                  .link_color = page.theme.of(Role::faint_text)},
                 {{sentence, {}, false}}, page.source.text_width);
  return drawing;
}

/// Draws a view inside of a box; its title and scale are the caller's.
View add_view(Page& page, ViewKind kind, const Box& inside) {
  ViewInput input = view_input(page.state, kind);
  input.size = {inside.width(), inside.height()};
  input.text_width = page.source.text_width;
  input.selected = &page.projections.selected;
  input.hovered = &page.projections.hovered;
  View view = make_view(kind, input);
  if (kind == ViewKind::numbers && input.run_a == nullptr && !page.source.without_numbers.empty())
    view.drawing = say(page, page.source.without_numbers, input.size);
  place_drawing(page.drawing, std::move(view.drawing), {inside.x0, inside.y0}, input.size);
  return view;
}

/// Adds a view in its frame: its question above it, its scale on the right.
void add_card(Page& page, ViewKind kind, const Box& box) {
  const Theme& theme = page.theme;
  page.drawing.add(FilledBox{.box = box, .color = theme.of(Role::panel), .rounding = 8});
  page.drawing.add(OutlinedBox{.box = box, .color = theme.of(Role::border), .rounding = 8});
  const Box inside{box.x0 + kCardInset, box.y0 + kCardHeader, box.x1 - kCardInset,
                   box.y1 - kCardInset};
  if (inside.width() < 1 || inside.height() < 1) return;
  const View view = add_view(page, kind, inside);

  const float middle = box.y0 + kCardHeader / 2 + 1;
  const float scale = page.width_of(view.scale, 11, Face::mono);
  page.label({inside.x1, middle}, Anchor::right_middle, Role::faint_text, 11, Face::mono,
             view.scale);
  const float room = inside.width() - scale - 16;
  // In "Mask: which (query, key) pairs are computed, and by which rank" the name before the colon
  // is shown first.
  const size_t colon = view.title.find(": ");
  const std::string name = view.title.substr(0, colon);
  page.label({inside.x0, middle}, Anchor::left_middle, Role::text, 15, Face::strong, name);
  if (colon == std::string::npos) return;
  const float name_width = page.width_of(name, 15, Face::strong) + 10;
  page.label({inside.x0 + name_width, middle}, Anchor::left_middle, Role::faint_text, 13,
             Face::body,
             fit_text(page.source.text_width, view.title.substr(colon + 2), 13, Face::body,
                      room - name_width));
}

Page begin_page(const PictureSource& source, Size size, bool has_timeline) {
  const AppState& state = *source.state;
  Page page{source,       state, *state.plan(), theme_of(state.theme), size, project_all(state),
            has_timeline, {}};
  page.drawing.add(
      FilledBox{.box = {0, 0, size.width, size.height}, .color = page.theme.of(Role::background)});
  return page;
}

Picture finish(Page page, const std::string& what) {
  const std::string& title = page.plan.plan().scenario.title;
  const Spans caption = caption_of(page);
  return {std::move(page.drawing), page.size, title.empty() ? what : title + ": " + what,
          to_text(caption)};
}

}  // namespace

Size natural_size(ViewKind kind) {
  switch (kind) {
    case ViewKind::mask:
      return {1000, 1300};
    case ViewKind::traffic:
      return {1200, 940};
    case ViewKind::layout:
    case ViewKind::timeline:
    case ViewKind::numbers:
    case ViewKind::balance:
      break;
  }
  return {1280, 920};
}

Size natural_size(const std::vector<ViewKind>& kinds) {
  if (kinds.size() == 1) return natural_size(kinds.front());
  return {std::max(1280.F, 640.F * static_cast<float>(kinds.size())), 860};
}

Size natural_poster_size() { return {1920, 1480}; }

Picture draw_picture(const PictureSource& source, ViewKind kind, Size size) {
  return draw_picture(source, std::vector<ViewKind>{kind}, size);
}

Picture draw_picture(const PictureSource& source, const std::vector<ViewKind>& kinds, Size size) {
  const bool has_timeline =
      std::find(kinds.begin(), kinds.end(), ViewKind::timeline) != kinds.end();
  Page page = begin_page(source, size, has_timeline);
  const float top = add_head(page), bottom = add_foot(page);
  const auto count = static_cast<float>(kinds.size());
  const float width = (size.width - 2 * kMargin - (count - 1) * kCardGap) / count;
  std::string names;
  for (size_t n = 0; n < kinds.size(); ++n) {
    const float x = kMargin + static_cast<float>(n) * (width + kCardGap);
    add_card(page, kinds[n], {x, top, x + width, bottom});
    names += (n == 0 ? "" : ", ") + std::string(to_name(kinds[n]));
  }
  return finish(std::move(page), names);
}

Picture draw_bare_view(const PictureSource& source, ViewKind kind, Size size) {
  Page page = begin_page(source, size, kind == ViewKind::timeline);
  add_view(page, kind, {kCardInset, kCardInset, size.width - kCardInset, size.height - kCardInset});
  return finish(std::move(page), std::string(to_name(kind)));
}

Picture draw_poster(const PictureSource& source, Size size) {
  Page page = begin_page(source, size, true);
  const float top = add_head(page), bottom = add_foot(page);
  // Three columns; the square views get the cards with the squarer shape.
  constexpr std::array<std::array<ViewKind, 3>, 2> kRows = {
      {{ViewKind::layout, ViewKind::mask, ViewKind::traffic},
       {ViewKind::timeline, ViewKind::numbers, ViewKind::balance}}};
  const float width = (size.width - 2 * kMargin - 2 * kCardGap) / 3;
  const float height = (bottom - top - kCardGap) / 2;
  for (size_t row = 0; row < kRows.size(); ++row) {
    for (size_t column = 0; column < kRows[row].size(); ++column) {
      const float x = kMargin + static_cast<float>(column) * (width + kCardGap);
      const float y = top + static_cast<float>(row) * (height + kCardGap);
      add_card(page, kRows[row][column], {x, y, x + width, y + height});
    }
  }
  return finish(std::move(page), "all views");
}

Picture draw_comparison_picture(const Candidates& comparison, const std::string& title,
                                ThemeName theme, const TextWidth& text_width) {
  Picture picture;
  picture.size = kComparisonSize;
  picture.title = "Ways to split one batch, predicted";
  picture.alt = recommend(comparison);
  picture.drawing =
      draw_comparison({&comparison, title, kComparisonSize, &theme_of(theme), text_width});
  return picture;
}

}  // namespace cpscope::gui
