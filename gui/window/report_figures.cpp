#include "gui/window/report_figures.h"

#include "gui/app/caption/caption.h"
#include "gui/app/document/make_view.h"
#include "gui/draw/glyph_widths.h"
#include "gui/draw/place_drawing.h"
#include "gui/draw/svg_file.h"
#include "gui/model/axis.h"
#include "gui/model/project.h"
#include "gui/model/view.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kHeader = 32, kInset = 12;
/// A tile narrower than this is hard to see: it gets a ring around it, and a close-up.
constexpr float kLeastTile = 18;

/// Data shared by all pictures of one case.
struct Scene {
  const CaseFindings& findings;
  const PlanIndex& plan;
  Moment moment;
  int32_t step = 0;  // index in PlanIndex::steps
  int32_t rank = 0;
  Target item;  // the first wrong item; Nothing where there is none
  RunView run;
  std::string id;
};

/// A picture that is still to be drawn.
struct Wanted {
  ViewKind kind{};
  Size size;
  std::string name, title, caption;
  Target selection = {};
  Camera camera = {};
  int32_t tensor = 0;
};

const WrongPlace* wrong_place(const Scene& scene) {
  return scene.findings.first ? &*scene.findings.first : nullptr;
}

/// The row that pictures mark: the first wrong row if known, otherwise the worst one.
struct MarkedRow {
  int64_t token = 0;
  bool is_key = false;
  std::string title;  // "first wrong token: 540 of rank 1"
  std::string name;   // "wrong: token 540"
};

std::optional<MarkedRow> find_row(const Scene& scene) {
  const WrongPlace* place = wrong_place(scene);
  if (place != nullptr) {
    if (place->token < 0) return std::nullopt;
    return MarkedRow{
        place->token, place->is_key,
        fmt::format("first wrong token: {} of rank {}", place->token, to_index(place->site.rank)),
        fmt::format("wrong: token {}", place->token)};
  }
  if (scene.findings.worst_rows.empty()) return std::nullopt;
  const WrongRow& row = scene.findings.worst_rows.front();
  return MarkedRow{
      row.token, row.tensor == "dk" || row.tensor == "dv",
      fmt::format("worst row: {}, token {} of rank {}", row.tensor, row.token, row.rank),
      fmt::format("worst: token {}", row.token)};
}

int64_t end_of(const TokenRun& run) { return run.count() > 0 ? run.last() + 1 : run.begin; }

/// Adds a label for the hatched area, inside `room`, above the box or below it.
void add_name(Drawing& drawing, const Theme& theme, const Box& box, const Box& room,
              const std::string& text) {
  constexpr float kLetters = 13, kHeight = 21, kGap = 5;
  const float width = estimate_width(text, kLetters, Face::strong) + 16;
  const float x = std::clamp(box.center().x - width / 2, room.x0 + 2,
                             std::max(room.x0 + 2, room.x1 - width - 2));
  float y = box.y0 - kGap - kHeight;
  if (y < room.y0) y = std::min(box.y1 + kGap, room.y1 - kHeight);
  const Color fill = theme.of(Role::error);
  drawing.add(FilledBox{.box = {x, y, x + width, y + kHeight}, .color = fill, .rounding = 4});
  drawing.add(Label{{x + width / 2, y + kHeight / 2},
                    Anchor::center_middle,
                    theme.text_on(fill),
                    kLetters,
                    Face::strong,
                    text});
}

/// Hatches a box in the error colour; `title` describes it.
void add_hatched(Drawing& drawing, const Theme& theme, const Box& box, const std::string& title) {
  const Color color = theme.of(Role::error);
  drawing.add(FilledBox{.box = box,
                        .color = color.with_alpha(200),
                        .hatch = Hatch::cross,
                        .hatch_color = theme.text_on(color).with_alpha(90)});
  drawing.add(OutlinedBox{.box = box, .color = color, .width = 2, .title = title});
}

