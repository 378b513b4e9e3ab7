// The executor `nccl` on emulated devices, with an NCCL that checks its calls: one process that
// drives all devices, and several that drive one each (threads here, joined over the loopback).
#include "kernels/run/executor_nccl.h"

#include "kernels/emulator/nccl_emulated.h"
#include "kernels/run/executor_cuda.h"
#include "kernels/run/rank_engine.h"
#include "sim/run/run_inputs.h"
#include "tests/kernels/group/group_cases.h"
#include "tests/kernels/lower/piece_cases.h"
#include "tests/kernels/run/nccl_cases.h"
#include "tests/support/graded_run.h"
#include "tests/support/sweep.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::emulator::NcclEmulated;
using kernels::emulator::NcclFault;

const uint64_t kNcclScenarios = sweep(12, 32);

/// So many documents have more stretches than are copied: a kernel pushes all pieces.
constexpr const char* kMany = "16, 32, 8, 24, 16, 8, 40, 16";

/// A valid scenario with this number of ranks.
Scenario scenario_of_ranks(int32_t ranks) {
  for (uint64_t seed = 8'000'000;; ++seed) {
    const Scenario scenario = random_device_scenario(seed);
    if (scenario.parallel.cp_size == ranks && scenario.numerics.backward &&
        plan_unless_refused(scenario)) {
      return scenario;
    }
  }
}

// ---- one process ----

TEST(NcclExecutor, KeepsTheBudgetOnRandomScenarios) {
  const NcclEmulated nccl;
  const auto executor = kernels::make_executor_nccl(settings_of(nccl, 8));
  ASSERT_FALSE(executor->absence());
  uint64_t ran = 0;
  for (uint64_t seed = 7'000'000; seed < 7'000'000 + kNcclScenarios; ++seed) {
    const Scenario scenario = random_device_scenario(seed);
    if (scenario.parallel.cp_size > 8) continue;
    const int64_t before = nccl.counts().bytes;
    const auto run = run_graded_on(*executor, scenario);
    if (!run) continue;
    ASSERT_TRUE(run->output.ok()) << "seed " << seed << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(scenario, run->grade);
    EXPECT_EQ(nccl.counts().bytes - before, wire_bytes(run->plan.plan())) << "seed " << seed;
    ++ran;
    if (HasFailure()) return;
  }
  EXPECT_GT(ran, kNcclScenarios / 2);
  // Initialisation once, not per case.
  EXPECT_EQ(nccl.counts().communicators, 8);
}

TEST(NcclExecutor, GivesTheBitsOfExecutorCudaInItsSecondRepeatToo) {
  const NcclEmulated nccl;
  const auto executor = kernels::make_executor_nccl(settings_of(nccl, 8));
  const auto cuda = kernels::make_executor_cuda();
  for (uint64_t seed = 7'300'000; seed < 7'300'000 + kNcclScenarios / 4; ++seed) {
    const Scenario scenario = random_device_scenario(seed);
    if (scenario.parallel.cp_size > 8) continue;
    const auto run = run_graded_on(*executor, scenario, {.repeats = 2});
    if (!run) continue;
    const auto expected = run_graded_on(*cuda, scenario);
    ASSERT_TRUE(run->output.ok() && expected->output.ok());
    // Sums over ranks are added up in another order.
    Answer seen = run->output.value().answer, wanted = expected->output.value().answer;
    seen.d_sink.clear();
    wanted.d_sink.clear();
    EXPECT_TRUE(is_bitwise_equal(seen, wanted))
        << "seed " << seed << "\n"
        << describe(compare(seen, wanted)) << print_scenario(scenario);
  }
}

