#include "kernels/attention/attention_decode.h"
#include "kernels/attention/decode_rows.h"
#include "kernels/attention/forward_tiles.h"
#include "kernels/attention/fp8_numbers.h"
#include "kernels/attention/gradient_dims.h"
#include "kernels/attention/gradient_tiles.h"
#include "kernels/attention/key_part_sums.h"
#include "kernels/attention/packed_heads.h"
#include "kernels/device/fp8_values.h"
#include "kernels/device/launch.h"
#include "kernels/device/work_items.h"
#include "sim/base/check.h"
#include "sim/plan/decode_items.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

// Forward of one compute item whose query rows see many keys that few other rows see.
//
// Grid: as many CTAs as fit the device at once; each fetches work items (part of a query tile's
// keys x query heads of a KV head) with a counter until none is left. 128 threads (64 for head_dim
// 256): all warps hold the tile's 16 or 32 rows, query rows times heads, as operands in registers.
// Each warp streams its own 16 keys (32 at head_dim 64) of every tile through three buffers (two at
// 192) of its own by asynchronous copies, so that no warp waits for another one before the end of
// the item; then the warps' sums are merged. Where a tile's keys are cut into parts, their sums go
// to memory, and a second kernel adds them up (key_part_sums.h).
//
// Shared memory: 96 KiB (head_dim up to 128, 256), 80 KiB (192 / 128), so that two CTAs fit an SM
// of sm_90. Registers and spills: tests/kernels/device/ptxas_limits.txt. Numbers: products in T,
// sums in fp32, softmax in base 2 and fp32, weights rounded to T before the product with V.
// Accuracy: as attention_forward. Sources: FlashAttention-2 (arXiv:2307.08691), alg. 1; parts of
// the keys: Flash-Decoding (Dao et al., 2023); rows of several heads in a tile: FlashAttention's
// pack_gqa. Streams of single warps are our own.
//
// fp8, one scale a tensor: K and V are read as E4M3 codes, 128 bytes a row of a head, six buffers.
// Tensor cores multiply fp16 numbers of the same values, which is exact; weights are cast to E4M3
// as attention_fp8.cu does, relative to the largest logit of the warp's own keys. A thread's four
// bytes of a row are neighbours, so head_dim is summed in another order for both operands, and sums
// of P V have even elements before odd ones until they are stored.

namespace cpscope::kernels {
namespace {

using namespace device;

constexpr int kCtasPerSm = 2;

/// One CTA's work item.
template <class Instance, int kStackCount>
class DecodeItem {
 public:
  using Tiles = DecodeTiles<Instance, kStackCount>;
  using T = typename Tiles::T;
  using Operand = typename Tiles::Operand;
  using Streamed = typename Tiles::Streamed;
  static constexpr int kStacks = Tiles::kStacks;
  static constexpr int kPitch = Tiles::kElementBytes;  // bytes of an element
  using Running = RunningRows<Operand, kStacks, Tiles::kV>;

  __device__ __forceinline__ DecodeItem(const DecodeParams& params, uint8_t* shared,
                                        const WorkItem& item)
      : params_(params),
        launch_(params.launch),
        rows_(params, shared, item),
        logits_(launch_.shape) {
    const AttentionShape& shape = launch_.shape;
    const int32_t kv_head =
        (shape.first_head + rows_.first_head()) / shape.group - shape.first_kv_head;
    if constexpr (Tiles::kHasCodes) {
      keys_ = codes_of_head(params.k_codes, kv_head, shape.head_dim_qk);
      values_ = codes_of_head(params.v_codes, kv_head, shape.head_dim_v);
      logits_.unit_log2 *= params.logit_factor;
    } else {
      keys_ = rows_of_head<T>(launch_.k, kv_head, shape.head_dim_qk);
      values_ = rows_of_head<T>(launch_.v, kv_head, shape.head_dim_v);
    }
    stream_ = shared_address(shared) + Tiles::kStreams + warp() * Tiles::kStreamBytes;
    running_.clear();
  }

  /// All threads of the CTA call it together. draw: of for_each_work_item.
  template <class Draw>
  __device__ __forceinline__ void run(const Draw& draw) {
    stream_keys();
    draw();
    // All warps are done with their streams, whose memory is used again.
    copy_async_wait<0>();
    __syncthreads();
    place_sums();
    __syncthreads();
    rows_.finish();
  }