/// Marks the wrong tiles in the picture of the mask; the wrong row if no tile is known.
void mark_mask(const Scene& scene, const View& view, const Theme& theme, Drawing& drawing) {
  const WrongPlace* place = wrong_place(scene);
  if (view.grids.empty()) return;
  const HitGrid& grid = view.grids.front();
  // The title describes the square to readers of the file.
  drawing.add(
      OutlinedBox{.box = grid.box,
                  .color = {0, 0, 0, 0},
                  .title = fmt::format("pairs: queries [{:.0f}, {:.0f}) x keys [{:.0f}, {:.0f})",
                                       grid.y0, grid.y1, grid.x0, grid.x1)});
  const auto x_of = [&](int64_t key) {
    return grid.box.x0 + static_cast<float>((static_cast<double>(key) - grid.x0) /
                                            (grid.x1 - grid.x0) * grid.box.width());
  };
  const auto y_of = [&](int64_t query) {
    return grid.box.y0 + static_cast<float>((static_cast<double>(query) - grid.y0) /
                                            (grid.y1 - grid.y0) * grid.box.height());
  };
  std::vector<std::pair<Box, std::string>> boxes;
  for (const WrongTile& tile : place != nullptr ? place->tiles : std::vector<WrongTile>())
    boxes.push_back(
        {{x_of(tile.k.begin), y_of(tile.q.begin), x_of(end_of(tile.k)), y_of(end_of(tile.q))},
         fmt::format("first wrong tile: {}, {}", describe(place->site), describe(tile))});
  const bool has_tiles = !boxes.empty();
  const std::optional<MarkedRow> marked = find_row(scene);
  if (!has_tiles && marked) {
    Box row = grid.box;
    if (marked->is_key) {
      row.x0 = x_of(marked->token);
      row.x1 = std::max(x_of(marked->token + 1), row.x0 + 2);
    } else {
      row.y0 = y_of(marked->token);
      row.y1 = std::max(y_of(marked->token + 1), row.y0 + 2);
    }
    boxes.emplace_back(row, marked->title);
  }
  if (boxes.empty()) return;
  drawing.add(PushClip{grid.box.inset(-2)});
  for (const auto& [box, title] : boxes) {
    const Box seen{box.x0, box.y0, std::max(box.x1, box.x0 + 1), std::max(box.y1, box.y0 + 1)};
    add_hatched(drawing, theme, seen, title);
    if (!has_tiles || std::min(seen.width(), seen.height()) >= kLeastTile) continue;
    const Point middle = seen.center();
    const float reach_x = std::max(seen.width() / 2 + 5, 12.0F);
    const float reach_y = std::max(seen.height() / 2 + 5, 12.0F);
    drawing.add(OutlinedBox{
        .box = {middle.x - reach_x, middle.y - reach_y, middle.x + reach_x, middle.y + reach_y},
        .color = theme.of(Role::error),
        .width = 2,
        .rounding = 8});
  }
  drawing.add(PopClip{});
  add_name(drawing, theme, boxes.front().first.inset(-6), grid.box,
           has_tiles ? "first wrong tile" : marked->name);
}

/// Marks the wrong token in all places where the layout shows its chunk.
void mark_layout(const Scene& scene, const View& view, const Theme& theme, Drawing& drawing) {
  const std::optional<MarkedRow> row = find_row(scene);
  if (!row) return;
  const Side side = row->is_key && !scene.plan.plan().layout.same_kv ? Side::kv : Side::q;
  std::optional<Box> first;
  for (const HitRegion& hit : view.hits) {
    const auto* range = std::get_if<TokenRange>(&hit.target);
    if (range == nullptr || range->side != side || row->token < range->begin ||
        row->token >= range->end || range->end - range->begin >= scene.plan.tokens(side))
      continue;
    const double per_token = hit.box.width() / static_cast<double>(range->end - range->begin);
    const float x =
        hit.box.x0 + static_cast<float>(static_cast<double>(row->token - range->begin) * per_token);
    Box mark{x, hit.box.y0, std::max(x + 3, x + static_cast<float>(per_token)), hit.box.y1};
    drawing.add(FilledBox{.box = mark, .color = theme.of(Role::error)});
    drawing.add(OutlinedBox{.box = mark.inset(-1),
                            .color = theme.of(Role::error),
                            .width = 1,
                            .title = first ? "" : row->title});
    if (!first) first = mark;
  }
  if (first) add_name(drawing, theme, *first, {kInset, kInset, 1e5F, 1e5F}, row->name);
}

/// Draws one view in its frame, as SVG for one theme.
std::string draw(const Scene& scene, const Wanted& wanted, ThemeName name) {
  const Theme& theme = theme_of(name);
  Drawing page;
  const Size inside{wanted.size.width - 2 * kInset, wanted.size.height - kHeader - kInset};
  const Projection selected = project(wanted.selection, scene.plan);
  const Projection none;
  ViewInput input;
  input.plan = &scene.plan;
  input.moment = scene.moment;
  input.camera = wanted.camera;
  input.size = inside;
  input.theme = &theme;
  input.text_width = TextWidth(estimate_width);
  input.selected = &selected;
  input.hovered = &none;
  input.selection = wanted.selection;
  input.focus_rank = scene.rank;
  input.tensor = wanted.tensor;
  if (!scene.run.errors.empty()) input.run_a = &scene.run;
  View view = make_view(wanted.kind, input);
  if (wanted.kind == ViewKind::mask) mark_mask(scene, view, theme, view.drawing);
  if (wanted.kind == ViewKind::layout) mark_layout(scene, view, theme, view.drawing);
  const size_t colon = view.title.find(": ");
  page.add(Label{{kInset, kHeader / 2},
                 Anchor::left_middle,
                 theme.of(Role::text),
                 14,
                 Face::strong,
                 view.title.substr(0, colon)});
  page.add(Label{{wanted.size.width - kInset, kHeader / 2},
                 Anchor::right_middle,
                 theme.of(Role::faint_text),
                 11,
                 Face::mono,
                 view.scale});
  place_drawing(page, std::move(view.drawing), {kInset, kHeader}, inside);
  return print_svg(page, {.size = wanted.size,
                          .background = theme.of(Role::panel),
                          .title = wanted.title,
                          .description = wanted.caption,
                          .is_inline = true,
                          .id_prefix = fmt::format("{}{}{}-", scene.id, wanted.name,
                                                   theme.is_dark() ? "-dark" : "")});
}

