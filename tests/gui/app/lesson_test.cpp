#include "gui/app/lesson.h"

#include "gui/app/code_places.h"
#include "gui/app/command.h"
#include "gui/app/question.h"
#include "gui/model/axis.h"
#include "sim/clock/cluster.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "tests/support/graded_run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::Lesson;
using gui::LessonStep;

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Runs the walker and the oracle of the tests, as the window's runner.
Result<gui::SharedRun> grade_on_walker(const std::string& executor, const gui::SharedPlan& plan,
                                       gui::TaskControl&) {
  const CheckedPlan& checked = plan->checked();
  const auto graded = run_graded(checked.plan().scenario);
  auto run = std::make_shared<gui::RunView>();
  run->name = executor;
  const Answer& seen = graded->answer;
  const auto grade_of = [&](std::string_view name) -> const TensorGrade* {
    for (const TensorGrade& tensor : graded->grade.tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  };
  const Answer& exact = graded->verdict.exact;
  run->errors.push_back(gui::measure_errors(seen.out, exact.out, "out", grade_of("out")));
  run->errors.push_back(gui::measure_errors(seen.lse, exact.lse, "lse", grade_of("lse")));
  return gui::SharedRun(run);
}

AppState make_lesson_state() {
  AppState state;
  state.services.scenario_source = [](std::string_view name) {
    return read_file(std::string(CPSCOPE_SOURCE_DIR) + "/scenarios/" + std::string(name) + ".toml");
  };
  state.services.executors = {"cpu"};
  state.services.run = grade_on_walker;
  return state;
}

void wait_for_run(AppState& state) {
  while (state.job.task.is_running()) update(state, state.now_s);
}

/// Checks a page as the reader first sees it: it has text, and nothing is done yet.
void expect_fresh_page(const AppState& state) {
  const LessonStep& step = *current_step(state);
  ASSERT_TRUE(state.document.is_current());
  EXPECT_TRUE(state.messages.empty()) << state.messages.back().text;
  const gui::Spans words = lesson_text(state);
  ASSERT_FALSE(words.empty());
  for (const gui::Span& span : words) {
    EXPECT_TRUE(is_present(*state.plan(), span.target)) << span.text;
    for (const char c : span.text) EXPECT_TRUE(c >= ' ' && c <= '~') << span.text;
  }
  EXPECT_TRUE(is_present(*state.plan(), state.selected()));
  EXPECT_EQ(is_lesson_done(state), !has_task(step)) << "before: " << step.ask;
}

TEST(Lessons, AreAtLeastEightWithAQuestionEach) {
  EXPECT_GE(gui::all_lessons().size(), 8u);
  std::set<std::string_view> titles;
  for (const Lesson& lesson : gui::all_lessons()) {
    EXPECT_TRUE(titles.insert(lesson.title).second) << lesson.title;
    EXPECT_EQ(lesson.question.back(), '?') << lesson.title;
    EXPECT_GE(lesson.steps.size(), 2u) << lesson.title;
  }
}

TEST(Lessons, ARobotDoesWhatEveryPageAsksFor) {
  AppState state = make_lesson_state();
  int32_t pages = 0;
  for (int32_t n = 0; n < static_cast<int32_t>(gui::all_lessons().size()); ++n) {
    const Lesson& lesson = gui::all_lessons()[static_cast<size_t>(n)];
    ASSERT_TRUE(open_lesson(state, {n, 0})) << lesson.title;
    for (int32_t p = 0; p < static_cast<int32_t>(lesson.steps.size()); ++p) {
      SCOPED_TRACE(std::string(lesson.title) + ", page " + std::to_string(p + 1));
      ASSERT_EQ(state.lesson, (gui::LessonPlace{n, p}));
      expect_fresh_page(state);
      const LessonStep& step = *current_step(state);
      if (step.question != nullptr) {
        ASSERT_TRUE(apply_command(state, "lesson.answer"));
        EXPECT_TRUE(is_lesson_done(state));
        EXPECT_FALSE(answer_feedback(state).empty());
      } else if (!step.ask.empty()) {
        ASSERT_NE(step.perform, nullptr);
        ASSERT_NE(step.is_done, nullptr);
        step.perform(state);
        wait_for_run(state);
        EXPECT_TRUE(is_lesson_done(state)) << "after: " << step.ask;
      }
      ++pages;
      if (p + 1 < static_cast<int32_t>(lesson.steps.size())) {
        ASSERT_TRUE(apply_command(state, "lesson.next"));
      }
    }
  }
  EXPECT_GE(pages, 25);
}

TEST(Lessons, EveryPageCanBeOpenedAlone) {
  for (int32_t n = 0; n < static_cast<int32_t>(gui::all_lessons().size()); ++n) {
    const auto& steps = gui::all_lessons()[static_cast<size_t>(n)].steps;
    for (int32_t p = static_cast<int32_t>(steps.size()) - 1; p >= 0; --p) {
      SCOPED_TRACE(std::to_string(n) + "/" + std::to_string(p));
      AppState state = make_lesson_state();
      ASSERT_TRUE(open_lesson(state, {n, p}));
      EXPECT_FALSE(lesson_text(state).empty());
      EXPECT_FALSE(steps[static_cast<size_t>(p)].scenario.empty());
    }
  }
}

TEST(Lessons, CanBePagedToTheEndAndBack) {
  AppState state = make_lesson_state();
  ASSERT_TRUE(open_lesson(state, {0, 0}));
  int forwards = 0, backwards = 0;
  while (next_page(state)) ++forwards;
  while (previous_page(state)) ++backwards;
  EXPECT_EQ(forwards, backwards);
  EXPECT_EQ(state.lesson, (gui::LessonPlace{0, 0}));
  EXPECT_TRUE(state.messages.empty());
  close_lesson(state);
  EXPECT_EQ(current_step(state), nullptr);
}

TEST(Lessons, ForgetTheClusterOfTheirTimes) {
  AppState state = make_lesson_state();
  state.services.clusters.push_back(
      load_cluster("h200x8", std::string(CPSCOPE_SOURCE_DIR) + "/scenarios/clusters").value());
  const auto lessons = gui::all_lessons();
  const auto found = std::find_if(lessons.begin(), lessons.end(), [](const Lesson& lesson) {
    return lesson.title == "Transfers behind compute";
  });
  ASSERT_NE(found, lessons.end());
  ASSERT_TRUE(open_lesson(state, {static_cast<int32_t>(found - lessons.begin()), 0}));
  EXPECT_EQ(state.prediction.cluster, "h200x8");
  EXPECT_NE(to_text(lesson_text(state)).find("Predicted for"), std::string::npos);
  ASSERT_TRUE(next_page(state));
  EXPECT_TRUE(state.prediction.cluster.empty());
  ASSERT_TRUE(next_page(state));
  EXPECT_EQ(state.prediction.cluster, "h200x8");
  close_lesson(state);
  EXPECT_TRUE(state.prediction.cluster.empty());
  EXPECT_FALSE(state.shows_time);
}

TEST(Lessons, SayWhenTheirScenarioIsMissing) {
  AppState state;
  EXPECT_FALSE(open_lesson(state, {0, 0}));
  ASSERT_EQ(state.messages.size(), 1u);
  EXPECT_TRUE(state.messages[0].is_error);
  EXPECT_EQ(current_step(state), nullptr);
}

TEST(Lessons, KeepTheRunWhileTheirScenarioStaysTheSame) {
  AppState state = make_lesson_state();
  for (int32_t n = 0; n < static_cast<int32_t>(gui::all_lessons().size()); ++n) {
    if (gui::all_lessons()[static_cast<size_t>(n)].title != "Reading an error map") continue;
    ASSERT_TRUE(open_lesson(state, {n, 0}));
  }
  ASSERT_TRUE(apply_command(state, "run.cpu"));
  wait_for_run(state);
  ASSERT_TRUE(next_page(state));
  EXPECT_NE(view_input(state, gui::ViewKind::numbers).run_a, nullptr);
  EXPECT_NE(to_text(lesson_text(state)).find("Worst is"), std::string::npos);
}

TEST(Lessons, SpeakOfThePlanThatIsOpen) {
  AppState state = make_lesson_state();
  ASSERT_TRUE(open_lesson(state, {0, 0}));
  const std::string before = to_text(lesson_text(state));
  EXPECT_NE(before.find("256 tokens"), std::string::npos) << before;
  Scenario next = state.document.scenario();
  next.parallel.cp_size = 2;
  edit_scenario(state, next, "parallel.cp_size");
  EXPECT_NE(to_text(lesson_text(state)).find("2 ranks"), std::string::npos);
}

TEST(Lessons, StandAnyOtherScenario) {
  AppState state = make_lesson_state();
  const auto lessons = gui::all_lessons();
  for (size_t n = 0; n < lessons.size(); ++n) {
    for (size_t page = 0; page < lessons[n].steps.size(); ++page) {
      for (const char* other : {"zigzag", "thd_padding_a2a", "packed_group_cast", "chunked_thd_p2p",
                                "thd_padding_one_gpu"}) {
        ASSERT_TRUE(open_lesson(state, {static_cast<int32_t>(n), static_cast<int32_t>(page)}));
        Scenario wanted = state.document.scenario();
        ASSERT_TRUE(open_shipped(state, other));
        settle(state);
        EXPECT_FALSE(lesson_text(state).empty()) << lessons[n].title << " beside " << other;
        (void)is_lesson_done(state);
        (void)answer_feedback(state);
        // Without a backward and on one rank, so that nothing is transferred.
        wanted.numerics.backward = false;
        wanted.parallel.cp_size = 1;
        edit_scenario(state, wanted, "test");
        settle(state);
        EXPECT_FALSE(lesson_text(state).empty()) << lessons[n].title << " on one rank";
        (void)is_lesson_done(state);
        show_answer(state);
        (void)answer_feedback(state);
      }
    }
  }
}

TEST(Lessons, HaveAPageForEveryFaultOfTheGalleryWithItsFirstWrongPlaceSelected) {
  const auto lessons = gui::all_lessons();
  const auto gallery = std::find_if(lessons.begin(), lessons.end(), [](const Lesson& lesson) {
    return lesson.steps.front().fault != nullptr;
  });
  ASSERT_NE(gallery, lessons.end());
  const auto number = static_cast<int32_t>(gallery - lessons.begin());
  ASSERT_EQ(gallery->steps.size(), fault_catalogue().size());
  AppState state;  // without shipped scenarios
  for (size_t page = 0; page < gallery->steps.size(); ++page) {
    const Fault& fault = fault_catalogue()[page];
    SCOPED_TRACE(fault.name);
    ASSERT_TRUE(open_lesson(state, {number, static_cast<int32_t>(page)}));
    const std::string words = to_text(lesson_text(state));
    EXPECT_NE(words.find(fault.source), std::string::npos) << words;
    EXPECT_NE(words.find("Injected into this plan"), std::string::npos) << words;
    const FaultSite site = fault.plant(state.plan()->plan())->site;
    if (const auto* item = std::get_if<ItemId>(&state.selected())) {
      EXPECT_EQ(*item, site.item);
      EXPECT_EQ(state.plan()->stage_of(*item), state.playhead.index);
    } else {
      EXPECT_EQ(state.selected(), gui::Target(gui::RankTarget{to_index(site.rank)}));
    }
    EXPECT_TRUE(state.messages.empty());
  }
}

/// Numbers in a sentence must come from the plan, so no string in the sources contains a digit,
/// except formats ("{:.2f}"), dtypes and names of scenarios.
TEST(Lessons, HaveNoNumberTypedByHand) {
  const std::filesystem::path folder = std::string(CPSCOPE_SOURCE_DIR) + "/gui/app";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("lesson", 0) != 0 || entry.path().extension() != ".cpp") continue;
    ++files;
    std::istringstream text(*read_file(entry.path().string()));
    for (std::string line; std::getline(text, line);) {
      if (line.rfind("#include", 0) == 0 || line.rfind("//", 0) == 0) continue;
      const std::regex literal("\"((?:[^\"\\\\]|\\\\.)*)\"");
      for (auto it = std::sregex_iterator(line.begin(), line.end(), literal);
           it != std::sregex_iterator(); ++it) {
        std::string words = (*it)[1];
        words = std::regex_replace(words, std::regex("\\{:[^}]*\\}|fp(8|16|32|64)|p2p|a2a"), "");
        EXPECT_FALSE(std::regex_search(words, std::regex("[0-9]"))) << name << ": " << line;
      }
    }
  }
  EXPECT_GE(files, 4);
}

