#include "sim/clock/candidates.h"

#include "sim/base/parallel.h"
#include "sim/clock/candidate_figures.h"
#include "sim/clock/clock.h"
#include "sim/clock/fixed_groups.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/planner/planner_reshard.h"
#include "sim/scenario/scenario_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>
#include <tuple>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Simplest first. Behind the sixth, only a search tries those that are not in kQueriesTravel.
constexpr std::array kWayTypes = {
    CommType::p2p,         CommType::a2a,         CommType::all_gather, CommType::a2a_p2p,
    CommType::group_cast,  CommType::double_ring, CommType::pass_q,     CommType::token_ring,
    CommType::helper_ring, CommType::mesh,        CommType::gather_q,   CommType::a2a_double_ring};
constexpr std::span kUsualTypes = std::span(kWayTypes).first<6>();
constexpr std::array<LayoutKind, 6> kLayouts = {
    LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
    LayoutKind::striped,    LayoutKind::lpt,        LayoutKind::lpt_local};
constexpr double kMorePadding = 0.05;  // fraction of all rows
// Query rows of a rank up to which the other layers of a model read their weights for longer than
// they compute with rows, on every GPU since A100: padding up to there costs them nothing.
constexpr int64_t kRowsForNothing = 128;

bool has_chunks(LayoutKind kind) {
  return kind == LayoutKind::lpt || kind == LayoutKind::lpt_local;
}

std::vector<int32_t> a2a_sizes_of(const Scenario& scenario) {
  std::vector<int32_t> sizes;
  const int32_t ranks = scenario.parallel.cp_size;
  for (int32_t size = 2; size < ranks; ++size) {
    if (ranks % size == 0 && size <= scenario.attention.heads) sizes.push_back(size);
  }
  return sizes;
}

/// The types of a comparison. Where keys outnumber queries, as for a decoder or the rest of a
/// prompt after a cached prefix, also those that leave the keys where they are.
std::vector<CommType> usual_types(const Batch& batch) {
  std::vector<CommType> types(kUsualTypes.begin(), kUsualTypes.end());
  if (std::reduce(batch.lengths.begin(), batch.lengths.end(), int64_t{0}) <
      std::reduce(batch.kv_lengths.begin(), batch.kv_lengths.end(), int64_t{0}))
    types.insert(types.end(), kQueriesTravel.begin(), kQueriesTravel.end());
  return types;
}

/// A node, if several share the batch evenly: a double ring of one window is a ring.
std::vector<int32_t> windows_of(const Scenario& scenario, const Cluster& cluster) {
  const int32_t ranks = scenario.parallel.cp_size, node = cluster.gpus_per_node;
  return ranks > node && ranks % node == 0 ? std::vector{node} : std::vector<int32_t>{};
}

void add_mean(const PassTimeline& pass, MeanTimes& mean) {
  for (const RankTimes& rank : pass.ranks) {
    const double share = 1.0 / static_cast<double>(pass.ranks.size());
    mean.compute_us += share * rank.compute_us;
    mean.local_us += share * rank.local_us;
    mean.exposed_us += share * rank.exposed_us;
    mean.idle_us += share * rank.idle_us;
    mean.launch_us += share * rank.launch_us;
    mean.partner_us += share * rank.partner_us;
    mean.host_us += share * rank.host_us;
    mean.groups_us += share * rank.groups_us;
  }
}

/// Of both passes.
int64_t bytes_sent_by(const PlanSummary& summary, size_t rank) {
  return summary.forward_bytes[rank] +
         (summary.backward_bytes.empty() ? 0 : summary.backward_bytes[rank]);
}

void fill(Candidate& candidate, const Plan& plan, const PlanSummary& summary,
          const Timeline& timeline, const Cluster& cluster) {
  candidate.forward_us = timeline.forward.total_us;
  candidate.backward_us = timeline.backward.total_us;
  candidate.mean = mean_times(timeline);
  for (size_t r = 0; r < timeline.memory_bytes.size(); ++r) {
    candidate.exposed_us =
        std::max(candidate.exposed_us,
                 timeline.forward.ranks[r].exposed_us + timeline.backward.ranks[r].exposed_us);
    candidate.bytes_sent = std::max(candidate.bytes_sent, bytes_sent_by(summary, r));
    candidate.memory_bytes = std::max(candidate.memory_bytes, timeline.memory_bytes[r]);
  }
  candidate.kv_necessary = summary.kv_bytes_necessary;
  candidate.kv_moved = summary.kv_bytes_moved;
  candidate.rank_max_over_mean = summary.rank_max_over_mean;
  candidate.critical_path_over_ideal = summary.critical_path_over_ideal;
  candidate.padding_share = padding_share_of(plan);
  candidate.query_rows = plan.layout.slots.tokens / plan.layout.cp_size;
  candidate.visible_pairs = summary.visible_pairs;
  if (!plan.layout.rounds.empty() && candidate.total_us() > 0)
    candidate.group_loss = candidate.mean.groups_us / candidate.total_us();
  candidate.fits =
      static_cast<double>(candidate.memory_bytes) <= cluster.device.memory_gib * (1 << 30);
}