TEST(NcclExecutor, KeepsTheBudgetOnCopiesAlone) {
  const NcclEmulated nccl;
  const auto executor = kernels::make_executor_nccl(copying_settings(nccl, 8, 5));
  uint64_t ran = 0;
  for (uint64_t seed = 7'000'000; seed < 7'000'000 + kNcclScenarios; ++seed) {
    const Scenario scenario = random_device_scenario(seed);
    if (scenario.parallel.cp_size > 8) continue;
    const auto run = run_graded_on(*executor, scenario);
    if (!run) continue;
    ASSERT_TRUE(run->output.ok()) << "seed " << seed << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(scenario, run->grade);
    ++ran;
    if (HasFailure()) return;
  }
  EXPECT_GT(ran, kNcclScenarios / 2);
  EXPECT_EQ(nccl.counts().bytes, 0);
}

TEST(NcclExecutor, GivesTheBitsOfExecutorCudaWhereQueriesMove) {
  const NcclEmulated nccl;
  const auto cuda = kernels::make_executor_cuda();
  const auto by_nccl = kernels::make_executor_nccl(settings_of(nccl, 8));
  const auto by_copies = kernels::make_executor_nccl(copying_settings(NcclEmulated(), 8, 5));
  std::set<CommType> types;
  for (uint64_t seed = 7'800'000; seed < 7'800'000 + kNcclScenarios; ++seed) {
    const Scenario scenario = random_device_scenario(seed, kLongestSequence, true);
    if (scenario.parallel.cp_size > 8) continue;
    const auto expected = run_graded_on(*cuda, scenario);
    if (!expected) continue;
    ASSERT_TRUE(expected->output.ok()) << to_text(expected->output.error());
    EXPECT_TRUE(expected->grade.passed) << describe(scenario, expected->grade);
    Answer wanted = expected->output.value().answer;
    for (Executor* executor : {by_nccl.get(), by_copies.get()}) {
      const bool has_copies = executor == by_copies.get();
      const int64_t before = nccl.counts().bytes;
      const auto run = run_graded_on(*executor, scenario, {.repeats = has_copies ? 2 : 1});
      ASSERT_TRUE(run->output.ok()) << "seed " << seed << ": " << to_text(run->output.error());
      EXPECT_EQ(nccl.counts().bytes - before, has_copies ? 0 : wire_bytes(run->plan.plan()))
          << "seed " << seed;
      // Sums over ranks are added up in another order.
      Answer seen = run->output.value().answer;
      seen.d_sink.clear();
      wanted.d_sink.clear();
      EXPECT_TRUE(is_bitwise_equal(seen, wanted))
          << "seed " << seed << (has_copies ? ", copies\n" : ", nccl\n")
          << describe(compare(seen, wanted)) << print_scenario(scenario);
    }
    types.insert(scenario.parallel.comm_type);
    if (HasFailure()) return;
  }
  EXPECT_GE(types.size(), 5u) << "too few communication types ran";
}

void expect_the_same_bits_in_pieces(const Scenario& scenario, bool has_parts) {
  const int32_t ranks = scenario.parallel.cp_size;
  const auto cuda = kernels::make_executor_cuda();
  const auto expected = run_graded_on(*cuda, scenario);
  ASSERT_TRUE(expected && expected->output.ok() && expected->grade.passed);
  for (const std::string& name : expected->output.value().item_kernels.backward)
    EXPECT_EQ(name.find(" parts") != std::string::npos, has_parts) << name;
  for (const int32_t most_pieces : {1, 8, 3}) {
    if (most_pieces == 3 && !is_wide_sweep()) continue;
    const auto executor =
        kernels::make_executor_nccl(copying_settings(NcclEmulated(), ranks, most_pieces));
    const auto run = run_graded_on(*executor, scenario);
    ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
    EXPECT_TRUE(is_bitwise_equal(run->output.value().answer, expected->output.value().answer))
        << most_pieces << " pieces\n"
        << describe(compare(run->output.value().answer, expected->output.value().answer))
        << print_scenario(scenario);
  }
}

TEST(NcclExecutor, GivesTheSameBitsInPieces) {
  for (const auto& [type, ranks, lengths] :
       {std::tuple{"all_gather", 2, "96"}, std::tuple{"a2a", 2, "96"},
        std::tuple{"all_gather", 4, "96"}, std::tuple{"a2a", 4, "96"},
        std::tuple{"a2a", 8, "32, 16, 48"}, std::tuple{"all_gather", 2, kMany},
        std::tuple{"a2a", 4, kMany}})
    expect_the_same_bits_in_pieces(scenario_of_pieces(type, ranks, 64, lengths), false);
}

