#include "sim/clock/clock.h"

#include "sim/plan/item_uses.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/visit_items.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

/// Ten multiprocessors; only what a test sets takes time.
Cluster make_cluster(int32_t gpus_per_node = 8, int32_t max_nodes = 1) {
  Cluster cluster;
  cluster.name = "bench";
  cluster.gpus_per_node = gpus_per_node;
  cluster.nics_per_node = gpus_per_node;
  cluster.max_nodes = max_nodes;
  cluster.device = {"GPU", "made up", 10, 80, 1e12, {}};
  const LinkCurve fast{{{0, 1e-6}, {1e12, 2e-6}}};
  cluster.inside = {"wire", "made up", fast, fast};
  cluster.between = cluster.inside;
  Stack stack;
  stack.name = "plain";
  stack.first_merge_passes = stack.merge_passes = 0;
  stack.packs = false;
  const TileCost tiles{16, 16, 0, 0, 1, 1};
  stack.kernels = {{1024, 1024, 16, tiles, tiles}, {1024, 1024, 32, tiles, tiles}};
  cluster.stacks = {stack};
  return cluster;
}

Stack& stack_of(Cluster& cluster) { return cluster.stacks.front(); }

Plan plan_of(const std::string& text) {
  const Result<LoadedScenario> loaded = parse_scenario("schema = 1\n" + text, "t.toml");
  EXPECT_TRUE(loaded.ok()) << (loaded ? "" : to_text(loaded.error()));
  Result<Plan> plan = make_plan(loaded.value().scenario);
  EXPECT_TRUE(plan.ok()) << (plan ? "" : to_text(plan.error()));
  return std::move(plan).value();
}

std::string scenario(int64_t tokens, int32_t ranks, const std::string& parallel,
                     const std::string& mask = "no_mask") {
  return fmt::format(
      "[attention]\nheads = 4\nhead_dim = 64\nattn_mask_type = \"{}\"\n[batch]\nlengths = [{}]\n"
      "[parallel]\ncp_size = {}\n{}\n",
      mask, tokens, ranks, parallel);
}

TEST(Clock, TakesAsLongAsOneKernelOnOneRank) {
  Cluster cluster = make_cluster();
  stack_of(cluster).kernels[0].forward = {16, 16, 7, 2, 3, 5};
  const Plan plan = plan_of(scenario(160, 1, "layout = \"contiguous\""));
  const Timeline timeline = predict(plan, cluster).value();
  // 10 tiles x 4 heads on 10 multiprocessors: 4 rounds of 2 + 10 whole tiles of 3.
  EXPECT_NEAR(timeline.forward.total_us, 7 + 4 * (2 + 10 * 3.0), 1e-3);
  EXPECT_NEAR(timeline.forward.ranks[0].compute_us, timeline.forward.total_us, 1e-3);
}

TEST(Clock, HidesARingThatIsFasterThanItsComputes) {
  Cluster cluster = make_cluster();
  const LinkCurve wire{{{0, 30}, {1e12, 30.000001}}};
  cluster.inside.one_peer = cluster.inside.many_peers = wire;
  // 40 rows per rank: 3 tiles x 4 heads on 10: 2 rounds of 3 tiles of keys.
  for (const double tile_us : {100.0, 1.0}) {
    stack_of(cluster).kernels[0].forward = {16, 16, 0, 0, tile_us, tile_us};
    const Plan plan = plan_of(scenario(160, 4, "layout = \"contiguous\""));
    const Timeline timeline = predict(plan, cluster).value();
    const double step = std::max(6 * tile_us, 30.0);
    EXPECT_NEAR(timeline.forward.total_us, 3 * step + 6 * tile_us, 0.01) << tile_us;
    const double exposed = timeline.forward.ranks[2].exposed_us;
    EXPECT_NEAR(exposed, 3 * (step - 6 * tile_us), 0.01) << tile_us;
  }
}

TEST(Clock, HidesNothingOfAStackThatDoesNotOverlap) {
  Cluster cluster = make_cluster();
  cluster.inside.one_peer = cluster.inside.many_peers = {{{0, 30}, {1e12, 30.000001}}};
  stack_of(cluster).kernels[0].forward = {16, 16, 0, 0, 100, 100};
  stack_of(cluster).overlaps = false;
  const Plan plan = plan_of(scenario(160, 4, "layout = \"contiguous\""));
  const Timeline timeline = predict(plan, cluster).value();
  EXPECT_NEAR(timeline.forward.total_us, 4 * 600 + 3 * 30, 0.01);
  EXPECT_NEAR(timeline.forward.ranks[1].exposed_us, 3 * 30, 0.01);
}

