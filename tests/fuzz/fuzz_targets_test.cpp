#include "tests/fuzz/fuzz_targets.h"

#include <cstring>
#include <random>
#include <string>

#include <gtest/gtest.h>

// libFuzzer runs the same targets for millions of inputs (tests/fuzz/run); this is the part that
// every build can do.

namespace cpscope::fuzzing {
namespace {

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
    // The formats' own letters break the structure far more often than random bytes do.
    static const std::string kLetters = "{}[]\",:0123456789-.eE\\ntfFB=# \n";
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
    // Half of the time a record's length is put right again, so that its JSON is what gets judged.
    const size_t closing = bytes.rfind("}}");
    if (bytes.size() > 9 && bytes[8] == '{' && below(2) == 0 && closing != std::string::npos &&
        closing >= 8) {
      const uint64_t header_bytes = closing + 2 - 8;
      std::memcpy(bytes.data(), &header_bytes, sizeof header_bytes);
    }
  }

  std::mt19937_64 random_;
};

/// `bytes` as they may be typed into a test.
std::string show(const std::string& bytes) { return testing::PrintToString(bytes.substr(0, 2000)); }

TEST(FuzzTargets, KeepTheirPromisesOnEverySeed) {
  for (const Target& target : targets()) {
    const std::vector<std::string> seeds = target.seeds(CPSCOPE_SCENARIOS);
    EXPECT_GE(seeds.size(), 6u) << target.name;
    for (const std::string& seed : seeds) {
      EXPECT_EQ(target.check(seed), std::nullopt) << target.name << ": " << show(seed);
    }
  }
}

TEST(FuzzTargets, KeepTheirPromisesOnBrokenSeeds) {
  for (const Target& target : targets()) {
    Mutator mutator(20260722);
    const std::vector<std::string> seeds = target.seeds(CPSCOPE_SCENARIOS);
    for (size_t n = 0; n < 3'000; ++n) {
      const std::string bytes = mutator.mutate(seeds[n % seeds.size()]);
      ASSERT_EQ(target.check(bytes), std::nullopt) << target.name << ": " << show(bytes);
    }
  }
}

TEST(FuzzTargets, KeepTheirPromisesOnEveryByteOfARecordsHeader) {
  const Target& record = find_target("record");
  const std::string valid = record.seeds("").at(2);
  const size_t header_end = valid.rfind("}}") + 2;
  for (size_t at = 0; at < header_end; ++at) {
    for (const char letter : {'{', '}', '[', ']', '"', ',', '9', '-', '\0', '\xff'}) {
      std::string bytes = valid;
      bytes[at] = letter;
      ASSERT_EQ(record.check(bytes), std::nullopt) << show(bytes);
    }
  }
}

TEST(FuzzTargets, KeepTheirPromisesOnEveryOpcodeAtEveryByteOfAPickle) {
  const Target& pickle = find_target("pickle");
  for (const std::string& valid : pickle.seeds("")) {
    for (size_t at = 0; at < valid.size(); ++at) {
      for (const char letter : {'(', 't', 'R', 'b', 'Q', 'q', 'h', 'c', 'u', 'e', '\x81', '\x87',
                                '\x93', '.', '\0', '\xff'}) {
        std::string bytes = valid;
        bytes[at] = letter;
        ASSERT_EQ(pickle.check(bytes), std::nullopt) << show(bytes);
      }
    }
  }
}

}  // namespace
}  // namespace cpscope::fuzzing
