#include "tests/program/program_run.h"
#include "tests/support/sweep.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

/// stdout must hold one JSON document and nothing else.
json parse_document(const ProgramRun& run) {
  json document = json::parse(run.out, nullptr, false);
  EXPECT_FALSE(document.is_discarded())
      << "not JSON: " << run.out.substr(0, 400) << "\nstderr: " << run.err;
  return document;
}

/// All faults in a wide sweep, which is no name; else every sixth.
std::string some_faults() {
  if (is_wide_sweep()) return "";
  std::string names;
  const json document = parse_document(run_cpscope("faults --list --json"));
  for (size_t i = 0; i < document["faults"].size(); i += 6)
    names += " " + document["faults"][i]["name"].get<std::string>();
  return names;
}

TEST(FaultsCommand, WritesTheContractsDocument) {
  const ProgramRun run = run_cpscope("faults --json" + some_faults());
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = parse_document(run);
  EXPECT_EQ(document["schema"], 1);
  EXPECT_EQ(document["false_alarms"], 0);
  ASSERT_GE(document["faults"].size(), is_wide_sweep() ? 100u : 15u);
  for (const json& fault : document["faults"]) {
    EXPECT_EQ(fault["caught"], true) << fault;
    EXPECT_EQ(fault["detector"], fault["expected_detector"]) << fault;
    EXPECT_TRUE(fault["causes"].is_array()) << fault;
    for (const char* key : {"rank", "step", "item"})
      EXPECT_TRUE(fault["where"][key].is_number_integer()) << fault;
    for (const char* key : {"name", "source", "plan_check"})
      EXPECT_FALSE(fault[key].get<std::string>().empty()) << fault;
  }
}

TEST(FaultsCommand, NamesACauseInJsonAndInTheLastColumn) {
  const json document = parse_document(run_cpscope("faults cu_seqlens_ignored --json"));
  EXPECT_EQ(document["faults"][0]["causes"], json::array({"documents_ignored"}));
  const ProgramRun run = run_cpscope("faults cu_seqlens_ignored kv_expanded_before_exchange");
  EXPECT_NE(run.out.find("blind          documents_ignored\n"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("refuted    blind\n"), std::string::npos) << run.out;
}

TEST(FaultsCommand, ListsNamesSourcesAndWhatIsOutOfScopeWithoutRunningAnything) {
  const json document = parse_document(run_cpscope("faults --list --json"));
  EXPECT_FALSE(document["faults"].empty());
  EXPECT_EQ(document["out_of_scope"].size(), 6u);
  const ProgramRun run = run_cpscope("faults --list");
  EXPECT_EQ(run.exit_code, 0);
  for (const json& fault : document["faults"])
    EXPECT_NE(run.out.find(fault["source"].get<std::string>()), std::string::npos) << fault;
}

}  // namespace
}  // namespace cpscope::tests
