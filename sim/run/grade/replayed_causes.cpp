#include "sim/run/grade/replayed_causes.h"

#include "sim/plan/check/plan_check.h"
#include "sim/run/fp8.h"
#include "sim/run/grade/tensor_grader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// One mistake of an executor, as a cause.
struct Replay {
  Mistake mistake{};
  const char* name = "";
  const char* text = "";
  bool (*is_possible)(const Scenario&) = nullptr;
};

bool has_fp8(const Scenario& scenario) { return scenario.numerics.fp8.has_value(); }
bool has_fp8_blocks(const Scenario& scenario) {
  return has_fp8(scenario) && scenario.numerics.fp8->recipe == Fp8Recipe::mxfp8;
}
bool has_fp8_scales(const Scenario& scenario) {
  return has_fp8(scenario) && scenario.numerics.fp8->recipe != Fp8Recipe::mxfp8;
}
bool casts_results(const Scenario& scenario) {
  return has_fp8(scenario) && scenario.numerics.fp8->recipe == Fp8Recipe::delayed;
}
bool has_several_ranks(const Scenario& scenario) { return scenario.parallel.cp_size > 1; }
bool exchanges_heads(const Scenario& scenario) {
  const CommType type = scenario.parallel.comm_type;
  return type == CommType::a2a || has_head_groups(type);
}
bool merges(const Scenario& scenario) {
  return has_several_ranks(scenario) && scenario.parallel.comm_type != CommType::a2a;
}

constexpr Replay kReplays[] = {
    {Mistake::fp8_receivers_scale, "receivers_scale",
     "the groups that exchange heads agree on a scale each, and the ring multiplies with the "
     "receiver's",
     [](const Scenario& scenario) {
       const Parallel& parallel = scenario.parallel;
       return has_fp8_scales(scenario) && has_head_groups(parallel.comm_type) &&
              parallel.a2a_size < parallel.cp_size;
     }},
    {Mistake::fp8_key_scales_of_values, "key_scales_of_values",
     "blocks of v are multiplied with the descales of blocks of k", has_fp8_blocks},
    {Mistake::fp8_scale_for_descale, "scale_for_descale",
     "received K and V are multiplied with the scale in place of its reciprocal",
     [](const Scenario& scenario) {
       return has_fp8_scales(scenario) && has_several_ranks(scenario);
     }},
    {Mistake::fp8_weights_unscaled, "weights_unscaled", "P is cast to 8 bits without a scale",
     has_fp8},
    {Mistake::fp8_rounded_weights_summed, "rounded_weights_summed",
     "the row sum is that of P after its cast to 8 bits", has_fp8},
    {Mistake::fp8_blocks_cross_documents, "blocks_cross_documents",
     "blocks of 32 rows that share a scale reach over the end of a document", has_fp8_blocks},
    {Mistake::fp8_gradients_in_e4m3, "gradients_in_e4m3",
     "d_out and dS are cast to E4M3 in place of E5M2",
     [](const Scenario& scenario) {
       return has_fp8_scales(scenario) && scenario.numerics.backward &&
              scenario.numerics.fp8->format == Fp8Format::hybrid;
     }},
    {Mistake::alibi_across_documents, "alibi_across_documents",
     "ALiBi numbers queries through the packed batch and keys in the document",
     [](const Scenario& scenario) {
       return scenario.attention.alibi && scenario.batch.lengths.size() > 1;
     }},
    {Mistake::bias_by_tile_column, "terms_by_local_place",
     "the columns of the bias are taken in the order of the received keys",
     [](const Scenario& scenario) {
       return scenario.attention.bias != BiasShape::none && has_several_ranks(scenario);
     }},
    {Mistake::dropout_by_tile_column, "dropout_offset_reused",
     "every compute item draws the dropped weights with the same offset",
     [](const Scenario& scenario) {
       return scenario.attention.dropout > 0 && has_several_ranks(scenario);
     }},
    {Mistake::dropout_redrawn, "dropout_redrawn",
     "the backward drops other weights than the forward",
     [](const Scenario& scenario) {
       return scenario.attention.dropout > 0 && scenario.numerics.backward;
     }},
    {Mistake::second_half_follows_on, "rope_by_local_place",
     "the positions of a rank's second chunk continue those of its first",
     [](const Scenario& scenario) {
       return scenario.attention.rope_theta > 0 && has_several_ranks(scenario);
     }},
    {Mistake::positions_of_all_ranks, "rope_by_local_place",
     "the ranks of a group rotate as if all ranks shared the sequence",
     [](const Scenario& scenario) {
       return scenario.attention.rope_theta > 0 && has_rounds(scenario.parallel);
     }},
    {Mistake::heads_transposed, "heads_transposed",
     "the exchange of heads lands [head, row] where [row, head] is read", exchanges_heads},
    {Mistake::first_kv_head_for_all, "kv_heads_not_replicated", "every rank reads KV head 0",
     [](const Scenario& scenario) {
       return exchanges_heads(scenario) && scenario.attention.kv_heads > 1;
     }},
    {Mistake::lse_transposed, "lse_transposed", "lse is written [row, head] and read [head, row]",
     [](const Scenario& scenario) { return scenario.attention.heads > 1; }},
    {Mistake::own_lse_in_backward, "lse_of_one_step",
     "the backward weighs with the lse of a step in place of the row's",
     [](const Scenario& scenario) { return scenario.numerics.backward && merges(scenario); }},
    {Mistake::empty_merged_as_number, "empty_rows_merged",
     "a part that sees no key is merged as NaN", merges},
    {Mistake::empty_merged_as_zero, "empty_rows_merged",
     "a part that sees no key is merged as if its lse were 0", merges},
    {Mistake::merged_by_plain_exp, "merge_overflows",
     "parts are weighed with exp(lse), which overflows", merges},
    {Mistake::value_lanes_shifted, "value_lanes_shifted",
     "v was padded to the head_dim of k, and out is cut at the wrong end",
     [](const Scenario& scenario) {
       return scenario.attention.head_dim_v < scenario.attention.head_dim_qk;
     }},
    {Mistake::dkv_wire_in_16_bits, "rounded_to_bf16", "partial dk and dv travel in bf16",
     [](const Scenario& scenario) {
       return scenario.numerics.backward && has_several_ranks(scenario) && !has_fp8(scenario) &&
              (scenario.numerics.dtype == Dtype::fp32 || scenario.numerics.dtype == Dtype::fp64 ||
               scenario.numerics.dkv_wire == WireFormat::fp32);
     }},
};

