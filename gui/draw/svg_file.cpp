#include "gui/draw/svg_file.h"

#include "gui/draw/label_place.h"
#include "sim/base/markup.h"
#include "sim/base/whole_file.h"
#ifdef CPSCOPE_HAS_PNG
#include "gui/draw/png_file.h"
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>

#include <fmt/format.h>

namespace cpscope::gui {

namespace {

// Fewer cells than this are written as boxes, which every viewer shows with sharp edges.
constexpr int64_t kMostCellsAsBoxes = 1024;
constexpr int32_t kHatchPeriod = 8;  // logical pixels, as on the screen

/// Prints a value to a hundredth of a pixel, without trailing zeros.
std::string print_hundredths(float value) {
  if (!std::isfinite(value)) return "0";
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

/// A text as XML; what is not printable ASCII becomes "?".
std::string print_text(std::string text) {
  for (char& letter : text) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return escape_markup(text);
}

/// Prints ` fill="#0077BB" fill-opacity="0.5"`, for "fill" or "stroke".
std::string paint_of(std::string_view what, Color c) {
  std::string text = fmt::format(" {}=\"#{:02X}{:02X}{:02X}\"", what, c.r, c.g, c.b);
  if (c.a != 255) {
    text +=
        fmt::format(" {}-opacity=\"{}\"", what, print_hundredths(static_cast<float>(c.a) / 255));
  }
  return text;
}

std::string rect(const Box& box, float rounding, const std::string& paint) {
  const std::string round = rounding > 0 ? " rx=\"" + print_hundredths(rounding) + "\"" : "";
  return "<rect x=\"" + print_hundredths(box.x0) + "\" y=\"" + print_hundredths(box.y0) +
         "\" width=\"" + print_hundredths(box.width()) + "\" height=\"" +
         print_hundredths(box.height()) + "\"" + round + paint + "/>\n";
}

[[maybe_unused]] std::string base64(const std::string& bytes) {
  static constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kLetters[group >> (18 - 6 * k) & 63U];
    }
  }
  return text;
}

class SvgWriter {
 public:
  explicit SvgWriter(std::string id_prefix) : id_prefix_(std::move(id_prefix)) {}

  void operator()(const FilledBox& m) {
    if (!(m.box.x1 > m.box.x0) || !(m.box.y1 > m.box.y0)) return;
    // As on the screen: a box that is not empty is at least one pixel wide, and neighbours meet
    // without a gap.
    const Box box{m.box.x0, m.box.y0, std::max(m.box.x1, m.box.x0 + 1),
                  std::max(m.box.y1, m.box.y0 + 1)};
    const std::string edges = m.rounding > 0 ? "" : " class=\"e\"";
    if (m.color.a != 0) body_ += rect(box, m.rounding, edges + paint_of("fill", m.color));
    if (m.hatch == Hatch::none || m.hatch_color.a == 0) return;
    body_ +=
        rect(box, m.rounding, edges + " fill=\"url(#" + hatch_id(m.hatch, m.hatch_color) + ")\"");
  }

  void operator()(const OutlinedBox& m) {
    if (!(m.box.x1 > m.box.x0) || !(m.box.y1 > m.box.y0)) return;
    const float width = std::min({m.width, m.box.width(), m.box.height()});
    const std::string box = rect(m.box.inset(width / 2), std::max(0.F, m.rounding - width / 2),
                                 " fill=\"none\"" + stroke(m.color, width, m.is_dashed));
    body_ += m.title.empty()
                 ? box
                 : "<g class=\"named\"><title>" + print_text(m.title) + "</title>" + box + "</g>\n";
  }

  void operator()(const Line& m) {
    const float dx = m.to.x - m.from.x, dy = m.to.y - m.from.y;
    const float length = std::hypot(dx, dy);
    if (!(length > 0)) return;
    // As on the screen: the stroke is centred in the pixel that begins at the given coordinate.
    const bool is_slanted = dx != 0 && dy != 0;
    const Point from{m.from.x + (dx == 0 || is_slanted ? 0.5F : 0),
                     m.from.y + (dy == 0 || is_slanted ? 0.5F : 0)};
    Point to{from.x + dx, from.y + dy};
    if (m.has_arrow) {
      const float reach = std::min(length, 5 + 2 * m.width);
      const float ux = dx / length, uy = dy / length;
      const Point back{to.x - ux * reach, to.y - uy * reach};
      const float half = reach * 0.42F;
      (*this)(Polygon{
          {to, {back.x - uy * half, back.y + ux * half}, {back.x + uy * half, back.y - ux * half}},
          m.color});
      to = {to.x - ux * reach * 0.8F, to.y - uy * reach * 0.8F};
    }
    body_ += "<line x1=\"" + print_hundredths(from.x) + "\" y1=\"" + print_hundredths(from.y) +
             "\" x2=\"" + print_hundredths(to.x) + "\" y2=\"" + print_hundredths(to.y) + "\"" +
             stroke(m.color, m.width, m.is_dashed) + "/>\n";
  }

