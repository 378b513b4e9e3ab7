#include "gui/app/run_views.h"

#include "gui/app/command.h"
#include "gui/app/lesson.h"
#include "reference/faulty_walker.h"
#include "sim/run/record/item_tensors.h"
#include "sim/scenario/scenario_file.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/sim/run/scratch_folder.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::make_numbers_toolbox;
using tests::NumbersCase;
using tests::plan_shipped;
using tests::run_shipped;

/// A file of the test's own folder, which is removed when the program ends.
std::string record_place(const std::string& name) {
  static const testing_support::ScratchFolder folder;
  return folder.file(name);
}

SharedRun run_on_walker(const SharedPlan& plan) {
  Toolbox toolbox = make_numbers_toolbox();
  TaskControl control;
  Result<SharedRun> run = make_runner(toolbox)("cpu", plan, control);
  EXPECT_TRUE(run.ok()) << to_text(run.error());
  EXPECT_EQ(control.progress, 1.0);
  return run.value();
}

TEST(RunViews, CompareARunWithTheOracle) {
  const SharedPlan plan = plan_shipped("zigzag");
  const SharedRun run = run_on_walker(plan);
  ASSERT_EQ(run->errors.size(), kErrorTensors.size());
  for (size_t t = 0; t < kErrorTensors.size(); ++t) {
    EXPECT_EQ(run->errors[t].name, kErrorTensors[t]);
    EXPECT_TRUE(run->errors[t].passed);
    EXPECT_TRUE(run->errors[t].has_row_budgets());
    EXPECT_GT(run->errors[t].rel_l2, 0);
    EXPECT_LE(run->errors[t].rel_l2, run->errors[t].budget);
  }
  EXPECT_EQ(run->name, "cpu (fp32)");
  EXPECT_TRUE(run->verdict.starts_with("Passes")) << run->verdict;
  EXPECT_TRUE(run->first_divergence.empty());
}

TEST(RunViews, ShowAFaultOfTheGalleryAndTheRightRunAfterIt) {
  Toolbox toolbox = make_numbers_toolbox();
  toolbox.watched_walker = reference::make_watched_walker;
  const auto lessons = all_lessons();
  const auto gallery = static_cast<int32_t>(lessons.size()) - 1;
  const auto& pages = lessons.back().steps;
  const auto page = std::find_if(pages.begin(), pages.end(), [](const LessonStep& step) {
    return step.fault != nullptr && step.fault->detector == Detector::output;
  });
  ASSERT_NE(page, pages.end());
  AppState state;
  state.services.executors = {"cpu"};
  state.services.run = make_runner(toolbox);
  ASSERT_TRUE(open_lesson(state, {gallery, static_cast<int32_t>(page - pages.begin())}));
  ASSERT_TRUE(apply_command(state, "lesson.fault"));
  while (is_working(state)) update(state, 0);
  ASSERT_TRUE(state.messages.empty()) << state.messages.back().text;
  ASSERT_TRUE(state.run_a && state.run_b);
  EXPECT_TRUE(state.run_a->name.starts_with(kFaultRun));
  EXPECT_FALSE(state.run_a->passed.value_or(true)) << page->fault->name;
  EXPECT_TRUE(state.run_b->passed.value_or(false));
  EXPECT_EQ(state.focus_view, ViewKind::numbers);
}

TEST(RunViews, StopWhenTheyAreCancelled) {
  const SharedPlan plan = plan_shipped("zigzag");
  Toolbox toolbox = make_numbers_toolbox();
  TaskControl control;
  control.is_stopped = true;
  const Result<SharedRun> run = make_runner(toolbox)("cpu", plan, control);
  ASSERT_FALSE(run.ok());
  EXPECT_TRUE(to_text(run.error()).starts_with("the run was cancelled after 0 of "))
      << to_text(run.error());
}

