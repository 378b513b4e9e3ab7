#include "sim/base/parallel.h"
#include "sim/plan/planner/needed_rows.h"
#include "sim/plan/planner/planner_parts.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <queue>
#include <span>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Rows sent between two ranks, as row lists of both buffers.
struct Exchange {
  RankId src{}, dst{};
  RunListId from_rows{}, to_rows{};
};

/// The group-cast of one rank: where its queries are computed and which remote KV they need.
struct CastRank {
  Seat seat;                      // queries as computed here; kv is the rank's own
  BufferId received = kNoBuffer;  // remote KV, kNoBuffer when none is needed
  BufferId d_received = kNoBuffer;
  RunListId received_tokens{};
  std::vector<Exchange> kv;  // who sends which KV rows here, by source
};

/// Queries of one rank that one rank computes.
struct QueryShare {
  RankId owner{}, worker{};
  std::vector<TokenRun> rows;  // of the owner's home buffer
  int64_t area = 0;
};

struct CastPlan {
  IdVector<RankId, CastRank> ranks;
  std::vector<Exchange> queries;  // dispatch = queries: owner -> worker
};

constexpr int64_t kSharesPerRank = 2;

/// The tokens of some rows of a rank's home q buffer: ascending runs of stride 1.
std::vector<TokenRun> query_tokens(const Plan& plan, RankId owner, std::span<const TokenRun> rows) {
  const std::span<const TokenRun> home = plan.list(plan.q_lists[owner]);
  std::vector<TokenRun> tokens;
  size_t at = 0;      // run of the home buffer
  int64_t first = 0;  // its first row
  for (const TokenRun& run : rows) {
    for (int64_t row = run.begin; row < run.end;) {
      while (first + home[at].count() <= row) first += home[at++].count();
      const int64_t stop = std::min(run.end, first + home[at].count());
      append_run(tokens,
                 {home[at].at(row - first), home[at].at(stop - 1 - first) + 1, home[at].stride});
      row = stop;
    }
  }
  return tokens;
}

/// Two shares per rank, assigned so that every worker gets the same number and the loads are even:
/// largest first (equal areas: lower id first) to the least loaded worker (equal loads: lower rank)
/// that has room. Source: torchtitan PR #2543.
std::vector<QueryShare> assign_queries(const PlanBuilder& builder) {
  const Plan& plan = builder.plan();
  std::vector<QueryShare> shares;
  for (const RankId rank : builder.ranks()) {
    const int64_t rows = plan.rows(plan.q_lists[rank]);
    for (int64_t part = 0; part < kSharesPerRank; ++part) {
      QueryShare share{rank, {}, {}, 0};
      append_run(share.rows, {rows * part / kSharesPerRank, rows * (part + 1) / kSharesPerRank, 1});
      const PieceTable pieces =
          make_pieces(query_tokens(plan, rank, share.rows), builder.slots(), Side::q);
      for (const Piece& piece : pieces.pieces) {
        for (const Band& band : builder.mask().near_rows(piece.sequence, piece.position,
                                                         piece.position_of(piece.count - 1) + 1)) {
          if (piece.stride == 1) {
            share.area += count_pairs_in_rows(band, piece.position, piece.position_of(piece.count));
            continue;
          }
          for (int64_t i = 0; i < piece.count; ++i) {
            const ColumnRange columns = columns_of_row(band, piece.position_of(i));
            share.area += std::max<int64_t>(0, columns.end - columns.begin);
          }
        }
      }
      shares.push_back(share);
    }
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return shares[a].area > shares[b].area; });
  std::priority_queue<std::pair<int64_t, RankId>, std::vector<std::pair<int64_t, RankId>>,
                      std::greater<>>
      by_load;
  IdVector<RankId, int64_t> held(static_cast<size_t>(builder.num_ranks()));
  for (const RankId rank : held.ids()) by_load.emplace(0, rank);
  for (const size_t id : order) {
    const auto [load, worker] = by_load.top();
    by_load.pop();
    shares[id].worker = worker;
    if (++held[worker] < kSharesPerRank) by_load.emplace(load + shares[id].area, worker);
  }
  return shares;
}

