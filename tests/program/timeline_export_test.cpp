#include "sim/run/record/run_record.h"
#include "tests/program/timeline_case.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using Item = std::tuple<std::string, std::string, int>;  // pass, kind, index

struct TraceExport {
  Json timeline, trace;
};

TraceExport export_trace(const std::string& parallel) {
  const ProgramRun run = run_timeline(bf16_scenario(parallel), "--json --trace trace.json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return {Json::parse(run.out), Json::parse(read_text(work_folder() / "trace.json"))};
}

int64_t to_ns(const Json& us) { return std::llround(us.get<double>() * 1000); }

std::vector<Json> events_of(const Json& trace, const std::string& phase) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == phase) events.push_back(event);
  return events;
}

Item item_of(const Json& slice) {
  const Json& args = slice["args"];
  return {args["pass"], args["kind"], args["item"]};
}

/// Slices of each thread in the order of the file.
std::map<std::pair<int, int>, std::vector<Json>> slices_by_thread(const Json& trace) {
  std::map<std::pair<int, int>, std::vector<Json>> threads;
  for (const Json& slice : events_of(trace, "X"))
    threads[{slice["pid"], slice["tid"]}].push_back(slice);
  return threads;
}

TEST(TimelineTrace, HoldsEveryItemOnceWithTheTimesOfTheTimeline) {
  for (const std::string& parallel : timeline_parallels()) {
    SCOPED_TRACE(parallel);
    const TraceExport made = export_trace(parallel);
    std::map<Item, Json> slices;
    for (const Json& slice : events_of(made.trace, "X"))
      EXPECT_TRUE(slices.insert({item_of(slice), slice}).second) << slice;
    ASSERT_EQ(slices.size(), made.timeline["items"].size());
    for (const Json& item : made.timeline["items"]) {
      const auto found = slices.find({item["pass"], item["kind"], item["index"]});
      ASSERT_NE(found, slices.end()) << item;
      const Json& slice = found->second;
      EXPECT_EQ(to_ns(slice["ts"]), item["start_ns"].get<int64_t>());
      EXPECT_EQ(to_ns(slice["dur"]),
                item["end_ns"].get<int64_t>() - item["start_ns"].get<int64_t>());
      EXPECT_EQ(slice["pid"].get<int>(), item["rank"].get<int>() + 1);
      EXPECT_EQ(slice["args"]["step"], item["step"]);
      EXPECT_FALSE(slice["args"]["what"].get<std::string>().empty());
    }
  }
}

TEST(TimelineTrace, NamesARankAProcessAndSaysThatItPredicts) {
  const TraceExport made = export_trace("cp_size = 4");
  std::set<std::string> processes, threads;
  for (const Json& event : events_of(made.trace, "M")) {
    if (event["name"] == "process_name") processes.insert(event["args"]["name"]);
    if (event["name"] == "thread_name") threads.insert(event["args"]["name"]);
  }
  EXPECT_EQ(processes, (std::set<std::string>{"rank 0, predicted", "rank 1, predicted",
                                              "rank 2, predicted", "rank 3, predicted"}));
  EXPECT_EQ(threads, (std::set<std::string>{"compute", "transfer"}));
  const Json& about = made.trace["otherData"];
  EXPECT_EQ(about["times"], "predicted");
  EXPECT_EQ(about["cluster"], "h200_ib");
  EXPECT_EQ(about["stack"], made.timeline["stack"]);
  EXPECT_EQ(about["plan_hash"], made.timeline["plan_hash"]);
}

/// Slices of one thread follow or hold each other.
void expect_no_crossing(const Json& trace) {
  for (const auto& [thread, slices] : slices_by_thread(trace)) {
    std::vector<int64_t> open;  // ends, outermost first
    int64_t last = 0;
    for (const Json& slice : slices) {
      const int64_t begin = to_ns(slice["ts"]), end = begin + to_ns(slice["dur"]);
      EXPECT_GE(begin, last) << slice;
      last = begin;
      while (!open.empty() && open.back() <= begin) open.pop_back();
      EXPECT_TRUE(open.empty() || end <= open.back()) << slice;
      open.push_back(end);
    }
  }
}

TEST(TimelineTrace, PutsNoTwoSlicesOfAThreadAcrossEachOther) {
  for (const std::string& parallel : timeline_parallels()) {
    SCOPED_TRACE(parallel);
    expect_no_crossing(export_trace(parallel).trace);
  }
}

