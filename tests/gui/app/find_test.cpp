#include "gui/app/find/find.h"

#include "gui/app/app_state.h"
#include "gui/model/describe.h"
#include "tests/gui/model/random_plans.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::FindAnswer;
using gui::PlanIndex;
using gui::Target;

std::vector<Target> found_targets(const FindAnswer& answer) {
  std::vector<Target> targets;
  for (const gui::Found& found : answer.found) targets.push_back(found.target);
  return targets;
}

class Find : public testing::Test {
 protected:
  // Two sequences of 4096 and 1000 tokens over 4 ranks.
  Find() : index_(*plan_unless_refused(walker_case({4096, 1000}, 4))) {}
  std::vector<Target> all(std::string_view query) {
    return found_targets(find_targets(index_, query));
  }
  std::string why(std::string_view query) {
    const FindAnswer answer = find_targets(index_, query);
    EXPECT_TRUE(answer.found.empty()) << query;
    return answer.explanation;
  }

  PlanIndex index_;
};

using gui::LinkTarget;
using gui::PairRange;
using gui::RankTarget;
using gui::RowTarget;
using gui::StepTarget;
using gui::TokenRange;
using Targets = std::vector<Target>;

TEST_F(Find, ReadsTokensAndRanges) {
  EXPECT_EQ(all("q 100-200"), Targets{(TokenRange{Side::q, 100, 200})});
  EXPECT_EQ(all("k 5"), Targets{(TokenRange{Side::kv, 5, 6})});
  EXPECT_EQ(all("token 123"),
            (Targets{TokenRange{Side::q, 123, 124}, TokenRange{Side::kv, 123, 124}}));
  EXPECT_EQ(all("Tokens [1 024, 4 096) of keys"), Targets{(TokenRange{Side::kv, 1024, 4096})});
  EXPECT_EQ(all("q 1Ki .. 2 Ki"), Targets{(TokenRange{Side::q, 1024, 2048})});
  EXPECT_EQ(all("queries 1'000 to 1_001"), Targets{(TokenRange{Side::q, 1000, 1001})});
  EXPECT_EQ(all("q 0-64 k 32"), Targets{(PairRange{0, 64, 32, 33})});
}

TEST_F(Find, ReadsRanksLinksStepsSequencesItemsAndRows) {
  EXPECT_EQ(all("rank 3"), Targets{RankTarget{3}});
  EXPECT_EQ(all("RA 3"), Targets{RankTarget{3}});
  EXPECT_EQ(all("link 1 2"), Targets{(LinkTarget{1, 2})});
  EXPECT_EQ(all("1->2"), Targets{(LinkTarget{1, 2})});
  EXPECT_EQ(all("step 4"), (Targets{StepTarget{3}, StepTarget{7}}));
  EXPECT_EQ(all("backward step 4"), Targets{StepTarget{7}});
  EXPECT_EQ(all("step 3 of 4, forward"), Targets{StepTarget{2}});
  EXPECT_EQ(all("sequence 1"),
            (Targets{TokenRange{Side::q, 4096, 5096}, TokenRange{Side::kv, 4096, 5096}}));
  EXPECT_EQ(all("seq 1 position 5").front(), Target(TokenRange{Side::q, 4101, 4102}));
  EXPECT_EQ(all("forward.compute.12"),
            Targets{(ItemId{Direction::forward, StageKind::compute, 12})});
  EXPECT_EQ(all("compute 12"), (Targets{ItemId{Direction::forward, StageKind::compute, 12},
                                        ItemId{Direction::backward, StageKind::compute, 12}}));
  EXPECT_EQ(all("back trans 3"), Targets{(ItemId{Direction::backward, StageKind::transfer, 3})});
  EXPECT_EQ(all("out 17 2"), Targets{(RowTarget{0, 17, 2})});
  EXPECT_EQ(all("dk[token 1 017, head 1]"), Targets{(RowTarget{3, 1017, 1})});
  EXPECT_EQ(all("dk 17"), (Targets{RowTarget{3, 17, 0}, RowTarget{3, 17, 1}}));
}

