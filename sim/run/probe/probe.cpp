#include "sim/run/probe/probe.h"

#include "sim/run/dtype.h"
#include "sim/run/grade/case.h"
#include "sim/run/grade/grade.h"
#include "sim/run/grade/latent_probe.h"
#include "sim/run/grade/probe_parts.h"
#include "sim/run/grade/token_places.h"
#include "sim/run/kept_weights.h"
#include "sim/run/probe/probe_coded.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kMostKeysPerBucket = 128;

/// Number of keys that may share one element of v, so that their count is still read exactly: each
/// rounding of the element changes it by less than a unit roundoff, and all together by less than
/// half a key. All results are rounded at the end; partial results in 16 bits also before they are
/// sent or kept, and at every merge or addition.
int64_t count_keys_per_bucket(const Plan& plan, bool merges_in_dtype) {
  const Hops hops = count_hops(plan);
  int32_t roundings = 1;
  if (merges_in_dtype || hops.rounds_partials) ++roundings;
  if (merges_in_dtype) roundings += hops.partials;
  if (hops.adds_in_dtype) roundings += plan.layout.cp_size;
  const double exact = 0.5 / (roundings * unit_roundoff(plan.scenario.numerics.dtype));
  return static_cast<int64_t>(
      std::clamp(std::ceil(exact) - 1, 1.0, static_cast<double>(kMostKeysPerBucket)));
}
constexpr int64_t kMostCountableKeys = 1 << 18;  // above, fp32's lse does not resolve n and n + 1

/// The element of v that codes a key in one pass: one digit of its number among keys [begin, end).
struct BucketCode {
  int64_t begin, end;
  int32_t lanes;
  int64_t stride;  // number of neighbours that share an element

  int32_t lane_of(int64_t key) const {
    return static_cast<int32_t>((key - begin) / stride % lanes);
  }
};

/// Number of keys of a row in each element of the code.
std::vector<int64_t> count_lanes(const Expectation& expectation, int64_t token,
                                 const BucketCode& code) {
  std::vector<int64_t> counts(static_cast<size_t>(code.lanes), 0);
  for (const Expectation::Interval& run : expectation.keys[token]) {
    for (int64_t key = std::max(run.begin, code.begin); key < std::min(run.end, code.end);) {
      const int64_t stop = std::min(
          {run.end, code.end, code.begin + ((key - code.begin) / code.stride + 1) * code.stride});
      counts[code.lane_of(key)] += stop - key;
      key = stop;
    }
  }
  return counts;
}

/// The same of the keys whose weights dropout keeps for a head.
std::vector<int64_t> count_kept_lanes(const Expectation& expectation, const PairTermsOf& terms,
                                      const TokenPlaces& queries, const TokenPlaces& keys,
                                      int64_t token, int32_t head, const BucketCode& code) {
  std::vector<int64_t> counts(static_cast<size_t>(code.lanes), 0);
  const int32_t sequence = queries.sequence[token];
  for (const Expectation::Interval& run : expectation.keys[token]) {
    for (int64_t key = std::max(run.begin, code.begin); key < std::min(run.end, code.end); ++key) {
      const PairTerm term = terms(sequence, head, queries.position[token], keys.position[key]);
      counts[code.lane_of(key)] += term.factor > 0 ? 1 : 0;
    }
  }
  return counts;
}

/// 1, lanes, lanes^2, ... and last the size of one bucket: digits that distinguish all keys of a
/// segment.
std::vector<int64_t> strides_of_code(int32_t lanes, int64_t keys_per_bucket) {
  std::vector<int64_t> strides;
  for (int64_t stride = 1; stride < keys_per_bucket; stride *= std::max(2, lanes))
    strides.push_back(stride);
  strides.push_back(keys_per_bucket);
  return strides;
}

int64_t count_coded_keys(const Plan& plan) {
  return std::max<int64_t>(1, plan.layout.slots.kv_tokens);
}

/// Number of runs of a Probe: every digit of every segment of keys, and the heads.
int64_t count_key_runs(const Plan& plan, const Executor& executor) {
  const int64_t lanes = plan.scenario.attention.head_dim_v,
                per_bucket = count_keys_per_bucket(plan, executor.may_merge_in_dtype()),
                segments = (count_coded_keys(plan) + lanes * per_bucket - 1) / (lanes * per_bucket);
  return segments * std::ssize(strides_of_code(static_cast<int32_t>(lanes), per_bucket)) + 1;
}