// Slopes are those of all heads, and positions those of joined items.
TEST(NcclExecutor, AddsAlibiInPiecesAndToOwnAndReceivedKeysAtOnce) {
  for (const char* type : {"a2a", "all_gather", "group_cast", "p2p", "a2a+p2p"}) {
    Scenario scenario = scenario_of_pieces(type, 4, 64, "61, 30, 5");
    scenario.attention.alibi = true;
    if (type == std::string_view("a2a") || type == std::string_view("all_gather"))
      expect_the_same_bits_in_pieces(scenario, false);
    const auto executor = kernels::make_executor_nccl(copying_settings(NcclEmulated(), 4, 8));
    const auto run = run_graded_on(*executor, scenario);
    ASSERT_TRUE(run && run->output.ok()) << type << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << type << "\n" << describe(scenario, run->grade);
    EXPECT_EQ(run->output.value().kernels, "sm90") << type;
  }
}

// With four KV heads groups stay whole; with two of them, as in a piece, they would be split.
// Groups of four query heads are split into parts, in pieces too.
TEST(NcclExecutor, GivesTheSameBitsInPiecesWhetherGroupsAreSplitIntoPartsOrNot) {
  expect_the_same_bits_in_pieces(scenario_of_pieces("a2a", 2, 64, "512"), false);
  expect_the_same_bits_in_pieces(scenario_of_pieces("a2a", 2, 64, "256", 4), true);
}

