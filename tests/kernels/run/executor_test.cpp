// The whole executor `cuda`: random and shipped scenarios against the dense reference. The same
// tests run on the CPU emulator and on a GPU; only the number of scenarios differs.
#include "sim/run/run_inputs.h"
#include "sim/scenario/scenario_file.h"
#include "tests/kernels/lower/piece_cases.h"
#include "tests/kernels/run/needs_device.h"
#include "tests/support/graded_run.h"
#include "tests/support/sweep.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

#ifdef CPSCOPE_EMULATED
const uint64_t kCudaScenarios = sweep(20, 60);
const uint64_t kSmallSuite = sweep(10, 30);
constexpr double kMostPairs = 3e5;  // (query, key, head) triples of a shipped scenario
#else
constexpr uint64_t kCudaScenarios = 600;
constexpr uint64_t kSmallSuite = 30;
constexpr double kMostPairs = 3e9;
#endif

TEST(CudaExecutor, KeepsTheBudgetOnRandomScenarios) {
  CPSCOPE_NEEDS_DEVICE(executor);
  uint64_t ran = 0;
  for (uint64_t seed = 7'000'000; seed < 7'000'000 + kCudaScenarios; ++seed) {
    const Scenario scenario = random_device_scenario(seed);
    const auto run = run_graded_on(executor, scenario);
    if (!run) continue;
    ASSERT_TRUE(run->output.ok()) << "seed " << seed << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(scenario, run->grade);
    ++ran;
    if (HasFailure()) return;
  }
  EXPECT_GT(ran * 10, kCudaScenarios * 8) << "most scenarios are to be possible";
}

TEST(CudaExecutor, KeepsTheBudgetWithPortableKernelsAlone) {
  CPSCOPE_NEEDS_DEVICE(newest);
  const auto executor = kernels::make_executor_cuda(kernels::Generation::portable);
  EXPECT_NE(executor->name(), newest.name());
  for (uint64_t seed = 7'300'000; seed < 7'300'000 + kCudaScenarios / 2; ++seed) {
    const Scenario scenario = random_device_scenario(seed);
    const auto run = run_graded_on(*executor, scenario);
    if (!run) continue;
    ASSERT_TRUE(run->output.ok()) << "seed " << seed << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(scenario, run->grade);
    EXPECT_NE(run->output.value().kernels, "sm90");
  }
}

TEST(CudaExecutor, ExpandsLatentRowsWhereTheyAreUsed) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* type : {"p2p", "a2a", "all_gather", "a2a+p2p", "group_cast", "pass_q", "mesh"}) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
      // What the dtype changes is the same in every schedule.
      if (dtype != Dtype::bf16 && std::string_view(type) != "p2p") continue;
      Scenario scenario = scenario_of_pieces(type, 4, 24, "61, 30, 1", 1, 4);
      scenario.attention.latent_dim = 72;
      scenario.attention.latent_nope_dim = 14;
      scenario.attention.head_dim_v = 20;
      scenario.attention.rope_theta = 100.0;
      scenario.numerics.dtype = dtype;
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << type << ": " << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
      EXPECT_TRUE(run->output.value().answer.dv.values.empty());
    }
  }
}

/// The portable kernels have one instance for all of these.
TEST(CudaExecutor, ComputesLatentRowsOfEveryDtypeWithAndWithoutTerms) {
  CPSCOPE_NEEDS_DEVICE(newest);
  const auto executor = kernels::make_executor_cuda(kernels::Generation::portable);
  EXPECT_NE(executor->name(), newest.name());
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    for (const bool has_terms : {false, true}) {
      Scenario scenario = scenario_of_pieces("p2p", 2, 80, "61, 30, 1", 2, 4);
      scenario.attention.kv_heads = 1;
      scenario.attention.head_dim_v = scenario.attention.latent_dim = 72;
      scenario.attention.alibi = has_terms;
      scenario.attention.dropout = has_terms ? 0.3 : 0.0;
      scenario.numerics.dtype = dtype;
      const auto run = run_graded_on(*executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
    }
  }
}