class Probe {
 public:
  Probe(const CheckedPlan& plan, ProbeRuns& runs, const MaskWitness& witness)
      : checked_(plan),
        plan_(plan.plan()),
        runs_(runs),
        expectation_(plan_, witness),
        heads_(plan_.scenario.attention.heads),
        kv_heads_(plan_.scenario.attention.kv_heads),
        lanes_(plan_.scenario.attention.head_dim_v),
        keys_per_bucket_(count_keys_per_bucket(plan_, runs.executor().may_merge_in_dtype())) {
    const int64_t rows = plan_.layout.slots.tokens * heads_;
    report_.rows = rows;
    wrong_count_.assign(static_cast<size_t>(rows), false);
    wrong_key_.assign(static_cast<size_t>(rows), false);
    wrong_bucket_ = wrong_head_ = wrong_key_;
    bucketed_.assign(static_cast<size_t>(rows), 0);
    has_sink_ = plan_.scenario.attention.softmax_type != SoftmaxType::vanilla;
    prepare_inputs();
    if (plan_.scenario.attention.dropout > 0) terms_ = witness.terms(plan_.scenario, inputs_);
  }

  /// With dropout: which weights are kept, of which rows of which heads.
  Result<ProbeTally> run_kept() {
    const TokenPlaces queries = places_of(plan_.layout, Side::q),
                      keys = places_of(plan_.layout, Side::kv);
    ProbeTally tally{"kept", report_.rows, 0, {}};
    std::vector<bool> wrong(static_cast<size_t>(report_.rows), false);
    const auto error = for_each_code([&](const BucketCode& code) {
      for (int64_t row = 0; !is_elsewhere_ && row < report_.rows; ++row)
        check_kept(code, queries, keys, row, wrong, tally);
    });
    if (error) return *error;
    tally.wrong = std::count(wrong.begin(), wrong.end(), true);
    return tally;
  }

  Result<ProbeReport> run() {
    if (auto error = for_each_code([&](const BucketCode& code) {
          if (report_.passes == 1) check_counts();
          check_buckets(code);
        }))
      return *error;
    check_long_rows();
    if (auto error = pass([&](int64_t, int32_t head, double* lane) {
          const std::vector<double> code = code_of_head(head);
          std::copy(code.begin(), code.end(), lane);
        }))
      return *error;
    check_heads();
    report_.wrong_count_rows = std::count(wrong_count_.begin(), wrong_count_.end(), true);
    report_.wrong_key_rows = std::count(wrong_key_.begin(), wrong_key_.end(), true);
    const auto tally = [&](const char* probe, const std::vector<bool>& wrong) {
      report_.tallies.push_back(
          {probe, report_.rows, std::count(wrong.begin(), wrong.end(), true),
           firsts_.contains(probe) ? std::optional(firsts_[probe]) : std::nullopt});
    };
    tally("count", wrong_count_);
    tally("keys", wrong_bucket_);
    tally("head", wrong_head_);
    return report_;
  }

 private:
  void prepare_inputs() {
    inputs_ = zero_inputs(plan_);
    inputs_.kept = draw_by_item(plan_);
    // Any finite k is right where q is zero; ones show a q that was not zero.
    std::fill(inputs_.k.values.begin(), inputs_.k.values.end(), 1.0);
  }

  /// One run with v filled by fill(key token, KV head, elements of the row). A v that is a part of
  /// k needs nothing else: all logits are 0 anyway.
  template <class Fill>
  std::optional<Error> pass(Fill fill) {
    Tensor& values = probed_values(inputs_);
    for (int64_t key = 0; key < plan_.layout.slots.kv_tokens; ++key) {
      for (int32_t head = 0; head < kv_heads_; ++head) {
        double* row = values.values.data() + (key * kv_heads_ + head) * values.shape[2];
        std::fill_n(row, lanes_, 0.0);
        fill(key, head, row);
      }
    }
    Result<RunOutput> output = runs_.run(checked_, inputs_);
    if (!output) return output.error();
    is_elsewhere_ = !output.value().is_whole;
    answer_ = std::move(output.value().answer);
    ++report_.passes;
    return std::nullopt;
  }