/// Rows of the pieces that see a key, as ascending disjoint runs of stride 1.
std::vector<TokenRun> seeing_rows(const PieceTable& q, const MaskBands& mask) {
  std::vector<TokenRun> found;
  for (const Piece& piece : q.pieces) {
    const auto index_from = [&](int64_t position) {
      return (position - piece.position + piece.stride - 1) / piece.stride;
    };
    const int64_t end = piece.position_of(piece.count - 1) + 1;
    for (const Band& band : mask.near_rows(piece.sequence, piece.position, end)) {
      const Band part = clip(band, piece.position, end, band.k0, band.k1);
      if (part.q1 == 0) continue;
      found.push_back({piece.row + index_from(part.q0), piece.row + index_from(part.q1), 1});
    }
  }
  return merge_ranges(std::move(found));
}

/// Leaves rows that see no key, padding among them, with their owner: nobody needs them elsewhere,
/// and their results are empty. They come last on their rank.
void keep_idle_queries(const PlanBuilder& builder, std::vector<QueryShare>& shares) {
  IdVector<RankId, std::vector<TokenRun>> kept(static_cast<size_t>(builder.num_ranks()));
  for (QueryShare& share : shares) {
    if (share.worker == share.owner || share.rows.empty()) continue;
    const TokenRun all = share.rows.front();
    const PieceTable pieces = make_pieces(query_tokens(builder.plan(), share.owner, share.rows),
                                          builder.slots(), Side::q);
    share.rows.clear();
    int64_t next = all.begin;
    for (const TokenRun& run : seeing_rows(pieces, builder.mask())) {
      append_run(kept[share.owner], {next, all.begin + run.begin, 1});
      next = all.begin + run.end;
      append_run(share.rows, {all.begin + run.begin, next, 1});
    }
    append_run(kept[share.owner], {next, all.end, 1});
  }
  for (const RankId rank : kept.ids()) {
    if (!kept[rank].empty()) shares.push_back({rank, rank, std::move(kept[rank]), 0});
  }
}

/// Adds the moved query-side buffers of every worker, and the exchanges that fill them.
void move_queries(PlanBuilder& builder, CastPlan& cast) {
  std::vector<QueryShare> shares = assign_queries(builder);
  keep_idle_queries(builder, shares);
  for (const RankId worker : builder.ranks()) {
    std::vector<TokenRun> tokens;
    int64_t row = 0;
    for (const QueryShare& share : shares) {
      if (share.worker != worker || share.rows.empty()) continue;
      const auto part = query_tokens(builder.plan(), share.owner, share.rows);
      tokens.insert(tokens.end(), part.begin(), part.end());
      const int64_t count = count_ids(share.rows);
      cast.queries.push_back({share.owner, worker, builder.add_list(share.rows),
                              builder.add_list({{row, row + count, 1}})});
      row += count;
    }
    Seat& seat = cast.ranks[worker].seat;
    const RunListId list = builder.add_list(tokens);
    const auto add = [&](BufferKind kind) {
      return builder.add_buffer(seat.rank, kind, BufferRole::moved, list, seat.heads);
    };
    seat.q_tokens = list;
    seat.q = add(BufferKind::q);
    seat.out = add(BufferKind::out);
    if (!builder.has_backward()) continue;
    seat.d_out = add(BufferKind::d_out);
    seat.dq = add(BufferKind::dq);
  }
}

/// Adds the remote KV rows that a rank's queries need, and who sends them.
void add_remote_kv(PlanBuilder& builder, const KvOwners::Received& remote, CastRank& rank) {
  if (remote.tokens.empty()) return;
  rank.received_tokens = builder.add_list(remote.tokens);
  rank.received = builder.add_buffer(rank.seat.rank, BufferKind::kv, BufferRole::received,
                                     rank.received_tokens, rank.seat.kv_heads);
  if (builder.has_backward()) {
    rank.d_received = builder.add_buffer(rank.seat.rank, BufferKind::dkv, BufferRole::received,
                                         rank.received_tokens, rank.seat.kv_heads);
  }
  for (const KvOwners::Source& source : remote.sources) {
    rank.kv.push_back({source.rank, rank.seat.rank, builder.add_list(source.rows),
                       builder.add_list(source.to_rows)});
  }
}

