#include "gui/model/project.h"

#include "gui/model/describe.h"
#include "gui/model/error_field.h"
#include "gui/model/list_hits.h"
#include "gui/model/token_parts.h"
#include "sim/plan/band.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <utility>

namespace cpscope::gui {
namespace {

/// True if the item has a visible pair in rows q x rows k. nullptr: all rows.
bool has_pair(const Plan& plan, const ComputeItem& item, const std::vector<IdRange>* q,
              const std::vector<IdRange>* k) {
  const std::vector<IdRange> all = {{0, int64_t{1} << 40}};
  for (const BandSlice& slice : plan.slices_of(item)) {
    for (const IdRange& rows : q != nullptr ? *q : all) {
      if (rows.begin >= slice.q1 || rows.end <= slice.q0) continue;
      for (const IdRange& columns : k != nullptr ? *k : all) {
        if (columns.begin >= slice.k1 || columns.end <= slice.k0) continue;
        if (count_pairs_in_tile(slice, rows.begin, rows.end, columns.begin, columns.end) > 0)
          return true;
      }
    }
  }
  return false;
}

/// A set of pairs of ranks.
class LinkSet {
 public:
  explicit LinkSet(const PlanIndex& index) : ranks_(index.num_ranks()), most_(index.num_links()) {
    if (ranks_ <= kMostMarked)
      marked_.resize(static_cast<size_t>(ranks_) * static_cast<size_t>(ranks_), false);
  }
  void add(int32_t src, int32_t dst) {
    if (!marked_.empty()) {
      auto mark = marked_[static_cast<size_t>(src) * static_cast<size_t>(ranks_) +
                          static_cast<size_t>(dst)];
      if (mark) return;
      mark = true;
    }
    links_.emplace_back(src, dst);
    // Rings use each link many times.
    if (marked_.empty() && links_.size() >= 2 * distinct_ + 4096) tidy();
  }
  /// True if all links of the plan are in the set.
  bool is_full() const { return !marked_.empty() && static_cast<int64_t>(links_.size()) == most_; }
  std::vector<std::pair<int32_t, int32_t>> take() {
    tidy();
    return std::move(links_);
  }

 private:
  void tidy() {
    std::sort(links_.begin(), links_.end());
    links_.erase(std::unique(links_.begin(), links_.end()), links_.end());
    distinct_ = links_.size();
  }

  static constexpr int32_t kMostMarked = 4096;  // one bit per pair: 2 MiB
  int32_t ranks_;
  int64_t most_;
  std::vector<bool> marked_;  // [src][dst]
  std::vector<std::pair<int32_t, int32_t>> links_;
  size_t distinct_ = 0;
};

/// Collects items in plan order, with their steps, links and ranks. Skips the rest of a stage when
/// it cannot add anything new.
class Gatherer {
 public:
  Gatherer(const PlanIndex& index, bool takes_ranks)
      : index_(index),
        takes_ranks_(takes_ranks),
        links_(index),
        has_rank_(static_cast<size_t>(index.num_ranks()), false) {}

  /// Adds the items of both passes for which `hits(id)` is true.
  template <class Hits>
  void add_items(Hits hits) {
    for (const StageRef& stage : index_.stages()) add_stage(stage, hits);
  }
  template <class Hits>
  void add_stage(const StageRef& stage, Hits hits) {
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      if (hits(ItemId{stage.direction, stage.kind, i}) && !add_to(stage, i)) break;
    }
  }
  /// Adds the items of a rank, and the transfers that it receives.
  void add_items_of(int32_t rank) {
    for (const StageRef& stage : index_.stages()) {
      for (const int64_t i : index_.items_with(stage, rank)) {
        if (!add_to(stage, i)) break;
      }
    }
  }
  void write_to(Projection& p) {
    p.links = links_.take();
    p.items = std::move(items_);
    p.has_more_items = has_more_;
    p.steps = std::move(steps_);
    for (size_t r = 0; takes_ranks_ && r < has_rank_.size(); ++r) {
      if (has_rank_[r]) p.ranks.push_back(static_cast<int32_t>(r));
    }
  }

