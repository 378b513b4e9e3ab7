#include "sim/app/cli/program.h"

#include "sim/app/cli/commands.h"
#include "sim/base/version.h"
#include "sim/findings/error_document.h"

#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>

#include <CLI/CLI.hpp>

namespace cpscope {

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done and passed, 1 a verification failed, 2 bad input, bad usage or refused by "
    "rule,\n"
    "3 that executor is not here or cannot do this scenario.\n"
    "The manual: sim/app/README.md; what the words mean: the glossary in sim/README.md.";

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

/// The steps of a pass one after the other.
void add_animation(CLI::App* render, RenderRequest& request, CLI::Option* step) {
  CLI::Option* animate =
      render
          ->add_flag("--animate", request.is_animated,
                     "all steps of a pass, one after the other, as animated PNG: packets move, "
                     "tiles fill")
          ->excludes(step);
  render->add_option("--pass", request.pass, "of --animate: forward (default), backward or both")
      ->check(CLI::IsMember({"forward", "backward", "both"}))
      ->needs(animate);
  render
      ->add_option("--frames-per-step", request.frames_per_step,
                   "of --animate: 1 to 64 (default 16)")
      ->check(whole_number(1, 64))
      ->needs(animate);
  render
      ->add_option("--step-seconds", request.seconds_per_step,
                   "of --animate: how long a step moves, 0.1 to 30 (default 1.2)")
      ->check(finite_number(0.1, 30.0))
      ->needs(animate);
}

/// A lesson of the window on one page of paper.
void add_handout(CLI::App* render, RenderRequest& request) {
  const std::vector<CLI::Option*> others = render->get_options();
  CLI::Option* lesson =
      render
          ->add_option("--lesson", request.lesson,
                       "instead of FILE and --view: a handout of this lesson of the window, from "
                       "1: its pictures, texts and questions on one page")
          ->check(whole_number(1));
  for (CLI::Option* option : others) {
    const std::string name = option->get_name();
    const bool is_shared = name == "--out" || name == "--theme" || name == "--scale" ||
                           name == "--fonts" || option == render->get_help_ptr();
    if (!is_shared) lesson->excludes(option);
  }
  render->add_flag("--answers", request.has_answers, "of --lesson: answers instead of hints")
      ->needs(lesson);
}

Command add_render(CLI::App& app, const Tools& tools) {
  const auto request = std::make_shared<RenderRequest>();
  CLI::App* render = app.add_subcommand("render", "a picture of one plan; no display is needed");
  render->add_option("FILE", request->scenario_path,
                     "scenario file (TOML), or a plan document (JSON); not with --lesson");
  render
      ->add_option("--view", request->view,
                   "what to show: layout, mask, traffic, timeline, numbers, balance, several of "
                   "them with commas (mask,traffic), or all")
      ->check(kNotEmpty);
  render->add_option("--out", request->out_path, "the picture, .png or .svg")
      ->required()
      ->check(kNotEmpty);
  CLI::Option* step =
      render
          ->add_option(
              "--step", request->step,
              "moment: forward steps first, then backward ones, from 0 (default: the second "
              "forward step if there is one)")
          ->check(whole_number());
  add_animation(render, *request, step);
  render->add_option("--rank", request->rank, "whose local order and whose caption (default 0)")
      ->check(whole_number());
  CLI::Option* theme = render
                           ->add_option("--theme", request->theme,
                                        "dark (default), light or print (default of --lesson)")
                           ->check(CLI::IsMember({"dark", "light", "print"}));
  render->add_option("--size", request->size, "logical pixels, e.g. 1280x860");
  render->add_option("--scale", request->scale, "pixels of a logical pixel, 1 to 4")
      ->check(finite_number(1.0, 4.0));
  render
      ->add_option("--fonts", request->fonts,
                   "packages (default: Inter and JetBrains Mono where they are installed) or "
                   "built-in (PNG that depends on no font file)")
      ->check(CLI::IsMember({"packages", "built-in"}));
  render
      ->add_option("--run", request->executor,
                   "carry the scenario out on this executor first, so that there are numbers "
                   "(default: cpu for the views numbers and all)")
      ->check(kNotEmpty);
  render
      ->add_option(
          "--select", request->selection,
          "what to light: \"rank 2\", \"token 700\", \"q 0-64\", \"1 -> 2\", \"step 3\" ...")
      ->check(kNotEmpty);
  render
      ->add_option("--tensor", request->tensor,
                   "view numbers: whose errors (default: out, or dq of a backward step)")
      ->check(CLI::IsMember({"out", "lse", "dq", "dk", "dv"}));
  render->add_flag(
      "--per-step", request->is_by_step,
      "view numbers: what the step wrote, compared with exact partial results, instead of "
      "the whole answer");
  add_prediction(render, request->cluster, request->stack);
  render
      ->add_option("--record", request->record,
                   "view timeline: the times that a record of this plan has measured, next to "
                   "predicted ones with --cluster")
      ->check(kNotEmpty)
      ->excludes(add_measured(render, request->measured, request->layer));
  add_handout(render, *request);
  add_json(render, request->json);
  render->footer(
      "Example: cpscope render scenarios/zigzag.toml --view mask --step 2 --out zigzag.png\n"
      "A handout: cpscope render --lesson 3 --out zigzag.svg");
  return {render, [request, tools, theme] {
            if (request->lesson && theme->count() == 0) request->theme = "print";
            if (tools.pictures.render) return tools.pictures.render(*request, tools.toolbox);
            std::cerr << "cpscope: this program was built without pictures\n";
            return 3;
          }};
}

Command add_window(CLI::App& app, const Tools& tools) {
  const auto request = std::make_shared<WindowRequest>();
  CLI::App* window = app.add_subcommand("gui", "the window: see one plan from six sides");
  window->add_option("FILE", request->path,
                     "scenario (TOML) or record (.safetensors); a shipped scenario if left out");
  window
      ->add_option("--theme", request->theme,
                   "dark, light or print (default: as the last window, or dark)")
      ->check(CLI::IsMember({"dark", "light", "print"}));
  window->add_option("--size", request->size,
                     "logical pixels (default: as the last window, or 1600x1000)");
  window
      ->add_option("--scale", request->scale,
                   "pixels of a logical pixel, 1 to 4 (default: the screen's)")
      ->check(finite_number(1.0, 4.0));
  window
      ->add_option("--screenshot", request->screenshot_path,
                   "write this PNG of the window instead of opening it; no display is needed")
      ->check(kNotEmpty);
  window->add_option("--state", request->state_path,
                     "open what a screenshot's JSON file has saved");
  window->add_option("--step", request->step, "where the playhead is, as in render")
      ->check(whole_number());
  window->add_option("--run", request->executor, "carry the scenario out on this executor at once")
      ->check(kNotEmpty);
  add_prediction(window, request->cluster, request->stack);
  add_measured(window, request->measured, request->layer);
  window->add_option("--frames", request->frames, "close after so many frames")
      ->check(whole_number());
  window->add_option("--watch", request->watch_folder,
                     "whenever the window comes to rest, write its widgets (hits.json) and pixels "
                     "(card.png, raster.png) to this folder");
  window->footer("Example: cpscope gui scenarios/thd_padding_p2p.toml --theme light");
  return {window, [request, tools] {
            if (tools.pictures.open_window)
              return tools.pictures.open_window(*request, tools.toolbox);
            std::cerr << "cpscope: this program was built without a window\n";
            return 3;
          }};
}

/// The page is compiled from the sources, so the launcher makes it; here for the list of commands.
Command add_web(CLI::App& app, const Tools&) {
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
  const Tools tools{toolbox, pictures};
  std::vector<Command> commands;
  for (const auto& add :
       {add_layout,   add_plan,    add_check,    add_diff,     add_import,    add_keys,
        add_timeline, add_compare, add_forecast, add_validate, add_calibrate, add_run,
        add_grade,    add_verify,  add_probe,    add_fuzz,     add_faults,    add_power,
        add_bench,    add_demo,    add_render,   add_window,   add_web})
    commands.push_back(add(app, tools));
  std::optional<ErrorDocument> document;
  if (asks_for_json(argc, argv)) document.emplace();
  const int code = run_command(app, commands, argc, argv);
  if (document) document->finish(code);
  return code;
}

}  // namespace cpscope
