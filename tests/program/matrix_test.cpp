#include "reference/plan_walker.h"
#include "sim/app/matrix/matrix_peers.h"
#include "sim/app/matrix/matrix_table.h"
#include "sim/plan/planner/planner.h"
#include "tests/program/walker_toolbox.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

MatrixCell causal_ring_cell() {
  return {&comm_recipes().front(), find_layout("dual_chunk"), find_mask("causal"),
          QkvFormat::thd,          PaddingChoice::padded,     &feature_recipes().front()};
}

CellResult run_causal_ring(Executor& executor, const Toolbox& toolbox, int64_t index) {
  const MatrixCell cell = causal_ring_cell();
  return run_cell(executor, toolbox, cell, make_cell_scenario(cell), index);
}

/// Wraps the walker; what it does to a plan or an answer is up to the test.
class Wrapped : public Executor {
 public:
  using Change = std::function<void(Answer&)>;
  Wrapped(bool heals_plans, Change change)
      : walker_(reference::make_plan_walker()), heals_(heals_plans), change_(std::move(change)) {}
  std::string name() const override { return "wrapped"; }
  int64_t memory_bytes(const CheckedPlan& plan) const override {
    return walker_->memory_bytes(plan);
  }
  Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                        const RunOptions& options) override {
    if (heals_) {
      Result<CheckedPlan> healthy = check_plan(make_plan(plan.plan().scenario).value());
      return walker_->run(healthy.value(), inputs, options);
    }
    Result<RunOutput> output = walker_->run(plan, inputs, options);
    if (output) change_(output.value().answer);
    return output;
  }

 private:
  std::unique_ptr<Executor> walker_;
  bool heals_;
  Change change_;
};

TEST(SupportMatrix, HasEveryPlainCombinationAndNoCellTwice) {
  const std::vector<MatrixCell> cells = full_matrix();
  std::set<std::string> names;
  for (const MatrixCell& cell : cells) names.insert(describe(cell));
  EXPECT_EQ(names.size(), cells.size());
  const size_t comms = comm_recipes().size(), layouts = layout_recipes().size();
  const size_t formats = matrix_formats().size(), paddings = 2;
  const size_t plain = comms * layouts * mask_recipes().size() * formats * paddings;
  const size_t chosen_layouts = 3, chosen_masks = 4;
  const size_t featured =
      (feature_recipes().size() - 2) * comms * chosen_layouts * chosen_masks * formats;
  // p2p with both numbers of hops, a2a and all_gather; contiguous, dual_chunk and two striped ones.
  const size_t in_rounds = 4 * 4 * mask_recipes().size();
  EXPECT_EQ(cells.size(), plain + featured + in_rounds);
}

TEST(SupportMatrix, HoldsTheFastPart) {
  std::set<std::string> full;
  for (const MatrixCell& cell : full_matrix()) full.insert(describe(cell));
  for (const MatrixCell& cell : fast_matrix()) EXPECT_TRUE(full.contains(describe(cell)));
}

TEST(SupportMatrix, CallsAScenarioOfOneTokenBlind) {
  Toolbox toolbox = tests::make_walker_toolbox();
  const MatrixCell cell = causal_ring_cell();
  Scenario scenario = make_cell_scenario(cell);
  scenario.batch.lengths = scenario.batch.kv_lengths = {1};
  scenario.batch.slots = scenario.batch.kv_slots = {1};
  const CellResult result = run_cell(*toolbox.executors.front(), toolbox, cell, scenario, 0);
  EXPECT_EQ(to_name(result.status), "blind") << result.reason;
  EXPECT_FALSE(result.reason.empty());
}

TEST(SupportMatrix, CallsACellBlindWhoseRanksSeeOnlyTheirOwnKeys) {
  Toolbox toolbox = tests::make_walker_toolbox();
  MatrixCell cell = causal_ring_cell();
  cell.layout = find_layout("contiguous");
  Scenario scenario = make_cell_scenario(cell);
  // One sequence a rank: nothing has to travel.
  scenario.batch.lengths = scenario.batch.kv_lengths = {29, 30, 31, 27};
  scenario.batch.slots = scenario.batch.kv_slots = {32, 32, 32, 32};
  const CellResult result = run_cell(*toolbox.executors.front(), toolbox, cell, scenario, 0);
  EXPECT_EQ(to_name(result.status), "blind");
  EXPECT_EQ(result.reason, "no rank sees a key of another rank");
}

