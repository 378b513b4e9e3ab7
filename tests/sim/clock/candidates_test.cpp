#include "sim/clock/candidates.h"

#include "sim/clock/fixed_groups.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

Scenario scenario_of_parallel(const std::string& parallel,
                              const std::string& lengths = "512, 100, 1000") {
  const Result<LoadedScenario> loaded = parse_scenario(
      fmt::format("schema = 1\n[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 64\n"
                  "attn_mask_type = \"padding_causal\"\n[batch]\nlengths = [{}]\n[parallel]\n{}\n",
                  lengths, parallel),
      "t.toml");
  EXPECT_TRUE(loaded.ok()) << (loaded ? "" : to_text(loaded.error()));
  return loaded.value().scenario;
}

Cluster h200() { return load_cluster("h200x8", CPSCOPE_CLUSTERS).value(); }

TEST(Candidates, CoverEveryWayOnceAndTheOwnOneFirst) {
  const Scenario scenario = scenario_of_parallel(
      "cp_size = 4\nlayout = \"lpt\"\ndispatch_chunk = 64\ncp_comm_type = \"a2a+p2p\"");
  const std::vector<Parallel> list = list_candidates(scenario, {128, 256});
  EXPECT_EQ(list.front(), scenario.parallel);
  // 5 communication types (one a2a_size) x (4 layouts + 2 x 2 chunks), and the scenario's own
  // chunk.
  EXPECT_EQ(list.size(), 5 * 8 + 1U);
  std::set<std::string> names;
  const Candidates comparison =
      compare_candidates(scenario, h200(), {.dispatch_chunks = {128, 256}}).value();
  for (const Candidate& candidate : comparison.candidates)
    EXPECT_TRUE(names.insert(candidate.name).second) << candidate.name;
  EXPECT_EQ(names.size(), list.size());
}

TEST(Candidates, AreSortedMarkedAndRefusedWithReasons) {
  // Five ranks and four heads: no type that splits heads over all ranks.
  const Candidates comparison =
      compare_candidates(scenario_of_parallel("cp_size = 5"), h200(), {.dispatch_chunks = {64}})
          .value();
  ASSERT_GE(comparison.best, 0);
  bool is_in_refused = false;
  double before = 0;
  int64_t refused = 0;
  for (const Candidate& candidate : comparison.candidates) {
    if (!candidate.refusal.empty()) {
      is_in_refused = true;
      ++refused;
      EXPECT_EQ(candidate.parallel.comm_type, CommType::a2a) << candidate.name;
      EXPECT_NE(candidate.refusal.find("heads"), std::string::npos) << candidate.refusal;
      continue;
    }
    EXPECT_FALSE(is_in_refused) << "refused ones stand last";
    EXPECT_GE(std::llround(candidate.total_us()), std::llround(before)) << "as printed";
    before = candidate.total_us();
    const double sum = candidate.mean.compute_us + candidate.mean.local_us +
                       candidate.mean.exposed_us + candidate.mean.idle_us;
    EXPECT_NEAR(sum, candidate.total_us(), 1e-6 * sum) << candidate.name;
    bool is_beaten = false;
    for (const Candidate& other : comparison.candidates) {
      is_beaten |= other.refusal.empty() && other.total_us() < candidate.total_us() &&
                   other.bytes_sent < candidate.bytes_sent &&
                   other.memory_bytes < candidate.memory_bytes;
    }
    EXPECT_FALSE(is_beaten && candidate.is_pareto) << candidate.name;
  }
  EXPECT_EQ(refused, 6);
  EXPECT_TRUE(comparison.candidates.front().is_pareto);
}

TEST(Candidates, RecommendNothingThatIsMostlyPadding) {
  // Chunks of 2048 on four ranks hold 8192 rows for 1612 tokens.
  const Candidates comparison = compare_candidates(scenario_of_parallel("cp_size = 4"), h200(),
                                                   {.dispatch_chunks = {64, 2048}})
                                    .value();
  for (size_t i = 0; i < comparison.candidates.size(); ++i) {
    const Candidate& candidate = comparison.candidates[i];
    if (candidate.name.ends_with(" 2048")) {
      EXPECT_TRUE(candidate.is_wasteful) << candidate.name;
      EXPECT_GT(candidate.padding_share, 0.8) << candidate.name;
    } else if (candidate.name.ends_with("contiguous")) {
      EXPECT_FALSE(candidate.is_wasteful) << candidate.name;
    }
    EXPECT_FALSE(static_cast<int64_t>(i) == comparison.best && candidate.is_wasteful);
  }
}

