#include "sim/app/cli/way_file.h"

#include "sim/base/whole_file.h"
#include "sim/clock/search.h"
#include "sim/plan/order/order_import.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The name of a file that stands in a scenario in folder `from`, as a scenario in `to` names it.
void move_name(std::string& name, const std::filesystem::path& from,
               const std::filesystem::path& to) {
  if (name.empty() || std::filesystem::path(name).is_absolute()) return;
  std::error_code failure;
  const std::filesystem::path relative =
      std::filesystem::relative(from / name, to.empty() ? "." : to, failure);
  name = failure || relative.empty() ? std::filesystem::absolute(from / name).string()
                                     : relative.string();
}

}  // namespace

Result<size_t> write_best_way(const Candidates& comparison, const LoadedScenario& loaded,
                              const std::string& path) {
  if (comparison.best < 0)
    return make_refusal("no candidate can be recommended, so that none is written",
                        "without --out the table says why", {});
  const Candidate& best = comparison.candidates[static_cast<size_t>(comparison.best)];
  const std::filesystem::path from = std::filesystem::path(loaded.path).parent_path(),
                              to = std::filesystem::path(path).parent_path();
  const bool has_new_order = best.is_searched && best.parallel.layout == LayoutKind::indices;
  const std::string order_path =
      std::filesystem::path(path).replace_extension(".order.json").string();
  Scenario scenario =
      take_way(loaded.scenario, best, std::filesystem::path(order_path).filename().string());
  if (!has_new_order) move_name(scenario.parallel.indices_file, from, to);
  move_name(scenario.batch.positions_file, from, to);
  if (scenario.batch.generator) move_name(scenario.batch.generator->file, from, to);
  if (scenario.attention.generator) move_name(scenario.attention.generator->file, from, to);
  if (has_new_order) {
    std::error_code failure;
    const std::string& own = loaded.scenario.parallel.indices_file;
    if (!own.empty() && std::filesystem::equivalent(from / own, order_path, failure))
      return make_bad_input("--out would replace the order file of the scenario: " + order_path,
                            "give it another name");
    OrderImport order;
    order.cp_size = scenario.parallel.cp_size;
    order.ranks = scenario.parallel.imported.ranks;
    if (scenario.parallel.imported.kv_ranks != order.ranks)
      order.kv_ranks = scenario.parallel.imported.kv_ranks;
    const Result<size_t> written =
        write_whole_file(order_path, print_order_file(order), "the order file");
    if (!written) return written;
  }
  return write_whole_file(
      path,
      fmt::format("# {}: {:.3f} ms, predicted by cpscope compare on {}, stack {}\n{}", best.name,
                  best.total_us() * 1e-3, comparison.cluster, comparison.stack,
                  print_scenario(scenario)),
      "the scenario");
}

}  // namespace cpscope