TEST(Lesson, KeepsItsPageInAStateFile) {
  const auto lessons = gui::all_lessons();
  for (int32_t n = 0; n < static_cast<int32_t>(lessons.size()); ++n) {
    for (int32_t page = 0; page < static_cast<int32_t>(lessons[n].steps.size()); ++page) {
      AppState state = make_lesson_state();
      ASSERT_TRUE(open_lesson(state, {n, page}));
      AppState back = make_lesson_state();
      const auto error = load_state(back, save_state(state), "s.json");
      ASSERT_FALSE(error.has_value()) << to_text(*error);
      ASSERT_NE(back.lesson_plan, nullptr) << "lesson " << n << ", page " << page;
      EXPECT_EQ(back.lesson_plan->plan().hash, state.lesson_plan->plan().hash);
      EXPECT_EQ(to_text(lesson_text(back)), to_text(lesson_text(state)));
    }
  }
}

TEST(Lesson, IsAboutItsOwnPlanWhenAStateHasAnother) {
  AppState state = make_lesson_state();
  ASSERT_TRUE(open_lesson(state, {0, 0}));
  Scenario scenario = state.document.scenario();
  scenario.parallel.comm_type = CommType::a2a;
  edit_scenario(state, scenario, "parallel.cp_comm_type");
  settle(state);
  AppState back = make_lesson_state();
  ASSERT_FALSE(load_state(back, save_state(state), "s.json").has_value());
  ASSERT_NE(back.lesson_plan, nullptr);
  EXPECT_EQ(back.lesson_plan->plan().hash, state.lesson_plan->plan().hash);
  EXPECT_EQ(to_text(lesson_text(back)), to_text(lesson_text(state)));
}

