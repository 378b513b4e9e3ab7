#include "gui/app/ways.h"

#include "gui/app/document/exact_steps.h"
#include "gui/app/document/plan_size.h"
#include "gui/app/prediction.h"
#include "gui/model/axis.h"
#include "gui/model/ways/comparison_chart.h"
#include "sim/base/parallel.h"
#include "sim/base/whole_file.h"
#include "sim/clock/clock.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kMostKept = 8;                    // number of comparisons
constexpr std::string_view kOwnStack = "cpscope";  // the stack of our own executors

/// True if two scenarios have the same problem, whatever way they use to split it.
bool is_same_batch(const Scenario& a, const Scenario& b) {
  return a.parallel.cp_size == b.parallel.cp_size &&
         a.parallel.backward_kv == b.parallel.backward_kv && a.attention == b.attention &&
         a.numerics == b.numerics && a.batch == b.batch;
}

bool is_about(const ComparedWays& ways, const Scenario& scenario, const ClusterName& on) {
  return ways.cluster == on.cluster && ways.stack == on.stack &&
         is_same_batch(ways.scenario, scenario);
}

bool is_own(const Candidates& candidates, const Parallel& parallel) {
  return is_same_way(candidates.candidates[static_cast<size_t>(candidates.own)].parallel, parallel);
}

/// The kept comparison of this scenario, with its own way updated to the scenario's current one.
const ComparedWays* find_kept(Ways& ways, const Scenario& scenario, const ClusterName& on) {
  for (size_t i = 0; i < ways.kept.size(); ++i) {
    ComparedWays& kept = ways.kept[i];
    if (!is_about(kept, scenario, on)) continue;
    if (kept.candidates && !is_own(*kept.candidates, scenario.parallel)) {
      Candidates moved = *kept.candidates;
      if (!move_own(moved, scenario.parallel)) continue;
      kept.candidates = std::make_shared<const Candidates>(std::move(moved));
    }
    std::rotate(ways.kept.begin() + static_cast<std::ptrdiff_t>(i),
                ways.kept.begin() + static_cast<std::ptrdiff_t>(i) + 1, ways.kept.end());
    return &ways.kept.back();
  }
  return nullptr;
}

const ComparedWays* shown(const AppState& state) {
  if (state.ways.kept.empty() || !state.document.is_valid()) return nullptr;
  const ComparedWays& last = state.ways.kept.back();
  const Scenario& scenario = state.document.scenario();
  if (!is_about(last, scenario, ways_cluster(state))) return nullptr;
  if (last.candidates && !is_own(*last.candidates, scenario.parallel)) return nullptr;
  return &last;
}

CandidateOptions options_of(const std::string& stack) {
  CandidateOptions options;
  options.stack = stack;
  options.refuse = [](const Scenario& scenario) {
    return refuse_large_plan(scenario, plan_bytes_limit());
  };
  return options;
}

/// Plans and predicts the next `most` candidates; the call with the last ones finishes the
/// comparison.
Result<TriedWays> try_some(TriedWays ways, const Scenario& scenario, const Cluster& cluster,
                           const std::string& stack, int64_t most, TaskControl& control) {
  const CandidateOptions options = options_of(stack);
  if (ways.candidates.candidates.empty()) {
    Result<Candidates> begun = begin_comparison(scenario, cluster, options);
    if (!begun) return begun.error();
    ways.candidates = std::move(begun).value();
  }
  std::vector<Candidate>& all = ways.candidates.candidates;
  const auto total = static_cast<int64_t>(all.size());
  const int64_t count = std::min(most, total - ways.tried);
  std::atomic<int64_t> done = ways.tried;
  for_each_index(count, [&](int64_t i) {
    if (control.is_stopped) return;
    try_candidate(scenario, cluster, options, all[static_cast<size_t>(ways.tried + i)]);
    control.progress = static_cast<double>(++done) / static_cast<double>(total);
  });
  ways.tried += count;
  if (ways.tried == total && !control.is_stopped) finish_comparison(ways.candidates);
  return ways;
}

