#include "sim/plan/planner/planner_parts.h"

namespace cpscope {
namespace {

/// The gathered KV: in rank order as received and, if that shortens the slices, in sequence order.
struct Gather {
  IdVector<RankId, BufferId> ranked,
      sequence;  // equals ranked when nothing is reordered
  IdVector<RankId, BufferId> d_ranked, d_sequence;
  RunListId ranked_tokens{}, tokens{};
  RunListId to_sequence{}, to_ranks{};
  IdVector<RankId, RunListId> rows;  // in rank order
  bool reorders = false;
};

Gather make_gather(PlanBuilder& builder) {
  const Layout& layout = builder.plan().layout;
  Gather gather;
  // One-token stripes match stripes of the same stride only in rank order.
  gather.reorders = layout.kind != LayoutKind::striped || builder.scenario().parallel.stripe > 1;
  std::vector<TokenRun> ranked;
  int64_t row = 0;
  for (const auto& runs : layout.kv_runs) {
    ranked.insert(ranked.end(), runs.begin(), runs.end());
    const int64_t count = count_ids(runs);
    gather.rows.push_back(builder.add_list({{row, row + count, 1}}));
    row += count;
  }
  gather.ranked_tokens = builder.add_list(ranked);
  gather.tokens = gather.ranked_tokens;
  if (gather.reorders) {
    const ReorderIndex index = reorder_to_sequence(layout.kv_runs.values());
    gather.to_sequence = builder.add_list(index.rank_to_sequence);
    gather.to_ranks = builder.add_list(index.sequence_to_rank);
    gather.tokens = builder.add_list(index.sequence_tokens);
  }
  for (const RankId rank : builder.ranks()) {
    const auto add = [&](BufferKind kind, BufferRole role) {
      return builder.add_buffer(
          rank, kind, role, role == BufferRole::rank_order ? gather.ranked_tokens : gather.tokens,
          builder.all_kv_heads());
    };
    gather.ranked.push_back(add(BufferKind::kv, BufferRole::rank_order));
    gather.sequence.push_back(gather.reorders ? add(BufferKind::kv, BufferRole::sequence_order)
                                              : gather.ranked.back());
    if (!builder.has_backward()) continue;
    gather.d_ranked.push_back(add(BufferKind::dkv, BufferRole::rank_order));
    gather.d_sequence.push_back(gather.reorders ? add(BufferKind::dkv, BufferRole::sequence_order)
                                                : gather.d_ranked.back());
  }
  return gather;
}

void add_gather(PlanBuilder& builder, Pass& pass, const Gather& gather) {
  builder.open_stage(pass, 0, StageKind::transfer);
  for (const RankId dst : builder.ranks()) {
    for (const RankId src : builder.ranks()) {
      TransferItem item;
      item.src = src;
      item.dst = dst;
      item.from = builder.plan().home[src].kv;
      item.to = gather.ranked[dst];
      item.to_rows = gather.rows[src];
      item.heads = builder.all_kv_heads();
      item.payload = Payload::kv;
      item.link = LinkClass::direct;
      builder.add_transfer(item);
    }
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::reorder);
  for (const RankId rank : builder.ranks()) {
    if (!gather.reorders) continue;
    builder.add_reorder(rank, gather.ranked[rank], gather.sequence[rank], gather.to_sequence);
  }
  builder.close_stage();
}

/// Each rank sends its share of dK, dV to the owner of the rows, which adds the shares in rank
/// order.
void add_reduce_scatter(PlanBuilder& builder, const Gather& gather) {
  Pass& pass = builder.plan().backward;
  builder.open_stage(pass, 0, StageKind::reorder);
  for (const RankId rank : builder.ranks()) {
    if (!gather.reorders) continue;
    builder.add_reorder(rank, gather.d_sequence[rank], gather.d_ranked[rank], gather.to_ranks);
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::merge);
  for (const RankId rank : builder.ranks())
    builder.add_merge(rank, kNoBuffer, builder.plan().home[rank].dkv, 0);
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::transfer);
  for (const RankId dst : builder.ranks()) {
    for (const RankId src : builder.ranks()) {
      TransferItem item;
      item.src = src;
      item.dst = dst;
      item.from = gather.d_ranked[src];
      item.to = builder.plan().home[dst].dkv;
      item.from_rows = gather.rows[dst];
      item.heads = builder.all_kv_heads();
      item.payload = Payload::dkv;
      item.link = LinkClass::direct;
      item.landing = Landing::add;
      item.wire_fp32 = builder.scenario().numerics.dkv_wire == WireFormat::fp32;
      builder.add_transfer(item);
    }
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::finish);
  for (const RankId rank : builder.ranks()) builder.add_finish(rank, builder.plan().home[rank].dkv);
  builder.close_stage();
}

}  // namespace

std::optional<Error> plan_all_gather(PlanBuilder& builder) {
  const Gather gather = make_gather(builder);
  std::vector<Seat> seats = home_seats(builder);
  std::vector<PieceTable> q_tables;
  std::vector<SliceJob> jobs;
  for (Seat& seat : seats) {
    seat.kv = gather.sequence[seat.rank];
    seat.kv_tokens = gather.tokens;
    if (builder.has_backward()) seat.dkv = gather.d_sequence[seat.rank];
    q_tables.push_back(make_pieces(builder.plan().list(seat.q_tokens), builder.slots(), Side::q));
    jobs.push_back({to_index(seat.rank), 0});
  }
  const std::vector<PieceTable> kv_tables{
      make_pieces(builder.plan().list(gather.tokens), builder.slots(), Side::kv)};
  add_gather(builder, builder.plan().forward, gather);
  std::vector<SliceRange> ranges;
  if (auto error = plan_single_step_forward(builder, seats, jobs, q_tables, kv_tables, ranges))
    return error;
  if (!builder.has_backward()) return std::nullopt;
  if (builder.scenario().parallel.backward_kv == BackwardKv::refetch)
    add_gather(builder, builder.plan().backward, gather);
  plan_single_step_backward(builder, seats, ranges);
  add_reduce_scatter(builder, gather);
  return std::nullopt;
}

}  // namespace cpscope
