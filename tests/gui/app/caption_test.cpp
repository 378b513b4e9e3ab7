#include "gui/app/caption/caption.h"

#include "gui/app/app_state.h"
#include "gui/model/axis.h"
#include "sim/plan/band.h"
#include "sim/plan/visible_interval.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::make_caption;
using gui::PlanIndex;

PlanIndex load(const std::string& name) {
  const auto loaded =
      load_scenario(std::string(CPSCOPE_SOURCE_DIR) + "/scenarios/" + name + ".toml");
  return PlanIndex(*plan_unless_refused(loaded.value().scenario));
}

/// Reads "1 448" as one number.
int64_t read_number(const std::string& text) {
  std::string digits;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) digits += c;
  }
  return std::stoll(digits);
}

/// All matches of the pattern, first group only.
std::vector<std::string> find_all(const std::string& text, const std::string& pattern) {
  std::vector<std::string> found;
  const std::regex regex(pattern);
  for (auto it = std::sregex_iterator(text.begin(), text.end(), regex);
       it != std::sregex_iterator(); ++it)
    found.push_back((*it)[1]);
  return found;
}

/// The product of "3 x 724 tokens x 1 head x (head_dim 4 + 2) x 2 bytes = 136 KiB".
int64_t read_formula(const std::string& formula) {
  const size_t sign = formula.find(" = ");
  EXPECT_NE(sign, std::string::npos) << formula;
  int64_t product = 1;
  std::stringstream terms(std::regex_replace(formula.substr(0, sign), std::regex(" x "), "*"));
  for (std::string term; std::getline(terms, term, '*');) {
    std::smatch sum;
    product *= std::regex_match(term, sum, std::regex("\\(head_dim (\\d+) \\+ (\\d+)\\).*"))
                   ? std::stoll(sum[1]) + std::stoll(sum[2])
                   : read_number(term);
  }
  EXPECT_EQ(formula.substr(sign + 3), gui::print_bytes(static_cast<double>(product)));
  return product;
}

/// The sum of bytes in sentences with this verb.
int64_t read_bytes(const std::string& text, const std::string& verb) {
  int64_t bytes = 0;
  for (const std::string& formulas :
       find_all(text, "Rank \\d+ " + verb + " [^:]*: ((?:[^.]|\\.\\d)*)\\.")) {
    for (const std::string& formula : find_all(formulas, "((?:[0-9][^=,]*) = [0-9.]+ [KMG]?i?B)"))
      bytes += read_formula(formula);
  }
  return bytes;
}

/// Calls `look` with the caption of every stage and rank of random plans.
template <class Look>
void for_random_captions(Look look) {
  int planned = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    RandomSpace space;
    space.any_dtype = true;
    const auto plan = plan_unless_refused(random_scenario(seed, space));
    if (!plan) continue;
    const PlanIndex index(*plan);
    ++planned;
    for (int32_t s = 0; s < static_cast<int32_t>(index.stages().size()); ++s) {
      for (int32_t rank = 0; rank < index.num_ranks(); ++rank) {
        const gui::Spans spans = make_caption(index, index.moment_of_stage(s), rank);
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", stage " << s << ", rank " << rank << "\n"
                     << to_text(spans));
        look(index, index.stages()[static_cast<size_t>(s)], rank, spans);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(planned, 30);
}

TEST(Caption, FormulasMultiplyToTheBytesThatARankSendsAndReceives) {
  for_random_captions([](const PlanIndex& index, const gui::StageRef& stage, int32_t rank,
                         const gui::Spans& spans) {
    if (stage.kind != StageKind::transfer) return;
    int64_t sent = 0, received = 0, all = 0;
    const Pass& pass = index.pass(stage.direction);
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = pass.transfers[static_cast<size_t>(i)];
      if (item.src == item.dst) continue;
      all += item.bytes;
      if (to_index(item.src) == rank) sent += item.bytes;
      if (to_index(item.dst) == rank && item.link != LinkClass::ring) received += item.bytes;
    }
    const std::string text = to_text(spans);
    EXPECT_EQ(read_bytes(text, "sends") + read_bytes(text, "passes"), sent);
    EXPECT_EQ(read_bytes(text, "receives"), received);
    if (all > 0) {
      EXPECT_NE(text.find(gui::print_bytes(static_cast<double>(all)) + "."), std::string::npos);
    }
  });
}

