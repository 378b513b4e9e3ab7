#include "sim/documents/forecast_ways_text.h"

#include "sim/documents/json_text.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>

namespace cpscope {
namespace {

std::string title_of(const WaysForecast& forecast) {
  const Generator& generator = *forecast.scenario.batch.generator;
  return fmt::format(
      "{} windows of {} tokens on {}, stack {}: {} ranks, a rank holds at most {} tokens{}; "
      "attention of one layer, forward{}, predicted, not measured",
      forecast.windows, generator.tokens, forecast.cluster, forecast.stack,
      forecast.scenario.parallel.cp_size, forecast.max_tokens_per_rank,
      forecast.is_usual_limit ? " (twice its share: max_tokens_per_rank is not given)" : "",
      forecast.scenario.numerics.backward ? " and backward" : "");
}

std::string describe_lengths(const Generator& generator) {
  return fmt::format("generator {}, documents of at most {} tokens", generator.name,
                     std::min(generator.max, generator.tokens));
}

Json way_json(const WayForecast& way, bool is_best) {
  const Parallel& parallel = way.parallel;
  Json json = {{"name", way.name},
               {"cp_comm_type", to_name(parallel.comm_type)},
               {"layout", to_name(parallel.layout)},
               {"cp_sizes", to_name(parallel.group_rule)},
               {"is_own", way.is_own},
               {"is_best", is_best},
               {"status", way.refusal.empty() ? "predicted" : "refused"}};
  if (parallel.group_rule == GroupRule::fixed) json["group_size"] = parallel.cp_sizes.front();
  if (!way.refusal.empty()) {
    json["reason"] = way.refusal;
    return json;
  }
  const Distribution& d = way.total_us;
  json["total_us"] = {{"mean", d.mean},  {"deviation", d.deviation}, {"min", d.least},
                      {"q50", d.median}, {"q90", d.percent_90},      {"q99", d.percent_99},
                      {"max", d.most}};
  json["mean_us"] = {{"compute", way.mean.compute_us},
                     {"local", way.mean.local_us},
                     {"exposed", way.mean.exposed_us},
                     {"idle", way.mean.idle_us},
                     {"groups_of_idle", way.mean.groups_us}};
  if (has_rounds(parallel)) json["group_loss"] = way.group_loss;
  json["rank_max_over_mean"] = way.rank_max_over_mean;
  json["slowest_us"] = way.replicas.slowest_us;
  json["efficiency"] = way.replicas.efficiency;
  json["windows_that_do_not_fit"] = way.windows_too_large;
  return json;
}

const WayForecast* find_way(const DistributionForecast& list, const std::string& name) {
  const auto found = std::find_if(list.ways.begin(), list.ways.end(),
                                  [&](const WayForecast& way) { return way.name == name; });
  return found == list.ways.end() ? nullptr : &*found;
}

std::string cell_of(const WayForecast& way, bool is_best) {
  if (!way.refusal.empty()) return "refused";
  std::string cell = fmt::format("{:.3f}", way.total_us.mean * 1e-3);
  if (is_best) cell = "**" + cell + "**";
  if (has_rounds(way.parallel)) cell += fmt::format(" ({:.0f} %)", 100 * way.group_loss);
  return way.windows_too_large > 0 ? cell + " does not fit" : cell;
}

}  // namespace

void write_ways_text(const WaysForecast& forecast, std::ostream& out) {
  out << title_of(forecast) << '\n';
  for (const DistributionForecast& list : forecast.lists) {
    size_t width = 10;
    for (const WayForecast& way : list.ways)
      if (way.refusal.empty()) width = std::max(width, way.name.size());
    out << describe_lengths(list.generator) << '\n';
    out << fmt::format("  {:<{}} {:>9} {:>9} {:>9} {:>13} {:>11} {:>10} {:>12} {:>13}\n", "way",
                       width, "mean ms", "50 % ms", "90 % ms", "slowest group", "attention",
                       "exposed", fmt::format("of {} ms", forecast.replicas), "busiest rank");
    for (size_t i = 0; i < list.ways.size(); ++i) {
      const WayForecast& way = list.ways[i];
      if (!way.refusal.empty()) continue;
      out << fmt::format(
          "  {:<{}} {:>9.3f} {:>9.3f} {:>9.3f} {:>13} {:>11.3f} {:>10.3f} {:>12.3f} "
          "{:>13.3f}{}{}{}\n",
          way.name, width, way.total_us.mean * 1e-3, way.total_us.median * 1e-3,
          way.total_us.percent_90 * 1e-3,
          has_rounds(way.parallel) ? fmt::format("{:.1f} %", 100 * way.group_loss) : "-",
          way.mean.compute_us * 1e-3, way.mean.exposed_us * 1e-3, way.replicas.slowest_us * 1e-3,
          way.rank_max_over_mean, static_cast<int64_t>(i) == list.best ? "  <- best" : "",
          way.is_own ? "  (the scenario's own)" : "",
          way.windows_too_large > 0 ? fmt::format("  {} windows do not fit", way.windows_too_large)
                                    : "");
    }
    for (const WayForecast& way : list.ways)
      if (!way.refusal.empty()) out << fmt::format("  refused: {}: {}\n", way.name, way.refusal);
    out << explain_choice(list) << '\n';
  }
  out << fmt::format(
      "slowest group: the part of the time in which a rank's group has ended its round and waits; "
      "of {} ms: a step of so many replicas, the slowest\n",
      forecast.replicas);
}

std::string ways_json(const WaysForecast& forecast) {
  Json json = {{"schema", 1},
               {"cluster", forecast.cluster},
               {"stack", forecast.stack},
               {"cp_size", forecast.scenario.parallel.cp_size},
               {"tokens", forecast.scenario.batch.generator->tokens},
               {"windows", forecast.windows},
               {"replicas", forecast.replicas},
               {"microbatches", forecast.microbatches},
               {"max_tokens_per_rank", forecast.max_tokens_per_rank},
               {"max_tokens_per_rank_is_given", !forecast.is_usual_limit}};
  Json& lists = json["distributions"] = Json::array();
  for (const DistributionForecast& list : forecast.lists) {
    Json ways = Json::array();
    for (size_t i = 0; i < list.ways.size(); ++i)
      ways.push_back(way_json(list.ways[i], static_cast<int64_t>(i) == list.best));
    lists.push_back({{"generator", list.generator.name},
                     {"seed", list.generator.seed},
                     {"best", list.best < 0 ? Json(nullptr) : Json(list.best)},
                     {"ways", std::move(ways)},
                     {"explanation", explain_choice(list)}});
  }
  return print_json(json);
}

std::string ways_markdown(const WaysForecast& forecast) {
  std::string text = title_of(forecast) + "\n\n| way |";
  std::string rule = "| --- |";
  for (const DistributionForecast& list : forecast.lists) {
    text += " " + list.generator.name + " |";
    rule += " --- |";
  }
  text += "\n" + rule + "\n";
  // The order of the first distribution.
  for (const WayForecast& row : forecast.lists.front().ways) {
    text += "| " + row.name + " |";
    for (const DistributionForecast& list : forecast.lists) {
      const WayForecast* const way = find_way(list, row.name);
      const bool is_best = list.best >= 0 && way == &list.ways[static_cast<size_t>(list.best)];
      text += " " + cell_of(*way, is_best) + " |";
    }
    text += "\n";
  }
  text +=
      "\nMean time of a window in ms; in brackets the part of it in which groups of ranks wait for "
      "the slowest one.\n\n";
  for (const DistributionForecast& list : forecast.lists)
    text += fmt::format("- {}: {}\n", list.generator.name, explain_choice(list));
  return text;
}

}  // namespace cpscope
