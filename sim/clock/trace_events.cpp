#include "sim/clock/trace_events.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <functional>
#include <limits>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kLatestNs = int64_t{1} << 61;  // 73 years
constexpr size_t kMostProcesses = 65536, kMostNameBytes = 512;
constexpr int64_t kMostMembers = int64_t{1} << 22;  // of process groups
constexpr const char* kTooManyProcesses = "a trace has at most 65536 processes";

/// What PyTorch's record of a collective says of the kernel that carries it out, which may be
/// NCCL's exchange for several of them.
TraceWork refine_work(TraceWork work, std::string_view collective) {
  if (collective.empty() || work != TraceWork::exchange) return work;
  const TraceWork named = name_work("nccl:" + std::string(collective)).work;
  const bool tells = named == TraceWork::send || named == TraceWork::receive ||
                     named == TraceWork::all_to_all || named == TraceWork::all_gather ||
                     named == TraceWork::reduce_scatter;
  return tells ? named : work;
}

/// Product of a count and a size; -1 where either is unknown or the product too large.
int64_t bytes_of(int64_t elements, int64_t element_bytes) {
  if (elements < 0 || element_bytes <= 0 || elements > (int64_t{1} << 50)) return -1;
  return elements * element_bytes;
}

void join_stretches(std::vector<TimeStretch>& stretches) {
  std::sort(stretches.begin(), stretches.end(), [](const TimeStretch& a, const TimeStretch& b) {
    return std::pair(a.start_ns, a.end_ns) < std::pair(b.start_ns, b.end_ns);
  });
  size_t kept = 0;
  for (const TimeStretch& stretch : stretches) {
    if (kept > 0 && stretch.start_ns <= stretches[kept - 1].end_ns)
      stretches[kept - 1].end_ns = std::max(stretches[kept - 1].end_ns, stretch.end_ns);
    else
      stretches[kept++] = stretch;
  }
  stretches.resize(kept);
}

/// The innermost annotation around each attention span that does not tell its direction itself.
void take_directions(std::vector<TraceSpan>& spans,
                     std::vector<std::pair<TimeStretch, Direction>> annotations) {
  std::sort(annotations.begin(), annotations.end(), [](const auto& a, const auto& b) {
    return a.first.start_ns != b.first.start_ns ? a.first.start_ns < b.first.start_ns
                                                : a.first.end_ns > b.first.end_ns;
  });
  std::vector<std::pair<TimeStretch, Direction>> open;
  size_t next = 0;
  for (TraceSpan& span : spans) {
    for (; next < annotations.size() && annotations[next].first.start_ns <= span.time.start_ns;
         ++next) {
      while (!open.empty() && open.back().first.end_ns <= annotations[next].first.start_ns)
        open.pop_back();
      open.push_back(annotations[next]);
    }
    while (!open.empty() && open.back().first.end_ns <= span.time.start_ns) open.pop_back();
    if (span.work != TraceWork::attention || span.direction || open.empty()) continue;
    if (open.back().first.end_ns >= span.time.end_ns) span.direction = open.back().second;
  }
}

}  // namespace

std::optional<int64_t> rank_in_label(std::string_view label) {
  std::string lower(label);
  for (char& letter : lower)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  const size_t word = lower.find("rank");
  if (word == std::string::npos) return std::nullopt;
  size_t digits = word + 4;
  while (digits < lower.size() &&
         std::string_view(" _:=#").find(lower[digits]) != std::string_view::npos)
    ++digits;
  int64_t rank = 0;
  const auto [end, failure] =
      std::from_chars(lower.data() + digits, lower.data() + lower.size(), rank);
  if (failure != std::errc() || rank < 0) return std::nullopt;
  return rank;
}

std::optional<std::vector<int64_t>> integers_of(std::string_view text) {
  std::vector<int64_t> integers;
  if (text.empty()) return integers;
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  while (!text.empty()) {
    const size_t begin = text.find_first_not_of(" ,");
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    int64_t value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc()) return std::nullopt;
    integers.push_back(value);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
  }
  return integers;
}

bool are_equal(const std::vector<int64_t>& shares) {
  return std::adjacent_find(shares.begin(), shares.end(), std::not_equal_to<>()) == shares.end();
}

