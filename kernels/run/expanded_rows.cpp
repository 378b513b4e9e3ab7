#include "kernels/run/expanded_rows.h"

#include "kernels/device/scalar_types.h"
#include "sim/base/check.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

/// Copies [head][row][element] to rows of a multiple of eight elements; `turned`: [head][element]
/// [row].
void upload_weights(const Tensor& weights, bool turned, Dtype element, void* to, Stream stream) {
  const int64_t heads = weights.shape[0], rows = weights.shape[1], lanes = weights.shape[2];
  const int64_t pitch = padded_lanes(static_cast<int32_t>(turned ? rows : lanes));
  const int64_t count = heads * (turned ? lanes : rows) * pitch;
  std::vector<float> values(static_cast<size_t>(count), 0.0f);
  for (int64_t i = 0; i < weights.size(); ++i) {
    const int64_t lane = i % lanes, row = i / lanes % rows, head = i / lanes / rows;
    const int64_t at =
        turned ? (head * lanes + lane) * pitch + row : (head * rows + row) * pitch + lane;
    values[static_cast<size_t>(at)] = static_cast<float>(weights.values[static_cast<size_t>(i)]);
  }
  if (element == Dtype::fp32) {
    copy_to_device(to, values.data(), count * int64_t{sizeof(float)}, stream);
  } else {
    std::vector<uint16_t> bits(values.size());
    std::transform(values.begin(), values.end(), bits.begin(), [&](float value) {
      return element == Dtype::bf16 ? to_bf16_bits(value) : to_fp16_bits(value);
    });
    copy_to_device(to, bits.data(), count * int64_t{sizeof(uint16_t)}, stream);
  }
  wait_for_stream(stream);
}

}  // namespace

ExpandedRows::ExpandedRows(const Plan& plan, RankArrays& arrays)
    : plan_(plan), arrays_(arrays), attention_(plan.scenario.attention) {
  if (!is_on()) return;
  ranks_.assign(plan.home.size(), OfRank{});
  for (const Direction direction : kDirections) {
    for (const ComputeItem& item : plan.pass(direction).computes) {
      OfRank& rank = ranks_[item.rank];
      if (item.num_slices == 0 || !arrays.is_here(item.rank)) continue;
      rank.rows = std::max(rank.rows, plan.rows(item.kv_tokens));
      rank.heads = std::max(rank.heads, item.heads.size());
    }
  }
  const int64_t size = element_size(plan.scenario.numerics.dtype);
  const int64_t fp32 = sizeof(float);
  const int64_t pitch_k = padded_lanes(attention_.head_dim_qk),
                pitch_v = padded_lanes(attention_.head_dim_v);
  for (const RankId id : ranks_.ids()) {
    OfRank& rank = ranks_[id];
    if (rank.rows == 0) continue;
    const auto reserve = [&](const char* what, int64_t bytes) {
      return arrays.reserve(fmt::format("rank {} expanded {}", to_index(id), what),
                            rank.rows * rank.heads * bytes);
    };
    rank.keys = reserve("k", pitch_k * size);
    rank.values = reserve("v", pitch_v * size);
    if (!plan.scenario.numerics.backward) continue;
    rank.dk = reserve("dk", pitch_k * fp32);
    rank.dv = reserve("dv", pitch_v * fp32);
  }
  const int64_t heads = attention_.heads, latent = attention_.latent_dim;
  const int64_t pitch = padded_lanes(attention_.latent_dim);
  w_k_ = arrays.reserve("w_k", heads * attention_.latent_nope_dim * pitch * size);
  w_v_ = arrays.reserve("w_v", heads * attention_.head_dim_v * pitch * size);
  if (!plan.scenario.numerics.backward) return;
  const int64_t turned = element_size(contraction_weights(plan.scenario.numerics.dtype));
  turned_w_k_ = arrays.reserve("turned w_k",
                               heads * latent * padded_lanes(attention_.latent_nope_dim) * turned);
  turned_w_v_ = arrays.reserve("turned w_v", heads * latent * pitch_v * turned);
}

