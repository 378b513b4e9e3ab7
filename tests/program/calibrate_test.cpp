// `cpscope calibrate` on machines whose constants are known: executors that answer with the clock's
// own predictions.
#include "sim/app/predict/calibrate.h"

#include "sim/app/cli/program.h"
#include "sim/app/predict/calibration_samples.h"
#include "sim/app/predict/calibration_shapes.h"
#include "sim/clock/clock.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"
#include "tests/program/known_machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokens = 512;

CalibrationRequest request_for(Executor& kernels, Executor* group) {
  CalibrationRequest request;
  request.kernels = &kernels;
  request.group = group;
  request.name = "mine";
  request.date = "2026-11-21";
  request.command = "cpscope calibrate";
  request.repeats = 1;
  request.max_tokens = kTokens;
  return request;
}

void expect_near(double fitted, double known, double share, const std::string& what) {
  EXPECT_NEAR(fitted, known, share * known) << what;
}

void expect_same(const TileCost& fitted, const TileCost& known, double share,
                 const std::string& what) {
  EXPECT_EQ(fitted.tile_rows, known.tile_rows) << what;
  EXPECT_EQ(fitted.tile_keys, known.tile_keys) << what;
  expect_near(fitted.launch_us, known.launch_us, share, what + " launch_us");
  expect_near(fitted.owned_us, known.owned_us, share, what + " owned_us");
  expect_near(fitted.whole_us, known.whole_us, share, what + " whole_us");
  expect_near(fitted.masked_us, known.masked_us, share, what + " masked_us");
}

TEST(Calibration, GivesBackEveryConstantOfAKnownMachine) {
  const Cluster known = known_machine();
  PredictedExecutor cuda("cuda", known, 1), nccl("nccl", known, 4);
  const Result<Calibration> done = calibrate(request_for(cuda, &nccl));
  ASSERT_TRUE(done.ok()) << to_text(done.error());
  const Result<Cluster> read = parse_cluster(print_cluster(done.value().cluster), "mine.toml");
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  const Cluster& mine = read.value();
  EXPECT_EQ(mine.name, "mine");
  EXPECT_EQ(mine.gpus_per_node, 4);
  EXPECT_EQ(mine.device.name, known.device.name);
  EXPECT_EQ(mine.device.multiprocessors, known.device.multiprocessors);
  EXPECT_EQ(mine.device.memory_gib, known.device.memory_gib);
  expect_near(mine.device.copy_gb_s, known.device.copy_gb_s, 0.02, "copy_gb_s");
  ASSERT_EQ(mine.stacks.size(), 1U);
  const Stack &fitted = mine.stacks[0], &expected = known.stacks[0];
  EXPECT_EQ(fitted.name, "cpscope");
  ASSERT_EQ(fitted.kernels.size(), expected.kernels.size());
  for (size_t i = 0; i < expected.kernels.size(); ++i) {
    const std::string what = fmt::format("kernel {}", i);
    EXPECT_EQ(fitted.kernels[i].head_dim_qk, expected.kernels[i].head_dim_qk) << what;
    EXPECT_EQ(fitted.kernels[i].bits, expected.kernels[i].bits) << what;
    expect_same(fitted.kernels[i].forward, expected.kernels[i].forward, 0.02, what + " forward");
    expect_same(fitted.kernels[i].backward, expected.kernels[i].backward, 0.02, what + " backward");
  }
  expect_near(fitted.row_launch_us, expected.row_launch_us, 0.02, "row_launch_us");
  expect_near(fitted.item_us, expected.item_us, 0.02, "item_us");
  expect_near(fitted.message_us, expected.message_us, 0.02, "message_us");
  expect_near(fitted.pass_us, expected.pass_us, 0.02, "pass_us");
  EXPECT_EQ(fitted.transfer_multiprocessors, expected.transfer_multiprocessors);
  for (const double bytes : {32768.0, 131072.0, 2097152.0, 8388608.0})
    expect_near(mine.inside.one_peer.time_us(bytes), known.inside.one_peer.time_us(bytes), 0.02,
                fmt::format("one peer, {} bytes", bytes));
  for (const double bytes : {98304.0, 393216.0, 1572864.0, 25165824.0})
    expect_near(mine.inside.many_peers.time_us(bytes), known.inside.many_peers.time_us(bytes), 0.02,
                fmt::format("many peers, {} bytes", bytes));
  for (const std::string& source : {mine.device.source, mine.inside.source, fitted.source}) {
    for (const char* part : {"2026-11-21", "NVIDIA Imaginary", "driver 1.2.3", "cpscope calibrate"})
      EXPECT_NE(source.find(part), std::string::npos) << source;
  }
}

