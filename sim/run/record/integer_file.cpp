#include "sim/run/record/integer_file.h"

#include "sim/run/record/foreign_file.h"
#include "sim/run/record/opened_file.h"
#include "sim/scenario/complaints.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace cpscope {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{512} << 20;
constexpr size_t kMaxLists = 1 << 20;

/// Takes the JSON as parser events, so that an untrusted file never becomes a tree of values.
class ListEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<NamedLists> found;
  std::string problem;
  std::optional<size_t> offset;  // byte at which the JSON syntax is broken

  bool null() override { return drop_field() || stop("expected whole numbers: null"); }
  bool boolean(bool) override { return stop("expected whole numbers: a boolean"); }
  bool number_float(double, const std::string& text) override {
    return stop("expected whole numbers: " + text.substr(0, 40));
  }
  bool string(std::string& text) override {
    // The one word among Megatron's PackedSeqParams.
    if (is_field() && found.back().name == "qkv_format") return drop_field();
    return stop("expected whole numbers: " + show_text(text));
  }
  bool binary(nlohmann::json::binary_t&) override { return stop("binary data"); }
  bool number_integer(int64_t number) override { return take(number); }
  bool number_unsigned(uint64_t number) override {
    if (number > static_cast<uint64_t>(INT64_MAX)) return stop("a number is too large");
    return take(static_cast<int64_t>(number));
  }
  bool start_object(size_t) override {
    if (has_root_) return stop("values must not be objects");
    has_root_ = is_object_ = true;
    return true;
  }
  bool end_object() override { return true; }
  bool key(std::string& name) override {
    for (const NamedLists& lists : found) {
      if (lists.name == name) return stop("a key is given twice: " + show_text(name));
    }
    found.push_back({name, {}});
    return true;
  }
  bool start_array(size_t) override {
    if (!has_root_) found.push_back({"", {}});
    has_root_ = true;
    if (found.empty()) return stop("a list without a name");
    if (++depth_ > 3) return stop("lists are nested too deeply");
    if (depth_ == 1) is_nested_ = false;
    // The rows of [ranks, 1, n], the shape of a batch of one, are those of [ranks, n].
    if (depth_ == 3 && (has_inner_ || !found.back().lists.back().empty()))
      return stop("lists are nested too deeply");
    if (depth_ == 3) has_inner_ = true;
    if (depth_ == 2) has_inner_ = false;
    if (depth_ == 2) {
      if (!is_nested_ && !found.back().lists.empty()) return stop("a list mixes numbers and lists");
      is_nested_ = true;
      if (found.back().lists.size() >= kMaxLists) return stop("too many lists");
      found.back().lists.emplace_back();
    }
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    offset = position;
    return stop("not JSON");
  }

 private:
  bool stop(std::string what) {
    problem = std::move(what);
    return false;
  }
  /// True where the value of a key is read, not one inside a list.
  bool is_field() const { return is_object_ && depth_ == 0; }
  /// Forgets the key whose value is read; false where there is none.
  bool drop_field() {
    if (is_field()) found.pop_back();
    return is_field();
  }
  bool take(int64_t number) {
    // A single number is stored as a list of one: "cp_size": 4.
    if (depth_ == 0) {
      if (!is_object_) return stop("the file must be a list or an object of lists");
      found.back().lists = {{number}};
      return true;
    }
    std::vector<std::vector<int64_t>>& lists = found.back().lists;
    if ((depth_ == 1 && is_nested_) || (depth_ == 2 && has_inner_))
      return stop("a list mixes numbers and lists");
    if (depth_ == 1 && lists.empty()) lists.emplace_back();
    lists.back().push_back(number);
    return true;
  }

  bool has_root_ = false, is_object_ = false, is_nested_ = false;
  bool has_inner_ = false;  // the present list of lists holds a list
  int64_t depth_ = 0;
};

/// Rows of an array of one or two dimensions, or of [rows, 1, n].
std::optional<std::vector<std::vector<int64_t>>> rows_of(const std::vector<int64_t>& shape,
                                                         const std::vector<int64_t>& values) {
  if (shape.empty() && values.size() == 1) return {{values}};
  if (shape.size() == 1) return {{values}};
  const bool has_rows = shape.size() == 2 || (shape.size() == 3 && shape[1] == 1);
  if (!has_rows || shape[0] > static_cast<int64_t>(kMaxLists)) return std::nullopt;
  std::vector<std::vector<int64_t>> rows;
  const int64_t width = shape.back();
  for (int64_t row = 0; row < shape[0]; ++row)
    rows.emplace_back(values.begin() + row * width, values.begin() + (row + 1) * width);
  return rows;
}

