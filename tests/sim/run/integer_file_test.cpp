#include "sim/run/record/integer_file.h"

#include "tests/sim/run/scratch_folder.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using Lists = std::vector<std::vector<int64_t>>;

std::string refusal_of(const Result<std::vector<NamedLists>>& read) {
  EXPECT_FALSE(read.ok());
  return read.ok() ? "" : to_text(read.error());
}

template <class Integer>
std::string bytes_of(const std::vector<Integer>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Integer)};
}

/// An .npy file of version 1.0, as numpy writes it.
std::string npy(const std::string& type, const std::string& shape, const std::string& data,
                const std::string& order = "False") {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string file = "\x93NUMPY";
  file += '\x01';
  file += '\x00';
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  return file + header + data;
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

TEST(IntegerFile, ReadsListsOfABatchOfOne) {
  const auto lists =
      parse_integer_json(R"({"cu_seqlens": [[0, 7]], "indices": [[[0, 1]], [[2]]]})", "a.json");
  ASSERT_TRUE(lists.ok()) << to_text(lists.error());
  EXPECT_EQ(lists.value()[0].lists, (Lists{{0, 7}}));
  EXPECT_EQ(lists.value()[1].lists, (Lists{{0, 1}, {2}}));
  const auto array =
      parse_npy(npy("<i8", "(2, 1, 2)", bytes_of<int64_t>({0, 3, 1, 2})), "indices.npy");
  ASSERT_TRUE(array.ok()) << to_text(array.error());
  EXPECT_EQ(array.value()[0].lists, (Lists{{0, 3}, {1, 2}}));
}

TEST(IntegerFile, ReadsNumpysArraysOfEveryWidth) {
  const Lists expected{{1, -2, 3}, {4, 5, 6}};
  const auto check = [&](const std::string& file) {
    const auto lists = parse_npy(file, "a.npy");
    ASSERT_TRUE(lists.ok()) << to_text(lists.error());
    EXPECT_EQ(lists.value()[0].lists, expected);
  };
  check(npy("<i8", "(2, 3)", bytes_of<int64_t>({1, -2, 3, 4, 5, 6})));
  check(npy("<i4", "(2, 3)", bytes_of<int32_t>({1, -2, 3, 4, 5, 6})));
  check(npy("<i2", "(2, 3)", bytes_of<int16_t>({1, -2, 3, 4, 5, 6})));
  check(npy("|i1", "(2, 3)", bytes_of<int8_t>({1, -2, 3, 4, 5, 6})));
  EXPECT_EQ(
      parse_npy(npy("<u4", "(1,)", bytes_of<uint32_t>({4000000000u})), "a.npy").value()[0].lists,
      (Lists{{4000000000}}));
}

TEST(IntegerFile, RefusesArraysThatItWouldMisread) {
  const std::string data = bytes_of<int64_t>({1, 2, 3, 4});
  EXPECT_EQ(refusal_of(parse_npy(npy("<f8", "(4,)", data), "a.npy"))
                .find("a.npy: the type is not little-endian whole numbers: \"<f8\""),
            0u);
  EXPECT_EQ(refusal_of(parse_npy(npy(">i8", "(4,)", data), "a.npy")).find("a.npy: the type"), 0u);
  EXPECT_EQ(refusal_of(parse_npy(npy("<i8", "(2, 2)", data, "True"), "a.npy"))
                .find("a.npy: the array is not in row-major (C) order"),
            0u);
  EXPECT_EQ(refusal_of(parse_npy(npy("<i8", "(5,)", data), "a.npy")),
            "a.npy: shape and data disagree: 40 bytes needed, 32 there");
  EXPECT_EQ(refusal_of(parse_npy(npy("<i8", "(1, 2, 2)", data), "a.npy")),
            "a.npy: the array must have one or two dimensions: [1, 2, 2]");
  const std::string whole = npy("<i8", "(4,)", data);
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(parse_npy(whole.substr(0, size), "a.npy").ok()) << size;
}

TEST(IntegerFile, ReadsTensorsAndPartsByRank) {
  const testing_support::ScratchFolder folder;
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
  add("table", "I16", {2, 2}, bytes_of<int16_t>({1, -1, 2, -2}));
  const auto write = [&](const char* name) {
    const std::string text = header.dump();
    testing_support::write_bytes(folder.file(name),
                                 bytes_of<uint64_t>({text.size()}) + text + data);
    return folder.file(name);
  };
  const auto lists = read_integer_file(write("a.safetensors"));
  ASSERT_TRUE(lists.ok()) << to_text(lists.error());
  ASSERT_EQ(lists.value().size(), 3u);
  EXPECT_EQ(lists.value()[0].lists, (Lists{{0, 7, 10}}));
  EXPECT_EQ(lists.value()[1].lists, (Lists{{1, -1}, {2, -2}}));
  EXPECT_EQ(lists.value()[2].name, "indices");
  EXPECT_EQ(lists.value()[2].lists, (Lists{{0, 1}, {2, 3}}));
  add("indices.rank3", "U8", {1}, std::string(1, '\x05'));
  EXPECT_EQ(refusal_of(read_integer_file(write("gap.safetensors"))),
            folder.file("gap.safetensors") + ": the list of rank 2 is missing: \"indices\"");
}

}  // namespace
}  // namespace cpscope::tests
