#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include <imgui.h>
#include <imgui_internal.h>

namespace cpscope::gui {

/// Creates a context of Dear ImGui in which a failed allocation throws std::bad_alloc, as
/// everywhere else; Dear ImGui itself would write to address 0.
inline ImGuiContext* make_imgui_context() {
  ImGui::SetAllocatorFunctions([](size_t size, void*) { return ::operator new(size); },
                               [](void* memory, void*) { ::operator delete(memory); });
  return ImGui::CreateContext();
}

}  // namespace cpscope::gui

/// All differences between Dear ImGui 1.86 and later versions, in one place.
namespace cpscope::gui::compat {

/// Texture ids are pointers up to 1.91.3 and integers in later versions.
inline ImTextureID to_texture(uint64_t number) {
  return (ImTextureID)(intptr_t)number;  // NOLINT(google-readability-casting): either kind of cast
}
inline uint64_t to_number(ImTextureID texture) {
  return (uint64_t)(intptr_t)texture;  // NOLINT(google-readability-casting): either kind of cast
}

/// Distance in pixels from the top of a line to its baseline.
inline float ascent_of(ImFont* font, float pixels) {
#if IMGUI_VERSION_NUM >= 19200
  return font->GetFontBaked(pixels)->Ascent;
#else
  return font->Ascent * pixels / font->FontSize;
#endif
}

/// True if our own pictures can be put into the atlas before it is packed.
#if IMGUI_VERSION_NUM >= 19200
inline constexpr bool kAtlasTakesPictures = false;
#else
inline constexpr bool kAtlasTakesPictures = true;
#endif

/// Keys with the numbers of GLFW, so that 1.86 (which uses the key numbers of its backend) and
/// later versions are queried the same way. Letters and digits are their ASCII capitals.
enum class Key : int32_t {
  space = 32,
  comma = 44,
  period = 46,
  digit_0 = 48,
  letter_a = 65,
  letter_z = 90,
  left_bracket = 91,
  right_bracket = 93,
  escape = 256,
  enter = 257,
  tab = 258,
  backspace = 259,
  insert = 260,
  remove = 261,
  right = 262,
  left = 263,
  down = 264,
  up = 265,
  page_up = 266,
  page_down = 267,
  home = 268,
  end = 269,
  f1 = 290,
  f12 = 301
};

inline constexpr Key key_of(char capital) { return static_cast<Key>(capital); }
inline constexpr Key function_key(int32_t number) {
  return static_cast<Key>(static_cast<int32_t>(Key::f1) + number - 1);
}

struct Mods {
  bool ctrl = false, shift = false, alt = false;

