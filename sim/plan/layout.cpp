#include "sim/plan/layout.h"

#include "sim/plan/layout_lpt.h"
#include "sim/plan/layout_lpt_local.h"
#include "sim/plan/mask_bands.h"
#include "sim/plan/piece_table.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace cpscope {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The sizes that a layout rounds: every slot, or the packed buffer as a whole.
struct PaddingRule {
  int64_t slot_multiple = 1;
  int64_t q_multiple = 1;   // of the packed padded query buffer
  int64_t kv_multiple = 1;  // of the packed padded key buffer
};

/// True for layouts that cut every row of a bshd or sbhd batch alone, as frameworks do ([b, s/P]).
bool cuts_rows(const Scenario& scenario) {
  const LayoutKind kind = scenario.parallel.layout;
  const bool can_cut = kind == LayoutKind::contiguous || kind == LayoutKind::dual_chunk_packed ||
                       kind == LayoutKind::striped;
  return kind == LayoutKind::dual_chunk ||
         (can_cut &&
          (scenario.batch.qkv_format != QkvFormat::thd || has_rounds(scenario.parallel)));
}

/// The number of tokens by which a buffer that so many ranks share must be divisible.
int64_t cut_multiple(const Parallel& parallel, int64_t ranks) {
  switch (parallel.layout) {
    case LayoutKind::dual_chunk:
    case LayoutKind::dual_chunk_packed:
      return 2 * ranks;
    case LayoutKind::striped:
      return ranks * parallel.stripe;
    default:
      return ranks;
  }
}

PaddingRule padding_rule_of_layout(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  const int64_t ranks = parallel.cp_size, cut = cut_multiple(parallel, ranks);
  if (cuts_rows(scenario)) return {cut, 1, 1};
  switch (parallel.layout) {
    case LayoutKind::dual_chunk:
    case LayoutKind::contiguous:
    case LayoutKind::dual_chunk_packed:
    case LayoutKind::striped:
      return {1, cut, cut};
    case LayoutKind::lpt:
    case LayoutKind::lpt_local: {
      const int64_t multiple = ranks * parallel.dispatch_chunk;
      return {1, multiple, scenario.batch.self_attention ? multiple : ranks};
    }
    case LayoutKind::indices:
      return {1, 1, 1};
  }
  return {};
}

PaddingRule padding_rule(const Scenario& scenario) {
  PaddingRule rule = padding_rule_of_layout(scenario);
  rule.slot_multiple = std::lcm(rule.slot_multiple, scenario.batch.slot_multiple);
  if (owns_heads(scenario.parallel)) rule.q_multiple = 1;
  return rule;
}

/// [sequence] How many ranks share each sequence.
std::vector<int32_t> ranks_of_sequences(const Scenario& scenario, const Layout& layout) {
  std::vector<int32_t> ranks(scenario.batch.lengths.size(), scenario.parallel.cp_size);
  for (const CpRound& round : layout.rounds) {
    for (const CpGroup& group : round.groups) {
      for (const int64_t s : group.sequences) ranks[static_cast<size_t>(s)] = group.size;
    }
  }
  return ranks;
}

/// The keys of a file that set slots, likeliest first. `entry` is "[3]" for one sequence, "" for
/// all.
std::vector<std::string> slot_keys(const Batch& batch, Side side, const std::string& entry = "") {
  std::vector<std::string> keys;
  // Slots of bshd and sbhd are as long as the longest sequence, so no single entry of lengths is at
  // fault.
  const bool is_padded = batch.qkv_format != QkvFormat::thd;
  const auto add = [&](const std::string& prefix) {
    keys.push_back("batch." + prefix + "slots" + entry);
    if (is_padded) keys.push_back("batch." + prefix + "seqlen");
    keys.push_back("batch." + prefix + "lengths" + (is_padded ? "" : entry));
    if (!is_padded) keys.push_back("batch." + prefix + "seqlen");
  };
  if (side == Side::kv) add("kv_");
  add("");
  keys.push_back("batch.generator");
  return keys;
}

std::vector<std::string> slot_keys(const Batch& batch, Side side, size_t sequence) {
  return slot_keys(batch, side, fmt::format("[{}]", sequence));
}

bool fits(const Scenario& scenario, int64_t value, int64_t multiple) {
  return scenario.batch.pad_between_seqs || value % multiple == 0;
}

