#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Rotary positions of the valid tokens of a batch, in its order.
struct RotaryPositions {
  std::vector<int64_t> q, kv;
};

/// Reads the JSON text of a positions file: {"q": [...], "kv": [...]}, one position from 0 to
/// kMaxTokens for each valid token; kv may be left out where there are as many keys as queries.
/// Errors: `where` is "path:line:column" if the JSON itself is broken, "path:1:1" if its content is
/// wrong.
Result<RotaryPositions> parse_positions(std::string_view text, const std::string& path,
                                        int64_t queries, int64_t keys);

/// Reads the file, at most 256 MiB, and parses it. Errors of a file that cannot be read have no
/// `where`.
Result<RotaryPositions> load_positions(const std::string& path, int64_t queries, int64_t keys);

}  // namespace cpscope
