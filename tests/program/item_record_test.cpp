// Records with the results of items, as users of `run --items` and `diff` meet them.
#include "sim/run/record/item_tensors.h"
#include "sim/run/record/run_record.h"
#include "tests/program/program_run.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

constexpr const char* kItem = "backward.compute.6.rank2.step1.dk";

std::string item_scenario() {
  return small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "", "dtype = \"bf16\"");
}

/// Runs the scenario and gives back where its record is.
std::string record_run(const std::string& name, const std::string& scenario,
                       const std::string& options = "--items") {
  const std::string path = (work_folder() / name).string();
  const ProgramRun run = run_cpscope("run " + scenario + " --record " + path + " " + options);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return path;
}

/// The same record with one element of a tensor replaced.
std::string altered(const std::string& path, const std::string& tensor, size_t index,
                    double value) {
  RunRecord record = read_record(path).value();
  for (Tensor& candidate : record.tensors) {
    if (candidate.name == tensor) candidate.values.at(index) = value;
  }
  const std::string target = path + "." + tensor;
  EXPECT_TRUE(write_record(record, target).ok());
  return target;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ItemRecord, AppendsItemsAndLeavesTheRestAsItIs) {
  const std::string file = write_file("items.toml", small_scenario());
  const RunRecord with = read_record(record_run("with.safetensors", file)).value();
  const RunRecord without = read_record(record_run("without.safetensors", file, "")).value();
  EXPECT_GT(with.tensors.size(), without.tensors.size());
  for (size_t t = 0; t < with.tensors.size(); ++t) {
    const auto name = parse_item_name(with.tensors[t].name);
    EXPECT_EQ(name.has_value(), t >= without.tensors.size()) << with.tensors[t].name;
    EXPECT_EQ(with.tensors[t].shape.size() == 3 || !name, true);
    if (name) {
      EXPECT_EQ(with.tensors[t].dtype, Dtype::fp64) << "an fp64 item keeps its digits";
    }
    if (t < without.tensors.size()) {
      EXPECT_EQ(with.tensors[t].name, without.tensors[t].name);
      EXPECT_EQ(with.tensors[t].values, without.tensors[t].values);
    }
  }
  EXPECT_EQ(with.clock, "none") << "the walker has no clock";
  std::vector<std::string> judged;
  for (const TensorBudget& budget : with.budgets) judged.push_back(budget.name);
  EXPECT_EQ(judged, (std::vector<std::string>{"out", "lse", "max_logit", "dq", "dk", "dv"}));
}

TEST(ItemRecord, NeedsARecordToStandIn) {
  const std::string file = write_file("needs.toml", small_scenario());
  EXPECT_EQ(run_cpscope("run " + file + " --items").exit_code, 2);
}

TEST(ItemRecord, IsRefusedBeforeItsHeaderGrowsTooLong) {
  const std::string file = write_file(
      "many.toml", small_scenario("cp_size = 512", "lengths = [1024]", "", "dtype = \"bf16\""));
  const ProgramRun run = run_cpscope("run " + file + " --items --record many.safetensors");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_TRUE(contains(run.err, "not executed")) << run.err;
  EXPECT_FALSE(std::filesystem::exists(work_folder() / "many.safetensors"));
}

TEST(ItemDiff, FindsNothingBetweenTwoRunsOfTheWalker) {
  const std::string file = write_file("same.toml", item_scenario());
  const std::string a = record_run("same_a", file), b = record_run("same_b", file);
  for (const char* rule : {"", " --earned"}) {
    const ProgramRun run = run_cpscope("diff " + a + " " + b + " --json" + rule);
    EXPECT_EQ(run.exit_code, 0) << run.out.substr(0, 400);
    const json document = json::parse(run.out);
    EXPECT_TRUE(document["first_item"].is_null());
    EXPECT_GT(document["items"].size(), 50u);
    EXPECT_EQ(document["tensors"].size(), 10u);
  }
}

