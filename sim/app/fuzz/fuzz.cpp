#include "sim/app/fuzz/fuzz.h"

#include "sim/base/parallel.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/grade/case.h"
#include "sim/run/grade/sample.h"
#include "sim/run/probe/probe.h"
#include "sim/scenario/portable_random.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/scenario_names.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <limits>

#include <fmt/format.h>
#include <unistd.h>

namespace cpscope {
namespace {

/// Other plans that a draw is compared with.
constexpr int64_t kEquivalents = 3;
/// Logits up to this size are plain; what larger ones may differ by grows with them.
constexpr double kPlainLogit = 10.0;
/// Draws between two looks at the clock.
constexpr int64_t kRound = 32;
constexpr uint64_t kDrawStream = 0xF022;

// ---- one scenario -------------------------------------------------------------------------------

/// A scenario whose text cannot say all of it: an imported order stands in a file of its own.
bool has_own_file(const Scenario& scenario) {
  return scenario.parallel.layout == LayoutKind::indices;
}

std::optional<FuzzFinding> check_text(const Scenario& scenario) {
  if (has_own_file(scenario)) return std::nullopt;
  const Result<LoadedScenario> loaded = parse_scenario(print_scenario(scenario), "printed.toml");
  if (!loaded)
    return FuzzFinding{"text", "the printed scenario does not load: " + to_text(loaded.error())};
  if (loaded.value().scenario == scenario) return std::nullopt;
  return FuzzFinding{"text", "the printed scenario reads back as another one"};
}

/// A check that ended with an error.
FuzzFinding find_error(const char* check, const Error& error) {
  FuzzFinding finding{check, to_text(error)};
  if (error.kind == ErrorKind::unavailable) finding.obstacle = error;
  return finding;
}

FuzzFinding describe_run(const CaseOutcome& outcome) {
  const bool is_graded = !outcome.grade.tensors.empty();
  const bool is_proof = outcome.error && outcome.error->kind == ErrorKind::failed && !outcome.plan;
  FuzzFinding finding{is_graded ? "oracle" : is_proof ? "proof" : "run", outcome.reason};
  if (outcome.error && outcome.error->kind == ErrorKind::unavailable)
    finding.obstacle = outcome.error;
  return finding;
}

/// Values of one tensor by (sequence, position): the same numbers in every layout.
void append_tokens(const Tensor& tensor, const BatchSlots& slots, Side side,
                   std::vector<double>& into) {
  if (tensor.values.empty()) return;
  const int64_t width = tensor.size() / std::max<int64_t>(1, tensor.shape[0]);
  for (const SequenceSlot& sequence : slots.sequences) {
    const SlotSide slot = sequence.side(side);
    into.insert(into.end(), tensor.values.begin() + slot.valid_begin() * width,
                tensor.values.begin() + slot.valid_end() * width);
  }
}

struct NamedValues {
  const char* name;
  std::vector<double> values;
};

std::vector<NamedValues> values_by_token(const CaseOutcome& outcome) {
  const Answer& answer = outcome.output.answer;
  const BatchSlots& slots = outcome.plan->plan().layout.slots;
  std::vector<NamedValues> all;
  const auto add = [&](const char* name, const Tensor& tensor, Side side) {
    append_tokens(tensor, slots, side, all.emplace_back(NamedValues{name, {}}).values);
  };
  add("out", answer.out, Side::q);
  add("lse", answer.lse, Side::q);
  add("dq", answer.dq, Side::q);
  add("dk", answer.dk, Side::kv);
  add("dv", answer.dv, Side::kv);
  all.push_back({"max_logit", answer.max_logit});
  all.push_back({"d_sink", answer.d_sink});
  all.push_back({"dbias", answer.dbias.values});
  return all;
}

/// |a - b|2 / max(1, |b|2); infinite where only one is infinite, or one is NaN.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) {
      norm += std::isfinite(b[i]) ? b[i] * b[i] : 0.0;
      continue;
    }
    if (!std::isfinite(a[i]) || !std::isfinite(b[i]))
      return std::numeric_limits<double>::infinity();
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(error / std::max(1.0, norm));
}

std::string name_split(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  return fmt::format("{} of {} ranks, {}", to_name(parallel.comm_type), parallel.cp_size,
                     to_name(parallel.layout));
}

/// A rounding of a logit changes its weight by as many roundings as the logit is large.
double allowed_distance(const CaseOutcome& outcome) {
  double largest = 1.0;
  for (const double logit : outcome.output.answer.max_logit)
    if (std::isfinite(logit)) largest = std::max(largest, std::abs(logit) / kPlainLogit);
  return kEquivalentTolerance * largest;
}

