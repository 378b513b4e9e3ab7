#include "sim/plan/te/te_view.h"

#include "sim/plan/planner/planner.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

// The arguments that TransformerEngine passes to its kernels: from its worked examples, and cell by
// cell against plans.

namespace cpscope::tests {
namespace {

using Sums = std::vector<int64_t>;

/// Sequences in slots of their own, thd.
Scenario padded_case(std::vector<int64_t> lengths, std::vector<int64_t> slots, int32_t cp_size,
                     CommType comm = CommType::p2p) {
  Scenario scenario = make_case(std::move(lengths), cp_size, LayoutKind::dual_chunk, comm);
  scenario.batch.slots = scenario.batch.kv_slots = std::move(slots);
  return scenario;
}

TeView view_of(const Scenario& scenario) {
  const Result<TeView> view = view_as_te(plan_of(scenario));
  EXPECT_TRUE(view.ok()) << to_text(view.error());
  return view ? view.value() : TeView{};
}

const TeTile& tile_of(const TeView& view, int32_t rank, int32_t step) {
  for (const TeTile& tile : view.tiles) {
    if (tile.rank == rank && tile.step == step) return tile;
  }
  ADD_FAILURE() << "no tile of rank " << rank << ", step " << step;
  return view.tiles.front();
}

std::string sections_of(const TeView& view, int32_t rank) {
  std::string letters;
  for (const TeTile& tile : view.tiles) {
    if (tile.rank == rank) letters += to_name(tile.section).front();
  }
  return letters;
}

TEST(TeView, NamesTheSectionsOfFourRanks) {
  const TeView view = view_of(make_case({64}, 4));
  EXPECT_EQ(sections_of(view, 0), "duuu");
  EXPECT_EQ(sections_of(view, 1), "dluu");
  EXPECT_EQ(sections_of(view, 2), "dllu");
  EXPECT_EQ(sections_of(view, 3), "dlll");
}

TEST(TeView, ReadsHalvesAsTheSectionSays) {
  const TeView view = view_of(make_case({64}, 4));
  const TeTile& diagonal = tile_of(view, 1, 0);
  EXPECT_EQ(diagonal.attn_mask_type, "padding_causal");
  EXPECT_EQ(diagonal.kv_rank, 1);
  EXPECT_EQ(diagonal.q_half, TeHalf::both);
  EXPECT_EQ(diagonal.kv_half, TeHalf::both);
  EXPECT_EQ(std::pair(diagonal.window_left, diagonal.window_right),
            (std::pair<int64_t, int64_t>(-1, 0)));
  const TeTile& lower = tile_of(view, 1, 1);
  EXPECT_EQ(lower.attn_mask_type, "padding");
  EXPECT_EQ(lower.kv_rank, 0);
  EXPECT_EQ(lower.q_half, TeHalf::both);
  EXPECT_EQ(lower.kv_half, TeHalf::first);
  EXPECT_EQ(std::pair(lower.max_seqlen_q, lower.max_seqlen_kv),
            (std::pair<int64_t, int64_t>(16, 8)));
  EXPECT_EQ(lower.lengths.pairs, 16 * 8);
  const TeTile& upper = tile_of(view, 1, 2);
  EXPECT_EQ(upper.kv_rank, 3);
  EXPECT_EQ(upper.q_half, TeHalf::second);
  EXPECT_EQ(upper.kv_half, TeHalf::both);
  EXPECT_EQ(std::pair(upper.max_seqlen_q, upper.max_seqlen_kv),
            (std::pair<int64_t, int64_t>(8, 16)));
  EXPECT_EQ(std::pair(upper.window_left, upper.window_right),
            (std::pair<int64_t, int64_t>(-1, -1)));
}

TEST(TeView, CountsSevenTokensOnTwoRanksExactlyAndDivided) {
  const TeView view = view_of(padded_case({7}, {8}, 2));
  const TeTile& first = tile_of(view, 0, 0);
  EXPECT_EQ(first.lengths.cu_seqlens_q, (Sums{0, 3}));
  EXPECT_EQ(first.floored->cu_seqlens_q, (Sums{0, 3}));
  EXPECT_EQ(first.floored_difference, "");
  const TeTile& second = tile_of(view, 1, 0);
  EXPECT_EQ(second.lengths.cu_seqlens_q, (Sums{0, 4}));
  EXPECT_EQ(second.floored->cu_seqlens_q, (Sums{0, 3}));
  EXPECT_EQ(second.floored_difference, "sequence 0: 3 of 4 queries x 3 of 4 keys");
  // Rank 0, step 1, upper: token 6 alone of the second half, against tokens 2 to 5.
  const TeTile& upper = tile_of(view, 0, 1);
  EXPECT_EQ(upper.lengths.cu_seqlens_q, (Sums{0, 1}));
  EXPECT_EQ(upper.lengths.cu_seqlens_kv, (Sums{0, 4}));
  EXPECT_EQ(upper.floored->cu_seqlens_q, (Sums{0, 1})) << "7 / 4";
  EXPECT_EQ(upper.floored->cu_seqlens_kv, (Sums{0, 3}));
}

TEST(TeView, Counts698TokensOnFourRanksExactlyAndDivided) {
  const TeView view = view_of(padded_case({698}, {704}, 4));
  EXPECT_EQ(tile_of(view, 0, 0).lengths.cu_seqlens_q, (Sums{0, 170}));
  for (int32_t rank = 1; rank < 4; ++rank)
    EXPECT_EQ(tile_of(view, rank, 0).lengths.cu_seqlens_q, (Sums{0, 176}));
  for (int32_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(tile_of(view, rank, 0).floored->cu_seqlens_q, (Sums{0, 174}));
  EXPECT_EQ(tile_of(view, 0, 0).floored_difference,
            "sequence 0: 174 of 170 queries x 174 of 170 keys");
}

TEST(TeView, DividesOffsetsOfAllSequences) {
  // Slots 704, 144 and 2048: boundaries 0, 704, 848, 2896.
  const TeView view = view_of(padded_case({698, 137, 2041}, {704, 144, 2048}, 4));
  EXPECT_EQ(view.cu_seqlens_q, (Sums{0, 698, 835, 2876}));
  EXPECT_EQ(view.cu_seqlens_q_padded, (Sums{0, 704, 848, 2896}));
  EXPECT_EQ(view.max_seqlen_q, 2048);
  const TeTile& upper = tile_of(view, 0, 1);
  EXPECT_EQ(upper.cu_seqlens_q_padded, (Sums{0, 88, 106, 362}));
  EXPECT_EQ(upper.cu_seqlens_kv_padded, (Sums{0, 176, 212, 724}));
  EXPECT_EQ(upper.max_seqlen_q, 256);
  EXPECT_EQ(upper.max_seqlen_kv, 512);
  // Chunk 7 of 8: 698-616, 137-126 and 2041-1792 valid tokens.
  EXPECT_EQ(upper.lengths.cu_seqlens_q, (Sums{0, 82, 93, 342}));
  EXPECT_EQ(upper.floored->cu_seqlens_q, (Sums{0, 87, 104, 359}));
}

TEST(TeView, AdjustsTheWindowOfAnAllGatherChunk) {
  // N = 2, C = 4, chunk 1, window (5, 5): keys [0, 13), window (10, 0).
  Scenario scenario = make_case({16}, 2, LayoutKind::dual_chunk, CommType::all_gather);
  scenario.batch.qkv_format = QkvFormat::bshd;
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.attention.window_left = scenario.attention.window_right = 5;
  const TeTile tile = tile_of(view_of(scenario), 1, 0);
  EXPECT_EQ(std::pair(tile.kv_begin, tile.kv_end), (std::pair<int64_t, int64_t>(0, 13)));
  EXPECT_EQ(std::pair(tile.window_left, tile.window_right), (std::pair<int64_t, int64_t>(10, 0)));
  EXPECT_TRUE(tile.is_bottom_right);
  EXPECT_EQ(tile.shortcut_difference, "");
}

TEST(TeView, ShowsTheWindowOfTheLongestSlotWhereItIsWrong) {
  Scenario scenario = padded_case({16, 8}, {16, 8}, 2, CommType::all_gather);
  scenario.attention.mask_type = MaskType::padding;
  scenario.attention.window_left = scenario.attention.window_right = 5;
  int64_t wrong = 0;
  for (const TeTile& tile : view_of(scenario).tiles)
    wrong += tile.shortcut_difference.empty() ? 0 : 1;
  EXPECT_GT(wrong, 0);
  // Equal slots without padding are right.
  scenario = padded_case({16, 16}, {16, 16}, 2, CommType::all_gather);
  scenario.attention.mask_type = MaskType::padding;
  scenario.attention.window_left = scenario.attention.window_right = 5;
  for (const TeTile& tile : view_of(scenario).tiles) EXPECT_EQ(tile.shortcut_difference, "");
}

std::string te_refusal_of(const Scenario& scenario) {
  const Result<TeView> view = view_as_te(plan_of(scenario));
  EXPECT_FALSE(view.ok()) << show(scenario);
  return view.ok() ? std::string() : to_text(view.error());
}

void expect_te_refusal(const Scenario& scenario, const std::string& words) {
  EXPECT_EQ(te_refusal_of(scenario).find("TransformerEngine " + words), 0u)
      << te_refusal_of(scenario);
}

TEST(TeView, RefusesPaddingBeforeTheTokensOfASequence) {
  Scenario scenario = padded_case({16, 6}, {16, 8}, 2);
  scenario.batch.pad_side = PadSide::left;
  expect_te_refusal(scenario,
                    "has no padding before the tokens of a sequence, as pad_side = \"left\" puts "
                    "it: sequence 1 has 2 queries and 2 keys of it");
  // Without padding there is no side.
  scenario = padded_case({16, 8}, {16, 8}, 2);
  scenario.batch.pad_side = PadSide::left;
  EXPECT_TRUE(view_as_te(plan_of(scenario)).ok());
}

TEST(TeView, RefusesByNameWhatTransformerEngineHasNot) {
  expect_te_refusal(make_case({16}, 2, LayoutKind::striped),
                    "supports only layouts dual_chunk and contiguous: striped");
  expect_te_refusal(make_case({16}, 2, LayoutKind::dual_chunk, CommType::group_cast),
                    "has no group_cast");
  Scenario scenario = make_case({16}, 2);
  scenario.attention.window_left = 3;
  expect_te_refusal(scenario, "does not support sliding window attention with cp_comm_type p2p");
  scenario = make_case({16}, 2);
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  expect_te_refusal(scenario, "refuses bottom-right masks");
  expect_te_refusal(make_cross_case({16}, {8}, 2),
                    "refuses causal masks over keys of other lengths");
  scenario = make_case({16}, 2);
  scenario.attention.chunk_size = 4;
  expect_te_refusal(scenario, "has no chunked attention");
  scenario = make_case({16, 14}, 2);
  scenario.batch.qkv_format = QkvFormat::bshd;
  scenario.batch.slots = scenario.batch.kv_slots = {16, 16};
  expect_te_refusal(
      scenario,
      "does not support padding in bshd under context parallelism: sequence 1 has 14 of 16");
  scenario = make_case({16}, 2);
  scenario.attention.softmax_type = SoftmaxType::learnable;
  expect_te_refusal(scenario, "has sinks only with a2a: p2p");
  scenario = make_case({16}, 2, LayoutKind::dual_chunk, CommType::a2a);
  scenario.attention.heads = 2;
  expect_te_refusal(scenario, "requires kv_heads % ranks == 0: 1 KV heads, 2 ranks");
  scenario.attention.kv_heads = 2;
  scenario.parallel.heads_per_stage = 1;
  expect_te_refusal(scenario, "has no stages of heads");
  scenario = make_case({16}, 2);
  scenario.parallel.kv_replicated = 4;
  expect_te_refusal(scenario, "has no keys that every rank holds");
  scenario.parallel.kv_replicated = 0;
  scenario.parallel.group_rule = GroupRule::given;
  scenario.parallel.cp_sizes.assign(scenario.batch.lengths.size(), 1);
  expect_te_refusal(scenario, "is called for one group of ranks at a time");
}

/// Packed tokens in order, keys gathered: TransformerEngine's NO_LOAD_BALANCE.
Scenario in_order_case(std::vector<int64_t> lengths, std::vector<int64_t> slots, int32_t cp_size) {
  Scenario scenario =
      padded_case(std::move(lengths), std::move(slots), cp_size, CommType::all_gather);
  scenario.parallel.layout = LayoutKind::contiguous;
  return scenario;
}

bool has_note(const TeView& view, const std::string& words) {
  return std::any_of(view.notes.begin(), view.notes.end(), [&](const std::string& note) {
    return note.find(words) != std::string::npos;
  });
}

void expect_tile(const TeTile& tile, const Sums& q, const Sums& q_padded, const Sums& kv) {
  EXPECT_EQ(tile.lengths.cu_seqlens_q, q);
  EXPECT_EQ(tile.cu_seqlens_q_padded, q_padded);
  EXPECT_EQ(tile.lengths.cu_seqlens_kv, kv);
  EXPECT_EQ(tile.shortcut_difference, "");
}

// Expected values: returned by get_no_load_balance_thd_causal_metadata of TransformerEngine 2.20.2.
TEST(TeView, CutsABufferInOrderAcrossSequences) {
  const TeView view = view_of(in_order_case({698, 137, 2041}, {704, 144, 2048}, 4));
  ASSERT_EQ(view.tiles.size(), 4u) << "one step a rank";
  expect_tile(view.tiles[0], {0, 698, 718, 718}, {0, 704, 724, 724}, {0, 698, 718, 718});
  expect_tile(view.tiles[1], {0, 0, 117, 717}, {0, 0, 124, 724}, {0, 698, 835, 1435});
  expect_tile(view.tiles[2], {0, 0, 0, 724}, {0, 0, 0, 724}, {0, 698, 835, 2159});
  expect_tile(view.tiles[3], {0, 0, 0, 717}, {0, 0, 0, 724}, {0, 698, 835, 2876});
  const TeTile& tile = view.tiles[1];
  EXPECT_EQ(to_name(tile.section), "chunk");
  EXPECT_EQ(tile.attn_mask_type, "padding_causal_bottom_right");
  EXPECT_EQ(std::pair(tile.window_left, tile.window_right), (std::pair<int64_t, int64_t>(-1, 0)));
  EXPECT_EQ(tile.cu_seqlens_kv_padded, (Sums{0, 704, 848, 2896}));
  EXPECT_EQ(tile.kv_rank, -1);
  EXPECT_TRUE(has_note(view, "NO_LOAD_BALANCE"));
}

TEST(TeView, BoundsTheQueriesOfABufferInOrderByTheChunkAndTheKeysByTheSlot) {
  const TeTile cut = view_of(in_order_case({698, 137, 2041}, {704, 144, 2048}, 4)).tiles[0];
  EXPECT_EQ(std::pair(cut.max_seqlen_q, cut.max_seqlen_kv),
            (std::pair<int64_t, int64_t>(724, 2048)));
  const TeTile whole = view_of(in_order_case({3, 3, 3, 3}, {3, 3, 3, 3}, 2)).tiles[0];
  EXPECT_EQ(std::pair(whole.max_seqlen_q, whole.max_seqlen_kv),
            (std::pair<int64_t, int64_t>(3, 3)));
}

TEST(TeView, CutsABufferInOrderThroughEmptySequences) {
  const TeView view = view_of(in_order_case({5, 0, 7, 3}, {6, 2, 8, 4}, 4));
  expect_tile(view.tiles[0], {0, 5, 5, 5, 5}, {0, 5, 5, 5, 5}, {0, 5, 5, 5, 5});
  expect_tile(view.tiles[1], {0, 0, 0, 2, 2}, {0, 1, 3, 5, 5}, {0, 5, 5, 7, 7});
  expect_tile(view.tiles[2], {0, 0, 0, 5, 5}, {0, 0, 0, 5, 5}, {0, 5, 5, 12, 12});
  expect_tile(view.tiles[3], {0, 0, 0, 0, 3}, {0, 0, 0, 1, 5}, {0, 5, 5, 12, 15});
}

TEST(TeView, GivesTheTailOfABufferInOrderToTheLastSlot) {
  // 17 tokens on four ranks: cu_seqlens_padded has to end with the buffer of 20.
  const TeView view = view_of(in_order_case({7, 10}, {7, 10}, 4));
  EXPECT_EQ(view.cu_seqlens_q_padded, (Sums{0, 7, 20}));
  EXPECT_EQ(view.cu_seqlens_kv_padded, (Sums{0, 7, 20}));
  EXPECT_EQ(view.max_seqlen_kv, 13);
  expect_tile(view.tiles[0], {0, 5, 5}, {0, 5, 5}, {0, 5, 5});
  expect_tile(view.tiles[1], {0, 2, 5}, {0, 2, 5}, {0, 7, 10});
  expect_tile(view.tiles[2], {0, 0, 5}, {0, 0, 5}, {0, 7, 15});
  expect_tile(view.tiles[3], {0, 0, 2}, {0, 0, 5}, {0, 7, 17});
  EXPECT_TRUE(has_note(view, "the last slot has the 3 tokens that make it a multiple of 4"));
}

TEST(TeView, SaysWhichBackEndTakesThePaddingOfABufferInOrder) {
  const std::string between = "only the fused back end takes padding between sequences",
                    at_the_end = "only with pad_between_seqs = False";
  const TeView full = view_of(in_order_case({7, 13}, {7, 13}, 4));
  EXPECT_FALSE(has_note(full, between));
  EXPECT_FALSE(has_note(full, at_the_end));
  const TeView inside = view_of(in_order_case({6, 13}, {7, 13}, 4));
  EXPECT_TRUE(has_note(inside, between));
  EXPECT_FALSE(has_note(inside, at_the_end));
  const TeView after = view_of(in_order_case({7, 12, 0}, {7, 13, 4}, 4));
  EXPECT_FALSE(has_note(after, between));
  EXPECT_TRUE(has_note(after, at_the_end));
  const TeView tail = view_of(in_order_case({7, 10}, {7, 10}, 4));
  EXPECT_TRUE(has_note(tail, at_the_end));
}

TEST(TeView, WarnsOfFlashAttentionTwoOnlyWhereChunksAreTwo) {
  const std::string words = "FlashAttention 2 reads wrong rows";
  EXPECT_TRUE(has_note(view_of(padded_case({16}, {16}, 2, CommType::all_gather)), words));
  EXPECT_FALSE(has_note(view_of(in_order_case({16}, {16}, 2)), words));
  EXPECT_FALSE(has_note(view_of(padded_case({16}, {16}, 2)), words));
}

TEST(TeView, RefusesBuffersInOrderThatTransformerEngineAsserts) {
  const std::string only = "supports layout contiguous (NO_LOAD_BALANCE) only ";
  Scenario scenario = in_order_case({16}, {16}, 2);
  scenario.batch.qkv_format = QkvFormat::bshd;
  expect_te_refusal(scenario, only + "in thd: bshd");
  for (const CommType comm : {CommType::p2p, CommType::a2a, CommType::a2a_p2p}) {
    scenario = in_order_case({16}, {16}, 4);
    scenario.attention.heads = scenario.attention.kv_heads = 4;
    scenario.parallel.comm_type = comm;
    scenario.parallel.a2a_size = 2;
    expect_te_refusal(scenario, only + "with all_gather: " + std::string(to_name(comm)));
  }
  scenario = in_order_case({16}, {16}, 2);
  scenario.attention.mask_type = MaskType::padding;
  expect_te_refusal(scenario, only + "with a causal mask: padding");
  scenario = in_order_case({16}, {16}, 2);
  scenario.attention.window_left = 5;
  expect_te_refusal(scenario, only + "without a window: 5");
  scenario = in_order_case({16}, {16}, 2);
  scenario.attention.mask_type = MaskType::padding_causal_bottom_right;
  expect_te_refusal(scenario, "refuses bottom-right masks");
  scenario = in_order_case({16}, {16}, 2);
  scenario.attention.softmax_type = SoftmaxType::learnable;
  expect_te_refusal(scenario, "has sinks only with a2a: all_gather");
}

TEST(TeView, ShowsSoftcapWhereFlashAttentionTwoRuns) {
  const auto capped = [](Scenario scenario) {
    scenario.attention.softcap = 20.0;
    scenario.attention.heads = scenario.attention.kv_heads = 4;
    return scenario;
  };
  for (const CommType comm : {CommType::p2p, CommType::a2a, CommType::a2a_p2p}) {
    Scenario scenario = capped(padded_case({16, 32}, {16, 32}, 4, comm));
    scenario.parallel.a2a_size = 2;
    EXPECT_TRUE(has_note(view_of(scenario), "softcap runs in FlashAttention 2"));
  }
  Scenario rows = capped(make_case({16}, 2, LayoutKind::dual_chunk, CommType::all_gather));
  rows.batch.qkv_format = QkvFormat::bshd;
  EXPECT_TRUE(has_note(view_of(rows), "softcap runs in FlashAttention 2"));
  // In order, without padding between sequences, one list is right as lengths and as offsets.
  EXPECT_EQ(view_of(capped(in_order_case({7, 10}, {7, 10}, 4))).tiles.size(), 4u);
}

TEST(TeView, RefusesSoftcapWhereOnlyOtherBackEndsWouldRun) {
  const auto capped = [](Scenario scenario) {
    scenario.attention.softcap = 20.0;
    return scenario;
  };
  const std::string only = "has softcap only in FlashAttention 2, which ";
  expect_te_refusal(capped(padded_case({16, 14}, {16, 16}, 2)),
                    only + "takes no padding between sequences: sequence 1 has 14 of 16 tokens");
  expect_te_refusal(capped(in_order_case({6, 13}, {7, 13}, 4)),
                    only + "takes no padding between sequences: sequence 0 has 6 of 7 tokens");
  expect_te_refusal(capped(padded_case({16}, {16}, 2, CommType::all_gather)),
                    only + "reads wrong rows with all_gather of thd in layout dual_chunk");
  Scenario sinks = capped(padded_case({16}, {16}, 2, CommType::a2a));
  sinks.attention.heads = sinks.attention.kv_heads = 2;
  sinks.attention.softmax_type = SoftmaxType::off_by_one;
  expect_te_refusal(sinks,
                    "has sinks only in the fused back end and softcap only in FlashAttention 2");
}

TEST(TeView, RefusesMoreNumbersThanAnybodyReads) {
  // The parts of a plan that are read before anything is made.
  Plan plan;
  plan.scenario = make_case({512}, 256);
  plan.layout.cp_size = plan.forward.num_steps = 256;
  plan.layout.slots.sequences.resize(600);
  const Result<TeView> view = view_as_te(plan);
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(
      to_text(view.error()).find("TransformerEngine's lengths of 256 ranks, 256 steps and 600"), 0u)
      << to_text(view.error());
}

// --- cell by cell: the words of TransformerEngine's description, read anew ---

using Cells = std::set<std::pair<int64_t, int64_t>>;  // packed ids of query and key

/// Row u of a rank's two chunks of a slot.
int64_t id_of_row(int64_t begin, int64_t slot, int64_t places, int64_t rank, int64_t u) {
  const int64_t chunk = slot / (2 * places);
  return begin + (u < chunk ? rank * chunk + u : (2 * places - 1 - rank) * chunk + u - chunk);
}

/// The cells that a kernel with these lengths computes.
Cells cells_of(const TeTile& tile, const TeLengths& lengths, const Plan& plan) {
  const Parallel& parallel = plan.scenario.parallel;
  const int64_t a2a = parallel.comm_type == CommType::a2a_p2p ? parallel.a2a_size : 1;
  const int64_t places = parallel.cp_size / a2a, parts = 2 * places;
  Cells cells;
  for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
    const SequenceSlot& slot = plan.layout.slots.sequences[s];
    const int64_t rows = lengths.cu_seqlens_q[s + 1] - lengths.cu_seqlens_q[s],
                  keys = lengths.cu_seqlens_kv[s + 1] - lengths.cu_seqlens_kv[s];
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        const int64_t diagonal = i + keys - rows;
        const bool is_causal = tile.attn_mask_type.find("causal") != std::string::npos;
        if (is_causal && j > (tile.is_bottom_right ? diagonal : i)) continue;
        if (tile.window_left >= 0 && j < diagonal - tile.window_left) continue;
        if (tile.window_right >= 0 && j > diagonal + tile.window_right) continue;
        int64_t query = slot.q_begin + i, key = slot.kv_begin + tile.kv_begin + j;
        if (parallel.layout == LayoutKind::contiguous) {
          const int64_t share = plan.layout.slots.tokens / parallel.cp_size;
          query = std::max(slot.q_begin, tile.rank * share) + i;
        } else if (tile.section == TeSection::chunk) {
          const int64_t chunk = tile.step == 0 ? tile.rank : parts - 1 - tile.rank;
          query += chunk * (slot.q_slot / parts);
        } else if (tile.kv_rank >= 0) {
          const int64_t q_skip = tile.q_half == TeHalf::second ? slot.q_slot / parts : 0;
          query = id_of_row(slot.q_begin, slot.q_slot, places, tile.rank / a2a, q_skip + i);
          key = id_of_row(slot.kv_begin, slot.kv_slot, places, tile.kv_rank, j);
        }
        cells.emplace(query, key);
      }
    }
  }
  return cells;
}

