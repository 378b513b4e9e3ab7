#pragma once

#include "kernels/attention/decode_rows.h"
#include "kernels/hopper/hopper_pipeline.h"
#include "kernels/hopper/hopper_products.h"

#include <cstdint>

/// Tiles, shared memory and parameters of the Hopper forward of latent attention.
namespace cpscope::kernels::device {

/// Tiles and shared memory: panels of 64 elements a row, as matrix_descriptor reads them.
template <class Element, bool kHasCap>
struct LatentTiles {
  using T = Element;
  static constexpr bool kIsCapped = kHasCap;
  static constexpr int kQk = 576;
  static constexpr int kV = 512;
  static constexpr int kRows = 64;
  static constexpr int kWalkedRows = 64;
  static constexpr int kPanelBytes = 64 * kPanelRowBytes;
  static constexpr int kValuePanels = kV / kBoxLanes;  // of a row of K, whose last one is behind V
  static constexpr int kValueBytes = kValuePanels * kPanelBytes;  // of 64 rows

  // Warpgroups: the value warpgroups, then the softmax warpgroup.
  static constexpr int kValueWarpgroups = 2;
  static constexpr int kThreads = kValueWarpgroups * kWarpgroupThreads;  // of DecodeRows::store
  static constexpr int kCtaThreads = kThreads + kWarpgroupThreads;
  static constexpr int kValueRegisters = 160;
  static constexpr int kSoftmaxRegisters = 184;
  static_assert(kValueWarpgroups * kValueRegisters + kSoftmaxRegisters <=
                (kValueWarpgroups + 1) * launch_registers(kCtaThreads));
  static constexpr int kSoftmaxBarrier = 1;  // of the softmax warpgroup

  // Of Q's elements the first are in registers, so many that ptxas finds room for the rest; the
  // others are in shared memory without a swizzle, 8 elements of all rows after another.
  static constexpr int kKeptSteps = 31;  // of 16 elements
  static constexpr int kKeptElements = 16 * kKeptSteps;
  static constexpr int kEightBytes = kRows * 16;

  // Byte offsets into the shared memory: a header, and from a multiple of 1024 on what is
  // multiplied. V's elements have three buffers; those behind them have one: the products of logits
  // begin with them.
  static constexpr int kBuffers = 3;
  static constexpr int kWeightBuffers = 2;
  static constexpr int kFetched = 0;  // the next work item
  static constexpr int kTops = 16;    // fp32 [buffer of weights][pair of rows of a lane][2]
  static constexpr int kWalked = kTops + kWeightBuffers * kRows * 4;  // IntPair [buffer][2]
  static constexpr int kLoaded = kWalked + kBuffers * 16;             // barriers [buffer]
  static constexpr int kAdded = kLoaded + kBuffers * 8;               // [buffer]
  static constexpr int kTold = kAdded + kBuffers * 8;                 // [buffer of weights]
  static constexpr int kGo = kTold + kWeightBuffers * 8;              // [buffer of weights]
  static constexpr int kLastLoaded = kGo + kWeightBuffers * 8;
  static constexpr int kBegun = kLastLoaded + 8;
  static constexpr int kAll = kBegun + 8;
  static constexpr int kEnded = kAll + 8;
  static constexpr int kHeaderBytes = kEnded + 8;
  static constexpr int kValues = 0;
  static constexpr int kLastPanel = kValues + kBuffers * kValueBytes;
  static constexpr int kWeights = kLastPanel + kPanelBytes;
  static constexpr int kQueries = kWeights + kWeightBuffers * kPanelBytes;
  static constexpr int kStreamEnd = kQueries + (kQk - kKeptElements) / 8 * kEightBytes;

  // After the stream, as DecodeTiles has it.
  static constexpr int kSumLanes = kSumLanesOf<kV>;
  static constexpr int kSums = 0;
  static constexpr int kEnds = kSums + kRows * kSumLanes * 4;
  static_assert(kEnds + kRows * int{sizeof(RowEnd)} <= kStreamEnd);
  // The multiple of 1024 is within so many bytes, because without static variables shared memory
  // begins at one. (The emulator's begins 128 bytes behind one.)
  static constexpr int kSharedBytes = 1024 + kStreamEnd;
  static_assert(kWalked % 16 == 0 && kLoaded % 8 == 0 && kHeaderBytes <= 1024 - 128);
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

/// Parameters of the kernel.
struct LatentParams {
  DecodeParams decode;
  TensorMap keys;                 // boxes of one panel
  TensorMap values;               // boxes of all of V's panels
  bool has_whole_panels = false;  // else the last one would go on with the next row
};

/// Which buffers the next tile takes, also from one item to the next; all warpgroups count them.
template <class Tiles>
struct LatentTurn {
  NextStage<Tiles::kBuffers> tile;
  NextStage<Tiles::kWeightBuffers> weights;
  NextStage<1> last_panel;