/// "indices.rank3": a list's name and its rank; -1 without a rank.
std::pair<std::string, int64_t> split_rank(const std::string& name) {
  constexpr std::string_view kPart = ".rank";
  const size_t mark = name.rfind(kPart);
  if (mark == std::string::npos) return {name, -1};
  const char *begin = name.data() + mark + kPart.size(), *end = name.data() + name.size();
  int64_t rank = -1;
  if (std::from_chars(begin, end, rank).ptr != end || rank < 0) return {name, -1};
  return {name.substr(0, mark), rank};
}

/// The whole numbers of one record, or of one for each rank, as lists.
Result<std::vector<NamedLists>> list_tensors(const std::vector<NamedRecord>& records,
                                             const std::string& path) {
  std::vector<NamedLists> found;
  std::map<std::string, std::map<int64_t, std::vector<std::vector<int64_t>>>> parts;
  for (size_t r = 0; r < records.size(); ++r) {
    for (const IntegerTensor& tensor : records[r].record.integers) {
      auto [name, rank] = split_rank(tensor.name);
      if (rank < 0 && records.size() > 1) rank = static_cast<int64_t>(r);
      const auto rows = rows_of(tensor.shape, tensor.values);
      if (!rows)
        return make_bad_input(fmt::format("{} must have one or two dimensions: [{}]",
                                          name.empty() ? "the array" : "tensor " + show_text(name),
                                          fmt::join(tensor.shape, ", ")),
                              "", path);
      if (rank < 0) {
        found.push_back({name, *rows});
      } else {
        parts[name][rank] = *rows;
      }
    }
  }
  for (const auto& [name, ranks] : parts) {
    NamedLists lists{name, {}};
    int64_t next = 0;
    for (const auto& [rank, rows] : ranks) {
      if (rank != next++)
        return make_bad_input(
            fmt::format("the list of rank {} is missing: {}", next - 1, show_text(name)), "", path);
      lists.lists.insert(lists.lists.end(), rows.begin(), rows.end());
    }
    found.push_back(std::move(lists));
  }
  if (!found.empty()) return found;
  for (const NamedRecord& named : records) {
    for (const SkippedTensor& tensor : named.record.skipped)
      return make_bad_input(
          "the type is not little-endian whole numbers: " + show_text(tensor.type_name),
          "save whole numbers: array.astype('int64')", path);
  }
  return make_bad_input("the file holds no whole numbers",
                        "store I32 or I64 tensors (floating-point ones are not taken)", path);
}

/// True for a file of tensors, which, unlike text, holds zeros near its begin.
bool holds_tensors(const std::string& path) {
  if (path.ends_with(".safetensors")) return true;
  Result<OpenedFile> file = OpenedFile::open(path);
  if (!file) return false;
  constexpr int64_t kFrontBytes = 16;
  const std::string front =
      file.value().read_text(0, std::min(kFrontBytes, file.value().size())).value_or("");
  return front.find('\0') != std::string::npos || front.starts_with('\x80');
}

}  // namespace

Result<std::vector<NamedLists>> parse_integer_json(std::string_view text, const std::string& path) {
  ListEvents events;
  try {
    nlohmann::json::sax_parse(text, &events);
  } catch (const std::exception& error) {
    events.problem = std::string("not JSON: ") + error.what();
  }
  if (events.problem.empty()) return std::move(events.found);
  const SourcePosition place = events.offset ? find_stop(text, *events.offset) : SourcePosition{};
  return make_bad_input(
      events.problem,
      R"(write lists of whole numbers, {"name": [0, 8, 12]}, or one a rank, {"name": [[0, 1], [2, 3]]})",
      show_place(path, place));
}

Result<std::vector<NamedLists>> read_integer_file(const std::string& path) {
  if (holds_tensors(path)) {
    const Result<std::vector<NamedRecord>> records = read_foreign_file(path);
    if (!records) return records.error();
    return list_tensors(records.value(), path);
  }
  const Result<std::string> text = read_text_file(path, kMaxFileBytes);
  if (!text) return text.error();
  return parse_integer_json(text.value(), path);
}

}  // namespace cpscope
