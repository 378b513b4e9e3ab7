#include "kernels/attention/decode_rows.h"
#include "kernels/attention/fp8_numbers.h"
#include "kernels/attention/key_part_sums.h"
#include "kernels/attention/packed_heads.h"
#include "kernels/device/launch.h"
#include "kernels/device/work_items.h"
#include "kernels/hopper/hopper_latent_forward.h"
#include "kernels/hopper/hopper_latent_tiles.h"
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
// counter. Two warpgroups hold the same 64 rows, query rows times heads, and sum up 256 of the 512
// elements of P V each. Tiles of 64 keys come in pairs: warpgroup 0 makes logits and weights of the
// first, warpgroup 1 of the second, half a step later, so that one multiplies while the other makes
// weights. Each adds its own weights from registers and the other's from shared memory; m0, m1: the
// largest logits so far:
//   0: S0, m0, P0 ->; O += P0 V0; <- m1, P1; O = O exp(m0 - m1) + P1 V1
//   1: S1; <- m0, P0; O += P0 V0, and meanwhile m1, P1 ->; O = O exp(m0 - m1) + P1 V1
// A half of a tile is loaded again by the warpgroup that has just read it; both are done with the
// first tile before the second one, so that it is there when the next pair begins. Where a tile's
// keys are cut into parts, a second kernel adds up their sums (key_part_sums.h).
//
// Shared memory: 226 KiB; the last 64 elements of Q are kept in registers, and P1 takes their
// place. Numbers: as attention_decode. fp8 with one scale a tensor: tensor cores multiply bf16
// numbers of the same values; weights are rounded to bf16, not cast to E4M3, as FlashMLA does with
// a cache of 8 bits. Sources: DeepSeek-V2 (arXiv:2405.04434), 2.1; FlashAttention-2
// (arXiv:2307.08691), alg. 1; warpgroups that take turns: FlashMLA (DeepSeek, 2025, "seesaw").

namespace cpscope::kernels {
namespace {

using namespace device;

constexpr int64_t kMostCutItems = 8;  // of each CTA

/// One CTA's work item.
template <class Tiles>
class LatentItem {
 public:
  using T = typename Tiles::T;
  static constexpr int kKeys = Tiles::kWalkedRows;
  static constexpr int kElements = Tiles::kV / kWarpgroups;
  static constexpr int kSteps = Tiles::kQk / 16;
  using Running = RunningRows<T, 1, kElements>;
  using Scores = float[1][kKeys / 8][4];
  using Walk = TileWalk<Tiles::kWalkedRows>;

  __device__ __forceinline__ LatentItem(const LatentParams& params, uint8_t* shared,
                                        const WorkItem& item, LoadPhases& phases)
      : params_(params),
        launch_(params.decode.launch),
        rows_(params.decode, shared, item),
        logits_(launch_.shape),
        shared_(shared_address(shared)),
        tops_(reinterpret_cast<float*>(shared + Tiles::kTops)),
        phases_(phases),
        warpgroup_(shared_by_warp(thread() / kWarpgroupThreads)) {
    running_.clear();
  }

  /// All threads of the CTA call it together. draw: of for_each_work_item.
  template <class Draw>
  __device__ __forceinline__ void run(const Draw& draw) {
    publish_shared_writes();  // of the item before, whose memory is loaded again
    __syncthreads();
    Walk walk(launch_.query_tiles.runs + rows_.tile().first_run, rows_.tile().num_runs, 0, 1);
    const Pair first = next_pair(walk);
    fetch_queries();  // first: they would wait behind the keys
    copy_async_commit();
#pragma unroll
    for (int buffer = 0; buffer < 2; ++buffer)
      if (first.has[buffer]) load(first.tiles[buffer], buffer);
    copy_async_wait<0>();
    publish_shared_writes();
    __syncthreads();
    take_last_queries();
    stream_keys(walk, first);
    draw();
    __syncthreads();
    place_sums();
    __syncthreads();
    rows_.finish();
  }