TEST(Caption, PairsAddUpToTheMask) {
  int planned = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const auto plan = plan_unless_refused(random_scenario(seed));
    if (!plan) continue;
    const PlanIndex index(*plan);
    ++planned;
    int64_t triples = 0;
    for (int32_t s = 0; s < static_cast<int32_t>(index.stages().size()); ++s) {
      if (index.stages()[static_cast<size_t>(s)].direction == Direction::backward) break;
      for (int32_t rank = 0; rank < index.num_ranks(); ++rank) {
        const std::string text = to_text(make_caption(index, index.moment_of_stage(s), rank));
        for (const std::string& n : find_all(text, "That is ([0-9 ]+) \\(query"))
          triples += read_number(n);
      }
    }
    EXPECT_EQ(triples, count_all_visible(index.plan()) * index.plan().scenario.attention.heads)
        << "seed " << seed;
  }
  EXPECT_GT(planned, 30);
}

TEST(Caption, NamedRunsHoldAllPairsOfTheItem) {
  int64_t named = 0;
  for_random_captions([&](const PlanIndex& index, const gui::StageRef& stage, int32_t rank,
                          const gui::Spans& spans) {
    if (stage.kind != StageKind::compute) return;
    const std::string text = to_text(spans);
    if (text.find("pairs a head") == std::string::npos ||
        text.find("pairs of runs") != std::string::npos)
      return;
    int64_t pairs = 0, triples = 0;
    for (const std::string& n :
         find_all(text, "(?:, all |, )([0-9 ]+)(?: of [0-9 ]+)? pairs a head"))
      pairs += read_number(n);
    int32_t heads = 0;
    const Pass& pass = index.pass(stage.direction);
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ComputeItem& item = pass.computes[static_cast<size_t>(i)];
      if (to_index(item.rank) != rank) continue;
      triples += item.visible_pairs;
      heads = item.heads.size();
    }
    EXPECT_EQ(pairs * heads, triples);
    ++named;
  });
  EXPECT_GT(named, 250);
}

TEST(Caption, SaysThatARankIdlesWhenItSeesNoKey) {
  int64_t idles = 0;
  for_random_captions([&](const PlanIndex& index, const gui::StageRef& stage, int32_t rank,
                          const gui::Spans& spans) {
    if (stage.kind != StageKind::compute) return;
    // The number of items for which layout and mask leave no visible pair.
    int64_t expected = 0;
    const Plan& plan = index.plan();
    const Pass& pass = index.pass(stage.direction);
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const ComputeItem& item = pass.computes[static_cast<size_t>(i)];
      if (to_index(item.rank) != rank) continue;
      int64_t pairs = 0;
      for (const int64_t q : expand(plan.list(item.q_tokens))) {
        for (const int64_t k : expand(plan.list(item.kv_tokens)))
          pairs += index.count_visible(q, q + 1, k, k + 1);
      }
      expected += pairs == 0 ? 1 : 0;
    }
    const auto said = find_all(to_text(spans),
                               "(Rank \\d+ idles: no key it has now is visible to its queries\\.)");
    EXPECT_EQ(static_cast<int64_t>(said.size()), expected);
    idles += expected;
  });
  EXPECT_GT(idles, 20);
}

TEST(Caption, PointsOnlyAtWhatExistsInPlainLetters) {
  for_random_captions(
      [](const PlanIndex& index, const gui::StageRef&, int32_t, const gui::Spans& spans) {
        for (const gui::Span& span : spans) {
          EXPECT_TRUE(gui::is_present(index, span.target)) << span.text;
          EXPECT_FALSE(span.text.empty());
          for (const char c : span.text) EXPECT_TRUE(c >= ' ' && c <= '~') << span.text;
        }
        const std::string text = to_text(spans);
        EXPECT_EQ(text.back(), '.');
        EXPECT_EQ(text.find("  "), std::string::npos);
        EXPECT_EQ(text.find(" ."), std::string::npos);
        EXPECT_EQ(text.find(".."), std::string::npos);
      });
}