std::optional<FuzzFinding> find_difference(const CaseOutcome& here, const CaseOutcome& there,
                                           const std::string& other) {
  const auto left = values_by_token(here), right = values_by_token(there);
  const double allowed = allowed_distance(here);
  for (size_t t = 0; t < left.size(); ++t) {
    const std::vector<double>&a = left[t].values, &b = right[t].values;
    if (a.size() != b.size())
      return FuzzFinding{"equivalents", fmt::format("{} has {} values here and {} as {}",
                                                    left[t].name, a.size(), b.size(), other)};
    const double apart = distance(a, b);
    if (apart > allowed)
      return FuzzFinding{
          "equivalents",
          fmt::format("{} differs by {:.3g} from the same attention as {}; {:.2g} is allowed",
                      left[t].name, apart, other, allowed)};
  }
  return std::nullopt;
}

std::optional<FuzzFinding> check_equivalents(Toolbox& toolbox, const std::string& executor,
                                             const Scenario& scenario, const CaseOutcome& outcome,
                                             int64_t& compared) {
  const RandomSpace space{.max_ranks = std::max(6, scenario.parallel.cp_size)};
  for (int64_t n = 0; n < kEquivalents; ++n) {
    const uint64_t seed = draw_bits(scenario.numerics.seed, kDrawStream, static_cast<uint64_t>(n));
    Scenario other = scenario;
    other.parallel = random_parallel(seed, space, scenario.attention);
    other.batch.pad_between_seqs = true;
    const CaseOutcome there = run_case(toolbox, other, {.executor = executor, .poison = true});
    if (there.status == CaseStatus::refused || there.status == CaseStatus::skipped) continue;
    if (there.status != CaseStatus::pass) {
      FuzzFinding finding = describe_run(there);
      finding.text = "as " + name_split(other) + ": " + finding.text;
      finding.check = "equivalents";
      return finding;
    }
    ++compared;
    if (scenario.numerics.dtype != Dtype::fp64 || draws_by_item(scenario.attention)) continue;
    if (auto finding = find_difference(outcome, there, name_split(other))) return finding;
  }
  return std::nullopt;
}

/// Counts keys on the same split. `is_probed` stays false where a rule or the executor stands
/// against it.
std::optional<FuzzFinding> check_probe(Toolbox& toolbox, const std::string& executor,
                                       const Scenario& scenario, bool& is_probed) {
  const Result<Executor*> found = find_executor(toolbox, executor);
  const Result<CheckedPlan> plan = plan_scenario(probe_scenario(scenario));
  if (!found || !plan || probe_obstacle(plan.value(), *found.value())) return std::nullopt;
  const Result<ProbeReport> report =
      probe_plan(plan.value(), *found.value(), toolbox.oracle.witness);
  if (!report) {
    if (report.error().kind == ErrorKind::unavailable || report.error().kind == ErrorKind::refused)
      return std::nullopt;
    return FuzzFinding{"probe", to_text(report.error())};
  }
  is_probed = true;
  if (report.value().passed()) return std::nullopt;
  return FuzzFinding{"probe", report.value().first ? report.value().first->text : "rows are wrong"};
}

/// The same answer, judged by a few of its rows.
std::optional<FuzzFinding> check_sample(Toolbox& toolbox, const Scenario& scenario,
                                        const CaseOutcome& outcome) {
  const int64_t rows = 1 + static_cast<int64_t>(scenario.numerics.seed % 40);
  const Result<SampledGrade> sampled = grade_sample(toolbox, outcome.plan->plan(), outcome.inputs,
                                                    outcome.output.answer, {.rows = rows});
  if (!sampled) return find_error("sample", sampled.error());
  if (sampled.value().grade.judgement() != Judgement::fail) return std::nullopt;
  return FuzzFinding{"sample", fmt::format("a sample of {} rows fails what passes whole: {}", rows,
                                           describe_first_failure(sampled.value().grade))};
}

constexpr int64_t kSampledRows = 4;

/// True if a sample has a token whose numbers are not near zero, but for one chance in 16^4.
bool is_seen_by_samples(const Tensor& tensor, const BatchSlots& slots, Side side) {
  const int64_t width = tensor.size() / tensor.shape[0];
  int64_t rows = 0, small = 0;
  for (const SequenceSlot& sequence : slots.sequences) {
    const SlotSide slot = sequence.side(side);
    for (int64_t token = slot.valid_begin(); token < slot.valid_end(); ++token) {
      const auto first = tensor.values.begin() + token * width;
      const auto is_large = [](double value) {
        return std::isfinite(value) && std::abs(value) > 1e-2;
      };
      ++rows;
      if (std::none_of(first, first + width, is_large)) ++small;
    }
  }
  return small < std::min(rows, kSampledRows) || small * 16 < rows;
}

