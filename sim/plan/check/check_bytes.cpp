#include "sim/plan/check/check_rows.h"
#include "sim/plan/plan_summary.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

using ByRank = std::vector<int64_t>;

/// Sizes that the closed forms are made of.
struct Sizes {
  const Plan& plan;
  int64_t ranks, element, wire, heads, kv_heads, qk, v;
  int64_t kv;     // elements of a row of K and V, which latent attention holds in one
  int64_t input;  // an element of q, k, v or d_out: 1 where they are quantised before they travel
  int64_t exchanged;  // the same where groups exchange heads

  explicit Sizes(const Plan& p) : plan(p) {
    const Attention& attention = p.scenario.attention;
    ranks = p.layout.cp_size;
    for (const Side side : {Side::q, Side::kv}) {
      for (const RunListId list : p.lists(side))
        (side == Side::q ? q : kv_all).push_back(p.rows(list));
    }
    element = element_bytes(p.scenario.numerics.dtype);
    wire = element_bytes(dkv_wire_dtype(p.scenario.numerics));
    const std::optional<Fp8>& fp8 = p.scenario.numerics.fp8;
    const bool is_narrow = fp8 && fp8->recipe != Fp8Recipe::mxfp8 && fp8->kv_wire == Fp8KvWire::fp8;
    input = is_narrow ? 1 : element;
    exchanged = has_head_groups(p.scenario.parallel.comm_type) ? element : input;
    heads = attention.heads;
    kv_heads = attention.kv_heads;
    qk = attention.head_dim_qk;
    v = attention.head_dim_v;
    kv = attention.latent_dim == 0 ? qk + v : qk;
    if (attention.latent_nope_dim > 0) kv = attention.latent_dim + qk - attention.latent_nope_dim;
  }
  /// Those of a group of cp_sizes, whose ranks have equal parts of its sequences.
  Sizes(const Plan& p, const CpGroup& group) : Sizes(p) {
    ranks = group.size;
    int64_t q_slots = 0, kv_slots = 0;
    for (const int64_t s : group.sequences) {
      q_slots += p.layout.slots.sequences[static_cast<size_t>(s)].q_slot;
      kv_slots += p.layout.slots.sequences[static_cast<size_t>(s)].kv_slot;
    }
    q.assign(static_cast<size_t>(ranks), q_slots / ranks);
    kv_all.assign(static_cast<size_t>(ranks), kv_slots / ranks);
  }
  int64_t q_rows(int64_t rank) const { return q[static_cast<size_t>(rank)]; }
  /// Rows of keys that only this rank holds.
  int64_t kv_rows(int64_t rank) const {
    return kv_all[static_cast<size_t>(rank)] -
           (replicated.empty() ? 0 : replicated[static_cast<size_t>(rank)]);
  }

  ByRank q, kv_all;   // [rank] rows
  ByRank replicated;  // rows of the keys that every rank holds, by owner; empty if there are none
};

/// Counts the first valid keys of every sequence on the ranks that own them.
ByRank count_replicated(const Plan& plan) {
  ByRank rows;
  if (plan.scenario.parallel.kv_replicated == 0) return rows;
  for (const RunListId list : plan.kv_lists) {
    const RowReader reader(plan, list, Side::kv);
    const auto [from, to] = reader.stretches(0, reader.rows());
    int64_t count = 0;
    for (const Stretch* stretch = from; stretch != to; ++stretch) {
      // Positions ascend in a stretch.
      int64_t low = stretch->row_begin, high = stretch->row_end;
      while (stretch->sequence >= 0 && low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (reader.place(middle).position < plan.scenario.parallel.kv_replicated)
          low = middle + 1;
        else
          high = middle;
      }
      count += low - stretch->row_begin;
    }
    rows.push_back(count);
  }
  return rows;
}

/// dK and dV of the keys that every rank holds, from one rank to those that own them.
int64_t replica_shares(const Sizes& sizes, int64_t rank, int64_t kv_heads) {
  int64_t others = 0;
  for (size_t r = 0; r < sizes.replicated.size(); ++r)
    others += static_cast<int64_t>(r) == rank ? 0 : sizes.replicated[r];
  return others * kv_heads * sizes.kv * sizes.wire;
}

