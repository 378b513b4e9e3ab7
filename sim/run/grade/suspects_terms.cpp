#include "sim/run/grade/suspects.h"
#include "sim/run/kept_weights.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// [query head] The first head of the rank that computes it, where ranks exchange heads.
std::vector<int32_t> first_heads(const Scenario& scenario) {
  const int32_t heads = scenario.attention.heads;
  std::vector<int32_t> first(static_cast<size_t>(heads), 0);
  const Parallel& parallel = scenario.parallel;
  const bool is_a2a = parallel.comm_type == CommType::a2a;
  if (!is_a2a && !has_head_groups(parallel.comm_type)) return first;
  const int64_t ranks = is_a2a ? parallel.cp_size : parallel.a2a_size;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t begin = rank * heads / ranks, end = (rank + 1) * heads / ranks;
    std::fill(first.begin() + begin, first.begin() + end, static_cast<int32_t>(begin));
  }
  return first;
}

}  // namespace

SuspectMaker::TokenTerms SuspectMaker::terms_at(PairTermsOf of, const TermPlaces& places) const {
  if (!of) return {};
  std::vector<int32_t> first(static_cast<size_t>(scenario_.attention.heads), 0);
  if (places.heads_from_zero) first = first_heads(scenario_);
  return [this, of = std::move(of), &queries = places.queries, &keys = places.keys,
          first = std::move(first)](int64_t query, int64_t key, int32_t head) {
    const int32_t sequence = queries_.sequence[static_cast<size_t>(query)];
    if (sequence < 0) return PairTerm{};
    const auto at = static_cast<size_t>(sequence);
    const int64_t i = queries[static_cast<size_t>(query)], j = keys[static_cast<size_t>(key)];
    const bool has_terms =
        i >= 0 && j >= 0 && i < scenario_.batch.lengths[at] && j < scenario_.batch.kv_lengths[at];
    if (!has_terms) return PairTerm{};
    return of(sequence, head - first[static_cast<size_t>(head)], i, j);
  };
}

/// Dropout as a kernel draws it that knows its own call alone.
template <class Add>
void SuspectMaker::add_draws_by_item(Add add) const {
  Plan drawing = plan_;
  Attention& attention = drawing.scenario.attention;
  if (draws_by_item(attention)) return;
  attention.dropout_mode = DropoutMode::framework;
  if (terms_too_large(attention, drawing.scenario.batch)) return;
  // Both outlive the search: what is returned refers to them.
  RunInputs& inputs = others_inputs_.emplace_back();
  inputs.bias = inputs_.bias;
  inputs.kept = draw_by_item(drawing);
  const Scenario& other = others_without_.emplace_back(drawing.scenario);
  add("dropout_by_item", "every compute item draws the dropped weights with an offset of its own",
      terms_at(witness_.terms(other, inputs), {queries_.position, keys_.position}));
}

void SuspectMaker::add_terms(const Take& take) const {
  if (!terms_) return;
  const Attention& asked = scenario_.attention;
  const auto add = [&](const char* name, std::string text, TokenTerms terms) {
    Suspect suspect = with_times(name, std::move(text), by_mask(scenario_));
    suspect.attention.terms = std::move(terms);
    take(suspect);
  };
  const auto add_without = [&](const char* name, std::string text, auto change) {
    // Outlives the search: what it returns refers to it.
    Scenario& other = others_without_.emplace_back(scenario_);
    change(other.attention);
    add(name, std::move(text),
        terms_at(witness_.terms(other, inputs_), {queries_.position, keys_.position}));
  };
  if (asked.alibi)
    add_without("alibi_ignored", "ALiBi is left out", [](Attention& a) { a.alibi = false; });
  if (asked.bias != BiasShape::none)
    add_without("bias_ignored", "the bias is left out",
                [](Attention& a) { a.bias = BiasShape::none; });
  if (asked.dropout > 0)
    add_without("dropout_ignored", "no weight is dropped", [](Attention& a) { a.dropout = 0.0; });
  const std::string what =
      fmt::format("{}{}{}", asked.alibi ? "ALiBi" : "",
                  asked.bias == BiasShape::none ? "" : (asked.alibi ? ", the bias" : "the bias"),
                  asked.dropout == 0
                      ? ""
                      : (asked.alibi || asked.bias != BiasShape::none ? ", dropout" : "dropout"));
  if (plan_.layout.cp_size > 1) {
    const char* name = "terms_by_local_place";
    add(name, what + " counts places in the ranks' parts of the sequence",
        terms_at(terms_, {queries_.local_in_sequence, keys_.local_in_sequence}));
    add(name, what + " counts keys by their place in the ranks' parts of the sequence",
        terms_at(terms_, {queries_.position, keys_.local_in_sequence}));
    add(name, what + " counts places in the ranks' buffers",
        terms_at(terms_, {queries_.local, keys_.local}));
  }
  const std::vector<int32_t> first = first_heads(scenario_);
  if (std::any_of(first.begin(), first.end(), [](int32_t head) { return head > 0; }))
    add("heads_exchanged", what + " numbers the heads of every rank from 0",
        terms_at(terms_, {queries_.position, keys_.position, true}));
  const TokenTerms own = terms_at(terms_, {queries_.position, keys_.position});
  const auto add_changed = [&](const char* name, std::string text,
                               std::function<void(PairTerm&)> change) {
    add(name, std::move(text),
        [own, change = std::move(change)](int64_t query, int64_t key, int32_t head) {
          PairTerm term = own(query, key, head);
          change(term);
          return term;
        });
  };
  const double scale = asked.effective_scale();
  if (asked.alibi || asked.bias != BiasShape::none)
    add_changed("scale_ignored", what + " is multiplied by softmax_scale",
                [scale](PairTerm& term) { term.added *= scale; });
  if (asked.alibi)
    add_changed("alibi_ignored", what + " has the other sign",
                [](PairTerm& term) { term.added = -term.added; });
  if (asked.dropout == 0) return;
  add_draws_by_item(add);
  const double kept = 1.0 - asked.dropout;
  add_changed("factor", "kept weights are scaled twice",
              [kept](PairTerm& term) { term.factor /= kept; });
  add_changed("factor", "kept weights are not scaled",
              [kept](PairTerm& term) { term.factor *= kept; });
  add_changed("dropout_before_softmax", "the softmax sums only the kept weights",
              [](PairTerm& term) { term.times = term.factor > 0 ? 1.0 : 0.0; });
}

}  // namespace cpscope