/// A step of a decoder on eight ranks: requests of so many rows against keys in stripes of 16.
Scenario decoder_scenario(std::vector<int64_t> rows, std::vector<int64_t> keys) {
  Scenario scenario = scenario_of_parallel("cp_size = 8\nlayout = \"striped\"\nstripe = 16");
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.batch.lengths = scenario.batch.slots = std::move(rows);
  scenario.batch.kv_lengths = scenario.batch.kv_slots = std::move(keys);
  scenario.batch.self_attention = false;
  scenario.numerics.backward = false;
  return scenario;
}

TEST(Candidates, OfADecoderLeaveTheKeysWhereTheyAre) {
  const struct {
    std::vector<int64_t> rows, keys;
  } batches[] = {{{1}, {1 << 20}},
                 {{8}, {1 << 20}},
                 {{1, 4, 8, 1}, {131072, 65000, 500000, 32768}},
                 {std::vector<int64_t>(5, 1), std::vector<int64_t>(5, 32768)}};
  for (const auto& batch : batches) {
    const Scenario scenario = decoder_scenario(batch.rows, batch.keys);
    const Candidates comparison = compare_candidates(scenario, h200()).value();
    const Candidate& best = comparison.candidates[static_cast<size_t>(comparison.best)];
    EXPECT_EQ(best.parallel.comm_type, CommType::gather_q) << best.name;
    std::map<std::string, const Candidate*> by_name;
    for (const Candidate& candidate : comparison.candidates)
      if (candidate.refusal.empty()) by_name[candidate.name] = &candidate;
    for (const char* name : {"pass_q, striped of 16", "token_ring, striped of 16"})
      EXPECT_TRUE(by_name.contains(name)) << name;
    ASSERT_TRUE(by_name.contains("gather_q, striped of 16"));
    const Candidate& striped = *by_name["gather_q, striped of 16"];
    // The requests' rows fill one stripe, the others hold padding. Every rank sends its stripe to
    // seven others, and all but the owner send it their results.
    const int64_t row = scenario.attention.heads * scenario.attention.head_dim_qk * 2;
    EXPECT_EQ(striped.bytes_sent, (7 + 1) * 16 * row);
    EXPECT_EQ(striped.kv_moved, 0);
    EXPECT_EQ(striped.query_rows, 16);
    EXPECT_TRUE(striped.can_be_best()) << "16 rows a rank cost other layers nothing";
    EXPECT_LT(2 * striped.total_us(), by_name["p2p, striped of 16"]->total_us());
  }
}

TEST(Candidates, SendNoQueriesWhereThereAreAsManyAsKeys) {
  const Candidates comparison =
      compare_candidates(scenario_of_parallel("cp_size = 4"), h200()).value();
  for (const Candidate& candidate : comparison.candidates)
    EXPECT_EQ(std::find(kQueriesTravel.begin(), kQueriesTravel.end(), candidate.parallel.comm_type),
              kQueriesTravel.end())
        << candidate.name;
}

// Four sequences of 64 tokens on 2 ranks each, in two rounds: of a zigzag's four chunks of 16 the
// first rank sends the last one and gets the second. A row has 4 heads of 64 elements of 2 bytes.
TEST(Candidates, BringTheSequencesOfEveryGroupIntoOrderInEveryRound) {
  const auto reshards_of = [](const std::string& parallel) {
    const Scenario scenario = scenario_of_parallel("cp_size = 4\n" + parallel, "64, 64, 64, 64");
    Candidate plain, changed;
    plain.parallel = changed.parallel = scenario.parallel;
    try_candidate(scenario, h200(), {}, plain);
    try_candidate(scenario, h200(), {.reshards = 3}, changed);
    EXPECT_EQ(changed.refusal, "");
    return std::pair(changed.bytes_sent - plain.bytes_sent, changed.reshard_us);
  };
  const auto [bytes, us] = reshards_of("cp_sizes = [2, 2, 2, 2]");
  EXPECT_EQ(bytes, 3 * 2 * 2 * (16 * 4 * 64 * 2)) << "3 changes, 2 passes, 2 rounds";
  // Both groups of a round at the same time, rounds one after the other.
  const auto [of_one, one_us] = reshards_of("cp_sizes = [2, 2, 1, 1]");
  EXPECT_EQ(of_one, bytes / 2);
  EXPECT_NEAR(one_us, us / 2, 1e-9 * us);
  EXPECT_EQ(reshards_of("cp_sizes = [1, 1, 1, 1]"), std::pair(int64_t{0}, 0.0));
  EXPECT_EQ(reshards_of("cp_sizes = [2, 2, 2, 2]\nlayout = \"contiguous\""),
            std::pair(int64_t{0}, 0.0));
}