TEST(Calibration, CountsMessagesThatFollowEachOtherAndAreNotPacked) {
  Cluster known = known_machine();
  known.stacks[0].packs = false;
  PredictedExecutor cuda("cuda", known, 1), nccl("nccl", known, 4);
  nccl.sends_in_turn = true;
  const Result<Calibration> done = calibrate(request_for(cuda, &nccl));
  ASSERT_TRUE(done.ok()) << to_text(done.error());
  const Cluster& mine = done.value().cluster;
  EXPECT_FALSE(mine.stacks[0].packs);
  EXPECT_EQ(mine.stacks[0].transfer_multiprocessors, 0)
      << "transfers end before the computes begin";
  for (const double bytes : {32768.0, 2097152.0})
    expect_near(mine.inside.one_peer.time_us(bytes), known.inside.one_peer.time_us(bytes), 0.02,
                fmt::format("one peer, {} bytes", bytes));
  for (const double bytes : {98304.0, 1572864.0})
    expect_near(mine.inside.many_peers.time_us(bytes), known.inside.many_peers.time_us(bytes), 0.02,
                fmt::format("many peers, {} bytes", bytes));
  EXPECT_EQ(mine.inside.source.find("packing"), std::string::npos) << mine.inside.source;
}

TEST(Calibration, BearsNoiseOfThreePercent) {
  const Cluster known = known_machine();
  PredictedExecutor cuda("cuda", known, 1, 0.03), nccl("nccl", known, 4, 0.03);
  const Result<Calibration> done = calibrate(request_for(cuda, &nccl));
  ASSERT_TRUE(done.ok()) << to_text(done.error());
  const Stack& fitted = done.value().cluster.stacks[0];
  for (size_t i = 0; i < fitted.kernels.size(); ++i) {
    const TileCost& forward = fitted.kernels[i].forward;
    const TileCost& expected = known.stacks[0].kernels[i].forward;
    // A tile of keys of one shape costs twice as much in another that is twice as wide.
    const auto cell_us = [](const TileCost& cost) {
      return cost.whole_us / cost.tile_rows / cost.tile_keys;
    };
    expect_near(cell_us(forward), cell_us(expected), 0.1, fmt::format("kernel {}", i));
  }
  expect_near(done.value().cluster.device.copy_gb_s, known.device.copy_gb_s, 0.1, "copy_gb_s");
  for (const NamedFit& fit : done.value().fits) {
    EXPECT_LT(fit.table.mean_error(), 0.03) << fit.name;
    if (fit.name.starts_with("kernels")) {
      EXPECT_GT(fit.table.largest_error(), 0.001) << fit.name;
    }
  }
}