TEST(CudaExecutor, AddsBiasAndAlibiAndDropsTheWeightsThatTheOracleDrops) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* type :
       {"p2p", "a2a", "all_gather", "a2a+p2p", "group_cast", "pass_q", "mesh", "double_ring"}) {
    for (const char* dtype : {"bf16", "fp32"}) {
      Scenario scenario = scenario_of_pieces(type, 4, 24, "61, 30, 1", 4, 4);
      scenario.attention.kv_heads = 2;
      scenario.attention.alibi = true;
      scenario.attention.bias =
          std::string_view(dtype) == "fp32" ? BiasShape::b_one : BiasShape::one_h;
      scenario.attention.dropout = 0.3;
      scenario.attention.softcap = 2.0;
      scenario.numerics.dtype = std::string_view(dtype) == "fp32" ? Dtype::fp32 : Dtype::bf16;
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << type << ": " << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
      EXPECT_TRUE(run->grade.tensors.back().name == "dbias") << run->grade.tensors.back().name;
    }
  }
}

// Distances are those in a sequence, whatever a layout, a schedule or joined items make of the
// rows.
TEST(CudaExecutor, AddsAlibiWithoutOtherTermsInTheKernelsOfHopper) {
  CPSCOPE_NEEDS_DEVICE(executor);
  int32_t number = 0;
  for (const char* type :
       {"p2p", "a2a", "all_gather", "a2a+p2p", "group_cast", "pass_q", "mesh", "double_ring"}) {
    Scenario scenario =
        scenario_of_pieces(type, 4, std::array{24, 128, 192}[number % 3], "61, 30, 1", 4, 4);
    scenario.attention.kv_heads = 2;
    scenario.attention.alibi = true;
    scenario.numerics.dtype = number % 2 == 0 ? Dtype::bf16 : Dtype::fp16;
    ++number;
    const auto run = run_graded_on(executor, scenario);
    ASSERT_TRUE(run && run->output.ok()) << type << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
#ifdef CPSCOPE_EMULATED
    EXPECT_EQ(run->output.value().kernels, "sm90") << type;
#endif
  }
}

TEST(CudaExecutor, RejectsAlibiWhosePositionsAreNotExact) {
  CPSCOPE_NEEDS_DEVICE(executor);
  Scenario scenario = scenario_of_pieces("p2p", 1, 8, "16777217", 1, 1);
  scenario.parallel.layout = LayoutKind::contiguous;
  scenario.numerics.backward = false;
  scenario.attention.alibi = true;
  const auto plan = plan_unless_refused(scenario);
  ASSERT_TRUE(plan);
  const auto output = executor.run(*plan, {}, {});
  ASSERT_FALSE(output.ok());
  EXPECT_NE(to_text(output.error()).find("ALiBi with up to 16777216 tokens"), std::string::npos)
      << to_text(output.error());
}

TEST(CudaExecutor, KeepsTheWeightsThatTheComputeItemsOfAPlanKeep) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* type : {"p2p", "a2a", "all_gather", "a2a+p2p", "pass_q", "gather_q"}) {
    Scenario scenario = scenario_of_pieces(type, 4, 24, "61, 30, 1", 4, 4);
    scenario.attention.dropout = 0.3;
    scenario.attention.dropout_mode = DropoutMode::framework;
    scenario.numerics.backward = std::string_view(type) != "gather_q";
    scenario.numerics.dtype = std::string_view(type) == "a2a" ? Dtype::fp32 : Dtype::bf16;
    const auto run = run_graded_on(executor, scenario);
    ASSERT_TRUE(run && run->output.ok()) << type << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
  }
}

/// Groups of four query heads; a rank has so few of them that they are split into parts.
Scenario scenario_of_parts(const char* type, int32_t head_dim) {
  return scenario_of_pieces(type, 2, head_dim, "64, 24", 2, 8);
}

/// Head_dims of 192 and 128.
Scenario with_narrower_values(Scenario scenario) {
  scenario.attention.head_dim_qk = 192;
  scenario.attention.head_dim_v = 128;
  return scenario;
}

TEST(CudaExecutor, SplitsGroupsIntoPartsWhereKvHeadsAreFew) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* type : {"p2p", "a2a", "all_gather", "group_cast"}) {
    for (const int32_t head_dim : {64, 192}) {
      const Scenario scenario = scenario_of_parts(type, head_dim);
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
      if (run->output.value().kernels != "sm90") continue;
      for (const std::string& name : run->output.value().item_kernels.backward)
        EXPECT_TRUE(name.find(" parts") != std::string::npos)
            << type << ", head_dim " << head_dim << ": " << name;
    }
  }
}

