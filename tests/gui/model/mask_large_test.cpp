#include "gui/model/mask/mask_view.h"
#include "gui/model/traffic/traffic_view.h"
#include "tests/gui/model/random_plans.h"
#include "tests/gui/model/view_check.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <variant>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::PlanIndex;
using gui::View;

Scenario million_tokens(LayoutKind layout) {
  Scenario scenario = walker_case({1 << 20}, 1024);
  scenario.parallel.layout = layout;
  scenario.parallel.stripe = 1;
  scenario.numerics.backward = false;
  return scenario;
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Draws both views with many cameras; prints the slowest first and repeated picture, asserts no
/// time.
void look_around(const PlanIndex& index, const char* name) {
  std::mt19937_64 random(3);
  Asked mask(index, {1200, 800}), traffic(index, {1200, 800});
  double slowest_first = 0, slowest_again = 0;
  for (int n = 0; n < 24; ++n) {
    // First the whole picture, then closer and closer to the diagonal, then random parts.
    const double width = std::exp2(-n);
    mask.input.camera =
        n < 14 ? gui::Camera{{0.3, 0.3 + width}, {0.3, 0.3 + width}} : random_camera(random);
    if (n == 0) mask.input.camera = {};
    mask.input.moment = index.moment_of_step(static_cast<int32_t>(random() % 1024));
    traffic.input.camera = mask.input.camera;
    traffic.input.moment = mask.input.moment;
    traffic.input.is_cumulative = n % 2 == 0;
    const double start = now_ms();
    expect_sound(draw_mask(mask.input));
    const double first = now_ms();
    const View again = draw_mask(mask.input);
    const double second = now_ms();
    expect_sound(draw_traffic(traffic.input));
    if (testing::Test::HasFatalFailure()) return;
    slowest_first = std::max(slowest_first, first - start);
    slowest_again = std::max(slowest_again, second - first);
  }
  std::printf("%s: a new camera of the mask takes up to %.0f ms, a kept one up to %.1f ms\n", name,
              slowest_first, slowest_again);
}

TEST(MaskLarge, AMillionTokensOn1024RanksStaySound) {
  const auto plan = plan_unless_refused(million_tokens(LayoutKind::dual_chunk));
  ASSERT_TRUE(plan);
  look_around(PlanIndex(*plan), "dual_chunk");
}

TEST(MaskLarge, AMillionTokensStripedOver1024RanksStaySound) {
  const auto plan = plan_unless_refused(million_tokens(LayoutKind::striped));
  ASSERT_TRUE(plan);
  look_around(PlanIndex(*plan), "striped");
}

}  // namespace
}  // namespace cpscope::tests
