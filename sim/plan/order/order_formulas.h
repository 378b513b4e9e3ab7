#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace cpscope {

/// [rank][local row] packed id.
using RankLists = std::vector<std::vector<int64_t>>;

/// The split of a packed batch in TransformerEngine and Megatron; every slot is a multiple of
/// 2*ranks. Source: transformer_engine, thd_get_partitioned_indices.
RankLists te_partition(const std::vector<int64_t>& slots, int64_t ranks);

/// A layout that a framework knows by name.
struct NamedFormula {
  int64_t multiple = 1;    // of every unit
  bool is_packed = false;  // splits the packed buffer as one unit, not sequence by sequence
  std::function<int64_t(int64_t rank, int64_t row, int64_t length)> token;  // inside the unit
  int64_t ranks = 1;

  RankLists assign(const std::vector<int64_t>& units) const;
};

/// The formula of a name, or nothing. ring-flash-attention: ring, zigzag, stripe, llama3. USP:
/// basic, zigzag, strip, where rank = ring index * ulysses degree + ulysses index. Sources:
/// ring-flash-attention, test/ (extract_local); yunchang/comm/extract_local.py.
std::optional<NamedFormula> find_formula(bool is_usp, std::string_view name, int64_t ranks,
                                         int64_t ulysses_degree);

}  // namespace cpscope
