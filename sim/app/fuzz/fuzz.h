#pragma once

#include "sim/base/result.h"
#include "sim/run/toolbox.h"
#include "sim/scenario/random_scenario.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// What is wrong with one scenario on one executor.
struct FuzzFinding {
  // text | proof | run | oracle | probe | sample | spoiled | equivalents | crash
  std::string check;
  std::string text;  // where, and both values
  /// Why the check could not be made (no memory): then nothing is known to be wrong.
  std::optional<Error> obstacle = {};
};

/// One scenario after all checks.
struct FuzzResult {
  std::string refusal;      // by a rule, or because the executor cannot; empty when it ran
  int64_t equivalents = 0;  // other plans of the same attention that were compared
  bool is_probed = false;
  std::optional<FuzzFinding> finding;
};

/// The part of the space that draw number `index` of a seed is taken from: most draws small and in
/// fp64, some longer, some with more ranks, some in each narrower dtype.
RandomSpace fuzz_space(uint64_t index);

/// Draw number `index` of a seed, the same on every machine.
Scenario draw_fuzz_scenario(uint64_t seed, uint64_t index);

/// Asks everything that must hold of any scenario: its text reads back, its plan proves, the
/// executor's answer (padding and buffers poisoned) keeps its budget against the oracle, judged
/// whole and by a few rows, the same answer with something in it that no verdict may overlook
/// fails, keys are counted exactly by the probe, and other splits of the same attention give the
/// same answer token by token (in fp64 to kEquivalentTolerance; in narrower dtypes each within its
/// budget of the same exact answer, so within the sum of both of each other). Which splits follows
/// from the scenario's seed.
FuzzResult try_scenario(Toolbox& toolbox, const std::string& executor, const Scenario& scenario);

/// |a - b|2 over |b|2 (over 1 where |b|2 is less) that two fp64 plans of one attention may differ,
/// while no logit is above 10; beyond, that many times more.
inline constexpr double kEquivalentTolerance = 1e-11;

/// A scenario as small as it gets while the same check fails: fewer sequences, tokens, ranks,
/// heads, lanes, features. Tries at most `most_trials` scenarios.
Scenario shrink_scenario(Toolbox& toolbox, const std::string& executor, const Scenario& scenario,
                         const FuzzFinding& finding, int64_t most_trials);

/// Draws to try: from number `first` of the seed on, `count` of them (0 = no limit) or as many as
/// `seconds` allow (0 = no limit); draws of another dtype than `dtype` are neither tried nor
/// counted.
struct FuzzPlan {
  uint64_t seed = 1;
  uint64_t first = 0;
  int64_t count = 0;
  double seconds = 60.0;
  std::string dtype = {};  // as dtype_name says it; empty: every one
};

struct FuzzReport {
  int64_t drawn = 0, refused = 0, passed = 0, probed = 0, equivalents = 0;
  std::vector<std::pair<std::string, int64_t>> passed_by_dtype;
  std::optional<FuzzFinding> finding;  // of the failure, or the obstacle, with the lowest number
  uint64_t failed_draw = 0;
  Scenario failed;  // as drawn
};

/// Tries draws, on all cores where the executor is the CPU's, until one fails. Which draw is
/// reported does not depend on the number of threads.
FuzzReport fuzz(Toolbox& toolbox, const std::string& executor, const FuzzPlan& plan,
                const Progress& progress);

}  // namespace cpscope
