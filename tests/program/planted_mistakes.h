#pragma once

#include "sim/faults/fault.h"
#include "sim/plan/plan.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace cpscope::tests {

/// Where a token belongs, worked out from the layout alone.
struct TokenPlace {
  int32_t sequence = -1;  // -1: padding
  int32_t slot = -1;      // -1: the tail
  int64_t position = 0;   // in its slot
  int32_t rank = 0;
  int64_t local = 0;          // row of the rank's buffer
  int64_t local_of_slot = 0;  // rows of its slot in the rank's buffer before it
};
std::vector<TokenPlace> token_places(const Plan& plan, Side side);

/// One wrong attention, computed the slow way: every pair, every head.
struct WrongAttention {
  /// How often a key counts for a query; empty: as asked.
  std::function<double(int64_t query, int64_t key)> times = {};
  /// The same in the gradients of keys and values alone; empty: `times`.
  std::function<double(int64_t query, int64_t key)> times_of_keys = {};
  std::function<double(int64_t query)> query_position = {};
  std::function<double(int64_t key)> key_position = {};
  double scale = 0.0;    // 0: as asked
  bool has_rope = true;  // if the scenario has
  bool has_cap = true;
  double sinks = 1.0;  // if the scenario has one
  bool interleaves_kv_heads = false;
  /// Merges the parts of the ranks' keys otherwise: mean, sum, base_e (by e to the power of their
  /// lse to base 2); empty: by their lse.
  std::string merge = {};
};

/// The answer that this attention gives, in the scenario's dtype; backward if it has one.
Answer compute_wrongly(const Plan& plan, const RunInputs& inputs, const WrongAttention& wrong);

/// One known mistake: the scenarios in which it can happen, and how it is made.
struct PlantedMistake {
  std::string name;                                       // of the test
  std::string cause;                                      // that must be named first
  std::string attention = {}, batch = {}, parallel = {};  // lines that its scenarios need
  std::function<Answer(const Plan&, const RunInputs&)> plant;
  bool poison = false;        // padding of the inputs is NaN
  std::string numerics = {};  // lines that its scenarios need
};
const std::vector<PlantedMistake>& planted_mistakes();
/// The fault of this name in the gallery.
const Fault& fault_called(const std::string& name);
/// What the walker gives where the fault is planted, in a place that the scenario's seed chooses
/// where it can be in several; the right answer if the plan has no place for it.
Answer run_planted(const Fault& fault, const Plan& plan, const RunInputs& inputs);
/// Those of bias, ALiBi and dropout; among planted_mistakes().
std::vector<PlantedMistake> planted_terms();
/// Those of the fault gallery in plans and inputs; among planted_mistakes().
std::vector<PlantedMistake> planted_faults();

/// A random scenario of this mistake, as TOML.
std::string random_scenario_of(const PlantedMistake& mistake, const std::string& dtype,
                               uint64_t seed);

}  // namespace cpscope::tests