TEST_F(Find, OffersAllThatAPlainNumberMayBe) {
  EXPECT_EQ(all("1"), (Targets{TokenRange{Side::q, 1, 2}, RankTarget{1}, StepTarget{0},
                               StepTarget{4}, TokenRange{Side::kv, 1, 2},
                               TokenRange{Side::q, 4096, 5096}, TokenRange{Side::kv, 4096, 5096}}));
  EXPECT_EQ(all("4 200"),
            (Targets{TokenRange{Side::q, 4200, 4201}, TokenRange{Side::kv, 4200, 4201}}));
  EXPECT_EQ(all("1 2"), Targets{(LinkTarget{1, 2})});
  EXPECT_EQ(all("100-200"),
            (Targets{TokenRange{Side::q, 100, 200}, TokenRange{Side::kv, 100, 200}}));
}

TEST_F(Find, ExplainsWhatItCannotFind) {
  EXPECT_NE(why("").find("try token 123"), std::string::npos);
  EXPECT_EQ(why("rank 4"), "There is no rank 4: ranks are 0 to 3");
  EXPECT_EQ(why("rank"), "Which rank? There are 0 to 3");
  EXPECT_EQ(why("back step"), "Which step? There are 1 to 4");
  EXPECT_EQ(why("q 9000"), "Queries are [0, 5 096): [9 000, 9 001) does not lie in them");
  EXPECT_EQ(why("q 200-100"), "The range [200, 100) is empty: its end is not part of it");
  EXPECT_EQ(why("link 1"), "A link has two ranks, such as \"link 1 2\"");
  EXPECT_EQ(why("sequence 2"), "There is no sequence 2: sequences are 0 to 1");
  EXPECT_EQ(why("step 9"),
            "There is no step 9: the forward pass has steps 1 to 4, the backward pass 1 to 4");
  EXPECT_EQ(why("forward.reorder.0"), "There is no forward.reorder.0: the pass has 0 reorders");
  EXPECT_EQ(why("banana 3").rfind("\"banana\" is not understood", 0), 0u);
  EXPECT_EQ(why("rank -1").rfind("Nothing here has a negative number", 0), 0u);
  EXPECT_EQ(why("99999999999999999999999").rfind("The number ", 0), 0u);
}

TEST(FindInPlans, UnderstandsEveryNameThatIsShown) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t end) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
    };
    std::vector<Target> targets;
    for (const gui::StageRef& stage : index.stages()) {
      for (int64_t i = stage.begin; i < stage.end; ++i)
        targets.push_back(ItemId{stage.direction, stage.kind, i});
    }
    for (size_t s = 0; s < index.steps().size(); ++s)
      targets.push_back(StepTarget{static_cast<int32_t>(s)});
    const Attention& attention = index.plan().scenario.attention;
    for (int i = 0; i < 20; ++i) {
      const int64_t q = below(index.tokens(Side::q)), k = below(index.tokens(Side::kv));
      targets.push_back(TokenRange{Side::q, q, q + 1 + below(index.tokens(Side::q) - q)});
      targets.push_back(TokenRange{Side::kv, k, k + 1 + below(index.tokens(Side::kv) - k)});
      targets.push_back(PairRange{q, q + 1, k, k + 1 + below(index.tokens(Side::kv) - k)});
      targets.push_back(RankTarget{static_cast<int32_t>(below(index.num_ranks()))});
      targets.push_back(LinkTarget{static_cast<int32_t>(below(index.num_ranks())),
                                   static_cast<int32_t>(below(index.num_ranks()))});
      targets.push_back(RowTarget{1, q, static_cast<int32_t>(below(attention.heads))});
      targets.push_back(RowTarget{4, k, static_cast<int32_t>(below(attention.kv_heads))});
    }
    for (const Target& target : targets) {
      const std::string name = gui::capitalise(name_target(target, &index));
      EXPECT_EQ(found_targets(find_targets(index, name)), Targets{target}) << name;
      if (const auto* item = std::get_if<ItemId>(&target)) {
        EXPECT_EQ(found_targets(find_targets(index, "  " + gui::print_item(*item))),
                  Targets{target});
      }
      if (testing::Test::HasFailure()) return;
    }
  });
}

