#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// A place in a text file, both counted from 1; columns count characters, not bytes.
struct SourcePosition {
  int64_t line = 1;
  int64_t column = 1;

  friend auto operator<=>(const SourcePosition&, const SourcePosition&) = default;
};

/// "path:line:column".
std::string show_place(const std::string& path, SourcePosition position);

/// The position of an error of a JSON reader that reports the number of bytes it has read, the bad
/// byte included.
SourcePosition find_stop(std::string_view text, size_t bytes_read);

/// Collects all errors of one file, so that the user can repair them in one go. Shows at most 50
/// complaints, less than 2000 bytes of text, in the order of the file; the rest are counted.
class Complaints {
 public:
  explicit Complaints(std::string path) : path_(std::move(path)) {}

  /// Adds an error of the file (kind bad_input).
  void add(SourcePosition position, std::string what, std::string hint);
  /// Adds a well-formed request for something that cpscope does not do (kind refused).
  void refuse(SourcePosition position, std::string what, std::string hint);
  /// Takes over the complaints of another file; those without a place get `position` of this one.
  void add_all(const Error& error, SourcePosition position);

  int64_t count() const { return count_; }
  /// All complaints as one error; its kind is refused only if there is no other error. Needs
  /// count() > 0.
  Error to_error() const;

 private:
  struct Entry {
    SourcePosition position;
    Complaint complaint;
  };
  void keep(SourcePosition position, Complaint complaint);

  std::string path_;
  std::vector<Entry> entries_;
  int64_t count_ = 0;
  bool has_bad_input_ = false;
};

/// The text in quotes for a message: control characters escaped, cut after about 60 bytes.
std::string show_text(std::string_view text);
/// "a, b or c".
std::string show_choices(std::span<const std::string_view> names);
/// The name with the fewest edits (insert, delete, change, swap of neighbours), if it is close
/// enough to be the intended one.
std::optional<std::string_view> find_nearest_name(std::string_view name,
                                                  std::span<const std::string_view> known);

}  // namespace cpscope
