#pragma once

#include "kernels/attention/score_term_rows.h"
#include "kernels/device/device_memory.h"
#include "kernels/run/rank_arrays.h"
#include "sim/plan/plan.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <map>
#include <vector>

namespace cpscope::kernels {

/// [row] the longest stretch from each row on.
std::vector<PositionStretch> stretches_of(const std::vector<float>& positions);

/// What bias, ALiBi and dropout need on one device, for all compute items there; holds nothing if
/// the scenario has none of them.
class TermStore {
 public:
  /// Reserves the bias and the cells of its gradient; allocates nothing.
  TermStore(const Plan& plan, RankArrays& arrays);

  bool is_on() const { return is_on_; }
  int64_t list_bytes() const { return list_bytes_; }
  /// Copies places, slopes, the bias and kept weights to the device.
  void load(const RunInputs& inputs, Stream stream);
  /// Clears the gradient of the bias, before a backward, and waits for that.
  void clear_gradient(Stream stream);
  /// The terms of an item, after load.
  ScoreTermRows of(const ComputeItem& item) const;
  /// Adds the cells of this device to answer.dbias, over heads and sequences that share a cell, in
  /// a fixed order. Not rounded to the dtype: other devices may have more. Waits for the stream.
  void collect(Answer& answer, Stream stream) const;

 private:
  /// What the rows of a token list are to the terms, in device memory.
  struct TermList {
    DeviceMemory places;     // TermPlace, with bias or dropout
    DeviceMemory positions;  // with ALiBi, as in AlibiRows
    DeviceMemory stretches;  // of keys, likewise
  };

  void plan_list(RunListId tokens, Side side);
  TermList list_on_device(RunListId tokens, Side side, Stream stream) const;

  const Plan& plan_;
  RankArrays& arrays_;
  const bool is_on_, has_places_;
  int64_t list_bytes_ = 0;
  int32_t bias_ = -1, dbias_ = -1, kept_ = -1;             // arrays
  int32_t slopes_ = -1, first_cells_ = -1;                 // arrays
  int32_t lengths_ = -1, kv_lengths_ = -1;                 // arrays
  std::vector<int64_t> cell_begins_;                       // [sequence], and the end
  std::map<std::pair<int32_t, int32_t>, TermList> lists_;  // [RunListId, Side]
};

}  // namespace cpscope::kernels
