#pragma once

#include "kernels/dispatch/attention_dispatch.h"
#include "kernels/tiles/tile_list.h"
#include "tests/kernels/attention/attention_reference.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// Compute items on the device, emulated or real. Everything that no kernel may read is NaN, and
/// everything that a kernel must write is NaN before.
namespace cpscope::tests {

/// Device memory that is filled from the host and frees itself.
class DeviceBytes {
 public:
  /// All bytes are 0xff, so every value read from there is a NaN.
  explicit DeviceBytes(int64_t bytes);
  ~DeviceBytes();
  DeviceBytes(DeviceBytes&& other) noexcept;
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  DeviceBytes& operator=(DeviceBytes&&) = delete;

  void* data() const { return data_; }
  int64_t size() const { return bytes_; }

  template <class T>
  static DeviceBytes holding(const std::vector<T>& values) {
    DeviceBytes memory(static_cast<int64_t>(values.size() * sizeof(T)));
    memory.upload(values.data());
    return memory;
  }
  template <class T>
  std::vector<T> download() const {
    std::vector<T> values(static_cast<size_t>(bytes_) / sizeof(T));
    download_to(values.data());
    return values;
  }

 private:
  void upload(const void* from);
  void download_to(void* to) const;

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// HostRows in device memory with gaps of NaN between the heads.
struct RowsOnDevice {
  DeviceBytes memory;
  kernels::DeviceRows view;
};

/// `is_used` [row]: other rows hold NaN.
RowsOnDevice upload_rows(const HostRows& rows, Dtype dtype, const std::vector<bool>& is_used);
/// Rows of fp32 to be written.
RowsOnDevice make_result_rows(int32_t num_rows, int32_t num_heads, int32_t head_dim);
/// The same, of 16-bit numbers.
RowsOnDevice make_narrow_result_rows(int32_t num_rows, int32_t num_heads, int32_t head_dim);
HostRows download_narrow_rows(const RowsOnDevice& rows, Dtype dtype, int32_t num_rows,
                              int32_t num_heads, int32_t head_dim);
/// Reads results back. Fails the running test if a gap was written.
HostRows download_rows(const RowsOnDevice& rows, int32_t num_rows, int32_t num_heads,
                       int32_t head_dim);

/// Query rows that see a key, and keys that a query sees.
std::vector<bool> used_queries(const AttentionCase& item);
std::vector<bool> used_keys(const AttentionCase& item);

kernels::TileList query_tiles(const AttentionCase& item, kernels::TileShape shape);
kernels::TileList key_tiles(const AttentionCase& item, kernels::TileShape shape);

/// Runs the forward on the device. `tiles` may differ from the case's list, to plant a bug.
/// arrivals: flags in device memory that the kernel waits for.
ForwardAnswer run_forward(kernels::Generation generation, const AttentionCase& item,
                          const AttentionInputs& inputs, const kernels::TileList& tiles,
                          bool is_narrow = false, const kernels::Arrivals& arrivals = {});
ForwardAnswer run_forward(kernels::Generation generation, const AttentionCase& item,
                          const AttentionInputs& inputs);
/// Hopper's forward for some keys and then for others: the second launch merges its rows with the
/// first one's (by_kernel), or launch_out_merge does.
ForwardAnswer run_forward_in_two(const AttentionCase& before, const AttentionCase& after,
                                 const AttentionInputs& inputs, bool by_kernel, bool rounds);
/// The first element of results in the dtype that differs from the rounded fp32 result; "": none.
std::string find_other_bits(const AttentionCase& item, const ForwardAnswer& narrow,
                            const ForwardAnswer& wide);

struct RowStatistics {
  std::vector<double> log2_lse;  // [head][row]
  std::vector<double> delta;     // [head][row]
  std::vector<double> offsets;   // as in row_offsets.h
};
RowStatistics run_row_statistics(const AttentionCase& item, const AttentionInputs& inputs,
                                 const ForwardAnswer& forward);

/// Empty, or the error of a forward: errors beyond twice those of a plain evaluation.
std::string judge_forward(const AttentionCase& item, const AttentionInputs& inputs,
                          const ForwardAnswer& answer);

/// Empty, or the reason why there is no device.
std::string missing_device();

}  // namespace cpscope::tests
