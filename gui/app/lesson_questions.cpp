#include "gui/app/lesson_questions.h"

#include "gui/app/lesson_figures.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

// Questions about the split of the batch and the work of the ranks.

namespace cpscope::gui {
namespace {

/// (query, key, head) triples of each rank in a step of the forward; the last step if it has fewer.
const std::vector<int64_t>& pairs_in_step(const PlanIndex& plan, size_t step) {
  const auto& steps = plan.summary().pairs_by_step_rank;
  return steps[std::min(step, steps.size() - 1)];
}

/// The forward step that a question is about, an index in PlanIndex::steps.
int32_t step_at(const PlanIndex& plan, int32_t wanted) {
  return std::min(wanted, plan.pass(Direction::forward).num_steps - 1);
}

/// The compute item of a rank in a step of the forward; null if there is none.
const ComputeItem* find_compute(const PlanIndex& plan, int32_t step, int32_t rank) {
  const auto& items = plan.pass(Direction::forward).computes;
  const auto found = std::find_if(items.begin(), items.end(), [&](const ComputeItem& item) {
    return to_index(item.step) == step && to_index(item.rank) == rank;
  });
  return found == items.end() ? nullptr : &*found;
}

/// The owner of the first of a list of tokens; -1 without tokens.
int32_t first_owner(const PlanIndex& plan, Side side, RunListId tokens) {
  const auto list = plan.plan().list(tokens);
  return list.empty() ? -1 : plan.owner(side, list.front().begin).rank;
}

std::string print_triples(int64_t count) {
  return print_count(count) + " (query, key, head) triples";
}

// ---- pairs with both ends on one rank ----------------------------------------------------------

int64_t count_pairs(const PlanIndex& plan) {
  const int64_t tokens = plan.tokens(Side::q);
  return plan.count_visible(0, tokens, 0, plan.tokens(Side::kv));
}

int64_t count_local_pairs(const PlanIndex& plan) {
  int64_t local = 0;
  for (const OwnedRun& q : plan.owned(Side::q)) {
    for (const OwnedRun& k : plan.owned(Side::kv)) {
      if (q.rank == k.rank)
        local += plan.count_visible(q.run.begin, q.run.end, k.run.begin, k.run.end);
    }
  }
  return local;
}

double percent_of_local_pairs(const AppState& state) {
  const auto all = static_cast<double>(count_pairs(*state.plan()));
  return all > 0 ? 100 * static_cast<double>(count_local_pairs(*state.plan())) / all : 0;
}

void hint_local_pairs(CaptionWriter& writer, const AppState&) {
  writer.say(
      fmt::format("in the mask these pairs are the triangles on the diagonal, one for each of {}.",
                  count_text(writer.index().num_ranks(), "rank")));
}

void explain_local_pairs(CaptionWriter& writer, const AppState&) {
  writer.say(fmt::format(
      "{} of {} pairs. For the others keys must come to the queries, or queries "
      "to the keys.",
      print_count(count_local_pairs(writer.index())), print_count(count_pairs(writer.index()))));
}

std::vector<Mistake> mistakes_of_local_pairs(const AppState&) {
  return {{100, "Then nothing would have to travel, but queries also see keys of other ranks."},
          {0, "Each token sees at least itself, and that pair is on one rank."}};
}

// ---- ranks without work ------------------------------------------------------------------------

constexpr int32_t kThirdStep = 2;

std::vector<int32_t> idle_ranks(const AppState& state) {
  const auto& pairs = pairs_in_step(*state.plan(), kThirdStep);
  std::vector<int32_t> idle;
  for (size_t rank = 0; rank < pairs.size(); ++rank) {
    if (pairs[rank] == 0) idle.push_back(static_cast<int32_t>(rank));
  }
  return idle;
}

/// Writes " with the keys of rank 1" if the rank computes with keys in the step.
void tell_keys(CaptionWriter& writer, int32_t step, int32_t rank) {
  const ComputeItem* item = find_compute(writer.index(), step, rank);
  const int32_t owner =
      item == nullptr ? -1 : first_owner(writer.index(), Side::kv, item->kv_tokens);
  if (owner >= 0) writer.say(" with the keys of ").rank(owner);
}

void hint_idle_ranks(CaptionWriter& writer, const AppState&) {
  const int32_t step = step_at(writer.index(), kThirdStep);
  const int32_t last = writer.index().num_ranks() - 1;
  writer.say("a rank has work if its queries come after the keys that it holds. In ")
      .step(step)
      .say(" ")
      .rank(last)
      .say(" works");
  tell_keys(writer, step, last);
  writer.say(".");
}

void why_not_idle(CaptionWriter& writer, const AppState& state, int32_t rank) {
  const int32_t step = step_at(writer.index(), kThirdStep);
  const auto& pairs = pairs_in_step(*state.plan(), kThirdStep);
  writer.rank(rank, true)
      .say(fmt::format(" computes {}", print_triples(pairs[static_cast<size_t>(rank)])));
  tell_keys(writer, step, rank);
  writer.say(".");
}

void explain_idle_ranks(CaptionWriter& writer, const AppState& state) {
  const auto& pairs = pairs_in_step(*state.plan(), kThirdStep);
  writer.say(fmt::format(
      "{} of {} ranks hold only keys that come after all their queries. The busiest one computes "
      "{} in this step, and they wait for it.",
      idle_ranks(state).size(), pairs.size(),
      print_triples(*std::max_element(pairs.begin(), pairs.end()))));
}

// ---- the busiest rank of another layout --------------------------------------------------------

/// Pairs of each rank if the queries were cut in contiguous parts, from the mask alone.
std::vector<int64_t> contiguous_pairs(const PlanIndex& plan) {
  const int64_t tokens = plan.tokens(Side::q), ranks = plan.num_ranks();
  std::vector<int64_t> pairs;
  for (int64_t rank = 0; rank < ranks; ++rank)
    pairs.push_back(plan.count_visible(tokens * rank / ranks, tokens * (rank + 1) / ranks, 0,
                                       plan.tokens(Side::kv)));
  return pairs;
}

double contiguous_balance(const AppState& state) {
  const std::vector<int64_t> pairs = contiguous_pairs(*state.plan());
  const int64_t all = std::accumulate(pairs.begin(), pairs.end(), int64_t{0});
  const int64_t most = *std::max_element(pairs.begin(), pairs.end());
  return static_cast<double>(most) * static_cast<double>(pairs.size()) /
         static_cast<double>(std::max<int64_t>(1, all));
}

void hint_contiguous_balance(CaptionWriter& writer, const AppState&) {
  const std::vector<int64_t> pairs = contiguous_pairs(writer.index());
  writer.say(fmt::format("under a causal mask the last part sees most keys: {} of {} pairs.",
                         print_count(pairs.back()),
                         print_count(std::accumulate(pairs.begin(), pairs.end(), int64_t{0}))));
}

void explain_contiguous_balance(CaptionWriter& writer, const AppState&) {
  const std::vector<int64_t> pairs = contiguous_pairs(writer.index());
  writer.rank(writer.index().num_ranks() - 1, true)
      .say(fmt::format(" would compute {} pairs of each head and ", print_count(pairs.back())))
      .rank(0)
      .say(fmt::format(" {}. With this layout the busiest rank has {} of the mean.",
                       print_count(pairs.front()),
                       words::print_ratio(writer.index().summary().rank_max_over_mean)));
}

std::vector<Mistake> mistakes_of_contiguous_balance(const AppState& state) {
  return {
      {1, "That is even work, and a causal mask gives later tokens more keys than earlier ones."},
      {static_cast<double>(state.plan()->num_ranks()),
       "Then one rank would do all the work, and the others none."}};
}

// ---- the owner of a striped token --------------------------------------------------------------

/// A token in the middle of the batch, of the last rank but one.
int64_t token_to_find(const PlanIndex& plan) {
  const int64_t ranks = plan.num_ranks();
  return std::max<int64_t>(0, plan.tokens(Side::q) / 2 - (ranks > 1 ? 2 : 1));
}

std::vector<int32_t> striped_owner(const AppState& state) {
  return {state.plan()->owner(Side::q, token_to_find(*state.plan())).rank};
}

void hint_striped_owner(CaptionWriter& writer, const AppState&) {
  writer.say(fmt::format("{} take turns, token after token. What remains when {} is divided by {}?",
                         count_text(writer.index().num_ranks(), "rank"),
                         print_count(token_to_find(writer.index())), writer.index().num_ranks()));
}

void why_not_owner(CaptionWriter& writer, const AppState&, int32_t rank) {
  writer.rank(rank, true).say(" owns ");
  writer.runs(writer.plan().layout.q_runs[RankId{rank}], Side::q).say(".");
}

void explain_striped_owner(CaptionWriter& writer, const AppState& state) {
  why_not_owner(writer, state, striped_owner(state).front());
}

// ---- padding -----------------------------------------------------------------------------------

int32_t second_rank(const PlanIndex& plan) { return std::min(1, plan.num_ranks() - 1); }

double padding_of_rank(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  return static_cast<double>(count_padding(plan.plan().layout, Side::q, RankId{second_rank(plan)}));
}

void hint_padding_of_rank(CaptionWriter& writer, const AppState&) {
  const int32_t rank = second_rank(writer.index());
  writer.say("padding is at the end of each slot. ")
      .rank(rank, true)
      .say(" owns ")
      .runs(writer.plan().layout.q_runs[RankId{rank}], Side::q)
      .say(".");
}

void explain_padding_of_rank(CaptionWriter& writer, const AppState&) {
  writer.say(fmt::format("All ranks together hold {} rows of padding.",
                         print_count(words::count_padding(writer.index(), Side::q))));
}

std::vector<Mistake> mistakes_of_padding(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  const int64_t all = words::count_padding(plan, Side::q);
  const int32_t rank = second_rank(plan);
  int64_t rows = 0;
  for (const TokenRun& run : plan.plan().layout.q_runs[RankId{rank}]) rows += run.count();
  return {{static_cast<double>(all), "That is the padding of all ranks together."},
          {static_cast<double>(all) / plan.num_ranks(),
           "That would be an even share, but the layout does not split padding evenly."},
          {static_cast<double>(rows), "These are all rows of the rank, with tokens and without."}};
}

// ---- the rank that all wait for ----------------------------------------------------------------

std::vector<int32_t> slowest_ranks(const AppState& state) {
  const auto& pairs = pairs_in_step(*state.plan(), 0);
  const int64_t most = *std::max_element(pairs.begin(), pairs.end());
  std::vector<int32_t> ranks;
  for (size_t rank = 0; rank < pairs.size(); ++rank) {
    if (pairs[rank] == most) ranks.push_back(static_cast<int32_t>(rank));
  }
  return ranks;
}

void hint_slowest_rank(CaptionWriter& writer, const AppState&) {
  writer.say(
      "in this step every rank attends its own tokens to themselves. Tokens of different documents "
      "do not see each other, so look for the rank that owns the longest part of one document.");
}

void why_not_slowest(CaptionWriter& writer, const AppState& state, int32_t rank) {
  const auto& pairs = pairs_in_step(*state.plan(), 0);
  writer.rank(rank, true)
      .say(fmt::format(" computes {} and another rank {}.",
                       print_triples(pairs[static_cast<size_t>(rank)]),
                       print_count(*std::max_element(pairs.begin(), pairs.end()))));
}

void explain_slowest_rank(CaptionWriter& writer, const AppState& state) {
  const auto& pairs = pairs_in_step(*state.plan(), 0);
  const auto [least, most] = std::minmax_element(pairs.begin(), pairs.end());
  writer.say(fmt::format("It computes {}, another rank only {}.", print_triples(*most),
                         print_count(*least)));
}

// ---- ranks that help ---------------------------------------------------------------------------

std::vector<int32_t> helping_ranks(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
    const ComputeItem* item = find_compute(plan, step_at(plan, kMaxRanks), rank);
    const int32_t owner = item == nullptr ? -1 : first_owner(plan, Side::q, item->q_tokens);
    if (owner >= 0 && owner != rank) ranks.push_back(rank);
  }
  return ranks;
}

void hint_helping_ranks(CaptionWriter& writer, const AppState&) {
  writer.say("the first ranks have few keys in front of them, so they are without work first. ");
  writer.rank(writer.index().num_ranks() - 1, true).say(" always has work of its own.");
}

void tell_own_work(CaptionWriter& writer, int32_t rank) {
  const int32_t step = step_at(writer.index(), kMaxRanks);
  const ComputeItem* item = find_compute(writer.index(), step, rank);
  if (item == nullptr) {
    writer.rank(rank, true).say(" computes nothing in this step.");
    return;
  }
  const int32_t owner = first_owner(writer.index(), Side::q, item->q_tokens);
  writer.rank(rank, true)
      .say(owner == rank ? " computes its own queries" : " computes queries of ");
  if (owner != rank && owner >= 0) writer.rank(owner);
  tell_keys(writer, step, rank);
  writer.say(".");
}

void why_not_helping(CaptionWriter& writer, const AppState&, int32_t rank) {
  tell_own_work(writer, rank);
}

void explain_helping_ranks(CaptionWriter& writer, const AppState& state) {
  const std::vector<int32_t> ranks = helping_ranks(state);
  if (ranks.empty()) return;
  tell_own_work(writer, ranks.front());
  writer.say(fmt::format(" So {} of {} ranks help, and none waits.", ranks.size(),
                         writer.index().num_ranks()));
}

}  // namespace

