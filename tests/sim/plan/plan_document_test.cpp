#include "sim/plan/document/plan_document.h"

#include "sim/plan/check/plan_check.h"
#include "sim/plan/document/load_plan.h"
#include "sim/scenario/scenario_file.h"
#include "tests/sim/plan/faulty_plans.h"
#include "tests/sim/plan/plan_cases.h"

#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

std::string write(const Plan& plan) {
  std::ostringstream out;
  write_plan_document(plan, out);
  return out.str();
}

Plan read(const std::string& text) {
  Result<PlanDocument> document = read_plan_document(text, "plan.json");
  EXPECT_TRUE(document.ok()) << to_text(document.error());
  return document.ok() ? std::move(document.value().plan) : Plan{};
}

/// The error of a document, as one text.
std::string error_of(const std::string& text) {
  const Result<PlanDocument> document = read_plan_document(text, "plan.json");
  if (document) return "no error";
  EXPECT_NE(document.error().kind, ErrorKind::failed) << "reading proves nothing";
  return to_text(document.error());
}

/// A number for everything that a pass holds, step of each item included.
std::vector<int64_t> numbers_of(const Pass& pass) {
  std::vector<int64_t> numbers{pass.num_steps};
  const auto add = [&](auto... values) { (numbers.push_back(static_cast<int64_t>(values)), ...); };
  for (const Stage& s : pass.stages) add(s.step, s.kind, s.begin, s.end);
  for (const ComputeItem& c : pass.computes)
    add(c.step, c.rank, c.q, c.kv, c.out, c.d_out, c.dq, c.dkv, c.q_tokens, c.kv_tokens,
        c.heads.begin, c.heads.end, c.first_slice, c.num_slices, c.visible_pairs);
  for (const TransferItem& t : pass.transfers)
    add(t.step, t.src, t.dst, t.from, t.to, t.from_rows, t.to_rows, t.tokens, t.heads.begin,
        t.heads.end, t.bytes, t.payload, t.link, t.landing, t.wire_fp32);
  for (const ReorderItem& r : pass.reorders) add(r.step, r.rank, r.from, r.to, r.order);
  for (const MergeItem& m : pass.merges)
    add(m.step, m.rank, m.partial, m.into, m.order, m.into_rows);
  for (const FinishItem& f : pass.finishes) add(f.step, f.rank, f.buffer);
  return numbers;
}

void expect_same(const Plan& a, const Plan& b, const std::string& name) {
  SCOPED_TRACE(name);
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.scenario, b.scenario);
  EXPECT_EQ(a.layout.kind, b.layout.kind);
  EXPECT_EQ(a.layout.cp_size, b.layout.cp_size);
  EXPECT_EQ(a.layout.same_kv, b.layout.same_kv);
  EXPECT_EQ(a.layout.slots.sequences, b.layout.slots.sequences);
  EXPECT_EQ(a.layout.slots.tokens, b.layout.slots.tokens);
  EXPECT_EQ(a.layout.slots.kv_tokens, b.layout.slots.kv_tokens);
  EXPECT_EQ(a.layout.q_runs, b.layout.q_runs);
  EXPECT_EQ(a.layout.kv_runs, b.layout.kv_runs);
  EXPECT_EQ(a.runs, b.runs);
  ASSERT_EQ(a.run_lists.size(), b.run_lists.size());
  for (const RunListId id : a.run_lists.ids()) {
    EXPECT_EQ(a.run_lists[id].first, b.run_lists[id].first);
    EXPECT_EQ(a.run_lists[id].count, b.run_lists[id].count);
    EXPECT_EQ(a.run_lists[id].rows, b.run_lists[id].rows);
  }
  EXPECT_EQ(a.slices, b.slices);
  ASSERT_EQ(a.buffers.size(), b.buffers.size());
  for (const BufferId id : a.buffers.ids()) {
    const BufferSpec &x = a.buffer(id), &y = b.buffer(id);
    EXPECT_TRUE(x.rank == y.rank && x.kind == y.kind && x.role == y.role && x.tokens == y.tokens &&
                x.rows == y.rows && x.heads == y.heads)
        << "buffer " << to_index(id);
  }
  ASSERT_EQ(a.home.size(), b.home.size());
  for (const RankId rank : a.home.ids()) {
    const HomeBuffers &x = a.home[rank], &y = b.home[rank];
    EXPECT_TRUE(x.q == y.q && x.kv == y.kv && x.out == y.out && x.d_out == y.d_out &&
                x.dq == y.dq && x.dkv == y.dkv && x.stats == y.stats)
        << "rank " << to_index(rank);
  }
  EXPECT_EQ(a.q_lists, b.q_lists);
  EXPECT_EQ(a.kv_lists, b.kv_lists);
  EXPECT_EQ(numbers_of(a.forward), numbers_of(b.forward));
  EXPECT_EQ(numbers_of(a.backward), numbers_of(b.backward));
}

