#include "sim/plan/planner/replicated_keys.h"

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

/// `replicated`: keys that every rank holds are not exchanged.
GroupSide make_group_side(PlanBuilder& builder, const std::vector<RankId>& ranks, Side side,
                          const ReplicatedKeys& replicated) {
  std::vector<std::vector<TokenRun>> runs;
  GroupSide made;
  for (const RankId rank : ranks) {
    const auto list = builder.plan().list(side == Side::kv ? replicated.other_tokens[rank]
                                                           : builder.plan().q_lists[rank]);
    runs.emplace_back(list.begin(), list.end());
    made.home_rows.push_back(side == Side::kv ? replicated.other_rows[rank] : kAllRows);
  }
  const ReorderIndex index = reorder_to_sequence(runs);
  made.to_sequence = builder.add_list(index.rank_to_sequence);
  made.to_ranks = builder.add_list(index.sequence_to_rank);
  made.rows = row_lists(builder, runs);
  made.ranked = builder.add_list(concatenate(runs));
  made.sequence = builder.add_list(index.sequence_tokens);
  return made;
}

GroupOrder make_group_order(PlanBuilder& builder, const std::vector<RankId>& ranks,
                            const ReplicatedKeys& replicated) {
  GroupOrder order;
  order.ranks = ranks;
  order.q = make_group_side(builder, ranks, Side::q, replicated);
  const bool is_same = builder.plan().layout.same_kv && !replicated.are_there();
  order.kv = is_same ? order.q : make_group_side(builder, ranks, Side::kv, replicated);
  return order;
}

/// Query heads of a rank in one stage, and the KV heads that they read.
struct StagePart {
  HeadRange heads, kv_heads;
  int32_t first_stage = 0, last_stage = 0;  // that read these KV heads
};

