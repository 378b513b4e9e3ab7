// Tiles against a loop over queries, keys and elements.

#include "reference/tile_attention.h"

#include "sim/run/dtype.h"
#include "tests/reference/tiny_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

constexpr double kEmptyLse = -std::numeric_limits<double>::infinity();

/// One head among `heads` in buffers of `rows` queries and `columns` keys.
struct TileCase {
  int64_t rows = 0, columns = 0;
  std::vector<BandSlice> bands;
  int32_t dim_qk = 5, dim_v = 3, heads = 1;
  int64_t tile_rows = 128, tile_columns = 384;
  double softcap = 0.0;
  Dtype dtype = Dtype::fp64;
};

template <class T>
struct TileRun {
  std::vector<T> q, k, v, d_out, o, lse, delta, dq, dk, dv;
  TileWork forward, backward;
};

bool is_visible_in(const TileCase& tiles, int64_t i, int64_t j) {
  return std::any_of(tiles.bands.begin(), tiles.bands.end(), [&](const BandSlice& band) {
    const int64_t offset = (j - band.k0) - (i - band.q0);
    return band.q0 <= i && i < band.q1 && band.k0 <= j && j < band.k1 && band.lo <= offset &&
           offset <= band.hi;
  });
}

template <class T>
std::vector<T> random_values(int64_t count, Dtype dtype, uint64_t seed) {
  TinyRandom random(seed);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<T>(round_to(dtype, random.next())));
  return values;
}

template <class T>
TileSettings<T> settings_of(const TileCase& tiles) {
  TileSettings<T> settings;
  settings.scale = 1.0 / std::sqrt(static_cast<double>(tiles.dim_qk));
  settings.softcap = tiles.softcap;
  settings.dtype = tiles.dtype;
  settings.dim_qk = tiles.dim_qk;
  settings.dim_v = tiles.dim_v;
  settings.tile_rows = tiles.tile_rows;
  settings.tile_columns = tiles.tile_columns;
  return settings;
}

/// The case's buffers with random numbers; outputs hold a number that would be noticed, dq, dk, dv
/// hold earlier sums of other heads.
template <class T>
TileRun<T> prepare(const TileCase& tiles) {
  TileRun<T> run;
  const int64_t q_rows = tiles.rows * tiles.heads, k_rows = tiles.columns * tiles.heads;
  run.q = random_values<T>(q_rows * tiles.dim_qk, tiles.dtype, 1);
  run.k = random_values<T>(k_rows * tiles.dim_qk, tiles.dtype, 2);
  run.v = random_values<T>(k_rows * tiles.dim_v, tiles.dtype, 3);
  run.d_out = random_values<T>(q_rows * tiles.dim_v, tiles.dtype, 4);
  run.o.assign(static_cast<size_t>(q_rows * tiles.dim_v), T(777));
  run.lse.assign(static_cast<size_t>(q_rows), T(777));
  run.dq.assign(run.q.size(), T(0));
  run.dk.assign(run.k.size(), T(0.5));
  run.dv.assign(run.v.size(), T(-0.25));
  return run;
}

/// Forward, delta and backward of the last head.
template <class T>
void run_tiles(const TileCase& tiles, TileRun<T>& run, TileScratch<T>& scratch) {
  const TileSettings<T> settings = settings_of<T>(tiles);
  const int64_t head = tiles.heads - 1;
  const auto view = [&](auto& values, int32_t lanes) {
    return HeadView<T>{values.data() + head * lanes, int64_t{tiles.heads} * lanes};
  };
  const auto read = [&](const auto& values, int32_t lanes) {
    return HeadView<const T>{values.data() + head * lanes, int64_t{tiles.heads} * lanes};
  };
  run.forward =
      tile_forward<T>(settings, tiles.bands, tiles.rows, read(run.q, tiles.dim_qk),
                      read(run.k, tiles.dim_qk), read(run.v, tiles.dim_v), view(run.o, tiles.dim_v),
                      run.lse.data() + head, tiles.heads, scratch);
  run.delta.clear();
  for (int64_t i = 0; i < tiles.rows; ++i)
    run.delta.push_back(dot_product<T>(read(run.o, tiles.dim_v).row(i),
                                       read(run.d_out, tiles.dim_v).row(i), tiles.dim_v));
  run.backward = tile_backward<T>(settings, tiles.bands, read(run.q, tiles.dim_qk),
                                  read(run.k, tiles.dim_qk), read(run.v, tiles.dim_v),
                                  read(run.d_out, tiles.dim_v), run.lse.data() + head, tiles.heads,
                                  run.delta.data(), view(run.dq, tiles.dim_qk),
                                  view(run.dk, tiles.dim_qk), view(run.dv, tiles.dim_v), scratch);
}