/// Sort key in the order of list_candidates; uses only the keys that the candidate's type reads.
std::array<int64_t, 11> list_place(const Parallel& way) {
  const auto index_in = [](const auto& all, auto value) {
    return static_cast<int64_t>(std::find(all.begin(), all.end(), value) - all.begin());
  };
  return {index_in(kWayTypes, way.comm_type),
          has_head_groups(way.comm_type)        ? way.a2a_size
          : way.comm_type == CommType::mesh     ? way.mesh_q
          : way.comm_type == CommType::gather_q ? static_cast<int64_t>(way.combine)
                                                : 0,
          index_in(kLayouts, way.layout),
          has_chunks(way.layout) ? way.dispatch_chunk : 0,
          way.layout == LayoutKind::striped ? way.stripe : 0,
          way.comm_type == CommType::group_cast ? static_cast<int64_t>(way.dispatch) : 0,
          has_head_stages(way.comm_type) ? way.heads_per_stage : 0,
          has_windows(way.comm_type) ? way.ring_window : 0,
          has_ring_backward(way.comm_type) ? static_cast<int64_t>(way.ring_backward) : 0,
          static_cast<int64_t>(way.group_rule),
          way.group_rule == GroupRule::fixed ? -way.cp_sizes.front() : 0};
}

/// Only the first complaint: a table has one line for it.
std::string reason_of(const Error& error) { return error.complaints.front().what; }

/// Numbers the times, ascending. Times that are printed alike, or that only rounding tells apart,
/// have one number.
void number_times(std::vector<Candidate>& candidates) {
  constexpr double kRounding = 1e-6;  // relative
  std::vector<Candidate*> possible;
  for (Candidate& candidate : candidates)
    if (candidate.refusal.empty()) possible.push_back(&candidate);
  std::sort(possible.begin(), possible.end(),
            [](const Candidate* a, const Candidate* b) { return a->total_us() < b->total_us(); });
  int64_t number = 0;
  double first = 0;  // of the number
  for (size_t i = 0; i < possible.size(); ++i) {
    const double us = possible[i]->total_us();
    // Tables show microseconds.
    const bool is_same = std::llround(us) == std::llround(first) || us - first < kRounding * first;
    if (i > 0 && !is_same) ++number;
    if (i == 0 || !is_same) first = us;
    possible[i]->time_number = number;
  }
}

/// Sort key of candidates that are equal in all figures: the scenario's own one first, then the
/// simplest layout, then the simplest communication.
auto preference(const Candidate& candidate) {
  const Parallel& way = candidate.parallel;
  const std::array<int64_t, 11> place = list_place(way);
  const bool has_usual_chunk =
      !has_chunks(way.layout) || way.dispatch_chunk == Parallel{}.dispatch_chunk;
  return std::tuple(!candidate.is_own, place[2], !has_usual_chunk, place[3], place[4], place[0],
                    std::array{place[1], place[7], place[8], place[5], place[6], place[10]});
}

/// Sort key of all candidates that are possible.
auto order_of(const Candidate& candidate) {
  return std::tuple(candidate.time_number, candidate.bytes_sent, candidate.memory_bytes,
                    preference(candidate));
}

/// True if `b` is as good as `a` in time, bytes and memory, and better in one of them or preferred.
bool is_beaten(const Candidate& a, const Candidate& b) {
  return b.refusal.empty() && is_as_good(b, a) && order_of(b) < order_of(a);
}

void mark_pareto(std::vector<Candidate>& candidates) {
  for (Candidate& candidate : candidates) {
    candidate.is_pareto =
        candidate.refusal.empty() &&
        std::none_of(candidates.begin(), candidates.end(),
                     [&](const Candidate& other) { return is_beaten(candidate, other); });
  }
}

