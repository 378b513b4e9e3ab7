#include "sim/base/parallel.h"
#include "sim/plan/check/check_rows.h"
#include "sim/plan/check/list_cache.h"
#include "sim/plan/check/pair_print.h"
#include "sim/plan/visible_interval.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Bands over two token lists, and the first compute item that has them.
struct Work {
  int64_t first_slice, num_slices;
  RunListId q_tokens, kv_tokens;
  Direction direction;
  const ComputeItem* item;
};

/// Meetings of stretches of rows and columns that a proof looks at; minutes.
constexpr int64_t kMostLooks = int64_t{1} << 34;

std::string where(Direction direction, const ComputeItem& item) {
  return fmt::format("{}rank {}, step {}", direction == Direction::backward ? "backward, " : "",
                     to_index(item.rank), to_index(item.step));
}

std::string where(const BandSlice& band) {
  return fmt::format(", band q[{}, {}) k[{}, {}) lo {} hi {}", band.q0, band.q1, band.k0, band.k1,
                     band.lo, band.hi);
}

/// Proves that every cell of one band is visible. The cells of a row are an interval, so its two
/// ends decide. Along the rows all edges are straight between the rows checked, so these rows
/// decide.
class BandJudge {
 public:
  /// `looks` counts, over all bands of all judges, what a plan of nothing but tiny stretches would
  /// make too many.
  BandJudge(const Plan& plan, const SliceRows& slices, const RowReader& q, const RowReader& kv,
            std::atomic<int64_t>& looks)
      : plan_(plan), slices_(slices), q_(q), kv_(kv), looks_(looks) {}
  ~BandJudge() { looks_.fetch_add(own_looks_); }

  std::optional<std::string> complaint(const BandSlice& band) {
    const int64_t pairs = band.q0 >= band.q1 || band.k0 >= band.k1 ? 0 : count_pairs(band);
    if (pairs == 0) return "the band is empty";
    // Bands that share cells may hold more pairs than a number can count.
    pairs_ += static_cast<uint64_t>(pairs);
    if (band.q0 < 0 || band.q1 > q_.rows() || band.k0 < 0 || band.k1 > kv_.rows())
      return fmt::format("it leaves the {} query and {} key rows", q_.rows(), kv_.rows());
    const RowSeries &q = q_series(band), &k = kv_.series(band.k0);
    // Most bands lie in one series either way.
    const Stretch q_part{q.begin, q.end, q.first.sequence},
        k_part{k.begin, k.end, k.first.sequence};
    const auto [q_from, q_to] =
        band.q1 <= q.end ? std::pair(&q_part, &q_part + 1) : q_.stretches(q, band.q1);
    const auto [k_from, k_to] =
        band.k1 <= k.end ? std::pair(&k_part, &k_part + 1) : kv_.stretches(k, band.k1);
    const int64_t meetings = (q_to - q_from) * (k_to - k_from);
    if (meetings > kMostLooks || has_looked_too_often(meetings))
      return "its rows and columns change their sequence too often to be proved";
    for (const Stretch* a = q_from; a != q_to; ++a) {
      if (a->sequence < 0)
        return fmt::format("row {} is padding", std::max<int64_t>(a->row_begin, band.q0));
      for (const Stretch* b = k_from; b != k_to; ++b) {
        if (b->sequence < 0)
          return fmt::format("column {} is padding", std::max<int64_t>(b->row_begin, band.k0));
        if (a->sequence != b->sequence)
          return fmt::format("a query of sequence {} sees a key of sequence {}", a->sequence,
                             b->sequence);
      }
    }
    return is_full(band) ? full_complaint(band, q_from, q_to, k_from, k_to)
                         : partial_complaint(band, q, k);
  }

  /// Pairs of the bands so far.
  uint64_t pairs() const { return pairs_; }

 private:
  /// Counts looks. Threads would wait for each other if every band changed the common counter.
  bool has_looked_too_often(int64_t meetings) {
    constexpr int64_t kFew = 1 << 16;
    own_looks_ += meetings;
    if (own_looks_ < least_to_add_) return false;
    least_to_add_ = kFew;
    return looks_.fetch_add(std::exchange(own_looks_, 0)) > kMostLooks;
  }
  /// The series of the band's first row; one after another, bands have the same query rows.
  const RowSeries& q_series(const BandSlice& band) {
    if (q_series_ == nullptr || band.q0 < q_series_->begin || band.q0 >= q_series_->end)
      q_series_ = &q_.series(band.q0);
    return *q_series_;
  }
  std::optional<std::string> cell_complaint(int64_t row, int64_t column, int64_t slice) const {
    return cell_complaint(row, q_.place(row), column, kv_.place(column), slice);
  }
  std::optional<std::string> cell_complaint(int64_t row, const RowPlace& q, int64_t column,
                                            const RowPlace& k, int64_t slice) const {
    if (q.sequence != k.sequence || q.sequence < 0)
      return fmt::format("row {} and column {} are of different sequences or padding", row, column);
    if (is_inside(plan_, q.sequence, q.position, k.position, slice)) return std::nullopt;
    return fmt::format("query token {} (position {}) must not see key token {} (position {})",
                       q.token, q.position, k.token, k.position);
  }

