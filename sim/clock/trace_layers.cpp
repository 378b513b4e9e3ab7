#include "sim/clock/trace_layers.h"

#include "sim/plan/visit_items.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kMostCallsPerCompute = 16;

std::vector<AttentionCall> find_calls(const std::vector<TraceSpan>& spans, Direction direction,
                                      bool takes_untold) {
  std::vector<AttentionCall> calls;
  std::vector<size_t> waiting;  // helpers of the call that comes
  const auto join = [&](AttentionCall& call, size_t i) {
    call.spans.push_back(i);
    call.time.start_ns = std::min(call.time.start_ns, spans[i].time.start_ns);
    call.time.end_ns = std::max(call.time.end_ns, spans[i].time.end_ns);
  };
  for (size_t i = 0; i < spans.size(); ++i) {
    const TraceSpan& span = spans[i];
    if (span.work != TraceWork::attention) continue;
    if (span.direction ? *span.direction != direction : !takes_untold) continue;
    if (span.helper == HelperPlace::behind) {
      waiting.push_back(i);
    } else if (span.helper == HelperPlace::before) {
      if (!calls.empty()) join(calls.back(), i);
    } else {
      calls.push_back({span.time, {}});
      for (const size_t helper : waiting) join(calls.back(), helper);
      join(calls.back(), i);
      waiting.clear();
    }
  }
  return calls;
}

/// Bytes that leave a rank: all of them, and without those that are added where they arrive, which
/// some libraries send in another way (gloo all-reduces them).
struct SentBytes {
  std::optional<int64_t> all = 0, plain = 0;  // nothing: not known
};

SentBytes planned_bytes(const Plan& plan, Direction direction, RankId rank) {
  SentBytes bytes;
  for (const TransferItem& item : plan.pass(direction).transfers) {
    if (item.src != rank || item.dst == rank) continue;
    *bytes.all += item.bytes;
    if (item.landing != Landing::add) *bytes.plain += item.bytes;
  }
  return bytes;
}

SentBytes traced_bytes(const std::vector<TraceSpan>& spans, const Plan& plan) {
  SentBytes bytes;
  for (const TraceSpan& span : spans) {
    if (!can_be_message(span, plan)) continue;
    const auto add = [&](std::optional<int64_t>& sum) {
      if (span.sent_bytes < 0) sum.reset();
      if (sum) sum = std::min(*sum + span.sent_bytes, int64_t{1} << 61);
    };
    add(bytes.all);
    if (span.work != TraceWork::reduce_scatter) add(bytes.plain);
  }
  return bytes;
}

/// Are these the bytes of so many forwards and backwards? As numbers that cannot overflow.
bool is_sum(const std::optional<int64_t>& sent, int64_t forwards, std::optional<int64_t> forward,
            int64_t backwards, std::optional<int64_t> backward) {
  const double expected = static_cast<double>(forwards) * static_cast<double>(*forward) +
                          static_cast<double>(backwards) * static_cast<double>(*backward);
  return sent && expected > 0 && expected == static_cast<double>(*sent);
}

/// How many times the calls hold the computes, if they do so as a whole; else -1.
int64_t repetitions(size_t calls, size_t computes, int64_t calls_per_compute) {
  if (computes == 0) return calls == 0 ? 0 : -1;
  const auto each = static_cast<int64_t>(computes) * calls_per_compute;
  return static_cast<int64_t>(calls) % each == 0 ? static_cast<int64_t>(calls) / each : -1;
}

void add_passes(RankLayers& layers, Direction direction, size_t computes) {
  const std::vector<AttentionCall>& calls = layers.calls[direction];
  const size_t each = computes * static_cast<size_t>(layers.calls_per_compute[direction]);
  for (size_t first = 0; each > 0 && first < calls.size(); first += each) {
    LayerPass pass{direction,         first,
                   first + each,      calls[first].time,
                   calls[first].time, calls[first + each - 1].time};
    for (size_t i = first; i < pass.end; ++i)
      pass.time.end_ns = std::max(pass.time.end_ns, calls[i].time.end_ns);
    layers.passes.push_back(pass);
  }
}

void pair_passes(RankLayers& layers) {
  std::vector<int64_t> open;
  std::vector<TraceLayer> pairs;
  bool has_backward = false;
  for (size_t p = 0; p < layers.passes.size(); ++p) {
    const auto place = static_cast<int64_t>(p);
    if (layers.passes[p].direction == Direction::forward) {
      open.push_back(place);
      continue;
    }
    has_backward = true;
    pairs.push_back({open.empty() ? -1 : open.back(), place});
    if (!open.empty()) open.pop_back();
  }
  if (has_backward) {
    layers.recomputed = static_cast<int64_t>(open.size());
  } else {
    for (const int64_t forward : open) pairs.push_back({forward, -1});
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const TraceLayer& a, const TraceLayer& b) { return a.forward < b.forward; });
  layers.layers = std::move(pairs);
}

}  // namespace

