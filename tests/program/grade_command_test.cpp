// `cpscope grade` as its users meet it: files, options, exit codes, words.
#include "sim/run/record/run_record.h"
#include "tests/program/program_run.h"
#include "tests/support/archive_bytes.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

struct Recorded {
  std::string scenario, record;
};

/// The small scenario and the record of its run, made once.
const Recorded& recorded() {
  static const Recorded kRecorded = [] {
    Recorded made{write_file("grade.toml", small_scenario()),
                  (work_folder() / "grade.safetensors").string()};
    EXPECT_EQ(run_cpscope("run " + made.scenario + " --record " + made.record).exit_code, 0);
    return made;
  }();
  return kRecorded;
}

/// Any .safetensors file of F32 tensors, as another program would write it.
std::string write_tensors(const std::string& name, const json& metadata,
                          const std::vector<Tensor>& tensors) {
  json header{{"__metadata__", metadata}};
  std::string data;
  for (const Tensor& tensor : tensors) {
    const size_t begin = data.size();
    for (const double value : tensor.values) {
      const auto narrow = static_cast<float>(value);
      data.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
    }
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  return write_file(
      name, std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
}

ProgramRun grade(const std::string& arguments) {
  return run_cpscope("grade " + recorded().scenario + " " + arguments);
}

TEST(GradeCommand, PassesWhatRunHasRecordedAndSaysWhatItRead) {
  const ProgramRun run = grade(recorded().record);
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  for (const char* words :
       {"PASS of foreign tensors", "rows in packed order: cpscope wrote the record",
        "read out       F64 [64, 4, 8] as [tokens, heads, head_dim], in packed order",
        "inputs: q is the scenario's, k is the scenario's"})
    EXPECT_NE(run.out.find(words), std::string::npos) << words << "\nis not in\n" << run.out;
  const json document = json::parse(grade(recorded().record + " --json").out);
  EXPECT_EQ(document["schema"], 1);
  EXPECT_EQ(document["passed"], true);
  EXPECT_EQ(document["order"], "packed");
  EXPECT_EQ(document["truth"], "scenario");
  EXPECT_EQ(document["graded"], (json{"out", "lse", "max_logit", "dq", "dk", "dv"}));
  EXPECT_EQ(document["missing"], json::array());
  ASSERT_EQ(document["tensors"].size(), 6u);
  EXPECT_EQ(document["tensors"][0]["worst"].size(), 5u);
}

TEST(GradeCommand, ExitsWithOneForAWrongAnswer) {
  RunRecord record = read_record(recorded().record).value();
  for (Tensor& tensor : record.tensors) {
    if (tensor.name == "out") tensor.values[5 * 32 + 9] += 0.5;
  }
  const std::string wrong = (work_folder() / "wrong.safetensors").string();
  ASSERT_TRUE(write_record(record, wrong).ok());
  const ProgramRun run = grade(wrong + " --json");
  EXPECT_EQ(run.exit_code, 1);
  const json document = json::parse(run.out);
  EXPECT_EQ(document["passed"], false);
  // Token 5 of a slot of 40 on 4 ranks: chunk 1 of 8, rank 1.
  const json& worst = document["tensors"][0]["worst"];
  EXPECT_EQ(worst["rank"], 1);
  EXPECT_EQ(worst["token"], 5);
  EXPECT_EQ(worst["head"], 1);
  EXPECT_NEAR(worst["seen"].get<double>() - worst["expected"].get<double>(), 0.5, 1e-9);
}

TEST(GradeCommand, SaysThatPackedOrderWasNobodysWord) {
  const RunRecord record = read_record(recorded().record).value();
  const std::string single =
      write_tensors("single.safetensors", json::object(), {*record.find("out")});
  const ProgramRun run = grade(single);
  EXPECT_EQ(run.exit_code, 1) << "fp32 numbers are too coarse for fp64 budgets";
  EXPECT_NE(run.out.find("rows in packed order: packed is the default order"), std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("not in the record, not graded: lse, max_logit, dq, dk, dv"),
            std::string::npos)
      << run.out;
  const std::string said =
      write_tensors("said.safetensors", {{"order", "rank"}}, {*record.find("out")});
  EXPECT_NE(grade(said).out.find("rows in rank order: the record's metadata"), std::string::npos);
  EXPECT_NE(
      grade(said + " --order packed")
          .out.find("rows in packed order: the command line (the record's metadata says rank)"),
      std::string::npos);
}

TEST(GradeCommand, RefusesBrokenMissingAndForeignFilesWithTwo) {
  std::ifstream stream(recorded().record, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const std::string cut = write_file("cut.safetensors", bytes.substr(0, bytes.size() - 100));
  ProgramRun run = grade(cut);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err.find(cut + ": data outside of the file"), 0u) << run.err;
  run = grade("nowhere.safetensors");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err, "nowhere.safetensors: no such file\n");
  run = run_cpscope("grade nowhere.toml " + recorded().record);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(grade("").exit_code, 2);
  EXPECT_EQ(grade(recorded().record + " --order backwards").exit_code, 2);
  const std::string nothing =
      write_tensors("nothing.safetensors", json::object(), {{"x", {2}, Dtype::fp32, {1, 2}}});
  run = grade(nothing);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err.find(nothing + ": the record holds no answer that could be graded"), 0u)
      << run.err;
  EXPECT_TRUE(run.out.empty());
}

