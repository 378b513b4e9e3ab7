#include "sim/documents/trace_text.h"

#include "sim/clock/trace_match.h"
#include "sim/plan/direction.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <string>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr size_t kMostTraceRows = 32, kMostStrangeRows = 16;

/// One step over all ranks that have it.
struct StepSpread {
  int64_t ranks = 0;
  double attention_us = 0, transfer_us = 0, exposed_us = 0, gap_us = 0;  // sums
  double most_exposed_us = 0, most_gap_us = 0;
};

std::map<StepId, StepSpread> spread_steps(const TraceMatch& match, Direction direction) {
  std::map<StepId, StepSpread> steps;
  for (const RankMeasured& rank : match.ranks) {
    for (const StepFigures& step : rank.pass(direction).steps) {
      StepSpread& spread = steps[step.step];
      ++spread.ranks;
      spread.attention_us += step.attention_us;
      spread.transfer_us += step.transfer_us;
      spread.exposed_us += step.exposed_us;
      spread.gap_us += step.gap_us;
      spread.most_exposed_us = std::max(spread.most_exposed_us, step.exposed_us);
      spread.most_gap_us = std::max(spread.most_gap_us, step.gap_us);
    }
  }
  return steps;
}

void write_ranks_of(const TimelineExport& times, Direction direction, std::ostream& out) {
  const TraceMatch& match = *times.traces;
  out << fmt::format("{}, measured (predicted), ms\n", to_name(direction));
  out << fmt::format("  {:>6} {:>20} {:>20} {:>20} {:>20} {:>10}\n", "rank", "total", "attention",
                     "exposed", "idle", "other");
  const size_t shown = std::min(match.ranks.size(), kMostTraceRows);
  for (size_t r = 0; r < shown; ++r) {
    const RankMeasured& rank = match.ranks[r];
    const PassFigures& seen = rank.pass(direction);
    const PassTimeline& pass = times.timeline.pass(direction);
    const RankTimes& predicted = pass.ranks[static_cast<size_t>(to_index(rank.rank))];
    const auto both = [](double measured_us, double predicted_us) {
      return fmt::format("{:.3f} ({:.3f})", measured_us * 1e-3, predicted_us * 1e-3);
    };
    out << fmt::format("  {:>6} {:>20} {:>20} {:>20} {:>20} {:>10.3f}\n", to_index(rank.rank),
                       both(seen.total_us, pass.total_us),
                       both(seen.attention_us, predicted.compute_us),
                       both(seen.exposed_us, predicted.exposed_us),
                       both(seen.idle_us, predicted.idle_us), seen.other_us * 1e-3);
  }
  if (shown < match.ranks.size())
    out << fmt::format("  and {} more ranks (--json has all)\n", match.ranks.size() - shown);
}

void write_steps_of(const TraceMatch& match, Direction direction, std::ostream& out) {
  const std::map<StepId, StepSpread> steps = spread_steps(match, direction);
  if (steps.empty()) return;
  out << fmt::format("  {:>6} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "step", "attention",
                     "transfers", "exposed", "most exposed", "waits before", "longest wait");
  size_t rows = 0;
  for (const auto& [step, spread] : steps) {
    if (++rows > kMostTraceRows) continue;
    const double scale = 1e-3 / static_cast<double>(spread.ranks);
    out << fmt::format("  {:>6} {:>12.3f} {:>12.3f} {:>12.3f} {:>12.3f} {:>12.3f} {:>12.3f}\n",
                       to_index(step), spread.attention_us * scale, spread.transfer_us * scale,
                       spread.exposed_us * scale, spread.most_exposed_us * 1e-3,
                       spread.gap_us * scale, spread.most_gap_us * 1e-3);
  }
  if (rows > kMostTraceRows)
    out << fmt::format("  and {} more steps (--json has all)\n", rows - kMostTraceRows);
}

void write_missing(const TraceMatch& match, Direction direction, std::ostream& out) {
  size_t rows = 0;
  for (const RankMeasured& rank : match.ranks) {
    const PassFigures& seen = rank.pass(direction);
    if (seen.missing_computes + seen.missing_transfers + seen.unknown_transfers == 0) continue;
    if (++rows > kMostTraceRows) continue;
    std::string words;
    const auto add = [&](int64_t count, const char* what) {
      if (count > 0) words += fmt::format("{}{} {}", words.empty() ? "" : ", ", count, what);
    };
    add(seen.missing_computes, "computes missing in the trace");
    add(seen.missing_transfers, "transfers missing in the trace");
    add(seen.unknown_transfers, "transfers unknown: several places fit");
    out << fmt::format("  rank {}: {}\n", to_index(rank.rank), words);
  }
  if (rows > kMostTraceRows)
    out << fmt::format("  and {} more ranks lack items (--json has all)\n", rows - kMostTraceRows);
}

