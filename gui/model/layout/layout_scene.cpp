#include "gui/model/layout/layout_scene.h"

#include "gui/model/axis.h"
#include "gui/model/light.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

std::string print_id(const PlaceMap& map, int64_t id) {
  return map.tokens >= 64 * kKi ? print_short_count(id) : print_count(id);
}

bool touches(std::span<const TokenRange> ranges, int64_t token, int64_t rows, int64_t stride) {
  const int64_t last = token + (rows - 1) * stride;
  auto it = std::partition_point(ranges.begin(), ranges.end(),
                                 [&](const TokenRange& r) { return r.end <= token; });
  for (; it != ranges.end() && it->begin <= last; ++it) {
    const int64_t skipped = it->begin <= token ? 0 : (it->begin - token + stride - 1) / stride;
    if (skipped < rows && token + skipped * stride < it->end) return true;
  }
  return false;
}

std::string describe_padding(int64_t valid, int64_t rows) {
  if (valid == rows) return fmt::format("{} valid, no padding", print_count(rows));
  return fmt::format("{} valid, {} padding", print_count(valid), print_count(rows - valid));
}

std::string describe_positions(const PlaceMap& map, int64_t begin, int64_t end) {
  const size_t sequence = map.sequence_at(begin);
  if (sequence >= map.num_sequences()) return "tail: belongs to no sequence";
  const int64_t first = map.valid_begin(sequence);
  if (end <= first) return fmt::format("sequence {}, before its tokens", sequence);
  return fmt::format("sequence {}, positions {}", sequence,
                     print_range(std::max(begin, first) - first, end - first));
}

}  // namespace

std::string print_tokens(const PlaceMap& map, int64_t begin, int64_t end) {
  if (end - begin == 1) return print_id(map, begin);
  // Both ends use the same unit.
  if (begin % kKi != 0 || end % kKi != 0) return print_range(begin, end);
  return fmt::format("[{}, {})", print_id(map, begin), print_id(map, end));
}

std::string describe_chunk(const PlaceMap& map, int32_t rank, int64_t begin, int64_t end,
                           int64_t row) {
  return fmt::format("{} tokens {}\n{}\nrank {}, local rows {}\n{}",
                     map.side == Side::q ? "query" : "key", print_range(begin, end),
                     describe_positions(map, begin, end), rank, print_range(row, row + end - begin),
                     describe_padding(end - begin - map.count_padding(begin, end), end - begin));
}

std::string describe_local(const PlaceMap& map, const LocalPart& part) {
  if (part.stride == 1)
    return describe_chunk(map, part.rank, part.token, part.token + part.rows, part.row);
  int64_t padding = 0;
  for (const auto& [first, last] : padding_rows(map, part)) padding += last - first;
  return fmt::format("{} tokens {}, {}, .. {}: every {}th\nrank {}, local rows {}\n{}",
                     map.side == Side::q ? "query" : "key", print_count(part.token),
                     print_count(part.token + part.stride),
                     print_count(part.token + (part.rows - 1) * part.stride), part.stride,
                     part.rank, print_range(part.row, part.row + part.rows),
                     describe_padding(part.rows - padding, part.rows));
}

Light light_of(const LayoutScene& scene, int64_t token, int64_t rows, int64_t stride) {
  if (rows <= 0) return Light::none;
  const int64_t end = token + (rows - 1) * stride + 1;
  const Light light = light_of_tokens(scene.input, scene.map.side, token, end);
  if (stride == 1 || light == Light::none) return light;
  // A strided part has tokens of other ranks in between.
  const auto is_met = [&](const Projection& p) {
    return touches(p.tokens(scene.map.side), token, rows, stride);
  };
  return is_met(*scene.input.hovered) || is_met(*scene.input.selected) ? light : Light::none;
}

void add_light(Drawing& drawing, const Theme& theme, const Box& box, Light light) {
  if (light == Light::none || box.x0 >= box.x1) return;
  const Role role = light == Light::hovered    ? Role::hovered
                    : light == Light::selected ? Role::selected
                                               : Role::related;
  drawing.add(OutlinedBox{box, theme.of(role), light == Light::selected ? 2.0F : 1.0F});
}

void add_chunk(LayoutScene& scene, const Box& box, int32_t rank) {
  Box inner = box;
  if (inner.width() >= 4) inner.x1 -= 1;
  scene.drawing().add(FilledBox{inner, scene.rank_color(rank)});
}

void add_padding(LayoutScene& scene, const Box& box) {
  if (box.x0 >= box.x1) return;
  const float rim = std::min(6.0F, box.height() / 5);
  scene.drawing().add(FilledBox{{box.x0, box.y0 + rim, box.x1, box.y1},
                                scene.theme().of(Role::padding),
                                Hatch::dots,
                                scene.theme().of(Role::background)});
}

void add_plate(LayoutScene& scene, const Box& box, const std::string& text) {
  const float width = scene.width_of(text, scene.small) + 10;
  if (width > box.width() || scene.small > box.height()) return;
  const Point c = box.center();
  const float half = std::min(box.height() / 2 - 1, scene.small / 2 + 2);
  scene.drawing().add(FilledBox{{c.x - width / 2, c.y - half, c.x + width / 2, c.y + half},
                                scene.theme().of(Role::panel),
                                Hatch::none,
                                {},
                                3});
  scene.drawing().add(
      Label{c, Anchor::center_middle, scene.theme().of(Role::text), scene.small, Face::body, text});
}

void add_fitting(LayoutScene& scene, const Box& box, Color ink, float size, Face face,
                 std::span<const std::string> texts) {
  if (size > box.height() + 1) return;
  for (const std::string& text : texts) {
    if (scene.width_of(text, size, face) + 4 > box.width()) continue;
    scene.drawing().add(Label{box.center(), Anchor::center_middle, ink, size, face, text});
    return;
  }
}

void add_title(LayoutScene& scene, float y, const std::string& text, Color ink,
               const std::string& short_text) {
  const float room = std::min(scene.packed.begin(), scene.packed.end()) - scene.left - 6;
  const bool is_short = !short_text.empty() && scene.width_of(text, scene.small) > room;
  const std::string fitted =
      fit_text(scene.input.text_width, is_short ? short_text : text, scene.small, Face::body, room);
  if (fitted.empty()) return;
  scene.drawing().add(
      Label{{scene.left + room, y}, Anchor::right_middle, ink, scene.small, Face::body, fitted});
}

Box cut_box(const Axis& axis, double begin, double end, float y0, float y1) {
  const auto [lo, hi] = axis.shown(begin, end);
  if (lo >= hi) return {0, y0, 0, y1};
  Box box{axis.pixel_of(lo), y0, axis.pixel_of(hi), y1};
  if (box.x1 - box.x0 < 1) box.x1 = box.x0 + 1;
  return box;
}

}  // namespace cpscope::gui
