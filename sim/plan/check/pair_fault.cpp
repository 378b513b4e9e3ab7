#include "sim/plan/check/pair_fault.h"

#include "sim/plan/check/pair_print.h"
#include "sim/plan/visible_interval.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace cpscope {
namespace {

constexpr int64_t kMostQueries = 1024, kMostKeys = 4096;

/// Tokens of one run of a rank's home buffer, from one token on, and their sequence.
struct OwnedRun {
  RankId owner{};
  int64_t sequence = -1;
  TokenRun tokens;
};

OwnedRun run_from(const Plan& plan, Side side, int64_t token, int64_t most) {
  OwnedRun found;
  for (const RankId rank : plan.home.ids()) {
    for (const TokenRun& run : plan.list(plan.lists(side)[rank])) {
      if (token < run.begin || token >= run.end || (token - run.begin) % run.stride != 0) continue;
      found.owner = rank;
      found.tokens = {token, std::min(run.end, token + most * run.stride), run.stride};
    }
  }
  const auto& sequences = plan.layout.slots.sequences;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SlotSide slot = sequences[s].side(side);
    if (!slot.is_valid(token)) continue;
    found.sequence = static_cast<int64_t>(s);
    found.tokens.end = std::min(found.tokens.end, slot.valid_end());
  }
  return found;
}

/// Where the tokens of a run lie in a token list: (row, place in the run), by row.
using ListPlaces = std::vector<std::pair<int64_t, int64_t>>;

ListPlaces places_in_list(std::span<const TokenRun> list, const TokenRun& wanted) {
  ListPlaces places;
  int64_t first_row = 0;
  for (const TokenRun& run : list) {
    const int64_t behind = std::max<int64_t>(0, run.begin - wanted.begin);
    for (int64_t i = (behind + wanted.stride - 1) / wanted.stride; i < wanted.count(); ++i) {
      const int64_t token = wanted.at(i);
      if (token >= run.end) break;
      if ((token - run.begin) % run.stride == 0)
        places.emplace_back(first_row + (token - run.begin) / run.stride, i);
    }
    first_row += run.count();
  }
  return places;
}

/// How often the pairs of some queries and keys are computed with one head, less once where the
/// mask shows them.
class PairTable {
 public:
  PairTable(const Plan& plan, const OwnedRun& q, const OwnedRun& k)
      : plan_(plan), q_(q), k_(k), columns_(k.tokens.count()) {
    excess_.assign(static_cast<size_t>(q.tokens.count() * columns_), 0);
    is_visible_.assign(excess_.size(), false);
    const SequenceSlot& slot = plan.layout.slots.sequences[static_cast<size_t>(q.sequence)];
    for (const VisibleBlock& block : visible_blocks(plan)) {
      if (block.sequence != q.sequence) continue;
      for (int64_t i = 0; i < q.tokens.count(); ++i) {
        const int64_t position = q.tokens.at(i) - slot.q_valid_begin();
        if (position < block.begin || position >= block.end) continue;
        const ColumnRange seen = visible_keys(plan, block, position);
        for (int64_t j = 0; j < columns_; ++j) {
          const int64_t key = k.tokens.at(j) - slot.kv_valid_begin();
          if (key < seen.begin || key >= seen.end) continue;
          is_visible_[at(i, j)] = true;
          --excess_[at(i, j)];
        }
      }
    }
  }

  void count(Direction direction, int32_t head) {
    std::map<std::pair<RunListId, Side>, ListPlaces> known;
    const auto places = [&](RunListId list, Side side) -> const ListPlaces& {
      const auto [found, is_new] = known.try_emplace({list, side});
      if (is_new)
        found->second = places_in_list(plan_.list(list), side == Side::q ? q_.tokens : k_.tokens);
      return found->second;
    };
    for (const ComputeItem& item : plan_.pass(direction).computes) {
      if (head < item.heads.begin || head >= item.heads.end) continue;
      const ListPlaces &rows = places(item.q_tokens, Side::q),
                      &columns = places(item.kv_tokens, Side::kv);
      if (rows.empty() || columns.empty()) continue;
      for (const BandSlice& band : plan_.slices_of(item)) {
        for (const auto& [row, i] : rows) {
          if (row < band.q0 || row >= band.q1) continue;
          const ColumnRange seen = columns_of_row(band, row);
          for (const auto& [column, j] : columns)
            excess_[at(i, j)] += column >= seen.begin && column < seen.end;
        }
      }
    }
  }

