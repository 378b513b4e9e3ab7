#pragma once

#include "kernels/dispatch/attention_dispatch.h"
#include "kernels/dispatch/tiles_on_device.h"
#include "sim/plan/plan.h"

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

namespace cpscope::kernels {

/// The tile lists of a plan's compute items, made once on the host and stored on a device. Items
/// with the same slices and shapes share a list.
class TileStore {
 public:
  explicit TileStore(const Plan& plan);

  /// Makes the item's list unless it exists. most_heads: heads of the stationary side that run
  /// together; 0: as many as the cache holds. split_in_parts: groups may be split into parts, as is
  /// best for these heads, which include the item's.
  void plan(const ComputeItem& item, TileOwner owner, TileShape shape, int32_t most_heads = 0,
            std::optional<HeadRange> split_in_parts = std::nullopt);
  int64_t total_bytes() const { return total_bytes_; }
  void upload(Stream stream);
  const TileList& list(const ComputeItem& item, TileOwner owner, TileShape shape) const;
  /// The list on the device, after upload.
  const DeviceTiles& find(const ComputeItem& item, TileOwner owner, TileShape shape) const;

 private:
  struct Key {
    int64_t first_slice, num_slices, q_rows, kv_rows;
    int32_t heads;
    TileShape shape;
    TileOwner owner;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Entry {
    TileList list;
    TilesOnDevice device;
  };
  Key key_of(const ComputeItem& item, TileOwner owner, TileShape shape) const;

  const Plan& plan_;
  const bool is_never_cut_;  // WorkHeads::is_never_cut, of backward items
  std::map<Key, Entry> entries_;
  int64_t total_bytes_ = 0;
};

}  // namespace cpscope::kernels
