#include "sim/run/record/foreign_file.h"

#include "sim/run/record/npy_file.h"
#include "sim/run/record/opened_file.h"
#include "sim/run/record/record_header.h"
#include "sim/run/record/torch_file.h"
#include "sim/run/record/zip_file.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace cpscope {
namespace {

/// A number without dimensions is how numpy stores one: "rank" is metadata, as in other formats.
void take_rank(RunRecord& record) {
  for (const IntegerTensor& tensor : record.integers) {
    if (tensor.name == "rank" && tensor.shape.empty())
      record.metadata["rank"] = std::to_string(tensor.values.front());
  }
}

Result<std::vector<NamedRecord>> read_archive(OpenedFile& file) {
  const Result<std::vector<ZipEntry>> entries = list_zip(file);
  if (!entries) return entries.error();
  if (is_torch_archive(entries.value())) return read_torch_file(file, entries.value());
  NamedRecord named{file.path(), {}};
  constexpr std::string_view kEnding = ".npy";
  for (const ZipEntry& entry : entries.value()) {
    if (!std::string_view(entry.name).ends_with(kEnding))
      return file.error(
          "the zip archive holds something else than arrays: " + printable_name(entry.name),
          "write it with numpy.savez or torch.save");
    const std::string name = entry.name.substr(0, entry.name.size() - kEnding.size());
    if (auto error = take_npy(file, entry.begin, entry.size, name, named.record)) return *error;
  }
  take_rank(named.record);
  return std::vector{std::move(named)};
}

/// A .safetensors file begins with the length of its header, which can be any bytes.
bool may_be_safetensors(std::string_view front) { return front.size() > 8 && front[8] == '{'; }

/// Names the form of a file that no reader is for; nothing where it may be .safetensors.
std::optional<Error> refuse_other_forms(const OpenedFile& file, std::string_view front) {
  constexpr std::string_view kLegacyTorch("\x80\x02\x8a\x0al\xfc\x9c", 7);
  constexpr std::string_view kHdf5 = "\x89HDF";
  if (front.starts_with(kLegacyTorch))
    return file.error("the file has the form of torch before 1.6, which is not read",
                      "load it and save it again: torch.save(torch.load(path), path)");
  if (front.size() > 1 && front[0] == '\x80' && front[1] >= 2 && front[1] <= 5)
    return file.error("the file is a pickle, which may hold any code",
                      "write it with torch.save, numpy.savez or safetensors");
  if (front.starts_with(kHdf5))
    return file.error("HDF5 is not read", "write it with torch.save, numpy.savez or safetensors");
  return std::nullopt;
}

std::string stem_of(const std::string& path) { return std::filesystem::path(path).stem().string(); }

/// Calls `change` with the name of every tensor.
template <class Change>
void for_each_name(RunRecord& record, Change change) {
  for (Tensor& tensor : record.tensors) change(tensor.name);
  for (IntegerTensor& tensor : record.integers) change(tensor.name);
  for (SkippedTensor& tensor : record.skipped) change(tensor.name);
}

/// Calls arrays without a name as their file; true if the record holds nothing else.
bool name_by_file(NamedRecord& named, const std::string& stem) {
  bool are_all_bare = true;
  for_each_name(named.record, [&](std::string& name) {
    // A list of tensors is the parts of one: ".rank0", ".rank1", ...
    const bool is_bare = name.empty() || name.starts_with(".rank");
    are_all_bare = are_all_bare && is_bare;
    if (is_bare) name = stem + name;
  });
  if (named.parts.erase("") > 0) named.parts.insert(stem);
  return are_all_bare;
}

template <class Kind>
void move_all(std::vector<Kind>& from, std::vector<Kind>& to) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

/// Makes one record of files with one tensor each.
void merge_records(std::vector<NamedRecord>& records) {
  NamedRecord& all = records.front();
  for (size_t i = 1; i < records.size(); ++i) {
    move_all(records[i].record.tensors, all.record.tensors);
    move_all(records[i].record.integers, all.record.integers);
    move_all(records[i].record.skipped, all.record.skipped);
    all.parts.merge(records[i].parts);
  }
  records.resize(1);
}

}  // namespace

Result<std::vector<NamedRecord>> read_foreign_file(const std::string& path) {
  Result<OpenedFile> file = OpenedFile::open(path);
  if (!file) return file.error();
  constexpr int64_t kFrontBytes = 16;
  const std::string front =
      file.value().read_text(0, std::min(kFrontBytes, file.value().size())).value_or("");
  const bool is_other = !may_be_safetensors(front);
  if (is_other && front.starts_with(kZipMagic)) return read_archive(file.value());
  NamedRecord named{path, {}};
  if (front.starts_with(kNpyMagic)) {
    if (auto error = take_npy(file.value(), 0, file.value().size(), "", named.record))
      return *error;
    return std::vector{std::move(named)};
  }
  if (is_other) {
    if (auto error = refuse_other_forms(file.value(), front)) return *error;
  }
  Result<RunRecord> record = read_record(path, {.takes_other_types = true});
  if (!record) return record.error();
  named.record = std::move(record).value();
  return std::vector{std::move(named)};
}

Result<std::vector<NamedRecord>> read_foreign_files(const std::vector<std::string>& paths) {
  std::vector<NamedRecord> records;
  std::set<std::string> stems;
  bool are_all_bare = true;
  for (const std::string& path : paths) {
    Result<std::vector<NamedRecord>> read = read_foreign_file(path);
    if (!read) return read.error();
    const std::string stem = stem_of(path);
    for (NamedRecord& named : read.value()) {
      are_all_bare = name_by_file(named, stem) && stems.insert(stem).second && are_all_bare;
      records.push_back(std::move(named));
    }
  }
  if (are_all_bare && records.size() > 1) merge_records(records);
  if (auto error = sort_by_rank(records)) return *error;
  return records;
}

}  // namespace cpscope
