#include "gui/app/inspect.h"

#include "gui/app/inspect_sheet.h"
#include "gui/app/prediction.h"
#include "gui/model/describe.h"

#include <utility>
#include <variant>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

Inspection say_alone(std::string heading, std::string sentence) {
  return {std::move(heading), {{"", {{std::move(sentence), {}, false}}}}};
}

std::string heading_of(const Target& target, const PlanIndex* plan) {
  if (const auto* item = std::get_if<ItemId>(&target))
    return fmt::format("{} item {} {}", capitalise(std::string(to_name(item->kind))),
                       to_name(item->direction), item->index);
  if (const auto* row = std::get_if<RowTarget>(&target)) return "Row " + name_target(*row, plan);
  return capitalise(name_target(target, plan));
}

Inspection inspect_nothing(Sheet sheet) {
  const PlanIndex& index = sheet.index();
  sheet.add("",
            "Click a chunk, a rank, a tile, a cell or an item in any view, or press Ctrl+F and "
            "type what you look for: token 123, rank 3, forward.compute.12");
  CaptionWriter ranks = sheet.line();
  ranks.say(count_text(index.num_ranks(), "rank") + ": ");
  ranks.rank(0);
  if (index.num_ranks() > 1) ranks.say(" to ").rank(index.num_ranks() - 1);
  sheet.add("Ranks", ranks);
  for (const Side side : {Side::q, Side::kv}) {
    const int64_t count = index.tokens(side);
    if (count == 0) continue;
    sheet.add(side == Side::q ? "Queries" : "Keys",
              sheet.line()
                  .tokens({0, count, 1}, side)
                  .say(", " + count_text(count, "token") + ", padding included"));
  }
  if (!index.steps().empty()) {
    const StepTarget last{static_cast<int32_t>(index.steps().size()) - 1};
    sheet.add("Schedule", sheet.line().name(StepTarget{0}).say(" to ").name(last));
  }
  sheet.add(
      "Visible pairs",
      fmt::format("{} in all heads, {}", count_text(index.summary().visible_pairs, "pair"),
                  print_flops(flops_of(index, Direction::forward, index.summary().visible_pairs)) +
                      " forward"));
  return sheet.take();
}

struct Inspector {
  const PlanIndex& plan;
  const ShownRuns& runs;
  const Target& target;

  Sheet sheet() const { return {plan, runs, heading_of(target, &plan)}; }

  Inspection operator()(const Nothing&) const {
    return inspect_nothing({plan, runs, "Nothing is selected"});
  }
  Inspection operator()(const TokenRange& t) const { return inspect_tokens(sheet(), t); }
  Inspection operator()(const PairRange& p) const { return inspect_pairs(sheet(), p); }
  Inspection operator()(const RankTarget& r) const { return inspect_rank(sheet(), r.rank); }
  Inspection operator()(const LinkTarget& l) const { return inspect_link(sheet(), l); }
  Inspection operator()(const ItemId& i) const { return inspect_item(sheet(), i); }
  Inspection operator()(const StepTarget& s) const { return inspect_step(sheet(), s.step); }
  Inspection operator()(const RowTarget& r) const { return inspect_row(sheet(), r); }
};

/// Runs A and B; if one of them is missing, the predicted times take its place. A run of another
/// plan is left out: it has other rows and items.
TimedRuns inspected_runs(const AppState& state) {
  const SharedPlan& plan = state.document.plan();
  TimedRuns runs{state.run_a_plan == plan ? state.run_a : nullptr,
                 state.run_b_plan == plan ? state.run_b : nullptr};
  if (state.prediction.plan != plan) return runs;
  SharedRun& free = runs.a ? runs.b : runs.a;
  if (!free) free = state.prediction.run;
  return runs;
}

}  // namespace

Inspection inspect(const PlanIndex& plan, const RunView* run_a, const RunView* run_b,
                   const Target& target) {
  if (!is_present(plan, target)) {
    return say_alone(heading_of(target, &plan),
                     "Not present in this plan. Esc clears the selection, Alt+Left goes back to "
                     "the one before");
  }
  ShownRuns runs;
  for (const RunView* run : {run_a, run_b}) {
    if (run != nullptr) runs.push_back(run);
  }
  return std::visit(Inspector{plan, runs, target}, target);
}

Inspection inspect(const AppState& state, const Target& target) {
  const SharedPlan& plan = state.document.plan();
  if (!plan) {
    if (state.document.is_planning())
      return say_alone("Planning", "The plan is being made; this takes a moment");
    if (state.document.refusal())
      return say_alone("No plan",
                       "This scenario is refused: correct what is marked in the editor, "
                       "or undo with Ctrl+Z");
    return say_alone("Nothing is open", "Press Ctrl+O to open a scenario, or begin with a lesson");
  }
  const TimedRuns runs = inspected_runs(state);
  return inspect(*plan, runs.a.get(), runs.b.get(), target);
}

const Inspection& InspectionMemo::inspect(const AppState& state, const Target& target,
                                          bool in_background) {
  const SharedPlan& plan = state.document.plan();
  const TimedRuns runs = inspected_runs(state);
  Key key{target,
          plan,
          runs.a,
          runs.b,
          state.document.is_planning(),
          state.document.refusal().has_value()};
  if (!is_known_ || key != key_) {
    task_.cancel();
    if (in_background && plan != nullptr && plan->is_large()) {
      task_.start([plan, target, run_a = key.run_a, run_b = key.run_b](TaskControl&) {
        return gui::inspect(*plan, run_a.get(), run_b.get(), target);
      });
    } else {
      last_ = gui::inspect(state, target);
    }
    key_ = std::move(key);
    is_known_ = true;
  }
  if (auto result = task_.take()) last_ = std::move(*result);
  return last_;
}

}  // namespace cpscope::gui
