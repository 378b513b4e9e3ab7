// Bugs planted in the kernels of sm_90a. The tests must detect each of them as a wrong number, a
// NaN, a deadlock, or an access outside. Emulator only.
#include "kernels/device/device.h"
#include "kernels/emulator/settings.h"
#include "kernels/hopper/hopper_backward.h"
#include "kernels/run/executor_cuda.h"
#include "sim/run/dtype.h"
#include "tests/kernels/attention/attention_cases.h"
#include "tests/kernels/attention/attention_device.h"
#include "tests/kernels/attention/gradient_runner.h"
#include "tests/kernels/device/source_lines.h"
#include "tests/kernels/run/fp8_cases.h"
#include "tests/support/graded_run.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::emulator::Fault;
using kernels::emulator::settings;

/// Two query heads of one KV head, more tiles than stages, a masked tail.
AttentionCase make_dense_case(int32_t rows = 330, int32_t lanes_qk = 128, int32_t lanes_v = 128) {
  AttentionCase item = causal_case(Dtype::bf16, rows, lanes_qk, lanes_v);
  item.shape.num_heads = item.shape.group = 2;
  return item;
}

/// Most tiles have no partner, so that items follow each other at once.
AttentionCase make_sparse_case(int32_t lanes_qk = 64) {
  AttentionCase item = causal_case(Dtype::bf16, 520, lanes_qk, 64);
  item.shape.num_heads = item.shape.num_kv_heads = 4;
  item.slices = {{200, 220, 210, 225, -520, 520}};
  return item;
}

/// Without a cap the fused kernel takes head_dims of up to 192 and 128.
AttentionCase with_cap(AttentionCase item) {
  item.shape.softcap = 1.5f;
  return item;
}

/// A single stage of Q, and items so short that the next Q is needed at once.
AttentionCase make_short_case() {
  AttentionCase item = causal_case(Dtype::bf16, 520, 192, 128);
  item.slices = {{0, 520, 210, 225, -1000, 1000}};
  return item;
}

/// Documents of few keys: a single consumer.
AttentionCase make_few_keys_case() {
  AttentionCase item = causal_case(Dtype::bf16, 400, 64, 64);
  item.slices = {{0, 90, 0, 90, -90, 0}, {90, 150, 90, 150, -60, 0}, {150, 400, 150, 400, -250, 0}};
  item.shape.keys_per_row = 100;
  return item;
}

/// One kernel under test and the tests' result for it, "" if it is correct.
class Forward {
 public:
  static std::vector<std::string> sources() {
    return {"hopper_forward_kernel.h", "hopper_forward_rows.h", "hopper_forward_stages.h"};
  }

  std::string verdict() const {
    std::string said;
    for (const AttentionCase& item :
         {make_dense_case(), make_sparse_case(), make_short_case(), make_few_keys_case()}) {
      const AttentionInputs inputs = draw_inputs(item);
      const auto hopper = kernels::Generation::sm90;
      const ForwardAnswer answer = run_forward(hopper, item, inputs);
      said += judge_forward(item, inputs, answer);
      if (!said.empty()) break;
      const kernels::TileList tiles = query_tiles(item, forward_tile_shape(hopper, item.shape));
      said += find_other_bits(item, run_forward(hopper, item, inputs, tiles, true), answer);
      if (!said.empty()) break;
    }
    return said.empty() ? verdict_on_codes() : said;
  }

 private:
  /// More tiles of codes than stages.
  static std::string verdict_on_codes() {
    Scenario scenario = fp8_scenario_of("p2p", {.recipe = Fp8Recipe::current}, 128, "700");
    scenario.parallel.cp_size = 1;
    scenario.attention.heads = scenario.attention.kv_heads = 2;
    scenario.numerics.backward = false;
    const auto executor = kernels::make_executor_cuda();
    const auto run = run_graded_on(*executor, scenario);
    if (!run) return "rejected";
    if (!run->output.ok()) return to_text(run->output.error());
    return run->grade.passed ? "" : describe(scenario, run->grade);
  }
};

