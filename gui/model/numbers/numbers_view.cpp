#include "gui/model/numbers/numbers_view.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/numbers/error_parts.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kNumbersMargin = 8;
constexpr float kTile = 36;  // height of the tile of one tensor
constexpr float kNumbersLine = 17;
constexpr float kNarrow = 460;  // below this width only the heat map is shown

const ErrorField* find_field(const RunView& run, int32_t tensor) {
  if (tensor < 0 || tensor >= static_cast<int32_t>(kErrorTensors.size())) return nullptr;
  for (const ErrorField& field : run.errors)
    if (field.name == kErrorTensors[static_cast<size_t>(tensor)]) return &field;
  return nullptr;
}

int32_t number_of(const ErrorField& field) {
  const auto* it = std::find(kErrorTensors.begin(), kErrorTensors.end(), field.name);
  return static_cast<int32_t>(it - kErrorTensors.begin());
}

/// Adds a sentence in the middle, on as many lines as needed.
void add_numbers_sentence(const ViewInput& input, View& view, const std::string& text,
                          float top = 0) {
  const float room = std::max(60.0F, input.size.width - 4 * kNumbersMargin);
  std::vector<std::string> lines(1);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(find_line_break(text, begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const std::string longer = lines.back().empty() ? word : lines.back() + " " + word;
    if (!lines.back().empty() && input.text_width(longer, 14, Face::body) > room)
      lines.push_back(word);
    else
      lines.back() = longer;
    begin = end + 1;
  }
  float y = std::max(top, (top + input.size.height) / 2 - 10.0F * static_cast<float>(lines.size()));
  for (const std::string& line : lines) {
    view.drawing.add(Label{{input.size.width / 2, y},
                           Anchor::center_top,
                           input.theme->of(Role::text),
                           14,
                           Face::body,
                           line});
    y += 20;
  }
}

/// The used share of a tensor's budget, [0, 1]; above 1 it fails. Negative: there is no budget.
double used_of(const ErrorField& field) {
  return field.has_budget() ? field.rel_l2 / field.budget : -1.0;
}

std::string tile_text(const ErrorField& field) {
  const double used = used_of(field);
  if (field.nan > 0) return fmt::format("{} NaN !", print_count(field.nan));
  if (!field.passed && used <= 1 && used >= 0)
    return count_text(field.rows_over, "row") + " over !";
  if (used < 0) return field.rel_l2 == 0 ? "equal" : print_figure(field.rel_l2);
  return (used < 10 ? print_share(used) : print_figure(used) + " x") + (used > 1 ? " !" : "");
}

/// The same in as few letters as possible.
std::string brief_tile_text(const ErrorField& field) {
  const double used = used_of(field);
  if (field.nan > 0) return "NaN !";
  if (!field.passed && used <= 1 && used >= 0) return "over !";
  if (used < 0 || used >= 10) return tile_text(field);
  return fmt::format("{:.0f} %{}", 100 * used, used > 1 ? " !" : "");
}

void add_tile(const ViewInput& input, const ErrorField& field, const Box& box, bool is_chosen,
              View& view) {
  const Theme& theme = *input.theme;
  const bool is_bad = !field.passed || field.nan > 0;
  view.drawing.add(FilledBox{box, theme.of(Role::raised), Hatch::none, {}, 3});
  const Face face = is_bad ? Face::strong : Face::mono;
  // A figure is rounded before it is written smaller, and has a line of its own before it is cut.
  constexpr float kUsual = 12, kSmallest = 9;
  const float beside = box.width() - input.text_width(field.name, 13, Face::strong) - 19;
  const float below = box.width() - 14;
  const auto fits = [&](const std::string& text, float size, float room) {
    return input.text_width(text, size, face) <= room;
  };
  std::string text = tile_text(field);
  float size = kUsual;
  if (!fits(text, size, beside)) text = brief_tile_text(field);
  while (size > kSmallest && !fits(text, size, beside)) --size;
  const bool is_below = !fits(text, size, beside);
  if (is_below) {
    size = kUsual;
    while (size > kSmallest && !fits(text, size, below)) --size;
  }
  view.drawing.add(Label{{box.x0 + 7, box.y0 + (is_below ? 8.0F : 11.0F)},
                         Anchor::left_middle,
                         theme.of(Role::text),
                         is_below ? 11.0F : 13.0F,
                         Face::strong,
                         field.name});
  view.drawing.add(Label{{box.x1 - 7, box.y0 + (is_below ? 20.0F : 11.0F)},
                         Anchor::right_middle,
                         theme.of(is_bad ? Role::error : Role::text),
                         size,
                         face,
                         text});
  const float top = box.y0 + (is_below ? 28.0F : 22.0F);
  const Box bar{box.x0 + 7, top, box.x1 - 7, top + (is_below ? 5.0F : 7.0F)};
  view.drawing.add(FilledBox{bar, theme.of(Role::background)});
  const double used = is_bad ? 1.0 : std::clamp(used_of(field), 0.0, 1.0);
  if (used > 0) {
    const Color color = theme.of(is_bad ? Role::error : Role::compute);
    view.drawing.add(FilledBox{
        {bar.x0, bar.y0, bar.x0 + std::max(2.0F, bar.width() * static_cast<float>(used)), bar.y1},
        color,
        is_bad ? Hatch::cross : Hatch::none,
        theme.text_on(color).with_alpha(110)});
  }
  // The bar ends at the budget.
  if (field.has_budget())
    view.drawing.add(Line{{bar.x1, bar.y0 - 3}, {bar.x1, bar.y1 + 3}, theme.of(Role::text), 2});
  if (is_chosen) view.drawing.add(OutlinedBox{box, theme.of(Role::accent), 2, false, 3});
}

void add_tiles(const ViewInput& input, const RunView& run, const Box& box, View& view) {
  const float gap = 6, count = static_cast<float>(std::max<size_t>(1, run.errors.size()));
  const float width = (box.width() - gap * (count - 1)) / count;
  float x = box.x0;
  for (const ErrorField& field : run.errors) {
    const Box tile{x, box.y0, x + width, box.y1};
    const int32_t tensor = number_of(field);
    add_tile(input, field, tile, tensor == input.tensor, view);
    const WorstRow worst = field.worst.empty() ? WorstRow{} : field.worst.front();
    view.hits.push_back(
        {tile, RowTarget{tensor, worst.token, worst.head}, "tensor/" + field.name,
         fmt::format("{}: |error| is {} of |expected|{}", field.name, print_figure(field.rel_l2),
                     field.has_budget()
                         ? fmt::format(", the budget is {}", print_figure(field.budget))
                         : "")});
    x += width + gap;
  }
}

/// The most important part comes first: the end is cut off when there is little room.
std::string describe_field(const RunView& run, const ErrorField& field) {
  const bool is_difference = !run.against.empty() && run.against != "the oracle";
  std::string text = field.name + ": ";
  if (field.nan > 0)
    text += fmt::format("{} value{} NaN", print_count(field.nan), field.nan == 1 ? " is" : "s are");
  else
    text += fmt::format("{} {} of its length", is_difference ? "difference" : "error",
                        print_figure(field.rel_l2));
  if (field.has_budget())
    text += fmt::format(", {} {}", is_difference ? "earned tolerance" : "budget",
                        print_figure(field.budget));
  if (field.has_row_budgets() && field.rows_over > 0)
    text += fmt::format("; {} over", count_text(field.rows_over, "row"));
  else if (field.has_row_budgets() && !field.worst.empty())
    text += fmt::format("; worst row at {}", print_error_share(field, field.worst[0].share));
  if (field.histogram.left_out > 0)
    text += fmt::format("; {} of {} rows judged", print_count(field.histogram.compared()),
                        print_count(field.tokens * field.heads));
  return text + fmt::format("; {} compared with {}", run.name,
                            run.against.empty() ? "the oracle" : run.against);
}

/// The result of this step alone, in one line.
std::string describe_step_errors(const ShownErrors& shown) {
  const ErrorField& field = shown.field;
  std::string text = fmt::format("{} as its computes write it in {}, before merging: ", field.name,
                                 describe_step(*shown.input.plan, shown.step));
  if (field.nan > 0)
    text += fmt::format("{} value{} NaN", print_count(field.nan), field.nan == 1 ? " is" : "s are");
  else if (field.worst.empty())
    text += "every row is exact";
  else
    text += fmt::format("worst row {} of a typical one",
                        print_error_share(field, field.worst[0].share));
  return text + fmt::format("; {} compared with {}", shown.input.run_a->name, shown.steps->against);
}

std::string describe_no_first(const StepErrors& steps) {
  std::string text;
  if (!steps.judged_beside.empty())
    text = fmt::format("No item differs from {} by more than both budgets allow. ",
                       steps.judged_beside);
  return text + "A step has no budget: those above hold for the answer.";
}

/// Why there is nothing of this tensor at the moment, and what to do.
std::string explain_no_step(const ViewInput& input, int32_t step) {
  const StepRef& ref = input.plan->steps()[static_cast<size_t>(step)];
  const std::string_view name = kErrorTensors[static_cast<size_t>(input.tensor)];
  const Direction direction = direction_of_tensor(input.tensor);
  if (ref.direction == direction)
    return fmt::format("No rank writes {} in {}.", name, describe_step(*input.plan, step));
  return fmt::format("{} is written in {} steps, and the playhead is at {}. {}", name,
                     to_name(direction), describe_step(*input.plan, step),
                     direction == Direction::backward
                         ? "Move it on, or press T for out and lse."
                         : "Move it back, or press T for dq, dk and dv.");
}

void add_parts(const ShownErrors& shown, const Box& box, View& view) {
  if (box.width() < kNarrow || box.height() < 150) {
    add_error_heat(shown, box, view);
    return;
  }
  const float split = box.x0 + box.width() * (box.width() < 700 ? 0.48F : 0.5F);
  add_error_heat(shown, {box.x0, box.y0, split - 8, box.y1}, view);
  const Box right{split + 8, box.y0, box.x1, box.y1};
  const float middle = right.y0 + std::clamp(right.height() * 0.46F, 100.0F, 260.0F);
  add_error_histogram(shown, {right.x0, right.y0, right.x1, middle}, view);
  add_worst_rows(shown, {right.x0, middle + 8, right.x1, right.y1}, view);
}

/// Adds the errors of one step below the tiles of the answer.
void add_step_errors(const ViewInput& input, float y, View& view) {
  constexpr float kStrip = 62;
  const RunView& run = *input.run_a;
  const float right = input.size.width - kNumbersMargin;
  if (!run.steps) {
    add_numbers_sentence(input, view,
                         run.without_steps.empty()
                             ? "This run kept no results of its steps. Press R to "
                               "run again, or E for the answer."
                             : run.without_steps,
                         y);
    return;
  }
  const StepErrors& steps = *run.steps;
  const int32_t step = input.plan->step_of_stage(input.moment.first_stage);
  const ErrorField* field = steps.find(input.tensor, step);
  const ErrorField none;
  const ErrorField& shown_field = field != nullptr ? *field : none;
  const ShownErrors shown{
      input,
      shown_field,
      input.tensor,
      side_of_tensor(input.tensor),
      ErrorScale(shown_field, steps.histograms[static_cast<size_t>(input.tensor)], *input.theme),
      &steps,
      step};
  const auto line = [&](const std::string& text, Role role, std::string name) {
    add_text(input, view, {kNumbersMargin, y}, right - kNumbersMargin, text, role);
    view.hits.push_back(
        {{kNumbersMargin, y, right, y + kNumbersLine}, Nothing{}, std::move(name), text});
    y += kNumbersLine;
  };
  if (steps.first)
    line("! " + steps.first->text, Role::error, "divergence");
  else
    line(describe_no_first(steps), Role::faint_text, "divergence");
  if (field != nullptr)
    line(describe_step_errors(shown), field->rows_over > 0 ? Role::error : Role::text, "of_step");
  add_step_strip(shown, {kNumbersMargin, y + 2, right, y + kStrip}, view);
  y += kStrip + 6;
  if (field != nullptr) {
    add_parts(shown, {kNumbersMargin, y, right, input.size.height - 4}, view);
  } else {
    add_numbers_sentence(input, view, explain_no_step(input, step), y);
  }
}

}  // namespace

