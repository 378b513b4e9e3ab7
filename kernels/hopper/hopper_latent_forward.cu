#include "kernels/hopper/hopper_latent_forward.h"

#include "kernels/attention/decode_rows.h"
#include "kernels/attention/packed_heads.h"
#include "kernels/device/launch.h"
#include "kernels/device/work_items.h"
#include "kernels/hopper/hopper_pipeline.h"
#include "kernels/hopper/hopper_products.h"
#include "kernels/tiles/work_order.h"
#include "sim/base/check.h"

#include <algorithm>
#include <cstdint>
#include <string>

// Forward of latent attention: a row of K is 576 elements, whose first 512 are the row of V, so
// that one tile in shared memory serves both products.
//
// Grid: one CTA an SM; each fetches work items (part of a query tile's keys x query heads) with a
// counter. Two warpgroups hold the same 64 rows, query rows times heads. Each makes the logits of
// 32 of a tile's 64 keys, exchanges the rows' largest logits and the weights with the other one
// through shared memory, and sums up 256 of the 512 elements of P V. While a tile is computed the
// next one is copied. Where a tile's keys are cut into parts, the CTA that ends last adds them up.
//
// Shared memory: 226 KiB. Registers and spills: tests/kernels/device/ptxas_limits.txt. Numbers: as
// attention_decode. Sources: DeepSeek-V2 (arXiv:2405.04434), 2.1; FlashAttention-2
// (arXiv:2307.08691), alg. 1; two warpgroups that share the rows and split V: FlashMLA (DeepSeek,
// 2025).

namespace cpscope::kernels {
namespace {

using namespace device;

constexpr int kWarpgroups = 2;
constexpr int64_t kMostCutItems = 8;  // of each CTA

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

  // Byte offsets into the shared memory, from a multiple of 1024 on. The next work item and the end
  // of parts come first.
  static constexpr int kTops = 128;  // fp32 [warpgroup][row], the largest logits, then sums
  static constexpr int kQueries = 1024;
  static constexpr int kKeys = kQueries + kTileBytes;  // two buffers
  static constexpr int kWeights = kKeys + 2 * kTileBytes;
  static constexpr int kStreamEnd = kWeights + kPanelBytes;

  // After the stream, as DecodeTiles has it.
  static constexpr int kSumLanes = sum_lanes(kV);
  static constexpr int kSums = kQueries;
  static constexpr int kNotes = kSums + kRows * kSumLanes * 4;
  static constexpr int kEnds = kNotes + kRows * 8;
  static constexpr int kFactors = kEnds + kRows * 12;
  static constexpr int kSharedBytes =
      1024 + std::max(kStreamEnd, kFactors + kRows * kPartsTogether * 4);
  static_assert(kTops + kWarpgroups * kRows * 4 <= kQueries && kSharedBytes <= kMaxSharedBytes);
};

/// One CTA's work item.
template <class Tiles>
class LatentItem {
 public:
  using T = typename Tiles::T;
  static constexpr int kKeys = Tiles::kWalkedRows / kWarpgroups;  // of a warpgroup
  static constexpr int kElements = Tiles::kV / kWarpgroups;
  using Running = RunningRows<T, 1, kElements>;

  __device__ __forceinline__ LatentItem(const DecodeParams& params, uint8_t* shared,
                                        const WorkItem& item)
      : launch_(params.launch),
        rows_(params, shared, item),
        logits_(launch_.shape),
        keys_(rows_of_head<T>(launch_.k, 0, launch_.shape.head_dim_qk)),
        shared_(shared_address(shared)),
        tops_(reinterpret_cast<float*>(shared + Tiles::kTops)) {
    running_.clear();
  }

  /// All threads of the CTA call it together.
  __device__ __forceinline__ void run() {
    stream_keys();
    __syncthreads();
    place_sums();
    __syncthreads();
    rows_.finish();
  }

 private:
  static __device__ __forceinline__ int32_t thread() { return static_cast<int32_t>(threadIdx.x); }
  static __device__ __forceinline__ int32_t warpgroup() { return thread() / kWarpgroupThreads; }

  /// Row of the tile for row r of this thread lane. The heads of a query row are neighbours.
  static __device__ __forceinline__ int32_t tile_row(int r) {
    return thread() % kWarpgroupThreads / 32 * 16 + thread() % 32 / 4 + 8 * r;
  }

  /// Starts copying a row to a tile: eight threads copy 128 bytes of it at a time. Elements past
  /// the head's, and rows that are not there, become 0.
  __device__ __forceinline__ void copy_row(uint32_t tile, int32_t row, const T* from,
                                           bool is_there) const {
    const int32_t group = thread() % 8;
    const uint32_t to = tile + row * kPanelRowBytes + (group ^ (row & 7)) * 16;
#pragma unroll
    for (int panel = 0; panel < Tiles::kQk / kBoxLanes; ++panel) {
      copy_async_16(to + panel * Tiles::kPanelBytes, from + panel * kBoxLanes + group * 8,
                    is_there && panel * kBoxLanes + group * 8 < keys_.lanes);
    }
  }