TEST(Calibration, TakesWiresFromTheBaseWhereOneGpuIsAll) {
  const Cluster known = known_machine();
  PredictedExecutor cuda("cuda", known, 1);
  CalibrationRequest request = request_for(cuda, nullptr);
  const Result<Calibration> refused = calibrate(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::bad_input);
  EXPECT_NE(to_text(refused.error()).find("one GPU does not tell the wires"), std::string::npos)
      << to_text(refused.error());
  request.base = known;
  request.base->name = "elsewhere";
  request.base->stacks.push_back(known.stacks[0]);
  request.base->stacks.back().name = "theirs";
  request.base->stacks.front().kernels.clear();
  request.base->device.copy_gb_s = 1;
  const Result<Calibration> done = calibrate(request);
  ASSERT_TRUE(done.ok()) << to_text(done.error());
  const Cluster& mine = done.value().cluster;
  EXPECT_EQ(mine.gpus_per_node, 4);
  expect_near(mine.device.copy_gb_s, known.device.copy_gb_s, 0.02, "copy_gb_s");
  EXPECT_EQ(mine.inside.source, "of base elsewhere: none");
  EXPECT_EQ(mine.inside.one_peer.points.size(), known.inside.one_peer.points.size());
  ASSERT_EQ(mine.stacks.size(), 2U);
  EXPECT_EQ(mine.stacks[0].name, "cpscope");
  EXPECT_EQ(mine.stacks[1].name, "theirs");
  EXPECT_EQ(mine.stacks[0].message_us, 50);
  EXPECT_EQ(mine.stacks[0].transfer_multiprocessors, 2);
  EXPECT_NE(mine.stacks[0].source.find("of base elsewhere"), std::string::npos);
  EXPECT_EQ(done.value().from_base.size(), 3U);
  expect_same(mine.stacks[0].kernels[1].forward, known.stacks[0].kernels[1].forward, 0.02, "d128");
}

TEST(Calibration, LeavesOutKernelsThatTheExecutorDoesNotHave) {
  Cluster known = known_machine();
  std::erase_if(known.stacks[0].kernels, [](const KernelCost& k) { return k.head_dim_qk > 128; });
  PredictedExecutor cuda("cuda", known, 1), nccl("nccl", known, 4);
  cuda.missing = Dtype::fp32;
  const Result<Calibration> done = calibrate(request_for(cuda, &nccl));
  ASSERT_TRUE(done.ok()) << to_text(done.error());
  const std::vector<std::string>& left_out = done.value().left_out;
  ASSERT_EQ(left_out.size(), 5U);
  for (size_t i = 0; i < left_out.size(); ++i) {
    const char* name = std::array{"192", "256", "latent 576", "fp8 256", "fp32 128"}[i];
    EXPECT_NE(left_out[i].find(name), std::string::npos) << left_out[i];
  }
  EXPECT_EQ(done.value().cluster.stacks[0].kernels.size(), 4U);
}

TEST(Calibration, MeasuresAFewKernelsAndTakesAllElseFromTheBase) {
  const Cluster known = known_machine();
  PredictedExecutor cuda("cuda", known, 1);
  CalibrationRequest request = request_for(cuda, nullptr);
  request.only = {"fp8 128", "latent 576"};
  EXPECT_NE(to_text(calibrate(request).error()).find("a few kernels are no cluster"),
            std::string::npos);
  request.base = known;
  std::vector<KernelCost>& kernels = request.base->stacks[0].kernels;
  std::erase_if(kernels, [](const KernelCost& kernel) { return kernel.is_latent; });
  for (KernelCost& kernel : kernels) kernel.forward.whole_us = 77;
  request.base->device.copy_gb_s = 1;
  const Result<Calibration> done = calibrate(request);
  ASSERT_TRUE(done.ok()) << to_text(done.error());
  const Cluster& mine = done.value().cluster;
  EXPECT_EQ(mine.device.copy_gb_s, 1);
  const Stack& stack = mine.stacks[0];
  ASSERT_EQ(stack.kernels.size(), known.stacks[0].kernels.size());
  int measured = 0;
  for (const KernelCost& kernel : stack.kernels) {
    if (kernel.forward.whole_us == 77) continue;
    const auto same =
        std::find_if(known.stacks[0].kernels.begin(), known.stacks[0].kernels.end(),
                     [&](const KernelCost& other) {
                       return other.bits == kernel.bits && other.head_dim_qk == kernel.head_dim_qk;
                     });
    expect_same(kernel.forward, same->forward, 0.02, print_kernel(kernel));
    EXPECT_TRUE(kernel.is_latent || (kernel.bits == 8 && kernel.head_dim_qk == 128));
    ++measured;
  }
  EXPECT_EQ(measured, 2);
  EXPECT_NE(stack.source.find("; kernels fp8 128, latent 576: measured 2026-11-21"),
            std::string::npos)
      << stack.source;
  // What the executor does not have stays that of the base, and is not said to be measured.
  cuda.missing = Dtype::fp32;
  request.only = {"fp32 128", "fp8 128"};
  const Result<Calibration> part = calibrate(request);
  ASSERT_TRUE(part.ok()) << to_text(part.error());
  EXPECT_EQ(part.value().left_out.size(), 1U);
  const Stack& mixed = part.value().cluster.stacks[0];
  EXPECT_EQ(mixed.kernels.size(), request.base->stacks[0].kernels.size());
  EXPECT_NE(mixed.source.find("; kernels fp8 128: measured"), std::string::npos) << mixed.source;
  request.only = {"fp32 128"};
  EXPECT_NE(to_text(calibrate(request).error()).find("has no kernels to measure"),
            std::string::npos);
  request.base->device.multiprocessors = 7;
  EXPECT_NE(to_text(calibrate(request).error()).find("7 multiprocessors"), std::string::npos);
}

