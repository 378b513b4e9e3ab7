#pragma once

#include "sim/base/result.h"
#include "sim/scenario/complaints.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

enum class TomlKind { none, boolean, integer, floating, text, array, table, date_or_time };

/// "a boolean", "an integer", ...
std::string_view describe_kind(TomlKind kind);

struct TomlMember;

/// Reads one value of a TomlDocument; points into it and must not outlive it. A missing value has
/// kind none. Reading a value as another kind is our bug and aborts.
class TomlValue {
 public:
  TomlValue() = default;
  /// For TomlDocument: `node` is a toml::node.
  explicit TomlValue(const void* node) : node_(node) {}

  TomlKind kind() const;
  SourcePosition position() const;  // of the first character of the value

  bool boolean() const;
  int64_t integer() const;
  double floating() const;
  std::string_view text() const;
  int64_t size() const;                          // items of an array, 0 for anything else
  TomlValue item(int64_t i) const;               // of an array
  TomlValue member(std::string_view key) const;  // of a table; none if absent
  std::vector<TomlMember> members() const;       // of a table, sorted by key

 private:
  const void* node_ = nullptr;
};

struct TomlMember {
  std::string_view key;
  SourcePosition key_position;
  TomlValue value;
};

/// The value as it should appear in a message: "the integer 8", "the array of 3 values".
std::string show_value_of(const TomlValue& value);

/// Parsed TOML text. This class is the only user of toml++: all TOML of this program is read here,
/// so that the parser is always guarded (toml_guard.h) and compiled in one way.
class TomlDocument {
 public:
  /// Errors: the first syntax error as one bad_input complaint with "path:line:column". Never
  /// throws, for any bytes.
  static Result<TomlDocument> parse(std::string_view text, const std::string& path);

  TomlValue root() const { return TomlValue(root_.get()); }

 private:
  explicit TomlDocument(std::shared_ptr<const void> root) : root_(std::move(root)) {}

  std::shared_ptr<const void> root_;
};

/// A text in quotes, escaped as TOML requires.
std::string print_toml_text(std::string_view text);

}  // namespace cpscope
