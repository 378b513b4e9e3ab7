#include "sim/run/probe/probe_coded.h"

#include "sim/plan/rotary_positions.h"
#include "sim/run/dtype.h"
#include "sim/run/grade/latent_probe.h"
#include "sim/run/grade/probe_parts.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr double kDecisiveLogit = 24.0;  // e^24 times the weight of any other key

/// Counts a wrong row and keeps the first.
void note(ProbeTally& tally, const Plan& plan, int64_t token, int32_t head, int64_t key,
          double expected, double seen, std::string text) {
  if (tally.first) return;
  ProbeFinding finding;
  finding.probe = tally.probe;
  finding.rank = owner_of(plan, Side::q, token, head);
  finding.step = key < 0 ? -1 : step_of(plan, plan.forward, finding.rank, key);
  finding.token = token;
  finding.head = head;
  finding.expected = expected;
  finding.seen = seen;
  finding.text = fmt::format("query token {}, head {} on rank {} {}", token, head, finding.rank,
                             std::move(text));
  tally.first = finding;
}

/// True if the dtype can hold the coded values; fp16 ends at 65504.
bool can_hold(const Plan& plan, const LogitFactors& factors) {
  return plan.scenario.numerics.dtype != Dtype::fp16 ||
         std::max(std::abs(factors.q), std::abs(factors.k)) <= 32768;
}

/// Number of classes of keys, one for each element of v that codes one.
int32_t count_classes(const Attention& attention) {
  return std::min({attention.head_dim_qk, attention.head_dim_v, int32_t{16}});
}

class QueryProbe {
 public:
  QueryProbe(const Plan& plan, const MaskWitness& witness)
      : plan_(plan), expectation_(plan, witness), inputs_(zero_inputs(plan)) {
    const Attention attention = probed_attention(plan.scenario.attention);
    heads_ = attention.heads;
    classes_ = count_classes(attention);
    factors_ = factors_of_logit(attention.effective_scale(), kDecisiveLogit);
    if (!can_hold(plan, factors_)) classes_ = 1;
    code(inputs_.k, factors_.k);
    if (attention.latent_dim == 0)
      code(inputs_.v, 1.0);
    else
      value_ = factors_.k;  // k's code is also that of v
  }

  Result<ProbeTally> run(const CheckedPlan& checked, ProbeRuns& runs) {
    const int64_t rows = plan_.layout.slots.tokens * heads_;
    ProbeTally tally{"query", 0, 0, {}, ""};
    if (classes_ < 2) return tally;
    std::vector<bool> asked(static_cast<size_t>(rows), false), wrong = asked;
    for (int64_t unit = 1; unit < std::max<int64_t>(2, rows); unit *= classes_) {
      ask_for_digit(unit);
      const Result<RunOutput> output = runs.run(checked, inputs_);
      if (!output) return output.error();
      if (!output.value().is_whole) continue;
      for (int64_t row = 0; row < rows; ++row) {
        const auto digit = static_cast<int32_t>(row / unit % classes_);
        if (!sees_class(row / heads_, digit)) continue;
        asked[row] = true;
        check(output.value().answer.out, row, digit, wrong, tally);
      }
    }
    tally.rows = std::count(asked.begin(), asked.end(), true);
    tally.wrong = std::count(wrong.begin(), wrong.end(), true);
    return tally;
  }

 private:
  /// Sets every key's row to `value` in the element of its class.
  void code(Tensor& tensor, double value) const {
    for (int64_t row = 0; row < tensor.shape[0] * tensor.shape[1]; ++row)
      tensor.values[row * tensor.shape[2] + row / tensor.shape[1] % classes_] = value;
  }

  void ask_for_digit(int64_t unit) {
    const int64_t lanes = inputs_.q.shape[2];
    std::fill(inputs_.q.values.begin(), inputs_.q.values.end(), 0.0);
    for (int64_t row = 0; row < inputs_.q.shape[0] * heads_; ++row)
      inputs_.q.values[row * lanes + row / unit % classes_] = factors_.q;
  }

  bool sees_class(int64_t token, int32_t digit) const {
    for (const Expectation::Interval& run : expectation_.keys[token]) {
      const int64_t first = run.begin + ((digit - run.begin) % classes_ + classes_) % classes_;
      if (first < run.end) return true;
    }
    return false;
  }