TEST(Clock, SlowsComputesBesideTransfers) {
  Cluster cluster = make_cluster();
  cluster.inside.one_peer = {{{0, 50}, {1e12, 50.000001}}};
  stack_of(cluster).kernels[0].forward = {16, 16, 0, 0, 100, 100};
  stack_of(cluster).transfer_multiprocessors = 5;
  const Plan plan = plan_of(scenario(160, 4, "layout = \"contiguous\""));
  const Timeline timeline = predict(plan, cluster).value();
  // Two transfers run during the first compute, and the last one waits for a free buffer: each
  // costs 50 us at half speed.
  EXPECT_NEAR(timeline.forward.total_us, 4 * 600 + 3 * 25, 0.01);
}

TEST(Clock, SlowsWhatComputesForLong) {
  Cluster cluster = make_cluster();
  stack_of(cluster).kernels[0].forward = {16, 16, 0, 0, 100, 100};
  const Plan plan = plan_of(scenario(160, 1, "layout = \"contiguous\""));
  EXPECT_NEAR(predict(plan, cluster).value().forward.total_us, 4000, 0.01);
  cluster.device.sustained = {{2000, 1}, {6000, 0.5}};
  EXPECT_NEAR(predict(plan, cluster).value().forward.total_us, 4000 / 0.75, 0.01);
}

TEST(Clock, ReadsTheKeysOfDecodeStepsAtTheRateOfMemory) {
  Cluster cluster = make_cluster();
  Stack& stack = stack_of(cluster);
  const auto forward_us = [&](const std::string& rows,
                              const std::string& heads = "kv_heads = 2\nhead_dim = 64\n") {
    const Plan plan = plan_of("[attention]\nheads = 8\nattn_mask_type = \"causal_bottom_right\"\n" +
                              heads + "[batch]\n" + rows + "[parallel]\ncp_size = 1\n");
    return predict(plan, cluster).value().forward.total_us;
  };
  const std::string drafts = "lengths = [3, 1]\nkv_lengths = [4096, 2048]\n";
  stack.read_gb_s = 1000;
  EXPECT_NEAR(forward_us(drafts), 2 * 6144 * 2 * 64 * 2 / 1e6, 1e-3) << "K and V, two heads of 64";
  const std::string latent = "kv_heads = 1\nhead_dim_qk = 72\nhead_dim_v = 64\nlatent_dim = 64\n";
  EXPECT_NEAR(forward_us(drafts, latent), 6144 * 72 * 2 / 1e6, 1e-3) << "V is a part of K";
  const std::string many = "lengths = [40]\nkv_lengths = [4096]\n",
                    short_ones = "lengths = [1, 1]\nkv_lengths = [300, 300]\n";
  for (const std::string& rows : {many, short_ones}) {
    const double with_rate = forward_us(rows);
    stack.read_gb_s = 0;
    EXPECT_EQ(with_rate, forward_us(rows)) << rows;
    stack.read_gb_s = 1000;
  }
}

