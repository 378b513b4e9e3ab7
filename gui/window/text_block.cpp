#include "gui/window/text_block.h"

#include "gui/model/axis.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cpscope::gui {
namespace {

/// Letters between two blanks, or a part of them with one style.
struct Word {
  std::string text;
  Face face = Face::body;
  bool is_link = false;
  bool has_blank = false;  // true if there is a blank before it
};

constexpr size_t kLongestName = 24;  // letters

std::vector<Word> split(const Spans& spans) {
  std::vector<Word> words;
  bool has_blank = false;
  for (const Span& span : spans) {
    const bool is_link = !std::holds_alternative<Nothing>(span.target);
    Word word;
    const auto finish = [&] {
      if (word.text.empty()) return;
      word.face = span.is_strong ? Face::strong : Face::body;
      word.is_link = is_link;
      word.has_blank = std::exchange(has_blank, false);
      words.push_back(std::exchange(word, {}));
    };
    // A short name ("rank 2", "[830, 1 104)") is kept together as one word.
    const bool is_kept_together = is_link && span.text.size() <= kLongestName;
    size_t next_break = find_line_break(span.text);
    for (size_t at = 0; at < span.text.size(); ++at) {
      const char letter = span.text[at];
      const bool is_blank = letter == ' ' || letter == '\n';
      const bool breaks = letter == '\n' || at == next_break;
      if (at == next_break) next_break = find_line_break(span.text, at + 1);
      if (breaks && !is_kept_together) {
        finish();
        has_blank = true;
      } else {
        word.text += is_blank ? ' ' : letter;
      }
    }
    finish();
  }
  return words;
}

}  // namespace

int32_t add_text_block(Drawing& drawing, const TextBlock& block, const Spans& spans,
                       const TextWidth& text_width) {
  const float blank = text_width(" ", block.size, Face::body);
  const float dots = text_width("..", block.size, Face::body);
  const std::vector<Word> words = split(spans);
  int32_t line = 0;
  float x = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const Word& word = words[i];
    const float width = text_width(word.text, block.size, word.face);
    // Words without a blank between them ("rank 2" and ",") stay together.
    float together = width;
    for (size_t j = i + 1; j < words.size() && !words[j].has_blank; ++j)
      together += text_width(words[j].text, block.size, words[j].face);
    if (word.has_blank && x > 0) x += blank;
    const bool is_last_line = line + 1 == block.most_lines;
    const bool is_last_word = i + 1 == words.size();
    const float room = block.width - (is_last_line && !is_last_word ? dots + blank : 0);
    if (x > 0 && word.has_blank && x + together > room) {
      const Point end{block.at.x + x, block.at.y + static_cast<float>(line) * block.leading};
      if (is_last_line) {
        drawing.add(Label{end, Anchor::left_top, block.color, block.size, Face::body, ".."});
        return line + 1;
      }
      ++line;
      x = 0;
    }
    drawing.add(Label{{block.at.x + x, block.at.y + static_cast<float>(line) * block.leading},
                      Anchor::left_top,
                      word.is_link ? block.link_color : block.color,
                      block.size,
                      word.face,
                      word.text});
    x += width;
  }
  return words.empty() ? 0 : line + 1;
}

}  // namespace cpscope::gui