void keep(Ways& ways, SharedCandidates candidates, std::string refusal) {
  ways.kept.push_back({ways.wanted.scenario, ways.wanted.cluster, ways.wanted.stack,
                       std::move(candidates), std::move(refusal)});
  if (ways.kept.size() > kMostKept) ways.kept.erase(ways.kept.begin());
}

void go_on(AppState& state, TriedWays tried) {
  Ways& ways = state.ways;
  // A web page has one thread: it works between two frames, on one candidate.
  const int64_t most = state.services.is_page ? 1 : INT64_MAX;
  ways.task.start([tried = std::move(tried), scenario = ways.wanted.scenario,
                   cluster = *find_cluster(state, ways.wanted.cluster), stack = ways.wanted.stack,
                   most](TaskControl& control) {
    return try_some(tried, scenario, cluster, stack, most, control);
  });
}

/// Takes from another way only the keys that its type reads; the others stay as they are.
Parallel way_of(const Parallel& taken, Parallel own) {
  own.comm_type = taken.comm_type;
  own.layout = taken.layout;
  if (has_head_groups(taken.comm_type)) own.a2a_size = taken.a2a_size;
  if (taken.comm_type == CommType::mesh) own.mesh_q = taken.mesh_q;
  if (has_windows(taken.comm_type)) own.ring_window = taken.ring_window;
  if (has_ring_backward(taken.comm_type)) own.ring_backward = taken.ring_backward;
  if (taken.comm_type == CommType::gather_q) {
    own.combine = taken.combine;
    own.q_owner = taken.q_owner;
  }
  if (has_head_stages(taken.comm_type)) own.heads_per_stage = taken.heads_per_stage;
  if (taken.comm_type == CommType::group_cast) own.dispatch = taken.dispatch;
  if (taken.layout == LayoutKind::lpt || taken.layout == LayoutKind::lpt_local)
    own.dispatch_chunk = taken.dispatch_chunk;
  if (taken.layout == LayoutKind::striped) own.stripe = taken.stripe;
  own.group_rule = taken.group_rule;
  own.cp_sizes = taken.cp_sizes;
  own.indices_file = taken.indices_file;
  own.imported = taken.imported;
  return own;
}

Span plain_words(std::string text) { return {std::move(text), Target{}, false}; }

/// The name of a candidate on the front that is at least as good in all three figures.
std::string beaten_by(const Candidates& comparison, const Candidate& candidate) {
  for (const Candidate& other : comparison.candidates) {
    if (other.is_pareto && is_as_good(other, candidate)) return other.name;
  }
  return "";
}

std::string place_of(const Candidates& comparison, int64_t index) {
  const Candidate& candidate = comparison.candidates[static_cast<size_t>(index)];
  std::string text = index == comparison.best ? "Recommended. " : "";
  if (candidate.is_own) text += "The scenario's own. ";
  if (!candidate.refusal.empty()) return text + "Refused: " + candidate.refusal;
  if (candidate.is_pareto)
    return text + "On the Pareto front: none is as good in time, bytes and memory.";
  return text + fmt::format("As good or better in time, bytes and memory: {}.",
                            beaten_by(comparison, candidate));
}

std::string time_of(double us) { return print_duration(us * 1e3); }

