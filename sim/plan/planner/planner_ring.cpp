#include "sim/plan/planner/replicated_keys.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The buffer with the KV that a seat computes with in its i-th forward step: home first, then
/// alternating slots.
BufferId kv_at_step(const Seat& seat, const std::array<BufferId, 2>& slots, int32_t step) {
  return step == 0 ? seat.kv : slots[(step + 1) % 2];
}

struct RingGeometry {
  const Rings& rings;
  int32_t size;                       // positions of each ring
  std::vector<int32_t> position;      // [seat]
  std::vector<int32_t> ring_of_seat;  // [seat]

  explicit RingGeometry(const Rings& all)
      : rings(all), size(static_cast<int32_t>(all.members.front().size())) {
    position.resize(all.seats.size());
    ring_of_seat.resize(all.seats.size());
    for (size_t ring = 0; ring < all.members.size(); ++ring) {
      for (int32_t p = 0; p < size; ++p) {
        position[all.members[ring][p]] = p;
        ring_of_seat[all.members[ring][p]] = static_cast<int32_t>(ring);
      }
    }
  }
  int32_t num_seats() const { return static_cast<int32_t>(rings.seats.size()); }
  /// The seat `hops` positions further on the same ring; negative hops go back.
  int32_t seat_after(int32_t seat, int32_t hops) const {
    const int32_t p = ((position[seat] + hops) % size + size) % size;
    return rings.members[ring_of_seat[seat]][p];
  }
};

TransferItem kv_hop(const Seat& from, const Seat& to, BufferId source, BufferId target,
                    RunListId tokens) {
  TransferItem hop;
  hop.src = from.rank;
  hop.dst = to.rank;
  hop.from = source;
  hop.to = target;
  hop.tokens = tokens;
  hop.heads = from.kv_heads;
  hop.payload = Payload::kv;
  hop.link = LinkClass::ring;
  return hop;
}

/// Intersects every seat's queries with every KV of its ring. Seats with the same tokens share the
/// result.
std::optional<Error> find_ring_slices(PlanBuilder& builder, const RingGeometry& geometry,
                                      RingState& state) {
  const std::vector<Seat>& seats = geometry.rings.seats;
  std::vector<PieceTable> q_tables, kv_tables;
  // The seats at one position of every ring hold the same tokens, so the first ring is enough.
  const std::vector<int32_t>& first_ring = geometry.rings.members.front();
  for (const int32_t seat : first_ring) {
    q_tables.push_back(
        make_pieces(builder.plan().list(seats[seat].q_tokens), builder.slots(), Side::q));
    kv_tables.push_back(
        make_pieces(builder.plan().list(seats[seat].kv_tokens), builder.slots(), Side::kv));
  }
  std::vector<SliceJob> jobs;
  for (int32_t p = 0; p < geometry.size; ++p) {
    for (int32_t source = 0; source < geometry.size; ++source) jobs.push_back({p, source});
  }
  const auto ranges = intersect_all(builder, q_tables, kv_tables, jobs);
  if (!ranges) return too_many_slices();
  state.ranges.resize(seats.size() * static_cast<size_t>(geometry.size));
  for (size_t seat = 0; seat < seats.size(); ++seat) {
    for (int32_t source = 0; source < geometry.size; ++source) {
      state.ranges[seat * geometry.size + source] =
          (*ranges)[geometry.position[seat] * geometry.size + source];
    }
  }
  return std::nullopt;
}

void add_ring_slots(PlanBuilder& builder, const RingGeometry& geometry, RingState& state) {
  std::vector<int64_t> capacity(geometry.rings.members.size(), 0);
  for (int32_t seat = 0; seat < geometry.num_seats(); ++seat) {
    int64_t& rows = capacity[geometry.ring_of_seat[seat]];
    rows = std::max(rows, builder.plan().rows(geometry.rings.seats[seat].kv_tokens));
  }
  for (int32_t s = 0; s < geometry.num_seats(); ++s) {
    const Seat& seat = geometry.rings.seats[s];
    const int64_t rows = capacity[geometry.ring_of_seat[s]];
    std::array<BufferId, 2> slots{kNoBuffer, kNoBuffer};
    if (geometry.size > 1) {
      slots[0] = builder.add_buffer(seat.rank, BufferKind::kv, BufferRole::ring_a, kNoTokens, rows,
                                    seat.kv_heads);
      slots[1] = builder.add_buffer(seat.rank, BufferKind::kv, BufferRole::ring_b, kNoTokens, rows,
                                    seat.kv_heads);
    }
    state.kv_slots.push_back(slots);
  }
}

