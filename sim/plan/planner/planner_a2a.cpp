#include "sim/plan/planner/planner_parts.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Rows of each rank's part in the rank-ordered buffer of its group.
std::vector<RunListId> row_lists(PlanBuilder& builder,
                                 const std::vector<std::vector<TokenRun>>& runs_by_rank) {
  std::vector<RunListId> lists;
  int64_t row = 0;
  for (const auto& runs : runs_by_rank) {
    const int64_t count = count_ids(runs);
    lists.push_back(builder.add_list({{row, row + count, 1}}));
    row += count;
  }
  return lists;
}

std::vector<TokenRun> concatenate(const std::vector<std::vector<TokenRun>>& lists) {
  std::vector<TokenRun> all;
  for (const auto& runs : lists) all.insert(all.end(), runs.begin(), runs.end());
  return all;
}

GroupSide make_group_side(PlanBuilder& builder, const std::vector<RankId>& ranks, Side side) {
  std::vector<std::vector<TokenRun>> runs;
  for (const RankId rank : ranks) runs.push_back(builder.plan().layout.runs(side)[rank]);
  const ReorderIndex index = reorder_to_sequence(runs);
  GroupSide made;
  made.to_sequence = builder.add_list(index.rank_to_sequence);
  made.to_ranks = builder.add_list(index.sequence_to_rank);
  made.rows = row_lists(builder, runs);
  made.ranked = builder.add_list(concatenate(runs));
  made.sequence = builder.add_list(index.sequence_tokens);
  return made;
}

GroupOrder make_group_order(PlanBuilder& builder, const std::vector<RankId>& ranks) {
  GroupOrder order;
  order.ranks = ranks;
  order.q = make_group_side(builder, ranks, Side::q);
  order.kv = builder.plan().layout.same_kv ? order.q : make_group_side(builder, ranks, Side::kv);
  return order;
}

ExchangeSeat make_seat(PlanBuilder& builder, RankId rank, HeadRange heads,
                       const GroupOrder& group) {
  const HeadRange kv_heads = kv_heads_of(builder.attention(), heads);
  const auto add = [&](BufferKind kind, BufferRole role) {
    const bool is_kv = kind == BufferKind::kv || kind == BufferKind::dkv;
    const GroupSide& side = is_kv ? group.kv : group.q;
    return builder.add_buffer(rank, kind, role,
                              role == BufferRole::rank_order ? side.ranked : side.sequence,
                              is_kv ? kv_heads : heads);
  };
  ExchangeSeat out;
  out.seat = {rank, group.q.sequence, group.kv.sequence, heads, kv_heads};
  out.q_ranked = add(BufferKind::q, BufferRole::rank_order);
  out.kv_ranked = add(BufferKind::kv, BufferRole::rank_order);
  out.out_ranked = add(BufferKind::out, BufferRole::rank_order);
  out.seat.q = add(BufferKind::q, BufferRole::sequence_order);
  out.seat.kv = add(BufferKind::kv, BufferRole::sequence_order);
  out.seat.out = add(BufferKind::out, BufferRole::sequence_order);
  if (!builder.has_backward()) return out;
  out.d_out_ranked = add(BufferKind::d_out, BufferRole::rank_order);
  out.dq_ranked = add(BufferKind::dq, BufferRole::rank_order);
  out.dkv_ranked = add(BufferKind::dkv, BufferRole::rank_order);
  out.seat.d_out = add(BufferKind::d_out, BufferRole::sequence_order);
  out.seat.dq = add(BufferKind::dq, BufferRole::sequence_order);
  out.seat.dkv = add(BufferKind::dkv, BufferRole::sequence_order);
  return out;
}