#ifndef CPSCOPE_EMULATED
/// One document of few heads, so long that the tiles of a head begin to stream at different blocks.
Scenario few_heads(int32_t heads, int32_t head_dim, int32_t tokens, MaskType mask,
                   int32_t ranks = 1) {
  Scenario scenario =
      scenario_of_pieces("p2p", ranks, head_dim, fmt::format("{}", tokens), 1, heads);
  scenario.attention.kv_heads = heads;
  scenario.attention.mask_type = mask;
  return scenario;
}

TEST(CudaExecutor, AddsUpDqOfFewHeadsWhoseTilesBeginAtDifferentBlocks) {
  CPSCOPE_NEEDS_DEVICE(executor);
  Scenario grouped = few_heads(16, 128, 2000, MaskType::causal);
  grouped.attention.kv_heads = 4;
  Scenario capped = few_heads(16, 100, 1500, MaskType::causal);
  capped.attention.softcap = 20.0;
  capped.numerics.dtype = Dtype::fp16;
  Scenario fp8 = few_heads(16, 128, 1300, MaskType::causal);
  fp8.numerics.fp8 = Fp8{};
  const std::vector<Scenario> scenarios{
      few_heads(4, 128, 4700, MaskType::causal),
      few_heads(8, 128, 2333, MaskType::no_mask),
      few_heads(16, 128, 1700, MaskType::causal),
      few_heads(8, 64, 2500, MaskType::causal),
      with_narrower_values(few_heads(16, 192, 1700, MaskType::causal)),
      few_heads(6, 64, 3100, MaskType::no_mask),
      few_heads(16, 128, 2400, MaskType::causal, 2),
      few_heads(16, 64, 2400, MaskType::no_mask, 2),
      grouped,
      capped,
      fp8};
  for (const Scenario& scenario : scenarios) {
    const auto run = run_graded_on(executor, scenario, {.repeats = 3});
    ASSERT_TRUE(run && run->output.ok()) << (run ? to_text(run->output.error()) : "rejected");
    EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
    const auto again = executor.run(run->plan, run->inputs, {});
    ASSERT_TRUE(again.ok()) << to_text(again.error());
    EXPECT_TRUE(is_bitwise_equal(run->output.value().answer, again.value().answer));
    if (run->output.value().kernels != "sm90") continue;
    const auto& names = run->output.value().item_kernels.backward;
    EXPECT_TRUE(std::any_of(
        names.begin(), names.end(),
        [](const std::string& name) { return name.find("shifted begins") != std::string::npos; }))
        << names.front() << "\n"
        << print_scenario(scenario);
  }
}
#endif

/// Sums of gradients travel in fp32 inside a window, and in the dtype or fp32 to the next one.
TEST(CudaExecutor, CarriesOutRingsOfWindows) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* type : {"double_ring", "a2a+double_ring"}) {
    for (const WireFormat wire : {WireFormat::dtype, WireFormat::fp32}) {
      Scenario scenario = scenario_of_pieces(type, 4, 64, "61, 24", 2, 8);
      scenario.parallel.ring_window = has_head_groups(scenario.parallel.comm_type) ? 1 : 2;
      scenario.numerics.dkv_wire = wire;
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
    }
  }
}

TEST(CudaExecutor, WorksInRoundsOfGroups) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* type : {"p2p", "a2a", "all_gather"}) {
    for (const LayoutKind layout : {LayoutKind::dual_chunk, LayoutKind::striped}) {
      Scenario scenario = scenario_of_pieces(type, 4, 64, "29, 12, 5, 17", 2, 4);
      scenario.parallel.layout = layout;
      scenario.parallel.group_rule = GroupRule::given;
      scenario.parallel.cp_sizes = {3, 1, 2, 4};
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
    }
  }
}

/// group_cast that moves the queries of a slices mask.
Scenario moving_queries(int32_t ranks, LayoutKind layout, std::vector<MaskSlice> slices) {
  Scenario scenario = scenario_of_pieces("group_cast", ranks, 64, "61, 24", 2, 8);
  scenario.parallel.layout = layout;
  scenario.parallel.dispatch = Dispatch::queries;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.slices = std::move(slices);
  return scenario;
}

