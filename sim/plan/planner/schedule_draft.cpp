#include "sim/plan/planner/schedule_draft.h"

#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// One block on one rank.
struct Place {
  RankId rank{};
  BlockId block{};

  friend bool operator==(const Place&, const Place&) = default;
};

struct PlaceHash {
  size_t operator()(const Place& place) const {
    return std::hash<int64_t>()((int64_t{to_index(place.rank)} << 32) | to_index(place.block));
  }
};

template <class T>
using ByPlace = std::unordered_map<Place, T, PlaceHash>;

/// Checks who holds what, and finds the visible pairs of every compute.
class DraftReader {
 public:
  DraftReader(PlanBuilder& builder, const ScheduleDraft& draft)
      : builder_(builder), draft_(draft) {}

  bool owns(RankId rank, BlockId block) const { return draft_.blocks[block].owner == rank; }

  /// The bands of every compute, in their order over all steps.
  std::optional<Error> intersect(std::vector<SliceRange>& ranges) {
    std::vector<PieceTable> q_tables, kv_tables;
    IdVector<BlockId, int32_t> table(draft_.blocks.size());
    for (const BlockId id : draft_.blocks.ids()) {
      const DraftBlock& block = draft_.blocks[id];
      std::vector<PieceTable>& tables = block.side == Side::q ? q_tables : kv_tables;
      table[id] = static_cast<int32_t>(tables.size());
      tables.push_back(
          make_pieces(builder_.plan().list(block.tokens), builder_.slots(), block.side));
    }
    std::vector<SliceJob> jobs;
    for (const DraftStep& step : draft_.steps) {
      for (const DraftCompute& compute : step.computes)
        jobs.push_back({table[compute.q], table[compute.kv]});
    }
    auto found = intersect_all(builder_, q_tables, kv_tables, jobs);
    if (!found) return too_many_slices();
    ranges = std::move(*found);
    return std::nullopt;
  }

  /// The first use of a block that its rank does not hold.
  std::optional<Error> check_places() const {
    ByPlace<size_t> arrival;  // first step whose computes may use the block
    for (size_t s = 0; s < draft_.steps.size(); ++s) {
      const auto holds = [&](RankId rank, BlockId block) {
        if (owns(rank, block)) return true;
        const auto found = arrival.find({rank, block});
        return found != arrival.end() && found->second <= s;
      };
      const auto receive = [&](const std::vector<DraftSend>& sends,
                               size_t usable) -> std::optional<Error> {
        for (const DraftSend& send : sends) {
          if (!holds(send.src, send.from)) return lacks(s, send.src, "sends", send.block);
          if (send.from != send.block &&
              draft_.blocks[send.from].owner != draft_.blocks[send.block].owner)
            return lacks(s, send.src, "sends", send.block);
        }
        for (const DraftSend& send : sends) {
          if (send.src == send.dst || owns(send.dst, send.block) ||
              !arrival.try_emplace({send.dst, send.block}, usable).second)
            return held(s, send.dst, send.block);
        }
        return std::nullopt;
      };
      const DraftStep& step = draft_.steps[s];
      if (auto error = receive(step.before, s)) return error;
      for (const DraftCompute& compute : step.computes) {
        for (const BlockId block : {compute.q, compute.kv}) {
          if (!holds(compute.rank, block)) return lacks(s, compute.rank, "computes with", block);
        }
      }
      if (auto error = receive(step.during, s + 1)) return error;
    }
    return std::nullopt;
  }

  std::string name(BlockId id) const {
    const DraftBlock& block = draft_.blocks[id];
    return fmt::format("{} {} of rank {}", block.rows == kAllRows ? "the" : "some",
                       block.side == Side::q ? "queries" : "keys", to_index(block.owner));
  }