/// Every rank of a group sends each other rank the rows of its own tokens for that rank's heads.
/// `home_of` and `ranked_of` select the buffers; `side` selects head range and rows.
template <class HomeOf, class RankedOf>
void add_transfers_in(PlanBuilder& builder, const HeadExchange& exchange, Payload payload,
                      Side side, HomeOf home_of, RankedOf ranked_of) {
  for (const GroupOrder& group : exchange.groups) {
    for (const RankId dst : group.ranks) {
      const ExchangeSeat& seat = exchange.seats[dst];
      for (size_t index = 0; index < group.ranks.size(); ++index) {
        TransferItem item;
        item.src = group.ranks[index];
        item.dst = dst;
        item.from = home_of(builder.plan().home[item.src]);
        item.to = ranked_of(seat);
        item.to_rows = group.side(side).rows[index];
        item.heads = side == Side::q ? seat.seat.heads : seat.seat.kv_heads;
        item.payload = payload;
        item.link = LinkClass::group;
        builder.add_transfer(item);
      }
    }
  }
}

/// The reverse exchange for the query side: each rank's heads return to the owner of the rows.
template <class HomeOf, class RankedOf>
void add_transfers_out(PlanBuilder& builder, const HeadExchange& exchange, Payload payload,
                       HomeOf home_of, RankedOf ranked_of) {
  for (const GroupOrder& group : exchange.groups) {
    for (size_t index = 0; index < group.ranks.size(); ++index) {
      for (const RankId src : group.ranks) {
        TransferItem item;
        item.src = src;
        item.dst = group.ranks[index];
        item.from = ranked_of(exchange.seats[src]);
        item.to = home_of(builder.plan().home[item.dst]);
        item.from_rows = group.q.rows[index];
        item.heads = exchange.seats[src].seat.heads;
        item.payload = payload;
        item.link = LinkClass::group;
        builder.add_transfer(item);
      }
    }
  }
}

/// Splits `heads` into ranges of KV heads that one rank of the group reads, or that several read
/// (second = true).
std::vector<std::pair<HeadRange, bool>> split_by_replication(const HeadExchange& exchange,
                                                             const GroupOrder& group,
                                                             HeadRange heads) {
  std::vector<std::pair<HeadRange, bool>> parts;
  for (int32_t head = heads.begin; head < heads.end; ++head) {
    const auto reads = std::count_if(group.ranks.begin(), group.ranks.end(), [&](RankId rank) {
      const HeadRange range = exchange.seats[rank].seat.kv_heads;
      return range.begin <= head && head < range.end;
    });
    if (!parts.empty() && parts.back().second == (reads > 1)) {
      parts.back().first.end = head + 1;
    } else {
      parts.push_back({{head, head + 1}, reads > 1});
    }
  }
  return parts;
}

void add_dkv_transfers_out(PlanBuilder& builder, const HeadExchange& exchange) {
  const bool wire_fp32 = builder.scenario().numerics.dkv_wire == WireFormat::fp32;
  for (const GroupOrder& group : exchange.groups) {
    std::vector<std::vector<std::pair<HeadRange, bool>>> parts;
    for (const RankId src : group.ranks)
      parts.push_back(split_by_replication(exchange, group, exchange.seats[src].seat.kv_heads));
    for (size_t index = 0; index < group.ranks.size(); ++index) {
      for (size_t from = 0; from < group.ranks.size(); ++from) {
        for (const auto& [heads, is_replicated] : parts[from]) {
          TransferItem item;
          item.src = group.ranks[from];
          item.dst = group.ranks[index];
          item.from = exchange.seats[item.src].dkv_ranked;
          item.to = builder.plan().home[item.dst].dkv;
          item.from_rows = group.kv.rows[index];
          item.heads = heads;
          item.payload = Payload::dkv;
          item.link = LinkClass::group;
          item.landing = Landing::add;
          item.wire_fp32 = wire_fp32 && is_replicated;
          builder.add_transfer(item);
        }
      }
    }
  }
}

}  // namespace

HeadExchange make_head_exchange(PlanBuilder& builder,
                                const std::vector<std::vector<RankId>>& groups) {
  HeadExchange exchange;
  exchange.seats.resize(static_cast<size_t>(builder.num_ranks()));
  for (const std::vector<RankId>& ranks : groups) {
    const GroupOrder& group = exchange.groups.emplace_back(make_group_order(builder, ranks));
    const int32_t share = builder.attention().heads / static_cast<int32_t>(ranks.size());
    for (size_t index = 0; index < ranks.size(); ++index) {
      const int32_t first = static_cast<int32_t>(index) * share;
      exchange.seats[ranks[index]] =
          make_seat(builder, ranks[index], {first, first + share}, group);
    }
  }
  return exchange;
}