  friend bool operator==(const Mods&, const Mods&) = default;
};

#if IMGUI_VERSION_NUM >= 18700
inline ImGuiKey to_imgui(Key key) {
  const int32_t code = static_cast<int32_t>(key);
  if (code >= '0' && code <= '9') return static_cast<ImGuiKey>(ImGuiKey_0 + (code - '0'));
  if (code >= 'A' && code <= 'Z') return static_cast<ImGuiKey>(ImGuiKey_A + (code - 'A'));
  if (key >= Key::f1 && key <= Key::f12) {
    return static_cast<ImGuiKey>(ImGuiKey_F1 + (code - static_cast<int32_t>(Key::f1)));
  }
  switch (key) {
    case Key::space:
      return ImGuiKey_Space;
    case Key::comma:
      return ImGuiKey_Comma;
    case Key::period:
      return ImGuiKey_Period;
    case Key::left_bracket:
      return ImGuiKey_LeftBracket;
    case Key::right_bracket:
      return ImGuiKey_RightBracket;
    case Key::escape:
      return ImGuiKey_Escape;
    case Key::enter:
      return ImGuiKey_Enter;
    case Key::tab:
      return ImGuiKey_Tab;
    case Key::backspace:
      return ImGuiKey_Backspace;
    case Key::insert:
      return ImGuiKey_Insert;
    case Key::remove:
      return ImGuiKey_Delete;
    case Key::right:
      return ImGuiKey_RightArrow;
    case Key::left:
      return ImGuiKey_LeftArrow;
    case Key::down:
      return ImGuiKey_DownArrow;
    case Key::up:
      return ImGuiKey_UpArrow;
    case Key::page_up:
      return ImGuiKey_PageUp;
    case Key::page_down:
      return ImGuiKey_PageDown;
    case Key::home:
      return ImGuiKey_Home;
    case Key::end:
      return ImGuiKey_End;
    default:
      return ImGuiKey_None;
  }
}
#endif

/// True if the key was pressed in this frame.
inline bool is_key_pressed(Key key, bool with_repeat = false) {
#if IMGUI_VERSION_NUM >= 18700
  return ImGui::IsKeyPressed(to_imgui(key), with_repeat);
#else
  return ImGui::IsKeyPressed(static_cast<int>(key), with_repeat);
#endif
}

/// Gives 1.86 the numbers of the keys that its text fields need. A no-op in later versions, and not
/// needed if the GLFW backend has done it.
inline void name_keys(ImGuiIO& io) {
#if IMGUI_VERSION_NUM < 18700
  const struct {
    ImGuiKey name;
    Key key;
  } rows[] = {{ImGuiKey_Tab, Key::tab},
              {ImGuiKey_LeftArrow, Key::left},
              {ImGuiKey_RightArrow, Key::right},
              {ImGuiKey_UpArrow, Key::up},
              {ImGuiKey_DownArrow, Key::down},
              {ImGuiKey_PageUp, Key::page_up},
              {ImGuiKey_PageDown, Key::page_down},
              {ImGuiKey_Home, Key::home},
              {ImGuiKey_End, Key::end},
              {ImGuiKey_Insert, Key::insert},
              {ImGuiKey_Delete, Key::remove},
              {ImGuiKey_Backspace, Key::backspace},
              {ImGuiKey_Space, Key::space},
              {ImGuiKey_Enter, Key::enter},
              {ImGuiKey_Escape, Key::escape},
              {ImGuiKey_A, key_of('A')},
              {ImGuiKey_C, key_of('C')},
              {ImGuiKey_V, key_of('V')},
              {ImGuiKey_X, key_of('X')},
              {ImGuiKey_Y, key_of('Y')},
              {ImGuiKey_Z, key_of('Z')}};
  for (const auto& row : rows) io.KeyMap[row.name] = static_cast<int>(row.key);
#else
  (void)io;
#endif
}

/// True if the last item is the one that the arrow keys have reached, and Enter is pressed on it;
/// 1.86 itself knows only Space.
inline bool is_item_entered() {
  return ImGui::GetIO().NavVisible && ImGui::IsItemFocused() && !ImGui::IsItemActive() &&
         is_key_pressed(Key::enter);
}

/// Lets arrows, Tab, Enter and Space act on the widgets of the window that is being built, from the
/// first one on, and shows on which.
inline void give_keys_to_window() {
  ImGuiContext& context = *ImGui::GetCurrentContext();
  ImGuiWindow* window = ImGui::GetCurrentWindow();
  ImGui::FocusWindow(window);
  ImGui::NavInitWindow(window, true);
#if IMGUI_VERSION_NUM >= 19140
  context.NavCursorVisible = true;
#else
  context.NavDisableHighlight = false;
#endif
}

// Input events, to be passed before NewFrame.

inline void feed_mouse_place(ImGuiIO& io, float x, float y) {
#if IMGUI_VERSION_NUM >= 18700
  io.AddMousePosEvent(x, y);
#else
  io.MousePos = ImVec2(x, y);
#endif
}

inline void feed_mouse_button(ImGuiIO& io, int button, bool is_down) {
#if IMGUI_VERSION_NUM >= 18700
  io.AddMouseButtonEvent(button, is_down);
#else
  io.MouseDown[button] = is_down;
#endif
}

inline void feed_wheel(ImGuiIO& io, float x, float y) {
#if IMGUI_VERSION_NUM >= 18700
  io.AddMouseWheelEvent(x, y);
#else
  io.MouseWheelH += x;
  io.MouseWheel += y;
#endif
}

inline void feed_mods(ImGuiIO& io, Mods mods) {
#if IMGUI_VERSION_NUM >= 18900
  io.AddKeyEvent(ImGuiMod_Ctrl, mods.ctrl);
  io.AddKeyEvent(ImGuiMod_Shift, mods.shift);
  io.AddKeyEvent(ImGuiMod_Alt, mods.alt);
#elif IMGUI_VERSION_NUM >= 18700
  io.AddKeyEvent(ImGuiKey_ModCtrl, mods.ctrl);
  io.AddKeyEvent(ImGuiKey_ModShift, mods.shift);
  io.AddKeyEvent(ImGuiKey_ModAlt, mods.alt);
#else
  io.KeyCtrl = mods.ctrl;
  io.KeyShift = mods.shift;
  io.KeyAlt = mods.alt;
#endif
}

inline void feed_key(ImGuiIO& io, Key key, bool is_down) {
#if IMGUI_VERSION_NUM >= 18700
  io.AddKeyEvent(to_imgui(key), is_down);
#else
  io.KeysDown[static_cast<int>(key)] = is_down;
#endif
}

}  // namespace cpscope::gui::compat
