#include "sim/run/record/integer_file.h"

#include "tests/sim/run/scratch_folder.h"
#include "tests/support/archive_bytes.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using testing_support::bytes_of;
using testing_support::npy_of;
using testing_support::pickle_of;
using testing_support::pickled_dict;
using testing_support::pickled_list;
using testing_support::pickled_number;
using testing_support::pickled_tensor;
using testing_support::pickled_text;
using testing_support::ScratchFolder;
using testing_support::torch_archive_of;
using testing_support::write_bytes;

using Lists = std::vector<std::vector<int64_t>>;

std::string refusal_of(const Result<std::vector<NamedLists>>& read) {
  EXPECT_FALSE(read.ok());
  return read.ok() ? "" : to_text(read.error());
}

/// Reads these bytes as a file; `where` gets its path.
Result<std::vector<NamedLists>> read_bytes_as(const std::string& name, const std::string& bytes,
                                              std::string* where = nullptr) {
  const ScratchFolder folder;
  write_bytes(folder.file(name), bytes);
  if (where != nullptr) *where = folder.file(name);
  return read_integer_file(folder.file(name));
}

/// What is wrong with an .npy file, without its path.
std::string npy_refusal(const std::string& bytes) {
  std::string path;
  const std::string text = refusal_of(read_bytes_as("a.npy", bytes, &path));
  EXPECT_EQ(text.find(path + ": "), 0u) << text;
  return text.substr(std::min(text.size(), path.size() + 2));
}

TEST(IntegerFile, ReadsNamedListsOfJson) {
  const auto lists = parse_integer_json(
      R"({"cp_size": 2, "cu_seqlens": [0, 7, 10], "indices": [[0, 1], [], [-2]]})", "a.json");
  ASSERT_TRUE(lists.ok()) << to_text(lists.error());
  ASSERT_EQ(lists.value().size(), 3u);
  EXPECT_EQ(lists.value()[0].lists, (Lists{{2}}));
  EXPECT_EQ(lists.value()[1].name, "cu_seqlens");
  EXPECT_EQ(lists.value()[1].lists, (Lists{{0, 7, 10}}));
  EXPECT_EQ(lists.value()[2].lists, (Lists{{0, 1}, {}, {-2}}));
  EXPECT_EQ(parse_integer_json("[3, 1]", "a.json").value()[0].lists, (Lists{{3, 1}}));
  EXPECT_EQ(parse_integer_json("[[3], [1]]", "a.json").value()[0].lists, (Lists{{3}, {1}}));
}

TEST(IntegerFile, RefusesWhatIsNoListOfWholeNumbers) {
  const auto refuse = [](const char* text) {
    return refusal_of(parse_integer_json(text, "a.json"));
  };
  EXPECT_EQ(refuse("[1, 2.5]").find("a.json:1:1: expected whole numbers: 2.5"), 0u);
  EXPECT_EQ(refuse("[1,\n 2").find("a.json:2:"), 0u) << refuse("[1,\n 2");
  EXPECT_EQ(refuse("[[1], 2]").find("a.json:1:1: a list mixes numbers and lists"), 0u);
  EXPECT_EQ(refuse("[1, [2]]").find("a.json:1:1: a list mixes numbers and lists"), 0u);
  EXPECT_EQ(refuse("[[[[1]]]]").find("a.json:1:1: lists are nested too deeply"), 0u);
  EXPECT_EQ(refuse("[[[1], [2]]]").find("a.json:1:1: lists are nested too deeply"), 0u);
  EXPECT_EQ(refuse("[[1, [2]]]").find("a.json:1:1: lists are nested too deeply"), 0u);
  EXPECT_EQ(refuse("[[[1], 2]]").find("a.json:1:1: a list mixes numbers and lists"), 0u);
  EXPECT_EQ(refuse(R"({"a": {"b": 1}})").find("a.json:1:1: values must not be objects"), 0u);
  EXPECT_EQ(refuse(R"({"a": [1], "a": [2]})").find("a.json:1:1: a key is given twice: \"a\""), 0u);
  EXPECT_EQ(refuse("7").find("a.json:1:1: the file must be a list"), 0u) << refuse("7");
  EXPECT_EQ(refuse("[18446744073709551615]").find("a.json:1:1: a number is too large"), 0u);
  EXPECT_FALSE(parse_integer_json(std::string(100000, '['), "a.json").ok());
}

