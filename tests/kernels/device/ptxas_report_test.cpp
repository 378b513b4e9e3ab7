// Registers and spills of every kernel, as ptxas reported them when the CUDA library was built,
// compared with the table ptxas_limits.txt. A spill in an inner loop changes no result: only this
// test detects it.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <cxxabi.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

namespace fs = std::filesystem;

/// One kernel for one architecture.
struct KernelReport {
  std::string architecture;  // sm_90a
  std::string kernel;        // in the form of short_name
  int registers = 0;
  int spill_bytes = 0;  // stored and loaded, including called functions
};

/// Output of ptxas for one source file.
struct Report {
  std::vector<KernelReport> kernels;
  std::vector<std::string> warnings;
};

struct Limit {
  std::string architecture, kernel;  // patterns
  int registers = 0;
  int spill_bytes = 0;
};

/// A kernel's mangled name without namespaces, arguments and blanks.
std::string short_name(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0) return mangled;
  static const std::regex kNoise(
      R"(\([a-z:]*LogitForm\)|cpscope::|kernels::|device::|\(anonymous namespace\)::|^void )");
  std::string name = std::regex_replace(std::string(text.get()), kNoise, "");
  name = name.substr(0, name.rfind('('));
  std::erase(name, ' ');
  return name;
}

Report read_report(std::istream& stream) {
  static const std::regex kEntry(R"(Compiling entry function '(\w+)' for '(\w+)')");
  static const std::regex kSpills(R"((\d+) bytes spill stores, (\d+) bytes spill loads)");
  static const std::regex kRegisters(R"(Used (\d+) registers)");
  // ptxas labels its warnings info with a number: C7510 means that it serialises wgmma.
  static const std::regex kWarning(R"(\(C\d+\)|[Ww]arning)");
  Report report;
  std::smatch found;
  for (std::string line; std::getline(stream, line);) {
    if (std::regex_search(line, found, kEntry)) {
      report.kernels.push_back({.architecture = found[2], .kernel = short_name(found[1])});
    } else if (std::regex_search(line, kWarning)) {
      report.warnings.push_back(line);
    } else if (report.kernels.empty()) {
      continue;
    } else if (std::regex_search(line, found, kSpills)) {
      report.kernels.back().spill_bytes += std::stoi(found[1]) + std::stoi(found[2]);
    } else if (std::regex_search(line, found, kRegisters)) {
      report.kernels.back().registers = std::stoi(found[1]);
    }
  }
  return report;
}

std::vector<Limit> read_limits(std::istream& stream) {
  std::vector<Limit> limits;
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line.front() == '#') continue;
    Limit limit;
    std::istringstream words(line);
    words >> limit.architecture >> limit.kernel >> limit.registers >> limit.spill_bytes;
    EXPECT_FALSE(words.fail()) << "no limit: " << line;
    limits.push_back(limit);
  }
  return limits;
}

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

/// The first limit for the kernel, or nullptr.
const Limit* find_limit(const std::vector<Limit>& limits, const KernelReport& report) {
  const auto found = std::find_if(limits.begin(), limits.end(), [&](const Limit& limit) {
    return matches(limit.architecture, report.architecture) && matches(limit.kernel, report.kernel);
  });
  return found == limits.end() ? nullptr : &*found;
}

/// True if the table covers the architecture. Others may be built without limits.
bool is_promised(const std::vector<Limit>& limits, const std::string& architecture) {
  return std::any_of(limits.begin(), limits.end(),
                     [&](const Limit& limit) { return matches(limit.architecture, architecture); });
}

/// One line for each kernel that breaks the table.
std::vector<std::string> find_violations(const Report& report, const std::vector<Limit>& limits) {
  std::vector<std::string> findings = report.warnings;
  for (const KernelReport& one : report.kernels) {
    if (!is_promised(limits, one.architecture)) continue;
    const Limit* limit = find_limit(limits, one);
    if (limit == nullptr) {
      findings.push_back(
          fmt::format("{} {}: the table has no line for it", one.architecture, one.kernel));
    } else if (one.registers > limit->registers || one.spill_bytes > limit->spill_bytes) {
      findings.push_back(fmt::format(
          "{} {}: {} registers and {} spill bytes, the table allows {} and {}", one.architecture,
          one.kernel, one.registers, one.spill_bytes, limit->registers, limit->spill_bytes));
    }
  }
  return findings;
}