 private:
  /// False if further items of the stage cannot add anything new.
  bool add_to(const StageRef& stage, int64_t number) {
    add_item(stage, {stage.direction, stage.kind, number});
    return !has_more_ || takes_ranks_ || (stage.kind == StageKind::transfer && !links_.is_full());
  }
  void add_item(const StageRef& stage, const ItemId& id) {
    const ItemColumns& c = index_.columns(stage.direction, stage.kind);
    const auto i = static_cast<size_t>(id.index);
    if (items_.size() < Projection::kMostItems)
      items_.push_back(id);
    else
      has_more_ = true;
    const auto number = static_cast<int32_t>(step_number(stage));
    if (steps_.empty() || steps_.back() != number) steps_.push_back(number);
    if (takes_ranks_) has_rank_[static_cast<size_t>(c.rank[i])] = true;
    if (stage.kind != StageKind::transfer) return;
    if (takes_ranks_) has_rank_[static_cast<size_t>(c.other_rank[i])] = true;
    if (c.rank[i] != c.other_rank[i]) links_.add(c.rank[i], c.other_rank[i]);
  }
  size_t step_number(const StageRef& stage) {
    const auto steps = index_.steps();
    const auto number = static_cast<size_t>(&stage - index_.stages().data());
    while (static_cast<size_t>(steps[at_].end_stage) <= number) ++at_;
    return at_;
  }

  const PlanIndex& index_;
  bool takes_ranks_;
  LinkSet links_;
  std::vector<bool> has_rank_;
  std::vector<ItemId> items_;
  std::vector<int32_t> steps_;
  size_t at_ = 0;
  bool has_more_ = false;
};

void add_range(Projection& p, Side side, IdRange ids) {
  if (ids.begin < ids.end) (side == Side::q ? p.q : p.kv).push_back({side, ids.begin, ids.end});
}

void add_runs(Projection& p, Side side, std::span<const TokenRun> runs) {
  for (const TokenRun& run : runs) {
    if (run.stride == 1) {
      add_range(p, side, {run.begin, run.end});
      continue;
    }
    for (int64_t id = run.begin; id < run.end; id += run.stride) add_range(p, side, {id, id + 1});
  }
}

void merge_ranges(std::vector<TokenRange>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const TokenRange& a, const TokenRange& b) {
    return a.begin < b.begin || (a.begin == b.begin && a.end < b.end);
  });
  size_t kept = 0;
  for (const TokenRange& range : ranges) {
    if (kept > 0 && ranges[kept - 1].end >= range.begin)
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    else
      ranges[kept++] = range;
  }
  ranges.resize(kept);
}

void finish(Projection& p) {
  merge_ranges(p.q);
  merge_ranges(p.kv);
}

/// Marks the ranks that own an id of the range.
void mark_owners(const PlanIndex& index, Side side, IdRange ids, std::vector<bool>& owns) {
  for (const OwnedPart& part : owned_parts(index, {side, ids.begin, ids.end}))
    owns[static_cast<size_t>(part.rank)] = true;
}

/// Finds the items that touch ids of either side.
class TokenSearch {
 public:
  TokenSearch(const PlanIndex& index, IdRange q, IdRange kv)
      : index_(index),
        plan_(index.plan()),
        hits_(plan_, q, kv),
        owns_(static_cast<size_t>(index.num_ranks()), false) {
    mark_owners(index, Side::q, q, owns_);
    mark_owners(index, Side::kv, kv, owns_);
  }

  bool touches(const ItemId& id) {
    const ItemColumns& c = index_.columns(id.direction, id.kind);
    const auto i = static_cast<size_t>(id.index);
    if (id.kind == StageKind::compute) return computes(id.direction, c, i);
    if (c.key[i] >= 0 || id.kind != StageKind::transfer) return hits_.holds(c.key[i]);
    // The transfer carries a part of a list: one of its ranks is the owner of the rows.
    if (!owns_[static_cast<size_t>(c.rank[i])] && !owns_[static_cast<size_t>(c.other_rank[i])])
      return false;
    return carries(id);
  }
  std::vector<int32_t> owners() const {
    std::vector<int32_t> ranks;
    for (size_t r = 0; r < owns_.size(); ++r) {
      if (owns_[r]) ranks.push_back(static_cast<int32_t>(r));
    }
    return ranks;
  }

