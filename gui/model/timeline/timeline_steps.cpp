#include "gui/model/describe.h"
#include "gui/model/item_words.h"
#include "gui/model/light.h"
#include "gui/model/place_map.h"
#include "gui/model/timeline/timeline_scene.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kPasses = 18, kStepNumbers = 18;  // heights above the lanes

/// Data shared by all step lanes.
struct StepLanes {
  TimelineScene& scene;
  const StepTable& table;
  int32_t first_step = 0, end_step = 0;  // shown steps

  const PlanIndex& plan() const { return *scene.input.plan; }
  float x_of(double step) const { return scene.time.pixel_of(step); }
};

/// Adds "forward: 4 steps" above its steps, with the cost of waiting for the busiest rank.
void add_pass(StepLanes& lanes, Direction direction, int32_t first, int32_t end, float y) {
  if (first >= end) return;
  TimelineScene& scene = lanes.scene;
  const Theme& theme = scene.theme();
  const float x0 = std::max(scene.lanes.x0, lanes.x_of(first));
  const float x1 = std::min(scene.lanes.x1, lanes.x_of(end));
  if (x1 - x0 < 2) return;
  const Box box{x0, y, x1 - 2, y + kPasses - 3};
  scene.drawing().add(FilledBox{box, theme.of(Role::raised), Hatch::none, {}, 2});
  const double path = lanes.table.critical_path_over_ideal(direction);
  std::string name = fmt::format("{}: {}", to_name(direction), count_text(end - first, "step"));
  const auto rounds = static_cast<int64_t>(lanes.plan().plan().layout.rounds.size());
  if (rounds > 0) name += fmt::format(" in {}", count_text(rounds, "round"));
  for (const std::string& text :
       {fmt::format("{}, waiting for the busiest rank costs {:.3f} x the ideal", name, path),
        fmt::format("{}, critical path {:.3f} x ideal", name, path),
        fmt::format("{}, {:.2f} x ideal", name, path), name, std::string(to_name(direction))}) {
    if (scene.input.text_width(text, scene.small, Face::body) + 6 > box.width()) continue;
    scene.drawing().add(Label{box.center(), Anchor::center_middle, theme.of(Role::text),
                              scene.small, Face::body, text});
    break;
  }
}

/// Adds the numbers of steps, from 1 in each pass, and a line at the start of each step, a thick
/// one where a pass or a round of cp_sizes begins.
void add_step_numbers(StepLanes& lanes, float y) {
  TimelineScene& scene = lanes.scene;
  const Theme& theme = scene.theme();
  const auto width = static_cast<float>(scene.time.pixels_per_unit());
  int32_t every = 1;
  for (int32_t n = 0; width * static_cast<float>(every) < 34; ++n) every *= n % 3 == 1 ? 5 : 2;
  for (int32_t step = lanes.first_step; step < lanes.end_step; ++step) {
    const StepRef& ref = lanes.plan().steps()[static_cast<size_t>(step)];
    const bool begins_part = ref.step == 0 || lanes.table.begins_round(step);
    const float x0 = lanes.x_of(step), x1 = lanes.x_of(step + 1.0);
    const int32_t number = ref.step + 1;
    if (number % every != 0 && !begins_part) continue;
    if (x0 >= scene.lanes.x0 - 1)
      scene.drawing().add(Line{{x0, y + kStepNumbers - 4},
                               {x0, scene.lanes.y1},
                               theme.of(begins_part ? Role::border : Role::grid),
                               begins_part ? 2.0F : 1.0F});
    const float at = keep_between((x0 + x1) / 2, scene.lanes.x0 + 6, scene.lanes.x1 - 6);
    // If not all steps are numbered, a number is at its line, and the next pass may leave it no
    // room.
    const int32_t next = step + every;
    const bool has_room =
        every == 1 ||
        (next <= lanes.table.num_steps() &&
         lanes.plan().steps()[static_cast<size_t>(next - 1)].direction == ref.direction);
    if (number % every == 0 && has_room)
      scene.drawing().add(Label{{at, y + kStepNumbers / 2 - 1},
                                Anchor::center_middle,
                                theme.of(Role::faint_text),
                                scene.small,
                                Face::mono,
                                fmt::format("{}", number)});
  }
}

