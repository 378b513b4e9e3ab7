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
// counter. Three warpgroups hold the same 64 rows, query rows times heads. The softmax warpgroup
// has most of Q in registers and makes logits S and weights P of every tile of 64 keys; two value
// warpgroups add 256 of the 512 elements of P V each. So Q takes little shared memory, and there is
// room for three tiles: one that is added, one whose logits are made, one on its way.
//
// Tensor cores make the logits of a tile, then add the tile before while the softmax warpgroup
// makes weights: the value warpgroups wait for the weights of their tile ("told"), to rescale their
// sums, and then until the products of the next logits are under way ("go"). m: the largest logits
// so far.
//   softmax: S0; m0, P0 ->; S1 started, told, go; m1, P1 ->; S2 started, told, go; ...
//   values:  <- m0, P0; go: O += P0 V0; <- m1, P1: O = O exp(m0 - m1); go: O += P1 V1; ...
// Where a tile's keys are cut into parts, a second kernel adds up their sums (key_part_sums.h).
//
// Shared memory: 227 KiB; queries are staged in the buffer of the third tile. Numbers: as
// attention_decode. fp8 with one scale a tensor: tensor cores multiply bf16 numbers of the same
// values; weights are rounded to bf16, not cast to E4M3, as FlashMLA does with a cache of 8 bits.
// Sources: DeepSeek-V2 (arXiv:2405.04434), 2.1; FlashAttention-2 (arXiv:2307.08691), alg. 1; one
// warpgroup makes all logits: FlashAttention-3's forward where V is much wider than K.

namespace cpscope::kernels {
namespace {

using namespace device;

constexpr int64_t kMostCutItems = 8;  // of each CTA

/// Loads the tiles of an item, in one thread.
template <class Tiles>
class LatentLoader {
 public:
  __device__ __forceinline__ LatentLoader(const LatentParams& params, const LatentPlaces<Tiles>& at,
                                          const OwnedTile& tile)
      : params_(params),
        at_(at),
        walk_(params.decode.launch.query_tiles.runs + tile.first_run, tile.num_runs, 0, 1) {}

  /// Starts loading V's elements of the next tile, if there is one.
  __device__ __forceinline__ void load_values(int buffer) {
    WalkedTile walked;
    if (!walk_.next(walked)) return;
    store_shared_int_pair(at_.walked(buffer), {walked.begin, walked.end});
    store_shared_int_pair(at_.walked(buffer) + 8, {walked.range_set, walked.is_masked});
    const uint32_t barrier = at_.loaded(buffer), to = at_.values(buffer);
    mbarrier_arrive_expecting(barrier, Tiles::kValueBytes);
    if (params_.has_whole_panels) {
      load_box(to, &params_.values, barrier, 0, kMapRows - walked.end + walked.begin, 0, walked.end,
               kMapRows);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < Tiles::kValuePanels; ++i)
      load_panel(to + i * Tiles::kPanelBytes, i, {walked.begin, walked.end}, barrier);
  }

  /// Starts loading the elements behind V of the tile whose values are in this buffer.
  __device__ __forceinline__ void load_last_panel(int buffer) const {
    mbarrier_arrive_expecting(at_.last_loaded(), Tiles::kPanelBytes);
    load_panel(at_.begin + Tiles::kLastPanel, Tiles::kValuePanels,
               load_shared_int_pair(at_.walked(buffer)), at_.last_loaded());
  }

 private:
  /// keys: begin and end.
  __device__ __forceinline__ void load_panel(uint32_t to, int panel, IntPair keys,
                                             uint32_t barrier) const {
    load_box(to, &params_.keys, barrier, panel * kBoxLanes, kMapRows - keys.y + keys.x, 0, keys.y,
             kMapRows);
  }

  const LatentParams& params_;
  const LatentPlaces<Tiles>& at_;
  TileWalk<Tiles::kWalkedRows> walk_;
};

/// The softmax warpgroup.
template <class Tiles>
class LatentSoftmax {
 public:
  __device__ LatentSoftmax(const LatentParams& params, const LatentPlaces<Tiles>& at)
      : params_(params), launch_(params.decode.launch), at_(at), logits_(launch_.shape) {}