/// The cells that the plan computes at the place of the tile.
Cells planned_cells(const TeTile& tile, const Plan& plan) {
  Cells cells;
  for (const ComputeItem& item : plan.forward.computes) {
    const bool is_chunk = tile.section == TeSection::chunk;
    if (to_index(item.rank) != tile.rank) continue;
    if (!is_chunk && to_index(item.step) != tile.step) continue;
    const std::vector<int64_t> q = expand(plan.list(item.q_tokens)),
                               kv = expand(plan.list(item.kv_tokens));
    for (const BandSlice& band : plan.slices_of(item)) {
      for (int64_t i = band.q0; i < band.q1; ++i) {
        for (int64_t j = band.k0; j < band.k1; ++j) {
          const int64_t diagonal = (j - band.k0) - (i - band.q0);
          if (diagonal < band.lo || diagonal > band.hi) continue;
          cells.emplace(q[static_cast<size_t>(i)], kv[static_cast<size_t>(j)]);
        }
      }
    }
  }
  if (tile.section != TeSection::chunk) return cells;
  if (plan.scenario.parallel.layout == LayoutKind::contiguous) return cells;
  // The plan has both chunks of a rank in one step.
  const int64_t parts = 2 * plan.scenario.parallel.cp_size;
  const int64_t chunk = tile.step == 0 ? tile.rank : parts - 1 - tile.rank;
  std::erase_if(cells, [&](const auto& cell) {
    for (const SequenceSlot& slot : plan.layout.slots.sequences) {
      const int64_t begin = slot.q_begin + chunk * (slot.q_slot / parts);
      if (cell.first >= begin && cell.first < begin + slot.q_slot / parts) return false;
    }
    return true;
  });
  return cells;
}