/// True if a plain evaluation in 8 bits is so far off that nothing at all keeps the budget.
bool may_be_zero(const Grade& grade, const std::string& tensor) {
  return std::any_of(grade.tensors.begin(), grade.tensors.end(), [&](const TensorGrade& one) {
    return one.name == tensor && one.budget > 0.5;
  });
}

/// A tensor of the answer, spoiled in a way that no verdict may overlook; says how.
std::string spoil(uint64_t bits, const BatchSlots& slots, const Grade& grade, Answer& answer) {
  std::vector<Tensor*> tensors{&answer.out, &answer.lse, &answer.dq, &answer.dk, &answer.dv};
  std::erase_if(tensors, [](const Tensor* tensor) { return tensor->values.empty(); });
  if (tensors.empty()) return "";
  Tensor& tensor = *tensors[bits % tensors.size()];
  const Side side = &tensor == &answer.dk || &tensor == &answer.dv ? Side::kv : Side::q;
  const bool is_lse = &tensor == &answer.lse;
  const auto element = static_cast<size_t>((bits >> 16) % tensor.values.size());
  const int64_t width = tensor.size() / tensor.shape[0];
  switch ((bits >> 8) % 4) {
    case 0:
      tensor.values[element] = std::numeric_limits<double>::quiet_NaN();
      return fmt::format("a NaN in {}", tensor.name);
    case 1:
      tensor.values[element] = std::numeric_limits<double>::infinity();
      return fmt::format("an infinity in {}", tensor.name);
    case 2:
      if (is_lse || !is_seen_by_samples(tensor, slots, side) || may_be_zero(grade, tensor.name))
        return "";
      std::fill(tensor.values.begin(), tensor.values.end(), 0.0);
      return fmt::format("{} all zero", tensor.name);
    default:
      for (const SequenceSlot& sequence : slots.sequences) {
        const SlotSide slot = sequence.side(side);
        if (slot.slot == slot.valid) continue;
        const int64_t padding = slot.front > 0 ? slot.begin : slot.valid_end();
        tensor.values[static_cast<size_t>(padding * width)] = 1e-4;
        return fmt::format("something in the padding of {}", tensor.name);
      }
      return "";
  }
}

/// A wrong answer must fail, judged by a few rows and, now and then, whole.
std::optional<FuzzFinding> check_spoiled(Toolbox& toolbox, const Scenario& scenario,
                                         const CaseOutcome& outcome) {
  const Plan& plan = outcome.plan->plan();
  const uint64_t bits = draw_bits(scenario.numerics.seed, kDrawStream + 2, 0);
  Answer answer = outcome.output.answer;
  const std::string what = spoil(bits, plan.layout.slots, outcome.grade, answer);
  if (what.empty()) return std::nullopt;
  const Result<SampledGrade> sampled =
      grade_sample(toolbox, plan, outcome.inputs, answer, {.rows = kSampledRows});
  if (!sampled) return find_error("spoiled", sampled.error());
  if (sampled.value().grade.judgement() != Judgement::fail)
    return FuzzFinding{"spoiled",
                       fmt::format("a sample of {} rows overlooks {}", kSampledRows, what)};
  constexpr uint64_t kJudgedWhole = 4;
  if ((bits >> 40) % kJudgedWhole != 0) return std::nullopt;
  const Result<Verdict> verdict =
      toolbox.oracle.judge(scenario, outcome.inputs, count_hops(plan), RunControl());
  if (!verdict) return find_error("spoiled", verdict.error());
  if (grade_answer(plan, outcome.inputs, answer, verdict.value()).judgement() != Judgement::fail)
    return FuzzFinding{"spoiled", "the whole verdict overlooks " + what};
  return std::nullopt;
}

// ---- many ---------------------------------------------------------------------------------------

thread_local char crash_note[160] = "";

/// A crash names the draw before the program dies of it.
void tell_crash(int signal_number) {
  const auto written = write(STDERR_FILENO, crash_note, std::strlen(crash_note));
  static_cast<void>(written);
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

class CrashNotes {
 public:
  CrashNotes() {
    for (size_t n = 0; n < kSignals.size(); ++n) before_[n] = std::signal(kSignals[n], tell_crash);
  }
  ~CrashNotes() {
    for (size_t n = 0; n < kSignals.size(); ++n) std::signal(kSignals[n], before_[n]);
  }
  CrashNotes(const CrashNotes&) = delete;
  CrashNotes& operator=(const CrashNotes&) = delete;

  static void name_draw(uint64_t seed, uint64_t index) {
    std::snprintf(crash_note, sizeof crash_note,
                  "cpscope: draw %llu crashed; replay it with: cpscope fuzz --seed %llu --first "
                  "%llu --count 1\n",
                  static_cast<unsigned long long>(index), static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(index));
  }

 private:
  static constexpr std::array<int, 4> kSignals = {SIGSEGV, SIGABRT, SIGFPE, SIGBUS};
  std::array<void (*)(int), 4> before_{};
};

void add(FuzzReport& report, const Scenario& scenario, const FuzzResult& result) {
  ++report.drawn;
  report.equivalents += result.equivalents;
  report.probed += result.is_probed ? 1 : 0;
  if (!result.refusal.empty()) {
    ++report.refused;
    return;
  }
  if (result.finding) return;
  ++report.passed;
  const std::string dtype(dtype_name(scenario.numerics));
  auto& counts = report.passed_by_dtype;
  const auto found =
      std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == dtype; });
  if (found == counts.end())
    counts.emplace_back(dtype, 1);
  else
    ++found->second;
}

}  // namespace

