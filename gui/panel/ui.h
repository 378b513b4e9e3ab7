#pragma once

#include "gui/app/app_state.h"
#include "gui/app/caption/caption.h"
#include "gui/draw/theme.h"
#include "gui/panel/fonts.h"
#include "gui/panel/hit_map.h"
#include "gui/panel/textures.h"

#include <string>
#include <string_view>

#include <imgui.h>

namespace cpscope::gui {

/// Everything that the panels of a frame use.
struct Ui {
  AppState& state;
  const Fonts& fonts;
  Textures& textures;
  HitMap& hits;
  const Theme& theme;
  bool in_background = false;  // true: long work may finish in a later frame
  bool keys_arrive = false;    // AppState::key_area is new in this frame
  Target hovered = {};         // target under the mouse in this frame; shown by the next

  float scale() const { return fonts.scale; }
  /// A logical length in whole screen pixels.
  float px(float logical) const;
};

inline constexpr float kTextSize = 14;   // logical pixels: text of panels
inline constexpr float kSmallSize = 12;  // notes and units

ImU32 color_of(const Ui& ui, Role role);
ImVec4 vector_of(Color color);
/// Sets Dear ImGui's own colours and paddings to the theme.
void apply_style(const Theme& theme, float scale);

/// Sets face and size of text until the end of the block.
class WithFont {
 public:
  WithFont(const Ui& ui, Face face, float size);
  ~WithFont();
  WithFont(const WithFont&) = delete;
  WithFont& operator=(const WithFont&) = delete;
};

/// Records the last item under a name in the hit map.
void name_item(Ui& ui, std::string name);
void show_text(const Ui& ui, std::string_view text, Role role = Role::text);
/// Shows text, wrapped at the end of the region.
void show_wrapped(const Ui& ui, std::string_view text, Role role = Role::text);
/// Shows a tooltip for the last item while the mouse rests on it.
void show_tip(const Ui& ui, std::string_view text);

/// A button for a command, greyed out while the command is disabled; its tooltip shows the
/// shortcut. With an empty label, it shows the command's title.
bool command_button(Ui& ui, std::string_view id, std::string_view label = {},
                    bool is_pressed = false);
/// A button without a command, recorded in the hit map.
bool named_button(Ui& ui, const std::string& name, const std::string& label,
                  bool is_enabled = true);

/// An entry of a menu or a list, for the mouse, Space and Enter.
bool menu_item(const std::string& label, std::string_view shortcut = {}, bool is_chosen = false,
               bool is_enabled = true);
/// A button that is one of several: the chosen one is in the accent colour.
bool pressed_button(Ui& ui, const std::string& name, const std::string& label, bool is_pressed);

/// Shows text, wrapped at `width` screen pixels. A span with a target is highlighted when hovered
/// and selects its target when clicked. The names of the links begin with `name`.
void flow_spans(Ui& ui, const Spans& spans, float width, std::string_view name);

/// True if the panel has the keys that are no shortcuts.
bool has_keys(const AppState& state, std::string_view panel);

/// Begins a panel at a position in screen pixels, until end_panel(). `id` is its name in the hit
/// map.
bool begin_panel(Ui& ui, const char* id, const Box& box, bool scrolls = false);
void end_panel();
/// Shows the title of a panel and the question that it answers; as a tip where there is too little
/// room, of which `taken` screen pixels are for something else.
void panel_heading(Ui& ui, std::string_view title, std::string_view question, float taken = 0);

}  // namespace cpscope::gui
