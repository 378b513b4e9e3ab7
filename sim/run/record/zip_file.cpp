#include "sim/run/record/zip_file.h"

#include "sim/run/record/record_header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kEndBytes = 22;  // end of central directory record, without its comment
constexpr int64_t kMaxCommentBytes = 65'535;
constexpr int64_t kWideEndBytes = 56;      // the same of the 64-bit extension
constexpr int64_t kWideLocatorBytes = 20;  // points to it, in front of the record above
constexpr int64_t kDirectoryBytes = 46;    // an entry of the directory, without its name
constexpr int64_t kLocalBytes = 30;        // in front of the content, without the name
constexpr uint64_t kSaturated32 = 0xffff'ffff;

/// The little-endian number of `width` bytes at `at`; the bytes must be there.
uint64_t number_at(std::string_view bytes, size_t at, size_t width) {
  uint64_t number = 0;
  for (size_t i = 0; i < width; ++i)
    number |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  return number;
}

bool has_signature(std::string_view bytes, std::string_view signature) {
  return bytes.starts_with(signature);
}

/// Where the central directory lies.
struct ZipDirectory {
  uint64_t begin = 0;
  uint64_t size = 0;
};

Error broken_zip(const OpenedFile& file, const std::string& what) {
  return file.error("the zip archive is broken: " + what, "was the file written completely?");
}

/// Reads the end record, or that of the 64-bit extension if there is one.
Result<ZipDirectory> find_directory(OpenedFile& file) {
  const int64_t tail_size = std::min(file.size(), kEndBytes + kMaxCommentBytes);
  const std::optional<std::string> tail = file.read_text(file.size() - tail_size, tail_size);
  if (!tail) return broken_zip(file, "it cannot be read");
  size_t at = tail->rfind("PK\x05\x06");
  // The comment behind the record may hold the same bytes, but not its own length.
  while (at != std::string::npos && (at + kEndBytes > tail->size() ||
                                     at + kEndBytes + number_at(*tail, at + 20, 2) != tail->size()))
    at = at == 0 ? std::string::npos : tail->rfind("PK\x05\x06", at - 1);
  if (at == std::string::npos) return broken_zip(file, "it has no directory at its end");
  const ZipDirectory narrow{number_at(*tail, at + 16, 4), number_at(*tail, at + 12, 4)};

  const int64_t end_begin = file.size() - tail_size + static_cast<int64_t>(at);
  const std::optional<std::string> locator =
      file.read_text(end_begin - kWideLocatorBytes, kWideLocatorBytes);
  if (!locator || !has_signature(*locator, "PK\x06\x07")) return narrow;
  const uint64_t wide_begin = number_at(*locator, 8, 8);
  if (wide_begin > static_cast<uint64_t>(file.size()))
    return broken_zip(file, "its 64-bit directory lies outside");
  const std::optional<std::string> wide =
      file.read_text(static_cast<int64_t>(wide_begin), kWideEndBytes);
  if (!wide || !has_signature(*wide, "PK\x06\x06"))
    return broken_zip(file, "its 64-bit directory is not where it should be");
  return ZipDirectory{number_at(*wide, 48, 8), number_at(*wide, 40, 8)};
}

/// An entry as the directory has it.
struct ListedEntry {
  std::string name;
  uint64_t flags = 0, method = 0;
  uint64_t packed = 0, size = 0;  // bytes in the archive, and of the content
  uint64_t local_begin = 0;
};

/// Replaces saturated numbers by those of the 64-bit extra field.
void widen_entry(std::string_view extra, ListedEntry& entry) {
  while (extra.size() >= 4) {
    const uint64_t id = number_at(extra, 0, 2), size = number_at(extra, 2, 2);
    if (size > extra.size() - 4) return;
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    for (uint64_t* number : {&entry.size, &entry.packed, &entry.local_begin}) {
      if (*number != kSaturated32 || field.size() < 8) continue;
      *number = number_at(field, 0, 8);
      field.remove_prefix(8);
    }
    return;
  }
}

