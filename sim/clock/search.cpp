#include "sim/clock/search.h"

#include "sim/base/parallel.h"
#include "sim/clock/candidate_figures.h"
#include "sim/clock/clock.h"
#include "sim/clock/order_search.h"
#include "sim/plan/layout.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Number of plans between two looks at the time and at the best.
constexpr int64_t kTogether = 16;
/// Number of ways whose order is searched, and how much slower than the best they may be.
constexpr size_t kStarts = 4;
constexpr double kSlowestStart = 1.5;
/// A search for an order ends after so many steps without a better one.
constexpr int64_t kPatience = 40;

std::vector<int32_t> divisors(int32_t number, int32_t least, int32_t most) {
  std::vector<int32_t> all;
  for (int32_t i = least; i <= most; ++i)
    if (number % i == 0) all.push_back(i);
  return all;
}

/// Powers of two below `limit`, and 0: all at once.
std::vector<int32_t> stages_below(int32_t limit) {
  std::vector<int32_t> all{0};
  for (int32_t i = 1; i < limit; i *= 2) all.push_back(i);
  return all;
}

/// Without the keys that the type and the layout do not read.
Parallel drop_unread(const Parallel& from) {
  const CommType type = from.comm_type;
  Parallel way;
  way.cp_size = from.cp_size;
  way.comm_type = type;
  way.layout = from.layout;
  way.backward_kv = from.backward_kv;
  way.partial_wire = from.partial_wire;
  way.kv_replicated = from.kv_replicated;
  if (has_rounds(from)) {
    way.group_rule = from.group_rule;
    way.cp_sizes = from.cp_sizes;
    way.max_tokens_per_rank = from.max_tokens_per_rank;
  }
  if (has_head_groups(type)) way.a2a_size = from.a2a_size;
  if (type == CommType::mesh) way.mesh_q = from.mesh_q;
  if (has_windows(type)) way.ring_window = from.ring_window;
  if (has_ring_backward(type)) way.ring_backward = from.ring_backward;
  if (type == CommType::gather_q) {
    way.combine = from.combine;
    way.q_owner = from.q_owner;
  }
  if (type == CommType::group_cast) way.dispatch = from.dispatch;
  if (has_head_stages(type)) way.heads_per_stage = from.heads_per_stage;
  if (from.layout == LayoutKind::lpt || from.layout == LayoutKind::lpt_local)
    way.dispatch_chunk = from.dispatch_chunk;
  if (from.layout == LayoutKind::striped) way.stripe = from.stripe;
  if (from.layout == LayoutKind::indices) {
    way.indices_file = from.indices_file;
    way.imported = from.imported;
  }
  return way;
}

/// Every communication type with every choice of its own keys.
std::vector<Parallel> ways_to_move(const Scenario& scenario) {
  const int32_t ranks = scenario.parallel.cp_size, heads = scenario.attention.heads;
  Parallel base = scenario.parallel;
  base.layout = LayoutKind::contiguous;
  base.comm_type = CommType::all_gather;
  base.heads_per_stage = 0;
  base.group_rule = GroupRule::all_ranks;
  base = drop_unread(base);
  std::vector<Parallel> ways;
  const auto add = [&](CommType type, auto set) {
    Parallel way = base;
    way.comm_type = type;
    set(way);
    ways.push_back(way);
  };
  const auto add_alone = [&](CommType type) { add(type, [](Parallel&) {}); };
  for (const RingBackward back : {RingBackward::kv, RingBackward::q}) {
    add(CommType::p2p, [&](Parallel& way) { way.ring_backward = back; });
    for (const int32_t window : divisors(ranks, 2, ranks / 2)) {
      add(CommType::double_ring, [&](Parallel& way) {
        way.ring_window = window;
        way.ring_backward = back;
      });
    }
  }
  for (const int32_t stage : stages_below((heads + ranks - 1) / ranks))
    add(CommType::a2a, [&](Parallel& way) { way.heads_per_stage = stage; });
  for (const int32_t stage : stages_below(scenario.attention.kv_heads))
    add(CommType::all_gather, [&](Parallel& way) { way.heads_per_stage = stage; });
  for (const int32_t size : divisors(ranks, 2, std::min(ranks / 2, heads))) {
    add(CommType::a2a_p2p, [&](Parallel& way) { way.a2a_size = size; });
    for (const int32_t window : divisors(ranks / size, 2, ranks / size / 2)) {
      add(CommType::a2a_double_ring, [&](Parallel& way) {
        way.a2a_size = size;
        way.ring_window = window;
      });
    }
  }
  for (const Dispatch dispatch : {Dispatch::tokens, Dispatch::queries})
    add(CommType::group_cast, [&](Parallel& way) { way.dispatch = dispatch; });
  for (const CommType type : {CommType::pass_q, CommType::token_ring, CommType::helper_ring})
    add_alone(type);
  for (const int32_t size : divisors(ranks, 2, ranks))
    add(CommType::mesh, [&](Parallel& way) { way.mesh_q = size; });
  // What ranks own is given; only owners of heads combine in a tree.
  for (const Combine combine : {Combine::all_to_all, Combine::reduce_scatter, Combine::tree}) {
    const QOwner owner = scenario.parallel.q_owner;
    if (combine == Combine::tree && owner == QOwner::rows) continue;
    add(CommType::gather_q, [&](Parallel& way) {
      way.combine = combine;
      way.q_owner = owner;
    });
  }
  return ways;
}

