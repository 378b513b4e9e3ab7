// Records of ranks that own heads of all queries, as decode context parallelism does: a tensor of
// queries is there once a rank, with the heads of the rank alone.
#include "tests/program/foreign_case.h"
#include "tests/program/program_run.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Six heads on four ranks: [0, 1), [1, 3), [3, 4), [4, 6). Keys are split in stripes.
std::string owned_scenario(const std::string& parallel, const std::string& attention = "",
                           const std::string& batch = "") {
  return "schema = 1\n[attention]\nheads = 6\nkv_heads = 2\nhead_dim = 8\n"
         "attn_mask_type = \"causal_bottom_right\"\n" +
         attention + "[batch]\n" +
         (batch.empty() ? "lengths = [1, 4, 2]\nkv_lengths = [37, 21, 64]\n" : batch) +
         "[parallel]\ncp_size = 4\ncp_comm_type = \"gather_q\"\nlayout = \"striped\"\n" + parallel +
         "[numerics]\nbackward = false\n";
}

const ForeignCase& owned_case() {
  static const ForeignCase kCase(owned_scenario("q_owner = \"heads\"\nstripe = 4\n"));
  return kCase;
}

std::vector<NamedRecord> files_of(const ForeignCase& with) {
  std::vector<NamedRecord> files;
  for (int32_t rank = 0; rank < with.plan().layout.cp_size; ++rank)
    files.push_back({.path = "rank" + std::to_string(rank) + ".pt", .record = with.of_rank(rank)});
  return files;
}

/// All parts in one file: out.rank0, out.rank1, ...
RunRecord parts_of(const ForeignCase& with) {
  RunRecord all;
  for (int32_t rank = 0; rank < with.plan().layout.cp_size; ++rank) {
    RunRecord part = with.of_rank(rank);
    for (Tensor& tensor : part.tensors) {
      tensor.name += ".rank" + std::to_string(rank);
      all.tensors.push_back(std::move(tensor));
    }
  }
  return all;
}

std::string grading_error(std::vector<NamedRecord> files, const ForeignCase& with = owned_case()) {
  const Result<ForeignGrade> graded = with.grade_files(std::move(files));
  return graded.ok() ? "none" : to_text(graded.error());
}

TEST(GradeOfOwnedHeads, PassesOneTensorARankWithItsHeadsAlone) {
  ASSERT_EQ(owned_case().of_rank(1).find("out")->shape, (std::vector<int64_t>{7, 2, 8}));
  for (const char* parallel : {"q_owner = \"heads\"\n", "q_owner = \"heads_replicated\"\n",
                               "q_owner = \"heads\"\ncombine = \"reduce_scatter\"\n",
                               "q_owner = \"heads\"\ncombine = \"tree\"\n"}) {
    const ForeignCase with(owned_scenario(parallel));
    for (const bool is_one_file : {false, true}) {
      const Result<ForeignGrade> graded =
          is_one_file ? with.grade(parts_of(with)) : with.grade_files(files_of(with));
      ASSERT_TRUE(graded.ok()) << parallel << to_text(graded.error());
      EXPECT_TRUE(graded.value().grade.passed)
          << parallel << describe_first_failure(graded.value().grade);
      EXPECT_EQ(graded.value().inputs.size(), 3u) << "q, k and v of the record are compared";
      EXPECT_FALSE(graded.value().uses_own_inputs);
    }
  }
}

TEST(GradeOfOwnedHeads, PassesSequencesOfABatchAndHeadsInOneDimension) {
  const ForeignCase with(
      owned_scenario("q_owner = \"heads\"\n", "",
                     "qkv_format = \"bshd\"\nbatch_size = 3\nseqlen = 2\nkv_seqlen = 16\n"));
  std::vector<NamedRecord> files = files_of(with);
  for (NamedRecord& file : files) {
    Tensor& out = tensor_of(file.record, "out");
    out.shape = {3, 2, out.shape[1] * out.shape[2]};
  }
  const Result<ForeignGrade> graded = with.grade_files(std::move(files));
  ASSERT_TRUE(graded.ok()) << to_text(graded.error());
  EXPECT_TRUE(graded.value().grade.passed) << describe_first_failure(graded.value().grade);
}

TEST(GradeOfOwnedHeads, TakesOneNumberAHeadOfTheRanksOwnHeadsOrOfAll) {
  const ForeignCase with(owned_scenario("q_owner = \"heads\"\n", "softmax_type = \"learnable\"\n"));
  std::vector<NamedRecord> files = files_of(with);
  EXPECT_TRUE(with.grade_files(files).value().grade.passed) << "all heads on every rank";
  for (size_t rank = 0; rank < files.size(); ++rank) {
    const HeadRange own = with.plan().layout.q_heads[RankId{static_cast<int32_t>(rank)}];
    for (const char* name : {"max_logit", "sink"}) {
      Tensor& tensor = tensor_of(files[rank].record, name);
      tensor.shape = {own.size()};
      tensor.values = {tensor.values.begin() + own.begin, tensor.values.begin() + own.end};
    }
  }
  const ForeignGrade graded = with.grade_files(files).value();
  EXPECT_TRUE(graded.grade.passed) << describe_first_failure(graded.grade);
  EXPECT_EQ(grade_of(graded, "max_logit").rows, 6);
  tensor_of(files[3].record, "max_logit").shape = {2, 1, 1};
  EXPECT_EQ(grading_error(files, with),
            "rank3.pt: tensor \"max_logit.rank3\" has a shape that fits nothing: [2, 1, 1]; one "
            "value for each of the rank's heads [4, 6): [2], or the same on every rank, one for "
            "each query head: [6]");
}

