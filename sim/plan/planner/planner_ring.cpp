#include "sim/plan/planner/replicated_keys.h"
#include "sim/plan/planner/ring_route.h"

#include <algorithm>

namespace cpscope {
namespace {

int32_t modulo(int32_t value, int32_t size) { return (value % size + size) % size; }

/// Intersects every seat's queries with every KV of its ring. Seats with the same tokens share the
/// result.
std::optional<Error> find_ring_slices(PlanBuilder& builder, const RingRoute& route,
                                      RingState& state) {
  const std::vector<Seat>& seats = route.rings().seats;
  std::vector<PieceTable> q_tables, kv_tables;
  // The seats at one position of every ring hold the same tokens, so the first ring is enough.
  const std::vector<int32_t>& first_ring = route.rings().members.front();
  for (const int32_t seat : first_ring) {
    q_tables.push_back(
        make_pieces(builder.plan().list(seats[seat].q_tokens), builder.slots(), Side::q));
    kv_tables.push_back(
        make_pieces(builder.plan().list(seats[seat].kv_tokens), builder.slots(), Side::kv));
  }
  std::vector<SliceJob> jobs;
  for (int32_t p = 0; p < route.size(); ++p) {
    for (int32_t source = 0; source < route.size(); ++source) jobs.push_back({p, source});
  }
  const auto ranges = intersect_all(builder, q_tables, kv_tables, jobs);
  if (!ranges) return too_many_slices();
  state.ranges.resize(seats.size() * static_cast<size_t>(route.size()));
  for (int32_t seat = 0; seat < route.num_seats(); ++seat) {
    for (int32_t source = 0; source < route.size(); ++source) {
      state.ranges[static_cast<size_t>(seat) * route.size() + source] =
          (*ranges)[route.position(seat) * route.size() + source];
    }
  }
  return std::nullopt;
}

/// Copies the keys of every rank that not all ranks hold to buffers of their own, for the ring.
void take_other_keys(PlanBuilder& builder, const ReplicatedKeys& replicated,
                     std::vector<Seat>& seats) {
  builder.open_stage(builder.plan().forward, 0, StageKind::transfer);
  for (Seat& seat : seats) {
    const auto add = [&](BufferKind kind) {
      return builder.add_buffer(seat.rank, kind, BufferRole::moved, seat.kv_tokens, seat.kv_heads);
    };
    seat.kv_tokens = replicated.other_tokens[seat.rank];
    TransferItem item;
    item.src = item.dst = seat.rank;
    item.from = seat.kv;
    item.to = seat.kv = add(BufferKind::kv);
    item.from_rows = replicated.other_rows[seat.rank];
    item.heads = seat.kv_heads;
    item.payload = Payload::kv;
    builder.add_transfer(item);
    if (builder.has_backward()) seat.dkv = add(BufferKind::dkv);
  }
  builder.close_stage();
}

/// Adds what the ring has summed, and all ranks' shares of the other keys, to the sums at home.
void bring_gradients_home(PlanBuilder& builder, const ReplicatedKeys& replicated,
                          const ReplicaWork& replica, const std::vector<Seat>& seats) {
  Pass& pass = builder.plan().backward;
  const int32_t step = pass.num_steps - 1;
  builder.open_stage(pass, step, StageKind::merge);
  for (const RankId rank : builder.ranks())
    builder.add_merge(rank, kNoBuffer, builder.plan().home[rank].dkv, 0);
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::transfer);
  for (const Seat& seat : seats) {
    TransferItem item;
    item.src = item.dst = seat.rank;
    item.from = seat.dkv;
    item.to = builder.plan().home[seat.rank].dkv;
    item.to_rows = replicated.other_rows[seat.rank];
    item.heads = seat.kv_heads;
    item.payload = Payload::dkv;
    item.landing = Landing::add;
    builder.add_transfer(item);
  }
  builder.close_stage();
  replica.add_shares_home(builder, step);
  builder.open_stage(pass, step, StageKind::finish);
  for (const RankId rank : builder.ranks()) builder.add_finish(rank, builder.plan().home[rank].dkv);
  builder.close_stage();
}

}  // namespace