TEST(Calibration, RefusesAnExecutorWithoutAClockAndOneThatStandsStill) {
  PredictedExecutor cuda("cuda", known_machine(), 1), nccl("nccl", known_machine(), 4);
  cuda.has_clock = false;
  const Result<Calibration> without = calibrate(request_for(cuda, &nccl));
  ASSERT_FALSE(without.ok());
  EXPECT_EQ(without.error().kind, ErrorKind::unavailable);
  EXPECT_NE(to_text(without.error()).find("cuda has no clock"), std::string::npos)
      << to_text(without.error());
  cuda.has_clock = cuda.stands_still = true;
  const Result<Calibration> still = calibrate(request_for(cuda, &nccl));
  ASSERT_FALSE(still.ok());
  EXPECT_EQ(still.error().kind, ErrorKind::bad_input);
  EXPECT_NE(to_text(still.error()).find("compute d64 s512 full has an invalid time: 0 us"),
            std::string::npos)
      << to_text(still.error());
}

/// The program with executors `cuda` and `nccl` of the known machine. Returns the exit code.
int run_words(std::vector<std::string> words, bool has_devices = true, bool has_clock = true) {
  Toolbox toolbox;
  const Cluster known = known_machine();
  if (has_devices) {
    auto cuda = std::make_unique<PredictedExecutor>("cuda", known, 1);
    cuda->has_clock = has_clock;
    toolbox.executors.push_back(std::move(cuda));
    toolbox.executors.push_back(std::make_unique<PredictedExecutor>("nccl", known, 4));
  } else {
    toolbox.missing_executors = {{"cuda", "no GPU"}, {"nccl", "no GPU"}};
  }
  words.insert(words.begin(), "cpscope");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return run_program(static_cast<int>(words.size()), pointers.data(), toolbox);
}

int run_calibrate(std::vector<std::string> words, bool has_devices = true) {
  words.insert(words.begin(), "calibrate");
  return run_words(std::move(words), has_devices);
}

std::string fresh_path(const std::string& name) {
  const fs::path folder = fs::path(CPSCOPE_WORK_FOLDER) / "calibrate";
  fs::create_directories(folder);
  fs::remove_all(folder / name);
  return (folder / name).string();
}

TEST(CalibrateCommand, WritesAFileThatPredictsAsTheMachineDoes) {
  const std::string path = fresh_path("mine.toml");
  ASSERT_EQ(run_calibrate({"--out", path, "--max-tokens", "512", "--repeats", "1"}), 0);
  const Result<Cluster> mine = load_cluster(path, "");
  ASSERT_TRUE(mine.ok()) << to_text(mine.error());
  EXPECT_EQ(mine.value().name, "mine");
  // A shape that was not measured.
  Scenario scenario = host_scenario(CommType::p2p, 4);
  scenario.attention.heads = scenario.attention.kv_heads = 8;
  scenario.attention.mask_type = MaskType::causal;
  scenario.parallel.layout = LayoutKind::dual_chunk;
  scenario.batch.lengths = scenario.batch.kv_lengths = {3000, 900};
  scenario.batch.slots = scenario.batch.kv_slots = {3000, 900};
  const Result<Plan> plan = make_plan(scenario);
  ASSERT_TRUE(plan.ok());
  const Timeline fitted = predict(plan.value(), mine.value()).value();
  const Timeline known = predict(plan.value(), known_machine()).value();
  expect_near(fitted.forward.total_us, known.forward.total_us, 0.02, "forward");
  expect_near(fitted.backward.total_us, known.backward.total_us, 0.02, "backward");
}