TEST(GradeOfOwnedHeads, NamesTheHeadsOfARankThatAreWrong) {
  std::vector<NamedRecord> files = files_of(owned_case());
  for (double& value : tensor_of(files[3].record, "out").values) value *= 1.5;
  const ForeignGrade graded = owned_case().grade_files(files).value();
  EXPECT_EQ(graded.grade.judgement(), Judgement::fail);
  EXPECT_TRUE(grade_of(graded, "lse").passed);
  const TensorGrade& out = grade_of(graded, "out");
  for (const GroupGrade& head : out.groups[static_cast<int>(GroupKind::head)])
    EXPECT_EQ(head.passed, head.index < 4) << head.index;

  std::vector<NamedRecord> swapped = files_of(owned_case());
  std::swap(tensor_of(swapped[1].record, "out").values, tensor_of(swapped[3].record, "out").values);
  const ForeignGrade exchanged = owned_case().grade_files(swapped).value();
  ASSERT_EQ(exchanged.grade.causes.size(), 1u) << describe_first_failure(exchanged.grade);
  EXPECT_EQ(exchanged.grade.causes.front().name, "heads_exchanged");
}

TEST(GradeOfOwnedHeads, NamesTensorAndRankOfAShapeThatIsWrong) {
  const auto error_with = [](const char* name, size_t rank, std::vector<int64_t> shape) {
    std::vector<NamedRecord> files = files_of(owned_case());
    Tensor& tensor = tensor_of(files[rank].record, name);
    tensor.shape = std::move(shape);
    tensor.values.assign(static_cast<size_t>(tensor.size()), 0.0);
    return grading_error(std::move(files));
  };
  EXPECT_EQ(error_with("out", 1, {7, 1, 8}),
            "rank1.pt: tensor \"out.rank1\" has a shape that fits nothing: [7, 1, 8]; the "
            "scenario's batch gives [7, 2, 8]; rank 1 owns heads [1, 3) of all queries (q_owner = "
            "\"heads\")");
  EXPECT_EQ(error_with("lse", 2, {7, 6}),
            "rank2.pt: tensor \"lse.rank2\" has a shape that fits nothing: [7, 6]; the scenario's "
            "batch gives [7, 1]; rank 2 owns heads [3, 4) of all queries (q_owner = \"heads\")");
  EXPECT_EQ(error_with("q", 0, {2, 6, 8}),
            "rank0.pt: tensor \"q.rank0\" has a shape that fits nothing: [2, 6, 8]; the scenario's "
            "batch gives [7, 1, 8]; rank 0 owns heads [0, 1) of all queries (q_owner = \"heads\")");
  // Keys are split by rows, and have all KV heads.
  EXPECT_EQ(error_with("k", 3, {122, 2, 8}),
            "rank3.pt: tensor \"k.rank3\" has a shape that fits nothing: [122, 2, 8]; the "
            "scenario's batch gives [32, 2, 8]");
  std::vector<NamedRecord> three = files_of(owned_case());
  std::erase_if(three[2].record.tensors, [](const Tensor& tensor) { return tensor.name == "out"; });
  EXPECT_EQ(grading_error(three),
            "the part of rank 2 is missing: \"out\" of 4 ranks; write out.rank2, or its file");
}

TEST(GradeOfOwnedHeads, RejectsReplicatedQueriesThatDifferOrLackHeads) {
  const ForeignCase with(owned_scenario("q_owner = \"heads_replicated\"\n"));
  std::vector<NamedRecord> files = files_of(with);
  tensor_of(files[2].record, "q").values[6 * 8 + 8] += 1;
  const std::string text = grading_error(files, with);
  EXPECT_EQ(text.find("rank2.pt: the ranks give different values of \"q\", which all of them have "
                      "with all heads: token 1, head 1, rank 0 "),
            0u)
      << text;
  files = files_of(with);
  tensor_of(files[0].record, "q").shape = {7, 1, 8};
  tensor_of(files[0].record, "q").values.resize(56);
  EXPECT_EQ(grading_error(files, with),
            "rank0.pt: tensor \"q.rank0\" has a shape that fits nothing: [7, 1, 8]; the scenario's "
            "batch gives [7, 6, 8]; with q_owner = \"heads_replicated\" every rank has all heads "
            "of q");
}

}  // namespace
}  // namespace cpscope::tests
