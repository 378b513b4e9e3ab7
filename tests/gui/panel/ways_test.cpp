// The page of ways: all ways to split a batch, compared while the window is in use, hovered and
// taken by simulated input. No display.
#include "gui/app/ways.h"

#include "gui/app/command.h"
#include "gui/app/lesson.h"
#include "gui/app/prediction.h"
#include "gui/window/screenshot.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::compat::Key;
using gui::compat::Mods;

/// A shipped scenario and two clusters of eight GPUs, with the page of ways closed.
std::unique_ptr<AppState> open_with_clusters(const std::string& name) {
  auto state = std::make_unique<AppState>();
  for (const char* cluster : {"h100x8", "h200x8"})
    state->services.clusters.push_back(
        load_cluster(cluster, CPSCOPE_SCENARIOS "/clusters").value());
  EXPECT_TRUE(open_scenario(*state, CPSCOPE_SCENARIOS "/" + name + ".toml"));
  settle(*state);
  return state;
}

std::unique_ptr<AppState> open_ways(const std::string& name) {
  auto state = open_with_clusters(name);
  state->shows_ways = true;
  wait_for_ways(*state);
  return state;
}

/// All differences that two comparisons can have, one line per way. Keys that a way does not read
/// are left out: they come from the scenario.
std::string print(const Candidates& ways) {
  std::ostringstream text;
  text.precision(17);
  text << ways.cluster << ' ' << ways.stack << '\n' << recommend(ways) << '\n';
  for (size_t i = 0; i < ways.candidates.size(); ++i) {
    const Candidate& way = ways.candidates[i];
    text << way.name << ' ' << way.total_us() << ' ' << way.exposed_us << ' ' << way.bytes_sent
         << ' ' << way.memory_bytes << ' ' << way.kv_necessary << ' ' << way.refusal
         << (way.is_pareto ? " front" : "") << (way.is_wasteful ? " pads" : "")
         << (way.is_own ? " own" : "") << (static_cast<int64_t>(i) == ways.own ? " own" : "")
         << (static_cast<int64_t>(i) == ways.best ? " best" : "") << '\n';
  }
  return text.str();
}

/// The output of the command for the open scenario.
std::string compared_anew(const AppState& state) {
  const gui::ClusterName on = ways_cluster(state);
  for (const Cluster& cluster : state.services.clusters) {
    if (cluster.name != on.cluster) continue;
    CandidateOptions options;
    options.stack = on.stack;
    const Result<Candidates> compared =
        compare_candidates(state.document.scenario(), cluster, options);
    return compared ? print(compared.value()) : to_text(compared.error());
  }
  return "no cluster";
}

std::string shown(const AppState& state) {
  const gui::SharedCandidates ways = shown_ways(state);
  return ways ? print(*ways) : "nothing is shown";
}

int64_t find_way(const Candidates& ways, const std::string& name) {
  const auto found = std::find_if(ways.candidates.begin(), ways.candidates.end(),
                                  [&](const Candidate& way) { return way.name == name; });
  EXPECT_NE(found, ways.candidates.end()) << name;
  return found - ways.candidates.begin();
}

TEST(Ways, AreWhatTheCommandCompares) {
  const auto state = open_ways("thd_padding_p2p");
  EXPECT_EQ(ways_cluster(*state).cluster, "h200x8");
  EXPECT_EQ(shown(*state), compared_anew(*state));
  const auto page = open_with_clusters("thd_padding_p2p");
  page->services.is_page = true;
  page->shows_ways = true;
  wait_for_ways(*page);
  EXPECT_EQ(shown(*page), shown(*state)) << "one candidate after the other";
}

TEST(Ways, MarkTheFrontThatNobodyIsBeyond) {
  const auto state = open_ways("thd_padding_p2p");
  const gui::SharedCandidates ways = shown_ways(*state);
  ASSERT_NE(ways, nullptr);
  // Strictly better in one figure, no worse in the others. No candidate may beat one on the front;
  // each one off the front must be beaten by another one, or equal one on the front.
  // Times that are printed alike count as equal.
  const auto beats = [](const Candidate& a, const Candidate& b) {
    return is_as_good(a, b) && !is_as_good(b, a);
  };
  int64_t marked = 0;
  for (const Candidate& way : ways->candidates) {
    marked += way.is_pareto;
    bool is_beaten = false, has_twin = false;
    for (const Candidate& other : ways->candidates) {
      is_beaten |= beats(other, way);
      has_twin |=
          &other != &way && other.is_pareto && is_as_good(other, way) && is_as_good(way, other);
    }
    EXPECT_EQ(way.is_pareto, !is_beaten && !has_twin) << way.name;
  }
  EXPECT_GT(marked, 1);
}

