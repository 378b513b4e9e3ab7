// What `grade` says of tensors that somebody else computed: right ones pass in every form that the
// field writes them in, wrong ones fail with the right words.
#include "sim/run/grade/case.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/program/foreign_case.h"
#include "tests/program/program_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

const ForeignCase& bf16_case() {
  static const ForeignCase kCase(
      small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "", "dtype = \"bf16\""));
  return kCase;
}

const ForeignCase& fp64_case() {
  static const ForeignCase kCase(small_scenario());
  return kCase;
}

/// Two sequences of one slot length, so that all formats exist.
const ForeignCase& bshd_case() {
  static const ForeignCase kCase(
      small_scenario("cp_size = 2", "qkv_format = \"bshd\"\nlengths = [16, 13]"));
  return kCase;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in:\n" << text;
}

/// The tensor must fail, and nothing else that the test has not touched.
ForeignGrade expect_failure(const ForeignCase& with, const RunRecord& record,
                            const std::string& tensor) {
  Result<ForeignGrade> graded = with.grade(record);
  EXPECT_TRUE(graded.ok()) << to_text(graded.error());
  EXPECT_FALSE(graded.value().grade.passed);
  for (const TensorGrade& grade : graded.value().grade.tensors)
    EXPECT_EQ(grade.passed, grade.name != tensor) << grade.name;
  return std::move(graded).value();
}

TEST(ForeignGrade, PassesWhatARunHasRecorded) {
  for (const ForeignCase* with : {&bf16_case(), &fp64_case(), &bshd_case()}) {
    const Result<ForeignGrade> graded = with->grade(with->record());
    ASSERT_TRUE(graded.ok()) << to_text(graded.error());
    EXPECT_TRUE(graded.value().grade.passed) << describe_first_failure(graded.value().grade);
    EXPECT_EQ(graded.value().grade.tensors.size(), 6u);
    EXPECT_TRUE(graded.value().missing.empty());
    EXPECT_TRUE(graded.value().hints.empty());
    EXPECT_FALSE(graded.value().uses_own_inputs);
  }
}

TEST(ForeignGrade, PassesRankOrderWhenItIsSaidSo) {
  const RunRecord record = bf16_case().in_rank_order();
  const Result<ForeignGrade> graded = bf16_case().grade(record, {.order = RowOrder::rank});
  ASSERT_TRUE(graded.ok()) << to_text(graded.error());
  EXPECT_TRUE(graded.value().grade.passed) << describe_first_failure(graded.value().grade);
  RunRecord said = record;
  said.metadata["order"] = "rank";
  EXPECT_TRUE(bf16_case().grade(said).value().grade.passed);
  said.metadata["order"] = "random";
  EXPECT_EQ(to_text(bf16_case().grade(said).error()),
            "foreign.safetensors: metadata \"order\" has an unknown value: random; packed or rank");
}

TEST(ForeignGrade, RefusesInputsThatStandWhereTheyDoNotBelong) {
  const Result<ForeignGrade> graded = bf16_case().grade(bf16_case().in_rank_order());
  ASSERT_FALSE(graded.ok());
  expect_contains(to_text(graded.error()),
                  "input q of the record holds the scenario's rows in other places");
  expect_contains(to_text(graded.error()), "--order rank");
  const Result<ForeignGrade> opposite =
      bf16_case().grade(bf16_case().record(), {.order = RowOrder::rank});
  ASSERT_FALSE(opposite.ok());
  expect_contains(to_text(opposite.error()), "--order packed");
}

