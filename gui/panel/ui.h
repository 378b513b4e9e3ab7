#pragma once

#include "gui/app/app_state.h"
#include "gui/app/caption.h"
#include "gui/draw/theme.h"
#include "gui/panel/fonts.h"
#include "gui/panel/hit_map.h"
#include "gui/panel/textures.h"

#include <string>
#include <string_view>

#include <imgui.h>

namespace cpscope::gui {

/// What every panel of a frame works with.
struct Ui {
  AppState& state;
  const Fonts& fonts;
  Textures& textures;
  HitMap& hits;
  const Theme& theme;
  bool in_background = false;  // may long work come frames later?
  Target hovered = {};         // what this frame finds under the mouse; shown by the next

  float scale() const { return fonts.scale; }
  /// Whole screen pixels of a logical length.
  float px(float logical) const;
};

inline constexpr float kTextSize = 14;   // logical pixels of panels' text
inline constexpr float kSmallSize = 12;  // of notes and units

ImU32 color_of(const Ui& ui, Role role);
ImVec4 vector_of(Color color);
/// Dear ImGui's own colours and paddings in the theme.
void apply_style(const Theme& theme, float scale);

/// Until the end of the block, texts are in this face and size.
class WithFont {
 public:
  WithFont(const Ui& ui, Face face, float size);
  ~WithFont();
  WithFont(const WithFont&) = delete;
  WithFont& operator=(const WithFont&) = delete;
};

/// Gives the last item its name in the hit map.
void name_item(Ui& ui, std::string name);
void show_text(const Ui& ui, std::string_view text, Role role = Role::text);
/// Broken over lines at the end of the region.
void show_wrapped(const Ui& ui, std::string_view text, Role role = Role::text);
/// A tip for the last item, when the mouse rests on it.
void show_tip(const Ui& ui, std::string_view text);

/// A button that does a command, greyed while it cannot; its tip names the shortcut. An empty label
/// is the command's title.
bool command_button(Ui& ui, std::string_view id, std::string_view label = {},
                    bool is_pressed = false);
/// A button of our own, named in the hit map.
bool named_button(Ui& ui, const std::string& name, const std::string& label,
                  bool is_enabled = true);

/// Words over as many lines as they need in `width` screen pixels. Spans with a target light it
/// when hovered and select it when clicked. `name` begins the names of the links.
void flow_spans(Ui& ui, const Spans& spans, float width, std::string_view name);

/// A panel at a place, in screen pixels, until end_panel(). `id` is its name in the hit map.
bool begin_panel(Ui& ui, const char* id, const Box& box, bool scrolls = false);
void end_panel();
/// What a panel is and which question it answers.
void panel_heading(Ui& ui, std::string_view title, std::string_view question);

}  // namespace cpscope::gui
