#include "kernels/tiles/tile_turns.h"

#include <algorithm>
#include <numeric>

namespace cpscope::kernels {
namespace {

/// By blocks: visits the streamed tiles of a stationary tile, the last one first, with their runs.
template <class Visit>
void walk_blocks(const OwnedTile& tile, const TileList& list, Visit visit) {
  const int32_t walked = list.shape.walked_rows;
  for (int32_t r = tile.num_runs; r-- > 0;) {
    const TileRun& run = list.runs[tile.first_run + r];
    for (int32_t end = run.end; end > run.begin;) {
      const int32_t begin = std::max(run.begin, (end - 1) / walked * walked);
      visit(RowStretch{begin, end}, tile.first_run + r);
      end = begin;
    }
  }
}

/// For every row of the stationary side, whether it has a partner.
std::vector<bool> find_met_rows(const TileList& list, TileOwner owner) {
  if (owner == TileOwner::queries) {
    std::vector<bool> is_met(static_cast<size_t>(list.q_rows), false);
    for (size_t i = 0; i < list.ranges.size(); ++i) {
      if (list.ranges[i].lo < list.ranges[i].hi) is_met[i % is_met.size()] = true;
    }
    return is_met;
  }
  std::vector<int32_t> begun(static_cast<size_t>(list.kv_rows) + 1, 0);  // ranges begun minus
                                                                         // ranges ended
  for (const KeyRange& range : list.ranges) {
    if (range.lo >= range.hi) continue;
    ++begun[range.lo];
    --begun[range.hi];
  }
  std::partial_sum(begun.begin(), begun.end(), begun.begin());
  std::vector<bool> is_met;
  for (int32_t k = 0; k < list.kv_rows; ++k) is_met.push_back(begun[k] > 0);
  return is_met;
}

/// Appends the turn of a tile's next streamed tile.
void append_turn(const TurnRun& turn, const OwnedTile& tile, TileList& list) {
  TurnRun* last =
      list.turns.size() > static_cast<size_t>(tile.first_turn) ? &list.turns.back() : nullptr;
  if (last != nullptr && turn == TurnRun{1, last->counter - last->num_tiles, last->turn}) {
    ++last->num_tiles;
  } else {
    list.turns.push_back(turn);
  }
}

}  // namespace

BlockParts::BlockParts(TileOwner owner, TileList& list)
    : num_rows_(owner == TileOwner::queries ? list.kv_rows : list.q_rows),
      block_rows_(list.shape.walked_rows),
      parts_(static_cast<size_t>(list.shape.num_blocks(num_rows_))) {
  for (const OwnedTile& tile : list.tiles)
    walk_blocks(tile, list, [&](RowStretch rows, int32_t /*run*/) { note(rows); });
  list.num_counters = number();
}

/// Records that a tile streams these rows of one block.
void BlockParts::note(RowStretch rows) {
  std::vector<RowStretch>& parts = parts_[rows.begin / block_rows_];
  if (parts.size() == 1 && parts[0].begin <= rows.begin && rows.end <= parts[0].end) return;
  // Parts stay sorted and disjoint; parts that the rows overlap are joined.
  std::vector<RowStretch> kept;
  for (const RowStretch& part : parts) {
    if (part.end <= rows.begin || rows.end <= part.begin) {
      kept.push_back(part);
    } else {
      rows = {std::min(rows.begin, part.begin), std::max(rows.end, part.end)};
    }
  }
  kept.push_back(rows);
  std::sort(kept.begin(), kept.end(),
            [](const RowStretch& a, const RowStretch& b) { return a.begin < b.begin; });
  parts = std::move(kept);
}

/// Numbers the parts by their rows. Returns how many there are.
int32_t BlockParts::number() {
  int32_t count = 0;
  for (const std::vector<RowStretch>& parts : parts_) {
    first_.push_back(count);
    count += static_cast<int32_t>(parts.size());
  }
  taken_.assign(static_cast<size_t>(count), 0);
  is_opened_.assign(static_cast<size_t>(count), false);
  last_.resize(static_cast<size_t>(count));
  return count;
}

/// Number of the part that holds these rows.
int32_t BlockParts::counter_of(RowStretch rows) const {
  const std::vector<RowStretch>& parts = parts_[rows.begin / block_rows_];
  const auto part = std::find_if(parts.begin(), parts.end(),
                                 [&](const RowStretch& p) { return rows.begin < p.end; });
  return first_[rows.begin / block_rows_] + static_cast<int32_t>(part - parts.begin());
}

/// The part that the counter covers, in the block of these rows.
const RowStretch& BlockParts::part_of(int32_t counter, RowStretch rows) const {
  const int32_t block = rows.begin / block_rows_;
  return parts_[block][counter - first_[block]];
}

/// The next turn at the part that holds these rows of a run.
TurnRun BlockParts::take_turn(RowStretch rows, int32_t run) {
  const int32_t counter = counter_of(rows);
  const int32_t turn = taken_[counter]++;
  last_[counter] = {run, rows};
  if (turn > 0) return {1, counter, turn};
  is_opened_[counter] = rows == part_of(counter, rows);
  return {1, counter, is_opened_[counter] ? kOpeningTurn : 0};
}

/// Marks the tiles that take the last turn with all rows of a part. Their runs are cut there.
void BlockParts::close_runs(TileList& list) const {
  std::vector<std::vector<RowStretch>> closed(list.runs.size());  // [run], in the order of rows
  std::vector<bool> is_closed(last_.size(), false);
  for (size_t counter = 0; counter < last_.size(); ++counter) {
    const auto& [run, rows] = last_[counter];
    if (run < 0 || rows != part_of(static_cast<int32_t>(counter), rows)) continue;
    is_closed[counter] = true;
    if (!closed[run].empty() && closed[run].back().end == rows.begin) {
      closed[run].back().end = rows.end;
    } else {
      closed[run].push_back(rows);
    }
  }
  std::vector<TileRun> runs;
  for (OwnedTile& tile : list.tiles) {
    const auto first = static_cast<size_t>(tile.first_run), end = first + tile.num_runs;
    tile.first_run = static_cast<int32_t>(runs.size());
    for (size_t r = first; r < end; ++r) {
      TileRun rest = list.runs[r];
      const auto add = [&](int32_t to, bool closes) {
        if (to == rest.begin) return;
        runs.push_back(rest);
        runs.back().end = rest.begin = to;
        runs.back().closes = closes ? 1 : 0;
      };
      for (const RowStretch& rows : closed[r]) {
        add(rows.begin, false);
        add(rows.end, true);
      }
      add(list.runs[r].end, false);
    }
    tile.num_runs = static_cast<int32_t>(runs.size()) - tile.first_run;
  }
  list.runs = std::move(runs);
  list.unclosed = rows_without(is_closed);
}

/// Rows outside all parts whose counter has `has_counter` set.
std::vector<RowStretch> BlockParts::rows_without(const std::vector<bool>& has_counter) const {
  std::vector<RowStretch> result;
  for (size_t block = 0; block < parts_.size(); ++block) {
    int32_t next = static_cast<int32_t>(block) * block_rows_;
    const auto close = [&](int32_t end) {
      if (next < end) result.push_back({next, end});
    };
    for (size_t part = 0; part < parts_[block].size(); ++part) {
      if (!has_counter[static_cast<size_t>(first_[block]) + part]) continue;
      close(parts_[block][part].begin);
      next = parts_[block][part].end;
    }
    close(std::min(num_rows_, (static_cast<int32_t>(block) + 1) * block_rows_));
  }
  return result;
}

void BlockParts::assign_turns(const std::vector<int32_t>& order, TileList& list) {
  for (const int32_t t : order) {
    OwnedTile& tile = list.tiles[t];
    tile.first_turn = static_cast<int32_t>(list.turns.size());
    walk_blocks(tile, list, [&](RowStretch rows, int32_t run) {
      append_turn(take_turn(rows, run), tile, list);
    });
  }
  list.unopened = rows_without(is_opened_);
  close_runs(list);
}

void BlockParts::assign_turns_by_time(const std::vector<double>& begins, TileList& list) {
  struct Visit {
    double time;
    size_t tile;
    RowStretch rows;
    int32_t run;
    TurnRun turn;
  };
  std::vector<Visit> visits;
  for (size_t t = 0; t < list.tiles.size(); ++t) {
    double time = begins[t];
    walk_blocks(list.tiles[t], list, [&](RowStretch rows, int32_t run) {
      visits.push_back({time++, t, rows, run, {}});
    });
  }
  std::vector<Visit*> by_time;
  for (Visit& visit : visits) by_time.push_back(&visit);
  std::stable_sort(by_time.begin(), by_time.end(),
                   [](const Visit* a, const Visit* b) { return a->time < b->time; });
  for (Visit* visit : by_time) visit->turn = take_turn(visit->rows, visit->run);
  auto visit = visits.begin();
  for (size_t t = 0; t < list.tiles.size(); ++t) {
    list.tiles[t].first_turn = static_cast<int32_t>(list.turns.size());
    for (; visit != visits.end() && visit->tile == t; ++visit)
      append_turn(visit->turn, list.tiles[t], list);
  }
  list.unopened = rows_without(is_opened_);
  close_runs(list);
}

void collect_gaps(TileOwner owner, TileList& list) {
  constexpr int32_t kBits = 32;
  const std::vector<bool> is_met = find_met_rows(list, owner);
  for (OwnedTile& tile : list.tiles) {
    if (std::find(is_met.begin() + tile.begin, is_met.begin() + tile.end, false) ==
        is_met.begin() + tile.end)
      continue;
    tile.first_gap = static_cast<int32_t>(list.gaps.size());
    list.gaps.resize(list.gaps.size() +
                     static_cast<size_t>((list.shape.owned_rows + kBits - 1) / kBits));
    for (int32_t row = tile.begin; row < tile.end; ++row) {
      const int32_t bit = row - tile.begin;
      if (!is_met[row]) list.gaps[tile.first_gap + bit / kBits] |= uint32_t{1} << bit % kBits;
    }
  }
}

}  // namespace cpscope::kernels