HeadRange overlap(HeadRange a, HeadRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// [stage] The parts of a rank's query heads. KV heads that the same stages read are one part.
std::vector<std::vector<StagePart>> cut_in_stages(const Attention& attention, HeadRange share,
                                                  int32_t heads_per_stage) {
  const int32_t size = heads_per_stage == 0 ? share.size() : heads_per_stage;
  const int32_t readers = attention.heads / attention.kv_heads;
  const auto stage_of = [&](int32_t head) { return (head - share.begin) / size; };
  std::vector<StagePart> wholes;
  for (int32_t kv = kv_heads_of(attention, share).begin; kv * readers < share.end; ++kv) {
    const HeadRange heads = overlap(share, {kv * readers, (kv + 1) * readers});
    const int32_t first = stage_of(heads.begin), last = stage_of(heads.end - 1);
    if (!wholes.empty() && wholes.back().first_stage == first && wholes.back().last_stage == last) {
      wholes.back().heads.end = heads.end;
      wholes.back().kv_heads.end = kv + 1;
    } else {
      wholes.push_back({heads, {kv, kv + 1}, first, last});
    }
  }
  std::vector<std::vector<StagePart>> stages(static_cast<size_t>(stage_of(share.end - 1)) + 1);
  for (const StagePart& whole : wholes) {
    for (int32_t stage = whole.first_stage; stage <= whole.last_stage; ++stage) {
      const int32_t begin = share.begin + stage * size;
      StagePart part = whole;
      part.heads = overlap(whole.heads, {begin, std::min(share.end, begin + size)});
      stages[static_cast<size_t>(stage)].push_back(part);
    }
  }
  return stages;
}

/// `before`: the seat of an earlier stage with the same KV heads, or null.
ExchangeSeat make_seat(PlanBuilder& builder, RankId rank, const StagePart& part,
                       const GroupOrder& group, const ExchangeSeat* before) {
  const auto add = [&](BufferKind kind, BufferRole role) {
    const bool is_kv = kind == BufferKind::kv || kind == BufferKind::dkv;
    const GroupSide& side = is_kv ? group.kv : group.q;
    return builder.add_buffer(rank, kind, role,
                              role == BufferRole::rank_order ? side.ranked : side.sequence,
                              is_kv ? part.kv_heads : part.heads);
  };
  ExchangeSeat out;
  out.seat = {rank, group.q.sequence, group.kv.sequence, part.heads, part.kv_heads};
  out.q_ranked = add(BufferKind::q, BufferRole::rank_order);
  out.kv_ranked = before ? before->kv_ranked : add(BufferKind::kv, BufferRole::rank_order);
  out.out_ranked = add(BufferKind::out, BufferRole::rank_order);
  out.seat.q = add(BufferKind::q, BufferRole::sequence_order);
  out.seat.kv = before ? before->seat.kv : add(BufferKind::kv, BufferRole::sequence_order);
  out.seat.out = add(BufferKind::out, BufferRole::sequence_order);
  if (!builder.has_backward()) return out;
  out.d_out_ranked = add(BufferKind::d_out, BufferRole::rank_order);
  out.dq_ranked = add(BufferKind::dq, BufferRole::rank_order);
  out.dkv_ranked = before ? before->dkv_ranked : add(BufferKind::dkv, BufferRole::rank_order);
  out.seat.d_out = add(BufferKind::d_out, BufferRole::sequence_order);
  out.seat.dq = add(BufferKind::dq, BufferRole::sequence_order);
  out.seat.dkv = before ? before->seat.dkv : add(BufferKind::dkv, BufferRole::sequence_order);
  return out;
}

/// Every rank of a group sends each other rank the rows of its own tokens for that rank's heads.
/// `home_of` and `ranked_of` select the buffers; `side` selects head range and rows.
template <class HomeOf, class RankedOf>
void add_transfers_in(PlanBuilder& builder, const HeadExchange& exchange, int32_t stage,
                      Payload payload, Side side, HomeOf home_of, RankedOf ranked_of) {
  for (const ExchangeSeat& seat : exchange.stages[static_cast<size_t>(stage)]) {
    if (side == Side::kv && !seat.is_first) continue;
    const GroupOrder& group = exchange.groups[seat.group];
    for (size_t index = 0; index < group.ranks.size(); ++index) {
      TransferItem item;
      item.src = group.ranks[index];
      item.dst = seat.seat.rank;
      item.from = home_of(builder.plan().home[item.src]);
      item.to = ranked_of(seat);
      item.from_rows = group.side(side).home_rows[index];
      item.to_rows = group.side(side).rows[index];
      item.heads = side == Side::q ? seat.seat.heads : seat.seat.kv_heads;
      item.payload = payload;
      item.link = LinkClass::group;
      builder.add_transfer(item);
    }
  }
}

/// The reverse exchange for the query side: each rank's heads return to the owner of the rows.
template <class HomeOf, class RankedOf>
void add_transfers_out(PlanBuilder& builder, const HeadExchange& exchange, int32_t stage,
                       Payload payload, HomeOf home_of, RankedOf ranked_of) {
  for (size_t g = 0; g < exchange.groups.size(); ++g) {
    const GroupOrder& group = exchange.groups[g];
    for (size_t index = 0; index < group.ranks.size(); ++index) {
      for (const ExchangeSeat& seat : exchange.seats(stage, g)) {
        TransferItem item;
        item.src = seat.seat.rank;
        item.dst = group.ranks[index];
        item.from = ranked_of(seat);
        item.to = home_of(builder.plan().home[item.dst]);
        item.from_rows = group.q.rows[index];
        item.heads = seat.seat.heads;
        item.payload = payload;
        item.link = LinkClass::group;
        builder.add_transfer(item);
      }
    }
  }
}

/// Splits `heads` into ranges of KV heads that one rank of a group reads, or that several read
/// (second = true).
std::vector<std::pair<HeadRange, bool>> split_by_sharing(const HeadExchange& exchange,
                                                         HeadRange heads) {
  std::vector<std::pair<HeadRange, bool>> parts;
  for (int32_t head = heads.begin; head < heads.end; ++head) {
    const bool is_shared = exchange.is_shared[static_cast<size_t>(head)];
    if (!parts.empty() && parts.back().second == is_shared) {
      parts.back().first.end = head + 1;
    } else {
      parts.push_back({{head, head + 1}, is_shared});
    }
  }
  return parts;
}

void add_dkv_transfers_out(PlanBuilder& builder, const HeadExchange& exchange, int32_t stage) {
  const bool wire_fp32 = builder.scenario().numerics.dkv_wire == WireFormat::fp32;
  for (size_t g = 0; g < exchange.groups.size(); ++g) {
    const GroupOrder& group = exchange.groups[g];
    for (size_t index = 0; index < group.ranks.size(); ++index) {
      for (const ExchangeSeat& seat : exchange.seats(stage, g)) {
        if (!seat.is_last) continue;
        for (const auto& [heads, is_shared] : split_by_sharing(exchange, seat.seat.kv_heads)) {
          TransferItem item;
          item.src = seat.seat.rank;
          item.dst = group.ranks[index];
          item.from = seat.dkv_ranked;
          item.to = builder.plan().home[item.dst].dkv;
          item.from_rows = group.kv.rows[index];
          item.to_rows = group.kv.home_rows[index];
          item.heads = heads;
          item.payload = Payload::dkv;
          item.link = LinkClass::group;
          item.landing = Landing::add;
          item.wire_fp32 = wire_fp32 && is_shared;
          builder.add_transfer(item);
        }
      }
    }
  }
}

/// A stage of reorders: calls add(seat, its group) for every seat of a stage of heads.
template <class Add>
void add_reorders(PlanBuilder& builder, const HeadExchange& exchange, Pass& pass, int32_t stage,
                  int32_t step, Add add) {
  builder.open_stage(pass, step, StageKind::reorder);
  for (const ExchangeSeat& seat : exchange.stages[static_cast<size_t>(stage)])
    add(seat, exchange.groups[seat.group]);
  builder.close_stage();
}

}  // namespace

