#include "sim/plan/plan_summary.h"

#include "sim/base/id_vector.h"
#include "sim/base/ids.h"
#include "sim/base/parallel.h"
#include "sim/plan/visible_interval.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace cpscope {
namespace {

struct KeyRange {
  int64_t begin, end;  // packed padded key ids
};

void add_key_range(std::vector<KeyRange>& ranges, KeyRange range) {
  if (range.begin >= range.end) return;
  // Neighbouring queries see neighbouring keys: most ranges only extend the last one.
  if (!ranges.empty() && range.begin >= ranges.back().begin && range.begin <= ranges.back().end) {
    ranges.back().end = std::max(ranges.back().end, range.end);
  } else {
    ranges.push_back(range);
  }
}

std::vector<KeyRange> united(std::vector<KeyRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const KeyRange& a, const KeyRange& b) { return a.begin < b.begin; });
  std::vector<KeyRange> out;
  for (const KeyRange& range : ranges) add_key_range(out, range);
  return out;
}

/// Adds the keys that the query at (sequence, position) sees through the mask slices.
void add_slice_ranges(const Plan& plan, const SliceRows& rows, int64_t s, int64_t position,
                      int64_t q_base, int64_t kv_base, ColumnRange own,
                      std::vector<KeyRange>& ranges) {
  const int64_t first_key = plan.layout.slots.sequences[s].kv_valid_begin();
  for (const int32_t number : rows.near(s, position)) {
    const MaskSlice& slice = plan.scenario.attention.slices[number];
    const int64_t row = q_base + position - slice.q0;
    if (row < 0 || q_base + position >= slice.q1) continue;
    int64_t begin = slice.k0, end = slice.k1;
    if (slice.type == SliceType::inv_causal || slice.type == SliceType::bi_causal) begin += row;
    if (slice.type == SliceType::causal || slice.type == SliceType::bi_causal)
      end -= slice.q1 - slice.q0 - 1 - row;
    add_key_range(ranges, {first_key + std::max(begin - kv_base, own.begin),
                           first_key + std::min(end - kv_base, own.end)});
  }
}

struct Bases {
  std::vector<int64_t> q, kv;  // valid tokens before each sequence
};

/// Appends the keys that the queries of a list see.
void add_keys_seen(const Plan& plan, const SliceRows& slice_rows, const Bases& bases,
                   RunListId queries, std::vector<KeyRange>& ranges) {
  const auto& sequences = plan.layout.slots.sequences;
  const bool has_slices = plan.scenario.attention.mask_type == MaskType::slices;
  for (const TokenRun& run : plan.list(queries)) {
    size_t s =
        static_cast<size_t>(std::partition_point(sequences.begin(), sequences.end(),
                                                 [&](const SequenceSlot& slot) {
                                                   return slot.q_begin + slot.q_slot <= run.begin;
                                                 }) -
                            sequences.begin());
    const int64_t run_last = run.last();
    int64_t looked_until = -1;  // last token of a sequence whose queries are looked at one by one
    for (int64_t token = run.begin; token < run.end && s < sequences.size(); token += run.stride) {
      while (s < sequences.size() && sequences[s].q_begin + sequences[s].q_slot <= token) ++s;
      if (s == sequences.size()) break;
      const int64_t position = token - sequences[s].q_valid_begin();
      if (position < 0 || position >= sequences[s].q_valid) continue;
      const ColumnRange own = visible_interval(plan.scenario.attention, sequences[s], position);
      if (has_slices) {
        add_slice_ranges(plan, slice_rows, static_cast<int64_t>(s), position, bases.q[s],
                         bases.kv[s], own, ranges);
        continue;
      }
      const int64_t first_key = sequences[s].kv_valid_begin();
      if (token > looked_until) {
        // Both ends of what queries see never decrease: all that see from one key on see what the
        // last of them sees, or less.
        const int64_t left = (sequences[s].q_valid - 1 - position) / run.stride;
        const int64_t last = std::min(run_last, token + left * run.stride);
        const ColumnRange most =
            visible_interval(plan.scenario.attention, sequences[s], position + last - token);
        if (most.begin == own.begin) {
          add_key_range(ranges, {first_key + most.begin, first_key + most.end});
          token = last;
          continue;
        }
        looked_until = last;
      }
      add_key_range(ranges, {first_key + own.begin, first_key + own.end});
    }
  }
}

int64_t count_inside(const TokenRun& run, const KeyRange& range) {
  const auto index_of = [&](int64_t id) {
    return id <= run.begin ? 0
                           : std::min(run.count(), (id - run.begin + run.stride - 1) / run.stride);
  };
  return index_of(range.end) - index_of(range.begin);
}

/// The keys that every rank holds, but those that this one owns.
std::vector<TokenRun> replicated_keys(const Plan& plan, RankId rank) {
  const BufferId replica = plan.home[rank].replica;
  if (replica == kNoBuffer) return {};
  const std::vector<int64_t> owned = expand(plan.list(plan.kv_lists[rank]));
  std::vector<int64_t> others = expand(plan.list(plan.buffer(replica).tokens));
  std::vector<int64_t> sorted = owned;
  std::sort(sorted.begin(), sorted.end());
  std::erase_if(others, [&](int64_t token) {
    return std::binary_search(sorted.begin(), sorted.end(), token);
  });
  return runs_of(others);
}

