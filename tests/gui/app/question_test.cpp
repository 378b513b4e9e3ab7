// The questions of the lessons, with figures that were counted here from the plan's items.
#include "gui/app/question.h"

#include "gui/app/command.h"
#include "gui/app/lesson.h"
#include "tests/gui/scenario_files.h"

#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AnswerKind;
using gui::AppState;
using gui::Lesson;
using gui::LessonPlace;

/// The places of all pages with a question.
std::vector<LessonPlace> question_pages() {
  std::vector<LessonPlace> places;
  const auto lessons = gui::all_lessons();
  for (size_t n = 0; n < lessons.size(); ++n) {
    for (size_t page = 0; page < lessons[n].steps.size(); ++page) {
      if (lessons[n].steps[page].question != nullptr)
        places.push_back({static_cast<int32_t>(n), static_cast<int32_t>(page)});
    }
  }
  return places;
}

/// The page with the question of the lesson with this title.
LessonPlace question_of(std::string_view title) {
  for (const LessonPlace& place : question_pages()) {
    if (gui::all_lessons()[static_cast<size_t>(place.lesson)].title == title) return place;
  }
  ADD_FAILURE() << title << " asks nothing";
  return {};
}

std::string feedback_of(const AppState& state) { return gui::to_text(answer_feedback(state)); }

int64_t count_numbers(const std::string& words) {
  const std::regex number("[0-9]+");
  return std::distance(std::sregex_iterator(words.begin(), words.end(), number),
                       std::sregex_iterator());
}

TEST(Questions, AreInEveryLessonButTheTwoThatShowRuns) {
  std::set<int32_t> lessons;
  for (const LessonPlace& place : question_pages()) lessons.insert(place.lesson);
  for (int32_t n = 0; n < static_cast<int32_t>(gui::all_lessons().size()); ++n) {
    const std::string_view title = gui::all_lessons()[static_cast<size_t>(n)].title;
    const bool shows_runs = title == "Reading an error map" || title == "Gallery of faults";
    EXPECT_NE(lessons.count(n) > 0, shows_runs) << title;
  }
}

TEST(Questions, HelpOnDemandAndExplainTheRightAnswerWithNumbers) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  for (const LessonPlace& place : question_pages()) {
    SCOPED_TRACE(gui::all_lessons()[static_cast<size_t>(place.lesson)].title);
    ASSERT_TRUE(open_lesson(*state, place));
    EXPECT_TRUE(feedback_of(*state).empty()) << "nothing before the reader wants it";
    EXPECT_FALSE(apply_command(*state, "lesson.check")) << "nothing is answered yet";
    ASSERT_TRUE(apply_command(*state, "lesson.hint"));
    EXPECT_TRUE(feedback_of(*state).starts_with("Hint: "));
    EXPECT_FALSE(is_lesson_done(*state));
    ASSERT_TRUE(apply_command(*state, "lesson.answer"));
    const std::string words = feedback_of(*state);
    EXPECT_TRUE(words.starts_with("Right: ")) << words;
    EXPECT_GE(count_numbers(words), 2) << words;
    EXPECT_TRUE(is_lesson_done(*state));
    ASSERT_TRUE(open_lesson(*state, place));
    EXPECT_FALSE(is_lesson_done(*state)) << "a page that opens again asks again";
  }
}

TEST(Questions, SayWhatWasChosenAndWhyItIsWrong) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  for (const LessonPlace& place : question_pages()) {
    SCOPED_TRACE(gui::all_lessons()[static_cast<size_t>(place.lesson)].title);
    ASSERT_TRUE(open_lesson(*state, place));
    const gui::Question& question = *open_question(*state);
    if (question.kind == AnswerKind::ranks) {
      const std::vector<int32_t> right = question.ranks(*state);
      ASSERT_FALSE(right.empty());
      ASSERT_LT(right.size(), static_cast<size_t>(state->plan()->num_ranks()));
      for (int32_t rank = 0; rank < state->plan()->num_ranks(); ++rank) {
        if (std::binary_search(right.begin(), right.end(), rank)) continue;
        state->answer = {};
        toggle_rank(*state, rank);
        check_answer(*state);
        const std::string words = feedback_of(*state), name = std::to_string(rank);
        EXPECT_TRUE(words.starts_with("Not yet: you chose rank " + name + ". Rank " + name))
            << words;
      }
      continue;
    }
    for (const char* typed : {"3.33", "77777", "-1", "abc", "", "1e999", "nan", "5 parsecs"}) {
      type_answer(*state, typed);
      check_answer(*state);
      EXPECT_FALSE(is_answered(*state)) << typed;
      const std::string words = feedback_of(*state);
      EXPECT_EQ(words.empty(), std::string(typed).empty()) << words;
    }
    for (const gui::Mistake& mistake : question.mistakes(*state)) {
      type_answer(*state, std::to_string(mistake.number) +
                              (question.kind == AnswerKind::bytes ? " B" : ""));
      check_answer(*state);
      EXPECT_NE(feedback_of(*state).find(mistake.why), std::string::npos) << feedback_of(*state);
    }
  }
}

