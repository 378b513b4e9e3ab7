#pragma once

#include "sim/clock/calibration.h"
#include "sim/run/executor.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope {

struct CalibrationRequest {
  Executor* kernels = nullptr;    // carries out computes and moves rows, one GPU at a time
  Executor* group = nullptr;      // of several GPUs; none: wires are taken from `base`
  std::optional<Cluster> base;    // what cannot be measured here; its other stacks stay
  std::string name;               // of the cluster
  std::string date;               // "2026-11-21", for the sources
  std::string command;            // likewise
  int32_t repeats = 5;            // of every scenario; the last one counts
  int64_t max_tokens = 16384;     // the longest sequences have twice that; messages 8 KiB for each
  std::vector<std::string> only;  // kernels by name (name_of); all else is that of `base`
  Progress progress = {};
};

/// One fit and the constants that it gave.
struct NamedFit {
  std::string name;  // "kernels 128 forward"
  std::vector<std::pair<std::string, double>> constants;
  FitTable table;
};

struct Calibration {
  Cluster cluster;
  std::vector<NamedFit> fits;
  std::vector<std::string> from_base;  // what was taken from there
  std::vector<std::string> left_out;   // kernels that the executor does not have, and why
};

/// Measures a machine with nothing but executors that have a clock, and fits what a cluster file
/// holds. Errors: bad_input (what neither the machine nor a base knows; measured nonsense),
/// unavailable (no such device), and what executors say.
Result<Calibration> calibrate(const CalibrationRequest& request);

}  // namespace cpscope