/// Products of a pair's elements that a search by replays may cost.
constexpr double kMostProducts = 5e10;

double products_of(const Plan& plan) {
  double pairs = 0;
  for (const ComputeItem& item : plan.forward.computes)
    pairs += static_cast<double>(item.visible_pairs);
  const Attention& attention = plan.scenario.attention;
  constexpr double kWithBackward = 3.5;
  return pairs * (attention.head_dim_qk + attention.head_dim_v) *
         (plan.scenario.numerics.backward ? kWithBackward : 1.0);
}

/// How well an answer with a mistake explains a tensor, compared with one without.
RowFit fit_of_replay(const WrongTensor& tensor, const Answer& replayed, const Answer& healthy) {
  const auto member = member_of(tensor.name);
  if (!member || (replayed.**member).values.empty() || (healthy.**member).values.empty()) return {};
  // A replay has the roundings of what was seen too, so that it is near without its mistake.
  constexpr double kNearer = 0.5;
  int64_t changed = 0;  // rows that it explains and a replay without a mistake does not
  const RowFit fit = fit_rows(
      tensor, [&](const JudgedRow& row) { return row_in(replayed.**member, row.at); },
      [&](const JudgedRow& row, std::span<const double> predicted) {
        const double distance = row_distance(row.seen, predicted),
                     without = row_distance(row.seen, row_in(healthy.**member, row.at));
        const bool is_explained = tensor.excess(row, predicted) <= 1 &&
                                  distance <= kNearer * row_distance(row.seen, row.exact) &&
                                  distance <= kNearer * without;
        changed += is_explained && without > 0 ? 1 : 0;
        return is_explained;
      });
  // A mistake that leaves most of these rows as they are is not theirs.
  return changed * 2 >= fit.wrong ? fit : RowFit{};
}

/// A row of out, as it was seen and as it is before it is cast.
struct OutRow {
  std::span<const double> seen, uncast;

  double error() const { return row_distance(seen, uncast); }
  /// |seen - uncast|2, with `uncast` cast to 8 bits with the scale of this amax.
  double distance_when_cast(double amax) const {
    const float scale = scale_for(Fp8Type::e4m3, static_cast<float>(amax));
    std::vector<double> cast(uncast.begin(), uncast.end());
    for (double& value : cast)
      value = quantise(Fp8Type::e4m3, static_cast<float>(value), scale, 1.0f / scale);
    return row_distance(seen, cast);
  }
};

