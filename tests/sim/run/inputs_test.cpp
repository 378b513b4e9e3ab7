#include "sim/run/inputs.h"

#include "sim/run/dtype.h"
#include "sim/run/run_inputs.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

constexpr int32_t kSamples = 200'000;

Numerics exact_numerics(uint64_t seed) {
  Numerics numerics;
  numerics.seed = seed;
  numerics.dtype = Dtype::fp64;
  return numerics;
}

TokenPlace valid_token(int64_t sequence, int64_t position) {
  return {.sequence = sequence, .position = position, .is_valid = true};
}

/// Means of powers of x and of x*y, over samples that should be independent N(0,1).
struct Moments {
  double mean = 0.0, variance = 0.0, skewness = 0.0, kurtosis = 0.0;
};

Moments measure(const std::function<double(int32_t)>& draw) {
  Moments moments;
  for (int32_t i = 0; i < kSamples; ++i) {
    const double x = draw(i);
    moments.mean += x / kSamples;
    moments.variance += x * x / kSamples;
    moments.skewness += x * x * x / kSamples;
    moments.kurtosis += x * x * x * x / kSamples;
  }
  return moments;
}

/// Standard errors of the four means are 1, sqrt(2), sqrt(15), sqrt(96) over sqrt(samples).
void expect_standard_normal(const std::function<double(int32_t)>& draw) {
  const Moments seen = measure(draw);
  const double five_sigma = 5.0 / std::sqrt(static_cast<double>(kSamples));
  EXPECT_NEAR(seen.mean, 0.0, five_sigma);
  EXPECT_NEAR(seen.variance, 1.0, five_sigma * std::sqrt(2.0));
  EXPECT_NEAR(seen.skewness, 0.0, five_sigma * std::sqrt(15.0));
  EXPECT_NEAR(seen.kurtosis, 3.0, five_sigma * std::sqrt(96.0));
}

double correlation(const std::function<double(int32_t)>& left,
                   const std::function<double(int32_t)>& right) {
  double sum = 0.0;
  for (int32_t i = 0; i < kSamples; ++i) sum += left(i) * right(i) / kSamples;
  return sum;
}

TEST(Inputs, AreStandardNormalAlongEveryIndex) {
  const Numerics numerics = exact_numerics(3);
  expect_standard_normal(
      [&](int32_t i) { return input_value(numerics, InputTensor::q, valid_token(0, 0), 0, i); });
  expect_standard_normal(
      [&](int32_t i) { return input_value(numerics, InputTensor::k, valid_token(0, i), 0, 1); });
  expect_standard_normal(
      [&](int32_t i) { return input_value(numerics, InputTensor::v, valid_token(i, 5), 2, 0); });
  expect_standard_normal([&](int32_t i) {
    return input_value(numerics, InputTensor::d_out, valid_token(0, 7), i, 3);
  });
  expect_standard_normal([&](int32_t i) {
    return input_value(exact_numerics(static_cast<uint64_t>(i)), InputTensor::q, valid_token(0, 0),
                       0, 0);
  });
}

TEST(Inputs, FillTheTailsOfTheNormalDistribution) {
  // P(|x| > 3) = 0.0026998: 540 of 200000, standard deviation 23.
  const Numerics numerics = exact_numerics(11);
  int32_t far = 0;
  for (int32_t i = 0; i < kSamples; ++i) {
    const double x = input_value(numerics, InputTensor::q, valid_token(1, i / 64), 0, i % 64);
    far += std::abs(x) > 3.0 ? 1 : 0;
  }
  EXPECT_NEAR(far, 540, 120);
}

TEST(Inputs, AreIndependentOfTheirNeighbours) {
  const Numerics numerics = exact_numerics(5);
  const auto at = [&](InputTensor tensor, int64_t sequence, int32_t head, int32_t lane,
                      int64_t shift) {
    return [=](int32_t i) {
      return input_value(numerics, tensor, valid_token(sequence, i + shift), head, lane);
    };
  };
  const auto base = at(InputTensor::q, 0, 0, 0, 0);
  const double five_sigma = 5.0 / std::sqrt(static_cast<double>(kSamples));
  EXPECT_NEAR(correlation(base, at(InputTensor::q, 0, 0, 1, 0)), 0.0, five_sigma) << "lane pair";
  EXPECT_NEAR(correlation(base, at(InputTensor::q, 0, 0, 2, 0)), 0.0, five_sigma) << "lane";
  EXPECT_NEAR(correlation(base, at(InputTensor::q, 0, 1, 0, 0)), 0.0, five_sigma) << "head";
  EXPECT_NEAR(correlation(base, at(InputTensor::q, 0, 0, 0, 1)), 0.0, five_sigma) << "position";
  EXPECT_NEAR(correlation(base, at(InputTensor::q, 1, 0, 0, 0)), 0.0, five_sigma) << "sequence";
  EXPECT_NEAR(correlation(base, at(InputTensor::k, 0, 0, 0, 0)), 0.0, five_sigma) << "tensor";
  const auto squared = [](const std::function<double(int32_t)>& draw) {
    return [draw](int32_t i) { return draw(i) * draw(i) - 1.0; };
  };
  EXPECT_NEAR(correlation(squared(base), squared(at(InputTensor::q, 0, 0, 1, 0))), 0.0,
              2.0 * five_sigma)
      << "squares of a Box-Muller pair";
}

