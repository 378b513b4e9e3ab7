#include "gui/model/describe.h"
#include "gui/model/light.h"
#include "gui/model/place_map.h"
#include "gui/model/timeline/timeline_scene.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kEventsTitle = 17, kTimeRuler = 18;
constexpr std::array<std::string_view, 3> kLaneNames = {"compute", "transfer", "other"};

/// Data shared by all lanes of one run.
struct EventLanes {
  TimelineScene& scene;
  const RunView& run;
  const EventFold& fold;
  std::string_view letter;
  float least_pixels = 3;  // narrower intervals are merged
  bool has_light = false;

  std::string print_ns(double ns) const {
    return (run.is_simulated ? "~" : "") + print_duration(ns);
  }
};

Role lane_role(size_t lane) {
  return lane == 0 ? Role::compute : lane == 1 ? Role::transfer : Role::merge;
}

std::string describe_stretch(const EventLanes& lanes, const BusyTimes& times, size_t i) {
  const ItemEvent& event = lanes.run.events[static_cast<size_t>(times.first_event(i))];
  std::string text =
      fmt::format("{}\n{} to {}, {} long", describe_target(event.item, *lanes.scene.input.plan),
                  lanes.print_ns(static_cast<double>(times.start(i))),
                  lanes.print_ns(static_cast<double>(times.end(i))),
                  lanes.print_ns(static_cast<double>(times.end(i) - times.start(i))));
  if (times.num_events(i) > 1) text += fmt::format("\n{} items that overlap", times.num_events(i));
  return text;
}

void add_stretch(EventLanes& lanes, int32_t rank, size_t lane, const BusyTimes& times, size_t i,
                 float y0, float y1) {
  TimelineScene& scene = lanes.scene;
  const Theme& theme = scene.theme();
  const float x0 =
      std::max(scene.lanes.x0, scene.time.pixel_of(static_cast<double>(times.start(i))));
  float x1 = std::min(scene.lanes.x1, scene.time.pixel_of(static_cast<double>(times.end(i))));
  if (x1 - x0 > 5) x1 -= 1;
  if (x1 <= x0) return;
  const Box box{x0, y0, x1, y1};
  const Color color = theme.of(lane_role(lane));
  if (lane == 1)
    // Drawn as hidden first, pale with a hatch like all transfers; exposed parts are drawn over it.
    scene.drawing().add(
        FilledBox{box, color.with_alpha(70), Hatch::diagonal, theme.of(Role::panel)});
  else
    scene.drawing().add(FilledBox{box, color});
  const ItemEvent& event = lanes.run.events[static_cast<size_t>(times.first_event(i))];
  if (lane == 0)
    add_on_fill(scene, box, lanes.print_ns(static_cast<double>(times.end(i) - times.start(i))),
                color);
  scene.view.hits.push_back(
      {box, event.item,
       fmt::format("event/{}/{}/{}/{}", lanes.letter, rank, kLaneNames[lane], times.first_event(i)),
       describe_stretch(lanes, times, i)});
  if (!lanes.has_light) return;
  const Light light = light_of_item(scene.input, event.item);
  if (light == Light::none) return;
  const Role role = light == Light::hovered    ? Role::hovered
                    : light == Light::selected ? Role::selected
                                               : Role::related;
  scene.drawing().add(OutlinedBox{box, theme.of(role), light == Light::selected ? 2.0F : 1.0F});
}

/// Draws many short intervals as one cell, filled in proportion to their busy time.
void add_busy_cell(EventLanes& lanes, size_t lane, const BusyTimes& times, double from, double to,
                   float y0, float y1, bool is_saturated) {
  TimelineScene& scene = lanes.scene;
  const double busy = times.covered(from, to) / (to - from);
  if (!(busy > 0)) return;
  const float x0 = std::max(scene.lanes.x0, scene.time.pixel_of(from));
  const float x1 = std::min(scene.lanes.x1, scene.time.pixel_of(to));
  if (x1 <= x0) return;
  const float height = std::max(1.0F, (y1 - y0) * static_cast<float>(std::min(1.0, busy)));
  const Color color = scene.theme().of(lane_role(lane));
  scene.drawing().add(
      FilledBox{{x0, y1 - height, x1, y1}, is_saturated ? color : color.with_alpha(70)});
}

