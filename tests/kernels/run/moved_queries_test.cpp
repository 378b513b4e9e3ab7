// The executor `cuda` where queries move and other ranks' results are merged by the owners of the
// rows. The same tests run on the CPU emulator and on a GPU; only their number differs.
#include "sim/run/probe/probe.h"
#include "sim/scenario/scenario_file.h"
#include "tests/kernels/lower/piece_cases.h"
#include "tests/kernels/run/needs_device.h"
#include "tests/support/graded_run.h"
#include "tests/support/sweep.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

#ifdef CPSCOPE_EMULATED
const uint64_t kMovedScenarios = sweep(16, 120);
const bool kHasAllCases = is_wide_sweep();
#else
constexpr uint64_t kMovedScenarios = 500;
constexpr bool kHasAllCases = true;
#endif

void expect_random_scenarios_pass(Executor& executor, uint64_t first_seed, uint64_t count) {
  std::map<CommType, int> ran;
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    const Scenario scenario = random_device_scenario(seed, kLongestSequence, true);
    const auto run = run_graded_on(executor, scenario);
    if (!run) continue;
    ASSERT_TRUE(run->output.ok()) << "seed " << seed << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(scenario, run->grade);
    ++ran[scenario.parallel.comm_type];
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(ran.size(), 5u) << "too few communication types ran";
}

TEST(CudaExecutor, KeepsTheBudgetWhereQueriesMove) {
  CPSCOPE_NEEDS_DEVICE(executor);
  expect_random_scenarios_pass(executor, 7'600'000, kMovedScenarios);
}

TEST(CudaExecutor, KeepsTheBudgetWhereQueriesMoveWithPortableKernelsAlone) {
  CPSCOPE_NEEDS_DEVICE(newest);
  EXPECT_EQ(newest.name(), "cuda");
  const auto executor = kernels::make_executor_cuda(kernels::Generation::portable);
  expect_random_scenarios_pass(*executor, 7'650'000, kMovedScenarios);
}

TEST(CudaExecutor, GivesTheSameBitsTwiceAndInTheNextRepeatWhereQueriesMove) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (uint64_t seed = 7'700'000; seed < 7'700'000 + kMovedScenarios / 4; ++seed) {
    const Scenario scenario = random_device_scenario(seed, kLongestSequence, true);
    const auto first = run_graded_on(executor, scenario);
    if (!first) continue;
    const auto second = run_graded_on(executor, scenario, {.repeats = 2});
    ASSERT_TRUE(first->output.ok() && second->output.ok());
    EXPECT_TRUE(is_bitwise_equal(first->output.value().answer, second->output.value().answer))
        << "seed " << seed << "\n"
        << describe(compare(first->output.value().answer, second->output.value().answer))
        << print_scenario(scenario);
  }
}

struct MovedCase {
  const char* name;
  const char* attention;  // lines of the table
  const char* batch;
  const char* numerics = "dtype = \"bf16\"\n";
  const char* parallel = "";
};

/// What random scenarios have seldom, for every communication type.
const std::vector<MovedCase>& moved_cases() {
  static const std::vector<MovedCase> kCases = {
      // A partial's o ends after an odd number of 16 bits, and its lse follows.
      {"odd head_dim_v",
       "heads = 3\nkv_heads = 1\nhead_dim_qk = 8\nhead_dim_v = 5\nattn_mask_type = \"causal\"\n",
       "lengths = [33]\n"},
      {"grouped heads, a sink and an fp32 wire",
       "heads = 4\nkv_heads = 2\nhead_dim = 64\nattn_mask_type = \"padding_causal\"\n"
       "softmax_type = \"learnable\"\n",
       "qkv_format = \"thd\"\nlengths = [40, 9, 3]\n", "dtype = \"bf16\"\ndkv_wire = \"fp32\"\n",
       "partial_wire = \"fp32\"\n"},
      {"MLA dims, softcap, RoPE",
       "heads = 2\nkv_heads = 2\nhead_dim_qk = 192\nhead_dim_v = 128\n"
       "attn_mask_type = \"causal\"\nsoftcap = 20.0\nrope_theta = 10000.0\n",
       "lengths = [48]\n", "dtype = \"fp16\"\n"},
      {"merges in the dtype",
       "heads = 4\nkv_heads = 4\nhead_dim = 32\nattn_mask_type = \"causal\"\n",
       "qkv_format = \"thd\"\nlengths = [30, 26]\n", "dtype = \"bf16\"\naccumulate = \"dtype\"\n"},
      {"a window in fp32, results not rounded",
       "heads = 2\nkv_heads = 1\nhead_dim = 40\nattn_mask_type = \"causal\"\n"
       "window_size = [17, 0]\n",
       "lengths = [50, 21]\n", "dtype = \"fp32\"\n"},
      {"latent rows",
       "heads = 4\nkv_heads = 1\nhead_dim_qk = 40\nlatent_dim = 30\n"
       "attn_mask_type = \"causal\"\nrope_theta = 10000.0\n",
       "lengths = [41, 20]\n"},
      {"few queries of many keys",
       "heads = 4\nkv_heads = 2\nhead_dim = 64\nattn_mask_type = \"causal_bottom_right\"\n",
       "lengths = [6]\nkv_lengths = [90]\n"},
      {"rows that see nothing, and ranks without rows",
       "heads = 2\nkv_heads = 2\nhead_dim = 16\nattn_mask_type = \"slices\"\n"
       "slices = [[3, 20, 30, 40, \"full\"]]\nsoftmax_type = \"off_by_one\"\n",
       "lengths = [48]\n"}};
  return kCases;
}