Error misfit(const Scenario& scenario, std::string_view what, int64_t value, int64_t multiple,
             int32_t ranks, std::vector<std::string> keys) {
  return make_refusal(
      fmt::format("{} is not divisible by {}, which layout {} on {} ranks requires: {}", what,
                  multiple, to_name(scenario.parallel.layout), ranks, value),
      fmt::format("use {}, or set pad_between_seqs = true", round_up(value, multiple)),
      std::move(keys));
}

std::optional<Error> add_slots(const Scenario& scenario, const PaddingRule& rule, Layout& layout) {
  const Batch& batch = scenario.batch;
  const std::vector<int32_t> ranks = ranks_of_sequences(scenario, layout);
  BatchSlots& slots = layout.slots;
  for (size_t s = 0; s < batch.lengths.size(); ++s) {
    const int64_t multiple =
        has_rounds(scenario.parallel)
            ? std::lcm(cut_multiple(scenario.parallel, ranks[s]), batch.slot_multiple)
            : rule.slot_multiple;
    // Queries whose heads are shared are not cut.
    const int64_t q_multiple = owns_heads(scenario.parallel) ? batch.slot_multiple : multiple;
    if (!fits(scenario, batch.slots[s], q_multiple))
      return misfit(scenario, fmt::format("the slot of sequence {}", s), batch.slots[s], q_multiple,
                    ranks[s], slot_keys(batch, Side::q, s));
    if (!fits(scenario, batch.kv_slots[s], multiple))
      return misfit(scenario, fmt::format("the kv slot of sequence {}", s), batch.kv_slots[s],
                    multiple, ranks[s], slot_keys(batch, Side::kv, s));
    SequenceSlot sequence;
    sequence.q_begin = slots.tokens;
    sequence.q_valid = batch.lengths[s];
    sequence.q_slot = round_up(batch.slots[s], q_multiple);
    sequence.kv_begin = slots.kv_tokens;
    sequence.kv_valid = batch.kv_lengths[s];
    sequence.kv_slot = round_up(batch.kv_slots[s], multiple);
    if (batch.pad_side == PadSide::left) {
      sequence.q_front = sequence.q_slot - sequence.q_valid;
      sequence.kv_front = sequence.kv_slot - sequence.kv_valid;
    }
    slots.tokens += sequence.q_slot;
    slots.kv_tokens += sequence.kv_slot;
    slots.sequences.push_back(sequence);
    if (slots.tokens > kMaxTokens || slots.kv_tokens > kMaxTokens) {
      const Side side = slots.tokens > kMaxTokens ? Side::q : Side::kv;
      return make_refusal(
          fmt::format("the padded batch exceeds {} tokens at sequence {}", kMaxTokens, s),
          "use shorter or fewer sequences", slot_keys(batch, side, s));
    }
  }
  return std::nullopt;
}

std::optional<Error> add_tail(const Scenario& scenario, const PaddingRule& rule,
                              BatchSlots& slots) {
  const LayoutKind kind = scenario.parallel.layout;
  const bool is_lpt = kind == LayoutKind::lpt || kind == LayoutKind::lpt_local;
  // lpt without padding accepts any length: its last chunk is shorter.
  if (is_lpt && !scenario.batch.pad_between_seqs) return std::nullopt;
  if (!fits(scenario, slots.tokens, rule.q_multiple))
    return misfit(scenario, "the packed buffer", slots.tokens, rule.q_multiple,
                  scenario.parallel.cp_size, slot_keys(scenario.batch, Side::q));
  if (!fits(scenario, slots.kv_tokens, rule.kv_multiple))
    return misfit(scenario, "the packed kv buffer", slots.kv_tokens, rule.kv_multiple,
                  scenario.parallel.cp_size, slot_keys(scenario.batch, Side::kv));
  slots.tokens = round_up(slots.tokens, rule.q_multiple);
  slots.kv_tokens = round_up(slots.kv_tokens, rule.kv_multiple);
  if (slots.tokens > kMaxTokens || slots.kv_tokens > kMaxTokens) {
    const Side side = slots.tokens > kMaxTokens ? Side::q : Side::kv;
    return make_refusal(fmt::format("the batch with its tail exceeds {} tokens: {}", kMaxTokens,
                                    std::max(slots.tokens, slots.kv_tokens)),
                        "use shorter or fewer sequences, or fewer ranks",
                        slot_keys(scenario.batch, side));
  }
  return std::nullopt;
}

