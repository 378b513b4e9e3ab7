#include "gui/app/command.h"
#include "gui/panel/narrow_panel.h"
#include "gui/panel/panels.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr float kTrack = 640, kNarrowTrack = 520;  // x where the playhead's track begins
constexpr float kNarrowTopPanel = 1200;  // logical pixels; narrower windows use kNarrowTrack
constexpr float kProgressWidth = 180, kNarrowProgressWidth = 100;

void build_menu(Ui& ui, std::string_view menu) {
  const bool is_open = ImGui::BeginMenu(std::string(menu).c_str());
  name_item(ui, "menu/" + std::string(menu));
  if (!is_open) return;
  for (const Command& command : all_commands()) {
    if (command.menu != menu) continue;
    if (menu_item(std::string(command.title), command.shortcuts, false,
                  command.is_enabled(ui.state)))
      apply_command(ui.state, command.id);
    name_item(ui, "menu/" + std::string(menu) + "/" + std::string(command.id));
    show_tip(ui, command.help);
  }
  ImGui::EndMenu();
}

void build_scenario_entry(Ui& ui, const ScenarioGroup::Entry& entry) {
  if (menu_item(entry.title, entry.name)) open_shipped(ui.state, entry.name);
  name_item(ui, "menu/Scenarios/" + entry.name);
  if (entry.question.empty()) return;
  const WithFont font(ui, Face::body, kSmallSize);
  ImGui::Indent(ui.px(10));
  show_text(ui, entry.question, Role::faint_text);
  ImGui::Unindent(ui.px(10));
}

/// Shipped scenarios by idea, with the question that each answers.
void build_scenario_menu(Ui& ui, ScenarioMenu& scenarios) {
  if (ui.state.services.scenario_names.empty()) return;
  const bool is_open = ImGui::BeginMenu("Scenarios");
  name_item(ui, "menu/Scenarios");
  if (!is_open) return;
  if (scenarios.groups.empty()) scenarios.groups = group_scenarios(ui.state.services);
  for (const ScenarioGroup& group : scenarios.groups) {
    const std::string title(group.title);
    const bool is_group_open = ImGui::BeginMenu(title.c_str());
    name_item(ui, "menu/Scenarios/" + title);
    if (!is_group_open) continue;
    for (const ScenarioGroup::Entry& entry : group.entries) build_scenario_entry(ui, entry);
    ImGui::EndMenu();
  }
  ImGui::EndMenu();
}

/// True for a run of the open plan.
bool is_of_plan(const AppState& state, const SharedPlan& plan) {
  return plan != nullptr && plan == state.document.plan();
}

std::string describe_document(const AppState& state) {
  const Document& document = state.document;
  if (!document.is_open()) return "no scenario";
  std::string text =
      document.scenario().title.empty() ? document.path() : document.scenario().title;
  if (document.is_modified()) text += " *";
  if (is_of_plan(state, state.run_a_plan)) text += "   |   " + state.run_a->name;
  if (is_of_plan(state, state.run_b_plan)) text += "   |   " + state.run_b->name;
  return text;
}

bool has_verdict(const AppState& state) {
  return is_of_plan(state, state.run_a_plan) && state.run_a->passed;
}

const char* name_verdict(const AppState& state) { return *state.run_a->passed ? "PASS" : "FAIL"; }

/// PASS or FAIL of run A, its verdict as the tip; a click shows where it goes wrong.
void build_verdict(Ui& ui) {
  AppState& state = ui.state;
  const bool passed = *state.run_a->passed;
  const char* label = name_verdict(state);
  const WithFont font(ui, Face::strong, kTextSize);
  const ImU32 color = color_of(ui, passed ? Role::accent : Role::error);
  ImGui::PushStyleColor(ImGuiCol_Text, color);
  const bool is_clicked = named_button(ui, "verdict", label);
  ImGui::PopStyleColor();
  show_tip(ui, state.run_a->verdict);
  if (is_clicked) apply_command(state, "view.focus.numbers");
}

/// The same at the right end of the menus, if there is room. Returns the place left of it.
float place_verdict(Ui& ui, float right) {
  if (!has_verdict(ui.state) || has_track_row(ui, ImGui::GetWindowWidth())) return right;
  right -= ImGui::CalcTextSize(name_verdict(ui.state)).x + 2 * ImGui::GetStyle().FramePadding.x;
  ImGui::SetCursorPosX(right);
  build_verdict(ui);
  return right - ui.px(10);
}

/// "Step 3 of 8, forward 3 of 4": numbers count from 1 on screen.
std::string describe_place(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  const int32_t number = step_of(plan, state.playhead);
  const StepRef& step = plan.steps()[static_cast<size_t>(number)];
  const Pass& pass = plan.pass(step.direction);
  std::string text = std::string(to_name(step.direction)) + " step " +
                     std::to_string(step.step + 1) + " of " + std::to_string(pass.num_steps);
  if (state.playhead.is_by_stage) {
    const auto& stage = plan.stages()[static_cast<size_t>(state.playhead.index)];
    text += ", " + std::string(to_name(stage.kind));
  }
  return text;
}