TEST(Clock, TakesKernelsOf8BitsAndOfLatentAttentionWhereTheStackHasThem) {
  Cluster cluster = make_cluster();
  Stack& stack = stack_of(cluster);
  const auto plan_with = [&](const std::string& heads, const std::string& numerics) {
    return plan_of("[attention]\nheads = 4\nattn_mask_type = \"no_mask\"\n" + heads +
                   "[batch]\nlengths = [160]\n[parallel]\ncp_size = 1\n[numerics]\n" + numerics);
  };
  const std::string plain = "head_dim = 64\n",
                    latent = "kv_heads = 1\nhead_dim_qk = 72\nlatent_dim = 64\n",
                    fp8 = "dtype = \"fp8\"\n", mx = fp8 + "[fp8]\nrecipe = \"mxfp8\"\n";
  const auto expect = [&](const std::string& heads, const std::string& numerics, double us,
                          bool has_own_kernels) {
    const Plan plan = plan_with(heads, numerics);
    EXPECT_NEAR(predict(plan, cluster).value().forward.total_us, us, 1e-3) << heads << numerics;
    EXPECT_EQ(note_on_times(stack, plan.scenario).empty(), has_own_kernels) << heads << numerics;
  };
  const double tiles = 10 * 10 * 4 / 10.0;  // heads over ten multiprocessors
  expect(plain, fp8, tiles, false);
  expect(latent, "", tiles, true);
  const auto add = [&](int32_t bits, bool is_latent, double us) {
    const TileCost cost{16, 16, 0, 0, us, us};
    stack.kernels.push_back({1024, 1024, bits, cost, cost, is_latent});
  };
  add(8, false, 0.5);
  add(16, true, 3);
  expect(plain, fp8, tiles / 2, true);
  expect(plain, mx, tiles, false);
  expect(plain, "dtype = \"bf16\"\n", tiles, true);
  expect(latent, "", 3 * tiles, true);
  expect(latent, fp8, 3 * tiles, false);
  // A decode step of many heads multiplies for longer than it reads.
  stack.read_gb_s = 1000;
  const auto decode_us = [&](int32_t heads) {
    const Plan plan = plan_of(fmt::format(
        "[attention]\nheads = {}\nkv_heads = 1\nhead_dim_qk = 72\nlatent_dim = 64\n"
        "attn_mask_type = \"causal_bottom_right\"\n[batch]\nlengths = [1]\nkv_lengths = [4096]\n"
        "[parallel]\ncp_size = 1\n",
        heads));
    return predict(plan, cluster).value().forward.total_us;
  };
  EXPECT_NEAR(decode_us(128), 128 / 16 * 4096 / 16 * 3 / 10.0, 1e-3);
  EXPECT_NEAR(decode_us(8), decode_us(64), 1e-3) << "a tile has 64 rows";
  // The same in 8 bits reads half.
  const auto read_us = [&](const std::string& numerics) {
    const Plan plan = plan_of(
        "[attention]\nheads = 8\nkv_heads = 2\nhead_dim = 64\nattn_mask_type = "
        "\"causal_bottom_right\"\n[batch]\nlengths = [1]\nkv_lengths = [4096]\n[parallel]\n"
        "cp_size = 1\n[numerics]\nbackward = false\n" +
        numerics);
    return predict(plan, cluster).value().forward.total_us;
  };
  EXPECT_NEAR(read_us(fp8), read_us("") / 2, 1e-3);
}

TEST(Clock, CountsTheProductsThatExpandLatentRows) {
  Cluster cluster = make_cluster();
  stack_of(cluster).kernels[0].forward = {16, 16, 0, 0, 100, 100};
  const auto forward_us = [&](const std::string& keys) {
    const Plan plan = plan_of("[attention]\nheads = 4\nhead_dim_qk = 24\nhead_dim_v = 16\n" + keys +
                              "[batch]\nlengths = [160]\n[parallel]\ncp_size = 1\n");
    return predict(plan, cluster).value().forward.total_us;
  };
  const double own = forward_us("kv_heads = 4\n");
  const double expanded = forward_us("kv_heads = 1\nlatent_dim = 32\nlatent_nope_dim = 8\n");
  // At a quarter of the rate of attention's own products.
  const double rate = (24 + 16) * 16 * 16 / 100.0 * cluster.device.multiprocessors / 4;
  EXPECT_NEAR(expanded - own, 160 * 4 * 32 * (8 + 16) / rate, 0.01);
}

TEST(Clock, CallsAKernelForEachRankOfGatheredKeysWhereTheStackDoes) {
  Cluster cluster = make_cluster();
  Stack& stack = stack_of(cluster);
  stack.kernels[0].forward = {16, 16, 0, 0, 100, 100};
  const Plan plan =
      plan_of(scenario(160, 4, "cp_comm_type = \"all_gather\"\nlayout = \"contiguous\""));
  stack.row_launch_us = 7;
  const double once = predict(plan, cluster).value().forward.total_us;
  stack.calls_by_rank = true;
  EXPECT_NEAR(predict(plan, cluster).value().forward.total_us, once + 3 * 7, 0.01) << once;
  stack.call_us = 1e6;  // the host is slower than the kernels: four calls and three merges
  EXPECT_NEAR(predict(plan, cluster).value().forward.total_us, 7e6, 50);
}

