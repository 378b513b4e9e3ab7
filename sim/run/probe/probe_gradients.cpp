#include "sim/run/dtype.h"
#include "sim/run/grade/latent_probe.h"
#include "sim/run/grade/probe_parts.h"
#include "sim/run/probe/probe_coded.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kMostSegments = 16;
constexpr int64_t kMostExpected = int64_t{1} << 24;  // expected numbers of one run, a few 100 MB
constexpr double kTolerance = 0.25;                  // of one key or query

/// Ids [begin, end) that one run codes, cyclically over the elements of a row.
struct Segment {
  int64_t begin = 0, end = 0;
  int32_t lanes = 1;

  bool holds(int64_t id) const { return id >= begin && id < end; }
  int32_t lane_of(int64_t id) const { return static_cast<int32_t>((id - begin) % lanes); }
};

/// Segments of `size` over [0, total), all or evenly spread ones.
std::vector<Segment> make_segments(int64_t total, int64_t size, int32_t lanes) {
  std::vector<Segment> segments;
  const int64_t count = (total + size - 1) / size, taken = std::min(count, kMostSegments);
  for (int64_t i = 0; i < taken; ++i) {
    const int64_t begin = (count * i / taken) * size;
    segments.push_back({begin, std::min(total, begin + size), lanes});
  }
  return segments;
}

/// Number of keys, or queries of one head, that one element may count: as many as the dtype adds up
/// within the tolerance.
int64_t count_per_lane(const Scenario& scenario) {
  return element_bytes(scenario.numerics.dtype) == 2 ? 16 : 64;
}

/// The first element of k that codes a key for dq: v, if it is a part of k, needs one before it.
int32_t first_of_keys(const Attention& attention) { return attention.latent_dim > 0 ? 1 : 0; }

/// The segments of keys that k codes for dq.
std::vector<Segment> segments_of_keys(const Plan& plan) {
  const Attention attention = probed_attention(plan.scenario.attention);
  // Even: one sign an element.
  const int32_t lanes = (attention.head_dim_qk - first_of_keys(attention)) / 2 * 2;
  if (lanes == 0) return {};
  return make_segments(plan.layout.slots.kv_tokens, lanes * count_per_lane(plan.scenario), lanes);
}

/// Elements of q, and of d_out, that code queries. A v that is a part of k keeps the front half of
/// k at most, so that q's elements meet zeros.
int32_t lanes_of_queries(const Attention& attention) {
  return std::min(attention.head_dim_v,
                  attention.latent_dim > 0 ? attention.head_dim_qk / 2 : attention.head_dim_qk);
}

/// True if the expected dk and dv of one run would not fit in memory.
bool has_too_many_keys(const Plan& plan) {
  return plan.layout.slots.kv_tokens * lanes_of_queries(probed_attention(plan.scenario.attention)) >
         kMostExpected;
}

/// The segments of queries that q and d_out code for dk and dv.
std::vector<Segment> segments_of_queries(const Plan& plan) {
  if (has_too_many_keys(plan)) return {};
  const Attention attention = probed_attention(plan.scenario.attention);
  const int32_t lanes = lanes_of_queries(attention);
  if (lanes == 0) return {};
  const int64_t group = attention.heads / attention.kv_heads;
  return make_segments(plan.layout.slots.tokens,
                       lanes * std::max<int64_t>(1, count_per_lane(plan.scenario) / group), lanes);
}

double sign_of(int64_t key) { return key % 2 == 0 ? 1.0 : -1.0; }

class GradientProbe {
 public:
  GradientProbe(const Plan& plan, const MaskWitness& witness)
      : plan_(plan),
        attention_(probed_attention(plan.scenario.attention)),
        expectation_(plan, witness),
        inputs_(zero_inputs(plan)),
        scale_(attention_.effective_scale()),
        group_(attention_.heads / attention_.kv_heads) {
    const bool has_sink = attention_.softmax_type != SoftmaxType::vanilla;
    for (int64_t token = 0; token < plan.layout.slots.tokens; ++token) {
      const double keys = static_cast<double>(expectation_.count(token));
      const double weight = keys + (has_sink ? 1 : 0);
      double sum = 0;
      for (const Expectation::Interval& run : expectation_.keys[token]) {
        // Neighbours cancel; the sign of the first key is left if the number of keys is odd.
        if ((run.end - run.begin) % 2 != 0) sum += sign_of(run.begin);
      }
      weights_.push_back(keys == 0 ? 0 : round_to(plan.scenario.numerics.dtype, weight));
      shares_.push_back(keys == 0 ? 0 : weights_.back() / weight);
      means_.push_back(keys == 0 ? 0 : sum / weight);
    }
    // fp16 cannot hold such large counts and slopes.
    double most = 0;
    for (const double weight : weights_) most = std::max(most, weight);
    can_tell_ =
        plan.scenario.numerics.dtype != Dtype::fp16 || (most < 32768 && std::abs(scale_) > 1e-3);
  }

