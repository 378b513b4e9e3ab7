#include "sim/plan/check/share_sums.h"
#include "sim/plan/visit_items.h"

#include <map>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Follows the sums of one kind of results (out, dq or dkv) through merges, hops and reorders,
/// until they are finished.
class ShareWalk {
 public:
  ShareWalk(const Plan& plan, BufferKind kind)
      : plan_(plan), kind_(kind), sums_(plan, kind, Followed::values) {}

  /// First token and head whose results do not all arrive once, or nothing.
  std::optional<TokenHead> first_difference() {
    follow_all();
    ShareLedger ledger(plan_);
    for_each_compute([&](int64_t, const ComputeItem&, const Share& share) {
      ledger.add({share.tokens, share.rows, share.heads, 0 - share.weight});
    });
    for (const HomeBuffers& home : plan_.home) {
      for (const Share& share : sums_.of(home_of(home))) ledger.add(share);
    }
    return ledger.first_difference();
  }

  /// The first compute item whose result of this token and head does not arrive once, and how often
  /// it does.
  std::optional<std::pair<ItemId, int64_t>> first_lost(const TokenHead& place) {
    sums_.follow_alone(place);
    follow_all();
    std::map<uint64_t, int64_t> arrived;
    for (const HomeBuffers& home : plan_.home) {
      for (const Share& share : sums_.of(home_of(home)))
        arrived[share.weight] += holds(share, place) ? 1 : 0;
    }
    std::optional<std::pair<ItemId, int64_t>> lost;
    for_each_compute([&](int64_t index, const ComputeItem&, const Share& share) {
      if (lost || !holds(share, place) || arrived[share.weight] == 1) return;
      lost = {ItemId{direction(), StageKind::compute, index}, arrived[share.weight]};
    });
    return lost;
  }

 private:
  Direction direction() const {
    return kind_ == BufferKind::out ? Direction::forward : Direction::backward;
  }
  BufferId home_of(const HomeBuffers& home) const {
    return kind_ == BufferKind::dkv ? home.dkv : kind_ == BufferKind::dq ? home.dq : home.out;
  }
  void follow_all() {
    for_each_item(plan_, direction(),
                  [&](const ItemId& id, const auto& item) { sums_.follow(id, item); });
  }
  template <class Visit>
  void for_each_compute(Visit visit) {
    const std::vector<ComputeItem>& computes = plan_.pass(direction()).computes;
    for (size_t i = 0; i < computes.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      if (computes[i].num_slices > 0) visit(index, computes[i], sums_.share_of(computes[i], index));
    }
  }
  bool holds(const Share& share, const TokenHead& place) const {
    return share.heads.begin <= place.head && place.head < share.heads.end &&
           has_token(plan_, share.tokens, share.rows, place.token);
  }

  const Plan& plan_;
  const BufferKind kind_;
  ShareSums sums_;
};

/// Nothing if all results of this kind arrive once.
std::optional<CheckResult> check_arrivals(const Plan& plan, BufferKind kind,
                                          const std::string& check) {
  const auto place = ShareWalk(plan, kind).first_difference();
  if (!place) return std::nullopt;
  const bool is_kv = kind == BufferKind::dkv;
  const std::string what =
      fmt::format("the {} of {} token {}, {}head {}",
                  is_kv                    ? "dK, dV shares"
                  : kind == BufferKind::dq ? "partial dQ"
                                           : "partial results",
                  is_kv ? "key" : "query", place->token, is_kv ? "kv " : "", place->head);
  const auto lost = ShareWalk(plan, kind).first_lost(*place);
  if (!lost) return broken(check, what + " that arrive are not those that were computed");
  const auto& [id, count] = *lost;
  const ComputeItem& item = plan.pass(id.direction).computes[static_cast<size_t>(id.index)];
  return broken(
      check,
      fmt::format("{}, step {}, rank {}: {} reach their owner {} times, 1 expected",
                  to_name(id.direction), to_index(item.step), to_index(item.rank), what, count),
      id);
}

}  // namespace

CheckResult check_partials(const Plan& plan) {
  if (auto result = check_arrivals(plan, BufferKind::out, "partials")) return *result;
  if (CheckResult scales = check_scales(plan); !scales.ok) return scales;
  return passed("partials", "every result of a compute reaches the owner of its rows exactly once");
}

CheckResult check_gradients(const Plan& plan) {
  if (!plan.scenario.numerics.backward) return passed("gradients", "no backward pass");
  for (const BufferKind kind : {BufferKind::dkv, BufferKind::dq}) {
    if (auto result = check_arrivals(plan, kind, "gradients")) return *result;
  }
  return passed("gradients", "every dQ, dK, dV share reaches the owner of its rows exactly once");
}

}  // namespace cpscope
