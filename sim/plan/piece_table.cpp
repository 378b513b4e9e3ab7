#include "sim/plan/piece_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cpscope {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  if (b == 1) return a;  // as nearly always
  return a >= 0 ? (a + b - 1) / b : -((-a) / b);
}
int64_t floor_div(int64_t a, int64_t b) {
  if (b == 1) return a;
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

/// First sequence whose slot ends after `token`; sequences.size() when the token lies in the tail.
size_t first_sequence_after(const std::vector<SequenceSlot>& sequences, Side side, int64_t token) {
  const auto found = std::partition_point(
      sequences.begin(), sequences.end(),
      [&](const SequenceSlot& sequence) { return sequence.side(side).end() <= token; });
  return static_cast<size_t>(found - sequences.begin());
}

/// Calls visit(piece) for each piece of a run.
/// `near`: the sequence where a run before this one began, or any other. Is set to that of this
/// one: most runs begin in the sequence of the run before, and need no search.
template <class Visit>
void visit_run_pieces(const TokenRun& run, int64_t row, const BatchSlots& slots, Side side,
                      size_t& near, Visit visit) {
  const int64_t count = run.count();
  const bool is_near = near < slots.sequences.size() &&
                       slots.sequences[near].side(side).begin <= run.begin &&
                       run.begin < slots.sequences[near].side(side).end();
  if (!is_near) near = first_sequence_after(slots.sequences, side, run.begin);
  for (size_t s = near; s < slots.sequences.size(); ++s) {
    const SlotSide slot = slots.sequences[s].side(side);
    if (slot.begin >= run.end) break;
    // Most runs lie in one slot, and need no division.
    const int64_t from =
        slot.valid_begin() <= run.begin ? 0 : ceil_div(slot.valid_begin() - run.begin, run.stride);
    const int64_t to = slot.valid_end() >= run.end
                           ? count
                           : std::min(count, ceil_div(slot.valid_end() - run.begin, run.stride));
    if (from < to)
      visit(Piece{static_cast<int64_t>(s), row + from, to - from, run.at(from) - slot.valid_begin(),
                  run.stride});
  }
}

/// Collects bands, joining a new full band to the last one where they touch.
class BandList {
 public:
  BandList(std::vector<BandSlice>& bands, bool joins)
      : bands_(bands), first_(bands.size()), joins_(joins) {}

  int64_t pairs() const { return pairs_; }

  void add(const Band& band) {
    if (is_full(band)) return add_full(band.q0, band.q1, band.k0, band.k1);
    pairs_ += count_pairs(band);
    push(band);
  }

  /// A rectangle of which every cell is visible.
  void add_full(int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
    pairs_ += (q1 - q0) * (k1 - k0);
    push({q0, q1, k0, k1, -(q1 - q0 - 1), k1 - k0 - 1});
    while (joins_ && bands_.size() >= first_ + 2 && join_last_two()) {
    }
  }

 private:
  void push(const Band& band) {
    bands_.push_back({static_cast<int32_t>(band.q0), static_cast<int32_t>(band.q1),
                      static_cast<int32_t>(band.k0), static_cast<int32_t>(band.k1),
                      static_cast<int32_t>(band.lo), static_cast<int32_t>(band.hi)});
  }

  /// The last one is full.
  bool join_last_two() {
    BandSlice& a = bands_[bands_.size() - 2];
    const BandSlice& b = bands_.back();
    const bool same_rows = a.q0 == b.q0 && a.q1 == b.q1;
    const bool same_columns = a.k0 == b.k0 && a.k1 == b.k1;
    if (!(same_rows && a.k1 == b.k0) && !(same_columns && a.q1 == b.q0)) return false;
    if (!is_full(a)) return false;
    a.q1 = b.q1;
    a.k1 = b.k1;
    a.lo = -(a.q1 - a.q0 - 1);
    a.hi = a.k1 - a.k0 - 1;
    bands_.pop_back();
    return true;
  }

  std::vector<BandSlice>& bands_;
  size_t first_;
  bool joins_;
  int64_t pairs_ = 0;
};

/// Rows of a piece whose positions lie in [begin, end), as an index range of the piece.
std::pair<int64_t, int64_t> index_range(const Piece& piece, int64_t begin, int64_t end) {
  // Most pieces lie inside, and need no division.
  const int64_t from = begin <= piece.position ? 0 : ceil_div(begin - piece.position, piece.stride);
  const int64_t to = end > piece.position_of(piece.count - 1)
                         ? piece.count
                         : ceil_div(end - piece.position, piece.stride);
  return {from, to};
}

/// Adds the part of a mask band that one q piece and one kv piece of equal stride share.
void add_pair(const Piece& q, const Piece& k, const Band& mask, BandList& out) {
  const auto [q_from, q_to] = index_range(q, mask.q0, mask.q1);
  const auto [k_from, k_to] = index_range(k, mask.k0, mask.k1);
  if (q_from >= q_to || k_from >= k_to) return;
  const int64_t stride = q.count == 1 ? k.stride : q.stride;
  const int64_t offset = (k.position_of(k_from) - mask.k0) - (q.position_of(q_from) - mask.q0);
  const Band band{q.row + q_from,
                  q.row + q_to,
                  k.row + k_from,
                  k.row + k_to,
                  ceil_div(mask.lo - offset, stride),
                  floor_div(mask.hi - offset, stride)};
  // Most pairs of pieces see nothing or all: their corners show it.
  const int64_t lowest = -(q_to - q_from - 1), highest = k_to - k_from - 1;
  if (band.hi < band.lo || band.hi < lowest || band.lo > highest) return;
  if (band.lo <= lowest && band.hi >= highest)
    out.add_full(band.q0, band.q1, band.k0, band.k1);
  else
    out.add(tighten(band));
}

void add_pair_any_stride(const Piece& q, const Piece& k, const Band& mask, BandList& out) {
  if (q.stride == k.stride || q.count == 1 || k.count == 1) return add_pair(q, k, mask, out);
  // A band has one stride: split the shorter piece into single rows, which fit any stride.
  if (q.count <= k.count) {
    for (int64_t i = 0; i < q.count; ++i)
      add_pair({q.sequence, q.row + i, 1, q.position_of(i), 1}, k, mask, out);
  } else {
    for (int64_t j = 0; j < k.count; ++j)
      add_pair(q, {k.sequence, k.row + j, 1, k.position_of(j), 1}, mask, out);
  }
}

/// KV pieces that can be searched by position.
struct AscendingPieces {
  std::span<const Piece> pieces;
  bool is_together;  // their rows follow each other without a gap
  // Where the pieces of the last search began and ended: the next query piece sees nearly the same.
  size_t from = 0, to = 0;
};

/// True if the KV pieces can be searched by position: unit stride and ascending, as in stripes and
/// sorted buffers.
bool is_ascending(std::span<const Piece> pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].stride != 1) return false;
    if (i > 0 && pieces[i].position < pieces[i - 1].position_of(pieces[i - 1].count)) return false;
  }
  return true;
}

