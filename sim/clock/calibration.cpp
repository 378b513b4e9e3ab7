#include "sim/clock/calibration.h"

#include "sim/clock/clock.h"
#include "sim/clock/tile_work.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr size_t kMostUnknowns = 5;
constexpr int kDigits = 4;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Rows of coefficients and the sums that they should have.
struct LinearSystem {
  size_t unknowns = 0;
  std::vector<std::array<double, kMostUnknowns>> rows;
  std::vector<double> targets;

  double residual(const std::vector<double>& x) const {
    double sum = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      double left = -targets[i];
      for (size_t j = 0; j < unknowns; ++j) left += rows[i][j] * x[j];
      sum += left * left;
    }
    return sum;
  }
};

/// Least squares with only the unknowns of `chosen` (bits), the others 0; nothing if the rows do
/// not determine them.
std::optional<std::vector<double>> solve_subset(const LinearSystem& system, uint32_t chosen) {
  std::vector<size_t> columns;
  for (size_t j = 0; j < system.unknowns; ++j) {
    if ((chosen >> j & 1U) != 0) columns.push_back(j);
  }
  // Normal equations with columns scaled to length 1.
  const size_t n = columns.size();
  std::vector<double> length(n, 0.0);
  for (size_t a = 0; a < n; ++a) {
    for (const auto& row : system.rows) length[a] += row[columns[a]] * row[columns[a]];
    length[a] = std::sqrt(length[a]);
    if (!(length[a] > 0)) return std::nullopt;
  }
  std::vector<std::vector<double>> matrix(n, std::vector<double>(n + 1, 0.0));
  for (size_t i = 0; i < system.rows.size(); ++i) {
    const auto& row = system.rows[i];
    for (size_t a = 0; a < n; ++a) {
      const double left = row[columns[a]] / length[a];
      for (size_t b = 0; b < n; ++b) matrix[a][b] += left * row[columns[b]] / length[b];
      matrix[a][n] += left * system.targets[i];
    }
  }
  for (size_t pivot = 0; pivot < n; ++pivot) {
    constexpr double kSingular = 1e-11;
    if (matrix[pivot][pivot] < kSingular) return std::nullopt;
    for (size_t a = 0; a < n; ++a) {
      if (a == pivot) continue;
      const double factor = matrix[a][pivot] / matrix[pivot][pivot];
      for (size_t b = pivot; b <= n; ++b) matrix[a][b] -= factor * matrix[pivot][b];
    }
  }
  std::vector<double> x(system.unknowns, 0.0);
  for (size_t a = 0; a < n; ++a) x[columns[a]] = matrix[a][n] / matrix[a][a] / length[a];
  return x;
}

/// Least squares with x >= 0: the optimum is the unconstrained solution for one subset of the
/// unknowns, so all subsets are tried.
std::vector<double> solve_not_negative(const LinearSystem& system) {
  std::vector<double> best(system.unknowns, 0.0);
  double least = system.residual(best);
  for (uint32_t chosen = 1; chosen < 1U << system.unknowns; ++chosen) {
    const auto x = solve_subset(system, chosen);
    if (!x || std::any_of(x->begin(), x->end(), [](double value) { return value < 0; })) continue;
    const double residual = system.residual(*x);
    if (residual < least) {
      least = residual;
      best = *x;
    }
  }
  return best;
}

Error refuse(std::string what, std::string hint) {
  return make_error(ErrorKind::bad_input, std::move(what), std::move(hint));
}

/// The first error in the times, if there is one.
template <class Sample>
std::optional<Error> find_nonsense(std::span<const Sample> samples, std::string_view noun,
                                   size_t fewest) {
  for (const Sample& sample : samples) {
    if (std::isfinite(sample.us) && sample.us > 0) continue;
    return refuse(fmt::format("{} {} has an invalid time: {} us", noun, sample.label, sample.us),
                  "times are above 0; does the executor have a clock?");
  }
  if (samples.size() < fewest)
    return refuse(fmt::format("too few samples of a {}: {}", noun, samples.size()),
                  fmt::format("{} or more are needed", fewest));
  return std::nullopt;
}

template <class Sample>
std::vector<double> times_of(std::span<const Sample> samples) {
  std::vector<double> times;
  for (const Sample& sample : samples) times.push_back(sample.us);
  return times;
}

