#pragma once

#include "kernels/hopper/hopper_backward_kernel.h"

#include <cstdint>
#include <type_traits>

/// Backward kernels of sm_90a whose streamed tiles have two halves (K and V, or Q and dO), each
/// with its own stages and barriers. A half is loaded again as soon as no warp needs it, so one may
/// have fewer stages than the other where shared memory is short.
namespace cpscope::kernels::device {

/// One configuration. Operand: Bf16, Fp16, Fp8AsBf16 or MxAsBf16. kFactBytes: of row metadata, of
/// kernels with stationary keys. kExchangeBytes: buffer through which consumers exchange data.
/// MxAsBf16: operands that are summed along tokens are quantised in other blocks, and follow in the
/// same stage.
template <class Operand, int kQk_, int kV_, int kOwned_, int kWalked_, int kFirstStages_,
          int kSecondStages_, int kFactBytes_, int kExchangeBytes_, int kProducerRegisters_,
          int kConsumerRegisters_, LogitForm kForm_ = LogitForm::plain>
struct SplitBudget {
  static constexpr bool kHasOffsets = false;
  static constexpr bool kIsMx = std::is_same_v<Operand, MxAsBf16>;
  static constexpr bool kIsFp8 = kIsMx || std::is_same_v<Operand, Fp8AsBf16>;
  using T = std::conditional_t<kIsFp8, Bf16, Operand>;
  static constexpr int kQk = kQk_, kV = kV_, kOwned = kOwned_, kWalked = kWalked_;
  static constexpr int kFirstStages = kFirstStages_, kSecondStages = kSecondStages_;
  static constexpr int kFactBytes = kFactBytes_, kExchangeBytes = kExchangeBytes_;
  static constexpr LogitForm kForm = kForm_;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_;
  static constexpr int kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kOwnedFirstBytes = kOwned * kQk * 2;  // q, or k
  static constexpr int kOwnedBytes = kOwned * (kQk + kV) * 2;
  static constexpr int kFirstRowBytes = kWalked * kQk * 2;  // k, or q
  static constexpr int kSecondRowBytes = kWalked * kV * 2;  // v, or d_out
  static constexpr int kFirstBytes = (kIsMx ? 2 : 1) * kFirstRowBytes;
  static constexpr int kSecondBytes = (kIsMx && kFactBytes > 0 ? 2 : 1) * kSecondRowBytes;
  static constexpr int kWalkedBytes = kFirstStages * kFirstBytes + kSecondStages * kSecondBytes;
  static constexpr int kSharedBytes = 1024 + kOwnedBytes + kWalkedBytes +
                                      kFirstStages * kFactBytes + kExchangeBytes + 256 +
                                      TileScheduler::kBytes;

  static_assert(kOwned % kWarpgroupRows == 0 && kWalked % 16 == 0);
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * launch_registers(kThreads));
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

/// Addresses in shared memory, and the barriers of the stages.
template <class B>
struct SplitShared {
  uint32_t owned, first, second, row_facts, exchange;
  uint32_t owned_full, owned_free, first_full, first_free, second_full, second_free;
  uint32_t partners;  // two barriers of each warp of a consumer and its partner
  uint32_t scheduler;

  __device__ SplitShared() {
    owned = align_to_swizzle(shared_address(dynamic_shared()));
    first = owned + B::kOwnedBytes;
    second = first + B::kFirstStages * B::kFirstBytes;
    exchange = second + B::kSecondStages * B::kSecondBytes;
    row_facts = exchange + B::kExchangeBytes;
    owned_full = row_facts + B::kFirstStages * B::kFactBytes;
    owned_free = owned_full + 8;
    first_full = owned_free + 8;
    first_free = first_full + 8 * B::kFirstStages;
    second_full = first_free + 8 * B::kFirstStages;
    second_free = second_full + 8 * B::kSecondStages;
    partners = second_free + 8 * B::kSecondStages;
    scheduler = partners + 8 * 8;
  }

  /// Initialises the barriers. Arrivals that fill and free a stage of the first half; fact_warps:
  /// warps that load row metadata.
  __device__ void init(int first_arrivals, int first_free_arrivals, int fact_warps) const {
    constexpr int kConsumerWarps = 4 * B::kConsumers;
    if (threadIdx.x == 0) {
      mbarrier_init(owned_full, 1);
      mbarrier_init(owned_free, kConsumerWarps);
      for (int i = 0; i < B::kFirstStages; ++i) {
        mbarrier_init(first_full + 8 * i, first_arrivals);
        mbarrier_init(first_free + 8 * i, first_free_arrivals);
      }
      for (int i = 0; i < B::kSecondStages; ++i) {
        mbarrier_init(second_full + 8 * i, 1);
        mbarrier_init(second_free + 8 * i, kConsumerWarps);
      }
      for (int i = 0; i < 8; ++i) mbarrier_init(partners + 8 * i, 32);
      TileScheduler(scheduler).init(kConsumerWarps + fact_warps, 1);
      mbarrier_init_fence();
    }
    __syncthreads();
  }

  // Halves are counted from the start of the kernel.

