#include "sim/plan/planner/draft_buffers.h"

#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace cpscope {
namespace {

struct SharedBuffer {
  int64_t rows;
  std::vector<BufferId> users;
};

void share_in_group(PlanBuilder& builder, const std::vector<BufferId>& group,
                    IdVector<BufferId, BufferNeed>& needs) {
  std::vector<SharedBuffer> slots;
  using Busy = std::pair<int64_t, size_t>;  // last stage of the present user, slot
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
  for (const BufferId id : group) {
    const BufferNeed& need = needs[id];
    size_t slot = slots.size();
    if (!busy.empty() && busy.top().first < need.first) {
      slot = busy.top().second;
      busy.pop();
    } else {
      slots.push_back({0, {}});
    }
    busy.emplace(need.last, slot);
    slots[slot].rows = std::max(slots[slot].rows, builder.plan().rows(need.tokens));
    slots[slot].users.push_back(id);
  }
  for (size_t s = 0; s < slots.size(); ++s) {
    const BufferNeed& first = needs[slots[s].users.front()];
    const bool is_fixed =
        !first.is_hop && std::all_of(slots[s].users.begin(), slots[s].users.end(),
                                     [&](BufferId id) { return needs[id].tokens == first.tokens; });
    const bool is_ring = first.role == BufferRole::received && !is_fixed && s < 2;
    const BufferRole role = !is_ring ? first.role
                            : s == 0 ? BufferRole::ring_a
                                     : BufferRole::ring_b;
    const BufferId real =
        builder.add_buffer(first.rank, first.kind, role, is_fixed ? first.tokens : kNoTokens,
                           slots[s].rows, first.heads);
    for (const BufferId id : slots[s].users) needs[id].real = real;
  }
}

}  // namespace

void give_buffers(PlanBuilder& builder, const Pass& pass, Direction direction,
                  IdVector<BufferId, BufferNeed>& needs) {
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    const auto use = [&](BufferId id) {
      if (id == kNoBuffer) return;
      BufferNeed& need = needs[id];
      if (need.first < 0) need.first = static_cast<int64_t>(s);
      need.last = static_cast<int64_t>(s);
    };
    for_each_item(pass, direction, pass.stages[s], [&](const ItemId&, const auto& item) {
      visit_reads(item, use);
      visit_writes(item, use);
    });
  }
  using Group = std::tuple<RankId, BufferKind, BufferRole, int32_t, int32_t, RunListId, bool>;
  std::map<Group, std::vector<BufferId>> groups;
  for (const BufferId id : needs.ids()) {
    const BufferNeed& need = needs[id];
    if (need.real == kNoBuffer)
      groups[{need.rank, need.kind, need.role, need.heads.begin, need.heads.end,
              need.is_joint ? need.tokens : kNoTokens, need.is_hop}]
          .push_back(id);
  }
  for (auto& [key, group] : groups) {
    std::stable_sort(group.begin(), group.end(),
                     [&](BufferId a, BufferId b) { return needs[a].first < needs[b].first; });
    share_in_group(builder, group, needs);
  }
}

}  // namespace cpscope
