#include "tests/house/tree_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iomanip>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace cpscope::house {

namespace fs = std::filesystem;

namespace {

// Top folders that hold people's own files.
constexpr std::array<std::string_view, 5> kPersonalFolders = {"work", "home", "root", "Users",
                                                              "mnt"};
constexpr std::array<std::string_view, 5> kRooms = {"sim", "reference", "kernels", "gui", "tests"};

bool ends_with_any(const std::string& path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}

bool starts_with_any(const std::string& text, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view beginning) { return text.starts_with(beginning); });
}

/// Does the line hold an absolute path into a person's folders?
bool names_a_place(const std::string& line) {
  for (const std::string_view name : kPersonalFolders) {
    const std::string folder = "/" + std::string(name) + "/";
    for (size_t at = line.find(folder); at != std::string::npos; at = line.find(folder, at + 1)) {
      // A slash that follows a name or a variable continues a relative path.
      const char before = at == 0 ? ' ' : line[at - 1];
      const bool is_continued = std::isalnum(static_cast<unsigned char>(before)) != 0 ||
                                std::string_view("_.)}>*-/").find(before) != std::string_view::npos;
      if (!is_continued) return true;
    }
  }
  return false;
}

/// The first folder of a path: its room, if it is one.
std::string room_of(const std::string& path) {
  const std::string first = path.substr(0, path.find('/'));
  return std::find(kRooms.begin(), kRooms.end(), first) != kRooms.end() ? first : "";
}

struct Include {
  std::string target;
  bool is_quoted = false;
};

std::optional<Include> parse_include(std::string_view line) {
  const auto skip_blanks = [&line] {
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  };
  for (const std::string_view word : {"#", "include"}) {
    skip_blanks();
    if (!line.starts_with(word)) return std::nullopt;
    line.remove_prefix(word.size());
  }
  skip_blanks();
  if (line.empty() || (line.front() != '<' && line.front() != '"')) return std::nullopt;
  const bool is_quoted = line.front() == '"';
  line.remove_prefix(1);
  return Include{.target = std::string(line.substr(0, line.find(is_quoted ? '"' : '>'))),
                 .is_quoted = is_quoted};
}

/// Calls visit(file, place, include) for every include of every C++ file; place is "path:line".
template <class Visit>
void for_each_include(const std::vector<SourceFile>& files, Visit visit) {
  for (const SourceFile& file : files) {
    if (!file.is_cpp()) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::optional<Include> include = parse_include(file.lines[i]);
      if (include) visit(file, file.path + ":" + std::to_string(i + 1), *include);
    }
  }
}

/// Other rooms see all of sim/ but the commands in sim/app, which are given what they need of
/// other rooms.
bool may_include(const SourceFile& file, const std::string& target) {
  const std::string room = room_of(file.path), target_room = room_of(target);
  if (room == "tests") return true;
  if (target_room == "tests") return false;
  const bool is_front_door = file.path == "sim/app/main.cpp" ||
                             file.path == "sim/app/page_main.cpp" ||
                             file.path == "reference/python/pictures.cpp";
  if (is_front_door || target_room == room) return true;
  return target_room == "sim" && !target.starts_with("sim/app/");
}

/// The folders of each room from below to above: a file may include files of its own folder and of
/// those before it. Files of kernels/ itself are what plugins include.
constexpr auto kFloors =
    std::to_array<std::string_view>({"sim/base",          "sim/scenario",      "sim/plan",
                                     "sim/plan/check",    "sim/plan/planner",  "sim/plan/document",
                                     "sim/plan/order",    "sim/plan/te",       "sim/clock",
                                     "sim/run",           "sim/run/record",    "sim/run/grade",
                                     "sim/run/probe",     "sim/faults",        "sim/documents",
                                     "sim/findings",      "sim/app/report",    "sim/app/matrix",
                                     "sim/app/predict",   "sim/app/fuzz",      "sim/app/cli",
                                     "sim/app",           "kernels",           "kernels/device",
                                     "kernels/tiles",     "kernels/attention", "kernels/hopper",
                                     "kernels/blackwell", "kernels/dispatch",  "kernels/rows",
                                     "kernels/lower",     "kernels/group",     "kernels/run",
                                     "kernels/plugin",    "kernels/emulator",  "gui/draw",
                                     "gui/model",         "gui/model/balance", "gui/model/layout",
                                     "gui/model/mask",    "gui/model/numbers", "gui/model/timeline",
                                     "gui/model/traffic", "gui/model/ways",    "gui/app/document",
                                     "gui/app/caption",   "gui/app",           "gui/app/find",
                                     "gui/panel",         "gui/window",        "gui/web"});

