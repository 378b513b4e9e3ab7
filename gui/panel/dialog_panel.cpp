#include "gui/app/command.h"
#include "gui/app/export_csv.h"
#include "gui/app/find/find.h"
#include "gui/app/glossary.h"
#include "gui/app/lesson.h"
#include "gui/app/ways.h"
#include "gui/panel/imgui_compat.h"
#include "gui/panel/panels.h"

#include <algorithm>
#include <string>
#include <vector>

#include <imgui_stdlib.h>

namespace cpscope::gui {
namespace {

/// Goes on in the same line at a logical x, or in the next line where that leaves no room for
/// words.
void next_column(const Ui& ui, float x) {
  constexpr float kLeastRoom = 150;
  if (ImGui::GetWindowContentRegionMax().x >= ui.px(x + kLeastRoom)) ImGui::SameLine(ui.px(x));
}

void build_section(Ui& ui, std::string_view title) {
  ImGui::Spacing();
  const WithFont font(ui, Face::strong, kTextSize);
  show_text(ui, title);
}

void build_keys(Ui& ui) {
  std::string_view menu;
  for (const HelpLine& line : make_help()) {
    if (line.menu != menu) build_section(ui, menu = line.menu);
    {
      const WithFont font(ui, Face::mono, kSmallSize);
      show_text(ui, line.shortcuts.empty() ? "-" : line.shortcuts, Role::accent);
    }
    ImGui::SameLine(ui.px(150));
    show_text(ui, line.title);
    next_column(ui, 360);
    show_wrapped(ui, line.help, Role::faint_text);
  }
}

/// The colours of highlights, with a sample of each.
void build_colors(Ui& ui) {
  for (const LightColor& light : light_colors()) {
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float side = ImGui::GetTextLineHeight();
    ImGui::GetWindowDrawList()->AddRect({at.x + 1, at.y + 1}, {at.x + 2 * side, at.y + side},
                                        color_of(ui, light.role), 0, 0, ui.px(light.width));
    ImGui::Dummy({2 * side, side});
    name_item(ui, "help/light/" + std::string(light.name));
    ImGui::SameLine();
    show_text(ui, light.name);
    next_column(ui, 300);
    show_wrapped(ui, light.meaning, Role::faint_text);
  }
}

void build_words(Ui& ui) {
  for (const Term& term : glossary()) {
    show_text(ui, term.word, Role::accent);
    name_item(ui, "help/word/" + std::string(term.word));
    next_column(ui, 150);
    show_wrapped(ui, term.meaning);
  }
}

/// Keys, colours and words in one list; buttons go to the begin of each.
void build_help(Ui& ui) {
  const bool to_keys = named_button(ui, "help/keys", "Keys");
  ImGui::SameLine();
  const bool to_colors = named_button(ui, "help/colors", "Colours of highlights");
  ImGui::SameLine();
  const bool to_words = named_button(ui, "help/words", "Words");
  ImGui::BeginChild("help");
  if (to_keys) ImGui::SetScrollHereY(0);
  build_keys(ui);
  build_section(ui, "Colours of highlights");
  if (to_colors) ImGui::SetScrollHereY(0);
  build_colors(ui);
  build_section(ui, "Words");
  if (to_words) ImGui::SetScrollHereY(0);
  build_words(ui);
  ImGui::EndChild();
}

void build_lesson_list(Ui& ui) {
  const auto lessons = all_lessons();
  for (size_t n = 0; n < lessons.size(); ++n) {
    const std::string name = "lesson/" + std::to_string(n);
    const bool is_typed =
        n < 9 && compat::is_key_pressed(compat::key_of(static_cast<char>('1' + n)));
    if (named_button(ui, name, std::to_string(n + 1) + "  " + std::string(lessons[n].title)) ||
        is_typed) {
      ui.state.dialog = Dialog::none;
      open_lesson(ui.state, {static_cast<int32_t>(n), 0});
    }
    next_column(ui, 270);
    show_wrapped(ui, lessons[n].question, Role::faint_text);
  }
}

/// A text field for a path, at first `first`. `act` is called with the path.
template <class Act>
void build_path(Ui& ui, TypedText& typed, const char* hint, const char* verb, Act act,
                const std::string& first = "") {
  if (typed.field != "dialog") typed = {"dialog", first, ""};
  if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
  ImGui::SetNextItemWidth(-ui.px(90));
  const bool is_entered =
      ImGui::InputTextWithHint("##path", hint, &typed.text, ImGuiInputTextFlags_EnterReturnsTrue);
  name_item(ui, "dialog/path");
  ImGui::SameLine();
  const bool is_clicked = named_button(ui, "dialog/ok", verb, !typed.text.empty());
  if ((is_entered || is_clicked) && !typed.text.empty()) {
    const std::string path = typed.text;
    typed = {};
    ui.state.dialog = Dialog::none;
    act(path);
  }
}

constexpr uint8_t kShade = 150;    // of 255: the views behind a dialog stay visible
constexpr float kNameWidth = 230;  // of a column of shipped names

void build_open(Ui& ui, TypedText& typed) {
  const char* hint = ui.state.services.is_page
                         ? "letters of a shipped scenario; or drop a file on the page"
                         : "path of a scenario (.toml), or letters of a shipped one";
  const auto& names = ui.state.services.scenario_names;
  build_path(ui, typed, hint, "Open", [&](const std::string& text) {
    // Letters of a shipped name open the first that matches.
    const bool is_path = text.find_first_of("/.\\") != std::string::npos;
    const std::vector<NameMatch> found = match_names(names, text);
    if (is_path || found.empty())
      open_scenario(ui.state, text);
    else
      open_shipped(ui.state, names[found.front().index]);
  });
  ImGui::Spacing();
  show_text(ui, "Shipped scenarios", Role::faint_text);
  const int columns =
      std::max(1, static_cast<int>(ImGui::GetContentRegionAvail().x / ui.px(kNameWidth)));
  int column = 0;
  // A path matches no name; then all names are shown.
  std::vector<NameMatch> matches = match_names(names, typed.text);
  if (matches.empty()) matches = match_names(names, "");
  for (const NameMatch& match : matches) {
    const std::string& name = names[match.index];
    if (column % columns != 0)
      ImGui::SameLine(ui.px(kNameWidth * static_cast<float>(column % columns) + 10));
    ++column;
    if (named_button(ui, "dialog/" + name, name)) {
      ui.state.dialog = Dialog::none;
      typed = {};
      open_shipped(ui.state, name);
    }
  }
}

/// The first words of a window that nobody gave a file.
void build_welcome(Ui& ui) {
  AppState& state = ui.state;
  show_wrapped(
      ui,
      "Attention of one batch, split over many GPUs: which rank owns which token, what each "
      "computes in each step, which bytes travel, and whether the answer is right. Every "
      "picture is of one plan that was proved before it is shown.");
  ImGui::Spacing();
  if (state.document.is_open()) {
    const Scenario& scenario = state.document.scenario();
    show_text(ui, "Open now", Role::faint_text);
    {
      const WithFont font(ui, Face::strong, kTextSize);
      show_wrapped(ui, scenario.title);
    }
    show_wrapped(ui, scenario.question);
    ImGui::Spacing();
  }
  const auto close = [&] { state.dialog = Dialog::none; };
  if (named_button(ui, "welcome/lesson", "Start lesson 1")) {
    close();
    open_lesson(state, {0, 0});
  }
  next_column(ui, 230);
  show_wrapped(ui, "Short pages with something to do on each.", Role::faint_text);
  if (named_button(ui, "welcome/explore", "Explore this scenario")) close();
  next_column(ui, 230);
  show_wrapped(ui, "Play moves through the steps. F1 lists all keys.", Role::faint_text);
  if (named_button(ui, "welcome/own", "Open a scenario of mine..."))
    state.dialog = Dialog::open_file;
  next_column(ui, 230);
  show_wrapped(
      ui,
      "Or change ranks, lengths and mask in the panel Scenario: every change is planned and "
      "proved at once.",
      Role::faint_text);
}

void build_save(Ui& ui, TypedText& typed) {
  build_path(
      ui, typed, "path of the new file (.toml)", "Save",
      [&](const std::string& path) { save_scenario(ui.state, path); }, ui.state.document.path());
  show_wrapped(
      ui, "Comments and keys that the file had stay as they are. A file of that name is replaced.",
      Role::faint_text);
}

/// Asks before unsaved changes are lost by quitting.
void build_unsaved(Ui& ui) {
  AppState& state = ui.state;
  const std::string& path = state.document.path();
  show_wrapped(ui, "The scenario has changes that are in no file" +
                       (path.empty() ? std::string(".") : ": " + path + " is as it was."));
  ImGui::Spacing();
  if (named_button(ui, "unsaved/save", "Save")) {
    state.dialog = Dialog::none;
    state.quits_when_saved = true;
    if (state.document.has_file())
      save_scenario(state, path);
    else
      state.dialog = Dialog::save_file;
  }
  ImGui::SameLine();
  if (named_button(ui, "unsaved/discard", "Discard")) {
    state.dialog = Dialog::none;
    state.wants_quit = true;
  }
  ImGui::SameLine();
  if (named_button(ui, "unsaved/cancel", "Cancel")) state.dialog = Dialog::none;
}

void build_record(Ui& ui, TypedText& typed) {
  show_wrapped(
      ui,
      "A run of this scenario that was recorded elsewhere: cpscope run FILE --record "
      "OUT.safetensors. It is compared with the oracle, and with the other run. Of a trace "
      "(.json, .json.gz, .sqlite) of other software the timeline shows the times.",
      Role::faint_text);
  build_path(ui, typed, "path of a record or trace", "Open as A", [&](const std::string& path) {
    open_record(ui.state, path, ui.state.run_a != nullptr);
  });
}

void build_find(Ui& ui, TypedText& typed) {
  if (typed.field != "dialog") typed = {"dialog", "", ""};
  if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
  ImGui::SetNextItemWidth(-FLT_MIN);
  const bool is_entered =
      ImGui::InputTextWithHint("##query", "token 123, rank 3, link 1 2, step 4, compute 12 ...",
                               &typed.text, ImGuiInputTextFlags_EnterReturnsTrue);
  name_item(ui, "dialog/query");
  if (ui.state.plan() == nullptr) return;
  const FindAnswer answer = find_targets(*ui.state.plan(), typed.text);
  for (size_t n = 0; n < answer.found.size(); ++n) {
    const Found& found = answer.found[n];
    const bool is_chosen =
        named_button(ui, "found/" + std::to_string(n), found.title) || (is_entered && n == 0);
    if (ImGui::IsItemHovered()) ui.hovered = found.target;
    next_column(ui, 290);
    show_wrapped(ui, found.detail, Role::faint_text);
    if (!is_chosen) continue;
    select(ui.state, found.target);
    apply_command(ui.state, "view.frame");
    ui.state.dialog = Dialog::none;
    typed = {};
    return;
  }
  if (!answer.explanation.empty()) show_wrapped(ui, answer.explanation, Role::faint_text);
}

void build_export(Ui& ui, TypedText& typed) {
  const ViewKind kind = ui.state.focus_view.value_or(ViewKind::layout);
  const std::string name = ui.state.shows_ways ? "ways" : std::string(to_name(kind));
  show_wrapped(ui,
               "Writes the view \"" + name +
                   "\": the ending of the name says whether as a picture that explains itself "
                   "(.svg, .png), as its moving steps (.apng) or as the figures behind it (.csv). "
                   "Before, 1 to 7 focus another view. Ctrl+S writes the whole window.",
               Role::faint_text);
  build_path(ui, typed, "path of the new file (.svg, .png, .apng or .csv)", "Write",
             [&](const std::string& path) {
               if (path.ends_with(".csv") && ui.state.shows_ways)
                 return start_saving_ways_csv(ui.state, path);
               if (path.ends_with(".csv")) return start_saving_csv(ui.state, kind, path);
               if (!path.ends_with(".svg") && !path.ends_with(".png") && !path.ends_with(".apng"))
                 return tell(
                     ui.state,
                     "The name of a file to write ends in .svg, .png, .apng or .csv: " + path,
                     true);
               ui.state.wish = ExportWish::picture;
               ui.state.wish_path = path;
             });
}

/// Covers the whole window below a dialog, so that the mouse reaches nothing behind it.
void shade_views(Ui& ui, Size display) {
  ImGui::SetNextWindowPos({0, 0});
  ImGui::SetNextWindowSize({display.width, display.height});
  ImGui::PushStyleColor(ImGuiCol_WindowBg,
                        vector_of(ui.theme.of(Role::background).with_alpha(kShade)));
  ImGui::Begin("shade", nullptr,
               ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoNav |
                   ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_NoFocusOnAppearing);
  ImGui::End();
  ImGui::PopStyleColor();
}

std::string_view title_of(Dialog dialog) {
  switch (dialog) {
    case Dialog::open_file:
      return "Open scenario";
    case Dialog::save_file:
      return "Save scenario as";
    case Dialog::open_record:
      return "Open record";
    case Dialog::find:
      return "Find";
    case Dialog::help:
      return "Keys, colours and words";
    case Dialog::lessons:
      return "Lessons";
    case Dialog::export_file:
      return "Export";
    case Dialog::unsaved:
      return "Save the changes?";
    case Dialog::welcome:
      return "cpscope: context-parallel attention";
    case Dialog::none:
      break;
  }
  return "";
}

}  // namespace

void build_dialog(Ui& ui, Size display, TypedText& typed) {
  const Dialog dialog = ui.state.dialog;
  if (dialog == Dialog::none) {
    if (typed.field == "dialog") typed = {};
    return;
  }
  const float width = std::min(display.width - ui.px(40), ui.px(860));
  const bool is_narrow = width < ui.px(600);  // texts need more lines
  const float height = std::min(display.height - ui.px(80),
                                ui.px(dialog == Dialog::help      ? 720
                                      : dialog == Dialog::unsaved ? 130
                                      : dialog == Dialog::welcome ? (is_narrow ? 400 : 280)
                                                                  : 480));
  shade_views(ui, display);
  ImGui::SetNextWindowPos({(display.width - width) / 2, (display.height - height) / 3});
  ImGui::SetNextWindowSize({width, height});
  ImGui::SetNextWindowFocus();
  bool is_kept = true;
  if (ImGui::Begin(std::string(title_of(dialog)).c_str(), &is_kept,
                   ImGuiWindowFlags_NoCollapse | ImGuiWindowFlags_NoResize |
                       ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoSavedSettings)) {
    const ImVec2 lo = ImGui::GetWindowPos();
    ui.hits.add("dialog", {lo.x, lo.y, lo.x + width, lo.y + height});
    if (dialog == Dialog::help) build_help(ui);
    if (dialog == Dialog::lessons) build_lesson_list(ui);
    if (dialog == Dialog::open_file) build_open(ui, typed);
    if (dialog == Dialog::save_file) build_save(ui, typed);
    if (dialog == Dialog::open_record) build_record(ui, typed);
    if (dialog == Dialog::find) build_find(ui, typed);
    if (dialog == Dialog::export_file) build_export(ui, typed);
    if (dialog == Dialog::unsaved) build_unsaved(ui);
    if (dialog == Dialog::welcome) build_welcome(ui);
  }
  ImGui::End();
  if (!is_kept) apply_command(ui.state, "select.clear");
}

void build_messages(Ui& ui, Size display) {
  auto& messages = ui.state.messages;
  if (messages.empty()) return;
  constexpr size_t kShown = 4;
  const size_t first = messages.size() > kShown ? messages.size() - kShown : 0;
  ImGui::SetNextWindowPos({display.width - ui.px(16), display.height - ui.px(110)}, 0, {1, 1});
  ImGui::SetNextWindowSize({std::min(display.width - ui.px(32), ui.px(520)), 0});
  if (ImGui::Begin("messages", nullptr,
                   ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove |
                       ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_NoFocusOnAppearing |
                       ImGuiWindowFlags_AlwaysAutoResize)) {
    size_t dismissed = messages.size();
    for (size_t n = first; n < messages.size(); ++n) {
      show_wrapped(ui, (messages[n].is_error ? "! " : "") + messages[n].text,
                   messages[n].is_error ? Role::error : Role::text);
      if (named_button(ui, "message/" + std::to_string(n - first), "Dismiss")) dismissed = n;
    }
    if (dismissed < messages.size())
      messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(dismissed));
  }
  ImGui::End();
}

}  // namespace cpscope::gui
