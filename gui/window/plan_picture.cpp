#include "gui/window/plan_picture.h"

#include "gui/app/prediction.h"
#include "gui/draw/glyph_widths.h"
#include "gui/draw/svg_file.h"
#include "gui/window/picture.h"
#include "gui/window/seek.h"
#include "sim/base/version.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

Error wrong(std::string what, std::string hint) {
  return make_error(ErrorKind::bad_input, std::move(what), std::move(hint));
}

Result<std::optional<ViewKind>> find_view(const std::string& name) {
  if (name == "all") return std::optional<ViewKind>();
  for (const ViewKind kind : kViewKinds)
    if (to_name(kind) == name && kind != ViewKind::numbers) return std::optional(kind);
  return wrong("no view of a plan has this name: " + name,
               "layout, mask, traffic, timeline, balance or all");
}

Result<ThemeName> find_theme(const std::string& name) {
  if (const std::optional<ThemeName> theme = parse_theme(name)) return *theme;
  return wrong("no theme has this name: " + name, "dark, light or print");
}

std::optional<Error> check_svg_size(const Size& size) {
  constexpr float kLeast = 100, kMost = 8000;
  const auto is_fine = [](float pixels) { return pixels >= kLeast && pixels <= kMost; };
  if (is_fine(size.width) && is_fine(size.height)) return std::nullopt;
  return wrong(fmt::format("no picture has this size: {} x {}", size.width, size.height),
               fmt::format("{} to {} logical pixels", kLeast, kMost));
}

std::optional<Error> go_to(AppState& state, const PlanPictureRequest& request) {
  const PlanIndex& plan = *state.plan();
  if (request.rank && (*request.rank < 0 || *request.rank >= plan.num_ranks()))
    return wrong(fmt::format("this plan has no rank {}", *request.rank),
                 fmt::format("use 0 to {}", plan.num_ranks() - 1));
  if (request.rank) state.focus_rank = static_cast<int32_t>(*request.rank);
  return seek_named_step(state, request.step.value_or(first_shown_step(plan)));
}

std::optional<Error> add_times(AppState& state, const PlanPictureRequest& request) {
  if (!request.cluster) return std::nullopt;
  return show_prediction(state, *request.cluster, request.stack);
}

std::string print_inline(const Picture& picture, ThemeName theme, const std::string& id_prefix) {
  return print_svg(picture.drawing, {.size = picture.size,
                                     .background = theme_of(theme).of(Role::background),
                                     .title = picture.title,
                                     .description = picture.alt,
                                     .is_inline = true,
                                     .id_prefix = id_prefix});
}

}  // namespace

Result<std::string> draw_plan_svg(const CheckedPlan& plan, const PlanPictureRequest& request) {
  const Result<std::optional<ViewKind>> view = find_view(request.view);
  if (!view) return view.error();
  const std::optional<ViewKind> kind = view.value();
  if (!kind && request.is_bare) return wrong("all views together have a frame", "name one view");
  const Result<ThemeName> theme = find_theme(request.theme);
  if (!theme) return theme.error();
  const Size size = request.size.value_or(kind ? natural_size(*kind) : natural_poster_size());
  if (auto error = check_svg_size(size)) return *error;
  AppState state;
  state.theme = theme.value();
  state.document.open_plan(std::make_shared<const PlanIndex>(plan));
  settle(state);
  if (auto error = go_to(state, request)) return *error;
  if (auto error = add_times(state, request)) return *error;
  const PictureSource source{
      &state, fmt::format("plan {}   cpscope {}", to_hex(plan.plan().hash), program_version()),
      TextWidth(estimate_width), "a plan has no numbers before it was run"};
  const Picture picture = !kind             ? draw_poster(source, size)
                          : request.is_bare ? draw_bare_view(source, *kind, size)
                                            : draw_picture(source, *kind, size);
  return print_inline(picture, theme.value(), request.id_prefix);
}

Result<std::string> draw_comparison_svg(const Candidates& comparison, const std::string& title,
                                        const std::string& theme, const std::string& id_prefix) {
  const Result<ThemeName> name = find_theme(theme);
  if (!name) return name.error();
  return print_inline(
      draw_comparison_picture(comparison, title, name.value(), TextWidth(estimate_width)),
      name.value(), id_prefix);
}

}  // namespace cpscope::gui
