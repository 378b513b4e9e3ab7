#include "tests/program/timeline_case.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

/// Field numbers and values of et_def.proto (MLCommons Chakra), written down once more.
constexpr uint64_t kCompute = 4, kSend = 5, kReceive = 6;
constexpr std::array<std::pair<uint64_t, const char*>, 5> kUnion = {
    {{7, "int32"}, {9, "int64"}, {13, "uint64"}, {27, "bool"}, {29, "string"}}};

/// Reads protobuf's wire format: varints and byte strings, nothing else.
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}
  bool is_at_end() const { return at_ == bytes_.size(); }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ >= bytes_.size()) break;
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    ADD_FAILURE() << "a varint does not end";
    at_ = bytes_.size();
    return 0;
  }
  std::string bytes() {
    const uint64_t length = varint();
    if (length > bytes_.size() - at_) {
      ADD_FAILURE() << length << " bytes are announced, " << bytes_.size() - at_ << " are there";
      at_ = bytes_.size();
      return "";
    }
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

struct Attribute {
  std::string type, text;
  uint64_t number = 0;
};
using Attributes = std::map<std::string, Attribute>;

struct Node {
  uint64_t id = 0, type = 0, start_us = 0, duration_us = 0;
  std::string name;
  std::vector<uint64_t> control, data;
  Attributes attributes;
};

std::pair<std::string, Attribute> read_attribute(Reader reader) {
  std::string name;
  Attribute attribute;
  while (!reader.is_at_end()) {
    const uint64_t key = reader.varint();
    if (key == (1 << 3 | 2)) {
      name = reader.bytes();
      continue;
    }
    for (const auto& [field, type] : kUnion)
      if (field == key >> 3) attribute.type = type;
    if ((key & 7) == 2)
      attribute.text = reader.bytes();
    else
      attribute.number = reader.varint();
  }
  EXPECT_FALSE(attribute.type.empty()) << name;
  return {name, attribute};
}

std::vector<uint64_t> read_packed(Reader reader) {
  std::vector<uint64_t> values;
  while (!reader.is_at_end()) values.push_back(reader.varint());
  return values;
}

Node read_node(Reader reader) {
  Node node;
  while (!reader.is_at_end()) {
    const uint64_t key = reader.varint();
    switch (key) {
      case 1 << 3:
        node.id = reader.varint();
        break;
      case 2 << 3 | 2:
        node.name = reader.bytes();
        break;
      case 3 << 3:
        node.type = reader.varint();
        break;
      case 4 << 3 | 2:
        node.control = read_packed(Reader(reader.bytes()));
        break;
      case 5 << 3 | 2:
        node.data = read_packed(Reader(reader.bytes()));
        break;
      case 6 << 3:
        node.start_us = reader.varint();
        break;
      case 7 << 3:
        node.duration_us = reader.varint();
        break;
      case 10 << 3 | 2:
        EXPECT_TRUE(node.attributes.insert(read_attribute(Reader(reader.bytes()))).second);
        break;
      default:
        ADD_FAILURE() << "no field of Node: " << key;
        return node;
    }
  }
  return node;
}

struct Trace {
  std::string version;
  Attributes about;
  std::vector<Node> nodes;
};

Trace read_trace(const std::filesystem::path& path) {
  Reader file(read_text(path));
  Trace trace;
  Reader metadata(file.bytes());
  while (!metadata.is_at_end()) {
    const uint64_t key = metadata.varint();
    if (key == (1 << 3 | 2))
      trace.version = metadata.bytes();
    else
      trace.about.insert(read_attribute(Reader(metadata.bytes())));
  }
  while (!file.is_at_end()) trace.nodes.push_back(read_node(Reader(file.bytes())));
  return trace;
}

struct ChakraExport {
  Json timeline;
  std::vector<Trace> ranks;
};

ChakraExport export_chakra(const std::string& parallel) {
  const ProgramRun run = run_timeline(bf16_scenario(parallel), "--json --chakra ring");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  ChakraExport made{Json::parse(run.out), {}};
  for (int rank = 0; rank < made.timeline["cp_size"].get<int>(); ++rank)
    made.ranks.push_back(read_trace(work_folder() / fmt::format("ring.{}.et", rank)));
  return made;
}

TEST(ChakraTrace, HoldsEveryItemAndEveryMessageOnBothSides) {
  for (const std::string& parallel : timeline_parallels()) {
    SCOPED_TRACE(parallel);
    const ChakraExport made = export_chakra(parallel);
    std::map<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>, int> messages;
    size_t computes = 0, sends = 0;
    std::multiset<int64_t> durations;
    for (const Trace& trace : made.ranks) {
      for (const Node& node : trace.nodes) {
        const Attributes& has = node.attributes;
        ASSERT_TRUE(has.contains("is_cpu_op") && has.contains("duration_ns")) << node.name;
        EXPECT_EQ(has.at("is_cpu_op").type, "bool");
        EXPECT_EQ(node.duration_us,
                  std::max<uint64_t>(1, (has.at("duration_ns").number + 500) / 1000));
        if (node.type == kCompute) {
          ++computes;
          EXPECT_EQ(has.at("num_ops").type, "int64");
          EXPECT_EQ(has.at("tensor_size").type, "uint64");
          EXPECT_GT(has.at("tensor_size").number, 0U);
        } else {
          ASSERT_TRUE(node.type == kSend || node.type == kReceive) << node.type;
          sends += node.type == kSend ? 1 : 0;
          for (const char* name : {"comm_src", "comm_dst", "comm_tag"})
            EXPECT_EQ(has.at(name).type, "int32");
          EXPECT_EQ(has.at("comm_size").type, "int64");
          EXPECT_EQ(std::to_string(has.at(node.type == kSend ? "comm_src" : "comm_dst").number),
                    trace.about.at("rank").text);
          messages[{has.at("comm_src").number, has.at("comm_dst").number, has.at("comm_tag").number,
                    has.at("comm_size").number}] += node.type == kSend ? 1 : 100;
        }
        if (node.type != kReceive)
          durations.insert(static_cast<int64_t>(has.at("duration_ns").number));
      }
    }
    EXPECT_EQ(computes + sends, made.timeline["items"].size());
    for (const auto& [message, sides] : messages) EXPECT_EQ(sides, 101);
    EXPECT_EQ(messages.size(), sends);
    std::multiset<int64_t> expected;
    for (const Json& item : made.timeline["items"])
      expected.insert(item["end_ns"].get<int64_t>() - item["start_ns"].get<int64_t>());
    EXPECT_EQ(durations, expected);
  }
}

TEST(ChakraTrace, CanBeCarriedOutToItsEnd) {
  for (const std::string& parallel : timeline_parallels()) {
    SCOPED_TRACE(parallel);
    const ChakraExport made = export_chakra(parallel);
    size_t left = 0, carried_out = 0;
    for (const Trace& trace : made.ranks) {
      std::set<uint64_t> known;
      for (const Node& node : trace.nodes) {
        // Ids ascend, so that whoever reads the file once knows what a node waits for.
        for (const auto* ids : {&node.control, &node.data})
          for (const uint64_t id : *ids) EXPECT_TRUE(known.contains(id)) << node.name;
        EXPECT_TRUE(known.insert(node.id).second) << node.name;
      }
      left += trace.nodes.size();
    }
    // A message arrives once it was sent; no dependence may stand in a circle through ranks.
    std::vector<std::set<uint64_t>> done(made.ranks.size());
    std::set<uint64_t> sent;
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t rank = 0; rank < made.ranks.size(); ++rank) {
        for (const Node& node : made.ranks[rank].nodes) {
          const auto is_done = [&](uint64_t id) { return done[rank].contains(id); };
          if (is_done(node.id) || !std::all_of(node.control.begin(), node.control.end(), is_done) ||
              !std::all_of(node.data.begin(), node.data.end(), is_done))
            continue;
          const bool is_compute = node.type == kCompute;
          const uint64_t tag = is_compute ? 0 : node.attributes.at("comm_tag").number;
          if (node.type == kReceive && !sent.contains(tag)) continue;
          if (node.type == kSend) sent.insert(tag);
          done[rank].insert(node.id);
          ++carried_out;
          moves = true;
        }
      }
    }
    EXPECT_EQ(carried_out, left);
  }
}

