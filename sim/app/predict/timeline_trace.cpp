#include "sim/app/predict/timeline_trace.h"

#include "sim/base/id_vector.h"
#include "sim/base/version.h"
#include "sim/clock/event_table.h"
#include "sim/documents/json_text.h"
#include "sim/plan/check/plan_text.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr size_t kMostThreads = 16;
constexpr int64_t kNone = EventTable::kNone;

const TransferItem* transfer_of(const Plan& plan, const ItemId& item) {
  if (item.kind != StageKind::transfer) return nullptr;
  return &plan.pass(item.direction).transfers[static_cast<size_t>(item.index)];
}

/// Text that leaves in pieces.
class Outlet {
 public:
  explicit Outlet(std::ostream& out) : out_(out) {}
  ~Outlet() { flush(); }
  template <class... Words>
  void write(fmt::format_string<Words...> text, Words&&... words) {
    fmt::format_to(std::back_inserter(buffer_), text, std::forward<Words>(words)...);
    if (buffer_.size() > (1 << 16)) flush();
  }

 private:
  void flush() {
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }
  std::ostream& out_;
  fmt::memory_buffer buffer_;
};

std::string show_us(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

void find_arrivals_of_pass(const Plan& plan, Direction direction, std::span<const ItemEvent> events,
                           std::vector<Arrival>& arrivals) {
  const Pass& pass = plan.pass(direction);
  const EventTable table(plan, direction, events);
  // What has landed in a buffer and was not read yet, and what was not sent on: two chains through
  // the transfers.
  std::array<IdVector<BufferId, int64_t>, 2> landed;
  std::array<std::vector<int64_t>, 2> next;
  for (auto& first : landed) first.assign(plan.buffers.size(), kNone);
  for (auto& after : next) after.assign(pass.transfers.size(), kNone);
  for (const Stage& stage : pass.stages) {
    const bool is_transfer = stage.kind == StageKind::transfer;
    for_each_item(pass, direction, stage, [&](const ItemId& id, const auto& item) {
      const int64_t event = table.find(id.kind, id.index);
      if (event == kNone) return;
      visit_reads(item, [&](BufferId buffer) {
        int64_t& first = landed[is_transfer][buffer];
        for (int64_t t = first; t != kNone; t = next[is_transfer][static_cast<size_t>(t)])
          arrivals.push_back({table.find(StageKind::transfer, t), event, is_transfer});
        first = kNone;
      });
    });
    if (!is_transfer) continue;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = pass.transfers[static_cast<size_t>(i)];
      const bool is_message = item.src != item.dst && table.find(StageKind::transfer, i) != kNone;
      for (size_t use = 0; use < landed.size(); ++use) {
        int64_t& first = landed[use][item.to];
        if (item.landing == Landing::replace && item.to_rows == kAllRows) first = kNone;
        if (!is_message) continue;
        next[use][static_cast<size_t>(i)] = first;
        first = i;
      }
    }
  }
}

/// Events of each rank, in plan order.
IdVector<RankId, std::vector<int64_t>> events_by_rank(const Plan& plan,
                                                      std::span<const ItemEvent> events) {
  IdVector<RankId, std::vector<int64_t>> ranks(plan.home.size());
  for (size_t e = 0; e < events.size(); ++e)
    ranks[events[e].rank].push_back(static_cast<int64_t>(e));
  return ranks;
}

/// A thread of the trace: the ends of the slices that are open on it, outermost first.
using OpenEnds = std::vector<int64_t>;

/// The thread for a slice, of which each next one begins no earlier: the first that is free, else a
/// new one, else the least deep one whose open slices hold it.
size_t place_slice(const ItemEvent& event, std::vector<OpenEnds>& threads) {
  for (OpenEnds& ends : threads) {
    while (!ends.empty() && ends.back() <= event.start_ns) ends.pop_back();
  }
  size_t best = threads.size();
  for (size_t t = 0; t < threads.size(); ++t) {
    const OpenEnds& ends = threads[t];
    if (ends.empty()) {
      best = t;
      break;
    }
    if (threads.size() < kMostThreads || ends.back() < event.end_ns) continue;
    if (best == threads.size() || ends.size() < threads[best].size()) best = t;
  }
  if (best == threads.size()) threads.emplace_back();
  threads[best].push_back(event.end_ns);
  return best;
}

std::string slice_name(const Plan& plan, const ItemEvent& event) {
  if (const TransferItem* item = transfer_of(plan, event.item)) {
    return item->src == item->dst
               ? fmt::format("copy {}", to_name(item->payload))
               : fmt::format("{} to rank {}", to_name(item->payload), to_index(item->dst));
  }
  if (event.item.kind == StageKind::compute)
    return fmt::format("attention step {}", to_index(event.step));
  return std::string(to_name(event.item.kind));
}

/// Bytes on the wire of a transfer, or pairs of a compute item, as a member of `args`.
std::string amount_of(const Plan& plan, const ItemId& item) {
  if (const TransferItem* transfer = transfer_of(plan, item))
    return fmt::format(",\"bytes\":{}", transfer->bytes);
  if (item.kind != StageKind::compute) return "";
  const ComputeItem& compute = plan.pass(item.direction).computes[static_cast<size_t>(item.index)];
  return fmt::format(",\"pairs\":{}", compute.visible_pairs);
}

