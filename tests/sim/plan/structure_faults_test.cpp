#include "sim/plan/check/plan_check.h"
#include "tests/sim/plan/faulty_plans.h"

#include <algorithm>

#include <gtest/gtest.h>

// Faults in ownership, buffers, ids and stages, and in the stored bytes.

namespace cpscope::tests {
namespace {

/// The first run of a list, by reference; null for an empty list.
TokenRun* first_run(Plan& plan, RunListId list) {
  const RunList& entry = plan.run_lists[list];
  return entry.count == 0 ? nullptr : &plan.runs[static_cast<size_t>(entry.first)];
}

Fault give_token_to_two_ranks(IdVector<RankId, RunListId> Plan::*lists) {
  return [lists](Plan& plan) -> std::optional<Place> {
    // The same number of tokens, but one of them is the neighbour's and token 0 has no owner.
    for (const RunListId list : plan.*lists) {
      TokenRun* run = first_run(plan, list);
      if (run == nullptr || run->begin > 0) continue;
      run->begin += run->stride;
      run->end += run->stride;
      return Place{};
    }
    return std::nullopt;
  };
}

TEST(OwnershipFault, AQueryTokenIsGivenToTwoRanks) {
  expect_caught("ownership", give_token_to_two_ranks(&Plan::q_lists), 13);
}

TEST(OwnershipFault, AKeyTokenIsGivenToTwoRanks) {
  expect_caught("ownership", give_token_to_two_ranks(&Plan::kv_lists), 13);
}

TEST(OwnershipFault, TwoRanksOwnTheSameTokens) {
  expect_caught(
      "ownership",
      [](Plan& plan) -> std::optional<Place> {
        plan.q_lists[RankId{0}] = plan.q_lists[RankId{1}];
        return Place{};
      },
      13);
}

TEST(OwnershipFault, APaddingTokenIsTakenForAValidOne) {
  expect_caught(
      "ownership",
      [](Plan& plan) -> std::optional<Place> {
        for (SequenceSlot& slot : plan.layout.slots.sequences) {
          if (slot.kv_valid == slot.kv_slot) continue;
          ++slot.kv_valid;
          return Place{};
        }
        return std::nullopt;
      },
      5);
}

TEST(BufferFault, ABufferIsOneRowTooSmallForItsTokens) {
  expect_caught(
      "buffers",
      [](Plan& plan) -> std::optional<Place> {
        BufferSpec& buffer = plan.buffers[plan.home.back().out];
        --buffer.rows;
        return Place{to_index(buffer.rank), -1};
      },
      13);
}

TEST(BufferFault, ARingBufferIsTooSmallForALongerNeighbour) {
  expect_caught(
      "buffers",
      [](Plan& plan) -> std::optional<Place> {
        for (const TransferItem& item : plan.forward.transfers) {
          if (item.link != LinkClass::ring) continue;
          BufferSpec& buffer = plan.buffers[item.to];
          buffer.rows = plan.rows(item.tokens) - 1;
          return Place{to_index(item.dst), to_index(item.step)};
        }
        return std::nullopt;
      },
      6);
}

TEST(BufferFault, AResultBufferIsTooSmall) {
  expect_caught(
      "",
      [](Plan& plan) -> std::optional<Place> {
        for (BufferSpec& buffer : plan.buffers) {
          if (buffer.role != BufferRole::partial || buffer.rows == 0) continue;
          --buffer.rows;
          return Place{to_index(buffer.rank), -1};
        }
        return std::nullopt;
      },
      13);
}

TEST(BufferFault, ABufferHoldsHeadsThatDoNotExist) {
  expect_caught(
      "buffers",
      [](Plan& plan) -> std::optional<Place> {
        ++plan.buffers.back().heads.end;
        plan.buffers.back().heads.end += plan.scenario.attention.heads;
        return Place{to_index(plan.buffers.back().rank), -1};
      },
      13);
}

TEST(BufferFault, AKvBufferHoldsAsManyHeadsAsThereAreOfQueries) {
  expect_caught(
      "buffers",
      [](Plan& plan) -> std::optional<Place> {
        const Attention& attention = plan.scenario.attention;
        if (attention.kv_heads == attention.heads) return std::nullopt;
        BufferSpec& buffer = plan.buffers[plan.home.back().kv];
        buffer.heads.end = attention.heads;
        return Place{to_index(buffer.rank), -1};
      },
      5);
}

TEST(BufferFault, AHomeBufferStandsForAnotherRanksTokens) {
  expect_caught(
      "buffers",
      [](Plan& plan) -> std::optional<Place> {
        std::swap(plan.home[RankId{0}].q, plan.home[RankId{1}].q);
        return Place{0, -1};
      },
      13);
}

/// Changes the last transfer between two ranks.
Fault change_transfer(std::function<bool(Plan&, TransferItem&)> change) {
  return [change](Plan& plan) -> std::optional<Place> {
    for (Pass* pass : {&plan.forward, &plan.backward}) {
      for (auto item = pass->transfers.rbegin(); item != pass->transfers.rend(); ++item) {
        if (item->src == item->dst || item->bytes == 0 || !change(plan, *item)) continue;
        return Place{to_index(item->src), to_index(item->step)};
      }
    }
    return std::nullopt;
  };
}

TEST(BufferFault, ATransferIsCalledByAnotherName) {
  expect_caught("buffers", change_transfer([](Plan&, TransferItem& item) {
                  item.payload = item.payload == Payload::kv ? Payload::dkv : Payload::kv;
                  return true;
                }),
                13);
}

TEST(BufferFault, KvIsAddedToWhatStoodThere) {
  expect_caught("buffers", change_transfer([](Plan&, TransferItem& item) {
                  item.landing = Landing::add;
                  return item.payload == Payload::kv;
                }),
                13);
}

TEST(BufferFault, AWireIsSaidToStayOnTheRank) {
  expect_caught("buffers", change_transfer([](Plan&, TransferItem& item) {
                  item.link = LinkClass::self;
                  return true;
                }),
                13);
}

TEST(BufferFault, ATransferLandsFewerRowsThanItSends) {
  expect_caught("buffers", change_transfer([](Plan& plan, TransferItem& item) {
                  if (item.to_rows == kAllRows || plan.rows(item.to_rows) < 2) return false;
                  const TokenRun first{first_run(plan, item.to_rows)->begin,
                                       first_run(plan, item.to_rows)->begin + 1, 1};
                  const auto at = static_cast<int64_t>(plan.runs.size());
                  item.to_rows = plan.run_lists.push_back({at, 1, 1});
                  plan.runs.push_back(first);
                  return true;
                }),
                7);
}

TEST(StructureFault, AnIdNamesNothing) {
  const BufferId no_buffer{1 << 20};
  const auto caught = [](std::function<void(Plan&)> change) {
    expect_caught(
        "buffers",
        [change](Plan& plan) -> std::optional<Place> {
          change(plan);
          return Place{};
        },
        13);
  };
  caught([&](Plan& plan) { plan.forward.computes.back().kv = no_buffer; });
  caught([&](Plan& plan) { plan.backward.computes.back().dkv = kNoBuffer; });
  caught([&](Plan& plan) { plan.forward.transfers.back().to = no_buffer; });
  caught([&](Plan& plan) { plan.forward.merges.back().into = kNoBuffer; });
  caught([&](Plan& plan) { plan.backward.finishes.back().buffer = no_buffer; });
  caught([&](Plan& plan) { plan.home.back().kv = no_buffer; });
  caught([](Plan& plan) { plan.q_lists.back() = RunListId{1 << 20}; });
  caught([](Plan& plan) { plan.forward.computes.back().rank = RankId{-1}; });
  caught([](Plan& plan) { plan.forward.computes.back().first_slice = 1 << 28; });
  caught([](Plan& plan) { plan.forward.computes.back().num_slices = -1; });
  caught([](Plan& plan) { ++plan.run_lists.back().rows; });
  caught([](Plan& plan) { plan.run_lists.back().count = 1 << 28; });
  caught([](Plan& plan) { plan.home.pop_back(); });
}

TEST(StructureFault, AnItemStandsInNoStageOrInTwo) {
  for (const int64_t by : {-1, 1}) {
    expect_caught(
        "buffers",
        [by](Plan& plan) -> std::optional<Place> {
          plan.forward.stages.back().end += by;
          return Place{};
        },
        13);
    expect_caught(
        "buffers",
        [by](Plan& plan) -> std::optional<Place> {
          plan.backward.stages.front().begin += by;
          return Place{};
        },
        13);
  }
}

TEST(StructureFault, AnItemCallsItselfAnotherStep) {
  expect_caught(
      "buffers",
      [](Plan& plan) -> std::optional<Place> {
        ComputeItem& item = plan.forward.computes.back();
        item.step = StepId{to_index(item.step) + 1};
        return Place{-1, to_index(item.step)};
      },
      13);
}

/// Sets a field of a good plan to a value and requires that no check reads with it: the inspection
/// ends with the check of ids, whose complaint is returned.
class OutsideItsTable : public testing::Test {
 protected:
  template <class Field>
  void expect_stop(Plan& plan, Field& field, Field value, const std::string& what) {
    const Field kept = field;
    field = value;
    const std::vector<CheckResult> checks = inspect_plan(plan);
    EXPECT_TRUE(checks.size() == 1 && !checks.front().ok)
        << what << " in " << name_ << ": " << checks.front().detail;
    field = kept;
  }

