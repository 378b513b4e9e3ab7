#pragma once

#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace cpscope::tests {

// Longest random sequence: the emulator takes long for more tokens.
#ifdef CPSCOPE_EMULATED
inline constexpr int64_t kLongestSequence = 40;
#else
inline constexpr int64_t kLongestSequence = 400;
#endif

/// A random scenario in a dtype that devices support; fp64 becomes bf16. moves_queries: of a
/// communication type in which other ranks' results are merged.
inline Scenario random_device_scenario(uint64_t seed, int64_t max_length = kLongestSequence,
                                       bool moves_queries = false) {
  RandomSpace space;
  space.any_dtype = true;
  space.max_length = max_length;
  space.moves_queries = moves_queries;
  space.has_rare = true;
  Scenario scenario = random_scenario(seed, space);
  if (scenario.numerics.dtype == Dtype::fp64) scenario.numerics.dtype = Dtype::bf16;
  return scenario;
}

/// Enough heads for several pieces, and rows in few stretches.
inline Scenario scenario_of_pieces(const char* type, int32_t ranks, int32_t head_dim,
                                   const std::string& lengths, int32_t kv_heads = 16,
                                   int32_t heads = 16) {
  const std::string text = fmt::format(
      "schema = 1\ntitle = \"pieces\"\nquestion = \"which bits?\"\n"
      "[attention]\nheads = {}\nkv_heads = {}\nhead_dim = {}\nattn_mask_type = \"causal\"\n"
      "[batch]\nqkv_format = \"thd\"\nlengths = [{}]\n"
      "[parallel]\ncp_size = {}\ncp_comm_type = \"{}\"\nlayout = \"dual_chunk\"\n"
      "[numerics]\ndtype = \"bf16\"\n",
      heads, std::min(kv_heads, 4 * ranks), head_dim, lengths, ranks, type);
  return parse_scenario(text, "pieces.toml").value().scenario;
}

/// Documents whose rows are too scattered for copies. Two ranks of group_cast receive such
/// different amounts that their inputs have different numbers of pieces.
inline constexpr const char* kScatteredDocuments =
    "1664, 3280, 2704, 480, 544, 1104, 1008, 3088, 6112, 1168, 368, 608, 3648, 1232, 992, 528, "
    "608, 2608";

}  // namespace cpscope::tests