std::string show_strange(const StrangeSpans& spans) {
  const std::string bytes = spans.bytes < 0 ? "unknown size" : fmt::format("{} bytes", spans.bytes);
  return fmt::format("{} x {} of {}, {:.3f} ms: {}", spans.count, to_name(spans.work), bytes,
                     spans.us * 1e-3, spans.name.substr(0, 60));
}

void write_strange(const TraceMatch& match, std::ostream& out) {
  for (const bool is_unknown : {false, true}) {
    size_t rows = 0;
    for (const StrangeSpans& spans : match.strange) {
      if (spans.is_unknown != is_unknown) continue;
      if (++rows > kMostStrangeRows) continue;
      out << fmt::format(
          "{}{}\n",
          is_unknown ? "unknown whether in the plan: " : "not in the plan: ", show_strange(spans));
    }
    if (rows > kMostStrangeRows)
      out << fmt::format("and {} more lines (--json has all)\n", rows - kMostStrangeRows);
  }
}

Json figures_json(const RankMeasured& rank, Direction direction) {
  const PassFigures& seen = rank.pass(direction);
  Json json;
  json["rank"] = to_index(rank.rank);
  json["total_us"] = seen.total_us;
  json["attention_us"] = seen.attention_us;
  json["exposed_us"] = seen.exposed_us;
  json["other_us"] = seen.other_us;
  json["idle_us"] = seen.idle_us;
  json["transfer_us"] = seen.transfer_us;
  json["missing_computes"] = seen.missing_computes;
  json["missing_transfers"] = seen.missing_transfers;
  json["unknown_transfers"] = seen.unknown_transfers;
  Json steps = Json::array();
  for (const StepFigures& step : seen.steps)
    steps.push_back({{"step", to_index(step.step)},
                     {"attention_us", step.attention_us},
                     {"transfer_us", step.transfer_us},
                     {"exposed_us", step.exposed_us},
                     {"wait_us", step.gap_us}});
  json["steps"] = std::move(steps);
  return json;
}

}  // namespace

std::vector<ItemEvent> comparable_events(const TimelineExport& times) {
  std::set<RankId> ranks;
  for (const RankMeasured& rank : times.traces->ranks) ranks.insert(rank.rank);
  std::vector<ItemEvent> events;
  for (const ItemEvent& event : times.timeline.events) {
    if (!ranks.contains(event.rank)) continue;
    const Pass& pass = times.plan.pass(event.item.direction);
    const auto index = static_cast<size_t>(event.item.index);
    const bool is_compute =
        event.item.kind == StageKind::compute && pass.computes[index].visible_pairs > 0;
    const bool is_message = event.item.kind == StageKind::transfer &&
                            pass.transfers[index].src != pass.transfers[index].dst;
    if (is_compute || is_message) events.push_back(event);
  }
  return events;
}

void write_match_text(const TimelineExport& times, std::ostream& out) {
  const TraceMatch& match = *times.traces;
  out << fmt::format("measured: {}", match.source);
  if (match.layers > 1)
    out << fmt::format("; layer {} of 0 to {}{}", match.layer, match.layers - 1,
                       match.has_layer_choice ? "" : ", the one of median duration");
  out << '\n';
  for (const std::string& note : match.notes) out << "  " << note << '\n';
  for (const Direction direction : kDirections) {
    if (direction == Direction::backward && !times.plan.scenario.numerics.backward) continue;
    write_ranks_of(times, direction, out);
    write_steps_of(match, direction, out);
    write_missing(match, direction, out);
  }
  write_strange(match, out);
}

void add_match_json(const TimelineExport& times, Json& measured) {
  const TraceMatch& match = *times.traces;
  measured["source"] = match.source;
  measured["layers"] = match.layers;
  measured["layer"] = match.layer;
  measured["notes"] = match.notes;
  for (const Direction direction : kDirections) {
    if (direction == Direction::backward && !times.plan.scenario.numerics.backward) continue;
    Json ranks = Json::array();
    for (const RankMeasured& rank : match.ranks) ranks.push_back(figures_json(rank, direction));
    measured[std::string(to_name(direction))]["ranks"] = std::move(ranks);
  }
  for (const bool is_unknown : {false, true}) {
    Json list = Json::array();
    for (const StrangeSpans& spans : match.strange) {
      if (spans.is_unknown != is_unknown) continue;
      Json json;
      json["name"] = spans.name;
      json["kind"] = to_name(spans.work);
      json["bytes"] = spans.bytes < 0 ? Json() : Json(spans.bytes);
      json["count"] = spans.count;
      json["us"] = spans.us;
      list.push_back(std::move(json));
    }
    measured[is_unknown ? "unknown" : "not_in_plan"] = std::move(list);
  }
  Json items = Json::array();
  for (const ItemEvent& event : match.events)
    items.push_back({{"pass", to_name(event.item.direction)},
                     {"kind", to_name(event.item.kind)},
                     {"index", event.item.index},
                     {"rank", to_index(event.rank)},
                     {"step", to_index(event.step)},
                     {"start_ns", event.start_ns},
                     {"end_ns", event.end_ns}});
  measured["items"] = std::move(items);
}

}  // namespace cpscope
