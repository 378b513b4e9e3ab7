#include "sim/run/record/integer_file.h"

#include "sim/run/record/run_record.h"
#include "sim/scenario/complaints.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace cpscope {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{512} << 20;
constexpr size_t kMaxLists = 1 << 20;
constexpr std::string_view kNpyMagic = "\x93NUMPY";

/// Takes the JSON as parser events, so that an untrusted file never becomes a tree of values.
class ListEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<NamedLists> found;
  std::string problem;
  std::optional<size_t> offset;  // byte at which the JSON syntax is broken

  bool null() override { return stop("expected whole numbers: null"); }
  bool boolean(bool) override { return stop("expected whole numbers: a boolean"); }
  bool number_float(double, const std::string& text) override {
    return stop("expected whole numbers: " + text.substr(0, 40));
  }
  bool string(std::string& text) override {
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

Result<std::vector<NamedLists>> read_tensors(const std::string& path) {
  const Result<RunRecord> record = read_record(path, {.takes_other_types = true});
  if (!record) return record.error();
  std::vector<NamedLists> found;
  std::map<std::string, std::map<int64_t, std::vector<int64_t>>> parts;
  for (const IntegerTensor& tensor : record.value().integers) {
    const size_t mark = tensor.name.rfind(".rank");
    int64_t rank = -1;
    if (mark != std::string::npos) {
      const char *begin = tensor.name.data() + mark + 5,
                 *end = tensor.name.data() + tensor.name.size();
      if (std::from_chars(begin, end, rank).ptr != end) rank = -1;
    }
    if (rank >= 0) {
      parts[tensor.name.substr(0, mark)][rank] = tensor.values;
      continue;
    }
    const auto rows = rows_of(tensor.shape, tensor.values);
    if (!rows)
      return make_bad_input(fmt::format("tensor {} must have one or two dimensions: [{}]",
                                        show_text(tensor.name), fmt::join(tensor.shape, ", ")),
                            "", path);
    found.push_back({tensor.name, *rows});
  }
  for (const auto& [name, ranks] : parts) {
    NamedLists lists{name, {}};
    for (const auto& [rank, values] : ranks) {
      if (rank != static_cast<int64_t>(lists.lists.size()))
        return make_bad_input(
            fmt::format("the list of rank {} is missing: {}", lists.lists.size(), show_text(name)),
            "", path);
      lists.lists.push_back(values);
    }
    found.push_back(std::move(lists));
  }
  if (found.empty()) {
    return make_bad_input("the file holds no whole numbers",
                          "store I32 or I64 tensors (floating-point ones are not taken)", path);
  }
  return found;
}

/// The text after `key` in the header of an .npy file, a Python dictionary of three entries.
std::string_view npy_entry(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const size_t colon = header.find(':', at + key.size());
  if (colon == std::string_view::npos) return {};
  std::string_view rest = header.substr(colon + 1);
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  return rest;
}

struct NpyHeader {
  int64_t bytes = 0;  // of an element
  bool is_signed = false;
  std::vector<int64_t> shape;
  size_t data_begin = 0;
};

/// The text of an .npy header; sets where the data begins. Empty when there is no such header.
std::string_view npy_header_text(std::string_view file, NpyHeader& header) {
  constexpr size_t kPrefix = 8;  // magic and version
  if (file.size() < kPrefix + 2 || !file.starts_with(kNpyMagic)) return {};
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(file[i])); };
  const size_t width = byte(6) == 1 ? 2 : 4;
  if (file.size() < kPrefix + width) return {};
  size_t length = 0;
  for (size_t i = 0; i < width; ++i) length |= byte(kPrefix + i) << (8 * i);
  if (length > file.size() - kPrefix - width) return {};
  header.data_begin = kPrefix + width + length;
  return file.substr(kPrefix + width, length);
}

/// Says what is wrong with the header; nothing if it describes whole numbers in row-major order.
std::optional<std::string> read_npy_header(std::string_view file, NpyHeader& header) {
  const std::string_view text = npy_header_text(file, header);
  if (text.empty()) return "not an .npy file";
  const std::string_view type = npy_entry(text, "'descr'");
  if (type.size() < 5 || type[0] != '\'') return "the header names no type";
  const std::string name(type.substr(1, 3));
  header.bytes = name[2] - '0';
  header.is_signed = name[1] == 'i';
  const bool is_known =
      (name[1] == 'i' || name[1] == 'u') && type[4] == '\'' &&
      (header.bytes == 1 || header.bytes == 2 || header.bytes == 4 || header.bytes == 8) &&
      (name[0] == '<' || name[0] == '|');
  if (!is_known) return "the type is not little-endian whole numbers: " + show_text(name);
  if (!npy_entry(text, "'fortran_order'").starts_with("False"))
    return "the array is not in row-major (C) order";
  std::string_view shape = npy_entry(text, "'shape'");
  const size_t end = shape.find(')');
  if (!shape.starts_with("(") || end == std::string_view::npos) return "the header has no shape";
  shape = shape.substr(1, end - 1);
  while (!shape.empty()) {
    int64_t extent = 0;
    const auto [stop, failure] = std::from_chars(shape.data(), shape.data() + shape.size(), extent);
    if (failure != std::errc() || extent < 0) return "the header has a broken shape";
    header.shape.push_back(extent);
    shape.remove_prefix(static_cast<size_t>(stop - shape.data()));
    while (!shape.empty() && (shape.front() == ',' || shape.front() == ' ')) shape.remove_prefix(1);
  }
  return std::nullopt;
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
      R"(write {"cu_seqlens_padded": [0, 8, 12], "indices": [[0, 1, 6], [2, 3, 4]]})",
      show_place(path, place));
}

Result<std::vector<NamedLists>> parse_npy(std::string_view bytes, const std::string& path) {
  NpyHeader header;
  if (auto problem = read_npy_header(bytes, header))
    return make_bad_input(*problem, "save whole numbers: numpy.save(path, array.astype('int64'))",
                          path);
  int64_t size = header.bytes;
  for (const int64_t extent : header.shape) {
    if (__builtin_mul_overflow(size, extent, &size))
      return make_bad_input("the shape overflows", "", path);
  }
  if (size != static_cast<int64_t>(bytes.size() - header.data_begin))
    return make_bad_input(fmt::format("shape and data disagree: {} bytes needed, {} there", size,
                                      bytes.size() - header.data_begin),
                          "", path);
  std::vector<int64_t> values(static_cast<size_t>(size / header.bytes));
  const char* data = bytes.data() + header.data_begin;
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, data + i * static_cast<size_t>(header.bytes),
                static_cast<size_t>(header.bytes));
    const int unused = 64 - 8 * static_cast<int>(header.bytes);
    values[i] = header.is_signed ? static_cast<int64_t>(bits << unused) >> unused
                                 : static_cast<int64_t>(bits);
  }
  const auto rows = rows_of(header.shape, values);
  if (!rows)
    return make_bad_input(fmt::format("the array must have one or two dimensions: [{}]",
                                      fmt::join(header.shape, ", ")),
                          "", path);
  return std::vector<NamedLists>{{"", *rows}};
}

Result<std::vector<NamedLists>> read_integer_file(const std::string& path) {
  if (path.ends_with(".safetensors")) return read_tensors(path);
  const Result<std::string> bytes = read_text_file(path, kMaxFileBytes);
  if (!bytes) return bytes.error();
  if (bytes.value().starts_with(kNpyMagic)) return parse_npy(bytes.value(), path);
  return parse_integer_json(bytes.value(), path);
}

}  // namespace cpscope
