#include "sim/clock/trace_bytes.h"

#include "sim/clock/foreign_trace.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#ifdef CPSCOPE_HAS_ZLIB
#include <zlib.h>
#endif

namespace cpscope {
namespace {

constexpr size_t kPieceBytes = 1 << 18;

}  // namespace

struct TraceBytes::Source {
#ifdef CPSCOPE_HAS_ZLIB
  struct Close {
    void operator()(gzFile opened) const { gzclose(opened); }
  };
  std::unique_ptr<gzFile_s, Close> file;  // reads plain files too
#else
  std::ifstream file;
#endif
};

Result<std::unique_ptr<TraceBytes>> TraceBytes::open(const std::string& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure))
    return make_bad_input("a trace is a file, this is a folder", "", path);
  std::ifstream plain(path, std::ios::binary);
  if (!plain) return make_bad_input("the trace cannot be opened", "is the path right?", path);
  auto source = std::make_unique<Source>();
#ifdef CPSCOPE_HAS_ZLIB
  source->file.reset(gzopen(path.c_str(), "rb"));
  if (!source->file) return make_bad_input("the trace cannot be opened", "", path);
  gzbuffer(source->file.get(), kPieceBytes);
#else
  std::array<char, 2> magic{};
  plain.read(magic.data(), magic.size());
  if (plain && magic[0] == '\x1f' && magic[1] == '\x8b')
    return make_error(ErrorKind::unavailable,
                      "this trace is packed by gzip, and this build has no zlib (package "
                      "zlib1g-dev)",
                      "unpack it with gunzip", path);
  plain.clear();
  plain.seekg(0);
  source->file = std::move(plain);
#endif
  return std::unique_ptr<TraceBytes>(new TraceBytes(std::move(source)));
}

TraceBytes::TraceBytes(std::unique_ptr<Source> source)
    : source_(std::move(source)), buffer_(kPieceBytes) {}

TraceBytes::~TraceBytes() = default;

bool TraceBytes::is_bounded(int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const char byte = buffer_[static_cast<size_t>(i)];
    ++token_;
    if (is_string_) {
      if (is_escaped_) {
        is_escaped_ = false;
      } else if (byte == '\\') {
        is_escaped_ = true;
      } else if (byte == '"') {
        is_string_ = false;
        token_ = 0;
      }
    } else if (byte == '"') {
      is_string_ = true;
      token_ = 0;
    } else if (byte == ',' || byte == ':' || byte <= ' ' || byte == '{' || byte == '}' ||
               byte == '[' || byte == ']') {
      token_ = 0;
    }
    if (token_ > kMostTokenBytes) {
      fault_ = fmt::format("a string or number is longer than {} bytes", kMostTokenBytes);
      return false;
    }
  }
  if (passed_ + count > kMostTraceBytes) {
    fault_ = fmt::format("a trace has at most {} bytes, unpacked", kMostTraceBytes);
    return false;
  }
  return true;
}

TraceBytes::int_type TraceBytes::underflow() {
  if (gptr() < egptr()) return traits_type::to_int_type(*gptr());
  if (!fault_.empty()) return traits_type::eof();
#ifdef CPSCOPE_HAS_ZLIB
  const int64_t count = gzread(source_->file.get(), buffer_.data(), kPieceBytes);
  if (count <= 0) {
    int code = Z_OK;
    const char* words = gzerror(source_->file.get(), &code);
    if (code != Z_OK) fault_ = fmt::format("the packed bytes are broken: {}", words);
  }
#else
  source_->file.read(buffer_.data(), kPieceBytes);
  const int64_t count = source_->file.gcount();
#endif
  if (count <= 0 || !is_bounded(count)) return traits_type::eof();
  passed_ += count;
  setg(buffer_.data(), buffer_.data(), buffer_.data() + count);
  return traits_type::to_int_type(*gptr());
}

}  // namespace cpscope
