#include "gui/draw/svg_file.h"

#include "gui/draw/theme.h"
#include "tests/gui/panel/paint_colors.h"
#include "tests/support/mark_gallery.h"

#include <cctype>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::draw_mark_gallery;
using tests::kBlue;
using tests::kMarkGallerySize;

const SvgPage kPage{{100, 50}, {255, 255, 255}, "Layout", "Who owns which tokens"};

/// True if there is a well-formed entity at `at`, which points at '&'.
bool is_entity(std::string_view text) {
  for (const std::string_view known : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}) {
    if (text.starts_with(known)) return true;
  }
  return false;
}

/// The error in one tag's name and attributes, or empty.
std::string fault_of_tag(std::string_view tag) {
  size_t at = tag.find_first_of(" /");
  if (at == std::string_view::npos) at = tag.size();
  if (at == 0) return "a tag without a name";
  std::vector<std::string> names;
  while (at < tag.size()) {
    if (tag[at] == ' ') {
      ++at;
      continue;
    }
    const size_t equals = tag.find('=', at);
    if (equals == std::string_view::npos || tag.substr(equals, 2) != "=\"") return "no value";
    const size_t end = tag.find('"', equals + 2);
    if (end == std::string_view::npos) return "an open quote";
    const std::string name(tag.substr(at, equals - at));
    for (const std::string& other : names) {
      if (other == name) return "attribute twice: " + name;
    }
    names.push_back(name);
    at = end + 1;
    if (at < tag.size() && tag[at] != ' ') return "no space between attributes";
  }
  return "";
}

/// The error in an XML text of the kind that we write, or empty: tags must nest and be closed,
/// attributes must be quoted and unique, and there must be no unescaped & or <.
std::string fault_of_xml(std::string_view text) {
  std::vector<std::string> open;
  if (!text.starts_with("<?xml ")) return "no declaration";
  size_t at = text.find("?>") + 2;
  bool has_root = false;
  while (at < text.size()) {
    if (text[at] == '&' && !is_entity(text.substr(at))) return "a stray &";
    if (text[at] != '<') {
      if (open.empty() && text[at] != '\n') return "text outside of the root";
      ++at;
      continue;
    }
    const size_t end = text.find('>', at);
    if (end == std::string_view::npos) return "a tag that does not end";
    std::string_view tag = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.find('<') != std::string_view::npos) return "a stray <";
    if (tag.starts_with("/")) {
      if (open.empty() || open.back() != tag.substr(1)) return "closes what is not open";
      open.pop_back();
      continue;
    }
    const bool is_closed = tag.ends_with("/");
    if (is_closed) tag.remove_suffix(1);
    const std::string fault = fault_of_tag(tag);
    if (!fault.empty()) return fault + " in <" + std::string(tag) + ">";
    if (open.empty() && has_root) return "two roots";
    has_root = true;
    if (!is_closed) open.emplace_back(tag.substr(0, tag.find(' ')));
  }
  return open.empty() ? "" : "left open: " + open.back();
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string svg_of(Mark mark) {
  Drawing drawing;
  drawing.marks.push_back(std::move(mark));
  const std::string text = print_svg(drawing, kPage);
  EXPECT_EQ(fault_of_xml(text), "") << text;
  return text;
}

TEST(SvgChecker, SeesWhatIsNotWellFormed) {
  const std::string head = "<?xml version=\"1.0\"?>";
  EXPECT_EQ(fault_of_xml(head + "<a b=\"c\"><d/>x &amp; y</a>\n"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a b=c/>", "<a b=\"c\" b=\"d\"/>", "<a>&</a>",
                          "<a/><b/>", "<a b=\"c/>", "x<a/>", "<a b=\"c\"d=\"e\"/>"}) {
    EXPECT_NE(fault_of_xml(head + bad), "") << bad;
  }
}

TEST(Svg, IsWellFormedForEveryMarkInEveryTheme) {
  for (const ThemeName name : kThemeNames) {
    const Theme& theme = theme_of(name);
    const std::string text = print_svg(
        draw_mark_gallery(theme), {kMarkGallerySize, theme.of(Role::background), "Gallery", ""});
    EXPECT_EQ(fault_of_xml(text), "");
    for (const char* part : {"<rect ", "<line ", "<polygon ", "<path ", "<text ", "<pattern ",
                             "<clipPath ", "<g clip-path=", "stroke-dasharray"}) {
      EXPECT_GT(count_of(text, part), 0U) << part;
    }
    EXPECT_EQ(text, print_svg(draw_mark_gallery(theme),
                              {kMarkGallerySize, theme.of(Role::background), "Gallery", ""}));
  }
}

