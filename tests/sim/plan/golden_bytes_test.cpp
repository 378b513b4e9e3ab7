#include "sim/plan/plan_summary.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>

#include <gtest/gtest.h>

// Bytes that one rank sends in one layer, from published tables and formulas.

namespace cpscope::tests {
namespace {

/// One row of the table: tokens, ranks, heads, KV heads, head_dim; then MB = 10^6 bytes sent by
/// each rank, bf16.
struct ByteRow {
  const char* name;
  int64_t tokens;
  int32_t ranks, heads, kv_heads, head_dim;
  double ring_forward, ring_backward_fp32, ring_backward_bf16, gather_backward, ulysses;
};

constexpr ByteRow kByteRows[] = {
    {"Llama3-8B", 131072, 8, 32, 8, 128, 469.8, 1543.5, 1006.6, 939.5, 293.6},
    {"Llama3-405B", 131072, 16, 128, 8, 128, 503.3, 1577.1, 1040.2, 1006.6, 566.2},
    {"GQA 16", 131072, 8, 64, 4, 128, 234.9, 771.8, 503.3, 469.8, 528.5},
    {"MHA", 131072, 8, 32, 32, 128, 1879.0, 6174.0, 4026.5, 3758.1, 469.8},
    {"32K on 4", 32768, 4, 32, 8, 128, 100.7, 369.1, 234.9, 201.3, 125.8},
};

/// Forward bytes of a2a+p2p by size of the a2a level.
struct UspRow {
  size_t row;
  int32_t a2a_size;
  double forward;
};

constexpr UspRow kUspRows[] = {
    {0, 2, 369.1},  {0, 4, 318.8},  {0, 8, 293.6}, {1, 2, 520.1}, {1, 4, 528.5},
    {1, 8, 532.7},  {1, 16, 566.2}, {2, 2, 385.9}, {2, 4, 461.4}, {2, 8, 528.5},
    {3, 2, 1073.7}, {3, 4, 671.1},  {3, 8, 469.8}, {4, 2, 117.4}, {4, 4, 125.8},
};

Scenario scenario_of(const ByteRow& row, CommType comm) {
  Scenario scenario = make_case({row.tokens}, row.ranks, LayoutKind::dual_chunk, comm);
  scenario.attention.heads = row.heads;
  scenario.attention.kv_heads = row.kv_heads;
  scenario.attention.head_dim_qk = row.head_dim;
  scenario.attention.head_dim_v = row.head_dim;
  return scenario;
}

/// Every rank sends the same number of bytes, which equals `megabytes` to the digit printed.
void expect_each_sends(const std::vector<int64_t>& bytes, double megabytes, const char* what,
                       const Scenario& scenario) {
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    EXPECT_NEAR(static_cast<double>(bytes[rank]) / 1e6, megabytes, 0.0501)
        << what << " of rank " << rank << "\n"
        << show(scenario);
  }
}

TEST(GoldenBytes, OfTheForwardRing) {
  for (const ByteRow& row : kByteRows) {
    const Scenario scenario = scenario_of(row, CommType::p2p);
    expect_each_sends(summarise(plan_of(scenario)).forward_bytes, row.ring_forward, row.name,
                      scenario);
  }
}

TEST(GoldenBytes, OfTheForwardAllGather) {
  for (const ByteRow& row : kByteRows) {
    const Scenario scenario = scenario_of(row, CommType::all_gather);
    expect_each_sends(summarise(plan_of(scenario)).forward_bytes, row.ring_forward, row.name,
                      scenario);
  }
}

TEST(GoldenBytes, OfTheBackwardRingWithItsSumsInFp32) {
  for (const ByteRow& row : kByteRows) {
    Scenario scenario = scenario_of(row, CommType::p2p);
    scenario.numerics.dkv_hops = DkvHops::ring;
    scenario.numerics.dkv_wire = WireFormat::fp32;
    expect_each_sends(summarise(plan_of(scenario)).backward_bytes, row.ring_backward_fp32, row.name,
                      scenario);
  }
}

TEST(GoldenBytes, OfTheBackwardRingWithItsSumsInBf16) {
  for (const ByteRow& row : kByteRows) {
    Scenario scenario = scenario_of(row, CommType::p2p);
    scenario.numerics.dkv_hops = DkvHops::ring;
    expect_each_sends(summarise(plan_of(scenario)).backward_bytes, row.ring_backward_bf16, row.name,
                      scenario);
  }
}

TEST(GoldenBytes, OfTheBackwardAllGatherWithReduceScatter) {
  for (const ByteRow& row : kByteRows) {
    const Scenario scenario = scenario_of(row, CommType::all_gather);
    expect_each_sends(summarise(plan_of(scenario)).backward_bytes, row.gather_backward, row.name,
                      scenario);
  }
}

TEST(GoldenBytes, OfUlyssesWithReplicatedKvHeadsBothWays) {
  for (const ByteRow& row : kByteRows) {
    const Scenario scenario = scenario_of(row, CommType::a2a);
    const PlanSummary summary = summarise(plan_of(scenario));
    expect_each_sends(summary.forward_bytes, row.ulysses, row.name, scenario);
    expect_each_sends(summary.backward_bytes, row.ulysses, row.name, scenario);
  }
}

TEST(GoldenBytes, OfUnifiedSequenceParallelism) {
  for (const UspRow& usp : kUspRows) {
    const ByteRow& row = kByteRows[usp.row];
    Scenario scenario = scenario_of(row, CommType::a2a_p2p);
    scenario.parallel.a2a_size = usp.a2a_size;
    expect_each_sends(summarise(plan_of(scenario)).forward_bytes, usp.forward, row.name, scenario);
  }
}

/// TransformerEngine's own example: S 4096, batch 2, 12 query and 2 KV heads of head_dim 128, 2
/// ranks, bf16.
Scenario transformer_engine_example(CommType comm) {
  Scenario scenario = make_case({4096, 4096}, 2, LayoutKind::dual_chunk, comm);
  scenario.batch.qkv_format = QkvFormat::bshd;
  scenario.attention.heads = 12;
  scenario.attention.kv_heads = 2;
  scenario.attention.head_dim_qk = 128;
  scenario.attention.head_dim_v = 128;
  return scenario;
}

/// DeepSeek-V3: 128 heads of 192 elements for q and k, 128 for v, from latent rows of 512 and 64.
TEST(GoldenBytes, OfLatentRowsAre1152ATokenInsteadOf81920) {
  for (const CommType comm : {CommType::p2p, CommType::all_gather, CommType::group_cast}) {
    Scenario expanded = make_case({64}, 2, LayoutKind::contiguous, comm);
    expanded.attention.mask_type = MaskType::no_mask;
    expanded.attention.heads = expanded.attention.kv_heads = 128;
    expanded.attention.head_dim_qk = 192;
    expanded.attention.head_dim_v = 128;
    Scenario latent = expanded;
    latent.attention.kv_heads = 1;
    latent.attention.head_dim_qk = 576;
    latent.attention.head_dim_v = latent.attention.latent_dim = 512;
    // The same bytes where the rows are expanded after they have arrived.
    Scenario third = expanded;
    third.attention.kv_heads = 1;
    third.attention.latent_dim = 512;
    third.attention.latent_nope_dim = 128;
    EXPECT_EQ(summarise(plan_of(third)).forward_bytes, summarise(plan_of(latent)).forward_bytes);
    EXPECT_EQ(summarise(plan_of(third)).backward_bytes, summarise(plan_of(latent)).backward_bytes);
    const PlanSummary one = summarise(plan_of(latent)), many = summarise(plan_of(expanded));
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(one.forward_bytes[rank], 32 * 1152) << to_name(comm);
      EXPECT_EQ(many.forward_bytes[rank], 32 * 81920) << to_name(comm);
      // Keys again, and one gradient for each.
      EXPECT_EQ(one.backward_bytes[rank], 2 * 32 * 1152) << to_name(comm);
    }
    EXPECT_EQ(one.kv_bytes_moved, 64 * 1152) << to_name(comm);
    EXPECT_EQ(one.kv_bytes_necessary, 64 * 1152) << to_name(comm);
  }
}