void add_row_transfer(PlanBuilder& builder, const Exchange& exchange, Payload payload,
                      BufferId from, BufferId to, HeadRange heads, bool reversed) {
  TransferItem item;
  item.src = reversed ? exchange.dst : exchange.src;
  item.dst = reversed ? exchange.src : exchange.dst;
  item.from = from;
  item.to = to;
  item.from_rows = reversed ? exchange.to_rows : exchange.from_rows;
  item.to_rows = reversed ? exchange.from_rows : exchange.to_rows;
  item.heads = heads;
  item.payload = payload;
  item.link = LinkClass::direct;
  if (payload == Payload::dkv) {
    item.landing = Landing::add;
    item.wire_fp32 = builder.scenario().numerics.dkv_wire == WireFormat::fp32;
  }
  builder.add_transfer(item);
}

void add_kv_casts(PlanBuilder& builder, const CastPlan& cast) {
  for (const CastRank& rank : cast.ranks) {
    for (const Exchange& exchange : rank.kv) {
      add_row_transfer(builder, exchange, Payload::kv, builder.plan().home[exchange.src].kv,
                       rank.received, rank.seat.kv_heads, false);
    }
  }
}

/// Slices of each rank against its own KV ([2r]) and against the received one ([2r+1], empty when
/// nothing is received).
std::optional<std::vector<SliceRange>> find_cast_slices(PlanBuilder& builder, const CastPlan& cast,
                                                        const std::vector<PieceTable>& q_tables) {
  std::vector<RunListId> kv_lists;
  std::vector<SliceJob> jobs;
  for (const CastRank& rank : cast.ranks) {
    const int32_t r = to_index(rank.seat.rank);
    kv_lists.push_back(rank.seat.kv_tokens);
    kv_lists.push_back(rank.received == kNoBuffer ? kNoTokens : rank.received_tokens);
    jobs.push_back({r, 2 * r});
    jobs.push_back({r, 2 * r + 1});
  }
  return intersect_all(builder, q_tables, kv_lists, jobs);
}

/// The two halves of a rank's work: its own KV, then the received KV.
struct Half {
  RankId rank;
  BufferId kv, d_kv;
  RunListId tokens;
  SliceRange range;
};

std::vector<Half> halves_of(const CastPlan& cast, const std::vector<SliceRange>& ranges) {
  std::vector<Half> halves;
  for (const RankId id : cast.ranks.ids()) {
    const CastRank& rank = cast.ranks[id];
    const int32_t own = 2 * to_index(id);
    halves.push_back({id, rank.seat.kv, rank.seat.dkv, rank.seat.kv_tokens, ranges[own]});
    if (rank.received != kNoBuffer)
      halves.push_back({id, rank.received, rank.d_received, rank.received_tokens, ranges[own + 1]});
  }
  return halves;
}

void add_forward(PlanBuilder& builder, const CastPlan& cast, const std::vector<Half>& halves) {
  Pass& pass = builder.plan().forward;
  builder.open_stage(pass, 0, StageKind::transfer);
  for (const Exchange& move : cast.queries) {
    add_row_transfer(builder, move, Payload::q, builder.plan().home[move.src].q,
                     cast.ranks[move.dst].seat.q, builder.all_heads(), false);
  }
  add_kv_casts(builder, cast);
  builder.close_stage();
  std::vector<BufferId> partial;
  for (const Half& half : halves)
    partial.push_back(builder.add_partial(cast.ranks[half.rank].seat.out));
  builder.open_stage(pass, 0, StageKind::compute);
  for (size_t h = 0; h < halves.size(); ++h) {
    builder.add_compute(forward_item(cast.ranks[halves[h].rank].seat, halves[h].kv,
                                     halves[h].tokens, partial[h], halves[h].range));
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::merge);
  IdVector<RankId, int32_t> merges(cast.ranks.size());
  for (size_t h = 0; h < halves.size(); ++h) {
    const CastRank& rank = cast.ranks[halves[h].rank];
    if (halves[h].range.count > 0)
      builder.add_merge(rank.seat.rank, partial[h], rank.seat.out, merges[halves[h].rank]++);
  }
  for (const RankId rank : cast.ranks.ids()) {
    if (merges[rank] == 0) builder.add_merge(rank, kNoBuffer, cast.ranks[rank].seat.out, 0);
  }
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::finish);
  for (const CastRank& rank : cast.ranks) builder.add_finish(rank.seat.rank, rank.seat.out);
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::transfer);
  for (const Exchange& move : cast.queries) {
    add_row_transfer(builder, move, Payload::out, cast.ranks[move.dst].seat.out,
                     builder.plan().home[move.src].out, builder.all_heads(), true);
  }
  builder.close_stage();
}