TEST(SupportMatrix, NamesWhyARankSeesNoRemoteKey) {
  Toolbox toolbox = tests::make_walker_toolbox();
  MatrixCell cell = causal_ring_cell();
  cell.layout = find_layout("contiguous");
  const CellResult result =
      run_cell(*toolbox.executors.front(), toolbox, cell, make_cell_scenario(cell), 0);
  EXPECT_EQ(to_name(result.status), "pass") << result.reason;
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_NE(result.notes[0].find("rank 0 sees no remote key"), std::string::npos);
}

TEST(SupportMatrix, CallsACellBlindWhoseFaultGoesUnseen) {
  Toolbox toolbox = tests::make_walker_toolbox();
  Wrapped healing(true, {});
  const CellResult result = run_causal_ring(healing, toolbox, 0);
  EXPECT_EQ(to_name(result.status), "blind");
  EXPECT_TRUE(result.has_fault);
  EXPECT_FALSE(result.is_caught);
}

TEST(SupportMatrix, FailsAnExecutorThatAnswersZero) {
  Toolbox toolbox = tests::make_walker_toolbox();
  Wrapped zero(false, [](Answer& answer) {
    std::fill(answer.out.values.begin(), answer.out.values.end(), 0.0);
  });
  const CellResult result = run_causal_ring(zero, toolbox, 0);
  EXPECT_EQ(to_name(result.status), "fail");
  EXPECT_EQ(result.reason.rfind("out: ", 0), 0u) << result.reason;
}

TEST(SupportMatrix, NamesTheRuleThatRefusesACell) {
  Toolbox toolbox = tests::make_walker_toolbox();
  MatrixCell cell = causal_ring_cell();
  cell.comm = &*std::find_if(comm_recipes().begin(), comm_recipes().end(),
                             [](const CommRecipe& comm) { return comm.name == "a2a"; });
  cell.feature = find_feature("3 heads on 4 ranks");
  const CellResult result =
      run_cell(*toolbox.executors.front(), toolbox, cell, make_cell_scenario(cell), 0);
  EXPECT_EQ(to_name(result.status), "refused");
  EXPECT_EQ(result.reason.rfind("a2a requires heads >= cp_size", 0), 0u) << result.reason;
}

TEST(PlantedFaults, AreCaughtWhereverTheyArePlanted) {
  Toolbox toolbox = tests::make_walker_toolbox();
  const auto count = static_cast<int64_t>(fault_kinds().size());
  std::map<FaultKind, int64_t> planted;
  // Every index plants one fault; a few rounds meet each kind at several places.
  for (int64_t index = 0; index < count * count; ++index) {
    const CellResult result = run_causal_ring(*toolbox.executors.front(), toolbox, index);
    ++planted[result.fault_kind];
    EXPECT_TRUE(result.is_caught) << to_name(result.fault_kind) << ": " << result.fault;
    EXPECT_NE(result.plan_check, "") << "the proofs admit: " << result.fault;
  }
  for (const FaultKind kind : fault_kinds()) EXPECT_EQ(planted[kind], count) << to_name(kind);
}

TEST(MatrixTable, HasAPeerRowForEveryCommunicationTypeAndMaskGroup) {
  std::set<std::pair<std::string, std::string>> typed, swept;
  for (const PeerRow& row : peer_rows())
    typed.emplace(std::string(to_name(row.comm)), std::string(row.mask_group));
  for (const CommRecipe& comm : comm_recipes()) {
    for (const MaskRecipe& mask : mask_recipes())
      swept.emplace(std::string(to_name(comm.type)), std::string(mask.group));
  }
  EXPECT_EQ(typed, swept);
  EXPECT_EQ(peer_rows().size(), typed.size());
}

TEST(MatrixTable, CountsEveryCellOnceInItsJson) {
  const MatrixCell cell = causal_ring_cell();
  std::vector<CellResult> results(3);
  for (CellResult& result : results) result.cell = cell;
  results[0].status = CellStatus::pass;
  results[1].status = CellStatus::refused;
  results[1].reason = "a rule";
  results[2].status = CellStatus::blind;
  results[2].reason = "no tile is full";
  const Json json = matrix_json(summarise_matrix(results));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["passed"], false);
  EXPECT_EQ(json["cells"], 3);
  EXPECT_EQ(json["tables"]["mask"]["causal"]["p2p"]["refused"], 1);
  EXPECT_EQ(json["refusals"][0]["reason"], "a rule");
  EXPECT_EQ(json["failures"][0]["reason"], "no tile is full");
}

}  // namespace
}  // namespace cpscope
