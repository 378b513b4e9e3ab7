#include "sim/plan/check/check_rows.h"
#include "sim/plan/round_steps.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int32_t kNone = -1;

/// Where a sequence is computed.
struct Place {
  int32_t round = kNone;
  int32_t first_rank = 0, size = 0;

  bool has(RankId rank) const {
    return to_index(rank) >= first_rank && to_index(rank) < first_rank + size;
  }
};

/// Looks whether every step of a plan works inside the groups of one round.
class RoundCheck {
 public:
  explicit RoundCheck(const Plan& plan) : plan_(plan) {}

  std::optional<std::string> run(std::optional<ItemId>& wrong) {
    if (auto text = look_at_groups()) return text;
    if (auto text = look_at_owners()) return text;
    for (const Direction direction : kDirections) {
      if (auto text = look_at_steps(direction, wrong)) return text;
    }
    return std::nullopt;
  }

 private:
  /// Every sequence is in one group; groups of a round share no rank; sizes are those asked for.
  std::optional<std::string> look_at_groups() {
    const Parallel& parallel = plan_.scenario.parallel;
    const std::vector<int64_t>& lengths = plan_.scenario.batch.lengths;
    places_.assign(lengths.size(), Place{});
    for (size_t k = 0; k < plan_.layout.rounds.size(); ++k) {
      int32_t free_from = 0;
      for (const CpGroup& group : plan_.layout.rounds[k].groups) {
        if (group.size < 1 || group.first_rank < free_from ||
            group.first_rank + group.size > parallel.cp_size)
          return fmt::format("round {}: ranks {} to {} are in another group too, or do not exist",
                             k, group.first_rank, group.first_rank + group.size - 1);
        free_from = group.first_rank + group.size;
        int64_t tokens = 0;
        for (const int64_t s : group.sequences) {
          if (s < 0 || s >= std::ssize(lengths) || places_[static_cast<size_t>(s)].round != kNone)
            return fmt::format("sequence {} is in two groups, or does not exist", s);
          places_[static_cast<size_t>(s)] = {static_cast<int32_t>(k), group.first_rank, group.size};
          const int64_t length = lengths[static_cast<size_t>(s)];
          const bool is_asked_for = is_size_of(group.size, s);
          if (!is_asked_for)
            return fmt::format("round {}: sequence {} of {} tokens is on {} ranks", k, s, length,
                               group.size);
          tokens += length;
        }
        const bool is_filled_up =
            parallel.group_rule == GroupRule::flexsp || parallel.group_rule == GroupRule::bytescale;
        if (is_filled_up && tokens > parallel.max_tokens_per_rank * group.size)
          return fmt::format("round {}: ranks {} to {} hold {} tokens, more than {} each", k,
                             group.first_rank, group.first_rank + group.size - 1, tokens,
                             parallel.max_tokens_per_rank);
      }
    }
    const auto lost = std::find_if(places_.begin(), places_.end(),
                                   [](const Place& place) { return place.round == kNone; });
    if (lost == places_.end()) return std::nullopt;
    return fmt::format("sequence {} is in no group", lost - places_.begin());
  }

  /// True if the scenario allows this sequence to be on so many ranks.
  bool is_size_of(int64_t size, int64_t sequence) const {
    const Parallel& parallel = plan_.scenario.parallel;
    const int64_t most = parallel.max_tokens_per_rank;
    const bool fits = plan_.scenario.batch.lengths[static_cast<size_t>(sequence)] <= most * size;
    if (parallel.group_rule == GroupRule::given)
      return parallel.cp_sizes[static_cast<size_t>(sequence)] == size;
    if (parallel.group_rule == GroupRule::fixed)
      return parallel.cp_sizes.front() == size && (most == 0 || fits);
    return fits;
  }

  /// The sequences of a list; of padding alone, the sequence of its slot.
  const std::set<int64_t>& sequences_of(RunListId list, Side side) {
    const auto known = sequences_.find({list, side});
    if (known != sequences_.end()) return known->second;
    std::set<int64_t>& found = sequences_[{list, side}];
    const RowReader reader(plan_, list, side);
    const auto [from, to] = reader.stretches(0, reader.rows());
    for (const Stretch* stretch = from; stretch != to; ++stretch) {
      if (stretch->sequence >= 0) found.insert(stretch->sequence);
    }
    if (found.empty() && reader.rows() > 0) add_slot(plan_.list(list).front().begin, side, found);
    return found;
  }

