#include "gui/app/document/target_json.h"

#include "gui/model/error_field.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr int64_t kLargestToken = int64_t{1} << 40;
constexpr int64_t kMostRanks = 65'535;

struct TargetWriter {
  StateJson operator()(const Nothing&) const { return {{"kind", "nothing"}}; }
  StateJson operator()(const TokenRange& t) const {
    return {{"kind", "tokens"},
            {"side", t.side == Side::q ? "q" : "kv"},
            {"begin", t.begin},
            {"end", t.end}};
  }
  StateJson operator()(const PairRange& p) const {
    return {{"kind", "pairs"},
            {"q_begin", p.q_begin},
            {"q_end", p.q_end},
            {"k_begin", p.k_begin},
            {"k_end", p.k_end}};
  }
  StateJson operator()(const RankTarget& r) const { return {{"kind", "rank"}, {"rank", r.rank}}; }
  StateJson operator()(const LinkTarget& l) const {
    return {{"kind", "link"}, {"src", l.src}, {"dst", l.dst}};
  }
  StateJson operator()(const ItemId& i) const {
    return {{"kind", "item"},
            {"is_backward", i.direction == Direction::backward},
            {"stage", to_name(i.kind)},
            {"index", i.index}};
  }
  StateJson operator()(const StepTarget& s) const { return {{"kind", "step"}, {"step", s.step}}; }
  StateJson operator()(const RowTarget& r) const {
    return {{"kind", "row"}, {"tensor", r.tensor}, {"token", r.token}, {"head", r.head}};
  }
};

int32_t read_small(JsonReader& reader, std::string_view key, int64_t most) {
  int64_t value = 0;
  reader.integer(key, 0, most, value);
  return static_cast<int32_t>(value);
}

int64_t read_large(JsonReader& reader, std::string_view key) {
  int64_t value = 0;
  reader.integer(key, 0, kLargestToken, value);
  return value;
}

TokenRange read_tokens(JsonReader& reader) {
  std::string side;
  reader.text("side", side);
  if (side != "q" && side != "kv") reader.fail("side", "is neither q nor kv");
  const int64_t begin = read_large(reader, "begin"), end = read_large(reader, "end");
  return {side == "q" ? Side::q : Side::kv, begin, end};
}

PairRange read_pairs(JsonReader& reader) {
  const int64_t q_begin = read_large(reader, "q_begin"), q_end = read_large(reader, "q_end");
  const int64_t k_begin = read_large(reader, "k_begin"), k_end = read_large(reader, "k_end");
  return {q_begin, q_end, k_begin, k_end};
}

ItemId read_item(JsonReader& reader) {
  ItemId item;
  bool is_backward = false;
  std::string stage;
  reader.boolean("is_backward", is_backward);
  item.direction = is_backward ? Direction::backward : Direction::forward;
  reader.text("stage", stage);
  bool is_known = false;
  for (const StageKind kind : kStageKinds) {
    if (to_name(kind) != stage) continue;
    item.kind = kind;
    is_known = true;
  }
  if (!is_known) reader.fail("stage", "is no kind of stage");
  item.index = read_large(reader, "index");
  return item;
}

RowTarget read_row(JsonReader& reader) {
  const int32_t tensor =
      read_small(reader, "tensor", static_cast<int64_t>(kErrorTensors.size()) - 1);
  const int64_t token = read_large(reader, "token");
  return {tensor, token, read_small(reader, "head", kMostRanks)};
}

}  // namespace

JsonReader::JsonReader(const StateJson* value, std::string name, std::string* problem)
    : value_(value), name_(std::move(name)), problem_(problem) {
  if (value_ != nullptr && !value_->is_object()) {
    if (problem_->empty()) *problem_ = (name_.empty() ? "the state" : name_) + " is no JSON object";
    value_ = nullptr;
  }
}

