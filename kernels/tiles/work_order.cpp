#include "kernels/tiles/work_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

namespace cpscope::kernels {
namespace {

/// Number of streamed tiles of all heads that are held back to the end, so that CTAs end together:
/// half of a longest tile for every CTA. With more, rows would be read a second time for more
/// tiles, and short tiles need memory bandwidth most.
int64_t tiles_of_tail(int32_t longest) { return longest * kHopperCtas / 2; }

bool is_short(const OwnedTile& tile, int32_t longest) { return 2 * tile.num_tiles <= longest; }

/// Tiles that stream rows which no other tiles stream.
struct DocumentGroup {
  std::vector<int32_t> tiles;
  int64_t walked_rows = 0;

  void append(const DocumentGroup& other) {
    tiles.insert(tiles.end(), other.tiles.begin(), other.tiles.end());
    walked_rows += other.walked_rows;
  }
};

/// Finds the smallest groups that the order of rows allows.
std::vector<DocumentGroup> find_documents(const TileList& list) {
  std::vector<DocumentGroup> documents;
  int32_t covered = 0;  // streamed rows before it
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

/// Joins neighbours while they have at most `most_rows` rows. The longest tiles come first in a
/// group, and the groups with the longest tiles come first.
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

void add_to_heads(int32_t tile, int32_t first_head, int32_t end_head, std::vector<WorkItem>& work) {
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

/// Number of tiles in `order`, longest first, that are not held back to the end. Tiles of one
/// length stay together. All heads are treated alike, because their turns are the same.
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

/// Number of chains that run at a time. With few chains many CTAs wait for each other. With many,
/// each chain reads its streamed rows from memory separately, which takes power away from the
/// products.
int32_t chains_at_once(const WorkHeads& heads, bool is_packed, const TileList& list) {
  constexpr int32_t kFewest = 4;
  int64_t num_tiles =  // streamed by one head
      list.visited_cells / (int64_t{list.shape.walked_rows} * list.shape.owned_rows);
  if (is_packed) {
    // Tiles of short documents wait long for each other, and the tiles of a chain come back to its
    // rows. So these rows should mostly stay in the cache: with half as many chains the waits cost
    // more than reading a few rows twice.
    const int64_t rows =
        num_tiles * list.shape.walked_rows / static_cast<int64_t>(list.tiles.size());
    // Tiles of several streamed heads are at as many places of them.
    int32_t chains = heads.heads_walked > 1 ? std::max(8, 32 / heads.heads_walked) : 64;
    while (chains > kFewest && 4 * chains * rows > 5 * heads.cached_rows) chains /= 2;
    return chains;
  }
  // With one document, CTAs wait when the first chains begin: take so few chains that this stays
  // below a 90th of the time. A CTA begins one hand-over, 1.3 times the time of a tile, after the
  // one before.
  constexpr int64_t kStartTiles = 117 * kHopperCtas * kHopperCtas;
  constexpr int32_t kMost = 16;
  num_tiles *= int64_t{heads.all_heads()} * heads.heads_walked;
  int32_t chains = kFewest;
  while (chains < kMost && chains * num_tiles < kStartTiles) chains *= 2;
  return chains;
}

/// The document of a tile: the one where its longest run begins. Short documents count as part of
/// the long one before them.
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

/// The tiles of one document, the longest first.
using Document = std::vector<int32_t>;

/// The documents of the tiles in `order`, longest first; the document of the longest tile comes
/// first.
std::vector<Document> documents_of(std::span<const int32_t> order,
                                   const std::vector<RowStretch>& long_documents,
                                   const TileList& list) {
  std::vector<Document> documents;
  std::vector<size_t> place(long_documents.size() + 1, 0);  // in `documents`, from 1
  for (const int32_t t : order) {
    size_t& known = place[document_of(list.tiles[t], long_documents, list)];
    if (known == 0) {
      documents.emplace_back();
      known = documents.size();
    }
    documents[known - 1].push_back(t);
  }
  return documents;
}

/// Orders the tiles of documents, `at_once` documents interleaved tile by tile.
std::vector<int32_t> take_in_turns(std::span<const Document> documents, size_t at_once) {
  std::vector<int32_t> result;
  std::vector<std::span<const int32_t>> open;  // remaining tiles of each open document
  size_t next = 0;
  for (;;) {
    while (open.size() < at_once && next < documents.size()) open.emplace_back(documents[next++]);
    if (open.empty()) return result;
    for (std::span<const int32_t>& tiles : open) {
      result.push_back(tiles.front());
      tiles = tiles.subspan(1);
    }
    std::erase_if(open, [](std::span<const int32_t> tiles) { return tiles.empty(); });
  }
}

/// With fewer heads at once, documents of different lengths would be interleaved.
constexpr int32_t kFewestHeads = 4;

/// Documents that run together, one section of heads after another.
struct Batch {
  std::vector<int32_t> tiles;  // of its documents, interleaved
  int32_t heads = 1;           // of a section
};

/// Makes batches with just as many chains (a document and a head each) as keep CTAs from waiting:
/// CTAs of a chain begin one hand-over after each other, 1.3 times the time of a tile, and are done
/// after as many steps as their tiles have. Few chains, because the CTAs of a chain that begin
/// together stream the same rows at about the same time. The first batch has more, since all CTAs
/// begin at once.
std::vector<Batch> make_batches(const WorkHeads& heads, int32_t most_heads,
                                const std::vector<Document>& documents, const TileList& list) {
  constexpr int64_t kHandOvers = kHopperCtas * 13 / 10 * 3 / 2;    // of all CTAs, and half as many
                                                                   // again
  constexpr int64_t kStartSteps = 40 * kHopperCtas * kHopperCtas;  // waiting: a 60th of the time
  constexpr int64_t kItemSteps = 2;  // overhead of an item besides its tiles
  const auto steps_of = [&](const Document& document) {
    int64_t steps = 0;
    for (const int32_t t : document)
      steps += int64_t{list.tiles[t].num_tiles} * heads.heads_walked + kItemSteps;
    return steps;
  };
  int64_t all_steps = 0;
  for (const Document& document : documents) all_steps += steps_of(document) * heads.all_heads();
  std::vector<Batch> batches;
  for (size_t first = 0; first < documents.size();) {
    size_t end = first;
    int64_t chains = first == 0 ? kStartSteps / all_steps + 1 : 1;
    do {
      const Document& document = documents[end++];
      const auto tiles = static_cast<int64_t>(document.size());
      chains = std::max(chains, kHandOvers * tiles / steps_of(document) + 1);
    } while (end < documents.size() &&
             static_cast<int64_t>(end - first) * std::min(heads.all_heads(), kFewestHeads) <
                 chains);
    const auto count = static_cast<int64_t>(end - first);
    const auto section =
        static_cast<int32_t>(std::min<int64_t>(most_heads, (chains + count - 1) / count));
    const int32_t sections = (most_heads + section - 1) / section;  // of equal size
    batches.push_back({take_in_turns(std::span(documents).subspan(first, end - first), end - first),
                       (most_heads + sections - 1) / sections});
    first = end;
  }
  return batches;
}

/// Returns the order of tiles. It is the same for all heads, because the order of their turns is.
std::vector<int32_t> fill_in_batches(const WorkHeads& heads, const std::vector<Document>& documents,
                                     TileList& list) {
  const int32_t most = heads.most_at_once > 0
                           ? std::min(heads.num_heads, std::max(heads.most_at_once, kFewestHeads))
                           : heads.num_heads;
  const std::vector<Batch> batches = make_batches(heads, most, documents, list);
  for (int32_t begin = 0; begin < heads.num_heads; begin += most) {
    const int32_t end = std::min(heads.num_heads, begin + most);
    for (const Batch& batch : batches) {
      for (int32_t head = begin; head < end; head += batch.heads) {
        for (const int32_t t : batch.tiles)
          add_to_heads(t, head, std::min(end, head + batch.heads), list.work);
      }
    }
  }
  std::vector<int32_t> order;
  for (const Batch& batch : batches)
    order.insert(order.end(), batch.tiles.begin(), batch.tiles.end());
  return order;
}

/// How many heads of a causal document begin one after another in the time that a head takes
/// (fill_staggered): so many that a CTA of a chain begins two hand-overs after the one before, and
/// no more than have their rows in the cache. 0 where heads that begin together lose less, or where
/// this has not been measured: documents are not alike, tiles are of one length, or documents are
/// very short or long.
int32_t heads_to_stagger(const WorkHeads& heads, const std::vector<Document>& documents,
                         const TileList& list) {
  // Hand-overs of all CTAs, as in make_batches, but twice as many; the overhead of an item.
  constexpr int64_t kHandOvers = kHopperCtas * 13 / 10 * 2, kItemSteps = 1;
  constexpr int64_t kFewest = 4, kMost = 32;
  if (heads.heads_walked > 1) return 0;
  int64_t tiles = 0, walked = 0, longest = 0;
  const int64_t first = list.tiles[documents.front().front()].num_tiles;
  for (const Document& document : documents) {
    const int64_t most = list.tiles[document.front()].num_tiles;
    if (2 * most < first) return 0;
    for (const int32_t t : document) walked += list.tiles[t].num_tiles;
    const auto count = static_cast<int64_t>(document.size());
    tiles += count;
    longest += count * most;
  }
  if (walked == 0 || 2 * longest < 3 * walked) return 0;  // causal: about twice
  const int64_t steps = walked + kItemSteps * tiles;
  const int64_t needed = (kHandOvers * tiles + steps - 1) / steps;
  const int64_t fitting = heads.cached_rows * tiles / (walked * list.shape.walked_rows);
  if (needed < kFewest || needed > kMost || 2 * fitting < needed) return 0;
  return static_cast<int32_t>(std::min(needed, fitting));
}

/// Begins the heads of a section one after another, each when the one before has begun its share of
/// a document's tiles: then long and short tiles of several chains are taken in turn. Heads that
/// begin together come to their short tiles together, which follow each other faster than a chain's
/// turns do.
void fill_staggered(int32_t num_heads, int32_t section, size_t num_documents,
                    const std::vector<int32_t>& order, TileList& list) {
  struct Place {
    double begin;  // in tiles of a head
    WorkItem item;
  };
  std::vector<Place> places;
  const auto num_tiles = static_cast<double>(order.size());
  const double lag = num_tiles / static_cast<double>(num_documents) / section;
  for (int32_t head = 0; head < num_heads; ++head) {
    double begin = head / section * num_tiles + head % section * lag;
    for (const int32_t t : order) places.push_back({begin++, {t, head}});
  }
  std::stable_sort(places.begin(), places.end(),
                   [](const Place& a, const Place& b) { return a.begin < b.begin; });
  for (const Place& place : places) list.work.push_back(place.item);
}

/// Takes chains of all heads, or of a section of heads at a time, and interleaves as many documents
/// as the number of chains leaves. Tiles of `order` from number `kept` on are not ordered.
std::vector<int32_t> fill_by_heads(const WorkHeads& heads,
                                   const std::vector<RowStretch>& long_documents,
                                   const std::vector<int32_t>& order, size_t kept, TileList& list) {
  const int32_t staggered =
      heads_to_stagger(heads, documents_of(order, long_documents, list), list);
  const std::vector<Document> documents =
      documents_of(std::span(order).first(kept), long_documents, list);
  const int32_t chains =
      staggered > 0 ? staggered : chains_at_once(heads, has_documents(long_documents), list);
  const std::vector<int32_t> result =
      take_in_turns(documents, static_cast<size_t>(chains / std::min(heads.all_heads(), chains)));
  const int32_t section = std::min(heads.num_heads, chains);
  if (staggered > 0) {
    // Sections of about this size, all alike.
    const int32_t sections = std::max(1, (heads.num_heads + section / 2) / section);
    fill_staggered(heads.num_heads, (heads.num_heads + sections - 1) / sections, documents.size(),
                   result, list);
    return result;
  }
  for (int32_t head = 0; head < heads.num_heads; head += section) {
    for (const int32_t t : result)
      add_to_heads(t, head, std::min(heads.num_heads, head + section), list.work);
  }
  return result;
}

}  // namespace

void sort_by_length(std::vector<int32_t>& tiles, const TileList& list) {
  std::stable_sort(tiles.begin(), tiles.end(), [&](int32_t a, int32_t b) {
    return list.tiles[a].num_tiles > list.tiles[b].num_tiles;
  });
}

// Tiles of a causal document have all lengths and begin at its last row: streamed head by head,
// short ones would wait for long ones at the begin of each head. This costs little in very long
// walks, where CTAs that do not wait are soon far apart. Where tiles begin at different rows, as
// under a window, CTAs that take head by head follow each other closely; by tile they do not.
bool suits_walk_by_tile(const WorkHeads& heads, const TileList& list) {
  int64_t walked = 0, shorter = 0, alone = 0;  // tiles: all, missing to the longest, alone at their
                                               // row
  int64_t num_tiles = 0, squares = 0;
  int32_t begin = -1;                                     // row
  int64_t together = 0, tiles_together = 0, longest = 0;  // of those that begin there
  const auto close = [&] {
    // The first one may stream the document before as well.
    if (tiles_together > 1) shorter += longest * (tiles_together - 1) - together;
    if (tiles_together == 1) alone += longest;
  };
  for (const OwnedTile& tile : list.tiles) {
    if (tile.num_runs == 0) continue;
    const int32_t last_row = list.runs[tile.first_run + tile.num_runs - 1].end;
    if (last_row != begin) {
      close();
      begin = last_row;
      together = tiles_together = longest = 0;
    } else {
      if (tiles_together == 1) longest = 0;
      together += tile.num_tiles;
    }
    longest = std::max<int64_t>(longest, tile.num_tiles);
    ++tiles_together;
    walked += tile.num_tiles;
    squares += int64_t{tile.num_tiles} * tile.num_tiles;
    ++num_tiles;
  }
  close();
  // Average lengths: of short documents, whose CTAs hardly meet, and of one of 24K tokens, weighted
  // by work.
  constexpr int64_t kFewTiles = 4, kManyTiles = 256;
  return heads.heads_walked > 1 && walked >= kFewTiles * num_tiles &&
         squares <= kManyTiles * walked && 4 * shorter >= walked && 8 * alone <= walked;
}

void fill_in_sections(const WorkHeads& heads, TileList& list) {
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
      add_to_heads(t, section.first_head, section.end_head, is_held ? tail : list.work);
    }
  }
  std::stable_sort(tail.begin(), tail.end(), [&](const WorkItem& a, const WorkItem& b) {
    return list.tiles[a.tile].num_tiles > list.tiles[b.tile].num_tiles;
  });
  list.work.insert(list.work.end(), tail.begin(), tail.end());
}

std::vector<int32_t> fill_in_chains(const WorkHeads& heads,
                                    const std::vector<RowStretch>& long_documents, TileList& list) {
  std::vector<int32_t> order(list.tiles.size());
  std::iota(order.begin(), order.end(), 0);
  list.walks_by_tile = suits_walk_by_tile(heads, list);
  if (order.empty() || heads.num_heads == 0) return order;
  sort_by_length(order, list);
  // By tiles, chains follow each other and end with their short tiles.
  if (list.walks_by_tile)
    return fill_in_batches(heads, documents_of(order, long_documents, list), list);
  const size_t kept = count_before_tail(order, heads.all_heads(), list);
  const std::vector<int32_t> first = fill_by_heads(heads, long_documents, order, kept, list);
  std::copy(first.begin(), first.end(), order.begin());
  for (const int32_t t : std::span(order).subspan(kept))
    add_to_heads(t, 0, heads.num_heads, list.work);
  return order;
}

}  // namespace cpscope::kernels