RingRoute::RingRoute(const Rings& rings)
    : rings_(rings),
      size_(static_cast<int32_t>(rings.members.front().size())),
      window_(rings.window) {
  positions_.resize(rings.seats.size());
  ring_of_seat_.resize(rings.seats.size());
  for (size_t ring = 0; ring < rings.members.size(); ++ring) {
    for (int32_t p = 0; p < size_; ++p) {
      positions_[rings.members[ring][p]] = p;
      ring_of_seat_[rings.members[ring][p]] = static_cast<int32_t>(ring);
    }
  }
}

int32_t RingRoute::in_window(int32_t seat, int32_t hops) const {
  const int32_t place = position(seat) % window_;
  return seat_at(seat, position(seat) - place + modulo(place + hops, window_));
}

int32_t RingRoute::across_windows(int32_t seat, int32_t hops) const {
  return seat_at(seat, modulo(position(seat) + hops * window_, size_));
}

std::vector<int64_t> longest_of_rings(const PlanBuilder& builder, const RingRoute& route,
                                      Side side) {
  std::vector<int64_t> longest(route.rings().members.size(), 0);
  for (int32_t s = 0; s < route.num_seats(); ++s) {
    const Seat& seat = route.seat(s);
    int64_t& rows = longest[static_cast<size_t>(route.ring_of(s))];
    rows = std::max(rows, builder.plan().rows(side == Side::kv ? seat.kv_tokens : seat.q_tokens));
  }
  return longest;
}

std::vector<RingSlots> add_ring_slots(PlanBuilder& builder, const RingRoute& route,
                                      BufferKind kind) {
  const bool is_kv = kind == BufferKind::kv || kind == BufferKind::dkv;
  const std::vector<int64_t> capacity =
      longest_of_rings(builder, route, is_kv ? Side::kv : Side::q);
  std::vector<RingSlots> slots(route.rings().seats.size());
  for (int32_t s = 0; s < route.num_seats(); ++s) {
    const Seat& seat = route.seat(s);
    const auto add_pair = [&](std::array<BufferId, 2>& pair, BufferRole first, BufferRole second) {
      const int64_t rows = capacity[static_cast<size_t>(route.ring_of(s))];
      const HeadRange heads = is_kv ? seat.kv_heads : seat.heads;
      pair[0] = builder.add_buffer(seat.rank, kind, first, kNoTokens, rows, heads);
      pair[1] = builder.add_buffer(seat.rank, kind, second, kNoTokens, rows, heads);
    };
    RingSlots& own = slots[static_cast<size_t>(s)];
    if (route.window() > 1) add_pair(own.inside, BufferRole::ring_a, BufferRole::ring_b);
    if (route.num_windows() > 1) add_pair(own.across, BufferRole::outer_a, BufferRole::outer_b);
  }
  return slots;
}

TransferItem ring_hop(const RingRoute& route, int32_t from, int32_t to, BufferId source,
                      BufferId target, RunListId tokens, Payload payload) {
  const Seat &sender = route.seat(from), &receiver = route.seat(to);
  const bool is_kv = payload == Payload::kv || payload == Payload::dkv;
  const bool is_inside =
      route.position(from) / route.window() == route.position(to) / route.window();
  TransferItem hop;
  hop.src = sender.rank;
  hop.dst = receiver.rank;
  hop.from = source;
  hop.to = target;
  hop.tokens = tokens;
  hop.heads = is_kv ? sender.kv_heads : sender.heads;
  hop.payload = payload;
  hop.link = is_inside ? LinkClass::ring : LinkClass::outer_ring;
  return hop;
}

ComputeItem forward_item(const Seat& seat, BufferId kv, RunListId kv_tokens, BufferId partial,
                         const SliceRange& range) {
  ComputeItem item;
  item.rank = seat.rank;
  item.q = seat.q;
  item.kv = kv;
  item.out = partial;
  item.q_tokens = seat.q_tokens;
  item.kv_tokens = kv_tokens;
  item.heads = seat.heads;
  set_slices(item, range);
  return item;
}

