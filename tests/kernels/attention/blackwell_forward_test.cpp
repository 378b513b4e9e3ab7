// The forward of sm_100a on the emulator, against the dense reference. Emulator only: no machine
// with Blackwell has run it.
#include "kernels/blackwell/blackwell_forward.h"

#include "kernels/emulator/settings.h"
#include "kernels/run/executor_cuda.h"
#include "sim/run/dtype.h"
#include "tests/kernels/attention/attention_cases.h"
#include "tests/kernels/attention/attention_device.h"
#include "tests/kernels/device/source_lines.h"
#include "tests/kernels/lower/piece_cases.h"
#include "tests/support/graded_run.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::Generation;
using kernels::emulator::Fault;
using kernels::emulator::settings;

std::string judge_on_blackwell(const AttentionCase& item, const AttentionInputs& inputs) {
  return judge_forward(item, inputs, run_forward(Generation::sm100, item, inputs));
}

class BlackwellForward : public ::testing::Test {
 protected:
  void TearDown() override { settings() = {}; }

  static void check(const AttentionCase& item, double sharpness = 1.0) {
    ASSERT_EQ(why_not_forward(Generation::sm100, item.shape), "");
    EXPECT_EQ(judge_on_blackwell(item, draw_inputs(item, sharpness)), "") << describe(item);
  }
};

TEST_F(BlackwellForward, HoldsRandomMasksHeadsAndSizes) {
  for (uint64_t seed = 1; seed <= 12 && !HasFailure(); ++seed) {
    settings() = {.seed = seed};
    check(random_case(seed, {.dims = {{64, 64}, {40, 8}, {128, 128}, {72, 100}, {1, 3}},
                             .most_rows = 420,
                             .share_softcap = 0.0}));
  }
}

TEST_F(BlackwellForward, WalksWholeTilesWithoutAMask) {
  check(full_case(Dtype::bf16, 512, 128, 128));
  check(full_case(Dtype::fp16, 512, 64, 64));
  check(causal_case(Dtype::bf16, 700, 128, 128));
}

TEST_F(BlackwellForward, KeepsItsErrorWhereOneKeyDominates) {
  check(causal_case(Dtype::bf16, 300, 64, 64), 10.0);
  check(causal_case(Dtype::fp16, 300, 128, 128), 10.0);
}

TEST_F(BlackwellForward, KeepsItsErrorOverManyTiles) {
  check(scattered_case(Dtype::bf16, 80, 64), 3.0);
}

// Earlier results are rescaled only when a weight would be a large part of the sum.
TEST_F(BlackwellForward, KeepsItsErrorWhereLogitsRiseFromTileToTile) {
  constexpr double kLog2OfE = 1.4426950408889634, kQuery = 4.0;
  for (const AttentionCase& item :
       {full_case(Dtype::bf16, 520, 64, 64), full_case(Dtype::fp16, 520, 128, 128)}) {
    for (const double powers_of_two : {0.2, 8.5, 40.0, -40.0}) {
      AttentionInputs inputs = draw_inputs(item);
      const double step = powers_of_two / (kQuery * item.shape.scale * kLog2OfE);
      for (int32_t q = 0; q < item.shape.q_rows; ++q) inputs.q.at(q, 0)[0] = kQuery;
      for (int32_t k = 0; k < item.shape.kv_rows; ++k)
        inputs.k.at(k, 0)[0] = round_to(item.shape.dtype, step * (k / 128));
      EXPECT_EQ(judge_on_blackwell(item, inputs), "")
          << describe(item) << powers_of_two << " powers of two every 128 keys";
    }
  }
}

TEST_F(BlackwellForward, RejectsByName) {
  const auto why = [](auto change) {
    kernels::AttentionShape shape = full_case(Dtype::bf16, 8, 64, 64).shape;
    change(shape);
    return why_not_forward(Generation::sm100, shape);
  };
  EXPECT_EQ(why([](auto&) {}), "");
  EXPECT_NE(why([](auto& shape) { shape.softcap = 3.0F; }).find("softcap"), std::string::npos);
  EXPECT_NE(why([](auto& shape) { shape.head_dim_v = 136; }).find("128"), std::string::npos);
  EXPECT_NE(why([](auto& shape) { shape.dtype = Dtype::fp32; }).find("bf16"), std::string::npos);
  EXPECT_NE(why([](auto& shape) { shape.is_fp8 = true; }).find("bf16"), std::string::npos);
  EXPECT_NE(why([](auto& shape) { shape.is_latent = true; }).find("latent"), std::string::npos);
  EXPECT_NE(why_not_backward(Generation::sm100, full_case(Dtype::bf16, 8, 64, 64).shape), "");
}

