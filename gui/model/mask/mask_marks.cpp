#include "gui/model/mask/mask_marks.h"

#include "gui/model/legend.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr Color kNothing{0, 0, 0, 0};
constexpr int64_t kMostHatches = 1500;
constexpr int64_t kMostDottedStrips = 200;
constexpr int64_t kMostLabelled = 2000;
constexpr int64_t kMostOutlined = 3000;
constexpr double kLeastHatched = 12;        // pixels of a hatched unit
constexpr double kLeastLabelledChunk = 13;  // pixels of a labelled chunk pair
constexpr double kLeastTokens = 6;          // pixels of a token with lines around it
constexpr float kLeastLineGap = 5;          // pixels between lines of chunks or sequences
constexpr double kLeastLined = 8;           // pixels of a chunk pair with lines around it
constexpr double kLeastOutlined = 10;       // pixels of a chunk pair with an outline
constexpr double kHatchPixels = 6;
/// A cell with work in more than this share of all steps is not assigned to one step.
constexpr int32_t kMixedShare = 4;

Box box_of(const MaskScene& scene, const PairGrid& grid, int64_t row, int64_t column) {
  return {scene.k.pixel_of(static_cast<double>(grid.k.edges[column])),
          scene.q.pixel_of(static_cast<double>(grid.q.edges[row])),
          scene.k.pixel_of(static_cast<double>(grid.k.edges[column + 1])),
          scene.q.pixel_of(static_cast<double>(grid.q.edges[row + 1]))};
}

const MaskGrid* units_of(const MaskPicture& picture) {
  if (picture.unit == MaskUnit::chunk) return &picture.chunks;
  return picture.unit == MaskUnit::tile ? &picture.tiles : nullptr;
}

double least_pixels(const MaskScene& scene, const PairGrid& grid) {
  if (grid.cells() == 0) return 0;
  const auto mean = [](const Axis& axis, const CellAxis& cells) {
    return static_cast<double>(cells.end() - cells.begin()) / static_cast<double>(cells.count()) *
           axis.pixels_per_unit();
  };
  return std::min(mean(scene.q, grid.q), mean(scene.k, grid.k));
}

/// True if partial units are hatched one by one instead of in the picture of the cells.
bool hatches_units(const MaskScene& scene) {
  const MaskGrid* units = units_of(scene.picture);
  if (units == nullptr || scene.picture.is_strided ||
      least_pixels(scene, units->grid) < kLeastHatched)
    return false;
  return std::count(units->classes.begin(), units->classes.end(), CellClass::partial) <=
         kMostHatches;
}

/// The place of each row of cells in its chunk or, where chunks are not told apart, among the rows
/// of its rank.
std::vector<double> place_rows(const MaskScene& scene) {
  const CellAxis &rows = scene.picture.cells.grid.q, &chunks = scene.picture.chunks.grid.q;
  const PlanIndex& index = *scene.input.plan;
  std::vector<double> shares;
  for (int64_t row = 0; row < rows.count(); ++row) {
    const int64_t id = (rows.edges[row] + rows.edges[row + 1]) / 2;
    if (!scene.picture.is_strided && chunks.count() > 0 && id >= chunks.begin() &&
        id < chunks.end()) {
      const int64_t chunk = chunks.cell_of(id), begin = chunks.edges[chunk];
      shares.push_back(static_cast<double>(id - begin) /
                       static_cast<double>(chunks.edges[chunk + 1] - begin));
      continue;
    }
    const OwnedRow owner = index.owner(Side::q, id);
    const int64_t all =
        owner.rank < 0 ? 1 : count_ids(index.plan().layout.q_runs[RankId{owner.rank}]);
    shares.push_back(static_cast<double>(std::max<int64_t>(0, owner.row)) /
                     static_cast<double>(std::max<int64_t>(1, all)));
  }
  return shares;
}