/// Query heads [begin, end) of one of `group` ranks, which all have as many, give or take one.
struct HeadShare {
  int64_t begin, end;
  int64_t kv_heads = 0;  // that they read
  int64_t shared = 0;    // of these, the ones that other ranks of the group read as well

  int64_t size() const { return end - begin; }
};

HeadShare head_share(const Sizes& sizes, int64_t member, int64_t group) {
  HeadShare share{member * sizes.heads / group, (member + 1) * sizes.heads / group};
  const int64_t readers = sizes.heads / sizes.kv_heads;  // query heads of a KV head
  for (int64_t head = share.begin / readers; head * readers < share.end; ++head) {
    ++share.kv_heads;
    if (head * readers < share.begin || (head + 1) * readers > share.end) ++share.shared;
  }
  return share;
}

/// All-to-all of heads inside groups of `group` ranks: bytes that rank r sends.
int64_t exchange_forward(const Sizes& sizes, int64_t rank, int64_t group) {
  const int64_t me = rank % group, base = rank - me;
  const HeadShare own = head_share(sizes, me, group);
  int64_t bytes = 0;
  for (int64_t other = 0; other < group; ++other) {
    if (other == me) continue;
    const HeadShare share = head_share(sizes, other, group);
    bytes += sizes.q_rows(rank) * share.size() * sizes.qk * sizes.exchanged;
    bytes += sizes.kv_rows(rank) * share.kv_heads * sizes.kv * sizes.exchanged;
    bytes += sizes.q_rows(base + other) * own.size() * sizes.v * sizes.element;
  }
  return bytes;
}

int64_t exchange_backward(const Sizes& sizes, int64_t rank, int64_t group) {
  const int64_t me = rank % group, base = rank - me;
  const HeadShare own = head_share(sizes, me, group);
  int64_t bytes = 0;
  for (int64_t other = 0; other < group; ++other) {
    if (other == me) continue;
    const HeadShare share = head_share(sizes, other, group);
    bytes += sizes.q_rows(rank) * share.size() * sizes.v * sizes.exchanged;
    bytes += sizes.q_rows(base + other) * own.size() * sizes.qk * sizes.element;
    bytes += sizes.kv_rows(base + other) * sizes.kv *
             ((own.kv_heads - own.shared) * sizes.element + own.shared * sizes.wire);
  }
  return bytes;
}

/// Ring of `size` positions; `rows` are the KV rows at each position, `kv_heads` the KV heads that
/// travel. Returns the bytes sent by position p.
int64_t ring_forward(const Sizes& sizes, const ByRank& rows, int64_t p, int64_t kv_heads) {
  const int64_t size = static_cast<int64_t>(rows.size());
  int64_t sent = 0;
  for (int64_t step = 0; step + 1 < size; ++step) sent += rows[((p - step) % size + size) % size];
  return sent * kv_heads * sizes.kv * sizes.input;
}

int64_t ring_backward(const Sizes& sizes, const ByRank& rows, int64_t p, int64_t kv_heads) {
  const int64_t size = static_cast<int64_t>(rows.size());
  if (size == 1) return 0;
  const bool late = sizes.plan.scenario.numerics.dkv_hops == DkvHops::ring;
  int64_t kv_sent = 0, dkv_sent = 0;
  for (int64_t step = 0; step < size; ++step) {
    const int64_t source = late ? ((p - step) % size + size) % size : (p + 1 + step) % size;
    if (step + 1 < size) kv_sent += rows[source];
    if (late || step + 1 < size) dkv_sent += rows[source];
  }
  return kv_heads * sizes.kv * (kv_sent * sizes.input + dkv_sent * sizes.wire);
}

struct Expected {
  ByRank forward, backward;
};

/// Rows that the rank at one position of a double ring sends inside its window, and to the next
/// window: `once` if each rank gets every row once, `home` if a sum visits every rank and ends at
/// its owner. Counted by who never gets what, not hop by hop.
struct DoubleRingRows {
  int64_t once_inside = 0, once_across = 0, home_inside = 0, home_across = 0;
};

