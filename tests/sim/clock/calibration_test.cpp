// Fits of measured times alone; tests/program/calibrate_test.cpp tests the command with whole
// machines.
#include "sim/clock/calibration.h"

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(Fit, RefusesTimesThatCannotBe) {
  const std::vector<BandSlice> square{{0, 4096, 0, 4096, -4096, 4096}};
  const std::vector<ComputeSample> few{{"a", square, 4096, 4, 100.0}};
  EXPECT_NE(to_text(fit_tiles(few, 4).error()).find("too few samples of a compute: 1"),
            std::string::npos);
  std::vector<ComputeSample> samples(8, few[0]);
  samples[3].us = -2;
  samples[3].label = "the third";
  EXPECT_NE(to_text(fit_tiles(samples, 4).error()).find("the third has an invalid time"),
            std::string::npos);
  samples[3].us = std::nan("");
  EXPECT_FALSE(fit_tiles(samples, 4).ok());
  samples[3].us = 100;
  EXPECT_NE(to_text(fit_tiles(samples, 4).error()).find("whole tiles from masked"),
            std::string::npos);
  const std::vector<RowSample> level{{"small", 1e6, 8}, {"large", 1e8, 7}};
  EXPECT_NE(to_text(fit_rows(level).error()).find("no longer for more bytes"), std::string::npos);
  const std::vector<RowSample> one_size{{"a", 1e6, 8}, {"b", 1e6, 9}};
  EXPECT_NE(to_text(fit_rows(one_size).error()).find("as many bytes"), std::string::npos);
  EXPECT_FALSE(fit_rows({}).ok());
  EXPECT_FALSE(fit_curve({}, std::nullopt).ok());
  EXPECT_FALSE(fit_transfer_multiprocessors({}, 132).ok());
  EXPECT_FALSE(fit_host({}, Cluster(), Stack()).ok());
}

TEST(Fit, KeepsACurveAscendingThroughNoise) {
  const RowCost rows{.launch_us = 4, .copy_gb_s = 1000};
  const std::vector<WireSample> samples{{"late", 1e4, 1, 90},
                                        {"fast", 1e4, 1, 30},
                                        {"noisy", 1e5, 1, 90},
                                        {"small", 1e6, 3, 59},
                                        {"large", 1e8, 1, 1204}};
  const Result<Fit<LinkCurve>> fit = fit_curve(samples, rows);
  ASSERT_TRUE(fit.ok()) << to_text(fit.error());
  const std::vector<LinkCurve::Point>& points = fit.value().constants.points;
  ASSERT_EQ(points.size(), 4U);
  EXPECT_EQ(points[0].us, 25.98) << "the fastest of its size, less packing";
  EXPECT_EQ(points[1].us, 45) << "more bytes took no longer";
  EXPECT_EQ(points[2].us, 45);
  EXPECT_EQ(points[3].us, 1000);
  const Result<Fit<LinkCurve>> straight = fit_curve(samples, std::nullopt);
  ASSERT_TRUE(straight.ok()) << to_text(straight.error());
  EXPECT_EQ(straight.value().constants.points[0].us, 30) << "nothing was packed";
  EXPECT_EQ(straight.value().constants.points[3].us, 1204);
  Cluster cluster = load_cluster("h200x8", CPSCOPE_CLUSTERS).value();
  cluster.inside.one_peer = fit.value().constants;
  EXPECT_TRUE(parse_cluster(print_cluster(cluster), "c.toml").ok());
}

TEST(Fit, SolvesNonNegativeLeastSquaresExactlyWhereTheModelIsLinear) {
  // The unconstrained optimum has a negative constant; the best non-negative one is at 1.6.
  const std::vector<double> measured{1, 1, 1};
  const std::vector<std::vector<double>> rows{{0.5, 1}, {0.5, 0.5}, {0.75, -1}};
  const std::vector<double> fitted = fit_constants(
      measured, {1, 1},
      [&](size_t i, std::span<const double> c) { return rows[i][0] * c[0] + rows[i][1] * c[1]; });
  // Normal equations by hand: 1.0625 a + 0 b = 1.75, 0 a + 2.25 b = 0.5.
  EXPECT_NEAR(fitted[0], 1.75 / 1.0625, 1e-9);
  EXPECT_NEAR(fitted[1], 0.5 / 2.25, 1e-9);
  const std::vector<double> clipped = fit_constants(
      std::vector<double>{1, 2}, {1, 1},
      [&](size_t i, std::span<const double> c) { return c[0] + (i == 0 ? 2 : 1) * c[1]; });
  // Unconstrained: c1 = -1. With c1 = 0: errors c0 - 1 and c0 / 2 - 1, least at 1.2.
  EXPECT_EQ(clipped[1], 0);
  EXPECT_NEAR(clipped[0], 1.2, 1e-9);
}

TEST(Fit, RoundsToDigitsThatPrintShort) {
  EXPECT_EQ(fmt::format("{}", round_digits(1.61234567, 4)), "1.612");
  EXPECT_EQ(fmt::format("{}", round_digits(123456.7, 4)), "123500");
  EXPECT_EQ(fmt::format("{}", round_digits(0.000123456, 4)), "0.0001235");
  EXPECT_EQ(round_digits(0, 4), 0);
}

}  // namespace
}  // namespace cpscope::tests