// A zigzag of 6 tokens on 2 ranks gives tokens 2 to 5 to rank 1; in order it has 3 to 5. Token 2
// goes to rank 0, and back.
TEST(Candidates, CountTheBytesOfChangesOfOrderByRankInBothDirections) {
  const auto added = [](int32_t reshards, const std::string& backward) {
    const Scenario scenario =
        scenario_of_parallel("cp_size = 2\n[numerics]\nbackward = " + backward, "6");
    Candidate plain, changed;
    plain.parallel = changed.parallel = scenario.parallel;
    try_candidate(scenario, h200(), {}, plain);
    try_candidate(scenario, h200(), {.reshards = reshards}, changed);
    EXPECT_EQ(changed.refusal, "");
    return changed.bytes_sent - plain.bytes_sent;
  };
  constexpr int64_t kRow = 4 * 64 * 2;
  EXPECT_EQ(added(1, "false"), kRow);
  EXPECT_EQ(added(2, "false"), kRow) << "each rank sends a row";
  EXPECT_EQ(added(3, "false"), 2 * kRow);
  EXPECT_EQ(added(1, "true"), kRow) << "the backward has the other direction";
  EXPECT_EQ(added(3, "true"), 3 * kRow);
}

/// The time of a batch of its own on so many ranks.
double alone_us(const std::string& lengths, int32_t ranks) {
  Candidate candidate;
  const Scenario scenario = scenario_of_parallel(fmt::format("cp_size = {}", ranks), lengths);
  candidate.parallel = scenario.parallel;
  try_candidate(scenario, h200(), {}, candidate);
  EXPECT_EQ(candidate.refusal, "");
  return candidate.total_us();
}

TEST(FixedGroups, TakeAsLongAsTheSlowestGroupAndSayHowLongTheOthersWait) {
  const Candidates comparison =
      compare_candidates(scenario_of_parallel("cp_size = 8\nmax_tokens_per_rank = 4096",
                                              "16000, 2000, 3000, 7000"),
                         h200())
          .value();
  std::map<std::string, const Candidate*> by_name;
  for (const Candidate& candidate : comparison.candidates) by_name[candidate.name] = &candidate;
  EXPECT_FALSE(by_name.contains("p2p, dual_chunk, fixed CP 2")) << "2 ranks hold 8192 tokens";
  ASSERT_TRUE(by_name.contains("p2p, dual_chunk, fixed CP 4"));
  const Candidate& fixed = *by_name["p2p, dual_chunk, fixed CP 4"];
  EXPECT_EQ(fixed.refusal, "");
  const double slow = alone_us("16000", 4), fast = alone_us("2000, 3000, 7000", 4);
  ASSERT_GT(slow, fast);
  EXPECT_NEAR(fixed.total_us(), slow, 1e-9 * slow);
  ASSERT_TRUE(fixed.group_loss.has_value());
  EXPECT_NEAR(*fixed.group_loss, 1 - (slow + fast) / 2 / slow, 1e-9);
  const MeanTimes& mean = fixed.mean;
  EXPECT_NEAR(mean.compute_us + mean.local_us + mean.exposed_us + mean.idle_us, slow, 1e-6 * slow);
  EXPECT_EQ(mean.groups_us, *fixed.group_loss * fixed.total_us());
  EXPECT_TRUE(fixed.can_be_best());
  EXPECT_NE(recommend(comparison).find("fixed CP 4 is the fastest: "), std::string::npos)
      << recommend(comparison);
  // What it is compared with.
  EXPECT_TRUE(by_name.contains("p2p, dual_chunk, hybrid of 4096"));
  EXPECT_TRUE(by_name.contains("group_cast, lpt_local 512"));
}