Scenario random_te_case(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  const CommType comms[] = {CommType::p2p, CommType::a2a, CommType::all_gather, CommType::a2a_p2p};
  const CommType comm = comms[draw(4)];
  int32_t ranks = static_cast<int32_t>(1 + draw(5));
  if (comm == CommType::a2a_p2p) ranks = 4 + 2 * static_cast<int32_t>(draw(2));
  const bool is_thd = draw(4) > 0;
  std::vector<int64_t> lengths, slots;
  const int64_t equal = 2 * ranks * (1 + draw(3));
  for (int64_t s = 1 + draw(3); s > 0; --s) {
    const int64_t slot = is_thd ? 2 * ranks * draw(4) : equal;
    slots.push_back(slot);
    lengths.push_back(is_thd && draw(3) > 0 ? draw(slot + 1) : slot);
  }
  Scenario scenario = padded_case(lengths, slots, ranks, comm);
  scenario.parallel.a2a_size = 2;
  scenario.attention.heads = scenario.attention.kv_heads = 60;
  scenario.batch.qkv_format = is_thd ? QkvFormat::thd : QkvFormat::bshd;
  scenario.numerics.backward = false;
  if (draw(2) == 0) scenario.attention.mask_type = MaskType::no_mask;
  const bool may_window = comm == CommType::a2a || comm == CommType::all_gather;
  if (may_window && draw(3) > 0) {
    scenario.attention.window_left = draw(8) - 1;
    scenario.attention.window_right = draw(8) - 1;
  }
  return scenario;
}

