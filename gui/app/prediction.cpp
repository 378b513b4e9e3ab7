#include "gui/app/prediction.h"

#include "gui/app/document/exact_steps.h"
#include "sim/clock/clock.h"
#include "sim/clock/trace_match.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

bool has_times(const SharedRun& run) { return run && !run->events.empty(); }

void sort_by_start(std::vector<ItemEvent>& events) {
  std::stable_sort(events.begin(), events.end(),
                   [](const ItemEvent& a, const ItemEvent& b) { return a.start_ns < b.start_ns; });
}

/// Changes the requested cluster and stack, without waiting for the running prediction.
void want(Prediction& prediction, std::string_view cluster, std::string_view stack) {
  prediction.task.cancel();
  prediction.cluster = cluster;
  prediction.stack = stack;
  prediction.wanted_plan = prediction.plan = nullptr;
  prediction.run = nullptr;
  prediction.refusal.clear();
  prediction.pinned.clear();
}

/// The first pinned plan without a prediction; null when there is none.
SharedPlan find_unpredicted(const AppState& state) {
  const auto& known = state.prediction.pinned;
  for (const SharedPlan& plan : state.pinned)
    if (std::none_of(known.begin(), known.end(),
                     [&](const auto& entry) { return entry.first == plan; }))
      return plan;
  return nullptr;
}

}  // namespace

const Cluster* find_cluster(const AppState& state, std::string_view name) {
  for (const Cluster& cluster : state.services.clusters)
    if (cluster.name == name) return &cluster;
  return nullptr;
}

std::vector<ClusterChoice> list_choices(const AppState& state) {
  std::vector<ClusterChoice> choices;
  for (const Cluster& cluster : state.services.clusters)
    for (const Stack& stack : cluster.stacks)
      choices.push_back(
          {cluster.name, stack.name, fmt::format("{}, {}", cluster.name, stack.name)});
  return choices;
}

void choose_cluster(AppState& state, std::string_view cluster, std::string_view stack) {
  Prediction& prediction = state.prediction;
  if (cluster.empty()) return want(prediction, "", "");
  const Cluster* found = find_cluster(state, cluster);
  if (found == nullptr) return tell(state, "There is no cluster " + std::string(cluster), true);
  const std::string wanted =
      stack.empty() && !found->stacks.empty() ? found->stacks.front().name : std::string(stack);
  state.shows_time = true;
  if (prediction.cluster == cluster && prediction.stack == wanted) return;
  want(prediction, cluster, wanted);
}

void choose_next_cluster(AppState& state) {
  const std::vector<ClusterChoice> choices = list_choices(state);
  const Prediction& now = state.prediction;
  size_t next = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].cluster == now.cluster && choices[i].stack == now.stack) next = i + 1;
  }
  if (next == choices.size()) return choose_cluster(state, "", "");
  choose_cluster(state, choices[next].cluster, choices[next].stack);
}

Result<SharedRun> predict_run(const Plan& plan, const Cluster& cluster, const std::string& stack) {
  Result<Timeline> timeline = predict(plan, cluster, {.stack = stack});
  if (!timeline) return timeline.error();
  auto run = std::make_shared<RunView>();
  run->name = fmt::format("{}, {}", cluster.name, timeline.value().stack);
  run->is_simulated = true;
  constexpr double kNsPerUs = 1000;
  run->total_ns = std::llround(
      kNsPerUs * (timeline.value().forward.total_us + timeline.value().backward.total_us));
  run->events = std::move(timeline.value().events);
  sort_by_start(run->events);
  return SharedRun(std::move(run));
}

Result<SharedRun> load_traces(const std::vector<std::string>& texts, std::optional<int64_t> layer,
                              const Plan& plan) {
  Result<TraceMatch> match = match_traces(plan, trace_sources(texts), layer);
  if (!match) return match.error();
  if (match.value().events.empty())
    return make_bad_input("no item of this plan is in the trace",
                          "cpscope timeline FILE --cluster NAME --measured TRACE says what is",
                          texts.front());
  auto run = std::make_shared<RunView>();
  run->name = match.value().source;
  if (match.value().layers > 1)
    run->name +=
        fmt::format(", layer {} of 0 to {}", match.value().layer, match.value().layers - 1);
  run->events = std::move(match.value().events);
  sort_by_start(run->events);
  return SharedRun(std::move(run));
}

