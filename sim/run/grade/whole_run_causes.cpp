#include "sim/run/grade/whole_run_causes.h"

#include "sim/run/run_inputs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// |a - b| of the values that are finite in both.
double distance_of(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += std::isfinite(a[i]) && std::isfinite(b[i]) ? (a[i] - b[i]) * (a[i] - b[i]) : 0.0;
  return std::sqrt(sum);
}

/// Pairs of a query and a key, times heads and head_dim, that a search by whole runs may cost.
bool is_too_much(const Plan& plan) {
  constexpr double kMostProducts = 2e10;
  const Attention& attention = plan.scenario.attention;
  double pairs = 0;
  for (const SequenceSlot& slot : plan.layout.slots.sequences)
    pairs += static_cast<double>(slot.q_valid) * static_cast<double>(slot.kv_valid);
  return pairs * attention.heads * (attention.head_dim_qk + attention.head_dim_v) > kMostProducts;
}

double largest_of(const RunInputs& inputs) {
  double most = 0;
  for (const auto& [tensor, side] :
       {std::pair{&inputs.q, Side::q}, {&inputs.k, Side::kv}, {&inputs.v, Side::kv}}) {
    const std::vector<bool> valid = valid_ids(inputs.slots, side);
    const int64_t width = tensor->size() / std::max<int64_t>(1, tensor->shape[0]);
    for (int64_t token = 0; token < tensor->shape[0]; ++token) {
      for (int64_t i = token * width; valid[static_cast<size_t>(token)] && i < (token + 1) * width;
           ++i)
        most = std::max(most, std::abs(tensor->values[static_cast<size_t>(i)]));
    }
  }
  return most;
}

}  // namespace

Result<std::optional<Explanation>> find_stale_scale(const Toolbox& toolbox, const Plan& plan,
                                                    const RunInputs& inputs,
                                                    const CauseSearch& search,
                                                    std::span<const WrongTensor> tensors) {
  const std::optional<Fp8>& fp8 = plan.scenario.numerics.fp8;
  const std::vector<double>& seen = search.seen.out.values;
  const bool has_wrong_out = std::any_of(tensors.begin(), tensors.end(),
                                         [](const WrongTensor& one) { return one.name == "out"; });
  if (!fp8 || fp8->recipe == Fp8Recipe::mxfp8 || search.rows != nullptr || !has_wrong_out ||
      is_too_much(plan))
    return std::optional<Explanation>();
  Scenario forward = plan.scenario;
  forward.numerics.backward = false;
  RunInputs clipped = inputs;
  clipped.d_out = {};
  const double largest = largest_of(inputs);
  const auto distance_at = [&](double clip) -> Result<double> {
    clipped.fp8.qkv = clip;
    const Result<Verdict> verdict = toolbox.oracle.judge(forward, clipped, Hops{}, search.control);
    if (!verdict) return verdict.error();
    return distance_of(seen, verdict.value().of_quantised.out.values);
  };
  const double error = distance_of(seen, search.exact.out.values);
  double best = error, best_clip = 0;
  // A coarse search, then a finer one around the best.
  const auto look = [&](double clip) -> std::optional<Error> {
    const Result<double> distance = distance_at(clip);
    if (!distance) return distance.error();
    if (distance.value() < best) {
      best = distance.value();
      best_clip = clip;
    }
    return std::nullopt;
  };
  for (double part = std::sqrt(0.5); part > 0.06; part *= std::sqrt(0.5))
    if (auto cancelled = look(largest * part)) return *cancelled;
  const double coarse = best_clip;
  for (const double step : {0.9, 1.1})
    if (auto cancelled = coarse > 0 ? look(coarse * step) : std::nullopt) return *cancelled;
  if (!(best < error / 2)) return std::optional<Explanation>();
  Explanation found{
      "stale_scale",
      fmt::format("q, k and v are clipped at about {:.2g}, where the largest value is "
                  "{:.3g}: the scale is that of a step with smaller values",
                  best_clip, largest),
      {},
      std::vector<RowFit>(tensors.size())};
  // Everything follows from the clipped inputs.
  for (size_t t = 0; t < tensors.size(); ++t)
    found.fits[t].wrong = found.fits[t].explained = std::ssize(tensors[t].wrong);
  return std::optional(std::move(found));
}

Result<std::optional<Explanation>> find_shares_kept(const Toolbox& toolbox, const Plan& plan,
                                                    const RunInputs& inputs,
                                                    const CauseSearch& search,
                                                    const SuspectMaker& maker,
                                                    std::span<const WrongTensor> tensors) {
  const bool has_wrong_keys =
      std::any_of(tensors.begin(), tensors.end(),
                  [](const WrongTensor& one) { return one.name == "dk" || one.name == "dv"; });
  const bool is_ring = plan.scenario.parallel.comm_type == CommType::p2p ||
                       plan.scenario.parallel.comm_type == CommType::double_ring;
  if (!has_wrong_keys || search.exact.dv.values.empty() || !is_ring || plan.layout.cp_size == 1 ||
      search.rows != nullptr || is_too_much(plan))
    return std::optional<Explanation>();
  const TokenPlaces &keys = maker.keys(), &queries = maker.queries();
  JudgedRows pairs;
  for (int64_t token = 0; token < keys.tokens(); ++token) pairs.key_tokens.push_back(token);
  Answer kept;  // what each rank would have
  for (const auto tensor : {&Answer::dk, &Answer::dv}) {
    kept.*tensor = search.exact.*tensor;
    std::fill((kept.*tensor).values.begin(), (kept.*tensor).values.end(), 0.0);
  }
  for (int32_t rank = 0; rank < plan.layout.cp_size; ++rank) {
    pairs.query_tokens = queries.ids[static_cast<size_t>(rank)];
    std::sort(pairs.query_tokens.begin(), pairs.query_tokens.end());
    const Result<Answer> shares =
        toolbox.oracle.shares(plan.scenario, inputs, search.exact, pairs, search.control);
    if (!shares) return shares.error();
    const std::vector<int64_t>& own = keys.ids[static_cast<size_t>(rank)];
    for (const auto tensor : {&Answer::dk, &Answer::dv}) {
      const Tensor& from = shares.value().*tensor;
      Tensor& into = kept.*tensor;
      const int64_t width = into.size() / std::max<int64_t>(1, into.shape[0]);
      for (const std::vector<int64_t>& block : keys.ids) {
        for (size_t row = 0; row < std::min(own.size(), block.size()); ++row) {
          for (int64_t i = 0; i < width; ++i)
            into.values[static_cast<size_t>(own[row] * width + i)] +=
                from.values[static_cast<size_t>(block[row] * width + i)];
        }
      }
    }
  }
  Explanation found{"partial_missing",
                    "every rank adds up the dk and dv of all blocks that it has computed with as "
                    "its own: the shares of other ranks' queries are missing",
                    {},
                    std::vector<RowFit>(tensors.size())};
  for (size_t t = 0; t < tensors.size(); ++t) {
    const WrongTensor& tensor = tensors[t];
    if (tensor.name != "dk" && tensor.name != "dv") continue;
    const Tensor& rows = tensor.name == "dk" ? kept.dk : kept.dv;
    found.fits[t] = fit_rows(
        tensor, [&](const JudgedRow& row) { return row_in(rows, row.at); },
        [&](const JudgedRow& row, std::span<const double> predicted) {
          return tensor.explains(row, predicted);
        });
  }
  return std::optional(std::move(found));
}

}  // namespace cpscope
