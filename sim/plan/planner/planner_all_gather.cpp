#include "sim/plan/plan_size.h"
#include "sim/plan/planner/replicated_keys.h"

#include <algorithm>

namespace cpscope {
namespace {

/// Rows of the gathered KV: in rank order as received and, if that shortens the slices, in sequence
/// order.
struct GatherOrder {
  RunListId ranked_tokens{}, tokens{};
  RunListId to_sequence{}, to_ranks{};
  IdVector<RankId, RunListId> rows;       // of each rank, in rank order
  IdVector<RankId, RunListId> home_rows;  // the same rows in its home buffers
  bool reorders = false;
};

/// Buffers of some of the gathered KV heads.
struct Gather {
  HeadRange kv_heads;
  IdVector<RankId, BufferId> ranked,
      sequence;  // equals ranked when nothing is reordered
  IdVector<RankId, BufferId> d_ranked, d_sequence;
};

GatherOrder make_gather_order(PlanBuilder& builder, const ReplicatedKeys& replicated) {
  const Layout& layout = builder.plan().layout;
  GatherOrder order;
  order.home_rows = replicated.other_rows;
  // One-token stripes match stripes of the same stride only in rank order.
  order.reorders = layout.kind != LayoutKind::striped || builder.scenario().parallel.stripe > 1;
  std::vector<TokenRun> ranked;
  std::vector<std::vector<TokenRun>> by_rank;
  int64_t row = 0;
  for (const RunListId list : replicated.other_tokens) {
    const auto runs = builder.plan().list(list);
    ranked.insert(ranked.end(), runs.begin(), runs.end());
    by_rank.emplace_back(runs.begin(), runs.end());
    const int64_t count = builder.plan().rows(list);
    order.rows.push_back(builder.add_list({{row, row + count, 1}}));
    row += count;
  }
  order.ranked_tokens = builder.add_list(ranked);
  order.tokens = order.ranked_tokens;
  if (order.reorders) {
    const ReorderIndex index = reorder_to_sequence(by_rank);
    order.to_sequence = builder.add_list(index.rank_to_sequence);
    order.to_ranks = builder.add_list(index.sequence_to_rank);
    order.tokens = builder.add_list(index.sequence_tokens);
  }
  return order;
}

Gather make_gather(PlanBuilder& builder, const GatherOrder& order, HeadRange kv_heads) {
  Gather gather{kv_heads, {}, {}, {}, {}};
  for (const RankId rank : builder.ranks()) {
    const auto add = [&](BufferKind kind, BufferRole role) {
      return builder.add_buffer(rank, kind, role,
                                role == BufferRole::rank_order ? order.ranked_tokens : order.tokens,
                                kv_heads);
    };
    gather.ranked.push_back(add(BufferKind::kv, BufferRole::rank_order));
    gather.sequence.push_back(order.reorders ? add(BufferKind::kv, BufferRole::sequence_order)
                                             : gather.ranked.back());
    if (!builder.has_backward()) continue;
    gather.d_ranked.push_back(add(BufferKind::dkv, BufferRole::rank_order));
    gather.d_sequence.push_back(order.reorders ? add(BufferKind::dkv, BufferRole::sequence_order)
                                               : gather.d_ranked.back());
  }
  return gather;
}

void add_gather(PlanBuilder& builder, Pass& pass, const GatherOrder& order, const Gather& gather,
                int32_t step) {
  builder.open_stage(pass, step, StageKind::transfer);
  for (const RankId dst : builder.ranks()) {
    for (const RankId src : builder.ranks()) {
      TransferItem item;
      item.src = src;
      item.dst = dst;
      item.from = builder.plan().home[src].kv;
      item.to = gather.ranked[dst];
      item.from_rows = order.home_rows[src];
      item.to_rows = order.rows[src];
      item.heads = gather.kv_heads;
      item.payload = Payload::kv;
      item.link = LinkClass::direct;
      builder.add_transfer(item);
    }
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::reorder);
  for (const RankId rank : builder.ranks()) {
    if (!order.reorders) continue;
    builder.add_reorder(rank, gather.ranked[rank], gather.sequence[rank], order.to_sequence);
  }
  builder.close_stage();
}

/// Each rank sends its share of dK, dV to the owner of the rows, which adds the shares in rank
/// order.
void add_reduce_scatter(PlanBuilder& builder, const GatherOrder& order, const Gather& gather,
                        int32_t step) {
  Pass& pass = builder.plan().backward;
  builder.open_stage(pass, step, StageKind::reorder);
  for (const RankId rank : builder.ranks()) {
    if (!order.reorders) continue;
    builder.add_reorder(rank, gather.d_sequence[rank], gather.d_ranked[rank], order.to_ranks);
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::merge);
  for (const RankId rank : builder.ranks()) {
    if (step == 0) builder.add_merge(rank, kNoBuffer, builder.plan().home[rank].dkv, 0);
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::transfer);
  for (const RankId dst : builder.ranks()) {
    for (const RankId src : builder.ranks()) {
      TransferItem item;
      item.src = src;
      item.dst = dst;
      item.from = gather.d_ranked[src];
      item.to = builder.plan().home[dst].dkv;
      item.from_rows = order.rows[dst];
      item.to_rows = order.home_rows[dst];
      item.heads = gather.kv_heads;
      item.payload = Payload::dkv;
      item.link = LinkClass::direct;
      item.landing = Landing::add;
      item.wire_fp32 = builder.scenario().numerics.dkv_wire == WireFormat::fp32;
      builder.add_transfer(item);
    }
  }
  builder.close_stage();
}

/// The seats of a stage. If a stage has only some of the heads, their results have buffers of their
/// own.
std::vector<Seat> stage_seats(PlanBuilder& builder, const GatherOrder& order,
                              const Gather& gather) {
  const int32_t readers = builder.attention().heads / builder.attention().kv_heads;
  const HeadRange heads{gather.kv_heads.begin * readers, gather.kv_heads.end * readers};
  std::vector<Seat> seats = home_seats(builder);
  for (Seat& seat : seats) {
    const auto add = [&](BufferKind kind) {
      return builder.add_buffer(seat.rank, kind, BufferRole::moved, seat.q_tokens, heads);
    };
    seat.kv = gather.sequence[seat.rank];
    seat.kv_tokens = order.tokens;
    if (builder.has_backward()) seat.dkv = gather.d_sequence[seat.rank];
    if (heads.size() == seat.heads.size()) continue;
    seat.heads = heads;
    seat.kv_heads = gather.kv_heads;
    seat.out = add(BufferKind::out);
    if (builder.has_backward()) seat.dq = add(BufferKind::dq);
  }
  return seats;
}

/// Copies the results of a stage's heads to where the others are.
void add_copies_home(PlanBuilder& builder, Pass& pass, const std::vector<Seat>& seats,
                     Payload payload, int32_t step) {
  builder.open_stage(pass, step, StageKind::transfer);
  for (const Seat& seat : seats) {
    const HomeBuffers& home = builder.plan().home[seat.rank];
    TransferItem item;
    item.src = item.dst = seat.rank;
    item.from = payload == Payload::out ? seat.out : seat.dq;
    item.to = payload == Payload::out ? home.out : home.dq;
    item.heads = seat.heads;
    item.payload = payload;
    if (item.from != item.to) builder.add_transfer(item);
  }
  builder.close_stage();
}

}  // namespace

std::optional<Error> plan_all_gather(PlanBuilder& builder) {
  const ReplicatedKeys replicated = add_replicated_keys(builder);
  const GatherOrder order = make_gather_order(builder, replicated);
  const auto num_stages = static_cast<int32_t>(count_head_stages(builder.scenario()));
  const int32_t kv_heads = builder.attention().kv_heads;
  const int32_t size = num_stages == 1 ? kv_heads : builder.scenario().parallel.heads_per_stage;
  std::vector<Gather> gathers;
  std::vector<std::vector<Seat>> seats;
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    gathers.push_back(
        make_gather(builder, order, {stage * size, std::min(kv_heads, (stage + 1) * size)}));
    seats.push_back(stage_seats(builder, order, gathers.back()));
  }
  std::vector<PieceTable> q_tables;
  std::vector<SliceJob> jobs;
  for (const RankId rank : builder.ranks()) {
    q_tables.push_back(
        make_pieces(builder.plan().list(builder.plan().q_lists[rank]), builder.slots(), Side::q));
    jobs.push_back({to_index(rank), 0});
  }
  const auto ranges = intersect_all(
      builder, q_tables,
      {make_pieces(builder.plan().list(order.tokens), builder.slots(), Side::kv)}, jobs);
  if (!ranges) return too_many_slices();
  ReplicaWork replica;
  if (auto error = replica.find(builder, replicated, seats.front())) return error;
  std::map<BufferId, int32_t> merges;
  Pass &forward = builder.plan().forward, &backward = builder.plan().backward;
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    const auto s = static_cast<size_t>(stage);
    add_gather(builder, forward, order, gathers[s], stage);
    replica.add_forward(builder, seats[s], stage, merges);
    plan_single_step_forward(builder, seats[s], *ranges, stage, merges);
    add_copies_home(builder, forward, seats[s], Payload::out, stage);
  }
  for (int32_t stage = 0; builder.has_backward() && stage < num_stages; ++stage) {
    const auto s = static_cast<size_t>(stage);
    if (builder.scenario().parallel.backward_kv == BackwardKv::refetch)
      add_gather(builder, backward, order, gathers[s], stage);
    replica.add_backward(builder, seats[s], stage, merges);
    plan_single_step_backward(builder, seats[s], *ranges, stage, merges);
    add_copies_home(builder, backward, seats[s], Payload::dq, stage);
    add_reduce_scatter(builder, order, gathers[s], stage);
  }
  if (!builder.has_backward()) return std::nullopt;
  replica.add_shares_home(builder, num_stages - 1);
  builder.open_stage(backward, num_stages - 1, StageKind::finish);
  for (const RankId rank : builder.ranks()) builder.add_finish(rank, builder.plan().home[rank].dkv);
  builder.close_stage();
  return std::nullopt;
}

}  // namespace cpscope
