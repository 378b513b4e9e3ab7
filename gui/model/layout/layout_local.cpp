#include "gui/model/describe.h"
#include "gui/model/layout/layout_scene.h"
#include "gui/model/light.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kLeastRow = 11;  // minimum height of a row with a title
constexpr float kHeatRow = 4;    // below this height, rows are drawn as pixels
constexpr uint8_t kStrong = 150, kFaint = 52;

/// Local rows that hold the shown tokens, over all ranks: the range of the local axes.
std::pair<int64_t, int64_t> shown_rows(const LayoutScene& scene) {
  const PlaceMap& map = scene.map;
  const auto lo = static_cast<int64_t>(std::floor(std::max(0.0, scene.packed.lo())));
  const auto hi =
      static_cast<int64_t>(std::ceil(std::min(static_cast<double>(map.tokens), scene.packed.hi())));
  if (lo <= 0 && hi >= map.tokens) return {0, std::max<int64_t>(1, map.most_rows)};
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  const auto take = [&](int64_t begin_row, int64_t end_row) {
    first = std::min(first, begin_row);
    last = std::max(last, end_row);
  };
  auto it = std::partition_point(map.packed.begin(), map.packed.end(),
                                 [&](const PackedPart& p) { return p.end <= lo; });
  for (; it != map.packed.end() && it->begin < hi; ++it) {
    if (!it->is_comb()) {
      take(it->row + std::max<int64_t>(0, lo - it->begin),
           it->row + std::min(it->end, hi) - it->begin);
      continue;
    }
    const auto runs = scene.input.plan->owned(map.side).subspan(static_cast<size_t>(it->first_run),
                                                                static_cast<size_t>(it->num_runs));
    for (const OwnedRun& o : runs) {
      const auto row_at = [&o](int64_t token) {
        const int64_t ahead = std::max<int64_t>(0, token - o.run.begin);
        return std::min(o.run.count(), (ahead + o.run.stride - 1) / o.run.stride);
      };
      if (row_at(lo) < row_at(hi)) take(o.row + row_at(lo), o.row + row_at(hi));
    }
  }
  if (first >= last) return {0, std::max<int64_t>(1, map.most_rows)};
  return {first, last};
}

/// The arrangement of the local buffers.
struct LocalFrame {
  bool is_staircase = false;  // few ranks: each under its share of the width, ribbons side by side
  Axis ranks;                 // ranks to pixels, downwards: all rows, or the overview
  int64_t first_row = 0, end_row = 1;
  Box focus;  // the focus rank's row above the overview; empty in a staircase
  Box all;
};

/// The axis from rows [first_row, end_row) of a rank to pixels.
Axis row_axis(const LayoutScene& scene, const LocalFrame& frame, int32_t rank) {
  const float x0 = scene.packed.begin(), x1 = scene.packed.end();
  const auto most = static_cast<double>(std::max<int64_t>(1, scene.map.most_rows));
  const AxisSpan span{static_cast<double>(frame.first_row) / most,
                      static_cast<double>(frame.end_row) / most};
  if (!frame.is_staircase) return Axis(most, span, x0, x1);
  const float slot = (x1 - x0) / static_cast<float>(scene.map.num_ranks);
  const float gap = std::min(6.0F, slot * 0.06F);
  const float begin = x0 + slot * static_cast<float>(rank);
  return Axis(most, span, begin + gap / 2, begin + slot - gap / 2);
}

Box row_box(const LocalFrame& frame, int32_t rank) {
  const float y0 = frame.ranks.pixel_of(rank), y1 = frame.ranks.pixel_of(rank + 1.0);
  const float gap = std::min(4.0F, (y1 - y0) * 0.15F);
  return {frame.all.x0, y0 + gap / 2, frame.all.x1, y1 - gap / 2};
}

/// Colour of local rows: by rank if few ranks are drawn next to each other, otherwise by their
/// position in the packed order.
Color local_color(const LayoutScene& scene, const LocalFrame& frame, const LocalPart& part) {
  if (frame.is_staircase) return scene.rank_color(part.rank);
  const double middle = static_cast<double>(part.token) +
                        static_cast<double>(part.rows) * static_cast<double>(part.stride) / 2;
  return scene.theme().of_quantity(middle /
                                   static_cast<double>(std::max<int64_t>(1, scene.map.tokens)));
}

