#pragma once

#include "kernels/device/device.h"
#include "sim/plan/item_uses.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace cpscope::kernels {

/// An event that destroys itself.
class DeviceEvent {
 public:
  explicit DeviceEvent(bool measures_time) : event_(make_event(measures_time)) {}
  ~DeviceEvent() { destroy_event(event_); }
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;
  Event get() const { return event_; }

 private:
  Event event_;
};

/// A stream that destroys itself.
class DeviceStream {
 public:
  explicit DeviceStream(Urgency urgency = Urgency::usual) : stream_(make_stream(urgency)) {}
  ~DeviceStream() { destroy_stream(stream_); }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  Stream get() const { return stream_; }

 private:
  Stream stream_;
};

/// Orders work on several streams by the heads of buffers that it touches: an item begins when its
/// inputs have been written and the values it overwrites have been read. Streams wait for nothing
/// else, so a ring's next transfer runs at the same time as the compute of this step. Streams may
/// belong to several devices of one process. Threads may call `begin` at the same time.
class BufferHazards {
 public:
  /// Items of one stage write different rows, so they do not wait for each other.
  static constexpr int64_t kAlone = -1;

  explicit BufferHazards(const Plan& plan);

  /// Makes `stream` wait for all earlier conflicting work.
  void begin(const BufferUse& use, Stream stream) const;
  /// Records that the work was enqueued on `stream`. `stage`: as below.
  void end(const BufferUse& use, Stream stream, int64_t stage = kAlone);
  /// Records that the work was enqueued on `stream`, with `event` after it. `stage`: for work that
  /// is enqueued before any work of its stage is recorded here.
  void end(const BufferUse& use, Stream stream, const std::shared_ptr<DeviceEvent>& event,
           int64_t stage = kAlone);

 private:
  struct Mark {
    std::shared_ptr<DeviceEvent> event;
    Stream stream = nullptr;
  };
  struct Uses {
    // The latest of each stream:
    std::vector<Mark> writes;  // the last one, or all of one stage
    std::vector<Mark> reads;   // since the writes
    int64_t stage = kAlone;    // of the writes
  };
  static void note(std::vector<Mark>& marks, Mark mark);
  template <class Self>
  static auto find_uses(Self& self, const BufferPart& part);

  IdVector<BufferId, int32_t> first_head_;
  IdVector<BufferId, std::vector<Uses>> uses_;  // [head]
};

}  // namespace cpscope::kernels