  void check(const Tensor& out, int64_t row, int32_t digit, std::vector<bool>& wrong,
             ProbeTally& tally) const {
    const double* seen = out.values.data() + row * out.shape[2];
    int32_t found = -1;
    for (int32_t lane = 0; lane < classes_; ++lane) {
      if (seen[lane] / value_ > 0.5) found = lane;
    }
    if (found == digit) return;
    wrong[row] = true;
    note(tally, plan_, row / heads_, static_cast<int32_t>(row % heads_), -1, digit, found,
         fmt::format("was computed with another query: one digit of its number is {}, {} expected",
                     found, digit));
  }

  const Plan& plan_;
  Expectation expectation_;
  RunInputs inputs_;
  int32_t heads_ = 1, classes_ = 1;
  double value_ = 1.0;  // of v in the element of a key's class
  LogitFactors factors_;
};

class PositionProbe {
 public:
  PositionProbe(const Plan& plan, const MaskWitness& witness)
      : plan_(plan),
        expectation_(plan, witness),
        inputs_(zero_inputs(plan)),
        query_positions_(rotary_positions(plan.scenario, plan.layout.slots, Side::q)),
        key_positions_(rotary_positions(plan.scenario, plan.layout.slots, Side::kv)) {
    const Attention attention = probed_attention(plan.scenario.attention);
    heads_ = attention.heads;
    first_ = attention.first_rotated_of_q();
    const int32_t rotated = attention.head_dim_qk - first_;
    half_ = rotated / 2;
    for (int32_t lane = 0; lane < half_; ++lane)
      frequencies_.push_back(std::pow(attention.rope_theta, -2.0 * lane / rotated));
    base_ = attention.head_dim_v >= 8 ? 16 : 128;
    const double gap = smallest_gap();
    const double logit = kDecisiveLogit / gap;
    const double noise = logit * std::sqrt(half_) * 2 * unit_roundoff(plan.scenario.numerics.dtype);
    double codes = 1;
    for (int32_t lane = 0; lane < attention.head_dim_v; ++lane) codes *= base_;
    can_tell_ = gap > 0 && noise < kDecisiveLogit / 4 &&
                codes >= static_cast<double>(plan.layout.slots.kv_tokens);
    if (can_tell_) factors_ = factors_of_logit(attention.effective_scale(), logit);
    can_tell_ = can_tell_ && can_hold(plan, factors_);
    code_keys();
  }

  Result<ProbeTally> run(const CheckedPlan& checked, ProbeRuns& runs) {
    ProbeTally tally{"position", 0, 0, {}, ""};
    if (!plan_.scenario.batch.q_positions.empty())
      tally.why_not = "keys of a positions_file may have the same position";
    if (!can_tell_ || !tally.why_not.empty()) return tally;
    const int64_t rows = plan_.layout.slots.tokens * heads_;
    std::vector<bool> wrong(static_cast<size_t>(rows), false);
    for (int64_t row = 0; row < rows; ++row)
      tally.rows += expectation_.keys[row / heads_].empty() ? 0 : 1;
    for (int64_t which = 0; which < kPositionRuns; ++which) {
      aim(which);
      const Result<RunOutput> output = runs.run(checked, inputs_);
      if (!output) return output.error();
      if (!output.value().is_whole) continue;
      for (int64_t row = 0; row < rows; ++row) {
        if (!expectation_.keys[row / heads_].empty())
          check(output.value().answer.out, row, target(row / heads_, which), wrong, tally);
      }
    }
    tally.wrong = std::count(wrong.begin(), wrong.end(), true);
    return tally;
  }

 private:
  /// The first, middle or last visible key of a row.
  int64_t target(int64_t token, int64_t which) const {
    return expectation_.nth(token, (expectation_.count(token) - 1) * which / 2);
  }

  /// Smallest difference between the sum of cosines at its maximum and at the nearest other
  /// distance.
  double smallest_gap() const {
    int64_t longest = 1;
    for (const SequenceSlot& slot : plan_.layout.slots.sequences)
      longest = std::max(longest, slot.kv_valid);
    double smallest = half_ > 0 ? 2.0 * half_ : 0.0;
    for (int64_t distance = 1; distance < longest; ++distance) {
      double gap = 0;
      for (const double frequency : frequencies_)
        gap += 1 - std::cos(static_cast<double>(distance) * frequency);
      smallest = std::min(smallest, gap);
    }
    return smallest;
  }

