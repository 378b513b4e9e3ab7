// What vLLM's decode context parallelism leaves of a step, imported: batches that a cache written
// here in plain steps has stored, and the same with mistakes.
#include "sim/plan/layout.h"
#include "sim/plan/order/kv_interleave.h"
#include "sim/plan/order/order_import.h"
#include "sim/scenario/partition_fault.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

/// A step, and where every key is.
struct Step {
  int64_t ranks = 2, block_size = 4, interleave = 4;
  std::vector<int64_t> computed = {}, lengths = {};
  Rows tables = {};                   // [request] blocks
  Rows slots = {};                    // [rank][new token]
  Rows key_ranks = {};                // [request][position]
  Rows key_slots = {};                // [request][position]
  std::vector<int64_t> starts = {0};  // query_start_loc
};

/// Stores the keys of the requests one after another: each rank takes `interleave` of them in turn
/// and puts them into the next free slot of the request's block, until the block of every rank is
/// full.
Step store(Step step, std::mt19937& random) {
  std::vector<int64_t> pool(1200);
  std::iota(pool.begin(), pool.end(), 1);
  std::shuffle(pool.begin(), pool.end(), random);
  for (size_t r = 0; r < step.lengths.size(); ++r)
    step.starts.push_back(step.starts.back() + step.lengths[r]);
  step.slots.assign(static_cast<size_t>(step.ranks),
                    std::vector<int64_t>(static_cast<size_t>(step.starts.back()), -1));
  for (size_t r = 0; r < step.lengths.size(); ++r) {
    step.tables.emplace_back();
    step.key_ranks.emplace_back();
    step.key_slots.emplace_back();
    std::vector<int64_t> filled(static_cast<size_t>(step.ranks), step.block_size);
    int64_t rank = 0, taken = 0;
    for (int64_t position = 0; position < step.computed[r] + step.lengths[r]; ++position) {
      const bool is_full = std::all_of(filled.begin(), filled.end(),
                                       [&](int64_t count) { return count == step.block_size; });
      if (is_full) {
        std::fill(filled.begin(), filled.end(), 0);
        step.tables[r].push_back(pool.back());
        pool.pop_back();
      }
      const auto at = static_cast<size_t>(rank);
      const int64_t slot = step.tables[r].back() * step.block_size + filled[at]++;
      step.key_ranks[r].push_back(rank);
      step.key_slots[r].push_back(slot);
      if (position >= step.computed[r])
        step.slots[at][static_cast<size_t>(step.starts[r] + position - step.computed[r])] = slot;
      if (++taken < step.interleave) continue;
      taken = 0;
      rank = (rank + 1) % step.ranks;
    }
  }
  // A table is as wide as the longest, and what is behind a request's blocks is anything.
  size_t widest = 1;
  for (const auto& table : step.tables) widest = std::max(widest, table.size());
  for (auto& table : step.tables) table.resize(widest, 0);
  return step;
}

std::vector<int64_t> totals_of(const Step& step) {
  std::vector<int64_t> totals;
  for (size_t r = 0; r < step.lengths.size(); ++r)
    totals.push_back(step.computed[r] + step.lengths[r]);
  return totals;
}

/// All lists of a step but the interleave.
ImportRequest lists_of(const Step& step) {
  ImportRequest request;
  request.source = OrderSource::vllm;
  request.given = {{"slot_mapping", step.slots},
                   {"query_start_loc", {step.starts}},
                   {"seq_lens", {totals_of(step)}},
                   {"block_table", step.tables},
                   {"block_size", {{step.block_size}}}};
  return request;
}

ImportRequest without(ImportRequest request, std::initializer_list<std::string_view> names) {
  std::erase_if(request.given, [&](const NamedLists& lists) {
    return std::find(names.begin(), names.end(), lists.name) != names.end();
  });
  return request;
}

ImportRequest with(ImportRequest request, std::string name, Rows lists) {
  request.given.push_back({std::move(name), std::move(lists)});
  return request;
}

Rows& rows_of(ImportRequest& request, std::string_view name) {
  for (NamedLists& lists : request.given) {
    if (lists.name == name) return lists.lists;
  }
  ADD_FAILURE() << "no list " << name;
  return request.given.front().lists;
}

