#include "gui/draw/png_file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

namespace fs = std::filesystem;

/// A temporary folder for this test, removed at its end.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / fs::path("cpscope_png_" + name())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& file) const { return (path_ / file).string(); }
  const fs::path& path() const { return path_; }

 private:
  static std::string name() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  fs::path path_;
};

Image make_image(bool has_alpha) {
  Image image(37, 23);
  for (int32_t y = 0; y < image.height; ++y) {
    for (int32_t x = 0; x < image.width; ++x) {
      image.at(x, y) = {static_cast<uint8_t>(x * 7), static_cast<uint8_t>(y * 11),
                        static_cast<uint8_t>(x ^ y), static_cast<uint8_t>(has_alpha ? x * y : 255)};
    }
  }
  return image;
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Png, ComesBackAsItWasWritten) {
  const Folder folder;
  const std::vector<PngText> texts = {{"scenario", "cp_size = 8"},
                                      {"state", std::string(5000, 'x')}};
  for (const bool has_alpha : {false, true}) {
    const Image image = make_image(has_alpha);
    const Result<size_t> written = write_png(folder / "a.png", image, texts);
    ASSERT_TRUE(written.ok()) << to_text(written.error());
    EXPECT_EQ(written.value(), fs::file_size(folder / "a.png"));
    const Result<PngFile> read = read_png(folder / "a.png");
    ASSERT_TRUE(read.ok()) << to_text(read.error());
    EXPECT_TRUE(read.value().image == image);
    EXPECT_EQ(read.value().texts, texts);
  }
}

TEST(Png, IsTheSameBytesEveryTime) {
  const Image image = make_image(true);
  EXPECT_EQ(write_png_text(image, {{"a", "b"}}).value(),
            write_png_text(image, {{"a", "b"}}).value());
  EXPECT_LT(write_png_text(make_image(false)).value().size(),
            write_png_text(make_image(true)).value().size());
}

TEST(Png, LeavesNothingBesideItsFile) {
  const Folder folder;
  ASSERT_TRUE(write_png(folder / "a.png", make_image(false)).ok());
  ASSERT_TRUE(write_png(folder / "a.png", make_image(true)).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator{}), 1);
}

TEST(Png, SaysWhyAFileCannotBeWritten) {
  const Folder folder;
  for (const std::string& path : {folder / "missing/a.png", folder.path().string()}) {
    const Result<size_t> written = write_png(path, make_image(false));
    ASSERT_FALSE(written.ok());
    const std::string sentence = to_text(written.error());
    EXPECT_NE(sentence.find(path + ": the picture could not be written: "), std::string::npos)
        << sentence;
    EXPECT_EQ(written.error().kind, ErrorKind::bad_input);
  }
}

TEST(Png, RefusesWhatIsNoPicture) {
  const Folder folder;
  const std::string whole = write_png_text(make_image(true)).value();
  std::string broken = whole;
  broken[60] = static_cast<char>(broken[60] ^ 0x55);
  for (const std::string& bytes : {std::string(), std::string("no picture"), whole.substr(0, 20),
                                   whole.substr(0, whole.size() / 2), broken}) {
    write_bytes(folder / "a.png", bytes);
    const Result<PngFile> read = read_png(folder / "a.png");
    ASSERT_FALSE(read.ok());
    EXPECT_NE(to_text(read.error()).find("not a PNG picture"), std::string::npos)
        << to_text(read.error());
  }
  EXPECT_FALSE(read_png(folder / "nothing.png").ok());
}

}  // namespace
}  // namespace cpscope::gui