struct SolvedProblem {
  kernels::GradientProblem problem;
  kernels::ExactGradients exact;

  explicit SolvedProblem(const AttentionCase& item)
      : problem(make_gradient_problem(item.shape, item.slices, static_cast<uint32_t>(item.seed))),
        exact(solve(problem)) {}
};

void do_nothing(const kernels::BackwardLaunch& /*launch*/, kernels::Stream /*stream*/) {}

enum class Outputs { all, dq, dk_dv };

/// One gradient kernel on some problems.
class GradientTrial {
 public:
  GradientTrial(Outputs outputs, const std::vector<AttentionCase>& cases)
      : outputs_(outputs),
        problems_(cases.begin(), cases.end()),
        kernels_(kernels::hopper_gradient_kernels()) {
    if (outputs == Outputs::dq) kernels_.key_gradient = do_nothing;
    if (outputs == Outputs::dk_dv) kernels_.query_gradient = do_nothing;
  }

  std::string verdict() const {
    for (const SolvedProblem& solved : problems_) {
      const kernels::AttentionShape& shape = solved.problem.shape;
      const auto got = run_gradients(kernels_, solved.problem, solved.exact);
      std::string said;
      if (outputs_ != Outputs::dk_dv)
        said += find_excess("dq", solved.exact.dq, got.dq, shape.num_heads, shape.head_dim_qk);
      if (outputs_ != Outputs::dq) {
        said += find_excess("dk", solved.exact.dk, got.dk, shape.num_kv_heads, shape.head_dim_qk);
        said += find_excess("dv", solved.exact.dv, got.dv, shape.num_kv_heads, shape.head_dim_v);
      }
      if (said.empty() && outputs_ == Outputs::all) said = find_other_bits(solved, got.dq);
      if (!said.empty()) return said;
    }
    return "";
  }

 private:
  /// The last tiles of the fused kernel must write the fp32 sums, rounded to the dtype.
  std::string find_other_bits(const SolvedProblem& solved, const std::vector<float>& sums) const {
    const auto narrow =
        run_gradients(kernels_, solved.problem, solved.exact, kernels::Written::dtype);
    for (size_t i = 0; i < sums.size(); ++i) {
      const double rounded = round_to(solved.problem.shape.dtype, sums[i]);
      if (narrow.dq[i] != rounded)
        return fmt::format("dq element {}: {} instead of {}", i, narrow.dq[i], rounded);
    }
    return "";
  }

  Outputs outputs_;
  std::vector<SolvedProblem> problems_;
  kernels::GradientKernels kernels_;
};

struct FusedGradients : GradientTrial {
  static std::vector<std::string> sources() {
    return {"hopper_gradient_consumer.h", "hopper_wide_gradient_consumer.h",
            "hopper_stationary_keys.h",   "hopper_fused_stages.h",
            "hopper_fused_dq.h",          "hopper_fused_rows.h"};
  }
  FusedGradients()
      : GradientTrial(Outputs::all,
                      {make_dense_case(), make_sparse_case(), make_dense_case(200, 64, 64),
                       make_dense_case(200, 192), make_sparse_case(136)}) {}
};

struct WideQueryGradient : GradientTrial {
  static std::vector<std::string> sources() { return {"hopper_wide_query_gradient.cu"}; }
  WideQueryGradient()
      : GradientTrial(Outputs::dq, {with_cap(make_dense_case(200, 192)),
                                    with_cap(make_sparse_case(136)), make_dense_case(200, 256)}) {}
};

struct WideKeyGradient : GradientTrial {
  static std::vector<std::string> sources() {
    return {"hopper_wide_key_gradient.cu", "hopper_row_metadata.h"};
  }
  WideKeyGradient()
      : GradientTrial(Outputs::dk_dv,
                      {with_cap(make_dense_case(200, 192)), with_cap(make_sparse_case(136)),
                       make_dense_case(150, 256)}) {}
};

