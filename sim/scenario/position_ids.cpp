#include "sim/scenario/position_ids.h"

namespace cpscope {

std::vector<int64_t> split_positions(std::span<const int64_t> positions) {
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < positions.size(); ++i) {
    // A difference of any two numbers could overflow; a comparison cannot.
    const bool continues =
        i > 0 && positions[i] > positions[i - 1] && positions[i] - 1 == positions[i - 1];
    if (!continues) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

}  // namespace cpscope
