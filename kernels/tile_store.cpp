#include "kernels/tile_store.h"

#include "kernels/scalar_types.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

/// K and V of a section's heads should stay in the L2 cache of a data-centre GPU.
constexpr int64_t kCachedBytes = 32'000'000;

template <class T>
int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T));
}

HeadSections sections_of(const Attention& attention, int32_t heads, int64_t kv_rows,
                         int32_t tile_heads, TileOwner owner) {
  const int64_t bytes_per_kv_head =
      std::max<int64_t>(1, kv_rows * 2 * (attention.head_dim_qk + attention.head_dim_v));
  const auto group = static_cast<int32_t>(attention.heads / attention.kv_heads);
  const bool owns_queries = owner == TileOwner::queries;
  const int64_t section = std::max<int64_t>(1, kCachedBytes / bytes_per_kv_head) *
                          (owns_queries ? group / tile_heads : 1);
  return {heads, static_cast<int32_t>(std::min<int64_t>(section, heads)), owns_queries ? 1 : group};
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
  HeadSections sections =
      sections_of(plan_.scenario.attention, key.heads, key.kv_rows, shape.heads, owner);
  if (most_heads > 0) sections.heads_per_section = std::min(sections.heads_per_section, most_heads);
  entry.list =
      make_tile_list(plan_.slices_of(item), key.q_rows, key.kv_rows, sections, shape, owner);
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
          {}};
}

int32_t TileStore::num_counters(const ComputeItem& item, TileOwner owner, TileShape shape) const {
  return entries_.at(key_of(item, owner, shape)).list.num_counters;
}

int64_t TileStore::visited_cells(const ComputeItem& item, TileOwner owner, TileShape shape) const {
  return entries_.at(key_of(item, owner, shape)).list.visited_cells;
}

}  // namespace cpscope::kernels
