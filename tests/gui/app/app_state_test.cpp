#include "gui/app/app_state.h"

#include "gui/app/command.h"
#include "gui/app/prediction.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/walker_cases.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using gui::apply_command;
using gui::AppState;
using gui::Target;
using Json = nlohmann::ordered_json;

void open_case(AppState& state, const Scenario& scenario) {
  ASSERT_FALSE(state.document.load_text(print_scenario(scenario), "a.toml"));
  settle(state);
}

AppState make_state() {
  AppState state;
  open_case(state, walker_case({64, 40}, 4));
  return state;
}

/// A run whose numbers do not matter.
gui::SharedRun make_named_run(const std::string& name) {
  auto run = std::make_shared<gui::RunView>();
  run->name = name;
  return run;
}

AppState make_predicting_state() {
  AppState state;
  for (const char* name : {"h100x8", "h200x8"}) {
    Result<Cluster> cluster =
        load_cluster(name, std::string(CPSCOPE_SOURCE_DIR) + "/scenarios/clusters");
    EXPECT_TRUE(cluster.ok());
    if (cluster) state.services.clusters.push_back(std::move(cluster).value());
  }
  Scenario scenario = walker_case({64, 40}, 4);
  scenario.numerics.dtype = Dtype::bf16;
  open_case(state, scenario);
  return state;
}

TEST(Prediction, IsShownByTheTimelineAloneAndFollowsThePlan) {
  AppState state = make_predicting_state();
  EXPECT_EQ(view_input(state, gui::ViewKind::timeline).run_a, nullptr);
  choose_cluster(state, "h200x8", "");
  wait_for_prediction(state);
  const gui::ViewInput input = view_input(state, gui::ViewKind::timeline);
  ASSERT_NE(input.run_a, nullptr);
  EXPECT_TRUE(input.run_a->is_simulated);
  EXPECT_TRUE(input.shows_time);
  EXPECT_TRUE(std::is_sorted(
      input.run_a->events.begin(), input.run_a->events.end(),
      [](const ItemEvent& a, const ItemEvent& b) { return a.start_ns < b.start_ns; }));
  for (const gui::ViewKind kind : gui::kViewKinds) {
    if (kind == gui::ViewKind::timeline) continue;
    EXPECT_EQ(view_input(state, kind).run_a, nullptr) << to_name(kind);
  }
  const gui::SharedRun before = state.prediction.run;
  Scenario wider = state.document.scenario();
  wider.parallel.cp_size = 2;
  edit_scenario(state, wider, "parallel.cp_size");
  settle(state);
  EXPECT_EQ(view_input(state, gui::ViewKind::timeline).run_a, nullptr) << "times of another plan";
  wait_for_prediction(state);
  ASSERT_NE(view_input(state, gui::ViewKind::timeline).run_a, nullptr);
  EXPECT_NE(state.prediction.run, before);
  for (const ItemEvent& event : state.prediction.run->events) EXPECT_LT(to_index(event.rank), 2);
}

TEST(Prediction, StandsBesideARunThatHasAClock) {
  AppState state = make_predicting_state();
  auto measured = std::make_shared<gui::RunView>();
  measured->name = "A: cuda";
  measured->events = {{{Direction::forward, StageKind::compute, 0}, RankId{0}, StepId{0}, 0, 10}};
  state.run_a = measured;
  state.run_a_plan = state.document.plan();
  choose_cluster(state, "h200x8", "");
  wait_for_prediction(state);
  const gui::ViewInput input = view_input(state, gui::ViewKind::timeline);
  EXPECT_EQ(input.run_a, state.prediction.run.get());
  EXPECT_EQ(input.run_b, measured.get());
  EXPECT_EQ(view_input(state, gui::ViewKind::numbers).run_a, measured.get());
  EXPECT_EQ(describe_prediction(state), "Times are predicted for Eight H200 of one host, stack " +
                                            state.prediction.stack +
                                            "; those of A: cuda are measured.");
}