// Two rounds: in the first one 4 ranks of 8 have nothing, in the second one group waits.
TEST(GroupLoss, CountsEveryRoundAndRanksWithoutAGroup) {
  Candidate candidate;
  const Scenario scenario = scenario_of_parallel("cp_size = 8\ncp_sizes = [4, 8]", "16000, 16000");
  candidate.parallel = scenario.parallel;
  try_candidate(scenario, h200(), {}, candidate);
  ASSERT_EQ(candidate.refusal, "");
  const double alone = alone_us("16000", 4), together = alone_us("16000", 8);
  // Half of the ranks wait for the first round, which is a pass of its own but for its fixed time.
  ASSERT_TRUE(candidate.group_loss.has_value());
  EXPECT_NEAR(*candidate.group_loss, 0.5 * alone / (alone + together), 0.02);
  Candidate whole;
  whole.parallel = scenario.parallel;
  whole.parallel.group_rule = GroupRule::all_ranks;
  try_candidate(scenario, h200(), {}, whole);
  EXPECT_FALSE(whole.group_loss.has_value()) << "there are no groups";
}

TEST(Candidates, RecommendNothingThatDoesNotFit) {
  Cluster cluster = h200();
  const Scenario scenario = scenario_of_parallel("cp_size = 4");
  const Candidates roomy = compare_candidates(scenario, cluster).value();
  const Candidate& best = roomy.candidates[static_cast<size_t>(roomy.best)];
  cluster.device.memory_gib = static_cast<double>(best.memory_bytes - 1) / (1 << 30);
  const Candidates tight = compare_candidates(scenario, cluster).value();
  ASSERT_GE(tight.best, 0);
  EXPECT_TRUE(tight.candidates[static_cast<size_t>(tight.best)].fits);
  EXPECT_LT(tight.candidates[static_cast<size_t>(tight.best)].memory_bytes, best.memory_bytes);
  cluster.device.memory_gib = 0;
  const Candidates none = compare_candidates(scenario, cluster).value();
  EXPECT_EQ(none.best, -1);
  EXPECT_NE(recommend(none).find("No candidate"), std::string::npos);
}

TEST(Candidates, AreRecommendedWithWhatTheOthersLose) {
  Candidates comparison;
  comparison.candidates.resize(2);
  Candidate& best = comparison.candidates[0];
  best.name = "a2a, contiguous";
  best.parallel.comm_type = CommType::a2a;
  best.forward_us = best.mean.compute_us = 1000;
  Candidate& own = comparison.candidates[1];
  own.name = "p2p, dual_chunk";
  own.is_own = true;
  own.forward_us = 1500;
  own.mean = {1000, 50, 450, 0};
  comparison.best = 0;
  comparison.own = 1;
  EXPECT_EQ(recommend(comparison),
            "Take a2a, contiguous: 1.000 ms; the scenario's own way, p2p, dual_chunk, takes 50 % "
            "longer: 0.45 ms more exposed transfers.");
  own.forward_us = 1010;
  EXPECT_NE(recommend(comparison).find("as fast within what is predicted"), std::string::npos);
}

/// A finished comparison of two candidates; the second is the scenario's own, and the slower one.
Candidates compare_two(const MeanTimes& fast, const MeanTimes& slow) {
  Candidates comparison;
  comparison.candidates.resize(2);
  for (size_t i = 0; i < 2; ++i) {
    Candidate& candidate = comparison.candidates[i];
    candidate.parallel.comm_type = i == 0 ? CommType::a2a : CommType::p2p;
    candidate.mean = i == 0 ? fast : slow;
    candidate.forward_us = candidate.mean.compute_us + candidate.mean.local_us +
                           candidate.mean.exposed_us + candidate.mean.idle_us;
    candidate.is_own = i == 1;
  }
  finish_comparison(comparison);
  return comparison;
}

TEST(Candidates, NameOnlyTheKindOfTimeThatIsMostOfTheLoss) {
  const MeanTimes fast{.compute_us = 1000, .exposed_us = 100};
  const auto reason = [&](const MeanTimes& slow, double path = 1.0) {
    Candidates comparison = compare_two(fast, slow);
    comparison.candidates[1].critical_path_over_ideal = path;
    const std::string text = recommend(comparison);
    return text.substr(text.rfind(": ") + 2);
  };
  EXPECT_EQ(reason({.compute_us = 1400, .exposed_us = 400}),
            "0.40 ms more time in the attention kernels.");
  EXPECT_EQ(reason({.compute_us = 1400, .exposed_us = 300, .launch_us = 390}),
            "0.39 ms more launches and host time.");
  EXPECT_EQ(reason({.compute_us = 1000, .exposed_us = 100, .idle_us = 700, .host_us = 600}),
            "0.60 ms more launches and host time.");
  EXPECT_EQ(reason({.compute_us = 1000, .local_us = 300, .exposed_us = 900, .partner_us = 700}),
            "0.70 ms more waiting for other ranks.");
  EXPECT_EQ(reason({.compute_us = 1000, .exposed_us = 100, .idle_us = 500, .host_us = 100}, 1.3),
            "0.40 ms more waiting for the busiest rank.");
  EXPECT_EQ(reason({.compute_us = 900, .local_us = 300, .exposed_us = 350}),
            "0.30 ms more merges and moves.");
}