/// The formulas, one visible pair after another, in double.
template <class T>
struct Naive {
  const TileCase& tiles;
  const TileRun<T>& run;
  std::vector<double> o, lse, dq, dk, dv;  // of the last head, contiguous

  double at(const std::vector<T>& values, int64_t row, int32_t lanes, int64_t lane) const {
    return static_cast<double>(values[(row * tiles.heads + tiles.heads - 1) * lanes + lane]);
  }
  double dot(const std::vector<T>& a, int64_t i, const std::vector<T>& b, int64_t j,
             int32_t lanes) const {
    double sum = 0;
    for (int64_t lane = 0; lane < lanes; ++lane)
      sum += at(a, i, lanes, lane) * at(b, j, lanes, lane);
    return sum;
  }
  double logit(int64_t i, int64_t j) const {
    const double s = dot(run.q, i, run.k, j, tiles.dim_qk) / std::sqrt(tiles.dim_qk);
    return tiles.softcap > 0 ? tiles.softcap * std::tanh(s / tiles.softcap) : s;
  }

  void compute() {
    o.assign(static_cast<size_t>(tiles.rows * tiles.dim_v), 0.0);
    lse.assign(static_cast<size_t>(tiles.rows), kEmptyLse);
    dq.assign(static_cast<size_t>(tiles.rows * tiles.dim_qk), 0.0);
    dk.assign(static_cast<size_t>(tiles.columns * tiles.dim_qk), 0.5);
    dv.assign(static_cast<size_t>(tiles.columns * tiles.dim_v), -0.25);
    for (int64_t i = 0; i < tiles.rows; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < tiles.columns; ++j)
        sum += is_visible_in(tiles, i, j) ? std::exp(logit(i, j)) : 0.0;
      if (sum == 0) continue;
      lse[i] = std::log(sum);
      compute_row(i);
    }
  }

  void compute_row(int64_t i) {
    for (int64_t j = 0; j < tiles.columns; ++j) {
      if (!is_visible_in(tiles, i, j)) continue;
      const double p = std::exp(logit(i, j) - lse[i]);
      for (int32_t lane = 0; lane < tiles.dim_v; ++lane) {
        o[i * tiles.dim_v + lane] += p * at(run.v, j, tiles.dim_v, lane);
        dv[j * tiles.dim_v + lane] += p * at(run.d_out, i, tiles.dim_v, lane);
      }
    }
    double delta = 0;
    for (int32_t lane = 0; lane < tiles.dim_v; ++lane)
      delta += o[i * tiles.dim_v + lane] * at(run.d_out, i, tiles.dim_v, lane);
    for (int64_t j = 0; j < tiles.columns; ++j) {
      if (!is_visible_in(tiles, i, j)) continue;
      double ds = std::exp(logit(i, j) - lse[i]) *
                  (dot(run.d_out, i, run.v, j, tiles.dim_v) - delta) / std::sqrt(tiles.dim_qk);
      if (tiles.softcap > 0) ds *= 1 - std::pow(logit(i, j) / tiles.softcap, 2);
      for (int32_t lane = 0; lane < tiles.dim_qk; ++lane) {
        dq[i * tiles.dim_qk + lane] += ds * at(run.k, j, tiles.dim_qk, lane);
        dk[j * tiles.dim_qk + lane] += ds * at(run.q, i, tiles.dim_qk, lane);
      }
    }
  }
};

template <class T>
void expect_near_rows(const char* name, const TileCase& tiles, const std::vector<T>& seen,
                      int32_t lanes, const std::vector<double>& expected, double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / lanes, lane = static_cast<int64_t>(i) % lanes;
    const auto value =
        static_cast<double>(seen[(row * tiles.heads + tiles.heads - 1) * lanes + lane]);
    if (value == expected[i]) continue;
    ASSERT_NEAR(value, expected[i], tolerance)
        << name << " row " << row << " lane " << lane << " of " << tiles.rows << " x "
        << tiles.columns << " in tiles of " << tiles.tile_rows << " x " << tiles.tile_columns;
  }
}

