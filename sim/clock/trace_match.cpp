#include "sim/clock/trace_match.h"

#include "sim/clock/event_table.h"
#include "sim/clock/trace_align.h"
#include "sim/clock/trace_figures.h"
#include "sim/clock/trace_layers.h"
#include "sim/clock/trace_ranks.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kFarNs = std::numeric_limits<int64_t>::max();

uint32_t kind_bit(TraceWork work) { return 1U << static_cast<uint32_t>(work); }

/// Kinds of spans that can carry out a stage.
uint32_t kinds_of(const StageShare& share) {
  const uint32_t messages =
      kind_bit(TraceWork::send) | kind_bit(TraceWork::exchange) | kind_bit(TraceWork::all_to_all);
  return messages | kind_bit(share.adds ? TraceWork::reduce_scatter : TraceWork::all_gather);
}

/// What was found of one pass of one rank, in the clock of its trace.
struct FoundPass {
  PassWork work;
  std::vector<ItemEvent> events;
  int64_t missing_computes = 0, missing_transfers = 0, unknown_transfers = 0;
};

/// Finds the items of one rank in the layer that was taken.
class RankMatcher {
 public:
  RankMatcher(const Plan& plan, const RankTrace& trace, const RankLayers& layers)
      : plan_(plan),
        trace_(trace),
        layers_(layers),
        is_planned_(trace.work.spans.size()),
        is_strange_(trace.work.spans.size()),
        is_maybe_(trace.work.spans.size()) {
    for (const Direction direction : kDirections)
      shares_[direction] = stage_shares(plan, direction, trace.rank);
  }

  Result<FoundPass> find(Direction direction, const std::optional<TraceLayer>& layer) {
    FoundPass found;
    const int64_t place = !layer                            ? -1
                          : direction == Direction::forward ? layer->forward
                                                            : layer->backward;
    take_attention(direction, place, found);
    for (const TimeStretch& stretch : trace_.work.other) found.work.other.push_back(stretch);
    // Without any attention the trace is taken for one layer; a layer that lacks this pass has
    // nothing of it.
    const bool is_whole = layers_.passes.empty() && layers_.fault.empty() && layer;
    if (place >= 0 || is_whole) {
      if (auto error = take_transfers(direction, place, found)) return *error;
    } else {
      for (const StageShare& share : shares_[direction])
        found.missing_transfers += static_cast<int64_t>(share.items.size());
    }
    return found;
  }

  void add_strange(std::map<std::tuple<std::string, int64_t, bool>, StrangeSpans>& strange) const {
    for (size_t i = 0; i < trace_.work.spans.size(); ++i) {
      if (!is_strange_[i] || is_planned_[i]) continue;
      const TraceSpan& span = trace_.work.spans[i];
      const int64_t bytes = span.work == TraceWork::receive ? span.received_bytes : span.sent_bytes;
      const std::string& name = trace_.work.names[span.name];
      StrangeSpans& of_name = strange[{name, bytes, is_maybe_[i]}];
      of_name.name = name;
      of_name.work = span.work;
      of_name.bytes = bytes;
      of_name.is_unknown = is_maybe_[i];
      ++of_name.count;
      of_name.us += static_cast<double>(span.time.end_ns - span.time.start_ns) * 1e-3;
    }
  }

 private:
  const TraceSpan& span(size_t i) const { return trace_.work.spans[i]; }

