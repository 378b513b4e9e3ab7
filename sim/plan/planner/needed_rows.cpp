#include "sim/plan/planner/needed_rows.h"

#include <algorithm>
#include <utility>

namespace cpscope {
namespace {

void add_needed_run(std::vector<TokenRun>& ranges, int64_t begin, int64_t end) {
  if (begin < end) ranges.push_back({begin, end, 1});
}

void add_visible(const Piece& q, const Band& band, int64_t first_key,
                 std::vector<TokenRun>& ranges) {
  const Band part = clip(band, q.position, q.position_of(q.count - 1) + 1, band.k0, band.k1);
  if (part.q1 == 0) return;
  // Consecutive rows move the columns by one; a stride leaves no gap if the band is at least as
  // wide.
  if (part.hi - part.lo + 1 >= q.stride || q.count == 1) {
    const int64_t first = part.q0 + (q.stride - (part.q0 - q.position) % q.stride) % q.stride;
    if (first >= part.q1) return;
    const int64_t last = first + (part.q1 - 1 - first) / q.stride * q.stride;
    add_needed_run(ranges, first_key + columns_of_row(part, first).begin,
                   first_key + columns_of_row(part, last).end);
    return;
  }
  for (int64_t i = 0; i < q.count; ++i) {
    const ColumnRange columns = columns_of_row(part, q.position_of(i));
    add_needed_run(ranges, first_key + columns.begin, first_key + columns.end);
  }
}

/// Index range of the run's ids inside [begin, end).
std::pair<int64_t, int64_t> indices_inside(const TokenRun& run, int64_t begin, int64_t end) {
  const auto index_at_or_after = [&](int64_t id) {
    return id <= run.begin ? 0 : (id - run.begin + run.stride - 1) / run.stride;
  };
  return {std::min(run.count(), index_at_or_after(begin)),
          std::min(run.count(), index_at_or_after(end))};
}

/// Counts the runs of a list as append_run makes it.
class RunCounter {
 public:
  void append(const TokenRun& run) {
    const int64_t ids = run.count();
    const int64_t stride = ids == 1 ? 1 : run.stride;
    if (count_ == 0 || stride != stride_ || run.begin != next_) ++count_;
    stride_ = stride;
    next_ = run.begin + ids * stride;
  }
  int64_t count() const { return count_; }

 private:
  int64_t count_ = 0;
  int64_t stride_ = 1, next_ = 0;  // of the last run, and the id that would make it longer
};

}  // namespace

std::vector<TokenRun> merge_ranges(std::vector<TokenRun> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const TokenRun& a, const TokenRun& b) { return a.begin < b.begin; });
  std::vector<TokenRun> merged;
  for (const TokenRun& range : ranges) {
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

std::vector<TokenRun> visible_keys(const PieceTable& q, const MaskBands& mask,
                                   const BatchSlots& slots) {
  std::vector<TokenRun> ranges;
  for (const Piece& piece : q.pieces) {
    const int64_t end = piece.position_of(piece.count - 1) + 1;
    for (const Band& band : mask.near_rows(piece.sequence, piece.position, end))
      add_visible(piece, band, slots.sequences[piece.sequence].kv_valid_begin(), ranges);
  }
  return merge_ranges(std::move(ranges));
}

KvOwners::KvOwners(const Layout& layout) : layout_(layout) {
  for (const auto& runs : layout.kv_runs) {
    for (const TokenRun& run : runs) strided_ = strided_ || run.stride != 1;
  }
  if (strided_) return;
  for (const RankId rank : layout.kv_runs.ids()) {
    int64_t row = 0;
    for (const TokenRun& run : layout.kv_runs[rank]) {
      chunks_.push_back({run.begin, run.end, row, rank});
      row += run.count();
    }
  }
  std::sort(chunks_.begin(), chunks_.end(),
            [](const Chunk& a, const Chunk& b) { return a.begin < b.begin; });
}

template <class Visit>
void KvOwners::for_each_part(const std::vector<TokenRun>& wanted, Visit visit) const {
  if (strided_) {
    for (const RankId rank : layout_.kv_runs.ids()) {
      int64_t row = 0;
      for (const TokenRun& run : layout_.kv_runs[rank]) {
        for (const TokenRun& range : wanted) {
          const auto [from, to] = indices_inside(run, range.begin, range.end);
          if (from < to)
            visit(rank, TokenRun{row + from, row + to, 1},
                  TokenRun{run.at(from), run.at(to - 1) + 1, run.stride});
        }
        row += run.count();
      }
    }
    return;
  }
  auto chunk = chunks_.begin();
  for (const TokenRun& range : wanted) {
    chunk = std::partition_point(chunk, chunks_.end(),
                                 [&](const Chunk& c) { return c.end <= range.begin; });
    for (auto c = chunk; c != chunks_.end() && c->begin < range.end; ++c) {
      const int64_t from = std::max(range.begin, c->begin), to = std::min(range.end, c->end);
      if (from < to)
        visit(c->rank, TokenRun{c->row + from - c->begin, c->row + to - c->begin, 1},
              TokenRun{from, to, 1});
    }
  }
}

KvOwners::Received KvOwners::receive(const std::vector<TokenRun>& wanted, RankId self) const {
  Received received;
  IdVector<RankId, Source> sources(layout_.kv_runs.size());
  int64_t row = 0;
  for_each_part(wanted, [&](RankId owner, const TokenRun& rows, const TokenRun& tokens) {
    if (owner == self) return;
    const int64_t count = rows.end - rows.begin;
    append_run(received.tokens, tokens);
    append_run(sources[owner].rows, rows);
    append_run(sources[owner].to_rows, {row, row + count, 1});
    row += count;
  });
  for (const RankId rank : sources.ids()) {
    if (sources[rank].rows.empty()) continue;
    sources[rank].rank = rank;
    received.sources.push_back(std::move(sources[rank]));
  }
  return received;
}

int64_t KvOwners::count_runs(const std::vector<TokenRun>& wanted, RankId self) const {
  IdVector<RankId, RunCounter> sent(layout_.kv_runs.size()), received(sent.size());
  RunCounter all;
  int64_t row = 0;
  for_each_part(wanted, [&](RankId owner, const TokenRun& rows, const TokenRun& tokens) {
    if (owner == self) return;
    all.append(tokens);
    sent[owner].append(rows);
    received[owner].append({row, row + rows.count(), 1});
    row += rows.count();
  });
  int64_t count = all.count();
  for (const RankId rank : sent.ids()) count += sent[rank].count() + received[rank].count();
  return count;
}

int64_t KvOwners::count_remote(const std::vector<TokenRun>& wanted, RankId rank) const {
  int64_t remote = count_ids(wanted);
  for (const TokenRun& run : layout_.kv_runs[rank]) {
    auto range = std::partition_point(wanted.begin(), wanted.end(),
                                      [&](const TokenRun& w) { return w.end <= run.begin; });
    for (; range != wanted.end() && range->begin < run.end; ++range) {
      const auto [from, to] = indices_inside(run, range->begin, range->end);
      remote -= to - from;
    }
  }
  return remote;
}

}  // namespace cpscope
