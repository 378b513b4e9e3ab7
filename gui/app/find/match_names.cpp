#include "gui/app/find/find.h"
#include "gui/app/find/find_query.h"

#include <algorithm>
#include <optional>

namespace cpscope::gui {
namespace {

constexpr int32_t kPerLetter = 1;
constexpr int32_t kBehindTheLast = 6;  // the letter before this one was matched as well
constexpr int32_t kAtWordBegin = 4;
constexpr int32_t kAtNameBegin = 4;

bool begins_word(const std::string& name, size_t at) {
  if (at == 0) return true;
  const char c = name[at - 1];
  return c == '_' || c == '-' || c == ' ' || c == '/' || c == '.';
}

struct Hit {
  int32_t score = 0;
  std::vector<size_t> letters;
};

/// The best match of the letters of a word in a name, in their order.
std::optional<Hit> match_word(const std::string& name, const std::string& word) {
  constexpr int32_t kNever = -1;
  const size_t letters = word.size(), places = name.size();
  if (letters > places) return std::nullopt;
  // [letter][place] best score with this letter at this place, and the place of the letter before.
  std::vector<int32_t> best(letters * places, kNever);
  std::vector<size_t> before(letters * places, 0);
  for (size_t i = 0; i < letters; ++i) {
    for (size_t at = i; at < places; ++at) {
      if (name[at] != word[i]) continue;
      const int32_t own =
          kPerLetter + (begins_word(name, at) ? kAtWordBegin : 0) + (at == 0 ? kAtNameBegin : 0);
      int32_t& score = best[i * places + at];
      if (i == 0) score = own;
      for (size_t last = i == 0 ? at : i - 1; last < at; ++last) {
        const int32_t previous = best[(i - 1) * places + last];
        if (previous == kNever) continue;
        const int32_t sum = previous + own + (last + 1 == at ? kBehindTheLast : 0);
        if (sum <= score) continue;
        score = sum;
        before[i * places + at] = last;
      }
    }
  }
  const auto last_row = best.end() - static_cast<std::ptrdiff_t>(places);
  const auto most = std::max_element(last_row, best.end());
  if (*most == kNever) return std::nullopt;
  Hit hit{*most, std::vector<size_t>(letters)};
  size_t at = static_cast<size_t>(most - last_row);
  for (size_t i = letters; i-- > 0; at = before[i * places + at]) hit.letters[i] = at;
  return hit;
}

std::vector<std::string> words_of(std::string_view query) {
  std::vector<std::string> words(1);
  for (const char c : to_lower(query)) {
    if (c == ' ' || c == '\t') {
      if (!words.back().empty()) words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

}  // namespace

std::vector<NameMatch> match_names(std::span<const std::string> names, std::string_view query) {
  const std::vector<std::string> words = words_of(query.substr(0, 200));
  std::vector<NameMatch> matches;
  for (size_t n = 0; n < names.size(); ++n) {
    const std::string name = to_lower(names[n]);
    NameMatch match{n, 0, {}};
    bool fits = true;
    for (const std::string& word : words) {
      const std::optional<Hit> hit = match_word(name, word);
      fits = hit.has_value();
      if (!fits) break;
      match.score += hit->score;
      match.letters.insert(match.letters.end(), hit->letters.begin(), hit->letters.end());
    }
    if (!fits) continue;
    std::sort(match.letters.begin(), match.letters.end());
    match.letters.erase(std::unique(match.letters.begin(), match.letters.end()),
                        match.letters.end());
    matches.push_back(std::move(match));
  }
  std::stable_sort(matches.begin(), matches.end(),
                   [](const NameMatch& a, const NameMatch& b) { return a.score > b.score; });
  return matches;
}

}  // namespace cpscope::gui
