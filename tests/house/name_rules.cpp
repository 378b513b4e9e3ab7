#include "tests/house/name_rules.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <regex>
#include <string_view>
#include <utility>

namespace cpscope::house {

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// The text of a file with comments and the insides of literals left out, line breaks kept.
class Reader {
 public:
  explicit Reader(const SourceFile& file) {
    for (const std::string& line : file.lines) text_ += line + '\n';
  }

  std::string read() {
    while (at_ < text_.size()) {
      if (starts("//")) {
        skip_to("\n");
      } else if (starts("/*")) {
        skip_to("*/");
        at_ += 2;
      } else if (text_[at_] == 'R' && starts("R\"") && !follows_word()) {
        const size_t open = text_.find('(', at_);
        skip_to(")" + text_.substr(at_ + 2, open - at_ - 2) + "\"");
        skip_to("\"");
        ++at_;
        out_ += "\"\"";
      } else if (text_[at_] == '"' || (text_[at_] == '\'' && !follows_word())) {
        skip_literal(text_[at_]);
      } else {
        out_ += text_[at_++];
      }
    }
    return out_;
  }

 private:
  bool starts(std::string_view word) const { return text_.compare(at_, word.size(), word) == 0; }
  bool follows_word() const { return at_ > 0 && is_word(text_[at_ - 1]); }

  void skip_to(const std::string& word) {
    const size_t end = std::min(text_.find(word, at_), text_.size());
    for (; at_ < end; ++at_) {
      if (text_[at_] == '\n') out_ += '\n';
    }
  }

  void skip_literal(char quote) {
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) at_ += text_[at_] == '\\';
    ++at_;
    out_ += "\"\"";
  }

  std::string text_, out_;
  size_t at_ = 0;
};

/// Without the parameter list of a template, which may hold whole declarations.
std::string without_template_head(const std::string& text) {
  static const std::regex kHead(R"(^\s*template\s*<)");
  std::smatch match;
  if (!std::regex_search(text, match, kHead)) return text;
  int depth = 1;
  size_t at = static_cast<size_t>(match.length());
  for (; at < text.size() && depth > 0; ++at) depth += (text[at] == '<') - (text[at] == '>');
  return text.substr(at);
}

/// Blanks out what a template's angle brackets or an attribute's brackets hold, from the inside
/// out.
std::string without_brackets(std::string head) {
  static const std::regex kInside(R"(<[^<>()=]*>|\[\[[^\]]*\]\])");
  for (std::string before; before != head;) {
    before = head;
    head = std::regex_replace(head, kInside, "");
  }
  return head;
}

/// The name that a declaration's text up to its '{' or ';' declares, if it declares one.
std::optional<std::string> name_in(const std::string& text) {
  static const std::regex kType(
      R"(^\s*(?:struct|class|union|enum(?:\s+class)?)\s+(\w+)\s*(?:final\s*)?(?::[^]*)?$)");
  static const std::regex kAlias(R"(^\s*(?:using|namespace)\s+(\w+)\s*=[^]*)");
  static const std::regex kOther(R"(^\s*(?:using|friend|static_assert|extern)\b[^]*)");
  static const std::regex kTest(
      R"(^\s*(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_SUITE|INSTANTIATE_TEST_SUITE_P|RC_GTEST_PROP)\s*\([^]*)");
  static const std::regex kValue(R"(^[^=(]*?(\boperator\s*[^\s(]+|[\w:]+)\s*(?:\(|=|\[|$)[^]*)");
  const std::string head = without_brackets(without_template_head(text.substr(0, text.find("<<"))));
  std::smatch match;
  if (std::regex_match(head, kTest)) return std::nullopt;
  if (std::regex_match(head, match, kType) || std::regex_match(head, match, kAlias))
    return match[1];
  if (std::regex_match(head, kOther) || !std::regex_match(head, match, kValue)) return std::nullopt;
  // Members that are defined outside of their class.
  const std::string name = match[1];
  return name.find("::") == std::string::npos ? std::optional(name) : std::nullopt;
}

