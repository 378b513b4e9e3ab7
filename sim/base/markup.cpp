#include "sim/base/markup.h"

#include <cctype>
#include <cstddef>
#include <cstdint>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Bytes of the UTF-8 character that begins here; 0 when none does.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 && lead <= 0xF4 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (length == 0 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  // Overlong forms, surrogates, and what lies beyond the last code point.
  const uint8_t second = byte(1);
  const bool is_wrong = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return is_wrong ? 0 : length;
}

/// Calls with each character; "?" for what XML 1.0 has no place for.
template <class Visit>
void for_each_character(std::string_view text, Visit visit) {
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const size_t length = utf8_length(rest);
    const auto first = static_cast<uint8_t>(rest[0]);
    const bool is_control = first < 0x20 && first != '\t' && first != '\n' && first != '\r';
    const std::string_view character = rest.substr(0, length);
    const bool is_noncharacter = character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF";
    visit(length == 0 || is_control || is_noncharacter ? std::string_view("?") : character);
    i += length == 0 ? 1 : length;
  }
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string safe;
  for_each_character(text, [&](std::string_view character) {
    switch (character[0]) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += character;
    }
  });
  return safe;
}

std::string escape_markdown(std::string_view text) {
  std::string safe;
  for_each_character(text, [&](std::string_view character) {
    const char c = character[0];
    if (c == '\n' || c == '\r' || c == '\t') {
      safe += ' ';
    } else if (c == '<' || c == '>' || c == '&') {
      safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : "&amp;";
    } else if (std::string_view("\\`*_{}[]#|~!$").find(c) != std::string_view::npos) {
      safe += fmt::format("\\{}", c);
    } else {
      safe += character;
    }
  });
  return safe;
}

std::string escape_address(std::string_view path) {
  std::string address;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = (byte < 0x80 && std::isalnum(byte) != 0) ||
                          std::string_view("/._-~").find(c) != std::string_view::npos;
    address += is_plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return address;
}

}  // namespace cpscope
