#include "sim/app/predict/chakra_trace.h"

#include "sim/base/id_vector.h"
#include "sim/base/version.h"
#include "sim/base/whole_file.h"
#include "sim/clock/clock.h"
#include "sim/plan/check/plan_text.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <ostream>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Values of the schema's NodeType.
enum class NodeType : uint8_t { compute = 4, send = 5, receive = 6 };

/// One message in protobuf's wire format: varints (type 0) and byte strings (type 2).
class Message {
 public:
  void add_varint(uint32_t field, uint64_t value) {
    put(uint64_t{field} << 3);
    put(value);
  }
  void add_bytes(uint32_t field, std::string_view bytes) {
    put(uint64_t{field} << 3 | 2);
    put(bytes.size());
    bytes_ += bytes;
  }
  /// A repeated field of numbers; proto3 packs them.
  void add_packed(uint32_t field, std::span<const uint64_t> values) {
    if (values.empty()) return;
    Message packed;
    for (const uint64_t value : values) packed.put(value);
    add_bytes(field, packed.bytes_);
  }
  /// An AttributeProto: its name and one value of its union.
  void add_attribute(uint32_t field, std::string_view name, uint32_t value_field, uint64_t value) {
    Message attribute;
    attribute.add_bytes(1, name);
    attribute.add_varint(value_field, value);
    add_bytes(field, attribute.bytes_);
  }
  void add_attribute(uint32_t field, std::string_view name, std::string_view text) {
    Message attribute;
    attribute.add_bytes(1, name);
    attribute.add_bytes(kString, text);
    add_bytes(field, attribute.bytes_);
  }
  void write_with_length(std::ostream& out) const {
    Message length;
    length.put(bytes_.size());
    out << length.bytes_ << bytes_;
  }

  // Fields of AttributeProto's union.
  static constexpr uint32_t kInt32 = 7, kInt64 = 9, kUint64 = 13, kBool = 27, kString = 29;