/// The bytes of a tensor's values, and its shape as a Python tuple.
std::string float64_bytes(const Tensor& tensor) { return testing_support::bytes_of(tensor.values); }

std::string shape_text(const Tensor& tensor) {
  std::string text = "(";
  for (const int64_t extent : tensor.shape) text += std::to_string(extent) + ", ";
  return text + ")";
}

TEST(GradeCommand, ReadsArchivesOfNumpyAndTorchUnderTheirOwnNames) {
  const RunRecord record = read_record(recorded().record).value();
  const Tensor &out = *record.find("out"), &lse = *record.find("lse");
  const auto array = [](const Tensor& tensor) {
    return testing_support::npy_of("'<f8'", shape_text(tensor), float64_bytes(tensor));
  };
  write_file("theirs.npz",
             testing_support::zip_of({{"attn_output.npy", array(out)}, {"lse.npy", array(lse)}}));
  ProgramRun run = grade("theirs.npz");
  EXPECT_EQ(run.exit_code, 1) << run.out << run.err;
  EXPECT_NE(run.out.find("BLIND of foreign tensors"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("--map out=attn_output"), std::string::npos) << run.out;
  run = grade("theirs.npz --map out=attn_output");
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("read out       attn_output: F64 [64, 4, 8]"), std::string::npos);
  // The same as torch.save has it: heads and tokens exchanged by strides.
  const std::string view = testing_support::pickled_tensor(
      {.storage_class = "DoubleStorage", .shape = {64, 4, 8}, .strides = {8, 512, 1}});
  std::string by_head;
  for (int64_t head = 0; head < 4; ++head) {
    for (int64_t token = 0; token < 64; ++token)
      by_head += float64_bytes(out).substr(static_cast<size_t>(token * 4 + head) * 64, 64);
  }
  write_file("theirs.pt", testing_support::torch_archive_of(
                              testing_support::pickle_of(testing_support::pickled_dict(
                                  {{"layer", testing_support::pickled_dict({{"out", view}})}})),
                              {by_head}));
  run = grade("theirs.pt --map out=layer.out");
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
}

TEST(GradeCommand, RefusesNamesAndCodeWithTwo) {
  write_file("code.pt",
             testing_support::torch_archive_of(
                 testing_support::pickle_of(
                     testing_support::pickled_name("os", "system") +
                     testing_support::pickled_tuple({testing_support::pickled_text("true")}) + 'R'),
                 {}));
  ProgramRun run = grade("code.pt");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err,
            "code.pt: the file holds code: os.system; torch.save only tensors, numbers and words, "
            "in dicts and lists\n");
  run = grade(recorded().record + " --map out=attn_output");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(
      run.err.find("--map out=attn_output: the record has no tensor attn_output; it has d_out,"),
      std::string::npos)
      << run.err;
  for (const char* pair : {"output=out", "out", "out=", "=out"})
    EXPECT_EQ(grade(recorded().record + " --map " + pair).exit_code, 2) << pair;
}

TEST(GradeCommand, ReadsRankOrderByAnOrderFile) {
  // The ranks own every fourth token, which no word of the scenario says.
  const RunRecord record = read_record(recorded().record).value();
  const Tensor& packed = *record.find("out");
  RunRecord by_rank;
  by_rank.tensors.push_back(packed);
  json order{{"cp_size", 4}, {"ranks", json::array()}};
  int64_t row = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    order["ranks"].push_back(json::array());
    for (int64_t token = rank; token < 64; token += 4) {
      order["ranks"].back().push_back(token);
      std::copy_n(packed.values.begin() + token * 32, 32,
                  by_rank.tensors[0].values.begin() + row++ * 32);
    }
  }
  const std::string path = (work_folder() / "striped.safetensors").string();
  ASSERT_TRUE(write_record(by_rank, path).ok());
  write_file("order.json", order.dump());
  EXPECT_EQ(grade(path + " --order rank").exit_code, 1);
  const ProgramRun run = grade(path + " --order rank --order-file order.json");
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  write_file("order.json", R"({"cp_size": 4, "ranks": [[0], [1], [2], [3]]})");
  const ProgramRun few = grade(path + " --order rank --order-file order.json");
  EXPECT_EQ(few.exit_code, 2);
  EXPECT_EQ(few.err.find("order.json:1:1: token 4 (sequence 0, position 4) is lost; "), 0u)
      << few.err;
  EXPECT_NE(few.err.find(": 4 ids for 64 slots"), std::string::npos) << few.err;
}

}  // namespace
}  // namespace cpscope::tests