  /// Values below the table and just after its last entry; -1 if it has no other meaning.
  template <class Id>
  void expect_id(Plan& plan, Id& field, size_t size, const std::string& what,
                 bool may_lack = false) {
    expect_stop(plan, field, Id{may_lack ? -2 : -1}, what + " below");
    expect_stop(plan, field, Id{static_cast<int32_t>(size)}, what + " behind");
  }

  void expect_buffer(Plan& plan, BufferId& field, const std::string& what, bool may_lack = false) {
    expect_id(plan, field, plan.buffers.size(), what, may_lack);
  }
  void expect_list(Plan& plan, RunListId& field, const std::string& what, bool may_lack = false) {
    expect_id(plan, field, plan.run_lists.size(), what, may_lack);
  }
  void expect_rank(Plan& plan, RankId& field, const std::string& what) {
    expect_id(plan, field, plan.home.size(), what);
  }

  /// Calls visit(plan, pass) with a fresh copy of every good plan.
  template <class Visit>
  void for_each_pass(Visit visit) {
    for (const GoodPlan& good : good_plans()) {
      Plan plan = good.plan;
      name_ = good.name + ", forward";
      visit(plan, plan.forward);
      name_ = good.name + ", backward";
      visit(plan, plan.backward);
    }
  }

  std::string name_;
};

TEST_F(OutsideItsTable, NoIdOfAnItemIsFollowed) {
  for_each_pass([&](Plan& plan, Pass& pass) {
    ComputeItem& compute = pass.computes.back();
    expect_rank(plan, compute.rank, "compute.rank");
    for (BufferId ComputeItem::*id : {&ComputeItem::q, &ComputeItem::kv, &ComputeItem::out})
      expect_buffer(plan, compute.*id, "compute's q, kv or out");
    for (BufferId ComputeItem::*id : {&ComputeItem::d_out, &ComputeItem::dq, &ComputeItem::dkv}) {
      if (&pass == &plan.backward) expect_buffer(plan, compute.*id, "compute's gradients");
    }
    expect_list(plan, compute.q_tokens, "compute.q_tokens");
    expect_list(plan, compute.kv_tokens, "compute.kv_tokens");
    for (TransferItem* item : {&pass.transfers.front(), &pass.transfers.back()}) {
      expect_rank(plan, item->src, "transfer.src");
      expect_rank(plan, item->dst, "transfer.dst");
      expect_buffer(plan, item->from, "transfer.from");
      expect_buffer(plan, item->to, "transfer.to");
      expect_list(plan, item->from_rows, "transfer.from_rows", true);
      expect_list(plan, item->to_rows, "transfer.to_rows", true);
      expect_list(plan, item->tokens, "transfer.tokens", true);
    }
    for (ReorderItem& item : pass.reorders) {
      expect_rank(plan, item.rank, "reorder.rank");
      expect_buffer(plan, item.from, "reorder.from");
      expect_buffer(plan, item.to, "reorder.to");
      expect_list(plan, item.order, "reorder.order");
    }
    MergeItem& merge = pass.merges.back();
    expect_rank(plan, merge.rank, "merge.rank");
    expect_buffer(plan, merge.into, "merge.into");
    expect_buffer(plan, merge.partial, "merge.partial", true);
    expect_stop(plan, merge.order, -1, "merge.order");
    expect_rank(plan, pass.finishes.back().rank, "finish.rank");
    expect_buffer(plan, pass.finishes.back().buffer, "finish.buffer");
  });
}

TEST_F(OutsideItsTable, NoRangeOfHeadsOrSlicesIsFollowed) {
  for_each_pass([&](Plan& plan, Pass& pass) {
    const int32_t heads = plan.scenario.attention.heads;
    ComputeItem& compute = pass.computes.back();
    for (const HeadRange wrong : {HeadRange{-1, heads}, HeadRange{0, heads + 1}, HeadRange{0, 0},
                                  HeadRange{heads, heads}, HeadRange{1, 0}})
      expect_stop(plan, compute.heads, wrong, "compute.heads");
    const int64_t slices = static_cast<int64_t>(plan.slices.size());
    expect_stop(plan, compute.num_slices, slices - compute.first_slice + 1, "compute.num_slices");
    expect_stop(plan, compute.num_slices, int64_t{-1}, "compute.num_slices");
    expect_stop(plan, compute.first_slice, int64_t{-1}, "compute.first_slice");
    TransferItem& transfer = pass.transfers.back();
    for (const HeadRange wrong : {HeadRange{-1, 1}, HeadRange{0, 0}, HeadRange{1, 0}})
      expect_stop(plan, transfer.heads, wrong, "transfer.heads");
  });
}

TEST_F(OutsideItsTable, NoListRunBufferOrHomeIsFollowed) {
  for (const GoodPlan& good : good_plans()) {
    name_ = good.name;
    Plan plan = good.plan;
    for (BufferId HomeBuffers::*id : {&HomeBuffers::q, &HomeBuffers::kv, &HomeBuffers::out,
                                      &HomeBuffers::d_out, &HomeBuffers::dq, &HomeBuffers::dkv})
      expect_buffer(plan, plan.home.back().*id, "home buffer");
    expect_list(plan, plan.q_lists.back(), "q list");
    expect_list(plan, plan.kv_lists.back(), "kv list");
    expect_rank(plan, plan.buffers.back().rank, "buffer.rank");
    expect_list(plan, plan.buffers.back().tokens, "buffer.tokens", true);
    expect_stop(plan, plan.buffers.back().rows, int64_t{-1}, "buffer.rows");
    RunList& list = plan.run_lists.back();
    const int64_t runs = static_cast<int64_t>(plan.runs.size());
    expect_stop(plan, list.first, int64_t{-1}, "list.first");
    expect_stop(plan, list.first, runs - list.count + 1, "list.first");
    expect_stop(plan, list.count, int64_t{-1}, "list.count");
    expect_stop(plan, list.count, runs - list.first + 1, "list.count");
    // A run without ids does not affect any sum of rows.
    TokenRun& run = plan.runs.back();
    expect_stop(plan, run, TokenRun{-1, -1 + run.count(), 1}, "run.begin");
    expect_stop(plan, run.stride, int64_t{0}, "run.stride");
    expect_stop(plan, run.stride, int64_t{-1}, "run.stride");
  }
}

TEST_F(OutsideItsTable, NoTableOfOtherRanksOrSequencesIsRead) {
  for (const GoodPlan& good : good_plans()) {
    name_ = good.name;
    Plan plan = good.plan;
    expect_stop(plan, plan.layout.cp_size, plan.layout.cp_size + 1, "cp_size");
    for (IdVector<RankId, RunListId> Plan::*lists : {&Plan::q_lists, &Plan::kv_lists}) {
      IdVector<RankId, RunListId> longer = plan.*lists;
      longer.push_back(longer.back());
      expect_stop(plan, plan.*lists, longer, "one rank more");
    }
    IdVector<RankId, HomeBuffers> homes = plan.home;
    homes.push_back(homes.back());
    expect_stop(plan, plan.home, homes, "one home more");
    std::vector<SequenceSlot> slots = plan.layout.slots.sequences;
    slots.push_back({});
    expect_stop(plan, plan.layout.slots.sequences, slots, "one sequence more");
  }
}

TEST(StructureFault, ABackwardPassThatNobodyAskedForIsSeen) {
  for (const GoodPlan& good : good_plans()) {
    Plan plan = good.plan;
    plan.scenario.numerics.backward = false;
    EXPECT_FALSE(inspect_plan(plan).front().ok) << good.name;
    plan.backward = Pass{};
    for (const CheckResult& check : inspect_plan(plan))
      EXPECT_TRUE(check.ok) << good.name << ", " << check.name << ": " << check.detail;
  }
}

TEST(ByteFault, OneTransferNotesWrongBytes) {
  expect_caught("bytes", change_transfer([](Plan&, TransferItem& item) {
                  item.bytes += 2;
                  return true;
                }),
                13);
}

TEST(ByteFault, TwoTransfersOfOneRankNoteBytesThatOnlyTogetherAreRight) {
  expect_caught(
      "bytes",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<TransferItem>& items = plan.forward.transfers;
        for (size_t a = 0; a < items.size(); ++a) {
          for (size_t b = a + 1; b < items.size(); ++b) {
            if (items[a].src != items[b].src || items[a].bytes == 0 || items[b].bytes == 0)
              continue;
            items[a].bytes += 2;
            items[b].bytes -= 2;
            return Place{to_index(items[a].src), to_index(items[a].step)};
          }
        }
        return std::nullopt;
      },
      12);
}

TEST(ByteFault, AMovedQueryNotesWrongBytes) {
  expect_caught("bytes", change_transfer([](Plan&, TransferItem& item) {
                  if (item.payload != Payload::q) return false;
                  item.bytes /= 2;
                  return true;
                }),
                6);
}

TEST(ByteFault, AShareOfDkvChangesTheTypeThatItTravelsIn) {
  expect_caught(
      "bytes",
      [](Plan& plan) -> std::optional<Place> {
        for (TransferItem& item : plan.backward.transfers) {
          if (item.payload != Payload::dkv || item.bytes == 0) continue;
          item.wire_fp32 = !item.wire_fp32;
          return Place{to_index(item.src), to_index(item.step)};
        }
        return std::nullopt;
      },
      13);
}

TEST(ByteFault, AShareOfDkvChangesItsTypeAndItsBytes) {
  expect_caught(
      "bytes",
      [](Plan& plan) -> std::optional<Place> {
        for (TransferItem& item : plan.backward.transfers) {
          if (item.payload != Payload::dkv || item.bytes == 0) continue;
          item.bytes = item.wire_fp32 ? item.bytes / 2 : item.bytes * 2;
          item.wire_fp32 = !item.wire_fp32;
          return Place{};
        }
        return std::nullopt;
      },
      13);
}

}  // namespace
}  // namespace cpscope::tests
