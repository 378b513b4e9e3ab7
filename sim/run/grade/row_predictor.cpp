#include "sim/run/grade/row_predictor.h"

#include "sim/run/grade/merged_rows.h"
#include "sim/run/grade/probe_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace cpscope {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();

/// dq from the answer's own out and lse, or from those that the mistake gives.
std::vector<double> predict_dq(const RowPredictor& with, const QueryParts& parts,
                               const std::vector<double>& times, const MergedRow& merged,
                               const RowAddress& at) {
  const size_t lanes = parts.dq_1.size() / parts.top.size();
  std::vector<double> dq(lanes, 0.0);
  const auto row_of = [&](int64_t token) {
    return static_cast<size_t>(token * with.plan.scenario.attention.heads + at.head);
  };
  const bool has_lse = !with.seen.lse.values.empty();
  const auto& lse_row = with.suspect.attention.lse_row;
  const size_t row = row_of(at.token);
  const std::span<const double> out =
      with.seen.out.values.empty()
          ? std::span<const double>(merged.out)
          : std::span(with.seen.out.values).subspan(row * merged.out.size(), merged.out.size());
  double delta = 0;
  for (size_t lane = 0; lane < out.size(); ++lane)
    delta += out[lane] * with.inputs.d_out.values[row * out.size() + lane];
  for (size_t rank = 0; rank < parts.top.size(); ++rank) {
    if (times[rank] == 0 || parts.top[rank] == kUnseen) continue;
    double lse = has_lse ? with.seen.lse.values[row] : merged.lse;
    if (lse_row && with.lse != nullptr)
      lse = with.lse->values[row_of(lse_row(at.token, static_cast<int32_t>(rank)))];
    if (!std::isfinite(lse)) continue;
    const double weight = times[rank] * std::exp(parts.top[rank] - lse);
    for (size_t lane = 0; lane < lanes; ++lane)
      dq[lane] +=
          weight * (parts.dq_p[rank * lanes + lane] - delta * parts.dq_1[rank * lanes + lane]);
  }
  return dq;
}

}  // namespace

void AskedRows::add(Side side, const RowAddress& at) {
  auto& places = side == Side::q ? queries : keys;
  auto& rows = side == Side::q ? request.queries : request.keys;
  if (places.emplace(at, rows.size()).second) rows.push_back(at);
}

std::vector<double> RowPredictor::predict(const WrongTensor& tensor, const PartsMistake& mistake,
                                          const RowAddress& at) const {
  if (tensor.side == Side::kv) {
    const KeyParts& parts = evaluation.altered.keys[evaluation.rows.keys.at(at)];
    return add_parts(tensor.name == "dk" ? parts.dk : parts.dv, suspect, mistake, at.token);
  }
  const QueryParts& parts = evaluation.altered.queries[evaluation.rows.queries.at(at)];
  // A suspect knows the owners of tokens alone.
  const int32_t rank = owns_heads(plan.scenario.parallel)
                           ? owner_of(plan, Side::q, at.token, at.head)
                           : suspect.attention.rank_of_query(at.token);
  std::vector<double> times(parts.top.size(), 1.0);
  if (mistake.times)
    for (size_t key = 0; key < times.size(); ++key)
      times[key] = mistake.times(rank, static_cast<int32_t>(key));
  const double sink = inputs.sink.empty() ? 0.0 : inputs.sink[static_cast<size_t>(at.head)];
  const auto seen_parts =
      std::count_if(parts.top.begin(), parts.top.end(), [](double top) { return top != kUnseen; });
  const double sinks =
      suspect.sinks * static_cast<double>(mistake.has_sink_in_every_part ? seen_parts : 1);
  const MergedRow merged =
      mistake.merge == PartsMistake::Merge::by_lse
          ? merge_parts(parts, times, sink, sinks)
          : merge_wrongly(parts, mistake.merge, rank, plan.scenario.numerics.dtype);
  if (tensor.name == "out") return merged.out;
  if (tensor.name == "lse") return {merged.lse};
  if (mistake.reuses_buffer) times = times_of_reused_buffer(parts, rank);
  return predict_dq(*this, parts, times, merged, at);
}

}  // namespace cpscope
