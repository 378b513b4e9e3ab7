#include "sim/run/grade/cause_search.h"

#include "sim/run/grade/merged_rows.h"
#include "sim/run/grade/replayed_causes.h"
#include "sim/run/grade/row_moves_search.h"
#include "sim/run/grade/row_predictor.h"
#include "sim/run/grade/suspects.h"
#include "sim/run/grade/value_causes.h"
#include "sim/run/grade/whole_run_causes.h"
#include "sim/run/grade/wrong_rows.h"
#include "sim/run/run_inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

/// Wrong rows of a tensor that are tried first.
constexpr int64_t kFirstTry = 6;
/// Work of a search: pairs of a row and a token, times head_dim, over all suspects.
constexpr double kMostWork = 2e11;
/// About so many suspects are tried.
constexpr double kSuspects = 45;

constexpr double kNothing = -std::numeric_limits<double>::infinity();
/// Tensors that are computed from others.
const std::vector<std::string_view> kGradients{"dq", "dk", "dv"};

bool is_of_keys(std::string_view name) { return name == "dk" || name == "dv"; }

/// The search for the causes of one grade.
class Search {
 public:
  Search(const Toolbox& toolbox, const Plan& plan, const RunInputs& inputs,
         const CauseSearch& search, Grade& grade)
      : toolbox_(toolbox),
        plan_(plan),
        inputs_(inputs),
        search_(search),
        grade_(grade),
        control_{.is_cancelled = search.control.is_cancelled},
        maker_(plan, toolbox.oracle.witness, inputs),
        query_tokens_(tokens_of(Side::q)),
        key_tokens_(tokens_of(Side::kv)) {}

  std::optional<Error> run() {
    collect();
    // Where valid rows are wrong as well, padding follows from the same mistake.
    for (Cause& cause : padding_) {
      if (tensors_.empty())
        grade_.causes.push_back(std::move(cause));
      else
        grade_.common.push_back(fmt::format("{}: {}", cause.tensors.front(), cause.text));
    }
    if (std::optional<Cause> cause = find_sink_factor(plan_, search_, grade_))
      grade_.causes.push_back(*std::move(cause));
    if (tensors_.empty()) return std::nullopt;
    if (auto error = try_rounded_merges()) return error;
    if (named_.empty()) {
      look_at_values();
      if (auto error = try_whole_runs()) return error;
      if (auto error = try_suspects()) return error;
      if (auto empty = find_empty_parts(search_, tensors_))
        explanations_.push_back(*std::move(empty));
      // Most work for few mistakes, so only for what nothing else explains; in 8 bits these are
      // most of the mistakes there are.
      if (!plan_.scenario.numerics.fp8) name_causes();
      if (auto error = try_replays()) return error;
      name_causes();
      if (auto error = try_plan_mistakes()) return error;
      name_causes();
      // That rows hold no number is said last: many mistakes leave such rows.
      std::move(unwritten_.begin(), unwritten_.end(), std::back_inserter(explanations_));
      name_causes();
    }
    for (const WrongTensor& tensor : tensors_)
      if (!named_.contains(tensor.name)) describe_common(tensor);
    return std::nullopt;
  }

 private:
  const std::vector<int64_t>& tokens_by(Side side) const {
    return side == Side::q ? query_tokens_ : key_tokens_;
  }
  std::vector<int64_t> tokens_of(Side side) const {
    if (search_.rows != nullptr)
      return side == Side::q ? search_.rows->query_tokens : search_.rows->key_tokens;
    std::vector<int64_t> all(static_cast<size_t>(plan_.layout.slots.tokens_of(side)));
    std::iota(all.begin(), all.end(), int64_t{0});
    return all;
  }

