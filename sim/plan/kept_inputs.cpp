#include "sim/plan/kept_inputs.h"

#include "sim/plan/item_uses.h"

namespace cpscope {
namespace {

enum class FirstUse { none, read, write };

/// The first use of each buffer in a pass, and whether the pass writes it at all.
class BufferHistory {
 public:
  explicit BufferHistory(size_t num_buffers)
      : first_(num_buffers, FirstUse::none), is_written_(num_buffers, false) {}

  /// An item reads before it writes.
  void add(const BufferUse& item) {
    for (const BufferPart& part : item.reads) note(part.buffer, FirstUse::read);
    for (const BufferPart& part : item.writes) {
      note(part.buffer, FirstUse::write);
      if (part.buffer != kNoBuffer) is_written_[static_cast<size_t>(to_index(part.buffer))] = true;
    }
  }
  bool is_read_before_written(size_t buffer) const {
    return first_[buffer] == FirstUse::read && is_written_[buffer];
  }

 private:
  void note(BufferId id, FirstUse how) {
    if (id == kNoBuffer) return;
    FirstUse& first = first_[static_cast<size_t>(to_index(id))];
    if (first == FirstUse::none) first = how;
  }

  std::vector<FirstUse> first_;
  std::vector<bool> is_written_;
};

}  // namespace

std::vector<BufferId> find_kept_inputs(const Plan& plan) {
  const Pass& pass = plan.backward;
  BufferHistory history(plan.buffers.size());
  for (const Stage& stage : pass.stages) {
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      switch (stage.kind) {
        case StageKind::transfer:
          history.add(uses_of(pass.transfers[i]));
          break;
        case StageKind::reorder:
          history.add(uses_of(pass.reorders[i]));
          break;
        case StageKind::compute:
          history.add(uses_of(plan, pass.computes[i], true));
          break;
        case StageKind::merge:
          history.add(uses_of(pass.merges[i]));
          break;
        case StageKind::finish:
          history.add(uses_of(pass.finishes[i]));
          break;
      }
    }
  }
  std::vector<BufferId> kept;
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (history.is_read_before_written(b)) kept.push_back(BufferId{static_cast<int32_t>(b)});
  }
  return kept;
}

}  // namespace cpscope