  /// Shortens the runs to the largest rectangle from the first pair on, row by row, whose visible
  /// pairs are all wrong in the way of the first one.
  void shrink(OwnedRun& q, OwnedRun& k) const {
    const bool is_doubled = excess_.front() > 0;
    const auto is_wrong = [&](int64_t i, int64_t j) {
      return is_doubled ? excess_[at(i, j)] > 0 : excess_[at(i, j)] < 0;
    };
    int64_t rows = 0, width = 0, limit = columns_;
    for (; rows < q.tokens.count() && is_wrong(rows, 0); ++rows) {
      int64_t wrong = 0, right = 0;
      while (wrong < columns_ && is_wrong(rows, wrong)) ++wrong;
      while (right < columns_ && (!is_visible_[at(rows, right)] || is_wrong(rows, right))) ++right;
      if (right < width) break;
      limit = std::min(limit, right);
      width = std::min(limit, std::max(width, wrong));
    }
    q.tokens.end = q.tokens.at(rows - 1) + 1;
    k.tokens.end = k.tokens.at(width - 1) + 1;
  }

 private:
  size_t at(int64_t i, int64_t j) const { return static_cast<size_t>(i * columns_ + j); }

  const Plan& plan_;
  const OwnedRun &q_, &k_;
  int64_t columns_;
  std::vector<int32_t> excess_;
  std::vector<bool> is_visible_;
};

/// [head] How often one pair is computed.
std::vector<int32_t> count_by_head(const Plan& plan, Direction direction, int64_t query,
                                   int64_t key) {
  std::vector<int32_t> times(static_cast<size_t>(plan.scenario.attention.heads), 0);
  std::map<std::pair<RunListId, Side>, ListPlaces> known;
  const auto row_of = [&](RunListId list, Side side, int64_t token) {
    const auto [found, is_new] = known.try_emplace({list, side});
    if (is_new) found->second = places_in_list(plan.list(list), {token, token + 1, 1});
    return found->second.empty() ? -1 : found->second.front().first;
  };
  for (const ComputeItem& item : plan.pass(direction).computes) {
    const int64_t row = row_of(item.q_tokens, Side::q, query);
    const int64_t column = row < 0 ? -1 : row_of(item.kv_tokens, Side::kv, key);
    if (column < 0) continue;
    for (const BandSlice& band : plan.slices_of(item)) {
      if (row < band.q0 || row >= band.q1) continue;
      const ColumnRange seen = columns_of_row(band, row);
      if (column < seen.begin || column >= seen.end) continue;
      for (int32_t head = item.heads.begin; head < item.heads.end; ++head)
        ++times[static_cast<size_t>(head)];
    }
  }
  return times;
}

OwnedPositions positions_of(const Plan& plan, Side side, const OwnedRun& run) {
  const int64_t first =
      plan.layout.slots.sequences[static_cast<size_t>(run.sequence)].side(side).valid_begin();
  return {run.owner, run.tokens.begin - first, run.tokens.end - first, run.tokens.stride};
}

}  // namespace

std::optional<PairFault> find_pair_fault(const Plan& plan, Direction direction) {
  const auto found = PairPrint(plan).find_difference(direction);
  if (!found) return std::nullopt;
  OwnedRun q = run_from(plan, Side::q, found->query, kMostQueries);
  OwnedRun k = run_from(plan, Side::kv, found->key, kMostKeys);
  const OwnedRun all_q = q, all_k = k;
  PairTable table(plan, all_q, all_k);
  table.count(direction, found->head);
  table.shrink(q, k);
  PairFault fault{q.sequence,
                  positions_of(plan, Side::q, q),
                  positions_of(plan, Side::kv, k),
                  {found->head, found->head + 1}};
  const std::vector<int32_t> times = count_by_head(plan, direction, found->query, found->key);
  const bool is_doubled = found->first != nullptr;
  const auto heads = static_cast<int32_t>(times.size());
  while (fault.heads.end < heads && (is_doubled ? times[static_cast<size_t>(fault.heads.end)] > 1
                                                : times[static_cast<size_t>(fault.heads.end)] == 0))
    ++fault.heads.end;
  if (is_doubled) {
    const ComputeItem* begin = plan.pass(direction).computes.data();
    fault.first = found->first - begin;
    fault.second = found->last - begin;
  }
  return fault;
}

}  // namespace cpscope