TEST(TimelineTrace, LeadsFromEveryMessageToWhoReadsIt) {
  for (const std::string& parallel : timeline_parallels()) {
    SCOPED_TRACE(parallel);
    const TraceExport made = export_trace(parallel);
    // A flow end belongs to the slice before it in the file: same thread, same begin.
    std::map<int64_t, Json> from, to;
    Json slice;
    for (const Json& event : made.trace["traceEvents"]) {
      if (event["ph"] == "X") slice = event;
      if (event["ph"] != "s" && event["ph"] != "f") continue;
      for (const char* key : {"pid", "tid", "ts"}) EXPECT_EQ(event[key], slice[key]) << event;
      auto& ends = event["ph"] == "s" ? from : to;
      EXPECT_TRUE(ends.insert({event["id"].get<int64_t>(), slice}).second) << event;
    }
    ASSERT_EQ(from.size(), to.size());
    std::set<Item> followed;
    for (const auto& [id, sent] : from) {
      ASSERT_TRUE(to.contains(id));
      const Json& read = to[id];
      EXPECT_EQ(sent["args"]["kind"], "transfer");
      EXPECT_EQ(sent["name"].get<std::string>().substr(sent["name"].get<std::string>().rfind(' ')),
                " " + std::to_string(read["pid"].get<int>() - 1))
          << "the receiver reads";
      EXPECT_GE(to_ns(read["ts"]), to_ns(sent["ts"]) + to_ns(sent["dur"])) << sent << read;
      if (read["args"]["kind"] != "transfer") followed.insert(item_of(sent));
    }
    // Answers come home to stay; what attention needs is worked with.
    for (const Json& sent : events_of(made.trace, "X")) {
      if (sent["args"]["kind"] != "transfer" || sent["args"]["bytes"] == 0) continue;
      const std::string name = sent["name"].get<std::string>();
      const bool is_input = name.starts_with("q ") || name.starts_with("kv ");
      EXPECT_TRUE(!is_input || followed.contains(item_of(sent))) << sent;
    }
  }
}

TEST(TimelineTrace, CountsTheBytesThatAreBeingSent) {
  const TraceExport made = export_trace("cp_size = 4\ncp_comm_type = \"all_gather\"");
  std::map<int, std::vector<std::pair<int64_t, int64_t>>> counters;  // ns, bytes
  for (const Json& event : events_of(made.trace, "C"))
    counters[event["pid"]].push_back({to_ns(event["ts"]), event["args"]["bytes"]});
  ASSERT_EQ(counters.size(), 4U);
  for (const auto& [process, steps] : counters) {
    EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
    EXPECT_EQ(steps.back().second, 0);
    for (const auto& [ns, bytes] : steps) {
      int64_t expected = 0;
      for (const Json& slice : events_of(made.trace, "X")) {
        const int64_t begin = to_ns(slice["ts"]), end = begin + to_ns(slice["dur"]);
        if (slice["pid"] == process && begin <= ns && ns < end && slice["args"].contains("bytes"))
          expected += slice["args"]["bytes"].get<int64_t>();
      }
      EXPECT_EQ(bytes, expected) << process << " at " << ns;
    }
  }
}

TEST(TimelineCsv, HasARowForEveryItem) {
  const ProgramRun run = run_timeline(bf16_scenario("cp_size = 4"), "--json --csv items.csv");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json timeline = Json::parse(run.out);
  std::istringstream rows(read_text(work_folder() / "items.csv"));
  std::string row;
  std::getline(rows, row);
  EXPECT_EQ(row, "pass,kind,index,rank,step,start_us,end_us,bytes,pairs,to");
  int64_t bytes = 0, pairs = 0;
  for (const Json& item : timeline["items"]) {
    ASSERT_TRUE(std::getline(rows, row));
    std::vector<std::string> cells;
    std::istringstream line(row + ",end");
    for (std::string cell; std::getline(line, cell, ',');) cells.push_back(cell);
    ASSERT_EQ(cells.size(), 11U) << row;
    EXPECT_EQ(cells[0], item["pass"]);
    EXPECT_EQ(cells[1], item["kind"]);
    EXPECT_EQ(cells[2], item["index"].dump());
    EXPECT_EQ(cells[3], item["rank"].dump());
    EXPECT_EQ(cells[4], item["step"].dump());
    EXPECT_EQ(std::llround(std::stod(cells[5]) * 1000), item["start_ns"].get<int64_t>());
    EXPECT_EQ(std::llround(std::stod(cells[6]) * 1000), item["end_ns"].get<int64_t>());
    EXPECT_EQ(!cells[7].empty(), cells[1] == "transfer") << row;
    EXPECT_EQ(!cells[8].empty(), cells[1] == "compute") << row;
    EXPECT_EQ(!cells[9].empty(), cells[1] == "transfer") << row;
    if (cells[0] == "backward") continue;
    if (!cells[7].empty()) bytes += std::stoll(cells[7]);
    if (!cells[8].empty()) pairs += std::stoll(cells[8]);
  }
  EXPECT_FALSE(std::getline(rows, row)) << row;
  const Json plan = Json::parse(run_cpscope("plan export.toml --json --summary").out);
  EXPECT_EQ(pairs, plan["visible_pairs"].get<int64_t>());
  int64_t sent = 0;
  for (const Json& rank : plan["bytes_sent_by_rank"]["forward"]) sent += rank.get<int64_t>();
  EXPECT_EQ(bytes, sent);
}

