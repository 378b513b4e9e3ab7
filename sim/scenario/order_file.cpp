#include "sim/scenario/order_file.h"

#include "sim/scenario/complaints.h"
#include "sim/scenario/integer_events.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr std::array<std::string_view, 5> kOrderKeys = {"cp_size", "ranks", "kv_ranks", "rearrange",
                                                        "kv_rearrange"};

/// The lists of one key: one per rank, or a single one for the rearrange keys.
using Lists = std::vector<std::vector<int64_t>>;

struct OrderContent {
  std::optional<int64_t> cp_size;
  std::optional<Lists> ranks, kv_ranks, rearrange, kv_rearrange;
};

class OrderEvents final : public IntegerEvents {
 public:
  OrderContent content;

  OrderEvents() : IntegerEvents("an order file") {}
  bool number_float(double, const std::string& text) override {
    return take_other("the float " + text.substr(0, 40));
  }
  bool number_integer(int64_t number) override {
    return stop(fmt::format("token ids and cp_size must not be negative: {}", number));
  }
  bool number_unsigned(uint64_t number) override;
  bool start_object(size_t) override;
  bool key(std::string& name) override;
  bool start_array(size_t) override;
  bool end_array() override;

 private:
  std::optional<Lists>* find_lists(std::string_view name);

  std::string key_;
  Lists* open_ = nullptr;  // the lists of the present key
  int64_t depth_ = 0;      // arrays open
  bool has_root_ = false;
};

std::optional<Lists>* OrderEvents::find_lists(std::string_view name) {
  if (name == "ranks") return &content.ranks;
  if (name == "kv_ranks") return &content.kv_ranks;
  if (name == "rearrange") return &content.rearrange;
  if (name == "kv_rearrange") return &content.kv_rearrange;
  return nullptr;
}

bool OrderEvents::key(std::string& name) {
  if (std::find(kOrderKeys.begin(), kOrderKeys.end(), name) == kOrderKeys.end()) {
    return stop("unknown key: " + show_text(name));
  }
  const std::optional<Lists>* lists = find_lists(name);
  if (lists != nullptr ? lists->has_value() : content.cp_size.has_value()) {
    return stop("a key is given twice: " + show_text(name));
  }
  key_ = name;
  return true;
}

bool OrderEvents::start_object(size_t) {
  if (has_root_) return stop("values must not be objects");
  has_root_ = true;
  return true;
}

bool OrderEvents::start_array(size_t) {
  if (!has_root_) key_ = "rearrange";
  has_root_ = true;
  std::optional<Lists>* lists = find_lists(key_);
  if (lists == nullptr) return stop("cp_size must be an integer: an array");
  const bool is_nested = key_ == "ranks" || key_ == "kv_ranks";
  if (++depth_ > (is_nested ? 2 : 1)) {
    return stop(fmt::format("lists are nested too deeply: {}", show_text(key_)));
  }
  if (depth_ == 1) {
    lists->emplace();
    open_ = &**lists;
  }
  const bool begins_list = depth_ == (is_nested ? 2 : 1);
  if (begins_list && open_->size() >= static_cast<size_t>(kMaxRanks)) {
    return stop(fmt::format("more ranks than the limit: {}", kMaxRanks));
  }
  if (begins_list) open_->emplace_back();
  return true;
}

bool OrderEvents::end_array() {
  --depth_;
  return true;
}

bool OrderEvents::number_unsigned(uint64_t number) {
  if (number > static_cast<uint64_t>(kMaxTokens)) {
    return stop(fmt::format("token ids and cp_size are at most {}: {}", kMaxTokens, number));
  }
  const auto value = static_cast<int64_t>(number);
  if (key_ == "cp_size") {
    content.cp_size = value;
    return true;
  }
  const bool is_nested = key_ == "ranks" || key_ == "kv_ranks";
  if (depth_ != (is_nested ? 2 : 1)) {
    return stop(fmt::format("{} must be a list{}: the integer {}", key_.empty() ? "the file" : key_,
                            is_nested ? " of lists" : "", value));
  }
  open_->back().push_back(value);
  return true;
}

