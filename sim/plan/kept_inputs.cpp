#include "sim/plan/kept_inputs.h"

#include "sim/base/id_vector.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/visit_items.h"

namespace cpscope {

std::vector<BufferId> find_kept_inputs(const Plan& plan) {
  IdVector<BufferId, bool> is_read_first(plan.buffers.size()), is_written(plan.buffers.size());
  for_each_item(plan, Direction::backward, [&](const ItemId& /*id*/, const auto& item) {
    // An item reads before it writes.
    const BufferUse use = uses_of(plan, item);
    for (const BufferPart& part : use.reads) {
      if (part.buffer != kNoBuffer && !is_written[part.buffer]) is_read_first[part.buffer] = true;
    }
    for (const BufferPart& part : use.writes) is_written[part.buffer] = true;
  });
  std::vector<BufferId> kept;
  for (const BufferId id : plan.buffers.ids()) {
    if (is_read_first[id] && is_written[id]) kept.push_back(id);
  }
  return kept;
}

}  // namespace cpscope
