#include "sim/app/cli/commands.h"
#include "sim/documents/json_text.h"
#include "sim/faults/gallery.h"
#include "sim/findings/progress_bar.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

struct FaultsArguments {
  std::vector<std::string> names;  // only these; none: all
  OutputFiles files;
  bool json = false, list = false;
};

Json site_json(const FaultSite& site) {
  return {{"rank", to_index(site.rank)},
          {"step", to_index(site.step)},
          {"item", site.item.index},
          {"pass", to_name(site.item.direction)},
          {"kind", site.is_load ? std::string_view("input") : to_name(site.item.kind)}};
}

/// What the catalogue says of a fault.
Json entry_json(const Fault& fault) {
  Json json{{"name", fault.name},
            {"source", fault.source},
            {"class", fault.field_class},
            {"place", to_name(fault.place)},
            {"expected_detector", to_name(fault.detector)},
            {"in_the_wild", fault.wild},
            {"scenario", fault.scenario}};
  json["blind_scenario"] = nullptr;
  if (fault.blind)
    json["blind_scenario"] = {{"scenario", fault.blind->text}, {"why", fault.blind->why}};
  return json;
}

Json where_json(const FoundPlace& found) {
  Json json = site_json(found.site);
  json["rows"] = nullptr;
  if (found.row_begin >= 0) json["rows"] = {found.row_begin, found.row_end};
  json["token"] = nullptr;
  if (found.token >= 0) json["token"] = found.token;
  return json;
}

Json alarm_json(const Alarm& alarm) {
  const auto known = [](int64_t value) { return value < 0 ? Json(nullptr) : Json(value); };
  return {{"detector", to_name(alarm.detector)}, {"rank", known(alarm.rank)},
          {"step", known(alarm.step)},           {"token", known(alarm.token)},
          {"head", known(alarm.head)},           {"text", alarm.text}};
}

std::string_view verdict_on_blind(const BlindOutcome& blind) {
  if (blind.cells_exercised == 0 && blind.is_silent) return "blind";
  return blind.is_silent ? "missed" : "seen";
}

Json outcome_json(const FaultOutcome& outcome) {
  Json json = entry_json(*outcome.fault);
  json["caught"] = outcome.caught;
  json["detector"] = outcome.caught ? Json(to_name(outcome.fault->detector)) : Json(nullptr);
  json["where"] = outcome.where ? where_json(*outcome.where) : Json(nullptr);
  json["planted"] = outcome.planted ? site_json(*outcome.planted) : Json(nullptr);
  json["planted_fault"] = outcome.what;
  json["localised"] = outcome.localised;
  json["plan_check"] = outcome.plan_check;
  json["plan_is_refuted"] = outcome.plan_is_refuted;
  json["cells_exercised"] = outcome.cells_exercised;
  json["causes"] = outcome.cause_names();
  json["alarms"] = Json::array();
  for (const Alarm& alarm : outcome.alarms) json["alarms"].push_back(alarm_json(alarm));
  json["false_alarms"] = Json::array();
  for (const Alarm& alarm : outcome.false_alarms) json["false_alarms"].push_back(alarm_json(alarm));
  if (outcome.blind) {
    json["blind_scenario"]["verdict"] = verdict_on_blind(*outcome.blind);
    json["blind_scenario"]["has_place"] = outcome.blind->has_place;
    json["blind_scenario"]["cells_exercised"] = outcome.blind->cells_exercised;
  }
  if (!outcome.error.empty()) json["error"] = outcome.error;
  return json;
}

Json scope_json() {
  Json json = Json::array();
  for (const OutOfScope& entry : out_of_scope())
    json.push_back({{"class", entry.field_class}, {"what", entry.what}, {"why", entry.why}});
  return json;
}