/// The part of `bytes` that belongs to the other members; -1 where it cannot be told.
int64_t bytes_of_others(int64_t bytes, const std::vector<int64_t>& shares, int64_t own) {
  int64_t all = 0;
  for (const int64_t share : shares) {
    if (share < 0 || share > (int64_t{1} << 40)) return -1;
    all = std::min(all + share, int64_t{1} << 41);
  }
  if (bytes < 0 || all == 0 || bytes % all != 0 || own < 0 || own >= std::ssize(shares)) return -1;
  return bytes / all * (all - shares[static_cast<size_t>(own)]);
}

/// True if nothing stays and all of it goes to one member, or comes from one.
bool is_one_hop(const std::vector<int64_t>& shares) {
  return std::count(shares.begin(), shares.end(), 0) == std::ssize(shares) - 1;
}

void TraceEvents::add_group(const std::vector<int64_t>& ranks) {
  if (groups_.size() >= kMostProcesses) return;
  groups_.emplace_back();
  for (const int64_t member : ranks) add_to_group(member);
}

void TraceEvents::add_to_group(int64_t member) {
  if (groups_.empty() || members_ >= kMostMembers) return;
  ++members_;
  groups_.back().push_back(member);
}

TraceEvents::Process* TraceEvents::process_of(const ChromeEvent& event) {
  const auto found = processes_.find(event.process);
  if (found != processes_.end()) return &found->second;
  if (processes_.size() >= kMostProcesses) return nullptr;
  return &processes_[event.process];
}

std::optional<std::string> TraceEvents::count_span() {
  if (++spans_ <= kMostTraceSpans) return std::nullopt;
  return fmt::format("a trace has at most {} events of attention and communication",
                     kMostTraceSpans);
}

std::optional<std::string> TraceEvents::count_kernel() {
  if (++kernels_ <= kMostTraceKernels) return std::nullopt;
  return fmt::format("a trace has at most {} other kernels and launches", kMostTraceKernels);
}

std::optional<std::string> TraceEvents::add(const ChromeEvent& event) {
  if (event.phase == "X") return add_complete(event);
  // Of everything else process names alone are kept, the first of each.
  if (event.phase == "M" && event.name == "process_name") {
    Process* process = process_of(event);
    if (process == nullptr) return std::string(kTooManyProcesses);
    if (process->label.empty()) process->label = event.label.substr(0, kMostNameBytes);
  }
  return std::nullopt;
}

std::optional<std::string> TraceEvents::add_own(const ChromeEvent& event, const TimeStretch& time,
                                                bool& is_own) {
  constexpr std::array kKinds = {StageKind::transfer, StageKind::reorder, StageKind::compute,
                                 StageKind::merge, StageKind::finish};
  if (event.pass.empty() || event.kind.empty() || event.item < 0 || event.step < 0 ||
      event.step > std::numeric_limits<int32_t>::max())
    return std::nullopt;
  const auto* kind = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](StageKind each) { return to_name(each) == event.kind; });
  const auto* pass = std::find_if(kDirections.begin(), kDirections.end(),
                                  [&](Direction each) { return to_name(each) == event.pass; });
  if (kind == kKinds.end() || pass == kDirections.end()) return std::nullopt;
  is_own = true;
  if (process_of(event) == nullptr) return std::string(kTooManyProcesses);
  own_.push_back({event.process,
                  {{*pass, *kind, event.item},
                   RankId{},
                   StepId{static_cast<int32_t>(event.step)},
                   time.start_ns,
                   time.end_ns}});
  return count_span();
}

