#include "sim/scenario/toml_guard.h"

#include "sim/scenario/complaints.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Bytes of the UTF-8 character that starts `text`, 0 if there is no valid one. Overlong forms,
/// surrogates and values above U+10FFFF are invalid. Source: RFC 3629, section 4.
int64_t measure_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return static_cast<int64_t>(size);
}

enum class Lexeme { plain, comment, basic, literal, multiline_basic, multiline_literal };

/// Scans the text as TOML's lexer would, tracking only where strings begin and end.
class TomlGuard {
 public:
  TomlGuard(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  std::optional<Complaint> walk();

 private:
  bool starts_with(std::string_view expected) const {
    return text_.substr(at_).starts_with(expected);
  }
  void skip(int64_t bytes) {
    at_ += static_cast<size_t>(bytes);
    position_.column += bytes;
  }
  void open_string(char quote);
  void continue_string(char letter);
  void close_multiline(char quote);
  void start_line();
  std::optional<Complaint> read_plain(char letter);
  std::optional<Complaint> check_character(int64_t bytes) const;
  Complaint complain(std::string what, std::string hint) const {
    return {std::move(what), show_place(path_, position_), std::move(hint)};
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
  SourcePosition position_;
  Lexeme lexeme_ = Lexeme::plain;
  bool is_line_start_ = true;  // only blanks so far in this line
  int64_t depth_ = 0;          // open brackets
  int64_t key_parts_ = 1;
  int64_t statements_ = 0;
  int64_t values_ = 0;
};

std::optional<Complaint> TomlGuard::check_character(int64_t bytes) const {
  const auto first = static_cast<unsigned char>(text_[at_]);
  if (bytes == 0) {
    return complain(fmt::format("the text is not valid UTF-8: byte 0x{:02X}", first),
                    "save the file as UTF-8");
  }
  const bool is_blank = first == '\t' || first == '\n' || first == '\r';
  if ((first < 0x20 && !is_blank) || first == 0x7F) {
    return complain(fmt::format("control characters are not TOML: byte 0x{:02X}", first),
                    "remove it, or write it as an escape in a string");
  }
  if (bytes > 1 && lexeme_ == Lexeme::plain) {
    return complain("outside strings and comments only ASCII is TOML: " +
                        show_text(text_.substr(at_, static_cast<size_t>(bytes))),
                    "put it in quotes");
  }
  return std::nullopt;
}

void TomlGuard::start_line() {
  ++position_.line;
  position_.column = 1;
  is_line_start_ = true;
  key_parts_ = 1;
  const bool is_multiline =
      lexeme_ == Lexeme::multiline_basic || lexeme_ == Lexeme::multiline_literal;
  // An open one-line string is an error that the parser will report; text after it does not matter.
  if (!is_multiline) lexeme_ = Lexeme::plain;
}

void TomlGuard::open_string(char quote) {
  const bool is_basic = quote == '"';
  if (starts_with(is_basic ? "\"\"\"" : "'''")) {
    lexeme_ = is_basic ? Lexeme::multiline_basic : Lexeme::multiline_literal;
    skip(3);
    return;
  }
  lexeme_ = is_basic ? Lexeme::basic : Lexeme::literal;
  skip(1);
}

void TomlGuard::close_multiline(char quote) {
  skip(3);
  // Up to two quotes may come directly before the closing three.
  for (int extra = 0; extra < 2 && at_ < text_.size() && text_[at_] == quote; ++extra) skip(1);
  lexeme_ = Lexeme::plain;
}

void TomlGuard::continue_string(char letter) {
  const bool is_escaping = lexeme_ == Lexeme::basic || lexeme_ == Lexeme::multiline_basic;
  const char next = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
  if (is_escaping && letter == '\\' && (next == '"' || next == '\\')) {
    skip(2);
  } else if (lexeme_ == Lexeme::multiline_basic && starts_with("\"\"\"")) {
    close_multiline('"');
  } else if (lexeme_ == Lexeme::multiline_literal && starts_with("'''")) {
    close_multiline('\'');
  } else {
    const bool is_end = (lexeme_ == Lexeme::basic && letter == '"') ||
                        (lexeme_ == Lexeme::literal && letter == '\'');
    if (is_end) lexeme_ = Lexeme::plain;
    skip(1);
  }
}

std::optional<Complaint> TomlGuard::read_plain(char letter) {
  if (letter == '=' || (letter == '[' && is_line_start_ && depth_ == 0)) ++statements_;
  if (letter == '[' || letter == '{') ++depth_;
  if ((letter == ']' || letter == '}') && depth_ > 0) --depth_;
  if (letter == ',') ++values_;
  if (letter == '.') ++key_parts_;
  if (letter == '=' || letter == ',' || letter == '[' || letter == '{') key_parts_ = 1;
  if (letter != ' ' && letter != '\t') is_line_start_ = false;
  if (letter == '#') lexeme_ = Lexeme::comment;

  if (depth_ > kMaxTomlNesting) {
    return complain(fmt::format("brackets are nested deeper than the limit: {}", kMaxTomlNesting),
                    "a scenario needs 3 levels at most");
  }
  if (key_parts_ > kMaxTomlKeyParts) {
    return complain(fmt::format("a dotted key has more parts than the limit: {}", kMaxTomlKeyParts),
                    "a scenario needs 3 parts at most");
  }
  if (statements_ > kMaxTomlStatements) {
    return complain(fmt::format("the file has more keys than the limit: {}", kMaxTomlStatements),
                    "a scenario has about 40 keys");
  }
  if (values_ > kMaxTomlValues) {
    return complain(fmt::format("the file lists more values than the limit: {}", kMaxTomlValues),
                    "put long lists of lengths in a file: generator = { name = \"csv\", file = "
                    "\"lengths.csv\" }");
  }
  return std::nullopt;
}

std::optional<Complaint> TomlGuard::walk() {
  // A byte order mark is allowed at the very front.
  if (starts_with("\xEF\xBB\xBF")) at_ = 3;
  while (at_ < text_.size()) {
    const char letter = text_[at_];
    const int64_t bytes = measure_character(text_.substr(at_));
    if (std::optional<Complaint> complaint = check_character(bytes)) return complaint;
    if (letter == '\n') {
      start_line();
      ++at_;
    } else if (bytes > 1) {
      at_ += static_cast<size_t>(bytes);
      ++position_.column;
    } else if (lexeme_ == Lexeme::plain && (letter == '"' || letter == '\'')) {
      is_line_start_ = false;
      open_string(letter);
    } else if (lexeme_ == Lexeme::plain) {
      if (std::optional<Complaint> complaint = read_plain(letter)) return complaint;
      skip(1);
    } else if (lexeme_ == Lexeme::comment) {
      skip(1);
    } else {
      continue_string(letter);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Complaint> find_unsafe_toml(std::string_view text, const std::string& path) {
  if (static_cast<int64_t>(text.size()) > kMaxTomlBytes) {
    return Complaint{fmt::format("the text is larger than the limit: {} MiB", kMaxTomlBytes >> 20),
                     show_place(path, {}), "give a smaller file"};
  }
  return TomlGuard(text, path).walk();
}

}  // namespace cpscope
