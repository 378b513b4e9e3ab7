#include "gui/model/mask/mask_picture.h"

#include "gui/model/chunk_cut.h"
#include "gui/model/list_hits.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kMostChunks = 160;   // limit for each side
constexpr size_t kMostHits = 1600;    // limit of chunk pairs with a hit region
constexpr double kLeastChunkHit = 8;  // minimum pixels of a chunk pair with a hit region
constexpr double kFewChunks = 3;      // with fewer chunks in view, tiles colour the cells

/// The whole ids that an axis shows.
IdRange shown_ids(const Axis& axis, int64_t tokens) {
  const auto begin = static_cast<int64_t>(std::floor(std::max(axis.lo(), 0.0)));
  const auto end =
      static_cast<int64_t>(std::ceil(std::min(axis.hi(), static_cast<double>(tokens))));
  return {std::min(begin, tokens), std::clamp<int64_t>(end, 0, tokens)};
}

/// Cells of equal width, at least one pixel and one id wide, that begin at a multiple of their
/// width.
CellAxis cut_cells(const Axis& axis, IdRange ids, int64_t tokens, double& step) {
  CellAxis cells;
  if (ids.begin >= ids.end) return cells;
  const double pixels = std::abs(double{axis.end()} - double{axis.begin()});
  const int64_t most = std::clamp<int64_t>(std::llround(pixels), 16, kMostCells);
  // One cell may extend beyond each end.
  const int64_t width = std::max<int64_t>(1, (ids.end - ids.begin + most - 3) / (most - 2));
  for (int64_t id = ids.begin / width * width; id < ids.end; id += width) cells.edges.push_back(id);
  cells.edges.push_back(std::min(tokens, cells.edges.back() + width));
  step = static_cast<double>(width);
  return cells;
}

/// The tiles that touch the ids.
CellAxis cut_tiles(IdRange ids, int64_t tokens) {
  CellAxis tiles;
  for (int64_t id = ids.begin / kTileEdge * kTileEdge; id < ids.end; id += kTileEdge)
    tiles.edges.push_back(id);
  if (!tiles.edges.empty()) tiles.edges.push_back(std::min(tokens, tiles.edges.back() + kTileEdge));
  return tiles;
}

void add_work(const PlanIndex& index, Direction direction, MaskGrid& grid) {
  auto& work = grid.work[direction];
  if (!work && grid.grid.cells() > 0)
    work = std::make_shared<const WorkMap>(find_work(index, grid.grid, grid.counts, direction));
}

MaskGrid make_grid(const PlanIndex& index, PairGrid grid) {
  MaskGrid made;
  made.grid = std::move(grid);
  made.counts = count_cells(index, made.grid);
  made.classes = classify_cells(index, made.grid, made.counts);
  return made;
}

double mean_pixels(const Axis& axis, const CellAxis& cells) {
  if (cells.count() == 0) return 0;
  return static_cast<double>(cells.end() - cells.begin()) / static_cast<double>(cells.count()) *
         axis.pixels_per_unit();
}

/// The index of the unit around each cell of an axis; -1 if the cell extends into two units.
std::vector<int64_t> units_around(const CellAxis& cells, const CellAxis& units) {
  std::vector<int64_t> numbers;
  for (int64_t c = 0; c < cells.count(); ++c) {
    const int64_t first = cells.edges[c], last = cells.edges[c + 1] - 1;
    if (first < units.begin() || last >= units.end()) {
      numbers.push_back(-1);
      continue;
    }
    const int64_t unit = units.cell_of(first);
    numbers.push_back(last < units.edges[unit + 1] ? unit : -1);
  }
  return numbers;
}

CellLook look_of(CellClass own, int64_t count, CellClass unit) {
  if (own == CellClass::padding) return CellLook::padding;
  if (unit == CellClass::partial) return count > 0 ? CellLook::partial : CellLook::hidden;
  return static_cast<CellLook>(own);
}

