#include "kernels/work_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

namespace cpscope::kernels {
namespace {

constexpr int64_t kCtas = 132;  // of a Hopper

/// Walked tiles of all heads that come last, so that CTAs end together: half of a longest tile for
/// every CTA. More of them would be read for once more, and what is short wants memory most.
int64_t tiles_of_tail(int32_t longest) { return longest * kCtas / 2; }

bool is_short(const OwnedTile& tile, int32_t longest) { return 2 * tile.num_tiles <= longest; }

void sort_by_length(std::vector<int32_t>& tiles, const TileList& list) {
  std::stable_sort(tiles.begin(), tiles.end(), [&](int32_t a, int32_t b) {
    return list.tiles[a].num_tiles > list.tiles[b].num_tiles;
  });
}

/// Tiles that walk rows which no others walk.
struct DocumentGroup {
  std::vector<int32_t> tiles;
  int64_t walked_rows = 0;

  void append(const DocumentGroup& other) {
    tiles.insert(tiles.end(), other.tiles.begin(), other.tiles.end());
    walked_rows += other.walked_rows;
  }
};

/// As small as the order of rows shows it.
std::vector<DocumentGroup> find_documents(const TileList& list) {
  std::vector<DocumentGroup> documents;
  int32_t covered = 0;  // walked rows before it
  for (size_t t = 0; t < list.tiles.size(); ++t) {
    const OwnedTile& tile = list.tiles[t];
    RowStretch walked{std::numeric_limits<int32_t>::max(), 0};
    for (const TileRun& run : std::span(list.runs).subspan(tile.first_run, tile.num_runs))
      walked = {std::min(walked.begin, run.begin), std::max(walked.end, run.end)};
    if (documents.empty() || (tile.num_runs > 0 && walked.begin >= covered))
      documents.emplace_back();
    DocumentGroup& document = documents.back();
    document.tiles.push_back(static_cast<int32_t>(t));
    if (walked.end <= covered) continue;
    document.walked_rows += walked.end - std::max(walked.begin, covered);
    covered = walked.end;
  }
  return documents;
}

/// Neighbours, as many as have no more than `most_rows`; the longest tiles first, and those groups
/// that have them.
std::vector<DocumentGroup> group_documents(const std::vector<DocumentGroup>& documents,
                                           int64_t most_rows, const TileList& list) {
  std::vector<DocumentGroup> groups;
  for (const DocumentGroup& document : documents) {
    if (groups.empty() || groups.back().walked_rows + document.walked_rows > most_rows)
      groups.emplace_back();
    groups.back().append(document);
  }
  for (DocumentGroup& group : groups) sort_by_length(group.tiles, list);
  const auto longest = [&](const DocumentGroup& group) {
    return list.tiles[group.tiles.front()].num_tiles;
  };
  std::stable_sort(
      groups.begin(), groups.end(),
      [&](const DocumentGroup& a, const DocumentGroup& b) { return longest(a) > longest(b); });
  return groups;
}

struct Section {
  std::vector<int32_t> tiles;  // longest first
  int32_t first_head = 0;
  int32_t end_head = 0;
};

void deal_to_heads(int32_t tile, int32_t first_head, int32_t end_head,
                   std::vector<WorkItem>& work) {
  for (int32_t head = first_head; head < end_head; ++head) work.push_back({tile, head});
}

std::vector<Section> make_sections(const WorkHeads& heads, const TileList& list) {
  const std::vector<DocumentGroup> documents = find_documents(list);
  const int32_t most = heads.most_at_once > 0 ? heads.most_at_once : heads.num_heads;
  const auto heads_walked_by = [&](int32_t owned) {
    return (owned + heads.heads_sharing - 1) / heads.heads_sharing * heads.heads_walked;
  };
  std::vector<Section> sections;
  for (int32_t begin = 0; begin < heads.num_heads; begin += most) {
    const int32_t end = std::min(heads.num_heads, begin + most);
    const int64_t rows = heads.cached_rows / heads_walked_by(end - begin);
    for (const DocumentGroup& group : group_documents(documents, rows, list)) {
      const int64_t walked = std::max<int64_t>(
          1, heads.cached_rows / std::max<int64_t>(1, group.walked_rows) / heads.heads_walked);
      const auto at_once =
          static_cast<int32_t>(std::min<int64_t>(walked * heads.heads_sharing, end - begin));
      for (int32_t first = begin; first < end; first += at_once)
        sections.push_back({group.tiles, first, std::min(end, first + at_once)});
    }
  }
  return sections;
}

/// How many of the tiles in `order`, longest first, do not come last. Tiles of one length stay
/// together, and heads stay alike, for turns are the same in all.
size_t count_before_tail(const std::vector<int32_t>& order, int32_t num_heads,
                         const TileList& list) {
  size_t kept = order.size();
  if (order.empty()) return kept;
  const int32_t longest = list.tiles[order.front()].num_tiles;
  int64_t held = 0;
  for (int32_t length = -1; kept > 0; --kept) {
    const OwnedTile& tile = list.tiles[order[kept - 1]];
    const bool is_enough = held >= tiles_of_tail(longest) && tile.num_tiles != length;
    if (is_enough || !is_short(tile, longest)) break;
    length = tile.num_tiles;
    held += int64_t{length} * num_heads;
  }
  return kept;
}

/// How many chains are dealt at a time. Of few chains many CTAs wait for each other; of many, each
/// brings the rows that it walks from memory for itself, which takes power away from the products.
int32_t chains_at_once(const WorkHeads& heads, bool has_documents, const TileList& list) {
  constexpr int32_t kFewest = 4;
  int64_t num_tiles =  // walked by one head
      list.visited_cells / (int64_t{list.shape.walked_rows} * list.shape.owned_rows);
  if (has_documents) {
    // Tiles of short ones wait long for each other; those of a chain come back to its rows, so
    // these should stay in the cache, by and large: half as many chains wait longer than a few rows
    // take that come twice.
    const int64_t rows =
        num_tiles * list.shape.walked_rows / static_cast<int64_t>(list.tiles.size());
    int32_t chains = 64;
    while (chains > kFewest && 4 * chains * rows > 5 * heads.cached_rows) chains /= 2;
    return chains;
  }
  // Of one document, CTAs wait when the first chains begin: as few as keep that to a 90th of the
  // time. A CTA begins a hand-over, 1.3 times what a tile takes, behind the one before.
  constexpr int64_t kStartTiles = 117 * kCtas * kCtas;
  constexpr int32_t kMost = 16;
  num_tiles *= int64_t{heads.num_heads} * heads.heads_walked;
  int32_t chains = kFewest;
  while (chains < kMost && chains * num_tiles < kStartTiles) chains *= 2;
  return chains;
}

/// The document that a tile is of: the one where its longest run begins. Short documents count as
/// one with the long one before them.
size_t document_of(const OwnedTile& tile, const std::vector<RowStretch>& long_documents,
                   const TileList& list) {
  if (tile.num_runs == 0) return 0;
  const auto first = list.runs.begin() + tile.first_run;
  const auto longest = std::max_element(
      first, first + tile.num_runs,
      [](const TileRun& a, const TileRun& b) { return a.end - a.begin < b.end - b.begin; });
  const auto next = std::upper_bound(
      long_documents.begin(), long_documents.end(), longest->begin,
      [](int32_t row, const RowStretch& document) { return row < document.begin; });
  return static_cast<size_t>(next - long_documents.begin());
}

/// The tiles of `order` document by document, the one that comes first there first, `at_once` of
/// them in turns.
std::vector<int32_t> order_by_documents(std::span<const int32_t> order, size_t at_once,
                                        const std::vector<RowStretch>& long_documents,
                                        const TileList& list) {
  // [document], the last one first
  std::vector<std::vector<int32_t>> tiles(long_documents.size() + 1);
  std::vector<size_t> waiting;                  // documents, the last one first
  std::vector<size_t> documents(order.size());  // [place in order]
  for (size_t i = order.size(); i-- > 0;) {
    documents[i] = document_of(list.tiles[order[i]], long_documents, list);
    tiles[documents[i]].push_back(order[i]);
  }
  for (size_t i = order.size(); i-- > 0;) {
    if (tiles[documents[i]].back() == order[i]) waiting.push_back(documents[i]);
  }
  std::vector<size_t> open;
  std::vector<int32_t> result;
  while (result.size() < order.size()) {
    for (; open.size() < at_once && !waiting.empty(); waiting.pop_back())
      open.push_back(waiting.back());
    for (const size_t d : open) {
      result.push_back(tiles[d].back());
      tiles[d].pop_back();
    }
    std::erase_if(open, [&](size_t d) { return tiles[d].empty(); });
  }
  return result;
}

}  // namespace

void deal_in_sections(const WorkHeads& heads, TileList& list) {
  const std::vector<Section> sections = make_sections(heads, list);
  if (sections.empty()) return;
  const int32_t longest = list.tiles[sections.front().tiles.front()].num_tiles;
  size_t first_held = sections.size();
  for (int64_t held = 0; first_held > 0 && held < tiles_of_tail(longest);) {
    const Section& section = sections[--first_held];
    for (const int32_t t : section.tiles) {
      if (is_short(list.tiles[t], longest))
        held += int64_t{list.tiles[t].num_tiles} * (section.end_head - section.first_head);
    }
  }
  std::vector<WorkItem> tail;
  for (size_t i = 0; i < sections.size(); ++i) {
    const Section& section = sections[i];
    for (const int32_t t : section.tiles) {
      const bool is_held = i >= first_held && is_short(list.tiles[t], longest);
      deal_to_heads(t, section.first_head, section.end_head, is_held ? tail : list.work);
    }
  }
  std::stable_sort(tail.begin(), tail.end(), [&](const WorkItem& a, const WorkItem& b) {
    return list.tiles[a.tile].num_tiles > list.tiles[b.tile].num_tiles;
  });
  list.work.insert(list.work.end(), tail.begin(), tail.end());
}

std::vector<int32_t> deal_in_chains(const WorkHeads& heads,
                                    const std::vector<RowStretch>& long_documents, TileList& list) {
  std::vector<int32_t> order(list.tiles.size());
  std::iota(order.begin(), order.end(), 0);
  sort_by_length(order, list);
  const size_t kept = count_before_tail(order, heads.num_heads, list);
  const bool has_documents = !long_documents.empty() && long_documents.back().begin > 0;
  const int32_t chains = chains_at_once(heads, has_documents, list);
  const int32_t section = std::clamp(heads.num_heads, 1, chains);
  const int32_t documents = std::max(1, chains / section);
  const std::vector<int32_t> first = order_by_documents(
      std::span(order).first(kept), static_cast<size_t>(documents), long_documents, list);
  std::copy(first.begin(), first.end(), order.begin());
  for (int32_t head = 0; head < heads.num_heads; head += section) {
    for (const int32_t t : first)
      deal_to_heads(t, head, std::min(heads.num_heads, head + section), list.work);
  }
  for (const int32_t t : std::span(order).subspan(kept))
    deal_to_heads(t, 0, heads.num_heads, list.work);
  return order;
}

}  // namespace cpscope::kernels
