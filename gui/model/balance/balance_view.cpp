#include "gui/model/balance/balance_view.h"

#include "gui/model/balance/balance.h"
#include "gui/model/balance/rank_chart.h"
#include "gui/model/describe.h"
#include "gui/model/legend.h"
#include "gui/model/light.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr float kBalanceMargin = 10;
constexpr float kPathRow = 26;
constexpr float kMeter = 34;
constexpr float kLeastChart = 80;  // minimum height in pixels of a chart with bars
constexpr float kLeastBars = 88;   // minimum height of the charts above other parts
constexpr int64_t kMostSegments = 2000;

std::shared_ptr<const Balance> balance_of(const ViewInput& input) {
  const std::string key = to_hex(input.plan->plan().hash);
  return remember<Balance>(input.memo, key, input.plan->is_large(), [plan = input.plan] {
    return std::make_shared<const Balance>(measure_balance(*plan));
  });
}

double over_mean(const ByDirection<std::vector<int64_t>>& of_rank) {
  double most = 0, sum = 0;
  for (size_t r = 0; r < of_rank.forward.size(); ++r) {
    const double value =
        static_cast<double>(of_rank.forward[r]) + static_cast<double>(of_rank.backward[r]);
    most = std::max(most, value);
    sum += value;
  }
  return sum > 0 ? most / (sum / static_cast<double>(of_rank.forward.size())) : 1.0;
}

/// The groups of the round at the moment.
std::vector<std::pair<int64_t, int64_t>> groups_now(const ViewInput& input) {
  std::vector<std::pair<int64_t, int64_t>> groups;
  const CpRound* const round = round_at(*input.plan, input.moment);
  if (round == nullptr) return groups;
  for (const CpGroup& group : round->groups)
    groups.emplace_back(group.first_rank, group.first_rank + group.size);
  return groups;
}

void add_charts(const ViewInput& input, const Balance& balance, const Box& box, View& view) {
  const std::vector<std::pair<int64_t, int64_t>> groups = groups_now(input);
  const bool is_wide = box.width() >= 480;
  // Two charts too low for bars would show less than one chart with bars.
  const bool has_both = is_wide || box.height() >= 2 * kLeastChart || box.height() < kLeastChart;
  const Box left = is_wide ? Box{box.x0, box.y0, box.x0 + box.width() / 2 - 8, box.y1}
                           : Box{box.x0, box.y0, box.x1, has_both ? box.center().y - 2 : box.y1};
  const Box right = is_wide ? Box{box.x0 + box.width() / 2 + 8, box.y0, box.x1, box.y1}
                            : Box{box.x0, box.center().y + 2, box.x1, box.y1};
  // The second chart shares the first one's camera; its grid is the first one's.
  const auto choose = [&](const Box& at, const char* full, const char* name, double times) {
    return first_that_fits(input.text_width,
                           {fmt::format("{} {:.4f} x the mean", full, times),
                            fmt::format("{}: {:.4f} x the mean", name, times),
                            fmt::format("{}: {:.2f} x mean", name, times)},
                           12, Face::strong, at.width());
  };
  if (has_both)
    add_rank_chart(
        input,
        {choose(right, "Sent bytes: most", "Bytes", over_mean(balance.bytes)),
         "No rank sends anything.", balance.bytes.forward, balance.bytes.backward, Role::transfer,
         Hatch::diagonal, "mean", [](double bytes) { return print_bytes(bytes); }, true, "bytes",
         "bytes", groups},
        right, view);
  view.grids.clear();
  add_rank_chart(
      input,
      {choose(left, "Computed pairs: busiest", "Pairs", over_mean(balance.pairs)),
       "No pair is visible.", balance.pairs.forward, balance.pairs.backward, Role::compute,
       Hatch::none, "ideal", print_quantity, false, "rank", "pairs", groups},
      left, view);
}

/// Consecutive steps of one pass that are drawn as one part of the critical path.
struct Segment {
  float x0 = 0, x1 = 0;
  BusiestRank step;          // the busiest of these steps
  double idle_share = 0.0;   // largest share of idle time in one of these steps
  int32_t begun_round = -1;  // of cp_sizes, that begins with the first of these steps; -1: none
};

