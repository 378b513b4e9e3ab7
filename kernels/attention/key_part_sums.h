#pragma once

#include "kernels/attention/decode_rows.h"
#include "kernels/device/device_code.h"
#include "kernels/device/launch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

/// Adds up the sums of all parts of a tile's keys, and writes results: the second kernel of the
/// forwards of decode steps and of latent attention. A row a CTA, so that few rows of many parts
/// are work for many CTAs. Threads: `teams` times one for every four numbers; a team adds an equal
/// share of the parts, eight in flight, then the first team adds up those of all, always in the
/// order of the keys. Memory-bound: every part is read once.
namespace cpscope::kernels::device {

inline constexpr int kMostTeamThreads = 512;  // of a CTA

struct KeyPartSums {
  DecodeParams decode;
  int32_t num_teams;
};

/// T: the dtype of results.
template <class T, int kV>
__global__ void __launch_bounds__(kMostTeamThreads)
    add_key_parts(const __grid_constant__ KeyPartSums given) {
  const DecodeParams& params = given.decode;
  constexpr int kFours = kV / 4;
  constexpr int kLanes = kSumLanesOf<kV>;
  constexpr int kAhead = 8;  // parts that are read before they are added
  const ForwardLaunch& launch = params.launch;
  const int32_t rows_of_tile = params.tile_rows * params.heads;
  const int32_t num_groups = launch.shape.num_heads / params.heads;
  const auto cta = static_cast<int32_t>(blockIdx.x);
  const int32_t row = cta % rows_of_tile, group = cta / rows_of_tile % num_groups;
  const int32_t t = launch.query_tiles.cut_tiles[cta / rows_of_tile / num_groups];
  const OwnedTile tile = launch.query_tiles.tiles[t];
  if (row >= (tile.end - tile.begin) * params.heads) return;
  const KeyPart part = launch.query_tiles.parts[t];

  const int32_t num_teams = given.num_teams;
  const auto team = static_cast<int32_t>(threadIdx.x) / kFours,
             lane = static_cast<int32_t>(threadIdx.x) % kFours * 4;
  const int32_t share = (part.count + num_teams - 1) / num_teams;
  const int32_t first = team * share;
  const int32_t last = first + share < part.count ? first + share : part.count;
  const auto sums_of_part = [&](int32_t index) {
    return part_row(params, kLanes, part.first_slot + index, group, row);
  };

  RowSum whole;
  float sums[4] = {};
  for (int32_t begin = first; begin < last; begin += kAhead) {
    RowSum notes[kAhead];
    FourFloats fours[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= last) continue;
      const float* from = sums_of_part(begin + i);
      notes[i] = {from[kV], from[kV + 1]};
      fours[i] = *reinterpret_cast<const FourFloats*>(from + lane);
    }
    float largest = whole.largest;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i < last) largest = fmaxf(largest, notes[i].largest);
    const float kept = rescale(whole.largest, largest);
    whole = {largest, whole.sum * kept};
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[e] *= kept;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= last) continue;
      const float factor = rescale(notes[i].largest, largest);
      whole.sum = fmaf(notes[i].sum, factor, whole.sum);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[e] = fmaf(fours[i].values[e], factor, sums[e]);
    }
  }

  // fp32 [team][kV sums, the largest logit, the sum], and at last the row's factors.
  auto* const shared = reinterpret_cast<float*>(dynamic_shared());
  float* const own = shared + team * kLanes;
#pragma unroll
  for (int e = 0; e < 4; ++e) own[lane + e] = sums[e];
  if (lane == 0) {
    own[kV] = whole.largest;
    own[kV + 1] = whole.sum;
  }
  __syncthreads();
  auto* const end = reinterpret_cast<RowEnd*>(shared + num_teams * kLanes);
  const int32_t query = tile.begin + row / params.heads,
                head = group * params.heads + row % params.heads;
  if (team == 0) {
    for (int32_t i = 1; i < num_teams; ++i) {
      const float* other = shared + i * kLanes;
      const RowSum joined = join(whole, {other[kV], other[kV + 1]});
      const float factor = rescale(whole.largest, joined.largest),
                  added = rescale(other[kV], joined.largest);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[e] = fmaf(other[lane + e], added, sums[e] * factor);
      whole = joined;
    }
    if (lane == 0) *end = finish_row(params, query, head, whole);
  }
  __syncthreads();
  if (team == 0) store_row_four<T>(params, query, head, lane, sums, *end);
}

/// After the kernel that has written the parts, if tiles were cut.
template <class Tiles>
void launch_key_part_sums(const DecodeParams& params, Stream stream) {
  const DeviceTiles& tiles = params.launch.query_tiles;
  if (tiles.num_cut_tiles == 0) return;
  constexpr int32_t kFours = Tiles::kV / 4;
  const int32_t wanted = (tiles.most_parts + kPartsOfTeam - 1) / kPartsOfTeam;
  const int32_t teams = std::clamp(wanted, std::max(1, 32 / kFours), kMostTeamThreads / kFours);
  const int32_t groups = params.launch.shape.num_heads / params.heads;
  launch_kernel(add_key_parts<typename Tiles::T, Tiles::kV>,
                Grid(tiles.num_cut_tiles * groups * params.tile_rows * params.heads),
                teams * kFours,
                teams * Tiles::kSumLanes * int32_t{sizeof(float)} + int32_t{sizeof(RowEnd)}, stream,
                KeyPartSums{params, teams});
}

}  // namespace cpscope::kernels::device