  /// Of one suspect: the mask of every pair, and the products of the visible ones. The witness
  /// searches the slices.
  double work_of_a_row() const {
    const double tokens =
        static_cast<double>(std::max(plan_.layout.slots.tokens, plan_.layout.slots.kv_tokens));
    return tokens * (plan_.scenario.attention.head_dim_qk + 64.0 +
                     8.0 * std::bit_width(plan_.scenario.attention.slices.size()));
  }

  SampleSizes sample_sizes() const {
    // Most suspects are dropped after the first try.
    const double rows = kMostWork / (work_of_a_row() * kSuspects);
    return {static_cast<size_t>(std::clamp(rows, 8.0, 32.0)),
            static_cast<size_t>(std::clamp(rows / 3, 4.0, 12.0))};
  }

  /// Finds the wrong rows of the failed tensors.
  void collect() {
    const SampleSizes sizes = sample_sizes();
    for (const TensorGrade& tensor : grade_.tensors) {
      const auto member = member_of(tensor.name);
      if (!member || !tensor.has_failed() || !tensor.judged) continue;
      const Tensor &seen = search_.seen.**member, &exact = search_.exact.**member;
      const Side side = is_of_keys(tensor.name) ? Side::kv : Side::q;
      const Dtype dtype = tensor.name == "lse" ? Dtype::fp32 : plan_.scenario.numerics.dtype;
      const std::vector<int64_t>& tokens = tokens_by(side);
      const int64_t heads = exact.shape.size() > 1 ? exact.shape[1] : 0;
      if (seen.shape.size() != exact.shape.size() || heads == 0 ||
          std::ssize(tensor.row_budgets) != std::ssize(tokens) * heads)
        continue;
      WrongTensor found = find_wrong_rows(tensor, seen, exact, dtype, side, tokens,
                                          valid_ids(plan_.layout.slots, side), sizes);
      // In 8 bits errors are so large that many mistakes explain a slightly wrong row.
      if (plan_.scenario.numerics.fp8) found.nearer = 0.5;
      if (!found.wrong.empty() && !is_convention(found)) tensors_.push_back(std::move(found));
    }
  }

  /// Rows that some back ends leave undefined, or mark in another way.
  bool is_convention(const WrongTensor& tensor) {
    if (tensor.is_padding) {
      padding_.push_back(describe_padding(plan_, tensor));
      return true;
    }
    const bool is_infinity_swapped =
        tensor.name == "lse" &&
        std::all_of(tensor.all_wrong.begin(), tensor.all_wrong.end(), [](const JudgedRow& row) {
          return row.exact.front() == kNothing && row.seen.front() == -kNothing;
        });
    if (!is_infinity_swapped) return false;
    grade_.common.push_back(fmt::format(
        "lse: {} rows that see no key hold +inf where -inf is meant (FlashAttention-2 writes +inf)",
        tensor.all_wrong.size()));
    return true;
  }

  Explanation start_explanation(std::string name, std::string text, std::string layout = {}) const {
    return {std::move(name), std::move(text), std::move(layout),
            std::vector<RowFit>(tensors_.size())};
  }