void choose_looks(MaskPicture& picture) {
  const MaskGrid& cells = picture.cells;
  const MaskGrid* units = picture.unit == MaskUnit::chunk  ? &picture.chunks
                          : picture.unit == MaskUnit::tile ? &picture.tiles
                                                           : &cells;
  const std::vector<int64_t> rows = units_around(cells.grid.q, units->grid.q);
  const std::vector<int64_t> columns = units_around(cells.grid.k, units->grid.k);
  picture.looks.resize(cells.counts.size());
  for (int64_t row = 0; row < cells.grid.rows(); ++row) {
    for (int64_t column = 0; column < cells.grid.columns(); ++column) {
      const auto at = static_cast<size_t>(cells.grid.at(row, column));
      const bool has_unit = rows[row] >= 0 && columns[column] >= 0;
      const CellClass unit =
          has_unit ? units->classes[units->grid.at(rows[row], columns[column])] : cells.classes[at];
      picture.looks[at] = look_of(cells.classes[at], cells.counts[at], unit);
    }
  }
}

std::string_view name_of(CellClass value) {
  switch (value) {
    case CellClass::empty:
      return "no pair visible";
    case CellClass::partial:
      return "partly visible";
    case CellClass::full:
      return "all visible";
    case CellClass::padding:
      return "padding only";
  }
  return "";
}

std::string print_owner(const PlanIndex& index, Side side, int64_t id) {
  if (index.are_heads_owned(side)) return "every rank";
  const int32_t rank = index.owner(side, id).rank;
  return rank < 0 ? std::string("no rank") : fmt::format("rank {}", rank);
}

std::string describe_chunks(const PlanIndex& index, const MaskGrid& chunks, int64_t row,
                            int64_t column, Direction direction) {
  const auto at = static_cast<size_t>(chunks.grid.at(row, column));
  const CellAxis &q = chunks.grid.q, &k = chunks.grid.k;
  std::string text =
      fmt::format("queries [{}, {}) of {} x keys [{}, {}) of {}: {} ({} of {} pairs)", q.edges[row],
                  q.edges[row + 1], print_owner(index, Side::q, q.edges[row]), k.edges[column],
                  k.edges[column + 1], print_owner(index, Side::kv, k.edges[column]),
                  name_of(chunks.classes[at]), print_count(chunks.counts[at]),
                  print_count(chunks.grid.area(row, column)));
  const CellWork& work = chunks.work[direction]->cells[at];
  return work.has_work() ? text + "; " + describe_work(work, direction) : text;
}

void add_hits(const PlanIndex& index, const Axis& q_axis, const Axis& k_axis, Direction direction,
              MaskPicture& picture) {
  const MaskGrid& chunks = picture.chunks;
  std::vector<HitRegion>& hits = picture.hits[direction];
  if (mean_pixels(q_axis, chunks.grid.q) < kLeastChunkHit ||
      mean_pixels(k_axis, chunks.grid.k) < kLeastChunkHit ||
      chunks.grid.cells() > static_cast<int64_t>(kMostHits) || chunks.grid.cells() == 0)
    return;
  const CellAxis &q = chunks.grid.q, &k = chunks.grid.k;
  for (int64_t row = 0; row < q.count(); ++row) {
    for (int64_t column = 0; column < k.count(); ++column) {
      HitRegion hit;
      hit.box = {std::max(k_axis.begin(), k_axis.pixel_of(static_cast<double>(k.edges[column]))),
                 std::max(q_axis.begin(), q_axis.pixel_of(static_cast<double>(q.edges[row]))),
                 std::min(k_axis.end(), k_axis.pixel_of(static_cast<double>(k.edges[column + 1]))),
                 std::min(q_axis.end(), q_axis.pixel_of(static_cast<double>(q.edges[row + 1])))};
      if (hit.box.width() < 2 || hit.box.height() < 2) continue;
      const CellWork& work = chunks.work[direction]->cells[chunks.grid.at(row, column)];
      hit.target = PairRange{q.edges[row], q.edges[row + 1], k.edges[column], k.edges[column + 1]};
      if (work.item >= 0) hit.target = ItemId{direction, StageKind::compute, work.item};
      hit.name = fmt::format("pair/{}/{}", q.edges[row], k.edges[column]);
      hit.tooltip = describe_chunks(index, chunks, row, column, direction);
      hits.push_back(std::move(hit));
    }
  }
}

