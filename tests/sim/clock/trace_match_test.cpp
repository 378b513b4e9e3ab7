#include "sim/clock/trace_match.h"

#include "sim/clock/trace_layers.h"
#include "sim/clock/trace_ranks.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/kineto_trace.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace cpscope {
namespace {

using testing_support::add_layer;
using testing_support::kAttentionBackward;
using testing_support::kAttentionForward;
using testing_support::KinetoTrace;
using testing_support::kSendRecv;
using testing_support::PlannedTimes;

Plan measured_plan(const std::string& parallel, const std::string& numerics = "") {
  const Result<LoadedScenario> loaded = parse_scenario(
      "schema = 1\n[attention]\nheads = 8\nkv_heads = 4\nhead_dim = 64\n[batch]\nlengths = [256]\n"
      "[parallel]\n" +
          parallel + "\n[numerics]\ndtype = \"bf16\"\n" + numerics,
      "measured.toml");
  EXPECT_TRUE(loaded.ok()) << to_text(loaded.error());
  Result<Plan> plan = make_plan(loaded.value().scenario);
  EXPECT_TRUE(plan.ok()) << to_text(plan.error());
  return std::move(plan).value();
}

/// Traces as files that go with the object.
class TraceFolder {
 public:
  TraceFolder()
      : folder_(std::filesystem::temp_directory_path() / fmt::format("traces-{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~TraceFolder() { std::filesystem::remove_all(folder_); }
  TraceFolder(const TraceFolder&) = delete;
  TraceFolder& operator=(const TraceFolder&) = delete;

  void add(const std::string& text, std::optional<int64_t> rank = std::nullopt) {
    const std::string path = (folder_ / fmt::format("{}.json", sources.size())).string();
    std::ofstream(path, std::ios::binary) << text;
    sources.push_back({path, rank});
  }

  std::vector<TraceSource> sources;

 private:
  std::filesystem::path folder_;
};

int64_t layer_step_ns(int64_t layer) { return 10'000'000 * layer; }

/// One trace a rank, of so many layers, each with times of its own; the items of one of them.
PlannedTimes write_layers(const Plan& plan, int64_t layers, int64_t of_layer, TraceFolder& folder) {
  PlannedTimes times;
  const auto ranks = static_cast<int64_t>(plan.home.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    KinetoTrace trace(rank, ranks);
    for (int64_t layer = 0; layer < layers; ++layer)
      add_layer(trace, plan, RankId{static_cast<int32_t>(rank)}, layer_step_ns(layer) + 500 * rank,
                layer == of_layer ? &times : nullptr);
    folder.add(trace.text());
  }
  return times;
}

/// The events are those that were written, moved as a whole: the forward to 0, the backward behind
/// it.
void expect_times(const TraceMatch& match, const PlannedTimes& times) {
  ASSERT_EQ(match.events.size(), times.size());
  ByDirection<int64_t> first{INT64_MAX, INT64_MAX}, last{0, 0};
  for (const auto& [item, time] : times) {
    first[std::get<0>(item)] = std::min(first[std::get<0>(item)], time.first);
    last[std::get<0>(item)] = std::max(last[std::get<0>(item)], time.second);
  }
  const ByDirection<int64_t> moved{-first.forward, last.forward - first.forward - first.backward};
  for (const ItemEvent& event : match.events) {
    const auto time = times.find({event.item.direction, event.item.kind, event.item.index});
    ASSERT_NE(time, times.end()) << to_name(event.item.kind) << ' ' << event.item.index;
    const std::string item = fmt::format("{} {} {}", to_name(event.item.direction),
                                         to_name(event.item.kind), event.item.index);
    EXPECT_EQ(event.start_ns, time->second.first + moved[event.item.direction]) << item;
    EXPECT_EQ(event.end_ns, time->second.second + moved[event.item.direction]) << item;
  }
}

TEST(TraceMatch, FindsEveryItemOfEveryKindOfCommunication) {
  for (const std::string& parallel :
       {std::string("cp_size = 4"), std::string("cp_size = 2\nlayout = \"contiguous\""),
        std::string("cp_size = 4\ncp_comm_type = \"a2a\""),
        std::string("cp_size = 4\ncp_comm_type = \"all_gather\"")}) {
    SCOPED_TRACE(parallel);
    const Plan plan = measured_plan(parallel);
    for (const int64_t layers : {1, 3}) {
      TraceFolder folder;
      const PlannedTimes times = write_layers(plan, layers, layers - 1, folder);
      const Result<TraceMatch> match = match_traces(plan, folder.sources, layers - 1);
      ASSERT_TRUE(match.ok()) << to_text(match.error());
      EXPECT_EQ(match.value().layers, layers);
      expect_times(match.value(), times);
      EXPECT_TRUE(match.value().strange.empty()) << match.value().strange.front().name;
      for (const RankMeasured& rank : match.value().ranks) {
        for (const Direction direction : kDirections) {
          const PassFigures& pass = rank.pass(direction);
          EXPECT_EQ(pass.missing_computes + pass.missing_transfers + pass.unknown_transfers, 0);
          EXPECT_NEAR(pass.attention_us + pass.exposed_us + pass.other_us + pass.idle_us,
                      pass.total_us, 1e-6);
        }
      }
    }
  }
}

TEST(TraceMatch, MeasuresWhatIsExposedAndWhatWaits) {
  // Attention 0 to 100 and 150 to 250 us; the transfer 20 to 130; another kernel 135 to 140.
  const Plan plan = measured_plan("cp_size = 2", "backward = false");
  const int64_t bytes = plan.forward.transfers.front().bytes;
  KinetoTrace trace(0, 2);
  trace.add_kernel(kAttentionForward, 0, 100'000);
  trace.add_batch(20'000, 110'000, {{"send", bytes / 2}, {"recv", bytes / 2}});
  trace.add_kernel("void elementwise(int)", 135'000, 5'000);
  trace.add_kernel(kAttentionForward, 150'000, 100'000);
  // Of other parallelism: not the plan's.
  trace.add_collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "allreduce", 240'000, 30'000,
                       10, 10, 2, "Float");
  TraceFolder folder;
  folder.add(trace.text());
  const Result<TraceMatch> match = match_traces(plan, folder.sources);
  ASSERT_TRUE(match.ok()) << to_text(match.error());
  ASSERT_EQ(match.value().ranks.size(), 1U);
  const PassFigures& pass = match.value().ranks[0].forward;
  EXPECT_NEAR(pass.total_us, 250, 1e-9);
  EXPECT_NEAR(pass.attention_us, 200, 1e-9);
  EXPECT_NEAR(pass.transfer_us, 120, 1e-9) << "110 us of the plan's, 10 of the other until the end";
  EXPECT_NEAR(pass.exposed_us, 30, 1e-9);
  EXPECT_NEAR(pass.other_us, 5, 1e-9);
  EXPECT_NEAR(pass.idle_us, 15, 1e-9);
  ASSERT_EQ(pass.steps.size(), 2U);
  EXPECT_NEAR(pass.steps[0].exposed_us, 30, 1e-9);
  EXPECT_NEAR(pass.steps[0].transfer_us, 110, 1e-9);
  EXPECT_NEAR(pass.steps[1].gap_us, 50, 1e-9);
  EXPECT_EQ(pass.steps[1].transfer_us, 0);
  ASSERT_EQ(match.value().strange.size(), 1U);
  EXPECT_EQ(match.value().strange[0].work, TraceWork::other_collective);
  EXPECT_FALSE(match.value().strange[0].is_unknown);
  EXPECT_EQ(match.value().find(RankId{1}), nullptr) << "rank 1 has no trace";
}

TEST(TraceMatch, TakesKernelsThatLastNoTime) {
  const Plan plan = measured_plan("cp_size = 2", "backward = false");
  KinetoTrace trace(0, 2);
  trace.add_kernel(kAttentionForward, 0, 0);
  trace.add_kernel(kAttentionForward, 5'000, 1'000);
  TraceFolder folder;
  folder.add(trace.text());
  const Result<TraceMatch> match = match_traces(plan, folder.sources);
  ASSERT_TRUE(match.ok()) << to_text(match.error());
  const PassFigures& pass = match.value().ranks[0].forward;
  EXPECT_NEAR(pass.total_us, 6, 1e-9);
  ASSERT_EQ(pass.steps.size(), 2U);
  EXPECT_EQ(pass.steps[0].attention_us, 0);
  EXPECT_NEAR(pass.steps[1].gap_us, 5, 1e-9);
}

TEST(TraceMatch, SaysWhatIsMissingAndWhatIsNotInThePlan) {
  const Plan plan = measured_plan("cp_size = 2", "backward = false");
  const int64_t bytes = plan.forward.transfers.front().bytes;
  KinetoTrace trace(1, 2);
  trace.add_kernel(kAttentionForward, 0, 100'000);
  trace.add_batch(20'000, 110'000, {{"send", bytes}, {"recv", bytes}});  // twice the plan's
  trace.add_kernel(kAttentionForward, 150'000, 100'000);
  TraceFolder folder;
  folder.add(trace.text());
  const Result<TraceMatch> match = match_traces(plan, folder.sources);
  ASSERT_TRUE(match.ok()) << to_text(match.error());
  EXPECT_EQ(match.value().ranks[0].forward.missing_transfers, 1);
  EXPECT_EQ(match.value().ranks[0].forward.missing_computes, 0);
  ASSERT_EQ(match.value().strange.size(), 1U);
  EXPECT_EQ(match.value().strange[0].bytes, 2 * bytes);
  EXPECT_EQ(match.value().events.size(), 2U);
}

TEST(TraceMatch, LeavesUnknownWhatMayBeAnyOfSeveralMessages) {
  const Plan plan = measured_plan("cp_size = 2", "backward = false");
  const int64_t bytes = plan.forward.transfers.front().bytes;
  KinetoTrace trace(0, 2);
  trace.add_kernel(kAttentionForward, 0, 100'000);
  for (const int64_t at : {20'000, 60'000}) trace.add_batch(at, 30'000, {{"send", bytes / 2}});
  trace.add_kernel(kAttentionForward, 150'000, 100'000);
  TraceFolder folder;
  folder.add(trace.text());
  const Result<TraceMatch> match = match_traces(plan, folder.sources);
  ASSERT_TRUE(match.ok()) << to_text(match.error());
  EXPECT_EQ(match.value().ranks[0].forward.unknown_transfers, 1);
  EXPECT_EQ(match.value().events.size(), 2U) << "no transfer is guessed";
  ASSERT_EQ(match.value().strange.size(), 1U);
  EXPECT_EQ(match.value().strange[0].count, 2);
  EXPECT_TRUE(match.value().strange[0].is_unknown);
}

TEST(TraceMatch, DoesNotCutAttentionThatIsNoMultipleOfThePlan) {
  const Plan plan = measured_plan("cp_size = 2", "backward = false");
  KinetoTrace trace(0, 2);
  for (int64_t i = 0; i < 3; ++i) trace.add_kernel(kAttentionForward, 100'000 * i, 50'000);
  TraceFolder folder;
  folder.add(trace.text());
  const Result<TraceMatch> match = match_traces(plan, folder.sources);
  ASSERT_TRUE(match.ok()) << to_text(match.error());
  EXPECT_TRUE(match.value().events.empty());
  EXPECT_EQ(match.value().ranks[0].forward.missing_computes, 2);
  ASSERT_EQ(match.value().notes.size(), 1U);
  EXPECT_NE(match.value().notes[0].find("rank 0: 3 forward and 0 backward attention calls are no "
                                        "multiple of the plan's 2 and 0"),
            std::string::npos)
      << match.value().notes[0];
}

TEST(TraceMatch, TakesTheLayerOfMedianDurationUnlessOneIsNamed) {
  const Plan plan = measured_plan("cp_size = 2", "backward = false");
  KinetoTrace trace(0, 2);
  // Layers of 500, 300 and 400 us.
  int64_t now = 0;
  for (const int64_t gap : {400'000, 200'000, 300'000}) {
    trace.add_kernel(kAttentionForward, now, 50'000);
    trace.add_kernel(kAttentionForward, now + 50'000 + gap, 50'000);
    now += 10'000'000;
  }
  TraceFolder folder;
  folder.add(trace.text());
  const Result<TraceMatch> median = match_traces(plan, folder.sources);
  ASSERT_TRUE(median.ok()) << to_text(median.error());
  EXPECT_EQ(median.value().layers, 3);
  EXPECT_EQ(median.value().layer, 2);
  EXPECT_FALSE(median.value().has_layer_choice);
  EXPECT_NEAR(median.value().ranks[0].forward.total_us, 400, 1e-9);
  const Result<TraceMatch> first = match_traces(plan, folder.sources, 0);
  ASSERT_TRUE(first.ok());
  EXPECT_NEAR(first.value().ranks[0].forward.total_us, 500, 1e-9);
  const Result<TraceMatch> none = match_traces(plan, folder.sources, 3);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(to_text(none.error()).find("layers 0 to 2: 3"), std::string::npos);
}

/// The kinds of passes and their pairs: "F0 B1 | 0-1".
std::string show_layers(const RankLayers& layers) {
  std::string text;
  for (const LayerPass& pass : layers.passes)
    text += pass.direction == Direction::forward ? 'F' : 'B';
  for (const TraceLayer& layer : layers.layers)
    text += fmt::format(" {}-{}", layer.forward, layer.backward);
  return text;
}

RankLayers layers_of(const Plan& plan, const std::string& calls) {
  RankTrace trace;
  trace.work.names = {""};
  for (size_t i = 0; i < calls.size(); ++i) {
    TraceSpan span;
    span.work = TraceWork::attention;
    span.direction = calls[i] == 'F' || calls[i] == 'f' ? Direction::forward : Direction::backward;
    span.helper = calls[i] == 'b' ? HelperPlace::behind : HelperPlace::none;
    span.time = {static_cast<int64_t>(100 * i), static_cast<int64_t>(100 * i + 50)};
    trace.work.spans.push_back(span);
  }
  return find_layers(plan, trace);
}

TEST(TraceLayers, PairTheBackwardWithItsForward) {
  const Plan plan = measured_plan("cp_size = 2");
  EXPECT_EQ(show_layers(layers_of(plan, "FFFFbBbBbBbB")), "FFBB 0-3 1-2") << "layer after layer";
  EXPECT_EQ(show_layers(layers_of(plan, "FFBBFFBB")), "FBFB 0-1 2-3") << "iterations";
  EXPECT_EQ(show_layers(layers_of(plan, "FFFF")), "FF 0--1 1--1") << "inference";
  // Activation checkpointing computes every forward again.
  const RankLayers again = layers_of(plan, "FFFFFFBBFFBB");
  EXPECT_EQ(show_layers(again), "FFFBFB 2-3 4-5");
  EXPECT_EQ(again.recomputed, 2);
  EXPECT_NE(layers_of(plan, "FFFBB").fault, "");
  EXPECT_EQ(show_layers(layers_of(plan, "")), "");
}

TEST(TraceLayers, CountSeveralKernelsOfAComputeItemByTheBytes) {
  const Plan plan = measured_plan("cp_size = 2\ncp_comm_type = \"all_gather\"", "backward = false");
  ASSERT_EQ(busy_computes(plan, Direction::forward, RankId{0}).size(), 1U);
  const std::vector<StageShare> shares = stage_shares(plan, Direction::forward, RankId{0});
  ASSERT_EQ(shares.size(), 1U);
  KinetoTrace trace(0, 2);
  // One gather, then two kernels for the two chunks of the rank.
  trace.add_collective("ncclDevKernel_AllGather_RING_LL(x)", "_allgather_base", 0, 10'000,
                       shares[0].sent / 2, shares[0].sent, 2);
  trace.add_kernel(kAttentionForward, 20'000, 10'000);
  trace.add_kernel(kAttentionForward, 40'000, 10'000);
  TraceFolder folder;
  folder.add(trace.text());
  const Result<TraceMatch> match = match_traces(plan, folder.sources);
  ASSERT_TRUE(match.ok()) << to_text(match.error());
  EXPECT_EQ(match.value().layers, 1);
  ASSERT_EQ(match.value().events.size(), 2U);
  EXPECT_EQ(match.value().events[0].end_ns - match.value().events[0].start_ns, 30'000);
  ASSERT_EQ(match.value().notes.size(), 1U);
  EXPECT_EQ(match.value().notes[0], "forward: 2 attention calls for each compute item");
}

TEST(TraceMatch, KnowsRanksByTheirGroupAndRejectsWhatIsNotClear) {
  const Plan plan = measured_plan("cp_size = 2", "backward = false");
  const auto text_of = [&](int64_t rank, int64_t world, const std::string& groups) {
    KinetoTrace trace(rank, world);
    trace.groups = groups;
    trace.add_kernel(kAttentionForward, 0, 1'000);
    trace.add_kernel(kAttentionForward, 2'000, 1'000);
    return trace.text();
  };
  const std::string group =
      R"({"pg_name": "7", "ranks": [1, 3]}, {"pg_name": "8", "ranks": [2, 3, 4]})";
  struct Case {
    std::vector<std::pair<std::string, std::optional<int64_t>>> files;
    std::string words;  // of the error; empty: none
  };
  const std::vector<Case> cases = {
      {{{text_of(3, 4, group), {}}, {text_of(1, 4, group), {}}}, ""},
      {{{text_of(0, 2, ""), {}}, {text_of(0, 2, ""), 1}}, ""},
      {{{text_of(0, 4, group), {}}}, "rank 0 of 4 is in 0 groups of cp_size = 2 ranks"},
      {{{text_of(0, 2, ""), {}}, {text_of(0, 2, ""), {}}}, "rank 0 has two traces"},
      {{{text_of(5, 2, ""), {}}}, "a trace of rank 5, and the scenario has ranks 0 to 1"},
      {{{R"([{"ph":"X","name":"flash fwd","pid":9,"ts":1,"dur":1}])", {}}},
       "does not say of which rank it is: process 9"},
  };
  for (const Case& each : cases) {
    TraceFolder folder;
    for (const auto& [text, rank] : each.files) folder.add(text, rank);
    const Result<TraceMatch> match = match_traces(plan, folder.sources);
    if (each.words.empty()) {
      ASSERT_TRUE(match.ok()) << to_text(match.error());
      EXPECT_EQ(match.value().ranks.size(), 2U);
      continue;
    }
    ASSERT_FALSE(match.ok()) << each.words;
    EXPECT_NE(to_text(match.error()).find(each.words), std::string::npos) << to_text(match.error());
  }
  EXPECT_EQ(parse_trace_source("3=a.json").rank, 3);
  EXPECT_EQ(parse_trace_source("3=a.json").path, "a.json");
  EXPECT_EQ(parse_trace_source("./3=a.json").rank, std::nullopt);
  EXPECT_EQ(parse_trace_source("-3=a.json").path, "-3=a.json");
}

TEST(TraceMatch, RejectsRanksWithDifferentNumbersOfLayers) {
  const Plan plan = measured_plan("cp_size = 2", "backward = false");
  TraceFolder folder;
  for (const int64_t rank : {0, 1}) {
    KinetoTrace trace(rank, 2);
    for (int64_t i = 0; i < 2 + 2 * rank; ++i)
      trace.add_kernel(kAttentionForward, 10'000 * i, 1'000);
    folder.add(trace.text());
  }
  const Result<TraceMatch> match = match_traces(plan, folder.sources);
  ASSERT_FALSE(match.ok());
  EXPECT_NE(to_text(match.error()).find("different numbers of layers: 1 of rank 0, 2 of rank 1"),
            std::string::npos)
      << to_text(match.error());
}

TEST(TraceMatch, LetsEveryRankBeginAtZeroWhereClocksDoNotAgree) {
  const Plan plan = measured_plan("cp_size = 2", "backward = false");
  TraceFolder folder;
  for (const int64_t rank : {0, 1}) {
    KinetoTrace trace(rank, 2);
    trace.base_ns += 3'600'000'000'000 * rank;  // an hour
    trace.add_kernel(kAttentionForward, 0, 1'000);
    trace.add_kernel(kAttentionForward, 2'000, 1'000);
    folder.add(trace.text());
  }
  const Result<TraceMatch> match = match_traces(plan, folder.sources);
  ASSERT_TRUE(match.ok()) << to_text(match.error());
  for (const ItemEvent& event : match.value().events) EXPECT_LE(event.end_ns, 3'000);
  ASSERT_FALSE(match.value().notes.empty());
  EXPECT_NE(match.value().notes.back().find("clocks"), std::string::npos);
}

TEST(TraceMatch, FindsTheRingOfRingFlashAttentionInItsOwnTraces) {
  if (!has_gzip()) GTEST_SKIP() << "requires zlib: this build reads no packed traces";
  const Result<LoadedScenario> loaded = parse_scenario(
      "schema = 1\n[attention]\nheads = 8\nkv_heads = 2\nhead_dim = 64\n[batch]\nqkv_format = "
      "\"bshd\"\nbatch_size = 1\nseqlen = 256\n[parallel]\ncp_size = 2\n[numerics]\ndkv_hops = "
      "\"ring\"\ndkv_wire = \"fp32\"\n",
      "ring.toml");
  ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
  const Result<Plan> plan = make_plan(loaded.value().scenario);
  ASSERT_TRUE(plan.ok());
  const std::string folder =
      std::string(CPSCOPE_SOURCE_DIR) + "/tests/records/ring_flash_attn.rank";
  const Result<TraceMatch> match =
      match_traces(plan.value(), {{folder + "1.json.gz"}, {folder + "0.json.gz"}});
  ASSERT_TRUE(match.ok()) << to_text(match.error());
  EXPECT_EQ(match.value().layers, 2);
  // Of each rank 2 computes and 1 transfer forward, 2 and 3 backward.
  EXPECT_EQ(match.value().events.size(), 16U);
  EXPECT_TRUE(match.value().strange.empty());
  for (const RankMeasured& rank : match.value().ranks) {
    for (const Direction direction : kDirections) {
      const PassFigures& pass = rank.pass(direction);
      EXPECT_EQ(pass.missing_computes + pass.missing_transfers + pass.unknown_transfers, 0);
      EXPECT_GT(pass.exposed_us, 0);
    }
  }
}

}  // namespace
}  // namespace cpscope
