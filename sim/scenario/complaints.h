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

/// Where a JSON reader stumbled that gives the number of bytes it has read, the bad one included.
SourcePosition find_stop(std::string_view text, size_t bytes_read);

/// Collects everything that is wrong with one file, so that the reader repairs it in one go.
/// Shows at most 50 complaints, in the order of the file; the rest are counted.
class Complaints {
 public:
  explicit Complaints(std::string path) : path_(std::move(path)) {}

  /// The file is wrong here.
  void add(SourcePosition position, std::string what, std::string hint);
  /// The file asks, in good form, for something that cpscope does not do.
  void refuse(SourcePosition position, std::string what, std::string hint);
  /// Takes over the complaints of another file; those without a place get `position` of this one.
  void add_all(const Error& error, SourcePosition position);

  int64_t count() const { return count_; }
  /// All complaints as one error: refused only if nothing is wrong otherwise. Needs count() > 0.
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

/// The text in quotes, control characters escaped, cut after about 60 bytes: fit for a message.
std::string show_text(std::string_view text);
/// "a, b or c".
std::string show_choices(std::span<const std::string_view> names);
/// The name with the fewest edits (insert, drop, change, swap of neighbours), if it is close enough
/// to be what was meant.
std::optional<std::string_view> find_nearest_name(std::string_view name,
                                                  std::span<const std::string_view> known);

}  // namespace cpscope
