#pragma once

#include <string_view>

namespace cpscope::gui {

/// Where frameworks do what a lesson shows: repository, file, function. Empty if none is named.
std::string_view code_place(std::string_view lesson_title);

}  // namespace cpscope::gui