TEST(ForeignGrade, FailsAnAnswerReadInTheWrongOrderAndNamesTheRightOne) {
  RunRecord record = bf16_case().in_rank_order();
  std::erase_if(record.tensors, [](const Tensor& tensor) { return tensor.name != "out"; });
  const ForeignGrade graded = expect_failure(bf16_case(), record, "out");
  expect_contains(
      hints_of(graded),
      "rows_exchanged: all rows agree when they are read in rank order: --order rank (out;");
  RunRecord packed = bf16_case().record();
  std::erase_if(packed.tensors, [](const Tensor& tensor) { return tensor.name != "dk"; });
  const Result<ForeignGrade> other = bf16_case().grade(packed, {.order = RowOrder::rank});
  EXPECT_FALSE(other.value().grade.passed);
  expect_contains(hints_of(other.value()),
                  "other_layout: the rows are in the order of layout contiguous, as in a packed "
                  "tensor (--order packed) (dk;");
}

TEST(ForeignGrade, TakesPartsByRankOfOneFile) {
  RunRecord record;
  for (int32_t rank = 0; rank < 4; ++rank) {
    const RunRecord part = bf16_case().of_rank(rank);
    for (Tensor tensor : part.tensors) {
      if (tensor.shape.size() < 2) continue;
      tensor.name += ".rank" + std::to_string(rank);
      record.tensors.push_back(std::move(tensor));
    }
  }
  const Result<ForeignGrade> graded = bf16_case().grade(record);
  ASSERT_TRUE(graded.ok()) << to_text(graded.error());
  EXPECT_TRUE(graded.value().grade.passed) << describe_first_failure(graded.value().grade);
  EXPECT_EQ(graded.value().missing, std::vector<std::string>{"max_logit"});
  // Two ranks' outputs under each other's names.
  std::swap(tensor_of(record, "out.rank1").values, tensor_of(record, "out.rank2").values);
  const ForeignGrade swapped = expect_failure(bf16_case(), record, "out");
  expect_contains(hints_of(swapped),
                  "ranks_exchanged: rank 1 holds rank 2's rows, 2 holds rank 1's rows (out;");
  const WorstPlace& worst = grade_of(swapped, "out").worst;
  EXPECT_TRUE(worst.rank == 1 || worst.rank == 2) << worst.rank;

  std::erase_if(record.tensors, [](const Tensor& tensor) { return tensor.name == "lse.rank3"; });
  EXPECT_EQ(to_text(bf16_case().grade(record).error()),
            "the part of rank 3 is missing: \"lse\" of 4 ranks; write lse.rank3, or its file");
}

TEST(ForeignGrade, TakesOneFileARankAndHoldsThemToTheirOrder) {
  std::vector<NamedRecord> files;
  for (int32_t rank = 0; rank < 4; ++rank)
    files.push_back({"rank" + std::to_string(rank), bf16_case().of_rank(rank)});
  const Result<ForeignGrade> graded = bf16_case().grade_files(files);
  ASSERT_TRUE(graded.ok()) << to_text(graded.error());
  EXPECT_TRUE(graded.value().grade.passed) << describe_first_failure(graded.value().grade);
  EXPECT_EQ(graded.value().grade.tensors.size(), 6u) << "max_logit is the same on every rank";

  std::vector<NamedRecord> shuffled{files[0], files[2], files[1], files[3]};
  EXPECT_EQ(to_text(bf16_case().grade_files(shuffled).error()),
            "rank1: the files are not listed by rank: 1 after 2; list them in rank order (a shell "
            "sorts 10 before 2), or write metadata \"rank\"");
  const char* ranks[] = {"0", "2", "1", "3"};
  for (size_t i = 0; i < shuffled.size(); ++i) shuffled[i].record.metadata["rank"] = ranks[i];
  EXPECT_TRUE(bf16_case().grade_files(shuffled).value().grade.passed);
  shuffled[1].record.metadata["rank"] = "3";
  EXPECT_FALSE(bf16_case().grade_files(shuffled).ok());
  files.pop_back();
  EXPECT_EQ(to_text(bf16_case().grade_files(files).error()),
            "one record, or one for each rank: 3 files, 4 ranks");
}

