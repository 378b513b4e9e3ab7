#pragma once

#include "kernels/lower/lowered_plan.h"
#include "kernels/rows/row_push.h"
#include "kernels/run/rank_arrays.h"
#include "kernels/run/tile_store.h"
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
  bool poison = false;  // arrays start as NaN instead of as a number that would show
  std::optional<Generation>
      generation;        // force one; else the newest that the device and shape allow
  int threads = 0;       // host threads for loading and collecting
  bool repeats = false;  // the backward may be carried out more than once
};

/// The plan as devices of this compute capability carry it out. Items keep to the plan where
/// somebody reads their results, and where the plan is faulty. adds_shares: as in Lowering.
LoweredPlan lower_for_devices(const CheckedPlan& checked, const RunOptions& options,
                              std::optional<Generation> generation, int32_t compute_capability,
                              HeadPieces pieces, bool adds_shares);

/// Can copies of whole stretches of rows bring the transfer to its place, without kernels? Not
/// where rows are converted or added, or lie too scattered.
bool goes_straight(const LoweredPlan& lowered, const TransferItem& item);
/// Can a kernel that copies rows bring it there, however scattered they lie (row_push)?
bool can_be_pushed(const LoweredPlan& lowered, const TransferItem& item);
/// Can they when its rows are packed for the wire?
bool lands_straight(const LoweredPlan& lowered, const TransferItem& item);
/// Can they bring it to where the receiver takes it from the wire, without packing?
bool leaves_unpacked(const LoweredPlan& lowered, const TransferItem& item);

/// Number of an item of a pass.
template <class Item>
size_t index_of(const Item& item, const std::vector<Item>& items) {
  return static_cast<size_t>(&item - items.data());
}

/// What one device holds and does for some ranks of a plan. Every call enqueues one item of the
/// plan on a stream and returns; the order between streams is the caller's business. It will never
/// contain a mask, a layout or a schedule: the plan says all that. Errors are thrown as
/// DeviceError.
class RankEngine {
 public:
  /// `is_here` [rank]; compute_capability as in DeviceInfo. Makes all tile lists; allocates nothing
  /// on the device.
  RankEngine(const LoweredPlan& lowered, std::vector<bool> is_here, int32_t compute_capability,
             const EngineOptions& options);

  /// Why no device of this room can carry out the plan (dtype, head dims), if so.
  static std::optional<std::string> why_not(const Plan& plan);
  /// Device memory that run needs, every array, guard and list counted.
  int64_t device_bytes() const { return arrays_.total_bytes() + tiles_.total_bytes(); }

  void allocate(Stream stream);
  /// Copies the ranks' rows of the packed inputs to their home buffers; turns q and k where RoPE
  /// asks for it.
  void load(const RunInputs& inputs, Stream stream);

  /// What a pass keeps between its items is made anew. `pass`: counts all passes; what flags of
  /// pieces are set to.
  void begin_pass(int32_t pass = 0);
  /// What the forward has left and a backward overwrites: `keeps` it, or puts it back. Nothing
  /// without EngineOptions::repeats.
  void move_kept_inputs(bool keeps, Stream stream);
  /// Flag that says to the kernels of a rank that source's part of a piece of their inputs is
  /// there.
  int32_t* arrival_flag(bool is_backward, int32_t piece, RankId source) const;
  /// Does the source send pieces to this device's rank, or the rank itself keep some?
  bool has_arrivals_from(bool is_backward, RankId source) const;
  /// Is set to the number of the pass when the last kernel of a compute item that says_begun has
  /// all its multiprocessors.
  int32_t* begun_flag() const { return arrays_.at<int32_t>(begun_); }
  /// Does a backward's item end with a kernel that adds up (TileList::group_parts)?
  bool adds_parts(const ComputeItem& item) const;
  void compute_forward(const ComputeItem& item, Stream stream, bool says_begun = false);
  void compute_backward(const ComputeItem& item, Stream stream, bool says_begun = false);
  void reorder(const ReorderItem& item, Stream stream);
  void merge(const MergeItem& item, Stream stream);
  void finish(const FinishItem& item, Stream stream);

  /// A transfer whose two ends are here.
  void move(const TransferItem& item, Stream stream);
  /// Copies of a transfer that goes straight, to the engine of another device that this process
  /// drives, or to this one.
  std::vector<ByteRows> copies_of(const TransferItem& item, const RankEngine& receiver) const;
  /// Of one that can be pushed, by a kernel of this device.
  std::vector<ListedRows> listed_rows_of(const TransferItem& item,
                                         const RankEngine& receiver) const;
  /// Of a transfer that lands straight, from what `pack` wrote to this device's `staging`.
  std::vector<ByteRows> copies_of_packed(const TransferItem& item, const void* staging,
                                         const RankEngine& receiver) const;
  /// Of a transfer that leaves unpacked, to the receiver's `staging`.
  std::vector<ByteRows> copies_to_staging(const TransferItem& item, void* staging) const;
  /// Bytes that the transfer puts on the wire: rows x heads x lanes in the wire's element, K before
  /// V.
  int64_t wire_bytes(const TransferItem& item) const;
  /// Writes what the sender puts on the wire to `staging`.
  void pack(const TransferItem& item, void* staging, Stream stream);
  /// Places or adds what came over the wire.
  void unpack(const TransferItem& item, const void* staging, Stream stream);
  /// A share of a sum of this rank's, and where it came to over the wire, unless it stayed here.
  struct Share {
    const TransferItem* item = nullptr;
    const void* staging = nullptr;
  };
  /// Adds up shares of the same heads of a buffer, in this order.
  void add_shares(const std::vector<Share>& shares, Stream stream);