/// The text of a page that is open.
std::string text_of_page(AppState& state, int32_t lesson, int32_t step) {
  EXPECT_TRUE(open_lesson(state, {lesson, step}));
  std::string text;
  for (const gui::Span& span : lesson_text(state)) text += span.text;
  return text;
}

TEST(Lessons, FrameThePaddingThatAPageIsAbout) {
  AppState state = make_lesson_state();
  ASSERT_TRUE(open_lesson(state, {6, 1}));
  const gui::AxisSpan shown = state.camera(gui::ViewKind::layout).x;
  EXPECT_LT(shown.hi - shown.lo, 0.05) << "a few tokens around the padding";
  ASSERT_TRUE(open_lesson(state, {6, 2}));
  EXPECT_EQ(state.camera(gui::ViewKind::layout), gui::Camera{}) << "the next page shows all again";
}

/// The number of the lesson with this title.
int32_t lesson_of(std::string_view title) {
  const auto lessons = gui::all_lessons();
  const auto found = std::find_if(lessons.begin(), lessons.end(),
                                  [&](const Lesson& lesson) { return lesson.title == title; });
  EXPECT_NE(found, lessons.end()) << title;
  return static_cast<int32_t>(found - lessons.begin());
}

/// What the busiest rank of a plan sends forward.
int64_t busiest_bytes(const Scenario& scenario) {
  const Result<Plan> plan = make_plan(scenario);
  EXPECT_TRUE(plan.ok());
  const std::vector<int64_t> bytes = summarise(plan.value()).forward_bytes;
  return *std::max_element(bytes.begin(), bytes.end());
}

