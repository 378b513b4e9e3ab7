#include "gui/model/mask/mask_view.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/legend.h"
#include "gui/model/mask/mask_frame.h"
#include "gui/model/mask/mask_marks.h"
#include "gui/model/mask/mask_picture.h"
#include "gui/model/mask/rank_mask.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

std::string print_ratio(int64_t part, int64_t whole) {
  return whole == 0 ? "0 %" : print_share(part, whole);
}

void add_count_lines(const PlanIndex& index, const TileCount& tiles,
                     std::vector<LegendEntry>& entries) {
  const int64_t pairs = index.tokens(Side::q) * index.tokens(Side::kv);
  const int64_t visible =
      index.summary().visible_pairs / std::max(1, index.plan().scenario.attention.heads);
  entries.push_back(
      mask_text(fmt::format("{} of {} pairs visible ({}), in each of {} heads",
                            print_count(visible), print_count(pairs), print_ratio(visible, pairs),
                            index.plan().scenario.attention.heads),
                true));
  if (tiles.edge == 0) {
    entries.push_back(faint_mask_text("Tiles are not counted: too many bands.", true));
    return;
  }
  entries.push_back(mask_text(
      fmt::format("tiles of {} x {}: {} full, {} partial, {} empty", tiles.edge, tiles.edge,
                  print_count(tiles.full), print_count(tiles.partial), print_count(tiles.empty)),
      true));
  std::string waste =
      fmt::format("wasted: {} masked or padded pairs inside partial tiles, {} of the work",
                  print_count(tiles.wasted_pairs), print_share(tiles.wasted_share()));
  if (tiles.padding_pairs > 0)
    waste += fmt::format("; {} of them padded", print_count(tiles.padding_pairs));
  entries.push_back(mask_text(waste, true));
}

void add_notes(const ViewInput& input, const MaskPicture& picture, Direction direction,
               std::vector<LegendEntry>& entries) {
  const Scenario& scenario = input.plan->plan().scenario;
  const int32_t ranks = input.plan->num_ranks();
  if (scenario.parallel.comm_type == CommType::a2a && ranks > 1)
    entries.push_back(faint_mask_text(
        fmt::format("Every rank computes all pairs, each for its own {}{} of {} "
                    "heads (all-to-all).",
                    scenario.attention.heads / ranks,
                    scenario.attention.heads % ranks == 0
                        ? ""
                        : fmt::format(" or {}", scenario.attention.heads / ranks + 1),
                    scenario.attention.heads),
        true));
  if (has_head_groups(scenario.parallel.comm_type) && scenario.parallel.a2a_size > 1)
    entries.push_back(
        faint_mask_text(fmt::format("The heads are split over the {} ranks of a group; each "
                                    "computes the same pairs for its heads.",
                                    scenario.parallel.a2a_size),
                        true));
  const auto& work = picture.cells.work[direction];
  if (work && work->coarseness > 1)
    entries.push_back(
        faint_mask_text("Mixed: a cell holds pairs of many ranks and steps. Zoom in to see "
                        "whose and when.",
                        true));
}

std::string describe_focus(const ViewInput& input, const FocusWork& focus) {
  std::string text = fmt::format("rank {}", input.focus_rank);
  if (focus.items == 0) return text + " computes nothing now";
  text += fmt::format(" now: {} pairs in each of its heads", print_count(focus.pairs));
  if (focus.drawn == 0) text += ", outside of what is shown";
  if (!focus.is_complete) text += fmt::format(", {} bands outlined", focus.drawn);
  return text;
}

bool has_padding(const PlanIndex& index) {
  int64_t q = 0, k = 0;
  for (const SequenceSlot& slot : index.plan().layout.slots.sequences) {
    q += slot.q_valid;
    k += slot.kv_valid;
  }
  return q < index.tokens(Side::q) || k < index.tokens(Side::kv);
}

