#include "sim/base/parallel.h"
#include "sim/plan/check/check_rows.h"
#include "sim/plan/visible_interval.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Distinct (slices, q tokens, kv tokens) of the forward pass: each is proved once.
struct Work {
  int64_t first_slice, num_slices;
  RunListId q_tokens, kv_tokens;
  size_t item;  // the first compute item that does it
};

using Readers = std::map<std::pair<RunListId, Side>, std::unique_ptr<RowReader>>;

const RowReader& reader_of(Readers& readers, const Plan& plan, RunListId list, Side side) {
  auto& entry = readers[{list, side}];
  if (!entry) entry = std::make_unique<RowReader>(plan, list, side);
  return *entry;
}

std::string where(const ComputeItem& item, const BandSlice& band) {
  return fmt::format("rank {}, step {}, band q[{}, {}) k[{}, {}) lo {} hi {}", to_index(item.rank),
                     to_index(item.step), band.q0, band.q1, band.k0, band.k1, band.lo, band.hi);
}

/// Proves that every cell of one band is visible. The cells of a row are an interval, so its two
/// ends decide. Along the rows all edges are straight between the rows checked, so these rows
/// decide.
class BandJudge {
 public:
  BandJudge(const Plan& plan, const SliceRows& slices, const RowReader& q, const RowReader& kv)
      : plan_(plan), slices_(slices), q_(q), kv_(kv) {}