TEST(Lessons, NameTheCodeOfFrameworksOnTheirLastPage) {
  AppState state = make_lesson_state();
  int32_t named = 0;
  for (int32_t n = 0; n < static_cast<int32_t>(gui::all_lessons().size()); ++n) {
    const gui::Lesson& lesson = gui::all_lessons()[static_cast<size_t>(n)];
    const std::string place(gui::code_place(lesson.title));
    if (place.empty()) continue;
    ++named;
    const auto last = static_cast<int32_t>(lesson.steps.size()) - 1;
    EXPECT_NE(text_of_page(state, n, last).find("In code: " + place), std::string::npos);
    EXPECT_EQ(text_of_page(state, n, 0).find("In code: "), std::string::npos);
  }
  EXPECT_EQ(named, 11) << "every title is one of a lesson";
}

TEST(Lessons, SayWhereQueriesBeginToCostMoreThanKeys) {
  AppState state = make_lesson_state();
  const int32_t lesson = lesson_of("Few queries, many keys");
  Scenario ring = (text_of_page(state, lesson, 0), state.document.scenario());
  ring.parallel.comm_type = CommType::p2p;
  const std::string first = text_of_page(state, lesson, 0), second = text_of_page(state, lesson, 2);
  EXPECT_NE(first.find("it would send " + gui::print_bytes(busiest_bytes(ring))), std::string::npos)
      << first;
  EXPECT_NE(second.find("fewer than 0.246 queries for each key. Here there are 0.062: queries win"),
            std::string::npos)
      << second;
  // Plans of as many queries as make 0.24 and 0.25 of the keys.
  for (const auto& [queries, queries_win] : {std::pair<int64_t, bool>{984, true}, {1024, false}}) {
    Scenario scenario = ring;
    scenario.batch.lengths = scenario.batch.slots = {queries};
    const int64_t keys_travel = busiest_bytes(scenario);
    scenario.parallel.comm_type = CommType::pass_q;
    EXPECT_EQ(busiest_bytes(scenario) < keys_travel, queries_win) << queries;
  }
}