void add_cast_gradient_merges(PlanBuilder& builder, const CastPlan& cast,
                              const std::vector<Half>& halves, const std::vector<BufferId>& dq,
                              const std::vector<BufferId>& dkv) {
  builder.open_stage(builder.plan().backward, 0, StageKind::merge);
  IdVector<RankId, int32_t> merges(cast.ranks.size());
  for (size_t h = 0; h < halves.size(); ++h) {
    const CastRank& rank = cast.ranks[halves[h].rank];
    const bool works = halves[h].range.count > 0;
    if (works) builder.add_merge(rank.seat.rank, dq[h], rank.seat.dq, merges[halves[h].rank]++);
    builder.add_merge(rank.seat.rank, works ? dkv[h] : kNoBuffer, halves[h].d_kv, 0);
  }
  for (const RankId rank : cast.ranks.ids()) {
    if (merges[rank] == 0) builder.add_merge(rank, kNoBuffer, cast.ranks[rank].seat.dq, 0);
  }
  builder.close_stage();
}

/// dK, dV of received rows return to their owners, which add them in order of the source rank.
void add_group_reduce(PlanBuilder& builder, const CastPlan& cast) {
  struct Return {
    const CastRank* rank;
    const Exchange* exchange;
  };
  std::vector<Return> returns;
  for (const CastRank& rank : cast.ranks) {
    for (const Exchange& exchange : rank.kv) returns.push_back({&rank, &exchange});
  }
  std::stable_sort(returns.begin(), returns.end(), [](const Return& a, const Return& b) {
    return a.exchange->src < b.exchange->src;
  });
  for (const Return& item : returns) {
    add_row_transfer(builder, *item.exchange, Payload::dkv, item.rank->d_received,
                     builder.plan().home[item.exchange->src].dkv, item.rank->seat.kv_heads, true);
  }
}

void add_backward(PlanBuilder& builder, const CastPlan& cast, const std::vector<Half>& halves) {
  Pass& pass = builder.plan().backward;
  builder.open_stage(pass, 0, StageKind::transfer);
  for (const Exchange& move : cast.queries) {
    add_row_transfer(builder, move, Payload::d_out, builder.plan().home[move.src].d_out,
                     cast.ranks[move.dst].seat.d_out, builder.all_heads(), false);
  }
  if (builder.scenario().parallel.backward_kv == BackwardKv::refetch) add_kv_casts(builder, cast);
  builder.close_stage();
  std::vector<BufferId> dq, dkv;
  for (const Half& half : halves) {
    dq.push_back(builder.add_partial(cast.ranks[half.rank].seat.dq));
    dkv.push_back(builder.add_partial(half.d_kv));
  }
  builder.open_stage(pass, 0, StageKind::compute);
  for (size_t h = 0; h < halves.size(); ++h) {
    const Seat& seat = cast.ranks[halves[h].rank].seat;
    ComputeItem item =
        forward_item(seat, halves[h].kv, halves[h].tokens, seat.out, halves[h].range);
    item.d_out = seat.d_out;
    item.dq = dq[h];
    item.dkv = dkv[h];
    builder.add_compute(item);
  }
  builder.close_stage();
  add_cast_gradient_merges(builder, cast, halves, dq, dkv);
  builder.open_stage(pass, 0, StageKind::finish);
  for (const CastRank& rank : cast.ranks) builder.add_finish(rank.seat.rank, rank.seat.dq);
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::transfer);
  for (const Exchange& move : cast.queries) {
    add_row_transfer(builder, move, Payload::dq, cast.ranks[move.dst].seat.dq,
                     builder.plan().home[move.src].dq, builder.all_heads(), true);
  }
  add_group_reduce(builder, cast);
  builder.close_stage();
  builder.open_stage(pass, 0, StageKind::finish);
  for (const CastRank& rank : cast.ranks) builder.add_finish(rank.seat.rank, rank.seat.dkv);
  builder.close_stage();
}

