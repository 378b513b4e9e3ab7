// Tensors that other software calls by other names, and parts that it says are parts.
#include "tests/program/foreign_case.h"
#include "tests/program/program_run.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

const ForeignCase& small_case() {
  static const ForeignCase kCase(
      small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "", "dtype = \"bf16\""));
  return kCase;
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in:\n" << text;
}

RunRecord queries_and_out() {
  RunRecord record = small_case().record();
  std::erase_if(record.tensors,
                [](const Tensor& tensor) { return tensor.name != "q" && tensor.name != "out"; });
  return record;
}

TEST(ForeignNames, GradesWhatTheCallerNames) {
  RunRecord record = small_case().record();
  tensor_of(record, "lse").name = "softmax_lse";
  tensor_of(record, "dq").name = "q_grad";
  const ForeignGrade graded =
      small_case().grade(record, {.aliases = {{"lse", "softmax_lse"}, {"dq", "q_grad"}}}).value();
  EXPECT_TRUE(graded.grade.passed) << describe_first_failure(graded.grade);
  EXPECT_EQ(graded.grade.tensors.size(), 6u);
}

TEST(ForeignNames, ReadsPartsByRankUnderTheNameThatItIsTold) {
  RunRecord record;
  for (int32_t rank = 0; rank < 4; ++rank) {
    const RunRecord part = small_case().of_rank(rank);
    record.tensors.push_back(*part.find("out"));
    record.tensors.back().name = "attn.rank" + std::to_string(rank);
  }
  // The record's own "out" is something else, and set aside.
  record.tensors.push_back(*small_case().record().find("lse"));
  record.tensors.back().name = "out";
  const ForeignChoices choices{.aliases = {{"out", "attn"}}};
  const ForeignRecord foreign =
      read_foreign({{"foreign.safetensors", record}}, small_case().plan(), choices).value();
  EXPECT_EQ(foreign.ignored, std::vector<std::string>{"out"});
  EXPECT_EQ(foreign.readings[0].find("attn: F32"), 0u) << foreign.readings[0];
  EXPECT_TRUE(small_case().grade(record, choices).value().grade.passed);
}

TEST(ForeignNames, RefusesNamesThatAreNotThere) {
  const RunRecord record = queries_and_out();
  const auto refuse = [&](std::vector<TensorAlias> aliases) {
    return to_text(small_case().grade(record, {.aliases = std::move(aliases)}).error());
  };
  EXPECT_EQ(refuse({{"lse", "softmax_lse"}}),
            "foreign.safetensors: --map lse=softmax_lse: the record has no tensor softmax_lse; it "
            "has out, q");
  expect_has(refuse({{"output", "out"}}),
             "--map output=out: no tensor of the contract is called output; write --map "
             "NAME=THEIRS, NAME one of q, k, v, d_out, out, lse");
  expect_has(refuse({{"out", "out"}, {"out", "q"}}), "a name is mapped twice");
  RunRecord renamed = record;
  tensor_of(renamed, "out").name = "attn_output";
  EXPECT_EQ(to_text(small_case().grade(renamed).error()),
            "the record holds no answer that could be graded; did you mean --map out=attn_output?");
}

TEST(ForeignNames, SaysWhichInputsItDidNotReadUnderTheirOwnNames) {
  RunRecord record = queries_and_out();
  tensor_of(record, "q").name = "query_layer";
  EXPECT_TRUE(small_case().grade(record).value().grade.passed);
  tensor_of(record, "out").values[3] += 1.0;
  expect_has(hints_of(small_case().grade(record).value()), "--map q=query_layer");
}

TEST(ForeignNames, TakesNoLibraryForTheNameOfAFormat) {
  RunRecord record = queries_and_out();
  record.metadata["format"] = "pt";
  EXPECT_TRUE(small_case().grade(record).value().grade.passed);
  record.metadata["format"] = "ptt";
  expect_has(to_text(small_case().grade(record).error()), "has an unknown value: ptt");
}

TEST(ForeignNames, TakesNoPartOfADTensorForTheWhole) {
  std::vector<NamedRecord> records;
  for (int32_t rank = 0; rank < 4; ++rank) {
    RunRecord part = small_case().of_rank(rank);
    part.plan_hash.clear();
    records.push_back({"rank" + std::to_string(rank) + ".pt", part, {}, {"out"}});
  }
  EXPECT_TRUE(small_case().grade_files(records).value().grade.passed);
  records.resize(1);
  EXPECT_EQ(to_text(small_case().grade_files(records).error()),
            "rank0.pt: tensor \"out\" is one rank's part of a DTensor; give the files of all "
            "ranks, or save full_tensor()");
}

}  // namespace
}  // namespace cpscope::tests