TEST(FindInPlans, SurvivesGarbage) {
  const std::vector<std::string> pieces = {"token",
                                           "q",
                                           "k",
                                           "rank",
                                           "link",
                                           "step",
                                           "sequence",
                                           "forward",
                                           "backward",
                                           "compute",
                                           "out",
                                           "dk",
                                           "123",
                                           "0",
                                           "-",
                                           "->",
                                           "..",
                                           "[",
                                           ")",
                                           ",",
                                           "of",
                                           "Ki",
                                           "x",
                                           " ",
                                           "  ",
                                           "999",
                                           "072",
                                           "1'0",
                                           "\xff",
                                           "\n",
                                           ".",
                                           "head",
                                           "to",
                                           "lse",
                                           "9223372036854775807",
                                           "18446744073709551616"};
  for_plans_of_seeds(12, [&](const PlanIndex& index, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int round = 0; round < 4'000; ++round) {
      std::string query;
      const uint64_t length = random() % 12;
      for (uint64_t i = 0; i < length; ++i) {
        if (random() % 5 == 0)
          query += static_cast<char>(random() % 256);
        else
          query += pieces[random() % pieces.size()];
        if (random() % 2 == 0) query += ' ';
      }
      const FindAnswer answer = find_targets(index, query);
      EXPECT_EQ(answer.found.empty(), !answer.explanation.empty()) << query;
      EXPECT_LE(answer.found.size(), FindAnswer::kMostFound);
      EXPECT_LT(answer.explanation.size(), 400u);
      for (const char c : answer.explanation) EXPECT_TRUE(c >= ' ' && c <= '~') << query;
      for (const gui::Found& found : answer.found) {
        EXPECT_TRUE(is_present(index, found.target)) << query;
        EXPECT_FALSE(found.title.empty());
        EXPECT_FALSE(found.detail.empty());
      }
      if (testing::Test::HasFailure()) return;
    }
  });
}

const std::vector<std::string> kNames = {"bottom_right",    "chunked_thd_a2a", "contiguous_idle",
                                         "million_tokens",  "striped",         "swa_thd_ring",
                                         "thd_padding_p2p", "zigzag"};

std::vector<std::string> names_for(std::string_view query) {
  std::vector<std::string> names;
  for (const gui::NameMatch& match : gui::match_names(kNames, query))
    names.push_back(kNames[match.index]);
  return names;
}

TEST(MatchNames, FindsShortFormsAndRanksThem) {
  EXPECT_EQ(names_for("zig"), std::vector<std::string>{"zigzag"});
  EXPECT_EQ(names_for("ZZ"), std::vector<std::string>{"zigzag"});
  EXPECT_EQ(names_for("mt").front(), "million_tokens");
  EXPECT_EQ(names_for("thd").front(), "thd_padding_p2p");
  EXPECT_EQ(names_for("ring swa"), std::vector<std::string>{"swa_thd_ring"});
  EXPECT_EQ(names_for("a2a"), std::vector<std::string>{"chunked_thd_a2a"});
  EXPECT_TRUE(names_for("xyz").empty());
  EXPECT_EQ(names_for(""), kNames);
  EXPECT_EQ(names_for("   "), kNames);
  const auto matches = gui::match_names(kNames, "bori");
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].letters, (std::vector<size_t>{0, 1, 7, 8}));
}

TEST(MatchNames, HitLettersSpellTheQuery) {
  std::mt19937 random(5);
  for (int round = 0; round < 3'000; ++round) {
    std::string query;
    for (uint32_t i = random() % 6; i > 0; --i) query += "abcdghilmnoprstz_2\xff"[random() % 19];
    for (const gui::NameMatch& match : gui::match_names(kNames, query)) {
      std::string hit;
      for (const size_t at : match.letters) hit += kNames[match.index].at(at);
      EXPECT_EQ(hit, query);
    }
    // A name is found if and only if it contains the letters in their order.
    for (const std::string& name : kNames) {
      size_t at = 0;
      for (const char c : name) at += at < query.size() && c == query[at] ? 1 : 0;
      const auto names = names_for(query);
      EXPECT_EQ(std::count(names.begin(), names.end(), name), at == query.size() ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