std::span<const ExchangeSeat> HeadExchange::seats(int32_t stage, size_t group) const {
  const auto& all = stages[static_cast<size_t>(stage)];
  const auto is_before = [](const ExchangeSeat& seat, size_t g) { return seat.group < g; };
  const auto begin = std::lower_bound(all.begin(), all.end(), group, is_before);
  const auto end = std::lower_bound(begin, all.end(), group + 1, is_before);
  // The library of the page's compiler has no span of two iterators.
  return std::span(all).subspan(static_cast<size_t>(begin - all.begin()),
                                static_cast<size_t>(end - begin));
}

HeadExchange make_head_exchange(PlanBuilder& builder,
                                const std::vector<std::vector<RankId>>& groups,
                                const ReplicatedKeys& replicated, int32_t heads_per_stage) {
  const Attention& attention = builder.attention();
  HeadExchange exchange;
  const auto size = static_cast<int64_t>(groups.front().size());
  std::vector<std::vector<std::vector<StagePart>>> parts;  // [member of a group][stage]
  std::vector<int32_t> readers(static_cast<size_t>(attention.kv_heads), 0);
  for (int64_t member = 0; member < size; ++member) {
    const HeadRange share{static_cast<int32_t>(member * attention.heads / size),
                          static_cast<int32_t>((member + 1) * attention.heads / size)};
    parts.push_back(cut_in_stages(attention, share, heads_per_stage));
    const HeadRange kv_heads = kv_heads_of(attention, share);
    for (int32_t head = kv_heads.begin; head < kv_heads.end; ++head)
      ++readers[static_cast<size_t>(head)];
  }
  for (const int32_t count : readers) exchange.is_shared.push_back(count > 1);
  for (const auto& of_member : parts)
    exchange.stages.resize(std::max(exchange.stages.size(), of_member.size()));
  for (const std::vector<RankId>& ranks : groups) {
    const size_t group = exchange.groups.size();
    exchange.groups.push_back(make_group_order(builder, ranks, replicated));
    for (size_t member = 0; member < ranks.size(); ++member) {
      std::map<int32_t, ExchangeSeat> holders;  // by first KV head
      for (size_t stage = 0; stage < parts[member].size(); ++stage) {
        for (const StagePart& part : parts[member][stage]) {
          const auto before = holders.find(part.kv_heads.begin);
          ExchangeSeat seat = make_seat(builder, ranks[member], part, exchange.groups.back(),
                                        before == holders.end() ? nullptr : &before->second);
          seat.group = group;
          seat.is_first = static_cast<int32_t>(stage) == part.first_stage;
          seat.is_last = static_cast<int32_t>(stage) == part.last_stage;
          holders.try_emplace(part.kv_heads.begin, seat);
          exchange.stages[stage].push_back(seat);
        }
      }
    }
  }
  return exchange;
}

