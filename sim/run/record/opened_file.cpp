#include "sim/run/record/opened_file.h"

#include <filesystem>
#include <ios>
#include <system_error>
#include <utility>

namespace cpscope {

OpenedFile::OpenedFile(std::string path, std::ifstream stream, int64_t size)
    : path_(std::move(path)), stream_(std::move(stream)), size_(size) {}

Result<OpenedFile> OpenedFile::open(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failure;
  if (!fs::is_regular_file(path, failure)) {
    const bool exists = fs::exists(path, failure);
    return make_bad_input(exists ? "not a file that holds a record" : "no such file", "", path);
  }
  const auto size = fs::file_size(path, failure);
  std::ifstream stream(path, std::ios::binary);
  if (failure || !stream) return make_bad_input("the file cannot be opened", "", path);
  return OpenedFile(path, std::move(stream), static_cast<int64_t>(size));
}

bool OpenedFile::read(int64_t begin, std::span<char> bytes) {
  const auto count = static_cast<int64_t>(bytes.size());
  if (begin < 0 || begin > size_ || count > size_ - begin) return false;
  stream_.clear();
  stream_.seekg(begin);
  return static_cast<bool>(stream_.read(bytes.data(), count));
}

std::optional<std::string> OpenedFile::read_text(int64_t begin, int64_t size) {
  if (begin < 0 || begin > size_ || size < 0 || size > size_ - begin) return std::nullopt;
  std::string text(static_cast<size_t>(size), '\0');
  if (!read(begin, text)) return std::nullopt;
  return text;
}

Error OpenedFile::error(std::string what, std::string hint) const {
  return make_bad_input(std::move(what), std::move(hint), path_);
}

}  // namespace cpscope