template <class T>
void expect_formulas(const TileCase& tiles, TileScratch<T>& scratch, double tolerance) {
  TileRun<T> run = prepare<T>(tiles);
  run_tiles(tiles, run, scratch);
  Naive<T> naive{tiles, run, {}, {}, {}, {}, {}};
  naive.compute();
  expect_near_rows("out", tiles, run.o, tiles.dim_v, naive.o, tolerance);
  expect_near_rows("lse", tiles, run.lse, 1, naive.lse, tolerance);
  expect_near_rows("dq", tiles, run.dq, tiles.dim_qk, naive.dq, tolerance);
  expect_near_rows("dk", tiles, run.dk, tiles.dim_qk, naive.dk, tolerance);
  expect_near_rows("dv", tiles, run.dv, tiles.dim_v, naive.dv, tolerance);
  // No other head was written.
  for (int64_t row = 0; row < tiles.rows && tiles.heads > 1; ++row)
    ASSERT_EQ(run.lse[row * tiles.heads], T(777));
}

BandSlice band(int32_t q0, int32_t q1, int32_t k0, int32_t k1, int32_t lo, int32_t hi) {
  return {q0, q1, k0, k1, lo, hi};
}

/// Full, causal, bottom-right, windows, areas above a diagonal, several bands on one row, rows and
/// columns without visible cells, and a rectangle that its band hardly covers.
std::vector<TileCase> shapes() {
  constexpr int32_t kFar = 1'000;
  return {
      {1, 1, {band(0, 1, 0, 1, 0, 0)}},
      {7, 11, {band(0, 7, 0, 11, -kFar, kFar)}},
      {13, 13, {band(0, 13, 0, 13, -kFar, 0)}},
      {9, 17, {band(0, 9, 0, 17, -kFar, 8)}},
      {17, 9, {band(0, 17, 0, 9, -kFar, -8)}},
      {23, 23, {band(0, 23, 0, 23, -4, 2)}},
      {15, 15, {band(0, 15, 0, 15, 0, kFar)}},
      {20,
       31,
       {band(2, 9, 3, 12, -kFar, 0), band(2, 9, 14, 30, -kFar, kFar), band(11, 20, 0, 9, 1, 3),
        band(11, 20, 20, 31, -2, -1)}},
      {12, 12, {band(0, 12, 0, 12, 10, 11)}},
      {12, 12, {band(0, 12, 0, 12, -11, -11)}},
      {6, 6, {}},
  };
}

