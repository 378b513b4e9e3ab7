#pragma once

// Include only in files that read or write states: it pulls in the JSON library.

#include "gui/model/target.h"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace cpscope::gui {

using StateJson = nlohmann::ordered_json;

/// Reads one JSON object strictly. Keeps the first problem; after it all values read as absent.
class JsonReader {
 public:
  /// `value` may be null: then every key is missing.
  JsonReader(const StateJson* value, std::string name, std::string* problem);

  /// Returns null and records a problem when the key is missing.
  const StateJson* find(std::string_view key);
  JsonReader table(std::string_view key);
  void text(std::string_view key, std::string& out);
  /// Reads an optional key.
  void optional_text(std::string_view key, std::string& out);
  void boolean(std::string_view key, bool& out);
  void optional_boolean(std::string_view key, bool& out);
  void optional_numbers(std::string_view key, std::vector<double>& out);
  void integer(std::string_view key, int64_t least, int64_t most, int64_t& out);
  void number(std::string_view key, double least, double most, double& out);
  void fail(std::string_view key, std::string_view what);
  /// Call after all keys are read: any other key is a problem.
  void finish();

 private:
  const StateJson* value_;
  std::string name_;
  std::string* problem_;
  std::set<std::string, std::less<>> known_;
};

StateJson write_target(const Target& target);
void read_target(JsonReader reader, Target& target);

}  // namespace cpscope::gui
