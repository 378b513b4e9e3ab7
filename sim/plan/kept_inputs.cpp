#include "sim/plan/kept_inputs.h"

namespace cpscope {
namespace {

enum class FirstUse { none, read, write };

/// What a pass does with each buffer first, and whether it writes it at all.
class BufferHistory {
 public:
  explicit BufferHistory(size_t num_buffers)
      : first_(num_buffers, FirstUse::none), is_written_(num_buffers, false) {}

  void read(BufferId id) { use(id, FirstUse::read); }
  void write(BufferId id) {
    use(id, FirstUse::write);
    if (id != kNoBuffer) is_written_[static_cast<size_t>(to_index(id))] = true;
  }
  bool is_read_before_written(size_t buffer) const {
    return first_[buffer] == FirstUse::read && is_written_[buffer];
  }

 private:
  void use(BufferId id, FirstUse how) {
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
          history.read(pass.transfers[i].from);
          history.write(pass.transfers[i].to);
          break;
        case StageKind::reorder:
          history.read(pass.reorders[i].from);
          history.write(pass.reorders[i].to);
          break;
        case StageKind::compute: {
          const ComputeItem& item = pass.computes[i];
          if (item.num_slices == 0) break;
          for (const BufferId id : {item.q, item.kv, item.out, item.d_out}) history.read(id);
          for (const BufferId id : {item.dq, item.dkv}) history.write(id);
          break;
        }
        case StageKind::merge:
          history.read(pass.merges[i].partial);
          history.write(pass.merges[i].into);
          break;
        case StageKind::finish:
          history.write(pass.finishes[i].buffer);
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
