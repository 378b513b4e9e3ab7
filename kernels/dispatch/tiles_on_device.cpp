#include "kernels/dispatch/tiles_on_device.h"

#include <algorithm>
#include <vector>

namespace cpscope::kernels {
namespace {

std::vector<CutTile> cut_tiles_of(const TileList& list) {
  std::vector<CutTile> cut_tiles;
  for (const int32_t t : list.cut_tiles) {
    const OwnedTile& tile = list.tiles[static_cast<size_t>(t)];
    const KeyPart& part = list.parts[static_cast<size_t>(t)];
    cut_tiles.push_back({tile.begin, tile.end, part.count, part.first_slot});
  }
  return cut_tiles;
}

}  // namespace

TilesOnDevice::TilesOnDevice(const TileList& list, Stream stream)
    : ranges_(to_device(list.ranges, stream)),
      tiles_(to_device(list.tiles, stream)),
      runs_(to_device(list.runs, stream)),
      work_(to_device(list.work, stream)),
      turns_(to_device(list.turns, stream)),
      unopened_(to_device(list.unopened, stream)),
      unclosed_(to_device(list.unclosed, stream)),
      gaps_(to_device(list.gaps, stream)),
      parts_(to_device(list.parts, stream)) {
  view_.ranges = ranges_.as<KeyRange>();
  view_.tiles = tiles_.as<OwnedTile>();
  view_.runs = runs_.as<TileRun>();
  view_.work = work_.as<WorkItem>();
  view_.num_work = static_cast<int32_t>(list.work.size());
  view_.turns = turns_.as<TurnRun>();
  view_.num_counters = list.num_counters;
  view_.num_unopened = static_cast<int32_t>(list.unopened.size());
  view_.unopened = unopened_.as<RowStretch>();
  view_.num_unclosed = static_cast<int32_t>(list.unclosed.size());
  view_.unclosed = unclosed_.as<RowStretch>();
  view_.gaps = gaps_.as<uint32_t>();
  view_.walks_by_tile = list.walks_by_tile;
  view_.draws_late = list.draws_late;
  view_.group_parts = list.group_parts;
  if (list.cut_tiles.empty()) return;
  view_.parts = parts_.as<KeyPart>();
  cut_tiles_on_host_ = cut_tiles_of(list);
  cut_tiles_ = to_device(cut_tiles_on_host_, stream);
  view_.cut_tiles = cut_tiles_.as<CutTile>();
  view_.num_cut_tiles = static_cast<int32_t>(cut_tiles_on_host_.size());
  for (const CutTile& tile : cut_tiles_on_host_) {
    view_.most_parts = std::max(view_.most_parts, tile.count);
    view_.most_cut_rows = std::max(view_.most_cut_rows, tile.end - tile.begin);
  }
}

int64_t TilesOnDevice::bytes_of(const TileList& list) {
  const auto bytes = [](const auto& values) {
    return static_cast<int64_t>(values.size() * sizeof(values.front()));
  };
  return bytes(list.ranges) + bytes(list.tiles) + bytes(list.runs) + bytes(list.work) +
         bytes(list.turns) + bytes(list.unopened) + bytes(list.unclosed) + bytes(list.gaps) +
         bytes(list.parts) + static_cast<int64_t>(list.cut_tiles.size() * sizeof(CutTile));
}

}  // namespace cpscope::kernels