  Result<std::vector<ProbeTally>> run(const CheckedPlan& checked, ProbeRuns& runs) {
    if (auto error = probe_dq(checked, runs)) return *error;
    if (auto error = probe_dkv(checked, runs)) return *error;
    return std::vector<ProbeTally>{dq_, dk_, dv_};
  }

 private:
  Result<RunOutput> carry_out(const CheckedPlan& checked, ProbeRuns& runs) {
    return runs.run(checked, inputs_);
  }

  /// Sets v to +1 and -1 alternately in all elements, or in the first `latent` ones if it is a part
  /// of k; everything else to zero.
  void reset_inputs(int32_t latent) {
    for (Tensor* tensor : {&inputs_.q, &inputs_.k, &inputs_.d_out})
      std::fill(tensor->values.begin(), tensor->values.end(), 0.0);
    Tensor& values = probed_values(inputs_);
    const int64_t heads = values.shape[1], lanes = values.shape[2],
                  signs = attention_.latent_dim > 0 ? latent : lanes;
    for (int64_t row = 0; row < values.shape[0] * heads; ++row)
      std::fill_n(values.values.begin() + row * lanes, signs, sign_of(row / heads));
  }

  static void set(Tensor& tensor, int64_t token, int32_t lane, double value) {
    const int64_t heads = tensor.shape[1], lanes = tensor.shape[2];
    for (int64_t head = 0; head < heads; ++head)
      tensor.values[(token * heads + head) * lanes + lane] = value;
  }

  /// k codes a segment of keys; every query is tested.
  std::optional<Error> probe_dq(const CheckedPlan& checked, ProbeRuns& runs) {
    if (segments_of_keys(plan_).empty() || !can_tell_) return std::nullopt;
    const int64_t tokens = plan_.layout.slots.tokens;
    std::vector<bool> wrong(static_cast<size_t>(tokens * attention_.heads), false);
    dq_.rows = static_cast<int64_t>(wrong.size());
    for (const Segment& segment : segments_of_keys(plan_)) {
      reset_inputs(1);
      for (int64_t key = segment.begin; key < segment.end; ++key)
        set(inputs_.k, key, first_of_keys(attention_) + segment.lane_of(key), 1.0);
      for (int64_t token = 0; token < tokens; ++token)
        set(inputs_.d_out, token, 0, weights_[token]);
      const Result<RunOutput> output = carry_out(checked, runs);
      if (!output) return output.error();
      if (!output.value().is_whole) continue;
      check_dq(output.value().answer.dq, segment, wrong);
    }
    dq_.wrong = std::count(wrong.begin(), wrong.end(), true);
    return std::nullopt;
  }

  void check_dq(const Tensor& dq, const Segment& segment, std::vector<bool>& wrong) {
    std::vector<double> expected(static_cast<size_t>(segment.lanes));
    std::vector<int64_t> example(expected.size());
    for (int64_t token = 0; token < dq.shape[0]; ++token) {
      std::fill(expected.begin(), expected.end(), 0.0);
      std::fill(example.begin(), example.end(), int64_t{-1});
      for (const Expectation::Interval& run : expectation_.keys[token]) {
        for (int64_t key = std::max(run.begin, segment.begin); key < std::min(run.end, segment.end);
             ++key) {
          expected[segment.lane_of(key)] += shares_[token] * (sign_of(key) - means_[token]);
          example[segment.lane_of(key)] = key;
        }
      }
      for (int32_t head = 0; head < attention_.heads; ++head) {
        for (int32_t lane = 0; lane < segment.lanes; ++lane) {
          const double seen = dq.values[(token * attention_.heads + head) * dq.shape[2] +
                                        first_of_keys(attention_) + lane] /
                              scale_;
          if (std::abs(seen - expected[lane]) < kTolerance) continue;
          wrong[token * attention_.heads + head] = true;
          const int64_t key = example[lane] >= 0 ? example[lane] : segment.begin + lane;
          note(dq_, token, head, Side::q, owner_of(plan_, Side::q, token), key, expected[lane],
               seen);
        }
      }
    }
  }

  /// q and d_out code a segment of queries; every key is tested.
  std::optional<Error> probe_dkv(const CheckedPlan& checked, ProbeRuns& runs) {
    if (segments_of_queries(plan_).empty() || !can_tell_) return std::nullopt;
    const int64_t keys = plan_.layout.slots.kv_tokens;
    std::vector<bool> wrong_k(static_cast<size_t>(keys * attention_.kv_heads), false),
        wrong_v = wrong_k;
    dk_.rows = dv_.rows = static_cast<int64_t>(wrong_k.size());
    for (const Segment& segment : segments_of_queries(plan_)) {
      reset_inputs(segment.lanes);
      for (int64_t token = segment.begin; token < segment.end; ++token) {
        set(inputs_.q, token, first_of_queries(segment) + segment.lane_of(token), 1.0);
        set(inputs_.d_out, token, segment.lane_of(token), weights_[token]);
      }
      const Result<RunOutput> output = carry_out(checked, runs);
      if (!output) return output.error();
      if (!output.value().is_whole) continue;
      check_dkv(output.value().answer, segment, wrong_k, wrong_v);
    }
    dk_.wrong = std::count(wrong_k.begin(), wrong_k.end(), true);
    dv_.wrong = std::count(wrong_v.begin(), wrong_v.end(), true);
    return std::nullopt;
  }

