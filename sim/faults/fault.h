#pragma once

#include "sim/faults/planted.h"

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cpscope {

/// Detectors of faults in a run. None of them looks at the plan that was really run.
enum class Detector {
  count,           // q = 0: exp(lse) is the number of visible keys
  keys,            // v codes keys: which ones were seen
  position,        // rotary embedding: a query finds the key of one position
  head,            // which query and kv head a row was computed with
  gradient_probe,  // dq, dk, dv of coded inputs are known numbers
  output,          // out, lse and max_logit against the oracle
  gradient,        // dq, dk, dv and d_sink against the oracle
  bytes,           // bytes on the wires against the proved schedule's
  balance,         // work of the busiest rank of every step against the proved schedule's
  liveness         // every message that a rank posts is matched
};
std::string_view to_name(Detector value);

/// The part that is made wrong.
enum class FaultPlace { plan, executor, inputs };
std::string_view to_name(FaultPlace value);

/// A scenario in which a fault has no visible effect.
struct BlindScenario {
  std::string text;  // TOML
  std::string why;   // one sentence
};

/// Takes one fault after another, until it returns false.
using TakePlanted = std::function<bool(PlantedFault)>;

/// One known way in which context-parallel attention goes wrong.
struct Fault {
  std::string name;
  std::string field_class;  // number in the field's catalogue, D<n>: TransformerEngine's defects,
                            // M<n>: schedules of papers, or F<n>: attention in FP8
  FaultPlace place{};
  Detector detector{};
  std::string source;    // repo#number, or the paper
  std::string wild;      // symptom in the public report
  std::string scenario;  // TOML that reveals it
  std::optional<BlindScenario> blind = std::nullopt;
  bool poison = false;  // visible only if fresh memory is NaN
  /// Plants the fault in a proved plan; nothing if the plan has no place for it.
  std::optional<PlantedFault> (*plant)(const Plan& healthy) = nullptr;
  /// The cause that a run with the fault explains, where nothing simpler does; empty: it is none of
  /// a plan or of inputs, or rows show it without a run.
  std::string cause = {};
  std::string layout = {};  // cause other_layout only: which one
  /// Plants the fault in each place of a proved plan, if it can be in several.
  void (*plant_in_all_places)(const Plan& healthy, const TakePlanted& take) = nullptr;
};

/// A class of the catalogue that is not a fault of attention itself.
struct OutOfScope {
  std::string field_class;
  std::string what;
  std::string why;
};

/// Every fault of the gallery, in a fixed order; names are unique.
std::span<const Fault> fault_catalogue();
std::span<const OutOfScope> out_of_scope();

}  // namespace cpscope
