#include "sim/plan/cp_rounds.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <set>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr double kSlack = 0.05;       // of the busiest rank's work, within which a round is even
constexpr double kBucketRoom = 1.10;  // work of a bucket, over its share

using Buckets = std::deque<std::deque<int64_t>>;  // sequences, longest first

/// Fills rounds one after another. Costs are kept in doubles and added in Megatron's order, so that
/// equal loads are equal here too.
class HybridScheduler {
 public:
  HybridScheduler(std::span<const int64_t> lengths, int64_t max_tokens_per_rank, int32_t ranks)
      : lengths_(lengths), most_(max_tokens_per_rank), ranks_(ranks) {}

  /// The smallest power of two of ranks on which no one holds too many tokens of a sequence.
  int64_t size_of(int64_t sequence) const {
    int64_t size = 1;
    while (size * most_ < length(sequence)) size *= 2;
    return size;
  }

  Result<std::vector<CpRound>> run() {
    std::vector<int64_t> left(lengths_.size());
    std::iota(left.begin(), left.end(), int64_t{0});
    std::stable_sort(left.begin(), left.end(),
                     [&](int64_t a, int64_t b) { return length(a) > length(b); });
    std::vector<CpRound> rounds;
    while (!left.empty()) {
      Result<CpRound> round = fill_round(left);
      if (!round) return round.error();
      rounds.push_back(std::move(round).value());
    }
    return rounds;
  }

 private:
  struct Group {
    int64_t size = 0;
    std::vector<int32_t> members;
    std::vector<int64_t> sequences;
    double load = 0.0;  // of each member
  };

  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  double cost(int64_t sequence, int64_t size) const {
    const auto tokens = static_cast<double>(length(sequence));
    return tokens * tokens / static_cast<double>(size);
  }
  double cost(int64_t sequence) const { return cost(sequence, size_of(sequence)); }

  /// Cuts the list into as many parts of about equal cost as there are sizes.
  Buckets make_buckets(const std::vector<int64_t>& sequences) const {
    std::set<int64_t> sizes;
    double total = 0.0;
    for (const int64_t s : sequences) {
      sizes.insert(size_of(s));
      total += cost(s);
    }
    const double target = total / static_cast<double>(sizes.size());
    auto parts_left = std::ssize(sizes);
    Buckets buckets;
    std::deque<int64_t> bucket;
    double work = 0.0;
    for (int64_t i = 0; i < std::ssize(sequences); ++i) {
      const int64_t s = sequences[static_cast<size_t>(i)];
      const bool is_full = work + cost(s) > target * kBucketRoom;
      const bool must_leave_some = std::ssize(sequences) - i <= parts_left - std::ssize(buckets);
      if (!bucket.empty() && (is_full || must_leave_some)) {
        buckets.push_back(std::move(bucket));
        bucket = {};
        work = 0.0;
        --parts_left;
      }
      bucket.push_back(s);
      work += cost(s);
    }
    if (!bucket.empty()) buckets.push_back(std::move(bucket));
    return buckets;
  }

