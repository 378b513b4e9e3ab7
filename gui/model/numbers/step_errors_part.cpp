#include "gui/model/axis.h"
#include "gui/model/item_words.h"
#include "gui/model/numbers/error_parts.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kStepTitle = 15, kStepRuler = 15;
constexpr float kNarrowest = 3;  // pixels of a bar; narrower steps share one, which shows the worst

/// Steps [first, end) of PlanIndex::steps that write the tensor.
struct Steps {
  int32_t first = 0, end = 0;
};

Steps find_steps(const ShownErrors& shown) {
  const auto& steps = shown.input.plan->steps();
  Steps found{-1, -1};
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].direction != direction_of_tensor(shown.tensor)) continue;
    if (found.first < 0) found.first = static_cast<int32_t>(s);
    found.end = static_cast<int32_t>(s) + 1;
  }
  return found;
}

/// The step of [begin, end) with the worst row; -1 when no step writes the tensor.
int32_t worst_step(const ShownErrors& shown, int32_t begin, int32_t end) {
  int32_t worst = -1;
  std::pair<bool, float> most{false, MaxPyramid::kNothing};
  for (int32_t step = begin; step < end; ++step) {
    const ErrorField* field = shown.steps->find(shown.tensor, step);
    if (field == nullptr) continue;
    const float share = worst_share(*field);
    const std::pair<bool, float> there{std::isnan(share), std::isnan(share) ? 0.0F : share};
    if (worst >= 0 && there <= most) continue;
    worst = step;
    most = there;
  }
  return worst;
}

std::string describe_step_bar(const ShownErrors& shown, int32_t step, int32_t num_folded) {
  const ErrorField* field = shown.steps->find(shown.tensor, step);
  std::string text = describe_step(*shown.input.plan, step) + ": ";
  if (field == nullptr)
    return text + "no rank writes " + std::string(kErrorTensors[static_cast<size_t>(shown.tensor)]);
  text += field->worst.empty()
              ? "every row is exact"
              : fmt::format("worst row {} of a typical one (token {}, head {})",
                            print_error_share(*field, field->worst[0].share),
                            print_count(field->worst[0].token), field->worst[0].head);
  text += fmt::format("; the step as a whole {}", print_figure(field->rel_l2));
  if (num_folded > 1)
    text += fmt::format("; the worst of {} steps that share this bar", num_folded);
  return text;
}

void add_bar(const ShownErrors& shown, int32_t step, const Box& cell, View& view) {
  const Theme& theme = *shown.input.theme;
  const ErrorField* field = shown.steps->find(shown.tensor, step);
  if (field == nullptr) return;
  const float share = worst_share(*field);
  const bool is_bad = share >= 0 ? field->is_over(share) : std::isnan(share);
  const double place = share > 0 && std::isfinite(share) ? shown.scale.place_of(share) : 0.0;
  const float height = is_bad ? cell.height() : 2 + (cell.height() - 4) * static_cast<float>(place);
  const Color color = is_bad ? theme.of(Role::error) : shown.scale.color_of(std::max(share, 0.0F));
  const Box bar{cell.x0, cell.y1 - height, std::max(cell.x0 + 1, cell.x1 - 1), cell.y1};
  view.drawing.add(FilledBox{bar, color, is_bad ? Hatch::cross : Hatch::none,
                             theme.text_on(color).with_alpha(110)});
  if (bar.width() > 4) view.drawing.add(OutlinedBox{bar, theme.of(Role::grid), 1});
  const std::string text = print_error_share(*field, share);
  if (shown.input.text_width(text, kSmallText, Face::mono) + 6 > bar.width()) return;
  // Inside the bar if it is high enough, otherwise above it.
  const bool is_inside = height > 14;
  view.drawing.add(Label{{bar.center().x, is_inside ? bar.y0 + 8 : bar.y0 - 7},
                         Anchor::center_middle,
                         is_inside ? theme.text_on(color) : theme.of(Role::text),
                         kSmallText,
                         Face::mono,
                         text});
}