TEST(CalibrateCommand, WritesNothingWithoutADeviceOrABase) {
  const std::string path = fresh_path("nothing.toml");
  EXPECT_EQ(run_calibrate({"--out", path}, false), 3);
  EXPECT_EQ(run_calibrate({"--out", path, "--executor", "cuda", "--max-tokens", "512"}), 2);
  EXPECT_EQ(run_calibrate({"--out", path, "--base", "no_such", "--max-tokens", "512"}), 2);
  EXPECT_EQ(run_calibrate({"--out", path, "--executor", "abacus"}), 2);
  EXPECT_EQ(run_calibrate({"--out", path, "--max-tokens", "0"}), 2);
  EXPECT_FALSE(fs::exists(path));
}

/// What the program prints while `run` runs.
template <class Run>
std::string printed_by(const Run& run) {
  // The program asks for this too, and the first time it makes the stream anew.
  std::ios::sync_with_stdio(false);
  std::ostringstream stream;
  std::streambuf* const before = std::cout.rdbuf(stream.rdbuf());
  run();
  std::cout.rdbuf(before);
  return stream.str();
}

TEST(CalibrateCommand, PrintsOneDocumentWithEveryRow) {
  const std::string path = fresh_path("json.toml"), base = fresh_path("base.toml");
  std::ofstream(base) << print_cluster(known_machine());
  const std::string text = printed_by([&] {
    EXPECT_EQ(run_calibrate({"--out", path, "--max-tokens", "256", "--repeats", "1", "--json",
                             "--executor", "cuda", "--base", base}),
              0);
  });
  const nlohmann::json document = nlohmann::json::parse(text);
  EXPECT_EQ(document["schema"], 1);
  EXPECT_EQ(document["file"], path);
  EXPECT_EQ(document["from_base"].size(), 3U);
  ASSERT_GE(document["fits"].size(), 12U);
  EXPECT_EQ(document["fits"][0]["name"], "kernels 64 forward");
  EXPECT_EQ(document["fits"][0]["rows"].size(), 13U);
  EXPECT_EQ(document["fits"][0]["constants"]["tile_rows"], 128);
  EXPECT_LT(document["fits"][0]["largest_error"], 0.02);
}

TEST(BenchCommand, TellsEveryStepOfEveryRank) {
  const std::string path = fresh_path("bench.toml");
  std::ofstream(path) << "schema = 1\ntitle = \"t\"\nquestion = \"q\"\n[attention]\nheads = 4\n"
                         "head_dim = 64\n[batch]\nlengths = [512]\n[parallel]\ncp_size = 4\n";
  const nlohmann::json document = nlohmann::json::parse(printed_by([&] {
    EXPECT_EQ(run_words({"bench", path, "--executor", "nccl", "--json"}), 0);
  }));
  EXPECT_GT(document["rows"][0]["plan_ms"], 0.0);
  EXPECT_EQ(document["rows"][0]["lists_ms"], 2.5);
  const nlohmann::json& steps = document["rows"][0]["steps"];
  const Plan plan = make_plan(load_scenario(path).value().scenario).value();
  const Timeline timeline = predict(plan, known_machine()).value();
  for (const Direction direction : kDirections) {
    const nlohmann::json& rows = steps[std::string(to_name(direction))];
    ASSERT_EQ(rows.size(), 16U) << "4 steps of 4 ranks";
    double compute_us = 0, local_us = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i]["step"], i / 4);
      EXPECT_EQ(rows[i]["rank"], i % 4);
      EXPECT_LT(rows[i]["start_us"], rows[i]["end_us"]);
      compute_us += rows[i]["compute_us"].get<double>();
      local_us += rows[i]["local_us"].get<double>();
    }
    double expected_compute_us = 0, expected_local_us = 0;
    for (const RankTimes& rank : timeline.pass(direction).ranks) {
      expected_compute_us += rank.compute_us;
      expected_local_us += rank.local_us;
    }
    EXPECT_NEAR(compute_us, expected_compute_us, 0.1);
    EXPECT_NEAR(local_us, expected_local_us, 0.1);
  }
  // A ring of 4 forward: three steps send, the last one does not; one stretch a step and rank.
  for (const nlohmann::json& row : steps["forward"])
    EXPECT_EQ(row["transfer_us"] > 0, row["step"] < 3) << row;
}

