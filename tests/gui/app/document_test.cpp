#include "gui/app/document/document.h"

#include "sim/plan/check/plan_check.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/scenario_names.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::Document;

Document open_document(const Scenario& scenario) {
  Document document;
  EXPECT_FALSE(document.load_text(print_scenario(scenario), "a.toml"));
  document.wait();
  return document;
}

void edit_ranks(Document& document, int32_t ranks) {
  Scenario next = document.scenario();
  next.parallel.cp_size = ranks;
  document.edit(next, "parallel.cp_size");
  document.wait();
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Document, PlansAndProvesWhatItOpens) {
  const Document document = open_document(walker_case({64}, 4));
  ASSERT_TRUE(document.is_current());
  EXPECT_EQ(document.plan()->num_ranks(), 4);
  EXPECT_FALSE(document.plan()->checked().checks().empty());
  EXPECT_FALSE(document.is_modified());
}

TEST(Document, StaysAsItWasWhenAFileIsNoScenario) {
  Document document = open_document(walker_case({64}, 4));
  const gui::SharedPlan before = document.plan();
  EXPECT_TRUE(document.load_text("schema = 2", "b.toml"));
  EXPECT_TRUE(document.load("/no/such/file.toml"));
  EXPECT_EQ(document.plan(), before);
  EXPECT_EQ(document.path(), "a.toml");
}

TEST(Document, KeepsTheOldPlanWhileTheWantedOneIsImpossible) {
  Scenario scenario = walker_case({64}, 4);
  scenario.parallel.comm_type = CommType::a2a;
  Document document = open_document(scenario);
  const gui::SharedPlan before = document.plan();
  edit_ranks(document, 5);  // there are only 4 heads
  ASSERT_TRUE(document.refusal());
  EXPECT_EQ(document.plan(), before);
  EXPECT_FALSE(document.is_current());
  EXPECT_NE(gui::find_complaint(document.refusal(), "attention.heads"), nullptr);
  EXPECT_EQ(gui::find_complaint(document.refusal(), "attention.head_dim"), nullptr);
  edit_ranks(document, 2);
  EXPECT_FALSE(document.refusal());
  EXPECT_EQ(document.plan()->num_ranks(), 2);
}

TEST(Document, RefusesWhatAFileWithTheSameWordsWouldBeRefused) {
  Document document = open_document(walker_case({64}, 4));
  Scenario next = document.scenario();
  next.attention.kv_heads = 3;
  document.edit(next, "attention.kv_heads");
  ASSERT_TRUE(document.refusal());
  const Result<LoadedScenario> loaded = parse_scenario(print_scenario(next), "a.toml");
  ASSERT_FALSE(loaded);
  ASSERT_EQ(document.refusal()->complaints.size(), loaded.error().complaints.size());
  EXPECT_EQ(document.refusal()->complaints[0].what, loaded.error().complaints[0].what);
  EXPECT_EQ(document.refusal()->complaints[0].where, loaded.error().complaints[0].where);
  // A widget finds the complaint about its key.
  EXPECT_NE(gui::find_complaint(document.refusal(), "attention.kv_heads"), nullptr);
}

TEST(Document, MakesTheSlicesOfItsMaskAgainAndSavesTheMask) {
  Scenario scenario = walker_case({64}, 4);
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.generator.emplace();
  scenario.attention.generator->name = "block_causal";
  scenario.attention.generator->block = 16;
  Document document = open_document(scenario);
  ASSERT_TRUE(document.is_current());
  EXPECT_EQ(document.scenario().attention.slices.size(), 4u);
  Scenario next = document.scenario();
  next.batch.lengths = {80};
  document.edit(next, "batch.lengths");
  document.wait();
  ASSERT_TRUE(document.is_current());
  EXPECT_EQ(document.scenario().attention.slices.size(), 5u);
  EXPECT_NE(document.text().find("mask = { name = \"block_causal\", block = 16 }"),
            std::string::npos)
      << document.text();
}

TEST(Document, DerivesWhatFollowedTheLengths) {
  Document document = open_document(walker_case({64, 32}, 4));
  Scenario next = document.scenario();
  next.batch.lengths = {40, 32, 8};
  document.edit(next, "batch.lengths");
  document.wait();
  ASSERT_TRUE(document.is_current());
  EXPECT_EQ(document.scenario().batch.kv_lengths, next.batch.lengths);
  EXPECT_EQ(document.scenario().batch.slots, next.batch.lengths);
  EXPECT_EQ(document.scenario().batch.kv_slots, next.batch.lengths);
  EXPECT_TRUE(document.scenario().batch.self_attention);
}