  void take_attention(Direction direction, int64_t place, FoundPass& found) {
    std::vector<int32_t> step_of(trace_.work.spans.size(), -1);
    const std::vector<int64_t> computes = busy_computes(plan_, direction, trace_.rank);
    if (place < 0) {
      found.missing_computes = static_cast<int64_t>(computes.size());
    } else {
      const LayerPass& pass = layers_.passes[static_cast<size_t>(place)];
      const std::vector<AttentionCall>& calls = layers_.calls[direction];
      const auto each = static_cast<size_t>(layers_.calls_per_compute[direction]);
      for (size_t c = 0; c < computes.size(); ++c) {
        const ComputeItem& item = plan_.pass(direction).computes[static_cast<size_t>(computes[c])];
        TimeStretch time{kFarNs, 0};
        for (size_t k = pass.first + c * each; k < pass.first + (c + 1) * each; ++k) {
          time.start_ns = std::min(time.start_ns, calls[k].time.start_ns);
          time.end_ns = std::max(time.end_ns, calls[k].time.end_ns);
          for (const size_t i : calls[k].spans) step_of[i] = to_index(item.step);
        }
        found.events.push_back({{direction, StageKind::compute, computes[c]},
                                trace_.rank,
                                item.step,
                                time.start_ns,
                                time.end_ns});
      }
    }
    for (size_t i = 0; i < step_of.size(); ++i) {
      if (span(i).work == TraceWork::attention)
        found.work.attention.push_back({span(i).time, step_of[i]});
    }
  }

  /// The stages of the passes around the one at `place`, in order, and which of them are its own.
  struct Stages {
    std::vector<AlignedStage> aligned;
    std::vector<const StageShare*> shares;  // of the pass that is looked for; else null
  };

  Stages list_stages(Direction direction, int64_t place, bool is_sent) const {
    Stages stages;
    const auto& passes = layers_.passes;
    const auto add = [&](Direction of, bool is_own, int64_t earliest, int64_t latest) {
      for (const StageShare& share : shares_[of]) {
        const int64_t bytes = is_sent ? share.sent : share.received;
        if (bytes == 0) continue;
        stages.aligned.push_back(
            {bytes, earliest, latest, is_sent ? kinds_of(share) : kind_bit(TraceWork::receive)});
        stages.shares.push_back(is_own ? &share : nullptr);
      }
    };
    if (place < 0) {
      for (const Direction each : kDirections) add(each, each == direction, -kFarNs, kFarNs);
      return stages;
    }
    for (int64_t p = std::max<int64_t>(0, place - 1);
         p < std::min<int64_t>(place + 2, static_cast<int64_t>(passes.size())); ++p) {
      const auto at = static_cast<size_t>(p);
      const int64_t earliest = p > 0 ? passes[at - 1].last_call.start_ns : -kFarNs;
      const int64_t latest = at + 1 < passes.size() ? passes[at + 1].first_call.end_ns : kFarNs;
      add(passes[at].direction, p == place, earliest, latest);
    }
    return stages;
  }

  /// Spans of the rank between the passes around the one at `place`.
  TimeStretch window(int64_t place, int64_t reach) const {
    const auto& passes = layers_.passes;
    TimeStretch window{-kFarNs, kFarNs};
    if (place < 0) return window;
    if (place - reach >= 0)
      window.start_ns = passes[static_cast<size_t>(place - reach)].last_call.start_ns;
    if (static_cast<size_t>(place + reach) < passes.size())
      window.end_ns = passes[static_cast<size_t>(place + reach)].first_call.end_ns;
    return window;
  }

  std::optional<Error> take_transfers(Direction direction, int64_t place, FoundPass& found) {
    std::vector<int32_t> step_of(trace_.work.spans.size(), -1);
    for (const bool is_sent : {true, false}) {
      const TimeStretch around = window(place, 2);
      std::vector<AlignedSpan> spans;
      std::vector<size_t> places;
      for (size_t i = 0; i < trace_.work.spans.size(); ++i) {
        const TraceSpan& each = span(i);
        const int64_t bytes = is_sent ? each.sent_bytes : each.received_bytes;
        const bool is_kind =
            is_sent ? can_be_message(each, plan_) : each.work == TraceWork::receive;
        if (!is_kind || bytes == 0) continue;
        if (each.time.start_ns < around.start_ns || each.time.end_ns > around.end_ns) continue;
        spans.push_back({bytes, each.time.start_ns, each.time.end_ns, kind_bit(each.work)});
        places.push_back(i);
      }
      const Stages stages = list_stages(direction, place, is_sent);
      const auto cells =
          static_cast<double>(spans.size() + 1) * static_cast<double>(stages.aligned.size() + 1);
      if (cells > static_cast<double>(kMostAlignedCells))
        return make_bad_input(
            fmt::format(
                "rank {}: {} messages around one layer cannot be compared with {} stages of "
                "the plan; at most {} pairs can",
                to_index(trace_.rank), spans.size(), stages.aligned.size(), kMostAlignedCells),
            "profile fewer layers or iterations");
      take_places(direction, is_sent, spans, places, stages, step_of, found);
    }
    mark_strange(place);
    for (size_t i = 0; i < step_of.size(); ++i) {
      const TraceWork work = span(i).work;
      if (work != TraceWork::attention && work != TraceWork::other)
        found.work.transfers.push_back({span(i).time, step_of[i]});
    }
    return std::nullopt;
  }

