#include "sim/app/cli/commands.h"
#include "sim/documents/diff_text.h"

#include <iostream>
#include <memory>

namespace cpscope {
namespace {

struct DiffArguments {
  std::vector<std::string> paths;  // of two records
  double tolerance = 0.0;
  bool json = false, earned = false;
};

int command_diff(const DiffArguments& options, const Tools&) {
  Result<RunRecord> a = read_record(options.paths[0]);
  if (!a) return report(a.error());
  Result<RunRecord> b = read_record(options.paths[1]);
  if (!b) return report(b.error());
  const Result<RecordComparison> compared =
      compare_records(std::move(a).value(), std::move(b).value(),
                      {options.earned, options.tolerance}, {options.paths[0], options.paths[1]});
  if (!compared) return report(compared.error());
  if (options.json) {
    std::cout << print_json(diff_json(compared.value())) << '\n';
  } else {
    write_diff_text(compared.value(), std::cout);
  }
  return compared.value().is_equal() ? 0 : 1;
}

}  // namespace

Command add_diff(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<DiffArguments>();
  CLI::App* diff = app.add_subcommand("diff",
                                      "two records, tensor by tensor, and the first "
                                      "item that diverges; exit 1 when they differ");
  diff->add_option("RECORDS", options->paths, "two .safetensors records")->required()->expected(2);
  add_json(diff, options->json);
  CLI::Option* tolerance = diff->add_option("--tolerance", options->tolerance,
                                            "rel_l2 up to which a tensor counts as equal (default "
                                            "0: bit by bit)")
                               ->check(finite_number());
  diff->add_flag("--earned", options->earned,
                 "two runs of one scenario: a tensor may differ by as much as "
                 "the budgets of the "
                 "two runs explain; what has no budget (inputs) is compared "
                 "bit by bit")
      ->excludes(tolerance);
  diff->footer("Example: cpscope diff cpu.safetensors cuda.safetensors --earned");
  return {diff, [options, tools] { return command_diff(*options, tools); }};
}

}  // namespace cpscope