/// Attention skips padding, but the rest of a model does not: a candidate with much more padding
/// than necessary is not recommended.
double most_padding(const std::vector<Candidate>& candidates) {
  double least = 1.0;
  for (const Candidate& candidate : candidates) {
    // Orders that are searched add no padding, and must not rule out the best of the others.
    if (candidate.refusal.empty() && !candidate.is_searched)
      least = std::min(least, candidate.padding_share);
  }
  return least + kMorePadding;
}

double percent_more(double slow, double fast) { return 100.0 * (slow / fast - 1.0); }

std::string explain_slower_candidate(const Candidate& slow, const Candidate& fast) {
  return explain_slower(
      slow.mean, fast.mean,
      std::max(slow.rank_max_over_mean, slow.critical_path_over_ideal) > kEvenWork);
}

}  // namespace

std::string explain_slower(const MeanTimes& a, const MeanTimes& b, bool is_uneven) {
  struct Part {
    double us;
    const char* text;
  };
  const Part parts[] = {
      {a.exposed_us - a.partner_us - b.exposed_us + b.partner_us, "more exposed transfers"},
      {a.groups_us - b.groups_us, "more waiting for the slowest group"},
      {a.waiting_us() - a.groups_us - b.waiting_us() + b.groups_us,
       is_uneven ? "more waiting for the busiest rank" : "more waiting for other ranks"},
      {a.local_us - b.local_us, "more merges and moves"},
      {a.launch_us + a.host_us - b.launch_us - b.host_us, "more launches and host time"},
      {a.compute_us - a.launch_us - b.compute_us + b.launch_us,
       "more time in the attention kernels"}};
  const Part* most = std::max_element(std::begin(parts), std::end(parts),
                                      [](const Part& x, const Part& y) { return x.us < y.us; });
  return most->us > 0 ? fmt::format("{:.2f} ms {}", most->us * 1e-3, most->text) : "";
}

std::string name_way(const Parallel& parallel) {
  std::string name(to_name(parallel.comm_type));
  if (has_head_groups(parallel.comm_type)) name += fmt::format(" of {}", parallel.a2a_size);
  if (parallel.comm_type == CommType::group_cast && parallel.dispatch == Dispatch::queries)
    name += " of queries";
  if (parallel.comm_type == CommType::mesh)
    name += fmt::format(" of {} x {}", parallel.mesh_q, parallel.cp_size / parallel.mesh_q);
  if (has_windows(parallel.comm_type)) name += fmt::format(", windows of {}", parallel.ring_window);
  if (has_ring_backward(parallel.comm_type) && parallel.ring_backward == RingBackward::q)
    name += ", queries back";
  if (adds_scaled_partials(parallel)) name += " with reduce-scatter";
  if (parallel.comm_type == CommType::gather_q && parallel.combine == Combine::tree)
    name += " in a tree";
  if (has_head_stages(parallel.comm_type) && parallel.heads_per_stage > 0)
    name += fmt::format(" in stages of {}", parallel.heads_per_stage);
  name += fmt::format(", {}", to_name(parallel.layout));
  if (has_chunks(parallel.layout)) name += fmt::format(" {}", parallel.dispatch_chunk);
  if (parallel.layout == LayoutKind::striped && parallel.stripe != 1)
    name += fmt::format(" of {}", parallel.stripe);
  if (parallel.group_rule == GroupRule::given)
    name += ", sizes given";
  else if (parallel.group_rule == GroupRule::fixed)
    name += fmt::format(", fixed CP {}", parallel.cp_sizes.front());
  else if (has_rounds(parallel))
    name += fmt::format(", {} of {}", to_name(parallel.group_rule), parallel.max_tokens_per_rank);
  return name;
}

bool pads_too_much(const Candidate& candidate, double most_padding) {
  return candidate.refusal.empty() && candidate.padding_share > most_padding &&
         candidate.query_rows > kRowsForNothing;
}

MeanTimes mean_times(const Timeline& timeline) {
  MeanTimes mean;
  add_mean(timeline.forward, mean);
  add_mean(timeline.backward, mean);
  return mean;
}

double padding_share_of(const Plan& plan) {
  int64_t valid = 0;
  for (const SequenceSlot& slot : plan.layout.slots.sequences) valid += slot.q_valid;
  const auto tokens = static_cast<double>(plan.layout.slots.tokens);
  return tokens > 0 ? 1.0 - static_cast<double>(valid) / tokens : 0.0;
}