  /// Partial results merged in the dtype: errors of a few budgets, in all rows.
  std::optional<Error> try_rounded_merges() {
    constexpr double kMostBudgets = 16.0;
    const Numerics& numerics = plan_.scenario.numerics;
    const bool is_narrow = numerics.dtype == Dtype::bf16 || numerics.dtype == Dtype::fp16;
    if (!is_narrow || numerics.fp8 || numerics.accumulate == Accumulate::dtype ||
        search_.rows != nullptr)
      return std::nullopt;
    for (const TensorGrade& tensor : grade_.tensors)
      if (tensor.has_failed() && !(tensor.rel_l2 <= kMostBudgets * tensor.budget))
        return std::nullopt;
    // Such roundings are in all rows: one wrong row of a tensor that is right as a whole has
    // another cause.
    const bool is_one_row =
        std::all_of(tensors_.begin(), tensors_.end(), [&](const WrongTensor& tensor) {
          return tensor.all_wrong.size() == 1 && grade_.find(tensor.name)->rel_l2 <= tensor.budget;
        });
    if (is_one_row) return std::nullopt;
    Scenario other = plan_.scenario;
    other.numerics.accumulate = Accumulate::dtype;
    const Result<Verdict> verdict =
        toolbox_.oracle.judge(other, inputs_, count_hops(plan_), control_);
    if (!verdict) return verdict.error();
    const Grade grade = grade_answer(plan_, inputs_, search_.seen, verdict.value(),
                                     {.leaves_out_absent = true, .budgets = search_.budgets});
    if (grade.judgement() == Judgement::fail) return std::nullopt;
    Explanation merges = start_explanation(
        "merge_in_dtype", fmt::format("partial results are merged in {0}: all tensors are within "
                                      "the budgets of accumulate = \"dtype\"",
                                      to_name(numerics.dtype)));
    for (size_t t = 0; t < tensors_.size(); ++t)
      merges.fits[t].wrong = merges.fits[t].explained = std::ssize(tensors_[t].wrong);
    name(merges);
    return std::nullopt;
  }