/// A record with the predicted times, computes ten times as long, and one item missing.
void write_measured(const Json& timeline, const std::string& plan_hash) {
  RunRecord record;
  record.plan_hash = plan_hash;
  record.executor = "cuda";
  record.clock = "measured";
  const std::map<std::string, StageKind> kinds = {{"transfer", StageKind::transfer},
                                                  {"reorder", StageKind::reorder},
                                                  {"compute", StageKind::compute},
                                                  {"merge", StageKind::merge},
                                                  {"finish", StageKind::finish}};
  for (const Json& item : timeline["items"]) {
    const StageKind kind = kinds.at(item["kind"]);
    if (item["pass"] == "forward" && kind == StageKind::transfer && item["index"] == 0) continue;
    const int64_t start = item["start_ns"], end = item["end_ns"];
    const Direction direction =
        item["pass"] == "backward" ? Direction::backward : Direction::forward;
    record.events.push_back({{direction, kind, item["index"]},
                             RankId{item["rank"].get<int32_t>()},
                             StepId{item["step"].get<int32_t>()},
                             start,
                             kind == StageKind::compute ? start + 10 * (end - start) : end});
  }
  const auto written = write_record(record, (work_folder() / "measured.safetensors").string());
  ASSERT_TRUE(written.ok()) << to_text(written.error());
}

