#include "sim/scenario/text_file.h"

#include "sim/scenario/complaints.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>

namespace cpscope {
namespace {

Error complain_size(const std::string& path, int64_t max_bytes) {
  return make_bad_input(fmt::format("the file is larger than the limit: {} MiB", max_bytes >> 20),
                        "give a smaller file", path);
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, int64_t max_bytes) {
  // At a NUL the system would silently cut the name and open another file.
  if (path.empty() || path.find('\0') != std::string::npos) {
    return make_bad_input("the file name is empty or holds a NUL byte", "give the name of a file",
                          path.substr(0, path.find('\0')));
  }
  std::error_code status_error;
  const std::filesystem::file_status status = std::filesystem::status(path, status_error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return make_bad_input("no such file", "check the name and the folder", path);
  }
  if (std::filesystem::is_directory(status)) {
    return make_bad_input("this is a folder, not a file", "name a file inside it", path);
  }
  std::string text;
  if (std::filesystem::is_regular_file(status)) {
    const std::uintmax_t bytes = std::filesystem::file_size(path, status_error);
    if (!status_error && bytes > static_cast<std::uintmax_t>(max_bytes)) {
      return complain_size(path, max_bytes);
    }
    if (!status_error) text.reserve(static_cast<size_t>(bytes));
  }

  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    const std::string reason = errno != 0 ? std::strerror(errno) : "unknown reason";
    return make_bad_input("the file cannot be opened: " + reason, "check its permissions", path);
  }
  // Pipes have no size, so the limit is also checked while reading.
  std::string piece(1 << 16, '\0');
  while (stream.read(piece.data(), static_cast<std::streamsize>(piece.size())),
         stream.gcount() > 0) {
    text.append(piece.data(), static_cast<size_t>(stream.gcount()));
    if (static_cast<int64_t>(text.size()) > max_bytes) return complain_size(path, max_bytes);
  }
  if (stream.bad())
    return make_bad_input("the file cannot be read to its end", "check the disk", path);
  return text;
}

Result<std::string> read_named_file(const std::string& path, int64_t max_bytes) {
  Result<std::string> text = read_text_file(path, max_bytes);
  if (text) return text;
  const Complaint& complaint = text.error().complaints.front();
  return make_error(text.error().kind, fmt::format("{}: {}", complaint.what, show_text(path)),
                    complaint.hint);
}

std::string find_folder(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

std::string join_path(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace cpscope
