#include "sim/plan/planner/planner_parts.h"

#include <utility>

namespace cpscope {
namespace {

/// Buffers of one rank: rows of all ranks, one rank after another, and all heads.
struct GatherSeat {
  BufferId q{}, partial{};
  bool has_work = false;
  BufferId sum{};                  // the rank's results, scaled step by step, or of more ranks
  IdVector<RankId, BufferId> lse;  // of the other ranks' results
};

/// The queries of all ranks, in rank order.
struct GatheredQueries {
  RunListId tokens{};
  IdVector<RankId, RunListId> rows;   // of each rank
  IdVector<RankId, HeadRange> heads;  // of each rank
  /// Queries whose heads are shared are on every rank: its own heads, or all.
  bool are_there = false;
};

GatheredQueries make_gathered_queries(PlanBuilder& builder) {
  const Plan& plan = builder.plan();
  GatheredQueries queries;
  for (const RankId rank : builder.ranks()) queries.heads.push_back(builder.owned_heads(rank));
  if (owns_heads(builder.scenario().parallel)) {
    queries.tokens = plan.q_lists[RankId{0}];
    queries.rows = IdVector<RankId, RunListId>(static_cast<size_t>(builder.num_ranks()), kAllRows);
    queries.are_there = builder.scenario().parallel.q_owner == QOwner::heads_replicated;
    return queries;
  }
  std::vector<TokenRun> ranked;
  int64_t row = 0;
  for (const auto& runs : plan.layout.q_runs) {
    ranked.insert(ranked.end(), runs.begin(), runs.end());
    const int64_t count = count_ids(runs);
    queries.rows.push_back(builder.add_list({{row, row + count, 1}}));
    row += count;
  }
  queries.tokens = builder.add_list(ranked);
  return queries;
}

/// A transfer of all heads of all rows from one rank to another.
TransferItem all_rows_from(const PlanBuilder& builder, RankId src, RankId dst, Payload payload,
                           BufferId from, BufferId to) {
  TransferItem item;
  item.src = src;
  item.dst = dst;
  item.from = from;
  item.to = to;
  item.heads = builder.all_heads();
  item.payload = payload;
  item.link = LinkClass::direct;
  if (payload == Payload::out || payload == Payload::partial)
    item.wire_fp32 = builder.scenario().parallel.partial_wire == WireFormat::fp32;
  return item;
}

/// Plans one forward.
class GatherPlanner {
 public:
  explicit GatherPlanner(PlanBuilder& builder)
      : builder_(builder),
        pass_(builder.plan().forward),
        home_(builder.plan().home),
        queries_(make_gathered_queries(builder)) {}

  std::optional<Error> run() {
    if (auto error = make_seats()) return error;
    gather_queries();
    compute();
    const Combine combine = builder_.scenario().parallel.combine;
    // One rank has no halves.
    switch (combine == Combine::tree && builder_.num_ranks() == 1 ? Combine::all_to_all : combine) {
      case Combine::all_to_all:
        exchange();
        break;
      case Combine::reduce_scatter:
        add_scaled();
        break;
      case Combine::tree:
        merge_by_halves();
        break;
    }
    builder_.open_stage(pass_, 0, StageKind::finish);
    for (const RankId rank : builder_.ranks()) builder_.add_finish(rank, home_[rank].out);
    builder_.close_stage();
    return std::nullopt;
  }

 private:
  BufferId add(RankId rank, BufferKind kind, BufferRole role, HeadRange heads) {
    return builder_.add_buffer(rank, kind, role, queries_.tokens, heads);
  }

