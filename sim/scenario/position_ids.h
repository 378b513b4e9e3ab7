#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// Lengths of the documents of a packed batch by the positions of its tokens: a document begins
/// where a position is not the one before plus 1.
std::vector<int64_t> split_positions(std::span<const int64_t> positions);

}  // namespace cpscope
