// Answers of the wrong programs that the reports of scenarios/field/ describe, and what a grade
// says of them.
#include "sim/run/grade/wrong_row_table.h"
#include "sim/run/run_inputs.h"
#include "tests/program/field_case.h"
#include "tests/program/foreign_case.h"
#include "tests/program/judged_causes.h"
#include "tests/program/walker_toolbox.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// The grade of a wrong attention; `make` is given where the queries and keys stand.
JudgedCauses judge_wrong(
    const FieldCase& field,
    const std::function<WrongAttention(const std::vector<TokenPlace>& q,
                                       const std::vector<TokenPlace>& k)>& make) {
  std::vector<TokenPlace> q, k;
  const PlantedMistake mistake{
      .name = "field", .cause = "", .plant = [&](const Plan& plan, const RunInputs& inputs) {
        q = token_places(plan, Side::q);
        k = token_places(plan, Side::kv);
        return compute_wrongly(plan, inputs, make(q, k));
      }};
  return judge_planted(mistake, field.text());
}

/// The same where only the mask is wrong.
JudgedCauses judge_wrong_mask(
    const FieldCase& field,
    const std::function<bool(const TokenPlace& q, const TokenPlace& k)>& sees) {
  return judge_wrong(field, [&](const auto& q, const auto& k) {
    WrongAttention wrong;
    wrong.times = [&](int64_t i, int64_t j) {
      return sees(q[static_cast<size_t>(i)], k[static_cast<size_t>(j)]) ? 1.0 : 0.0;
    };
    return wrong;
  });
}

void expect_cause(const JudgedCauses& judged, const std::string& cause) {
  EXPECT_FALSE(judged.grade.passed);
  EXPECT_EQ(judged.first_cause(), cause) << judged.describe();
}

TEST(FieldGrades, B04NamesMergesThatDoNotWeighByLse) {
  const FieldCase field("b04");
  for (const char* how : {"mean", "sum", "base_e"}) {
    const JudgedCauses judged =
        judge_wrong(field, [&](const auto&, const auto&) { return WrongAttention{.merge = how}; });
    expect_cause(judged, "merge_without_lse");
  }
}

/// The grade of an answer in which rank 3's keys are missing in some heads; rank r owns head r.
JudgedCauses judge_missing_keys(const std::function<bool(size_t head)>& lacks) {
  const auto plant = [&](const Plan& plan, const RunInputs& inputs) {
    const std::vector<TokenPlace> q = token_places(plan, Side::q), k = token_places(plan, Side::kv);
    WrongAttention wrong;
    wrong.times = [&](int64_t i, int64_t j) {
      const TokenPlace &query = q[static_cast<size_t>(i)], &key = k[static_cast<size_t>(j)];
      const bool is_visible = query.sequence >= 0 && key.sequence == query.sequence &&
                              key.position <= query.position + 1001 - 4;
      return is_visible && key.rank != 3 ? 1.0 : 0.0;
    };
    Answer answer = compute_wrongly(plan, inputs, {});
    const Answer without = compute_wrongly(plan, inputs, wrong);
    for (const auto member : {&Answer::out, &Answer::lse}) {
      std::vector<double>& values = (answer.*member).values;
      const size_t lanes = member == &Answer::out ? 64 : 1;
      for (size_t i = 0; i < values.size(); ++i)
        if (lacks(i / lanes % 8)) values[i] = (without.*member).values[i];
    }
    return answer;
  };
  const FieldCase field = FieldCase("b04").with("numerics.dtype", "\"fp32\"");
  return judge_planted({.name = "field", .cause = "", .plant = plant}, field.text());
}

TEST(FieldGrades, B04NamesTheRankWhoseKeysAreMissingInWhicheverHeads) {
  for (const auto& lacks : std::initializer_list<std::function<bool(size_t)>>{
           [](size_t) { return true; }, [](size_t head) { return head != 3; },
           [](size_t head) { return head == 1; }}) {
    const JudgedCauses judged = judge_missing_keys(lacks);
    expect_cause(judged, "partial_missing");
    expect_says(judged.describe(), "the part of rank 3's keys is missing (out, lse;");
  }
}

TEST(FieldGrades, B04NamesTheRankThatOwnsTheHeadOfAWrongRow) {
  const ForeignCase made(FieldCase("b04").text());
  RunRecord record = made.record();
  // Token 2, head 5.
  tensor_of(record, "out").values[(2 * 8 + 5) * 64] = std::numeric_limits<double>::quiet_NaN();
  const ForeignGrade graded = made.grade(record, {}, {.keeps_exact = true}).value();
  EXPECT_EQ(grade_of(graded, "out").worst.rank, 5);
  expect_says(hints_of(graded), "1 wrong row; all are of rank 5, of head 5, of position 2");
  EXPECT_EQ(list_wrong_rows(made.plan(), graded).rank, std::vector<int64_t>{5});
}

