#include "gui/app/lesson_figures.h"
#include "gui/app/lesson_words.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/numbers/error_scale.h"
#include "gui/model/token_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui::words {
namespace {

/// The allowed error; nothing where there is no budget.
std::string name_budget(const ErrorField& field) {
  if (!field.has_budget()) return "";
  return ", and the budget allows " + print_error(field.budget);
}

/// Steps in which something is sent.
int64_t count_sending_steps(const Pass& pass) {
  std::vector<bool> sends(static_cast<size_t>(pass.num_steps));
  for (const TransferItem& item : pass.transfers)
    sends[static_cast<size_t>(to_index(item.step))] = true;
  return std::count(sends.begin(), sends.end(), true);
}

/// Partial results that the focus rank merges in the forward.
int64_t count_parts(const AppState& state) {
  const auto& merges = state.plan()->plan().forward.merges;
  return std::count_if(merges.begin(), merges.end(), [&](const MergeItem& item) {
    return to_index(item.rank) == state.focus_rank && item.partial != kNoBuffer;
  });
}

/// The first query of the last run that a rank owns, and how many keys it sees in each part.
std::pair<int64_t, std::vector<int64_t>> keys_of_one_query(const PlanIndex& index, int32_t rank) {
  const Plan& plan = index.plan();
  int64_t query = -1;
  std::vector<int64_t> keys;
  for (const ComputeItem& item : plan.forward.computes) {
    if (to_index(item.rank) != rank || item.num_slices == 0) continue;
    const TokenRun& last = plan.list(item.q_tokens).back();
    const int64_t row = plan.rows(item.q_tokens) - last.count();
    query = last.begin;
    int64_t seen = 0;
    for (const BandSlice& slice : plan.slices_of(item)) {
      if (row < slice.q0 || row >= slice.q1) continue;
      const auto [begin, end] = columns_of_row(slice, row);
      seen += std::max<int64_t>(0, end - begin);
    }
    keys.push_back(seen);
  }
  return {query, keys};
}

}  // namespace

void ring_moves(CaptionWriter& writer, const AppState&) {
  const int32_t steps = writer.plan().forward.num_steps;
  writer.say(fmt::format(
      "Ring: in {} of {} every rank passes keys and values on to its neighbour while it "
      "computes with what it has, so that the wire is hidden; the last step needs no "
      "more keys. ",
      count_sending_steps(writer.plan().forward), count_text(steps, "step")));
  tell_sent(writer, 0);
  tell_kv_share(writer);
}

void all_gather_moves(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  int64_t rows = 0;
  for (const BufferSpec& buffer : plan.buffers) {
    if (buffer.kind == BufferKind::kv && buffer.role == BufferRole::sequence_order)
      rows = std::max(rows, buffer.rows);
  }
  writer.say(
      fmt::format("All-gather: the same bytes in {} step, before anything is computed. Every "
                  "rank then holds all {} keys at once: simple, but memory grows with the "
                  "sequence. ",
                  plan.forward.num_steps, print_count(rows)));
  tell_sent(writer, 0);
  tell_kv_share(writer);
}

void all_to_all_moves(CaptionWriter& writer, const AppState&) {
  const ComputeItem& item = writer.plan().forward.computes.front();
  writer.say(fmt::format(
      "All-to-all redistributes heads instead of sending keys and values to the queries. Each "
      "rank gets {} for {}, queries and keys, and sends its outputs back. ",
      count_text(writer.plan().rows(item.q_tokens), "token"),
      count_text(item.heads.size(), "head")));
  tell_sent(writer, 0);
  tell_kv_share(writer);
}

void group_cast_moves(CaptionWriter& writer, const AppState&) {
  writer.say(
      "Group-cast: every rank is sent only the keys and values that its queries see, row by "
      "row, in one exchange. ");
  tell_sent(writer, 0);
  tell_kv_share(writer);
}

void rows_arrive_by_rank(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const TransferItem& first = plan.forward.transfers.front();
  writer.say(fmt::format("All-to-all fills a buffer of {} in rank order: {} of ",
                         count_text(plan.buffer(first.to).rows, "row"),
                         print_count(plan.buffer(first.from).rows)));
  writer.rank(to_index(first.src)).say(", then the next rank's. ");
  writer.say(
      "Since ranks own chunks from several places, neighbours in this buffer are no "
      "neighbours in the sequence, and a causal mask would be in pieces.");
}

void rows_in_sequence(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const ReorderItem& item = plan.forward.reorders.front();
  writer.say(
      fmt::format("The first reorder gathers {} in {} into sequence order. Now the mask is a "
                  "plain one: this rank computes it in {}.",
                  count_text(plan.rows(item.order), "row"),
                  count_text(static_cast<int64_t>(plan.list(item.order).size()), "run"),
                  count_text(plan.forward.computes.front().num_slices, "tile")));
  // The first row that moves.
  const auto runs = plan.list(item.order);
  if (runs.size() < 2) return;
  const int64_t row = runs.front().count();
  writer.say(fmt::format(" Row {} in sequence order, for example, is row {} of what arrived.",
                         print_count(row), print_count(runs[1].begin)));
}