TEST(Prediction, SaysOnceWhyAClusterHasNoTimes) {
  AppState state = make_predicting_state();
  Scenario exact = state.document.scenario();
  exact.numerics.dtype = Dtype::fp64;
  edit_scenario(state, exact, "numerics.dtype");
  settle(state);
  choose_cluster(state, "h200x8", "");
  wait_for_prediction(state);
  EXPECT_EQ(state.prediction.run, nullptr);
  ASSERT_EQ(state.messages.size(), 1U);
  EXPECT_NE(state.messages.back().text.find("no kernel times for fp64"), std::string::npos)
      << state.messages.back().text;
  exact.parallel.cp_size = 2;
  edit_scenario(state, exact, "parallel.cp_size");
  settle(state);
  wait_for_prediction(state);
  EXPECT_EQ(state.messages.size(), 1U);
  choose_cluster(state, "h300", "");
  EXPECT_EQ(state.messages.size(), 2U);
}

TEST(Prediction, GoesThroughEveryChoiceAndBackToNone) {
  AppState state = make_predicting_state();
  const auto choices = list_choices(state);
  ASSERT_GE(choices.size(), 2U);
  for (const gui::ClusterChoice& choice : choices) {
    EXPECT_TRUE(apply_command(state, "timeline.cluster"));
    EXPECT_EQ(state.prediction.cluster, choice.cluster);
    EXPECT_EQ(state.prediction.stack, choice.stack);
  }
  EXPECT_TRUE(apply_command(state, "timeline.cluster"));
  EXPECT_TRUE(state.prediction.cluster.empty());
}

TEST(Prediction, IsPartOfASavedState) {
  AppState state = make_predicting_state();
  choose_cluster(state, "h100x8", "");
  AppState other = make_predicting_state();
  ASSERT_FALSE(load_state(other, save_state(state), "s.json"));
  EXPECT_EQ(other.prediction.cluster, "h100x8");
  EXPECT_EQ(other.prediction.stack, state.prediction.stack);
  EXPECT_TRUE(other.shows_time);
  EXPECT_EQ(save_state(other), save_state(state));
}

TEST(ShippedScenario, FindsTheFilesThatItNames) {
  const std::string folder = std::string(CPSCOPE_SOURCE_DIR) + "/scenarios";
  AppState state;
  state.services.scenario_folder = folder;
  state.services.scenario_source = [&](std::string_view name) -> std::optional<std::string> {
    std::ifstream file(folder + "/" + std::string(name) + ".toml");
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  };
  ASSERT_TRUE(open_shipped(state, "imported_order")) << state.messages.back().text;
  settle(state);
  ASSERT_NE(state.plan(), nullptr);
  // Saving must not overwrite a shipped file.
  EXPECT_EQ(state.document.path(), "imported_order.toml");
}

TEST(Selection, GoesBackAndForth) {
  AppState state = make_state();
  const Target a = gui::RankTarget{1}, b = gui::TokenRange{Side::q, 3, 9}, c = gui::StepTarget{2};
  for (const Target& target : {a, b, b, c}) select(state, target);
  EXPECT_EQ(state.focus_rank, 1) << "selecting a rank looks at it";
  EXPECT_TRUE(apply_command(state, "select.previous"));
  EXPECT_EQ(state.selected(), b);
  EXPECT_TRUE(apply_command(state, "select.previous"));
  EXPECT_EQ(state.selected(), a);
  EXPECT_TRUE(apply_command(state, "select.next"));
  EXPECT_EQ(state.selected(), b);
  select(state, gui::StepTarget{0});
  EXPECT_FALSE(apply_command(state, "select.next")) << "what came later is dropped";
  for (int i = 0; i < 3; ++i) apply_command(state, "select.previous");
  EXPECT_EQ(state.selected(), Target{});
  EXPECT_FALSE(apply_command(state, "select.previous"));
}

TEST(Selection, KeepsALimitedHistory) {
  AppState state = make_state();
  for (int64_t i = 0; i < 500; ++i) select(state, gui::TokenRange{Side::q, i % 50, i % 50 + 1});
  EXPECT_EQ(state.selection.targets.size(), gui::SelectionHistory::kMost);
  EXPECT_EQ(state.selected(), (Target{gui::TokenRange{Side::q, 49, 50}}));
}

