#pragma once

#include <type_traits>

namespace cpscope {

/// The same bits as another type. std::bit_cast where the standard library has it; that of
/// Emscripten in Debian 12 does not, its compiler does.
template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  static_assert(std::is_trivially_copyable_v<To> && std::is_trivially_copyable_v<From>);
  return __builtin_bit_cast(To, from);
}

}  // namespace cpscope
