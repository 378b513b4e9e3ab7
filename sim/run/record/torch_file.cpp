#include "sim/run/record/torch_file.h"

#include "sim/run/record/record_header.h"
#include "sim/run/record/stored_values.h"
#include "sim/run/record/torch_pickle.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr std::string_view kPickleName = "data.pkl";
constexpr int64_t kMaxPickleBytes = int64_t{64} << 20;
constexpr int kMaxNesting = 16;
constexpr size_t kMaxJoinedName = 256;  // bytes
// Values may be contained in several others, but not so that they multiply without end.
constexpr size_t kMaxRepeatedValues = 4096;

/// torch's words for types, and the names that records have for them. Others are skipped.
std::optional<StoredType> find_torch_type(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kTypes{
      {{"float64", "F64"},
       {"float32", "F32"},
       {"float16", "F16"},
       {"bfloat16", "BF16"},
       {"int64", "I64"},
       {"uint64", "U64"},
       {"int32", "I32"},
       {"uint32", "U32"},
       {"int16", "I16"},
       {"uint16", "U16"},
       {"int8", "I8"},
       {"uint8", "U8"},
       {"bool", "BOOL"},
       {"float8_e5m2", "F8_E5M2"},
       {"float8_e4m3fn", "F8_E4M3"}}};
  for (const auto& [theirs, ours] : kTypes) {
    if (theirs == name) return find_stored_type(ours);
  }
  return std::nullopt;
}

/// data.pkl of the archive's one folder; nullptr when there is none.
const ZipEntry* find_pickle(const std::vector<ZipEntry>& entries) {
  for (const ZipEntry& entry : entries) {
    const size_t slash = entry.name.find('/');
    if (slash != std::string::npos && entry.name.substr(slash + 1) == kPickleName) return &entry;
  }
  return nullptr;
}

/// Turns the values of a pickle into records.
class TorchReader {
 public:
  TorchReader(OpenedFile& file, const TorchPickle& pickle, std::string folder,
              const std::vector<ZipEntry>& entries)
      : file_(file), pickle_(pickle), folder_(std::move(folder)) {
    for (const ZipEntry& entry : entries) entries_.emplace(entry.name, &entry);
  }

  Result<std::vector<NamedRecord>> read() {
    const PickledValue& root = at(pickle_.root);
    std::vector<int32_t> places{pickle_.root};
    const bool is_by_rank = root.kind == PickledKind::list && holds_only(root, PickledKind::dict);
    if (is_by_rank) places = root.items;
    std::vector<NamedRecord> records;
    for (const int32_t place : places) {
      NamedRecord& named = records.emplace_back();
      named.path = file_.path();
      if (is_by_rank && places.size() > 1) named.path += fmt::format("[{}]", records.size() - 1);
      if (at(place).kind == PickledKind::dict) take_metadata(at(place), named.record);
      if (auto error = take(place, "", 0, named)) return *error;
    }
    return records;
  }

 private:
  const PickledValue& at(int32_t place) const { return pickle_.values[static_cast<size_t>(place)]; }

  bool holds_only(const PickledValue& list, PickledKind kind) const {
    return !list.items.empty() && std::all_of(list.items.begin(), list.items.end(),
                                              [&](int32_t item) { return at(item).kind == kind; });
  }