using RunsByRank = IdVector<RankId, std::vector<TokenRun>>;

/// Consecutive ranks that share a buffer.
struct RankSpan {
  int32_t first = 0;
  int64_t count = 0;

  RankId at(int32_t r) const { return RankId{first + r}; }
};

/// Assigns the r-th part of a buffer to the r-th rank.
void assign_contiguous(int64_t begin, int64_t tokens, RankSpan ranks, RunsByRank& runs) {
  for (int32_t r = 0; r < ranks.count; ++r)
    append_run(runs[ranks.at(r)],
               {begin + tokens * r / ranks.count, begin + tokens * (r + 1) / ranks.count, 1});
}

/// Assigns chunks r and 2P-1-r of a slot of 2P equal chunks to the r-th of P ranks (load-balanced
/// causal attention of Megatron, TransformerEngine, PyTorch's head-tail).
void assign_dual_chunk(int64_t begin, int64_t slot, RankSpan ranks, RunsByRank& runs) {
  const int64_t chunks = 2 * ranks.count, chunk = slot / chunks;
  for (int32_t r = 0; r < ranks.count; ++r) {
    std::vector<TokenRun>& own = runs[ranks.at(r)];
    append_run(own, {begin + r * chunk, begin + (r + 1) * chunk, 1});
    append_run(own, {begin + (chunks - 1 - r) * chunk, begin + (chunks - r) * chunk, 1});
  }
}

/// Assigns stripe i of a buffer to rank i mod P.
void assign_striped(int64_t begin, int64_t tokens, RankSpan ranks, int64_t stripe,
                    RunsByRank& runs) {
  for (int32_t r = 0; r < ranks.count; ++r) {
    if (stripe == 1) {
      append_run(runs[ranks.at(r)], {begin + r, begin + tokens, ranks.count});
      continue;
    }
    std::vector<TokenRun>& own = runs[ranks.at(r)];
    if (own.empty()) own.reserve(static_cast<size_t>(tokens / (ranks.count * stripe)));
    for (int64_t first = begin + r * stripe; first < begin + tokens; first += ranks.count * stripe)
      append_run(own, {first, first + stripe, 1});
  }
}

/// Assigns one buffer that a layout cuts: a slot, or all of them.
void assign_cut(const Parallel& parallel, int64_t begin, int64_t tokens, RankSpan ranks,
                RunsByRank& runs) {
  switch (parallel.layout) {
    case LayoutKind::striped:
      return assign_striped(begin, tokens, ranks, parallel.stripe, runs);
    case LayoutKind::dual_chunk:
    case LayoutKind::dual_chunk_packed:
      return assign_dual_chunk(begin, tokens, ranks, runs);
    default:
      return assign_contiguous(begin, tokens, ranks, runs);
  }
}

/// Assigns every slot to the ranks of its group; a rank's rows are in the order of rounds.
void assign_rounds(const Parallel& parallel, Layout& layout) {
  for (const CpRound& round : layout.rounds) {
    for (const CpGroup& group : round.groups) {
      // A group computes its sequences together, in the order of the batch.
      std::vector<int64_t> sequences = group.sequences;
      std::sort(sequences.begin(), sequences.end());
      const RankSpan ranks{group.first_rank, group.size};
      for (const int64_t s : sequences) {
        const SequenceSlot& slot = layout.slots.sequences[static_cast<size_t>(s)];
        assign_cut(parallel, slot.q_begin, slot.q_slot, ranks, layout.q_runs);
        assign_cut(parallel, slot.kv_begin, slot.kv_slot, ranks, layout.kv_runs);
      }
    }
  }
}

/// Number of consecutive ranks that exchange heads for tokens before KV travels further. Group
/// sizes that no plan allows are refused by the planner.
int32_t rows_shared_by(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  const bool is_grouped =
      has_head_groups(parallel.comm_type) && parallel.cp_size % parallel.a2a_size == 0;
  return is_grouped ? parallel.a2a_size : 1;
}

