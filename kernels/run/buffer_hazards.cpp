#include "kernels/run/buffer_hazards.h"

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>

namespace cpscope::kernels {
namespace {

/// Makes a stream wait only once for each event.
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
    uses_.push_back(std::vector<Uses>(static_cast<size_t>(spec.heads.size())));
  }
}

/// The uses of all heads of the part.
template <class Self>
auto BufferHazards::find_uses(Self& self, const BufferPart& part) {
  using Found = std::span<std::remove_reference_t<decltype(self.uses_.front().front())>>;
  if (part.buffer == kNoBuffer) return Found();
  const auto heads = static_cast<int32_t>(self.uses_[part.buffer].size());
  const int32_t begin = std::clamp(part.heads.begin - self.first_head_[part.buffer], 0, heads);
  const int32_t end = std::clamp(part.heads.end - self.first_head_[part.buffer], begin, heads);
  return Found(self.uses_[part.buffer])
      .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

/// A stream's latest event covers its earlier ones.
void BufferHazards::note(std::vector<Mark>& marks, Mark mark) {
  const auto same = std::find_if(marks.begin(), marks.end(),
                                 [&](const Mark& other) { return other.stream == mark.stream; });
  if (same == marks.end()) {
    marks.push_back(std::move(mark));
  } else {
    *same = std::move(mark);
  }
}

void BufferHazards::begin(const BufferUse& use, Stream stream) const {
  Waits waits(stream);
  const auto wait_for = [&](const std::vector<Mark>& marks) {
    for (const Mark& mark : marks) waits.add(mark.event, mark.stream);
  };
  for (const BufferPart& part : use.reads) {
    for (const Uses& uses : find_uses(*this, part)) wait_for(uses.writes);
  }
  for (const BufferPart& part : use.writes) {
    for (const Uses& uses : find_uses(*this, part)) {
      wait_for(uses.writes);
      wait_for(uses.reads);
    }
  }
}

void BufferHazards::end(const BufferUse& use, Stream stream, int64_t stage) {
  const auto event = std::make_shared<DeviceEvent>(false);
  record_event(event->get(), stream);
  end(use, stream, event, stage);
}

void BufferHazards::end(const BufferUse& use, Stream stream,
                        const std::shared_ptr<DeviceEvent>& event, int64_t stage) {
  for (const BufferPart& part : use.reads) {
    for (Uses& uses : find_uses(*this, part)) {
      note(uses.reads, {event, stream});
    }
  }
  for (const BufferPart& part : use.writes) {
    for (Uses& uses : find_uses(*this, part)) {
      if (stage == kAlone || uses.stage != stage) uses = {{}, {}, stage};
      note(uses.writes, {event, stream});
    }
  }
}

}  // namespace cpscope::kernels
