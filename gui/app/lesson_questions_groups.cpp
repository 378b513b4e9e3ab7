#include "gui/app/lesson_questions.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

// Questions about groups of ranks, queries and partial results that travel, and bytes an element.

namespace cpscope::gui {
namespace {

constexpr int32_t kSender = 2;

int32_t sender_of(const PlanIndex& plan) { return std::min(kSender, plan.num_ranks() - 1); }

int64_t bytes_of_sender(const PlanIndex& plan, Payload payload) {
  int64_t bytes = 0;
  for (const TransferItem& item : plan.plan().forward.transfers)
    bytes += to_index(item.src) == sender_of(plan) && item.payload == payload ? item.bytes : 0;
  return bytes;
}

// ---- which ranks share a document --------------------------------------------------------------

/// The longest document of the last round, and its group.
struct LongestDocument {
  int64_t sequence = -1;
  int64_t tokens = 0;
  CpGroup group;
};

LongestDocument longest_of_last_round(const Plan& plan) {
  LongestDocument longest;
  if (plan.layout.rounds.empty()) return longest;
  for (const CpGroup& group : plan.layout.rounds.back().groups) {
    for (const int64_t sequence : group.sequences) {
      const int64_t tokens = plan.scenario.batch.lengths[static_cast<size_t>(sequence)];
      if (tokens > longest.tokens) longest = {sequence, tokens, group};
    }
  }
  return longest;
}

std::vector<int32_t> ranks_of_document(const AppState& state) {
  const LongestDocument longest = longest_of_last_round(state.plan()->plan());
  std::vector<int32_t> ranks;
  for (int32_t n = 0; n < longest.group.size; ++n) ranks.push_back(longest.group.first_rank + n);
  return ranks;
}

void hint_ranks_of_document(CaptionWriter& writer, const AppState&) {
  writer.say(fmt::format(
      "a rank holds at most {} tokens of one document, and a group is a power of two of ranks. "
      "This document has {} tokens; in the last round the groups stand longest first.",
      print_count(writer.plan().scenario.parallel.max_tokens_per_rank),
      print_count(longest_of_last_round(writer.plan()).tokens)));
}

void why_not_of_document(CaptionWriter& writer, const AppState&, int32_t rank) {
  writer.rank(rank, true);
  if (writer.plan().layout.rounds.empty()) return;
  for (const CpGroup& group : writer.plan().layout.rounds.back().groups) {
    if (!group.has(rank)) continue;
    writer.say(group.sequences.empty()
                   ? " has no document in that round."
                   : fmt::format(" computes sequence {} in that round.", group.sequences.front()));
    return;
  }
}

void explain_ranks_of_document(CaptionWriter& writer, const AppState&) {
  const LongestDocument longest = longest_of_last_round(writer.plan());
  writer.say(fmt::format(
      "{} tokens on {}, {} on each; no other rank sees a row of it.", print_count(longest.tokens),
      count_text(longest.group.size, "rank"),
      print_count((longest.tokens + longest.group.size - 1) / std::max(1, longest.group.size))));
}

// ---- bytes of queries that travel --------------------------------------------------------------

double bytes_of_queries(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  return static_cast<double>(plan.summary().forward_bytes[static_cast<size_t>(sender_of(plan))]);
}

void hint_bytes_of_queries(CaptionWriter& writer, const AppState&) {
  writer.say("queries go ")
      .say(count_text(writer.index().num_ranks() - 1, "hop"))
      .say(
          " round the ring, and partial results come back to their owners. A link says its bytes.");
}

void explain_bytes_of_queries(CaptionWriter& writer, const AppState& state) {
  const int64_t queries = bytes_of_sender(writer.index(), Payload::q);
  const double results = bytes_of_queries(state) - static_cast<double>(queries);
  const double lse =
      static_cast<double>(bytes_of_sender(writer.index(), Payload::partial)) - results;
  writer.say(
      fmt::format("{} of queries, and {} of partial results; their lse, {}, is counted apart.",
                  print_bytes(queries), print_bytes(results), print_bytes(lse)));
}

std::vector<Mistake> mistakes_of_bytes_of_queries(const AppState& state) {
  return {{static_cast<double>(bytes_of_sender(*state.plan(), Payload::q)),
           "Those are the queries. The results of foreign queries must go back to their owners."}};
}

// ---- where partial results go ------------------------------------------------------------------

/// The first step of the forward in which the rank sends partial results; -1 if there is none.
int32_t first_step_of_partials(const PlanIndex& plan) {
  int32_t first = std::numeric_limits<int32_t>::max();
  for (const TransferItem& item : plan.plan().forward.transfers) {
    if (item.payload == Payload::partial && to_index(item.src) == sender_of(plan))
      first = std::min(first, to_index(item.step));
  }
  return first == std::numeric_limits<int32_t>::max() ? -1 : first;
}

std::vector<int32_t> receivers_of_partials(const AppState& state) {
  const PlanIndex& plan = *state.plan();
  const int32_t first = first_step_of_partials(plan);
  std::vector<int32_t> receivers;
  for (const TransferItem& item : plan.plan().forward.transfers) {
    if (item.payload == Payload::partial && to_index(item.src) == sender_of(plan) &&
        to_index(item.step) == first)
      receivers.push_back(to_index(item.dst));
  }
  std::sort(receivers.begin(), receivers.end());
  receivers.erase(std::unique(receivers.begin(), receivers.end()), receivers.end());
  return receivers;
}

void hint_receivers_of_partials(CaptionWriter& writer, const AppState&) {
  const PlanIndex& plan = writer.index();
  writer.say("a partial result belongs to the owner of its queries. Whose queries has ")
      .rank(sender_of(plan))
      .say(" computed by then? They come from one rank further with every step.");
}

void why_not_receiver(CaptionWriter& writer, const AppState&, int32_t rank) {
  const PlanIndex& plan = writer.index();
  writer.rank(rank, true);
  writer.say(rank == sender_of(plan)
                 ? " keeps the results of its own queries."
                 : " does not own the queries of which results are ready then.");
}

void explain_receivers_of_partials(CaptionWriter& writer, const AppState& state) {
  const PlanIndex& plan = writer.index();
  const int32_t first = first_step_of_partials(plan);
  int64_t bytes = 0;
  for (const TransferItem& item : plan.plan().forward.transfers) {
    if (item.payload == Payload::partial && to_index(item.src) == sender_of(plan) &&
        to_index(item.step) == first)
      bytes += item.bytes;
  }
  writer.say("In ").step(first).say(" ");
  for (const int32_t rank : receivers_of_partials(state)) writer.rank(rank).say(" ");
  writer.say(
      fmt::format("receives {} of o and lse, while queries go the other way.", print_bytes(bytes)));
}

// ---- hops between hosts ------------------------------------------------------------------------

int64_t count_hops(const PlanIndex& plan, bool only_outer) {
  int64_t hops = 0;
  for (const TransferItem& item : plan.plan().forward.transfers) {
    if (to_index(item.dst) != 0 || item.link == LinkClass::self) continue;
    hops += only_outer ? item.link == LinkClass::outer_ring : 1;
  }
  return hops;
}

double hops_between_hosts(const AppState& state) {
  return static_cast<double>(count_hops(*state.plan(), true));
}

void hint_hops_between_hosts(CaptionWriter& writer, const AppState&) {
  const Scenario& scenario = writer.plan().scenario;
  writer.say(fmt::format(
      "{} stand in hosts of {}. Keys go round inside a host first, and then once to the next one.",
      count_text(scenario.parallel.cp_size, "rank"), scenario.parallel.ring_window));
}

void explain_hops_between_hosts(CaptionWriter& writer, const AppState&) {
  const PlanIndex& plan = writer.index();
  writer.say(fmt::format("{} of {}: the slow wire is used once for every {} inside a host.",
                         count_hops(plan, true), count_text(count_hops(plan, false), "hop"),
                         count_text(writer.plan().scenario.parallel.ring_window - 1, "hop")));
}

std::vector<Mistake> mistakes_of_hops(const AppState& state) {
  return {{static_cast<double>(count_hops(*state.plan(), false)),
           "Those are all hops. Most of them stay inside the host."},
          {static_cast<double>(state.plan()->plan().scenario.parallel.ring_window),
           "Each rank of a host has one such link, but a rank receives only over its own."}};
}

// ---- bytes of grouped heads --------------------------------------------------------------------

double heads_for_a_kv_head(const AppState& state) {
  const Attention& attention = state.plan()->plan().scenario.attention;
  return static_cast<double>(attention.heads) / attention.kv_heads;
}

void hint_heads(CaptionWriter& writer, const AppState&) {
  const Attention& attention = writer.plan().scenario.attention;
  writer.say(fmt::format("there are {} and {}, and a ring sends keys and values by KV head.",
                         count_text(attention.heads, "query head"),
                         count_text(attention.kv_heads, "KV head")));
}

void explain_heads(CaptionWriter& writer, const AppState& state) {
  const PlanIndex& plan = writer.index();
  const int64_t now = bytes_of_sender(plan, Payload::kv);
  writer.rank(sender_of(plan), true)
      .say(fmt::format(" sends {} of keys and values in the forward; it would be {}.",
                       print_bytes(now),
                       print_bytes(static_cast<double>(now) * heads_for_a_kv_head(state))));
}

std::vector<Mistake> mistakes_of_heads_ratio(const AppState& state) {
  return {{1, "Keys and values are sent by KV head, so their number counts."},
          {static_cast<double>(state.plan()->plan().scenario.attention.heads),
           "That is the number of query heads. How many KV heads travel now?"}};
}

// ---- bytes of 8-bit numbers --------------------------------------------------------------------

double percent_of_bf16(const AppState& state) {
  const Plan& plan = state.plan()->plan();
  const Attention& attention = plan.scenario.attention;
  double bytes = 0, elements = 0;
  for (const TransferItem& item : plan.forward.transfers) {
    if (item.payload != Payload::kv || item.link == LinkClass::self) continue;
    bytes += static_cast<double>(item.bytes);
    elements += static_cast<double>(count_ids(plan.layout.kv_runs[item.src])) * attention.kv_heads *
                lanes_of(BufferKind::kv, attention);
  }
  return elements > 0 ? 100 * bytes / (2 * elements) : 0;
}

void hint_percent_of_bf16(CaptionWriter& writer, const AppState&) {
  writer.say(
      fmt::format("an element of {} has two bytes, a code has one. The scales of q, k, v "
                  "and d_out are a "
                  "few numbers for all ranks.",
                  to_name(Dtype::bf16)));
}

void explain_percent_of_bf16(CaptionWriter& writer, const AppState& state) {
  const int64_t bytes = bytes_of_sender(writer.index(), Payload::kv);
  writer.rank(sender_of(writer.index()), true)
      .say(fmt::format(" sends {} of keys and values in the forward, and would send {} in {}.",
                       print_bytes(bytes),
                       print_bytes(100 * static_cast<double>(bytes) / percent_of_bf16(state)),
                       to_name(Dtype::bf16)));
}

std::vector<Mistake> mistakes_of_percent_of_bf16(const AppState&) {
  return {{100, "Then nothing would be saved: keys and values travel as codes of one byte."},
          {25, "That would be half a byte an element."}};
}

}  // namespace

namespace words {

void ask_ranks_of_document(CaptionWriter& writer, const AppState&) {
  const LongestDocument longest = longest_of_last_round(writer.plan());
  writer.say(
      fmt::format("Predict: which ranks share sequence {}, the longest document of the last round "
                  "({} tokens)? Click them.",
                  longest.sequence, print_count(longest.tokens)));
}

void ask_bytes_of_queries(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: how much does ")
      .rank(sender_of(writer.index()))
      .say(" send in the forward, where queries travel and keys stay?");
}

void ask_receivers_of_partials(CaptionWriter& writer, const AppState&) {
  const PlanIndex& plan = writer.index();
  writer.say("Predict: ")
      .rank(sender_of(plan))
      .say(" sends its first partial results in ")
      .step(std::max(0, first_step_of_partials(plan)))
      .say(". Which rank receives them? Click it.");
}

void ask_hops_between_hosts(CaptionWriter& writer, const AppState&) {
  writer.say("Predict: how many of the hops that bring keys to ")
      .rank(0)
      .say(" in the forward come from another host?");
}

void ask_heads_for_a_kv_head(CaptionWriter& writer, const AppState&) {
  writer.say(
      "Predict: if every query head had keys of its own, how many times as many bytes of keys and "
      "values would travel?");
}

void ask_percent_of_bf16(CaptionWriter& writer, const AppState&) {
  writer.say(fmt::format(
      "Predict: how many percent of the bytes that keys and values have in {} are on the wire?",
      to_name(Dtype::bf16)));
}

}  // namespace words

const Question kRanksOfDocument{.kind = AnswerKind::ranks,
                                .hint = hint_ranks_of_document,
                                .explain = explain_ranks_of_document,
                                .ranks = ranks_of_document,
                                .why_not = why_not_of_document};
const Question kBytesOfQueries{.kind = AnswerKind::bytes,
                               .hint = hint_bytes_of_queries,
                               .explain = explain_bytes_of_queries,
                               .number = bytes_of_queries,
                               .mistakes = mistakes_of_bytes_of_queries};
const Question kReceiversOfPartials{.kind = AnswerKind::ranks,
                                    .hint = hint_receivers_of_partials,
                                    .explain = explain_receivers_of_partials,
                                    .ranks = receivers_of_partials,
                                    .why_not = why_not_receiver};
const Question kHopsBetweenHosts{.kind = AnswerKind::count,
                                 .hint = hint_hops_between_hosts,
                                 .explain = explain_hops_between_hosts,
                                 .number = hops_between_hosts,
                                 .mistakes = mistakes_of_hops};
const Question kHeadsForAKvHead{.kind = AnswerKind::ratio,
                                .hint = hint_heads,
                                .explain = explain_heads,
                                .number = heads_for_a_kv_head,
                                .mistakes = mistakes_of_heads_ratio};
const Question kPercentOfBf16{.kind = AnswerKind::percent,
                              .hint = hint_percent_of_bf16,
                              .explain = explain_percent_of_bf16,
                              .number = percent_of_bf16,
                              .mistakes = mistakes_of_percent_of_bf16};

}  // namespace cpscope::gui