TEST(TeView, ComputesThePlansCellsExactlyWhereItSaysSo) {
  int64_t exact = 0, wrong_shortcuts = 0, floored_right = 0, floored_wrong = 0;
  for (uint64_t seed = 0; seed < 600 && !testing::Test::HasFailure(); ++seed) {
    const Scenario scenario = random_te_case(seed);
    const Result<Plan> plan = make_plan(scenario);
    ASSERT_TRUE(plan.ok()) << show(scenario) << to_text(plan.error());
    const Result<TeView> view = view_as_te(plan.value());
    ASSERT_TRUE(view.ok()) << show(scenario) << to_text(view.error());
    for (const TeTile& tile : view.value().tiles) {
      const std::string where = "seed " + std::to_string(seed) + ", rank " +
                                std::to_string(tile.rank) + ", step " + std::to_string(tile.step) +
                                "\n" + show(scenario);
      const Cells planned = planned_cells(tile, plan.value());
      const Cells cells = cells_of(tile, tile.lengths, plan.value());
      EXPECT_EQ(cells == planned, tile.shortcut_difference.empty())
          << tile.shortcut_difference << "\n"
          << where;
      EXPECT_EQ(static_cast<int64_t>(cells.size()), tile.lengths.pairs) << where;
      ++(tile.shortcut_difference.empty() ? exact : wrong_shortcuts);
      if (!tile.floored) continue;
      const Cells floored = cells_of(tile, *tile.floored, plan.value());
      EXPECT_EQ(floored == planned, tile.floored_difference.empty())
          << tile.floored_difference << "\n"
          << where;
      EXPECT_EQ(static_cast<int64_t>(floored.size()), tile.floored->pairs) << where;
      ++(tile.floored_difference.empty() ? floored_right : floored_wrong);
    }
  }
  // All four outcomes must occur often.
  EXPECT_GT(exact, 1000);
  EXPECT_GT(wrong_shortcuts, 40);
  EXPECT_GT(floored_right, 100);
  EXPECT_GT(floored_wrong, 100);
}