int list_faults(const FaultsArguments& options) {
  if (options.json) {
    Json json{{"schema", 1}};
    json["faults"] = Json::array();
    for (const Fault& fault : fault_catalogue()) json["faults"].push_back(entry_json(fault));
    json["out_of_scope"] = scope_json();
    std::cout << print_json(json) << '\n';
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

/// The last columns; without trailing blanks where no cause is named.
std::string describe_blind_and_causes(const FaultOutcome& outcome) {
  const std::string_view blind = outcome.blind ? verdict_on_blind(*outcome.blind) : "-";
  if (outcome.causes.empty()) return std::string(blind);
  return fmt::format("{:<14} {}", blind, fmt::join(outcome.cause_names(), ", "));
}

void write_outcome(const FaultOutcome& outcome) {
  const Fault& fault = *outcome.fault;
  const char* verdict = !outcome.error.empty() ? "ERROR"
                        : !outcome.caught      ? "MISSED"
                        : !outcome.localised   ? "ELSEWHERE"
                                               : "caught";
  std::cout << fmt::format(
      "{:<9} {:<38} {:<16} {:<42} {:<10} {}\n", verdict, fault.name, to_name(fault.detector),
      outcome.where ? describe(outcome.where->site) : std::string("-"),
      outcome.plan_is_refuted ? "refuted" : "passes", describe_blind_and_causes(outcome));
  if (!outcome.error.empty()) std::cout << "          " << outcome.error << '\n';
  if (outcome.error.empty() && outcome.caught && !outcome.localised)
    std::cout << "          planted at " << describe(*outcome.planted) << '\n';
  if (!outcome.caught && !outcome.alarms.empty())
    std::cout << "          only: " << outcome.alarms.front().text << '\n';
  for (const Alarm& alarm : outcome.false_alarms)
    std::cout << fmt::format("          false alarm of {}: {}\n", to_name(alarm.detector),
                             alarm.text);
}

void write_gallery_report(const GalleryReport& report) {
  std::cout << fmt::format("{:<9} {:<38} {:<16} {:<42} {:<10} {:<14} {}\n", "verdict", "fault",
                           "detector", "found at", "plan_check", "blind scenario", "cause");
  for (const FaultOutcome& outcome : report.outcomes) write_outcome(outcome);
  std::cout << fmt::format(
      "{}: {} faults, {} caught, {} at the place where they were planted, {} false alarms, "
      "{:.1f} s\n",
      report.passed() ? "PASS" : "FAIL", report.outcomes.size(), report.caught(),
      report.localised(), report.false_alarms, report.seconds);
}

/// The named faults, or all of them.
Result<std::vector<Fault>> choose_faults(const std::vector<std::string>& names) {
  const std::span<const Fault> all = fault_catalogue();
  if (names.empty()) return std::vector<Fault>(all.begin(), all.end());
  std::vector<Fault> chosen;
  for (const std::string& name : names) {
    const auto fault =
        std::find_if(all.begin(), all.end(), [&](const Fault& one) { return one.name == name; });
    if (fault == all.end())
      return make_error(ErrorKind::bad_input, "no fault has this name: " + name,
                        "see cpscope faults --list");
    chosen.push_back(*fault);
  }
  return chosen;
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
      "{} faults planted, {} caught, {} at the place where they were planted, {} false alarms",
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
    write_gallery_report(gallery);
    if (const auto error =
            write_output_files(make_gallery_findings(gallery), options.files, tools, options.json))
      return report(*error);
    return gallery.passed() ? 0 : 1;
  }
  Json json{{"schema", 1}};
  json["faults"] = Json::array();
  for (const FaultOutcome& outcome : gallery.outcomes)
    json["faults"].push_back(outcome_json(outcome));
  json["false_alarms"] = gallery.false_alarms;
  json["passed"] = gallery.passed();
  json["caught"] = gallery.caught();
  json["localised"] = gallery.localised();
  json["out_of_scope"] = scope_json();
  json["seconds"] = gallery.seconds;
  std::cout << print_json(json) << '\n';
  if (const auto error =
          write_output_files(make_gallery_findings(gallery), options.files, tools, options.json))
    return report(*error);
  return gallery.passed() ? 0 : 1;
}

}  // namespace

Command add_faults(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<FaultsArguments>();
  CLI::App* faults = app.add_subcommand(
      "faults",
      "plants every known fault of the field in a small run and says which detector caught it and "
      "where");
  faults->add_option("NAME", options->names, "only these faults (see --list)");
  add_json(faults, options->json);
  add_output_files(faults, options->files);
  faults->add_flag("--list", options->list, "only name the faults, their sources and classes");
  faults->footer("Example: cpscope faults --list");
  return {faults, [options, tools] { return command_faults(*options, tools); }};
}

}  // namespace cpscope
