#pragma once

#include "kernels/group/launch_place.h"
#include "kernels/lower/lowered_plan.h"
#include "kernels/rows/row_push.h"
#include "kernels/run/expanded_rows.h"
#include "kernels/run/fp8_store.h"
#include "kernels/run/item_clock.h"
#include "kernels/run/rank_arrays.h"
#include "kernels/run/term_store.h"
#include "kernels/run/tile_store.h"
#include "sim/plan/decode_items.h"
#include "sim/plan/item_uses.h"
#include "sim/run/executor.h"
#include "sim/run/judge.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope::kernels {

struct EngineOptions {
  bool poison = false;  // arrays start as NaN instead of a number that would be visible in the
                        // results
  std::optional<Generation> generation;  // forced; else the newest that the device and shape allow
  int threads = 0;                       // host threads for loading and collecting
  bool repeats = false;                  // the backward may run more than once
  bool has_own_device = false;           // no two computes run on the device at the same time
};

/// The devices for which a plan is lowered.
struct LoweringTarget {
  std::optional<Generation> generation = {};  // forced; else the newest that the devices have
  int32_t compute_capability = 0;
  HeadPieces pieces = {};  // as in Lowering, as the others
  bool adds_shares = false;
  std::vector<std::string> without = {};  // names of passes
};

/// Names of passes of lowering that CPSCOPE_WITHOUT leaves out, for finding faults. Errors:
/// bad_input for a name that no pass has.
Result<std::vector<std::string>> passes_left_out(const Environment& environment);

/// The plan in the form that the devices execute. Items stay as planned if an observer reads their
/// results, or if the plan is faulty.
LoweredPlan lower_for_devices(const CheckedPlan& checked, const RunOptions& options,
                              const LoweringTarget& target);

/// True if the transfer can go straight: copies of whole stretches of rows write it to its
/// destination, without kernels. Not if rows are converted or added, or are too scattered.
bool goes_straight(const LoweredPlan& lowered, const TransferItem& item);
/// True if a kernel that copies rows can write it there, however scattered they are (row_push).
bool can_be_pushed(const LoweredPlan& lowered, const TransferItem& item);
/// True if copies can write it to its destination after its rows were packed for the wire.
bool lands_straight(const LoweredPlan& lowered, const TransferItem& item);
/// True if copies can write it to the receiver's staging without packing.
bool leaves_unpacked(const LoweredPlan& lowered, const TransferItem& item);

/// Number of an item of a pass.
template <class Item>
size_t index_of(const Item& item, const std::vector<Item>& items) {
  return static_cast<size_t>(&item - items.data());
}

/// Arrays and kernels of one device for some ranks of a plan. Every call enqueues one item of the
/// plan on a stream and returns; the caller orders the streams. It contains no mask, no layout and
/// no schedule: all these are in the plan. Errors are thrown as DeviceError.
class RankEngine {
 public:
  /// compute_capability as in DeviceInfo. Makes all tile lists; allocates nothing
  /// on the device.
  RankEngine(const LoweredPlan& lowered, IdVector<RankId, bool> is_here, int32_t compute_capability,
             const EngineOptions& options);

  /// Reason why no supported device can execute the plan (dtype, head dims), if so.
  static std::optional<std::string> why_not(const Plan& plan);
  /// Device memory that the run needs, including all arrays, guards and lists.
  int64_t device_bytes() const {
    return arrays_.total_bytes() + tiles_.total_bytes() + terms_.list_bytes() + fp8_.list_bytes();
  }

  void allocate(Stream stream);
  /// Copies the ranks' rows of the packed inputs to their home buffers; rotates q and k if the
  /// scenario has RoPE.
  void load(const RunInputs& inputs, Stream stream);

  /// dtype fp8: after load, the largest values of these ranks' rows are found, and the rows are
  /// quantised with those of all ranks.
  Fp8Store& fp8() { return fp8_; }

  /// Tells the clock when an item's casts end. The clock outlives all runs of items.
  void report_casts_to(ItemClock* clock) { clock_ = clock; }
  /// Resets the data that a pass keeps between its items. `pass`: counts all passes; the value of
  /// flags of pieces.
  void begin_pass(int32_t pass = 0);
  /// Clears the gradient of the bias, before each backward. Waits for the stream if there is one.
  void clear_bias_gradient(Stream stream) { terms_.clear_gradient(stream); }
  /// Where queries move in the backward: finds lse and delta of the rank's own rows, which are sent
  /// beside them. They touch sent_statistics_use.
  void make_sent_statistics(RankId rank, Stream stream);
  /// Buffers that make_sent_statistics touches; none if no queries move.
  static BufferUse sent_statistics_use(const Plan& plan, RankId rank);
  /// Handles the forward's data that a backward overwrites: saves it if `keeps`, else restores it.
  /// Does nothing without EngineOptions::repeats.
  void move_kept_inputs(bool keeps, Stream stream);
  /// Flag that reports to the kernels of a rank that the source's part of a piece of their inputs
  /// has arrived.
  int32_t* arrival_flag(Direction direction, int32_t piece, RankId source) const;
  /// True if the source sends pieces to this device's rank, or is this rank and keeps some.
  bool has_arrivals_from(Direction direction, RankId source) const;
  /// Flag that is set to the number of the pass when the last kernel of a compute item with
  /// says_begun has all its multiprocessors.
  int32_t* begun_flag() const { return arrays_.at<int32_t>(begun_); }
  /// True if a backward's item ends with a kernel that adds up parts (TileList::group_parts).
  bool adds_parts(const ComputeItem& item) const;