 private:
  void put(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

/// Who touched a buffer. Items of one stage write different rows, so none waits for another.
struct BufferState {
  int64_t stage = -1;             // of the last writers
  std::vector<uint64_t> writers;  // of that stage
  std::vector<uint64_t> before;   // what they had to wait for
  std::vector<uint64_t> readers;  // since
};

const TransferItem& sent_item(const Plan& plan, const ItemId& id) {
  return plan.pass(id.direction).transfers[static_cast<size_t>(id.index)];
}

uint64_t to_us(int64_t ns) { return static_cast<uint64_t>((ns + 500) / 1000); }

/// Nodes of one rank, in plan order.
class RankTrace {
 public:
  RankTrace(const TimelineExport& times, RankId rank, std::ostream& out)
      : plan_(times.plan), rank_(rank), out_(out) {}

  void write(std::span<const ItemEvent> events) {
    for (const ItemEvent& event : events) {
      if (event.item.kind != StageKind::transfer) {
        if (event.rank == rank_) write_node(event, NodeType::compute);
        continue;
      }
      const TransferItem& item = sent_item(plan_, event.item);
      if (item.src == item.dst) {
        if (item.src == rank_) write_node(event, NodeType::compute);
      } else if (item.src == rank_) {
        write_node(event, NodeType::send);
      } else if (item.dst == rank_) {
        write_node(event, NodeType::receive);
      }
    }
  }

 private:
  void write_node(const ItemEvent& event, NodeType type) {
    const ItemId& item = event.item;
    const uint64_t id = next_id_++;
    std::vector<uint64_t> data, control;
    wait(item, type, data, control);
    // Copies inside the rank run beside the computes, like transfers.
    if (item.kind != StageKind::transfer) {
      if (last_compute_ > 0) control.push_back(last_compute_);
      last_compute_ = id;
    }
    touch(item, type, id);
    for (std::vector<uint64_t>* ids : {&data, &control}) {
      std::sort(ids->begin(), ids->end());
      ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
    }
    std::erase_if(control, [&](uint64_t other) {
      return std::binary_search(data.begin(), data.end(), other);
    });
    const int64_t duration = event.end_ns - event.start_ns;
    Message node;
    node.add_varint(1, id);
    node.add_bytes(
        2, fmt::format("{} step {} {} {}: {}", to_name(item.direction), to_index(event.step),
                       name_of(item, type), item.index, describe_item(plan_, item)));
    node.add_varint(3, static_cast<uint64_t>(type));
    node.add_packed(4, control);
    node.add_packed(5, data);
    node.add_varint(6, to_us(event.start_ns));
    node.add_varint(7, std::max<uint64_t>(1, to_us(duration)));
    node.add_attribute(kAttributes, "is_cpu_op", Message::kBool, 0);
    node.add_attribute(kAttributes, "duration_ns", Message::kInt64,
                       static_cast<uint64_t>(duration));
    type == NodeType::compute ? add_work(item, node) : add_message(item, node);
    node.write_with_length(out_);
  }

  static std::string_view name_of(const ItemId& item, NodeType type) {
    return type == NodeType::send      ? "send"
           : type == NodeType::receive ? "receive"
                                       : to_name(item.kind);
  }

  void add_work(const ItemId& id, Message& node) const {
    int64_t operations = 0, bytes = 0;
    if (id.kind == StageKind::compute) {
      operations = static_cast<int64_t>(flops_per_pair(plan_.scenario.attention, id.direction)) *
                   plan_.pass(id.direction).computes[static_cast<size_t>(id.index)].visible_pairs;
    }
    const auto add_bytes = [&](BufferId buffer) {
      bytes += buffer_bytes(plan_.buffer(buffer), plan_.scenario);
    };
    visit_item(plan_, id, [&](const auto& item) {
      visit_reads(item, add_bytes);
      visit_writes(item, add_bytes);
    });
    node.add_attribute(kAttributes, "num_ops", Message::kInt64, static_cast<uint64_t>(operations));
    node.add_attribute(kAttributes, "tensor_size", Message::kUint64, static_cast<uint64_t>(bytes));
  }

  /// Tags tell messages of both passes apart.
  void add_message(const ItemId& item, Message& node) const {
    const TransferItem& transfer = sent_item(plan_, item);
    const auto tag = static_cast<uint64_t>(item.index) +
                     (item.direction == Direction::backward ? plan_.forward.transfers.size() : 0);
    const auto rank = [](RankId id) { return static_cast<uint64_t>(to_index(id)); };
    node.add_attribute(kAttributes, "comm_src", Message::kInt32, rank(transfer.src));
    node.add_attribute(kAttributes, "comm_dst", Message::kInt32, rank(transfer.dst));
    node.add_attribute(kAttributes, "comm_tag", Message::kInt32, tag);
    node.add_attribute(kAttributes, "comm_size", Message::kInt64,
                       static_cast<uint64_t>(transfer.bytes));
  }

  /// Number of the stage, over both passes.
  int64_t stage_of(const ItemId& item) {
    const auto holds = [&](size_t s) {
      const Stage& stage = plan_.pass(item.direction).stages[s];
      return stage.kind == item.kind && stage.begin <= item.index && item.index < stage.end;
    };
    if (item.direction != direction_) stage_ = 0;
    direction_ = item.direction;
    while (!holds(stage_)) ++stage_;
    return static_cast<int64_t>(
        stage_ + (item.direction == Direction::backward ? plan_.forward.stages.size() : 0));
  }

  void wait(const ItemId& id, NodeType type, std::vector<uint64_t>& data,
            std::vector<uint64_t>& control) {
    const int64_t stage = stage_of(id);
    const auto append = [](std::vector<uint64_t>& to, const std::vector<uint64_t>& ids) {
      to.insert(to.end(), ids.begin(), ids.end());
    };
    const auto await_read = [&](BufferId buffer) {
      const BufferState& state = buffers_[buffer];
      append(data, state.stage == stage ? state.before : state.writers);
    };
    const auto await_write = [&](BufferId buffer) {
      BufferState& state = buffers_[buffer];
      if (state.stage != stage) {
        state.before = std::move(state.writers);
        append(state.before, state.readers);
        state.writers.clear();
        state.readers.clear();
        state.stage = stage;
      }
      append(control, state.before);
    };
    visit_item(plan_, id, [&](const auto& item) {
      if (type != NodeType::receive) visit_reads(item, await_read);
      if (type != NodeType::send) visit_writes(item, await_write);
    });
  }

  void touch(const ItemId& id, NodeType type, uint64_t node) {
    visit_item(plan_, id, [&](const auto& item) {
      if (type != NodeType::receive)
        visit_reads(item, [&](BufferId buffer) { buffers_[buffer].readers.push_back(node); });
      if (type != NodeType::send)
        visit_writes(item, [&](BufferId buffer) { buffers_[buffer].writers.push_back(node); });
    });
  }

  static constexpr uint32_t kAttributes = 10;
  const Plan& plan_;
  const RankId rank_;
  std::ostream& out_;
  uint64_t next_id_ = 1, last_compute_ = 0;
  size_t stage_ = 0;
  Direction direction_ = Direction::forward;  // of the last item
  std::map<BufferId, BufferState> buffers_;
};

void write_metadata(const TimelineExport& times, RankId rank, std::ostream& out) {
  Message about;
  about.add_bytes(1, "0.0.4");
  const auto say = [&](std::string_view name, std::string_view text) {
    about.add_attribute(2, name, text);
  };
  say("made_by", "cpscope " + program_version());
  say("times", "predicted");
  say("scenario", times.plan.scenario.title);
  say("plan_hash", to_hex(times.plan.hash));
  say("cluster", times.cluster.name);
  say("stack", times.timeline.stack);
  say("rank", std::to_string(to_index(rank)));
  about.write_with_length(out);
}

/// Events that a rank has a part in: its own, and transfers that it receives; in plan order.
IdVector<RankId, std::vector<ItemEvent>> events_of_ranks(const TimelineExport& times) {
  IdVector<RankId, std::vector<ItemEvent>> ranks(times.plan.home.size());
  for (const ItemEvent& event : times.timeline.events) {
    ranks[event.rank].push_back(event);
    if (event.item.kind != StageKind::transfer) continue;
    const RankId to = sent_item(times.plan, event.item).dst;
    if (to != event.rank) ranks[to].push_back(event);
  }
  return ranks;
}

void write_rank(const TimelineExport& times, RankId rank, std::span<const ItemEvent> events,
                std::ostream& out) {
  write_metadata(times, rank, out);
  RankTrace(times, rank, out).write(events);
}

}  // namespace

Result<size_t> write_chakra(const TimelineExport& times, const std::string& prefix) {
  const IdVector<RankId, std::vector<ItemEvent>> ranks = events_of_ranks(times);
  const auto path_of = [&](RankId rank) { return fmt::format("{}.{}.et", prefix, to_index(rank)); };
  size_t bytes = 0;
  for (const RankId rank : ranks.ids()) {
    const Result<size_t> written = write_whole_file(
        path_of(rank), [&](std::ostream& out) { write_rank(times, rank, ranks[rank], out); },
        "the Chakra trace");
    if (!written) {
      std::error_code ignored;
      for (int32_t before = 0; before < to_index(rank); ++before)
        std::filesystem::remove(path_of(RankId{before}), ignored);
      return written.error();
    }
    bytes += written.value();
  }
  return bytes;
}

}  // namespace cpscope