RunsByRank assign_lpt(const Scenario& scenario, const BatchSlots& slots) {
  const int64_t chunk = scenario.parallel.dispatch_chunk;
  const int32_t ranks = scenario.parallel.cp_size;
  const MaskBands mask = compile_mask(scenario.attention, slots.sequences);
  const std::vector<int64_t> areas = chunk_areas(mask, slots, chunk);
  const auto held = scenario.parallel.layout == LayoutKind::lpt_local
                        ? assign_near_keys(areas, find_reach(mask, slots, chunk), ranks,
                                           scenario.batch.self_attention, rows_shared_by(scenario))
                        : assign_longest_first(areas, ranks);
  RunsByRank runs;
  for (const std::vector<int64_t>& chunks : held) {
    runs.push_back({});
    for (const int64_t id : chunks)
      append_run(runs.back(), {id * chunk, std::min((id + 1) * chunk, slots.tokens), 1});
  }
  return runs;
}

std::optional<Error> take_imported_runs(const std::vector<std::vector<int64_t>>& ids,
                                        int64_t tokens, std::string_view side, RunsByRank& runs) {
  int64_t listed = 0;
  for (const auto& rank_ids : ids) {
    listed += static_cast<int64_t>(rank_ids.size());
    runs.push_back(runs_of(rank_ids));
  }
  if (listed == tokens) return std::nullopt;
  return make_refusal(
      fmt::format("the imported {} order lists {} ids, the packed padded batch has {}", side,
                  listed, tokens),
      "list every packed padded token id exactly once, padding included",
      {"parallel.indices_file"});
}

/// Upper bound on the number of runs, so that an absurd request is refused before memory is
/// allocated.
int64_t bound_runs(const Scenario& scenario, const BatchSlots& slots) {
  const Parallel& parallel = scenario.parallel;
  const int64_t ranks = parallel.cp_size;
  const int64_t most_tokens = std::max(slots.tokens, slots.kv_tokens);
  const int64_t cuts = cuts_rows(scenario) ? std::ssize(slots.sequences) : 1;
  switch (parallel.layout) {
    case LayoutKind::striped:
      return parallel.stripe == 1 ? ranks * cuts : most_tokens / parallel.stripe;
    case LayoutKind::lpt:
    case LayoutKind::lpt_local:
      return most_tokens / parallel.dispatch_chunk + 1;
    default:
      return std::min(2 * ranks * cuts, std::max(2 * ranks, most_tokens));
  }
}

/// The key with the largest effect on bound_runs.
std::string run_key(LayoutKind layout) {
  switch (layout) {
    case LayoutKind::striped:
      return "parallel.stripe";
    case LayoutKind::lpt:
    case LayoutKind::lpt_local:
      return "parallel.dispatch_chunk";
    default:
      return "parallel.cp_size";
  }
}

std::optional<Error> check_lpt(const Scenario& scenario, const BatchSlots& slots) {
  const int64_t chunks =
      (slots.tokens + scenario.parallel.dispatch_chunk - 1) / scenario.parallel.dispatch_chunk;
  if (chunks < scenario.parallel.cp_size) {
    return make_refusal(
        fmt::format("layout {} has fewer chunks than ranks: {} chunks of {} tokens, {} ranks",
                    to_name(scenario.parallel.layout), chunks, scenario.parallel.dispatch_chunk,
                    scenario.parallel.cp_size),
        "use a smaller dispatch_chunk (it is never reduced silently) or fewer ranks",
        {"parallel.dispatch_chunk"});
  }
  const int64_t keys =
      (slots.kv_tokens + scenario.parallel.dispatch_chunk - 1) / scenario.parallel.dispatch_chunk;
  if (scenario.parallel.layout == LayoutKind::lpt_local &&
      std::max(chunks, keys) > kMaxLocalChunks) {
    return make_refusal(
        fmt::format("layout lpt_local supports at most {} chunks: {} chunks of {} tokens",
                    kMaxLocalChunks, std::max(chunks, keys), scenario.parallel.dispatch_chunk),
        "use a larger dispatch_chunk, or lpt", {"parallel.dispatch_chunk", "parallel.layout"});
  }
  const int64_t bands = count_mask_bands(scenario.attention, slots.sequences);
  if (bands > kMaxRuns) return too_many_mask_bands(scenario.attention, bands);
  return std::nullopt;
}