 private:
  bool computes(Direction direction, const ItemColumns& c, size_t i) {
    const bool reads_q = hits_.holds(c.q_key[i]), reads_kv = hits_.holds(c.key[i]);
    if (!reads_q && !reads_kv) return false;
    // The item has a visible pair, so it is enough if all rows of one of its lists are hit.
    if (hits_.holds_all(c.q_key[i]) || hits_.holds_all(c.key[i])) return true;
    const ComputeItem& item = index_.pass(direction).computes[i];
    return (reads_q && has_pair(plan_, item, &hits_.rows(c.q_key[i]), nullptr)) ||
           (reads_kv && has_pair(plan_, item, nullptr, &hits_.rows(c.key[i])));
  }
  bool carries(const ItemId& id) {
    for (const Side side : {Side::q, Side::kv}) {
      for (const TokenRun& run : tokens_of(plan_, index_.columns(id.direction), id, side)) {
        if (meets(run, hits_.ids(side))) return true;
      }
    }
    return false;
  }

  const PlanIndex& index_;
  const Plan& plan_;
  ListHits hits_;
  std::vector<bool> owns_;
};

Payload payload_of(int32_t tensor) {
  if (tensor >= 3) return Payload::dkv;
  return tensor == 2 ? Payload::dq : Payload::out;
}

/// True if an item writes, or carries, this kind of result.
bool makes(const Plan& plan, const ItemId& id, int32_t tensor) {
  const BufferKind wanted = tensor >= 3   ? BufferKind::dkv
                            : tensor == 2 ? BufferKind::dq
                                          : BufferKind::out;
  const auto is_wanted = [&](BufferId buffer) { return plan.buffer(buffer).kind == wanted; };
  return visit_item(
      plan, id,
      Overload{[&](const TransferItem& item) { return item.payload == payload_of(tensor); },
               [](const ComputeItem&) { return true; },
               [&](const ReorderItem& item) { return is_wanted(item.to); },
               [&](const MergeItem& item) { return is_wanted(item.into); },
               [&](const FinishItem& item) { return is_wanted(item.buffer); }});
}

/// True if an item works on the head. Computes have query heads; dK and dV have KV heads.
bool has_head(const Plan& plan, StageKind kind, HeadRange heads, const RowTarget& row) {
  if (kind == StageKind::compute && row.tensor >= 3)
    heads = kv_heads_of(plan.scenario.attention, heads);
  return row.head >= heads.begin && row.head < heads.end;
}

struct Projector {
  const PlanIndex& index;
  const Plan& plan = index.plan();

  Projection operator()(const Nothing&) const { return {}; }

  Projection operator()(const TokenRange& tokens) const {
    const IdRange ids{tokens.begin, tokens.end}, none{};
    const bool is_both = plan.layout.same_kv;
    const IdRange q = is_both || tokens.side == Side::q ? ids : none;
    const IdRange kv = is_both || tokens.side == Side::kv ? ids : none;
    Projection p;
    add_range(p, Side::q, q);
    add_range(p, Side::kv, kv);
    TokenSearch search(index, q, kv);
    p.ranks = search.owners();
    Gatherer gatherer(index, false);
    gatherer.add_items([&](const ItemId& id) { return search.touches(id); });
    gatherer.write_to(p);
    return p;
  }

  Projection operator()(const RowTarget& row) const {
    const Side side = side_of_tensor(row.tensor);
    const IdRange ids{row.token, row.token + 1}, none{};
    Projection p;
    add_range(p, side, ids);
    TokenSearch search(index, side == Side::q ? ids : none, side == Side::kv ? ids : none);
    p.ranks = search.owners();
    Gatherer gatherer(index, false);
    gatherer.add_items([&](const ItemId& id) {
      return id.direction == direction_of_tensor(row.tensor) && search.touches(id) &&
             makes(plan, id, row.tensor) && has_head(plan, id.kind, heads_of(index, id), row);
    });
    gatherer.write_to(p);
    return p;
  }