TEST(TeView, ComputesThePlansCellsOfBuffersInOrder) {
  int64_t cut = 0, tails = 0;
  for (uint64_t seed = 0; seed < 300 && !testing::Test::HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t most) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
    };
    const int32_t ranks = static_cast<int32_t>(1 + draw(6));
    std::vector<int64_t> lengths, slots;
    for (int64_t s = 1 + draw(5); s > 0; --s) {
      slots.push_back(1 + draw(14));
      lengths.push_back(draw(2) == 0 ? slots.back() : draw(slots.back() + 1));
    }
    Scenario scenario = in_order_case(lengths, slots, ranks);
    scenario.numerics.backward = false;
    const Result<Plan> plan = make_plan(scenario);
    ASSERT_TRUE(plan.ok()) << show(scenario) << to_text(plan.error());
    const Result<TeView> view = view_as_te(plan.value());
    ASSERT_TRUE(view.ok()) << show(scenario) << to_text(view.error());
    EXPECT_EQ(view.value().cu_seqlens_q_padded.back(), plan.value().layout.slots.tokens);
    tails +=
        plan.value().layout.slots.tokens == std::accumulate(slots.begin(), slots.end(), int64_t{0})
            ? 0
            : 1;
    for (const TeTile& tile : view.value().tiles) {
      const Cells cells = cells_of(tile, tile.lengths, plan.value());
      EXPECT_EQ(cells, planned_cells(tile, plan.value()))
          << "seed " << seed << ", rank " << tile.rank << "\n"
          << show(scenario);
      EXPECT_EQ(static_cast<int64_t>(cells.size()), tile.lengths.pairs);
      EXPECT_EQ(tile.shortcut_difference, "");
      cut += tile.lengths.cu_seqlens_q.back() == 0 ? 0 : 1;
    }
  }
  EXPECT_GT(cut, 500);
  EXPECT_GT(tails, 50);
}

}  // namespace
}  // namespace cpscope::tests