TEST(NcclExecutor, ComputesOwnAndReceivedKeysOfGroupCastAtOnce) {
  for (const auto& [ranks, lengths] :
       {std::tuple{2, "96"}, std::tuple{4, "64, 100"}, std::tuple{2, kMany}}) {
    const Scenario scenario = scenario_of_pieces("group_cast", ranks, 64, lengths);
    std::optional<Answer> first;
    for (const int32_t most_pieces : {1, 3, 8}) {
      const bool has_many = std::string_view(lengths) == kMany;
      if (most_pieces == 3 && !has_many && !is_wide_sweep()) continue;
      const auto executor =
          kernels::make_executor_nccl(copying_settings(NcclEmulated(), ranks, most_pieces));
      const auto run = run_graded_on(*executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
      const RunOutput& output = run->output.value();
      for (const Direction direction : kDirections) {
        const std::vector<std::string>& names = output.item_kernels[direction];
        const auto joined = std::count_if(names.begin(), names.end(), [](const std::string& name) {
          return name.ends_with("joined");
        });
        // Without pieces own keys are computed while others arrive.
        EXPECT_EQ(joined > ranks, most_pieces > 1)
            << ranks << " ranks, " << most_pieces << " pieces";
      }
      if (most_pieces == 1) continue;
      if (!first) first = output.answer;
      EXPECT_TRUE(is_bitwise_equal(output.answer, *first))
          << most_pieces << " pieces\n"
          << describe(compare(output.answer, *first));
    }
  }
}

// A rank that receives fewer bytes has fewer pieces of inputs than of sends. A rank that sent only
// as many pieces as it receives would make the other one wait forever.
TEST(NcclExecutor, HasInputsInPiecesHoweverScatteredTheirRowsAre) {
  const kernels::LoweringTarget target{
      .compute_capability = 90, .pieces = {8}, .adds_shares = true};
  for (const char* type : {"all_gather", "group_cast", "a2a"}) {
    const auto plan = plan_unless_refused(scenario_of_pieces(type, 2, 128, kScatteredDocuments));
    ASSERT_TRUE(plan) << type;
    const kernels::LoweredPlan lowered = kernels::lower_for_devices(*plan, {}, target);
    const bool is_a2a = std::string(type) == "a2a";
    for (const Direction direction : kDirections) {
      const kernels::PassNotes& notes = lowered.notes[direction];
      // d_out of Ulysses arrives whole.
      ASSERT_EQ(notes.is_cut, !is_a2a || direction == Direction::forward) << type;
      if (!notes.is_cut) continue;
      size_t most = 0;
      for (const kernels::RankNote& note : notes.ranks) {
        EXPECT_TRUE(note.pushes_all_pieces) << type;
        most = std::max(most, note.cuts.q.size());
      }
      EXPECT_EQ(notes.num_pieces(), static_cast<int32_t>(most)) << type;
      if (std::string(type) == "group_cast") {
        EXPECT_NE(notes.ranks.front().cuts.q.size(), notes.ranks.back().cuts.q.size());
      }
    }
  }
  const auto alone = plan_unless_refused(scenario_of_pieces("all_gather", 2, 128, "32768"));
  ASSERT_TRUE(alone);
  const kernels::LoweredPlan lowered = kernels::lower_for_devices(*alone, {}, target);
  EXPECT_TRUE(lowered.notes.forward.is_cut);
  EXPECT_FALSE(lowered.notes.forward.ranks.front().pushes_all_pieces);
}

// Of six documents a rank sends one chunk each to later ranks, few enough for copies, and two each
// to the others, too many. As stretches the former would be more copies than a push holds.
TEST(NcclExecutor, ListsTheRowsOfAllPiecesWhereSomeAreTooScattered) {
  const Scenario scenario = scenario_of_pieces("group_cast", 8, 16, "16, 48, 32, 64, 16, 80");
  const auto executor = kernels::make_executor_nccl(copying_settings(NcclEmulated(), 8, 8));
  const auto run = run_graded_on(*executor, scenario);
  ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
  EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
}

TEST(NcclExecutor, RefusesMoreRanksThanDevices) {
  const auto executor = kernels::make_executor_nccl(settings_of(NcclEmulated(), 2));
  const auto run = run_graded_on(*executor, scenario_of_ranks(4));
  ASSERT_TRUE(run && !run->output.ok());
  EXPECT_EQ(run->output.error().kind, ErrorKind::unavailable);
  EXPECT_EQ(to_text(run->output.error()),
            "executor nccl puts one rank on each GPU: 4 ranks, 2 GPUs; use --executor cuda, where "
            "one GPU plays all ranks");
}

TEST(NcclExecutor, SaysWhatIsMissing) {
  kernels::NcclSettings settings = settings_of(NcclEmulated(), 1);
  settings.load_library = []() -> Result<kernels::NcclLibrary> {
    return make_error(ErrorKind::unavailable, "no NCCL library was found");
  };
  const auto executor = kernels::make_executor_nccl(settings);
  ASSERT_TRUE(executor->absence());
  EXPECT_EQ(to_text(*executor->absence()), "no NCCL library was found");
}

TEST(NcclExecutor, TimesItemsAndShowsTheirResultsInPlanOrder) {
  const NcclEmulated nccl;
  const auto executor = kernels::make_executor_nccl(settings_of(nccl, 4));
  const Scenario scenario = scenario_of_ranks(4);
  const auto plan = plan_unless_refused(scenario);
  const RunInputs inputs = run_graded(scenario)->inputs;
  std::vector<ItemResult> seen[2];
  const auto watch = [&](Executor& watched, std::vector<ItemResult>& results) {
    RunOptions options;
    options.observer = [&](const ItemResult& result) { results.push_back(result); };
    options.measures_items = true;
    options.repeats = 2;
    return watched.run(*plan, inputs, options);
  };
  const Result<RunOutput> output = watch(*executor, seen[0]);
  ASSERT_TRUE(output) << to_text(output.error());
  const Result<RunOutput> expected = watch(*kernels::make_executor_cuda(), seen[1]);
  ASSERT_TRUE(expected);
  EXPECT_EQ(output.value().forward_seconds.size(), 2u);
  EXPECT_EQ(output.value().backward_seconds.size(), 2u);
  // Empty transfers are not made here, so there may be fewer.
  EXPECT_GT(output.value().events.size(), 0u);
  EXPECT_LE(output.value().events.size(), expected.value().events.size());
  EXPECT_EQ(output.value().tile_flops, expected.value().tile_flops);
  ASSERT_EQ(seen[0].size(), seen[1].size());
  for (size_t i = 0; i < seen[0].size(); ++i) {
    const ItemResult &a = seen[0][i], &b = seen[1][i];
    EXPECT_TRUE(a.item.index == b.item.index && a.item.kind == b.item.kind && a.rank == b.rank &&
                std::string(a.array) == b.array && a.shape == b.shape)
        << i;
  }
}

TEST(NcclExecutor, TimesEveryTransferBetweenRanks) {
  for (const bool has_copies : {false, true}) {
    const NcclEmulated nccl;
    const auto executor = kernels::make_executor_nccl(has_copies ? copying_settings(nccl, 4, 1)
                                                                 : settings_of(nccl, 4));
    for (const CommType comm_type : {CommType::p2p, CommType::all_gather, CommType::group_cast,
                                     CommType::token_ring, CommType::gather_q}) {
      Scenario scenario = scenario_of_ranks(4);
      // What only some communication types have.
      scenario.parallel.kv_replicated = 0;
      scenario.parallel.heads_per_stage = 0;
      scenario.parallel.group_rule = GroupRule::all_ranks;
      scenario.parallel.cp_sizes.clear();
      scenario.parallel.comm_type = comm_type;
      const auto plan = plan_unless_refused(scenario);
      ASSERT_TRUE(plan) << to_name(comm_type);
      RunOptions options;
      options.measures_items = true;
      const Result<RunOutput> output =
          executor->run(*plan, make_run_inputs(plan->plan(), false), options);
      ASSERT_TRUE(output) << to_text(output.error());
      std::set<std::pair<Direction, int64_t>> timed;
      for (const ItemEvent& event : output.value().events)
        if (event.item.kind == StageKind::transfer)
          timed.insert({event.item.direction, event.item.index});
      for (const Direction direction : kDirections) {
        const std::vector<TransferItem>& transfers = plan->plan().pass(direction).transfers;
        for (size_t i = 0; i < transfers.size(); ++i) {
          if (transfers[i].src == transfers[i].dst || transfers[i].bytes == 0) continue;
          EXPECT_TRUE(timed.contains({direction, static_cast<int64_t>(i)}))
              << to_name(comm_type) << ", " << to_name(direction) << " transfer " << i;
        }
      }
    }
  }
}

TEST(NcclExecutor, KeepsTheEventsOfOneRepeatOnAllProcesses) {
  const NcclEmulated nccl;
  const Scenario scenario = scenario_of_ranks(2);
  const auto plan = plan_unless_refused(scenario);
  const RunInputs inputs = make_run_inputs(plan->plan(), true);
  const auto name_of = [](const ItemEvent& event) {
    return fmt::format("{} {} {}", to_name(event.item.direction), static_cast<int>(event.item.kind),
                       event.item.index);
  };
  const std::vector<std::string> reports =
      run_processes(nccl, 2, [&](int32_t process, Executor& executor) {
        RunOptions options;
        options.measures_items = true;
        options.repeats = 3;
        const Result<RunOutput> output = executor.run(*plan, inputs, options);
        if (!output) return to_text(output.error());
        std::set<std::string> names;
        for (const ItemEvent& event : output.value().events) {
          if (!names.insert(name_of(event)).second) return name_of(event) + " came twice";
        }
        size_t num_computes = 0;
        for (const ItemEvent& event : output.value().events)
          num_computes += event.item.kind == StageKind::compute ? 1 : 0;
        return fmt::format("process {}: {} computes", process, num_computes);
      });
  // Process 0 gets those of all ranks.
  size_t of_rank[2] = {};
  for (const Pass* pass : {&plan->plan().forward, &plan->plan().backward}) {
    for (const ComputeItem& item : pass->computes)
      of_rank[to_index(item.rank)] += item.num_slices > 0 ? 1 : 0;
  }
  EXPECT_EQ(reports[0], fmt::format("process 0: {} computes", of_rank[0] + of_rank[1]));
  EXPECT_EQ(reports[1], fmt::format("process 1: {} computes", of_rank[1]));
}

// ---- reasons to stop a run ----

TEST(NcclExecutor, EndsACancelledRunOnAllProcessesAndIsReadyForTheNext) {
  const NcclEmulated nccl;
  const Scenario scenario = scenario_of_ranks(4);
  const auto plan = plan_unless_refused(scenario);
  const RunInputs inputs = make_run_inputs(plan->plan(), true);
  const std::vector<std::string> reports =
      run_processes(nccl, 4, [&](int32_t process, Executor& executor) {
        RunOptions options;
        // Only one of them requests a stop.
        int32_t questions = 0;
        if (process == 2) options.control.is_cancelled = [&] { return ++questions == 2; };
        const Result<RunOutput> cancelled = executor.run(*plan, inputs, options);
        if (cancelled) return std::string("it went on");
        const Result<RunOutput> next = executor.run(*plan, inputs, {});
        return to_text(cancelled.error()) + (next ? "; fine" : "; " + to_text(next.error()));
      });
  for (const std::string& report : reports) {
    EXPECT_TRUE(report.starts_with("the run was cancelled after ")) << report;
    EXPECT_TRUE(report.ends_with(" items; fine")) << report;
  }
}

std::string run_with_fault(const NcclFault& fault, std::string* after = nullptr) {
  NcclEmulated nccl(std::chrono::milliseconds{200});
  const auto executor = kernels::make_executor_nccl(settings_of(nccl, 4));
  const Scenario scenario = scenario_of_ranks(4);
  nccl.plant(fault);
  const auto run = run_graded_on(*executor, scenario);
  if (after != nullptr) {
    nccl.plant({});
    const auto again = run_graded_on(*executor, scenario);
    *after = again->output.ok() ? "fine" : to_text(again->output.error());
  }
  EXPECT_EQ(nccl.counts().aborts, 4);
  EXPECT_EQ(nccl.counts().open, 0);
  // Not a skip: the executor was available and gave no answer.
  EXPECT_TRUE(!run->output.ok() && run->output.error().kind == ErrorKind::failed);
  return run->output.ok() ? "fine" : to_text(run->output.error());
}

TEST(NcclExecutor, EndsWhenACommunicatorReportsAnError) {
  std::string after;
  const std::string text =
      run_with_fault({.kind = NcclFault::Kind::asynchronous_error, .rank = 2, .group = 0}, &after);
  EXPECT_TRUE(text.starts_with("executor nccl: ranks 0 to 3 stopped at forward step ")) << text;
  EXPECT_NE(text.find("NCCL failed: an emulated error: a planted error"), std::string::npos)
      << text;
  EXPECT_TRUE(after.starts_with("executor nccl stopped in an earlier run: ")) << after;
}

TEST(NcclExecutor, EndsWhenAMessageFindsNoPartner) {
  const std::string text = run_with_fault({.kind = NcclFault::Kind::hang, .rank = 1, .group = 0});
  EXPECT_NE(text.find("found no "), std::string::npos) << text;
}

TEST(NcclExecutor, EndsWhenTheDriverFails) {
  const std::string text = run_with_fault({.kind = NcclFault::Kind::throws, .rank = 3, .group = 1});
  EXPECT_NE(text.find("a planted failure"), std::string::npos) << text;
}

// ---- several processes ----

TEST(NcclExecutor, GathersAnswersOfSeveralProcesses) {
  const NcclEmulated nccl;
  constexpr int32_t kProcesses = 4;
  const std::vector<std::string> reports =
      run_processes(nccl, kProcesses, [](int32_t process, Executor& executor) {
        std::string report;
        for (uint64_t seed = 7'400'000; seed < 7'400'008; ++seed) {
          const Scenario scenario = random_device_scenario(seed, kLongestSequence, seed % 2 == 0);
          const auto plan = plan_unless_refused(scenario);
          if (!plan || scenario.parallel.cp_size > kProcesses) continue;
          // All processes make the same inputs; only process 0 has an answer to compare.
          const RunInputs inputs = make_run_inputs(plan->plan(), true);
          RunOptions options;
          options.poison = true;
          options.measures_items = true;
          const Result<RunOutput> output = executor.run(*plan, inputs, options);
          if (!output) return fmt::format("seed {}: {}", seed, to_text(output.error()));
          if (output.value().is_whole != (process == 0)) return std::string("whole in wrong place");
          if (process != 0) continue;
          const auto expected = run_graded_on(*kernels::make_executor_cuda(), scenario);
          Answer seen = output.value().answer, wanted = expected->output.value().answer;
          seen.d_sink.clear();
          wanted.d_sink.clear();
          if (!is_bitwise_equal(seen, wanted))
            return fmt::format("seed {}: {}\n{}", seed, describe(compare(seen, wanted)),
                               print_scenario(scenario));
          report += ".";
        }
        return report;
      });
  EXPECT_GE(reports[0].size(), 3u) << reports[0];
  EXPECT_EQ(reports[0].find_first_not_of('.'), std::string::npos) << reports[0];
  for (int32_t process = 1; process < kProcesses; ++process) EXPECT_EQ(reports[process], "");
  EXPECT_EQ(nccl.counts().communicators, kProcesses);
  EXPECT_EQ(nccl.counts().aborts, 0);
  EXPECT_EQ(nccl.counts().open, 0);
}

TEST(NcclExecutor, EndsEverywhereWhenOneProcessFails) {
  NcclEmulated nccl;
  nccl.plant({.kind = NcclFault::Kind::throws, .rank = 2, .group = 1});
  const Scenario scenario = scenario_of_ranks(4);
  const std::vector<std::string> reports = run_processes(nccl, 4, [&](int32_t, Executor& executor) {
    const auto run = run_graded_on(executor, scenario);
    return run->output.ok() ? std::string("fine") : to_text(run->output.error());
  });
  for (const std::string& report : reports) {
    EXPECT_TRUE(report.starts_with("executor nccl: rank 2 stopped at ")) << report;
    EXPECT_NE(report.find("a planted failure"), std::string::npos) << report;
  }
  EXPECT_EQ(nccl.counts().aborts, 4);
}

TEST(NcclExecutor, EndsEverywhereWhenOneDeviceHangs) {
  // With this patience NCCL does not report the hanging group: the processes themselves must
  // notice.
  NcclEmulated nccl(std::chrono::seconds{600});
  nccl.plant({.kind = NcclFault::Kind::hang, .rank = 1, .group = 1});
  const Scenario scenario = scenario_of_ranks(4);
  const std::vector<std::string> reports = run_processes(
      nccl, 4,
      [&](int32_t, Executor& executor) {
        const auto run = run_graded_on(executor, scenario);
        return run->output.ok() ? std::string("fine") : to_text(run->output.error());
      },
      std::chrono::seconds{3});
  for (const std::string& report : reports) {
    EXPECT_TRUE(report.starts_with("executor nccl: rank ")) << report;
    EXPECT_NE(report.find("no work of the group has moved for 3.75 s"), std::string::npos)
        << report;
  }
  EXPECT_EQ(nccl.counts().aborts, 4);
}

TEST(NcclExecutor, NoticesProcessesWithDifferentPlans) {
  const NcclEmulated nccl;
  Scenario scenario = scenario_of_ranks(2);
  const std::vector<std::string> reports =
      run_processes(nccl, 2, [&](int32_t process, Executor& executor) {
        Scenario mine = scenario;
        if (process == 1) mine.attention.softmax_scale = 0.125;
        const auto run = run_graded_on(executor, mine);
        return run->output.ok() ? std::string("fine") : to_text(run->output.error());
      });
  for (const std::string& report : reports) {
    EXPECT_NE(report.find("process 1 has plan "), std::string::npos) << report;
    EXPECT_NE(report.find("start all with the same command, files and version"), std::string::npos)
        << report;
  }
}

}  // namespace
}  // namespace cpscope::tests