void ExpandedRows::load(const RunInputs& inputs, Stream stream) {
  if (!is_on()) return;
  const Dtype dtype = plan_.scenario.numerics.dtype;
  upload_weights(inputs.w_k, false, dtype, arrays_.at(w_k_), stream);
  upload_weights(inputs.w_v, false, dtype, arrays_.at(w_v_), stream);
  if (turned_w_k_ >= 0) {
    const Dtype turned = contraction_weights(dtype);
    upload_weights(inputs.w_k, true, turned, arrays_.at(turned_w_k_), stream);
    upload_weights(inputs.w_v, true, turned, arrays_.at(turned_w_v_), stream);
  }
  // Kernels read the elements behind those of a head with each row.
  for (const OfRank& rank : ranks_) {
    for (const int32_t array : {rank.keys, rank.values, rank.dk, rank.dv})
      if (array >= 0) fill_bytes(arrays_.at(array), 0, arrays_.bytes_of(array), stream);
  }
  wait_for_stream(stream);
}

DeviceRows ExpandedRows::rows_of(int32_t array, const OfRank& rank, int32_t lanes) const {
  const int64_t pitch = padded_lanes(lanes);
  return {arrays_.at(array), rank.heads * pitch, pitch};
}

LatentSizes ExpandedRows::sizes_of(const ComputeItem& item) const {
  return {.num_rows = static_cast<int32_t>(plan_.rows(item.kv_tokens)),
          .heads = item.heads.size(),
          .latent_dim = attention_.latent_dim,
          .made = attention_.latent_nope_dim,
          .rotated = attention_.head_dim_qk - attention_.latent_nope_dim,
          .head_dim_v = attention_.head_dim_v};
}

std::pair<DeviceRows, DeviceRows> ExpandedRows::make(const ComputeItem& item, Stream stream) const {
  const OfRank& rank = ranks_[item.rank];
  const Dtype dtype = plan_.scenario.numerics.dtype;
  const int64_t pitch = padded_lanes(attention_.latent_dim);
  const auto of_head = [&](int32_t array, int64_t rows) {
    return arrays_.at<uint8_t>(array) + item.heads.begin * rows * pitch * element_size(dtype);
  };
  RowExpansion expansion;
  expansion.dtype = dtype;
  expansion.rows = arrays_.rows(item.kv, false, 0);
  expansion.k = rows_of(rank.keys, rank, attention_.head_dim_qk);
  expansion.v = rows_of(rank.values, rank, attention_.head_dim_v);
  expansion.w_k = of_head(w_k_, attention_.latent_nope_dim);
  expansion.w_v = of_head(w_v_, attention_.head_dim_v);
  expansion.sizes = sizes_of(item);
  launch_row_expansion(expansion, stream);
  return {expansion.k, expansion.v};
}

std::pair<DeviceRows, DeviceRows> ExpandedRows::gradients(const ComputeItem& item) const {
  const OfRank& rank = ranks_[item.rank];
  return {rows_of(rank.dk, rank, attention_.head_dim_qk),
          rows_of(rank.dv, rank, attention_.head_dim_v)};
}

void ExpandedRows::contract(const ComputeItem& item, Stream stream) const {
  CPSCOPE_CHECK(arrays_.element(item.dkv, false) == Dtype::fp32,
                "the gradient of latent rows is added up in fp32", item.dkv, 32);
  const int64_t latent = attention_.latent_dim;
  const Dtype weights = contraction_weights(plan_.scenario.numerics.dtype);
  const auto of_head = [&](int32_t array, int32_t lanes) {
    return arrays_.at<uint8_t>(array) +
           item.heads.begin * latent * padded_lanes(lanes) * element_size(weights);
  };
  RowContraction contraction;
  contraction.weights = weights;
  std::tie(contraction.dk, contraction.dv) = gradients(item);
  contraction.rows = arrays_.rows(item.dkv, false, 0);
  contraction.w_k = of_head(turned_w_k_, attention_.latent_nope_dim);
  contraction.w_v = of_head(turned_w_v_, attention_.head_dim_v);
  contraction.sizes = sizes_of(item);
  launch_row_contraction(contraction, stream);
}

}  // namespace cpscope::kernels
