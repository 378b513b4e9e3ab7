#include "sim/clock/foreign_trace_nsys.h"

#ifdef CPSCOPE_HAS_SQLITE

#include "sim/clock/trace_events.h"

#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <sqlite3.h>

namespace cpscope {
namespace {

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct FinishStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, FinishStatement>;

/// Reads the tables of one export.
class NsysReader {
 public:
  explicit NsysReader(const std::string& path) : path_(path) {}

  Result<ForeignTrace> read() {
    if (auto error = open()) return *error;
    if (!has_table("CUPTI_ACTIVITY_KIND_KERNEL") || !has_table("StringIds"))
      return make_bad_input(
          "this database has no tables CUPTI_ACTIVITY_KIND_KERNEL and StringIds",
          "export a profile with kernels: nsys export --type sqlite report.nsys-rep", path_);
    if (auto error =
            take_rows("SELECT k.start, k.end, k.deviceId, k.correlationId, s.value, -1 FROM "
                      "CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName",
                      "kernel"))
      return *error;
    // Copy kind 10: between two GPUs (CUpti_ActivityMemcpyKind).
    if (has_table("CUPTI_ACTIVITY_KIND_MEMCPY")) {
      if (auto error =
              take_rows("SELECT start, end, deviceId, correlationId, 'Memcpy PtoP', bytes FROM "
                        "CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 10",
                        "gpu_memcpy"))
        return *error;
    }
    events_.format = "nsys";
    return std::move(events_).finish(path_);
  }

 private:
  Error broken() const {
    return make_bad_input(
        fmt::format("the database cannot be read: {}", sqlite3_errmsg(database_.get())),
        "was the export written completely?", path_);
  }

  std::optional<Error> open() {
    sqlite3* database = nullptr;
    const int code = sqlite3_open_v2(path_.c_str(), &database, SQLITE_OPEN_READONLY, nullptr);
    database_.reset(database);
    if (code != SQLITE_OK) return broken();
    // The file is a stranger's: no triggers, views or functions of its own, no huge values.
    sqlite3_limit(database, SQLITE_LIMIT_LENGTH, static_cast<int>(kMostTokenBytes));
    sqlite3_limit(database, SQLITE_LIMIT_ATTACHED, 0);
    sqlite3_db_config(database, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
    return std::nullopt;
  }

  Statement prepare(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    sqlite3_prepare_v2(database_.get(), sql, -1, &statement, nullptr);
    return Statement(statement);
  }

  /// A table, and no view, of this name.
  bool has_table(const char* name) {
    const Statement statement =
        prepare("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1");
    if (!statement) return false;
    sqlite3_bind_text(statement.get(), 1, name, -1, SQLITE_STATIC);
    return sqlite3_step(statement.get()) == SQLITE_ROW;
  }

  /// Rows of start, end, device, correlation, name and bytes (-1: unknown).
  std::optional<Error> take_rows(const char* sql, const char* category) {
    const Statement statement = prepare(sql);
    if (!statement) return broken();
    int64_t row = 0;
    int code = SQLITE_ROW;
    while ((code = sqlite3_step(statement.get())) == SQLITE_ROW) {
      ++row;
      for (const int column : {0, 1, 2}) {
        if (sqlite3_column_type(statement.get(), column) != SQLITE_INTEGER)
          return make_bad_input(
              fmt::format("{} {}: its start, end or device is no integer", category, row), "",
              path_);
      }
      const auto integer = [&](int column) {
        return sqlite3_column_int64(statement.get(), column);
      };
      ChromeEvent event;
      event.phase = "X";
      event.category = category;
      const auto* name = reinterpret_cast<const char*>(sqlite3_column_text(statement.get(), 4));
      event.name = name == nullptr ? "" : name;
      // Padded, so that devices come in order of their numbers.
      event.process = fmt::format("{:010}", integer(2));
      event.correlation = integer(3);
      event.bytes = integer(5);
      event.start_ns = integer(0);
      int64_t length = 0;
      if (__builtin_sub_overflow(integer(1), integer(0), &length)) length = -1;
      event.length_ns = length;
      if (const std::optional<std::string> wrong = events_.add(event))
        return make_bad_input(fmt::format("{} {}: {}", category, row, *wrong), "", path_);
      ChromeEvent label;
      label.phase = "M";
      label.name = "process_name";
      label.process = event.process;
      label.label = fmt::format("GPU {}", integer(2));
      events_.add(label);
    }
    if (code != SQLITE_DONE) return broken();
    return std::nullopt;
  }

  const std::string path_;
  std::unique_ptr<sqlite3, CloseDatabase> database_;
  TraceEvents events_;
};

}  // namespace

Result<ForeignTrace> read_nsys_trace(const std::string& path) { return NsysReader(path).read(); }

}  // namespace cpscope

#else

namespace cpscope {

Result<ForeignTrace> read_nsys_trace(const std::string& path) {
  return make_error(ErrorKind::unavailable,
                    "this is an SQLite file, as nsys exports, and this build cannot read those: it "
                    "was made without SQLite (package libsqlite3-dev)",
                    "install the package and start ./cpscope again, or give a trace of "
                    "torch.profiler",
                    path);
}

}  // namespace cpscope

#endif
