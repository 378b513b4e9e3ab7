#pragma once

#include "gui/draw/drawing.h"

#include <cstdint>

namespace cpscope::tests {

/// Kinds of colour vision: normal, or one type of cone missing.
enum class Eyes : uint8_t { normal, protan, deutan, tritan };

/// Lightness and two opponent colour axes, D65.
struct Lab {
  double l = 0, a = 0, b = 0;
};

/// How a colour appears to these eyes. Source: Machado, Oliveira, Fernandes 2009, "A
/// physiologically-based model for simulation of color vision deficiency", IEEE TVCG 15(6),
/// matrices of severity 1.
Lab look_at(gui::Color color, Eyes eyes);

/// The CIEDE2000 difference. Source: Sharma, Wu, Dalal 2005, "The CIEDE2000 color-difference
/// formula", Color Research and Application 30(1).
double difference_of(const Lab& first, const Lab& second);

/// The contrast ratio of WCAG 2.1, 1 to 21.
double contrast_of(gui::Color first, gui::Color second);

}  // namespace cpscope::tests