void add_times(EventLanes& lanes, int32_t rank, size_t lane, const BusyTimes& times, float y0,
               float y1) {
  TimelineScene& scene = lanes.scene;
  const double least = lanes.least_pixels * scene.time.units_per_pixel();
  const auto begin = [&](size_t i) { return times.start(i); };
  const auto end = [&](size_t i) { return times.end(i); };
  for (const Fold& fold :
       fold_narrow(times.count(), scene.time.lo(), scene.time.hi(), least, begin, end)) {
    const size_t last = fold.first + fold.count - 1;
    if (fold.count == 1) {
      add_stretch(lanes, rank, lane, times, fold.first, y0, y1);
      continue;
    }
    const auto from = static_cast<double>(times.start(fold.first));
    const double to = std::max(from + least, static_cast<double>(times.end(last)));
    add_busy_cell(lanes, lane, times, from, to, y0, y1, lane != 1);
  }
}

/// Draws transfers saturated where no compute of the rank overlaps them.
void add_exposed(EventLanes& lanes, const BusyTimes& exposed, float y0, float y1) {
  TimelineScene& scene = lanes.scene;
  const double least = lanes.least_pixels * scene.time.units_per_pixel();
  const auto begin = [&](size_t i) { return exposed.start(i); };
  const auto end = [&](size_t i) { return exposed.end(i); };
  for (const Fold& fold :
       fold_narrow(exposed.count(), scene.time.lo(), scene.time.hi(), least, begin, end)) {
    const size_t last = fold.first + fold.count - 1;
    const auto from = static_cast<double>(exposed.start(fold.first));
    const auto to = static_cast<double>(exposed.end(last));
    if (fold.count > 1) {
      add_busy_cell(lanes, 1, exposed, from, std::max(from + least, to), y0, y1, true);
      continue;
    }
    const float x0 = std::max(scene.lanes.x0, scene.time.pixel_of(from));
    const float x1 = std::min(scene.lanes.x1, scene.time.pixel_of(to));
    if (x1 > x0)
      scene.drawing().add(FilledBox{{x0, y0, std::max(x0 + 1, x1), y1},
                                    scene.theme().of(Role::transfer),
                                    Hatch::diagonal,
                                    scene.theme().of(Role::panel)});
  }
}

void add_rank_lane(EventLanes& lanes, int32_t rank) {
  TimelineScene& scene = lanes.scene;
  const RankEvents& events = lanes.fold.ranks[static_cast<size_t>(rank)];
  const Box lane = scene.lane(rank);
  const float h = lane.height();
  // Too low for three lanes: transfers are drawn below compute, merges are left out.
  const bool is_low = h < 12;
  const float compute_end = lane.y0 + h * (is_low ? 0.55F : 0.5F);
  const float transfer_end = is_low ? lane.y1 : compute_end + h * 0.32F;
  scene.drawing().add(
      OutlinedBox{{lane.x0, lane.y0, lane.x1, lane.y1}, scene.theme().of(Role::wait), 1, true});
  add_times(lanes, rank, 0, events.lanes[0], lane.y0, compute_end);
  add_times(lanes, rank, 1, events.lanes[1], compute_end + 1, transfer_end);
  add_exposed(lanes, events.exposed, compute_end + 1, transfer_end);
  if (!is_low) add_times(lanes, rank, 2, events.lanes[2], transfer_end + 1, lane.y1);
}