TEST(BenchCommand, WritesATraceOfWhatItMeasured) {
  // Two files of one name.
  const std::string path = fresh_path("traced.toml"), folder = fresh_path("traces/of_two"),
                    other = fresh_path("other");
  fs::create_directories(other);
  for (const std::string& file : {path, other + "/traced.toml"})
    std::ofstream(file) << "schema = 1\ntitle = \"t\"\nquestion = \"q\"\n[attention]\nheads = 4\n"
                           "head_dim = 64\n[batch]\nlengths = [512]\n[parallel]\ncp_size = 4\n";
  const nlohmann::json document = nlohmann::json::parse(printed_by([&] {
    const int code =
        run_words({"bench", path, other, "--executor", "nccl", "--json", "--traces", folder});
    EXPECT_EQ(code, 0);
  }));
  ASSERT_EQ(document["rows"].size(), 2U);
  for (const char* name : {"/traced.json", "/traced-2.json"}) {
    const nlohmann::json trace = nlohmann::json::parse(std::ifstream(folder + name));
    EXPECT_EQ(trace["otherData"]["times"], "measured");
    // The sums are those of the row; forward begins at 0, backward when it has ended.
    std::map<std::pair<std::string, std::string>, double> sums;  // [pass, kind] us
    std::map<std::string, double> begin, end;                    // [pass]
    std::set<int64_t> processes;
    for (const nlohmann::json& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const std::string pass = event["args"]["pass"];
      const double start = event["ts"], length = event["dur"];
      sums[{pass, event["args"]["kind"]}] += length;
      begin[pass] = begin.contains(pass) ? std::min(begin[pass], start) : start;
      end[pass] = std::max(end[pass], start + length);
      processes.insert(event["pid"].get<int64_t>());
    }
    EXPECT_EQ(processes.size(), 4U);
    EXPECT_EQ(begin["forward"], 0.0);
    EXPECT_NEAR(begin["backward"], end["forward"] + 100.0, 0.01);
    for (const std::string pass : {"forward", "backward"}) {
      double compute_us = 0;
      for (const nlohmann::json& step : document["rows"][0]["steps"][pass])
        compute_us += step["compute_us"].get<double>();
      EXPECT_NEAR((sums[{pass, "compute"}]), compute_us, 0.1);
      EXPECT_GT((sums[{pass, "transfer"}]), 0.0);
    }
  }
}

TEST(BenchCommand, SaysWhyThereIsNoTrace) {
  const std::string path = fresh_path("untraced.toml");
  std::ofstream(path) << "schema = 1\ntitle = \"t\"\nquestion = \"q\"\n[attention]\nheads = 4\n"
                         "head_dim = 64\n[batch]\nlengths = [64]\n[parallel]\ncp_size = 1\n";
  const auto bench = [&](std::vector<std::string> words, std::string& said) {
    std::ios::sync_with_stdio(false);  // as in printed_by
    std::ostringstream stream;
    std::streambuf* const before = std::cerr.rdbuf(stream.rdbuf());
    int code = 0;
    words.insert(words.begin(), {"bench", path, "--executor", "cuda"});
    printed_by([&] { code = run_words(words, true, false); });
    std::cerr.rdbuf(before);
    said = stream.str();
    return code;
  };
  std::string said;
  EXPECT_EQ(bench({"--traces", fresh_path("none")}, said), 3);
  EXPECT_NE(said.find("executor cuda has no clock"), std::string::npos) << said;
  EXPECT_EQ(bench({"--traces", path}, said), 2);
  EXPECT_NE(said.find("cannot make the folder"), std::string::npos) << said;
  EXPECT_EQ(bench({"--traces", fresh_path("none"), "--turns"}, said), 2);
}