 private:
  static constexpr int kOwn = 1;  // named barriers, one for each warpgroup
  // Barriers in memory, because racecheck does not follow named ones where one side only arrives:
  // m0 and P0 are there; m1 and P1 are.
  static constexpr int kFirstWeights = 0, kSecondWeights = 1;

  __device__ __forceinline__ void send(int signal) const {
    mbarrier_arrive(shared_ + Tiles::kSignals + 8 * signal);
  }
  __device__ __forceinline__ void receive(int signal) const {
    mbarrier_wait(shared_ + Tiles::kSignals + 8 * signal, phases_.pair);
  }

  static __device__ __forceinline__ int32_t thread() { return static_cast<int32_t>(threadIdx.x); }

  /// Row of the tile for row r of this thread lane. The heads of a query row are neighbours.
  static __device__ __forceinline__ int32_t tile_row(int r) {
    return thread() % kWarpgroupThreads / 32 * 16 + thread() % 32 / 4 + 8 * r;
  }

  /// Copies the rows of Q: eight threads copy 128 bytes of a row at a time. Elements past the
  /// head's, and rows that are not there, become 0.
  __device__ __forceinline__ void fetch_queries() const {
    const int32_t lanes = (launch_.shape.head_dim_qk + 7) / 8 * 8, group = thread() % 8;
#pragma unroll
    for (int i = 0; i < Tiles::kRows / (Tiles::kThreads / 8); ++i) {
      const int32_t row = thread() / 8 + i * (Tiles::kThreads / 8);
      const bool is_there = row < rows_.num_rows();
      const T* from = static_cast<const T*>(launch_.q.data) +
                      (is_there ? rows_.query_of(row) * launch_.q.row_stride +
                                      rows_.head_of(row) * launch_.q.head_stride
                                : int64_t{0});
      const uint32_t to =
          shared_ + Tiles::kQueries + row * kPanelRowBytes + (group ^ (row & 7)) * 16;
#pragma unroll
      for (int panel = 0; panel < Tiles::kPanels; ++panel) {
        copy_async_16(to + panel * Tiles::kPanelBytes, from + panel * kBoxLanes + group * 8,
                      is_there && panel * kBoxLanes + group * 8 < lanes);
      }
    }
  }

  /// Address of a thread lane for loading or storing four matrices of a warp's 16 rows of a panel.
  static __device__ __forceinline__ uint32_t matrices_at(uint32_t panel, int step) {
    const int32_t lane = thread() % 32;
    const int32_t row = thread() % kWarpgroupThreads / 32 * 16 + lane % 16;
    return panel + row * kPanelRowBytes + ((2 * step + lane / 16) ^ (row & 7)) * 16;
  }

  __device__ __forceinline__ void take_last_queries() {
#pragma unroll
    for (int step = 0; step < 4; ++step)
      load_matrix_x4(last_queries_[step], matrices_at(shared_ + Tiles::kSecondWeights, step));
  }

  __device__ __forceinline__ uint32_t keys_of(int buffer) const {
    return shared_ + Tiles::kKeys + buffer * Tiles::kTileBytes;
  }
  __device__ __forceinline__ uint32_t loaded(int buffer, int half) const {
    return shared_ + Tiles::kLoaded + (2 * buffer + half) * 8;
  }
  __device__ __forceinline__ void wait_for(int buffer, int half) const {
    mbarrier_wait(loaded(buffer, half), phases_.parity[buffer]);
  }

  /// Starts loading this warpgroup's half of a tile's V, and of its own tile the elements behind V.
  /// All threads call it, and have read what was there before.
  __device__ __forceinline__ void load(const WalkedTile& walked, int buffer) const {
    if (thread() % kWarpgroupThreads == 0) start_load(walked, buffer, warpgroup_);
    __syncwarp();
  }