TEST(Lessons, CompareEveryMeshWithARing) {
  AppState state = make_lesson_state();
  const std::string text =
      text_of_page(state, lesson_of("A tile of queries and keys on every rank"), 2);
  for (const int32_t mesh_q : {1, 2, 4, 8, 16}) {
    Scenario scenario = state.document.scenario();
    scenario.parallel.mesh_q = mesh_q;
    const std::string words =
        fmt::format("mesh_q {}: {}", mesh_q, gui::print_bytes(busiest_bytes(scenario)));
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  }
}

TEST(Lessons, CountWhatThePlanDoes) {
  AppState state = make_lesson_state();
  EXPECT_NE(text_of_page(state, 4, 0).find("in 3 of 4 steps every rank passes"), std::string::npos)
      << "the last step of a ring sends nothing";
  const std::string finish = text_of_page(state, 7, 3);
  EXPECT_NE(finish.find("rounded to bf16, once"), std::string::npos) << finish;
  EXPECT_NE(finish.find("each of 3 merges"), std::string::npos) << finish;
  EXPECT_EQ(text_of_page(state, 9, 4).find("places 0 have"), std::string::npos);
}

// log(16 + 15 + 8 + 8) = 3.85. With lse to base two: 16^1.4427 = 54.6, 49.7, 20.1 and 20.1, of
// 144.5, whose logarithm is 4.97.
TEST(Lessons, ShowWhatAWrongBaseOfLseChanges) {
  AppState state = make_lesson_state();
  const std::string text = text_of_page(state, 11, 3);
  for (const char* words :
       {"query 0 of sequence 1 sees 16 + 15 + 8 + 8 keys", "lse 3.85. With the wrong base",
        "and lse 4.97.", "to the power of 1.44", "merged_with_lse_of_another_base"})
    EXPECT_NE(text.find(words), std::string::npos) << words << ": " << text;
}

TEST(Lessons, NameTwoDifferentValuesOfTheWorstRow) {
  AppState state = make_lesson_state();
  ASSERT_TRUE(open_lesson(state, {8, 0}));
  // The same page of a run in fp32, where seen and expected agree in the first figures.
  Scenario scenario = state.document.scenario();
  scenario.numerics.dtype = Dtype::fp32;
  edit_scenario(state, scenario, "numerics.dtype");
  settle(state);
  apply_command(state, "run.cpu");
  while (state.job.task.is_running() || !state.run_a) update(state, 0);
  std::string text;
  state.lesson.step = 1;
  state.lesson_plan = state.document.plan();
  for (const gui::Span& span : lesson_text(state)) text += span.text;
  std::smatch values;
  ASSERT_TRUE(std::regex_search(text, values, std::regex("with (\\S+) where (\\S+) is right")))
      << text;
  EXPECT_NE(values[1], values[2]) << text;
  EXPECT_EQ(text.find("budget is ,"), std::string::npos) << text;
}

}  // namespace
}  // namespace cpscope::tests