 private:
  static __device__ __forceinline__ int32_t thread() { return static_cast<int32_t>(threadIdx.x); }
  static __device__ __forceinline__ int32_t warp() { return thread() / 32; }

  /// Row of the tile for row r of this thread lane. The heads of a query row are neighbours.
  static __device__ __forceinline__ int32_t tile_row(int r) {
    return r / 2 * 16 + r % 2 * 8 + thread() % 32 / 4;
  }

  /// Whole groups of 16 bytes: codes past the head's are zeros.
  static __device__ __forceinline__ HeadRows<Streamed> codes_of_head(const DeviceRows& codes,
                                                                     int32_t head,
                                                                     int32_t head_dim) {
    return {static_cast<const Streamed*>(codes.data) + head * codes.head_stride, codes.row_stride,
            (head_dim + 15) / 16 * 16};
  }

  __device__ __forceinline__ void load_queries() {
    const int32_t lanes = (launch_.shape.head_dim_qk + 7) / 8 * 8;
#pragma unroll
    for (int r = 0; r < Running::kRows; ++r) {
      const int32_t row = tile_row(r);
      const bool is_row = row < rows_.num_rows();
      const T* from = static_cast<const T*>(launch_.q.data) +
                      (is_row ? rows_.query_of(row) * launch_.q.row_stride +
                                    rows_.head_of(row) * launch_.q.head_stride
                              : int64_t{0});
#pragma unroll
      for (int i = 0; i < Tiles::kQk / 8; ++i) {
        const int32_t lane =
            Tiles::kHasCodes ? i / 2 * 16 + thread() % 4 * 4 + i % 2 * 2 : i * 8 + thread() % 4 * 2;
        uint32_t pair = 0;
        if (is_row && lane < lanes) pair = *reinterpret_cast<const uint32_t*>(from + lane);
        if constexpr (Tiles::kHasCodes) pair = halves_of_values(pair);
        queries_[r / 2][i / 2][i % 2 * 2 + r % 2] = pair;
      }
    }
  }

  /// Two bf16 numbers of E4M3 values as fp16 numbers; exact.
  static __device__ __forceinline__ uint32_t halves_of_values(uint32_t pair) {
    return pack<Fp16>(from_bits(pair << 16), from_bits(pair & 0xffff0000u));
  }

  /// The first keys are requested before the queries, which wait for more than one address.
  __device__ __forceinline__ void stream_keys() {
    const TileRun* runs = launch_.query_tiles.runs + rows_.tile().first_run;
    TileWalk<Tiles::kWalkedRows> ahead(runs, rows_.tile().num_runs, 0, 1),
        walk(runs, rows_.tile().num_runs, 0, 1);
    WalkedTile walked, fetched;
#pragma unroll
    for (int buffer = 0; buffer < Tiles::kBuffers - 1; ++buffer) {
      if (ahead.next(fetched)) fetch(fetched, buffer);
      copy_async_commit();
    }
    load_queries();
    for (int buffer = 0, free = Tiles::kBuffers - 1; walk.next(walked);) {
      copy_async_wait<Tiles::kBuffers - 2>();
      // The keys have arrived for all lanes, and all of them are done with the free buffer.
      __syncwarp();
      if (ahead.next(fetched)) fetch(fetched, free);
      copy_async_commit();
      if (walked.begin + warp() * Tiles::kWarpKeys < walked.end) visit(walked, buffer);
      free = buffer;
      buffer = buffer + 1 == Tiles::kBuffers ? 0 : buffer + 1;
    }
  }

  /// Starts copying this warp's rows of a tile: eight lanes copy 128 bytes of a row.
  template <int kLanes>
  __device__ __forceinline__ void copy_warp_rows(uint32_t to, const HeadRows<Streamed>& from,
                                                 int32_t begin, int32_t end) const {
    constexpr int kGroup = 16 / kPitch, kBlock = 128 / kPitch;  // elements
    const int32_t row = thread() % 32 / 8, group = thread() % 8;
    const Streamed* source = from.first + (begin + row) * from.stride + group * kGroup;
#pragma unroll
    for (int i = 0; i < Tiles::kWarpKeys / 4; ++i) {
      const int32_t to_row = row + 4 * i;
      const uint32_t at = to + to_row * kLanes * kPitch + (group ^ (to_row & 7)) * 16;
      const bool is_row = begin + to_row < end;
#pragma unroll
      for (int block = 0; block < kLanes / kBlock; ++block) {
        copy_async_16(at + block * 128, source + block * kBlock,
                      is_row && block * kBlock + group * kGroup < from.lanes);
      }
      source += 4 * from.stride;
    }
  }

