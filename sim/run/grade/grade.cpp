#include "sim/run/grade/grade.h"

#include "sim/run/dtype.h"
#include "sim/run/grade/bias_rows.h"
#include "sim/run/grade/carried_errors.h"
#include "sim/run/grade/probe_parts.h"
#include "sim/run/grade/tensor_grader.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

/// Rows with fewer elements than this sometimes cancel to almost nothing, as scalars do.
constexpr int64_t kLanesThatNeverCancel = 8;

/// Kernels split and merge the work of a query in their own ways, and round more often in one rank
/// or head than in another. (Shares of dk and dv follow the plan.)
constexpr double kRoomForSplits = 1.25;

/// Owners and sequences of all tokens of one side, then of the judged ones.
RowPlaces row_places_of(const Plan& plan, Side side, const std::vector<int64_t>* judged) {
  const BatchSlots& slots = plan.layout.slots;
  const auto tokens = static_cast<size_t>(slots.tokens_of(side));
  RowPlaces all{{},
                owners_of(plan, side),
                std::vector<int32_t>(tokens, -1),
                owners_of_heads(plan.layout, side)};
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SlotSide slot = slots.sequences[s].side(side);
    std::fill_n(all.sequences.begin() + slot.valid_begin(), slot.valid, static_cast<int32_t>(s));
  }
  if (judged == nullptr) {
    all.tokens.resize(tokens);
    std::iota(all.tokens.begin(), all.tokens.end(), int64_t{0});
    return all;
  }
  RowPlaces chosen{*judged, {}, {}, all.head_ranks};
  for (const int64_t token : *judged) {
    chosen.ranks.push_back(all.ranks[token]);
    chosen.sequences.push_back(all.sequences[token]);
  }
  return chosen;
}

Tensor by_head(const char* name, const std::vector<double>& values) {
  return {name, {1, static_cast<int64_t>(values.size())}, Dtype::fp64, values};
}

/// Copies the rows of these tokens.
Tensor pick_rows(const Tensor& tensor, const std::vector<int64_t>& tokens) {
  if (tensor.values.empty()) return tensor;
  Tensor rows{tensor.name, tensor.shape, tensor.dtype, {}};
  rows.shape[0] = static_cast<int64_t>(tokens.size());
  const int64_t width = tensor.size() / std::max<int64_t>(1, tensor.shape[0]);
  for (const int64_t token : tokens)
    rows.values.insert(rows.values.end(), tensor.values.begin() + token * width,
                       tensor.values.begin() + (token + 1) * width);
  return rows;
}

/// Everything needed to grade the tensors of one answer.
class AnswerGrader {
 public:
  AnswerGrader(const Plan& plan, const RunInputs& inputs, const Verdict& verdict,
               const GradeOptions& options, bool has_short_sums)
      : plan_(plan),
        attention_(plan.scenario.attention),
        dtype_(plan.scenario.numerics.dtype),
        fp8_(plan.scenario.numerics.fp8),
        gradients_(fp8_ && fp8_->recipe != Fp8Recipe::mxfp8 && fp8_->format == Fp8Format::hybrid
                       ? Fp8Type::e5m2
                       : Fp8Type::e4m3),
        leaves_out_absent_(options.leaves_out_absent),
        knows_quantised_(!verdict.of_quantised.out.values.empty()),
        knows_scales_(!options.has_unknown_scales),
        judges_quantised_(knows_quantised_ && knows_scales_ && attention_.rope_theta == 0),
        has_short_sums_(has_short_sums),
        budgets_(options.budgets),
        inputs_(inputs),
        verdict_(verdict),
        grader_(dtype_, {options.keeps_row_budgets, plan.layout.cp_size,
                         std::ssize(plan.layout.slots.sequences)}),
        q_(root_mean_square(plan.layout.slots, inputs.q, Side::q)),
        k_(root_mean_square(plan.layout.slots, inputs.k, Side::kv)),
        v_(root_mean_square(plan.layout.slots, values_of(inputs), Side::kv)),
        d_out_(root_mean_square(plan.layout.slots, inputs.d_out, Side::q)) {}

