#include "sim/plan/document/json_reader.h"

#include "sim/scenario/complaints.h"

#include <charconv>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Objects and arrays inside each other; a plan document needs far less.
constexpr int32_t kMaxJsonNesting = 32;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(uint32_t code, std::string& text) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

/// Length of the number (RFC 8259) that the text begins with, 0 if it begins with none.
size_t number_length(std::string_view text) {
  size_t at = 0;
  const auto digits = [&] {
    const size_t first = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at > first;
  };
  if (at < text.size() && text[at] == '-') ++at;
  const bool is_zero = at < text.size() && text[at] == '0';
  if (is_zero) {
    ++at;
  } else if (!digits()) {
    return 0;
  }
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!digits()) return 0;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (!digits()) return 0;
  }
  return at;
}

}  // namespace

char JsonReader::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::fail_at(size_t offset, std::string what, std::string hint) {
  if (has_failed_) return;
  has_failed_ = true;
  offset_ = offset;
  what_ = std::move(what);
  hint_ = std::move(hint);
}

void JsonReader::fail(std::string what, std::string hint) {
  fail_at(value_, std::move(what), std::move(hint));
}

void JsonReader::fail_syntax(std::string_view wanted) {
  if (at_ >= text_.size())
    return fail_at(at_, fmt::format("the document ends where {} is due", wanted));
  size_t length = 1;
  while (length < 20 && at_ + length < text_.size() &&
         std::string_view(" \n\r\t,:{}[]\"").find(text_[at_ + length]) == std::string_view::npos)
    ++length;
  fail_at(at_, fmt::format("{} is due: {}", wanted, show_text(text_.substr(at_, length))));
}

JsonKind JsonReader::peek() {
  if (has_failed_) return JsonKind::other;
  switch (skip_space()) {
    case '{':
      return JsonKind::object;
    case '[':
      return JsonKind::array;
    case '"':
      return JsonKind::text;
    case 't':
    case 'f':
      return JsonKind::boolean;
    case 'n':
      return JsonKind::null;
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9':
      return JsonKind::number;
    default:
      return JsonKind::other;
  }
}

bool JsonReader::begin(char bracket, std::string_view wanted) {
  if (has_failed_) return false;
  if (skip_space() != bracket || at_ >= text_.size()) {
    fail_syntax(wanted);
    return false;
  }
  value_ = at_++;
  if (++depth_ > kMaxJsonNesting) {
    fail("values are nested too deeply");
    return false;
  }
  is_first_ = true;
  return true;
}

bool JsonReader::begin_object() { return begin('{', "an object"); }
bool JsonReader::begin_array() { return begin('[', "an array"); }

bool JsonReader::next(char bracket) {
  if (has_failed_) return false;
  const char c = skip_space();
  if (c == bracket && at_ < text_.size()) {
    ++at_;
    --depth_;
    is_first_ = false;
    return false;
  }
  if (!is_first_) {
    if (c != ',') {
      fail_syntax(bracket == ']' ? "a comma or ]" : "a comma or }");
      return false;
    }
    ++at_;
  }
  is_first_ = false;
  return true;
}

bool JsonReader::next_item() { return next(']'); }

bool JsonReader::next_key(std::string_view& key) {
  if (!next('}')) return false;
  if (skip_space() != '"') {
    fail_syntax("a key in quotes");
    return false;
  }
  value_ = at_;
  key = read_text();
  if (has_failed_) return false;
  if (skip_space() != ':') {
    fail_syntax("a colon");
    return false;
  }
  ++at_;
  return true;
}

int64_t JsonReader::integer(int64_t low, int64_t high) {
  if (peek() != JsonKind::number) {
    if (!has_failed_) fail_syntax("a whole number");
    return 0;
  }
  value_ = at_;
  // Nearly all of a large document are small numbers.
  size_t at = at_;
  const bool is_negative = text_[at] == '-';
  if (is_negative) ++at;
  const size_t first = at;
  int64_t value = 0;
  while (at < text_.size() && is_digit(text_[at]) && at - first < 18)
    value = value * 10 + (text_[at++] - '0');
  const bool is_plain = at > first && (text_[first] != '0' || at - first == 1) &&
                        (at >= text_.size() || !(is_digit(text_[at]) || text_[at] == '.' ||
                                                 text_[at] == 'e' || text_[at] == 'E'));
  if (is_negative) value = -value;
  if (!is_plain || value < low || value > high) {
    const size_t length = number_length(text_.substr(at_));
    if (length == 0) {
      fail_syntax("a whole number");
    } else {
      fail(fmt::format("a whole number from {} to {} is due: {}", low, high,
                       text_.substr(at_, std::min<size_t>(length, 40))));
    }
    return 0;
  }
  at_ = at;
  return value;
}

