#include "sim/plan/document/document_parts.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/toml_document.h"

#include <nlohmann/json.hpp>

namespace cpscope {
namespace {

std::string quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void print_value(const TomlValue& value, std::string& json);

void print_members(const TomlValue& table, std::string& json) {
  bool is_first = true;
  for (const TomlMember& member : table.members()) {
    json += (is_first ? "" : ",") + quote(member.key) + ":";
    print_value(member.value, json);
    is_first = false;
  }
}

void print_value(const TomlValue& value, std::string& json) {
  switch (value.kind()) {
    case TomlKind::boolean:
      json += value.boolean() ? "true" : "false";
      return;
    case TomlKind::integer:
      json += fmt::format("{}", value.integer());
      return;
    case TomlKind::floating: {
      const std::string shown = fmt::format("{}", value.floating());
      json += shown;
      // TOML tells whole numbers from others.
      if (shown.find_first_of(".en") == std::string::npos) json += ".0";
      return;
    }
    case TomlKind::text:
      json += quote(value.text());
      return;
    case TomlKind::array:
      json += '[';
      for (int64_t i = 0; i < value.size(); ++i) {
        if (i > 0) json += ',';
        print_value(value.item(i), json);
      }
      json += ']';
      return;
    case TomlKind::table:
      json += '{';
      print_members(value, json);
      json += '}';
      return;
    case TomlKind::none:
    case TomlKind::date_or_time:
      CPSCOPE_CHECK(false, "a printed scenario has a value of another kind",
                    describe_kind(value.kind()), "");
  }
}

/// What the generator of the lengths, or the file of the mask, has made.
std::string print_made(const Scenario& scenario, std::string_view table) {
  std::string json;
  if (table == "batch" && scenario.batch.generator)
    json += fmt::format(",\"lengths\":[{}]", fmt::join(scenario.batch.lengths, ","));
  if (table == "attention" && scenario.attention.generator &&
      !scenario.attention.generator->file.empty()) {
    json += ",\"slices\":[";
    for (const MaskSlice& slice : scenario.attention.slices)
      json += fmt::format("{}[{},{},{},{},\"{}\"]", json.back() == '[' ? "" : ",", slice.q0,
                          slice.q1, slice.k0, slice.k1, to_name(slice.type));
    json += ']';
  }
  return json;
}

void append_toml(JsonReader& json, bool is_top, std::string& toml) {
  switch (json.peek()) {
    case JsonKind::object: {
      if (!is_top) toml += "{ ";
      std::string_view key;
      bool is_first = true;
      json.begin_object();
      while (json.next_key(key)) {
        const std::string name(key);
        if (!is_top && !is_first) toml += ", ";
        toml += print_toml_text(name) + " = ";
        append_toml(json, false, toml);
        if (is_top) toml += '\n';
        if (json.has_failed()) return json.name_place(name);
        is_first = false;
      }
      if (!is_top) toml += " }";
      return;
    }
    case JsonKind::array: {
      toml += '[';
      json.begin_array();
      for (int64_t i = 0; json.next_item(); ++i) {
        if (i > 0) toml += ", ";
        append_toml(json, false, toml);
        if (json.has_failed()) return json.name_place(i);
      }
      toml += ']';
      return;
    }
    case JsonKind::text:
      toml += print_toml_text(json.text());
      return;
    case JsonKind::number:
      toml += json.number();
      return;
    case JsonKind::boolean:
      toml += json.boolean() ? "true" : "false";
      return;
    case JsonKind::null:
    case JsonKind::other:
      json.null();
      if (!json.has_failed()) json.fail("null has no meaning in a scenario", "leave the key out");
      return;
  }
}

/// "/scenario/parallel/cp_size is ..." for "parallel.cp_size is ...".
std::string point_to_key(const std::string& what) {
  const size_t end = what.find_first_of(" :");
  const std::string name = what.substr(0, end);
  const bool is_key = end != std::string::npos && name.find('.') != std::string::npos;
  if (!is_key) return "/scenario: " + what;
  std::string place = "/scenario/" + name;
  std::replace(place.begin(), place.end(), '.', '/');
  return place + what.substr(end);
}

}  // namespace

std::string scenario_json(const Scenario& scenario) {
  const Result<TomlDocument> document = TomlDocument::parse(print_scenario(scenario), "scenario");
  std::string json = "{";
  const TomlValue root = document.value().root();
  for (const TomlMember& member : root.members()) {
    if (json.size() > 1) json += ",\n";
    json += quote(member.key) + ":";
    print_value(member.value, json);
    if (const std::string made = print_made(scenario, member.key); !made.empty()) {
      json.pop_back();
      json += made + "}";
    }
  }
  return json + "}";
}

std::optional<Error> read_scenario(JsonReader& json, const std::string& path, Scenario& scenario) {
  if (json.peek() != JsonKind::object) {
    json.begin_object();
    return std::nullopt;  // the reader knows what is wrong
  }
  std::string toml;
  append_toml(json, true, toml);
  if (json.has_failed()) return std::nullopt;
  Result<LoadedScenario> loaded = parse_scenario(toml, path, ScenarioOrigin::plan_document);
  if (loaded) {
    scenario = std::move(loaded.value().scenario);
    return std::nullopt;
  }
  Error error = loaded.error();
  for (Complaint& complaint : error.complaints) {
    complaint.where = path;  // lines of the TOML would mislead
    complaint.what = point_to_key(complaint.what);
  }
  return error;
}

}  // namespace cpscope
