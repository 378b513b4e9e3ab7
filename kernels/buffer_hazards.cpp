#include "kernels/buffer_hazards.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

/// Lets a stream wait once for each event.
class Waits {
 public:
  explicit Waits(Stream stream) : stream_(stream) {}

  void add(const std::shared_ptr<DeviceEvent>& event, Stream of) {
    if (event == nullptr || of == stream_ ||
        std::find(done_.begin(), done_.end(), event.get()) != done_.end())
      return;
    wait_for_event(stream_, event->get());
    done_.push_back(event.get());
  }

 private:
  Stream stream_;
  std::vector<const DeviceEvent*> done_;
};

}  // namespace

BufferHazards::BufferHazards(const Plan& plan) {
  for (const BufferSpec& spec : plan.buffers) {
    first_head_.push_back(spec.heads.begin);
    uses_.emplace_back(static_cast<size_t>(spec.heads.size()));
  }
}

std::span<BufferHazards::Uses> BufferHazards::uses_of(const BufferPart& part) {
  if (part.buffer == kNoBuffer) return {};
  const auto b = static_cast<size_t>(to_index(part.buffer));
  const auto heads = static_cast<int32_t>(uses_[b].size());
  const int32_t begin = std::clamp(part.heads.begin - first_head_[b], 0, heads);
  const int32_t end = std::clamp(part.heads.end - first_head_[b], begin, heads);
  return std::span(uses_[b]).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

void BufferHazards::begin(const BufferUse& use, Stream stream) {
  Waits waits(stream);
  for (const BufferPart& part : use.reads) {
    for (const Uses& uses : uses_of(part)) waits.add(uses.write.event, uses.write.stream);
  }
  for (const BufferPart& part : use.writes) {
    for (const Uses& uses : uses_of(part)) {
      waits.add(uses.write.event, uses.write.stream);
      for (const Mark& read : uses.reads) waits.add(read.event, read.stream);
    }
  }
}

void BufferHazards::end(const BufferUse& use, Stream stream) {
  const auto event = std::make_shared<DeviceEvent>(false);
  record_event(event->get(), stream);
  for (const BufferPart& part : use.reads) {
    for (Uses& uses : uses_of(part)) {
      const auto same = std::find_if(uses.reads.begin(), uses.reads.end(),
                                     [&](const Mark& mark) { return mark.stream == stream; });
      if (same == uses.reads.end()) {
        uses.reads.push_back({event, stream});
      } else {
        same->event = event;
      }
    }
  }
  for (const BufferPart& part : use.writes) {
    for (Uses& uses : uses_of(part)) uses = {{event, stream}, {}};
  }
}

}  // namespace cpscope::kernels
