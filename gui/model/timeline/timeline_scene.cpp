#include "gui/model/timeline/timeline_scene.h"

#include "gui/model/describe.h"
#include "gui/model/legend.h"
#include "gui/model/light.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr uint8_t kVeil = 115;  // of 255

}  // namespace

Box TimelineScene::lane(int32_t rank) const {
  const float y0 = ranks.pixel_of(rank), y1 = ranks.pixel_of(rank + 1.0);
  const float gap = y1 - y0 >= 8 ? std::min(6.0F, (y1 - y0) * 0.12F) : 0;
  return {lanes.x0, y0 + gap / 2, lanes.x1, y1 - gap / 2};
}

void find_shown_ranks(TimelineScene& scene, int32_t num_ranks) {
  const double last = std::max(0.0, num_ranks - 1.0);
  scene.first_rank = static_cast<int32_t>(std::clamp(std::floor(scene.ranks.lo()), 0.0, last));
  scene.end_rank = static_cast<int32_t>(
      std::clamp(std::ceil(scene.ranks.hi()), scene.first_rank + 1.0, last + 1));
}

void add_rank_titles(TimelineScene& scene, std::string_view hit_prefix) {
  const Theme& theme = scene.theme();
  const float height = scene.lane_height();
  // Titles are shown for round rank numbers.
  int32_t every = 1;
  for (int32_t n = 0; height * static_cast<float>(every) < scene.small + 3; ++n)
    every *= n % 3 == 1 ? 5 : 2;
  const int32_t hit_every = 1 + (scene.end_rank - scene.first_rank) / 400;
  for (int32_t rank = scene.first_rank; rank < scene.end_rank; ++rank) {
    const Box lane = scene.lane(rank);
    const bool is_focus = rank == scene.input.focus_rank;
    const Light light = light_of_rank(scene.input, rank);
    if (rank % hit_every == 0 || is_focus) {
      scene.view.hits.push_back({{scene.left, std::max(lane.y0, scene.lanes.y0), scene.right,
                                  std::min(lane.y1, scene.lanes.y1)},
                                 RankTarget{rank},
                                 fmt::format("{}/{}", hit_prefix, rank),
                                 describe_target(RankTarget{rank}, *scene.input.plan)});
    }
    const float y = lane.center().y;
    const bool has_room =
        y - scene.small / 2 >= scene.lanes.y0 - 4 && y + scene.small / 2 <= scene.lanes.y1 + 4;
    if (rank % every == 0 && has_room)
      scene.drawing().add(Label{{scene.lanes.x0 - 8, y},
                                Anchor::right_middle,
                                theme.of(is_focus ? Role::accent : Role::text),
                                scene.small,
                                is_focus ? Face::strong : Face::body,
                                fmt::format("rank {}", rank)});
    if (light == Light::none || lane.y1 <= scene.lanes.y0 || lane.y0 >= scene.lanes.y1) continue;
    if (light == Light::related && height < 8) continue;
    const Role role = light == Light::hovered    ? Role::hovered
                      : light == Light::selected ? Role::selected
                                                 : Role::related;
    const Box outline{lane.x0 - 4, std::max(lane.y0 - 1, scene.lanes.y0 - 1), lane.x0 - 2,
                      std::min(lane.y1 + 1, scene.lanes.y1 + 1)};
    scene.drawing().add(FilledBox{outline, theme.of(role)});
    if (light != Light::related)
      scene.drawing().add(OutlinedBox{{lane.x0 - 2, outline.y0, lane.x1 + 1, outline.y1},
                                      theme.of(role),
                                      light == Light::selected ? 2.0F : 1.0F});
  }
}

void add_lane_figure(TimelineScene& scene, int32_t rank, const std::string& text) {
  const float y = scene.lane(rank).center().y;
  if (scene.right - scene.lanes.x1 < 30) return;
  if (y < scene.lanes.y0 || y > scene.lanes.y1) return;
  scene.drawing().add(Label{{scene.right - 4, y},
                            Anchor::right_middle,
                            scene.theme().of(Role::faint_text),
                            scene.small,
                            Face::mono,
                            text});
}

void begin_playhead(TimelineScene& scene, double from, double to) {
  const float x0 = scene.time.pixel_of(from), x1 = std::max(x0 + 1, scene.time.pixel_of(to));
  scene.veil = std::max(x1, scene.lanes.x0);
}

void add_playhead(TimelineScene& scene, double from, double to, float top) {
  const Theme& theme = scene.theme();
  const float x0 = scene.time.pixel_of(from), x1 = std::max(x0 + 1, scene.time.pixel_of(to));
  const Box all = scene.lanes;
  if (scene.veil < all.x1)
    scene.drawing().add(
        FilledBox{{scene.veil, all.y0, all.x1, all.y1}, theme.of(Role::panel).with_alpha(kVeil)});
  scene.drawing().add(PushClip{all});
  for (Label& label : scene.labels) scene.drawing().add(std::move(label));
  scene.drawing().add(PopClip{});
  scene.labels.clear();
  if (x1 < all.x0 || x0 > all.x1) return;
  const Box frame{std::max(x0, all.x0), all.y0 - 2, std::min(x1, all.x1), all.y1};
  const Color accent = theme.of(Role::accent);
  // A transparent tint above the lanes, so that numbers there stay readable.
  scene.drawing().add(FilledBox{{frame.x0, top, frame.x1, frame.y0}, accent.with_alpha(70)});
  scene.drawing().add(OutlinedBox{frame, accent, 2});
}

bool add_inside(TimelineScene& scene, const Box& box, const std::string& text, Color ink) {
  if (box.height() < scene.small || box.x0 >= scene.lanes.x1 || box.x1 <= scene.lanes.x0)
    return false;
  // In the middle of the shown part of the box.
  const Box shown{std::max(box.x0, scene.lanes.x0), box.y0, std::min(box.x1, scene.lanes.x1),
                  box.y1};
  if (scene.input.text_width(text, scene.small, Face::body) + 2 > shown.width()) return false;
  scene.labels.push_back(
      Label{shown.center(), Anchor::center_middle, ink, scene.small, Face::body, text});
  return true;
}

void add_on_fill(TimelineScene& scene, const Box& box, const std::string& text, Color fill) {
  const Theme& theme = scene.theme();
  const bool is_veiled = (box.x0 + box.x1) / 2 > scene.veil;
  const Color shown =
      is_veiled ? mix(fill, theme.of(Role::panel), static_cast<float>(kVeil) / 255) : fill;
  add_inside(scene, box, text, theme.text_on(shown));
}

std::vector<Color> make_busy_shades(const Theme& theme) {
  const Color from = theme.of(Role::raised), to = theme.of(Role::compute);
  const auto mix = [](uint8_t a, uint8_t b, int32_t i) {
    return static_cast<uint8_t>(a + (b - a) * i / 255);
  };
  std::vector<Color> shades;
  for (int32_t i = 0; i < 256; ++i)
    shades.push_back({mix(from.r, to.r, i), mix(from.g, to.g, i), mix(from.b, to.b, i)});
  return shades;
}

void add_wait(TimelineScene& scene, const Box& box) {
  scene.drawing().add(OutlinedBox{box, scene.theme().of(Role::wait), 1, true});
}

}  // namespace cpscope::gui
