#include "sim/app/matrix/matrix_faults.h"

#include "sim/base/id_vector.h"
#include "sim/faults/plan_edits.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/round_steps.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr FaultKind kFaultKinds[] = {FaultKind::comm,  FaultKind::mask,    FaultKind::layout,
                                     FaultKind::merge, FaultKind::padding, FaultKind::gradient};

template <class T>
const T& pick(const std::vector<T>& places, int64_t variant) {
  return places[static_cast<size_t>(variant) % places.size()];
}

bool is_hop_of_ring(const TransferItem& item) {
  return item.link == LinkClass::ring || item.link == LinkClass::outer_ring;
}

/// Has the sender computed anything for the rows of the transfer?
bool has_result(const Plan& plan, const TransferItem& item) {
  const auto rows = plan.list(item.from_rows);
  return std::any_of(
      plan.forward.computes.begin(), plan.forward.computes.end(), [&](const ComputeItem& compute) {
        const auto slices = plan.slices_of(compute);
        return compute.rank == item.src &&
               std::any_of(slices.begin(), slices.end(), [&](const BandSlice& slice) {
                 return std::any_of(rows.begin(), rows.end(), [&](const TokenRun& run) {
                   return slice.q0 < run.end && slice.q1 > run.begin;
                 });
               });
      });
}

/// Does this forward transfer bring a result, or a key that somebody computes with?
bool is_needed(const Plan& plan, const Visibility& visibility, const TransferItem& item) {
  if (item.payload == Payload::partial) return true;
  if (item.payload == Payload::out && item.landing == Landing::add)
    return item.link != LinkClass::self && has_result(plan, item);
  if (item.payload != Payload::kv || item.link == LinkClass::self) return false;
  if (is_hop_of_ring(item)) {
    const int32_t steps = item.link == LinkClass::ring ? 1 : plan.scenario.parallel.ring_window;
    return std::any_of(plan.forward.computes.begin(), plan.forward.computes.end(),
                       [&](const ComputeItem& compute) {
                         return compute.kv == item.to && compute.num_slices > 0 &&
                                to_index(compute.step) == to_index(item.step) + steps;
                       });
  }
  // Behind an exchange of heads the keys travel on around a ring, and any rank may be the one that
  // needs them.
  const std::vector<bool>& seen = has_head_groups(plan.scenario.parallel.comm_type)
                                      ? visibility.seen
                                      : visibility.seen_by_rank[item.dst];
  const std::vector<int64_t> own = expand(plan.list(plan.kv_lists[item.src]));
  if (item.from_rows == kAllRows)
    return std::any_of(own.begin(), own.end(), [&](int64_t token) { return seen[token]; });
  const std::vector<int64_t> rows = expand(plan.list(item.from_rows));
  return std::any_of(rows.begin(), rows.end(), [&](int64_t row) { return seen[own[row]]; });
}

std::string describe_hop(const TransferItem& item) {
  return fmt::format("from rank {} to rank {} in step {}", to_index(item.src), to_index(item.dst),
                     to_index(item.step));
}

std::optional<CellFault> break_comm(const Plan& healthy, const Visibility& visibility,
                                    int64_t variant) {
  const std::vector<int32_t> rounds = rounds_of_steps(healthy, Direction::forward);
  const auto round_of = [&](const TransferItem& item) {
    return rounds.empty() ? 0 : rounds[static_cast<size_t>(to_index(item.step))];
  };
  // The hop with which the ring of an item's sender began, in the same round.
  const auto find_first = [&](const TransferItem& item) {
    return std::find_if(healthy.forward.transfers.begin(), healthy.forward.transfers.end(),
                        [&](const TransferItem& other) {
                          return other.link == LinkClass::ring && other.src == item.src &&
                                 round_of(other) == round_of(item);
                        });
  };
  std::vector<int64_t> needed, passed_on;
  for (size_t i = 0; i < healthy.forward.transfers.size(); ++i) {
    const TransferItem& item = healthy.forward.transfers[i];
    if (!is_needed(healthy, visibility, item)) continue;
    needed.push_back(static_cast<int64_t>(i));
    // A hop that passes on what came in can send what the ring began with instead, if that has
    // enough rows.
    if (item.link != LinkClass::ring) continue;
    const auto first = find_first(item);
    if (first->step < item.step && healthy.buffer(first->from).rows >= healthy.rows(item.tokens))
      passed_on.push_back(static_cast<int64_t>(i));
  }
  if (needed.empty()) return std::nullopt;
  CellFault fault{FaultKind::comm, "", healthy};
  std::vector<TransferItem>& transfers = fault.plan.forward.transfers;
  if (variant % 2 == 1 && !passed_on.empty()) {
    TransferItem& item = transfers[pick(passed_on, variant / 2)];
    item.from = find_first(item)->from;
    fault.what = "a stale KV travels " + describe_hop(item);
    return fault;
  }
  const int64_t index = pick(needed, variant / 2);
  fault.what = fmt::format("the {} {} is lost",
                           transfers[index].payload == Payload::kv ? "KV" : "partial result",
                           describe_hop(transfers[index]));
  drop_item(fault.plan.forward, transfers, StageKind::transfer, index);
  return fault;
}

