#pragma once

// Private to the reference library: the only header here that includes Eigen.

#include "reference/mask_predicate.h"
#include "sim/run/tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <Eigen/Core>

namespace cpscope::reference {

template <class Real>
using Rows = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Real>
using Column = Eigen::Array<Real, Eigen::Dynamic, 1>;

/// Query rows and the hull of the keys that they see.
struct RowBlock {
  int64_t row_begin = 0, row_end = 0;
  int64_t key_begin = 0, key_end = 0;  // equal when the rows see nothing

  int64_t rows() const { return row_end - row_begin; }
  int64_t keys() const { return key_end - key_begin; }
};

inline RowBlock find_row_block(const VisibleKeys& visible, int64_t row_begin, int64_t row_end) {
  RowBlock block{row_begin, row_end, 0, 0};
  bool is_first = true;
  for (int64_t i = row_begin; i < row_end; ++i) {
    const auto runs = visible.of_row(i);
    if (runs.empty()) continue;
    block.key_begin = is_first ? runs.front().begin : std::min(block.key_begin, runs.front().begin);
    block.key_end = is_first ? runs.back().end : std::max(block.key_end, runs.back().end);
    is_first = false;
  }
  return block;
}

/// Start of one head's row in a [tokens, heads, head_dim] tensor.
inline size_t row_offset(const Tensor& tensor, int64_t token, int32_t head) {
  return static_cast<size_t>((token * tensor.shape[1] + head) * tensor.shape[2]);
}

/// Copies the rows of one head at these positions after `first`.
template <class Real>
Rows<Real> gather_rows(const Tensor& tensor, int64_t first, std::span<const int64_t> positions,
                       int32_t head) {
  const int64_t lanes = tensor.shape[2];
  Rows<Real> rows(static_cast<int64_t>(positions.size()), lanes);
  for (int64_t i = 0; i < rows.rows(); ++i) {
    const double* source =
        tensor.values.data() + row_offset(tensor, first + positions[static_cast<size_t>(i)], head);
    for (int64_t lane = 0; lane < lanes; ++lane) rows(i, lane) = static_cast<Real>(source[lane]);
  }
  return rows;
}

template <class Real>
void scatter_row(const Real* row, int64_t token, int32_t head, Tensor& tensor) {
  double* target = tensor.values.data() + row_offset(tensor, token, head);
  for (int64_t lane = 0; lane < tensor.shape[2]; ++lane)
    target[lane] = static_cast<double>(row[lane]);
}

/// exp of finite values in place; subnormal results become 0. Never call it with -inf: Eigen's
/// vectorised exp of -inf is a subnormal number and slows every later product down.
template <class Real>
void exponentiate(Real* values, int64_t count) {
  const Real smallest = std::is_same_v<Real, float> ? Real(-87) : Real(-708);
  Eigen::Map<Eigen::Array<Real, 1, Eigen::Dynamic>> row(values, count);
  row = (row < smallest).select(Real(0), row.max(smallest).exp());
}

}  // namespace cpscope::reference
