#include "sim/run/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kKeysPerBucket =
    128;  // counts that 8 significant bits hold with room for one rounding
constexpr int64_t kMostCountableKeys = 1 << 18;  // beyond, fp32's lse no longer tells n from n + 1

/// Which lane stands for a key in one pass: keys [begin, end), `strided` puts every lanes-th key
/// together.
struct BucketCode {
  int64_t begin, end;
  int32_t lanes;
  bool strided;

  int32_t lane_of(int64_t key) const {
    const int64_t offset = key - begin;
    return static_cast<int32_t>(strided ? offset % lanes : offset / kKeysPerBucket);
  }
};

/// What every query row must see, by packed padded ids; computed once from the witness.
struct Expectation {
  struct Interval {
    int64_t begin, end;
  };
  std::vector<std::vector<Interval>> keys;  // [query token]

  Expectation(const Plan& plan, const MaskWitness& witness)
      : keys(static_cast<size_t>(plan.layout.slots.tokens)) {
    const VisibleKeysOfSequence visible_keys = witness.visible_keys(plan.scenario);
    for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
      const SequenceSlot& slot = plan.layout.slots.sequences[s];
      const auto rows = visible_keys(static_cast<int64_t>(s));
      for (size_t i = 0; i < rows.size(); ++i) {
        for (const KeyInterval& run : rows[i])
          keys[slot.q_begin + static_cast<int64_t>(i)].push_back(
              {slot.kv_begin + run.begin, slot.kv_begin + run.end});
      }
    }
  }

  int64_t count(int64_t token) const {
    int64_t sum = 0;
    for (const Interval& run : keys[token]) sum += run.end - run.begin;
    return sum;
  }

  /// Keys of the row in each lane of the code.
  std::vector<int64_t> lane_counts(int64_t token, const BucketCode& code) const {
    std::vector<int64_t> counts(static_cast<size_t>(code.lanes), 0);
    for (const Interval& run : keys[token]) {
      for (int64_t key = std::max(run.begin, code.begin); key < std::min(run.end, code.end);) {
        if (code.strided) {
          ++counts[code.lane_of(key++)];
          continue;
        }
        const int64_t stop =
            std::min({run.end, code.end,
                      code.begin + ((key - code.begin) / kKeysPerBucket + 1) * kKeysPerBucket});
        counts[code.lane_of(key)] += stop - key;
        key = stop;
      }
    }
    return counts;
  }
};

class Probe {
 public:
  Probe(const CheckedPlan& plan, Executor& executor, const MaskWitness& witness,
        const Progress& progress)
      : checked_(plan),
        plan_(plan.plan()),
        executor_(executor),
        progress_(progress),
        expectation_(plan_, witness),
        heads_(plan_.scenario.attention.heads),
        kv_heads_(plan_.scenario.attention.kv_heads),
        lanes_(plan_.scenario.attention.head_dim_v) {
    const int64_t rows = plan_.layout.slots.tokens * heads_;
    report_.rows = rows;
    wrong_count_.assign(static_cast<size_t>(rows), false);
    wrong_key_.assign(static_cast<size_t>(rows), false);
    wrong_bucket_ = wrong_head_ = wrong_key_;
    bucketed_.assign(static_cast<size_t>(rows), 0);
    has_sink_ = plan_.scenario.attention.softmax_type != SoftmaxType::vanilla;
    prepare_inputs();
  }