  __device__ __forceinline__ void fetch(const WalkedTile& walked, int buffer) const {
    const int32_t begin = walked.begin + warp() * Tiles::kWarpKeys;
    if (begin >= walked.end) return;
    const uint32_t to = stream_ + buffer * Tiles::kBufferBytes;
    copy_warp_rows<Tiles::kQk>(to, keys_, begin, walked.end);
    copy_warp_rows<Tiles::kV>(to + Tiles::kKeyBytes, values_, begin, walked.end);
  }

  __device__ __forceinline__ void visit(const WalkedTile& walked, int buffer) {
    const uint32_t from = stream_ + buffer * Tiles::kBufferBytes;
    float scores[kStacks][Tiles::kWarpKeys / 8][4];
    set_to_zero(scores);
    if constexpr (Tiles::kHasCodes)
      multiply_codes(scores, from);
    else
      multiply_keys(scores, from);
    logits_.apply(scores);
    if (walked.is_masked) hide(scores, walked);
    running_.weigh(scores, logits_.unit_log2);
    if constexpr (Tiles::kHasCodes)
      add_codes(scores, from + Tiles::kKeyBytes);
    else
      running_.add_values(scores, along_rows<Tiles::kV>(from + Tiles::kKeyBytes));
  }

  using Scores = float[kStacks][Tiles::kWarpKeys / 8][4];

  __device__ __forceinline__ void multiply_keys(Scores& scores, uint32_t tile) const {
    const auto keys = along_lanes<Tiles::kQk>(tile);
#pragma unroll
    for (int step = 0; step < Tiles::kQk / 16; ++step) {
#pragma unroll
      for (int i = 0; i < Tiles::kWarpKeys / 16; ++i) {
        uint32_t b[4];
        load_matrix_x4(b, keys.at(16 * i, step));
#pragma unroll
        for (int stack = 0; stack < kStacks; ++stack) {
          multiply_add<T>(scores[stack][2 * i], queries_[stack][step], b[0], b[1]);
          multiply_add<T>(scores[stack][2 * i + 1], queries_[stack][step], b[2], b[3]);
        }
      }
    }
  }

  /// The same for codes: two of them are loaded as one number of 16 bits, so a loaded matrix has 16
  /// elements of eight keys, of which a thread has four neighbours.
  __device__ __forceinline__ void multiply_codes(Scores& scores, uint32_t tile) const {
    const auto keys = along_lanes<Tiles::kQk / 2>(tile);
#pragma unroll
    for (int step = 0; step < Tiles::kQk / 32; ++step) {
#pragma unroll
      for (int i = 0; i < Tiles::kWarpKeys / 16; ++i) {
        uint32_t codes[4];
        load_matrix_x4(codes, keys.at(16 * i, step));
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const uint32_t b0 = halves_of_codes(codes[m]), b1 = halves_of_codes(codes[m] >> 16);
#pragma unroll
          for (int stack = 0; stack < kStacks; ++stack)
            multiply_add<Fp16>(scores[stack][2 * i + m / 2], queries_[stack][2 * step + m % 2], b0,
                               b1);
        }
      }
    }
  }

  /// Adds weights, cast to E4M3, times the rows of V: a thread loads two neighbouring elements of
  /// two keys, and multiplies the even elements and the odd ones.
  __device__ __forceinline__ void add_codes(const Scores& weights, uint32_t tile) {
    const auto values = along_rows<Tiles::kV / 2>(tile);
    const float factor = params_.weight_factor;
#pragma unroll
    for (int step = 0; step < Tiles::kWarpKeys / 16; ++step) {
      uint32_t a[kStacks][4];
#pragma unroll
      for (int i = 0; i < 4 * kStacks; ++i) {
        const float(&four)[4] = weights[i / 4][2 * step + i % 4 / 2];
        a[i / 4][i % 4] = pack_e4m3_halves(four[i % 2 * 2] * factor, four[i % 2 * 2 + 1] * factor);
      }
#pragma unroll
      for (int i = 0; i < Tiles::kV / 32; ++i) {
        uint32_t codes[4];
        load_matrix_x4_transposed(codes, values.at(16 * step, i));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t first = even_and_odd(codes[2 * half]),
                         second = even_and_odd(codes[2 * half + 1]);
          const uint32_t even[2] = {halves_of_codes(first), halves_of_codes(second)},
                         odd[2] = {halves_of_codes(first >> 16), halves_of_codes(second >> 16)};
#pragma unroll
          for (int stack = 0; stack < kStacks; ++stack) {
            float(&out)[Tiles::kV / 8][4] = running_.out[stack];
            multiply_add<Fp16>(out[4 * i + 2 * half], a[stack], even[0], even[1]);
            multiply_add<Fp16>(out[4 * i + 2 * half + 1], a[stack], odd[0], odd[1]);
          }
        }
      }
    }
  }