DoubleRingRows rows_in_double_ring(const ByRank& rows, int64_t p, int64_t window) {
  const auto size = static_cast<int64_t>(rows.size());
  const int64_t windows = size / window;
  const int64_t place = p % window, next_place = (place + 1) % window,
                next_window = (p / window + 1) % windows;
  DoubleRingRows sent;
  for (int64_t i = 0; i < size; ++i) {
    // The next rank of the window began with the rows of its own place.
    if (window > 1 && i % window != next_place) sent.once_inside += rows[i];
    if (window > 1) sent.home_inside += rows[i];
    // Only rows of its own place leave a window; the next window's own rows end there.
    if (windows > 1 && i % window == place) {
      sent.home_across += rows[i];
      if (i / window != next_window) sent.once_across += rows[i];
    }
  }
  return sent;
}

Expected closed_form_ring(const Sizes& sizes, int64_t group) {
  const Parallel& parallel = sizes.plan.scenario.parallel;
  Expected expected;
  const int64_t size = sizes.ranks / group;
  for (int64_t r = 0; r < sizes.ranks; ++r) {
    ByRank rows(static_cast<size_t>(size), 0);
    for (int64_t p = 0; p < size; ++p) {
      for (int64_t a = 0; a < group; ++a) rows[p] += sizes.kv_rows(p * group + a);
    }
    const int64_t kv_heads = head_share(sizes, r % group, group).kv_heads;
    int64_t forward = 0, backward = 0;
    if (has_windows(parallel.comm_type)) {
      const DoubleRingRows sent = rows_in_double_ring(rows, r / group, parallel.ring_window);
      const int64_t row = kv_heads * sizes.kv;
      forward = (sent.once_inside + sent.once_across) * row * sizes.input;
      backward = forward + row * (sent.home_inside * std::max<int64_t>(4, sizes.wire) +
                                  sent.home_across * sizes.wire);
    } else {
      forward = ring_forward(sizes, rows, r / group, kv_heads);
      backward = ring_backward(sizes, rows, r / group, kv_heads);
    }
    backward += replica_shares(sizes, r, kv_heads);
    if (group > 1) {
      forward += exchange_forward(sizes, r, group);
      backward += exchange_backward(sizes, r, group);
    }
    expected.forward.push_back(forward);
    expected.backward.push_back(backward);
  }
  return expected;
}

/// p2p and double_ring in whose backward queries travel. Sums are in fp32 inside the windows of a
/// double ring.
Expected closed_form_queries_back(const Sizes& sizes) {
  const Parallel& parallel = sizes.plan.scenario.parallel;
  const bool is_double = has_windows(parallel.comm_type);
  const int64_t statistic = sizes.plan.scenario.numerics.dtype == Dtype::fp64 ? 8 : 4;
  const int64_t there = (sizes.qk + sizes.v) * sizes.input + 2 * statistic;
  ByRank rows;
  for (int64_t r = 0; r < sizes.ranks; ++r) rows.push_back(sizes.q_rows(r));
  Expected expected = closed_form_ring(sizes, 1);
  for (int64_t r = 0; r < sizes.ranks; ++r) {
    const DoubleRingRows sent =
        rows_in_double_ring(rows, r, is_double ? parallel.ring_window : sizes.ranks);
    const int64_t back =
        sent.home_inside * (is_double ? statistic : sizes.wire) + sent.home_across * sizes.wire;
    expected.backward[r] =
        sizes.heads * ((sent.once_inside + sent.once_across) * there + back * sizes.qk);
  }
  return expected;
}