/// State of the backward ring, in addition to the seats.
struct BackwardRing {
  PlanBuilder& builder;
  const RingGeometry& geometry;
  const RingState& state;
  bool comes_home_late;                            // dkv_hops = ring: P hops, in forward direction
  std::vector<std::array<BufferId, 2>> dkv_slots;  // [seat]
  std::vector<BufferId> dq_partial, dkv_partial;   // [seat]
  std::vector<int32_t> dq_merges;                  // [seat] merges into dq so far

  int32_t direction() const { return comes_home_late ? 1 : -1; }
  int32_t last() const { return geometry.size - 1; }
  /// Position that owns the KV of the seat in backward step i.
  int32_t source_of(int32_t seat, int32_t step) const {
    const int32_t hops = comes_home_late ? -step : 1 + step;
    return geometry.position[geometry.seat_after(seat, hops)];
  }
  BufferId kv_at(int32_t seat, int32_t step) const {
    // In reverse direction, the first KV is the last one that the forward ring received.
    const int32_t forward_step = comes_home_late ? step : last() - step;
    if (!comes_home_late && step > 0) return state.kv_slots[seat][(forward_step + 1) % 2];
    return kv_at_step(geometry.rings.seats[seat], state.kv_slots[seat], forward_step);
  }
  /// The accumulator that collects dK and dV of the present block.
  BufferId dkv_at(int32_t seat, int32_t step) const {
    const bool is_home = geometry.size == 1 || (!comes_home_late && step == last());
    return is_home ? geometry.rings.seats[seat].dkv : dkv_slots[seat][step % 2];
  }
};

void add_backward_buffers(BackwardRing& ring) {
  for (int32_t s = 0; s < ring.geometry.num_seats(); ++s) {
    const Seat& seat = ring.geometry.rings.seats[s];
    std::array<BufferId, 2> slots{kNoBuffer, kNoBuffer};
    int64_t rows = ring.builder.plan().rows(seat.kv_tokens);
    if (ring.geometry.size > 1) {
      rows = ring.builder.plan().buffer(ring.state.kv_slots[s][0]).rows;
      slots[0] = ring.builder.add_buffer(seat.rank, BufferKind::dkv, BufferRole::ring_a, kNoTokens,
                                         rows, seat.kv_heads);
      slots[1] = ring.builder.add_buffer(seat.rank, BufferKind::dkv, BufferRole::ring_b, kNoTokens,
                                         rows, seat.kv_heads);
    }
    ring.dkv_slots.push_back(slots);
    ring.dq_partial.push_back(ring.builder.add_partial(seat.dq));
    ring.dkv_partial.push_back(ring.builder.add_buffer(
        seat.rank, BufferKind::dkv, BufferRole::partial, kNoTokens, rows, seat.kv_heads));
    const auto before = ring.geometry.rings.merges.find(seat.dq);
    ring.dq_merges.push_back(before == ring.geometry.rings.merges.end() ? 0 : before->second);
  }
}

RunListId kv_list(const RingGeometry& geometry, int32_t seat, int32_t source) {
  return geometry.rings.seats[geometry.rings.members[geometry.ring_of_seat[seat]][source]]
      .kv_tokens;
}

