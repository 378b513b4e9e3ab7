#include "sim/clock/clock.h"

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

/// Calls visit(stage, buffer) for every buffer that an item of the pass uses.
template <class Visit>
void for_each_use(const Pass& pass, const Visit& visit) {
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    const Stage& stage = pass.stages[s];
    const auto use = [&](BufferId id) {
      if (id != kNoBuffer) visit(static_cast<int64_t>(s), id);
    };
    for (auto i = static_cast<size_t>(stage.begin); i < static_cast<size_t>(stage.end); ++i) {
      switch (stage.kind) {
        case StageKind::transfer:
          use(pass.transfers[i].from);
          use(pass.transfers[i].to);
          break;
        case StageKind::reorder:
          use(pass.reorders[i].from);
          use(pass.reorders[i].to);
          break;
        case StageKind::compute: {
          const ComputeItem& item = pass.computes[i];
          if (item.num_slices == 0) break;
          for (const BufferId id : {item.q, item.kv, item.out, item.d_out, item.dq, item.dkv})
            use(id);
          break;
        }
        case StageKind::merge:
          use(pass.merges[i].partial);
          use(pass.merges[i].into);
          break;
        case StageKind::finish:
          use(pass.finishes[i].buffer);
          break;
      }
    }
  }
}

/// Buffers grouped by a stage, so that a sweep over the stages finds the buffers that change there.
class BuffersByStage {
 public:
  /// `stage_of` gives each buffer's stage below `num_stages`, or kNever.
  template <class StageOf>
  BuffersByStage(size_t num_buffers, size_t num_stages, const StageOf& stage_of)
      : begins_(num_stages + 1, 0) {
    for (size_t b = 0; b < num_buffers; ++b)
      if (stage_of(b) != kNever) ++begins_[static_cast<size_t>(stage_of(b)) + 1];
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    buffers_.resize(begins_.back());
    std::vector<size_t> next(begins_.begin(), begins_.end() - 1);
    for (size_t b = 0; b < num_buffers; ++b)
      if (stage_of(b) != kNever) buffers_[next[static_cast<size_t>(stage_of(b))]++] = b;
  }

  std::span<const size_t> at(size_t stage) const {
    return {buffers_.data() + begins_[stage], begins_[stage + 1] - begins_[stage]};
  }

 private:
  std::vector<size_t> begins_;   // [stage] of buffers_; one more at the end
  std::vector<size_t> buffers_;  // by stage, ascending in each
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

/// Sweeps over the stages with the present memory use of every rank.
void add_pass(const Plan& plan, const Pass& pass, bool packs, std::vector<int64_t>& most) {
  if (pass.stages.empty()) return;
  const size_t num_stages = pass.stages.size();
  std::vector<Life> lives(plan.buffers.size());
  for_each_use(pass, [&](int64_t stage, BufferId id) {
    lives[static_cast<size_t>(to_index(id))].use(stage);
  });
  const auto is_kept = [&](size_t b) { return plan.buffers[b].role == BufferRole::home; };
  const BuffersByStage born(lives.size(), num_stages, [&](size_t b) {
    return lives[b].first != kNever && is_kept(b) ? int64_t{0} : lives[b].first;
  });
  const BuffersByStage ended(lives.size(), num_stages,
                             [&](size_t b) { return is_kept(b) ? kNever : lives[b].last; });
  std::vector<int64_t> now(plan.home.size(), 0);  // [rank] bytes
  const auto add = [&](RankId rank, int64_t bytes) {
    now[static_cast<size_t>(to_index(rank))] += bytes;
  };
  const auto take = [&](RankId rank, int64_t bytes) { add(rank, -bytes); };
  const auto bytes_of = [&](size_t b) { return buffer_bytes(plan.buffers[b], plan.scenario); };
  for (size_t s = 0; s < num_stages; ++s) {
    for (const size_t b : born.at(s)) add(plan.buffers[b].rank, bytes_of(b));
    if (packs) for_each_staged(pass, pass.stages[s], add);
    for (size_t r = 0; r < now.size(); ++r) most[r] = std::max(most[r], now[r]);
    if (packs) for_each_staged(pass, pass.stages[s], take);
    for (const size_t b : ended.at(s)) take(plan.buffers[b].rank, bytes_of(b));
  }
}

}  // namespace

int64_t buffer_bytes(const BufferSpec& spec, const Scenario& scenario) {
  const int64_t element = element_bytes(scenario.numerics.dtype);
  const bool is_input =
      spec.kind == BufferKind::q || spec.kind == BufferKind::kv || spec.kind == BufferKind::d_out;
  const int64_t lanes = lanes_of(spec.kind, scenario.attention);
  constexpr int64_t kSumBytes = 4;
  const int64_t row = is_input ? lanes * element
                               : (lanes + (spec.kind == BufferKind::out ? 1 : 0)) *
                                     std::max(kSumBytes, element == 8 ? element : kSumBytes);
  return spec.rows * spec.heads.size() * row;
}

std::vector<int64_t> high_water_bytes(const Plan& plan, bool packs) {
  std::vector<int64_t> most(plan.home.size(), 0);
  add_pass(plan, plan.forward, packs, most);
  add_pass(plan, plan.backward, packs, most);
  return most;
}

}  // namespace cpscope
