#include "sim/run/record/record_header.h"

#include "sim/run/record/record_extras.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace cpscope {

namespace {

Error header_error(std::string what, std::string hint = "") {
  return make_error(ErrorKind::bad_input, std::move(what), std::move(hint));
}

/// Receives nlohmann's parser events. The document has one fixed form, so no tree is built (an
/// untrusted file could make it a hundred times larger than itself): each event is accepted or
/// rejected immediately.
class HeaderReader {
 public:
  // The names and signatures below are nlohmann's SAX interface; returning false stops the parser.
  bool null() { return refuse("unexpected null"); }
  bool boolean(bool) { return refuse("unexpected true or false"); }
  bool binary(const nlohmann::json::binary_t&) { return refuse("unexpected binary value"); }
  bool number_float(double, const std::string&) { return refuse("not a whole number"); }
  bool number_integer(int64_t value) {
    return value < 0 ? refuse("negative number") : add_number(value);
  }
  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return refuse("number too large");
    }
    return add_number(static_cast<int64_t>(value));
  }
  bool string(std::string& text);
  bool start_object(size_t);
  bool key(std::string& text);
  bool end_object();
  bool start_array(size_t);
  bool end_array();
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return refuse(fmt::format("not valid JSON near byte {}", position));
  }

  RecordHeader take_header() { return std::move(header_); }
  const std::optional<std::string>& problem() const { return problem_; }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  bool refuse(const std::string& what) {
    if (problem_) return false;
    problem_ = what;
    if (place_ != Place::outside && place_ != Place::top) {
      *problem_ += fmt::format(" in \"{}\"", printable_name(entry_));
      if (!field_.empty()) *problem_ += fmt::format(", key \"{}\"", printable_name(field_));
    }
    return false;
  }
  bool add_number(int64_t value);
  bool finish_tensor();

  Place place_ = Place::outside;
  std::string entry_;                 // key of the top object that is being read
  std::string field_;                 // key inside it
  std::set<std::string> names_seen_;  // keys of the top object
  std::set<std::string> fields_seen_;
  std::vector<int64_t> offsets_;
  RecordHeader header_;
  std::optional<std::string> problem_;
};

bool HeaderReader::string(std::string& text) {
  if (place_ == Place::metadata) {
    header_.metadata.emplace(field_, std::move(text));
    return true;
  }
  if (place_ == Place::tensor && field_ == "dtype") {
    header_.tensors.back().type_name = std::move(text);
    return true;
  }
  return refuse("unexpected text");
}

bool HeaderReader::start_object(size_t) {
  if (place_ == Place::outside) {
    place_ = Place::top;
    return true;
  }
  if (place_ != Place::top) return refuse("unexpected object");
  fields_seen_.clear();
  field_.clear();
  if (entry_ == "__metadata__") {
    place_ = Place::metadata;
    return true;
  }
  place_ = Place::tensor;
  header_.tensors.emplace_back().name = entry_;
  return true;
}

bool HeaderReader::key(std::string& text) {
  if (place_ == Place::top) {
    entry_ = std::move(text);
    if (names_seen_.insert(entry_).second) return true;
    return refuse(fmt::format("two entries are called \"{}\"", printable_name(entry_)));
  }
  field_ = std::move(text);
  if (!fields_seen_.insert(field_).second) return refuse("repeated key");
  if (place_ == Place::tensor && field_ != "dtype" && field_ != "shape" &&
      field_ != "data_offsets") {
    return refuse("unknown key");
  }
  return true;
}

bool HeaderReader::end_object() {
  if (place_ == Place::tensor && !finish_tensor()) return false;
  place_ = place_ == Place::top ? Place::outside : Place::top;
  return true;
}

bool HeaderReader::start_array(size_t) {
  if (place_ == Place::tensor && field_ == "shape") {
    place_ = Place::shape;
    return true;
  }
  if (place_ == Place::tensor && field_ == "data_offsets") {
    place_ = Place::offsets;
    offsets_.clear();
    return true;
  }
  return refuse("unexpected array");
}

bool HeaderReader::end_array() {
  if (place_ == Place::offsets && offsets_.size() != 2) return refuse("not two numbers");
  place_ = Place::tensor;
  return true;
}

bool HeaderReader::add_number(int64_t value) {
  if (place_ == Place::shape) {
    std::vector<int64_t>& shape = header_.tensors.back().shape;
    if (shape.size() == kMaxDimensions) {
      return refuse(fmt::format("more than {} dimensions", kMaxDimensions));
    }
    shape.push_back(value);
    return true;
  }
  if (place_ == Place::offsets && offsets_.size() < 2) {
    offsets_.push_back(value);
    return true;
  }
  return refuse(place_ == Place::offsets ? "not two numbers" : "unexpected number");
}

bool HeaderReader::finish_tensor() {
  field_.clear();
  if (fields_seen_.size() != 3) return refuse("dtype, shape or data_offsets is missing");
  header_.tensors.back().begin = offsets_[0];
  header_.tensors.back().end = offsets_[1];
  return true;
}