TEST(Ways, ThatAreTakenStandAsIfTheyHadAlwaysBeenTheOwn) {
  const auto state = open_ways("thd_padding_p2p");
  const gui::SharedCandidates first = shown_ways(*state);
  int32_t taken = 0;
  for (const Candidate& way : first->candidates) {
    if (!way.refusal.empty() || way.is_own) continue;
    if (++taken % 5 != 0) continue;  // including some whose figures are all equal to another's
    ASSERT_TRUE(take_way(*state, find_way(*shown_ways(*state), way.name)));
    EXPECT_FALSE(state->ways.task.is_running()) << "nothing is compared again";
    EXPECT_EQ(shown(*state), compared_anew(*state)) << way.name;
  }
  EXPECT_GT(taken, 40);
  while (state->document.can_undo()) undo_edit(*state);
  wait_for_ways(*state);
  EXPECT_EQ(shown(*state), print(*first));
}

TEST(Ways, FollowTheBatchAndTheClusterAndKeepWhatWasCompared) {
  const auto state = open_ways("thd_padding_p2p");
  const gui::SharedCandidates first = shown_ways(*state);
  Scenario scenario = state->document.scenario();
  scenario.parallel.cp_size = 2;
  edit_scenario(*state, scenario, "parallel.cp_size");
  EXPECT_EQ(shown_ways(*state), nullptr) << "that of four ranks is none of two";
  wait_for_ways(*state);
  EXPECT_EQ(shown(*state), compared_anew(*state));
  undo_edit(*state);
  gui::update(*state, 0);
  EXPECT_EQ(shown_ways(*state), first);
  choose_cluster(*state, "h100x8", "");
  gui::update(*state, 0);
  EXPECT_EQ(shown_ways(*state), nullptr);
  wait_for_ways(*state);
  EXPECT_EQ(shown_ways(*state)->cluster, "h100x8");
  choose_cluster(*state, "", "");
  gui::update(*state, 0);
  EXPECT_EQ(shown_ways(*state), first);
}

TEST(Ways, AreComparedAnewForAWayThatIsNoneOfThem) {
  const auto state = open_ways("thd_padding_p2p");
  Scenario scenario = state->document.scenario();
  scenario.parallel.layout = LayoutKind::lpt_local;
  scenario.parallel.dispatch_chunk = 96;
  edit_scenario(*state, scenario, "parallel.dispatch_chunk");
  wait_for_ways(*state);
  EXPECT_EQ(shown(*state), compared_anew(*state));
  undo_edit(*state);
  wait_for_ways(*state);
  EXPECT_EQ(shown(*state), compared_anew(*state));
}

TEST(Ways, SayWhyThereAreNone) {
  const auto state = open_ways("thd_padding_p2p");
  const auto edit_ranks = [&](int32_t ranks) {
    Scenario scenario = state->document.scenario();
    scenario.parallel.cp_size = ranks;
    edit_scenario(*state, scenario, "parallel.cp_size");
    wait_for_ways(*state);
  };
  edit_ranks(16);
  EXPECT_EQ(shown_ways(*state), nullptr);
  EXPECT_NE(ways_refusal(*state).find("16"), std::string::npos) << ways_refusal(*state);
  edit_ranks(0);
  EXPECT_EQ(shown_ways(*state), nullptr);
  EXPECT_NE(ways_refusal(*state).find("correct"), std::string::npos) << ways_refusal(*state);
  EXPECT_FALSE(state->ways.task.is_running());
}

TEST(Ways, EndWithThePage) {
  const auto state = open_with_clusters("thd_padding_p2p");
  state->services.is_page = true;  // so that most of the work is still to do
  state->shows_ways = true;
  gui::update(*state, 0);
  EXPECT_TRUE(state->ways.task.is_running());
  state->shows_ways = false;
  gui::update(*state, 0);
  EXPECT_FALSE(state->ways.task.is_running());
  EXPECT_EQ(shown_ways(*state), nullptr);
}

