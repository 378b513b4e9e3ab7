#include "sim/base/parallel.h"
#include "sim/plan/check/check_rows.h"
#include "sim/plan/check/pair_print.h"
#include "sim/plan/visible_interval.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
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

using Readers = std::map<std::pair<RunListId, Side>, std::unique_ptr<RowReader>>;

const RowReader& reader_of(Readers& readers, const Plan& plan, RunListId list, Side side) {
  auto& entry = readers[{list, side}];
  if (!entry) entry = std::make_unique<RowReader>(plan, list, side);
  return *entry;
}

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
  /// `looks` counts, over all bands, what a plan of nothing but tiny stretches would make too many.
  BandJudge(const Plan& plan, const SliceRows& slices, const RowReader& q, const RowReader& kv,
            std::atomic<int64_t>& looks)
      : plan_(plan), slices_(slices), q_(q), kv_(kv), looks_(looks) {}

  std::optional<std::string> complaint(const BandSlice& band) {
    if (band.q0 >= band.q1 || band.k0 >= band.k1 || count_pairs(band) == 0)
      return "the band is empty";
    if (band.q0 < 0 || band.q1 > q_.rows() || band.k0 < 0 || band.k1 > kv_.rows())
      return fmt::format("it leaves the {} query and {} key rows", q_.rows(), kv_.rows());
    const auto [q_from, q_to] = q_.stretches(band.q0, band.q1);
    const auto [k_from, k_to] = kv_.stretches(band.k0, band.k1);
    const int64_t meetings = (q_to - q_from) * (k_to - k_from);
    if (meetings > kMostLooks || looks_.fetch_add(meetings) > kMostLooks)
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
                         : partial_complaint(band);
  }

 private:
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

  std::optional<std::string> partial_complaint(const BandSlice& band) const {
    const int64_t rows = band.q1 - band.q0, columns = band.k1 - band.k0;
    const RowSeries &q = q_.series(band.q0), &k = kv_.series(band.k0);
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

/// Checks that every band of every item lies inside the mask.
std::optional<std::string> check_bands(const Plan& plan, std::optional<ItemId>& wrong) {
  const std::vector<Work> works = distinct_work(plan);
  const SliceRows slices(plan);
  Readers readers;
  for (const Work& work : works) {
    reader_of(readers, plan, work.q_tokens, Side::q);
    reader_of(readers, plan, work.kv_tokens, Side::kv);
  }
  const int64_t blocks = std::min<int64_t>(static_cast<int64_t>(works.size()), 64);
  std::vector<std::string> complaints(static_cast<size_t>(blocks));
  std::vector<std::pair<Direction, const ComputeItem*>> refuted(static_cast<size_t>(blocks));
  std::atomic<int64_t> looks{0};
  for_each_index(blocks, [&](int64_t block) {
    for (size_t w = static_cast<size_t>(block); w < works.size();
         w += static_cast<size_t>(blocks)) {
      const ComputeItem& item = *works[w].item;
      BandJudge judge(plan, slices, *readers.at({item.q_tokens, Side::q}),
                      *readers.at({item.kv_tokens, Side::kv}), looks);
      for (const BandSlice& band : plan.slices_of(item)) {
        if (auto text = judge.complaint(band)) {
          refuted[block] = {works[w].direction, &item};
          complaints[block] = where(works[w].direction, item) + where(band) + ": " + *text;
          return;
        }
      }
    }
  });
  for (size_t block = 0; block < complaints.size(); ++block) {
    if (complaints[block].empty()) continue;
    const auto [direction, item] = refuted[block];
    wrong = ItemId{direction, StageKind::compute, item - plan.pass(direction).computes.data()};
    return complaints[block];
  }
  return std::nullopt;
}

/// Pairs of ranges of slices, each counted once: passes and ranks share them.
using PairCounts = std::map<std::pair<int64_t, int64_t>, uint64_t>;

std::optional<std::string> check_pair_counts(const Plan& plan, Direction direction,
                                             PairCounts& counts, std::optional<ItemId>& wrong) {
  for (const ComputeItem& item : plan.pass(direction).computes) {
    const auto [known, is_new] = counts.try_emplace({item.first_slice, item.num_slices}, 0);
    if (is_new) {
      // Bands that share cells may hold more pairs than a number can count.
      for (const BandSlice& band : plan.slices_of(item))
        known->second += static_cast<uint64_t>(count_pairs(band));
    }
    const uint64_t pairs = known->second * static_cast<uint64_t>(item.heads.size());
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
  if (auto text = check_bands(plan, wrong)) return broken("coverage", *text, wrong);
  // All pairs are inside the mask: now each must be there exactly once.
  const PairPrint print(plan);
  const uint64_t visible = print.of_mask();
  PairCounts counts;
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