  std::optional<Error> make_seats() {
    const bool gathers_lse = builder_.scenario().parallel.combine == Combine::reduce_scatter,
               sums = builder_.scenario().parallel.combine != Combine::all_to_all;
    const HeadRange all = builder_.all_heads();
    std::vector<PieceTable> kv_tables;
    std::vector<SliceJob> jobs;
    for (const RankId rank : builder_.ranks()) {
      GatherSeat seat;
      seat.q = queries_.are_there ? home_[rank].q
                                  : add(rank, BufferKind::q, BufferRole::rank_order, all);
      if (sums) seat.sum = add(rank, BufferKind::out, BufferRole::moved, all);
      seat.partial = add(rank, BufferKind::out, BufferRole::partial, all);
      for (const RankId other : builder_.ranks())
        seat.lse.push_back(gathers_lse && other != rank
                               ? add(rank, BufferKind::stats, BufferRole::received, all)
                               : kNoBuffer);
      seats_.push_back(std::move(seat));
      kv_tables.push_back(make_pieces(builder_.plan().list(builder_.plan().kv_lists[rank]),
                                      builder_.slots(), Side::kv));
      jobs.push_back({0, to_index(rank)});
    }
    auto ranges = intersect_all(
        builder_, {make_pieces(builder_.plan().list(queries_.tokens), builder_.slots(), Side::q)},
        kv_tables, jobs);
    if (!ranges) return too_many_slices();
    ranges_ = std::move(*ranges);
    for (const RankId rank : builder_.ranks()) seats_[rank].has_work = range_of(rank).count > 0;
    return std::nullopt;
  }

  const SliceRange& range_of(RankId rank) const {
    return ranges_[static_cast<size_t>(to_index(rank))];
  }

  void gather_queries() {
    if (queries_.are_there) return;
    builder_.open_stage(pass_, 0, StageKind::transfer);
    for (const RankId dst : builder_.ranks()) {
      for (const RankId src : builder_.ranks()) {
        TransferItem item =
            all_rows_from(builder_, src, dst, Payload::q, home_[src].q, seats_[dst].q);
        item.to_rows = queries_.rows[src];
        item.heads = queries_.heads[src];
        builder_.add_transfer(item);
      }
    }
    builder_.close_stage();
  }

  void compute() {
    builder_.open_stage(pass_, 0, StageKind::compute);
    for (const RankId rank : builder_.ranks()) {
      ComputeItem item;
      item.rank = rank;
      item.q = seats_[rank].q;
      item.kv = home_[rank].kv;
      item.out = seats_[rank].partial;
      item.q_tokens = queries_.tokens;
      item.kv_tokens = builder_.plan().kv_lists[rank];
      item.heads = builder_.all_heads();
      set_slices(item, range_of(rank));
      builder_.add_compute(item);
    }
    builder_.close_stage();
  }

  /// Begins every rank's sum with its own result.
  void begin_sums() {
    for (const RankId rank : builder_.ranks())
      builder_.add_merge(rank, seats_[rank].has_work ? seats_[rank].partial : kNoBuffer,
                         seats_[rank].sum, 0);
  }

  /// Every owner gets its heads of each rank's result, its own rank's among them, and merges them.
  void exchange() {
    IdVector<RankId, std::vector<BufferId>> received(static_cast<size_t>(builder_.num_ranks()));
    builder_.open_stage(pass_, 0, StageKind::transfer);
    for (const RankId dst : builder_.ranks()) {
      for (const RankId src : builder_.ranks()) {
        if (seats_[src].has_work)
          received[dst].push_back(send_heads(src, dst, seats_[src].partial, queries_.heads[dst]));
      }
    }
    builder_.close_stage();
    builder_.open_stage(pass_, 0, StageKind::merge);
    for (const RankId rank : builder_.ranks()) merge_all(received[rank], rank, home_[rank].out);
    builder_.close_stage();
  }

  /// Merges results, of which there may be none, into a sum that they begin.
  void merge_all(const std::vector<BufferId>& results, RankId rank, BufferId into) {
    int32_t order = 0;
    if (!has_rows() || results.empty()) builder_.add_merge(rank, kNoBuffer, into, order++);
    for (const BufferId result : results) {
      if (has_rows()) builder_.add_merge(rank, result, into, order++);
    }
  }

