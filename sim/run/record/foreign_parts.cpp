#include "sim/run/record/foreign_parts.h"

#include "sim/run/record/record_header.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

const TensorKind* find_kind(std::string_view name) {
  for (const TensorKind& kind : kTensorKinds) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

/// The kind of the tensor that the files call `name`.
const TensorKind* find_kind(std::string_view name, const std::vector<TensorAlias>& aliases) {
  for (const TensorAlias& alias : aliases) {
    if (alias.theirs == name) return find_kind(alias.name);
  }
  const bool is_elsewhere = std::any_of(aliases.begin(), aliases.end(),
                                        [&](const auto& alias) { return alias.name == name; });
  return is_elsewhere ? nullptr : find_kind(name);
}

/// "out.rank3": a tensor's name and the rank of this part; -1 for a whole tensor.
struct PartName {
  std::string base;
  int64_t rank = -1;
};

PartName split_name(const std::string& name) {
  constexpr std::string_view kMark = ".rank";
  const size_t at = name.rfind(kMark);
  if (at == std::string::npos) return {name};
  const char *begin = name.data() + at + kMark.size(), *end = name.data() + name.size();
  int64_t rank = -1;
  const auto [stop, failure] = std::from_chars(begin, end, rank);
  if (failure != std::errc() || stop != end || begin == end || rank < 0) return {name};
  return {name.substr(0, at), rank};
}

std::optional<Error> add_found(const NamedRecord& named, const Tensor& tensor, int64_t rank,
                               int32_t cp_size, Found& found) {
  const std::string name = printable_name(tensor.name);
  if (rank < 0) {
    if (found.whole != nullptr)
      return make_bad_input("tensor \"" + name + "\" appears twice", "", named.path);
    found.whole = &tensor;
    found.whole_path = named.path;
    return std::nullopt;
  }
  if (rank >= cp_size) {
    return make_bad_input(
        fmt::format("tensor \"{}\" is the part of a rank that the scenario does not have: "
                    "rank {}, {} ranks",
                    name, rank, cp_size),
        "is it the scenario of this record?", named.path);
  }
  found.parts.resize(static_cast<size_t>(cp_size), nullptr);
  if (found.parts[rank] != nullptr)
    return make_bad_input(fmt::format("the part of rank {} is there twice: \"{}\"", rank, name), "",
                          named.path);
  found.parts[rank] = &tensor;
  return std::nullopt;
}

/// Every name in the files, without the ranks of parts.
std::set<std::string> list_names(const std::vector<NamedRecord>& records) {
  std::set<std::string> names;
  for (const NamedRecord& named : records) {
    for (const Tensor& tensor : named.record.tensors) names.insert(base_name(tensor.name));
    for (const IntegerTensor& tensor : named.record.integers) names.insert(base_name(tensor.name));
    for (const SkippedTensor& tensor : named.record.skipped) names.insert(base_name(tensor.name));
  }
  return names;
}

std::string show_names(const std::set<std::string>& names) {
  constexpr size_t kShown = 40;
  std::string text;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (shown++ == kShown) return text + fmt::format(" and {} more", names.size() - kShown);
    text += (text.empty() ? "" : ", ") + printable_name(name);
  }
  return text.empty() ? "no tensor" : text;
}

std::optional<Error> check_aliases(const std::vector<NamedRecord>& records,
                                   const std::vector<TensorAlias>& aliases) {
  if (aliases.empty()) return std::nullopt;
  const std::set<std::string> names = list_names(records);
  std::set<std::string> ours, theirs;
  for (const TensorAlias& alias : aliases) {
    const std::string option =
        fmt::format("--map {}={}", printable_name(alias.name), printable_name(alias.theirs));
    if (find_kind(alias.name) == nullptr) {
      std::vector<std::string_view> known;
      for (const TensorKind& kind : kTensorKinds) known.push_back(kind.name);
      return make_bad_input(
          fmt::format("{}: no tensor of the contract is called {}", option,
                      printable_name(alias.name)),
          fmt::format("write --map NAME=THEIRS, NAME one of {}", fmt::join(known, ", ")));
    }
    if (!ours.insert(alias.name).second || !theirs.insert(alias.theirs).second)
      return make_bad_input(option + ": a name is mapped twice", "give each once");
    if (!names.contains(alias.theirs))
      return make_bad_input(
          fmt::format("{}: the record has no tensor {}", option, printable_name(alias.theirs)),
          "it has " + show_names(names), records.front().path);
  }
  return std::nullopt;
}

/// A single file with one rank's rows of a tensor.
std::optional<Error> refuse_lone_part(const NamedRecord& named, const std::string& name) {
  if (!named.parts.contains(name)) return std::nullopt;
  return make_bad_input(
      fmt::format("tensor \"{}\" is one rank's part of a DTensor", printable_name(name)),
      "give the files of all ranks, or save full_tensor()", named.path);
}