TEST(Inputs, NeverRepeatAValueAcrossTheirArguments) {
  std::set<double> seen;
  int32_t count = 0;
  for (const uint64_t seed : {1u, 2u}) {
    for (const InputTensor tensor :
         {InputTensor::q, InputTensor::k, InputTensor::v, InputTensor::d_out}) {
      for (int64_t sequence = -1; sequence < 3; ++sequence) {
        for (int64_t position = 0; position < 4; ++position) {
          for (int32_t head = 0; head < 4; ++head) {
            for (int32_t lane = 0; lane < 4; ++lane) {
              for (const bool is_valid : {false, true}) {
                const TokenPlace place{sequence, position, is_valid};
                seen.insert(input_value(exact_numerics(seed), tensor, place, head, lane));
                ++count;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(static_cast<int32_t>(seen.size()), count);
}

TEST(Inputs, GivePaddingOtherValuesThanTokens) {
  const Numerics numerics = exact_numerics(9);
  TokenPlace place = valid_token(2, 40);
  const double token = input_value(numerics, InputTensor::v, place, 1, 6);
  place.is_valid = false;
  EXPECT_NE(token, input_value(numerics, InputTensor::v, place, 1, 6));
}

TEST(Inputs, CountPlacesOfTokensFromTheFirstValidOneAndOfPaddingFromItsSlot) {
  const BatchSlots slots{.sequences = {{.q_begin = 0, .q_valid = 2, .q_slot = 4, .q_front = 1},
                                       {.q_begin = 4, .q_valid = 2, .q_slot = 3}},
                         .tokens = 9};
  std::string text;
  for (const TokenPlace& place : places_of_ids(slots, Side::q))
    text += fmt::format("{}:{}{} ", place.sequence, place.position, place.is_valid ? "" : "p");
  EXPECT_EQ(text, "0:0p 0:0 0:1 0:3p 1:0 1:1 1:2p -1:0p -1:1p ");
}

TEST(Inputs, PeakedOnesGiveQueriesAndKeysOfOneDirectionALargeProduct) {
  Numerics numerics = exact_numerics(12);
  numerics.inputs = InputKind::peaked;
  constexpr int32_t kLongRow = 4096;
  const auto row = [&](InputTensor tensor, const TokenPlace& place, int32_t head) {
    std::vector<double> values(kLongRow);
    fill_input_row(numerics, tensor, place, head, values.data(), kLongRow);
    EXPECT_EQ(values[7], input_value(numerics, tensor, place, head, 7));
    return values;
  };
  // A product's mean over lanes, whose standard deviation is at most sqrt(8 / 4096) = 0.044.
  const auto product = [&](const TokenPlace& query, const TokenPlace& key, InputTensor of_key) {
    const std::vector<double> q = row(InputTensor::q, query, 3), k = row(of_key, key, 1);
    return std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / kLongRow;
  };
  const TokenPlace query = valid_token(1, 5);
  for (const int64_t further : {0, 1, 17})
    EXPECT_NEAR(product(query, valid_token(1, 5 + 61 * further), InputTensor::k), 1, 0.2);
  EXPECT_NEAR(product(query, valid_token(1, 6), InputTensor::k), 0, 0.2);
  EXPECT_NEAR(product(query, valid_token(2, 5), InputTensor::k), 0, 0.2);
  EXPECT_NEAR(product(query, valid_token(1, 5), InputTensor::v), 0, 0.2);
  EXPECT_NEAR(product(query, {.sequence = 1, .position = 5}, InputTensor::k), 0, 0.2);
  numerics.inputs = InputKind::normal;
  EXPECT_NEAR(product(query, valid_token(1, 5), InputTensor::k), 0, 0.2);
}

TEST(Inputs, FillARowWithTheValuesOfItsLanes) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp64}) {
    Numerics numerics = exact_numerics(77);
    numerics.dtype = dtype;
    for (const int32_t lanes : {0, 1, 2, 7, 64, 129}) {
      std::vector<double> row(static_cast<size_t>(lanes) + 1, -99.0);
      const TokenPlace place = valid_token(1, 12'345);
      fill_input_row(numerics, InputTensor::d_out, place, 5, row.data(), lanes);
      for (int32_t lane = 0; lane < lanes; ++lane) {
        ASSERT_EQ(row[static_cast<size_t>(lane)],
                  input_value(numerics, InputTensor::d_out, place, 5, lane))
            << "lane " << lane << " of " << lanes;
      }
      EXPECT_EQ(row.back(), -99.0) << "wrote beyond the row";
    }
  }
}

TEST(Inputs, RoundTheSameNumbersToEveryDtype) {
  Numerics numerics = exact_numerics(4);
  const double exact = input_value(numerics, InputTensor::q, valid_token(0, 3), 1, 2);
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    numerics.dtype = dtype;
    EXPECT_EQ(input_value(numerics, InputTensor::q, valid_token(0, 3), 1, 2),
              round_to(dtype, exact));
  }
}

TEST(Inputs, DependOnlyOnSeedAndDtypeOfTheNumerics) {
  Numerics numerics = exact_numerics(4);
  const double before = input_value(numerics, InputTensor::q, valid_token(0, 3), 1, 2);
  numerics.backward = false;
  numerics.dkv_wire = WireFormat::fp32;
  numerics.dkv_hops = DkvHops::ring;
  numerics.accumulate = Accumulate::dtype;
  EXPECT_EQ(before, input_value(numerics, InputTensor::q, valid_token(0, 3), 1, 2));
}

TEST(Inputs, DrawOneSinkAHeadInAtLeastFp32) {
  Numerics numerics = exact_numerics(1);
  const std::vector<double> exact = sink_logits(numerics, 6);
  ASSERT_EQ(exact.size(), 6u);
  numerics.dtype = Dtype::bf16;
  const std::vector<double> stored = sink_logits(numerics, 6);
  for (size_t head = 0; head < 6; ++head) {
    EXPECT_EQ(stored[head], round_to(Dtype::fp32, exact[head]));
  }
  EXPECT_NE(stored[0], round_to(Dtype::bf16, stored[0]));
  EXPECT_EQ(std::set<double>(exact.begin(), exact.end()).size(), 6u);
}

// The stream is part of what a scenario means: records of one version are compared with those of
// the next. Expected values are from this Python program, which shares no code with inputs.cpp:
//
//   import math
//   M = (1 << 64) - 1
//   def mix(z):
//       z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & M
//       z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & M
//       return z ^ (z >> 31)
//   def absorb(h, w): return mix(((h ^ (w & M)) + 0x9e3779b97f4a7c15) & M)
//   def value(seed, tensor, sequence, position, head, lane, valid):
//       h = 0
//       for w in (seed, tensor, sequence, position, head, valid): h = absorb(h, w)
//       u = ((absorb(h, lane // 2 * 2) >> 11) + 1) * 2.0**-53
//       t = (absorb(h, lane // 2 * 2 + 1) >> 11) * 2.0**-53
//       return math.sqrt(-2 * math.log(u)) * (math.sin if lane % 2 else math.cos)(2 * math.pi * t)
struct Golden {
  uint64_t seed;
  InputTensor tensor;
  TokenPlace place;
  int32_t head;
  int32_t lane;
  double expected;
};

TEST(Inputs, KeepTheirStreamForEver) {
  const Golden golden[] = {
      {1234, InputTensor::k, {2, 5, true}, 3, 0, -0.3938250440184258},
      {1234, InputTensor::k, {2, 5, true}, 3, 1, 1.1979895689167481},
      {1234, InputTensor::k, {2, 5, true}, 3, 2, 1.6969907339275223},
      {1234, InputTensor::k, {2, 5, true}, 3, 3, -0.13464315247799216},
      {1, InputTensor::q, {0, 0, true}, 0, 0, 0.6037086157081658},
      {7, InputTensor::d_out, {-1, 9, false}, 0, 63, -1.2051383475831363},
      {~uint64_t{0},
       InputTensor::v,
       {4, int64_t{1} << 40, true},
       65'535,
       1'023,
       0.5908823576701254},
      {1, InputTensor::sink, {0, 0, true}, 2, 0, 0.5139168089086521},
  };
  for (const Golden& one : golden) {
    EXPECT_NEAR(input_value(exact_numerics(one.seed), one.tensor, one.place, one.head, one.lane),
                one.expected, 4e-15)
        << "seed " << one.seed << " lane " << one.lane;
  }
  EXPECT_EQ(sink_logits(exact_numerics(1), 3)[2],
            input_value(exact_numerics(1), InputTensor::sink, {0, 0, true}, 2, 0));
}

TEST(Inputs, AreTheSameToTheLastBitOnEveryMachine) {
  // FNV-1a over the bits of 4096 doubles; a compiler that contracts a*b+c changes it.
  uint64_t hash = 0xcbf29ce484222325;
  std::vector<double> row(64);
  for (int64_t position = 0; position < 64; ++position) {
    fill_input_row(exact_numerics(1), InputTensor::q, valid_token(0, position), 0, row.data(), 64);
    for (const double value : row) {
      hash = (hash ^ std::bit_cast<uint64_t>(value)) * 0x100000001b3;
    }
  }
  EXPECT_EQ(hash, 3'190'806'760'603'849'224u);
}

}  // namespace
}  // namespace cpscope
