#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// Where the packed padded ids of one side of a batch are, for messages.
struct BatchPlaces {
  std::vector<int64_t> lengths = {};  // [sequence] valid tokens; empty: unknown
  std::vector<int64_t> slots = {};    // [sequence]
  bool is_padded_left = false;        // padding comes before the valid tokens of a slot

  /// "token 9 (sequence 0, position 9)", "token 9 (padding of sequence 0)", or "token 9" if the
  /// places are unknown.
  std::string describe(int64_t id) const;
};

/// Says why lists by rank are not a partition of 0..tokens-1: ids outside, repeated ids with the
/// rows that hold them, lost ids. At most 5 of them, then their number. Nothing if they are one.
/// Memory grows with the lists, not with `tokens`.
std::optional<std::string> describe_partition_fault(const std::vector<std::vector<int64_t>>& ranks,
                                                    int64_t tokens, const BatchPlaces& places = {});

}  // namespace cpscope