void JsonReader::fail(std::string_view key, std::string_view what) {
  if (!problem_->empty()) return;
  *problem_ = (name_.empty() ? "" : name_ + ".") + std::string(key) + " " + std::string(what);
  if (value_ != nullptr && value_->contains(key)) {
    constexpr size_t kMostShown = 60;
    // Escaped, so that a value cannot put control characters into a message.
    std::string shown =
        (*value_)[std::string(key)].dump(-1, ' ', true, StateJson::error_handler_t::replace);
    if (shown.size() > kMostShown) shown = shown.substr(0, kMostShown) + "...";
    *problem_ += ": " + shown;
  }
}

const StateJson* JsonReader::find(std::string_view key) {
  known_.emplace(key);
  if (value_ == nullptr) return nullptr;
  const auto it = value_->find(std::string(key));
  if (it == value_->end()) {
    fail(key, "is missing");
    return nullptr;
  }
  return &*it;
}

JsonReader JsonReader::table(std::string_view key) {
  return {find(key), (name_.empty() ? "" : name_ + ".") + std::string(key), problem_};
}

void JsonReader::optional_text(std::string_view key, std::string& out) {
  if (value_ != nullptr && value_->is_object() && value_->contains(key)) text(key, out);
}

void JsonReader::optional_boolean(std::string_view key, bool& out) {
  if (value_ != nullptr && value_->is_object() && value_->contains(key)) boolean(key, out);
}

void JsonReader::optional_numbers(std::string_view key, std::vector<double>& out) {
  if (value_ == nullptr || !value_->is_object() || !value_->contains(key)) return;
  const StateJson& list = *find(key);
  const auto is_number = [](const StateJson& each) { return each.is_number(); };
  if (list.is_array() && !list.empty() && std::all_of(list.begin(), list.end(), is_number))
    out = list.get<std::vector<double>>();
  else
    fail(key, "is no list of numbers");
}

void JsonReader::text(std::string_view key, std::string& out) {
  const StateJson* value = find(key);
  if (value == nullptr) return;
  if (value->is_string())
    out = value->get<std::string>();
  else
    fail(key, "is no text");
}

void JsonReader::boolean(std::string_view key, bool& out) {
  const StateJson* value = find(key);
  if (value == nullptr) return;
  if (value->is_boolean())
    out = value->get<bool>();
  else
    fail(key, "is neither true nor false");
}

void JsonReader::integer(std::string_view key, int64_t least, int64_t most, int64_t& out) {
  const StateJson* value = find(key);
  if (value == nullptr) return;
  const bool fits =
      value->is_number_unsigned()
          ? value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
          : value->is_number_integer();
  if (!fits) return fail(key, "is no whole number");
  const auto number = value->get<int64_t>();
  if (number < least || number > most)
    return fail(key, "is not between " + std::to_string(least) + " and " + std::to_string(most));
  out = number;
}

void JsonReader::number(std::string_view key, double least, double most, double& out) {
  const StateJson* value = find(key);
  if (value == nullptr) return;
  if (!value->is_number()) return fail(key, "is no number");
  const auto number = value->get<double>();
  if (!(number >= least && number <= most)) return fail(key, "is out of range");
  out = number;
}

void JsonReader::finish() {
  if (value_ == nullptr) return;
  for (const auto& [key, value] : value_->items()) {
    if (known_.count(key) == 0) return fail(key, "is an unknown key");
  }
}

StateJson write_target(const Target& target) { return std::visit(TargetWriter{}, target); }

void read_target(JsonReader reader, Target& target) {
  std::string kind;
  reader.text("kind", kind);
  if (kind == "nothing")
    target = Nothing{};
  else if (kind == "tokens")
    target = read_tokens(reader);
  else if (kind == "pairs")
    target = read_pairs(reader);
  else if (kind == "rank")
    target = RankTarget{read_small(reader, "rank", kMostRanks)};
  else if (kind == "link") {
    const int32_t src = read_small(reader, "src", kMostRanks);
    target = LinkTarget{src, read_small(reader, "dst", kMostRanks)};
  } else if (kind == "item")
    target = read_item(reader);
  else if (kind == "step")
    target = StepTarget{read_small(reader, "step", std::numeric_limits<int32_t>::max())};
  else if (kind == "row")
    target = read_row(reader);
  else
    reader.fail("kind", "is no kind of target");
  reader.finish();
}

}  // namespace cpscope::gui
