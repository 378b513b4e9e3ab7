#include "sim/run/record/record_extras.h"

#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace cpscope {
namespace {

constexpr const char* kEvents = "events";
constexpr int64_t kEventFields = 7;
constexpr const char* kRelative = "budgets";
constexpr const char* kAbsolute = "budgets_l2";

Error extras_error(std::string what) { return make_error(ErrorKind::bad_input, std::move(what)); }

/// A whole number from 0 to `most`, or nothing.
std::optional<int64_t> whole_number(double value, int64_t most) {
  if (!(value >= 0 && value <= static_cast<double>(most)) || value != std::floor(value))
    return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<ItemEvent> read_event(const double* fields) {
  constexpr int64_t kMostExact = int64_t{1} << 53;
  constexpr int64_t kMostId = std::numeric_limits<int32_t>::max();
  const auto pass = whole_number(fields[0], 1);
  const auto kind = whole_number(fields[1], static_cast<int64_t>(StageKind::finish));
  const auto index = whole_number(fields[2], kMostExact);
  const auto rank = whole_number(fields[3], kMostId), step = whole_number(fields[4], kMostId);
  const auto start = whole_number(fields[5], kMostExact), end = whole_number(fields[6], kMostExact);
  if (!pass || !kind || !index || !rank || !step || !start || !end) return std::nullopt;
  return ItemEvent{{static_cast<Direction>(*pass), static_cast<StageKind>(*kind), *index},
                   RankId{static_cast<int32_t>(*rank)},
                   StepId{static_cast<int32_t>(*step)},
                   *start,
                   *end};
}

/// Reads one flat JSON object of numbers through nlohmann's parser events: any other content is
/// rejected immediately and never becomes a tree.
class NumberTableReader {
 public:
  // The names and signatures below are nlohmann's SAX interface; returning false stops the parser.
  bool null() { return add(std::numeric_limits<double>::infinity()); }
  bool boolean(bool) { return false; }
  bool binary(const nlohmann::json::binary_t&) { return false; }
  bool number_float(double value, const std::string&) { return add(value); }
  bool number_integer(int64_t value) { return add(static_cast<double>(value)); }
  bool number_unsigned(uint64_t value) { return add(static_cast<double>(value)); }
  bool string(std::string&) { return false; }
  bool start_object(size_t) { return std::exchange(is_open_, true) == false; }
  bool key(std::string& text) {
    key_ = std::move(text);
    return names_.insert(key_).second;
  }
  bool end_object() { return true; }
  bool start_array(size_t) { return false; }
  bool end_array() { return false; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) { return false; }

  const std::vector<std::pair<std::string, double>>& entries() const { return entries_; }

 private:
  bool add(double value) {
    if (!is_open_ || !(value >= 0)) return false;
    entries_.emplace_back(std::move(key_), value);
    return true;
  }

  bool is_open_ = false;
  std::string key_;
  std::set<std::string> names_;
  std::vector<std::pair<std::string, double>> entries_;
};

}  // namespace

Tensor pack_events(const std::vector<ItemEvent>& events) {
  Tensor tensor{kEvents, {static_cast<int64_t>(events.size()), kEventFields}, Dtype::fp64, {}};
  tensor.values.reserve(static_cast<size_t>(tensor.size()));
  for (const ItemEvent& event : events) {
    for (const int64_t field :
         {static_cast<int64_t>(event.item.direction), static_cast<int64_t>(event.item.kind),
          event.item.index, int64_t{to_index(event.rank)}, int64_t{to_index(event.step)},
          event.start_ns, event.end_ns}) {
      tensor.values.push_back(static_cast<double>(field));
    }
  }
  return tensor;
}

bool holds_events(const Tensor& tensor, const std::string& clock) {
  return clock != "none" && tensor.name == kEvents && tensor.shape.size() == 2 &&
         tensor.shape[1] == kEventFields;
}

Result<std::vector<ItemEvent>> unpack_events(const Tensor& tensor) {
  std::vector<ItemEvent> events;
  events.reserve(static_cast<size_t>(tensor.shape[0]));
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    const std::optional<ItemEvent> event = read_event(tensor.values.data() + row * kEventFields);
    if (!event)
      return extras_error(fmt::format("tensor \"events\" holds an invalid number in row {}", row));
    events.push_back(*event);
  }
  return events;
}

std::map<std::string, std::string> print_budgets(const std::vector<TensorBudget>& budgets) {
  if (budgets.empty()) return {};
  nlohmann::ordered_json relative, absolute;
  for (const TensorBudget& budget : budgets) {
    relative[budget.name] = budget.rel_l2;
    absolute[budget.name] = budget.l2;
  }
  // JSON cannot represent infinity: the printer writes null.
  return {{kRelative, relative.dump()}, {kAbsolute, absolute.dump()}};
}

Result<std::vector<TensorBudget>> parse_budgets(
    const std::map<std::string, std::string>& metadata) {
  const auto relative = metadata.find(kRelative), absolute = metadata.find(kAbsolute);
  if (relative == metadata.end() || absolute == metadata.end()) return std::vector<TensorBudget>{};
  NumberTableReader rel_l2, l2;
  if (!nlohmann::json::sax_parse(relative->second, &rel_l2) ||
      !nlohmann::json::sax_parse(absolute->second, &l2))
    return extras_error("the metadata \"budgets\" or \"budgets_l2\" is no table of numbers");
  std::vector<TensorBudget> budgets;
  for (size_t t = 0; t < rel_l2.entries().size(); ++t) {
    const auto& [name, value] = rel_l2.entries()[t];
    if (rel_l2.entries().size() != l2.entries().size() || l2.entries()[t].first != name)
      return extras_error("the metadata \"budgets\" and \"budgets_l2\" name other tensors");
    budgets.push_back({name, value, l2.entries()[t].second});
  }
  return budgets;
}

}  // namespace cpscope