TEST(CudaExecutor, LeavesQueriesThatSeeNoKeyOnTheirRank) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const Scenario& scenario :
       {moving_queries(2, LayoutKind::dual_chunk,
                       {{0, 20, 0, 20, SliceType::causal}, {40, 85, 30, 85, SliceType::full}}),
        // Only rank 2 has queries that see keys; ranks 0 and 1 compute them, and rank 2 no row.
        moving_queries(3, LayoutKind::contiguous, {{61, 80, 61, 80, SliceType::causal}})}) {
    const auto run = run_graded_on(executor, scenario);
    ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
  }
}

TEST(CudaExecutor, CarriesOutTheShippedScenarios) {
  CPSCOPE_NEEDS_DEVICE(executor);
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(CPSCOPE_SCENARIOS)) {
    if (entry.path().extension() == ".toml") files.insert(entry.path());
  }
  int ran = 0;
  for (const auto& file : files) {
    const auto loaded = load_scenario(file.string());
    ASSERT_TRUE(loaded.ok()) << file;
    const Scenario& scenario = loaded.value().scenario;
    if (scenario.numerics.dtype == Dtype::fp64) continue;
    double pairs = 0;
    for (size_t i = 0; i < scenario.batch.lengths.size(); ++i)
      pairs += static_cast<double>(scenario.batch.lengths[i]) *
               static_cast<double>(scenario.batch.kv_lengths[i]) * scenario.attention.heads;
    if (pairs > kMostPairs) continue;
    const auto run = run_graded_on(executor, scenario);
    ASSERT_TRUE(run.has_value()) << file;
    ASSERT_TRUE(run->output.ok()) << file << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << file << "\n" << describe(scenario, run->grade);
    ++ran;
  }
  EXPECT_GT(ran, 0);
}

TEST(CudaExecutor, TellsWhatTileListsCost) {
  CPSCOPE_NEEDS_DEVICE(executor);
  uint64_t seed = 7'100'000;
  while (!run_graded_on(executor, random_device_scenario(seed))) ++seed;
  const auto run = run_graded_on(executor, random_device_scenario(seed));
  ASSERT_TRUE(run->output.ok()) << to_text(run->output.error());
  EXPECT_GT(run->output.value().list_seconds, 0.0);
  EXPECT_LT(run->output.value().list_seconds, 1.0);
}

TEST(CudaExecutor, GivesTheSameBitsTwiceAndInTheNextRepeat) {
  CPSCOPE_NEEDS_DEVICE(executor);
  // So long that several tiles add to the same rows of dq.
  const auto shipped = load_scenario(CPSCOPE_SCENARIOS "/one_long_many_short.toml");
  ASSERT_TRUE(shipped.ok());
  std::vector<Scenario> scenarios{shipped.value().scenario};
  for (uint64_t seed = 7'100'000; seed < 7'100'000 + kCudaScenarios / 10; ++seed)
    scenarios.push_back(random_device_scenario(seed));
  for (const Scenario& scenario : scenarios) {
    const auto first = run_graded_on(executor, scenario);
    if (!first) continue;
    const auto second = run_graded_on(executor, scenario, {.repeats = 2});
    ASSERT_TRUE(first->output.ok() && second->output.ok());
    EXPECT_TRUE(is_bitwise_equal(first->output.value().answer, second->output.value().answer))
        << describe(compare(first->output.value().answer, second->output.value().answer))
        << print_scenario(scenario);
  }
}

TEST(CudaExecutor, RefusesByNameWhatItCannotHold) {
  CPSCOPE_NEEDS_DEVICE(executor);
  Scenario scenario = random_device_scenario(7'000'000);
  scenario.numerics.dtype = Dtype::fp64;
  const auto run = run_graded_on(executor, scenario);
  ASSERT_TRUE(run.has_value());
  ASSERT_FALSE(run->output.ok());
  EXPECT_EQ(run->output.error().kind, ErrorKind::unavailable);
  EXPECT_NE(to_text(run->output.error()).find("fp64"), std::string::npos);
  scenario.numerics.dtype = Dtype::bf16;
  scenario.attention.head_dim_v = 264;
  const auto wide = run_graded_on(executor, scenario);
  ASSERT_TRUE(wide.has_value());
  ASSERT_FALSE(wide->output.ok());
  EXPECT_NE(to_text(wide->output.error()).find("264"), std::string::npos);
}