TEST(Document, DerivesLengthsOfAChangedGeneratorAndDropsOneWhoseLengthsWereTyped) {
  Scenario scenario = walker_case({64}, 4);
  Generator generator;
  generator.name = "uniform";
  generator.tokens = 256;
  generator.max = 64;
  Document document = open_document(scenario);
  Scenario next = document.scenario();
  next.batch.generator = generator;
  document.edit(next, "batch.generator");
  int64_t sum = 0;
  for (const int64_t length : document.scenario().batch.lengths) sum += length;
  EXPECT_EQ(sum, 256);
  next = document.scenario();
  next.batch.lengths = {16, 16};
  document.edit(next, "batch.lengths");
  EXPECT_FALSE(document.scenario().batch.generator);
  EXPECT_EQ(document.scenario().batch.lengths, (std::vector<int64_t>{16, 16}));
}

TEST(Document, SlotsGivenByHandDoNotFollow) {
  Scenario scenario = walker_case({60, 30}, 4);
  scenario.batch.slots = scenario.batch.kv_slots = {64, 64};
  Document document = open_document(scenario);
  Scenario next = document.scenario();
  next.batch.lengths = {50, 30};
  document.edit(next, "batch.lengths");
  EXPECT_EQ(document.scenario().batch.slots, (std::vector<int64_t>{64, 64}));
  EXPECT_EQ(document.scenario().batch.kv_lengths, (std::vector<int64_t>{50, 30}));
}

TEST(Document, UndoesAndRedoesEdits) {
  const Scenario first = walker_case({64}, 4);
  Document document = open_document(first);
  edit_ranks(document, 2);
  document.end_edit();
  edit_ranks(document, 8);
  document.end_edit();
  EXPECT_TRUE(document.is_modified());
  document.undo();
  EXPECT_EQ(document.scenario().parallel.cp_size, 2);
  EXPECT_EQ(document.plan()->num_ranks(), 2);
  document.undo();
  EXPECT_EQ(document.scenario(), first);
  EXPECT_FALSE(document.can_undo());
  EXPECT_FALSE(document.is_modified());
  document.redo();
  document.redo();
  EXPECT_EQ(document.scenario().parallel.cp_size, 8);
  EXPECT_FALSE(document.can_redo());
  document.undo();
  edit_ranks(document, 16);
  EXPECT_FALSE(document.can_redo()) << "a new edit drops what was taken back";
}

TEST(Document, OneDragIsOneStepOfUndo) {
  Document document = open_document(walker_case({64}, 4));
  for (const int32_t ranks : {5, 6, 7}) edit_ranks(document, ranks);
  document.end_edit();
  for (const int32_t ranks : {8, 9}) edit_ranks(document, ranks);
  EXPECT_EQ(document.undo_key(), "parallel.cp_size");
  document.undo();
  EXPECT_EQ(document.scenario().parallel.cp_size, 7);
  document.undo();
  EXPECT_EQ(document.scenario().parallel.cp_size, 4);
}

TEST(Document, EditsOfDifferentKeysAreDifferentSteps) {
  Document document = open_document(walker_case({64}, 4));
  edit_ranks(document, 2);
  Scenario next = document.scenario();
  next.attention.mask_type = MaskType::no_mask;
  document.edit(next, "attention.attn_mask_type");
  document.undo();
  EXPECT_EQ(document.scenario().parallel.cp_size, 2);
  EXPECT_EQ(document.scenario().attention.mask_type, MaskType::causal);
}

TEST(Document, SavesWhatLoadsBackEqual) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "cpscope_document_test";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "saved.toml").string();
  Document document = open_document(walker_case({64, 20}, 4));
  edit_ranks(document, 8);
  ASSERT_FALSE(document.save(path));
  EXPECT_FALSE(document.is_modified());
  EXPECT_EQ(document.path(), path);
  const Result<LoadedScenario> back = load_scenario(path);
  ASSERT_TRUE(back);
  EXPECT_EQ(back.value().scenario, document.scenario());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1)
      << "nothing unfinished is left behind";
  EXPECT_TRUE(document.save((folder / "no" / "such.toml").string()));
  std::filesystem::remove_all(folder);
}

TEST(Document, KeepsTheTextOfAFileByteForByteUntilItIsEdited) {
  const std::string text = "# a comment\n" + print_scenario(walker_case({64}, 4));
  Document document;
  ASSERT_FALSE(document.load_text(text, "a.toml"));
  EXPECT_EQ(document.text(), text);
  edit_ranks(document, 2);
  EXPECT_NE(document.text(), text);
  document.undo();
  EXPECT_EQ(document.text(), text);
}

TEST(Document, DoesNotWriteWhatDoesNotParse) {
  const auto path = std::filesystem::path(testing::TempDir()) / "cpscope_kept.toml";
  std::ofstream(path) << "kept";
  Document document = open_document(walker_case({64}, 4));
  edit_ranks(document, -1);
  EXPECT_TRUE(document.save(path.string()));
  EXPECT_EQ(read(path), "kept");
  std::filesystem::remove(path);
}