  __device__ __forceinline__ void run(const WorkItem& item) {
    running_.clear();
    take_queries(rows_of(item));
    const int32_t num_tiles = launch_.query_tiles.tiles[item.tile].num_tiles;
    Scores scores;
    publish_shared_writes();  // the staged queries are overwritten
    if (num_tiles == 0) {
      mbarrier_arrive(at_.begun());
    } else {
      start_scores(scores);
      mbarrier_arrive(at_.begun());
      start_other_scores(scores);
      end_scores(scores);
    }
#pragma unroll 1
    for (int32_t left = num_tiles; left > 1; --left) {
      at_.forget();
      weigh(item, scores);
      store_weights(scores);
      const int weights = turn_.weights.stage();
      turn_.advance();
      start_scores(scores);
      tell(weights);
      start_other_scores(scores);
      mbarrier_arrive(at_.go(weights));  // products begin after these
      end_scores(scores);
    }
    // The last tile. In the loop it would take a branch around products, which would end there.
    if (num_tiles > 0) {
      weigh(item, scores);
      store_weights(scores);
      tell(turn_.weights.stage());
      mbarrier_arrive(at_.go(turn_.weights.stage()));
      turn_.advance();
    }
    const DecodeRows<Tiles> rows = rows_of(item);
    float sums[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) sums[r] = running_.whole_sum(r);
    mbarrier_arrive(at_.all());
    mbarrier_wait(at_.all(), 0);
    if (at_.thread() % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) rows.end(at_.tile_row(r), {running_.largest[r], sums[r]});
    }
    publish_shared_writes();  // the memory is loaded again
    mbarrier_arrive(at_.all());
  }

 private:
  using T = typename Tiles::T;
  static constexpr int kKeys = Tiles::kWalkedRows;
  static constexpr int kEarlySteps = 8;  // enough work for tensor cores while `tell` waits
  using Scores = float[1][kKeys / 8][4];
  using Sums = float[kKeys / 2];         // the same
  using Running = RunningRows<T, 1, 8>;  // without sums of P V

  /// Made anew where it is needed: registers are few.
  __device__ __forceinline__ DecodeRows<Tiles> rows_of(const WorkItem& item) const {
    return {params_.decode, at_.memory(), item};
  }

  /// Copies the rows of Q, the elements that are kept to `panels`: eight threads copy 128 bytes of
  /// a row at a time. Elements past the head's, and rows that are not there, become 0.
  __device__ __forceinline__ void fetch_queries(const DecodeRows<Tiles>& rows,
                                                uint32_t panels) const {
    const int32_t lanes = (launch_.shape.head_dim_qk + 7) / 8 * 8, group = at_.thread() % 8;
#pragma unroll 1
    for (int32_t row = at_.thread() / 8; row < Tiles::kRows; row += kWarpgroupThreads / 8) {
      const bool is_there = row < rows.num_rows();
      const T* from = static_cast<const T*>(launch_.q.data) +
                      (is_there ? rows.query_of(row) * launch_.q.row_stride +
                                      rows.head_of(row) * launch_.q.head_stride
                                : int64_t{0});
      const uint32_t in_panel = panels + row * kPanelRowBytes + (group ^ (row & 7)) * 16;
      const uint32_t unkept = at_.begin + Tiles::kQueries + row * 16;
#pragma unroll
      for (int panel = 0; panel <= Tiles::kValuePanels; ++panel) {
        const int32_t element = panel * kBoxLanes + group * 8;
        copy_async_16(element < Tiles::kKeptElements
                          ? in_panel + panel * Tiles::kPanelBytes
                          : unkept + (element - Tiles::kKeptElements) / 8 * Tiles::kEightBytes,
                      from + element, is_there && element < lanes);
      }
    }
  }

  __device__ __forceinline__ void take_queries(const DecodeRows<Tiles>& rows) {
    const uint32_t panels = at_.values(turn_.after(2).stage());
    fetch_queries(rows, panels);
    copy_async_commit();
    copy_async_wait<0>();
    publish_shared_writes();
    named_barrier_sync(Tiles::kSoftmaxBarrier, kWarpgroupThreads);
#pragma unroll
    for (int step = 0; step < Tiles::kKeptSteps; ++step) {
      load_matrix_x4(queries_[step],
                     at_.matrices_at(panels + step / 4 * Tiles::kPanelBytes, step % 4));
    }
  }