/// One edge moved by one, so that the number of visible pairs changes; nothing when no move does.
std::optional<BandSlice> shift_edge(const BandSlice& band, bool moves_upper) {
  for (const int32_t by : {1, -1}) {
    BandSlice moved = band;
    // Outwards first: a key too many is the harder fault to see.
    if (moves_upper) moved.hi += by;
    if (!moves_upper) moved.lo -= by;
    if (count_pairs(moved) != count_pairs(band)) return moved;
  }
  return std::nullopt;
}

std::optional<CellFault> break_mask(const Plan& healthy, int64_t variant) {
  std::vector<int64_t> bands;
  for (const ComputeItem& item : healthy.forward.computes) {
    for (int64_t i = 0; i < item.num_slices; ++i) bands.push_back(item.first_slice + i);
  }
  if (bands.empty()) return std::nullopt;
  const int64_t index = pick(bands, variant / 3);
  CellFault fault{FaultKind::mask, "", healthy};
  BandSlice& band = fault.plan.slices[static_cast<size_t>(index)];
  const std::optional<BandSlice> moved = shift_edge(band, variant % 3 == 0);
  // In 16 bits one key of many may drown in the rounding: there a whole band goes.
  if (variant % 3 == 2 || !moved || element_bytes(healthy.scenario.numerics.dtype) == 2) {
    fault.what = fmt::format("band {} of {} pairs is left out", index, count_pairs(band));
    band.q1 = band.q0;
  } else {
    fault.what = fmt::format("band {} of {} pairs sees {} pairs", index, count_pairs(band),
                             count_pairs(*moved));
    band = *moved;
  }
  return fault;
}

/// Every rank reads its own copy of the first keys, and adds up their gradient apart.
bool is_on_every_rank(const Plan& plan, int64_t token) {
  const int64_t sequence = sequence_of_token(plan.layout.slots, token, Side::kv);
  return sequence >= 0 && token - plan.layout.slots.sequences[sequence].kv_valid_begin() <
                              plan.scenario.parallel.kv_replicated;
}

/// Where a token stands: which rank's list, at which row.
struct Standing {
  RankId rank{};
  size_t row = 0;
};

/// Gives a rank's home buffers of one side a new token list. Those that also hold keys which every
/// rank holds have a list of their own, and keep it.
void rename_home(Plan& plan, RankId rank, Side side, const std::vector<int64_t>& ids) {
  const RunListId list = add_list(plan, ids);
  RunListId& known = (side == Side::q ? plan.q_lists : plan.kv_lists)[rank];
  visit_buffers(plan.home[rank], [&](BufferId id) {
    BufferSpec& buffer = plan.buffers[id];
    const bool is_kv = buffer.kind == BufferKind::kv || buffer.kind == BufferKind::dkv;
    if (is_kv == (side == Side::kv) && buffer.tokens == known) buffer.tokens = list;
  });
  known = list;
}

