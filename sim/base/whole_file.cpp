#include "sim/base/whole_file.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <unistd.h>

namespace cpscope {

namespace fs = std::filesystem;

Result<size_t> write_whole_file(const std::string& path,
                                const std::function<void(std::ostream&)>& write,
                                const std::string& noun) {
  const auto refuse = [&](const std::string& why) {
    return make_error(ErrorKind::bad_input, noun + " could not be written: " + why,
                      "give the name of a file in a folder that can be written to", path);
  };
  std::error_code failure;
  // Renaming over a device or a folder would replace it, and over a link would cut it off.
  if (fs::exists(path, failure) && !fs::is_regular_file(path, failure)) {
    return refuse("something that is no file has this name");
  }
  const fs::path target = fs::exists(path, failure) ? fs::canonical(path, failure) : fs::path(path);
  const std::string partial = target.string() + ".partial-" + std::to_string(getpid());
  std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
  if (!stream) return refuse(std::strerror(errno));
  write(stream);
  const auto bytes = static_cast<std::streamoff>(stream.tellp());
  stream.close();
  const bool is_whole = static_cast<bool>(stream);
  failure.clear();
  if (is_whole) fs::rename(partial, target, failure);
  if (!is_whole || failure) {
    const std::string why = is_whole ? failure.message() : "the disk took only a part of it";
    fs::remove(partial, failure);
    return refuse(why);
  }
  return static_cast<size_t>(bytes);
}

Result<size_t> write_whole_file(const std::string& path, const std::string& bytes,
                                const std::string& noun) {
  return write_whole_file(
      path,
      [&](std::ostream& stream) {
        stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      },
      noun);
}

}  // namespace cpscope
