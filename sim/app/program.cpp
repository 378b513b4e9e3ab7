#include "sim/app/program.h"

#include "sim/app/commands.h"
#include "sim/app/error_document.h"
#include "sim/app/program_parts.h"
#include "sim/base/version.h"

#include <algorithm>
#include <iostream>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>

#include <CLI/CLI.hpp>

namespace cpscope {

void add_scenario_file(CLI::App* app, CommandOptions& options) {
  app->add_option("FILE", options.paths, "scenario file (TOML)")->required()->expected(1);
}

void add_json(CLI::App* app, CommandOptions& options) {
  app->add_flag("--json", options.json, "print one JSON document on stdout and nothing else");
}

/// What every verification can write beside what it prints.
void add_outlets(CLI::App* app, CommandOptions& options) {
  app->add_option("--report", options.report_path,
                  "also write a report with pictures to this file: one page if it ends in .html, "
                  "Markdown with a folder of pictures beside it if it ends in .md")
      ->check(kNotEmpty);
  app->add_option("--junit", options.junit_path, "also write JUnit XML to this file")
      ->check(kNotEmpty);
}

void add_executor(CLI::App* app, CommandOptions& options) {
  app->add_option(
         "--executor", options.executor,
         "cpu (default), cuda, cuda-portable (no kernels of one GPU generation only), nccl or "
         "plugin:PATH")
      ->check(kNotEmpty);
}

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done and passed, 1 a verification failed, 2 bad input, bad usage or refused by "
    "rule,\n"
    "3 that executor is not here or cannot do this scenario.\n"
    "The manual: sim/app/README.md; what the words mean: the glossary in sim/README.md.";

Command add_import(CLI::App& app, CommandOptions& options) {
  CLI::App* import = app.add_subcommand(
      "import",
      "makes an order file (layout = \"indices\") of what a framework deals its tokens by");
  import->add_option(
      "FILE", options.paths,
      "lists of whole numbers: JSON, .safetensors or .npy, several for one list a rank. "
      "te: cu_seqlens, cu_seqlens_padded, indices (a list a rank); torch: rearrange or "
      "restore");
  import
      ->add_option("--from", options.from,
                   "te (TransformerEngine, Megatron), torch, ring-flash-attention or usp")
      ->required()
      ->check(CLI::IsMember({"te", "torch", "ring-flash-attention", "usp"}));
  import->add_option(
      "--layout", options.layout,
      "ring-flash-attention: ring, zigzag, stripe (each sequence by itself) or llama3 "
      "(the packed buffer); usp: basic, zigzag or strip");
  import->add_option("--cp-size", options.cp_size, "ranks, where the lists do not say")
      ->check(whole_number(1, kMaxRanks));
  import
      ->add_option("--ulysses-degree", options.ulysses_degree,
                   "usp: ranks that share the heads (rank = ring index * degree + its index)")
      ->check(whole_number(1, kMaxRanks));
  import->add_option("--tokens", options.tokens, "tokens of a single sequence")
      ->check(whole_number(1, int64_t{1} << 25));
  import->add_option("--cu-seqlens", options.cu_seqlens, "padded boundaries, e.g. 0,8,12")
      ->delimiter(',')
      ->check(whole_number());
  import->add_option("--out", options.order_path, "write the order file here")->check(kNotEmpty);
  add_json(import, options);
  import->footer(
      "Example: cpscope import --from usp --layout zigzag --cp-size 8 --ulysses-degree 2 --tokens "
      "4096 --out order.json");
  return {import, [&] { return command_import(options); }};
}

std::vector<Command> add_inspecting(CLI::App& app, CommandOptions& options) {
  std::vector<Command> commands;
  CLI::App* layout = app.add_subcommand("layout", "who owns which token");
  add_scenario_file(layout, options);
  add_json(layout, options);
  layout->add_flag(
      "--full", options.full,
      "also write out every local slot: token, sequence, position, and the a2a gather indices");
  layout->footer("Example: cpscope layout scenarios/thd_padding_p2p.toml --json --full");
  commands.push_back({layout, [&] { return command_layout(options); }});

  CLI::App* plan = app.add_subcommand(
      "plan", "every step: compute slices, transfers, merges, reorders; proved before it is shown");
  add_scenario_file(plan, options);
  add_json(plan, options);
  plan->add_flag("--summary", options.summary, "figures only: pairs, balance, bytes, checks");
  plan->add_flag("--text", options.text,
                 "a readable dump (the default without --json or --summary)");
  plan->add_option("--lines", options.max_lines, "at most this many lines of text, 0 = all")
      ->check(whole_number());
  plan->add_flag("--te", options.te,
                 "what TransformerEngine would pass to its kernels for this plan, rank by rank and "
                 "step by step: section, halves, cu_seqlens, max_seqlen, mask; and where its "
                 "shortcuts compute something else")
      ->excludes("--summary")
      ->excludes("--text");
  plan->footer(
      "Example: cpscope plan scenarios/zigzag.toml --text\n"
      "         cpscope plan scenarios/thd_padding_p2p.toml --te");
  commands.push_back({plan, [&] { return command_plan(options); }});

  CLI::App* diff = app.add_subcommand(
      "diff",
      "two records, tensor by tensor, and the first item that diverges; exit 1 when they differ");
  diff->add_option("RECORDS", options.paths, "two .safetensors records")->required()->expected(2);
  add_json(diff, options);
  CLI::Option* tolerance =
      diff->add_option("--tolerance", options.tolerance,
                       "rel_l2 up to which a tensor counts as equal (default 0: bit by bit)")
          ->check(finite_number());
  diff->add_flag("--earned", options.earned,
                 "two runs of one scenario: a tensor may differ by as much as the budgets of the "
                 "two runs explain; what has no budget (inputs) is compared bit by bit")
      ->excludes(tolerance);
  diff->footer("Example: cpscope diff cpu.safetensors cuda.safetensors --earned");
  commands.push_back({diff, [&] { return command_diff(options); }});
  commands.push_back(add_import(app, options));
  return commands;
}

/// "lse=1e-3" for a tensor that may err more than it has earned.
void add_budgets(CLI::App* app, CommandOptions& options) {
  app->add_option("--budget", options.budgets,
                  "NAME=X: the rel_l2 that a tensor may have where the earned budget is narrower, "
                  "as lse=1e-3; shown in the verdict; may be given for several")
      ->check(CLI::Validator(
          [](std::string& text) {
            return parse_budget(text) ? std::string() : "a budget is NAME=X, as lse=1e-3: " + text;
          },
          ""))
      ->expected(1)
      ->take_all();
}

Command add_run(CLI::App& app, CommandOptions& options, Toolbox& toolbox) {
  CLI::App* run = app.add_subcommand("run", "executes the plan and compares with the dense oracle");
  add_scenario_file(run, options);
  add_executor(run, options);
  add_json(run, options);
  CLI::Option* record =
      run->add_option("--record", options.record_path,
                      "write inputs, answers and, where the executor has a clock, the time of "
                      "every item to this .safetensors file")
          ->check(kNotEmpty);
  run->add_flag("--items", options.items,
                "with --record: also what every compute and finish item has written, 8 bytes of "
                "memory and 4 of the file a value (fp64: 8); refused when that is more than the "
                "machine has")
      ->needs(record);
  run->add_flag("--poison", options.poison,
                "fill padding rows, output and receive buffers with NaN before the run");
  run->add_option("--sample", options.sample_rows,
                  "compare only about N query rows, and as many keys, of a batch too long to judge "
                  "whole; all other rows are looked through")
      ->check(whole_number());
  add_budgets(run, options);
  add_outlets(run, options);
  run->footer(
      "Example: cpscope run scenarios/thd_padding_p2p.toml --poison --record out/run.safetensors");
  return {run, [&] { return command_run(options, toolbox); }};
}

Command add_grade(CLI::App& app, CommandOptions& options, Toolbox& toolbox) {
  CLI::App* grade =
      app.add_subcommand("grade", "grades tensors that somebody else computed, with the oracle");
  grade->add_option("FILE", options.scenario_path, "scenario file (TOML)")->required();
  grade
      ->add_option("RECORD", options.records,
                   ".safetensors with out, lse, max_logit, dq, dk, dv, d_sink or some of them: one "
                   "file, or one for each rank in rank order; parts of one file are called "
                   "out.rank0, out.rank1, ...")
      ->required();
  add_json(grade, options);
  grade
      ->add_option("--order", options.order,
                   "how rows follow each other: packed (padded token order) or rank (the ranks' "
                   "local buffers one after another); default: the record's metadata \"order\", "
                   "else packed; parts by rank are always in rank order")
      ->check(CLI::IsMember({"packed", "rank"}));
  grade
      ->add_option("--order-file", options.order_path,
                   "the ranks' local buffers by this order file (as indices_file of a scenario) "
                   "instead of the scenario's layout")
      ->check(kNotEmpty);
  grade
      ->add_option("--format", options.format,
                   "dimensions of the tensors: thd, bshd, sbhd or bhsd (default: metadata "
                   "\"format\", else what the shape allows)")
      ->check(CLI::IsMember({"thd", "bshd", "sbhd", "bhsd"}));
  grade
      ->add_option("--lse-layout", options.lse_layout,
                   "tokens_heads or heads_tokens, as FlashAttention's varlen calls have it "
                   "(default: metadata \"lse_layout\", else what the shape allows)")
      ->check(CLI::IsMember({"tokens_heads", "heads_tokens"}));
  grade->add_flag("--ignore-padding", options.ignore_padding,
                  "do not grade padding rows: some back ends leave them undefined");
  grade
      ->add_option(
          "--sample", options.sample_rows,
          "compare only about N query rows, and as many keys, of a batch too long to judge "
          "whole; all other rows are looked through")
      ->check(whole_number());
  add_budgets(grade, options);
  add_outlets(grade, options);
  grade->footer(
      "Inputs q, k, v, d_out and sink of the record that differ from the scenario's are what the\n"
      "oracle then answers.\n"
      "Example: cpscope grade scenarios/zigzag.toml mine.safetensors --order rank");
  return {grade, [&] { return command_grade(options, toolbox); }};
}

std::vector<Command> add_running(CLI::App& app, CommandOptions& options, Toolbox& toolbox,
                                 const PictureCommands& pictures) {
  std::vector<Command> commands{add_run(app, options, toolbox), add_grade(app, options, toolbox)};
  CLI::App* verify = app.add_subcommand("verify", "all scenarios under the paths, one row each");
  verify->add_option("PATH", options.paths,
                     "scenario files or folders; folders `bad` and `clusters` only when named");
  add_executor(verify, options);
  add_json(verify, options);
  verify->add_flag("--matrix", options.matrix,
                   "sweep comm type x layout x mask x format x padding x feature on small shapes");
  verify
      ->add_option(
          "--markdown", options.markdown_path,
          "with --matrix: also write the table, beside what other frameworks offer, to this file")
      ->check(kNotEmpty);
  add_outlets(verify, options);
  verify->add_flag("--poison", options.poison,
                   "fill padding rows, output and receive buffers with NaN before each run");
  verify
      ->add_option("--max-flops", options.max_flops,
                   "plan and prove, but do not execute, cases above this arithmetic; 0 = no limit")
      ->check(finite_number());
  verify->footer("Example: cpscope verify scenarios --junit out/verify.xml");
  commands.push_back({verify, [&options, &toolbox] {
                        if (options.paths.empty() && !options.matrix)
                          throw CLI::RequiredError("PATH");
                        return command_verify(options, toolbox);
                      }});

  CLI::App* probe =
      app.add_subcommand("probe", "exact integer check of which keys every row has seen");
  add_scenario_file(probe, options);
  add_executor(probe, options);
  add_json(probe, options);
  add_outlets(probe, options);
  probe->footer("Example: cpscope probe scenarios/contiguous_idle.toml --json");
  commands.push_back({probe, [&] { return command_probe(options, toolbox); }});

  CLI::App* fuzz = app.add_subcommand(
      "fuzz",
      "random scenarios over the whole space, each held to the oracle, the probe and other splits "
      "of the same attention; a failure is shrunk to the smallest scenario that still fails");
  fuzz->add_option("FILE", options.paths, "apply the same checks to this scenario alone")
      ->expected(0, 1);
  fuzz->add_option("--seconds", options.seconds, "stop after so long (default 60; 0 = never)")
      ->check(finite_number());
  fuzz->add_option("--count", options.count, "stop after so many draws (default 0 = never)")
      ->check(whole_number());
  fuzz->add_option("--seed", options.seed, "which draws (default 1)")->check(whole_number());
  fuzz->add_option("--first", options.first, "number of the first draw (default 0)")
      ->check(whole_number());
  fuzz->add_option("--out", options.scenario_path,
                   "where the smallest failing scenario goes (default cpscope-fuzz-SEED-DRAW.toml)")
      ->check(kNotEmpty);
  add_executor(fuzz, options);
  add_json(fuzz, options);
  add_outlets(fuzz, options);
  fuzz->footer("Example: cpscope fuzz --seconds 30 --seed 7");
  commands.push_back({fuzz, [&] { return command_fuzz(options, toolbox); }});

  CLI::App* faults = app.add_subcommand(
      "faults",
      "plants every known fault of the field in a small run and says which detector caught it and "
      "where");
  faults->add_option("NAME", options.names, "only these faults (see --list)");
  add_json(faults, options);
  add_outlets(faults, options);
  faults->add_flag("--list", options.list, "only name the faults, their sources and classes");
  faults->footer("Example: cpscope faults --list");
  commands.push_back({faults, [&] { return command_faults(options, toolbox); }});

  CLI::App* power = app.add_subcommand(
      "power",
      "how small an error the verdict sees: right answers with one row, head, rank or sequence a "
      "little off, and with one message lost, judged whole and by a sample");
  power->add_flag("--brief", options.brief, "bf16 and the largest size of each kind alone");
  power->add_option("--markdown", options.markdown_path, "also write the tables to this file")
      ->check(kNotEmpty);
  add_json(power, options);
  power->footer("Example: cpscope power --brief");
  commands.push_back({power, [&] { return command_power(options, toolbox); }});

  CLI::App* bench = app.add_subcommand(
      "bench", "how fast an executor carries out scenarios; no judging, inputs as in `run`");
  bench->add_option("PATH", options.paths, "scenario files or folders")->required();
  add_executor(bench, options);
  add_json(bench, options);
  bench->add_option("--repeats", options.repeats, "carry out each pass so often; medians are shown")
      ->check(whole_number(1, 1000000));
  CLI::Option* traces = bench->add_option(
      "--traces", options.trace_folder,
      "write when the items of one repeat of each scenario ran to NAME.json in this folder, for "
      "ui.perfetto.dev or chrome://tracing: a process for each rank, as timeline --trace has them");
  bench
      ->add_flag(
          "--turns", options.turns,
          "measure a file at each line \"turn\" of standard input, go on at \"next\"; answers "
          "are JSON, one document a line, so that others can be measured in between")
      ->excludes(traces);
  bench->footer("Example: cpscope bench tests/bench/speed --executor cuda --repeats 10");
  commands.push_back({bench, [&] { return command_bench(options, toolbox); }});

  CLI::App* demo = app.add_subcommand(
      "demo",
      "verifies the shipped scenarios on every executor here, writes a report with pictures, "
      "and opens the window if there is a display");
  demo->add_option("--out", options.out_folder,
                   "folder of the report (default out, beside scenarios/)");
  demo->footer("Example: cpscope demo");
  commands.push_back({demo, [&] { return command_demo(options, toolbox, pictures); }});
  return commands;
}

/// Whose predicted times a timeline shows.
void add_prediction(CLI::App* app, std::string& cluster, std::string& stack) {
  CLI::Option* option =
      app->add_option("--cluster", cluster,
                      "view timeline: predicted times on a cluster, a file of scenarios/clusters "
                      "by name (h200x8, ...), or any .toml")
          ->check(kNotEmpty);
  app->add_option("--stack", stack, "whose kernels and schedule (default: the cluster's first)")
      ->check(kNotEmpty)
      ->needs(option);
}

Command add_render(CLI::App& app, RenderRequest& request, Toolbox& toolbox,
                   const PictureCommands& pictures) {
  CLI::App* render = app.add_subcommand("render", "a picture of one plan; no display is needed");
  render->add_option("FILE", request.scenario_path, "scenario file (TOML)")->required();
  render->add_option("--view", request.view, "what to show")
      ->required()
      ->check(
          CLI::IsMember({"layout", "mask", "traffic", "timeline", "numbers", "balance", "all"}));
  render->add_option("--out", request.out_path, "the picture, .png or .svg")
      ->required()
      ->check(kNotEmpty);
  render
      ->add_option("--step", request.step,
                   "moment: forward steps first, then backward ones, from 0 (default: the second "
                   "forward step if there is one)")
      ->check(whole_number());
  render->add_option("--rank", request.rank, "whose local order and whose caption (default 0)")
      ->check(whole_number());
  render->add_option("--theme", request.theme, "dark (default), light or print")
      ->check(CLI::IsMember({"dark", "light", "print"}));
  render->add_option("--size", request.size, "logical pixels, e.g. 1280x860");
  render->add_option("--scale", request.scale, "pixels of a logical pixel, 1 to 4")
      ->check(finite_number(1.0, 4.0));
  render
      ->add_option("--fonts", request.fonts,
                   "packages (default: Inter and JetBrains Mono where they are installed) or "
                   "built-in (PNG that depends on no font file)")
      ->check(CLI::IsMember({"packages", "built-in"}));
  render
      ->add_option("--run", request.executor,
                   "carry the scenario out on this executor first, so that there are numbers "
                   "(default: cpu for the views numbers and all)")
      ->check(kNotEmpty);
  render
      ->add_option(
          "--select", request.selection,
          "what to light: \"rank 2\", \"token 700\", \"q 0-64\", \"1 -> 2\", \"step 3\" ...")
      ->check(kNotEmpty);
  render
      ->add_option("--tensor", request.tensor,
                   "view numbers: whose errors (default: out, or dq of a backward step)")
      ->check(CLI::IsMember({"out", "lse", "dq", "dk", "dv"}));
  render->add_flag("--per-step", request.is_by_step,
                   "view numbers: what the step wrote, beside exact partial results, instead of "
                   "the whole answer");
  add_prediction(render, request.cluster, request.stack);
  render
      ->add_option("--record", request.record,
                   "view timeline: the times that a record of this plan has measured, beside "
                   "predicted ones with --cluster")
      ->check(kNotEmpty);
  render->add_flag("--json", request.json, "print one JSON document on stdout and nothing else");
  render->footer(
      "Example: cpscope render scenarios/zigzag.toml --view mask --step 2 --out zigzag.png");
  return {render, [&] {
            if (pictures.render) return pictures.render(request, toolbox);
            std::cerr << "cpscope: this program was built without pictures\n";
            return 3;
          }};
}

Command add_window(CLI::App& app, WindowRequest& request, Toolbox& toolbox,
                   const PictureCommands& pictures) {
  CLI::App* window = app.add_subcommand("gui", "the window: see one plan from six sides");
  window->add_option("FILE", request.path,
                     "scenario (TOML) or record (.safetensors); a shipped scenario if left out");
  window->add_option("--theme", request.theme, "dark (default), light or print")
      ->check(CLI::IsMember({"dark", "light", "print"}));
  window->add_option("--size", request.size, "logical pixels (default 1600x1000)");
  window
      ->add_option("--scale", request.scale,
                   "pixels of a logical pixel, 1 to 4 (default: the screen's)")
      ->check(finite_number(1.0, 4.0));
  window
      ->add_option("--screenshot", request.screenshot_path,
                   "write this PNG of the window instead of opening it; no display is needed")
      ->check(kNotEmpty);
  window->add_option("--state", request.state_path, "open what a screenshot's JSON file has saved");
  window->add_option("--step", request.step, "where the playhead stands, as in render")
      ->check(whole_number());
  window->add_option("--run", request.executor, "carry the scenario out on this executor at once")
      ->check(kNotEmpty);
  add_prediction(window, request.cluster, request.stack);
  window->add_option("--frames", request.frames, "close after so many frames")
      ->check(whole_number());
  window->add_option("--watch", request.watch_folder,
                     "whenever the window comes to rest, write its widgets (hits.json) and pixels "
                     "(card.png, raster.png) to this folder");
  window->footer("Example: cpscope gui scenarios/thd_padding_p2p.toml --theme light");
  return {window, [&] {
            if (pictures.open_window) return pictures.open_window(request, toolbox);
            std::cerr << "cpscope: this program was built without a window\n";
            return 3;
          }};
}

/// The page is compiled from the sources, so the launcher makes it; here for the list of commands.
Command add_web(CLI::App& app) {
  CLI::App* web = app.add_subcommand("web", "the window as one HTML page (./cpscope web)");
  web->allow_extras();
  web->footer("Example: ./cpscope web --out ring.html");
  return {web, [] {
            std::cerr << "cpscope: the page is made by the launcher: ./cpscope web [--out FILE]\n";
            return 3;
          }};
}

/// A first word that names no command gets an answer that lists those there are.
std::optional<int> explain_unknown(const CLI::App& app, int argc, char** argv) {
  if (argc < 2) return std::nullopt;
  const std::string word = argv[1];
  if (word == "-h" || word == "--help" || word == "--version") return std::nullopt;
  if (word.starts_with('-')) {
    std::cerr << "cpscope: a command comes before its options: " << word
              << "; see cpscope --help\n";
    return 2;
  }
  std::string names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == word) return std::nullopt;
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  std::cerr << "cpscope: no command has this name: " << word << "; use one of " << names << '\n';
  return 2;
}