std::vector<Parallel> list_candidates(const Scenario& scenario,
                                      const std::vector<int64_t>& dispatch_chunks,
                                      const std::vector<int32_t>& ring_windows) {
  const Parallel& own = scenario.parallel;
  std::vector<Parallel> list{own};
  const auto add = [&](const Parallel& parallel) {
    const bool is_there = std::any_of(list.begin(), list.end(), [&](const Parallel& other) {
      return is_same_way(parallel, other);
    });
    if (!is_there) list.push_back(parallel);
  };
  const auto add_with_rounds = [&](Parallel parallel) {
    parallel.group_rule = GroupRule::all_ranks;
    add(parallel);
    if (!may_work_in_rounds(parallel.comm_type) || !may_work_in_rounds(parallel.layout) ||
        scenario.batch.qkv_format != QkvFormat::thd)
      return;
    parallel.group_rule = own.group_rule;
    if (has_rounds(own)) add(parallel);
    for (const GroupRule rule : kGroupRules) {
      parallel.group_rule = rule;
      if (own.max_tokens_per_rank > 0) add(parallel);
    }
  };
  for (const CommType comm : usual_types(scenario.batch)) {
    std::vector<int32_t> sizes{0};  // of groups, if the type has a choice
    if (comm == CommType::a2a_p2p) sizes = a2a_sizes_of(scenario);
    if (comm == CommType::double_ring) sizes = ring_windows;
    for (const int32_t size : sizes) {
      for (const LayoutKind layout : kLayouts) {
        Parallel parallel = own;
        parallel.comm_type = comm;
        if (comm == CommType::a2a_p2p) parallel.a2a_size = size;
        if (comm == CommType::double_ring) parallel.ring_window = size;
        parallel.ring_backward = RingBackward::kv;
        parallel.layout = layout;
        parallel.dispatch = Dispatch::tokens;
        parallel.heads_per_stage = 0;
        parallel.indices_file.clear();
        parallel.imported = {};
        if (layout != own.layout) parallel.stripe = 1;
        if (!has_chunks(layout)) {
          add_with_rounds(parallel);
          continue;
        }
        for (const int64_t chunk : dispatch_chunks) {
          parallel.dispatch_chunk = chunk;
          add_with_rounds(parallel);
        }
      }
    }
  }
  for (const Parallel& parallel : list_fixed_groups(scenario)) add(parallel);
  return list;
}

bool is_same_way(const Parallel& a, const Parallel& b) {
  return a.comm_type == b.comm_type && a.layout == b.layout && a.cp_size == b.cp_size &&
         (!has_head_groups(a.comm_type) || a.a2a_size == b.a2a_size) &&
         (a.comm_type != CommType::mesh || a.mesh_q == b.mesh_q) &&
         (!has_windows(a.comm_type) || a.ring_window == b.ring_window) &&
         (!has_ring_backward(a.comm_type) || a.ring_backward == b.ring_backward) &&
         (a.comm_type != CommType::gather_q ||
          (a.combine == b.combine && a.q_owner == b.q_owner)) &&
         a.group_rule == b.group_rule &&
         ((a.group_rule != GroupRule::given && a.group_rule != GroupRule::fixed) ||
          a.cp_sizes == b.cp_sizes) &&
         (!has_head_stages(a.comm_type) || a.heads_per_stage == b.heads_per_stage) &&
         (!has_chunks(a.layout) || a.dispatch_chunk == b.dispatch_chunk) &&
         (a.layout != LayoutKind::striped || a.stripe == b.stripe) &&
         (a.layout != LayoutKind::indices ||
          (a.indices_file == b.indices_file && a.imported == b.imported)) &&
         (a.comm_type != CommType::group_cast || a.dispatch == b.dispatch);
}

bool is_as_good(const Candidate& a, const Candidate& b) {
  return a.time_number <= b.time_number && a.bytes_sent <= b.bytes_sent &&
         a.memory_bytes <= b.memory_bytes;
}

std::string describe_kv_ratio(const Candidate& candidate) {
  if (candidate.kv_necessary > 0)
    return fmt::format("{:.2f}", static_cast<double>(candidate.kv_moved) /
                                     static_cast<double>(candidate.kv_necessary));
  return candidate.kv_moved > 0 ? "unneeded" : "-";
}

