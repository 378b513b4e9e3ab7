#pragma once

#include "sim/plan/planner/plan_builder.h"

#include <array>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace cpscope {

class ReplicaWork;
struct ReplicatedKeys;

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
  // Merges into an out, or a dq, before the ring's own.
  std::map<BufferId, int32_t> merges;
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

/// Buffers of one rank for those heads of a stage that read the same KV heads. Query-side tensors
/// are exchanged with the seat's query heads, kv and dkv with its KV heads. Seats of several stages
/// that read the same KV head have the same KV buffers.
struct ExchangeSeat {
  Seat seat;  // sequence-ordered buffers: all tokens of the group, the stage's heads of the rank
  size_t group = 0;
  bool is_first = true, is_last = true;  // of the seats with these KV buffers
  BufferId q_ranked = kNoBuffer, kv_ranked = kNoBuffer,
           out_ranked = kNoBuffer;  // the same rows in rank order
  BufferId d_out_ranked = kNoBuffer, dq_ranked = kNoBuffer, dkv_ranked = kNoBuffer;
};

/// Row orders of one side of a group; shared by its ranks.
struct GroupSide {
  RunListId to_sequence{}, to_ranks{};
  RunListId ranked{}, sequence{};  // the tokens in either order
  std::vector<RunListId> rows;     // [index] rows of this rank's tokens in the rank-ordered buffer
  std::vector<RunListId> home_rows;  // [index] the same rows in its home buffers
};

struct GroupOrder {
  std::vector<RankId> ranks;
  GroupSide q, kv;

  const GroupSide& side(Side side) const { return side == Side::q ? q : kv; }
};

/// One exchange of heads against tokens inside groups of ranks (Ulysses, Jacobs et al. 2023,
/// arXiv:2309.14509): member i of a group of n gets query heads [floor(i*H/n), floor((i+1)*H/n))
/// and the KV heads that they read. In stages (UPipe, arXiv:2602.21196) a rank exchanges its query
/// heads a few at a time, in order, so that it keeps a KV head until all of them have read it.
struct HeadExchange {
  std::vector<GroupOrder> groups;
  std::vector<std::vector<ExchangeSeat>> stages;  // [stage] seats by group, rank and heads
  std::vector<bool> is_shared;                    // [KV head] several ranks of a group read it

  int32_t num_stages() const { return static_cast<int32_t>(stages.size()); }
  std::span<const ExchangeSeat> seats(int32_t stage, size_t group) const;
};

/// `heads_per_stage`: query heads of a rank in a stage, 0 for all.
HeadExchange make_head_exchange(PlanBuilder& builder,
                                const std::vector<std::vector<RankId>>& groups,
                                const ReplicatedKeys& replicated, int32_t heads_per_stage);
/// q of a stage, and KV that no earlier stage has used: home -> rank order -> sequence order, in
/// the forward step that has the stage's number.
void plan_exchange_in(PlanBuilder& builder, const HeadExchange& exchange, int32_t stage);
/// out: sequence order -> rank order -> home.
void plan_exchange_out(PlanBuilder& builder, const HeadExchange& exchange, int32_t stage,
                       int32_t step);
/// d_out: home -> rank order -> sequence order, in the backward step that has the stage's number.
void plan_gradient_exchange_in(PlanBuilder& builder, const HeadExchange& exchange, int32_t stage);
/// dq of a stage, and dkv to which no later stage adds: sequence order -> rank order -> home.
/// Shares of a KV head that several ranks read are added at home.
/// After the last stage also the shares of `replica`.
void plan_gradient_exchange_out(PlanBuilder& builder, const HeadExchange& exchange,
                                const ReplicaWork& replica, int32_t stage, int32_t step);

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
/// All queries are gathered on every rank, keys stay, partial results return all at once; or, with
/// combine = reduce_scatter, or where ranks own heads, plan_gathered_forward.
std::optional<Error> plan_gather_q(PlanBuilder& builder);
/// A forward over gathered queries as decoders do it: one compute item a rank, of all queries with
/// the rank's keys. Results come together as `combine` says: exchanged and merged by their owners;
/// or every rank gets the lse of all ranks' results, scales its own by the lse of all together, and
/// the owners add what they get; or by halves, in a tree.
std::optional<Error> plan_gathered_forward(PlanBuilder& builder);

/// One compute item per seat, with all of its KV present: compute, merge and finish in one step.
/// `ranges` are by seat; `merges` counts what has been merged into each accumulator.
void plan_single_step_forward(PlanBuilder& builder, const std::vector<Seat>& seats,
                              const std::vector<SliceRange>& ranges, int32_t step,
                              std::map<BufferId, int32_t>& merges);
/// The backward of plan_single_step_forward: dq of every seat becomes complete; its dkv too, unless
/// seats of other steps add to the same one.
void plan_single_step_backward(PlanBuilder& builder, const std::vector<Seat>& seats,
                               const std::vector<SliceRange>& ranges, int32_t step,
                               std::map<BufferId, int32_t>& merges);

/// The forward item of a seat against one KV buffer.
ComputeItem forward_item(const Seat& seat, BufferId kv, RunListId kv_tokens, BufferId partial,
                         const SliceRange& range);

}  // namespace cpscope
