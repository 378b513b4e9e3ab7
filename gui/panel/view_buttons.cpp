#include "gui/panel/view_buttons.h"

#include "gui/app/command.h"
#include "gui/app/prediction.h"

#include <algorithm>

namespace cpscope::gui {

float width_of(const std::vector<HeadingButton>& buttons) {
  float width = 0;
  for (const HeadingButton& button : buttons)
    width += ImGui::CalcTextSize(button.label.c_str()).x + 2 * ImGui::GetStyle().FramePadding.x +
             ImGui::GetStyle().ItemSpacing.x;
  return width;
}

namespace {

/// A switch of two buttons for a command that changes from one to the other.
void add_switch(std::vector<HeadingButton>& buttons, std::string_view command,
                const std::string& name, const std::string& off, const std::string& on,
                bool is_on) {
  const std::string_view tip = find_command(command)->help;
  buttons.push_back({name + "/off", off, !is_on, tip});
  buttons.push_back({name + "/on", on, is_on, tip});
}

bool is_of_fault(const RunView& run) { return run.name.starts_with(kFaultRun); }

/// What the run of the shown plan is compared with.
std::string other_run_name(const AppState& state) {
  const ComparedRuns runs = compared_runs(state);
  if (runs.own_plan != runs.other_plan)
    return std::find(state.pinned.begin(), state.pinned.end(), runs.other_plan) !=
                   state.pinned.end()
               ? "Pinned"
               : "Other plan";
  return "B";
}

}  // namespace

std::vector<HeadingButton> buttons_of(const AppState& state, ViewKind kind) {
  std::vector<HeadingButton> buttons;
  if (kind == ViewKind::numbers && (state.run_a || state.run_b)) {
    add_switch(buttons, "numbers.step", "numbers/of", "Answer", "Step", state.is_by_step);
    if (state.run_a && state.run_b && (is_of_fault(*state.run_a) || is_of_fault(*state.run_b)))
      add_switch(buttons, "run.swap", "numbers/fault", "With the fault", "Right",
                 !is_of_fault(*state.run_a));
    if (find_command("numbers.beside")->is_enabled(state))
      add_switch(buttons, "numbers.beside", "numbers/beside", "Oracle", other_run_name(state),
                 state.is_beside_b);
  }
  if (kind == ViewKind::mask && state.plan() != nullptr) {
    add_switch(buttons, "mask.order", "mask/order", "Tokens", "Ranks", state.is_by_rank);
    buttons.push_back({"mask.colors", "by " + std::string(to_name(state.mask_colors)), false,
                       find_command("mask.colors")->help});
  }
  if (kind == ViewKind::timeline && !state.services.clusters.empty()) {
    if (find_command("timeline.time")->is_enabled(state))
      add_switch(buttons, "timeline.time", "timeline/unit", "Steps", "Time", state.shows_time);
    const Prediction& prediction = state.prediction;
    buttons.push_back(
        {"timeline/cluster",
         prediction.cluster.empty() ? "Predict..." : prediction.cluster + ", " + prediction.stack,
         false, ""});
  }
  return buttons;
}

namespace {

/// The command of a button's name, and whether the button is the side of a switch that is shown.
std::string_view command_of(const std::string& name) {
  if (name.starts_with("numbers/of")) return "numbers.step";
  if (name.starts_with("numbers/beside")) return "numbers.beside";
  if (name.starts_with("mask/order")) return "mask.order";
  if (name.starts_with("timeline/unit")) return "timeline.time";
  return name;
}

}  // namespace

void build_heading_buttons(Ui& ui, const std::vector<HeadingButton>& buttons) {
  if (buttons.empty()) return;
  ImGui::SameLine(std::max(ui.px(80), ImGui::GetWindowContentRegionMax().x - width_of(buttons) +
                                          ImGui::GetStyle().ItemSpacing.x));
  for (const HeadingButton& button : buttons) {
    if (&button != &buttons.front()) ImGui::SameLine();
    if (button.name == "timeline/cluster") {
      cluster_button(ui, button.name, button.label);
      continue;
    }
    const bool is_clicked = pressed_button(ui, button.name, button.label, button.is_pressed);
    show_tip(ui, button.tip);
    if (is_clicked && !button.is_pressed) apply_command(ui.state, command_of(button.name));
  }
}

void cluster_button(Ui& ui, const std::string& name, const std::string& label) {
  AppState& state = ui.state;
  const Prediction& prediction = state.prediction;
  if (named_button(ui, name, label)) ImGui::OpenPopup("clusters");
  show_tip(ui, "Predicts when every item would run on a described cluster, also after edits");
  if (!ImGui::BeginPopup("clusters")) return;
  if (menu_item("no prediction", {}, prediction.cluster.empty())) choose_cluster(state, "", "");
  name_item(ui, name + "/none");
  for (const ClusterChoice& choice : list_choices(state)) {
    const bool is_chosen = choice.cluster == prediction.cluster && choice.stack == prediction.stack;
    if (menu_item(choice.title, {}, is_chosen)) choose_cluster(state, choice.cluster, choice.stack);
    name_item(ui, name + "/" + choice.cluster + "/" + choice.stack);
  }
  ImGui::EndPopup();
}

}  // namespace cpscope::gui
