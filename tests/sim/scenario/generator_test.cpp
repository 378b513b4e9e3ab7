#include "sim/scenario/generator.h"

#include "sim/scenario/length_file.h"
#include "sim/scenario/portable_random.h"
#include "tests/sim/scenario/scenario_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

Lengths generate(const Generator& generator, const std::string& folder = "") {
  const Result<Lengths> lengths = generate_lengths(generator, folder);
  if (!lengths) ADD_FAILURE() << to_text(lengths.error());
  return lengths ? lengths.value() : Lengths{};
}

std::string reject_generator(const Generator& generator) {
  const Result<Lengths> lengths = generate_lengths(generator, "");
  if (lengths) ADD_FAILURE() << "accepted: " << generator.name;
  return lengths ? "" : to_text(lengths.error());
}

Generator make_generator(const std::string& name, int64_t tokens) {
  Generator generator;
  generator.name = name;
  generator.tokens = tokens;
  return generator;
}

struct PublishedBin {
  int64_t longest;
  double documents;  // percent
  double tokens;     // percent
};

struct PublishedQuantile {
  double share;  // of the documents, quantile
  int64_t length;
  double error;  // relative, at most
};

/// A drawn sample, shortest first.
class Sample {
 public:
  Sample(const std::string& name, uint64_t seed, int64_t tokens) {
    Generator generator = make_generator(name, tokens);
    generator.seed = seed;
    generator.max = 2'147'483'647;
    lengths_ = generate(generator);
    lengths_.pop_back();  // cut
    std::sort(lengths_.begin(), lengths_.end());
    tokens_below_.push_back(0.0);
    for (const int64_t length : lengths_)
      tokens_below_.push_back(tokens_below_.back() + static_cast<double>(length));
  }

  const Lengths& lengths() const { return lengths_; }
  double mean() const { return tokens_below_.back() / static_cast<double>(lengths_.size()); }
  double documents_up_to(int64_t length) const {
    return static_cast<double>(count_up_to(length)) / static_cast<double>(lengths_.size());
  }
  double tokens_up_to(int64_t length) const {
    return tokens_below_[count_up_to(length)] / tokens_below_.back();
  }
  double quantile(double share) const {
    return static_cast<double>(
        lengths_[static_cast<size_t>(share * static_cast<double>(lengths_.size()))]);
  }

 private:
  size_t count_up_to(int64_t length) const {
    return static_cast<size_t>(std::upper_bound(lengths_.begin(), lengths_.end(), length) -
                               lengths_.begin());
  }

  Lengths lengths_;
  std::vector<double> tokens_below_;  // [documents + 1]
};

