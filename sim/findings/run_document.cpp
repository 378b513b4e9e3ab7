#include "sim/findings/run_document.h"

#include "sim/documents/grade_text.h"
#include "sim/documents/verdict_text.h"

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace cpscope {
namespace {

Json place_json(const WrongPlace& place) {
  const auto known = [](int64_t value) { return value < 0 ? Json(nullptr) : Json(value); };
  const auto value = [](const std::optional<double>& v) {
    return v ? finite_or_null(*v) : Json(nullptr);
  };
  const FaultSite& site = place.site;
  Json json{{"pass", to_name(site.item.direction)},
            {"step", to_index(site.step)},
            {"rank", to_index(site.rank)},
            {"kind", site.is_load ? std::string_view("input") : to_name(site.item.kind)},
            {"item", site.item.index},
            {"tensor", place.array},
            {"token", known(place.token)},
            {"is_key", place.is_key},
            {"head", known(place.head)},
            {"expected", value(place.expected)},
            {"seen", value(place.seen)}};
  json["tiles"] = Json::array();
  for (const WrongTile& tile : place.tiles) {
    Json entry;
    entry["q"] = {tile.q.begin, tile.q.end, tile.q.stride};
    entry["k"] = {tile.k.begin, tile.k.end, tile.k.stride};
    json["tiles"].push_back(std::move(entry));
  }
  json["text"] = describe(place);
  return json;
}

}  // namespace

void add_findings(const CaseFindings& findings, Json& json) {
  if (findings.status == CaseStatus::fail) {
    json["first_wrong"] = findings.first ? place_json(*findings.first) : Json(nullptr);
    if (!findings.not_located.empty()) json["not_located"] = findings.not_located;
    json["worst_rows"] = Json::array();
    for (const WrongRow& row : findings.worst_rows) {
      json["worst_rows"].push_back({{"tensor", row.tensor},
                                    {"rank", row.rank},
                                    {"token", row.token},
                                    {"head", row.head},
                                    {"times_budget", finite_or_null(row.share)},
                                    {"expected", finite_or_null(row.expected)},
                                    {"seen", finite_or_null(row.seen)}});
    }
  }
  if (findings.probe) json["probe"] = probe_json(*findings.probe, findings.executor);
}

Json run_json(const CaseFindings& findings, const RunSeconds& seconds) {
  Json json = grade_json(findings.grade, findings.executor, findings.plan->plan().hash);
  const bool is_sample = !findings.judged.is_empty();
  json["judged"] = {{"whole", !is_sample},
                    {"query_rows", findings.judged.query_tokens.size()},
                    {"key_rows", findings.judged.key_tokens.size()}};
  json["seconds"] = {{"plan", seconds.plan}, {"run", seconds.run}, {"judge", seconds.judge}};
  add_findings(findings, json);
  return json;
}

void write_run_text(const CaseFindings& findings, const RunSeconds& seconds, std::ostream& out) {
  const std::string coverage = describe_coverage(findings.grade);
  out << fmt::format("{} on executor {}, plan {}{}{}\n", describe_judgement(findings.grade),
                     findings.executor, to_hex(findings.plan->plan().hash),
                     coverage.empty() ? "" : "; ", coverage);
  write_grade_table(findings.grade, out);
  if (findings.first) out << "first wrong at " << describe(*findings.first) << '\n';
  out << fmt::format("planned and proved in {:.3f} s, ran in {:.3f} s, judged in {:.3f} s\n",
                     seconds.plan, seconds.run, seconds.judge);
}

}  // namespace cpscope