  /// Bytes 0 and 2 as the lower half, 1 and 3 as the upper one.
  static __device__ __forceinline__ uint32_t even_and_odd(uint32_t bytes) {
    return (bytes & 0xff0000ffu) | (bytes >> 8 & 0xff00u) | (bytes & 0xff00u) << 8;
  }

  /// Replaces the scores of invisible pairs, whatever they are, without arithmetic on them.
  __device__ __forceinline__ void hide(float (&scores)[kStacks][Tiles::kWarpKeys / 8][4],
                                       const WalkedTile& walked) const {
    const KeyRange* ranges =
        launch_.query_tiles.ranges + int64_t{walked.range_set} * launch_.shape.q_rows;
    const int32_t first_key = walked.begin + warp() * Tiles::kWarpKeys + thread() % 4 * 2;
#pragma unroll
    for (int r = 0; r < Running::kRows; ++r) {
      const int32_t row = tile_row(r);
      const KeyRange seen = row < rows_.num_rows() ? ranges[rows_.query_of(row)] : KeyRange{};
      hide_row(scores, r, seen, first_key, walked.end);
    }
  }

  /// Writes this warp's sums to the shared memory.
  __device__ __forceinline__ void place_sums() const {
#pragma unroll
    for (int r = 0; r < Running::kRows; ++r) {
      const float sum = running_.whole_sum(r);
      const int32_t row = tile_row(r);
      if (row >= rows_.num_rows()) continue;
      if (thread() % 4 == 0) rows_.notes_of(warp())[row] = {running_.largest[r], sum};
      float* const to = rows_.sums_of(warp(), row);
      const float(&sums)[Tiles::kV / 8][4] = running_.out[r / 2];
      const int32_t pair = thread() % 4, own = r % 2 * 2;
#pragma unroll
      for (int j = 0; j < Tiles::kV / 8; j += Tiles::kHasCodes ? 2 : 1) {
        if constexpr (Tiles::kHasCodes) {
          // Even elements, then odd ones, of 16.
          store_pair(to + 8 * j + 4 * pair, sums[j][own], sums[j + 1][own]);
          store_pair(to + 8 * j + 4 * pair + 2, sums[j][own + 1], sums[j + 1][own + 1]);
        } else {
          store_pair(to + 8 * j + 2 * pair, sums[j][own], sums[j][own + 1]);
        }
      }
    }
  }

  const DecodeParams& params_;
  const ForwardLaunch& launch_;
  DecodeRows<Tiles> rows_;
  Logits<Instance::kIsCapped> logits_;
  HeadRows<Streamed> keys_, values_;
  uint32_t stream_ = 0;  // address of this warp's buffers
  uint32_t queries_[kStacks][Tiles::kQk / 16][4];
  Running running_;
};

template <class Instance, int kStackCount>
__global__ void __launch_bounds__(DecodeTiles<Instance, kStackCount>::kThreads, kCtasPerSm)
    attention_decode(const __grid_constant__ DecodeParams params) {
  const DeviceTiles& tiles = params.launch.query_tiles;
  tell_begun(tiles.begun);
  let_next_kernel_begin();
  auto* fetched = reinterpret_cast<int32_t*>(dynamic_shared());
  for_each_work_item(
      params.launch.counter, tiles.num_work, fetched, [&](int32_t work, const auto& draw) {
        DecodeItem<Instance, kStackCount>(params, dynamic_shared(), tiles.work[work]).run(draw);
      });
}

constexpr int32_t kRowsOfStack = 16;

/// Query heads of a tile of this many rows that has all query rows of a request; 0 if there are
/// none.
int32_t heads_of_tile(const AttentionShape& shape, int32_t rows) {
  return packed_heads(shape, rows / std::max(1, shape.slices.rows_together));
}

