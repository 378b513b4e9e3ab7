#include "gui/app/document/compare.h"

#include "gui/model/axis.h"

#include <cmath>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

struct Figures {
  double kv_moved = 0, kv_necessary = 0, sent = 0, imbalance = 0, critical_path = 0, steps = 0,
         transfers = 0, padding = 0;
};

double sum(const std::vector<int64_t>& values) {
  return static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0}));
}

Figures figures_of(const PlanIndex& index) {
  const PlanSummary& summary = index.summary();
  const Plan& plan = index.plan();
  Figures f;
  f.kv_moved = static_cast<double>(summary.kv_bytes_moved);
  f.kv_necessary = static_cast<double>(summary.kv_bytes_necessary);
  f.sent = sum(summary.forward_bytes) + sum(summary.backward_bytes);
  f.imbalance = summary.rank_max_over_mean;
  f.critical_path = summary.critical_path_over_ideal;
  f.steps = static_cast<double>(index.steps().size());
  f.transfers = static_cast<double>(plan.forward.transfers.size() + plan.backward.transfers.size());
  int64_t valid = 0;
  for (const SequenceSlot& slot : plan.layout.slots.sequences) valid += slot.q_valid;
  f.padding = static_cast<double>(plan.layout.slots.tokens - valid);
  return f;
}

std::string print_change(double first, double second) {
  if (first == second) return "=";
  if (first == 0) return "new";
  const double percent = 100 * (second - first) / first;
  return std::abs(percent) < 0.1
             ? (percent < 0 ? "-0.1 %" : "+0.1 %")
             : fmt::format("{:+.{}f} %", percent, std::abs(percent) < 10 ? 1 : 0);
}

template <class Print>
ComparedFigure figure(std::string_view name, double first, double second, Print print) {
  const int32_t better = first == second ? 0 : first < second ? -1 : 1;
  return {std::string(name), print(first), print(second), print_change(first, second), better};
}

/// A figure that is no cost: less of it is not better.
template <class Print>
ComparedFigure fact(std::string_view name, double first, double second, Print print) {
  ComparedFigure made = figure(name, first, second, print);
  made.better = 0;
  return made;
}

}  // namespace

std::string describe_plan(const PlanIndex& index) {
  const Scenario& scenario = index.plan().scenario;
  return fmt::format("{}, {}, {}, {} ranks, {} tokens", to_name(scenario.parallel.comm_type),
                     to_name(scenario.parallel.layout), describe_mask(scenario.attention),
                     index.num_ranks(), print_count(index.tokens(Side::q)));
}

std::vector<ComparedFigure> compare_plans(const PlanIndex& first, const PlanIndex& second) {
  const Figures a = figures_of(first), b = figures_of(second);
  const auto count = [](double value) { return print_count(static_cast<int64_t>(value)); };
  const auto bytes = [](double value) { return print_bytes(value); };
  const auto times = [](double value) { return fmt::format("{:.3f} x", value); };
  return {
      figure("busiest rank over mean", a.imbalance, b.imbalance, times),
      figure("critical path over ideal", a.critical_path, b.critical_path, times),
      figure("K and V moved, forward", a.kv_moved, b.kv_moved, bytes),
      fact("K and V necessary", a.kv_necessary, b.kv_necessary, bytes),
      figure("all bytes sent", a.sent, b.sent, bytes),
      figure("transfers", a.transfers, b.transfers, count),
      figure("steps", a.steps, b.steps, count),
      figure("padding tokens", a.padding, b.padding, count),
  };
}

}  // namespace cpscope::gui
