#include "sim/scenario/key_place.h"

#include "sim/scenario/complaints.h"
#include "sim/scenario/toml_document.h"

#include <charconv>
#include <cstdint>

namespace cpscope {
namespace {

/// The value of "table.key" or "table.key[3]"; the whole list if it has no such entry.
TomlValue find_value(TomlValue root, std::string_view name) {
  const size_t bracket = name.find('[');
  TomlValue value = root;
  for (std::string_view rest = name.substr(0, bracket); !rest.empty();) {
    if (value.kind() != TomlKind::table) return {};
    const size_t dot = rest.find('.');
    value = value.member(rest.substr(0, dot));
    rest = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
  }
  if (bracket == std::string_view::npos) return value;
  int64_t index = -1;
  std::from_chars(name.data() + bracket + 1, name.data() + name.size(), index);
  return index >= 0 && index < value.size() ? value.item(index) : value;
}

SourcePosition find_position(TomlValue root, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    const TomlValue value = find_value(root, key);
    if (value.kind() != TomlKind::none) return value.position();
  }
  if (keys.empty()) return {};
  return find_value(root, std::string_view(keys.front()).substr(0, keys.front().find('.')))
      .position();
}

}  // namespace

Error locate_keys(Error error, std::string_view text, const std::string& path) {
  const bool is_of_scenario = error.kind == ErrorKind::refused || error.kind == ErrorKind::failed;
  if (!is_of_scenario || text.empty()) return error;
  const Result<TomlDocument> document = TomlDocument::parse(text, path);
  for (Complaint& complaint : error.complaints) {
    if (!complaint.where.empty()) continue;
    const SourcePosition position =
        document ? find_position(document.value().root(), complaint.keys) : SourcePosition{};
    complaint.where = show_place(path, position);
  }
  return error;
}

}  // namespace cpscope
