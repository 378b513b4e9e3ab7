#include "gui/model/legend.h"
#include "gui/model/pair_map.h"
#include "gui/model/traffic/traffic_marks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kLeftNumbers = 34;    // width of rank numbers left of the matrix
constexpr float kWideNumbers = 46;    // width for rank numbers of four figures and more
constexpr float kTopNumbers = 20;     // height of rank numbers above it
constexpr float kRowBars = 62;        // width of the sums right of it
constexpr float kColumnBars = 40;     // height of the sums below it
constexpr float kLeastBeside = 90;    // minimum pixels of a matrix with sums next to it
constexpr float kLeastNumbered = 12;  // minimum pixels of a rank with its own number
constexpr float kLeastLine = 5;       // minimum pixels of a cell with lines around it
constexpr float kLeastLinkHit = 5;
constexpr size_t kMostLinkHits = 1600;
constexpr size_t kMostLitLinks = 300;
constexpr int64_t kMostBins = 512;

/// The boxes of the matrix and of everything around it.
struct MatrixFrame {
  Box cells, rows, columns, row_bars, column_bars;
};

MatrixFrame place_matrix_parts(const Box& box, int32_t ranks) {
  const float numbers = ranks >= 1000 ? kWideNumbers : kLeftNumbers;
  const auto side_with = [&](float row_bars, float column_bars) {
    return std::max(0.0F, std::min(box.width() - numbers - row_bars,
                                   box.height() - kTopNumbers - column_bars - 14));
  };
  // If there is little room, the matrix gets it instead of its sums.
  const bool has_bars = side_with(kRowBars, kColumnBars) >= kLeastBeside;
  const float row_bars = has_bars ? kRowBars : 0, column_bars = has_bars ? kColumnBars : 0;
  const float side = side_with(row_bars, column_bars);
  MatrixFrame frame;
  const float x = box.x0 + numbers, y = box.y0 + kTopNumbers + 14;
  frame.cells = {x, y, x + side, y + side};
  frame.rows = {box.x0, y, x - 3, y + side};
  frame.columns = {x, y - kTopNumbers, x + side, y - 3};
  if (!has_bars) return frame;
  frame.row_bars = {x + side + 4, y, x + side + row_bars, y + side};
  frame.column_bars = {x, y + side + 4, x + side, y + side + column_bars};
  return frame;
}

struct MatrixScene {
  const TrafficScene& traffic;
  MatrixFrame frame;
  Axis senders, receivers;

  const ViewInput& input() const { return traffic.input; }
  int64_t ranks() const { return traffic.matrix.num_ranks(); }
  float cell() const {
    return static_cast<float>(std::min(senders.pixels_per_unit(), receivers.pixels_per_unit()));
  }
  bool shows(const Box& box) const {
    return box.x1 > frame.cells.x0 && box.x0 < frame.cells.x1 && box.y1 > frame.cells.y0 &&
           box.y0 < frame.cells.y1;
  }
  Box box_of(int32_t src, int32_t dst) const {
    return {receivers.pixel_of(dst), senders.pixel_of(src), receivers.pixel_of(dst + 1.0),
            senders.pixel_of(src + 1.0)};
  }
};

