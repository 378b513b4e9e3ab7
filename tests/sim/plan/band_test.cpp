#include "sim/plan/band.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

/// The definition, cell by cell.
bool holds(const Band& band, int64_t q, int64_t k) {
  if (q < band.q0 || q >= band.q1 || k < band.k0 || k >= band.k1) return false;
  const int64_t diagonal = (k - band.k0) - (q - band.q0);
  return band.lo <= diagonal && diagonal <= band.hi;
}

std::string show_band(const Band& band) {
  return "band q[" + std::to_string(band.q0) + ", " + std::to_string(band.q1) + ") k[" +
         std::to_string(band.k0) + ", " + std::to_string(band.k1) + ") lo " +
         std::to_string(band.lo) + " hi " + std::to_string(band.hi);
}

constexpr int64_t kReach = 8;  // all cells of the bands below are in [0, kReach)^2

int64_t count_cells(const Band& band, int64_t q0 = 0, int64_t q1 = kReach, int64_t k0 = 0,
                    int64_t k1 = kReach) {
  int64_t cells = 0;
  for (int64_t q = q0; q < q1; ++q) {
    for (int64_t k = k0; k < k1; ++k) cells += holds(band, q, k) ? 1 : 0;
  }
  return cells;
}

void for_each_small_band(const std::function<void(const Band&)>& visit) {
  for (int64_t rows = 0; rows <= 5; ++rows) {
    for (int64_t columns = 0; columns <= 5; ++columns) {
      for (int64_t lo = -6; lo <= 6; ++lo) {
        for (int64_t hi = -6; hi <= 6; ++hi) {
          if (testing::Test::HasFailure()) return;
          visit({2, 2 + rows, 1, 1 + columns, lo, hi});
        }
      }
    }
  }
}

void for_each_tile(const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit) {
  for (int64_t q0 = 0; q0 < kReach; q0 += 2) {
    for (int64_t q1 = q0 + 1; q1 <= kReach; q1 += 2) {
      for (int64_t k0 = 0; k0 < kReach; ++k0) {
        for (int64_t k1 = k0 + 1; k1 <= kReach; k1 += 2) visit(q0, q1, k0, k1);
      }
    }
  }
}

std::string show_tile(int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
  return ", tile q[" + std::to_string(q0) + ", " + std::to_string(q1) + ") k[" +
         std::to_string(k0) + ", " + std::to_string(k1) + ")";
}

TEST(Band, CountsItsCells) {
  for_each_small_band(
      [](const Band& band) { EXPECT_EQ(count_pairs(band), count_cells(band)) << show_band(band); });
}

TEST(Band, CountsWithLimitsThatNoCellReaches) {
  EXPECT_EQ(count_pairs({0, 3, 0, 5, kNoLow, kNoHigh}), 15);
  EXPECT_EQ(count_pairs({0, 3, 0, 5, kNoLow, 0}), 6);
  EXPECT_EQ(count_pairs({0, 3, 0, 5, 2, kNoHigh}), 6);
  EXPECT_EQ(count_pairs({0, 1 << 20, 0, 1 << 20, kNoLow, 0}),
            (int64_t{1} << 19) * ((int64_t{1} << 20) + 1));
}

TEST(Band, CountsTheCellsOfSomeOfItsRows) {
  for_each_small_band([](const Band& band) {
    for (int64_t begin = 0; begin < kReach; ++begin) {
      for (int64_t end = begin; end <= kReach; ++end) {
        EXPECT_EQ(count_pairs_in_rows(band, begin, end), count_cells(band, begin, end))
            << show_band(band) << ", rows [" << begin << ", " << end << ")";
      }
    }
  });
}

TEST(Band, CountsTheCellsOfATile) {
  for_each_small_band([](const Band& band) {
    for_each_tile([&](int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
      EXPECT_EQ(count_pairs_in_tile(band, q0, q1, k0, k1), count_cells(band, q0, q1, k0, k1))
          << show_band(band) << show_tile(q0, q1, k0, k1);
    });
  });
}