void add_local_part(LayoutScene& scene, const LocalFrame& frame, const Axis& axis,
                    const LocalPart& part, float y0, float y1, std::string_view prefix) {
  const auto first = static_cast<double>(part.row);
  const Box box = cut_box(axis, first, first + static_cast<double>(part.rows), y0, y1);
  if (box.x0 >= box.x1) return;
  const Color fill = local_color(scene, frame, part);
  Box inner = box;
  if (inner.width() >= 4) inner.x1 -= 1;
  scene.drawing().add(FilledBox{inner, fill});
  Box valid = box;
  size_t paddings = 0;
  for (const auto& [begin, end] : padding_rows(scene.map, part)) {
    const Box dots =
        cut_box(axis, first + static_cast<double>(begin), first + static_cast<double>(end), y0, y1);
    add_padding(scene, dots);
    if (part.stride == 1 && dots.x0 < dots.x1) {
      if (begin == 0)
        valid.x0 = dots.x1;
      else
        valid.x1 = std::max(valid.x0, dots.x0);
    }
    if (++paddings > 200) break;
  }
  const int64_t end_token = part.token + part.rows;
  const std::string ids =
      part.stride == 1 ? print_tokens(scene.map, part.token, end_token)
                       : fmt::format("{}, {} .. {}", print_count(part.token),
                                     print_count(part.token + part.stride),
                                     print_count(part.token + (part.rows - 1) * part.stride));
  const std::vector<std::string> texts = {
      ids, print_tokens(scene.map, part.token, part.token + 1) + " .."};
  add_fitting(scene, valid, scene.theme().text_on(fill), scene.small, Face::mono, texts);
  add_light(scene.drawing(), scene.theme(), box,
            light_of(scene, part.token, part.rows, part.stride));
  Target target = TokenRange{scene.map.side, part.token, end_token};
  if (part.stride > 1) target = RankTarget{part.rank};
  scene.view.hits.push_back(
      {box, target, fmt::format("{}/{}/{}/{}", prefix, scene.side_name(), part.rank, part.row),
       describe_local(scene.map, part)});
}

void add_local_band(LayoutScene& scene, const LocalFrame& frame, const Axis& axis,
                    std::span<const LocalPart> parts, float y0, float y1, std::string_view prefix) {
  const LocalPart& front = parts.front();
  const int64_t end_row = parts.back().row + parts.back().rows;
  const Box box =
      cut_box(axis, static_cast<double>(front.row), static_cast<double>(end_row), y0, y1);
  if (box.x0 >= box.x1) return;
  scene.drawing().add(FilledBox{box, local_color(scene, frame, parts[parts.size() / 2])});
  int64_t padding = 0;
  for (const LocalPart& part : parts)
    for (const auto& [begin, end] : padding_rows(scene.map, part)) padding += end - begin;
  if (padding > 0) {
    const auto share = static_cast<float>(padding) / static_cast<float>(end_row - front.row);
    const float height = keep_between(share * box.height(), 2.0F, box.height());
    add_padding(scene, {box.x0, box.y1 - height, box.x1, box.y1});
  }
  scene.view.hits.push_back(
      {box, RankTarget{front.rank},
       fmt::format("{}-band/{}/{}/{}", prefix, scene.side_name(), front.rank, front.row),
       fmt::format("rank {}: {} chunks in local rows {}\n{} padding", front.rank, parts.size(),
                   print_range(front.row, end_row), print_count(padding))});
}