TEST(RunViews, FindWhereTwoRunsPart) {
  const SharedPlan plan = plan_shipped("zigzag");
  const SharedRun a = run_on_walker(plan);
  const Result<SharedRun> same = compare_runs(*a, *a, *plan);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same.value()->errors.size(), kErrorTensors.size());
  for (const ErrorField& field : same.value()->errors) EXPECT_EQ(field.rel_l2, 0);
  EXPECT_TRUE(same.value()->first_divergence.empty());

  // One item of the second run is wrong, and with it a row of the answer.
  auto record = std::make_shared<RunRecord>(*a->record);
  std::string first;
  for (Tensor& tensor : record->tensors) {
    const auto name = parse_item_name(tensor.name);
    if (name && name->item.kind == StageKind::compute && name->item.index == 2 && first.empty()) {
      first = tensor.name;
      tensor.values[5] += 1.0;
    }
    if (tensor.name == "out") tensor.values[700] += 1.0;
  }
  RunView b = *a;
  b.name = "wrong";
  b.record = record;
  const Result<SharedRun> parted = compare_runs(b, *a, *plan);
  ASSERT_TRUE(parted.ok());
  EXPECT_EQ(parted.value()->against, a->name);
  EXPECT_FALSE(parted.value()->errors[0].passed);
  EXPECT_TRUE(parted.value()->errors[1].passed);
  const int64_t row = 700 / 32;
  ASSERT_EQ(parted.value()->errors[0].worst.size(), 1u);
  EXPECT_EQ(parted.value()->errors[0].worst[0].token, row / 4);
  EXPECT_EQ(parted.value()->errors[0].worst[0].head, row % 4);
  EXPECT_TRUE(parted.value()->first_divergence.starts_with(
      "first diverging item: forward compute 2, rank 2, step 1, out: row 0 (token "))
      << parted.value()->first_divergence;
}

TEST(RunViews, OpenARecordThatWasMadeElsewhere) {
  NumbersCase made = run_shipped("zigzag");
  made.outcome.output.answer.out.values[300] += 2.0;
  const std::string path = record_place("elsewhere.safetensors");
  RunRecord record = make_record(made.outcome, "text");
  record.executor = "cuda";
  ASSERT_TRUE(write_record(record, path).ok());
  const Toolbox toolbox = make_numbers_toolbox();
  TaskControl control;
  const Result<SharedRun> run = load_run(path, *made.plan, toolbox, control);
  ASSERT_TRUE(run.ok()) << to_text(run.error());
  EXPECT_EQ(run.value()->name, "elsewhere.safetensors: cuda (fp32)");
  EXPECT_TRUE(run.value()->verdict.starts_with("Fails: out:")) << run.value()->verdict;
  ASSERT_EQ(run.value()->errors.size(), kErrorTensors.size());
  EXPECT_EQ(run.value()->errors[0].rows_over, 1);
  EXPECT_EQ(run.value()->errors[0].worst[0].token, 300 / 32 / 4);
  EXPECT_TRUE(run.value()->errors[2].passed);
}

TEST(RunViews, RefuseRecordsThatDoNotFit) {
  NumbersCase made = run_shipped("zigzag");
  RunRecord record = make_record(made.outcome, "the text inside");
  const std::string path = record_place("other.safetensors");
  ASSERT_TRUE(write_record(record, path).ok());
  const Toolbox toolbox = make_numbers_toolbox();
  TaskControl control;
  const SharedPlan other = plan_shipped("contiguous_idle");
  const Result<SharedRun> foreign = load_run(path, *other, toolbox, control);
  ASSERT_FALSE(foreign.ok());
  EXPECT_EQ(foreign.error().complaints[0].what, "This record belongs to another plan: hash " +
                                                    record.plan_hash + " differs from " +
                                                    to_hex(other->plan().hash));
  EXPECT_EQ(foreign.error().complaints[0].hint, "open the scenario stored inside it");
  EXPECT_EQ(read_record(path).value().scenario_text, "the text inside");

  // The hash is right, but the shapes are not: file content is untrusted.
  for (Tensor& tensor : record.tensors)
    if (tensor.name == "lse") tensor.shape = {4, 256};
  ASSERT_TRUE(write_record(record, path).ok());
  const Result<SharedRun> bent = load_run(path, *made.plan, toolbox, control);
  ASSERT_FALSE(bent.ok());
  EXPECT_NE(to_text(bent.error()).find("Tensor lse"), std::string::npos);
  std::erase_if(record.tensors, [](const Tensor& tensor) { return tensor.name == "lse"; });
  ASSERT_TRUE(write_record(record, path).ok());
  EXPECT_FALSE(load_run(path, *made.plan, toolbox, control).ok());
  EXPECT_FALSE(load_run(record_place("absent.safetensors"), *made.plan, toolbox, control).ok());
}

}  // namespace
}  // namespace cpscope::gui