TEST(Clock, LaunchesNothingForRowsThatKernelsTakeAndMergeThemselves) {
  Cluster cluster = make_cluster();
  Stack& stack = stack_of(cluster);
  const Plan plan = plan_of(scenario(160, 4, "layout = \"contiguous\""));
  const double free = predict(plan, cluster).value().forward.total_us;
  stack.row_launch_us = 7;
  stack.first_merge_passes = 2;
  stack.merge_passes = 3;
  // Four merges and one finish.
  EXPECT_NEAR(predict(plan, cluster).value().forward.total_us, free + 5 * 7, 0.01);
  stack.fuses_rows = true;
  EXPECT_NEAR(predict(plan, cluster).value().forward.total_us, free, 0.01);
  // Partial results of other ranks are merged by a kernel of their own.
  const Plan moving =
      plan_of(scenario(160, 4, "cp_comm_type = \"gather_q\"\nlayout = \"contiguous\""));
  const double fused = predict(moving, cluster).value().forward.total_us;
  stack.row_launch_us = 0;
  EXPECT_NEAR(fused - predict(moving, cluster).value().forward.total_us, 3 * 7, 0.01);
}

TEST(Clock, BeginsWithTheFirstHeadsWhereTheStackCutsThem) {
  Cluster cluster = make_cluster();
  Stack& stack = stack_of(cluster);
  stack.kernels[0].forward = {16, 16, 0, 0, 100, 100};
  stack.fuses_rows = stack.cuts_heads = true;
  const auto total = [&](const Plan& plan, double wire_us) {
    cluster.inside.many_peers = {{{0, wire_us}, {1e12, wire_us + 1e-6}}};
    return predict(plan, cluster).value().forward.total_us;
  };
  const Plan gather =
      plan_of(scenario(160, 4, "cp_comm_type = \"all_gather\"\nlayout = \"contiguous\""));
  const double alone = total(gather, 1e-6);
  ASSERT_GT(alone, 150) << "long enough to be cut";
  // Four KV heads come one by one: the kernel begins with the first, and ends with the last.
  EXPECT_NEAR(total(gather, alone / 2), alone + alone / 8, 0.01);
  EXPECT_NEAR(total(gather, 4 * alone), 4 * alone + alone / 4, 0.01);
  stack.cuts_heads = false;
  EXPECT_NEAR(total(gather, alone / 2), 1.5 * alone, 0.01);
  // All-to-all: of four heads a rank, the results of three are sent while the last is computed.
  stack.cuts_heads = true;
  std::string heads = scenario(160, 4, "cp_comm_type = \"a2a\"\nlayout = \"contiguous\"");
  heads.replace(heads.find("heads = 4"), 9, "heads = 16");
  const Plan a2a = plan_of(heads);
  const double work = total(a2a, 1e-6);
  EXPECT_NEAR(total(a2a, work / 4), work + work / 16 + work / 16, 0.01);
  EXPECT_NEAR(total(a2a, work), work + work / 4 + work / 2 + work / 4, 0.01);
  // Kernels too short to be cut wait for everything.
  stack.kernels[0].forward = {16, 16, 0, 0, 1, 1};
  const double brief = total(gather, 1e-6);
  ASSERT_LT(brief, 150);
  EXPECT_NEAR(total(gather, 100), brief + 100, 0.01);
}

std::string heads_case(int32_t heads, int32_t ranks, const std::string& batch) {
  return fmt::format(
      "[attention]\nheads = {}\nkv_heads = {}\nhead_dim = 64\n[batch]\n{}\n[parallel]\n"
      "cp_size = {}\ncp_comm_type = \"a2a\"\nlayout = \"contiguous\"\n",
      heads, heads, batch, ranks);
}

// One head, then two, then two.
TEST(Clock, PricesWhatRanksShareByTheHeadsOfEach) {
  const Plan plan = plan_of(heads_case(5, 3, "lengths = [960]"));
  const Result<Timeline> timeline = predict(plan, make_cluster());
  ASSERT_TRUE(timeline.ok());
  const std::vector<RankTimes>& ranks = timeline.value().forward.ranks;
  EXPECT_DOUBLE_EQ(2 * ranks[0].compute_us, ranks[1].compute_us);
  EXPECT_DOUBLE_EQ(ranks[1].compute_us, ranks[2].compute_us);
}

