#include "gui/model/axis.h"
#include "gui/model/numbers/error_parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kWorstRowHeight = 17;
constexpr float kWorstRowText = 11.5F;
constexpr float kColumnGap = 10;
constexpr float kMark = 6;  // additional room before the first column, for "!"

/// One column of the table; the least important ones are dropped first if there is little room.
struct WorstRowsColumn {
  std::string title;
  int32_t need = 0;  // 0: dropped last
  std::vector<std::string> texts;
  float width = 0;
};

std::string place_of(const ShownErrors& shown, int64_t token) {
  const PlanIndex& plan = *shown.input.plan;
  const int64_t sequence = plan.sequence_of(shown.side, token);
  if (sequence < 0) return "tail";
  const SequenceSlot& slot = plan.plan().layout.slots.sequences[static_cast<size_t>(sequence)];
  const int64_t position = token - slot.side(shown.side).valid_begin();
  return fmt::format("{}:{}{}", sequence, position, plan.is_valid(shown.side, token) ? "" : " pad");
}

std::vector<WorstRowsColumn> make_columns(const ShownErrors& shown, size_t rows) {
  std::vector<WorstRowsColumn> columns = {
      {shown.side == Side::q ? "query" : "key", 0, {}},
      {"seq:pos", 5, {}},
      {"rank", 2, {}},
      {"head", 0, {}},
      {"seen", 3, {}},
      {"expected", 4, {}},
      {shown.field.has_row_budgets() ? "of budget" : "error", 1, {}}};
  for (size_t r = 0; r < rows; ++r) {
    const WorstRow& row = shown.field.worst[r];
    const int32_t rank = shown.input.plan->owner_of_head(shown.side, row.token, row.head);
    const auto [seen, expected] = print_apart(row.seen, row.expected);
    const std::string texts[] = {print_count(row.token),
                                 place_of(shown, row.token),
                                 rank < 0 ? "-" : fmt::format("{}", rank),
                                 fmt::format("{}", row.head),
                                 seen,
                                 expected,
                                 print_error_share(shown.field, row.share)};
    for (size_t c = 0; c < columns.size(); ++c) columns[c].texts.push_back(texts[c]);
  }
  for (WorstRowsColumn& column : columns) {
    column.width = shown.input.text_width(column.title, kWorstRowText, Face::body);
    for (const std::string& text : column.texts)
      column.width =
          std::max(column.width, shown.input.text_width(text, kWorstRowText, Face::mono));
  }
  return columns;
}

float total_width(const std::vector<WorstRowsColumn>& columns) {
  float width = kColumnGap + kMark;
  for (const WorstRowsColumn& column : columns) width += column.width + kColumnGap;
  return width;
}

std::string describe_row(const ShownErrors& shown, const WorstRow& row) {
  return fmt::format(
      "{} of {} {}, head {}: error {} ({}); at element {} seen {:.9g}, expected {:.9g}",
      shown.field.name, shown.side == Side::q ? "query" : "key", print_count(row.token), row.head,
      print_figure(row.error_l2), print_error_share(shown.field, row.share), row.lane, row.seen,
      row.expected);
}

}  // namespace

void add_worst_rows(const ShownErrors& shown, const Box& box, View& view) {
  const ViewInput& input = shown.input;
  const Theme& theme = *input.theme;
  const ErrorField& field = shown.field;
  if (box.height() < 3 * kWorstRowHeight || box.width() < 100) return;
  const auto room = static_cast<size_t>((box.height() - 2 * kWorstRowHeight) / kWorstRowHeight);
  const size_t rows = std::min(room, field.worst.size());
  add_text(input, view, {box.x0, box.y0}, box.width(),
           rows == 0 ? "Every row is exact" : "Rows with the largest errors", Role::text, 12,
           Face::strong);
  if (rows == 0) return;
  std::vector<WorstRowsColumn> columns = make_columns(shown, rows);
  while (columns.size() > 2 && total_width(columns) > box.width()) {
    columns.erase(std::max_element(
        columns.begin(), columns.end(),
        [](const WorstRowsColumn& a, const WorstRowsColumn& b) { return a.need < b.need; }));
  }
  const float stretch = std::min(10.0F, std::max(0.0F, box.width() - total_width(columns)) /
                                            static_cast<float>(columns.size()));
  float x = box.x0 + kColumnGap + kMark;
  for (const WorstRowsColumn& column : columns) {
    const float right = x + column.width;
    float y = box.y0 + kWorstRowHeight;
    view.drawing.add(Label{{right, y + kWorstRowHeight / 2},
                           Anchor::right_middle,
                           theme.of(Role::faint_text),
                           kWorstRowText,
                           Face::body,
                           column.title});
    for (size_t r = 0; r < rows; ++r) {
      y += kWorstRowHeight;
      const bool is_over = field.is_over(field.worst[r].share);
      view.drawing.add(Label{{right, y + kWorstRowHeight / 2},
                             Anchor::right_middle,
                             theme.of(is_over ? Role::error : Role::text),
                             kWorstRowText,
                             Face::mono,
                             column.texts[r]});
    }
    x = right + kColumnGap + stretch;
  }
  const auto* chosen = std::get_if<RowTarget>(&input.selection);
  for (size_t r = 0; r < rows; ++r) {
    const WorstRow& row = field.worst[r];
    const float y = box.y0 + kWorstRowHeight * static_cast<float>(r + 2);
    const Box line{box.x0, y, std::min(box.x1, x), y + kWorstRowHeight};
    const RowTarget target{shown.tensor, row.token, row.head};
    if (field.is_over(row.share))
      view.drawing.add(Label{{box.x0 + 3, y + kWorstRowHeight / 2},
                             Anchor::left_middle,
                             theme.of(Role::error),
                             kWorstRowText,
                             Face::strong,
                             "!"});
    if (chosen != nullptr && *chosen == target)
      view.drawing.add(OutlinedBox{line, theme.of(Role::selected), 2});
    view.hits.push_back(
        {line, target, fmt::format("row/{}/{}", row.token, row.head), describe_row(shown, row)});
  }
}

}  // namespace cpscope::gui
