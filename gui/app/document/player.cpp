#include "gui/app/document/player.h"

#include "sim/plan/visit_items.h"

#include <algorithm>
#include <cmath>

namespace cpscope::gui {
namespace {

bool has_reorder(const PlanIndex& plan, Moment moment) {
  for (int32_t s = moment.first_stage; s < moment.end_stage; ++s) {
    if (plan.stages()[static_cast<size_t>(s)].kind == StageKind::reorder) return true;
  }
  return false;
}

/// True if the rank takes part in the item of a stage, as sender, receiver or worker.
bool touches(const Pass& pass, StageKind kind, int64_t index, RankId rank) {
  return visit_item(
      pass, kind, index,
      Overload{[&](const TransferItem& item) { return item.src == rank || item.dst == rank; },
               [&](const ComputeItem& item) { return item.rank == rank && item.num_slices > 0; },
               [&](const auto& item) { return item.rank == rank; }});
}

bool has_event(const PlanIndex& plan, int32_t stage, int32_t rank) {
  const StageRef& ref = plan.stages()[static_cast<size_t>(stage)];
  for (int64_t i = ref.begin; i < ref.end; ++i) {
    if (touches(plan.pass(ref.direction), ref.kind, i, RankId{rank})) return true;
  }
  return false;
}

}  // namespace

int32_t count_places(const PlanIndex& plan, bool is_by_stage) {
  return static_cast<int32_t>(is_by_stage ? plan.stages().size() : plan.steps().size());
}

Moment moment_of(const PlanIndex& plan, const Playhead& playhead) {
  const Playhead there = clamp_to(plan, playhead);
  return there.is_by_stage ? plan.moment_of_stage(there.index) : plan.moment_of_step(there.index);
}

int32_t step_of(const PlanIndex& plan, const Playhead& playhead) {
  const Playhead there = clamp_to(plan, playhead);
  return there.is_by_stage ? plan.step_of_stage(there.index) : there.index;
}

double reorder_progress(const PlanIndex& plan, const Playhead& playhead) {
  return has_reorder(plan, moment_of(plan, playhead)) ? playhead.progress : 1.0;
}

double motion_progress(const PlanIndex& plan, const Playhead& playhead, const Player& player) {
  constexpr double kFastest = 8;  // places a second
  if (player.is_playing && std::abs(player.speed) > kFastest) return 1.0;
  // The mask of a large plan takes longer than other pictures.
  const double pictures = plan.is_large() ? 8 : 64;
  return std::floor(std::clamp(playhead.progress, 0.0, 1.0) * pictures) / pictures;
}

Playhead first_place(const PlanIndex& plan) {
  return {plan.pass(Direction::forward).num_steps == 1 && count_places(plan, true) > 2, 0, 1.0};
}

Playhead clamp_to(const PlanIndex& plan, Playhead playhead) {
  const int32_t last = count_places(plan, playhead.is_by_stage) - 1;
  if (playhead.index < 0 || playhead.index > last) playhead.progress = 1.0;
  playhead.index = std::clamp(playhead.index, 0, last);
  return playhead;
}

Playhead step_by(const PlanIndex& plan, const Playhead& playhead, int32_t places) {
  const int64_t last = count_places(plan, playhead.is_by_stage) - 1;
  const int64_t there = std::clamp<int64_t>(int64_t{playhead.index} + places, 0, last);
  return {playhead.is_by_stage, static_cast<int32_t>(there), 1.0};
}

Playhead seek_stage(const PlanIndex& plan, const Playhead& playhead, int32_t stage) {
  const int32_t there = std::clamp(stage, 0, count_places(plan, true) - 1);
  return {playhead.is_by_stage, playhead.is_by_stage ? there : plan.step_of_stage(there), 1.0};
}

Playhead seek_step(const PlanIndex& plan, const Playhead& playhead, int32_t step) {
  const int32_t there = std::clamp(step, 0, count_places(plan, false) - 1);
  if (!playhead.is_by_stage) return {false, there, 1.0};
  return {true, plan.steps()[static_cast<size_t>(there)].first_stage, 1.0};
}

Playhead switch_unit(const PlanIndex& plan, const Playhead& playhead) {
  const int32_t step = step_of(plan, playhead);
  if (playhead.is_by_stage) return {false, step, 1.0};
  return {true, plan.steps()[static_cast<size_t>(step)].first_stage, 1.0};
}

Playhead seek_event(const PlanIndex& plan, const Playhead& playhead, int32_t rank, bool forwards) {
  const Moment now = moment_of(plan, playhead);
  const int32_t count = count_places(plan, true);
  int32_t stage = forwards ? now.end_stage : now.first_stage - 1;
  for (; stage >= 0 && stage < count; stage += forwards ? 1 : -1) {
    if (has_event(plan, stage, rank)) return seek_stage(plan, playhead, stage);
  }
  return playhead;
}

Player start_playing(const PlanIndex& plan, const Playhead& playhead, double speed, double now_s) {
  const int32_t count = count_places(plan, playhead.is_by_stage);
  Player player{true, speed, static_cast<double>(playhead.index), now_s};
  // When not playing, the current place counts as done: playing forwards starts with the next one.
  if (playhead.progress < 1.0 || speed < 0.0)
    player.from += playhead.progress;
  else
    player.from += 1.0;
  if (speed > 0.0 && player.from >= count) player.from = 0.0;
  if (speed < 0.0 && player.from <= 1.0) player.from = count;
  return player;
}

Playhead play_until(const PlanIndex& plan, const Playhead& playhead, Player& player, double now_s) {
  if (!player.is_playing) return playhead;
  const int32_t count = count_places(plan, playhead.is_by_stage);
  const double at = player.from + player.speed * (now_s - player.since_s);
  if (at >= count || at <= 0.0) {
    player.is_playing = false;
    return {playhead.is_by_stage, at >= count ? count - 1 : 0, 1.0};
  }
  const double whole = std::floor(at);
  return {playhead.is_by_stage, static_cast<int32_t>(whole), at - whole};
}

}  // namespace cpscope::gui