TEST(BenchCommand, TakesTurnsAndSaysOneLineForEach) {
  const std::string ring = fresh_path("ring.toml"), spread = fresh_path("spread.toml"),
                    longer = fresh_path("turns_longer.toml"),
                    wrong = fresh_path("turns_wrong.toml");
  const auto write = [](const std::string& path, int length, const char* type) {
    std::ofstream(path) << fmt::format(
        "schema = 1\ntitle = \"t\"\nquestion = \"q\"\n[attention]\nheads = 4\nhead_dim = 64\n"
        "[batch]\nlengths = [{}]\n[parallel]\ncp_size = 4\ncp_comm_type = \"{}\"\n",
        length, type);
  };
  write(ring, 512, "p2p");
  write(spread, 512, "a2a");
  write(longer, 1024, "p2p");
  write(wrong, 512, "no_such_type");
  // The program's own call, the first of a process, would give cin its buffer back.
  std::ios::sync_with_stdio(false);
  std::istringstream words("turn\nturn\nnext\nturn\nskip\nnext\nturn\nnext\nturn\n");
  std::streambuf* const before = std::cin.rdbuf(words.rdbuf());
  std::istringstream lines(printed_by([&] {
    EXPECT_EQ(run_words({"bench", ring, spread, longer, wrong, "--executor", "nccl", "--repeats",
                         "3", "--turns"}),
              2);
  }));
  std::cin.rdbuf(before);
  std::vector<nlohmann::json> said;
  for (std::string line; std::getline(lines, line);) said.push_back(nlohmann::json::parse(line));
  const std::vector<std::string> files = {ring,   ring,   ring,   spread, spread,
                                          spread, longer, longer, wrong,  wrong};
  ASSERT_EQ(said.size(), files.size());
  for (size_t i = 0; i < said.size(); ++i) EXPECT_EQ(said[i]["file"], files[i]) << i;
  for (const size_t i : {0, 3, 6}) EXPECT_TRUE(said[i]["ready"]) << said[i];
  for (const size_t i : {1, 2, 4, 7}) {
    EXPECT_EQ(said[i]["forward_samples_ms"].size(), 3U) << said[i];
    EXPECT_EQ(said[i]["backward_samples_ms"][1], said[i]["backward_ms"]) << said[i];
    EXPECT_GT(said[i]["forward_kernel_ms"], 0.0) << said[i];
  }
  EXPECT_EQ(said[1]["pairs"], said[4]["pairs"]);
  EXPECT_NEAR(said[7]["pairs"].get<double>() / said[1]["pairs"].get<double>(), 4.0, 0.01);
  EXPECT_EQ(said[5]["error"], "no such word for a turn: skip; turn | next");
  for (const size_t i : {8, 9})
    EXPECT_NE(said[i]["error"].get<std::string>().find("no_such_type"), std::string::npos);
}

// ---- foreign figures ---------------------------------------------------------------------------

/// TFLOP/s of cpscope's kernels on one H200 (kernels/notes/peers.md, 16K tokens, heads x lanes =
/// 2048): 1024, 4096 and 16384 tokens, causal and full.
std::string h200_samples(int lanes, Direction direction, const std::vector<double>& rates) {
  std::string text;
  for (size_t i = 0; i < rates.size(); ++i) {
    const int64_t tokens = std::vector<int64_t>{1024, 4096, 16384}[i / 2];
    text += fmt::format(
        "[[samples]]\nhead_dim = {}\nheads = {}\nseqlen = {}\nbatch = {}\nmask = \"{}\"\n"
        "direction = \"{}\"\ntflops = {}\n",
        lanes, 2048 / lanes, tokens, 16384 / tokens, i % 2 == 0 ? "causal" : "full",
        to_name(direction), rates[i]);
  }
  return text;
}

const char* const kSamplesHead = "schema = 1\nmultiprocessors = 132\n";

