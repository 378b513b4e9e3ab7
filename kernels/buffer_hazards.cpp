#include "kernels/buffer_hazards.h"

#include <algorithm>

namespace cpscope::kernels {

void BufferHazards::wait_for(const Mark& mark, Stream stream) {
  if (mark.event != nullptr && mark.stream != stream) wait_for_event(stream, mark.event->get());
}

void BufferHazards::begin(const BufferUse& use, Stream stream) {
  for (const BufferId id : use.reads) {
    if (id != kNoBuffer) wait_for(uses_[to_index(id)].write, stream);
  }
  for (const BufferId id : use.writes) {
    if (id == kNoBuffer) continue;
    wait_for(uses_[to_index(id)].write, stream);
    for (const Mark& read : uses_[to_index(id)].reads) wait_for(read, stream);
  }
}

void BufferHazards::end(const BufferUse& use, Stream stream) {
  const auto event = std::make_shared<DeviceEvent>(false);
  record_event(event->get(), stream);
  for (const BufferId id : use.reads) {
    if (id == kNoBuffer) continue;
    std::vector<Mark>& reads = uses_[to_index(id)].reads;
    const auto same = std::find_if(reads.begin(), reads.end(),
                                   [&](const Mark& mark) { return mark.stream == stream; });
    if (same == reads.end()) {
      reads.push_back({event, stream});
    } else {
      same->event = event;
    }
  }
  for (const BufferId id : use.writes) {
    if (id != kNoBuffer) uses_[to_index(id)] = {{event, stream}, {}};
  }
}

}  // namespace cpscope::kernels
