#include "gui/model/legend.h"

#include "gui/model/axis.h"

#include <algorithm>
#include <cmath>

namespace cpscope::gui {
namespace {

constexpr float kTextSize = 12;
constexpr float kLineHeight = 16;
constexpr float kSample = 11;
constexpr float kSampleRoom = 17;
constexpr float kEntryGap = 14;

Face face_of(const LegendEntry& entry) { return entry.is_strong ? Face::strong : Face::body; }

Color color_of(const LegendEntry& entry, const Theme& theme) {
  return theme.of(entry.is_faint ? Role::faint_text : Role::text);
}

/// The text in lines of at most `room`, broken between words.
std::vector<std::string> wrap(const ViewInput& input, const std::string& text, Face face,
                              float room) {
  std::vector<std::string> lines;
  std::string line;
  for (size_t at = 0; at < text.size();) {
    size_t end = find_line_break(text, at);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(at, end - at);
    const std::string longer = line.empty() ? word : line + " " + word;
    if (!line.empty() && input.text_width(longer, kTextSize, face) > room) {
      lines.push_back(line);
      line = word;
    } else {
      line = longer;
    }
    at = end + 1;
  }
  if (!line.empty()) lines.push_back(line);
  for (std::string& fitted : lines)
    fitted = fit_text(input.text_width, fitted, kTextSize, face, room);
  return lines;
}

void add_sample(Drawing& drawing, const LegendEntry& entry, float x, float y) {
  const float top = y + (kLineHeight - kSample) / 2;
  const Box box{x, top, x + kSample, top + kSample};
  drawing.add(FilledBox{box, entry.color, entry.hatch, entry.hatch_color});
  if (entry.outline.a > 0) drawing.add(OutlinedBox{box, entry.outline, 1.5F});
}

void add_text(Drawing& drawing, const ViewInput& input, const LegendEntry& entry, float x, float y,
              const std::string& text) {
  drawing.add(Label{{x, y + kLineHeight / 2},
                    Anchor::left_middle,
                    color_of(entry, *input.theme),
                    kTextSize,
                    face_of(entry),
                    text});
}

}  // namespace

float add_legend_column(Drawing& drawing, const ViewInput& input, const Box& box,
                        const std::vector<LegendEntry>& entries) {
  float y = box.y0;
  for (const LegendEntry& entry : entries) {
    const float indent = entry.has_sample ? kSampleRoom : 0;
    const auto lines = wrap(input, entry.text, face_of(entry), box.width() - indent);
    if (entry.starts_line && y > box.y0) y += kLineHeight / 2;
    if (y + kLineHeight * static_cast<float>(lines.size()) > box.y1) break;
    if (entry.has_sample) add_sample(drawing, entry, box.x0, y);
    for (const std::string& line : lines) {
      add_text(drawing, input, entry, box.x0 + indent, y, line);
      y += kLineHeight;
    }
  }
  return y;
}

float add_legend_flow(Drawing& drawing, const ViewInput& input, const Box& box,
                      const std::vector<LegendEntry>& entries) {
  float x = box.x0, y = box.y0;
  for (const LegendEntry& entry : entries) {
    const float indent = entry.has_sample ? kSampleRoom : 0;
    const auto lines = wrap(input, entry.text, face_of(entry), box.width() - indent);
    if (lines.empty()) continue;
    // A partial sentence could have another meaning, so it is left out.
    const float first = indent + input.text_width(lines[0], kTextSize, face_of(entry));
    const bool breaks = x > box.x0 && (entry.starts_line || x + first > box.x1);
    const float rows = static_cast<float>(lines.size()) + (breaks ? 1.0F : 0.0F);
    if (y + rows * kLineHeight > box.y1 + 0.5F) return x > box.x0 ? y + kLineHeight : y;
    for (size_t i = 0; i < lines.size(); ++i) {
      const float width = indent + input.text_width(lines[i], kTextSize, face_of(entry));
      if (x > box.x0 && (i > 0 || entry.starts_line || x + width > box.x1)) {
        x = box.x0;
        y += kLineHeight;
      }
      if (entry.has_sample && i == 0) add_sample(drawing, entry, x, y);
      add_text(drawing, input, entry, x + indent, y, lines[i]);
      x += width + kEntryGap;
    }
  }
  return y + kLineHeight;
}

void add_legend_entry(Drawing& drawing, const ViewInput& input, const Box& line, float& x,
                      const std::string& text, float swatch,
                      const std::function<void(const Box&)>& add_swatch) {
  constexpr float kSize = 11, kBehind = 5, kBetween = 16;
  const float width = swatch + kBehind + input.text_width(text, kSize, Face::body) + kBetween;
  if (x + width > line.x1) return;
  const float y = line.center().y;
  add_swatch({x, y - 5, x + swatch, y + 5});
  drawing.add(Label{{x + swatch + kBehind, y},
                    Anchor::left_middle,
                    input.theme->of(Role::faint_text),
                    kSize,
                    Face::body,
                    text});
  x += width;
}

void add_sentence(Drawing& drawing, const ViewInput& input, const Box& box,
                  const std::string& text) {
  const auto lines = wrap(input, text, Face::body, std::min(420.0F, box.width() - 20));
  float y = box.center().y - kLineHeight * static_cast<float>(lines.size()) / 2;
  for (const std::string& line : lines) {
    drawing.add(Label{{box.center().x, y},
                      Anchor::center_top,
                      input.theme->of(Role::faint_text),
                      kTextSize,
                      Face::body,
                      line});
    y += kLineHeight;
  }
}

void add_sentence_line(Drawing& drawing, const ViewInput& input, Point at,
                       const std::string& text) {
  drawing.add(Label{at, Anchor::center_middle, input.theme->of(Role::faint_text), 13, Face::body,
                    fit_text(input.text_width, text, 13, Face::body, input.size.width - 8)});
}

Color mix(Color a, Color b, float share) {
  const auto between = [&](uint8_t from, uint8_t to) {
    return static_cast<uint8_t>(
        std::lround(static_cast<float>(from) + (static_cast<float>(to) - from) * share));
  };
  return {between(a.r, b.r), between(a.g, b.g), between(a.b, b.b), between(a.a, b.a)};
}

}  // namespace cpscope::gui