TEST(FitOfSamples, ExplainsOurOwnH200TableAsWellAsAFitByHand) {
  const Result<FittedKernels> fitted = fit_samples(
      kSamplesHead + h200_samples(128, Direction::forward, {340, 502, 551, 626, 631, 656}) +
          h200_samples(128, Direction::backward, {256, 370, 425, 481, 462, 463}) +
          h200_samples(64, Direction::forward, {239, 367, 416, 473, 497, 522}) +
          h200_samples(64, Direction::backward, {183, 269, 304, 339, 360, 348}),
      "samples.toml");
  ASSERT_TRUE(fitted.ok()) << to_text(fitted.error());
  ASSERT_EQ(fitted.value().kernels.size(), 2U);
  ASSERT_EQ(fitted.value().fits.size(), 4U);
  for (const NamedFit& fit : fitted.value().fits) {
    EXPECT_EQ(fit.table.rows.size(), 6U);
    EXPECT_LE(fit.table.largest_error(), fit.name.ends_with("backward") ? 0.0545 : 0.0235)
        << fit.name;
  }
  // A launch of a tenth of a millisecond would explain them too, and be wrong of short steps.
  EXPECT_LT(fitted.value().kernels[1].forward.launch_us, 10);
  const Result<Cluster> read = [&] {
    Cluster cluster = known_machine();
    cluster.stacks[0].kernels = fitted.value().kernels;
    return parse_cluster(print_cluster(cluster), "c.toml");
  }();
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  EXPECT_EQ(read.value().stacks[0].kernels[1].forward.whole_us,
            fitted.value().kernels[1].forward.whole_us);
}

TEST(FitOfSamples, SaysWhatIsWrongAndWhere) {
  const auto complaint = [](const std::string& text) {
    const Result<FittedKernels> fitted = fit_samples(text, "s.toml");
    return fitted ? std::string("none") : to_text(fitted.error());
  };
  const std::string good = h200_samples(128, Direction::forward, {340, 502, 551, 626, 631, 656});
  EXPECT_NE(complaint(kSamplesHead + good).find("kernels 128/128 of 16 bits backward: too few"),
            std::string::npos)
      << complaint(kSamplesHead + good);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "schema"},
      {"schema = 1\nmultiprocessors = 0\n", "s.toml:2:19"},
      {std::string(kSamplesHead) + "samples = 3\n", "must be tables"},
      {std::string(kSamplesHead) + "[[samples]]\nheads = 1\nmask = \"round\"\n", "s.toml:5:8"},
      {std::string(kSamplesHead) + "[[samples]]\ntflop = 3\n", "tflops"},
      {kSamplesHead + h200_samples(128, Direction::forward, {0}), "tflops must be above 0"},
      {kSamplesHead + h200_samples(128, Direction::forward, {-3}), "tflops"},
      {std::string(kSamplesHead) +
           "[[samples]]\nhead_dim = 64\nheads = 1\nmask = \"full\"\nseqlen = 16777216\nbatch = "
           "9\ndirection = \"forward\"\ntflops = 1\n",
       "too many tokens"},
      {"schema = [", "s.toml:1"}};
  for (const auto& [text, part] : bad)
    EXPECT_NE(complaint(text).find(part), std::string::npos) << text << "\n" << complaint(text);
}

TEST(FitOfSamples, CountsPublishedRatesOverHalfTheSquare) {
  // 1024 tokens: the diagonal is half of a thousandth more.
  const std::string rates = h200_samples(128, Direction::forward, {340, 502, 551, 626, 631, 656});
  std::string half = rates;
  for (size_t at = 0; (at = half.find("\"causal\"", at)) != std::string::npos; at += 10)
    half.insert(at + 8, "\nflops = \"half_square\"");
  const std::string backward =
      h200_samples(128, Direction::backward, {256, 370, 425, 481, 462, 463});
  const FittedKernels visible = fit_samples(kSamplesHead + rates + backward, "a").value();
  const FittedKernels squares = fit_samples(kSamplesHead + half + backward, "b").value();
  const double us = visible.fits[0].table.rows[0].measured_us;
  EXPECT_NEAR(squares.fits[0].table.rows[0].measured_us, us * 1024 / 1025, 1e-6 * us);
}

}  // namespace
}  // namespace cpscope::tests
