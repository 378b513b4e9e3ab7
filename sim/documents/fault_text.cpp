#include "sim/documents/fault_text.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

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

/// The last columns; without trailing blanks where no cause is named.
std::string describe_blind_and_causes(const FaultOutcome& outcome) {
  const std::string_view blind = outcome.blind ? verdict_on_blind(*outcome.blind) : "-";
  if (outcome.causes.empty()) return std::string(blind);
  return fmt::format("{:<14} {}", blind, fmt::join(outcome.cause_names(), ", "));
}

void write_outcome(const FaultOutcome& outcome, std::ostream& out) {
  const Fault& fault = *outcome.fault;
  const char* verdict = !outcome.error.empty() ? "ERROR"
                        : !outcome.caught      ? "MISSED"
                        : !outcome.localised   ? "ELSEWHERE"
                                               : "caught";
  out << fmt::format(
      "{:<9} {:<38} {:<16} {:<42} {:<10} {}\n", verdict, fault.name, to_name(fault.detector),
      outcome.where ? describe(outcome.where->site) : std::string("-"),
      outcome.plan_is_refuted ? "refuted" : "passes", describe_blind_and_causes(outcome));
  if (!outcome.error.empty()) out << "          " << outcome.error << '\n';
  if (outcome.error.empty() && outcome.caught && !outcome.localised)
    out << "          planted at " << describe(*outcome.planted) << '\n';
  if (!outcome.caught && !outcome.alarms.empty())
    out << "          only: " << outcome.alarms.front().text << '\n';
  for (const Alarm& alarm : outcome.false_alarms)
    out << fmt::format("          false alarm of {}: {}\n", to_name(alarm.detector), alarm.text);
}

}  // namespace

std::string_view verdict_on_blind(const BlindOutcome& blind) {
  if (blind.cells_exercised == 0 && blind.is_silent) return "blind";
  return blind.is_silent ? "missed" : "seen";
}

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

Json catalogue_json() {
  Json json{{"schema", 1}};
  json["faults"] = Json::array();
  for (const Fault& fault : fault_catalogue()) json["faults"].push_back(entry_json(fault));
  json["out_of_scope"] = scope_json();
  return json;
}

Json gallery_json(const GalleryReport& report) {
  Json json{{"schema", 1}};
  json["faults"] = Json::array();
  for (const FaultOutcome& outcome : report.outcomes)
    json["faults"].push_back(outcome_json(outcome));
  json["false_alarms"] = report.false_alarms;
  json["passed"] = report.passed();
  json["caught"] = report.caught();
  json["localised"] = report.localised();
  json["out_of_scope"] = scope_json();
  json["seconds"] = report.seconds;
  return json;
}

void write_gallery_text(const GalleryReport& report, std::ostream& out) {
  out << fmt::format("{:<9} {:<38} {:<16} {:<42} {:<10} {:<14} {}\n", "verdict", "fault",
                     "detector", "found at", "plan_check", "blind scenario", "cause");
  for (const FaultOutcome& outcome : report.outcomes) write_outcome(outcome, out);
  out << fmt::format(
      "{}: {} faults, {} caught, {} at the place where they were planted, {} false alarms, "
      "{:.1f} s\n",
      report.passed() ? "PASS" : "FAIL", report.outcomes.size(), report.caught(),
      report.localised(), report.false_alarms, report.seconds);
}

}  // namespace cpscope
