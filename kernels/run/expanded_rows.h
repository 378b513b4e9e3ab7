#pragma once

#include "kernels/device/device_rows.h"
#include "kernels/rows/row_expansion.h"
#include "kernels/run/rank_arrays.h"
#include "sim/plan/plan.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <utility>

namespace cpscope::kernels {

/// What a device needs to expand latent rows (latent_nope_dim): weights, and for each rank the keys
/// and values, and their gradients, of the compute item that it runs. Holds nothing if the scenario
/// does not expand rows. Compute items of a rank run one after another.
class ExpandedRows {
 public:
  /// Reserves the arrays; allocates nothing.
  ExpandedRows(const Plan& plan, RankArrays& arrays);

  bool is_on() const { return attention_.expands_rows(); }
  /// Copies the weights to the device, and clears the elements that no kernel writes. Waits.
  void load(const RunInputs& inputs, Stream stream);
  /// Makes the keys and values of the item's heads. Returns k, v.
  std::pair<DeviceRows, DeviceRows> make(const ComputeItem& item, Stream stream) const;
  /// Rows for the gradients of an item's k, v, in fp32.
  std::pair<DeviceRows, DeviceRows> gradients(const ComputeItem& item) const;
  /// Writes the item's dkv of these gradients.
  void contract(const ComputeItem& item, Stream stream) const;

 private:
  struct OfRank {
    int64_t rows = 0;                                  // the most of an item
    int32_t heads = 0;                                 // likewise
    int32_t keys = -1, values = -1, dk = -1, dv = -1;  // arrays
  };
  LatentSizes sizes_of(const ComputeItem& item) const;
  DeviceRows rows_of(int32_t array, const OfRank& rank, int32_t lanes) const;

  const Plan& plan_;
  RankArrays& arrays_;
  const Attention& attention_;
  IdVector<RankId, OfRank> ranks_;
  int32_t w_k_ = -1, w_v_ = -1, turned_w_k_ = -1, turned_w_v_ = -1;  // arrays
};

}  // namespace cpscope::kernels