std::optional<std::string> TraceEvents::add_complete(const ChromeEvent& event) {
  if (!event.start_ns) return "it has no time `ts`";
  if (!event.length_ns) return "it has no duration `dur`";
  if (*event.start_ns < 0 || *event.start_ns > kLatestNs)
    return fmt::format("its time `ts` is not from 0 to 73 years: {} ns", *event.start_ns);
  if (*event.length_ns < 0 || *event.length_ns > kLatestNs)
    return fmt::format("its duration `dur` is not from 0 to 73 years: {} ns", *event.length_ns);
  const TimeStretch time{*event.start_ns, *event.start_ns + *event.length_ns};
  bool is_own = false;
  if (auto wrong = add_own(event, time, is_own); wrong || is_own) return wrong;

  const std::string& category = event.category;
  if (category == "cuda_runtime" || category == "cuda_driver" || category == "hip_runtime") {
    if (event.correlation < 0 || event.name.find("aunch") == std::string::npos) return std::nullopt;
    launches_[event.correlation] = {time.start_ns, event.thread};
    return count_kernel();
  }
  if (category == "cpu_op" && event.name == "record_param_comms") {
    const int64_t bytes = bytes_of(event.in_elements, element_bytes_of(event.dtype));
    const TraceWork work = name_work("nccl:" + event.collective).work;
    if (bytes < 0 || (work != TraceWork::send && work != TraceWork::receive)) return std::nullopt;
    const bool is_send = work == TraceWork::send;
    issued_[event.thread].push_back({time.start_ns, is_send ? bytes : 0, is_send ? 0 : bytes});
    return count_kernel();
  }
  constexpr std::array<std::string_view, 5> kIgnored = {"Trace", "python_function", "overhead",
                                                        "ac2g", "cuda_sync"};
  if (std::find(kIgnored.begin(), kIgnored.end(), category) != kIgnored.end()) return std::nullopt;
  const bool is_gpu_annotation = category == "gpu_user_annotation";
  const bool is_kernel = category == "kernel";
  const bool is_on_gpu = is_kernel || category == "gpu_memcpy" || category == "gpu_memset";
  const NamedWork named = name_work(event.name);
  const std::optional<Direction> said = is_gpu_annotation || category == "user_annotation"
                                            ? name_direction(event.name)
                                            : std::nullopt;
  // Of what is no kernel, only what names attention, communication or a pass matters.
  if (!is_on_gpu && !said && (named.work == TraceWork::other || is_gpu_annotation))
    return std::nullopt;
  Process* process = process_of(event);
  if (process == nullptr) return std::string(kTooManyProcesses);
  has_kernels_ = has_kernels_ || is_kernel;
  if (said) {
    process->annotations.push_back({time, *said});
    if (auto wrong = count_kernel()) return wrong;
  }
  if (named.work != TraceWork::other && !is_gpu_annotation)
    return add_draft(*process, is_on_gpu ? process->kernels : process->operators, event, named);
  if (!is_on_gpu) return std::nullopt;
  // Kernels of a stream follow each other in the file: most join the one before them.
  std::vector<TimeStretch>& other = process->other;
  if (!other.empty() && other.back().start_ns <= time.start_ns &&
      time.start_ns <= other.back().end_ns) {
    other.back().end_ns = std::max(other.back().end_ns, time.end_ns);
    return std::nullopt;
  }
  other.push_back(time);
  return count_kernel();
}

std::optional<std::string> TraceEvents::add_draft(Process& process, std::vector<Draft>& drafts,
                                                  const ChromeEvent& event,
                                                  const NamedWork& named) {
  if (auto wrong = count_span()) return wrong;
  Draft draft;
  draft.span.work = refine_work(named.work, event.collective);
  draft.span.helper = named.helper;
  draft.span.direction = named.direction;
  draft.span.time = {*event.start_ns, *event.start_ns + *event.length_ns};
  draft.thread = event.thread;
  draft.correlation = event.correlation;
  if (event.group_size > 0 && event.group_size <= INT32_MAX)
    draft.span.group_size = static_cast<int32_t>(event.group_size);
  const int64_t element_bytes = element_bytes_of(event.dtype);
  draft.in_bytes = bytes_of(event.in_elements, element_bytes);
  draft.out_bytes = bytes_of(event.out_elements, element_bytes);
  if (draft.in_bytes < 0 && event.dims)
    draft.in_bytes = bytes_of(*event.dims, element_bytes_of(event.input_type));
  if (draft.in_bytes < 0 && event.bytes >= 0) draft.in_bytes = event.bytes;  // of a copy
  const auto in_shares = integers_of(event.in_split_sizes),
             out_shares = integers_of(event.out_split_sizes);
  if (!in_shares || !out_shares) {
    draft.in_bytes = draft.out_bytes = -1;
  } else if (!are_equal(*in_shares) || !are_equal(*out_shares)) {
    draft.in_shares = *in_shares;
    draft.out_shares = *out_shares;
    draft.members = integers_of(event.group_ranks).value_or(std::vector<int64_t>{});
  }
  const std::string name = event.name.substr(0, kMostNameBytes);
  const auto [place, is_new] =
      process.places.try_emplace(name, static_cast<uint32_t>(process.names.size()));
  if (is_new) process.names.push_back(name);
  draft.span.name = place->second;
  drafts.push_back(draft);
  return std::nullopt;
}

