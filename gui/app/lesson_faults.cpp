#include "gui/app/lesson_faults.h"

#include "gui/app/caption/caption_writer.h"
#include "gui/model/describe.h"

#include <algorithm>
#include <string>

// The fault gallery as a lesson: one page for each fault of sim/faults, made from its catalogue.

namespace cpscope::gui {
namespace {

/// The view that shows a fault best.
ViewKind view_of(const Fault& fault) {
  switch (fault.detector) {
    case Detector::count:
    case Detector::keys:
      return fault.place == FaultPlace::inputs ? ViewKind::layout : ViewKind::mask;
    case Detector::bytes:
    case Detector::liveness:
      return ViewKind::traffic;
    case Detector::balance:
      return ViewKind::balance;
    case Detector::position:
    case Detector::head:
      return ViewKind::layout;
    case Detector::gradient_probe:
    case Detector::output:
    case Detector::gradient:
      return ViewKind::timeline;
  }
  return ViewKind::timeline;
}

/// The first wrong target: an item of the proved plan, or a rank where the plan has no such item.
Target target_of(const PlanIndex& plan, const Fault& fault, const FaultSite& site) {
  const bool is_of_plan = !site.is_load && fault.detector != Detector::bytes &&
                          fault.detector != Detector::balance && is_present(plan, site.item);
  if (is_of_plan) return site.item;
  return RankTarget{to_index(site.rank)};
}

}  // namespace

void show_fault(AppState& state, const Fault& fault) {
  const auto planted = fault.plant(state.plan()->plan());
  if (!planted) return;
  const Target target = target_of(*state.plan(), fault, planted->site);
  state.playhead = {};
  if (const auto* item = std::get_if<ItemId>(&target)) {
    const int32_t stage = state.plan()->stage_of(*item);
    if (stage >= 0) state.playhead = {true, stage, 1.0};
  }
  state.focus_rank = to_index(planted->site.rank);
  select(state, target);
}

void words::fault_page(CaptionWriter& writer, const AppState& state) {
  const Fault& fault = *current_step(state)->fault;
  std::string name = fault.name;
  std::replace(name.begin(), name.end(), '_', ' ');
  name.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(name.front())));
  writer.strong(name).say(". " + fault.wild + " (" + fault.source + ")");
  const auto planted = fault.plant(state.lesson_plan->plan());
  if (!planted) return;
  writer.say(" Injected into this plan: " + planted->what + ". The run first goes wrong at ");
  const Target target = target_of(*state.lesson_plan, fault, planted->site);
  writer.name(target);
  const auto rank = to_index(planted->site.rank);
  if (!std::holds_alternative<RankTarget>(target)) writer.say(" of ").rank(rank);
  writer.say(", and is detected by: ").strong(to_name(fault.detector)).say(".");
  if (fault.blind) writer.say(" It cannot be seen where " + fault.blind->why + ".");
}

Lesson lesson_faults() {
  Lesson lesson{
      "Gallery of faults", "What has gone wrong elsewhere, and what would have shown it?", {}};
  for (const Fault& fault : fault_catalogue()) {
    lesson.steps.push_back({.scenario = fault.name,
                            .fault = &fault,
                            .view = view_of(fault),
                            .text = words::fault_page});
  }
  return lesson;
}

}  // namespace cpscope::gui
