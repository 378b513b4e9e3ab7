#include "sim/plan/cp_rounds.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include <fmt/format.h>

// Sizes of groups as FlexSP (arXiv 2412.01523) and ByteScale (arXiv 2502.21231) choose them.

namespace cpscope {
namespace {

/// FlexSP's published profile of a 7B model on A100s of hosts of 8 (its solver.py): milliseconds of
/// a token's square and of a token, MiB that a token exchanges, GB/s of exchanges by ranks.
constexpr double kSquare = 5.128e-6, kLinear = 183.9576e-3, kExchanged = 2.0;
constexpr double kSpeeds[] = {0.0, 154.0, 137.0, 121.0, 8.7, 6.0, 5.0};  // [log2 of ranks]

std::vector<int64_t> longest_first(std::span<const int64_t> lengths) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  return order;
}

/// Refuses the first of `order`, the longest, if these ranks cannot hold it.
std::optional<Error> refuse_long_sequence(std::string_view rule, const std::vector<int64_t>& order,
                                          std::span<const int64_t> lengths, int64_t most,
                                          int32_t ranks) {
  if (order.empty()) return std::nullopt;
  const int64_t sequence = order.front(), length = lengths[static_cast<size_t>(sequence)];
  if (length <= ranks * most) return std::nullopt;
  return make_refusal(
      fmt::format("cp_sizes = \"{}\": sequence {} of {} tokens does not fit: {} ranks hold at most "
                  "{} tokens each",
                  rule, sequence, length, ranks, most),
      "use a larger max_tokens_per_rank, or more ranks",
      {"parallel.max_tokens_per_rank", "parallel.cp_size"});
}

// ---- FlexSP ------------------------------------------------------------------------------------

struct FlexGroup {
  int64_t size = 0, tokens = 0;
  double time = 0;
  std::vector<size_t> members;  // places in the part
};

using FlexGroups = std::vector<FlexGroup>;
using SizeCounts = std::map<int64_t, int64_t>;  // how many groups of each size

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  // of sums of times, relative

size_t log2_of(int64_t size) {
  return static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(size)));
}

/// One micro-batch: finds groups of powers of two of ranks, all ranks together, whose slowest is
/// fast. FlexSP solves this as an integer program; here sequences are given out longest first and
/// then moved and exchanged, for sets of sizes that are improved step by step.
class FlexSolver {
 public:
  /// `tokens`: of each sequence of the part, longest first. `steps` counts the groups and pairs of
  /// sequences that are looked at.
  FlexSolver(std::span<const int64_t> tokens, int64_t capacity, int32_t ranks, int64_t& steps)
      : tokens_(tokens), capacity_(capacity), ranks_(ranks), steps_(steps) {
    for (int64_t size = 1; size <= ranks; size *= 2) {
      const double speed = kSpeeds[std::min(log2_of(size), std::size(kSpeeds) - 1)];
      std::vector<double>& times = times_.emplace_back();
      times.reserve(tokens.size());
      for (const int64_t count : tokens) {
        const auto t = static_cast<double>(count);
        const double exchange = size == 1 ? 0.0 : kExchanged * t / speed;
        times.push_back((kSquare * t * t + kLinear * t + exchange) / static_cast<double>(size));
      }
      const double sum = std::accumulate(times.begin(), times.end(), 0.0);
      even_.push_back(sum * static_cast<double>(size) / ranks);
    }
  }

  /// Whether solve() finds groups.
  bool can_solve() const {
    for (int64_t size = 1; size <= ranks_; size *= 2) {
      const SizeCounts first = fill_with(size);
      if (fits(first)) return true;
      const std::vector<SizeCounts> others = neighbours(first);
      if (std::any_of(others.begin(), others.end(),
                      [&](const SizeCounts& sizes) { return fits(sizes); }))
        return true;
    }
    return false;
  }

  /// No groups if none were found.
  FlexGroups solve() {
    SizeCounts best_sizes;
    double best = kNever;
    for (int64_t size = 1; size <= ranks_; size *= 2) {
      SizeCounts sizes = fill_with(size);
      double found = slowest_with(sizes, kNever);
      for (bool is_better = true; is_better;) {
        is_better = false;
        for (const SizeCounts& next : neighbours(sizes)) {
          const double other = slowest_with(next, found);
          if (other >= found) continue;
          found = other;
          sizes = next;
          is_better = true;
        }
      }
      if (found < best) {
        best = found;
        best_sizes = sizes;
      }
    }
    FlexGroups groups;
    if (best < kNever) assign(best_sizes, kNever, groups);
    return groups;
  }