  void take_places(Direction direction, bool is_sent, const std::vector<AlignedSpan>& spans,
                   const std::vector<size_t>& places, const Stages& stages,
                   std::vector<int32_t>& step_of, FoundPass& found) {
    const std::vector<AlignedPlace> aligned = align_stages(spans, stages.aligned);
    for (size_t e = 0; e < aligned.size(); ++e) {
      const AlignedPlace& at = aligned[e];
      const StageShare* share = stages.shares[e];
      for (int64_t i = at.first; i < at.end; ++i) {
        const size_t s = places[static_cast<size_t>(i)];
        is_planned_[s] = true;
        if (share != nullptr) step_of[s] = to_index(share->step);
      }
      if (at.is_unknown) {
        for (size_t i = 0; i < spans.size(); ++i) {
          const bool fits = (spans[i].kind & stages.aligned[e].kinds) != 0 &&
                            spans[i].bytes <= stages.aligned[e].bytes;
          if (fits) is_maybe_[places[i]] = true;
        }
      }
      if (share == nullptr || !is_sent) continue;
      const auto items = static_cast<int64_t>(share->items.size());
      if (at.is_unknown) found.unknown_transfers += items;
      if (!at.is_found() && !at.is_unknown) found.missing_transfers += items;
      if (!at.is_found()) continue;
      TimeStretch time{kFarNs, 0};
      for (int64_t i = at.first; i < at.end; ++i) {
        time.start_ns = std::min(time.start_ns, spans[static_cast<size_t>(i)].start_ns);
        time.end_ns = std::max(time.end_ns, spans[static_cast<size_t>(i)].end_ns);
      }
      for (const int64_t item : share->items)
        found.events.push_back({{direction, StageKind::transfer, item},
                                trace_.rank,
                                share->step,
                                time.start_ns,
                                time.end_ns});
    }
  }

  /// Communication between the attention before the pass and the attention behind it.
  void mark_strange(int64_t place) {
    const auto& passes = layers_.passes;
    int64_t begin = -kFarNs, end = kFarNs;
    if (place > 0) begin = passes[static_cast<size_t>(place - 1)].time.end_ns;
    if (place >= 0 && static_cast<size_t>(place + 1) < passes.size())
      end = passes[static_cast<size_t>(place + 1)].time.start_ns;
    for (size_t i = 0; i < trace_.work.spans.size(); ++i) {
      const TraceSpan& each = span(i);
      if (each.work == TraceWork::attention) continue;
      if (each.time.end_ns > begin && each.time.start_ns < end) is_strange_[i] = true;
    }
  }

  const Plan& plan_;
  const RankTrace& trace_;
  const RankLayers& layers_;
  ByDirection<std::vector<StageShare>> shares_;
  // [span] carries out a stage of the plan; lies in the layer; may be one of several for a stage
  std::vector<bool> is_planned_, is_strange_, is_maybe_;
};