TEST(Band, NamesTheColumnsThatARowSees) {
  for_each_small_band([](const Band& band) {
    for (int64_t q = 0; q < kReach; ++q) {
      const ColumnRange seen = columns_of_row(band, q);
      for (int64_t k = 0; k < kReach; ++k) {
        EXPECT_EQ(k >= seen.begin && k < seen.end, holds(band, q, k))
            << show_band(band) << ", row " << q << ", column " << k;
      }
    }
  });
}

TEST(Band, KeepsItsCellsWhenTightened) {
  for_each_small_band([](const Band& band) {
    const Band tight = tighten(band);
    for (int64_t q = 0; q < kReach; ++q) {
      for (int64_t k = 0; k < kReach; ++k) {
        EXPECT_EQ(holds(tight, q, k), holds(band, q, k))
            << show_band(band) << " became " << show_band(tight) << " at row " << q << ", column "
            << k;
      }
    }
  });
}

TEST(Band, HasNoEmptyRowOrColumnOnceTightened) {
  for_each_small_band([](const Band& band) {
    const Band tight = tighten(band);
    if (count_cells(band) == 0) {
      EXPECT_EQ(tight, Band{}) << show_band(band);
      return;
    }
    for (int64_t q = tight.q0; q < tight.q1; ++q)
      EXPECT_GT(count_cells(tight, q, q + 1), 0) << show_band(band) << ", row " << q;
    for (int64_t k = tight.k0; k < tight.k1; ++k)
      EXPECT_GT(count_cells(tight, 0, kReach, k, k + 1), 0) << show_band(band) << ", column " << k;
    EXPECT_GE(tight.lo, -(tight.q1 - tight.q0 - 1)) << show_band(band);
    EXPECT_LE(tight.hi, tight.k1 - tight.k0 - 1) << show_band(band);
    EXPECT_EQ(tighten(tight), tight) << show_band(band);
  });
}

TEST(Band, IsFullOnlyWhenEveryCellOfTheRectangleIsVisible) {
  for_each_small_band([](const Band& band) {
    const Band tight = tighten(band);
    const int64_t cells = (tight.q1 - tight.q0) * (tight.k1 - tight.k0);
    EXPECT_EQ(is_full(tight), cells > 0 && count_cells(tight) == cells) << show_band(tight);
  });
}

TEST(Band, KeepsExactlyTheCellsInsideTheClip) {
  for_each_small_band([](const Band& band) {
    for_each_tile([&](int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
      const Band part = clip(band, q0, q1, k0, k1);
      for (int64_t q = 0; q < kReach && !testing::Test::HasFailure(); ++q) {
        for (int64_t k = 0; k < kReach; ++k) {
          const bool inside = q >= q0 && q < q1 && k >= k0 && k < k1;
          if (holds(part, q, k) == (inside && holds(band, q, k))) continue;
          ADD_FAILURE() << show_band(band) << show_tile(q0, q1, k0, k1) << " gave "
                        << show_band(part) << ", wrong at row " << q << ", column " << k;
        }
      }
    });
  });
}

TEST(Band, ClassifiesTilesByHowMuchOfThemItCovers) {
  for_each_small_band([](const Band& band) {
    for_each_tile([&](int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
      const int64_t cells = count_cells(band, q0, q1, k0, k1), all = (q1 - q0) * (k1 - k0);
      const TileClass expected = cells == 0     ? TileClass::empty
                                 : cells == all ? TileClass::full
                                                : TileClass::partial;
      EXPECT_EQ(static_cast<int>(classify_tile(band, q0, q1, k0, k1)), static_cast<int>(expected))
          << show_band(band) << show_tile(q0, q1, k0, k1) << ": " << cells << " of " << all;
    });
  });
}

}  // namespace
}  // namespace cpscope