TEST(ForeignGrade, RefusesAMaximumThatTheRanksDisagreeAbout) {
  std::vector<NamedRecord> files;
  for (int32_t rank = 0; rank < 4; ++rank)
    files.push_back({"rank" + std::to_string(rank), bf16_case().of_rank(rank)});
  tensor_of(files[2].record, "max_logit").values[1] -= 1;
  const Result<ForeignGrade> graded = bf16_case().grade_files(files);
  ASSERT_FALSE(graded.ok());
  expect_contains(to_text(graded.error()), "the ranks give different values of \"max_logit\"");
}

TEST(ForeignGrade, NamesHeadsThatChangedPlaces) {
  RunRecord record = bf16_case().record();
  Tensor& out = tensor_of(record, "out");
  for (int64_t token = 0; token < out.shape[0]; ++token) {
    const auto row = out.values.begin() + token * 4 * 8;
    std::swap_ranges(row + 8, row + 16, row + 24);
  }
  const ForeignGrade graded = expect_failure(bf16_case(), record, "out");
  expect_contains(hints_of(graded),
                  "heads_exchanged: head 1 holds head 3's, 3 holds head 1's (out;");
}

TEST(ForeignGrade, NamesALogarithmToBaseTwo) {
  RunRecord record = bf16_case().record();
  for (double& value : tensor_of(record, "lse").values) value *= 1.4426950408889634;
  expect_contains(hints_of(expect_failure(bf16_case(), record, "lse")),
                  "lse_base_2: every value is 1.4427 (log2 e) times what it should be");
}

TEST(ForeignGrade, NamesAFactorThatWasLeftOut) {
  for (const ForeignCase* with : {&bf16_case(), &fp64_case()}) {
    RunRecord record = with->record();
    for (double& value : tensor_of(record, "dq").values) value *= 4;
    expect_contains(hints_of(expect_failure(*with, record, "dq")),
                    "factor: every value is 4 times what it should be (dq;");
  }
}

TEST(ForeignGrade, NamesAnOutputOfZeros) {
  RunRecord record = bf16_case().record();
  Tensor& out = tensor_of(record, "out");
  std::fill(out.values.begin(), out.values.end(), 0.0);
  expect_contains(hints_of(expect_failure(bf16_case(), record, "out")),
                  "zeros: every value is 0: the output was never written (out;");
}

TEST(ForeignGrade, FailsUndefinedPaddingUnlessItIsLeftOut) {
  // Slots of 40 and 24, of which 37 and 21 are valid.
  for (const double garbage : {std::numeric_limits<double>::quiet_NaN(), 3.0}) {
    for (const char* name : {"out", "lse", "dq", "dk", "dv"}) {
      RunRecord record = bf16_case().record();
      Tensor& tensor = tensor_of(record, name);
      const int64_t width = tensor.size() / tensor.shape[0];
      std::fill_n(tensor.values.begin() + 37 * width, 3 * width, garbage);
      const ForeignGrade graded = expect_failure(bf16_case(), record, name);
      expect_contains(hints_of(graded), "the valid rows agree; 3 of 6 padding rows do not hold");
      EXPECT_TRUE(bf16_case().grade(record, {}, {.ignores_padding = true}).value().grade.passed);
    }
  }
}

TEST(ForeignGrade, FailsANaNOfAValidRowThoughPaddingIsLeftOut) {
  RunRecord record = bf16_case().record();
  tensor_of(record, "out").values[36 * 32] = std::numeric_limits<double>::quiet_NaN();
  const ForeignGrade graded = bf16_case().grade(record, {}, {.ignores_padding = true}).value();
  EXPECT_FALSE(graded.grade.passed);
  EXPECT_EQ(grade_of(graded, "out").nan, 1);
  EXPECT_EQ(grade_of(graded, "out").worst.token, 36);
  EXPECT_TRUE(graded.grade.causes.empty()) << hints_of(graded);
  expect_contains(hints_of(graded),
                  "1 wrong row; all are of rank 0, of head 0, of sequence 0, of position 36");
}