/// Collects all tensors in the files that have names of the contract; others are listed.
std::optional<Error> collect(const std::vector<NamedRecord>& records, int32_t cp_size,
                             const std::vector<TensorAlias>& aliases, FoundTensors& found,
                             std::set<std::string>& ignored) {
  for (size_t file = 0; file < records.size(); ++file) {
    const NamedRecord& named = records[file];
    for (const Tensor& tensor : named.record.tensors) {
      PartName name = split_name(tensor.name);
      const TensorKind* kind = find_kind(name.base, aliases);
      if (kind == nullptr) {
        ignored.insert(printable_name(tensor.name));
        continue;
      }
      if (records.size() == 1 && name.rank < 0 && cp_size > 1) {
        if (auto error = refuse_lone_part(named, tensor.name)) return error;
      }
      if (records.size() > 1 && name.rank < 0) name.rank = static_cast<int64_t>(file);
      if (auto error = add_found(named, tensor, name.rank, cp_size,
                                 found[static_cast<size_t>(kind - kTensorKinds.data())]))
        return error;
    }
    const auto refuse_type = [&](const std::string& name,
                                 std::string_view type) -> std::optional<Error> {
      ignored.insert(printable_name(name));
      if (find_kind(split_name(name).base, aliases) == nullptr) return std::nullopt;
      return make_bad_input(fmt::format("tensor \"{}\" has a type that is not graded: {}",
                                        printable_name(name), type),
                            "store it as F64, F32, F16 or BF16", named.path);
    };
    for (const IntegerTensor& tensor : named.record.integers) {
      if (auto error = refuse_type(tensor.name, "whole numbers")) return error;
    }
    for (const SkippedTensor& tensor : named.record.skipped) {
      if (auto error = refuse_type(tensor.name, printable_name(tensor.type_name))) return error;
    }
  }
  return std::nullopt;
}

std::optional<Error> check_found(const TensorKind& kind, const Found& found) {
  if (found.parts.empty()) return std::nullopt;
  if (found.whole != nullptr)
    return make_bad_input(
        fmt::format("tensor \"{}\" is given both whole and in parts by rank", kind.name),
        "leave one out", found.whole_path);
  for (size_t r = 0; r < found.parts.size(); ++r) {
    if (found.parts[r] == nullptr)
      return make_bad_input(fmt::format("the part of rank {} is missing: \"{}\" of {} ranks", r,
                                        kind.name, found.parts.size()),
                            fmt::format("write {}.rank{}, or its file", kind.name, r));
  }
  return std::nullopt;
}

/// The number in a file's name: the last digits of its stem, or nothing.
std::optional<int64_t> number_in_name(const std::string& path) {
  const std::string stem = std::filesystem::path(path).stem().string();
  const size_t last = stem.find_last_of("0123456789");
  if (last == std::string::npos) return std::nullopt;
  const size_t before = stem.find_last_not_of("0123456789", last);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  int64_t number = 0;
  const auto result = std::from_chars(stem.data() + begin, stem.data() + last + 1, number);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string base_name(const std::string& name) { return split_name(name).base; }

std::optional<Error> collect_tensors(const std::vector<NamedRecord>& records, int32_t cp_size,
                                     const std::vector<TensorAlias>& aliases, FoundTensors& found,
                                     std::set<std::string>& ignored) {
  if (auto error = check_aliases(records, aliases)) return error;
  if (auto error = collect(records, cp_size, aliases, found, ignored)) return error;
  for (size_t t = 0; t < kTensorKinds.size(); ++t) {
    if (auto error = check_found(kTensorKinds[t], found[t])) return error;
  }
  return std::nullopt;
}

std::optional<Error> sort_by_rank(std::vector<NamedRecord>& records) {
  if (records.size() < 2) return std::nullopt;
  std::vector<std::optional<int64_t>> ranks;
  for (const NamedRecord& named : records) {
    const auto found = named.record.metadata.find("rank");
    if (found == named.record.metadata.end()) continue;
    int64_t rank = -1;
    const std::string& text = found->second;
    const auto [stop, failure] = std::from_chars(text.data(), text.data() + text.size(), rank);
    if (failure != std::errc() || stop != text.data() + text.size())
      return make_bad_input("metadata \"rank\" is no number: " + printable_name(text), "",
                            named.path);
    ranks.emplace_back(rank);
  }
  if (ranks.size() == records.size()) {
    std::vector<NamedRecord> sorted(records.size());
    std::set<int64_t> seen;
    for (size_t i = 0; i < records.size(); ++i) {
      const int64_t rank = *ranks[i];
      if (rank < 0 || rank >= static_cast<int64_t>(records.size()) || !seen.insert(rank).second)
        return make_bad_input(
            fmt::format("metadata \"rank\" of {} files does not count 0 to {}: {}", records.size(),
                        records.size() - 1, rank),
            "", records[i].path);
      sorted[static_cast<size_t>(rank)] = std::move(records[i]);
    }
    records = std::move(sorted);
    return std::nullopt;
  }
  if (!ranks.empty())
    return make_bad_input("only some of the files have metadata \"rank\"",
                          "write it to all, or to none");
  // Without metadata the order of the list is used, unless the names contradict it.
  std::optional<int64_t> before;
  for (const NamedRecord& named : records) {
    const std::optional<int64_t> number = number_in_name(named.path);
    if (number && before && *number < *before) {
      return make_bad_input(
          fmt::format("the files are not listed by rank: {} after {}", *number, *before),
          "list them in rank order (a shell sorts 10 before 2), or write metadata \"rank\"",
          named.path);
    }
    before = number;
  }
  return std::nullopt;
}

}  // namespace cpscope
