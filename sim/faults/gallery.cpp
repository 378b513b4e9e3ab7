#include "sim/faults/gallery.h"

#include "sim/base/parallel.h"
#include "sim/faults/parting.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <tuple>

#include <fmt/format.h>

namespace cpscope {
namespace {

Result<Referee> referee_of(const std::string& text, const Toolbox& toolbox) {
  const Result<LoadedScenario> loaded = parse_scenario(text, "fault");
  if (!loaded) return loaded.error();
  return make_referee(loaded.value().scenario, toolbox);
}

/// Results, bytes and messages that differ from the clean twin's.
int64_t count_exercised(const Referee& referee, const Examination& clean,
                        const Examination& faulty) {
  const Plan& healthy = referee.plan.plan();
  int64_t cells =
      count_parted_results(healthy, clean.trace, faulty.carried_out->plan(), faulty.trace);
  const auto key = [](const ItemWork& work) {
    return std::tuple(work.item.is_backward, to_index(work.step), to_index(work.rank), work.bytes,
                      work.pairs);
  };
  std::map<decltype(key(ItemWork{})), int64_t> balance;
  for (const ItemWork& work : clean.trace.work) ++balance[key(work)];
  for (const ItemWork& work : faulty.trace.work) --balance[key(work)];
  for (const auto& [work, surplus] : balance) cells += std::abs(surplus);
  return cells + faulty.changed_posts;
}

const Alarm* find_alarm(const std::vector<Alarm>& alarms, Detector detector) {
  for (const Alarm& alarm : alarms) {
    if (alarm.detector == detector) return &alarm;
  }
  return nullptr;
}

/// Detectors that watch items say where; the others leave it to the first parting from the clean
/// twin.
std::optional<FoundPlace> locate(const Referee& referee, const Examination& clean,
                                 const Examination& faulty, const Alarm& alarm) {
  if (alarm.site) return FoundPlace{*alarm.site};
  const auto parting =
      find_parting(referee.plan.plan(), clean.trace, faulty.carried_out->plan(), faulty.trace);
  if (!parting) return std::nullopt;
  return FoundPlace{parting->site, parting->row_begin, parting->row_end, parting->token};
}

bool is_same_place(const FaultSite& a, const FaultSite& b) {
  if (a.rank != b.rank || a.is_load != b.is_load) return false;
  return a.is_load || (a.is_backward == b.is_backward && a.step == b.step && a.kind == b.kind &&
                       a.item == b.item);
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

std::optional<Error> try_blind(const Fault& fault, const Toolbox& toolbox, FaultOutcome& outcome) {
  const Result<Referee> referee = referee_of(fault.blind->text, toolbox);
  if (!referee) return referee.error();
  FaultyExecutor twin(nullptr, toolbox.watched_walker), faulty(&fault, toolbox.watched_walker);
  const Result<Examination> clean = examine(referee.value(), twin, fault.poison);
  if (!clean) return clean.error();
  const Result<Examination> seen = examine(referee.value(), faulty, fault.poison);
  if (!seen) return seen.error();
  outcome.blind = BlindOutcome{count_exercised(referee.value(), clean.value(), seen.value()),
                               seen.value().alarms.empty()};
  for (const Alarm& alarm : clean.value().alarms) outcome.false_alarms.push_back(alarm);
  return std::nullopt;
}

std::optional<Error> try_revealing(const Fault& fault, const Toolbox& toolbox,
                                   FaultOutcome& outcome) {
  const Result<Referee> referee = referee_of(fault.scenario, toolbox);
  if (!referee) return referee.error();
  FaultyExecutor twin(nullptr, toolbox.watched_walker), faulty(&fault, toolbox.watched_walker);
  const Result<Examination> clean = examine(referee.value(), twin, fault.poison);
  if (!clean) return clean.error();
  const Result<Examination> seen = examine(referee.value(), faulty, fault.poison);
  if (!seen) return seen.error();
  outcome.false_alarms = clean.value().alarms;
  outcome.alarms = seen.value().alarms;
  if (!seen.value().planted)
    return make_error(ErrorKind::failed, "the plan has no place for the fault");
  outcome.planted = seen.value().planted->site;
  outcome.what = seen.value().planted->what;
  outcome.cells_exercised = count_exercised(referee.value(), clean.value(), seen.value());
  judge_plan(*seen.value().carried_out, outcome);
  const Alarm* alarm = find_alarm(outcome.alarms, fault.detector);
  outcome.caught = alarm != nullptr;
  if (alarm == nullptr) return std::nullopt;
  outcome.where = locate(referee.value(), clean.value(), seen.value(), *alarm);
  outcome.localised = outcome.where && is_same_place(outcome.where->site, *outcome.planted);
  return std::nullopt;
}

}  // namespace

FaultOutcome try_fault(const Fault& fault, const Toolbox& toolbox) {
  FaultOutcome outcome;
  outcome.fault = &fault;
  if (const auto error = try_revealing(fault, toolbox, outcome)) outcome.error = to_text(*error);
  if (!fault.blind || !outcome.error.empty()) return outcome;
  if (const auto error = try_blind(fault, toolbox, outcome)) outcome.error = to_text(*error);
  return outcome;
}

GalleryReport run_gallery(std::span<const Fault> faults, const Toolbox& toolbox,
                          const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  GalleryReport report;
  report.outcomes.resize(faults.size());
  std::mutex mutex;
  int64_t done = 0;
  const auto count = static_cast<int64_t>(faults.size());
  for_each_index(count, [&](int64_t index) {
    report.outcomes[static_cast<size_t>(index)] =
        try_fault(faults[static_cast<size_t>(index)], toolbox);
    const std::lock_guard lock(mutex);
    if (progress) progress(++done, count);
  });
  for (const FaultOutcome& outcome : report.outcomes)
    report.false_alarms += static_cast<int64_t>(outcome.false_alarms.size());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
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
