#include "sim/plan/planner/replicated_keys.h"

#include <algorithm>

namespace cpscope {
namespace {

/// Replicated tokens [begin, end) of one sequence, and their first row among all of them.
struct ReplicatedRun {
  int64_t begin, end, row;
};

std::vector<ReplicatedRun> replicated_runs(const PlanBuilder& builder) {
  std::vector<ReplicatedRun> runs;
  int64_t row = 0;
  for (const SequenceSlot& slot : builder.slots().sequences) {
    const int64_t count = std::min(builder.scenario().parallel.kv_replicated, slot.kv_valid);
    if (count > 0) runs.push_back({slot.kv_valid_begin(), slot.kv_valid_begin() + count, row});
    row += count;
  }
  return runs;
}

/// Rows of one rank's home buffers.
struct RankRows {
  std::vector<TokenRun> owned, home_rows, other_rows, other_tokens;
};

RankRows split_rows(std::span<const TokenRun> list, const std::vector<ReplicatedRun>& replicated) {
  RankRows rows;
  int64_t first_row = 0;
  for (const TokenRun& run : list) {
    // The first token of the run that is not below an id.
    const auto index_of = [&](int64_t id) {
      return id <= run.begin
                 ? 0
                 : std::min(run.count(), (id - run.begin + run.stride - 1) / run.stride);
    };
    auto next = std::partition_point(replicated.begin(), replicated.end(),
                                     [&](const ReplicatedRun& r) { return r.end <= run.begin; });
    for (int64_t i = 0; i < run.count();) {
      const int64_t token = run.at(i);
      while (next != replicated.end() && next->end <= token) ++next;
      const bool is_replicated = next != replicated.end() && token >= next->begin;
      const int64_t end = next == replicated.end()
                              ? run.count()
                              : index_of(is_replicated ? next->end : next->begin);
      const TokenRun home{first_row + i, first_row + end, 1};
      if (is_replicated) {
        append_run(rows.home_rows, home);
        append_run(rows.owned, {next->row + token - next->begin,
                                next->row + run.at(end - 1) - next->begin + 1, run.stride});
      } else {
        append_run(rows.other_rows, home);
        append_run(rows.other_tokens, {token, run.at(end - 1) + 1, run.stride});
      }
      i = end;
    }
    first_row += run.count();
  }
  return rows;
}

}  // namespace

ReplicatedKeys add_replicated_keys(PlanBuilder& builder) {
  ReplicatedKeys keys;
  const std::vector<ReplicatedRun> runs = replicated_runs(builder);
  if (runs.empty()) {
    for (const RankId rank : builder.ranks()) {
      keys.other_rows.push_back(kAllRows);
      keys.other_tokens.push_back(builder.plan().kv_lists[rank]);
    }
    return keys;
  }
  std::vector<TokenRun> tokens;
  for (const ReplicatedRun& run : runs) append_run(tokens, {run.begin, run.end, 1});
  keys.tokens = builder.add_list(tokens);
  for (const RankId rank : builder.ranks()) {
    const RankRows rows = split_rows(builder.plan().list(builder.plan().kv_lists[rank]), runs);
    keys.owned.push_back(builder.add_list(rows.owned));
    keys.home_rows.push_back(builder.add_list(rows.home_rows));
    keys.other_rows.push_back(builder.add_list(rows.other_rows));
    keys.other_tokens.push_back(builder.add_list(rows.other_tokens));
    builder.plan().home[rank].replica = builder.add_buffer(rank, BufferKind::kv, BufferRole::home,
                                                           keys.tokens, builder.all_kv_heads());
  }
  return keys;
}

std::optional<Error> ReplicaWork::find(PlanBuilder& builder, const ReplicatedKeys& keys,
                                       const std::vector<Seat>& seats) {
  keys_ = &keys;
  if (!keys.are_there()) return std::nullopt;
  std::map<RunListId, int32_t> tables;  // seats with the same queries share the result
  std::vector<PieceTable> q_tables;
  std::vector<SliceJob> jobs;
  for (const Seat& seat : seats) {
    const auto [found, is_new] =
        tables.try_emplace(seat.q_tokens, static_cast<int32_t>(q_tables.size()));
    if (!is_new) continue;
    q_tables.push_back(make_pieces(builder.plan().list(seat.q_tokens), builder.slots(), Side::q));
    jobs.push_back({found->second, 0});
  }
  const auto ranges = intersect_all(
      builder, q_tables, {make_pieces(builder.plan().list(keys.tokens), builder.slots(), Side::kv)},
      jobs);
  if (!ranges) return too_many_slices();
  for (const Seat& seat : seats)
    ranges_[seat.rank] = (*ranges)[static_cast<size_t>(tables.at(seat.q_tokens))];
  return std::nullopt;
}

void ReplicaWork::add_forward(PlanBuilder& builder, const std::vector<Seat>& seats, int32_t step,
                              std::map<BufferId, int32_t>& merges) const {
  if (!keys_->are_there()) return;
  Pass& pass = builder.plan().forward;
  std::vector<BufferId> partial;
  builder.open_stage(pass, step, StageKind::compute);
  for (const Seat& seat : seats) {
    partial.push_back(builder.add_partial(seat.out));
    builder.add_compute(forward_item(seat, builder.plan().home[seat.rank].replica, keys_->tokens,
                                     partial.back(), range_of(seat)));
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::merge);
  for (size_t s = 0; s < seats.size(); ++s) {
    if (range_of(seats[s]).count > 0)
      builder.add_merge(seats[s].rank, partial[s], seats[s].out, merges[seats[s].out]++);
  }
  builder.close_stage();
}

void ReplicaWork::add_backward(PlanBuilder& builder, const std::vector<Seat>& seats, int32_t step,
                               std::map<BufferId, int32_t>& merges) {
  if (!keys_->are_there()) return;
  Pass& pass = builder.plan().backward;
  std::vector<BufferId> dq, dkv, shares;
  for (const Seat& seat : seats) {
    const auto [share, is_new] = shares_.try_emplace({seat.rank, seat.kv_heads.begin}, kNoBuffer);
    if (is_new)
      share->second = builder.add_buffer(seat.rank, BufferKind::dkv, BufferRole::moved,
                                         keys_->tokens, seat.kv_heads);
    shares.push_back(share->second);
    dq.push_back(builder.add_partial(seat.dq));
    dkv.push_back(builder.add_partial(share->second));
  }
  builder.open_stage(pass, step, StageKind::compute);
  for (size_t s = 0; s < seats.size(); ++s) {
    ComputeItem item = forward_item(seats[s], builder.plan().home[seats[s].rank].replica,
                                    keys_->tokens, seats[s].out, range_of(seats[s]));
    item.d_out = seats[s].d_out;
    item.dq = dq[s];
    item.dkv = dkv[s];
    builder.add_compute(item);
  }
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::merge);
  for (size_t s = 0; s < seats.size(); ++s) {
    const bool works = range_of(seats[s]).count > 0;
    if (works) builder.add_merge(seats[s].rank, dq[s], seats[s].dq, merges[seats[s].dq]++);
    int32_t& order = merges[shares[s]];
    if (works || order == 0)
      builder.add_merge(seats[s].rank, works ? dkv[s] : kNoBuffer, shares[s], order++);
  }
  builder.close_stage();
}

void ReplicaWork::add_shares_home(PlanBuilder& builder, int32_t step) const {
  builder.open_stage(builder.plan().backward, step, StageKind::transfer);
  for (const RankId owner : builder.ranks()) {
    for (const auto& [key, share] : shares_) {
      TransferItem item;
      item.src = key.first;
      item.dst = owner;
      item.from = share;
      item.to = builder.plan().home[owner].dkv;
      item.from_rows = keys_->owned[owner];
      item.to_rows = keys_->home_rows[owner];
      item.heads = builder.plan().buffer(share).heads;
      item.payload = Payload::dkv;
      item.link = LinkClass::direct;
      item.landing = Landing::add;
      item.wire_fp32 = builder.scenario().numerics.dkv_wire == WireFormat::fp32;
      builder.add_transfer(item);
    }
  }
  builder.close_stage();
}

}  // namespace cpscope
