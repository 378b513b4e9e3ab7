#include "sim/plan/layout_lpt_local.h"

#include "sim/base/check.h"
#include "sim/plan/key_holder.h"
#include "sim/plan/layout_lpt.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <tuple>
#include <utility>

namespace cpscope {
namespace {

using Held = std::vector<std::vector<int64_t>>;
using Words = std::vector<uint64_t>;

/// Number of words that one search may read before it stops with the best result so far: a fraction
/// of a second, and the same result on every machine.
struct WorkBound {
  int64_t most = int64_t{1} << 25;
  int64_t little = int64_t{1} << 21;  // below this, more than kStarts starts are improved
};
/// Number of chunks of nearly equal area that a chunk is tried against.
constexpr int64_t kNeighbours = 64;
/// Number of chunks on either side of the right area that may take load off a rank: the first while
/// much of the work is left, then the second.
constexpr int64_t kWideRepairs = 1024, kNarrowRepairs = 128;
constexpr int kMaxPasses = 8;
/// Number of start assignments that are improved, those with the fewest foreign chunks first.
constexpr int kStarts = 3;

constexpr int64_t kNoLimit = INT64_MAX / 2;

int64_t load_of(const std::vector<int64_t>& areas, const std::vector<int64_t>& chunks) {
  int64_t load = 0;
  for (const int64_t chunk : chunks) load += areas[chunk];
  return load;
}

/// 2 % more than the load of the fullest rank of this assignment.
int64_t load_bound(const std::vector<int64_t>& areas, const Held& held) {
  int64_t fullest = 0;
  for (const std::vector<int64_t>& chunks : held)
    fullest = std::max(fullest, load_of(areas, chunks));
  return fullest + fullest / 50;
}

/// [rank] Keys that a rank holds whatever chunks it gets: none under self attention.
std::vector<Words> held_anyway(const ChunkReach& reach, int64_t ranks, bool same_kv) {
  std::vector<Words> held(static_cast<size_t>(ranks), Words(static_cast<size_t>(reach.words), 0));
  for (int64_t key = 0; !same_kv && key < reach.key_chunks; ++key)
    set_bit(held[key * ranks / reach.key_chunks][key / 64], key);
  return held;
}

/// Allocates rows in which no chunk sees a key yet.
void make_rows(ChunkReach& reach) {
  reach.words = (std::max(reach.chunks, reach.key_chunks) + 63) / 64;
  reach.bits.assign(static_cast<size_t>(reach.chunks * reach.words), 0);
  reach.spans.resize(static_cast<size_t>(reach.chunks));
}

/// Chunk `id` sees key chunks [begin, end), begin < end.
void add_keys(ChunkReach& reach, int64_t id, int64_t begin, int64_t end) {
  ChunkReach::Span& span = reach.spans[id];
  span = span.begin == span.end ? ChunkReach::Span{begin / 64, (end + 63) / 64}
                                : ChunkReach::Span{std::min(span.begin, begin / 64),
                                                   std::max(span.end, (end + 63) / 64)};
  for (int64_t w = begin / 64; w * 64 < end; ++w) {
    const int64_t from = std::max(begin - w * 64, int64_t{0}),
                  to = std::min(end - w * 64, int64_t{64});
    reach.bits[id * reach.words + w] |= (~uint64_t{0} >> (64 - (to - from))) << from;
  }
}

/// The reach of every `factor` neighbouring chunks joined into one, with key chunks joined in the
/// same way.
ChunkReach join_reach(const ChunkReach& fine, int64_t factor) {
  ChunkReach reach;
  reach.chunks = (fine.chunks + factor - 1) / factor;
  reach.key_chunks = (fine.key_chunks + factor - 1) / factor;
  make_rows(reach);
  for (int64_t chunk = 0; chunk < fine.chunks; ++chunk) {
    const auto [begin, end] = fine.spans[chunk];
    for (int64_t w = begin; w < end; ++w) {
      // Runs of ones: most words are full or hold one run.
      for (uint64_t left = fine.row(chunk)[w]; left != 0;) {
        const int64_t from = std::countr_zero(left), to = from + std::countr_one(left >> from);
        add_keys(reach, chunk / factor, (w * 64 + from) / factor, (w * 64 + to - 1) / factor + 1);
        left = to == 64 ? 0 : left >> to << to;
      }
    }
  }
  return reach;
}

/// Joins the chunks of every `share` consecutive ranks.
Held join_ranks(const Held& held, int32_t share) {
  Held joined(held.size() / static_cast<size_t>(share));
  for (size_t rank = 0; rank < held.size(); ++rank) {
    std::vector<int64_t>& chunks = joined[rank / static_cast<size_t>(share)];
    chunks.insert(chunks.end(), held[rank].begin(), held[rank].end());
  }
  return joined;
}

/// Assigns chunks to holders: ranks, or groups of `share` ranks that hold chunks together.
class NearAssigner {
 public:
  NearAssigner(const std::vector<int64_t>& areas, const ChunkReach& reach, int32_t ranks,
               int32_t share, bool same_kv, const WorkBound& work_bound)
      : areas_(areas),
        reach_(reach),
        holders_(ranks / share),
        share_(share),
        same_kv_(same_kv),
        work_bound_(work_bound),
        capacity_((reach.chunks + ranks - 1) / ranks * share),
        lpt_(join_ranks(assign_longest_first(areas, ranks), share)),
        bound_(load_bound(areas, lpt_)),
        order_(order_by_area(areas)),
        anyway_(held_anyway(reach, holders_, same_kv)) {}

