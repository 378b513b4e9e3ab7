#include "sim/plan/order/order_formulas.h"

namespace cpscope {
namespace {

/// Token of row `row` of rank `rank` if each of `ranks` ranks has two chunks of a unit: chunk
/// `rank` from the front and chunk `rank` from the end.
int64_t zigzag_token(int64_t rank, int64_t row, int64_t length, int64_t ranks) {
  const int64_t chunk = length / (2 * ranks);
  return row < chunk ? rank * chunk + row : (2 * ranks - 1 - rank) * chunk + (row - chunk);
}

}  // namespace

RankLists te_partition(const std::vector<int64_t>& slots, int64_t ranks) {
  RankLists lists(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t local_begin = 0;
    for (const int64_t slot : slots) {
      const int64_t chunk = slot / (2 * ranks);
      for (int64_t u = local_begin; u < local_begin + 2 * chunk; ++u) {
        const int64_t jump = u - local_begin < chunk ? rank : 2 * ranks - 2 - rank;
        lists[rank].push_back((u - local_begin) + local_begin * ranks + chunk * jump);
      }
      local_begin += 2 * chunk;
    }
  }
  return lists;
}

RankLists NamedFormula::assign(const std::vector<int64_t>& units) const {
  RankLists lists(static_cast<size_t>(ranks));
  int64_t begin = 0;
  for (const int64_t length : units) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t row = 0; row < length / ranks; ++row)
        lists[rank].push_back(begin + token(rank, row, length));
    }
    begin += length;
  }
  return lists;
}

std::optional<NamedFormula> find_formula(bool is_usp, std::string_view name, int64_t ranks,
                                         int64_t ulysses_degree) {
  const int64_t ring = ranks / ulysses_degree;
  NamedFormula formula{.multiple = ranks, .token = {}, .ranks = ranks};
  const auto contiguous = [ranks](int64_t rank, int64_t row, int64_t length) {
    return rank * (length / ranks) + row;
  };
  if (name == (is_usp ? "basic" : "ring") || (!is_usp && name == "llama3")) {
    formula.is_packed = name == "llama3";
    formula.token = contiguous;
  } else if (name == "zigzag") {
    // The pair of chunks of a ring rank is split among its ulysses ranks.
    formula.multiple = 2 * ranks;
    formula.token = [ring, ulysses_degree](int64_t rank, int64_t row, int64_t length) {
      const int64_t part = length / (ring * ulysses_degree);
      return zigzag_token(rank / ulysses_degree, rank % ulysses_degree * part + row, length, ring);
    };
  } else if (name == (is_usp ? "strip" : "stripe")) {
    // Every ring-th token; the stripe of a ring rank is split among its ulysses ranks.
    formula.token = [ring, ulysses_degree](int64_t rank, int64_t row, int64_t length) {
      const int64_t part = length / (ring * ulysses_degree);
      return (rank % ulysses_degree * part + row) * ring + rank / ulysses_degree;
    };
  } else {
    return std::nullopt;
  }
  return formula;
}

}  // namespace cpscope
