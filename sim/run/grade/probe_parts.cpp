#include "sim/run/grade/probe_parts.h"

#include "sim/run/grade/latent_probe.h"

#include <cmath>
#include <utility>

namespace cpscope {
namespace {

bool holds(const Plan& plan, RunListId list, int64_t id) {
  for (const TokenRun& run : plan.list(list)) {
    if (id >= run.begin && id < run.end && (id - run.begin) % run.stride == 0) return true;
  }
  return false;
}

}  // namespace

Expectation::Expectation(const Plan& plan, const MaskWitness& witness)
    : keys(static_cast<size_t>(plan.layout.slots.tokens)) {
  const VisibleKeysOfSequence visible_keys = witness.visible_keys(plan.scenario);
  for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
    const SequenceSlot& slot = plan.layout.slots.sequences[s];
    const auto rows = visible_keys(static_cast<int64_t>(s));
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const KeyInterval& run : rows[i])
        keys[slot.q_valid_begin() + static_cast<int64_t>(i)].push_back(
            {slot.kv_valid_begin() + run.begin, slot.kv_valid_begin() + run.end});
    }
  }
}

int64_t Expectation::count(int64_t token) const {
  int64_t sum = 0;
  for (const Interval& run : keys[token]) sum += run.end - run.begin;
  return sum;
}

int64_t Expectation::nth(int64_t token, int64_t n) const {
  for (const Interval& run : keys[token]) {
    if (n < run.end - run.begin) return run.begin + n;
    n -= run.end - run.begin;
  }
  return -1;
}

int32_t owner_of(const Plan& plan, Side side, int64_t id, int32_t head) {
  const IdVector<RankId, RunListId>& lists = plan.lists(side);
  const bool by_heads = side == Side::q && owns_heads(plan.scenario.parallel);
  for (const RankId rank : lists.ids()) {
    const HeadRange heads = plan.buffer(plan.home[rank].out).heads;
    if (by_heads && (head < heads.begin || head >= heads.end)) continue;
    if (holds(plan, lists[rank], id)) return to_index(rank);
  }
  return -1;
}

std::vector<int32_t> owners_of(const Plan& plan, Side side) {
  const IdVector<RankId, RunListId>& lists = plan.lists(side);
  std::vector<int32_t> owners(static_cast<size_t>(plan.layout.slots.tokens_of(side)), -1);
  for (const RankId rank : lists.ids()) {
    for (const TokenRun& run : plan.list(lists[rank])) {
      for (int64_t token = run.begin; token < run.end; token += run.stride)
        owners[static_cast<size_t>(token)] = to_index(rank);
    }
  }
  return owners;
}

std::vector<int32_t> owners_of_heads(const Layout& layout, Side side) {
  std::vector<int32_t> owners;
  if (side == Side::kv) return owners;
  // Every rank's heads begin where those of the rank before end.
  for (const RankId rank : layout.q_heads.ids())
    owners.resize(static_cast<size_t>(layout.q_heads[rank].end), to_index(rank));
  return owners;
}

int32_t step_of(const Plan& plan, const Pass& pass, int32_t rank, int64_t key) {
  for (const ComputeItem& item : pass.computes) {
    if (to_index(item.rank) == rank && holds(plan, item.kv_tokens, key)) return to_index(item.step);
  }
  return -1;
}

Tensor zero_tensor(const char* name, std::vector<int64_t> shape, Dtype dtype) {
  Tensor tensor{name, std::move(shape), dtype, {}};
  tensor.values.assign(static_cast<size_t>(tensor.size()), 0.0);
  return tensor;
}

RunInputs zero_inputs(const Plan& plan) {
  const Attention attention = probed_attention(plan.scenario.attention);
  const Dtype dtype = plan.scenario.numerics.dtype;
  const BatchSlots& slots = plan.layout.slots;
  RunInputs inputs;
  inputs.slots = slots;
  inputs.q = zero_tensor("q", {slots.tokens, attention.heads, attention.head_dim_qk}, dtype);
  inputs.k = zero_tensor("k", {slots.kv_tokens, attention.kv_heads, attention.head_dim_qk}, dtype);
  if (attention.latent_dim == 0)
    inputs.v = zero_tensor("v", {slots.kv_tokens, attention.kv_heads, attention.head_dim_v}, dtype);
  if (plan.scenario.numerics.backward)
    inputs.d_out =
        zero_tensor("d_out", {slots.tokens, attention.heads, attention.head_dim_v}, dtype);
  if (attention.softmax_type == SoftmaxType::learnable)
    inputs.sink.assign(static_cast<size_t>(attention.heads), 0.0);
  return inputs;
}

LogitFactors factors_of_logit(double scale, double logit) {
  const int exponent = static_cast<int>(std::ceil(std::log2(logit / std::abs(scale))));
  const int half = exponent / 2;
  return {std::copysign(std::ldexp(1.0, exponent - half), scale), std::ldexp(1.0, half)};
}

}  // namespace cpscope
