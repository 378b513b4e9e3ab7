#pragma once

#include "kernels/rows/row_push.h"
#include "kernels/rows/wire.h"
#include "kernels/run/item_clock.h"
#include "kernels/run/nccl_group.h"
#include "kernels/run/rank_engine.h"

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::kernels {

/// One rank of a plan on its own device: its arrays, streams, and staging memory for wire data that
/// cannot go directly to its destination. An item waits only for the heads of buffers that it
/// touches, so transfers run at the same time as computes. NCCL's staging needs no second copy:
/// pack, send, receive and unpack follow each other on one stream; the plan's own ring buffers are
/// the double ones. With copies, each message has its own place in staging.
class RankDevice {
 public:
  /// `lowered` must outlive it.
  RankDevice(const LoweredPlan& lowered, RankId rank, int device, const RunOptions& options,
             std::optional<Generation> generation, Wire wire, bool is_in_order);
  RankDevice(const RankDevice&) = delete;
  RankDevice& operator=(const RankDevice&) = delete;
  ~RankDevice();

  RankId rank() const { return rank_; }
  /// Reason why the plan does not fit the device, if so.
  std::optional<std::string> why_too_large() const;
  void load(const RunInputs& inputs);
  /// dtype fp8, after load: as Fp8Store names them.
  Fp8Amax find_amax();
  void quantise(const Fp8Amax& amax);

  /// Sets time zero of its events to now. The device must be idle.
  void start_clock();
  void begin_pass(Direction direction, bool measures_items);
  /// Backward: enqueues what make_sent_statistics of the engine does, before all items.
  void make_sent_statistics();
  /// Saves the forward's data that every repeat of the backward must find unchanged.
  void keep_inputs();
  /// Keeps only the events of one pass of a direction: 0 is the last pass.
  void keep_repeat(Direction direction, int32_t repeats_ago);
  /// Enqueues an item of this rank that is no transfer; ignores items of other ranks.
  void enqueue(StageKind kind, int64_t index);

  // Wire::copies: transfers [begin, end) of a stage, in two parts: all devices of the process
  // finish the first before any begins the second. Threads may do a part of several devices at the
  // same time. `devices` [rank].
  /// Enqueues the transfers that this rank sends.
  void send(int64_t begin, int64_t end, std::deque<RankDevice>& devices);
  /// Stores rows that arrive here and rows that stay here, and records messages in flight.
  void receive(int64_t begin, int64_t end, const std::deque<RankDevice>& devices);
  /// Wire::copies: sends a piece of inputs from this rank, and the flags that report it, unless a
  /// kernel does so. `devices` [rank]. One thread may do it while another does anything else.
  void send_piece(int32_t piece, std::deque<RankDevice>& devices);
  /// Sends the first piece by a kernel, with all pieces of rows that stay here; or all pieces, if
  /// rows are too scattered for copies.
  void push_first_piece(std::deque<RankDevice>& devices);

  // Wire::nccl: transfers [begin, end) of a stage, in three parts; all devices of the process
  // finish one before any begins the next.
  /// Packs the rows that this rank sends; returns the number of messages that it sends and
  /// receives.
  int64_t pack(int64_t begin, int64_t end);
  void post(NcclGroup& nccl);
  void unpack();

  /// Records that all work of a step has been enqueued.
  void end_step(StepId step);
  /// The first step that is not completely done, if any. Does not wait.
  std::optional<StepId> open_step();
  void wait();

  /// The values that an item has just written, if it is a compute or finish item of this rank.
  std::vector<ItemResult> read_results(StageKind kind, int64_t index);
  void collect_forward(Answer& answer);
  void collect_backward(Answer& answer);
  std::vector<ItemEvent> events();
  int64_t tile_flops() const { return engine_.tile_flops(); }
  std::string generation_text() const { return engine_.generation_text(); }
  /// Kernels of this rank's items.
  ByDirection<std::vector<std::string>> item_kernels() const { return engine_.item_kernels(); }
  double list_seconds() const { return engine_.list_seconds(); }
  /// The array whose guard was overwritten; empty if none.
  std::string find_broken_guard();

 private:
  struct Message {
    const TransferItem* item;
    ItemId id;
    int64_t offset;  // in staging
  };
  struct StepMark {
    StepId step;
    std::vector<std::shared_ptr<DeviceEvent>> events;  // of all streams
  };
  /// How a transfer is copied, and its place in staging: at the sender if it is packed, at the
  /// receiver if it cannot go directly to its destination.
  struct CopyPlan {
    bool is_packed = false, lands_straight = false;
    int64_t sent = 0, received = 0;
    std::vector<ByteRows> rows;  // cached after the first send
  };
  /// A transfer by copies that this rank has enqueued.
  struct Sent {
    Stream reader = nullptr, copier = nullptr;
    std::shared_ptr<DeviceEvent> read, arrived;
  };

  /// The rows that a kernel writes at the begin of a pass.
  struct FirstPush {
    bool is_taken = false;  // the kernel writes them
    RowPush rows;
    std::vector<ItemId> items;
  };

  // Pass numbers count up to this and then restart at 0: a flag never has the value of the previous
  // pass.
  static constexpr int32_t kNumbers = 1024;
  static constexpr int64_t kPushedBytes = RowPush::kMostPieces * int64_t{sizeof(int32_t)};

  /// Value of flags in this pass.
  int32_t pass_value() const { return pass_number_ % kNumbers; }
  /// Bytes that a message takes in staging.
  static int64_t align(int64_t bytes);
  const Pass& pass() const { return plan_.pass(direction_); }
  bool pushes_all_pieces() const {
    return lowered_.notes[direction_].ranks[rank_].pushes_all_pieces;
  }
  Stream transfer_stream() const { return transfer_stream_.get(); }
  Stream compute_stream() const { return is_in_order_ ? transfer_stream() : compute_stream_.get(); }
  std::vector<Stream> streams() const;
  void plan_staging();
  void plan_copies();
  uint8_t* packed_place(const CopyPlan& plan) const;
  uint8_t* received_place(const CopyPlan& plan) const;
  const std::vector<ByteRows>& wire_rows(int64_t index, const RankDevice& receiver);
  void wait_for_first_piece(Stream stream);
  FirstPush find_push(std::deque<RankDevice>& devices);
  bool add_to_push(int64_t index, std::deque<RankDevice>& devices, RowPush& push);
  void move_own_pieces();
  void reserve_staging(int64_t sent, int64_t received);
  const CopyPlan& copy_plan(int64_t index) const {
    return copies_[direction_][static_cast<size_t>(index)];
  }
  bool is_last_of_piece(size_t index) const;
  void send_item(int64_t index, RankDevice& receiver);
  void copy_straight(int64_t index, RankDevice& receiver, ItemClock& clock, Stream stream);
  void send_piece(int32_t piece, std::deque<RankDevice>& devices, ItemClock& clock);
  int32_t* flag_at(int32_t piece, const RankDevice& receiver) const;
  void set_flag(int32_t piece, const RankDevice& receiver, Stream stream);
  void keep_item(int64_t index, int64_t stage);
  void add_shares(std::vector<int64_t>& shares, const std::deque<RankDevice>& devices,
                  int64_t stage);
  void receive_item(int64_t index, const RankDevice& sender, int64_t stage);
  static bool is_local(const Message& message);
  void move(const Message& message);
  void compute(const ComputeItem& item, int64_t index);
  template <class Work>
  void enqueue_item(const ItemId& id, StepId step, const BufferUse& use, Stream stream, Work work);

  const LoweredPlan& lowered_;
  const Plan& plan_;
  const RunOptions& options_;
  const RankId rank_;
  const int device_;
  const bool is_in_order_;  // a faulty plan may read what it writes
  Direction direction_ = Direction::forward;
  DeviceInfo info_;
  RankEngine engine_;
  GuardedArrays staging_;
  int32_t send_staging_ = -1, receive_staging_ = -1;  // arrays
  ByDirection<std::vector<CopyPlan>> copies_;         // [transfer]; Wire::copies
  std::vector<Sent> sent_;                            // [transfer] of the current pass
  int64_t num_stages_ = 0;                            // of transfers, over all passes
  // Results are sent at the same time as the inputs of later pieces; packing and placing of
  // received rows run at the same time as both.
  DeviceStream compute_stream_, transfer_stream_, result_stream_{Urgency::urgent},
      packing_stream_{Urgency::urgent}, landing_stream_{Urgency::urgent};
  DeviceStream late_stream_{Urgency::late};  // the second part of a compute item, after the first
  std::optional<int64_t> computed_;          // the plan's item that was enqueued last in the pass
  int32_t numbers_ = -1;       // array: 0, 1, 2, ...; flags are set to the pass's number
  int32_t num_pushed_ = -1;    // array: [piece] number of finished CTAs of a push
  int32_t first_pushed_ = -1;  // array: a flag that is set when the first piece is written
  ByDirection<std::optional<FirstPush>> pushes_;  // made at the first use
  int32_t pass_number_ = 0;                       // passes begun
  BufferHazards hazards_;
  std::optional<ItemClock> clock_, piece_clock_;  // piece_clock_: of send_piece, which a separate
                                                  // thread calls
  std::vector<Message> sends_;                    // of the current stage, in item order
  std::vector<Message> landings_;  // messages it receives, and rows that stay on the rank
  std::deque<StepMark> marks_;     // steps not yet known to be done
};

}  // namespace cpscope::kernels