/// The runs that the ranks send, counted without making them: documents cut for hundreds of ranks
/// would otherwise fill gigabytes before they are refused. Nothing if they are few in any case;
/// more than kMaxRuns may be any number above it.
std::optional<int64_t> count_sent_runs(const PlanBuilder& builder, const KvOwners& owners,
                                       const std::vector<PieceTable>& q_tables) {
  constexpr int64_t kMany = kMaxRuns / 16;
  const Layout& layout = builder.plan().layout;
  const auto ranks = static_cast<int64_t>(builder.num_ranks());
  int64_t parts = ranks * std::ssize(layout.slots.sequences);
  for (const auto& runs : layout.kv_runs) parts += std::ssize(runs);
  if (parts * ranks <= kMany) return std::nullopt;
  std::atomic<int64_t> count{0};
  for_each_index(ranks, [&](int64_t rank) {
    if (count.load(std::memory_order_relaxed) > kMaxRuns) return;
    const std::vector<TokenRun> wanted =
        visible_keys(q_tables[static_cast<size_t>(rank)], builder.mask(), builder.slots());
    count.fetch_add(owners.count_runs(wanted, RankId{static_cast<int32_t>(rank)}),
                    std::memory_order_relaxed);
  });
  return count.load();
}

Error too_many_runs() {
  return make_refusal(
      fmt::format("group_cast has too many token runs to send: more than {}", kMaxRuns),
      "use a layout with longer runs, or fewer ranks", {"parallel.layout"});
}

/// Adds what every rank receives, by rank. False if it is too much.
bool add_all_remote_kv(PlanBuilder& builder, const std::vector<PieceTable>& q_tables,
                       CastPlan& cast) {
  const KvOwners owners(builder.plan().layout);
  if (const auto count = count_sent_runs(builder, owners, q_tables)) {
    if (*count + std::ssize(builder.plan().runs) > kMaxRuns) return false;
    builder.expect_runs(*count);
  }
  // Lists are added by rank as soon as those before them are, so that few wait: those of all ranks
  // would fill as much memory as the plan.
  std::mutex mutex;
  std::vector<std::optional<KvOwners::Received>> waiting(static_cast<size_t>(builder.num_ranks()));
  size_t next = 0;
  bool is_too_much = false;
  for_each_index(std::ssize(waiting), [&](int64_t index) {
    const auto rank = static_cast<size_t>(index);
    {
      const std::lock_guard lock(mutex);
      if (is_too_much) return;
    }
    KvOwners::Received found =
        owners.receive(visible_keys(q_tables[rank], builder.mask(), builder.slots()),
                       RankId{static_cast<int32_t>(rank)});
    const std::lock_guard lock(mutex);
    waiting[rank] = std::move(found);
    for (; next < waiting.size() && waiting[next] && !is_too_much; ++next) {
      add_remote_kv(builder, *waiting[next], cast.ranks[RankId{static_cast<int32_t>(next)}]);
      *waiting[next] = {};
      is_too_much = std::ssize(builder.plan().runs) > kMaxRuns;
    }
  });
  return !is_too_much;
}

}  // namespace

std::optional<Error> plan_group_cast(PlanBuilder& builder) {
  CastPlan cast;
  for (const Seat& seat : home_seats(builder))
    cast.ranks.push_back({seat, kNoBuffer, kNoBuffer, {}, {}});
  if (builder.scenario().parallel.dispatch == Dispatch::queries) move_queries(builder, cast);
  std::vector<PieceTable> q_tables;
  for (const CastRank& rank : cast.ranks)
    q_tables.push_back(
        make_pieces(builder.plan().list(rank.seat.q_tokens), builder.slots(), Side::q));
  if (!add_all_remote_kv(builder, q_tables, cast)) return too_many_runs();
  const auto ranges = find_cast_slices(builder, cast, q_tables);
  if (!ranges) return too_many_slices();
  const std::vector<Half> halves = halves_of(cast, *ranges);
  add_forward(builder, cast, halves);
  if (builder.has_backward()) add_backward(builder, cast, halves);
  return std::nullopt;
}

}  // namespace cpscope
