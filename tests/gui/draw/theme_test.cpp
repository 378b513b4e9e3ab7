#include "gui/draw/theme.h"

#include "tests/support/color_difference.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::contrast_of;
using tests::difference_of;
using tests::Eyes;
using tests::Lab;
using tests::look_at;

constexpr std::array kAllEyes = {Eyes::normal, Eyes::protan, Eyes::deutan, Eyes::tritan};
constexpr std::array kEyeNames = {"normal", "protan", "deutan", "tritan"};

/// Any two of these roles differ by at least `least` for all kinds of vision.
void expect_apart(const Theme& theme, const std::vector<Role>& roles, double least) {
  for (size_t i = 0; i < roles.size(); ++i) {
    for (size_t k = i + 1; k < roles.size(); ++k) {
      for (const Eyes eyes : kAllEyes) {
        const double seen =
            difference_of(look_at(theme.of(roles[i]), eyes), look_at(theme.of(roles[k]), eyes));
        EXPECT_GE(seen, least) << to_name(theme.name) << " theme, roles "
                               << static_cast<int>(roles[i]) << " and "
                               << static_cast<int>(roles[k]) << ", "
                               << kEyeNames[static_cast<size_t>(eyes)] << " eyes";
      }
    }
  }
}

TEST(ColorDifference, AgreesWithThePublishedPairs) {
  // Test data: Sharma, Wu, Dalal 2005, table 1.
  const struct {
    Lab first, second;
    double difference;
  } rows[] = {{{50, 2.6772, -79.7751}, {50, 0, -82.7485}, 2.0425},
              {{50, -1, 2}, {50, 0, 0}, 2.3669},
              {{50, 2.49, -0.001}, {50, -2.49, 0.0009}, 7.1792},
              {{50, 2.49, -0.001}, {50, -2.49, 0.0011}, 7.2195},
              {{50, 2.5, 0}, {73, 25, -18}, 27.1492},
              {{50, 2.5, 0}, {58, 24, 15}, 19.4535},
              {{60.2574, -34.0099, 36.2677}, {60.4626, -34.1751, 39.4387}, 1.2644},
              {{2.0776, 0.0795, -1.135}, {0.9033, -0.0636, -0.5514}, 0.9082}};
  for (const auto& row : rows) {
    EXPECT_NEAR(difference_of(row.first, row.second), row.difference, 5e-5);
    EXPECT_NEAR(difference_of(row.second, row.first), row.difference, 5e-5);
  }
}

TEST(Theme, KeepsWhatHappensApartForAllEyes) {
  for (const ThemeName name : kThemeNames) {
    expect_apart(theme_of(name),
                 {Role::compute, Role::transfer, Role::merge, Role::wait, Role::error}, 15);
  }
}

TEST(Theme, KeepsMaskClassesApartForAllEyes) {
  for (const ThemeName name : kThemeNames) {
    expect_apart(theme_of(name), {Role::mask_full, Role::mask_partial, Role::mask_empty}, 15);
  }
}

TEST(Theme, KeepsQueriesApartFromKeysForAllEyes) {
  for (const ThemeName name : kThemeNames) {
    expect_apart(theme_of(name), {Role::query, Role::key}, 15);
  }
}

TEST(Theme, ShowsWhatIsWorkOnItsBackground) {
  for (const ThemeName name : kThemeNames) {
    for (const Role role :
         {Role::compute, Role::transfer, Role::merge, Role::error, Role::mask_full, Role::selected,
          Role::related, Role::query, Role::key}) {
      for (const Role behind : {Role::background, Role::panel}) {
        expect_apart(theme_of(name), {role, behind}, 15);
      }
    }
  }
}

TEST(Theme, CanBeRead) {
  for (const ThemeName name : kThemeNames) {
    const Theme& theme = theme_of(name);
    for (const Role ink : {Role::text, Role::faint_text, Role::accent}) {
      for (const Role behind : {Role::background, Role::panel}) {
        EXPECT_GE(contrast_of(theme.of(ink), theme.of(behind)), 4.5)
            << to_name(name) << " theme, ink " << static_cast<int>(ink) << " on "
            << static_cast<int>(behind);
      }
    }
    EXPECT_GE(contrast_of(theme.of(Role::text), theme.of(Role::raised)), 4.5);
    EXPECT_GE(contrast_of(theme.of(Role::faint_text), theme.of(Role::raised)), 4.5);
  }
}