void add_text(const ViewInput& input, View& view, Point at, float room, const std::string& text,
              Role role, float size, Face face) {
  view.drawing.add(Label{at, Anchor::left_top, input.theme->of(role), size, face,
                         fit_text(input.text_width, text, size, face, room)});
}

View draw_numbers(const ViewInput& input) {
  View view;
  view.title = "Numbers: where results differ from the reference";
  if (input.plan == nullptr) {
    add_numbers_sentence(input, view, "No plan is open. Open a scenario to see its numbers.");
    return view;
  }
  const RunView* run = input.run_a;
  if (run == nullptr) {
    add_numbers_sentence(
        input, view, "Nothing has run yet. Press R to run on the CPU and compare with the oracle.");
    return view;
  }
  if (run->errors.empty()) {
    add_numbers_sentence(input, view,
                         run->name +
                             " has not been compared with anything. Press R to run "
                             "on the CPU and compare with the oracle.");
    return view;
  }
  const float right = input.size.width - kNumbersMargin;
  float y = kNumbersMargin;
  add_tiles(input, *run, {kNumbersMargin, y, right, y + kTile}, view);
  y += kTile + 6;
  if (input.is_by_step) {
    view.title = with_round("Numbers: results of this step compared with the exact ones",
                            *input.plan, input.moment);
    add_step_errors(input, y, view);
    return view;
  }
  const ErrorField* field = find_field(*run, input.tensor);
  if (field == nullptr) {
    add_numbers_sentence(input, view,
                         "This run has no gradients of that name. Choose a tensor above.");
    return view;
  }
  const bool is_bad = !field->passed || field->nan > 0;
  const std::string sentence = (is_bad ? "! " : "") + describe_field(*run, *field);
  add_text(input, view, {kNumbersMargin, y}, right - kNumbersMargin, sentence,
           is_bad ? Role::error : Role::text);
  view.hits.push_back(
      {{kNumbersMargin, y, right, y + kNumbersLine}, Nothing{}, "sentence", sentence});
  y += kNumbersLine;
  const std::string& first =
      run->steps && run->steps->first ? run->steps->first->text : run->first_divergence;
  if (!first.empty()) {
    add_text(input, view, {kNumbersMargin, y}, right - kNumbersMargin, first, Role::error);
    view.hits.push_back(
        {{kNumbersMargin, y, right, y + kNumbersLine}, Nothing{}, "divergence", first});
    y += kNumbersLine;
  }
  const int32_t tensor = input.tensor;
  const ShownErrors shown{input, *field, tensor, side_of_tensor(tensor),
                          ErrorScale(*field, *input.theme)};
  const Box below{kNumbersMargin, y + 4, right, input.size.height - 4};
  y += add_distance_bars(shown, below, view);
  add_parts(shown, {below.x0, y + 4, below.x1, below.y1}, view);
  return view;
}

}  // namespace cpscope::gui