/// Which share stays on the rank follows from its place among the members. A ring may be made of
/// all-to-alls that send everything to one rank: those are exchanges.
void TraceEvents::count_shares(Draft& draft) const {
  TraceSpan& span = draft.span;
  int64_t own = span.group_size == world_size ? rank.value_or(-1) : -1;
  if (!draft.members.empty() && rank)
    own = std::find(draft.members.begin(), draft.members.end(), *rank) - draft.members.begin();
  span.sent_bytes = bytes_of_others(draft.in_bytes, draft.in_shares, own);
  span.received_bytes = bytes_of_others(draft.out_bytes, draft.out_shares, own);
  const bool is_hop = is_one_hop(draft.in_shares) && is_one_hop(draft.out_shares) &&
                      span.sent_bytes > 0 && span.received_bytes > 0;
  if (is_hop) span.work = TraceWork::exchange;
}

/// Bytes that leave the rank, counted as the plan does.
void TraceEvents::count_bytes(Draft& draft) const {
  TraceSpan& span = draft.span;
  if (span.group_size == 0 && groups_.size() <= 1 && world_size <= INT32_MAX)
    span.group_size = static_cast<int32_t>(world_size);
  const int64_t others = span.group_size - 1;  // ranks beside this one
  const int64_t in = draft.in_bytes, out = draft.out_bytes;
  const auto times = [](int64_t bytes, int64_t ranks) {
    return bytes < 0 || ranks < 0 ? -1 : bytes > (int64_t{1} << 40) ? -1 : bytes * ranks;
  };
  switch (span.work) {
    case TraceWork::send:
      span.sent_bytes = in;
      break;
    case TraceWork::receive:
      span.received_bytes = out >= 0 ? out : in;
      break;
    case TraceWork::all_gather:
      span.sent_bytes = span.received_bytes = times(in, others);
      break;
    case TraceWork::reduce_scatter:
      span.sent_bytes = span.received_bytes = times(out, others);
      break;
    case TraceWork::all_to_all:
      if (!draft.in_shares.empty() || !draft.out_shares.empty()) {
        count_shares(draft);
      } else if (in >= 0 && others >= 0 && in % (others + 1) == 0)
        span.sent_bytes = span.received_bytes = times(in / (others + 1), others);
      break;
    case TraceWork::exchange:
      if (draft.correlation < 0 || out < 0) span.sent_bytes = in;  // of a copy
      break;
    default:
      break;
  }
}

/// Sends and receives that were issued between two launches are carried out by the second one: a
/// batch of them is one kernel, of which Kineto does not say the bytes.
void TraceEvents::find_issued_bytes(std::vector<Draft*>& exchanges) {
  std::map<int64_t, std::vector<std::pair<int64_t, Draft*>>> by_thread;  // launched at, exchange
  for (Draft* draft : exchanges) {
    const auto launch = launches_.find(draft->correlation);
    if (launch != launches_.end())
      by_thread[launch->second.thread].push_back({launch->second.at_ns, draft});
  }
  for (auto& [thread, launched] : by_thread) {
    std::sort(launched.begin(), launched.end());
    std::vector<Issued>& issued = issued_[thread];
    std::sort(issued.begin(), issued.end(),
              [](const Issued& a, const Issued& b) { return a.at_ns < b.at_ns; });
    size_t next = 0;
    for (const auto& [at_ns, draft] : launched) {
      int64_t sent = 0, received = 0;
      const size_t first = next;
      for (; next < issued.size() && issued[next].at_ns <= at_ns; ++next) {
        sent = std::min(sent + issued[next].sent, kLatestNs);
        received = std::min(received + issued[next].received, kLatestNs);
      }
      // A send or receive alone knows its bytes, but its record ends here too.
      if (next == first || draft->span.work != TraceWork::exchange) continue;
      draft->span.sent_bytes = sent;
      draft->span.received_bytes = received;
    }
  }
}

/// Of operators that call each other the innermost attention counts: what calls it may be a whole
/// ring. [draft], which are by start.
std::vector<bool> TraceEvents::find_callers(const std::vector<Draft>& drafts) {
  std::vector<bool> is_caller(drafts.size());
  std::map<int64_t, std::vector<size_t>> open;  // [thread] attention that has not ended
  for (size_t i = 0; i < drafts.size(); ++i) {
    const TimeStretch& time = drafts[i].span.time;
    std::vector<size_t>& calls = open[drafts[i].thread];
    while (!calls.empty() && drafts[calls.back()].span.time.end_ns <= time.start_ns)
      calls.pop_back();
    if (!calls.empty() && drafts[calls.back()].span.time.end_ns >= time.end_ns)
      is_caller[calls.back()] = true;
    if (drafts[i].span.work == TraceWork::attention) calls.push_back(i);
  }
  return is_caller;
}

