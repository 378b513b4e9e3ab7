#include "sim/plan/order/order_import.h"

#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/order_file.h"
#include "sim/scenario/partition_fault.h"
#include "tests/sim/plan/plan_cases.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

// Token orders of frameworks, from their formulas and worked examples.

namespace cpscope::tests {
namespace {

using Lists = std::vector<std::vector<int64_t>>;

const Lists kTwoSequences{{0, 1, 6, 7, 8, 11}, {2, 3, 4, 5, 9, 10}};

ImportRequest te_request(Lists indices = {}) {
  ImportRequest request{.source = OrderSource::te, .layout = ""};
  request.given.push_back({"cu_seqlens_padded", {{0, 8, 12}}});
  if (!indices.empty()) request.given.push_back({"indices", std::move(indices)});
  return request;
}

ImportRequest named(OrderSource source, const std::string& layout, int64_t ranks, int64_t tokens,
                    int64_t ulysses_degree = 1) {
  return {.source = source,
          .layout = layout,
          .cp_size = ranks,
          .ulysses_degree = ulysses_degree,
          .tokens = tokens};
}

Lists ranks_of(const ImportRequest& request) {
  const Result<OrderImport> order = import_order(request);
  EXPECT_TRUE(order.ok()) << to_text(order.error());
  return order ? order.value().ranks : Lists{};
}

std::string refusal_of(const ImportRequest& request) {
  const Result<OrderImport> order = import_order(request);
  EXPECT_FALSE(order.ok());
  return order.ok() ? "" : to_text(order.error());
}

ImportRequest magi_request(Lists position_ids, std::vector<int64_t> cu_seqlens = {}) {
  ImportRequest request{
      .source = OrderSource::magi, .layout = "", .cu_seqlens = std::move(cu_seqlens)};
  request.given.push_back({"position_ids", std::move(position_ids)});
  return request;
}

// Chunks of 4 of 14 tokens on two ranks: the last chunk has two rows of padding, clamped to 13.
TEST(OrderImport, NumbersThePaddingThatMagiAttentionClamps) {
  const Result<OrderImport> order = import_order(
      magi_request({{0, 1, 2, 3, 12, 13, 13, 13}, {4, 5, 6, 7, 8, 9, 10, 11}}, {0, 5, 14}));
  ASSERT_TRUE(order.ok()) << to_text(order.error());
  EXPECT_EQ(order.value().ranks, (Lists{{0, 1, 2, 3, 12, 13, 14, 15}, {4, 5, 6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(order.value().lengths, (std::vector<int64_t>{5, 9}));
  EXPECT_EQ(order.value().slots, (std::vector<int64_t>{5, 11}));
  EXPECT_NE(order.value().notes.front().find("2 rows repeat the id of the last token, 13"),
            std::string::npos);
}

TEST(OrderImport, FindsTheLastTokenOfMagiAttentionAmongChunksOfPadding) {
  // A chunk of padding alone stands on an earlier rank than the last token.
  EXPECT_EQ(ranks_of(magi_request({{0, 1, 5, 5}, {5, 5, 2, 3}, {4, 5}})),
            (Lists{{0, 1, 6, 7}, {8, 9, 2, 3}, {4, 5}}));
  EXPECT_EQ(ranks_of(magi_request({{0, 1}, {2, 2}})), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(ranks_of(magi_request({{2, 3}, {0, 1}})), (Lists{{2, 3}, {0, 1}}));
}

TEST(OrderImport, RejectsPositionIdsThatLoseATokenOrFitNoBoundaries) {
  EXPECT_NE(refusal_of(magi_request({{0, 1, 3}, {4, 4}}))
                .find("token 2 (sequence 0, position 2) is lost"),
            std::string::npos);
  EXPECT_NE(refusal_of(magi_request({{0, 1, 1}, {2, 3}}))
                .find("token 1 (sequence 0, position 1) appears twice"),
            std::string::npos);
  EXPECT_NE(refusal_of(magi_request({{0, 1}, {2, 3}}, {0, 6})).find("6 and 4"), std::string::npos);
  EXPECT_NE(refusal_of(magi_request({})).find("the position ids are missing"), std::string::npos);
  EXPECT_NE(refusal_of(magi_request({{}, {}})), "");
  EXPECT_NE(refusal_of(magi_request({{-5, -5}})), "");
}

TEST(OrderImport, ComputesWhatTransformerEngineAssigns) {
  ImportRequest request = te_request();
  request.cp_size = 2;
  EXPECT_EQ(ranks_of(request), kTwoSequences);
  ImportRequest four{.source = OrderSource::te, .layout = "", .cp_size = 4};
  four.cu_seqlens = {0, 8, 16, 24, 40};
  EXPECT_EQ(ranks_of(four), (Lists{{0, 7, 8, 15, 16, 23, 24, 25, 38, 39},
                                   {1, 6, 9, 14, 17, 22, 26, 27, 36, 37},
                                   {2, 5, 10, 13, 18, 21, 28, 29, 34, 35},
                                   {3, 4, 11, 12, 19, 20, 30, 31, 32, 33}}));
  EXPECT_EQ(import_order(four).value().same_layout, "dual_chunk");
}

TEST(OrderImport, ChecksListsAgainstTransformerEnginesFormula) {
  const OrderImport right = import_order(te_request(kTwoSequences)).value();
  EXPECT_EQ(right.cp_size, 2) << "as many ranks as lists";
  EXPECT_EQ(right.notes,
            std::vector<std::string>{"the lists are those of thd_get_partitioned_indices"});
  EXPECT_TRUE(right.differences.empty());
  Lists swapped = kTwoSequences;
  std::swap(swapped[0][2], swapped[1][0]);
  const OrderImport other = import_order(te_request(swapped)).value();
  EXPECT_EQ(other.ranks, swapped);
  EXPECT_EQ(other.differences, std::vector<std::string>{"rank 0, local row 2: the list says 2, "
                                                        "thd_get_partitioned_indices gives 6"});
  EXPECT_EQ(other.same_layout, "");
}

TEST(OrderImport, TakesValidLengthsAndSlotsFromBothBoundaries) {
  ImportRequest request = te_request();
  request.cp_size = 2;
  request.given.push_back({"cu_seqlens", {{0, 7, 10}}});
  const OrderImport order = import_order(request).value();
  EXPECT_EQ(order.lengths, (std::vector<int64_t>{7, 3}));
  EXPECT_EQ(order.slots, (std::vector<int64_t>{8, 4}));
  request.given.back().lists = {{0, 9, 10}};
  EXPECT_EQ(refusal_of(request), "sequence 0 is longer than its slot: 9 valid tokens, 8 padded");
  request.given.back().lists = {{0, 7, 10, 12}};
  EXPECT_EQ(refusal_of(request),
            "cu_seqlens and cu_seqlens_padded count different sequences: 3 and 2");
  request.given.back().lists = {{0, 7, 5}};
  EXPECT_EQ(refusal_of(request), "cu_seqlens decreases at sequence 1: 5 after 7");
}

TEST(OrderImport, TakesAnOrderOfItsOwnForKeys) {
  ImportRequest request = te_request();
  request.cp_size = 2;
  request.given.push_back({"cu_seqlens_kv_padded", {{0, 4, 8}}});
  const OrderImport order = import_order(request).value();
  EXPECT_EQ(order.kv_ranks, (Lists{{0, 3, 4, 7}, {1, 2, 5, 6}}));
  EXPECT_EQ(order.kv_slots, (std::vector<int64_t>{4, 4}));
  request.given.back().lists = {{0, 8, 12}};
  EXPECT_TRUE(import_order(request).value().kv_ranks.empty()) << "the same as the queries'";
}

TEST(OrderImport, KeepsKeysThatAreAssignedOtherwiseInEquallyLongSequences) {
  ImportRequest request = te_request(kTwoSequences);
  request.given.push_back({"cu_seqlens_kv_padded", {{0, 8, 12}}});
  request.given.push_back({"indices_kv", {kTwoSequences[1], kTwoSequences[0]}});
  EXPECT_EQ(import_order(request).value().kv_ranks, (Lists{kTwoSequences[1], kTwoSequences[0]}));
}

TEST(OrderImport, SaysThatBoundariesAreEmpty) {
  for (const Lists& lists : {Lists{}, Lists{{}}}) {
    ImportRequest request{.source = OrderSource::te, .layout = "", .cp_size = 2};
    request.given = {{"cu_seqlens", lists}};
    EXPECT_EQ(refusal_of(request),
              "cu_seqlens is empty; it begins with 0 and has one number more than there are "
              "sequences");
  }
}

TEST(OrderImport, FindsDocumentsWherePositionsRestart) {
  ImportRequest request{.source = OrderSource::te, .layout = "", .cp_size = 2};
  // The last document does not begin at 0: a chunk of a longer one.
  request.given = {{"position_ids", {{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11}}}};
  const OrderImport order = import_order(request).value();
  EXPECT_EQ(order.lengths, (std::vector<int64_t>{8, 4, 4}));
  EXPECT_EQ(order.slots, order.lengths);
  EXPECT_EQ(order.same_layout, "dual_chunk");
  EXPECT_EQ(order.notes.back(), "the sequences are the 3 documents of position_ids");
  // Every row of a batch ends a document.
  request.given = {{"position_ids", {{0, 1, 2, 3}, {4, 5, 6, 7}}}};
  EXPECT_EQ(import_order(request).value().lengths, (std::vector<int64_t>{4, 4}));
  ImportRequest ring = named(OrderSource::ring_flash_attention, "ring", 1, 0);
  ring.given = {{"position_ids", {{0, 1, 2, 0, 0, 0}}}};
  EXPECT_EQ(import_order(ring).value().notes.back(),
            "the last 3 documents have one token each: they may be padding");
}

TEST(OrderImport, ComparesPositionsWithBoundaries) {
  ImportRequest request = te_request();
  request.cp_size = 2;
  request.given.push_back({"position_ids", {{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3}}});
  EXPECT_EQ(import_order(request).value().notes.back(),
            "position_ids restart where the sequences begin");
  request.given.back().lists = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
  const OrderImport other = import_order(request).value();
  EXPECT_EQ(other.slots, (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(
      other.notes.back(),
      "position_ids restart elsewhere, and the boundaries are used: 1 documents, 2 sequences");
}

TEST(OrderImport, RefusesPositionsOfNoToken) {
  ImportRequest request{.source = OrderSource::te, .layout = "", .cp_size = 2};
  request.given = {{"position_ids", {}}};
  EXPECT_EQ(refusal_of(request),
            "position_ids is empty; give the position of every token in its document");
  request.given.back().lists = {{0, 1, -2}};
  EXPECT_EQ(refusal_of(request), "position_ids holds a negative position: -2");
}

TEST(OrderImport, NamesListsThatTheSourceDoesNotHave) {
  ImportRequest request = te_request();
  request.cp_size = 2;
  request.given.push_back({"max_seqlen_q", {{8}}});
  request.given.push_back({"restore", {{0, 1}}});
  EXPECT_EQ(import_order(request).value().ignored,
            (std::vector<std::string>{"max_seqlen_q", "restore"}));
  request.given.erase(request.given.begin());
  EXPECT_EQ(refusal_of(request),
            "neither lists nor boundaries are given; give indices (a list a rank), "
            "cu_seqlens_padded, or both; ignored: max_seqlen_q, restore");
}

TEST(OrderImport, RefusesBoundariesInSeveralLists) {
  for (const std::string name : {"cu_seqlens_padded", "cu_seqlens"}) {
    ImportRequest request{.source = OrderSource::te, .layout = "", .cp_size = 2};
    request.given.push_back({name, {{0, 8}, {0, 12}}});
    EXPECT_NE(refusal_of(request).find(name + " must be one list: 2 lists"), std::string::npos)
        << refusal_of(request);
  }
}

TEST(OrderImport, NamesWhatIsLostAndWhatIsThereTwice) {
  EXPECT_EQ(
      refusal_of(te_request({{0, 1, 6, 7, 8, 11}, {2, 3, 4, 4, 9, 10}})),
      "the query lists are not a partition of tokens 0 to 11: token 4 (sequence 0, position 4) "
      "appears twice: on rank 1 row 2 and on rank 1 row 3; token 5 (sequence 0, position 5) is "
      "lost; every packed padded token, padding included, has one owner");
  EXPECT_EQ(
      describe_partition_fault({{0, 9}, {-1, 0}}, 3).value(),
      "rank 0 row 1 holds 9, which is outside; rank 1 row 0 holds -1, which is outside; token "
      "0 appears twice: on rank 0 row 0 and on rank 1 row 1; token 1 is lost; token 2 is lost");
  std::vector<int64_t> half(50);
  std::iota(half.begin(), half.end(), 0);
  EXPECT_TRUE(describe_partition_fault({half}, 100).value().ends_with("; and 45 more"));
  EXPECT_FALSE(describe_partition_fault(kTwoSequences, 12).has_value());
}

TEST(OrderImport, RefusesSlotsThatTransformerEngineCannotCut) {
  ImportRequest request = te_request();
  request.cp_size = 3;
  EXPECT_EQ(
      refusal_of(request),
      "the slot of sequence 0 is not divisible by 6, which TransformerEngine requires: 8; pad the "
      "sequences first");
}

TEST(OrderImport, CutsPyTorchsIndicesContiguously) {
  ImportRequest request{.source = OrderSource::torch, .layout = "", .cp_size = 4};
  request.given = {{"rearrange", {{0, 7, 1, 6, 2, 5, 3, 4}}}};
  EXPECT_EQ(ranks_of(request), (Lists{{0, 7}, {1, 6}, {2, 5}, {3, 4}}));
  // The inverse alone has the same information.
  request.given = {{"restore", {{0, 2, 4, 6, 7, 5, 3, 1}}}};
  EXPECT_EQ(ranks_of(request), (Lists{{0, 7}, {1, 6}, {2, 5}, {3, 4}}));
  request.given.push_back({"rearrange", {{0, 7, 1, 6, 2, 5, 3, 4}}});
  EXPECT_EQ(import_order(request).value().notes,
            std::vector<std::string>{"restore is the inverse of rearrange"});
  request.given[0].lists = {{0, 7, 1, 6, 2, 5, 3, 4}};
  EXPECT_EQ(import_order(request).value().differences,
            std::vector<std::string>{"restore is not the inverse of rearrange in sequence 0"});
  request.given = {{"rearrange", {{0, 7, 1, 6, 2, 5, 3, 3}}}};
  EXPECT_EQ(refusal_of(request),
            "the indices are not a permutation of 0 to 7: token 3 appears twice: on rank 0 row "
            "6 and on rank 0 row 7; token 4 is lost");
}

TEST(OrderImport, KeepsBatchedIndicesOfPyTorchApart) {
  ImportRequest request{.source = OrderSource::torch, .layout = "", .cp_size = 2};
  request.given = {{"", {{0, 3, 1, 2}, {2, 3, 0, 1}}}};
  EXPECT_EQ(ranks_of(request), (Lists{{0, 3, 6, 7}, {1, 2, 4, 5}}));
  EXPECT_EQ(import_order(request).value().slots, (std::vector<int64_t>{4, 4}));
}

TEST(OrderImport, ShowsTheImbalanceOfPyTorchsDocumentMajorOrder) {
  // pytorch PR#189902: documents of 4 and 12 tokens, 2 ranks, pairs 26 and 62.
  ImportRequest request{.source = OrderSource::torch, .layout = "", .cp_size = 2};
  request.cu_seqlens = {0, 4, 16};
  request.given = {{"", {{0, 3, 1, 2, 4, 5, 6, 13, 14, 15, 7, 8, 9, 10, 11, 12}}}};
  const OrderImport order = import_order(request).value();
  Scenario scenario;
  scenario.attention.heads = scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 8;
  scenario.batch.lengths = scenario.batch.kv_lengths = order.lengths;
  scenario.batch.slots = scenario.batch.kv_slots = order.slots;
  scenario.parallel.cp_size = order.cp_size;
  scenario.parallel.layout = LayoutKind::indices;
  scenario.parallel.imported =
      parse_order(print_order_file(order), "order.json", {2, 16, 16, true}).value();
  EXPECT_EQ(summarise(make_plan(scenario).value()).pairs_by_rank, (std::vector<int64_t>{26, 62}));
}

TEST(OrderImport, KnowsRingFlashAttentionsLayouts) {
  const auto of = [](const char* layout) {
    return ranks_of(named(OrderSource::ring_flash_attention, layout, 4, 16));
  };
  EXPECT_EQ(of("ring")[1], (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(of("zigzag")[1], (std::vector<int64_t>{2, 3, 12, 13}));
  EXPECT_EQ(of("stripe")[1], (std::vector<int64_t>{1, 5, 9, 13}));
  // Two sequences: varlen layouts cut each, llama3 the packed buffer.
  ImportRequest two{.source = OrderSource::ring_flash_attention, .layout = "zigzag", .cp_size = 2};
  two.cu_seqlens = {0, 8, 12};
  EXPECT_EQ(ranks_of(two), kTwoSequences);
  two.layout = "llama3";
  EXPECT_EQ(ranks_of(two), (Lists{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(import_order(two).value().same_layout, "contiguous");
  two.layout = "stripe";
  EXPECT_EQ(ranks_of(two), (Lists{{0, 2, 4, 6, 8, 10}, {1, 3, 5, 7, 9, 11}}));
  two.layout = "spiral";
  EXPECT_EQ(refusal_of(two),
            "ring-flash-attention has no layout of this name: spiral; ring, zigzag, stripe or "
            "llama3");
}

TEST(OrderImport, KnowsUspsLayouts) {
  EXPECT_EQ(ranks_of(named(OrderSource::usp, "zigzag", 4, 16, 2)),
            (Lists{{0, 1, 2, 3}, {12, 13, 14, 15}, {4, 5, 6, 7}, {8, 9, 10, 11}}));
  EXPECT_EQ(ranks_of(named(OrderSource::usp, "zigzag", 4, 16, 4)),
            (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(ranks_of(named(OrderSource::usp, "strip", 4, 8, 2)),
            (Lists{{0, 2}, {4, 6}, {1, 3}, {5, 7}}));
  EXPECT_EQ(ranks_of(named(OrderSource::usp, "basic", 4, 8, 2)),
            (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(refusal_of(named(OrderSource::usp, "basic", 4, 8, 3)),
            "the ranks do not divide by the ulysses degree: 4 ranks, degree 3");
  for (const OrderSource source :
       {OrderSource::te, OrderSource::torch, OrderSource::ring_flash_attention}) {
    EXPECT_EQ(refusal_of(named(source, "zigzag", 2, 8, 42)),
              std::string(to_name(source)) +
                  " has no ulysses degree: 42; leave it out, or import from usp");
  }
  EXPECT_EQ(refusal_of(named(OrderSource::usp, "zigzag", 4, 12, 2)),
            "the slot of sequence 0 is not divisible by 8, which usp zigzag requires: 12; pad the "
            "sequences first");
}

TEST(OrderImport, AssignsEveryTokenOnceWhateverTheSizes) {
  for (const int64_t ranks : {1, 2, 3, 4, 6, 12}) {
    for (const int64_t degree : {1, 2, 3, 4}) {
      if (ranks % degree != 0) continue;
      for (const char* layout : {"basic", "zigzag", "strip"}) {
        const int64_t tokens = 2 * ranks * 5;
        const Lists lists = ranks_of(named(OrderSource::usp, layout, ranks, tokens, degree));
        EXPECT_EQ(describe_partition_fault(lists, tokens), std::nullopt)
            << layout << ", " << ranks << " ranks, degree " << degree;
        for (const auto& list : lists) EXPECT_EQ(list.size(), 10u);
      }
    }
  }
}

/// The slots of a scenario of documents of 5 and 3 tokens that takes an order; empty if it fits
/// none.
std::vector<int64_t> slots_with_order(LayoutKind layout, const std::string& text) {
  Scenario scenario = make_case({5, 3}, 2, layout);
  const Result<OrderDemand> demand = demand_of_order(scenario);
  Result<ImportedOrder> order = read_fitting_order(
      scenario, demand.value(),
      [&](const OrderDemand& fitting) { return parse_order(text, "order", fitting); });
  if (!order || use_order(std::move(order).value(), "order.json", scenario)) return {};
  EXPECT_TRUE(make_layout(scenario).ok());
  return scenario.batch.slots;
}

// dual_chunk pads the documents to 8 and 4 tokens, contiguous nothing.
TEST(OrderImport, FitsTheSlotsOfTheLayoutOrThoseThatWereGiven) {
  const std::string of_8 = R"({"ranks": [[0, 1, 7], [2, 3, 4, 5, 6]]})";
  const std::string of_12 = R"({"ranks": [[0, 1, 7, 11, 10, 9, 8], [2, 3, 4, 5, 6]]})";
  using Slots = std::vector<int64_t>;
  EXPECT_EQ(slots_with_order(LayoutKind::dual_chunk, of_12), (Slots{8, 4}));
  EXPECT_EQ(slots_with_order(LayoutKind::dual_chunk, of_8), (Slots{5, 3}));
  EXPECT_EQ(slots_with_order(LayoutKind::contiguous, of_8), (Slots{5, 3}));
  EXPECT_EQ(slots_with_order(LayoutKind::dual_chunk, R"({"ranks": [[0, 1], [2, 3, 4, 5, 6]]})"),
            Slots{});
}

// 9 tokens on 2 ranks: a row of padding follows the last document, or none.
TEST(OrderImport, TakesThePaddingBehindTheLastSequenceIntoItsSlot) {
  for (const int64_t rows : {9, 10, 12}) {
    Scenario scenario = make_case({5, 4}, 2, LayoutKind::contiguous);
    ImportedOrder order{{{0, 1, 2}, {}}, {}};
    for (int64_t row = 3; row < rows; ++row) order.ranks[1].push_back(row);
    order.kv_ranks = order.ranks;
    ASSERT_FALSE(use_order(order, "order.json", scenario));
    EXPECT_EQ(scenario.batch.slots, (std::vector<int64_t>{5, rows - 5}));
    EXPECT_EQ(scenario.batch.kv_slots, scenario.batch.slots);
    const Result<Layout> layout = make_layout(scenario);
    ASSERT_TRUE(layout.ok());
    EXPECT_EQ(layout.value().slots.tokens, rows);
  }
}

// Padding on the left, and that of rows, is in the slots: an id behind them would belong to
// nothing.
TEST(OrderImport, RefusesIdsBehindTheLastSlotWhereNoPaddingIs) {
  const auto use = [](PadSide side, QkvFormat format) {
    Scenario scenario = make_case({4, 4}, 2, LayoutKind::contiguous);
    scenario.batch.pad_side = side;
    scenario.batch.qkv_format = format;
    ImportedOrder order{{{0, 1, 2, 3, 8}, {4, 5, 6, 7, 9}}, {}};
    order.kv_ranks = order.ranks;
    const std::optional<Error> error = use_order(order, "order.json", scenario);
    return error ? to_text(*error) : "";
  };
  EXPECT_EQ(use(PadSide::left, QkvFormat::thd),
            "the order has 10 ids for slots of 8 tokens, and pad_side left has no padding behind "
            "the last slot; give slots that hold all ids, or leave the ids behind them out");
  EXPECT_EQ(use(PadSide::right, QkvFormat::bshd),
            "the order has 10 ids for slots of 8 tokens, and a batch that is not thd has no "
            "padding behind the last slot; give slots that hold all ids, or leave the ids behind "
            "them out");
  EXPECT_EQ(use(PadSide::right, QkvFormat::thd), "");
}

TEST(OrderImport, SaysWhatIsMissing) {
  EXPECT_EQ(refusal_of({.source = OrderSource::te, .layout = "", .cp_size = 2}),
            "neither lists nor boundaries are given; give indices (a list a rank), "
            "cu_seqlens_padded, or both");
  EXPECT_EQ(refusal_of(te_request()), "the number of ranks is missing; give --cp-size");
  EXPECT_EQ(refusal_of(named(OrderSource::usp, "basic", 4, 0)),
            "the batch is missing; give --tokens or --cu-seqlens");
  ImportRequest nothing{.source = OrderSource::torch, .layout = "", .cp_size = 2};
  nothing.given = {{"", {{}, {}}}};
  EXPECT_EQ(refusal_of(nothing), "there are no tokens; give some");
  ImportRequest negative = te_request();
  negative.cp_size = -4;
  EXPECT_EQ(refusal_of(negative), "cp_size is negative: -4");
  ImportRequest three = te_request(kTwoSequences);
  three.cp_size = 3;
  EXPECT_EQ(refusal_of(three),
            "the number of lists must equal the number of ranks: 2 lists, 3 ranks");
}

}  // namespace
}  // namespace cpscope::tests