TEST(ForeignGrade, NamesInfinitiesOfTheOtherSign) {
  // Sequence 1 has no keys, so its queries see none.
  const ForeignCase empty_rows(small_scenario(
      "cp_size = 2", "lengths = [16, 8]\nkv_lengths = [16, 0]", "", "dtype = \"bf16\""));
  RunRecord record = empty_rows.record();
  Tensor& lse = tensor_of(record, "lse");
  for (int64_t i = 16 * 4; i < 24 * 4; ++i) lse.values[i] = std::numeric_limits<double>::infinity();
  expect_contains(hints_of(expect_failure(empty_rows, record, "lse")),
                  "lse: 32 rows that see no key hold +inf where -inf is meant");
}

TEST(ForeignGrade, SaysWhatIsMissingAndGradesTheRest) {
  const std::map<std::vector<std::string>, std::vector<std::string>> cases{
      {{"out"}, {"lse", "max_logit", "dq", "dk", "dv"}},
      {{"out", "lse"}, {"max_logit", "dq", "dk", "dv"}},
      {{"dq", "dk", "dv"}, {"out", "lse", "max_logit"}}};
  for (const auto& [given, missing] : cases) {
    RunRecord record = bf16_case().record();
    std::erase_if(record.tensors, [&, names = given](const Tensor& tensor) {
      return std::find(names.begin(), names.end(), tensor.name) == names.end();
    });
    const Result<ForeignGrade> graded = bf16_case().grade(record);
    ASSERT_TRUE(graded.ok()) << to_text(graded.error());
    EXPECT_TRUE(graded.value().grade.passed);
    EXPECT_EQ(graded.value().grade.tensors.size(), given.size());
    EXPECT_EQ(graded.value().missing, missing);
  }
  RunRecord inputs_only = bf16_case().record();
  std::erase_if(inputs_only.tensors, [](const Tensor& tensor) { return tensor.name != "q"; });
  expect_contains(to_text(bf16_case().grade(inputs_only).error()),
                  "the record holds no answer that could be graded");
}

TEST(ForeignGrade, SetsAsideWhatTheScenarioDoesNotAskFor) {
  const ForeignCase forward_only(
      small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "", "backward = false"));
  RunRecord record = forward_only.record();
  record.tensors.push_back(tensor_of(record, "q"));
  record.tensors.back().name = "dq";
  record.tensors.push_back({"logits", {2}, Dtype::fp32, {1, 2}});
  record.integers.push_back({"cu_seqlens", {2}, {0, 37}});
  const ForeignGrade graded = forward_only.grade(record).value();
  EXPECT_TRUE(graded.grade.passed);
  EXPECT_EQ(graded.unasked, std::vector<std::string>{"dq"});
  const ForeignRecord foreign = read_foreign({{"a", record}}, forward_only.plan(), {}).value();
  EXPECT_EQ(foreign.ignored, (std::vector<std::string>{"cu_seqlens", "logits"}));
  record.skipped.push_back({"out", "F8_E4M3"});
  EXPECT_EQ(to_text(forward_only.grade(record).error()),
            "foreign.safetensors: tensor \"out\" has a type that is not graded: F8_E4M3; store it "
            "as F64, F32, F16 or BF16");
}

TEST(ForeignGrade, ReadsLseOfFlashAttention) {
  RunRecord record = bf16_case().record();
  Tensor& lse = tensor_of(record, "lse");
  Tensor turned = lse;
  turned.shape = {lse.shape[1], lse.shape[0]};
  for (int64_t token = 0; token < lse.shape[0]; ++token) {
    for (int64_t head = 0; head < lse.shape[1]; ++head)
      turned.values[head * lse.shape[0] + token] = lse.values[token * lse.shape[1] + head];
  }
  lse = turned;
  EXPECT_TRUE(bf16_case().grade(record).value().grade.passed);
  expect_contains(
      to_text(bf16_case().grade(record, {.lse_layout = LseLayout::tokens_heads}).error()),
      "tensor \"lse\" has a shape that fits nothing: [4, 64]");
}

