#include "tests/kernels/attention/attention_device.h"

#include "kernels/attention/packed_heads.h"
#include "kernels/attention/row_offsets.h"
#include "kernels/device/device.h"
#include "kernels/device/scalar_types.h"
#include "kernels/dispatch/tiles_on_device.h"
#include "kernels/rows/row_kernels.h"
#include "sim/run/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr int32_t kHeadGapLanes = 8;  // of NaN after each head
constexpr double kUnseenLse =
    -std::numeric_limits<double>::infinity();  // of a row without a visible key

kernels::DeviceRows view_of(const DeviceBytes& memory, int32_t num_heads, int32_t head_dim) {
  const int64_t head_stride = kernels::padded_lanes(head_dim) + kHeadGapLanes;
  return {memory.data(), num_heads * head_stride, head_stride};
}

int64_t count_elements(int32_t num_rows, int32_t num_heads, int32_t head_dim) {
  return int64_t{num_rows} * num_heads * (kernels::padded_lanes(head_dim) + kHeadGapLanes);
}

/// Stores one element as the device has it.
void put_element(Dtype dtype, double value, std::byte* to) {
  const auto narrow = static_cast<float>(value);
  if (dtype == Dtype::fp32) {
    std::memcpy(to, &narrow, sizeof(narrow));
    return;
  }
  const uint16_t bits = dtype == Dtype::bf16 ? to_bf16_bits(narrow) : to_fp16_bits(narrow);
  std::memcpy(to, &bits, sizeof(bits));
}

std::vector<double> to_doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

DeviceBytes::DeviceBytes(int64_t bytes) : data_(kernels::allocate_bytes(bytes)), bytes_(bytes) {
  kernels::fill_bytes(data_, 0xff, bytes, nullptr);
}

DeviceBytes::~DeviceBytes() { kernels::free_bytes(data_); }

