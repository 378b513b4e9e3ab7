#include "sim/run/record/stored_values.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

namespace cpscope {
namespace {

static_assert(std::endian::native == std::endian::little, "all formats are little-endian");

constexpr int64_t kDecodedAtOnce = 65'536;  // elements

template <class Stored, class Decode>
void decode_values(const char* bytes, int64_t count, double* values, Decode decode) {
  for (int64_t i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, bytes + i * static_cast<int64_t>(sizeof stored), sizeof stored);
    values[i] = static_cast<double>(decode(stored));
  }
}

void decode_chunk(const StoredType& type, const char* bytes, int64_t count, double* values) {
  switch (*type.dtype) {
    case Dtype::bf16:
      return decode_values<uint16_t>(bytes, count, values, from_bf16_bits);
    case Dtype::fp16:
      return decode_values<uint16_t>(bytes, count, values, from_fp16_bits);
    case Dtype::fp32:
      return decode_values<float>(bytes, count, values, [](float value) { return value; });
    case Dtype::fp64:
      return decode_values<double>(bytes, count, values, [](double value) { return value; });
  }
}

/// Whole numbers of any width; unsigned ones above the largest int64_t become negative.
void decode_chunk(const StoredType& type, const char* bytes, int64_t count, int64_t* values) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes + i * type.bytes, static_cast<size_t>(type.bytes));
    const int unused = 64 - 8 * static_cast<int>(type.bytes);
    const auto shifted = static_cast<int64_t>(bits << unused);
    values[i] = type.is_signed ? shifted >> unused : static_cast<int64_t>(bits);
  }
}

/// True if the elements lie one after another in row-major order.
bool is_row_major(const StoredValues& stored) {
  if (stored.strides.empty()) return true;
  int64_t dense = 1;
  for (size_t d = stored.shape.size(); d-- > 0;) {
    if (stored.shape[d] != 1 && stored.strides[d] != dense) return false;
    dense *= stored.shape[d];
  }
  return true;
}

/// Hands out the bytes of the elements in row-major order, at most kDecodedAtOnce elements at once.
class ElementBytes {
 public:
  ElementBytes(OpenedFile& file, const StoredValues& stored)
      : file_(file), stored_(stored), is_row_major_(is_row_major(stored)) {}

  /// Reads what later calls need; false when the file ends early.
  bool prepare(int64_t count) {
    chunk_.resize(static_cast<size_t>(std::min(count, kDecodedAtOnce) * stored_.type.bytes));
    if (is_row_major_) return true;
    place_.assign(stored_.shape.size(), 0);
    std::optional<std::string> read = file_.read_text(stored_.begin, *count_spanned_bytes(stored_));
    if (!read) return false;
    spanned_ = *std::move(read);
    return true;
  }

  /// The next `count` elements, `done` have been read before; nullptr when the file ends early.
  const char* next(int64_t done, int64_t count) {
    const int64_t width = stored_.type.bytes;
    if (is_row_major_) {
      const std::span<char> bytes(chunk_.data(), static_cast<size_t>(count * width));
      return file_.read(stored_.begin + done * width, bytes) ? chunk_.data() : nullptr;
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t element = 0;
      for (size_t d = 0; d < place_.size(); ++d) element += place_[d] * stored_.strides[d];
      std::memcpy(chunk_.data() + i * width, spanned_.data() + element * width,
                  static_cast<size_t>(width));
      step();
    }
    return chunk_.data();
  }

 private:
  /// Moves to the next place in row-major order.
  void step() {
    for (size_t d = place_.size(); d-- > 0;) {
      if (++place_[d] < stored_.shape[d]) return;
      place_[d] = 0;
    }
  }

  OpenedFile& file_;
  const StoredValues& stored_;
  bool is_row_major_;
  std::vector<char> chunk_;     // elements that are handed out
  std::string spanned_;         // all bytes from the first to the last element; not row-major only
  std::vector<int64_t> place_;  // [dimension] of the next element
};

template <class Value>
std::optional<std::vector<Value>> read_values(OpenedFile& file, const StoredValues& stored) {
  const int64_t size = *count_elements(stored.shape);
  std::vector<Value> values(static_cast<size_t>(size));
  if (size == 0) return values;
  ElementBytes elements(file, stored);
  if (!elements.prepare(size)) return std::nullopt;
  for (int64_t done = 0; done < size; done += kDecodedAtOnce) {
    const int64_t count = std::min(kDecodedAtOnce, size - done);
    const char* bytes = elements.next(done, count);
    if (bytes == nullptr) return std::nullopt;
    decode_chunk(stored.type, bytes, count, values.data() + done);
  }
  return values;
}

}  // namespace

std::optional<int64_t> count_elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

std::optional<int64_t> count_spanned_bytes(const StoredValues& stored) {
  const std::optional<int64_t> elements = count_elements(stored.shape);
  if (!elements || *elements == 0) return elements;
  int64_t spanned = *elements;
  if (!stored.strides.empty()) {
    spanned = 1;
    for (size_t d = 0; d < stored.shape.size(); ++d) {
      int64_t last = 0;
      if (__builtin_mul_overflow(stored.shape[d] - 1, stored.strides[d], &last) ||
          __builtin_add_overflow(spanned, last, &spanned))
        return std::nullopt;
    }
  }
  if (__builtin_mul_overflow(spanned, stored.type.bytes, &spanned)) return std::nullopt;
  return spanned;
}

bool take_values(OpenedFile& file, const StoredValues& stored, RunRecord& record) {
  if (stored.type.dtype) {
    auto values = read_values<double>(file, stored);
    if (!values) return false;
    record.tensors.push_back({stored.name, stored.shape, *stored.type.dtype, *std::move(values)});
  } else if (stored.type.is_integer) {
    auto values = read_values<int64_t>(file, stored);
    if (!values) return false;
    record.integers.push_back({stored.name, stored.shape, *std::move(values)});
  } else {
    record.skipped.push_back({stored.name, std::string(stored.type.name)});
  }
  return true;
}

}  // namespace cpscope