  /// Reads the ranks' results into packed padded tensors; rows of other ranks are left alone. Waits
  /// for the stream.
  void collect_forward(Answer& answer, Stream stream);
  void collect_backward(Answer& answer, Stream stream);

  /// One array of a buffer as the item left it, [row, head, lane] without padded lanes. Waits for
  /// the stream.
  std::vector<float> read(BufferId id, bool second, Stream stream) const;
  /// Empty, or which array's guard was overwritten.
  std::string find_broken_guard(Stream stream) const { return arrays_.find_broken_guard(stream); }
  /// Arithmetic of one item's tiles, masked cells included.
  int64_t tile_flops(const ComputeItem& item, bool is_backward) const;
  std::string generation_text() const;
  /// Host time that a rank's tile lists took, on average; ranks may share lists.
  double list_seconds() const { return list_seconds_; }
  /// [the plan's compute item of each direction] "sm90 forward 128x160", "sm90 dq dk dv 128x64 by
  /// tile merging dq"; "" where it idles or is not here.
  std::array<std::vector<std::string>, 2> item_kernels() const;

 private:
  /// Row statistics of the rows of one out buffer, made once a run.
  struct Statistics {
    int32_t log2_lse = -1, delta = -1;  // arrays, [head][row]
    int32_t offsets = -1;               // array, if kernels take them
    std::vector<bool> is_made;          // [head]
  };

  void clear_padded_lanes(void* zeros, Stream stream);
  /// The partials of one accumulator that wait for its final lse (accumulate = dtype).
  struct KeptPartials {
    std::vector<std::array<int32_t, 2>> arrays;  // [merge] o, lse
    size_t count = 0;                            // merged so far
  };

  template <class Launch>
  void place_rows(const ComputeItem& item, Launch& launch) const;
  AttentionShape shape_of(const ComputeItem& item) const;
  Generation forward_generation(const AttentionShape& shape) const;
  Generation backward_generation(const AttentionShape& shape) const;
  void plan_forward(const ComputeItem& item);
  void plan_backward(const ComputeItem& item);
  void plan_kept_partials();
  void plan_kept_inputs();
  void plan_counters();
  void plan_arrivals();
  void plan_part_sums();
  DeviceRows part_rows_of(const ComputeItem& item, bool second) const;
  const TileList& key_list_of(const ComputeItem& item) const;
  Arrivals arrivals_of(const ComputeItem& item, bool is_backward, TileOwner owner,
                       int32_t tile_heads) const;
  int32_t most_heads_of(const ComputeItem& item, bool is_backward, TileOwner owner,
                        int32_t tile_heads) const;
  int64_t counter_bytes_of(const ComputeItem& item, bool is_backward) const;
  bool keeps_partials() const;
  RowCopy copy_of(const TransferItem& item, bool second) const;
  RowBlock sent_block(const TransferItem& item, bool second) const;
  void merge_out(const MergeItem& item, bool rounds, Stream stream);
  void merge_sums(const MergeItem& item, bool second, bool rounds, Stream stream);
  void sum_kept_partials(BufferId into, Stream stream);
  void load_rows(const Tensor& tensor, RunListId tokens, BufferId buffer, bool second,
                 Stream stream);
  void rotate_home(BufferId buffer, RunListId tokens, bool is_query, double direction,
                   Stream stream);
  void collect_rows(BufferId buffer, bool second, RunListId tokens, Tensor& tensor, Stream stream);
  void collect_sink_gradient(Answer& answer, Stream stream);

  const OwnMerge& own_merge_of(const ComputeItem& item, bool is_backward) const;
  /// Counters of a compute item's launches.
  int32_t* counters_of(const ComputeItem& item, bool is_backward) const;

  const LoweredPlan& lowered_;
  const Plan& plan_;
  const Attention& attention_;
  EngineOptions options_;
  int32_t compute_capability_;
  std::map<std::array<int64_t, 2>, int64_t> pairs_;  // [first slice, number of slices] visible
  std::map<std::pair<int32_t, int32_t>, HeadRange> heads_of_steps_;  // [rank, step] of the backward
  RankArrays arrays_;
  TileStore tiles_;
  struct KeptArray {
    BufferId buffer{};
    bool is_second = false;
    int32_t copy = -1;  // array
  };
  std::vector<KeptArray> kept_inputs_;
  struct Counters {
    int32_t array = -1;
    int64_t bytes = 0;
  };
  std::vector<Counters> counters_;                      // [rank]
  std::vector<int32_t> max_logits_;                     // [rank] array
  std::array<std::vector<int64_t>, 2> counter_places_;  // [direction][compute item] bytes
  /// Flags of the inputs of this device's rank.
  struct InputFlags {
    int32_t array = -1;           // [piece][source]
    std::vector<RankId> sources;  // that send pieces
  };
  std::array<InputFlags, 2> inputs_;  // [direction]
  int32_t pass_number_ = 0;
  std::map<int32_t, Statistics> statistics_;  // [BufferId of out]
  std::map<int32_t, int32_t> dq_sums_;        // [BufferId of dq in the dtype] array in fp32
  /// dk and dv of groups in parts.
  struct PartSums {
    int32_t most_parts = 1;
    std::array<int32_t, 2> arrays{-1, -1};  // fp32 [kv row][kv head, part]: dk, dv
  };
  std::map<int32_t, PartSums> part_sums_;  // [BufferId of dkv]
  std::map<int32_t, KeptPartials> kept_;   // [BufferId of the accumulator]
  int32_t sink_ = -1, d_sink_ = -1;        // arrays, [global head]
  int32_t begun_ = -1;                     // array, a flag
  double list_seconds_ = 0.0;
};

}  // namespace cpscope::kernels
