#pragma once

#include "sim/faults/detectors.h"
#include "sim/faults/fault.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cpscope {

/// Place of the first wrong result.
struct FoundPlace {
  FaultSite site;
  int64_t row_begin = -1, row_end = -1;  // rows of the buffer that differ; -1 if none do
  int64_t token = -1;                    // packed padded id of the first of them, if known
};

/// A fault in a scenario that cannot reveal it.
struct BlindOutcome {
  bool has_place = false;       // true if the fault could be planted
  int64_t cells_exercised = 0;  // results, bytes and messages that it changed: 0
  bool is_silent = true;        // no detector raised an alarm
};

/// Result of one fault.
struct FaultOutcome {
  const Fault* fault = nullptr;
  bool caught = false;     // the named detector raised an alarm
  bool localised = false;  // and the place found is where the fault was planted
  std::vector<Alarm> alarms;
  std::vector<Cause> causes;  // that the search for causes names, without a look at the fault
  std::optional<FaultSite> planted;
  std::string what;  // what was planted
  std::optional<FoundPlace> where;
  std::string plan_check;  // result of the plan's proof, which detectors do not see
  bool plan_is_refuted = false;
  int64_t cells_exercised = 0;
  std::optional<BlindOutcome> blind;
  std::vector<Alarm> false_alarms;  // of the clean twin
  std::string error;                // why the fault could not be tried; else empty

  /// The names of the causes, each once.
  std::vector<std::string> cause_names() const;
};

struct GalleryReport {
  std::vector<FaultOutcome> outcomes;  // in catalogue order
  int64_t false_alarms = 0;
  double seconds = 0.0;

  int64_t caught() const;
  int64_t localised() const;
  /// True if every fault is caught and localised, every blind scenario is silent, and there is no
  /// false alarm.
  bool passed() const;
};

/// Plants one fault in its scenario and runs all detectors on it and on the clean twin.
FaultOutcome try_fault(const Fault& fault, const Toolbox& toolbox);

/// Every fault, on all cores.
GalleryReport run_gallery(std::span<const Fault> faults, const Toolbox& toolbox,
                          const Progress& progress);

}  // namespace cpscope