/// A small ring that every test may take apart.
json ring_document() { return json::parse(write(plan_of(make_case({16}, 2)))); }

TEST(PlanDocument, IsReadAsTheSamePlanItemForItem) {
  for (const GoodPlan& good : plans_of_every_type()) {
    const std::string text = write(good.plan);
    const Plan again = read(text);
    expect_same(good.plan, again, good.name);
    EXPECT_EQ(write(again), text) << good.name;
    for (const CheckResult& check : inspect_plan(again))
      EXPECT_TRUE(check.ok) << good.name << ": " << check.detail;
  }
}

// Lists of all rows of a rank that has none have no run.
TEST(PlanDocument, OfRanksWithoutTokensIsReadAgain) {
  for (const CommType type : {CommType::p2p, CommType::a2a, CommType::all_gather}) {
    Scenario empty = make_case({0, 0}, 2, LayoutKind::dual_chunk, type);
    empty.attention.heads = empty.attention.kv_heads = 2;
    Scenario rounds = make_case({0, 4, 5, 0}, 2, LayoutKind::dual_chunk, type);
    rounds.attention.heads = rounds.attention.kv_heads = 2;
    rounds.parallel.cp_sizes = {1, 1, 2, 2};
    rounds.parallel.group_rule = GroupRule::given;
    for (const Scenario& scenario : {empty, rounds}) {
      const Plan plan = plan_of(scenario);
      expect_same(plan, read(write(plan)), std::string(to_name(type)));
    }
  }
}

/// The example of the page that explains the format.
std::string example_of_page() {
  std::ifstream page(CPSCOPE_SOURCE_DIR "/sim/plan/PLAN.md");
  std::stringstream text;
  text << page.rdbuf();
  const std::string all = text.str(), fence = "```json\n";
  const size_t begin = all.find(fence) + fence.size();
  return all.substr(begin, all.find("```", begin) - begin);
}

TEST(PlanDocument, OfThePageIsProved) {
  const Plan plan = read(example_of_page());
  EXPECT_EQ(plan.layout.slots.tokens, 8);
  const std::vector<CheckResult> checks = inspect_plan(plan);
  ASSERT_EQ(checks.size(), 7U);
  for (const CheckResult& check : checks) EXPECT_TRUE(check.ok) << check.name << check.detail;
  // What the page says of the document without its last merge.
  json document = json::parse(example_of_page());
  document["forward"]["merges"].erase(2);
  for (json& stage : document["forward"]["stages"])
    if (stage["kind"] == "merge" && stage["step"] == 1) stage["end"] = 2;
  const Result<CheckedPlan> wrong = check_plan(read(document.dump()));
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(
      to_text(wrong.error()).find("the result of rank 1, step 1 is merged 0 times, 1 expected"),
      std::string::npos)
      << to_text(wrong.error());
}

TEST(PlanDocument, NamesItsPartsAsTheContractDoes) {
  const json document = ring_document();
  EXPECT_EQ(document["schema"], 1);
  EXPECT_EQ(document["kind"], "cpscope.plan");
  for (const char* key : {"scenario", "layout", "buffers", "forward", "backward", "hash"})
    EXPECT_TRUE(document.contains(key)) << key;
  for (const char* key :
       {"steps", "stages", "transfers", "computes", "merges", "reorders", "finishes"})
    EXPECT_TRUE(document["forward"].contains(key)) << key;
  EXPECT_EQ(document["scenario"]["parallel"]["cp_size"], 2);
}