/// Adds one rank's buffer between y0 and y1.
void add_local_row(LayoutScene& scene, const LocalFrame& frame, int32_t rank, float y0, float y1,
                   double least_pixels, std::string_view prefix) {
  const Axis axis = row_axis(scene, frame, rank);
  const std::span<const LocalPart> parts = scene.map.local_of(rank);
  const auto begin = [&](size_t i) { return parts[i].row; };
  const auto end = [&](size_t i) { return parts[i].row + parts[i].rows; };
  for (const Fold& fold : fold_narrow(parts.size(), axis.lo(), axis.hi(),
                                      least_pixels * axis.units_per_pixel(), begin, end)) {
    if (fold.count == 1)
      add_local_part(scene, frame, axis, parts[fold.first], y0, y1, prefix);
    else
      add_local_band(scene, frame, axis, parts.subspan(fold.first, fold.count), y0, y1, prefix);
  }
}

std::string rank_hit_name(const LayoutScene& scene, int32_t rank) {
  return scene.map.side == Side::q ? fmt::format("rank/{}", rank) : fmt::format("rank/kv/{}", rank);
}

void add_rank_hit(LayoutScene& scene, const Box& lane, int32_t rank) {
  const auto r = static_cast<size_t>(rank);
  scene.view.hits.push_back(
      {{scene.left, lane.y0, scene.right, lane.y1},
       RankTarget{rank},
       rank_hit_name(scene, rank),
       fmt::format("rank {}: {} local rows, {} valid, {} padding", rank,
                   print_count(scene.map.rows_of_rank[r]), print_count(scene.map.valid_of_rank[r]),
                   print_count(scene.map.rows_of_rank[r] - scene.map.valid_of_rank[r]))});
}

/// Adds "176 + 5" after a row: valid rows and padding.
void add_row_figures(LayoutScene& scene, float y, int32_t rank) {
  if (scene.right - scene.packed.end() < 40) return;
  const auto r = static_cast<size_t>(rank);
  const int64_t valid = scene.map.valid_of_rank[r];
  const int64_t padding = scene.map.rows_of_rank[r] - valid;
  const std::string text = fmt::format("{} + {}", print_count(valid), print_count(padding));
  scene.drawing().add(Label{{scene.right - 4, y},
                            Anchor::right_middle,
                            scene.theme().of(Role::faint_text),
                            scene.small,
                            Face::mono,
                            fit_text(scene.input.text_width, text, scene.small, Face::mono,
                                     scene.right - scene.packed.end() - 8)});
}

void add_figures_title(LayoutScene& scene, float y) {
  if (scene.right - scene.packed.end() < 40) return;
  scene.drawing().add(Label{{scene.right - 4, y},
                            Anchor::right_bottom,
                            scene.theme().of(Role::faint_text),
                            scene.small,
                            Face::body,
                            "valid + padding"});
}

/// Adds a line where a round of cp_sizes begins in a rank's rows, and a box around those of the
/// present one.
void add_rounds_of_rank(LayoutScene& scene, const LocalFrame& frame, int32_t rank,
                        const CpRound* now, const Box& lane) {
  const std::vector<IdVector<RankId, TokenRun>>& rounds = scene.map.rounds;
  if (rounds.empty()) return;
  const Axis axis = row_axis(scene, frame, rank);
  const Theme& theme = scene.theme();
  const RankId id{rank};
  if (static_cast<double>(scene.map.most_rows) * axis.pixels_per_unit() >
      kLeastPixels * 4 * static_cast<double>(rounds.size())) {
    for (size_t k = 1; k < rounds.size(); ++k) {
      const TokenRun& rows = rounds[k][id];
      if (rows.begin == rows.end || rows.begin == 0) continue;
      const Box cut = cut_box(axis, static_cast<double>(rows.begin),
                              static_cast<double>(rows.begin) + 1, lane.y0, lane.y1);
      if (cut.x0 >= cut.x1) continue;
      scene.drawing().add(
          Line{{cut.x0, lane.y0 - 2}, {cut.x0, lane.y1 + 2}, theme.of(Role::text), 2});
    }
  }
  if (now == nullptr) return;
  const auto k = static_cast<size_t>(now - scene.input.plan->plan().layout.rounds.data());
  const TokenRun& rows = rounds[k][id];
  const Box box = cut_box(axis, static_cast<double>(rows.begin), static_cast<double>(rows.end),
                          lane.y0 - 1, lane.y1 + 1);
  if (rows.begin < rows.end && box.x0 < box.x1)
    scene.drawing().add(OutlinedBox{box, theme.of(Role::transfer), 2});
}