/// The playhead's track: one tick per place, bold at the start of a step; click or drag to seek.
void build_track(Ui& ui, float width) {
  AppState& state = ui.state;
  const PlanIndex& plan = *state.plan();
  const int32_t places = count_places(plan, state.playhead.is_by_stage);
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  const float height = ui.px(24), room = std::max(ui.px(40), width);
  ImGui::InvisibleButton("track", {room, height});
  name_item(ui, "track");
  show_tip(ui, "The playhead. Click or drag to seek; Left and Right move it by one place.");
  if (ImGui::IsItemActive() && places > 0) {
    const float share = (ImGui::GetIO().MousePos.x - corner.x) / room;
    Playhead playhead = state.playhead;
    const double at = std::clamp(static_cast<double>(share), 0.0, 1.0) * places;
    playhead.index = static_cast<int32_t>(std::floor(at));
    // A drag goes through the place like playing does; a click goes to its end.
    if (ImGui::IsMouseDragging(0))
      playhead.progress = at - std::floor(at);
    else if (ImGui::IsItemActivated())
      playhead.progress = 1.0;
    state.player.is_playing = false;
    state.playhead = clamp_to(plan, playhead);
  }
  ImDrawList* list = ImGui::GetWindowDrawList();
  const float middle = corner.y + height / 2;
  list->AddRectFilled({corner.x, middle - ui.px(3)}, {corner.x + room, middle + ui.px(3)},
                      color_of(ui, Role::raised));
  const auto x_of = [&](double place) {
    return corner.x + static_cast<float>(place / std::max(1, places)) * room;
  };
  if (room / static_cast<float>(std::max(1, places)) >= ui.px(4)) {
    for (int32_t place = 0; place <= places; ++place)
      list->AddLine({x_of(place), middle - ui.px(6)}, {x_of(place), middle + ui.px(6)},
                    color_of(ui, Role::border));
  }
  // A line where the backward begins.
  const auto steps = plan.steps();
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].direction == Direction::forward) continue;
    const double place = state.playhead.is_by_stage ? steps[s].first_stage : static_cast<double>(s);
    list->AddLine({x_of(place), corner.y + 1}, {x_of(place), corner.y + height - 1},
                  color_of(ui, Role::text), ui.px(2));
    break;
  }
  list->AddRectFilled(
      {x_of(state.playhead.index), corner.y + ui.px(2)},
      {std::max(x_of(state.playhead.index + 1), x_of(state.playhead.index) + ui.px(3)),
       corner.y + height - ui.px(2)},
      color_of(ui, Role::accent), ui.px(3));
  if (state.playhead.progress >= 1) return;
  const float now = x_of(state.playhead.index + state.playhead.progress);
  list->AddLine({now, corner.y}, {now, corner.y + height}, color_of(ui, Role::text), ui.px(2));
}

float button_width(std::string_view label) {
  return ImGui::CalcTextSize(label.data(), label.data() + label.size()).x +
         2 * ImGui::GetStyle().FramePadding.x;
}

/// Width in screen pixels of everything right of the track.
float measure_right(const Ui& ui, const std::string& rank) {
  const AppState& state = ui.state;
  const auto& names = state.services.executors;
  float width = 2 * button_width("[") + ImGui::CalcTextSize(rank.c_str()).x +
                button_width(to_name(state.theme)) + button_width("Lessons");
  int32_t items = 6;
  if (is_working(state)) {
    width += ui.px(kProgressWidth) + button_width("Cancel");
    ++items;
  } else {
    width += button_width("Run on cpu");
    if (std::find(names.begin(), names.end(), "cuda") != names.end()) {
      width += button_width("Run on cuda");
      ++items;
    }
  }
  return width + static_cast<float>(items) * ImGui::GetStyle().ItemSpacing.x;
}

void build_run_buttons(Ui& ui, float progress_width) {
  AppState& state = ui.state;
  if (is_working(state)) {
    const bool is_run = state.job.task.is_running();
    const double progress = is_run ? state.job.task.progress() : state.saving.task.progress();
    ImGui::ProgressBar(static_cast<float>(progress), {ui.px(progress_width), 0},
                       is_run ? state.job.title.c_str() : "Writing figures");
    name_item(ui, "run.progress");
    ImGui::SameLine();
    command_button(ui, "run.cancel", "Cancel");
    return;
  }
  command_button(ui, "run.cpu", "Run on cpu");
  const auto& names = state.services.executors;
  if (std::find(names.begin(), names.end(), "cuda") == names.end()) return;
  ImGui::SameLine();
  command_button(ui, "run.cuda", "Run on cuda");
}

}  // namespace

