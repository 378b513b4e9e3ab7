#include "gui/model/chunk_cut.h"

#include <algorithm>
#include <span>

namespace cpscope::gui {
namespace {

/// Collects borders, up to a limit.
class Borders {
 public:
  explicit Borders(size_t most) : most_(most) {}

  void add(int64_t id) {
    if (!is_too_many()) ids_.push_back(id);
  }
  bool is_too_many() const { return ids_.size() > 8 * most_ + 8; }
  /// Adds the multiples of `by` after `from` around [begin, end), up to `to`.
  void add_multiples(int64_t from, int64_t to, int64_t by, int64_t begin, int64_t end) {
    if (by <= 0) return;
    const int64_t first = std::max<int64_t>(0, (begin - from) / by);
    for (int64_t id = from + first * by; id <= to && id < end + by && !is_too_many(); id += by)
      add(id);
  }
  std::vector<int64_t> sorted() {
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    if (is_too_many() || ids_.size() > most_ + 1 || ids_.size() < 2) ids_.clear();
    return std::move(ids_);
  }

 private:
  size_t most_;
  std::vector<int64_t> ids_;
};

void add_sequences(const PlanIndex& index, Side side, int64_t begin, int64_t end,
                   Borders& borders) {
  const Layout& layout = index.plan().layout;
  const auto& sequences = layout.slots.sequences;
  for (size_t n = index.first_sequence(side, begin); n < sequences.size() && !borders.is_too_many();
       ++n) {
    const SlotSide slot = sequences[n].side(side);
    if (slot.begin >= end) break;
    borders.add(slot.begin);
    borders.add(slot.end());
    if (layout.kind != LayoutKind::dual_chunk) continue;
    const ChunkGrid grid = chunk_grid(index, side, slot.begin, slot.end());
    borders.add_multiples(grid.origin, slot.end(), grid.length, begin, end);
  }
}

}  // namespace

ChunkGrid chunk_grid(const PlanIndex& index, Side side, int64_t begin, int64_t end) {
  const Layout& layout = index.plan().layout;
  const Parallel& parallel = index.plan().scenario.parallel;
  const int64_t halves = 2 * int64_t{layout.cp_size};
  switch (layout.kind) {
    case LayoutKind::dual_chunk:
      return {begin, (end - begin) / halves};
    case LayoutKind::dual_chunk_packed:
      return {0, index.tokens(side) / halves};
    case LayoutKind::striped:
      return {0, parallel.stripe};
    case LayoutKind::lpt:
    case LayoutKind::lpt_local:
      // Keys with other lengths than the queries are split contiguously.
      return layout.same_kv || side == Side::q ? ChunkGrid{0, parallel.dispatch_chunk}
                                               : ChunkGrid{};
    case LayoutKind::contiguous:
    case LayoutKind::indices:
      return {};
  }
  return {};
}

bool has_strides(const PlanIndex& index, Side side) {
  const std::span<const OwnedRun> runs = index.owned(side);
  return std::any_of(runs.begin(), runs.end(), [](const OwnedRun& o) { return o.run.stride > 1; });
}

std::vector<int64_t> cut_chunks(const PlanIndex& index, Side side, int64_t begin, int64_t end,
                                size_t most) {
  begin = std::max<int64_t>(begin, 0);
  end = std::min(end, index.tokens(side));
  if (begin >= end) return {};
  Borders borders(most);
  if (has_strides(index, side)) {
    if (end - begin <= static_cast<int64_t>(most)) borders.add_multiples(begin, end, 1, begin, end);
    return borders.sorted();
  }
  const std::span<const OwnedRun> runs = index.owned(side);
  auto it = std::partition_point(runs.begin(), runs.end(),
                                 [&](const OwnedRun& o) { return o.run.end <= begin; });
  for (; it != runs.end() && it->run.begin < end && !borders.is_too_many(); ++it) {
    borders.add(it->run.begin);
    borders.add(it->run.end);
  }
  add_sequences(index, side, begin, end, borders);
  const ChunkGrid grid = chunk_grid(index, side, 0, 0);
  borders.add_multiples(grid.origin, index.tokens(side), grid.length, begin, end);
  return borders.sorted();
}

}  // namespace cpscope::gui