Step draw_step(std::mt19937& random) {
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % end); };
  Step step;
  step.ranks = std::vector<int64_t>{1, 2, 3, 4, 8}[static_cast<size_t>(below(5))];
  step.block_size = std::vector<int64_t>{1, 2, 6, 16}[static_cast<size_t>(below(4))];
  do {
    step.interleave = 1 + below(step.block_size);
  } while (step.block_size % step.interleave != 0);
  const bool is_decode = below(3) == 0, has_cached = is_decode || below(2) == 0;
  const int64_t requests = 1 + below(6);
  for (int64_t r = 0; r < requests; ++r) {
    step.lengths.push_back(is_decode ? 1 + below(2) : below(70));
    step.computed.push_back(has_cached ? below(90) : 0);
  }
  if (std::all_of(step.lengths.begin(), step.lengths.end(), [](int64_t n) { return n == 0; }))
    step.lengths.front() = 1;
  return store(std::move(step), random);
}

std::string describe(const Step& step) {
  std::string text = std::to_string(step.ranks) + " ranks, blocks of " +
                     std::to_string(step.block_size) + ", interleave " +
                     std::to_string(step.interleave) + ", requests (cached + new)";
  for (size_t r = 0; r < step.lengths.size(); ++r)
    text += " " + std::to_string(step.computed[r]) + "+" + std::to_string(step.lengths[r]);
  return text;
}

std::string text_of(const OrderImport& order) {
  std::string text;
  for (const auto* lines : {&order.differences, &order.notes}) {
    for (const std::string& line : *lines) text += line + '\n';
  }
  return text;
}

bool contains(const std::vector<InterleaveRange>& ranges, int64_t size) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const InterleaveRange& range) {
    return size >= range.first && (range.last < 0 || size <= range.last);
  });
}

/// The keys of each rank, by slot, in packed order of all keys.
Rows keys_by_slot(const Step& step) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> keys(static_cast<size_t>(step.ranks));
  int64_t id = 0;
  for (size_t r = 0; r < step.key_ranks.size(); ++r) {
    for (size_t p = 0; p < step.key_ranks[r].size(); ++p)
      keys[static_cast<size_t>(step.key_ranks[r][p])].emplace_back(step.key_slots[r][p], id++);
  }
  Rows rows;
  for (auto& of_rank : keys) {
    std::sort(of_rank.begin(), of_rank.end());
    rows.emplace_back();
    for (const auto& [slot, key] : of_rank) rows.back().push_back(key);
  }
  return rows;
}

void expect_order_of(const Step& step, const OrderImport& order) {
  EXPECT_TRUE(order.differences.empty()) << text_of(order);
  EXPECT_EQ(order.kv_ranks.empty() ? order.ranks : order.kv_ranks, keys_by_slot(step));
  EXPECT_EQ(order.lengths, step.lengths);
  EXPECT_EQ(order.kv_lengths.empty() ? order.lengths : order.kv_lengths, totals_of(step));
  EXPECT_EQ(describe_partition_fault(order.ranks, step.starts.back()), std::nullopt);
}

TEST(ImportOfVllm, FindsEveryKeyOfDrawnBatchesWithoutAFalseAlarm) {
  std::mt19937 random(7);
  int found = 0, undecided = 0;
  for (int draw = 0; draw < 600 && !testing::Test::HasFailure(); ++draw) {
    const Step step = draw_step(random);
    SCOPED_TRACE(describe(step));
    const ImportRequest lists = lists_of(step);
    const ImportRequest told = with(lists, "cp_kv_cache_interleave_size", {{step.interleave}});
    const Result<OrderImport> order = import_order(lists);
    if (!order) {
      // Cached keys need the one interleave, and new ones do not always show it.
      EXPECT_EQ(to_text(order.error()).find("several interleaves explain the new keys"), 0u)
          << to_text(order.error());
      ++undecided;
    } else {
      expect_order_of(step, order.value());
      EXPECT_TRUE(step.ranks == 1 || contains(order.value().interleaves, step.interleave))
          << text_of(order.value());
      ++found;
    }
    // Slots, or block tables alone, say the same once the interleave is given.
    for (const ImportRequest& request : {told, without(told, {"slot_mapping"})}) {
      ImportRequest sized = request;
      sized.cp_size = step.ranks;
      const Result<OrderImport> again = import_order(sized);
      ASSERT_TRUE(again.ok()) << to_text(again.error());
      expect_order_of(step, again.value());
    }
    // Without block tables the ranks of keys are the same, and the order of their slots is unknown.
    Result<OrderImport> rankless = import_order(without(told, {"block_table", "block_size"}));
    ASSERT_TRUE(rankless.ok()) << to_text(rankless.error());
    EXPECT_TRUE(rankless.value().differences.empty()) << text_of(rankless.value());
    OrderImport& plain = rankless.value();
    Rows expected = keys_by_slot(step);
    for (Rows* rows : {&expected, plain.kv_ranks.empty() ? &plain.ranks : &plain.kv_ranks}) {
      for (auto& row : *rows) std::sort(row.begin(), row.end());
    }
    EXPECT_EQ(plain.kv_ranks.empty() ? plain.ranks : plain.kv_ranks, expected);
  }
  EXPECT_GT(found, 300);
  EXPECT_GT(undecided, 3);
}