  /// The tile that will replace this one is two tiles further on if the run goes on. Where several
  /// tiles of heads read the same keys, it is fetched to the L2 cache, because the buffers leave no
  /// time for the way from memory; where one does, memory is the limit. These tiles run at about
  /// the same time, and each fetches one half.
  __device__ __forceinline__ void start_load(const WalkedTile& walked, int buffer, int half) const {
    const int32_t row = kMapRows - walked.end + walked.begin;
    const uint32_t barrier = loaded(buffer, half);
    const int first = half * Tiles::kHalfPanels;
    const bool has_last = buffer == half;
    mbarrier_arrive_expecting(barrier,
                              (Tiles::kHalfPanels + (has_last ? 1 : 0)) * Tiles::kPanelBytes);
    if (params_.has_whole_panels) {
      load_box(keys_of(buffer) + first * Tiles::kPanelBytes, &params_.key_halves, barrier, 0, row,
               first, walked.end, kMapRows);
    } else {
#pragma unroll 1
      for (int i = 0; i < Tiles::kHalfPanels; ++i) load_panel(walked, buffer, first + i, barrier);
    }
    if (has_last) load_panel(walked, buffer, Tiles::kLastPanel, barrier);
    const bool fetches = params_.shares_keys && params_.has_whole_panels &&
                         rows_.first_head() / params_.decode.heads % 2 == half;
    if (!fetches || walked.begin + 2 * kKeys >= walked.end) return;
    prefetch_box(&params_.key_halves, 0, row + 2 * kKeys, first, walked.end, kMapRows);
    if (has_last)
      prefetch_box(&params_.keys, Tiles::kLastPanel * kBoxLanes, row + 2 * kKeys, 0, walked.end,
                   kMapRows);
  }

  __device__ __forceinline__ void load_panel(const WalkedTile& walked, int buffer, int panel,
                                             uint32_t barrier) const {
    load_box(keys_of(buffer) + panel * Tiles::kPanelBytes, &params_.keys, barrier,
             panel * kBoxLanes, kMapRows - walked.end + walked.begin, 0, walked.end, kMapRows);
  }

  /// All warps of the warpgroup have read what it loads again.
  __device__ __forceinline__ void sync_own() const {
    named_barrier_sync(kOwn + warpgroup_, kWarpgroupThreads);
  }

  /// Two tiles; the second one may be missing.
  struct Pair {
    WalkedTile tiles[2];
    bool has[2] = {false, false};
  };

  __device__ __forceinline__ static Pair next_pair(Walk& walk) {
    Pair pair;
    pair.has[0] = walk.next(pair.tiles[0]);
    if (pair.has[0]) pair.has[1] = walk.next(pair.tiles[1]);
    return pair;
  }

  /// now: the first tiles, which are being loaded.
  __device__ __forceinline__ void stream_keys(Walk& walk, Pair now) {
    while (now.has[0]) {
      const Pair next = next_pair(walk);
      // Without a branch around a product: products in flight would end there.
      if (warpgroup_ == 0) {
        now.has[1] ? visit_first<true>(now, next) : visit_first<false>(now, next);
      } else {
        now.has[1] ? visit_second<true>(now, next) : visit_second<false>(now, next);
      }
#pragma unroll
      for (int buffer = 0; buffer < 2; ++buffer)
        if (now.has[buffer]) phases_.parity[buffer] ^= 1;
      phases_.pair ^= 1;
      now = next;
    }
  }

  /// Warpgroup 0 and a pair of tiles, or one.
  template <bool kIsPair>
  __device__ __forceinline__ void visit_first(const Pair& now, const Pair& next) {
    Scores scores;
    make_scores(scores, now.tiles[0], 0);
    running_.weigh(scores, logits_.unit_log2);
    uint32_t weights[kKeys / 16][4];
    pack_weights(weights, scores);
    tell(kFirstWeights, shared_ + Tiles::kWeights, weights);
    start_own_values(weights, 0);
    end_values();
    reload(0, next);
    if constexpr (!kIsPair) return;
    move_to_told(kSecondWeights);
    wait_for(1, 0);
    start_other_values(shared_ + Tiles::kSecondWeights, 1);
    end_values();
    reload(1, next);
  }