TEST(ChakraTrace, WaitsForTheKeysThatItsAttentionReads) {
  const ChakraExport made = export_chakra("cp_size = 4");
  for (const Trace& trace : made.ranks) {
    std::map<uint64_t, const Node*> nodes;
    for (const Node& node : trace.nodes) nodes[node.id] = &node;
    for (const Node& node : trace.nodes) {
      const bool is_later_step = node.name.starts_with("forward step 1 compute") ||
                                 node.name.starts_with("forward step 2 compute");
      if (!is_later_step) continue;
      const bool waits = std::any_of(node.data.begin(), node.data.end(),
                                     [&](uint64_t id) { return nodes.at(id)->type == kReceive; });
      EXPECT_TRUE(waits) << node.name;
    }
    EXPECT_EQ(trace.about.at("times").text, "predicted");
    EXPECT_EQ(trace.about.at("cluster").text, "h200_ib");
    EXPECT_EQ(trace.about.at("plan_hash").text, made.timeline["plan_hash"]);
    EXPECT_FALSE(trace.version.empty());
  }
}

TEST(ChakraTrace, LeavesNoFileBehindWhereItCannotWriteAll) {
  const std::string scenario = bf16_scenario("cp_size = 2");
  std::filesystem::create_directory(work_folder() / "half.1.et");
  EXPECT_EQ(run_timeline(scenario, "--chakra half", "h200x8").exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(work_folder() / "half.0.et"));
  EXPECT_EQ(run_timeline(scenario, "--chakra nowhere/ring", "h200x8").exit_code, 2);
}

}  // namespace
}  // namespace cpscope::tests
