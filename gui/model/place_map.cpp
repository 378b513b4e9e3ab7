#include "gui/model/place_map.h"

#include "gui/model/chunk_cut.h"

#include <algorithm>
#include <limits>

namespace cpscope::gui {
namespace {

void add_slots(const BatchSlots& slots, PlaceMap& map) {
  int64_t valid = 0;
  for (const SequenceSlot& slot : slots.sequences) {
    const SlotSide ids = slot.side(map.side);
    map.slot_begin.push_back(ids.begin);
    map.front_of_slot.push_back(ids.front);
    map.valid_of_slot.push_back(ids.valid);
    map.valid_before.push_back(valid);
    valid += ids.valid;
    if (&slot == &slots.sequences.back()) map.slot_begin.push_back(ids.end());
  }
  if (map.slot_begin.empty()) map.slot_begin.push_back(0);
  map.valid_before.push_back(valid);
}

/// First id after `token` at which a chunk or a sequence ends.
int64_t next_cut(const PlanIndex& index, const PlaceMap& map, int64_t token) {
  const size_t sequence = map.sequence_at(token);
  int64_t cut = std::numeric_limits<int64_t>::max();
  if (sequence < map.num_sequences()) cut = map.slot_begin[sequence + 1];
  // Neighbouring chunks of one rank are one run in the plan, so they are cut again here by the
  // layout's rule.
  const bool is_in_slot = sequence < map.num_sequences();
  const ChunkGrid grid = chunk_grid(index, map.side, is_in_slot ? map.slot_begin[sequence] : token,
                                    is_in_slot ? map.slot_begin[sequence + 1] : token);
  if (grid.length > 0)
    cut = std::min(cut, token + grid.length - (token - grid.origin) % grid.length);
  return cut;
}

/// Adds [begin, end), cut where a chunk or a sequence ends.
void add_cut(const PlanIndex& index, int64_t begin, int64_t end, const PackedPart& whole,
             PlaceMap& map) {
  for (int64_t token = begin; token < end;) {
    PackedPart part = whole;
    part.begin = token;
    part.end = std::min(end, next_cut(index, map, token));
    part.row = whole.row + token - begin;
    map.packed.push_back(part);
    token = part.end;
  }
}

void add_packed(const PlanIndex& index, PlaceMap& map) {
  const std::span<const OwnedRun> owned = index.owned(map.side);
  if (map.heads.size() > 0) return add_cut(index, 0, map.tokens, {0, 0, -1, 0, 0, 0}, map);
  for (size_t at = 0; at < owned.size();) {
    // Only strided runs can overlap; together they are a comb.
    int64_t end = owned[at].run.last() + 1;
    size_t next = at + 1;
    for (; next < owned.size() && owned[next].run.begin < end; ++next)
      end = std::max(end, owned[next].run.last() + 1);
    const OwnedRun& first = owned[at];
    const bool is_comb = next - at > 1 || (first.run.stride > 1 && first.run.count() > 1);
    if (is_comb) {
      map.packed.push_back({first.run.begin, end, -1, -1, static_cast<int64_t>(at),
                            static_cast<int64_t>(next - at)});
    } else {
      add_cut(index, first.run.begin, end, {0, 0, first.rank, first.row, 0, 0}, map);
    }
    at = next;
  }
}

void add_local(const PlanIndex& index, PlaceMap& map) {
  const auto& by_rank = index.plan().layout.runs(map.side);
  for (const RankId rank : by_rank.ids()) {
    map.first_local.push_back(map.local.size());
    int64_t row = 0;
    for (const TokenRun& run : by_rank[rank]) {
      const int32_t r = to_index(rank);
      if (run.stride > 1 && run.count() > 1) {
        map.local.push_back({r, row, run.count(), run.begin, run.stride});
        row += run.count();
        continue;
      }
      for (int64_t token = run.begin; run.count() > 0 && token <= run.last();) {
        const int64_t cut = std::min(run.last() + 1, next_cut(index, map, token));
        map.local.push_back({r, row, cut - token, token, 1});
        row += cut - token;
        token = cut;
      }
    }
    map.rows_of_rank.push_back(row);
    map.most_rows = std::max(map.most_rows, row);
  }
  map.first_local.push_back(map.local.size());
}

}  // namespace

size_t PlaceMap::sequence_at(int64_t token) const {
  const auto it = std::upper_bound(slot_begin.begin(), slot_begin.end(), token);
  const auto found = static_cast<size_t>(it - slot_begin.begin());
  return found == 0 ? num_sequences() : found - 1;
}

int64_t PlaceMap::count_valid_below(int64_t token) const {
  const size_t sequence = sequence_at(token);
  if (sequence >= num_sequences()) return valid_before.back();
  return valid_before[sequence] +
         std::clamp<int64_t>(token - valid_begin(sequence), 0, valid_of_slot[sequence]);
}

std::pair<int64_t, int64_t> PlaceMap::valid_in(int64_t begin, int64_t end) const {
  const size_t sequence = sequence_at(begin);
  if (sequence >= num_sequences()) return {end, end};
  const int64_t first = std::max(begin, valid_begin(sequence)),
                last = std::min(end, valid_end(sequence));
  return first < last ? std::pair{first, last} : std::pair{end, end};
}

int64_t PlaceMap::count_padding(int64_t begin, int64_t end) const {
  return (end - begin) - (count_valid_below(end) - count_valid_below(begin));
}

std::vector<std::pair<int64_t, int64_t>> padding_rows(const PlaceMap& map, const LocalPart& part) {
  std::vector<std::pair<int64_t, int64_t>> rows;
  const int64_t end = part.token + (part.rows - 1) * part.stride + 1;
  // The first row at or after a token.
  const auto row_at = [&](int64_t token) {
    if (token <= part.token) return int64_t{0};
    return std::min(part.rows, (token - part.token + part.stride - 1) / part.stride);
  };
  const auto add = [&](int64_t begin, int64_t stop) {
    const int64_t first = row_at(begin), last = row_at(stop);
    if (first >= last) return;
    if (!rows.empty() && rows.back().second == first)
      rows.back().second = last;
    else
      rows.emplace_back(first, last);
  };
  size_t sequence = map.sequence_at(part.token);
  for (; sequence < map.num_sequences() && map.slot_begin[sequence] < end; ++sequence) {
    add(map.slot_begin[sequence], map.valid_begin(sequence));
    add(map.valid_end(sequence), map.slot_begin[sequence + 1]);
  }
  add(map.slot_begin.back(), map.tokens);  // the tail
  return rows;
}

PlaceMap make_place_map(const PlanIndex& index, Side side) {
  PlaceMap map;
  map.side = side;
  map.num_ranks = index.num_ranks();
  map.tokens = index.tokens(side);
  const Layout& layout = index.plan().layout;
  if (index.are_heads_owned(side))
    map.heads = layout.q_heads;
  else if (layout.kind == LayoutKind::striped)
    map.stripe = index.plan().scenario.parallel.stripe;
  map.rounds = rows_of_rounds(layout, side);
  add_slots(layout.slots, map);
  add_packed(index, map);
  add_local(index, map);
  map.valid_of_rank = map.rows_of_rank;
  for (const LocalPart& part : map.local)
    for (const auto& [first, last] : padding_rows(map, part))
      map.valid_of_rank[static_cast<size_t>(part.rank)] -= last - first;
  return map;
}

std::vector<PackedPart> expand_comb(const PlanIndex& index, Side side, const PackedPart& comb,
                                    int64_t begin, int64_t end) {
  begin = std::max(begin, comb.begin);
  end = std::min(end, comb.end);
  std::vector<PackedPart> teeth;
  if (begin >= end) return teeth;
  const auto owned = index.owned(side).subspan(static_cast<size_t>(comb.first_run),
                                               static_cast<size_t>(comb.num_runs));
  for (const OwnedRun& o : owned) {
    const int64_t skipped =
        begin <= o.run.begin ? 0 : (begin - o.run.begin + o.run.stride - 1) / o.run.stride;
    for (int64_t i = skipped; i < o.run.count() && o.run.at(i) < end; ++i)
      teeth.push_back({o.run.at(i), o.run.at(i) + 1, o.rank, o.row + i, 0, 0});
  }
  std::sort(teeth.begin(), teeth.end(),
            [](const PackedPart& a, const PackedPart& b) { return a.begin < b.begin; });
  return teeth;
}

}  // namespace cpscope::gui
