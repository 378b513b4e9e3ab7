#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <fstream>
#include <optional>
#include <span>
#include <string>

namespace cpscope {

/// A file that is read in pieces. What is allocated for it then follows from its size, not from the
/// sizes that it claims.
class OpenedFile {
 public:
  /// Errors (bad_input, where = path): no such file, a folder, unreadable.
  static Result<OpenedFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes

  /// Fills `bytes` from byte `begin` on; false when they are not all inside the file, or cannot be
  /// read.
  bool read(int64_t begin, std::span<char> bytes);
  /// The same as text; nothing where `read` fails. Allocates nothing for a range outside the file.
  std::optional<std::string> read_text(int64_t begin, int64_t size);

  /// An error of this file (bad_input).
  Error error(std::string what, std::string hint = "") const;

 private:
  OpenedFile(std::string path, std::ifstream stream, int64_t size);

  std::string path_;
  std::ifstream stream_;
  int64_t size_ = 0;
};

}  // namespace cpscope