  /// Warpgroup 1 and a pair of tiles, or one, which is not its own.
  template <bool kIsPair>
  __device__ __forceinline__ void visit_second(const Pair& now, const Pair& next) {
    Scores scores;
    float tops[2];
    if constexpr (kIsPair) {
      make_scores(scores, now.tiles[1], 1);
#pragma unroll
      for (int r = 0; r < 2; ++r) tops[r] = Running::largest_score(scores, r);
    }
    move_to_told(kFirstWeights);
    wait_for(0, 1);
    start_other_values(shared_ + Tiles::kWeights, 0);
    if constexpr (kIsPair) {
      float factors[2];
      running_.make_weights(scores, logits_.unit_log2, tops, running_.largest, factors);
      uint32_t weights[kKeys / 16][4];
      pack_weights(weights, scores);
      tell(kSecondWeights, shared_ + Tiles::kSecondWeights, weights);
      end_values();
      reload(0, next);
      rescale(factors);
      start_own_values(weights, 1);
      end_values();
      reload(1, next);
    } else {
      send(kSecondWeights);  // every pair ends a phase of the barrier
      end_values();
      reload(0, next);
    }
  }

  /// Tells the other warpgroup the largest logits so far and the weights of the own tile.
  __device__ __forceinline__ void tell(int signal, uint32_t panel,
                                       const uint32_t (&weights)[kKeys / 16][4]) const {
    if (thread() % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) tops_[signal * Tiles::kRows + tile_row(r)] = running_.largest[r];
    }
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      store_matrices_x4(matrices_at(panel, step), weights[step]);
    publish_shared_writes();
    send(signal);
  }

  /// Waits until the other warpgroup has told them, and brings the sums to its largest logits.
  __device__ __forceinline__ void move_to_told(int signal) {
    receive(signal);
    float factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float told = tops_[signal * Tiles::kRows + tile_row(r)];
      factors[r] = told == -kInfinity ? 1.0f : exp2_approx(running_.largest[r] - told);
      running_.largest[r] = told;
      running_.sum[r] *= factors[r];
    }
    rescale(factors);
  }

  /// Loads this warpgroup's half of a buffer again, which all its warps have read.
  __device__ __forceinline__ void reload(int buffer, const Pair& next) const {
    sync_own();
    if (next.has[buffer]) load(next.tiles[buffer], buffer);
  }

