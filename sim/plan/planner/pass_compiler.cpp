#include "sim/plan/planner/pass_compiler.h"

#include "sim/plan/planner/draft_buffers.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <map>
#include <utility>

namespace cpscope {
namespace {

/// Draws one pass with needs in place of buffers, then gives the needs their buffers.
class PassCompiler {
 public:
  PassCompiler(PlanBuilder& builder, const ScheduleDraft& draft, const ReadPass& read,
               Direction direction, const std::map<BlockId, GradientRoute>& routes)
      : builder_(builder),
        draft_(draft),
        steps_(read.steps),
        direction_(direction),
        is_backward_(direction == Direction::backward),
        home_(builder.plan().home.size()),
        home_merges_(builder.plan().home.size()),
        home_dkv_merges_(builder.plan().home.size()),
        uses_(read.num_copies),
        copies_(read.num_copies) {
    for (const auto& [id, route] : routes) travelling_[id] = {route};
    for (const RankId rank : builder.ranks()) {
      const HomeBuffers& from = builder.plan().home[rank];
      HomeBuffers& to = home_[rank];
      to.q = keep(from.q), to.kv = keep(from.kv), to.out = keep(from.out);
      if (!is_backward_) continue;
      to.d_out = keep(from.d_out), to.dq = keep(from.dq), to.dkv = keep(from.dkv);
      if (from.stats != kNoBuffer) to.stats = keep(from.stats);
    }
  }

  void run() {
    reserve();
    find_uses();
    const auto num_steps = static_cast<int32_t>(steps_.size());
    for (step_ = 0; step_ < num_steps; ++step_) {
      const ReadStep& step = steps_[static_cast<size_t>(step_)];
      open(StageKind::transfer);
      for (const ReadSend& send : step.before) add_send(send);
      open(StageKind::transfer);
      for (const ReadSend& send : step.during) add_send(send);
      if (draft_.returns == ReturnTime::next_step) send_results();
      open(StageKind::compute);
      for (const ReadCompute& item : step.computes) add_compute(item);
      open(StageKind::merge);
      merge_arrived();
      if (step_ == 0 && is_backward_) start_gradients(step);
      merge_results();
      send_travelling();
      if (step_ + 1 < num_steps) continue;
      open(StageKind::transfer);
      send_results();
      open(StageKind::merge);
      merge_arrived();
      finish_homes();
    }
    give_buffers(builder_, pass_, direction_, needs_);
    build();
  }

 private:
  /// Computes that have something to do, of one block on a rank that does not own it.
  struct Use {
    int32_t computes = 0;
    int32_t last_step = -1;
    int32_t merged = 0;
    HeadRange heads;           // from the first to the last head of the results
    BufferId sum = kNoBuffer;  // the need that holds their result or results
  };
  /// The needs of a block on a rank that does not own it.
  struct Copy {
    BufferId rows{};  // q or kv
    BufferId d_out = kNoBuffer, stats = kNoBuffer;
  };
  struct Result {
    RankId rank{};
    BlockId block{};
    CopyId copy{};
    BufferId partial{};
  };
  /// A sum that is complete, of rows of other ranks.
  struct Leaving {
    RankId rank{};
    BlockId block{};
    CopyId copy{};

    auto operator<=>(const Leaving&) const = default;
  };
  struct Arrived {
    BlockId block{};
    BufferId partial{};
  };
  /// A gradient on its way from rank to rank.
  struct Travelling {
    GradientRoute route;
    size_t at = 0;             // the rank of the route that has the sum
    BufferId sum = kNoBuffer;  // need
    int32_t merges = 0;
  };

  BufferId keep(BufferId real) {
    const BufferSpec& spec = builder_.plan().buffer(real);
    return needs_.push_back(
        {spec.rank, spec.kind, spec.role, spec.tokens, spec.heads, false, false, real});
  }
  /// The rows of a block, of some of its heads.
  BufferId need(RankId rank, BufferKind kind, BufferRole role, const DraftBlock& rows,
                HeadRange heads) {
    return needs_.push_back({rank, kind, role, rows.tokens, heads, !rows.parts.empty()});
  }

  const DraftBlock& block(BlockId id) const { return draft_.blocks[id]; }

  /// The heads of what a compute yields for one side.
  HeadRange result_heads(const ReadCompute& item, Side side) const {
    return side == Side::q ? item.heads : kv_heads_of(builder_.attention(), item.heads);
  }

