#include "gui/app/inspect.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "tests/gui/model/random_plans.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::Inspection;
using gui::PlanIndex;
using gui::RunView;
using gui::Target;

std::string row_text(const Inspection& inspection, const std::string& label) {
  for (const gui::InspectionRow& row : inspection.rows) {
    if (row.label == label) return to_text(row.value);
  }
  return "";
}

Inspection inspect_alone(const PlanIndex& index, const Target& target) {
  return inspect(index, nullptr, nullptr, target);
}

/// A run with errors for all kinds of rows and an event for every item.
RunView make_full_run(const PlanIndex& index) {
  RunView run;
  run.name = "A: made up";
  run.against = "the oracle";
  run.is_simulated = true;
  const Attention& attention = index.plan().scenario.attention;
  for (size_t t = 0; t < std::size(gui::kErrorTensors); ++t) {
    const bool is_key = t >= 3;
    const int64_t tokens = index.tokens(is_key ? Side::kv : Side::q);
    const int64_t heads = is_key ? attention.kv_heads : attention.heads;
    Tensor seen{std::string(gui::kErrorTensors[t]), {tokens, heads, 2}, Dtype::fp32, {}};
    seen.values.assign(static_cast<size_t>(tokens * heads * 2), 1.0);
    Tensor expected = seen;
    for (size_t i = 0; i < seen.values.size(); i += 7) seen.values[i] += 0.001 * double(i);
    run.errors.push_back(gui::measure_errors(seen, expected, seen.name));
  }
  int64_t now = 0;
  for (const gui::StageRef& stage : index.stages()) {
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ItemId item{stage.direction, stage.kind, i};
      run.events.push_back(
          {item, RankId{facts_of(index, item).rank}, StepId{stage.step}, now, now + 1'000});
      now += 1'000;
    }
  }
  return run;
}

std::vector<ItemId> all_items(const PlanIndex& index) {
  std::vector<ItemId> items;
  for (const gui::StageRef& stage : index.stages()) {
    for (int64_t i = stage.begin; i < stage.end; ++i)
      items.push_back({stage.direction, stage.kind, i});
  }
  return items;
}

/// Every item, step, rank and link, and random tokens, pairs and rows.
std::vector<Target> many_targets(const PlanIndex& index, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  std::vector<Target> targets = {gui::Nothing{}};
  for (const ItemId& item : all_items(index)) targets.push_back(item);
  for (size_t s = 0; s < index.steps().size(); ++s)
    targets.push_back(gui::StepTarget{static_cast<int32_t>(s)});
  for (int32_t r = 0; r < index.num_ranks(); ++r) {
    targets.push_back(gui::RankTarget{r});
    for (int32_t other = 0; other < index.num_ranks(); ++other)
      targets.push_back(gui::LinkTarget{r, other});
  }
  const Attention& attention = index.plan().scenario.attention;
  const int64_t q = index.tokens(Side::q), kv = index.tokens(Side::kv);
  for (int i = 0; i < 12; ++i) {
    const int64_t q0 = below(q), q1 = q0 + 1 + below(q - q0), k0 = below(kv),
                  k1 = k0 + 1 + below(kv - k0);
    targets.push_back(gui::TokenRange{Side::q, q0, q1});
    targets.push_back(gui::TokenRange{Side::kv, k0, k1});
    targets.push_back(gui::PairRange{q0, q1, k0, k1});
    const auto tensor = static_cast<int32_t>(below(5));
    targets.push_back(gui::RowTarget{
        tensor, below(tensor >= 3 ? kv : q),
        static_cast<int32_t>(below(tensor >= 3 ? attention.kv_heads : attention.heads))});
  }
  return targets;
}

TEST(Inspect, LinksOnlyToWhatThePlanHasAndStaysShort) {
  for_plans_of_seeds(80, [](const PlanIndex& index, uint64_t seed) {
    const RunView run = make_full_run(index);
    for (const Target& target : many_targets(index, seed)) {
      const Inspection seen = inspect(index, &run, &run, target);
      EXPECT_FALSE(seen.heading.empty());
      EXPECT_GE(seen.rows.size(), 1u);
      EXPECT_LE(seen.rows.size(), Inspection::kMostRows);
      for (const gui::InspectionRow& row : seen.rows) {
        const std::string text = to_text(row.value);
        EXPECT_FALSE(text.empty()) << seen.heading << " / " << row.label;
        EXPECT_LT(text.size(), 700u) << text;
        EXPECT_EQ(text.find("Not present"), std::string::npos) << seen.heading;
        for (const char c : seen.heading + row.label + text)
          EXPECT_TRUE(c >= ' ' && c <= '~') << text;
        for (const gui::Span& span : row.value) {
          EXPECT_FALSE(span.text.empty());
          EXPECT_TRUE(is_present(index, span.target)) << seen.heading << " / " << text;
        }
      }
      if (testing::Test::HasFailure()) return;
    }
  });
}

TEST(Inspect, SaysWhenATargetIsNotInThePlan) {
  const PlanIndex index(*plan_unless_refused(walker_case({64}, 2)));
  for (const Target& target :
       {Target{gui::RankTarget{2}}, Target{gui::RankTarget{-1}}, Target{gui::StepTarget{99}},
        Target{ItemId{Direction::forward, StageKind::reorder, 0}}, Target{gui::RowTarget{0, 64, 0}},
        Target{gui::RowTarget{9, 0, 0}}, Target{gui::TokenRange{Side::q, 0, 65}},
        Target{gui::TokenRange{Side::q, 5, 5}}, Target{gui::PairRange{0, 1, 64, 65}}}) {
    const Inspection seen = inspect_alone(index, target);
    ASSERT_EQ(seen.rows.size(), 1u);
    EXPECT_EQ(to_text(seen.rows[0].value).rfind("Not present in this plan", 0), 0u);
  }
}

TEST(Inspect, HeadsAreWhatTheSelectionIs) {
  const PlanIndex index(*plan_unless_refused(walker_case({256}, 4)));
  const auto heading = [&](const Target& t) { return inspect_alone(index, t).heading; };
  EXPECT_EQ(heading(gui::TokenRange{Side::q, 128, 256}), "Tokens [128, 256) of queries");
  EXPECT_EQ(heading(ItemId{Direction::forward, StageKind::compute, 12}), "Compute item forward 12");
  EXPECT_EQ(heading(gui::RankTarget{3}), "Rank 3");
  EXPECT_EQ(heading(gui::LinkTarget{1, 2}), "Link 1 -> 2");
  EXPECT_EQ(heading(gui::RowTarget{0, 17, 2}), "Row out[token 17, head 2]");
  EXPECT_EQ(heading(gui::StepTarget{2}), "Step 3 of 4, forward");
  EXPECT_EQ(heading(gui::Nothing{}), "Nothing is selected");
}

/// Visible pairs of one head from an item's slices, cell by cell.
int64_t count_item_pairs(const Plan& plan, const ComputeItem& item) {
  int64_t pairs = 0;
  for (const BandSlice& s : plan.slices_of(item)) {
    for (int64_t q = 0; q < s.q1 - s.q0; ++q) {
      for (int64_t k = 0; k < s.k1 - s.k0; ++k) pairs += k - q >= s.lo && k - q <= s.hi ? 1 : 0;
    }
  }
  return pairs;
}

TEST(Inspect, ComputesShowWhatTheirSlicesSay) {
  for_plans_of_seeds(80, [](const PlanIndex& index, uint64_t) {
    const Plan& plan = index.plan();
    const Attention& attention = plan.scenario.attention;
    for (size_t i = 0; i < plan.forward.computes.size(); ++i) {
      const ComputeItem& item = plan.forward.computes[i];
      const Inspection seen = inspect_alone(
          index, ItemId{Direction::forward, StageKind::compute, static_cast<int64_t>(i)});
      const int64_t pairs = count_item_pairs(plan, item), heads = item.heads.size();
      const std::string text = row_text(seen, "Visible pairs");
      EXPECT_EQ(text.rfind(gui::print_count(pairs) + " a head", 0), 0u) << text;
      const std::string end = " = " + gui::print_count(pairs * heads);
      EXPECT_EQ(text.substr(text.size() - end.size()), end);
      EXPECT_EQ(row_text(seen, "Id"), fmt::format("forward.compute.{}", i));
      if (item.num_slices == 0) {
        EXPECT_EQ(row_text(seen, "Slices").rfind("none", 0), 0u);
        continue;
      }
      // Two products, over head_dim of qk and of v, with an addition each.
      const double flops =
          2.0 * static_cast<double>(pairs * heads) * (attention.head_dim_qk + attention.head_dim_v);
      const std::string shown = row_text(seen, "FLOPs, forward");
      EXPECT_NE(shown.find(" = " + gui::print_flops(flops)), std::string::npos) << shown;
    }
  });
}

TEST(Inspect, TransfersRanksAndLinksAddUpTheirBytes) {
  for_plans_of_seeds(80, [](const PlanIndex& index, uint64_t) {
    std::map<std::pair<int32_t, int32_t>, int64_t> links;
    std::vector<int64_t> sent(static_cast<size_t>(index.num_ranks())), received = sent;
    for (const Direction direction : kDirections) {
      const std::vector<TransferItem>& transfers = index.pass(direction).transfers;
      for (size_t i = 0; i < transfers.size(); ++i) {
        const TransferItem& item = transfers[i];
        const int32_t src = to_index(item.src), dst = to_index(item.dst);
        const Inspection seen =
            inspect_alone(index, ItemId{direction, StageKind::transfer, static_cast<int64_t>(i)});
        const std::string text = row_text(seen, "Bytes");
        if (src == dst) {
          EXPECT_EQ(text.rfind("0 on the wire", 0), 0u);
          continue;
        }
        const std::string end = " = " + gui::print_bytes(static_cast<double>(item.bytes));
        EXPECT_EQ(text.substr(text.size() - end.size()), end);
        links[{src, dst}] += item.bytes;
        sent[static_cast<size_t>(src)] += item.bytes;
        received[static_cast<size_t>(dst)] += item.bytes;
      }
    }
    const auto starts = [](const std::string& text, int64_t bytes) {
      return text.rfind(bytes == 0 ? "nothing" : gui::print_bytes(double(bytes)) + ":", 0) == 0;
    };
    for (int32_t r = 0; r < index.num_ranks(); ++r) {
      const Inspection seen = inspect_alone(index, gui::RankTarget{r});
      const auto at = static_cast<size_t>(r);
      // With zero bytes the text is not checked: ring slots get their content even without traffic.
      EXPECT_TRUE(sent[at] == 0 || starts(row_text(seen, "Sends"), sent[at]));
      EXPECT_TRUE(received[at] == 0 || starts(row_text(seen, "Receives"), received[at]));
      for (int32_t other = 0; other < index.num_ranks(); ++other) {
        const int64_t bytes = links[{r, other}];
        const std::string text =
            row_text(inspect_alone(index, gui::LinkTarget{r, other}), "Bytes in all");
        EXPECT_EQ(text, bytes == 0 ? "nothing crosses this link"
                                   : fmt::format("{} ({} B)", gui::print_bytes(double(bytes)),
                                                 gui::print_count(bytes)));
      }
    }
  });
}

/// The factors of "3 rows x 2 heads x (head_dim 8 + 4) of two tensors x 2 bytes = ...", multiplied.
int64_t multiply_out(const std::string& formula) {
  int64_t product = 1;
  std::string left = formula.substr(0, formula.find('='));
  left.erase(std::remove(left.begin(), left.end(), ' '), left.end());
  for (size_t at = 0; at < left.size();) {
    if (left[at] == '(') {
      const size_t plus = left.find('+', at);
      product *= std::stoll(left.substr(left.find_first_of("0123456789", at))) +
                 std::stoll(left.substr(plus + 1));
      at = left.find(')', at);
    } else if (left[at] >= '0' && left[at] <= '9') {
      size_t used = 0;
      product *= std::stoll(left.substr(at), &used);
      at += used;
    } else {
      ++at;
    }
  }
  return product;
}

TEST(Inspect, BytesFormulaMultipliesOut) {
  RandomSpace space;
  space.any_dtype = true;
  for_plans_of_seeds(
      80,
      [](const PlanIndex& index, uint64_t) {
        for (const ItemId& item : all_items(index)) {
          if (item.kind != StageKind::transfer) continue;
          const TransferItem& transfer =
              index.pass(item.direction).transfers[static_cast<size_t>(item.index)];
          if (transfer.src == transfer.dst) continue;
          const std::string text = row_text(inspect_alone(index, item), "Bytes");
          EXPECT_EQ(multiply_out(text), transfer.bytes) << text;
        }
      },
      space);
}

TEST(Inspect, TokensCountValidOnesAndPairs) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t seed) {
    // Visible pairs of ids, computed from the items.
    std::set<std::pair<int64_t, int64_t>> pairs;
    const Plan& plan = index.plan();
    for (const ComputeItem& item : plan.forward.computes) {
      const auto q = expand(plan.list(item.q_tokens)), k = expand(plan.list(item.kv_tokens));
      for (const BandSlice& s : plan.slices_of(item)) {
        for (int64_t i = 0; i < s.q1 - s.q0; ++i) {
          for (int64_t j = 0; j < s.k1 - s.k0; ++j) {
            if (j - i >= s.lo && j - i <= s.hi) pairs.emplace(q[s.q0 + i], k[s.k0 + j]);
          }
        }
      }
    }
    for (const Target& target : many_targets(index, seed)) {
      const auto* tokens = std::get_if<gui::TokenRange>(&target);
      if (tokens == nullptr) continue;
      const Inspection seen = inspect_alone(index, target);
      int64_t valid = 0, as_queries = 0, as_keys = 0;
      for (const SequenceSlot& slot : plan.layout.slots.sequences) {
        const SlotSide ids = slot.side(tokens->side);
        for (int64_t id = ids.valid_begin(); id < ids.valid_end(); ++id)
          valid += id >= tokens->begin && id < tokens->end ? 1 : 0;
      }
      for (const auto& [q, k] : pairs) {
        as_queries += q >= tokens->begin && q < tokens->end ? 1 : 0;
        as_keys += k >= tokens->begin && k < tokens->end ? 1 : 0;
      }
      const int64_t count = tokens->end - tokens->begin;
      EXPECT_EQ(row_text(seen, "Tokens"),
                fmt::format("{}: {} valid, {} padding", gui::print_count(count),
                            gui::print_count(valid), gui::print_count(count - valid)));
      const bool is_both = plan.layout.same_kv;
      const auto pairs_text = [](int64_t n) {
        return gui::print_count(n) + (n == 1 ? " pair" : " pairs") + " a head";
      };
      EXPECT_EQ(row_text(seen, "As queries"),
                is_both || tokens->side == Side::q ? "see " + pairs_text(as_queries) : "");
      EXPECT_EQ(row_text(seen, "As keys"),
                is_both || tokens->side == Side::kv ? "are seen in " + pairs_text(as_keys) : "");
    }
  });
}

