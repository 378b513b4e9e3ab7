#include "sim/run/grade/merged_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cpscope {
namespace {

constexpr double kNoLogit = -std::numeric_limits<double>::infinity();

/// The parts that see a key in the order of ring steps: rank r uses rank r - i's keys in step i.
std::vector<size_t> parts_by_step(const QueryParts& parts, int32_t query_rank) {
  const auto ranks = std::ssize(parts.top);
  std::vector<size_t> order;
  for (int64_t step = 0; step < ranks; ++step) {
    const auto rank = static_cast<size_t>((query_rank - step + ranks) % ranks);
    if (parts.top[rank] != kNoLogit) order.push_back(rank);
  }
  return order;
}

/// Adds a part to out and lse by the sigmoid of their difference, as ring-flash-attention does,
/// with every number in the dtype.
void merge_in_dtype(MergedRow& merged, bool is_first, double lse, std::span<const double> out,
                    Dtype dtype) {
  const auto rounded = [dtype](double value) { return round_to(dtype, value); };
  const double part = rounded(lse);
  const double share = is_first ? 1.0 : rounded(1.0 / (1.0 + std::exp(rounded(merged.lse - part))));
  for (size_t lane = 0; lane < out.size(); ++lane) {
    double& value = merged.out[lane];
    value = rounded(value - rounded(share * rounded(value - rounded(out[lane]))));
  }
  merged.lse =
      is_first ? part
               : rounded(merged.lse + rounded(std::log1p(std::exp(rounded(part - merged.lse)))));
}

}  // namespace

MergedRow merge_parts(const QueryParts& parts, std::span<const double> times, double sink,
                      double sinks) {
  const size_t ranks = parts.top.size(), lanes = parts.out.size() / ranks;
  MergedRow merged{kNoLogit, std::vector<double>(lanes, 0.0)};
  double top = kNoLogit;
  for (size_t rank = 0; rank < ranks; ++rank)
    if (times[rank] > 0) top = std::max(top, parts.top[rank]);
  if (top == kNoLogit) return merged;  // also with a sink: an empty row
  if (sinks > 0) top = std::max(top, sink);
  double sum = sinks > 0 ? sinks * std::exp(sink - top) : 0.0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (times[rank] == 0 || parts.top[rank] == kNoLogit) continue;
    const double weight = times[rank] * std::exp(parts.top[rank] - top);
    sum += weight * parts.sum[rank];
    for (size_t lane = 0; lane < lanes; ++lane)
      merged.out[lane] += weight * parts.out[rank * lanes + lane];
  }
  for (double& value : merged.out) value /= sum;
  merged.lse = top + std::log(sum);
  return merged;
}

MergedRow merge_wrongly(const QueryParts& parts, PartsMistake::Merge how, int32_t query_rank,
                        Dtype dtype) {
  using Merge = PartsMistake::Merge;
  const size_t lanes = parts.out.size() / parts.top.size();
  MergedRow merged{0.0, std::vector<double>(lanes, 0.0)};
  // 2^lse, or e to the power of lse / ln 2.
  const bool is_other_base = how == Merge::base_2 || how == Merge::base_e;
  const double power = how == Merge::base_2 ? std::log(2.0) : 1.0 / std::log(2.0);
  double top = kNoLogit, weights = 0, count = 0;
  for (const double value : parts.top) top = std::max(top, value);
  if (top == kNoLogit) return {kNoLogit, merged.out};
  for (const size_t rank : parts_by_step(parts, query_rank)) {
    const double lse = parts.top[rank] + std::log(parts.sum[rank]);
    const double weight = is_other_base ? std::exp(power * (lse - top)) : 1.0;
    if (how == Merge::last_step) {
      std::fill(merged.out.begin(), merged.out.end(), 0.0);
      weights = merged.lse = 0;
    }
    std::vector<double> part(lanes);
    for (size_t lane = 0; lane < lanes; ++lane)
      part[lane] = parts.out[rank * lanes + lane] / parts.sum[rank];
    if (how == Merge::in_dtype) {
      merge_in_dtype(merged, count == 0, lse, part, dtype);
      ++count;
      continue;
    }
    for (size_t lane = 0; lane < lanes; ++lane) merged.out[lane] += weight * part[lane];
    merged.lse += lse;
    weights += weight;
    ++count;
  }
  if (how == Merge::in_dtype) return merged;
  const double share = how == Merge::sum             ? 1.0
                       : how == Merge::mean_of_ranks ? static_cast<double>(parts.top.size())
                                                     : weights;
  for (double& value : merged.out) value /= share;
  if (how == Merge::mean) merged.lse /= count;
  if (is_other_base) merged.lse = top + std::log(weights) / power;
  return merged;
}

std::vector<double> times_of_reused_buffer(const QueryParts& parts, int32_t query_rank) {
  std::vector<double> times(parts.top.size(), 0.0);
  const std::vector<size_t> order = parts_by_step(parts, query_rank);
  if (!order.empty()) times[order.back()] = order.size() == 1 ? 1.0 : 2.0;
  return times;
}

std::vector<double> add_parts(const std::vector<double>& parts, const Suspect& suspect,
                              const PartsMistake& mistake, int64_t token) {
  const auto ranks = static_cast<size_t>(suspect.attention.ranks);
  const size_t lanes = parts.size() / ranks;
  const int32_t key_rank = suspect.attention.rank_of_key(token);
  std::vector<double> sum(lanes, 0.0);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double times = mistake.times ? mistake.times(static_cast<int32_t>(rank), key_rank) : 1.0;
    if (times == 0) continue;
    for (size_t lane = 0; lane < lanes; ++lane) sum[lane] += times * parts[rank * lanes + lane];
  }
  return sum;
}

}  // namespace cpscope
