#include "gui/app/lesson_figures.h"
#include "gui/app/lesson_parts.h"
#include "gui/app/prediction.h"
#include "gui/app/question.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "sim/clock/clock.h"
#include "sim/plan/planner/planner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

// The lessons on overlap and on memory: pages, words and questions.

namespace cpscope::gui {
namespace {

constexpr int64_t kLongTokens = 131'072, kShortTokens = 4'096;
constexpr int32_t kRanksOfHost = 8, kQueryHeads = 32, kKeyHeads = 8, kHeadDim = 128, kAskedRank = 2;
constexpr double kNsOfUs = 1000;

void set_tokens(Scenario& scenario, int64_t tokens) {
  Batch& batch = scenario.batch;
  batch.generator.reset();
  batch.lengths = batch.kv_lengths = batch.slots = batch.kv_slots = {tokens};
}

/// A layer of a usual size on all GPUs of a host.
void use_host(Scenario& scenario, int64_t tokens, CommType type) {
  set_tokens(scenario, tokens);
  scenario.parallel.cp_size = kRanksOfHost;
  scenario.parallel.comm_type = type;
  scenario.attention.heads = kQueryHeads;
  scenario.attention.kv_heads = kKeyHeads;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = kHeadDim;
  scenario.numerics.dtype = Dtype::bf16;
}

void use_long_ring(Scenario& s) { use_host(s, kLongTokens, CommType::p2p); }
void use_short_ring(Scenario& s) { use_host(s, kShortTokens, CommType::p2p); }
void use_all_gather(Scenario& s) { use_host(s, kLongTokens, CommType::all_gather); }

/// Figures of plans that words and questions compare with the open one.
struct CostFigures {
  int64_t most_bytes = 0;     // of memory, on the fullest rank
  double pairs_per_byte = 0;  // of the forward: triples computed for each byte that is sent
};

CostFigures measure_costs(const Plan& plan) {
  const PlanSummary summary = summarise(plan);
  CostFigures figures;
  for (const int64_t bytes : high_water_bytes(plan, false))
    figures.most_bytes = std::max(figures.most_bytes, bytes);
  double bytes = 0;
  for (const int64_t sent : summary.forward_bytes) bytes += static_cast<double>(sent);
  if (bytes > 0) figures.pairs_per_byte = static_cast<double>(summary.visible_pairs) / bytes;
  return figures;
}

/// Words are written in every frame, and planning takes longer than one. `which` tells variants of
/// one plan apart.
std::optional<CostFigures> costs_of(const Plan& plan, int32_t which,
                                    void (*change)(Scenario& scenario)) {
  static thread_local std::map<std::pair<uint64_t, int32_t>, std::optional<CostFigures>> known;
  const auto [it, is_new] = known.try_emplace({plan.hash, which});
  if (is_new) {
    Scenario scenario = plan.scenario;
    if (change != nullptr) change(scenario);
    const Result<Plan> other = make_plan(scenario);
    if (other) it->second = measure_costs(other.value());
  }
  return it->second;
}

void halve_tokens(Scenario& scenario) {
  for (std::vector<int64_t>* list : {&scenario.batch.lengths, &scenario.batch.kv_lengths,
                                     &scenario.batch.slots, &scenario.batch.kv_slots})
    for (int64_t& tokens : *list) tokens = std::max<int64_t>(1, tokens / 2);
  scenario.batch.generator.reset();
}
void turn_to_ring(Scenario& s) { s.parallel.comm_type = CommType::p2p; }
void turn_to_all_gather(Scenario& s) { s.parallel.comm_type = CommType::all_gather; }
void turn_to_all_to_all(Scenario& s) { s.parallel.comm_type = CommType::a2a; }

/// The forward of a rank on the chosen cluster; nothing while there are no times.
std::optional<RankTimes> times_of_first_rank(const AppState& state) {
  static thread_local std::map<std::pair<uint64_t, std::string>, std::optional<RankTimes>> known;
  const Cluster* cluster = find_cluster(state, state.prediction.cluster);
  if (cluster == nullptr) return std::nullopt;
  const Plan& plan = state.plan()->plan();
  const auto [it, is_new] =
      known.try_emplace({plan.hash, cluster->name + "/" + state.prediction.stack});
  if (is_new) {
    const Result<Timeline> timeline =
        predict(plan, *cluster, {.stack = state.prediction.stack, .keeps_events = false});
    if (timeline && !timeline.value().forward.ranks.empty())
      it->second = timeline.value().forward.ranks.front();
  }
  return it->second;
}

void begin_without_selection(AppState& state) {
  state.playhead = {};
  select(state, Target{});
}

void tell_times(CaptionWriter& writer, const AppState& state) {
  const std::optional<RankTimes> times = times_of_first_rank(state);
  if (!times)
    return void(writer.say("Choose a cluster in the heading of the timeline to see its times. "));
  writer.say(fmt::format(
      "Predicted for {}: in the forward a rank computes for {} and its transfers take {}; {} of "
      "their time is not behind compute, and the rank waits. ",
      find_cluster(state, state.prediction.cluster)->title,
      print_duration(kNsOfUs * times->compute_us), print_duration(kNsOfUs * times->transfer_us),
      print_share(times->transfer_us > 0 ? times->exposed_us / times->transfer_us : 0)));
}

void transfers_hide(CaptionWriter& writer, const AppState& state) {
  writer.say(
      "A ring computes with the keys that it has while the next ones arrive. A transfer that ends "
      "before the compute costs no time: it is hidden. ");
  tell_times(writer, state);
  writer.say("In the last step nothing travels.");
}

void transfers_show(CaptionWriter& writer, const AppState& state) {
  const Plan& plan = writer.plan();
  const Attention& attention = plan.scenario.attention;
  const std::optional<CostFigures> here = costs_of(plan, 0, nullptr);
  const double flops =
      here ? here->pairs_per_byte * flops_per_pair(attention, Direction::forward) : 0;
  writer.say(
      fmt::format("The same layer with {}. ", count_text(writer.index().tokens(Side::q), "token")));
  tell_times(writer, state);
  writer.say(fmt::format(
      "For each byte that is sent, {} operations are computed: (triples of query, key and head) "
      "x {} / bytes. A machine hides transfers when its compute rate divided by its link rate is "
      "less. More tokens a rank help, and so do fewer KV heads: {} for {} here. Times of launches "
      "do not shrink with the batch.",
      print_count(static_cast<int64_t>(flops)),
      print_count(static_cast<int64_t>(flops_per_pair(attention, Direction::forward))),
      count_text(attention.kv_heads, "KV head"), count_text(attention.heads, "query head")));
}

// ---- compute for each byte ---------------------------------------------------------------------

void ask_work_per_byte(CaptionWriter& writer, const AppState&) {
  const int64_t tokens = writer.index().tokens(Side::q);
  writer.say(fmt::format(
      "Predict: with {} tokens instead of {}, how many times less does a rank compute for each "
      "byte that it sends? Type one number.",
      print_count(tokens / 2), print_count(tokens)));
}

double work_per_byte_lost(const AppState& state) {
  const Plan& plan = state.plan()->plan();
  const auto here = costs_of(plan, 0, nullptr), half = costs_of(plan, 1, halve_tokens);
  return here && half && half->pairs_per_byte > 0 ? here->pairs_per_byte / half->pairs_per_byte : 0;
}

void hint_work_per_byte(CaptionWriter& writer, const AppState&) {
  writer.say("every query meets every key before it, but each key is sent once for each rank.");
}

void explain_work_per_byte(CaptionWriter& writer, const AppState&) {
  const auto here = costs_of(writer.plan(), 0, nullptr);
  const auto half = costs_of(writer.plan(), 1, halve_tokens);
  if (!here || !half) return;
  writer.say(fmt::format(
      "{:.0f} triples of query, key and head for each byte become {:.0f}: the pairs shrink to a "
      "quarter, the bytes to a half. So a ring hides its transfers only from some length on.",
      here->pairs_per_byte, half->pairs_per_byte));
}

std::vector<Mistake> mistakes_of_work_per_byte(const AppState&) {
  return {{4, "That is how the pairs shrink, but there are fewer bytes too."},
          {1, "The pairs shrink more than the bytes."}};
}

const Question kWorkPerByte{.kind = AnswerKind::ratio,
                            .hint = hint_work_per_byte,
                            .explain = explain_work_per_byte,
                            .number = work_per_byte_lost,
                            .mistakes = mistakes_of_work_per_byte};

// ---- memory ------------------------------------------------------------------------------------

double bytes_of_token(const Plan& plan, int64_t heads) {
  const Attention& a = plan.scenario.attention;
  return static_cast<double>(heads * lanes_of(BufferKind::kv, a) *
                             element_bytes(plan.scenario.numerics.dtype));
}

double bytes_of_all_keys(const AppState& state) {
  const Plan& plan = state.plan()->plan();
  return static_cast<double>(state.plan()->tokens(Side::kv)) *
         bytes_of_token(plan, plan.scenario.attention.kv_heads);
}

void ring_keeps_blocks(CaptionWriter& writer, const AppState& state) {
  const auto here = costs_of(writer.plan(), 0, nullptr);
  const double all = bytes_of_all_keys(state);
  writer.say(fmt::format(
      "Keys and values of all tokens take {}. A rank of {} owns {} of them, and in a ring it holds "
      "two such blocks more at most: one that it computes with, one that arrives. ",
      print_bytes(all), writer.index().num_ranks(), print_bytes(all / writer.index().num_ranks())));
  if (here)
    writer.say(fmt::format(
        "With queries, results, gradients and messages in staging, the fullest rank needs {}.",
        print_bytes(here->most_bytes)));
}

void memory_of_ways(CaptionWriter& writer, const AppState&) {
  const auto ring = costs_of(writer.plan(), 2, turn_to_ring);
  const auto gather = costs_of(writer.plan(), 3, turn_to_all_gather);
  const auto heads = costs_of(writer.plan(), 4, turn_to_all_to_all);
  writer.say("The fullest rank needs, in both passes: ");
  const auto tell = [&](std::string_view name, const std::optional<CostFigures>& figures) {
    writer.say(
        fmt::format("{} {}", name, figures ? print_bytes(figures->most_bytes) : "(rejected)"));
  };
  tell("a ring", ring);
  tell(", all-gather", gather);
  tell(", all-to-all", heads);
  writer.say(
      ". With more ranks a ring needs less on each; an all-gather keeps the keys of all tokens; "
      "all-to-all has all tokens of a part of the heads, and can use no more ranks than heads. "
      "None "
      "of them keeps the scores: those would be one number for every pair and head.");
}

void ask_bytes_gathered(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: how many bytes of keys and values does ")
      .rank(std::min(kAskedRank, writer.index().num_ranks() - 1))
      .say(" hold once the all-gather is over?");
}

void hint_bytes_gathered(CaptionWriter& writer, const AppState&) {
  const Attention& a = writer.plan().scenario.attention;
  writer.say(
      fmt::format("tokens x KV heads x (head_dim of keys + of values) x bytes of an element: "
                  "{} x {} x ({} + {}) x {}.",
                  print_count(writer.index().tokens(Side::kv)), a.kv_heads, a.head_dim_qk,
                  a.head_dim_v, element_bytes(writer.plan().scenario.numerics.dtype)));
}

void explain_bytes_gathered(CaptionWriter& writer, const AppState& state) {
  const double all = bytes_of_all_keys(state);
  writer.say(fmt::format("It owns {} and receives {}. More ranks do not make it less.",
                         print_bytes(all / writer.index().num_ranks()),
                         print_bytes(all - all / writer.index().num_ranks())));
}

std::vector<Mistake> mistakes_of_bytes_gathered(const AppState& state) {
  const Plan& plan = state.plan()->plan();
  const Attention& a = plan.scenario.attention;
  const double all = bytes_of_all_keys(state), ranks = state.plan()->num_ranks();
  std::vector<Mistake> mistakes = {{all / 2, "That is the keys alone; values take as much."}};
  if (ranks > 1) mistakes.push_back({all / ranks, "That is what it owns before the all-gather."});
  if (a.heads > a.kv_heads)
    mistakes.push_back({all * static_cast<double>(a.heads) / static_cast<double>(a.kv_heads),
                        "There are fewer heads of keys than of queries."});
  return mistakes;
}

const Question kBytesGathered{.kind = AnswerKind::bytes,
                              .hint = hint_bytes_gathered,
                              .explain = explain_bytes_gathered,
                              .number = bytes_of_all_keys,
                              .mistakes = mistakes_of_bytes_gathered};

}  // namespace

void show_times(AppState& state) {
  state.playhead = {};
  select(state, Target{});
  if (state.prediction.cluster.empty())
    for (const Cluster& cluster : state.services.clusters) {
      if (cluster.gpus_per_node < state.plan()->num_ranks()) continue;
      choose_cluster(state, cluster.name, "");
      break;
    }
  state.shows_time = !state.prediction.cluster.empty();
}

void forget_times(AppState& state) {
  choose_cluster(state, "", "");
  state.shows_time = false;
}

Lesson lesson_overlap() {
  return {"Transfers behind compute",
          "When does communication cost no time?",
          {{.scenario = "zigzag",
            .change = use_long_ring,
            .prepare = show_times,
            .view = ViewKind::timeline,
            .text = transfers_hide,
            .ask = "Press Right until the last step of the forward",
            .is_done = is_in_last_forward_step,
            .perform = [](AppState& s) { press_right_until(s, is_in_last_forward_step); }},
           {.scenario = "zigzag",
            .change = use_long_ring,
            .prepare = begin_without_selection,
            .view = ViewKind::layout,
            .text = ask_work_per_byte,
            .question = &kWorkPerByte},
           {.scenario = "zigzag",
            .change = use_short_ring,
            .prepare = show_times,
            .view = ViewKind::timeline,
            .text = transfers_show}}};
}

Lesson lesson_memory() {
  return {"What a rank must hold",
          "Which bytes are on a rank at once, and do more ranks make them fewer?",
          {{.scenario = "zigzag",
            .change = use_long_ring,
            .prepare = begin_without_selection,
            .view = ViewKind::layout,
            .text = ring_keeps_blocks,
            .ask = "Press Right until the last step of the forward",
            .is_done = is_in_last_forward_step,
            .perform = [](AppState& s) { press_right_until(s, is_in_last_forward_step); }},
           {.scenario = "zigzag",
            .change = use_all_gather,
            .prepare = begin_without_selection,
            .view = ViewKind::layout,
            .text = ask_bytes_gathered,
            .question = &kBytesGathered},
           {.scenario = "zigzag",
            .change = use_long_ring,
            .view = ViewKind::layout,
            .text = memory_of_ways}}};
}

}  // namespace cpscope::gui