  __device__ __forceinline__ void fetch_queries() const {
#pragma unroll
    for (int i = 0; i < Tiles::kRows / (Tiles::kThreads / 8); ++i) {
      const int32_t row = thread() / 8 + i * (Tiles::kThreads / 8);
      const bool is_there = row < rows_.num_rows();
      const T* from = static_cast<const T*>(launch_.q.data) +
                      (is_there ? rows_.query_of(row) * launch_.q.row_stride +
                                      rows_.head_of(row) * launch_.q.head_stride
                                : int64_t{0});
      copy_row(shared_ + Tiles::kQueries, row, from, is_there);
    }
  }

  __device__ __forceinline__ void fetch_keys(const WalkedTile& walked, int buffer) const {
#pragma unroll
    for (int i = 0; i < Tiles::kWalkedRows / (Tiles::kThreads / 8); ++i) {
      const int32_t row = thread() / 8 + i * (Tiles::kThreads / 8);
      copy_row(keys_of(buffer), row, keys_.first + (walked.begin + row) * keys_.stride,
               walked.begin + row < walked.end);
    }
  }

  __device__ __forceinline__ uint32_t keys_of(int buffer) const {
    return shared_ + Tiles::kKeys + buffer * Tiles::kTileBytes;
  }

  __device__ __forceinline__ void stream_keys() {
    TileWalk<Tiles::kWalkedRows> walk(launch_.query_tiles.runs + rows_.tile().first_run,
                                      rows_.tile().num_runs, 0, 1);
    WalkedTile walked, next;
    bool has_tile = walk.next(walked);
    if (has_tile) {
      fetch_queries();
      fetch_keys(walked, 0);
      copy_async_commit();
    }
    for (int buffer = 0; has_tile; buffer ^= 1) {
      has_tile = walk.next(next);
      copy_async_wait<0>();
      publish_shared_writes();
      // The tile is there, and all warps are done with the one before, whose buffer is free.
      __syncthreads();
      if (has_tile) fetch_keys(next, buffer ^ 1);
      copy_async_commit();
      visit(walked, keys_of(buffer));
      walked = next;
    }
  }

  __device__ __forceinline__ void visit(const WalkedTile& walked, uint32_t tile) {
    float scores[1][kKeys / 8][4];
    make_scores(scores, tile);
    logits_.apply(scores);
    if (walked.is_masked) hide(scores, walked);
    float tops[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      tops[r] = Running::largest_score(scores, r);
      if (thread() % 4 == 0) tops_[warpgroup() * Tiles::kRows + tile_row(r)] = tops[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r)
      tops[r] = fmaxf(tops[r], tops_[(warpgroup() ^ 1) * Tiles::kRows + tile_row(r)]);
    running_.weigh(scores, logits_.unit_log2, tops);
    place_weights(scores);
    publish_shared_writes();
    __syncthreads();
    add_values(tile);
  }

  /// scores = Q K^T of this warpgroup's keys.
  __device__ __forceinline__ void make_scores(float (&scores)[1][kKeys / 8][4],
                                              uint32_t tile) const {
    auto& sums = reinterpret_cast<float(&)[kKeys / 2]>(scores);
    const uint64_t queries = matrix_descriptor(shared_ + Tiles::kQueries, 16);
    const uint64_t keys = matrix_descriptor(tile + warpgroup() * kKeys * kPanelRowBytes, 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tiles::kQk / 16; ++step) {
      wgmma_ss<T>(sums, further(queries, head_dim_step<Tiles::kRows>(step)),
                  further(keys, head_dim_step<Tiles::kWalkedRows>(step)), step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
  }

  /// Replaces the scores of invisible pairs, whatever they are, without arithmetic on them.
  __device__ __forceinline__ void hide(float (&scores)[1][kKeys / 8][4],
                                       const WalkedTile& walked) const {
    const KeyRange* ranges =
        launch_.query_tiles.ranges + int64_t{walked.range_set} * launch_.shape.q_rows;
    const int32_t first_key = walked.begin + warpgroup() * kKeys + thread() % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = tile_row(r);
      const KeyRange seen = row < rows_.num_rows() ? ranges[rows_.query_of(row)] : KeyRange{};
      hide_row(scores, r, seen, first_key, walked.end);
    }
  }

  /// Stores this warpgroup's weights, rounded to T, to the tile of all 64 keys.
  __device__ __forceinline__ void place_weights(const float (&weights)[1][kKeys / 8][4]) const {
    const int32_t lane = thread() % 32;
    const int32_t row = thread() % kWarpgroupThreads / 32 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&four)[4] = weights[0][2 * step + i / 2];
        words[i] = pack<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
      }
      const int32_t group = warpgroup() * kKeys / 8 + 2 * step + lane / 16;
      store_matrices_x4(shared_ + Tiles::kWeights + row * kPanelRowBytes + (group ^ (row & 7)) * 16,
                        words);
    }
  }