/// Ranks [first, second) of an axis that are shown.
std::pair<int32_t, int32_t> shown_ranks(const Axis& axis, int64_t ranks) {
  const auto begin = std::clamp<int64_t>(static_cast<int64_t>(std::floor(axis.lo())), 0, ranks);
  const auto end = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(axis.hi())), begin, ranks);
  return {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

/// Ranks of an axis in bins of equal width, at least a pixel wide.
CellAxis bin_ranks(const Axis& axis, int64_t ranks, double& step) {
  CellAxis bins;
  const auto [begin, end] = shown_ranks(axis, ranks);
  if (begin == end) return bins;
  const double pixels = std::abs(double{axis.end()} - double{axis.begin()});
  const int64_t most = std::clamp<int64_t>(std::llround(pixels), 8, kMostBins);
  const int64_t width = std::max<int64_t>(1, (end - begin + most - 3) / (most - 2));
  for (int64_t rank = begin / width * width; rank < end; rank += width) bins.edges.push_back(rank);
  bins.edges.push_back(std::min(ranks, bins.edges.back() + width));
  step = static_cast<double>(width);
  return bins;
}

/// Calls look(number, link) with the links that are shown.
template <class Look>
void for_shown_links(const MatrixScene& scene, Look look) {
  const auto [first_src, end_src] = shown_ranks(scene.senders, scene.ranks());
  const auto [first_dst, end_dst] = shown_ranks(scene.receivers, scene.ranks());
  const std::vector<LinkBytes>& links = scene.traffic.links;
  auto it = std::partition_point(links.begin(), links.end(),
                                 [first = first_src](const LinkBytes& l) { return l.src < first; });
  for (; it != links.end() && it->src < end_src; ++it) {
    if (it->dst >= first_dst && it->dst < end_dst)
      look(static_cast<size_t>(it - links.begin()), *it);
  }
}

/// One picture of all links, empty if none is shown; a bin of several links shows the largest bytes
/// of one of them.
Pixels make_cells(const MatrixScene& scene) {
  double src_step = 1, dst_step = 1;
  const CellAxis src = bin_ranks(scene.senders, scene.ranks(), src_step);
  const CellAxis dst = bin_ranks(scene.receivers, scene.ranks(), dst_step);
  if (src.count() == 0 || dst.count() == 0) return {};
  std::vector<int64_t> bytes(static_cast<size_t>(src.count() * dst.count()), 0);
  // The bins of all ranks are computed once, not by a division for each of a million links.
  const auto bins_of = [&](const CellAxis& axis, double step) {
    std::vector<int32_t> bins(static_cast<size_t>(scene.ranks()), -1);
    for (int64_t rank = axis.begin(); rank < axis.end(); ++rank)
      bins[rank] = static_cast<int32_t>((rank - axis.begin()) / static_cast<int64_t>(step));
    return bins;
  };
  const std::vector<int32_t> rows = bins_of(src, src_step), columns = bins_of(dst, dst_step);
  const int64_t width = dst.count();
  for_shown_links(scene, [&](size_t, const LinkBytes& link) {
    int64_t& most = bytes[rows[link.src] * width + columns[link.dst]];
    most = std::max(most, link.bytes);
  });
  Pixels pixels;
  pixels.width = static_cast<int32_t>(dst.count());
  pixels.height = static_cast<int32_t>(src.count());
  const auto end_of = [](const CellAxis& axis, double step) {
    return static_cast<double>(axis.begin()) + step * static_cast<double>(axis.count());
  };
  pixels.box = {scene.receivers.pixel_of(static_cast<double>(dst.begin())),
                scene.senders.pixel_of(static_cast<double>(src.begin())),
                scene.receivers.pixel_of(end_of(dst, dst_step)),
                scene.senders.pixel_of(end_of(src, src_step))};
  const Color empty = scene.input().theme->of(Role::mask_empty);
  pixels.colors.reserve(bytes.size());
  // Neighbouring links often carry the same number of bytes.
  int64_t last = 0;
  Color color = empty;
  for (const int64_t most : bytes) {
    if (most != last) color = most == 0 ? empty : color_of_bytes(scene.traffic, most);
    last = most;
    pixels.colors.push_back(color);
  }
  return pixels;
}

void add_link_cells(Drawing& drawing, const MatrixScene& scene) {
  const StageLinks& stages = scene.traffic.stages;
  std::string key = fmt::format("{} {} {}", static_cast<const void*>(scene.input().theme),
                                scene.traffic.least, scene.traffic.most);
  for (const Axis* axis : {&scene.senders, &scene.receivers})
    key += fmt::format(" {} {} {} {}", axis->lo(), axis->hi(), axis->begin(), axis->end());
  if (stages.cells_key != key) {
    stages.cells = make_cells(scene);
    stages.cells_key = std::move(key);
  }
  if (!stages.cells.colors.empty()) drawing.add(stages.cells);
}

void add_lines(Drawing& drawing, const MatrixScene& scene) {
  if (scene.cell() < kLeastLine) return;
  const Color color = scene.input().theme->of(Role::background);
  const Box& cells = scene.frame.cells;
  const auto first = [](const Axis& axis) {
    return static_cast<int64_t>(std::max(0.0, axis.lo()));
  };
  const auto last = [&](const Axis& axis) {
    return std::min(scene.ranks(), static_cast<int64_t>(axis.hi()) + 1);
  };
  for (int64_t rank = first(scene.senders); rank <= last(scene.senders); ++rank) {
    const float y = scene.senders.pixel_of(static_cast<double>(rank));
    drawing.add(Line{{cells.x0, y}, {cells.x1, y}, color, 1});
  }
  for (int64_t rank = first(scene.receivers); rank <= last(scene.receivers); ++rank) {
    const float x = scene.receivers.pixel_of(static_cast<double>(rank));
    drawing.add(Line{{x, cells.y0}, {x, cells.y1}, color, 1});
  }
  // A rank sends nothing to itself.
  for (int64_t rank = first(scene.senders); rank < last(scene.senders); ++rank) {
    const auto self = static_cast<int32_t>(rank);
    drawing.add(FilledBox{scene.box_of(self, self),
                          {0, 0, 0, 0},
                          Hatch::diagonal,
                          scene.input().theme->of(Role::wait)});
  }
}

void add_byte_labels(Drawing& drawing, const MatrixScene& scene) {
  if (scene.cell() < 26) return;
  for_shown_links(scene, [&](size_t, const LinkBytes& link) {
    const Box box = scene.box_of(link.src, link.dst);
    if (!scene.shows(box)) return;
    const std::string text = print_bytes(link.bytes);
    if (scene.input().text_width(text, kSmallText, Face::mono) > box.width() - 3) return;
    const Color fill = color_of_bytes(scene.traffic, link.bytes);
    drawing.add(Label{box.center(), Anchor::center_middle, scene.input().theme->text_on(fill),
                      kSmallText, Face::mono, text});
  });
}

/// Calls look(rank) with the ranks that an axis shows.
template <class Look>
void for_shown_ranks(const Axis& axis, int64_t ranks, Look look) {
  const auto begin = std::max<int64_t>(0, static_cast<int64_t>(std::floor(axis.lo())));
  for (int64_t rank = begin; rank < ranks && static_cast<double>(rank) < axis.hi(); ++rank)
    look(static_cast<int32_t>(rank));
}

void add_numbers(View& view, const MatrixScene& scene) {
  const Theme& theme = *scene.input().theme;
  const MatrixFrame& frame = scene.frame;
  Drawing& drawing = view.drawing;
  drawing.add(Label{{frame.rows.x0, frame.columns.y0 - 13},
                    Anchor::left_top,
                    theme.of(Role::text),
                    kSmallText,
                    Face::body,
                    "senders (down), receivers ->"});
  if (scene.cell() < kLeastNumbered) {
    RulerStyle style;
    style.unit = AxisUnit::count;
    add_ruler(drawing, scene.input(), scene.receivers, frame.columns, style);
    style.is_vertical = true;
    add_ruler(drawing, scene.input(), scene.senders, frame.rows, style);
    return;
  }
  const float widest =
      scene.input().text_width(fmt::format("{}", scene.ranks() - 1), kSmallText, Face::mono);
  const bool fits = widest + 2 <= scene.cell();
  if (!fits) {
    RulerStyle style;
    style.unit = AxisUnit::count;
    add_ruler(drawing, scene.input(), scene.receivers, frame.columns, style);
  }
  const auto add = [&](const Box& box, int32_t rank, const char* name, bool is_sender) {
    const bool is_focus = rank == scene.input().focus_rank;
    if (fits || is_sender)
      drawing.add(Label{is_sender ? Point{box.x1 - 3, box.center().y} : box.center(),
                        is_sender ? Anchor::right_middle : Anchor::center_middle,
                        theme.of(is_focus ? Role::accent : Role::faint_text), kSmallText,
                        is_focus ? Face::strong : Face::mono, fmt::format("{}", rank)});
    view.hits.push_back({box, RankTarget{rank}, fmt::format("{}/{}", name, rank),
                         describe_rank_bytes(scene.traffic, rank)});
  };
  drawing.add(PushClip{{frame.rows.x0, frame.columns.y0, frame.cells.x1, frame.cells.y1}});
  for_shown_ranks(scene.senders, scene.ranks(), [&](int32_t rank) {
    const Box box = scene.box_of(rank, 0);
    add({frame.rows.x0, box.y0, frame.rows.x1, box.y1}, rank, "rank", true);
  });
  for_shown_ranks(scene.receivers, scene.ranks(), [&](int32_t rank) {
    const Box box = scene.box_of(0, rank);
    add({box.x0, frame.columns.y0, box.x1, frame.columns.y1}, rank, "receiver", false);
  });
  drawing.add(PopClip{});
}

/// Adds the sums of the rows right of the matrix or of the columns below it. Bars narrower than a
/// pixel are merged: the longest is shown.
void add_bars(Drawing& drawing, const MatrixScene& scene, bool is_sent) {
  const std::vector<int64_t>& sums = is_sent ? scene.traffic.sent : scene.traffic.received;
  const int64_t most = *std::max_element(sums.begin(), sums.end());
  const Theme& theme = *scene.input().theme;
  const Box& box = is_sent ? scene.frame.row_bars : scene.frame.column_bars;
  if (box.width() <= 0) return;
  drawing.add(PushClip{box});
  const Axis& axis = is_sent ? scene.senders : scene.receivers;
  const float room = is_sent ? box.width() : box.height();
  double step = 1;
  const CellAxis bins = bin_ranks(axis, scene.ranks(), step);
  for (int64_t bin = 0; bin < bins.count() && most > 0; ++bin) {
    const int64_t sum =
        *std::max_element(sums.begin() + bins.edges[bin], sums.begin() + bins.edges[bin + 1]);
    if (sum == 0) continue;
    const float lo = axis.pixel_of(static_cast<double>(bins.edges[bin]));
    float hi = axis.pixel_of(static_cast<double>(bins.edges[bin]) + step);
    if (hi - lo > 3) hi -= 1;
    const float length = std::max(
        1.0F, room * static_cast<float>(static_cast<double>(sum) / static_cast<double>(most)));
    const Box bar =
        is_sent ? Box{box.x0, lo, box.x0 + length, hi} : Box{lo, box.y0, hi, box.y0 + length};
    // Pale enough for the text, which lies on the bar and beside it.
    const Color color = mix(theme.of(Role::mask_empty), theme.of(Role::transfer), 0.3F);
    drawing.add(FilledBox{bar, color});
    const std::string text = print_bytes(sum);
    const float width = scene.input().text_width(text, kSmallText, Face::mono);
    const float across = is_sent ? room : hi - lo;
    if (step == 1 && width + 4 <= across && (is_sent ? hi - lo : room) >= kSmallText + 1)
      drawing.add(
          Label{is_sent ? Point{box.x0 + 3, (lo + hi) / 2} : Point{(lo + hi) / 2, box.y0 + 9},
                is_sent ? Anchor::left_middle : Anchor::center_middle, theme.of(Role::text),
                kSmallText, Face::mono, text});
  }
  drawing.add(PopClip{});
  const Point at = is_sent ? Point{box.x0, box.y0 - 3} : Point{box.x0 - 5, box.y0 + 2};
  drawing.add(Label{at, is_sent ? Anchor::left_bottom : Anchor::right_top,
                    theme.of(Role::faint_text), kSmallText, Face::body, is_sent ? "sent" : "recv"});
}

void add_lights(Drawing& drawing, const MatrixScene& scene) {
  const auto senders = shown_ranks(scene.senders, scene.ranks());
  const auto add = [&](const Projection& projection, Role role, float width) {
    size_t lit = 0;
    const auto& links = projection.links;
    auto it = std::lower_bound(links.begin(), links.end(), std::pair{senders.first, int32_t{0}});
    for (; it != links.end() && it->first < senders.second; ++it) {
      const auto [src, dst] = *it;
      const Box box = scene.box_of(src, dst);
      if (!scene.shows(box)) continue;
      if (++lit > kMostLitLinks) return;
      drawing.add(OutlinedBox{box, scene.input().theme->of(role), width});
    }
  };
  add(*scene.input().selected, Role::related, 1);
  if (const auto* link = std::get_if<LinkTarget>(&scene.input().selection))
    drawing.add(OutlinedBox{scene.box_of(link->src, link->dst),
                            scene.input().theme->of(Role::selected), 2});
  add(*scene.input().hovered, Role::hovered, 1);
}

void add_link_hits(View& view, const MatrixScene& scene) {
  if (scene.cell() < kLeastLinkHit) return;
  const std::vector<std::string> names = name_payloads(payloads_of_links(scene.traffic));
  const Box& cells = scene.frame.cells;
  size_t hits = 0;
  for_shown_links(scene, [&](size_t i, const LinkBytes& link) {
    Box box = scene.box_of(link.src, link.dst);
    box = {std::max(box.x0, cells.x0), std::max(box.y0, cells.y0), std::min(box.x1, cells.x1),
           std::min(box.y1, cells.y1)};
    if (box.width() <= 1 || box.height() <= 1 || ++hits > kMostLinkHits) return;
    const std::string name = i < names.size() ? names[i] : std::string();
    view.hits.push_back(
        {box, LinkTarget{link.src, link.dst}, fmt::format("link/{}/{}", link.src, link.dst),
         fmt::format("rank {} -> rank {}: {}{}{}{}", link.src, link.dst, print_bytes(link.bytes),
                     name.empty() ? "" : " (", name, name.empty() ? "" : ")")});
  });
}

}  // namespace