Pixels make_pixels(const MaskScene& scene) {
  const MaskPicture& picture = scene.picture;
  const PairGrid& grid = picture.cells.grid;
  // Null while it is being computed: then the picture shows no work as done.
  const WorkMap* work = picture.cells.work[scene.direction].get();
  Pixels pixels;
  pixels.width = static_cast<int32_t>(grid.columns());
  pixels.height = static_cast<int32_t>(grid.rows());
  const auto end_of = [](const CellAxis& axis, double step) {
    return static_cast<double>(axis.begin()) + step * static_cast<double>(axis.count());
  };
  pixels.box = {scene.k.pixel_of(static_cast<double>(grid.k.begin())),
                scene.q.pixel_of(static_cast<double>(grid.q.begin())),
                scene.k.pixel_of(end_of(grid.k, picture.k_step)),
                scene.q.pixel_of(end_of(grid.q, picture.q_step))};
  const double cell = picture.k_step * scene.k.pixels_per_unit();
  const auto period = std::max<int64_t>(3, std::llround(kHatchPixels / cell));
  const bool has_hatch = cell < kHatchPixels && !hatches_units(scene);
  pixels.colors.resize(picture.looks.size());
  const double progress = scene.input.progress;
  const std::vector<double> places = progress < 1 ? place_rows(scene) : std::vector<double>{};
  for (int64_t row = 0; row < grid.rows(); ++row) {
    for (int64_t column = 0; column < grid.columns(); ++column) {
      const auto at = static_cast<size_t>(grid.at(row, column));
      const CellLook look = picture.looks[at];
      const CellTime time = work == nullptr ? CellTime{}
                            : places.empty()
                                ? time_of(work->cells[at], scene.window)
                                : time_in_motion(work->cells[at], scene.window,
                                                 places[static_cast<size_t>(row)], progress);
      // Stripes already are a fine pattern; a hatch over them would be noise.
      const bool is_hatched =
          look == CellLook::hidden || (look == CellLook::partial && !scene.picture.is_strided);
      const bool is_line = has_hatch && is_hatched && (row + column) % period == 0;
      if (is_line)
        pixels.colors[at] = scene.paint.hatch_of(look, time.when);
      else
        pixels.colors[at] = color_of_cell(scene.input, scene.paint, scene.window, look,
                                          work == nullptr ? CellWork{} : work->cells[at], time,
                                          picture.owners[0][static_cast<size_t>(row)]);
    }
  }
  return pixels;
}

void add_unit_hatches(Drawing& drawing, const MaskScene& scene) {
  if (!hatches_units(scene)) return;
  const MaskGrid& units = *units_of(scene.picture);
  for (int64_t row = 0; row < units.grid.rows(); ++row) {
    for (int64_t column = 0; column < units.grid.columns(); ++column) {
      if (units.classes[units.grid.at(row, column)] != CellClass::partial) continue;
      drawing.add(FilledBox{box_of(scene, units.grid, row, column), kNothing, Hatch::diagonal,
                            scene.paint.hatch_of(CellLook::partial, PaintWhen::done)});
    }
  }
}

/// Adds dots over rows or columns [begin, end) of ids without tokens.
void add_dots(Drawing& drawing, const MaskScene& scene, Side side, int64_t begin, int64_t end) {
  const Axis& axis = scene.axis(side);
  const float lo = axis.pixel_of(static_cast<double>(begin));
  const float hi = axis.pixel_of(static_cast<double>(end));
  if (hi - lo < 3) return;
  const Box box = side == Side::q ? Box{scene.square.x0, lo, scene.square.x1, hi}
                                  : Box{lo, scene.square.y0, hi, scene.square.y1};
  drawing.add(FilledBox{box, kNothing, Hatch::dots,
                        scene.paint.hatch_of(CellLook::padding, PaintWhen::done)});
}

/// Calls look(slot) with the sequences that the axis shows.
template <class Look>
void for_shown_sequences(const MaskScene& scene, Side side, Look look) {
  const Axis& axis = scene.axis(side);
  const auto& sequences = scene.input.plan->plan().layout.slots.sequences;
  auto it = std::partition_point(sequences.begin(), sequences.end(), [&](const SequenceSlot& s) {
    return static_cast<double>(s.side(side).end()) <= axis.lo();
  });
  for (; it != sequences.end(); ++it) {
    const SlotSide ids = it->side(side);
    if (static_cast<double>(ids.begin) > axis.hi() || !look(ids)) break;
  }
}

