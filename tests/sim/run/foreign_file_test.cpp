// Files of numpy and torch that `grade` and `import` read; what torch itself writes is read in
// tests/python.
#include "sim/run/record/foreign_file.h"

#include "tests/sim/run/scratch_folder.h"
#include "tests/support/archive_bytes.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

using testing_support::bytes_of;
using testing_support::npy_of;
using testing_support::pickle_of;
using testing_support::pickled_dict;
using testing_support::pickled_list;
using testing_support::pickled_name;
using testing_support::pickled_number;
using testing_support::pickled_tensor;
using testing_support::pickled_text;
using testing_support::pickled_tuple;
using testing_support::PickledView;
using testing_support::ScratchFolder;
using testing_support::torch_archive_of;
using testing_support::write_bytes;
using testing_support::zip_of;

using Values = std::vector<double>;

Result<std::vector<NamedRecord>> read_as(const std::string& name, const std::string& bytes) {
  const ScratchFolder folder;
  write_bytes(folder.file(name), bytes);
  return read_foreign_file(folder.file(name));
}

/// The record of a file that must be read; an empty one when it is not.
NamedRecord only_record(const std::string& bytes) {
  Result<std::vector<NamedRecord>> records = read_as("a.bin", bytes);
  EXPECT_TRUE(records.ok()) << to_text(records.error());
  if (!records || records.value().size() != 1) return {};
  return std::move(records.value().front());
}

/// The error text without the path; fails the test when the bytes are accepted.
std::string file_refusal(const std::string& bytes) {
  const ScratchFolder folder;
  const std::string path = folder.file("a.bin");
  write_bytes(path, bytes);
  const Result<std::vector<NamedRecord>> records = read_foreign_file(path);
  if (records.ok()) {
    ADD_FAILURE() << "accepted";
    return "";
  }
  const std::string text = to_text(records.error());
  EXPECT_EQ(text.rfind(path + ": ", 0), 0u) << text;
  return text.substr(std::min(text.size(), path.size() + 2));
}

void expect_begins(const std::string& text, const std::string& begin) {
  EXPECT_EQ(text.rfind(begin, 0), 0u) << text;
}

/// An archive with one dict of one tensor "out".
std::string archive_of_tensor(const PickledView& view, const std::string& storage) {
  return torch_archive_of(pickle_of(pickled_dict({{"out", pickled_tensor(view)}})), {storage});
}

// ---- numpy -------------------------------------------------------------------------------------