void add_step_hits(StepLanes& lanes, float y) {
  TimelineScene& scene = lanes.scene;
  const int32_t every = 1 + (lanes.end_step - lanes.first_step) / 400;
  for (int32_t step = lanes.first_step; step < lanes.end_step; step += every) {
    const Box box{std::max(scene.lanes.x0, lanes.x_of(step)), y,
                  std::min(scene.lanes.x1, lanes.x_of(step + every)), scene.lanes.y0};
    if (box.x0 >= box.x1) continue;
    const int32_t busiest = lanes.table.busiest(step);
    scene.view.hits.push_back(
        {box, StepTarget{step}, fmt::format("step/{}", step),
         fmt::format("{}\n{}", name_step(lanes.plan(), step),
                     lanes.table.most_pairs(step) == 0 ? "nothing is computed"
                     : busiest < 0
                         ? std::string("all ranks compute the same")
                         : fmt::format("rank {} computes most: {} pairs (query, key, head)",
                                       busiest, print_count(lanes.table.most_pairs(step))))});
  }
}

std::string describe_cell(StepLanes& lanes, int32_t step, int32_t rank, const StepWork& work) {
  const int64_t pairs = lanes.table.pairs(step, rank), most = lanes.table.most_pairs(step);
  int64_t sent = 0, received = 0, merges = 0, reorders = 0, finishes = 0;
  const RankId r{rank};
  for (const PhaseWork& phase : work) {
    sent += phase.sent[r];
    received += phase.received[r];
    merges += phase.merges[r];
    reorders += phase.reorders[r];
    finishes += phase.finishes[r];
  }
  std::string text = fmt::format("rank {}, {}\n", rank, name_step(lanes.plan(), step));
  if (most == 0)
    text += "nothing is computed in this step";
  else if (pairs == 0)
    text += "computes nothing and waits";
  else
    text += fmt::format("computes {} pairs (query, key, head): {} of the busiest rank",
                        print_count(pairs), print_share(pairs, most));
  text += fmt::format("\nsends {}, receives {}", print_bytes(sent), print_bytes(received));
  if (merges + reorders + finishes > 0)
    text += fmt::format("\nreorders {}, merges {}, finishes {} arrays", reorders, merges, finishes);
  return text;
}

/// Heights of the parts of a cell, from its top.
struct CellRows {
  float compute_y0, compute_y1, sent_y1, received_y1, small_y1;
};

CellRows cell_rows(const Box& lane, const PhaseWork& phase) {
  const float h = lane.height();
  // A part that a phase does not have leaves its room to the others.
  const float compute = phase.has_compute ? (phase.has_transfer ? 0.5F : 0.8F) : 0.0F;
  const float wire = phase.has_transfer ? (phase.has_compute ? 0.17F : 0.4F) : 0.0F;
  CellRows rows{};
  rows.compute_y0 = lane.y0 + 1;
  rows.compute_y1 = rows.compute_y0 + h * compute;
  rows.sent_y1 = rows.compute_y1 + h * wire;
  rows.received_y1 = rows.sent_y1 + h * wire;
  rows.small_y1 = lane.y1 - 1;
  return rows;
}

void add_compute_bar(StepLanes& lanes, const Box& box, int64_t pairs, int64_t most) {
  TimelineScene& scene = lanes.scene;
  const Theme& theme = scene.theme();
  const float share =
      most > 0 ? static_cast<float>(static_cast<double>(pairs) / static_cast<double>(most)) : 0;
  const Box bar{box.x0, box.y0, box.x0 + box.width() * share, box.y1};
  if (pairs > 0) {
    scene.drawing().add(FilledBox{bar, theme.of(Role::compute)});
    const std::string figure = print_count(pairs), text = figure + " pairs";
    const float width = scene.input.text_width(text, scene.small, Face::body) + 6;
    add_on_fill(scene, bar, width <= bar.width() ? text : figure, theme.of(Role::compute));
  }
  const Box rest{bar.x1, box.y0, box.x1, box.y1};
  if (rest.width() >= 2) {
    add_wait(scene, rest);
    add_inside(scene, rest, "waits", theme.of(Role::faint_text));
  }
}

