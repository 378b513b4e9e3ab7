// The numbers of two plans of one batch, compared in the order of one of them.
#include "gui/app/plan_difference.h"

#include "gui/app/run_views.h"
#include "sim/plan/check/plan_check.h"
#include "sim/scenario/scenario_file.h"
#include "tests/gui/model/numbers_cases.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

/// Two sequences whose slots are padded to multiples of 8 by zigzag, and not by an all-to-all.
constexpr const char* kBatch = R"(schema = 1
[attention]
heads = 4
head_dim = 16
attn_mask_type = "padding_causal"
[batch]
lengths = [37, 85]
[numerics]
dtype = "bf16"
)";

struct PlanAndRun {
  SharedPlan plan;
  SharedRun run;

  PlannedRun planned() const { return {run.get(), plan.get()}; }
};

PlanAndRun run_split(const std::string& parallel, std::string batch = kBatch) {
  static Toolbox toolbox = tests::make_numbers_toolbox();
  Document document;
  const auto error = document.load_text(batch + "[parallel]\n" + parallel, "test.toml");
  EXPECT_FALSE(error.has_value()) << (error ? to_text(*error) : "");
  document.wait();
  PlanAndRun made{document.plan(), nullptr};
  TaskControl control;
  Result<SharedRun> run = make_runner(toolbox)("cpu", made.plan, control);
  EXPECT_TRUE(run.ok()) << to_text(run.error());
  made.run = run.value();
  return made;
}

const PlanAndRun& ring() {
  static const PlanAndRun made = run_split("cp_size = 4");
  return made;
}

const PlanAndRun& all_to_all() {
  static const PlanAndRun made =
      run_split("cp_size = 4\ncp_comm_type = \"a2a\"\nlayout = \"contiguous\"");
  return made;
}

const ErrorField& field_of(const RunView& view, std::string_view name) {
  return *std::find_if(view.errors.begin(), view.errors.end(),
                       [&](const ErrorField& field) { return field.name == name; });
}

TEST(PlanDifference, ComparesARingWithAnAllToAllRowByRow) {
  ASSERT_NE(ring().plan->tokens(Side::q), all_to_all().plan->tokens(Side::q))
      << "the two pad differently";
  const Result<SharedRun> made = compare_across_plans(ring().planned(), all_to_all().planned());
  ASSERT_TRUE(made.ok()) << to_text(made.error());
  const RunView& view = *made.value();
  ASSERT_EQ(view.errors.size(), kErrorTensors.size());
  for (const ErrorField& field : view.errors) {
    EXPECT_TRUE(field.passed) << field.name;
    EXPECT_EQ(field.nan, 0) << field.name;
    EXPECT_GT(field.budget, 0) << field.name;
    ASSERT_EQ(field.parts.size(), 3U);
    EXPECT_EQ(field.parts[0].shares.size(), 4U);
    for (const DistanceBars& bars : field.parts)
      for (const double share : bars.shares) EXPECT_LT(share, 1.25) << field.name << bars.title;
  }
  EXPECT_GT(field_of(view, "out").rel_l2, 0) << "another order of merges";
  EXPECT_EQ(view.name, "cpu (bf16) (p2p, dual_chunk)");
  EXPECT_EQ(view.against, "cpu (bf16) (a2a, contiguous)");
}

TEST(PlanDifference, FindsRankHeadAndTokenOfAWrongRow) {
  const PlanAndRun& other = all_to_all();
  // Position 54 of the second sequence, head 2, in the answer of the all-to-all.
  const SequenceSlot& there = other.plan->plan().layout.slots.sequences[1];
  const SequenceSlot& here = ring().plan->plan().layout.slots.sequences[1];
  const int64_t token = there.q_valid_begin() + 54, seen_token = here.q_valid_begin() + 54;
  ASSERT_NE(token, seen_token);
  auto record = std::make_shared<RunRecord>(*other.run->record);
  for (Tensor& tensor : record->tensors)
    if (tensor.name == "out") tensor.values[static_cast<size_t>((token * 4 + 2) * 16 + 3)] += 2;
  RunView wrong = *other.run;
  wrong.record = record;
  const Result<SharedRun> made = compare_across_plans(ring().planned(), {&wrong, other.plan.get()});
  ASSERT_TRUE(made.ok());
  const ErrorField& out = field_of(*made.value(), "out");
  EXPECT_FALSE(out.passed);
  ASSERT_FALSE(out.worst.empty());
  EXPECT_EQ(out.worst[0].token, seen_token);
  EXPECT_EQ(out.worst[0].head, 2);
  EXPECT_EQ(out.worst[0].lane, 3);
  const auto worst_part = [&](size_t chart) {
    const std::vector<double>& shares = out.parts[chart].shares;
    return std::max_element(shares.begin(), shares.end()) - shares.begin();
  };
  EXPECT_EQ(worst_part(0), ring().plan->owner(Side::q, seen_token).rank);
  EXPECT_EQ(worst_part(1), other.plan->owner(Side::q, token).rank);
  EXPECT_NE(worst_part(0), worst_part(1)) << "the token has two owners";
  EXPECT_EQ(worst_part(2), 2);
  for (size_t chart = 0; chart < 3; ++chart) {
    EXPECT_GT(out.parts[chart].shares[static_cast<size_t>(worst_part(chart))], 1.25);
    EXPECT_EQ(std::count_if(out.parts[chart].shares.begin(), out.parts[chart].shares.end(),
                            [](double share) { return share > 1.25; }),
              1);
  }
  EXPECT_TRUE(field_of(*made.value(), "dq").passed);
}

TEST(PlanDifference, RejectsPlansThatAnswerDifferentQuestions) {
  const auto with = [](std::string_view from, std::string_view to) {
    std::string text = kBatch;
    text.replace(text.find(from), from.size(), to);
    return run_split("cp_size = 2", text);
  };
  const struct {
    PlanAndRun other;
    const char* words;
  } cases[] = {
      {with("37, 85", "37, 86"), "sequence 1 has 85 tokens and 86"},
      {with("37, 85", "122"), "2 sequences and 1"},
      {with("heads = 4", "heads = 4\nsoftcap = 20.0"), "their attention is not the same"},
      {with("bf16\"", "bf16\"\nseed = 2"), "their seeds are 1 and 2"},
      {with("bf16", "fp32"), "the runs were given another q"},
  };
  for (const auto& one : cases) {
    const Result<SharedRun> made = compare_across_plans(ring().planned(), one.other.planned());
    ASSERT_FALSE(made.ok()) << one.words;
    EXPECT_NE(to_text(made.error()).find(one.words), std::string::npos) << to_text(made.error());
  }
}

}  // namespace
}  // namespace cpscope::gui
