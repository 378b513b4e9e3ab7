#include "gui/app/caption/caption_writer.h"
#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "gui/model/item_words.h"
#include "gui/model/token_parts.h"
#include "sim/plan/band.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// How a run of queries and a run of keys meet, or why they do not.
enum class Meeting : uint8_t {
  full,     // every pair of valid tokens
  partial,  // some pairs of valid tokens
  later,    // the keys come after the queries
  other_sequence,
  only_padding,  // one of the runs has no valid token
  window,
  chunk,
  hidden  // by mask slices, or otherwise
};

/// Why a meeting has no visible pair.
std::string_view explain_hidden(Meeting meeting) {
  constexpr std::string_view kWords[] = {"",
                                         "",
                                         "the keys are after the queries (causal mask)",
                                         "they belong to different sequences",
                                         "one side is padding",
                                         "they lie outside the window",
                                         "they lie in different attention chunks",
                                         "the mask hides them"};
  return kWords[static_cast<size_t>(meeting)];
}

/// One run of a query buffer against one run of a key buffer.
struct RunPair {
  TokenRun q, k;
  int64_t pairs = 0;  // visible pairs of one head
  int64_t cells = 0;  // pairs of valid tokens
  Meeting meeting = Meeting::hidden;
};

/// The parts of a run that have valid tokens.
std::vector<SequencePart> valid_parts(const PlanIndex& index, const TokenRun& run, Side side) {
  std::vector<SequencePart> parts = sequence_parts(index, side, run);
  std::erase_if(parts, [](const SequencePart& part) { return part.valid.count() == 0; });
  return parts;
}

int64_t count_tokens(const std::vector<SequencePart>& parts) {
  int64_t count = 0;
  for (const SequencePart& part : parts) count += part.valid.count();
  return count;
}

bool is_causal(MaskType type) {
  return type == MaskType::causal || type == MaskType::padding_causal ||
         type == MaskType::causal_bottom_right || type == MaskType::padding_causal_bottom_right;
}

/// By how many keys the diagonal of a sequence is shifted to the right.
int64_t diagonal_of(const Attention& attention, const SequenceSlot& s) {
  const bool is_bottom_right = attention.mask_type == MaskType::causal_bottom_right ||
                               attention.mask_type == MaskType::padding_causal_bottom_right;
  return is_bottom_right ? s.kv_valid - s.q_valid : 0;
}

Meeting find_reason(const PlanIndex& index, const std::vector<SequencePart>& q,
                    const std::vector<SequencePart>& k) {
  const Attention& attention = index.plan().scenario.attention;
  if (q.empty() || k.empty()) return Meeting::only_padding;
  bool share_sequence = false, all_later = true;
  for (const SequencePart& a : q) {
    for (const SequencePart& b : k) {
      if (a.sequence != b.sequence) continue;
      share_sequence = true;
      const SequenceSlot& s = index.plan().layout.slots.sequences[static_cast<size_t>(a.sequence)];
      const int64_t last_query = a.valid.last() - s.q_valid_begin() + diagonal_of(attention, s);
      all_later = all_later && b.valid.begin - s.kv_valid_begin() > last_query;
    }
  }
  if (attention.mask_type == MaskType::slices) return Meeting::hidden;
  if (!share_sequence) return Meeting::other_sequence;
  if (is_causal(attention.mask_type) && all_later) return Meeting::later;
  if (attention.chunk_size > 0) return Meeting::chunk;
  if (attention.window_left >= 0 || attention.window_right >= 0) return Meeting::window;
  return Meeting::hidden;
}

/// All pairs of a run of the item's queries and a run of its keys.
std::vector<RunPair> list_pairs(const PlanIndex& index, const ComputeItem& item) {
  const Plan& plan = index.plan();
  std::vector<RunPair> pairs;
  int64_t q_row = 0;
  for (const TokenRun& q : plan.list(item.q_tokens)) {
    const std::vector<SequencePart> q_parts = valid_parts(index, q, Side::q);
    int64_t k_row = 0;
    for (const TokenRun& k : plan.list(item.kv_tokens)) {
      const std::vector<SequencePart> k_parts = valid_parts(index, k, Side::kv);
      RunPair pair{q, k};
      for (const BandSlice& slice : plan.slices_of(item))
        pair.pairs +=
            count_pairs_in_tile(slice, q_row, q_row + q.count(), k_row, k_row + k.count());
      pair.cells = count_tokens(q_parts) * count_tokens(k_parts);
      if (pair.pairs == 0)
        pair.meeting = find_reason(index, q_parts, k_parts);
      else
        pair.meeting = pair.pairs == pair.cells ? Meeting::full : Meeting::partial;
      pairs.push_back(pair);
      k_row += k.count();
    }
    q_row += q.count();
  }
  return pairs;
}

void name_pair(CaptionWriter& writer, const RunPair& pair) {
  const PairRange ids{pair.q.begin, pair.q.last() + 1, pair.k.begin, pair.k.last() + 1};
  writer.word(print_range(ids.q_begin, ids.q_end) + " x " + print_range(ids.k_begin, ids.k_end),
              ids);
}

