#include "gui/model/mask/rank_mask.h"

#include "gui/model/describe.h"
#include "gui/model/token_parts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr double kLeastLabel = 13;        // pixels of a block of two ranks with its step
constexpr float kLeastRankLine = 5;       // pixels between lines of ranks
constexpr double kLeastBlockHit = 8;      // pixels of a block with a hit region
constexpr int64_t kMostBlockHits = 1600;  // blocks with hit regions and labels
constexpr float kRankText = 10;

/// The rows of all ranks below each other: where each rank begins, and the runs of its tokens.
struct RankRows {
  std::vector<int64_t> begins;                   // [rank] first row; one more for the end
  std::vector<std::vector<int64_t>> run_begins;  // [rank][run] row in the rank
  const IdVector<RankId, std::vector<TokenRun>>* runs = nullptr;

  int32_t rank_of(int64_t row) const {
    const auto it = std::upper_bound(begins.begin(), begins.end(), row);
    return static_cast<int32_t>(it - begins.begin()) - 1;
  }
  int64_t token_of(int64_t row) const {
    const int32_t rank = rank_of(row);
    const int64_t local = row - begins[static_cast<size_t>(rank)];
    const std::vector<int64_t>& starts = run_begins[static_cast<size_t>(rank)];
    const auto run = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), local) -
                                         starts.begin() - 1);
    return (*runs)[RankId{rank}][run].at(local - starts[run]);
  }
};

RankRows make_rows(const PlanIndex& index, Side side) {
  RankRows rows;
  rows.runs = &index.plan().layout.runs(side);
  int64_t begin = 0;
  for (const std::vector<TokenRun>& runs : *rows.runs) {
    rows.begins.push_back(begin);
    std::vector<int64_t>& starts = rows.run_begins.emplace_back();
    int64_t row = 0;
    for (const TokenRun& run : runs) {
      starts.push_back(row);
      row += run.count();
    }
    begin += row;
  }
  rows.begins.push_back(begin);
  return rows;
}

/// Rows [begin, end) of one rank that are drawn as one cell, and the ids of the first and last one.
struct RankCell {
  int64_t begin = 0, end = 0;
  int32_t rank = 0;
  int64_t first = 0, last = 0;
  bool has_token = false;
};

/// Cells of nearly equal height that no border of two ranks cuts.
std::vector<RankCell> cut_ranks(const PlanIndex& index, Side side, const RankRows& rows,
                                const Axis& axis) {
  const int64_t all = rows.begins.back();
  const auto lo = std::clamp<int64_t>(static_cast<int64_t>(std::floor(axis.lo())), 0, all);
  const auto hi = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(axis.hi())), lo, all);
  const auto most = std::min<int64_t>(
      kMostCells, std::max<int64_t>(16, std::llround(std::abs(axis.end() - axis.begin()))));
  const int64_t width = std::max<int64_t>(1, (hi - lo + most - 1) / most);
  std::vector<RankCell> cells;
  for (int64_t row = lo; row < hi;) {
    RankCell cell;
    cell.begin = row;
    cell.rank = rows.rank_of(row);
    cell.end = std::min({row + width, rows.begins[static_cast<size_t>(cell.rank) + 1], hi});
    cell.first = rows.token_of(cell.begin);
    cell.last = rows.token_of(cell.end - 1);
    cell.has_token = index.is_valid(side, cell.first) || index.is_valid(side, cell.last);
    cells.push_back(cell);
    row = cell.end;
  }
  return cells;
}

/// Which pairs of two cells are visible: exact where both hold consecutive tokens, else by the
/// pairs of their ends.
CellLook look_of_pair(const PlanIndex& index, const RankCell& q, const RankCell& k) {
  if (!q.has_token || !k.has_token) return CellLook::padding;
  const int64_t rows = q.end - q.begin, columns = k.end - k.begin;
  if (q.last - q.first + 1 == rows && k.last - k.first + 1 == columns) {
    const int64_t count = index.count_visible(q.first, q.last + 1, k.first, k.last + 1);
    if (count == 0) return CellLook::empty;
    return count == rows * columns ? CellLook::full : CellLook::partial;
  }
  int32_t seen = 0;
  for (const int64_t query : {q.first, q.last})
    for (const int64_t key : {k.first, k.last})
      seen += index.count_visible(query, query + 1, key, key + 1) > 0 ? 1 : 0;
  return seen == 0 ? CellLook::empty : seen == 4 ? CellLook::full : CellLook::partial;
}

