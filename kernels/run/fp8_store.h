#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/fp8_numbers.h"
#include "kernels/device/device_memory.h"
#include "kernels/rows/fp8_rows.h"
#include "kernels/run/rank_arrays.h"
#include "sim/base/id_vector.h"
#include "sim/plan/plan.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace cpscope::kernels {

/// The largest |value| of the valid rows of q, k and v together, and of d_out.
struct Fp8Amax {
  float qkv = 0.0f;
  float d_out = 0.0f;
};

/// Casts dq, dk and dv of an item, which are complete and in fp32, if the recipe says so.
void cast_gradients(const BackwardLaunch& launch, Stream stream);

/// Scales, quantised rows and blocks of dtype fp8 on one device; does nothing with another dtype.
/// With one scale a tensor the home rows are quantised once. With mxfp8 each compute item quantises
/// its own rows, into memory of its rank, whose items run one after another.
class Fp8Store {
 public:
  /// Reserves the memory of quantised rows; allocates nothing.
  Fp8Store(const Plan& plan, RankArrays& arrays);

  bool is_on() const { return recipe_.has_value(); }
  /// True if the scales of q, k, v and d_out follow from the rows of all ranks.
  bool needs_amax() const { return is_on() && recipe_->recipe == Fp8Recipe::current; }
  int64_t list_bytes() const { return list_bytes_; }
  /// Keeps what the step before has left, and copies the lists of blocks to the device.
  void load(const RunInputs& inputs, Stream stream);
  /// Of the home rows of this device's ranks, which have been loaded and rotated. Waits for the
  /// stream.
  Fp8Amax find_amax(Stream stream) const;
  /// Quantises the home rows. `amax`: of all ranks; unused if the scales are given.
  void quantise(const Fp8Amax& amax, Stream stream);
  /// 1 / the scale of d_out; 1 with another dtype.
  float d_out_descale() const { return numbers_.d_out_descale; }
  /// Called before each pass: codes of a rank's own queries are made once in it.
  void begin_pass();
  /// FP8 of an item. Enqueues what the kernel reads of its rows: casts of mxfp8, or codes. Rows of
  /// codes of a rank's own keys, a cache, are made once.
  Fp8Numbers of(const ComputeItem& item, Direction direction, CodeForm codes, Stream stream);
  /// Reserves the memory of an item's codes; once for each item, before reserve_codes.
  void plan_codes(const ComputeItem& item, CodeForm form);
  void reserve_codes();

 private:
  /// Blocks along tokens of a list of rows.
  struct Blocks {
    std::vector<int32_t> numbers;  // [row] -1: padding
    std::vector<RowSpan> spans;    // [block]
    DeviceMemory numbers_on_device, spans_on_device;

    TokenBlocks on_device() const {
      return {numbers_on_device.as<int32_t>(), spans_on_device.as<RowSpan>()};
    }
  };
  /// Quantised rows of a rank's current item.
  struct Operands {
    int32_t q = -1, k = -1, v = -1, d_out = -1;  // arrays
    int32_t turned_q = -1, turned_k = -1, turned_d_out = -1;
  };

  /// Whose codes are in memory: heads of a buffer that does not change.
  struct Kept {
    BufferId buffer = kNoBuffer;
    HeadRange heads;

    friend bool operator==(const Kept&, const Kept&) = default;
  };
  /// Codes of a rank's current item, for tensor cores.
  struct Codes {
    int64_t q_bytes = 0, k_bytes = 0, v_bytes = 0, d_out_bytes = 0;
    int32_t q = -1, k = -1, v = -1, d_out = -1;  // arrays
    Kept keys;                                   // for passes to come
    Kept queries;                                // in this pass; and d_out
  };

  void plan_blocks(RunListId tokens, Side side);
  const Blocks& blocks_of(RunListId tokens, Side side) const;
  void plan_operands(RankId rank);
  std::vector<uint8_t> valid_rows(RunListId tokens, Side side) const;
  void raise_amax(BufferId buffer, bool second, const std::vector<uint8_t>& is_valid,
                  const DeviceMemory& valid_on_device, float* amax, Stream stream) const;
  void scale_rows(BufferId buffer, bool second, Fp8Type type, float scale, Stream stream) const;
  DeviceRows cast(BufferId buffer, bool second, HeadRange heads, int64_t rows, const Blocks* blocks,
                  int32_t array, Stream stream) const;
  void cast_operands(const ComputeItem& item, Direction direction, Fp8Numbers& numbers,
                     Stream stream) const;
  void encode(const ComputeItem& item, CodeForm form, Fp8Numbers& numbers, Stream stream);

  const Plan& plan_;
  const std::optional<Fp8> recipe_;
  RankArrays& arrays_;
  const bool has_values_;  // else v is a part of k
  Fp8History history_;
  Fp8Numbers numbers_;  // what all items share
  IdVector<RankId, Operands> operands_;
  IdVector<RankId, Codes> codes_;
  std::map<std::pair<int32_t, int32_t>, Blocks> blocks_;  // [RunListId, Side]
  int64_t list_bytes_ = 0;
};

}  // namespace cpscope::kernels
