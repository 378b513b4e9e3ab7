#include "sim/plan/planner/replicated_keys.h"
#include "sim/plan/planner/ring_route.h"

namespace cpscope {

std::optional<Error> plan_hierarchical(PlanBuilder& builder) {
  const int32_t a2a_size = builder.scenario().parallel.a2a_size;
  const int32_t ring_size = builder.num_ranks() / a2a_size;
  std::vector<std::vector<RankId>> groups(static_cast<size_t>(ring_size));
  Rings rings;
  rings.widens_sums = builder.scenario().parallel.comm_type == CommType::a2a_double_ring;
  rings.window = rings.widens_sums ? builder.scenario().parallel.ring_window : ring_size;
  rings.members.resize(static_cast<size_t>(a2a_size));
  for (int32_t p = 0; p < ring_size; ++p) {
    for (int32_t a = 0; a < a2a_size; ++a) {
      groups[p].push_back(RankId{p * a2a_size + a});
      rings.members[a].push_back(p * a2a_size + a);
    }
  }
  const ReplicatedKeys replicated = add_replicated_keys(builder);
  const HeadExchange exchange = make_head_exchange(builder, groups, replicated, 0);
  for (const ExchangeSeat& seat : exchange.stages.front()) rings.seats.push_back(seat.seat);
  ReplicaWork replica;
  if (auto error = replica.find(builder, replicated, rings.seats)) return error;
  plan_exchange_in(builder, exchange, 0);
  replica.add_forward(builder, rings.seats, 0, rings.merges);
  RingState state;
  if (auto error = plan_ring_forward(builder, rings, state)) return error;
  plan_exchange_out(builder, exchange, 0, ring_size - 1);
  if (!builder.has_backward()) return std::nullopt;
  plan_gradient_exchange_in(builder, exchange, 0);
  replica.add_backward(builder, rings.seats, 0, rings.merges);
  plan_ring_backward(builder, rings, state);
  plan_gradient_exchange_out(builder, exchange, replica, 0, ring_size - 1);
  return std::nullopt;
}

}  // namespace cpscope