  __device__ __forceinline__ uint32_t first_at(int number) const {
    return first + number % B::kFirstStages * B::kFirstBytes;
  }
  __device__ __forceinline__ uint32_t second_at(int number) const {
    return second + number % B::kSecondStages * B::kSecondBytes;
  }
  /// The operands that are summed along tokens.
  __device__ __forceinline__ uint32_t turned_first_at(int number) const {
    return first_at(number) + B::kFirstBytes - B::kFirstRowBytes;
  }
  __device__ __forceinline__ uint32_t turned_second_at(int number) const {
    return second_at(number) + B::kSecondBytes - B::kSecondRowBytes;
  }
  __device__ __forceinline__ uint32_t first_full_at(int number) const {
    return first_full + 8 * (number % B::kFirstStages);
  }
  __device__ __forceinline__ uint32_t first_free_at(int number) const {
    return first_free + 8 * (number % B::kFirstStages);
  }
  __device__ __forceinline__ uint32_t second_full_at(int number) const {
    return second_full + 8 * (number % B::kSecondStages);
  }
  __device__ __forceinline__ uint32_t second_free_at(int number) const {
    return second_free + 8 * (number % B::kSecondStages);
  }
  /// Parity of the phase that ends when the half has arrived; before it the stage is freed by the
  /// phase of opposite parity.
  __device__ __forceinline__ static uint32_t first_parity(int number) {
    return static_cast<uint32_t>(number / B::kFirstStages) & 1u;
  }
  __device__ __forceinline__ static uint32_t second_parity(int number) {
    return static_cast<uint32_t>(number / B::kSecondStages) & 1u;
  }
};

/// Parameters of mxfp8 besides. Those of BackwardParams hold rows quantised along themselves.
struct MxParams : BackwardParams {
  TensorMap turned_first, turned_second;  // of streamed rows: k, or q and d_out
  TokenBlocks blocks;                     // of streamed rows
};
template <class B>
using SplitParams = std::conditional_t<B::kIsMx, MxParams, BackwardParams>;

/// The power of two by which a thread's two rows divide the numbers of a block, from the largest
/// |number| of each that the thread holds; the other lanes of its quad hold the others.
struct BlockScales {
  float descale[2], scale[2];

  __device__ __forceinline__ explicit BlockScales(const float (&amax)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float of_pair = max_or_nan(amax[r], shuffle_xor(amax[r], 1));
      descale[r] = block_descale_of(max_or_nan(of_pair, shuffle_xor(of_pair, 2)));
      scale[r] = 1.0f / descale[r];  // exact
    }
  }

  /// The numbers i and i + 1 of a product, as they are read back after they were stored in 8 bits.
  __device__ __forceinline__ FloatPair quantise(int i, float first, float second) const {
    const int r = i / 2 % 2;
    const uint32_t halves = pack_e4m3_halves(first * scale[r], second * scale[r]);
    return {to_float(Fp16{static_cast<uint16_t>(halves)}) * descale[r],
            to_float(Fp16{static_cast<uint16_t>(halves >> 16)}) * descale[r]};
  }
};

/// Casts a thread's numbers of a product's tile in blocks of columns, which are the streamed rows
/// [begin, end). A block that is cut by the tile ends there.
template <int kColumns>
__device__ __forceinline__ void cast_in_blocks(float (&values)[kColumns / 2],
                                               const TokenBlocks& blocks, int32_t begin,
                                               int32_t end) {
  const int32_t columns = end - begin < kColumns ? end - begin : kColumns;
  const auto end_of = [&](int32_t block) { return blocks.spans[block].end - begin; };
  // Mostly blocks are whole and lie where the tile's own groups of 32 columns do.
  bool is_aligned = columns == kColumns;
#pragma unroll
  for (int32_t first = 0; first < kColumns && is_aligned; first += kMxBlock) {
    const int32_t block = blocks.numbers[begin + first];
    is_aligned = block >= 0 && end_of(block) >= first + kMxBlock;
  }
  if (is_aligned) {
    constexpr int kOfBlock = kMxBlock / 2;  // numbers of a thread
#pragma unroll
    for (int first = 0; first < kColumns / 2; first += kOfBlock) {
      float amax[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = first; i < first + kOfBlock; ++i)
        amax[i / 2 % 2] = max_or_nan(amax[i / 2 % 2], fabsf(values[i]));
      const BlockScales scales(amax);
#pragma unroll
      for (int i = first; i < first + kOfBlock; i += 2) {
        const FloatPair pair = scales.quantise(i, values[i], values[i + 1]);
        values[i] = pair.x;
        values[i + 1] = pair.y;
      }
    }
    return;
  }
  const int32_t own = 2 * static_cast<int32_t>(threadIdx.x % 4);
#pragma unroll 1
  for (int32_t column = 0; column < columns;) {
    const int32_t block = blocks.numbers[begin + column];
    if (block < 0) {
      ++column;
      continue;
    }
    const int32_t last = end_of(block) < columns ? end_of(block) : columns;
    const auto is_in = [&](int i) {
      const int32_t at = own + i / 4 * 8 + i % 2;
      return at >= column && at < last;
    };
    float amax[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      if (is_in(i)) amax[i / 2 % 2] = max_or_nan(amax[i / 2 % 2], fabsf(values[i]));
    }
    const BlockScales scales(amax);
#pragma unroll
    for (int i = 0; i < kColumns / 2; i += 2) {
      const FloatPair pair = scales.quantise(i, values[i], values[i + 1]);
      if (is_in(i)) values[i] = pair.x;
      if (is_in(i + 1)) values[i + 1] = pair.y;
    }
    column = last;
  }
}

}  // namespace cpscope::kernels::device