std::vector<LegendEntry> make_legend(const MaskScene& scene, const FocusWork& focus,
                                     bool has_labels) {
  const ViewInput& input = scene.input;
  const MaskPicture& picture = scene.picture;
  const MaskPaint& paint = scene.paint;
  const Theme& theme = *input.theme;
  const char* unit = picture.unit == MaskUnit::chunk  ? "chunk pair"
                     : picture.unit == MaskUnit::tile ? "tile"
                                                      : "cell";
  std::vector<LegendEntry> entries;
  entries.push_back(
      mask_sample(fmt::format("full {}", unit), paint, CellLook::full, PaintWhen::done, theme));
  entries.push_back(mask_sample(fmt::format("partial {}", unit), paint, CellLook::partial,
                                PaintWhen::done, theme));
  if (picture.unit != MaskUnit::cell)
    entries.push_back(
        mask_sample("masked inside it", paint, CellLook::hidden, PaintWhen::done, theme));
  entries.push_back(mask_sample("empty: skipped", paint, CellLook::empty, PaintWhen::done, theme));
  if (has_padding(*input.plan))
    entries.push_back(mask_sample("padding", paint, CellLook::padding, PaintWhen::done, theme));
  add_time_samples(input, paint, entries);
  LegendEntry own =
      mask_sample(describe_focus(input, focus), paint, CellLook::full, PaintWhen::now, theme);
  own.outline = theme.of(Role::accent);
  if (focus.items == 0) own.color = own.color.with_alpha(0);
  entries.push_back(std::move(own));
  if (has_labels)
    entries.push_back(faint_mask_text(scene.window.num_steps > 1
                                          ? "numbers in cells: the step that computes them"
                                          : "numbers in cells: the rank that computes them"));
  add_count_lines(*input.plan, picture.counts, entries);
  add_notes(input, picture, scene.direction, entries);
  return entries;
}

}  // namespace

View draw_mask(const ViewInput& input) {
  View view;
  view.title = "Mask: which (query, key) pairs are computed, and by which rank";
  const PlanIndex& index = *input.plan;
  view.title = with_round(view.title, index, input.moment);
  const int64_t q_tokens = index.tokens(Side::q), k_tokens = index.tokens(Side::kv);
  const Box all{0, 0, input.size.width, input.size.height};
  if (q_tokens == 0 || k_tokens == 0) {
    add_sentence(view.drawing, input, all, "This batch has no tokens. Give a sequence a length.");
    return view;
  }
  const MaskFrame frame = place_mask_parts(input);
  if (frame.square.width() < kLeastMask || frame.square.height() < kLeastMask) {
    add_sentence(view.drawing, input, all, "Too small for the mask. Enlarge this panel.");
    return view;
  }
  const Axis q(static_cast<double>(q_tokens), input.camera.y, frame.square.y0, frame.square.y1);
  const Axis k(static_cast<double>(k_tokens), input.camera.x, frame.square.x0, frame.square.x1);
  const Direction direction = direction_at(index, input.moment);
  if (input.is_by_rank) {
    add_rank_mask(input, frame, q, k, direction, view);
    return view;
  }
  const auto [picture, is_current] = find_mask_picture(input, q, k, direction);
  if (picture == nullptr) {
    add_sentence(view.drawing, input, all, "Finding out who computes which pairs, and when.");
    return view;
  }
  const MaskPaint paint(*input.theme);
  const StepWindow window = find_window(index, direction, input.moment);
  const MaskScene scene{input, *picture, paint, q, k, frame.square, direction, window};
  add_mask_cells(view.drawing, scene);
  add_mask_lines(view.drawing, scene);
  // Numbers are written over the outlines of diagonals.
  const FocusWork focus = add_focus_work(view.drawing, scene);
  const int64_t labels = add_mask_labels(view.drawing, scene);
  add_mask_lights(view.drawing, scene);
  add_owner_strip(view.drawing, scene, Side::q, frame.left_strip);
  add_owner_strip(view.drawing, scene, Side::kv, frame.top_strip);
  view.drawing.add(OutlinedBox{frame.square, input.theme->of(Role::border), 1});
  RulerStyle vertical;
  vertical.is_vertical = true;
  add_ruler(view.drawing, input, q, frame.left_ruler, vertical);
  add_ruler(view.drawing, input, k, frame.top_ruler, {});
  add_mask_axis_names(view.drawing, input, frame);
  const auto entries = make_legend(scene, focus, labels > 0);
  if (frame.has_side)
    add_legend_column(view.drawing, input, frame.text, entries);
  else
    add_legend_flow(view.drawing, input, frame.text, entries);
  view.grids.push_back({frame.square, k.lo(), k.hi(), q.lo(), q.hi()});
  if (is_current) view.hits = picture->hits[direction];
  view.scale = print_scale(k.units_per_pixel(), "token");
  return view;
}

}  // namespace cpscope::gui
