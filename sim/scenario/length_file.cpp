#include "sim/scenario/length_file.h"

#include "sim/scenario/complaints.h"
#include "sim/scenario/scenario_names.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr int64_t kMaxLengthFileBytes = 64LL << 20;

struct Cell {
  std::string_view text;  // without surrounding blanks
  SourcePosition position;
};

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool is_number_like(std::string_view text) {
  return !text.empty() && text.find_first_of("0123456789") != std::string_view::npos &&
         text.find_first_not_of("0123456789+-.eE_") == std::string_view::npos;
}

/// The non-empty cells of one line; the comment is cut off.
void split_line(std::string_view line, int64_t line_number, std::vector<Cell>& cells) {
  cells.clear();
  const std::string_view content = line.substr(0, line.find('#'));
  for (size_t begin = 0; begin <= content.size();) {
    const size_t end = std::min(content.find(',', begin), content.size());
    const std::string_view text = trim(content.substr(begin, end - begin));
    if (!text.empty()) {
      cells.push_back({text, {line_number, text.data() - line.data() + 1}});
    }
    begin = end + 1;
  }
}

}  // namespace

Result<std::vector<int64_t>> parse_length_file(std::string_view text, const std::string& path) {
  std::vector<int64_t> lengths;
  std::vector<Cell> cells;
  bool may_be_header = true;
  int64_t line_number = 0;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    split_line(text.substr(begin, end - begin), ++line_number, cells);
    begin = end + 1;
    const bool has_number = std::any_of(cells.begin(), cells.end(),
                                        [](const Cell& cell) { return is_number_like(cell.text); });
    const bool is_header = may_be_header && !cells.empty() && !has_number;
    if (!cells.empty()) may_be_header = false;
    if (is_header) continue;
    for (const Cell& cell : cells) {
      int64_t length = -1;
      const char* last = cell.text.data() + cell.text.size();
      const auto [stop, problem] = std::from_chars(cell.text.data(), last, length);
      if (problem != std::errc() || stop != last || length < 0 || length > kMaxTokens) {
        return make_error(ErrorKind::bad_input,
                          fmt::format("a length must be an integer from 0 to {}: {}", kMaxTokens,
                                      show_text(cell.text)),
                          "write one length per line, or separate them by commas",
                          show_place(path, cell.position));
      }
      if (static_cast<int64_t>(lengths.size()) == kMaxSequences) {
        return make_error(
            ErrorKind::bad_input,
            fmt::format("the file has more lengths than the limit: {}", kMaxSequences),
            "give fewer lengths", show_place(path, cell.position));
      }
      lengths.push_back(length);
    }
  }
  if (lengths.empty()) {
    return make_error(ErrorKind::bad_input, "the file holds no length",
                      "write one length per line, or separate them by commas",
                      show_place(path, {}));
  }
  return lengths;
}

Result<std::vector<int64_t>> load_length_file(const std::string& path) {
  const Result<std::string> text = read_named_file(path, kMaxLengthFileBytes);
  if (!text) return text.error();
  return parse_length_file(text.value(), path);
}

}  // namespace cpscope
