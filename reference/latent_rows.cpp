#include "reference/latent_rows.h"

#include "reference/key_rows.h"
#include "sim/base/parallel.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace cpscope::reference {
namespace {

using ConstMatrix =
    Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
using ConstLatentVector = Eigen::Map<const Eigen::VectorXd>;
using LatentVector = Eigen::Map<Eigen::VectorXd>;

/// The weights of one head, [elements, latent_dim].
ConstMatrix weights_of(const Tensor& weights, int32_t head) {
  const int64_t rows = weights.shape[1], lanes = weights.shape[2];
  return {weights.values.data() + head * rows * lanes, static_cast<Eigen::Index>(rows),
          static_cast<Eigen::Index>(lanes)};
}

/// Writes k [heads, head_dim_qk] and v [heads, head_dim_v] of one latent row.
void expand_row(const RunInputs& inputs, const double* row, double* k, double* v) {
  const int64_t heads = inputs.w_k.shape[0], made = inputs.w_k.shape[1],
                latent_dim = inputs.w_k.shape[2], dim_v = inputs.w_v.shape[1];
  const ConstLatentVector latent(row, latent_dim);
  for (int32_t head = 0; head < heads; ++head) {
    LatentVector(k, made).noalias() = weights_of(inputs.w_k, head) * latent;
    k = std::copy(row + latent_dim, row + inputs.k.shape[2], k + made);
    LatentVector(v, dim_v).noalias() = weights_of(inputs.w_v, head) * latent;
    v += dim_v;
  }
}

/// The mean of the squared lengths of the weights' rows of one head: a vector of independent
/// elements becomes longer by its root.
double mean_square(const Tensor& weights, int32_t head) {
  const ConstMatrix of_head = weights_of(weights, head);
  return of_head.squaredNorm() / static_cast<double>(of_head.rows());
}

}  // namespace

RunInputs expand_rows(const RunInputs& given) {
  RunInputs inputs = given;
  const int64_t tokens = given.k.shape[0], heads = given.w_k.shape[0], lanes = given.k.shape[2];
  const Dtype dtype = given.k.dtype;
  inputs.k = make_filled_tensor("k", {tokens, heads, given.q.shape[2]}, dtype, 0.0);
  inputs.v = make_filled_tensor("v", {tokens, heads, given.w_v.shape[1]}, dtype, 0.0);
  for_each_index(tokens, [&](int64_t token) {
    expand_row(given, given.k.values.data() + token * lanes,
               inputs.k.values.data() + row_offset(inputs.k, token, 0),
               inputs.v.values.data() + row_offset(inputs.v, token, 0));
  });
  inputs.w_k = inputs.w_v = {};
  return inputs;
}

template <class Real>
std::pair<Rows<Real>, Rows<Real>> gather_keys(const HeadGroup& group, bool rounds) {
  const RunInputs& inputs = group.inputs;
  const Attention& attention = group.scenario.attention;
  const int64_t first = group.slot.kv_valid_begin();
  const std::span<const int64_t> positions = group.part.keys;
  if (inputs.w_k.shape.empty())
    return {gather_rows<Real>(inputs.k, first, positions, group.kv_head),
            gather_rows<Real>(values_of(inputs), first, positions, group.kv_head)
                .leftCols(attention.head_dim_v)};
  const Rows<double> rows = gather_rows<double>(inputs.k, first, positions, 0);
  const ConstMatrix w_k = weights_of(inputs.w_k, group.kv_head),
                    w_v = weights_of(inputs.w_v, group.kv_head);
  Rows<double> keys(rows.rows(), attention.head_dim_qk);
  keys.leftCols(w_k.rows()).noalias() = rows.leftCols(w_k.cols()) * w_k.transpose();
  const int64_t rotated = attention.head_dim_qk - w_k.rows();
  keys.rightCols(rotated) = rows.rightCols(rotated);
  Rows<double> values = rows.leftCols(w_v.cols()) * w_v.transpose();
  for (Rows<double>* made : {&keys, &values}) {
    if (rounds)
      round_values(group.scenario.numerics.dtype,
                   std::span(made->data(), static_cast<size_t>(made->size())));
  }
  return {keys.cast<Real>(), values.cast<Real>()};
}

