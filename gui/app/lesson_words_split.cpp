#include "gui/app/lesson_figures.h"
#include "gui/app/lesson_words.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui::words {
namespace {

/// Tiles that are not full, in the first step of the forward and in all later ones.
std::pair<int64_t, int64_t> count_masked_tiles(const Plan& plan) {
  std::pair<int64_t, int64_t> tiles{0, 0};
  for (const ComputeItem& item : plan.forward.computes) {
    for (const BandSlice& slice : plan.slices_of(item)) {
      if (is_full(slice)) continue;
      ++(to_index(item.step) == 0 ? tiles.first : tiles.second);
    }
  }
  return tiles;
}

}  // namespace

void tokens_are_split(CaptionWriter& writer, const AppState&) {
  const Layout& layout = writer.plan().layout;
  writer.say(fmt::format(
      "A long sequence does not fit on one device, so it is cut. Here are {}, few enough to draw: "
      "each of {} holds the queries, keys and values of its own part. ",
      count_text(writer.index().tokens(Side::q), "token"), count_text(layout.cp_size, "rank")));
  writer.rank(0, true).say(" owns ").runs(layout.q_runs.front(), Side::q);
  writer.say(". All other layers work on single tokens and are not affected.");
}

void pairs_cross_ranks(CaptionWriter& writer, const AppState&) {
  const PlanIndex& index = writer.index();
  const int32_t heads = writer.plan().scenario.attention.heads;
  const int64_t all = index.summary().visible_pairs / heads;
  int64_t local = 0;
  const auto owned = index.owned(Side::q);
  for (const OwnedRun& q : owned) {
    for (const OwnedRun& k : index.owned(Side::kv)) {
      if (q.rank == k.rank)
        local += index.count_visible(q.run.begin, q.run.end, k.run.begin, k.run.end);
    }
  }
  writer.say(
      fmt::format("The mask leaves {} pairs of a query and a key, and only {} of them ({}) "
                  "have both ends on one rank. For all others something must travel: keys and "
                  "values, or queries, or heads. That is context parallelism.",
                  print_count(all), print_count(local), print_share(local, all)));
}

void first_step_is_even(CaptionWriter& writer, const AppState&) {
  const auto& first = writer.index().summary().pairs_by_step_rank.front();
  writer.say(
      fmt::format("Cut in contiguous parts. In the first step every rank attends its own "
                  "tokens to themselves, a triangle of {} (query, key, head) triples each. "
                  "Then the keys begin to travel.",
                  print_count(first.front())));
}

void later_steps_idle(CaptionWriter& writer, const AppState& state) {
  const int32_t number = step_of(*state.plan(), state.playhead);
  const StepRef& step = writer.index().steps()[static_cast<size_t>(number)];
  writer.say(
      "Under a causal mask no query sees a key that comes later, so a rank has nothing to do "
      "with the keys of ranks behind it. ");
  if (step.direction == Direction::forward) {
    const auto& pairs = writer.index().summary().pairs_by_step_rank[static_cast<size_t>(step.step)];
    std::vector<int32_t> idle;
    for (size_t r = 0; r < pairs.size(); ++r) {
      if (pairs[r] == 0) idle.push_back(static_cast<int32_t>(r));
    }
    writer.say("In ").step(number).say(" these idle: ");
    if (idle.empty())
      writer.say("no rank");
    else
      writer.ranks(idle);
    writer.say(".");
  }
}

void idle_costs(CaptionWriter& writer, const AppState&) {
  const auto& pairs = writer.index().summary().pairs_by_rank;
  const auto [idle, all] = count_idle(writer.plan().forward);
  const auto most = std::max_element(pairs.begin(), pairs.end());
  const auto least = std::min_element(pairs.begin(), pairs.end());
  writer.say(
      fmt::format("Of {} (step, rank) places {} are idle. ", print_count(all), print_count(idle)));
  writer.rank(static_cast<int32_t>(most - pairs.begin()), true)
      .say(fmt::format(" computes {} triples, ", print_count(*most)));
  writer.rank(static_cast<int32_t>(least - pairs.begin()))
      .say(fmt::format(" only {}. ", print_count(*least)));
  tell_balance(writer);
}

void zigzag_chunks(CaptionWriter& writer, const AppState&) {
  const Layout& layout = writer.plan().layout;
  writer.say(
      "Twice as many chunks as ranks: each rank owns one from the front and its mirror image "
      "from the back. ");
  writer.rank(0, true).say(" owns ").runs(layout.q_runs.front(), Side::q).say(", ");
  const int32_t last = layout.cp_size - 1;
  writer.rank(last).say(" owns ").runs(layout.q_runs.back(), Side::q);
  writer.say(". A front chunk sees few keys, a back chunk many; the sum is the same.");
}

void zigzag_balance(CaptionWriter& writer, const AppState&) {
  const PlanSummary& summary = writer.index().summary();
  const auto& step = summary.pairs_by_step_rank.back();
  const auto [least, most] = std::minmax_element(step.begin(), step.end());
  writer.say("In the last step every rank computes ");
  writer.say(*least == *most ? print_count(*most)
                             : "between " + print_count(*least) + " and " + print_count(*most));
  const auto [first, later] = count_masked_tiles(writer.plan());
  writer.say(
      fmt::format(" triples: all queries against half of the keys, or half of the queries "
                  "against all. {} of the first step need a mask, {} of all later ones. ",
                  count_text(first, "tile"), print_count(later)));
  tell_balance(writer);
}

void zigzag_undone(CaptionWriter& writer, const AppState&) {
  writer.say("The layout alone makes the difference: mask, bytes and answer stay the same. ");
  tell_balance(writer);
}

void stripes(CaptionWriter& writer, const AppState&) {
  const Layout& layout = writer.plan().layout;
  writer.say("Or assign the tokens to the ranks round-robin. ");
  writer.rank(0, true).say(" owns ").runs(layout.q_runs.front(), Side::q);
  writer.say(
      fmt::format(", {} in all, from everywhere in the sequence, so its share of work is "
                  "even. ",
                  count_text(count_ids(layout.q_runs.front()), "token")));
  tell_balance(writer);
}

void stripe_tiles(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  int64_t tiles = 0, full = 0;
  for (const ComputeItem& item : plan.forward.computes) {
    tiles += item.num_slices;
    for (const BandSlice& slice : plan.slices_of(item)) full += is_full(slice) ? 1 : 0;
  }
  writer.say(
      fmt::format("The cost: every pair of ranks has work near the diagonal. Of {} slices only "
                  "{} are unmasked, so kernels must apply the mask almost everywhere. ",
                  print_count(tiles), print_count(full)));
  tell_kv_share(writer);
}

}  // namespace cpscope::gui::words
