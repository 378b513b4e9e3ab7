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
// English Wikipedia (the sample of FlexSP, 1,000,000 documents). The bin up to 512 is split at the
// median, with lengths above it uniform. Above 128K only the remaining 1.1 % of the tokens and the
// longest document are known; 0.004 % of the documents continues the tail's exponent of 1.87.
constexpr std::array<LengthBin, 11> kWikiBins = {{{347, 50.0, 7.92},
                                                  {512, 12.7, 5.38},
                                                  {1'024, 16.1, 11.6},
                                                  {2'048, 10.8, 15.4},
                                                  {4'096, 6.0, 16.7},
                                                  {8'192, 2.8, 15.5},
                                                  {16'384, 1.1, 12.3},
                                                  {32'768, 0.35, 7.6},
                                                  {65'536, 0.10, 4.5},
                                                  {131'072, 0.023, 2.0},
                                                  {1'820'000, 0.004, 1.1}}};

// ByteScale's production set is published as statements: about 80 % of the documents up to 4K; 1 %
// of 128K and more hold 44.3 % of the tokens, 0.05 % of 2M and more 12.1 %, those above 256K 37 %.
// This table satisfies all of them. Between 4K and 128K the number of documents falls with the
// power of length that joins the two statements around them, -ln 20 / ln 32. Documents of 2M and
// more are assumed to be hardly longer, for a mean of 8690 tokens: with longer ones the other
// documents would have too few tokens for their number.
constexpr std::array<LengthBin, 9> kBytedBins = {{{4'096, 80.0, 19.64},
                                                  {8'192, 9.014, 5.92},
                                                  {16'384, 4.951, 6.51},
                                                  {32'768, 2.72, 7.15},
                                                  {65'536, 1.494, 7.85},
                                                  {131'071, 0.821, 8.63},
                                                  {262'144, 0.347, 7.3},
                                                  {2'097'151, 0.603, 24.9},
                                                  {2'110'000, 0.05, 12.1}}};
// MagiAttention's histogram for realistic packs: numbers of documents, uniform inside a bin.
constexpr std::array<LengthBin, 14> kMagiBins = {{{10, 30'254, kUniform},
                                                  {50, 391'188, kUniform},
                                                  {100, 699'596, kUniform},
                                                  {200, 1'377'757, kUniform},
                                                  {500, 3'794'735, kUniform},
                                                  {1'024, 3'316'785, kUniform},
                                                  {2'048, 2'106'566, kUniform},
                                                  {4'096, 988'525, kUniform},
                                                  {8'192, 410'002, kUniform},
                                                  {16'384, 173'574, kUniform},
                                                  {32'768, 115'007, kUniform},
                                                  {65'536, 18'428, kUniform},
                                                  {131'072, 22'513, kUniform},
                                                  {196'608, 18'284, kUniform}}};

constexpr std::array<LengthTable, 5> kTables = {{{"wlb", 3962.0, kWlbBins},
                                                 {"prolong", 3052.0, kProlongBins},
                                                 {"wiki", 1014.0, kWikiBins},
                                                 {"byted", 8690.0, kBytedBins},
                                                 {"magi", 0.0, kMagiBins, 4}}};

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
  // The published shares are rounded and do not sum to 100, so the unit is scaled to their sum.
  double left = bin_unit * all_documents;
  size_t index = 0;
  while (index + 1 < table.bins.size() && left >= table.bins[index].documents) {
    left -= table.bins[index].documents;
    ++index;
  }
  const LengthBin& bin = table.bins[index];
  const auto from = static_cast<double>(index == 0 ? 0 : table.bins[index - 1].longest);
  const auto to = static_cast<double>(bin.longest);
  const double mean = bin.tokens < 0.0
                          ? (from + to) / 2
                          : std::clamp(bin.tokens / bin.documents * table.mean, from, to);

  // Uniform on [from, mean] with weight w, else on [mean, to]: its mean is `mean` for this w.
  const double low_weight = (to - mean) / (to - from);
  const double length = place_unit < low_weight
                            ? from + (mean - from) * (place_unit / low_weight)
                            : mean + (to - mean) * ((place_unit - low_weight) / (1.0 - low_weight));
  return std::clamp(static_cast<int64_t>(std::ceil(length)), static_cast<int64_t>(from) + 1,
                    bin.longest);
}

}  // namespace cpscope
