#include "sim/app/cli/commands.h"
#include "sim/base/whole_file.h"
#include "sim/documents/comparison_text.h"
#include "sim/findings/progress_bar.h"
#include "sim/scenario/scenario_folder.h"

#include <iostream>
#include <memory>

namespace cpscope {
namespace {

struct CompareArguments {
  std::string scenario_path;
  ClusterChoice on;
  std::vector<int64_t> dispatch_chunks;
  std::string csv_path, picture_path, theme = "dark";
  bool json = false, full = false;
};

int command_compare(const CompareArguments& options, const Tools& tools) {
  if (!options.picture_path.empty() && !tools.pictures.draw_comparison)
    return report(make_error(ErrorKind::unavailable, "this program was built without pictures"));
  const Result<Cluster> cluster = load_cluster(options.on.cluster, shipped_clusters());
  if (!cluster) return report(cluster.error());
  const Result<LoadedScenario> loaded = load_scenario_alone(options.scenario_path, "compare");
  if (!loaded) return report(loaded.error());
  CandidateOptions candidates;
  candidates.stack = options.on.stack;
  if (!options.dispatch_chunks.empty()) candidates.dispatch_chunks = options.dispatch_chunks;
  ProgressBar bar(!options.json);
  candidates.control.progress = bar.phase("candidates");
  const Result<Candidates> comparison =
      compare_candidates(loaded.value().scenario, cluster.value(), candidates);
  if (!comparison) return report(comparison.error(), loaded.value());
  if (!options.csv_path.empty()) {
    const Result<size_t> written =
        write_whole_file(options.csv_path, comparison_csv(comparison.value()), "the table");
    if (!written) return report(written.error());
  }
  if (!options.picture_path.empty()) {
    const Result<size_t> written = tools.pictures.draw_comparison(
        comparison.value(), {options.picture_path, options.theme, loaded.value().scenario.title});
    if (!written) return report(written.error());
  }
  if (options.json) {
    std::cout << comparison_json(comparison.value()) << '\n';
  } else {
    write_comparison_text(comparison.value(), options.full, std::cout);
  }
  return comparison.value().best < 0 ? exit_code(ErrorKind::refused) : 0;
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
  compare->add_option("--csv", options->csv_path, "also write the table to this file")
      ->check(kNotEmpty);
  compare
      ->add_option("--out", options->picture_path,
                   "also draw time against bytes of every way (.png or .svg)")
      ->check(kNotEmpty);
  compare->add_option("--theme", options->theme, "of the picture: dark (default), light or print")
      ->check(CLI::IsMember({"dark", "light", "print"}));
  compare->add_flag("--full", options->full, "every candidate in the table");
  add_json(compare, options->json);
  compare->footer(
      "Exit code 2 when no candidate can be recommended.\n"
      "Example: cpscope compare scenarios/packed_group_cast.toml --cluster h200x8");
  return {compare, [options, tools] { return command_compare(*options, tools); }};
}

}  // namespace cpscope
