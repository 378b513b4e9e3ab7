#pragma once

#include "sim/clock/foreign_trace.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cpscope {

/// One event of a Chrome trace as it stands in the file, as far as it is used here.
struct ChromeEvent {
  std::string phase, name, category, process;
  int64_t thread = 0;
  std::optional<int64_t> start_ns, length_ns;  // from ts and dur
  // args
  std::string collective, dtype, label;
  int64_t in_elements = -1, out_elements = -1, group_size = 0, correlation = -1, bytes = -1;
  std::string in_split_sizes, out_split_sizes, group_ranks;
  std::string input_type;       // of the first input
  std::optional<int64_t> dims;  // product of the dimensions of the first input
  std::string pass, kind;       // of cpscope's own traces
  int64_t step = -1, item = -1;
};

/// Collects what matters of a trace's events, and sorts it out once all are there.
class TraceEvents {
 public:
  /// Nothing, or what is wrong with the event.
  std::optional<std::string> add(const ChromeEvent& event);

  std::string format;              // empty: Kineto or Chrome trace, as the events tell
  std::string made_by, plan_hash;  // of cpscope's own traces
  std::optional<int64_t> rank;     // of Kineto's distributedInfo
  int64_t world_size = 0;
  int64_t base_ns = 0;
  bool has_distributed_info = false;

  /// Opens one more process group; later ranks are added to it.
  void add_group(const std::vector<int64_t>& ranks);
  void add_to_group(int64_t member);

  /// Errors (bad_input, where = path): nothing in it is attention or communication.
  Result<ForeignTrace> finish(const std::string& path) &&;

 private:
  /// A span before all of the file is known.
  struct Draft {
    TraceSpan span;
    int64_t thread = 0, correlation = -1;
    int64_t in_bytes = -1, out_bytes = -1;
    // Of an all-to-all whose shares have different sizes, which are in these proportions; by
    // members, which are ranks, or nothing if they are all.
    std::vector<int64_t> in_shares, out_shares, members;
  };
  struct Process {
    std::string label;
    std::vector<Draft> kernels, operators;  // of a GPU; of the CPU
    std::vector<TimeStretch> other;
    std::vector<std::string> names;
    std::unordered_map<std::string, uint32_t> places;  // of the names
    std::vector<std::pair<TimeStretch, Direction>> annotations;
  };
  /// A send or receive as the host issued it, and a launch of a kernel.
  struct Issued {
    int64_t at_ns = 0;
    int64_t sent = 0, received = 0;
  };
  struct Launch {
    int64_t at_ns = 0, thread = 0;
  };

  /// Null: there are too many of them.
  Process* process_of(const ChromeEvent& event);
  std::optional<std::string> add_own(const ChromeEvent& event, const TimeStretch& time,
                                     bool& is_own);
  std::optional<std::string> count_span();
  std::optional<std::string> count_kernel();
  std::optional<std::string> add_complete(const ChromeEvent& event);
  std::optional<std::string> add_draft(Process& process, std::vector<Draft>& drafts,
                                       const ChromeEvent& event, const NamedWork& named);
  void count_shares(Draft& draft) const;
  void count_bytes(Draft& draft) const;
  void find_issued_bytes(std::vector<Draft*>& exchanges);
  static std::vector<bool> find_callers(const std::vector<Draft>& drafts);
  TraceProcess finish_process(Process& process, bool takes_operators);
  Result<ForeignTrace> finish_own(ForeignTrace trace);

  std::map<std::string, Process> processes_;
  std::map<int64_t, std::vector<Issued>> issued_;       // [thread]
  std::unordered_map<int64_t, Launch> launches_;        // [correlation]
  std::vector<std::pair<std::string, ItemEvent>> own_;  // process, event
  std::vector<std::vector<int64_t>> groups_;
  int64_t spans_ = 0, kernels_ = 0, members_ = 0;
  bool has_kernels_ = false;
};

/// "rank 3" or "Rank: 3" somewhere in a label; nothing where there is no such word and number.
std::optional<int64_t> rank_in_label(std::string_view label);

/// The integers of "[0, 2, 4]", none of ""; nothing where the text is something else, as where the
/// middle of a long list was left out.
std::optional<std::vector<int64_t>> integers_of(std::string_view text);

}  // namespace cpscope
