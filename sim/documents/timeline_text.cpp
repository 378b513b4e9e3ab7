#include "sim/documents/timeline_text.h"

#include "sim/base/machine_memory.h"
#include "sim/clock/measured.h"
#include "sim/documents/json_text.h"
#include "sim/documents/trace_text.h"
#include "sim/plan/direction.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ostream>
#include <string>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr size_t kMostRanksShown = 32;

/// Smallest, mean and largest of one figure over the ranks.
struct Spread {
  double least = 0, mean = 0, most = 0;
};

template <class Figure>
Spread spread_over(const std::vector<RankTimes>& ranks, const Figure& figure) {
  Spread spread;
  if (ranks.empty()) return spread;
  spread.least = figure(ranks.front());
  for (const RankTimes& rank : ranks) {
    const double value = figure(rank);
    spread.least = std::min(spread.least, value);
    spread.most = std::max(spread.most, value);
    spread.mean += value / static_cast<double>(ranks.size());
  }
  return spread;
}

std::string show_spread(const Spread& spread) {
  return fmt::format("{:>10.3f} {:>10.3f} {:>10.3f}", spread.least * 1e-3, spread.mean * 1e-3,
                     spread.most * 1e-3);
}

std::string describe_critical(const CriticalPath& path, double total_us) {
  constexpr std::array<StageKind, 5> kKinds = {StageKind::compute, StageKind::transfer,
                                               StageKind::merge, StageKind::reorder,
                                               StageKind::finish};
  std::string text;
  for (const StageKind kind : kKinds) {
    const double us = path.kind_us[static_cast<size_t>(kind)];
    if (us > 0) text += fmt::format("{} {:.1f} %, ", to_name(kind), 100 * us / total_us);
  }
  return text + fmt::format("launches and waiting {:.1f} %", 100 * path.waiting_us / total_us);
}

void write_pass_text(const Timeline& timeline, const Plan& plan, Direction direction,
                     std::ostream& out) {
  const PassTimeline& pass = timeline.pass(direction);
  out << fmt::format("{}: {:.3f} ms, {:.0f} TFLOP/s a GPU\n", to_name(direction),
                     pass.total_us * 1e-3, tflops_of_pass(plan, direction, pass.total_us));
  out << fmt::format("  {:<22}{:>10} {:>10} {:>10}\n", "ms a rank", "least", "mean", "most");
  const auto line = [&](const char* what, auto figure) {
    out << fmt::format("  {:<22}{}\n", what, show_spread(spread_over(pass.ranks, figure)));
  };
  line("attention", [](const RankTimes& r) { return r.compute_us; });
  line("merges and moves", [](const RankTimes& r) { return r.local_us; });
  line("exposed transfers", [](const RankTimes& r) { return r.exposed_us; });
  line("idle", [](const RankTimes& r) { return r.idle_us; });
  line("transfers in all", [](const RankTimes& r) { return r.transfer_us; });
  out << "  longest chain: " << describe_critical(pass.critical, pass.total_us) << '\n';
}

Json rank_json(const RankTimes& rank) {
  return {{"compute_us", rank.compute_us},   {"local_us", rank.local_us},
          {"exposed_us", rank.exposed_us},   {"idle_us", rank.idle_us},
          {"transfer_us", rank.transfer_us}, {"launch_us", rank.launch_us},
          {"partner_us", rank.partner_us},   {"host_us", rank.host_us},
          {"groups_us", rank.groups_us}};
}

Json pass_json(const Timeline& timeline, const Plan& plan, Direction direction) {
  const PassTimeline& pass = timeline.pass(direction);
  Json json;
  json["total_us"] = pass.total_us;
  json["tflops_per_gpu"] = tflops_of_pass(plan, direction, pass.total_us);
  Json chain;
  for (const StageKind kind : {StageKind::transfer, StageKind::reorder, StageKind::compute,
                               StageKind::merge, StageKind::finish})
    chain[std::string(to_name(kind)) + "_us"] = pass.critical.kind_us[static_cast<size_t>(kind)];
  chain["waiting_us"] = pass.critical.waiting_us;
  json["critical_path"] = std::move(chain);
  Json ranks = Json::array();
  for (const RankTimes& rank : pass.ranks) ranks.push_back(rank_json(rank));
  json["ranks"] = std::move(ranks);
  return json;
}