TEST(ForeignFile, ReadsArraysOfEveryTypeThatIsGraded) {
  const NamedRecord read = only_record(
      zip_of({{"a.npy", npy_of("'<f8'", "(2,)", bytes_of<double>({1.5, -2}))},
              {"b.npy", npy_of("'<f4'", "(1, 2)", bytes_of<float>({1.5, -2}))},
              {"c.npy", npy_of("'<f2'", "(2,)", bytes_of<uint16_t>({0x3e00, 0xc000}))},
              {"d.npy", npy_of("'<V2'", "(2,)", bytes_of<uint16_t>({0x3fc0, 0xc000}))},
              {"e.npy", npy_of("'|V2'", "(2,)", bytes_of<uint16_t>({0x3fc0, 0xc000}))}}));
  ASSERT_EQ(read.record.tensors.size(), 5u);
  for (const Tensor& tensor : read.record.tensors)
    EXPECT_EQ(tensor.values, (Values{1.5, -2})) << tensor.name;
  EXPECT_EQ(read.record.tensors[1].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(read.record.find("c")->dtype, Dtype::fp16);
  EXPECT_EQ(read.record.find("d")->dtype, Dtype::bf16);
}

TEST(ForeignFile, ReadsArraysInFortranOrderByTheirIndices) {
  const NamedRecord read = only_record(zip_of(
      {{"a.npy", npy_of("'<f4'", "(2, 3)", bytes_of<float>({0, 10, 1, 11, 2, 12}), "True")}}));
  ASSERT_EQ(read.record.tensors.size(), 1u);
  EXPECT_EQ(read.record.tensors[0].values, (Values{0, 1, 2, 10, 11, 12}));
}

TEST(ForeignFile, ReadsALongerHeaderAndNoElements) {
  std::string wide = npy_of("'<f4'", "(0, 5)", "");
  wide[6] = 2;  // version 2 has a length of four bytes
  wide.insert(10, std::string(2, '\0'));
  const NamedRecord read = only_record(wide);
  ASSERT_EQ(read.record.tensors.size(), 1u);
  EXPECT_EQ(read.record.tensors[0].name, "");
  EXPECT_EQ(read.record.tensors[0].shape, (std::vector<int64_t>{0, 5}));
}

TEST(ForeignFile, SkipsArraysOfOtherTypesAndTakesTheRank) {
  const NamedRecord read =
      only_record(zip_of({{"out.npy", npy_of("'>f4'", "(1,)", std::string(4, '\0'))},
                          {"code.npy", npy_of("'|O'", "(1,)", "cos\nsystem\n")},
                          {"pair.npy", npy_of("[('a', '<f4')]", "(1,)", std::string(4, '\0'))},
                          {"rank.npy", npy_of("'<i8'", "()", bytes_of<int64_t>({3}))}}));
  ASSERT_EQ(read.record.skipped.size(), 3u);
  EXPECT_EQ(read.record.skipped[0].type_name, ">f4");
  EXPECT_EQ(read.record.skipped[1].type_name, "|O");
  EXPECT_EQ(read.record.metadata.at("rank"), "3");
}

TEST(ForeignFile, RefusesBrokenArrays) {
  expect_begins(file_refusal(npy_of("'<f4'", "(3,)", std::string(8, '\0'))),
                "shape and data disagree: [3] of <f4 needs 12 bytes, 8 there");
  expect_begins(file_refusal(npy_of("'<f4'", "(4294967296, 4294967296, 4)", "")),
                "shape and data disagree: [4294967296, 4294967296, 4] of <f4 needs more than 2^63");
  expect_begins(file_refusal(npy_of("'<f4'", "(-1,)", "")), "the header has a broken shape");
  expect_begins(file_refusal(npy_of("'<f4'", "1", "")), "the header has no shape");
  expect_begins(file_refusal(npy_of("4", "(1,)", "")), "the header names no type");
  expect_begins(file_refusal(npy_of("'<f4'", "(1,)", "", "Maybe")), "the header names no order");
  const std::string whole = npy_of("'<f4'", "(2,)", std::string(8, '\0'));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(read_as("a.npy", whole.substr(0, size)).ok()) << size;
}

TEST(ForeignFile, RefusesBrokenAndCompressedArchives) {
  const std::string array = npy_of("'<f4'", "(2,)", std::string(8, '\0'));
  expect_begins(file_refusal(zip_of({{"out.npy", array}}, 8)),
                "\"out.npy\" is compressed, by zip method 8; write it uncompressed: numpy.savez");
  expect_begins(file_refusal(zip_of({{"out.npy", array}, {"out.npy", array}})),
                "the zip archive is broken: \"out.npy\" appears twice");
  expect_begins(file_refusal(zip_of({{"word/document.xml", "<p>"}})),
                "the zip archive holds something else than arrays: word/document.xml");
  const std::string whole = zip_of({{"out.npy", array}});
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(read_as("a.npz", whole.substr(0, size)).ok()) << size;
  // An entry that claims to be larger than the archive.
  std::string large = whole;
  const size_t directory = large.find("PK\x01\x02");
  large.replace(directory + 20, 8, std::string(8, '\x7f'));
  expect_begins(file_refusal(large), "the zip archive is broken: \"out.npy\" lies outside");
  // Two entries with the same content.
  std::string twice = zip_of({{"a.npy", array}, {"b.npy", array}});
  const size_t second = twice.find("PK\x01\x02", twice.find("PK\x01\x02") + 1);
  twice.replace(second + 42, 4, std::string(4, '\0'));
  const Result<std::vector<NamedRecord>> read = read_as("a.npz", twice);
  EXPECT_TRUE(read.ok()) << "the sizes of both still fit into the file";
}

// ---- torch -------------------------------------------------------------------------------------

TEST(ForeignFile, ReadsTensorsOfTorchByTheirStrides) {
  const std::string storage = bytes_of<float>({9, 9, 0, 1, 2, 3, 4, 5});
  const auto read = [&](const PickledView& view) {
    const NamedRecord named = only_record(archive_of_tensor(view, storage));
    return named.record.tensors.empty() ? Values{} : named.record.tensors[0].values;
  };
  EXPECT_EQ(read({.offset = 2, .shape = {2, 3}, .strides = {3, 1}}), (Values{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(read({.offset = 2, .shape = {3, 2}, .strides = {1, 3}}), (Values{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(read({.offset = 3, .shape = {2, 2}, .strides = {0, 4}}), (Values{1, 5, 1, 5}));
  EXPECT_EQ(read({.offset = 4, .shape = {}, .strides = {}}), (Values{2}));
  EXPECT_EQ(read({.offset = 99, .shape = {0, 2}, .strides = {2, 1}}), Values{});
}

TEST(ForeignFile, NamesNestedValuesAndParts) {
  const auto tensor = [](const char* key) {
    return pickled_tensor({.key = key, .shape = {1}, .strides = {1}});
  };
  const std::string pickle = pickle_of(
      pickled_dict({{"layer", pickled_dict({{"out", tensor("0")}, {"n", pickled_number(-7)}})},
                    {"lse", pickled_list({tensor("1"), tensor("0")})},
                    {"ids", pickled_list({pickled_number(4), pickled_number(5)})},
                    {"order", pickled_text("rank")},
                    {"rank", pickled_number(2)},
                    {"loss", std::string("G") + std::string(8, '\0')},
                    {"dq", "N"}}));
  const NamedRecord read =
      only_record(torch_archive_of(pickle, {bytes_of<float>({1}), bytes_of<float>({2})}));
  ASSERT_EQ(read.record.tensors.size(), 3u);
  EXPECT_EQ(read.record.tensors[0].name, "layer.out");
  EXPECT_EQ(read.record.tensors[1].name, "lse.rank0");
  EXPECT_EQ(read.record.tensors[1].values, (Values{2}));
  EXPECT_EQ(read.record.tensors[2].name, "lse.rank1");
  ASSERT_EQ(read.record.integers.size(), 3u);
  EXPECT_EQ(read.record.integers[0].name, "layer.n");
  EXPECT_EQ(read.record.integers[0].values, (std::vector<int64_t>{-7}));
  EXPECT_EQ(read.record.integers[1].values, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(read.record.metadata.at("order"), "rank");
  EXPECT_EQ(read.record.metadata.at("rank"), "2");
  EXPECT_EQ(read.absent, (std::vector<std::string>{"dq"}));
}

TEST(ForeignFile, ReadsAListOfDictsAsRanks) {
  const auto rank = [](int64_t offset) {
    return pickled_dict(
        {{"out", pickled_tensor({.offset = offset, .shape = {1}, .strides = {1}})}});
  };
  const Result<std::vector<NamedRecord>> read = read_as(
      "a.pt",
      torch_archive_of(pickle_of(pickled_list({rank(0), rank(1)})), {bytes_of<float>({7, 8})}));
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  ASSERT_EQ(read.value().size(), 2u);
  EXPECT_EQ(read.value()[1].record.find("out")->values, (Values{8}));
  EXPECT_TRUE(read.value()[1].path.ends_with("a.pt[1]"));
}

TEST(ForeignFile, NamesTheCodeThatItDoesNotRun) {
  const auto refuse = [](const std::string& value) {
    return file_refusal(torch_archive_of(pickle_of(value), {}));
  };
  const std::string call = pickled_tuple({pickled_text("touch /tmp/owned")}) + 'R';
  EXPECT_EQ(refuse(pickled_name("os", "system") + call),
            "the file holds code: os.system; torch.save only tensors, numbers and words, in dicts "
            "and lists");
  expect_begins(refuse(pickled_name("builtins", "eval") + call),
                "the file holds code: builtins.eval");
  expect_begins(refuse(pickled_text("os") + pickled_text("system") + '\x93' + call),
                "the file holds code: os.system");
  expect_begins(refuse(pickled_name("torch", "load") + call), "the file holds code: torch.load");
  expect_begins(refuse(pickled_name("torch._utils", "_rebuild_sparse_tensor") + call),
                "the file holds code: torch._utils._rebuild_sparse_tensor");
  // The class is known, but a call of it is not.
  expect_begins(refuse(pickled_name("torch.nn.parameter", "Parameter") + call),
                "the file holds code: torch.nn.parameter.Parameter");
  expect_begins(refuse("(S'touch'\nios\nsystem\n"), "the file holds code: opcode 0x53 at byte 3");
  expect_begins(
      refuse(pickled_name("megatron.core.packed_seq_params", "PackedSeqParams") + ")\x81"),
      "the file holds an object, which only its own code can read: "
      "megatron.core.packed_seq_params.PackedSeqParams; save its values: "
      "torch.save(vars(packed_seq_params), path)");
  // Nothing of torch.distributed is called either; it is an object without numbers.
  EXPECT_TRUE(read_as("a.pt", torch_archive_of(
                                  pickle_of(pickled_name("torch.distributed", "abort") + call), {}))
                  .ok());
}

TEST(ForeignFile, RefusesTensorsThatTheFileDoesNotHold) {
  const std::string storage = bytes_of<float>({1, 2, 3, 4});
  const auto refuse = [&](const PickledView& view) {
    return file_refusal(archive_of_tensor(view, storage));
  };
  expect_begins(refuse({.shape = {5}, .strides = {1}}),
                "\"out\" is larger than its storage, data/0 of 16 bytes");
  expect_begins(refuse({.offset = 1, .shape = {2, 2}, .strides = {2, 1}}),
                "\"out\" is larger than its storage");
  expect_begins(refuse({.offset = -1, .shape = {1}, .strides = {1}}),
                "the pickle is broken at byte");
  expect_begins(refuse({.shape = {2, 2}, .strides = {-1, 1}}), "the pickle is broken at byte");
  expect_begins(refuse({.shape = {2, 2}, .strides = {1}}), "the pickle is broken at byte");
  expect_begins(refuse({.shape = {1 << 30, 1 << 30, 1 << 30}, .strides = {0, 0, 0}}),
                "\"out\" is larger than its storage");
  expect_begins(refuse({.shape = {1 << 30, 1 << 20}, .strides = {0, 0}}),
                "the tensors up to \"out\" have more elements than the file has bytes");
  expect_begins(refuse({.key = "7", .shape = {1}, .strides = {1}}),
                "the storage of \"out\" is missing: data/7");
  expect_begins(file_refusal(torch_archive_of(pickle_of("}"), {}, "big")),
                "the numbers are not little-endian");
}

TEST(ForeignFile, EndsOnValuesThatContainEachOther) {
  // A list that holds itself, and one that holds another twice, thirty times over.
  const std::string endless = std::string("]q\x01h\x01") + 'a';
  EXPECT_FALSE(read_as("a.pt", torch_archive_of(pickle_of(endless), {})).ok());
  std::string doubled = "Nq";
  doubled += '\0';
  for (char level = 0; level < 12; ++level) {
    doubled += "](h";
    doubled += level;
    doubled += 'h';
    doubled += level;
    doubled += "eq";
    doubled += static_cast<char>(level + 1);
  }
  // What lies below on the stack is collected into one tuple.
  expect_begins(file_refusal(torch_archive_of(pickle_of('(' + doubled + 't'), {})),
                "the file holds the same values many times");
}

TEST(ForeignFile, RefusesTruncatedArchivesOfTorchAndOtherPickles) {
  const std::string pickle =
      pickle_of(pickled_dict({{"out", pickled_tensor({.shape = {2}, .strides = {1}})}}));
  for (size_t size = 0; size < pickle.size(); ++size) {
    const Result<std::vector<NamedRecord>> read =
        read_as("a.pt", torch_archive_of(pickle.substr(0, size), {bytes_of<float>({1, 2})}));
    EXPECT_FALSE(read.ok()) << size;
  }
  EXPECT_FALSE(read_as("a.pt", torch_archive_of("", {})).ok());
  expect_begins(file_refusal(pickle), "the file is a pickle, which may hold any code");
  expect_begins(file_refusal(std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a", 11)),
                "the file has the form of torch before 1.6, which is not read");
  expect_begins(file_refusal("\x89HDF\r\n\x1a\n"), "HDF5 is not read");
  expect_begins(file_refusal(""), "too short for a .safetensors file: 0 bytes");
}

// ---- several files -----------------------------------------------------------------------------

TEST(ForeignFile, NamesArraysByTheirFilesAndPutsThemTogether) {
  const ScratchFolder folder;
  write_bytes(folder.file("out.npy"), npy_of("'<f4'", "(1,)", bytes_of<float>({1})));
  write_bytes(folder.file("lse.pt"),
              torch_archive_of(pickle_of(pickled_tensor({.shape = {1}, .strides = {1}})),
                               {bytes_of<float>({2})}));
  const Result<std::vector<NamedRecord>> read =
      read_foreign_files({folder.file("out.npy"), folder.file("lse.pt")});
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  ASSERT_EQ(read.value().size(), 1u);
  EXPECT_EQ(read.value()[0].record.find("out")->values, (Values{1}));
  EXPECT_EQ(read.value()[0].record.find("lse")->values, (Values{2}));
}

TEST(ForeignFile, SortsArchivesByTheirRank) {
  const ScratchFolder folder;
  std::vector<std::string> paths;
  for (int64_t file = 0; file < 2; ++file) {
    paths.push_back(folder.file(file == 0 ? "a.npz" : "b.npz"));
    const float value = static_cast<float>(file);
    write_bytes(paths.back(),
                zip_of({{"out.npy", npy_of("'<f4'", "(1,)", bytes_of<float>({value}))},
                        {"rank.npy", npy_of("'<i8'", "()", bytes_of<int64_t>({1 - file}))}}));
  }
  const Result<std::vector<NamedRecord>> read = read_foreign_files(paths);
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  ASSERT_EQ(read.value().size(), 2u);
  EXPECT_EQ(read.value()[0].record.find("out")->values, (Values{1}));
}

}  // namespace
}  // namespace cpscope