Result<Candidates> begin_comparison(const Scenario& scenario, const Cluster& cluster,
                                    const CandidateOptions& options) {
  // Errors that every candidate would have are returned immediately.
  const Result<const Stack*> stack = find_stack(cluster, options.stack);
  if (!stack) return stack.error();
  const Result<const KernelCost*> kernels = find_kernel_cost(*stack.value(), scenario);
  if (!kernels) return kernels.error();
  if (const auto error = refuse_small_cluster(scenario, cluster)) return *error;
  Candidates result{cluster.name, stack.value()->name, cluster.device.memory_gib, {}, -1, -1};
  result.note = note_on_times(*stack.value(), scenario);
  result.reshards = options.reshards;
  for (const Parallel& parallel :
       list_candidates(scenario, options.dispatch_chunks, windows_of(scenario, cluster))) {
    Candidate candidate;
    candidate.parallel = parallel;
    candidate.name = name_way(parallel);
    result.candidates.push_back(std::move(candidate));
  }
  result.candidates.front().is_own = true;
  return result;
}

namespace {

/// Adds the time and the bytes of the changes between the candidate's order and consecutive tokens.
/// One in the other direction has the same messages the other way round: the forward begins with
/// one into order, and the backward has the other direction of each. Groups of cp_sizes bring their
/// own sequences into order, one round after the other.
std::optional<Error> add_reshards(const Plan& plan, const PlanSummary& summary,
                                  const Cluster& cluster, const CandidateOptions& options,
                                  Candidate& candidate) {
  const Scenario& scenario = plan.scenario;
  Scenario in_order = scenario;
  in_order.parallel.layout = LayoutKind::contiguous;
  const Result<Layout> to = make_layout(in_order);
  if (!to) return to.error();
  const Result<const Stack*> stack = find_stack(cluster, options.stack);
  if (!stack) return stack.error();
  const int32_t count = options.reshards * (scenario.numerics.backward ? 2 : 1);
  const int32_t back = count / 2;
  std::vector<int64_t> sent(summary.forward_bytes.size());  // [rank] of both passes and all changes
  for (size_t r = 0; r < sent.size(); ++r) sent[r] = bytes_sent_by(summary, r);
  for (size_t round = 0; round < std::max<size_t>(1, plan.layout.rounds.size()); ++round) {
    const Plan moves = plan_reshard(scenario, plan.layout, to.value(), round);
    bool is_in_order = true;
    for (const TransferItem& item : moves.forward.transfers) {
      sent[static_cast<size_t>(to_index(item.src))] += (count - back) * item.bytes;
      sent[static_cast<size_t>(to_index(item.dst))] += back * item.bytes;
      is_in_order &= item.bytes == 0;
    }
    if (is_in_order) continue;
    const Result<Timeline> timeline = predict(moves, cluster, {options.stack, false});
    if (!timeline) return timeline.error();
    // A change is a call inside a layer, not a pass of its own.
    candidate.reshard_us +=
        count * std::max(0.0, timeline.value().forward.total_us - stack.value()->pass_us);
  }
  candidate.bytes_sent = *std::max_element(sent.begin(), sent.end());
  return std::nullopt;
}

}  // namespace

void try_candidate(const Scenario& scenario, const Cluster& cluster,
                   const CandidateOptions& options, Candidate& candidate) {
  Scenario other = scenario;
  other.parallel = candidate.parallel;
  if (options.refuse) {
    if (const auto error = options.refuse(other)) {
      candidate.refusal = reason_of(*error);
      return;
    }
  }
  const Result<Plan> plan = make_plan(other);
  if (!plan) {
    candidate.refusal = reason_of(plan.error());
    return;
  }
  const Result<Timeline> timeline = predict(plan.value(), cluster, {options.stack, false});
  if (!timeline) {
    candidate.refusal = reason_of(timeline.error());
    return;
  }
  const PlanSummary summary = summarise(plan.value());
  fill(candidate, plan.value(), summary, timeline.value(), cluster);
  if (options.reshards == 0) return;
  if (const auto error = add_reshards(plan.value(), summary, cluster, options, candidate))
    candidate.refusal = reason_of(*error);
}

void finish_comparison(Candidates& comparison) {
  comparison.best = comparison.own = -1;
  std::vector<Candidate>& candidates = comparison.candidates;
  number_times(candidates);
  mark_pareto(candidates);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     if (a.refusal.empty() != b.refusal.empty()) return a.refusal.empty();
                     return a.refusal.empty() && order_of(a) < order_of(b);
                   });
  const double most = comparison.most_padding = most_padding(candidates);
  for (size_t i = 0; i < candidates.size(); ++i) {
    Candidate& candidate = candidates[i];
    candidate.is_wasteful = pads_too_much(candidate, most);
    if (candidate.is_own) comparison.own = static_cast<int64_t>(i);
    if (comparison.best < 0 && candidate.can_be_best()) comparison.best = static_cast<int64_t>(i);
  }
}