 private:
  Error lacks(size_t step, RankId rank, std::string_view verb, BlockId block) const {
    return make_bad_input(fmt::format("step {}: rank {} {} {}, which it does not hold then", step,
                                      to_index(rank), verb, name(block)),
                          "a block that is sent during a step can be used from the next step on");
  }
  Error held(size_t step, RankId rank, BlockId block) const {
    return make_bad_input(fmt::format("step {}: rank {} receives {}, which it holds already", step,
                                      to_index(rank), name(block)),
                          "send every block to a rank once");
  }

  PlanBuilder& builder_;
  const ScheduleDraft& draft_;
};

/// A buffer that a pass needs for some of its stages. Several share one real buffer if their times
/// do not overlap.
struct Need {
  RankId rank{};
  BufferKind kind{};
  BufferRole role{};
  RunListId tokens{};
  HeadRange heads;
  BufferId real = kNoBuffer;
  int64_t first = -1, last = -1;  // stages
};

/// Draws one pass with needs in place of buffers, then gives the needs their buffers.
class PassCompiler {
 public:
  PassCompiler(PlanBuilder& builder, const ScheduleDraft& draft,
               const std::vector<SliceRange>& ranges, Direction direction)
      : builder_(builder),
        draft_(draft),
        ranges_(ranges),
        direction_(direction),
        is_backward_(direction == Direction::backward),
        home_(builder.plan().home.size()),
        home_merges_(builder.plan().home.size()),
        home_dkv_merges_(builder.plan().home.size()) {
    for (const RankId rank : builder.ranks()) {
      const HomeBuffers& from = builder.plan().home[rank];
      HomeBuffers& to = home_[rank];
      to.q = keep(from.q), to.kv = keep(from.kv), to.out = keep(from.out);
      if (!is_backward_) continue;
      to.d_out = keep(from.d_out), to.dq = keep(from.dq), to.dkv = keep(from.dkv);
      to.stats = keep(from.stats);
    }
  }

  void run() {
    find_uses();
    size_t compute = 0;
    const auto num_steps = static_cast<int32_t>(draft_.steps.size());
    for (step_ = 0; step_ < num_steps; ++step_) {
      const DraftStep& step = draft_.steps[static_cast<size_t>(step_)];
      open(StageKind::transfer);
      for (const DraftSend& send : step.before) add_send(send);
      open(StageKind::transfer);
      for (const DraftSend& send : step.during) add_send(send);
      if (draft_.returns == ReturnTime::next_step) send_results();
      open(StageKind::compute);
      const size_t first = compute;
      for (const DraftCompute& item : step.computes) add_compute(item, ranges_[compute++]);
      open(StageKind::merge);
      merge_arrived();
      if (step_ == 0 && is_backward_) start_gradients(step, first);
      merge_results();
      if (step_ + 1 < num_steps) continue;
      open(StageKind::transfer);
      send_results();
      open(StageKind::merge);
      merge_arrived();
      finish_homes();
    }
    share_buffers();
    build();
  }

 private:
  /// Computes that have something to do, of one block on one rank.
  struct Use {
    int32_t computes = 0;
    int32_t last_step = -1;
    int32_t merged = 0;
    BufferId sum = kNoBuffer;  // the need that holds their result or results
  };
  /// The needs of a block on a rank that does not own it.
  struct Copy {
    BufferId rows{};  // q or kv
    BufferId d_out = kNoBuffer, stats = kNoBuffer;
  };
  struct Result {
    Place place;
    BufferId partial{};
  };
  struct Arrived {
    BlockId block{};
    BufferId partial{};
  };

  BufferId keep(BufferId real) {
    const BufferSpec& spec = builder_.plan().buffer(real);
    return needs_.push_back({spec.rank, spec.kind, spec.role, spec.tokens, spec.heads, real});
  }
  BufferId need(RankId rank, BufferKind kind, BufferRole role, RunListId tokens) {
    const bool is_kv = kind == BufferKind::kv || kind == BufferKind::dkv;
    return needs_.push_back(
        {rank, kind, role, tokens, is_kv ? builder_.all_kv_heads() : builder_.all_heads()});
  }