  /// In a rectangle the latest query with the earliest key and the earliest query with the latest
  /// key decide.
  std::optional<std::string> full_complaint(const BandSlice& band, const Stretch* q_from,
                                            const Stretch* q_to, const Stretch* k_from,
                                            const Stretch* k_to) const {
    const int64_t slice = slice_of(band);
    for (const Stretch* a = q_from; a != q_to; ++a) {
      const int64_t first_row = std::max<int64_t>(a->row_begin, band.q0),
                    last_row = std::min<int64_t>(a->row_end, band.q1) - 1;
      for (const Stretch* b = k_from; b != k_to; ++b) {
        const int64_t first_column = std::max<int64_t>(b->row_begin, band.k0),
                      last_column = std::min<int64_t>(b->row_end, band.k1) - 1;
        if (auto text = cell_complaint(last_row, first_column, slice)) return text;
        if (auto text = cell_complaint(first_row, last_column, slice)) return text;
      }
    }
    return std::nullopt;
  }

  std::optional<std::string> partial_complaint(const BandSlice& band, const RowSeries& q,
                                               const RowSeries& k) const {
    const int64_t rows = band.q1 - band.q0, columns = band.k1 - band.k0;
    if (band.q1 > q.end || band.k1 > k.end) return "a slanted band spans several runs";
    if (rows > 1 && columns > 1 && q.stride != k.stride)
      return "a slanted band joins runs of different stride";
    // With chunks the edges are straight only inside one chunk.
    if (chunk_of(q.place(band.q0)) != chunk_of(q.place(band.q1 - 1)))
      return "a slanted band crosses a chunk boundary";
    const int64_t slice = slice_of(band);
    const int64_t turns[] = {0, rows - 1, -band.lo - 1, -band.lo, -band.lo + 1,
                             columns - band.hi - 2, columns - band.hi - 1, columns - band.hi,
                             // first and last row that see anything
                             -band.hi, columns - 1 - band.lo};
    std::array<int64_t, std::size(turns)> looked{};
    size_t count = 0;
    for (const int64_t turn : turns) {
      const int64_t row = band.q0 + std::clamp<int64_t>(turn, 0, rows - 1);
      // In short bands most of these rows are the same.
      if (std::find(looked.begin(), looked.begin() + count, row) != looked.begin() + count)
        continue;
      looked[count++] = row;
      const ColumnRange seen = columns_of_row(band, row);
      if (seen.begin >= seen.end) continue;
      for (const int64_t column : {seen.begin, seen.end - 1}) {
        if (auto text = cell_complaint(row, q.place(row), column, k.place(column), slice))
          return text;
      }
    }
    return std::nullopt;
  }

  int64_t chunk_of(const RowPlace& place) const {
    const int64_t chunk_size = plan_.scenario.attention.chunk_size;
    return chunk_size == 0 ? 0 : place.position / chunk_size;
  }

  /// The mask slice that holds the band's first cell: every other cell must lie in the same one. -1
  /// when the mask has no slices.
  int64_t slice_of(const BandSlice& band) const {
    if (plan_.scenario.attention.mask_type != MaskType::slices) return -1;
    int64_t row = band.q0;
    while (row + 1 < band.q1 && columns_of_row(band, row).begin >= columns_of_row(band, row).end)
      ++row;
    const RowPlace q = q_.place(row), k = kv_.place(columns_of_row(band, row).begin);
    return find_slice(plan_, slices_, q.sequence, q.position, k.position);
  }

  const Plan& plan_;
  const SliceRows& slices_;
  const RowReader& q_;
  const RowReader& kv_;
  std::atomic<int64_t>& looks_;
  uint64_t pairs_ = 0;
  int64_t own_looks_ = 0;                // not yet added
  int64_t least_to_add_ = 0;             // the first band asks what others have counted
  const RowSeries* q_series_ = nullptr;  // of the last band
};

/// Each (bands, q tokens, kv tokens) of both passes once: passes and ranks share them.
std::vector<Work> distinct_work(const Plan& plan) {
  std::vector<Work> works;
  for (const Direction direction : kDirections) {
    for (const ComputeItem& item : plan.pass(direction).computes) {
      if (item.num_slices > 0)
        works.push_back(
            {item.first_slice, item.num_slices, item.q_tokens, item.kv_tokens, direction, &item});
    }
  }
  const auto key = [](const Work& work) {
    return std::tuple(work.first_slice, work.num_slices, work.q_tokens, work.kv_tokens);
  };
  std::stable_sort(works.begin(), works.end(),
                   [&](const Work& a, const Work& b) { return key(a) < key(b); });
  works.erase(std::unique(works.begin(), works.end(),
                          [&](const Work& a, const Work& b) { return key(a) == key(b); }),
              works.end());
  return works;
}