void name_pairs(CaptionWriter& writer, const std::vector<RunPair>& pairs) {
  writer.series(pairs.size(), pairs.size(), [&](size_t i) { name_pair(writer, pairs[i]); });
}

int64_t count_rows(const std::vector<RunPair>& pairs, int64_t RunPair::*figure) {
  int64_t sum = 0;
  for (const RunPair& pair : pairs) sum += pair.*figure;
  return sum;
}

constexpr std::array kSkips = {Meeting::later,  Meeting::other_sequence, Meeting::only_padding,
                               Meeting::window, Meeting::chunk,          Meeting::hidden};

std::vector<RunPair> pick(const std::vector<RunPair>& pairs, Meeting meeting) {
  std::vector<RunPair> picked;
  std::copy_if(pairs.begin(), pairs.end(), std::back_inserter(picked),
               [&](const RunPair& pair) { return pair.meeting == meeting; });
  return picked;
}

/// For few runs: names each pair of them.
void tell_each_pair(CaptionWriter& writer, const std::vector<RunPair>& pairs) {
  if (const auto full = pick(pairs, Meeting::full); !full.empty()) {
    writer.say(" No mask needed: ");
    name_pairs(writer, full);
    writer.say(
        fmt::format(", all {} pairs a head.", print_count(count_rows(full, &RunPair::pairs))));
  }
  if (const auto partial = pick(pairs, Meeting::partial); !partial.empty()) {
    writer.say(" Under the mask: ");
    name_pairs(writer, partial);
    writer.say(fmt::format(", {} of {} pairs a head.",
                           print_count(count_rows(partial, &RunPair::pairs)),
                           print_count(count_rows(partial, &RunPair::cells))));
  }
  for (const Meeting reason : kSkips) {
    const auto skipped = pick(pairs, reason);
    if (skipped.empty()) continue;
    writer.say(" Skipped: ");
    name_pairs(writer, skipped);
    writer.say(fmt::format(", because {}.", explain_hidden(reason)));
  }
}

std::string need(int64_t count, std::string_view what) {
  return fmt::format("{} {} {}", print_count(count), count == 1 ? "needs" : "need", what);
}

/// For many runs: the slices with and without a mask, and how many pairs of runs are skipped.
void tell_pair_counts(CaptionWriter& writer, const ComputeItem& item,
                      const std::vector<RunPair>& pairs) {
  const auto slices = writer.plan().slices_of(item);
  const int64_t full = std::count_if(slices.begin(), slices.end(),
                                     [](const BandSlice& slice) { return is_full(slice); });
  const int64_t masked = std::ssize(slices) - full;
  if (item.num_slices > 0)
    writer.say(fmt::format(" Of {} {} and {}.", count_text(item.num_slices, "slice"),
                           need(full, "no mask"), need(masked, "one")));
  std::string skips;
  int64_t skipped = 0;
  for (const Meeting reason : kSkips) {
    const auto count = static_cast<int64_t>(pick(pairs, reason).size());
    skipped += count;
    if (count > 0)
      skips += fmt::format("{}{} because {}", skips.empty() ? "" : ", ", print_count(count),
                           explain_hidden(reason));
  }
  if (!skips.empty())
    writer.say(fmt::format(" Of {} pairs of runs {} {} skipped: {}.",
                           print_count(static_cast<int64_t>(pairs.size())), print_count(skipped),
                           skipped == 1 ? "is" : "are", skips));
}

/// Writes which runs meet, if there are few enough to count quickly.
void tell_run_pairs(CaptionWriter& writer, const ComputeItem& item) {
  constexpr size_t kMostNamed = 9;
  constexpr int64_t kMostCounted = 200'000;  // run pairs x slices
  const Plan& plan = writer.plan();
  const auto q = static_cast<int64_t>(plan.list(item.q_tokens).size());
  const auto k = static_cast<int64_t>(plan.list(item.kv_tokens).size());
  if (q * k <= kMostCounted / std::max<int64_t>(1, item.num_slices)) {
    const std::vector<RunPair> pairs = list_pairs(writer.index(), item);
    if (pairs.size() <= kMostNamed)
      tell_each_pair(writer, pairs);
    else
      tell_pair_counts(writer, item, pairs);
  }
}

void tell_pairs(CaptionWriter& writer, const ComputeItem& item) {
  tell_run_pairs(writer, item);
  writer.say(fmt::format(" That is {} (query, key, head) triples in {}.",
                         print_count(item.visible_pairs), count_text(item.num_slices, "slice")));
}

/// Index in PlanIndex::stages.
int32_t number_of(const PlanIndex& index, const StageRef& stage) {
  return static_cast<int32_t>(&stage - index.stages().data());
}