  /// Adds the product of all weights with this warpgroup's elements of V.
  __device__ __forceinline__ void add_values(uint32_t tile) {
    auto& sums = reinterpret_cast<float(&)[kElements / 2]>(running_.out);
    const uint64_t weights = matrix_descriptor(shared_ + Tiles::kWeights, 16);
    const uint64_t values = matrix_descriptor(
        tile + warpgroup() * (kElements / kBoxLanes) * Tiles::kPanelBytes, Tiles::kPanelBytes);
    pin(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tiles::kWalkedRows / 16; ++step) {
      wgmma_ss_rows<T>(sums, further(weights, head_dim_step<Tiles::kRows>(step)),
                       further(values, row_step(step)), 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
  }

  /// Writes the sums of all rows to the shared memory. Both warpgroups have the same largest logits
  /// and, of the weights' sum, the part of their own keys.
  __device__ __forceinline__ void place_sums() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = tile_row(r);
      const float sum = running_.whole_sum(r);
      if (thread() % 4 == 0) tops_[warpgroup() * Tiles::kRows + row] = sum;
      float* to = rows_.sums_of(0, row) + warpgroup() * kElements + thread() % 4 * 2;
#pragma unroll
      for (int j = 0; j < kElements / 8; ++j) {
        const float(&four)[4] = running_.out[0][j];
        store_pair(to + 8 * j, four[r * 2], four[r * 2 + 1]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = tile_row(r);
      if (warpgroup() == 0 && thread() % 4 == 0)
        rows_.notes_of(0)[row] = {running_.largest[r], tops_[row] + tops_[Tiles::kRows + row]};
    }
  }

  const ForwardLaunch& launch_;
  DecodeRows<Tiles> rows_;
  Logits<Tiles::kIsCapped> logits_;
  HeadRows<T> keys_;
  uint32_t shared_;  // address
  float* tops_;
  Running running_;
};

template <class Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, 1)
    attend_latent_on_hopper(const __grid_constant__ DecodeParams params) {
  const DeviceTiles& tiles = params.launch.query_tiles;
  tell_begun(tiles.begun);
  const uint32_t begin = shared_address(dynamic_shared());
  uint8_t* const shared = dynamic_shared() + (align_to_swizzle(begin) - begin);
  auto* fetched = reinterpret_cast<int32_t*>(shared);
  for_each_work_item(params.launch.counter, tiles.num_work, fetched, [&](int32_t work) {
    LatentItem<Tiles>(params, shared, tiles.work[work]).run();
  });
}

using AnyTiles = LatentTiles<Bf16, false>;

template <class T>
void launch_latent(const DecodeParams& params, Stream stream) {
  const auto launch = [&](auto tiles) {
    using Tiles = decltype(tiles);
    constexpr auto kKernel = attend_latent_on_hopper<Tiles>;
    const int32_t resident = resident_ctas(kKernel, Tiles::kThreads, Tiles::kSharedBytes);
    launch_kernel(kKernel, std::min(resident, params.launch.query_tiles.num_work), Tiles::kThreads,
                  Tiles::kSharedBytes, stream, params);
  };
  params.launch.shape.softcap != 0.0f ? launch(LatentTiles<T, true>{})
                                      : launch(LatentTiles<T, false>{});
}

}  // namespace

std::string why_not_hopper_latent_forward(const AttentionShape& shape) {
  if (shape.dtype != Dtype::bf16 && shape.dtype != Dtype::fp16)
    return "the Hopper forward of latent attention takes bf16 and fp16";
  if (shape.head_dim_qk > AnyTiles::kQk || shape.head_dim_v > AnyTiles::kV)
    return "the Hopper forward of latent attention takes head_dim up to " +
           std::to_string(AnyTiles::kQk) + ", of V up to " + std::to_string(AnyTiles::kV);
  return "";
}

TileShape hopper_latent_forward_tile_shape(const AttentionShape& shape) {
  const int32_t heads = packed_heads(shape, AnyTiles::kRows);
  TileShape tile{AnyTiles::kRows / heads, AnyTiles::kWalkedRows};
  tile.heads = heads;
  tile.ctas_per_sm = 1;
  // Many items keep all CTAs at work as they are, and the sums of their parts would need memory.
  const int32_t tiles = (shape.q_rows + tile.owned_rows - 1) / tile.owned_rows;
  tile.cuts_keys = int64_t{tiles} * (shape.num_heads / heads) < kMostCutItems * kHopperCtas;
  return tile;
}

int64_t hopper_latent_part_bytes(const AttentionShape& shape, const TileList& list) {
  return part_bytes(shape, list, AnyTiles::kSumLanes);
}

void launch_hopper_latent_forward(const ForwardLaunch& launch, Stream stream) {
  if (launch.query_tiles.num_work == 0) return;
  CPSCOPE_CHECK(launch.query_tiles.arrivals.flags == nullptr,
                "the latent forward does not wait for pieces of its inputs",
                launch.query_tiles.arrivals.num_pieces, 0);
  const TileShape tile = hopper_latent_forward_tile_shape(launch.shape);
  const DecodeParams params{launch, tile.heads, tile.owned_rows};
  launch.shape.dtype == Dtype::fp16 ? launch_latent<Fp16>(params, stream)
                                    : launch_latent<Bf16>(params, stream);
}

}  // namespace cpscope::kernels