TEST(CudaExecutor, CarriesOutEveryFeatureWhereQueriesMove) {
  CPSCOPE_NEEDS_DEVICE(executor);
  int ran = 0;
  size_t number = 0;
  for (const MovedCase& one : moved_cases()) {
    for (const char* type : {"pass_q", "token_ring", "helper_ring", "mesh", "gather_q"}) {
      // Every feature with two or three types, every type with half of the features.
      if (number++ % 2 == 1 && !kHasAllCases) continue;
      for (const char* layout : {"dual_chunk", "contiguous", "striped"}) {
        for (const int ranks : {1, 2, 4}) {
          const std::string tile =
              type == std::string("mesh") ? fmt::format("mesh_q = {}\n", std::min(ranks, 2)) : "";
          const std::string text = fmt::format(
              "schema = 1\ntitle = \"t\"\nquestion = \"q?\"\n[attention]\n{}[batch]\n{}"
              "[parallel]\ncp_size = {}\ncp_comm_type = \"{}\"\nlayout = \"{}\"\n{}[numerics]\n{}",
              one.attention, one.batch, ranks, type, layout, one.parallel + tile, one.numerics);
          const auto loaded = parse_scenario(text, "moved.toml");
          ASSERT_TRUE(loaded.ok()) << to_text(loaded.error()) << text;
          // Every layout with four ranks, and every number of ranks with one layout.
          const bool is_usual = layout == std::string("dual_chunk");
          if ((ranks != 4 && !is_usual) || (!kHasAllCases && (ranks != 4 || !is_usual))) continue;
          const auto run = run_graded_on(executor, loaded.value().scenario);
          if (!run) continue;
          ASSERT_TRUE(run->output.ok()) << one.name << ": " << to_text(run->output.error());
          EXPECT_TRUE(run->grade.passed) << one.name << ", " << type << ", " << layout << "\n"
                                         << describe(loaded.value().scenario, run->grade);
          ++ran;
        }
      }
    }
  }
  EXPECT_GE(ran, kHasAllCases ? 150 : 15);
}

/// Schedules of which a plan has what no other has: sums of dQ on a ring, results that are scaled
/// by a gathered lse, keys of two buffers, partials of some heads, queries of some heads.
TEST(CudaExecutor, CarriesOutEveryFeatureOfRareSchedules) {
  CPSCOPE_NEEDS_DEVICE(executor);
  int ran = 0;
  size_t number = 0;
  for (const MovedCase& one : moved_cases()) {
    for (const char* parallel :
         {"cp_comm_type = \"p2p\"\nring_backward = \"q\"\n",
          "cp_comm_type = \"double_ring\"\nring_window = 2\nring_backward = \"q\"\n",
          "cp_comm_type = \"gather_q\"\ncombine = \"reduce_scatter\"\n",
          "cp_comm_type = \"gather_q\"\nq_owner = \"heads\"\n",
          "cp_comm_type = \"gather_q\"\nq_owner = \"heads\"\ncombine = \"tree\"\n",
          "cp_comm_type = \"gather_q\"\nq_owner = \"heads_replicated\"\n"
          "combine = \"reduce_scatter\"\n",
          "cp_comm_type = \"p2p\"\nkv_replicated = 5\n",
          "cp_comm_type = \"all_gather\"\nheads_per_stage = 1\n",
          "cp_comm_type = \"a2a\"\nheads_per_stage = 2\n"}) {
      const std::string text = fmt::format(
          "schema = 1\ntitle = \"t\"\nquestion = \"q?\"\n[attention]\n{}[batch]\n{}[parallel]\n"
          "cp_size = 4\n{}{}[numerics]\n{}{}",
          one.attention, one.batch, parallel, one.parallel, one.numerics,
          std::string_view(parallel).find("q_owner") == std::string_view::npos
              ? ""
              : "backward = false\n");
      const auto loaded = parse_scenario(text, "rare.toml");
      // A key of one communication type alone is rejected with another one.
      if (!loaded.ok() || (++number % 3 != 0 && !kHasAllCases)) continue;
      const auto run = run_graded_on(executor, loaded.value().scenario);
      if (!run) continue;
      ASSERT_TRUE(run->output.ok()) << one.name << ": " << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << one.name << ", " << parallel << "\n"
                                     << describe(loaded.value().scenario, run->grade);
      ++ran;
    }
  }
  EXPECT_GE(ran, kHasAllCases ? 30 : 10);
}

TEST(CudaExecutor, CountsEveryKeyOnceWhereQueriesMove) {
  CPSCOPE_NEEDS_DEVICE(executor);
  MaskWitness witness;
  // Causal, by hand: query i sees keys 0 to i.
  witness.visible_keys = [](const Scenario& scenario) {
    return [&scenario](int64_t sequence) {
      std::vector<std::vector<KeyInterval>> rows;
      for (int64_t i = 0; i < scenario.batch.lengths[sequence]; ++i) rows.push_back({{0, i + 1}});
      return rows;
    };
  };
  for (const char* type : {"pass_q", "token_ring", "helper_ring", "mesh", "gather_q"}) {
    const auto plan =
        plan_unless_refused(probe_scenario(scenario_of_pieces(type, 4, 32, "40, 27", 2, 4)));
    ASSERT_TRUE(plan) << type;
    const Result<ProbeReport> report = probe_plan(*plan, executor, witness);
    ASSERT_TRUE(report.ok()) << type << ": " << to_text(report.error());
    EXPECT_TRUE(report.value().passed()) << type << ": " << report.value().first->text;
  }
}

}  // namespace
}  // namespace cpscope::tests