void add_figures(const Candidates& comparison, int64_t index, Inspection& inspection) {
  const Candidate& c = comparison.candidates[static_cast<size_t>(index)];
  const auto add = [&](const char* label, std::string text) {
    inspection.rows.push_back({label, {plain_words(std::move(text))}});
  };
  const std::string line = describe_candidate(comparison, index);
  const size_t comma = line.rfind(", ");
  const bool has_best = comparison.best >= 0;
  add("Time, predicted",
      fmt::format("{}: forward {}, backward {}{}", time_of(c.total_us()), time_of(c.forward_us),
                  time_of(c.backward_us), has_best ? line.substr(comma) : ""));
  add("Mean over the ranks",
      fmt::format("compute {}, merges and moves {}, exposed transfers {}, launches and host {}, "
                  "waiting for other ranks {}",
                  time_of(c.mean.compute_us), time_of(c.mean.local_us), time_of(c.mean.exposed_us),
                  time_of(c.mean.host_us), time_of(c.mean.idle_us - c.mean.host_us)));
  add("Exposed, worst rank", time_of(c.exposed_us));
  add("Sent by the busiest rank", print_bytes(c.bytes_sent));
  const auto moved = static_cast<double>(c.kv_moved), needed = static_cast<double>(c.kv_necessary);
  add("K and V, forward",
      fmt::format("{} moved, {} necessary{}", print_bytes(moved), print_bytes(needed),
                  moved > 0 && needed == 0 ? ": all of it is unneeded" : ""));
  add("Balance", fmt::format("busiest rank {:.3f} x the mean, critical path {:.3f} x the ideal",
                             c.rank_max_over_mean, c.critical_path_over_ideal));
  if (c.group_loss)
    add("Waiting for the slowest group", print_share(*c.group_loss) + " of the time");
  add("Padding", fmt::format("{} of all rows{}", print_share(c.padding_share),
                             c.is_wasteful ? "; far more than it must: not recommended" : ""));
  add("Memory, fullest rank",
      fmt::format("{} of {} GiB{}", print_bytes(c.memory_bytes), comparison.device_memory_gib,
                  c.fits ? "" : ": does not fit"));
}

}  // namespace

ClusterName ways_cluster(const AppState& state) {
  const Prediction& prediction = state.prediction;
  if (find_cluster(state, prediction.cluster) != nullptr)
    return {prediction.cluster, prediction.stack};
  const auto& clusters = state.services.clusters;
  if (clusters.empty()) return {};
  if (!state.document.is_open()) return {};
  const Scenario& scenario = state.document.scenario();
  const Cluster& first = clusters.front();
  ClusterName name{first.name, first.stacks.empty() ? "" : first.stacks.front().name};
  int64_t least = 0;
  for (const Cluster& cluster : clusters) {
    const int64_t gpus = cluster.num_gpus();
    const bool is_ours = find_stack(cluster, kOwnStack).ok();
    if (!is_ours || refuse_small_cluster(scenario, cluster)) continue;
    // Among clusters of equal size the last one wins: by name order, it is the newest of a vendor.
    if (least > 0 && gpus > least) continue;
    least = gpus;
    name = {cluster.name, std::string(kOwnStack)};
  }
  return name;
}

void compare_ways_in_background(AppState& state) {
  Ways& ways = state.ways;
  const bool is_wanted = state.shows_ways && state.document.is_valid();
  const ClusterName on = ways_cluster(state);
  if (!is_wanted || on.cluster.empty()) {
    ways.hovered = -1;
    return ways.task.cancel();
  }
  const Scenario& scenario = state.document.scenario();
  if (find_kept(ways, scenario, on) != nullptr) return ways.task.cancel();
  const bool is_begun = ways.task.is_running() && is_about(ways.wanted, scenario, on) &&
                        is_same_way(ways.wanted.scenario.parallel, scenario.parallel);
  if (!is_begun) {
    ways.hovered = -1;
    ways.share = 0;
    ways.wanted = {scenario, on.cluster, on.stack, nullptr, ""};
    return go_on(state, {});
  }
  const std::unique_ptr<Result<TriedWays>> made = ways.task.take();
  if (!made) return;
  if (!*made) return keep(ways, nullptr, to_sentence(made->error()));
  TriedWays tried = std::move(*made).value();
  const auto total = static_cast<int64_t>(tried.candidates.candidates.size());
  ways.share = static_cast<double>(tried.tried) / static_cast<double>(total);
  if (tried.tried < total) return go_on(state, std::move(tried));
  keep(ways, std::make_shared<const Candidates>(std::move(tried.candidates)), "");
}