TEST(FieldGrades, B05NamesADiagonalThatPaddingHasMoved) {
  const FieldCase field("b05");
  // 96 - 96 rows of prefix instead of 95 - 94.
  expect_cause(judge_wrong_mask(field,
                                [](const TokenPlace& q, const TokenPlace& k) {
                                  return q.sequence >= 0 && k.sequence == q.sequence &&
                                         k.position <= q.position;
                                }),
               "aligned_top_left");
  expect_cause(judge_wrong(field,
                           [](const auto& q, const auto&) {
                             WrongAttention wrong;
                             wrong.query_position = [&q](int64_t i) {
                               return static_cast<double>(q[static_cast<size_t>(i)].position);
                             };
                             return wrong;
                           }),
               "rope_from_start");
  // With a prefix of 20 the padding moves the diagonal to 120 - 96 = 24.
  expect_cause(judge_wrong_mask(field.with("batch.kv_lengths", "[114]"),
                                [](const TokenPlace& q, const TokenPlace& k) {
                                  return q.sequence >= 0 && k.sequence == q.sequence &&
                                         k.position <= q.position + 120 - 96;
                                }),
               "aligned_by_padding");
}

TEST(FieldGrades, B08NamesIgnoredDocumentsAndTheFirstOneIsRight) {
  const FieldCase field("b08");
  const JudgedCauses judged = judge_wrong_mask(field, [](const TokenPlace& q, const TokenPlace& k) {
    // All 256 tokens are one causal sequence.
    return std::pair(k.slot, k.position) <= std::pair(q.slot, q.position);
  });
  expect_cause(judged, "documents_ignored");
  const TensorGrade& out =
      *std::find_if(judged.grade.tensors.begin(), judged.grade.tensors.end(),
                    [](const TensorGrade& each) { return each.name == "out"; });
  for (const GroupGrade& sequence : out.groups_by(GroupKind::sequence))
    EXPECT_EQ(sequence.passed, sequence.index == 0) << "sequence " << sequence.index;
  const std::set<int64_t> first_tokens = {78, 102, 203, 218};
  EXPECT_TRUE(first_tokens.contains(out.worst.token)) << out.worst.token;
}

TEST(FieldGrades, B11ShowsTheRowThatWasTakenForATail) {
  const PlantedMistake lost{
      .name = "field", .cause = "", .plant = [](const Plan& plan, const RunInputs& inputs) {
        Answer answer = compute_wrongly(plan, inputs, {});
        const int64_t width = answer.out.size() / answer.out.shape[0];
        std::fill_n(answer.out.values.begin() + 5 * width, width, 0.0);
        return answer;
      }};
  JudgedCauses judged = judge_planted(lost, FieldCase("b11").text());
  expect_cause(judged, "unwritten_rows");
  const WorstPlace& worst = judged.grade.find("out")->worst;
  EXPECT_EQ(worst.rank, 1);
  EXPECT_EQ(worst.token, 5);
  EXPECT_EQ(worst.seen, 0.0);
}

TEST(FieldGrades, B19NamesRanksThatWereAlone) {
  const FieldCase field("b19");
  expect_cause(judge_wrong_mask(field,
                                [](const TokenPlace& q, const TokenPlace& k) {
                                  return q.rank == k.rank && k.position <= q.position;
                                }),
               "rank_alone");
  expect_cause(judge_wrong_mask(field,
                                [](const TokenPlace& q, const TokenPlace& k) {
                                  return q.rank == k.rank && k.local <= q.local;
                                }),
               "rank_alone");
}

TEST(FieldGrades, B37FailsRowsThatAttendToPaddingInFront) {
  const JudgedCauses judged =
      judge_wrong_mask(FieldCase("b37"), [](const TokenPlace& q, const TokenPlace& k) {
        return q.slot == k.slot && k.position <= q.position;
      });
  expect_cause(judged, "padding_visible");
}

TEST(FieldGrades, B37NamesLengthsThatAreCountedFromTheFrontOfTheSlots) {
  const JudgedCauses judged =
      judge_wrong_mask(FieldCase("b37"), [](const TokenPlace& q, const TokenPlace& k) {
        // Places in the slot: of 16, the first 11 are taken for the tokens of sequence 0.
        const int64_t front = q.slot == 0 ? 5 : 0, valid = q.slot == 0 ? 11 : 16;
        return q.slot == k.slot && k.position <= q.position && q.position + front < valid &&
               k.position + front < valid;
      });
  expect_cause(judged, "padding_side_ignored");
}

// ---- right answers in other forms --------------------------------------------------------------

TEST(FieldGrades, B35ReadsThePartsThatEveryRankHolds) {
  const ForeignCase made(FieldCase("b35").text());
  std::vector<NamedRecord> parts;
  for (int32_t rank = 0; rank < 4; ++rank) {
    RunRecord part = made.of_rank(rank);
    std::erase_if(part.tensors, [](const Tensor& tensor) { return tensor.shape.size() != 3; });
    for (Tensor& tensor : part.tensors)  // [batch, tokens / 4, heads, head_dim]
      tensor.shape = {16, 8, tensor.shape[1], tensor.shape[2]};
    parts.push_back({"rank" + std::to_string(rank) + ".safetensors", std::move(part)});
  }
  const Result<ForeignGrade> graded = made.grade_files(std::move(parts));
  ASSERT_TRUE(graded.ok()) << to_text(graded.error());
  EXPECT_TRUE(graded.value().grade.passed) << describe_first_failure(graded.value().grade);
  EXPECT_TRUE(grade_of(graded.value(), "dk").passed);
}

