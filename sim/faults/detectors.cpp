#include "sim/faults/detectors.h"

#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/visit_items.h"
#include "sim/run/grade/case.h"
#include "sim/run/grade/cause_search.h"
#include "sim/run/probe/probe.h"
#include "sim/run/run_inputs.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Work of a pass by step and rank.
struct WorkTable {
  // [direction, step, sender, receiver, payload]
  std::map<std::tuple<Direction, int32_t, int32_t, int32_t, Payload>, int64_t> bytes;
  std::map<std::pair<int32_t, int32_t>, int64_t> pairs;  // [step, rank] forward

  void add(const ItemWork& work) {
    if (work.bytes > 0)
      bytes[{work.item.direction, to_index(work.step), to_index(work.rank), to_index(work.peer),
             work.payload}] += work.bytes;
    if (work.item.direction == Direction::forward && work.pairs > 0)
      pairs[{to_index(work.step), to_index(work.rank)}] += work.pairs;
  }
};

WorkTable table_of(const WalkTrace& trace) {
  WorkTable table;
  for (const ItemWork& work : trace.work) table.add(work);
  return table;
}

/// The work of the proved plan.
WorkTable table_of(const Plan& plan) {
  WorkTable table;
  const Overload add_item{
      [&](const ItemId& id, const TransferItem& item) {
        table.add({.item = id,
                   .rank = item.src,
                   .peer = item.dst,
                   .step = item.step,
                   .payload = item.payload,
                   .bytes = item.bytes});
      },
      [&](const ItemId& id, const ComputeItem& item) {
        table.add({.item = id, .rank = item.rank, .step = item.step, .pairs = item.visible_pairs});
      },
      [](const ItemId&, const auto&) {}};
  for (const Direction direction : kDirections) for_each_item(plan, direction, add_item);
  return table;
}

/// Sum over steps of the busiest rank's pairs.
int64_t critical_path(const WorkTable& table) {
  std::map<int32_t, int64_t> busiest;
  for (const auto& [place, pairs] : table.pairs)
    busiest[place.first] = std::max(busiest[place.first], pairs);
  int64_t sum = 0;
  for (const auto& [step, pairs] : busiest) sum += pairs;
  return sum;
}

/// The first compute item of the trace with this place.
std::optional<FaultSite> find_compute(const WalkTrace& trace, int32_t step, int32_t rank) {
  for (const ItemWork& work : trace.work) {
    if (work.item.direction == Direction::forward && work.item.kind == StageKind::compute &&
        to_index(work.step) == step && to_index(work.rank) == rank)
      return FaultSite{work.item, work.rank, work.step};
  }
  return std::nullopt;
}

/// The last message of the trace between these ranks: a surplus message comes after the right ones.
std::optional<FaultSite> find_message(const WalkTrace& trace, Direction direction, int32_t step,
                                      int32_t sender, int32_t receiver, Payload payload) {
  std::optional<FaultSite> site;
  for (const ItemWork& work : trace.work) {
    if (work.item.kind == StageKind::transfer && work.item.direction == direction &&
        to_index(work.step) == step && to_index(work.rank) == sender &&
        to_index(work.peer) == receiver && work.payload == payload)
      site = FaultSite{work.item, work.rank, work.step};
  }
  return site;
}

std::optional<Alarm> weigh_bytes(const Plan& plan, const WalkTrace& trace) {
  const WorkTable expected = table_of(plan), seen = table_of(trace);
  auto messages = expected.bytes;
  messages.insert(seen.bytes.begin(), seen.bytes.end());
  for (const auto& [message, unused] : messages) {
    const auto right = expected.bytes.find(message), found = seen.bytes.find(message);
    const int64_t want = right == expected.bytes.end() ? 0 : right->second;
    const int64_t have = found == seen.bytes.end() ? 0 : found->second;
    if (want == have) continue;
    const auto [direction, step, sender, receiver, payload] = message;
    Alarm alarm{.detector = Detector::bytes, .rank = sender, .step = step};
    alarm.site = find_message(trace, direction, step, sender, receiver, payload);
    alarm.text = fmt::format(
        "rank {} sent {} bytes of {} to rank {} in {} step {}, the proved schedule sends {}",
        sender, have, to_name(payload), receiver, to_name(direction), step, want);
    return alarm;
  }
  return std::nullopt;
}

