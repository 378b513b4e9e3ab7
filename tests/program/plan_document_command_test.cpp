// Plan documents as users of the program meet them.
#include "tests/program/program_run.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

/// The document of a small plan, as a file.
std::string write_plan(const std::string& name, const std::string& parallel,
                       const std::string& numerics = "dtype = \"fp64\"") {
  const std::string scenario =
      write_file(name + ".toml", small_scenario(parallel, "lengths = [37, 0, 21]", "", numerics));
  const ProgramRun made = run_cpscope("plan " + scenario + " --json --full");
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return write_file(name + ".json", made.out);
}

/// The same schedule under the name of none.
std::string call_custom(const std::string& path) {
  json document = json::parse(read_text(path));
  document["scenario"]["parallel"]["cp_comm_type"] = "custom";
  return write_file("custom_" + std::filesystem::path(path).filename().string(), document.dump());
}

TEST(PlanDocumentCommand, ProvesWhatPlanPrints) {
  for (const char* comm : {"p2p", "a2a", "all_gather", "a2a+p2p", "group_cast", "pass_q",
                           "token_ring", "helper_ring", "mesh", "gather_q", "double_ring"}) {
    const std::string file =
        write_plan("typed", "cp_size = 4\ncp_comm_type = \"" + std::string(comm) + "\"");
    const ProgramRun text = run_cpscope("check " + file);
    EXPECT_EQ(text.exit_code, 0) << comm << text.out << text.err;
    EXPECT_NE(text.out.find("proved gradients"), std::string::npos) << text.out;
    EXPECT_NE(text.out.find("\nPASS\n"), std::string::npos) << text.out;
    const json document = json::parse(run_cpscope("check " + file + " --json").out);
    EXPECT_EQ(document["passed"], true);
    EXPECT_EQ(document["checks"].size(), 7U);
    EXPECT_EQ(document["plan_hash"], json::parse(read_text(file))["hash"]);
  }
}

TEST(PlanDocumentCommand, IsTakenWhereverAScenarioIs) {
  for (const bool is_custom : {false, true}) {
    // Clusters have times of 16 and 32 bits.
    std::string file =
        write_plan("taken", "cp_size = 4\ncp_comm_type = \"token_ring\"", "dtype = \"fp32\"");
    const json own = json::parse(run_cpscope("run " + file + " --json").out);
    if (is_custom) file = call_custom(file);
    const ProgramRun ran =
        run_cpscope("run " + file + " --poison --record taken.safetensors --json");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    const json run = json::parse(ran.out);
    EXPECT_EQ(run["passed"], true);
    EXPECT_EQ(run["plan_hash"] == own["plan_hash"], !is_custom);
    for (const char* arguments :
         {"probe ", "verify ", "layout ", "plan --text ", "plan --summary ", "plan --json --full ",
          "timeline --cluster h200x8 ", "bench ", "render --view all --out taken.svg "}) {
      const ProgramRun other = run_cpscope(arguments + file);
      EXPECT_EQ(other.exit_code, 0) << arguments << other.out << other.err;
    }
    const ProgramRun graded = run_cpscope("grade " + file + " taken.safetensors");
    EXPECT_EQ(graded.exit_code, 0) << graded.out << graded.err;
  }
}

TEST(PlanDocumentCommand, IsNotTakenByCommandsThatPlan) {
  const std::string file = write_plan("planned", "cp_size = 2");
  for (const char* arguments :
       {"compare --cluster h200x8 ", "forecast --cluster h200x8 ", "fuzz "}) {
    const ProgramRun refused = run_cpscope(arguments + file);
    EXPECT_EQ(refused.exit_code, 2) << arguments;
    EXPECT_NE(refused.err.find("plans the split by itself"), std::string::npos) << refused.err;
  }
}

TEST(PlanDocumentCommand, NamesTheFirstBrokenPromise) {
  const std::string good = write_plan("broken", "cp_size = 4");
  json document = json::parse(read_text(good));
  json& merges = document["forward"]["merges"];
  ASSERT_GT(merges.size(), 4U);
  merges[4].erase("partial");
  const std::string file = write_file("broken.json", document.dump());
  const ProgramRun text = run_cpscope("check " + file);
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_NE(text.out.find("BROKEN movement: forward, "), std::string::npos) << text.out;
  EXPECT_NE(text.err.find("was changed after its hash"), std::string::npos) << text.err;
  const json said = json::parse(run_cpscope("check " + file + " --json").out);
  EXPECT_EQ(said["passed"], false);
  const json& broken = said["broken"];
  EXPECT_EQ(broken["check"], "movement");
  EXPECT_EQ(broken["pass"], "forward");
  for (const char* key : {"step", "rank", "kind", "item"}) EXPECT_TRUE(broken.contains(key)) << key;
  for (const char* command : {"run ", "probe ", "verify ", "plan --text ", "layout "}) {
    const ProgramRun refused = run_cpscope(command + file);
    EXPECT_EQ(refused.exit_code, 1) << command << refused.out;
    EXPECT_NE((refused.err + refused.out).find("the plan is wrong (movement)"), std::string::npos)
        << command << refused.err;
  }
}

TEST(PlanDocumentCommand, SaysWhatIsNoPlan) {
  struct Case {
    std::string text, said;
  };
  const std::string good = read_text(write_plan("good", "cp_size = 2"));
  json other = json::parse(good);
  other["schema"] = 9;
  for (const Case& wrong :
       {Case{"", "the document ends"}, Case{good.substr(0, good.size() / 2), "wrong.json:"},
        Case{other.dump(), "/schema: this program reads plan documents of schema 1: 9"},
        Case{"{\"a\": 1}", "there is no such key here"}, Case{"schema = 1\n", "an object is due"},
        Case{std::string(3, '\xff'), "an object is due"}}) {
    const std::string file = write_file("wrong.json", wrong.text);
    const ProgramRun checked = run_cpscope("check " + file);
    EXPECT_EQ(checked.exit_code, 2) << checked.out;
    EXPECT_NE(checked.err.find(wrong.said), std::string::npos) << checked.err;
    const json document = json::parse(run_cpscope("check " + file + " --json").out);
    EXPECT_TRUE(document.contains("error")) << document.dump();
  }
  const ProgramRun missing = run_cpscope("check no_such_file.json");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("no_such_file.json"), std::string::npos) << missing.err;
}

TEST(PlanDocumentCommand, RejectsAScenarioFileWithACustomSchedule) {
  const std::string file =
      write_file("custom.toml", small_scenario("cp_size = 2\ncp_comm_type = \"custom\""));
  const ProgramRun refused = run_cpscope("plan " + file);
  EXPECT_EQ(refused.exit_code, 2);
  for (const char* words : {"custom.toml:", "a plan document", "cpscope.Schedule"})
    EXPECT_NE(refused.err.find(words), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace cpscope::tests
