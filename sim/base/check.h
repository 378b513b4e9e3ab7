#pragma once

#include <sstream>
#include <string>

namespace cpscope {

/// Prints the broken invariant with both values and aborts. For our own bugs only, in every build
/// type.
[[noreturn]] void report_broken_check(const char* file, int line, const char* condition,
                                      const std::string& message, const std::string& left,
                                      const std::string& right);

template <class T>
std::string show_value(const T& value) {
  std::ostringstream stream;
  if constexpr (requires { stream << value; }) {
    stream << value;
  } else {
    stream << static_cast<long long>(value);
  }
  return stream.str();
}

}  // namespace cpscope

/// Aborts when `condition` is false: `CPSCOPE_CHECK(a == b, "owner disagrees with layout", a, b)`.
#define CPSCOPE_CHECK(condition, message, left, right)                                           \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      ::cpscope::report_broken_check(__FILE__, __LINE__, #condition, (message),                  \
                                     ::cpscope::show_value(left), ::cpscope::show_value(right)); \
    }                                                                                            \
  } while (false)
