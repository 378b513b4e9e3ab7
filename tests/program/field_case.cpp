#include "tests/program/field_case.h"

#include "tests/program/program_run.h"
#include "tests/program/walker_toolbox.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include <gtest/gtest.h>

namespace cpscope::tests {

FieldCase::FieldCase(const std::string& number) {
  for (const auto& entry : std::filesystem::directory_iterator(CPSCOPE_SCENARIOS "/field")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(number + "_") && name.ends_with(".toml")) path_ = entry.path().string();
  }
  EXPECT_FALSE(path_.empty()) << "no scenario of number " << number;
  if (!path_.empty()) text_ = read_text(path_);
}

FieldCase FieldCase::with(const std::string& key, const std::string& value) const {
  const size_t dot = key.find('.');
  const std::string table = "[" + key.substr(0, dot) + "]\n", name = key.substr(dot + 1);
  FieldCase other = *this;
  const size_t begin = other.text_.find(table);
  EXPECT_NE(begin, std::string::npos) << "no table " << table;
  if (begin == std::string::npos) return other;
  size_t at = begin + table.size();
  const std::string line = value.empty() ? "" : name + " = " + value + "\n";
  while (at < other.text_.size() && other.text_[at] != '[' && other.text_[at] != '\n') {
    const size_t end = other.text_.find('\n', at) + 1;
    const std::string old = other.text_.substr(at, end - at);
    if (old.substr(0, old.find_first_of(" =")) == name) {
      other.text_.replace(at, end - at, line);
      return other;
    }
    at = end;
  }
  EXPECT_FALSE(value.empty()) << "no key " << key;
  other.text_.insert(begin + table.size(), line);
  return other;
}

std::string FieldCase::file_name() const {
  return std::filesystem::path(path_).filename().string();
}

Result<LoadedScenario> FieldCase::load() const { return parse_scenario(text_, path_); }

CheckedPlan FieldCase::plan() const {
  const Result<LoadedScenario> loaded = load();
  EXPECT_TRUE(loaded.ok()) << to_text(loaded.error());
  Result<CheckedPlan> plan = plan_scenario(loaded.value());
  EXPECT_TRUE(plan.ok()) << to_text(plan.error());
  return std::move(plan).value();
}

std::string FieldCase::refusal() const {
  const Result<LoadedScenario> loaded = load();
  if (!loaded) return to_text(loaded.error());
  const Result<CheckedPlan> plan = plan_scenario(loaded.value());
  return plan ? "" : to_text(plan.error());
}

CaseOutcome FieldCase::run(bool poison) const {
  const Result<LoadedScenario> loaded = load();
  EXPECT_TRUE(loaded.ok()) << to_text(loaded.error());
  Toolbox toolbox = make_walker_toolbox();
  CaseOutcome outcome = run_case(toolbox, loaded.value(), {.poison = poison});
  EXPECT_EQ(outcome.status, CaseStatus::pass) << outcome.reason;
  return outcome;
}

std::vector<int64_t> join_ranges(const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  std::vector<int64_t> numbers;
  for (const auto& [begin, end] : ranges)
    for (int64_t number = begin; number < end; ++number) numbers.push_back(number);
  return numbers;
}

std::vector<int64_t> owned_by(const Plan& plan, int32_t rank, Side side) {
  return expand(plan.layout.runs(side)[RankId{rank}]);
}

std::vector<int64_t> count_triples(
    const Plan& plan, const std::function<bool(const TokenPlace& q, const TokenPlace& k)>& sees) {
  std::vector<int64_t> counts(static_cast<size_t>(plan.layout.cp_size));
  const std::vector<TokenPlace> keys = token_places(plan, Side::kv);
  for (const TokenPlace& q : token_places(plan, Side::q)) {
    for (const TokenPlace& k : keys) {
      if (q.sequence >= 0 && q.sequence == k.sequence && sees(q, k))
        counts[static_cast<size_t>(q.rank)] += plan.scenario.attention.heads;
    }
  }
  return counts;
}

double max_over_mean(const std::vector<int64_t>& counts) {
  const auto sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return static_cast<double>(*std::max_element(counts.begin(), counts.end())) *
         static_cast<double>(counts.size()) / static_cast<double>(sum);
}

double max_difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape, b.shape) << a.name;
  double most = 0;
  for (size_t i = 0; i < a.values.size(); ++i)
    if (a.values[i] != b.values[i]) most = std::max(most, std::abs(a.values[i] - b.values[i]));
  return most;
}

void expect_says(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << words << "\nis not in\n" << text;
}

}  // namespace cpscope::tests
