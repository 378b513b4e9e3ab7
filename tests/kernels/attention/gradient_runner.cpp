#include "tests/kernels/attention/gradient_runner.h"

#include "kernels/attention/row_offsets.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/scalar_types.h"
#include "kernels/dispatch/tiles_on_device.h"
#include "sim/run/dtype.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

constexpr uint8_t kPoison = 0xff;    // every number of these bytes is a NaN
constexpr int32_t kRowGapLanes = 8;  // between the last head of a row and the next row

/// Rows in the layout that the kernels read.
struct HostRows {
  int32_t element_bytes = 2;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  std::vector<uint8_t> bytes;

  HostRows(int32_t rows, int32_t heads, int32_t dim, int32_t bytes_each)
      : element_bytes(bytes_each), num_heads(heads), head_dim(dim) {
    bytes.assign(static_cast<size_t>(rows * row_stride() * element_bytes), kPoison);
  }
  int64_t head_stride() const { return padded_lanes(head_dim); }
  int64_t row_stride() const { return head_stride() * num_heads + kRowGapLanes; }
  uint8_t* at(int64_t row, int64_t head, int64_t lane) {
    return bytes.data() + (row * row_stride() + head * head_stride() + lane) * element_bytes;
  }
};

/// Rows of inputs; those without `is_used` stay poisoned.
HostRows make_input(Dtype dtype, const std::vector<double>& values,
                    const std::vector<bool>& is_used, int32_t num_heads, int32_t head_dim) {
  const auto rows = static_cast<int32_t>(is_used.size());
  HostRows to(rows, num_heads, head_dim, static_cast<int32_t>(element_size(dtype)));
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t head = 0; is_used[row] && head < num_heads; ++head) {
      for (int32_t lane = 0; lane < padded_lanes(head_dim); ++lane) {
        const size_t index = (static_cast<size_t>(row) * num_heads + head) * head_dim + lane;
        const float value = lane < head_dim ? static_cast<float>(values[index]) : 0.0f;
        const uint16_t narrow = dtype == Dtype::bf16 ? to_bf16_bits(value) : to_fp16_bits(value);
        if (dtype == Dtype::fp32) {
          std::memcpy(to.at(row, head, lane), &value, sizeof value);
        } else {
          std::memcpy(to.at(row, head, lane), &narrow, sizeof narrow);
        }
      }
    }
  }
  return to;
}

/// Device copy of rows, for one launch.
struct OnDevice {
  DeviceMemory memory;
  DeviceRows rows;

  OnDevice(const HostRows& host, Stream stream)
      : memory(to_device(host.bytes, stream)),
        rows{memory.data(), host.row_stride(), host.head_stride()} {}
};

float decode(const uint8_t* at, int32_t element_bytes, Dtype dtype) {
  if (element_bytes == 4) {
    float value = 0.0f;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == Dtype::bf16 ? from_bf16_bits(bits) : from_fp16_bits(bits);
}

/// Copies an output back; records the first element outside the rows that was overwritten. dtype:
/// of 16-bit elements.
std::vector<float> read_output(const OnDevice& device, HostRows host, Dtype dtype, const char* what,
                               Stream stream, std::string& stray_write) {
  copy_to_host(host.bytes.data(), device.memory.data(), static_cast<int64_t>(host.bytes.size()),
               stream);
  wait_for_stream(stream);
  std::vector<float> values;
  const int64_t row_bytes = host.row_stride() * host.element_bytes;
  const int64_t num_rows = static_cast<int64_t>(host.bytes.size()) / row_bytes;
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t head = 0; head < host.num_heads; ++head) {
      for (int64_t lane = 0; lane < host.head_dim; ++lane) {
        values.push_back(decode(host.at(row, head, lane), host.element_bytes, dtype));
      }
    }
    for (int64_t i = 0; i < kRowGapLanes * host.element_bytes; ++i) {
      if (host.at(row, host.num_heads, 0)[i] != kPoison && stray_write.empty())
        stray_write = fmt::format("{}: byte {} behind row {}", what, i, row);
    }
  }
  return values;
}

