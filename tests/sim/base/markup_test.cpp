#include "sim/base/markup.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(Markup, EscapesWhatXmlReadsAsItsOwn) {
  EXPECT_EQ(escape_markup("a<b & \"c\" > 'd'"), "a&lt;b &amp; &quot;c&quot; &gt; &#39;d&#39;");
}

TEST(Markup, KeepsUtf8AndReplacesWhatXmlForbids) {
  EXPECT_EQ(escape_markup("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x99\x82\t\n\r"),
            "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x99\x82\t\n\r");
  // A control character; half of a character; an overlong one; a surrogate; a noncharacter.
  EXPECT_EQ(escape_markup("a\x01z"), "a?z");
  EXPECT_EQ(escape_markup("\xC3z"), "?z");
  EXPECT_EQ(escape_markup("\xC0\xAFz"), "??z");
  EXPECT_EQ(escape_markup("\xED\xA0\x80z"), "???z");
  EXPECT_EQ(escape_markup("\xEF\xBF\xBFz"), "?z");
}

TEST(Markup, GivesMarkdownNothingToFormat) {
  EXPECT_EQ(escape_markdown("*a*|<b>\n`c`"), "\\*a\\*\\|&lt;b&gt; \\`c\\`");
}

TEST(Markup, WritesAddressesInPlainLetters) {
  EXPECT_EQ(escape_address("a b/c_1.svg"), "a%20b/c_1.svg");
}

}  // namespace
}  // namespace cpscope::tests