void build_menu_bar(Ui& ui, ScenarioMenu& scenarios) {
  if (!ImGui::BeginMainMenuBar()) return;
  if (std::exchange(ui.state.opens_menus, false)) ImGui::OpenPopup("File");
  for (const std::string_view menu : all_menus()) {
    build_menu(ui, menu);
    if (menu == "File") build_scenario_menu(ui, scenarios);
  }
  const std::string text = describe_document(ui.state);
  const float begin = ImGui::GetCursorPosX() + ui.px(20);
  const float edge = place_verdict(ui, ImGui::GetWindowWidth() - ui.px(14));
  const float right = edge - ImGui::CalcTextSize(text.c_str()).x;
  if (right > begin) {
    ImGui::SetCursorPosX(right);
    show_text(ui, text, Role::faint_text);
    name_item(ui, "document");
  }
  ImGui::EndMainMenuBar();
}

namespace {

/// The buttons that move the playhead.
void build_step_buttons(Ui& ui) {
  command_button(ui, "step.first", "|<");
  ImGui::SameLine();
  command_button(ui, "step.previous", "<");
  ImGui::SameLine();
  command_button(ui, "play", ui.state.player.is_playing ? "Pause" : "Play",
                 ui.state.player.is_playing);
  ImGui::SameLine();
  command_button(ui, "step.next", ">");
  ImGui::SameLine();
  command_button(ui, "step.last", ">|");
}

void build_place(Ui& ui) {
  ImGui::AlignTextToFramePadding();
  const WithFont font(ui, Face::strong, kTextSize);
  show_text(ui, describe_place(ui.state));
  name_item(ui, "place");
}

void build_rank_buttons(Ui& ui, const std::string& rank) {
  command_button(ui, "rank.previous", "[");
  ImGui::SameLine();
  ImGui::AlignTextToFramePadding();
  show_text(ui, rank);
  name_item(ui, "focus_rank");
  ImGui::SameLine();
  command_button(ui, "rank.next", "]");
}

std::string name_focus_rank(const AppState& state) {
  return "rank " + std::to_string(state.focus_rank);
}

/// In rows, for screens without room for all of it in one. The theme is in the menu View.
void build_narrow_transport(Ui& ui, const Box& box) {
  build_step_buttons(ui);
  ImGui::SameLine();
  build_place(ui);
  if (!has_track_row(ui, box.width())) ImGui::SameLine();
  build_track(ui, ImGui::GetContentRegionAvail().x);
  build_rank_buttons(ui, name_focus_rank(ui.state));
  ImGui::SameLine();
  build_run_buttons(ui, kNarrowProgressWidth);
  ImGui::SameLine();
  command_button(ui, "lesson.list", "Lessons");
  // The menus leave no room for it on a phone.
  if (!has_track_row(ui, box.width()) || !has_verdict(ui.state)) return;
  ImGui::SameLine();
  build_verdict(ui);
}

/// The steps alone, for a view that another page embeds.
void build_embedded_transport(Ui& ui, const Box& box) {
  build_step_buttons(ui);
  ImGui::SameLine();
  build_place(ui);
  if (!has_track_row(ui, box.width())) ImGui::SameLine();
  build_track(ui, ImGui::GetContentRegionAvail().x);
}

void build_wide_transport(Ui& ui, const Box& box) {
  AppState& state = ui.state;
  build_step_buttons(ui);
  ImGui::SameLine();
  command_button(ui, "speed.slower", "-");
  ImGui::SameLine();
  char speed[32];
  std::snprintf(speed, sizeof speed, "%gx", state.player.speed);
  ImGui::AlignTextToFramePadding();
  show_text(ui, speed, Role::faint_text);
  ImGui::SameLine();
  command_button(ui, "speed.faster", "+");
  ImGui::SameLine();
  command_button(ui, "play.unit", state.playhead.is_by_stage ? "by stage" : "by step");
  ImGui::SameLine();
  build_place(ui);
  // The track begins at the same position, however long the text before it is.
  ImGui::SameLine(ui.px(box.width() < ui.px(kNarrowTopPanel) ? kNarrowTrack : kTrack));
  const std::string rank = name_focus_rank(state);
  build_track(ui, ImGui::GetContentRegionAvail().x - measure_right(ui, rank));
  ImGui::SameLine();
  build_rank_buttons(ui, rank);
  ImGui::SameLine();
  build_run_buttons(ui, kProgressWidth);
  ImGui::SameLine();
  command_button(ui, "theme.next", to_name(state.theme));
  ImGui::SameLine();
  command_button(ui, "lesson.list", "Lessons");
}

}  // namespace

void build_transport(Ui& ui, const Box& box) {
  if (begin_panel(ui, "transport", box) && ui.state.plan() != nullptr) {
    if (ui.state.only_view)
      build_embedded_transport(ui, box);
    else if (is_narrow(ui, box.width()))
      build_narrow_transport(ui, box);
    else
      build_wide_transport(ui, box);
  }
  end_panel();
}

}  // namespace cpscope::gui