void predict_in_background(AppState& state) {
  Prediction& prediction = state.prediction;
  const SharedPlan& plan = state.document.plan();
  const Cluster* cluster = find_cluster(state, prediction.cluster);
  if (cluster == nullptr || !plan) return;
  const auto start = [&](const SharedPlan& of) {
    prediction.in_hand = of;
    prediction.task.start([of, cluster = *cluster, stack = prediction.stack](TaskControl&) {
      return predict_run(of->plan(), cluster, stack);
    });
  };
  std::erase_if(prediction.pinned, [&](const auto& entry) {
    return std::find(state.pinned.begin(), state.pinned.end(), entry.first) == state.pinned.end();
  });
  if (prediction.wanted_plan != plan) {
    prediction.wanted_plan = plan;
    start(plan);
  } else if (!prediction.task.is_running()) {
    if (const SharedPlan next = find_unpredicted(state)) start(next);
  }
  const std::unique_ptr<Result<SharedRun>> made = prediction.task.take();
  if (!made) return;
  if (prediction.in_hand != prediction.wanted_plan) {
    prediction.pinned.emplace_back(prediction.in_hand, *made ? made->value() : nullptr);
    return;
  }
  prediction.plan = prediction.wanted_plan;
  prediction.run = *made ? made->value() : nullptr;
  const std::string refusal = *made ? "" : to_sentence(made->error());
  // Reported once, not after every edit.
  if (!refusal.empty() && refusal != prediction.refusal)
    tell(state, fmt::format("No times on {}: {}", prediction.cluster, refusal), true);
  prediction.refusal = refusal;
}

void wait_for_prediction(AppState& state) {
  predict_in_background(state);
  while (state.prediction.task.is_running()) {
    carry_out_posted();
    predict_in_background(state);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::optional<Error> show_prediction(AppState& state, Cluster cluster, const std::string& stack) {
  const Result<const Stack*> found = find_stack(cluster, stack);
  if (!found) return found.error();
  const Result<SharedRun> run = predict_run(state.plan()->plan(), cluster, found.value()->name);
  if (!run) return run.error();
  state.prediction.cluster = cluster.name;
  state.prediction.stack = found.value()->name;
  state.prediction.wanted_plan = state.prediction.plan = state.document.plan();
  state.prediction.run = run.value();
  state.services.clusters = {std::move(cluster)};
  state.shows_time = true;
  return std::nullopt;
}

SharedRun predicted_run(const AppState& state, const SharedPlan& plan) {
  const Prediction& prediction = state.prediction;
  if (prediction.plan == plan) return prediction.run;
  for (const auto& [pinned, run] : prediction.pinned)
    if (pinned == plan) return run;
  return nullptr;
}

TimedRuns timed_runs(const AppState& state, const SharedPlan& plan) {
  TimedRuns runs{state.run_a_plan == plan ? state.run_a : nullptr,
                 state.run_b_plan == plan ? state.run_b : nullptr};
  const SharedRun predicted = predicted_run(state, plan);
  if (!predicted) {
    // A run without a clock has no times to show, but its other run may.
    if (!has_times(runs.a) && has_times(runs.b)) return {runs.b, nullptr};
    return runs;
  }
  return {predicted, has_times(runs.a) ? runs.a : has_times(runs.b) ? runs.b : nullptr};
}

std::string describe_prediction(const AppState& state) {
  const Prediction& prediction = state.prediction;
  const Cluster* cluster = find_cluster(state, prediction.cluster);
  const bool is_shown = cluster != nullptr && state.shows_time && prediction.run &&
                        prediction.plan == state.document.plan();
  if (!is_shown) return "";
  const TimedRuns runs = timed_runs(state, prediction.plan);
  return fmt::format(
      "Times are predicted for {}, stack {}; {}.", cluster->title, prediction.stack,
      runs.b ? "those of " + runs.b->name + " are measured" : "nothing was measured");
}

}  // namespace cpscope::gui