/// The pairs of a range of slices, each counted once: passes and ranks share them.
struct PairCount {
  int64_t first_slice, num_slices;
  uint64_t pairs;
  std::pair<int64_t, int64_t> range() const { return {first_slice, num_slices}; }
};
using PairCounts = std::vector<PairCount>;  // by range

uint64_t pairs_of(const PairCounts& counts, const ComputeItem& item) {
  if (item.num_slices == 0) return 0;
  const std::pair range(item.first_slice, item.num_slices);
  const auto found = std::partition_point(
      counts.begin(), counts.end(), [&](const PairCount& count) { return count.range() < range; });
  return found->pairs * static_cast<uint64_t>(item.heads.size());
}

/// Checks that every band of every item lies inside the mask, and counts the pairs.
std::optional<std::string> check_bands(const Plan& plan, PairCounts& counts,
                                       std::optional<ItemId>& wrong) {
  const std::vector<Work> works = distinct_work(plan);
  const SliceRows slices(plan);
  const auto reader_of = [&](Side side) {
    return [&plan, side](RunListId list) { return std::make_unique<RowReader>(plan, list, side); };
  };
  ListCache<RowReader> q_readers(plan.run_lists.size(), reader_of(Side::q));
  ListCache<RowReader> kv_readers(plan.run_lists.size(), reader_of(Side::kv));
  for (const Work& work : works) {
    q_readers.add_use(work.q_tokens);
    kv_readers.add_use(work.kv_tokens);
  }
  q_readers.make_kept();
  kv_readers.make_kept();
  const int64_t blocks = std::min<int64_t>(static_cast<int64_t>(works.size()), 64);
  std::vector<std::string> complaints(static_cast<size_t>(blocks));
  std::vector<std::pair<Direction, const ComputeItem*>> refuted(static_cast<size_t>(blocks));
  std::vector<uint64_t> pairs(works.size(), 0);
  std::atomic<int64_t> looks{0};
  for_each_index(blocks, [&](int64_t block) {
    for (size_t w = static_cast<size_t>(block); w < works.size();
         w += static_cast<size_t>(blocks)) {
      const ComputeItem& item = *works[w].item;
      std::unique_ptr<RowReader> own_q, own_kv;
      BandJudge judge(plan, slices, q_readers.of(item.q_tokens, own_q),
                      kv_readers.of(item.kv_tokens, own_kv), looks);
      for (const BandSlice& band : plan.slices_of(item)) {
        if (auto text = judge.complaint(band)) {
          refuted[block] = {works[w].direction, &item};
          complaints[block] = where(works[w].direction, item) + where(band) + ": " + *text;
          return;
        }
      }
      pairs[w] = judge.pairs();
    }
  });
  for (size_t w = 0; w < works.size(); ++w)
    counts.push_back({works[w].first_slice, works[w].num_slices, pairs[w]});
  for (size_t block = 0; block < complaints.size(); ++block) {
    if (complaints[block].empty()) continue;
    const auto [direction, item] = refuted[block];
    wrong = ItemId{direction, StageKind::compute, item - plan.pass(direction).computes.data()};
    return complaints[block];
  }
  return std::nullopt;
}

std::optional<std::string> check_pair_counts(const Plan& plan, Direction direction,
                                             const PairCounts& counts,
                                             std::optional<ItemId>& wrong) {
  for (const ComputeItem& item : plan.pass(direction).computes) {
    const uint64_t pairs = pairs_of(counts, item);
    if (pairs != static_cast<uint64_t>(item.visible_pairs)) {
      wrong = ItemId{direction, StageKind::compute, &item - plan.pass(direction).computes.data()};
      return fmt::format("{}: counts {} pairs, its bands hold {}", where(direction, item),
                         item.visible_pairs, pairs);
    }
  }
  return std::nullopt;
}

}  // namespace

CheckResult check_coverage(const Plan& plan) {
  std::optional<ItemId> wrong;
  PairCounts counts;
  if (auto text = check_bands(plan, counts, wrong)) return broken("coverage", *text, wrong);
  // All pairs are inside the mask: now each must be there exactly once.
  const PairPrint print(plan);
  const uint64_t visible = print.of_mask();
  for (const Direction direction : kDirections) {
    if (direction == Direction::backward && !plan.scenario.numerics.backward) continue;
    if (auto text = check_pair_counts(plan, direction, counts, wrong))
      return broken("coverage", *text, wrong);
    if (print.of_items(direction) == visible) continue;
    return broken("coverage",
                  fmt::format("{}: {}", to_name(direction), print.first_difference(direction)));
  }
  // The items' own counts are proved, so the mask need not be walked again.
  uint64_t pairs = 0;
  for (const ComputeItem& item : plan.forward.computes)
    pairs += static_cast<uint64_t>(item.visible_pairs);
  return passed(
      "coverage",
      fmt::format("each of {} visible (query, key, head) triples is computed exactly once", pairs));
}

}  // namespace cpscope
