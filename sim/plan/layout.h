#pragma once

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/base/result.h"
#include "sim/plan/batch_slots.h"
#include "sim/plan/cp_rounds.h"
#include "sim/plan/token_run.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cpscope {

/// The owner of every token: each rank's local buffer, in local order, as runs of packed padded
/// token ids.
struct Layout {
  LayoutKind kind = LayoutKind::dual_chunk;
  int32_t cp_size = 1;
  bool same_kv = true;  // KV is owned exactly as the queries are
  BatchSlots slots;
  IdVector<RankId, std::vector<TokenRun>> q_runs;
  IdVector<RankId, std::vector<TokenRun>> kv_runs;
  /// [rank] The heads that a rank owns of all queries; none where ranks own rows with all heads.
  IdVector<RankId, HeadRange> q_heads;
  std::vector<CpRound> rounds;  // cp_sizes: who shares which sequences; a rank's rows are by round

  const IdVector<RankId, std::vector<TokenRun>>& runs(Side side) const {
    return side == Side::q ? q_runs : kv_runs;
  }
};

/// Rounds the slots as the layout needs, adds its tail and assigns the tokens to the ranks
/// (contract, section 2 "Layouts"). Refuses: sizes that are not divisible while pad_between_seqs is
/// off (the error names the multiple); an imported order that is not a partition of the packed
/// padded ids; fewer lpt chunks than ranks, or more than lpt_local handles; more than kMaxTokens
/// after rounding.
Result<Layout> make_layout(const Scenario& scenario);

/// Gives every rank all queries, of which it owns some heads, shared as a2a shares them.
void assign_heads(const Scenario& scenario, Layout& layout);

/// runs(), but a partition also where ranks own heads of all queries: rank 0 then has these rows,
/// and the others none. For those that ask where rows are, as a gathered tensor has them.
IdVector<RankId, std::vector<TokenRun>> partition_of(const Layout& layout, Side side);

/// Rows of a rank's local buffer that no sequence owns: the padding of slots, and the layout's
/// tail.
int64_t count_padding(const Layout& layout, Side side, RankId rank);

/// The groups of a round: "round 0: ranks 0 to 3: sequence 2; rank 4: sequences 0, 5".
std::string describe_round(const Layout& layout, size_t round);

/// [round][rank] The rows of each rank's local buffer that a round of cp_sizes computes.
std::vector<IdVector<RankId, TokenRun>> rows_of_rounds(const Layout& layout, Side side);

/// Gather indices between the rank-ordered buffer (the local buffers of `ranks` one after another)
/// and ascending token ids: sequence_order[i] = rank_order[rank_to_sequence[i]], and back.
struct ReorderIndex {
  std::vector<TokenRun> sequence_tokens;  // ascending token ids of the ranks
  std::vector<TokenRun>
      rank_to_sequence;  // rows of the rank-ordered buffer, one for each sequence-ordered row
  std::vector<TokenRun>
      sequence_to_rank;  // rows of the sequence-ordered buffer, one for each rank-ordered row
};

/// `runs_by_rank` are the local buffers of the group's ranks in group order; their ids are
/// disjoint.
ReorderIndex reorder_to_sequence(std::span<const std::vector<TokenRun>> runs_by_rank);

/// More runs than this are refused: a plan with them would not fit in memory.
inline constexpr int64_t kMaxRuns = int64_t{1} << 26;

/// token_ring: true if the first of a rank's two chunks sees no key of a rank with a higher number,
/// so that only the second one travels beyond rank 0.
bool token_ring_sends_halves(const Scenario& scenario, const Layout& layout);

}  // namespace cpscope