TEST(Inspect, LinksAComputeToWhoBroughtItsKeysAndWhoTakesItsResult) {
  const PlanIndex index(*plan_unless_refused(walker_case({256}, 4)));
  // Step 2: rank 1 computes with the keys of rank 0, which arrived over link 0 -> 1 in step 1.
  const Inspection seen = inspect_alone(index, ItemId{Direction::forward, StageKind::compute, 5});
  std::vector<Target> links;
  for (const gui::InspectionRow& row : seen.rows) {
    for (const gui::Span& span : row.value) links.push_back(span.target);
  }
  for (const Target& wanted :
       {Target{ItemId{Direction::forward, StageKind::transfer, 0}}, Target{gui::RankTarget{0}},
        Target{ItemId{Direction::forward, StageKind::merge, 5}}, Target{gui::StepTarget{1}}})
    EXPECT_EQ(std::count(links.begin(), links.end(), wanted) > 0, true)
        << name_target(wanted, &index);
}

TEST(Inspect, RowsShowValuesErrorsAndBudgets) {
  const PlanIndex index(*plan_unless_refused(walker_case({64}, 2)));
  Tensor expected{"out", {64, 4, 2}, Dtype::fp32, std::vector<double>(512, 1.0)};
  Tensor seen = expected;
  seen.values[(17 * 4 + 2) * 2 + 1] = 1.5;
  seen.values[(18 * 4 + 2) * 2] = std::numeric_limits<double>::quiet_NaN();
  TensorGrade grade;
  grade.row_budgets.assign(256, 0.25f);
  RunView run;
  run.name = "A: cpu";
  run.against = "the oracle";
  run.errors.push_back(gui::measure_errors(seen, expected, "out", &grade));
  const auto rows = [&](int64_t token, int32_t head) {
    return inspect(index, &run, nullptr, gui::RowTarget{0, token, head});
  };
  EXPECT_EQ(row_text(rows(17, 2), "A: cpu"),
            "error 0.5 of 0.25 allowed, 200 % of the budget: over it");
  EXPECT_EQ(row_text(rows(17, 2), "Largest element error"),
            "element 1: seen 1.5, expected 1; number 2 of the worst rows");
  EXPECT_EQ(row_text(rows(18, 2), "A: cpu"), "NaN in the row: over any budget");
  EXPECT_EQ(row_text(rows(3, 0), "A: cpu"), "error 0 of 0.25 allowed, 0 % of the budget");
  EXPECT_EQ(row_text(rows(3, 0), "Compared with"), "the oracle");
  // Without a run, the text says what to do.
  EXPECT_NE(row_text(inspect_alone(index, gui::RowTarget{0, 3, 0}), "Error").find("press R"),
            std::string::npos);
  EXPECT_EQ(row_text(inspect(index, &run, nullptr, gui::RowTarget{3, 3, 0}), "A: cpu"),
            "this run has no such tensor");
}

TEST(Inspect, TimesCarryTheMarkOfASimulatedClock) {
  const PlanIndex index(*plan_unless_refused(walker_case({64}, 2)));
  RunView run = make_full_run(index);
  const ItemId item{Direction::forward, StageKind::compute, 1};
  const std::string simulated = row_text(inspect(index, &run, nullptr, item), "Time in A: made up");
  EXPECT_EQ(simulated, "~3 us to ~4 us after the start, ~1 us (predicted)");
  run.is_simulated = false;
  EXPECT_EQ(row_text(inspect(index, &run, nullptr, item), "Time in A: made up"),
            "3 us to 4 us after the start, 1 us");
}

TEST(Inspect, SaysWhatToDoWhileThereIsNoPlan) {
  gui::AppState state;
  gui::InspectionMemo memo;
  EXPECT_EQ(memo.inspect(state, gui::RankTarget{0}).heading, "Nothing is open");
}

}  // namespace
}  // namespace cpscope::tests