void add_event_heat_map(EventLanes& lanes) {
  TimelineScene& scene = lanes.scene;
  Pixels pixels;
  pixels.box = scene.lanes;
  pixels.width = std::clamp(static_cast<int32_t>(scene.lanes.width() / 4), 1, 480);
  pixels.height = std::clamp(static_cast<int32_t>(scene.lanes.height() / 2), 1, 540);
  const auto width = static_cast<size_t>(pixels.width);
  pixels.colors.resize(width * static_cast<size_t>(pixels.height));
  const std::vector<Color> shades = make_busy_shades(scene.theme());
  const double column = (scene.time.hi() - scene.time.lo()) / pixels.width;
  const auto ranks = static_cast<double>(lanes.fold.ranks.size());
  const bool is_near = column < 1.5 * lanes.fold.bin_ns();
  for (int32_t y = 0; y < pixels.height; ++y) {
    const float step = scene.lanes.height() / static_cast<float>(pixels.height);
    const float at = scene.lanes.y0 + step * static_cast<float>(y);
    const double lo = scene.ranks.value_at(at), hi = scene.ranks.value_at(at + step);
    if (hi <= 0 || lo >= ranks) continue;
    const auto first = static_cast<size_t>(std::max(0.0, std::floor(lo)));
    const auto end = static_cast<size_t>(
        std::min(ranks, std::max(static_cast<double>(first) + 1, std::floor(hi))));
    std::vector<float> covered(width, 0);
    // At a small scale bins are precise enough; at a large scale every interval is counted.
    for (size_t rank = first; is_near && rank < end; ++rank)
      lanes.fold.ranks[rank].lanes[0].cover_columns(scene.time.lo(), column, covered);
    for (size_t x = 0; x < width; ++x) {
      const double t = scene.time.lo() + column * static_cast<double>(x);
      if (t + column <= 0 || t >= static_cast<double>(lanes.fold.last_ns)) continue;
      const double sum = is_near ? static_cast<double>(covered[x])
                                 : lanes.fold.computed(first, end, t, t + column);
      const double busy = sum / (column * static_cast<double>(end - first));
      pixels.colors[static_cast<size_t>(y) * width + x] =
          shades[static_cast<size_t>(std::clamp(busy * 255, 0.0, 255.0))];
    }
  }
  scene.drawing().add(std::move(pixels));
}

/// From the first start to the last end of the stages of the moment. Stages that were not timed
/// have length zero, at the end of the ones before them.
std::pair<double, double> find_event_playhead(const EventLanes& lanes) {
  const auto stages = static_cast<int32_t>(lanes.fold.stage_start.size());
  if (stages == 0) return {0, 0};
  const Moment& moment = lanes.scene.input.moment;
  const int32_t first = std::clamp(moment.first_stage, 0, stages - 1);
  const int32_t end = std::clamp(moment.end_stage, first + 1, stages);
  const auto starts = std::span(lanes.fold.stage_start), ends = std::span(lanes.fold.stage_end);
  const auto count = static_cast<size_t>(end - first);
  const auto starts_now = starts.subspan(static_cast<size_t>(first), count);
  const auto ends_now = ends.subspan(static_cast<size_t>(first), count);
  const int64_t from = *std::min_element(starts_now.begin(), starts_now.end());
  const int64_t to = *std::max_element(ends_now.begin(), ends_now.end());
  if (from <= to) return {static_cast<double>(from), static_cast<double>(to)};
  int64_t before = 0;
  for (const int64_t done : ends.first(static_cast<size_t>(first))) before = std::max(before, done);
  return {static_cast<double>(before), static_cast<double>(before)};
}

/// Number of intervals of all lanes inside the shown range.
double count_shown(const EventLanes& lanes) {
  const TimelineScene& scene = lanes.scene;
  const auto lo = static_cast<int64_t>(scene.time.lo()), hi = static_cast<int64_t>(scene.time.hi());
  size_t shown = 0;
  for (int32_t rank = scene.first_rank; rank < scene.end_rank; ++rank) {
    const RankEvents& events = lanes.fold.ranks[static_cast<size_t>(rank)];
    for (const BusyTimes* times :
         {&events.lanes[0], &events.lanes[1], &events.lanes[2], &events.exposed})
      shown += times->count_within(lo, hi);
  }
  return static_cast<double>(shown);
}

