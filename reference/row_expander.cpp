#include "reference/row_expander.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <span>

namespace cpscope::reference {

template <class T>
RowExpander<T>::RowExpander(const Scenario& scenario, const RunInputs& inputs)
    : attention_(scenario.attention), dtype_(scenario.numerics.dtype) {
  for (const auto& [weights, into] : {std::pair(&inputs.w_k, &w_k_), {&inputs.w_v, &w_v_}})
    into->assign(weights->values.begin(), weights->values.end());
}

template <class T>
void RowExpander<T>::expand(int32_t head, HeadView<const T> rows, int64_t count,
                            T* expanded) const {
  const int64_t latent = attention_.latent_dim, made = attention_.latent_nope_dim;
  const int64_t rotated = attention_.head_dim_qk - made, dim_v = attention_.head_dim_v;
  for (int64_t row = 0; row < count; ++row) {
    const T* from = rows.row(row);
    T* const first = expanded;
    for (int64_t i = 0; i < made; ++i)
      *expanded++ = dot_product<T>(weights_of_k(head) + i * latent, from, latent);
    expanded = std::copy_n(from + latent, rotated, expanded);
    for (int64_t i = 0; i < dim_v; ++i)
      *expanded++ = dot_product<T>(weights_of_v(head) + i * latent, from, latent);
    round_values(dtype_, std::span<T>(first, expanded));
  }
}

template <class T>
void RowExpander<T>::add_gradients(int32_t head, int64_t count, HeadView<T> dk, HeadView<T> dv,
                                   T times, HeadView<T> rows) const {
  const int64_t latent = attention_.latent_dim, made = attention_.latent_nope_dim;
  const auto add = [latent](T factor, const T* weights, T* to) {
    for (int64_t lane = 0; lane < latent; ++lane) to[lane] += factor * weights[lane];
  };
  for (int64_t row = 0; row < count; ++row) {
    T* const to = rows.row(row);
    for (int64_t i = 0; i < made; ++i) add(dk.row(row)[i], weights_of_k(head) + i * latent, to);
    for (int64_t i = made; i < attention_.head_dim_qk; ++i) to[latent + i - made] += dk.row(row)[i];
    for (int64_t i = 0; i < attention_.head_dim_v; ++i)
      add(times * dv.row(row)[i], weights_of_v(head) + i * latent, to);
  }
}

template class RowExpander<float>;
template class RowExpander<double>;

}  // namespace cpscope::reference