/// Walks over the declarations of a file that stand in namespaces, not in functions or types.
class Declarations {
 public:
  explicit Declarations(std::string text) : text_(std::move(text)) {}

  std::vector<OwnName> find() {
    for (at_ = 0; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      line_ += c == '\n';
      parens_ += (c == '(') - (c == ')');
      if (parens_ > 0) continue;
      if (c == '{') open();
      if (c == '}' && !scopes_.empty()) close();
      if (c == ';' && is_outside()) declare();
    }
    return std::move(names_);
  }

 private:
  enum class Scope { named, anonymous, inside };

  bool is_outside() const {
    return std::find(scopes_.begin(), scopes_.end(), Scope::inside) == scopes_.end();
  }

  std::string head() const { return text_.substr(begin_, at_ - begin_); }

  void open() {
    static const std::regex kNamespace(R"([^]*\bnamespace(\s+[\w:]+)?\s*$)");
    const std::string text = head();
    std::smatch match;
    if (is_outside() && std::regex_match(text, match, kNamespace)) {
      scopes_.push_back(match[1].matched ? Scope::named : Scope::anonymous);
      begin_ = at_ + 1;
      return;
    }
    if (is_outside()) note(text);
    scopes_.push_back(Scope::inside);
  }

  void close() {
    scopes_.pop_back();
    if (is_outside()) begin_ = at_ + 1;
  }

  void declare() {
    note(head());
    begin_ = at_ + 1;
  }

  void note(const std::string& text) {
    static const std::regex kStatic(R"(^\s*(?:\[\[\w+\]\]\s*)*static\b[^]*)");
    const bool is_own =
        std::find(scopes_.begin(), scopes_.end(), Scope::anonymous) != scopes_.end() ||
        std::regex_match(text, kStatic);
    if (!is_own) return;
    if (const std::optional<std::string> name = name_in(text)) names_.push_back({*name, line_});
  }

  std::string text_;
  std::vector<Scope> scopes_;
  std::vector<OwnName> names_;
  size_t at_ = 0, begin_ = 0, line_ = 1;
  int parens_ = 0;
};

/// Takes the preprocessor's lines out of a text and adds the macros that they define.
std::string take_directives(const std::string& text, std::vector<OwnName>& macros) {
  static const std::regex kDefine(R"(^\s*#\s*define\s+(\w+)[^]*)");
  std::string rest, line;
  bool goes_on = false;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size(); begin += line.size() + 1) {
    line = text.substr(begin, text.find('\n', begin) - begin);
    ++number;
    const size_t first = line.find_first_not_of(" \t");
    const bool is_directive = goes_on || (first != std::string::npos && line[first] == '#');
    std::smatch match;
    if (is_directive && std::regex_match(line, match, kDefine))
      macros.push_back({match[1], number});
    goes_on = is_directive && line.ends_with('\\');
    rest += (is_directive ? "" : line) + "\n";
  }
  return rest;
}

}  // namespace

std::vector<OwnName> find_own_names(const SourceFile& file) {
  std::vector<OwnName> names;
  const std::string code = take_directives(Reader(file).read(), names);
  for (OwnName& name : Declarations(code).find()) names.push_back(std::move(name));
  return names;
}

std::vector<std::string> find_shared_names(const std::vector<SourceFile>& files) {
  std::vector<std::string> findings;
  std::map<std::pair<std::string, std::string>, std::string>
      homes;  // [folder, name] path of the first
  for (const SourceFile& file : files) {
    if (!file.path.ends_with(".cpp")) continue;
    const std::string folder = file.path.substr(0, file.path.rfind('/'));
    for (const OwnName& own : find_own_names(file)) {
      const auto [home, is_new] = homes.try_emplace({folder, own.name}, file.path);
      if (!is_new && home->second != file.path) {
        findings.push_back(file.path + ":" + std::to_string(own.line) + ": " + own.name +
                           " is a name of " + home->second +
                           " too, and both may be compiled in one batch");
      }
    }
  }
  return findings;
}

}  // namespace cpscope::house
