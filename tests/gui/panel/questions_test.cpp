// A reader answers the questions of the lessons with the mouse and the keyboard.
#include "gui/app/lesson.h"
#include "gui/app/question.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::compat::Key;

/// Opens the page with the question of a lesson.
void open_question_of(AppState& state, int32_t lesson) {
  const auto& steps = gui::all_lessons()[static_cast<size_t>(lesson)].steps;
  for (size_t page = 0; page < steps.size(); ++page) {
    if (steps[page].question == nullptr) continue;
    ASSERT_TRUE(open_lesson(state, {lesson, static_cast<int32_t>(page)}));
    return;
  }
  FAIL() << "lesson " << lesson << " asks nothing";
}

constexpr int32_t kIdle = 1, kMoves = 4;

TEST(QuestionHands, ChooseRanksInTheViewsAndCheckThem) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  open_question_of(*state, kIdle);
  Hand hand(*state);
  hand.click("layout/chunk/q/192");  // rank 3, which works
  hand.click("layout/rank/0");
  EXPECT_EQ(state->answer.ranks, (std::vector<int32_t>{0, 3}));
  hand.click("lesson.check");
  EXPECT_FALSE(is_lesson_done(*state));
  const std::string why = gui::to_text(answer_feedback(*state));
  EXPECT_NE(why.find("Rank 3 computes"), std::string::npos) << why;
  EXPECT_NE(why.find("with the keys of rank 1"), std::string::npos) << why;
  EXPECT_NE(why.find("One rank is missing"), std::string::npos) << why;
  save_png_for_review("question_wrong_ranks", hand.picture());
  hand.click("layout/chunk/q/192");  // a second click takes it back
  EXPECT_EQ(state->answer.ranks, (std::vector<int32_t>{0}));
  hand.click("answer/rank/1");
  hand.click("lesson.check");
  EXPECT_TRUE(is_lesson_done(*state));
  save_png_for_review("question_right_ranks", hand.picture());
}

TEST(QuestionHands, TypeANumberAndPressEnter) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  open_question_of(*state, kMoves);
  Hand hand(*state);
  hand.click("answer/number");
  hand.type("7");
  hand.key(Key::enter);
  EXPECT_EQ(state->answer.typed, "7");
  EXPECT_TRUE(state->answer.is_checked);
  const std::string why = gui::to_text(answer_feedback(*state));
  EXPECT_TRUE(why.starts_with("Not yet: you typed 7 KiB. That is too little")) << why;
  save_png_for_review("question_wrong_number", hand.picture());
  hand.click("lesson.hint");
  EXPECT_TRUE(gui::to_text(answer_feedback(*state)).starts_with("Hint: "));
  hand.click("lesson.answer");
  EXPECT_TRUE(is_lesson_done(*state));
  save_png_for_review("question_shown_answer", hand.picture());
}

TEST(QuestionHands, FitInANarrowWindow) {
  for (const gui::Size size : {gui::Size{1366, 768}, gui::Size{390, 844}}) {
    const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
    open_question_of(*state, kIdle);
    Hand hand(*state, {.size = size});
    for (const char* part : {"answer/rank/0", "lesson.check", "lesson.hint", "lesson.answer"}) {
      const auto box = hand.find(part);
      ASSERT_TRUE(box) << part;
      EXPECT_GE(box->x0, 0) << part;
      EXPECT_LE(box->x1, size.width) << part;
      EXPECT_LE(box->y1, size.height) << part;
    }
    save_png_for_review("question_" + std::to_string(static_cast<int>(size.width)), hand.picture());
  }
}

}  // namespace
}  // namespace cpscope::tests