void plan_exchange_in(PlanBuilder& builder, const HeadExchange& exchange, int32_t stage) {
  Pass& pass = builder.plan().forward;
  builder.open_stage(pass, stage, StageKind::transfer);
  add_transfers_in(
      builder, exchange, stage, Payload::q, Side::q, [](const HomeBuffers& home) { return home.q; },
      [](const ExchangeSeat& seat) { return seat.q_ranked; });
  add_transfers_in(
      builder, exchange, stage, Payload::kv, Side::kv,
      [](const HomeBuffers& home) { return home.kv; },
      [](const ExchangeSeat& seat) { return seat.kv_ranked; });
  builder.close_stage();
  add_reorders(
      builder, exchange, pass, stage, stage,
      [&](const ExchangeSeat& seat, const GroupOrder& group) {
        builder.add_reorder(seat.seat.rank, seat.q_ranked, seat.seat.q, group.q.to_sequence);
        if (seat.is_first)
          builder.add_reorder(seat.seat.rank, seat.kv_ranked, seat.seat.kv, group.kv.to_sequence);
      });
}

void plan_exchange_out(PlanBuilder& builder, const HeadExchange& exchange, int32_t stage,
                       int32_t step) {
  Pass& pass = builder.plan().forward;
  add_reorders(
      builder, exchange, pass, stage, step, [&](const ExchangeSeat& seat, const GroupOrder& group) {
        builder.add_reorder(seat.seat.rank, seat.seat.out, seat.out_ranked, group.q.to_ranks);
      });
  builder.open_stage(pass, step, StageKind::transfer);
  add_transfers_out(
      builder, exchange, stage, Payload::out, [](const HomeBuffers& home) { return home.out; },
      [](const ExchangeSeat& seat) { return seat.out_ranked; });
  builder.close_stage();
}

void plan_gradient_exchange_in(PlanBuilder& builder, const HeadExchange& exchange, int32_t stage) {
  Pass& pass = builder.plan().backward;
  builder.open_stage(pass, stage, StageKind::transfer);
  add_transfers_in(
      builder, exchange, stage, Payload::d_out, Side::q,
      [](const HomeBuffers& home) { return home.d_out; },
      [](const ExchangeSeat& seat) { return seat.d_out_ranked; });
  builder.close_stage();
  add_reorders(builder, exchange, pass, stage, stage,
               [&](const ExchangeSeat& seat, const GroupOrder& group) {
                 builder.add_reorder(seat.seat.rank, seat.d_out_ranked, seat.seat.d_out,
                                     group.q.to_sequence);
               });
}

void plan_gradient_exchange_out(PlanBuilder& builder, const HeadExchange& exchange,
                                const ReplicaWork& replica, int32_t stage, int32_t step) {
  Pass& pass = builder.plan().backward;
  add_reorders(
      builder, exchange, pass, stage, step, [&](const ExchangeSeat& seat, const GroupOrder& group) {
        builder.add_reorder(seat.seat.rank, seat.seat.dq, seat.dq_ranked, group.q.to_ranks);
        if (seat.is_last)
          builder.add_reorder(seat.seat.rank, seat.seat.dkv, seat.dkv_ranked, group.kv.to_ranks);
      });
  // Shares of shared KV heads are added, so home starts from zero.
  builder.open_stage(pass, step, StageKind::merge);
  for (const RankId rank : builder.ranks()) {
    if (stage == 0) builder.add_merge(rank, kNoBuffer, builder.plan().home[rank].dkv, 0);
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::transfer);
  add_transfers_out(
      builder, exchange, stage, Payload::dq, [](const HomeBuffers& home) { return home.dq; },
      [](const ExchangeSeat& seat) { return seat.dq_ranked; });
  add_dkv_transfers_out(builder, exchange, stage);
  builder.close_stage();
  if (stage + 1 < exchange.num_stages()) return;
  replica.add_shares_home(builder, step);
  builder.open_stage(pass, step, StageKind::finish);
  for (const RankId rank : builder.ranks()) builder.add_finish(rank, builder.plan().home[rank].dkv);
  builder.close_stage();
}