/// dq and dk are one kernel.
class LatentGradients {
 public:
  static std::vector<std::string> sources() {
    return {"hopper_latent_gradients.cu", "hopper_row_metadata.h"};
  }
  std::string verdict() const {
    const std::string said = dq_.verdict();
    return said.empty() ? dk_.verdict() : said;
  }

 private:
  static AttentionCase latent(AttentionCase item) {
    item.shape.is_latent = true;
    item.shape.num_kv_heads = 1;
    item.shape.group = item.shape.num_heads;
    return item;
  }
  static std::vector<AttentionCase> cases() {
    AttentionCase sparse = latent(make_sparse_case(576));
    sparse.shape.head_dim_v = 512;
    return {latent(make_dense_case(150, 576, 512)), sparse};
  }

  GradientTrial dq_{Outputs::dq, cases()}, dk_{Outputs::dk_dv, cases()};
};

template <class Kernel>
class HopperPlantedBugs : public ::testing::Test {
 protected:
  void TearDown() override { settings() = {}; }

  static constexpr uint64_t kSeeds = 8;  // orders of threads and times of completion

  /// The tests' result for the kernel with a fault. A bug may also make it run forever.
  std::string say(uint64_t seed, Fault fault, int32_t line) const {
    settings() = {.seed = seed, .fault = fault, .fault_line = line, .most_switches = 3'000'000};
    try {
      return kernel_.verdict();
    } catch (const kernels::DeviceError& error) {
      return error.what();
    }
  }

  bool is_seen(Fault fault, int32_t line = 0) const {
    kernels::emulator::clear_counts();
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      if (say(seed, fault, line) != "") return true;
    }
    EXPECT_GT(kernels::emulator::counts().faults, 0) << "the fault was never met";
    return false;
  }

  /// Plants the fault on each line of the sources that holds `text`, and expects detection.
  void expect_seen_in(const std::vector<std::string>& sources, const std::string& text,
                      Fault fault) const {
    size_t num_lines = 0;
    for (const std::string& source : sources) {
      const std::vector<int32_t> lines = lines_with(CPSCOPE_KERNELS "/hopper/" + source, text);
      num_lines += lines.size();
      for (const int32_t line : lines) EXPECT_TRUE(is_seen(fault, line)) << source << ":" << line;
    }
    EXPECT_GT(num_lines, 0u) << text;
  }

  Kernel kernel_;
};

using Kernels =
    ::testing::Types<Forward, FusedGradients, WideQueryGradient, WideKeyGradient, LatentGradients>;
TYPED_TEST_SUITE(HopperPlantedBugs, Kernels);

TYPED_TEST(HopperPlantedBugs, NoneIsSeenWhereNoneIs) {
  for (uint64_t seed = 1; seed <= this->kSeeds; ++seed)
    EXPECT_EQ(this->say(seed, Fault::none, 0), "") << "seed " << seed;
}

TYPED_TEST(HopperPlantedBugs, EveryMissingWaitForTilesIsSeen) {
  this->expect_seen_in(TypeParam::sources(), "mbarrier_wait(", Fault::skip_transaction_wait);
}

TYPED_TEST(HopperPlantedBugs, EveryMissingWaitOfTheSchedulerIsSeen) {
  const std::vector<std::string> scheduler = {"hopper_pipeline.h"};
  this->expect_seen_in(scheduler, "mbarrier_wait(", Fault::skip_transaction_wait);
}

using HopperForwardBugs = HopperPlantedBugs<Forward>;

TYPED_TEST(HopperPlantedBugs, EveryMissingWaitForProductsIsSeen) {
  this->expect_seen_in(TypeParam::sources(), "wgmma_wait<", Fault::skip_product_wait);
}

TYPED_TEST(HopperPlantedBugs, WrongPanelStrideIsSeen) {
  EXPECT_TRUE(this->is_seen(Fault::wrong_panel_stride));
}

TYPED_TEST(HopperPlantedBugs, MissingSwizzleIsSeen) {
  EXPECT_TRUE(this->is_seen(Fault::skip_swizzle));
}

TYPED_TEST(HopperPlantedBugs, ReadingBeyondARunIsSeen) {
  EXPECT_TRUE(this->is_seen(Fault::skip_clipping));
}