/// The captions of all steps of rank 1, and of all stages of its first step.
std::string tell_everything(const PlanIndex& index) {
  std::string text;
  for (int32_t s = 0; s < static_cast<int32_t>(index.steps().size()); ++s)
    text += to_text(make_caption(index, index.moment_of_step(s), 1)) + "\n\n";
  for (int32_t s = 0; s < index.steps().front().end_stage; ++s)
    text += to_text(make_caption(index, index.moment_of_stage(s), 0)) + "\n\n";
  return text;
}

class GoldenCaption : public testing::TestWithParam<const char*> {};

TEST_P(GoldenCaption, SaysTheSameWords) {
  const std::string path =
      std::string(CPSCOPE_SOURCE_DIR) + "/tests/golden/captions/" + GetParam() + ".txt";
  const std::string text = tell_everything(load(GetParam()));
  if (std::getenv("CPSCOPE_BLESS") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  std::ostringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str()) << "CPSCOPE_BLESS=1 writes " << path << " anew";
}

INSTANTIATE_TEST_SUITE_P(Captions, GoldenCaption,
                         testing::Values("zigzag", "contiguous_idle", "thd_padding_a2a",
                                         "packed_group_cast", "thd_padding_hierarchical"),
                         [](const auto& given) { return std::string(given.param); });

TEST(CaptionMemo, SaysTheSameAsWithoutIt) {
  // A plan at the address of an earlier plan must not be mistaken for it.
  gui::CaptionMemo memo;
  for (const char* name : {"zigzag", "contiguous_idle", "thd_padding_a2a", "zigzag"}) {
    const auto plan = std::make_shared<const PlanIndex>(load(name));
    for (const int32_t rank : {0, 1, 1}) {
      for (const gui::Moment moment : {plan->moment_of_step(0), plan->moment_of_stage(1)})
        EXPECT_EQ(memo.find(plan, moment, rank), make_caption(*plan, moment, rank)) << name;
    }
  }
}

TEST(Caption, TellsMergesOfManyPartsInOneSentence) {
  size_t ranges = 0;
  for (const char* name : {"decode_combine", "decode_drafts", "decode_heads", "pass_q", "mesh"}) {
    const PlanIndex index = load(name);
    const auto& stages = index.stages();
    for (size_t s = 0; s < stages.size(); ++s) {
      if (stages[s].kind != StageKind::merge) continue;
      const std::string text =
          to_text(make_caption(index, index.moment_of_stage(static_cast<int32_t>(s)), 0));
      EXPECT_LE(find_all(text, "(Rank 0)").size(), 3U) << name << ": " << text;
      ranges += find_all(text, "(number|numbers [0-9]+ to [0-9]+)").size();
    }
  }
  EXPECT_GT(ranges, 0U);
}

TEST(Caption, TellsWhatEnters) {
  const PlanIndex sinks = load("sink_p2p");
  const auto last = sinks.moment_of_step(sinks.pass(Direction::forward).num_steps - 1);
  const std::string text = to_text(make_caption(sinks, last, 0));
  EXPECT_NE(text.find("the sink enters each row's softmax, once"), std::string::npos) << text;
}

TEST(Caption, CountsTheSlicesThatNeedAMaskAsThePlanDoes) {
  const PlanIndex index = load("thd_padding_p2p");
  const auto& stages = index.stages();
  int captions = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].kind != StageKind::compute || stages[s].direction != Direction::forward) continue;
    const ComputeItem& item =
        index.plan().forward.computes[static_cast<size_t>(stages[s].begin)];  // rank 0's
    int64_t full = 0;
    for (const BandSlice& slice : index.plan().slices_of(item)) full += is_full(slice) ? 1 : 0;
    std::string text;
    for (const gui::Span& span :
         make_caption(index, index.moment_of_stage(static_cast<int32_t>(s)), 0))
      text += span.text;
    const auto found = find_all(text, "([0-9]+) needs? no mask");
    ASSERT_EQ(found.size(), 1U) << text;
    EXPECT_EQ(read_number(found.front()), full) << text;
    ++captions;
  }
  EXPECT_EQ(captions, 4);
}

}  // namespace
}  // namespace cpscope::tests
