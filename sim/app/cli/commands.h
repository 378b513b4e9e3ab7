#pragma once

#include "sim/app/cli/command.h"

namespace cpscope {

// Every command, in a file of its own: it declares its options and carries it out.

Command add_layout(CLI::App& app, const Tools& tools);
Command add_plan(CLI::App& app, const Tools& tools);
Command add_check(CLI::App& app, const Tools& tools);
Command add_diff(CLI::App& app, const Tools& tools);
Command add_import(CLI::App& app, const Tools& tools);
Command add_keys(CLI::App& app, const Tools& tools);
Command add_timeline(CLI::App& app, const Tools& tools);
Command add_compare(CLI::App& app, const Tools& tools);
Command add_forecast(CLI::App& app, const Tools& tools);
Command add_validate(CLI::App& app, const Tools& tools);
Command add_calibrate(CLI::App& app, const Tools& tools);
Command add_run(CLI::App& app, const Tools& tools);
Command add_grade(CLI::App& app, const Tools& tools);
Command add_verify(CLI::App& app, const Tools& tools);
Command add_probe(CLI::App& app, const Tools& tools);
Command add_fuzz(CLI::App& app, const Tools& tools);
Command add_faults(CLI::App& app, const Tools& tools);
Command add_power(CLI::App& app, const Tools& tools);
Command add_bench(CLI::App& app, const Tools& tools);
Command add_demo(CLI::App& app, const Tools& tools);

}  // namespace cpscope
