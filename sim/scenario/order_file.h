#pragma once

#include "sim/base/result.h"
#include "sim/scenario/partition_fault.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace cpscope {

/// As many tokens as an import lists in an order file, queries and keys each.
inline constexpr int64_t kMostListedTokens = int64_t{1} << 25;
/// Longer order files are not read. An import writes 9 bytes for each id, "33554431,".
inline constexpr int64_t kMaxOrderBytes = int64_t{640} << 20;

/// The sizes that an imported order must fit.
struct OrderDemand {
  int32_t cp_size = 0;
  int64_t tokens = 0;     // sum of the slots: the order must hold at least this many ids
  int64_t kv_tokens = 0;  // the same for KV
  bool self_attention = true;
  BatchPlaces places = {}, kv_places = {};  // for messages
};

/// Reads the JSON text of an order file: {"cp_size", "ranks", "kv_ranks"}, {"cp_size",
/// "rearrange", "kv_rearrange"} (PyTorch: rank r takes the r-th contiguous part of the list), or
/// only the rearrange list. Errors: where is "path:line:column" if the JSON itself is broken,
/// "path:1:1" if its content is wrong.
Result<ImportedOrder> parse_order(std::string_view text, const std::string& path,
                                  const OrderDemand& demand);

/// Reads the file, of at most kMaxOrderBytes, and parses it. Errors of a file that cannot be read
/// have no `where`.
Result<ImportedOrder> load_order(const std::string& path, const OrderDemand& demand);

}  // namespace cpscope
