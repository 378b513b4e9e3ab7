#include "gui/model/view_memo.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::ViewMemo;

/// A memo whose jobs are done when the test says so, and the values that were made.
struct AskedMemo {
  ViewMemo memo;
  std::vector<std::function<void()>> jobs;
  int made = 0;

  explicit AskedMemo(bool can_post) {
    if (can_post) memo.post = [this](std::function<void()> job) { jobs.push_back(std::move(job)); };
  }
  std::shared_ptr<const std::string> ask(const std::string& key, bool is_long = true) {
    return gui::remember<std::string>(&memo, key, is_long, [this, key] {
      ++made;
      return std::make_shared<const std::string>("value of " + key);
    });
  }
};

TEST(ViewMemo, MakesAValueOnceAKey) {
  AskedMemo asked(false);
  EXPECT_EQ(*asked.ask("a"), "value of a");
  EXPECT_EQ(*asked.ask("a"), "value of a");
  EXPECT_EQ(asked.made, 1);
  EXPECT_EQ(*asked.ask("b"), "value of b");
  EXPECT_EQ(*asked.ask("a"), "value of a");
  EXPECT_EQ(asked.made, 3) << "it keeps one";
}

TEST(ViewMemo, MakesShortValuesAtOnceThoughItCouldPostThem) {
  AskedMemo asked(true);
  EXPECT_EQ(*asked.ask("a", false), "value of a");
  EXPECT_TRUE(asked.jobs.empty());
}

TEST(ViewMemo, AnswersNothingUntilAPostedJobIsDone) {
  AskedMemo asked(true);
  EXPECT_EQ(asked.ask("a"), nullptr);
  EXPECT_EQ(asked.ask("a"), nullptr);
  ASSERT_EQ(asked.jobs.size(), 1u) << "one job a value";
  EXPECT_TRUE(asked.memo.is_waiting());
  EXPECT_FALSE(asked.memo.has_news());
  asked.jobs[0]();
  EXPECT_TRUE(asked.memo.has_news());
  EXPECT_EQ(*asked.ask("a"), "value of a");
  EXPECT_FALSE(asked.memo.is_waiting());
  EXPECT_EQ(asked.made, 1);
}

TEST(ViewMemo, KeepsTheFormerValueWhileTheNextIsMade) {
  AskedMemo asked(true);
  asked.ask("a", false);
  EXPECT_EQ(asked.ask("b"), nullptr);
  EXPECT_EQ(*std::static_pointer_cast<const std::string>(asked.memo.value), "value of a");
  EXPECT_EQ(asked.memo.key, "a");
  // The value of b is no longer needed; a new job begins only when the running one is done.
  EXPECT_EQ(asked.ask("c"), nullptr);
  ASSERT_EQ(asked.jobs.size(), 1u);
  asked.jobs[0]();
  EXPECT_EQ(asked.ask("c"), nullptr);
  EXPECT_EQ(asked.memo.key, "b");
  ASSERT_EQ(asked.jobs.size(), 2u);
  asked.jobs[1]();
  EXPECT_EQ(*asked.ask("c"), "value of c");
}

}  // namespace
}  // namespace cpscope::tests