int run_command(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv) {
  if (const auto code = explain_unknown(app, argc, argv)) return *code;
  try {
    app.parse(argc, argv);
    for (const Command& command : commands) {
      if (!command.app->parsed()) continue;
      if (const auto error = check_outputs(*command.app)) return report(*error);
      const int code = command.run();
      std::cout.flush();
      if (std::cout) return code;
      std::cerr << "cpscope: the result could not be written to stdout\n";
      return 2;
    }
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    app.exit(error, std::cerr, std::cerr);
    note_error(make_error(ErrorKind::bad_input, error.what()));
    return 2;
  } catch (const std::bad_alloc&) {
    return report(make_error(ErrorKind::unavailable,
                             "cpscope: this machine has not enough memory for the request",
                             "use fewer tokens, ranks or sequences"));
  } catch (const std::system_error& error) {
    return report(
        make_error(ErrorKind::unavailable,
                   std::string("cpscope: the system refused what is needed: ") + error.what()));
  }
  return 2;
}

}  // namespace

int run_program(int argc, char** argv, Toolbox& toolbox, const PictureCommands& pictures) {
  std::ios::sync_with_stdio(false);
  CLI::App app("cpscope: the neutral referee and the picture of context-parallel attention",
               "cpscope");
  app.set_version_flag("--version", program_version());
  app.require_subcommand(1);
  app.footer(kFooter);
  CommandOptions options;
  options.draw = pictures.draw_figures;
  RenderRequest render_request;
  WindowRequest window_request;
  std::vector<Command> commands = add_inspecting(app, options);
  for (Command& command : add_predicting(app, options, toolbox, pictures))
    commands.push_back(std::move(command));
  for (Command& command : add_running(app, options, toolbox, pictures))
    commands.push_back(std::move(command));
  commands.push_back(add_render(app, render_request, toolbox, pictures));
  commands.push_back(add_window(app, window_request, toolbox, pictures));
  commands.push_back(add_web(app));
  std::optional<ErrorDocument> document;
  if (asks_for_json(argc, argv)) document.emplace();
  const int code = run_command(app, commands, argc, argv);
  if (document) document->finish(code);
  return code;
}

}  // namespace cpscope