TEST(PlanDocument, HoldsWhatGeneratorsMasksAndFilesHaveMade) {
  const std::string folder = ::testing::TempDir();
  const auto put = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder + "/" + name) << text;
  };
  put("docs_order.json", R"({"cp_size": 2, "ranks": [[0, 3, 4, 7], [1, 2, 5, 6]]})");
  put("docs_places.json", R"({"q": [0, 1, 1, 2, 2, 3, 3, 4]})");
  put("docs_lengths.csv", "3\n5\n");
  put("docs_mask.json", R"({"keys": [[0], [0, 1], [2], [0, 3], [1, 4], [5], [0, 1, 6], [7, 3]]})");
  const std::string attention = "schema = 1\n[attention]\nheads = 2\nhead_dim = 8\n";
  for (const std::string& text :
       {attention + "rope_theta = 10000.0\n[batch]\nlengths = [8]\npositions_file = "
                    "\"docs_places.json\"\n[parallel]\ncp_size = 2\n",
        attention + "[batch]\nlengths = [8]\n[parallel]\ncp_size = 2\nlayout = \"indices\"\n"
                    "indices_file = \"docs_order.json\"\n",
        attention + "[batch]\ngenerator = { name = \"csv\", file = \"docs_lengths.csv\" }\n"
                    "[parallel]\ncp_size = 2\n",
        attention + "[batch]\ngenerator = { name = \"wlb\", tokens = 4096, max = 1000 }\n"
                    "[parallel]\ncp_size = 2\n",
        attention + "attn_mask_type = \"slices\"\nmask = { name = \"block_causal\", block = 3 }\n"
                    "[batch]\nlengths = [8]\n[parallel]\ncp_size = 2\n",
        attention + "attn_mask_type = \"slices\"\nmask = { file = \"docs_mask.json\" }\n"
                    "[batch]\nlengths = [8]\n[parallel]\ncp_size = 2\n"}) {
    const Result<LoadedScenario> loaded = parse_scenario(text, folder + "/docs.toml");
    ASSERT_TRUE(loaded.ok()) << to_text(loaded.error()) << "\n" << text;
    const Plan plan = plan_of(loaded.value().scenario);
    // Read elsewhere, where none of the files is.
    expect_same(plan, read(write(plan)), text);
  }
}

TEST(PlanDocument, FillsInWhatIsLeftOut) {
  for (const GoodPlan& good : plans_of_every_type()) {
    json document = json::parse(write(good.plan));
    document.erase("hash");
    if (good.plan.scenario.parallel.layout != LayoutKind::indices) document.erase("layout");
    for (const char* pass : {"forward", "backward"}) {
      for (json& item : document[pass]["transfers"]) {
        item.erase("bytes");
        item.erase("step");
      }
      for (json& item : document[pass]["computes"]) {
        item.erase("visible_pairs");
        item.erase("step");
        if (item["slice_range"][0] == item["slice_range"][1]) item["slices"] = json::array();
        item.erase("slice_range");
      }
    }
    document.erase("slices");
    const Plan again = read(document.dump());
    for (const CheckResult& check : inspect_plan(again))
      EXPECT_TRUE(check.ok) << good.name << ": " << check.detail;
    ASSERT_EQ(again.forward.computes.size(), good.plan.forward.computes.size());
    for (size_t i = 0; i < again.forward.computes.size(); ++i) {
      const ComputeItem &a = again.forward.computes[i], &b = good.plan.forward.computes[i];
      EXPECT_EQ(slices_of(again, a), slices_of(good.plan, b)) << good.name << ", compute " << i;
      EXPECT_EQ(a.visible_pairs, b.visible_pairs) << good.name << ", compute " << i;
    }
    for (size_t i = 0; i < again.forward.transfers.size(); ++i)
      EXPECT_EQ(again.forward.transfers[i].bytes, good.plan.forward.transfers[i].bytes);
  }
}

TEST(PlanDocument, TakesSlicesThatAnItemLists) {
  json document = ring_document();
  json& item = document["forward"]["computes"][0];
  const int64_t begin = item["slice_range"][0], end = item["slice_range"][1];
  ASSERT_LT(begin, end);
  item.erase("slice_range");
  for (int64_t i = begin; i < end; ++i) item["slices"].push_back(document["slices"][i]);
  EXPECT_TRUE(check_plan(read(document.dump())).ok());
  item["slices"][0][1] = item["slices"][0][1].get<int>() - 1;
  EXPECT_FALSE(check_plan(read(document.dump())).ok());
}