  /// The first element of q that codes a query.
  int32_t first_of_queries(const Segment& segment) const {
    return attention_.latent_dim > 0 ? attention_.head_dim_qk - segment.lanes : 0;
  }

  void check_dkv(const Answer& answer, const Segment& segment, std::vector<bool>& wrong_k,
                 std::vector<bool>& wrong_v) {
    const int64_t keys = plan_.layout.slots.kv_tokens;
    std::vector<double> slope(static_cast<size_t>(keys * segment.lanes), 0.0), weight = slope;
    std::vector<int64_t> example(slope.size(), -1);  // a query of this element that sees the key
    for (int64_t token = segment.begin; token < segment.end; ++token) {
      const int32_t lane = segment.lane_of(token);
      for (const Expectation::Interval& run : expectation_.keys[token]) {
        for (int64_t key = run.begin; key < run.end; ++key) {
          const int64_t cell = key * segment.lanes + lane;
          slope[cell] += group_ * shares_[token] * (sign_of(key) - means_[token]);
          weight[cell] += group_ * shares_[token];
          example[cell] = token;
        }
      }
    }
    const auto check = [&](const Tensor& seen, int32_t first, const std::vector<double>& expected,
                           double unit, std::vector<bool>& wrong, ProbeTally& tally) {
      for (int64_t row = 0; row < keys * attention_.kv_heads; ++row) {
        const int64_t key = row / attention_.kv_heads;
        for (int32_t lane = 0; lane < segment.lanes; ++lane) {
          const double value = seen.values[row * seen.shape[2] + first + lane] / unit;
          const int64_t cell = key * segment.lanes + lane;
          if (std::abs(value - expected[cell]) < kTolerance) continue;
          wrong[row] = true;
          const int64_t query = example[cell] >= 0 ? example[cell] : segment.begin + lane;
          note(tally, key, static_cast<int32_t>(row % attention_.kv_heads), Side::kv,
               owner_of(plan_, Side::q, std::min(query, plan_.layout.slots.tokens - 1)), key,
               expected[cell], value);
        }
      }
    };
    check(answer.dk, first_of_queries(segment), slope, scale_, wrong_k, dk_);
    check(attention_.latent_dim > 0 ? answer.dk : answer.dv, 0, weight, 1.0, wrong_v, dv_);
  }

  /// `worker`: the rank whose tile should have computed the missing part, when it meets the key.
  void note(ProbeTally& tally, int64_t token, int32_t head, Side side, int32_t worker, int64_t key,
            double expected, double seen) const {
    if (tally.first) return;
    ProbeFinding finding;
    finding.probe = tally.probe;
    finding.rank = side == Side::q ? worker : owner_of(plan_, Side::kv, token);
    finding.step = step_of(plan_, plan_.backward, worker, key);
    finding.token = token;
    finding.head = head;
    finding.expected = expected;
    finding.seen = seen;
    finding.text = fmt::format(
        "{} of {} token {}, head {} on rank {}: {:.4g} expected, {:.4g} seen (rank {} computes "
        "with key {} "
        "in backward step {})",
        tally.probe, side == Side::q ? "query" : "key", token, head, finding.rank, expected, seen,
        worker, key, finding.step);
    tally.first = finding;
  }

  const Plan& plan_;
  const Attention attention_;
  Expectation expectation_;
  RunInputs inputs_;
  double scale_;
  int32_t group_;
  bool can_tell_ = true;
  std::vector<double> weights_;  // [query token] d_out: visible keys and sink, rounded to the dtype
  std::vector<double> shares_;   // [query token] d_out times the weight of one key; about 1
  std::vector<double> means_;    // [query token] out
  ProbeTally dq_{"dq", 0, 0, {}, ""}, dk_{"dk", 0, 0, {}, ""}, dv_{"dv", 0, 0, {}, ""};
};

}  // namespace

Result<std::vector<ProbeTally>> probe_gradients(const CheckedPlan& plan, ProbeRuns& runs,
                                                const MaskWitness& witness) {
  return GradientProbe(plan.plan(), witness).run(plan, runs);
}

int64_t count_gradient_runs(const Plan& plan) {
  return std::ssize(segments_of_keys(plan)) + std::ssize(segments_of_queries(plan));
}

}  // namespace cpscope