  void grade_forward(const Tensor& out, const Tensor& lse, const RowPlaces& queries) {
    const Answer &exact = verdict_.exact, &plain = verdict_.plain;
    add({.name = "out",
         .seen = out,
         .exact = exact.out,
         .plain = plain.out,
         .magnitude = v_ * logit_room(),
         .rounding = rounding(Fp8Type::e4m3),
         .terms = verdict_.terms.out,
         .places = &queries,
         .is_empty = rows_without_keys(),
         .group_room = kRoomForSplits,
         .of_terms = of_terms(Fp8Type::e4m3)});
    // A logit with the error of one rounding of q and k changes lse by the same amount.
    add({.name = "lse",
         .seen = lse,
         .exact = logits_truth().lse,
         .plain = plain.lse,
         .magnitude = 1 + logit(),
         .rounding = typical_rounding(unrounded()),
         .terms = kNoTerms,
         .places = &queries,
         .carried = std::vector<double>(exact.lse.values.size(), turned()),
         .known = has_short_sums_ ? short_sums()
                  : is_narrow()   ? kCubicExp2
                                  : KnownError{},
         .is_empty = rows_without_keys(),
         .group_room = kRoomForSplits});
  }

  void grade_max_logit(const std::vector<double>& seen) {
    const std::vector<double>& exact = logits_truth().max_logit;
    add_by_head("max_logit", seen, exact, verdict_.plain.max_logit, 1 + logit(),
                std::vector<double>(exact.size(), turned()));
  }

  void grade_dq(const Tensor& dq, const RowPlaces& queries, const std::vector<double>& errors) {
    add({.name = "dq",
         .seen = dq,
         .exact = verdict_.exact.dq,
         .plain = verdict_.plain.dq,
         .magnitude = slope() * k_,
         .rounding = rounding(gradients_),
         .terms = verdict_.terms.dq,
         .places = &queries,
         .carried = carry_to_queries(errors, length() * k_),
         .is_empty = rows_without_keys(),
         .group_room = kRoomForSplits,
         .of_terms = of_terms(gradients_)});
  }

  /// `errors`: of the deltas of all queries. A query's delta has the same error in the rows of all
  /// keys that it sees. `lse_size`: of an lse that was handed in, else 0. Its rounding, and that of
  /// the logits with it, affect every weight, while with a kernel's own lse they cancel.
  void grade_keys(const Tensor& dk, const Tensor& dv, const RowPlaces& keys,
                  const std::vector<double>& errors, double lse_size = 0.0) {
    const auto deltas = static_cast<double>(
        std::count_if(errors.begin(), errors.end(), [](double error) { return error > 0; }));
    // Latent attention adds the gradient of v to that of k.
    const bool is_latent = attention_.latent_dim > 0;
    std::vector<double> carried =
        carry_to_keys(errors, attention_.dropout > 0 ? verdict_.terms.undropped : verdict_.terms.dv,
                      inputs_, keys, attention_, length() * q_);
    const std::vector<double> shares = carry_shares();
    for (size_t row = 0; is_latent && row < shares.size(); ++row)
      carried[row] = std::hypot(carried[row], shares[row]);
    add({.name = "dk",
         .seen = dk,
         .exact = verdict_.exact.dk,
         .plain = verdict_.plain.dk,
         .magnitude = (slope() * q_ + (is_latent ? d_out_ : 0.0)) * (1 + lse_size),
         .rounding = rounding(gradients_),
         .terms = verdict_.terms.dk,
         .places = &keys,
         .carried = std::move(carried),
         .sources = deltas,
         .is_empty = keys_without_weights(),
         .of_terms = of_terms(gradients_)});
    if (is_latent) return;
    add({.name = "dv",
         .seen = dv,
         .exact = verdict_.exact.dv,
         .plain = verdict_.plain.dv,
         .magnitude = d_out_ * (1 + lse_size),
         .rounding = rounding(gradients_),
         .terms = verdict_.terms.dv,
         .places = &keys,
         .carried = shares,
         .is_empty = keys_without_queries(),
         .of_terms = of_terms(Fp8Type::e4m3)});
  }

