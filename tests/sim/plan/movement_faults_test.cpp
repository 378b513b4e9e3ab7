#include "sim/plan/check/plan_check.h"
#include "tests/sim/plan/faulty_plans.h"

#include <algorithm>

#include <gtest/gtest.h>

// Faults in transfers, merges and finishes.

namespace cpscope::tests {
namespace {

using IsWanted = std::function<bool(const TransferItem&)>;

/// The last transfer between two ranks that meets the condition.
std::optional<size_t> find_transfer(const Pass& pass, const IsWanted& is_wanted) {
  for (size_t t = pass.transfers.size(); t-- > 0;) {
    const TransferItem& item = pass.transfers[t];
    if (item.src != item.dst && is_wanted(item)) return t;
  }
  return std::nullopt;
}

IsWanted carries(Payload payload) {
  return [payload](const TransferItem& item) { return item.payload == payload; };
}

Fault drop_transfer(Pass Plan::*pass, Payload payload) {
  return [=](Plan& plan) -> std::optional<Place> {
    const auto at = find_transfer(plan.*pass, carries(payload));
    if (!at) return std::nullopt;
    const int32_t dst = to_index((plan.*pass).transfers[*at].dst);
    erase_item(plan.*pass, StageKind::transfer, *at);
    return Place{payload == Payload::dkv ? -1 : dst, -1};
  };
}

TEST(MovementFault, AForwardKvTransferIsDropped) {
  expect_caught("movement", drop_transfer(&Plan::forward, Payload::kv), 13);
}

TEST(MovementFault, AForwardQueryTransferIsDropped) {
  expect_caught("movement", drop_transfer(&Plan::forward, Payload::q), 6);
}

TEST(MovementFault, AnOutputIsNotBroughtHome) {
  expect_caught("movement", drop_transfer(&Plan::forward, Payload::out), 6);
}

TEST(MovementFault, AnOutputGradientIsNotSent) {
  expect_caught("movement", drop_transfer(&Plan::backward, Payload::d_out), 6);
}

TEST(MovementFault, AQueryGradientIsNotBroughtHome) {
  expect_caught("movement", drop_transfer(&Plan::backward, Payload::dq), 6);
}

TEST(MovementFault, ABackwardRingHopOfKvIsDropped) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        const auto at = find_transfer(plan.backward, [](const TransferItem& item) {
          return item.payload == Payload::kv && item.link == LinkClass::ring;
        });
        // A short ring in the forward's direction still has the KV in its slots.
        if (!at || plan.scenario.numerics.dkv_hops == DkvHops::ring) return std::nullopt;
        const Place place{to_index(plan.backward.transfers[*at].dst), -1};
        erase_item(plan.backward, StageKind::transfer, *at);
        return place;
      },
      4);
}

TEST(MovementFault, TheLastHopOfDkvIsDropped) {
  // With P hops the sum never reaches home; with P-1 its owner adds to a sum that is not there.
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        const auto at = find_transfer(plan.backward, [](const TransferItem& item) {
          return item.payload == Payload::dkv && item.link == LinkClass::ring;
        });
        if (!at) return std::nullopt;
        const Place place{to_index(plan.backward.transfers[*at].dst), -1};
        erase_item(plan.backward, StageKind::transfer, *at);
        return place;
      },
      6);
}

TEST(MovementFault, ATransferGoesToTheWrongRank) {
  expect_caught(
      "buffers",
      [](Plan& plan) -> std::optional<Place> {
        const auto at = find_transfer(plan.forward, carries(Payload::kv));
        if (!at || plan.layout.cp_size < 3) return std::nullopt;
        TransferItem& item = plan.forward.transfers[*at];
        for (int32_t rank = 0; rank < plan.layout.cp_size; ++rank) {
          if (RankId{rank} == item.dst || RankId{rank} == item.src) continue;
          item.dst = RankId{rank};
          break;
        }
        return Place{-1, to_index(item.step)};
      },
      10);
}

/// Swaps the destinations of two transfers of one stage, buffers and ranks alike.
Fault swap_destinations(Payload payload) {
  return [payload](Plan& plan) -> std::optional<Place> {
    std::vector<TransferItem>& items = plan.forward.transfers;
    for (size_t a = 0; a < items.size(); ++a) {
      for (size_t b = a + 1; b < items.size(); ++b) {
        const bool fits = items[a].payload == payload && items[b].payload == payload &&
                          items[a].step == items[b].step && items[a].dst != items[b].dst &&
                          items[a].src != items[b].src && items[a].src != items[a].dst &&
                          items[b].src != items[b].dst && items[a].src != items[b].dst &&
                          items[b].src != items[a].dst && items[a].heads == items[b].heads &&
                          items[a].bytes == items[b].bytes;
        if (!fits) continue;
        std::swap(items[a].dst, items[b].dst);
        std::swap(items[a].to, items[b].to);
        std::swap(items[a].to_rows, items[b].to_rows);
        return Place{-1, -1};
      }
    }
    return std::nullopt;
  };
}