Expected closed_form_gather(const Sizes& sizes) {
  Expected expected;
  const int64_t row_elements = sizes.kv_heads * sizes.kv;
  const bool refetch = sizes.plan.scenario.parallel.backward_kv == BackwardKv::refetch;
  int64_t all_rows = 0;
  for (int64_t r = 0; r < sizes.ranks; ++r) all_rows += sizes.kv_rows(r);
  for (int64_t r = 0; r < sizes.ranks; ++r) {
    const int64_t gather = (sizes.ranks - 1) * sizes.kv_rows(r) * row_elements * sizes.input;
    expected.forward.push_back(gather);
    expected.backward.push_back((refetch ? gather : 0) +
                                (all_rows - sizes.kv_rows(r)) * row_elements * sizes.wire +
                                replica_shares(sizes, r, sizes.kv_heads));
  }
  return expected;
}

/// Bytes of one (row, head) of a query that moves, there and back.
struct MovingQuery {
  int64_t to_compute, back, to_gradients, gradient_back;

  explicit MovingQuery(const Sizes& sizes) {
    const Numerics& numerics = sizes.plan.scenario.numerics;
    const bool is_wide = sizes.plan.scenario.parallel.partial_wire == WireFormat::fp32;
    const int64_t statistic = numerics.dtype == Dtype::fp64 ? 8 : 4;
    to_compute = sizes.qk * sizes.input;
    back = sizes.v * (is_wide && numerics.dtype != Dtype::fp64 ? 4 : sizes.element) + statistic;
    to_gradients = (sizes.qk + sizes.v) * sizes.input + 2 * statistic;
    gradient_back = sizes.qk * sizes.wire;
  }
};

/// Rows of the queries, or keys, of other ranks with which each rank computes.
struct ForeignWork {
  ByRank q, kv;
};

ForeignWork foreign_work(const Plan& plan, Direction direction) {
  const auto ranks = static_cast<size_t>(plan.layout.cp_size);
  ForeignWork work{ByRank(ranks, 0), ByRank(ranks, 0)};
  std::set<std::pair<RankId, RunListId>> q_seen, kv_seen;
  for (const ComputeItem& item : plan.pass(direction).computes) {
    const auto r = static_cast<size_t>(to_index(item.rank));
    if (item.num_slices == 0) continue;
    if (item.q_tokens != plan.q_lists[item.rank] &&
        q_seen.insert({item.rank, item.q_tokens}).second)
      work.q[r] += plan.rows(item.q_tokens);
    if (item.kv_tokens != plan.kv_lists[item.rank] &&
        kv_seen.insert({item.rank, item.kv_tokens}).second)
      work.kv[r] += plan.rows(item.kv_tokens);
  }
  return work;
}

/// Rows of queries and of keys that each rank sends on their way to where they are needed.
struct RowsSent {
  ByRank q, kv;
};

/// A rank's own rows, to every other rank of the ring in turn.
RowsSent rows_in_ring(const Sizes& sizes) {
  const auto ranks = static_cast<size_t>(sizes.ranks);
  RowsSent sent{ByRank(ranks, 0), ByRank(ranks, 0)};
  for (int64_t r = 0; r < sizes.ranks; ++r) {
    for (int64_t step = 0; step + 1 < sizes.ranks; ++step)
      sent.q[r] += sizes.q_rows(((r - step) % sizes.ranks + sizes.ranks) % sizes.ranks);
  }
  return sent;
}

/// The queries of higher ranks whole, those of lower ranks that have gone round by half. An owner's
/// two chunks are equal, so half its rows are one chunk.
RowsSent rows_in_token_ring(const Sizes& sizes) {
  const Scenario& scenario = sizes.plan.scenario;
  if (!token_ring_sends_halves(scenario, sizes.plan.layout)) return rows_in_ring(sizes);
  const auto ranks = static_cast<size_t>(sizes.ranks);
  RowsSent sent{ByRank(ranks, 0), ByRank(ranks, 0)};
  for (int64_t owner = 0; owner < sizes.ranks; ++owner) {
    for (int64_t hop = 0; hop + 1 < sizes.ranks; ++hop) {
      const int64_t sender = ((owner - hop) % sizes.ranks + sizes.ranks) % sizes.ranks;
      sent.q[sender] += hop < owner ? sizes.q_rows(owner) : sizes.q_rows(owner) / 2;
    }
  }
  return sent;
}

