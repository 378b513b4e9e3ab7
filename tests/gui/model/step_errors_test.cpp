// The comparison of each step with its exact result, against brute force over the items themselves.
#include "gui/model/step_errors.h"

#include "gui/app/document/exact_steps.h"
#include "gui/app/run_views.h"
#include "gui/model/numbers/numbers_view.h"
#include "reference/plan_walker.h"
#include "sim/run/grade/first_item.h"
#include "sim/run/record/item_tensors.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_names.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/gui/model/view_probe.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::expect_paintable;
using tests::find_hit;
using tests::has_text;
using tests::make_numbers_toolbox;
using tests::NumbersCase;
using tests::plan_shipped;
using tests::plan_unless_refused;
using tests::probe_input;
using tests::run_shipped;
using tests::walker_case;

/// The items of a walk, as a record without an answer.
RunRecord walk_items(const Scenario& scenario, const RunInputs& inputs) {
  const auto plan = plan_unless_refused(scenario);
  RunRecord record;
  RunOptions options;
  options.observer = [&](const ItemResult& result) {
    record.tensors.push_back(make_item_tensor(result, Dtype::fp64));
  };
  EXPECT_TRUE(reference::make_plan_walker()->run(*plan, inputs, options).ok());
  return record;
}

RunRecord walk_exact_items(Scenario scenario, const RunInputs& inputs) {
  scenario.numerics.dtype = Dtype::fp64;
  return walk_items(scenario, inputs);
}

int32_t tensor_number(const std::string& array) {
  return static_cast<int32_t>(std::find(kErrorTensors.begin(), kErrorTensors.end(), array) -
                              kErrorTensors.begin());
}

/// (tensor, step of both passes, token, head)
using StepCell = std::tuple<int32_t, int32_t, int64_t, int32_t>;

/// The largest row error of every cell, element by element through place_in_item.
std::map<StepCell, double> brute_force(const RunRecord& seen, const RunRecord& expected,
                                       const Plan& plan) {
  std::map<StepCell, double> cells;
  for (const Tensor& tensor : seen.tensors) {
    const auto name = parse_item_name(tensor.name);
    if (!name || name->item.kind != StageKind::compute) continue;
    const Tensor& other = *expected.find(tensor.name);
    const int64_t lanes = tensor.shape[2];
    const bool is_backward = name->item.direction == Direction::backward;
    const int32_t step = to_index(name->step) + (is_backward ? plan.forward.num_steps : 0);
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      for (int64_t head = 0; head < tensor.shape[1]; ++head) {
        double square = 0;
        bool has_any = false;
        for (int64_t lane = 0; lane < lanes; ++lane) {
          const auto i = static_cast<size_t>((row * tensor.shape[1] + head) * lanes + lane);
          const double a = tensor.values[i], b = other.values[i];
          has_any = has_any || (a != 0 && std::isfinite(a)) || (b != 0 && std::isfinite(b));
          if (a != b) square += (a - b) * (a - b);
        }
        if (!has_any) continue;
        const auto place = place_in_item(plan, *name, row, head);
        double& cell =
            cells
                .emplace(StepCell{tensor_number(name->array), step, place->token, place->head}, 0.0)
                .first->second;
        cell = std::max(cell, std::sqrt(square));
      }
    }
  }
  return cells;
}

TEST(StepErrors, AreTheFurthestRowsOfTheItemsOfEachStep) {
  int ran = 0;
  for (uint64_t seed = 9'300'000; seed < 9'300'060; ++seed) {
    const Scenario scenario = random_scenario(seed);
    auto checked = plan_unless_refused(scenario);
    if (!checked) continue;
    ++ran;
    const RunInputs inputs = make_run_inputs(checked->plan(), true);
    const RunRecord seen = walk_items(scenario, inputs);
    const RunRecord exact = walk_exact_items(scenario, inputs);
    const PlanIndex index(std::move(*checked));
    const Result<StepErrors> steps = measure_steps(seen, exact, index, "exact");
    // If no query sees a key, no rank computes.
    const bool has_computes =
        std::any_of(seen.tensors.begin(), seen.tensors.end(), [](const Tensor& tensor) {
          return parse_item_name(tensor.name)->item.kind == StageKind::compute;
        });
    ASSERT_EQ(steps.ok(), has_computes) << "seed " << seed;
    if (!has_computes) continue;
    const std::map<StepCell, double> wanted = brute_force(seen, exact, index.plan());
    size_t shown = 0;
    for (int32_t tensor = 0; tensor < 5; ++tensor) {
      for (int32_t step = 0; step < static_cast<int32_t>(index.steps().size()); ++step) {
        const ErrorField* field = steps.value().find(tensor, step);
        if (field == nullptr) continue;
        for (int64_t token = 0; token < field->tokens; ++token) {
          for (int32_t head = 0; head < field->heads; ++head) {
            const float error = field->row_errors[static_cast<size_t>(token * field->heads + head)];
            const auto cell = wanted.find({tensor, step, token, head});
            if (cell == wanted.end()) {
              ASSERT_EQ(error, MaxPyramid::kNothing) << "seed " << seed << ", step " << step;
              continue;
            }
            ++shown;
            ASSERT_FLOAT_EQ(error, static_cast<float>(cell->second))
                << "seed " << seed << ", " << kErrorTensors[static_cast<size_t>(tensor)]
                << " of step " << step << ", token " << token << ", head " << head;
          }
        }
      }
    }
    EXPECT_EQ(shown, wanted.size()) << "seed " << seed;
  }
  EXPECT_GT(ran, 40);
}