/// The amax of the scale with which out was cast to 8 bits, if it is wider than that of out: rows
/// that one compute item has made are then those of `uncast`, cast. 0: none fits.
double find_wide_amax(const RunInputs& inputs, const Tensor& seen, const Tensor& uncast) {
  const auto lanes = static_cast<size_t>(uncast.shape[2]);
  std::vector<OutRow> rows;
  const size_t all = uncast.values.size() / lanes, kMostRows = 4096;
  for (size_t i = 0; i < std::min(all, kMostRows); ++i) {
    const size_t first = i * all / std::min(all, kMostRows) * lanes;
    rows.push_back({std::span(seen.values).subspan(first, lanes),
                    std::span(uncast.values).subspan(first, lanes)});
  }
  std::vector<OutRow> fitting;
  double best = 0;
  constexpr int kStepsAnOctave = 16, kOctaves = 40;
  for (int step = kStepsAnOctave; step <= kStepsAnOctave * kOctaves; ++step) {
    const double amax = inputs.fp8.out * std::exp2(static_cast<double>(step) / kStepsAnOctave);
    std::vector<OutRow> near;
    for (const OutRow& row : rows)
      if (8 * row.distance_when_cast(amax) < row.error()) near.push_back(row);
    if (near.size() <= fitting.size()) continue;
    fitting = std::move(near);
    best = amax;
  }
  // Those of them that one item alone has made say it more precisely; the others count no further.
  constexpr double kMostOfError = 1.0 / 16;
  const double coarse = best;
  double least = std::numeric_limits<double>::infinity();
  constexpr int kFineSteps = 32;
  for (int step = -kFineSteps; step <= kFineSteps; ++step) {
    const double amax =
        coarse * std::exp2(static_cast<double>(step) / (kFineSteps * kStepsAnOctave));
    double distance = 0;
    for (const OutRow& row : fitting)
      distance += std::min(row.distance_when_cast(amax), kMostOfError * row.error());
    if (!(distance < least)) continue;
    least = distance;
    best = amax;
  }
  return best;
}

/// The plan of the forward alone.
Plan without_backward(Plan plan) {
  plan.scenario.numerics.backward = false;
  plan.backward = {};
  return plan;
}

/// Runs a plan with each of its mistakes.
class PlanReplays {
 public:
  PlanReplays(const Toolbox& toolbox, const Plan& plan, const RunInputs& inputs,
              const CauseSearch& search, std::span<const WrongTensor> tensors,
              const std::vector<bool>& is_named)
      : walker_(toolbox.watched_walker({})),
        plan_(plan),
        inputs_(inputs),
        search_(search),
        tensors_(tensors) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (is_named[t] || tensors[t].is_padding) continue;
      (tensors[t].is_gradient() ? gradients_ : results_).push_back(t);
    }
  }

  Result<Replays> run(const PlanMistakes& mistakes) {
    Replays replays;
    if (gradients_.empty() && results_.empty()) return replays;
    const Result<RunOutput> healthy = carry_out(plan_, inputs_);
    if (!healthy) return healthy.error();
    healthy_ = &healthy.value().answer;
    std::optional<Error> error;
    mistakes(plan_, [&](PlanMistake mistake) {
      Result<std::optional<Explanation>> found = try_mistake(std::move(mistake));
      if (!found) {
        error = found.error();
        return false;
      }
      if (found.value()) replays.found.push_back(*std::move(found).value());
      replays.is_too_much = products_ > kMostProducts;
      return !replays.is_too_much;
    });
    if (error) return *error;
    return replays;
  }

 private:
  /// Nothing if the mistake cannot be the cause.
  Result<std::optional<Explanation>> try_mistake(PlanMistake mistake) {
    // Where out was right, so was the forward.
    const bool is_possible = mistake.is_of_backward
                                 ? !gradients_.empty()
                                 : !results_.empty() || search_.seen.out.values.empty();
    if (!is_possible) return std::optional<Explanation>();
    RunInputs inputs = inputs_;
    if (mistake.inputs) mistake.inputs(inputs);
    Plan plan = mistake.plan ? *std::move(mistake.plan) : plan_;
    Explanation found{std::move(mistake.cause), std::move(mistake.text), std::move(mistake.layout),
                      std::vector<RowFit>(tensors_.size())};
    if (!mistake.is_of_backward && !results_.empty()) {
      const Result<RunOutput> forward = carry_out(without_backward(plan), inputs);
      if (!forward) return forward.error();
      fit(results_, forward.value().answer, found);
      if (!explains_any(found) || gradients_.empty())
        return explains_any(found) ? std::optional(std::move(found)) : std::nullopt;
    }
    const Result<RunOutput> whole = carry_out(std::move(plan), inputs);
    if (!whole) return whole.error();
    fit(gradients_, whole.value().answer, found);
    return explains_any(found) ? std::optional(std::move(found)) : std::nullopt;
  }

  Result<RunOutput> carry_out(Plan plan, const RunInputs& inputs) {
    products_ += products_of(plan);
    return walker_->run(admit_faulty_plan(std::move(plan), "a known mistake is in it"), inputs,
                        {.control = search_.control});
  }

  /// A run that changes right rows as well had another mistake, or another place of it.
  void fit(const std::vector<size_t>& looked_at, const Answer& replayed, Explanation& found) const {
    for (const size_t t : looked_at) {
      const RowFit fit = fit_of_replay(tensors_[t], replayed, *healthy_);
      if (fit.contradicted * 10 <= fit.right) found.fits[t] = fit;
    }
  }
  static bool explains_any(const Explanation& found) {
    return std::any_of(found.fits.begin(), found.fits.end(),
                       [](const RowFit& fit) { return fit.explains(); });
  }

  const std::unique_ptr<Executor> walker_;
  const Plan& plan_;
  const RunInputs& inputs_;
  const CauseSearch& search_;
  const std::span<const WrongTensor> tensors_;
  std::vector<size_t> results_, gradients_;  // tensors to explain: out and lse, and dq, dk, dv
  const Answer* healthy_ = nullptr;
  double products_ = 0.0;  // that all runs have cost
};

}  // namespace