/// [query rank][key rank] who computes them, and in which steps.
std::vector<CellWork> find_block_work(const PlanIndex& index, Direction direction) {
  const Plan& plan = index.plan();
  const auto ranks = static_cast<size_t>(index.num_ranks());
  std::vector<CellWork> blocks(ranks * ranks);
  std::map<std::pair<RunListId, bool>, std::vector<int32_t>> owners;
  const auto owners_of_list = [&](RunListId list, Side side) -> const std::vector<int32_t>& {
    const auto [it, is_new] = owners.try_emplace({list, side == Side::kv});
    if (is_new) it->second = owners_of(index, plan.list(list), side);
    return it->second;
  };
  const auto& items = index.pass(direction).computes;
  for (size_t n = 0; n < items.size(); ++n) {
    const ComputeItem& item = items[n];
    if (item.num_slices == 0) continue;
    const int32_t step = to_index(item.step), rank = to_index(item.rank);
    for (const int32_t q : owners_of_list(item.q_tokens, Side::q)) {
      for (const int32_t k : owners_of_list(item.kv_tokens, Side::kv)) {
        CellWork& work = blocks[static_cast<size_t>(q) * ranks + static_cast<size_t>(k)];
        const bool is_first = !work.has_work();
        work.first_step = is_first ? step : std::min(work.first_step, step);
        work.last_step = is_first ? step : std::max(work.last_step, step);
        work.first_rank = is_first ? rank : std::min(work.first_rank, rank);
        work.last_rank = is_first ? rank : std::max(work.last_rank, rank);
        work.item = is_first ? static_cast<int64_t>(n) : CellWork::kManyItems;
      }
    }
  }
  return blocks;
}

/// What a camera shows, at every moment.
struct RankPicture {
  RankRows q_rows, k_rows;
  std::vector<RankCell> q, k;
  std::vector<CellLook> looks;   // [row][column]
  std::vector<CellWork> blocks;  // [query rank][key rank]
  bool is_exact = true;          // no cell was judged by the pairs of its ends
};

RankPicture make_rank_picture(const PlanIndex& index, const Axis& q, const Axis& k,
                              Direction direction) {
  RankPicture picture;
  picture.q_rows = make_rows(index, Side::q);
  picture.k_rows = make_rows(index, Side::kv);
  picture.q = cut_ranks(index, Side::q, picture.q_rows, q);
  picture.k = cut_ranks(index, Side::kv, picture.k_rows, k);
  picture.blocks = find_block_work(index, direction);
  const auto is_whole = [](const RankCell& cell) {
    return cell.last - cell.first == cell.end - cell.begin - 1;
  };
  picture.is_exact = std::all_of(picture.q.begin(), picture.q.end(), is_whole) &&
                     std::all_of(picture.k.begin(), picture.k.end(), is_whole);
  picture.looks.reserve(picture.q.size() * picture.k.size());
  for (const RankCell& row : picture.q)
    for (const RankCell& column : picture.k)
      picture.looks.push_back(look_of_pair(index, row, column));
  return picture;
}

/// The picture and its geometry.
struct RankScene {
  const ViewInput& input;
  const RankPicture& picture;
  const MaskPaint& paint;
  const Axis &q, &k;
  Box square;
  StepWindow window;

  int32_t num_ranks() const { return input.plan->num_ranks(); }
  const CellWork& work(int32_t q_rank, int32_t k_rank) const {
    return picture.blocks[static_cast<size_t>(q_rank) * static_cast<size_t>(num_ranks()) +
                          static_cast<size_t>(k_rank)];
  }
  /// The shown part of a block; empty when none of it is shown.
  Box block(int32_t q_rank, int32_t k_rank) const {
    const auto at = [](const Axis& axis, const RankRows& rows, int32_t rank) {
      return std::pair{
          std::max(axis.begin(), axis.pixel_of(static_cast<double>(rows.begins[rank]))),
          std::min(axis.end(), axis.pixel_of(static_cast<double>(rows.begins[rank + 1])))};
    };
    const auto [y0, y1] = at(q, picture.q_rows, q_rank);
    const auto [x0, x1] = at(k, picture.k_rows, k_rank);
    return {x0, y0, x1, y1};
  }
};

