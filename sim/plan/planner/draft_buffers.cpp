#include "sim/plan/planner/draft_buffers.h"

#include "sim/base/parallel.h"
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

using Needs = IdVector<BufferId, BufferNeed>;

/// A buffer that needs of one group share in turn.
struct SharedBuffer {
  BufferId first{};  // need
  int64_t rows = 0;
  BufferRole role{};
  bool is_fixed = true;  // all its needs are of the same tokens
};

/// Adds the buffers of needs of one group. A need's `real` becomes an index of `buffers`.
void share_in_group(const Plan& plan, std::vector<BufferId>& group, Needs& needs,
                    std::vector<SharedBuffer>& buffers) {
  const auto begins_earlier = [&](BufferId a, BufferId b) {
    return needs[a].first < needs[b].first;
  };
  if (!std::is_sorted(group.begin(), group.end(), begins_earlier))
    std::stable_sort(group.begin(), group.end(), begins_earlier);
  const size_t first_slot = buffers.size();
  using Busy = std::pair<int32_t, size_t>;  // last stage of the present user, buffer
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
  for (const BufferId id : group) {
    BufferNeed& need = needs[id];
    size_t slot = buffers.size();
    if (!busy.empty() && busy.top().first < need.first) {
      slot = busy.top().second;
      busy.pop();
    } else {
      buffers.push_back({id});
    }
    busy.emplace(need.last, slot);
    SharedBuffer& buffer = buffers[slot];
    buffer.rows = std::max(buffer.rows, plan.rows(need.tokens));
    if (need.is_hop || need.tokens != needs[buffer.first].tokens) buffer.is_fixed = false;
    need.real = BufferId{static_cast<int32_t>(slot)};
  }
  for (size_t slot = first_slot; slot < buffers.size(); ++slot) {
    SharedBuffer& buffer = buffers[slot];
    buffer.role = needs[buffer.first].role;
    const bool is_ring = buffer.role == BufferRole::received && !buffer.is_fixed;
    if (is_ring && slot == first_slot) buffer.role = BufferRole::ring_a;
    if (is_ring && slot == first_slot + 1) buffer.role = BufferRole::ring_b;
  }
}

/// The buffers of one rank's needs. A need's `real` becomes an index of them.
std::vector<SharedBuffer> share_on_rank(const Plan& plan, const std::vector<BufferId>& ids,
                                        Needs& needs) {
  using Group = std::tuple<BufferKind, BufferRole, int32_t, int32_t, RunListId, bool>;
  std::map<Group, std::vector<BufferId>> groups;
  for (const BufferId id : ids) {
    const BufferNeed& need = needs[id];
    groups[{need.kind, need.role, need.heads.begin, need.heads.end,
            need.is_joint ? need.tokens : kNoTokens, need.is_hop}]
        .push_back(id);
  }
  std::vector<SharedBuffer> buffers;
  for (auto& [key, group] : groups) share_in_group(plan, group, needs, buffers);
  return buffers;
}

}  // namespace

void give_buffers(PlanBuilder& builder, const Pass& pass, Direction direction,
                  IdVector<BufferId, BufferNeed>& needs) {
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    const auto use = [&](BufferId id) {
      if (id == kNoBuffer) return;
      BufferNeed& need = needs[id];
      if (need.first < 0) need.first = static_cast<int32_t>(s);
      need.last = static_cast<int32_t>(s);
    };
    for_each_item(pass, direction, pass.stages[s], [&](const ItemId&, const auto& item) {
      visit_reads(item, use);
      visit_writes(item, use);
    });
  }
  IdVector<RankId, std::vector<BufferId>> by_rank(builder.plan().home.size());
  for (const BufferId id : needs.ids()) {
    if (needs[id].real == kNoBuffer) by_rank[needs[id].rank].push_back(id);
  }
  IdVector<RankId, std::vector<SharedBuffer>> shared(by_rank.size());
  for_each_id(by_rank.ids(), [&](RankId rank) {
    shared[rank] = share_on_rank(builder.plan(), by_rank[rank], needs);
  });
  size_t count = builder.plan().buffers.size();
  for (const auto& buffers : shared) count += buffers.size();
  builder.plan().buffers.reserve(count);
  for (const RankId rank : shared.ids()) {
    const int32_t base = static_cast<int32_t>(builder.plan().buffers.size());
    for (const SharedBuffer& buffer : shared[rank]) {
      const BufferNeed& first = needs[buffer.first];
      builder.add_buffer(rank, first.kind, buffer.role, buffer.is_fixed ? first.tokens : kNoTokens,
                         buffer.rows, first.heads);
    }
    for (const BufferId id : by_rank[rank])
      needs[id].real = BufferId{base + to_index(needs[id].real)};
  }
}

}  // namespace cpscope
