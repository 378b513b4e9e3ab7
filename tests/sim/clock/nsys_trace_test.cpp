#include "sim/clock/foreign_trace.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>
#ifdef CPSCOPE_HAS_SQLITE
#include <sqlite3.h>
#endif

namespace cpscope {
namespace {

/// A database that is there as long as the object.
class NsysExport {
 public:
  explicit NsysExport([[maybe_unused]] const std::string& sql)
      : path_((std::filesystem::temp_directory_path() / fmt::format("nsys-{}.sqlite", ::getpid()))
                  .string()) {
    std::remove(path_.c_str());
#ifdef CPSCOPE_HAS_SQLITE
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    char* words = nullptr;
    EXPECT_EQ(
        sqlite3_exec(database, ("BEGIN;" + sql + "COMMIT;").c_str(), nullptr, nullptr, &words),
        SQLITE_OK)
        << words;
    sqlite3_free(words);
    sqlite3_close(database);
#else
    std::ofstream(path_, std::ios::binary) << "SQLite format 3" << '\0' << std::string(84, '\0');
#endif
  }
  ~NsysExport() { std::remove(path_.c_str()); }
  NsysExport(const NsysExport&) = delete;
  NsysExport& operator=(const NsysExport&) = delete;

  Result<ForeignTrace> read() const { return read_foreign_trace(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The tables of nsys's export, with the columns that are read here and some that are not.
const std::string kNsysTables =
    "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);"
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId "
    "INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId "
    "INTEGER, "
    "globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);"
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId "
    "INTEGER NOT NULL, correlationId INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);"
    "INSERT INTO StringIds VALUES (1, 'void flash_fwd_kernel<x>(Flash_fwd_params)'), (2, "
    "'ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)'), (3, 'elementwise');";

std::string kernel_row(int64_t start, int64_t end, int64_t device, int64_t name) {
  return fmt::format(
      "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({}, {}, {}, 1, 7, 5, 1, {}, 3);", start, end,
      device, name);
}

TEST(NsysTrace, NamesWhatIsMissingInABuildWithoutSqlite) {
  if (has_sqlite()) GTEST_SKIP() << "requires a build without SQLite: this one has it";
  const Result<ForeignTrace> read = NsysExport("").read();
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().kind, ErrorKind::unavailable);
  EXPECT_NE(to_text(read.error()).find("libsqlite3-dev"), std::string::npos);
}

TEST(NsysTrace, HoldsAProcessForEveryGpuInTheirOrder) {
  if (!has_sqlite()) GTEST_SKIP() << "requires SQLite: this build was made without it";
  const Result<ForeignTrace> read =
      NsysExport(
          kNsysTables + kernel_row(1'000, 2'000, 10, 1) + kernel_row(500, 900, 2, 2) +
          kernel_row(1'000, 1'500, 2, 1) + kernel_row(1'600, 1'700, 2, 3) +
          "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (3000, 3500, 2, 6, 4096, 10), (4000, "
          "4500, 2, 6, 4096, 8);")
          .read();
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  const ForeignTrace& trace = read.value();
  EXPECT_EQ(trace.format, "nsys");
  EXPECT_EQ(trace.rank, std::nullopt);
  ASSERT_EQ(trace.processes.size(), 2U);
  EXPECT_EQ(trace.processes[0].label, "GPU 2");
  EXPECT_EQ(trace.processes[1].label, "GPU 10");
  const std::vector<TraceSpan>& spans = trace.processes[0].spans;
  ASSERT_EQ(spans.size(), 3U) << "the copy inside of a GPU is not communication";
  EXPECT_EQ(spans[0].work, TraceWork::exchange);
  EXPECT_EQ(spans[0].sent_bytes, -1) << "nsys does not say what NCCL's kernels send";
  EXPECT_EQ(spans[1].direction, Direction::forward);
  EXPECT_EQ(spans[1].time.end_ns, 1'500);
  EXPECT_EQ(spans[2].sent_bytes, 4096);
  ASSERT_EQ(trace.processes[0].other.size(), 1U);
}

TEST(NsysTrace, IsRejectedWhereItIsNotWhatNsysWrites) {
  if (!has_sqlite()) GTEST_SKIP() << "requires SQLite: this build was made without it";
  const std::string view =
      "CREATE TABLE StringIds (id INTEGER, value TEXT); CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS "
      "WITH "
      "RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start FROM n;";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"CREATE TABLE x (y INTEGER);", "no tables CUPTI_ACTIVITY_KIND_KERNEL and StringIds"},
      {view, "no tables CUPTI_ACTIVITY_KIND_KERNEL and StringIds"},
      {"CREATE TABLE StringIds (id INTEGER); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start "
       "INTEGER);",
       "the database cannot be read: no such column"},
      {kNsysTables, "nothing in this trace is attention"},
      {kNsysTables + kernel_row(9, 5, 0, 1), "its duration `dur` is not from 0"},
      {kNsysTables + kernel_row(-5, 5, 0, 1), "its time `ts` is not from 0"},
      {kNsysTables + kernel_row(INT64_MIN + 1, INT64_MAX, 0, 1), "is not from 0"},
      {kNsysTables +
           "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('soon', 5, 0, 1, 7, 5, 1, 1, 3);",
       "its start, end or device is no integer"},
  };
  for (const auto& [sql, words] : cases) {
    const NsysExport file(sql);
    const Result<ForeignTrace> read = file.read();
    ASSERT_FALSE(read.ok()) << sql;
    EXPECT_NE(to_text(read.error()).find(words), std::string::npos) << to_text(read.error());
    EXPECT_EQ(read.error().complaints.front().where, file.path());
  }
}

TEST(NsysTrace, IsRejectedWhereBytesAreMissingOrWrong) {
  if (!has_sqlite()) GTEST_SKIP() << "requires SQLite: this build was made without it";
  std::string rows = kNsysTables;
  for (int64_t i = 0; i < 500; ++i)
    rows += kernel_row(1'000 * i, 1'000 * i + 500, i % 2, 1 + i % 3);
  const NsysExport whole(rows);
  std::ifstream stream(whole.path(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  stream.close();
  ASSERT_TRUE(read_foreign_trace(whole.path()).ok());
  // The last pages may be those of a table that is empty.
  for (size_t cut = 100; cut < bytes.size() * 3 / 4; cut += bytes.size() / 9) {
    std::ofstream(whole.path(), std::ios::binary | std::ios::trunc) << bytes.substr(0, cut);
    EXPECT_FALSE(read_foreign_trace(whole.path()).ok())
        << cut << " of " << bytes.size() << " bytes";
  }
  // Wrong bytes anywhere: read or rejected.
  for (size_t at = 16; at < bytes.size(); at += 997) {
    std::string broken = bytes;
    for (size_t i = at; i < std::min(at + 8, broken.size()); ++i) broken[i] = '\xff';
    std::ofstream(whole.path(), std::ios::binary | std::ios::trunc) << broken;
    const Result<ForeignTrace> read = read_foreign_trace(whole.path());
    EXPECT_TRUE(read.ok() || !read.error().complaints.front().what.empty());
  }
}

}  // namespace
}  // namespace cpscope