// 512 ranks share the slices of 500000 documents: counted for each rank they take many seconds.
TEST(Clock, CountsSlicesThatRanksShareOnce) {
  const Plan plan = plan_of(
      heads_case(512, 512, "generator = { name = \"equal\", tokens = 4194304, count = 524288 }"));
  EXPECT_EQ(plan.slices.size(), 524288U);
  EXPECT_TRUE(predict(plan, make_cluster(8, 64)).ok());
}

TEST(Clock, CountsTheBytesOfAnAllToAllByTheRankNotByTheMessage) {
  Cluster cluster = make_cluster();
  cluster.inside.many_peers = {{{0, 10}, {1e6, 1010}}};  // 1 us a kB
  stack_of(cluster).kernels[0].forward = {16, 16, 0, 0, 1e-9, 1e-9};
  const Plan plan = plan_of(scenario(160, 4, "cp_comm_type = \"a2a\"\nlayout = \"contiguous\""));
  const Timeline timeline = predict(plan, cluster).value();
  double bytes = 0;
  for (const TransferItem& item : plan.forward.transfers)
    if (to_index(item.src) == 1 && item.src != item.dst) bytes += static_cast<double>(item.bytes);
  EXPECT_GT(bytes, 0);
  // Two exchanges: q, k, v, then out.
  EXPECT_NEAR(timeline.forward.total_us, 2 * 10 + bytes * 1e-3, 0.01);
}

TEST(Clock, SendsBetweenNodesOverTheirNics) {
  Cluster cluster = make_cluster(2, 2);
  cluster.between->one_peer = {{{0, 1000}, {1e6, 2000}}};
  const Plan plan = plan_of(scenario(160, 4, "layout = \"contiguous\""));
  stack_of(cluster).kernels[0].forward = {16, 16, 0, 0, 1e-9, 1e-9};
  const double message = static_cast<double>(plan.forward.transfers.front().bytes);
  const double hop = 1000 + message * 1e-3;
  const Timeline timeline = predict(plan, cluster).value();
  // In every step each rank has one message that crosses between nodes.
  EXPECT_NEAR(timeline.forward.total_us, 3 * hop, 1.0);
  // Two GPUs that share a NIC share its bandwidth: one of them crosses in a ring, both in an
  // all-gather.
  const Plan all =
      plan_of(scenario(160, 4, "cp_comm_type = \"all_gather\"\nlayout = \"contiguous\""));
  cluster.between->many_peers = cluster.between->one_peer;
  const double own = predict(all, cluster).value().forward.total_us;
  cluster.nics_per_node = 1;
  const double shared = predict(all, cluster).value().forward.total_us;
  EXPECT_NEAR(shared - own, 2 * message * 1e-3, 1.0);
}

// A ring waits for the slow wire in every step; a double ring needs it once a window, and computes
// and goes on inside the windows meanwhile.
TEST(Clock, HidesTheHopsOfADoubleRingBetweenNodesBehindAWindow) {
  Cluster cluster = make_cluster(2, 2);
  stack_of(cluster).kernels[0].forward = {16, 16, 0, 0, 100, 100};
  const Plan ring = plan_of(scenario(160, 4, "layout = \"contiguous\""));
  const Plan windows = plan_of(
      scenario(160, 4, "layout = \"contiguous\"\ncp_comm_type = \"double_ring\"\nring_window = 2"));
  const double computes = predict(windows, cluster).value().forward.total_us;
  EXPECT_NEAR(predict(ring, cluster).value().forward.total_us, computes, 0.01);
  const double hop = 0.45 * computes;
  cluster.between->one_peer = {{{0, hop}, {1e9, hop}}};
  EXPECT_NEAR(predict(windows, cluster).value().forward.total_us, computes, 0.01);
  EXPECT_NEAR(predict(ring, cluster).value().forward.total_us, 3 * hop + computes / 4, 0.01);
}