  const DraftBlock& block(BlockId id) const { return draft_.blocks[id]; }
  bool owns(const Place& place) const { return block(place.block).owner == place.rank; }

  /// Counts the computes of every block on every rank, and the sends that lead to one.
  void find_uses() {
    size_t compute = 0;
    for (size_t s = 0; s < draft_.steps.size(); ++s) {
      for (const DraftCompute& item : draft_.steps[s].computes) {
        if (ranges_[compute++].count == 0) continue;
        for (const BlockId id : {item.q, item.kv}) {
          Use& use = uses_[{item.rank, id}];
          ++use.computes;
          use.last_step = static_cast<int32_t>(s);
        }
      }
    }
    if (!draft_.prunes) return;
    for (const auto& [place, use] : uses_) is_wanted_[place] = true;
    const auto mark = [&](const DraftSend& send) {
      if (is_wanted_.contains({send.dst, send.block})) is_wanted_[{send.src, send.from}] = true;
    };
    for (auto step = draft_.steps.rbegin(); step != draft_.steps.rend(); ++step) {
      std::for_each(step->during.rbegin(), step->during.rend(), mark);
      std::for_each(step->before.rbegin(), step->before.rend(), mark);
    }
  }

  void open(StageKind kind) {
    const int64_t begin = count_items(pass_, kind);
    if (!pass_.stages.empty()) {
      Stage& last = pass_.stages.back();
      last.end = count_items(pass_, last.kind);
      if (last.end == last.begin) pass_.stages.pop_back();
    }
    pass_.stages.push_back({StepId{step_}, kind, begin, begin});
  }

  Copy copy_of(const Place& place) {
    if (!owns(place)) return copies_.at(place);
    const HomeBuffers& home = home_[place.rank];
    if (block(place.block).side == Side::kv) return {home.kv};
    return {home.q, home.d_out, home.stats};
  }

  void add_transfer(const DraftSend& send, Payload payload, BufferId from, BufferId to) {
    TransferItem item;
    item.src = send.src;
    item.dst = send.dst;
    item.from = from;
    item.to = to;
    item.tokens = block(send.block).tokens;
    // Rows of another block are found in it by the rows of the owner's buffer.
    if (send.from != send.block) item.from_rows = block(send.block).rows;
    item.heads = needs_[from].heads;
    item.payload = payload;
    item.link = LinkClass::direct;
    pass_.transfers.push_back(item);
  }

  void add_send(const DraftSend& send) {
    if (draft_.prunes && !is_wanted_.contains({send.dst, send.block})) return;
    const DraftBlock& sent = block(send.block);
    const Copy from = copy_of({send.src, send.from});
    const auto copy = [&](BufferKind kind, Payload payload, BufferId source) {
      const BufferId target = need(send.dst, kind, BufferRole::received, sent.tokens);
      add_transfer(send, payload, source, target);
      return target;
    };
    Copy& to = copies_[{send.dst, send.block}];
    if (sent.side == Side::kv) {
      to.rows = copy(BufferKind::kv, Payload::kv, from.rows);
      return;
    }
    to.rows = copy(BufferKind::q, Payload::q, from.rows);
    if (!is_backward_) return;
    to.d_out = copy(BufferKind::d_out, Payload::d_out, from.d_out);
    to.stats = copy(BufferKind::stats, Payload::stats, from.stats);
  }

  void add_compute(const DraftCompute& compute, const SliceRange& range) {
    if (range.count == 0) return;
    const Place q{compute.rank, compute.q}, kv{compute.rank, compute.kv};
    const Copy queries = copy_of(q);
    ComputeItem item;
    item.step = StepId{step_};
    item.rank = compute.rank;
    item.q = queries.rows;
    item.kv = copy_of(kv).rows;
    item.q_tokens = block(compute.q).tokens;
    item.kv_tokens = block(compute.kv).tokens;
    item.heads = builder_.all_heads();
    set_slices(item, range);
    const auto result = [&](BufferKind kind, const Place& place) {
      const BufferId partial =
          need(place.rank, kind, BufferRole::partial, block(place.block).tokens);
      results_.push_back({place, partial});
      return partial;
    };
    if (is_backward_) {
      item.out = owns(q) ? home_[compute.rank].out : queries.stats;
      item.d_out = queries.d_out;
      item.dq = result(BufferKind::dq, q);
      item.dkv = result(BufferKind::dkv, kv);
    } else {
      item.out = result(BufferKind::out, q);
    }
    pass_.computes.push_back(item);
  }

