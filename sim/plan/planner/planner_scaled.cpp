#include "sim/plan/planner/planner_parts.h"

namespace cpscope {
namespace {

/// Buffers of one rank: rows of all ranks, one rank after another.
struct ScaledSeat {
  BufferId q{}, partial{};
  BufferId sum{};                  // the rank's results, scaled step by step
  IdVector<RankId, BufferId> lse;  // of the other ranks' results
};

/// The queries of all ranks, in rank order.
struct GatheredQueries {
  RunListId tokens{};
  IdVector<RankId, RunListId> rows;  // of each rank
};

GatheredQueries make_gathered_queries(PlanBuilder& builder) {
  GatheredQueries queries;
  std::vector<TokenRun> ranked;
  int64_t row = 0;
  for (const auto& runs : builder.plan().layout.q_runs) {
    ranked.insert(ranked.end(), runs.begin(), runs.end());
    const int64_t count = count_ids(runs);
    queries.rows.push_back(builder.add_list({{row, row + count, 1}}));
    row += count;
  }
  queries.tokens = builder.add_list(ranked);
  return queries;
}

ScaledSeat make_scaled_seat(PlanBuilder& builder, RankId rank, RunListId tokens) {
  const auto add = [&](BufferKind kind, BufferRole role) {
    return builder.add_buffer(rank, kind, role, tokens, builder.all_heads());
  };
  ScaledSeat seat;
  seat.q = add(BufferKind::q, BufferRole::rank_order);
  seat.sum = add(BufferKind::out, BufferRole::moved);
  seat.partial = builder.add_partial(seat.sum);
  for (const RankId other : builder.ranks())
    seat.lse.push_back(other == rank ? kNoBuffer : add(BufferKind::stats, BufferRole::received));
  return seat;
}

/// A transfer of all heads of some rows from one rank to another.
TransferItem all_heads_from(const PlanBuilder& builder, RankId src, RankId dst, Payload payload,
                            BufferId from, BufferId to) {
  TransferItem item;
  item.src = src;
  item.dst = dst;
  item.from = from;
  item.to = to;
  item.heads = builder.all_heads();
  item.payload = payload;
  item.link = LinkClass::direct;
  return item;
}

}  // namespace

std::optional<Error> plan_scaled_forward(PlanBuilder& builder) {
  const GatheredQueries queries = make_gathered_queries(builder);
  const IdVector<RankId, HomeBuffers>& home = builder.plan().home;
  IdVector<RankId, ScaledSeat> seats;
  std::vector<PieceTable> kv_tables;
  std::vector<SliceJob> jobs;
  for (const RankId rank : builder.ranks()) {
    seats.push_back(make_scaled_seat(builder, rank, queries.tokens));
    kv_tables.push_back(
        make_pieces(builder.plan().list(builder.plan().kv_lists[rank]), builder.slots(), Side::kv));
    jobs.push_back({0, to_index(rank)});
  }
  const auto ranges = intersect_all(
      builder, {make_pieces(builder.plan().list(queries.tokens), builder.slots(), Side::q)},
      kv_tables, jobs);
  if (!ranges) return too_many_slices();
  const auto works = [&](RankId rank) {
    return (*ranges)[static_cast<size_t>(to_index(rank))].count > 0;
  };
  Pass& pass = builder.plan().forward;
  builder.open_stage(pass, 0, StageKind::transfer);
  for (const RankId dst : builder.ranks()) {
    for (const RankId src : builder.ranks()) {
      TransferItem item = all_heads_from(builder, src, dst, Payload::q, home[src].q, seats[dst].q);
      item.to_rows = queries.rows[src];
      builder.add_transfer(item);
    }
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::compute);
  for (const RankId rank : builder.ranks()) {
    ComputeItem item;
    item.rank = rank;
    item.q = seats[rank].q;
    item.kv = home[rank].kv;
    item.out = seats[rank].partial;
    item.q_tokens = queries.tokens;
    item.kv_tokens = builder.plan().kv_lists[rank];
    item.heads = builder.all_heads();
    set_slices(item, (*ranges)[static_cast<size_t>(to_index(rank))]);
    builder.add_compute(item);
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::merge);
  for (const RankId rank : builder.ranks()) {
    builder.add_merge(rank, works(rank) ? seats[rank].partial : kNoBuffer, seats[rank].sum, 0);
    builder.add_merge(rank, kNoBuffer, home[rank].out, 0);
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::transfer);
  for (const RankId dst : builder.ranks()) {
    for (const RankId src : builder.ranks()) {
      if (src != dst)
        builder.add_transfer(
            all_heads_from(builder, src, dst, Payload::lse, seats[src].sum, seats[dst].lse[src]));
    }
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::merge);
  for (const RankId rank : builder.ranks()) {
    int32_t order = 1;
    for (const RankId other : builder.ranks()) {
      // Without rows nothing has arrived.
      if (other != rank && builder.plan().rows(queries.tokens) > 0)
        builder.add_merge(rank, seats[rank].lse[other], seats[rank].sum, order++);
    }
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::transfer);
  for (const RankId dst : builder.ranks()) {
    for (const RankId src : builder.ranks()) {
      TransferItem item =
          all_heads_from(builder, src, dst, Payload::out, seats[src].sum, home[dst].out);
      item.from_rows = queries.rows[dst];
      item.landing = Landing::add;
      item.wire_fp32 = builder.scenario().parallel.partial_wire == WireFormat::fp32;
      builder.add_transfer(item);
    }
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::finish);
  for (const RankId rank : builder.ranks()) builder.add_finish(rank, home[rank].out);
  builder.close_stage();
  return std::nullopt;
}

}  // namespace cpscope
