#pragma once

// Private to the reference library.

#include "reference/tile_attention.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope::reference {

/// Makes the keys and values of a head of latent rows, and their gradient of the head's, where a
/// scenario expands rows (latent_nope_dim). As a framework's linear layer does, it adds up in T and
/// rounds what it makes to the dtype.
template <class T>
class RowExpander {
 public:
  RowExpander(const Scenario& scenario, const RunInputs& inputs);

  bool is_on() const { return attention_.expands_rows(); }
  /// Writes [row][head_dim_qk of k, head_dim_v of v].
  void expand(int32_t head, HeadView<const T> rows, int64_t count, T* expanded) const;
  /// Adds the gradients of a head's k, and `times` those of its v, to that of the latent rows.
  void add_gradients(int32_t head, int64_t count, HeadView<T> dk, HeadView<T> dv, T times,
                     HeadView<T> rows) const;

 private:
  const T* weights_of_k(int32_t head) const {
    return w_k_.data() + int64_t{head} * attention_.latent_nope_dim * attention_.latent_dim;
  }
  const T* weights_of_v(int32_t head) const {
    return w_v_.data() + int64_t{head} * attention_.head_dim_v * attention_.latent_dim;
  }

  const Attention& attention_;
  const Dtype dtype_;
  std::vector<T> w_k_, w_v_;  // [head][element][latent element]
};

}  // namespace cpscope::reference