  /// One run for each digit of each segment of keys, and look(code) after it.
  template <class Look>
  std::optional<Error> for_each_code(Look look) {
    const int64_t keys = count_coded_keys(plan_), per_pass = lanes_ * keys_per_bucket_;
    const std::vector<int64_t> strides = strides_of_code(lanes_, keys_per_bucket_);
    for (int64_t begin = 0; begin < keys; begin += per_pass) {
      for (const int64_t stride : strides) {
        const BucketCode code{begin, std::min(keys, begin + per_pass), lanes_, stride};
        if (auto error = pass([&](int64_t key, int32_t, double* lane) {
              if (key >= code.begin && key < code.end) lane[code.lane_of(key)] = 1.0;
            }))
          return error;
        look(code);
      }
    }
    return std::nullopt;
  }

  /// All visible keys have the same weight, and kept ones are scaled by 1 / (1 - dropout).
  void check_kept(const BucketCode& code, const TokenPlaces& queries, const TokenPlaces& keys,
                  int64_t row, std::vector<bool>& wrong, ProbeTally& tally) const {
    const int64_t token = row / heads_;
    const auto head = static_cast<int32_t>(row % heads_);
    if (expectation_.keys[token].empty()) return;
    const std::vector<int64_t> expected =
        count_kept_lanes(expectation_, terms_, queries, keys, token, head, code);
    const double unit = weight_of(token) * (1.0 - plan_.scenario.attention.dropout);
    for (int32_t lane = 0; lane < lanes_; ++lane) {
      const double seen = answer_.out.values[row * lanes_ + lane] * unit;
      const auto wanted = static_cast<double>(expected[lane]);
      if (std::abs(seen - wanted) < 0.5) continue;
      wrong[static_cast<size_t>(row)] = true;
      if (tally.first) return;
      const int64_t key = code.begin + lane * code.stride;
      ProbeFinding finding;
      finding.probe = "kept";
      finding.token = token;
      finding.head = head;
      finding.expected = wanted;
      finding.seen = seen;
      finding.rank = owner_of(plan_, Side::q, token, head);
      finding.step = step_of(plan_, plan_.forward, finding.rank, key);
      finding.text = fmt::format(
          "query token {}, head {} on rank {} should keep the weights of {} keys like {}, it kept "
          "{:.3g}",
          token, head, finding.rank, wanted, key, seen);
      tally.first = finding;
      return;
    }
  }

  /// The digits of a head's number plus 1, in as many elements as are needed and available. A digit
  /// is at most as large as a count of keys.
  std::vector<double> code_of_head(int32_t head) const {
    std::vector<double> code;
    int64_t left = head;
    const int64_t base = std::max<int64_t>(2, keys_per_bucket_);
    for (int64_t heads = kv_heads_; static_cast<int32_t>(code.size()) < lanes_; heads /= base) {
      code.push_back(static_cast<double>(left % base + 1));
      left /= base;
      if (heads <= base) break;
    }
    return code;
  }

  /// Number of keys (and the sink) that share the row's weight.
  double weight_of(int64_t token) const {
    return static_cast<double>(expectation_.count(token) + (has_sink_ ? 1 : 0));
  }

  void check_counts() {
    if (is_elsewhere_) return;
    for (int64_t row = 0; row < report_.rows; ++row) {
      const int64_t token = row / heads_, expected = expectation_.count(token);
      const double lse = answer_.lse.values[row];
      if (expected == 0) {
        if (lse != -std::numeric_limits<double>::infinity())
          note("count", row, 0, std::exp(lse), -1, wrong_count_);
        continue;
      }
      if (expected > kMostCountableKeys) continue;
      const double seen = std::exp(lse) - (has_sink_ ? 1 : 0);
      if (!(std::abs(seen - static_cast<double>(expected)) < 0.5))
        note("count", row, static_cast<double>(expected), seen, -1, wrong_count_);
    }
  }

  void check_buckets(const BucketCode& code) {
    if (is_elsewhere_) return;
    std::vector<int64_t> expected;
    for (int64_t row = 0; row < report_.rows; ++row) {
      const int64_t token = row / heads_;
      if (row % heads_ == 0) expected = count_lanes(expectation_, token, code);
      const bool is_empty = expectation_.count(token) == 0;
      for (int32_t lane = 0; lane < lanes_; ++lane) {
        const double value = answer_.out.values[row * lanes_ + lane];
        const double seen = is_empty ? value : value * weight_of(token);
        if (code.stride == keys_per_bucket_)
          bucketed_[row] += static_cast<int64_t>(std::isfinite(seen) ? std::llround(seen) : 0);
        const bool is_right =
            is_empty ? value == 0.0 : std::abs(seen - static_cast<double>(expected[lane])) < 0.5;
        if (is_right) continue;
        const int64_t key = code.begin + lane * code.stride;
        note("keys", row, static_cast<double>(expected[lane]), seen, key, wrong_bucket_);
      }
    }
  }

