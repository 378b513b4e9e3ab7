#include "gui/app/run_bytes.h"

#include "gui/app/run_views.h"
#include "sim/run/record/run_record.h"
#include "tests/gui/model/numbers_cases.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::make_numbers_toolbox;
using tests::plan_shipped;

SharedRun run_zigzag() {
  Toolbox toolbox = make_numbers_toolbox();
  TaskControl control;
  return make_runner(toolbox)("cpu", plan_shipped("zigzag"), control).value();
}

TEST(RunBytes, KeepAllThatIsShownOfARun) {
  const SharedRun run = run_zigzag();
  const std::string bytes = write_run_bytes(run);
  const Result<SharedRun> read = read_run_bytes(bytes);
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  const RunView& view = *read.value();
  EXPECT_EQ(view.name, run->name);
  EXPECT_EQ(view.verdict, run->verdict);
  EXPECT_EQ(view.passed, run->passed);
  EXPECT_EQ(view.events.size(), run->events.size());
  ASSERT_EQ(view.errors.size(), run->errors.size());
  for (size_t t = 0; t < view.errors.size(); ++t) {
    EXPECT_EQ(view.errors[t].row_errors, run->errors[t].row_errors);
    EXPECT_EQ(view.errors[t].row_budgets, run->errors[t].row_budgets);
    EXPECT_EQ(view.errors[t].worst.size(), run->errors[t].worst.size());
    EXPECT_EQ(view.errors[t].histogram.bins, run->errors[t].histogram.bins);
    EXPECT_EQ(view.errors[t].shares.at(17, 0), run->errors[t].shares.at(17, 0));
  }
  ASSERT_TRUE(view.record);
  ASSERT_EQ(view.record->tensors.size(), run->record->tensors.size());
  EXPECT_EQ(view.record->tensors.back().name, run->record->tensors.back().name);
  EXPECT_EQ(view.record->tensors.back().values, run->record->tensors.back().values);
  ASSERT_TRUE(view.steps);
  EXPECT_EQ(view.steps->fields[0].size(), run->steps->fields[0].size());
  // The same bytes again: nothing was left out on the way back.
  EXPECT_EQ(write_run_bytes(read), bytes);
}

TEST(RunBytes, KeepAnErrorWithItsHint) {
  const Error error = make_refusal("No memory", "take fewer heads", {"attention.heads"});
  const Result<SharedRun> read = read_run_bytes(write_run_bytes(error));
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(to_text(read.error()), to_text(error));
  EXPECT_EQ(read.error().kind, ErrorKind::refused);
  EXPECT_EQ(read.error().complaints[0].keys, error.complaints[0].keys);
}

TEST(RunBytes, AreRejectedWhenTheyEndTooEarly) {
  const std::string bytes = write_run_bytes(run_zigzag());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{9}, bytes.size() / 2, bytes.size() - 1}) {
    const Result<SharedRun> read = read_run_bytes(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(read.ok()) << size;
    EXPECT_EQ(read.error().complaints[0].what, "The result of the run did not arrive whole");
  }
}

}  // namespace
}  // namespace cpscope::gui
