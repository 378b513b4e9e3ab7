#include "sim/run/record/npy_file.h"

#include "sim/run/record/stored_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

constexpr int64_t kMaxNpyHeaderBytes = 1 << 16;  // numpy itself reads 10'000

/// The text after `key` in the header, a Python dictionary of three entries.
std::string_view npy_entry(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const size_t colon = header.find(':', at + key.size());
  if (colon == std::string_view::npos) return {};
  std::string_view rest = header.substr(colon + 1);
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  return rest;
}

/// An array as its header describes it.
struct NpyHeader {
  std::string type_name;  // as written, "<f4"
  std::vector<int64_t> shape;
  bool is_fortran = false;
  int64_t data_begin = 0;  // bytes from the begin of the array
};

/// numpy's types of whole elements, and the names that records have for them.
std::optional<StoredType> find_npy_type(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kTypes{{{"<f2", "F16"},
                                                                                  {"<f4", "F32"},
                                                                                  {"<f8", "F64"},
                                                                                  {"<V2", "BF16"},
                                                                                  {"|V2", "BF16"},
                                                                                  {"<i8", "I64"},
                                                                                  {"<u8", "U64"},
                                                                                  {"<i4", "I32"},
                                                                                  {"<u4", "U32"},
                                                                                  {"<i2", "I16"},
                                                                                  {"<u2", "U16"},
                                                                                  {"|i1", "I8"},
                                                                                  {"|u1", "U8"},
                                                                                  {"|b1", "BOOL"}}};
  for (const auto& [theirs, ours] : kTypes) {
    if (theirs == name) return find_stored_type(ours);
  }
  return std::nullopt;
}

/// Says what is wrong with the shape; nothing if it was read.
std::optional<std::string> read_npy_shape(std::string_view text, std::vector<int64_t>& shape) {
  const size_t end = text.find(')');
  if (!text.starts_with("(") || end == std::string_view::npos) return "the header has no shape";
  text = text.substr(1, end - 1);
  while (!text.empty()) {
    int64_t extent = 0;
    const auto [stop, failure] = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (failure != std::errc() || extent < 0 || shape.size() == kMaxDimensions)
      return "the header has a broken shape";
    shape.push_back(extent);
    text.remove_prefix(static_cast<size_t>(stop - text.data()));
    while (!text.empty() && (text.front() == ',' || text.front() == ' ')) text.remove_prefix(1);
  }
  return std::nullopt;
}

/// Says what is wrong with the header that `bytes` begin with; nothing if it was read.
std::optional<std::string> read_npy_header(std::string_view bytes, NpyHeader& header) {
  constexpr size_t kPrefix = 8;  // magic and version
  if (bytes.size() < kPrefix + 2 || !bytes.starts_with(kNpyMagic)) return "not an .npy file";
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(bytes[i])); };
  const size_t width = byte(6) == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = 0; i < width && kPrefix + i < bytes.size(); ++i)
    length |= byte(kPrefix + i) << (8 * i);
  if (bytes.size() < kPrefix + width || length > bytes.size() - kPrefix - width)
    return "the header is longer than the file or the limit";
  header.data_begin = static_cast<int64_t>(kPrefix + width + length);
  const std::string_view text = bytes.substr(kPrefix + width, length);

  const std::string_view type = npy_entry(text, "'descr'");
  const size_t quote = type.starts_with('\'') ? type.find('\'', 1) : std::string_view::npos;
  if (quote != std::string_view::npos) {
    header.type_name = type.substr(1, quote - 1);
  } else if (type.starts_with('[')) {
    header.type_name = "a structure of several types";
  } else {
    return "the header names no type";
  }
  const std::string_view order = npy_entry(text, "'fortran_order'");
  header.is_fortran = order.starts_with("True");
  if (!header.is_fortran && !order.starts_with("False")) return "the header names no order";
  return read_npy_shape(npy_entry(text, "'shape'"), header.shape);
}

/// Strides of an array whose first index runs fastest; the elements must be countable.
std::vector<int64_t> fortran_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides;
  int64_t stride = 1;
  for (const int64_t extent : shape) {
    strides.push_back(stride);
    stride *= std::max<int64_t>(1, extent);
  }
  return strides;
}

}  // namespace

std::optional<Error> take_npy(OpenedFile& file, int64_t begin, int64_t size,
                              const std::string& name, RunRecord& record) {
  const std::optional<std::string> front =
      file.read_text(begin, std::min(size, kMaxNpyHeaderBytes));
  if (!front) return file.error("the array cannot be read");
  const std::string label = name.empty() ? "" : fmt::format("\"{}\": ", printable_name(name));
  NpyHeader header;
  if (const auto problem = read_npy_header(*front, header))
    return file.error(label + *problem, "write it with numpy.save or numpy.savez");
  const std::optional<StoredType> type = find_npy_type(header.type_name);
  if (!type) {
    record.skipped.push_back({name, header.type_name});
    return std::nullopt;
  }
  StoredValues stored{
      .name = name, .type = *type, .shape = header.shape, .begin = begin + header.data_begin};
  const std::optional<int64_t> needed = count_spanned_bytes(stored);
  if (!needed || *needed != size - header.data_begin)
    return file.error(fmt::format("{}shape and data disagree: [{}] of {} needs {} bytes, {} there",
                                  label, fmt::join(header.shape, ", "), header.type_name,
                                  needed ? fmt::to_string(*needed) : "more than 2^63",
                                  size - header.data_begin));
  if (header.is_fortran && *needed > 0) stored.strides = fortran_strides(header.shape);
  if (!take_values(file, stored, record)) return file.error(label + "the array cannot be read");
  return std::nullopt;
}

}  // namespace cpscope
