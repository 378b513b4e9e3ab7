#include "sim/scenario/slice_overlap.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace cpscope {
namespace {

// Rectangles may overlap without sharing a cell (two parallel bands). After this many such pairs, a
// few seconds of work, the search stops, so that a file cannot hang the program.
constexpr int64_t kMaxPairChecks = 200'000'000;

/// Visible cells of a rectangle are those with lo <= k - q <= hi, in ids of the whole batch.
struct Diagonals {
  int64_t lo = std::numeric_limits<int64_t>::min();
  int64_t hi = std::numeric_limits<int64_t>::max();
};

Diagonals find_diagonals(const MaskSlice& slice) {
  Diagonals diagonals;
  // inv_causal starts at the rectangle's top-left corner, causal ends at its bottom-right one.
  const bool has_lo = slice.type == SliceType::inv_causal || slice.type == SliceType::bi_causal;
  const bool has_hi = slice.type == SliceType::causal || slice.type == SliceType::bi_causal;
  if (has_lo) diagonals.lo = slice.k0 - slice.q0;
  if (has_hi) diagonals.hi = slice.k1 - slice.q1;
  return diagonals;
}

/// Segment tree: largest k1 of the open slices over the slices sorted by k0; finds all that
/// intersect [k0, k1).
class ColumnTree {
 public:
  explicit ColumnTree(size_t leaves) {
    while (width_ < leaves) width_ *= 2;
    ends_.assign(2 * width_, -1);
  }

  void set(size_t leaf, int64_t end) {
    size_t node = width_ + leaf;
    ends_[node] = end;
    for (node /= 2; node >= 1; node /= 2) {
      ends_[node] = std::max(ends_[2 * node], ends_[2 * node + 1]);
    }
  }

  /// Calls visit(leaf) for every leaf < `leaf_end` whose end is above `begin`, until visit returns
  /// false.
  template <class Visit>
  bool visit_open(size_t leaf_end, int64_t begin, const Visit& visit) const {
    return visit_node(1, 0, width_, leaf_end, begin, visit);
  }

 private:
  template <class Visit>
  bool visit_node(size_t node, size_t first, size_t size, size_t leaf_end, int64_t begin,
                  const Visit& visit) const {
    if (first >= leaf_end || ends_[node] <= begin) return true;
    if (size == 1) return visit(first);
    const size_t half = size / 2;
    return visit_node(2 * node, first, half, leaf_end, begin, visit) &&
           visit_node(2 * node + 1, first + half, half, leaf_end, begin, visit);
  }

  size_t width_ = 1;
  std::vector<int64_t> ends_;
};

bool is_empty(const MaskSlice& slice) { return slice.q0 >= slice.q1 || slice.k0 >= slice.k1; }

/// Indices of the non-empty slices, sorted by `key`.
template <class Key>
std::vector<size_t> sort_slices(std::span<const MaskSlice> slices, const Key& key) {
  std::vector<size_t> order;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!is_empty(slices[i])) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(key(slices[a]), a) < std::tuple(key(slices[b]), b);
  });
  return order;
}

}  // namespace

std::optional<SliceOverlap> find_shared_cell(const MaskSlice& a, const MaskSlice& b) {
  const int64_t q0 = std::max(a.q0, b.q0), q1 = std::min(a.q1, b.q1);
  const int64_t k0 = std::max(a.k0, b.k0), k1 = std::min(a.k1, b.k1);
  if (q0 >= q1 || k0 >= k1) return std::nullopt;
  // Every diagonal between two corners of a rectangle has a cell in it, so comparing bounds is
  // exact.
  const Diagonals da = find_diagonals(a), db = find_diagonals(b);
  const int64_t lo = std::max({da.lo, db.lo, k0 - (q1 - 1)});
  const int64_t hi = std::min({da.hi, db.hi, (k1 - 1) - q0});
  if (lo > hi) return std::nullopt;
  const int64_t q = std::max(q0, k0 - lo);
  return SliceOverlap{0, 0, q, q + lo};
}

SliceOverlapReport find_slice_overlaps(std::span<const MaskSlice> slices, size_t max_reported) {
  SliceOverlapReport report;
  const std::vector<size_t> by_k0 =
      sort_slices(slices, [](const MaskSlice& slice) { return slice.k0; });
  const std::vector<size_t> by_q0 =
      sort_slices(slices, [](const MaskSlice& slice) { return slice.q0; });
  const std::vector<size_t> by_q1 =
      sort_slices(slices, [](const MaskSlice& slice) { return slice.q1; });
  std::vector<size_t> leaf_of(slices.size(), 0);
  for (size_t leaf = 0; leaf < by_k0.size(); ++leaf) leaf_of[by_k0[leaf]] = leaf;

  ColumnTree tree(by_k0.size());
  size_t closed = 0;
  int64_t checks = 0;
  for (const size_t index : by_q0) {
    const MaskSlice& slice = slices[index];
    // Slices that ended above this slice's first row cannot intersect it or any later one.
    for (; closed < by_q1.size() && slices[by_q1[closed]].q1 <= slice.q0; ++closed) {
      tree.set(leaf_of[by_q1[closed]], -1);
    }
    const auto first_right = std::partition_point(
        by_k0.begin(), by_k0.end(), [&](size_t other) { return slices[other].k0 < slice.k1; });
    const auto leaf_end = static_cast<size_t>(first_right - by_k0.begin());
    const bool goes_on = tree.visit_open(leaf_end, slice.k0, [&](size_t leaf) {
      const size_t other = by_k0[leaf];
      if (auto cell = find_shared_cell(slice, slices[other])) {
        cell->first = static_cast<int64_t>(std::min(index, other));
        cell->second = static_cast<int64_t>(std::max(index, other));
        report.overlaps.push_back(*cell);
      }
      report.is_complete = ++checks < kMaxPairChecks;
      return report.is_complete && report.overlaps.size() < max_reported;
    });
    if (!goes_on) break;
    tree.set(leaf_of[index], slice.k1);
  }
  std::sort(report.overlaps.begin(), report.overlaps.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.second, a.first) < std::tuple(b.second, b.first);
  });
  return report;
}

}  // namespace cpscope