  /// Starts scores = Q K^T of a tile once it is there. Afterwards the elements behind V have been
  /// read, and tensor cores are at work for a while.
  __device__ __forceinline__ void start_scores(Scores& scores) const {
    auto& sums = reinterpret_cast<Sums&>(scores);
    const uint64_t values = values_of(turn_.tile.stage()),
                   last_panel = matrix_descriptor(at_.begin + Tiles::kLastPanel, 16),
                   queries = plain_descriptor(at_.begin + Tiles::kQueries) |
                             uint64_t{Tiles::kEightBytes >> 4} << 16;
    set_to_zero(scores);
    mbarrier_wait(at_.last_loaded(), turn_.last_panel.parity());
    mbarrier_wait(at_.loaded(turn_.tile.stage()), turn_.tile.parity());
    pin(sums);
    wgmma_fence();
#pragma unroll
    for (int step = Tiles::kKeptSteps; step < Tiles::kQk / 16; ++step) {
      const bool is_last = step / 4 == Tiles::kValuePanels;
      wgmma_ss<T>(sums, further(queries, (step - Tiles::kKeptSteps) * 2 * Tiles::kEightBytes),
                  further(is_last ? last_panel : values,
                          head_dim_step<Tiles::kWalkedRows>(is_last ? step % 4 : step)),
                  1);
    }
    wgmma_commit();
    multiply_kept(scores, 0, kEarlySteps);
    wgmma_commit();
    wgmma_wait<1>();
  }

  __device__ __forceinline__ void start_other_scores(Scores& scores) const {
    multiply_kept(scores, kEarlySteps, Tiles::kKeptSteps);
    wgmma_commit();
  }
  __device__ __forceinline__ void end_scores(Scores& scores) const {
    wgmma_wait<0>();
    pin(reinterpret_cast<Sums&>(scores));
  }

  __device__ __forceinline__ uint64_t values_of(int buffer) const {
    return matrix_descriptor(at_.values(buffer), 16);
  }
  __device__ __forceinline__ void multiply_kept(Scores& scores, int first, int end) const {
    const uint64_t values = values_of(turn_.tile.stage());
#pragma unroll
    for (int step = first; step < end; ++step) {
      wgmma_rs_lanes<T>(reinterpret_cast<Sums&>(scores), queries_[step],
                        further(values, head_dim_step<Tiles::kWalkedRows>(step)));
    }
  }

  /// Scores become weights relative to the largest logits so far.
  __device__ __forceinline__ void weigh(const WorkItem& item, Scores& scores) {
    logits_.apply(scores);
    const IntPair set = load_shared_int_pair(at_.walked(turn_.tile.stage()) + 8);
    if (set.y != 0) hide(rows_of(item), scores, set.x);
    float tops[2], factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) tops[r] = Running::largest_score(scores, r);
    running_.make_weights(scores, logits_.unit_log2, tops, running_.largest, factors);
  }

  /// Replaces the scores of invisible pairs, whatever they are, without arithmetic on them.
  __device__ __forceinline__ void hide(const DecodeRows<Tiles>& rows, Scores& scores,
                                       int32_t range_set) const {
    const IntPair keys = load_shared_int_pair(at_.walked(turn_.tile.stage()));
    const KeyRange* ranges = launch_.query_tiles.ranges + int64_t{range_set} * launch_.shape.q_rows;
    const int32_t first_key = keys.x + at_.thread() % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = at_.tile_row(r);
      const KeyRange seen = row < rows.num_rows() ? ranges[rows.query_of(row)] : KeyRange{};
      hide_row(scores, r, seen, first_key, keys.y);
    }
  }

  /// Writes the largest logits so far and a tile's weights, rounded to T, to shared memory.
  __device__ __forceinline__ void store_weights(const Scores& weights) const {
    // The tile that had this buffer of weights is the one before the last one.
    const auto before = turn_.after(Tiles::kBuffers - 2);
    mbarrier_wait(at_.added(before.stage()), before.parity() ^ 1);
    if (at_.thread() % 4 == 0)
      store_shared_pair(at_.tops(turn_.weights.stage()),
                        {running_.largest[0], running_.largest[1]});
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&four)[4] = weights[0][step * 2 + i / 2];
        words[i] = pack<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
      }
      store_matrices_x4(at_.matrices_at(at_.weights(turn_.weights.stage()), step), words);
    }
  }

  /// Tells the value warpgroups that they are there.
  __device__ __forceinline__ void tell(int weights) const {
    publish_shared_writes();
    mbarrier_arrive(at_.told(weights));
  }

  const LatentParams& params_;
  const ForwardLaunch& launch_;
  LatentPlaces<Tiles> at_;
  Logits<Tiles::kIsCapped> logits_;
  LatentTurn<Tiles> turn_;
  uint32_t queries_[Tiles::kKeptSteps][4];
  Running running_;
};