/// The floor of a file, counted from 0; nothing where the folder is none of them.
std::optional<size_t> floor_of(const std::string& path) {
  const auto found =
      std::find(kFloors.begin(), kFloors.end(), std::string_view(path).substr(0, path.rfind('/')));
  if (found == kFloors.end()) return std::nullopt;
  return static_cast<size_t>(found - kFloors.begin());
}

/// The emulator stands in for the device, which so knows it.
bool climbs(const std::string& from, const std::string& to) {
  if (from.starts_with("kernels/device/") && to.starts_with("kernels/emulator/")) return false;
  const auto lower = floor_of(from), upper = floor_of(to);
  return room_of(from) == room_of(to) && lower && upper && *upper > *lower;
}

bool is_foreign_folder(const fs::path& relative) {
  const std::string first = relative.begin()->string();
  return first == ".git" || first == "out" || first == "shared" || first.starts_with("build");
}

std::optional<SourceFile> load_file(const fs::path& path, const std::string& relative) {
  SourceFile file{.path = relative, .lines = {}};
  std::ifstream stream(path, std::ios::binary);
  std::string line;
  while (std::getline(stream, line)) {
    if (line.find('\0') != std::string::npos) return std::nullopt;  // a picture or a record
    file.lines.push_back(line);
  }
  return file;
}

}  // namespace

bool SourceFile::is_header() const { return ends_with_any(path, {".h", ".cuh", ".hpp"}); }

bool SourceFile::is_cpp() const { return is_header() || ends_with_any(path, {".cpp", ".cu"}); }

bool SourceFile::is_code() const {
  return is_cpp() || path == "cpscope" || path == ".ci/run" ||
         ends_with_any(path, {".py", ".sh", ".cmake", "CMakeLists.txt"});
}

std::vector<SourceFile> load_tree(const std::string& root) {
  std::vector<SourceFile> files;
  for (auto entry = fs::recursive_directory_iterator(root);
       entry != fs::recursive_directory_iterator(); ++entry) {
    const fs::path relative = entry->path().lexically_relative(root);
    if (is_foreign_folder(relative)) {
      if (entry->is_directory()) entry.disable_recursion_pending();
      continue;
    }
    if (entry->is_symlink() || !entry->is_regular_file()) continue;
    if (std::optional<SourceFile> file = load_file(entry->path(), relative.generic_string())) {
      files.push_back(*std::move(file));
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

std::vector<std::string> find_wrong_directions(const std::vector<SourceFile>& files) {
  std::vector<std::string> findings;
  for_each_include(files, [&](const SourceFile& file, const std::string& place,
                              const Include& include) {
    const std::string target_room = room_of(include.target);
    if (target_room.empty()) return;
    if (!may_include(file, include.target)) {
      findings.push_back(place + ": " + room_of(file.path) + " must not include " + include.target);
    } else if (climbs(file.path, include.target)) {
      findings.push_back(place + ": " + fs::path(file.path).parent_path().string() +
                         " must not include " + include.target);
    }
  });
  return findings;
}

std::vector<std::string> find_homeless_files(const std::vector<SourceFile>& files) {
  std::vector<std::string> findings;
  for (const SourceFile& file : files) {
    const std::string room = room_of(file.path);
    const bool has_floors = room == "sim" || room == "kernels" || room == "gui";
    if (file.is_cpp() && has_floors && !floor_of(file.path))
      findings.push_back(file.path + ": its folder has no place among the floors of " + room);
  }
  return findings;
}

std::vector<std::string> find_unknown_includes(const std::vector<SourceFile>& files) {
  std::set<std::string> paths;
  for (const SourceFile& file : files) paths.insert(file.path);
  std::vector<std::string> findings;
  for_each_include(files, [&](const SourceFile&, const std::string& place, const Include& include) {
    if (!include.is_quoted) return;
    if (room_of(include.target).empty()) {
      findings.push_back(place + ": the room is missing in " + include.target);
    } else if (!paths.contains(include.target)) {
      findings.push_back(place + ": no such file: " + include.target);
    }
  });
  return findings;
}

std::vector<std::string> find_foreign_headers(const std::vector<SourceFile>& files) {
  std::vector<std::string> findings;
  for_each_include(
      files, [&](const SourceFile& file, const std::string& place, const Include& include) {
        if (room_of(file.path) != "sim" || !file.is_header()) return;
        if (!starts_with_any(include.target, {"Eigen/", "cuda", "cublas", "cooperative_groups",
                                              "nccl", "imgui", "GLFW/"})) {
          return;
        }
        findings.push_back(place + ": a header of sim must not include " + include.target);
      });
  return findings;
}

std::vector<std::string> find_absolute_paths(const std::vector<SourceFile>& files) {
  std::vector<std::string> findings;
  for (const SourceFile& file : files) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (!names_a_place(file.lines[i])) continue;
      findings.push_back(file.path + ":" + std::to_string(i + 1) +
                         ": a place on one machine: " + file.lines[i]);
    }
  }
  return findings;
}

std::vector<std::string> find_long_files(const std::vector<SourceFile>& files, size_t limit) {
  std::vector<std::string> findings;
  for (const SourceFile& file : files) {
    if (!file.is_code() || file.lines.size() < limit) continue;
    findings.push_back(file.path + ": " + std::to_string(file.lines.size()) + " lines");
  }
  return findings;
}

std::vector<std::string> find_unguarded_headers(const std::vector<SourceFile>& files) {
  std::vector<std::string> findings;
  for (const SourceFile& file : files) {
    if (!file.is_header()) continue;
    const auto first = std::find_if(
        file.lines.begin(), file.lines.end(),
        [](const std::string& line) { return !line.empty() && !line.starts_with("//"); });
    if (first != file.lines.end() && *first == "#pragma once") continue;
    findings.push_back(file.path + ":1: does not begin with #pragma once");
  }
  return findings;
}

std::vector<std::string> find_lost_ranges(const std::vector<SourceFile>& files) {
  static const std::regex kLost(R"re(^ *for \([^;]*[^:]: ?.*\)(\.\w+\([^()]*\)[.\[]|\["))re");
  std::vector<std::string> findings;
  for (const SourceFile& file : files) {
    if (!file.path.ends_with(".cpp") && !file.path.ends_with(".cu") && !file.is_header()) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (!std::regex_search(file.lines[i], kLost)) continue;
      findings.push_back(file.path + ":" + std::to_string(i + 1) +
                         ": keep the result of the first call for the loop");
    }
  }
  return findings;
}