Result<Replays> replay_plan_mistakes(const Toolbox& toolbox, const Plan& plan,
                                     const RunInputs& inputs, const CauseSearch& search,
                                     std::span<const WrongTensor> tensors,
                                     const std::vector<bool>& is_named) {
  Replays replays;
  if (!toolbox.watched_walker || !toolbox.plan_mistakes || search.rows != nullptr) return replays;
  // A few mistakes would say little of those that are left. Most runs are of the forward alone.
  constexpr double kFewestRuns = 6;
  replays.is_too_much = kFewestRuns * products_of(plan) > kMostProducts;
  if (replays.is_too_much || !check_plan(plan)) return replays;
  return PlanReplays(toolbox, plan, inputs, search, tensors, is_named).run(toolbox.plan_mistakes);
}

Result<Replays> replay_mistakes(const Toolbox& toolbox, const Plan& plan, const RunInputs& inputs,
                                const CauseSearch& search, std::span<const WrongTensor> tensors) {
  Replays replays;
  std::vector<const Replay*> possible;
  for (const Replay& replay : kReplays)
    if (replay.is_possible(plan.scenario)) possible.push_back(&replay);
  const bool has_rows = std::any_of(tensors.begin(), tensors.end(),
                                    [](const WrongTensor& one) { return !one.is_padding; });
  if (!toolbox.watched_walker || search.rows != nullptr || possible.empty() || !has_rows)
    return replays;
  replays.is_too_much =
      products_of(plan) * static_cast<double>(possible.size() + 1) > kMostProducts;
  if (replays.is_too_much) return replays;
  const Result<CheckedPlan> checked = check_plan(plan);
  // A plan that is wrong on purpose has no replays.
  if (!checked) return replays;
  const auto run = [&](std::optional<ExecutorFault> fault, const RunInputs& with) {
    return toolbox.watched_walker({.fault = std::move(fault)})
        ->run(checked.value(), with, {.control = search.control});
  };
  const Result<RunOutput> healthy = run(std::nullopt, inputs);
  if (!healthy) return healthy.error();
  const auto add = [&](const char* name, std::string text, const Result<RunOutput>& replayed) {
    Explanation found{name, std::move(text), {}, {}};
    for (const WrongTensor& tensor : tensors)
      found.fits.push_back(fit_of_replay(tensor, replayed.value().answer, healthy.value().answer));
    replays.found.push_back(std::move(found));
  };
  for (const Replay* replay : possible) {
    const Result<RunOutput> replayed = run(plant_mistake(replay->mistake, {}), inputs);
    if (!replayed) return replayed.error();
    add(replay->name, replay->text, replayed);
  }
  const bool has_wrong_out = std::any_of(tensors.begin(), tensors.end(),
                                         [](const WrongTensor& one) { return one.name == "out"; });
  if (!has_wrong_out || !casts_results(plan.scenario)) return replays;
  Plan uncast = plan;
  uncast.scenario.numerics.fp8->recipe = Fp8Recipe::current;
  const auto walker = toolbox.watched_walker({});
  const Result<RunOutput> before =
      walker->run(admit_faulty_plan(std::move(uncast), "its results are not cast to 8 bits"),
                  inputs, {.control = search.control});
  if (!before) return before.error();
  RunInputs wide = inputs;
  wide.fp8.out = find_wide_amax(inputs, search.seen.out, before.value().answer.out);
  if (wide.fp8.out == 0) return replays;
  const Result<RunOutput> replayed = run(std::nullopt, wide);
  if (!replayed) return replayed.error();
  add("amax_over_padding",
      fmt::format("out is cast to 8 bits with the scale of an amax of about {:.2g}, where no value "
                  "is beyond {:.2g}: it was taken over rows that hold no result",
                  wide.fp8.out, inputs.fp8.out),
      replayed);
  return replays;
}

}  // namespace cpscope
