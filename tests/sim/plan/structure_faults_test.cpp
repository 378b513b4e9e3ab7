#include "sim/plan/plan_check.h"
#include "tests/sim/plan/faulty_plans.h"

#include <algorithm>

#include <gtest/gtest.h>

// Faults in who owns what, in buffers, ids and stages, and in the bytes that are noted.

namespace cpscope::tests {
namespace {

/// A run of a list, by reference; empty lists have none.
TokenRun* first_run(Plan& plan, RunListId list) {
  const RunList& entry = plan.run_lists[static_cast<size_t>(to_index(list))];
  return entry.count == 0 ? nullptr : &plan.runs[static_cast<size_t>(entry.first)];
}

Fault give_token_to_two_ranks(std::vector<RunListId> Plan::*lists) {
  return [lists](Plan& plan) -> std::optional<Place> {
    // As many tokens as before, but one of them is the neighbour's and token 0 nobody's.
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
        plan.q_lists[0] = plan.q_lists[1];
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
        BufferSpec& buffer = plan.buffers[static_cast<size_t>(to_index(plan.home.back().out))];
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
          BufferSpec& buffer = plan.buffers[static_cast<size_t>(to_index(item.to))];
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

TEST(BufferFault, AHomeBufferStandsForAnotherRanksTokens) {
  expect_caught(
      "buffers",
      [](Plan& plan) -> std::optional<Place> {
        std::swap(plan.home[0].q, plan.home[1].q);
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
                  plan.run_lists.push_back({static_cast<int64_t>(plan.runs.size()), 1, 1});
                  plan.runs.push_back(first);
                  item.to_rows = RunListId{static_cast<int32_t>(plan.run_lists.size()) - 1};
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
