#include "sim/app/fuzz/power.h"

#include "sim/run/dtype.h"
#include "sim/run/grade/case.h"
#include "sim/run/grade/probe_parts.h"
#include "sim/run/grade/sample.h"
#include "sim/run/grade/share_search.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/portable_random.h"
#include "sim/scenario/scenario_names.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace cpscope {
namespace {

/// Errors that are planted, about a fifth apart.
constexpr double kLadder[] = {0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03,
                              0.04,  0.05,   0.06, 0.08,   0.1,   0.12, 0.15,  0.2,
                              0.25,  0.3,    0.4,  0.5,    0.6,   0.8,  1.0};
constexpr int64_t kPlaces = 12;    // in which each is planted
constexpr int64_t kMessages = 16;  // lost, one at a time
constexpr uint64_t kStream = 0x9013;
constexpr int64_t kSampleRows = 256;

struct NamedMember {
  const char* name;
  Tensor Answer::*tensor;
  Side side;
};
constexpr NamedMember kMembers[] = {{"out", &Answer::out, Side::q},
                                    {"dq", &Answer::dq, Side::q},
                                    {"dk", &Answer::dk, Side::kv},
                                    {"dv", &Answer::dv, Side::kv}};

Scenario make_power_scenario(Dtype dtype, std::vector<int64_t> lengths, int32_t ranks,
                             int32_t heads, CommType comm) {
  Scenario scenario;
  scenario.attention.heads = scenario.attention.kv_heads = heads;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 32;
  scenario.batch.lengths = std::move(lengths);
  scenario.batch.kv_lengths = scenario.batch.slots = scenario.batch.kv_slots =
      scenario.batch.lengths;
  scenario.parallel.cp_size = ranks;
  scenario.parallel.comm_type = comm;
  scenario.numerics.dtype = dtype;
  return scenario;
}

/// A right answer and its judge, asked again and again.
class Bench {
 public:
  static Result<Bench> make(Toolbox& toolbox, const Scenario& scenario) {
    Bench bench(toolbox);
    bench.outcome_ = run_case(toolbox, scenario, {.sample_rows = 1});
    if (!bench.outcome_.plan || bench.outcome_.output.answer.out.values.empty())
      return make_error(ErrorKind::failed, "the power of the verdict: " + bench.outcome_.reason);
    Result<Verdict> verdict =
        toolbox.oracle.judge(scenario, bench.outcome_.inputs, count_hops(bench.plan()), {});
    if (!verdict) return verdict.error();
    bench.verdict_ = std::move(verdict).value();
    return bench;
  }

  const Plan& plan() const { return outcome_.plan->plan(); }
  const RunInputs& inputs() const { return outcome_.inputs; }
  const Answer& answer() const { return outcome_.output.answer; }
  const Answer& exact() const { return verdict_.exact; }
  Toolbox& toolbox() const { return *toolbox_; }

  bool is_seen(const Answer& answer, int64_t sample_rows) const {
    if (sample_rows == 0) {
      Grade grade = grade_answer(plan(), inputs(), answer, verdict_, {.leaves_out_absent = true});
      const auto error = search_shares(*toolbox_, plan(), inputs(), answer,
                                       {.exact = exact(), .given = exact()}, grade);
      return !error && grade.judgement() == Judgement::fail;
    }
    const Result<SampledGrade> sampled =
        grade_sample(*toolbox_, plan(), inputs(), answer, {.rows = sample_rows});
    return sampled && sampled.value().grade.judgement() == Judgement::fail;
  }

