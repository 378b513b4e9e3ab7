#include "sim/clock/foreign_trace.h"

#include "sim/clock/foreign_trace_json.h"
#include "sim/clock/foreign_trace_nsys.h"
#include "sim/clock/trace_bytes.h"

#include <array>
#include <fstream>
#include <memory>
#include <string_view>

namespace cpscope {

bool has_gzip() {
#ifdef CPSCOPE_HAS_ZLIB
  return true;
#else
  return false;
#endif
}

bool has_sqlite() {
#ifdef CPSCOPE_HAS_SQLITE
  return true;
#else
  return false;
#endif
}

bool is_trace_name(std::string_view path) {
  return path.ends_with(".json") || path.ends_with(".json.gz") || path.ends_with(".sqlite");
}

Result<ForeignTrace> read_foreign_trace(const std::string& path) {
  constexpr std::string_view kSqlite = "SQLite format 3";
  std::array<char, kSqlite.size()> magic{};
  std::ifstream file(path, std::ios::binary);
  file.read(magic.data(), magic.size());
  if (file && std::string_view(magic.data(), magic.size()) == kSqlite) return read_nsys_trace(path);
  Result<std::unique_ptr<TraceBytes>> bytes = TraceBytes::open(path);
  if (!bytes) return bytes.error();
  return read_json_trace(*bytes.value(), path);
}

}  // namespace cpscope