double squared_error(std::span<const double> measured, const std::vector<double>& fitted) {
  double sum = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    const double error = fitted[i] / measured[i] - 1.0;
    sum += error * error;
  }
  return sum;
}

/// Parameters that are tried, not fitted: the tile shape of a kernel and the quality of its tile
/// scheduler.
struct TileGuess {
  int32_t tile_rows, tile_keys;
  double tail_share;
};

TileCost tile_cost(const TileGuess& guess, std::span<const double> c) {
  return {.tile_rows = guess.tile_rows,
          .tile_keys = guess.tile_keys,
          .launch_us = c[0],
          .owned_us = c[1],
          .whole_us = c[2],
          .masked_us = c[3],
          .tail_share = guess.tail_share};
}

double compute_us(const ComputeSample& sample, const TileCost& cost, int32_t multiprocessors) {
  TileCounter counter(cost);
  return cost.launch_us + spread_us(counter.count(sample.slices, sample.q_rows, sample.heads),
                                    multiprocessors, cost.tail_share);
}

/// The fit for one tile shape; nothing if the samples have only one kind of tile.
std::optional<Fit<TileCost>> fit_shape(std::span<const ComputeSample> samples,
                                       int32_t multiprocessors, const TileGuess& guess) {
  const TileCost one = tile_cost(guess, std::array{0.0, 1.0, 1.0, 1.0});
  int64_t whole = 0, masked = 0;
  double scale = kInfinity;
  for (const ComputeSample& sample : samples) {
    TileCounter counter(one);
    const TileWork work = counter.count(sample.slices, sample.q_rows, sample.heads);
    whole += work.whole;
    masked += work.masked;
    if (work.owned > 0) scale = std::min(scale, sample.us / spread_us(work, multiprocessors, 0.0));
  }
  if (whole == 0 || masked == 0) return std::nullopt;
  // Samples with equal numbers of tiles do not separate launch time from tile time; one more sample
  // with a small weight prefers short launches.
  constexpr double kSlight = 0.01;
  std::vector<double> measured = times_of(samples);
  const double shortest = *std::min_element(measured.begin(), measured.end());
  measured.push_back(1.0);
  const auto model = [&](size_t i, std::span<const double> c) {
    if (i == samples.size()) return 1.0 + kSlight * c[0] / shortest;
    return compute_us(samples[i], tile_cost(guess, c), multiprocessors);
  };
  std::vector<double> constants = fit_constants(measured, {scale, scale, scale, scale}, model);
  for (double& constant : constants) constant = round_digits(constant, kDigits);
  if (!(constants[2] > 0)) return std::nullopt;
  Fit<TileCost> fit{tile_cost(guess, constants), {}};
  for (const ComputeSample& sample : samples)
    fit.table.rows.push_back(
        {sample.label, sample.us, compute_us(sample, fit.constants, multiprocessors)});
  return fit;
}

}  // namespace

double FitTable::mean_error() const {
  double sum = 0;
  for (const FitRow& row : rows) sum += std::abs(row.error());
  return rows.empty() ? 0.0 : sum / static_cast<double>(rows.size());
}

double FitTable::largest_error() const {
  double largest = 0;
  for (const FitRow& row : rows) largest = std::max(largest, std::abs(row.error()));
  return largest;
}

double round_digits(double value, int digits) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  const int exponent = digits - 1 - static_cast<int>(std::floor(std::log10(std::abs(value))));
  // Powers of ten from 1 on are exact, so that the result prints with few digits.
  const double power = std::pow(10.0, std::abs(exponent));
  return exponent >= 0 ? std::round(value * power) / power : std::round(value / power) * power;
}

