#include "sim/faults/gallery.h"

#include "sim/base/parallel.h"
#include "sim/faults/parting.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// One scenario's referee and its clean twin, with which every faulty run is compared.
struct Bench {
  Referee referee;
  Examination clean;
};

Result<Bench> make_bench(const std::string& text, bool poison, const Toolbox& toolbox) {
  const Result<LoadedScenario> loaded = parse_scenario(text, "fault");
  if (!loaded) return loaded.error();
  Result<Referee> referee = make_referee(loaded.value().scenario, toolbox);
  if (!referee) return referee.error();
  FaultyExecutor twin(nullptr, toolbox.watched_walker);
  Result<Examination> clean = examine(referee.value(), twin, poison);
  if (!clean) return clean.error();
  return Bench{std::move(referee).value(), std::move(clean).value()};
}

/// Benches of the scenarios that several faults share.
class Benches {
 public:
  explicit Benches(const Toolbox& toolbox) : toolbox_(toolbox) {}

  /// Makes one bench for each scenario of these faults, on all cores.
  void prepare(std::span<const Fault> faults) {
    for (const Fault& fault : faults) {
      benches_[{fault.scenario, fault.poison}];
      if (fault.blind) benches_[{fault.blind->text, fault.poison}];
    }
    std::vector<std::pair<const Key*, std::optional<Result<Bench>>*>> all;
    for (auto& [key, bench] : benches_) all.emplace_back(&key, &bench);
    for_each_index(static_cast<int64_t>(all.size()), [&](int64_t i) {
      *all[i].second = make_bench(all[i].first->first, all[i].first->second, toolbox_);
    });
  }

  const Result<Bench>& of(const std::string& text, bool poison) const {
    return *benches_.at({text, poison});
  }

 private:
  using Key = std::pair<std::string, bool>;  // scenario, poison
  const Toolbox& toolbox_;
  std::map<Key, std::optional<Result<Bench>>> benches_;
};

/// Number of results, work items, bytes and messages that differ from the clean twin's.
int64_t count_exercised(const Referee& referee, const Examination& clean,
                        const Examination& faulty) {
  const Plan& healthy = referee.plan.plan();
  int64_t cells =
      count_parted_results(healthy, clean.trace, faulty.carried_out->plan(), faulty.trace);
  const auto key = [](const ItemWork& work) {
    return std::tuple(work.item.direction, to_index(work.step), to_index(work.rank),
                      to_index(work.peer), work.bytes, work.pairs);
  };
  std::map<decltype(key(ItemWork{})), int64_t> balance;
  for (const ItemWork& work : clean.trace.work) ++balance[key(work)];
  for (const ItemWork& work : faulty.trace.work) --balance[key(work)];
  for (const auto& [work, surplus] : balance) cells += std::abs(surplus);
  // d_sink and dbias are in no buffer.
  const std::vector<double>&right = clean.answer.d_sink, &seen = faulty.answer.d_sink;
  for (size_t head = 0; head < right.size(); ++head) cells += right[head] != seen[head] ? 1 : 0;
  const std::vector<double>&right_bias = clean.answer.dbias.values,
        &seen_bias = faulty.answer.dbias.values;
  for (size_t cell = 0; cell < right_bias.size(); ++cell)
    cells += right_bias[cell] != seen_bias[cell] ? 1 : 0;
  return cells + faulty.changed_posts;
}

const Alarm* find_alarm(const std::vector<Alarm>& alarms, Detector detector) {
  for (const Alarm& alarm : alarms) {
    if (alarm.detector == detector) return &alarm;
  }
  return nullptr;
}

/// Detectors that watch items name the place; for the others it is the first divergence from the
/// clean twin.
std::optional<FoundPlace> locate(const Referee& referee, const Examination& clean,
                                 const Examination& faulty, const Alarm& alarm) {
  if (alarm.site) return FoundPlace{*alarm.site};
  const auto parting =
      find_parting(referee.plan.plan(), clean.trace, faulty.carried_out->plan(), faulty.trace);
  if (!parting) {
    // d_sink and dbias are collected after the last stage, so the place is the last item of the
    // rank.
    if (alarm.detector != Detector::gradient || alarm.rank < 0) return std::nullopt;
    const std::vector<FinishItem>& items = referee.plan.plan().backward.finishes;
    const auto item = std::find_if(items.begin(), items.end(), [&](const FinishItem& candidate) {
      return to_index(candidate.rank) == alarm.rank;
    });
    if (item == items.end()) return std::nullopt;
    return FoundPlace{FaultSite{
        {Direction::backward, StageKind::finish, item - items.begin()}, item->rank, item->step}};
  }
  return FoundPlace{parting->site, parting->row_begin, parting->row_end, parting->token};
}

bool is_same_place(const FaultSite& a, const FaultSite& b) {
  return a == b || (a.is_load && b.is_load && a.rank == b.rank);
}

void judge_plan(const CheckedPlan& plan, FaultOutcome& outcome) {
  if (plan.admitted_because().empty()) {
    outcome.plan_check = "passes: the plan is the proved one";
    return;
  }
  outcome.plan_check = "passes: sound for what was handed over";
  for (const CheckResult& check : plan.checks()) {
    if (check.ok) continue;
    outcome.plan_is_refuted = true;
    outcome.plan_check = check.name + ": " + check.detail;
    return;
  }
}