  /// Adds the products of a half once it is there.
  __device__ __forceinline__ void multiply_half(float (&sums)[kKeys / 2], int buffer, int half,
                                                bool is_first) const {
    const uint64_t queries = matrix_descriptor(shared_ + Tiles::kQueries, 16),
                   keys = matrix_descriptor(keys_of(buffer), 16);
    wait_for(buffer, half);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * Tiles::kHalfPanels; ++i) {
      const int step = half * Tiles::kHalfPanels * 4 + i;
      wgmma_ss<T>(sums, further(queries, head_dim_step<Tiles::kRows>(step)),
                  further(keys, head_dim_step<Tiles::kWalkedRows>(step)), !is_first || i > 0);
    }
  }

  /// scores = Q K^T of a tile, as logits, invisible ones hidden. The half that this warpgroup has
  /// loaded comes first: the other one is loaded half a step later.
  __device__ __forceinline__ void make_scores(Scores& scores, const WalkedTile& walked,
                                              int buffer) const {
    auto& sums = reinterpret_cast<float(&)[kKeys / 2]>(scores);
    const uint64_t keys = matrix_descriptor(keys_of(buffer), 16);
    wgmma_fence();
    multiply_half(sums, buffer, buffer, true);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma_rs_lanes<T>(sums, last_queries_[step],
                        further(keys, head_dim_step<Tiles::kWalkedRows>(kSteps - 4 + step)));
    }
    multiply_half(sums, buffer, 1 - buffer, false);
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
    logits_.apply(scores);
    if (walked.is_masked) hide(scores, walked);
  }

  /// Replaces the scores of invisible pairs, whatever they are, without arithmetic on them.
  __device__ __forceinline__ void hide(Scores& scores, const WalkedTile& walked) const {
    const KeyRange* ranges =
        launch_.query_tiles.ranges + int64_t{walked.range_set} * launch_.shape.q_rows;
    const int32_t first_key = walked.begin + thread() % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = tile_row(r);
      const KeyRange seen = row < rows_.num_rows() ? ranges[rows_.query_of(row)] : KeyRange{};
      hide_row(scores, r, seen, first_key, walked.end);
    }
  }

  /// Weights, rounded to T, as operands.
  static __device__ __forceinline__ void pack_weights(uint32_t (&words)[kKeys / 16][4],
                                                      const Scores& weights) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      const float(&four)[4] = weights[0][i / 4 * 2 + i % 4 / 2];
      words[i / 4][i % 4] = pack<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
    }
  }

  using Sums = float[kElements / 2];
  __device__ __forceinline__ Sums& sums() { return reinterpret_cast<Sums&>(running_.out); }

  /// This warpgroup's elements of V.
  __device__ __forceinline__ uint64_t values_of(int buffer) const {
    return matrix_descriptor(keys_of(buffer) + warpgroup_ * Tiles::kHalfPanels * Tiles::kPanelBytes,
                             Tiles::kPanelBytes);
  }

  /// Starts adding weights in registers times V.
  __device__ __forceinline__ void start_own_values(uint32_t (&weights)[kKeys / 16][4], int buffer) {
    const uint64_t values = values_of(buffer);
    pin(sums());
    pin(reinterpret_cast<uint32_t(&)[kKeys / 4]>(weights));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      wgmma_rs<T>(sums(), weights[step], further(values, row_step(step)));
    wgmma_commit();
  }

  __device__ __forceinline__ void end_values() {
    wgmma_wait<0>();
    pin(sums());
  }

  /// Starts adding the other warpgroup's weights times V.
  __device__ __forceinline__ void start_other_values(uint32_t panel, int buffer) {
    const uint64_t weights = matrix_descriptor(panel, 16), values = values_of(buffer);
    pin(sums());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      wgmma_ss_rows<T>(sums(), further(weights, head_dim_step<Tiles::kRows>(step)),
                       further(values, row_step(step)), 1);
    }
    wgmma_commit();
  }

  /// Brings the sums of P V to another reference.
  __device__ __forceinline__ void rescale(const float (&factors)[2]) {
    if (any_in_warp(factors[0] != 1.0f || factors[1] != 1.0f)) running_.scale_out(factors);
  }

  /// Writes the sums of all rows to the shared memory. Both warpgroups have the same largest logits
  /// and, of the weights' sum, the part of their own keys.
  __device__ __forceinline__ void place_sums() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = tile_row(r);
      const float sum = running_.whole_sum(r);
      if (thread() % 4 == 0) tops_[warpgroup_ * Tiles::kRows + row] = sum;
      float* to = rows_.sums_of(0, row) + warpgroup_ * kElements + thread() % 4 * 2;
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
      if (warpgroup_ == 0 && thread() % 4 == 0)
        rows_.notes_of(0)[row] = {running_.largest[r], tops_[row] + tops_[Tiles::kRows + row]};
    }
  }

  const LatentParams& params_;
  const ForwardLaunch& launch_;
  DecodeRows<Tiles> rows_;
  Logits<Tiles::kIsCapped> logits_;
  uint32_t shared_;  // address
  float* tops_;
  LoadPhases& phases_;
  const int32_t warpgroup_;
  uint32_t last_queries_[4][4];
  Running running_;
};

