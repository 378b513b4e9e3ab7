#include "gui/window/picture_size.h"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr double kMostPixels = 1 << 26;

}  // namespace

std::optional<Error> check_size(Size size, double scale) {
  if (size.width < kLeastPicture.width || size.height < kLeastPicture.height) {
    return make_bad_input(
        fmt::format("--size is too small: {}x{}", size.width, size.height),
        fmt::format("use at least {}x{}", kLeastPicture.width, kLeastPicture.height));
  }
  if (static_cast<double>(size.width) * size.height * scale * scale > kMostPixels) {
    return make_bad_input("the picture would have more than 64 Mi pixels",
                          "use a smaller --size or --scale");
  }
  return std::nullopt;
}

Result<Size> read_size(const std::string& text, double scale) {
  int width = 0, height = 0, used = 0;
  const bool is_read = std::sscanf(text.c_str(), "%6dx%6d%n", &width, &height, &used) == 2;
  if (!is_read || static_cast<size_t>(used) != text.size())
    return make_bad_input("--size is no size: " + text, "write it as 1280x860");
  const Size size{static_cast<float>(width), static_cast<float>(height)};
  if (auto error = check_size(size, scale)) return *error;
  return size;
}

std::optional<Error> check_folder(const std::string& path, const std::string& option) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return std::nullopt;
  return make_bad_input("the folder of " + option + " is not there: " + folder.string(),
                        "make it first");
}

}  // namespace cpscope::gui
