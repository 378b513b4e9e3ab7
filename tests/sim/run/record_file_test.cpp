#include "sim/run/record/run_record.h"
#include "tests/sim/run/scratch_folder.h"
#include "tests/sim/run/special_numbers.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

namespace cpscope {
namespace {

using testing_support::read_bytes;
using testing_support::ScratchFolder;
using testing_support::write_bytes;

RunRecord small_record() {
  RunRecord record;
  record.scenario_text = "schema = 1\ntitle = \"K\u00f6ln \\ \u65e5\u672c\"\n";
  record.plan_hash = "0123456789abcdef";
  record.executor = "cpu";
  record.machine = "a desk";
  record.version = "0.1.0";
  record.clock = "simulated";
  record.tensors = {
      {.name = "q", .shape = {1, 3}, .dtype = Dtype::bf16, .values = {1.0, -2.5, 0x1p-130}},
      {.name = "k", .shape = {3, 1, 1}, .dtype = Dtype::fp16, .values = {0x1p-24, 65504.0, -0.0}},
      {.name = "lse", .shape = {2, 1}, .dtype = Dtype::fp32, .values = {-kInfinity, 0x1.8p-140}},
      {.name = "out", .shape = {2}, .dtype = Dtype::fp64, .values = {0.1, 1e300}},
      {.name = "nothing", .shape = {0, 5}, .dtype = Dtype::fp32, .values = {}},
      {.name = "one", .shape = {}, .dtype = Dtype::fp64, .values = {7.0}}};
  return record;
}

/// A file with this header text and `data_bytes` zero bytes of data.
std::string file_with_header(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + header + std::string(data_bytes, '\0');
}

/// The error text of reading these bytes; fails the test when they are accepted.
std::string reading_error(const std::string& bytes) {
  const ScratchFolder folder;
  const std::string path = folder.file("broken.safetensors");
  write_bytes(path, bytes);
  const Result<RunRecord> record = read_record(path);
  if (record.ok()) {
    ADD_FAILURE() << "accepted: " << bytes.substr(0, 200);
    return "";
  }
  EXPECT_EQ(record.error().kind, ErrorKind::bad_input);
  const std::string text = to_text(record.error());
  EXPECT_EQ(text.rfind(path + ": ", 0), 0u) << "does not begin with the path: " << text;
  return text.substr(std::min(text.size(), path.size() + 2));
}

std::string header_error(const std::string& header, size_t data_bytes = 0) {
  return reading_error(file_with_header(header, data_bytes));
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

TEST(RecordFile, ReturnsEverythingThatWasWritten) {
  const ScratchFolder folder;
  const RunRecord written = small_record();
  const std::string path = folder.file("a.safetensors");
  const Result<std::string> result = write_record(written, path);
  ASSERT_TRUE(result.ok()) << to_text(result.error());
  EXPECT_EQ(result.value(), path);
  const Result<RunRecord> read = read_record(path);
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  EXPECT_EQ(read.value().scenario_text, written.scenario_text);
  EXPECT_EQ(read.value().plan_hash, written.plan_hash);
  EXPECT_EQ(read.value().executor, written.executor);
  EXPECT_EQ(read.value().machine, written.machine);
  EXPECT_EQ(read.value().version, written.version);
  EXPECT_EQ(read.value().clock, written.clock);
  ASSERT_EQ(read.value().tensors.size(), written.tensors.size());
  for (size_t t = 0; t < written.tensors.size(); ++t) {
    const Tensor& before = written.tensors[t];
    const Tensor& after = read.value().tensors[t];
    EXPECT_EQ(after.name, before.name) << "the order of tensors is not kept";
    EXPECT_EQ(after.shape, before.shape) << before.name;
    EXPECT_EQ(after.dtype, before.dtype) << before.name;
    if (before.name == "lse") {  // 0x1.8p-140 is a subnormal float and survives
      EXPECT_EQ(after.values[1], 0x1.8p-140);
    }
    EXPECT_EQ(after.values, before.values) << before.name;
  }
  EXPECT_TRUE(std::signbit(read.value().find("k")->values[2]));
  EXPECT_EQ(read.value().find("absent"), nullptr);
  EXPECT_EQ(folder.count_files(), 1u) << "a temporary file was left";
}

TEST(RecordFile, KeepsNaNAndRoundsOnceToTheStoredType) {
  const ScratchFolder folder;
  RunRecord record;
  record.tensors = {{.name = "a",
                     .shape = {3},
                     .dtype = Dtype::bf16,
                     .values = {std::nan(""), 1.0 + 0x1p-8 + 0x1p-40, 1e39}}};
  const std::string path = folder.file("a.safetensors");
  ASSERT_TRUE(write_record(record, path).ok());
  const Result<RunRecord> read = read_record(path);
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(std::isnan(read.value().tensors[0].values[0]));
  EXPECT_EQ(read.value().tensors[0].values[1], 1.0 + 0x1p-7);
  EXPECT_EQ(read.value().tensors[0].values[2], kInfinity);
}

TEST(RecordFile, CopiesTensorsLargerThanOneChunk) {
  const ScratchFolder folder;
  RunRecord record;
  Tensor tensor{.name = "big", .shape = {200'001}, .dtype = Dtype::fp32, .values = {}};
  for (int i = 0; i < 200'001; ++i) tensor.values.push_back(i);
  record.tensors = {tensor, tensor};
  record.tensors[1].name = "half";
  record.tensors[1].dtype = Dtype::fp64;
  const std::string path = folder.file("a.safetensors");
  ASSERT_TRUE(write_record(record, path).ok());
  const Result<RunRecord> read = read_record(path);
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  EXPECT_EQ(read.value().tensors[0].values, tensor.values);
  EXPECT_EQ(read.value().tensors[1].values, tensor.values);
}

TEST(RecordFile, PadsTheHeaderToEightBytes) {
  const ScratchFolder folder;
  RunRecord record = small_record();
  for (int extra = 0; extra < 9; ++extra) {
    record.machine += 'x';
    const std::string path = folder.file("a.safetensors");
    ASSERT_TRUE(write_record(record, path).ok());
    const std::string bytes = read_bytes(path);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    EXPECT_EQ(header_bytes % 8, 0u);
    EXPECT_EQ(bytes[8], '{');
  }
}

TEST(RecordFile, IsReadableByAnyReaderOfTheFormat) {
  if (std::system("python3 -c 'import json, struct' 2> /dev/null") != 0) {
    GTEST_SKIP() << "requires python3: it is not here";
  }
  const ScratchFolder folder;
  const std::string path = folder.file("a.safetensors");
  ASSERT_TRUE(write_record(small_record(), path).ok());
  const std::string script = folder.file("read.py");
  write_bytes(script, R"(import json, struct, sys
raw = open(sys.argv[1], 'rb').read()
length = struct.unpack('<Q', raw[:8])[0]
head, data = json.loads(raw[8:8 + length].decode('utf-8')), raw[8 + length:]
meta = head.pop('__metadata__')
assert meta['clock'] == 'simulated' and meta['plan_hash'] == '0123456789abcdef', meta
assert all(isinstance(v, str) for v in meta.values())
assert meta['scenario'] == 'schema = 1\ntitle = "K\u00f6ln \\ \u65e5\u672c"\n', meta
def values(name, code, width):
    begin, end = head[name]['data_offsets']
    assert begin % width == 0, name
    return list(struct.unpack('<%d%s' % ((end - begin) // width, code), data[begin:end]))
assert head['q']['dtype'] == 'BF16' and head['q']['shape'] == [1, 3]
assert values('q', 'H', 2) == [0x3f80, 0xc020, 0x0008]
assert head['k']['dtype'] == 'F16' and values('k', 'e', 2) == [2.0 ** -24, 65504.0, 0.0]
assert head['lse']['dtype'] == 'F32' and values('lse', 'f', 4)[0] == float('-inf')
assert head['out']['dtype'] == 'F64' and values('out', 'd', 8) == [0.1, 1e300]
assert head['one']['shape'] == [] and values('one', 'd', 8) == [7.0]
spans = sorted(t['data_offsets'] for t in head.values())
assert spans[0][0] == 0 and spans[-1][1] == len(data)
assert all(a[1] == b[0] for a, b in zip(spans, spans[1:]))
)");
  EXPECT_EQ(std::system(("python3 '" + script + "' '" + path + "'").c_str()), 0);
}

TEST(RecordFile, ReadsFilesOfOtherProgramsWithoutMetadata) {
  const ScratchFolder folder;
  const std::string path = folder.file("a.safetensors");
  write_bytes(path, file_with_header(R"( {"b":{"shape":[2],"data_offsets":[8,16],"dtype":"F32"},)"
                                     R"("a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}   )",
                                     16));
  const Result<RunRecord> read = read_record(path);
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  EXPECT_EQ(read.value().tensors[0].name, "b");
  EXPECT_EQ(read.value().tensors[1].shape, std::vector<int64_t>{1});
  EXPECT_EQ(read.value().clock, "none");
}

TEST(RecordFile, RefusesATruncatedFile) {
  const ScratchFolder folder;
  const std::string path = folder.file("a.safetensors");
  ASSERT_TRUE(write_record(small_record(), path).ok());
  const std::string whole = read_bytes(path);
  for (size_t size = 0; size < whole.size(); ++size) reading_error(whole.substr(0, size));
  reading_error(whole + '\0');
}

TEST(RecordFile, RefusesAHeaderThatTheFileDoesNotBack) {
  expect_contains(reading_error(""), "too short");
  expect_contains(reading_error(std::string(8, '\xff')), "longer than the file");
  expect_contains(reading_error(std::string("\x01\x00\x00\x00\x00\x00\x00\x00", 8)),
                  "longer than the file");
}

TEST(RecordFile, RefusesBrokenJson) {
  expect_contains(header_error(""), "not valid JSON");
  expect_contains(header_error("{"), "not valid JSON");
  expect_contains(header_error("{}{}"), "not valid JSON");
  expect_contains(header_error("[]"), "unexpected array");
  expect_contains(header_error("7"), "unexpected number");
  expect_contains(header_error("{\"a\xff\":{}}"), "not valid JSON");
  expect_contains(header_error(R"({"a":7})"), "unexpected number");
  expect_contains(header_error(std::string(1'000'000, '[')), "unexpected array");
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += R"({"a":)";
  expect_contains(header_error(deep), "unknown key");
}

TEST(RecordFile, NamesTheTensorThatIsWrong) {
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"dq":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const struct {
    std::string header, expected;
  } cases[] = {
      {tensor(R"("I64")", "[1]", "[0,8]"), "\"dq\" has a type that records do not hold: \"I64\""},
      {tensor(R"("F8_E4M3")", "[8]", "[0,8]"), "\"F8_E4M3\""},
      {tensor("7", "[1]", "[0,8]"), "unexpected number in \"dq\", key \"dtype\""},
      {tensor(R"("F64")", "[-1]", "[0,8]"), "negative number in \"dq\", key \"shape\""},
      {tensor(R"("F64")", "[1.0]", "[0,8]"), "not a whole number in \"dq\""},
      {tensor(R"("F64")", "[18446744073709551615]", "[0,8]"), "number too large in \"dq\""},
      {tensor(R"("F64")", "[[1]]", "[0,8]"), "unexpected array in \"dq\""},
      {tensor(R"("F64")", "1", "[0,8]"), "unexpected number in \"dq\""},
      {tensor(R"("F64")", "[1]", "[0]"), "not two numbers in \"dq\""},
      {tensor(R"("F64")", "[1]", "[0,8,9]"), "not two numbers in \"dq\""},
      {tensor(R"("F64")", "[2]", "[0,8]"), "bytes [0, 8), shape [2] of F64 needs 16 bytes"},
      {tensor(R"("F64")", "[1]", "[8,0]"), "outside of the file"},
      {tensor(R"("F64")", "[1]", "[4,12]"), "outside of the file"},
      {tensor(R"("F64")", "[1]", "[0,9223372036854775807]"), "outside of the file"},
      {tensor(R"("F64")", "[2305843009213693952,8]", "[0,8]"), "more than 2^63"},
      {tensor(R"("F64")", "[4611686018427387904,4]", "[0,0]"), "more than 2^63"},
      {tensor(R"("F64")", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,8]"), "16 dimensions"},
      {R"({"dq":{"dtype":"F64","shape":[1]}})", "missing in \"dq\""},
      {R"({"dq":{"dtype":"F64","dtype":"F64"}})", "repeated key in \"dq\""},
      {R"({"dq":{"color":"F64"}})", "unknown key in \"dq\", key \"color\""},
      {R"({"__metadata__":{"machine":7}})", "unexpected number in \"__metadata__\""},
      {R"({"__metadata__":{"machine":{}}})", "unexpected object in \"__metadata__\""},
      {R"({"__metadata__":{"a":"b","a":"c"}})", "repeated key in \"__metadata__\""},
      {R"({"__metadata__":null})", "unexpected null"},
  };
  for (const auto& one : cases) expect_contains(header_error(one.header, 8), one.expected);
}

TEST(RecordFile, RefusesTensorsThatOverlapOrLeaveAGap) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + b + "}}";
  };
  expect_contains(header_error(two("[0,8]", "[4,12]"), 12), "overlap: tensor \"b\"");
  expect_contains(header_error(two("[0,8]", "[0,8]"), 8), "overlap");
  expect_contains(header_error(two("[0,8]", "[12,20]"), 20), "leave a gap: tensor \"b\"");
  expect_contains(header_error(two("[4,12]", "[12,20]"), 20), "leave a gap: tensor \"a\"");
  expect_contains(header_error(two("[0,8]", "[8,16]"), 20), "the file holds 20");
  expect_contains(header_error(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                               R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})"),
                  "two entries are called \"a\"");
}

TEST(RecordFile, KeepsControlCharactersOfNamesOutOfItsMessages) {
  const std::string text =
      header_error(R"({"\u001b[31m\n":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}})");
  expect_contains(text, "\"?[31m?\"");
}

TEST(RecordFile, SaysWhenThereIsNoFile) {
  const ScratchFolder folder;
  expect_contains(to_text(read_record(folder.file("absent")).error()), "no such file");
  std::filesystem::create_directory(folder.file("folder"));
  expect_contains(to_text(read_record(folder.file("folder")).error()), "not a file");
}

TEST(RecordFile, LeavesNothingBehindWhenItCannotWrite) {
  const ScratchFolder folder;
  const RunRecord record = small_record();
  EXPECT_FALSE(write_record(record, folder.file("absent/a.safetensors")).ok());
  std::filesystem::create_directory(folder.file("taken"));
  const Result<std::string> result = write_record(record, folder.file("taken"));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::bad_input);
  EXPECT_EQ(folder.count_files(), 1u);
}

TEST(RecordFile, KeepsTheOlderRecordWhenTheDiskIsFull) {
  const ScratchFolder folder;
  const std::string path = folder.file("a.safetensors");
  write_bytes(path, "old");
  RunRecord record;
  record.tensors = {{.name = "big",
                     .shape = {100'000},
                     .dtype = Dtype::fp64,
                     .values = std::vector<double>(100'000, 1.0)}};
  // A file size limit simulates the full disk.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit small_limit{.rlim_cur = 65'536, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small_limit), 0);
  const Result<std::string> result = write_record(record, path);
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(result.ok());
  expect_contains(to_text(result.error()), "the disk took only a part of it");
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.count_files(), 1u) << "a half-written file was left";
}

TEST(RecordFile, NeverReplacesWhatIsNotAFile) {
  // A pipe simulates a device, which a wrong writer would really replace.
  const ScratchFolder folder;
  const std::string path = folder.file("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const Result<std::string> result = write_record(small_record(), path);
  ASSERT_FALSE(result.ok());
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

TEST(RecordFile, ReplacesAnOlderRecordAndFollowsALink) {
  const ScratchFolder folder;
  const std::string path = folder.file("a.safetensors");
  write_bytes(path, "old");
  const std::string link = folder.file("link");
  std::filesystem::create_symlink(path, link);
  ASSERT_TRUE(write_record(small_record(), link).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(read_record(path).ok());
  EXPECT_EQ(folder.count_files(), 2u);
}

TEST(RecordFile, WritesTextThatIsNotUtf8) {
  const ScratchFolder folder;
  RunRecord record = small_record();
  record.machine = "caf\xe9";
  const std::string path = folder.file("a.safetensors");
  ASSERT_TRUE(write_record(record, path).ok());
  EXPECT_EQ(read_record(path).value().machine, "caf\xef\xbf\xbd");
}

}  // namespace
}  // namespace cpscope
