#include "gui/app/question.h"

#include "gui/app/lesson.h"
#include "gui/model/axis.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 4> kByteUnits = {
    std::pair{"B", 1.0}, std::pair{"KiB", 1024.0}, std::pair{"MiB", 1'048'576.0},
    std::pair{"GiB", 1'073'741'824.0}};

/// The unit of a text such as "1.5 KiB".
std::string unit_of(const std::string& text) {
  const size_t blank = text.rfind(' ');
  return blank == std::string::npos ? "" : text.substr(blank + 1);
}

std::string print_number(AnswerKind kind, double number) {
  switch (kind) {
    case AnswerKind::bytes:
      return print_bytes(number);
    case AnswerKind::percent:
      return fmt::format("{:.1f} %", number);
    case AnswerKind::ratio:
      return fmt::format("{:.2f}", number);
    case AnswerKind::ranks:
    case AnswerKind::count:
      break;
  }
  return print_count(std::llround(number));
}

/// Answers are right as exactly as they can be read from a picture or calculated in the head.
bool is_near(AnswerKind kind, double typed, double right) {
  switch (kind) {
    case AnswerKind::bytes:
    case AnswerKind::ratio:
      return std::abs(typed - right) <= 0.012 * std::abs(right);
    case AnswerKind::percent:
      return std::abs(typed - right) <= 0.6;
    case AnswerKind::ranks:
    case AnswerKind::count:
      break;
  }
  return std::abs(typed - right) < 1e-9;
}

/// The number that was typed, "1 024", "1.5", "1.5 KiB", "12 %"; nothing when it is none. Bytes
/// without a unit are in `unit`.
std::optional<double> read_number(std::string_view typed, AnswerKind kind,
                                  const std::string& unit) {
  std::string digits, letters;
  for (const char c : typed) {
    const bool is_letter = std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '%';
    if (c != ' ' && c != '_') (is_letter || !letters.empty() ? letters : digits) += c;
  }
  // The page's library has no std::from_chars of doubles; letters are not among the digits, so that
  // strtod reads no "inf".
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (digits.empty() || *end != '\0' || !std::isfinite(number)) return std::nullopt;
  if (kind != AnswerKind::bytes) {
    if (!letters.empty() && letters != unit) return std::nullopt;
    return number;
  }
  for (const auto& [name, factor] : kByteUnits) {
    if (name == (letters.empty() ? unit : letters)) return number * factor;
  }
  return std::nullopt;
}

bool is_right(const Question& question, const AppState& state) {
  const LessonAnswer& answer = state.answer;
  if (question.kind == AnswerKind::ranks) return answer.ranks == question.ranks(state);
  const auto typed = read_number(answer.typed, question.kind, answer_unit(state));
  return typed && is_near(question.kind, *typed, question.number(state));
}

void tell_wrong_ranks(CaptionWriter& writer, const Question& question, const AppState& state) {
  const std::vector<int32_t>& chosen = state.answer.ranks;
  const std::vector<int32_t> right = question.ranks(state);
  writer.strong("Not yet: ").say("you chose ").ranks(chosen).say(".");
  size_t told = 0, wrong = 0;
  for (const int32_t rank : chosen) {
    if (std::binary_search(right.begin(), right.end(), rank)) continue;
    ++wrong;
    if (told == kMostLinks) continue;
    ++told;
    writer.say(" ");
    question.why_not(writer, state, rank);
  }
  if (wrong > told) writer.say(fmt::format(" {} more are wrong.", wrong - told));
  const size_t missing = right.size() - (chosen.size() - wrong);
  if (missing > 0)
    writer.say(missing == 1 ? " One rank is missing."
                            : fmt::format(" {} ranks are missing.", missing));
}

void tell_wrong_number(CaptionWriter& writer, const Question& question, const AppState& state) {
  const auto typed = read_number(state.answer.typed, question.kind, answer_unit(state));
  writer.strong("Not yet: ");
  if (!typed) {
    const std::string unit = answer_unit(state);
    writer.say(fmt::format("\"{}\" is no number{}.", state.answer.typed,
                           unit.empty() ? "" : " of " + unit));
    return;
  }
  writer.say(fmt::format("you typed {}. ", print_number(question.kind, *typed)));
  if (question.mistakes != nullptr) {
    for (const Mistake& mistake : question.mistakes(state)) {
      if (is_near(question.kind, *typed, mistake.number)) {
        writer.say(mistake.why);
        return;
      }
    }
  }
  writer.say(*typed > question.number(state) ? "That is too much: " : "That is too little: ");
  question.hint(writer, state);
}

}  // namespace

const Question* open_question(const AppState& state) {
  const LessonStep* step = current_step(state);
  if (step == nullptr || step->question == nullptr || !is_about_shown_plan(state)) return nullptr;
  return step->question;
}

void toggle_rank(AppState& state, int32_t rank) {
  std::vector<int32_t>& ranks = state.answer.ranks;
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (at != ranks.end() && *at == rank)
    ranks.erase(at);
  else
    ranks.insert(at, rank);
  state.answer.is_checked = false;
}

void type_answer(AppState& state, std::string typed) {
  state.answer.typed = std::move(typed);
  state.answer.is_checked = false;
}

bool can_check(const AppState& state) {
  const Question* question = open_question(state);
  if (question == nullptr) return false;
  return question->kind == AnswerKind::ranks ? !state.answer.ranks.empty()
                                             : !state.answer.typed.empty();
}

void check_answer(AppState& state) { state.answer.is_checked = can_check(state); }

void show_answer(AppState& state) {
  const Question* question = open_question(state);
  if (question == nullptr) return;
  if (question->kind == AnswerKind::ranks)
    state.answer.ranks = question->ranks(state);
  else
    state.answer.typed = print_number(question->kind, question->number(state));
  state.answer.is_checked = true;
}

bool is_answered(const AppState& state) {
  const Question* question = open_question(state);
  return question != nullptr && state.answer.is_checked && is_right(*question, state);
}

Spans answer_feedback(const AppState& state) {
  const Question* question = open_question(state);
  if (question == nullptr) return {};
  CaptionWriter writer(*state.plan());
  const LessonAnswer& answer = state.answer;
  const bool is_done = is_answered(state);
  if (answer.shows_hint && !is_done) {
    writer.strong("Hint: ");
    question->hint(writer, state);
    if (answer.is_checked) writer.say(" ");
  }
  if (!answer.is_checked) return writer.take();
  if (is_done) {
    writer.strong("Right: ");
    if (question->kind == AnswerKind::ranks)
      writer.ranks(answer.ranks);
    else
      writer.say(print_number(question->kind, question->number(state)));
    writer.say(". ");
    question->explain(writer, state);
  } else if (question->kind == AnswerKind::ranks) {
    tell_wrong_ranks(writer, *question, state);
  } else {
    tell_wrong_number(writer, *question, state);
  }
  return writer.take();
}

std::string answer_unit(const AppState& state) {
  const Question* question = open_question(state);
  if (question == nullptr) return "";
  if (question->kind == AnswerKind::percent) return "%";
  return question->kind == AnswerKind::bytes ? unit_of(print_bytes(question->number(state))) : "";
}

}  // namespace cpscope::gui