  /// Sets aside what the pass needs at most. Memory that is never written costs nothing.
  void reserve() {
    size_t sends = 0, computes = 0;
    const auto count = [&](const ReadSend& read) {
      sends += std::max<size_t>(1, block(read.send.block).parts.size());
    };
    for (const ReadStep& step : steps_) {
      std::for_each(step.before.begin(), step.before.end(), count);
      std::for_each(step.during.begin(), step.during.end(), count);
      computes += step.computes.size();
    }
    const size_t tensors = is_backward_ ? 3 : 1;  // of a query block that is sent
    const size_t results = is_backward_ ? 2 : 1;  // of a compute
    needs_.reserve(needs_.size() + sends * tensors + 2 * computes * results);
    pass_.computes.reserve(computes);
    pass_.transfers.reserve(sends * tensors + computes * results);
    pass_.merges.reserve(2 * (computes * results + home_.size()));
  }

  /// Counts the computes of every block on every rank, and the sends that lead to one.
  void find_uses() {
    for (size_t s = 0; s < steps_.size(); ++s) {
      for (const ReadCompute& item : steps_[s].computes) {
        if (item.range.count == 0) continue;
        for (const auto& [id, copy] :
             {std::pair(item.q, item.q_copy), std::pair(item.kv, item.kv_copy)}) {
          if (copy == kOwnRows) continue;
          Use& use = uses_[copy];
          const HeadRange heads = result_heads(item, block(id).side);
          use.heads = use.computes == 0 ? heads
                                        : HeadRange{std::min(use.heads.begin, heads.begin),
                                                    std::max(use.heads.end, heads.end)};
          ++use.computes;
          use.last_step = static_cast<int32_t>(s);
        }
      }
    }
    if (!draft_.prunes) return;
    for (const Use& use : uses_) is_wanted_.push_back(use.computes > 0);
    const auto mark = [&](const ReadSend& read) {
      if (is_wanted_[read.to_copy] && read.from_copy != kOwnRows) is_wanted_[read.from_copy] = true;
    };
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
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

  Copy own_rows(RankId rank, Side side) const {
    const HomeBuffers& home = home_[rank];
    if (side == Side::kv) return {home.kv};
    return {home.q, home.d_out, home.stats};
  }
  Copy copy_of(RankId rank, Side side, CopyId id) const {
    return id == kOwnRows ? own_rows(rank, side) : copies_[id];
  }

  TransferItem& add_transfer(const DraftSend& send, Payload payload, BufferId from, BufferId to,
                             HeadRange heads) {
    TransferItem item;
    item.src = send.src;
    item.dst = send.dst;
    item.from = from;
    item.to = to;
    item.tokens = block(send.block).tokens;
    item.heads = heads;
    item.payload = payload;
    item.link = LinkClass::direct;
    return pass_.transfers.emplace_back(item);
  }

  void add_send(const ReadSend& read) {
    const DraftSend& send = read.send;
    if (draft_.prunes && !is_wanted_[read.to_copy]) return;
    const DraftBlock& sent = block(send.block);
    const auto copy = [&](BufferKind kind, Payload payload, BufferId Copy::*source) {
      const BufferId target = need(send.dst, kind, BufferRole::received, sent, sent.heads);
      if (sent.parts.empty()) {
        const BufferId from = copy_of(send.src, sent.side, read.from_copy).*source;
        add_transfer(send, payload, from, target, sent.heads).from_rows = read.from_rows;
        return target;
      }
      const std::vector<RunListId>& rows = rows_of_parts(send.block);
      for (size_t i = 0; i < rows.size(); ++i) {
        const DraftBlock& part = block(sent.parts[i]);
        const BufferId from = own_rows(part.owner, sent.side).*source;
        TransferItem& item =
            add_transfer({part.owner, send.dst, sent.parts[i]}, payload, from, target, sent.heads);
        item.tokens = kNoTokens;
        item.from_rows = part.rows;
        item.to_rows = rows[i];
      }
      return target;
    };
    Copy& to = copies_[read.to_copy];
    if (sent.side == Side::kv) {
      to.rows = copy(BufferKind::kv, Payload::kv, &Copy::rows);
      return;
    }
    to.rows = copy(BufferKind::q, Payload::q, &Copy::rows);
    if (!is_backward_) return;
    to.d_out = copy(BufferKind::d_out, Payload::d_out, &Copy::d_out);
    to.stats = copy(BufferKind::stats, Payload::stats, &Copy::stats);
  }

  /// The rows of each part in a joined block's buffer.
  const std::vector<RunListId>& rows_of_parts(BlockId id) {
    const auto [found, is_new] = part_rows_.try_emplace(id);
    int64_t row = 0;
    for (const BlockId part : block(id).parts) {
      if (!is_new) break;
      const int64_t end = row + builder_.plan().rows(block(part).tokens);
      found->second.push_back(builder_.add_list({{row, end, 1}}));
      row = end;
    }
    return found->second;
  }

  void add_compute(const ReadCompute& compute) {
    if (compute.range.count == 0) return;
    const Copy queries = copy_of(compute.rank, Side::q, compute.q_copy);
    ComputeItem item;
    item.step = StepId{step_};
    item.rank = compute.rank;
    item.q = queries.rows;
    item.kv = copy_of(compute.rank, Side::kv, compute.kv_copy).rows;
    item.q_tokens = block(compute.q).tokens;
    item.kv_tokens = block(compute.kv).tokens;
    item.heads = compute.heads;
    set_slices(item, compute.range);
    const auto result = [&](BufferKind kind, BlockId id, CopyId copy) {
      const DraftBlock& of = block(id);
      const BufferId partial =
          need(compute.rank, kind, BufferRole::partial, of, result_heads(compute, of.side));
      results_.push_back({compute.rank, id, copy, partial});
      return partial;
    };
    if (is_backward_) {
      item.out = compute.q_copy == kOwnRows ? home_[compute.rank].out : queries.stats;
      item.d_out = queries.d_out;
      item.dq = result(BufferKind::dq, compute.q, compute.q_copy);
      item.dkv = result(BufferKind::dkv, compute.kv, compute.kv_copy);
    } else {
      item.out = result(BufferKind::out, compute.q, compute.q_copy);
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
  void start_gradients(const ReadStep& step) {
    IdVector<RankId, std::array<bool, 2>> has_result(home_.size());
    for (const ReadCompute& item : step.computes) {
      if (item.range.count == 0) continue;
      if (item.q_copy == kOwnRows) has_result[item.rank][0] = true;
      if (item.kv_copy == kOwnRows) has_result[item.rank][1] = true;
    }
    for (const RankId rank : home_.ids()) {
      for (const Side side : {Side::q, Side::kv}) {
        const auto [sum, merges] = home_sum(rank, side);
        if (!has_result[rank][side == Side::kv] && !(side == Side::kv && travels_home(rank)))
          merge(rank, kNoBuffer, sum, (*merges)++);
      }
    }
  }

  /// Adds what this step has computed to the sums at home, or to those that will be sent.
  void merge_results() {
    for (const Result& result : results_) {
      const DraftBlock& of = block(result.block);
      if (const auto found = travelling_.find(result.block); found != travelling_.end()) {
        Travelling& gradient = found->second;
        start_travelling(gradient, of);
        merge(result.rank, result.partial, gradient.sum, gradient.merges++);
        continue;
      }
      if (result.copy == kOwnRows) {
        const auto [sum, merges] = home_sum(result.rank, of.side);
        merge(result.rank, result.partial, sum, (*merges)++);
        continue;
      }
      Use& use = uses_[result.copy];
      if (use.computes == 1) {
        use.sum = result.partial;
      } else {
        if (use.sum == kNoBuffer)
          use.sum =
              need(result.rank, needs_[result.partial].kind, BufferRole::moved, of, use.heads);
        merge(result.rank, result.partial, use.sum, use.merged++);
      }
      if (use.last_step == step_) leaving_.push_back({result.rank, result.block, result.copy});
    }
    results_.clear();
  }

  bool travels_home(RankId rank) const {
    return std::any_of(travelling_.begin(), travelling_.end(),
                       [&](const auto& entry) { return entry.second.route.ranks.front() == rank; });
  }

  BufferId need_hop(RankId rank, const DraftBlock& of) {
    const BufferId id =
        need(rank, BufferKind::dkv, BufferRole::received, of, builder_.all_kv_heads());
    needs_[id].is_hop = true;
    return id;
  }

  void start_travelling(Travelling& gradient, const DraftBlock& of) {
    if (gradient.sum == kNoBuffer) gradient.sum = need_hop(gradient.route.ranks[gradient.at], of);
  }

  /// Gradients go on with the keys that this step has sent, and home from their last rank.
  void send_travelling() {
    const auto leaves = [&](const Travelling& gradient) {
      return gradient.at < gradient.route.ranks.size() &&
             gradient.route.leaves[gradient.at] == step_;
    };
    for (auto& [id, gradient] : travelling_) {
      if (!leaves(gradient) || gradient.sum != kNoBuffer) continue;
      // The owner has no share of its own.
      start_travelling(gradient, block(id));
      merge(gradient.route.ranks.front(), kNoBuffer, gradient.sum, gradient.merges++);
    }
    open(StageKind::transfer);
    for (auto& [id, gradient] : travelling_) {
      if (!leaves(gradient)) continue;
      const DraftBlock& of = block(id);
      const RankId src = gradient.route.ranks[gradient.at++];
      const bool goes_home = gradient.at == gradient.route.ranks.size();
      const RankId dst = goes_home ? of.owner : gradient.route.ranks[gradient.at];
      const BufferId target = goes_home ? home_[dst].dkv : need_hop(dst, of);
      add_transfer({src, dst, id}, Payload::dkv, gradient.sum, target, builder_.all_kv_heads())
          .wire_fp32 = builder_.scenario().numerics.dkv_wire == WireFormat::fp32;
      gradient.sum = target;
    }
  }

  /// Sends the sums that are complete to the owners of their rows.
  void send_results() {
    std::sort(leaving_.begin(), leaving_.end());
    leaving_.erase(std::unique(leaving_.begin(), leaving_.end()), leaving_.end());
    for (const Leaving& leaving : leaving_) {
      const BufferId sum = uses_[leaving.copy].sum;
      const DraftBlock& of = block(leaving.block);
      if (of.parts.empty()) {
        send_result(leaving.rank, sum, leaving.block, kAllRows);
        continue;
      }
      const std::vector<RunListId>& rows = rows_of_parts(leaving.block);
      for (size_t i = 0; i < rows.size(); ++i) send_result(leaving.rank, sum, of.parts[i], rows[i]);
    }
    leaving_.clear();
  }

  /// Sends the rows of one owner: `rows` of the sum, which may hold more.
  void send_result(RankId rank, BufferId sum, BlockId id, RunListId rows) {
    const DraftBlock& of = block(id);
    const DraftSend way{rank, of.owner, id};
    const HeadRange heads = needs_[sum].heads;
    if (!is_backward_) {
      const BufferId target = need(of.owner, BufferKind::out, BufferRole::received, of, heads);
      TransferItem& item = add_transfer(way, Payload::partial, sum, target, heads);
      item.from_rows = rows;
      item.wire_fp32 = builder_.scenario().parallel.partial_wire == WireFormat::fp32;
      arrived_.push_back({id, target});
      return;
    }
    const Payload payload = of.side == Side::kv ? Payload::dkv : Payload::dq;
    TransferItem& item = add_transfer(way, payload, sum, home_sum(of.owner, of.side).first, heads);
    item.landing = Landing::add;
    item.wire_fp32 = builder_.scenario().numerics.dkv_wire == WireFormat::fp32;
    if (rows == kAllRows && of.rows == kAllRows) return;
    // A buffer that others share may be longer than these rows.
    item.tokens = kNoTokens;
    item.from_rows = rows != kAllRows ? rows : first_rows_of(id);
    item.to_rows = of.rows;
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

  BufferId real(BufferId id) const { return id == kNoBuffer ? kNoBuffer : needs_[id].real; }

  /// Copies the pass into the plan, with buffers in place of needs.
  void build() {
    Pass& target = builder_.plan().pass(direction_);
    target.computes.reserve(pass_.computes.size());
    target.transfers.reserve(pass_.transfers.size());
    target.merges.reserve(pass_.merges.size());
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
  const std::vector<ReadStep>& steps_;
  const Direction direction_;
  const bool is_backward_;
  Pass pass_;  // buffer ids are those of needs_
  int32_t step_ = 0;
  IdVector<BufferId, BufferNeed> needs_;
  IdVector<RankId, HomeBuffers> home_;         // needs
  IdVector<RankId, int32_t> home_merges_;      // of out, or of dq
  IdVector<RankId, int32_t> home_dkv_merges_;  // of dkv
  std::map<BlockId, RunListId> first_rows_;
  std::map<BlockId, std::vector<RunListId>> part_rows_;
  IdVector<CopyId, Use> uses_;
  IdVector<CopyId, bool> is_wanted_;
  IdVector<CopyId, Copy> copies_;
  std::vector<Result> results_;  // of this step
  std::map<BlockId, Travelling> travelling_;
  std::vector<Leaving> leaving_;
  std::vector<Arrived> arrived_;  // partial results that the owners have to merge
};

}  // namespace

void compile_pass(PlanBuilder& builder, const ScheduleDraft& draft, const ReadPass& read,
                  Direction direction, const std::map<BlockId, GradientRoute>& routes) {
  PassCompiler(builder, draft, read, direction, routes).run();
}

}  // namespace cpscope