std::vector<Seat> home_seats(const PlanBuilder& builder) {
  std::vector<Seat> seats;
  const Plan& plan = builder.plan();
  for (const RankId rank : builder.ranks()) {
    const HomeBuffers& home = plan.home[rank];
    seats.push_back({rank, plan.q_lists[rank], plan.kv_lists[rank], builder.all_heads(),
                     builder.all_kv_heads(), home.q, home.kv, home.out, home.d_out, home.dq,
                     home.dkv});
  }
  return seats;
}

std::optional<Error> plan_ring_forward(PlanBuilder& builder, const Rings& rings, RingState& state) {
  const RingRoute route(rings);
  if (auto error = find_ring_slices(builder, route, state)) return error;
  state.kv_slots = add_ring_slots(builder, route, BufferKind::kv);
  std::vector<BufferId> partial;
  std::vector<int32_t> merges;
  for (const Seat& seat : rings.seats) {
    partial.push_back(builder.add_partial(seat.out));
    const auto before = rings.merges.find(seat.out);
    merges.push_back(before == rings.merges.end() ? 0 : before->second);
  }
  Pass& pass = builder.plan().forward;
  const auto kv_at = [&](int32_t s, int32_t step) {
    return state.kv_slots[static_cast<size_t>(s)].at(route, step, route.seat(s).kv);
  };
  const auto range_of = [&](int32_t s, int32_t step) {
    return state
        .ranges[static_cast<size_t>(s) * route.size() + route.position(route.source(s, step))];
  };
  for (int32_t step = 0; step < route.size(); ++step) {
    add_forward_hops(builder, pass, route, step, [&](int32_t s, int32_t to, int32_t used_in) {
      builder.add_transfer(ring_hop(route, s, to, kv_at(s, step), kv_at(to, used_in),
                                    route.seat(route.source(s, step)).kv_tokens, Payload::kv));
    });
    builder.open_stage(pass, step, StageKind::compute);
    for (int32_t s = 0; s < route.num_seats(); ++s) {
      builder.add_compute(forward_item(route.seat(s), kv_at(s, step),
                                       route.seat(route.source(s, step)).kv_tokens, partial[s],
                                       range_of(s, step)));
    }
    builder.close_stage();
    builder.open_stage(pass, step, StageKind::merge);
    for (int32_t s = 0; s < route.num_seats(); ++s) {
      if (range_of(s, step).count > 0)
        builder.add_merge(rings.seats[s].rank, partial[s], rings.seats[s].out, merges[s]++);
      if (step + 1 == route.size() && merges[s] == 0)
        builder.add_merge(rings.seats[s].rank, kNoBuffer, rings.seats[s].out, 0);
    }
    builder.close_stage();
  }
  builder.open_stage(pass, route.size() - 1, StageKind::finish);
  for (const Seat& seat : rings.seats) builder.add_finish(seat.rank, seat.out);
  builder.close_stage();
  return std::nullopt;
}

std::optional<Error> plan_rings(PlanBuilder& builder) {
  const Parallel& parallel = builder.scenario().parallel;
  Rings rings;
  rings.seats = home_seats(builder);
  rings.members.emplace_back();
  for (int32_t r = 0; r < builder.num_ranks(); ++r) rings.members.front().push_back(r);
  rings.widens_sums = parallel.comm_type == CommType::double_ring;
  rings.window = rings.widens_sums ? parallel.ring_window : builder.num_ranks();
  const ReplicatedKeys replicated = add_replicated_keys(builder);
  if (replicated.are_there()) take_other_keys(builder, replicated, rings.seats);
  ReplicaWork replica;
  if (auto error = replica.find(builder, replicated, rings.seats)) return error;
  replica.add_forward(builder, rings.seats, 0, rings.merges);
  RingState state;
  if (auto error = plan_ring_forward(builder, rings, state)) return error;
  if (!builder.has_backward()) return std::nullopt;
  if (sends_queries_backward(builder.scenario())) builder.add_home_stats();
  replica.add_backward(builder, rings.seats, 0, rings.merges);
  plan_ring_backward(builder, rings, state);
  if (replicated.are_there()) bring_gradients_home(builder, replicated, replica, rings.seats);
  return std::nullopt;
}

}  // namespace cpscope