  void merge(RankId rank, BufferId partial, BufferId into, int32_t order,
             RunListId into_rows = kAllRows) {
    pass_.merges.push_back({StepId{step_}, rank, partial, into, order, into_rows});
  }

  /// The sum that a rank's own results enter, and how many have entered it.
  std::pair<BufferId, int32_t*> home_sum(RankId rank, Side side) {
    if (side == Side::kv) return {home_[rank].dkv, &home_dkv_merges_[rank]};
    return {is_backward_ ? home_[rank].dq : home_[rank].out, &home_merges_[rank]};
  }

  /// Other ranks add their gradients to sums that must have begun.
  void start_gradients(const DraftStep& step, size_t compute) {
    IdVector<RankId, std::array<bool, 2>> has_result(home_.size());
    for (const DraftCompute& item : step.computes) {
      if (ranges_[compute++].count == 0) continue;
      for (const BlockId id : {item.q, item.kv}) {
        if (owns({item.rank, id})) has_result[item.rank][block(id).side == Side::kv] = true;
      }
    }
    for (const RankId rank : home_.ids()) {
      for (const Side side : {Side::q, Side::kv}) {
        const auto [sum, merges] = home_sum(rank, side);
        if (!has_result[rank][side == Side::kv]) merge(rank, kNoBuffer, sum, (*merges)++);
      }
    }
  }

  /// Adds what this step has computed to the sums at home, or to those that will be sent.
  void merge_results() {
    for (const Result& result : results_) {
      const DraftBlock& of = block(result.place.block);
      if (owns(result.place)) {
        const auto [sum, merges] = home_sum(result.place.rank, of.side);
        merge(result.place.rank, result.partial, sum, (*merges)++);
        continue;
      }
      Use& use = uses_.at(result.place);
      if (use.computes == 1) {
        use.sum = result.partial;
      } else {
        if (use.sum == kNoBuffer)
          use.sum =
              need(result.place.rank, needs_[result.partial].kind, BufferRole::moved, of.tokens);
        merge(result.place.rank, result.partial, use.sum, use.merged++);
      }
      if (use.last_step == step_) leaving_.push_back(result.place);
    }
    results_.clear();
  }

  /// Sends the sums that are complete to the owners of their rows.
  void send_results() {
    std::sort(leaving_.begin(), leaving_.end(), [](const Place& a, const Place& b) {
      return std::pair(a.rank, a.block) < std::pair(b.rank, b.block);
    });
    leaving_.erase(std::unique(leaving_.begin(), leaving_.end()), leaving_.end());
    for (const Place& place : leaving_) {
      const DraftBlock& of = block(place.block);
      const BufferId sum = uses_.at(place).sum;
      DraftSend way{place.rank, of.owner, place.block, place.block};
      const Numerics& numerics = builder_.scenario().numerics;
      if (!is_backward_) {
        const BufferId target = need(of.owner, BufferKind::out, BufferRole::received, of.tokens);
        add_transfer(way, Payload::partial, sum, target);
        pass_.transfers.back().wire_fp32 =
            builder_.scenario().parallel.partial_wire == WireFormat::fp32;
        arrived_.push_back({place.block, target});
        continue;
      }
      const bool is_kv = of.side == Side::kv;
      add_transfer(way, is_kv ? Payload::dkv : Payload::dq, sum, home_sum(of.owner, of.side).first);
      TransferItem& item = pass_.transfers.back();
      item.landing = Landing::add;
      item.wire_fp32 = numerics.dkv_wire == WireFormat::fp32;
      if (of.rows != kAllRows) {
        // A buffer that others share may be longer than these rows.
        item.tokens = kNoTokens;
        item.from_rows = first_rows_of(place.block);
        item.to_rows = of.rows;
      }
    }
    leaving_.clear();
  }