Result<Candidates> compare_candidates(const Scenario& scenario, const Cluster& cluster,
                                      const CandidateOptions& options) {
  Result<Candidates> begun = begin_comparison(scenario, cluster, options);
  if (!begun) return begun;
  std::vector<Candidate>& candidates = begun.value().candidates;
  RunWatch watch(options.control, static_cast<int64_t>(candidates.size()));
  for_each_index(static_cast<int64_t>(candidates.size()), [&](int64_t i) {
    if (watch.is_cancelled()) return;
    try_candidate(scenario, cluster, options, candidates[static_cast<size_t>(i)]);
    watch.advance();
  });
  if (watch.was_cancelled()) return watch.error("the comparison", "candidates");
  finish_comparison(begun.value());
  return begun;
}

bool move_own(Candidates& comparison, const Parallel& own) {
  std::vector<Candidate>& candidates = comparison.candidates;
  const auto found = std::find_if(
      candidates.begin(), candidates.end(),
      [&](const Candidate& candidate) { return is_same_way(candidate.parallel, own); });
  if (found == candidates.end()) return false;
  for (Candidate& candidate : candidates) candidate.is_own = false;
  found->is_own = true;
  // Sorted in list order, which those that are refused keep.
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.is_own != b.is_own) return a.is_own;
    return list_place(a.parallel) < list_place(b.parallel);
  });
  finish_comparison(comparison);
  return true;
}

std::string recommend(const Candidates& comparison) {
  if (comparison.best < 0)
    return "No candidate can be recommended: each is refused or needs more memory than a GPU has.";
  const Candidate& best = comparison.candidates[static_cast<size_t>(comparison.best)];
  const Candidate& own = comparison.candidates[static_cast<size_t>(comparison.own)];
  std::string text = fmt::format("Take {}: {:.3f} ms", best.name, best.total_us() * 1e-3);
  const auto against = [&](const Candidate& other, const std::string& what) {
    const std::string why = explain_slower_candidate(other, best);
    return fmt::format("; {} takes {:.0f} % longer{}{}", what,
                       percent_more(other.total_us(), best.total_us()), why.empty() ? "" : ": ",
                       why);
  };
  if (best.is_own) {
    text += ", as the scenario has it";
  } else if (!own.refusal.empty()) {
    text += fmt::format("; the scenario's own way, {}, is refused", own.name);
  } else if (!own.fits) {
    text += fmt::format("; the scenario's own way, {}, needs more memory than a GPU has", own.name);
  } else if (percent_more(own.total_us(), best.total_us()) < 100 * kSameTime) {
    text +=
        fmt::format("; the scenario's own way, {}, is as fast within what is predicted", own.name);
  } else {
    text += against(own, fmt::format("the scenario's own way, {},", own.name));
  }
  for (const Candidate& other : comparison.candidates) {
    if (!other.can_be_best() || other.is_own) continue;
    if (other.parallel.comm_type == best.parallel.comm_type) continue;
    // What was said of the scenario's own way is not repeated for its equal.
    if (own.refusal.empty() && other.parallel.comm_type == own.parallel.comm_type &&
        is_as_good(own, other))
      continue;
    if (percent_more(other.total_us(), best.total_us()) < 100 * kSameTime) {
      text += fmt::format("; {} is as fast", other.name);
    } else {
      text += against(other, "the best that moves otherwise, " + other.name + ",");
    }
    break;
  }
  const auto groups = std::find_if(
      comparison.candidates.begin(), comparison.candidates.end(), [](const Candidate& candidate) {
        return candidate.parallel.group_rule == GroupRule::fixed && candidate.can_be_best();
      });
  if (groups != comparison.candidates.end() && &*groups != &best)
    text += fmt::format(
        "; with groups of a fixed size for all sequences, {} is the fastest: {:.3f} ms, {:.0f} % "
        "of it waiting for the slowest group",
        groups->name, groups->total_us() * 1e-3, 100 * groups->group_loss.value_or(0));
  const Candidate& first = comparison.candidates.front();
  if (first.fits && first.is_wasteful)
    text += fmt::format(
        "; {} would take {:.3f} ms, but {:.0f} % of its rows are padding that all "
        "other layers pay for",
        first.name, first.total_us() * 1e-3, 100 * first.padding_share);
  return text + ".";
}

}  // namespace cpscope