  void grade_sinks(const std::vector<double>& seen, const std::vector<double>& errors,
                   const Tensor& lse) {
    if (verdict_.exact.d_sink.empty()) return;
    add_by_head("d_sink", seen, verdict_.exact.d_sink, verdict_.plain.d_sink, 1.0,
                carry_to_sinks(errors, inputs_, lse));
  }

  /// `errors`: of the deltas of all queries. Rows are those of one query of one head: [1, heads or
  /// 1, sequences or 1, ...] are the cells that heads and sequences share.
  void grade_bias(const Tensor& seen, const std::vector<double>& errors) {
    if (verdict_.exact.dbias.values.empty()) return;
    add({.name = "dbias",
         .seen = bias_rows(seen),
         .exact = bias_rows(verdict_.exact.dbias),
         .plain = bias_rows(verdict_.plain.dbias),
         .magnitude = d_out_ * v_ * std::sqrt(static_cast<double>(attention_.head_dim_v)),
         .rounding = typical_rounding(dtype_),
         .terms = verdict_.terms.dbias,
         .carried = carry_to_bias(errors, inputs_, attention_, verdict_.exact.dbias.shape)});
    TensorGrade* grade = grade_.find("dbias");
    if (grade != nullptr)
      name_bias_row(inputs_.slots, owners_of(plan_, Side::q), verdict_.exact.dbias.shape,
                    grade->worst);
  }

  /// For the judged rows, from the exact and the plain out.
  std::vector<double> judged_delta_errors(const RowPlaces& queries) const {
    const Answer& exact = verdict_.exact;
    return delta_errors(
        inputs_.d_out,
        {queries.tokens, exact.out, exact.lse, &verdict_.plain.out, &verdict_.terms.out,
         plain_rate_of_out(), unit_roundoff(unrounded()) * logit()},
        dtype_);
  }
  /// For all rows, from the answer's own out.
  std::vector<double> own_delta_errors(const Answer& seen) const {
    std::vector<int64_t> tokens(static_cast<size_t>(seen.out.shape[0]));
    std::iota(tokens.begin(), tokens.end(), int64_t{0});
    return delta_errors(inputs_.d_out, {tokens, seen.out, seen.lse}, dtype_);
  }

  Grade finish(const Answer& seen) {
    if (knows_quantised_) part_errors(seen);
    grade_.conclude();
    return std::move(grade_);
  }

 private:
  /// lse and the largest logit follow from q and k alone: with dtype fp8 they are those of the
  /// quantised q and k, to fp32. RoPE may be computed in other ways before it is quantised.
  const Answer& logits_truth() const {
    return judges_quantised_ ? verdict_.of_quantised : verdict_.exact;
  }

