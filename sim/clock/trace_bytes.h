#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <memory>
#include <streambuf>
#include <string>
#include <vector>

namespace cpscope {

/// The bytes of a JSON file, unpacked if it is packed by gzip. Ends the file early, and says why,
/// where the file holds more than kMostTraceBytes or a string or number of more than
/// kMostTokenBytes, so that a reader that keeps one token at a time needs bounded memory.
class TraceBytes : public std::streambuf {
 public:
  /// Errors: bad_input (no such file, a folder), unavailable (packed, and this build has no zlib).
  static Result<std::unique_ptr<TraceBytes>> open(const std::string& path);
  ~TraceBytes() override;
  TraceBytes(const TraceBytes&) = delete;
  TraceBytes& operator=(const TraceBytes&) = delete;

  /// Why the bytes ended before the file did; empty if they did not.
  const std::string& fault() const { return fault_; }
  /// Number of the byte that is read next, from 0.
  int64_t position() const { return passed_ - (egptr() - gptr()); }

 protected:
  int_type underflow() override;

 private:
  struct Source;  // zlib's file, or a plain one
  explicit TraceBytes(std::unique_ptr<Source> source);
  bool is_bounded(int64_t count);

  std::unique_ptr<Source> source_;
  std::vector<char> buffer_;
  std::string fault_;
  int64_t passed_ = 0;  // bytes that were put into the buffer
  int64_t token_ = 0;   // bytes of the token that is open
  bool is_string_ = false, is_escaped_ = false;
};

}  // namespace cpscope