std::optional<CellFault> break_layout(const Plan& healthy, const Visibility& visibility,
                                      int64_t variant) {
  const Side side = variant % 2 == 1 ? Side::q : Side::kv;
  const std::vector<bool>& matters = side == Side::q ? visibility.sees : visibility.seen;
  // Tokens that matter, by sequence: swapping two of one sequence would go unseen without a mask.
  std::vector<std::vector<Standing>> by_sequence(healthy.layout.slots.sequences.size());
  IdVector<RankId, std::vector<int64_t>> ids;
  for (const RankId rank : healthy.lists(side).ids()) {
    ids.push_back(expand(healthy.list(healthy.lists(side)[rank])));
    for (size_t row = 0; row < ids.back().size(); ++row) {
      const int64_t token = ids.back()[row];
      const int64_t sequence = sequence_of_token(healthy.layout.slots, token, side);
      if (sequence < 0 || !matters[token]) continue;
      if (side == Side::kv && is_on_every_rank(healthy, token)) continue;
      by_sequence[sequence].push_back({rank, row});
    }
  }
  std::erase_if(by_sequence, [](const auto& standings) { return standings.empty(); });
  if (by_sequence.size() < 2) return std::nullopt;
  const Standing a = pick(by_sequence[0], variant / 2), b = pick(by_sequence[1], variant / 2);
  CellFault fault{FaultKind::layout, "", healthy};
  fault.what = fmt::format("{} tokens {} of rank {} and {} of rank {} stand in each other's row",
                           side == Side::q ? "query" : "key", ids[a.rank][a.row], to_index(a.rank),
                           ids[b.rank][b.row], to_index(b.rank));
  std::swap(ids[a.rank][a.row], ids[b.rank][b.row]);
  rename_home(fault.plan, a.rank, side, ids[a.rank]);
  if (b.rank != a.rank) rename_home(fault.plan, b.rank, side, ids[b.rank]);
  return fault;
}

std::optional<CellFault> break_merge(const Plan& healthy, int64_t variant) {
  std::vector<int64_t> places;
  for (size_t i = 0; i < healthy.forward.merges.size(); ++i) {
    const BufferId partial = healthy.forward.merges[i].partial;
    // A gathered lse may be that of a rank whose keys these queries do not see.
    if (partial == kNoBuffer || healthy.buffer(partial).kind == BufferKind::stats) continue;
    places.push_back(static_cast<int64_t>(i));
  }
  if (places.empty()) return std::nullopt;
  CellFault fault{FaultKind::merge, "", healthy};
  const int64_t index = pick(places, variant);
  const MergeItem item = fault.plan.forward.merges[index];
  fault.what = fmt::format("merge {} on rank {} in step {} is left out", item.order,
                           to_index(item.rank), to_index(item.step));
  drop_item(fault.plan.forward, fault.plan.forward.merges, StageKind::merge, index);
  return fault;
}

/// Does this backward transfer carry a gradient that is not zero?
bool carries_gradient(const Plan& plan, const Visibility& visibility, const TransferItem& item) {
  if (item.payload == Payload::dq && item.landing == Landing::add) return true;
  const bool is_dq = item.payload == Payload::dq && is_hop_of_ring(item);
  if ((item.payload != Payload::dkv && !is_dq) || item.link == LinkClass::self) return false;
  // What the sender itself has just added to a ring's accumulator is lost for certain.
  if (item.landing == Landing::replace) {
    return std::any_of(plan.backward.computes.begin(), plan.backward.computes.end(),
                       [&](const ComputeItem& compute) {
                         return compute.rank == item.src && compute.step == item.step &&
                                (is_dq ? compute.q_tokens : compute.kv_tokens) == item.tokens &&
                                compute.num_slices > 0;
                       });
  }
  const std::vector<bool>& seen = has_head_groups(plan.scenario.parallel.comm_type)
                                      ? visibility.seen
                                      : visibility.seen_by_rank[item.src];
  const std::vector<int64_t> owned = expand(plan.list(plan.kv_lists[item.dst]));
  return std::any_of(owned.begin(), owned.end(),
                     [&](int64_t token) { return seen[token] && !is_on_every_rank(plan, token); });
}