TEST(ForeignGrade, ReadsTensorsBySequenceInRankOrderToo) {
  // [sequence, position, head, lane] of both ranks, joined along positions as torch.cat(dim=1)
  // does.
  for (const bool is_joined : {false, true}) {
    RunRecord record;
    const RunRecord ranks[] = {bshd_case().of_rank(0), bshd_case().of_rank(1)};
    for (const char* name : {"out", "dq"}) {
      Tensor joined{
          name,
          is_joined ? std::vector<int64_t>{2, 16, 4, 8} : std::vector<int64_t>{4, 8, 4, 8},
          Dtype::fp64,
          {}};
      for (int64_t outer = 0; outer < 2; ++outer) {
        for (int64_t inner = 0; inner < 2; ++inner) {
          const int64_t rank = is_joined ? inner : outer, sequence = is_joined ? outer : inner;
          const Tensor& part = *ranks[rank].find(name);
          joined.values.insert(joined.values.end(), part.values.begin() + sequence * 8 * 32,
                               part.values.begin() + (sequence + 1) * 8 * 32);
        }
      }
      record.tensors.push_back(std::move(joined));
    }
    const Result<ForeignGrade> graded = bshd_case().grade(record, {.order = RowOrder::rank});
    ASSERT_TRUE(graded.ok()) << to_text(graded.error());
    EXPECT_TRUE(graded.value().grade.passed) << describe_first_failure(graded.value().grade);
  }
}

TEST(ForeignGrade, TakesTheRecordsOwnInputsForTheTruth) {
  // The same batch, other numbers: what another framework was run on.
  const ForeignCase other(
      small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "", "dtype = \"bf16\"\nseed = 77"));
  const Result<ForeignGrade> graded = bf16_case().grade(other.record());
  ASSERT_TRUE(graded.ok()) << to_text(graded.error());
  EXPECT_TRUE(graded.value().grade.passed) << describe_first_failure(graded.value().grade);
  EXPECT_TRUE(graded.value().uses_own_inputs);
  ASSERT_EQ(graded.value().inputs.size(), 4u);
  EXPECT_GT(graded.value().inputs[0].different, 1800);
  EXPECT_EQ(graded.value().inputs[0].values, (37 + 21) * 4 * 8);
  // Its answers to the scenario's own question are wrong.
  RunRecord answers = other.record();
  std::erase_if(answers.tensors, [](const Tensor& tensor) {
    return tensor.name == "q" || tensor.name == "k" || tensor.name == "v" || tensor.name == "d_out";
  });
  EXPECT_FALSE(bf16_case().grade(answers).value().grade.passed);
}

TEST(ForeignGrade, JudgesOneChangedKeyByWhatItChanges) {
  RunRecord record = bf16_case().record();
  Tensor& k = tensor_of(record, "k");
  for (int64_t lane = 0; lane < 16; ++lane) k.values[lane] = 2 - k.values[lane];
  const Result<ForeignGrade> graded = bf16_case().grade(record);
  ASSERT_FALSE(graded.ok()) << "2 - k is not always a bf16 number";
  expect_contains(to_text(graded.error()), "holds a value that bf16 cannot");
  for (int64_t lane = 0; lane < 16; ++lane) k.values[lane] = 1.5;
  const ForeignGrade own = bf16_case().grade(record).value();
  EXPECT_TRUE(own.uses_own_inputs);
  EXPECT_FALSE(grade_of(own, "out").passed) << "the answers are still the other key's";
  k.values[3] = std::numeric_limits<double>::infinity();
  expect_contains(to_text(bf16_case().grade(record).error()),
                  "input k of the record is not finite at token 0, head 0: inf");
}

TEST(ForeignGrade, HoldsPaddingOfInputsToNothing) {
  RunRecord record = bf16_case().record();
  Tensor& k = tensor_of(record, "k");
  std::fill(k.values.begin() + 37 * 16, k.values.begin() + 40 * 16, 1e30);
  const ForeignGrade graded = bf16_case().grade(record).value();
  EXPECT_TRUE(graded.grade.passed);
  EXPECT_FALSE(graded.uses_own_inputs);
  // Nor do budgets grow with it.
  std::fill(tensor_of(record, "out").values.begin(), tensor_of(record, "out").values.end(), 0.0);
  EXPECT_EQ(bf16_case().grade(record).value().grade.judgement(), Judgement::fail);
}

