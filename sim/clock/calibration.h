#pragma once

#include "sim/base/result.h"
#include "sim/clock/cluster.h"
#include "sim/plan/direction.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cpscope {

/// From measured times to the constants of a cluster file: non-negative least squares on relative
/// errors. This file measures nothing; times come from an executor, from the clock model itself or
/// from a published table.

/// One sample with its fitted time, in microseconds.
struct FitRow {
  std::string label;
  double measured_us = 0, fitted_us = 0;

  double error() const { return fitted_us / measured_us - 1.0; }
};

struct FitTable {
  std::vector<FitRow> rows;

  double mean_error() const;     // of the absolute values
  double largest_error() const;  // of the absolute values
};

template <class Constants>
struct Fit {
  Constants constants;
  FitTable table;
};

/// A compute item that ran alone.
struct ComputeSample {
  std::string label;
  std::vector<BandSlice> slices;
  int64_t q_rows = 0;
  int64_t heads = 0;
  double us = 0;
};

/// Tile costs of one kernel in one direction, with 4 significant digits, for the tile shape among
/// {64, 128, 192} x {64, 128} that explains the samples best. Errors (bad_input, by label): an
/// invalid time, fewer than 6 samples, samples without whole tiles or without masked tiles.
Result<Fit<TileCost>> fit_tiles(std::span<const ComputeSample> samples, int32_t multiprocessors);

/// A kernel that moved or merged rows and ran alone.
struct RowSample {
  std::string label;
  double bytes = 0;  // read plus written
  double us = 0;
};

struct RowCost {
  double launch_us = 0, copy_gb_s = 0;
};

/// Errors (bad_input): an invalid time, fewer than 2 sizes, times that do not grow with bytes.
Result<Fit<RowCost>> fit_rows(std::span<const RowSample> samples);

/// Messages of one rank in one stage, from the beginning of the first (packing, if it packs) to the
/// end of the last.
struct WireSample {
  std::string label;
  double bytes = 0;
  int64_t messages = 0;
  double us = 0;
};

/// One point per size: the fastest sample of that size, without its packing if `packing` gives the
/// cost of it. Errors (bad_input): an invalid time, fewer than 2 sizes.
Result<Fit<LinkCurve>> fit_curve(std::span<const WireSample> samples,
                                 const std::optional<RowCost>& packing);

/// A compute at the same time as transfers of its rank, and its time alone.
struct SharedSample {
  std::string label;
  double us = 0, alone_us = 0;
  double shared_us = 0;  // part of `us` during a transfer
};

/// Number of multiprocessors that transfers occupy. Errors (bad_input): an invalid time, no sample.
Result<Fit<int32_t>> fit_transfer_multiprocessors(std::span<const SharedSample> samples,
                                                  int32_t multiprocessors);

/// A whole pass of a scenario so small that host time limits it.
struct PassSample {
  std::string label;
  const Plan* plan = nullptr;
  Direction direction = Direction::forward;
  double us = 0;
};

struct HostCost {
  double item_us = 0, message_us = 0, pass_us = 0;
};

/// Host times of `stack`; all other constants are those of the stack and the cluster. Without
/// messages in the samples message_us does not change. Errors (bad_input): an invalid time, fewer
/// than 2 samples; errors of predict.
Result<Fit<HostCost>> fit_host(std::span<const PassSample> samples, const Cluster& cluster,
                               const Stack& stack);

/// The constants c >= 0 with the least sum of squared relative errors of model(sample, c), starting
/// from `start`. Exact if the model is linear; at most 5 unknowns.
std::vector<double> fit_constants(
    std::span<const double> measured, std::vector<double> start,
    const std::function<double(size_t sample, std::span<const double> constants)>& model);

/// The number rounded to this many significant digits.
double round_digits(double value, int digits);

}  // namespace cpscope
