#include "sim/scenario/complaints.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr size_t kShownComplaints = 50;
// A longer message would not fit on a screen. The last line, with the place, is part of it.
constexpr size_t kShownTextBytes = 1'950;
constexpr size_t kLastLineBytes = 80;
constexpr size_t kShownBytes = 60;
// A longer name cannot be a typing error of a known one; the limit keeps the edit table small.
constexpr size_t kLongestComparedName = 64;

size_t count_edits(std::string_view a, std::string_view b) {
  // Optimal string alignment needs three rows, because a swap reads two rows back.
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({change, above[j] + 1, row[j - 1] + 1});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

}  // namespace

std::string show_place(const std::string& path, SourcePosition position) {
  return fmt::format("{}:{}:{}", path, position.line, position.column);
}

SourcePosition find_stop(std::string_view text, size_t bytes_read) {
  SourcePosition position;
  const std::string_view before = text.substr(0, bytes_read > 0 ? bytes_read - 1 : 0);
  position.line += std::count(before.begin(), before.end(), '\n');
  const size_t line_start =
      before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  position.column += static_cast<int64_t>(before.size() - line_start);
  return position;
}

void Complaints::keep(SourcePosition position, Complaint complaint) {
  ++count_;
  // Only the first ones of the file are shown; room for twice as many lets the sort choose them.
  if (entries_.size() >= 2 * kShownComplaints) return;
  entries_.push_back({position, std::move(complaint)});
}

void Complaints::add(SourcePosition position, std::string what, std::string hint) {
  has_bad_input_ = true;
  keep(position, {std::move(what), show_place(path_, position), std::move(hint)});
}

void Complaints::refuse(SourcePosition position, std::string what, std::string hint) {
  keep(position, {std::move(what), show_place(path_, position), std::move(hint)});
}

void Complaints::add_all(const Error& error, SourcePosition position) {
  if (error.kind != ErrorKind::refused) has_bad_input_ = true;
  for (Complaint complaint : error.complaints) {
    if (complaint.where.empty()) complaint.where = show_place(path_, position);
    keep(position, std::move(complaint));
  }
}

Error Complaints::to_error() const {
  CPSCOPE_CHECK(!entries_.empty(), "an error was made of no complaint", entries_.size(), count_);
  std::vector<Entry> sorted = entries_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Entry& a, const Entry& b) { return a.position < b.position; });

  Error error{has_bad_input_ ? ErrorKind::bad_input : ErrorKind::refused, {}};
  size_t bytes = path_.size() + kLastLineBytes, shown = 0;
  for (; shown < std::min(sorted.size(), kShownComplaints); ++shown) {
    const Complaint& complaint = sorted[shown].complaint;
    constexpr size_t kMarks = 5;  // ": ", "; " and the end of the line
    bytes += complaint.where.size() + complaint.what.size() + complaint.hint.size() + kMarks;
    if (shown > 0 && bytes > kShownTextBytes) break;
    error.complaints.push_back(complaint);
  }
  const int64_t hidden = count_ - static_cast<int64_t>(shown);
  if (hidden > 0) {
    error.complaints.push_back({fmt::format("and {} more", hidden),
                                show_place(path_, sorted[shown - 1].position),
                                "repair the ones above first"});
  }
  return error;
}

std::string show_text(std::string_view text) {
  std::string shown = "\"";
  size_t taken = 0;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    // Cut between characters: continuation bytes of UTF-8 belong to the one before.
    if (taken >= kShownBytes && (byte & 0xC0) != 0x80) break;
    ++taken;
    if (byte < 0x20 || byte == 0x7F) {
      shown += fmt::format("\\x{:02X}", byte);
    } else if (letter == '"' || letter == '\\') {
      shown += '\\';
      shown += letter;
    } else {
      shown += letter;
    }
  }
  return shown + (taken < text.size() ? "...\"" : "\"");
}

std::string show_choices(std::span<const std::string_view> names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

std::optional<std::string_view> find_nearest_name(std::string_view name,
                                                  std::span<const std::string_view> known) {
  if (name.size() > kLongestComparedName) return std::nullopt;
  std::optional<std::string_view> nearest;
  size_t fewest = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    const size_t edits = count_edits(name, candidate);
    if (edits < fewest) {
      fewest = edits;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace cpscope