TraceProcess TraceEvents::finish_process(Process& process, bool takes_operators) {
  std::vector<Draft>& drafts = takes_operators ? process.operators : process.kernels;
  std::stable_sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) {
    return a.span.time.start_ns != b.span.time.start_ns
               ? a.span.time.start_ns < b.span.time.start_ns
               : a.span.time.end_ns > b.span.time.end_ns;
  });
  TraceProcess finished;
  finished.label = process.label;
  finished.rank = rank_in_label(process.label);
  finished.names = std::move(process.names);
  const std::vector<bool> is_caller =
      takes_operators ? find_callers(drafts) : std::vector<bool>(drafts.size());
  for (size_t i = 0; i < drafts.size(); ++i)
    if (!is_caller[i]) finished.spans.push_back(drafts[i].span);
  take_directions(finished.spans, std::move(process.annotations));
  join_stretches(process.other);
  finished.other = std::move(process.other);
  for (TraceSpan& span : finished.spans) {
    span.time.start_ns += base_ns;
    span.time.end_ns += base_ns;
  }
  for (TimeStretch& stretch : finished.other) {
    stretch.start_ns += base_ns;
    stretch.end_ns += base_ns;
  }
  return finished;
}

Result<ForeignTrace> TraceEvents::finish_own(ForeignTrace trace) {
  trace.format = "cpscope";
  OwnTrace own{.plan_hash = plan_hash, .events = {}};
  const auto is_of = [&](const std::string& process, std::string_view word) {
    const std::string& label = processes_[process].label;
    return label.ends_with(word);
  };
  own.is_measured = std::any_of(own_.begin(), own_.end(), [&](const auto& event) {
    return is_of(event.first, ", measured");
  });
  for (auto& [process, event] : own_) {
    if (!is_of(process, own.is_measured ? ", measured" : ", predicted")) continue;
    const std::optional<int64_t> of_process = rank_in_label(processes_[process].label);
    if (!of_process || *of_process > std::numeric_limits<int32_t>::max())
      return make_bad_input("a process of this trace of cpscope names no rank: " + process, "",
                            trace.path);
    event.rank = RankId{static_cast<int32_t>(*of_process)};
    own.events.push_back(event);
  }
  if (own.events.empty())
    return make_bad_input("this trace of cpscope holds no items", "", trace.path);
  trace.own = std::move(own);
  return trace;
}

Result<ForeignTrace> TraceEvents::finish(const std::string& path) && {
  ForeignTrace trace;
  trace.path = path;
  if (base_ns < 0 || base_ns > kLatestNs)
    return make_bad_input(fmt::format("baseTimeNanoseconds is not from 0 to 73 years: {}", base_ns),
                          "", path);
  if (!own_.empty() && made_by.starts_with("cpscope ")) return finish_own(std::move(trace));
  const bool is_kineto = has_distributed_info || has_kernels_;
  trace.format = !format.empty() ? format : is_kineto ? "Kineto" : "Chrome trace";
  trace.rank = rank;
  trace.world_size = world_size;
  trace.is_cpu = !has_kernels_;
  for (auto& [key, process] : processes_) {
    std::vector<Draft>& drafts = trace.is_cpu ? process.operators : process.kernels;
    std::vector<Draft*> exchanges;
    for (Draft& draft : drafts) {
      count_bytes(draft);
      const bool is_message = draft.span.work == TraceWork::exchange ||
                              draft.span.work == TraceWork::send ||
                              draft.span.work == TraceWork::receive;
      if (is_message) exchanges.push_back(&draft);
    }
    find_issued_bytes(exchanges);
    TraceProcess finished = finish_process(process, trace.is_cpu);
    if (finished.spans.empty()) continue;
    if (finished.label.empty()) finished.label = "process " + key;
    trace.processes.push_back(std::move(finished));
  }
  trace.groups = std::move(groups_);
  if (trace.processes.empty())
    return make_bad_input(
        "nothing in this trace is attention or communication that is known by name",
        "profile with CUDA activities; names with flash, fmha, sdpa, attention or attn are "
        "attention, NCCL's kernels communication",
        path);
  return trace;
}

}  // namespace cpscope