  int32_t num_free() const {
    return static_cast<int32_t>(std::count(group_of_.begin(), group_of_.end(), -1));
  }
  double load_of(int32_t rank) const {
    const int32_t group = group_of_[static_cast<size_t>(rank)];
    return group < 0 ? 0.0 : groups_[static_cast<size_t>(group)].load;
  }
  /// The least and the most work of a rank.
  std::pair<double, double> find_extremes() const {
    double least = std::numeric_limits<double>::infinity(), most = 0.0;
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      least = std::min(least, load_of(rank));
      most = std::max(most, load_of(rank));
    }
    return {least, most};
  }
  /// The group of this size with the least load; the first of equals; -1 if there is none.
  int32_t find_group(int64_t size) const {
    int32_t best = -1;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].size == size &&
          (best < 0 || groups_[g].load < groups_[static_cast<size_t>(best)].load))
        best = static_cast<int32_t>(g);
    }
    return best;
  }

  /// Takes sequences from `left`, those that stay come in the order of the next round.
  Result<CpRound> fill_round(std::vector<int64_t>& left) {
    groups_.clear();
    group_of_.assign(static_cast<size_t>(ranks_), -1);
    Buckets buckets = make_buckets(left);
    place_sequences(buckets);
    left.clear();
    for (const std::deque<int64_t>& bucket : buckets)
      left.insert(left.end(), bucket.begin(), bucket.end());
    take_back(left);
    if (auto error = fill_idle_ranks()) return *error;
    CpRound round;
    for (const Group& group : groups_) {
      round.groups.push_back(
          {group.members.front(), static_cast<int32_t>(group.size), group.sequences});
    }
    std::sort(round.groups.begin(), round.groups.end(),
              [](const CpGroup& a, const CpGroup& b) { return a.first_rank < b.first_rank; });
    return round;
  }

  void place_sequences(Buckets& buckets) {
    int64_t size_before = 0;
    bool checks_balance = false;
    while (!buckets.empty()) {
      auto bucket = std::find_if(buckets.begin(), buckets.end(), [&](const auto& candidate) {
        if (candidate.empty()) return false;
        const int64_t size = size_of(candidate.front());
        return find_group(size) >= 0 || num_free() >= size;
      });
      if (bucket == buckets.end()) return;
      const int64_t s = bucket->front(), size = size_of(s);
      if (size_before == 0) size_before = size;
      int32_t chosen = find_group(size);
      // A new group is idle, so it has less work than any other.
      if (num_free() >= size && (chosen < 0 || groups_[static_cast<size_t>(chosen)].load > 0.0))
        chosen = open_group(size);
      Group& group = groups_[static_cast<size_t>(chosen)];
      group.sequences.push_back(s);
      group.load += cost(s);
      bucket->pop_front();
      while (!buckets.empty() && buckets.front().empty()) buckets.pop_front();
      // Balance counts once the first size has been left.
      checks_balance = checks_balance || size < size_before;
      const auto [least, most] = find_extremes();
      if (checks_balance && !buckets.empty() && most - least <= kSlack * most) return;
    }
  }

  int32_t open_group(int64_t size) {
    Group group{size, {}, {}, 0.0};
    const auto id = static_cast<int32_t>(groups_.size());
    for (int32_t rank = 0; rank < ranks_ && std::ssize(group.members) < size; ++rank) {
      if (group_of_[static_cast<size_t>(rank)] >= 0) continue;
      group_of_[static_cast<size_t>(rank)] = id;
      group.members.push_back(rank);
    }
    groups_.push_back(std::move(group));
    return id;
  }

  /// Drops the last sequence of the busiest group as long as that evens the round.
  void take_back(std::vector<int64_t>& left) {
    while (true) {
      const auto [least, most] = find_extremes();
      if (most - least <= kSlack * most || least == 0.0) return;
      int32_t busiest = 0;
      while (load_of(busiest) != most) ++busiest;
      Group& group = groups_[static_cast<size_t>(group_of_[static_cast<size_t>(busiest)])];
      if (group.sequences.size() <= 1) return;
      const int64_t s = group.sequences.back();
      const double load = group.load;
      // Megatron counts a sequence here with the ranks that it needs.
      group.load = load - cost(s);
      const auto [least_without, most_without] = find_extremes();
      if (most_without - least_without >= most - least) {
        group.load = load;
        return;
      }
      group.sequences.pop_back();
      left.push_back(s);
    }
  }

  /// Doubles the first of the smallest groups until every rank has work. The groups behind it move
  /// on, so that ranks of a group stay consecutive.
  std::optional<Error> fill_idle_ranks() {
    while (num_free() > 0) {
      int64_t smallest = std::numeric_limits<int64_t>::max();
      for (const Group& group : groups_) smallest = std::min(smallest, group.size);
      const int64_t size = std::min<int64_t>(2 * smallest, ranks_);
      if (num_free() < size - smallest) {
        return make_refusal(
            fmt::format("Megatron's scheduler has no use for {} of {} ranks in a round: the "
                        "smallest of its groups, of {} ranks, would need {} more",
                        num_free(), ranks_, smallest, size - smallest),
            "use another max_tokens_per_rank, or cp_sizes of your own",
            {"parallel.max_tokens_per_rank", "parallel.cp_sizes"});
      }
      const auto grown = std::find_if(groups_.begin(), groups_.end(),
                                      [&](const Group& group) { return group.size == smallest; });
      const int32_t begin = grown->members.front();
      const auto added = static_cast<int32_t>(size - smallest);
      for (auto group = grown + 1; group != groups_.end(); ++group) {
        for (int32_t& member : group->members) member += added;
      }
      grown->size = size;
      grown->members.resize(static_cast<size_t>(size));
      std::iota(grown->members.begin(), grown->members.end(), begin);
      group_of_.assign(static_cast<size_t>(ranks_), -1);
      for (size_t g = 0; g < groups_.size(); ++g) {
        for (const int32_t member : groups_[g].members)
          group_of_[static_cast<size_t>(member)] = static_cast<int32_t>(g);
      }
    }
    return std::nullopt;
  }

  std::span<const int64_t> lengths_;
  int64_t most_;
  int32_t ranks_;
  std::vector<Group> groups_;
  std::vector<int32_t> group_of_;  // [rank] -1: idle
};

}  // namespace

Result<std::vector<CpRound>> schedule_hybrid(std::span<const int64_t> lengths,
                                             int64_t max_tokens_per_rank, int32_t ranks) {
  HybridScheduler scheduler(lengths, max_tokens_per_rank, ranks);
  for (int64_t s = 0; s < std::ssize(lengths); ++s) {
    if (scheduler.size_of(s) <= ranks) continue;
    return make_refusal(
        fmt::format("sequence {} of {} tokens needs {} ranks that hold at most {} tokens of it, "
                    "cp_size is {}",
                    s, lengths[static_cast<size_t>(s)], scheduler.size_of(s), max_tokens_per_rank,
                    ranks),
        "use a larger max_tokens_per_rank, or more ranks",
        {"parallel.max_tokens_per_rank", "parallel.cp_size"});
  }
  return scheduler.run();
}

}  // namespace cpscope