TEST(ImportOfVllm, FindsAllInterleavesThatExplainTheKeysAndNoOther) {
  std::mt19937 random(11);
  for (int draw = 0; draw < 300 && !testing::Test::HasFailure(); ++draw) {
    const Step step = draw_step(random);
    SCOPED_TRACE(describe(step));
    std::vector<OwnedKeys> keys;
    int64_t longest = 1;
    for (size_t r = 0; r < step.lengths.size(); ++r) {
      for (int64_t p = step.computed[r]; p < step.computed[r] + step.lengths[r]; ++p) {
        const int64_t rank = step.key_ranks[r][static_cast<size_t>(p)];
        if (!keys.empty() && p > step.computed[r] && keys.back().rank == rank) {
          ++keys.back().end;
        } else {
          keys.push_back({p, p + 1, rank});
        }
        longest = std::max(longest, p + 1);
      }
    }
    if (step.ranks == 1) continue;
    for (const int64_t block_size : {int64_t{0}, step.block_size}) {
      const auto found = find_interleaves(keys, step.ranks, block_size);
      for (int64_t size = 1; size <= longest + 3; ++size) {
        bool explains = block_size == 0 || block_size % size == 0;
        for (const OwnedKeys& some : keys) {
          for (int64_t p = some.begin; p < some.end; ++p)
            explains = explains && p / size % step.ranks == some.rank;
        }
        EXPECT_EQ(contains(found, size), explains)
            << "interleave " << size << ", block_size " << block_size << ": "
            << describe_interleaves(found);
      }
    }
  }
}

TEST(ImportOfVllm, NamesALayoutThatHasTheSameKeysOnEachRank) {
  std::mt19937 random(3);
  Step drawn{
      .ranks = 4, .block_size = 8, .interleave = 2, .computed = {50, 0, 7}, .lengths = {1, 33, 3}};
  const Step step = store(std::move(drawn), random);
  const OrderImport order = import_order(lists_of(step)).value();
  EXPECT_EQ(
      order.notes.front(),
      "interleave 2 explains the ranks of all 37 new keys: layout striped with stripe = 2 and "
      "kv_slots that are multiples of 8 has the same keys on each rank");
  Scenario scenario;
  scenario.attention.heads = scenario.attention.kv_heads = 4;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 8;
  scenario.batch.self_attention = false;
  scenario.batch.lengths = order.lengths;
  scenario.batch.kv_lengths = order.kv_lengths;
  const auto rounded = [](std::vector<int64_t> slots) {
    for (int64_t& slot : slots) slot = (slot + 7) / 8 * 8;
    return slots;
  };
  scenario.batch.slots = rounded(order.lengths);
  scenario.batch.kv_slots = rounded(order.kv_lengths);
  scenario.parallel.cp_size = 4;
  scenario.parallel.layout = LayoutKind::striped;
  scenario.parallel.stripe = 2;
  const Layout layout = make_layout(scenario).value();
  for (const RankId rank : layout.kv_runs.ids()) {
    for (const int64_t id : expand(layout.kv_runs[rank])) {
      for (size_t s = 0; s < 3; ++s) {
        const SlotSide slot = layout.slots.sequences[s].side(Side::kv);
        if (id < slot.begin || id >= slot.begin + totals_of(step)[s]) continue;
        EXPECT_EQ(step.key_ranks[s][static_cast<size_t>(id - slot.begin)], to_index(rank))
            << "position " << id - slot.begin << " of request " << s;
      }
    }
  }
}