/// How long the layer took on its slowest rank.
int64_t layer_ns(const std::vector<RankLayers>& ranks, size_t layer) {
  int64_t longest = 0;
  for (const RankLayers& rank : ranks) {
    if (layer >= rank.layers.size()) continue;
    int64_t sum = 0;
    for (const int64_t place : {rank.layers[layer].forward, rank.layers[layer].backward}) {
      if (place < 0) continue;
      const TimeStretch& time = rank.passes[static_cast<size_t>(place)].time;
      sum += time.end_ns - time.start_ns;
    }
    longest = std::max(longest, sum);
  }
  return longest;
}

/// Sets which layer is taken of how many.
std::optional<Error> choose_layer(const std::vector<RankTrace>& traces,
                                  const std::vector<RankLayers>& ranks,
                                  std::optional<int64_t> wanted, TraceMatch& match) {
  std::optional<size_t> first;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].layers.empty()) continue;
    if (first && ranks[*first].layers.size() != ranks[r].layers.size())
      return make_bad_input(
          fmt::format("the traces hold different numbers of layers: {} of rank {}, {} of rank {}",
                      ranks[*first].layers.size(), to_index(traces[*first].rank),
                      ranks[r].layers.size(), to_index(traces[r].rank)),
          "profile the same iterations on every rank");
    if (!first) first = r;
  }
  match.layers = first ? static_cast<int64_t>(ranks[*first].layers.size()) : 1;
  match.has_layer_choice = wanted.has_value();
  if (wanted && (*wanted < 0 || *wanted >= match.layers))
    return make_bad_input(
        fmt::format("--layer: the traces hold layers 0 to {}: {}", match.layers - 1, *wanted), "");
  if (wanted) {
    match.layer = *wanted;
    return std::nullopt;
  }
  std::vector<std::pair<int64_t, int64_t>> durations;  // ns, layer
  for (int64_t layer = 0; layer < match.layers; ++layer)
    durations.push_back({layer_ns(ranks, static_cast<size_t>(layer)), layer});
  std::sort(durations.begin(), durations.end());
  match.layer = durations[(durations.size() - 1) / 2].second;
  return std::nullopt;
}

void add_notes(const std::vector<RankTrace>& traces, const std::vector<RankLayers>& ranks,
               TraceMatch& match) {
  int64_t untold = 0, recomputed = 0, unconfirmed = 0;
  std::set<std::string> words;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankLayers& layers = ranks[r];
    const auto rank = to_index(traces[r].rank);
    recomputed = std::max(recomputed, layers.recomputed);
    unconfirmed += !layers.is_confirmed && !layers.passes.empty() ? 1 : 0;
    if (!layers.fault.empty())
      match.notes.push_back(
          fmt::format("rank {}: {}: nothing of it is assigned", rank, layers.fault));
    if (layers.fault.empty() && layers.passes.empty())
      match.notes.push_back(fmt::format(
          "rank {}: no attention is known by name; its messages are taken for one layer", rank));
    for (const Direction direction : kDirections) {
      const int64_t each = layers.calls_per_compute[direction];
      if (each > 1 && !layers.calls[direction].empty())
        words.insert(
            fmt::format("{}: {} attention calls for each compute item", to_name(direction), each));
    }
    for (const TraceSpan& span : traces[r].work.spans)
      untold += span.work == TraceWork::attention && !span.direction ? 1 : 0;
  }
  match.notes.insert(match.notes.end(), words.begin(), words.end());
  if (unconfirmed > 0)
    match.notes.push_back(fmt::format(
        "{} rank{}: the bytes of the messages are not those of {} layer{} of the plan, so that "
        "what "
        "is called a layer rests on the number of attention calls alone",
        unconfirmed, unconfirmed == 1 ? "" : "s", match.layers, match.layers == 1 ? "" : "s"));
  if (untold > 0)
    match.notes.push_back(fmt::format(
        "{} attention kernels do not say in their names or annotations whether they are forward or "
        "backward",
        untold));
  if (recomputed > 0)
    match.notes.push_back(
        fmt::format("{} of the forwards of a rank have no backward of their own: they were "
                    "computed again for it",
                    recomputed));
}