TEST(MovementFault, TwoRanksReceiveEachOthersKv) {
  expect_caught("movement", swap_destinations(Payload::kv), 4);
}

/// Gives a transfer rows of another one, the same number and from the same buffer.
Fault wrong_rows(Pass Plan::*pass, Payload payload, RunListId TransferItem::*side) {
  return [=](Plan& plan) -> std::optional<Place> {
    for (TransferItem& item : (plan.*pass).transfers) {
      if (item.payload != payload || item.*side == kAllRows) continue;
      for (const TransferItem& other : (plan.*pass).transfers) {
        const bool fits = other.*side != kAllRows && other.*side != item.*side &&
                          plan.rows(other.*side) == plan.rows(item.*side) &&
                          !same_ids(plan.list(other.*side), plan.list(item.*side)) &&
                          (other.from == item.from || other.to == item.to) &&
                          plan.rows(item.*side) > 0;
        if (!fits) continue;
        item.*side = other.*side;
        return Place{to_index(item.src), to_index(item.step)};
      }
    }
    return std::nullopt;
  };
}

TEST(MovementFault, KvLandsInTheRowsOfOthers) {
  expect_caught("movement", wrong_rows(&Plan::forward, Payload::kv, &TransferItem::to_rows), 4);
}

TEST(MovementFault, OutputsOfOtherRowsComeHome) {
  expect_caught("movement", wrong_rows(&Plan::forward, Payload::out, &TransferItem::from_rows), 3);
}

TEST(MovementFault, GradientsOfOtherRowsComeHome) {
  expect_caught("movement", wrong_rows(&Plan::backward, Payload::dkv, &TransferItem::from_rows), 4);
}

TEST(MovementFault, ARingHopClaimsToCarryOtherTokens) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        for (TransferItem& item : plan.forward.transfers) {
          if (item.link != LinkClass::ring) continue;
          for (const TransferItem& other : plan.forward.transfers) {
            if (other.link != LinkClass::ring || other.tokens == item.tokens ||
                plan.rows(other.tokens) != plan.rows(item.tokens))
              continue;
            item.tokens = other.tokens;
            return Place{to_index(item.src), to_index(item.step)};
          }
        }
        return std::nullopt;
      },
      5);
}

TEST(MovementFault, OneHeadOfARingHopStaysBehind) {
  expect_caught("movement", [](Plan& plan) -> std::optional<Place> {
    for (TransferItem& item : plan.forward.transfers) {
      if (item.link != LinkClass::ring || item.heads.size() < 2) continue;
      item.bytes = item.bytes / item.heads.size() * (item.heads.size() - 1);
      --item.heads.end;
      return Place{to_index(item.src), to_index(item.step)};
    }
    return std::nullopt;
  });
}

TEST(MovementFault, TheKvBuffersOfTwoRingStepsAreSwapped) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<ComputeItem>& items = plan.forward.computes;
        for (size_t i = 0; i < items.size(); ++i) {
          for (size_t j = i + 1; j < items.size(); ++j) {
            if (items[i].rank != items[j].rank || items[i].kv == items[j].kv ||
                items[i].kv_tokens == items[j].kv_tokens)
              continue;
            std::swap(items[i].kv, items[j].kv);
            return Place{to_index(items[i].rank), to_index(items[i].step)};
          }
        }
        return std::nullopt;
      },
      6);
}

TEST(MovementFault, AReorderUsesTheListOfTheWayBack) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        for (ReorderItem& item : plan.forward.reorders) {
          for (const Pass* pass : {&plan.forward, &plan.backward}) {
            for (const ReorderItem& other : pass->reorders) {
              if (plan.rows(other.order) != plan.rows(item.order) ||
                  same_ids(plan.list(other.order), plan.list(item.order)))
                continue;
              item.order = other.order;
              return Place{to_index(item.rank), to_index(item.step)};
            }
          }
        }
        return std::nullopt;
      },
      4);
}

TEST(MovementFault, AReorderIsLeftOut) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        if (plan.forward.reorders.empty()) return std::nullopt;
        const Place place{to_index(plan.forward.reorders.back().rank), -1};
        erase_item(plan.forward, StageKind::reorder, plan.forward.reorders.size() - 1);
        return place;
      },
      5);
}

