#include "kernels/emulator/tensor_core_emulated.h"

#include <cstring>

namespace cpscope::kernels::emulator {
namespace {

constexpr int kLanes = 32;

float half_of(uint32_t pair, int which, bool is_bf16) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * which));
  return is_bf16 ? from_bf16_bits(bits) : from_fp16_bits(bits);
}

}  // namespace

void load_matrix_of_warp(LoadMatrixLane* const* lanes, bool is_transposed, const Place& place) {
  constexpr int kMatrices = 4, kRows = 8, kRowBytes = 16;
  for (int m = 0; m < kMatrices; ++m) {
    uint16_t matrix[kRows][kRows];
    for (int row = 0; row < kRows; ++row) {
      const uint32_t address = lanes[m * kRows + row]->address;
      std::memcpy(matrix[row], current_cta().at(address, kRowBytes, kRowBytes, place), kRowBytes);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4, column = 2 * (lane % 4);
      const uint16_t low = is_transposed ? matrix[column][row] : matrix[row][column];
      const uint16_t high = is_transposed ? matrix[column + 1][row] : matrix[row][column + 1];
      (*lanes[lane]->registers)[m] = low | uint32_t{high} << 16;
    }
  }
}

void multiply_add_of_warp(MultiplyAddLane* const* lanes, bool is_bf16) {
  constexpr int kM = 16, kN = 8, kK = 16;
  float a[kM][kK], b[kK][kN], d[kM][kN];
  for (int lane = 0; lane < kLanes; ++lane) {
    const MultiplyAddLane& own = *lanes[lane];
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r)
        a[group + 8 * (r % 2)][pair + 8 * (r / 2) + half] = half_of((*own.a)[r], half, is_bf16);
      for (int r = 0; r < 2; ++r) b[pair + 8 * r + half][group] = half_of(own.b[r], half, is_bf16);
      for (int r = 0; r < 2; ++r) d[group + 8 * r][pair + half] = (*own.d)[2 * r + half];
    }
  }
  for (int row = 0; row < kM; ++row) {
    for (int k = 0; k < kK; ++k) {
      for (int column = 0; column < kN; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int r = 0; r < 4; ++r) (*lanes[lane]->d)[r] = d[group + 8 * (r / 2)][pair + r % 2];
  }
  ++counts().products;
}

}  // namespace cpscope::kernels::emulator