/// The steps next to each other, each as long as its busiest rank; steps below a pixel are merged.
std::vector<Segment> cut_path(const ViewInput& input, const Balance& balance, Direction direction,
                              float x0, double pixels_per_pair) {
  std::vector<Segment> segments;
  const auto ranks = static_cast<double>(input.plan->num_ranks());
  double pairs = 0;
  int32_t round = -1;
  for (const BusiestRank& step : balance.steps) {
    if (input.plan->steps()[static_cast<size_t>(step.step)].direction != direction ||
        step.pairs == 0)
      continue;
    const int32_t begun = step.round != round ? step.round : -1;
    round = step.round;
    const double idle =
        1 - static_cast<double>(step.all_pairs) / ranks / static_cast<double>(step.pairs);
    const float begin = x0 + static_cast<float>(pairs * pixels_per_pair);
    pairs += static_cast<double>(step.pairs);
    const float end = x0 + static_cast<float>(pairs * pixels_per_pair);
    if (!segments.empty() && end - segments.back().x0 < 2) {
      Segment& last = segments.back();
      last.x1 = end;
      last.idle_share = std::max(last.idle_share, idle);
      if (step.pairs > last.step.pairs) last.step = step;
      continue;
    }
    if (static_cast<int64_t>(segments.size()) < kMostSegments)
      segments.push_back({begin, end, step, idle, begun});
  }
  return segments;
}

void add_segment(const ViewInput& input, const Segment& segment, const Box& row, View& view) {
  const Theme& theme = *input.theme;
  const Color color = theme.of(Role::compute);
  const Box box{segment.x0, row.y0, segment.x1, row.y1};
  const float busy = box.height() * static_cast<float>(1 - segment.idle_share);
  view.drawing.add(FilledBox{{box.x0, box.y1 - busy, box.x1, box.y1}, color});
  const bool is_wide = box.width() >= 4;
  if (is_wide) view.drawing.add(OutlinedBox{box, theme.of(Role::text).with_alpha(150), 1});
  if (segment.begun_round > 0)
    view.drawing.add(Line{{box.x0, box.y0 - 4}, {box.x0, box.y1 + 4}, theme.of(Role::transfer), 2});
  std::string text = fmt::format("r{}", segment.step.rank);
  if (segment.begun_round >= 0)
    text = first_that_fits(input.text_width,
                           {fmt::format("round {}: {}", segment.begun_round + 1, text), text},
                           kSmallText, Face::mono, box.width() - 6);
  if (input.text_width(text, kSmallText, Face::mono) + 6 < box.width()) {
    const bool is_on_color = busy > box.height() / 2 + 5;
    view.drawing.add(Label{{box.x0 + 5, box.center().y},
                           Anchor::left_middle,
                           is_on_color ? theme.text_on(color) : theme.of(Role::text),
                           kSmallText,
                           Face::mono,
                           text});
  }
  const Light light = light_of_step(input, segment.step.step);
  if (light != Light::none && is_wide)
    view.drawing.add(OutlinedBox{box,
                                 theme.of(light == Light::hovered ? Role::hovered : Role::selected),
                                 light == Light::selected ? 2.0F : 1.0F});
  view.hits.push_back(
      {box, StepTarget{segment.step.step}, fmt::format("step/{}", segment.step.step),
       fmt::format("{}{}: rank {} is busiest with {} pairs; all ranks together wait {} of the step",
                   capitalise(name_target(StepTarget{segment.step.step}, input.plan)),
                   segment.step.round < 0 ? ""
                                          : fmt::format(", round {} of {}", segment.step.round + 1,
                                                        input.plan->plan().layout.rounds.size()),
                   segment.step.rank, print_count(segment.step.pairs),
                   print_share(segment.idle_share))});
}

void add_path_row(const ViewInput& input, const Balance& balance, Direction direction,
                  double pixels_per_pair, const Box& row, View& view) {
  const Theme& theme = *input.theme;
  view.drawing.add(Label{{row.x0 - 6, row.center().y},
                         Anchor::right_middle,
                         theme.of(Role::faint_text),
                         kSmallText,
                         Face::body,
                         std::string(to_name(direction))});
  for (const Segment& segment : cut_path(input, balance, direction, row.x0, pixels_per_pair))
    add_segment(input, segment, row, view);
  const float ideal = row.x0 + static_cast<float>(balance.mean_pairs(direction) * pixels_per_pair);
  view.drawing.add(Line{{ideal, row.y0 - 4}, {ideal, row.y1 + 4}, theme.of(Role::text), 2, true});
}

