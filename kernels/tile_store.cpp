#include "kernels/tile_store.h"

#include "kernels/scalar_types.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

template <class T>
int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T));
}

/// What the tiles worked on together walk should stay in the L2 cache of a data-centre GPU (50 MB
/// of an H100, whose halves may hold the same), beside what is read and written once.
WorkHeads work_heads(const Attention& attention, int32_t heads, TileShape shape, TileOwner owner) {
  const int64_t row = attention.head_dim_qk + attention.head_dim_v;  // K and V, or Q and dO
  const auto group = static_cast<int32_t>(attention.heads / attention.kv_heads);
  WorkHeads result;
  result.num_heads = heads;
  result.heads_walked = owner == TileOwner::queries ? 1 : group;
  result.heads_sharing = owner == TileOwner::queries ? group / shape.heads : 1;
  result.cached_rows = 8'000'000 / (2 * row);
  if (shape.by_blocks)  // Q and dO with sums of dq, to which the tiles of a chain come back
    result.cached_rows = 20'000'000 / (2 * row + 4 * attention.head_dim_qk);
  return result;
}

}  // namespace

TileStore::Key TileStore::key_of(const ComputeItem& item, TileOwner owner, TileShape shape) const {
  const int32_t heads = owner == TileOwner::queries
                            ? item.heads.size() / shape.heads
                            : kv_heads_of(plan_.scenario.attention, item.heads).size();
  return {item.first_slice,
          item.num_slices,
          plan_.rows(item.q_tokens),
          plan_.rows(item.kv_tokens),
          heads,
          shape,
          owner};
}

void TileStore::plan(const ComputeItem& item, TileOwner owner, TileShape shape,
                     int32_t most_heads) {
  const Key key = key_of(item, owner, shape);
  if (entries_.contains(key)) return;
  Entry& entry = entries_[key];
  WorkHeads heads = work_heads(plan_.scenario.attention, key.heads, shape, owner);
  heads.most_at_once = most_heads;
  entry.list = make_tile_list(plan_.slices_of(item), key.q_rows, key.kv_rows, heads, shape, owner);
  total_bytes_ += bytes_of(entry.list.ranges) + bytes_of(entry.list.tiles) +
                  bytes_of(entry.list.runs) + bytes_of(entry.list.work) +
                  bytes_of(entry.list.turns) + bytes_of(entry.list.unopened) +
                  bytes_of(entry.list.unclosed) + bytes_of(entry.list.gaps);
}

void TileStore::upload(Stream stream) {
  for (auto& [key, entry] : entries_) {
    entry.ranges = to_device(entry.list.ranges, stream);
    entry.tiles = to_device(entry.list.tiles, stream);
    entry.runs = to_device(entry.list.runs, stream);
    entry.work = to_device(entry.list.work, stream);
    entry.turns = to_device(entry.list.turns, stream);
    entry.unopened = to_device(entry.list.unopened, stream);
    entry.unclosed = to_device(entry.list.unclosed, stream);
    entry.gaps = to_device(entry.list.gaps, stream);
  }
}

DeviceTiles TileStore::find(const ComputeItem& item, TileOwner owner, TileShape shape) const {
  const Entry& entry = entries_.at(key_of(item, owner, shape));
  return {entry.ranges.as<KeyRange>(),
          entry.tiles.as<OwnedTile>(),
          entry.runs.as<TileRun>(),
          entry.work.as<WorkItem>(),
          static_cast<int32_t>(entry.list.work.size()),
          entry.turns.as<TurnRun>(),
          entry.list.num_counters,
          static_cast<int32_t>(entry.list.unopened.size()),
          entry.unopened.as<RowStretch>(),
          static_cast<int32_t>(entry.list.unclosed.size()),
          entry.unclosed.as<RowStretch>(),
          entry.gaps.as<uint32_t>(),
          entry.list.walks_by_tile,
          {},
          {}};
}

int32_t TileStore::num_counters(const ComputeItem& item, TileOwner owner, TileShape shape) const {
  return entries_.at(key_of(item, owner, shape)).list.num_counters;
}

int64_t TileStore::visited_cells(const ComputeItem& item, TileOwner owner, TileShape shape) const {
  return entries_.at(key_of(item, owner, shape)).list.visited_cells;
}

}  // namespace cpscope::kernels