  /// For rows too long for lse: the buckets of all passes must add up.
  void check_long_rows() {
    if (is_elsewhere_) return;
    for (int64_t row = 0; row < report_.rows; ++row) {
      const int64_t expected = expectation_.count(row / heads_);
      if (expected <= kMostCountableKeys || bucketed_[row] == expected) continue;
      note("count", row, static_cast<double>(expected), static_cast<double>(bucketed_[row]), -1,
           wrong_count_);
    }
  }

  void check_heads() {
    if (is_elsewhere_) return;
    for (int64_t row = 0; row < report_.rows; ++row) {
      const int64_t token = row / heads_, keys = expectation_.count(token);
      if (keys == 0) continue;
      const int32_t kv_head = static_cast<int32_t>(row % heads_) / (heads_ / kv_heads_);
      const double whole = weight_of(token) / static_cast<double>(keys);
      const std::vector<double> code = code_of_head(kv_head);
      for (size_t lane = 0; lane < code.size(); ++lane) {
        const double seen = answer_.out.values[row * lanes_ + static_cast<int64_t>(lane)] * whole;
        if (!(std::abs(seen - code[lane]) < 0.5 + code[lane] / 256))
          note("head", row, code[lane], seen, -1, wrong_head_);
      }
    }
  }

  void note(const char* probe, int64_t row, double expected, double seen, int64_t key,
            std::vector<bool>& wrong) {
    wrong[static_cast<size_t>(row)] = true;
    if (&wrong != &wrong_count_) wrong_key_[static_cast<size_t>(row)] = true;
    const auto known = firsts_.find(probe);
    const bool is_first_of_probe = known == firsts_.end() || (known->second.step < 0 && key >= 0);
    const bool is_first = !report_.first || (report_.first->step < 0 && key >= 0);
    if (!is_first && !is_first_of_probe) return;
    ProbeFinding finding;
    finding.probe = probe;
    finding.token = row / heads_;
    finding.head = static_cast<int32_t>(row % heads_);
    finding.rank = owner_of(plan_, Side::q, finding.token, finding.head);
    finding.step = key < 0 ? -1 : step_of(plan_, plan_.forward, finding.rank, key);
    finding.expected = expected;
    finding.seen = seen;
    finding.text =
        key < 0 ? fmt::format("{} of query token {}, head {} on rank {}: {} expected, {} seen",
                              probe, finding.token, finding.head, finding.rank, expected, seen)
                : fmt::format(
                      "query token {}, head {} on rank {} should see {} keys like {} (owned by "
                      "rank {}), it saw {}",
                      finding.token, finding.head, finding.rank, expected, key,
                      owner_of(plan_, Side::kv, key), seen);
    if (is_first) report_.first = finding;
    if (is_first_of_probe) firsts_[probe] = finding;
  }

  const CheckedPlan& checked_;
  const Plan& plan_;
  ProbeRuns& runs_;
  Expectation expectation_;
  int32_t heads_, kv_heads_, lanes_;
  int64_t keys_per_bucket_;
  bool has_sink_ = false;
  RunInputs inputs_;
  PairTermsOf terms_;  // of dropout; empty without
  Answer answer_;
  bool is_elsewhere_ = false;  // another process has the answer and checks it
  ProbeReport report_;
  std::vector<bool> wrong_count_, wrong_key_;    // [row]
  std::vector<bool> wrong_bucket_, wrong_head_;  // [row] two ways in which keys can be wrong
  std::map<std::string, ProbeFinding> firsts_;   // [probe]
  std::vector<int64_t> bucketed_;                // [row] keys found in buckets so far
};

/// What a probe's integers leave no room for.
std::vector<std::string> list_left_out(const Scenario& scenario) {
  std::vector<std::string> names;
  if (scenario.attention.bias != BiasShape::none) names.emplace_back("bias");
  if (scenario.attention.alibi) names.emplace_back("ALiBi");
  if (scenario.numerics.fp8) names.emplace_back("FP8 (bf16 instead)");
  return names;
}

}  // namespace