void wait_for_ways(AppState& state) {
  compare_ways_in_background(state);
  while (state.ways.task.is_running()) {
    carry_out_posted();
    compare_ways_in_background(state);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

SharedCandidates shown_ways(const AppState& state) {
  const ComparedWays* ways = shown(state);
  return ways == nullptr ? nullptr : ways->candidates;
}

std::string ways_refusal(const AppState& state) {
  if (!state.document.is_open()) return "No scenario is open. Open one with Ctrl+O.";
  if (state.services.clusters.empty()) return "There is no cluster to compare on.";
  if (!state.document.is_valid())
    return "Nothing to compare: correct what the panel Scenario marks with \"!\".";
  const ComparedWays* ways = shown(state);
  return ways == nullptr ? "" : ways->refusal;
}

double ways_progress(const AppState& state) {
  return std::max(state.ways.share, state.ways.task.progress());
}

namespace {

/// By how much the batch is multiplied to have about kManyTokens; 1 when it is not.
int64_t enlargement(const AppState& state) {
  if (!state.document.is_valid()) return 1;
  const Batch& batch = state.document.scenario().batch;
  const int64_t tokens = std::accumulate(batch.lengths.begin(), batch.lengths.end(), int64_t{0});
  const Attention& attention = state.document.scenario().attention;
  const bool is_of_lengths = attention.mask_type != MaskType::slices && !batch.generator &&
                             batch.positions_file.empty() &&
                             state.document.scenario().parallel.layout != LayoutKind::indices;
  return tokens > 0 && is_of_lengths ? std::max<int64_t>(1, kManyTokens / tokens) : 1;
}

}  // namespace

std::string warn_of_launches(const AppState& state) {
  const SharedCandidates shown = shown_ways(state);
  if (!shown || shown->best < 0) return "";
  const Candidate& best = shown->candidates[static_cast<size_t>(shown->best)];
  const double share = (best.mean.launch_us + best.mean.host_us) / best.total_us();
  constexpr double kMost = 0.4;
  if (!(share > kMost)) return "";
  return fmt::format(
      "Launches and the host take {} of this time: with so few tokens the number of kernels "
      "decides. A larger "
      "batch may have another order.",
      print_share(share));
}

bool enlarge_batch(AppState& state) {
  const int64_t by = enlargement(state);
  if (by < 2) return false;
  Scenario scenario = state.document.scenario();
  Batch& batch = scenario.batch;
  for (std::vector<int64_t>* sizes :
       {&batch.lengths, &batch.slots, &batch.kv_lengths, &batch.kv_slots})
    for (int64_t& size : *sizes) size *= by;
  edit_scenario(state, std::move(scenario), "batch.lengths");
  state.document.end_edit();
  return true;
}

bool take_way(AppState& state, int64_t candidate) {
  const SharedCandidates shown = shown_ways(state);
  if (!shown || candidate < 0 || candidate >= static_cast<int64_t>(shown->candidates.size()))
    return false;
  const Candidate& taken = shown->candidates[static_cast<size_t>(candidate)];
  if (!taken.refusal.empty() || taken.is_own) return false;
  Scenario scenario = state.document.scenario();
  scenario.parallel = way_of(taken.parallel, scenario.parallel);
  edit_scenario(state, std::move(scenario), "parallel");
  state.document.end_edit();
  compare_ways_in_background(state);
  return true;
}

bool can_take_best_way(const AppState& state) {
  const SharedCandidates shown = shown_ways(state);
  return shown && shown->best >= 0 && shown->best != shown->own;
}

void start_saving_ways_csv(AppState& state, const std::string& path) {
  if (state.saving.task.is_running())
    return tell(state, "Another file is still being written: " + state.saving.path, true);
  state.saving.path = path;
  state.saving.task.start([path,
                           candidates = shown_ways(state)](TaskControl&) -> std::optional<Error> {
    if (!candidates)
      return make_error(ErrorKind::unavailable, "There is no comparison to be written",
                        "wait until the page of ways shows one", path);
    const Result<size_t> written = write_whole_file(path, comparison_csv(*candidates), "the table");
    if (!written) return written.error();
    return std::nullopt;
  });
}

Inspection inspect_way(const AppState& state) {
  const SharedCandidates shown = shown_ways(state);
  if (!shown) return {"Ways", {}};
  const auto count = static_cast<int64_t>(shown->candidates.size());
  const int64_t hovered = state.ways.hovered;
  const int64_t index = hovered >= 0 && hovered < count ? hovered : shown->own;
  const Candidate& candidate = shown->candidates[static_cast<size_t>(index)];
  Inspection inspection{candidate.name, {{"", {plain_words(place_of(*shown, index))}}}};
  if (candidate.refusal.empty()) add_figures(*shown, index, inspection);
  return inspection;
}

}  // namespace cpscope::gui