RowsSent rows_in_mesh(const Sizes& sizes) {
  RowsSent sent{ByRank{}, ByRank{}};
  const int64_t num_q = sizes.plan.scenario.parallel.mesh_q, num_kv = sizes.ranks / num_q;
  for (int64_t r = 0; r < sizes.ranks; ++r) {
    sent.q.push_back((num_q - 1) * sizes.q_rows(r));
    sent.kv.push_back((num_kv - 1) * sizes.kv_rows(r));
  }
  return sent;
}

RowsSent rows_gathered(const Sizes& sizes) {
  RowsSent sent{ByRank{}, ByRank(static_cast<size_t>(sizes.ranks), 0)};
  for (int64_t r = 0; r < sizes.ranks; ++r) sent.q.push_back((sizes.ranks - 1) * sizes.q_rows(r));
  return sent;
}

/// A rank's queries and keys, each to every rank that computes with them.
RowsSent rows_fetched(const Sizes& sizes) {
  const auto ranks = static_cast<size_t>(sizes.ranks);
  const Plan& plan = sizes.plan;
  RowsSent sent{ByRank(ranks, 0), ByRank(ranks, 0)};
  std::map<RunListId, int32_t> q_owner, kv_owner;
  for (const RankId rank : plan.home.ids()) {
    q_owner[plan.q_lists[rank]] = to_index(rank);
    kv_owner[plan.kv_lists[rank]] = to_index(rank);
  }
  for (const ComputeItem& item : plan.forward.computes) {
    if (item.num_slices == 0) continue;
    const auto q = q_owner.find(item.q_tokens), kv = kv_owner.find(item.kv_tokens);
    if (q != q_owner.end() && RankId{q->second} != item.rank)
      sent.q[static_cast<size_t>(q->second)] += plan.rows(item.q_tokens);
    if (kv != kv_owner.end() && RankId{kv->second} != item.rank)
      sent.kv[static_cast<size_t>(kv->second)] += plan.rows(item.kv_tokens);
  }
  return sent;
}

/// Schedules in which queries move: rows sent there, and one result back from every rank that has
/// worked for another.
Expected closed_form_moving(const Sizes& sizes, const RowsSent& sent) {
  Expected expected;
  const MovingQuery query(sizes);
  const ForeignWork work = foreign_work(
      sizes.plan, adds_scaled_partials(sizes.plan.scenario.parallel) ? Direction::backward
                                                                     : Direction::forward);
  const int64_t kv_row = sizes.kv_heads * sizes.kv;
  for (size_t r = 0; r < sent.q.size(); ++r) {
    expected.forward.push_back(sizes.heads *
                                   (sent.q[r] * query.to_compute + work.q[r] * query.back) +
                               sent.kv[r] * kv_row * sizes.input);
    expected.backward.push_back(
        sizes.heads * (sent.q[r] * query.to_gradients + work.q[r] * query.gradient_back) +
        kv_row * (sent.kv[r] * sizes.input + work.kv[r] * sizes.wire));
  }
  return expected;
}

/// Queries gathered, the lse of all rows to every rank, and scaled results to the owners of the
/// rows.
Expected closed_form_scaled(const Sizes& sizes) {
  const RowsSent sent = rows_gathered(sizes);
  Expected expected = closed_form_moving(sizes, sent);
  const MovingQuery query(sizes);
  const int64_t statistic = sizes.plan.scenario.numerics.dtype == Dtype::fp64 ? 8 : 4;
  int64_t all_rows = 0;
  for (int64_t r = 0; r < sizes.ranks; ++r) all_rows += sizes.q_rows(r);
  for (int64_t r = 0; r < sizes.ranks; ++r) {
    expected.forward[static_cast<size_t>(r)] =
        sizes.heads * (sent.q[static_cast<size_t>(r)] * query.to_compute +
                       (sizes.ranks - 1) * all_rows * statistic +
                       (all_rows - sizes.q_rows(r)) * (query.back - statistic));
  }
  return expected;
}