TEST(Selection, WhatIsGoneIsNotPresentAndLightsNothing) {
  AppState state = make_state();
  select(state, gui::RankTarget{3});
  Scenario next = state.document.scenario();
  next.parallel.cp_size = 2;
  edit_scenario(state, next, "parallel.cp_size");
  settle(state);
  EXPECT_FALSE(is_present(*state.plan(), state.selected()));
  EXPECT_TRUE(project_all(state).selected.is_empty());
  EXPECT_EQ(state.focus_rank, 1) << "kept inside the plan";
  state.document.undo();
  EXPECT_TRUE(is_present(*state.plan(), state.selected()));
}

TEST(IsPresent, KnowsTheBordersOfEveryKind) {
  const AppState state = make_state();
  const gui::PlanIndex& plan = *state.plan();
  const int64_t q = plan.tokens(Side::q);
  const auto computes = static_cast<int64_t>(plan.pass(Direction::backward).computes.size());
  const auto steps = static_cast<int32_t>(plan.steps().size());
  const std::vector<std::pair<Target, bool>> cases = {
      {gui::TokenRange{Side::q, 0, q}, true},
      {gui::TokenRange{Side::q, 0, q + 1}, false},
      {gui::TokenRange{Side::kv, 5, 5}, false},
      {gui::TokenRange{Side::kv, -1, 5}, false},
      {gui::PairRange{0, 1, 0, q}, true},
      {gui::PairRange{0, 1, 0, q + 1}, false},
      {gui::RankTarget{3}, true},
      {gui::RankTarget{4}, false},
      {gui::LinkTarget{0, 3}, true},
      {gui::LinkTarget{0, -1}, false},
      {ItemId{Direction::backward, StageKind::compute, computes - 1}, true},
      {ItemId{Direction::backward, StageKind::compute, computes}, false},
      {gui::StepTarget{steps - 1}, true},
      {gui::StepTarget{steps}, false},
      {gui::RowTarget{4, 0, 1}, true},
      {gui::RowTarget{4, 0, 2}, false},
      {gui::RowTarget{0, 0, 3}, true},
      {gui::RowTarget{5, 0, 0}, false}};
  for (size_t i = 0; i < cases.size(); ++i)
    EXPECT_EQ(is_present(plan, cases[i].first), cases[i].second) << "case " << i;
}

TEST(AppState, PlaysByItsOwnClock) {
  AppState state = make_state();
  update(state, 10.0);
  ASSERT_TRUE(apply_command(state, "play"));
  update(state, 11.25);
  EXPECT_EQ(state.playhead.index, 2) << "one step a second, on from the first";
  apply_command(state, "speed.faster");
  update(state, 12.25);
  EXPECT_EQ(state.playhead.index, 4);
  apply_command(state, "play");
  const gui::Playhead held = state.playhead;
  update(state, 99.0);
  EXPECT_EQ(state.playhead, held);
  EXPECT_EQ(held.progress, 1.0);
}

TEST(AppState, RunsInTheBackgroundAndTakesTheRunOver) {
  AppState state = make_state();
  EXPECT_FALSE(apply_command(state, "run.cpu")) << "nobody can run anything";
  state.services.executors = {"cpu"};
  state.services.run = [](const std::string& executor, const gui::SharedPlan&,
                          gui::TaskControl&) -> Result<gui::SharedRun> {
    return make_named_run(executor);
  };
  EXPECT_FALSE(apply_command(state, "run.cuda"));
  ASSERT_TRUE(apply_command(state, "run.cpu"));
  while (state.job.task.is_running()) update(state, 0.0);
  ASSERT_TRUE(state.run_a);
  EXPECT_EQ(state.run_a->name, "cpu");
  EXPECT_EQ(view_input(state, gui::ViewKind::numbers).run_a, state.run_a.get());
  apply_command(state, "run.swap");
  EXPECT_EQ(state.run_b->name, "cpu");
  EXPECT_FALSE(state.run_a);
  // A run of another plan is not shown with this one.
  Scenario next = state.document.scenario();
  next.parallel.cp_size = 2;
  edit_scenario(state, next, "parallel.cp_size");
  EXPECT_EQ(view_input(state, gui::ViewKind::numbers).run_b, nullptr);
}

