#include "kernels/lower/lowered_plan.h"
#include "sim/plan/visit_items.h"

#include <algorithm>
#include <array>
#include <map>

namespace cpscope::kernels {
namespace {

/// Splits an event of a joined item into those of its parts.
std::vector<ItemEvent> split(const ItemEvent& event, const std::vector<JoinedPart>& parts) {
  int64_t all = 0, before = 0;
  for (const JoinedPart& part : parts) all += part.visible_pairs;
  const auto time_at = [&](int64_t pairs) {
    const double share =
        static_cast<double>(pairs) / static_cast<double>(std::max<int64_t>(1, all));
    return event.start_ns +
           static_cast<int64_t>(share * static_cast<double>(event.end_ns - event.start_ns));
  };
  std::vector<ItemEvent> events;
  for (const JoinedPart& part : parts) {
    ItemEvent& of = events.emplace_back(event);
    if (events.size() > 1) of.cast_ns = 0;  // casts come first
    of.item.index = part.origin;
    of.start_ns = time_at(before);
    of.end_ns = time_at(before += part.visible_pairs);
  }
  return events;
}

}  // namespace

std::vector<ItemEvent> planned_events(const LoweredPlan& lowered,
                                      const std::vector<ItemEvent>& events) {
  struct Whole {
    ItemEvent event;
    const std::vector<JoinedPart>* parts = nullptr;
  };
  std::vector<Whole> wholes;
  // [direction, kind, item, rank]
  std::map<std::array<int64_t, 4>, size_t> found;
  for (ItemEvent event : events) {
    ItemId& id = event.item;
    const PassNotes& notes = lowered.notes[id.direction];
    const auto item = static_cast<size_t>(id.index);
    id.index = visit_item(notes, id.kind, id.index, [](const auto& note) { return note.origin; });
    if (id.index < 0) continue;
    const auto [entry, is_new] =
        found.try_emplace({static_cast<int64_t>(id.direction), static_cast<int64_t>(id.kind),
                           id.index, to_index(event.rank)},
                          wholes.size());
    if (is_new) {
      const bool is_joined = id.kind == StageKind::compute && !notes.computes[item].parts.empty();
      wholes.push_back({event, is_joined ? &notes.computes[item].parts : nullptr});
      continue;
    }
    ItemEvent& whole = wholes[entry->second].event;
    whole.start_ns = std::min(whole.start_ns, event.start_ns);
    whole.end_ns = std::max(whole.end_ns, event.end_ns);
    whole.cast_ns += event.cast_ns;
  }
  std::vector<ItemEvent> planned;
  for (const Whole& whole : wholes) {
    const auto parts =
        whole.parts != nullptr ? split(whole.event, *whole.parts) : std::vector{whole.event};
    planned.insert(planned.end(), parts.begin(), parts.end());
  }
  std::stable_sort(planned.begin(), planned.end(),
                   [](const ItemEvent& a, const ItemEvent& b) { return a.start_ns < b.start_ns; });
  return planned;
}

}  // namespace cpscope::kernels
