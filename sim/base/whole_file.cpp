#include "sim/base/whole_file.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <system_error>

#include <unistd.h>

namespace cpscope {

namespace fs = std::filesystem;

namespace {

/// Path of the unfinished file that a signal handler removes; empty when there is none.
char unfinished[PATH_MAX] = "";
std::atomic_flag is_guarded = ATOMIC_FLAG_INIT;

void remove_on_signal(int number) {
  remove_unfinished_file();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

/// An unfinished file, from before it is opened until it is complete. It is removed when this
/// object ends before `keep`, also by an exception, and when a signal ends the process. The signal
/// handler covers one file at a time.
class Unfinished {
 public:
  explicit Unfinished(std::string path) : path_(std::move(path)) {
    if (path_.size() >= sizeof unfinished || is_guarded.test_and_set()) return;
    has_guard_ = true;
    std::memcpy(unfinished, path_.c_str(), path_.size() + 1);
    for (size_t n = 0; n < kSignals.size(); ++n) {
      struct sigaction ours {};
      ours.sa_handler = remove_on_signal;
      sigaction(kSignals[n], nullptr, &before_[n]);
      // Handlers that other code has installed, and ignored signals, stay as they are.
      if (before_[n].sa_handler == SIG_DFL) sigaction(kSignals[n], &ours, nullptr);
    }
  }
  ~Unfinished() {
    if (!is_kept_) unlink(path_.c_str());
    if (!has_guard_) return;
    for (size_t n = 0; n < kSignals.size(); ++n) sigaction(kSignals[n], &before_[n], nullptr);
    unfinished[0] = '\0';
    is_guarded.clear();
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  /// Keeps the file: it has been renamed to its final name.
  void keep() { is_kept_ = true; }

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::string path_;
  std::array<struct sigaction, 3> before_{};
  bool has_guard_ = false;
  bool is_kept_ = false;
};

/// The path that a chain of links leads to, whether a file exists there or not; nothing for links
/// that form a cycle.
std::optional<fs::path> follow_links(fs::path path) {
  constexpr int kMostLinks = 40;
  std::error_code failure;
  for (int links = 0; links < kMostLinks; ++links) {
    if (!fs::is_symlink(path, failure)) return path;
    const fs::path next = fs::read_symlink(path, failure);
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  return std::nullopt;
}

/// A name that no other process uses, on this machine or on another one of the same file system.
std::string name_unfinished(const fs::path& target) {
  std::random_device random;
  char suffix[32];
  std::snprintf(suffix, sizeof suffix, ".partial-%ld-%08x", static_cast<long>(getpid()), random());
  return target.string() + suffix;
}

}  // namespace

void remove_unfinished_file() {
  if (unfinished[0] != '\0') unlink(unfinished);
}

Result<size_t> write_whole_file(const std::string& path,
                                const std::function<void(std::ostream&)>& write,
                                const std::string& noun) {
  const auto refuse = [&](const std::string& why) {
    return make_error(ErrorKind::bad_input, noun + " could not be written: " + why,
                      "give the name of a file in a folder that can be written to", path);
  };
  std::error_code failure;
  // Renaming over a device or a folder would replace it; renaming over a link would replace the
  // link.
  if (fs::exists(path, failure) && !fs::is_regular_file(path, failure)) {
    return refuse("something that is no file has this name");
  }
  const std::optional<fs::path> target = follow_links(path);
  if (!target) return refuse("links of this name lead in a circle");
  const std::string partial = name_unfinished(*target);
  Unfinished file(partial);
  std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
  if (!stream) return refuse(std::strerror(errno));
  write(stream);
  const auto bytes = static_cast<std::streamoff>(stream.tellp());
  stream.close();
  const bool is_whole = static_cast<bool>(stream);
  failure.clear();
  if (is_whole) fs::rename(partial, *target, failure);
  if (!is_whole || failure) {
    return refuse(is_whole ? failure.message() : "the disk took only a part of it");
  }
  file.keep();
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