TEST(Candidates, BlameNoBusiestRankWhenAllRanksAreEquallyLoaded) {
  Scenario scenario = scenario_of_parallel("cp_size = 2", "768");
  scenario.attention.chunk_size = 192;
  const Candidates comparison = compare_candidates(scenario, h200()).value();
  const Candidate& own = comparison.candidates[static_cast<size_t>(comparison.own)];
  ASSERT_EQ(own.rank_max_over_mean, 1.0);
  EXPECT_NEAR(own.mean.waiting_us(), 0, 0.5);
  const std::string text = recommend(comparison);
  EXPECT_NE(text.find("p2p, dual_chunk, takes"), std::string::npos) << text;
  EXPECT_NE(text.find("more launches and host time"), std::string::npos) << text;
  EXPECT_EQ(text.find("busiest rank"), std::string::npos) << text;
}

TEST(Candidates, SayWhatIsUnneededWhereNothingIsNecessary) {
  Candidate candidate;
  EXPECT_EQ(describe_kv_ratio(candidate), "-");
  candidate.kv_moved = 786'432;
  EXPECT_EQ(describe_kv_ratio(candidate), "unneeded");
  candidate.kv_necessary = 589'824;
  EXPECT_EQ(describe_kv_ratio(candidate), "1.33");
  candidate.kv_moved = 294'912;
  EXPECT_EQ(describe_kv_ratio(candidate), "0.50") << "a2a: no rank needs all heads";
  Candidates comparison;
  comparison.candidates = {candidate, {}, {}};
  comparison.candidates[1].kv_moved = 1024;
  std::string fields;
  const std::string csv = comparison_csv(comparison);
  for (size_t line = csv.find('\n') + 1; line < csv.size(); line = csv.find('\n', line) + 1) {
    size_t at = line;
    for (int column = 0; column < 13; ++column) at = csv.find(',', at) + 1;
    fields += csv.substr(at, csv.find(',', at) - at) + ";";
  }
  EXPECT_NE(csv.find("kv_moved,kv_moved_over_necessary,rank_max_over_mean"), std::string::npos);
  EXPECT_EQ(fields, "0.5;inf;;");
}

/// Ways of one time, as far as it is printed, one message size and one memory.
Candidates compare_equals(std::initializer_list<Parallel> ways, size_t own) {
  Candidates comparison;
  double us = 404'318.103791;
  for (const Parallel& way : ways) {
    Candidate candidate;
    candidate.parallel = way;
    candidate.forward_us = us;
    candidate.is_own = comparison.candidates.size() == own;
    comparison.candidates.push_back(candidate);
    us += 1e-8;  // rounding
  }
  finish_comparison(comparison);
  return comparison;
}

Parallel way_of(CommType comm, LayoutKind layout, int64_t dispatch_chunk = 512) {
  Parallel way;
  way.comm_type = comm;
  way.layout = layout;
  way.dispatch_chunk = dispatch_chunk;
  return way;
}

TEST(Candidates, KeepTheOwnWayOrTheSimplestWhereOnlyRoundingDecides) {
  const auto first_of = [](std::initializer_list<Parallel> ways, size_t own) {
    const Candidates comparison = compare_equals(ways, own);
    EXPECT_EQ(comparison.best, 0);
    for (size_t i = 0; i < comparison.candidates.size(); ++i)
      EXPECT_EQ(comparison.candidates[i].is_pareto, i == 0) << "one of several equal ones";
    return comparison.candidates.front().parallel;
  };
  using enum LayoutKind;
  const CommType gather = CommType::all_gather;
  const Parallel lpt_1024 = way_of(gather, lpt, 1024), zigzag = way_of(gather, dual_chunk);
  EXPECT_EQ(first_of({lpt_1024, zigzag}, 9), zigzag);
  EXPECT_EQ(first_of({lpt_1024, zigzag}, 0), lpt_1024) << "the scenario's own";
  // Simplest first, in all orders of one pair.
  const Parallel order[] = {way_of(CommType::p2p, contiguous),
                            way_of(CommType::group_cast, contiguous),
                            zigzag,
                            way_of(gather, dual_chunk_packed),
                            way_of(gather, striped),
                            way_of(gather, lpt),
                            way_of(gather, lpt, 256),
                            lpt_1024,
                            way_of(gather, lpt_local)};
  for (size_t simple = 0; simple < std::size(order); ++simple) {
    for (size_t other = simple + 1; other < std::size(order); ++other) {
      EXPECT_EQ(first_of({order[other], order[simple]}, 9), order[simple]) << simple << other;
      EXPECT_EQ(first_of({order[simple], order[other]}, 9), order[simple]) << simple << other;
    }
  }
}