 private:
  /// What is known of a set of sizes: the time of its slowest group, or what it is not below.
  struct Known {
    double slowest = 0;
    bool is_exact = false;
  };

  double time(size_t member, int64_t size) const { return times_[log2_of(size)][member]; }

  /// Groups of one size, and smaller ones of the ranks that are left.
  SizeCounts fill_with(int64_t size) const {
    SizeCounts sizes;
    int64_t left = ranks_;
    for (; size > 0; size /= 2) {
      if (left >= size) sizes[size] = left / size;
      left %= size;
    }
    return sizes;
  }

  /// One group cut in two, or two of equal size made one.
  std::vector<SizeCounts> neighbours(const SizeCounts& sizes) const {
    std::vector<SizeCounts> found;
    const auto change = [&](int64_t from, int64_t fewer, int64_t to, int64_t more) {
      SizeCounts next = sizes;
      next[to] += more;
      if ((next[from] -= fewer) == 0) next.erase(from);
      found.push_back(std::move(next));
    };
    for (const auto& [size, count] : sizes) {
      if (size > 1) change(size, 1, size / 2, 2);
      if (count > 1) change(size, 2, 2 * size, 1);
    }
    return found;
  }

  /// The time of the slowest group with these sizes if it is below `limit`, else a number that is
  /// not; kNever if a sequence fits nowhere, or a group has none.
  double slowest_with(const SizeCounts& sizes, double limit) {
    Known& known = known_[sizes];
    if (known.is_exact || known.slowest >= limit) return known.slowest;
    known.slowest = least_time(sizes);
    if (known.slowest >= limit) return known.slowest;
    FlexGroups groups;
    known.slowest = assign(sizes, limit, groups);
    known.is_exact = known.slowest < limit || known.slowest == kNever;
    return known.slowest;
  }

  /// No slowest group is faster: all work shared evenly, and the longest sequence alone.
  double least_time(const SizeCounts& sizes) const {
    double even = kNever, alone = kNever;
    for (const auto& [size, count] : sizes) {
      even = std::min(even, even_[log2_of(size)]);
      alone = std::min(alone, time(0, size));
    }
    return std::max(even, alone) * (1.0 - kRounding);
  }

  bool has_room(const FlexGroup& group, size_t member) const {
    return group.tokens + tokens_[member] <= group.size * capacity_;
  }
  void give(FlexGroup& group, size_t member) const {
    group.members.push_back(member);
    group.tokens += tokens_[member];
    group.time += time(member, group.size);
  }
  void take(FlexGroup& group, size_t member) const {
    std::erase(group.members, member);
    group.tokens -= tokens_[member];
    group.time -= time(member, group.size);
  }

  /// Moves compare every two sequences; of many, longest first alone is even.
  bool are_few() const { return tokens_.size() <= 256; }

  static bool has_idle(const FlexGroups& groups) {
    return std::any_of(groups.begin(), groups.end(),
                       [](const FlexGroup& group) { return group.members.empty(); });
  }

  /// Whether assign() finds groups.
  bool fits(const SizeCounts& sizes) const {
    FlexGroups groups;
    if (give_longest_first(sizes, kNever, groups) == kNever) return false;
    if (has_idle(groups)) relieve(groups);
    return !has_idle(groups);
  }

  /// Makes the groups, and returns as slowest_with().
  double assign(const SizeCounts& sizes, double limit, FlexGroups& groups) const {
    // Moves can still make groups of few sequences faster.
    const double stop = are_few() ? kNever : limit;
    const double slowest = give_longest_first(sizes, stop, groups);
    if (slowest >= stop) return slowest;
    relieve(groups);
    if (has_idle(groups)) return kNever;
    double most = 0;
    for (const FlexGroup& group : groups) most = std::max(most, group.time);
    return most;
  }