TEST(ForeignGrade, GivesTheSameBudgetsWhateverPaddingHolds) {
  for (const int64_t sample : {0, 16}) {
    const ForeignGradeOptions options{.ignores_padding = true, .sample_rows = sample};
    const ForeignGrade plain = bf16_case().grade(bf16_case().record(), {}, options).value();
    for (const char* name : {"q", "k", "v", "d_out", "lse"}) {
      for (const double value : {0.0, 1e30, std::numeric_limits<double>::quiet_NaN()}) {
        RunRecord record = bf16_case().record();
        Tensor& tensor = tensor_of(record, name);
        const int64_t width = tensor.size() / tensor.shape[0];
        std::fill_n(tensor.values.begin() + 37 * width, 3 * width, value);
        const ForeignGrade graded = bf16_case().grade(record, {}, options).value();
        for (const char* answer : {"out", "lse", "dq", "dk", "dv"})
          EXPECT_EQ(grade_of(graded, answer).budget, grade_of(plain, answer).budget)
              << answer << " with " << value << " in the padding of " << name;
      }
    }
  }
}

TEST(ForeignGrade, JudgesASampleOfRowsAndSaysWhatItLeavesOut) {
  const ForeignGrade graded =
      bf16_case().grade(bf16_case().record(), {}, {.sample_rows = 16}).value();
  EXPECT_TRUE(graded.grade.passed);
  EXPECT_FALSE(grade_of(graded, "max_logit").judged);
  EXPECT_FALSE(grade_of(graded, "max_logit").passed) << "what nobody judged has not passed";
  EXPECT_LT(grade_of(graded, "dk").judged_rows, grade_of(graded, "dk").rows);
}

/// A record of these tensors alone.
RunRecord keep_tensors(RunRecord record, const std::vector<std::string>& names) {
  std::erase_if(record.tensors, [&](const Tensor& tensor) {
    return std::find(names.begin(), names.end(), tensor.name) == names.end();
  });
  return record;
}

TEST(ForeignGrade, SaysThatItIsBlindWhereOnlyOneNumberAHeadIsThere) {
  for (const int64_t sample : {0, 16}) {
    const ForeignGrade graded =
        bf16_case()
            .grade(keep_tensors(bf16_case().record(), {"max_logit"}), {}, {.sample_rows = sample})
            .value();
    EXPECT_EQ(graded.grade.judgement(), Judgement::blind);
    EXPECT_FALSE(graded.grade.passed);
    expect_contains(describe_blindness(graded.grade), "no per-token tensor is present");
  }
}

TEST(ForeignGrade, JudgesNoGradientsOfKeysInASampleWithoutOutAndLse) {
  const RunRecord record = keep_tensors(bf16_case().record(), {"out", "dk"});
  EXPECT_TRUE(bf16_case().grade(record).value().grade.passed) << "whole, it needs no help";
  const ForeignGrade graded = bf16_case().grade(record, {}, {.sample_rows = 16}).value();
  EXPECT_TRUE(grade_of(graded, "out").passed);
  EXPECT_FALSE(grade_of(graded, "dk").judged);
  EXPECT_EQ(graded.grade.judgement(), Judgement::blind);
}