std::string path_text(const ViewInput& input, const Balance& balance, float room) {
  const auto share = [&](Direction direction) {
    const double mean = balance.mean_pairs(direction);
    return mean > 0 ? static_cast<double>(balance.critical[direction]) / mean : 1.0;
  };
  const double forward = share(Direction::forward);
  std::string full = fmt::format("Critical path: forward {:.4f} x the ideal", forward);
  std::string brief = fmt::format("Critical path: {:.3f} x", forward);
  if (balance.total.backward > 0) {
    const double backward = share(Direction::backward);
    full += fmt::format(", backward {:.4f} x", backward);
    brief += fmt::format(", {:.3f} x the ideal", backward);
  } else {
    brief += " the ideal";
  }
  return first_that_fits(input.text_width,
                         {full, brief, fmt::format("Path: {:.3f} x ideal", forward)}, 12,
                         Face::strong, room);
}

void add_path(const ViewInput& input, const Balance& balance, const Box& box, View& view) {
  const Theme& theme = *input.theme;
  const std::string text = path_text(input, balance, box.width());
  view.drawing.add(
      Label{{box.x0, box.y0}, Anchor::left_top, theme.of(Role::text), 12, Face::strong, text});
  const float used = input.text_width(text, 12, Face::strong) + 14;
  const std::string help = first_that_fits(
      input.text_width,
      {"box: one step, as wide as its busiest rank's work; empty part: idle ranks; dashed: ideal",
       "empty: waiting, dashed: ideal", "dashed: ideal", ""},
      kSmallText, Face::body, box.width() - used);
  if (!help.empty())
    view.drawing.add(Label{{box.x0 + used, box.y0 + 1},
                           Anchor::left_top,
                           theme.of(Role::faint_text),
                           kSmallText,
                           Face::body,
                           help});
  const auto longest =
      static_cast<double>(std::max(balance.critical.forward, balance.critical.backward));
  if (longest <= 0) return;
  const float left = box.x0 + 64;
  const double pixels_per_pair = (box.x1 - left) / longest;
  add_path_row(input, balance, Direction::forward, pixels_per_pair,
               {left, box.y0 + 20, box.x1, box.y0 + 20 + kPathRow}, view);
  if (balance.total.backward > 0)
    add_path_row(input, balance, Direction::backward, pixels_per_pair,
                 {left, box.y0 + 26 + kPathRow, box.x1, box.y0 + 26 + 2 * kPathRow}, view);
}

/// A bar that shows which share of a whole is useful.
struct Meter {
  std::string text, brief, briefest;  // the longest one that fits is shown
  double share = 0.0;                 // the useful share
  Role good{}, rest{};
  Hatch good_hatch = Hatch::none, rest_hatch = Hatch::none;
};

void add_meter(const ViewInput& input, const Meter& meter, const Box& box, View& view) {
  const Theme& theme = *input.theme;
  view.drawing.add(
      Label{{box.x0, box.y0},
            Anchor::left_top,
            theme.of(Role::text),
            kSmallText,
            Face::body,
            first_that_fits(input.text_width, {meter.text, meter.brief, meter.briefest}, kSmallText,
                            Face::body, box.width())});
  const Box bar{box.x0, box.y0 + 17, box.x1, box.y0 + 28};
  const float middle = bar.x0 + bar.width() * static_cast<float>(std::clamp(meter.share, 0.0, 1.0));
  const auto add = [&](float x0, float x1, Role role, Hatch hatch) {
    if (x1 <= x0) return;
    const Color color = theme.of(role);
    view.drawing.add(
        FilledBox{{x0, bar.y0, x1, bar.y1}, color, hatch, theme.text_on(color).with_alpha(110)});
  };
  add(bar.x0, middle, meter.good, meter.good_hatch);
  // Waste that is smaller than a pixel stays visible.
  add(meter.share < 1 ? std::min(middle, bar.x1 - 2) : middle, bar.x1, meter.rest,
      meter.rest_hatch);
  view.drawing.add(OutlinedBox{bar, theme.of(Role::grid), 1});
}

double share_of(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 1.0;
}