template <class Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, 1)
    attend_latent_on_hopper(const __grid_constant__ LatentParams params) {
  const ForwardLaunch& launch = params.decode.launch;
  const DeviceTiles& tiles = launch.query_tiles;
  tell_begun(tiles.begun);
  let_next_kernel_begin();
  const uint32_t begin = shared_address(dynamic_shared());
  uint8_t* const shared = dynamic_shared() + (align_to_swizzle(begin) - begin);
  auto* fetched = reinterpret_cast<int32_t*>(shared);
  if (threadIdx.x == 0) {
    prefetch_map(&params.keys);
    for (int i = 0; i < Tiles::kLoads; ++i)
      mbarrier_init(shared_address(shared) + Tiles::kLoaded + 8 * i, 1);
    for (int i = 0; i < Tiles::kNumSignals; ++i)
      mbarrier_init(shared_address(shared) + Tiles::kSignals + 8 * i, kWarpgroupThreads);
    mbarrier_init_fence();
  }
  LoadPhases phases;
  for_each_work_item(launch.counter, tiles.num_work, fetched, [&](int32_t work, const auto& draw) {
    LatentItem<Tiles>(params, shared, tiles.work[work], phases).run(draw);
  });
}

using AnyTiles = LatentTiles<Bf16, false>;

template <class T>
void launch_latent(const DecodeParams& decode, Stream stream) {
  const ForwardLaunch& given = decode.launch;
  const int32_t lanes = padded_lanes(given.shape.head_dim_qk);
  LatentParams params{decode, {}, {}};
  params.shares_keys = given.shape.num_heads > decode.heads;
  params.has_whole_panels = lanes % kBoxLanes == 0;
  make_row_map(params.keys, given.k, given.shape.dtype, 1, lanes, {AnyTiles::kWalkedRows});
  if (params.has_whole_panels) {
    DeviceRows panels = given.k;
    panels.head_stride = kBoxLanes;
    make_row_map(params.key_halves, panels, given.shape.dtype, lanes / kBoxLanes, kBoxLanes,
                 {.rows = AnyTiles::kWalkedRows, .heads_in_turn = AnyTiles::kHalfPanels});
  }
  const auto launch = [&](auto tiles) {
    using Tiles = decltype(tiles);
    constexpr auto kKernel = attend_latent_on_hopper<Tiles>;
    const int32_t resident = resident_ctas(kKernel, Tiles::kThreads, Tiles::kSharedBytes);
    launch_kernel(kKernel, std::min(resident, given.query_tiles.num_work), Tiles::kThreads,
                  Tiles::kSharedBytes, stream, params);
    launch_key_part_sums<Tiles>(params.decode, stream);
  };
  given.shape.softcap != 0.0f ? launch(LatentTiles<T, true>{}) : launch(LatentTiles<T, false>{});
}

/// Rows hold codes as bf16 numbers, whose scales multiply products and results.
void set_fp8_factors(const Fp8Numbers& fp8, DecodeParams& params) {
  params.launch.q = fp8.q;
  params.launch.k = fp8.k;
  params.launch.shape.scale *= fp8.descale * fp8.descale;
  params.value_factor = fp8.descale;
  params.out_scale = fp8.out;
}

}  // namespace

std::string why_not_hopper_latent_forward(const AttentionShape& shape) {
  if (shape.dtype != Dtype::bf16 && shape.dtype != Dtype::fp16)
    return "the Hopper forward of latent attention takes bf16 and fp16";
  if (shape.is_mx)
    return "the Hopper forward of latent attention takes fp8 with one scale a tensor";
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
  DecodeParams params;
  params.launch = launch;
  params.heads = tile.heads;
  params.tile_rows = tile.owned_rows;
  if (launch.shape.is_fp8) set_fp8_factors(*launch.fp8, params);
  launch.shape.dtype == Dtype::fp16 ? launch_latent<Fp16>(params, stream)
                                    : launch_latent<Bf16>(params, stream);
}

}  // namespace cpscope::kernels
