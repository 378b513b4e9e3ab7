#include "gui/model/token_parts.h"

#include <algorithm>
#include <numeric>

namespace cpscope::gui {
namespace {

/// The owned runs that may contain ids from `begin` on.
std::span<const OwnedRun> owned_from(const PlanIndex& index, Side side, int64_t begin) {
  const auto owned = index.owned(side);
  // Runs of unit stride are disjoint, so those before the first candidate end before it, too.
  if (index.has_stripes(side)) return owned;
  const auto first = std::partition_point(owned.begin(), owned.end(),
                                          [&](const OwnedRun& o) { return o.run.end <= begin; });
  return owned.subspan(static_cast<size_t>(first - owned.begin()));
}

/// The ids of a run in [begin, end).
TokenRun within(const TokenRun& run, int64_t begin, int64_t end) {
  const int64_t skipped =
      begin <= run.begin ? 0 : (begin - run.begin + run.stride - 1) / run.stride;
  return {run.begin + skipped * run.stride, std::min(run.end, end), run.stride};
}

/// True if two runs have an id in common.
bool share_id(const TokenRun& a, const TokenRun& b) {
  const TokenRun common = within(a, std::max(a.begin, b.begin), b.end);
  const int64_t gcd = std::gcd(a.stride, b.stride);
  if (common.count() == 0 || (b.begin - a.begin) % gcd != 0) return false;
  // Of this many consecutive ids of `a`, exactly one fits the stride of `b`.
  const int64_t tries = std::min(common.count(), b.stride / gcd);
  for (int64_t i = 0; i < tries; ++i) {
    if ((common.at(i) - b.begin) % b.stride == 0) return true;
  }
  return false;
}

}  // namespace

std::vector<SequencePart> sequence_parts(const PlanIndex& index, Side side, const TokenRun& run) {
  std::vector<SequencePart> parts;
  const auto& sequences = index.plan().layout.slots.sequences;
  for (size_t n = index.first_sequence(side, run.begin); n < sequences.size(); ++n) {
    const SlotSide slot = sequences[n].side(side);
    if (slot.begin >= run.end) break;
    const TokenRun ids = within(run, slot.begin, slot.end());
    if (ids.count() > 0)
      parts.push_back({static_cast<int64_t>(n), ids.begin - slot.valid_begin(), ids,
                       within(run, slot.valid_begin(), slot.valid_end())});
  }
  return parts;
}

int64_t count_valid(const PlanIndex& index, Side side, const TokenRun& run) {
  int64_t valid = 0;
  for (const SequencePart& part : sequence_parts(index, side, run)) valid += part.valid.count();
  return valid;
}

std::vector<OwnedPart> owned_parts(const PlanIndex& index, const TokenRange& tokens) {
  std::vector<OwnedPart> parts(static_cast<size_t>(index.num_ranks()));
  for (const OwnedRun& owned : owned_from(index, tokens.side, tokens.begin)) {
    if (owned.run.begin >= tokens.end) break;
    const TokenRun inside = within(owned.run, tokens.begin, tokens.end);
    if (inside.count() == 0) continue;
    OwnedPart& part = parts[static_cast<size_t>(owned.rank)];
    part.rank = owned.rank;
    if (part.runs++ == 0)
      part.first_row = owned.row + (inside.begin - owned.run.begin) / owned.run.stride;
    part.tokens += inside.count();
  }
  std::erase_if(parts, [](const OwnedPart& part) { return part.runs == 0; });
  return parts;
}

std::vector<int32_t> owners_of(const PlanIndex& index, std::span<const TokenRun> runs, Side side) {
  std::vector<bool> owns(static_cast<size_t>(index.num_ranks()), false);
  for (const TokenRun& run : runs) {
    for (const OwnedRun& owned : owned_from(index, side, run.begin)) {
      if (owned.run.begin >= run.end) break;
      if (!owns[static_cast<size_t>(owned.rank)] && share_id(owned.run, run))
        owns[static_cast<size_t>(owned.rank)] = true;
    }
  }
  std::vector<int32_t> ranks;
  for (size_t r = 0; r < owns.size(); ++r) {
    if (owns[r]) ranks.push_back(static_cast<int32_t>(r));
  }
  return ranks;
}

}  // namespace cpscope::gui