// Every type that the format knows (safetensors 0.6, `Dtype`) whose elements are whole bytes.
constexpr std::array kStoredTypes = {
    StoredType{"F64", 8, Dtype::fp64},         StoredType{"F32", 4, Dtype::fp32},
    StoredType{"F16", 2, Dtype::fp16},         StoredType{"BF16", 2, Dtype::bf16},
    StoredType{"I64", 8, {}, true, true},      StoredType{"U64", 8, {}, true, false},
    StoredType{"I32", 4, {}, true, true},      StoredType{"U32", 4, {}, true, false},
    StoredType{"I16", 2, {}, true, true},      StoredType{"U16", 2, {}, true, false},
    StoredType{"I8", 1, {}, true, true},       StoredType{"U8", 1, {}, true, false},
    StoredType{"BOOL", 1, {}, false, false},   StoredType{"F8_E5M2", 1, {}, false, false},
    StoredType{"F8_E4M3", 1, {}, false, false}};

/// Bytes that the shape requires, or nothing when that is more than int64_t holds.
std::optional<int64_t> checked_bytes(const StoredTensor& tensor, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string describe(const StoredTensor& tensor) {
  return fmt::format("tensor \"{}\", bytes [{}, {})", printable_name(tensor.name), tensor.begin,
                     tensor.end);
}

/// The first tensor whose range does not begin where the one before it ended, if any.
std::optional<Error> find_gap(const RecordHeader& header, int64_t data_bytes) {
  std::vector<const StoredTensor*> by_place;
  for (const StoredTensor& tensor : header.tensors) by_place.push_back(&tensor);
  std::stable_sort(by_place.begin(), by_place.end(),
                   [](const StoredTensor* a, const StoredTensor* b) {
                     return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
                   });
  int64_t covered = 0;
  for (const StoredTensor* tensor : by_place) {
    if (tensor->begin != covered) {
      return header_error(fmt::format(
          "{} {}: {}; the bytes before it end at {}", "the data of two tensors",
          tensor->begin < covered ? "overlap" : "leave a gap", describe(*tensor), covered));
    }
    covered = tensor->end;
  }
  if (covered == data_bytes) return std::nullopt;
  return header_error(
      fmt::format("the tensors describe {} bytes of data, the file holds {}", covered, data_bytes));
}

}  // namespace

std::optional<StoredType> find_stored_type(std::string_view name) {
  for (const StoredType& type : kStoredTypes) {
    if (name == type.name) return type;
  }
  return std::nullopt;
}

std::string_view stored_type_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
      return "BF16";
    case Dtype::fp16:
      return "F16";
    case Dtype::fp32:
      return "F32";
    case Dtype::fp64:
      break;
  }
  return "F64";
}

std::string printable_name(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string shown(text.substr(0, kLongest));
  for (char& letter : shown) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f) letter = '?';
  }
  return text.size() > kLongest ? shown + "..." : shown;
}

Result<RecordHeader> parse_record_header(std::string_view json) {
  HeaderReader reader;
  const bool is_complete = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  if (reader.problem()) {
    return header_error(fmt::format("the record's header is invalid: {}", *reader.problem()));
  }
  CPSCOPE_CHECK(is_complete, "the parser stopped without a reason", json.size(), "");
  return reader.take_header();
}

Result<std::vector<StoredType>> check_record_header(const RecordHeader& header, int64_t data_bytes,
                                                    bool takes_other_types) {
  std::vector<StoredType> types;
  for (const StoredTensor& tensor : header.tensors) {
    const std::optional<StoredType> type = find_stored_type(tensor.type_name);
    if (!type || !(type->dtype || takes_other_types)) {
      return header_error(
          fmt::format("tensor \"{}\" has a type that records do not hold: \"{}\"",
                      printable_name(tensor.name), printable_name(tensor.type_name)),
          "store it as F64, F32, F16 or BF16");
    }
    if (tensor.begin > tensor.end || tensor.end > data_bytes) {
      return header_error(fmt::format("data outside of the file: {}, the file holds {} bytes",
                                      describe(tensor), data_bytes));
    }
    const std::optional<int64_t> bytes = checked_bytes(tensor, type->bytes);
    if (!bytes || *bytes != tensor.end - tensor.begin) {
      return header_error(
          fmt::format("shape and data disagree: {}, shape [{}] of {} needs {} bytes",
                      describe(tensor), fmt::join(tensor.shape, ", "), tensor.type_name,
                      bytes ? fmt::to_string(*bytes) : "more than 2^63"));
    }
    types.push_back(*type);
  }
  if (std::optional<Error> gap = find_gap(header, data_bytes)) return *std::move(gap);
  return types;
}

std::string print_record_header(const RunRecord& record, const std::vector<const Tensor*>& tensors,
                                const std::vector<int64_t>& begins) {
  nlohmann::ordered_json metadata = {
      {"scenario", record.scenario_text}, {"plan_hash", record.plan_hash},
      {"executor", record.executor},      {"machine", record.machine},
      {"version", record.version},        {"clock", record.clock}};
  for (const auto& [key, text] : print_budgets(record.budgets)) metadata[key] = text;
  // A scenario or a host name that is not UTF-8 must not make the record fail.
  const auto print = [](const nlohmann::ordered_json& json) {
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  };
  // Printed entry by entry: one JSON document of all entries would search all its names for every
  // new one.
  std::string text = "{\"__metadata__\":" + print(metadata);
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Tensor& tensor = *tensors[t];
    const int64_t end = begins[t] + tensor.size() * element_bytes(tensor.dtype);
    text += ',' + print(tensor.name) + ':' +
            print({{"dtype", stored_type_name(tensor.dtype)},
                   {"shape", tensor.shape},
                   {"data_offsets", {begins[t], end}}});
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace cpscope