RandomSpace fuzz_space(uint64_t index) {
  RandomSpace space{.is_wide = true};
  const uint64_t kind = index % 10;
  space.any_dtype = kind >= 5;
  if (kind == 3 || kind == 7) space.max_ranks = 13;
  if (kind == 4 || kind == 8) space.max_length = 150;
  space.moves_queries = index % 3 == 2;
  space.has_rare = index % 4 == 1 || space.moves_queries;
  space.has_fp8 = space.has_rare && index % 7 == 3;
  constexpr uint64_t kManyRanks = 40;
  if (index % kManyRanks == 9) space.max_ranks = 64;
  return space;
}

Scenario draw_fuzz_scenario(uint64_t seed, uint64_t index) {
  Scenario scenario = random_scenario(draw_bits(seed, kDrawStream, index), fuzz_space(index));
  scenario.title = fmt::format("fuzz: draw {} of seed {}", index, seed);
  scenario.numerics.seed = draw_bits(seed, kDrawStream + 1, index) >> 1;  // TOML's integers
  return scenario;
}

FuzzResult try_scenario(Toolbox& toolbox, const std::string& executor, const Scenario& scenario) {
  FuzzResult result;
  result.finding = check_text(scenario);
  if (result.finding) return result;
  const CaseOutcome outcome = run_case(toolbox, scenario, {.executor = executor, .poison = true});
  if (outcome.status == CaseStatus::refused || outcome.status == CaseStatus::skipped) {
    result.refusal = outcome.reason;
    return result;
  }
  if (outcome.status != CaseStatus::pass) {
    result.finding = describe_run(outcome);
    return result;
  }
  result.finding = check_probe(toolbox, executor, scenario, result.is_probed);
  if (!result.finding) result.finding = check_sample(toolbox, scenario, outcome);
  if (!result.finding) result.finding = check_spoiled(toolbox, scenario, outcome);
  if (!result.finding)
    result.finding = check_equivalents(toolbox, executor, scenario, outcome, result.equivalents);
  return result;
}

FuzzReport fuzz(Toolbox& toolbox, const std::string& executor, const FuzzPlan& plan,
                const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const CrashNotes notes;
  // Only the CPU's executor serves several threads at once.
  const int threads = executor.empty() || executor == "cpu" ? 0 : 1;
  FuzzReport report;
  uint64_t next = plan.first;
  for (int64_t done = 0; plan.count == 0 || done < plan.count; done += kRound) {
    if (plan.seconds > 0 && seconds() >= plan.seconds) break;
    const int64_t round = plan.count == 0 ? kRound : std::min(kRound, plan.count - done);
    std::vector<uint64_t> indices;
    std::vector<Scenario> drawn;
    while (std::ssize(drawn) < round) {
      CrashNotes::name_draw(plan.seed, next);
      Scenario scenario = draw_fuzz_scenario(plan.seed, next);
      if (plan.dtype.empty() || dtype_name(scenario.numerics) == plan.dtype) {
        indices.push_back(next);
        drawn.push_back(std::move(scenario));
      }
      ++next;
    }
    std::vector<FuzzResult> results(drawn.size());
    for_each_index(
        round,
        [&](int64_t n) {
          const auto at = static_cast<size_t>(n);
          CrashNotes::name_draw(plan.seed, indices[at]);
          results[at] = try_scenario(toolbox, executor, drawn[at]);
        },
        threads);
    for (size_t n = 0; n < results.size(); ++n) {
      add(report, drawn[n], results[n]);
      if (!results[n].finding) continue;
      report.finding = results[n].finding;
      report.failed = std::move(drawn[n]);
      report.failed_draw = indices[n];
      return report;
    }
    if (!progress) continue;
    if (plan.count > 0)
      progress(done + round, plan.count);
    else
      progress(static_cast<int64_t>(std::min(seconds(), plan.seconds) * 10),
               static_cast<int64_t>(plan.seconds * 10));
  }
  return report;
}

}  // namespace cpscope
