#include "gui/model/project.h"

#include <algorithm>

namespace cpscope::gui {

Projection project(const Target& target, const PlanIndex& plan) {
  Projection p;
  if (const auto* rank = std::get_if<RankTarget>(&target)) {
    p.ranks = {rank->rank};
    for (const Side side : {Side::q, Side::kv}) {
      for (const OwnedRun& owned : plan.owned(side)) {
        if (owned.rank == rank->rank)
          (side == Side::q ? p.q : p.kv).push_back({side, owned.run.begin, owned.run.end});
      }
    }
  } else if (const auto* tokens = std::get_if<TokenRange>(&target)) {
    (tokens->side == Side::q ? p.q : p.kv).push_back(*tokens);
  } else if (const auto* step = std::get_if<StepTarget>(&target)) {
    p.steps = {step->step};
  } else if (const auto* link = std::get_if<LinkTarget>(&target)) {
    p.ranks = {std::min(link->src, link->dst), std::max(link->src, link->dst)};
    p.links = {{link->src, link->dst}};
  }
  return p;
}

}  // namespace cpscope::gui