 private:
  explicit Bench(Toolbox& toolbox) : toolbox_(&toolbox) {}
  Toolbox* toolbox_;
  CaseOutcome outcome_;
  Verdict verdict_;
};

/// Rows (token * heads + head) of one part, valid tokens only.
std::vector<int64_t> rows_of_part(const Plan& plan, const NamedMember& member, int64_t heads,
                                  SpoiledPart part, int64_t index) {
  const BatchSlots& slots = plan.layout.slots;
  std::vector<int64_t> rows;
  const auto add_token = [&](int64_t token) {
    for (int64_t head = 0; head < heads; ++head) rows.push_back(token * heads + head);
  };
  if (part == SpoiledPart::row) return {index};
  if (part == SpoiledPart::rank) {
    const std::vector<bool> valid = valid_ids(slots, member.side);
    const RankId rank{static_cast<int32_t>(index)};
    for (const TokenRun& run : plan.layout.runs(member.side)[rank]) {
      for (int64_t token = run.begin; token < run.end; token += run.stride)
        if (valid[static_cast<size_t>(token)]) add_token(token);
    }
    return rows;
  }
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    if (part == SpoiledPart::sequence && static_cast<int64_t>(s) != index) continue;
    const SlotSide slot = slots.sequences[s].side(member.side);
    for (int64_t token = slot.valid_begin(); token < slot.valid_end(); ++token) {
      if (part == SpoiledPart::head)
        rows.push_back(token * heads + index);
      else
        add_token(token);
    }
  }
  return rows;
}

/// Alone where the verdict is whole; beside the others in a sample, which needs out and lse.
Answer take_tensor(const Bench& bench, const NamedMember& member, int64_t sample_rows) {
  if (sample_rows > 0) return bench.answer();
  Answer answer;
  answer.*member.tensor = bench.answer().*member.tensor;
  return answer;
}

