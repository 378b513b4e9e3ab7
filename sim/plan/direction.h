#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cpscope {

/// One of the two passes of a plan.
enum class Direction : uint8_t { forward, backward };

inline constexpr std::array kDirections = {Direction::forward, Direction::backward};

/// "forward" or "backward".
constexpr std::string_view to_name(Direction direction) {
  return direction == Direction::backward ? "backward" : "forward";
}

/// One value for each direction.
template <class T>
struct ByDirection {
  T forward{}, backward{};

  T& operator[](Direction direction) {
    return direction == Direction::backward ? backward : forward;
  }
  const T& operator[](Direction direction) const {
    return direction == Direction::backward ? backward : forward;
  }
  friend bool operator==(const ByDirection&, const ByDirection&) = default;
};

}  // namespace cpscope
