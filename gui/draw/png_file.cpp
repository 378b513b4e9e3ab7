#include "gui/draw/png_file.h"

#include "sim/base/check.h"
#include "sim/base/whole_file.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <png.h>

namespace cpscope::gui {

namespace {

constexpr int64_t kMostPixels = int64_t{1} << 28;
constexpr int64_t kMostBytes = int64_t{1} << 30;
// Pictures of a window are flat areas and text, which compress best without row filters. The level
// is fixed, so that equal pictures give equal bytes.
constexpr int kCompressionLevel = 7;

/// State shared by libpng's callbacks and their caller.
struct Session {
  std::string* bytes = nullptr;  // bytes that are written or read
  size_t next = 0;               // next byte to read
  std::string message;           // the error message
};

// libpng reports errors by longjmp; no function below that it may jump out of has an object with a
// destructor.
void on_failure(png_structp png, png_const_charp message) {
  static_cast<Session*>(png_get_error_ptr(png))->message = message;
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void append_bytes(png_structp png, png_bytep data, size_t count) {
  static_cast<Session*>(png_get_io_ptr(png))
      ->bytes->append(reinterpret_cast<const char*>(data), count);
}

void flush_nothing(png_structp) {}

void take_bytes(png_structp png, png_bytep data, size_t count) {
  Session& session = *static_cast<Session*>(png_get_io_ptr(png));
  if (session.bytes->size() - session.next < count) png_error(png, "the file ends early");
  std::memcpy(data, session.bytes->data() + session.next, count);
  session.next += count;
}

/// The picture's rows as bytes, without alpha where every pixel is opaque.
std::vector<uint8_t> pack_rows(const Image& image, bool has_alpha) {
  std::vector<uint8_t> bytes;
  bytes.reserve(image.pixels.size() * (has_alpha ? 4 : 3));
  for (const Color color : image.pixels) {
    bytes.push_back(color.r);
    bytes.push_back(color.g);
    bytes.push_back(color.b);
    if (has_alpha) bytes.push_back(color.a);
  }
  return bytes;
}

bool encode(Session& session, const Image& image, bool has_alpha, std::vector<png_bytep>& rows,
            std::vector<png_text>& texts) {
  png_structp png =
      png_create_write_struct(PNG_LIBPNG_VER_STRING, &session, on_failure, on_warning);
  if (png == nullptr) return false;
  png_infop info = png_create_info_struct(png);
  if (info == nullptr || setjmp(png_jmpbuf(png)) != 0) {
    png_destroy_write_struct(&png, &info);
    return false;
  }
  png_set_write_fn(png, &session, append_bytes, flush_nothing);
  png_set_compression_level(png, kCompressionLevel);
  png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_NONE);
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), 8,
               has_alpha ? PNG_COLOR_TYPE_RGB_ALPHA : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!texts.empty()) png_set_text(png, info, texts.data(), static_cast<int>(texts.size()));
  png_write_info(png, info);
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return true;
}

struct Reader {
  png_structp png = nullptr;
  png_infop info = nullptr;
};

/// Reads everything before the pixels and requests 8-bit RGBA.
bool begin_decode(Reader& reader, Session& session, png_uint_32& width, png_uint_32& height) {
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &session, on_failure, on_warning);
  if (reader.png == nullptr) return false;
  reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr || setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_read_fn(reader.png, &session, take_bytes);
  png_read_info(reader.png, reader.info);
  width = png_get_image_width(reader.png, reader.info);
  height = png_get_image_height(reader.png, reader.info);
  png_set_expand(reader.png);
  png_set_strip_16(reader.png);
  png_set_gray_to_rgb(reader.png);
  png_set_add_alpha(reader.png, 255, PNG_FILLER_AFTER);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

bool finish_decode(Reader& reader, std::vector<png_bytep>& rows) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, rows.data());
  png_read_end(reader.png, reader.info);
  return true;
}

