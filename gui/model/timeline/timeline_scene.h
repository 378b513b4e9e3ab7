#pragma once

#include "gui/model/axis.h"
#include "gui/model/timeline/event_fold.h"
#include "gui/model/timeline/step_table.h"
#include "gui/model/view.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// Rows lower than this are drawn as a heat map.
inline constexpr float kHeatLane = 4;
/// Rows lower than this have no room for several bars below each other.
inline constexpr float kBarLane = 14;
/// Narrower cells are merged.
inline constexpr float kBarCell = 16;
/// Limit of the marks for the cells of one picture.
inline constexpr double kCellMarks = 14'000;

/// The lanes of one picture while they are drawn.
struct TimelineScene {
  const ViewInput& input;
  View& view;
  Axis time;   // steps, or nanoseconds, to pixels
  Axis ranks;  // ranks to pixels, downwards
  Box lanes;   // the area of both axes
  float left = 0, right = 0;
  float small = 11;
  int32_t first_rank = 0, end_rank = 0;  // shown ranks
  float veil = 0;                  // x from which the lanes are veiled: what has not happened yet
  std::vector<Label> labels = {};  // in the lanes; above the veil

  const Theme& theme() const { return *input.theme; }
  Drawing& drawing() const { return view.drawing; }
  float lane_height() const { return static_cast<float>(ranks.pixels_per_unit()); }
  Box lane(int32_t rank) const;
  bool is_heat() const { return lane_height() < kHeatLane; }
};

/// Sets the range of shown ranks, at least one.
void find_shown_ranks(TimelineScene& scene, int32_t num_ranks);
/// Adds "rank 3" before lanes with enough room, otherwise "every 10th"; hits for the shown ranks,
/// at most 400; light.
void add_rank_titles(TimelineScene& scene, std::string_view hit_prefix);
/// Adds a figure after a lane, if there is room.
void add_lane_figure(TimelineScene& scene, int32_t rank, const std::string& text);
/// Sets TimelineScene::veil: everything after `to` has not happened yet.
void begin_playhead(TimelineScene& scene, double from, double to);
/// Veils what has not happened yet, adds the labels of the lanes, and frames [from, to), the
/// playhead.
void add_playhead(TimelineScene& scene, double from, double to, float top);
/// Adds a label on the panel inside the box if it fits, and returns whether it does; on_fill: in a
/// colour that is readable on a filled box, veiled or not.
bool add_inside(TimelineScene& scene, const Box& box, const std::string& text, Color ink);
void add_on_fill(TimelineScene& scene, const Box& box, const std::string& text, Color fill);
/// [256] shades from always waiting to always computing, for heat maps.
std::vector<Color> make_busy_shades(const Theme& theme);
/// Adds an outline without a fill: the rank waits.
void add_wait(TimelineScene& scene, const Box& box);

/// Adds the lanes over the steps of both passes, with the rows above them. `box` is all the room.
void add_step_lanes(const ViewInput& input, const StepTable& table, const Box& box, View& view);
/// Adds the lanes over the nanoseconds of a run.
void add_event_lanes(const ViewInput& input, const RunView& run, const EventFold& events,
                     std::string_view run_letter, double last_ns, const Box& box, View& view);

}  // namespace cpscope::gui