void plan_exchange_in(PlanBuilder& builder, const HeadExchange& exchange) {
  Pass& pass = builder.plan().forward;
  builder.open_stage(pass, 0, StageKind::transfer);
  add_transfers_in(
      builder, exchange, Payload::q, Side::q, [](const HomeBuffers& home) { return home.q; },
      [](const ExchangeSeat& seat) { return seat.q_ranked; });
  add_transfers_in(
      builder, exchange, Payload::kv, Side::kv, [](const HomeBuffers& home) { return home.kv; },
      [](const ExchangeSeat& seat) { return seat.kv_ranked; });
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::reorder);
  for (const GroupOrder& group : exchange.groups) {
    for (const RankId rank : group.ranks) {
      const ExchangeSeat& seat = exchange.seats[rank];
      builder.add_reorder(seat.seat.rank, seat.q_ranked, seat.seat.q, group.q.to_sequence);
      builder.add_reorder(seat.seat.rank, seat.kv_ranked, seat.seat.kv, group.kv.to_sequence);
    }
  }
  builder.close_stage();
}

void plan_exchange_out(PlanBuilder& builder, const HeadExchange& exchange, int32_t step) {
  Pass& pass = builder.plan().forward;
  builder.open_stage(pass, step, StageKind::reorder);
  for (const GroupOrder& group : exchange.groups) {
    for (const RankId rank : group.ranks) {
      const ExchangeSeat& seat = exchange.seats[rank];
      builder.add_reorder(seat.seat.rank, seat.seat.out, seat.out_ranked, group.q.to_ranks);
    }
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::transfer);
  add_transfers_out(
      builder, exchange, Payload::out, [](const HomeBuffers& home) { return home.out; },
      [](const ExchangeSeat& seat) { return seat.out_ranked; });
  builder.close_stage();
}

void plan_gradient_exchange_in(PlanBuilder& builder, const HeadExchange& exchange) {
  Pass& pass = builder.plan().backward;
  builder.open_stage(pass, 0, StageKind::transfer);
  add_transfers_in(
      builder, exchange, Payload::d_out, Side::q,
      [](const HomeBuffers& home) { return home.d_out; },
      [](const ExchangeSeat& seat) { return seat.d_out_ranked; });
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::reorder);
  for (const GroupOrder& group : exchange.groups) {
    for (const RankId rank : group.ranks) {
      const ExchangeSeat& seat = exchange.seats[rank];
      builder.add_reorder(seat.seat.rank, seat.d_out_ranked, seat.seat.d_out, group.q.to_sequence);
    }
  }
  builder.close_stage();
}

void plan_gradient_exchange_out(PlanBuilder& builder, const HeadExchange& exchange, int32_t step) {
  Pass& pass = builder.plan().backward;
  builder.open_stage(pass, step, StageKind::reorder);
  for (const GroupOrder& group : exchange.groups) {
    for (const RankId rank : group.ranks) {
      const ExchangeSeat& seat = exchange.seats[rank];
      builder.add_reorder(seat.seat.rank, seat.seat.dq, seat.dq_ranked, group.q.to_ranks);
      builder.add_reorder(seat.seat.rank, seat.seat.dkv, seat.dkv_ranked, group.kv.to_ranks);
    }
  }
  builder.close_stage();
  // Shares of replicated KV heads are added, so home starts from zero.
  builder.open_stage(pass, step, StageKind::merge);
  for (const RankId rank : builder.ranks())
    builder.add_merge(rank, kNoBuffer, builder.plan().home[rank].dkv, 0);
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::transfer);
  add_transfers_out(
      builder, exchange, Payload::dq, [](const HomeBuffers& home) { return home.dq; },
      [](const ExchangeSeat& seat) { return seat.dq_ranked; });
  add_dkv_transfers_out(builder, exchange);
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::finish);
  for (const RankId rank : builder.ranks()) builder.add_finish(rank, builder.plan().home[rank].dkv);
  builder.close_stage();
}