std::vector<double> fit_constants(
    std::span<const double> measured, std::vector<double> start,
    const std::function<double(size_t, std::span<const double>)>& model) {
  constexpr int kRounds = 40;
  constexpr double kStep = 1e-3, kEnough = 1e-12;
  CPSCOPE_CHECK(start.size() <= kMostUnknowns, "too many unknowns for the solver", start.size(),
                kMostUnknowns);
  const auto evaluate = [&](const std::vector<double>& c) {
    std::vector<double> fitted;
    for (size_t i = 0; i < measured.size(); ++i) fitted.push_back(model(i, c));
    return fitted;
  };
  std::vector<double> now = std::move(start);
  std::vector<double> fitted = evaluate(now);
  double least = squared_error(measured, fitted);
  for (int round = 0; round < kRounds; ++round) {
    // The model linearised in each unknown at the present point.
    LinearSystem system{now.size(), {}, {}};
    system.rows.resize(measured.size());
    for (size_t i = 0; i < measured.size(); ++i)
      system.targets.push_back(1.0 - fitted[i] / measured[i]);
    const double largest = *std::max_element(now.begin(), now.end());
    for (size_t j = 0; j < now.size(); ++j) {
      std::vector<double> moved = now;
      const double step = kStep * std::max({now[j], 1e-3 * largest, 1e-6});
      moved[j] += step;
      for (size_t i = 0; i < measured.size(); ++i) {
        const double slope = (model(i, moved) - fitted[i]) / step / measured[i];
        system.rows[i][j] = slope;
        system.targets[i] += slope * now[j];
      }
    }
    const std::vector<double> aim = solve_not_negative(system);
    // If the model is not linear in between, a shorter step helps.
    bool is_better = false;
    double gain = 0;
    for (double share = 1.0; share > 0.01 && !is_better; share /= 2) {
      std::vector<double> next = now;
      for (size_t j = 0; j < now.size(); ++j) next[j] += share * (aim[j] - now[j]);
      std::vector<double> next_fitted = evaluate(next);
      const double error = squared_error(measured, next_fitted);
      if (!(error < least)) continue;
      is_better = true;
      gain = least - error;
      least = error;
      now = std::move(next);
      fitted = std::move(next_fitted);
    }
    if (!is_better || gain < kEnough) break;
  }
  return now;
}

Result<Fit<TileCost>> fit_tiles(std::span<const ComputeSample> samples, int32_t multiprocessors) {
  constexpr size_t kFewest = 6;
  if (const auto error = find_nonsense(samples, "compute", kFewest)) return *error;
  std::optional<Fit<TileCost>> best;
  double least = kInfinity;
  for (const int32_t tile_rows : {128, 64, 192}) {
    for (const int32_t tile_keys : {128, 64}) {
      for (const double tail_share : {0.0, 0.5, 1.0}) {
        const auto fit = fit_shape(samples, multiprocessors, {tile_rows, tile_keys, tail_share});
        if (!fit) continue;
        std::vector<double> fitted;
        for (const FitRow& row : fit->table.rows) fitted.push_back(row.fitted_us);
        const double error = squared_error(times_of(samples), fitted);
        if (error >= least) continue;
        least = error;
        best = fit;
      }
    }
  }
  if (!best)
    return refuse(fmt::format("the samples do not tell whole tiles from masked ones, from {} on",
                              samples.front().label),
                  "measure long sequences with a mask and without one");
  return *std::move(best);
}

Result<Fit<RowCost>> fit_rows(std::span<const RowSample> samples) {
  if (const auto error = find_nonsense(samples, "row kernel", 2)) return *error;
  std::set<double> sizes;
  for (const RowSample& sample : samples) sizes.insert(sample.bytes);
  if (sizes.size() < 2)
    return refuse(fmt::format("all row kernels moved as many bytes: {}", samples.front().bytes),
                  "measure two sizes or more");
  // Microseconds per launch and per megabyte.
  constexpr double kMegabyte = 1e6;
  const std::vector<double> constants =
      fit_constants(times_of(samples), {1.0, 1.0}, [&](size_t i, std::span<const double> c) {
        return c[0] + c[1] * samples[i].bytes / kMegabyte;
      });
  if (!(constants[1] > 0)) {
    const auto by_bytes = [](const RowSample& a, const RowSample& b) { return a.bytes < b.bytes; };
    const auto [least, most] = std::minmax_element(samples.begin(), samples.end(), by_bytes);
    return refuse(
        fmt::format(
            "row kernels take no longer for more bytes, so they have no rate: {:.1f} us for "
            "{:.0f} bytes, {:.1f} us for {:.0f}",
            least->us, least->bytes, most->us, most->bytes),
        "measure larger ones");
  }
  Fit<RowCost> fit;
  fit.constants.launch_us = round_digits(constants[0], kDigits);
  fit.constants.copy_gb_s = round_digits(kMegabyte / constants[1] * 1e-3, kDigits);
  for (const RowSample& sample : samples)
    fit.table.rows.push_back(
        {sample.label, sample.us,
         fit.constants.launch_us + sample.bytes / fit.constants.copy_gb_s * 1e-3});
  return fit;
}