  /// Parts the errors of the format and of the implementation.
  void part_errors(const Answer& seen) {
    const Answer &exact = verdict_.exact, &quantised = verdict_.of_quantised;
    for (const auto tensor : {&Answer::out, &Answer::lse, &Answer::dq, &Answer::dk, &Answer::dv}) {
      TensorGrade* grade = grade_.find((exact.*tensor).name);
      if (grade == nullptr || (seen.*tensor).values.size() != (exact.*tensor).values.size())
        continue;
      grade->parted = {
          .format = distance((quantised.*tensor).values, (exact.*tensor).values),
          .implementation = distance((seen.*tensor).values, (quantised.*tensor).values),
          .knows_scales = knows_scales_,
          .is_judged = tensor == &Answer::lse && judges_quantised_};
    }
  }
  /// |a - b| over |b|, of the values that are finite in both.
  static double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double apart = 0, whole = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!std::isfinite(a[i]) || !std::isfinite(b[i])) continue;
      apart += (a[i] - b[i]) * (a[i] - b[i]);
      whole += b[i] * b[i];
    }
    return whole > 0 ? std::sqrt(apart / whole) : apart > 0 ? HUGE_VAL : 0.0;
  }

  void add(const Compared& sides) {
    if (leaves_out_absent_ && sides.seen.values.empty()) return;
    Compared widened = sides;
    for (const WidenedBudget& budget : budgets_)
      if (budget.tensor == sides.name) widened.widened = budget.rel_l2;
    grade_.tensors.push_back(grader_.grade(widened));
  }

  void add_by_head(const char* name, const std::vector<double>& seen,
                   const std::vector<double>& exact, const std::vector<double>& plain,
                   double magnitude, std::vector<double> carried) {
    add({.name = name,
         .seen = by_head(name, seen),
         .exact = by_head(name, exact),
         .plain = by_head(name, plain),
         .magnitude = magnitude,
         .rounding = typical_rounding(unrounded()),
         .terms = kNoTerms,
         .carried = std::move(carried),
         .known = std::string_view(name) == "max_logit" ? short_sums(true) : KnownError{}});
  }

  /// [row of out] Padding, and queries that see no key.
  std::vector<bool> rows_without_keys() const {
    std::vector<bool> empty;
    for (const double lse : verdict_.exact.lse.values) empty.push_back(std::isinf(lse));
    return empty;
  }
  /// [row of dk] The same; with dropout a key that a query sees has a gradient even if its weight
  /// is dropped.
  std::vector<bool> keys_without_weights() const {
    std::vector<bool> empty = keys_without_queries();
    for (size_t row = 0; attention_.dropout > 0 && row < empty.size(); ++row)
      empty[row] = empty[row] && verdict_.terms.dk[row] == 0;
    return empty;
  }
  /// [row of dv] Padding, and keys that no query sees: no weight has reached them.
  std::vector<bool> keys_without_queries() const {
    std::vector<bool> empty;
    for (const double terms : verdict_.terms.dv) empty.push_back(d_out_ > 0 && terms == 0);
    return empty;
  }
  /// [row of dv] p * d_out and the sum of such shares are rounded. If a row has so few elements
  /// that shares sometimes cancel to almost nothing, these roundings do not cancel.
  std::vector<double> carry_shares() const {
    if (attention_.head_dim_v >= kLanesThatNeverCancel) return {};
    std::vector<double> carried = verdict_.terms.dv;
    for (double& value : carried) value *= std::sqrt(2.0) * typical_rounding(dtype_);
    return carried;
  }
  /// dtype fp8: each weight P, or dS, is cast, on a grid that depends on the schedule.
  double of_terms(Fp8Type type) const { return fp8_ ? typical_rounding(type) : 0.0; }
  /// Recipe delayed: so are the results of every piece.
  double rounding(Fp8Type type) const {
    const bool casts = fp8_ && fp8_->recipe == Fp8Recipe::delayed;
    return casts ? typical_rounding(type) : typical_rounding(dtype_);
  }
  double plain_rate_of_out() const {
    const Tensor &exact = verdict_.exact.out, &plain = verdict_.plain.out;
    double error = 0, length = 0;
    for (size_t i = 0; i < exact.values.size(); ++i) {
      error += std::pow(plain.values[i] - exact.values[i], 2);
      length += std::pow(exact.values[i], 2);
    }
    for (const double terms : verdict_.terms.out) length += terms * terms;
    return length > 0 ? std::sqrt(error / length) : 0.0;
  }
  bool is_narrow() const { return dtype_ == Dtype::bf16 || dtype_ == Dtype::fp16; }
  KnownError short_sums(bool is_of_largest = false) const {
    const double size = has_short_sums_ ? length() * q_ * k_ : 0.0;
    // Sums are cut in proportion to themselves. Among normal logits of this size those of most
    // weight are that many times as large, but not beyond the largest of some thousands.
    const double heaviest = std::clamp(size, 1.0, 4.0);
    return {kShortSums.row * size,
            (is_of_largest ? kShortSums.row : kShortSums.rms * heaviest) * size};
  }
  /// Statistics are never rounded to the dtype.
  Dtype unrounded() const { return dtype_ == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32; }
  double logit() const { return attention_.effective_scale() * q_ * k_ * attention_.head_dim_qk; }
  /// RoPE's results are rounded to the dtype; the direction depends on the implementation of sine.
  double turned() const {
    if (attention_.rope_theta <= 0) return 0.0;
    return typical_rounding(dtype_) * attention_.effective_scale() * q_ * k_ *
           std::sqrt(2.0 * attention_.head_dim_qk);
  }
  double slope() const {
    return d_out_ * v_ * std::sqrt(static_cast<double>(attention_.head_dim_v)) *
           attention_.effective_scale();
  }
  double length() const {
    return attention_.effective_scale() * std::sqrt(static_cast<double>(attention_.head_dim_qk));
  }
  /// In fp64 nothing shows the roundings of a logit, which change its weight by as many roundings
  /// as the logit is large: the floor of the accumulator, 1e-13, holds three of a logit of 300.
  double logit_room() const {
    return dtype_ == Dtype::fp64 ? std::max(1.0, length() * q_ * k_ / 300) : 1.0;
  }

  static const std::vector<double> kNoTerms;
  const Plan& plan_;
  const Attention& attention_;
  const Dtype dtype_;
  const std::optional<Fp8> fp8_;
  const Fp8Type gradients_;
  const bool leaves_out_absent_;
  const bool knows_quantised_;  // dtype fp8: the exact answer of the quantised inputs is there
  const bool knows_scales_;
  const bool judges_quantised_;  // and is the truth for lse and max_logit
  const bool has_short_sums_;
  const std::vector<WidenedBudget> budgets_;
  const RunInputs& inputs_;
  const Verdict& verdict_;
  const TensorGrader grader_;
  const double q_, k_, v_, d_out_;
  Grade grade_;
};

