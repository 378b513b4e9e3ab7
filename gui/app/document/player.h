#pragma once

#include "gui/model/plan_index.h"

#include <cstdint>

namespace cpscope::gui {

/// Position of the playhead: a whole step of PlanIndex::steps, or one stage of PlanIndex::stages.
struct Playhead {
  bool is_by_stage = false;
  int32_t index = 0;
  double progress = 1.0;  // inside the step or stage, [0, 1]; 1 when not playing

  friend bool operator==(const Playhead&, const Playhead&) = default;
};

/// Playback from a place since a time. The current place is computed from both and never summed up.
struct Player {
  bool is_playing = false;
  double speed = 1.0;  // steps (or stages) a second; negative plays backwards
  double from = 0.0;   // place when playback began: index + progress
  double since_s = 0.0;

  friend bool operator==(const Player&, const Player&) = default;
};

/// Number of places that the playhead can be at.
int32_t count_places(const PlanIndex& plan, bool is_by_stage);
Moment moment_of(const PlanIndex& plan, const Playhead& playhead);
/// The step of PlanIndex::steps under the playhead.
int32_t step_of(const PlanIndex& plan, const Playhead& playhead);
/// Value of ViewInput::progress: how far the current reorder is. 1 unless a reorder is running.
double reorder_progress(const PlanIndex& plan, const Playhead& playhead);

/// The same for views in which a whole step or stage moves, in steps that a frame can draw; 1 while
/// the playhead rests or runs too fast to be followed.
double motion_progress(const PlanIndex& plan, const Playhead& playhead, const Player& player);

/// Initial position of the playhead for a plan: a schedule of one step is shown stage by stage.
Playhead first_place(const PlanIndex& plan);
/// Moves the playhead to the nearest place that exists.
Playhead clamp_to(const PlanIndex& plan, Playhead playhead);
/// Moves by `places`, backwards when negative; the result is not playing.
Playhead step_by(const PlanIndex& plan, const Playhead& playhead, int32_t places);
/// The place of a stage, or of the step that contains it.
Playhead seek_stage(const PlanIndex& plan, const Playhead& playhead, int32_t stage);
Playhead seek_step(const PlanIndex& plan, const Playhead& playhead, int32_t step);
/// Switches from steps to stages (the first of the step) and back.
Playhead switch_unit(const PlanIndex& plan, const Playhead& playhead);
/// The next stage, or the previous one, in which a rank has an item; the same place when there is
/// none.
Playhead seek_event(const PlanIndex& plan, const Playhead& playhead, int32_t rank, bool forwards);

/// Starts playback from the playhead; from the other end when the playhead is at the last place.
Player start_playing(const PlanIndex& plan, const Playhead& playhead, double speed, double now_s);
/// The place of a player at a time. At the end the playhead stays there and `player` stops.
Playhead play_until(const PlanIndex& plan, const Playhead& playhead, Player& player, double now_s);

}  // namespace cpscope::gui