Result<Fit<LinkCurve>> fit_curve(std::span<const WireSample> samples,
                                 const std::optional<RowCost>& packing) {
  if (const auto error = find_nonsense(samples, "transfer", 2)) return *error;
  const auto packing_us = [&](const WireSample& sample) {
    if (!packing) return 0.0;
    return static_cast<double>(sample.messages) * packing->launch_us +
           2 * sample.bytes / packing->copy_gb_s * 1e-3;
  };
  // Use the fastest sample of each size: the others waited for a late peer.
  std::map<double, const WireSample*> fastest;
  for (const WireSample& sample : samples) {
    const auto [found, is_new] = fastest.try_emplace(sample.bytes, &sample);
    if (!is_new && sample.us < found->second->us) found->second = &sample;
  }
  if (fastest.size() < 2)
    return refuse(fmt::format("all transfers had as many bytes: {}", samples.front().bytes),
                  "measure two sizes or more");
  Fit<LinkCurve> fit;
  // Noise only adds time, so the time of a larger message is an upper bound for a smaller one. For
  // a small message the packing time may exceed the whole time; hence the lower bound.
  constexpr double kLeastShare = 0.05;
  double most = kInfinity;
  for (auto at = fastest.rbegin(); at != fastest.rend(); ++at) {
    const WireSample& sample = *at->second;
    most = std::min(most, std::max(kLeastShare * sample.us, sample.us - packing_us(sample)));
    fit.constants.points.push_back({at->first, round_digits(most, kDigits)});
  }
  std::reverse(fit.constants.points.begin(), fit.constants.points.end());
  for (const auto& [bytes, sample] : fastest)
    fit.table.rows.push_back(
        {sample->label, sample->us, packing_us(*sample) + fit.constants.time_us(bytes)});
  return fit;
}

Result<Fit<int32_t>> fit_transfer_multiprocessors(std::span<const SharedSample> samples,
                                                  int32_t multiprocessors) {
  if (const auto error = find_nonsense(samples, "compute during a transfer", 1)) return *error;
  const auto model = [&](size_t i, double taken) {
    return samples[i].alone_us + samples[i].shared_us * taken / multiprocessors;
  };
  const std::vector<double> taken =
      fit_constants(times_of(samples), {1.0},
                    [&](size_t i, std::span<const double> c) { return model(i, c[0]); });
  Fit<int32_t> fit;
  fit.constants = std::clamp(static_cast<int32_t>(std::lround(taken[0])), 0, multiprocessors - 1);
  for (size_t i = 0; i < samples.size(); ++i)
    fit.table.rows.push_back({samples[i].label, samples[i].us, model(i, fit.constants)});
  return fit;
}

Result<Fit<HostCost>> fit_host(std::span<const PassSample> samples, const Cluster& cluster,
                               const Stack& stack) {
  if (const auto error = find_nonsense(samples, "pass", 2)) return *error;
  Cluster changed = cluster;
  changed.stacks = {stack};
  Stack& trial = changed.stacks.front();
  bool has_messages = false;
  std::optional<Error> obstacle;
  const auto model = [&](size_t i, std::span<const double> c) {
    trial.item_us = c[0];
    trial.pass_us = c[1];
    if (c.size() > 2) trial.message_us = c[2];
    const Result<Timeline> timeline =
        predict(*samples[i].plan, changed, {.stack = {}, .keeps_events = false});
    if (!timeline) {
      obstacle = timeline.error();
      return samples[i].us;
    }
    return timeline.value().pass(samples[i].direction).total_us;
  };
  for (const PassSample& sample : samples)
    has_messages = has_messages || !sample.plan->forward.transfers.empty();
  std::vector<double> start{1.0, 1.0};
  if (has_messages) start.push_back(1.0);
  std::vector<double> constants = fit_constants(times_of(samples), start, model);
  for (double& constant : constants) constant = round_digits(constant, kDigits);
  Fit<HostCost> fit;
  fit.constants = {.item_us = constants[0],
                   .message_us = has_messages ? constants[2] : stack.message_us,
                   .pass_us = constants[1]};
  for (size_t i = 0; i < samples.size(); ++i)
    fit.table.rows.push_back({samples[i].label, samples[i].us, model(i, constants)});
  if (obstacle) return *obstacle;
  return fit;
}

}  // namespace cpscope