std::vector<PngText> texts_of(const Reader& reader) {
  png_textp texts = nullptr;
  int count = 0;
  png_get_text(reader.png, reader.info, &texts, &count);
  std::vector<PngText> result;
  for (int i = 0; i < count; ++i) {
    result.push_back({texts[i].key, std::string(texts[i].text, texts[i].text_length)});
  }
  return result;
}

Error not_a_picture(const std::string& path, const std::string& why) {
  return make_error(ErrorKind::bad_input, "not a PNG picture: " + why,
                    "give a file that cpscope or a drawing program wrote", path);
}

/// The part of reading that does not touch the file: decodes `bytes` into `file`, or returns the
/// error.
std::string decode(std::string& bytes, PngFile& file) {
  Session session{.bytes = &bytes, .next = 0, .message = "out of memory"};
  Reader reader;
  png_uint_32 width = 0, height = 0;
  std::string failure;
  if (!begin_decode(reader, session, width, height)) {
    failure = session.message;
  } else if (static_cast<int64_t>(width) * height > kMostPixels) {
    failure = "more than 2^28 pixels";
  } else {
    file.image = Image(static_cast<int32_t>(width), static_cast<int32_t>(height));
    std::vector<png_bytep> rows;
    for (png_uint_32 y = 0; y < height; ++y) {
      rows.push_back(reinterpret_cast<png_bytep>(&file.image.at(0, static_cast<int32_t>(y))));
    }
    if (finish_decode(reader, rows)) {
      file.texts = texts_of(reader);
    } else {
      failure = session.message;
    }
  }
  png_destroy_read_struct(&reader.png, &reader.info, nullptr);
  return failure;
}

}  // namespace

Result<std::string> write_png_text(const Image& image, const std::vector<PngText>& texts,
                                   bool keeps_alpha) {
  CPSCOPE_CHECK(image.width > 0 && image.height > 0, "a picture without pixels", image.width,
                image.height);
  CPSCOPE_CHECK(
      static_cast<int64_t>(image.pixels.size()) == static_cast<int64_t>(image.width) * image.height,
      "a picture's size disagrees with its pixels", image.pixels.size(), image.width);
  const bool has_alpha = keeps_alpha || std::any_of(image.pixels.begin(), image.pixels.end(),
                                                    [](Color color) { return color.a != 255; });
  std::vector<uint8_t> pixels = pack_rows(image, has_alpha);
  const size_t stride = pixels.size() / static_cast<size_t>(image.height);
  std::vector<png_bytep> rows;
  for (size_t y = 0; y < static_cast<size_t>(image.height); ++y) {
    rows.push_back(pixels.data() + y * stride);
  }
  std::vector<PngText> owned = texts;  // libpng requires texts that it may modify
  std::vector<png_text> chunks;
  for (PngText& text : owned) {
    png_text chunk{};
    chunk.compression =
        text.text.size() < 1024 ? PNG_TEXT_COMPRESSION_NONE : PNG_TEXT_COMPRESSION_zTXt;
    chunk.key = text.key.data();
    chunk.text = text.text.data();
    chunk.text_length = text.text.size();
    chunks.push_back(chunk);
  }
  std::string bytes;
  Session session{.bytes = &bytes, .next = 0, .message = "out of memory"};
  if (!encode(session, image, has_alpha, rows, chunks)) {
    return make_error(ErrorKind::unavailable,
                      "the picture could not be packed as PNG: " + session.message);
  }
  return bytes;
}

Result<size_t> write_png(const std::string& path, const Image& image,
                         const std::vector<PngText>& texts) {
  Result<std::string> bytes = write_png_text(image, texts);
  if (!bytes) return bytes.error();
  return write_whole_file(path, bytes.value(), "the picture");
}

Result<PngFile> read_png(const std::string& path) {
  Result<std::string> bytes = read_text_file(path, kMostBytes);
  if (!bytes) return bytes.error();
  PngFile file;
  const std::string failure = decode(bytes.value(), file);
  if (!failure.empty()) return not_a_picture(path, failure);
  return file;
}

}  // namespace cpscope::gui
