#include "gui/app/lesson_figures.h"
#include "gui/app/lesson_words.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "sim/plan/local_keys.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

// Lessons of groups of ranks that work in rounds, and of decoders.

namespace cpscope::gui::words {
namespace {

/// Writes "ranks 0 to 3 share sequence 2" for each group of a round.
void tell_groups(CaptionWriter& writer, const CpRound& round) {
  writer.list(round.groups, [](CaptionWriter& to, const CpGroup& group) {
    const std::string sequences =
        fmt::format("{} {}", group.sequences.size() == 1 ? "sequence" : "sequences",
                    fmt::join(group.sequences, ", "));
    if (group.size == 1) {
      to.rank(group.first_rank).say(" has " + sequences);
    } else {
      to.rank(group.first_rank)
          .say(" to ")
          .rank(group.first_rank + group.size - 1)
          .say(" share " + sequences);
    }
  });
}

int64_t bytes_of(const Pass& pass, Payload payload) {
  int64_t bytes = 0;
  for (const TransferItem& item : pass.transfers) bytes += item.payload == payload ? item.bytes : 0;
  return bytes;
}

}  // namespace

void sizes_follow_lengths(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  if (plan.layout.rounds.empty()) {
    writer.say("All ranks share every document of this plan.");
    return;
  }
  const std::vector<int64_t>& lengths = plan.scenario.batch.lengths;
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  writer.say(fmt::format(
      "{} of {} to {} tokens on {}. If all ranks shared each of them, the short ones would be cut "
      "into pieces of a few tokens, which travel round the whole ring. Here a rank holds at most "
      "{} tokens of one document, so each gets the smallest power of two of ranks that is enough "
      "(Megatron's hybrid context parallelism). In the first round ",
      count_text(std::ssize(lengths), "document"), print_count(*least), print_count(*most),
      count_text(plan.layout.cp_size, "rank"),
      print_count(plan.scenario.parallel.max_tokens_per_rank)));
  tell_groups(writer, plan.layout.rounds.front());
  writer.say(".");
}

void groups_work_alone(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  if (plan.layout.rounds.empty()) {
    writer.say("All ranks share every document of this plan.");
    return;
  }
  const CpRound& round = plan.layout.rounds.back();
  writer.say(fmt::format("Round {} of {}: ", plan.layout.rounds.size(), plan.layout.rounds.size()));
  tell_groups(writer, round);
  const auto alone = std::count_if(round.groups.begin(), round.groups.end(),
                                   [](const CpGroup& group) { return group.size == 1; });
  writer.say(fmt::format(
      ". Each group has a ring of its own, and no row leaves it, which the proof checks; {} alone, "
      "and send nothing.",
      alone == 1 ? "one rank is" : fmt::format("{} ranks are", alone)));
}

void rounds_wait(CaptionWriter& writer, const AppState&) {
  writer.say(
      "A round begins on all ranks together, so each waits for the slowest group of the round "
      "before. The scheduler fills rounds longest first and doubles groups until no rank is "
      "idle. ");
  tell_balance(writer);
}

void decoder_sends(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const std::vector<int64_t>&queries = plan.scenario.batch.lengths,
        &keys = plan.scenario.batch.kv_lengths;
  const auto sum = [](const std::vector<int64_t>& all) {
    return std::accumulate(all.begin(), all.end(), int64_t{0});
  };
  writer.say(fmt::format(
      "A decoder: {} of queries and {} in its caches, split over {} in blocks of {}. Queries go to "
      "every rank "
      "({} in all), each computes with the keys that it has, and partial results come back ({}), "
      "to be merged by their lse. Neither grows with the caches.",
      count_text(sum(queries), "row"), count_text(sum(keys), "key"),
      count_text(plan.layout.cp_size, "rank"), count_text(plan.scenario.parallel.stripe, "token"),
      print_bytes(bytes_of(plan.forward, Payload::q)),
      print_bytes(bytes_of(plan.forward, Payload::partial))));
}

void drafts_see(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const Result<std::vector<LocalKeys>> counts = count_local_keys(plan.scenario, plan.layout);
  if (!counts) return;
  writer.say("What a draft may see: ");
  std::vector<LocalKeys> drafts = counts.value();
  std::erase_if(drafts, [](const LocalKeys& one) { return one.sequence != 0; });
  writer.list(drafts, [](CaptionWriter& to, const LocalKeys& one) {
    to.say(fmt::format("draft {} sees {} keys of the ranks", one.query + 1,
                       fmt::join(one.keys, " + ")));
  });
  writer.say(
      ". Each draft has a length of its own on each rank. A kernel that masks them against the "
      "number of keys that its rank holds, as if they were the last ones, hides keys that a draft "
      "must see: in the fault gallery that is drafts_masked_by_local_length.");
}

void lse_of_base_two(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const Result<std::vector<LocalKeys>> counts = count_local_keys(plan.scenario, plan.layout);
  if (!counts || counts.value().empty()) return;
  // The query whose keys are shared most unevenly shows most.
  const auto spread = [](const LocalKeys& one) {
    const auto [least, most] = std::minmax_element(one.keys.begin(), one.keys.end());
    return static_cast<double>(*most) / static_cast<double>(std::max<int64_t>(1, *least));
  };
  const LocalKeys& query = *std::max_element(
      counts.value().begin(), counts.value().end(),
      [&](const LocalKeys& a, const LocalKeys& b) { return spread(a) < spread(b); });
  // Logits that are all zero make the lse of a rank the logarithm of its number of keys.
  const auto shares = [&](double power) {
    double sum = 0;
    for (const int64_t keys : query.keys)
      if (keys > 0) sum += std::pow(static_cast<double>(keys), power);
    std::vector<std::string> all;
    for (const int64_t keys : query.keys)
      all.push_back(print_share(keys > 0 ? std::pow(static_cast<double>(keys), power) / sum : 0.0));
    return std::pair(fmt::format("{}", fmt::join(all, " + ")), std::log(sum));
  };
  const double power = 1 / std::log(2.0);
  const auto [right, right_lse] = shares(1);
  const auto [wrong, wrong_lse] = shares(power);
  writer.say(fmt::format(
      "Some decoding kernels return lse as a logarithm to base two. Merged as if it were natural, "
      "a rank weighs as much as its sum of weights to the power of {:.2f}. An example: query {} of "
      "sequence {} sees {} keys of the ranks. If all logits were zero, out would be {} of their "
      "results, and lse {:.2f}. With the wrong base out is {} of them, and lse {:.2f}. The more "
      "evenly the keys are split, the less out shows it: compare lse too.",
      power, query.query, query.sequence, fmt::join(query.keys, " + "), right, right_lse, wrong,
      wrong_lse));
  for (const Fault& fault : fault_catalogue())
    if (fault.name == "merged_with_lse_of_another_base")
      writer.say(fmt::format(" In the fault gallery this is {}.", fault.name));
}

}  // namespace cpscope::gui::words
