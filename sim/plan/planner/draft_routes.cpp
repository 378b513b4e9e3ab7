#include "sim/plan/planner/draft_routes.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

Error cannot_travel(const Plan& plan, const DraftBlock& block, std::string_view why) {
  return make_bad_input(fmt::format("the gradient of {} cannot travel with them: {}",
                                    describe_block(plan, block), why),
                        "let gradients go to the owners, or send a rank's keys whole, while a "
                        "step "
                        "runs, from each rank to one other");
}

}  // namespace

Result<std::map<BlockId, GradientRoute>> find_gradient_routes(const Plan& plan,
                                                              const ScheduleDraft& draft,
                                                              const std::vector<ReadStep>& steps) {
  std::map<BlockId, GradientRoute> routes;
  for (size_t s = 0; s < steps.size(); ++s) {
    for (const ReadSend& read : steps[s].before) {
      const DraftBlock& block = draft.blocks[read.send.block];
      if (block.side == Side::kv)
        return cannot_travel(plan, block, fmt::format("step {} waits for them", s + 1));
    }
    for (const ReadSend& read : steps[s].during) {
      const DraftBlock& block = draft.blocks[read.send.block];
      if (block.side != Side::kv) continue;
      const bool is_whole = block.parts.empty() && block.rows == kAllRows &&
                            block.heads.size() == plan.scenario.attention.kv_heads;
      if (!is_whole || read.from != read.send.block)
        return cannot_travel(plan, block, fmt::format("step {} sends a part", s + 1));
      GradientRoute& route = routes[read.send.block];
      if (route.ranks.empty()) route.ranks.push_back(block.owner);
      if (route.ranks.back() != read.send.src)
        return cannot_travel(plan, block,
                             fmt::format("rank {} sends them to a second rank in step {}",
                                         to_index(read.send.src), s + 1));
      route.ranks.push_back(read.send.dst);
      route.leaves.push_back(static_cast<int32_t>(s));
    }
  }
  // From the last rank the sum goes home after the first step in which that has the keys, or after
  // the last one in which it computes with them.
  const auto num_steps = static_cast<int32_t>(steps.size());
  for (auto& [id, route] : routes) {
    if (route.leaves.back() + 1 < num_steps) {
      route.leaves.push_back(route.leaves.back() + 1);
    } else {
      route.ranks.pop_back();  // what is sent in the last step is never used
    }
  }
  std::erase_if(routes, [](const auto& entry) { return entry.second.ranks.size() < 2; });
  for (size_t s = 0; s < steps.size(); ++s) {
    for (const ReadCompute& item : steps[s].computes) {
      const auto found = routes.find(item.kv);
      if (found == routes.end() || item.range.count == 0) continue;
      GradientRoute& route = found->second;
      const auto at = static_cast<size_t>(
          std::find(route.ranks.begin(), route.ranks.end(), item.rank) - route.ranks.begin());
      const auto step = static_cast<int32_t>(s);
      if (at + 1 == route.ranks.size()) {
        route.leaves[at] = std::max(route.leaves[at], step);
      } else if (step > route.leaves[at]) {
        return cannot_travel(plan, draft.blocks[item.kv],
                             fmt::format("rank {} computes with them in step "
                                         "{}, and has sent them on in step {}",
                                         to_index(item.rank), step + 1, route.leaves[at] + 1));
      }
    }
  }
  return routes;
}

}  // namespace cpscope
