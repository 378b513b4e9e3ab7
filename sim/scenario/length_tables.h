#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace cpscope {

/// Value of LengthBin::tokens if only documents were counted: every length of the bin is equally
/// likely.
inline constexpr double kUniform = -1.0;

/// The documents of more than the previous bin's `longest` tokens, up to this bin's `longest`.
struct LengthBin {
  int64_t longest;   // tokens
  double documents;  // percent of all documents, or their number
  double tokens;     // percent of all tokens, or kUniform
};

/// A published length distribution: shares per bin and the mean of all.
struct LengthTable {
  std::string_view name;
  double mean;  // tokens of a document; unused if all bins are uniform
  std::span<const LengthBin> bins;
  int64_t pack_parts = 1;  // a document is cut to this part of the requested tokens
};

/// The table of that name ("wlb", "prolong", "wiki", "byted", "magi"), nullptr if there is none.
const LengthTable* find_length_table(std::string_view name);

/// Draws one length from the table. `bin_unit` and `place_unit` are independent, uniform on (0, 1).
/// The bin follows the share of documents; inside the bin two uniform pieces meet at the bin's
/// mean, so that the share of tokens is met too, in closed form (kUniform: one piece).
int64_t draw_table_length(const LengthTable& table, double bin_unit, double place_unit);

}  // namespace cpscope
