#pragma once

#include "sim/app/findings.h"
#include "sim/app/program.h"
#include "sim/run/case.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// Options that a command line fills in; each command reads its own.
struct CommandOptions {
  std::vector<std::string> paths;
  std::string executor;
  std::string record_path;
  std::string junit_path;
  std::string trace_path, chakra_prefix, measured_path;  // timeline
  std::string trace_folder;                              // bench
  std::string report_path;                               // ends in .html or .md
  FigureMaker draw;                                      // of the report; may be empty
  std::vector<std::string> names;                        // faults: only these
  std::string markdown_path;                             // verify --matrix
  std::string out_folder;                                // empty = out/ beside scenarios/
  double max_flops = 2e12;
  double tolerance = 0.0;
  std::vector<std::string> budgets;  // run, grade: "NAME=X"
  int64_t sample_rows = 0;
  int32_t repeats = 5;  // bench
  bool json = false;
  bool full = false;
  bool summary = false;
  bool text = false;
  bool poison = false;
  bool matrix = false;
  bool items = false;   // run --record
  bool earned = false;  // diff
  bool te = false;      // plan
  bool list = false;    // faults
  bool turns = false;   // bench
  bool brief = false;   // power
  int64_t max_lines = 0;
  std::string scenario_path;         // grade
  std::vector<std::string> records;  // grade: one file, or one for each rank
  std::string order;                 // grade: packed | rank; empty = as the record says
  std::string order_path;  // grade: an order file instead of the scenario's layout; import: --out
  std::string format;      // grade: thd | bshd | sbhd | bhsd; empty = by shape
  std::string lse_layout;  // grade: tokens_heads | heads_tokens; empty = by shape
  bool ignore_padding = false;  // grade
  std::string from, layout;     // import
  int64_t cp_size = 0, tokens = 0, ulysses_degree = 1;
  std::vector<int64_t> cu_seqlens;
  std::string cluster, stack;                 // by name or file; empty stack = the cluster's first
  std::string csv_path;                       // compare, forecast, timeline
  int64_t windows = 256;                      // forecast
  int64_t replicas = 0;                       // forecast; 0 = as many as usual and as fit
  int64_t microbatches = 1;                   // forecast
  std::optional<uint64_t> first_seed;         // forecast; nothing = the generator's
  std::string page_path;                      // validate
  std::string picture_path;                   // compare
  std::string theme = "dark";                 // compare
  std::vector<int64_t> dispatch_chunks;       // compare
  std::vector<std::string> executors;         // calibrate; empty = cuda, and nccl if it can help
  std::string base;                           // calibrate: by name or file; may be empty
  std::string cluster_path = "machine.toml";  // calibrate: --out
  std::string samples_path;                   // calibrate: figures instead of a machine
  int64_t max_tokens = 16384;                 // calibrate
  uint64_t seed = 1;                          // fuzz
  int64_t first = 0;                          // fuzz: number of the first draw
  int64_t count = 0;                          // fuzz: draws; 0 = as many as the time allows
  double seconds = 60.0;                      // fuzz: 0 = no limit
};

/// What --budget has widened; the words were checked when they were read.
std::vector<WidenedBudget> budgets_of(const CommandOptions& options);

/// Can the files that --report and --junit name be written? Asked before anything is run.
std::optional<Error> check_outlets(const CommandOptions& options);

/// Writes them; with --json nothing is said of it. Nothing but the first process writes.
std::optional<Error> write_outlets(const Findings& findings, const CommandOptions& options,
                                   const Toolbox& toolbox);

int command_layout(const CommandOptions& options);
int command_plan(const CommandOptions& options);
int command_run(const CommandOptions& options, Toolbox& toolbox);
int command_verify(const CommandOptions& options, Toolbox& toolbox);
int command_probe(const CommandOptions& options, Toolbox& toolbox);
int command_grade(const CommandOptions& options, Toolbox& toolbox);
int command_import(const CommandOptions& options);
int command_fuzz(const CommandOptions& options, Toolbox& toolbox);
int command_diff(const CommandOptions& options);
int command_faults(const CommandOptions& options, Toolbox& toolbox);
int command_power(const CommandOptions& options, Toolbox& toolbox);
int command_compare(const CommandOptions& options, const PictureCommands& pictures);
int command_forecast(const CommandOptions& options);
int command_validate(const CommandOptions& options);
int command_timeline(const CommandOptions& options);
int command_calibrate(const CommandOptions& options, Toolbox& toolbox);
int command_bench(const CommandOptions& options, Toolbox& toolbox);
int command_demo(const CommandOptions& options, Toolbox& toolbox, const PictureCommands& pictures);

/// Where load_cluster looks for names: scenarios/clusters of the project.
std::string cluster_folder();

/// Prints the error to stderr and returns its exit code.
int report(const Error& error);

/// The same for what is wrong with a loaded scenario: with the place of the key at fault.
int report(const Error& error, const LoadedScenario& loaded);

/// Loads a scenario and prints its warnings to stderr.
Result<LoadedScenario> load_with_warnings(const std::string& path);

/// One line of a verification.
struct VerifyRow {
  std::string path;
  LoadedScenario loaded;
  CaseOutcome outcome;
};

/// Scenario files under the paths, sorted; folders `bad` and `clusters` only when a path names
/// them.
Result<std::vector<std::string>> find_scenarios(const std::vector<std::string>& paths);

/// What is known of a row that was made with these options.
CaseFindings to_findings(const VerifyRow& row, const CaseOptions& options);

VerifyRow verify_file(Toolbox& toolbox, const std::string& path, const CaseOptions& options);
/// The mask in a few words: its type, and window and chunk where they cut it further.
std::string describe_mask(const Attention& attention);

std::string table_header();
std::string table_line(const VerifyRow& row);

/// 1 when a row failed, 2 when a row is an error, 3 when none passed, else 0.
int exit_code_of(const std::vector<VerifyRow>& rows);

}  // namespace cpscope