/// Cells of different heights as pixels of one: every row of screen pixels finds its cell.
void add_cells(Drawing& drawing, const RankScene& scene) {
  const RankPicture& picture = scene.picture;
  if (picture.q.empty() || picture.k.empty()) return;
  const auto spread = [](const Axis& axis, const std::vector<RankCell>& cells) {
    // Few cells have sharp borders; many are as fine as the picture.
    const bool is_fine = static_cast<int64_t>(cells.size()) > kMostCells / 2;
    const double most = static_cast<double>(is_fine ? kMostCells : 2 * kMostCells);
    const auto pixels =
        static_cast<int32_t>(std::clamp<double>(std::abs(axis.end() - axis.begin()), 1, most));
    std::vector<size_t> of(static_cast<size_t>(pixels));
    size_t cell = 0;
    for (size_t p = 0; p < of.size(); ++p) {
      const double row = axis.lo() + (axis.hi() - axis.lo()) * (static_cast<double>(p) + 0.5) /
                                         static_cast<double>(pixels);
      while (cell + 1 < cells.size() && row >= static_cast<double>(cells[cell].end)) ++cell;
      of[p] = cell;
    }
    return of;
  };
  const std::vector<size_t> rows = spread(scene.q, picture.q), columns = spread(scene.k, picture.k);
  Pixels pixels;
  pixels.width = static_cast<int32_t>(columns.size());
  pixels.height = static_cast<int32_t>(rows.size());
  pixels.box = scene.square;
  pixels.colors.reserve(rows.size() * columns.size());
  for (const size_t row : rows) {
    const RankCell& q = picture.q[row];
    const auto& begins = picture.q_rows.begins;
    const int64_t first = begins[static_cast<size_t>(q.rank)];
    const double place =
        static_cast<double>(q.begin - first) /
        static_cast<double>(std::max<int64_t>(1, begins[static_cast<size_t>(q.rank) + 1] - first));
    for (const size_t column : columns) {
      const RankCell& k = picture.k[column];
      const CellLook look = picture.looks[row * picture.k.size() + column];
      const CellWork& work = scene.work(q.rank, k.rank);
      pixels.colors.push_back(
          color_of_cell(scene.input, scene.paint, scene.window, look, work,
                        time_in_motion(work, scene.window, place, scene.input.progress), q.rank));
    }
  }
  drawing.add(std::move(pixels));
}

void add_rank_lines(Drawing& drawing, const RankScene& scene) {
  const Color color = scene.input.theme->of(Role::text).with_alpha(120);
  for (const Side side : {Side::q, Side::kv}) {
    const Axis& axis = side == Side::q ? scene.q : scene.k;
    const RankRows& rows = side == Side::q ? scene.picture.q_rows : scene.picture.k_rows;
    float last = -1e9F;
    for (const int64_t begin : rows.begins) {
      const float at = axis.pixel_of(static_cast<double>(begin));
      if (at <= axis.begin() || at >= axis.end() || at - last < kLeastRankLine) continue;
      last = at;
      if (side == Side::q)
        drawing.add(Line{{scene.square.x0, at}, {scene.square.x1, at}, color, 1});
      else
        drawing.add(Line{{at, scene.square.y0}, {at, scene.square.y1}, color, 1});
    }
  }
}

bool is_lit(const RankScene& scene, const Target& target, int32_t q_rank, int32_t k_rank) {
  if (const auto* item = std::get_if<ItemId>(&target))
    return item->kind == StageKind::compute && scene.work(q_rank, k_rank).item == item->index;
  if (const auto* rank = std::get_if<RankTarget>(&target)) return rank->rank == q_rank;
  const auto* link = std::get_if<LinkTarget>(&target);
  return link != nullptr && link->dst == q_rank && link->src == k_rank;
}