/// Two ranks, blocks of 8 slots, interleave 4: requests of 20 cached and 9 new tokens, of 3 new
/// ones, and of 40 cached and 1 new. Blocks are numbered by hand.
Step make_step() {
  std::mt19937 random(1);
  Step step = store(
      {.ranks = 2, .block_size = 8, .interleave = 4, .computed = {20, 0, 40}, .lengths = {9, 3, 1}},
      random);
  // The pool is shuffled; the tests name blocks, so they get numbers in order.
  int64_t next = 5;
  for (size_t r = 0; r < step.tables.size(); ++r) {
    for (size_t b = 0; b < step.tables[r].size(); ++b) {
      const int64_t old = step.tables[r][b];
      if (old == 0) continue;
      step.tables[r][b] = next;
      for (size_t p = b * 16; p < std::min(step.key_slots[r].size(), b * 16 + 16); ++p) {
        step.key_slots[r][p] += (next - old) * 8;
        if (static_cast<int64_t>(p) < step.computed[r]) continue;
        const auto token =
            static_cast<size_t>(step.starts[r] + static_cast<int64_t>(p) - step.computed[r]);
        step.slots[static_cast<size_t>(step.key_ranks[r][p])][token] = step.key_slots[r][p];
      }
      ++next;
    }
  }
  return step;
}

std::vector<std::string> differences_of(const ImportRequest& request) {
  const Result<OrderImport> order = import_order(request);
  EXPECT_TRUE(order.ok()) << to_text(order.error());
  return order ? order.value().differences : std::vector<std::string>{};
}

using Differences = std::vector<std::string>;

TEST(ImportOfVllm, NamesASlotThatIsInNoBlockOfItsRequest) {
  // Position 21 of request 0 is written to block 7, which request 1 has.
  ImportRequest request = lists_of(make_step());
  ASSERT_EQ(differences_of(request), Differences{});
  ASSERT_EQ(rows_of(request, "slot_mapping")[1][1], 6 * 8 + 1);
  rows_of(request, "slot_mapping")[1][1] = 7 * 8 + 1;
  EXPECT_EQ(differences_of(request),
            (Differences{"position 21 of request 0 is in slot 57 of rank 1, in block 7, which is "
                         "not in the request's block table (1 of 13 new keys)"}));
}

TEST(ImportOfVllm, NamesASlotThatItsBlockTableGivesToAnotherPosition) {
  ImportRequest request = lists_of(make_step());
  std::swap(rows_of(request, "slot_mapping")[0][4], rows_of(request, "slot_mapping")[0][5]);
  EXPECT_EQ(differences_of(request),
            (Differences{"position 24 of request 0 is in slot 53 of rank 0; its block table and "
                         "interleave 4 give slot 52 (2 of 13 new keys)"}));
}

TEST(ImportOfVllm, NamesAKeyOnAnotherRank) {
  ImportRequest request = without(lists_of(make_step()), {"block_table", "block_size"});
  rows_of(request, "slot_mapping")[0][7] = -1;
  rows_of(request, "slot_mapping")[1][7] = 99;
  EXPECT_EQ(
      differences_of(request),
      (Differences{"no interleave explains all keys: position 27 of request 0 is on rank 1; "
                   "interleave 4, which explains the most, gives rank 0 (1 of 13 new keys)"}));
  // The interleave that the engine was started with.
  EXPECT_EQ(
      differences_of(with(request, "cp_kv_cache_interleave_size", {{4}})),
      (Differences{"position 27 of request 0 is on rank 1; interleave 4 gives rank 0 (1 of 13 "
                   "new keys)"}));
}

