#include "sim/plan/planner/planner_parts.h"
#include "sim/plan/planner/schedule_draft.h"

#include <algorithm>
#include <utility>

namespace cpscope {
namespace {

/// The rank `steps` places after this one in the ring of all ranks.
RankId rank_after(RankId rank, int32_t steps, int32_t ranks) {
  return RankId{((to_index(rank) + steps) % ranks + ranks) % ranks};
}

/// Rows of a rank's home q buffer in the second of its two chunks of every sequence (dual_chunk) or
/// of the whole batch (dual_chunk_packed).
std::vector<TokenRun> rows_of_second_chunks(const PlanBuilder& builder, RankId rank) {
  const Layout& layout = builder.plan().layout;
  const int64_t place = 2 * int64_t{builder.num_ranks()} - 1 - to_index(rank);
  std::vector<TokenRun> chunks;  // token ids, ascending
  const auto add_chunk = [&](int64_t begin, int64_t tokens) {
    const int64_t chunk = tokens / (2 * int64_t{builder.num_ranks()});
    chunks.push_back({begin + place * chunk, begin + (place + 1) * chunk, 1});
  };
  if (layout.kind == LayoutKind::dual_chunk_packed) {
    add_chunk(0, layout.slots.tokens);
  } else {
    for (const SequenceSlot& slot : layout.slots.sequences) add_chunk(slot.q_begin, slot.q_slot);
  }
  std::vector<TokenRun> rows;
  int64_t row = 0;
  auto chunk = chunks.begin();
  for (const TokenRun& run : builder.plan().list(builder.plan().q_lists[rank])) {
    for (; chunk != chunks.end() && chunk->end <= run.begin; ++chunk) {
    }
    for (auto at = chunk; at != chunks.end() && at->begin < run.end; ++at) {
      const int64_t begin = std::max(at->begin, run.begin), end = std::min(at->end, run.end);
      append_run(rows, {row + begin - run.begin, row + end - run.begin, 1});
    }
    row += run.count();
  }
  return rows;
}

}  // namespace

std::optional<Error> plan_pass_q(PlanBuilder& builder) {
  ScheduleDraft draft;
  const HomeBlocks home = add_home_blocks(builder, draft);
  const int32_t ranks = builder.num_ranks();
  draft.returns = ReturnTime::end;
  for (int32_t i = 0; i < ranks; ++i) {
    DraftStep& step = draft.steps.emplace_back();
    for (const RankId rank : builder.ranks()) {
      const BlockId q = home.q[rank_after(rank, -i, ranks)];
      step.computes.push_back({rank, q, home.kv[rank]});
      if (i + 1 < ranks) step.during.push_back({rank, rank_after(rank, 1, ranks), q});
    }
  }
  return compile_draft(builder, std::move(draft));
}

std::optional<Error> plan_token_ring(PlanBuilder& builder) {
  ScheduleDraft draft;
  const HomeBlocks home = add_home_blocks(builder, draft);
  const int32_t ranks = builder.num_ranks();
  const bool halves = token_ring_sends_halves(builder.scenario(), builder.plan().layout);
  IdVector<RankId, BlockId> second;  // of each rank's queries
  for (const RankId rank : builder.ranks()) {
    if (!halves) break;
    second.push_back(draft.add_block(
        make_part_block(builder, Side::q, rank, rows_of_second_chunks(builder, rank))));
  }
  // Causal chunks travel towards lower ranks, whose keys they see; beyond rank 0 one chunk does.
  const int32_t direction = halves ? -1 : 1;
  const auto block_at = [&](RankId rank, RankId owner) {
    return halves && owner < rank ? second[owner] : home.q[owner];
  };
  for (int32_t i = 0; i < ranks; ++i) {
    DraftStep& step = draft.steps.emplace_back();
    for (const RankId rank : builder.ranks()) {
      const RankId owner = rank_after(rank, -direction * i, ranks);
      const BlockId q = block_at(rank, owner);
      step.computes.push_back({rank, q, home.kv[rank]});
      if (i + 1 == ranks) continue;
      const RankId next = rank_after(rank, direction, ranks);
      step.during.push_back({rank, next, block_at(next, owner)});
    }
  }
  return compile_draft(builder, std::move(draft));
}

std::optional<Error> plan_helper_ring(PlanBuilder& builder) {
  ScheduleDraft draft;
  const HomeBlocks home = add_home_blocks(builder, draft);
  const int32_t ranks = builder.num_ranks();
  draft.prunes = true;
  draft.steps.resize(static_cast<size_t>(ranks / 2) + 1);
  for (const RankId rank : builder.ranks())
    draft.steps.front().computes.push_back({rank, home.q[rank], home.kv[rank]});
  for (int32_t i = 1; i <= ranks / 2; ++i) {
    DraftStep& step = draft.steps[static_cast<size_t>(i)];
    DraftStep& before = draft.steps[static_cast<size_t>(i) - 1];
    for (const RankId rank : builder.ranks()) {
      const RankId source = rank_after(rank, -i, ranks);
      before.during.push_back({source, rank, home.kv[source]});
      step.computes.push_back({rank, home.q[rank], home.kv[source]});
      // Two ranks that are half a ring apart are in each other's distance: each fetches.
      if (2 * i == ranks) continue;
      before.during.push_back({source, rank, home.q[source]});
      step.computes.push_back({rank, home.q[source], home.kv[rank]});
    }
  }
  return compile_draft(builder, std::move(draft));
}

std::optional<Error> plan_mesh(PlanBuilder& builder) {
  ScheduleDraft draft;
  const HomeBlocks home = add_home_blocks(builder, draft);
  const int32_t num_q = builder.scenario().parallel.mesh_q, num_kv = builder.num_ranks() / num_q;
  draft.steps.resize(static_cast<size_t>(num_q + num_kv - 1));
  for (const RankId rank : builder.ranks()) {
    const int32_t r = to_index(rank), row = r / num_q, column = r % num_q;
    // The rank's own chunks come first, then the others in turn.
    const auto query_owner = [&](int32_t i) { return RankId{row * num_q + (column + i) % num_q}; };
    const auto key_owner = [&](int32_t i) { return RankId{column + (row + i) % num_kv * num_q}; };
    draft.steps.front().computes.push_back({rank, home.q[rank], home.kv[rank]});
    int32_t queries = 1, keys = 1;
    for (size_t s = 1; s < draft.steps.size(); ++s) {
      // The chunk that meets more of those at hand comes next; keys first, of which there may be
      // fewer heads.
      const bool takes_keys = keys < num_kv && (queries >= keys || queries == num_q);
      const RankId source = takes_keys ? key_owner(keys) : query_owner(queries);
      const BlockId block = takes_keys ? home.kv[source] : home.q[source];
      draft.steps[s - 1].during.push_back({source, rank, block});
      for (int32_t i = 0; i < (takes_keys ? queries : keys); ++i) {
        draft.steps[s].computes.push_back(takes_keys
                                              ? DraftCompute{rank, home.q[query_owner(i)], block}
                                              : DraftCompute{rank, block, home.kv[key_owner(i)]});
      }
      ++(takes_keys ? keys : queries);
    }
  }
  return compile_draft(builder, std::move(draft));
}

std::optional<Error> plan_gather_q(PlanBuilder& builder) {
  if (owns_heads(builder.scenario().parallel)) return plan_gathered_forward(builder);
  ScheduleDraft draft;
  const HomeBlocks home = add_home_blocks(builder, draft);
  draft.returns = ReturnTime::end;
  DraftStep& step = draft.steps.emplace_back();
  for (const RankId rank : builder.ranks()) {
    for (const RankId owner : builder.ranks()) {
      if (owner != rank) step.before.push_back({owner, rank, home.q[owner]});
      step.computes.push_back({rank, home.q[owner], home.kv[rank]});
    }
  }
  if (!adds_scaled_partials(builder.scenario().parallel))
    return compile_draft(builder, std::move(draft));
  if (auto error = plan_gathered_forward(builder)) return error;
  return compile_backward(builder, std::move(draft));
}

}  // namespace cpscope