std::optional<Error> assign_tokens(const Scenario& scenario, Layout& layout) {
  const Parallel& parallel = scenario.parallel;
  const BatchSlots& slots = layout.slots;
  const RankSpan ranks{0, parallel.cp_size};
  layout.q_runs.resize(static_cast<size_t>(ranks.count));
  layout.kv_runs.resize(static_cast<size_t>(ranks.count));
  if (has_rounds(parallel)) {
    assign_rounds(parallel, layout);
    return std::nullopt;
  }
  switch (parallel.layout) {
    case LayoutKind::contiguous:
    case LayoutKind::dual_chunk:
    case LayoutKind::dual_chunk_packed:
    case LayoutKind::striped:
      if (!cuts_rows(scenario)) {
        assign_cut(parallel, 0, slots.tokens, ranks, layout.q_runs);
        assign_cut(parallel, 0, slots.kv_tokens, ranks, layout.kv_runs);
        return std::nullopt;
      }
      for (const SequenceSlot& sequence : slots.sequences) {
        assign_cut(parallel, sequence.q_begin, sequence.q_slot, ranks, layout.q_runs);
        assign_cut(parallel, sequence.kv_begin, sequence.kv_slot, ranks, layout.kv_runs);
      }
      return std::nullopt;
    case LayoutKind::lpt:
    case LayoutKind::lpt_local:
      if (auto error = check_lpt(scenario, slots)) return error;
      layout.q_runs = assign_lpt(scenario, slots);
      if (layout.same_kv)
        layout.kv_runs = layout.q_runs;
      else
        assign_contiguous(0, slots.kv_tokens, ranks, layout.kv_runs);
      return std::nullopt;
    case LayoutKind::indices:
      layout.kv_runs = {};
      // Ranks that own heads have all queries: then the order is one of keys.
      if (!owns_heads(parallel)) {
        layout.q_runs = {};
        if (auto error =
                take_imported_runs(parallel.imported.ranks, slots.tokens, "query", layout.q_runs))
          return error;
      }
      return take_imported_runs(parallel.imported.kv_ranks, slots.kv_tokens, "kv", layout.kv_runs);
  }
  return std::nullopt;
}

std::optional<Error> refuse_layout_of_heads(const Scenario& scenario) {
  if (!owns_heads(scenario.parallel)) return std::nullopt;
  switch (scenario.parallel.layout) {
    case LayoutKind::lpt:
    case LayoutKind::lpt_local:
      return make_refusal(
          fmt::format(
              "q_owner = \"{}\" requires a layout of keys alone: {} gives rows of queries to "
              "ranks",
              to_name(scenario.parallel.q_owner), to_name(scenario.parallel.layout)),
          "use striped, contiguous, dual_chunk, dual_chunk_packed or indices",
          {"parallel.q_owner", "parallel.layout"});
    default:
      return std::nullopt;
  }
}

}  // namespace

void assign_heads(const Scenario& scenario, Layout& layout) {
  const int64_t ranks = layout.cp_size, heads = scenario.attention.heads;
  layout.same_kv = false;
  layout.q_heads = {};
  for (std::vector<TokenRun>& runs : layout.q_runs) {
    runs.clear();
    append_run(runs, {0, layout.slots.tokens, 1});
  }
  for (int64_t r = 0; r < ranks; ++r)
    layout.q_heads.push_back(
        {static_cast<int32_t>(r * heads / ranks), static_cast<int32_t>((r + 1) * heads / ranks)});
}

Result<Layout> make_layout(const Scenario& scenario) {
  if (auto error = refuse_layout_of_heads(scenario)) return *error;
  Layout layout;
  layout.kind = scenario.parallel.layout;
  layout.cp_size = scenario.parallel.cp_size;
  layout.same_kv = scenario.batch.self_attention;
  const PaddingRule rule = padding_rule(scenario);
  Result<std::vector<CpRound>> rounds = make_rounds(scenario);
  if (!rounds) return rounds.error();
  layout.rounds = std::move(rounds).value();
  if (auto error = add_slots(scenario, rule, layout)) return *error;
  if (auto error = add_tail(scenario, rule, layout.slots)) return *error;
  const int64_t runs = bound_runs(scenario, layout.slots);
  if (runs > kMaxRuns) {
    return make_refusal(
        fmt::format("the layout has too many token runs: {}, limit {}", runs, kMaxRuns),
        "use larger chunks or stripes, fewer sequences or fewer ranks",
        {run_key(scenario.parallel.layout)});
  }
  if (auto error = assign_tokens(scenario, layout)) return *error;
  if (layout.kind == LayoutKind::indices)
    layout.same_kv = scenario.parallel.imported.ranks == scenario.parallel.imported.kv_ranks;
  if (owns_heads(scenario.parallel)) assign_heads(scenario, layout);
  return layout;
}