void add_padding(Drawing& drawing, const MaskScene& scene, Side side) {
  int64_t strips = 0, last_end = 0;
  for_shown_sequences(scene, side, [&](const SlotSide& ids) {
    add_dots(drawing, scene, side, ids.begin, ids.valid_begin());
    add_dots(drawing, scene, side, ids.valid_end(), ids.end());
    return ++strips < kMostDottedStrips;
  });
  const auto& sequences = scene.input.plan->plan().layout.slots.sequences;
  if (!sequences.empty()) last_end = sequences.back().side(side).end();
  add_dots(drawing, scene, side, last_end, scene.input.plan->tokens(side));
}

void add_line(Drawing& drawing, const MaskScene& scene, Side side, double id, Color color,
              float width) {
  const Box& square = scene.square;
  if (side == Side::q) {
    const float y = scene.q.pixel_of(id);
    if (y > square.y0 && y < square.y1)
      drawing.add(Line{{square.x0, y}, {square.x1, y}, color, width});
  } else {
    const float x = scene.k.pixel_of(id);
    if (x > square.x0 && x < square.x1)
      drawing.add(Line{{x, square.y0}, {x, square.y1}, color, width});
  }
}

void add_grid_lines(Drawing& drawing, const MaskScene& scene, const PairGrid& grid, Color color,
                    float width) {
  for (const Side side : {Side::q, Side::kv}) {
    const Axis& axis = scene.axis(side);
    float last = -1e9F;
    for (const int64_t id : side == Side::q ? grid.q.edges : grid.k.edges) {
      const float pixel = axis.pixel_of(static_cast<double>(id));
      if (pixel - last < kLeastLineGap) continue;
      add_line(drawing, scene, side, static_cast<double>(id), color, width);
      last = pixel;
    }
  }
}

void add_sequence_lines(Drawing& drawing, const MaskScene& scene, Side side, Color color) {
  const Axis& axis = scene.axis(side);
  float last = -1e9F;
  for_shown_sequences(scene, side, [&](const SlotSide& ids) {
    for (const int64_t id : {ids.begin, ids.end()}) {
      const float pixel = axis.pixel_of(static_cast<double>(id));
      if (pixel - last < kLeastLineGap) continue;
      add_line(drawing, scene, side, static_cast<double>(id), color, 1.5F);
      last = pixel;
    }
    return true;
  });
}

/// The label of a chunk pair: the step that computes it, or the rank if there is only one step.
std::string label_of(const CellWork& work, bool has_steps) {
  if (!work.has_work() || work.first_step != work.last_step) return {};
  if (has_steps) return fmt::format("{}", work.first_step + 1);  // steps count from 1 on screen
  return work.has_one_rank() ? fmt::format("r{}", work.first_rank) : std::string();
}

void add_label(Drawing& drawing, const MaskScene& scene, Box box, CellClass of, Color fill,
               const std::string& text) {
  // In the middle of the shown part of the chunk pair.
  box = {std::max(box.x0, scene.square.x0), std::max(box.y0, scene.square.y0),
         std::min(box.x1, scene.square.x1), std::min(box.y1, scene.square.y1)};
  const float side = std::min(box.width(), box.height());
  const float size = std::clamp(side * 0.42F, 9.0F, 15.0F);
  const float width = scene.input.text_width(text, size, Face::strong);
  if (width > box.width() - 2 || size > box.height()) return;
  const Point at = box.center();
  if (of == CellClass::partial)
    drawing.add(FilledBox{
        {at.x - width / 2 - 3, at.y - size / 2 - 1, at.x + width / 2 + 3, at.y + size / 2 + 1},
        fill,
        Hatch::none,
        kNothing,
        3});
  drawing.add(
      Label{at, Anchor::center_middle, scene.input.theme->text_on(fill), size, Face::strong, text});
}

}  // namespace