void rows_go_back(CaptionWriter& writer, const AppState&) {
  const Plan& plan = writer.plan();
  const ReorderItem& item = plan.forward.reorders.back();
  writer.say(
      fmt::format("The second reorder is the inverse: {} of outputs back in rank order, in {}, "
                  "so that each owner's rows lie together to be sent. Leave one of the two "
                  "out, and every number is right but in the wrong row.",
                  count_text(plan.rows(item.order), "row"),
                  count_text(static_cast<int64_t>(plan.list(item.order).size()), "run")));
}

void padding_fills_slots(CaptionWriter& writer, const AppState&) {
  const PlanIndex& index = writer.index();
  const auto& sequences = writer.plan().layout.slots.sequences;
  const SlotSide first = sequences.front().side(Side::q);
  const TokenRun padding = first.front > 0 ? TokenRun{first.begin, first.valid_begin(), 1}
                                           : TokenRun{first.valid_end(), first.end(), 1};
  writer.say(
      fmt::format("Sequence lengths are rarely divisible as the layout requires, so each sequence "
                  "is padded to a slot. The "
                  "first has {} in a slot of {}: ",
                  count_text(first.valid, "token"), print_count(first.slot)));
  if (padding.count() > 0)
    writer.tokens(padding, Side::q).say(" is padding. ");
  else
    writer.say("none is padding. ");
  writer.say(fmt::format("In all {} of {} rows belong to no token.",
                         print_count(count_padding(index, Side::q)),
                         print_count(index.tokens(Side::q))));
}

void padding_is_unseen(CaptionWriter& writer, const AppState&) {
  const Attention& attention = writer.plan().scenario.attention;
  const int64_t padding = count_padding(writer.index(), Side::kv);
  TransferItem row;
  row.payload = Payload::kv;
  const int64_t row_bytes = int64_t{attention.kv_heads} * lanes_of(BufferKind::kv, attention) *
                            wire_element_bytes(row, writer.plan().scenario);
  writer.say(
      fmt::format("Padding travels like everything else: {} rows x {} bytes = {} a step. But no "
                  "slice covers it: it may hold garbage, even NaN, and must not touch any "
                  "answer. A kernel that multiplies a NaN by a weight of zero writes NaN; "
                  "a run with padding full of NaN detects that.",
                  print_count(padding), print_count(row_bytes), print_bytes(padding * row_bytes)));
}

void padding_by_rank(CaptionWriter& writer, const AppState&) {
  const PlanIndex& index = writer.index();
  writer.say(
      "Padding sits at the end of each slot, so ranks have different numbers of valid rows: ");
  const size_t ranks = std::min<size_t>(writer.plan().layout.q_runs.size(), 8);
  writer.series(ranks, ranks, [&](size_t r) {
    const RankId rank{static_cast<int32_t>(r)};
    int64_t valid = 0;
    for (const TokenRun& run : writer.plan().layout.q_runs[rank])
      valid += count_valid(index, Side::q, run);
    writer.rank(to_index(rank)).say(fmt::format(" has {}", print_count(valid)));
  });
  writer.say(
      ". A kernel that is told one length for all ranks reads rows that no token owns, or loses "
      "some.");
}

void parts_begin(CaptionWriter& writer, const AppState& state) {
  writer.rank(state.focus_rank, true)
      .say(fmt::format(
          " sees its keys in {}, one a step. Each gives a partial result: out, normalised "
          "over the keys of this part alone, and lse, the log of the sum of their "
          "weights.",
          count_text(count_parts(state), "part")));
}

void parts_merge(CaptionWriter& writer, const AppState& state) {
  writer.say(
      "Two parts a and b are merged by their lse. With m = max(lse_a, lse_b), w_a = exp(lse_a - m) "
      "and w_b = exp(lse_b - m): out = (w_a out_a + w_b out_b) / (w_a + w_b), and lse = m + "
      "log(w_a + w_b). No exponent is positive, so nothing overflows. ");
  const auto [query, keys] = keys_of_one_query(writer.index(), state.focus_rank);
  if (keys.size() < 2 || keys[0] == 0 || keys[1] == 0) return;
  // Logits that are all zero make the lse of a part the log of its number of keys.
  const auto a = static_cast<double>(keys[0]), b = static_cast<double>(keys[1]);
  const double m = std::log(std::max(a, b));
  writer.say("An example: ")
      .word("query " + print_count(query), TokenRange{Side::q, query, query + 1})
      .say(fmt::format(
          " sees {} keys in the first part and {} in the second. If all logits were zero, lse_a "
          "would be {:.2f}, lse_b {:.2f}, so w_a = {:.2f}, w_b = {:.2f}, and out is {} of out_a "
          "and {} of out_b.",
          print_count(keys[0]), print_count(keys[1]), std::log(a), std::log(b),
          std::exp(std::log(a) - m), std::exp(std::log(b) - m), print_share(a / (a + b)),
          print_share(b / (a + b))));
}

