#include "sim/plan/planner/schedule_draft.h"

#include "sim/plan/planner/draft_reader.h"
#include "sim/plan/planner/draft_routes.h"
#include "sim/plan/planner/pass_compiler.h"

#include <algorithm>
#include <map>
#include <utility>

namespace cpscope {

HomeBlocks add_home_blocks(const PlanBuilder& builder, ScheduleDraft& draft) {
  HomeBlocks blocks;
  for (const RankId rank : builder.ranks()) {
    blocks.q.push_back(draft.add_block({Side::q, rank, builder.plan().q_lists[rank]}));
    blocks.kv.push_back(draft.add_block({Side::kv, rank, builder.plan().kv_lists[rank]}));
  }
  return blocks;
}

DraftBlock make_part_block(PlanBuilder& builder, Side side, RankId owner,
                           const std::vector<TokenRun>& rows, HeadRange heads) {
  const auto all = builder.plan().list(builder.plan().lists(side)[owner]);
  std::vector<TokenRun> tokens;
  for (const TokenRun& run : rows) {
    for (int64_t row = run.begin; row < run.end; row = run.stride == 1 ? run.end : row + run.stride)
      for (const TokenRun& part : slice_rows(all, row, run.stride == 1 ? run.end : row + 1))
        append_run(tokens, part);
  }
  return {side, owner, builder.add_list(tokens), builder.add_list(rows), heads};
}

namespace {

/// The places of the computes that have something to do, in the order of a pass's items.
std::vector<DraftPlace> places_of_computes(const std::vector<ReadStep>& steps,
                                           Direction direction) {
  std::vector<DraftPlace> places;
  for (size_t s = 0; s < steps.size(); ++s) {
    for (size_t i = 0; i < steps[s].computes.size(); ++i) {
      if (steps[s].computes[i].range.count > 0)
        places.push_back({direction, s, DraftPart::compute, i});
    }
  }
  return places;
}

bool sends_queries(const ScheduleDraft& draft, const std::vector<ReadStep>& steps) {
  const auto is_of_queries = [&](const ReadSend& read) {
    return draft.blocks[read.send.block].side == Side::q;
  };
  return std::any_of(steps.begin(), steps.end(), [&](const ReadStep& step) {
    return std::any_of(step.before.begin(), step.before.end(), is_of_queries) ||
           std::any_of(step.during.begin(), step.during.end(), is_of_queries);
  });
}

/// `pass`: the forward, which has been read.
std::optional<Error> compile_backward_steps(PlanBuilder& builder, ScheduleDraft& draft,
                                            ReadPass pass, DraftTrace& trace) {
  const bool has_own = draft.backward_steps.has_value();
  if (has_own) {
    pass = {};
    if (auto error = DraftReader(builder, draft).read(*draft.backward_steps, pass, trace.wrong)) {
      if (trace.wrong) trace.wrong->direction = Direction::backward;
      return error;
    }
  }
  // Only queries that move need their statistics apart from out.
  if (sends_queries(draft, pass.steps)) builder.add_home_stats();
  std::map<BlockId, GradientRoute> routes;
  if (draft.gradients == GradientWay::with_keys) {
    Result<std::map<BlockId, GradientRoute>> found =
        find_gradient_routes(builder.plan(), draft, pass.steps);
    if (!found) return found.error();
    routes = std::move(found).value();
  }
  compile_pass(builder, draft, pass, Direction::backward, routes);
  trace.backward_computes =
      places_of_computes(pass.steps, has_own ? Direction::backward : Direction::forward);
  return std::nullopt;
}

}  // namespace

DraftBlock join_blocks(PlanBuilder& builder, const ScheduleDraft& draft,
                       const std::vector<BlockId>& parts) {
  std::vector<TokenRun> tokens;
  for (const BlockId part : parts) {
    for (const TokenRun& run : builder.plan().list(draft.blocks[part].tokens))
      append_run(tokens, run);
  }
  const DraftBlock& first = draft.blocks[parts.front()];
  return {first.side, kSeveralRanks, builder.add_list(tokens), kAllRows, first.heads, parts};
}

std::optional<Error> compile_draft(PlanBuilder& builder, ScheduleDraft draft, DraftTrace* trace) {
  DraftTrace unread;
  DraftTrace& places = trace != nullptr ? *trace : unread;
  ReadPass pass;
  if (auto error = DraftReader(builder, draft).read(draft.steps, pass, places.wrong)) return error;
  compile_pass(builder, draft, pass, Direction::forward);
  places.forward_computes = places_of_computes(pass.steps, Direction::forward);
  if (!builder.has_backward()) return std::nullopt;
  return compile_backward_steps(builder, draft, std::move(pass), places);
}

std::optional<Error> compile_backward(PlanBuilder& builder, ScheduleDraft draft) {
  if (!builder.has_backward()) return std::nullopt;
  DraftTrace unread;
  ReadPass pass;
  if (auto error = DraftReader(builder, draft).read(draft.steps, pass, unread.wrong)) return error;
  return compile_backward_steps(builder, draft, std::move(pass), unread);
}

}  // namespace cpscope
