// Contents of a record other than its tensors: item times and error budgets.
#include "sim/run/record/record_extras.h"

#include "tests/sim/run/scratch_folder.h"
#include "tests/sim/run/special_numbers.h"

#include <limits>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

using testing_support::ScratchFolder;

RunRecord timed_record() {
  RunRecord record;
  record.clock = "measured";
  record.budgets = {{"out", 0.0078125, 0.1}, {"dq", kInfinity, 1e-300}};
  record.events = {{{Direction::forward, StageKind::transfer, 0}, RankId{1}, StepId{0}, 5, 17},
                   {{Direction::backward, StageKind::finish, (int64_t{1} << 27) - 1},
                    RankId{65'535},
                    StepId{65'534},
                    (int64_t{1} << 53) - 1,
                    int64_t{1} << 53}};
  record.tensors = {{.name = "out", .shape = {1}, .dtype = Dtype::fp32, .values = {1.0}}};
  return record;
}

Result<RunRecord> write_and_read(const RunRecord& record) {
  const ScratchFolder folder;
  const std::string path = folder.file("a.safetensors");
  const Result<std::string> written = write_record(record, path);
  EXPECT_TRUE(written.ok());
  return read_record(path);
}

TEST(RecordExtras, ComeBackAsTheyWereWritten) {
  const RunRecord written = timed_record();
  const Result<RunRecord> read = write_and_read(written);
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  EXPECT_EQ(read.value().clock, "measured");
  ASSERT_EQ(read.value().events.size(), 2u);
  for (size_t e = 0; e < 2; ++e) {
    const ItemEvent &before = written.events[e], &after = read.value().events[e];
    EXPECT_EQ(after.item, before.item);
    EXPECT_EQ(after.rank, before.rank);
    EXPECT_EQ(after.step, before.step);
    EXPECT_EQ(after.start_ns, before.start_ns);
    EXPECT_EQ(after.end_ns, before.end_ns);
  }
  ASSERT_EQ(read.value().budgets.size(), 2u);
  for (size_t b = 0; b < 2; ++b) {
    EXPECT_EQ(read.value().budgets[b].name, written.budgets[b].name);
    EXPECT_EQ(read.value().budgets[b].rel_l2, written.budgets[b].rel_l2);
    EXPECT_EQ(read.value().budgets[b].l2, written.budgets[b].l2);
  }
  ASSERT_EQ(read.value().tensors.size(), 1u) << "events are no tensor of the run";
}

TEST(RecordExtras, AreNotMissedInARecordWithoutThem) {
  RunRecord record = timed_record();
  record.clock = "none";
  record.events.clear();
  record.budgets.clear();
  const Result<RunRecord> read = write_and_read(record);
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(read.value().events.empty());
  EXPECT_TRUE(read.value().budgets.empty());
}

TEST(RecordExtras, LeaveATensorThatIsMerelyCalledEventsAlone) {
  RunRecord record = timed_record();
  record.events.clear();
  record.tensors.push_back(
      {.name = "events", .shape = {2}, .dtype = Dtype::fp64, .values = {0.5, 2.0}});
  EXPECT_NE(write_and_read(record).value().find("events"), nullptr);
  record.clock = "none";
  record.tensors.back().shape = {0, 7};
  record.tensors.back().values.clear();
  EXPECT_NE(write_and_read(record).value().find("events"), nullptr);
}

TEST(RecordExtras, RefuseEventsThatCannotBe) {
  const double good[7] = {1, 2, 3, 4, 5, 6, 7};
  const double wrong[7] = {
      2, 5, 0.5, -1, 1e10, kInfinity, std::numeric_limits<double>::quiet_NaN()};
  for (size_t field = 0; field < 7; ++field) {
    RunRecord record = timed_record();
    record.events.clear();
    record.tensors.push_back({.name = "events",
                              .shape = {1, 7},
                              .dtype = Dtype::fp64,
                              .values = std::vector<double>(good, good + 7)});
    ASSERT_TRUE(write_and_read(record).ok());
    record.tensors.back().values[field] = wrong[field];
    const Result<RunRecord> read = write_and_read(record);
    ASSERT_FALSE(read.ok()) << "field " << field;
    EXPECT_EQ(read.error().kind, ErrorKind::bad_input);
    EXPECT_NE(to_text(read.error()).find("\"events\""), std::string::npos);
  }
}

TEST(RecordExtras, RefuseBudgetsThatAreNoTableOfNumbers) {
  const std::string good = R"({"out":0.5,"dq":null})";
  ASSERT_TRUE(parse_budgets({{"budgets", good}, {"budgets_l2", good}}).ok());
  for (const char* bad :
       {"", "7", "null", "[]", "[1]", "{", R"({"out":"1","dq":1})", R"({"out":-1,"dq":1})",
        R"({"out":{"x":1},"dq":1})", R"({"out":[1],"dq":1})", R"({"out":true,"dq":1})",
        R"({"out":1,"out":1})", R"({"out":1})", R"({"dq":1,"out":1})"}) {
    const auto parsed = parse_budgets({{"budgets", good}, {"budgets_l2", bad}});
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.error().kind, ErrorKind::bad_input);
    EXPECT_FALSE(parse_budgets({{"budgets", bad}, {"budgets_l2", good}}).ok()) << bad;
  }
}

TEST(RecordExtras, WriteManyTensorsInTheirOrder) {
  RunRecord record;
  for (int i = 0; i < 20'000; ++i) {
    record.tensors.push_back({.name = "t" + std::to_string(i * 7919 % 20'000),
                              .shape = {1},
                              .dtype = i % 2 == 0 ? Dtype::fp32 : Dtype::fp64,
                              .values = {static_cast<double>(i)}});
  }
  const Result<RunRecord> read = write_and_read(record);
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  ASSERT_EQ(read.value().tensors.size(), record.tensors.size());
  for (size_t t = 0; t < record.tensors.size(); ++t) {
    ASSERT_EQ(read.value().tensors[t].name, record.tensors[t].name);
    ASSERT_EQ(read.value().tensors[t].values, record.tensors[t].values);
  }
}

}  // namespace
}  // namespace cpscope