// The same lists come from any framework, and from a mask of padding.
TEST(IntegerFile, HintsAtNoFrameworksNames) {
  EXPECT_EQ(parse_integer_json("[1.5]", "a.json").error().complaints.front().hint,
            R"(write lists of whole numbers, {"name": [0, 8, 12]}, or one a rank, )"
            R"({"name": [[0, 1], [2, 3]]})");
}

TEST(IntegerFile, ReadsListsOfABatchOfOne) {
  const auto lists =
      parse_integer_json(R"({"cu_seqlens": [[0, 7]], "indices": [[[0, 1]], [[2]]]})", "a.json");
  ASSERT_TRUE(lists.ok()) << to_text(lists.error());
  EXPECT_EQ(lists.value()[0].lists, (Lists{{0, 7}}));
  EXPECT_EQ(lists.value()[1].lists, (Lists{{0, 1}, {2}}));
  const auto array =
      read_bytes_as("indices.npy", npy_of("'<i8'", "(2, 1, 2)", bytes_of<int64_t>({0, 3, 1, 2})));
  ASSERT_TRUE(array.ok()) << to_text(array.error());
  EXPECT_EQ(array.value()[0].lists, (Lists{{0, 3}, {1, 2}}));
}

TEST(IntegerFile, ReadsNumpysArraysOfEveryWidth) {
  const Lists expected{{1, -2, 3}, {4, 5, 6}};
  const auto check = [&](const std::string& file) {
    const auto lists = read_bytes_as("a.npy", file);
    ASSERT_TRUE(lists.ok()) << to_text(lists.error());
    EXPECT_EQ(lists.value()[0].name, "");
    EXPECT_EQ(lists.value()[0].lists, expected);
  };
  check(npy_of("'<i8'", "(2, 3)", bytes_of<int64_t>({1, -2, 3, 4, 5, 6})));
  check(npy_of("'<i4'", "(2, 3)", bytes_of<int32_t>({1, -2, 3, 4, 5, 6})));
  check(npy_of("'<i2'", "(2, 3)", bytes_of<int16_t>({1, -2, 3, 4, 5, 6})));
  check(npy_of("'|i1'", "(2, 3)", bytes_of<int8_t>({1, -2, 3, 4, 5, 6})));
  check(npy_of("'<i4'", "(2, 3)", bytes_of<int32_t>({1, 4, -2, 5, 3, 6}), "True"));
  EXPECT_EQ(read_bytes_as("a.npy", npy_of("'<u4'", "(1,)", bytes_of<uint32_t>({4000000000u})))
                .value()[0]
                .lists,
            (Lists{{4000000000}}));
}

TEST(IntegerFile, RefusesArraysThatItWouldMisread) {
  const std::string data = bytes_of<int64_t>({1, 2, 3, 4});
  EXPECT_EQ(npy_refusal(npy_of("'<f8'", "(4,)", data)).find("the file holds no whole numbers"), 0u);
  EXPECT_EQ(npy_refusal(npy_of("'>i8'", "(4,)", data))
                .find("the type is not little-endian whole numbers: \">i8\""),
            0u);
  EXPECT_EQ(npy_refusal(npy_of("'<i8'", "(5,)", data))
                .find("shape and data disagree: [5] of <i8 needs 40 bytes, 32 there"),
            0u);
  EXPECT_EQ(npy_refusal(npy_of("'<i8'", "(1, 2, 2)", data)),
            "the array must have one or two dimensions: [1, 2, 2]");
  const std::string whole = npy_of("'<i8'", "(4,)", data);
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(read_bytes_as("a.npy", whole.substr(0, size)).ok()) << size;
}

