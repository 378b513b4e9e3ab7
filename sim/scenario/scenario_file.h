#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

class CheckedPlan;

/// A scenario as loaded, with its source text and warnings for the user (one sentence each, for
/// stderr).
struct LoadedScenario {
  Scenario scenario;
  std::string text;  // the TOML source, byte for byte
  std::string path;  // as given by the caller
  std::vector<std::string>
      warnings;  // e.g. "a2a_size does not apply to cp_comm_type p2p and is unused"
  std::shared_ptr<const CheckedPlan> plan = nullptr;  // of a plan document: proved
};

/// Where the text of a scenario comes from.
enum class ScenarioOrigin : uint8_t {
  file,
  plan_document  // cp_comm_type may be custom; what a generator or a file has made stands beside
                 // its name (lengths, slices) or elsewhere in the document, and no file is read
};

/// Parses and validates TOML text. `path` names the file in errors and anchors relative file names.
/// Errors: every wrong key or value is one complaint "path:line:column: what: value; hint" of kind
/// bad_input; a well-formed request for something that cpscope does not do (FP8, bias, ALiBi,
/// dropout) is of kind refused. Never allocates more than a small multiple of the text
/// plus the sequences that the limits allow.
Result<LoadedScenario> parse_scenario(std::string_view text, const std::string& path,
                                      ScenarioOrigin origin = ScenarioOrigin::file);

/// Reads the file and parses it. A file over 64 MiB is refused before it is read.
Result<LoadedScenario> load_scenario(const std::string& path);

/// TOML text that parses back to an equal Scenario (generator kept; defaults left out). Seeds must
/// be below 2^63 (TOML's integers) and an imported order is printed as the name of its file.
std::string print_scenario(const Scenario& scenario);

}  // namespace cpscope