void add_meters(const ViewInput& input, const Balance& balance, const Box& box, View& view) {
  const float middle = box.center().x;
  const Box left{box.x0, box.y0, middle - 8, box.y1}, right{middle + 8, box.y0, box.x1, box.y1};
  const double needed = share_of(balance.kv_necessary, balance.kv_moved);
  std::string traffic = "Forward moves no K and V", brief = "No K and V move";
  if (balance.kv_moved > 0) {
    traffic = fmt::format("K, V moved forward: {}, needed: {} ({})", print_bytes(balance.kv_moved),
                          print_bytes(balance.kv_necessary), print_share(needed));
    brief = fmt::format("KV needed: {} of moved", print_share(needed));
  }
  const bool moves_less = balance.kv_moved > 0 && balance.kv_necessary > balance.kv_moved;
  if (moves_less) {
    // Heads or queries travel: the keys that owners of queries would need do not.
    traffic = fmt::format("K, V moved forward: {}; {} if owners of queries computed alone",
                          print_bytes(balance.kv_moved), print_bytes(balance.kv_necessary));
    brief = fmt::format("KV moved: {}, {} if owners computed alone", print_bytes(balance.kv_moved),
                        print_bytes(balance.kv_necessary));
  }
  const std::string briefest = balance.kv_moved == 0 ? "no KV"
                               : moves_less          ? "KV " + print_bytes(balance.kv_moved)
                                                     : "KV " + print_share(needed);
  add_meter(
      input,
      {traffic, brief, briefest, needed, Role::transfer, Role::wait, Hatch::diagonal, Hatch::none},
      left, view);
  view.hits.push_back(
      {left, Nothing{}, "traffic",
       traffic + ". Necessary bytes follow from layout and mask alone: each remote row once "
                 "for each rank with a query that sees it"});
  const int64_t slots = balance.slots[0] + balance.slots[1],
                valid = balance.valid[0] + balance.valid[1];
  const double waste = 1 - share_of(valid, slots);
  const std::string padding =
      slots == valid
          ? fmt::format("No padding: {} queries and {} keys", print_count(balance.slots[0]),
                        print_count(balance.slots[1]))
          : fmt::format("Padding: {} of {} queries, {} of {} keys ({})",
                        print_count(balance.slots[0] - balance.valid[0]),
                        print_count(balance.slots[0]),
                        print_count(balance.slots[1] - balance.valid[1]),
                        print_count(balance.slots[1]), print_share(1 - share_of(valid, slots)));
  add_meter(input,
            {padding, slots == valid ? "No padding" : "Padding: " + print_share(waste),
             slots == valid ? "no pad" : "pad " + print_share(waste), share_of(valid, slots),
             Role::query, Role::padding, Hatch::none, Hatch::dots},
            right, view);
  view.hits.push_back(
      {right, Nothing{}, "padding", padding + ". Slots of the packed batch without a token"});
}

}  // namespace

View draw_balance(const ViewInput& input) {
  View view;
  view.title = "Balance: work and idle time of each rank";
  if (input.plan == nullptr) {
    view.drawing.add(Label{{input.size.width / 2, input.size.height / 2},
                           Anchor::center_middle,
                           input.theme->of(Role::text),
                           14,
                           Face::body,
                           "No plan is open. Open a scenario to see its balance."});
    return view;
  }
  const std::shared_ptr<const Balance> balance = balance_of(input);
  if (balance == nullptr) {
    add_sentence(view.drawing, input, {0, 0, input.size.width, input.size.height},
                 "Adding up the work of every rank.");
    return view;
  }
  const float x0 = kBalanceMargin, x1 = input.size.width - kBalanceMargin;
  const float path = balance->total.backward > 0 ? 32 + 2 * kPathRow : 26 + kPathRow;
  // The bars are what the view is for: where there is little height, the parts below them go first.
  const float bottom = input.size.height - 6;
  const auto leaves_bars = [](float y) { return y - 16 >= kLeastBars; };
  const bool has_meters = leaves_bars(bottom - kMeter - path - 8);
  const bool has_path = has_meters || leaves_bars(bottom - path - 8);
  const float meters = has_meters ? bottom - kMeter : bottom;
  const float paths = has_path ? meters - path - 8 : meters;
  add_charts(input, *balance, {x0, 8, x1, std::max(9.0F, paths - 8)}, view);
  if (has_path) add_path(input, *balance, {x0, paths, x1, meters}, view);
  if (has_meters) add_meters(input, *balance, {x0, meters, x1, input.size.height}, view);
  const double mean = balance->mean_pairs(Direction::forward);
  view.title = with_round(
      fmt::format("Balance: busiest rank {:.4f} x the mean, critical path {:.4f} x the ideal",
                  over_mean(balance->pairs),
                  mean > 0 ? static_cast<double>(balance->critical.forward) / mean : 1.0),
      *input.plan, input.moment);
  return view;
}

}  // namespace cpscope::gui