  void operator()(const Polygon& m) {
    if (m.points.size() < 3) return;
    body_ += "<polygon points=\"";
    for (size_t i = 0; i < m.points.size(); ++i) {
      body_ += (i > 0 ? " " : "") + print_hundredths(m.points[i].x) + "," +
               print_hundredths(m.points[i].y);
    }
    body_ += "\"" + paint_of("fill", m.color) + "/>\n";
  }

  void operator()(const Ribbon& m) {
    // Control points at thirds make the height grow evenly while the position eases in and out.
    const std::string third = print_hundredths(m.top + (m.bottom - m.top) / 3);
    const std::string two_thirds = print_hundredths(m.top + (m.bottom - m.top) * 2 / 3);
    const std::string top = print_hundredths(m.top), bottom = print_hundredths(m.bottom);
    const std::string top0 = print_hundredths(m.top_x0), top1 = print_hundredths(m.top_x1);
    const std::string end0 = print_hundredths(m.bottom_x0), end1 = print_hundredths(m.bottom_x1);
    body_ += fmt::format("<path d=\"M{} {}C{} {} {} {} {} {}H{}C{} {} {} {} {} {}Z\"{}/>\n", top0,
                         top, top0, third, end0, two_thirds, end0, bottom, end1, end1, two_thirds,
                         top1, third, top1, top, paint_of("fill", m.color));
  }

  void operator()(const Label& m) {
    static constexpr std::array<std::string_view, 3> kAnchors = {"start", "middle", "end"};
    static constexpr std::array<std::string_view, 3> kClasses = {"b", "m", "s"};
    if (m.text.empty()) return;
    const auto column = static_cast<size_t>(m.anchor) % 3;
    const Point baseline = baseline_of(m, 0);
    body_ += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\" font-size=\"{}\"",
                         kClasses[static_cast<size_t>(m.face)], print_hundredths(baseline.x),
                         print_hundredths(baseline.y), print_hundredths(m.size));
    if (column > 0) body_ += fmt::format(" text-anchor=\"{}\"", kAnchors[column]);
    body_ += paint_of("fill", m.color) + ">" + print_text(m.text) + "</text>\n";
  }

  void operator()(const Pixels& m) {
    const int64_t cells = static_cast<int64_t>(m.width) * m.height;
    if (cells <= 0 || static_cast<int64_t>(m.colors.size()) != cells) return;
    if (cells <= kMostCellsAsBoxes || !add_image(m)) add_cells(m);
  }

  void operator()(const PushClip& m) {
    const std::string id = fmt::format("{}c{}", id_prefix_, ++clips_);
    body_ += "<clipPath id=\"" + id + "\">" + rect(m.box, 0, "");
    body_.pop_back();
    body_ += "</clipPath>\n<g clip-path=\"url(#" + id + ")\">\n";
    ++open_clips_;
  }

  void operator()(const PopClip&) {
    if (open_clips_ == 0) return;
    body_ += "</g>\n";
    --open_clips_;
  }

