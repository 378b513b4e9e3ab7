#include "sim/plan/check/check_rows.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// A token that is not on exactly one of the lists, or -1, by a mark for each token.
int64_t first_not_marked_once(const Plan& plan, Side side) {
  std::vector<bool> is_owned(static_cast<size_t>(plan.layout.slots.tokens_of(side)), false);
  for (const RunListId list : plan.lists(side)) {
    for (const TokenRun& run : plan.list(list)) {
      for (int64_t id = run.begin; id < run.end; id += run.stride) {
        // Ends here whatever the lists hold, so that no token is marked twice.
        if (is_owned[static_cast<size_t>(id)]) return id;
        is_owned[static_cast<size_t>(id)] = true;
      }
    }
  }
  const auto lost = std::find(is_owned.begin(), is_owned.end(), false);
  return lost == is_owned.end() ? -1 : lost - is_owned.begin();
}

int64_t first_misowned(const Plan& plan, Side side) {
  // Runs of so few tokens are more work to balance than their tokens to mark: stripes of a cache.
  constexpr int64_t kTokensOfRun = 16;
  const int64_t tokens = plan.layout.slots.tokens_of(side);
  int64_t count = 0;
  for (const RunListId list : plan.lists(side)) {
    count += std::ssize(plan.list(list));
    for (const TokenRun& run : plan.list(list))
      if (run.count() > 0 && run.last() >= tokens) return run.last();
  }
  if (tokens <= count * kTokensOfRun) return first_not_marked_once(plan, side);
  std::vector<WeightedRun> runs{{{0, tokens, 1}, ~uint64_t{0}}};
  for (const RunListId list : plan.lists(side))
    for (const TokenRun& run : plan.list(list)) runs.push_back({run, 1});
  return first_unbalanced(runs);
}

/// Checks that the slots hold the scenario's sequences, one after another, inside the buffers.
std::optional<std::string> check_slots(const Plan& plan) {
  const Batch& batch = plan.scenario.batch;
  const BatchSlots& slots = plan.layout.slots;
  int64_t q = 0, kv = 0;
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SequenceSlot& slot = slots.sequences[s];
    if (slot.q_begin != q || slot.kv_begin != kv)
      return fmt::format("sequence {} begins at query {} and key {}, {} and {} are due", s,
                         slot.q_begin, slot.kv_begin, q, kv);
    if (slot.q_valid != batch.lengths[s] || slot.kv_valid != batch.kv_lengths[s] ||
        slot.q_slot < batch.slots[s] || slot.kv_slot < batch.kv_slots[s]) {
      return fmt::format(
          "sequence {} has {} queries and {} keys, its slots hold {} of {} and {} "
          "of {}",
          s, batch.lengths[s], batch.kv_lengths[s], slot.q_valid, slot.q_slot, slot.kv_valid,
          slot.kv_slot);
    }
    const bool is_left = batch.pad_side == PadSide::left;
    const int64_t q_front = is_left ? slot.q_slot - slot.q_valid : 0,
                  kv_front = is_left ? slot.kv_slot - slot.kv_valid : 0;
    if (slot.q_front != q_front || slot.kv_front != kv_front)
      return fmt::format(
          "sequence {} has {} queries and {} keys of padding before its tokens, {} and {} are due",
          s, slot.q_front, slot.kv_front, q_front, kv_front);
    q += slot.q_slot;
    kv += slot.kv_slot;
  }
  if (q <= slots.tokens && kv <= slots.kv_tokens) return std::nullopt;
  return fmt::format("the slots hold {} queries and {} keys, the buffers {} and {}", q, kv,
                     slots.tokens, slots.kv_tokens);
}

/// Where ranks own heads: checks that each has all queries, and that each head has one owner.
std::optional<std::string> check_owned_heads(const Plan& plan) {
  const std::vector<TokenRun> all{{0, plan.layout.slots.tokens, 1}};
  int32_t next = 0;
  for (const RankId rank : plan.home.ids()) {
    if (!same_ids(all, plan.list(plan.q_lists[rank])))
      return fmt::format("rank {} does not have all queries", to_index(rank));
    const HeadRange own = plan.buffer(plan.home[rank].out).heads,
                    held = plan.buffer(plan.home[rank].q).heads;
    if (own.begin != next || own.end < own.begin || !plan.layout.q_heads.has(rank) ||
        plan.layout.q_heads[rank] != own)
      return fmt::format("head {} is not owned by exactly one rank", next);
    if (held.begin > own.begin || held.end < own.end)
      return fmt::format("rank {} lacks heads of its queries", to_index(rank));
    next = own.end;
  }
  if (next == plan.scenario.attention.heads) return std::nullopt;
  return fmt::format("head {} is not owned by exactly one rank", next);
}

/// Checks that every rank has all heads of its queries and results.
std::optional<std::string> check_owned_rows(const Plan& plan) {
  const HeadRange all{0, plan.scenario.attention.heads};
  for (const RankId rank : plan.home.ids()) {
    for (const BufferId id : {plan.home[rank].q, plan.home[rank].out}) {
      if (plan.buffer(id).heads != all)
        return fmt::format("the home {} buffer of rank {} lacks heads",
                           to_name(plan.buffer(id).kind), to_index(rank));
    }
  }
  const int64_t q = first_misowned(plan, Side::q);
  if (q < 0) return std::nullopt;
  return fmt::format("query token {} is not owned by exactly one rank", q);
}

}  // namespace

CheckResult check_ownership(const Plan& plan) {
  if (auto text = check_slots(plan)) return broken("ownership", *text);
  const bool by_heads = owns_heads(plan.scenario.parallel);
  if (auto text = by_heads ? check_owned_heads(plan) : check_owned_rows(plan))
    return broken("ownership", *text);
  const int64_t kv = first_misowned(plan, Side::kv);
  if (kv >= 0)
    return broken("ownership", fmt::format("key token {} is not owned by exactly one rank", kv));
  for (const Side side : {Side::q, Side::kv}) {
    const auto& runs = plan.layout.runs(side);
    for (const RankId rank : plan.home.ids()) {
      if (!runs.has(rank) || !same_ids(runs[rank], plan.list(plan.lists(side)[rank])))
        return broken("ownership",
                      fmt::format("the {} of rank {} are not those of the layout",
                                  side == Side::q ? "queries" : "keys", to_index(rank)));
    }
  }
  if (by_heads)
    return passed("ownership",
                  fmt::format("each of {} heads and {} key tokens has one owner",
                              plan.scenario.attention.heads, plan.layout.slots.kv_tokens));
  return passed("ownership", fmt::format("each of {} query and {} key tokens has one owner",
                                         plan.layout.slots.tokens, plan.layout.slots.kv_tokens));
}

}  // namespace cpscope