  /// The rows 0, 1, ... of a block.
  RunListId first_rows_of(BlockId id) {
    const auto [found, is_new] = first_rows_.try_emplace(id, RunListId{});
    if (is_new) found->second = builder_.add_list({{0, builder_.plan().rows(block(id).tokens), 1}});
    return found->second;
  }

  void merge_arrived() {
    for (const Arrived& arrived : arrived_) {
      const DraftBlock& of = block(arrived.block);
      const auto [sum, merges] = home_sum(of.owner, Side::q);
      merge(of.owner, arrived.partial, sum, (*merges)++, of.rows);
    }
    arrived_.clear();
  }

  void finish_homes() {
    for (const RankId rank : home_.ids()) {
      if (!is_backward_ && home_merges_[rank] == 0) merge(rank, kNoBuffer, home_[rank].out, 0);
    }
    open(StageKind::finish);
    for (const RankId rank : home_.ids()) {
      for (const BufferId id : is_backward_ ? std::vector{home_[rank].dq, home_[rank].dkv}
                                            : std::vector{home_[rank].out})
        pass_.finishes.push_back({StepId{step_}, rank, id});
    }
    pass_.stages.back().end = count_items(pass_, StageKind::finish);
  }

  /// Gives every need a buffer. Needs of one rank, kind and role share one in turn.
  void share_buffers() {
    for (size_t s = 0; s < pass_.stages.size(); ++s) {
      const auto use = [&](BufferId id) {
        if (id == kNoBuffer) return;
        Need& need = needs_[id];
        if (need.first < 0) need.first = static_cast<int64_t>(s);
        need.last = static_cast<int64_t>(s);
      };
      for_each_item(pass_, direction_, pass_.stages[s], [&](const ItemId&, const auto& item) {
        visit_reads(item, use);
        visit_writes(item, use);
      });
    }
    std::map<std::tuple<RankId, BufferKind, BufferRole>, std::vector<BufferId>> groups;
    for (const BufferId id : needs_.ids()) {
      if (needs_[id].real == kNoBuffer)
        groups[{needs_[id].rank, needs_[id].kind, needs_[id].role}].push_back(id);
    }
    for (auto& [key, group] : groups) {
      std::stable_sort(group.begin(), group.end(),
                       [&](BufferId a, BufferId b) { return needs_[a].first < needs_[b].first; });
      share_in_group(group);
    }
  }

  void share_in_group(const std::vector<BufferId>& group) {
    struct Slot {
      int64_t rows;
      std::vector<BufferId> users;
    };
    std::vector<Slot> slots;
    using Busy = std::pair<int64_t, size_t>;  // last stage of the present user, slot
    std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
    for (const BufferId id : group) {
      const Need& need = needs_[id];
      size_t slot = slots.size();
      if (!busy.empty() && busy.top().first < need.first) {
        slot = busy.top().second;
        busy.pop();
      } else {
        slots.push_back({0, {}});
      }
      busy.emplace(need.last, slot);
      slots[slot].rows = std::max(slots[slot].rows, builder_.plan().rows(need.tokens));
      slots[slot].users.push_back(id);
    }
    for (size_t s = 0; s < slots.size(); ++s) {
      const Need& first = needs_[slots[s].users.front()];
      const bool is_fixed =
          std::all_of(slots[s].users.begin(), slots[s].users.end(),
                      [&](BufferId id) { return needs_[id].tokens == first.tokens; });
      const bool is_ring = first.role == BufferRole::received && !is_fixed && s < 2;
      const BufferRole role = !is_ring ? first.role
                              : s == 0 ? BufferRole::ring_a
                                       : BufferRole::ring_b;
      const BufferId real =
          builder_.add_buffer(first.rank, first.kind, role, is_fixed ? first.tokens : kNoTokens,
                              slots[s].rows, first.heads);
      for (const BufferId id : slots[s].users) needs_[id].real = real;
    }
  }