const std::vector<double> AnswerGrader::kNoTerms;

}  // namespace

double share_of_typical_row(std::string_view tensor, int64_t lanes) {
  return tensor == "out" && lanes >= kLanesThatNeverCancel ? 0.1 : 1.0;
}

Grade grade_answer(const Plan& plan, const RunInputs& inputs, const Answer& answer,
                   const Verdict& verdict, const GradeOptions& options) {
  const RowPlaces queries = row_places_of(plan, Side::q, nullptr);
  AnswerGrader grader(plan, inputs, verdict, options, answer.has_short_sums);
  grader.grade_forward(answer.out, answer.lse, queries);
  grader.grade_max_logit(answer.max_logit);
  if (plan.scenario.numerics.backward) {
    const std::vector<double> errors = grader.judged_delta_errors(queries);
    grader.grade_dq(answer.dq, queries, errors);
    grader.grade_keys(answer.dk, answer.dv, row_places_of(plan, Side::kv, nullptr), errors);
    grader.grade_sinks(answer.d_sink, errors, verdict.exact.lse);
    grader.grade_bias(answer.dbias, errors);
  }
  return grader.finish(answer);
}

Grade grade_judged_rows(const Plan& plan, const RunInputs& inputs, const Answer& answer,
                        const Verdict& verdict, const JudgedRows& rows,
                        const GradeOptions& options) {
  const RowPlaces queries = row_places_of(plan, Side::q, &rows.query_tokens);
  AnswerGrader grader(plan, inputs, verdict, options, answer.has_short_sums);
  grader.grade_forward(pick_rows(answer.out, rows.query_tokens),
                       pick_rows(answer.lse, rows.query_tokens), queries);
  if (!plan.scenario.numerics.backward) return grader.finish(answer);
  grader.grade_dq(pick_rows(answer.dq, rows.query_tokens), queries,
                  grader.judged_delta_errors(queries));
  if (verdict.exact.dk.values.empty()) return grader.finish(answer);
  const std::vector<double> errors = grader.own_delta_errors(answer);
  grader.grade_keys(pick_rows(answer.dk, rows.key_tokens), pick_rows(answer.dv, rows.key_tokens),
                    row_places_of(plan, Side::kv, &rows.key_tokens), errors,
                    root_mean_square(plan.layout.slots, answer.lse, Side::q));
  grader.grade_sinks(answer.d_sink, errors, answer.lse);
  return grader.finish(answer);
}

