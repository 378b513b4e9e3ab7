// The page that `demo` writes.
#include "sim/app/cli/demo_report.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

VerifyRow row_of(const std::string& name, CaseStatus status) {
  VerifyRow row;
  row.path = "scenarios/" + name + ".toml";
  row.loaded.scenario.title = "Title of " + name;
  row.outcome.executor = "cpu";
  row.outcome.status = status;
  return row;
}

TEST(DemoReport, BeginsWithWhatDidNotPass) {
  const std::string html =
      demo_report({row_of("a_passes", CaseStatus::pass), row_of("b_skipped", CaseStatus::skipped),
                   row_of("c_passes", CaseStatus::pass), row_of("d_fails", CaseStatus::fail)},
                  {}, "");
  size_t last = 0;
  for (const char* name : {"d_fails", "b_skipped", "a_passes", "c_passes"}) {
    const size_t at = html.find("href=\"#" + std::string(name));
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GT(at, last) << name;
    last = at;
  }
}

TEST(DemoReport, IsReadableOnPhonesAndInTheDark) {
  const std::string html = demo_report({row_of("zigzag", CaseStatus::pass)}, {}, "cpscope.html");
  EXPECT_NE(html.find("name=\"viewport\""), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(html.find("<div class=\"wide\"><table>"), std::string::npos)
      << "a table that is too wide scrolls by itself";
  EXPECT_NE(html.find("href=\"cpscope.html#zigzag\""), std::string::npos);
  EXPECT_EQ(demo_report({row_of("zigzag", CaseStatus::pass)}, {}, "").find("cpscope.html"),
            std::string::npos);
}

}  // namespace
}  // namespace cpscope::tests