  BufferId real(BufferId id) const { return id == kNoBuffer ? kNoBuffer : needs_[id].real; }

  /// Copies the pass into the plan, with buffers in place of needs.
  void build() {
    Pass& target = builder_.plan().pass(direction_);
    for (const Stage& stage : pass_.stages) {
      builder_.open_stage(target, to_index(stage.step), stage.kind);
      for_each_item(pass_, direction_, stage,
                    Overload{[&](const ItemId&, TransferItem item) {
                               item.from = real(item.from), item.to = real(item.to);
                               builder_.add_transfer(item);
                             },
                             [&](const ItemId&, ComputeItem item) {
                               for (BufferId* id : {&item.q, &item.kv, &item.out, &item.d_out,
                                                    &item.dq, &item.dkv})
                                 *id = real(*id);
                               builder_.add_compute(item);
                             },
                             [&](const ItemId&, const MergeItem& item) {
                               builder_.add_merge(item.rank, real(item.partial), real(item.into),
                                                  item.order, item.into_rows);
                             },
                             [&](const ItemId&, const FinishItem& item) {
                               builder_.add_finish(item.rank, real(item.buffer));
                             },
                             [](const ItemId&, const ReorderItem&) {}});
      builder_.close_stage();
    }
  }

  PlanBuilder& builder_;
  const ScheduleDraft& draft_;
  const std::vector<SliceRange>& ranges_;
  const Direction direction_;
  const bool is_backward_;
  Pass pass_;  // buffer ids are those of needs_
  int32_t step_ = 0;
  IdVector<BufferId, Need> needs_;
  IdVector<RankId, HomeBuffers> home_;         // needs
  IdVector<RankId, int32_t> home_merges_;      // of out, or of dq
  IdVector<RankId, int32_t> home_dkv_merges_;  // of dkv
  std::map<BlockId, RunListId> first_rows_;
  ByPlace<Use> uses_;
  ByPlace<bool> is_wanted_;
  ByPlace<Copy> copies_;
  std::vector<Result> results_;   // of this step
  std::vector<Place> leaving_;    // sums that are complete, to be sent
  std::vector<Arrived> arrived_;  // partial results that the owners have to merge
};

std::optional<Error> compile_passes(PlanBuilder& builder, const ScheduleDraft& draft,
                                    bool has_forward) {
  DraftReader reader(builder, draft);
  if (auto error = reader.check_places()) return error;
  std::vector<SliceRange> ranges;
  if (auto error = reader.intersect(ranges)) return error;
  if (has_forward) PassCompiler(builder, draft, ranges, Direction::forward).run();
  if (!builder.has_backward()) return std::nullopt;
  builder.add_home_stats();
  PassCompiler(builder, draft, ranges, Direction::backward).run();
  return std::nullopt;
}

}  // namespace

HomeBlocks add_home_blocks(const PlanBuilder& builder, ScheduleDraft& draft) {
  HomeBlocks blocks;
  for (const RankId rank : builder.ranks()) {
    blocks.q.push_back(draft.add_block({Side::q, rank, builder.plan().q_lists[rank]}));
    blocks.kv.push_back(draft.add_block({Side::kv, rank, builder.plan().kv_lists[rank]}));
  }
  return blocks;
}

std::optional<Error> compile_draft(PlanBuilder& builder, const ScheduleDraft& draft) {
  return compile_passes(builder, draft, true);
}

std::optional<Error> compile_backward(PlanBuilder& builder, const ScheduleDraft& draft) {
  return builder.has_backward() ? compile_passes(builder, draft, false) : std::nullopt;
}

}  // namespace cpscope
