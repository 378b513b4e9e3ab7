#include "sim/base/id_vector.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"
#include "tests/program/timeline_case.h"
#include "tests/support/kineto_trace.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using testing_support::KinetoTrace;

/// A scenario, and one Kineto trace of three layers for each of its ranks: 0.json, 1.json, ...
struct TracedRun {
  std::string scenario, files;
};

TracedRun trace_run(const std::string& parallel) {
  TracedRun run{write_file("traced.toml",
                           small_scenario(parallel, "lengths = [256]", "", "dtype = \"bf16\"")),
                ""};
  const Result<LoadedScenario> loaded = load_scenario(run.scenario);
  EXPECT_TRUE(loaded.ok()) << to_text(loaded.error());
  const Result<Plan> plan = make_plan(loaded.value().scenario);
  EXPECT_TRUE(plan.ok()) << to_text(plan.error());
  for (const RankId rank : plan.value().home.ids()) {
    KinetoTrace trace(to_index(rank), static_cast<int64_t>(plan.value().home.size()));
    for (int64_t layer = 0; layer < 3; ++layer)
      testing_support::add_layer(trace, plan.value(), rank, layer * 20'000'000);
    trace.add_collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "allreduce", 90'000'000,
                         5'000, 64, 64, 4, "Float");
    const std::string name = std::to_string(to_index(rank)) + ".json";
    write_file(name, trace.text());
    run.files += " " + name;
  }
  return run;
}