  /// Enqueues an item. A transfer must have both ends on this device. An idle compute is nothing.
  /// says_begun: the kernel sets begun_flag.
  void run(const ComputeItem& item, Stream stream, bool says_begun = false);
  void run(const TransferItem& item, Stream stream);
  void run(const ReorderItem& item, Stream stream);
  void run(const MergeItem& item, Stream stream);
  void run(const FinishItem& item, Stream stream);
  /// Copies of a transfer that goes straight (goes_straight), to the engine of another device that
  /// this process drives, or to this one.
  std::vector<ByteRows> copies_of(const TransferItem& item, const RankEngine& receiver) const;
  /// Rows of a transfer that a kernel of this device can push (can_be_pushed).
  std::vector<ListedRows> listed_rows_of(const TransferItem& item,
                                         const RankEngine& receiver) const;
  /// Copies of a transfer that lands straight after packing (lands_straight), from the rows that
  /// `pack` wrote to this device's `staging`.
  std::vector<ByteRows> copies_of_packed(const TransferItem& item, const void* staging,
                                         const RankEngine& receiver) const;
  /// Copies of a transfer that needs no packing (leaves_unpacked), to the receiver's `staging`.
  std::vector<ByteRows> copies_to_staging(const TransferItem& item, void* staging) const;
  /// Bytes that the transfer sends: rows x heads x elements in the wire's element type, K before V,
  /// lse and delta in fp32.
  int64_t wire_bytes(const TransferItem& item) const;
  /// Writes the rows to be sent to `staging`.
  void pack(const TransferItem& item, void* staging, Stream stream);
  /// Stores or adds received rows.
  void unpack(const TransferItem& item, const void* staging, Stream stream);
  /// A share of a sum on this rank, and the place where it was received, unless it stayed here.
  struct Share {
    const TransferItem* item = nullptr;
    const void* staging = nullptr;
  };
  /// Adds up shares of the same heads of a buffer, in this order.
  void add_shares(const std::vector<Share>& shares, Stream stream);

  /// Reads the ranks' results into packed padded tensors; rows of other ranks are not changed.
  /// Waits for the stream.
  void collect_forward(Answer& answer, Stream stream);
  void collect_backward(Answer& answer, Stream stream);

  /// One array of a buffer after the item, [row, head, element] without padding elements. Waits for
  /// the stream.
  std::vector<float> read(BufferId id, bool second, Stream stream) const;
  /// The values that an item on this device has just written, if it is a compute with work or a
  /// finish. Waits for the stream.
  std::vector<ItemResult> read_results(const ItemId& id, Stream stream) const;
  /// The array whose guard was overwritten; empty if none.
  std::string find_broken_guard(Stream stream) const { return arrays_.find_broken_guard(stream); }
  /// Floating-point operations of the tiles of all items on this device, including masked cells.
  int64_t tile_flops() const;
  std::string generation_text() const;
  /// Average host time for a rank's tile lists; ranks may share lists.
  double list_seconds() const { return list_seconds_; }
  /// [the plan's compute item of each direction] "sm90 forward 128x160", "sm90 dq dk dv 128x64 by
  /// tile merging dq"; "" if it has no work or is not on this device.
  ByDirection<std::vector<std::string>> item_kernels() const;

 private:
  void compute_forward(const ComputeItem& item, Stream stream, bool says_begun);
  void compute_backward(const ComputeItem& item, Stream stream, bool says_begun);
  int64_t tile_flops(const ComputeItem& item, Direction direction) const;

  /// Row statistics of the rows of one out buffer, computed once per pass; of moved rows, computed
  /// for each item from what was sent.
  struct Statistics {
    int32_t most_rows = 0;
    bool has_offsets = false;           // kernels read them
    int32_t log2_lse = -1, delta = -1;  // arrays, [head][row]
    int32_t offsets = -1;               // array
    std::vector<int32_t> made_rows;     // [head] rows of the item for which they were made; or -1
  };

  void clear_padded_lanes(void* zeros, Stream stream);
  /// The partials of one accumulator, kept until its final lse is known (accumulate = dtype).
  struct KeptPartials {
    struct Place {
      int64_t most_bytes = 0, most_lse_bytes = 0;
      int32_t o = -1, lse = -1;  // arrays
    };
    std::vector<Place> places;     // [merge since the accumulator began]
    std::vector<OutMerge> merged;  // so far
  };