TEST(AppState, CancelsARun) {
  AppState state = make_state();
  state.services.executors = {"cpu"};
  state.services.run = [](const std::string&, const gui::SharedPlan&,
                          gui::TaskControl& control) -> Result<gui::SharedRun> {
    while (!control.is_stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return make_named_run("too late");
  };
  ASSERT_TRUE(apply_command(state, "run.cpu"));
  EXPECT_FALSE(apply_command(state, "run.cpu")) << "one at a time";
  ASSERT_TRUE(apply_command(state, "run.cancel"));
  for (int i = 0; i < 20; ++i) update(state, 0.1 * i);
  EXPECT_FALSE(state.run_a);
  ASSERT_FALSE(state.messages.empty());
  EXPECT_NE(state.messages.back().text.find("cancelled"), std::string::npos);
}

TEST(AppState, WaitsForARunElsewhereAndEndsItWhenItIsCancelled) {
  AppState state = make_state();
  state.services.executors = {"cpu"};
  state.services.run = [](const std::string&, const gui::SharedPlan&, gui::TaskControl&) {
    ADD_FAILURE() << "it runs elsewhere";
    return Result<gui::SharedRun>(make_named_run("here"));
  };
  bool is_ready = false;
  std::weak_ptr<int> worker;
  state.services.run_elsewhere = [&](const gui::RunOrder& order) {
    EXPECT_EQ(order.executor, "cpu");
    EXPECT_EQ(order.plan, state.document.plan());
    auto made = std::make_shared<int>();
    worker = made;
    return [&is_ready, made](gui::TaskControl& control) {
      control.progress = 0.5;
      return is_ready ? std::make_unique<Result<gui::SharedRun>>(make_named_run("elsewhere"))
                      : nullptr;
    };
  };
  ASSERT_TRUE(apply_command(state, "run.cpu"));
  update(state, 0);
  EXPECT_EQ(state.job.task.progress(), 0.5);
  EXPECT_FALSE(worker.expired());
  ASSERT_TRUE(apply_command(state, "run.cancel"));
  EXPECT_TRUE(worker.expired());
  ASSERT_TRUE(apply_command(state, "run.cpu"));
  is_ready = true;
  update(state, 0);
  ASSERT_TRUE(state.run_a);
  EXPECT_EQ(state.run_a->name, "elsewhere");
  EXPECT_FALSE(state.job.task.is_running());
  EXPECT_TRUE(worker.expired());
}

TEST(AppState, SaysWhyARunFailed) {
  AppState state = make_state();
  state.services.executors = {"cpu"};
  state.services.run = [](const std::string&, const gui::SharedPlan&,
                          gui::TaskControl&) -> Result<gui::SharedRun> {
    return make_error(ErrorKind::unavailable, "No memory");
  };
  apply_command(state, "run.cpu");
  while (state.job.task.is_running()) update(state, 0.0);
  ASSERT_EQ(state.messages.size(), 1u);
  EXPECT_TRUE(state.messages[0].is_error);
}

/// A state in which few values are the defaults.
AppState make_odd_state() {
  AppState state = make_state();
  state.theme = gui::ThemeName::print;
  state.playhead = {true, 5, 0.25};
  state.player.speed = 2.0;
  state.camera(gui::ViewKind::mask) = {{0.125, 0.5}, {0.1, 0.3}};
  select(state, gui::PairRange{1, 2, 3, 4});
  state.focus_view = gui::ViewKind::mask;
  state.is_enlarged = state.is_cumulative = state.shows_time = true;
  state.is_by_step = state.is_beside_b = true;
  state.focus_rank = 2;
  state.other_rank = 1;
  state.tensor = 3;
  state.dialog = gui::Dialog::help;
  return state;
}

TEST(StateFile, LoadsBackEqual) {
  AppState state = make_odd_state();
  const std::vector<Target> targets = {gui::Nothing{},
                                       gui::TokenRange{Side::kv, 3, 9},
                                       gui::PairRange{1, 2, 3, 4},
                                       gui::RankTarget{3},
                                       gui::LinkTarget{1, 2},
                                       ItemId{Direction::backward, StageKind::merge, 1},
                                       gui::StepTarget{5},
                                       gui::RowTarget{3, 7, 1}};
  for (const Target& target : targets) {
    state.selection.targets = {target};
    state.selection.at = 0;
    AppState back;
    const auto error = load_state(back, save_state(state), "s.json");
    ASSERT_FALSE(error) << to_text(*error);
    EXPECT_EQ(save_state(back), save_state(state));
    EXPECT_EQ(back.selected(), target);
    EXPECT_EQ(back.playhead, state.playhead);
    EXPECT_EQ(back.camera(gui::ViewKind::mask), state.camera(gui::ViewKind::mask));
    EXPECT_EQ(back.document.scenario(), state.document.scenario());
  }
}

TEST(StateFile, KeepsTheBordersBetweenViews) {
  AppState state = make_state();
  state.borders = gui::borders_around(gui::ViewKind::numbers);
  AppState back;
  ASSERT_FALSE(load_state(back, save_state(state), "s.json"));
  EXPECT_EQ(back.borders, state.borders);
  Json wrong = Json::parse(save_state(state));
  wrong["borders"] = {0, 0.5, 0.9, 0.2, 0.3, 0.6};
  const auto error = load_state(back, wrong.dump(), "s.json");
  ASSERT_TRUE(error);
  EXPECT_NE(to_text(*error).find("borders"), std::string::npos) << to_text(*error);
}

TEST(StateFile, LoadsAStateWithoutAScenario) {
  AppState back = make_state();
  ASSERT_FALSE(load_state(back, save_state(AppState{}), "s.json"));
  EXPECT_FALSE(back.document.is_open());
}

/// Collects a changed copy of a JSON value for every place in it that can be changed.
void for_every_place(const Json& root, const Json::json_pointer& at, std::vector<Json>& changed) {
  const Json& value = root.at(at);
  if (!at.empty()) {
    for (const Json& other :
         {Json(nullptr), Json("?"), Json(-7.5), Json::array({1}), Json(1e300)}) {
      Json copy = root;
      if (other.type() == value.type() && value.is_string() && at.to_string() == "/path") continue;
      copy[at] = other;
      changed.push_back(copy);
    }
  }
  if (!value.is_object()) return;
  Json extra = root;
  extra[at]["no_such_key"] = 1;
  changed.push_back(extra);
  for (const auto& [key, child] : value.items()) {
    Json copy = root;
    copy[at].erase(key);
    changed.push_back(copy);
    for_every_place(root, at / key, changed);
  }
}

TEST(StateFile, RefusesEveryChangeThatIsNoState) {
  AppState state = make_odd_state();
  const std::string before = save_state(state);
  std::vector<Json> changed;
  for_every_place(Json::parse(before), Json::json_pointer(""), changed);
  EXPECT_GT(changed.size(), 200u);
  for (const Json& json : changed) {
    const auto error = load_state(state, json.dump(), "s.json");
    ASSERT_TRUE(error) << json.dump(1);
    ASSERT_EQ(save_state(state), before) << to_text(*error);
  }
}

TEST(StateFile, RefusesWhatThePlanDoesNotHave) {
  AppState state = make_odd_state();
  const Json json = Json::parse(save_state(state));
  const std::vector<std::pair<std::string, Json>> changes = {
      {"/playhead/index", 99},
      {"/focus_rank", 4},
      {"/lesson", 999},
      {"/lesson_step", 1},
      {"/other_rank", 4},
      {"/selection/q_end", 4000},
      {"/cameras/mask/x", Json::array({0.5, 0.5})},
      {"/cameras/mask/x", Json::array({0.5, 1.5})},
      {"/scenario", "schema = 1"}};
  for (const auto& [place, value] : changes) {
    Json copy = json;
    copy[Json::json_pointer(place)] = value;
    EXPECT_TRUE(load_state(state, copy.dump(), "s.json")) << place;
  }
}

TEST(StateFile, RefusesBytesThatAreNoJson) {
  AppState state;
  for (const std::string text : {"", "{", "[]", "\"\"", "\xff\xfe", "{}", "nan"})
    EXPECT_TRUE(load_state(state, text, "s.json")) << text;
  EXPECT_TRUE(load_state(state, std::string(100'000, '['), "s.json"));
}

}  // namespace
}  // namespace cpscope::tests
