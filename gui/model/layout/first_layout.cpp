#include "gui/model/layout/first_layout.h"

#include "gui/model/axis.h"
#include "gui/model/legend.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kRankNumbers = 46;  // width of the rank numbers left of the matrix
constexpr float kStripRuler = 20;
constexpr float kOwnerStrip = 22;
constexpr int64_t kMostLayoutCells = 512;  // limit for each side

/// Columns of equal width that cover all tokens.
struct TokenColumns {
  int64_t tokens = 0, count = 0;

  int64_t begin(int64_t column) const { return column * tokens / count; }
  int64_t middle(int64_t column) const { return (begin(column) + begin(column + 1)) / 2; }
  int64_t of(int64_t id) const {
    int64_t column = id * count / tokens;
    while (column + 1 < count && begin(column + 1) <= id) ++column;
    return column;
  }
};

/// Calls look(column) with the columns that contain ids of a run.
template <class Look>
void for_columns(const TokenColumns& columns, const TokenRun& run, Look look) {
  if (run.count() == 0) return;
  if (run.stride <= columns.tokens / columns.count) {
    const int64_t last = columns.of(run.last());
    for (int64_t c = columns.of(run.begin); c <= last; ++c) look(c);
    return;
  }
  for (int64_t id = run.begin; id < run.end; id += run.stride) look(columns.of(id));
}

/// The owner of the middle id of each column; -1 if it has no owner.
std::vector<int32_t> find_column_owners(const Layout& layout, const TokenColumns& columns) {
  std::vector<int32_t> owners(static_cast<size_t>(columns.count), -1);
  for (const RankId rank : layout.q_runs.ids()) {
    for (const TokenRun& run : layout.q_runs[rank]) {
      for_columns(columns, run, [&](int64_t c) {
        const int64_t id = columns.middle(c);
        if (id >= run.begin && id < run.end && (id - run.begin) % run.stride == 0)
          owners[static_cast<size_t>(c)] = to_index(rank);
      });
    }
  }
  return owners;
}

Pixels draw_strip(const Layout& layout, const TokenColumns& columns, const Theme& theme,
                  const Box& box) {
  Pixels strip{box, static_cast<int32_t>(columns.count), 1, {}};
  for (const int32_t rank : find_column_owners(layout, columns))
    strip.colors.push_back(rank < 0 ? theme.of(Role::padding)
                                    : theme.of_rank(rank, layout.cp_size));
  return strip;
}

Pixels draw_matrix(const Layout& layout, const TokenColumns& columns, const Theme& theme,
                   const Box& box) {
  const int64_t ranks = layout.cp_size;
  const int64_t rows =
      std::clamp<int64_t>(std::min(ranks, static_cast<int64_t>(box.height())), 1, kMostLayoutCells);
  Pixels matrix{box, static_cast<int32_t>(columns.count), static_cast<int32_t>(rows), {}};
  matrix.colors.assign(static_cast<size_t>(rows * columns.count), theme.of(Role::mask_empty));
  for (const RankId rank : layout.q_runs.ids()) {
    const int64_t row = to_index(rank) * rows / ranks;
    const Color color = theme.of_rank(to_index(rank), layout.cp_size);
    for (const TokenRun& run : layout.q_runs[rank]) {
      for_columns(columns, run, [&](int64_t c) {
        matrix.colors[static_cast<size_t>(row * columns.count + c)] = color;
      });
    }
  }
  return matrix;
}

}  // namespace

View draw_first_layout(const Layout& layout, const ViewInput& input) {
  View view;
  view.title = "Layout: owner of each token (plan in progress)";
  const Theme& theme = *input.theme;
  const Size& size = input.size;
  const Box all{0, 0, size.width, size.height};
  const int64_t tokens = layout.slots.tokens;
  const float x0 = kViewPad / 2 + kRankNumbers, x1 = size.width - kViewPad;
  const float strip = 2 * kViewPad + 16 + kStripRuler;
  const Box matrix{x0, strip + kOwnerStrip + kViewPad, x1, size.height - kViewPad};
  if (tokens == 0 || matrix.width() < 40 || matrix.height() < 20) {
    add_sentence(view.drawing, input, all, "The plan is being made and proved.");
    return view;
  }
  view.drawing.add(Label{
      {kViewPad, kViewPad},
      Anchor::left_top,
      theme.of(Role::text),
      13,
      Face::body,
      fit_text(
          input.text_width,
          fmt::format("{} tokens on {} ranks. Rows below: what each rank will own. The plan is "
                      "being made and proved.",
                      print_count(tokens), print_count(layout.cp_size)),
          13, Face::body, size.width - 2 * kViewPad)});
  const TokenColumns columns{
      tokens, std::min<int64_t>({tokens, kMostLayoutCells, static_cast<int64_t>(matrix.width())})};
  const Axis ids(static_cast<double>(tokens), {}, x0, x1);
  const Axis ranks(layout.cp_size, {}, matrix.y0, matrix.y1);
  add_ruler(view.drawing, input, ids, {x0, strip - kStripRuler, x1, strip - 2}, {});
  view.drawing.add(draw_strip(layout, columns, theme, {x0, strip, x1, strip + kOwnerStrip}));
  view.drawing.add(draw_matrix(layout, columns, theme, matrix));
  view.drawing.add(OutlinedBox{matrix, theme.of(Role::border), 1});
  RulerStyle style;
  style.unit = AxisUnit::count;
  style.is_vertical = true;
  add_ruler(view.drawing, input, ranks, {kViewPad / 2, matrix.y0, x0 - 2, matrix.y1}, style);
  view.drawing.add(Label{{x0 - 6, strip + kOwnerStrip / 2},
                         Anchor::right_middle,
                         theme.of(Role::faint_text),
                         11,
                         Face::body,
                         "owner"});
  return view;
}

}  // namespace cpscope::gui