TEST(Theme, WritesOnEveryColourSoThatItCanBeRead) {
  for (const ThemeName name : kThemeNames) {
    const Theme& theme = theme_of(name);
    for (int32_t gray = 0; gray < 256; ++gray) {
      const auto level = static_cast<uint8_t>(gray);
      const Color behind{level, level, level};
      EXPECT_GE(contrast_of(theme.text_on(behind), behind), 4.5) << gray;
    }
    for (const Color behind : theme.colors) {
      EXPECT_GE(contrast_of(theme.text_on(behind), behind), 4.5);
    }
  }
}

TEST(Theme, SavesInkInPrint) {
  // Roles that fill areas leave most of the paper white.
  for (const Role role :
       {Role::background, Role::panel, Role::raised, Role::compute, Role::transfer, Role::wait,
        Role::mask_full, Role::mask_partial, Role::mask_empty, Role::padding}) {
    EXPECT_GE(look_at(theme_of(ThemeName::print).of(role), Eyes::normal).l, 60)
        << static_cast<int>(role);
  }
  EXPECT_EQ(theme_of(ThemeName::print).of(Role::background), (Color{255, 255, 255}));
}

TEST(Theme, RampsOfQuantitiesGrowAwayFromTheBackground) {
  for (const ThemeName name : kThemeNames) {
    const Theme& theme = theme_of(name);
    for (const Eyes eyes : kAllEyes) {
      double before = look_at(theme.of_quantity(0), eyes).l;
      for (int32_t i = 1; i <= 64; ++i) {
        const double here = look_at(theme.of_quantity(i / 64.0), eyes).l;
        EXPECT_TRUE(theme.is_dark() ? here > before : here < before)
            << to_name(name) << " theme, step " << i;
        before = here;
      }
    }
    EXPECT_EQ(theme.of_quantity(-1), theme.of_quantity(0));
    EXPECT_EQ(theme.of_quantity(2), theme.of_quantity(1));
    EXPECT_EQ(theme.of_quantity(std::nan("")), theme.of(Role::error));
  }
}

TEST(Theme, SignedRampIsNeutralInTheMiddleAndDiffersAtItsEnds) {
  for (const ThemeName name : kThemeNames) {
    const Theme& theme = theme_of(name);
    const Lab zero = look_at(theme.of_signed(0), Eyes::normal);
    EXPECT_LT(std::hypot(zero.a, zero.b), 6);
    for (const Eyes eyes : kAllEyes) {
      for (const double share : {0.5, 1.0}) {
        const Lab low = look_at(theme.of_signed(-share), eyes);
        const Lab high = look_at(theme.of_signed(share), eyes);
        const Lab middle = look_at(theme.of_signed(0), eyes);
        EXPECT_GE(difference_of(low, high), 15) << to_name(name) << share;
        EXPECT_GE(difference_of(low, middle), 12) << to_name(name) << share;
        EXPECT_GE(difference_of(high, middle), 12) << to_name(name) << share;
      }
    }
    EXPECT_EQ(theme.of_signed(std::numeric_limits<double>::infinity()), theme.of_signed(1));
    EXPECT_EQ(theme.of_signed(-std::numeric_limits<double>::infinity()), theme.of_signed(-1));
    EXPECT_EQ(theme.of_signed(std::nan("")), theme.of(Role::error));
  }
}

TEST(Theme, RanksAreALadderOfLightness) {
  for (const ThemeName name : kThemeNames) {
    const Theme& theme = theme_of(name);
    for (int32_t rank = 1; rank < 8; ++rank) {
      EXPECT_GE(difference_of(look_at(theme.of_rank(rank - 1, 8), Eyes::normal),
                              look_at(theme.of_rank(rank, 8), Eyes::normal)),
                3)
          << to_name(name) << rank;
    }
    EXPECT_EQ(theme.of_rank(0, 1), theme.of_rank(0, 1));
  }
}

TEST(Theme, HasNamesThatCanBeReadBack) {
  std::set<std::string> names;
  for (const ThemeName name : kThemeNames) {
    EXPECT_EQ(parse_theme(to_name(name)), name);
    EXPECT_EQ(theme_of(name).name, name);
    names.insert(std::string(to_name(name)));
  }
  EXPECT_EQ(names.size(), kThemeNames.size());
  EXPECT_EQ(parse_theme("sepia"), std::nullopt);
}

}  // namespace
}  // namespace cpscope::gui
