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
  std::vector<int64_t> sequences;
};

using FlexGroups = std::vector<FlexGroup>;
using SizeCounts = std::map<int64_t, int64_t>;  // how many groups of each size

double longest(const FlexGroups& groups) {
  double most = 0;
  for (const FlexGroup& group : groups) most = std::max(most, group.time);
  return most;
}

/// One micro-batch: finds groups of powers of two of ranks, all ranks together, whose slowest is
/// fast. FlexSP solves this as an integer program; here sequences are given out longest first and
/// then moved and exchanged, for sets of sizes that are improved step by step.
class FlexSolver {
 public:
  FlexSolver(std::span<const int64_t> lengths, int64_t capacity, int32_t ranks)
      : lengths_(lengths), capacity_(capacity), ranks_(ranks) {}

  std::optional<FlexGroups> solve(const std::vector<int64_t>& sequences) const {
    std::optional<FlexGroups> best;
    for (int64_t size = 1; size <= ranks_; size *= 2) {
      SizeCounts sizes = fill_with(size);
      std::optional<FlexGroups> found = assign(sequences, sizes);
      while (true) {
        bool is_better = false;
        for (const SizeCounts& next : neighbours(sizes)) {
          std::optional<FlexGroups> other = assign(sequences, next);
          if (!other || (found && longest(*other) >= longest(*found))) continue;
          found = std::move(other);
          sizes = next;
          is_better = true;
        }
        if (!is_better) break;
      }
      if (found && (!best || longest(*found) < longest(*best))) best = std::move(found);
    }
    return best;
  }

 private:
  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }

  double time(int64_t sequence, int64_t size) const {
    const auto tokens = static_cast<double>(length(sequence));
    const auto step = static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(size)));
    const double speed = kSpeeds[std::min(step, std::size(kSpeeds) - 1)];
    const double exchange = size == 1 ? 0.0 : kExchanged * tokens / speed;
    return (kSquare * tokens * tokens + kLinear * tokens + exchange) / static_cast<double>(size);
  }

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

  bool has_room(const FlexGroup& group, int64_t sequence) const {
    return group.tokens + length(sequence) <= group.size * capacity_;
  }
  void give(FlexGroup& group, int64_t sequence) const {
    group.sequences.push_back(sequence);
    group.tokens += length(sequence);
    group.time += time(sequence, group.size);
  }
  FlexGroup without(FlexGroup group, int64_t sequence) const {
    std::erase(group.sequences, sequence);
    group.tokens -= length(sequence);
    group.time -= time(sequence, group.size);
    return group;
  }

  /// Nothing if a sequence fits nowhere, or a group has none.
  std::optional<FlexGroups> assign(const std::vector<int64_t>& sequences,
                                   const SizeCounts& sizes) const {
    FlexGroups groups;
    for (auto it = sizes.rbegin(); it != sizes.rend(); ++it)
      groups.insert(groups.end(), static_cast<size_t>(it->second), FlexGroup{it->first, 0, 0, {}});
    if (groups.size() > sequences.size()) return std::nullopt;
    for (const int64_t s : sequences) {
      FlexGroup* chosen = nullptr;
      double end = std::numeric_limits<double>::infinity();
      for (FlexGroup& group : groups) {
        const double with = group.time + time(s, group.size);
        if (with >= end || !has_room(group, s)) continue;
        chosen = &group;
        end = with;
      }
      if (chosen == nullptr) return std::nullopt;
      give(*chosen, s);
    }
    // It compares every two sequences; of many, longest first alone is even.
    constexpr size_t kFewSequences = 256;
    while (sequences.size() <= kFewSequences && relieve_slowest(groups)) {
    }
    const bool has_idle = std::any_of(groups.begin(), groups.end(), [](const FlexGroup& group) {
      return group.sequences.empty();
    });
    return has_idle ? std::nullopt : std::optional(std::move(groups));
  }

  /// Moves a sequence of the slowest group to another one, or exchanges it, if both are faster
  /// then. False if nothing helps.
  bool relieve_slowest(FlexGroups& groups) const {
    FlexGroup& slowest =
        *std::max_element(groups.begin(), groups.end(),
                          [](const FlexGroup& a, const FlexGroup& b) { return a.time < b.time; });
    // Less by more than rounding, or sequences could go to and fro for ever.
    constexpr double kRounding = 1e-9;
    const double before = slowest.time * (1.0 - kRounding);
    for (const int64_t s : slowest.sequences) {
      const FlexGroup lighter = without(slowest, s);
      for (FlexGroup& group : groups) {
        if (&group == &slowest) continue;
        if (!lighter.sequences.empty() && has_room(group, s) &&
            group.time + time(s, group.size) < before) {
          give(group, s);
          slowest = lighter;
          return true;
        }
        for (const int64_t other : group.sequences) {
          FlexGroup freed = without(group, other);
          if (time(other, slowest.size) >= time(s, slowest.size) || !has_room(freed, s) ||
              !has_room(lighter, other) || freed.time + time(s, group.size) >= before)
            continue;
          give(freed, s);
          group = std::move(freed);
          slowest = lighter;
          give(slowest, other);
          return true;
        }
      }
    }
    return false;
  }

  std::span<const int64_t> lengths_;
  int64_t capacity_;
  int32_t ranks_;
};

/// Cuts the sequences, longest first, into parts of about equally many tokens.
std::vector<std::vector<int64_t>> cut_batch(const std::vector<int64_t>& order,
                                            std::span<const int64_t> lengths, int64_t parts) {
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<std::vector<int64_t>> found(1);
  int64_t tokens = 0;
  for (const int64_t s : order) {
    const int64_t length = lengths[static_cast<size_t>(s)];
    const bool is_full = (tokens + length / 2) * parts >= std::ssize(found) * total;
    if (is_full && !found.back().empty() && std::ssize(found) < parts) found.emplace_back();
    found.back().push_back(s);
    tokens += length;
  }
  return found;
}

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
                                             int32_t ranks) {
  const auto largest = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(ranks)));
  const std::vector<int64_t> order = longest_first(lengths);
  if (auto error = refuse_long_sequence("flexsp", order, lengths, capacity, largest)) return *error;
  const FlexSolver solver(lengths, capacity, ranks);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  // With as many parts as sequences, each has the ranks for itself.
  for (int64_t parts = std::max<int64_t>(1, (total + capacity * ranks - 1) / (capacity * ranks));
       parts <= std::ssize(lengths); ++parts) {
    std::vector<CpRound> rounds;
    const std::vector<std::vector<int64_t>> batch = cut_batch(order, lengths, parts);
    for (const std::vector<int64_t>& part : batch) {
      const std::optional<FlexGroups> groups = solver.solve(part);
      if (!groups) break;
      CpRound& round = rounds.emplace_back();
      int32_t next = 0;
      for (const FlexGroup& group : *groups) {
        round.groups.push_back({next, static_cast<int32_t>(group.size), group.sequences});
        next += static_cast<int32_t>(group.size);
      }
    }
    if (rounds.size() == batch.size()) return rounds;
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
