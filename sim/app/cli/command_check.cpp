#include "sim/app/cli/commands.h"
#include "sim/documents/json_text.h"
#include "sim/findings/error_document.h"
#include "sim/plan/document/plan_document.h"

#include <algorithm>
#include <iostream>
#include <memory>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct CheckArguments {
  std::string path;
  bool json = false;
};

void write_check_text(const Plan& plan, const std::vector<CheckResult>& checks, std::ostream& out) {
  out << fmt::format("plan {}: {}, {} ranks, {} tokens, {} + {} items\n", to_hex(plan.hash),
                     to_name(plan.scenario.parallel.comm_type), plan.layout.cp_size,
                     plan.layout.slots.tokens, plan.forward.num_items(), plan.backward.num_items());
  for (const CheckResult& check : checks)
    out << fmt::format("{} {}: {}\n", check.ok ? "proved" : "BROKEN", check.name, check.detail);
}

int command_check(const CheckArguments& options, const Tools&) {
  const Result<PlanDocument> document = load_plan_document(options.path);
  if (!document) return report(document.error());
  for (const std::string& warning : document.value().warnings) std::cerr << warning << '\n';
  const Plan& plan = document.value().plan;
  const std::vector<CheckResult> checks = inspect_plan(plan);
  const bool is_right =
      std::all_of(checks.begin(), checks.end(), [](const CheckResult& check) { return check.ok; });
  if (options.json) {
    std::cout << print_json(check_json(plan, checks)) << '\n';
  } else {
    write_check_text(plan, checks, std::cout);
    std::cout << (is_right ? "PASS\n" : "FAIL\n");
  }
  return is_right ? 0 : 1;
}

}  // namespace

Command add_check(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<CheckArguments>();
  CLI::App* check = app.add_subcommand(
      "check", "proves a plan document that anybody wrote, or names its first broken promise");
  check
      ->add_option("PLAN", options->path,
                   "plan document (JSON), as `plan FILE --json --full` prints one; its fields are "
                   "explained in sim/plan/PLAN.md")
      ->required();
  add_json(check, options->json);
  check->footer(
      "Exit code 0: every promise holds; 1: one is broken; 2: this is no plan document.\n"
      "Example: cpscope plan scenarios/zigzag.toml --json --full > zigzag.json\n"
      "         cpscope check zigzag.json");
  return {check, [options, tools] { return command_check(*options, tools); }};
}

}  // namespace cpscope