namespace words {

void ask_local_pairs(CaptionWriter& writer, const AppState&) {
  writer.say(
      "Predict: how many percent of all pairs of a query and a key that the mask leaves "
      "have both ends on one rank?");
}

void ask_idle_ranks(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: which ranks have no work in ")
      .step(step_at(writer.index(), kThirdStep))
      .say("? Click them.");
}

void ask_contiguous_balance(CaptionWriter& writer, const AppState&) {
  writer.say(fmt::format(
      "Predict: with the layout contiguous, how many times the mean work would the busiest of {} "
      "have? Type one number with two decimals.",
      count_text(writer.index().num_ranks(), "rank")));
}

void ask_striped_owner(CaptionWriter& writer, const AppState&) {
  const int64_t token = token_to_find(writer.index());
  writer.say("Predict: which rank owns ")
      .word("token " + print_count(token), TokenRange{Side::q, token, token + 1})
      .say("? Click it.");
}

void ask_padding_of_rank(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: how many rows of padding does ")
      .rank(second_rank(writer.index()))
      .say(" hold? Count them in the layout.");
}

void ask_slowest_rank(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: which rank do all others wait for in ").step(0).say("? Click it.");
}

void ask_helping_ranks(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: which ranks compute queries of another rank in ")
      .step(step_at(writer.index(), kMaxRanks))
      .say(", the last one of the forward? Click them.");
}

}  // namespace words