/// Where ranks own heads: their queries to every rank, if these do not have them; and of the
/// results the heads of others.
Expected closed_form_of_heads(const Sizes& sizes) {
  const Parallel& parallel = sizes.plan.scenario.parallel;
  const MovingQuery query(sizes);
  const int64_t statistic = sizes.plan.scenario.numerics.dtype == Dtype::fp64 ? 8 : 4,
                rows = sizes.q_rows(0);
  const bool gathers_lse = parallel.combine == Combine::reduce_scatter;
  std::vector<bool> has_work(static_cast<size_t>(sizes.ranks), false);
  for (const ComputeItem& item : sizes.plan.forward.computes)
    if (item.num_slices > 0) has_work[static_cast<size_t>(to_index(item.rank))] = true;
  Expected expected;
  expected.backward.assign(static_cast<size_t>(sizes.ranks), 0);
  for (int64_t r = 0; r < sizes.ranks; ++r) {
    const int64_t own = head_share(sizes, r, sizes.ranks).size();
    int64_t bytes = parallel.q_owner == QOwner::heads_replicated
                        ? 0
                        : (sizes.ranks - 1) * rows * own * query.to_compute;
    // A rank whose keys nobody sees has no result to exchange.
    const bool sends = parallel.combine != Combine::all_to_all || has_work[static_cast<size_t>(r)];
    int64_t sent = sends ? sizes.heads - own : 0;
    if (parallel.combine == Combine::tree) {
      sent = 0;
      for (int64_t half = sizes.ranks / 2; half > 0; half /= 2) {
        const int64_t first = (r ^ half) / half * half;
        for (int64_t owner = first; owner < first + half; ++owner)
          sent += head_share(sizes, owner, sizes.ranks).size();
      }
    }
    bytes += rows * sent * (gathers_lse ? query.back - statistic : query.back);
    if (gathers_lse) bytes += (sizes.ranks - 1) * rows * sizes.heads * statistic;
    expected.forward.push_back(bytes);
  }
  return expected;
}

ByRank sent_by_rank(const Pass& pass, int64_t ranks) {
  ByRank sent(static_cast<size_t>(ranks), 0);
  for (const TransferItem& item : pass.transfers) sent[to_index(item.src)] += item.bytes;
  return sent;
}

std::string first_byte_difference(const ByRank& expected, const ByRank& seen,
                                  std::string_view pass) {
  for (size_t r = 0; r < expected.size(); ++r) {
    if (expected[r] != seen[r])
      return fmt::format("{}: rank {} should send {} bytes, its transfers sum to {}", pass, r,
                         expected[r], seen[r]);
  }
  return "";
}

/// Checks that the bytes of every transfer equal its rows x heads x head_dim x element size on the
/// wire. Rows and dtype are what the item itself states, so they are read as the planner reads
/// them. The closed forms count rows and bytes without them.
std::optional<std::string> check_item_bytes(const Plan& plan, std::optional<ItemId>& wrong) {
  const Numerics& numerics = plan.scenario.numerics;
  const CommType type = plan.scenario.parallel.comm_type;
  const bool may_widen_rings = has_windows(type) || type == CommType::custom;
  for (const Direction direction : kDirections) {
    const std::vector<TransferItem>& transfers = plan.pass(direction).transfers;
    for (const TransferItem& item : transfers) {
      wrong = ItemId{direction, StageKind::transfer, &item - transfers.data()};
      const bool is_partial = item.payload == Payload::partial ||
                              (item.payload == Payload::out && item.landing == Landing::add);
      const bool may_be_fp32 =
          is_partial ? plan.scenario.parallel.partial_wire == WireFormat::fp32
                     : (item.payload == Payload::dkv || item.payload == Payload::dq) &&
                           (numerics.dkv_wire == WireFormat::fp32 ||
                            (may_widen_rings && item.link == LinkClass::ring));
      // A gradient whose sum is whole may travel in the dtype all the same.
      if (item.wire_fp32 ? !may_be_fp32 : is_partial && may_be_fp32) {
        return fmt::format("step {}: {} from rank {} to rank {} travels in {}", to_index(item.step),
                           to_name(item.payload), to_index(item.src), to_index(item.dst),
                           item.wire_fp32 ? "fp32" : "the dtype");
      }
      const int64_t bytes = wire_bytes(plan, item);
      if (item.bytes != bytes) {
        return fmt::format("step {}: {} from rank {} to rank {} is {} bytes, {} are noted",
                           to_index(item.step), to_name(item.payload), to_index(item.src),
                           to_index(item.dst), bytes, item.bytes);
      }
    }
  }
  return std::nullopt;
}

