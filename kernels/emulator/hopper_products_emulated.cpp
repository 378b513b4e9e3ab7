#include "kernels/emulator/hopper_products_emulated.h"

#include "kernels/device/device.h"
#include "kernels/device/fp8_values.h"

#include <algorithm>
#include <cstring>

namespace cpscope::kernels::emulator {
namespace {

constexpr int32_t kRows = 64;       // of a product
constexpr int32_t kDepth = 16;      // elements summed over by one product
constexpr int32_t kCodeDepth = 32;  // of E4M3
constexpr int32_t kMaxColumns = 256;

float to_float_of(uint16_t bits, bool is_bf16) {
  return is_bf16 ? from_bf16_bits(bits) : from_fp16_bits(bits);
}

/// One product of a warpgroup, with all its operands. Most of the emulator's time is spent here.
class ProductRun {
 public:
  ProductRun(const Warpgroup& group, size_t index, const Place& place)
      : place_(place), first_(group.groups[0].front()[index]) {
    for (size_t thread = 0; thread < Warpgroup::kThreads; ++thread) {
      const Product& product = group.groups[thread].front()[index];
      if (!product.is_same_instruction(first_))
        current_cta().fail("the threads of a warpgroup give different products", place_);
      a_registers_[thread] = product.a_registers;
      thread_sums_[thread] = product.sums;
    }
  }

  void execute() {
    first_.is_codes ? read_code_b() : read_b();
    first_.is_codes ? read_code_a() : read_a();
    read_sums();
    for (int32_t row = 0; row < kRows; row += kBlockRows) {
      for (int32_t column = 0; column < first_.columns; column += kBlockColumns)
        add_products(row, column);
    }
    write_sums();
    ++counts().products;
  }

 private:
  // Every product has a multiple of 8 columns. A block of a fixed size becomes vector instructions.
  static constexpr int32_t kBlockRows = 4, kBlockColumns = 8;
  static constexpr int32_t kChunk = 16;  // bytes that stay together, whatever the swizzle

  void add_products(int32_t first_row, int32_t first_column) {
    const int32_t depth = first_.is_codes ? kCodeDepth : kDepth;
    float sums[kBlockRows][kBlockColumns];
    for (int32_t r = 0; r < kBlockRows; ++r)
      std::copy_n(sums_[first_row + r] + first_column, kBlockColumns, sums[r]);
    for (int32_t k = 0; k < depth; ++k) {
      const float* const b = b_[k] + first_column;
      for (int32_t r = 0; r < kBlockRows; ++r) {
        for (int32_t i = 0; i < kBlockColumns; ++i) sums[r][i] += a_[first_row + r][k] * b[i];
      }
    }
    for (int32_t r = 0; r < kBlockRows; ++r)
      std::copy_n(sums[r], kBlockColumns, sums_[first_row + r] + first_column);
  }

  /// Index of the thread that holds columns `column` and the next one of a row, in sums and a.
  static int32_t holder(int32_t row, int32_t column) {
    return row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
  }
  static uint32_t field(uint64_t descriptor, int shift) {
    return static_cast<uint32_t>((descriptor >> shift) & 0x3fff) << 4;
  }
  const std::byte* chunk(uint32_t address) const {
    return current_cta().at(address, kChunk, kChunk, place_);
  }

  /// Eight neighbouring elements, `step` apart in `to`. address: real, of the first.
  void read_eight(uint32_t address, float* to, int32_t step) const {
    uint16_t bits[8];
    std::memcpy(bits, chunk(address), kChunk);
    for (int32_t i = 0; i < 8; ++i) to[i * step] = to_float_of(bits[i], first_.is_bf16);
  }

  /// Address of a row without the swizzle: groups of 8 rows, row_bytes from one to the next.
  static uint32_t row_address(uint64_t descriptor, int32_t row, int32_t row_bytes) {
    return field(descriptor, 0) + row / 8 * field(descriptor, 32) + row % 8 * row_bytes;
  }
  /// True if a matrix has no swizzle: rows of 8 elements, then the same rows' next 8.
  static bool is_plain(uint64_t descriptor) { return descriptor >> 62 == 0; }

  /// Elements 0 to 15 of row `row`, `step` apart in `to`.
  void read_row(uint64_t descriptor, int32_t row, float* to, int32_t step) const {
    for (int32_t k = 0; k < kDepth; k += 8) {
      const uint32_t address =
          is_plain(descriptor)
              ? row_address(descriptor, row, kChunk) + k / 8 * field(descriptor, 16)
              : swizzle(row_address(descriptor, row, kBoxRowBytes) + k * 2);
      read_eight(address, to + k * step, step);
    }
  }