  /// The buffer of the tile so many tiles later.
  __device__ __forceinline__ NextStage<Tiles::kBuffers> after(int tiles) const {
    NextStage<Tiles::kBuffers> later = tile;
    for (int i = 0; i < tiles; ++i) later.advance();
    return later;
  }
  __device__ __forceinline__ void advance() {
    tile.advance();
    weights.advance();
    last_panel.advance();
  }
};

/// Addresses of shared memory, and this thread's place in it.
template <class Tiles>
struct LatentPlaces {
  uint32_t header = shared_address(dynamic_shared());
  uint32_t begin = align_to_swizzle(header + Tiles::kHeaderBytes);
  /// Of the thread in its warpgroup.
  uint32_t number[1] = {static_cast<uint32_t>(threadIdx.x) % kWarpgroupThreads};

  /// What follows from the thread's number is computed again afterwards, not kept in registers.
  __device__ __forceinline__ void forget() { pin(number); }

  __device__ __forceinline__ uint8_t* memory() const { return dynamic_shared() + (begin - header); }
  __device__ __forceinline__ uint32_t values(int buffer) const {
    return begin + Tiles::kValues + buffer * Tiles::kValueBytes;
  }
  __device__ __forceinline__ uint32_t weights(int which) const {
    return begin + Tiles::kWeights + which * Tiles::kPanelBytes;
  }
  /// The largest logits of this thread lane's two rows.
  __device__ __forceinline__ uint32_t tops(int weights) const {
    return header + Tiles::kTops +
           (weights * Tiles::kRows + thread() / 32 * 16 + thread() % 32 / 4 * 2) * 4;
  }
  /// Of a tile, as IntPair: begin and end, then range_set and is_masked.
  __device__ __forceinline__ uint32_t walked(int buffer) const {
    return header + Tiles::kWalked + 16 * buffer;
  }

  // Barriers in memory: racecheck does not follow named ones where one side only arrives.
  __device__ __forceinline__ uint32_t loaded(int buffer) const {
    return header + Tiles::kLoaded + 8 * buffer;
  }
  __device__ __forceinline__ uint32_t added(int buffer) const {
    return header + Tiles::kAdded + 8 * buffer;
  }
  __device__ __forceinline__ uint32_t told(int weights) const {
    return header + Tiles::kTold + 8 * weights;
  }
  __device__ __forceinline__ uint32_t go(int weights) const {
    return header + Tiles::kGo + 8 * weights;
  }
  __device__ __forceinline__ uint32_t last_loaded() const { return header + Tiles::kLastLoaded; }
  __device__ __forceinline__ uint32_t begun() const { return header + Tiles::kBegun; }
  // Of all threads: synccheck refuses __syncthreads() and a named barrier of all where warpgroups
  // reach them at different places. An item ends two phases of `all`: parities are constants.
  __device__ __forceinline__ uint32_t all() const { return header + Tiles::kAll; }
  __device__ __forceinline__ uint32_t ended() const { return header + Tiles::kEnded; }

  /// By one thread; a barrier of the CTA follows.
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < Tiles::kBuffers; ++i) {
      mbarrier_init(loaded(i), 1);
      mbarrier_init(added(i), Tiles::kValueWarpgroups * kWarpgroupThreads);
    }
    for (int i = 0; i < Tiles::kWeightBuffers; ++i) {
      mbarrier_init(told(i), kWarpgroupThreads);
      mbarrier_init(go(i), kWarpgroupThreads);
    }
    mbarrier_init(last_loaded(), 1);
    mbarrier_init(begun(), kWarpgroupThreads);
    mbarrier_init(all(), Tiles::kCtaThreads);
    mbarrier_init(ended(), Tiles::kCtaThreads);
    mbarrier_init_fence();
  }

  __device__ __forceinline__ int32_t thread() const { return static_cast<int32_t>(number[0]); }
  /// Row of the tile for row r of this thread lane. The heads of a query row are neighbours.
  __device__ __forceinline__ int32_t tile_row(int r) const {
    return thread() / 32 * 16 + thread() % 32 / 4 + 8 * r;
  }
  /// Address of a thread lane for loading or storing four matrices of a warp's 16 rows of a panel,
  /// which begins at a multiple of 1024.
  __device__ __forceinline__ uint32_t matrices_at(uint32_t panel, int step) const {
    const int32_t lane = thread() % 32;
    const int32_t row = thread() / 32 * 16 + lane % 16;
    return panel + row * kPanelRowBytes + (((lane / 16) ^ (row & 7)) * 16 ^ 32 * step);
  }
};

}  // namespace cpscope::kernels::device