/// Microseconds of a visible pair of one query head, both passes, on a whole GPU at full speed. No
/// tile is faster.
double pair_us(const Scenario& scenario, const Cluster& cluster, const KernelCost& cost) {
  const auto of_pass = [&](const TileCost& tiles) {
    return std::min(tiles.whole_us, tiles.masked_us) / tiles.tile_rows / tiles.tile_keys /
           cluster.device.multiprocessors;
  };
  return of_pass(cost.forward) + (scenario.numerics.backward ? of_pass(cost.backward) : 0.0);
}

/// Lower bounds of a way's predicted time by its share of the work.
class WorkBounds {
 public:
  WorkBounds(const Scenario& scenario, double pair_us)
      : scenario_(scenario),
        head_us_(pair_us * scenario.attention.heads),
        slots_(slots_of_order(scenario.batch)),
        pairs_(RowPairs(scenario.attention, slots_).count(0, slots_.tokens)) {}

  /// Of all heads.
  int64_t pairs() const { return pairs_ * scenario_.attention.heads; }
  double mean_us() const { return static_cast<double>(pairs_) * head_us_ / ranks(); }

  double of_way(const Parallel& way) {
    const CommType type = way.comm_type;
    const bool has_queries_at_home =
        type == CommType::p2p || type == CommType::double_ring || type == CommType::all_gather ||
        (type == CommType::group_cast && way.dispatch == Dispatch::tokens);
    // lpt and stripes spread the work.
    const bool cuts_in_parts = way.layout == LayoutKind::contiguous ||
                               way.layout == LayoutKind::dual_chunk ||
                               way.layout == LayoutKind::dual_chunk_packed;
    if (!has_queries_at_home || !cuts_in_parts) return mean_us();
    const auto [known, is_new] = fullest_us_.try_emplace(way.layout, mean_us());
    if (is_new) known->second = std::max(known->second, fullest_us(way));
    return known->second;
  }

 private:
  double ranks() const { return scenario_.parallel.cp_size; }

  double fullest_us(const Parallel& way) const {
    Scenario scenario = scenario_;
    scenario.parallel = way;
    const Result<Layout> layout = make_layout(scenario);
    if (!layout) return 0;
    const RowPairs pairs(scenario.attention, layout.value().slots);
    int64_t most = 0;
    for (const std::vector<TokenRun>& runs : layout.value().q_runs) {
      int64_t sum = 0;
      for (const TokenRun& run : runs) sum += pairs.count(run.begin, run.end);
      most = std::max(most, sum);
    }
    return static_cast<double>(most) * head_us_;
  }

  const Scenario& scenario_;
  const double head_us_;
  const BatchSlots slots_;
  const int64_t pairs_;  // of one head
  std::map<LayoutKind, double> fullest_us_;
};

