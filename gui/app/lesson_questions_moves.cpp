#include "gui/app/lesson_figures.h"
#include "gui/app/lesson_questions.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "sim/plan/local_keys.h"

#include <algorithm>

#include <fmt/format.h>

// Questions about what travels, what is merged, and which keys are seen.

namespace cpscope::gui {
namespace {

constexpr int32_t kRank = 2, kReceiver = 5;

int32_t rank_at(const PlanIndex& plan, int32_t wanted) {
  return std::min(wanted, plan.num_ranks() - 1);
}

size_t at_rank(const PlanIndex& plan) { return static_cast<size_t>(rank_at(plan, kRank)); }

int64_t bytes_sent(const Pass& pass, int32_t rank, Payload payload) {
  int64_t bytes = 0;
  for (const TransferItem& item : pass.transfers)
    bytes += to_index(item.src) == rank && item.payload == payload ? item.bytes : 0;
  return bytes;
}

// ---- bytes of all-to-all -----------------------------------------------------------------------

double bytes_of_heads(const AppState& state) {
  return static_cast<double>(state.plan()->summary().forward_bytes[at_rank(*state.plan())]);
}

void hint_bytes_of_heads(CaptionWriter& writer, const AppState&) {
  const PlanIndex& plan = writer.index();
  const Attention& attention = plan.plan().scenario.attention;
  writer.rank(rank_at(plan, kRank))
      .say(fmt::format(
          " has {}. For each of them it sends the queries of {}, the keys and values of {}, and "
          "later returns as many outputs, with {} elements a head in {}; one part of {} stays.",
          count_text(count_ids(plan.plan().layout.q_runs[RankId{rank_at(plan, kRank)}]), "token"),
          count_text(attention.heads, "query head"), count_text(attention.kv_heads, "KV head"),
          attention.head_dim_qk, to_name(plan.plan().scenario.numerics.dtype), plan.num_ranks()));
}

void explain_bytes_of_heads(CaptionWriter& writer, const AppState&) {
  const PlanIndex& plan = writer.index();
  const Pass& forward = plan.plan().forward;
  const int32_t rank = rank_at(plan, kRank);
  writer.say(fmt::format("{} of queries, {} of keys and values, {} of outputs.",
                         print_bytes(bytes_sent(forward, rank, Payload::q)),
                         print_bytes(bytes_sent(forward, rank, Payload::kv)),
                         print_bytes(bytes_sent(forward, rank, Payload::out))));
}

std::vector<Mistake> mistakes_of_bytes_of_heads(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  const double right = bytes_of_heads(state);
  const double ranks = plan.num_ranks();
  const auto outputs =
      static_cast<double>(bytes_sent(plan.plan().forward, rank_at(plan, kRank), Payload::out));
  return {
      {ranks > 1 ? right * ranks / (ranks - 1) : 0,
       "That also counts the heads that the rank keeps, which do not travel."},
      {right - outputs, "That leaves out the outputs, which go back to the owners of the tokens."}};
}

// ---- heads of one rank -------------------------------------------------------------------------

double heads_of_rank(const AppState& state) {
  return state.plan()->plan().forward.computes.front().heads.size();
}

void hint_heads_of_rank(CaptionWriter& writer, const AppState&) {
  writer.say(fmt::format("{} are split over {}.",
                         count_text(writer.plan().scenario.attention.heads, "query head"),
                         count_text(writer.index().num_ranks(), "rank")));
}

void explain_heads_of_rank(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  writer.say(fmt::format("For them it has the rows of all {}, instead of all heads for {} rows.",
                         count_text(plan.rows(plan.forward.computes.front().q_tokens), "token"),
                         print_count(count_ids(plan.layout.q_runs.front()))));
}

std::vector<Mistake> mistakes_of_heads(const AppState& state) {
  return {{static_cast<double>(state.plan()->plan().scenario.attention.heads),
           "These are all heads. A rank has them for its own tokens, before the first exchange."}};
}

// ---- merges ------------------------------------------------------------------------------------

int64_t count_partial_results(const PlanIndex& plan) {
  const auto& merges = plan.plan().forward.merges;
  return std::count_if(merges.begin(), merges.end(), [](const MergeItem& item) {
    return to_index(item.rank) == 0 && item.partial != kNoBuffer;
  });
}

double count_merges(const AppState& state) {
  return static_cast<double>(std::max<int64_t>(0, count_partial_results(*state.plan()) - 1));
}

void hint_merges(CaptionWriter& writer, const AppState&) {
  writer.say(fmt::format("each merge makes one partial result of two. There are {}.",
                         count_text(count_partial_results(writer.index()), "partial result")));
}

void explain_merges(CaptionWriter& writer, const AppState&) {
  writer.say(fmt::format("The first of {} has nothing to be merged with.",
                         count_text(count_partial_results(writer.index()), "partial result")));
}

std::vector<Mistake> mistakes_of_merges(const AppState& state) {
  return {{static_cast<double>(count_partial_results(*state.plan())),
           "That is the number of partial results, and the first one is only kept."}};
}

// ---- bytes that are needed ---------------------------------------------------------------------

double percent_needed(const AppState& state) {
  const PlanSummary& summary = state.plan()->summary();
  const auto moved = static_cast<double>(summary.kv_bytes_moved);
  return moved > 0 ? 100 * static_cast<double>(summary.kv_bytes_necessary) / moved : 0;
}

void hint_bytes_needed(CaptionWriter& writer, const AppState&) {
  const Scenario& scenario = writer.plan().scenario;
  writer.say(fmt::format(
      "a query sees only keys of its own chunk of {}. A row is needed on another rank only if the "
      "layout cuts its chunk.",
      count_text(scenario.attention.chunk_size, "token")));
}

void explain_bytes_needed(CaptionWriter& writer, const AppState&) {
  words::tell_kv_share(writer);
  writer.say(" The communication type group_cast sends only those.");
}

std::vector<Mistake> mistakes_of_bytes_needed(const AppState&) {
  return {{100, "Then every rank would see every key, but chunks hide most of them."}};
}

// ---- keys of a draft ---------------------------------------------------------------------------

/// Keys that the last draft of the first sequence sees on each rank; empty when they cannot be
/// counted.
std::vector<int64_t> keys_of_draft(const AppState& state) {
  const Plan& plan = state.plan()->plan();
  const Result<std::vector<LocalKeys>> counts = count_local_keys(plan.scenario, plan.layout);
  std::vector<int64_t> keys;
  if (!counts) return keys;
  for (const LocalKeys& one : counts.value()) {
    if (one.sequence == 0) keys = one.keys;
  }
  return keys;
}

double keys_on_rank(const AppState& state) {
  const std::vector<int64_t> keys = keys_of_draft(state);
  return keys.empty() ? 0 : static_cast<double>(keys.front());
}

int64_t keys_of_sequence(const AppState& state) {
  const std::vector<int64_t>& lengths = state.plan()->plan().scenario.batch.kv_lengths;
  return lengths.empty() ? 0 : lengths.front();
}

void hint_keys_of_draft(CaptionWriter& writer, const AppState& state) {
  const Plan& plan = writer.plan();
  writer.say(
      fmt::format("the cache of the first sequence has {}, in blocks of {} that go to {} one after "
                  "another. The last draft sees them all.",
                  count_text(keys_of_sequence(state), "key"), plan.scenario.parallel.stripe,
                  count_text(plan.layout.cp_size, "rank")));
}

void explain_keys_of_draft(CaptionWriter& writer, const AppState& state) {
  const std::vector<int64_t> keys = keys_of_draft(state);
  writer.say("This draft sees on ");
  writer.series(keys.size(), keys.size(), [&](size_t rank) {
    writer.rank(static_cast<int32_t>(rank)).say(" " + print_count(keys[rank]));
  });
  writer.say(" keys.");
}

std::vector<Mistake> mistakes_of_keys(const AppState& state) {
  const auto all = static_cast<double>(keys_of_sequence(state));
  return {{all, "These are the keys of the whole sequence, on all ranks."},
          {std::floor(all / state.plan()->num_ranks()),
           "That would be an even share, but the keys are split in whole blocks."}};
}

// ---- bytes of the backward ---------------------------------------------------------------------

double bytes_backward(const AppState& state) {
  return static_cast<double>(state.plan()->summary().backward_bytes[at_rank(*state.plan())]);
}

void hint_bytes_backward(CaptionWriter& writer, const AppState&) {
  const PlanIndex& plan = writer.index();
  writer
      .say(
          "keys and values travel once more, and the sums of their gradients travel as well. In "
          "the forward ")
      .rank(rank_at(plan, kRank))
      .say(fmt::format(" sends {}.", print_bytes(plan.summary().forward_bytes[at_rank(plan)])));
}

void explain_bytes_backward(CaptionWriter& writer, const AppState&) {
  const PlanIndex& plan = writer.index();
  const Pass& backward = plan.plan().backward;
  const int32_t rank = rank_at(plan, kRank);
  writer.say(fmt::format("{} of keys and values again, and {} of their gradients, in {}.",
                         print_bytes(bytes_sent(backward, rank, Payload::kv)),
                         print_bytes(bytes_sent(backward, rank, Payload::dkv)),
                         to_name(dkv_wire_dtype(plan.plan().scenario.numerics))));
}

std::vector<Mistake> mistakes_of_bytes_backward(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  const auto forward = static_cast<double>(plan.summary().forward_bytes[at_rank(plan)]);
  return {{forward,
           "That is what the forward sends. The backward sends keys and values again, and "
           "gradients."}};
}

// ---- who sends queries -------------------------------------------------------------------------

std::vector<int32_t> senders_of_queries(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  std::vector<int32_t> senders;
  for (const TransferItem& item : plan.plan().forward.transfers) {
    if (item.payload == Payload::q && to_index(item.dst) == rank_at(plan, kReceiver) &&
        item.src != item.dst)
      senders.push_back(to_index(item.src));
  }
  std::sort(senders.begin(), senders.end());
  senders.erase(std::unique(senders.begin(), senders.end()), senders.end());
  return senders;
}

void hint_senders_of_queries(CaptionWriter& writer, const AppState& state) {
  const int32_t ranks = writer.index().num_ranks();
  writer.say(fmt::format("a tile has the queries of {} of {} ranks. Look at the links into ",
                         senders_of_queries(state).size() + 1, ranks));
  writer.rank(rank_at(writer.index(), kReceiver)).say(" in the traffic.");
}

void why_not_sender(CaptionWriter& writer, const AppState&, int32_t rank) {
  const int32_t receiver = rank_at(writer.index(), kReceiver);
  if (rank == receiver) {
    writer.rank(rank, true).say(" has its own queries already.");
    return;
  }
  const auto& items = writer.plan().forward.transfers;
  const auto found = std::find_if(items.begin(), items.end(), [&](const TransferItem& item) {
    return to_index(item.src) == rank && to_index(item.dst) == receiver;
  });
  writer.rank(rank, true);
  writer.say(found == items.end()
                 ? " sends nothing to that rank in the forward."
                 : fmt::format(" sends it {}, but no queries.", to_name(found->payload)));
}

void explain_senders_of_queries(CaptionWriter& writer, const AppState& state) {
  int64_t bytes = 0;
  const int32_t receiver = rank_at(writer.index(), kReceiver);
  for (const TransferItem& item : writer.plan().forward.transfers)
    bytes += item.payload == Payload::q && to_index(item.dst) == receiver ? item.bytes : 0;
  writer.rank(receiver, true)
      .say(fmt::format(" receives {} of queries from {} of them, and computes their tile with the "
                       "keys that it gathers.",
                       print_bytes(bytes), senders_of_queries(state).size()));
}

}  // namespace

namespace words {

void ask_bytes_of_heads(CaptionWriter& writer, const AppState&) {
  writer.say("All-to-all sends heads instead of keys. Predict: how much does ")
      .rank(rank_at(writer.index(), kRank))
      .say(" send in the forward?");
}

void ask_heads_of_rank(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: for how many query heads does ")
      .rank(0)
      .say(" compute the attention between the two reorders?");
}

void ask_merges(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: how many times does ")
      .rank(0)
      .say(" merge two partial results in the forward?");
}

void ask_bytes_needed(CaptionWriter& writer, const AppState&) {
  writer.say(
      "Predict: how many percent of the keys and values that the ring sends does a rank "
      "need that receives them?");
}

void ask_keys_of_draft(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: how many keys of the first sequence does its last draft see on ")
      .rank(0)
      .say("?");
}

void ask_bytes_backward(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: how much does ")
      .rank(rank_at(writer.index(), kRank))
      .say(" send in the backward?");
}

void ask_senders_of_queries(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: which ranks send their queries to ")
      .rank(rank_at(writer.index(), kReceiver))
      .say("? Click them.");
}

}  // namespace words

const Question kBytesOfHeads{.kind = AnswerKind::bytes,
                             .hint = hint_bytes_of_heads,
                             .explain = explain_bytes_of_heads,
                             .number = bytes_of_heads,
                             .mistakes = mistakes_of_bytes_of_heads};
const Question kHeadsOfRank{.kind = AnswerKind::count,
                            .hint = hint_heads_of_rank,
                            .explain = explain_heads_of_rank,
                            .number = heads_of_rank,
                            .mistakes = mistakes_of_heads};
const Question kMerges{.kind = AnswerKind::count,
                       .hint = hint_merges,
                       .explain = explain_merges,
                       .number = count_merges,
                       .mistakes = mistakes_of_merges};
const Question kBytesNeeded{.kind = AnswerKind::percent,
                            .hint = hint_bytes_needed,
                            .explain = explain_bytes_needed,
                            .number = percent_needed,
                            .mistakes = mistakes_of_bytes_needed};
const Question kKeysOfDraft{.kind = AnswerKind::count,
                            .hint = hint_keys_of_draft,
                            .explain = explain_keys_of_draft,
                            .number = keys_on_rank,
                            .mistakes = mistakes_of_keys};
const Question kBytesBackward{.kind = AnswerKind::bytes,
                              .hint = hint_bytes_backward,
                              .explain = explain_bytes_backward,
                              .number = bytes_backward,
                              .mistakes = mistakes_of_bytes_backward};
const Question kSendersOfQueries{.kind = AnswerKind::ranks,
                                 .hint = hint_senders_of_queries,
                                 .explain = explain_senders_of_queries,
                                 .ranks = senders_of_queries,
                                 .why_not = why_not_sender};

}  // namespace cpscope::gui