  /// The elements of k that code v, if it is a part of k, meet zeros of q.
  void code_keys() {
    Tensor& values = probed_values(inputs_);
    const int64_t lanes = plan_.scenario.attention.head_dim_v;
    for (int64_t row = 0; row < inputs_.k.shape[0] * inputs_.k.shape[1]; ++row) {
      double* key = inputs_.k.values.data() + row * inputs_.k.shape[2] + first_;
      std::fill(key, key + half_, factors_.k);
      int64_t rest = row / inputs_.k.shape[1];
      for (int64_t lane = 0; lane < lanes; ++lane, rest /= base_)
        values.values[row * values.shape[2] + lane] = static_cast<double>(rest % base_);
    }
  }

  /// Rotates every query so that, after rotation by its own position, it matches its target key.
  void aim(int64_t which) {
    const Dtype dtype = plan_.scenario.numerics.dtype;
    for (int64_t row = 0; row < inputs_.q.shape[0] * heads_; ++row) {
      const int64_t token = row / heads_;
      if (expectation_.keys[token].empty()) continue;
      const auto by =
          static_cast<double>(key_positions_[target(token, which)] - query_positions_[token]);
      double* query = inputs_.q.values.data() + row * inputs_.q.shape[2] + first_;
      for (int32_t lane = 0; lane < half_; ++lane) {
        query[lane] = round_to(dtype, factors_.q * std::cos(by * frequencies_[lane]));
        query[lane + half_] = round_to(dtype, factors_.q * std::sin(by * frequencies_[lane]));
      }
    }
  }

  void check(const Tensor& out, int64_t row, int64_t key, std::vector<bool>& wrong,
             ProbeTally& tally) const {
    const double* seen = out.values.data() + row * out.shape[2];
    int64_t rest = key;
    bool is_right = true;
    for (int64_t lane = 0; lane < out.shape[2]; ++lane, rest /= base_)
      is_right = is_right && std::abs(seen[lane] - static_cast<double>(rest % base_)) < 0.5;
    if (is_right) return;
    wrong[row] = true;
    double found = 0, unit = 1;
    for (int64_t lane = 0; lane < out.shape[2]; ++lane, unit *= base_)
      found += unit * std::round(seen[lane]);
    note(tally, plan_, row / heads_, static_cast<int32_t>(row % heads_), key,
         static_cast<double>(key), found,
         fmt::format("selects key token {} by its position but gets {}", key, found));
  }

  const Plan& plan_;
  Expectation expectation_;
  RunInputs inputs_;
  const std::vector<int64_t> query_positions_, key_positions_;
  int32_t heads_ = 1, first_ = 0, half_ = 0;  // the first rotated element of q and k
  std::vector<double> frequencies_;
  int64_t base_ = 16;  // of the digits of the key's number in v
  bool can_tell_ = false;
  LogitFactors factors_;
};

}  // namespace

Scenario coded_probe_scenario(const Scenario& scenario) {
  Scenario probe = with_room_for_codes(without_score_terms(scenario));
  probe.attention.rope_theta = 0;
  probe.attention.softcap = 0;
  probe.numerics.accumulate = Accumulate::fp32;
  probe.numerics.dkv_wire = WireFormat::fp32;
  probe.numerics.fp8.reset();
  return probe;
}

Scenario position_probe_scenario(const Scenario& scenario) {
  Scenario probe = probe_scenario(scenario);
  probe.attention.softcap = 0;
  return probe;
}

Result<ProbeTally> probe_queries(const CheckedPlan& plan, ProbeRuns& runs,
                                 const MaskWitness& witness) {
  return QueryProbe(plan.plan(), witness).run(plan, runs);
}

int64_t count_query_runs(const Plan& plan) {
  const int64_t rows = plan.layout.slots.tokens * plan.scenario.attention.heads,
                classes = count_classes(plan.scenario.attention);
  int64_t runs = 0;
  for (int64_t unit = 1; classes > 1 && unit < std::max<int64_t>(2, rows); unit *= classes) ++runs;
  return runs;
}

Result<ProbeTally> probe_positions(const CheckedPlan& plan, ProbeRuns& runs,
                                   const MaskWitness& witness) {
  return PositionProbe(plan.plan(), witness).run(plan, runs);
}

}  // namespace cpscope
