#pragma once

#include "kernels/attention/decode_rows.h"
#include "kernels/device/device_code.h"
#include "kernels/device/launch.h"
#include "kernels/tiles/work_order.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

/// Adds up the sums of all parts of a tile's keys, and writes results: the second kernel of the
/// forwards of decode steps and of latent attention. A row a CTA, or a slice of its elements where
/// rows are too few for all multiprocessors. Threads: `num_teams` times one for every four
/// elements; a team adds an equal share of the parts, eight in flight, then the first team adds up
/// those of all, always in the order of the keys. Memory-bound: every part is read once.
namespace cpscope::kernels::device {

inline constexpr int kMostTeamThreads = 512;  // of a CTA

struct KeyPartSums {
  DecodeParams decode;
  int32_t num_teams;
  int32_t num_slices;  // of a row's elements; 1 if results are merged, as all slices would read lse
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
  const int32_t rows_of_tile = launch.query_tiles.most_cut_rows * params.heads;
  const int32_t num_groups = launch.shape.num_heads / params.heads;
  const int32_t slice = static_cast<int32_t>(blockIdx.x) % given.num_slices,
                cta = static_cast<int32_t>(blockIdx.x) / given.num_slices;
  const int32_t row = cta % rows_of_tile, group = cta / rows_of_tile % num_groups;
  const CutTile tile = launch.query_tiles.cut_tiles[cta / rows_of_tile / num_groups];
  wait_for_kernel_before();
  if (row >= (tile.end - tile.begin) * params.heads) return;

  const int32_t num_teams = given.num_teams;
  const int32_t fours = kFours / given.num_slices;  // threads of a team
  const auto team = static_cast<int32_t>(threadIdx.x) / fours,
             own_lane = static_cast<int32_t>(threadIdx.x) % fours * 4;
  const int32_t lane = slice * fours * 4 + own_lane;
  const int32_t share = (tile.count + num_teams - 1) / num_teams;
  const int32_t first = team * share;
  const int32_t last = first + share < tile.count ? first + share : tile.count;
  const auto sums_of_part = [&](int32_t index) {
    return part_row(params, kLanes, tile.first_slot + index, group, row);
  };

  RowSum whole;
  float sums[4] = {};
  for (int32_t begin = first; begin < last; begin += kAhead) {
    RowSum notes[kAhead];
    FourFloats values[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= last) continue;
      const float* from = sums_of_part(begin + i);
      notes[i] = {from[kV], from[kV + 1]};
      values[i] = *reinterpret_cast<const FourFloats*>(from + lane);
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
      for (int e = 0; e < 4; ++e) sums[e] = fmaf(values[i].values[e], factor, sums[e]);
    }
  }

  // fp32 [team][sums of the slice, the largest logit, the sum], and at last the row's factors.
  auto* const shared = reinterpret_cast<float*>(dynamic_shared());
  const int32_t slice_lanes = fours * 4, lanes_of_team = slice_lanes + 4;
  float* const own = shared + team * lanes_of_team;
#pragma unroll
  for (int e = 0; e < 4; ++e) own[own_lane + e] = sums[e];
  if (own_lane == 0) {
    own[slice_lanes] = whole.largest;
    own[slice_lanes + 1] = whole.sum;
  }
  __syncthreads();
  auto* const end = reinterpret_cast<RowEnd*>(shared + num_teams * lanes_of_team);
  const int32_t query = tile.begin + row / params.heads,
                head = group * params.heads + row % params.heads;
  if (team == 0) {
    for (int32_t i = 1; i < num_teams; ++i) {
      const float* other = shared + i * lanes_of_team;
      const RowSum note{other[slice_lanes], other[slice_lanes + 1]}, joined = join(whole, note);
      const float factor = rescale(whole.largest, joined.largest),
                  added = rescale(note.largest, joined.largest);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[e] = fmaf(other[own_lane + e], added, sums[e] * factor);
      whole = joined;
    }
    if (own_lane == 0) {
      float lse;
      *end = slice == 0 ? finish_row(params, query, head, whole)
                        : end_row(params, query, head, whole, lse);
    }
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
  const int32_t groups = params.launch.shape.num_heads / params.heads;
  const int32_t rows = tiles.num_cut_tiles * groups * tiles.most_cut_rows * params.heads;
  int32_t slices = 1;
  while (!params.launch.merges && slices < kFours / 32 && int64_t{rows} * slices < 2 * kHopperCtas)
    slices *= 2;
  const int32_t fours = kFours / slices;
  const int32_t wanted = (tiles.most_parts + kPartsOfTeam - 1) / kPartsOfTeam;
  const int32_t teams = std::clamp(wanted, std::max(1, 32 / fours), kMostTeamThreads / fours);
  Grid grid(rows * slices);
  grid.begins_early = true;
  launch_kernel(add_key_parts<typename Tiles::T, Tiles::kV>, grid, teams * fours,
                teams * (fours * 4 + 4) * int32_t{sizeof(float)} + int32_t{sizeof(RowEnd)}, stream,
                KeyPartSums{params, teams, slices});
}

}  // namespace cpscope::kernels::device