/// Adds bytes as a hatched bar; bars of received bytes are open at the bottom.
void add_wire_bar(StepLanes& lanes, const Box& box, int64_t bytes, int64_t most, bool is_sent,
                  int64_t item, const std::string& name, Direction direction) {
  if (bytes <= 0 || box.height() < 2) return;
  TimelineScene& scene = lanes.scene;
  const Theme& theme = scene.theme();
  const float share = static_cast<float>(static_cast<double>(bytes) / static_cast<double>(most));
  const Box bar{box.x0, box.y0 + 1, box.x0 + std::max(1.0F, box.width() * share), box.y1};
  const Color color = theme.of(Role::transfer);
  if (is_sent)
    scene.drawing().add(FilledBox{bar, color, Hatch::diagonal, theme.of(Role::panel)});
  else
    scene.drawing().add(OutlinedBox{bar, color, 1});
  const std::string figure = print_bytes(bytes);
  if (!is_sent) {
    if (!add_inside(scene, bar, "from others: " + figure, theme.of(Role::text)))
      add_inside(scene, bar, figure, theme.of(Role::text));
  } else if (bar.height() >= scene.small) {
    // Letters need a plain background.
    const float width = scene.input.text_width(figure, scene.small, Face::body) + 8;
    if (width + 8 <= bar.width()) {
      const Point c = bar.center();
      scene.drawing().add(FilledBox{{c.x - width / 2, bar.y0, c.x + width / 2, bar.y1}, color});
      add_on_fill(scene, bar, figure, color);
    }
  }
  scene.view.hits.push_back({bar, ItemId{direction, StageKind::transfer, item}, name,
                             fmt::format("{} {} in this phase: {} of the rank that {} most",
                                         is_sent ? "sends" : "receives", figure, print_share(share),
                                         is_sent ? "sends" : "receives")});
}

/// Adds a bar for the short work: reorders, merges, and the rounding at the end.
void add_small_bar(StepLanes& lanes, const Box& box, const PhaseWork& phase, RankId rank) {
  const int32_t items = phase.merges[rank] + phase.reorders[rank] + phase.finishes[rank];
  if (items == 0 || box.height() < 1) return;
  TimelineScene& scene = lanes.scene;
  const bool is_alone = !phase.has_compute && !phase.has_transfer;
  const float height = is_alone ? box.height() * 0.4F : std::min(box.height(), 5.0F);
  const float y = is_alone ? box.center().y - height / 2 : box.y1 - height;
  const Box bar{box.x0, y, box.x1, y + height};
  scene.drawing().add(
      FilledBox{bar, scene.theme().of(Role::merge), Hatch::dots, scene.theme().of(Role::panel)});
  if (is_alone && box.height() > 30) {
    const char* name = phase.reorders[rank] > 0 ? "reorders"
                       : phase.merges[rank] > 0 ? "merges"
                                                : "rounds";
    add_inside(scene, {box.x0, box.y0, box.x1, y}, name, scene.theme().of(Role::faint_text));
  }
}

void add_phase(StepLanes& lanes, const Box& lane, float x0, float x1, int32_t step, int32_t rank,
               size_t number, const PhaseWork& phase) {
  const CellRows rows = cell_rows(lane, phase);
  const RankId r{rank};
  const Direction direction = lanes.plan().steps()[static_cast<size_t>(step)].direction;
  if (phase.has_compute && phase.most_pairs > 0)
    add_compute_bar(lanes, {x0, rows.compute_y0, x1, rows.compute_y1}, phase.pairs[r],
                    phase.most_pairs);
  const auto name = [&](std::string_view what) {
    return fmt::format("cell/{}/{}/{}/{}", rank, step, what, number);
  };
  if (phase.has_transfer) {
    add_wire_bar(lanes, {x0, rows.compute_y1, x1, rows.sent_y1}, phase.sent[r], phase.most_sent,
                 true, phase.sent_item[r], name("sent"), direction);
    add_wire_bar(lanes, {x0, rows.sent_y1, x1, rows.received_y1}, phase.received[r],
                 phase.most_received, false, phase.received_item[r], name("received"), direction);
  }
  add_small_bar(lanes, {x0, rows.received_y1 + 1, x1, rows.small_y1}, phase, r);
}