using HopperForwardBugs = HopperPlantedBugs<Forward>;

TEST_F(HopperForwardBugs, EveryMissingWaitForLeavingBoxesIsSeen) {
  expect_seen_in(Forward::sources(), "wait_for_boxes_read();", Fault::skip_box_wait);
}

using HopperFusedBugs = HopperPlantedBugs<FusedGradients>;

TEST_F(HopperFusedBugs, EveryMissingWaitForTheOtherKeysIsSeen) {
  expect_seen_in(FusedGradients::sources(), "named_barrier_sync(", Fault::skip_named_barrier);
}

TEST_F(HopperFusedBugs, EveryMissingWaitForLeavingBoxesIsSeen) {
  expect_seen_in(FusedGradients::sources(), "wait_for_boxes_read();", Fault::skip_box_wait);
}

/// Four heads whose inputs arrive in two pieces from two sources; `flags` [piece][source], in
/// device memory, are 7 when set.
kernels::Arrivals arrivals_in_pieces(const DeviceBytes& flags) {
  kernels::Arrivals arrivals;
  arrivals.flags = static_cast<const int32_t*>(flags.data());
  arrivals.expected = 7;
  arrivals.num_sources = arrivals.num_pieces = 2;
  arrivals.ends[0] = 1;
  arrivals.ends[1] = 4;
  return arrivals;
}

AttentionCase case_of_four_heads() {
  AttentionCase item = make_dense_case(150, 64, 64);
  item.shape.num_heads = item.shape.num_kv_heads = 4;
  item.shape.group = 1;
  return item;
}

std::string say_forward_of(const kernels::Arrivals& arrivals) {
  const AttentionCase item = case_of_four_heads();
  const AttentionInputs inputs = draw_inputs(item);
  const kernels::Generation generation = kernels::Generation::sm90;
  const kernels::TileList tiles = query_tiles(item, forward_tile_shape(generation, item.shape));
  return judge_forward(item, inputs, run_forward(generation, item, inputs, tiles, false, arrivals));
}

std::string say_backward_of(const kernels::Arrivals& arrivals) {
  const SolvedProblem solved(case_of_four_heads());
  const kernels::GradientKernels whole = kernels::hopper_gradient_kernels();
  kernels::GradientKernels waiting = whole;
  waiting.key_gradient = [&](kernels::BackwardLaunch launch, kernels::Stream stream) {
    launch.key_tiles.arrivals = arrivals;
    whole.key_gradient(launch, stream);
  };
  const auto got = run_gradients(waiting, solved.problem, solved.exact);
  return find_excess("dq", solved.exact.dq, got.dq, 4, 64) +
         find_excess("dk", solved.exact.dk, got.dk, 4, 64) +
         find_excess("dv", solved.exact.dv, got.dv, 4, 64);
}

class HopperPieces : public ::testing::TestWithParam<std::string (*)(const kernels::Arrivals&)> {
 protected:
  static std::string say(const std::vector<int32_t>& flags) {
    const DeviceBytes memory = DeviceBytes::holding(flags);
    try {
      return GetParam()(arrivals_in_pieces(memory));
    } catch (const kernels::DeviceError& error) {
      return error.what();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Passes, HopperPieces, ::testing::Values(say_forward_of, say_backward_of),
                         [](const auto& of) { return of.index == 0 ? "forward" : "backward"; });

TEST_P(HopperPieces, AreComputedWhenAllFlagsSaySo) { EXPECT_EQ(say({7, 7, 7, 7}), ""); }

TEST_P(HopperPieces, AreWaitedForWhereAnyFlagIsThatOfAnotherPass) {
  for (size_t missing = 0; missing < 4; ++missing) {
    std::vector<int32_t> flags(4, 7);
    flags[missing] = 6;
    const std::string said = say(flags);
    EXPECT_NE(said.find("wait_for_arrival"), std::string::npos) << missing << ": " << said;
  }
}

}  // namespace
}  // namespace cpscope::tests