std::string_view JsonReader::number() {
  if (peek() != JsonKind::number) {
    if (!has_failed_) fail_syntax("a number");
    return {};
  }
  value_ = at_;
  const size_t length = number_length(text_.substr(at_));
  if (length == 0) {
    fail_syntax("a number");
    return {};
  }
  at_ += length;
  return text_.substr(value_, length);
}

bool JsonReader::read_word(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) return false;
  value_ = at_;
  at_ += word.size();
  return true;
}

bool JsonReader::boolean() {
  if (has_failed_) return false;
  skip_space();
  if (read_word("true")) return true;
  if (!read_word("false")) fail_syntax("true or false");
  return false;
}

void JsonReader::null() {
  if (has_failed_) return;
  skip_space();
  if (!read_word("null")) fail_syntax("null");
}

std::string_view JsonReader::text() {
  if (has_failed_) return {};
  if (skip_space() != '"') {
    fail_syntax("a text in quotes");
    return {};
  }
  value_ = at_;
  return read_text();
}

std::string_view JsonReader::read_text() {
  const size_t first = ++at_;
  while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
         static_cast<unsigned char>(text_[at_]) >= 0x20)
    ++at_;
  if (at_ < text_.size() && text_[at_] == '"') return text_.substr(first, at_++ - first);
  unescaped_.assign(text_.substr(first, at_ - first));
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) < 0x20) break;
    ++at_;
    if (c == '"') return unescaped_;
    if (c != '\\') {
      unescaped_ += c;
    } else if (!read_escape()) {
      return {};
    }
  }
  if (at_ >= text_.size())
    fail_at(at_, "the document ends inside a text");
  else
    fail_at(at_, "a control character must be escaped in a text");
  return {};
}

bool JsonReader::read_code_unit(uint32_t& unit) {
  const std::string_view digits = text_.substr(std::min(at_, text_.size()), 4);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
  if (digits.size() < 4 || error != std::errc() || end != digits.data() + 4 || digits[0] == '-') {
    fail_at(at_, "four hexadecimal digits are due after \\u");
    return false;
  }
  at_ += 4;
  return true;
}

bool JsonReader::read_escape() {
  const char c = at_ < text_.size() ? text_[at_++] : '\0';
  constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (const size_t known = kNames.find(c); known != std::string_view::npos) {
    unescaped_ += kMeanings[known];
    return true;
  }
  if (c != 'u') {
    fail_at(at_, "there is no such escape in JSON");
    return false;
  }
  uint32_t code = 0;
  if (!read_code_unit(code)) return false;
  if (code >= 0xD800 && code < 0xE000) {
    uint32_t low = 0;
    const bool is_high = code < 0xDC00 && text_.substr(at_, 2) == "\\u";
    if (is_high) at_ += 2;
    if (is_high && !read_code_unit(low)) return false;
    if (!is_high || low < 0xDC00 || low >= 0xE000) {
      fail_at(at_, "half of a surrogate pair");
      return false;
    }
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(code, unescaped_);
  return true;
}

void JsonReader::end() {
  if (has_failed_) return;
  skip_space();
  if (at_ < text_.size()) fail_syntax("the end of the document");
}

void JsonReader::name_place(std::string_view key) { place_ = "/" + std::string(key) + place_; }
void JsonReader::name_place(int64_t index) { place_ = fmt::format("/{}{}", index, place_); }

Error JsonReader::error(const std::string& path) const {
  return make_bad_input(place_.empty() ? what_ : place_ + ": " + what_, hint_,
                        show_place(path, find_stop(text_, offset_ + 1)));
}

}  // namespace cpscope