/// Puts the events of all ranks on one clock: the forward from 0, the backward behind it.
void place_events(std::vector<ByDirection<FoundPass>>& found, TraceMatch& match) {
  int64_t offset = 0;
  bool has_own_clocks = false;
  for (const Direction direction : kDirections) {
    int64_t first = kFarNs, latest_begin = -kFarNs, earliest_end = kFarNs;
    for (const ByDirection<FoundPass>& rank : found) {
      int64_t begin = kFarNs, end = -kFarNs;
      for (const ItemEvent& event : rank[direction].events) {
        begin = std::min(begin, event.start_ns);
        end = std::max(end, event.end_ns);
      }
      if (begin > end) continue;
      first = std::min(first, begin);
      latest_begin = std::max(latest_begin, begin);
      earliest_end = std::min(earliest_end, end);
    }
    const bool is_one_clock = latest_begin <= earliest_end;
    has_own_clocks = has_own_clocks || (!is_one_clock && first != kFarNs);
    int64_t end = offset;
    for (ByDirection<FoundPass>& rank : found) {
      int64_t origin = first;
      if (!is_one_clock) {
        origin = kFarNs;
        for (const ItemEvent& event : rank[direction].events)
          origin = std::min(origin, event.start_ns);
      }
      for (ItemEvent event : rank[direction].events) {
        event.start_ns = event.start_ns - origin + offset;
        event.end_ns = event.end_ns - origin + offset;
        end = std::max(end, event.end_ns);
        match.events.push_back(event);
      }
    }
    offset = end;
  }
  if (has_own_clocks)
    match.notes.push_back(
        "the clocks of the ranks do not agree: every rank's pass begins at the same moment here");
}

/// A trace that cpscope wrote of this plan.
Result<TraceMatch> take_own(const Plan& plan, const ForeignTrace& trace) {
  const OwnTrace& own = *trace.own;
  if (own.plan_hash != to_hex(plan.hash))
    return make_bad_input(fmt::format("this is a trace of another plan: {}, not {}",
                                      own.plan_hash.substr(0, 16), to_hex(plan.hash)),
                          "give the scenario it was made from", trace.path);
  TraceMatch match;
  match.source = own.is_measured ? "a trace of cpscope" : "a trace of cpscope's own prediction";
  match.events = own.events;
  std::map<RankId, ByDirection<FoundPass>> ranks;
  for (const ItemEvent& event : own.events) {
    const ItemId& id = event.item;
    bool is_wrong = id.index >= count_items(plan.pass(id.direction), id.kind);
    bool is_message = id.kind == StageKind::transfer;
    if (!is_wrong) {
      visit_item(plan, id, [&](const auto& item) {
        is_wrong = rank_of(item) != event.rank || item.step != event.step;
        is_message = is_message && rank_of(item) != target_rank_of(item);
      });
    }
    if (is_wrong)
      return make_bad_input(fmt::format("it has an item that its plan does not have: {} {} {}",
                                        to_name(id.direction), to_name(id.kind), id.index),
                            "", trace.path);
    PassWork& work = ranks[event.rank][id.direction].work;
    const TimeStretch time{event.start_ns, event.end_ns};
    if (id.kind == StageKind::compute)
      work.attention.push_back({time, to_index(event.step)});
    else if (is_message)
      work.transfers.push_back({time, to_index(event.step)});
    else
      work.other.push_back(time);
  }
  const ByDirection<EventTable> seen{EventTable(plan, Direction::forward, own.events),
                                     EventTable(plan, Direction::backward, own.events)};
  for (auto& [rank, passes] : ranks) {
    RankMeasured measured{.rank = rank, .forward = {}, .backward = {}};
    for (const Direction direction : kDirections) {
      PassFigures& figures = measured.pass(direction);
      figures = figures_of(passes[direction].work);
      for (const int64_t item : busy_computes(plan, direction, rank))
        figures.missing_computes +=
            seen[direction].find(StageKind::compute, item) == EventTable::kNone;
      for (const StageShare& share : stage_shares(plan, direction, rank)) {
        for (const int64_t item : share.items)
          figures.missing_transfers +=
              seen[direction].find(StageKind::transfer, item) == EventTable::kNone;
      }
    }
    match.ranks.push_back(std::move(measured));
  }
  return match;
}

}  // namespace