/// Adds brackets that join the ranks of each group of the present round.
void add_groups(LayoutScene& scene, const LocalFrame& frame, const CpRound* round) {
  const PlanIndex& index = *scene.input.plan;
  if (round == nullptr) return;
  const float x = scene.packed.begin() - 3;
  const Color color = scene.theme().of(Role::transfer);
  for (const CpGroup& group : round->groups) {
    const Box first = row_box(frame, group.first_rank),
              last = row_box(frame, group.first_rank + group.size - 1);
    const float y0 = std::max(first.y0, frame.all.y0), y1 = std::min(last.y1, frame.all.y1);
    if (y1 - y0 < 2) continue;
    scene.drawing().add(Line{{x, y0}, {x, y1}, color, 2});
    if (y1 - y0 >= 8) {
      scene.drawing().add(Line{{x, y0 + 1}, {x + 4, y0 + 1}, color, 2});
      scene.drawing().add(Line{{x, y1 - 1}, {x + 4, y1 - 1}, color, 2});
    }
    scene.view.hits.push_back({{x - 4, y0, x + 4, y1},
                               RankTarget{group.first_rank},
                               fmt::format("group/{}/{}", scene.side_name(), group.first_rank),
                               describe_group(index.plan().layout, *round, group)});
  }
}

/// Adds ribbons from the teeth of a comb symbol: every tooth represents its share of the rows.
void add_symbol_ribbons(LayoutScene& scene, const Axis& axis, const LocalPart& part, float top,
                        float bottom, Color color, std::vector<Ribbon>& ribbons) {
  const int64_t last = part.token + part.rows * part.stride;
  constexpr int64_t kShown = 12;
  const int64_t shown = std::min(kShown, part.rows);
  for (int64_t i = 0; i < shown; ++i) {
    // The tooth's token, and the range of rows that the tooth represents.
    const int64_t row0 = part.rows * i / shown, row1 = part.rows * (i + 1) / shown;
    const double x = static_cast<double>(part.token) + static_cast<double>(last - part.token) *
                                                           (static_cast<double>(i) + 0.5) /
                                                           static_cast<double>(shown);
    const auto lo = static_cast<double>(part.row + row0), hi = static_cast<double>(part.row + row1);
    if (x < scene.packed.lo() || x >= scene.packed.hi()) continue;
    const Box to = cut_box(axis, lo, hi, 0, 1);
    if (to.x0 >= to.x1) continue;
    const float at = scene.packed.pixel_of(x);
    ribbons.push_back({at - 2, at + 2, top, to.x0, to.x1, bottom, color});
  }
}

void collect_ribbons(LayoutScene& scene, const LocalFrame& frame, int32_t rank, float top,
                     float bottom, uint8_t alpha, std::vector<Ribbon>& ribbons) {
  const Axis axis = row_axis(scene, frame, rank);
  const Color color = scene.theme().of(Role::accent).with_alpha(alpha);
  for (const LocalPart& part : scene.map.local_of(rank)) {
    const auto token = static_cast<double>(part.token);
    const double last = token + static_cast<double>((part.rows - 1) * part.stride) + 1;
    if (last <= scene.packed.lo() || token >= scene.packed.hi()) continue;
    if (ribbons.size() > 4 * kMostRibbons) return;
    if (part.stride > 1 && scene.packed.pixels_per_unit() < kLeastPixels) {
      add_symbol_ribbons(scene, axis, part, top, bottom, color, ribbons);
      continue;
    }
    // Parts of unit stride are drawn as one ribbon, others tooth by tooth.
    const int64_t step = part.stride > 1 ? 1 : part.rows;
    const auto stride = static_cast<double>(part.stride);
    int64_t i = 0;
    if (part.stride > 1)
      i = std::max<int64_t>(0, static_cast<int64_t>((scene.packed.lo() - token) / stride));
    for (; i < part.rows && ribbons.size() <= 4 * kMostRibbons; i += step) {
      const double begin = token + static_cast<double>(i) * stride;
      if (begin >= scene.packed.hi()) break;
      const double lo = std::max(begin, scene.packed.lo());
      const double hi = std::min(begin + static_cast<double>(step), scene.packed.hi());
      if (lo >= hi) continue;
      // A part that is cut off at the top is cut off by the same amount at the bottom.
      const double row = static_cast<double>(part.row + i) - begin;
      ribbons.push_back({scene.packed.pixel_of(lo), scene.packed.pixel_of(hi), top,
                         axis.pixel_of(row + lo), axis.pixel_of(row + hi), bottom, color});
    }
  }
}