/// The part of the mask around the wrong tiles; nothing if they are large enough without a
/// close-up.
std::optional<Camera> find_close_up(const Scene& scene, Size size) {
  const WrongPlace* place = wrong_place(scene);
  if (place == nullptr || place->tiles.empty()) return std::nullopt;
  const WrongTile& tile = place->tiles.front();
  const auto span = [&](const TokenRun& run, Side side, float pixels) -> std::optional<AxisSpan> {
    const auto total = static_cast<double>(scene.plan.tokens(side));
    const auto begin = static_cast<double>(run.begin), end = static_cast<double>(end_of(run));
    if ((end - begin) / total * pixels >= 2 * kLeastTile) return std::nullopt;
    const double extent = std::max((end - begin) * 4, 16.0);
    const double lo = std::max(0.0, (begin + end) / 2 - extent / 2);
    return AxisSpan{lo / total, std::min(1.0, (lo + extent) / total)};
  };
  const float square = std::min(size.width - 260, size.height - 80);
  const auto x = span(tile.k, Side::kv, square), y = span(tile.q, Side::q, square);
  if (!x && !y) return std::nullopt;
  return Camera{x.value_or(AxisSpan{}), y.value_or(AxisSpan{})};
}

std::string describe_step(const Scene& scene) {
  return to_text(make_caption(scene.plan, scene.moment, scene.rank));
}

std::string describe_mask(const Scene& scene, bool is_small) {
  const WrongPlace* place = wrong_place(scene);
  const std::optional<MarkedRow> row = find_row(scene);
  if (place == nullptr)
    return (row ? "Hatched is the worst row; which of its tiles is wrong is not known. "
                : "Queries downwards, keys across. ") +
           describe_step(scene);
  if (place->tiles.empty() && place->token < 0)
    return fmt::format("The first wrong place is {}, which computes no tile. ",
                       describe(place->site)) +
           describe_step(scene);
  const std::string hatched = fmt::format("Hatched: {}. ", describe(*place));
  return is_small ? hatched : hatched + describe_step(scene);
}

/// Index in kErrorTensors of the tensor in the picture of errors.
int32_t choose_tensor(const Scene& scene) {
  const auto find = [](const std::string& name) {
    const auto* found = std::find(kErrorTensors.begin(), kErrorTensors.end(), name);
    return static_cast<int32_t>(found - kErrorTensors.begin());
  };
  const WrongPlace* place = wrong_place(scene);
  const auto has = [&](const std::string& name) {
    return std::any_of(
        scene.run.errors.begin(), scene.run.errors.end(),
        [&](const ErrorField& field) { return field.name == name && !field.passed; });
  };
  if (place != nullptr && has(place->array)) return find(place->array);
  for (const ErrorField& field : scene.run.errors)
    if (!field.passed) return find(field.name);
  return 0;
}

void add_numbers(const Scene& scene, std::vector<Wanted>& wanted) {
  if (scene.run.errors.empty()) return;
  const int32_t tensor = choose_tensor(scene);
  const std::string name(kErrorTensors[static_cast<size_t>(tensor)]);
  Wanted numbers{.kind = ViewKind::numbers,
                 .size = {1100, 620},
                 .name = "errors",
                 .title = "Errors of " + name + " by token and head",
                 .caption = "Each cell is the largest error of its rows over what a row may err.",
                 .tensor = tensor};
  for (const WrongRow& row : scene.findings.worst_rows) {
    if (row.tensor != name) continue;
    numbers.selection = RowTarget{tensor, row.token, row.head};
    numbers.caption += fmt::format(
        " The worst row is token {}, head {} of rank {}: its error is {:.3g} times its budget.",
        row.token, row.head, row.rank, row.share);
    break;
  }
  wanted.push_back(std::move(numbers));
}