double phase_weight(const PhaseWork& phase) {
  if (phase.has_compute && phase.most_pairs > 0) return 4;
  return phase.has_transfer ? 2.2 : 1;
}

/// Adds a small arrow head at the cell of a step's busiest rank.
void add_busiest_mark(TimelineScene& scene, float x, float y, float size) {
  scene.drawing().add(
      Polygon{{{x, y}, {x + size, y}, {x, y + size}}, scene.theme().of(Role::error)});
}

void add_cell(StepLanes& lanes, int32_t step, int32_t rank, bool has_light) {
  TimelineScene& scene = lanes.scene;
  const StepWork& work = lanes.table.work(lanes.plan(), step);
  const Box lane = scene.lane(rank);
  const float x0 = lanes.x_of(step) + 2, x1 = lanes.x_of(step + 1.0) - 2;
  const RankId r{rank};
  Target target = StepTarget{step};
  const Direction direction = lanes.plan().steps()[static_cast<size_t>(step)].direction;
  double weights = 0;
  for (const PhaseWork& phase : work) {
    weights += phase_weight(phase);
    if (phase.compute_item[r] >= 0 && std::holds_alternative<StepTarget>(target))
      target = ItemId{direction, StageKind::compute, phase.compute_item[r]};
  }
  const Box cell{std::max(x0, scene.lanes.x0), lane.y0, std::min(x1, scene.lanes.x1), lane.y1};
  if (cell.x0 >= cell.x1) return;
  scene.view.hits.push_back({cell, target, fmt::format("cell/{}/{}", rank, step),
                             describe_cell(lanes, step, rank, work)});
  float at = x0;
  for (size_t p = 0; p < work.size(); ++p) {
    const float width = (x1 - x0) * static_cast<float>(phase_weight(work[p]) / weights);
    add_phase(lanes, lane, at, at + std::max(1.0F, width - (p + 1 < work.size() ? 2 : 0)), step,
              rank, p, work[p]);
    at += width;
  }
  if (lanes.table.busiest(step) == rank)
    add_busiest_mark(scene, x0, lane.y0, std::min(8.0F, lane.height() / 2));
  if (!has_light) return;
  Light light = light_of_step(scene.input, step);
  if (const auto* item = std::get_if<ItemId>(&target))
    light = std::max(light, light_of_item(scene.input, *item));
  if (light == Light::none) return;
  const Role role = light == Light::hovered    ? Role::hovered
                    : light == Light::selected ? Role::selected
                                               : Role::related;
  scene.drawing().add(
      OutlinedBox{cell, scene.theme().of(role), light == Light::selected ? 2.0F : 1.0F});
}

/// Adds cells that are too narrow for bars: filled in proportion to the busy time of their ranks.
void add_folded_lane(StepLanes& lanes, int32_t rank, float least_pixels) {
  TimelineScene& scene = lanes.scene;
  const Box lane = scene.lane(rank);
  const auto fold = std::max<int32_t>(
      1, static_cast<int32_t>(std::ceil(least_pixels * scene.time.units_per_pixel())));
  scene.drawing().add(OutlinedBox{
      {scene.lanes.x0, lane.y0, scene.lanes.x1, lane.y1}, scene.theme().of(Role::wait), 1});
  for (int32_t step = lanes.first_step / fold * fold; step < lanes.end_step; step += fold) {
    const int32_t end = std::min(step + fold, lanes.table.num_steps());
    const auto busy = static_cast<float>(lanes.table.busy_share(step, end, rank, rank + 1));
    if (busy <= 0) continue;
    float x0 = std::max(scene.lanes.x0, lanes.x_of(step));
    float x1 = std::min(scene.lanes.x1, lanes.x_of(end));
    if (x1 - x0 > 4) x1 -= 1;
    if (x1 <= x0) continue;
    scene.drawing().add(FilledBox{{x0, lane.y1 - lane.height() * busy, x1, lane.y1},
                                  scene.theme().of(Role::compute)});
  }
}

