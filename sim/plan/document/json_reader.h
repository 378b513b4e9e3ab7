#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cpscope {

enum class JsonKind { object, array, text, number, boolean, null, other };

/// Reads JSON (RFC 8259) from front to back, value by value, without a tree of values. After the
/// first error nothing more is read: objects and arrays then end, and values are 0 or empty. The
/// caller adds the way to the value from the inside out (`name_place`), so that an error costs
/// nothing where there is none. nlohmann-json's parser events for the document of a ring of 1024
/// ranks and 2^20 tokens (894 MB) take 6.8 s of user time alone, 7.4 s if they know the place of a
/// value; `check` with this reader takes 5.0 s as a whole, the proof included.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  /// Kind of the next value, by its first character.
  JsonKind peek();

  /// Begins an object; then next_key() until it is false. A key is valid until the next call.
  bool begin_object();
  bool next_key(std::string_view& key);
  /// Begins an array; then next_item() until it is false.
  bool begin_array();
  bool next_item();

  /// A whole number from `low` to `high`.
  int64_t integer(int64_t low, int64_t high);
  bool boolean();
  /// A text without its escapes; valid until the next call.
  std::string_view text();
  /// A number as it is written.
  std::string_view number();
  /// Reads `null`.
  void null();
  /// Fails unless nothing but white space follows.
  void end();

  bool has_failed() const { return has_failed_; }
  /// Length of what has not been read.
  int64_t bytes_left() const { return static_cast<int64_t>(text_.size() - at_); }
  /// Ends the reading: what is wrong with the value that was read last, and what would be right.
  void fail(std::string what, std::string hint = "");
  /// After an error: the place is inside this key or item.
  void name_place(std::string_view key);
  void name_place(int64_t index);

  /// The error: "path:line:column: /place: what; hint".
  Error error(const std::string& path) const;

 private:
  void fail_at(size_t offset, std::string what, std::string hint = "");
  void fail_syntax(std::string_view wanted);
  char skip_space();
  bool read_word(std::string_view word);
  bool begin(char bracket, std::string_view wanted);
  bool next(char bracket);
  std::string_view read_text();
  bool read_escape();
  bool read_code_unit(uint32_t& unit);

  std::string_view text_;
  size_t at_ = 0;
  size_t value_ = 0;  // where the last value begins
  int32_t depth_ = 0;
  bool is_first_ = false;  // nothing of the innermost object or array has been read
  bool has_failed_ = false;
  std::string unescaped_;
  size_t offset_ = 0;  // of the error
  std::string place_, what_, hint_;
};

}  // namespace cpscope