  template <class Launch>
  void place_rows(const ComputeItem& item, Launch& launch, Stream stream) const;
  AttentionShape shape_of(const ComputeItem& item) const;
  Generation forward_generation(const AttentionShape& shape) const;
  Generation backward_generation(const AttentionShape& shape) const;
  void plan_forward(const ComputeItem& item);
  void plan_backward(const ComputeItem& item);
  void plan_statistics();
  void plan_kept_partials();
  void plan_kept_inputs();
  void plan_counters();
  void plan_arrivals();
  void plan_part_sums();
  void plan_key_part_sums();
  DeviceRows part_rows_of(const ComputeItem& item, bool second) const;
  const TileList& key_list_of(const ComputeItem& item) const;
  const TileList& query_list_of(const ComputeItem& item) const;
  Arrivals arrivals_of(const ComputeItem& item, Direction direction, TileOwner owner,
                       int32_t tile_heads) const;
  int32_t most_heads_of(const ComputeItem& item, Direction direction, TileOwner owner,
                        int32_t tile_heads) const;
  int64_t counter_bytes_of(const ComputeItem& item, Direction direction) const;
  bool keeps_partials() const;
  RowCopy copy_of(const TransferItem& item, bool second) const;
  RowBlock sent_block(const TransferItem& item, bool second) const;
  void merge_out(const MergeItem& item, bool rounds, Stream stream);
  void merge_sums(const MergeItem& item, bool second, bool rounds, Stream stream);
  int64_t merged_rows(const MergeItem& item) const;
  void sum_kept_partials(BufferId into, Stream stream);
  void settle(const TransferItem& item, Stream stream);
  void load_rows(const Tensor& tensor, RunListId tokens, BufferId buffer, bool second,
                 Stream stream);
  /// Rotates a rank's q and k, or its dq and dk back (direction -1).
  void rotate_home(RankId rank, double direction, Stream stream);
  void rotate_rows(BufferId buffer, RunListId tokens, Side side, double direction, Stream stream);
  void collect_rows(BufferId buffer, bool second, RunListId tokens, Tensor& tensor, Stream stream);
  void add_sink_gradient(BufferId out, BufferId d_out, Stream stream);
  void collect_sink_gradient(Answer& answer, Stream stream);

  const ComputeNote& note_of(const ComputeItem& item, Direction direction) const;
  /// Counters of a compute item's launches.
  int32_t* counters_of(const ComputeItem& item, Direction direction) const;

  const LoweredPlan& lowered_;
  const Plan& plan_;
  const Attention& attention_;
  EngineOptions options_;
  int32_t compute_capability_;
  std::map<std::array<int64_t, 2>, SliceSums> slice_sums_;  // [first slice, number of slices]
  std::map<std::pair<int32_t, int32_t>, HeadRange> heads_of_steps_;  // [rank, step] of the backward
  RankArrays arrays_;
  TileStore tiles_;
  TermStore terms_;
  Fp8Store fp8_;
  ExpandedRows expanded_;
  bool has_short_sums_ = false;  // a forward multiplies codes of one byte
  struct KeptArray {
    BufferId buffer{};
    bool is_second = false;
    int32_t copy = -1;  // array
  };
  std::vector<KeptArray> kept_inputs_;
  /// Results of parts of the keys (TileList::parts).
  struct KeyPartSums {
    int64_t most_bytes = 0;
    int32_t array = -1;
  };
  struct Counters {
    int32_t array = -1;
    int64_t bytes = 0;
  };
  IdVector<RankId, Counters> counters_;
  IdVector<RankId, int32_t> max_logits_;              // array
  ByDirection<std::vector<int64_t>> counter_places_;  // [compute item] bytes
  /// Flags for the inputs of this device's rank.
  struct InputFlags {
    int32_t array = -1;           // [piece][source]
    std::vector<RankId> sources;  // that send pieces
  };
  ByDirection<InputFlags> inputs_;
  std::array<std::vector<int64_t>, 2> rotary_positions_;  // [Side][packed padded id]; RoPE only
  int32_t pass_number_ = 0;
  ItemClock* clock_ = nullptr;
  std::map<int32_t, Statistics> statistics_;  // [BufferId of out]
  std::map<int32_t, int32_t> dq_sums_;        // [BufferId of dq in the dtype] array in fp32
  /// dk and dv of groups that are split into parts.
  struct PartSums {
    int32_t most_parts = 1;
    std::array<int32_t, 2> arrays{-1, -1};  // fp32 [kv row][KV head, part]: dk, dv
  };
  std::map<int32_t, PartSums> part_sums_;         // [BufferId of dkv]
  std::map<int32_t, KeyPartSums> key_part_sums_;  // [BufferId of out]
  std::map<int32_t, KeptPartials> kept_;          // [BufferId of the accumulator]
  int32_t sink_ = -1, d_sink_ = -1;               // arrays, [global head]
  int32_t begun_ = -1;                            // array, a flag
  double list_seconds_ = 0.0;
};

}  // namespace cpscope::kernels
