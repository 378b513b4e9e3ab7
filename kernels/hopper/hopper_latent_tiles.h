#pragma once

#include "kernels/attention/decode_rows.h"
#include "kernels/hopper/hopper_pipeline.h"
#include "kernels/hopper/hopper_products.h"

#include <algorithm>
#include <cstdint>

/// Tiles, shared memory and parameters of the Hopper forward of latent attention.
namespace cpscope::kernels::device {

inline constexpr int kWarpgroups = 2;  // of a CTA

/// Tiles and shared memory: panels of 64 elements a row, as matrix_descriptor reads them.
template <class Element, bool kHasCap>
struct LatentTiles {
  using T = Element;
  static constexpr bool kIsCapped = kHasCap;
  static constexpr int kQk = 576;
  static constexpr int kV = 512;
  static constexpr int kRows = 64;
  static constexpr int kWalkedRows = 64;
  static constexpr int kWarps = 4 * kWarpgroups;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSumSets = 1;
  static constexpr int kPanelBytes = 64 * kPanelRowBytes;
  static constexpr int kTileBytes = kQk / kBoxLanes * kPanelBytes;  // of 64 rows

  static constexpr int kPanels = kQk / kBoxLanes;  // of a row of K
  static constexpr int kLastPanel = kPanels - 1;   // the one behind V
  static constexpr int kHalfPanels = kV / kBoxLanes / kWarpgroups;

  // Byte offsets into the shared memory, from a multiple of 1024 on. The next work item comes
  // first.
  static constexpr int kTops = 128;    // fp32 [warpgroup][row], the largest logits, then sums
  static constexpr int kLoaded = 704;  // barriers [buffer][half of V's elements]
  static constexpr int kLoads = 2 * kWarpgroups;
  static constexpr int kNumSignals = 2;
  static constexpr int kSignals = kLoaded + kLoads * 8;  // barriers
  static constexpr int kQueries = 1024;
  static constexpr int kKeys = kQueries + kTileBytes;                         // two buffers
  static constexpr int kWeights = kKeys + 2 * kTileBytes;                     // P0
  static constexpr int kSecondWeights = kQueries + kLastPanel * kPanelBytes;  // P1
  static constexpr int kStreamEnd = kWeights + kPanelBytes;

  // After the stream, as DecodeTiles has it.
  static constexpr int kSumLanes = kSumLanesOf<kV>;
  static constexpr int kSums = kQueries;
  static constexpr int kNotes = kSums + kRows * kSumLanes * 4;
  static constexpr int kEnds = kNotes + kRows * int{sizeof(RowSum)};
  static constexpr int kSharedBytes =
      1024 + std::max(kStreamEnd, kEnds + kRows * int{sizeof(RowEnd)});
  static_assert(kTops + kWarpgroups * kRows * 4 <= kLoaded &&
                kSignals + kNumSignals * 8 <= kQueries);
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

/// Parameters of the kernel.
struct LatentParams {
  DecodeParams decode;
  TensorMap keys;                 // boxes of one panel
  TensorMap key_halves;           // of kHalfPanels panels
  bool shares_keys = false;       // several tiles of heads read the same ones
  bool has_whole_panels = false;  // else the last one would go on with the next row
};

/// Phases of the barriers: of loads to each buffer, and of signals, which every pair of tiles ends;
/// the same in all threads.
struct LoadPhases {
  uint32_t parity[2] = {0, 0};
  uint32_t pair = 0;
};

}  // namespace cpscope::kernels::device