/// Says why the ranks' lists are not a partition of 0..n-1 with n >= tokens.
std::optional<std::string> find_order_fault(const Lists& ranks, int64_t tokens,
                                            const BatchPlaces& places) {
  int64_t count = 0, last = -1;
  for (const std::vector<int64_t>& ids : ranks) {
    count += static_cast<int64_t>(ids.size());
    for (const int64_t id : ids) last = std::max(last, id);
  }
  // Ids behind the slots are padding that the order adds, if there are any.
  const int64_t expected = last < tokens ? tokens : std::max(count, tokens);
  const std::optional<std::string> fault = describe_partition_fault(ranks, expected, places);
  if (!fault) return std::nullopt;
  std::string text = fmt::format("{}: {} ids for {} slots", *fault, count, tokens);
  const int64_t valid = std::reduce(places.lengths.begin(), places.lengths.end(), int64_t{0});
  if (!places.lengths.empty() && valid != tokens) {
    text += fmt::format(" (the batch has {} tokens, {} with padding)", valid, tokens);
  }
  return text;
}

/// Cuts the rearrange list into one contiguous part per rank. Empty if the length does not divide.
Lists cut_rearrange(const std::vector<int64_t>& list, int32_t cp_size) {
  const size_t ranks = static_cast<size_t>(cp_size);
  if (list.size() % ranks != 0) return {};
  const auto part = static_cast<std::ptrdiff_t>(list.size() / ranks);
  Lists lists;
  for (auto from = list.begin(); lists.size() < ranks; from += part) {
    lists.emplace_back(from, from + part);
  }
  return lists;
}

/// The lists by rank, from either of the two forms. Errors are sentences.
std::optional<std::string> take_ranks(std::optional<Lists>& ranks, std::optional<Lists>& rearrange,
                                      std::string_view prefix, int32_t cp_size, Lists& taken) {
  if (ranks && rearrange) {
    return fmt::format("give {0}ranks or {0}rearrange, not both", prefix);
  }
  if (rearrange) {
    taken = cut_rearrange(rearrange->front(), cp_size);
    if (taken.empty()) {
      return fmt::format("{}rearrange does not divide by cp_size: {} ids, {} ranks", prefix,
                         rearrange->front().size(), cp_size);
    }
  } else if (ranks) {
    taken = std::move(*ranks);
    if (static_cast<int64_t>(taken.size()) != cp_size) {
      return fmt::format("{}ranks does not have one list per rank: {} lists, {} ranks", prefix,
                         taken.size(), cp_size);
    }
  }
  return std::nullopt;
}

/// Assembles the content and checks it; returns the first error.
std::optional<std::string> build_order(OrderContent& content, const OrderDemand& demand,
                                       ImportedOrder& order) {
  if (content.cp_size && *content.cp_size != demand.cp_size) {
    return fmt::format("cp_size differs from parallel.cp_size: {} here, {} there", *content.cp_size,
                       demand.cp_size);
  }
  const bool has_kv = content.kv_ranks.has_value() || content.kv_rearrange.has_value();
  if (!content.ranks && !content.rearrange) return "the token order is missing: ranks";
  if (!has_kv && !demand.self_attention) {
    return "cross attention needs an order of its own for KV: kv_ranks";
  }
  if (auto fault = take_ranks(content.ranks, content.rearrange, "", demand.cp_size, order.ranks)) {
    return fault;
  }
  if (auto fault = find_order_fault(order.ranks, demand.tokens, demand.places)) return fault;
  if (!has_kv) {
    order.kv_ranks = order.ranks;
    return std::nullopt;
  }
  if (auto fault = take_ranks(content.kv_ranks, content.kv_rearrange, "kv_", demand.cp_size,
                              order.kv_ranks)) {
    return fault;
  }
  const auto fault = find_order_fault(order.kv_ranks, demand.kv_tokens, demand.kv_places);
  return fault ? std::optional("kv_ranks: " + *fault) : std::nullopt;
}

}  // namespace

Result<ImportedOrder> parse_order(std::string_view text, const std::string& path,
                                  const OrderDemand& demand) {
  const std::string hint =
      R"(write {"cp_size": 2, "ranks": [[0, 3], [1, 2]]}, every packed padded id once)";
  OrderEvents events;
  std::string problem;
  try {
    nlohmann::json::sax_parse(text, &events);
    problem = events.problem;
  } catch (const std::exception& error) {
    problem = std::string("not JSON: ") + error.what();
  }
  if (!problem.empty()) {
    const SourcePosition place = events.offset ? find_stop(text, *events.offset) : SourcePosition{};
    return make_error(ErrorKind::bad_input, problem, hint, show_place(path, place));
  }
  ImportedOrder order;
  if (auto fault = build_order(events.content, demand, order)) {
    return make_error(ErrorKind::bad_input, *fault, hint, show_place(path, {}));
  }
  return order;
}

Result<ImportedOrder> load_order(const std::string& path, const OrderDemand& demand) {
  const Result<std::string> text = read_named_file(path, kMaxOrderBytes);
  if (!text) return text.error();
  return parse_order(text.value(), path, demand);
}

}  // namespace cpscope
