#include "tests/support/review_picture.h"

#include "gui/draw/png_file.h"
#include "gui/panel/offscreen.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {

namespace {

bool is_asked_for() { return std::getenv("CPSCOPE_REVIEW") != nullptr; }

}  // namespace

void save_png_for_review(const std::string& name, const gui::Image& image) {
  if (!is_asked_for()) return;
  const std::filesystem::path folder = std::filesystem::path(CPSCOPE_SOURCE_DIR) / "out/review";
  std::filesystem::create_directories(folder);
  const Result<size_t> written = gui::write_png((folder / (name + ".png")).string(), image);
  if (!written) ADD_FAILURE() << to_text(written.error());
}

void save_png_for_review(const std::string& name, const gui::Drawing& drawing, gui::Size size,
                         gui::ThemeName theme, float scale) {
  if (!is_asked_for()) return;
  save_png_for_review(name + "." + std::string(to_name(theme)),
                      gui::render_drawing(drawing, size, theme, gui::FontChoice::packages, scale));
}

}  // namespace cpscope::tests