/// Writes who owns the keys and how they arrived.
void name_keys(CaptionWriter& writer, const StageRef& stage, const ComputeItem& item) {
  const PlanIndex& index = writer.index();
  const Plan& plan = writer.plan();
  const auto list = plan.list(item.kv_tokens);
  const std::vector<int32_t> owners = owners_of(index, list, Side::kv);
  const int64_t keys = plan.rows(item.kv_tokens);
  if (owners == std::vector<int32_t>{to_index(item.rank)}) {
    writer.say(fmt::format("its own {}", count_text(keys, "key")));
  } else {
    writer.say(fmt::format("the {}", count_text(keys, "key")));
    if (!owners.empty()) writer.say(" of ").ranks(owners);
  }
  if (!list.empty()) writer.say(" (").runs(list, Side::kv).say(")");
  // The transfer that brought them is the last one into this buffer before this stage.
  const Pass& pass = index.pass(stage.direction);
  const ItemColumns& c = index.columns(stage.direction, StageKind::transfer);
  const int32_t number = number_of(index, stage);
  const int32_t oldest = std::max(0, index.step_of_stage(number) - 1);
  for (int32_t s = number - 1; s >= index.steps()[static_cast<size_t>(oldest)].first_stage; --s) {
    const StageRef& before = index.stages()[static_cast<size_t>(s)];
    if (before.direction != stage.direction || before.kind != StageKind::transfer) continue;
    for (const int64_t i : c.items_to(before.begin, before.end, to_index(item.rank))) {
      const TransferItem& hop = pass.transfers[static_cast<size_t>(i)];
      const bool is_of_ring = hop.link == LinkClass::ring || hop.link == LinkClass::outer_ring;
      if (hop.to != item.kv || !is_of_ring) continue;
      writer.say(", received from ").rank(to_index(hop.src)).say(" in ");
      writer.step(index.step_of_stage(s));
      return;
    }
  }
  const BufferRole role = plan.buffer(item.kv).role;
  if (role == BufferRole::ring_a || role == BufferRole::ring_b)
    writer.say(", kept since the forward");
}

void tell_item(CaptionWriter& writer, const StageRef& stage, const ComputeItem& item) {
  const Plan& plan = writer.plan();
  if (item.num_slices == 0) {
    writer.say(" idles: no key it has now is visible to its queries.");
    tell_run_pairs(writer, item);
    return;
  }
  writer.say(" attends ");
  const auto list = plan.list(item.q_tokens);
  const bool is_own =
      owners_of(writer.index(), list, Side::q) == std::vector<int32_t>{to_index(item.rank)};
  writer.say(
      fmt::format("{} {}", is_own ? "its" : "the", count_text(plan.rows(item.q_tokens), "query")));
  writer.say(" (").runs(list, Side::q).say(")");
  int64_t valid = 0;
  for (const TokenRun& run : list) valid += count_valid(writer.index(), Side::q, run);
  if (valid < plan.rows(item.q_tokens))
    writer.say(fmt::format(", {} of them padding,", print_count(plan.rows(item.q_tokens) - valid)));
  if (item.heads.size() < plan.scenario.attention.heads)
    writer.say(" of " + name_heads(item.heads, Side::q));
  writer.say(" to ");
  name_keys(writer, stage, item);
  writer.say(".");
  tell_pairs(writer, item);
}

/// Writes which ranks wait while others work.
void tell_balance(CaptionWriter& writer, const StageRef& stage) {
  const PlanIndex& index = writer.index();
  const auto pairs = pairs_by_rank(index, index.moment_of_stage(number_of(index, stage)));
  if (pairs.size() < 2) return;
  std::vector<int32_t> idle;
  for (const RankId rank : pairs.ids()) {
    if (pairs[rank] == 0) idle.push_back(to_index(rank));
  }
  const auto busiest = std::max_element(pairs.begin(), pairs.end());
  const auto least = std::min_element(pairs.begin(), pairs.end());
  if (*busiest == *least) {
    writer.say(*busiest == 0 ? " No rank has work now." : " All ranks have the same work.");
    return;
  }
  writer.say(" Busiest is ").rank(static_cast<int32_t>(busiest - pairs.begin()));
  writer.say(fmt::format(" with {} triples", print_count(*busiest)));
  if (!idle.empty()) writer.say("; idle: ").ranks(idle);
  writer.say(".");
}

}  // namespace

void tell_computes(CaptionWriter& writer, const StageRef& stage, int32_t focus_rank) {
  bool works = false;
  tell_each(writer, stage, focus_rank, writer.index().pass(stage.direction).computes, "",
            [&](const ComputeItem& item) {
              works = works || item.num_slices > 0;
              tell_item(writer, stage, item);
            });
  if (stage.direction == Direction::backward && works)
    writer.say(
        fmt::format(" It computes the probabilities again from the lse that the forward kept, and "
                    "from them dQ of {} queries and dK, dV of {} keys.",
                    sends_queries_backward(writer.plan().scenario) ? "these" : "its",
                    sends_queries_backward(writer.plan().scenario) ? "its" : "these"));
  tell_balance(writer, stage);
}

}  // namespace cpscope::gui