TEST(Clock, RefusesWhatTheClusterCannotCarry) {
  const Cluster cluster = make_cluster(2);
  const Plan plan = plan_of(scenario(160, 4, "layout = \"contiguous\""));
  const Result<Timeline> small = predict(plan, cluster);
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().kind, ErrorKind::refused);
  EXPECT_NE(to_text(small.error()).find("has 2 GPUs, the scenario needs 4 ranks"),
            std::string::npos)
      << to_text(small.error());
  Cluster narrow = make_cluster();
  for (KernelCost& kernel : stack_of(narrow).kernels) kernel.head_dim_v = 32;
  const Result<Timeline> wide = predict(plan, narrow);
  ASSERT_FALSE(wide.ok());
  EXPECT_EQ(wide.error().kind, ErrorKind::unavailable);
}

/// Invariants of any timeline: no item begins before its inputs are ready, a stream does one thing
/// at a time, and the parts of a rank's time sum to the whole.
void expect_possible(const Plan& plan, const Timeline& timeline, bool packs, uint64_t seed) {
  std::map<std::pair<RankId, bool>, int64_t> stream_end;  // [rank, is transfer]
  std::map<BufferId, int64_t> written;                    // end of the last write
  const auto expect_after = [&](BufferId id, const ItemEvent& event, const char* what) {
    const auto at = written.find(id);
    if (at == written.end()) return;
    EXPECT_LE(at->second, event.start_ns + 1)
        << what << " of item " << event.item.index << " before buffer " << to_index(id)
        << " was written, seed " << seed;
  };
  for (const ItemEvent& event : timeline.events) {
    EXPECT_LE(event.start_ns, event.end_ns);
    const bool is_transfer = event.item.kind == StageKind::transfer;
    int64_t& end = stream_end[{event.rank, is_transfer}];
    if (!is_transfer) {
      EXPECT_LE(end, event.start_ns + 1) << "seed " << seed;
    }
    end = std::max(end, event.end_ns);
    visit_item(plan, event.item,
               Overload{[&](const ComputeItem& item) {
                          expect_after(item.q, event, "compute");
                          expect_after(item.kv, event, "compute");
                          if (event.item.direction == Direction::forward)
                            written[item.out] = event.end_ns;
                        },
                        [&](const MergeItem& item) {
                          expect_after(item.partial, event, "merge");
                          written[item.into] = event.end_ns;
                        },
                        [&](const TransferItem& item) {
                          if (!packs) written[item.to] = event.end_ns;
                        },
                        [](const auto&) {}});
  }
  for (const PassTimeline* pass : {&timeline.forward, &timeline.backward}) {
    double critical = pass->critical.waiting_us;
    for (const double us : pass->critical.kind_us) critical += us;
    EXPECT_NEAR(critical, pass->total_us, 1e-3 * pass->total_us + 0.1) << "seed " << seed;
    for (const RankTimes& rank : pass->ranks) {
      EXPECT_GE(rank.idle_us, -1e-3) << "seed " << seed;
      EXPECT_LE(rank.exposed_us, rank.transfer_us + 1e-6);
      EXPECT_LE(rank.launch_us, rank.compute_us + 1e-6) << "seed " << seed;
      EXPECT_LE(rank.partner_us, rank.exposed_us + 1e-6) << "seed " << seed;
      EXPECT_LE(rank.host_us, rank.idle_us + 1e-6) << "seed " << seed;
      for (const double part : {rank.launch_us, rank.partner_us, rank.host_us})
        EXPECT_GE(part, -1e-9) << "seed " << seed;
    }
  }
}

TEST(Clock, TellsHostTimeFromWaitingForOtherRanks) {
  Cluster cluster = make_cluster();
  Stack& stack = stack_of(cluster);
  stack.item_us = 100;
  stack.message_us = 1000;
  stack.pass_us = 7;
  stack.kernels.front().forward.launch_us = 5;
  // Two ranks with the same work: neither waits for the other one.
  const Plan even = plan_of(scenario(64, 2, "cp_comm_type = \"p2p\"", "causal"));
  const Timeline timeline = predict(even, cluster).value();
  for (const RankTimes& rank : timeline.forward.ranks) {
    EXPECT_GT(rank.host_us, 1000);
    EXPECT_NEAR(rank.host_us, rank.idle_us, 1e-6);
    EXPECT_NEAR(rank.partner_us, 0, 1e-6);
    EXPECT_NEAR(rank.launch_us, 10, 1e-9) << "one kernel a step";
  }
  // Rank 0 has one of the three parts of the work, and waits while rank 1 computes the last one.
  stack.item_us = stack.message_us = stack.pass_us = 0;
  const Plan uneven =
      plan_of(scenario(4096, 2, "cp_comm_type = \"p2p\"\nlayout = \"contiguous\"", "causal"));
  const std::vector<RankTimes> ranks = predict(uneven, cluster).value().forward.ranks;
  EXPECT_GT(ranks[0].idle_us, 0.5 * ranks[1].compute_us);
  EXPECT_NEAR(ranks[0].host_us, 0, 1e-6);
  EXPECT_NEAR(ranks[1].idle_us, 0, 1.0);
}

