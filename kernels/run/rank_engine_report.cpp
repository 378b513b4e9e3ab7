#include "kernels/attention/attention_decode.h"
#include "kernels/run/rank_engine.h"
#include "sim/plan/visit_items.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

// Reports of an engine about its kernels, and about plans that have none.

namespace cpscope::kernels {
namespace {

const char* to_text(Generation generation) {
  switch (generation) {
    case Generation::sm90:
      return "sm90";
    case Generation::sm100:
      return "sm100";
    default:
      return "portable";
  }
}

}  // namespace

std::optional<std::string> RankEngine::why_not(const Plan& plan) {
  const Attention& attention = plan.scenario.attention;
  if (plan.scenario.numerics.dtype == Dtype::fp64)
    return "the GPU kernels compute in fp32 and hold bf16, fp16 or fp32, not fp64";
  const bool is_latent = attention.has_v_in_k();
  const int32_t most = is_latent ? kMaxLatentDim : kMaxHeadDim;
  for (const int32_t dim : {attention.head_dim_qk, attention.head_dim_v}) {
    if (dim > most)
      return fmt::format("the GPU kernels hold head dimensions up to {}: {}", most, dim);
  }
  const Batch& batch = plan.scenario.batch;
  for (const auto* lengths : {&batch.lengths, &batch.kv_lengths}) {
    for (const int64_t length : *lengths) {
      if (attention.alibi && length > AlibiRows::kMostTokens)
        return fmt::format("the GPU kernels take ALiBi with up to {} tokens of a sequence: {}",
                           AlibiRows::kMostTokens, length);
    }
  }
  return std::nullopt;
}

const TileList& RankEngine::query_list_of(const ComputeItem& item) const {
  const AttentionShape shape = shape_of(item);
  return tiles_.list(item, TileOwner::queries,
                     forward_tile_shape(forward_generation(shape), shape));
}

int64_t RankEngine::tile_flops(const ComputeItem& item, Direction direction) const {
  if (item.num_slices == 0) return 0;
  const AttentionShape shape = shape_of(item);
  const int64_t qk = shape.head_dim_qk, v = shape.head_dim_v, heads = shape.num_heads;
  if (direction == Direction::forward)
    return 2 * heads * (qk + v) * query_list_of(item).visited_cells;
  const Generation generation = backward_generation(shape);
  const int64_t by_keys = key_list_of(item).visited_cells;
  if (is_backward_fused(generation, shape)) return 2 * heads * (3 * qk + 2 * v) * by_keys;
  const int64_t by_queries =
      tiles_.list(item, TileOwner::queries, query_gradient_tile_shape(generation, shape))
          .visited_cells;
  return 2 * heads * ((2 * qk + v) * by_queries + (2 * qk + 2 * v) * by_keys);
}

int64_t RankEngine::tile_flops() const {
  int64_t flops = 0;
  for (const Direction direction : kDirections) {
    for (const ComputeItem& item : plan_.pass(direction).computes) {
      if (arrays_.is_here(item.rank)) flops += tile_flops(item, direction);
    }
  }
  return flops;
}

std::vector<ItemResult> RankEngine::read_results(const ItemId& id, Stream stream) const {
  std::vector<ItemResult> results;
  const auto read_array = [&](const auto& item, BufferId buffer, bool second, const char* name,
                              int64_t rows) {
    const BufferSpec& spec = plan_.buffer(buffer);
    const int64_t lanes = array_lanes(spec.kind, second, attention_).lanes;
    ItemResult result{id, item.rank, item.step, name, {rows, spec.heads.size(), lanes}, {}};
    const std::vector<float> values = read(buffer, second, stream);
    result.values.assign(values.begin(), values.begin() + rows * spec.heads.size() * lanes);
    results.push_back(std::move(result));
  };
  visit_item(
      plan_, id,
      Overload{
          [&](const ComputeItem& item) {
            if (item.num_slices == 0 || !arrays_.is_here(item.rank)) return;
            const int64_t q_rows = plan_.rows(item.q_tokens);
            const int64_t kv_rows = plan_.rows(item.kv_tokens);
            if (id.direction == Direction::forward) {
              read_array(item, item.out, false, "out", q_rows);
              return read_array(item, item.out, true, "lse", q_rows);
            }
            read_array(item, item.dq, false, "dq", q_rows);
            read_array(item, item.dkv, false, "dk", kv_rows);
            if (arrays_.has_second(item.dkv)) read_array(item, item.dkv, true, "dv", kv_rows);
          },
          [&](const FinishItem& item) {
            if (!arrays_.is_here(item.rank)) return;
            const BufferSpec& spec = plan_.buffer(item.buffer);
            const bool is_out = spec.kind == BufferKind::out;
            const bool is_dq = spec.kind == BufferKind::dq;
            read_array(item, item.buffer, false, is_out ? "out" : is_dq ? "dq" : "dk", spec.rows);
            if (arrays_.has_second(item.buffer))
              read_array(item, item.buffer, true, is_out ? "lse" : "dv", spec.rows);
          },
          [](const auto&) {}});
  return results;
}

ByDirection<std::vector<std::string>> RankEngine::item_kernels() const {
  const auto tile_text = [](const TileShape& tile) {
    const std::string rows = fmt::format("{}x{}", tile.owned_rows, tile.walked_rows);
    return tile.heads == 1 ? rows : fmt::format("{} of {} heads", rows, tile.heads);
  };
  ByDirection<std::vector<std::string>> names;
  for (const Direction direction : kDirections)
    names[direction].resize(static_cast<size_t>(lowered_.planned_computes[direction]));
  const auto set_name = [&](const ComputeItem& item, Direction direction, const std::string& name) {
    const ComputeNote& note = note_of(item, direction);
    std::vector<std::string>& all = names[direction];
    for (const JoinedPart& part : joined_parts(note, item, plan_))
      all[static_cast<size_t>(part.origin)] = note.parts.size() > 1 ? name + " joined" : name;
  };
  for (const ComputeItem& item : plan_.forward.computes) {
    if (item.num_slices == 0 || !arrays_.is_here(item.rank)) continue;
    const AttentionShape shape = shape_of(item);
    const Generation generation = forward_generation(shape);
    std::string name =
        fmt::format("{} forward {}", is_decode(shape) ? "decode" : to_text(generation),
                    tile_text(forward_tile_shape(generation, shape)));
    if (!query_list_of(item).cut_tiles.empty()) name += " in parts of the keys";
    if (note_of(item, Direction::forward).own_merge.merges) name += " merging";
    set_name(item, Direction::forward, name);
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
    if (list.draws_late) name += " with shifted begins";
    if (note_of(item, Direction::backward).own_merge.merges) name += " merging dq";
    set_name(item, Direction::backward, name);
  }
  return names;
}

std::string RankEngine::generation_text() const {
  for (const ComputeItem& item : plan_.forward.computes) {
    if (item.num_slices > 0) return to_text(forward_generation(shape_of(item)));
  }
  return "none";
}

}  // namespace cpscope::kernels