  Held assign() {
    Held best = lpt_;
    int64_t fewest = count_foreign_chunks(reach_, best, same_kv_);
    // Start assignments are cheap compared with exchanges, so all are made before any is improved,
    // the best first.
    std::vector<Start> starts{{fewest, best}};
    for (const double slack : {2.0, 1.0, 0.5, 0.25}) {
      if (fewest == 0) break;
      if (auto start = assign_largest_first(slack)) starts.push_back(std::move(*start));
    }
    if (fewest > 0) {
      if (auto start = assign_joined()) starts.push_back(std::move(*start));
    }
    std::stable_sort(starts.begin(), starts.end(), [](const Start& one, const Start& other) {
      return one.foreign < other.foreign;
    });
    work_ = 0;
    int improved = 0;
    for (const Start& start : starts) {
      const int64_t most_work = improved < kStarts ? work_bound_.most : work_bound_.little;
      if (fewest == 0 || work_ >= most_work) break;
      if (consider(start.held, fewest, best)) ++improved;
    }
    for (std::vector<int64_t>& chunks : best) std::sort(chunks.begin(), chunks.end());
    return best;
  }

 private:
  struct Start {
    int64_t foreign = 0;
    Held held;
  };
  struct Choice {
    int64_t more = 0;   // foreign chunks
    double filled = 0;  // load once the rank is filled with average chunks
    int32_t rank = -1;
    bool operator<(const Choice& other) const {
      return std::tie(more, filled, rank) < std::tie(other.more, other.filled, other.rank);
    }
  };

  std::vector<KeyHolder> empty_ranks() const {
    std::vector<KeyHolder> ranks;
    for (const Words& keys : anyway_) ranks.emplace_back(reach_, keys, same_kv_);
    return ranks;
  }

  int64_t width(int64_t chunk) const { return reach_.spans[chunk].end - reach_.spans[chunk].begin; }