void add_backward_kv_hops(BackwardRing& ring, int32_t step) {
  ring.builder.open_stage(ring.builder.plan().backward, step, StageKind::transfer);
  for (int32_t s = 0; step < ring.last() && s < ring.geometry.num_seats(); ++s) {
    const int32_t to = ring.geometry.seat_after(s, ring.direction());
    const auto& seats = ring.geometry.rings.seats;
    ring.builder.add_transfer(kv_hop(seats[s], seats[to], ring.kv_at(s, step),
                                     ring.kv_at(to, step + 1),
                                     kv_list(ring.geometry, s, ring.source_of(s, step))));
  }
  ring.builder.close_stage();
}

void add_backward_computes(BackwardRing& ring, int32_t step) {
  ring.builder.open_stage(ring.builder.plan().backward, step, StageKind::compute);
  for (int32_t s = 0; s < ring.geometry.num_seats(); ++s) {
    const Seat& seat = ring.geometry.rings.seats[s];
    const int32_t source = ring.source_of(s, step);
    ComputeItem item =
        forward_item(seat, ring.kv_at(s, step), kv_list(ring.geometry, s, source), seat.out,
                     ring.state.ranges[static_cast<size_t>(s) * ring.geometry.size + source]);
    item.d_out = seat.d_out;
    item.dq = ring.dq_partial[s];
    item.dkv = ring.dkv_partial[s];
    ring.builder.add_compute(item);
  }
  ring.builder.close_stage();
}

void add_ring_gradient_merges(BackwardRing& ring, int32_t step) {
  ring.builder.open_stage(ring.builder.plan().backward, step, StageKind::merge);
  for (int32_t s = 0; s < ring.geometry.num_seats(); ++s) {
    const Seat& seat = ring.geometry.rings.seats[s];
    const bool works =
        ring.state.ranges[static_cast<size_t>(s) * ring.geometry.size + ring.source_of(s, step)]
            .count > 0;
    if (works) ring.builder.add_merge(seat.rank, ring.dq_partial[s], seat.dq, ring.dq_merges[s]++);
    // A rank that computed nothing still has to set its dq rows to zero.
    if (step == ring.last() && ring.dq_merges[s] == 0)
      ring.builder.add_merge(seat.rank, kNoBuffer, seat.dq, 0);
    // The first rank of a block starts its sum, with zeros if it has no share.
    if (works || step == 0)
      ring.builder.add_merge(seat.rank, works ? ring.dkv_partial[s] : kNoBuffer,
                             ring.dkv_at(s, step), step);
  }
  ring.builder.close_stage();
}

