#pragma once

#include "sim/base/result.h"
#include "sim/plan/direction.h"
#include "sim/plan/item_event.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// What ran according to a trace, as far as its name tells. `exchange`: sends and receives in one
/// kernel, which is also how NCCL runs an all-to-all.
enum class TraceWork : uint8_t {
  attention,
  send,
  receive,
  exchange,
  all_to_all,
  all_gather,
  reduce_scatter,
  other_collective,
  other
};

/// "attention", "all_gather", ...
std::string_view to_name(TraceWork work);

/// Kernels of one attention call that do not multiply: they belong to the kernel behind them (delta
/// of the backward) or before them (conversions, combination of splits).
enum class HelperPlace : uint8_t { none, before, behind };

/// What the name of a kernel, of a CPU operator or of an annotation says.
struct NamedWork {
  TraceWork work = TraceWork::other;
  std::optional<Direction> direction = {};  // of attention
  HelperPlace helper = HelperPlace::none;   // of attention
};
NamedWork name_work(std::string_view name);

/// "forward" or "backward" if an annotation's name says one of them.
std::optional<Direction> name_direction(std::string_view name);

/// Bytes of an element of a dtype as PyTorch and NCCL write it ("BFloat16", "c10::BFloat16",
/// "float"); 0 if it is not known.
int64_t element_bytes_of(std::string_view dtype);

struct TimeStretch {
  int64_t start_ns = 0, end_ns = 0;
};

/// One kernel, or one operator of a CPU run, of attention or of communication.
struct TraceSpan {
  TraceWork work{};
  HelperPlace helper = HelperPlace::none;
  std::optional<Direction> direction = {};  // of attention; nothing if it cannot be told
  TimeStretch time;                         // in the clock of the file
  // What leaves the rank, counted as the plan does (collectives as direct sends); and what a
  // receive brings. -1: unknown.
  int64_t sent_bytes = -1, received_bytes = -1;
  int32_t group_size = 0;  // ranks of its communicator; 0: unknown
  uint32_t name = 0;       // place in TraceProcess::names
};

/// Everything that one process of a trace, a GPU or a rank, did.
struct TraceProcess {
  std::string label;                 // as the trace names it
  std::optional<int64_t> rank = {};  // if its label has one: "rank 3"
  std::vector<TraceSpan> spans;      // by start
  std::vector<TimeStretch> other;    // when other kernels ran; ascending, disjoint
  std::vector<std::string> names;
};

/// A trace that cpscope itself has written: its events name the items of their plan.
struct OwnTrace {
  std::string plan_hash;          // as to_hex prints it
  std::vector<ItemEvent> events;  // the measured ones if there are any, else the predicted ones
  bool is_measured = false;
};

/// A trace of other software.
struct ForeignTrace {
  std::string path;
  std::string format;                        // "Kineto", "Chrome trace", "nsys", "cpscope"
  std::optional<int64_t> rank = {};          // of the world
  int64_t world_size = 0;                    // 0: unknown
  std::vector<std::vector<int64_t>> groups;  // ranks of the process groups
  std::vector<TraceProcess> processes;       // those that did any attention or communication
  std::optional<OwnTrace> own = {};
  bool is_cpu = false;  // there are no kernels: operators of the CPU were taken
};

/// Can this build read traces packed by gzip, and SQLite files?
bool has_gzip();
bool has_sqlite();

/// Does the name end as those of traces do: .json, .json.gz or .sqlite?
bool is_trace_name(std::string_view path);

/// Limits of one file, checked while it is read.
inline constexpr int64_t kMostTraceSpans = int64_t{1} << 24;    // attention and communication
inline constexpr int64_t kMostTraceKernels = int64_t{1} << 24;  // everything else
inline constexpr int64_t kMostTraceBytes = int64_t{1} << 35;    // unpacked
inline constexpr int64_t kMostTokenBytes = int64_t{1} << 24;    // of one string or number

/// Reads Kineto's JSON (torch.profiler), other JSON of Chrome's trace event format, each also
/// packed by gzip, a trace of cpscope itself, or nsys's export as SQLite. JSON is read event by
/// event, so that memory follows from what attention, communication and launches take. Errors:
/// bad_input (where = path: what is broken, which limit is exceeded), unavailable (gzip or SQLite
/// is not in this build).
Result<ForeignTrace> read_foreign_trace(const std::string& path);

}  // namespace cpscope