  Projection operator()(const PairRange& pairs) const {
    const IdRange q{pairs.q_begin, pairs.q_end}, kv{pairs.k_begin, pairs.k_end};
    Projection p;
    add_range(p, Side::q, q);
    add_range(p, Side::kv, kv);
    ListHits hits(plan, q, kv);
    Gatherer gatherer(index, true);
    gatherer.add_items([&](const ItemId& id) {
      if (id.kind != StageKind::compute) return false;
      const ItemColumns& c = index.columns(id.direction, id.kind);
      const auto i = static_cast<size_t>(id.index);
      return hits.holds(c.q_key[i]) && hits.holds(c.key[i]) &&
             has_pair(plan, index.pass(id.direction).computes[i], &hits.rows(c.q_key[i]),
                      &hits.rows(c.key[i]));
    });
    gatherer.write_to(p);
    return p;
  }

  Projection operator()(const RankTarget& target) const {
    Projection p;
    p.ranks = {target.rank};
    for (const Side side : {Side::q, Side::kv})
      add_runs(p, side, plan.layout.runs(side)[RankId{target.rank}]);
    Gatherer gatherer(index, false);
    gatherer.add_items_of(target.rank);
    gatherer.write_to(p);
    finish(p);
    return p;
  }

  Projection operator()(const LinkTarget& link) const {
    Projection p;
    Gatherer gatherer(index, false);
    std::vector<bool> seen(2 * plan.run_lists.size(), false);
    gatherer.add_items([&](const ItemId& id) {
      if (id.kind != StageKind::transfer) return false;
      const ItemColumns& c = index.columns(id.direction, id.kind);
      const auto i = static_cast<size_t>(id.index);
      if (c.rank[i] != link.src || c.other_rank[i] != link.dst) return false;
      // Rings carry the same lists many times.
      if (c.key[i] >= 0 && seen[static_cast<size_t>(c.key[i])]) return true;
      if (c.key[i] >= 0) seen[static_cast<size_t>(c.key[i])] = true;
      add_rows(p, id);
      return true;
    });
    gatherer.write_to(p);
    p.ranks = {std::min(link.src, link.dst)};
    if (link.src != link.dst) p.ranks.push_back(std::max(link.src, link.dst));
    finish(p);
    return p;
  }

  Projection operator()(const ItemId& item) const {
    Projection p;
    const int32_t stage = index.stage_of(item);
    if (stage < 0) return p;
    Gatherer gatherer(index, true);
    gatherer.add_stage(index.stages()[static_cast<size_t>(stage)],
                       [&](const ItemId& id) { return id == item; });
    gatherer.write_to(p);
    add_rows(p, item);
    finish(p);
    return p;
  }

  Projection operator()(const StepTarget& target) const {
    Projection p;
    const StepRef& step = index.steps()[static_cast<size_t>(target.step)];
    Gatherer gatherer(index, true);
    for (int32_t s = step.first_stage; s < step.end_stage; ++s) {
      const StageRef& stage = index.stages()[static_cast<size_t>(s)];
      const auto& computes = index.pass(stage.direction).computes;
      gatherer.add_stage(stage, [&](const ItemId& id) {
        return id.kind != StageKind::compute ||
               computes[static_cast<size_t>(id.index)].num_slices > 0;
      });
    }
    gatherer.write_to(p);
    return p;
  }

  void add_rows(Projection& p, const ItemId& item) const {
    for (const Side side : {Side::q, Side::kv})
      add_runs(p, side, tokens_of(plan, index.columns(item.direction), item, side));
  }
};

}  // namespace

Projection project(const Target& target, const PlanIndex& plan) {
  return std::visit(Projector{plan}, target);
}

}  // namespace cpscope::gui
