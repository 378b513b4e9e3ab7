#include "gui/window/remembered.h"

#include "sim/base/whole_file.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope::gui {
namespace {

constexpr float kLeast = 320, kMost = 16384;  // logical pixels of a side

bool is_side(float pixels) { return pixels >= kLeast && pixels <= kMost; }

}  // namespace

std::string remembered_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') return std::string(state) + "/cpscope/window";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "";
  return std::string(home) + "/.local/state/cpscope/window";
}

std::optional<Remembered> read_remembered(const std::string& path) {
  std::ifstream file(path);
  std::string size, theme, theme_name;
  Remembered read;
  if (!(file >> size >> read.size.width >> read.size.height >> theme >> theme_name))
    return std::nullopt;
  const std::optional<ThemeName> named = parse_theme(theme_name);
  if (size != "size" || theme != "theme" || !named || !is_side(read.size.width) ||
      !is_side(read.size.height))
    return std::nullopt;
  read.theme = *named;
  // Files of earlier versions end here.
  std::string borders;
  if (!(file >> borders)) return read;
  std::array<float, 6> shares{};
  for (float& share : shares) file >> share;
  const std::optional<Borders> parsed = parse_borders(shares);
  if (borders != "borders" || !file || !parsed) return std::nullopt;
  read.borders = *parsed;
  return read;
}

bool write_remembered(const std::string& path, const Remembered& remembered) {
  if (path.empty() || !is_side(remembered.size.width) || !is_side(remembered.size.height))
    return false;
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  if (failed) return false;
  const std::string text = fmt::format(
      "size {:.0f} {:.0f}\ntheme {}\nborders {}\n", remembered.size.width, remembered.size.height,
      to_name(remembered.theme), fmt::join(to_numbers(remembered.borders), " "));
  return write_whole_file(path, text, "the window's size").ok();
}

}  // namespace cpscope::gui