std::string describe_block(const RankScene& scene, Direction direction, int32_t q, int32_t k) {
  const CellWork& work = scene.work(q, k);
  return fmt::format("queries of rank {} x keys of rank {}: {}", q, k,
                     work.has_work() ? describe_work(work, direction) : "no pair is computed");
}

/// Adds the steps in blocks with room, outlines of what is computed now, lit or selected, and hit
/// regions. Returns the number of steps that were written.
int64_t add_blocks(const RankScene& scene, Direction direction, View& view) {
  const int64_t ranks = scene.num_ranks();
  if (ranks * ranks > kMostBlockHits) return 0;
  const Theme& theme = *scene.input.theme;
  int64_t labels = 0;
  for (int32_t q = 0; q < ranks; ++q) {
    for (int32_t k = 0; k < ranks; ++k) {
      const Box box = scene.block(q, k);
      if (box.width() < kLeastBlockHit || box.height() < kLeastBlockHit) continue;
      const CellWork& work = scene.work(q, k);
      const CellTime time = time_of(work, scene.window);
      Target target = RankTarget{q};
      if (work.item >= 0) target = ItemId{direction, StageKind::compute, work.item};
      view.hits.push_back(
          {box, target, fmt::format("block/{}/{}", q, k), describe_block(scene, direction, q, k)});
      if (scene.window.num_steps > 1 && work.has_work() && time.when == PaintWhen::now)
        view.drawing.add(OutlinedBox{box.inset(0.5F), theme.of(Role::text), 1});
      if (is_lit(scene, scene.input.selection, q, k))
        view.drawing.add(OutlinedBox{box.inset(1), theme.of(Role::selected), 2});
      if (!work.has_work() || work.first_step != work.last_step || scene.window.num_steps < 2 ||
          std::min(box.width(), box.height()) < kLeastLabel)
        continue;
      const std::string text = fmt::format("{}", work.first_step + 1);
      const Color fill =
          color_of_cell(scene.input, scene.paint, scene.window, CellLook::full, work, time, q);
      const float size = std::clamp(std::min(box.width(), box.height()) * 0.3F, 9.0F, 15.0F);
      const float wide = scene.input.text_width(text, size, Face::strong);
      const Point at = box.center();
      view.drawing.add(FilledBox{
          {at.x - wide / 2 - 3, at.y - size / 2 - 1, at.x + wide / 2 + 3, at.y + size / 2 + 1},
          fill,
          Hatch::none,
          {},
          3});
      view.drawing.add(
          Label{at, Anchor::center_middle, theme.text_on(fill), size, Face::strong, text});
      ++labels;
    }
  }
  return labels;
}

/// The ranks along an edge of the square.
void add_rank_strip(Drawing& drawing, const RankScene& scene, Side side, const Box& strip) {
  const Axis& axis = side == Side::q ? scene.q : scene.k;
  const RankRows& rows = side == Side::q ? scene.picture.q_rows : scene.picture.k_rows;
  const Theme& theme = *scene.input.theme;
  float last = -1e9F;
  for (int32_t rank = 0; rank < scene.num_ranks(); ++rank) {
    const float from =
        std::max(axis.begin(), axis.pixel_of(static_cast<double>(rows.begins[rank])));
    const float to =
        std::min(axis.end(), axis.pixel_of(static_cast<double>(rows.begins[rank + 1])));
    if (to - last < 1 || to <= from) continue;
    last = to;
    const Box box =
        side == Side::q ? Box{strip.x0, from, strip.x1, to} : Box{from, strip.y0, to, strip.y1};
    const Color color = theme.of_rank(rank, scene.num_ranks());
    drawing.add(FilledBox{box, color});
    const std::string text = fmt::format("{}", rank);
    if (scene.input.text_width(text, kRankText, Face::mono) + 2 <= box.width() &&
        kRankText <= box.height())
      drawing.add(Label{box.center(), Anchor::center_middle, theme.text_on(color), kRankText,
                        Face::mono, text});
  }
}