/// Chooses the chunks and tiles that are large enough to be visible, and which of them colour the
/// cells.
void choose_blocks(const PlanIndex& index, const Axis& q_axis, const Axis& k_axis, IdRange q,
                   IdRange k, MaskPicture& picture) {
  const PairGrid chunks{{cut_chunks(index, Side::q, q.begin, q.end, kMostChunks)},
                        {cut_chunks(index, Side::kv, k.begin, k.end, kMostChunks)}};
  const double chunk = std::min(mean_pixels(q_axis, chunks.q), mean_pixels(k_axis, chunks.k));
  if (chunk >= kLeastBlock) picture.chunks = make_grid(index, chunks);
  const double tile = kTileEdge * std::min(q_axis.pixels_per_unit(), k_axis.pixels_per_unit());
  if (tile >= kLeastBlock && q.begin < q.end && k.begin < k.end)
    picture.tiles = make_grid(
        index, {cut_tiles(q, index.tokens(Side::q)), cut_tiles(k, index.tokens(Side::kv))});
  const auto pixels = static_cast<double>(q_axis.end() - q_axis.begin());
  const bool has_chunks = picture.chunks.grid.cells() > 0 && !picture.is_strided;
  const bool has_tiles = picture.tiles.grid.cells() > 0;
  if (has_chunks && (chunk * kFewChunks <= pixels || !has_tiles))
    picture.unit = MaskUnit::chunk;
  else if (has_tiles)
    picture.unit = MaskUnit::tile;
}

std::vector<int32_t> find_cell_owners(const PlanIndex& index, Side side, const CellAxis& cells) {
  std::vector<int32_t> owners;
  for (int64_t c = 0; c < cells.count(); ++c)
    owners.push_back(index.owner(side, (cells.edges[c] + cells.edges[c + 1]) / 2).rank);
  return owners;
}

MaskPicture make_picture(const PlanIndex& index, const Axis& q_axis, const Axis& k_axis) {
  MaskPicture picture;
  const IdRange q = shown_ids(q_axis, index.tokens(Side::q));
  const IdRange k = shown_ids(k_axis, index.tokens(Side::kv));
  picture.is_strided = has_strides(index, Side::q) || has_strides(index, Side::kv);
  PairGrid cells{cut_cells(q_axis, q, index.tokens(Side::q), picture.q_step),
                 cut_cells(k_axis, k, index.tokens(Side::kv), picture.k_step)};
  picture.cells = make_grid(index, std::move(cells));
  choose_blocks(index, q_axis, k_axis, q, k, picture);
  choose_looks(picture);
  picture.owners = {find_cell_owners(index, Side::q, picture.cells.grid.q),
                    find_cell_owners(index, Side::kv, picture.cells.grid.k)};
  picture.plan_hash = index.plan().hash;
  return picture;
}

/// Makes a new picture, or adds the work of another pass to the known one of these axes. `known`
/// may be null.
std::shared_ptr<const MaskPicture> extend_picture(const PlanIndex& index, const Axis& q,
                                                  const Axis& k, Direction direction, bool is_same,
                                                  const std::shared_ptr<const MaskPicture>& known) {
  auto picture = std::make_shared<MaskPicture>(is_same ? *known : make_picture(index, q, k));
  if (!is_same) picture->counts = known ? known->counts : count_tiles(index, kTileEdge);
  add_work(index, direction, picture->cells);
  add_work(index, direction, picture->chunks);
  add_hits(index, q, k, direction, *picture);
  return picture;
}

}  // namespace

MaskFinding find_mask_picture(const ViewInput& input, const Axis& q, const Axis& k,
                              Direction direction) {
  const std::string axes =
      fmt::format("mask {:x} {} {} {} {} {} {} {} {}", input.plan->plan().hash, q.lo(), q.hi(),
                  q.begin(), q.end(), k.lo(), k.hi(), k.begin(), k.end());
  // The last picture of this plan. One picture holds both passes of the same axes.
  std::shared_ptr<const MaskPicture> known;
  std::string key = fmt::format("{} {}", axes, to_name(direction));
  bool is_same = false;
  if (input.memo != nullptr) {
    input.memo->take_news();
    if (input.memo->key.starts_with("mask "))
      known = std::static_pointer_cast<const MaskPicture>(input.memo->value);
    if (known && known->plan_hash != input.plan->plan().hash) known.reset();
    is_same = known && input.memo->key.starts_with(axes + " ");
    if (is_same && (known->cells.work[direction] || known->cells.grid.cells() == 0))
      key = input.memo->key;
  }
  auto picture =
      remember<MaskPicture>(input.memo, key, input.plan->is_large(),
                            [plan = input.plan, q, k, direction, is_same, known] {
                              return extend_picture(*plan, q, k, direction, is_same, known);
                            });
  if (picture != nullptr) return {picture, true};
  return {known, false};
}

}  // namespace cpscope::gui