  /// Words of a dict, as the metadata of a .safetensors file has them: "order", "format", ...
  void take_metadata(const PickledValue& dict, RunRecord& record) const {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickledValue &key = at(dict.items[i]), &value = at(dict.items[i + 1]);
      if (key.kind != PickledKind::text) continue;
      if (value.kind == PickledKind::text) record.metadata[key.text] = value.text;
      if (value.kind == PickledKind::integer && key.text == "rank")
        record.metadata[key.text] = fmt::to_string(value.number);
    }
  }

  /// Takes a value and all that it contains.
  std::optional<Error> take(int32_t place, const std::string& name, int nesting,
                            NamedRecord& named) {
    if (nesting > kMaxNesting || name.size() > kMaxJoinedName)
      return file_.error(fmt::format("values are nested more than {} times, or have long names: {}",
                                     kMaxNesting, printable_name(name)));
    if (++visited_ > pickle_.values.size() + kMaxRepeatedValues)
      return file_.error("the file holds the same values many times", "save every tensor once");
    const PickledValue& value = at(place);
    switch (value.kind) {
      case PickledKind::tensor:
        return take_tensor(pickle_.tensors[static_cast<size_t>(value.number)], name, named);
      case PickledKind::integer:
        named.record.integers.push_back({name, {}, {value.number}});
        return std::nullopt;
      case PickledKind::none:
        named.absent.push_back(name);
        return std::nullopt;
      case PickledKind::dict:
        return take_dict(value, name, nesting, named);
      case PickledKind::list:
        return take_list(value, name, nesting, named);
      default:
        return std::nullopt;
    }
  }

  std::optional<Error> take_dict(const PickledValue& dict, const std::string& name, int nesting,
                                 NamedRecord& named) {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickledValue& key = at(dict.items[i]);
      const std::string word =
          key.kind == PickledKind::integer ? fmt::to_string(key.number) : key.text;
      if (auto error =
              take(dict.items[i + 1], name.empty() ? word : name + '.' + word, nesting + 1, named))
        return error;
    }
    return std::nullopt;
  }

  std::optional<Error> take_list(const PickledValue& list, const std::string& name, int nesting,
                                 NamedRecord& named) {
    if (holds_only(list, PickledKind::integer)) {
      IntegerTensor tensor{name, {static_cast<int64_t>(list.items.size())}, {}};
      for (const int32_t item : list.items) tensor.values.push_back(at(item).number);
      visited_ += list.items.size();
      named.record.integers.push_back(std::move(tensor));
      return std::nullopt;
    }
    // Parts by rank, as Python's `grade` takes them.
    const bool is_by_rank =
        holds_only(list, PickledKind::tensor) || holds_only(list, PickledKind::list);
    for (size_t i = 0; i < list.items.size(); ++i) {
      const std::string part = is_by_rank     ? fmt::format("{}.rank{}", name, i)
                               : name.empty() ? fmt::to_string(i)
                                              : fmt::format("{}.{}", name, i);
      if (auto error = take(list.items[i], part, nesting + 1, named)) return error;
    }
    return std::nullopt;
  }

  std::optional<Error> take_tensor(const PickledTensor& tensor, const std::string& name,
                                   NamedRecord& named) {
    const std::string label = printable_name(name);
    if (tensor.placement == PickledPlacement::partial_sum)
      return file_.error(
          fmt::format("\"{}\" is a DTensor of sums that are not added up yet: Partial", label),
          "redistribute it to Shard or Replicate first");
    if (tensor.placement == PickledPlacement::one_part) named.parts.insert(name);
    const std::optional<StoredType> type = find_torch_type(tensor.type_name);
    if (!type) {
      named.record.skipped.push_back({name, tensor.type_name});
      return std::nullopt;
    }
    const auto storage = entries_.find(folder_ + "data/" + tensor.storage);
    if (storage == entries_.end())
      return file_.error(fmt::format("the storage of \"{}\" is missing: data/{}", label,
                                     printable_name(tensor.storage)));
    StoredValues stored{.name = name,
                        .type = *type,
                        .shape = tensor.shape,
                        .strides = tensor.strides,
                        .begin = storage->second->begin};
    const std::optional<int64_t> elements = count_elements(tensor.shape),
                                 spanned = count_spanned_bytes(stored);
    int64_t offset = 0;
    const bool is_counted =
        elements && spanned && !__builtin_mul_overflow(tensor.offset, type->bytes, &offset);
    if (!is_counted || (*elements > 0 && (offset > storage->second->size ||
                                          *spanned > storage->second->size - offset)))
      return file_.error(fmt::format("\"{}\" is larger than its storage, data/{} of {} bytes",
                                     label, printable_name(tensor.storage), storage->second->size));
    // Views of one storage, or expanded ones, must not take more memory than the file explains.
    if (*elements > file_.size() - elements_)
      return file_.error(
          fmt::format("the tensors up to \"{}\" have more elements than the file has bytes", label),
          "save copies: tensor.clone(), or contiguous() of an expanded one");
    elements_ += *elements;
    stored.begin += offset;
    if (!take_values(file_, stored, named.record))
      return file_.error(fmt::format("\"{}\" cannot be read", label));
    return std::nullopt;
  }

  OpenedFile& file_;
  const TorchPickle& pickle_;
  const std::string folder_;
  std::map<std::string, const ZipEntry*> entries_;
  size_t visited_ = 0;    // values
  int64_t elements_ = 0;  // of all tensors so far
};

}  // namespace

bool is_torch_archive(const std::vector<ZipEntry>& entries) {
  return find_pickle(entries) != nullptr;
}

Result<std::vector<NamedRecord>> read_torch_file(OpenedFile& file,
                                                 const std::vector<ZipEntry>& entries) {
  const ZipEntry* entry = find_pickle(entries);
  if (entry == nullptr) return file.error("not a file of torch.save");
  const std::string folder = entry->name.substr(0, entry->name.find('/') + 1);
  for (const ZipEntry& other : entries) {
    if (other.name != folder + "byteorder") continue;
    if (file.read_text(other.begin, std::min<int64_t>(other.size, 6)) != "little")
      return file.error("the numbers are not little-endian",
                        "save the file on a little-endian machine");
  }
  if (entry->size > kMaxPickleBytes)
    return file.error(
        fmt::format("data.pkl is longer than {} bytes: {}", kMaxPickleBytes, entry->size),
        "save numbers as tensors, not as lists");
  const std::optional<std::string> text = file.read_text(entry->begin, entry->size);
  if (!text) return file.error("data.pkl cannot be read");
  const Result<TorchPickle> pickle = parse_torch_pickle(*text);
  if (!pickle) {
    Error error = pickle.error();
    for (Complaint& complaint : error.complaints) complaint.where = file.path();
    return error;
  }
  return TorchReader(file, pickle.value(), folder, entries).read();
}

}  // namespace cpscope
