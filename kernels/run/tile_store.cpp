#include "kernels/run/tile_store.h"

#include "kernels/device/scalar_types.h"
#include "kernels/run/item_shape.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

/// The rows that concurrent tiles stream should stay in the L2 cache of a data-centre GPU (50 MB on
/// an H100, whose halves may hold the same data), next to data that is read and written once.
WorkHeads work_heads(const Attention& attention, const ComputeItem& item, int32_t heads,
                     TileShape shape, TileOwner owner) {
  const int64_t row = attention.head_dim_qk + attention.head_dim_v;  // K and V, or Q and dO
  const int32_t group = heads_per_key_head(attention);
  WorkHeads result;
  result.num_heads = heads;
  result.heads_walked = owner == TileOwner::queries ? 1 : std::min(group, item.heads.size());
  result.heads_sharing = owner == TileOwner::queries ? group / shape.heads : 1;
  result.cached_rows = 8'000'000 / (2 * row);
  if (shape.by_blocks)  // Q and dO with sums of dq, which the tiles of a chain read again
    result.cached_rows = 20'000'000 / (2 * row + 4 * attention.head_dim_qk);
  return result;
}

/// True if no executor cuts the heads of the backward's items (kernels/lower/cut_heads.cpp does so
/// where every rank has one): nothing is sent, or ranks compute in several steps. A plan's items
/// must have the same sums in every executor.
bool are_items_never_cut(const Plan& plan) {
  if (plan.home.size() == 1) return true;
  IdVector<RankId, const ComputeItem*> first(plan.home.size(), nullptr);
  for (const ComputeItem& item : plan.backward.computes) {
    const ComputeItem*& known = first[item.rank];
    if (known == nullptr) known = &item;
    if (known->step != item.step) return true;
  }
  return false;
}

}  // namespace

TileStore::TileStore(const Plan& plan) : plan_(plan), is_never_cut_(are_items_never_cut(plan)) {}

TileStore::Key TileStore::key_of(const ComputeItem& item, TileOwner owner, TileShape shape) const {
  const int32_t heads = owner == TileOwner::queries
                            ? item.heads.size() / shape.heads
                            : key_heads_of(plan_.scenario.attention, item.heads).size();
  return {item.first_slice,
          item.num_slices,
          plan_.rows(item.q_tokens),
          plan_.rows(item.kv_tokens),
          heads,
          shape,
          owner};
}

void TileStore::plan(const ComputeItem& item, TileOwner owner, TileShape shape, int32_t most_heads,
                     std::optional<HeadRange> split_in_parts) {
  const Key key = key_of(item, owner, shape);
  if (entries_.contains(key)) return;
  Entry& entry = entries_[key];
  WorkHeads heads = work_heads(plan_.scenario.attention, item, key.heads, shape, owner);
  heads.most_at_once = most_heads;
  heads.is_never_cut = is_never_cut_;
  if (split_in_parts) {
    const Attention& attention = plan_.scenario.attention;
    heads.group = heads_per_key_head(attention);
    heads.num_heads_of_step = key_heads_of(attention, *split_in_parts).size();
    const int32_t dv_lanes = attention.has_v_in_k() ? 0 : padded_lanes(attention.head_dim_v);
    heads.sum_row_bytes = (padded_lanes(attention.head_dim_qk) + dv_lanes) * int64_t{sizeof(float)};
  }
  entry.list = make_tile_list(plan_.slices_of(item), key.q_rows, key.kv_rows, heads, shape, owner);
  total_bytes_ += TilesOnDevice::bytes_of(entry.list);
}

void TileStore::upload(Stream stream) {
  for (auto& [key, entry] : entries_) entry.device = TilesOnDevice(entry.list, stream);
}

const DeviceTiles& TileStore::find(const ComputeItem& item, TileOwner owner,
                                   TileShape shape) const {
  return entries_.at(key_of(item, owner, shape)).device.view();
}

const TileList& TileStore::list(const ComputeItem& item, TileOwner owner, TileShape shape) const {
  return entries_.at(key_of(item, owner, shape)).list;
}

}  // namespace cpscope::kernels