/// A value warpgroup.
template <class Tiles>
class LatentValues {
 public:
  /// half: which of the elements of V.
  __device__ LatentValues(const LatentParams& params, const LatentPlaces<Tiles>& at, int half)
      : params_(params), at_(at), half_(half) {}

  /// draw: of for_each_work_item.
  template <class Draw>
  __device__ __forceinline__ void run(const WorkItem& item, const Draw& draw) {
    const DecodeRows<Tiles> rows(params_.decode, at_.memory(), item);
    const int32_t num_tiles = rows.tile().num_tiles;
    LatentLoader<Tiles> loader(params_, at_, rows.tile());
    const bool loads = threadIdx.x == 0;
    if (loads) load_first(loader, num_tiles);
    __syncwarp();
    running_.clear();
#pragma unroll 1
    for (int32_t i = 0; i < num_tiles; ++i) {
      move_to_told();
      // What is told comes after the next tile's elements behind V have been read.
      if (loads && i + 2 < num_tiles) loader.load_last_panel(turn_.after(2).stage());
      __syncwarp();
      mbarrier_wait(at_.go(turn_.weights.stage()), turn_.weights.parity());
      mbarrier_wait(at_.loaded(turn_.tile.stage()), turn_.tile.parity());
      start_values();
      end_values();
      mbarrier_arrive(at_.added(turn_.tile.stage()));
      if (loads && i + Tiles::kBuffers < num_tiles) {
        mbarrier_wait(at_.added(turn_.tile.stage()), turn_.tile.parity());
        loader.load_values(turn_.tile.stage());
      }
      __syncwarp();
      turn_.advance();
    }
    draw();
    mbarrier_arrive(at_.all());
    mbarrier_wait(at_.all(), 0);
    place_sums(rows);
    mbarrier_arrive(at_.all());
    mbarrier_wait(at_.all(), 1);
    rows.store();
    publish_shared_writes();  // the memory is loaded again
  }

 private:
  using T = typename Tiles::T;
  static constexpr int kElements = Tiles::kV / Tiles::kValueWarpgroups;
  static constexpr int kPanels = Tiles::kValuePanels / Tiles::kValueWarpgroups;
  using Running = RunningRows<T, 1, kElements>;
  using Sums = float[kElements / 2];
  __device__ __forceinline__ Sums& sums() { return reinterpret_cast<Sums&>(running_.out); }

  __device__ __forceinline__ void load_first(LatentLoader<Tiles>& loader, int32_t num_tiles) {
    if (num_tiles > 0) {
      loader.load_values(turn_.tile.stage());
      loader.load_last_panel(turn_.tile.stage());
    }
    loader.load_values(turn_.after(1).stage());
    // The queries, which lie in the third buffer, and the first tile's elements behind V are read.
    mbarrier_wait(at_.begun(), item_.parity());
    item_.advance();
    if (num_tiles > 1) loader.load_last_panel(turn_.after(1).stage());
    loader.load_values(turn_.after(2).stage());
  }

