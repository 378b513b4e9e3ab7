#include "gui/window/handout.h"

#include "gui/app/lesson.h"
#include "gui/app/question.h"
#include "gui/draw/place_drawing.h"
#include "gui/window/text_block.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kEdge = 48, kBelowHead = 18, kAside = 28, kPictureShare = 0.5F;
/// More pages than this would be too small to read.
constexpr size_t kMostPages = 6;
constexpr float kTitleLetters = 28, kTextLetters = 15, kTextLeading = 21, kSmallLetters = 11;

const Lesson& lesson_of(const HandoutOrder& order) {
  return all_lessons()[static_cast<size_t>(order.lesson)];
}

void wait_for_work(AppState& state) {
  update(state, state.now_s);
  while (state.job.task.is_running() || state.prediction.task.is_running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    update(state, state.now_s);
  }
}

/// The hint, or the answer with its reason.
Spans question_words(AppState& state, bool has_answer) {
  if (open_question(state) == nullptr) return {};
  const LessonAnswer before = std::exchange(state.answer, {});
  if (has_answer)
    show_answer(state);
  else
    state.answer.shows_hint = true;
  Spans words = answer_feedback(state);
  state.answer = before;
  return words;
}

struct Sheet {
  const TextWidth& text_width;
  const Theme& theme;
  Drawing drawing;

  float text(Point at, float width, float room, const Spans& spans, Role role = Role::text) {
    const int32_t lines =
        add_text_block(drawing,
                       {.at = at,
                        .width = width,
                        .size = kTextLetters,
                        .leading = kTextLeading,
                        .most_lines = std::max(1, static_cast<int32_t>(room / kTextLeading)),
                        .color = theme.of(role),
                        .link_color = theme.of(role)},
                       spans, text_width);
    return static_cast<float>(lines) * kTextLeading;
  }
  void label(Point at, Role role, float letters, Face face, std::string words) {
    drawing.add(Label{at, Anchor::left_top, theme.of(role), letters, face, std::move(words)});
  }
  void line(Point from, float width) {
    drawing.add(FilledBox{{from.x, from.y, from.x + width, from.y + 1}, theme.of(Role::border)});
  }
};

/// The picture of the open page on the left, its words on the right.
void add_page(Sheet& sheet, AppState& state, const HandoutOrder& order, const Box& box,
              int32_t number) {
  const LessonStep& step = *current_step(state);
  const float wide = box.width() * kPictureShare;
  const PictureSource source{&state, "", sheet.text_width, ""};
  const Size size{wide, box.height()};
  place_drawing(sheet.drawing, draw_bare_view(source, step.view, size).drawing, {box.x0, box.y0},
                size);
  sheet.drawing.add(
      OutlinedBox{{box.x0, box.y0, box.x0 + wide, box.y1}, sheet.theme.of(Role::border), 1});
  const float x = box.x0 + wide + kAside, width = box.x1 - x;
  float y = box.y0;
  sheet.label({x, y}, Role::faint_text, kSmallLetters, Face::strong,
              fmt::format("{}{}", number, step.question != nullptr ? " - Question" : ""));
  y += kTextLeading;
  y += sheet.text({x, y}, width, box.y1 - y, lesson_text(state));
  if (step.question == nullptr) return;
  y += kTextLeading / 2;
  y += sheet.text({x, y}, width, box.y1 - y, question_words(state, order.has_answers),
                  Role::faint_text);
  if (order.has_answers) return;
  const std::string answer = "Answer:";
  y += kTextLeading;
  sheet.label({x, y}, Role::text, kTextLetters, Face::strong, answer);
  const float begin = x + sheet.text_width(answer, kTextLetters, Face::strong) + 8;
  sheet.line({begin, y + kTextLeading - 4}, box.x1 - begin);
}

}  // namespace

std::optional<Error> refuse_handout(AppState& state, const HandoutOrder& order) {
  const auto lessons = all_lessons();
  if (order.lesson < 0 || order.lesson >= static_cast<int32_t>(lessons.size()))
    return make_bad_input(fmt::format("--lesson: there is no lesson {}", order.lesson + 1),
                          fmt::format("use 1 to {}", lessons.size()));
  const Lesson& lesson = lesson_of(order);
  if (lesson.steps.size() > kMostPages)
    return make_bad_input(
        fmt::format(
            "--lesson: a page of paper has room for {} pages of a lesson, and \"{}\" has {}",
            kMostPages, lesson.title, lesson.steps.size()),
        "open it in the window: cpscope gui");
  for (int32_t page = 0; page < static_cast<int32_t>(lesson.steps.size()); ++page) {
    if (open_lesson(state, {order.lesson, page})) continue;
    return make_error(
        ErrorKind::unavailable,
        state.messages.empty() ? "The lesson cannot be opened" : state.messages.back().text,
        "start the program where the folder scenarios/ is");
  }
  return std::nullopt;
}

Picture draw_handout(AppState& state, const HandoutOrder& order, const TextWidth& text_width) {
  const Theme& theme = theme_of(state.theme);
  const Lesson& lesson = lesson_of(order);
  Sheet sheet{text_width, theme, {}};
  const Size size = kHandoutSize;
  sheet.drawing.add(FilledBox{{0, 0, size.width, size.height}, theme.of(Role::background)});
  const float width = size.width - 2 * kEdge;
  float y = kEdge;
  sheet.label({kEdge, y}, Role::text, kTitleLetters, Face::strong,
              fmt::format("{}. {}", order.lesson + 1, lesson.title));
  y += kTitleLetters + 12;
  y += sheet.text({kEdge, y}, width, 2 * kTextLeading, {{std::string(lesson.question), {}, false}},
                  Role::faint_text);
  y += kBelowHead;
  const float foot = size.height - kEdge - kTextLeading;
  const auto count = static_cast<float>(lesson.steps.size());
  const float height = (foot - y - (count - 1) * kBelowHead) / count;
  for (int32_t page = 0; page < static_cast<int32_t>(lesson.steps.size()); ++page) {
    open_lesson(state, {order.lesson, page});
    wait_for_work(state);
    add_page(sheet, state, order, {kEdge, y, size.width - kEdge, y + height}, page + 1);
    y += height + kBelowHead;
    const LessonStep& step = *current_step(state);
    if (step.perform != nullptr) step.perform(state);
    wait_for_work(state);
  }
  sheet.label({kEdge, size.height - kEdge}, Role::faint_text, kSmallLetters, Face::mono,
              order.imprint);
  return {std::move(sheet.drawing), size, std::string(lesson.title), std::string(lesson.question)};
}

}  // namespace cpscope::gui
