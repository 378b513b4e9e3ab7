#include "sim/clock/foreign_trace_json.h"

#include "sim/clock/trace_events.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <istream>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace cpscope {
namespace {

constexpr int64_t kNoTime = std::numeric_limits<int64_t>::max();

/// Nanoseconds of a number of microseconds as it is written, exact to the third decimal; kNoTime
/// where they do not fit.
int64_t nanoseconds_of(std::string_view digits, double value) {
  const bool is_plain = digits.find_first_of("eE") == std::string_view::npos;
  const size_t point = digits.find('.');
  if (is_plain && point != std::string_view::npos && digits.front() != '-') {
    int64_t whole = 0, part = 0;
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + point, whole);
    if (failure != std::errc() || whole > kNoTime / 2000) return kNoTime;
    for (size_t i = 1; i <= 3; ++i)
      part = 10 * part + (point + i < digits.size() ? digits[point + i] - '0' : 0);
    return 1000 * whole + part;
  }
  if (!(std::abs(value) < 4e15)) return kNoTime;
  return static_cast<int64_t>(std::llround(value * 1000));
}

/// Takes nlohmann's events: where in the document it is, and what of it matters.
class TraceHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TraceHandler(TraceEvents& events) : events_(events) {}

  std::string fault;        // what is wrong, empty if nothing
  size_t broken_at = 0;     // byte at which the JSON is broken, from 1
  bool has_events = false;  // there is a list of events

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return take_integer(value); }
  bool number_unsigned(number_unsigned_t value) override {
    const bool fits = value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return take_integer(fits ? static_cast<int64_t>(value) : kNoTime);
  }
  bool number_float(number_float_t value, const string_t& digits) override {
    if (is_event_field()) {
      if (key() == "ts") event_.start_ns = nanoseconds_of(digits, value);
      if (key() == "dur") event_.length_ns = nanoseconds_of(digits, value);
    }
    return true;
  }
  bool string(string_t& text) override {
    if (in_event_) {
      take_event_text(text);
    } else if (depth_ == 2 && is_in(1, "otherData")) {
      if (key() == "made_by") events_.made_by = text;
      if (key() == "plan_hash") events_.plan_hash = text;
    } else if (is_in_group() && key() == "ranks") {
      for (const int64_t member : integers_of(text).value_or(std::vector<int64_t>{}))
        events_.add_to_group(member);
    }
    return fault.empty();
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    open(false);
    if (depth_ == event_depth() && is_list_of_events()) {
      event_ = {};
      in_event_ = true;
      ++count_;
    }
    if (depth_ == 2 && is_in(1, "distributedInfo")) events_.has_distributed_info = true;
    if (is_in_group()) events_.add_group({});
    return true;
  }
  bool end_object() override {
    if (in_event_ && depth_ == event_depth()) {
      in_event_ = false;
      if (const std::optional<std::string> wrong = events_.add(event_))
        fault = fmt::format("event {} (\"{}\"): {}", count_, event_.name.substr(0, 80), *wrong);
    }
    close();
    return fault.empty();
  }
  bool start_array(size_t) override {
    open(true);
    if (depth_ == event_depth() - 1 && is_list_of_events()) has_events = true;
    if (in_event_ && is_args(1) && key_at(event_depth() + 1) == "Input Dims" && !has_first_input_) {
      if (depth_ == event_depth() + 3 && !event_.dims) event_.dims = 1;
      // A list of tensors: its first one is not what is sent.
      if (depth_ == event_depth() + 4) event_.dims = -1;
    }
    return true;
  }
  bool end_array() override {
    if (in_event_ && depth_ == event_depth() + 3) has_first_input_ = true;
    if (in_event_ && depth_ == event_depth() + 2) has_first_input_ = false;
    close();
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ < kKeptDepth) keys_[depth_] = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    broken_at = position;
    return false;
  }

 private:
  static constexpr size_t kKeptDepth = 8;

  void open(bool is_array) {
    if (depth_ == 0) is_bare_list_ = is_array;
    ++depth_;
    if (depth_ < kKeptDepth) keys_[depth_].clear();
  }
  void close() { --depth_; }
  std::string_view key_at(size_t depth) const {
    return depth < kKeptDepth ? std::string_view(keys_[depth]) : std::string_view();
  }
  std::string_view key() const { return key_at(depth_); }
  bool is_in(size_t depth, std::string_view name) const { return key_at(depth) == name; }
  /// The depth inside of an event: a list of events may be the whole document.
  size_t event_depth() const { return is_bare_list_ ? 2 : 3; }
  bool is_list_of_events() const { return is_bare_list_ || is_in(1, "traceEvents"); }
  bool is_event_field() const { return in_event_ && depth_ == event_depth(); }
  /// Inside of the event's args, so many levels below the event.
  bool is_args(size_t levels) const {
    return depth_ >= event_depth() + levels && is_in(event_depth(), "args");
  }
  bool is_in_group() const {
    return depth_ == 4 && is_in(1, "distributedInfo") && is_in(2, "pg_config");
  }

  bool take_integer(int64_t value) {
    if (in_event_) {
      take_event_integer(value);
    } else if (depth_ == 1 && key() == "baseTimeNanoseconds") {
      events_.base_ns = value;
    } else if (depth_ == 2 && is_in(1, "distributedInfo")) {
      if (key() == "rank" && value >= 0) events_.rank = value;
      if (key() == "world_size" && value >= 0) events_.world_size = value;
    } else if (depth_ == 5 && is_in(1, "distributedInfo") && is_in(2, "pg_config") &&
               is_in(4, "ranks")) {
      events_.add_to_group(value);
    }
    return true;
  }

  void take_event_integer(int64_t value) {
    const auto to_ns = [](int64_t us) {
      return us > kNoTime / 2000 || us < -kNoTime / 2000 ? kNoTime : us * 1000;
    };
    if (depth_ == event_depth()) {
      if (key() == "ts") event_.start_ns = to_ns(value);
      if (key() == "dur") event_.length_ns = to_ns(value);
      if (key() == "tid") event_.thread = value;
      if (key() == "pid") event_.process = std::to_string(value);
    } else if (depth_ == event_depth() + 1 && is_args(1)) {
      const std::array<std::pair<std::string_view, int64_t*>, 7> fields = {{
          {"In msg nelems", &event_.in_elements},
          {"Out msg nelems", &event_.out_elements},
          {"Group size", &event_.group_size},
          {"correlation", &event_.correlation},
          {"bytes", &event_.bytes},
          {"step", &event_.step},
          {"item", &event_.item},
      }};
      for (const auto& [name, field] : fields)
        if (key() == name) *field = value;
    } else if (depth_ == event_depth() + 3 && event_.dims && !has_first_input_ && is_args(1) &&
               key_at(event_depth() + 1) == "Input Dims") {
      // More than any tensor holds is unknown.
      const bool fits = value >= 0 && value <= (int64_t{1} << 40) &&
                        *event_.dims <= (int64_t{1} << 50) / std::max<int64_t>(1, value);
      event_.dims = fits ? *event_.dims * value : -1;
    }
  }

  void take_event_text(std::string& text) {
    if (depth_ == event_depth()) {
      const std::array<std::pair<std::string_view, std::string*>, 4> fields = {{
          {"ph", &event_.phase},
          {"name", &event_.name},
          {"cat", &event_.category},
          {"pid", &event_.process},
      }};
      for (const auto& [name, field] : fields)
        if (key() == name) *field = std::move(text);
      // A time that is no number would pass for one that is missing.
      if (key() == "ts" || key() == "dur")
        fault =
            fmt::format("event {}: `{}` is no number: \"{}\"", count_, key(), text.substr(0, 40));
    } else if (depth_ == event_depth() + 1 && is_args(1)) {
      const std::array<std::pair<std::string_view, std::string*>, 8> fields = {{
          {"Collective name", &event_.collective},
          {"dtype", &event_.dtype},
          {"In split size", &event_.in_split_sizes},
          {"Out split size", &event_.out_split_sizes},
          {"Process Group Ranks", &event_.group_ranks},
          {"name", &event_.label},
          {"pass", &event_.pass},
          {"kind", &event_.kind},
      }};
      for (const auto& [name, field] : fields)
        if (key() == name) *field = std::move(text);
    } else if (depth_ == event_depth() + 2 && is_args(1) &&
               key_at(event_depth() + 1) == "Input type" && event_.input_type.empty()) {
      event_.input_type = std::move(text);
    }
  }

  TraceEvents& events_;
  ChromeEvent event_;
  std::array<std::string, kKeptDepth> keys_;
  size_t depth_ = 0;
  int64_t count_ = 0;
  bool is_bare_list_ = false, in_event_ = false, has_first_input_ = false;
};

}  // namespace

Result<ForeignTrace> read_json_trace(TraceBytes& bytes, const std::string& path) {
  TraceEvents events;
  TraceHandler handler(events);
  std::istream stream(&bytes);
  const bool is_whole = nlohmann::json::sax_parse(stream, &handler);
  if (!bytes.fault().empty()) return make_bad_input(bytes.fault(), "", path);
  if (!handler.fault.empty()) return make_bad_input(handler.fault, "", path);
  if (!is_whole)
    return make_bad_input(fmt::format("the JSON is broken at byte {}", handler.broken_at),
                          "was the trace written completely?", path);
  if (!handler.has_events)
    return make_bad_input("this JSON has no list `traceEvents`",
                          "a trace of torch.profiler or of Chrome's format is expected", path);
  return std::move(events).finish(path);
}

}  // namespace cpscope