/// The best rate of the points of a link, of one rank in one direction. Measured slopes between two
/// points, and behind the last, may be far above what the wire can do.
double fastest_gb_s(const Link& link) {
  double rate = 0;  // bytes a microsecond
  for (const LinkCurve* curve : {&link.one_peer, &link.many_peers}) {
    for (const LinkCurve::Point& point : curve->points)
      rate = std::max(rate, point.bytes / point.us);
  }
  return rate * 1e-3;
}

bool computes_at_home(const Parallel& way) {
  switch (way.comm_type) {
    case CommType::p2p:
    case CommType::double_ring:
      return way.ring_backward == RingBackward::kv;
    case CommType::all_gather:
      return true;
    case CommType::group_cast:
      return way.dispatch == Dispatch::tokens;
    default:
      return false;
  }
}

/// The bytes that the best way cannot do without, over the fastest wires.
void bound_wires(const Cluster& cluster, const Plan& plan, SearchReport& report) {
  const Parallel& way = plan.scenario.parallel;
  const Numerics& numerics = plan.scenario.numerics;
  report.wires.wires = way.cp_size;
  report.wires.gb_s = fastest_gb_s(cluster.inside);
  const int32_t nodes = (way.cp_size + cluster.gpus_per_node - 1) / cluster.gpus_per_node;
  const bool has_nodes = nodes > 1 && way.kv_replicated == 0;
  if (has_nodes) {
    report.between.wires = int64_t{nodes} * cluster.nics_per_node;
    report.between.gb_s = fastest_gb_s(*cluster.between);
    report.wires.gb_s = std::max(report.wires.gb_s, report.between.gb_s);
  }
  report.sends_least = computes_at_home(way);
  if (report.sends_least) {
    // K and V in the forward, dK and dV in the backward.
    const auto both = [&](int64_t kv) {
      TransferItem row;
      row.payload = Payload::kv;
      const int64_t rows = numerics.backward ? kv / wire_element_bytes(row, plan.scenario) : 0;
      return kv + rows * element_bytes(dkv_wire_dtype(numerics));
    };
    report.wires.bytes = both(necessary_kv_bytes(plan));
    if (has_nodes)
      report.between.bytes = both(necessary_kv_bytes_of_groups(plan, cluster.gpus_per_node));
    return;
  }
  for (const Pass* pass : {&plan.forward, &plan.backward}) {
    for (const TransferItem& item : pass->transfers) {
      report.wires.bytes += item.bytes;
      if (has_nodes && cluster.node_of(to_index(item.src)) != cluster.node_of(to_index(item.dst)))
        report.between.bytes += item.bytes;
    }
  }
}

/// One search: what is tried, until time or tries are over.
class WaySearch {
 public:
  WaySearch(const Scenario& scenario, const Cluster& cluster, const SearchOptions& options,
            double pair_us)
      : scenario_(scenario),
        cluster_(cluster),
        options_(options),
        begun_(std::chrono::steady_clock::now()),
        bounds_(scenario, pair_us) {}

  Result<Candidates> run() {
    Result<Candidates> compared = compare_candidates(scenario_, cluster_, options_.candidates);
    if (!compared) return compared;
    comparison_ = std::move(compared).value();
    report_.pairs = bounds_.pairs();
    report_.work_us = bounds_.mean_us();
    if (report_.work_us > 0)
      report_.pairs_per_us =
          static_cast<double>(report_.pairs) / (report_.work_us * scenario_.parallel.cp_size);
    try_ways();
    finish_comparison(comparison_);
    try_orders();
    finish_comparison(comparison_);
    if (is_cancelled()) return cancelled();
    if (comparison_.best >= 0) {
      const Scenario best =
          take_way(scenario_, comparison_.candidates[static_cast<size_t>(comparison_.best)], "");
      const Result<Plan> plan = make_plan(best);
      if (!plan) return plan.error();
      bound_wires(cluster_, plan.value(), report_);
    }
    comparison_.search = report_;
    return std::move(comparison_);
  }

 private:
  bool is_cancelled() {
    const auto& ask = options_.candidates.control.is_cancelled;
    was_cancelled_ = was_cancelled_ || (ask && ask());
    return was_cancelled_;
  }
  Error cancelled() const {
    RunWatch watch(options_.candidates.control, report_.tries());
    return watch.error("the search", "plans");
  }