TEST(TileAttention, IsTheFormulaForEveryShapeAndTileSize) {
  TileScratch<double> scratch;  // reused between cases, as in the walker
  for (TileCase tiles : shapes()) {
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {1, 5}, {3, 2}, {4, 8}, {7, 7}, {128, 384}}) {
      for (const double softcap : {0.0, 0.8}) {
        tiles.tile_rows = rows;
        tiles.tile_columns = columns;
        tiles.softcap = softcap;
        tiles.heads = softcap > 0 ? 3 : 1;
        expect_formulas(tiles, scratch, 1e-13);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TileAttention, IsTheFormulaInSinglePrecision) {
  TileScratch<float> scratch;
  for (TileCase tiles : shapes()) {
    tiles.dtype = Dtype::fp32;
    tiles.tile_rows = 6;
    tiles.tile_columns = 5;
    expect_formulas(tiles, scratch, 3e-6);
    if (HasFatalFailure()) return;
  }
}

TEST(TileAttention, IsTheFormulaAcrossPackedSegments) {
  // Keys are packed 4096 at a time; the second band begins in the first segment.
  TileCase tiles{3, 9'001, {band(0, 3, 0, 9'001, -10, 8'999), band(1, 2, 0, 0, 0, 0)}};
  tiles.dim_qk = tiles.dim_v = 2;
  tiles.heads = 2;
  TileScratch<double> scratch;
  expect_formulas(tiles, scratch, 1e-13);
  tiles.bands = {band(0, 2, 4'000, 9'001, -10, 5'000), band(2, 3, 100, 4'200, -10, 5'000)};
  expect_formulas(tiles, scratch, 1e-13);
}

TEST(TileAttention, CountsTilesWithoutTheirEmptyEdges) {
  TileCase tiles{8, 8, {band(0, 8, 0, 8, -100, 0)}};
  tiles.tile_rows = tiles.tile_columns = 4;
  TileRun<double> run = prepare<double>(tiles);
  TileScratch<double> scratch;
  run_tiles(tiles, run, scratch);
  // Three tiles of 4 x 4 hold a visible cell.
  EXPECT_EQ(run.forward.flops, 3 * 16 * 2 * (tiles.dim_qk + tiles.dim_v));
  EXPECT_EQ(run.backward.flops, 3 * 16 * 2 * (3 * tiles.dim_qk + 2 * tiles.dim_v));
  tiles.bands = {band(0, 4, 0, 4, 3, 3)};
  run_tiles(tiles, run, scratch);
  EXPECT_EQ(run.forward.flops, 2 * (tiles.dim_qk + tiles.dim_v));
}

TEST(TileAttention, RoundsTheWeightsOfSixteenBitTypesAndNotTheirSum) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    TileCase tiles{9, 50, {band(0, 9, 0, 50, -100, 100)}};
    tiles.dtype = dtype;
    TileRun<float> run = prepare<float>(tiles);
    TileScratch<float> scratch;
    run_tiles(tiles, run, scratch);
    const Naive<float> naive{tiles, run, {}, {}, {}, {}, {}};
    double rounding_shows = 0;
    for (int64_t i = 0; i < tiles.rows; ++i) {
      double highest = kEmptyLse, sum = 0, weighted = 0, unrounded = 0;
      for (int64_t j = 0; j < tiles.columns; ++j) highest = std::max(highest, naive.logit(i, j));
      for (int64_t j = 0; j < tiles.columns; ++j) {
        const double p = std::exp(naive.logit(i, j) - highest);
        sum += p;
        weighted += round_to(dtype, p) * naive.at(run.v, j, tiles.dim_v, 1);
        unrounded += p * naive.at(run.v, j, tiles.dim_v, 1);
      }
      EXPECT_NEAR(run.o[i * tiles.dim_v + 1], weighted / sum, dtype == Dtype::bf16 ? 2e-5 : 3e-6);
      EXPECT_NEAR(run.lse[i], highest + std::log(sum), 1e-6);
      rounding_shows = std::max(rounding_shows, std::abs(weighted - unrounded) / sum);
    }
    EXPECT_GT(rounding_shows, dtype == Dtype::bf16 ? 1e-4 : 1e-5);
  }
}

/// Eigen's vectorised exp of -inf is not zero but the smallest number it can make; times a large
/// value the error would be visible.
template <class T>
void expect_masked_keys_weigh_nothing(T huge) {
  TileCase tiles{16, 16, {band(0, 16, 0, 16, -100, 0)}};
  tiles.dtype = sizeof(T) == 4 ? Dtype::fp32 : Dtype::fp64;
  TileRun<T> run = prepare<T>(tiles);
  const TileRun<T> before = [&] {
    TileRun<T> usual = run;
    TileScratch<T> scratch;
    run_tiles(tiles, usual, scratch);
    return usual;
  }();
  // Only the last query sees the last key.
  for (int32_t lane = 0; lane < tiles.dim_v; ++lane) run.v[15 * tiles.dim_v + lane] = huge;
  TileScratch<T> scratch;
  run_tiles(tiles, run, scratch);
  for (int64_t i = 0; i < 15 * tiles.dim_v; ++i) EXPECT_EQ(run.o[i], before.o[i]) << "value " << i;
  for (int64_t i = 0; i < 15 * tiles.dim_qk; ++i)
    EXPECT_EQ(run.dq[i], before.dq[i]) << "value " << i;
}

TEST(TileAttention, GivesMaskedKeysAWeightOfExactlyZero) {
  expect_masked_keys_weigh_nothing<float>(3e37f);
  expect_masked_keys_weigh_nothing<double>(1e307);
}

TEST(TileAttention, BearsLogitsOfAnySize) {
  TileCase tiles{6, 24, {band(0, 6, 0, 24, -100, 100)}};
  tiles.dtype = Dtype::fp32;
  tiles.tile_columns = 4;
  TileRun<float> run = prepare<float>(tiles);
  for (float& value : run.q) value *= 300.0f;
  TileScratch<float> scratch;
  run_tiles(tiles, run, scratch);
  for (const float value : run.o) {
    EXPECT_TRUE(std::isfinite(value));
    EXPECT_LE(std::abs(value), 1.5001f) << "an average of values lies between them";
  }
  for (const float value : run.dk) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace cpscope::reference