  /// Sends some heads of a result that is not finished; returns the buffer in which they land.
  BufferId send_heads(RankId src, RankId dst, BufferId from, HeadRange heads) {
    if (src == dst && heads == builder_.all_heads()) return from;
    const BufferId to = add(dst, BufferKind::out, BufferRole::received, heads);
    TransferItem item = all_rows_from(builder_, src, dst, Payload::partial, from, to);
    item.heads = heads;
    builder_.add_transfer(item);
    return to;
  }

  /// The heads of the `half` ranks that have not been parted from this one yet.
  HeadRange heads_of_half(RankId rank, int32_t half) const {
    const int32_t first = to_index(rank) / half * half;
    return {queries_.heads[RankId{first}].begin, queries_.heads[RankId{first + half - 1}].end};
  }

  /// Recursive halving: the ranks of a half get the results of their own heads from the other half,
  /// until each has its own heads alone.
  void merge_by_halves() {
    builder_.open_stage(pass_, 0, StageKind::merge);
    begin_sums();
    builder_.close_stage();
    IdVector<RankId, BufferId> sums;
    for (const RankId rank : builder_.ranks()) sums.push_back(seats_[rank].sum);
    for (int32_t half = builder_.num_ranks() / 2; half > 0; half /= 2) {
      IdVector<RankId, std::vector<BufferId>> received(sums.size());
      builder_.open_stage(pass_, 0, StageKind::transfer);
      for (const RankId dst : builder_.ranks()) {
        const HeadRange heads = heads_of_half(dst, half);
        for (const RankId src : {dst, RankId{to_index(dst) ^ half}})
          received[dst].push_back(send_heads(src, dst, sums[src], heads));
      }
      builder_.close_stage();
      builder_.open_stage(pass_, 0, StageKind::merge);
      for (const RankId rank : builder_.ranks()) {
        sums[rank] = half == 1
                         ? home_[rank].out
                         : add(rank, BufferKind::out, BufferRole::moved, heads_of_half(rank, half));
        merge_all(received[rank], rank, sums[rank]);
      }
      builder_.close_stage();
    }
  }

  void add_scaled() {
    builder_.open_stage(pass_, 0, StageKind::merge);
    begin_sums();
    for (const RankId rank : builder_.ranks())
      builder_.add_merge(rank, kNoBuffer, home_[rank].out, 0);
    builder_.close_stage();
    builder_.open_stage(pass_, 0, StageKind::transfer);
    for (const RankId dst : builder_.ranks()) {
      for (const RankId src : builder_.ranks()) {
        if (src != dst)
          builder_.add_transfer(all_rows_from(builder_, src, dst, Payload::lse, seats_[src].sum,
                                              seats_[dst].lse[src]));
      }
    }
    builder_.close_stage();
    builder_.open_stage(pass_, 0, StageKind::merge);
    for (const RankId rank : builder_.ranks()) {
      int32_t order = 1;
      for (const RankId other : builder_.ranks()) {
        if (other != rank && has_rows())
          builder_.add_merge(rank, seats_[rank].lse[other], seats_[rank].sum, order++);
      }
    }
    builder_.close_stage();
    builder_.open_stage(pass_, 0, StageKind::transfer);
    for (const RankId dst : builder_.ranks()) {
      for (const RankId src : builder_.ranks()) {
        TransferItem item =
            all_rows_from(builder_, src, dst, Payload::out, seats_[src].sum, home_[dst].out);
        item.from_rows = queries_.rows[dst];
        item.heads = queries_.heads[dst];
        item.landing = Landing::add;
        builder_.add_transfer(item);
      }
    }
    builder_.close_stage();
  }

  /// Without rows nothing arrives.
  bool has_rows() const { return builder_.plan().rows(queries_.tokens) > 0; }

  PlanBuilder& builder_;
  Pass& pass_;
  const IdVector<RankId, HomeBuffers>& home_;
  const GatheredQueries queries_;
  IdVector<RankId, GatherSeat> seats_;
  std::vector<SliceRange> ranges_;
};

}  // namespace

std::optional<Error> plan_gathered_forward(PlanBuilder& builder) {
  return GatherPlanner(builder).run();
}

}  // namespace cpscope
