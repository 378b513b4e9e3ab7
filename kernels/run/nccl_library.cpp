#include "kernels/run/nccl_library.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope::kernels {

namespace {

constexpr const char* kFileName = "libnccl.so.2";

/// The folder of the Python package that contains NCCL, with its file; nothing if there is none.
std::optional<std::string> ask_python() {
  // The package nvidia is a namespace of many folders, so only Python knows where nccl is.
  constexpr const char* kQuestion =
      "command -v python3 > /dev/null 2>&1 && python3 -c 'import importlib.util as u; "
      "print(list(u.find_spec(\"nvidia.nccl\").submodule_search_locations)[0])' 2> /dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(kQuestion, "r"), pclose);
  if (!pipe) return std::nullopt;
  std::string folder;
  std::array<char, 256> part{};
  while (fgets(part.data(), static_cast<int>(part.size()), pipe.get()) != nullptr) {
    folder += part.data();
  }
  while (!folder.empty() && (folder.back() == '\n' || folder.back() == '\r')) folder.pop_back();
  if (folder.empty()) return std::nullopt;
  return folder + "/lib/" + kFileName;
}

/// A handle, or the loader's reason for failing.
struct Opened {
  void* handle = nullptr;
  std::string why;
};

Opened open_library(const std::string& file) {
  dlerror();
  Opened opened{.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), .why = {}};
  if (opened.handle == nullptr) {
    const char* why = dlerror();
    opened.why = why != nullptr ? why : "no reason given";
  }
  return opened;
}

/// Looks up functions and remembers missing ones.
class SymbolReader {
 public:
  explicit SymbolReader(void* handle) : handle_(handle) {}

  template <class R, class... Arguments>
  void read(const char* name, std::function<R(Arguments...)>& function) {
    void* symbol = dlsym(handle_, name);
    if (symbol == nullptr) {
      missing_.emplace_back(name);
      return;
    }
    function = reinterpret_cast<R (*)(Arguments...)>(symbol);
  }

  const std::vector<std::string>& missing() const { return missing_; }

 private:
  void* handle_;
  std::vector<std::string> missing_;
};

Result<NcclLibrary> read_library(void* handle, const std::string& path) {
  NcclLibrary library{.functions = {}, .path = path, .version = 0};
  NcclFunctions& functions = library.functions;
  SymbolReader reader(handle);
  // The version comes first, so that an old library is reported as old, not as incomplete.
  reader.read("ncclGetVersion", functions.get_version);
  if (functions.get_version && functions.get_version(&library.version) == NcclStatus::success &&
      library.version < kOldestNccl) {
    return make_error(
        ErrorKind::unavailable,
        fmt::format("NCCL is too old: version {} in {}", nccl_version_text(library.version), path),
        fmt::format("install {} or later, or name its file in CPSCOPE_NCCL_LIBRARY",
                    nccl_version_text(kOldestNccl)));
  }
  reader.read("ncclGetUniqueId", functions.get_unique_id);
  reader.read("ncclCommInitRankConfig", functions.init_rank);
  reader.read("ncclCommFinalize", functions.finalize);
  reader.read("ncclCommDestroy", functions.destroy);
  reader.read("ncclCommAbort", functions.abort);
  reader.read("ncclCommGetAsyncError", functions.get_async_error);
  reader.read("ncclGroupStart", functions.group_start);
  reader.read("ncclGroupEnd", functions.group_end);
  reader.read("ncclSend", functions.send);
  reader.read("ncclRecv", functions.receive);
  reader.read("ncclGetErrorString", functions.get_error_string);
  reader.read("ncclGetLastError", functions.get_last_error);
  if (!reader.missing().empty()) {
    return make_error(
        ErrorKind::unavailable,
        fmt::format("{} is no usable NCCL: it has no {}", path, fmt::join(reader.missing(), ", ")),
        "name another file in CPSCOPE_NCCL_LIBRARY");
  }
  return library;
}

/// The file that a handle came from, if the loader reports it.
std::string path_of(void* handle, const std::string& asked) {
  Dl_info info{};
  void* symbol = dlsym(handle, "ncclGetVersion");
  if (symbol == nullptr || dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return asked;
  return info.dli_fname;
}

}  // namespace

NcclSearch nccl_search_of_environment() {
  if (const char* only = std::getenv("CPSCOPE_NCCL_LIBRARY"); only != nullptr && *only != '\0') {
    return {.only = only, .files = {}, .asks_python = false};
  }
  NcclSearch search{.only = std::nullopt, .files = {kFileName}, .asks_python = true};
  std::vector<std::string> roots;
  for (const char* name : {"NCCL_HOME", "CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(name); root != nullptr && *root != '\0') {
      roots.emplace_back(root);
    }
  }
  roots.emplace_back("/usr/local/cuda");
  for (const std::string& root : roots) {
    for (const char* folder :
         {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"}) {
      search.files.push_back(root + "/" + folder + "/" + kFileName);
    }
  }
  return search;
}

Result<NcclLibrary> load_nccl(const NcclSearch& search) {
  if (search.only) {
    const Opened opened = open_library(*search.only);
    if (opened.handle != nullptr) return read_library(opened.handle, *search.only);
    return make_error(ErrorKind::unavailable,
                      "the NCCL library that was named does not load: " + opened.why,
                      "correct or unset CPSCOPE_NCCL_LIBRARY");
  }
  std::vector<std::string> files = search.files;
  std::string why_not;  // reason for a file that exists and does not load
  bool has_asked = !search.asks_python;
  for (size_t i = 0; i < files.size() || !has_asked; ++i) {
    if (i == files.size()) {
      has_asked = true;
      const std::optional<std::string> from_python = ask_python();
      if (!from_python) break;
      files.push_back(*from_python);
    }
    const Opened opened = open_library(files[i]);
    if (opened.handle != nullptr) {
      return read_library(opened.handle, path_of(opened.handle, files[i]));
    }
    std::error_code ignored;
    if (why_not.empty() && std::filesystem::exists(files[i], ignored)) why_not = opened.why;
  }
  return make_error(
      ErrorKind::unavailable,
      why_not.empty()
          ? fmt::format("no NCCL library was found; looked for {}", fmt::join(files, ", "))
          : "the NCCL library that was found does not load: " + why_not,
      fmt::format("install NCCL {} or later, or name its file in CPSCOPE_NCCL_LIBRARY",
                  nccl_version_text(kOldestNccl)));
}

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

}  // namespace cpscope::kernels
