#include "sim/scenario/positions_file.h"

#include "sim/scenario/integer_events.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/text_file.h"

#include <exception>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kMaxPositionBytes = 256LL << 20;

class PositionEvents final : public IntegerEvents {
 public:
  std::optional<std::vector<int64_t>> q, kv;

  PositionEvents() : IntegerEvents("a position file") {}
  bool number_integer(int64_t number) override {
    return stop(fmt::format("positions must not be negative: {}", number));
  }
  bool number_unsigned(uint64_t number) override {
    if (number > static_cast<uint64_t>(kMaxTokens))
      return stop(fmt::format("positions are at most {}: {}", kMaxTokens, number));
    if (open_ == nullptr) return stop(fmt::format("positions are lists: the integer {}", number));
    open_->push_back(static_cast<int64_t>(number));
    return true;
  }
  bool start_object(size_t) override {
    return std::exchange(has_root_, true) ? stop("values must not be objects") : true;
  }
  bool key(std::string& name) override {
    if (name != "q" && name != "kv") return stop("unknown key: " + show_text(name));
    next_ = name == "q" ? &q : &kv;
    return next_->has_value() ? stop("a key is given twice: " + show_text(name)) : true;
  }
  bool start_array(size_t) override {
    if (next_ == nullptr || open_ != nullptr) return stop("write {\"q\": [...], \"kv\": [...]}");
    open_ = &next_->emplace();
    return true;
  }
  bool end_array() override {
    open_ = nullptr;
    return true;
  }

 private:
  std::optional<std::vector<int64_t>>* next_ = nullptr;
  std::vector<int64_t>* open_ = nullptr;
  bool has_root_ = false;
};

}  // namespace

Result<RotaryPositions> parse_positions(std::string_view text, const std::string& path,
                                        int64_t queries, int64_t keys) {
  PositionEvents events;
  const auto fail = [&](std::string what) {
    const SourcePosition place = events.offset ? find_stop(text, *events.offset) : SourcePosition{};
    return make_error(ErrorKind::bad_input, std::move(what),
                      "write {\"q\": [0, 1, 2], \"kv\": [0, 1, 2]}, one position for each valid "
                      "token of the batch",
                      show_place(path, place));
  };
  try {
    nlohmann::json::sax_parse(text, &events);
  } catch (const std::exception& error) {
    return fail(std::string("not JSON: ") + error.what());
  }
  if (!events.problem.empty()) return fail(events.problem);
  if (!events.q) return fail("the positions of queries are missing: \"q\"");
  if (!events.kv && keys != queries) return fail("the positions of keys are missing: \"kv\"");
  RotaryPositions positions{std::move(*events.q), {}};
  positions.kv = events.kv ? std::move(*events.kv) : positions.q;
  for (const auto& [name, list, count] :
       {std::tuple{"q", &positions.q, queries}, {"kv", &positions.kv, keys}}) {
    if (std::ssize(*list) != count)
      return fail(
          fmt::format("{} does not hold one position for each valid token: {} positions, "
                      "{} tokens",
                      name, list->size(), count));
  }
  return positions;
}

Result<RotaryPositions> load_positions(const std::string& path, int64_t queries, int64_t keys) {
  const Result<std::string> text = read_text_file(path, kMaxPositionBytes);
  if (!text) return text.error();
  return parse_positions(text.value(), path, queries, keys);
}

}  // namespace cpscope
