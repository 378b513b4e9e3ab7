#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cpscope {

/// Bounds that keep a TOML parser's work and recursion small; scenarios need far less.
inline constexpr int64_t kMaxTomlBytes = 64LL << 20;
inline constexpr int64_t kMaxTomlNesting = 32;       // open brackets
inline constexpr int64_t kMaxTomlKeyParts = 16;      // a.b.c has 3
inline constexpr int64_t kMaxTomlStatements = 1024;  // "=" and table headers
inline constexpr int64_t kMaxTomlValues = 8'388'608;

/// Checks TOML text before a parser sees it: size, UTF-8, control characters, nesting and counts.
/// Returns what is wrong and where ("path:line:column"), or nothing. Reads each byte once and
/// allocates nothing.
std::optional<Complaint> find_unsafe_toml(std::string_view text, const std::string& path);

}  // namespace cpscope
