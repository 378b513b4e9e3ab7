#include "sim/base/check.h"
#include "sim/plan/planner/ring_route.h"

namespace cpscope {
namespace {

/// One tensor, or K and V, that travels to the seats that compute with it.
struct Carried {
  Payload payload{};
  std::vector<BufferId> own;     // [seat] where the first step finds it
  std::vector<RingSlots> slots;  // [seat]
};

/// The backward of a ring. One side of the computes travels, with the gradients of its rows, which
/// every seat adds its share to; the other side stays.
class BackwardRing {
 public:
  BackwardRing(PlanBuilder& builder, const RingRoute& route, const RingState& state)
      : builder_(builder),
        pass_(builder.plan().backward),
        route_(route),
        state_(state),
        moves_queries_(sends_queries_backward(builder.scenario())),
        ends_at_home_(!moves_queries_ && !route.rings().widens_sums &&
                      builder.scenario().numerics.dkv_hops == DkvHops::home),
        resting_merges_(route.rings().seats.size(), 0) {
    for (size_t s = 0; s < resting_merges_.size(); ++s) {
      const auto before = route.rings().merges.find(resting_sum(route.rings().seats[s]));
      if (before != route.rings().merges.end()) resting_merges_[s] = before->second;
    }
    const int32_t inside = route.window() > 1 ? route.window() : 0;
    hops_a_window_ = inside + (route.num_windows() > 1 ? 1 : 0);
    num_hops_ = ends_at_home_ ? last() : route.num_windows() * hops_a_window_;
    CPSCOPE_CHECK(!ends_at_home_ || route.num_windows() == 1, "only a simple ring ends at home",
                  route.size(), route.window());
    add_carried();
    add_sums();
  }

  void run() {
    for (int32_t step = 0; step < route_.size(); ++step) {
      add_hops(step);
      add_computes(step);
      add_merges(step);
      add_sum_hops(step);
    }
    builder_.open_stage(pass_, last(), StageKind::finish);
    for (const Seat& seat : route_.rings().seats) {
      builder_.add_finish(seat.rank, seat.dq);
      // If dkv is not a home buffer, the sum is a share that is still to be added to others.
      if (builder_.plan().buffer(seat.dkv).role == BufferRole::home)
        builder_.add_finish(seat.rank, seat.dkv);
    }
    builder_.close_stage();
  }

 private:
  int32_t last() const { return route_.size() - 1; }
  Side moving_side() const { return moves_queries_ ? Side::q : Side::kv; }
  RunListId moving_tokens(int32_t seat) const {
    return moves_queries_ ? route_.seat(seat).q_tokens : route_.seat(seat).kv_tokens;
  }
  BufferId moving_sum(const Seat& seat) const { return moves_queries_ ? seat.dq : seat.dkv; }
  BufferId resting_sum(const Seat& seat) const { return moves_queries_ ? seat.dkv : seat.dq; }
  BufferKind moving_kind() const { return moves_queries_ ? BufferKind::dq : BufferKind::dkv; }

  /// The seat whose rows a seat holds in a backward step. A ring that ends at home runs backwards:
  /// it begins with the rows that the forward ended with.
  int32_t source(int32_t seat, int32_t step) const {
    return ends_at_home_ ? route_.in_window(seat, 1 + step) : route_.source(seat, step);
  }
  const SliceRange& range(int32_t seat, int32_t step) const {
    const int32_t other = source(seat, step);
    const int32_t q = moves_queries_ ? other : seat, kv = moves_queries_ ? seat : other;
    return state_.ranges[static_cast<size_t>(q) * route_.size() + route_.position(kv)];
  }
  BufferId at(const Carried& carried, int32_t seat, int32_t step) const {
    const RingSlots& slots = carried.slots[static_cast<size_t>(seat)];
    const BufferId own = carried.own[static_cast<size_t>(seat)];
    if (!ends_at_home_) return slots.at(route_, step, own);
    const int32_t forward_step = last() - step;
    return forward_step == 0 && step > 0 ? slots.inside[1] : slots.at(route_, forward_step, own);
  }
  /// The sum that the rows of a seat's step enter, after so many hops.
  BufferId sum_after(int32_t seat, int32_t hops) const {
    return hops == num_hops_ ? moving_sum(route_.seat(seat))
                             : sum_slots_[static_cast<size_t>(seat)][static_cast<size_t>(hops % 2)];
  }
  int32_t hops_before(int32_t step) const {
    return ends_at_home_ ? step : route_.outer(step) * hops_a_window_ + route_.inner(step);
  }

  void add_carried() {
    const auto carry = [&](Payload payload, auto&& own) {
      Carried& carried = carried_.emplace_back();
      carried.payload = payload;
      for (const Seat& seat : route_.rings().seats) carried.own.push_back(own(seat));
      carried.slots = payload == Payload::kv ? state_.kv_slots
                                             : add_ring_slots(builder_, route_, kind_of(payload));
    };
    if (!moves_queries_) {
      carry(Payload::kv, [](const Seat& seat) { return seat.kv; });
      return;
    }
    carry(Payload::q, [](const Seat& seat) { return seat.q; });
    carry(Payload::d_out, [](const Seat& seat) { return seat.d_out; });
    carry(Payload::stats, [&](const Seat& seat) { return builder_.plan().home[seat.rank].stats; });
  }