  /// Mistakes that the values themselves show.
  void look_at_values() {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const auto member = *member_of(tensors_[t].name);
      MovesSearch moves{tensors_[t],
                        search_.seen.*member,
                        {search_.exact.*member, tokens_by(tensors_[t].side)},
                        std::nullopt,
                        maker_};
      if (is_of_keys(tensors_[t].name))
        moves.twin.emplace(tensors_[t].name == "dk" ? search_.exact.dv : search_.exact.dk,
                           key_tokens_);
      for (Explanation& found : find_moved_rows(moves)) {
        // The same mistake may be found in several tensors.
        std::vector<Explanation>& into =
            found.name == kUnwrittenRows && tensors_[t].holds_no_number() ? unwritten_
                                                                          : explanations_;
        const auto known = std::find_if(into.begin(), into.end(), [&](const Explanation& other) {
          return other.name == found.name && other.text == found.text;
        });
        if (known != into.end()) {
          known->fits[t] = found.fits.front();
          continue;
        }
        into.push_back(start_explanation(found.name, found.text, found.layout));
        into.back().fits[t] = found.fits.front();
      }
    }
  }

  std::optional<Error> try_whole_runs() {
    if (!has_pairs()) return std::nullopt;
    Result<std::optional<Explanation>> stale =
        find_stale_scale(toolbox_, plan_, inputs_, search_, tensors_);
    if (!stale) return stale.error();
    if (stale.value()) explanations_.push_back(*std::move(stale).value());
    Result<std::optional<Explanation>> kept =
        find_shares_kept(toolbox_, plan_, inputs_, search_, maker_, tensors_);
    if (!kept) return kept.error();
    if (kept.value()) explanations_.push_back(*std::move(kept).value());
    return std::nullopt;
  }

  std::optional<Error> try_replays() {
    if (!has_pairs() || named_.size() == tensors_.size()) return std::nullopt;
    Result<Replays> replays = replay_mistakes(toolbox_, plan_, inputs_, search_, tensors_);
    if (!replays) return replays.error();
    runs_too_much_ = replays.value().is_too_much;
    take(std::move(replays).value().found);
    return std::nullopt;
  }

  std::optional<Error> try_plan_mistakes() {
    if (!has_pairs() || named_.size() == tensors_.size()) return std::nullopt;
    std::vector<bool> is_named;
    for (const WrongTensor& tensor : tensors_) is_named.push_back(named_.contains(tensor.name));
    Result<Replays> replays =
        replay_plan_mistakes(toolbox_, plan_, inputs_, search_, tensors_, is_named);
    if (!replays) return replays.error();
    if (replays.value().found.empty() && (runs_too_much_ || replays.value().is_too_much))
      grade_.common.push_back("the batch is too large to run it with each known mistake");
    take(std::move(replays).value().found);
    return std::nullopt;
  }

  void take(std::vector<Explanation> found) {
    std::move(found.begin(), found.end(), std::back_inserter(explanations_));
  }

  bool has_pairs() const { return inputs_.k.shape[0] > 0 && inputs_.q.shape[0] > 0; }

  std::optional<Error> try_suspects() {
    if (!has_pairs()) return std::nullopt;
    if (work_of_a_row() * kSuspects * kFirstTry > kMostWork) {
      grade_.common.push_back(
          "the batch is too large to look for a cause in mask, positions and parts");
      return std::nullopt;
    }
    // Where several mistakes give the same answers, the first is named: gradients that nobody added
    // up, then what is simple to say, then parts of it.
    using Parts = SuspectMaker::Parts;
    std::vector<PartsMistake> first, parts;
    if (std::any_of(tensors_.begin(), tensors_.end(),
                    [](const WrongTensor& tensor) { return !tensor.is_gradient(); }))
      first.push_back({.name = "", .text = "as specified", .tensors = kGradients});
    const bool has_parts = plan_.layout.cp_size > 1 && plan_.layout.cp_size <= kMostRanksApart;
    if (has_parts) parts = maker_.parts_mistakes(Parts::of_ranks);
    const auto is_first = [](const PartsMistake& part) {
      return part.name == "local_gradients_only";
    };
    std::copy_if(parts.begin(), parts.end(), std::back_inserter(first), is_first);
    std::erase_if(parts, is_first);
    const Suspect specified = maker_.as_asked(has_parts ? Parts::of_ranks : Parts::none);
    Evaluations evaluations;
    std::optional<Error> error = try_suspect(specified, first, evaluations);
    maker_.make([&](const Suspect& suspect) {
      Evaluations own;
      if (!error) error = try_suspect(suspect, {{.name = suspect.name, .text = suspect.text}}, own);
    });
    if (error || !has_parts) return error;
    error = try_suspect(specified, parts, evaluations);
    if (error || !has_head_groups(plan_.scenario.parallel.comm_type)) return error;
    Evaluations of_groups;
    return try_suspect(maker_.as_asked(Parts::of_p2p_groups),
                       maker_.parts_mistakes(Parts::of_p2p_groups), of_groups);
  }

  /// What the oracle said of one suspect: of a few rows, and of all.
  struct Evaluations {
    std::optional<Evaluation> few, all;
  };

  /// The out and lse from which gradients of keys are computed.
  struct Given {
    const Tensor *out = nullptr, *lse = nullptr;
  };
  Given given() const {
    const bool is_whole = search_.rows == nullptr;
    const auto choose = [&](const Tensor& seen, const Tensor& exact) -> const Tensor* {
      if (!seen.values.empty()) return &seen;
      return is_whole && !exact.values.empty() ? &exact : nullptr;
    };
    return {choose(search_.seen.out, search_.exact.out),
            choose(search_.seen.lse, search_.exact.lse)};
  }

  /// True if out or lse is wrong, or missing, so that gradients of keys need the mistake's own.
  bool needs_own_forward() const {
    const bool has_both = !search_.seen.out.values.empty() && !search_.seen.lse.values.empty();
    return !has_both &&
           std::any_of(tensors_.begin(), tensors_.end(),
                       [](const WrongTensor& tensor) { return tensor.side == Side::q; });
  }

  std::optional<Error> try_suspect(const Suspect& suspect,
                                   const std::vector<PartsMistake>& mistakes,
                                   Evaluations& evaluations) {
    if (mistakes.empty()) return std::nullopt;
    // A few rows tell most suspects apart from what was seen.
    if (auto error = evaluate(suspect, kFirstTry, evaluations.few)) return error;
    const std::vector<Explanation> first =
        fit_suspect(suspect, mistakes, *evaluations.few, kFirstTry);
    std::vector<PartsMistake> likely;
    for (size_t m = 0; m < mistakes.size(); ++m) {
      const auto& fits = first[m].fits;
      if (std::any_of(fits.begin(), fits.end(), [](const RowFit& fit) {
            return fit.wrong > 0 && fit.explained * 3 >= fit.wrong * 2;
          }))
        likely.push_back(mistakes[m]);
    }
    if (likely.empty()) return std::nullopt;
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    if (auto error = evaluate(suspect, kAll, evaluations.all)) return error;
    for (Explanation& explanation : fit_suspect(suspect, likely, *evaluations.all, kAll))
      explanations_.push_back(std::move(explanation));
    return std::nullopt;
  }

  /// Computes the first rows of every tensor under a mistake, unless that was done before.
  std::optional<Error> evaluate(const Suspect& suspect, int64_t most_rows,
                                std::optional<Evaluation>& evaluation) {
    if (evaluation) return std::nullopt;
    AskedRows rows;
    rows.request.has_gradients = !inputs_.d_out.values.empty();
    const Given from = given();
    for (const WrongTensor& tensor : tensors_) {
      const bool needs_given = tensor.side == Side::kv;
      if (needs_given && (from.out == nullptr || from.lse == nullptr)) continue;
      for (const auto* list : {&tensor.wrong, &tensor.right})
        for (int64_t i = 0; i < std::min<int64_t>(most_rows, std::ssize(*list)); ++i)
          rows.add(tensor.side, (*list)[static_cast<size_t>(i)].at);
    }
    rows.request.out = from.out;
    rows.request.lse = from.lse;
    // Without the answer's own out and lse, gradients follow from those that the mistake gives.
    std::optional<Answer> own;
    if (!rows.request.keys.empty() && needs_own_forward()) {
      if (most_rows == kFirstTry) {
        rows.request.keys.clear();
      } else {
        Result<std::optional<Answer>> forward = forward_of(suspect);
        if (!forward) return forward.error();
        own = std::move(forward).value();
        if (!own) rows.request.keys.clear();
      }
    }
    if (own) {
      rows.request.out = &own->out;
      rows.request.lse = &own->lse;
    }
    Result<AlteredRows> altered =
        toolbox_.oracle.altered(inputs_, suspect.attention, rows.request, control_);
    if (!altered) return altered.error();
    rows.request.out = rows.request.lse = nullptr;
    evaluation = Evaluation{std::move(rows), std::move(altered).value()};
    return std::nullopt;
  }

  /// The fits of each mistake in the first rows of every tensor.
  std::vector<Explanation> fit_suspect(const Suspect& suspect,
                                       const std::vector<PartsMistake>& mistakes,
                                       const Evaluation& evaluation, int64_t most_rows) const {
    const RowPredictor predictor{plan_, inputs_, search_.seen, given().lse, suspect, evaluation};
    std::vector<Explanation> fitted;
    for (const PartsMistake& mistake : mistakes) {
      fitted.push_back(start_explanation(mistake.name, mistake.text, suspect.layout));
      for (size_t t = 0; t < tensors_.size(); ++t) {
        const WrongTensor& tensor = tensors_[t];
        const bool can_be_wrong =
            mistake.tensors.empty() || std::find(mistake.tensors.begin(), mistake.tensors.end(),
                                                 tensor.name) != mistake.tensors.end();
        // Overflows and NaN follow from many mistakes, and from the answer's own out and lse.
        if (tensor.holds_no_number() && !mistake.name.empty()) continue;
        if (can_be_wrong && (tensor.side == Side::q || !evaluation.rows.request.keys.empty()))
          fitted.back().fits[t] = fit_rows(
              tensor,
              [&](const JudgedRow& row) { return predictor.predict(tensor, mistake, row.at); },
              [&](const JudgedRow& row, std::span<const double> predicted) {
                return tensor.explains(row, predicted);
              },
              most_rows);
      }
    }
    return fitted;
  }

  /// The whole out and lse under a mistake; nothing if that is too much work.
  Result<std::optional<Answer>> forward_of(const Suspect& suspect) const {
    const Attention& attention = plan_.scenario.attention;
    const double work = static_cast<double>(inputs_.q.shape[0]) *
                        static_cast<double>(inputs_.k.shape[0]) * attention.heads *
                        (attention.head_dim_qk + attention.head_dim_v);
    constexpr double kMostForward = 1e9;
    if (work > kMostForward) return std::optional<Answer>();
    AlteredRequest request;
    for (int64_t token = 0; token < inputs_.q.shape[0]; ++token)
      for (int32_t head = 0; head < attention.heads; ++head)
        request.queries.push_back({token, head});
    Suspect whole = suspect;
    whole.attention.ranks = 1;
    const Result<AlteredRows> rows =
        toolbox_.oracle.altered(inputs_, whole.attention, request, control_);
    if (!rows) return rows.error();
    Answer answer;
    answer.out = {
        "out", {inputs_.q.shape[0], attention.heads, attention.head_dim_v}, Dtype::fp64, {}};
    answer.lse = {"lse", {inputs_.q.shape[0], attention.heads}, Dtype::fp64, {}};
    constexpr double kOnce[] = {1.0};
    for (size_t row = 0; row < request.queries.size(); ++row) {
      const double sink =
          inputs_.sink.empty() ? 0.0 : inputs_.sink[static_cast<size_t>(request.queries[row].head)];
      const MergedRow merged = merge_parts(rows.value().queries[row], kOnce, sink, suspect.sinks);
      answer.lse.values.push_back(merged.lse);
      answer.out.values.insert(answer.out.values.end(), merged.out.begin(), merged.out.end());
    }
    return std::optional(std::move(answer));
  }

  /// Chooses, again and again, the explanation that explains most of the tensors that are left.
  void name_causes() {
    for (;;) {
      const Explanation* best = nullptr;
      int64_t best_tensors = 0;
      double best_contradicted = 0;
      // Few wrong rows, empty ones above all, fit mistakes that change most right rows as well.
      constexpr double kMostContradicted = 0.5;
      for (const Explanation& explanation : explanations_) {
        int64_t tensors = 0, right = 0, contradicted = 0;
        for (size_t t = 0; t < tensors_.size(); ++t) {
          if (named_.contains(tensors_[t].name) || !explanation.fits[t].explains()) continue;
          ++tensors;
          right += explanation.fits[t].right;
          contradicted += explanation.fits[t].contradicted;
        }
        const double share =
            right > 0 ? static_cast<double>(contradicted) / static_cast<double>(right) : 0.0;
        if (tensors == 0) continue;
        const bool is_doubtful = share > kMostContradicted,
                   is_best_doubtful = best_contradicted > kMostContradicted;
        const bool is_better =
            best == nullptr || (is_doubtful != is_best_doubtful
                                    ? is_best_doubtful
                                    : tensors > best_tensors || (tensors == best_tensors &&
                                                                 share < best_contradicted - 0.05));
        if (!is_better) continue;
        best = &explanation;
        best_tensors = tensors;
        best_contradicted = share;
      }
      if (best == nullptr) return;
      name(*best);
    }
  }

  void name(const Explanation& explanation) {
    Cause cause{explanation.name, explanation.text, {}, 0, 0.0, explanation.layout};
    int64_t wrong = 0, explained = 0;
    for (size_t t = 0; t < tensors_.size(); ++t) {
      if (named_.contains(tensors_[t].name) || !explanation.fits[t].explains()) continue;
      named_.insert(tensors_[t].name);
      cause.tensors.push_back(tensors_[t].name);
      cause.rows += std::ssize(tensors_[t].all_wrong);
      wrong += explanation.fits[t].wrong;
      explained += explanation.fits[t].explained;
    }
    cause.explained = static_cast<double>(explained) / static_cast<double>(wrong);
    if (cause.name.empty()) {
      grade_.common.push_back(
          fmt::format("{} follow{} from the answer's own out and lse, which are wrong",
                      fmt::join(cause.tensors, ", "), cause.tensors.size() == 1 ? "s" : ""));
      return;
    }
    grade_.causes.push_back(std::move(cause));
  }

  /// What the wrong rows of a tensor without a cause have in common.
  void describe_common(const WrongTensor& tensor) {
    const TokenPlaces& places = tensor.side == Side::q ? maker_.queries() : maker_.keys();
    std::set<int32_t> ranks, heads, sequences;
    int64_t first = std::numeric_limits<int64_t>::max(), last = -1, divisor = 0;
    for (const JudgedRow& row : tensor.all_wrong) {
      const auto at = static_cast<size_t>(row.at.token);
      ranks.insert(places.rank_of(row.at.token, row.at.head));
      heads.insert(row.at.head);
      sequences.insert(places.slot[at]);
      first = std::min(first, places.position[at]);
      last = std::max(last, places.position[at]);
      divisor = std::gcd(divisor, places.position[at]);
    }
    std::vector<std::string> common;
    const auto add_set = [&](const char* noun, const std::set<int32_t>& found, size_t all) {
      constexpr size_t kShown = 8;
      if (found.size() == all || found.size() > kShown) return;
      common.push_back(
          fmt::format("{}{} {}", noun, found.size() == 1 ? "" : "s", fmt::join(found, ", ")));
    };
    add_set("rank", ranks, places.ids.size());
    add_set(tensor.side == Side::q ? "head" : "KV head", heads,
            static_cast<size_t>(tensor.side == Side::q ? plan_.scenario.attention.heads
                                                       : plan_.scenario.attention.kv_heads));
    add_set("sequence", sequences, plan_.layout.slots.sequences.size());
    if (first > 0 || first == last)
      common.push_back(first == last ? fmt::format("position {}", first)
                                     : fmt::format("positions {} to {}", first, last));
    if (divisor > 1 && first != last)
      common.push_back(fmt::format("positions that are multiples of {}", divisor));
    std::string text =
        fmt::format("{}: no known cause explains the {} wrong row{}", tensor.name,
                    tensor.all_wrong.size(), tensor.all_wrong.size() == 1 ? "" : "s");
    if (!common.empty()) text += fmt::format("; all are of {}", fmt::join(common, ", of "));
    grade_.common.push_back(std::move(text));
  }

  const Toolbox& toolbox_;
  const Plan& plan_;
  const RunInputs& inputs_;
  const CauseSearch& search_;
  Grade& grade_;
  const RunControl control_;  // without progress: nobody knows how many suspects there are
  const SuspectMaker maker_;
  const std::vector<int64_t> query_tokens_, key_tokens_;
  std::vector<WrongTensor> tensors_;
  std::vector<Explanation> explanations_;
  std::vector<Explanation> unwritten_;  // rows without a number
  std::vector<Cause> padding_;          // tensors of which only padding is wrong
  std::set<std::string> named_;
  bool runs_too_much_ = false;  // to be run with each mistake of a kernel
};

}  // namespace

std::string describe(const Cause& cause) {
  return fmt::format("{}: {} ({}; {:.0f} % of {} wrong rows)", cause.name, cause.text,
                     fmt::join(cause.tensors, ", "), 100 * cause.explained, cause.rows);
}

std::optional<Error> find_causes(const Toolbox& toolbox, const Plan& plan, const RunInputs& inputs,
                                 const CauseSearch& search, Grade& grade) {
  if (grade.judgement() != Judgement::fail || !toolbox.oracle.altered) return std::nullopt;
  return Search(toolbox, plan, inputs, search, grade).run();
}

}  // namespace cpscope