/// True if the rows of the pieces follow each other without a gap.
bool is_together(std::span<const Piece> pieces) {
  for (size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i].row != pieces[i - 1].row + pieces[i - 1].count) return false;
  }
  return true;
}

/// The first piece of `pieces` that is not before; `near`: a guess, is set to it.
template <class IsBefore>
size_t find_near(std::span<const Piece> pieces, IsBefore is_before, size_t& near) {
  constexpr size_t kFewSteps = 4;
  for (size_t step = 0; step < kFewSteps; ++step) {
    if (near > 0 && !is_before(pieces[near - 1]))
      --near;
    else if (near < pieces.size() && is_before(pieces[near]))
      ++near;
    else
      return near;
  }
  near = static_cast<size_t>(std::partition_point(pieces.begin(), pieces.end(), is_before) -
                             pieces.begin());
  return near;
}

/// One q piece of unit stride against many ascending KV pieces: pieces that every row sees are
/// joined, without looking at each if their rows are together.
void add_against_ascending(const Piece& q, AscendingPieces& kv, const Band& mask, BandList& out) {
  const auto [q_from, q_to] = index_range(q, mask.q0, mask.q1);
  if (q_from >= q_to) return;
  const Band rows =
      clip(mask, q.position_of(q_from), q.position_of(q_to - 1) + 1, mask.k0, mask.k1);
  if (rows.q1 == 0) return;
  const size_t from = find_near(
      kv.pieces, [&](const Piece& k) { return k.position_of(k.count) <= rows.k0; }, kv.from);
  const size_t to = find_near(
      kv.pieces, [&](const Piece& k) { return k.position < rows.k1; }, kv.to);
  // Columns that every row of the piece sees: the last row's first and the first row's last.
  const int64_t all_begin = columns_of_row(rows, rows.q1 - 1).begin;
  const int64_t all_end = columns_of_row(rows, rows.q0).end;
  const bool whole_rows = rows.q1 - rows.q0 == q_to - q_from;
  const auto is_whole = [&](const Piece& k) {
    return k.position >= all_begin && k.position_of(k.count) <= all_end;
  };
  for (size_t k = from; k < to;) {
    const Piece& first = kv.pieces[k];
    if (!whole_rows || !is_whole(first)) {
      add_pair(q, first, mask, out);
      ++k;
      continue;
    }
    size_t stop = k + 1;
    if (kv.is_together) {
      stop = to;
      while (!is_whole(kv.pieces[stop - 1])) --stop;
    } else {
      while (stop < to && is_whole(kv.pieces[stop]) &&
             kv.pieces[stop].row == kv.pieces[stop - 1].row + kv.pieces[stop - 1].count)
        ++stop;
    }
    const Piece& last = kv.pieces[stop - 1];
    out.add_full(q.row + q_from, q.row + q_to, first.row, last.row + last.count);
    k = stop;
  }
}