/// Adds one picture of all cells; lighter means busier.
void add_step_heat_map(StepLanes& lanes) {
  TimelineScene& scene = lanes.scene;
  const StepTable& table = lanes.table;
  Pixels pixels;
  pixels.box = scene.lanes;
  pixels.width = std::clamp(static_cast<int32_t>(scene.lanes.width() / 3), 1, 640);
  pixels.height = std::clamp(static_cast<int32_t>(scene.lanes.height() / 2), 1, 540);
  pixels.colors.resize(static_cast<size_t>(pixels.width) * static_cast<size_t>(pixels.height));
  const std::vector<Color> shades = make_busy_shades(scene.theme());
  const auto cells = [](const Axis& axis, float from, float to, int32_t count, int32_t most) {
    std::vector<std::pair<int32_t, int32_t>> spans;
    for (int32_t i = 0; i < count; ++i) {
      const float step = (to - from) / static_cast<float>(count);
      const double lo = axis.value_at(from + step * static_cast<float>(i));
      const double hi = axis.value_at(from + step * static_cast<float>(i + 1));
      const auto first = static_cast<int32_t>(std::clamp(std::floor(lo), -1.0, most + 0.0));
      const auto end = static_cast<int32_t>(std::clamp(std::floor(hi), first + 1.0, most + 1.0));
      spans.emplace_back(first, hi <= 0 || lo >= most ? first : std::min(end, most));
    }
    return spans;
  };
  const auto columns =
      cells(scene.time, scene.lanes.x0, scene.lanes.x1, pixels.width, table.num_steps());
  const auto rows =
      cells(scene.ranks, scene.lanes.y0, scene.lanes.y1, pixels.height, table.num_ranks());
  for (size_t y = 0; y < rows.size(); ++y) {
    const auto [first_rank, end_rank] = rows[y];
    if (first_rank < 0 || first_rank >= end_rank) continue;
    for (size_t x = 0; x < columns.size(); ++x) {
      const auto [first, end] = columns[x];
      if (first < 0 || first >= end) continue;
      const double busy = table.busy_share(first, end, first_rank, end_rank);
      pixels.colors[y * columns.size() + x] =
          shades[static_cast<size_t>(std::clamp(busy * 255, 0.0, 255.0))];
    }
  }
  scene.drawing().add(std::move(pixels));
  // The critical path: the busiest rank of the first step of each column.
  const float width = scene.lanes.width() / static_cast<float>(columns.size());
  for (size_t x = 0; x < columns.size(); x += 2) {
    const auto [first, end] = columns[x];
    if (first < 0 || first >= end || table.busiest(first) < 0) continue;
    const float y = scene.ranks.pixel_of(table.busiest(first) + 0.5);
    if (y < scene.lanes.y0 || y > scene.lanes.y1) continue;
    const float at = scene.lanes.x0 + width * static_cast<float>(x);
    scene.drawing().add(
        FilledBox{{at, y - 1, at + 2 * width, y + 1}, scene.theme().of(Role::error)});
  }
}

/// The position of the moment, in steps: whole steps, or the phases of one that contain its stages.
std::pair<double, double> find_step_playhead(StepLanes& lanes) {
  const PlanIndex& plan = lanes.plan();
  const auto stages = static_cast<int32_t>(plan.stages().size());
  if (stages == 0) return {0, 0};
  const Moment& moment = lanes.scene.input.moment;
  const int32_t first = std::clamp(moment.first_stage, 0, stages - 1);
  const int32_t end = std::clamp(moment.end_stage, first + 1, stages);
  const int32_t step = plan.step_of_stage(first), last = plan.step_of_stage(end - 1);
  if (last > step) return {step, last + 1.0};
  const StepWork& work = lanes.table.work(plan, step);
  double all = 0, before = 0, now = 0;
  for (const PhaseWork& phase : work) {
    const double weight = phase_weight(phase);
    all += weight;
    if (phase.end_stage <= first)
      before += weight;
    else if (phase.first_stage < end)
      now += weight;
  }
  return {step + before / all, step + (before + now) / all};
}

bool is_lit(const ViewInput& input) {
  return !input.selected->is_empty() || !input.hovered->is_empty();
}

