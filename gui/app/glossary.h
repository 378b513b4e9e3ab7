#pragma once

#include "gui/draw/theme.h"

#include <span>
#include <string_view>

namespace cpscope::gui {

/// A word of the window and what it means, in one sentence.
struct Term {
  std::string_view word, meaning;
};

/// All words that are not obvious, in alphabetical order.
std::span<const Term> glossary();

/// A colour that lights an object, and what it says.
struct LightColor {
  Role role{};
  float width = 1;  // logical pixels of the outline
  std::string_view name, meaning;
};

/// The colours of highlights, the strongest first.
std::span<const LightColor> light_colors();

}  // namespace cpscope::gui