std::vector<Limit> table() {
  std::ifstream stream(CPSCOPE_PTXAS_LIMITS);
  EXPECT_TRUE(stream.is_open()) << CPSCOPE_PTXAS_LIMITS;
  return read_limits(stream);
}

/// Reports of the build that this test belongs to.
class PtxasReport : public testing::Test {
 protected:
  void SetUp() override {
    const std::string compiler = CPSCOPE_PTXAS_VERSION;
    if (compiler.empty()) GTEST_SKIP() << "requires nvcc: this build has no CUDA kernels";
    if (!compiler.starts_with("13.0"))
      GTEST_SKIP() << "requires nvcc: the table holds figures of CUDA 13.0, this is " << compiler;
    for (std::istringstream names(CPSCOPE_PTXAS_SOURCES); names;) {
      std::string name;
      if (names >> name) read_file(fs::path(CPSCOPE_PTXAS_FOLDER) / (name + ".txt"));
    }
  }

  void read_file(const fs::path& path) {
    std::ifstream stream(path);
    const Report one = read_report(stream);
    ASSERT_FALSE(one.kernels.empty()) << "no report in " << path << ": compile the source again";
    all_.kernels.insert(all_.kernels.end(), one.kernels.begin(), one.kernels.end());
    all_.warnings.insert(all_.warnings.end(), one.warnings.begin(), one.warnings.end());
  }

  Report all_;
};

TEST_F(PtxasReport, KeepsEveryKernelWithinItsRegistersAndSpills) {
  for (const std::string& finding : find_violations(all_, table())) ADD_FAILURE() << finding;
}

TEST_F(PtxasReport, HasAKernelForEveryLineOfTheTable) {
  for (const Limit& limit : table()) {
    const auto is_of_it = [&](const KernelReport& one) {
      return matches(limit.architecture, one.architecture) && matches(limit.kernel, one.kernel);
    };
    const auto is_built = [&](const KernelReport& one) {
      return matches(limit.architecture, one.architecture);
    };
    if (!std::any_of(all_.kernels.begin(), all_.kernels.end(), is_built)) continue;
    EXPECT_TRUE(std::any_of(all_.kernels.begin(), all_.kernels.end(), is_of_it))
        << "no kernel is called " << limit.architecture << " " << limit.kernel;
  }
}

// Tests of the reader, with a report in the format of nvcc.

constexpr const char* kText =
    "ptxas info    : Compiling entry function '_ZN7cpscope7kernels6device3runIfLi64EEEvNS0_4TaskE' "
    "for 'sm_90a'\n"
    "ptxas info    : Function properties for _ZN7cpscope7kernels6device3runIfLi64EEEvNS0_4TaskE\n"
    "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
    "ptxas info    : Used 168 registers, used 1 barriers, 8 bytes cumulative stack size\n";

Report report_of(const std::string& text) {
  std::istringstream stream(text);
  return read_report(stream);
}

TEST(PtxasReader, ReadsRegistersAndSpills) {
  const Report report = report_of(kText);
  ASSERT_EQ(report.kernels.size(), 1u);
  EXPECT_EQ(report.kernels[0].kernel, "run<float,64>");
  EXPECT_EQ(report.kernels[0].architecture, "sm_90a");
  EXPECT_EQ(report.kernels[0].registers, 168);
  EXPECT_EQ(report.kernels[0].spill_bytes, 16);
  EXPECT_TRUE(report.warnings.empty());
}

TEST(PtxasReader, FindsWhatBreaksALimit) {
  const Report report = report_of(kText);
  EXPECT_TRUE(find_violations(report, {{"sm_90a", "run<*,64>", 168, 16}}).empty());
  EXPECT_EQ(find_violations(report, {{"sm_90a", "run<*,64>", 168, 15}}).size(), 1u);
  EXPECT_EQ(find_violations(report, {{"sm_90a", "run<*,64>", 167, 16}}).size(), 1u);
  EXPECT_EQ(find_violations(report, {{"sm_90a", "walk<*>", 255, 99}}).size(), 1u);
  EXPECT_TRUE(find_violations(report, {{"sm_80", "walk<*>", 255, 99}}).empty());
}

TEST(PtxasReader, FindsSerialisedProducts) {
  const Report report = report_of(
      std::string(kText) +
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to insufficient register resources\n");
  EXPECT_EQ(find_violations(report, {{"sm_90a", "*", 255, 99}}).size(), 1u);
}

}  // namespace
}  // namespace cpscope::tests
