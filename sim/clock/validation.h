#pragma once

#include "sim/base/result.h"
#include "sim/base/run_control.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// A published measurement and the prediction for the same case.
struct ValidationRow {
  std::string name;  // "causal forward, 8 ranks"
  std::string pass;  // forward | backward | both
  std::string cluster, stack;
  bool is_fitted = false;              // constants of the stack were fitted to this row
  double measured = 0, predicted = 0;  // in the group's unit
  std::string failure;                 // why nothing could be predicted

  double error_percent() const { return 100.0 * (predicted / measured - 1.0); }
};

/// Rows of one source.
struct ValidationGroup {
  std::string title, source;
  // tflops (per GPU, of visible pairs), ms, scaling (percent of the rate of {ranks} = 1), or
  // step_us (compute time of the busiest rank in {step})
  std::string unit;
  std::vector<ValidationRow> rows;

  /// Mean of |error| over rows that nothing was fitted to; 0 if there are no such rows.
  double mean_error_percent() const;
  int64_t num_counted() const;
};

struct Validation {
  std::vector<ValidationGroup> groups;
};

/// Reads a file of measurements (scenarios/clusters/measured/*.toml), plans and predicts each. Its
/// key `note` is a comment for people and is ignored.
///
///   [[groups]]
///   title = "..."
///   source = "..."
///   unit = "tflops"
///   scenario = """..."""                 a scenario file with {names} in braces
///   [[groups.rows]]
///   name = "ring"
///   cluster = "h200x8"
///   stack = "cpscope"                    default: the cluster's first
///   pass = "forward"                     forward | backward | both
///   values = { comm = "p2p", ranks = 8 } values of the names
///   over = { tokens = [16384, 32768] }   lists of equal length: one row per place
///   measured = [392, 558]
///   fitted = [true, false]               default false
///   samples = 4                          default 1: {seed} is 1 to 4, the mean of the results
///   counts
///
/// `cluster_folder` is where clusters are looked up. Errors: bad_input with all complaints,
/// cancelled. A row that cannot be predicted (a refused scenario) is listed with its failure.
Result<Validation> validate(std::string_view text, const std::string& path,
                            const std::string& cluster_folder, const RunControl& control = {});

}  // namespace cpscope
