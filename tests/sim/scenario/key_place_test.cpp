#include "sim/scenario/key_place.h"

#include "tests/sim/scenario/scenario_text.h"

#include <gtest/gtest.h>

namespace cpscope {
namespace {

const std::string kText =
    "schema = 1\n"
    "[attention]\n"
    "heads = 6\n"
    "[batch]\n"
    "  lengths = [10,\n"
    "    20]\n"
    "generator = { name = \"equal\" }\n";

std::string place_of(std::vector<std::string> keys) {
  return locate_keys(make_refusal("no", "yes", std::move(keys)), kText, "a.toml")
      .complaints.front()
      .where;
}

TEST(KeyPlace, IsWhereTheValueStands) {
  EXPECT_EQ(place_of({"attention.heads"}), "a.toml:3:9");
  EXPECT_EQ(place_of({"schema"}), "a.toml:1:10");
  EXPECT_EQ(place_of({"batch.generator.name"}), "a.toml:7:22");
}

TEST(KeyPlace, IsTheEntryOfAListOrTheListWithoutIt) {
  EXPECT_EQ(place_of({"batch.lengths[0]"}), "a.toml:5:14");
  EXPECT_EQ(place_of({"batch.lengths[1]"}), "a.toml:6:5");
  EXPECT_EQ(place_of({"batch.lengths[2]"}), "a.toml:5:13");
  EXPECT_EQ(place_of({"batch.lengths"}), "a.toml:5:13");
}

TEST(KeyPlace, IsOfTheFirstKeyThatIsGiven) {
  EXPECT_EQ(place_of({"batch.slots[1]", "batch.lengths[1]", "attention.heads"}), "a.toml:6:5");
}

TEST(KeyPlace, IsTheTableOfAKeyLeftOutAndTheFileWithoutTheTable) {
  EXPECT_EQ(place_of({"attention.kv_heads"}), "a.toml:2:1");
  EXPECT_EQ(place_of({"parallel.cp_size"}), "a.toml:1:1");
  EXPECT_EQ(place_of({"schema.heads"}), "a.toml:1:10");
  EXPECT_EQ(place_of({}), "a.toml:1:1");
}

TEST(KeyPlace, IsLeftAloneWhereThereIsOneOrCanBeNone) {
  const Error placed = make_error(ErrorKind::refused, "no", "", "b.toml:7:7");
  EXPECT_EQ(to_text(locate_keys(placed, kText, "a.toml")), to_text(placed));
  const Error in_memory = make_refusal("no", "yes", {"attention.heads"});
  EXPECT_EQ(to_text(locate_keys(in_memory, "", "")), "no; yes");
  const Error of_machine = make_error(ErrorKind::unavailable, "no GPU");
  EXPECT_EQ(to_text(locate_keys(of_machine, kText, "a.toml")), "no GPU");
}

}  // namespace
}  // namespace cpscope