const RankMeasured* TraceMatch::find(RankId rank) const {
  for (const RankMeasured& each : ranks)
    if (each.rank == rank) return &each;
  return nullptr;
}

Result<TraceMatch> match_traces(const Plan& plan, const std::vector<TraceSource>& sources,
                                std::optional<int64_t> layer) {
  std::vector<ForeignTrace> traces;
  for (const TraceSource& source : sources) {
    Result<ForeignTrace> trace = read_foreign_trace(source.path);
    if (!trace) return trace.error();
    if (trace.value().own) {
      if (sources.size() > 1)
        return make_bad_input("a trace of cpscope holds all ranks: another one is too much",
                              "give it alone", source.path);
      if (layer && *layer != 0)
        return make_bad_input(
            fmt::format("--layer: a trace of cpscope holds layer 0 alone: {}", *layer), "");
      return take_own(plan, trace.value());
    }
    traces.push_back(std::move(trace).value());
  }
  TraceMatch match;
  const std::string format = traces.front().format;
  const bool is_one_format =
      std::all_of(traces.begin(), traces.end(),
                  [&](const ForeignTrace& each) { return each.format == format; });
  match.source = fmt::format("{} {}trace{}", traces.size(), is_one_format ? format + " " : "",
                             traces.size() == 1 ? "" : "s");
  if (std::any_of(traces.begin(), traces.end(),
                  [](const ForeignTrace& each) { return each.is_cpu; }))
    match.notes.push_back(
        "there are no kernels in a trace: operators of the CPU are taken instead");
  Result<std::vector<RankTrace>> ranks =
      assign_ranks(std::move(traces), sources, static_cast<int64_t>(plan.home.size()));
  if (!ranks) return ranks.error();
  std::vector<RankLayers> layers;
  for (const RankTrace& rank : ranks.value()) layers.push_back(find_layers(plan, rank));
  if (auto error = choose_layer(ranks.value(), layers, layer, match)) return *error;
  add_notes(ranks.value(), layers, match);

  std::vector<ByDirection<FoundPass>> found(ranks.value().size());
  std::map<std::tuple<std::string, int64_t, bool>, StrangeSpans> strange;
  for (size_t r = 0; r < found.size(); ++r) {
    RankMatcher matcher(plan, ranks.value()[r], layers[r]);
    std::optional<TraceLayer> taken;
    if (!layers[r].layers.empty()) taken = layers[r].layers[static_cast<size_t>(match.layer)];
    // The messages of a rank without attention are one layer's where there is one.
    if (layers[r].passes.empty() && match.layers == 1) taken = TraceLayer{};
    RankMeasured measured{.rank = ranks.value()[r].rank, .forward = {}, .backward = {}};
    for (const Direction direction : kDirections) {
      if (direction == Direction::backward && !plan.scenario.numerics.backward) continue;
      Result<FoundPass> pass = matcher.find(direction, taken);
      if (!pass) return pass.error();
      found[r][direction] = std::move(pass).value();
      PassFigures& figures = measured.pass(direction);
      figures = figures_of(found[r][direction].work);
      figures.missing_computes = found[r][direction].missing_computes;
      figures.missing_transfers = found[r][direction].missing_transfers;
      figures.unknown_transfers = found[r][direction].unknown_transfers;
      found[r][direction].work = {};
    }
    matcher.add_strange(strange);
    match.ranks.push_back(std::move(measured));
  }
  place_events(found, match);
  for (auto& [key, spans] : strange) match.strange.push_back(std::move(spans));
  std::stable_sort(match.strange.begin(), match.strange.end(),
                   [](const StrangeSpans& a, const StrangeSpans& b) { return a.us > b.us; });
  return match;
}

}  // namespace cpscope