TEST(ImportOfVllm, NamesARequestThatHasAnInterleaveOfItsOwn) {
  // Request 0 is too short to show that its keys are in blocks of 4, and request 2 is in blocks
  // of 2.
  std::mt19937 random(2);
  const Step fours = store(
      {.ranks = 2, .block_size = 8, .interleave = 4, .computed = {0, 0, 0}, .lengths = {3, 40, 11}},
      random);
  ImportRequest request = without(lists_of(fours), {"block_table", "block_size"});
  EXPECT_EQ(import_order(request).value().interleaves, (std::vector<InterleaveRange>{{4, 4}}));
  for (int64_t token = 43; token < 54; ++token) {
    const int64_t rank = (token - 43) / 2 % 2;
    rows_of(request, "slot_mapping")[static_cast<size_t>(rank)][static_cast<size_t>(token)] =
        1000 + token;
    rows_of(request, "slot_mapping")[static_cast<size_t>(1 - rank)][static_cast<size_t>(token)] =
        -1;
  }
  EXPECT_EQ(
      differences_of(request),
      (Differences{"no interleave explains all keys: position 2 of request 2 is on rank 1; "
                   "interleave 4, which explains the most, gives rank 0 (5 of 54 new keys)"}));
}

TEST(ImportOfVllm, NamesACachedKeyThatANewOneOverwrites) {
  // Request 1 writes into the first block of request 0, whose keys are cached.
  Step step = make_step();
  for (int64_t& block : step.tables[1]) block = block == 7 ? 5 : block;
  for (auto& slots : step.slots) {
    for (int64_t& slot : slots) slot -= slot / 8 == 7 ? 16 : 0;
  }
  EXPECT_EQ(
      differences_of(lists_of(step)),
      (Differences{"rank 0 stores position 0 of request 0 and position 0 of request 1 in slot "
                   "40, where position 0 of request 0 was in the cache before"}));
}

TEST(ImportOfVllm, KnowsTheNullBlock) {
  // A window has left the first blocks of requests 0 and 2 behind.
  Step step = make_step();
  step.tables[0][0] = step.tables[2][0] = step.tables[2][1] = 0;
  EXPECT_EQ(differences_of(lists_of(step)), Differences{});
  // Request 1 has no block, and writes nevertheless.
  step.tables[1][0] = 0;
  for (auto& slots : step.slots) {
    for (int64_t& slot : slots) slot -= slot / 8 == 7 ? 56 : 0;
  }
  EXPECT_EQ(
      differences_of(lists_of(step)).front(),
      "position 0 of request 1 is in slot 0 of rank 0, in vLLM's null block, which no request "
      "has (3 of 13 new keys)");
}

TEST(ImportOfVllm, NamesASlotOfTwoWhateverElseIsThere) {
  ImportRequest request = without(lists_of(make_step()), {"block_table", "block_size"});
  rows_of(request, "slot_mapping")[0][11] = rows_of(request, "slot_mapping")[0][10];
  EXPECT_EQ(to_text(import_order(with(request, "cp_kv_cache_interleave_size", {{4}})).error()),
            "rank 0 stores position 1 of request 1 and position 2 of request 1 in slot 57; a slot "
            "holds one token");
  // By tables alone two requests write into one block.
  Step step = make_step();
  step.tables[1][0] = step.tables[0][1];
  ImportRequest tables =
      with(without(lists_of(step), {"slot_mapping"}), "cp_kv_cache_interleave_size", {{4}});
  tables.cp_size = 2;
  EXPECT_EQ(differences_of(tables).front(),
            "rank 0 stores position 16 of request 0 and position 0 of request 1 in slot 48, where "
            "position 16 of request 0 was in the cache before");
}

TEST(ImportOfVllm, SaysThatRequestsShareAPrefixAndNamesABlockTwiceInOneTable) {
  Step step = make_step();
  step.tables[2][0] = step.tables[0][0];
  const OrderImport shared = import_order(lists_of(step)).value();
  EXPECT_EQ(shared.differences, Differences{});
  EXPECT_EQ(shared.notes.back(),
            "requests share cached blocks, 1 times: each has a copy in the order");
  step.tables[2][1] = step.tables[2][0];
  EXPECT_EQ(differences_of(lists_of(step)),
            (Differences{"the block table of request 2 holds block 5 twice"}));
}

TEST(ImportOfVllm, ChecksTheLocalLengthsThatAttentionIsTold) {
  ImportRequest request = lists_of(make_step());
  ImportRequest told = with(request, "dcp_local_seq_lens", {{16, 3, 21, 0}, {13, 0, 20, 0}});
  EXPECT_EQ(differences_of(told), Differences{});
  rows_of(told, "dcp_local_seq_lens")[1][2] = 21;
  EXPECT_EQ(
      differences_of(told),
      (Differences{"dcp_local_seq_lens of request 2 on rank 1 is 21; interleave 4 gives it 20 "
                   "of 41 keys"}));
}