constexpr size_t kMostStepsShown = 32;

/// "+3.1 %"; "-" where nothing was measured.
std::string show_percent(double percent, const char* sign) {
  if (std::isnan(percent)) return "-";
  return fmt::format("{}{:.1f} %", percent > 0 ? sign : "", percent);
}

void write_error_line(const std::string& what, const ItemError& error, std::ostream& out) {
  out << fmt::format("  {:<22}{:>10.3f} {:>10.3f} {:>10} {:>10}  ({} items)\n", what,
                     error.sum.predicted_us * 1e-3, error.sum.measured_us * 1e-3,
                     show_percent(error.sum.error_percent(), "+"),
                     show_percent(error.mean_absolute_percent, ""), error.items);
}

void write_pass_error(const char* name, const PassError& error, std::ostream& out) {
  out << fmt::format("{}, predicted and measured\n", name);
  out << fmt::format("  {:<22}{:>10} {:>10} {:>10} {:>10}\n", "ms", "predicted", "measured",
                     "error", "mean |e|");
  out << fmt::format("  {:<22}{:>10.3f} {:>10.3f} {:>10}\n", "first begin to last end",
                     error.total.predicted_us * 1e-3, error.total.measured_us * 1e-3,
                     show_percent(error.total.error_percent(), "+"));
  for (const ItemError& kind : error.kinds)
    write_error_line("all " + std::string(to_name(kind.kind)) + " items", kind, out);
  const size_t shown = std::min(error.steps.size(), kMostStepsShown);
  for (size_t i = 0; i < shown; ++i)
    write_error_line(
        fmt::format("step {} {}", to_index(error.steps[i].step), to_name(error.steps[i].kind)),
        error.steps[i], out);
  if (shown < error.steps.size())
    out << fmt::format("  and {} more rows of steps (--json has all)\n",
                       error.steps.size() - shown);
  const auto say = [&](int64_t count, const char* what) {
    if (count > 0)
      out << fmt::format("  {} item{} {}\n", count, count == 1 ? " was" : "s were", what);
  };
  say(error.only_predicted, "predicted and not measured");
  say(error.only_measured, "measured and not predicted");
}

Json pair_json(const TimePair& pair) {
  return {{"predicted_us", pair.predicted_us},
          {"measured_us", pair.measured_us},
          {"error_percent", finite_or_null(pair.error_percent())}};
}

Json errors_json(const std::vector<ItemError>& errors) {
  Json list = Json::array();
  for (const ItemError& error : errors) {
    Json json;
    if (to_index(error.step) >= 0) json["step"] = to_index(error.step);
    json["kind"] = to_name(error.kind);
    json["items"] = error.items;
    json.update(pair_json(error.sum));
    json["mean_absolute_error_percent"] = finite_or_null(error.mean_absolute_percent);
    list.push_back(std::move(json));
  }
  return list;
}

Json pass_error_json(const PassError& error) {
  return {{"total", pair_json(error.total)},
          {"kinds", errors_json(error.kinds)},
          {"steps", errors_json(error.steps)},
          {"only_predicted", error.only_predicted},
          {"only_measured", error.only_measured}};
}

MeasuredError compare_times(const TimelineExport& times) {
  if (times.traces == nullptr)
    return compare_with_measured(times.plan, times.timeline.events, times.measured);
  return compare_with_measured(times.plan, comparable_events(times), times.measured);
}

std::string note_of(const TimelineExport& times) {
  const Result<const Stack*> stack = find_stack(times.cluster, times.timeline.stack);
  return stack ? note_on_times(*stack.value(), times.plan.scenario) : "";
}

}  // namespace

