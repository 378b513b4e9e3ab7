#include "sim/plan/check/plan_check.h"
#include "tests/sim/plan/faulty_plans.h"

#include <algorithm>

#include <gtest/gtest.h>

// Faults in merges, finishes and the way home of partial results.

namespace cpscope::tests {
namespace {

/// The last merge of a result into a buffer of this kind.
std::optional<size_t> find_merge(const Plan& plan, const Pass& pass, BufferKind kind,
                                 int32_t least_order = 0) {
  for (size_t m = pass.merges.size(); m-- > 0;) {
    const MergeItem& item = pass.merges[m];
    if (item.partial != kNoBuffer && plan.buffer(item.into).kind == kind &&
        item.order >= least_order)
      return m;
  }
  return std::nullopt;
}

Fault change_merges(Pass Plan::*pass, BufferKind kind, int32_t least_order,
                    std::function<Place(Pass&, size_t)> change) {
  return [=](Plan& plan) -> std::optional<Place> {
    const auto at = find_merge(plan, plan.*pass, kind, least_order);
    if (!at) return std::nullopt;
    return change(plan.*pass, *at);
  };
}

Place skip(Pass& pass, size_t at) {
  const Place place = place_of(pass.merges[at]);
  erase_item(pass, StageKind::merge, at);
  return place;
}

Place merge_twice(Pass& pass, size_t at) {
  const Place place = place_of(pass.merges[at]);
  repeat_item(pass, StageKind::merge, at);
  return place;
}

Place start_anew(Pass& pass, size_t at) {
  pass.merges[at].order = 0;
  return place_of(pass.merges[at]);
}

TEST(MergeFault, AnOutputPartialIsNotMerged) {
  expect_caught("movement", change_merges(&Plan::forward, BufferKind::out, 0, skip), 13);
}

TEST(MergeFault, AQueryGradientPartialIsNotMerged) {
  expect_caught("movement", change_merges(&Plan::backward, BufferKind::dq, 0, skip), 13);
}

TEST(MergeFault, AKvGradientPartialIsNotMerged) {
  expect_caught("movement", change_merges(&Plan::backward, BufferKind::dkv, 0, skip), 13);
}

TEST(MergeFault, AnOutputPartialIsMergedTwice) {
  expect_caught("movement", change_merges(&Plan::forward, BufferKind::out, 0, merge_twice), 13);
}

TEST(MergeFault, AKvGradientPartialIsMergedTwice) {
  expect_caught("movement", change_merges(&Plan::backward, BufferKind::dkv, 0, merge_twice), 13);
}

TEST(MergeFault, TheLastOutputMergeForgetsTheEarlierOnes) {
  expect_caught("movement", change_merges(&Plan::forward, BufferKind::out, 1, start_anew), 6);
}

TEST(MergeFault, TheLastQueryGradientMergeForgetsTheEarlierOnes) {
  expect_caught("movement", change_merges(&Plan::backward, BufferKind::dq, 1, start_anew), 6);
}

TEST(MergeFault, ATravellingSumForgetsWhatItGathered) {
  expect_caught("movement", change_merges(&Plan::backward, BufferKind::dkv, 1, start_anew), 6);
}

/// Adds a buffer with the rows of `like`, which no item sends on.
BufferId add_stray(Plan& plan, BufferId like) {
  BufferSpec spec = plan.buffer(like);
  spec.role = BufferRole::moved;
  return plan.buffers.push_back(spec);
}

/// Merges all results of one sum elsewhere; the sum itself is started and finished without any.
Fault lead_astray(Pass Plan::*pass, BufferKind kind) {
  return [=](Plan& plan) -> std::optional<Place> {
    std::vector<MergeItem>& merges = (plan.*pass).merges;
    const auto last = find_merge(plan, plan.*pass, kind);
    if (!last) return std::nullopt;
    const BufferId sum = merges[*last].into, stray = add_stray(plan, sum);
    size_t first = merges.size();
    for (size_t m = merges.size(); m-- > 0;) {
      if (merges[m].into != sum) continue;
      merges[m].into = stray;
      first = m;
    }
    repeat_item(plan.*pass, StageKind::merge, first);
    merges[first].partial = kNoBuffer;
    merges[first].into = sum;
    return Place{-1, -1};
  };
}

TEST(MergeFault, AllResultsGoToASumThatNobodySends) {
  expect_caught("partials", lead_astray(&Plan::forward, BufferKind::out), 13, "partial results");
  expect_caught("gradients", lead_astray(&Plan::backward, BufferKind::dq), 13, "partial dQ");
}

/// Merges the last of several results into a sum of its own.
Fault part_ways(Pass Plan::*pass, BufferKind kind) {
  return [=](Plan& plan) -> std::optional<Place> {
    const auto last = find_merge(plan, plan.*pass, kind, 1);
    if (!last) return std::nullopt;
    MergeItem& item = (plan.*pass).merges[*last];
    item.into = add_stray(plan, item.into);
    item.order = 0;
    return Place{-1, -1};
  };
}

TEST(MergeFault, OneResultGoesToASumThatNobodySends) {
  expect_caught("partials", part_ways(&Plan::forward, BufferKind::out), 9, "partial results");
  expect_caught("gradients", part_ways(&Plan::backward, BufferKind::dq), 9, "partial dQ");
}

TEST(MergeFault, MergesComeInAnotherOrder) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<MergeItem>& merges = plan.forward.merges;
        for (size_t a = 0; a < merges.size(); ++a) {
          for (size_t b = a + 1; b < merges.size(); ++b) {
            if (merges[a].into != merges[b].into) continue;
            std::swap(merges[a].order, merges[b].order);
            return place_of(merges[a]);
          }
        }
        return std::nullopt;
      },
      6);
}