  void add_sums() {
    const bool is_alone = route_.size() == 1;
    const std::vector<int64_t> capacity = longest_of_rings(builder_, route_, moving_side());
    for (int32_t s = 0; s < route_.num_seats(); ++s) {
      const Seat& seat = route_.seat(s);
      const int64_t rows = capacity[static_cast<size_t>(route_.ring_of(s))];
      const HeadRange heads = moves_queries_ ? seat.heads : seat.kv_heads;
      std::array<BufferId, 2> slots{kNoBuffer, kNoBuffer};
      for (const int32_t i : {0, 1}) {
        if (is_alone) continue;
        slots[static_cast<size_t>(i)] = builder_.add_buffer(
            seat.rank, moving_kind(), i == 0 ? BufferRole::ring_a : BufferRole::ring_b, kNoTokens,
            rows, heads);
      }
      sum_slots_.push_back(slots);
      resting_partial_.push_back(builder_.add_partial(resting_sum(seat)));
      moving_partial_.push_back(builder_.add_buffer(seat.rank, moving_kind(), BufferRole::partial,
                                                    kNoTokens, rows, heads));
    }
  }

  void add_hops(int32_t step) {
    const auto hop = [&](int32_t s, int32_t to, int32_t used_in) {
      for (const Carried& carried : carried_)
        builder_.add_transfer(ring_hop(route_, s, to, at(carried, s, step),
                                       at(carried, to, used_in), moving_tokens(source(s, step)),
                                       carried.payload));
    };
    if (!ends_at_home_) return add_forward_hops(builder_, pass_, route_, step, hop);
    builder_.open_stage(pass_, step, StageKind::transfer);
    for (int32_t s = 0; step < last() && s < route_.num_seats(); ++s)
      hop(s, route_.in_window(s, -1), step + 1);
    builder_.close_stage();
  }

  void add_computes(int32_t step) {
    builder_.open_stage(pass_, step, StageKind::compute);
    for (int32_t s = 0; s < route_.num_seats(); ++s) {
      const Seat& seat = route_.seat(s);
      const int32_t other = source(s, step);
      ComputeItem item;
      if (moves_queries_) {
        item = forward_item(seat, seat.kv, seat.kv_tokens, seat.out, range(s, step));
        item.q_tokens = route_.seat(other).q_tokens;
        item.q = at(carried_[0], s, step);
        item.d_out = at(carried_[1], s, step);
        if (step > 0) item.out = at(carried_[2], s, step);
        item.dq = moving_partial_[s];
        item.dkv = resting_partial_[s];
      } else {
        item = forward_item(seat, at(carried_[0], s, step), route_.seat(other).kv_tokens, seat.out,
                            range(s, step));
        item.d_out = seat.d_out;
        item.dq = resting_partial_[s];
        item.dkv = moving_partial_[s];
      }
      builder_.add_compute(item);
    }
    builder_.close_stage();
  }

  void add_merges(int32_t step) {
    builder_.open_stage(pass_, step, StageKind::merge);
    for (int32_t s = 0; s < route_.num_seats(); ++s) {
      const Seat& seat = route_.seat(s);
      const bool works = range(s, step).count > 0;
      const BufferId rest = resting_sum(seat);
      if (works) builder_.add_merge(seat.rank, resting_partial_[s], rest, resting_merges_[s]++);
      // A rank that computed nothing still has to set its rows to zero.
      if (step == last() && resting_merges_[s] == 0)
        builder_.add_merge(seat.rank, kNoBuffer, rest, 0);
      // The first rank of rows that travel starts their sum, with zeros if it has no share.
      if (works || step == 0)
        builder_.add_merge(seat.rank, works ? moving_partial_[s] : kNoBuffer,
                           sum_after(s, hops_before(step)), step);
    }
    builder_.close_stage();
  }

  /// The sums go on to the seat that has the next share: inside the window, and, once they are back
  /// at their place, to the next window. The last hop ends at the owner of the rows.
  void add_sum_hops(int32_t step) {
    const bool is_wide = builder_.scenario().numerics.dkv_wire == WireFormat::fp32;
    const int32_t hops = hops_before(step);
    const auto hop = [&](int32_t s, int32_t to, int32_t from_hops, int32_t rows_of, bool wide) {
      TransferItem item =
          ring_hop(route_, s, to, sum_after(s, from_hops), sum_after(to, from_hops + 1),
                   moving_tokens(rows_of), moves_queries_ ? Payload::dq : Payload::dkv);
      item.wire_fp32 = wide;
      builder_.add_transfer(item);
    };
    builder_.open_stage(pass_, step, StageKind::transfer);
    const bool goes_on_inside = route_.window() > 1 && (step < last() || !ends_at_home_);
    for (int32_t s = 0; goes_on_inside && s < route_.num_seats(); ++s)
      hop(s, route_.in_window(s, ends_at_home_ ? -1 : 1), hops, source(s, step),
          is_wide || route_.rings().widens_sums);
    builder_.close_stage();
    builder_.open_stage(pass_, step, StageKind::transfer);
    const bool leaves = route_.num_windows() > 1 && !route_.has_next_inside(step);
    for (int32_t s = 0; leaves && s < route_.num_seats(); ++s)
      hop(s, route_.across_windows(s, 1), hops + (route_.window() > 1 ? 1 : 0),
          route_.across_windows(s, -route_.outer(step)), is_wide);
    builder_.close_stage();
  }

  PlanBuilder& builder_;
  Pass& pass_;
  const RingRoute& route_;
  const RingState& state_;
  const bool moves_queries_;
  const bool ends_at_home_;                   // dkv_hops = home
  int32_t hops_a_window_ = 0, num_hops_ = 0;  // of the sums
  std::vector<Carried> carried_;
  std::vector<std::array<BufferId, 2>> sum_slots_;          // [seat]
  std::vector<BufferId> resting_partial_, moving_partial_;  // [seat]
  std::vector<int32_t> resting_merges_;                     // [seat] merges so far
};

}  // namespace

void plan_ring_backward(PlanBuilder& builder, const Rings& rings, const RingState& state) {
  const RingRoute route(rings);
  BackwardRing(builder, route, state).run();
}

}  // namespace cpscope
