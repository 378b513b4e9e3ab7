// The items' results of the walker, as records hold them.
#include "reference/plan_walker.h"
#include "sim/run/record/item_tensors.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

struct Watched {
  CheckedPlan plan;
  Answer answer;
  std::vector<Tensor> items;
};

std::optional<Watched> watch(const Scenario& scenario) {
  auto plan = plan_unless_refused(scenario);
  if (!plan) return std::nullopt;
  const RunInputs inputs = make_run_inputs(plan->plan(), true);
  std::vector<Tensor> items;
  RunOptions options;
  options.poison = true;
  options.observer = [&](const ItemResult& result) {
    items.push_back(make_item_tensor(result, Dtype::fp64));
  };
  Answer answer = reference::make_plan_walker()->run(*plan, inputs, options).value().answer;
  return Watched{std::move(*plan), std::move(answer), std::move(items)};
}

/// The stage number of an item: the order in which a plan runs.
int64_t stage_of(const Plan& plan, const ItemTensorName& name) {
  const auto& stages = plan.pass(name.item.direction).stages;
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].kind == name.item.kind && stages[s].begin <= name.item.index &&
        name.item.index < stages[s].end)
      return static_cast<int64_t>(s);
  }
  return -1;
}

TEST(ItemResults, TakeAsMuchAsWasForetoldAndComeInPlanOrder) {
  int ran = 0;
  for (uint64_t seed = 8'100'000; seed < 8'100'060; ++seed) {
    const auto watched = watch(random_scenario(seed));
    if (!watched) continue;
    ++ran;
    const Plan& plan = watched->plan.plan();
    int64_t value_bytes = 0;
    std::tuple<Direction, int64_t, int64_t> last{Direction::forward, -1, -1};
    for (const Tensor& tensor : watched->items) {
      ASSERT_EQ(tensor.size(), static_cast<int64_t>(tensor.values.size())) << tensor.name;
      value_bytes += tensor.size() * 8;
      const auto name = parse_item_name(tensor.name);
      ASSERT_TRUE(name.has_value()) << tensor.name;
      const std::tuple place{name->item.direction, stage_of(plan, *name), name->item.index};
      EXPECT_GE(place, last) << "seed " << seed << ", " << tensor.name;
      last = place;
    }
    const ItemResultsSize size = measure_item_results(plan);
    EXPECT_EQ(size.arrays, static_cast<int64_t>(watched->items.size())) << "seed " << seed;
    EXPECT_GT(size.bytes, value_bytes);
    EXPECT_LE(size.bytes, value_bytes + 1024 * size.arrays);
  }
  EXPECT_GT(ran, 40);
}

/// The answer's tensor that an item's array contributes to.
const Tensor& answer_of(const Answer& answer, const std::string& array) {
  if (array == "out") return answer.out;
  if (array == "lse") return answer.lse;
  return array == "dq" ? answer.dq : array == "dk" ? answer.dk : answer.dv;
}

TEST(ItemResults, OfTheLastItemsAreTheAnswerAtTheirPlaces) {
  int64_t compared = 0;
  for (const CommType comm : kCommTypes) {
    Scenario scenario = walker_case({37, 21}, 4);
    scenario.parallel.comm_type = comm;
    scenario.parallel.a2a_size = 2;
    const auto watched = watch(scenario);
    if (!watched) continue;
    for (const Tensor& tensor : watched->items) {
      const auto name = parse_item_name(tensor.name);
      const Tensor& whole = answer_of(watched->answer, name->array);
      const int64_t heads = whole.shape[1], lanes = tensor.shape[2];
      for (int64_t row = 0; row < tensor.shape[0]; ++row) {
        for (int64_t head = 0; head < tensor.shape[1]; ++head) {
          const auto place = place_in_item(watched->plan.plan(), *name, row, head);
          ASSERT_TRUE(place.has_value()) << tensor.name;
          // One rank's share of a key's gradient is not yet the answer.
          const bool is_last = name->item.kind == StageKind::finish && name->array.front() != 'd';
          if (!is_last || place->token < 0) continue;
          ++compared;
          for (int64_t lane = 0; lane < lanes; ++lane) {
            ASSERT_EQ(tensor.values[(row * tensor.shape[1] + head) * lanes + lane],
                      whole.values[(place->token * heads + place->head) * lanes + lane])
                << tensor.name << ", row " << row << ", token " << place->token;
          }
        }
      }
      EXPECT_FALSE(place_in_item(watched->plan.plan(), *name, 0, tensor.shape[1]).has_value());
    }
  }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace cpscope::tests