  /// The sequence whose padding a token is.
  void add_slot(int64_t token, Side side, std::set<int64_t>& found) const {
    const std::vector<SequenceSlot>& sequences = plan_.layout.slots.sequences;
    const auto slot = std::find_if(
        sequences.begin(), sequences.end(),
        [&](const SequenceSlot& sequence) { return sequence.side(side).end() > token; });
    if (slot != sequences.end()) found.insert(slot - sequences.begin());
  }

  /// A rank owns tokens of its groups alone.
  std::optional<std::string> look_at_owners() {
    for (const Side side : {Side::q, Side::kv}) {
      for (const RankId rank : plan_.home.ids()) {
        for (const int64_t s : sequences_of(plan_.lists(side)[rank], side)) {
          if (!places_[static_cast<size_t>(s)].has(rank))
            return fmt::format("rank {} owns {} of sequence {}, which is on ranks {} to {}",
                               to_index(rank), side == Side::q ? "queries" : "keys", s,
                               places_[static_cast<size_t>(s)].first_rank,
                               places_[static_cast<size_t>(s)].first_rank +
                                   places_[static_cast<size_t>(s)].size - 1);
        }
      }
    }
    return std::nullopt;
  }

  /// Computes of a step are of one round, rounds come one after another, and rows only go between
  /// ranks of one group.
  std::optional<std::string> look_at_steps(Direction direction, std::optional<ItemId>& wrong) {
    const Pass& pass = plan_.pass(direction);
    const std::vector<int32_t> rounds = rounds_of_steps(plan_, direction);
    for (const ComputeItem& item : pass.computes) {
      wrong = ItemId{direction, StageKind::compute, &item - pass.computes.data()};
      for (const Side side : {Side::q, Side::kv}) {
        for (const int64_t s :
             sequences_of(side == Side::q ? item.q_tokens : item.kv_tokens, side)) {
          const Place& place = places_[static_cast<size_t>(s)];
          const int32_t round = rounds[static_cast<size_t>(to_index(item.step))];
          if (round != place.round || !place.has(item.rank))
            return fmt::format(
                "{}, step {}: rank {} computes sequence {} of round {} in round {}, on ranks {} to "
                "{}",
                to_name(direction), to_index(item.step), to_index(item.rank), s, place.round, round,
                place.first_rank, place.first_rank + place.size - 1);
        }
      }
    }
    wrong.reset();
    const auto back = std::adjacent_find(rounds.begin(), rounds.end(), std::greater<>());
    if (back != rounds.end())
      return fmt::format("{}: round {} comes after round {}", to_name(direction), back[1], back[0]);
    for (const TransferItem& item : pass.transfers) {
      wrong = ItemId{direction, StageKind::transfer, &item - pass.transfers.data()};
      const auto round = static_cast<size_t>(rounds[static_cast<size_t>(to_index(item.step))]);
      // Rounds of steps are those of the tokens that they compute: without one there is none.
      if (item.src == item.dst || plan_.rows_of(item) == 0) continue;
      if (!are_together(round, item.src, item.dst))
        return fmt::format(
            "{}, step {}: {} goes from rank {} to rank {}, which share no group of "
            "round {}",
            to_name(direction), to_index(item.step), to_name(item.payload), to_index(item.src),
            to_index(item.dst), round);
    }
    wrong.reset();
    return std::nullopt;
  }

  bool are_together(size_t round, RankId one, RankId other) const {
    const std::vector<CpGroup>& groups = plan_.layout.rounds[round].groups;
    // Groups ascend by their first rank.
    const auto after = std::partition_point(
        groups.begin(), groups.end(),
        [&](const CpGroup& group) { return group.first_rank + group.size <= to_index(one); });
    return after != groups.end() && after->has(to_index(one)) && after->has(to_index(other));
  }

  const Plan& plan_;
  std::vector<Place> places_;  // [sequence]
  std::map<std::pair<RunListId, Side>, std::set<int64_t>> sequences_;
};

}  // namespace

CheckResult check_rounds(const Plan& plan) {
  std::optional<ItemId> wrong;
  if (auto text = RoundCheck(plan).run(wrong)) return broken("rounds", *text, wrong);
  return passed("rounds",
                "every sequence is owned and computed by one group of one round, and no row leaves "
                "its group");
}

}  // namespace cpscope