/// Adds "!" over the step with the first diverging item.
void add_first(const ShownErrors& shown, const Box& cell, View& view) {
  const Color color = shown.input.theme->of(Role::error);
  const float x = cell.center().x;
  view.drawing.add(Line{{x, cell.y0}, {x, cell.y1}, color, 2, true});
  view.drawing.add(Label{{x + 4, cell.y0 + 6}, Anchor::left_middle, color, 13, Face::strong, "!"});
}

}  // namespace

float worst_share(const ErrorField& field) {
  if (!field.worst.empty()) return static_cast<float>(field.worst[0].share);
  return field.histogram.compared() > 0 ? 0.0F : MaxPyramid::kNothing;
}

std::string describe_step(const PlanIndex& plan, int32_t step) {
  const Direction direction = plan.steps()[static_cast<size_t>(step)].direction;
  return fmt::format("{} of {}", name_step(plan, step), plan.pass(direction).num_steps);
}

void add_step_strip(const ShownErrors& shown, const Box& box, View& view) {
  const ViewInput& input = shown.input;
  const Theme& theme = *input.theme;
  const Steps steps = find_steps(shown);
  const int32_t count = steps.end - steps.first;
  if (count < 1 || box.width() < 60) return;
  add_text(
      input, view, {box.x0, box.y0}, box.width(),
      fmt::format("{}: worst row of each step", kErrorTensors[static_cast<size_t>(shown.tensor)]),
      Role::faint_text, kSmallText);
  const Box bars{box.x0, box.y0 + kStepTitle, box.x1, box.y1 - kStepRuler};
  const auto most_cells = std::max(1, static_cast<int32_t>(bars.width() / kNarrowest));
  const int32_t fold = (count + most_cells - 1) / most_cells;
  // With few steps, bars keep their size instead of filling the line.
  const float width =
      std::min(64.0F, bars.width() * static_cast<float>(fold) / static_cast<float>(count));
  const float used = width * static_cast<float>((count + fold - 1) / fold);
  view.drawing.add(
      FilledBox{{bars.x0, bars.y0, bars.x0 + used, bars.y1}, shown.scale.left_out_color()});
  const FirstParting* first = shown.steps->first ? &*shown.steps->first : nullptr;
  float taken = -1e9F;
  for (int32_t begin = steps.first; begin < steps.end; begin += fold) {
    const int32_t end = std::min(steps.end, begin + fold);
    const float x = bars.x0 + width * static_cast<float>((begin - steps.first) / fold);
    const Box cell{x, bars.y0, x + width, bars.y1};
    const int32_t worst = worst_step(shown, begin, end);
    if (worst >= 0) add_bar(shown, worst, cell, view);
    const bool is_now = shown.step >= begin && shown.step < end;
    if (is_now)
      view.drawing.add(
          OutlinedBox{{cell.x0 - 1, cell.y0 - 1, cell.x1, cell.y1 + 1}, theme.of(Role::accent), 2});
    const int32_t target = is_now ? shown.step : worst >= 0 ? worst : begin;
    view.hits.push_back({cell, StepTarget{target}, fmt::format("step/{}", target),
                         describe_step_bar(shown, worst >= 0 ? worst : begin, end - begin)});
    const std::string number = print_count(begin - steps.first + 1);
    const float room = input.text_width(number, kSmallText, Face::mono);
    if (cell.center().x - room / 2 < std::max(taken + 6, bars.x0 - 2) ||
        cell.center().x + room / 2 > bars.x1)
      continue;
    taken = cell.center().x + room / 2;
    view.drawing.add(Label{{cell.center().x, bars.y1 + 2},
                           Anchor::center_top,
                           theme.of(is_now ? Role::accent : Role::faint_text),
                           kSmallText,
                           is_now ? Face::strong : Face::mono,
                           number});
  }
  if (first == nullptr || first->step < steps.first || first->step >= steps.end) return;
  const float x = bars.x0 + width * static_cast<float>((first->step - steps.first) / fold);
  add_first(shown, {x, bars.y0, x + width, bars.y1}, view);
}

}  // namespace cpscope::gui
