#include "kernels/run/rank_engine.h"

#include <fmt/format.h>

// Reports of an engine about its kernels.

namespace cpscope::kernels {

int64_t RankEngine::tile_flops(const ComputeItem& item, bool is_backward) const {
  if (item.num_slices == 0) return 0;
  const AttentionShape shape = shape_of(item);
  const int64_t qk = shape.head_dim_qk, v = shape.head_dim_v, heads = shape.num_heads;
  if (!is_backward)
    return 2 * heads * (qk + v) *
           tiles_
               .list(item, TileOwner::queries, forward_tile_shape(forward_generation(shape), shape))
               .visited_cells;
  const Generation generation = backward_generation(shape);
  const int64_t by_keys = key_list_of(item).visited_cells;
  if (is_backward_fused(generation, shape)) return 2 * heads * (3 * qk + 2 * v) * by_keys;
  const int64_t by_queries =
      tiles_.list(item, TileOwner::queries, query_gradient_tile_shape(generation, shape))
          .visited_cells;
  return 2 * heads * ((2 * qk + v) * by_queries + (2 * qk + 2 * v) * by_keys);
}

std::array<std::vector<std::string>, 2> RankEngine::item_kernels() const {
  const auto to_text = [](Generation generation) {
    return generation == Generation::sm90 ? "sm90" : "portable";
  };
  const auto tile_text = [](const TileShape& tile) {
    const std::string rows = fmt::format("{}x{}", tile.owned_rows, tile.walked_rows);
    return tile.heads == 1 ? rows : fmt::format("{} of {} heads", rows, tile.heads);
  };
  std::array<std::vector<std::string>, 2> names;
  for (const size_t d : {0, 1}) names[d].resize(static_cast<size_t>(lowered_.planned_computes[d]));
  const auto set_name = [&](const ComputeItem& item, bool is_backward, const std::string& name) {
    const Pass& pass = is_backward ? plan_.backward : plan_.forward;
    const LoweredPlan::Origins& origins = lowered_.origins_of(is_backward);
    const auto index = static_cast<size_t>(&item - pass.computes.data());
    std::vector<std::string>& all = names[is_backward ? 1 : 0];
    if (origins.parts.empty()) {
      all[static_cast<size_t>(origins.of(StageKind::compute)[index])] = name;
      return;
    }
    const std::vector<JoinedPart>& parts = origins.parts[index];
    for (const JoinedPart& part : parts)
      all[static_cast<size_t>(part.origin)] = parts.size() > 1 ? name + " joined" : name;
  };
  for (const ComputeItem& item : plan_.forward.computes) {
    if (item.num_slices == 0 || !arrays_.is_here(item.rank)) continue;
    const AttentionShape shape = shape_of(item);
    const Generation generation = forward_generation(shape);
    std::string name = fmt::format("{} forward {}", to_text(generation),
                                   tile_text(forward_tile_shape(generation, shape)));
    if (own_merge_of(item, false).merges) name += " merging";
    set_name(item, false, name);
  }
  for (const ComputeItem& item : plan_.backward.computes) {
    if (item.num_slices == 0 || !arrays_.is_here(item.rank)) continue;
    const AttentionShape shape = shape_of(item);
    const Generation generation = backward_generation(shape);
    const std::string key_tile = tile_text(key_gradient_tile_shape(generation, shape));
    std::string name =
        is_backward_fused(generation, shape)
            ? fmt::format("{} dq dk dv {}", to_text(generation), key_tile)
            : fmt::format("{} dq {}, dk dv {}", to_text(generation),
                          tile_text(query_gradient_tile_shape(generation, shape)), key_tile);
    const TileList& list = key_list_of(item);
    if (list.walks_by_tile) name += " by tile";
    if (list.group_parts > 1) name += fmt::format(" in {} parts", list.group_parts);
    if (own_merge_of(item, true).merges) name += " merging dq";
    set_name(item, true, name);
  }
  return names;
}

std::string RankEngine::generation_text() const {
  for (const ComputeItem& item : plan_.forward.computes) {
    if (item.num_slices > 0)
      return forward_generation(shape_of(item)) == Generation::sm90 ? "sm90" : "portable";
  }
  return "none";
}

}  // namespace cpscope::kernels