TEST(PlanDocument, SaysThatItWasChangedSinceItsHash) {
  json document = ring_document();
  document["hash"] = "0000000000000000";
  const Result<PlanDocument> changed = read_plan_document(document.dump(), "plan.json");
  ASSERT_TRUE(changed.ok());
  ASSERT_EQ(changed.value().warnings.size(), 1U);
  EXPECT_NE(changed.value().warnings[0].find("was changed"), std::string::npos);
}

// Figures that a document states are compared with what its items come to.
TEST(PlanDocument, IsNotBelievedItsFigures) {
  for (const auto& [list, key] :
       {std::pair{"transfers", "bytes"}, std::pair{"computes", "visible_pairs"}}) {
    json document = ring_document();
    document["forward"][list][1][key] = document["forward"][list][1][key].get<int64_t>() + 1;
    EXPECT_FALSE(check_plan(read(document.dump())).ok()) << key;
  }
}

TEST(PlanDocument, NamesThePlaceOfBrokenJson) {
  const std::string text = write(plan_of(make_case({16}, 2)));
  EXPECT_NE(
      error_of("{\"schema\": 1,\n  \"kind\" \"cpscope.plan\"}").find("plan.json:2:10: a colon"),
      std::string::npos);
  for (const std::string& broken :
       {std::string(), std::string("   "), std::string("{"), std::string("[]"),
        std::string("{\"schema\": NaN}"), std::string("{\"schema\": 01}"),
        std::string("{\"schema\": 1}}"), std::string("{\"schema\": +1}"),
        std::string("{\"sch\\u00zz\": 1}"), std::string("{\"sch\nema\": 1}"),
        std::string("{\"title\\ud800\": 1}"), text + "x", "x" + text, std::string(100000, '['),
        "{\"lists\":" + std::string(100000, '[') + "}",
        "{\"scenario\":" + std::string(100000, '[') + "}", std::string("{\"\xff\xfe\": 1}"),
        std::string(1000, '\0')})
    EXPECT_NE(error_of(broken).find("plan.json:"), std::string::npos) << broken.substr(0, 60);
}

TEST(PlanDocument, IsRejectedWhereverItIsCut) {
  const std::string text = write(plan_of(make_case({8}, 2)));
  for (size_t end = 0; end + 2 < text.size(); ++end)
    EXPECT_NE(error_of(text.substr(0, end)).find("plan.json:"), std::string::npos) << end;
}

TEST(PlanDocument, NamesThePlaceOfWrongContent) {
  struct Case {
    const char* pointer;
    json value;
    const char* said;
  };
  const int64_t huge = 10'000'000'000;
  const Case cases[] = {
      {"/schema", 2, "/schema: this program reads plan documents of schema 1: 2"},
      {"/kind", "cpscope.run", "/kind: a plan document is of kind"},
      {"/scenario/parallel/cp_size", 0, "/scenario/parallel/cp_size"},
      {"/scenario/parallel/cp_comm_type", "rings", "/scenario/parallel/cp_comm_type"},
      {"/scenario/attention/head_dim", nullptr, "/scenario/attention/head_dim: null"},
      {"/scenario/attention/hads", 4, "heads"},
      {"/layout/tokens", 17, "/layout: it is not the layout dual_chunk"},
      {"/lists/0/0/0", -1, "/lists/0/0/0: a whole number from 0"},
      {"/lists/0/0", json{5, 5}, "/lists/0/0: the run [5, 5) is empty"},
      {"/lists/0/0", json{0, 4, 0}, "/lists/0/0/2"},
      {"/buffers/1/rank", 2, "/buffers/1/rank: there is no rank 2: 2 are there"},
      {"/buffers/1/kind", "kw", "/buffers/1/kind: it is none of"},
      {"/buffers/1/tokens", 99, "/buffers/1/tokens: there is no list 99"},
      {"/buffers/1/rows", huge, "/buffers/1/rows: a whole number"},
      {"/buffers/1/heads", json{0, 0}, "/buffers/1/heads: heads [0, 0) are none"},
      {"/buffers/1/role", "moved", "has no home buffer of kind kv"},
      {"/forward/steps", huge, "/forward/steps: a whole number"},
      {"/forward/steps", 1.5, "/forward/steps: a whole number from 0 to 2147483647 is due: 1.5"},
      {"/forward/transfers/0/to", 999, "/forward/transfers/0/to: there is no buffer 999"},
      {"/forward/transfers/0/to", -1, "/forward/transfers/0/to: a whole number"},
      {"/forward/transfers/0/src", 7, "/forward/transfers/0/src: there is no rank 7"},
      {"/forward/transfers/0/payloads", "kv",
       "there is no such key here: \"payloads\"; did you mean \"payload\"?"},
      {"/forward/transfers/0/bytes", json(1e19), "/forward/transfers/0/bytes"},
      {"/forward/computes/0/q_tokens", 99, "/forward/computes/0/q_tokens"},
      {"/forward/computes/0/slice_range", json{0, 99}, "/forward/computes/0/slice_range: it ends"},
      {"/forward/computes/0/d_out", 0, "belong to the backward"},
      {"/forward/merges/0/order", -3, "/forward/merges/0/order"},
      {"/backward/stages/0/kind", "send", "/backward/stages/0/kind: it is none of"},
      {"/slices/0", json{0, 4, 0, 4, 3, -3}, "/slices/0: a slice is"},
      {"/slices/0", json{0, 4, 0, 4, 3}, "/slices/0: 6 numbers are due: 5"}};
  for (const Case& wrong : cases) {
    json document = ring_document();
    document[json::json_pointer(wrong.pointer)] = wrong.value;
    const std::string said = error_of(document.dump());
    EXPECT_NE(said.find(wrong.said), std::string::npos)
        << wrong.pointer << " = " << wrong.value.dump() << "\n"
        << said;
  }
  for (const char* missing : {"/schema", "/kind", "/scenario", "/lists", "/buffers", "/forward",
                              "/forward/stages", "/forward/transfers/0/from"}) {
    json document = ring_document();
    const json::json_pointer pointer(missing);
    document[pointer.parent_pointer()].erase(pointer.back());
    EXPECT_NE(error_of(document.dump()).find("a key is missing"), std::string::npos) << missing;
  }
}

