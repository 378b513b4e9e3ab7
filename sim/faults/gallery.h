#pragma once

#include "sim/faults/detectors.h"
#include "sim/faults/fault.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cpscope {

/// Where the first wrong thing was found.
struct FoundPlace {
  FaultSite site;
  int64_t row_begin = -1, row_end = -1;  // rows of the buffer that part; -1 where no row does
  int64_t token = -1;                    // packed padded id of the first of them, if they name one
};

/// A fault in a scenario that cannot reveal it.
struct BlindOutcome {
  bool has_place = false;       // could the fault be planted at all?
  int64_t cells_exercised = 0;  // results, bytes and messages that it changed: 0
  bool is_silent = true;        // no detector went off
};

/// What became of one fault.
struct FaultOutcome {
  const Fault* fault = nullptr;
  bool caught = false;     // the named detector went off
  bool localised = false;  // and the place found is where the fault was planted
  std::vector<Alarm> alarms;
  std::optional<FaultSite> planted;
  std::string what;  // what was planted
  std::optional<FoundPlace> where;
  std::string plan_check;  // verdict of the plan's proof, which the detectors are not told
  bool plan_is_refuted = false;
  int64_t cells_exercised = 0;
  std::optional<BlindOutcome> blind;
  std::vector<Alarm> false_alarms;  // of the clean twin
  std::string error;                // why the fault could not be tried; empty when it was
};

struct GalleryReport {
  std::vector<FaultOutcome> outcomes;  // in catalogue order
  int64_t false_alarms = 0;
  double seconds = 0.0;

  int64_t caught() const;
  int64_t localised() const;
  /// Every fault caught and localised, nothing blind that was not, no false alarm.
  bool passed() const;
};

/// Plants one fault in its scenario, shows the run to all detectors, and the clean twin's too.
FaultOutcome try_fault(const Fault& fault, const Toolbox& toolbox);

/// Every fault, on all cores.
GalleryReport run_gallery(std::span<const Fault> faults, const Toolbox& toolbox,
                          const Progress& progress);

}  // namespace cpscope