TEST(ImportOfVllm, TakesPaddingOfCapturedGraphsAndCopiesOfEveryRank) {
  const Step step = make_step();
  ImportRequest request = lists_of(step);
  for (auto& slots : rows_of(request, "slot_mapping")) slots.resize(20, -1);
  rows_of(request, "query_start_loc") = Rows(2, {0, 9, 12, 13, 13, 13});
  rows_of(request, "seq_lens") = Rows(2, {29, 3, 41});
  rows_of(request, "block_size") = Rows(2, {8});
  Rows& tables = rows_of(request, "block_table");
  tables.insert(tables.end(), step.tables.begin(), step.tables.end());
  expect_order_of(step, import_order(request).value());
  tables[4][0] = 77;
  EXPECT_EQ(to_text(import_order(request).error()),
            "ranks 0 and 1 have different block tables of request 1; vLLM gives a request the same "
            "blocks on every rank");
}

TEST(ImportOfVllm, RejectsWhatIsLostMissingOrImpossible) {
  const auto error_with = [](const std::function<void(ImportRequest&)>& spoil) {
    ImportRequest request = lists_of(make_step());
    spoil(request);
    const Result<OrderImport> order = import_order(request);
    return order ? std::string("none") : order.error().complaints.front().what;
  };
  EXPECT_EQ(error_with([](ImportRequest& r) { rows_of(r, "slot_mapping")[1][12] = 3; }),
            "position 40 of request 2 is in the caches of ranks 0 and 1");
  EXPECT_EQ(error_with([](ImportRequest& r) { rows_of(r, "slot_mapping")[0][12] = -1; }),
            "position 40 of request 2 is in no rank's cache");
  EXPECT_EQ(error_with([](ImportRequest& r) {
              rows_of(r, "slot_mapping")[0][11] = rows_of(r, "slot_mapping")[0][10];
            }),
            "rank 0 stores position 1 of request 1 and position 2 of request 1 in slot 57");
  EXPECT_EQ(error_with([](ImportRequest& r) { rows_of(r, "slot_mapping")[1].push_back(2); }),
            "slot_mapping of rank 1 has 14 entries, the requests have 13 new tokens");
  EXPECT_EQ(error_with([](ImportRequest& r) { rows_of(r, "seq_lens")[0][1] = 2; }),
            "seq_lens of request 1 is below its new tokens: 2, 3 new");
  EXPECT_EQ(
      error_with([](ImportRequest& r) {
        r = with(r, "num_computed_tokens", {{20, 0, 39}});
      }),
      "seq_lens and num_computed_tokens disagree at request 2: 40 and 39 tokens before the new "
      "ones");
  EXPECT_EQ(error_with([](ImportRequest& r) {
              r = with(r, "positions", {{20, 21, 22, 23, 25, 25, 26, 27, 28, 0, 1, 2, 40}});
            }),
            "positions of request 0 must count by 1 from 0 or more: entry 4 is 25");
  EXPECT_EQ(error_with([](ImportRequest& r) {
              r = with(r, "positions", {{20, 21}});
            }),
            "positions has 2 entries, the requests have 13 new tokens");
  EXPECT_EQ(error_with([](ImportRequest& r) { rows_of(r, "block_table")[2].resize(2); }),
            "the block table of request 2 has 2 blocks; its 41 tokens need 3");
  EXPECT_EQ(error_with([](ImportRequest& r) { rows_of(r, "block_table")[2][1] = -1; }),
            "the block table of request 2 holds no block at 1: -1");
  EXPECT_EQ(error_with([](ImportRequest& r) { rows_of(r, "block_table").pop_back(); }),
            "block_table has 2 rows, the number of requests is 3");
  EXPECT_EQ(error_with([](ImportRequest& r) { r = without(r, {"block_size"}); }),
            "block_table needs the number of slots of a block");
  EXPECT_EQ(error_with([](ImportRequest& r) {
              rows_of(r, "block_size") = {{8}, {16}};
            }),
            "block_size must be one list, or the same on every rank: 2 lists");
  EXPECT_EQ(error_with([](ImportRequest& r) { rows_of(r, "seq_lens")[0][2] = int64_t{1} << 40; }),
            "seq_lens must hold numbers from 0 to 33554432: 1099511627776");
  EXPECT_EQ(error_with([](ImportRequest& r) { r = with(r, "cp_kv_cache_interleave_size", {{3}}); }),
            "the interleave does not divide block_size: 3, 8");
  EXPECT_EQ(error_with([](ImportRequest& r) {
              r = without(r, {"slot_mapping"});
              r.cp_size = 2;
            }),
            "without slot_mapping the interleave cannot be found");
  EXPECT_EQ(error_with([](ImportRequest& r) {
              r = without(r, {"slot_mapping", "block_table"});
              r.cp_size = 2;
            }),
            "the slots are missing: slot_mapping");
  EXPECT_EQ(error_with([](ImportRequest& r) {
              rows_of(r, "query_start_loc") = {{0, 0, 0, 0}};
              rows_of(r, "slot_mapping") = {{}, {}};
            }),
            "there are no new tokens");
  EXPECT_EQ(error_with([](ImportRequest& r) { rows_of(r, "slot_mapping").clear(); }),
            "the number of ranks is missing");
  EXPECT_EQ(error_with([](ImportRequest& r) { r = without(r, {"query_start_loc"}); }),
            "the boundaries of the new tokens are missing");
}