void expect_mebibytes(CommType comm, int64_t forward, int64_t backward) {
  const Scenario scenario = transformer_engine_example(comm);
  const PlanSummary summary = summarise(plan_of(scenario));
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(summary.forward_bytes[rank], forward << 20) << "rank " << rank << show(scenario);
    EXPECT_EQ(summary.backward_bytes[rank], backward << 20) << "rank " << rank << show(scenario);
  }
}

TEST(GoldenBytes, OfTransformerEnginesRing) { expect_mebibytes(CommType::p2p, 4, 8); }

TEST(GoldenBytes, OfTransformerEnginesAllToAll) { expect_mebibytes(CommType::a2a, 14, 14); }

TEST(GoldenBytes, OfTransformerEnginesAllGather) { expect_mebibytes(CommType::all_gather, 4, 8); }

TEST(GoldenBytes, OfGroupCastAreTwiceAsManyBackwardWhenKvIsFetchedAgain) {
  Scenario scenario = make_case({128, 64, 320}, 4, LayoutKind::contiguous, CommType::group_cast);
  const auto all = [](const std::vector<int64_t>& bytes) {
    int64_t sum = 0;
    for (const int64_t rank : bytes) sum += rank;
    return sum;
  };
  PlanSummary summary = summarise(plan_of(scenario));
  EXPECT_EQ(all(summary.backward_bytes), 2 * all(summary.forward_bytes));
  scenario.parallel.backward_kv = BackwardKv::saved;
  summary = summarise(plan_of(scenario));
  EXPECT_EQ(all(summary.backward_bytes), all(summary.forward_bytes));
}

}  // namespace
}  // namespace cpscope::tests