TEST(MeasuredTraces, AreLaidBesideThePlanItemByItem) {
  const TracedRun traced = trace_run("cp_size = 4");
  const ProgramRun run =
      run_timeline(traced.scenario, "--json --layer 2 --trace both.json --measured" + traced.files);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json timeline = Json::parse(run.out);
  const Json& measured = timeline["measured"];
  EXPECT_EQ(measured["source"], "4 Kineto traces");
  EXPECT_EQ(measured["layers"], 3);
  EXPECT_EQ(measured["layer"], 2);
  for (const char* pass : {"forward", "backward"}) {
    EXPECT_EQ(measured[pass]["only_predicted"], 0) << pass;
    EXPECT_EQ(measured[pass]["only_measured"], 0) << pass;
    ASSERT_EQ(measured[pass]["ranks"].size(), 4U);
    for (const Json& rank : measured[pass]["ranks"]) {
      EXPECT_EQ(rank["missing_computes"], 0);
      EXPECT_EQ(rank["missing_transfers"], 0);
      EXPECT_EQ(rank["unknown_transfers"], 0);
      EXPECT_EQ(rank["steps"].size(), 4U);
      EXPECT_GT(rank["exposed_us"].get<double>(), 0);
    }
  }
  ASSERT_EQ(measured["not_in_plan"].size(), 1U);
  EXPECT_EQ(measured["not_in_plan"][0]["kind"], "other_collective");
  EXPECT_EQ(measured["not_in_plan"][0]["count"], 4);
  EXPECT_TRUE(measured["unknown"].empty());
  // Attention of the generator takes 30 us forward, and 32 with its helper backward.
  for (const Json& item : measured["items"]) {
    if (item["kind"] != "compute") continue;
    EXPECT_EQ(item["end_ns"].get<int64_t>() - item["start_ns"].get<int64_t>(),
              item["pass"] == "forward" ? 30'000 : 32'000);
  }
  // The trace that was written is read again to the nanosecond.
  const ProgramRun again = run_timeline(traced.scenario, "--json --measured both.json");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  std::map<std::string, Json> first, second;
  for (const Json& item : measured["items"])
    first[item["pass"].dump() + item["kind"].dump() + item["index"].dump()] = item;
  const Json reread = Json::parse(again.out)["measured"];
  EXPECT_EQ(reread["source"], "a trace of cpscope");
  for (const Json& item : reread["items"])
    second[item["pass"].dump() + item["kind"].dump() + item["index"].dump()] = item;
  EXPECT_EQ(first, second);
  for (size_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(reread["forward"]["ranks"][rank]["exposed_us"],
              measured["forward"]["ranks"][rank]["exposed_us"]);
}

/// Its hops are all-to-alls that send everything to the next rank.
TEST(MeasuredTraces, OfPyTorchsRingOnTwoGpusAreFoundItemByItem) {
  const std::string record = std::string(CPSCOPE_SOURCE_DIR) + "/tests/records/torch_ring";
  const ProgramRun run =
      run_timeline(record + ".toml",
                   "--json --measured " + record + ".rank0.json.gz " + record + ".rank1.json.gz");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json measured = Json::parse(run.out)["measured"];
  EXPECT_EQ(measured["source"], "2 Kineto traces");
  EXPECT_EQ(measured["layers"], 3);
  // PyTorch's ring sends keys and values one hop further than anyone reads them.
  ASSERT_EQ(measured["unknown"].size(), 1U) << measured["unknown"];
  EXPECT_EQ(measured["unknown"][0]["kind"], "exchange");
  EXPECT_EQ(measured["unknown"][0]["count"], 2);
  for (const char* pass : {"forward", "backward"}) {
    ASSERT_EQ(measured[pass]["ranks"].size(), 2U);
    for (const Json& rank : measured[pass]["ranks"]) {
      EXPECT_EQ(rank["missing_computes"], 0) << pass << rank;
      EXPECT_EQ(rank["missing_transfers"], 0) << pass << rank;
      EXPECT_EQ(rank["unknown_transfers"], 0) << pass << rank;
    }
  }
}

TEST(MeasuredTraces, OfAPredictionAreThePredictionAgain) {
  for (const std::string& parallel : timeline_parallels()) {
    SCOPED_TRACE(parallel);
    const std::string scenario = bf16_scenario(parallel);
    ASSERT_EQ(run_timeline(scenario, "--trace predicted.json").exit_code, 0);
    const ProgramRun run = run_timeline(scenario, "--json --measured predicted.json");
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const Json timeline = Json::parse(run.out);
    std::vector<Json> predicted = timeline["items"], measured = timeline["measured"]["items"];
    ASSERT_EQ(predicted.size(), measured.size());
    const auto key = [](const Json& item) { return item.dump(); };
    std::map<std::string, int> counts;
    for (const Json& item : predicted) ++counts[key(item)];
    for (const Json& item : measured) --counts[key(item)];
    for (const auto& [item, count] : counts) EXPECT_EQ(count, 0) << item;
    for (const Json& kind : timeline["measured"]["forward"]["kinds"])
      EXPECT_EQ(kind["error_percent"], 0.0) << kind;
    EXPECT_NE(timeline["measured"]["source"].get<std::string>().find("prediction"),
              std::string::npos);
  }
}

TEST(MeasuredTraces, AreSaidInWords) {
  const TracedRun traced = trace_run("cp_size = 4\ncp_comm_type = \"all_gather\"");
  const ProgramRun median = run_timeline(traced.scenario, "--measured" + traced.files);
  ASSERT_EQ(median.exit_code, 0) << median.err;
  for (const char* words :
       {"measured: 4 Kineto traces; layer ", " of 0 to 2, the one of median duration",
        "forward, measured (predicted), ms", "backward, predicted and measured", "waits before"})
    EXPECT_NE(median.out.find(words), std::string::npos) << words << '\n' << median.out;
  const ProgramRun last = run_timeline(traced.scenario, "--layer 2 --measured" + traced.files);
  for (const char* words :
       {"layer 2 of 0 to 2\n",
        "not in the plan: 4 x other_collective of unknown size, 0.020 ms: ncclDevKernel_AllReduce"})
    EXPECT_NE(last.out.find(words), std::string::npos) << words << '\n' << last.out;
  // One rank alone is enough.
  const ProgramRun one = run_timeline(traced.scenario, "--json --measured 2.json");
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(Json::parse(one.out)["measured"]["forward"]["ranks"].size(), 1U);
  EXPECT_EQ(Json::parse(one.out)["measured"]["forward"]["only_predicted"], 0);
}

TEST(MeasuredTraces, AreDrawnBesideThePrediction) {
  const TracedRun traced = trace_run("cp_size = 4");
  const std::string render = "render " + traced.scenario + " --view timeline --out both.svg";
  const ProgramRun both = run_cpscope(
      render + " --cluster " CPSCOPE_CLUSTERS "/h200_ib.toml --measured" + traced.files);
  ASSERT_EQ(both.exit_code, 0) << both.err;
  std::string picture = read_text(work_folder() / "both.svg");
  for (const char* words :
       {"(predicted, not measured)", "4 Kineto traces, layer ", "those of 4 Kineto traces, layer "})
    EXPECT_NE(picture.find(words), std::string::npos) << words;
  const ProgramRun alone = run_cpscope(render + " --layer 0 --measured" + traced.files);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  picture = read_text(work_folder() / "both.svg");
  EXPECT_NE(picture.find("4 Kineto traces, layer 0 of 0 to 2: "), std::string::npos);
  EXPECT_EQ(picture.find("not measured"), std::string::npos);
  std::filesystem::remove(work_folder() / "both.svg");
  write_file("empty.json", "{\"traceEvents\":[]}");
  EXPECT_EQ(run_cpscope(render + " --measured 0=empty.json").exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(work_folder() / "both.svg"));
}

TEST(MeasuredTraces, AreRejectedWithTheReason) {
  const TracedRun traced = trace_run("cp_size = 2");
  ASSERT_EQ(run_timeline(traced.scenario, "--trace ours.json").exit_code, 0);
  const std::string other = bf16_scenario("cp_size = 2\nlayout = \"contiguous\"");
  write_file("broken.json", "{\"traceEvents\":[{\"ph\":\"X\"");
  struct Case {
    std::string scenario, options, words;
  };
  const std::vector<Case> cases = {
      {other, "--measured ours.json", "a trace of another plan"},
      {traced.scenario, "--measured ours.json 0.json", "a trace of cpscope holds all ranks"},
      {traced.scenario, "--measured ours.json --layer 1", "holds layer 0 alone"},
      {traced.scenario, "--measured broken.json", "broken.json: the JSON is broken at byte"},
      {traced.scenario, "--measured nowhere.json", "cannot be opened"},
      {traced.scenario, "--measured 0.json --layer 3", "layers 0 to 2: 3"},
      {traced.scenario, "--measured 7=0.json", "rank 7"},
      {traced.scenario, "--measured 0.json 1=0.json --trace 0.json", "would replace a file"},
      {traced.scenario, "--measured 1=0.json --trace 0.json", "would replace a file"},
      {traced.scenario, "--layer 1", "--measured"},
      {traced.scenario, "--measured 0.json --record 0.json", "excludes"},
  };
  for (const Case& each : cases) {
    const ProgramRun run = run_timeline(each.scenario, each.options);
    EXPECT_EQ(run.exit_code, 2) << each.options << run.err;
    EXPECT_NE(run.err.find(each.words), std::string::npos) << each.options << ": " << run.err;
    EXPECT_TRUE(run.out.empty()) << each.options;
  }
}

}  // namespace
}  // namespace cpscope::tests
