#pragma once

#include "sim/plan/planner/plan_builder.h"

#include <array>
#include <optional>
#include <vector>

namespace cpscope {

/// Buffers of one rank of a ring (or of a rank alone) for its computes: query side, own KV, and the
/// heads that it handles.
struct Seat {
  RankId rank{};
  RunListId q_tokens{}, kv_tokens{};
  HeadRange heads, kv_heads;
  BufferId q{}, kv{}, out{}, d_out = kNoBuffer, dq = kNoBuffer, dkv = kNoBuffer;
};

/// The seats of every rank at its home buffers, all heads.
std::vector<Seat> home_seats(const PlanBuilder& builder);

/// Rings of equal size over seats. Consecutive positions of a ring form windows, which rows go
/// round before they go on to the next window; with one window this is a simple ring.
struct Rings {
  std::vector<Seat> seats;
  std::vector<std::vector<int32_t>> members;  // [ring][position] -> seat
  int32_t window = 0;                         // positions of a window; divides those of a ring
  bool widens_sums = false;                   // gradients travel inside a window in fp32
};

struct RingSlots;

/// State of the forward ring that the backward ring needs.
struct RingState {
  std::vector<RingSlots> kv_slots;  // [seat]
  std::vector<SliceRange> ranges;   // [seat * ring size + position that owns the KV]
};

/// Ring attention (Liu et al. 2023, arXiv:2310.01889): KV travels to the next position each step,
/// partials are merged where the queries live. Fills steps [0, ring size) of the pass.
std::optional<Error> plan_ring_forward(PlanBuilder& builder, const Rings& rings, RingState& state);
void plan_ring_backward(PlanBuilder& builder, const Rings& rings, const RingState& state);

/// Buffers of one rank in an exchange. Query-side tensors are exchanged with the seat's query
/// heads, kv and dkv with its KV heads.
struct ExchangeSeat {
  Seat seat;  // sequence-ordered buffers: all tokens of the group, the rank's share of the heads
  BufferId q_ranked = kNoBuffer, kv_ranked = kNoBuffer,
           out_ranked = kNoBuffer;  // the same rows in rank order
  BufferId d_out_ranked = kNoBuffer, dq_ranked = kNoBuffer, dkv_ranked = kNoBuffer;
};

/// Row orders of one side of a group; shared by its ranks.
struct GroupSide {
  RunListId to_sequence{}, to_ranks{};
  RunListId ranked{}, sequence{};  // the tokens in either order
  std::vector<RunListId> rows;     // [index] rows of this rank's tokens in the rank-ordered buffer
};

struct GroupOrder {
  std::vector<RankId> ranks;
  GroupSide q, kv;

  const GroupSide& side(Side side) const { return side == Side::q ? q : kv; }
};

/// One exchange of heads against tokens inside groups of ranks (Ulysses, Jacobs et al. 2023,
/// arXiv:2309.14509).
struct HeadExchange {
  std::vector<GroupOrder> groups;
  IdVector<RankId, ExchangeSeat> seats;
};

HeadExchange make_head_exchange(PlanBuilder& builder,
                                const std::vector<std::vector<RankId>>& groups);
/// q, kv: home -> rank order -> sequence order, in step 0 of the forward pass.
void plan_exchange_in(PlanBuilder& builder, const HeadExchange& exchange);
/// out: sequence order -> rank order -> home.
void plan_exchange_out(PlanBuilder& builder, const HeadExchange& exchange, int32_t step);
/// d_out: home -> rank order -> sequence order, in step 0 of the backward pass.
void plan_gradient_exchange_in(PlanBuilder& builder, const HeadExchange& exchange);
/// dq, dkv: sequence order -> rank order -> home. Shares of a KV head that several ranks read are
/// added at home.
void plan_gradient_exchange_out(PlanBuilder& builder, const HeadExchange& exchange, int32_t step);

/// p2p, and double_ring: one ring of all ranks, with windows or without.
std::optional<Error> plan_rings(PlanBuilder& builder);
std::optional<Error> plan_a2a(PlanBuilder& builder);
std::optional<Error> plan_all_gather(PlanBuilder& builder);
std::optional<Error> plan_hierarchical(PlanBuilder& builder);
std::optional<Error> plan_group_cast(PlanBuilder& builder);

/// Queries travel in a ring (Yang et al. 2024, arXiv:2411.01783, pass-Q): keys stay, and all
/// partial results return after the last step.
std::optional<Error> plan_pass_q(PlanBuilder& builder);
/// TokenRing (Wang et al. 2024, arXiv:2412.20501): queries travel, each partial result returns
/// during the next step. Causal dual chunks travel towards lower ranks, beyond rank 0 only the
/// second chunk.
std::optional<Error> plan_token_ring(PlanBuilder& builder);
/// DistFlashAttention (Li et al. 2023, arXiv:2310.03294): in step t a rank fetches the keys that
/// are t ranks before its own; and it computes for the queries there, which see its keys. Under a
/// causal mask one of the two has no work, so half as many steps as a ring suffice.
std::optional<Error> plan_helper_ring(PlanBuilder& builder);
/// Mesh-Attention (arXiv:2512.20968): rank r computes mesh_q query chunks against cp_size / mesh_q
/// key chunks, its own ones among them; one chunk arrives in each step.
std::optional<Error> plan_mesh(PlanBuilder& builder);
/// All queries are gathered on every rank, keys stay, partial results return all at once.
std::optional<Error> plan_gather_q(PlanBuilder& builder);

/// One compute item per seat, with all KV present: compute, merge and finish in step 0. `kv_tables`
/// are by seat, or one for all.
std::optional<Error> plan_single_step_forward(PlanBuilder& builder, const std::vector<Seat>& seats,
                                              const std::vector<SliceJob>& jobs,
                                              const std::vector<PieceTable>& q_tables,
                                              const std::vector<PieceTable>& kv_tables,
                                              std::vector<SliceRange>& ranges);
/// The backward of plan_single_step_forward: dq and dkv of every seat become complete in step 0.
void plan_single_step_backward(PlanBuilder& builder, const std::vector<Seat>& seats,
                               const std::vector<SliceRange>& ranges);

/// The forward item of a seat against one KV buffer.
ComputeItem forward_item(const Seat& seat, BufferId kv, RunListId kv_tokens, BufferId partial,
                         const SliceRange& range);

}  // namespace cpscope