/// Takes one entry from the front of the directory; nothing when it is broken.
std::optional<ListedEntry> take_entry(std::string_view& directory) {
  if (directory.size() < kDirectoryBytes || !has_signature(directory, "PK\x01\x02"))
    return std::nullopt;
  const size_t name = number_at(directory, 28, 2), extra = number_at(directory, 30, 2),
               comment = number_at(directory, 32, 2);
  if (name + extra + comment > directory.size() - kDirectoryBytes) return std::nullopt;
  ListedEntry entry{.name = std::string(directory.substr(kDirectoryBytes, name)),
                    .flags = number_at(directory, 8, 2),
                    .method = number_at(directory, 10, 2),
                    .packed = number_at(directory, 20, 4),
                    .size = number_at(directory, 24, 4),
                    .local_begin = number_at(directory, 42, 4)};
  widen_entry(directory.substr(kDirectoryBytes + name, extra), entry);
  directory.remove_prefix(kDirectoryBytes + name + extra + comment);
  return entry;
}

/// Where the content of an entry lies: behind its own header, whose sizes are not used.
Result<ZipEntry> locate_entry(OpenedFile& file, ListedEntry listed) {
  const std::string name = printable_name(listed.name);
  if ((listed.flags & 1) != 0) return file.error(fmt::format("\"{}\" is encrypted", name));
  if (listed.method != 0)
    return file.error(fmt::format("\"{}\" is compressed, by zip method {}", name, listed.method),
                      "write it uncompressed: numpy.savez, not numpy.savez_compressed");
  const auto bytes = static_cast<uint64_t>(file.size());
  const std::optional<std::string> local =
      listed.local_begin > bytes
          ? std::nullopt
          : file.read_text(static_cast<int64_t>(listed.local_begin), kLocalBytes);
  if (!local || !has_signature(*local, kZipMagic))
    return broken_zip(file, fmt::format("\"{}\" is not where its directory says", name));
  const uint64_t begin =
      listed.local_begin + kLocalBytes + number_at(*local, 26, 2) + number_at(*local, 28, 2);
  if (begin > bytes || listed.size > bytes - begin || listed.packed != listed.size)
    return broken_zip(file, fmt::format("\"{}\" lies outside: {} bytes from byte {}, {} in all",
                                        name, listed.size, begin, bytes));
  return ZipEntry{std::move(listed.name), static_cast<int64_t>(begin),
                  static_cast<int64_t>(listed.size)};
}

}  // namespace

Result<std::vector<ZipEntry>> list_zip(OpenedFile& file) {
  const Result<ZipDirectory> directory = find_directory(file);
  if (!directory) return directory.error();
  const auto bytes = static_cast<uint64_t>(file.size());
  const auto [begin, size] = directory.value();
  if (begin > bytes || size > bytes - begin) return broken_zip(file, "its directory lies outside");
  const std::optional<std::string> text =
      file.read_text(static_cast<int64_t>(begin), static_cast<int64_t>(size));
  if (!text) return broken_zip(file, "its directory cannot be read");
  std::string_view rest = *text;
  std::vector<ZipEntry> entries;
  std::set<std::string> names;
  int64_t held = 0;
  while (!rest.empty()) {
    std::optional<ListedEntry> listed = take_entry(rest);
    if (!listed) return broken_zip(file, fmt::format("entry {} of its directory", entries.size()));
    Result<ZipEntry> entry = locate_entry(file, *std::move(listed));
    if (!entry) return entry.error();
    if (!names.insert(entry.value().name).second)
      return broken_zip(file,
                        fmt::format("\"{}\" appears twice", printable_name(entry.value().name)));
    held += entry.value().size;
    if (held > file.size()) return broken_zip(file, "its entries overlap");
    entries.push_back(std::move(entry).value());
  }
  return entries;
}

}  // namespace cpscope
