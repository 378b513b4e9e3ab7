#include "sim/app/cli/commands.h"
#include "sim/app/cli/way_file.h"
#include "sim/base/whole_file.h"
#include "sim/clock/crossover.h"
#include "sim/clock/search.h"
#include "sim/documents/comparison_text.h"
#include "sim/findings/progress_bar.h"
#include "sim/scenario/scenario_folder.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

namespace cpscope {
namespace {

struct CompareArguments {
  std::string scenario_path;
  ClusterChoice on;
  std::vector<int64_t> dispatch_chunks;
  std::vector<std::string> out_paths;
  std::string csv_path, theme = "dark";
  std::optional<double> memory_gib;
  int32_t reshards = 0;
  SearchOptions search = {};
  bool is_search = false, json = false, full = false, crosses = false;
};

bool is_scenario_path(const std::string& path) { return path.ends_with(".toml"); }

std::optional<Error> write_out(const CompareArguments& options, const Candidates& comparison,
                               const LoadedScenario& loaded, const Tools& tools) {
  for (const std::string& path : options.out_paths) {
    const Result<size_t> written =
        is_scenario_path(path) ? write_best_way(comparison, loaded, path)
                               : tools.pictures.draw_comparison(
                                     comparison, {path, options.theme, loaded.scenario.title});
    if (!written) return written.error();
  }
  return std::nullopt;
}

int command_compare(const CompareArguments& options, const Tools& tools) {
  const bool draws = !std::all_of(options.out_paths.begin(), options.out_paths.end(),
                                  [](const auto& path) { return is_scenario_path(path); });
  if (draws && !tools.pictures.draw_comparison)
    return report(make_error(ErrorKind::unavailable, "this program was built without pictures"));
  Result<Cluster> cluster = load_cluster(options.on.cluster, shipped_clusters());
  if (!cluster) return report(cluster.error());
  if (options.memory_gib) cluster.value().device.memory_gib = *options.memory_gib;
  const Result<LoadedScenario> loaded = load_scenario_alone(options.scenario_path, "compare");
  if (!loaded) return report(loaded.error());
  SearchOptions search = options.search;
  CandidateOptions& candidates = search.candidates;
  candidates.stack = options.on.stack;
  candidates.reshards = options.reshards;
  if (!options.dispatch_chunks.empty()) candidates.dispatch_chunks = options.dispatch_chunks;
  ProgressBar bar(!options.json || options.is_search);
  candidates.control.progress = bar.phase("candidates");
  search.share = bar.share("search");
  const Scenario& scenario = loaded.value().scenario;
  const Result<Candidates> comparison =
      options.is_search ? search_candidates(scenario, cluster.value(), search)
                        : compare_candidates(scenario, cluster.value(), candidates);
  if (!comparison) return report(comparison.error(), loaded.value());
  std::optional<Crossover> crossover;
  if (options.crosses) {
    Result<Crossover> found = find_crossover(scenario, cluster.value(), candidates);
    if (!found) return report(found.error(), loaded.value());
    crossover = std::move(found).value();
  }
  if (!options.csv_path.empty()) {
    const Result<size_t> written =
        write_whole_file(options.csv_path, comparison_csv(comparison.value()), "the table");
    if (!written) return report(written.error());
  }
  // The table says why there is nothing to write.
  const bool has_best = comparison.value().best >= 0;
  if (has_best) {
    if (const auto error = write_out(options, comparison.value(), loaded.value(), tools))
      return report(*error);
  }
  if (options.json) {
    std::cout << comparison_json(comparison.value(), crossover ? &*crossover : nullptr) << '\n';
  } else {
    write_comparison_text(comparison.value(), options.full, std::cout);
    if (crossover) write_crossover_text(*crossover, std::cout);
  }
  return has_best ? 0 : exit_code(ErrorKind::refused);
}

}  // namespace

Command add_compare(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<CompareArguments>();
  CLI::App* compare = app.add_subcommand(
      "compare", "all communication types and layouts for one batch side by side, predicted");
  add_scenario_file(compare, options->scenario_path);
  add_cluster(compare, options->on);
  compare
      ->add_option("--dispatch-chunks", options->dispatch_chunks,
                   "chunks to try for lpt and lpt_local (default 256,512,1024,2048)")
      ->delimiter(',')
      ->check(whole_number(1, int64_t{1} << 31));
  compare
      ->add_option("--reshards", options->reshards,
                   "changes between the way's order and consecutive tokens in the forward of a "
                   "layer, for layers that need tokens in order (state-space models, convolutions)")
      ->check(whole_number(1, 64));
  compare->add_flag(
      "--crossover", options->crosses,
      "also say from how many queries on sending keys is faster than sending queries, for the "
      "batch's keys (a decoder, or a prompt that goes on after a cached prefix)");
  compare->add_option("--csv", options->csv_path, "also write the table to this file")
      ->check(kNotEmpty);
  compare
      ->add_option(
          "--out", options->out_paths,
          "also draw time against bytes of every way (.png or .svg), or write the best way "
          "as a scenario (.toml, with an order file if it needs one); may be given twice")
      ->check(kNotEmpty)
      ->expected(1)
      ->take_all();
  compare->add_option("--theme", options->theme, "of the picture: dark (default), light or print")
      ->check(CLI::IsMember({"dark", "light", "print"}));
  compare->add_flag("--full", options->full, "every candidate in the table");
  compare
      ->add_option("--memory", options->memory_gib,
                   "GiB that attention may use on one GPU (default: the cluster file's)")
      ->check(finite_number(0, 1 << 20));
  CLI::Option* search = compare->add_flag(
      "--search", options->is_search,
      "also try every communication type with every choice of its keys, then move chunks of tokens "
      "between ranks as long as the predicted time falls");
  compare
      ->add_option("--seconds", options->search.seconds,
                   "begin nothing new in the search after this time (default 60)")
      ->check(finite_number(0, 1e7))
      ->needs(search);
  compare
      ->add_option("--tries", options->search.tries,
                   "end the search after so many plans, the same ones on every machine (default: "
                   "no limit)")
      ->check(whole_number(1))
      ->needs(search);
  compare->add_option("--seed", options->search.seed, "of the chunks that are drawn (default 1)")
      ->check(whole_number())
      ->needs(search);
  add_json(compare, options->json);
  compare->footer(
      "Exit code 2 when no candidate can be recommended.\n"
      "Example: cpscope compare scenarios/packed_group_cast.toml --cluster h200x8\n"
      "         cpscope compare my.toml --cluster h200_ib --search --out best.toml");
  return {compare, [options, tools] { return command_compare(*options, tools); }};
}

}  // namespace cpscope