/// How many of the keys that are seen these ranks do not hold.
int64_t remote_keys(const Plan& plan, const std::vector<KeyRange>& seen, RankId first, RankId end) {
  int64_t remote = 0;
  for (const KeyRange& range : seen) remote += range.end - range.begin;
  const auto take = [&](std::span<const TokenRun> held) {
    for (const TokenRun& run : held) {
      auto range = std::partition_point(seen.begin(), seen.end(),
                                        [&](const KeyRange& r) { return r.end <= run.begin; });
      for (; range != seen.end() && range->begin < run.end; ++range)
        remote -= count_inside(run, *range);
    }
  };
  for (RankId rank = first; rank < end; rank = RankId{to_index(rank) + 1}) {
    take(plan.list(plan.kv_lists[rank]));
    take(replicated_keys(plan, rank));
  }
  return remote;
}

/// Bytes of the keys that groups of consecutive ranks do not hold and need for the queries of their
/// ranks.
int64_t count_necessary(const Plan& plan, const IdVector<RankId, std::vector<RunListId>>& queries,
                        int32_t group) {
  Bases bases;
  int64_t q = 0, kv = 0;
  for (const SequenceSlot& slot : plan.layout.slots.sequences) {
    bases.q.push_back(q);
    bases.kv.push_back(kv);
    q += slot.q_valid;
    kv += slot.kv_valid;
  }
  const SliceRows slice_rows(plan);
  const auto ranks = static_cast<int32_t>(plan.home.size());
  std::vector<int64_t> remote(static_cast<size_t>((ranks + group - 1) / group));
  for_each_index(std::ssize(remote), [&](int64_t g) {
    const auto begin = static_cast<int32_t>(g) * group, end = std::min(ranks, begin + group);
    std::vector<KeyRange> seen;
    for (int32_t rank = begin; rank < end; ++rank) {
      for (const RunListId list : queries[RankId{rank}])
        add_keys_seen(plan, slice_rows, bases, list, seen);
    }
    remote[static_cast<size_t>(g)] =
        remote_keys(plan, united(std::move(seen)), RankId{begin}, RankId{end});
  });
  const Attention& attention = plan.scenario.attention;
  TransferItem row;
  row.payload = Payload::kv;
  return std::accumulate(remote.begin(), remote.end(), int64_t{0}) * attention.kv_heads *
         lanes_of(BufferKind::kv, attention) * wire_element_bytes(row, plan.scenario);
}

IdVector<RankId, std::vector<RunListId>> own_queries(const Plan& plan) {
  IdVector<RankId, std::vector<RunListId>> queries;
  for (const RunListId list : plan.q_lists) queries.push_back({list});
  return queries;
}

void sum_bytes(const Plan& plan, const Pass& pass, std::vector<int64_t>& bytes,
               std::vector<int64_t>& small) {
  for (const TransferItem& item : pass.transfers) {
    const int64_t statistics = small_bytes(item, plan.rows_of(item), plan.scenario.numerics);
    bytes[to_index(item.src)] += item.bytes - statistics;
    small[to_index(item.src)] += statistics;
  }
}

}  // namespace

int64_t necessary_kv_bytes(const Plan& plan) { return count_necessary(plan, own_queries(plan), 1); }

int64_t necessary_kv_bytes_of_groups(const Plan& plan, int32_t group) {
  return count_necessary(plan, own_queries(plan), group);
}

int64_t necessary_kv_bytes(const Plan& plan,
                           const IdVector<RankId, std::vector<RunListId>>& queries) {
  return count_necessary(plan, queries, 1);
}

PlanSummary summarise(const Plan& plan) {
  const size_t ranks = static_cast<size_t>(plan.layout.cp_size);
  PlanSummary summary;
  summary.steps = plan.forward.num_steps;
  summary.pairs_by_rank.assign(ranks, 0);
  summary.pairs_by_step_rank.assign(static_cast<size_t>(summary.steps),
                                    std::vector<int64_t>(ranks, 0));
  for (const ComputeItem& item : plan.forward.computes) {
    summary.visible_pairs += item.visible_pairs;
    summary.pairs_by_rank[to_index(item.rank)] += item.visible_pairs;
    summary.pairs_by_step_rank[to_index(item.step)][to_index(item.rank)] += item.visible_pairs;
  }
  if (summary.visible_pairs > 0) {
    const double mean = static_cast<double>(summary.visible_pairs) / static_cast<double>(ranks);
    summary.rank_max_over_mean = static_cast<double>(*std::max_element(
                                     summary.pairs_by_rank.begin(), summary.pairs_by_rank.end())) /
                                 mean;
    double critical_path = 0;
    for (const auto& step : summary.pairs_by_step_rank)
      critical_path += static_cast<double>(*std::max_element(step.begin(), step.end()));
    summary.critical_path_over_ideal = critical_path / mean;
  }
  for (auto* bytes : {&summary.forward_bytes, &summary.backward_bytes, &summary.forward_small_bytes,
                      &summary.backward_small_bytes}) {
    bytes->assign(ranks, 0);
  }
  sum_bytes(plan, plan.forward, summary.forward_bytes, summary.forward_small_bytes);
  sum_bytes(plan, plan.backward, summary.backward_bytes, summary.backward_small_bytes);
  for (int64_t& bytes : summary.forward_small_bytes)
    bytes += scale_bytes(plan.scenario, Direction::forward);
  for (int64_t& bytes : summary.backward_small_bytes)
    bytes += scale_bytes(plan.scenario, Direction::backward);
  for (const TransferItem& item : plan.forward.transfers)
    summary.kv_bytes_moved += item.payload == Payload::kv ? item.bytes : 0;
  summary.kv_bytes_necessary = necessary_kv_bytes(plan);
  return summary;
}

}  // namespace cpscope