void intersect_searching(std::span<const Piece> q_pieces, AscendingPieces kv, int64_t sequence,
                         const MaskBands& mask, BandList& out) {
  for (const Piece& q : q_pieces) {
    const int64_t parts = q.stride == 1 ? 1 : q.count;
    for (int64_t part = 0; part < parts; ++part) {
      // Rows of a strided piece see different columns: each row is its own piece.
      const Piece rows =
          parts == 1 ? q : Piece{q.sequence, q.row + part, 1, q.position_of(part), 1};
      for (const Band& band :
           mask.near_rows(sequence, rows.position, rows.position_of(rows.count - 1) + 1)) {
        add_against_ascending(rows, kv, band, out);
      }
    }
  }
}

void intersect_sequence(std::span<const Piece> q_pieces, std::span<const Piece> kv_pieces,
                        int64_t sequence, const MaskBands& mask, BandList& out) {
  if (kv_pieces.size() > 4 && is_ascending(kv_pieces))
    return intersect_searching(q_pieces, {kv_pieces, is_together(kv_pieces)}, sequence, mask, out);
  for (const Piece& k : kv_pieces) {
    for (const Piece& q : q_pieces) {
      for (const Band& band :
           mask.near_rows(sequence, q.position, q.position_of(q.count - 1) + 1)) {
        add_pair_any_stride(q, k, band, out);
      }
    }
  }
}

/// Keeps the order of the pieces of one sequence.
void sort_by_sequence(std::vector<Piece>& pieces) {
  const auto is_before = [](const Piece& a, const Piece& b) { return a.sequence < b.sequence; };
  // Stripes are millions of runs, in order.
  if (std::is_sorted(pieces.begin(), pieces.end(), is_before)) return;
  int64_t sequences = 0;
  for (const Piece& piece : pieces) sequences = std::max(sequences, piece.sequence + 1);
  if (sequences > std::ssize(pieces)) {
    std::stable_sort(pieces.begin(), pieces.end(), is_before);
    return;
  }
  // Stripes of many ranks have every sequence of a rank after those of another: they are counted.
  std::vector<size_t> next(static_cast<size_t>(sequences) + 1, 0);  // [sequence] its next place
  for (const Piece& piece : pieces) ++next[static_cast<size_t>(piece.sequence) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<Piece> sorted(pieces.size());
  for (const Piece& piece : pieces) sorted[next[static_cast<size_t>(piece.sequence)]++] = piece;
  pieces = std::move(sorted);
}

}  // namespace

PieceTable make_pieces(std::span<const TokenRun> runs, const BatchSlots& slots, Side side) {
  PieceTable table;
  table.pieces.reserve(runs.size());
  int64_t row = 0;
  size_t near = 0;
  for (const TokenRun& run : runs) {
    visit_run_pieces(run, row, slots, side, near,
                     [&](const Piece& piece) { table.pieces.push_back(piece); });
    row += run.count();
  }
  sort_by_sequence(table.pieces);
  for (size_t i = 0; i < table.pieces.size(); ++i) {
    if (i > 0 && table.pieces[i].sequence == table.pieces[i - 1].sequence) continue;
    table.sequences.push_back(table.pieces[i].sequence);
    table.first.push_back(static_cast<int64_t>(i));
  }
  table.first.push_back(static_cast<int64_t>(table.pieces.size()));
  return table;
}