/// True if the selection or the focus includes the rank.
bool is_strong(const ViewInput& input, int32_t rank) {
  if (rank == input.focus_rank) return true;
  const Light light = light_of_rank(input, rank);
  return light == Light::selected || light == Light::hovered;
}

void add_ribbons(LayoutScene& scene, const LocalFrame& frame, float top) {
  const PlaceMap& map = scene.map;
  const bool only_focus =
      !frame.is_staircase || map.num_ranks > kMostRibbonRanks || map.local.size() > kMostRibbons;
  std::vector<Ribbon> faint, strong;
  for (int32_t rank = 0; rank < map.num_ranks; ++rank) {
    const bool is_focus = rank == scene.input.focus_rank;
    if (only_focus && !is_focus) continue;
    const float bottom = frame.is_staircase ? row_box(frame, rank).y0 : frame.focus.y0;
    if (bottom <= top + 2 || bottom > frame.all.y1) continue;
    const bool is_lit = is_strong(scene.input, rank);
    collect_ribbons(scene, frame, rank, top, bottom, is_lit ? kStrong : kFaint,
                    is_lit ? strong : faint);
  }
  scene.drawing().add(PushClip{{scene.packed.begin(), top, scene.packed.end(), frame.all.y1}});
  for (std::vector<Ribbon>* ribbons : {&faint, &strong}) {
    // If there are too many ribbons, only every n-th is drawn.
    const size_t every = 1 + ribbons->size() / (2 * kMostRibbons);
    for (size_t i = 0; i < ribbons->size(); i += every) scene.drawing().add((*ribbons)[i]);
  }
  scene.drawing().add(PopClip{});
  if (!faint.empty() || !strong.empty() || frame.is_staircase) return;
  add_plate(scene, {scene.packed.begin(), top, scene.packed.end(), frame.focus.y0},
            fmt::format("rank {} holds none of the tokens above", scene.input.focus_rank));
}

void add_staircase(LayoutScene& scene, const LocalFrame& frame) {
  const Theme& theme = scene.theme();
  const CpRound* const now = round_at(*scene.input.plan, scene.input.moment);
  for (int32_t rank = 0; rank < scene.map.num_ranks; ++rank) {
    const Box lane = row_box(frame, rank);
    if (lane.y1 <= frame.all.y0 || lane.y0 >= frame.all.y1) continue;
    const bool is_focus = rank == scene.input.focus_rank;
    add_rank_hit(scene, lane, rank);
    const float y = lane.center().y;
    const Axis axis = row_axis(scene, frame, rank);
    scene.drawing().add(
        Line{{scene.packed.begin(), y}, {axis.begin() - 2, y}, theme.of(Role::grid)});
    if (lane.height() >= scene.small - 1) {
      add_title(scene, y, fmt::format("rank {}", rank),
                theme.of(is_focus ? Role::accent : Role::text));
      add_row_figures(scene, y, rank);
    }
    add_local_row(scene, frame, rank, lane.y0, lane.y1, kLeastPixels, "local");
    add_rounds_of_rank(scene, frame, rank, now, lane);
    add_light(scene.drawing(), theme, {axis.begin() - 2, lane.y0 - 1, axis.end() + 2, lane.y1 + 1},
              light_of_rank(scene.input, rank));
  }
  add_groups(scene, frame, now);
}