TEST(ItemDiff, NamesAPlantedDivergenceInTheMiddleOfThePlan) {
  const std::string file = write_file("planted.toml", item_scenario());
  const std::string a = record_run("planted", file);
  const RunRecord whole = read_record(a).value();
  const Tensor* item = whole.find(kItem);
  ASSERT_NE(item, nullptr);
  // A later item is off as well, and further.
  const size_t index =
      static_cast<size_t>(5 * item->shape[1] * item->shape[2] + item->shape[2] + 3);
  const std::string first = altered(a, kItem, index, 100.0);
  const std::string b = altered(first, whole.tensors.back().name, 0, 1e6);

  const ProgramRun text = run_cpscope("diff " + b + " " + a + " --earned");
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_TRUE(contains(text.out,
                       "first diverging item: backward compute 6, rank 2, step 1, dk: "
                       "row 5 (token "))
      << text.out;
  EXPECT_TRUE(contains(text.out, "head 1, element 3: 100 vs ")) << text.out;
  EXPECT_TRUE(contains(text.out, "out        equal")) << text.out;

  const ProgramRun run = run_cpscope("diff " + b + " " + a + " --earned --json");
  EXPECT_EQ(run.exit_code, 1);
  const json found = json::parse(run.out)["first_item"];
  EXPECT_EQ(found["name"], kItem);
  EXPECT_EQ(found["pass"], "backward");
  EXPECT_EQ(found["kind"], "compute");
  EXPECT_EQ(found["item"], 6);
  EXPECT_EQ(found["rank"], 2);
  EXPECT_EQ(found["step"], 1);
  EXPECT_EQ(found["array"], "dk");
  EXPECT_EQ(found["worst"]["row"], 5);
  EXPECT_EQ(found["worst"]["head"], 1);
  EXPECT_EQ(found["worst"]["lane"], 3);
  EXPECT_EQ(found["worst"]["left"], 100.0);
  EXPECT_TRUE(found["worst"]["token"].is_number());
}

TEST(ItemDiff, LetsPassWhatTheBudgetsExplainAndNothingWithoutThem) {
  const std::string file = write_file("little.toml", item_scenario());
  const std::string a = record_run("little", file);
  const double value = read_record(a).value().find(kItem)->values[0];
  const std::string b = altered(a, kItem, 0, value + 1e-4);
  EXPECT_EQ(run_cpscope("diff " + a + " " + b + " --earned").exit_code, 0);
  const ProgramRun exact = run_cpscope("diff " + a + " " + b);
  EXPECT_EQ(exact.exit_code, 1);
  EXPECT_TRUE(contains(exact.out, "first diverging item: backward compute 6")) << exact.out;
  EXPECT_EQ(run_cpscope("diff " + a + " " + b + " --tolerance 0.1").exit_code, 0);
}

TEST(ItemDiff, SaysWhenOnlyOneSideHoldsItems) {
  const std::string file = write_file("one_sided.toml", item_scenario());
  const std::string a = record_run("one_sided_a", file), b = record_run("one_sided_b", file, "");
  const ProgramRun run = run_cpscope("diff " + a + " " + b);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(contains(run.out, "only the left record holds the results of items")) << run.out;
  EXPECT_FALSE(contains(run.out, "first diverging")) << run.out;
}

TEST(ItemDiff, EarnsNothingBetweenDifferentScenariosOrWithoutBudgets) {
  const std::string file = write_file("here.toml", item_scenario());
  const std::string other = write_file("other.toml", item_scenario() + "# another text\n");
  const std::string a = record_run("here", file), b = record_run("other", other);
  const ProgramRun run = run_cpscope("diff " + a + " " + b + " --earned");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(contains(run.err, "different scenarios")) << run.err;
  EXPECT_EQ(run_cpscope("diff " + a + " " + b).exit_code, 0) << "only the text differs";

  RunRecord plain = read_record(a).value();
  plain.budgets.clear();
  const std::string unjudged = a + ".unjudged";
  ASSERT_TRUE(write_record(plain, unjudged).ok());
  const ProgramRun none = run_cpscope("diff " + a + " " + unjudged + " --earned");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_TRUE(contains(none.err, "holds no budgets")) << none.err;
  EXPECT_EQ(run_cpscope("diff " + a + " " + a + " --earned --tolerance 1").exit_code, 2);
}

TEST(ItemRecord, DoesNotTakeABudgetThatForgivesEverything) {
  const std::string path = record_run("honest.safetensors", write_file("h.toml", small_scenario()));
  RunRecord record = read_record(path).value();
  record.budgets.front().rel_l2 = 1e9;
  const std::string forged = (work_folder() / "forged.safetensors").string();
  ASSERT_TRUE(write_record(record, forged).ok());
  const ProgramRun run = run_cpscope("diff " + forged + " " + path + " --earned");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("be off by more than itself"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace cpscope::tests