TEST(ForeignGrade, IsBlindToInputsThatAskNothing) {
  const auto spoil = [](const char* name, double value) {
    RunRecord record = bf16_case().record();
    Tensor& tensor = tensor_of(record, name);
    std::fill(tensor.values.begin(), tensor.values.end(), value);
    return bf16_case().grade(record).value().grade;
  };
  const auto says = [](const Grade& grade, const char* words) {
    return std::any_of(grade.blind.begin(), grade.blind.end(), [&](const std::string& why) {
      return why.find(words) != std::string::npos;
    });
  };
  EXPECT_TRUE(says(spoil("v", 0.0), "v is zero"));
  EXPECT_TRUE(says(spoil("v", 1.0), "v is the same in all tokens"));
  EXPECT_TRUE(says(spoil("q", 0.0), "q is zero"));
  EXPECT_TRUE(says(spoil("k", 0.5), "k is the same in all tokens"));
  EXPECT_TRUE(says(spoil("d_out", 0.0), "d_out is zero"));
  EXPECT_TRUE(spoil("d_out", 1.0).blind.empty()) << "the gradient of a sum";
  EXPECT_TRUE(spoil("q", 0.5).blind.empty()) << "one query for all: keys still differ";
}

TEST(ForeignGrade, PassesNoRecordOfZerosAlone) {
  RunRecord record = bf16_case().record();
  for (Tensor& tensor : record.tensors)
    if (tensor.name != "lse" && tensor.name != "max_logit")
      std::fill(tensor.values.begin(), tensor.values.end(), 0.0);
  const ForeignGrade graded =
      bf16_case()
          .grade(keep_tensors(record, {"q", "k", "v", "d_out", "out", "dq", "dk", "dv"}))
          .value();
  EXPECT_EQ(graded.grade.judgement(), Judgement::blind);
}

TEST(ForeignGrade, DoesNotOverlookAnAnswerOfAnotherName) {
  RunRecord record = bf16_case().record();
  tensor_of(record, "lse").name = "softmax_lse";
  tensor_of(record, "dq").name = "q_grad";
  const ForeignGrade graded = bf16_case().grade(record).value();
  EXPECT_EQ(graded.grade.judgement(), Judgement::blind);
  const std::string said = describe_blindness(graded.grade);
  expect_contains(said, "lacks lse and holds softmax_lse");
  expect_contains(said,
                  "lacks dq and holds q_grad, which is read only when it is called dq, or with "
                  "--map dq=q_grad");
  tensor_of(record, "softmax_lse").name = "cu_seqlens_as_floats";
  tensor_of(record, "q_grad").name = "position_of_rows";
  EXPECT_TRUE(bf16_case().grade(record).value().grade.passed) << "nothing like an answer";
}

TEST(ForeignGrade, SaysThatMergesInTheDtypeExplainAFailure) {
  const char* batch = "lengths = [512]";
  const std::string mask = "attn_mask_type = \"no_mask\"";
  const ForeignCase wide(
      small_scenario("cp_size = 64", batch, mask, "dtype = \"bf16\"\nbackward = false"));
  const ForeignCase narrow(small_scenario(
      "cp_size = 64", batch, mask, "dtype = \"bf16\"\nbackward = false\naccumulate = \"dtype\""));
  const ForeignGrade graded = wide.grade(narrow.record()).value();
  EXPECT_EQ(graded.grade.judgement(), Judgement::fail);
  expect_contains(hints_of(graded), "merge_in_dtype");
  expect_contains(hints_of(graded), "accumulate = \"dtype\"");
  EXPECT_TRUE(narrow.grade(narrow.record()).value().grade.passed);
  // Nothing of the kind where that explains nothing.
  RunRecord record = wide.record();
  for (double& value : tensor_of(record, "out").values) value *= 1.1;
  EXPECT_EQ(hints_of(wide.grade(record).value()).find("merge_in_dtype"), std::string::npos);
}

TEST(ForeignGrade, WidensABudgetThatItIsTold) {
  RunRecord record = bf16_case().record();
  for (double& value : tensor_of(record, "lse").values) value *= 1.0005;
  EXPECT_EQ(bf16_case().grade(record).value().grade.judgement(), Judgement::fail);
  const ForeignGrade graded = bf16_case().grade(record, {}, {.budgets = {{"lse", 1e-3}}}).value();
  EXPECT_TRUE(graded.grade.passed);
  EXPECT_TRUE(grade_of(graded, "lse").is_widened);
  EXPECT_DOUBLE_EQ(grade_of(graded, "lse").budget, 1e-3);
  EXPECT_FALSE(grade_of(graded, "out").is_widened);
  // A budget that is narrower than the earned one changes nothing.
  EXPECT_FALSE(grade_of(bf16_case().grade(record, {}, {.budgets = {{"lse", 1e-12}}}).value(), "lse")
                   .is_widened);
}

