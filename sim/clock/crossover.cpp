#include "sim/clock/crossover.h"

#include "sim/base/parallel.h"
#include "sim/clock/candidate_figures.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr std::array kKeysTravel = {CommType::p2p, CommType::all_gather, CommType::group_cast};
/// Share of the number of queries up to which the crossover is found.
constexpr int64_t kExact = 50;

std::optional<Error> refuse_fixed_cells(const Scenario& scenario) {
  const Attention& attention = scenario.attention;
  const auto refuse = [](const char* what, const char* key) {
    return make_refusal(
        fmt::format("a crossover needs a mask that follows from the lengths, and {} does not",
                    what),
        "leave it out", {key});
  };
  if (attention.mask_type == MaskType::slices)
    return refuse("attn_mask_type = \"slices\"", "attention.attn_mask_type");
  if (attention.bias != BiasShape::none) return refuse("a bias", "attention.bias");
  if (!scenario.batch.positions_file.empty())
    return refuse("positions_file", "batch.positions_file");
  return std::nullopt;
}

/// The batch with about so many queries, which end their sequences; forward alone.
Scenario with_queries(const Scenario& scenario, int64_t queries) {
  Scenario other = scenario;
  other.numerics.backward = false;
  Batch& batch = other.batch;
  const int64_t keys =
      std::accumulate(batch.kv_lengths.begin(), batch.kv_lengths.end(), int64_t{0});
  const int64_t multiple = int64_t{2} * scenario.parallel.cp_size;
  for (size_t s = 0; s < batch.lengths.size(); ++s) {
    const int64_t share = (queries * batch.kv_lengths[s] + keys - 1) / std::max<int64_t>(1, keys);
    batch.lengths[s] = std::min(share, batch.kv_lengths[s]);
    batch.slots[s] = (batch.lengths[s] + multiple - 1) / multiple * multiple;
    batch.kv_slots[s] = (batch.kv_slots[s] + multiple - 1) / multiple * multiple;
  }
  MaskType& mask = other.attention.mask_type;
  if (mask == MaskType::causal) mask = MaskType::causal_bottom_right;
  if (mask == MaskType::padding_causal) mask = MaskType::padding_causal_bottom_right;
  return other;
}

std::vector<Candidate> list_ways(const Scenario& scenario) {
  std::vector<LayoutKind> layouts{LayoutKind::contiguous, LayoutKind::dual_chunk};
  if (scenario.parallel.layout == LayoutKind::striped) layouts = {LayoutKind::striped};
  std::vector<Candidate> ways;
  const auto add = [&](CommType type) {
    for (const LayoutKind layout : layouts) {
      Candidate& way = ways.emplace_back();
      way.parallel = scenario.parallel;
      way.parallel.comm_type = type;
      way.parallel.layout = layout;
      way.name = name_way(way.parallel);
    }
  };
  for (const CommType type : kQueriesTravel) add(type);
  for (const CommType type : kKeysTravel) add(type);
  return ways;
}

CrossoverPoint try_queries(const Scenario& scenario, const Cluster& cluster,
                           const CandidateOptions& options, int64_t queries) {
  const Scenario other = with_queries(scenario, queries);
  std::vector<Candidate> ways = list_ways(scenario);
  for_each_index(std::ssize(ways), [&](int64_t i) {
    try_candidate(other, cluster, options, ways[static_cast<size_t>(i)]);
  });
  CrossoverPoint point;
  point.queries =
      std::accumulate(other.batch.lengths.begin(), other.batch.lengths.end(), int64_t{0});
  for (const Candidate& way : ways) {
    if (!way.refusal.empty()) continue;
    const bool is_of_queries = std::find(kQueriesTravel.begin(), kQueriesTravel.end(),
                                         way.parallel.comm_type) != kQueriesTravel.end();
    std::string& name = is_of_queries ? point.queries_way : point.keys_way;
    double& us = is_of_queries ? point.queries_us : point.keys_us;
    if (name.empty() || way.forward_us < us) name = way.name, us = way.forward_us;
  }
  return point;
}

}  // namespace

Result<Crossover> find_crossover(const Scenario& scenario, const Cluster& cluster,
                                 const CandidateOptions& options) {
  if (auto error = refuse_fixed_cells(scenario)) return *error;
  // Unknown stacks, too few GPUs and missing kernels are told before anything is tried.
  if (const Result<Candidates> begun = begin_comparison(scenario, cluster, options); !begun)
    return begun.error();
  CandidateOptions forward = options;
  forward.reshards = 0;
  Crossover found;
  found.keys = std::accumulate(scenario.batch.kv_lengths.begin(), scenario.batch.kv_lengths.end(),
                               int64_t{0});
  int64_t fewest = 0, most = 0;  // queries travel faster; keys do
  for (int64_t queries = std::ssize(scenario.batch.kv_lengths); found.keys > 0; queries *= 2) {
    found.points.push_back(try_queries(scenario, cluster, forward, std::min(queries, found.keys)));
    if (found.points.back().keys_are_faster() && most == 0) most = found.points.back().queries;
    if (!found.points.back().keys_are_faster()) fewest = found.points.back().queries, most = 0;
    if (queries >= found.keys) break;
  }
  while (most - fewest > std::max<int64_t>(1, most / kExact) && fewest > 0 && most > 0) {
    const CrossoverPoint point =
        try_queries(scenario, cluster, forward, fewest + (most - fewest) / 2);
    if (point.queries <= fewest || point.queries >= most) break;  // lengths are whole numbers
    (point.keys_are_faster() ? most : fewest) = point.queries;
  }
  found.queries = most;
  return found;
}

}  // namespace cpscope