/// A run in the window whose items can be changed, and its inputs.
struct Bent {
  SharedPlan plan;
  RunInputs inputs;
  RunRecord record;
};

Bent run_zigzag() {
  NumbersCase made = run_shipped("zigzag", true);
  RunInputs inputs = made.outcome.inputs;
  return {made.plan, std::move(inputs), make_record(made.outcome, "")};
}

double worst_of(const StepErrors& steps, int32_t tensor, int32_t step) {
  const ErrorField* field = steps.find(tensor, step);
  return field == nullptr || field->worst.empty() ? 0.0 : field->worst[0].share;
}

TEST(StepErrors, LightTheStepOfAPlantedFaultAndNoneBefore) {
  const Bent whole = run_zigzag();
  const Toolbox toolbox = make_numbers_toolbox();
  int planted = 0;
  for (const std::string array : {"out", "lse", "dq", "dk", "dv"}) {
    for (int32_t k = 0; k < whole.plan->plan().forward.num_steps; ++k) {
      RunRecord record = whole.record;
      for (Tensor& tensor : record.tensors) {
        const auto name = parse_item_name(tensor.name);
        if (!name || name->item.kind != StageKind::compute || name->array != array ||
            to_index(name->step) != k || to_index(name->rank) != 1)
          continue;
        // The last row sees keys in every step.
        tensor.values.back() += 1.0;
        ++planted;
      }
      const Result<StepErrors> steps =
          compare_with_exact_steps(record, whole.inputs, *whole.plan, toolbox, {});
      ASSERT_TRUE(steps.ok());
      const int32_t tensor = tensor_number(array);
      const int32_t first = tensor >= 2 ? whole.plan->plan().forward.num_steps : 0;
      for (int32_t step = 0; step < static_cast<int32_t>(whole.plan->steps().size()); ++step) {
        for (int32_t t = 0; t < 5; ++t) {
          if (t == tensor && step == first + k)
            EXPECT_GT(worst_of(steps.value(), t, step), 0.05) << array << " at step " << step;
          else
            EXPECT_LT(worst_of(steps.value(), t, step), 1e-5) << array << " at step " << step;
        }
      }
      ASSERT_TRUE(steps.value().first.has_value()) << array << " at step " << k;
      EXPECT_EQ(steps.value().first->step, first + k);
      EXPECT_EQ(steps.value().first->tensor, tensor);
      const WorstRow& worst = steps.value().find(tensor, first + k)->worst[0];
      EXPECT_EQ(steps.value().first->token, worst.token);
      EXPECT_EQ(steps.value().first->head, worst.head);
    }
  }
  EXPECT_EQ(planted, 20);
}

TEST(StepErrors, OfAWrongKeyBeginAtTheStepInWhichEachRankMeetsIt) {
  const SharedPlan plan = plan_shipped("zigzag");
  const Scenario& scenario = plan->plan().scenario;
  const RunInputs right = make_run_inputs(plan->plan(), false);
  RunInputs wrong = right;
  const int64_t key = 40;
  const int32_t holder = plan->owner(Side::kv, key).rank, ranks = plan->num_ranks();
  const int64_t lanes = wrong.k.shape[1] * wrong.k.shape[2];
  for (int64_t lane = 0; lane < lanes; ++lane) wrong.k.values[key * lanes + lane] += 3.0;
  const Result<StepErrors> steps =
      measure_steps(walk_items(scenario, wrong), walk_exact_items(scenario, right), *plan, "exact");
  ASSERT_TRUE(steps.ok());
  int lit = 0;
  for (int32_t step = 0; step < ranks; ++step) {
    const ErrorField& out = *steps.value().find(0, step);
    for (int64_t token = 0; token < out.tokens; ++token) {
      // Ring step i of rank r computes with the keys of rank r - i.
      const int32_t rank = plan->owner(Side::q, token).rank;
      const bool meets = (rank - step + ranks) % ranks == holder && token >= key;
      for (int32_t head = 0; head < out.heads; ++head) {
        const double share = out.share_of(token, head);
        if (meets)
          lit += share > 1e-3;
        else
          ASSERT_LT(share, 1e-5) << "step " << step << ", token " << token;
      }
    }
  }
  EXPECT_GT(lit, 500) << "of 864 rows that see the key";
}