  /// Gives each sequence to the group that ends first with it, the first of equal ones. Stops with
  /// a time that is not below `limit`.
  double give_longest_first(const SizeCounts& sizes, double limit, FlexGroups& groups) const {
    struct Place {
      double time = 0;  // when the group ends
      size_t group = 0;
      auto operator<=>(const Place&) const = default;
    };
    /// Groups of one size, those that end first in front.
    struct Queue {
      const std::vector<double>* times = nullptr;
      std::vector<Place> places;
    };
    std::vector<Queue> queues;
    for (auto it = sizes.rbegin(); it != sizes.rend(); ++it) {
      Queue& queue = queues.emplace_back(Queue{&times_[log2_of(it->first)], {}});
      for (int64_t g = 0; g < it->second; ++g) {
        queue.places.push_back({0, groups.size()});
        groups.push_back(FlexGroup{it->first, 0, 0, {}});
      }
    }
    if (groups.size() > tokens_.size()) return kNever;
    double slowest = 0;
    for (size_t member = 0; member < tokens_.size(); ++member) {
      Queue* chosen = nullptr;
      size_t at = 0;
      Place end{kNever, 0};
      for (Queue& queue : queues) {
        const double more = (*queue.times)[member];
        for (size_t p = 0; p < queue.places.size(); ++p) {
          ++steps_;
          // Different times can become equal ones by rounding.
          const Place with{queue.places[p].time + more, queue.places[p].group};
          if (with.time > end.time) break;
          if (with >= end || !has_room(groups[with.group], member)) continue;
          end = with;
          chosen = &queue;
          at = p;
        }
      }
      if (chosen == nullptr) return kNever;
      give(groups[end.group], member);
      slowest = std::max(slowest, end.time);
      if (slowest >= limit) return slowest;
      const auto from = chosen->places.begin() + static_cast<std::ptrdiff_t>(at);
      const auto to = std::lower_bound(from + 1, chosen->places.end(), end);
      std::rotate(from, from + 1, to);
      *(to - 1) = end;
    }
    return slowest;
  }

  void relieve(FlexGroups& groups) const {
    while (are_few() && relieve_slowest(groups)) {
    }
  }

  /// Moves a sequence of the slowest group to another one, or exchanges it, if both are faster
  /// then. False if nothing helps.
  bool relieve_slowest(FlexGroups& groups) const {
    FlexGroup& slowest =
        *std::max_element(groups.begin(), groups.end(),
                          [](const FlexGroup& a, const FlexGroup& b) { return a.time < b.time; });
    // Less by more than rounding, or sequences could go to and fro for ever.
    const double before = slowest.time * (1.0 - kRounding);
    const std::vector<double>& times_here = times_[log2_of(slowest.size)];
    for (const size_t member : slowest.members) {
      const int64_t room = slowest.size * capacity_ - (slowest.tokens - tokens_[member]);
      for (FlexGroup& group : groups) {
        if (&group == &slowest) continue;
        ++steps_;
        const std::vector<double>& times = times_[log2_of(group.size)];
        if (slowest.members.size() > 1 && has_room(group, member) &&
            group.time + times[member] < before) {
          give(group, member);
          take(slowest, member);
          return true;
        }
        const int64_t spare = group.size * capacity_ - group.tokens;
        steps_ += std::ssize(group.members);
        for (const size_t other : group.members) {
          if (times_here[other] >= times_here[member] || tokens_[member] > spare + tokens_[other] ||
              tokens_[other] > room || (group.time - times[other]) + times[member] >= before)
            continue;
          take(group, other);
          give(group, member);
          take(slowest, member);
          give(slowest, other);
          return true;
        }
      }
    }
    return false;
  }

  std::span<const int64_t> tokens_;
  int64_t capacity_;
  int32_t ranks_;
  int64_t& steps_;
  std::vector<std::vector<double>> times_;  // [log2 of a group's ranks, sequence] milliseconds
  std::vector<double> even_;  // [log2] milliseconds if all ranks had the same work in such groups
  std::map<SizeCounts, Known> known_;
};

/// Sequences, longest first, cut into parts of about equally many tokens.
class FlexBatch {
 public:
  explicit FlexBatch(std::vector<int64_t> tokens) : tokens_(std::move(tokens)) {
    for (const int64_t count : tokens_) {
      middles_.push_back(total_ + count / 2);
      total_ += count;
    }
  }

  int64_t total() const { return total_; }

  /// Where each of at most `parts` parts ends; none if the solver finds no groups for one of them.
  std::vector<size_t> cut(int64_t parts, int64_t capacity, int32_t ranks, int64_t& steps) const {
    std::vector<size_t> ends;
    for (size_t begin = 0; begin < tokens_.size(); begin = ends.back()) {
      const auto first = middles_.begin() + static_cast<std::ptrdiff_t>(begin) + 1;
      const int64_t part = std::ssize(ends) + 1;
      const auto end = part == parts ? middles_.end()
                                     : std::partition_point(first, middles_.end(), [&](int64_t m) {
                                         return m * parts < part * total_;
                                       });
      ends.push_back(static_cast<size_t>(end - middles_.begin()));
      if (!FlexSolver(part_of(begin, ends.back()), capacity, ranks, steps).can_solve()) return {};
    }
    return ends;
  }