MaskPaint::MaskPaint(const Theme& theme) {
  const Color empty = theme.of(Role::mask_empty), text = theme.of(Role::text);
  const Color partial = theme.of(Role::mask_partial);
  const auto set = [&](CellLook look, Color done, Color later, Color now, Color lines) {
    const auto at = static_cast<size_t>(look);
    colors_[at] = {later, done, now};
    for (size_t when = 0; when < kPaintWhens; ++when)
      hatches_[at][when] = mix(colors_[at][when], lines, 0.45F);
  };
  const Color full = theme.of(Role::mask_full);
  const Color back = theme.of(Role::background);
  set(CellLook::full, full, mix(full, empty, 0.62F), mix(full, text, 0.45F), back);
  set(CellLook::partial, partial, mix(partial, empty, 0.62F), mix(partial, text, 0.4F), back);
  const Color hidden = mix(empty, partial, 0.16F);
  set(CellLook::hidden, hidden, hidden, mix(hidden, text, 0.18F), partial);
  set(CellLook::empty, empty, empty, empty, back);
  const Color padding = mix(empty, theme.of(Role::padding), 0.35F);
  set(CellLook::padding, padding, padding, padding, text);
  for (size_t look = 0; look < kCellLooks; ++look) {
    const auto& colors = colors_[look];
    for (int32_t share = 0; share <= kShares; ++share)
      shares_[look][static_cast<size_t>(share)] =
          mix(colors[static_cast<size_t>(PaintWhen::later)],
              colors[static_cast<size_t>(PaintWhen::done)],
              static_cast<float>(share) / static_cast<float>(kShares));
  }
}

CellTime time_of(const CellWork& work, const StepWindow& window) {
  if (!work.has_work() || work.first_step >= window.now_end) return {};
  if (work.last_step < window.now_begin) return {PaintWhen::done, 1};
  const int32_t gap = work.gap_end - work.gap_begin;
  const int32_t steps = work.last_step - work.first_step + 1 - gap;
  const bool is_mixed = steps > 1 && steps * kMixedShare > window.num_steps;
  const bool is_between = window.now_begin >= work.gap_begin && window.now_end <= work.gap_end;
  const bool is_now = window.now_begin < window.now_end && work.last_step >= window.now_begin &&
                      !(gap > 0 && is_between);
  // Work of now is seen wherever it is, however little of the cell it is.
  if (is_now && !is_mixed) return {PaintWhen::now, 0};
  const int32_t skipped = std::clamp(window.now_end, work.gap_begin, work.gap_end) - work.gap_begin;
  return {PaintWhen::later, static_cast<float>(window.now_end - work.first_step - skipped) /
                                static_cast<float>(steps)};
}

CellTime time_in_motion(const CellWork& work, const StepWindow& window, double row_share,
                        double progress) {
  const CellTime time = time_of(work, window);
  return time.when == PaintWhen::now && row_share >= progress ? CellTime{} : time;
}

Color color_of_cell(const ViewInput& input, const MaskPaint& paint, const StepWindow& window,
                    CellLook look, const CellWork& work, const CellTime& time, int32_t owner) {
  const bool has_pairs = look == CellLook::full || look == CellLook::partial;
  if (input.mask_colors == MaskColors::classes || !has_pairs || !work.has_work() || owner < 0)
    return time.when == PaintWhen::later ? paint.of_share(look, time.done_share)
                                         : paint.of(look, time.when);
  const Theme& theme = *input.theme;
  const double step = (work.first_step + 1.0) / std::max(1, window.num_steps);
  Color base = input.mask_colors == MaskColors::owners
                   ? theme.of_rank(owner, input.plan->num_ranks())
                   : theme.of_quantity(step);
  const Color empty = theme.of(Role::mask_empty);
  if (look == CellLook::partial) base = mix(base, empty, 0.2F);
  if (time.when == PaintWhen::now) return mix(base, theme.of(Role::text), 0.4F);
  return time.when == PaintWhen::later ? mix(base, empty, 0.5F * (1 - time.done_share)) : base;
}

