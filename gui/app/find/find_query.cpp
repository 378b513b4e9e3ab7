#include "gui/app/find/find_query.h"

#include "gui/model/error_field.h"
#include "gui/model/target.h"

#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kMostLetters = 200;
constexpr size_t kMostNumbers = 12;
constexpr int64_t kLargestNumber = int64_t{1} << 40;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

struct Word {
  std::string_view text;
  Noun noun;
};

/// Abbreviated words are tried in this order.
constexpr std::array kWords = {Word{"token", Noun::token},
                               Word{"tokens", Noun::token},
                               Word{"q", Noun::query},
                               Word{"query", Noun::query},
                               Word{"queries", Noun::query},
                               Word{"k", Noun::key},
                               Word{"kv", Noun::key},
                               Word{"key", Noun::key},
                               Word{"keys", Noun::key},
                               Word{"rank", Noun::rank},
                               Word{"ranks", Noun::rank},
                               Word{"link", Noun::link},
                               Word{"step", Noun::step},
                               Word{"steps", Noun::step},
                               Word{"sequence", Noun::sequence},
                               Word{"document", Noun::sequence},
                               Word{"position", Noun::position},
                               Word{"head", Noun::head},
                               Word{"heads", Noun::head}};
/// Words that are ignored.
constexpr std::array<std::string_view, 10> kFillers = {"of", "x",    "item", "row",    "the",
                                                       "in", "from", "at",   "number", "and"};

bool begins_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

/// Parses a query, letter by letter.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  QueryResult parse() {
    while (at_ < text_.size() && result_.error.empty()) {
      const char c = text_[at_];
      if (is_digit(c))
        read_number();
      else if (is_letter(c))
        read_word();
      else
        read_sign();
    }
    return std::move(result_);
  }

 private:
  FindQuery& query() { return result_.query; }
  void fail(std::string words) {
    if (result_.error.empty()) result_.error = std::move(words);
  }
  Clause& clause() {
    if (query().clauses.empty()) query().clauses.push_back({});
    return query().clauses.back();
  }
  void open(Noun noun) {
    query().clauses.push_back({noun, {}});
    opens_group_ = true;
  }

  void read_number() {
    const size_t begin = at_;
    std::string digits;
    for (; at_ < text_.size() && (is_digit(text_[at_]) || is_divider()); ++at_) {
      if (is_digit(text_[at_])) digits += text_[at_];
    }
    const bool is_group = at_ - begin == 3;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const int64_t unit = read_unit();
    if (error != std::errc() || end != digits.data() + digits.size() ||
        value > kLargestNumber / unit)
      return fail(fmt::format("The number {} is larger than any plan", digits.substr(0, 30)));
    if (++numbers_ > kMostNumbers) return fail("There are too many numbers");
    if (skips_number_) {
      skips_number_ = false;
      return;
    }
    auto& groups = clause().groups;
    if (opens_group_ || groups.empty()) groups.emplace_back();
    opens_group_ = false;
    groups.back().push_back({value * unit, is_group && unit == 1});
  }
  /// True inside a grouped number: 1'024 and 1_024.
  bool is_divider() const {
    return (text_[at_] == '\'' || text_[at_] == '_') && at_ + 1 < text_.size() &&
           is_digit(text_[at_ + 1]);
  }
  /// Reads Ki or Mi, with or without a blank before it.
  int64_t read_unit() {
    size_t at = at_;
    if (at < text_.size() && text_[at] == ' ') ++at;
    const std::string_view rest = text_.substr(at);
    const bool ends = rest.size() < 3 || !is_letter(rest[2]);
    if (!ends || (!begins_with(rest, "ki") && !begins_with(rest, "mi"))) return 1;
    at_ = at + 2;
    return rest[0] == 'k' ? 1024 : 1024 * 1024;
  }

  void read_word() {
    const size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || text_[at_] == '_')) ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (!is_known(word))
      fail(fmt::format("\"{}\" is not understood", std::string(word.substr(0, 30))));
  }
  bool is_known(std::string_view word) {
    if (word == "to") {
      opens_group_ = true;
      return true;
    }
    for (const std::string_view filler : kFillers) {
      if (word != filler) continue;
      // In "step 3 of 7" the total is ignored.
      skips_number_ = word == "of" && !query().clauses.empty() && clause().noun == Noun::step;
      return true;
    }
    return is_pass(word) || is_tensor(word) || is_kind(word) || is_noun(word);
  }
  bool is_pass(std::string_view word) {
    if (word.size() >= 2 && begins_with("forward", word)) return query().has_forward = true;
    if (word.size() >= 2 && begins_with("backward", word)) return query().has_backward = true;
    return false;
  }
  bool is_tensor(std::string_view word) {
    for (size_t t = 0; t < std::size(kErrorTensors); ++t) {
      if (word != kErrorTensors[t]) continue;
      query().tensor = static_cast<int32_t>(t);
      open(Noun::tensor);
      return true;
    }
    return false;
  }
  bool is_kind(std::string_view word) {
    for (const StageKind kind : kStageKinds) {
      const std::string_view name = to_name(kind);
      // Accepts "computes", "finishes", and their abbreviations.
      const bool is_plural = begins_with(word, name) && word.size() <= name.size() + 2;
      if (word.size() < 3 || !(begins_with(name, word) || is_plural)) continue;
      query().item_kind = kind;
      open(Noun::item_kind);
      return true;
    }
    return false;
  }
  bool is_noun(std::string_view word) {
    for (const Word& known : kWords) {
      const bool is_short = word.size() >= 2 && begins_with(known.text, word);
      if (word != known.text && !is_short) continue;
      open(known.noun);
      return true;
    }
    return false;
  }

  void read_sign() {
    const std::string_view rest = text_.substr(at_);
    if (begins_with(rest, "->")) {
      query().has_arrow = true;
      opens_group_ = true;
      at_ += 2;
    } else if (begins_with(rest, "..")) {
      opens_group_ = true;
      at_ += 2;
    } else if (rest[0] == '-' || rest[0] == ':' || rest[0] == ',') {
      if (rest[0] == '-' && clause().groups.empty())
        return fail("Nothing here has a negative number");
      opens_group_ = true;
      ++at_;
    } else if (rest[0] == ' ' || rest[0] == '\t' ||
               std::string_view("[]().").find(rest[0]) != std::string_view::npos) {
      ++at_;
    } else {
      const bool is_shown = rest[0] > ' ' && rest[0] <= '~';
      fail(is_shown ? fmt::format("The sign {} is not understood", rest[0])
                    : std::string("A sign is not understood"));
    }
  }

  std::string_view text_;
  QueryResult result_;
  size_t at_ = 0, numbers_ = 0;
  bool opens_group_ = false;
  bool skips_number_ = false;
};

}  // namespace

const Clause* FindQuery::find(Noun noun) const {
  const Clause* found = nullptr;
  for (const Clause& clause : clauses) {
    if (clause.noun == noun && (found == nullptr || found->groups.empty())) found = &clause;
  }
  return found;
}

QueryResult parse_query(std::string_view text) {
  if (text.size() > kMostLetters) return {{}, "This is too long to be a place in the plan"};
  return Parser(to_lower(text)).parse();
}

std::optional<int64_t> join_numbers(std::span<const QueryNumber> group) {
  if (group.empty()) return std::nullopt;
  int64_t joined = group[0].value;
  for (const QueryNumber& number : group.subspan(1)) {
    if (!number.is_group || joined == 0 || joined > kLargestNumber / 1000) return std::nullopt;
    joined = joined * 1000 + number.value;
  }
  return joined;
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace cpscope::gui