TEST(MovementFault, AReorderPutsKvWhereQueriesBelong) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<ReorderItem>& items = plan.forward.reorders;
        for (size_t i = 1; i < items.size(); ++i) {
          const BufferKind a = plan.buffer(items[i - 1].to).kind;
          if (a == plan.buffer(items[i].to).kind || items[i].rank != items[i - 1].rank) continue;
          std::swap(items[i].to, items[i - 1].to);
          return Place{to_index(items[i].rank), to_index(items[i].step)};
        }
        return std::nullopt;
      },
      4);
}

TEST(MovementFault, ABackwardItemReadsAnotherRanksOutputGradient) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<ComputeItem>& items = plan.backward.computes;
        for (ComputeItem& other : items) {
          if (other.rank == items.back().rank || other.num_slices == 0) continue;
          std::swap(other.d_out, items.back().d_out);
          return Place{
              to_index(items.front().rank) == to_index(other.rank) ? to_index(other.rank) : -1, -1};
        }
        return std::nullopt;
      },
      13);
}

TEST(MovementFault, ABackwardItemReadsAnotherRanksOutput) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<ComputeItem>& items = plan.backward.computes;
        for (const ComputeItem& other : items) {
          if (other.rank == items.back().rank) continue;
          items.back().out = other.out;
          return Place{to_index(items.back().rank), to_index(items.back().step)};
        }
        return std::nullopt;
      },
      13);
}

TEST(MovementFault, AResultIsWrittenIntoAnotherRanksMemory) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<ComputeItem>& items = plan.forward.computes;
        for (size_t i = items.size(); i-- > 0;) {
          if (items[i].num_slices == 0) continue;
          for (const ComputeItem& other : items) {
            if (other.rank == items[i].rank) continue;
            items[i].out = other.out;
            return Place{to_index(items[i].rank), to_index(items[i].step)};
          }
        }
        return std::nullopt;
      },
      13);
}

TEST(MovementFault, TheRowsOfOneSenderLandTwiceAndThoseOfAnotherNever) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<TransferItem>& items = plan.forward.transfers;
        for (size_t a = 0; a < items.size(); ++a) {
          for (size_t b = a + 1; b < items.size(); ++b) {
            const bool fits = items[a].to == items[b].to && items[a].step == items[b].step &&
                              items[a].src != items[b].src && items[a].to_rows != kAllRows &&
                              items[b].to_rows != kAllRows && items[a].heads == items[b].heads &&
                              plan.rows(items[a].to_rows) > 0 &&
                              plan.rows(items[a].to_rows) == plan.rows(items[b].to_rows);
            if (!fits) continue;
            items[b] = items[a];
            return Place{};
          }
        }
        return std::nullopt;
      },
      4);
}

TEST(MovementFault, SomeHeadsOfABufferLandTwiceAndOthersNever) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<TransferItem>& items = plan.forward.transfers;
        for (size_t a = 0; a < items.size(); ++a) {
          for (size_t b = a + 1; b < items.size(); ++b) {
            const bool fits =
                items[a].to == items[b].to && items[a].step == items[b].step &&
                items[a].landing == Landing::replace && items[a].to_rows == kAllRows &&
                items[b].to_rows == kAllRows && items[a].heads != items[b].heads &&
                items[a].heads.size() == items[b].heads.size() && plan.buffer(items[a].to).rows > 0;
            if (!fits) continue;
            items[b] = items[a];
            return Place{};
          }
        }
        return std::nullopt;
      },
      4);
}

/// Finishes a buffer right before the stage of a transfer.
void finish_before(Pass& pass, size_t transfer, RankId rank, BufferId buffer) {
  int64_t place = 0;
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    const Stage stage = pass.stages[s];
    if (stage.kind == StageKind::finish) place = stage.end;
    if (stage.kind != StageKind::transfer || static_cast<int64_t>(transfer) >= stage.end) continue;
    for (Stage& later : pass.stages) {
      if (later.kind != StageKind::finish || later.begin < place) continue;
      ++later.begin;
      ++later.end;
    }
    pass.finishes.insert(pass.finishes.begin() + place, {stage.step, rank, buffer});
    pass.stages.insert(pass.stages.begin() + static_cast<int64_t>(s),
                       {stage.step, StageKind::finish, place, place + 1});
    return;
  }
}

TEST(MovementFault, AShareIsRoundedBeforeItIsAddedToItsSum) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        const auto at = find_transfer(plan.backward, [&](const TransferItem& item) {
          return item.landing == Landing::add && plan.buffer(item.from).rows > 0;
        });
        if (!at) return std::nullopt;
        const TransferItem item = plan.backward.transfers[*at];
        finish_before(plan.backward, *at, item.src, item.from);
        return Place{to_index(item.src), to_index(item.step)};
      },
      5);
}

}  // namespace
}  // namespace cpscope::tests