TEST(PlanDocument, RejectsAKeyThatIsGivenTwice) {
  std::string text = ring_document().dump();
  text.insert(text.find("\"src\":"), "\"src\":0,");
  EXPECT_NE(error_of(text).find("a key is given twice: \"src\""), std::string::npos)
      << error_of(text);
}

// What the reader lets through, the checks must withstand: sizes, cycles and stages of any kind.
TEST(PlanDocument, IsProvedWhateverItsNumbersAre) {
  struct Case {
    const char* pointer;
    json value;
  };
  const int64_t big = 2'147'483'646;
  const Case cases[] = {{"/forward/steps", big},
                        {"/forward/stages/0/step", big},
                        {"/forward/stages/0/begin", 1},
                        {"/forward/stages/0/end", 0},
                        {"/forward/stages/1/end", 100'000'000},
                        {"/forward/stages", json::array()},
                        {"/forward/transfers/0/step", 1},
                        {"/forward/transfers/0/heads", json{0, 2}},
                        {"/forward/transfers/0/payload", "dkv"},
                        {"/forward/transfers/0/adds", true},
                        {"/forward/transfers/0/fp32", true},
                        {"/forward/transfers/0/to", 0},
                        {"/forward/transfers/0/dst", 0},
                        {"/forward/transfers/0/from_rows", 1},
                        {"/forward/merges/0/order", 100'000'000},
                        {"/backward/merges/3/order", 100'000'000},
                        {"/forward/merges/1/partial", 0},
                        {"/forward/finishes/0/buffer", 0},
                        {"/forward/computes/0/heads", json{0, 9}},
                        {"/forward/computes/0/slice_range", json{0, 0}},
                        {"/slices/0", json{0, big, 0, big, -big, big}},
                        {"/slices/0", json{0, 1, 0, 1, 0, 0}},
                        {"/lists/0/0", json{0, big, 1}},
                        {"/lists/0/0", json{0, big, 2'000'000'000}},
                        {"/lists/0/0/0", 1},
                        {"/buffers/0/rows", big},
                        {"/scenario/attention/heads", 65536}};
  for (const Case& wrong : cases) {
    json document = ring_document();
    document[json::json_pointer(wrong.pointer)] = wrong.value;
    const Result<PlanDocument> read = read_plan_document(document.dump(), "plan.json");
    if (!read) continue;
    const Result<CheckedPlan> checked = check_plan(read.value().plan);
    EXPECT_FALSE(checked.ok()) << wrong.pointer << " = " << wrong.value.dump();
  }
}

}  // namespace
}  // namespace cpscope::tests