  /// Assigns each chunk to the rank whose foreign keys grow least. Candidates are ranks whose load,
  /// filled up with chunks of the average area that is left, stays within the bound plus `slack`
  /// times the range of the areas that are left. Nothing if that is too much work.
  std::optional<Start> assign_largest_first(double slack) {
    const int64_t n = reach_.chunks;
    // Each chunk is tried on each holder at least twice.
    if (work_ + 2 * n * holders_ > 2 * work_bound_.most) return std::nullopt;
    std::vector<KeyHolder> held = empty_ranks();
    std::vector<int64_t> loads(held.size(), 0);
    int64_t left = load_of(areas_, order_);
    int64_t missing = int64_t{holders_} * share_;  // at least one chunk for every rank
    for (int64_t num_assigned = 0; num_assigned < n; ++num_assigned) {
      if (work_ > 2 * work_bound_.most) return std::nullopt;
      work_ += holders_;
      const int64_t chunk = order_[num_assigned];
      const bool only_missing = n - num_assigned == missing;
      left -= areas_[chunk];
      const double mean =
          num_assigned + 1 < n ? static_cast<double>(left) / (n - num_assigned - 1) : 0.0;
      const double limit = static_cast<double>(bound_) +
                           slack * static_cast<double>(areas_[chunk] - areas_[order_.back()]);
      std::optional<Choice> best, emptiest;
      for (int32_t rank = 0; rank < holders_; ++rank) {
        const auto count = static_cast<int64_t>(held[rank].chunks().size());
        if (count == capacity_ || (only_missing && count >= share_)) continue;
        Choice choice{0, loads[rank] + areas_[chunk] + (capacity_ - count - 1) * mean, rank};
        if (!emptiest || choice < *emptiest) emptiest = choice;
        if (choice.filled > limit) continue;
        choice.more = held[rank].count_added(chunk, best ? best->more : kNoLimit);
        work_ += 1 + width(chunk);
        if (!best || choice < *best) best = choice;
      }
      const int32_t rank = (best ? *best : *emptiest).rank;
      if (static_cast<int64_t>(held[rank].chunks().size()) < share_) --missing;
      held[rank].add(chunk);
      loads[rank] += areas_[chunk];
    }
    Start start;
    for (const KeyHolder& rank : held) {
      start.foreign += rank.foreign();
      start.held.push_back(rank.chunks());
    }
    return start;
  }

  /// Assigns joined neighbouring chunks: neighbours stay together, and the search is shorter.
  /// Nothing if joined chunks cannot be spread evenly over the holders.
  std::optional<Start> assign_joined() {
    const int64_t n = reach_.chunks;
    for (const int64_t factor : {2, 3, 5, 7}) {
      const int64_t joined = (n + factor - 1) / factor;
      const bool is_even = n % (factor * holders_) == 0;
      const bool fits = (joined + holders_ - 1) / holders_ * factor <= capacity_;
      if (joined < 2 * holders_ || !(is_even || (share_ == 1 && fits))) continue;
      std::vector<int64_t> areas(static_cast<size_t>(joined));
      for (int64_t chunk = 0; chunk < n; ++chunk) areas[chunk / factor] += areas_[chunk];
      const ChunkReach reach = join_reach(reach_, factor);
      Held held =
          NearAssigner(areas, reach, holders_, 1, same_kv_, {work_bound_.most / 2, 0}).assign();
      for (std::vector<int64_t>& chunks : held) {
        std::vector<int64_t> single;
        for (const int64_t id : chunks) {
          for (int64_t i = id * factor; i < std::min(n, (id + 1) * factor); ++i)
            single.push_back(i);
        }
        chunks = std::move(single);
      }
      const int64_t foreign = count_foreign_chunks(reach_, held, same_kv_);
      return Start{foreign, std::move(held)};
    }
    return std::nullopt;
  }

  /// Improves an assignment by exchanges and stores it as the best if it is better; false if its
  /// loads cannot be brought within the bound.
  bool consider(const Held& held, int64_t& fewest, Held& best) {
    start(held);
    if (!repair()) return false;
    for (int pass = 0; pass < kMaxPasses && work_ < work_bound_.most && improve(); ++pass) {
    }
    int64_t foreign = 0;
    for (const KeyHolder& rank : rank_) foreign += rank.foreign();
    if (foreign >= fewest) return true;
    fewest = foreign;
    for (size_t r = 0; r < best.size(); ++r) best[r] = rank_[r].chunks();
    return true;
  }

  void start(const Held& held) {
    rank_ = empty_ranks();
    loads_.clear();
    at_.resize(areas_.size());
    lone_.resize(areas_.size());
    looked_.assign(areas_.size(), -1);
    changed_.assign(held.size(), 0);
    now_ = 0;
    for (int32_t r = 0; r < holders_; ++r) {
      for (const int64_t chunk : held[r]) {
        at_[chunk] = r;
        rank_[r].add(chunk);
      }
      loads_.push_back(load_of(areas_, held[r]));
      count_lone(r);
    }
  }

