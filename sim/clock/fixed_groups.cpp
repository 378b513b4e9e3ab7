#include "sim/clock/fixed_groups.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr std::array kGroupTypes = {CommType::p2p, CommType::a2a, CommType::all_gather};

/// The batch with these sequences alone, on the ranks of a group.
Scenario take_sequences(const Scenario& scenario, const std::vector<int64_t>& sequences,
                        const Parallel& parallel) {
  Scenario part = scenario;
  part.parallel = parallel;
  part.batch.generator.reset();
  part.batch.positions_file.clear();  // no time depends on positions
  part.batch.q_positions.clear();
  part.batch.kv_positions.clear();
  const auto take = [&](const std::vector<int64_t>& all, std::vector<int64_t>& own) {
    own.clear();
    for (const int64_t s : sequences) own.push_back(all[static_cast<size_t>(s)]);
  };
  take(scenario.batch.lengths, part.batch.lengths);
  take(scenario.batch.slots, part.batch.slots);
  take(scenario.batch.kv_lengths, part.batch.kv_lengths);
  take(scenario.batch.kv_slots, part.batch.kv_slots);
  return part;
}

std::string refusal_of_groups(const Scenario& scenario, const Cluster& cluster, int32_t size) {
  if (scenario.attention.mask_type == MaskType::slices)
    return "mask slices name tokens of the whole batch, and groups have sequences of their own";
  const int32_t node = cluster.gpus_per_node;
  if (node % size != 0 && size % node != 0)
    return fmt::format("groups of {} ranks do not fit in nodes of {} GPUs", size, node);
  return "";
}

/// Adds a group that works at the same time as those before.
void add_group(const Candidate& part, double share, Candidate& all) {
  if (part.total_us() > all.total_us()) {
    all.forward_us = part.forward_us;
    all.backward_us = part.backward_us;
    all.reshard_us = part.reshard_us;
  }
  all.mean.compute_us += share * part.mean.compute_us;
  all.mean.local_us += share * part.mean.local_us;
  all.mean.exposed_us += share * part.mean.exposed_us;
  all.mean.idle_us += share * part.mean.idle_us;
  all.mean.launch_us += share * part.mean.launch_us;
  all.mean.partner_us += share * part.mean.partner_us;
  all.mean.host_us += share * part.mean.host_us;
  all.exposed_us = std::max(all.exposed_us, part.exposed_us);
  all.bytes_sent = std::max(all.bytes_sent, part.bytes_sent);
  all.memory_bytes = std::max(all.memory_bytes, part.memory_bytes);
  all.kv_necessary += part.kv_necessary;
  all.kv_moved += part.kv_moved;
  all.fits = all.fits && part.fits;
  all.visible_pairs += part.visible_pairs;
  all.query_rows = std::max(all.query_rows, part.query_rows);
}

}  // namespace

std::vector<Parallel> list_fixed_groups(const Scenario& scenario) {
  const Parallel& own = scenario.parallel;
  std::vector<Parallel> list;
  const std::vector<int64_t>& lengths = scenario.batch.lengths;
  if (lengths.size() < 2 || scenario.batch.qkv_format != QkvFormat::thd) return list;
  if (!has_rounds(own) && own.max_tokens_per_rank == 0) return list;
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (int32_t size = 1; size < own.cp_size; size *= 2) {
    const bool holds = own.max_tokens_per_rank == 0 || longest <= own.max_tokens_per_rank * size;
    if (own.cp_size % size != 0 || !holds) continue;
    for (const CommType type : kGroupTypes) {
      if (size == 1 && type != CommType::p2p) continue;  // nothing is sent
      Parallel parallel = own;
      parallel.cp_size = size;
      parallel.comm_type = type;
      parallel.layout = LayoutKind::dual_chunk;
      parallel.group_rule = GroupRule::all_ranks;
      parallel.cp_sizes.clear();
      parallel.ring_backward = RingBackward::kv;
      parallel.heads_per_stage = 0;
      parallel.indices_file.clear();
      parallel.imported = {};
      list.push_back(parallel);
    }
  }
  return list;
}

std::vector<std::vector<int64_t>> share_among_groups(const std::vector<int64_t>& lengths,
                                                     int64_t groups) {
  std::vector<std::vector<int64_t>> sequences(static_cast<size_t>(groups));
  std::vector<int64_t> tokens(static_cast<size_t>(groups), 0);
  for (size_t s = 0; s < lengths.size(); ++s) {
    const auto least =
        static_cast<size_t>(std::min_element(tokens.begin(), tokens.end()) - tokens.begin());
    sequences[least].push_back(static_cast<int64_t>(s));
    tokens[least] += lengths[s];
  }
  return sequences;
}

void try_fixed_groups(const Scenario& scenario, const Cluster& cluster,
                      const CandidateOptions& options, Candidate& candidate) {
  const int32_t size = candidate.parallel.cp_size, groups = scenario.parallel.cp_size / size;
  candidate.refusal = refusal_of_groups(scenario, cluster, size);
  if (!candidate.refusal.empty()) return;
  const double share = 1.0 / groups;
  double sum_us = 0, passes_us = 0;
  double most_pairs = 0, longest_path = 0, padding = 0, rows = 0;
  for (const std::vector<int64_t>& sequences : share_among_groups(scenario.batch.lengths, groups)) {
    if (sequences.empty()) continue;  // it waits for all of the time
    const Scenario own = take_sequences(scenario, sequences, candidate.parallel);
    Candidate part;
    part.parallel = candidate.parallel;
    try_candidate(own, cluster, options, part);
    if (!part.refusal.empty()) {
      candidate.refusal = part.refusal;
      return;
    }
    add_group(part, share, candidate);
    sum_us += part.total_us();
    passes_us += part.forward_us + part.backward_us;
    const auto pairs = static_cast<double>(part.visible_pairs) / size;
    most_pairs = std::max(most_pairs, part.rank_max_over_mean * pairs);
    longest_path = std::max(longest_path, part.critical_path_over_ideal * pairs);
    padding += part.padding_share * static_cast<double>(part.query_rows);
    rows += static_cast<double>(part.query_rows);
  }
  candidate.mean.idle_us += candidate.forward_us + candidate.backward_us - share * passes_us;
  const double mean_pairs =
      static_cast<double>(candidate.visible_pairs) / scenario.parallel.cp_size;
  if (mean_pairs > 0) {
    candidate.rank_max_over_mean = most_pairs / mean_pairs;
    candidate.critical_path_over_ideal = longest_path / mean_pairs;
  }
  if (rows > 0) candidate.padding_share = padding / rows;
  if (candidate.total_us() > 0) candidate.group_loss = 1 - share * sum_us / candidate.total_us();
}

}  // namespace cpscope
