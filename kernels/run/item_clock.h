#pragma once

#include "kernels/run/buffer_hazards.h"
#include "sim/run/executor.h"

#include <memory>
#include <span>
#include <vector>

namespace cpscope::kernels {

/// Number of the repeat whose time is the median.
int32_t middle_of(const std::vector<double>& seconds);

/// Times items on the streams of one device by pairs of events. Off, it costs nothing.
class ItemClock {
 public:
  /// Time zero is where `stream` stands now.
  ItemClock(bool is_on, Stream stream);

  /// Off, it costs nothing for a while.
  void turn(bool on) { is_turned_on_ = on; }
  /// What follows belongs to the next repeat of its direction.
  void begin_repeat() { ++repeat_; }
  /// The present repeat, counted over both directions; -1: none has begun.
  int32_t repeat() const { return repeat_; }
  /// Forgets what was timed of a direction in other repeats.
  void keep_only(bool is_backward, int32_t repeat);
  void start(Stream stream);
  void stop(const ItemId& item, RankId rank, StepId step, Stream stream);
  /// Items that were carried out together.
  void stop_all(std::span<const ItemId> items, RankId rank, StepId step, Stream stream);
  /// What was timed, in order of start. Waits for all of it.
  std::vector<ItemEvent> read();

 private:
  struct Timed {
    ItemId item;
    RankId rank;
    StepId step;
    int32_t repeat;
    std::shared_ptr<DeviceEvent> start, end;
  };
  bool is_on_;
  bool is_turned_on_ = true;
  std::shared_ptr<DeviceEvent> zero_, open_;
  std::vector<Timed> timed_;
  int32_t repeat_ = -1;
};

}  // namespace cpscope::kernels