std::vector<LegendEntry> make_rank_legend(const RankScene& scene, int64_t labels) {
  const Theme& theme = *scene.input.theme;
  const MaskPaint& paint = scene.paint;
  std::vector<LegendEntry> entries;
  entries.push_back(mask_text("tokens of each rank together, in its local order", true, true));
  entries.push_back(mask_sample("visible", paint, CellLook::full, PaintWhen::done, theme));
  entries.back().starts_line = true;
  // Other colours only fade cells that are visible in part.
  if (scene.input.mask_colors == MaskColors::classes) {
    entries.push_back(mask_sample("partly", paint, CellLook::partial, PaintWhen::done, theme));
    entries.back().hatch = Hatch::none;
  }
  entries.push_back(mask_sample("not visible", paint, CellLook::empty, PaintWhen::done, theme));
  entries.push_back(mask_sample("padding", paint, CellLook::padding, PaintWhen::done, theme));
  entries.back().hatch = Hatch::none;
  add_time_samples(scene.input, paint, entries);
  if (labels > 0) entries.push_back(faint_mask_text("numbers: the step that computes the block"));
  if (!scene.picture.is_exact)
    entries.push_back(faint_mask_text(
        "A cell of several tokens is judged by the pairs of its first and last ones.", true));
  return entries;
}

/// The picture of these axes; while it is being made, the last one of the plan and pass, whose
/// cells still have the right rows; null before the first one.
std::shared_ptr<const RankPicture> find_rank_picture(const ViewInput& input, const Axis& q,
                                                     const Axis& k, Direction direction) {
  constexpr int64_t kManyTokens = 1 << 13;  // more take longer than a frame
  const PlanIndex& index = *input.plan;
  const bool is_long =
      index.is_large() || index.tokens(Side::q) + index.tokens(Side::kv) > kManyTokens;
  const std::string of = fmt::format("rank mask {:x} {} ", index.plan().hash, to_name(direction));
  const std::string key = fmt::format("{}{} {} {} {} {} {} {} {}", of, q.lo(), q.hi(), q.begin(),
                                      q.end(), k.lo(), k.hi(), k.begin(), k.end());
  auto made = remember<RankPicture>(input.memo, key, is_long, [plan = input.plan, q, k, direction] {
    return std::make_shared<RankPicture>(make_rank_picture(*plan, q, k, direction));
  });
  if (made == nullptr && input.memo->key.starts_with(of))
    made = std::static_pointer_cast<const RankPicture>(input.memo->value);
  return made;
}

}  // namespace

void add_rank_mask(const ViewInput& input, const MaskFrame& frame, const Axis& q, const Axis& k,
                   Direction direction, View& view) {
  const auto picture = find_rank_picture(input, q, k, direction);
  if (picture == nullptr) {
    add_sentence(view.drawing, input, {0, 0, input.size.width, input.size.height},
                 "Ordering the tokens by rank.");
    return;
  }
  const MaskPaint paint(*input.theme);
  const RankScene scene{input,
                        *picture,
                        paint,
                        q,
                        k,
                        frame.square,
                        find_window(*input.plan, direction, input.moment)};
  view.drawing.add(PushClip{frame.square});
  view.drawing.add(FilledBox{frame.square, input.theme->of(Role::background)});
  add_cells(view.drawing, scene);
  add_rank_lines(view.drawing, scene);
  const int64_t labels = add_blocks(scene, direction, view);
  view.drawing.add(PopClip{});
  add_rank_strip(view.drawing, scene, Side::q, frame.left_strip);
  add_rank_strip(view.drawing, scene, Side::kv, frame.top_strip);
  view.drawing.add(OutlinedBox{frame.square, input.theme->of(Role::border), 1});
  add_mask_axis_names(view.drawing, input, frame);
  const auto entries = make_rank_legend(scene, labels);
  if (frame.has_side)
    add_legend_column(view.drawing, input, frame.text, entries);
  else
    add_legend_flow(view.drawing, input, frame.text, entries);
  view.scaled.push_back(frame.square);
  view.title = with_round("Mask in rank order: which pairs of ranks are computed, and when",
                          *input.plan, input.moment);
  view.scale = print_scale(k.units_per_pixel(), "token");
}

}  // namespace cpscope::gui