/// Colours along one rank's rows, by their position in the packed order. `rows` ascend.
void color_row(const PlaceMap& map, int32_t rank, std::span<const int64_t> rows,
               std::span<const Color> shades, Color padding, std::span<Color> colors) {
  const auto parts = map.local_of(rank);
  const double per_token =
      static_cast<double>(shades.size()) / static_cast<double>(std::max<int64_t>(1, map.tokens));
  auto part = parts.end();
  std::pair<int64_t, int64_t> valid;
  for (size_t x = 0; x < rows.size(); ++x) {
    const int64_t row = rows[x];
    if (part == parts.end() || row >= part->row + part->rows) {
      part = std::partition_point(parts.begin(), parts.end(),
                                  [row](const LocalPart& p) { return p.row + p.rows <= row; });
      if (part == parts.end()) return;
      if (part->stride == 1) valid = map.valid_in(part->token, part->token + part->rows);
    }
    if (row < part->row) continue;
    const int64_t token = part->token + (row - part->row) * part->stride;
    const bool is_padding = part->stride == 1 ? token < valid.first || token >= valid.second
                                              : map.count_padding(token, token + 1) > 0;
    const auto shade = static_cast<size_t>(static_cast<double>(token) * per_token);
    colors[x] = is_padding ? padding : shades[std::min(shade, shades.size() - 1)];
  }
}

/// Adds rows of less than four pixels as one picture: it shows where each rank's tokens come from.
void add_heat_rows(LayoutScene& scene, const LocalFrame& frame) {
  const PlaceMap& map = scene.map;
  Pixels pixels;
  pixels.box = frame.all;
  pixels.width = std::clamp(static_cast<int32_t>(frame.all.width() / 3), 1, 480);
  pixels.height = std::clamp(static_cast<int32_t>(frame.all.height() / 2), 1, 400);
  const auto width = static_cast<size_t>(pixels.width);
  pixels.colors.resize(width * static_cast<size_t>(pixels.height));
  std::vector<Color> shades;
  for (int32_t i = 0; i < 256; ++i) shades.push_back(scene.theme().of_quantity(i / 255.0));
  const Axis axis = row_axis(scene, frame, 0);
  std::vector<int64_t> rows(width);
  for (size_t x = 0; x < width; ++x) {
    const float share = (static_cast<float>(x) + 0.5F) / static_cast<float>(width);
    rows[x] =
        static_cast<int64_t>(std::floor(axis.value_at(frame.all.x0 + share * frame.all.width())));
  }
  for (int32_t y = 0; y < pixels.height; ++y) {
    const float share = (static_cast<float>(y) + 0.5F) / static_cast<float>(pixels.height);
    const double rank = std::floor(frame.ranks.value_at(frame.all.y0 + share * frame.all.height()));
    if (rank < 0 || rank >= map.num_ranks) continue;
    color_row(map, static_cast<int32_t>(rank), rows, shades, scene.theme().of(Role::padding),
              std::span(pixels.colors).subspan(static_cast<size_t>(y) * width, width));
  }
  scene.drawing().add(std::move(pixels));
}

