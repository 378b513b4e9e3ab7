#include "kernels/run/item_clock.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cpscope::kernels {

int32_t middle_of(const std::vector<double>& seconds) {
  std::vector<int32_t> order(seconds.size());
  std::iota(order.begin(), order.end(), 0);
  const auto middle = order.begin() + static_cast<int64_t>(order.size() / 2);
  std::nth_element(order.begin(), middle, order.end(),
                   [&](int32_t a, int32_t b) { return seconds[a] < seconds[b]; });
  return middle == order.end() ? 0 : *middle;
}

ItemClock::ItemClock(bool is_on, Stream stream) : is_on_(is_on) {
  if (!is_on_) return;
  zero_ = std::make_shared<DeviceEvent>(true);
  record_event(zero_->get(), stream);
}

void ItemClock::keep_only(Direction direction, int32_t repeat) {
  std::erase_if(timed_, [&](const Timed& timed) {
    return timed.item.direction == direction && timed.repeat != repeat;
  });
}

void ItemClock::start(Stream stream) {
  if (!is_on_ || !is_turned_on_) return;
  open_ = std::make_shared<DeviceEvent>(true);
  casts_end_.reset();
  record_event(open_->get(), stream);
}

void ItemClock::end_casts(Stream stream) {
  if (!is_on_ || !is_turned_on_) return;
  casts_end_ = std::make_shared<DeviceEvent>(true);
  record_event(casts_end_->get(), stream);
}

void ItemClock::stop(const ItemId& item, RankId rank, StepId step, Stream stream) {
  stop_all({&item, 1}, rank, step, stream);
}

void ItemClock::stop_all(std::span<const ItemId> items, RankId rank, StepId step, Stream stream) {
  if (!is_on_ || !is_turned_on_) return;
  const auto end = std::make_shared<DeviceEvent>(true);
  record_event(end->get(), stream);
  for (const ItemId& item : items)
    timed_.push_back({item, rank, step, repeat_, open_, end, casts_end_});
}

std::vector<ItemEvent> ItemClock::read() {
  std::vector<ItemEvent> events;
  const auto since_zero = [&](const DeviceEvent& event) {
    return std::llround(milliseconds_between(zero_->get(), event.get()) * 1e6);
  };
  for (const Timed& timed : timed_) {
    ItemEvent& event = events.emplace_back(ItemEvent{
        timed.item, timed.rank, timed.step, since_zero(*timed.start), since_zero(*timed.end)});
    if (timed.casts_end) event.cast_ns = since_zero(*timed.casts_end) - event.start_ns;
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const ItemEvent& a, const ItemEvent& b) { return a.start_ns < b.start_ns; });
  return events;
}

}  // namespace cpscope::kernels