/// The first rung of the ladder from which on the error is seen here.
size_t find_rung(const Bench& bench, const NamedMember& member, const std::vector<int64_t>& rows,
                 int64_t sample_rows) {
  const Dtype dtype = bench.plan().scenario.numerics.dtype;
  const int64_t lanes = (bench.answer().*member.tensor).shape[2];
  const auto is_seen = [&](double error) {
    Answer answer = take_tensor(bench, member, sample_rows);
    std::vector<double>& values = (answer.*member.tensor).values;
    for (const int64_t row : rows) {
      for (int64_t i = row * lanes; i < (row + 1) * lanes; ++i) {
        double& value = values[static_cast<size_t>(i)];
        value = round_to(dtype, value * (1 + error));
      }
    }
    return bench.is_seen(answer, sample_rows);
  };
  size_t low = 0, high = std::size(kLadder);
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (is_seen(kLadder[middle]))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

void measure_part(const Bench& bench, SpoiledPart part, int64_t sample_rows, PowerReport& report) {
  const Scenario& scenario = bench.plan().scenario;
  const int64_t heads = scenario.attention.heads;
  for (const NamedMember& member : kMembers) {
    const int64_t rows = (bench.answer().*member.tensor).shape[0] * heads;
    const int64_t parts = part == SpoiledPart::row    ? rows
                          : part == SpoiledPart::head ? heads
                          : part == SpoiledPart::rank ? scenario.parallel.cp_size
                                                      : std::ssize(scenario.batch.lengths);
    size_t worst = 0;
    for (int64_t n = 0; n < std::min(kPlaces, parts); ++n) {
      const auto drawn = static_cast<int64_t>(
          draw_bits(scenario.numerics.seed, kStream, static_cast<uint64_t>(n)) %
          static_cast<uint64_t>(parts));
      const int64_t index = parts <= kPlaces ? n : drawn;
      const auto chosen = rows_of_part(bench.plan(), member, heads, part, index);
      worst = std::max(worst, find_rung(bench, member, chosen, sample_rows));
    }
    report.figures.push_back({part, parts, std::string(to_name(scenario.numerics.dtype)),
                              std::string(to_name(scenario.parallel.comm_type)),
                              bench.plan().layout.slots.tokens, scenario.parallel.cp_size,
                              member.name, sample_rows,
                              worst < std::size(kLadder) ? kLadder[worst] : HUGE_VAL});
  }
}

/// The answer without what the keys of one rank do to the queries of another: their weights in out
/// and lse (the keys never came), or their share of dk and dv (it never came back).
class MessageLoss {
 public:
  explicit MessageLoss(const Bench& bench)
      : bench_(bench),
        q_owner_(owners_of(bench.plan(), Side::q)),
        kv_owner_(owners_of(bench.plan(), Side::kv)),
        keys_of_(bench.toolbox().oracle.witness.visible_keys(bench.plan().scenario)(0)) {}

  /// Changes nothing, and says so, where the one has no keys that the other sees.
  bool lose(int32_t from, int32_t to, Direction direction, Answer& answer) const {
    const int64_t heads = bench_.plan().scenario.attention.heads;
    bool is_lost = false;
    for (int64_t query = 0; query < std::ssize(keys_of_); ++query) {
      if (q_owner_[static_cast<size_t>(query)] != to) continue;
      for (int64_t head = 0; head < heads; ++head)
        is_lost |= direction == Direction::backward ? lose_share(query, head, from, answer)
                                                    : lose_keys(query, head, from, answer);
    }
    return is_lost;
  }

 private:
  const double* row(const Tensor& tensor, int64_t token, int64_t head) const {
    return tensor.values.data() + (token * tensor.shape[1] + head) * tensor.shape[2];
  }
  static double dot(const double* a, const double* b, int64_t lanes) {
    double sum = 0;
    for (int64_t lane = 0; lane < lanes; ++lane) sum += a[lane] * b[lane];
    return sum;
  }
  double weight_of(int64_t query, int64_t key, int64_t head) const {
    const Attention& attention = bench_.plan().scenario.attention;
    const double logit =
        attention.effective_scale() * dot(row(bench_.inputs().q, query, head),
                                          row(bench_.inputs().k, key, head), attention.head_dim_qk);
    return std::exp(logit -
                    bench_.exact().lse.values[static_cast<size_t>(query * attention.heads + head)]);
  }
  template <class Visit>
  void for_each_key(int64_t query, int32_t from, Visit visit) const {
    for (const KeyInterval& run : keys_of_[static_cast<size_t>(query)])
      for (int64_t key = run.begin; key < run.end; ++key)
        if (kv_owner_[static_cast<size_t>(key)] == from) visit(key);
  }

  bool lose_keys(int64_t query, int64_t head, int32_t from, Answer& answer) const {
    const int64_t lanes = answer.out.shape[2];
    double* out = answer.out.values.data() + (query * answer.out.shape[1] + head) * lanes;
    std::vector<double> lost(static_cast<size_t>(lanes), 0.0);
    double weight = 0;
    for_each_key(query, from, [&](int64_t key) {
      const double p = weight_of(query, key, head);
      const double* v = row(bench_.inputs().v, key, head);
      for (int64_t lane = 0; lane < lanes; ++lane) lost[static_cast<size_t>(lane)] += p * v[lane];
      weight += p;
    });
    if (weight == 0 || weight > 1 - 1e-9) return false;
    for (int64_t lane = 0; lane < lanes; ++lane)
      out[lane] = round_to(bench_.plan().scenario.numerics.dtype,
                           (out[lane] - lost[static_cast<size_t>(lane)]) / (1 - weight));
    answer.lse.values[static_cast<size_t>(query * answer.lse.shape[1] + head)] +=
        std::log1p(-weight);
    return true;
  }

  bool lose_share(int64_t query, int64_t head, int32_t from, Answer& answer) const {
    const Attention& attention = bench_.plan().scenario.attention;
    const double* d_out = row(bench_.inputs().d_out, query, head);
    const double* q = row(bench_.inputs().q, query, head);
    const double delta = dot(d_out, row(bench_.exact().out, query, head), attention.head_dim_v);
    bool is_lost = false;
    for_each_key(query, from, [&](int64_t key) {
      const double p = weight_of(query, key, head);
      const double slope =
          p * (dot(d_out, row(bench_.inputs().v, key, head), attention.head_dim_v) - delta) *
          attention.effective_scale();
      double* dk = answer.dk.values.data() + (key * attention.heads + head) * attention.head_dim_qk;
      double* dv = answer.dv.values.data() + (key * attention.heads + head) * attention.head_dim_v;
      for (int64_t lane = 0; lane < attention.head_dim_qk; ++lane) dk[lane] -= slope * q[lane];
      for (int64_t lane = 0; lane < attention.head_dim_v; ++lane) dv[lane] -= p * d_out[lane];
      is_lost = true;
    });
    return is_lost;
  }

  const Bench& bench_;
  std::vector<int32_t> q_owner_, kv_owner_;
  std::vector<std::vector<KeyInterval>> keys_of_;  // [query] of the only sequence
};

void measure_losses(const Bench& bench, int64_t sample_rows, PowerReport& report) {
  const Scenario& scenario = bench.plan().scenario;
  const MessageLoss loss(bench);
  for (const Direction direction : kDirections) {
    LostMessages losses{std::string(to_name(scenario.parallel.comm_type)),
                        std::string(to_name(scenario.numerics.dtype)), scenario.parallel.cp_size,
                        direction, sample_rows};
    for (uint64_t n = 0; losses.planted < kMessages && n < 8 * kMessages; ++n) {
      const uint64_t bits = draw_bits(scenario.numerics.seed, kStream + 1, n);
      const auto ranks = static_cast<uint64_t>(scenario.parallel.cp_size);
      const auto from = static_cast<int32_t>(bits % ranks),
                 to = static_cast<int32_t>((bits >> 32) % ranks);
      if (from == to) continue;
      Answer answer = bench.answer();
      if (!loss.lose(from, to, direction, answer)) continue;
      ++losses.planted;
      losses.seen += bench.is_seen(answer, sample_rows) ? 1 : 0;
    }
    report.losses.push_back(losses);
  }
}

/// One scenario and what is asked with it.
struct PowerQuestion {
  Scenario scenario;
  std::function<void(const Bench&, PowerReport&)> ask;
};

std::vector<PowerQuestion> list_questions(bool is_brief) {
  std::vector<PowerQuestion> questions;
  const auto add = [&](Scenario scenario, auto ask) {
    questions.push_back({std::move(scenario), ask});
  };
  const auto of_part = [](SpoiledPart part, int64_t sample_rows) {
    return [part, sample_rows](const Bench& bench, PowerReport& report) {
      measure_part(bench, part, sample_rows, report);
    };
  };
  const auto sizes = [&](std::vector<int64_t> all) {
    if (is_brief) all.erase(all.begin(), all.end() - 1);
    return all;
  };
  const std::vector<Dtype> dtypes =
      is_brief ? std::vector{Dtype::bf16} : std::vector{Dtype::bf16, Dtype::fp16, Dtype::fp32};
  for (const Dtype dtype : dtypes) {
    for (const int64_t tokens : sizes({1024, 4096}))
      add(make_power_scenario(dtype, {tokens}, 4, 1, CommType::p2p), of_part(SpoiledPart::row, 0));
    for (const int64_t sample : {int64_t{0}, kSampleRows}) {
      for (const int64_t heads : sizes({4, 16, 64}))
        add(make_power_scenario(dtype, {512}, 4, static_cast<int32_t>(heads), CommType::p2p),
            of_part(SpoiledPart::head, sample));
      for (const int64_t ranks : sizes({4, 16, 64}))
        add(make_power_scenario(dtype, {2048}, static_cast<int32_t>(ranks), 2, CommType::p2p),
            of_part(SpoiledPart::rank, sample));
      for (const int64_t sequences : sizes({8, 64}))
        add(make_power_scenario(dtype, std::vector<int64_t>(static_cast<size_t>(sequences), 64), 4,
                                2, CommType::p2p),
            of_part(SpoiledPart::sequence, sample));
      if (dtype == Dtype::fp32) continue;
      for (const CommType comm : {CommType::p2p, CommType::all_gather}) {
        for (const int64_t ranks : sizes({4, 16, 64, 128}))
          add(make_power_scenario(dtype, {2048}, static_cast<int32_t>(ranks), 1, comm),
              [sample](const Bench& bench, PowerReport& report) {
                measure_losses(bench, sample, report);
              });
      }
    }
  }
  return questions;
}

}  // namespace

std::string_view to_name(SpoiledPart value) {
  constexpr std::string_view kNames[] = {"row", "head", "rank", "sequence"};
  return kNames[static_cast<size_t>(value)];
}

Result<PowerReport> measure_power(Toolbox& toolbox, bool is_brief, const Progress& progress) {
  PowerReport report;
  const std::vector<PowerQuestion> questions = list_questions(is_brief);
  for (size_t n = 0; n < questions.size(); ++n) {
    const Result<Bench> bench = Bench::make(toolbox, questions[n].scenario);
    if (!bench) return bench.error();
    questions[n].ask(bench.value(), report);
    if (progress) progress(static_cast<int64_t>(n) + 1, std::ssize(questions));
  }
  return report;
}

}  // namespace cpscope