bool ProbeReport::passed() const {
  return std::all_of(tallies.begin(), tallies.end(),
                     [](const ProbeTally& tally) { return tally.wrong == 0; });
}

std::optional<ProbeFinding> ProbeReport::first_of(std::string_view probe) const {
  for (const ProbeTally& tally : tallies) {
    if (tally.probe == probe) return tally.first;
  }
  return std::nullopt;
}

Scenario probe_scenario(const Scenario& scenario) {
  Scenario probe = with_room_for_codes(without_score_terms(scenario));
  probe.numerics.backward = false;
  probe.numerics.accumulate = Accumulate::fp32;
  probe.numerics.fp8.reset();
  return probe;
}

Result<ProbeReport> probe_plan(const CheckedPlan& plan, Executor& executor,
                               const MaskWitness& witness) {
  ProbeRuns runs(executor, 0, {});
  return Probe(plan, runs, witness).run();
}

double estimate_probe_flops(const Scenario& scenario, const Plan& plan, const Executor& executor) {
  int64_t runs = count_key_runs(plan, executor) + count_query_runs(plan);
  if (scenario.attention.rope_theta > 0) runs += kPositionRuns;
  if (scenario.attention.dropout > 0) runs += count_key_runs(plan, executor) - 1;
  const double flops = count_flops(plan) * static_cast<double>(runs);
  if (!scenario.numerics.backward) return flops;
  const double qk = scenario.attention.head_dim_qk, v = scenario.attention.head_dim_v;
  const double both = (4 * qk + 3 * v) / (qk + v);  // passes, in forward passes
  return flops + both * count_flops(plan) * static_cast<double>(count_gradient_runs(plan));
}

Result<ProbeReport> run_probes(const Scenario& scenario, Executor& executor,
                               const MaskWitness& witness, const ShareDone& share) {
  return run_probes(
      scenario, [](const Scenario& probe) { return plan_scenario(probe); }, executor, witness,
      share);
}

Result<ProbeReport> run_probes(const Scenario& scenario, const PlanVariant& plan_for,
                               Executor& executor, const MaskWitness& witness,
                               const ShareDone& share) {
  const Result<CheckedPlan> plan = plan_for(probe_scenario(scenario));
  if (!plan) return plan.error();
  ProbeRuns runs(executor, estimate_probe_flops(scenario, plan.value().plan(), executor), share);
  Result<ProbeReport> probed = Probe(plan.value(), runs, witness).run();
  if (!probed) return probed;
  ProbeReport report = std::move(probed).value();
  report.left_out = list_left_out(scenario);
  const auto add = [&](const ProbeTally& tally) {
    if (!report.first && tally.first) report.first = tally.first;
    report.tallies.push_back(tally);
  };
  if (scenario.attention.dropout > 0) {
    Scenario dropping = probe_scenario(scenario);
    dropping.attention.dropout = scenario.attention.dropout;
    const Result<CheckedPlan> kept_plan = plan_for(dropping);
    if (!kept_plan) return kept_plan.error();
    const Result<ProbeTally> kept = Probe(kept_plan.value(), runs, witness).run_kept();
    if (!kept) return kept.error();
    add(kept.value());
  }
  Scenario forward = coded_probe_scenario(scenario);
  forward.numerics.backward = false;
  const Result<CheckedPlan> coded = plan_for(forward);
  if (!coded) return coded.error();
  const Result<ProbeTally> queries = probe_queries(coded.value(), runs, witness);
  if (!queries) return queries.error();
  add(queries.value());
  if (scenario.attention.rope_theta > 0) {
    const Result<CheckedPlan> turned = plan_for(position_probe_scenario(scenario));
    if (!turned) return turned.error();
    const Result<ProbeTally> positions = probe_positions(turned.value(), runs, witness);
    if (!positions) return positions.error();
    add(positions.value());
  }
  if (scenario.numerics.backward) {
    const Result<CheckedPlan> both = plan_for(coded_probe_scenario(scenario));
    if (!both) return both.error();
    const Result<std::vector<ProbeTally>> gradients = probe_gradients(both.value(), runs, witness);
    if (gradients) {
      for (const ProbeTally& tally : gradients.value()) add(tally);
    } else if (gradients.error().kind == ErrorKind::unavailable) {
      for (const char* name : {"dq", "dk", "dv"}) add({name, 0, 0, {}, to_text(gradients.error())});
    } else {
      return gradients.error();
    }
  }
  return report;
}

}  // namespace cpscope
