#include "sim/base/id_vector.h"
#include "sim/run/grade/grade.h"

#include <algorithm>
#include <map>

namespace cpscope {
namespace {

/// How many shares a running sum takes in between two roundings on its way. All sums of a pass make
/// their hops in the same stages.
int32_t count_shares_a_rounding(const Plan& plan, Payload payload, int32_t shares) {
  int32_t roundings = 0;
  for (const Stage& stage : plan.backward.stages) {
    if (stage.kind != StageKind::transfer) continue;
    const auto begin = plan.backward.transfers.begin();
    roundings += std::any_of(begin + stage.begin, begin + stage.end, [&](const TransferItem& item) {
      return item.payload == payload && item.landing == Landing::replace && !item.wire_fp32;
    });
  }
  return roundings == 0 ? shares : (shares + roundings - 1) / roundings;
}

}  // namespace

Hops count_hops(const Plan& plan) {
  IdVector<BufferId, int32_t> partials(plan.buffers.size()), shares(plan.buffers.size());
  for (const MergeItem& item : plan.forward.merges) ++partials[item.into];
  // A share in a ring is summed hop by hop: what counts is how often one row is added to in all
  // hops. Stages of heads are summed on one rank, in fp32 unless `accumulate` rounds them.
  const bool rounds_stages = plan.scenario.numerics.accumulate == Accumulate::dtype;
  bool travels_summed = false;
  Hops hops;
  hops.sends_shares = false;
  for (const MergeItem& item : plan.backward.merges) {
    const BufferSpec& into = plan.buffer(item.into);
    if (into.kind != BufferKind::dkv) continue;
    const bool is_of_stages = into.role == BufferRole::sequence_order && !rounds_stages;
    shares[item.into] = std::max(shares[item.into], is_of_stages ? 1 : item.order + 1);
  }
  // [sum][KV head] How many more shares are added to this head than to the one before it.
  std::map<BufferId, std::map<int32_t, int32_t>> added;
  for (const TransferItem& item : plan.backward.transfers) {
    if (item.payload != Payload::dkv) continue;
    hops.sends_shares |= item.link != LinkClass::self;
    // The sum of two shares is sent on.
    travels_summed = travels_summed || shares[item.from] > 1;
    if (item.landing != Landing::add) continue;
    ++added[item.to][item.heads.begin];
    --added[item.to][item.heads.end];
  }
  for (const auto& [sum, changes] : added) {
    int32_t now = 0, most = 0;
    for (const auto& [head, change] : changes) most = std::max(most, now += change);
    shares[sum] += most;
  }
  for (const TransferItem& item : plan.forward.transfers) {
    hops.rounds_partials |= item.payload == Payload::partial && !item.wire_fp32;
    hops.adds_in_dtype |=
        item.payload == Payload::out && item.landing == Landing::add && !item.wire_fp32;
  }
  for (const TransferItem& item : plan.backward.transfers) {
    if (item.payload != Payload::dq || item.wire_fp32) continue;
    hops.rounds_dq |= item.landing == Landing::add;
    // Finished dq is sent from buffers that name their tokens.
    hops.rounds_dq_sum |= plan.buffer(item.from).tokens == kNoTokens;
  }
  hops.rounds_running_sum = travels_summed;
  for (const int32_t count : partials) hops.partials = std::max(hops.partials, count);
  for (const int32_t count : shares) hops.shares = std::max(hops.shares, count);
  if (hops.rounds_running_sum)
    hops.shares_a_rounding = count_shares_a_rounding(plan, Payload::dkv, hops.shares);
  if (hops.rounds_dq_sum)
    hops.shares_a_rounding = count_shares_a_rounding(plan, Payload::dq, hops.partials);
  return hops;
}

}  // namespace cpscope