TEST(ImportOfVllm, SaysWhatKeysWithoutLengthsAreTakenFor) {
  ImportRequest request = without(lists_of(make_step()), {"seq_lens", "block_table", "block_size"});
  const OrderImport order = import_order(request).value();
  EXPECT_EQ(order.differences.size(), 1u);
  EXPECT_EQ(order.notes,
            (std::vector<std::string>{"without seq_lens, num_computed_tokens or positions the new "
                                      "tokens of a request begin at position 0"}));
  request = with(request, "positions", {{20, 21, 22, 23, 24, 25, 26, 27, 28, 0, 1, 2, 40, 0, 0}});
  const OrderImport told = import_order(request).value();
  EXPECT_EQ(told.differences, Differences{});
  EXPECT_EQ(told.kv_lengths, (std::vector<int64_t>{29, 3, 41}));
}

TEST(ImportOfVllm, SaysWhichInterleavesArePossible) {
  // Three tokens of one request, all on rank 0.
  ImportRequest request;
  request.source = OrderSource::vllm;
  request.given = {{"slot_mapping", {{8, 9, 10}, {-1, -1, -1}}}};
  const OrderImport order = import_order(request).value();
  EXPECT_EQ(order.interleaves, (std::vector<InterleaveRange>{{3, -1}}));
  EXPECT_EQ(order.notes.front(),
            "the ranks of all 3 new keys are those of several interleaves: 3 or more");
  const Result<OrderImport> cached = import_order(with(request, "num_computed_tokens", {{24}}));
  ASSERT_FALSE(cached.ok());
  EXPECT_EQ(
      to_text(cached.error()),
      "several interleaves explain the new keys, and each has other ranks for cached ones: 3 "
      "to 4, 6, 9 to 12, 27 or more; give cp_kv_cache_interleave_size, or dcp_local_seq_lens");
  // Local lengths tell them apart: 27 keys in blocks of 9 are 18 and 9, in blocks of 6 or 12 15 and
  // 12, and in one block all on rank 0, however large it is.
  request = with(request, "num_computed_tokens", {{24}});
  const auto told = [&](Rows lengths) {
    return import_order(with(request, "dcp_local_seq_lens", std::move(lengths)));
  };
  EXPECT_EQ(told({{18}, {9}}).value().interleaves, (std::vector<InterleaveRange>{{9, 9}}));
  EXPECT_EQ(told({{27}, {0}}).value().interleaves, (std::vector<InterleaveRange>{{27, -1}}));
  EXPECT_EQ(told({{27}, {0}}).value().kv_ranks.front().size(), 27u);
  EXPECT_NE(to_text(told({{15}, {12}}).error()).find("cached ones: 3 to 4, 6, 12; give "),
            std::string::npos);
}

}  // namespace
}  // namespace cpscope::tests
