#include "gui/app/document/compare.h"

#include "gui/model/axis.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

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

using PrintFigure = std::function<std::string(double)>;

ComparedFigure make_figure(std::string name, const std::vector<double>& values, bool is_cost,
                           const PrintFigure& print) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  ComparedFigure figure{std::move(name), {}};
  for (const double value : values)
    figure.values.push_back({print(value),
                             figure.values.empty() ? "" : print_change(values.front(), value),
                             is_cost && *least < *most && value == *least});
  return figure;
}

}  // namespace

std::string describe_plan(const PlanIndex& index) {
  const Scenario& scenario = index.plan().scenario;
  return fmt::format("{}, {}, {}, {} ranks, {} tokens", to_name(scenario.parallel.comm_type),
                     to_name(scenario.parallel.layout), describe_mask(scenario.attention),
                     index.num_ranks(), print_count(index.tokens(Side::q)));
}

std::vector<ComparedFigure> compare_plans(std::span<const ComparedPlan> plans) {
  std::vector<Figures> all;
  std::vector<double> times;
  for (const ComparedPlan& plan : plans) {
    all.push_back(figures_of(*plan.plan));
    if (plan.predicted_ns > 0) times.push_back(static_cast<double>(plan.predicted_ns));
  }
  const PrintFigure count = [](double value) { return print_count(static_cast<int64_t>(value)); };
  const PrintFigure bytes = [](double value) { return print_bytes(value); };
  const PrintFigure factor = [](double value) { return fmt::format("{:.3f} x", value); };
  std::vector<ComparedFigure> figures;
  if (times.size() == plans.size())
    figures.push_back(make_figure("predicted time", times, true,
                                  [](double ns) { return "~" + print_duration(ns); }));
  const auto add = [&](std::string_view name, double Figures::*value, const PrintFigure& print,
                       bool is_cost = true) {
    std::vector<double> values;
    for (const Figures& plan : all) values.push_back(plan.*value);
    figures.push_back(make_figure(std::string(name), values, is_cost, print));
  };
  add("busiest rank / mean", &Figures::imbalance, factor);
  add("critical path / ideal", &Figures::critical_path, factor);
  add("K and V moved", &Figures::kv_moved, bytes);
  add("K and V necessary", &Figures::kv_necessary, bytes, false);
  add("all bytes sent", &Figures::sent, bytes);
  add("transfers", &Figures::transfers, count);
  add("steps", &Figures::steps, count);
  add("padding tokens", &Figures::padding, count);
  return figures;
}

}  // namespace cpscope::gui
