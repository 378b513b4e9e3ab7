#pragma once

#include "sim/run/grade/case.h"
#include "sim/scenario/scenario_file.h"
#include "tests/program/planted_mistakes.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope::tests {

/// A scenario of scenarios/field/ by its number ("b10"), as it is shipped or with other values.
class FieldCase {
 public:
  explicit FieldCase(const std::string& number);

  /// A copy with this key of a table ("parallel.cp_size") set, or left out if the value is empty.
  FieldCase with(const std::string& key, const std::string& value) const;

  const std::string& text() const { return text_; }
  /// "b10_two_documents.toml"
  std::string file_name() const;
  /// Fails the test if the scenario has no plan.
  CheckedPlan plan() const;
  /// Why the scenario cannot be read or planned; "" if it can.
  std::string refusal() const;
  /// On the processor; fails the test if the answer is wrong.
  CaseOutcome run(bool poison = false) const;

 private:
  Result<LoadedScenario> load() const;

  std::string path_, text_;
};

/// Numbers of these half-open ranges, one range after another.
std::vector<int64_t> join_ranges(const std::vector<std::pair<int64_t, int64_t>>& ranges);

/// The packed ids that a rank owns, in the order of its rows.
std::vector<int64_t> owned_by(const Plan& plan, int32_t rank, Side side = Side::q);

/// [rank] (query, key, head) triples, counted one by one: those of one sequence for which `sees`
/// is true.
std::vector<int64_t> count_triples(
    const Plan& plan, const std::function<bool(const TokenPlace& q, const TokenPlace& k)>& sees);

/// The largest entry over the mean.
double max_over_mean(const std::vector<int64_t>& counts);

/// The largest difference of two tensors of the same shape.
double max_difference(const Tensor& a, const Tensor& b);

/// Fails the test if the text lacks the words.
void expect_says(const std::string& text, const std::string& words);

}  // namespace cpscope::tests
