#include "sim/app/report/findings_json.h"

#include "sim/documents/verdict_text.h"

#include <string_view>

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

}  // namespace cpscope