RunView view_of(const Bent& bent, const RunRecord& record) {
  RunView run;
  run.name = "bent";
  run.record = std::make_shared<RunRecord>(record);
  EXPECT_FALSE(add_steps(run, bent.inputs, *bent.plan, make_numbers_toolbox(), {}));
  run.errors.emplace_back();
  run.errors.back().name = "out";
  return run;
}

View draw_step(const Bent& bent, const RunView& run, int32_t step, int32_t tensor, Size size) {
  static const Projection nothing;
  ViewInput input = probe_input(*bent.plan, nothing, size);
  input.run_a = &run;
  input.tensor = tensor;
  input.is_by_step = true;
  input.moment = bent.plan->moment_of_step(step);
  return draw_numbers(input);
}

const Pixels* find_heat(const View& view) {
  for (const Mark& mark : view.drawing.marks)
    if (const auto* pixels = std::get_if<Pixels>(&mark); pixels != nullptr && pixels->height > 1)
      return pixels;
  return nullptr;
}

TEST(StepErrors, AreDrawnForTheStepOfThePlayhead) {
  const Bent bent = run_zigzag();
  RunRecord record = bent.record;
  for (Tensor& tensor : record.tensors) {
    const auto name = parse_item_name(tensor.name);
    if (name && name->item.kind == StageKind::compute && name->array == "out" &&
        to_index(name->step) == 2 && to_index(name->rank) == 1)
      tensor.values.back() = std::numeric_limits<double>::quiet_NaN();
  }
  const RunView run = view_of(bent, record);
  const Color bad = theme_of(ThemeName::dark).of(Role::error);
  for (int32_t step = 0; step < 4; ++step) {
    const View view = draw_step(bent, run, step, 0, {700, 500});
    expect_paintable(view);
    const Pixels* heat = find_heat(view);
    ASSERT_NE(heat, nullptr);
    const auto count = std::count(heat->colors.begin(), heat->colors.end(), bad);
    EXPECT_EQ(count > 0, step == 2) << "step " << step;
    EXPECT_TRUE(has_text(view, "forward step " + std::to_string(step + 1) + " of 4"));
    for (int32_t other = 0; other < 4; ++other) {
      const HitRegion* bar = find_hit(view, "step/" + std::to_string(other));
      ASSERT_NE(bar, nullptr);
      EXPECT_EQ(bar->target, Target(StepTarget{other}));
    }
    const HitRegion* first = find_hit(view, "divergence");
    ASSERT_NE(first, nullptr);
    EXPECT_TRUE(first->tooltip.find("forward compute") != std::string::npos) << first->tooltip;
    EXPECT_TRUE(first->tooltip.find("rank 1 in step 3, out") != std::string::npos)
        << first->tooltip;
  }
  // A tensor of the other pass: the view shows text, and the steps that have it.
  const View none = draw_step(bent, run, 0, 2, {700, 500});
  EXPECT_EQ(find_heat(none), nullptr);
  EXPECT_TRUE(has_text(none, "dq is written in backward steps"));
  EXPECT_NE(find_hit(none, "step/4"), nullptr);
}

TEST(StepErrors, AreFoldedToTheWorstWhereStepsAreNarrow) {
  const Bent bent = run_zigzag();
  const RunView run = view_of(bent, bent.record);
  for (const float width : {40.0F, 90.0F, 120.0F, 300.0F})
    expect_paintable(draw_step(bent, run, 1, 0, {width, 200}));
}

TEST(StepErrors, SayWhyThereAreNone) {
  const SharedPlan plan = plan_shipped("zigzag");
  RunView without;
  without.record = std::make_shared<RunRecord>();
  EXPECT_FALSE(add_steps(without, {}, *plan, make_numbers_toolbox(), {}));
  EXPECT_EQ(without.without_steps,
            "This run holds no results of its steps. Record it again with `cpscope run --items`.");

  Scenario large = walker_case({20'000}, 4);
  large.numerics.backward = false;
  large.attention.heads = large.attention.kv_heads = 64;
  large.attention.head_dim_qk = large.attention.head_dim_v = 64;
  const PlanIndex index(plan_scenario(large).value());
  const auto refusal = refuse_items(index);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_TRUE(to_sentence(*refusal).starts_with("No steps: the results of all items take "))
      << to_sentence(*refusal);

  // A record with items of another plan.
  Bent bent = run_zigzag();
  for (Tensor& tensor : bent.record.tensors)
    if (parse_item_name(tensor.name)) tensor.shape[0] /= 2, tensor.values.resize(tensor.size());
  const RunView bad = view_of(bent, bent.record);
  EXPECT_EQ(bad.steps, nullptr);
  EXPECT_TRUE(bad.without_steps.find("another shape") != std::string::npos) << bad.without_steps;
  const View view = draw_step(bent, bad, 0, 0, {700, 500});
  EXPECT_TRUE(has_text(view, "another shape"));
}

}  // namespace
}  // namespace cpscope::gui
