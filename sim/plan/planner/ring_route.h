#pragma once

#include "sim/plan/planner/planner_parts.h"

#include <array>
#include <cstdint>
#include <vector>

namespace cpscope {

/// The way that rows take round a ring, or round a ring of windows (LoongTrain, Gu et al. 2024,
/// arXiv:2406.18485). In outer step j and inner step s a seat holds rows of the window that is j
/// windows before its own, from the place that is s places before its own. During the first inner
/// step the rows of the seat's own place also go to the next window, where they arrive before its
/// next outer step. One window is a simple ring.
class RingRoute {
 public:
  explicit RingRoute(const Rings& rings);

  const Rings& rings() const { return rings_; }
  const Seat& seat(int32_t index) const { return rings_.seats[static_cast<size_t>(index)]; }
  int32_t num_seats() const { return static_cast<int32_t>(rings_.seats.size()); }
  int32_t size() const { return size_; }      // positions of each ring
  int32_t window() const { return window_; }  // positions of each window
  int32_t num_windows() const { return size_ / window_; }
  int32_t position(int32_t seat) const { return positions_[static_cast<size_t>(seat)]; }
  int32_t ring_of(int32_t seat) const { return ring_of_seat_[static_cast<size_t>(seat)]; }
  /// The seat at a position of the ring of another seat.
  int32_t seat_at(int32_t seat, int32_t position) const {
    return rings_.members[static_cast<size_t>(ring_of(seat))][static_cast<size_t>(position)];
  }
  /// The seat `hops` places further in the same window; negative hops go back.
  int32_t in_window(int32_t seat, int32_t hops) const;
  /// The seat `hops` windows further at the same place.
  int32_t across_windows(int32_t seat, int32_t hops) const;

  int32_t inner(int32_t step) const { return step % window_; }
  int32_t outer(int32_t step) const { return step / window_; }
  /// The seat whose rows a seat holds in a step.
  int32_t source(int32_t seat, int32_t step) const {
    return across_windows(in_window(seat, -inner(step)), -outer(step));
  }
  bool has_next_inside(int32_t step) const { return inner(step) + 1 < window_; }
  bool sends_across(int32_t step) const {
    return inner(step) == 0 && outer(step) + 1 < num_windows();
  }

 private:
  const Rings& rings_;
  int32_t size_, window_;
  std::vector<int32_t> positions_;     // [seat]
  std::vector<int32_t> ring_of_seat_;  // [seat]
};

/// The most rows that a seat of each ring has: [ring].
std::vector<int64_t> longest_of_rings(const PlanBuilder& builder, const RingRoute& route,
                                      Side side);

/// Buffers of one seat for rows that travel: two for hops inside a window, two for hops across
/// windows.
struct RingSlots {
  std::array<BufferId, 2> inside{kNoBuffer, kNoBuffer};
  std::array<BufferId, 2> across{kNoBuffer, kNoBuffer};

  /// The buffer with the rows of a step; `own` holds the first step's.
  BufferId at(const RingRoute& route, int32_t step, BufferId own) const {
    if (step == 0) return own;
    const int32_t inner = route.inner(step);
    return inner == 0 ? across[static_cast<size_t>((route.outer(step) + 1) % 2)]
                      : inside[static_cast<size_t>((inner + 1) % 2)];
  }
};

/// Slots of every seat for rows of one kind of the whole ring; as many of them as the route needs.
std::vector<RingSlots> add_ring_slots(PlanBuilder& builder, const RingRoute& route,
                                      BufferKind kind);

/// The hop of `tokens` between two buffers, by the link of its way: inside a window or across.
TransferItem ring_hop(const RingRoute& route, int32_t from, int32_t to, BufferId source,
                      BufferId target, RunListId tokens, Payload payload);

/// Calls hop(seat, next seat) for every seat: in a stage of its own for hops across windows, which
/// take longer and are posted first, then in one for hops inside them.
template <class Hop>
void add_forward_hops(PlanBuilder& builder, Pass& pass, const RingRoute& route, int32_t step,
                      Hop&& hop) {
  builder.open_stage(pass, step, StageKind::transfer);
  for (int32_t s = 0; route.sends_across(step) && s < route.num_seats(); ++s)
    hop(s, route.across_windows(s, 1), step + route.window());
  builder.close_stage();
  builder.open_stage(pass, step, StageKind::transfer);
  for (int32_t s = 0; route.has_next_inside(step) && s < route.num_seats(); ++s)
    hop(s, route.in_window(s, 1), step + 1);
  builder.close_stage();
}

}  // namespace cpscope