  /// Whether nothing more may be tried. Asked between batches only, so that all that was begun
  /// counts.
  bool is_over() {
    if (is_cancelled()) return true;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begun_;
    const double tries_share = options_.tries > 0 ? static_cast<double>(report_.tries()) /
                                                        static_cast<double>(options_.tries)
                                                  : 0.0;
    if (options_.share)
      options_.share(std::min(1.0, std::max(tries_share, spent.count() / options_.seconds)));
    if (options_.tries > 0 && report_.tries() >= options_.tries) report_.end = SearchEnd::tries;
    if (spent.count() >= options_.seconds) report_.end = SearchEnd::time;
    return report_.end != SearchEnd::done;
  }

  /// How many plans may be begun now.
  int64_t next_batch() const {
    return options_.tries > 0 ? std::min(kTogether, options_.tries - report_.tries()) : kTogether;
  }

  double best_us() const {
    double us = std::numeric_limits<double>::infinity();
    for (const Candidate& candidate : comparison_.candidates)
      if (candidate.can_be_best()) us = std::min(us, candidate.total_us());
    return us;
  }

  void try_ways() {
    std::vector<Candidate> ways;
    for (const Parallel& way : list_search_ways(scenario_, options_.candidates.dispatch_chunks)) {
      const bool is_known = std::any_of(
          comparison_.candidates.begin(), comparison_.candidates.end(),
          [&](const Candidate& candidate) { return is_same_way(candidate.parallel, way); });
      if (is_known) continue;
      Candidate candidate;
      candidate.parallel = way;
      candidate.name = name_way(way);
      candidate.is_searched = true;
      ways.push_back(std::move(candidate));
    }
    report_.ways = std::ssize(ways);
    std::vector<double> least;
    for (const Candidate& way : ways) least.push_back(bounds_.of_way(way.parallel));
    double best = best_us();
    for (size_t next = 0; next < ways.size() && !is_over();) {
      std::vector<size_t> batch;
      for (const int64_t room = next_batch(); next < ways.size() && std::ssize(batch) < room;
           ++next) {
        if (least[next] < best)
          batch.push_back(next);
        else
          ++report_.ways_too_slow;
      }
      for_each_index(std::ssize(batch), [&](int64_t i) {
        try_candidate(scenario_, cluster_, options_.candidates,
                      ways[batch[static_cast<size_t>(i)]]);
      });
      for (const size_t i : batch) {
        ++report_.ways_tried;
        if (!ways[i].refusal.empty()) ++report_.ways_refused;
        ways[i].is_wasteful = pads_too_much(ways[i], comparison_.most_padding);
        if (ways[i].can_be_best()) best = std::min(best, ways[i].total_us());
        comparison_.candidates.push_back(std::move(ways[i]));
      }
    }
  }

  /// Chunks such that a rank has eight or more of them.
  int64_t chunk_of_order() const {
    const int64_t most = *std::min_element(options_.candidates.dispatch_chunks.begin(),
                                           options_.candidates.dispatch_chunks.end());
    const int64_t tokens = slots_of_order(scenario_.batch).tokens;
    int64_t chunk = 1;
    while (2 * chunk <= most && 16 * chunk * scenario_.parallel.cp_size <= tokens) chunk *= 2;
    return chunk;
  }