std::string_view to_name(Judgement value) {
  constexpr std::string_view kNames[] = {"pass", "fail", "blind"};
  return kNames[static_cast<size_t>(value)];
}

Judgement Grade::judgement() const {
  const bool has_failed =
      std::any_of(tensors.begin(), tensors.end(),
                  [](const TensorGrade& tensor) { return tensor.has_failed(); });
  const bool has_judged = std::any_of(tensors.begin(), tensors.end(),
                                      [](const TensorGrade& tensor) { return tensor.judged; });
  if (has_failed) return Judgement::fail;
  return blind.empty() && has_judged ? Judgement::pass : Judgement::blind;
}

TensorGrade* Grade::find(std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorGrade& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

void Grade::conclude() { passed = judgement() == Judgement::pass; }

std::string describe_judgement(const Grade& grade) {
  constexpr std::string_view kWords[] = {"PASS", "FAIL", "BLIND"};
  return std::string(kWords[static_cast<size_t>(grade.judgement())]);
}

std::string describe_blindness(const Grade& grade) {
  return fmt::format("{}", fmt::join(grade.blind, "; "));
}

std::string describe_coverage(const Grade& grade) {
  std::vector<std::string> judged, unjudged;
  bool is_whole = true;
  for (const TensorGrade& tensor : grade.tensors) {
    is_whole = is_whole && tensor.judged && tensor.judged_rows == tensor.rows;
    if (tensor.judged) {
      judged.push_back(
          fmt::format("{} {} of {} rows", tensor.name, tensor.judged_rows, tensor.rows));
    } else {
      unjudged.push_back(fmt::format("{} not judged ({})", tensor.name, tensor.why_not));
    }
  }
  if (is_whole) return "";
  judged.insert(judged.end(), unjudged.begin(), unjudged.end());
  return fmt::format("judged on a sample: {}", fmt::join(judged, ", "));
}

std::string describe_failure(const TensorGrade& tensor) {
  if (tensor.nan > 0) return fmt::format("{} values are NaN", tensor.nan);
  if (tensor.infinite > 0) return fmt::format("{} values are infinite", tensor.infinite);
  if (tensor.not_empty > 0)
    return fmt::format("{} rows that belong to no token or see no key are not empty",
                       tensor.not_empty);
  if (tensor.share) {
    const ShareError& share = *tensor.share;
    return fmt::format(
        "the contribution of rank {}'s queries to rank {}'s keys is added {:.2g} times instead of "
        "once",
        share.query_rank, share.key_rank, 1 + share.times);
  }
  if (!(tensor.rel_l2 <= tensor.budget))
    return fmt::format("{:.3g} times its budget", tensor.rel_l2 / tensor.budget);
  if (!tensor.groups_passed) return describe_worst_group(tensor);
  return fmt::format("the error of a row is {:.3g} times its budget", tensor.worst_row_excess);
}

std::string describe_first_failure(const Grade& grade) {
  for (const TensorGrade& tensor : grade.tensors) {
    if (!tensor.has_failed()) continue;
    return fmt::format(
        "{}: {}; rel_l2 {:.3g}, budget {:.3g}; worst at rank {}, token {}, head {}: expected "
        "{:.9g}, seen {:.9g}{}",
        tensor.name, describe_failure(tensor), tensor.rel_l2, tensor.budget, tensor.worst.rank,
        tensor.worst.token, tensor.worst.head, tensor.worst.expected, tensor.worst.seen,
        grade.causes.empty() ? "" : "; cause: " + describe(grade.causes.front()));
  }
  return grade.judgement() == Judgement::blind ? describe_blindness(grade) : "";
}

}  // namespace cpscope