/// The pictures of a case, most important first.
std::vector<Wanted> choose_pictures(const Scene& scene, bool is_small) {
  const WrongPlace* place = wrong_place(scene);
  const std::optional<MarkedRow> row = find_row(scene);
  std::vector<Wanted> wanted;
  wanted.push_back({.kind = ViewKind::mask,
                    .size = is_small ? Size{500, 320} : Size{1100, 800},
                    .name = "mask",
                    .title = place != nullptr ? "The mask and the first wrong tile" : "The mask",
                    .caption = describe_mask(scene, is_small),
                    .selection = is_small ? Target{} : scene.item});
  if (is_small) return wanted;
  if (const auto camera = find_close_up(scene, wanted.front().size)) {
    Wanted close = wanted.front();
    close.name = "close-up";
    close.title = "The first wrong tile from close by";
    close.caption = fmt::format("The same, around {}.", describe(place->tiles.front()));
    close.camera = *camera;
    wanted.push_back(std::move(close));
  }
  wanted.push_back(
      {.kind = ViewKind::layout,
       .size = {1100, 520},
       .name = "layout",
       .title = row ? "Who owns the wrong token" : "Who owns which tokens",
       .caption = row ? fmt::format("{} {} is marked in packed order and, where it fits, in the "
                                    "local order of its rank.",
                                    row->is_key ? "Key token" : "Token", row->token)
                      : "Packed order above, the local order of every rank below.",
       .selection = scene.item});
  if (scene.findings.status != CaseStatus::fail && place == nullptr) return wanted;
  add_numbers(scene, wanted);
  if (place == nullptr) return wanted;
  const StepRef& step = scene.plan.steps()[static_cast<size_t>(scene.step)];
  const std::string when = fmt::format("{} step {}", to_name(step.direction), step.step);
  wanted.push_back(
      {.kind = ViewKind::timeline,
       .size = {1100, 420},
       .name = "timeline",
       .title = "What every rank does, and when",
       .caption = fmt::format("Outlined: the first wrong item, {}.", describe(place->site)),
       .selection = scene.item});
  wanted.push_back({.kind = ViewKind::traffic,
                    .size = {1100, 660},
                    .name = "traffic",
                    .title = "What travels in " + when,
                    .caption = "Bytes from rank to rank in the step of the first wrong item.",
                    .selection = scene.item});
  return wanted;
}

/// Sets the moment of the pictures: the first wrong step, otherwise the second forward step if
/// there is one.
void find_moment(Scene& scene) {
  const PlanIndex& plan = scene.plan;
  scene.step = plan.pass(Direction::forward).num_steps > 1 ? 1 : 0;
  if (const WrongPlace* place = wrong_place(scene)) {
    const ItemId& item = place->site.item;
    const int32_t number = number_of_step(plan, item.direction, place->site.step);
    scene.step = std::max(number, 0);
    scene.rank = to_index(place->site.rank);
    const Pass& pass = plan.pass(item.direction);
    if (!place->site.is_load && item.index < pass.num_items() && item.kind == StageKind::compute)
      scene.item = item;
  }
  scene.moment = plan.moment_of_step(scene.step);
}

/// Errors of the findings, tensor by tensor.
RunView make_errors(const CaseFindings& findings) {
  RunView run;
  run.name = "A: " + findings.executor;
  run.against = "the oracle";
  const Answer &seen = findings.seen, &exact = findings.exact;
  const std::array<std::pair<const Tensor*, const Tensor*>, kErrorTensors.size()> pairs = {
      {{&seen.out, &exact.out},
       {&seen.lse, &exact.lse},
       {&seen.dq, &exact.dq},
       {&seen.dk, &exact.dk},
       {&seen.dv, &exact.dv}}};
  for (size_t t = 0; t < pairs.size(); ++t) {
    const auto [left, right] = pairs[t];
    if (left->values.empty() || left->shape != right->shape) continue;
    for (const TensorGrade& grade : findings.grade.tensors)
      if (grade.name == kErrorTensors[t])
        run.errors.push_back(measure_errors(*left, *right, grade.name, &grade));
  }
  return run;
}

}  // namespace

std::vector<Figure> draw_report_figures(const FigureRequest& request, std::string& left_out) {
  const CaseFindings& findings = *request.findings;
  if (!findings.plan) {
    left_out = "No pictures: there is no plan.";
    return {};
  }
  const PlanIndex plan(*findings.plan);
  Scene scene{findings, plan, {}, 0, 0, {}, {}, request.id};
  find_moment(scene);
  if (findings.status == CaseStatus::fail) scene.run = make_errors(findings);
  std::vector<Figure> figures;
  for (const Wanted& wanted : choose_pictures(scene, request.is_small)) {
    figures.push_back({wanted.name, wanted.title, wanted.caption,
                       draw(scene, wanted, ThemeName::light),
                       request.is_small ? "" : draw(scene, wanted, ThemeName::dark)});
  }
  return figures;
}

}  // namespace cpscope::gui