/// What a schedule with a closed form sends; nothing for one without.
std::optional<Expected> closed_form(const Sizes& sizes) {
  const Scenario& scenario = sizes.plan.scenario;
  switch (scenario.parallel.comm_type) {
    case CommType::p2p:
    case CommType::double_ring:
      return sends_queries_backward(scenario) ? closed_form_queries_back(sizes)
                                              : closed_form_ring(sizes, 1);
    case CommType::a2a_p2p:
    case CommType::a2a_double_ring:
      return closed_form_ring(sizes, scenario.parallel.a2a_size);
    case CommType::a2a:
      return closed_form_ring(sizes, sizes.ranks);
    case CommType::all_gather:
      return closed_form_gather(sizes);
    case CommType::pass_q:
      return closed_form_moving(sizes, rows_in_ring(sizes));
    case CommType::token_ring:
      return closed_form_moving(sizes, rows_in_token_ring(sizes));
    case CommType::helper_ring:
      return closed_form_moving(sizes, rows_fetched(sizes));
    case CommType::mesh:
      return closed_form_moving(sizes, rows_in_mesh(sizes));
    case CommType::gather_q:
      if (owns_heads(scenario.parallel)) return closed_form_of_heads(sizes);
      return adds_scaled_partials(scenario.parallel)
                 ? closed_form_scaled(sizes)
                 : closed_form_moving(sizes, rows_gathered(sizes));
    case CommType::group_cast:
    case CommType::custom:
      return std::nullopt;
  }
  return std::nullopt;
}

/// The sum over all groups of cp_sizes.
Expected closed_form_of_rounds(const Plan& plan) {
  const auto ranks = static_cast<size_t>(plan.layout.cp_size);
  Expected all{ByRank(ranks, 0), ByRank(ranks, 0)};
  for (const CpRound& round : plan.layout.rounds) {
    for (const CpGroup& group : round.groups) {
      const std::optional<Expected> part = closed_form(Sizes(plan, group));
      for (int32_t r = 0; part && r < group.size; ++r) {
        const auto rank = static_cast<size_t>(group.first_rank + r);
        all.forward[rank] += part->forward[static_cast<size_t>(r)];
        all.backward[rank] += part->backward[static_cast<size_t>(r)];
      }
    }
  }
  return all;
}

}  // namespace

CheckResult check_bytes(const Plan& plan) {
  std::optional<ItemId> wrong;
  if (auto text = check_item_bytes(plan, wrong)) return broken("bytes", *text, wrong);
  const CommType type = plan.scenario.parallel.comm_type;
  if (type == CommType::group_cast) {
    const Sizes sizes(plan);
    return check_cast_bytes(plan, sizes.input, sizes.wire);
  }
  if (type == CommType::custom) {
    return passed("bytes",
                  "the bytes of every transfer are those of its rows; a custom schedule has no "
                  "closed form");
  }
  Sizes sizes(plan);
  sizes.replicated = count_replicated(plan);
  Expected expected = has_rounds(plan.scenario.parallel) ? closed_form_of_rounds(plan)
                                                         : closed_form(sizes).value_or(Expected{});
  if (!plan.scenario.numerics.backward)
    std::fill(expected.backward.begin(), expected.backward.end(), 0);
  std::string text =
      first_byte_difference(expected.forward, sent_by_rank(plan.forward, sizes.ranks), "forward");
  if (text.empty())
    text = first_byte_difference(expected.backward, sent_by_rank(plan.backward, sizes.ranks),
                                 "backward");
  if (!text.empty()) return broken("bytes", text);
  return passed("bytes", "what every rank sends equals the closed form of the schedule");
}

}  // namespace cpscope