std::vector<float> to_floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// log2_lse and delta in the form in which row_statistics.cu writes them as offsets.
std::vector<uint16_t> make_offsets(const GradientProblem& problem) {
  const AttentionShape& shape = problem.shape;
  const float lse_factor = -1.0f / offset_factors(shape).logit_log2;
  std::vector<uint16_t> offsets(
      static_cast<size_t>(shape.num_heads * offsets_of_head(shape.q_rows)), 0);
  for (size_t from = 0; from < problem.log2_lse.size(); ++from) {
    const auto head = static_cast<int64_t>(from) / shape.q_rows,
               row = static_cast<int64_t>(from) % shape.q_rows;
    for (const bool is_delta : {false, true}) {
      float rest = is_delta ? -static_cast<float>(problem.delta[from])
                            : static_cast<float>(problem.log2_lse[from]) * lse_factor;
      const int64_t to = head * offsets_of_head(shape.q_rows) +
                         ((is_delta ? shape.q_rows : 0) + row) * kOffsetLanes;
      for (int32_t i = 0; i < kOffsetParts; ++i) {
        const uint16_t bits = to_bf16_bits(rest);
        offsets[static_cast<size_t>(to + i)] = bits;
        rest = std::isinf(rest) ? 0.0f : rest - from_bf16_bits(bits);
      }
    }
  }
  return offsets;
}

}  // namespace

GradientKernels hopper_gradient_kernels(bool walks_by_tile, int32_t most_parts) {
  constexpr Generation kHopper = Generation::sm90;
  return {[](const AttentionShape& shape) {
            const bool is_fused = is_backward_fused(kHopper, shape);
            return is_fused ? TileShape{} : query_gradient_tile_shape(kHopper, shape);
          },
          [](const AttentionShape& shape) { return key_gradient_tile_shape(kHopper, shape); },
          [](const BackwardLaunch& launch, Stream stream) {
            if (!is_backward_fused(kHopper, launch.shape))
              launch_query_gradient(kHopper, launch, stream);
          },
          [](const BackwardLaunch& launch, Stream stream) {
            launch_key_gradient(kHopper, launch, stream);
          },
          walks_by_tile,
          most_parts};
}

