#include "sim/run/run_record.h"
#include "tests/sim/run/scratch_folder.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

using testing_support::read_bytes;
using testing_support::ScratchFolder;
using testing_support::write_bytes;

/// A valid file to break: a few tensors of every stored type.
std::string valid_file(const ScratchFolder& folder) {
  RunRecord record;
  record.scenario_text = "schema = 1\n";
  record.plan_hash = "0011223344556677";
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp32, Dtype::fp64, Dtype::fp16}) {
    record.tensors.push_back({.name = "tensor_" + std::string(to_name(dtype)),
                              .shape = {4, 16},
                              .dtype = dtype,
                              .values = std::vector<double>(64, 1.5)});
  }
  const std::string path = folder.file("valid.safetensors");
  EXPECT_TRUE(write_record(record, path).ok());
  return read_bytes(path);
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string mutate(std::string bytes) {
    const size_t rounds = 1 + below(3);
    for (size_t round = 0; round < rounds && !bytes.empty(); ++round) mutate_once(bytes);
    return bytes;
  }

 private:
  size_t below(size_t count) { return static_cast<size_t>(random_() % count); }

  void mutate_once(std::string& bytes) {
    // JSON's own letters break the structure far more often than random bytes do.
    static const std::string kLetters = "{}[]\",:0123456789-.eE\\ntfFB";
    const size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = kLetters[below(kLetters.size())];
        break;
      case 2:
        bytes.insert(at, 1, kLetters[below(kLetters.size())]);
        break;
      case 3:
        bytes.erase(at, 1 + below(16));
        break;
      case 4:
        bytes.insert(at, bytes.substr(below(bytes.size()), below(40)));
        break;
      default:
        bytes.resize(at);
        break;
    }
    // Half of the time the length is put right again, so that the JSON is what gets judged.
    const size_t closing = bytes.rfind("}}");
    if (below(2) == 0 && closing != std::string::npos && closing >= 8) {
      const uint64_t header_bytes = closing + 2 - 8;
      std::memcpy(bytes.data(), &header_bytes, sizeof header_bytes);
    }
  }

  std::mt19937_64 random_;
};

TEST(RecordFuzz, NeverCrashesAndNeverInventsValues) {
  const ScratchFolder folder;
  const std::string valid = valid_file(folder);
  const std::string path = folder.file("mutant.safetensors");
  Mutator mutator(20260722);
  int accepted = 0;
  for (int i = 0; i < 4'000; ++i) {
    const std::string bytes = mutator.mutate(valid);
    write_bytes(path, bytes);
    const Result<RunRecord> record = read_record(path);
    if (!record.ok()) {
      ASSERT_FALSE(to_text(record.error()).empty());
      ASSERT_EQ(record.error().kind, ErrorKind::bad_input);
      continue;
    }
    ++accepted;
    size_t stored = 0;
    for (const Tensor& tensor : record.value().tensors) {
      ASSERT_EQ(tensor.size(), static_cast<int64_t>(tensor.values.size())) << "mutant " << i;
      stored += tensor.values.size() * static_cast<size_t>(element_bytes(tensor.dtype));
    }
    ASSERT_LE(stored, bytes.size()) << "mutant " << i;
  }
  // A reader that refuses or accepts everything would pass the loop above.
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 3'000);
}

TEST(RecordFuzz, SurvivesEveryByteOfTheHeaderBeingEveryJsonLetter) {
  const ScratchFolder folder;
  const std::string valid = valid_file(folder);
  const std::string path = folder.file("mutant.safetensors");
  const size_t header_end = valid.rfind("}}") + 2;
  for (size_t at = 0; at < header_end; ++at) {
    for (const char letter : {'{', '}', '[', ']', '"', ',', '9', '-', '\0', '\xff'}) {
      std::string bytes = valid;
      bytes[at] = letter;
      write_bytes(path, bytes);
      const Result<RunRecord> record = read_record(path);
      if (record.ok()) {
        for (const Tensor& tensor : record.value().tensors) {
          ASSERT_EQ(tensor.size(), static_cast<int64_t>(tensor.values.size()));
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpscope
