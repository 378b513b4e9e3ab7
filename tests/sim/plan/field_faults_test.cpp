#include "sim/plan/check/plan_check.h"
#include "tests/sim/plan/faulty_plans.h"

#include <algorithm>
#include <array>
#include <set>

#include <gtest/gtest.h>

// Every field of every item of every good plan is changed by one: every change must be detected.
// Left out are fields where some changes have no effect (an idle item's buffers, limits of a band
// that no cell reaches) or change only a label (link class, role).

namespace cpscope::tests {
namespace {

class FieldFault : public testing::Test {
 protected:
  /// Requires that some check fails on the present plan.
  void expect_seen(const Plan& plan, const std::string& what) {
    ++changes_;
    const std::vector<CheckResult> checks = inspect_plan(plan);
    const bool is_seen =
        std::any_of(checks.begin(), checks.end(), [](const CheckResult& c) { return !c.ok; });
    EXPECT_TRUE(is_seen) << "nobody noticed: " << what << " in " << name_;
  }

  template <class Number>
  void change_number(Plan& plan, Number& field, const std::string& what) {
    const Number kept = field;
    for (const int by : {-1, 1}) {
      field = static_cast<Number>(kept + by);
      expect_seen(plan, what + " changed by " + std::to_string(by));
    }
    field = kept;
  }

  /// The cells of an item: its bands in any order, without limits that no cell reaches.
  static std::set<std::array<int64_t, 6>> tight_bands(const Plan& plan, const ComputeItem& item) {
    std::set<std::array<int64_t, 6>> bands;
    for (const BandSlice& slice : plan.slices_of(item)) {
      const Band band = tighten(slice);
      bands.insert({band.q0, band.q1, band.k0, band.k1, band.lo, band.hi});
    }
    return bands;
  }

  /// Another place of the pool with the same bands is as good.
  void change_first_slice(Plan& plan, ComputeItem& item, const std::string& what) {
    const ComputeItem kept = item;
    const auto bands = tight_bands(plan, item);
    const auto limit = static_cast<int64_t>(plan.slices.size());
    for (const int by : {-1, 1}) {
      item.first_slice = kept.first_slice + by;
      const bool is_inside = item.first_slice >= 0 && item.first_slice + item.num_slices <= limit;
      if (!is_inside || tight_bands(plan, item) != bands)
        expect_seen(plan, what + " changed by " + std::to_string(by));
    }
    item = kept;
  }

  template <class Id>
  void change_id(Plan& plan, Id& field, const std::string& what) {
    const Id kept = field;
    for (const int by : {-1, 1, 2}) {
      field = Id{to_index(kept) + by};
      expect_seen(plan, what + " changed by " + std::to_string(by));
    }
    field = kept;
  }

  /// Calls visit(plan, pass, "forward" or "backward") with a fresh copy of every good plan.
  template <class Visit>
  void for_each_pass(Visit visit) {
    for (const GoodPlan& good : good_plans()) {
      name_ = good.name;
      Plan plan = good.plan;
      visit(plan, plan.forward, std::string("forward "));
      visit(plan, plan.backward, std::string("backward "));
    }
  }

  void TearDown() override { EXPECT_GT(changes_, 100); }