TEST(Document, PlansLargeScenariosInTheBackgroundAndKeepsThePicture) {
  Document document = open_document(walker_case({64}, 4));
  const gui::SharedPlan before = document.plan();
  Scenario large = document.scenario();
  large.batch.lengths = {65536};
  large.parallel.cp_size = 128;
  ASSERT_FALSE(gui::is_planned_at_once(large));
  document.edit(large, "batch.lengths");
  EXPECT_TRUE(document.is_planning());
  EXPECT_EQ(document.plan(), before);
  document.wait();
  EXPECT_TRUE(document.is_current());
  EXPECT_EQ(document.plan()->num_ranks(), 128);
}

TEST(Document, RefusesAPlanThatDoesNotFitInPlaceAndTakesASmallerOne) {
  Document document = open_document(walker_case({64}, 4));
  document.limit_memory(1 << 20);
  edit_ranks(document, 128);
  ASSERT_TRUE(document.refusal().has_value());
  EXPECT_FALSE(document.is_planning());
  EXPECT_EQ(document.plan()->num_ranks(), 4) << "the picture stays";
  const Complaint* complaint = gui::find_complaint(document.refusal(), "parallel.cp_size");
  ASSERT_NE(complaint, nullptr) << "the widget of the ranks says it";
  EXPECT_TRUE(complaint->what.starts_with("Showing this plan would take about "))
      << complaint->what;
  EXPECT_TRUE(complaint->what.ends_with(": 128 ranks")) << complaint->what;
  EXPECT_FALSE(complaint->hint.empty());
  edit_ranks(document, 8);
  document.wait();
  EXPECT_FALSE(document.refusal().has_value());
  EXPECT_EQ(document.plan()->num_ranks(), 8);
}

/// Bytes of the arrays of a plan.
int64_t bytes_of_arrays(const Plan& plan) {
  const auto size = [](const auto& values) {
    return static_cast<int64_t>(values.size() * sizeof(*values.begin()));
  };
  int64_t bytes = size(plan.runs) + size(plan.run_lists) + size(plan.slices) + size(plan.buffers);
  for (const Pass* pass : {&plan.forward, &plan.backward})
    bytes += size(pass->stages) + size(pass->computes) + size(pass->transfers) +
             size(pass->reorders) + size(pass->merges) + size(pass->finishes);
  return bytes;
}

TEST(PlanSize, IsForetoldNeitherTooSmallNorFarTooLarge) {
  int planned = 0;
  for (const CommType comm : kCommTypes) {
    for (const LayoutKind layout :
         {LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
          LayoutKind::striped, LayoutKind::lpt, LayoutKind::lpt_local}) {
      for (const int64_t sequences : {1, 24}) {
        Scenario scenario =
            walker_case(std::vector<int64_t>(static_cast<size_t>(sequences), 4096 / sequences), 64);
        scenario.attention.heads = scenario.attention.kv_heads = 64;
        scenario.parallel.comm_type = comm;
        scenario.parallel.layout = layout;
        scenario.parallel.a2a_size = 8;
        scenario.parallel.dispatch_chunk = 16;
        const auto plan = plan_unless_refused(scenario);
        if (!plan) continue;
        ++planned;
        const auto foretold = static_cast<double>(gui::estimate_plan_bytes(scenario));
        const auto taken = static_cast<double>(bytes_of_arrays(plan->plan()));
        const std::string what = std::string(to_name(comm)) + ", " + std::string(to_name(layout)) +
                                 ", " + std::to_string(sequences) + " sequences";
        EXPECT_GE(foretold, taken) << what;
        EXPECT_LE(foretold, 60 * taken + (1 << 20)) << what;
      }
    }
  }
  EXPECT_GT(planned, 40);
}

TEST(Document, AbandonsPlansThatAreNoLongerWanted) {
  Document document = open_document(walker_case({64}, 4));
  for (const int32_t ranks : {128, 160, 192, 3}) {
    Scenario next = document.scenario();
    next.batch.lengths = {65536};
    next.parallel.cp_size = ranks;
    document.edit(next, "parallel.cp_size");
  }
  document.wait();
  ASSERT_TRUE(document.is_current());
  EXPECT_EQ(document.plan()->num_ranks(), 3);
  document.undo();
  document.wait();
  EXPECT_EQ(document.plan()->num_ranks(), 4);
}

TEST(Task, GivesItsResultOnce) {
  gui::Task<int> task;
  EXPECT_EQ(task.take(), nullptr);
  task.start([](gui::TaskControl& control) {
    control.progress = 0.5;
    return 7;
  });
  std::unique_ptr<int> result;
  while (!(result = task.take())) {
  }
  EXPECT_EQ(*result, 7);
  EXPECT_EQ(task.take(), nullptr);
  EXPECT_FALSE(task.is_running());
}

TEST(Task, AsksAbandonedWorkToStop) {
  gui::Task<int> task;
  task.start([](gui::TaskControl& control) {
    while (!control.is_stopped) {
    }
    return 1;
  });
  task.start([](gui::TaskControl&) { return 2; });
  std::unique_ptr<int> result;
  while (!(result = task.take())) {
  }
  EXPECT_EQ(*result, 2);
}

}  // namespace
}  // namespace cpscope::tests