  void count_lone(int32_t rank) {
    for (const int64_t chunk : rank_[rank].chunks()) {
      lone_[chunk] = rank_[rank].count_lone(chunk);
      work_ += width(chunk);
    }
  }

  /// Increase of the foreign chunks if a and b change places; nothing if it is certainly `limit` or
  /// more.
  std::optional<int64_t> weigh(int64_t a, int64_t b, int64_t limit) {
    const KeyHolder &p = rank_[at_[a]], &q = rank_[at_[b]];
    ++work_;
    const int64_t least_p = -lone_[a] - (same_kv_ && p.sees(b) ? 1 : 0);
    const int64_t least_q = -lone_[b] - (same_kv_ && q.sees(a) ? 1 : 0);
    if (least_p + least_q >= limit) return std::nullopt;
    work_ += width(a) + width(b);
    const int64_t more_p = p.count_exchanged(a, b);
    if (more_p + least_q >= limit) return std::nullopt;
    work_ += width(a) + width(b);
    const int64_t more = more_p + q.count_exchanged(b, a);
    return more < limit ? std::optional(more) : std::nullopt;
  }

  void exchange(int64_t a, int64_t b) {
    const int32_t p = at_[a], q = at_[b];
    rank_[p].exchange(a, b);
    rank_[q].exchange(b, a);
    loads_[p] += areas_[b] - areas_[a];
    loads_[q] += areas_[a] - areas_[b];
    std::swap(at_[a], at_[b]);
    count_lone(p);
    count_lone(q);
    changed_[p] = changed_[q] = ++now_;
  }

  /// Takes load off the fullest rank until all are within the bound; false if that is not possible
  /// or takes too much of the work.
  bool repair() {
    const int64_t left = work_bound_.most - work_, wide_work = work_ + left / 4,
                  most_work = work_ + left / 2;
    for (int64_t round = 0; round < reach_.chunks && work_ < most_work; ++round) {
      const auto fullest =
          static_cast<int32_t>(std::max_element(loads_.begin(), loads_.end()) - loads_.begin());
      const int64_t over = loads_[fullest] - bound_;
      if (over <= 0) return true;
      const int64_t side = work_ < wide_work ? kWideRepairs : kNarrowRepairs;
      // Remaining excess, then foreign chunks, then the pair.
      std::optional<std::tuple<int64_t, int64_t, int64_t, int64_t>> best;
      for (const int64_t mine : rank_[fullest].chunks()) {
        // Tries the chunk that takes just the excess, and its neighbours in area on both sides.
        const int64_t middle =
            std::partition_point(order_.begin(), order_.end(),
                                 [&](int64_t id) { return areas_[mine] - areas_[id] < over; }) -
            order_.begin();
        const int64_t end = std::min(reach_.chunks, middle + side);
        for (int64_t i = std::max<int64_t>(0, middle - side); i < end; ++i) {
          const int64_t other = order_[i], less = areas_[mine] - areas_[other];
          ++work_;
          if (less <= 0 || at_[other] == fullest || loads_[at_[other]] + less > bound_) continue;
          const int64_t rest = std::max<int64_t>(0, over - less);
          if (best && rest > std::get<0>(*best)) continue;
          const int64_t limit =
              best && rest == std::get<0>(*best) ? std::get<1>(*best) + 1 : kNoLimit;
          const std::optional<int64_t> more = weigh(mine, other, limit);
          if (!more) continue;
          const auto candidate = std::make_tuple(rest, *more, mine, other);
          if (!best || candidate < *best) best = candidate;
        }
      }
      if (!best) return false;
      exchange(std::get<2>(*best), std::get<3>(*best));
    }
    return false;
  }

  /// Exchanges each chunk once for the neighbour in area that saves most; false if none saves any.
  bool improve() {
    const int64_t n = reach_.chunks;
    bool improved = false;
    for (int64_t i = 0; i < n && work_ < work_bound_.most; ++i) {
      const int64_t mine = order_[i], looked = looked_[mine];
      const int32_t p = at_[mine];
      int64_t saved = 0, partner = -1;
      for (int64_t j = i + 1; j < std::min(n, i + 1 + kNeighbours); ++j) {
        const int64_t other = order_[j], less = areas_[mine] - areas_[other];
        const int32_t q = at_[other];
        // An exchange that did not help before does not help now if neither rank has changed since.
        if (p == q || (changed_[p] <= looked && changed_[q] <= looked)) continue;
        const int64_t fuller = std::max(loads_[p] - less, loads_[q] + less);
        if (fuller > std::max(bound_, std::max(loads_[p], loads_[q]))) continue;
        const std::optional<int64_t> more = weigh(mine, other, saved);
        if (!more) continue;
        saved = *more;
        partner = other;
      }
      looked_[mine] = now_;
      if (partner < 0) continue;
      exchange(mine, partner);
      looked_[mine] = -1;
      improved = true;
    }
    return improved;
  }