std::vector<SequenceCorner> find_corners(const PieceTable& table) {
  std::vector<SequenceCorner> corners;
  for (size_t i = 0; i < table.sequences.size(); ++i) {
    const auto first = std::ssize(corners);
    int64_t next_row = -1;
    for (const Piece& piece : table.group(i)) {
      const int64_t last_position = piece.position_of(piece.count - 1);
      if (piece.row != next_row) {
        corners.push_back({table.sequences[i], last_position, piece.position});
      } else {
        SequenceCorner& corner = corners.back();
        corner.first_position = std::min(corner.first_position, piece.position);
        corner.last_position = std::max(corner.last_position, last_position);
      }
      next_row = piece.row + piece.count;
    }
    std::sort(corners.begin() + first, corners.end(),
              [](const SequenceCorner& a, const SequenceCorner& b) {
                return a.first_position < b.first_position;
              });
  }
  return corners;
}

CornerCount count_corners(const PieceTable& table) {
  CornerCount corners;
  for (size_t i = 0; i < table.sequences.size(); ++i) {
    int64_t count = 0, next_row = -1;
    for (const Piece& piece : table.group(i)) {
      count += piece.row != next_row ? 1 : 0;
      next_row = piece.row + piece.count;
    }
    corners.all += count;
    corners.most = std::max(corners.most, count);
  }
  return corners;
}

CornerCount count_corners(std::span<const TokenRun> runs, const BatchSlots& slots, Side side) {
  struct Counted {
    int64_t corners = 0, next_row = -1;
  };
  if (slots.sequences.size() > runs.size()) return count_corners(make_pieces(runs, slots, side));
  std::vector<Counted> by_sequence(slots.sequences.size());
  CornerCount corners;
  int64_t row = 0;
  size_t near = 0;
  for (const TokenRun& run : runs) {
    visit_run_pieces(run, row, slots, side, near, [&](const Piece& piece) {
      Counted& counted = by_sequence[static_cast<size_t>(piece.sequence)];
      if (piece.row != counted.next_row) {
        ++corners.all;
        corners.most = std::max(corners.most, ++counted.corners);
      }
      counted.next_row = piece.row + piece.count;
    });
    row += run.count();
  }
  return corners;
}

int64_t count_least_bands(std::span<const SequenceCorner> q, std::span<const SequenceCorner> kv,
                          const MaskBands& mask) {
  int64_t count = 0;
  auto key = kv.begin(), after = key;  // the keys of one sequence
  const auto keys_before = [&](int64_t position) {
    return std::partition_point(
        key, after, [&](const SequenceCorner& corner) { return corner.first_position < position; });
  };
  for (const SequenceCorner& query : q) {
    if (key == after || key->sequence != query.sequence) {
      key = after;
      while (key != kv.end() && key->sequence < query.sequence) ++key;
      after = key;
      while (after != kv.end() && after->sequence == query.sequence) ++after;
    }
    if (key == kv.end()) break;
    if (key == after) continue;
    for (const Band& band :
         mask.near_rows(query.sequence, query.last_position, query.last_position + 1)) {
      // Bands share no cell, so no key is counted twice.
      const ColumnRange columns = columns_of_row(band, query.last_position);
      if (columns.begin < columns.end)
        count += keys_before(columns.end) - keys_before(columns.begin);
    }
  }
  return count;
}

int64_t intersect(const PieceTable& q, const PieceTable& kv, const MaskBands& mask,
                  std::vector<BandSlice>& bands) {
  // Bands of different mask slices are kept apart, so that each can be traced to its slice.
  BandList out(bands, mask.sorted_rows);
  size_t j = 0;
  for (size_t i = 0; i < q.sequences.size(); ++i) {
    const int64_t sequence = q.sequences[i];
    if (j < kv.sequences.size() && kv.sequences[j] < sequence) {
      j = static_cast<size_t>(std::lower_bound(kv.sequences.begin() + static_cast<int64_t>(j),
                                               kv.sequences.end(), sequence) -
                              kv.sequences.begin());
    }
    if (j == kv.sequences.size()) break;
    if (kv.sequences[j] != sequence) continue;
    intersect_sequence(q.group(i), kv.group(j), sequence, mask, out);
  }
  return out.pairs();
}

}  // namespace cpscope