TEST(Candidates, PreferFewerBytesWhereTimesArePrintedAlike) {
  Candidates comparison = compare_equals({way_of(CommType::p2p, LayoutKind::contiguous),
                                          way_of(CommType::group_cast, LayoutKind::lpt)},
                                         0);
  comparison.candidates[0].forward_us = 404'317.6;
  comparison.candidates[1].forward_us = 404'318.4;
  comparison.candidates[0].bytes_sent = 2;
  comparison.candidates[1].bytes_sent = 1;
  finish_comparison(comparison);
  EXPECT_EQ(comparison.candidates[0].parallel.layout, LayoutKind::lpt);
  EXPECT_TRUE(is_as_good(comparison.candidates[0], comparison.candidates[1]));
  EXPECT_FALSE(is_as_good(comparison.candidates[1], comparison.candidates[0]));
  EXPECT_FALSE(comparison.candidates[1].is_pareto);
  // A microsecond more is a longer time.
  comparison.candidates[0].forward_us = 404'319.4;
  finish_comparison(comparison);
  EXPECT_EQ(comparison.candidates[0].parallel.layout, LayoutKind::contiguous);
  EXPECT_TRUE(comparison.candidates[1].is_pareto) << "fewer bytes";
}

TEST(Candidates, AreTheSameInPartsAndWhicheverIsTheOwn) {
  // Three heads: a2a of two ranks is refused, all others are possible.
  Scenario scenario = scenario_of_parallel("cp_size = 4");
  scenario.attention.heads = scenario.attention.kv_heads = 3;
  const Candidates whole = compare_candidates(scenario, h200()).value();
  Candidates parts = begin_comparison(scenario, h200()).value();
  for (Candidate& candidate : parts.candidates) try_candidate(scenario, h200(), {}, candidate);
  finish_comparison(parts);
  EXPECT_EQ(comparison_csv(parts), comparison_csv(whole));
  // dispatch_chunk is the scenario's even where it is not read, so names and marks are compared.
  const auto print = [](const Candidates& ways) {
    std::string text = recommend(ways) + "\n";
    for (const Candidate& way : ways.candidates)
      text += fmt::format("{} {} {} {} {}\n", way.name, way.total_us(), way.is_pareto, way.is_own,
                          way.refusal);
    return text;
  };
  for (const Candidate& way : whole.candidates) {
    Scenario other = scenario;
    other.parallel = way.parallel;
    ASSERT_TRUE(move_own(parts, way.parallel));
    EXPECT_EQ(print(parts), print(compare_candidates(other, h200()).value())) << way.name;
  }
  Parallel none = scenario.parallel;
  none.layout = LayoutKind::lpt;
  none.dispatch_chunk = 77;
  const std::string before = print(parts);
  EXPECT_FALSE(move_own(parts, none));
  EXPECT_EQ(print(parts), before);
}

TEST(Candidates, AreRefusedByWhoeverComparesAndQuotedInATable) {
  CandidateOptions options;
  options.refuse = [](const Scenario& scenario) -> std::optional<Error> {
    if (scenario.parallel.comm_type != CommType::p2p) return std::nullopt;
    return make_error(ErrorKind::unavailable, "rings, \"here\", are refused");
  };
  const Candidates some =
      compare_candidates(scenario_of_parallel("cp_size = 4"), h200(), options).value();
  for (const Candidate& way : some.candidates)
    EXPECT_EQ(way.refusal.empty(), way.parallel.comm_type != CommType::p2p) << way.name;
  EXPECT_NE(comparison_csv(some).find(",\"rings, \"\"here\"\", are refused\"\n"),
            std::string::npos);
}

}  // namespace
}  // namespace cpscope