std::vector<StageShare> stage_shares(const Plan& plan, Direction direction, RankId rank) {
  const Pass& pass = plan.pass(direction);
  std::vector<StageShare> shares;
  for (const Stage& stage : pass.stages) {
    if (stage.kind != StageKind::transfer) continue;
    StageShare share{.step = stage.step, .items = {}};
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = pass.transfers[static_cast<size_t>(i)];
      if (item.src == item.dst) continue;
      if (item.dst == rank) share.received += item.bytes;
      if (item.src != rank) continue;
      share.sent += item.bytes;
      share.adds = share.adds || item.landing == Landing::add;
      share.items.push_back(i);
    }
    if (share.sent + share.received > 0) shares.push_back(std::move(share));
  }
  return shares;
}

std::vector<int64_t> busy_computes(const Plan& plan, Direction direction, RankId rank) {
  const Pass& pass = plan.pass(direction);
  std::vector<int64_t> busy;
  for (const Stage& stage : pass.stages) {
    if (stage.kind != StageKind::compute) continue;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ComputeItem& item = pass.computes[static_cast<size_t>(i)];
      if (item.rank == rank && item.visible_pairs > 0) busy.push_back(i);
    }
  }
  return busy;
}

bool can_be_message(const TraceSpan& span, const Plan& plan) {
  switch (span.work) {
    case TraceWork::send:
    case TraceWork::exchange:
      return true;
    case TraceWork::all_to_all:
    case TraceWork::all_gather:
    case TraceWork::reduce_scatter:
      break;
    default:
      return false;
  }
  const auto ranks = static_cast<int32_t>(plan.home.size());
  const bool has_groups = has_head_groups(plan.scenario.parallel.comm_type);
  return span.group_size == 0 || span.group_size == ranks ||
         (has_groups && span.group_size < ranks);
}

RankLayers find_layers(const Plan& plan, const RankTrace& trace) {
  RankLayers layers;
  const bool has_backward = plan.scenario.numerics.backward;
  ByDirection<size_t> computes;
  ByDirection<SentBytes> planned;
  for (const Direction direction : kDirections) {
    // Without a backward in the plan there is nothing that a kernel could be instead.
    layers.calls[direction] =
        find_calls(trace.work.spans, direction, direction == Direction::forward && !has_backward);
    computes[direction] = busy_computes(plan, direction, trace.rank).size();
    planned[direction] = planned_bytes(plan, direction, trace.rank);
  }
  const SentBytes sent = traced_bytes(trace.work.spans, plan);
  const size_t forwards = layers.calls.forward.size(), backwards = layers.calls.backward.size();
  // The fewest kernels for a compute item with which the bytes agree; else the fewest that divide.
  std::optional<ByDirection<int64_t>> found, agreeing;
  for (int64_t sum = 2; sum <= 2 * kMostCallsPerCompute && !agreeing; ++sum) {
    for (int64_t f = std::max<int64_t>(1, sum - kMostCallsPerCompute);
         f <= std::min(kMostCallsPerCompute, sum - 1) && !agreeing; ++f) {
      const int64_t b = sum - f;
      if (backwards == 0 && b > 1) continue;
      const int64_t of_forward = repetitions(forwards, computes.forward, f);
      const int64_t of_backward = has_backward ? repetitions(backwards, computes.backward, b) : 0;
      if (of_forward < 0 || of_backward < 0) continue;
      if (!found) found = {f, b};
      // With several kernels for a compute item, sums may agree by chance: then there must be as
      // many backwards as forwards, or two forwards for each, of which one was computed again.
      const bool is_likely = of_forward == of_backward || of_backward == 0 || (f == 1 && b == 1) ||
                             (of_forward == 2 * of_backward && f == b);
      if (is_likely &&
          (is_sum(sent.all, of_forward, planned.forward.all, of_backward, planned.backward.all) ||
           is_sum(sent.plain, of_forward, planned.forward.plain, of_backward,
                  planned.backward.plain)))
        agreeing = {f, b};
    }
  }
  if (agreeing) found = agreeing;
  layers.is_confirmed = agreeing || *planned.forward.all + *planned.backward.all == 0;
  if (!found) {
    layers.fault = fmt::format(
        "{} forward and {} backward attention calls are no multiple of the plan's {} and {} "
        "compute items",
        forwards, backwards, computes.forward, computes.backward);
    return layers;
  }
  layers.calls_per_compute = *found;
  add_passes(layers, Direction::forward, computes.forward);
  if (has_backward) add_passes(layers, Direction::backward, computes.backward);
  std::stable_sort(
      layers.passes.begin(), layers.passes.end(),
      [](const LayerPass& a, const LayerPass& b) { return a.time.start_ns < b.time.start_ns; });
  pair_passes(layers);
  return layers;
}

}  // namespace cpscope
