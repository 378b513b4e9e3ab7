#pragma once

#include "gui/model/plan_index.h"

#include <cstdint>

namespace cpscope::gui {

/// Where the playhead stands: on a whole step of PlanIndex::steps or on one stage of
/// PlanIndex::stages.
struct Playhead {
  bool is_by_stage = false;
  int32_t index = 0;
  double progress = 1.0;  // inside the step or stage, [0, 1]; 1 when standing still

  friend bool operator==(const Playhead&, const Playhead&) = default;
};

/// Playing from a place since a time. Where it is now follows from both and is never summed up.
struct Player {
  bool is_playing = false;
  double speed = 1.0;  // steps (or stages) a second; negative plays backwards
  double from = 0.0;   // place when playing began: index + progress
  double since_s = 0.0;

  friend bool operator==(const Player&, const Player&) = default;
};

/// Number of places that the playhead can stand on.
int32_t count_places(const PlanIndex& plan, bool is_by_stage);
Moment moment_of(const PlanIndex& plan, const Playhead& playhead);
/// The step of PlanIndex::steps under the playhead.
int32_t step_of(const PlanIndex& plan, const Playhead& playhead);
/// ViewInput::progress: how far the reordering of now has come. 1 unless something is reordered.
double reorder_progress(const PlanIndex& plan, const Playhead& playhead);

/// Where the playhead stands when a plan is opened: a schedule of one step is told stage by stage.
Playhead first_place(const PlanIndex& plan);
/// The nearest place there is.
Playhead clamp_to(const PlanIndex& plan, Playhead playhead);
/// `places` further, backwards when negative, and standing still there.
Playhead step_by(const PlanIndex& plan, const Playhead& playhead, int32_t places);
/// The place of a stage or of the step that has it.
Playhead seek_stage(const PlanIndex& plan, const Playhead& playhead, int32_t stage);
Playhead seek_step(const PlanIndex& plan, const Playhead& playhead, int32_t step);
/// Steps to stages (the first of the step) and back.
Playhead switch_unit(const PlanIndex& plan, const Playhead& playhead);
/// The next stage, or the one before, in which a rank has an item; the same place when there is
/// none.
Playhead seek_event(const PlanIndex& plan, const Playhead& playhead, int32_t rank, bool forwards);

/// Begins to play from the playhead, from the other end when it stands at the last place.
Player start_playing(const PlanIndex& plan, const Playhead& playhead, double speed, double now_s);
/// Where a player is at a time. At the end it stands still there and `player` stops.
Playhead play_until(const PlanIndex& plan, const Playhead& playhead, Player& player, double now_s);

}  // namespace cpscope::gui