DeviceBytes::DeviceBytes(DeviceBytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

void DeviceBytes::upload(const void* from) {
  kernels::copy_to_device(data_, from, bytes_, nullptr);
}

void DeviceBytes::download_to(void* to) const {
  kernels::copy_to_host(to, data_, bytes_, nullptr);
  kernels::wait_for_stream(nullptr);
}

RowsOnDevice upload_rows(const HostRows& rows, Dtype dtype, const std::vector<bool>& is_used) {
  const int64_t element = kernels::element_size(dtype);
  std::vector<std::byte> bytes(
      static_cast<size_t>(element * count_elements(rows.num_rows, rows.num_heads, rows.head_dim)),
      std::byte{0xff});
  const int32_t lanes = kernels::padded_lanes(rows.head_dim);
  for (int32_t row = 0; row < rows.num_rows; ++row) {
    for (int32_t head = 0; head < rows.num_heads && is_used[static_cast<size_t>(row)]; ++head) {
      const int64_t first = (int64_t{row} * rows.num_heads + head) * (lanes + kHeadGapLanes);
      for (int32_t lane = 0; lane < lanes; ++lane) {
        const double value = lane < rows.head_dim ? rows.at(row, head)[lane] : 0.0;
        put_element(dtype, value, bytes.data() + (first + lane) * element);
      }
    }
  }
  DeviceBytes memory = DeviceBytes::holding(bytes);
  const kernels::DeviceRows view = view_of(memory, rows.num_heads, rows.head_dim);
  return {std::move(memory), view};
}

RowsOnDevice make_result_rows(int32_t num_rows, int32_t num_heads, int32_t head_dim) {
  DeviceBytes memory(4 * count_elements(num_rows, num_heads, head_dim));
  const kernels::DeviceRows view = view_of(memory, num_heads, head_dim);
  return {std::move(memory), view};
}

RowsOnDevice make_narrow_result_rows(int32_t num_rows, int32_t num_heads, int32_t head_dim) {
  DeviceBytes memory(2 * count_elements(num_rows, num_heads, head_dim));
  const kernels::DeviceRows view = view_of(memory, num_heads, head_dim);
  return {std::move(memory), view};
}

HostRows download_narrow_rows(const RowsOnDevice& rows, Dtype dtype, int32_t num_rows,
                              int32_t num_heads, int32_t head_dim) {
  const std::vector<uint16_t> bits = rows.memory.download<uint16_t>();
  HostRows result(num_rows, num_heads, head_dim);
  const int32_t lanes = kernels::padded_lanes(head_dim);
  for (int32_t row = 0; row < num_rows; ++row) {
    for (int32_t head = 0; head < num_heads; ++head) {
      const uint16_t* from =
          bits.data() + (int64_t{row} * num_heads + head) * (lanes + kHeadGapLanes);
      for (int32_t lane = 0; lane < head_dim; ++lane) {
        result.at(row, head)[lane] =
            dtype == Dtype::bf16 ? from_bf16_bits(from[lane]) : from_fp16_bits(from[lane]);
      }
      for (int32_t lane = lanes; lane < lanes + kHeadGapLanes; ++lane) {
        EXPECT_EQ(from[lane], 0xffff)
            << "memory between the heads was written: row " << row << ", head " << head;
      }
    }
  }
  return result;
}

HostRows download_rows(const RowsOnDevice& rows, int32_t num_rows, int32_t num_heads,
                       int32_t head_dim) {
  const std::vector<float> values = rows.memory.download<float>();
  HostRows result(num_rows, num_heads, head_dim);
  const int32_t lanes = kernels::padded_lanes(head_dim);
  for (int32_t row = 0; row < num_rows; ++row) {
    for (int32_t head = 0; head < num_heads; ++head) {
      const float* from =
          values.data() + (int64_t{row} * num_heads + head) * (lanes + kHeadGapLanes);
      for (int32_t lane = 0; lane < head_dim; ++lane) result.at(row, head)[lane] = from[lane];
      for (int32_t lane = lanes; lane < lanes + kHeadGapLanes; ++lane) {
        EXPECT_EQ(std::bit_cast<uint32_t>(from[lane]), 0xffffffffu)
            << "memory between the heads was written: row " << row << ", head " << head;
      }
    }
  }
  return result;
}

namespace {

/// The results of a forward of a shape.
struct ForwardResults {
  const kernels::AttentionShape& shape;
  bool is_narrow;
  int32_t lse_gap;  // numbers after the heads of a row
  RowsOnDevice out;
  DeviceBytes lse;        // [row][head, gap]
  DeviceBytes max_logit;  // [head]

  ForwardResults(const kernels::AttentionShape& of, bool narrow, int32_t gap = 1)
      : shape(of),
        is_narrow(narrow),
        lse_gap(gap),
        out(narrow ? make_narrow_result_rows(of.q_rows, of.num_heads, of.head_dim_v)
                   : make_result_rows(of.q_rows, of.num_heads, of.head_dim_v)),
        lse(4 * int64_t{of.q_rows} * (of.num_heads + gap)),
        max_logit(DeviceBytes::holding(std::vector<float>(
            static_cast<size_t>(of.num_heads), -std::numeric_limits<float>::infinity()))) {}

  int64_t lse_stride() const { return shape.num_heads + lse_gap; }

  kernels::OutRows rows() const {
    return {static_cast<float*>(out.memory.data()), static_cast<float*>(lse.data())};
  }

  ForwardAnswer download() const {
    ForwardAnswer answer;
    answer.out = is_narrow ? download_narrow_rows(out, shape.dtype, shape.q_rows, shape.num_heads,
                                                  shape.head_dim_v)
                           : download_rows(out, shape.q_rows, shape.num_heads, shape.head_dim_v);
    const std::vector<float> all_lse = lse.download<float>();
    for (int32_t q = 0; q < shape.q_rows; ++q) {
      for (int32_t i = 0; i < lse_stride(); ++i) {
        const float value = all_lse[static_cast<size_t>(q * lse_stride() + i)];
        if (i < shape.num_heads) {
          answer.lse.push_back(value);
          continue;
        }
        EXPECT_EQ(std::bit_cast<uint32_t>(value), 0xffffffffu)
            << "memory between rows of lse was written: row " << q;
      }
    }
    answer.max_logit = to_doubles(max_logit.download<float>());
    return answer;
  }
};

/// Runs one launch; `change` may add to it.
template <class Change>
void launch_case(kernels::Generation generation, const AttentionCase& item,
                 const AttentionInputs& inputs, const kernels::TileList& list,
                 const ForwardResults& results, Change change) {
  const kernels::AttentionShape& shape = item.shape;
  const std::vector<bool> queries = used_queries(item), keys = used_keys(item);
  const RowsOnDevice q = upload_rows(inputs.q, shape.dtype, queries),
                     k = upload_rows(inputs.k, shape.dtype, keys),
                     v = upload_rows(inputs.v, shape.dtype, keys);
  const kernels::TilesOnDevice tiles(list, nullptr);
  const DeviceBytes counter = DeviceBytes::holding(std::vector<int32_t>{0});
  const AlibiOnDevice alibi(item.alibi, nullptr);
  const DeviceBytes parts(list.cut_tiles.empty() ? 1 : forward_part_bytes(shape, list));
  kernels::ForwardLaunch launch;
  launch.shape = shape;
  launch.q = q.view;
  launch.k = k.view;
  launch.v = v.view;
  launch.out = results.out.view;
  launch.out_element = results.is_narrow ? shape.dtype : Dtype::fp32;
  launch.lse = static_cast<float*>(results.lse.data());
  launch.lse_row_stride = results.lse_stride();
  launch.max_logit = static_cast<float*>(results.max_logit.data());
  launch.terms = alibi.terms();
  launch.query_tiles = tiles.view();
  launch.counter = static_cast<int32_t*>(counter.data());
  launch.parts = static_cast<float*>(parts.data());
  change(launch);
  launch_forward(generation, launch, nullptr);
  kernels::wait_for_stream(nullptr);
  for (const int32_t count : counter.download<int32_t>())
    EXPECT_EQ(count, 0) << "the next launch wants it at 0";
}

}  // namespace

std::vector<bool> used_queries(const AttentionCase& item) {
  std::vector<bool> is_used;
  for (int32_t q = 0; q < item.shape.q_rows; ++q) is_used.push_back(item.query_sees_any(q));
  return is_used;
}

std::vector<bool> used_keys(const AttentionCase& item) {
  std::vector<bool> is_used;
  for (int32_t k = 0; k < item.shape.kv_rows; ++k) is_used.push_back(item.key_is_seen(k));
  return is_used;
}

kernels::TileList query_tiles(const AttentionCase& item, kernels::TileShape shape) {
  return kernels::make_tile_list(item.slices, item.shape.q_rows, item.shape.kv_rows,
                                 {item.shape.num_heads / shape.heads}, shape,
                                 kernels::TileOwner::queries);
}

kernels::TileList key_tiles(const AttentionCase& item, kernels::TileShape shape) {
  return kernels::make_tile_list(item.slices, item.shape.q_rows, item.shape.kv_rows,
                                 {item.shape.num_kv_heads}, shape, kernels::TileOwner::keys);
}

ForwardAnswer run_forward(kernels::Generation generation, const AttentionCase& item,
                          const AttentionInputs& inputs, const kernels::TileList& tiles,
                          bool is_narrow, const kernels::Arrivals& arrivals) {
  const ForwardResults results(item.shape, is_narrow);
  launch_case(generation, item, inputs, tiles, results,
              [&](kernels::ForwardLaunch& launch) { launch.query_tiles.arrivals = arrivals; });
  return results.download();
}

ForwardAnswer run_forward(kernels::Generation generation, const AttentionCase& item,
                          const AttentionInputs& inputs) {
  return run_forward(generation, item, inputs,
                     query_tiles(item, forward_tile_shape(generation, item.shape)));
}

ForwardAnswer run_forward_in_two(const AttentionCase& before, const AttentionCase& after,
                                 const AttentionInputs& inputs, bool by_kernel, bool rounds) {
  constexpr kernels::Generation kHopper = kernels::Generation::sm90;  // or decode, for its shapes
  const kernels::AttentionShape& shape = before.shape;
  const auto tiles_of = [&](const AttentionCase& item) {
    return query_tiles(item, forward_tile_shape(kHopper, item.shape));
  };
  // launch_out_merge supports no gaps.
  const int32_t gap = by_kernel ? 1 : 0;
  const ForwardResults whole(shape, false, gap), partial(shape, false, gap);
  launch_case(kHopper, before, inputs, tiles_of(before), whole, [](kernels::ForwardLaunch&) {});
  if (by_kernel) {
    launch_case(kHopper, after, inputs, tiles_of(after), whole,
                [&](kernels::ForwardLaunch& launch) {
                  launch.merges = true;
                  launch.rounds = rounds;
                });
    return whole.download();
  }
  launch_case(kHopper, after, inputs, tiles_of(after), partial,
              [&](kernels::ForwardLaunch& launch) {
                launch.max_logit = static_cast<float*>(whole.max_logit.data());
              });
  const kernels::BufferShape rows{shape.q_rows, shape.num_heads,
                                  kernels::padded_lanes(shape.head_dim_v),
                                  static_cast<int32_t>(whole.out.view.head_stride)};
  kernels::launch_out_merge(
      {rows, partial.rows(), whole.rows(), false, rounds ? shape.dtype : Dtype::fp32}, nullptr);
  kernels::wait_for_stream(nullptr);
  return whole.download();
}

std::string find_other_bits(const AttentionCase& item, const ForwardAnswer& narrow,
                            const ForwardAnswer& wide) {
  for (int32_t q = 0; q < item.shape.q_rows; ++q) {
    for (int32_t head = 0; head < item.shape.num_heads; ++head) {
      for (int32_t lane = 0; lane < item.shape.head_dim_v; ++lane) {
        const double got = narrow.out.at(q, head)[lane];
        const double rounded = round_to(item.shape.dtype, wide.out.at(q, head)[lane]);
        if (got != rounded) {
          return fmt::format("row {}, head {}, lane {}: {} instead of {}", q, head, lane, got,
                             rounded);
        }
      }
    }
  }
  return "";
}

RowStatistics run_row_statistics(const AttentionCase& item, const AttentionInputs& inputs,
                                 const ForwardAnswer& forward) {
  const kernels::AttentionShape& shape = item.shape;
  const std::vector<bool> queries = used_queries(item);
  const RowsOnDevice d_out = upload_rows(inputs.d_out, shape.dtype, queries);
  const RowsOnDevice out = upload_rows(forward.out, Dtype::fp32, queries);
  const DeviceBytes lse =
      DeviceBytes::holding(std::vector<float>(forward.lse.begin(), forward.lse.end()));
  const DeviceBytes log2_lse(lse.size()), delta(lse.size()),
      offsets(shape.num_heads * kernels::offsets_of_head(shape.q_rows) * 2);
  kernels::BackwardLaunch launch;
  launch.shape = shape;
  launch.d_out = d_out.view;
  launch.out = out.view;
  launch.lse = static_cast<const float*>(lse.data());
  launch.lse_row_stride = shape.num_heads;
  launch.log2_lse = static_cast<float*>(log2_lse.data());
  launch.delta = static_cast<float*>(delta.data());
  launch.offsets = static_cast<kernels::Bf16*>(offsets.data());
  launch_row_statistics(launch, nullptr);
  kernels::wait_for_stream(nullptr);
  RowStatistics result{
      to_doubles(log2_lse.download<float>()), to_doubles(delta.download<float>()), {}};
  for (const uint16_t bits : offsets.download<uint16_t>())
    result.offsets.push_back(from_bf16_bits(bits));
  return result;
}

std::string judge_forward(const AttentionCase& item, const AttentionInputs& inputs,
                          const ForwardAnswer& answer) {
  const ForwardAnswer exact = evaluate_forward(item, inputs, Precision::exact);
  const ForwardAnswer plain = evaluate_forward(item, inputs, Precision::plain);
  const double size = largest_magnitude(inputs.v.values);
  const double budget = 2.0 * largest_difference(plain.out.values, exact.out.values) + 1e-5 * size;
  const double error = largest_difference(answer.out.values, exact.out.values);
  // Also true for a NaN.
  if (!(error <= budget)) return fmt::format("out differs by {}, budget {}", error, budget);
  const double lse_error = largest_difference(answer.lse, exact.lse);
  double largest_lse = 1.0;
  for (const double lse : exact.lse) {
    if (lse != kUnseenLse) largest_lse = std::max(largest_lse, std::abs(lse));
  }
  const double fp32_budget = 3e-6 * largest_lse;
  if (!(lse_error <= fp32_budget))
    return fmt::format("lse differs by {}, budget {}", lse_error, fp32_budget);
  const double max_error = largest_difference(answer.max_logit, exact.max_logit);
  if (!(max_error <= fp32_budget))
    return fmt::format("max_logit differs by {}, budget {}", max_error, fp32_budget);
  for (int32_t q = 0; q < item.shape.q_rows; ++q) {
    for (int32_t head = 0; head < item.shape.num_heads; ++head) {
      const size_t place = static_cast<size_t>(q * item.shape.num_heads + head);
      if (exact.lse[place] != kUnseenLse) continue;
      for (int32_t lane = 0; lane < item.shape.head_dim_v; ++lane) {
        if (answer.out.at(q, head)[lane] != 0.0)
          return fmt::format("row {} of head {} sees nothing and is not 0", q, head);
      }
    }
  }
  return "";
}

std::string missing_device() {
  const Result<int> count = kernels::count_devices();
  return count.ok() ? "" : to_text(count.error());
}

}  // namespace cpscope::tests
