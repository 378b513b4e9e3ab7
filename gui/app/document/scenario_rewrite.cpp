#include "gui/app/document/scenario_rewrite.h"

#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace cpscope::gui {
namespace {

/// A key of a text and the lines [begin, end) that hold it.
struct TextEntry {
  std::string table, key, value;
  size_t begin = 0, end = 0;
};

/// A TOML text as lines, entries and the line behind the last entry of each table.
struct TextEntries {
  std::vector<std::string> lines;
  std::vector<TextEntry> entries;
  std::map<std::string, size_t> table_ends;

  const TextEntry* find(const std::string& table, const std::string& key) const {
    for (const TextEntry& entry : entries)
      if (entry.table == table && entry.key == key) return &entry;
    return nullptr;
  }
};

std::string_view without_blanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// The part of a line before its comment, and how much deeper in brackets its end is.
std::pair<std::string_view, int> strip_comment(std::string_view line) {
  char quote = 0;
  int depth = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == '\\' && quote == '"') ++i;
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      return {line.substr(0, i), depth};
    } else {
      depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    }
  }
  return {line, depth};
}

/// Nothing for texts with strings of several lines.
std::optional<TextEntries> read_entries(std::string_view text) {
  if (text.find("\"\"\"") != std::string_view::npos || text.find("'''") != std::string_view::npos)
    return std::nullopt;
  TextEntries all;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    all.lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  std::string table;
  for (size_t n = 0; n < all.lines.size(); ++n) {
    auto [line, depth] = strip_comment(all.lines[n]);
    line = without_blanks(line);
    if (line.empty()) continue;
    if (line.starts_with('[')) {
      table = std::string(without_blanks(line.substr(1, line.size() - 2)));
      all.table_ends[table] = n + 1;
      continue;
    }
    const size_t sign = line.find('=');
    if (sign == std::string_view::npos) return std::nullopt;
    TextEntry entry{table, std::string(without_blanks(line.substr(0, sign))),
                    std::string(without_blanks(line.substr(sign + 1))), n, n + 1};
    while (depth > 0 && entry.end < all.lines.size()) {
      const auto [more, deeper] = strip_comment(all.lines[entry.end++]);
      entry.value += "\n" + std::string(more);
      depth += deeper;
    }
    n = entry.end - 1;
    all.table_ends[table] = entry.end;
    all.entries.push_back(std::move(entry));
  }
  return all;
}

/// Replaces the value of an entry; the blanks before it and a comment behind it stay.
std::string replace_value(const TextEntries& all, const TextEntry& entry,
                          const std::string& value) {
  const std::string& first = all.lines[entry.begin];
  size_t begin = first.find('=') + 1;
  while (begin < first.size() && first[begin] == ' ') ++begin;
  const std::string& last = all.lines[entry.end - 1];
  const size_t comment = strip_comment(last).first.size();
  std::string line = first.substr(0, begin) + value;
  if (comment < last.size()) line += "  " + last.substr(comment);
  return line;
}

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::optional<std::string> rewrite(const std::string& text, const Scenario& from,
                                   const Scenario& to) {
  const auto own = read_entries(text), before = read_entries(print_scenario(from)),
             after = read_entries(print_scenario(to));
  if (!own || !before || !after) return std::nullopt;
  std::map<size_t, std::vector<std::string>> added;  // lines before this one
  std::vector<std::string> lines = own->lines;
  std::vector<bool> is_gone(lines.size(), false);
  std::vector<std::string> tables;  // at the end of the text
  std::string last_table;
  for (const TextEntry& entry : after->entries) {
    const TextEntry* old = before->find(entry.table, entry.key);
    if (old != nullptr && old->value == entry.value) continue;
    if (const TextEntry* written = own->find(entry.table, entry.key)) {
      lines[written->begin] = replace_value(*own, *written, entry.value);
      for (size_t n = written->begin + 1; n < written->end; ++n) is_gone[n] = true;
      continue;
    }
    const std::string line = entry.key + " = " + entry.value;
    if (const auto end = own->table_ends.find(entry.table); end != own->table_ends.end()) {
      added[end->second].push_back(line);
      continue;
    }
    if (entry.table != last_table) {
      tables.push_back("");
      tables.push_back("[" + entry.table + "]");
      last_table = entry.table;
    }
    tables.push_back(line);
  }
  for (const TextEntry& entry : before->entries) {
    if (after->find(entry.table, entry.key) != nullptr) continue;
    const TextEntry* written = own->find(entry.table, entry.key);
    if (written == nullptr) continue;
    for (size_t n = written->begin; n < written->end; ++n) is_gone[n] = true;
  }
  std::vector<std::string> result;
  for (size_t n = 0; n <= lines.size(); ++n) {
    if (const auto it = added.find(n); it != added.end())
      result.insert(result.end(), it->second.begin(), it->second.end());
    if (n < lines.size() && !is_gone[n]) result.push_back(lines[n]);
  }
  result.insert(result.end(), tables.begin(), tables.end());
  return join_lines(result);
}

/// Equal, as far as texts say it: of an order of tokens they name the file.
bool reads_as(const std::string& text, const std::string& wanted, const std::string& anchor,
              ScenarioOrigin origin) {
  const Result<LoadedScenario> a = parse_scenario(text, anchor, origin);
  const Result<LoadedScenario> b = parse_scenario(wanted, anchor, origin);
  return a && b && a.value().scenario == b.value().scenario;
}

}  // namespace

std::string rewrite_scenario(const std::string& text, const Scenario& from, const Scenario& to,
                             const std::string& anchor) {
  std::string plain = print_scenario(to);
  const std::optional<std::string> kept = rewrite(text, from, to);
  // An order that is only in memory has no file yet.
  const ScenarioOrigin origin = to.parallel.layout == LayoutKind::indices
                                    ? ScenarioOrigin::plan_document
                                    : ScenarioOrigin::file;
  if (kept && reads_as(*kept, plain, anchor, origin)) return *kept;
  return plain;
}

}  // namespace cpscope::gui