TEST(Ways, ComeBackWithTheState) {
  const auto state = open_ways("thd_padding_p2p");
  const auto other = open_with_clusters("zigzag");
  ASSERT_FALSE(load_state(*other, save_state(*state), "state.json"));
  EXPECT_TRUE(other->shows_ways);
  wait_for_ways(*other);
  EXPECT_EQ(shown(*other), shown(*state));
}

TEST(WaysPage, OpensByKeyAndButtonAndClosesForAView) {
  const auto state = open_with_clusters("thd_padding_p2p");
  Hand hand(*state);
  hand.key(gui::compat::key_of('7'));
  EXPECT_TRUE(state->shows_ways);
  EXPECT_EQ(hand.hits().find("mask"), nullptr);
  hand.find("ways/recommendation");
  hand.key(gui::compat::key_of('2'));
  EXPECT_FALSE(state->shows_ways);
  hand.find("mask");
  hand.click("view.ways");
  EXPECT_TRUE(state->shows_ways);
  hand.key(Key::escape);
  EXPECT_FALSE(state->shows_ways);
  const auto help = gui::make_help();
  EXPECT_TRUE(std::any_of(help.begin(), help.end(), [](const gui::HelpLine& line) {
    return line.title == "Ways" && line.shortcuts == "7";
  }));
}

TEST(WaysPage, MakesRoomForALesson) {
  const auto state = open_ways("thd_padding_p2p");
  state->services.scenario_source = [](std::string_view name) {
    return std::optional(read_text(CPSCOPE_SCENARIOS "/" + std::string(name) + ".toml"));
  };
  ASSERT_TRUE(open_lesson(*state, {0, 0}));
  EXPECT_FALSE(state->shows_ways);
}

TEST(WaysPage, TakesAWayThatIsClickedAndUndoTakesItBack) {
  const auto state = open_ways("thd_padding_p2p");
  Hand hand(*state);
  const Parallel own = state->document.scenario().parallel;
  hand.click("ways/row/a2a, striped");
  EXPECT_EQ(state->document.scenario().parallel.comm_type, CommType::a2a);
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::striped);
  EXPECT_EQ(shown_ways(*state)->candidates[static_cast<size_t>(shown_ways(*state)->own)].name,
            "a2a, striped");
  hand.click("ways/way/p2p, contiguous");
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::contiguous);
  hand.click("edit.undo");
  hand.click("edit.undo");
  EXPECT_EQ(state->document.scenario().parallel, own);
  EXPECT_FALSE(state->document.can_undo());
  hand.click("edit.best_way");
  EXPECT_EQ(shown_ways(*state)->own, shown_ways(*state)->best);
  EXPECT_EQ(hand.hits().find("edit.best_way"), nullptr) << "it is taken";
}

TEST(WaysPage, TellsFiguresOfWhatIsPointedAt) {
  const auto state = open_ways("thd_padding_p2p");
  Hand hand(*state);
  const gui::SharedCandidates ways = shown_ways(*state);
  EXPECT_EQ(inspect_way(*state).heading, "p2p, dual_chunk") << "the own one, if none is";
  hand.move_to("ways/row/a2a, striped");
  EXPECT_EQ(state->ways.hovered, find_way(*ways, "a2a, striped"));
  const gui::Inspection told = inspect_way(*state);
  EXPECT_EQ(told.heading, "a2a, striped");
  std::string all;
  for (const gui::InspectionRow& row : told.rows)
    all += row.label + ": " + to_text(row.value) + "\n";
  for (const char* part : {"forward", "longer than the best", "exposed transfers", "necessary",
                           "x the mean", "of 139.8 GiB"})
    EXPECT_NE(all.find(part), std::string::npos) << part << " in\n" << all;
  hand.move_to("ways/recommendation");
  EXPECT_EQ(state->ways.hovered, -1);
}

