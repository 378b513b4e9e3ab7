#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/clock/clock.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

namespace cpscope {
namespace {

constexpr int64_t kNever = -1;

/// First and last stage of a pass that use a buffer.
struct Life {
  int64_t first = kNever, last = kNever;

  void use(int64_t stage) {
    if (first == kNever) first = stage;
    last = stage;
  }
};

/// The stages that use each buffer.
IdVector<BufferId, Life> find_lives(const Plan& plan, Direction direction) {
  const Pass& pass = plan.pass(direction);
  IdVector<BufferId, Life> lives(plan.buffers.size());
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    const auto use = [&](BufferId id) { lives[id].use(static_cast<int64_t>(s)); };
    for_each_item(pass, direction, pass.stages[s], [&](const ItemId& /*id*/, const auto& item) {
      visit_reads(item, use);
      visit_writes(item, use);
    });
  }
  return lives;
}

/// Buffers grouped by a stage, so that a sweep over the stages finds the buffers that change there.
class BuffersByStage {
 public:
  /// `stage_of` gives each buffer's stage below `num_stages`, or kNever.
  template <class StageOf>
  BuffersByStage(IdSequence<BufferId> buffers, size_t num_stages, const StageOf& stage_of)
      : begins_(num_stages + 1, 0) {
    for (const BufferId id : buffers)
      if (stage_of(id) != kNever) ++begins_[static_cast<size_t>(stage_of(id)) + 1];
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    buffers_.resize(begins_.back());
    std::vector<size_t> next(begins_.begin(), begins_.end() - 1);
    for (const BufferId id : buffers)
      if (stage_of(id) != kNever) buffers_[next[static_cast<size_t>(stage_of(id))]++] = id;
  }

  std::span<const BufferId> at(size_t stage) const {
    return {buffers_.data() + begins_[stage], begins_[stage + 1] - begins_[stage]};
  }

 private:
  std::vector<size_t> begins_;     // [stage] of buffers_; one more at the end
  std::vector<BufferId> buffers_;  // by stage, ascending in each
};

/// Calls add(rank, bytes) for the staging memory of each rank during a stage.
template <class Add>
void for_each_staged(const Pass& pass, const Stage& stage, const Add& add) {
  if (stage.kind != StageKind::transfer) return;
  for (auto i = static_cast<size_t>(stage.begin); i < static_cast<size_t>(stage.end); ++i) {
    const TransferItem& item = pass.transfers[i];
    if (item.src == item.dst) continue;
    for (const RankId rank : {item.src, item.dst}) add(rank, item.bytes);
  }
}

/// True if every partial result of a row is kept until the last one is there: TransformerEngine's
/// merge in two phases.
bool keeps_partials(const Numerics& numerics) {
  return numerics.accumulate == Accumulate::dtype && element_bytes(numerics.dtype) == 2;
}

/// Calls add(rank, bytes) for the partial results that a stage begins to keep, in the dtype with an
/// fp32 lse, and with negative bytes for those whose sum it finishes or sends.
class KeptPartials {
 public:
  KeptPartials(const Plan& plan, const Pass& pass)
      : plan_(plan), pass_(pass), kept_(plan.buffers.size(), 0) {}

  template <class Add>
  void begin(const Stage& stage, const Add& add) {
    for (int64_t i = stage.begin; stage.kind == StageKind::merge && i < stage.end; ++i) {
      const MergeItem& item = pass_.merges[static_cast<size_t>(i)];
      if (item.order == 0) drop(item.into, add);
      if (item.partial == kNoBuffer) continue;
      const BufferSpec& spec = plan_.buffer(item.partial);
      const int64_t row = lanes_of(spec.kind, plan_.scenario.attention) *
                              element_bytes(plan_.scenario.numerics.dtype) +
                          int64_t{sizeof(float)};
      const int64_t bytes = spec.rows * spec.heads.size() * row;
      kept_[item.into] += bytes;
      add(item.rank, bytes);
    }
  }
  template <class Add>
  void end(const Stage& stage, const Add& add) {
    for (int64_t i = stage.begin; stage.kind == StageKind::finish && i < stage.end; ++i)
      drop(pass_.finishes[static_cast<size_t>(i)].buffer, add);
    for (int64_t i = stage.begin; stage.kind == StageKind::transfer && i < stage.end; ++i) {
      const TransferItem& item = pass_.transfers[static_cast<size_t>(i)];
      if (item.payload == Payload::partial) drop(item.from, add);
    }
  }