  std::string finish(const SvgPage& page) {
    while (open_clips_ > 0) (*this)(PopClip{});
    const std::string width = print_hundredths(page.size.width),
                      height = print_hundredths(page.size.height);
    std::string text = page.is_inline ? "" : "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    text += fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" "
        "width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\">\n",
        width, height);
    text += "<title>" + print_text(page.title) + "</title>\n<desc>" + print_text(page.description) +
            "</desc>\n";
    text +=
        "<style>text{white-space:pre}.e{shape-rendering:crispEdges}"
        ".b,.s{font-family:Inter,\"Helvetica Neue\",Arial,sans-serif}.s{font-weight:600}"
        ".m{font-family:\"JetBrains Mono\",\"DejaVu Sans Mono\",monospace}</style>\n";
    if (!hatches_.empty()) text += "<defs>\n" + patterns() + "</defs>\n";
    if (page.background.a != 0) {
      text += rect({0, 0, page.size.width, page.size.height}, 0, paint_of("fill", page.background));
    }
    return text + body_ + "</svg>\n";
  }

 private:
  /// A hatch and its colour as r, g, b, a.
  using HatchKey = std::tuple<Hatch, uint8_t, uint8_t, uint8_t, uint8_t>;

  static std::string stroke(Color color, float width, bool is_dashed) {
    return paint_of("stroke", color) + " stroke-width=\"" + print_hundredths(width) + "\"" +
           (is_dashed ? " stroke-dasharray=\"4 3\"" : "");
  }

  std::string hatch_id(Hatch hatch, Color c) {
    const auto [found, is_new] =
        hatches_.try_emplace({hatch, c.r, c.g, c.b, c.a}, static_cast<int32_t>(hatches_.size()));
    return fmt::format("{}h{}", id_prefix_, found->second);
  }

  std::string patterns() const {
    std::string text;
    for (const auto& [key, index] : hatches_) {
      const auto& [hatch, r, g, b, a] = key;
      const Color color{r, g, b, a};
      text += fmt::format(
          "<pattern id=\"{0}\" width=\"{1}\" height=\"{1}\" patternUnits=\"userSpaceOnUse\">",
          fmt::format("{}h{}", id_prefix_, index), kHatchPeriod);
      if (hatch == Hatch::dots) {
        const std::string paint = paint_of("fill", color);
        text += "<circle cx=\"2\" cy=\"2\" r=\"1.1\"" + paint +
                "/><circle cx=\"6\" cy=\"6\" r=\"1.1\"" + paint + "/>";
      } else {
        // Lines extend past the edges, so that the corners of neighbouring tiles are filled.
        std::string path = "M-2 2L2 -2M-2 10L10 -2M6 10L10 6";
        if (hatch == Hatch::cross) path += "M-2 6L2 10M-2 -2L10 10M6 -2L10 2";
        text += "<path d=\"" + path + "\" fill=\"none\"" + stroke(color, 1, false) + "/>";
      }
      text += "</pattern>\n";
    }
    return text;
  }

  /// Adds the picture as an embedded PNG; returns false in a build without PNG.
  bool add_image([[maybe_unused]] const Pixels& m) {
#ifdef CPSCOPE_HAS_PNG
    Image image;
    image.width = m.width;
    image.height = m.height;
    image.pixels = m.colors;
    const Result<std::string> png = write_png_text(image);
    if (!png) return false;
    body_ += fmt::format(
        "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" "
        "style=\"image-rendering:pixelated\" xlink:href=\"data:image/png;base64,{}\"/>\n",
        print_hundredths(m.box.x0), print_hundredths(m.box.y0), print_hundredths(m.box.width()),
        print_hundredths(m.box.height()), base64(png.value()));
    return true;
#else
    return false;
#endif
  }

  /// Adds one box for each run of equal cells in a row.
  void add_cells(const Pixels& m) {
    const float cell_width = m.box.width() / static_cast<float>(m.width);
    const float cell_height = m.box.height() / static_cast<float>(m.height);
    body_ += "<g class=\"e\">\n";
    for (int32_t y = 0; y < m.height; ++y) {
      const Color* row = m.colors.data() + static_cast<size_t>(y) * static_cast<size_t>(m.width);
      for (int32_t x = 0; x < m.width;) {
        int32_t end = x + 1;
        while (end < m.width && row[end] == row[x]) ++end;
        if (row[x].a != 0) {
          const float top = m.box.y0 + static_cast<float>(y) * cell_height;
          body_ += rect({m.box.x0 + static_cast<float>(x) * cell_width, top,
                         m.box.x0 + static_cast<float>(end) * cell_width, top + cell_height},
                        0, paint_of("fill", row[x]));
        }
        x = end;
      }
    }
    body_ += "</g>\n";
  }

  std::string id_prefix_, body_;
  std::map<HatchKey, int32_t> hatches_;  // hatch to the number in its pattern's id
  int32_t clips_ = 0, open_clips_ = 0;
};

}  // namespace

std::string print_svg(const Drawing& drawing, const SvgPage& page) {
  SvgWriter writer(page.id_prefix);
  for (const Mark& mark : drawing.marks) std::visit(writer, mark);
  return writer.finish(page);
}

Result<size_t> write_svg(const std::string& path, const Drawing& drawing, const SvgPage& page) {
  return write_whole_file(path, print_svg(drawing, page), "the picture");
}

}  // namespace cpscope::gui
