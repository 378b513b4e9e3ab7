#include "sim/scenario/length_tables.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace cpscope {
namespace {

// Shares counted from the samples that the authors released.
// WLB-LLM's synthetic set (dist_wlbllm.json of hao-ai-lab/distca, 99,519 documents).
constexpr std::array<LengthBin, 9> kWlbBins = {{{512, 7.93, 0.51},
                                                {1'024, 8.03, 1.56},
                                                {2'048, 15.8, 6.1},
                                                {4'096, 31.9, 24.8},
                                                {8'192, 33.9, 44.6},
                                                {16'384, 1.04, 2.9},
                                                {32'768, 0.45, 2.6},
                                                {65'536, 0.36, 4.2},
                                                {131'072, 0.53, 12.8}}};
// ProLong (dist_prolong.json of the same, 77,932 documents); the last bin ends at the longest one.
constexpr std::array<LengthBin, 10> kProlongBins = {{{1'024, 15.0, 4.2},
                                                     {2'048, 38.4, 18.6},
                                                     {4'096, 26.9, 25.4},
                                                     {8'192, 14.4, 26.5},
                                                     {16'384, 4.27, 15.1},
                                                     {32'768, 0.78, 5.4},
                                                     {65'536, 0.146, 2.1},
                                                     {131'072, 0.038, 1.15},
                                                     {262'144, 0.017, 1.1},
                                                     {340'149, 0.005, 0.55}}};
// English Wikipedia (the sample of FlexSP, 1,000,000 documents). Above 128K only the remaining 1.1
// % of the tokens and the longest document are known; 0.004 % of the documents continues the tail's
// exponent of 1.87.
constexpr std::array<LengthBin, 10> kWikiBins = {{{512, 62.7, 13.3},
                                                  {1'024, 16.1, 11.6},
                                                  {2'048, 10.8, 15.4},
                                                  {4'096, 6.0, 16.7},
                                                  {8'192, 2.8, 15.5},
                                                  {16'384, 1.1, 12.3},
                                                  {32'768, 0.35, 7.6},
                                                  {65'536, 0.10, 4.5},
                                                  {131'072, 0.023, 2.0},
                                                  {1'820'000, 0.004, 1.1}}};

constexpr std::array<LengthTable, 3> kTables = {
    {{"wlb", 3962.0, kWlbBins}, {"prolong", 3052.0, kProlongBins}, {"wiki", 1014.0, kWikiBins}}};

}  // namespace

const LengthTable* find_length_table(std::string_view name) {
  for (const LengthTable& table : kTables) {
    if (table.name == name) return &table;
  }
  return nullptr;
}

int64_t draw_table_length(const LengthTable& table, double bin_unit, double place_unit) {
  double all_documents = 0.0;
  for (const LengthBin& bin : table.bins) all_documents += bin.documents;
  // The published shares are rounded and do not sum to 100, so the unit is stretched to their sum.
  double left = bin_unit * all_documents;
  size_t index = 0;
  while (index + 1 < table.bins.size() && left >= table.bins[index].documents) {
    left -= table.bins[index].documents;
    ++index;
  }
  const LengthBin& bin = table.bins[index];
  const auto from = static_cast<double>(index == 0 ? 0 : table.bins[index - 1].longest);
  const auto to = static_cast<double>(bin.longest);
  const double mean = std::clamp(bin.tokens / bin.documents * table.mean, from, to);

  // Uniform on [from, mean] with weight w, else on [mean, to]: its mean is `mean` for this w.
  const double low_weight = (to - mean) / (to - from);
  const double length = place_unit < low_weight
                            ? from + (mean - from) * (place_unit / low_weight)
                            : mean + (to - mean) * ((place_unit - low_weight) / (1.0 - low_weight));
  return std::clamp(static_cast<int64_t>(std::ceil(length)), static_cast<int64_t>(from) + 1,
                    bin.longest);
}

}  // namespace cpscope