  const std::vector<int64_t>& areas_;
  const ChunkReach& reach_;
  const int32_t holders_;
  const int32_t share_;  // ranks per holder
  const bool same_kv_;
  const WorkBound work_bound_;
  const int64_t capacity_;  // chunks per holder
  const Held lpt_;
  const int64_t bound_;
  const std::vector<int64_t> order_;  // largest area first
  const std::vector<Words> anyway_;
  int64_t work_ = 0;

  std::vector<KeyHolder> rank_;
  std::vector<int64_t> loads_;    // [rank]
  std::vector<int32_t> at_;       // [chunk] its rank
  std::vector<int64_t> lone_;     // [chunk] foreign keys that only it sees on its rank
  std::vector<int64_t> changed_;  // [rank] number of the last exchange
  std::vector<int64_t> looked_;   // [chunk] exchanges when it last found no partner
  int64_t now_ = 0;               // exchanges so far
};

}  // namespace

ChunkReach find_reach(const MaskBands& mask, const BatchSlots& slots, int64_t chunk) {
  ChunkReach reach;
  reach.chunks = (slots.tokens + chunk - 1) / chunk;
  reach.key_chunks = (slots.kv_tokens + chunk - 1) / chunk;
  make_rows(reach);
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const int64_t keys = slots.sequences[s].kv_valid_begin();
    for_each_chunk(mask.of_sequence(static_cast<int64_t>(s)), slots.sequences[s].q_valid_begin(),
                   chunk, [&](int64_t id, const Band& band, int64_t begin, int64_t end) {
                     // The range has no gaps: neighbouring rows of a band see neighbouring keys.
                     const Band part = tighten(clip(band, begin, end, band.k0, band.k1));
                     if (part.k0 < part.k1)
                       add_keys(reach, id, (keys + part.k0) / chunk,
                                (keys + part.k1 - 1) / chunk + 1);
                   });
  }
  return reach;
}

int64_t local_load_bound(const std::vector<int64_t>& areas, int32_t ranks) {
  return load_bound(areas, assign_longest_first(areas, ranks));
}

int64_t count_foreign_chunks(const ChunkReach& reach, const Held& held, bool same_kv) {
  const std::vector<Words> anyway = held_anyway(reach, static_cast<int64_t>(held.size()), same_kv);
  int64_t foreign = 0;
  for (size_t r = 0; r < held.size(); ++r) {
    KeyHolder rank(reach, anyway[r], same_kv);
    for (const int64_t chunk : held[r]) rank.add(chunk);
    foreign += rank.foreign();
  }
  return foreign;
}

Held assign_near_keys(const std::vector<int64_t>& areas, const ChunkReach& reach, int32_t ranks,
                      bool same_kv, int32_t group) {
  CPSCOPE_CHECK(reach.chunks <= kMaxLocalChunks, "too many chunks for lpt_local", reach.chunks,
                kMaxLocalChunks);
  CPSCOPE_CHECK(group > 0 && ranks % group == 0, "groups of unequal size", ranks, group);
  Held together = NearAssigner(areas, reach, ranks, group, same_kv, {}).assign();
  if (group == 1) return together;
  Held held;
  for (const std::vector<int64_t>& chunks : together) {
    const size_t n = chunks.size(), parts = static_cast<size_t>(group);
    for (size_t i = 0; i < parts; ++i)
      held.emplace_back(chunks.begin() + static_cast<int64_t>(n * i / parts),
                        chunks.begin() + static_cast<int64_t>(n * (i + 1) / parts));
  }
  return held;
}

}  // namespace cpscope