template std::pair<Rows<double>, Rows<double>> gather_keys(const HeadGroup& group, bool rounds);
template std::pair<Rows<float>, Rows<float>> gather_keys(const HeadGroup& group, bool rounds);

LatentHeads::LatentHeads(const Scenario& asked, const RunInputs& given)
    : asked_(asked), given_(given) {
  const Attention& attention = asked.attention;
  if (!attention.expands_rows()) return;
  scenario_ = asked;
  scenario_->attention = attention.with_expanded_rows(attention.heads);
}

void add_head_gradients(const RunInputs& inputs, int32_t head, const double* dk, const double* dv,
                        double* row) {
  const int64_t made = inputs.w_k.shape[1], latent_dim = inputs.w_k.shape[2];
  LatentVector latent(row, latent_dim);
  latent.noalias() += weights_of(inputs.w_k, head).transpose() * ConstLatentVector(dk, made);
  latent.noalias() +=
      weights_of(inputs.w_v, head).transpose() * ConstLatentVector(dv, inputs.w_v.shape[1]);
  for (int64_t lane = made; lane < inputs.q.shape[2]; ++lane)
    row[latent_dim + lane - made] += dk[lane];
}

Tensor LatentHeads::gradient_of_rows(bool is_plain, const Answer& answer) const {
  const Attention& attention = asked_.attention;
  Tensor rows =
      make_filled_tensor("dk", {answer.dk.shape[0], 1, attention.key_dim()}, answer.dk.dtype, 0.0);
  for_each_index(rows.shape[0], [&](int64_t row) {
    for (int32_t head = 0; head < attention.heads; ++head)
      add_head_gradients(given_, head, answer.dk.values.data() + row_offset(answer.dk, row, head),
                         answer.dv.values.data() + row_offset(answer.dv, row, head),
                         rows.values.data() + row * rows.shape[2]);
  });
  if (is_plain) round_values(asked_.numerics.dtype, rows.values);
  return rows;
}

void LatentHeads::join_terms(TermLengths& terms) const {
  const int32_t heads = asked_.attention.heads;
  const auto rows = terms.dk.size() / static_cast<size_t>(heads);
  const auto join = [&](const std::vector<double>& of_heads, const Tensor& weights, double least) {
    std::vector<double> squares(rows, 0.0);
    for (int32_t head = 0; head < heads; ++head) {
      const double times = std::max(least, mean_square(weights, head));
      for (size_t row = 0; row < rows; ++row)
        squares[row] +=
            times *
            std::pow(of_heads[row * static_cast<size_t>(heads) + static_cast<size_t>(head)], 2);
    }
    return squares;
  };
  // The rotated elements of k's gradient are added up as they are.
  std::vector<double> dk = join(terms.dk, given_.w_k, 1.0), dv = join(terms.dv, given_.w_v, 0.0);
  for (size_t row = 0; row < rows; ++row) {
    dk[row] = std::sqrt(dk[row] + dv[row]);
    dv[row] = std::sqrt(dv[row]);
  }
  if (!terms.undropped.empty()) {
    terms.undropped = join(terms.undropped, given_.w_v, 0.0);
    for (double& length : terms.undropped) length = std::sqrt(length);
  }
  terms.dk = std::move(dk);
  terms.dv = std::move(dv);
}

void LatentHeads::contract(bool is_plain, Answer& answer, TermLengths* terms) const {
  if (!scenario_ || answer.dk.shape.empty()) return;
  answer.dk = gradient_of_rows(is_plain, answer);
  answer.dv = {};
  if (terms != nullptr && !terms->dk.empty()) join_terms(*terms);
}

}  // namespace cpscope::reference