void add_dkv_hops(BackwardRing& ring, int32_t step) {
  const int32_t n = ring.geometry.size;
  const bool sends = n > 1 && (step < ring.last() || ring.comes_home_late);
  ring.builder.open_stage(ring.builder.plan().backward, step, StageKind::transfer);
  for (int32_t s = 0; sends && s < ring.geometry.num_seats(); ++s) {
    const int32_t to = ring.geometry.seat_after(s, ring.direction());
    const auto& seats = ring.geometry.rings.seats;
    const BufferId target = step == ring.last() ? seats[to].dkv : ring.dkv_at(to, step + 1);
    TransferItem hop = kv_hop(seats[s], seats[to], ring.dkv_at(s, step), target,
                              kv_list(ring.geometry, s, ring.source_of(s, step)));
    hop.payload = Payload::dkv;
    hop.wire_fp32 = ring.builder.scenario().numerics.dkv_wire == WireFormat::fp32;
    ring.builder.add_transfer(hop);
  }
  ring.builder.close_stage();
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
  const RingGeometry geometry(rings);
  if (auto error = find_ring_slices(builder, geometry, state)) return error;
  add_ring_slots(builder, geometry, state);
  std::vector<BufferId> partial;
  std::vector<int32_t> merges;
  for (const Seat& seat : rings.seats) {
    partial.push_back(builder.add_partial(seat.out));
    const auto before = rings.merges.find(seat.out);
    merges.push_back(before == rings.merges.end() ? 0 : before->second);
  }
  Pass& pass = builder.plan().forward;
  for (int32_t step = 0; step < geometry.size; ++step) {
    builder.open_stage(pass, step, StageKind::transfer);
    // The last step sends nothing: every rank has already seen every key.
    for (int32_t s = 0; step + 1 < geometry.size && s < geometry.num_seats(); ++s) {
      const int32_t to = geometry.seat_after(s, 1);
      const int32_t source = geometry.position[geometry.seat_after(s, -step)];
      builder.add_transfer(kv_hop(
          rings.seats[s], rings.seats[to], kv_at_step(rings.seats[s], state.kv_slots[s], step),
          kv_at_step(rings.seats[to], state.kv_slots[to], step + 1), kv_list(geometry, s, source)));
    }
    builder.close_stage();
    builder.open_stage(pass, step, StageKind::compute);
    for (int32_t s = 0; s < geometry.num_seats(); ++s) {
      const int32_t source = geometry.position[geometry.seat_after(s, -step)];
      builder.add_compute(
          forward_item(rings.seats[s], kv_at_step(rings.seats[s], state.kv_slots[s], step),
                       kv_list(geometry, s, source), partial[s],
                       state.ranges[static_cast<size_t>(s) * geometry.size + source]));
    }
    builder.close_stage();
    builder.open_stage(pass, step, StageKind::merge);
    for (int32_t s = 0; s < geometry.num_seats(); ++s) {
      const int32_t source = geometry.position[geometry.seat_after(s, -step)];
      const bool works = state.ranges[static_cast<size_t>(s) * geometry.size + source].count > 0;
      if (works)
        builder.add_merge(rings.seats[s].rank, partial[s], rings.seats[s].out, merges[s]++);
      if (step + 1 == geometry.size && merges[s] == 0)
        builder.add_merge(rings.seats[s].rank, kNoBuffer, rings.seats[s].out, 0);
    }
    builder.close_stage();
  }
  builder.open_stage(pass, geometry.size - 1, StageKind::finish);
  for (const Seat& seat : rings.seats) builder.add_finish(seat.rank, seat.out);
  builder.close_stage();
  return std::nullopt;
}

void plan_ring_backward(PlanBuilder& builder, const Rings& rings, const RingState& state) {
  const RingGeometry geometry(rings);
  BackwardRing ring{builder, geometry, state, builder.scenario().numerics.dkv_hops == DkvHops::ring,
                    {},      {},       {},    {}};
  add_backward_buffers(ring);
  for (int32_t step = 0; step < geometry.size; ++step) {
    add_backward_kv_hops(ring, step);
    add_backward_computes(ring, step);
    add_ring_gradient_merges(ring, step);
    add_dkv_hops(ring, step);
  }
  builder.open_stage(builder.plan().backward, geometry.size - 1, StageKind::finish);
  for (const Seat& seat : rings.seats) {
    builder.add_finish(seat.rank, seat.dq);
    // If dkv is not a home buffer, the sum is a share that is still to be added to others.
    if (builder.plan().buffer(seat.dkv).role == BufferRole::home)
      builder.add_finish(seat.rank, seat.dkv);
  }
  builder.close_stage();
}

std::optional<Error> plan_p2p(PlanBuilder& builder) {
  Rings rings;
  rings.seats = home_seats(builder);
  rings.members.emplace_back();
  for (int32_t r = 0; r < builder.num_ranks(); ++r) rings.members.front().push_back(r);
  const ReplicatedKeys replicated = add_replicated_keys(builder);
  if (replicated.are_there()) take_other_keys(builder, replicated, rings.seats);
  ReplicaWork replica;
  if (auto error = replica.find(builder, replicated, rings.seats)) return error;
  replica.add_forward(builder, rings.seats, 0, rings.merges);
  RingState state;
  if (auto error = plan_ring_forward(builder, rings, state)) return error;
  if (!builder.has_backward()) return std::nullopt;
  replica.add_backward(builder, rings.seats, 0, rings.merges);
  plan_ring_backward(builder, rings, state);
  if (replicated.are_there()) bring_gradients_home(builder, replicated, replica, rings.seats);
  return std::nullopt;
}

}  // namespace cpscope