void plan_single_step_forward(PlanBuilder& builder, const std::vector<Seat>& seats,
                              const std::vector<SliceRange>& ranges, int32_t step,
                              std::map<BufferId, int32_t>& merges) {
  Pass& pass = builder.plan().forward;
  std::vector<BufferId> partial;
  for (const Seat& seat : seats) partial.push_back(builder.add_partial(seat.out));
  builder.open_stage(pass, step, StageKind::compute);
  for (size_t s = 0; s < seats.size(); ++s)
    builder.add_compute(
        forward_item(seats[s], seats[s].kv, seats[s].kv_tokens, partial[s], ranges[s]));
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::merge);
  for (size_t s = 0; s < seats.size(); ++s) {
    const bool works = ranges[s].count > 0;
    int32_t& order = merges[seats[s].out];
    // What has no work only starts a sum.
    if (works || order == 0)
      builder.add_merge(seats[s].rank, works ? partial[s] : kNoBuffer, seats[s].out, order++);
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::finish);
  for (const Seat& seat : seats) builder.add_finish(seat.rank, seat.out);
  builder.close_stage();
}

void plan_single_step_backward(PlanBuilder& builder, const std::vector<Seat>& seats,
                               const std::vector<SliceRange>& ranges, int32_t step,
                               std::map<BufferId, int32_t>& merges) {
  Pass& pass = builder.plan().backward;
  std::vector<BufferId> dq, dkv;
  for (const Seat& seat : seats) {
    dq.push_back(builder.add_partial(seat.dq));
    dkv.push_back(builder.add_partial(seat.dkv));
  }
  builder.open_stage(pass, step, StageKind::compute);
  for (size_t s = 0; s < seats.size(); ++s) {
    ComputeItem item =
        forward_item(seats[s], seats[s].kv, seats[s].kv_tokens, seats[s].out, ranges[s]);
    item.d_out = seats[s].d_out;
    item.dq = dq[s];
    item.dkv = dkv[s];
    builder.add_compute(item);
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::merge);
  for (size_t s = 0; s < seats.size(); ++s) {
    const bool works = ranges[s].count > 0;
    for (const auto& [partial, sum] :
         {std::pair(dq[s], seats[s].dq), std::pair(dkv[s], seats[s].dkv)}) {
      int32_t& order = merges[sum];
      if (works || order == 0)
        builder.add_merge(seats[s].rank, works ? partial : kNoBuffer, sum, order++);
    }
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::finish);
  for (const Seat& seat : seats) builder.add_finish(seat.rank, seat.dq);
  builder.close_stage();
}

std::optional<Error> plan_a2a(PlanBuilder& builder) {
  std::vector<RankId> ranks;
  for (const RankId rank : builder.ranks()) ranks.push_back(rank);
  const ReplicatedKeys replicated = add_replicated_keys(builder);
  const HeadExchange exchange =
      make_head_exchange(builder, {ranks}, replicated, builder.scenario().parallel.heads_per_stage);
  // Every rank has the whole batch in sequence order, so one intersection is enough for all.
  const GroupOrder& group = exchange.groups.front();
  const auto found = intersect_all(
      builder, {make_pieces(builder.plan().list(group.q.sequence), builder.slots(), Side::q)},
      {make_pieces(builder.plan().list(group.kv.sequence), builder.slots(), Side::kv)},
      {SliceJob{0, 0}});
  if (!found) return too_many_slices();
  const auto seats_of = [&](int32_t stage) {
    std::vector<Seat> seats;
    for (const ExchangeSeat& seat : exchange.seats(stage, 0)) seats.push_back(seat.seat);
    return seats;
  };
  ReplicaWork replica;
  if (auto error = replica.find(builder, replicated, seats_of(0))) return error;
  std::map<BufferId, int32_t> merges;
  for (int32_t stage = 0; stage < exchange.num_stages(); ++stage) {
    const std::vector<Seat> seats = seats_of(stage);
    plan_exchange_in(builder, exchange, stage);
    replica.add_forward(builder, seats, stage, merges);
    plan_single_step_forward(builder, seats, {seats.size(), found->front()}, stage, merges);
    plan_exchange_out(builder, exchange, stage, stage);
  }
  for (int32_t stage = 0; builder.has_backward() && stage < exchange.num_stages(); ++stage) {
    const std::vector<Seat> seats = seats_of(stage);
    plan_gradient_exchange_in(builder, exchange, stage);
    replica.add_backward(builder, seats, stage, merges);
    plan_single_step_backward(builder, seats, {seats.size(), found->front()}, stage, merges);
    plan_gradient_exchange_out(builder, exchange, replica, stage, stage);
  }
  return std::nullopt;
}

}  // namespace cpscope