const Question kLocalPairs{.kind = AnswerKind::percent,
                           .hint = hint_local_pairs,
                           .explain = explain_local_pairs,
                           .number = percent_of_local_pairs,
                           .mistakes = mistakes_of_local_pairs};
const Question kIdleRanks{.kind = AnswerKind::ranks,
                          .hint = hint_idle_ranks,
                          .explain = explain_idle_ranks,
                          .ranks = idle_ranks,
                          .why_not = why_not_idle};
const Question kContiguousBalance{.kind = AnswerKind::ratio,
                                  .hint = hint_contiguous_balance,
                                  .explain = explain_contiguous_balance,
                                  .number = contiguous_balance,
                                  .mistakes = mistakes_of_contiguous_balance};
const Question kStripedOwner{.kind = AnswerKind::ranks,
                             .hint = hint_striped_owner,
                             .explain = explain_striped_owner,
                             .ranks = striped_owner,
                             .why_not = why_not_owner};
const Question kPaddingOfRank{.kind = AnswerKind::count,
                              .hint = hint_padding_of_rank,
                              .explain = explain_padding_of_rank,
                              .number = padding_of_rank,
                              .mistakes = mistakes_of_padding};
const Question kSlowestRank{.kind = AnswerKind::ranks,
                            .hint = hint_slowest_rank,
                            .explain = explain_slowest_rank,
                            .ranks = slowest_ranks,
                            .why_not = why_not_slowest};
const Question kHelpingRanks{.kind = AnswerKind::ranks,
                             .hint = hint_helping_ranks,
                             .explain = explain_helping_ranks,
                             .ranks = helping_ranks,
                             .why_not = why_not_helping};

}  // namespace cpscope::gui
