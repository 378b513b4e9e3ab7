#include "gui/draw/glyph_widths.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace cpscope::gui {
namespace {

constexpr char kFirst = ' ', kLast = '~';
constexpr size_t kNumLetters = kLast - kFirst + 1;

// Advance widths in thousandths of the em, from the blank to the tilde.
constexpr std::array<int16_t, kNumLetters> kRegular = {
    281, 278, 403, 631, 638, 812, 639, 222, 362, 362, 500, 659, 280, 460, 276, 357, 625, 464, 605,
    636, 642, 608, 624, 571, 616, 624, 276, 280, 659, 659, 659, 507, 936, 676, 651, 727, 719, 598,
    587, 743, 740, 264, 543, 652, 562, 889, 753, 761, 635, 761, 639, 638, 642, 741, 676, 949, 642,
    665, 625, 362, 357, 362, 469, 452, 497, 564, 621, 558, 621, 582, 361, 609, 591, 237, 237, 544,
    237, 869, 585, 597, 609, 609, 372, 523, 364, 581, 557, 812, 540, 557, 541, 362, 327, 362, 659};
constexpr std::array<int16_t, kNumLetters> kStrong = {
    248, 309, 396, 643, 649, 844, 663, 213, 393, 393, 543, 673, 295, 466, 290, 379, 667, 481,  621,
    652, 666, 632, 648, 587, 646, 648, 290, 295, 673, 673, 673, 544, 999, 724, 657, 744, 724,  608,
    586, 755, 744, 275, 561, 677, 566, 906, 741, 775, 643, 776, 651, 649, 660, 734, 724, 1007, 690,
    705, 653, 393, 379, 393, 481, 468, 497, 575, 630, 577, 630, 593, 377, 625, 613, 261, 261,  569,
    261, 898, 610, 608, 625, 625, 397, 549, 380, 608, 576, 837, 562, 576, 562, 393, 358, 393,  673};
constexpr int16_t kMono = 600;

}  // namespace

float estimate_width(std::string_view text, float size, Face face) {
  int64_t width = 0;
  for (const char letter : text) {
    // A character that is not ASCII is shown as a question mark.
    const char shown = letter >= kFirst && letter <= kLast ? letter : '?';
    const auto at = static_cast<size_t>(shown - kFirst);
    width += face == Face::mono ? kMono : face == Face::strong ? kStrong[at] : kRegular[at];
  }
  return static_cast<float>(width) * size / 1000;
}

}  // namespace cpscope::gui