 private:
  template <class Add>
  void drop(BufferId id, const Add& add) {
    add(plan_.buffer(id).rank, -kept_[id]);
    kept_[id] = 0;
  }

  const Plan& plan_;
  const Pass& pass_;
  IdVector<BufferId, int64_t> kept_;  // bytes, by accumulator
};

/// Sweeps over the stages with the present memory use of every rank.
void add_pass(const Plan& plan, Direction direction, bool packs, IdVector<RankId, int64_t>& most) {
  const Pass& pass = plan.pass(direction);
  if (pass.stages.empty()) return;
  const size_t num_stages = pass.stages.size();
  const IdVector<BufferId, Life> lives = find_lives(plan, direction);
  const auto is_kept = [&](BufferId id) { return plan.buffer(id).role == BufferRole::home; };
  const BuffersByStage born(lives.ids(), num_stages, [&](BufferId id) {
    return lives[id].first != kNever && is_kept(id) ? int64_t{0} : lives[id].first;
  });
  const BuffersByStage ended(lives.ids(), num_stages,
                             [&](BufferId id) { return is_kept(id) ? kNever : lives[id].last; });
  IdVector<RankId, int64_t> now(plan.home.size());  // bytes
  const auto add = [&](RankId rank, int64_t bytes) { now[rank] += bytes; };
  const auto take = [&](RankId rank, int64_t bytes) { now[rank] -= bytes; };
  // Rows of a round are counted once, as those of the home buffers.
  const auto bytes_of = [&](const BufferSpec& spec) {
    return spec.role == BufferRole::round ? 0 : buffer_bytes(spec, plan.scenario);
  };
  KeptPartials kept(plan, pass);
  const bool keeps = direction == Direction::forward && keeps_partials(plan.scenario.numerics);
  for (size_t s = 0; s < num_stages; ++s) {
    if (keeps) kept.begin(pass.stages[s], add);
    for (const BufferId id : born.at(s)) add(plan.buffer(id).rank, bytes_of(plan.buffer(id)));
    if (packs) for_each_staged(pass, pass.stages[s], add);
    for (const RankId rank : now.ids()) most[rank] = std::max(most[rank], now[rank]);
    if (packs) for_each_staged(pass, pass.stages[s], take);
    if (keeps) kept.end(pass.stages[s], add);
    for (const BufferId id : ended.at(s)) take(plan.buffer(id).rank, bytes_of(plan.buffer(id)));
  }
}

}  // namespace

int64_t buffer_bytes(const BufferSpec& spec, const Scenario& scenario) {
  const int64_t element = element_bytes(scenario.numerics.dtype);
  const bool is_input =
      spec.kind == BufferKind::q || spec.kind == BufferKind::kv || spec.kind == BufferKind::d_out;
  const int64_t lanes = lanes_of(spec.kind, scenario.attention);
  constexpr int64_t kSumBytes = 4;
  const int64_t statistics = spec.kind == BufferKind::out     ? 1
                             : spec.kind == BufferKind::stats ? 2
                                                              : 0;
  const int64_t row =
      is_input ? lanes * element
               : (lanes + statistics) * std::max(kSumBytes, element == 8 ? element : kSumBytes);
  return spec.rows * spec.heads.size() * row;
}

std::vector<int64_t> high_water_bytes(const Plan& plan, bool packs) {
  IdVector<RankId, int64_t> most(plan.home.size());
  for (const Direction direction : kDirections) add_pass(plan, direction, packs, most);
  return most.values();
}

}  // namespace cpscope