/// Draws about 200,000 documents and compares them with all published data: the Kolmogorov-Smirnov
/// distance over all lengths whose share of documents (or tokens) is known, quantiles, mean,
/// longest.
void expect_published(const std::string& name, double mean, int64_t longest,
                      const std::vector<PublishedBin>& bins,
                      const std::vector<PublishedQuantile>& quantiles) {
  for (const uint64_t seed : {1, 2, 3}) {
    const Sample sample(name, seed, static_cast<int64_t>(200'000 * mean));
    const std::string where = name + ", seed " + std::to_string(seed);
    double by_documents = 0.0, by_tokens = 0.0, documents = 0.0, tokens = 0.0;
    for (const PublishedBin& bin : bins) {
      documents += bin.documents / 100.0;
      tokens += bin.tokens / 100.0;
      by_documents =
          std::max(by_documents, std::fabs(sample.documents_up_to(bin.longest) - documents));
      by_tokens = std::max(by_tokens, std::fabs(sample.tokens_up_to(bin.longest) - tokens));
    }
    for (const PublishedQuantile& quantile : quantiles) {
      by_documents = std::max(by_documents,
                              std::fabs(sample.documents_up_to(quantile.length) - quantile.share));
      EXPECT_NEAR(sample.quantile(quantile.share) / static_cast<double>(quantile.length), 1.0,
                  quantile.error)
          << where << ": quantile " << quantile.share;
    }
    EXPECT_LT(by_documents, 0.02) << where;
    EXPECT_LT(by_tokens, 0.02) << where;
    EXPECT_NEAR(sample.mean() / mean, 1.0, 0.02) << where;
    // The last bin of wlb is drawn to its end.
    EXPECT_LE(static_cast<double>(sample.lengths().back()), 1.05 * static_cast<double>(longest))
        << where;
    std::cout << fmt::format(
        "{} (published): {} documents, distance {:.4f} by documents, {:.4f} by tokens, mean {:.0f} "
        "({:.0f}), longest {} ({})",
        where, sample.lengths().size(), by_documents, by_tokens, sample.mean(), mean,
        sample.lengths().back(), longest);
    for (const PublishedQuantile& quantile : quantiles) {
      std::cout << fmt::format(", p{:g} {:.0f} ({})", 100 * quantile.share,
                               sample.quantile(quantile.share), quantile.length);
    }
    std::cout << "\n";
  }
}

TEST(LengthTables, FollowWlb) {
  expect_published("wlb", 3962.0, 124'913,
                   {{512, 7.93, .51},
                    {1024, 8.03, 1.56},
                    {2048, 15.8, 6.1},
                    {4096, 31.9, 24.8},
                    {8192, 33.9, 44.6},
                    {16384, 1.04, 2.9},
                    {32768, .45, 2.6},
                    {65536, .36, 4.2},
                    {131072, .53, 12.8}},
                   {{.5, 3227, .02}, {.9, 5784, .02}, {.99, 26'070, .12}, {.999, 119'836, .04}});
}

TEST(LengthTables, FollowProlong) {
  expect_published("prolong", 3052.0, 340'149,
                   {{1024, 15.0, 4.2},
                    {2048, 38.4, 18.6},
                    {4096, 26.9, 25.4},
                    {8192, 14.4, 26.5},
                    {16384, 4.27, 15.1},
                    {32768, .78, 5.4},
                    {65536, .146, 2.1},
                    {131072, .038, 1.15},
                    {262144, .017, 1.1}},
                   {{.5, 1914, .02}, {.9, 6051, .03}, {.99, 16'273, .03}, {.999, 47'500, .1}});
}

TEST(LengthTables, FollowWikipedia) {
  expect_published("wiki", 1014.0, 1'820'000,
                   {{512, 62.7, 13.3},
                    {1024, 16.1, 11.6},
                    {2048, 10.8, 15.4},
                    {4096, 6.0, 16.7},
                    {8192, 2.8, 15.5},
                    {16384, 1.1, 12.3},
                    {32768, .35, 7.6},
                    {65536, .10, 4.5},
                    {131072, .023, 2.0}},
                   {{.5, 347, .02}, {.9, 2112, .02}, {.99, 10'921, .02}, {.999, 37'367, .1}});
}

TEST(LengthTables, KeepEachStatementOnByted) {
  const int64_t thousand = 1024, million = thousand * thousand;
  for (const uint64_t seed : {1, 2, 3}) {
    const Sample sample("byted", seed, 2'000'000'000);
    EXPECT_NEAR(sample.documents_up_to(4 * thousand), 0.80, 0.01) << seed;
    EXPECT_NEAR(1.0 - sample.documents_up_to(128 * thousand - 1), 0.01, 0.001) << seed;
    EXPECT_NEAR(1.0 - sample.documents_up_to(2 * million - 1), 0.0005, 0.0001) << seed;
    EXPECT_NEAR(1.0 - sample.tokens_up_to(128 * thousand - 1), 0.443, 0.02) << seed;
    EXPECT_NEAR(1.0 - sample.tokens_up_to(256 * thousand), 0.37, 0.02) << seed;
    EXPECT_NEAR(1.0 - sample.tokens_up_to(2 * million - 1), 0.121, 0.02) << seed;
  }
}

constexpr std::array<std::pair<int64_t, int64_t>, 14> kMagiHistogram = {{{10, 30254},
                                                                         {50, 391188},
                                                                         {100, 699596},
                                                                         {200, 1377757},
                                                                         {500, 3794735},
                                                                         {1024, 3316785},
                                                                         {2048, 2106566},
                                                                         {4096, 988525},
                                                                         {8192, 410002},
                                                                         {16384, 173574},
                                                                         {32768, 115007},
                                                                         {65536, 18428},
                                                                         {131072, 22513},
                                                                         {196608, 18284}}};

TEST(LengthTables, FollowMagisHistogramUniformInEachBin) {
  double all_documents = 0.0, all_tokens = 0.0;
  int64_t from = 1;
  for (const auto& [to, count] : kMagiHistogram) {
    all_documents += static_cast<double>(count);
    all_tokens += static_cast<double>(count) * static_cast<double>(from + to) / 2;
    from = to + 1;
  }
  for (const uint64_t seed : {1, 2, 3}) {
    const Sample sample("magi", seed, 400'000'000);
    EXPECT_NEAR(sample.mean() / (all_tokens / all_documents), 1.0, 0.02) << seed;
    double documents = 0.0, tokens = 0.0;
    from = 1;
    for (const auto& [to, count] : kMagiHistogram) {
      const auto share = static_cast<double>(count) / all_documents;
      const int64_t middle = (from + to) / 2;
      EXPECT_NEAR(sample.documents_up_to(middle), documents + share / 2, 0.005) << seed << to;
      documents += share;
      tokens += static_cast<double>(count) * static_cast<double>(from + to) / 2 / all_tokens;
      EXPECT_NEAR(sample.documents_up_to(to), documents, 0.005) << seed << ", " << to;
      EXPECT_NEAR(sample.tokens_up_to(to), tokens, 0.02) << seed << ", " << to;
      from = to + 1;
    }
  }
}

TEST(Generator, CutsMagisDocumentsToAQuarterOfThePack) {
  Generator generator = make_generator("magi", 65536);
  int64_t cut = 0, documents = 0;
  for (generator.seed = 1; generator.seed <= 20; ++generator.seed) {
    for (const int64_t length : generate(generator)) {
      EXPECT_LE(length, 16384);
      cut += length == 16384 ? 1 : 0;
      ++documents;
    }
  }
  // 1.3 % of the histogram are longer than this.
  EXPECT_NEAR(static_cast<double>(cut) / static_cast<double>(documents), 0.013, 0.005);
  EXPECT_EQ(generate(make_generator("magi", 3)), (Lengths{1, 1, 1}));
}

TEST(Generator, CutsTheLastDocumentSoThatTokensAreExact) {
  for (const char* name : {"equal", "uniform", "lognormal", "lognormal+pareto", "wlb", "prolong",
                           "wiki", "byted", "magi"}) {
    for (const int64_t tokens : {1, 1000, 131'072, 1'000'003}) {
      const Lengths lengths = generate(make_generator(name, tokens));
      EXPECT_EQ(std::reduce(lengths.begin(), lengths.end()), tokens) << name;
      EXPECT_GT(lengths.back(), 0) << name;
    }
  }
}

TEST(Generator, KeepsDocumentsBetweenMinAndMax) {
  for (const char* name :
       {"uniform", "lognormal", "lognormal+pareto", "wlb", "prolong", "wiki", "byted", "magi"}) {
    Generator generator = make_generator(name, 1'000'000);
    generator.min = 700;
    generator.max = 3000;
    Lengths lengths = generate(generator);
    lengths.pop_back();
    EXPECT_GE(*std::min_element(lengths.begin(), lengths.end()), 700) << name;
    EXPECT_EQ(*std::max_element(lengths.begin(), lengths.end()) > 2900, true) << name;
    EXPECT_LE(*std::max_element(lengths.begin(), lengths.end()), 3000) << name;
  }
}

TEST(Generator, IsAFunctionOfItsSeed) {
  Generator generator = make_generator("lognormal", 100'000);
  const Lengths first = generate(generator);
  EXPECT_EQ(generate(generator), first);
  generator.seed = 2;
  EXPECT_NE(generate(generator), first);
}

TEST(Generator, DrawsTheSameLengthsOnEveryMachine) {
  // Copied from one run: a change here changes every published number of a generated batch.
  EXPECT_EQ(generate(make_generator("lognormal", 20'000)),
            (Lengths{1584, 2078, 1266, 2184, 698, 12190}));
  EXPECT_EQ(generate(make_generator("wlb", 20'000)),
            (Lengths{4621, 2964, 651, 4800, 2296, 1013, 3573, 82}));
}

TEST(Generator, FollowsTheMomentsOfItsLognormal) {
  Generator generator = make_generator("lognormal", 400'000'000);
  generator.max = 2'000'000'000;
  const Lengths lengths = generate(generator);
  double sum = 0.0, squares = 0.0;
  for (const int64_t length : lengths) {
    const double log = std::log(static_cast<double>(length));
    sum += log;
    squares += log * log;
  }
  const auto count = static_cast<double>(lengths.size());
  EXPECT_NEAR(sum / count, 7.8, 0.02);
  EXPECT_NEAR(std::sqrt(squares / count - sum / count * sum / count), 1.06, 0.02);
}

TEST(Generator, GivesTheTailItsShareAndExponent) {
  Generator generator = make_generator("lognormal+pareto", 200'000'000);
  generator.sigma = 0.5;  // the body stays far below the tail
  generator.tail_share = 0.1;
  generator.max = 2'000'000'000;
  double tail = 0.0, beyond_double = 0.0;
  const Lengths lengths = generate(generator);
  for (const int64_t length : lengths) {
    if (length >= 16'384) tail += 1.0;
    if (length >= 32'768) beyond_double += 1.0;
  }
  EXPECT_NEAR(tail / static_cast<double>(lengths.size()), 0.1, 0.01);
  EXPECT_NEAR(beyond_double / tail, std::pow(0.5, 2.2), 0.02);
}

TEST(Generator, SplitsEquallyToWithinOneToken) {
  Generator generator = make_generator("equal", 10);
  generator.count = 4;
  EXPECT_EQ(generate(generator), (Lengths{3, 3, 2, 2}));
  generator.count = 11;
  expect_contains(reject_generator(generator), "larger than generator.tokens");
}

TEST(Generator, RefusesImpossibleShapes) {
  const auto reject_with = [](auto change) {
    Generator generator = make_generator("lognormal+pareto", 1000);
    change(generator);
    return reject_generator(generator);
  };
  expect_contains(reject_with([](Generator& g) { g.name = "zipf"; }), "unknown generator:");
  expect_contains(reject_with([](Generator& g) { g.tokens = 0; }), "generator.tokens");
  expect_contains(reject_with([](Generator& g) { g.tokens = 1LL << 40; }), "generator.tokens");
  expect_contains(reject_with([](Generator& g) { g.min = 0; }), "1 <= min <= max");
  expect_contains(reject_with([](Generator& g) { g.alpha = 0.0; }), "generator.alpha");
  expect_contains(reject_with([](Generator& g) { g.sigma = NAN; }), "generator.sigma");
  expect_contains(reject_with([](Generator& g) { g.mu = INFINITY; }), "generator.mu");
  expect_contains(reject_with([](Generator& g) { g.tail_share = 1.5; }), "generator.tail_share");
  expect_contains(reject_with([](Generator& g) { g.tail_from = 0; }), "generator.tail_from");
  expect_contains(reject_with([](Generator& g) {
                    g.tokens = 5'000'000;
                    g.max = 1;
                  }),
                  "more documents than the limit: 4194304");
}

TEST(Generator, SurvivesExtremeNumbers) {
  for (const double mu : {-1e308, -50.0, 50.0, 1e308}) {
    for (const double sigma : {0.0, 1e308}) {
      Generator generator = make_generator("lognormal+pareto", 100'000);
      generator.mu = mu;
      generator.sigma = sigma;
      generator.alpha = 1e-300;
      const Lengths lengths = generate(generator);
      EXPECT_EQ(std::reduce(lengths.begin(), lengths.end()), 100'000);
    }
  }
}

TEST(Generator, RepeatsAndCutsAFile) {
  const std::filesystem::path folder = testing::TempDir();
  std::ofstream(folder / "generator_test.csv") << "length\n3, 4\n# none\n5\n";
  Generator generator = make_generator("csv", 0);
  generator.file = "generator_test.csv";
  EXPECT_EQ(generate(generator, folder.string()), (Lengths{3, 4, 5}));
  generator.tokens = 20;
  EXPECT_EQ(generate(generator, folder.string()), (Lengths{3, 4, 5, 3, 4, 1}));
  std::ofstream(folder / "generator_test.csv") << "0\n0\n";
  const Result<Lengths> endless = generate_lengths(generator, folder.string());
  std::filesystem::remove(folder / "generator_test.csv");
  ASSERT_FALSE(endless.ok());
  expect_contains(to_text(endless.error()), "cannot fill generator.tokens");
}

TEST(LengthFile, TakesLinesCommasCommentsAndAHeader) {
  const auto lengths = parse_length_file(
      "\xEF\xBB\xBF# made by hand\r\ndoc_length\r\n 12 , 7,\r\n\r\n0 # last\r\n", "a.csv");
  ASSERT_TRUE(lengths.ok()) << to_text(lengths.error());
  EXPECT_EQ(lengths.value(), (Lengths{12, 7, 0}));
}

TEST(LengthFile, PlacesWhatIsNoLength) {
  const auto complain = [](const std::string& text) {
    const auto lengths = parse_length_file(text, "a.csv");
    return lengths ? std::string("accepted") : to_text(lengths.error());
  };
  expect_contains(complain("1\n2, x\n"), "a.csv:2:4: a length must be an integer");
  expect_contains(complain("length\nlength\n"), "a.csv:2:1: ");
  expect_contains(complain("-1\n"), "a.csv:1:1: ");
  expect_contains(complain("1.5\n"), "a.csv:1:1: ");
  expect_contains(complain("99999999999999999999\n"), "a.csv:1:1: ");
  expect_contains(complain("1 2\n"), "a.csv:1:1: ");
  expect_contains(complain("# nothing\n\n"), "the file holds no length");
  expect_contains(complain(std::string("\0\0", 2)), "the file holds no length");
}

TEST(PortableRandom, AgreesWithTheMathLibrary) {
  for (double x = -30.0; x <= 30.0; x += 0.0173) {
    EXPECT_NEAR(portable_exp(x) / std::exp(x), 1.0, 1e-14) << x;
  }
  for (double x = 1e-300; x < 1e300; x *= 1.37) {
    EXPECT_NEAR(portable_log(x), std::log(x), 1e-14 * (1.0 + std::fabs(std::log(x)))) << x;
  }
}

TEST(PortableRandom, KnowsTheNormalQuantiles) {
  EXPECT_EQ(find_normal_quantile(0.5), 0.0);
  for (double z = -6.0; z <= 6.0; z += 0.25) {
    const double u = 0.5 * std::erfc(-z / std::sqrt(2.0));
    EXPECT_NEAR(find_normal_quantile(u), z, 1e-7 * (1.0 + std::fabs(z))) << z;
  }
}

}  // namespace
}  // namespace cpscope