TEST(FieldGrades, B28OnlyTheGradientsOfKeysAreRoundedOnceMore) {
  const FieldCase field("b28");
  const CaseOutcome two = field.run(), one = field.with("parallel.cp_size", "1").run();
  const Answer &a = two.output.answer, &b = one.output.answer;
  EXPECT_EQ(a.out.values, b.out.values);
  EXPECT_EQ(a.lse.values, b.lse.values);
  EXPECT_EQ(a.dq.values, b.dq.values);
  for (const auto member : {&Answer::dk, &Answer::dv}) {
    const Tensor &x = a.*member, &y = b.*member;
    double squares = 0, lengths = 0;
    for (size_t i = 0; i < x.values.size(); ++i) {
      squares += std::pow(x.values[i] - y.values[i], 2);
      lengths += std::pow(y.values[i], 2);
    }
    // bf16 has 8 bits: a rounding is off by at most 2^-9 of its value.
    EXPECT_GT(squares, 0) << x.name;
    EXPECT_LT(std::sqrt(squares / lengths), std::ldexp(1.0, -8)) << x.name;
  }
}

/// Row `to` of the tensor becomes row `from` of the other one.
void copy_row(const Tensor& source, int64_t from, Tensor& target, int64_t to) {
  const int64_t width = source.size() / source.shape[0];
  std::copy_n(source.values.begin() + from * width, width, target.values.begin() + to * width);
}

/// Adds row `from` of the tensor to row `to` of the other one.
void add_row(const Tensor& source, int64_t from, Tensor& target, int64_t to) {
  const int64_t width = source.size() / source.shape[0];
  for (int64_t i = 0; i < width; ++i)
    target.values[to * width + i] += source.values[from * width + i];
}

Answer walk(const CheckedPlan& plan, const RunInputs& inputs) {
  return make_walker_toolbox().executors.front()->run(plan, inputs, {}).value().answer;
}

TEST(FieldGrades, B24APackedTreeIsTheSameAsItsRollouts) {
  const FieldCase field("b24");
  const CheckedPlan tree = field.plan();
  const RunInputs inputs = make_run_inputs(tree.plan(), false);
  const Answer packed = walk(tree, inputs);
  Answer sums = packed;
  for (Tensor* tensor : {&sums.dq, &sums.dk, &sums.dv})
    std::fill(tensor->values.begin(), tensor->values.end(), 0.0);
  std::set<int64_t> counted;  // tokens whose loss an earlier rollout has counted
  double most = 0;
  // The prompt [0, 10); its branch [10, 16) with the turns [16, 20) and [20, 25); its branch
  // [25, 33).
  for (const auto& ranges : std::vector<std::vector<std::pair<int64_t, int64_t>>>{
           {{0, 16}, {16, 20}}, {{0, 16}, {20, 25}}, {{0, 10}, {25, 33}}}) {
    const std::vector<int64_t> tokens = join_ranges(ranges);
    const CheckedPlan alone = field.with("attention.mask", "")
                                  .with("attention.attn_mask_type", "\"causal\"")
                                  .with("batch.positions_file", "")
                                  .with("batch.lengths", "[" + std::to_string(tokens.size()) + "]")
                                  .with("parallel.cp_size", "1")
                                  .plan();
    RunInputs rollout = make_run_inputs(alone.plan(), false);
    for (size_t row = 0; row < tokens.size(); ++row) {
      const auto to = static_cast<int64_t>(row);
      for (const auto member : {&RunInputs::q, &RunInputs::k, &RunInputs::v, &RunInputs::d_out})
        copy_row(inputs.*member, tokens[row], rollout.*member, to);
      if (counted.insert(tokens[row]).second) continue;
      const int64_t width = rollout.d_out.size() / rollout.d_out.shape[0];
      std::fill_n(rollout.d_out.values.begin() + to * width, width, 0.0);
    }
    const Answer answer = walk(alone, rollout);
    for (size_t row = 0; row < tokens.size(); ++row) {
      const auto from = static_cast<int64_t>(row);
      for (const auto member : {&Answer::out, &Answer::lse}) {
        Tensor expected = answer.*member, seen = answer.*member;
        copy_row(packed.*member, tokens[row], seen, from);
        most = std::max(most, max_difference(expected, seen));
      }
      for (const auto member : {&Answer::dq, &Answer::dk, &Answer::dv})
        add_row(answer.*member, from, sums.*member, tokens[row]);
    }
  }
  for (const auto member : {&Answer::dq, &Answer::dk, &Answer::dv})
    most = std::max(most, max_difference(packed.*member, sums.*member));
  EXPECT_LT(most, 1e-13);
  // Positions in the packed row, not in the tree, give another answer.
  const Answer flat = walk(field.with("batch.positions_file", "").plan(), inputs);
  EXPECT_GT(max_difference(packed.out, flat.out), 0.01);
}

}  // namespace
}  // namespace cpscope::tests