void add_step_cells(StepLanes& lanes) {
  TimelineScene& scene = lanes.scene;
  const auto cell_width = static_cast<float>(scene.time.pixels_per_unit());
  const double rows = scene.end_rank - scene.first_rank;
  const double columns = lanes.end_step - lanes.first_step;
  size_t most_phases = 1;
  if (columns <= 256)
    for (int32_t step = lanes.first_step; step < lanes.end_step; ++step)
      most_phases = std::max(most_phases, lanes.table.work(lanes.plan(), step).size());
  const double marks = rows * columns * 8 * static_cast<double>(most_phases);
  const bool has_bars = cell_width >= kBarCell * static_cast<float>(most_phases) &&
                        scene.lane_height() >= kBarLane && marks <= kCellMarks;
  const float least = 3;
  const double folded = rows * std::min(columns, scene.lanes.width() / least + 2.0);
  const bool is_heat = !has_bars && (scene.is_heat() || folded > kCellMarks);
  if (!has_bars)
    scene.view.grids.push_back(
        {scene.lanes, scene.time.lo(), scene.time.hi(), scene.ranks.lo(), scene.ranks.hi()});
  if (is_heat) {
    add_step_heat_map(lanes);
    return;
  }
  const bool has_light = is_lit(scene.input);
  for (int32_t rank = scene.first_rank; rank < scene.end_rank; ++rank) {
    if (has_bars) {
      for (int32_t step = lanes.first_step; step < lanes.end_step; ++step)
        add_cell(lanes, step, rank, has_light);
    } else {
      add_folded_lane(lanes, rank, least);
      if (rows * columns > 4000) continue;
      for (int32_t step = lanes.first_step; step < lanes.end_step; ++step)
        if (lanes.table.busiest(step) == rank)
          add_busiest_mark(scene, lanes.x_of(step), scene.lane(rank).y0,
                           std::min({8.0F, cell_width, scene.lane_height() / 2}));
    }
  }
}

}  // namespace

void add_step_lanes(const ViewInput& input, const StepTable& table, const Box& box, View& view) {
  const float left_margin = 72, right_margin = box.width() >= 480 ? 62.0F : 6.0F;
  const Box room{box.x0 + left_margin, box.y0 + kPasses + kStepNumbers, box.x1 - right_margin,
                 box.y1};
  view.scaled.push_back(room);
  TimelineScene scene{input,
                      view,
                      Axis(table.num_steps() * input.stretch, input.camera.x, room.x0, room.x1),
                      Axis(table.num_ranks(), input.camera.y, room.y0, room.y1),
                      room,
                      box.x0,
                      box.x1};
  find_shown_ranks(scene, table.num_ranks());
  StepLanes lanes{scene, table};
  const double last = std::max(0.0, table.num_steps() - 1.0);
  lanes.first_step = static_cast<int32_t>(std::clamp(std::floor(scene.time.lo()), 0.0, last));
  lanes.end_step = static_cast<int32_t>(
      std::clamp(std::ceil(scene.time.hi()), lanes.first_step + 1.0, last + 1));
  int32_t forward = 0;
  for (const StepRef& step : input.plan->steps())
    forward += step.direction == Direction::forward ? 1 : 0;
  add_pass(lanes, Direction::forward, 0, forward, box.y0 + 1);
  add_pass(lanes, Direction::backward, forward, table.num_steps(), box.y0 + 1);
  add_step_numbers(lanes, box.y0 + kPasses);
  add_step_hits(lanes, box.y0 + kPasses);
  add_rank_titles(scene, "rank");
  const auto [from, to] = find_step_playhead(lanes);
  begin_playhead(scene, from, to);
  scene.drawing().add(PushClip{room});
  add_step_cells(lanes);
  scene.drawing().add(PopClip{});
  for (int32_t rank = scene.first_rank; rank < scene.end_rank && scene.lane_height() >= 12; ++rank)
    add_lane_figure(
        scene, rank,
        fmt::format("{:.0f} %", 100 * table.busy_share(0, table.num_steps(), rank, rank + 1)));
  if (right_margin > 20)
    scene.drawing().add(Label{{box.x1 - 4, room.y0 - 4},
                              Anchor::right_bottom,
                              scene.theme().of(Role::faint_text),
                              scene.small,
                              Face::body,
                              "busy"});
  add_playhead(scene, from, to, box.y0 + kPasses);
  view.scale = print_scale(scene.time.units_per_pixel(), "step");
}

}  // namespace cpscope::gui
