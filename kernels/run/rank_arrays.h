#pragma once

#include "kernels/device/device_memory.h"
#include "kernels/dispatch/attention_dispatch.h"
#include "kernels/lower/lowered_plan.h"
#include "kernels/rows/row_kernels.h"
#include "sim/plan/plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace cpscope::kernels {

/// Elements per head of one of a buffer's two arrays (0: no second array), as used and as stored.
struct ArrayLanes {
  int32_t lanes = 0;
  int32_t pitch = 0;
};

/// For q, dq: [qk]; d_out: [v]; kv, dkv: [key_dim], [v], or [key_dim] alone if it stands for both;
/// out: [v], [1] (lse); stats: [1] (delta), [1] (lse).
ArrayLanes array_lanes(BufferKind kind, bool second, const Attention& attention);

/// Element type of a buffer on a device: the inputs in the dtype, results and their partials in
/// fp32, lse and delta always in fp32.
Dtype element_of(BufferKind kind, Dtype dtype);

/// Element type of one of a buffer's arrays in memory: results that are
/// stored in the dtype.
Dtype element_in(const LoweredPlan& lowered, BufferId id, bool second);

/// Element type that a transfer sends to another rank: that of the copy for wires if there is one.
Dtype sent_element(const LoweredPlan& lowered, const TransferItem& item, bool second);

/// The buffers of some ranks in the memory of one device, every array between guards, and the row
/// lists that their items name. Buffers of other ranks are not allocated.
class RankArrays {
 public:
  /// Plans the arrays without allocating them.
  RankArrays(const LoweredPlan& lowered, IdVector<RankId, bool> is_here);

  bool is_here(RankId rank) const { return is_here_[rank]; }
  int64_t num_here() const { return std::count(is_here_.begin(), is_here_.end(), true); }
  bool holds(BufferId id) const { return id != kNoBuffer && first_[id] >= 0; }
  /// Reserves a further array, of the executor.
  int32_t reserve(const std::string& name, int64_t bytes) { return arrays_.reserve(name, bytes); }
  int64_t total_bytes() const { return arrays_.total_bytes() + row_list_bytes_; }

  /// Allocates all arrays; every byte is `fill`.
  void allocate(uint8_t fill, Stream stream);

  template <class T = void>
  T* at(int32_t array) const {
    return reinterpret_cast<T*>(arrays_.at<uint8_t>(array));
  }
  template <class T = void>
  T* first(BufferId id) const {
    return at<T>(first_[id]);
  }
  template <class T = void>
  T* second(BufferId id) const {
    return at<T>(second_[id]);
  }
  /// Element type of one array of a buffer.
  Dtype element(BufferId id, bool second) const;
  bool has_second(BufferId id) const { return second_[id] >= 0; }
  int64_t bytes_of(int32_t array) const { return arrays_.bytes_of(array); }
  int64_t array_bytes(BufferId id, bool second) const {
    return arrays_.bytes_of(second ? second_[id] : first_[id]);
  }

  /// One array of a buffer, from head `first_head` (numbered among all heads) on.
  RowBlock block(BufferId id, bool second, int32_t first_head) const;
  /// The same of its copy for wires, if there is one.
  RowBlock wire_block(BufferId id, bool second, int32_t first_head) const;
  DeviceRows rows(BufferId id, bool second, int32_t first_head) const;
  OutRows out_rows(BufferId id) const { return {first<float>(id), second<float>(id)}; }
  BufferShape shape(BufferId id, bool second) const;
  /// The list's rows in device memory; nullptr for kAllRows.
  const int32_t* row_list(RunListId list) const;
  /// [row of its `to`] The row of its `from`, if it stays on its rank; else the row in the received
  /// data; -1: not in this share.
  const int32_t* share_rows(const TransferItem& share) const;
  /// As WireRows::uses, for a buffer with a copy for wires.
  const uint8_t* row_uses(BufferId id) const { return row_uses_.at(id).as<uint8_t>(); }

  std::string find_broken_guard(Stream stream) const { return arrays_.find_broken_guard(stream); }
  const Plan& plan() const { return plan_; }

 private:
  void plan_row_lists(Direction direction);
  void plan_row_list(RunListId list);
  void plan_share_rows();
  std::vector<int32_t> make_share_rows(const TransferItem& share) const;
  std::vector<uint8_t> make_row_uses(BufferId id) const;
  RowBlock block_at(int32_t array, Dtype element, BufferId id, bool second,
                    int32_t first_head) const;

  const LoweredPlan& lowered_;
  const Plan& plan_;
  IdVector<RankId, bool> is_here_;
  GuardedArrays arrays_;
  IdVector<BufferId, int32_t> first_, second_;                 // array; -1: not on this device
  IdVector<BufferId, int32_t> wire_first_, wire_second_;       // array of the copy for wires
  std::map<int32_t, DeviceMemory> row_lists_;                  // [RunListId]
  std::map<std::array<int32_t, 4>, DeviceMemory> share_rows_;  // [stays here, from, to, buffer]
  std::map<BufferId, DeviceMemory> row_uses_;
  int64_t row_list_bytes_ = 0;
};

}  // namespace cpscope::kernels