/// One group of processes: all ranks, predicted or measured.
class TraceGroup {
 public:
  TraceGroup(const Plan& plan, std::span<const ItemEvent> events, const char* word,
             int64_t first_process, int64_t first_flow, Outlet& out)
      : plan_(plan),
        events_(events),
        word_(word),
        first_process_(first_process),
        first_flow_(first_flow),
        out_(out),
        arrivals_(find_arrivals(plan, events)),
        uses_(events.size()) {
    for (const Arrival& arrival : arrivals_)
      uses_[static_cast<size_t>(arrival.sent)][arrival.is_sent_on] = true;
  }

  void write() {
    IdVector<RankId, std::vector<int64_t>> ranks = events_by_rank(plan_, events_);
    for (const RankId rank : ranks.ids()) {
      const int64_t process = first_process_ + to_index(rank);
      name_process(process, rank);
      std::vector<int64_t>& events = ranks[rank];
      const auto moves = std::stable_partition(events.begin(), events.end(), [&](int64_t e) {
        return event(e).item.kind != StageKind::transfer;
      });
      const size_t threads = write_threads({events.begin(), moves}, process, 1, "compute");
      write_threads({moves, events.end()}, process, 1 + threads, "transfer");
      write_counter({moves, events.end()}, process);
      std::vector<int64_t>().swap(events);
    }
  }

 private:
  const ItemEvent& event(int64_t e) const { return events_[static_cast<size_t>(e)]; }

  void name_process(int64_t process, RankId rank) {
    out_.write(
        ",\n{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":\"rank {}, "
        "{}\"}}}},\n{{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":{},\"args\":{{"
        "\"sort_index\":{}}}}}",
        process, to_index(rank), word_, process, process);
  }

  /// Gives how many threads there are.
  size_t write_threads(std::vector<int64_t> events, int64_t process, size_t first_thread,
                       const char* name) {
    std::sort(events.begin(), events.end(), [&](int64_t x, int64_t y) {
      const ItemEvent &a = event(x), &b = event(y);
      if (a.start_ns != b.start_ns) return a.start_ns < b.start_ns;
      return a.end_ns != b.end_ns ? a.end_ns > b.end_ns : x < y;
    });
    std::vector<OpenEnds> threads;
    for (const int64_t e : events) {
      const size_t known = threads.size();
      const size_t place = place_slice(event(e), threads);
      const size_t thread = first_thread + place;
      if (place == known) {
        const std::string title = place == 0 ? name : fmt::format("{} {}", name, place + 1);
        out_.write(
            ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{"
            "\"name\":\"{}\"}}}},\n{{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":{},"
            "\"tid\":{},\"args\":{{\"sort_index\":{}}}}}",
            process, thread, title, process, thread, thread);
      }
      write_slice(e, process, thread);
    }
    return threads.size();
  }

  void write_slice(int64_t e, int64_t process, size_t thread) {
    const ItemEvent& event = this->event(e);
    const ItemId& item = event.item;
    const std::string start = show_us(event.start_ns);
    out_.write(
        ",\n{{\"ph\":\"X\",\"name\":\"{}\",\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},"
        "\"dur\":{},\"args\":{{\"pass\":\"{}\",\"step\":{},\"kind\":\"{}\",\"item\":{},"
        "\"what\":\"{}\"{}}}}}",
        slice_name(plan_, event), to_name(item.kind), process, thread, start,
        show_us(event.end_ns - event.start_ns), to_name(item.direction), to_index(event.step),
        to_name(item.kind), item.index, describe_item(plan_, item), amount_of(plan_, item));
    // A flow end belongs to the slice that is open then, or was opened last at the same moment.
    for (const bool is_sent_on : {false, true}) {
      if (uses_[static_cast<size_t>(e)][is_sent_on])
        write_flow("s", "", {e, e, is_sent_on}, process, thread, start);
    }
    auto arrival = std::lower_bound(arrivals_.begin(), arrivals_.end(), e,
                                    [](const Arrival& a, int64_t read) { return a.read < read; });
    for (; arrival != arrivals_.end() && arrival->read == e; ++arrival)
      write_flow("f", "\"bp\":\"e\",", *arrival, process, thread, start);
  }

  void write_flow(const char* phase, const char* binding, const Arrival& arrival, int64_t process,
                  size_t thread, const std::string& start) {
    out_.write(
        ",\n{{\"ph\":\"{}\",{}\"name\":\"arrival\",\"cat\":\"flow\",\"id\":{},\"pid\":{},"
        "\"tid\":{},\"ts\":{}}}",
        phase, binding, first_flow_ + 2 * arrival.sent + (arrival.is_sent_on ? 1 : 0), process,
        thread, start);
  }

  void write_counter(const std::vector<int64_t>& transfers, int64_t process) {
    std::vector<std::pair<int64_t, int64_t>> changes;  // ns, bytes
    for (const int64_t e : transfers) {
      const int64_t bytes = transfer_of(plan_, event(e).item)->bytes;
      if (bytes == 0) continue;
      changes.push_back({event(e).start_ns, bytes});
      changes.push_back({event(e).end_ns, -bytes});
    }
    std::sort(changes.begin(), changes.end());
    int64_t bytes = 0;
    for (size_t i = 0; i < changes.size(); ++i) {
      bytes += changes[i].second;
      if (i + 1 < changes.size() && changes[i + 1].first == changes[i].first) continue;
      out_.write(
          ",\n{{\"ph\":\"C\",\"name\":\"bytes being sent\",\"pid\":{},\"ts\":{},\"args\":{{"
          "\"bytes\":{}}}}}",
          process, show_us(changes[i].first), bytes);
    }
  }

  const Plan& plan_;
  std::span<const ItemEvent> events_;
  const char* word_;
  int64_t first_process_, first_flow_;
  Outlet& out_;
  std::vector<Arrival> arrivals_;
  std::vector<std::array<bool, 2>> uses_;  // [event][is_sent_on] somebody reads what it brings
};

Json heading(const Plan& plan, const char* times) {
  Json about;
  about["made_by"] = "cpscope " + program_version();
  about["times"] = times;
  about["scenario"] = plan.scenario.title;
  about["plan_hash"] = to_hex(plan.hash);
  return about;
}

/// Up to the first event. `label`: of the first process.
void begin_trace(const Json& about, const std::string& label, Outlet& outlet) {
  Json first;
  first["ph"] = "M";
  first["name"] = "process_labels";
  first["pid"] = 1;
  first["args"]["labels"] = label;
  // Every event but this one begins with a comma.
  outlet.write("{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[\n{}",
               print_json(about), print_json(first));
}

}  // namespace

