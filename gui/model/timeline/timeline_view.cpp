#include "gui/model/timeline/timeline_view.h"

#include "gui/model/legend.h"
#include "gui/model/timeline/timeline_scene.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// The number of events that can be sorted within a frame.
constexpr size_t kManyEvents = 100'000;

/// Data shared by all pictures of one plan and its runs, independent of the camera.
struct TimelineMaps {
  std::unique_ptr<const StepTable> steps;
  std::optional<EventFold> events_a, events_b;
};

bool has_events(const RunView* run) { return run != nullptr && !run->events.empty(); }

std::shared_ptr<const TimelineMaps> timeline_maps(const ViewInput& input, bool shows_time) {
  const PlanIndex& index = *input.plan;
  std::string key =
      fmt::format("timeline {} {:x}", static_cast<const void*>(input.plan), index.plan().hash);
  if (shows_time)
    for (const RunView* run : {input.run_a, input.run_b})
      if (has_events(run))
        key += fmt::format(" {} {} {} {}", static_cast<const void*>(run), run->name,
                           run->events.size(), run->events.back().end_ns);
  size_t size = 0;
  if (shows_time) {
    for (const RunView* run : {input.run_a, input.run_b}) size += run ? run->events.size() : 0;
  }
  const bool is_long = shows_time ? size > kManyEvents : index.is_large();
  const auto make = [plan = input.plan, a = input.run_a, b = input.run_b, shows_time] {
    auto maps = std::make_shared<TimelineMaps>();
    if (shows_time) {
      maps->events_a = fold_events(a->events, *plan, a->total_ns);
      if (has_events(b)) maps->events_b = fold_events(b->events, *plan, b->total_ns);
    } else {
      maps->steps = std::make_unique<const StepTable>(*plan);
      // A step of very many items is measured here, not in the frame that first shows it.
      const auto steps = static_cast<int32_t>(plan->steps().size());
      for (int32_t step = 0; step < steps; ++step) {
        const StepRef& ref = plan->steps()[static_cast<size_t>(step)];
        if (count_stage_items(*plan, ref.first_stage, ref.end_stage) > kLargePlan)
          maps->steps->work(*plan, step);
      }
    }
    return std::shared_ptr<const TimelineMaps>(std::move(maps));
  };
  return remember<TimelineMaps>(input.memo, key, is_long, make);
}

void add_swatch_entry(const ViewInput& input, Drawing& drawing, float& x, const Box& box,
                      const std::string& text, const std::function<void(const Box&)>& add_swatch) {
  add_legend_entry(drawing, input, box, x, text, 22, add_swatch);
}

/// Adds text of the legend without a sample.
void add_words(const ViewInput& input, Drawing& drawing, float& x, const Box& box,
               const std::string& text) {
  constexpr float kSize = 12;
  drawing.add(Label{{x, box.center().y},
                    Anchor::left_middle,
                    input.theme->of(Role::text),
                    kSize,
                    Face::strong,
                    text});
  x += input.text_width(text, kSize, Face::strong) + 12;
}