TEST(IntegerFile, ReadsMegatronsPackedSeqParams) {
  const Lists expected{{0, 7, 10}}, padded{{0, 8, 12}};
  const auto check = [&](const Result<std::vector<NamedLists>>& lists) {
    ASSERT_TRUE(lists.ok()) << to_text(lists.error());
    ASSERT_EQ(lists.value().size(), 3u);
    EXPECT_EQ(lists.value()[0].name, "cu_seqlens_q");
    EXPECT_EQ(lists.value()[0].lists, expected);
    EXPECT_EQ(lists.value()[1].lists, padded);
    EXPECT_EQ(lists.value()[2].lists, (Lists{{8}}));
  };
  const auto tensor = [](std::vector<int64_t> shape, std::vector<int64_t> strides, int64_t offset) {
    return pickled_tensor({.storage_class = "IntStorage",
                           .offset = offset,
                           .shape = std::move(shape),
                           .strides = std::move(strides)});
  };
  check(read_bytes_as(
      "a.pt",
      torch_archive_of(pickle_of(pickled_dict({{"qkv_format", pickled_text("thd")},
                                               {"cu_seqlens_q", tensor({3}, {1}, 0)},
                                               {"cu_seqlens_q_padded", tensor({1, 3}, {3, 1}, 3)},
                                               {"max_seqlen_q", pickled_number(8)},
                                               {"cp_group", "N"}})),
                       {bytes_of<int32_t>({0, 7, 10, 0, 8, 12})})));
  check(parse_integer_json(R"({"qkv_format": "thd", "cu_seqlens_q": [0, 7, 10],
 "cu_seqlens_kv": null, "cu_seqlens_q_padded": [[0, 8, 12]], "max_seqlen_q": 8, "cp_group": null})",
                           "a.json"));
  EXPECT_EQ(refusal_of(parse_integer_json(R"({"cu_seqlens_q": "0"})", "a.json"))
                .find("a.json:1:1: expected whole numbers: \"0\""),
            0u);
}

TEST(IntegerFile, ReadsAListOfEveryRank) {
  const auto rank = [](int64_t offset) {
    return pickled_dict(
        {{"position_ids",
          pickled_tensor(
              {.storage_class = "LongStorage", .offset = offset, .shape = {2}, .strides = {1}})}});
  };
  const auto lists =
      read_bytes_as("a.pt", torch_archive_of(pickle_of(pickled_list({rank(2), rank(0)})),
                                             {bytes_of<int64_t>({0, 1, 2, 3})}));
  ASSERT_TRUE(lists.ok()) << to_text(lists.error());
  ASSERT_EQ(lists.value().size(), 1u);
  EXPECT_EQ(lists.value()[0].lists, (Lists{{2, 3}, {0, 1}}));
}

TEST(IntegerFile, ReadsTensorsAndPartsByRank) {
  const ScratchFolder folder;
  nlohmann::json header;
  std::string data;
  const auto add = [&](const char* name, const char* type, std::vector<int64_t> shape,
                       const std::string& bytes) {
    header[name] = {{"dtype", type},
                    {"shape", shape},
                    {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  };
  add("cu_seqlens", "I32", {3}, bytes_of<int32_t>({0, 7, 10}));
  add("indices.rank1", "I64", {2}, bytes_of<int64_t>({2, 3}));
  add("indices.rank0", "I64", {2}, bytes_of<int64_t>({0, 1}));
  // Of two dimensions: the rows of one rank after those of another.
  add("blocks.rank1", "I32", {2, 2}, bytes_of<int32_t>({5, 6, 7, 8}));
  add("blocks.rank0", "I32", {2, 2}, bytes_of<int32_t>({1, 2, 3, 4}));
  add("table", "I16", {2, 2}, bytes_of<int16_t>({1, -1, 2, -2}));
  const auto write = [&](const char* name) {
    const std::string text = header.dump();
    write_bytes(folder.file(name), bytes_of<uint64_t>({text.size()}) + text + data);
    return folder.file(name);
  };
  const auto lists = read_integer_file(write("a.safetensors"));
  ASSERT_TRUE(lists.ok()) << to_text(lists.error());
  ASSERT_EQ(lists.value().size(), 4u);
  EXPECT_EQ(lists.value()[0].lists, (Lists{{0, 7, 10}}));
  EXPECT_EQ(lists.value()[1].lists, (Lists{{1, -1}, {2, -2}}));
  EXPECT_EQ(lists.value()[2].lists, (Lists{{1, 2}, {3, 4}, {5, 6}, {7, 8}}));
  EXPECT_EQ(lists.value()[3].name, "indices");
  EXPECT_EQ(lists.value()[3].lists, (Lists{{0, 1}, {2, 3}}));
  add("indices.rank3", "U8", {1}, std::string(1, '\x05'));
  EXPECT_EQ(refusal_of(read_integer_file(write("gap.safetensors"))),
            folder.file("gap.safetensors") + ": the list of rank 2 is missing: \"indices\"");
}

}  // namespace
}  // namespace cpscope::tests