std::vector<Arrival> find_arrivals(const Plan& plan, std::span<const ItemEvent> events) {
  std::vector<Arrival> arrivals;
  for (const Direction direction : kDirections)
    find_arrivals_of_pass(plan, direction, events, arrivals);
  std::sort(arrivals.begin(), arrivals.end(), [](const Arrival& a, const Arrival& b) {
    return std::pair(a.read, a.sent) < std::pair(b.read, b.sent);
  });
  return arrivals;
}

void write_timeline_trace(const TimelineExport& times, std::ostream& out) {
  Json about = heading(times.plan, times.measured.empty() ? "predicted" : "predicted and measured");
  about["cluster"] = times.cluster.name;
  about["stack"] = times.timeline.stack;
  Outlet outlet(out);
  begin_trace(
      about,
      fmt::format("{}, {}; predicted, not measured", times.cluster.title, times.timeline.stack),
      outlet);
  const std::vector<ItemEvent>& predicted = times.timeline.events;
  const auto ranks = static_cast<int64_t>(times.plan.home.size());
  const auto flows = static_cast<int64_t>(2 * predicted.size());
  TraceGroup(times.plan, predicted, "predicted", 1, 1, outlet).write();
  if (!times.measured.empty())
    TraceGroup(times.plan, times.measured, "measured", 1 + ranks, 1 + flows, outlet).write();
  outlet.write("\n]}}\n");
}

void write_measured_trace(const Plan& plan, std::span<const ItemEvent> events,
                          const std::string& who, std::ostream& out) {
  Outlet outlet(out);
  begin_trace(heading(plan, "measured"), who, outlet);
  TraceGroup(plan, events, "measured", 1, 1, outlet).write();
  outlet.write("\n]}}\n");
}

void write_timeline_csv(const TimelineExport& times, std::ostream& out) {
  const Plan& plan = times.plan;
  const bool has_record = !times.measured.empty();
  const ByDirection<EventTable> measured{EventTable(plan, Direction::forward, times.measured),
                                         EventTable(plan, Direction::backward, times.measured)};
  Outlet outlet(out);
  outlet.write("pass,kind,index,rank,step,start_us,end_us,bytes,pairs,to{}\n",
               has_record ? ",measured_start_us,measured_end_us" : "");
  for (const ItemEvent& event : times.timeline.events) {
    const ItemId& item = event.item;
    const TransferItem* transfer = transfer_of(plan, item);
    outlet.write("{},{},{},{},{},{},{},", to_name(item.direction), to_name(item.kind), item.index,
                 to_index(event.rank), to_index(event.step), show_us(event.start_ns),
                 show_us(event.end_ns));
    if (transfer != nullptr) {
      outlet.write("{},,{}", transfer->bytes, to_index(transfer->dst));
    } else if (item.kind == StageKind::compute) {
      outlet.write(
          ",{},",
          plan.pass(item.direction).computes[static_cast<size_t>(item.index)].visible_pairs);
    } else {
      outlet.write(",,");
    }
    if (has_record) {
      const int64_t e = measured[item.direction].find(item.kind, item.index);
      if (e == kNone) {
        outlet.write(",,");
      } else {
        const ItemEvent& seen = times.measured[static_cast<size_t>(e)];
        outlet.write(",{},{}", show_us(seen.start_ns), show_us(seen.end_ns));
      }
    }
    outlet.write("\n");
  }
}

}  // namespace cpscope