struct DecodeSizes {
  int32_t stacks = 1;
  int32_t heads = 1;
};

/// A second stack only where it holds more heads of the group.
DecodeSizes decode_sizes(const AttentionShape& shape) {
  const int32_t narrow = heads_of_tile(shape, kRowsOfStack);
  const int32_t wide = heads_of_tile(shape, most_decode_rows(shape.head_dim_qk, shape.head_dim_v));
  return wide > narrow ? DecodeSizes{2, wide} : DecodeSizes{1, narrow};
}

void set_fp8(const Fp8Numbers& fp8, DecodeParams& params) {
  params.launch.q = fp8.q;
  params.k_codes = fp8.k_codes;
  params.v_codes = fp8.v_codes;
  params.logit_factor = fp8.descale * fp8.descale;
  params.weight_factor = fp8.weights;
  params.value_factor = fp8.descale / fp8.weights;
  params.out_scale = fp8.out;
}

/// Calls visit with the kernel's tiles for a shape.
template <class Visit>
auto with_decode_tiles(const AttentionShape& shape, const Visit& visit) {
  const DecodeSizes sizes = decode_sizes(shape);
  const auto visit_instance = [&](auto instance) {
    using Instance = decltype(instance);
    if constexpr (Instance::kQk <= 128) {
      if (sizes.stacks == 2) return visit(instance, DecodeTiles<Instance, 2>{}, sizes.heads);
    }
    return visit(instance, DecodeTiles<Instance, 1>{}, sizes.heads);
  };
  if (shape.is_fp8) return visit_instance(GradientInstance<E4m3, kCodeLanes, kCodeLanes, false>{});
  return with_gradient_instance(shape, visit_instance);
}

}  // namespace

bool takes_decode_codes(const AttentionShape& shape) {
  return shape.is_fp8 && !shape.is_mx && shape.softcap == 0.0f &&
         std::max(shape.head_dim_qk, shape.head_dim_v) <= kCodeLanes;
}

bool is_decode(const AttentionShape& shape) {
  const int32_t rows = most_decode_rows(shape.head_dim_qk, shape.head_dim_v);
  const bool is_supported = (shape.dtype == Dtype::bf16 || shape.dtype == Dtype::fp16) &&
                            !shape.has_terms && !shape.is_latent &&
                            (!shape.is_fp8 || takes_decode_codes(shape));
  return is_supported && is_for_decode(shape.slices, shape.kv_rows, rows) &&
         heads_of_tile(shape, rows) > 0;
}

TileShape decode_tile(const AttentionShape& shape) {
  return with_decode_tiles(shape, [](auto /*instance*/, auto tiles, int32_t heads) {
    using Tiles = decltype(tiles);
    TileShape tile{Tiles::kRows / heads, Tiles::kWalkedRows};
    tile.heads = heads;
    tile.cuts_keys = true;
    tile.ctas_per_sm = 2;
    return tile;
  });
}

int64_t decode_part_bytes(const AttentionShape& shape, const TileList& list) {
  return with_decode_tiles(shape, [&](auto /*instance*/, auto tiles, int32_t /*heads*/) {
    return part_bytes(shape, list, decltype(tiles)::kSumLanes);
  });
}

void launch_decode_forward(const ForwardLaunch& launch, Stream stream) {
  if (launch.query_tiles.num_work == 0) return;
  CPSCOPE_CHECK(launch.query_tiles.arrivals.flags == nullptr,
                "the decode forward does not wait for pieces of its inputs",
                launch.query_tiles.arrivals.num_pieces, 0);
  with_decode_tiles(launch.shape, [&](auto instance, auto tiles, int32_t heads) {
    using Tiles = decltype(tiles);
    constexpr auto kKernel = attention_decode<decltype(instance), Tiles::kStacks>;
    DecodeParams params;
    params.launch = launch;
    params.heads = heads;
    params.tile_rows = Tiles::kRows / heads;
    if (Tiles::kHasCodes) set_fp8(*launch.fp8, params);
    const int32_t resident = resident_ctas(kKernel, Tiles::kThreads, Tiles::kSharedBytes);
    Grid grid(std::min(resident, launch.query_tiles.num_work));
    grid.per_sm = kCtasPerSm;
    launch_kernel(kKernel, grid, Tiles::kThreads, Tiles::kSharedBytes, stream, params);
    launch_key_part_sums<Tiles>(params, stream);
    return 0;
  });
}

}  // namespace cpscope::kernels