  void read_b() {
    if (first_.b_is_transposed) return read_transposed_b();
    for (int32_t n = 0; n < first_.columns; ++n) read_row(first_.b, n, b_[0] + n, kMaxColumns);
  }

  void read_transposed_b() {
    if (is_plain(first_.b))
      current_cta().fail("elements of a head side by side need the swizzle here", place_);
    const uint32_t start = field(first_.b, 0), panel_bytes = field(first_.b, 16),
                   group_bytes = field(first_.b, 32);
    for (int32_t k = 0; k < kDepth; ++k) {
      for (int32_t n = 0; n < first_.columns; n += 8) {
        const uint32_t offset = n / kBoxLanes * panel_bytes + k / 8 * group_bytes +
                                k % 8 * kBoxRowBytes + n % kBoxLanes * 2;
        read_eight(swizzle(start + offset), b_[k] + n, 1);
      }
    }
  }

  void read_a() {
    for (int32_t row = 0; row < kRows; ++row) {
      if (first_.a_registers != nullptr) {
        for (int32_t k = 0; k < kDepth; k += 2) {
          const uint32_t pair = a_registers_[holder(row, k)][k / 8 * 2 + row % 16 / 8];
          a_[row][k] = to_float_of(static_cast<uint16_t>(pair), first_.is_bf16);
          a_[row][k + 1] = to_float_of(static_cast<uint16_t>(pair >> 16), first_.is_bf16);
        }
      } else {
        read_row(first_.a, row, a_[row], 1);
      }
    }
  }

  /// A row of 32 codes, `step` apart in `to`.
  void read_codes(Fp8Type type, uint64_t descriptor, int32_t row, float* to, int32_t step) const {
    const uint32_t address = row_address(descriptor, row, kBoxRowBytes);
    for (int32_t begin = 0; begin < kCodeDepth; begin += kChunk) {
      uint8_t codes[kChunk];
      std::memcpy(codes, chunk(swizzle(address + begin)), kChunk);
      for (int32_t i = 0; i < kChunk; ++i)
        to[(begin + i) * step] = device::from_fp8_code(type, codes[i]);
    }
  }

  void read_code_b() {
    if (is_plain(first_.b) || first_.b_is_transposed)
      current_cta().fail("codes need the swizzle, and summed numbers side by side", place_);
    for (int32_t n = 0; n < first_.columns; ++n)
      read_codes(first_.b_type, first_.b, n, b_[0] + n, kMaxColumns);
  }

  void read_code_a() {
    for (int32_t row = 0; row < kRows; ++row) {
      if (first_.a_registers == nullptr) {
        read_codes(first_.a_type, first_.a, row, a_[row], 1);
        continue;
      }
      for (int32_t k = 0; k < kCodeDepth; k += 4) {
        const int32_t thread = row / 16 * 32 + row % 8 * 4 + k % 16 / 4;
        const uint32_t four = a_registers_[thread][k / 16 * 2 + row % 16 / 8];
        for (int32_t i = 0; i < 4; ++i) {
          a_[row][k + i] =
              device::from_fp8_code(first_.a_type, static_cast<uint8_t>(four >> (i * 8)));
        }
      }
    }
  }

  /// Visits the two sums that a thread has of a row in 8 columns: visit(theirs, here).
  template <class Visit>
  void visit_sums(const Visit& visit) {
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t i = 0; i < 8; i += 2) {
        float* const of_thread = thread_sums_[holder(row, i)] + row % 16 / 8 * 2;
        for (int32_t column = 0; column < first_.columns; column += 8)
          visit(of_thread + column / 8 * 4, sums_[row] + column + i);
      }
    }
  }
  void read_sums() {
    if (first_.accumulates) {
      visit_sums([](const float* theirs, float* here) { std::copy_n(theirs, 2, here); });
    } else {
      for (auto& row : sums_) std::fill_n(row, first_.columns, 0.0f);
    }
  }
  void write_sums() {
    visit_sums([](float* theirs, const float* here) { std::copy_n(here, 2, theirs); });
  }

  Place place_;
  const Product& first_;
  const uint32_t* a_registers_[Warpgroup::kThreads];
  float* thread_sums_[Warpgroup::kThreads];
  float a_[kRows][kCodeDepth];
  float b_[kCodeDepth][kMaxColumns];
  float sums_[kRows][kMaxColumns];
};

}  // namespace

void execute_product(const Warpgroup& group, size_t index, const Place& place) {
  static ProductRun* const storage =
      static_cast<ProductRun*>(::operator new(sizeof(ProductRun)));  // too large for a fiber
  ProductRun* run = new (storage) ProductRun(group, index, place);
  run->execute();
}

}  // namespace cpscope::kernels::emulator