  std::string name_;
  int64_t changes_ = 0;
};

std::string describe_item(size_t index, StepId step, RankId rank) {
  return " " + std::to_string(index) + " (step " + std::to_string(to_index(step)) + ", rank " +
         std::to_string(to_index(rank)) + ")";
}

TEST_F(FieldFault, OfAComputeItemIsSeen) {
  for_each_pass([&](Plan& plan, Pass& pass, const std::string& which) {
    for (size_t i = 0; i < pass.computes.size(); ++i) {
      ComputeItem& item = pass.computes[i];
      if (item.num_slices == 0) continue;
      const std::string where = which + "compute" + describe_item(i, item.step, item.rank);
      change_id(plan, item.rank, where + ".rank");
      change_id(plan, item.step, where + ".step");
      change_id(plan, item.q, where + ".q");
      change_id(plan, item.kv, where + ".kv");
      change_id(plan, item.out, where + ".out");
      change_id(plan, item.q_tokens, where + ".q_tokens");
      change_id(plan, item.kv_tokens, where + ".kv_tokens");
      change_number(plan, item.heads.begin, where + ".heads.begin");
      change_number(plan, item.heads.end, where + ".heads.end");
      change_first_slice(plan, item, where + ".first_slice");
      change_number(plan, item.num_slices, where + ".num_slices");
      change_number(plan, item.visible_pairs, where + ".visible_pairs");
      if (&pass == &plan.forward) continue;
      change_id(plan, item.d_out, where + ".d_out");
      change_id(plan, item.dq, where + ".dq");
      change_id(plan, item.dkv, where + ".dkv");
    }
  });
}

TEST_F(FieldFault, OfATransferIsSeen) {
  for_each_pass([&](Plan& plan, Pass& pass, const std::string& which) {
    for (size_t i = 0; i < pass.transfers.size(); ++i) {
      TransferItem& item = pass.transfers[i];
      const std::string where = which + "transfer" + describe_item(i, item.step, item.src);
      change_id(plan, item.src, where + ".src");
      change_id(plan, item.dst, where + ".dst");
      change_id(plan, item.step, where + ".step");
      change_id(plan, item.from, where + ".from");
      change_number(plan, item.heads.begin, where + ".heads.begin");
      change_number(plan, item.heads.end, where + ".heads.end");
      change_number(plan, item.bytes, where + ".bytes");
      const Payload kept = item.payload;
      for (int payload = 0; payload < 6; ++payload) {
        item.payload = static_cast<Payload>(payload);
        if (item.payload != kept) expect_seen(plan, where + ".payload");
      }
      item.payload = kept;
    }
  });
}

TEST_F(FieldFault, OfAReorderIsSeen) {
  for_each_pass([&](Plan& plan, Pass& pass, const std::string& which) {
    for (size_t i = 0; i < pass.reorders.size(); ++i) {
      ReorderItem& item = pass.reorders[i];
      const std::string where = which + "reorder" + describe_item(i, item.step, item.rank);
      change_id(plan, item.rank, where + ".rank");
      change_id(plan, item.from, where + ".from");
      change_id(plan, item.to, where + ".to");
    }
  });
}

TEST_F(FieldFault, OfAMergeIsSeen) {
  for_each_pass([&](Plan& plan, Pass& pass, const std::string& which) {
    for (size_t i = 0; i < pass.merges.size(); ++i) {
      MergeItem& item = pass.merges[i];
      const std::string where = which + "merge" + describe_item(i, item.step, item.rank);
      change_id(plan, item.rank, where + ".rank");
      change_id(plan, item.into, where + ".into");
      change_id(plan, item.partial, where + ".partial");
      // The order of a travelling sum's merge is its hop: only 0 has another meaning.
      if (plan.buffer(item.into).kind != BufferKind::dkv)
        change_number(plan, item.order, where + ".order");
    }
  });
}

TEST_F(FieldFault, OfAFinishIsSeen) {
  for_each_pass([&](Plan& plan, Pass& pass, const std::string& which) {
    for (size_t i = 0; i < pass.finishes.size(); ++i) {
      FinishItem& item = pass.finishes[i];
      const std::string where = which + "finish" + describe_item(i, item.step, item.rank);
      change_id(plan, item.rank, where + ".rank");
      change_id(plan, item.buffer, where + ".buffer");
    }
  });
}

TEST_F(FieldFault, OfAStageIsSeen) {
  for_each_pass([&](Plan& plan, Pass& pass, const std::string& which) {
    change_number(plan, pass.num_steps, which + "num_steps");
    for (size_t i = 0; i < pass.stages.size(); ++i) {
      Stage& stage = pass.stages[i];
      const std::string where = which + "stage " + std::to_string(i);
      change_id(plan, stage.step, where + ".step");
      change_number(plan, stage.begin, where + ".begin");
      change_number(plan, stage.end, where + ".end");
      const StageKind kept = stage.kind;
      for (int kind = 0; kind < 5; ++kind) {
        stage.kind = static_cast<StageKind>(kind);
        if (stage.kind != kept) expect_seen(plan, where + ".kind");
      }
      stage.kind = kept;
    }
  });
}

TEST_F(FieldFault, OfOwnershipIsSeen) {
  for (const GoodPlan& good : good_plans()) {
    name_ = good.name;
    Plan plan = good.plan;
    for (const RankId rank : plan.home.ids()) {
      HomeBuffers& home = plan.home[rank];
      const std::string where = "rank " + std::to_string(to_index(rank));
      change_id(plan, plan.q_lists[rank], where + " q list");
      change_id(plan, plan.kv_lists[rank], where + " kv list");
      for (BufferId HomeBuffers::*id : {&HomeBuffers::q, &HomeBuffers::kv, &HomeBuffers::out,
                                        &HomeBuffers::d_out, &HomeBuffers::dq, &HomeBuffers::dkv})
        change_id(plan, home.*id, where + " home buffer");
    }
    for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
      SequenceSlot& slot = plan.layout.slots.sequences[s];
      const std::string where = "sequence " + std::to_string(s);
      change_number(plan, slot.q_begin, where + ".q_begin");
      change_number(plan, slot.q_valid, where + ".q_valid");
      change_number(plan, slot.q_front, where + ".q_front");
      change_number(plan, slot.kv_begin, where + ".kv_begin");
      change_number(plan, slot.kv_valid, where + ".kv_valid");
      change_number(plan, slot.kv_front, where + ".kv_front");
    }
    change_number(plan, plan.layout.slots.tokens, "tokens");
    change_number(plan, plan.layout.slots.kv_tokens, "kv_tokens");
    change_number(plan, plan.layout.cp_size, "cp_size");
    for (size_t r = 0; r < plan.runs.size(); ++r) {
      if (plan.runs[r].count() > 0)
        change_number(plan, plan.runs[r].begin, "run " + std::to_string(r) + ".begin");
    }
    for (const RunListId id : plan.run_lists.ids()) {
      const std::string where = "list " + std::to_string(to_index(id));
      change_number(plan, plan.run_lists[id].rows, where + ".rows");
      change_number(plan, plan.run_lists[id].count, where + ".count");
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