TEST(WaysPage, NamesWhatIsRefusedAndDoesNotTakeIt) {
  const auto state = open_with_clusters("zigzag");  // this scenario has four heads
  Scenario scenario = state->document.scenario();
  scenario.parallel.cp_size = 8;
  edit_scenario(*state, scenario, "parallel.cp_size");
  state->shows_ways = true;
  wait_for_ways(*state);
  Hand hand(*state, {.size = {1440, 1400}});
  hand.wheel("ways/list", -100);
  hand.move_to("ways/row/a2a, striped");
  const gui::Inspection told = inspect_way(*state);
  ASSERT_EQ(told.rows.size(), 1U);
  EXPECT_NE(to_text(told.rows[0].value).find("heads"), std::string::npos);
  hand.click("ways/row/a2a, striped");
  EXPECT_EQ(state->document.scenario().parallel, scenario.parallel);
}

TEST(WaysPage, ChoosesItsClusterAndStandsOnSmallDisplays) {
  const auto state = open_ways("thd_padding_p2p");
  for (const gui::Size size : {gui::Size{1440, 900}, {1000, 600}, {640, 480}, {320, 240}}) {
    Hand hand(*state, {.size = size});
    EXPECT_TRUE(state->shows_ways);
  }
  Hand hand(*state);
  hand.click("ways/cluster");
  hand.click("ways/cluster/h100x8/cpscope");
  wait_for_ways(*state);
  EXPECT_EQ(shown_ways(*state)->cluster, "h100x8");
}

TEST(WaysPage, IsWrittenAsATableAndAsPictures) {
  const auto state = open_ways("thd_padding_p2p");
  const auto folder =
      std::filesystem::temp_directory_path() / ("cpscope_ways_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  Hand hand(*state);
  for (const char* name : {"ways.csv", "ways.svg", "ways.png"}) {
    const std::string path = (folder / name).string();
    hand.key(gui::compat::key_of('E'), Mods{.ctrl = true});
    hand.click("dialog/path");
    hand.type(path);
    hand.click("dialog/ok");
    ASSERT_TRUE(hand.wait_until([&] { return !state->saving.task.is_running(); }));
    grant_wish(*state, {});
    ASSERT_FALSE(state->messages.empty());
    EXPECT_EQ(state->messages.back().text, "Wrote " + path);
  }
  EXPECT_EQ(read_text((folder / "ways.csv").string()), comparison_csv(*shown_ways(*state)));
  EXPECT_NE(read_text((folder / "ways.svg").string()).find("own: p2p, dual_chunk"),
            std::string::npos);
  EXPECT_TRUE(read_text((folder / "ways.png").string()).starts_with("\x89PNG"));
  std::filesystem::remove_all(folder);
}

/// Not compared; made for visual review: CPSCOPE_REVIEW=1, out/review.
TEST(WaysPage, FitsEveryTheme) {
  const auto state = open_ways("one_long_many_short");
  for (const gui::ThemeName theme : gui::kThemeNames) {
    state->theme = theme;
    Hand hand(*state, {.size = {1600, 1000}, .fonts = gui::FontChoice::packages});
    save_png_for_review("ways_" + std::string(to_name(theme)), hand.picture());
    EXPECT_NE(hand.hits().find("ways/list"), nullptr);
  }
}

TEST(Ways, SayThatLaunchesDecideAndOfferALargerBatch) {
  const auto state = open_ways("zigzag");
  Hand hand(*state);
  EXPECT_NE(warn_of_launches(*state).find("Launches and the host take"), std::string::npos);
  hand.click("ways/enlarge");
  wait_for_ways(*state);
  EXPECT_EQ(state->document.scenario().batch.lengths, (std::vector<int64_t>{128 * 1024}));
  EXPECT_FALSE(enlarge_batch(*state)) << "it is large now";
  undo_edit(*state);
  EXPECT_EQ(state->document.scenario().batch.lengths, (std::vector<int64_t>{256}));
}

TEST(Ways, PredictTheTimeThatTheTimelineShows) {
  const auto state = open_ways("zigzag");
  const gui::SharedCandidates ways = shown_ways(*state);
  ASSERT_NE(ways, nullptr);
  const gui::ClusterName on = ways_cluster(*state);
  choose_cluster(*state, on.cluster, on.stack);
  wait_for_prediction(*state);
  ASSERT_NE(state->prediction.run, nullptr);
  const Candidate& own = ways->candidates[static_cast<size_t>(ways->own)];
  EXPECT_NEAR(static_cast<double>(state->prediction.run->total_ns) * 1e-3, own.total_us(),
              own.total_us() * 1e-6);
}

}  // namespace
}  // namespace cpscope::tests