  void try_orders() {
    struct Start {
      OrderSearch search;
      std::string from;
    };
    const PriceOrder price = [&](const Scenario& order) -> std::optional<OrderPrice> {
      if (options_.candidates.refuse && options_.candidates.refuse(order)) return std::nullopt;
      const Result<Plan> plan = make_plan(order);
      if (!plan) return std::nullopt;
      const Result<Timeline> timeline =
          predict(plan.value(), cluster_, {options_.candidates.stack, false});
      if (!timeline) return std::nullopt;
      const auto& memory = timeline.value().memory_bytes;
      if (static_cast<double>(*std::max_element(memory.begin(), memory.end())) >
          cluster_.device.memory_gib * (1 << 30))
        return std::nullopt;
      OrderPrice found;
      for (const PassTimeline* pass : {&timeline.value().forward, &timeline.value().backward}) {
        found.us += pass->total_us;
        found.compute_us.resize(pass->ranks.size(), 0.0);
        for (size_t r = 0; r < pass->ranks.size(); ++r)
          found.compute_us[r] += pass->ranks[r].compute_us;
      }
      return found;
    };
    report_.chunk = chunk_of_order();
    std::vector<Start> starts;
    std::vector<Parallel> moved;
    const double slowest = kSlowestStart * best_us();
    for (const Candidate& candidate : comparison_.candidates) {
      if (starts.size() == kStarts || is_over()) break;
      if (!candidate.can_be_best() || candidate.total_us() > slowest) continue;
      if (has_rounds(candidate.parallel)) continue;  // groups own whole sequences
      // Of each way to move, its fastest layout in whole chunks.
      Parallel way = drop_unread(candidate.parallel);
      way.layout = LayoutKind::contiguous;
      way = drop_unread(way);
      if (std::find(moved.begin(), moved.end(), way) != moved.end()) continue;
      auto search = OrderSearch::begin(take_way(scenario_, candidate, ""), report_.chunk,
                                       options_.seed, starts.size(), price);
      ++report_.orders_tried;
      if (!search) continue;  // perhaps its next layout
      starts.push_back({std::move(*search), candidate.name});
      moved.push_back(way);
    }
    for (const Start& start : starts) report_.starts.push_back(start.from);
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (Start& start : starts) {
        if (start.search.idle_steps() >= kPatience) continue;
        if (is_over()) break;
        const int64_t tried = start.search.step(next_batch(), price);
        report_.orders_tried += tried;
        goes_on = goes_on || tried > 0;
      }
      if (report_.end != SearchEnd::done) break;
    }
    std::vector<Candidate> found;
    for (const Start& start : starts) {
      Candidate candidate;
      candidate.parallel = start.search.scenario().parallel;
      candidate.name = fmt::format("{} (searched)", name_way(candidate.parallel));
      candidate.is_searched = true;
      try_candidate(scenario_, cluster_, options_.candidates, candidate);
      comparison_.candidates.push_back(std::move(candidate));
    }
  }

  const Scenario& scenario_;
  const Cluster& cluster_;
  const SearchOptions& options_;
  const std::chrono::steady_clock::time_point begun_;
  WorkBounds bounds_;
  Candidates comparison_;
  SearchReport report_;
  bool was_cancelled_ = false;
};

}  // namespace

std::vector<Parallel> list_search_ways(const Scenario& scenario,
                                       const std::vector<int64_t>& dispatch_chunks) {
  std::vector<Parallel> list;
  for (Parallel way : ways_to_move(scenario)) {
    for (const LayoutKind layout :
         {LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed}) {
      way.layout = layout;
      list.push_back(way);
    }
    way.layout = LayoutKind::striped;
    for (const int64_t stripe : {1, 16, 256}) {
      way.stripe = stripe;
      list.push_back(way);
    }
    way.stripe = Parallel{}.stripe;
    for (const LayoutKind layout : {LayoutKind::lpt, LayoutKind::lpt_local}) {
      way.layout = layout;
      for (const int64_t chunk : dispatch_chunks) {
        way.dispatch_chunk = chunk;
        list.push_back(way);
      }
    }
  }
  return list;
}

Scenario take_way(const Scenario& scenario, const Candidate& candidate,
                  const std::string& order_file) {
  Scenario taken = scenario;
  taken.parallel = drop_unread(candidate.parallel);
  if (candidate.is_searched && taken.parallel.layout == LayoutKind::indices)
    taken.parallel.indices_file = order_file;
  return taken;
}

Result<Candidates> search_candidates(const Scenario& scenario, const Cluster& cluster,
                                     const SearchOptions& options) {
  const Result<const Stack*> stack = find_stack(cluster, options.candidates.stack);
  if (!stack) return stack.error();
  const Result<const KernelCost*> kernels = find_kernel_cost(*stack.value(), scenario);
  if (!kernels) return kernels.error();
  return WaySearch(scenario, cluster, options, pair_us(scenario, cluster, *kernels.value())).run();
}

}  // namespace cpscope
