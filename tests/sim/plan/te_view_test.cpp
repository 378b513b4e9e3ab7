#include "sim/plan/te/te_view.h"

#include "sim/plan/planner/planner.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
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

TEST(TeView, RefusesByNameWhatTransformerEngineHasNot) {
  const auto refusal = [](const Scenario& scenario) {
    const Result<TeView> view = view_as_te(plan_of(scenario));
    EXPECT_FALSE(view.ok());
    return view.ok() ? std::string() : to_text(view.error());
  };
  const auto expect = [&](const Scenario& scenario, const std::string& words) {
    EXPECT_EQ(refusal(scenario).find("TransformerEngine " + words), 0u) << refusal(scenario);
  };
  expect(make_case({16}, 2, LayoutKind::striped), "supports only layout dual_chunk: striped");
  expect(make_case({16}, 2, LayoutKind::dual_chunk, CommType::group_cast), "has no group_cast");
  Scenario scenario = make_case({16}, 2);
  scenario.attention.window_left = 3;
  expect(scenario, "does not support sliding window attention with cp_comm_type p2p");
  scenario = make_case({16}, 2);
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  expect(scenario, "refuses bottom-right masks");
  expect(make_cross_case({16}, {8}, 2), "refuses causal masks over keys of other lengths");
  scenario = make_case({16}, 2);
  scenario.attention.chunk_size = 4;
  expect(scenario, "has no chunked attention");
  scenario = make_case({16, 14}, 2);
  scenario.batch.qkv_format = QkvFormat::bshd;
  scenario.batch.slots = scenario.batch.kv_slots = {16, 16};
  expect(scenario,
         "does not support padding in bshd under context parallelism: sequence 1 has 14 of 16");
  scenario = make_case({16}, 2);
  scenario.attention.softmax_type = SoftmaxType::learnable;
  expect(scenario, "has sinks only with a2a: p2p");
  scenario = make_case({16}, 2, LayoutKind::dual_chunk, CommType::a2a);
  scenario.attention.heads = 2;
  expect(scenario, "requires kv_heads % ranks == 0: 1 KV heads, 2 ranks");
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
        if (tile.section == TeSection::chunk) {
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

}  // namespace
}  // namespace cpscope::tests