void add_timeline_legend(const ViewInput& input, const Box& box, bool shows_time, bool is_heat,
                         Drawing& drawing) {
  const Theme& theme = *input.theme;
  float x = box.x0 + 8;
  const auto fill = [&](Role role, Hatch hatch) {
    return [&drawing, &theme, role, hatch](const Box& swatch) {
      drawing.add(FilledBox{swatch, theme.of(role), hatch, theme.of(Role::panel)});
    };
  };
  const auto wait = [&](const Box& swatch) {
    drawing.add(OutlinedBox{swatch, theme.of(Role::wait), 1, true});
  };
  if (is_heat) {
    if (shows_time && input.run_a->is_simulated) add_words(input, drawing, x, box, "predicted:");
    const std::vector<Color> shades = make_busy_shades(theme);
    add_swatch_entry(input, drawing, x, box, "ranks compute: 0 % to 100 % of the time",
                     [&](const Box& swatch) {
                       const float step = swatch.width() / 6;
                       for (int32_t i = 0; i < 6; ++i) {
                         const float at = swatch.x0 + step * static_cast<float>(i);
                         drawing.add(FilledBox{{at, swatch.y0, at + step, swatch.y1},
                                               shades[static_cast<size_t>(51 * i)]});
                       }
                     });
    if (!shows_time)
      add_swatch_entry(input, drawing, x, box, "busiest rank of the step",
                       fill(Role::error, Hatch::none));
    return;
  }
  if (shows_time) {
    if (input.run_a->is_simulated) add_words(input, drawing, x, box, "predicted:");
    add_swatch_entry(input, drawing, x, box, "computes", fill(Role::compute, Hatch::none));
    add_swatch_entry(input, drawing, x, box, "transfer that nothing hides",
                     fill(Role::transfer, Hatch::diagonal));
    add_swatch_entry(input, drawing, x, box, "transfer behind compute", [&](const Box& swatch) {
      drawing.add(FilledBox{swatch, theme.of(Role::transfer).with_alpha(70), Hatch::diagonal,
                            theme.of(Role::panel)});
    });
    add_swatch_entry(input, drawing, x, box, "merges, reorders, rounds",
                     fill(Role::merge, Hatch::none));
    return;
  }
  const bool is_wide = box.width() >= 760;
  add_swatch_entry(input, drawing, x, box,
                   is_wide ? "computes, as a share of the step's busiest rank" : "computes",
                   fill(Role::compute, Hatch::none));
  add_swatch_entry(input, drawing, x, box, "waits", wait);
  add_swatch_entry(input, drawing, x, box, "sends", fill(Role::transfer, Hatch::diagonal));
  add_swatch_entry(input, drawing, x, box, "receives", [&](const Box& swatch) {
    drawing.add(OutlinedBox{swatch, theme.of(Role::transfer), 1});
  });
  add_swatch_entry(input, drawing, x, box, is_wide ? "merges, reorders, rounds" : "merges",
                   fill(Role::merge, Hatch::dots));
  add_swatch_entry(
      input, drawing, x, box, is_wide ? "busiest rank of the step" : "busiest rank",
      [&](const Box& swatch) {
        drawing.add(Polygon{
            {{swatch.x0 + 8, swatch.y0}, {swatch.x0 + 18, swatch.y0}, {swatch.x0 + 8, swatch.y1}},
            theme.of(Role::error)});
      });
}

void add_run_lanes(const ViewInput& input, const TimelineMaps& maps, const Box& box, View& view) {
  const bool has_b = maps.events_b.has_value();
  // One scale for both runs, and for compared plans, so that lengths can be compared.
  const auto last =
      std::max(static_cast<double>(std::max(int64_t{1}, has_b ? maps.events_b->last_ns : 0)),
               static_cast<double>(maps.events_a->last_ns) * input.stretch);
  const float middle = has_b ? (box.y0 + box.y1) / 2 : box.y1;
  if (has_b)
    add_event_lanes(input, *input.run_b, *maps.events_b, "b", last,
                    {box.x0, middle + 3, box.x1, box.y1}, view);
  add_event_lanes(input, *input.run_a, *maps.events_a, "a", last,
                  {box.x0, box.y0, box.x1, has_b ? middle - 3 : middle}, view);
}

}  // namespace

View draw_timeline(const ViewInput& input) {
  View view;
  const bool shows_time = input.shows_time && has_events(input.run_a);
  const bool is_simulated = shows_time && input.run_a->is_simulated;
  view.title = shows_time ? fmt::format("Timeline: who works, who waits, in {}nanoseconds",
                                        is_simulated ? "predicted " : "")
                          : "Timeline: who works in which step, and who waits";
  const Point middle{input.size.width / 2, input.size.height / 2};
  if (input.plan == nullptr) {
    add_sentence_line(view.drawing, input, middle,
                      "No plan is open. Open a scenario to see its steps");
    return view;
  }
  if (!(input.size.width >= 160) || !(input.size.height >= 100)) {
    add_sentence_line(view.drawing, input, middle, "Enlarge this view to see the steps");
    return view;
  }
  if (input.plan->steps().empty()) {
    add_sentence_line(view.drawing, input, middle, "This plan has no steps");
    return view;
  }
  const std::shared_ptr<const TimelineMaps> maps = timeline_maps(input, shows_time);
  if (maps == nullptr) {
    add_sentence_line(view.drawing, input, middle, "Adding up what every rank does in every step");
    return view;
  }
  Box box{4, 2, input.size.width - 4, input.size.height - kLegendHeight - 4};
  if (shows_time) {
    add_run_lanes(input, *maps, box, view);
  } else {
    if (input.shows_time) {
      add_sentence_line(
          view.drawing, input, {middle.x, box.y0 + 8},
          "No open run has a clock, so these are steps. Run on cuda, open a record with "
          "events, or predict times");
      box.y0 += 20;
    }
    add_step_lanes(input, *maps->steps, box, view);
  }
  const bool is_heat =
      std::any_of(view.drawing.marks.begin(), view.drawing.marks.end(),
                  [](const Mark& mark) { return std::holds_alternative<Pixels>(mark); });
  add_timeline_legend(input,
                      {0, input.size.height - kLegendHeight, input.size.width, input.size.height},
                      shows_time, is_heat, view.drawing);
  return view;
}

}  // namespace cpscope::gui