TEST(MergeFault, AMergeAddsAnotherTensor) {
  // a2a: queries and keys have the same rows there, so only the kind differs.
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<MergeItem>& merges = plan.backward.merges;
        for (size_t m = 1; m < merges.size(); ++m) {
          if (merges[m].rank != merges[m - 1].rank || merges[m].partial == kNoBuffer ||
              merges[m - 1].partial == kNoBuffer ||
              plan.buffer(merges[m].into).kind == plan.buffer(merges[m - 1].into).kind)
            continue;
          std::swap(merges[m].partial, merges[m - 1].partial);
          return place_of(merges[m]);
        }
        return std::nullopt;
      },
      13);
}

TEST(MergeFault, ASumIsNeverStarted) {
  // The zero with which an idle rank's rows, or the home buffer of dKV shares, begin.
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        for (Pass* pass : {&plan.backward, &plan.forward}) {
          for (size_t m = 0; m < pass->merges.size(); ++m) {
            if (pass->merges[m].partial != kNoBuffer || plan.buffer(pass->merges[m].into).rows == 0)
              continue;
            const Place place{to_index(pass->merges[m].rank), -1};
            erase_item(*pass, StageKind::merge, m);
            return place;
          }
        }
        return std::nullopt;
      },
      6);
}

Fault drop_finish(Pass Plan::*pass, BufferKind kind, bool keep_backward) {
  return [=](Plan& plan) -> std::optional<Place> {
    for (size_t f = (plan.*pass).finishes.size(); f-- > 0;) {
      const FinishItem item = (plan.*pass).finishes[f];
      if (plan.buffer(item.buffer).kind != kind) continue;
      erase_item(plan.*pass, StageKind::finish, f);
      if (keep_backward) return Place{to_index(item.rank), -1};
      plan.scenario.numerics.backward = false;
      plan.backward = {};
      return Place{};
    }
    return std::nullopt;
  };
}

TEST(MergeFault, AnOutputIsNeverFinished) {
  expect_caught("movement", drop_finish(&Plan::forward, BufferKind::out, true), 13);
}

TEST(MergeFault, AnOutputIsNeverFinishedWithoutABackwardPass) {
  expect_caught("movement", drop_finish(&Plan::forward, BufferKind::out, false), 13);
}

TEST(MergeFault, AQueryGradientIsNeverFinished) {
  expect_caught("movement", drop_finish(&Plan::backward, BufferKind::dq, true), 13);
}

TEST(MergeFault, AKvGradientIsNeverFinished) {
  expect_caught("movement", drop_finish(&Plan::backward, BufferKind::dkv, true), 13);
}

TEST(MergeFault, AnOutputIsFinishedTwice) {
  expect_caught(
      "movement",
      [](Plan& plan) -> std::optional<Place> {
        const FinishItem item = plan.forward.finishes.back();
        repeat_item(plan.forward, StageKind::finish, plan.forward.finishes.size() - 1);
        return Place{to_index(item.rank), to_index(item.step)};
      },
      13);
}

/// The last share of dKV that is added on its owner.
std::optional<size_t> find_share(const Pass& pass) {
  for (size_t t = pass.transfers.size(); t-- > 0;) {
    if (pass.transfers[t].payload == Payload::dkv && pass.transfers[t].landing == Landing::add &&
        pass.transfers[t].src != pass.transfers[t].dst)
      return t;
  }
  return std::nullopt;
}

TEST(GradientFault, AShareOfDkvIsLost) {
  expect_caught(
      "gradients",
      [](Plan& plan) -> std::optional<Place> {
        const auto at = find_share(plan.backward);
        if (!at) return std::nullopt;
        erase_item(plan.backward, StageKind::transfer, *at);
        return Place{};
      },
      8);
}

TEST(GradientFault, AShareOfDkvIsAddedTwice) {
  expect_caught(
      "gradients",
      [](Plan& plan) -> std::optional<Place> {
        const auto at = find_share(plan.backward);
        if (!at) return std::nullopt;
        repeat_item(plan.backward, StageKind::transfer, *at);
        return Place{};
      },
      8);
}

TEST(GradientFault, OneRankSendsAnothersShare) {
  // Rows, heads and tokens fit; only the sum that is sent is not the computed one.
  expect_caught(
      "",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<TransferItem>& items = plan.backward.transfers;
        for (size_t a = 0; a < items.size(); ++a) {
          for (size_t b = a + 1; b < items.size(); ++b) {
            const bool fits =
                items[a].landing == Landing::add && items[b].landing == Landing::add &&
                items[a].from != items[b].from && items[a].to == items[b].to &&
                items[a].from_rows == items[b].from_rows && items[a].heads == items[b].heads &&
                items[a].src != items[a].dst && items[b].src != items[b].dst;
            if (!fits) continue;
            items[a].from = items[b].from;
            items[a].src = items[b].src;
            return Place{};
          }
        }
        return std::nullopt;
      },
      2);
}

}  // namespace
}  // namespace cpscope::tests