std::vector<std::string> find_twin_types(const std::vector<SourceFile>& files) {
  static const std::regex kNamespace(R"(^namespace ([\w:]+) \{)");
  static const std::regex kType(R"(^(struct|class|enum class) (\w+)\b(?!\()[^;]*$)");
  std::vector<std::string> findings;
  std::map<std::string, std::string> homes;  // [namespace::type] where it was seen first
  for (const SourceFile& file : files) {
    if (!file.is_header()) continue;
    std::string space;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      std::smatch match;
      if (std::regex_search(file.lines[i], match, kNamespace)) space = match[1];
      if (space.empty() || !std::regex_search(file.lines[i], match, kType)) continue;
      const std::string place = file.path + ":" + std::to_string(i + 1);
      const auto [home, is_new] = homes.try_emplace(space + "::" + match[2].str(), place);
      if (!is_new)
        findings.push_back(place + ": " + home->first + " is defined in " + home->second + " too");
    }
  }
  return findings;
}

std::string hash_kernels(const std::vector<SourceFile>& files) {
  uint64_t hash = 14695981039346656037u;
  const auto add_line = [&](const std::string& line) {
    for (const char c : line + '\n') hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  };
  for (const SourceFile& file : files) {
    if (!file.path.starts_with("kernels/") || file.path.starts_with("kernels/emulator/")) continue;
    const std::string ending = fs::path(file.path).extension().string();
    if (ending != ".cu" && ending != ".h" && ending != ".cpp") continue;
    add_line(file.path);
    for (const std::string& line : file.lines) add_line(line);
  }
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << hash;
  return text.str();
}

std::string find_stale_evidence(const std::vector<SourceFile>& files) {
  const std::string present = hash_kernels(files);
  for (const SourceFile& file : files) {
    if (!file.path.starts_with("tests/gpu/evidence/")) continue;
    for (const std::string& line : file.lines)
      if (line.find("\"kernels_hash\": \"" + present + '"') != std::string::npos) return "";
  }
  return "STALE: no file of tests/gpu/evidence is of these kernels, " + present +
         ": tests/gpu/run measures them";
}

}  // namespace cpscope::house