KernelGradients run_gradients(const GradientKernels& kernels, const GradientProblem& problem,
                              const ExactGradients& exact, Written written,
                              const std::vector<double>& dq_before) {
  const AttentionShape& shape = problem.shape;
  const Stream stream = make_stream(Urgency::usual);
  const auto input = [&](const std::vector<double>& values, const std::vector<bool>& is_used,
                         int32_t num_heads, int32_t head_dim) {
    return OnDevice(make_input(shape.dtype, values, is_used, num_heads, head_dim), stream);
  };
  const OnDevice q = input(problem.q, exact.q_row_sees, shape.num_heads, shape.head_dim_qk);
  const OnDevice d_out = input(problem.d_out, exact.q_row_sees, shape.num_heads, shape.head_dim_v);
  const OnDevice k = input(problem.k, exact.k_row_seen, shape.num_kv_heads, shape.head_dim_qk);
  const OnDevice v = input(problem.v, exact.k_row_seen, shape.num_kv_heads, shape.head_dim_v);
  const bool is_narrow = written == Written::dtype;
  const int32_t size = is_narrow ? 2 : 4;
  const HostRows poisoned_dq(shape.q_rows, shape.num_heads, shape.head_dim_qk, size);
  const HostRows poisoned_sums(shape.q_rows, shape.num_heads, shape.head_dim_qk, 4);
  const HostRows poisoned_dk(shape.kv_rows, shape.num_kv_heads, shape.head_dim_qk, size);
  const HostRows poisoned_dv(shape.kv_rows, shape.num_kv_heads, shape.head_dim_v, size);
  const HostRows poisoned_wire_dk(shape.kv_rows, shape.num_kv_heads, shape.head_dim_qk, 2);
  const HostRows poisoned_wire_dv(shape.kv_rows, shape.num_kv_heads, shape.head_dim_v, 2);
  const bool merges_dq = !dq_before.empty();
  const std::vector<bool> all_rows(static_cast<size_t>(shape.q_rows), true);
  const OnDevice dq(
      merges_dq ? make_input(Dtype::fp32, dq_before, all_rows, shape.num_heads, shape.head_dim_qk)
                : poisoned_dq,
      stream),
      sums(poisoned_sums, stream), dk(poisoned_dk, stream), dv(poisoned_dv, stream),
      wire_dk(poisoned_wire_dk, stream), wire_dv(poisoned_wire_dv, stream);
  const DeviceMemory log2_lse = to_device(to_floats(problem.log2_lse), stream);
  const DeviceMemory delta = to_device(to_floats(problem.delta), stream);
  const DeviceMemory offsets = to_device(make_offsets(problem), stream);
  const DeviceMemory counters = to_device(std::vector<int32_t>{0, 0}, stream);
  const int32_t parts = std::gcd(shape.group, kernels.most_parts);
  TileList key_list =
      make_tile_list(problem.slices, shape.q_rows, shape.kv_rows, {shape.num_kv_heads * parts},
                     kernels.key_tile(shape), TileOwner::keys);
  key_list.walks_by_tile = kernels.walks_by_tile;
  key_list.group_parts = parts;
  const HostRows poisoned_dk_parts(shape.kv_rows, shape.num_kv_heads * parts, shape.head_dim_qk, 4);
  const HostRows poisoned_dv_parts(shape.kv_rows, shape.num_kv_heads * parts, shape.head_dim_v, 4);
  const OnDevice dk_parts(poisoned_dk_parts, stream), dv_parts(poisoned_dv_parts, stream);
  const int32_t num_turns = shape.num_heads * key_list.num_counters;
  const DeviceMemory turns_taken =
      to_device(std::vector<int32_t>(static_cast<size_t>(num_turns), 0), stream);
  const TilesOnDevice query_tiles(
      make_tile_list(problem.slices, shape.q_rows, shape.kv_rows, {shape.num_heads},
                     kernels.query_tile(shape), TileOwner::queries),
      stream);
  const TilesOnDevice key_tiles(key_list, stream);

  std::vector<uint8_t> uses;
  for (int32_t row = 0; row < shape.kv_rows; ++row) uses.push_back(wire_use(row));
  const DeviceMemory wire_uses = to_device(uses, stream);
  const tests::AlibiOnDevice alibi(problem.alibi, stream);

  BackwardLaunch launch;
  launch.shape = shape;
  launch.terms = alibi.terms();
  launch.q = q.rows;
  launch.k = k.rows;
  launch.v = shape.is_latent ? k.rows : v.rows;
  launch.d_out = d_out.rows;
  launch.log2_lse = log2_lse.as<float>();
  launch.delta = delta.as<float>();
  launch.offsets = offsets.as<Bf16>();
  launch.dq = dq.rows;
  launch.dk = dk.rows;
  launch.dk_parts = dk_parts.rows;
  if (!shape.is_latent) {
    launch.dv = dv.rows;
    launch.dv_parts = dv_parts.rows;
  }
  launch.merges_dq = merges_dq;
  if (is_narrow) {
    launch.dkv_element = shape.dtype;
    launch.narrow_dq = dq.rows;
    launch.dq = sums.rows;
  }
  if (written == Written::mixed)
    launch.wire = {wire_dk.rows.data, wire_dv.rows.data, wire_uses.as<uint8_t>()};
  launch.query_tiles = query_tiles.view();
  launch.key_tiles = key_tiles.view();
  launch.counters = counters.as<int32_t>();
  launch.turns_taken = turns_taken.as<int32_t>();
  kernels.query_gradient(launch, stream);
  kernels.key_gradient(launch, stream);

  KernelGradients result;
  const auto read = [&](const OnDevice& device, const HostRows& poisoned, const char* what) {
    return read_output(device, poisoned, shape.dtype, what, stream, result.stray_write);
  };
  result.dq = read(dq, poisoned_dq, "dq");
  result.dk = read(dk, poisoned_dk, "dk");
  if (!shape.is_latent) result.dv = read(dv, poisoned_dv, "dv");
  read(dk_parts, poisoned_dk_parts, "dk of parts");
  read(dv_parts, poisoned_dv_parts, "dv of parts");
  if (written == Written::mixed) {
    result.wire_dk = read(wire_dk, poisoned_wire_dk, "dk for wires");
    result.wire_dv = read(wire_dv, poisoned_wire_dv, "dv for wires");
  }
  std::vector<int32_t> left(2);
  copy_to_host(left.data(), counters.data(), 2 * int64_t{sizeof(int32_t)}, stream);
  wait_for_stream(stream);
  if (left != std::vector<int32_t>{0, 0} && result.stray_write.empty())
    result.stray_write = fmt::format("counters are left at {} and {}", left[0], left[1]);
  destroy_stream(stream);
  return result;
}

std::string find_excess(const char* what, const ExactGradient& exact, const std::vector<float>& got,
                        int32_t num_heads, int32_t head_dim) {
  if (got.size() != exact.value.size())
    return fmt::format("{} has {} elements, not {}", what, got.size(), exact.value.size());
  size_t worst = 0;
  double worst_ratio = 1.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - exact.value[i]);
    double ratio = std::numeric_limits<double>::infinity();
    // If the budget is zero, no pair adds to the element: it must be zero.
    if (error <= exact.budget[i])
      ratio = 0.0;
    else if (exact.budget[i] > 0.0 && !std::isnan(error))
      ratio = error / exact.budget[i];
    if (ratio > worst_ratio) {
      worst = i;
      worst_ratio = ratio;
    }
  }
  if (worst_ratio <= 1.0) return "";
  const size_t lane = worst % head_dim, head = worst / head_dim % num_heads;
  return fmt::format("{} row {}, head {}, lane {}: {} instead of {}, budget {}", what,
                     worst / head_dim / num_heads, head, lane, got[worst], exact.value[worst],
                     exact.budget[worst]);
}

}  // namespace cpscope::kernels