/// The critical path must not be longer than the proved plan's. The place is the rank whose work
/// exceeds that of the planned busiest rank most.
std::optional<Alarm> weigh_balance(const Plan& plan, const WalkTrace& trace) {
  const WorkTable expected = table_of(plan), seen = table_of(trace);
  const int64_t want = critical_path(expected), have = critical_path(seen);
  // A slightly wrong mask changes little work; other detectors find it.
  if (static_cast<double>(have) <= 1.1 * static_cast<double>(want)) return std::nullopt;
  std::map<int32_t, int64_t> busiest;
  for (const auto& [place, pairs] : expected.pairs)
    busiest[place.first] = std::max(busiest[place.first], pairs);
  int64_t most = -1;
  Alarm alarm{.detector = Detector::balance};
  for (const auto& [place, pairs] : seen.pairs) {
    if (pairs - busiest[place.first] <= most) continue;
    most = pairs - busiest[place.first];
    alarm.step = place.first;
    alarm.rank = place.second;
  }
  alarm.site = find_compute(trace, alarm.step, alarm.rank);
  alarm.text = fmt::format(
      "the busiest ranks of all steps compute {} pairs, the proved schedule's "
      "{}; most too many on rank {} in step {}",
      have, want, alarm.rank, alarm.step);
  return alarm;
}

std::optional<Alarm> watch_posts(const RankPosts& posts, const RankPosts& expected) {
  const std::optional<Stall> stall = find_stall(posts, expected);
  if (!stall) return std::nullopt;
  Alarm alarm{.detector = Detector::liveness,
              .rank = to_index(stall->culprit),
              .step = to_index(stall->post.step)};
  alarm.site = FaultSite{stall->post.item, stall->culprit, stall->post.step};
  alarm.text = stall->text;
  return alarm;
}

int64_t count_changed_posts(const RankPosts& posts, const RankPosts& expected) {
  const auto flatten = [](const std::vector<std::vector<Post>>& groups) {
    std::vector<std::tuple<RankId, StepId, int64_t, int64_t, Direction, bool, size_t>> all;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const Post& post : groups[g])
        all.emplace_back(post.peer, post.step, post.bytes, post.item.index, post.item.direction,
                         post.is_send, g);
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  int64_t changed = 0;
  for (const RankId rank : posts.groups.ids()) {
    const auto a = flatten(posts.groups[rank]), b = flatten(expected.groups[rank]);
    std::vector<std::decay_t<decltype(a)>::value_type> apart;
    std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(),
                                  std::back_inserter(apart));
    changed += static_cast<int64_t>(apart.size());
  }
  return changed;
}

void add_grade(const Grade& grade, std::vector<Alarm>& alarms) {
  for (const Detector detector : {Detector::output, Detector::gradient}) {
    for (const TensorGrade& tensor : grade.tensors) {
      const bool is_gradient = tensor.name.starts_with("d");
      if (tensor.passed || is_gradient != (detector == Detector::gradient)) continue;
      alarms.push_back({.detector = detector,
                        .rank = tensor.worst.rank,
                        .token = tensor.worst.token,
                        .head = tensor.worst.head,
                        .site = std::nullopt,
                        .text = fmt::format("{}: rel_l2 {:.3g}, budget {:.3g}, {} NaN; token {}, "
                                            "head {}: expected {:.6g}, seen {:.6g}",
                                            tensor.name, tensor.rel_l2, tensor.budget, tensor.nan,
                                            tensor.worst.token, tensor.worst.head,
                                            tensor.worst.expected, tensor.worst.seen)});
      break;
    }
  }
}

