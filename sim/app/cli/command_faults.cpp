#include "sim/app/cli/commands.h"
#include "sim/documents/fault_text.h"
#include "sim/findings/progress_bar.h"
#include "sim/scenario/scenario_file.h"

#include <iostream>
#include <memory>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct FaultsArguments {
  std::vector<std::string> names;  // only these; none: all
  OutputFiles files;
  bool json = false, list = false;
};

int list_faults(const FaultsArguments& options) {
  if (options.json) {
    std::cout << print_json(catalogue_json()) << '\n';
    return 0;
  }
  for (const Fault& fault : fault_catalogue()) {
    std::cout << fmt::format("{:<38} {:<9} {:<9} {:<16} {}\n", fault.name, fault.field_class,
                             to_name(fault.place), to_name(fault.detector), fault.source);
  }
  std::cout << fmt::format("{} faults. Out of scope:\n", fault_catalogue().size());
  for (const OutOfScope& entry : out_of_scope())
    std::cout << fmt::format("  {:<4} {}: {}\n", entry.field_class, entry.what, entry.why);
  return 0;
}

/// Is the outcome what the gallery wants of a fault?
bool is_right(const FaultOutcome& outcome) {
  const bool is_blind = !outcome.blind || verdict_on_blind(*outcome.blind) == "blind";
  return outcome.error.empty() && outcome.caught && outcome.localised && is_blind &&
         outcome.false_alarms.empty();
}

std::string reason_of(const FaultOutcome& outcome) {
  const std::string where = outcome.where ? describe(outcome.where->site) : "an unknown place";
  if (!outcome.error.empty()) return outcome.error;
  if (!outcome.caught)
    return fmt::format("the {} did not go off", to_name(outcome.fault->detector));
  if (!outcome.localised)
    return fmt::format("found at {}, but planted at {}", where, describe(*outcome.planted));
  if (!outcome.false_alarms.empty())
    return "false alarm of the clean twin: " + outcome.false_alarms.front().text;
  if (!is_right(outcome)) return "its blind scenario shows it";
  return fmt::format("by the {} at {}", to_name(outcome.fault->detector), where);
}

/// What is told of one fault, its plan with it.
CaseFindings make_fault_findings(const FaultOutcome& outcome) {
  const Fault& fault = *outcome.fault;
  CaseOutcome none;
  none.status = is_right(outcome) ? CaseStatus::pass : CaseStatus::fail;
  none.reason = reason_of(outcome);
  none.executor = "cpu, watched";
  if (const Result<LoadedScenario> loaded = parse_scenario(fault.scenario, fault.name)) {
    if (Result<CheckedPlan> plan = plan_scenario(loaded.value())) none.plan = plan.value();
  }
  CaseFindings findings = make_findings(fault.name, fault.scenario, std::move(none));
  findings.path.clear();
  findings.replay = "cpscope faults " + fault.name;
  findings.fault = &outcome;
  findings.notes.push_back("Planted: " + outcome.what);
  findings.notes.push_back(fmt::format("Seen in {}: {}", fault.source, fault.wild));
  for (const Cause& cause : outcome.causes)
    findings.notes.push_back("Cause, from the answer alone: " + describe(cause));
  if (outcome.blind)
    findings.blind.push_back(fmt::format("a scenario that is {} to it: {}",
                                         verdict_on_blind(*outcome.blind), fault.blind->why));
  if (!outcome.where || !findings.plan) return findings;
  WrongPlace place;
  place.site = outcome.where->site;
  place.token = outcome.where->token;
  place.found_by = fmt::format("where the run parts from its clean twin; the {} went off",
                               to_name(fault.detector));
  place.tiles = tiles_of(findings.plan->plan(), place.site, place.token, false);
  findings.first = std::move(place);
  return findings;
}

Findings make_gallery_findings(const GalleryReport& gallery) {
  Findings all{.command = "faults", .date = today()};
  all.summary = fmt::format(
      "{} faults planted, {} caught, {} at the place "
      "where they were planted, {} false alarms",
      gallery.outcomes.size(), gallery.caught(), gallery.localised(), gallery.false_alarms);
  for (const FaultOutcome& outcome : gallery.outcomes)
    all.cases.push_back(make_fault_findings(outcome));
  return all;
}

int command_faults(const FaultsArguments& options, const Tools& tools) {
  if (options.list) return list_faults(options);
  if (const auto error = check_output_files(options.files)) return report(*error);
  const Result<std::vector<Fault>> faults = choose_faults(options.names);
  if (!faults) return report(faults.error());
  if (!tools.toolbox.watched_walker)
    return report(make_error(ErrorKind::unavailable, "this build has no watched walker"));
  const auto run = [&] {
    ProgressBar bar(true);
    return run_gallery(faults.value(), tools.toolbox, bar.phase("faults"));
  };
  const GalleryReport gallery = run();
  if (!options.json) {
    write_gallery_text(gallery, std::cout);
    if (const auto error =
            write_output_files(make_gallery_findings(gallery), options.files, tools, options.json))
      return report(*error);
    return gallery.passed() ? 0 : 1;
  }
  std::cout << print_json(gallery_json(gallery)) << '\n';
  if (const auto error =
          write_output_files(make_gallery_findings(gallery), options.files, tools, options.json))
    return report(*error);
  return gallery.passed() ? 0 : 1;
}

}  // namespace

Command add_faults(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<FaultsArguments>();
  CLI::App* faults =
      app.add_subcommand("faults",
                         "plants every known fault of the field in a small run and says "
                         "which detector caught it and "
                         "where");
  faults->add_option("NAME", options->names, "only these faults (see --list)");
  add_json(faults, options->json);
  add_output_files(faults, options->files);
  faults->add_flag("--list", options->list, "only name the faults, their sources and classes");
  faults->footer("Example: cpscope faults --list");
  return {faults, [options, tools] { return command_faults(*options, tools); }};
}

}  // namespace cpscope