/// One tensor of tokens [tokens, heads, head_dim] as another framework might write it.
Tensor reshaped(const Tensor& tensor, uint64_t form) {
  Tensor other = tensor;
  const int64_t tokens = tensor.shape[0], heads = tensor.shape[1];
  if (tensor.name == "lse") {
    if (form % 2 == 0 || tokens == heads) return other;
    other.shape = {heads, tokens};
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t head = 0; head < heads; ++head)
        other.values[head * tokens + token] = tensor.values[token * heads + head];
    }
  } else if (form % 3 == 1) {
    other.shape = {tokens, heads * tensor.shape[2]};
  } else if (form % 3 == 2) {
    other.shape = {1, tokens, heads, tensor.shape[2]};
  }
  return other;
}

TEST(ForeignGrade, PassesRightAnswersInWhateverFormTheyCome) {
  int graded_count = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Scenario scenario = random_scenario(seed);
    if (scenario.parallel.layout == LayoutKind::indices || !plan_scenario(scenario)) continue;
    const ForeignCase with(print_scenario(scenario));
    if (with.plan().layout.slots.tokens == scenario.attention.heads) continue;  // lse is ambiguous
    const bool is_by_rank = seed % 3 == 0;
    RunRecord record;
    if (is_by_rank) {
      for (int32_t rank = 0; rank < scenario.parallel.cp_size; ++rank) {
        for (Tensor tensor : with.of_rank(rank).tensors) {
          // A rank may own no token at all, or as many as there are heads.
          if (tensor.shape.size() > 1 && tensor.shape.size() < 4 &&
              tensor.shape[0] > scenario.attention.heads)
            tensor = reshaped(tensor, seed);
          if (tensor.shape.size() > 1 && tensor.name == "lse" && tensor.shape[0] == tensor.shape[1])
            continue;
          tensor.name += ".rank" + std::to_string(rank);
          record.tensors.push_back(std::move(tensor));
        }
      }
    } else {
      record = seed % 3 == 1 ? with.record() : with.in_rank_order();
      for (Tensor& tensor : record.tensors) {
        if (tensor.shape.size() > 1 && tensor.shape.size() < 4) tensor = reshaped(tensor, seed);
      }
    }
    const Result<ForeignGrade> graded = with.grade(
        record, {.order = seed % 3 == 1 ? RowOrder::packed : RowOrder::rank, .lse_layout = {}});
    ASSERT_TRUE(graded.ok()) << "seed " << seed << "\n" << to_text(graded.error());
    EXPECT_TRUE(graded.value().grade.passed)
        << "seed " << seed << "\n"
        << print_scenario(scenario) << describe_first_failure(graded.value().grade);
    EXPECT_FALSE(graded.value().uses_own_inputs) << "seed " << seed;
    ++graded_count;
  }
  EXPECT_GT(graded_count, 30);
}

TEST(ForeignGrade, KnowsRowsOfValidTokensAlone) {
  RunRecord record = bf16_case().record();
  std::erase_if(record.tensors, [](const Tensor& tensor) { return tensor.name != "out"; });
  Tensor& out = record.tensors[0];
  out.values.erase(out.values.begin() + 61 * 32, out.values.end());
  out.values.erase(out.values.begin() + 37 * 32, out.values.begin() + 40 * 32);
  out.shape[0] = 58;
  EXPECT_EQ(
      to_text(bf16_case().grade(record).error()),
      "foreign.safetensors: tensor \"out\" has a shape that fits nothing: [58, 4, 8]; these are "
      "as many rows as there are valid tokens: put each sequence at the front of its slot, 64 "
      "rows in all");
}

}  // namespace
}  // namespace cpscope::tests