TEST(Clock, TellsATransferFromWaitingForTheRankThatSends) {
  Cluster cluster = make_cluster();
  cluster.inside.one_peer = cluster.inside.many_peers = {{{0, 10}, {1e12, 11}}};
  // In backward rank 1 computes for longer than rank 0, and only then sends its dK and dV.
  const Plan plan =
      plan_of(scenario(4096, 2, "cp_comm_type = \"p2p\"\nlayout = \"contiguous\"", "causal"));
  const std::vector<RankTimes> ranks = predict(plan, cluster).value().backward.ranks;
  EXPECT_GT(ranks[0].partner_us, 100);
  EXPECT_LT(ranks[0].exposed_us - ranks[0].partner_us, 50) << "the wires are fast";
  EXPECT_LT(ranks[1].partner_us, 1);
}

TEST(Clock, NeverBeginsAnItemBeforeWhatItNeeds) {
  int seen = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const Scenario drawn = random_scenario(9'200'000 + seed, {.any_dtype = true});
    if (drawn.numerics.dtype == Dtype::fp64) continue;
    const Result<Plan> plan = make_plan(drawn);
    if (!plan) continue;
    Cluster cluster = make_cluster(3, 16);
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<double>(random() % n); };
    cluster.inside.one_peer = {{{0, 1 + below(50)}, {1e5, 60 + below(100)}}};
    cluster.inside.many_peers = {{{0, 1 + below(50)}, {1e5, 60 + below(100)}}};
    cluster.between = cluster.inside;
    cluster.between->one_peer = {{{0, 1 + below(50)}, {1e5, 60 + below(1000)}}};
    cluster.device.copy_gb_s = 1 + below(50);
    Stack& stack = stack_of(cluster);
    stack.packs = seed % 2 == 0;
    stack.item_us = below(10);
    stack.backward_item_us = below(10);
    stack.message_us = below(20);
    stack.row_launch_us = below(5);
    stack.first_merge_passes = 2;
    stack.merge_passes = 3;
    stack.transfer_multiprocessors = static_cast<int32_t>(below(9));
    const Result<Timeline> timeline = predict(plan.value(), cluster);
    ASSERT_TRUE(timeline.ok()) << to_text(timeline.error());
    expect_possible(plan.value(), timeline.value(), stack.packs, seed);
    const Result<Timeline> silent = predict(plan.value(), cluster, {.keeps_events = false});
    EXPECT_DOUBLE_EQ(silent.value().forward.total_us, timeline.value().forward.total_us);
    EXPECT_DOUBLE_EQ(silent.value().backward.total_us, timeline.value().backward.total_us);
    ++seen;
  }
  EXPECT_GT(seen, 60);
}

TEST(HighWater, IsNoMoreThanAllBuffersAndHoldsWhatIsAlive) {
  const Plan plan = plan_of(scenario(256, 4, "layout = \"contiguous\""));
  const std::vector<int64_t> most = high_water_bytes(plan, false);
  for (size_t r = 0; r < most.size(); ++r) {
    int64_t all = 0, home = 0;
    for (const BufferSpec& spec : plan.buffers) {
      if (to_index(spec.rank) != static_cast<int32_t>(r)) continue;
      all += buffer_bytes(spec, plan.scenario);
      if (spec.role == BufferRole::home) home += buffer_bytes(spec, plan.scenario);
    }
    EXPECT_LE(most[r], all);
    EXPECT_GT(most[r], home * 9 / 10);
  }
  // A ring of more ranks holds less; gathered keys do not shrink.
  const std::vector<int64_t> ring8 =
      high_water_bytes(plan_of(scenario(256, 8, "layout = \"contiguous\"")), false);
  EXPECT_LT(ring8[0], most[0]);
}