void add_run_title(EventLanes& lanes, const Box& box) {
  TimelineScene& scene = lanes.scene;
  double busy = 0, transfer = 0, exposed = 0;
  for (const RankEvents& rank : lanes.fold.ranks) {
    busy += static_cast<double>(rank.lanes[0].total());
    transfer += static_cast<double>(rank.lanes[1].total());
    exposed += static_cast<double>(rank.exposed.total());
  }
  const double all = static_cast<double>(std::max<int64_t>(1, lanes.fold.last_ns)) *
                     static_cast<double>(std::max<size_t>(1, lanes.fold.ranks.size()));
  const std::string_view sign = lanes.run.is_simulated ? "~" : "";
  std::string text = fmt::format("{}{}: {}, ranks compute {}{} of it", lanes.run.name,
                                 lanes.run.is_simulated ? " (predicted, not measured)" : "",
                                 lanes.print_ns(static_cast<double>(lanes.fold.last_ns)), sign,
                                 print_share(busy / all));
  if (transfer > 0)
    text +=
        fmt::format(", {}{} of transfer time is exposed", sign, print_share(exposed / transfer));
  scene.drawing().add(Label{{scene.lanes.x0, box.y0 + 1},
                            Anchor::left_top,
                            scene.theme().of(Role::text),
                            scene.small,
                            Face::body,
                            fit_text(scene.input.text_width, text, scene.small, Face::body,
                                     box.x1 - scene.lanes.x0 - 4)});
}

}  // namespace

void add_event_lanes(const ViewInput& input, const RunView& run, const EventFold& events,
                     std::string_view run_letter, double last_ns, const Box& box, View& view) {
  const float left_margin = 72, right_margin = box.width() >= 480 ? 62.0F : 6.0F;
  const Box room{box.x0 + left_margin, box.y0 + kEventsTitle + kTimeRuler, box.x1 - right_margin,
                 box.y1};
  view.scaled.push_back(room);
  const auto num_ranks = static_cast<int32_t>(events.ranks.size());
  TimelineScene scene{input,
                      view,
                      Axis(last_ns, input.camera.x, room.x0, room.x1),
                      Axis(num_ranks, input.camera.y, room.y0, room.y1),
                      room,
                      box.x0,
                      box.x1};
  find_shown_ranks(scene, num_ranks);
  EventLanes lanes{scene, run, events, run_letter};
  lanes.has_light = !input.selected->is_empty() || !input.hovered->is_empty();
  add_run_title(lanes, box);
  const std::string prefix = run.is_simulated ? "~" : "";
  add_ruler(scene.drawing(), input, scene.time, {room.x0, room.y0 - kTimeRuler, room.x1, room.y0},
            {.unit = AxisUnit::nanoseconds, .prefix = prefix});
  add_rank_titles(scene, run_letter == "a" ? "rank" : "rank/b");
  const auto [from, to] = find_event_playhead(lanes);
  begin_playhead(scene, from, to);
  scene.drawing().add(PushClip{room});
  view.grids.push_back(
      {room, scene.time.lo(), scene.time.hi(), scene.ranks.lo(), scene.ranks.hi()});
  // Three marks for every shown interval, or four boxes for every column of every shown rank.
  const double budget = kCellMarks / (input.run_b != nullptr ? 2 : 1);
  const double rows = scene.end_rank - scene.first_rank;
  const double least = 3 * count_shown(lanes) <= budget ? 3 : room.width() * rows * 4 / budget;
  if (scene.is_heat() || least > 24) {
    add_event_heat_map(lanes);
  } else {
    lanes.least_pixels = static_cast<float>(std::max(3.0, least));
    for (int32_t rank = scene.first_rank; rank < scene.end_rank; ++rank) add_rank_lane(lanes, rank);
  }
  scene.drawing().add(PopClip{});
  for (int32_t rank = scene.first_rank; rank < scene.end_rank && scene.lane_height() >= 12; ++rank)
    add_lane_figure(
        scene, rank,
        fmt::format(
            "{}{:.0f} %", prefix,
            100 * static_cast<double>(events.ranks[static_cast<size_t>(rank)].lanes[0].total()) /
                static_cast<double>(std::max<int64_t>(1, events.last_ns))));
  if (right_margin > 20)
    scene.drawing().add(Label{{box.x1 - 4, room.y0 - 4},
                              Anchor::right_bottom,
                              scene.theme().of(Role::faint_text),
                              scene.small,
                              Face::body,
                              "busy"});
  add_playhead(scene, from, to, room.y0 - kTimeRuler);
  view.scale = fmt::format("1 px = {}{}", prefix, print_duration(scene.time.units_per_pixel()));
}

}  // namespace cpscope::gui