void add_mask_cells(Drawing& drawing, const MaskScene& scene) {
  drawing.add(PushClip{scene.square});
  drawing.add(FilledBox{scene.square, scene.input.theme->of(Role::background)});
  if (scene.picture.cells.grid.cells() > 0) drawing.add(make_pixels(scene));
  add_unit_hatches(drawing, scene);
  add_padding(drawing, scene, Side::q);
  add_padding(drawing, scene, Side::kv);
  drawing.add(PopClip{});
}

void add_mask_lines(Drawing& drawing, const MaskScene& scene) {
  const Color back = scene.input.theme->of(Role::background);
  const Color text = scene.input.theme->of(Role::text);
  const double token = std::min(scene.q.pixels_per_unit(), scene.k.pixels_per_unit());
  if (token >= kLeastTokens) {
    for (auto id = static_cast<int64_t>(scene.q.lo()); static_cast<double>(id) < scene.q.hi(); ++id)
      add_line(drawing, scene, Side::q, static_cast<double>(id), back.with_alpha(90), 1);
    for (auto id = static_cast<int64_t>(scene.k.lo()); static_cast<double>(id) < scene.k.hi(); ++id)
      add_line(drawing, scene, Side::kv, static_cast<double>(id), back.with_alpha(90), 1);
  }
  if (scene.picture.unit == MaskUnit::tile)
    add_grid_lines(drawing, scene, scene.picture.tiles.grid, back.with_alpha(140), 1);
  if (!scene.picture.is_strided && least_pixels(scene, scene.picture.chunks.grid) >= kLeastLined)
    add_grid_lines(drawing, scene, scene.picture.chunks.grid, back, 1);
  add_sequence_lines(drawing, scene, Side::q, text.with_alpha(120));
  add_sequence_lines(drawing, scene, Side::kv, text.with_alpha(120));
}

int64_t add_mask_labels(Drawing& drawing, const MaskScene& scene) {
  const MaskGrid& chunks = scene.picture.chunks;
  const auto& made = chunks.work[scene.direction];
  if (chunks.grid.cells() == 0 || made == nullptr) return 0;
  const WorkMap& work = *made;
  const bool has_steps = scene.window.num_steps > 1;
  // With only one step, all chunk pairs would be outlined.
  const bool has_outlines = has_steps && least_pixels(scene, chunks.grid) >= kLeastOutlined;
  int64_t labelled = 0, outlined = 0;
  drawing.add(PushClip{scene.square});
  for (int64_t row = 0; row < chunks.grid.rows(); ++row) {
    for (int64_t column = 0; column < chunks.grid.columns(); ++column) {
      const auto at = static_cast<size_t>(chunks.grid.at(row, column));
      if (!work.cells[at].has_work()) continue;
      const Box box = box_of(scene, chunks.grid, row, column);
      const CellTime time = time_of(work.cells[at], scene.window);
      if (time.when == PaintWhen::now && has_outlines && ++outlined <= kMostOutlined)
        drawing.add(OutlinedBox{box.inset(0.5F), scene.input.theme->of(Role::text), 1});
      if (std::min(box.width(), box.height()) < kLeastLabelledChunk) continue;
      const std::string text = label_of(work.cells[at], has_steps);
      if (text.empty() || labelled == kMostLabelled) continue;
      ++labelled;
      const CellLook look =
          chunks.classes[at] == CellClass::full ? CellLook::full : CellLook::partial;
      const Color fill =
          color_of_cell(scene.input, scene.paint, scene.window, look, work.cells[at], time,
                        scene.input.plan->owner(Side::q, chunks.grid.q.edges[row]).rank);
      add_label(drawing, scene, box, chunks.classes[at], fill, text);
    }
  }
  drawing.add(PopClip{});
  return labelled;
}

}  // namespace cpscope::gui