TEST_F(BlackwellForward, TakesTheForwardOfARunAndLeavesTheRestToPortableKernels) {
  settings().compute_capability = 100;
  const auto executor = kernels::make_executor_cuda();
  const auto run = run_graded_on(*executor, scenario_of_pieces("p2p", 2, 64, "300, 44", 2, 4));
  ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
  EXPECT_TRUE(run->grade.passed) << describe(run->plan.plan().scenario, run->grade);
  for (const std::string& name : run->output.value().item_kernels.forward)
    EXPECT_EQ(name, "sm100 forward 256x128");
  for (const std::string& name : run->output.value().item_kernels.backward)
    EXPECT_EQ(name.find("portable"), 0U) << name;
}

/// Two heads of one KV head, more tiles than stages, several items one after another.
class BlackwellPlantedBugs : public ::testing::Test {
 protected:
  void TearDown() override { settings() = {}; }

  static std::vector<AttentionCase> cases() {
    AttentionCase dense = causal_case(Dtype::bf16, 600, 128, 128);
    dense.shape.num_heads = dense.shape.group = 2;
    AttentionCase sparse = causal_case(Dtype::bf16, 600, 64, 64);
    sparse.shape.num_heads = sparse.shape.num_kv_heads = 4;
    sparse.slices = {{200, 220, 210, 225, -600, 600}, {300, 600, 0, 600, -600, 600}};
    return {dense, sparse};
  }

  static std::string say(uint64_t seed, Fault fault, int32_t line) {
    settings() = {.seed = seed, .fault = fault, .fault_line = line, .most_switches = 3'000'000};
    try {
      for (const AttentionCase& item : cases()) {
        AttentionInputs inputs = draw_inputs(item);
        // Rows outgrow their limits in later tiles too.
        for (int32_t k = 0; k < item.shape.kv_rows; ++k)
          inputs.k.at(k, 0)[0] = round_to(Dtype::bf16, 0.5 * (k / 128));
        const std::string said = judge_on_blackwell(item, inputs);
        if (!said.empty()) return said;
      }
    } catch (const kernels::DeviceError& error) {
      return error.what();
    }
    return "";
  }

  static bool is_seen(Fault fault, int32_t line = 0) {
    kernels::emulator::clear_counts();
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      if (!say(seed, fault, line).empty()) return true;
    }
    EXPECT_GT(kernels::emulator::counts().faults, 0) << "the fault was never met";
    return false;
  }

  static void expect_seen_in(const std::string& source, const std::string& text, Fault fault) {
    const std::vector<int32_t> lines = lines_with(CPSCOPE_KERNELS + source, text);
    EXPECT_FALSE(lines.empty()) << text;
    for (const int32_t line : lines) EXPECT_TRUE(is_seen(fault, line)) << source << ":" << line;
  }
};

TEST_F(BlackwellPlantedBugs, NoneIsSeenWhereNoneIs) {
  for (uint64_t seed = 1; seed <= 3; ++seed) EXPECT_EQ(say(seed, Fault::none, 0), "") << seed;
}

TEST_F(BlackwellPlantedBugs, EveryMissingWaitIsSeen) {
  const std::string source = "/blackwell/blackwell_forward.cu";
  expect_seen_in(source, "mbarrier_wait(", Fault::skip_transaction_wait);
  expect_seen_in(source, "tcgen05_wait_ld(", Fault::skip_tensor_wait);
  expect_seen_in(source, "tcgen05_wait_st(", Fault::skip_tensor_wait);
}

TEST_F(BlackwellPlantedBugs, MissingSwizzleOrClippingIsSeen) {
  EXPECT_TRUE(is_seen(Fault::skip_swizzle));
  EXPECT_TRUE(is_seen(Fault::skip_clipping));
}

}  // namespace
}  // namespace cpscope::tests