std::optional<Error> try_blind(const Fault& fault, const Benches& benches, const Toolbox& toolbox,
                               FaultOutcome& outcome) {
  const Result<Bench>& bench = benches.of(fault.blind->text, fault.poison);
  if (!bench) return bench.error();
  const auto& [referee, clean] = bench.value();
  outcome.false_alarms.insert(outcome.false_alarms.end(), clean.alarms.begin(), clean.alarms.end());
  outcome.blind = BlindOutcome{};
  // If the plan has no place for the fault, the run would equal the clean twin's.
  if (!fault.plant(referee.plan.plan())) return std::nullopt;
  FaultyExecutor faulty(&fault, toolbox.watched_walker);
  const Result<Examination> seen = examine(referee, faulty, fault.poison);
  if (!seen) return seen.error();
  *outcome.blind = {true, count_exercised(referee, clean, seen.value()),
                    seen.value().alarms.empty()};
  return std::nullopt;
}

std::optional<Error> try_revealing(const Fault& fault, const Benches& benches,
                                   const Toolbox& toolbox, FaultOutcome& outcome) {
  const Result<Bench>& bench = benches.of(fault.scenario, fault.poison);
  if (!bench) return bench.error();
  const auto& [referee, clean] = bench.value();
  FaultyExecutor faulty(&fault, toolbox.watched_walker);
  const Result<Examination> seen = examine(referee, faulty, fault.poison);
  if (!seen) return seen.error();
  outcome.false_alarms = clean.alarms;
  outcome.alarms = seen.value().alarms;
  if (!seen.value().planted)
    return make_error(ErrorKind::failed, "the plan has no place for the fault");
  outcome.planted = seen.value().planted->site;
  outcome.what = seen.value().planted->what;
  outcome.cells_exercised = count_exercised(referee, clean, seen.value());
  judge_plan(*seen.value().carried_out, outcome);
  Result<std::vector<Cause>> causes = name_causes(referee, toolbox, seen.value(), fault.poison);
  if (!causes) return causes.error();
  outcome.causes = std::move(causes).value();
  const Alarm* alarm = find_alarm(outcome.alarms, fault.detector);
  outcome.caught = alarm != nullptr;
  if (alarm == nullptr) return std::nullopt;
  outcome.where = locate(referee, clean, seen.value(), *alarm);
  outcome.localised = outcome.where && is_same_place(outcome.where->site, *outcome.planted);
  return std::nullopt;
}

FaultOutcome try_on(const Fault& fault, const Benches& benches, const Toolbox& toolbox) {
  FaultOutcome outcome;
  outcome.fault = &fault;
  if (const auto error = try_revealing(fault, benches, toolbox, outcome))
    outcome.error = to_text(*error);
  if (!fault.blind || !outcome.error.empty()) return outcome;
  if (const auto error = try_blind(fault, benches, toolbox, outcome))
    outcome.error = to_text(*error);
  return outcome;
}

}  // namespace

FaultOutcome try_fault(const Fault& fault, const Toolbox& toolbox) {
  Benches benches(toolbox);
  benches.prepare({&fault, 1});
  return try_on(fault, benches, toolbox);
}

GalleryReport run_gallery(std::span<const Fault> faults, const Toolbox& toolbox,
                          const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  GalleryReport report;
  report.outcomes.resize(faults.size());
  Benches benches(toolbox);
  benches.prepare(faults);
  std::mutex mutex;
  int64_t done = 0;
  const auto count = static_cast<int64_t>(faults.size());
  for_each_index(count, [&](int64_t index) {
    report.outcomes[static_cast<size_t>(index)] =
        try_on(faults[static_cast<size_t>(index)], benches, toolbox);
    const std::lock_guard lock(mutex);
    if (progress) progress(++done, count);
  });
  for (const FaultOutcome& outcome : report.outcomes)
    report.false_alarms += static_cast<int64_t>(outcome.false_alarms.size());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::vector<std::string> FaultOutcome::cause_names() const {
  std::vector<std::string> names;
  for (const Cause& cause : causes) {
    if (std::find(names.begin(), names.end(), cause.name) == names.end())
      names.push_back(cause.name);
  }
  return names;
}

int64_t GalleryReport::caught() const {
  return std::count_if(outcomes.begin(), outcomes.end(),
                       [](const FaultOutcome& outcome) { return outcome.caught; });
}

int64_t GalleryReport::localised() const {
  return std::count_if(outcomes.begin(), outcomes.end(),
                       [](const FaultOutcome& outcome) { return outcome.localised; });
}

bool GalleryReport::passed() const {
  return false_alarms == 0 &&
         std::all_of(outcomes.begin(), outcomes.end(), [](const FaultOutcome& outcome) {
           const bool is_blind =
               !outcome.blind || (outcome.blind->cells_exercised == 0 && outcome.blind->is_silent);
           return outcome.error.empty() && outcome.caught && outcome.localised && is_blind;
         });
}

}  // namespace cpscope