/// Adds all ranks below the focus rank's row: titles where they fit, hits for at most 400 groups.
void add_overview(LayoutScene& scene, const LocalFrame& frame) {
  const CpRound* const now = round_at(*scene.input.plan, scene.input.moment);
  const PlaceMap& map = scene.map;
  const Theme& theme = scene.theme();
  const auto first = static_cast<int32_t>(std::clamp(frame.ranks.lo(), 0.0, map.num_ranks - 1.0));
  const auto end = static_cast<int32_t>(
      std::clamp(std::ceil(frame.ranks.hi()), first + 1.0, static_cast<double>(map.num_ranks)));
  const double row_pixels = frame.ranks.pixels_per_unit();
  const bool is_heat = row_pixels < kHeatRow;
  scene.drawing().add(PushClip{{scene.left, frame.all.y0, scene.right, frame.all.y1}});
  if (is_heat) add_heat_rows(scene, frame);
  // With many rows, each row gets few boxes.
  const double least =
      std::max(kLeastPixels, static_cast<double>(frame.all.width()) * (end - first) / 4000.0);
  const auto titles =
      std::max<int32_t>(1, static_cast<int32_t>(std::ceil((scene.small + 3) / row_pixels)));
  // Titles are shown for round rank numbers: every 1, 2, 5, 10 ...
  int32_t every = 1;
  while (every < titles)
    every *= every % 10 == 2 || every % 100 == 20 || every % 1000 == 200 ? 5 : 2;
  for (int32_t rank = first; rank < end; ++rank) {
    const Box lane = row_box(frame, rank);
    if (!is_heat) {
      add_rank_hit(scene, lane, rank);
      add_local_row(scene, frame, rank, lane.y0, lane.y1, least, "local");
      add_rounds_of_rank(scene, frame, rank, now, lane);
    } else if (rank % std::max<int32_t>(1, (end - first) / 400) == 0) {
      add_rank_hit(scene, lane, rank);
    }
    if (rank % every == 0 && lane.center().y + scene.small / 2 < frame.all.y1 &&
        lane.center().y - scene.small / 2 > frame.all.y0 - 2) {
      add_title(scene, lane.center().y, fmt::format("rank {}", rank), theme.of(Role::faint_text));
      if (!is_heat) add_row_figures(scene, lane.center().y, rank);
    }
    Light light = light_of_rank(scene.input, rank);
    if (rank == scene.input.focus_rank) light = std::max(light, Light::selected);
    const float slack = is_heat ? 1.0F : 0.0F;
    if (light >= Light::selected || row_pixels >= 2)
      add_light(scene.drawing(), theme,
                {frame.all.x0 - 1, lane.y0 - slack, frame.all.x1 + 1, lane.y1 + slack}, light);
  }
  add_groups(scene, frame, now);
  scene.drawing().add(PopClip{});
}

}  // namespace

void add_local_order(LayoutScene& scene, const Box& box, float ribbon_top) {
  const PlaceMap& map = scene.map;
  const auto [first_row, end_row] = shown_rows(scene);
  const float x0 = scene.packed.begin(), x1 = scene.packed.end();
  const bool is_staircase =
      map.num_ranks <= 12 && box.height() >= kLeastRow * static_cast<float>(map.num_ranks);
  const float room = box.height();
  if (is_staircase) {
    LocalFrame frame{true,      Axis(map.num_ranks, scene.input.camera.y, box.y0, box.y1),
                     first_row, end_row,
                     {},        {x0, box.y0, x1, box.y1}};
    add_ribbons(scene, frame, ribbon_top);
    add_figures_title(scene, box.y0 - 3);
    scene.drawing().add(PushClip{{scene.left, box.y0, scene.right, box.y1}});
    add_staircase(scene, frame);
    scene.drawing().add(PopClip{});
    return;
  }
  // From top to bottom: the focus rank's row, its ruler, then all ranks.
  const float focus_height = std::clamp(room * 0.16F, 14.0F, 34.0F);
  const float ruler = 16, overview = box.y0 + focus_height + ruler + 4;
  LocalFrame frame{false,
                   Axis(map.num_ranks, scene.input.camera.y, overview, box.y1),
                   first_row,
                   end_row,
                   {x0, box.y0, x1, box.y0 + focus_height},
                   {x0, overview, x1, box.y1}};
  add_ribbons(scene, frame, ribbon_top);
  add_figures_title(scene, box.y0 - 3);
  const auto focus = std::clamp(scene.input.focus_rank, 0, map.num_ranks - 1);
  add_title(scene, frame.focus.center().y, fmt::format("rank {}", focus),
            scene.theme().of(Role::accent));
  add_row_figures(scene, frame.focus.center().y, focus);
  add_local_row(scene, frame, focus, frame.focus.y0, frame.focus.y1, kLeastPixels, "focus");
  add_title(scene, frame.focus.y1 + ruler / 2, "local row", scene.theme().of(Role::faint_text));
  add_ruler(scene.drawing(), scene.input, row_axis(scene, frame, focus),
            {x0, frame.focus.y1, x1, frame.focus.y1 + ruler}, {.is_below = true});
  if (frame.all.height() >= 12) add_overview(scene, frame);
}

}  // namespace cpscope::gui