TEST(Svg, WritesBoxesAndTheirHatches) {
  const std::string text =
      svg_of(FilledBox{{1, 2, 11, 7.5F}, kBlue, Hatch::cross, {9, 9, 9, 51}, 2});
  EXPECT_EQ(count_of(text,
                     "<rect x=\"1\" y=\"2\" width=\"10\" height=\"5.5\" rx=\"2\" "
                     "fill=\"#0077BB\"/>"),
            1U);
  EXPECT_EQ(count_of(text, "fill=\"url(#h0)\""), 1U);
  EXPECT_EQ(count_of(text, "<pattern id=\"h0\""), 1U);
  EXPECT_EQ(count_of(text, "stroke=\"#090909\" stroke-opacity=\"0.2\""), 1U);
}

TEST(Svg, DrawsOutlinesInsideTheirBox) {
  EXPECT_EQ(count_of(svg_of(OutlinedBox{{1, 2, 11, 12}, kBlue, 2}),
                     "<rect x=\"2\" y=\"3\" width=\"8\" height=\"8\" fill=\"none\""),
            1U);
}

TEST(Svg, PutsUprightLinesOnWholePixels) {
  EXPECT_EQ(count_of(svg_of(Line{{10, 2}, {10, 8}, kBlue}),
                     "<line x1=\"10.5\" y1=\"2\" x2=\"10.5\" y2=\"8\""),
            1U);
  EXPECT_EQ(count_of(svg_of(Line{{10, 2}, {20, 2}, kBlue, 1, false, true}), "<polygon "), 1U);
}

TEST(Svg, EscapesText) {
  const std::string text = svg_of(
      Label{{5, 5}, Anchor::right_middle, kBlue, 13, Face::mono, "a<b & \"c\">\x01\xC3\xA4"});
  EXPECT_EQ(count_of(text,
                     ">a&lt;b &amp; &quot;c&quot;&gt;?"
                     "?"
                     "?</text>"),
            1U);
  EXPECT_EQ(count_of(text, "text-anchor=\"end\""), 1U);
  EXPECT_EQ(count_of(text, "class=\"m\""), 1U);
  Drawing drawing;
  const std::string titled = print_svg(drawing, {{1, 1}, {}, "<&>", "\"d\""});
  EXPECT_EQ(count_of(titled, "<title>&lt;&amp;&gt;</title>"), 1U);
  EXPECT_EQ(count_of(titled, "<desc>&quot;d&quot;</desc>"), 1U);
}

TEST(Svg, ClosesClipsThatAViewLeftOpen) {
  const std::string text = svg_of(PushClip{{1, 2, 3, 4}});
  EXPECT_EQ(count_of(text, "<g "), 1U);
  EXPECT_EQ(count_of(text, "</g>"), 1U);
  EXPECT_EQ(count_of(svg_of(PopClip{}), "</g>"), 0U);
}

TEST(Svg, WritesFewCellsAsBoxesOfEqualRuns) {
  const Color other{1, 2, 3};
  const std::string text = svg_of(Pixels{
      {0, 0, 40, 20}, 4, 2, {kBlue, kBlue, other, other, {0, 0, 0, 0}, kBlue, kBlue, kBlue}});
  EXPECT_EQ(count_of(text, "fill=\"#0077BB\""), 2U);
  EXPECT_EQ(count_of(text, "<rect x=\"10\" y=\"10\" width=\"30\" height=\"10\""), 1U);
}

#ifdef CPSCOPE_HAS_PNG
TEST(Svg, EmbedsManyCellsAsOnePicture) {
  Pixels many{{0, 0, 40, 40}, 40, 40, {}};
  many.colors.assign(1600, kBlue);
  const std::string text = svg_of(many);
  EXPECT_EQ(count_of(text, "<image "), 1U);
  EXPECT_EQ(count_of(text, "data:image/png;base64,iVBORw0KGgo"), 1U);
}
#endif

TEST(Svg, NeverWritesWhatIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  for (const std::string& text : {svg_of(FilledBox{.box = {nan, 0, 5, 5}, .color = kBlue}),
                                  svg_of(Line{{0, nan}, {5, infinite}, kBlue}),
                                  svg_of(Ribbon{0, infinite, 0, nan, 5, 5, kBlue})}) {
    EXPECT_EQ(text.find("nan"), std::string::npos);
    EXPECT_EQ(text.find("inf"), std::string::npos);
  }
}

TEST(Svg, SaysWhyAFileCannotBeWritten) {
  const Result<size_t> written = write_svg("/nowhere/at/all.svg", {}, kPage);
  ASSERT_FALSE(written.ok());
  EXPECT_NE(to_text(written.error()).find("could not be written"), std::string::npos);
}

}  // namespace
}  // namespace cpscope::gui
