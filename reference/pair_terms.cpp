#include "reference/pair_terms.h"

#include "sim/base/check.h"
#include "sim/run/philox.h"
#include "sim/scenario/score_terms.h"

#include <cmath>
#include <cstdlib>

namespace cpscope::reference {

PairTerms::PairTerms(const Scenario& scenario, const RunInputs& inputs)
    : attention_(scenario.attention),
      batch_(scenario.batch),
      bias_(inputs.bias),
      kept_(inputs.kept),
      seed_(scenario.numerics.seed) {
  CPSCOPE_CHECK(!draws_by_item(attention_) || !kept_.is_empty(), "the draws of a plan are missing",
                attention_.dropout, kept_.is_kept.size());
  for (int32_t head = 0; attention_.alibi && head < attention_.heads; ++head)
    slopes_.push_back(slope_of_head(attention_.heads, head));
}

double slope_of_head(int32_t heads, int32_t head) {
  // Heads of the largest power of two n use the exponents 8/n, 16/n, ..., 8. Those that are left
  // use the ones in the middle between 0, 8/n, 16/n, ...
  const double n = std::exp2(std::floor(std::log2(static_cast<double>(heads))));
  const double first = head < n ? 8.0 / n : 4.0 / n;
  const double place = head < n ? head : head - n;
  return std::pow(0.5, first + place * (8.0 / n));
}

size_t PairTerms::cell(int64_t sequence, int32_t head, int64_t query, int64_t key) const {
  // [sequence, head, query, key]; a dimension of length 1 is shared.
  const int64_t b = bias_.shape[0] == 1 ? 0 : sequence, h = bias_.shape[1] == 1 ? 0 : head;
  return static_cast<size_t>(((b * bias_.shape[1] + h) * bias_.shape[2] + query) * bias_.shape[3] +
                             key);
}

double PairTerms::added(int64_t sequence, int32_t head, int64_t query, int64_t key) const {
  double sum = 0.0;
  if (attention_.alibi) {
    const auto at = static_cast<size_t>(sequence);
    const int64_t diagonal = query + batch_.kv_lengths[at] - batch_.lengths[at];
    sum -= slopes_[static_cast<size_t>(head)] * static_cast<double>(std::abs(diagonal - key));
  }
  if (has_bias()) sum += bias_.values[cell(sequence, head, query, key)];
  return sum;
}

double PairTerms::factor(int64_t sequence, int32_t head, int64_t query, int64_t key) const {
  if (!drops()) return 1.0;
  if (draws_by_item(attention_))
    return kept_.holds(sequence, head, query, key) ? 1.0 / (1.0 - attention_.dropout) : 0.0;
  const auto words = philox({static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                             static_cast<uint32_t>(head), static_cast<uint32_t>(sequence)},
                            {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  const double share = 1.0 - attention_.dropout;
  const bool is_kept = static_cast<double>(words[static_cast<size_t>(key % 4)]) < share * 0x1p32;
  return is_kept ? 1.0 / share : 0.0;
}

}  // namespace cpscope::reference