std::optional<Error> plan_single_step_forward(PlanBuilder& builder, const std::vector<Seat>& seats,
                                              const std::vector<SliceJob>& jobs,
                                              const std::vector<PieceTable>& q_tables,
                                              const std::vector<PieceTable>& kv_tables,
                                              std::vector<SliceRange>& ranges) {
  auto found = intersect_all(builder, q_tables, kv_tables, jobs);
  if (!found) return too_many_slices();
  // There is either one job per seat or a single job for all seats.
  ranges.clear();
  for (size_t s = 0; s < seats.size(); ++s)
    ranges.push_back(found->size() == seats.size() ? (*found)[s] : found->front());
  Pass& pass = builder.plan().forward;
  std::vector<BufferId> partial;
  for (const Seat& seat : seats) partial.push_back(builder.add_partial(seat.out));
  builder.open_stage(pass, 0, StageKind::compute);
  for (size_t s = 0; s < seats.size(); ++s)
    builder.add_compute(
        forward_item(seats[s], seats[s].kv, seats[s].kv_tokens, partial[s], ranges[s]));
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::merge);
  for (size_t s = 0; s < seats.size(); ++s) {
    builder.add_merge(seats[s].rank, ranges[s].count > 0 ? partial[s] : kNoBuffer, seats[s].out, 0);
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::finish);
  for (const Seat& seat : seats) builder.add_finish(seat.rank, seat.out);
  builder.close_stage();
  return std::nullopt;
}

void plan_single_step_backward(PlanBuilder& builder, const std::vector<Seat>& seats,
                               const std::vector<SliceRange>& ranges) {
  Pass& pass = builder.plan().backward;
  std::vector<BufferId> dq, dkv;
  for (const Seat& seat : seats) {
    dq.push_back(builder.add_partial(seat.dq));
    dkv.push_back(builder.add_partial(seat.dkv));
  }
  builder.open_stage(pass, 0, StageKind::compute);
  for (size_t s = 0; s < seats.size(); ++s) {
    ComputeItem item =
        forward_item(seats[s], seats[s].kv, seats[s].kv_tokens, seats[s].out, ranges[s]);
    item.d_out = seats[s].d_out;
    item.dq = dq[s];
    item.dkv = dkv[s];
    builder.add_compute(item);
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::merge);
  for (size_t s = 0; s < seats.size(); ++s) {
    const bool works = ranges[s].count > 0;
    builder.add_merge(seats[s].rank, works ? dq[s] : kNoBuffer, seats[s].dq, 0);
    builder.add_merge(seats[s].rank, works ? dkv[s] : kNoBuffer, seats[s].dkv, 0);
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::finish);
  for (const Seat& seat : seats) builder.add_finish(seat.rank, seat.dq);
  builder.close_stage();
}

std::optional<Error> plan_a2a(PlanBuilder& builder) {
  std::vector<RankId> ranks;
  for (const RankId rank : builder.ranks()) ranks.push_back(rank);
  const HeadExchange exchange = make_head_exchange(builder, {ranks});
  plan_exchange_in(builder, exchange);
  std::vector<Seat> seats;
  for (const ExchangeSeat& seat : exchange.seats) seats.push_back(seat.seat);
  // Every rank has the whole batch in sequence order, so one intersection is enough for all.
  const std::vector<PieceTable> q_tables{
      make_pieces(builder.plan().list(seats.front().q_tokens), builder.slots(), Side::q)};
  const std::vector<PieceTable> kv_tables{
      make_pieces(builder.plan().list(seats.front().kv_tokens), builder.slots(), Side::kv)};
  std::vector<SliceRange> ranges;
  if (auto error =
          plan_single_step_forward(builder, seats, {SliceJob{0, 0}}, q_tables, kv_tables, ranges))
    return error;
  plan_exchange_out(builder, exchange, 0);
  if (!builder.has_backward()) return std::nullopt;
  plan_gradient_exchange_in(builder, exchange);
  plan_single_step_backward(builder, seats, ranges);
  plan_gradient_exchange_out(builder, exchange, 0);
  return std::nullopt;
}

}  // namespace cpscope