std::optional<CellFault> break_gradient(const Plan& healthy, const Visibility& visibility,
                                        int64_t variant) {
  std::vector<int64_t> places;
  for (size_t i = 0; i < healthy.backward.transfers.size(); ++i) {
    if (carries_gradient(healthy, visibility, healthy.backward.transfers[i]))
      places.push_back(static_cast<int64_t>(i));
  }
  if (places.empty()) return std::nullopt;
  CellFault fault{FaultKind::gradient, "", healthy};
  const int64_t index = pick(places, variant);
  std::vector<TransferItem>& sent = fault.plan.backward.transfers;
  const TransferItem lost = sent[static_cast<size_t>(index)];
  if (healthy.scenario.numerics.fp8 && lost.payload == Payload::dq) {
    // In 8 bits one share of several may drown in the rounding: there all shares go, or, where sums
    // go round a ring, the last hop of all sums.
    StepId last{0};
    for (const TransferItem& item : sent)
      if (item.payload == Payload::dq && is_hop_of_ring(item)) last = std::max(last, item.step);
    const auto goes = [&](const TransferItem& item) {
      if (item.payload != Payload::dq || item.src == item.dst) return false;
      return is_hop_of_ring(lost) ? is_hop_of_ring(item) && item.step == last
                                  : item.landing == Landing::add;
    };
    fault.what = is_hop_of_ring(lost)
                     ? fmt::format("the sums of dQ that travel in step {} are lost", to_index(last))
                     : "all dQ shares that travel are lost";
    for (int64_t i = std::ssize(sent); i-- > 0;) {
      if (goes(sent[static_cast<size_t>(i)]))
        drop_item(fault.plan.backward, sent, StageKind::transfer, i);
    }
    return fault;
  }
  fault.what =
      fmt::format("the {} share {} is lost",
                  fault.plan.backward.transfers[index].payload == Payload::dq ? "dQ" : "dK, dV",
                  describe_hop(fault.plan.backward.transfers[index]));
  drop_item(fault.plan.backward, fault.plan.backward.transfers, StageKind::transfer, index);
  return fault;
}

std::optional<CellFault> break_padding(const Plan& healthy, int64_t variant) {
  struct Place {
    const ComputeItem* item;
    int64_t column;
  };
  std::vector<Place> places;
  for (const ComputeItem& item : healthy.forward.computes) {
    if (item.num_slices == 0) continue;
    const std::vector<int64_t> tokens = expand(healthy.list(item.kv_tokens));
    for (size_t column = 0; column < tokens.size(); ++column) {
      if (sequence_of_token(healthy.layout.slots, tokens[column], Side::kv) < 0)
        places.push_back({&item, static_cast<int64_t>(column)});
    }
  }
  if (places.empty()) return std::nullopt;
  const auto [item, column] = pick(places, variant);
  CellFault fault{FaultKind::padding, "", healthy};
  Plan& plan = fault.plan;
  // The item's bands move to the end of the pool, with one more that holds the padding column.
  const auto first = static_cast<int64_t>(plan.slices.size());
  const auto bands = healthy.slices_of(*item);
  plan.slices.insert(plan.slices.end(), bands.begin(), bands.end());
  BandSlice extra = bands.front();
  extra.k0 = static_cast<int32_t>(column);
  extra.k1 = extra.k0 + 1;
  extra.lo = -(extra.q1 - extra.q0 - 1);
  extra.hi = 0;
  plan.slices.push_back(extra);
  for (Pass* pass : {&plan.forward, &plan.backward}) {
    for (ComputeItem& other : pass->computes) {
      const bool shares = other.first_slice == item->first_slice && other.num_slices > 0;
      if (!shares) continue;
      other.first_slice = first;
      other.num_slices += 1;
    }
  }
  fault.what = fmt::format("rows [{}, {}) of rank {} in step {} see padding in row {} of the KV",
                           extra.q0, extra.q1, to_index(item->rank), to_index(item->step), column);
  return fault;
}

}  // namespace

std::string_view to_name(FaultKind value) {
  constexpr std::string_view kNames[] = {"comm",     "mask",    "layout", "merge",
                                         "gradient", "padding", "feature"};
  return kNames[static_cast<size_t>(value)];
}

std::span<const FaultKind> fault_kinds() { return kFaultKinds; }

std::optional<CellFault> plant_fault(const Plan& plan, const Visibility& visibility, FaultKind kind,
                                     int64_t variant, void (*switch_off)(Attention&)) {
  switch (kind) {
    case FaultKind::comm:
      return break_comm(plan, visibility, variant);
    case FaultKind::mask:
      return break_mask(plan, variant);
    case FaultKind::layout:
      return break_layout(plan, visibility, variant);
    case FaultKind::merge:
      return break_merge(plan, variant);
    case FaultKind::gradient:
      return break_gradient(plan, visibility, variant);
    case FaultKind::padding:
      return break_padding(plan, variant);
    case FaultKind::feature: {
      if (switch_off == nullptr) return std::nullopt;
      CellFault fault{FaultKind::feature, "the executor forgets the feature", plan};
      switch_off(fault.plan.scenario.attention);
      return fault;
    }
  }
  return std::nullopt;
}

}  // namespace cpscope