IdVector<RankId, std::vector<TokenRun>> partition_of(const Layout& layout, Side side) {
  IdVector<RankId, std::vector<TokenRun>> runs = layout.runs(side);
  if (side == Side::kv || layout.q_heads.size() == 0) return runs;
  for (const RankId rank : runs.ids()) {
    if (rank != RankId{0}) runs[rank].clear();
  }
  return runs;
}

int64_t count_padding(const Layout& layout, Side side, RankId rank) {
  const std::vector<SequenceSlot>& sequences = layout.slots.sequences;
  int64_t padding = 0;
  for (const TokenRun& run : layout.runs(side)[rank]) {
    padding += run.count();
    // Number of ids of the run below `id`.
    const auto below = [&](int64_t id) {
      if (id <= run.begin) return int64_t{0};
      return std::min(run.count(), (id - run.begin + run.stride - 1) / run.stride);
    };
    auto slot = std::partition_point(
        sequences.begin(), sequences.end(),
        [&](const SequenceSlot& before) { return before.side(side).end() <= run.begin; });
    for (; slot != sequences.end() && slot->side(side).begin < run.end; ++slot)
      padding -= below(slot->side(side).valid_end()) - below(slot->side(side).valid_begin());
  }
  return padding;
}

std::string describe_round(const Layout& layout, size_t round) {
  constexpr size_t kShown = 8;  // sequences of a group
  std::string text = fmt::format("round {}:", round);
  for (const CpGroup& group : layout.rounds[round].groups) {
    if (text.back() != ':') text += ';';
    text += group.size == 1 ? fmt::format(" rank {}:", group.first_rank)
                            : fmt::format(" ranks {} to {}:", group.first_rank,
                                          group.first_rank + group.size - 1);
    text += group.sequences.size() == 1 ? " sequence" : " sequences";
    for (size_t i = 0; i < std::min(kShown, group.sequences.size()); ++i)
      text += fmt::format("{}{}", i == 0 ? " " : ", ", group.sequences[i]);
    if (group.sequences.size() > kShown)
      text += fmt::format(" and {} more", group.sequences.size() - kShown);
  }
  return text;
}

std::vector<IdVector<RankId, TokenRun>> rows_of_rounds(const Layout& layout, Side side) {
  IdVector<RankId, int64_t> done(static_cast<size_t>(layout.cp_size));
  std::vector<IdVector<RankId, TokenRun>> rows;
  for (const CpRound& round : layout.rounds) {
    IdVector<RankId, TokenRun>& now = rows.emplace_back(static_cast<size_t>(layout.cp_size));
    for (const CpGroup& group : round.groups) {
      int64_t tokens = 0;
      for (const int64_t s : group.sequences)
        tokens += layout.slots.sequences[static_cast<size_t>(s)].side(side).slot;
      // The layouts that rounds allow give every rank of a group as many rows.
      for (int32_t r = 0; r < group.size; ++r) {
        int64_t& begin = done[RankId{group.first_rank + r}];
        now[RankId{group.first_rank + r}] = {begin, begin + tokens / group.size, 1};
        begin += tokens / group.size;
      }
    }
  }
  return rows;
}

bool token_ring_sends_halves(const Scenario& scenario, const Layout& layout) {
  const MaskType mask = scenario.attention.mask_type;
  const bool is_causal = mask == MaskType::causal || mask == MaskType::causal_bottom_right ||
                         mask == MaskType::padding_causal ||
                         mask == MaskType::padding_causal_bottom_right;
  // dual_chunk cuts every slot; dual_chunk_packed cuts the batch if it is packed, else its rows.
  const bool has_chunks =
      layout.kind == LayoutKind::dual_chunk ||
      (layout.kind == LayoutKind::dual_chunk_packed && scenario.batch.qkv_format == QkvFormat::thd);
  const auto is_self = [](const SequenceSlot& slot) {
    return slot.q_begin == slot.kv_begin && slot.q_valid == slot.kv_valid &&
           slot.q_slot == slot.kv_slot;
  };
  return is_causal && has_chunks &&
         std::all_of(layout.slots.sequences.begin(), layout.slots.sequences.end(), is_self);
}

}  // namespace cpscope