  Result<ProbeReport> run() {
    const int64_t keys = std::max<int64_t>(1, plan_.layout.slots.kv_tokens),
                  per_pass = lanes_ * kKeysPerBucket;
    const int64_t segments = (keys + per_pass - 1) / per_pass;
    total_passes_ = 2 * segments + 1;
    for (int64_t segment = 0; segment < segments; ++segment) {
      const int64_t begin = segment * per_pass, end = std::min(keys, begin + per_pass);
      for (const bool strided : {false, true}) {
        const BucketCode code{begin, end, lanes_, strided};
        if (auto error = pass([&](int64_t key, int32_t, double* lane) {
              if (key >= code.begin && key < code.end) lane[code.lane_of(key)] = 1.0;
            }))
          return *error;
        if (report_.passes == 1) check_counts();
        check_buckets(code);
      }
    }
    check_long_rows();
    if (auto error = pass([&](int64_t, int32_t head, double* lane) {
          lane[0] = head % kKeysPerBucket + 1;
          if (lanes_ > 1) lane[1] = static_cast<double>(head / kKeysPerBucket + 1);
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
    const Attention& attention = plan_.scenario.attention;
    const auto zeros = [](const char* name, std::vector<int64_t> shape, Dtype dtype) {
      Tensor tensor{name, std::move(shape), dtype, {}};
      tensor.values.assign(static_cast<size_t>(tensor.size()), 0.0);
      return tensor;
    };
    const Dtype dtype = plan_.scenario.numerics.dtype;
    inputs_.slots = plan_.layout.slots;
    inputs_.q = zeros("q", {inputs_.slots.tokens, attention.heads, attention.head_dim_qk}, dtype);
    inputs_.k =
        zeros("k", {inputs_.slots.kv_tokens, attention.kv_heads, attention.head_dim_qk}, dtype);
    inputs_.v =
        zeros("v", {inputs_.slots.kv_tokens, attention.kv_heads, attention.head_dim_v}, dtype);
    // Any finite key will do where q is zero; ones show a q that was not.
    std::fill(inputs_.k.values.begin(), inputs_.k.values.end(), 1.0);
    if (attention.softmax_type == SoftmaxType::learnable)
      inputs_.sink.assign(static_cast<size_t>(attention.heads), 0.0);
  }

  /// One run with v filled by fill(key token, kv head, lanes).
  template <class Fill>
  std::optional<Error> pass(Fill fill) {
    std::fill(inputs_.v.values.begin(), inputs_.v.values.end(), 0.0);
    for (int64_t key = 0; key < plan_.layout.slots.kv_tokens; ++key) {
      for (int32_t head = 0; head < kv_heads_; ++head)
        fill(key, head, inputs_.v.values.data() + (key * kv_heads_ + head) * lanes_);
    }
    Result<RunOutput> output = executor_.run(checked_, inputs_, {});
    if (!output) return output.error();
    is_elsewhere_ = !output.value().is_whole;
    answer_ = std::move(output.value().answer);
    ++report_.passes;
    if (progress_) progress_(report_.passes, total_passes_);
    return std::nullopt;
  }

  /// Keys (and the sink) that share the row's weight.
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
      if (row % heads_ == 0) expected = expectation_.lane_counts(token, code);
      const bool is_empty = expectation_.count(token) == 0;
      for (int32_t lane = 0; lane < lanes_; ++lane) {
        const double value = answer_.out.values[row * lanes_ + lane];
        const double seen = is_empty ? value : value * weight_of(token);
        if (!code.strided)
          bucketed_[row] += static_cast<int64_t>(std::isfinite(seen) ? std::llround(seen) : 0);
        const bool is_right =
            is_empty ? value == 0.0 : std::abs(seen - static_cast<double>(expected[lane])) < 0.5;
        if (is_right) continue;
        const int64_t key = code.strided ? code.begin + lane : code.begin + lane * kKeysPerBucket;
        note("keys", row, static_cast<double>(expected[lane]), seen, key, wrong_bucket_);
      }
    }
  }

  /// Rows too long for lse: the buckets of all passes must add up.
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
      const double codes[] = {static_cast<double>(kv_head % kKeysPerBucket + 1),
                              static_cast<double>(kv_head / kKeysPerBucket + 1)};
      for (int32_t lane = 0; lane < std::min(2, lanes_); ++lane) {
        const double seen = answer_.out.values[row * lanes_ + lane] * whole;
        if (!(std::abs(seen - codes[lane]) < 0.5 + codes[lane] / 256))
          note("head", row, codes[lane], seen, -1, wrong_head_);
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
    finding.rank = owner_of(plan_.q_lists, finding.token);
    finding.step = key < 0 ? -1 : step_of(finding.rank, key);
    finding.expected = expected;
    finding.seen = seen;
    finding.text =
        key < 0 ? fmt::format("{} of query token {}, head {} on rank {}: {} expected, {} seen",
                              probe, finding.token, finding.head, finding.rank, expected, seen)
                : fmt::format(
                      "query token {}, head {} on rank {} should see {} keys like {} (owned by "
                      "rank {}), it saw {}",
                      finding.token, finding.head, finding.rank, expected, key,
                      owner_of(plan_.kv_lists, key), seen);
    if (is_first) report_.first = finding;
    if (is_first_of_probe) firsts_[probe] = finding;
  }

  bool holds(RunListId list, int64_t id) const {
    for (const TokenRun& run : plan_.list(list)) {
      if (id >= run.begin && id < run.end && (id - run.begin) % run.stride == 0) return true;
    }
    return false;
  }

  int32_t owner_of(const std::vector<RunListId>& lists, int64_t id) const {
    for (size_t r = 0; r < lists.size(); ++r) {
      if (holds(lists[r], id)) return static_cast<int32_t>(r);
    }
    return -1;
  }

  /// The step in which a rank meets a key.
  int32_t step_of(int32_t rank, int64_t key) const {
    for (const ComputeItem& item : plan_.forward.computes) {
      if (to_index(item.rank) == rank && holds(item.kv_tokens, key)) return to_index(item.step);
    }
    return -1;
  }

  const CheckedPlan& checked_;
  const Plan& plan_;
  Executor& executor_;
  const Progress& progress_;
  Expectation expectation_;
  int32_t heads_, kv_heads_, lanes_;
  bool has_sink_ = false;
  int64_t total_passes_ = 0;
  RunInputs inputs_;
  Answer answer_;
  bool is_elsewhere_ = false;  // another process has the answer and checks it
  ProbeReport report_;
  std::vector<bool> wrong_count_, wrong_key_;    // [row]
  std::vector<bool> wrong_bucket_, wrong_head_;  // [row] the two ways to see wrong keys
  std::map<std::string, ProbeFinding> firsts_;   // [probe]
  std::vector<int64_t> bucketed_;                // [row] keys found in buckets so far
};

}  // namespace

std::optional<ProbeFinding> ProbeReport::first_of(std::string_view probe) const {
  for (const ProbeTally& tally : tallies) {
    if (tally.probe == probe) return tally.first;
  }
  return std::nullopt;
}

Scenario probe_scenario(const Scenario& scenario) {
  Scenario probe = scenario;
  probe.numerics.backward = false;
  probe.numerics.accumulate = Accumulate::fp32;
  return probe;
}

Result<ProbeReport> probe_plan(const CheckedPlan& plan, Executor& executor,
                               const MaskWitness& witness, const Progress& progress) {
  return Probe(plan, executor, witness, progress).run();
}

}  // namespace cpscope