  std::span<const int64_t> part_of(size_t begin, size_t end) const {
    return std::span(tokens_).subspan(begin, end - begin);
  }

 private:
  std::vector<int64_t> tokens_, middles_;  // middles: the tokens before each, and half of its own
  int64_t total_ = 0;
};

// ---- ByteScale ---------------------------------------------------------------------------------

/// Fills one round with the longest sequences that are left, and takes them from `left`.
CpRound fill_byte_scale_round(std::span<const int64_t> lengths, int64_t capacity, int32_t ranks,
                              std::vector<int64_t>& left) {
  struct Open {
    CpGroup group;
    int64_t room = 0;  // tokens
    double work = 0;   // of each rank
  };
  std::vector<Open> groups;
  std::vector<int64_t> later;
  double busiest = 0;
  int32_t next = 0;
  for (const int64_t s : left) {
    const int64_t length = lengths[static_cast<size_t>(s)];
    const auto size =
        static_cast<int32_t>(std::max<int64_t>(1, (length + capacity - 1) / capacity));
    const double work = static_cast<double>(length) * static_cast<double>(length) / size;
    if (next + size <= ranks) {
      groups.push_back({{next, size, {s}}, size * capacity - length, work});
      busiest = std::max(busiest, work);
      next += size;
      continue;
    }
    // A short one joins the rank with the least work, if the round does not grow longer by it.
    Open* chosen = nullptr;
    for (Open& open : groups) {
      if (size == 1 && open.group.size == 1 && open.room >= length && open.work + work <= busiest &&
          (chosen == nullptr || open.work < chosen->work))
        chosen = &open;
    }
    if (chosen == nullptr) {
      later.push_back(s);
      continue;
    }
    chosen->group.sequences.push_back(s);
    chosen->room -= length;
    chosen->work += work;
  }
  left = std::move(later);
  CpRound round;
  for (Open& open : groups) round.groups.push_back(std::move(open.group));
  return round;
}

}  // namespace

Result<std::vector<CpRound>> schedule_flexsp(std::span<const int64_t> lengths, int64_t capacity,
                                             int32_t ranks, int64_t* steps) {
  const auto largest = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(ranks)));
  const std::vector<int64_t> order = longest_first(lengths);
  if (auto error = refuse_long_sequence("flexsp", order, lengths, capacity, largest)) return *error;
  std::vector<int64_t> tokens;
  for (const int64_t s : order) tokens.push_back(lengths[static_cast<size_t>(s)]);
  const FlexBatch batch(std::move(tokens));
  const int64_t fewest = (batch.total() + capacity * ranks - 1) / (capacity * ranks);
  int64_t counted = 0;
  int64_t& count = steps == nullptr ? counted : *steps;
  // With as many parts as sequences, each has the ranks for itself.
  for (int64_t parts = std::max<int64_t>(1, fewest); parts <= std::ssize(lengths); ++parts) {
    const std::vector<size_t> ends = batch.cut(parts, capacity, ranks, count);
    if (ends.empty()) continue;
    std::vector<CpRound> rounds;
    size_t begin = 0;
    for (const size_t end : ends) {
      CpRound& round = rounds.emplace_back();
      int32_t next = 0;
      FlexSolver solver(batch.part_of(begin, end), capacity, ranks, count);
      for (const FlexGroup& group : solver.solve()) {
        const auto size = static_cast<int32_t>(group.size);
        CpGroup& made = round.groups.emplace_back(CpGroup{next, size, {}});
        for (const size_t member : group.members) made.sequences.push_back(order[begin + member]);
        next += size;
      }
      begin = end;
    }
    return rounds;
  }
  return make_refusal(
      fmt::format("cp_sizes = \"flexsp\": {} sequences cannot be given to groups of powers of two "
                  "of ranks that use all of {} ranks",
                  lengths.size(), ranks),
      "use a power of two of ranks, or cp_sizes of your own",
      {"parallel.cp_sizes", "parallel.cp_size"});
}

Result<std::vector<CpRound>> schedule_bytescale(std::span<const int64_t> lengths, int64_t capacity,
                                                int32_t ranks) {
  std::vector<int64_t> left = longest_first(lengths);
  if (auto error = refuse_long_sequence("bytescale", left, lengths, capacity, ranks)) return *error;
  std::vector<CpRound> rounds;
  while (!left.empty()) rounds.push_back(fill_byte_scale_round(lengths, capacity, ranks, left));
  return rounds;
}

}  // namespace cpscope
