#pragma once

#include "kernels/run/buffer_hazards.h"
#include "sim/run/executor.h"

#include <memory>
#include <span>
#include <vector>

namespace cpscope::kernels {

/// Number of the repeat with the median time.
int32_t middle_of(const std::vector<double>& seconds);

/// Times items on the streams of one device by pairs of events. When off, it costs nothing.
class ItemClock {
 public:
  /// Time zero is the current end of `stream`.
  ItemClock(bool is_on, Stream stream);

  /// Turns timing on or off for a while; when off, it costs nothing.
  void turn(bool on) { is_turned_on_ = on; }
  /// Assigns later items to the next repeat of their direction.
  void begin_repeat() { ++repeat_; }
  /// The current repeat, counted over both directions; -1: none has begun.
  int32_t repeat() const { return repeat_; }
  /// Removes the times of a direction in other repeats.
  void keep_only(Direction direction, int32_t repeat);
  void start(Stream stream);
  /// The casts of the item that has started end here.
  void end_casts(Stream stream);
  void stop(const ItemId& item, RankId rank, StepId step, Stream stream);
  /// Ends the timing of items that ran together.
  void stop_all(std::span<const ItemId> items, RankId rank, StepId step, Stream stream);
  /// The timed events, in order of start. Waits until all are done.
  std::vector<ItemEvent> read();

 private:
  struct Timed {
    ItemId item;
    RankId rank;
    StepId step;
    int32_t repeat;
    std::shared_ptr<DeviceEvent> start, end, casts_end;  // the last one may be missing
  };
  bool is_on_;
  bool is_turned_on_ = true;
  std::shared_ptr<DeviceEvent> zero_, open_, casts_end_;
  std::vector<Timed> timed_;
  int32_t repeat_ = -1;
};

}  // namespace cpscope::kernels