void write_timeline_text(const TimelineExport& times, std::ostream& out) {
  const auto& [plan, cluster, timeline, measured, traces] = times;
  out << fmt::format("{} ranks on {}, stack {}: predicted, not measured\n", plan.home.size(),
                     cluster.title, timeline.stack);
  if (const std::string note = note_of(times); !note.empty()) out << "note: " << note << '\n';
  write_pass_text(timeline, plan, Direction::forward, out);
  if (plan.scenario.numerics.backward) write_pass_text(timeline, plan, Direction::backward, out);
  const auto fullest = std::max_element(timeline.memory_bytes.begin(), timeline.memory_bytes.end());
  const double memory = gibibytes(*fullest);
  out << fmt::format("memory: at most {:.2f} GiB, on rank {}; a GPU has {:.1f}{}\n", memory,
                     std::distance(timeline.memory_bytes.begin(), fullest),
                     cluster.device.memory_gib,
                     memory > cluster.device.memory_gib ? ": it does not fit" : "");
  const size_t shown = std::min(kMostRanksShown, timeline.forward.ranks.size());
  out << fmt::format("{:>6} {:>12} {:>12} {:>12}  {:>12} {:>12} {:>12}  (ms)\n", "rank",
                     "attention", "exposed", "idle", "bwd", "exposed", "idle");
  for (size_t r = 0; r < shown; ++r) {
    const RankTimes& forward = timeline.forward.ranks[r];
    const RankTimes& backward = timeline.backward.ranks[r];
    out << fmt::format("{:>6} {:>12.3f} {:>12.3f} {:>12.3f}  {:>12.3f} {:>12.3f} {:>12.3f}\n", r,
                       forward.compute_us * 1e-3, forward.exposed_us * 1e-3, forward.idle_us * 1e-3,
                       backward.compute_us * 1e-3, backward.exposed_us * 1e-3,
                       backward.idle_us * 1e-3);
  }
  if (shown < timeline.forward.ranks.size())
    out << fmt::format("and {} more ranks (--json has all)\n",
                       timeline.forward.ranks.size() - shown);
  if (measured.empty() && traces == nullptr) return;
  const MeasuredError error = compare_times(times);
  write_pass_error("forward", error.forward, out);
  if (plan.scenario.numerics.backward) write_pass_error("backward", error.backward, out);
  if (traces != nullptr) write_match_text(times, out);
}

void write_timeline_json(const TimelineExport& times, std::ostream& out) {
  const auto& [plan, cluster, timeline, measured, traces] = times;
  Json head;
  head["schema"] = 1;
  head["cluster"] = cluster.name;
  head["stack"] = timeline.stack;
  head["plan_hash"] = to_hex(plan.hash);
  head["cp_size"] = plan.home.size();
  if (const std::string note = note_of(times); !note.empty()) head["note"] = note;
  head["forward"] = pass_json(timeline, plan, Direction::forward);
  if (plan.scenario.numerics.backward)
    head["backward"] = pass_json(timeline, plan, Direction::backward);
  head["memory_bytes"] = timeline.memory_bytes;
  head["device_memory_gib"] = cluster.device.memory_gib;
  if (!measured.empty() || traces != nullptr) {
    const MeasuredError error = compare_times(times);
    head["measured"]["forward"] = pass_error_json(error.forward);
    if (plan.scenario.numerics.backward)
      head["measured"]["backward"] = pass_error_json(error.backward);
    if (traces != nullptr) add_match_json(times, head["measured"]);
  }
  std::string text = head.dump();
  text.pop_back();  // the closing brace: the items follow
  out << text << ",\"items\":[";
  fmt::memory_buffer buffer;
  for (size_t i = 0; i < timeline.events.size(); ++i) {
    const ItemEvent& event = timeline.events[i];
    fmt::format_to(std::back_inserter(buffer),
                   "{}\n{{\"pass\":\"{}\",\"kind\":\"{}\",\"index\":{},\"rank\":{},\"step\":{},"
                   "\"start_ns\":{},\"end_ns\":{}}}",
                   i == 0 ? "" : ",", to_name(event.item.direction), to_name(event.item.kind),
                   event.item.index, to_index(event.rank), to_index(event.step), event.start_ns,
                   event.end_ns);
    if (buffer.size() > (1 << 16)) {
      out.write(buffer.data(), static_cast<std::streamsize>(buffer.size()));
      buffer.clear();
    }
  }
  out.write(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  out << "]}\n";
}

}  // namespace cpscope