/// Small enough for compute-sanitizer: every communication type, layout and feature once.
TEST(CudaExecutor, StaysCleanOnASmallSuite) {
  CPSCOPE_NEEDS_DEVICE(executor);
  std::vector<Scenario> scenarios{scenario_of_parts("p2p", 64), scenario_of_parts("p2p", 128),
                                  with_narrower_values(scenario_of_parts("all_gather", 192)),
                                  scenario_of_parts("all_gather", 192),
                                  scenario_of_parts("a2a", 256)};
#ifndef CPSCOPE_EMULATED
  scenarios.push_back(few_heads(8, 128, 2304, MaskType::no_mask));
  scenarios.push_back(few_heads(8, 64, 2304, MaskType::no_mask));
  scenarios.push_back(with_narrower_values(few_heads(8, 192, 1500, MaskType::causal)));
  for (const int32_t head_dim : {64, 128, 192, 256}) {
    scenarios.push_back(scenario_of_parts("p2p", head_dim));
    scenarios.back().attention.alibi = true;
  }
#endif
  for (uint64_t seed = 7'200'000; seed < 7'200'000 + kSmallSuite; ++seed)
    scenarios.push_back(random_device_scenario(seed, 40, seed % 3 == 0));
  for (const Scenario& scenario : scenarios) {
    const auto run = run_graded_on(executor, scenario);
    if (!run) continue;
    ASSERT_TRUE(run->output.ok()) << to_text(run->output.error()) << print_scenario(scenario);
    EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
  }
}

TEST(CudaExecutor, ShowsEveryItemsResultInPlanOrder) {
  CPSCOPE_NEEDS_DEVICE(executor);
  const Scenario scenario = random_device_scenario(7'000'000);
  const auto plan = plan_unless_refused(scenario);
  ASSERT_TRUE(plan.has_value());
  const RunInputs inputs = make_run_inputs(plan->plan(), true);
  std::vector<ItemResult> seen;
  RunOptions options;
  options.observer = [&](const ItemResult& result) { seen.push_back(result); };
  options.measures_items = true;
  const Result<RunOutput> output = executor.run(*plan, inputs, options);
  ASSERT_TRUE(output.ok()) << to_text(output.error());
  int64_t computes = 0;
  for (const ComputeItem& item : plan->plan().forward.computes) computes += item.num_slices > 0;
  EXPECT_EQ(std::count_if(seen.begin(), seen.end(),
                          [](const ItemResult& r) {
                            return r.item.direction == Direction::forward &&
                                   r.item.kind == StageKind::compute;
                          }),
            2 * computes);
  for (const ItemResult& result : seen)
    EXPECT_EQ(static_cast<int64_t>(result.values.size()),
              result.shape[0] * result.shape[1] * result.shape[2]);
  EXPECT_FALSE(output.value().events.empty());
}

TEST(CudaExecutor, EndsARunThatIsCancelled) {
  CPSCOPE_NEEDS_DEVICE(executor);
  const Scenario scenario = random_device_scenario(7'000'000);
  const auto plan = plan_unless_refused(scenario);
  ASSERT_TRUE(plan.has_value());
  const RunInputs inputs = make_run_inputs(plan->plan(), true);
  // Items of the plan that are left.
  int64_t items = 0, questions = 0, done = 0;
  RunOptions options;
  options.control.progress = [&](int64_t now, int64_t all) {
    done = now;
    items = all;
  };
  options.control.is_cancelled = [&] { return ++questions == 4; };
  const Result<RunOutput> cancelled = executor.run(*plan, inputs, options);
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(to_text(cancelled.error()),
            fmt::format("the run was cancelled after 3 of {} items", items));
  EXPECT_EQ(questions, 4);
  EXPECT_GT(items, 3);
  EXPECT_LE(items, plan->plan().forward.num_items() + plan->plan().backward.num_items());

  options.control.is_cancelled = [] { return false; };
  const Result<RunOutput> whole = executor.run(*plan, inputs, options);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(done, items);
  EXPECT_TRUE(
      is_bitwise_equal(whole.value().answer, executor.run(*plan, inputs, {}).value().answer));
}

}  // namespace
}  // namespace cpscope::tests