TEST(TimelineRecord, SaysHowFarThePredictionIsOff) {
  const std::string scenario = bf16_scenario("cp_size = 4");
  const Json before = Json::parse(run_timeline(scenario, "--json").out);
  write_measured(before, before["plan_hash"]);
  const std::string options = "--record measured.safetensors --trace both.json --csv both.csv";
  const ProgramRun run = run_timeline(scenario, "--json " + options);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json forward = Json::parse(run.out)["measured"]["forward"];
  EXPECT_EQ(forward["only_predicted"], 1);
  EXPECT_EQ(forward["only_measured"], 0);
  for (const char* list : {"kinds", "steps"}) {
    ASSERT_FALSE(forward[list].empty());
    for (const Json& error : forward[list]) {
      const bool is_compute = error["kind"] == "compute";
      EXPECT_NEAR(error["error_percent"].get<double>(), is_compute ? -90 : 0, 1e-9) << error;
      EXPECT_NEAR(error["mean_absolute_error_percent"].get<double>(), is_compute ? 90 : 0, 1e-9);
      EXPECT_EQ(error.contains("step"), std::string(list) == "steps");
    }
  }
  int64_t first = INT64_MAX, last = 0, last_measured = 0;
  for (const Json& item : before["items"]) {
    if (item["pass"] != "forward") continue;
    const int64_t start = item["start_ns"], end = item["end_ns"];
    first = std::min(first, start);
    last = std::max(last, end);
    last_measured =
        std::max(last_measured, item["kind"] == "compute" ? start + 10 * (end - start) : end);
  }
  EXPECT_EQ(to_ns(forward["total"]["predicted_us"]), last - first);
  EXPECT_EQ(to_ns(forward["total"]["measured_us"]), last_measured - first);
  const Json trace = Json::parse(read_text(work_folder() / "both.json"));
  EXPECT_EQ(trace["otherData"]["times"], "predicted and measured");
  expect_no_crossing(trace);  // computes ten times as long run into each other
  std::map<Item, std::vector<Json>> slices;
  for (const Json& slice : events_of(trace, "X")) slices[item_of(slice)].push_back(slice);
  for (const auto& [item, both] : slices) {
    if (item == Item{"forward", "transfer", 0}) continue;
    ASSERT_EQ(both.size(), 2U) << both.front();
    EXPECT_EQ(both[1]["pid"].get<int>(), both[0]["pid"].get<int>() + 4) << "measured ranks follow";
  }
  std::set<std::string> processes;
  for (const Json& event : events_of(trace, "M"))
    if (event["name"] == "process_name") processes.insert(event["args"]["name"]);
  EXPECT_TRUE(processes.contains("rank 3, predicted") && processes.contains("rank 3, measured"));
  EXPECT_NE(read_text(work_folder() / "both.csv").find(",measured_start_us,measured_end_us\n"),
            std::string::npos);
  const ProgramRun text = run_timeline(scenario, options);
  EXPECT_NE(text.out.find("forward, predicted and measured"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("-90.0 %"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("1 item was predicted and not measured"), std::string::npos) << text.out;
}

TEST(TimelineRecord, IsDrawnBesideThePrediction) {
  const std::string scenario = bf16_scenario("cp_size = 4");
  const Json timeline = Json::parse(run_timeline(scenario, "--json").out);
  write_measured(timeline, timeline["plan_hash"]);
  const std::string render = "render " + scenario + " --view timeline --out both.svg --cluster " +
                             CPSCOPE_CLUSTERS "/h200_ib.toml --record ";
  const ProgramRun run = run_cpscope(render + "measured.safetensors");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string picture = read_text(work_folder() / "both.svg");
  for (const char* words : {"(predicted, not measured)", "measured.safetensors: cuda: ",
                            "those of measured.safetensors: cuda are"})
    EXPECT_NE(picture.find(words), std::string::npos) << words;
  write_measured(timeline, "0123456789abcdef");
  std::filesystem::remove(work_folder() / "both.svg");
  EXPECT_EQ(run_cpscope(render + "measured.safetensors").exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(work_folder() / "both.svg"));
}

TEST(TimelineRecord, RefusesTimesOfAnotherPlanAndRecordsWithoutTimes) {
  const std::string scenario = bf16_scenario("cp_size = 4");
  const Json timeline = Json::parse(run_timeline(scenario, "--json").out);
  write_measured(timeline, "0123456789abcdef");
  const std::string options = "--record measured.safetensors --trace never.json";
  ProgramRun run = run_timeline(scenario, options);
  EXPECT_EQ(run.exit_code, 2);
  for (const std::string& hash :
       {std::string("0123456789abcdef"), timeline["plan_hash"].get<std::string>()})
    EXPECT_NE(run.err.find(hash), std::string::npos) << run.err;
  write_measured(Json{{"items", Json::array()}}, timeline["plan_hash"]);
  run = run_timeline(scenario, options);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("no measured times"), std::string::npos) << run.err;
  Json foreign = timeline;
  foreign["items"] = Json::array({timeline["items"][0]});
  foreign["items"][0]["index"] = 100000;
  write_measured(foreign, timeline["plan_hash"]);
  run = run_timeline(scenario, options);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("an item that its plan does not have"), std::string::npos) << run.err;
  EXPECT_EQ(run_timeline(scenario, "--record nowhere.safetensors").exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(work_folder() / "never.json"));
}

TEST(TimelineExport, LeavesNothingBehindWhereItCannotWrite) {
  const std::string scenario = bf16_scenario("cp_size = 2");
  const std::string before = read_text(scenario);
  std::filesystem::create_directory(work_folder() / "a_folder");
  for (const char* options :
       {"--trace nowhere/trace.json", "--csv nowhere/items.csv", "--trace a_folder",
        "--trace same.json --csv ./same.json", "--trace /proc/trace.json", "--chakra /proc/trace",
        "--trace ring.1.et --chakra ./ring", "--trace export.toml", "--csv /dev/full",
        "--trace ''"}) {
    const ProgramRun run = run_timeline(scenario, options);
    EXPECT_EQ(run.exit_code, 2) << options << run.err;
    EXPECT_TRUE(run.out.empty()) << options;
  }
  EXPECT_EQ(read_text(scenario), before);
  for (const auto& entry : std::filesystem::directory_iterator(work_folder()))
    EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
  EXPECT_FALSE(std::filesystem::exists(work_folder() / "same.json"));
}

TEST(TimelineExport, KeepsANameThatJsonMustEscape) {
  const std::string scenario =
      write_file("quoted.toml", "title = 'Say \"no\" \\ twice'\n" +
                                    small_scenario("cp_size = 2", "lengths = [16]", "",
                                                   "dtype = \"bf16\"\nbackward = false"));
  const ProgramRun run = run_timeline(scenario, "--trace quoted.json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("trace: quoted.json, "), std::string::npos) << run.out;
  const Json trace = Json::parse(read_text(work_folder() / "quoted.json"));
  EXPECT_EQ(trace["otherData"]["scenario"], "Say \"no\" \\ twice");
  for (const Json& slice : events_of(trace, "X")) EXPECT_EQ(slice["args"]["pass"], "forward");
}

}  // namespace
}  // namespace cpscope::tests
