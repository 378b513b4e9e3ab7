#include "sim/scenario/mask_matrix.h"

#include "sim/scenario/complaints.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

Error bad_matrix(const std::string& path, const std::string& what) {
  return make_bad_input(what, "save it with numpy.save, as a bool array [queries, keys]",
                        show_place(path, {}));
}

/// The little-endian number of the bytes.
size_t read_size(std::string_view bytes) {
  size_t size = 0;
  for (size_t i = bytes.size(); i > 0; --i)
    size = size << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return size;
}

/// What stands behind 'key': in the dictionary of the header, blanks skipped; empty if nothing.
std::string_view find_entry(std::string_view header, std::string_view key) {
  const std::string quoted = fmt::format("'{}':", key);
  const size_t at = header.find(quoted);
  if (at == std::string_view::npos) return {};
  const size_t value = header.find_first_not_of(' ', at + quoted.size());
  return value == std::string_view::npos ? std::string_view() : header.substr(value);
}

/// "(4, 6)" as numbers; nothing if it is no tuple of lengths.
std::optional<std::vector<int64_t>> read_shape(std::string_view text) {
  if (!text.starts_with('(')) return std::nullopt;
  std::vector<int64_t> shape;
  for (text.remove_prefix(1); !text.empty() && text.front() != ')';) {
    int64_t length = -1;
    const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), length);
    if (problem != std::errc() || length < 0) return std::nullopt;
    shape.push_back(length);
    text.remove_prefix(static_cast<size_t>(stop - text.data()));
    const size_t next = text.find_first_not_of(", ");
    if (next == std::string_view::npos) return std::nullopt;
    text.remove_prefix(next);
  }
  if (text.empty()) return std::nullopt;
  return shape;
}

/// The header of the file; sets the offset behind it. Nothing if the file is too short for it.
std::optional<std::string_view> find_header(std::string_view bytes, size_t& first) {
  const size_t sizes = kMagic.size() + 2;  // behind the version, of two bytes
  if (bytes.size() <= sizes || !bytes.starts_with(kMagic)) return std::nullopt;
  const size_t size_bytes = bytes[kMagic.size()] == 1 ? 2 : 4;
  if (bytes.size() < sizes + size_bytes) return std::nullopt;
  const size_t header_bytes = read_size(bytes.substr(sizes, size_bytes));
  bytes.remove_prefix(sizes + size_bytes);
  if (bytes.size() < header_bytes) return std::nullopt;
  first = sizes + size_bytes + header_bytes;
  return bytes.substr(0, header_bytes);
}

/// The first cell that is neither 0 nor 1.
std::optional<std::string> find_wrong_cell(const MaskMatrix& matrix) {
  const size_t at = matrix.bytes.find_first_not_of(std::string_view("\0\1", 2), matrix.first);
  if (at == std::string::npos) return std::nullopt;
  const auto cell = static_cast<int64_t>(at - matrix.first);
  const int64_t line = matrix.is_column_major ? matrix.rows : matrix.columns;
  return fmt::format("a cell of a mask is 0 or 1: query {}, key {} is {}",
                     matrix.is_column_major ? cell % line : cell / line,
                     matrix.is_column_major ? cell / line : cell % line,
                     static_cast<unsigned char>(matrix.bytes[at]));
}

}  // namespace

Result<MaskMatrix> parse_mask_matrix(std::string bytes, const std::string& path) {
  MaskMatrix matrix;
  matrix.bytes = std::move(bytes);
  const std::optional<std::string_view> header = find_header(matrix.bytes, matrix.first);
  if (!header) return bad_matrix(path, "the file is not a whole .npy file");

  const std::string_view type = find_entry(*header, "descr");
  const std::string_view name = type.substr(0, type.find_first_of(",}"));
  if (name != "'|b1'" && name != "'|u1'" && name != "'|i1'")
    return bad_matrix(path, "a mask must be an array of bool or uint8: " + show_text(name));
  const std::string_view order = find_entry(*header, "fortran_order");
  if (!order.starts_with("True") && !order.starts_with("False"))
    return bad_matrix(path, "the header has no fortran_order");
  matrix.is_column_major = order.starts_with("True");

  const std::optional<std::vector<int64_t>> shape = read_shape(find_entry(*header, "shape"));
  if (!shape) return bad_matrix(path, "the header has no shape");
  const size_t lines = shape->size() < 2 ? 0 : shape->size() - 2;
  for (size_t i = 0; i < lines; ++i) {
    if ((*shape)[i] != 1)
      return bad_matrix(path, fmt::format("a mask for each batch entry or head is not supported: "
                                          "dimension {} has length {}",
                                          i, (*shape)[i]));
  }
  if (shape->size() < 2)
    return bad_matrix(path, fmt::format("a mask must have 2 dimensions: {}", shape->size()));
  matrix.rows = (*shape)[lines];
  matrix.columns = (*shape)[lines + 1];
  if (matrix.rows > kMaxMatrixSide || matrix.columns > kMaxMatrixSide)
    return bad_matrix(path, fmt::format("the matrix is larger than the limit of {0} x {0}: {1} x "
                                        "{2}",
                                        kMaxMatrixSide, matrix.rows, matrix.columns));
  const auto wanted = static_cast<size_t>(matrix.rows * matrix.columns);
  const size_t held = matrix.bytes.size() - matrix.first;
  if (held != wanted)
    return bad_matrix(path, fmt::format("the file holds {} cells, its shape has {}", held, wanted));
  if (auto fault = find_wrong_cell(matrix)) return bad_matrix(path, *fault);
  return matrix;
}

}  // namespace cpscope