Color color_of_bytes(const TrafficScene& scene, int64_t bytes) {
  double share = 0.7;
  if (scene.most > scene.least && scene.least > 0) {
    const double low = std::log2(static_cast<double>(scene.least));
    const double high = std::log2(static_cast<double>(scene.most));
    share = (std::log2(static_cast<double>(bytes)) - low) / (high - low);
  }
  // The lowest end of the scale would be hardly visible.
  return scene.input.theme->of_quantity(0.2 + 0.8 * std::clamp(share, 0.0, 1.0));
}

void add_traffic_matrix(View& view, const TrafficScene& scene, const Box& box) {
  const MatrixFrame frame = place_matrix_parts(box, scene.matrix.num_ranks());
  if (frame.cells.width() < 24) return;
  const auto ranks = static_cast<double>(scene.matrix.num_ranks());
  const MatrixScene matrix{scene, frame,
                           Axis(ranks, scene.input.camera.y, frame.cells.y0, frame.cells.y1),
                           Axis(ranks, scene.input.camera.x, frame.cells.x0, frame.cells.x1)};
  Drawing& drawing = view.drawing;
  drawing.add(PushClip{frame.cells});
  drawing.add(FilledBox{frame.cells, scene.input.theme->of(Role::background)});
  add_link_cells(drawing, matrix);
  add_lines(drawing, matrix);
  add_byte_labels(drawing, matrix);
  add_lights(drawing, matrix);
  drawing.add(PopClip{});
  drawing.add(OutlinedBox{frame.cells, scene.input.theme->of(Role::border), 1});
  add_numbers(view, matrix);
  add_bars(drawing, matrix, true);
  add_bars(drawing, matrix, false);
  add_link_hits(view, matrix);
  view.grids.push_back({frame.cells, matrix.receivers.lo(), matrix.receivers.hi(),
                        matrix.senders.lo(), matrix.senders.hi()});
  view.scale = print_scale(matrix.receivers.units_per_pixel(), "rank");
}

}  // namespace cpscope::gui
