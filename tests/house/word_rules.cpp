#include "tests/house/word_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace cpscope::house {
namespace {

struct BannedWord {
  std::string_view word, instead;
};

constexpr std::array kBannedWords = {
    BannedWord{"asked", "requested, checked, run"},
    BannedWord{"beside", "next to, compared with, while"},
    BannedWord{"nobody", "no rank, no item, no user"},
    BannedWord{"somebody", "another user, other software"},
    BannedWord{"everybody", "all ranks, all users"},
    BannedWord{"dealt", "assigned, split"},
    BannedWord{"deals", "assigns, splits"},
    BannedWord{"wants", "needs"},
    BannedWord{"strangers", "untrusted input"},
    BannedWord{"furthest", "largest error"},
    BannedWord{"kv heads", "KV heads"},
    BannedWord{"for ever", "deadlock, without end"},
    BannedWord{"in the wild", "seen in"},
};

constexpr std::array<std::string_view, 4> kProductRooms = {"sim", "reference", "kernels", "gui"};

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Adds a finding for each banned word of a text.
void find_in(std::string_view text, const std::string& place, std::vector<std::string>& findings) {
  for (const BannedWord& banned : kBannedWords) {
    for (size_t at = text.find(banned.word); at != std::string_view::npos;
         at = text.find(banned.word, at + 1)) {
      const size_t end = at + banned.word.size();
      if ((at > 0 && is_letter(text[at - 1])) || (end < text.size() && is_letter(text[end])))
        continue;
      findings.push_back(place + ": " + std::string(banned.word) + ": use " +
                         std::string(banned.instead));
    }
  }
}

/// Calls visit(literal) for the string literals of a line, as the source has them.
template <class Visit>
void for_each_literal(std::string_view line, Visit visit) {
  size_t begin = std::string_view::npos;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool is_inside = begin != std::string_view::npos;
    if (is_inside && line[i] == '\\') {
      ++i;
    } else if (line[i] == '"' && !(i > 0 && line[i - 1] == '\'')) {
      if (is_inside) visit(line.substr(begin, i - begin));
      begin = is_inside ? std::string_view::npos : i + 1;
    } else if (!is_inside && line.substr(i).starts_with("//")) {
      return;
    }
  }
}

void find_in_code(const SourceFile& file, std::vector<std::string>& findings) {
  for (size_t i = 0; i < file.lines.size(); ++i) {
    if (file.lines[i].starts_with("#include")) continue;
    for_each_literal(file.lines[i], [&](std::string_view literal) {
      // A word alone is a name.
      if (literal.find(' ') == std::string_view::npos) return;
      find_in(literal, file.path + ":" + std::to_string(i + 1), findings);
    });
  }
}

/// The line without the code between backquotes.
std::string without_code(const std::string& line) {
  std::string text;
  bool is_code = false;
  for (const char c : line) {
    if (c == '`') is_code = !is_code;
    if (!is_code) text += c;
  }
  return text;
}

void find_in_page(const SourceFile& file, std::vector<std::string>& findings) {
  bool is_code = false;
  for (size_t i = 0; i < file.lines.size(); ++i) {
    const std::string& line = file.lines[i];
    if (line.starts_with("```")) is_code = !is_code;
    if (is_code || line.starts_with("    ")) continue;
    find_in(without_code(line), file.path + ":" + std::to_string(i + 1), findings);
  }
}

}  // namespace

std::vector<std::string> find_banned_words(const std::vector<SourceFile>& files) {
  std::vector<std::string> findings;
  for (const SourceFile& file : files) {
    const bool is_product = std::any_of(
        kProductRooms.begin(), kProductRooms.end(),
        [&](std::string_view room) { return file.path.starts_with(std::string(room) + "/"); });
    if (file.is_cpp() && is_product) find_in_code(file, findings);
    if (file.path.ends_with(".md")) find_in_page(file, findings);
  }
  return findings;
}

}  // namespace cpscope::house