/// Every buffer that one item of a stage uses.
std::vector<BufferId> touched_in(const Plan& plan, Direction direction, const Stage& stage) {
  std::vector<BufferId> ids;
  const auto add = [&](BufferId id) { ids.push_back(id); };
  for_each_item(plan.pass(direction), direction, stage, [&](const ItemId&, const auto& item) {
    visit_reads(item, add);
    visit_writes(item, add);
  });
  return ids;
}

/// Bytes of every rank in every stage, [rank][stage]: buffers used before and again later, inputs
/// and answers all the time, and messages on the wire.
IdVector<RankId, std::vector<int64_t>> bytes_in_use(const Plan& plan, Direction direction,
                                                    bool packs) {
  const Pass& pass = plan.pass(direction);
  IdVector<RankId, std::vector<int64_t>> bytes(plan.home.size(),
                                               std::vector<int64_t>(pass.stages.size(), 0));
  std::vector<std::vector<BufferId>> touched;
  for (const Stage& stage : pass.stages) touched.push_back(touched_in(plan, direction, stage));
  for (const BufferId buffer : plan.buffers.ids()) {
    const auto is_touched = [&](const std::vector<BufferId>& ids) {
      return std::find(ids.begin(), ids.end(), buffer) != ids.end();
    };
    const auto first = std::find_if(touched.begin(), touched.end(), is_touched);
    if (first == touched.end()) continue;
    const auto last = std::find_if(touched.rbegin(), touched.rend(), is_touched).base();
    const BufferSpec& spec = plan.buffer(buffer);
    for (size_t s = 0; s < touched.size(); ++s) {
      const auto here = touched.begin() + static_cast<std::ptrdiff_t>(s);
      if (spec.role == BufferRole::home || (here >= first && here < last))
        bytes[spec.rank][s] += buffer_bytes(spec, plan.scenario);
    }
  }
  for (size_t s = 0; s < pass.stages.size() && packs; ++s) {
    const Stage& stage = pass.stages[s];
    if (stage.kind != StageKind::transfer) continue;
    for (auto i = static_cast<size_t>(stage.begin); i < static_cast<size_t>(stage.end); ++i) {
      const TransferItem& item = pass.transfers[i];
      if (item.src == item.dst) continue;
      for (const RankId rank : {item.src, item.dst}) bytes[rank][s] += item.bytes;
    }
  }
  return bytes;
}

// Eight steps of 512 rows, 4 heads, 64 elements of 2 bytes and an lse. TransformerEngine's merge in
// two phases keeps the results of all steps. Memory is fullest in the seventh, the last one with
// keys in both slots of the ring, when six results are kept.
TEST(HighWater, CountsThePartialResultsThatAMergeInTwoPhasesKeeps) {
  const std::string ring = scenario(4096, 8, "layout = \"contiguous\"");
  const auto forward_of = [&](const std::string& accumulate) {
    return high_water_bytes(
        plan_of(ring + "[numerics]\nbackward = false\naccumulate = \"" + accumulate + "\"\n"),
        false);
  };
  const std::vector<int64_t> one = forward_of("fp32"), all = forward_of("dtype");
  for (size_t rank = 0; rank < 8; ++rank)
    EXPECT_EQ(all[rank] - one[rank], 6 * 512 * 4 * (64 * 2 + 4)) << "rank " << rank;
}

TEST(HighWater, IsTheMostOfAnyStageWrittenOut) {
  int32_t seen = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Result<Plan> made = make_plan(random_scenario(9'300'000 + seed));
    if (!made) continue;
    const Plan& plan = made.value();
    ++seen;
    for (const bool packs : {false, true}) {
      IdVector<RankId, int64_t> most(plan.home.size(), 0);
      for (const Direction direction : kDirections) {
        const auto bytes = bytes_in_use(plan, direction, packs);
        for (const RankId rank : most.ids())
          for (const int64_t now : bytes[rank]) most[rank] = std::max(most[rank], now);
      }
      EXPECT_EQ(high_water_bytes(plan, packs), most.values())
          << "seed " << seed << ", packs " << packs;
    }
  }
  EXPECT_GT(seen, 30);
}

}  // namespace
}  // namespace cpscope
