#pragma once

#include "gui/app/app_state.h"
#include "gui/app/caption/caption_writer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::gui {

/// What a question asks for: ranks to click, or a number to type.
enum class AnswerKind : uint8_t { ranks, count, bytes, percent, ratio };

/// A number that readers type who think so, and why it is wrong.
struct Mistake {
  double number = 0;
  std::string why;
};

/// A question of a lesson page: the reader predicts, and the plan has the answer. Every function
/// gets the plan that is open.
struct Question {
  AnswerKind kind{};
  void (*hint)(CaptionWriter& writer, const AppState& state) = nullptr;
  void (*explain)(CaptionWriter& writer, const AppState& state) = nullptr;  // once it is answered
  std::vector<int32_t> (*ranks)(const AppState& state) = nullptr;           // right: ascending
  /// Why a rank that was chosen is wrong.
  void (*why_not)(CaptionWriter& writer, const AppState& state, int32_t rank) = nullptr;
  double (*number)(const AppState& state) = nullptr;  // right; bytes, percent
  std::vector<Mistake> (*mistakes)(const AppState& state) = nullptr;
};

/// The question of the open lesson page; null without one, or when the shown plan is not one that
/// the page can speak of.
const Question* open_question(const AppState& state);

/// Chooses a rank, or no longer.
void toggle_rank(AppState& state, int32_t rank);
/// Replaces the typed number.
void type_answer(AppState& state, std::string typed);
/// Checks the answer. Nothing happens before something is chosen or typed.
void check_answer(AppState& state);
bool can_check(const AppState& state);
/// Gives the right answer, and checks it.
void show_answer(AppState& state);

/// True if the answer is checked and right.
bool is_answered(const AppState& state);
/// What to say about the answer: the hint if the reader wants it, then why the checked answer is
/// wrong, or that it is right and why.
Spans answer_feedback(const AppState& state);
/// The unit of the number: "KiB", "%"; empty for counts and ratios.
std::string answer_unit(const AppState& state);

}  // namespace cpscope::gui