  /// Waits for a tile's weights, and brings the sums to their largest logits.
  __device__ __forceinline__ void move_to_told() {
    mbarrier_wait(at_.told(turn_.weights.stage()), turn_.weights.parity());
    const FloatPair pair = load_shared_pair(at_.tops(turn_.weights.stage()));
    const float told[2] = {pair.x, pair.y};
    float factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factors[r] = told[r] == -kInfinity ? 1.0f : exp2_approx(running_.largest[r] - told[r]);
      running_.largest[r] = told[r];
    }
    if (any_in_warp(factors[0] != 1.0f || factors[1] != 1.0f)) running_.scale_out(factors);
  }

  /// Starts adding a tile's weights times this warpgroup's elements of V.
  __device__ __forceinline__ void start_values() {
    const uint64_t weights = matrix_descriptor(at_.weights(turn_.weights.stage()), 16),
                   values = matrix_descriptor(
                       at_.values(turn_.tile.stage()) + half_ * kPanels * Tiles::kPanelBytes,
                       Tiles::kPanelBytes);
    pin(sums());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tiles::kWalkedRows / 16; ++step) {
      wgmma_ss_rows<T>(sums(), further(weights, head_dim_step<Tiles::kRows>(step)),
                       further(values, row_step(step)), 1);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void end_values() {
    wgmma_wait<0>();
    pin(sums());
  }

  /// Writes the sums of all rows to the shared memory.
  __device__ __forceinline__ void place_sums(const DecodeRows<Tiles>& rows) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* to = rows.sums_of(0, at_.tile_row(r)) + half_ * kElements + at_.thread() % 4 * 2;
#pragma unroll
      for (int j = 0; j < kElements / 8; ++j) {
        const float(&four)[4] = running_.out[0][j];
        store_pair(to + 8 * j, four[r * 2], four[r * 2 + 1]);
      }
    }
  }

  const LatentParams& params_;
  const LatentPlaces<Tiles>& at_;
  const int half_;
  LatentTurn<Tiles> turn_;
  NextStage<1> item_;
  Running running_;
};

template <class Tiles>
__global__ void __launch_bounds__(Tiles::kCtaThreads, 1)
    attend_latent_on_hopper(const __grid_constant__ LatentParams params) {
  const ForwardLaunch& launch = params.decode.launch;
  const DeviceTiles& tiles = launch.query_tiles;
  tell_begun(tiles.begun);
  let_next_kernel_begin();
  const LatentPlaces<Tiles> at;
  if (threadIdx.x == 0) {
    prefetch_map(&params.keys);
    prefetch_map(&params.values);
    at.init_barriers();
  }
  __syncthreads();
  const auto for_items = [&](const auto& run) {
    for_each_work_item(
        launch.counter, tiles.num_work,
        reinterpret_cast<int32_t*>(dynamic_shared() + Tiles::kFetched),
        [&](int32_t work, const auto& draw) { run(tiles.work[work], draw); },
        [&](int turn) {
          mbarrier_arrive(at.ended());
          mbarrier_wait(at.ended(), turn);
        });
  };
  const int warpgroup = shared_by_warp(threadIdx.x / kWarpgroupThreads);
  if (warpgroup < Tiles::kValueWarpgroups) {
    yield_registers<Tiles::kValueRegisters>();
    LatentValues<Tiles> values(params, at, warpgroup);
    for_items([&](const WorkItem& item, const auto& draw) { values.run(item, draw); });
  } else {
    claim_registers<Tiles::kSoftmaxRegisters>();
    LatentSoftmax<Tiles> softmax(params, at);
    for_items([&](const WorkItem& item, const auto&) { softmax.run(item); });
  }
}

using AnyTiles = LatentTiles<Bf16, false>;

template <class T>
void launch_latent(const DecodeParams& decode, Stream stream) {
  const ForwardLaunch& given = decode.launch;
  const int32_t lanes = padded_lanes(given.shape.head_dim_qk);
  LatentParams params{decode, {}, {}};
  params.has_whole_panels = lanes % kBoxLanes == 0;
  make_row_map(params.keys, given.k, given.shape.dtype, 1, lanes, {AnyTiles::kWalkedRows});
  if (params.has_whole_panels) {
    DeviceRows panels = given.k;
    panels.head_stride = kBoxLanes;
    make_row_map(params.values, panels, given.shape.dtype, lanes / kBoxLanes, kBoxLanes,
                 {.rows = AnyTiles::kWalkedRows, .heads_in_turn = AnyTiles::kValuePanels});
  }
  const auto launch = [&](auto tiles) {
    using Tiles = decltype(tiles);
    constexpr auto kKernel = attend_latent_on_hopper<Tiles>;
    const int32_t resident = resident_ctas(kKernel, Tiles::kCtaThreads, Tiles::kSharedBytes);
    launch_kernel(kKernel, std::min(resident, given.query_tiles.num_work), Tiles::kCtaThreads,
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