/// Runs all probes; each one that finds a wrong row is an alarm.
std::optional<Error> probe_all(const Referee& referee, Executor& executor,
                               std::vector<Alarm>& alarms) {
  const Result<ProbeReport> report = run_probes(referee.scenario, executor, referee.witness, {});
  if (!report) return report.error();
  const auto add = [&](Detector detector, const std::optional<ProbeFinding>& found) {
    if (!found) return;
    alarms.push_back({.detector = detector,
                      .rank = found->rank,
                      .step = found->step,
                      .token = found->token,
                      .head = found->head,
                      .site = std::nullopt,
                      .text = found->text});
  };
  add(Detector::count, report.value().first_of("count"));
  add(Detector::keys, report.value().first_of("keys"));
  add(Detector::position, report.value().first_of("position"));
  // The head probe tests two things: the query of a row and the KV head of its keys.
  const auto kv_head = report.value().first_of("head");
  add(Detector::head, kv_head ? kv_head : report.value().first_of("query"));
  for (const char* gradient : {"dq", "dk", "dv"}) {
    if (!report.value().first_of(gradient)) continue;
    add(Detector::gradient_probe, report.value().first_of(gradient));
    break;
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_name(Detector value) {
  constexpr std::string_view kNames[] = {
      "coverage count", "key barcode", "position probe", "head identity", "gradient probe",
      "output",         "gradient",    "bytes",          "balance",       "liveness"};
  return kNames[static_cast<size_t>(value)];
}

std::string_view to_name(FaultPlace value) {
  constexpr std::string_view kNames[] = {"plan", "executor", "inputs"};
  return kNames[static_cast<size_t>(value)];
}

Result<Referee> make_referee(const Scenario& scenario, const Toolbox& toolbox) {
  Result<CheckedPlan> plan = plan_scenario(scenario);
  if (!plan) return plan.error();
  RunInputs inputs = make_run_inputs(plan.value().plan(), false);
  RunInputs poisoned = make_run_inputs(plan.value().plan(), true);
  Result<Verdict> verdict =
      toolbox.oracle.judge(scenario, inputs, count_hops(plan.value().plan()), RunControl{});
  if (!verdict) return verdict.error();
  return Referee{.scenario = scenario,
                 .plan = std::move(plan).value(),
                 .inputs = std::move(inputs),
                 .poisoned = std::move(poisoned),
                 .verdict = std::move(verdict).value(),
                 .witness = toolbox.oracle.witness};
}

Result<Examination> examine(const Referee& referee, FaultyExecutor& executor, bool poison) {
  Examination result;
  if (const auto error = probe_all(referee, executor, result.alarms)) return *error;
  const RunInputs& inputs = poison ? referee.poisoned : referee.inputs;
  Result<RunOutput> output = executor.run(referee.plan, inputs, {.poison = poison, .threads = 1});
  if (!output) return output.error();
  result.trace = executor.trace();
  result.answer = std::move(output).value().answer;
  result.planted = executor.planted();
  result.carried_out = executor.carried_out();
  const Plan& plan = referee.plan.plan();
  result.grade =
      grade_answer(plan, inputs, result.answer, referee.verdict, {.keeps_row_budgets = true});
  add_grade(result.grade, result.alarms);
  if (const auto alarm = weigh_bytes(plan, result.trace)) result.alarms.push_back(*alarm);
  if (const auto alarm = weigh_balance(plan, result.trace)) result.alarms.push_back(*alarm);
  const RankPosts expected = make_posts(plan);
  if (const auto alarm = watch_posts(executor.posts(), expected)) result.alarms.push_back(*alarm);
  result.changed_posts = count_changed_posts(executor.posts(), expected);
  return result;
}

Result<std::vector<Cause>> name_causes(const Referee& referee, const Toolbox& toolbox,
                                       const Examination& examination, bool poison) {
  Grade grade = examination.grade;
  if (auto error =
          find_causes(toolbox, referee.plan.plan(), poison ? referee.poisoned : referee.inputs,
                      {.seen = examination.answer, .exact = referee.verdict.exact}, grade))
    return *error;
  return grade.causes;
}

}  // namespace cpscope
