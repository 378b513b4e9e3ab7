// Random input (monkey test): clicks, drags, wheels, keys and typing, one event a frame. Nothing
// may crash, and no plan without its proof may ever be shown.
#include "gui/app/app_state.h"
#include "gui/app/command.h"
#include "gui/app/prediction.h"
#include "gui/app/ways.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"

#include <cmath>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::Point;
using gui::compat::Key;

constexpr const char* kShipped[] = {
    "zigzag",          "contiguous_idle", "thd_padding_p2p",
    "thd_padding_a2a", "striped",         "packed_group_cast",
    "cross_attention", "swa_thd_ring",    "thd_padding_hierarchical"};

class Monkey {
 public:
  explicit Monkey(uint64_t seed) : random_(seed) {
    state_.services.scenario_source = read_scenarios_of(CPSCOPE_SCENARIOS);
    state_.services.scenario_names.assign(std::begin(kShipped), std::end(kShipped));
    // Saving and opening would access files of this machine.
    state_.services.has_files = false;
    if (Result<Cluster> cluster = load_cluster("h200x8", CPSCOPE_SCENARIOS "/clusters"))
      state_.services.clusters.push_back(std::move(cluster).value());
    EXPECT_EQ(state_.services.clusters.size(), 1U);
    EXPECT_TRUE(open_shipped(state_, "zigzag"));
    hand_ = std::make_unique<Hand>(state_, Hand::Options{.size = {1100, 700}});
  }

  /// Makes one event and one frame.
  void act() {
    gui::Offscreen& screen = hand_->offscreen();
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        screen.move_mouse(somewhere());
        break;
      case 4:
      case 5:
        screen.press();
        break;
      case 6:
      case 7:
        screen.release();
        break;
      case 8:
        screen.turn_wheel(static_cast<float>(below(7)) - 3.0f);
        break;
      case 9:
      case 10:
        press_random_key();
        break;
      case 11:
        screen.type(std::string(1, "0123456789,- "[below(13)]));
        break;
    }
    hand_->frames(1);
    while (screen.has_events()) hand_->frames(1);
    // All runs must be equal, however fast this machine is.
    wait_for_prediction(state_);
    wait_for_ways(state_);
    keep_small();
  }

  /// The error in the current state; empty when there is none.
  std::string complaint() const {
    const gui::PlanIndex* plan = state_.plan();
    if (plan == nullptr) return "";
    for (const CheckResult& check : plan->checked().checks())
      if (!check.ok) return check.name + ": " + check.detail;
    if (!plan->checked().admitted_because().empty()) return "a faulty plan is shown";
    const auto places = count_places(*plan, state_.playhead.is_by_stage);
    if (state_.playhead.index < 0 || state_.playhead.index >= places) return "the playhead is off";
    if (state_.focus_rank < 0 || state_.focus_rank >= plan->num_ranks()) return "no such rank";
    for (const gui::Camera& camera : state_.cameras) {
      for (const gui::AxisSpan& span : {camera.x, camera.y})
        if (!(span.lo >= 0 && span.hi <= 1 && span.lo < span.hi)) return "a camera is off";
    }
    return "";
  }

  const AppState& state() const { return state_; }

 private:
  uint32_t below(uint32_t count) { return static_cast<uint32_t>(random_() % count); }

  /// A random position, usually on a widget.
  Point somewhere() {
    const auto& all = hand_->hits().all();
    if (all.empty() || below(4) == 0)
      return {static_cast<float>(below(1100)), static_cast<float>(below(700))};
    auto it = all.begin();
    std::advance(it, below(static_cast<uint32_t>(all.size())));
    const gui::Box& box = it->second;
    return {box.x0 + box.width() * static_cast<float>(below(100)) / 100.0f,
            box.y0 + box.height() * static_cast<float>(below(100)) / 100.0f};
  }

  void press_random_key() {
    constexpr Key kKeys[] = {
        Key::space,  Key::comma, Key::period, Key::left_bracket, Key::right_bracket,
        Key::escape, Key::enter, Key::tab,    Key::backspace,    Key::right,
        Key::left,   Key::down,  Key::up,     Key::page_up,      Key::page_down,
        Key::home,   Key::end};
    const uint32_t pick = below(60);
    const Key key = pick < std::size(kKeys) ? kKeys[pick]
                    : pick < 50 ? gui::compat::key_of(static_cast<char>('A' + below(26)))
                                : gui::compat::key_of(static_cast<char>('0' + below(10)));
    const gui::compat::Mods mods{below(4) == 0, below(5) == 0, below(8) == 0};
    hand_->offscreen().press_key(key, mods);
    hand_->offscreen().release_key(key);
  }

  /// Limits what the test has typed: planning must not dominate its time.
  void keep_small() {
    const bool is_large =
        state_.document.is_open() && (state_.document.scenario().parallel.cp_size > 64 ||
                                      total(state_.document.scenario().batch.lengths) > 20'000 ||
                                      total(state_.document.scenario().batch.slots) > 20'000);
    if (!is_large && below(400) != 0) return;
    state_.document.wait();
    open_shipped(state_, kShipped[below(std::size(kShipped))]);
  }

  static double total(const std::vector<int64_t>& values) {
    double sum = 0;
    for (const int64_t value : values) sum += static_cast<double>(value);
    return sum;
  }

  std::mt19937_64 random_;
  AppState state_;
  std::unique_ptr<Hand> hand_;
};

TEST(Monkey, NeitherCrashesTheWindowNorSeesAnUnprovedPlan) {
  constexpr uint64_t kSeed = 20'261'121;
  Monkey monkey(kSeed);
  for (int64_t event = 0; event < CPSCOPE_MONKEY_EVENTS; ++event) {
    monkey.act();
    ASSERT_EQ(monkey.complaint(), "") << "after event " << event;
  }
}

}  // namespace
}  // namespace cpscope::tests