void parts_finish(CaptionWriter& writer, const AppState& state) {
  const Numerics& numerics = writer.plan().scenario.numerics;
  writer.say(fmt::format(
      "Until here the sums are kept in {}, then they are rounded to {}, once. ",
      numerics.accumulate == Accumulate::fp32 ? "fp32 or wider" : to_name(numerics.dtype),
      to_name(numerics.dtype)));
  writer.say(
      fmt::format("Rounding after each of {} would cost accuracy at every step. The order "
                  "of merges is fixed, so that two runs agree bit by bit.",
                  count_text(std::max<int64_t>(0, count_parts(state) - 1), "merge")));
}

void run_something(CaptionWriter& writer, const AppState&) {
  const Scenario& scenario = writer.plan().scenario;
  writer.say(
      fmt::format("An executor carries out the plan in {}, an oracle computes the whole "
                  "attention in fp64 without any plan. What differs is rounding, or a bug. "
                  "{} rows of {} are compared.",
                  to_name(scenario.numerics.dtype), print_count(writer.index().tokens(Side::q)),
                  count_text(scenario.attention.heads, "head")));
}

void error_map(CaptionWriter& writer, const AppState& state) {
  const RunView* run = view_input(state, ViewKind::numbers).run_a;
  if (run == nullptr || run->errors.empty()) {
    writer.say("Run the plan first: the map shows |seen - expected| for each token and head.");
    return;
  }
  const ErrorField& field = run->errors.front();
  writer.say(
      fmt::format("Each cell is a token and a head of {}: how far the row is off. Together "
                  "they are {} of the whole{}. ",
                  field.name, print_error(field.rel_l2), name_budget(field)));
  if (!field.worst.empty()) {
    const WorstRow& worst = field.worst.front();
    writer.say("Worst is ")
        .word(fmt::format("token {}, head {}", print_count(worst.token), worst.head),
              RowTarget{0, worst.token, worst.head});
    const auto [seen, expected] = print_apart(worst.seen, worst.expected);
    writer.say(fmt::format(" with {} where {} is right. ", seen, expected));
  }
  writer.say(
      "Rounding looks like even noise. Stripes along tokens point at a chunk, a whole column "
      "at a head, a corner at the mask.");
}

void error_of_lse(CaptionWriter& writer, const AppState& state) {
  const RunView* run = view_input(state, ViewKind::numbers).run_a;
  const auto t = static_cast<size_t>(state.tensor);
  if (run == nullptr || t >= run->errors.size()) {
    writer.say("Run the plan first, then compare its tensors.");
    return;
  }
  const ErrorField& field = run->errors[t];
  writer.say(
      fmt::format("Now {}: {} of the whole{}. If out is wrong and lse is right, the keys "
                  "were found but the values were not; if both are wrong, look at the mask; if "
                  "only gradients are, at what travels back.",
                  field.name, print_error(field.rel_l2), name_budget(field)));
}

void window_on_ring(CaptionWriter& writer, const AppState&) {
  const Attention& attention = writer.plan().scenario.attention;
  writer.say(
      fmt::format("A sliding window: each query sees at most {}. The ring still sends all "
                  "keys and values to all ranks. ",
                  count_text(attention.window_left + 1, "key")));
  tell_kv_share(writer);
  writer.say(" ");
  tell_balance(writer);
}

void window_apart(CaptionWriter& writer, const AppState&) {
  const auto& steps = writer.index().summary().pairs_by_step_rank;
  const auto& pairs = steps[std::min<size_t>(1, steps.size() - 1)];
  const auto least = std::min_element(pairs.begin(), pairs.end());
  const auto most = std::max_element(pairs.begin(), pairs.end());
  writer.say(
      "With dual chunks, tokens on the two sides of a chunk border belong to different "
      "ranks. In the second step ");
  writer.rank(static_cast<int32_t>(least - pairs.begin()))
      .say(fmt::format(" computes {} triples and ", print_count(*least)));
  writer.rank(static_cast<int32_t>(most - pairs.begin()))
      .say(fmt::format(" {}, and all wait for the slowest. ", print_count(*most)));
  tell_balance(writer);
}

void window_contiguous(CaptionWriter& writer, const AppState&) {
  writer.say(
      "With contiguous chunks a window reaches only the neighbouring rank: dual chunks are not "
      "needed for balance, and few rows must be sent. ");
  tell_kv_share(writer);
  writer.say(" ");
  tell_balance(writer);
}

void chunks_on_ring(CaptionWriter& writer, const AppState&) {
  const auto [idle, all] = count_idle(writer.plan().forward);
  writer.say(fmt::format(
      "Attention chunks: queries see only keys of their own chunk of {}. Where a border of the "
      "layout cuts a chunk, a narrow tile remains in a later step; ",
      count_text(writer.plan().scenario.attention.chunk_size, "token")));
  writer.say(idle == 0
                 ? fmt::format("each of {} (step, rank) places has some work. ", print_count(all))
                 : fmt::format("of {} (step, rank) places {} no work at all. ", print_count(all),
                               idle == 1 ? "one has" : print_count(idle) + " have"));
  tell_kv_share(writer);
}

}  // namespace cpscope::gui::words