  std::optional<std::string> complaint(const BandSlice& band) const {
    if (band.q0 >= band.q1 || band.k0 >= band.k1 || count_pairs(band) == 0)
      return "the band is empty";
    if (band.q0 < 0 || band.q1 > q_.rows() || band.k0 < 0 || band.k1 > kv_.rows())
      return fmt::format("it leaves the {} query and {} key rows", q_.rows(), kv_.rows());
    const auto [q_from, q_to] = q_.stretches(band.q0, band.q1);
    const auto [k_from, k_to] = kv_.stretches(band.k0, band.k1);
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
    const RowPlace q = q_.place(row), k = kv_.place(column);
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
    const int64_t q_stride = rows == 1 ? 0 : q_.common_stride(band.q0, band.q1);
    const int64_t k_stride = columns == 1 ? 0 : kv_.common_stride(band.k0, band.k1);
    if ((rows > 1 && q_stride == 0) || (columns > 1 && k_stride == 0))
      return "a slanted band spans several runs";
    if (rows > 1 && columns > 1 && q_stride != k_stride)
      return "a slanted band joins runs of different stride";
    // With chunks the edges are straight only inside one chunk.
    if (chunk_of(q_.place(band.q0)) != chunk_of(q_.place(band.q1 - 1)))
      return "a slanted band crosses a chunk boundary";
    const int64_t slice = slice_of(band);
    const int64_t turns[] = {0, rows - 1, -band.lo - 1, -band.lo, -band.lo + 1,
                             columns - band.hi - 2, columns - band.hi - 1, columns - band.hi,
                             // first and last row that see anything
                             -band.hi, columns - 1 - band.lo};
    for (const int64_t turn : turns) {
      const int64_t row = band.q0 + std::clamp<int64_t>(turn, 0, rows - 1);
      const ColumnRange seen = columns_of_row(band, row);
      if (seen.begin >= seen.end) continue;
      if (auto text = cell_complaint(row, seen.begin, slice)) return text;
      if (auto text = cell_complaint(row, seen.end - 1, slice)) return text;
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
};

bool share_a_cell(const BandSlice& a, const BandSlice& b) {
  const int64_t q0 = std::max(a.q0, b.q0), q1 = std::min(a.q1, b.q1), k0 = std::max(a.k0, b.k0),
                k1 = std::min(a.k1, b.k1);
  if (q0 >= q1 || k0 >= k1) return false;
  const auto diagonal = [&](const BandSlice& band, int64_t limit) {
    return limit - ((k0 - band.k0) - (q0 - band.q0));
  };
  const Band common{q0,
                    q1,
                    k0,
                    k1,
                    std::max(diagonal(a, a.lo), diagonal(b, b.lo)),
                    std::min(diagonal(a, a.hi), diagonal(b, b.hi))};
  return count_pairs(common) > 0;
}

/// First pair of bands that share a cell. Bands whose columns do not overlap are separated without
/// comparing each pair.
std::optional<std::pair<size_t, size_t>> first_overlap(std::span<const BandSlice> bands) {
  if (bands.size() <= 6) {
    for (size_t i = 0; i < bands.size(); ++i) {
      for (size_t j = i + 1; j < bands.size(); ++j) {
        if (share_a_cell(bands[i], bands[j])) return std::pair{i, j};
      }
    }
    return std::nullopt;
  }
  std::vector<size_t> order(bands.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return bands[a].q0 < bands[b].q0; });
  std::set<std::pair<int32_t, size_t>> apart;     // by k0; columns pairwise disjoint
  std::set<std::pair<int32_t, size_t>> expiring;  // by q1
  std::vector<size_t> crowded;
  for (const size_t i : order) {
    while (!expiring.empty() && expiring.begin()->first <= bands[i].q0) {
      apart.erase({bands[expiring.begin()->second].k0, expiring.begin()->second});
      expiring.erase(expiring.begin());
    }
    std::erase_if(crowded, [&](size_t j) { return bands[j].q1 <= bands[i].q0; });
    for (const size_t j : crowded) {
      if (share_a_cell(bands[i], bands[j])) return std::pair{j, i};
    }
    bool touches = false;
    auto it = apart.lower_bound({bands[i].k0, 0});
    if (it != apart.begin() && bands[std::prev(it)->second].k1 > bands[i].k0) --it;
    for (; it != apart.end() && it->first < bands[i].k1; ++it) {
      touches = true;
      if (share_a_cell(bands[i], bands[it->second])) return std::pair{it->second, i};
    }
    if (touches) {
      crowded.push_back(i);
    } else {
      apart.insert({bands[i].k0, i});
      expiring.insert({bands[i].q1, i});
    }
  }
  return std::nullopt;
}

std::vector<Work> distinct_work(const Plan& plan) {
  std::set<std::tuple<int64_t, int64_t, int32_t, int32_t>> seen;
  std::vector<Work> works;
  const bool may_repeat = plan.scenario.parallel.comm_type == CommType::a2a ||
                          plan.scenario.parallel.comm_type == CommType::a2a_p2p;
  for (size_t i = 0; i < plan.forward.computes.size(); ++i) {
    const ComputeItem& item = plan.forward.computes[i];
    if (item.num_slices == 0) continue;
    const auto key = std::tuple(item.first_slice, item.num_slices, to_index(item.q_tokens),
                                to_index(item.kv_tokens));
    if (may_repeat && !seen.insert(key).second) continue;
    works.push_back({item.first_slice, item.num_slices, item.q_tokens, item.kv_tokens, i});
  }
  return works;
}

/// Checks that every band of every item lies inside the mask, that no two bands of one item
/// overlap, and that the item's pair count is right.
std::optional<std::string> check_bands(const Plan& plan) {
  const std::vector<Work> works = distinct_work(plan);
  const SliceRows slices(plan);
  Readers readers;
  for (const Work& work : works) {
    reader_of(readers, plan, work.q_tokens, Side::q);
    reader_of(readers, plan, work.kv_tokens, Side::kv);
  }
  const int64_t blocks = std::min<int64_t>(static_cast<int64_t>(works.size()), 64);
  std::vector<std::string> complaints(static_cast<size_t>(blocks));
  for_each_index(blocks, [&](int64_t block) {
    for (size_t w = static_cast<size_t>(block); w < works.size() && complaints[block].empty();
         w += static_cast<size_t>(blocks)) {
      const ComputeItem& item = plan.forward.computes[works[w].item];
      const auto bands = plan.slices_of(item);
      const BandJudge judge(plan, slices, *readers.at({item.q_tokens, Side::q}),
                            *readers.at({item.kv_tokens, Side::kv}));
      int64_t pairs = 0;
      for (const BandSlice& band : bands) {
        pairs += count_pairs(band);
        if (auto text = judge.complaint(band)) {
          complaints[block] = where(item, band) + ": " + *text;
          return;
        }
      }
      if (const auto overlap = first_overlap(bands)) {
        complaints[block] =
            where(item, bands[overlap->first]) + " overlaps " + where(item, bands[overlap->second]);
      } else if (pairs * item.heads.size() != item.visible_pairs) {
        complaints[block] =
            fmt::format("rank {}, step {}: counts {} pairs, its bands hold {}", to_index(item.rank),
                        to_index(item.step), item.visible_pairs, pairs * item.heads.size());
      }
    }
  });
  for (const std::string& text : complaints) {
    if (!text.empty()) return text;
  }
  return std::nullopt;
}

/// Checks the pair counts of items that were not checked one by one, because they repeat another
/// item's work or idle.
std::optional<std::string> check_pair_counts(const Plan& plan) {
  const CommType comm = plan.scenario.parallel.comm_type;
  const bool may_repeat = comm == CommType::a2a || comm == CommType::a2a_p2p;
  for (const ComputeItem& item : plan.forward.computes) {
    if (!may_repeat && item.num_slices > 0) continue;
    int64_t pairs = 0;
    for (const BandSlice& band : plan.slices_of(item)) pairs += count_pairs(band);
    if (pairs * item.heads.size() != item.visible_pairs) {
      return fmt::format("rank {}, step {}: counts {} pairs, its bands hold {}",
                         to_index(item.rank), to_index(item.step), item.visible_pairs,
                         pairs * item.heads.size());
    }
  }
  return std::nullopt;
}

using WorkKey = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, int64_t, int64_t, int64_t>;

WorkKey work_key(const ComputeItem& item) {
  return {to_index(item.rank), to_index(item.q_tokens), to_index(item.kv_tokens),
          item.heads.begin,    item.heads.end,          item.first_slice,
          item.num_slices,     item.visible_pairs};
}

/// A hash of one item's work; the sum of the hashes does not depend on the order of the items.
uint64_t work_print(const ComputeItem& item) {
  uint64_t print = 0;
  const auto mix = [&](auto... words) {
    ((print = (print ^ static_cast<uint64_t>(words)) * 0x9E3779B97F4A7C15ULL, print ^= print >> 29),
     ...);
  };
  std::apply(mix, work_key(item));
  return print;
}

/// Checks that the backward computes exactly the same work as the forward, on the same ranks: then
/// what is proved of the forward also holds for the backward.
std::optional<std::string> check_backward_work(const Plan& plan) {
  if (!plan.scenario.numerics.backward) return std::nullopt;
  uint64_t difference = 0;
  for (const ComputeItem& item : plan.forward.computes)
    difference += item.num_slices > 0 ? work_print(item) : 0;
  for (const ComputeItem& item : plan.backward.computes)
    difference -= item.num_slices > 0 ? work_print(item) : 0;
  if (difference == 0) return std::nullopt;
  std::map<WorkKey, int64_t> open;
  for (const ComputeItem& item : plan.forward.computes) ++open[work_key(item)];
  for (const ComputeItem& item : plan.backward.computes) {
    if (item.num_slices > 0 && --open[work_key(item)] < 0) {
      return fmt::format("backward, rank {}, step {}: {} pairs of bands that the forward lacks",
                         to_index(item.rank), to_index(item.step), item.visible_pairs);
    }
  }
  for (const ComputeItem& item : plan.forward.computes) {
    if (item.num_slices > 0 && open[work_key(item)] > 0) {
      return fmt::format("backward: {} pairs of rank {}, forward step {}, are missing",
                         item.visible_pairs, to_index(item.rank), to_index(item.step));
    }
  }
  return "the backward does not repeat the forward's work";
}

/// Checks that no (query, key, head) is computed twice by different items: the queries of one head
/// are on one rank, and the KV blocks that a rank computes with share no key.
std::optional<std::string> check_no_pair_twice(const Plan& plan) {
  // The ownership check has shown that lists of different ranks are disjoint, so comparing list ids
  // is enough for them.
  std::map<std::pair<int32_t, int32_t>, std::vector<size_t>> by_rank_and_head;
  std::map<std::pair<int32_t, int32_t>, std::map<int32_t, std::set<int32_t>>>
      queries;  // head range -> rank -> q lists
  for (size_t i = 0; i < plan.forward.computes.size(); ++i) {
    const ComputeItem& item = plan.forward.computes[i];
    if (item.num_slices == 0) continue;
    by_rank_and_head[{to_index(item.rank), item.heads.begin}].push_back(i);
    queries[{item.heads.begin, item.heads.end}][to_index(item.rank)].insert(
        to_index(item.q_tokens));
  }
  int32_t covered = 0;
  for (const auto& [heads, ranks] : queries) {
    if (heads.first < covered) return fmt::format("head ranges overlap at head {}", heads.first);
    covered = heads.second;
    if (ranks.size() == 1 && ranks.begin()->second.size() == 1) continue;
    std::vector<TokenRun> runs;
    for (const auto& [rank, lists] : ranks) {
      for (const int32_t list : lists) {
        const auto part = plan.list(RunListId{list});
        runs.insert(runs.end(), part.begin(), part.end());
      }
    }
    if (const int64_t token = first_shared(std::move(runs)); token >= 0) {
      return fmt::format("query token {} of head {} is computed on two ranks", token, heads.first);
    }
  }
  std::set<int32_t> owned;
  for (const RunListId list : plan.kv_lists) owned.insert(to_index(list));
  for (const auto& [key, items] : by_rank_and_head) {
    std::vector<int32_t> lists;
    for (const size_t i : items) lists.push_back(to_index(plan.forward.computes[i].kv_tokens));
    std::sort(lists.begin(), lists.end());
    if (const auto twice = std::adjacent_find(lists.begin(), lists.end()); twice != lists.end()) {
      return fmt::format("rank {} computes with the KV of list {} twice", key.first, *twice);
    }
    const bool all_owned =
        std::all_of(lists.begin(), lists.end(), [&](int32_t list) { return owned.contains(list); });
    if (lists.size() == 1 || all_owned) continue;
    std::vector<TokenRun> runs;
    for (const int32_t list : lists) {
      const auto part = plan.list(RunListId{list});
      runs.insert(runs.end(), part.begin(), part.end());
    }
    if (const int64_t token = first_shared(std::move(runs)); token >= 0) {
      return fmt::format("rank {} computes with key token {} twice", key.first, token);
    }
  }
  return std::nullopt;
}

/// The first query whose number of computed pairs differs from what the mask says, for the message.
/// Only called when the sums differ.
std::string first_miscounted(const Plan& plan) {
  const int64_t tokens = plan.layout.slots.tokens;
  if (tokens > (int64_t{1} << 24)) return "the batch is too long to name the first query";
  std::vector<int64_t> seen(static_cast<size_t>(tokens), 0);
  Readers readers;
  for (const ComputeItem& item : plan.forward.computes) {
    const RowReader& q = reader_of(readers, plan, item.q_tokens, Side::q);
    for (const BandSlice& band : plan.slices_of(item)) {
      for (int64_t row = band.q0; row < band.q1; ++row) {
        const ColumnRange columns = columns_of_row(band, row);
        seen[q.place(row).token] +=
            std::max<int64_t>(0, columns.end - columns.begin) * item.heads.size();
      }
    }
  }
  const SliceRows slices(plan);
  for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
    const SequenceSlot& slot = plan.layout.slots.sequences[s];
    for (int64_t i = 0; i < slot.q_valid; ++i) {
      const int64_t expected =
          count_visible(plan, slices, static_cast<int64_t>(s), i) * plan.scenario.attention.heads;
      const int64_t token = slot.q_valid_begin() + i;
      if (seen[token] != expected) {
        return fmt::format(
            "query token {} (sequence {}, position {}): {} pairs expected, {} planned", token, s, i,
            expected, seen[token]);
      }
    }
  }
  return "no single query differs";
}

}  // namespace

CheckResult check_coverage(const Plan& plan) {
  if (auto text = check_bands(plan)) return broken("coverage", *text);
  if (auto text = check_pair_counts(plan)) return broken("coverage", *text);
  if (auto text = check_no_pair_twice(plan)) return broken("coverage", *text);
  int64_t planned = 0;
  for (const ComputeItem& item : plan.forward.computes) planned += item.visible_pairs;
  const int64_t expected = count_all_visible(plan) * plan.scenario.attention.heads;
  if (planned != expected) {
    return broken("coverage", fmt::format("{} pairs are visible, {} are planned; first: {}",
                                          expected, planned, first_miscounted(plan)));
  }
  if (auto text = check_backward_work(plan)) return broken("coverage", *text);
  // All pairs are inside the mask, none is computed twice, and the number is right: each exactly
  // once.
  return passed(
      "coverage",
      fmt::format("each of {} visible (query, key, head) triples is computed exactly once",
                  expected));
}

}  // namespace cpscope
