#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cpscope {

/// Bounds that keep a TOML parser's work and recursion small, far above what scenarios need.
inline constexpr int64_t kMaxTomlBytes = 64LL << 20;
inline constexpr int64_t kMaxTomlNesting = 32;       // brackets open at once
inline constexpr int64_t kMaxTomlKeyParts = 16;      // a.b.c has 3
inline constexpr int64_t kMaxTomlStatements = 1024;  // "=" and table headers
inline constexpr int64_t kMaxTomlValues = 8'388'608;

/// Looks over TOML text before a parser sees it: size, UTF-8, control characters, nesting and
/// counts. Says what is wrong and where ("path:line:column"), or nothing. Reads each byte once and
/// allocates nothing.
std::optional<Complaint> find_unsafe_toml(std::string_view text, const std::string& path);

}  // namespace cpscope