TEST(Questions, KnowWhichRanksAreIdleInTheThirdStep) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  ASSERT_TRUE(open_lesson(*state, question_of("Why contiguous idles")));
  std::vector<int32_t> idle;
  for (const ComputeItem& item : state->plan()->plan().forward.computes) {
    if (to_index(item.step) == 2 && item.visible_pairs == 0) idle.push_back(to_index(item.rank));
  }
  EXPECT_EQ(open_question(*state)->ranks(*state), idle);
  EXPECT_EQ(idle, (std::vector<int32_t>{0, 1})) << "they hold the keys of ranks behind them";
}

TEST(Questions, HaveTheAnswersOfTheSchedules) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  const auto number_of = [&](std::string_view title) {
    EXPECT_TRUE(open_lesson(*state, question_of(title))) << title;
    return open_question(*state)->number(*state);
  };
  const auto ranks_of = [&](std::string_view title) {
    EXPECT_TRUE(open_lesson(*state, question_of(title))) << title;
    return open_question(*state)->ranks(*state);
  };
  // A ring of two hosts of 8: keys change the host once. 8 query heads read 2 KV heads.
  EXPECT_EQ(number_of("Rings inside hosts, and a ring of hosts"), 1);
  EXPECT_EQ(number_of("Grouped heads, and one latent row"), 4);
  EXPECT_EQ(number_of("Numbers of one byte"), 50);
  // Queries of 64 rows x 8 heads x 64 elements of 2 bytes go 3 hops, and o of as many rows goes to
  // 3 owners.
  EXPECT_EQ(number_of("Few queries, many keys"), (3 + 3) * 64 * 8 * 64 * 2);
  EXPECT_EQ(ranks_of("Queries one way, results the other"), (std::vector<int32_t>{3}));
  // Pairs grow with the square of the tokens, bytes with the tokens.
  EXPECT_NEAR(number_of("Transfers behind compute"), 2, 0.01);
  EXPECT_EQ(number_of("What a rank must hold"), 131072.0 * 8 * (128 + 128) * 2);
  // 375 tokens of at most 256 a rank.
  EXPECT_EQ(ranks_of("A CP size for each document").size(), 2U);
}

TEST(Questions, TakeBytesInAnyUnit) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  ASSERT_TRUE(open_lesson(*state, question_of("The way back")));
  int64_t bytes = 0;
  for (const TransferItem& item : state->plan()->plan().backward.transfers)
    bytes += to_index(item.src) == 2 ? item.bytes : 0;
  EXPECT_EQ(answer_unit(*state), "KiB");
  for (const std::string& typed :
       {std::to_string(static_cast<double>(bytes) / 1024), std::to_string(bytes) + " B",
        std::to_string(static_cast<double>(bytes) / 1048576) + "MiB"}) {
    type_answer(*state, typed);
    EXPECT_FALSE(is_answered(*state)) << "not checked";
    check_answer(*state);
    EXPECT_TRUE(is_answered(*state)) << typed << ": " << feedback_of(*state);
  }
  type_answer(*state, "1");
  EXPECT_FALSE(is_answered(*state)) << "a changed answer is not checked";
}

TEST(Questions, PredictTheBusiestRankOfAnotherLayout) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  ASSERT_TRUE(open_lesson(*state, question_of("Zigzag: two chunks a rank")));
  const double predicted = open_question(*state)->number(*state);
  Scenario scenario = state->document.scenario();
  scenario.parallel.layout = LayoutKind::contiguous;
  edit_scenario(*state, scenario, "parallel.layout");
  settle(*state);
  EXPECT_NEAR(predicted, state->plan()->summary().rank_max_over_mean, 1e-12);
}

}  // namespace
}  // namespace cpscope::tests
